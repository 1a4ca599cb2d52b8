"""Kernels of numbers: they cast and normalise those of rows, among them chosen members of records,
and add those of sparse rows to dense ones."""

from __future__ import annotations

import numpy as np
from numba import types

from ..tables import RUN
from .base import apart, inner, kernel, offsets_type
from .filling import HALF_INF, half_bits
from .memory import load, memcpy, prefetch, reversed_bytes, store

_FLOAT, _SIGNED, _BOOL = ord("f"), ord("i"), ord("b")

_numbers, _table, _floats = types.int64[::1], types.int64[:, ::1], types.float64[::1]


@inner(inline="always")
def _load(at, size, swapped):
    """The bits of the number of ``size`` bytes at an address; ``swapped``: in the other order."""
    if size == 4:
        single = load(at, np.uint32)
        return np.uint64(reversed_bytes(single) if swapped else single)
    if size == 8:
        double = load(at, np.uint64)
        return reversed_bytes(double) if swapped else double
    if size == 2:
        half = load(at, np.uint16)
        return np.uint64(reversed_bytes(half) if swapped else half)
    return np.uint64(load(at, np.uint8))


@inner(inline="always")
def _store(at, size, bits):
    """Write the low ``size`` bytes of ``bits`` to an address."""
    if size == 4:
        store(at, np.uint32(bits))
    elif size == 8:
        store(at, bits)
    elif size == 2:
        store(at, np.uint16(bits))
    else:
        store(at, np.uint8(bits))


@inner(inline="always")
def _float_of(bits, size):
    """A float as float64, of its bits."""
    if size == 4:
        return np.float64(np.uint32(bits).view(np.float32))
    if size == 8:
        return np.uint64(bits).view(np.float64)
    exponent = np.int64(bits >> np.uint64(10)) & 31
    part = np.int64(bits) & 1023
    if exponent == 0:
        value = np.float64(part * 2.0**-24)
    elif exponent == 31:
        value = np.float64(np.inf if part == 0 else np.nan)
    else:
        value = np.int64(((exponent + 1008) << 52) | (part << 42)).view(np.float64)
    return -value if bits >> np.uint64(15) else value


@inner(inline="always")
def _whole(bits, size, kind):
    """A whole number as int64; one of uint64 wraps round."""
    if kind == _SIGNED:
        shift = np.int64(64 - 8 * size)
        return (np.int64(bits) << shift) >> shift
    if kind == _BOOL:
        return np.int64(bits != 0)
    return np.int64(bits)


@inner(inline="always")
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


@inner(inline="always")
def _to_float(number, huge, x, is_float, size, affine, a, b):
    """(bits of a float of ``size`` bytes, whether it holds the value), normalised where
    ``affine``."""
    if size == 8:
        wide = x if is_float else (np.float64(np.uint64(number)) if huge else np.float64(number))
        return np.float64(wide * a + b if affine else wide).view(np.uint64), True
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
        return np.uint64(np.float32(narrow).view(np.uint32)), fits
    half = half_bits(value)
    return half, fits and ((half & np.uint64(HALF_INF)) != HALF_INF or not np.isfinite(value))


@kernel(
    *(_numbers, types.int64, types.int64, _table, types.int64, types.int64, types.boolean),
    *(_floats, _floats, types.int64, _numbers, types.int64, _numbers),
)
def cast_numbers(addresses, each, item, table, kind, size, affine, a, b, out, rows, row_bytes, bad):
    """Write the numbers of stored rows at ``addresses`` to ``rows`` of memory at ``out``.

    A row is ``each`` elements of ``item`` bytes, and ``table`` says which of their numbers are
    served. They become numbers of ``kind`` and ``size``, each times ``a`` plus ``b`` where
    ``affine``; ``a`` and ``b`` are repeated along a row. A number that this dtype cannot hold is
    noted in ``bad``: its row in ``addresses`` and its offset there; the first such is kept.
    """
    period, to_float, runs = a.size, kind == _FLOAT, table.reshape(-1).view(RUN)
    for i in range(addresses.size):
        if i + 1 < addresses.size:
            for line in range(0, min(each * item, 512), 64):
                prefetch(addresses[i + 1] + line)
        target = out + rows[i] * row_bytes
        start = addresses[i]
        c = 0
        for e in range(each):
            for m in range(runs.size):
                run = runs[m]
                at = start + e * item + run.offset
                stored, own, swapped = run.size, run.kind, run.swapped != 0
                count, step = run.count, stored
                if run.copied:
                    if count > 8 and not swapped:
                        memcpy(target, at, count * step)
                        target += count * step
                        continue
                    for _ in range(count):
                        _store(target, stored, _load(at, stored, swapped))
                        at, target = at + step, target + step
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
                    _store(target, size, made)
                    at, target = at + step, target + size
                    c += 1
                    if c == period:
                        c = 0


# -- sparse rows ----------------------------------------------------------------------------------


def _adder(name, number):
    """The kernel ``name``, for values of one type."""

    @kernel(
        *(offsets_type, number[::1], offsets_type, types.uint8[::1]),
        # the table of columns, which worker processes share
        types.Array(types.int64, 1, "C", readonly=True),
        *(offsets_type, types.int64, types.int64, number[::1], offsets_type),
        name=name,
    )
    @apart(name)
    def scatter(columns, values, ends, first, lookup, rows, width, bound, out, bad):
        """Add values to rows of ``width`` in ``out``, each at its column of 0 .. ``bound - 1``.

        Run ``i`` ends at ``ends[i]`` of the values and goes to ``rows[i]``, which is zeroed before
        where ``first[i]`` is set. ``lookup``: where each column stands in a row, -1 for one that is
        not served; empty: where it is. ``bad[i]``: 0; ``k + 1`` where the column of value ``k`` is
        out of range; ``-k - 1`` where value ``k`` makes a sum infinite. What follows in the run is
        then left out.
        """
        begin = 0
        for i in range(rows.size):
            row = rows[i] * width
            if first[i] != 0:
                out[row : row + width] = 0
            bad[i] = 0
            for k in range(begin, ends[i]):
                column = columns[k]
                if column < 0 or column >= bound:
                    bad[i] = k + 1
                    break
                if lookup.size != 0:
                    column = lookup[column]
                    if column < 0:
                        continue
                value, before = values[k], out[row + column]
                total = before + value
                if not np.isfinite(total) and np.isfinite(value) and np.isfinite(before):
                    bad[i] = -k - 1
                    break
                out[row + column] = total
            begin = ends[i]

    return scatter


add_rows_f4 = _adder("add_rows_f4", types.float32)
add_rows_f8 = _adder("add_rows_f8", types.float64)
add_rows_i8 = _adder("add_rows_i8", types.int64)
