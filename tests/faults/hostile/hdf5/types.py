"""Hostile HDF5: odd types, attributes, descriptions and names."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from asyncreader.formats import packed as fmt

from ..corpus import NONE, SAMPLE, SET, UNKNOWN, Scratch, Target, attack, family
from .tools import (
    ROWS,
    N,
    done,
    on,
    opaque,
    packed_set,
    patched,
    plain,
    puts,
    redescribe,
    redigest,
    space,
    with_classes,
)


def typed(scratch: Scratch, kind: Callable[[], Any]) -> Target:
    """Data of an odd type."""
    file = plain(scratch, data=False)
    h5py.h5d.create(file.id, b"data", kind(), space((N,)))
    return done(file)


def _nested(levels: int, how: str) -> Any:
    kind = h5py.h5t.NATIVE_UINT8.copy()
    for _ in range(levels):
        if how == "vlen":
            kind = h5py.h5t.vlen_create(kind)
        elif how == "array":
            kind = h5py.h5t.array_create(kind, (1,))
        else:
            outer = h5py.h5t.create(h5py.h5t.COMPOUND, kind.get_size())
            outer.insert(b"a", 0, kind)
            kind = outer
    return kind


NUMBERS, NO_NUMBERS = "plain numbers", "does not hold plain numbers"
_WORD, _TEXT = h5py.h5t.STD_I32LE, h5py.h5t.py_create(h5py.string_dtype(), logical=True)
family("Data of an odd type", "type_", typed, {
    "vlen_of_vlen_3000": (NUMBERS, lambda: _nested(3000, "vlen")),
    "array_of_array_2000": (NUMBERS, lambda: _nested(2000, "array")),
    "compound_1000": ("stores none", lambda: _nested(1000, "compound")),
    "opaque": (NUMBERS, lambda: opaque(b"pickle")),
    "opaque_as_objects": (NUMBERS, lambda: opaque(b"NUMPY:O")),
    "opaque_as_a_long_list": (NUMBERS, lambda: opaque(b"NUMPY:" + b"i1," * 80)),
    "object_reference": (NUMBERS, lambda: h5py.h5t.STD_REF_OBJ),
    "text": ("variable length", lambda: _TEXT),
    "float128": ("plain numbers|Insufficient precision", lambda: h5py.h5t.IEEE_F128LE),
    "vlen_of_text": (
        "variable length|plain numbers|holds neither|stored",
        lambda: h5py.h5t.vlen_create(h5py.h5t.py_create(np.dtype("S4"))),
    ),
})  # fmt: skip


# -- structured rows -----------------------------------------------------------------------------


def records(
    scratch: Scratch,
    members: dict[bytes, tuple[int, Any]],
    size: int = 16,
    old: bytes = b"",
    new: bytes = b"",
    asked: tuple[str, ...] = ("x",),
) -> Target:
    """Rows of these members (offset, type), with ``asked`` of them; ``old`` bytes of the file are
    replaced by others."""
    file = plain(scratch, data=False)
    kind = h5py.h5t.create(h5py.h5t.COMPOUND, size)
    for one, (offset, inner) in members.items():
        kind.insert(one, offset, inner)
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    h5py.h5d.create(file.id, b"data", kind, space((N,)), early)
    target = done(file, members=asked)
    if old:
        patched(Path(target.path), old, new)
    return target


_TWO = {b"x": (0, _WORD), b"y": (4, _WORD)}
_LONG = {b"xmember": (0, _WORD), b"y": (8, _WORD)}
_OVER = {b"x": (0, _WORD), b"ymember": (8, _WORD)}
_DAMAGED = "damaged|outside|HDF5 cannot read"
family("Structured rows", "records_", records, {
    "of_text_in_a_heap": (NO_NUMBERS, {b"x": (0, _TEXT)}),
    "beside_text_in_a_heap": (None, {b"x": (0, _WORD), b"y": (4, _nested(1, "vlen"))}, 24),
    "of_references": (NO_NUMBERS, {b"x": (0, h5py.h5t.STD_REF_OBJ)}),
    "of_objects": (NO_NUMBERS, {b"x": (0, opaque(b"NUMPY:O"))}),
    "inside_each_other": ("no member 'x'", {b"x": (0, _nested(900, "compound"))}),
    "arrays_of_arrays": (NO_NUMBERS, {b"x": (0, _nested(900, "array"))}),
    "named_alike": ("already|another|damaged|name", _TWO, 16, b"y\0\0\0", b"x\0\0\0"),
    "member_outside": (
        _DAMAGED, _LONG, 16, b"xmember\0" + bytes(4), b"xmember\0\x0e\0\0\0", ("xmember",)
    ),
    "member_far_outside": (
        _DAMAGED, _LONG, 16, b"xmember\0" + bytes(4), b"xmember\0\0\0\0\xff", ("xmember",)
    ),
    "over_each_other": (
        None, _OVER, 16, b"ymember\0\x08\0\0\0", b"ymember\0\x02\0\0\0", ("x", "ymember")
    ),
}, ("read",), ("read", "info", "convert"))  # fmt: skip


def _committed(file: Any, scratch: Scratch) -> None:
    """A named type of plain numbers."""
    file["kind"] = np.dtype("u1")
    file.create_dataset("data", data=np.zeros(ROWS, np.uint8), dtype=file["kind"])


family("Served", "", on(data=False), {"committed_type": (None, _committed)})


def _raw_attribute(name: bytes, kind: Any, count: int = 2) -> Any:
    def make(file: Any) -> None:
        if h5py.h5a.exists(file.id, name):
            h5py.h5a.delete(file.id, name)
        h5py.h5a.create(file.id, name, kind() if callable(kind) else kind, space((count,)))

    return make


def _compound(member: Any) -> Any:
    kind = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
    kind.insert(b"split", 0, member)
    kind.insert(b"source", 8, member)
    return kind


def _huge_attribute(file: Any) -> None:
    plist = h5py.h5a.create(file.id, b"more", h5py.h5t.NATIVE_UINT8, space((60_000,)))
    plist.write(np.full(60_000, 66, np.uint8))


def attributed(scratch: Scratch, change: Callable[[Any], Any], ours: bool) -> Target:
    """An odd attribute of a foreign file, or of ours."""
    file = packed_set(scratch) if ours else plain(scratch)
    change(file)
    return done(file)


_KINDS = {
    "of_objects": lambda: opaque(b"NUMPY:O"),
    "deep": lambda: _nested(1500, "vlen"),
    "compound_of_objects": lambda: _compound(opaque(b"NUMPY:O")),
}
_ATTRIBUTES: dict[str, tuple[None, Any, bool]] = {"huge": (None, _huge_attribute, True)}
for _name in ("format", "split", "train"):
    for _what, _kind in _KINDS.items():
        _make = _raw_attribute(_name.encode(), _kind)
        _ATTRIBUTES[f"{_name}_{_what}"] = None, _make, False
family("An odd attribute", "attribute_", attributed, _ATTRIBUTES, ways=SET)


@attack(NONE, ways=SET)
def attributes_by_the_thousand(scratch: Scratch) -> Target:
    """5,000 attributes of the root group."""
    file = plain(scratch, libver="latest")
    for number in range(5000):
        file.attrs[f"a{number}"] = number
    return done(file)


def described(scratch: Scratch, field: str, value: Any) -> Target:
    """Our description with another value of a field."""
    file = packed_set(scratch)
    redescribe(file, **{field: value})
    return done(file)


family("Our description", "description_", described, {
    "count_huge": ("wrong 'count'|number of samples", "count", 1 << 62),
    "count_negative": ("wrong 'count'", "count", -1),
    "count_nan": ("not JSON|wrong 'count'", "count", math.nan),
    "count_infinite": ("not JSON|wrong 'count'", "count", math.inf),
    "count_text": ("wrong 'count'|not JSON", "count", "9" * 5000),
    "shape_huge": ("wrong 'shape'", "shape", [1 << 62, 4, 3]),
    "shape_short": ("wrong 'shape'", "shape", [4]),
    "version_huge": ("newer", "version", 1 << 40),
    "channels_two": ("wrong 'channels'", "channels", 2),
    "encoding_jpeg": ("blob|not the", "encoding", "jpeg"),
    "dtype_object": ("wrong 'dtype'", "dtype", "object"),
    "label_dtype_floats": ("wrong 'label_dtype'", "label_dtype", "|O8"),
}, SET, SET)  # fmt: skip


def _attribute_of(value: Any) -> Any:
    return lambda file: file.attrs.__setitem__("description", value)


NO_TEXT = "or no text"
family("Our description as", "description_", attributed, {
    "objects": (NO_TEXT, _raw_attribute(b"description", lambda: opaque(b"NUMPY:O")), True),
    "deep": (NO_TEXT, _raw_attribute(b"description", lambda: _nested(1500, "vlen")), True),
    "text of variable length": (NO_TEXT, _attribute_of("{}"), True),
    "numbers": (NO_TEXT, _attribute_of(np.zeros(4)), True),
    "two": (NO_TEXT, _attribute_of(np.array([b"{}", b"{}"])), True),
    "nothing": (NO_TEXT, _attribute_of(h5py.Empty("S5")), True),
    "brackets": ("not JSON", _attribute_of(np.bytes_(b"[" * 60_000)), True),
}, SET, SET)  # fmt: skip

ESCAPES = b"\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\x7f"


# they would retitle a terminal and wipe it: listed where data are not found, or shown, escaped
family("Names with escapes", "escapes_in_", on(data=False, labels=False), {
    "names": ("no field 'data'", puts(**{
        ESCAPES.decode("latin-1"): np.zeros(ROWS), "é" * 30_000: np.zeros(4)})),
}, UNKNOWN, SET)  # fmt: skip
_BOTH = {"classes": (None, ESCAPES, b"\xff\xfe\n\n")}
family("Names with escapes", "escapes_in_", with_classes, _BOTH, ways=SET)


def _with_paths(file: Any, paths: list[bytes]) -> None:
    """Give a set packed by asyncreader other paths, and their digest."""
    del file["paths"]
    file["paths"] = np.array(paths)
    redigest(file, fmt.PATHS, fmt.names_digest(paths))


@attack(SAMPLE, "source '", ways=SAMPLE)
def escapes_in_paths(scratch: Scratch) -> Target:
    """Recorded paths that would do so, of samples that are damaged: named in the errors."""
    with packed_set(scratch) as file:
        path = Path(file.filename)
        offset = file["data"].id.get_offset()
        _with_paths(file, [b"../../" + ESCAPES + b"%d" % i for i in range(N)])
    with open(path, "r+b") as raw:
        raw.seek(offset)
        raw.write(bytes(64))
    return Target(path)


@attack(NONE, ways=SET)
def paths_out_of_the_folder(scratch: Scratch) -> Target:
    """Recorded paths that lead elsewhere are words: nothing is opened or written there."""
    with packed_set(scratch) as file:
        path = Path(file.filename)
        _with_paths(file, [*(b"../" * 9 + b"tmp/%d" % i for i in range(N - 1)), b"/etc/passwd"])
    return Target(path)


def offsets(scratch: Scratch, change: Callable[[Any], Any]) -> Target:
    """Our offsets, changed, and their digest right."""
    with packed_set(scratch, "jpeg.h5") as file:
        path = Path(file.filename)
        table = file["offsets"][()]
        change(table)
        file["offsets"][...] = table
        redigest(file, fmt.OFFSETS, fmt.digest(table))
    return Target(path)


def _set(index: int, value: int) -> Any:
    return lambda table: table.__setitem__(index, value)


family("Our offsets", "offsets_", offsets, {
    "beyond": ("outside the file|lies outside", _set(2, 1 << 40)),
    "negative": ("outside", _set(0, -(1 << 40))),
    "wrapping": ("outside", _set(1, (1 << 63) - 1)),
    "backwards": ("outside", lambda p: p.__setitem__(slice(1, 5), p[1:5][::-1].copy())),
    "end": ("do not end", _set(-1, 1 << 50)),
}, SET, SET)  # fmt: skip
