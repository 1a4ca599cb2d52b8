"""Hostile HDF5: the bytes of other files, by storage, links and virtual data sets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...damage.reseal import lookup3
from ..corpus import NONE, SET, UNKNOWN, Scratch, Target, attack
from .tools import (
    ROWS,
    N,
    closed,
    done,
    external,
    filtered,
    on_plain,
    packed_set,
    plain,
    virtually,
)


@on_plain(says="keeps its bytes outside the file", data=False)
def external_storage_data(file: Any, scratch: Scratch) -> None:
    """The pixels are another file's bytes."""
    external(file, "data", ROWS, "u1", scratch)


@on_plain(says="keeps its bytes outside the file", ways=SET, labels=False)
def external_storage_labels(file: Any, scratch: Scratch) -> None:
    """So are the labels."""
    external(file, "labels", (N,), "i8", scratch)


@on_plain(says="keeps its bytes outside the file", data=False)
def external_storage_in_a_group(file: Any, scratch: Scratch) -> None:
    """Behind a soft link, two groups down."""
    external(file.create_group("a/b"), "x", ROWS, "u1", scratch)
    file["data"] = h5py.SoftLink("a/b/x")


def _replaced(scratch: Scratch, table: str, how: str, base: str = "raw.h5") -> Target:
    """A set packed by asyncreader one of whose tables is in another file."""
    file = packed_set(scratch, base)
    old = file[table]
    shape, kind = old.shape, old.dtype
    del file[table]
    if how == "storage":
        external(file, table, shape, kind, scratch)
    elif how == "link":
        file[table] = h5py.ExternalLink(scratch.secret_h5, "text" if kind.kind == "S" else "labels")
    elif how == "pipe":
        file[table] = h5py.ExternalLink(scratch.pipe, "x")
    elif how == "virtual":
        layout = h5py.VirtualLayout(shape, kind)
        layout[:] = h5py.VirtualSource(scratch.secret_h5, "labels", shape, kind)
        file.create_virtual_dataset(table, layout)
    elif how == "plugin":
        filtered(file, table, shape, kind)
    elif how == "bomb":
        file.create_dataset(table, (1 << 40, *shape[1:]), kind, chunks=(1 << 16, *shape[1:]))
    elif how == "opaque":
        file[table] = np.zeros(shape, "M8[s]").astype(h5py.opaque_dtype("M8[s]"))
    return done(file)


def _tables(table: str, base: str, refused: tuple[str, ...] = SET) -> None:
    says = {
        "storage": "outside the file",
        "link": "link into another file",
        "pipe": "link into another file",
        "virtual": "virtual dataset",
        "plugin": "filter that is not read|found filter",
        "bomb": "wrong shape|lacks some|another number|too small|not the blob",
        "opaque": "plain numbers|wrong shape|no list of text",
    }
    for how, message in says.items():

        def make(scratch: Scratch, how: str = how) -> Target:
            return _replaced(scratch, table, how, base)

        make.__doc__ = f"Our set's {table}: {how}."
        attack(refused, message, SET, name=f"ours_{table}_{how}")(make)


for _table in ("labels", "checksums", "classes"):
    _tables(_table, "raw.h5")
_tables("offsets", "jpeg.h5")
_tables("paths", "raw.h5", ("verify", "convert"))


@on_plain(says="link into another file", data=False)
def external_link_data(file: Any, scratch: Scratch) -> None:
    """The data are a link to another file's data."""
    file["data"] = h5py.ExternalLink(scratch.secret_h5, "data")


@on_plain(says="link into another file", ways=SET, labels=False)
def external_link_labels(file: Any, scratch: Scratch) -> None:
    """The labels are a link to another file's labels."""
    file["labels"] = h5py.ExternalLink(scratch.secret_h5, "labels")


@on_plain(says="link into another file", data=False)
def external_link_to_a_pipe(file: Any, scratch: Scratch) -> None:
    """Whoever follows it waits for ever."""
    file["data"] = h5py.ExternalLink(scratch.pipe, "data")


@on_plain(says="link into another file", data=False)
def external_link_behind_soft_link(file: Any, scratch: Scratch) -> None:
    """A soft link inside the file, to a link out of it, to a pipe."""
    file["way"] = h5py.ExternalLink(scratch.pipe, "data")
    file["data"] = h5py.SoftLink("/way")


@on_plain(says="link into another file", data=False, data_field="way/data")
def external_link_as_a_group(file: Any, scratch: Scratch) -> None:
    """The group that the data lie in is another file's."""
    file["way"] = h5py.ExternalLink(scratch.pipe, "/")


@on_plain(says="link into another file", ways=SET, labels=False)
def external_link_labels_to_a_pipe(file: Any, scratch: Scratch) -> None:
    """Labels by the names that are tried: each of them a pipe."""
    for name in ("labels", "label", "targets", "target"):
        file[name] = h5py.ExternalLink(scratch.pipe, "x")


@on_plain(says="no field 'data'|link into another file", data=False, labels=False)
def external_link_in_all_known_names(file: Any, scratch: Scratch) -> None:
    """Every name that a known layout has, each a pipe."""
    names = "features image_features encoded_images images image jpegs x y"
    for name in names.split():
        file[name] = h5py.ExternalLink(scratch.pipe, "x")


@attack(says="link into another file")
def user_defined_link(scratch: Scratch) -> Target:
    """A link of a kind that some program would have to register."""
    file = plain(scratch, data=False)
    file["data"] = h5py.ExternalLink(scratch.secret_h5, "data")
    made = done(file)
    raw = Path(made.path).read_bytes()
    at = raw.index(b"\x40\x04data")  # type 64, length of the name, name
    Path(made.path).write_bytes(raw[:at] + b"\x41" + raw[at + 1 :])
    return made


@on_plain(says="leads in circles|soft link", data=False)
def soft_link_cycle(file: Any, scratch: Scratch) -> None:
    """Soft links that lead to each other."""
    file["data"] = h5py.SoftLink("/other")
    file["other"] = h5py.SoftLink("/data")


@on_plain(says="leads in circles|soft link", data=False)
def soft_link_that_grows(file: Any, scratch: Scratch) -> None:
    """A soft link through itself, longer with each step."""
    file["data"] = h5py.SoftLink("/data/" + "a/" * 2000)


@on_plain(UNKNOWN, says="no field 'data'", data=False)
def soft_link_to_nothing(file: Any, scratch: Scratch) -> None:
    """A soft link that tries a file system's path."""
    file["data"] = h5py.SoftLink("/../../../../etc/passwd")


@on_plain(UNKNOWN, says="no field 'data'", ways=SET, data=False)
def groups_in_circles(file: Any, scratch: Scratch) -> None:
    """A group that holds itself, and the root."""
    group = file.create_group("g")
    group["again"] = group
    group["root"] = file["/"]


@attack(NONE)
def data_behind_circles(scratch: Scratch) -> Target:
    """Served: many steps round a circle of groups are still this file's data."""
    file = plain(scratch)
    file["me"] = file["/"]
    return Target(closed(file), {"data_field": "me/" * 50 + "data"})


@attack(says="virtual dataset.*pass those files as a list")
def virtual(scratch: Scratch) -> Target:
    """Pixels mapped from another file."""
    return done(virtually(scratch, scratch.secret_h5, False))


@attack(says="virtual dataset")
def virtual_to_a_pipe(scratch: Scratch) -> Target:
    """Asking for its shape opens the file: a pipe."""
    return done(virtually(scratch, scratch.pipe, True))


@attack(says="virtual dataset")
def virtual_of_itself(scratch: Scratch) -> Target:
    """Mapped from itself."""
    return done(virtually(scratch, ".", False))


@attack(UNKNOWN, says="no field|virtual", ways=SET)
def virtual_by_known_names(scratch: Scratch) -> Target:
    """Names that are only tried must not be asked for their shape either."""
    file = virtually(scratch, scratch.pipe, True)
    for name in ("x", "images", "encoded_images", "label", "labels2", "data_shapes"):
        file[name] = file["data"]
    del file["data"]
    return done(file)


@attack(says="virtual dataset", ways=SET)
def virtual_labels_to_a_pipe(scratch: Scratch) -> Target:
    """The labels' shape opens a pipe."""
    file = virtually(scratch, scratch.pipe, True)
    file.move("data", "other")
    del file["labels"]
    file["labels"] = file["other"]
    file["data"] = np.zeros(ROWS, np.uint8)
    return done(file)


# -- virtual layouts with a false list of sources --------------------------------------------------


def listed(scratch: Scratch, table: str) -> tuple[Path, int, int]:
    """A file whose ``table`` is virtual, and where its list of sources begins and ends.

    The list is an object of a global heap: a version, a count, the sources, a checksum (HDF5 File
    Format Specification 4.0, III.E and III.F).
    """
    file = virtually(scratch, scratch.secret_h5, False)
    if table == "labels":
        file.move("data", "other")
        del file["labels"]
        file["labels"] = file["other"]
        file["data"] = np.zeros(ROWS, np.uint8)
    elif table != "data":
        file.move("data", table)
    path = closed(file)
    raw = path.read_bytes()
    begin = raw.index(b"GCOL") + 32
    return path, begin, begin + int.from_bytes(raw[begin - 8 : begin], "little")


def forged(scratch: Scratch, table: str, change: Callable[[bytearray], None]) -> Target:
    """``change`` done to the list of sources, and its checksum made good."""
    path, begin, end = listed(scratch, table)
    raw = bytearray(path.read_bytes())
    block = raw[begin : end - 4]
    change(block)
    sealed = np.array(block)
    raw[begin:end] = bytes(block) + struct.pack("<I", int(lookup3(sealed, sealed.size)))
    path.write_bytes(raw)
    return Target(path)


def _counted(count: int) -> Callable[[bytearray], None]:
    def change(block: bytearray) -> None:
        block[1:9] = struct.pack("<Q", count)

    return change


def _unended(block: bytearray) -> None:
    block[9:] = b"x" * len(block[9:])


def _version(block: bytearray) -> None:
    block[0] = 255


def _drawn(seed: int) -> Callable[[bytearray], None]:
    def change(block: bytearray) -> None:
        rng = np.random.default_rng(seed)
        for at in rng.integers(len(block), size=int(rng.integers(1, 12))).tolist():
            block[at] = int(rng.integers(256))

    return change


#: Counts whose products with the size of an entry (some hundred bytes) overflow, or nearly do.
_COUNTS = (0, 2, 1 << 32, *(1 << n for n in range(56, 64)), (1 << 64) - 1)
_LISTS: dict[str, Callable[[bytearray], None]] = {
    **{f"of_{count}": _counted(count) for count in _COUNTS},
    "of_names_without_end": _unended,
    "of_no_version": _version,
    **{f"drawn_{seed}": _drawn(seed) for seed in range(12)},
}


def _lists(table: str, how: str) -> None:
    def make(scratch: Scratch) -> Target:
        return forged(scratch, table, _LISTS[how])

    make.__doc__ = f"A virtual data set {table} whose list of sources is {how.replace('_', ' ')}."
    refused = SET if table in ("data", "labels") else UNKNOWN
    attack(refused, "virtual dataset|no field", SET, f"virtual_{table}_{how}")(make)


for _how in _LISTS:
    _lists("data", _how)
for _table in ("labels", "images", "elsewhere"):
    _lists(_table, "of_2305843009213693952")
