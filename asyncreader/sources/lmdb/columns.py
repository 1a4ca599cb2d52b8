"""Reads many records column by column: a cursor over the bytes of each, bounded by its record.

A record is an LMDB value: msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md) or a
protobuf message (https://protobuf.dev/programming-guides/encoding/). A step moves the cursors of
all records together, so that a million headers cost some numpy passes and no Python object each.
Every length that a record states is compared with the record's end before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from ...array_types import Array, Bools, Float64, Int64, UInt8, UInt64
from ...errors import FormatError

#: The error fields that say which record it is: path, index, key.
Blame: TypeAlias = Callable[[int], dict[str, Any]]

#: Records looked at together: bounds the memory of a pass.
BLOCK: Final = 1 << 16
#: Items of a nested value that are stepped over, and entries of a map that are looked at.
_ITEMS: Final = 4096
_FIELDS: Final = 256

AGAIN: Final = "the file is damaged: copy or write it again"
_CUT: Final = "its protobuf is cut short or damaged"


@dataclass(frozen=True)
class Span:
    """A part of each of some records: bytes ``at`` to ``ends`` of ``data``, all inside it.

    ``records``: their numbers, for errors.
    """

    data: UInt8
    at: Int64
    ends: Int64
    records: Int64
    blame: Blame

    def pick(self, which: Int64 | Bools | slice) -> Span:
        """The parts of some of the records."""
        return replace(self, at=self.at[which], ends=self.ends[which], records=self.records[which])

    def moved(self, at: Int64) -> Span:
        """The span with its cursors elsewhere (inside their records)."""
        return replace(self, at=at)

    def need(self, good: Bools, what: str, found: Sequence[Any] | Array | None = None) -> None:
        """FormatError ``what``, naming the first record that is not ``good``."""
        if good.all():
            return
        bad = int(np.argmin(good))
        raise FormatError(
            what,
            **self.blame(int(self.records[bad])),
            found=None if found is None else found[bad],
            hint=AGAIN,
        )

    def window(self, width: int) -> UInt8:
        """(n, width): the bytes at the cursors, zero behind a record's end."""
        offsets = self.at[:, None] + np.arange(width)
        taken: UInt8 = self.data[np.minimum(offsets, self.data.size - 1)]
        taken[offsets >= self.ends[:, None]] = 0
        return taken


def gather(data: UInt8, starts: Int64, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """(n, *shape) in native byte order: the values that lie at ``starts``, one behind the other.

    The caller has checked that they lie inside ``data`` and how much memory they take.
    """
    size = math.prod(shape) * dtype.itemsize
    out = np.empty((starts.size, size), np.uint8)
    step = max(1, (4 << 20) // max(1, size))
    for lo in range(0, starts.size, step):
        out[lo : lo + step] = data[starts[lo : lo + step, None] + np.arange(size)]
    native: Array = out.reshape(-1).view(dtype).reshape(starts.size, *shape)
    return native.astype(dtype.newbyteorder("="), copy=False)


def equals(data: UInt8, starts: Int64, sizes: Int64, name: bytes) -> Bools:
    """Where the ``sizes`` bytes at ``starts`` are exactly ``name``."""
    same: Bools = sizes == len(name)
    which = np.flatnonzero(same)
    if which.size:
        found = data[starts[which, None] + np.arange(len(name))]
        same[which] = (found == np.frombuffer(name, np.uint8)).all(axis=1)
    return same


# -- msgpack -------------------------------------------------------------------------------------

NIL, BOOL, INT, FLOAT, STR, BIN, ARRAY, MAP, EXT, BAD = range(10)


def _tables() -> tuple[UInt8, Int64, Int64, Bools]:
    """By first byte: kind, bytes of its number, its number where that is in it, is it signed."""
    kind = np.full(256, BAD, np.uint8)
    extra = np.zeros(256, np.int64)
    base = np.zeros(256, np.int64)
    signed = np.zeros(256, np.bool_)
    for low, high, what, first in (
        (0x00, 0x7F, INT, 0),
        (0x80, 0x8F, MAP, 0),
        (0x90, 0x9F, ARRAY, 0),
        (0xA0, 0xBF, STR, 0),
        (0xC0, 0xC0, NIL, 0),
        (0xC2, 0xC3, BOOL, 0),
        (0xE0, 0xFF, INT, -32),
    ):
        kind[low : high + 1] = what
        base[low : high + 1] = np.arange(first, first + high + 1 - low)
    for at, what, sizes in (
        (0xC4, BIN, (1, 2, 4)),
        (0xC7, EXT, (1, 2, 4)),
        (0xCA, FLOAT, (4, 8)),
        (0xCC, INT, (1, 2, 4, 8)),
        (0xD0, INT, (1, 2, 4, 8)),
        (0xD9, STR, (1, 2, 4)),
        (0xDC, ARRAY, (2, 4)),
        (0xDE, MAP, (2, 4)),
    ):
        kind[at : at + len(sizes)] = what
        extra[at : at + len(sizes)] = sizes
    signed[0xD0:0xD4] = True
    kind[0xD4:0xD9] = EXT
    base[0xD4:0xD9] = (1, 2, 4, 8, 16)
    return kind, extra, base, signed


_KIND, _EXTRA, _BASE, _SIGNED = _tables()


@dataclass(frozen=True)
class Head:
    """The first bytes of msgpack values.

    ``number``: a value (INT, BOOL), a length in bytes (STR, BIN, EXT) or a count (ARRAY, MAP);
    ``start``: behind the head; ``stop``: behind the value, of ARRAY and MAP behind the head.
    """

    kind: UInt8
    number: Int64
    start: Int64
    stop: Int64
    bits: UInt64
    wide: Bools

    def real(self) -> Float64:
        """The values of FLOATs."""
        narrow = self.bits.astype(np.uint32).view(np.float32).astype(np.float64)
        return np.where(self.wide, self.bits.view(np.float64), narrow)


def head(span: Span) -> Head:
    """What msgpack values stand at the cursors. FormatError unless each is whole."""
    window = span.window(9)
    first = window[:, 0]
    kind, extra = _KIND[first], _EXTRA[first]
    raw = np.ascontiguousarray(window[:, 1:]).view(">u8")[:, 0].astype(np.uint64)
    shift = np.minimum(64 - 8 * extra, 63)
    bits: UInt64 = raw >> shift.astype(np.uint64)
    stated = np.where(_SIGNED[first], raw.view(np.int64) >> shift, bits.view(np.int64))
    number = np.where(extra == 0, _BASE[first], stated)
    length = np.where((kind == STR) | (kind == BIN), number, 0)
    length = np.where(kind == EXT, number + 1, length)
    start = span.at + 1 + extra
    whole = (kind != BAD) & (span.at < span.ends) & (start <= span.ends)
    whole &= (first != 0xCF) | (number >= 0)  # whole numbers above int64 are of no use here
    # a length has 32 bits at most, so that this cannot overflow
    span.need(whole & (length <= span.ends - start), "its msgpack is cut short or damaged")
    return Head(kind, number, start, start + length, bits, extra == 8)


def skip(span: Span) -> Int64:
    """Where the values at the cursors end, whatever is nested in them."""
    at = span.at.copy()
    left = np.ones(at.size, np.int64)
    todo = np.arange(at.size)
    for _ in range(_ITEMS):
        part = span.pick(todo).moved(at[todo])
        found = head(part)
        at[todo] = found.stop
        items = np.where(found.kind == ARRAY, found.number, 0)
        left[todo] += items + np.where(found.kind == MAP, 2 * found.number, 0) - 1
        # an item takes a byte at least
        part.need(left[todo] <= part.ends - found.stop, "its msgpack is cut short or damaged")
        todo = todo[left[todo] > 0]
        if todo.size == 0:
            return at
    span.pick(todo).need(np.zeros(todo.size, np.bool_), "its msgpack has too many nested values")
    return at


def entries(span: Span) -> Int64:
    """How many items the arrays or maps at the cursors hold; FormatError where there are none."""
    found = head(span)
    good = (found.kind == ARRAY) | (found.kind == MAP)
    span.need(good & (found.number <= _FIELDS), "not a msgpack list or map of some fields")
    return found.number


def find(span: Span, names: Sequence[bytes]) -> tuple[list[Int64], Int64]:
    """In the maps at the cursors, where the values of ``names`` are (-1: not there), and the end.

    Keys may be text or bytes: writers under Python 2 made no difference.
    """
    count = entries(span)
    at = head(span).stop.copy()
    found = [np.full(at.size, -1, np.int64) for _ in names]
    for number in range(int(count.max(initial=0))):
        todo = np.flatnonzero(count > number)
        part = span.pick(todo).moved(at[todo])
        key = head(part)
        part.need((key.kind == STR) | (key.kind == BIN), "a msgpack map with a key that is no name")
        for name, offsets in zip(names, found, strict=True):
            same = equals(span.data, key.start, key.number, name)
            offsets[todo[same]] = key.stop[same]
        at[todo] = skip(part.moved(key.stop))
    return found, at


def names(span: Span) -> list[bytes]:
    """The keys of the map that the one record of ``span`` holds."""
    at, found = head(span).stop, []
    for _ in range(int(entries(span)[0])):
        key = head(span.moved(at))
        span.need((key.kind == STR) | (key.kind == BIN), "a msgpack map with a key that is no name")
        found.append(span.data[int(key.start[0]) : int(key.stop[0])].tobytes())
        at = skip(span.moved(key.stop))
    return found


# -- protobuf ------------------------------------------------------------------------------------


def varint(span: Span) -> tuple[UInt64, Int64]:
    """The varints at the cursors (modulo 2^64), and where they end."""
    first = span.window(1)[:, 0]
    value, stop = first.astype(np.uint64), span.at + 1
    long = np.flatnonzero(first >= 0x80)  # few: most numbers of a header are small
    if long.size:
        value[long], stop[long] = _long_varint(span.pick(long))
    span.need(stop <= span.ends, _CUT)
    return value, stop


def _long_varint(span: Span) -> tuple[UInt64, Int64]:
    window = span.window(10)
    last = window < 0x80
    length = np.argmax(last, axis=1) + 1
    span.need(last[np.arange(length.size), length - 1], _CUT)
    used = np.arange(10) < length[:, None]
    sevens = np.where(used, window & 0x7F, 0).astype(np.uint64)
    value: UInt64 = np.bitwise_or.reduce(sevens << (np.arange(10, dtype=np.uint64) * 7), axis=1)
    return value, span.at + length
