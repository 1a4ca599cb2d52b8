"""The kernel that casts and normalises numbers of rows, among them chosen members of records."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from .. import fill_tables as tables
from .base import i8, instruction, kernel, load_any, memcpy, store_any
from .converting import HALF_INF, bits_of, double_of, half_bits
from .moving import prefetch

_FLOAT, _SIGNED, _BOOL = ord("f"), ord("i"), ord("b")

_numbers, _table, _f8 = types.int64[::1], types.int64[:, ::1], types.float64[::1]


def _loader(size: int) -> Any:
    """A function of the number of ``size`` bytes at an address; ``swapped``: of the other order."""

    @instruction(types.uint64(types.uintp, types.boolean))
    def load(builder, address, swapped):
        found = load_any(builder, address, ir.IntType(8 * size))
        if size > 1:
            found = builder.select(swapped, builder.bswap(found), found)
        return builder.zext(found, ir.IntType(64))

    return load


def _storer(size: int) -> Any:
    """A function that writes the low ``size`` bytes of a number to an address."""

    @instruction(types.void(types.uintp, types.uint64))
    def store(builder, address, bits):
        store_any(builder, builder.trunc(bits, ir.IntType(8 * size)), address)

    return store


_load1, _load2, _load4, _load8 = (_loader(size) for size in (1, 2, 4, 8))
_store1, _store2, _store4, _store8 = (_storer(size) for size in (1, 2, 4, 8))


@instruction(types.float32(types.uint64))
def _single_of(builder, bits):
    """The float32 of the low four bytes of these bits."""
    return builder.bitcast(builder.trunc(bits, ir.IntType(32)), ir.FloatType())


@njit(inline="always")
def _load(at, size, swapped):
    if size == 4:
        return _load4(at, swapped)
    if size == 8:
        return _load8(at, swapped)
    if size == 2:
        return _load2(at, swapped)
    return _load1(at, swapped)


@njit(inline="always")
def _store(at, size, bits):
    if size == 4:
        _store4(at, bits)
    elif size == 8:
        _store8(at, bits)
    elif size == 2:
        _store2(at, bits)
    else:
        _store1(at, bits)


@njit(inline="always")
def _float_of(bits, size):
    """A float as float64, of its bits."""
    if size == 4:
        return np.float64(_single_of(bits))
    if size == 8:
        return double_of(bits)
    exponent = np.int64(bits >> np.uint64(10)) & 31
    part = np.int64(bits) & 1023
    if exponent == 0:
        value = np.float64(part * 2.0**-24)
    elif exponent == 31:
        value = np.float64(np.inf if part == 0 else np.nan)
    else:
        value = double_of(np.uint64(((exponent + 1008) << 52) | (part << 42)))
    return -value if bits >> np.uint64(15) else value


@njit(inline="always")
def _whole(bits, size, kind):
    """A whole number as int64; one of uint64 wraps round."""
    if kind == _SIGNED:
        shift = np.int64(64 - 8 * size)
        return (np.int64(bits) << shift) >> shift
    if kind == _BOOL:
        return np.int64(bits != 0)
    return np.int64(bits)


@njit(inline="always")
def _to_whole(number, huge, x, is_float, size, kind):
    """(bits of a number of this kind, whether it holds the value). ``huge``: ``number`` is one of
    uint64 above those of int64."""
    width = np.int64(8 * size)
    if kind == _SIGNED:
        high = np.float64(2.0 ** (width - 1))
        low = -high
    elif kind == _BOOL:
        low, high = np.float64(0), np.float64(2)
    else:
        low, high = np.float64(0), np.float64(2.0**width)
    if is_float:
        if not (low <= x < high) or x != np.floor(x):
            return np.uint64(0), False
        if x >= 2.0**63:
            return np.uint64(x - 2.0**63) | (np.uint64(1) << np.uint64(63)), True
        return np.uint64(np.int64(x)), True
    if huge:
        return np.uint64(number), kind != _SIGNED and size == 8 and kind != _BOOL
    if size == 8 and kind != _BOOL:
        return np.uint64(number), kind == _SIGNED or number >= 0
    return np.uint64(number), np.int64(low) <= number < np.int64(high)


@njit(inline="always")
def _to_float(number, huge, x, is_float, size, affine, a, b):
    """(bits of a float of ``size`` bytes, whether it holds the value), normalised where
    ``affine``."""
    if size == 8:
        wide = x if is_float else (np.float64(np.uint64(number)) if huge else np.float64(number))
        return bits_of(wide * a + b if affine else wide), True
    narrow = np.float32(x)
    if not is_float:
        narrow = np.float32(np.uint64(number)) if huge else np.float32(number)
    fits = np.isfinite(narrow) or not np.isfinite(x)
    value = np.float64(narrow)
    if affine:
        narrow = narrow * np.float32(a) + np.float32(b)
        value = np.float64(narrow)
    elif is_float:
        value = x  # rounded once
    if size == 4:
        return bits_of(narrow), fits
    half = half_bits(value)
    return half, fits and ((half & np.uint64(HALF_INF)) != HALF_INF or not np.isfinite(value))


@kernel(
    *(_numbers, i8, i8, _table, i8, i8, types.boolean, _f8, _f8, types.uintp, _numbers, i8),
    _numbers,
)
def cast_numbers(addresses, each, item, table, kind, size, affine, a, b, out, rows, row_bytes, bad):
    """Write the numbers of stored rows at ``addresses`` to ``rows`` of memory at ``out``.

    A row is ``each`` elements of ``item`` bytes, and ``table`` says which of their numbers are
    served. They become numbers of ``kind`` and ``size``, each times ``a`` plus ``b`` where
    ``affine``; ``a`` and ``b`` are repeated along a row. A number that this dtype cannot hold is
    noted in ``bad``: its row in ``addresses`` and its offset there; the first such is kept.
    """
    made_size, period = np.uintp(size), a.size
    to_float = kind == _FLOAT
    for i in range(addresses.size):
        if i + 1 < addresses.size:
            for line in range(0, min(each * item, 512), 64):
                prefetch(np.uintp(addresses[i + 1] + line))
        go = out + np.uintp(rows[i] * row_bytes)
        start = np.uintp(addresses[i])
        c = 0
        for e in range(each):
            for m in range(table.shape[0]):
                at = start + np.uintp(e * item + table[m, tables.RUN_OFFSET])
                stored, own, swapped = (
                    table[m, tables.RUN_SIZE],
                    table[m, tables.RUN_KIND],
                    table[m, tables.RUN_SWAPPED] != 0,
                )
                count, step = table[m, tables.RUN_COUNT], np.uintp(stored)
                if table[m, tables.RUN_COPIED]:
                    if count > 8 and not swapped:
                        memcpy(go, at, np.uintp(count) * step)
                        go += np.uintp(count) * step
                        continue
                    for _ in range(count):
                        _store(go, stored, _load(at, stored, swapped))
                        at, go = at + step, go + step
                    continue
                is_float = own == _FLOAT
                for _ in range(count):
                    bits = _load(at, stored, swapped)
                    x, number, huge = 0.0, np.int64(0), False
                    if is_float:
                        x = _float_of(bits, stored)
                    else:
                        number = _whole(bits, stored, own)
                        huge = number < 0 and own != _SIGNED
                    if to_float:
                        made, fits = _to_float(number, huge, x, is_float, size, affine, a[c], b[c])
                    else:
                        made, fits = _to_whole(number, huge, x, is_float, size, kind)
                    if not fits and bad[0] < 0:
                        bad[0], bad[1] = i, np.int64(at - start)
                    _store(go, size, made)
                    at, go = at + step, go + made_size
                    c += 1
                    if c == period:
                        c = 0
