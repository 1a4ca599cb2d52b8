"""Hostile HDF5: the bytes of other files, by storage, links and virtual data sets."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...damage.reseal import seal
from ..corpus import NONE, SET, UNKNOWN, Scratch, Target, attack, edited, family
from .tools import (
    ROWS,
    N,
    closed,
    done,
    elsewhere,
    external,
    filtered,
    leads_out,
    on,
    packed_set,
    plain,
    puts,
    virtually,
)

KNOWN = "features image_features encoded_images images image jpegs x y"
OUTSIDE, OUT = "keeps its bytes outside the file", "link into another file"
CIRCLES, GONE = "leads in circles|soft link", "no field 'data'"


def _in_a_group(file: Any, scratch: Scratch) -> None:
    """Behind a soft link, two groups down."""
    external(file.create_group("a/b"), "x", ROWS, "u1", scratch)
    file["data"] = h5py.SoftLink("a/b/x")


def _behind(file: Any, scratch: Scratch) -> None:
    """A soft link inside the file, to a link out of it, to a pipe."""
    file["way"] = h5py.ExternalLink(scratch.pipe, "data")
    file["data"] = h5py.SoftLink("/way")


def _all_pipes(names: str) -> Callable[[Any, Scratch], None]:
    """A pipe under each name that is tried."""

    def change(file: Any, scratch: Scratch) -> None:
        for name in names.split():
            file[name] = h5py.ExternalLink(scratch.pipe, "x")

    return change


def _circle(file: Any, scratch: Scratch) -> None:
    """A group that holds itself, and the root."""
    group = file.create_group("g")
    group["again"], group["root"] = group, file["/"]


family("Pixels that are not there", "", on(data=False), {
    "external_storage_data": (OUTSIDE, lambda f, s: external(f, "data", ROWS, "u1", s)),
    "external_storage_in_a_group": (OUTSIDE, _in_a_group),
    "external_link_data": (OUT, leads_out("data", "secret_h5", "data")),
    "external_link_to_a_pipe": (OUT, leads_out("data", "pipe", "data")),
    "external_link_behind_soft_link": (OUT, _behind),
    "soft_link_cycle": (CIRCLES, puts(data=h5py.SoftLink("/other"), other=h5py.SoftLink("/data"))),
    "soft_link_that_grows": (CIRCLES, puts(data=h5py.SoftLink("/data/" + "a/" * 2000))),
})  # fmt: skip
family("Pixels that are not there", "", on(data=False), {
    "soft_link_to_nothing": (GONE, puts(data=h5py.SoftLink("/../../../../etc/passwd"))),
}, UNKNOWN)  # fmt: skip
family("Pixels that are not there", "", on(data=False), {
    "groups_in_circles": (GONE, _circle),
}, UNKNOWN, SET)  # fmt: skip
family("Pixels that are not there", "", on({"data_field": "way/data"}, data=False), {
    "external_link_as_a_group": (OUT, leads_out("way", "pipe", "/")),
})  # fmt: skip
family("Labels that are not there", "", on(labels=False), {
    "external_storage_labels": (OUTSIDE, lambda f, s: external(f, "labels", (N,), "i8", s)),
    "external_link_labels": (OUT, leads_out("labels", "secret_h5", "labels")),
    "external_link_labels_to_a_pipe": (OUT, _all_pipes("labels label targets target")),
}, SET, SET)  # fmt: skip
family("Every name of a known layout", "", on(data=False, labels=False), {
    "external_link_in_all_known_names": (f"{GONE}|{OUT}", _all_pipes(KNOWN)),
})  # fmt: skip


# -- tables of our sets ------------------------------------------------------------------------

#: What takes a table's place: what an error must say, and how it is made.
INSTEAD: dict[str, tuple[str, Callable[..., Any]]] = {
    "storage": ("outside the file", external),
    "link": (OUT, lambda f, table, shape, kind, s: leads_out(
        table, "secret_h5", "text" if kind.kind == "S" else "labels")(f, s)),
    "pipe": (OUT, lambda f, table, shape, kind, s: leads_out(table, "pipe", "x")(f, s)),
    "virtual": ("virtual dataset", lambda f, table, shape, kind, s: elsewhere(
        f, table, s.secret_h5, "labels", shape, kind)),
    "plugin": ("filter that is not read|found filter",
               lambda f, table, shape, kind, s: filtered(f, table, shape, kind)),
    "bomb": ("wrong shape|lacks some|another number|too small|not the blob",
             lambda f, table, shape, kind, s: f.create_dataset(
                 table, (1 << 40, *shape[1:]), kind, chunks=(1 << 16, *shape[1:]))),
    "opaque": ("plain numbers|wrong shape|no list of text",
               lambda f, table, shape, kind, s: f.__setitem__(
                   table, np.zeros(shape, "M8[s]").astype(h5py.opaque_dtype("M8[s]")))),
}  # fmt: skip


def replaced(scratch: Scratch, how: Callable[..., Any], table: str, base: str) -> Target:
    """A set packed by asyncreader with something else in the place of one of its tables."""
    file = packed_set(scratch, base)
    old = file[table]  # as long as it is open, its bytes stay in the file
    shape, kind = old.shape, old.dtype
    del file[table]
    how(file, table, shape, kind, scratch)
    return done(file)


for _table in ("labels", "checksums", "classes", "offsets", "paths"):
    _base = "jpeg.h5" if _table == "offsets" else "raw.h5"
    _refused = ("verify", "convert") if _table == "paths" else SET
    _rows = {how: (*row, _table, _base) for how, row in INSTEAD.items()}
    family(f"Our set's {_table}", f"ours_{_table}_", replaced, _rows, _refused, SET)


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


@attack(NONE)
def data_behind_circles(scratch: Scratch) -> Target:
    """Served: many steps round a circle of groups are still this file's data."""
    file = plain(scratch)
    file["me"] = file["/"]
    return Target(closed(file), {"data_field": "me/" * 50 + "data"})


def mapped(scratch: Scratch, source: str, unlimited: bool) -> Target:
    """Pixels mapped from another file. Asking for an unlimited shape opens that file."""
    return done(virtually(scratch, getattr(scratch, source, source), unlimited))


family("A virtual data set", "virtual", mapped, {
    "": ("virtual dataset.*pass those files as a list", "secret_h5", False),
    "_to_a_pipe": ("virtual dataset", "pipe", True),
    "_of_itself": ("virtual dataset", ".", False),
})  # fmt: skip


@attack(UNKNOWN, says="no field|virtual", ways=SET)
def virtual_by_known_names(scratch: Scratch) -> Target:
    """Names that are only tried must not be asked for their shape either."""
    file = virtually(scratch, scratch.pipe, True)
    for name in ("x", "images", "encoded_images", "label", "labels2", "data_shapes"):
        file[name] = file["data"]
    del file["data"]
    return done(file)


def as_labels(file: Any) -> Any:
    """The virtual data set as labels of plain pixels."""
    file.move("data", "other")
    del file["labels"]
    file["labels"] = file["other"]
    file["data"] = np.zeros(ROWS, np.uint8)
    return file


@attack(says="virtual dataset", ways=SET)
def virtual_labels_to_a_pipe(scratch: Scratch) -> Target:
    """The labels' shape opens a pipe."""
    return done(as_labels(virtually(scratch, scratch.pipe, True)))


# -- virtual layouts with a false list of sources --------------------------------------------------


def listed(scratch: Scratch, table: str) -> tuple[Path, int, int]:
    """A file whose ``table`` is virtual, and where its list of sources begins and ends.

    The list is an object of a global heap: a version, a count, the sources, a checksum (HDF5 File
    Format Specification 4.0, III.E and III.F).
    """
    file = virtually(scratch, scratch.secret_h5, False)
    if table == "labels":
        as_labels(file)
    elif table != "data":
        file.move("data", table)
    path = closed(file)
    raw = path.read_bytes()
    begin = raw.index(b"GCOL") + 32
    return path, begin, begin + int.from_bytes(raw[begin - 8 : begin], "little")


def forged(scratch: Scratch, table: str, change: Callable[[bytearray], None]) -> Target:
    """``change`` done to the list of sources, and its checksum made good."""
    path, begin, end = listed(scratch, table)
    with edited(path) as raw:
        block = raw[begin : end - 4]
        change(block)
        raw[begin : end - 4] = block
        seal(raw, begin, len(block))
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


FALSE = "virtual dataset|no field"
_DATA = {how: (FALSE, "data", change) for how, change in _LISTS.items()}
family("A false list of sources", "virtual_data_", forged, _DATA, SET, SET)
_MANY = "of_2305843009213693952"
for _table in ("labels", "images", "elsewhere"):
    _row = {f"{_table}_{_MANY}": (FALSE, _table, _LISTS[_MANY])}
    family("A false list", "virtual_", forged, _row, SET if _table == "labels" else UNKNOWN, SET)
