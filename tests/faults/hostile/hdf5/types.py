"""Hostile HDF5: odd types, attributes, descriptions and names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from asyncreader.formats import packed as fmt

from ..corpus import NONE, SET, UNKNOWN, Scratch, Target, attack
from .tools import (
    ROWS,
    N,
    done,
    on_plain,
    packed_set,
    patched,
    plain,
    redescribe,
    redigest,
    space,
    with_classes,
)


def _typed(
    name: str, kind: Any, says: str = "plain numbers", refused: tuple[str, ...] = SET
) -> None:
    def make(scratch: Scratch) -> Target:
        file = plain(scratch, data=False)
        h5py.h5d.create(file.id, b"data", kind(), space((N,)))
        return done(file)

    make.__doc__ = f"Data of an odd type: {name}."
    attack(refused, says, name=f"type_{name}")(make)


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


def _opaque(tag: bytes, size: int = 8) -> Any:
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, size)
    kind.set_tag(tag)
    return kind


_typed("vlen_of_vlen_3000", lambda: _nested(3000, "vlen"))
_typed("array_of_array_2000", lambda: _nested(2000, "array"))
_typed("compound_1000", lambda: _nested(1000, "compound"), "stores none")
_typed("opaque", lambda: _opaque(b"pickle"))
_typed("opaque_as_objects", lambda: _opaque(b"NUMPY:O"))
_typed("opaque_as_a_long_list", lambda: _opaque(b"NUMPY:" + b"i1," * 80))
_typed("object_reference", lambda: h5py.h5t.STD_REF_OBJ)
_typed("text", lambda: h5py.h5t.py_create(h5py.string_dtype(), logical=True), "variable length")
_typed("float128", lambda: h5py.h5t.IEEE_F128LE, "plain numbers|Insufficient precision")
_typed(
    "vlen_of_text",
    lambda: h5py.h5t.vlen_create(h5py.h5t.py_create(np.dtype("S4"))),
    "variable length|plain numbers|holds neither|stored",
)


# -- structured rows -----------------------------------------------------------------------------

_WORD, _TEXT = h5py.h5t.STD_I32LE, h5py.h5t.py_create(h5py.string_dtype(), logical=True)


def _records(
    name: str,
    members: dict[bytes, tuple[int, Any]],
    asked: Any = ("x",),
    says: str = "",
    refused: tuple[str, ...] = ("read",),
    damage: tuple[bytes, bytes] | None = None,
    size: int = 16,
) -> None:
    """Rows of these members (offset, type), with ``asked`` of them. ``damage``: bytes of the file,
    and what stands there instead."""

    def make(scratch: Scratch) -> Target:
        file = plain(scratch, data=False)
        kind = h5py.h5t.create(h5py.h5t.COMPOUND, size)
        for one, (offset, inner) in members.items():
            kind.insert(one, offset, inner)
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        h5py.h5d.create(file.id, b"data", kind, space((N,)), early)
        target = done(file, members=asked)
        if damage is not None:
            patched(Path(target.path), *damage)
        return target

    make.__doc__ = f"Structured rows: {name.replace('_', ' ')}."
    attack(refused, says, ("read", "info", "convert"), name=f"records_{name}")(make)


_records("of_text_in_a_heap", {b"x": (0, _TEXT)}, says="does not hold plain numbers")
_records("beside_text_in_a_heap", {b"x": (0, _WORD), b"y": (4, _nested(1, "vlen"))}, refused=NONE,
         size=24)  # fmt: skip
_records("of_references", {b"x": (0, h5py.h5t.STD_REF_OBJ)}, says="does not hold plain numbers")
_records("of_objects", {b"x": (0, _opaque(b"NUMPY:O"))}, says="does not hold plain numbers")
_records("inside_each_other", {b"x": (0, _nested(900, "compound"))}, says="no member 'x'")
_records("arrays_of_arrays", {b"x": (0, _nested(900, "array"))}, says="does not hold plain numbers")
_records("named_alike", {b"x": (0, _WORD), b"y": (4, _WORD)}, damage=(b"y\0\0\0", b"x\0\0\0"),
         says="already|another|damaged|name")  # fmt: skip
_records("member_outside", {b"xmember": (0, _WORD), b"y": (8, _WORD)}, ("xmember",),
         "damaged|outside|HDF5 cannot read",
         damage=(b"xmember\0" + bytes(4), b"xmember\0\x0e\0\0\0"))  # fmt: skip
_records("member_far_outside", {b"xmember": (0, _WORD), b"y": (8, _WORD)}, ("xmember",),
         "damaged|outside|HDF5 cannot read",
         damage=(b"xmember\0" + bytes(4), b"xmember\0\0\0\0\xff"))  # fmt: skip
_records("over_each_other", {b"x": (0, _WORD), b"ymember": (8, _WORD)}, ("x", "ymember"),
         refused=NONE,
         damage=(b"ymember\0" + b"\x08\0\0\0", b"ymember\0\x02\0\0\0"))  # fmt: skip


@on_plain(NONE, data=False)
def committed_type(file: Any, scratch: Scratch) -> None:
    """Served: a named type of plain numbers."""
    file["kind"] = np.dtype("u1")
    file.create_dataset("data", data=np.zeros(ROWS, np.uint8), dtype=file["kind"])


def _attributed(name: str, make_attribute: Any, base: str | None = None) -> None:
    def make(scratch: Scratch) -> Target:
        file = plain(scratch) if base is None else packed_set(scratch, base)
        make_attribute(file)
        return done(file)

    make.__doc__ = f"An odd attribute: {name}."
    attack(NONE, ways=SET, name=f"attribute_{name}")(make)


def _raw_attribute(name: bytes, kind: Any, count: int = 2) -> Any:
    def make(file: Any) -> None:
        if h5py.h5a.exists(file.id, name):
            h5py.h5a.delete(file.id, name)
        h5py.h5a.create(file.id, name, kind() if callable(kind) else kind, space((count,)))

    return make


for _name in ("format", "split", "train"):
    _attributed(f"{_name}_of_objects", _raw_attribute(_name.encode(), lambda: _opaque(b"NUMPY:O")))
    _attributed(f"{_name}_deep", _raw_attribute(_name.encode(), lambda: _nested(1500, "vlen")))
    _attributed(
        f"{_name}_compound_of_objects",
        _raw_attribute(_name.encode(), lambda: _compound(_opaque(b"NUMPY:O"))),
    )


def _compound(member: Any) -> Any:
    kind = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
    kind.insert(b"split", 0, member)
    kind.insert(b"source", 8, member)
    return kind


def _huge_attribute(file: Any) -> None:
    plist = h5py.h5a.create(file.id, b"more", h5py.h5t.NATIVE_UINT8, space((60_000,)))
    plist.write(np.full(60_000, 66, np.uint8))


_attributed("huge", _huge_attribute, "raw.h5")


@attack(NONE, ways=SET)
def attributes_by_the_thousand(scratch: Scratch) -> Target:
    """5,000 attributes of the root group."""
    file = plain(scratch, libver="latest")
    for number in range(5000):
        file.attrs[f"a{number}"] = number
    return done(file)


def _described(
    name: str, field: str, value: Any, refused: tuple[str, ...] = SET, says: str = ""
) -> None:
    def make(scratch: Scratch) -> Target:
        file = packed_set(scratch)
        redescribe(file, **{field: value})
        return done(file)

    make.__doc__ = f"Our description with {field} = {name}."
    attack(refused, says, SET, name=f"description_{field}_{name}")(make)


_described("huge", "count", 1 << 62, says="wrong 'count'|number of samples")
_described("negative", "count", -1, says="wrong 'count'")
_described("nan", "count", math.nan, says="not JSON|wrong 'count'")
_described("infinite", "count", math.inf, says="not JSON|wrong 'count'")
_described("text", "count", "9" * 5000, says="wrong 'count'|not JSON")
_described("huge", "shape", [1 << 62, 4, 3], says="wrong 'shape'")
_described("short", "shape", [4], says="wrong 'shape'")
_described("huge", "version", 1 << 40, says="newer")
_described("two", "channels", 2, says="wrong 'channels'")
_described("jpeg", "encoding", "jpeg", says="blob|not the")
_described("object", "dtype", "object", says="wrong 'dtype'")
_described("floats", "label_dtype", "|O8", says="wrong 'label_dtype'")


def _odd_description(name: str, make_attribute: Any, says: str) -> None:
    def make(scratch: Scratch) -> Target:
        file = packed_set(scratch)
        make_attribute(file)
        return done(file)

    make.__doc__ = f"Our description as {name}."
    attack(SET, says, SET, name=f"description_{name}")(make)


def _attribute_of(value: Any) -> Any:
    return lambda file: file.attrs.__setitem__("description", value)


for _name, _kind in (
    ("objects", lambda: _opaque(b"NUMPY:O")),
    ("deep", lambda: _nested(1500, "vlen")),
):
    _odd_description(_name, _raw_attribute(b"description", _kind), "or no text")
_odd_description("text of variable length", _attribute_of("{}"), "or no text")
_odd_description("numbers", _attribute_of(np.zeros(4)), "or no text")
_odd_description("two", _attribute_of(np.array([b"{}", b"{}"])), "or no text")
_odd_description("nothing", _attribute_of(h5py.Empty("S5")), "or no text")
_odd_description("brackets", _attribute_of(np.bytes_(b"[" * 60_000)), "not JSON")

ESCAPES = b"\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\x7f"


@on_plain(UNKNOWN, says="no field 'data'", ways=SET, data=False, labels=False)
def escapes_in_names(file: Any, scratch: Scratch) -> None:
    """Names that would retitle a terminal and wipe it: listed where data is not found."""
    file[ESCAPES.decode("latin-1")] = np.zeros(ROWS)
    file["é" * 30_000] = np.zeros(4)


@attack(NONE, ways=SET)
def escapes_in_classes(scratch: Scratch) -> Target:
    """Class names of another's set that would do so: shown, escaped."""
    file = plain(scratch, data=False, labels=False)
    return with_classes(file, ESCAPES, b"\xff\xfe\n\n")


def _with_paths(file: Any, paths: list[bytes]) -> None:
    """Give a set packed by asyncreader other paths, and their digest."""
    del file["paths"]
    file["paths"] = np.array(paths)
    redigest(file, fmt.PATHS, fmt.names_digest(paths))


@attack(("read", "verify", "convert"), "source '", ways=("read", "verify", "convert"))
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


def _offsets(name: str, change: Any, says: str) -> None:
    def make(scratch: Scratch) -> Target:
        with packed_set(scratch, "jpeg.h5") as file:
            path = Path(file.filename)
            offsets = file["offsets"][()]
            change(offsets)
            file["offsets"][...] = offsets
            redigest(file, fmt.OFFSETS, fmt.digest(offsets))
        return Target(path)

    make.__doc__ = f"Our offsets {name}, their digest right."
    attack(SET, says, SET, name=f"offsets_{name}")(make)


def _set(index: int, value: int) -> Any:
    def change(offsets: Any) -> None:
        offsets[index] = value

    return change


_offsets("beyond", _set(2, 1 << 40), "outside the file|lies outside")
_offsets("negative", _set(0, -(1 << 40)), "outside")
_offsets("wrapping", _set(1, (1 << 63) - 1), "outside")
_offsets("backwards", lambda p: p.__setitem__(slice(1, 5), p[1:5][::-1].copy()), "outside")
_offsets("end", _set(-1, 1 << 50), "do not end")
