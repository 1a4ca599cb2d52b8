"""Hostile HDF5: programs as filters, files of labels, Fuel's references."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..corpus import NONE, SET, UNKNOWN, Scratch, Target, attack
from .tools import (
    ROWS,
    N,
    closed,
    done,
    external,
    filtered,
    on_plain,
    patched,
    plain,
    virtually,
)


@on_plain(says="filter 32099", data=False)
def plugin_data(file: Any, scratch: Scratch) -> None:
    """Pixels behind a filter that HDF5 would look for in HDF5_PLUGIN_PATH."""
    filtered(file, "data", ROWS, "u1", optional=True)


@on_plain(says="filter 32099", ways=SET, labels=False)
def plugin_labels(file: Any, scratch: Scratch) -> None:
    """Labels behind one: a small table is read by the HDF5 library."""
    filtered(file, "labels", (N,), "i8")


@attack(says="filters that are not read together")
def plugin_with_a_built_in(scratch: Scratch) -> Target:
    """nbit, which HDF5 must undo, and blosc, which is known but not by HDF5."""
    file = plain(scratch, data=False)
    filtered(file, "data", ROWS, "u1", codes=(2, 32001), optional=True)
    made = done(file)
    path = Path(made.path)
    raw = path.read_bytes()
    at = raw.index(struct.pack("<HH", 2, 8) if struct.pack("<HH", 2, 8) in raw else b"shuffle\0")
    if raw[at : at + 7] == b"shuffle":
        at -= 8
    path.write_bytes(raw[:at] + struct.pack("<H", 5) + raw[at + 2 :])
    return made


@on_plain(says="is not read|needs a filter", ways=SET, labels=False)
def plugin_blosc_labels(file: Any, scratch: Scratch) -> None:
    """A known filter on a table that only the HDF5 library reads."""
    filtered(file, "labels", (N,), "i8", codes=(32001,))


@on_plain(says="filter that is not read", data=False)
def plugin_vlen(file: Any, scratch: Scratch) -> None:
    """Pictures of variable length behind one."""
    kind = h5py.h5t.py_create(h5py.vlen_dtype(np.dtype("u1")), logical=True)
    filtered(file, "data", (N,), kind, optional=True)


def _labels_file(scratch: Scratch, how: str) -> Target:
    file = plain(scratch, labels=False)
    other = h5py.File(scratch.folder / "labels.h5", "w")
    if how == "plugin":
        filtered(other, "labels", (N,), "i8")
    elif how == "storage":
        external(other, "labels", (N,), "i8", scratch)
    elif how == "link":
        other["labels"] = h5py.ExternalLink(scratch.pipe, "labels")
    elif how == "bomb":
        other.create_dataset("labels", (N, 1 << 50), "i8", chunks=(1, 1 << 20))
    elif how == "virtual":
        layout = h5py.VirtualLayout((N,), "i8")
        layout[:] = h5py.VirtualSource(scratch.secret_h5, "labels", (N,), "i8")
        other.create_virtual_dataset("labels", layout)
    path = closed(other)
    return Target(closed(file), {"labels_path": str(path)})


def _labels_files() -> None:
    says = {
        "plugin": "filter 32099",
        "storage": "outside the file",
        "link": "link into another file",
        "bomb": "lacks some",
        "virtual": "virtual",
    }
    for how, message in says.items():

        def make(scratch: Scratch, how: str = how) -> Target:
            return _labels_file(scratch, how)

        ways = ("read", "info", "convert")
        attack(ways, message, ways, name=f"labels_path_{how}")(make)


_labels_files()


@attack(("read", "info", "convert"), "no such labels file", ("read", "info", "convert"))
def labels_path_pipe(scratch: Scratch) -> Target:
    """The labels' file is a pipe."""
    return Target(closed(plain(scratch, labels=False)), {"labels_path": scratch.pipe})


@attack(("read", "info", "convert"), "no such labels file", ("read", "info", "convert"))
def labels_path_device(scratch: Scratch) -> Target:
    """The labels' file is endless."""
    return Target(closed(plain(scratch, labels=False)), {"labels_path": "/dev/zero"})


@attack(UNKNOWN, ways=SET, says="no field 'data'")
def sidecar_is_a_pipe(scratch: Scratch) -> Target:
    """PCam's labels lie in a second file: here it is a pipe."""
    os.mkfifo(scratch.folder / "set_y.h5")
    with h5py.File(scratch.folder / "set_x.h5", "w") as file:
        file["x"] = np.zeros(ROWS, np.uint8)
    return Target(scratch.folder / "set_x.h5")


def _fuel(file: Any, start: int, indices: Any) -> None:
    kind = np.dtype(
        [
            ("split", "S5"),
            ("source", "S6"),
            ("start", "i8"),
            ("stop", "i8"),
            ("indices", h5py.ref_dtype),
            ("available", "?"),
            ("comment", "S1"),
        ]
    )
    table = np.zeros(2, kind)
    for row, source in zip(table, (b"data", b"labels"), strict=True):
        row["split"], row["source"], row["available"] = b"train", source, True
        row["start"], row["stop"], row["indices"] = start, N, indices
    file.attrs["split"] = table


@on_plain(says="filter 32099|found filter", ways=SET)
def fuel_indices_plugin(file: Any, scratch: Scratch) -> None:
    """A split's records behind a filter."""
    filtered(file, "rows", (N,), "i8")
    _fuel(file, 0, file["rows"].ref)


@on_plain(says="outside the file", ways=SET)
def fuel_indices_storage(file: Any, scratch: Scratch) -> None:
    """A split's records are another file's bytes."""
    external(file, "rows", (N,), "i8", scratch)
    _fuel(file, 0, file["rows"].ref)


@on_plain(says="is not a dataset", ways=SET)
def fuel_indices_group(file: Any, scratch: Scratch) -> None:
    """A reference to a group."""
    _fuel(file, 0, file.create_group("g").ref)


@attack(NONE, ways=SET)
def fuel_reference_to_garbage(scratch: Scratch) -> Target:
    """A reference to an address in the middle of pixels."""
    file = plain(scratch)
    group = file.create_group("g")
    _fuel(file, 0, group.ref)
    address = h5py.h5o.get_info(group.id).addr
    made = done(file)
    patched(Path(made.path), struct.pack("<QQ", N, address), struct.pack("<QQ", N, 1 << 60), -1)
    return made


@attack(says="virtual|shape", ways=SET, refused=NONE)
def fuel_shapes_virtual(scratch: Scratch) -> Target:
    """A dimension scale whose shape opens a pipe."""
    file = virtually(scratch, scratch.pipe, True)
    file["shapes"] = file["data"]
    del file["data"]
    kind = h5py.vlen_dtype("u1")
    file.create_dataset("data", (N,), kind)
    for number in range(N):
        file["data"][number] = np.full(12, number, np.uint8)
    _fuel(file, 0, h5py.Reference())
    return done(file)
