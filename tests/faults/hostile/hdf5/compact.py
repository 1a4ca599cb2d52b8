"""Hostile HDF5: data sets inside object headers (compact layout), described falsely."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from asyncreader.formats import packed as fmt

from ..corpus import NONE, SAMPLE, SET, Scratch, Target, attack, edited, family
from .tools import ROWS, N, closed, done, opaque, packed_set, patched, plain, space


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


def lying(
    scratch: Scratch, table: str, values: Any, lie: Callable[[Any], tuple[bytes, bytes]]
) -> Target:
    """A compact table whose header says something else."""
    file = plain(scratch, data=table != "data", labels=table != "labels")
    compact(file, table, values)
    path = closed(file)
    patched(path, *lie(values))
    return Target(path)


NUMBERS = np.arange(N, dtype=np.int64)[:, None] + 1000
for _table, _values in (("data", PIXELS), ("labels", NUMBERS)):
    _rows = {how: ("", _table, _values, lie) for how, lie in _LIES.items()}
    family(f"Compact {_table} whose header says", f"compact_{_table}_", lying, _rows)


@attack(NONE)
def compact_tables(scratch: Scratch) -> Target:
    """Served: data and labels of a foreign file, both in their headers."""
    file = plain(scratch, data=False, labels=False)
    compact(file, "data", PIXELS)
    compact(file, "labels", np.arange(N))
    return done(file)


def ours(scratch: Scratch, table: str, base: str, change: bool) -> Target:
    """Our set, a table in its header, with the same values or others."""
    file = packed_set(scratch, base)
    values = file[table][()]
    del file[table]
    if change:
        values = values[::-1] if table != fmt.OFFSETS else values * (1 << 40)
    compact(file, table, values)
    return done(file)


_BASES = {"labels": "raw.h5", "checksums": "raw.h5", "offsets": "jpeg.h5"}
_SAME = {name: (None, name, base, False) for name, base in _BASES.items()}
_CHANGED = {f"{name}_changed": ("", name, base, True) for name, base in _BASES.items()}
family("Our set's table in its header", "compact_ours_", ours, _SAME | _CHANGED, SAMPLE, SET)


def typed(scratch: Scratch, table: str, make_kind: Callable[[], Any]) -> Target:
    """A compact table of an odd type."""
    file = plain(scratch, data=table != "data", labels=table != "labels")
    compact(file, table, np.zeros(N, np.uint8), make_kind())
    return done(file)


_KINDS: dict[str, Callable[[], Any]] = {
    "objects": lambda: opaque(b"NUMPY:O"),
    "text": lambda: h5py.h5t.py_create(h5py.string_dtype(), logical=True),
    "references": lambda: h5py.h5t.STD_REF_OBJ,
}
for _table in ("data", "labels"):
    _typed = {f"{_table}_of_{name}": ("", _table, kind) for name, kind in _KINDS.items()}
    family("A compact table", "compact_", typed, _typed, SET, SET)


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
