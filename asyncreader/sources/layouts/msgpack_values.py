"""Values inside msgpack, of many records at once: arrays as ml-pyxis and msgpack_numpy keep them,
bytes, text and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...array_types import Array, Bools, Int64
from ..lmdb import columns
from ..lmdb.columns import ARRAY, BIN, BOOL, FLOAT, INT, MAP, STR, Span

#: What a value is: an array, bytes or text of any length, a whole number, a float.
ARRAYS, BINARY, TEXT, WHOLE, REAL = range(1, 6)
WORDS: Final = np.array(["nothing", "an array", "bytes", "text", "a whole number", "a float"])
#: Axes that an array may have here.
_AXES: Final = 6
#: numpy type strings that are read: plain numbers of at most 64 bits.
_PLAIN: Final = frozenset(
    f"{order}{kind}".encode()
    for order in "<>|="
    for kind in ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
)


@dataclass
class Values:
    """One field of all records: what it is, and where its bytes lie."""

    form: Int64
    dtype: Array
    """S4: numpy type strings of arrays."""
    rank: Int64
    shape: Int64
    """(N, _AXES), 1 behind the rank."""
    start: Int64
    size: Int64
    number: Int64
    real: Array

    @classmethod
    def empty(cls, count: int) -> Values:
        """To be filled block by block."""
        whole = [np.zeros(count, np.int64) for _ in range(5)]
        shape = np.ones((count, _AXES), np.int64)
        return cls(
            whole[0],
            np.zeros(count, "S4"),
            whole[1],
            shape,
            whole[2],
            whole[3],
            whole[4],
            np.zeros(count, np.float64),
        )

    def first_shape(self) -> tuple[int, ...]:
        """The shape of the first record's array."""
        return tuple(self.shape[0, : int(self.rank[0])].tolist())


def read_values(span: Span, rows: Int64, out: Values) -> None:
    """Note what stands at the cursors as records ``rows`` of ``out``."""
    found = columns.head(span)
    # DataLoader makes a list of one of everything that folder2lmdb writes
    alone = (found.kind == ARRAY) & (found.number == 1)
    if alone.any():
        span = span.moved(np.where(alone, found.stop, span.at))
        found = columns.head(span)
    for kind, form in ((BIN, BINARY), (STR, TEXT), (INT, WHOLE), (BOOL, WHOLE), (FLOAT, REAL)):
        out.form[rows[found.kind == kind]] = form
    out.start[rows], out.size[rows] = found.start, found.stop - found.start
    out.number[rows] = found.number
    out.real[rows] = found.real()
    maps = np.flatnonzero(found.kind == MAP)
    if maps.size:
        _read_arrays(span.pick(maps), rows[maps], out)
    span.need(out.form[rows] > 0, "a value that is neither array, bytes, text nor number")


def _read_arrays(span: Span, rows: Int64, out: Values) -> None:
    """Maps that ml-pyxis ({type, dtype, shape, data}) or msgpack_numpy ({nd, type, ...}) wrote."""
    names = (b"type", b"dtype", b"shape", b"data", b"nd", b"kind")
    (kind, dtype, shape, data, nd, odd), _ = columns.find(span, names)
    span.need((kind >= 0) & (data >= 0), "a map that is no array: it lacks type or data")
    pyxis = columns.head(span.moved(kind)).kind == INT
    first = np.where(pyxis, dtype, kind)
    payload = columns.head(span.moved(data))
    span.need((payload.kind == BIN) | (payload.kind == STR), "an array whose data are no bytes")
    # ml-pyxis keeps text as {type: 1, data: text}
    text = np.zeros(rows.size, np.bool_)
    text[pyxis] = columns.head(span.pick(pyxis).moved(kind[pyxis])).number == 1
    span.need(text | (first >= 0), "an array without a dtype")
    out.start[rows], out.size[rows] = payload.start, payload.stop - payload.start
    out.form[rows] = np.where(text, TEXT, ARRAYS)
    some = np.flatnonzero(~text)
    part, rows = span.pick(some), rows[some]
    if odd[some].max(initial=-1) >= 0:
        _refuse_odd(part, odd[some])
    out.dtype[rows] = _type_strings(part.moved(first[some]))
    scalar = ~pyxis[some] & _is_false(part, nd[some])
    part.need(scalar | (shape[some] >= 0), "an array without a shape")
    shaped = np.flatnonzero(~scalar)
    _read_shapes(part.pick(shaped).moved(shape[some][shaped]), rows[shaped], out)
    _check_sizes(part, rows, out)


def _refuse_odd(span: Span, odd: Int64) -> None:
    """msgpack_numpy's kind: b"" for plain arrays, b"V" structured, b"O" a pickle of objects."""
    there = np.flatnonzero(odd >= 0)
    part = span.pick(there).moved(odd[there])
    found = columns.head(part)
    plain = ((found.kind == BIN) | (found.kind == STR)) & (found.number == 0)
    part.need(plain, "an array of structures or of Python objects, which is not read")


def _type_strings(span: Span) -> Array:
    found = columns.head(span)
    span.need((found.kind == BIN) | (found.kind == STR), "an array whose dtype is no text")
    at = span.moved(found.start)
    chars = at.window(4)
    chars[np.arange(4) >= found.number[:, None]] = 0
    strings = np.ascontiguousarray(chars).view("S4")[:, 0]
    known = np.isin(strings, list(_PLAIN)) & (found.number == 3)
    span.need(known, "an array that does not hold plain numbers", strings)
    return strings


def _is_false(span: Span, nd: Int64) -> Bools:
    """Where msgpack_numpy says that a value is a number, not an array."""
    there = np.flatnonzero(nd >= 0)
    out = np.zeros(nd.size, np.bool_)
    found = columns.head(span.pick(there).moved(nd[there]))
    out[there] = (found.kind == BOOL) & (found.number == 0)
    return out


def _read_shapes(span: Span, rows: Int64, out: Values) -> None:
    found = columns.head(span)
    good = (found.kind == ARRAY) & (found.number <= _AXES)
    span.need(good, f"an array whose shape is no list of at most {_AXES} numbers")
    out.rank[rows] = found.number
    at = found.stop.copy()
    for axis in range(int(found.number.max(initial=0))):
        todo = np.flatnonzero(found.number > axis)
        part = span.pick(todo).moved(at[todo])
        side = columns.head(part)
        part.need((side.kind == INT) & (side.number >= 0), "an array with a side that is no number")
        out.shape[rows[todo], axis] = side.number
        at[todo] = side.stop


def _check_sizes(span: Span, rows: Int64, out: Values) -> None:
    """Each array's bytes are as many as its shape and dtype need."""
    size, shape = out.size[rows], out.shape[rows]
    items = out.dtype[rows].view("S1").reshape(-1, 4)[:, 2].astype(np.int64)
    left, rest = np.divmod(size, items)
    exact = rest == 0
    for axis in range(_AXES):
        # divided, not multiplied: a hostile shape would overflow
        left, rest = np.divmod(left, np.maximum(shape[:, axis], 1))
        exact &= rest == 0
    good = np.where((shape == 0).any(axis=1), size == 0, exact & (left == 1))
    span.need(good, "an array has not the size that its shape needs", size)
