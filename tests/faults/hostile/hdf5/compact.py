"""Hostile HDF5: data sets inside object headers (compact layout), described falsely."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from asyncreader.formats import packed as fmt

from ..corpus import NONE, SET, Scratch, Target, attack, edited
from .tools import ROWS, N, closed, packed_set, patched, plain, space


def compact(file: Any, name: str, values: Any, kind: Any = None) -> Any:
    """Add a data set stored in its object header; ``kind``: HDF5's type, if it is an odd one."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    values = np.ascontiguousarray(values)
    stored = h5py.h5t.py_create(values.dtype) if kind is None else kind
    made = h5py.h5d.create(file.id, name.encode(), stored, space(values.shape), plist)
    if kind is None:
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return made


def _dims(values: np.ndarray[Any, Any], rows: int) -> tuple[bytes, bytes]:
    """The extent and the greatest extent of a data set as its header has them, and others."""
    rest = b"".join(struct.pack("<Q", n) for n in values.shape[1:])
    return 2 * (struct.pack("<Q", values.shape[0]) + rest), 2 * (struct.pack("<Q", rows) + rest)


def _sized(size: int, stated: int) -> tuple[bytes, bytes]:
    """The layout message (HDF5 file format specification, IV.A.2.i, version 3): class 0, a size."""
    return struct.pack("<BBH", 3, 0, size), struct.pack("<BBH", 3, 0, stated)


PIXELS = np.arange(np.prod(ROWS), dtype=np.uint8).reshape(ROWS)
#: What a header is made to say of its values.
_LIES: dict[str, Callable[[Any], tuple[bytes, bytes]]] = {
    "more_rows": lambda v: _dims(v, N + 1),
    "a_thousand_times": lambda v: _dims(v, N * 1000),
    "an_exabyte": lambda v: _dims(v, 1 << 52),
    "rows_of_2_63": lambda v: _dims(v, (1 << 63) - 1),
    "64_kib": lambda v: _sized(v.nbytes, 65535),
    "no_bytes": lambda v: _sized(v.nbytes, 0),
    "a_byte_less": lambda v: _sized(v.nbytes, v.nbytes - 1),
}


def _lying(table: str, values: np.ndarray[Any, Any], how: str) -> None:
    def make(scratch: Scratch) -> Target:
        file = plain(scratch, data=table != "data", labels=table != "labels")
        compact(file, table, values)
        path = closed(file)
        patched(path, *_LIES[how](values))
        return Target(path)

    make.__doc__ = f"Compact {table} whose header says {how.replace('_', ' ')}."
    attack(SET, "", name=f"compact_{table}_{how}")(make)


for _how in _LIES:
    _lying("data", PIXELS, _how)
    _lying("labels", np.arange(N, dtype=np.int64)[:, None] + 1000, _how)


@attack(NONE)
def compact_tables(scratch: Scratch) -> Target:
    """Served: data and labels of a foreign file, both in their headers."""
    file = plain(scratch, data=False, labels=False)
    compact(file, "data", PIXELS)
    compact(file, "labels", np.arange(N))
    return Target(closed(file))


def _ours(table: str, base: str, change: bool) -> None:
    def make(scratch: Scratch) -> Target:
        file = packed_set(scratch, base)
        values = file[table][()]
        del file[table]
        if change:
            values = values[::-1] if table != fmt.OFFSETS else values * (1 << 40)
        compact(file, table, values)
        return Target(closed(file))

    words = "and other values" if change else "and the same values"
    make.__doc__ = f"Our set's {table} in its header, {words}."
    name = f"compact_ours_{table}{'_changed' if change else ''}"
    attack(("read", "verify", "convert") if change else NONE, "", SET, name=name)(make)


for _table, _base in (("labels", "raw.h5"), ("checksums", "raw.h5"), ("offsets", "jpeg.h5")):
    _ours(_table, _base, False)
    _ours(_table, _base, True)


def _typed(name: str, make_kind: Callable[[], Any], table: str) -> None:
    def make(scratch: Scratch) -> Target:
        file = plain(scratch, data=table != "data", labels=table != "labels")
        compact(file, table, np.zeros(N, np.uint8), make_kind())
        return Target(closed(file))

    make.__doc__ = f"Compact {table} of an odd type: {name}."
    attack(SET, "", SET, name=f"compact_{table}_of_{name}")(make)


def _opaque() -> Any:
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, 8)
    kind.set_tag(b"NUMPY:O")
    return kind


for _table in ("data", "labels"):
    _typed("objects", _opaque, _table)
    _typed("text", lambda: h5py.h5t.py_create(h5py.string_dtype(), logical=True), _table)
    _typed("references", lambda: h5py.h5t.STD_REF_OBJ, _table)


@attack(NONE, ways=SET)
def compact_text_of_garbage(scratch: Scratch) -> Target:
    """Pictures of variable length, compact: pointers into a heap that is not there."""
    file = plain(scratch, data=False)
    kind = h5py.h5t.py_create(h5py.vlen_dtype(np.dtype("u1")), logical=True)
    compact(file, "data", np.zeros(N, np.uint8), kind)
    path = Path(closed(file))
    with edited(path) as raw:
        # each element: length (4), address of a heap (8), index in it (4); unwritten they are zero
        at = raw.index(struct.pack("<BBH", 3, 0, 16 * N)) + 4
        raw[at : at + 16 * N] = struct.pack("<IQI", 1 << 31, 1 << 50, 1) * N
    return Target(path)
