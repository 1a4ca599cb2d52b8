"""Hostile HDF5: programs as filters, files of labels, Fuel's references."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..corpus import NONE, SET, UNKNOWN, Scratch, Target, attack, family
from .tools import (
    ROWS,
    N,
    creates,
    done,
    elsewhere,
    external,
    filtered,
    leads_out,
    on,
    patched,
    plain,
    virtually,
)

#: The ways that take a file of labels.
ASKED = ("read", "info", "convert")
VLEN = h5py.h5t.py_create(h5py.vlen_dtype(np.dtype("u1")), logical=True)
family("Pixels behind a filter", "", on(data=False), {
    # HDF5 would look for it in HDF5_PLUGIN_PATH
    "plugin_data": ("filter 32099", lambda f, s: filtered(f, "data", ROWS, "u1", optional=True)),
    "plugin_vlen": (
        "filter that is not read", lambda f, s: filtered(f, "data", (N,), VLEN, optional=True)
    ),
})  # fmt: skip
# a small table is read by the HDF5 library
family("Labels behind a filter", "", on(labels=False), {
    "plugin_labels": ("filter 32099", lambda f, s: filtered(f, "labels", (N,), "i8")),
    "plugin_blosc_labels": (
        "is not read|needs a filter",
        lambda f, s: filtered(f, "labels", (N,), "i8", codes=(32001,)),
    ),
}, SET, SET)  # fmt: skip


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


def labels_file(scratch: Scratch, change: Callable[[Any, Scratch], Any]) -> Target:
    """A second file has the labels."""
    with h5py.File(scratch.folder / "labels.h5", "w") as other:
        change(other, scratch)
    path = scratch.folder / "labels.h5"
    return done(plain(scratch, labels=False), labels_path=str(path))


def labels_path(scratch: Scratch, path: str) -> Target:
    """The labels' file is something else."""
    return done(plain(scratch, labels=False), labels_path=getattr(scratch, path, path))


family("A file of labels", "labels_path_", labels_file, {
    "plugin": ("filter 32099", lambda f, s: filtered(f, "labels", (N,), "i8")),
    "storage": ("outside the file", lambda f, s: external(f, "labels", (N,), "i8", s)),
    "link": ("link into another file", leads_out("labels", "pipe", "labels")),
    "bomb": ("lacks some", creates("labels", (N, 1 << 50), "i8", chunks=(1, 1 << 20))),
    "virtual": (
        "virtual", lambda f, s: elsewhere(f, "labels", s.secret_h5, "labels", (N,), "i8")
    ),
}, ASKED, ASKED)  # fmt: skip
family("A file of labels", "labels_path_", labels_path, {
    "pipe": ("no such labels file", "pipe"),
    "device": ("no such labels file", "/dev/zero"),
}, ASKED, ASKED)  # fmt: skip


@attack(UNKNOWN, ways=SET, says="no field 'data'")
def sidecar_is_a_pipe(scratch: Scratch) -> Target:
    """PCam's labels lie in a second file: here it is a pipe."""
    os.mkfifo(scratch.folder / "set_y.h5")
    with h5py.File(scratch.folder / "set_x.h5", "w") as file:
        file["x"] = np.zeros(ROWS, np.uint8)
    return Target(scratch.folder / "set_x.h5")


FUEL = np.dtype([
    ("split", "S5"), ("source", "S6"), ("start", "i8"), ("stop", "i8"),
    ("indices", h5py.ref_dtype), ("available", "?"), ("comment", "S1"),
])  # fmt: skip


def _fuel(file: Any, indices: Any) -> None:
    """Fuel's attribute of splits, whose records a reference tells."""
    table = np.zeros(2, FUEL)
    for row, source in zip(table, (b"data", b"labels"), strict=True):
        row["split"], row["source"], row["available"] = b"train", source, True
        row["stop"], row["indices"] = N, indices
    file.attrs["split"] = table


def _referred(make: Callable[[Any, Scratch], Any]) -> Callable[[Any, Scratch], None]:
    """A reference to what ``make`` makes as "rows"."""

    def change(file: Any, scratch: Scratch) -> None:
        make(file, scratch)
        _fuel(file, file["rows"].ref)

    return change


family("A split's records", "fuel_indices_", on(), {
    "plugin": (
        "filter 32099|found filter", _referred(lambda f, s: filtered(f, "rows", (N,), "i8"))
    ),
    "storage": (
        "outside the file", _referred(lambda f, s: external(f, "rows", (N,), "i8", s))
    ),
    "group": ("is not a dataset", _referred(lambda f, s: f.create_group("rows"))),
}, SET, SET)  # fmt: skip


@attack(NONE, ways=SET)
def fuel_reference_to_garbage(scratch: Scratch) -> Target:
    """A reference to an address in the middle of pixels."""
    file = plain(scratch)
    group = file.create_group("g")
    _fuel(file, group.ref)
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
    _fuel(file, h5py.Reference())
    return done(file)
