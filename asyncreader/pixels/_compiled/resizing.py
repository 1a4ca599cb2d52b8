"""Kernels that resize pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .base import i8, kernel, load_any, memcpy, offsets_type, store_any

# -- resizing ------------------------------------------------------------------------------------
# Along the lines first, and rounded to bytes, then down, as Pillow does it. Weights are int16 (Q14)
# and sums int32. LLVM does not find vectors for either pass by itself, hence vectors by hand: with
# AVX2 two products are added at once (pmaddwd), elsewhere one by one. The order of bytes comes
# from memory, where LLVM does not know it: of an order that it knows it makes a slow vpermt2b.

#: Lines that are filtered along together: their weights are loaded once.
_LINES = 8
#: Bytes of a line of the result that are made together.
_COLUMNS = 32
#: Pixels that are mixed together along a line: 16 bytes have four, of up to four channels.
_PIXELS = 4

#: Numbers of the methods: see resize_u8_numpy.
_BILINEAR, _BICUBIC, _AREA = 0, 1, 2

#: Whether code is made for a processor with AVX2.
_FAST = "+avx2" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")

_BYTE, _SHORT, _INT, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _same(count: int, value: int) -> Any:
    """A constant of ``count`` equal lanes of int32."""
    return ir.Constant(ir.VectorType(_INT, count), [value] * count)


def _take(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    """Lanes of the vectors ``a`` and ``b``, which are numbered through."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), [*lanes]))


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    one = builder.insert_element(_same(lanes, 0), value, ir.Constant(_INT, 0))
    return _take(builder, one, one, [0] * lanes)


def _called(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """What LLVM's own function ``name`` gives."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _products(builder: Any, values: Any, weights: Any) -> Any:
    """``a * v + b * w`` of eight int32 that are two int16 each: ``values`` a and b, which are
    not negative, ``weights`` v and w."""
    if _FAST:
        both = [builder.bitcast(value, ir.VectorType(_SHORT, 16)) for value in (values, weights)]
        return _called(builder, "llvm.x86.avx2.pmadd.wd", values.type, both)
    half = _same(8, 16)
    low = builder.ashr(builder.shl(weights, half), half)
    low = builder.mul(builder.and_(values, _same(8, 0xFFFF)), low)
    high = builder.mul(builder.lshr(values, half), builder.ashr(weights, half))
    return builder.add(low, high)


def _sums(builder: Any, count: Any, products: Callable[[Any], list[Any]]) -> list[Any]:
    """Sums of the vectors that ``products`` gives for 0 to ``count`` - 1, at least one.

    A ``count`` that Python knows is not made a loop, which would take a third longer.
    """
    if isinstance(count, int):
        totals = products(ir.Constant(_LONG, 0))
        for k in range(1, count):
            more = products(ir.Constant(_LONG, k))
            totals = [builder.add(a, b) for a, b in zip(totals, more, strict=True)]
        return totals
    slots = [cgutils.alloca_once_value(builder, one) for one in products(ir.Constant(_LONG, 0))]
    with cgutils.for_range(builder, count, start=ir.Constant(_LONG, 1)) as loop:
        for slot, product in zip(slots, products(loop.index), strict=True):
            builder.store(builder.add(builder.load(slot), product), slot)
    return [builder.load(slot) for slot in slots]


def _ordered(builder: Any, pixels: Any, order: Any) -> Any:
    """Bytes of the halves of a vector, in the order of another; 0 where that is 255."""
    kind = ir.VectorType(_BYTE, 32)
    order = load_any(builder, order, kind)
    return _called(builder, "llvm.x86.avx2.pshuf.b", kind, [pixels, order])


def _clipped(builder: Any, a: Any, b: Any) -> Any:
    """Eight sums each as int16 that _as_bytes takes; the halves of both are together."""
    shorts = ir.VectorType(_SHORT, 16)
    if _FAST:
        both = [builder.ashr(sums, _same(8, 7)) for sums in (a, b)]
        value = _called(builder, "llvm.x86.avx2.packssdw", shorts, both)
        power = ir.Constant(shorts, [1 << 8] * 16)
        return _called(builder, "llvm.x86.avx2.pmul.hr.sw", shorts, [value, power])
    both = []
    for value in (a, b):
        value = builder.ashr(builder.add(value, _same(8, 1 << 13)), _same(8, 14))
        for sign, limit in ((">", 255), ("<", 0)):
            over = builder.icmp_signed(sign, value, _same(8, limit))
            value = builder.select(over, _same(8, limit), value)
        both.append(builder.bitcast(value, shorts))
    return _take(builder, both[0], both[1], _lower_halves(16))


def _as_bytes(builder: Any, a: Any, b: Any) -> Any:
    """What _clipped gives, as bytes; the halves of both are together."""
    kind = ir.VectorType(_BYTE, 32)
    if _FAST:
        return _called(builder, "llvm.x86.avx2.packuswb", kind, [a, b])
    a, b = (builder.bitcast(value, kind) for value in (a, b))
    return _take(builder, a, b, _lower_halves(32))


def _lower_halves(lanes: int) -> list[int]:
    """Every second lane of two vectors; the halves of both are together."""
    halves = [(of + half) for half in (0, lanes // 2) for of in (0, lanes)]
    return [first + k for first in halves for k in range(0, lanes // 2, 2)]


def _at(builder: Any, address: Any, index: Any, step: Any) -> Any:
    """``address + index * step``."""
    step = ir.Constant(_LONG, step) if isinstance(step, int) else step
    return builder.add(address, builder.mul(index, step))


@intrinsic
def _filter_down(
    typingctx: Any, source: Any, stride: Any, weights: Any, pairs: Any, out: Any
) -> Any:
    """``out[j] = sum of weights[k] * source[k * stride + j]`` for _COLUMNS bytes; pairs of k."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_, stride_, weights_, pairs_, out_ = arguments
        shorts, ints = ir.VectorType(_SHORT, 16), ir.VectorType(_INT, 8)
        low = ir.Constant(shorts, [255] * 16)
        byte = ir.Constant(shorts, [8] * 16)

        def products(index: Any) -> list[Any]:
            begin = _at(builder, source_, index, builder.shl(stride_, ir.Constant(_LONG, 1)))
            a = load_any(builder, begin, shorts)
            b = load_any(builder, builder.add(begin, stride_), shorts)
            pair = load_any(builder, _at(builder, weights_, index, 4), _INT)
            pair = _splat(builder, pair, 8)
            found = []
            for first in (
                0,
                4,
            ):  # of each half: columns of two bytes, of the one line and the other
                columns = (*range(first, first + 4), *range(first + 8, first + 12))
                both = _take(builder, a, b, [k + of for k in columns for of in (0, 16)])
                for one in (builder.and_(both, low), builder.lshr(both, byte)):
                    found.append(_products(builder, builder.bitcast(one, ints), pair))
            return found

        totals = _sums(builder, pairs_, products)
        even, odd = (_clipped(builder, *totals[k::2]) for k in (0, 1))
        value = _as_bytes(builder, even, odd)
        lanes = [half + k + of for half in (0, 16) for k in range(8) for of in (0, 8)]
        store_any(builder, _take(builder, value, value, lanes), out_)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _filter_along(known: int | None) -> Any:
    """An intrinsic: a pixel of the result, as 4 bytes, of each of _LINES lines, next to each other.

    It is mixed of ``count`` times _PIXELS pixels of ``pixel`` bytes (``known``: that many); for
    ``order`` and ``weights`` see resize_u8.
    """

    @intrinsic
    def along(
        typingctx: Any,
        source: Any,
        stride: Any,
        pixel: Any,
        order: Any,
        weights: Any,
        count: Any,
        out: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source_, stride_, pixel_, order_, weights_, count_, out_ = arguments
            ints = ir.VectorType(_INT, 8)

            def products(index: Any) -> list[Any]:
                at = _at(builder, weights_, index, 32)
                begin = _at(builder, source_, index, builder.shl(pixel_, ir.Constant(_LONG, 2)))
                lines = [_at(builder, begin, ir.Constant(_LONG, k), stride_) for k in range(_LINES)]
                if not _FAST:
                    return [mixed(line, at) for line in lines]
                weights = load_any(builder, at, ints)
                return [_products(builder, in_order(line), weights) for line in lines]

            def in_order(line: Any) -> Any:
                pixels = load_any(builder, line, ir.VectorType(_BYTE, 16))
                pixels = _take(builder, pixels, pixels, [*range(16)] * 2)
                return builder.bitcast(_ordered(builder, pixels, order_), ints)

            def mixed(line: Any, weights: Any) -> Any:
                total = _same(4, 0)
                for k in range(_PIXELS):
                    at = _at(builder, line, ir.Constant(_LONG, k), pixel_)
                    value = load_any(builder, at, ir.VectorType(_BYTE, 4))
                    value = builder.zext(value, ir.VectorType(_INT, 4))
                    at = builder.add(weights, ir.Constant(_LONG, 2 * (k // 2 * 8 + k % 2)))
                    weight = builder.sext(load_any(builder, at, _SHORT), _INT)
                    total = builder.add(total, builder.mul(value, _splat(builder, weight, 4)))
                return total

            totals = _sums(builder, known or count_, products)
            halves = zip(totals[:4], totals[4:], strict=True)
            if _FAST:
                totals = [
                    builder.add(
                        _take(builder, a, b, [0, 1, 2, 3, 12, 13, 14, 15]),
                        _take(builder, a, b, [4, 5, 6, 7, 8, 9, 10, 11]),
                    )
                    for a, b in halves
                ]
            else:
                totals = [_take(builder, a, b, range(8)) for a, b in halves]
            both = [_clipped(builder, *two) for two in (totals[:2], totals[2:])]
            store_any(builder, _as_bytes(builder, *both), out_)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return along


_along_1, _along_2, _along_more = (_filter_along(known) for known in (1, 2, None))


@intrinsic
def _spread(typingctx: Any, mixed: Any, pixel: Any, order: Any, out: Any, pitch: Any) -> Any:
    """Store _PIXELS pixels that lie as _filter_along leaves them, in _LINES lines."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mixed_, pixel_, order_, out_, pitch_ = arguments
        found = [
            load_any(
                builder, builder.add(mixed_, ir.Constant(_LONG, 32 * k)), ir.VectorType(_INT, 8)
            )
            for k in range(_PIXELS)
        ]
        lines = [_at(builder, out_, ir.Constant(_LONG, k), pitch_) for k in range(_LINES)]
        if not _FAST:
            for line, at in enumerate(lines):
                for k, one in enumerate(found):  # what is too much is of the next
                    value = builder.extract_element(one, ir.Constant(_INT, line))
                    store_any(builder, value, _at(builder, at, ir.Constant(_LONG, k), pixel_))
            return context.get_dummy_value()
        bytes_ = ir.VectorType(_BYTE, 32)
        for first in (0, 2):  # of lines, which lie four in a half of a vector
            lanes = [k + half + of for half in (0, 4) for k in (first, first + 1) for of in (0, 8)]
            a, b = (_take(builder, found[k], found[k + 1], lanes) for k in (0, 2))
            for k in (0, 1):
                lanes = [2 * k + n + half + of for half in (0, 4) for of in (0, 8) for n in (0, 1)]
                value = builder.bitcast(_take(builder, a, b, lanes), bytes_)
                value = _ordered(builder, value, order_)
                for line in (0, 1):
                    part = _take(builder, value, value, range(16 * line, 16 * line + 16))
                    store_any(builder, part, lines[first + k + 4 * line])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


# Loops over pixels are inside, those over their weights outside: so LLVM finds vectors.


@njit
def _filter_weights(
    start: Any, length: Any, low: Any, high: Any, method: Any, first: Any, weights: Any
) -> None:
    taps, size = weights.shape
    scale = length / size
    wide = scale if method == _AREA or scale > 1.0 else 1.0
    reach = wide * (0.5 if method == _AREA else 1.0 if method == _BILINEAR else 2.0)
    centre, begin, total = np.empty(size), np.empty(size, np.int64), np.zeros(size)
    for i in range(size):
        centre[i] = start + (i + 0.5) * scale
        at = np.floor(centre[i] - reach + (0.0 if method == _AREA else 0.5))
        begin[i] = min(max(np.int64(at), low), high - 1)
        first[i] = min(begin[i], high - taps)
    for k in range(taps):
        row = weights[k]
        if method == _AREA:
            for i in range(size):
                j = np.float64(first[i] + k)
                weight = min(j + 1.0, centre[i] + reach) - max(j, centre[i] - reach)
                row[i] = max(weight, 0.0)
        else:
            for i in range(size):
                x = abs(first[i] + k + 0.5 - centre[i]) / wide
                if method == _BILINEAR:
                    row[i] = max(1.0 - x, 0.0)
                else:
                    inner = (1.5 * x - 2.5) * x * x + 1.0
                    outer = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
                    row[i] = inner if x < 1.0 else outer if x < 2.0 else 0.0
        for i in range(size):
            total[i] += row[i]
    for i in range(size):
        if total[i] == 0.0:
            weights[begin[i] - first[i], i] = total[i] = 1.0
    for k in range(taps):
        for i in range(size):
            weights[k, i] /= total[i]


@njit
def _quantised(weights: Any, out: Any) -> None:
    taps, size = weights.shape
    rest, most = np.full(size, 16384, np.int64), np.zeros(size, np.int64)
    best = weights[0].copy()
    for k in range(taps):
        for i in range(size):
            whole = np.int64(np.floor(weights[k, i] * 16384.0 + 0.5))
            out[k, i] = whole
            rest[i] -= whole
        for i in range(size):
            if weights[k, i] > best[i]:
                best[i], most[i] = weights[k, i], k
    for i in range(size):
        out[most[i], i] += rest[i]


# numba frees an array after the last line that names it, also where its address is still in use:
# hence arrays, not addresses, are handed to these.


@njit(inline="always")
def _address(array: Any) -> Any:
    return np.int64(array.ctypes.data)  # with other integers its own type would make a float


@njit
def _line_down(rows: Any, weights: Any, line: Any, size: Any) -> None:
    """A line of the result, from rows that are filtered along."""
    source, at, out = _address(rows), _address(weights), _address(line)
    for j in range(0, size, _COLUMNS):
        _filter_down(source + j, rows.shape[1], at, weights.size // 2, out + j)


@njit
def _lines_along(
    source: Any,
    stride: Any,
    channels: Any,
    come: Any,
    weights: Any,
    orders: Any,
    mixed: Any,
    out: Any,
) -> None:
    """_LINES rows, from a picture's lines."""
    at, vectors, step, to = (
        _address(weights),
        weights.shape[1],
        32 * weights.shape[1],
        _address(mixed),
    )
    order = _address(orders)
    if vectors == 1:
        for i in range(come.size):
            _along_1(source + come[i], stride, channels, order, at + step * i, 1, to + 32 * i)
    elif vectors == 2:
        for i in range(come.size):
            _along_2(source + come[i], stride, channels, order, at + step * i, 2, to + 32 * i)
    else:
        for i in range(come.size):
            _along_more(
                source + come[i], stride, channels, order, at + step * i, vectors, to + 32 * i
            )
    for i in range(0, come.size, _PIXELS):
        _spread(to + 32 * i, channels, order + 32, _address(out) + i * channels, out.shape[1])


@kernel(
    *(types.int64, i8, i8, offsets_type, types.float64[::1], i8, i8, i8, types.boolean),
    *(types.int64, i8, i8),
)
def resize_u8(  # type: ignore[no-untyped-def]
    source, stride, channels, inside, box, method, taps_y, taps_x, flip, out, high, wide
):
    first_y, first_x = np.empty(high, np.int64), np.empty(wide, np.int64)
    exact_y, exact_x = np.empty((taps_y, high)), np.empty((taps_x, wide))
    _filter_weights(box[0], box[2], inside[0], inside[1], method, first_y, exact_y)
    _filter_weights(box[1], box[3], inside[2], inside[3], method, first_x, exact_x)
    whole_y, along = np.empty((taps_y, high), np.int16), np.empty((taps_x, wide), np.int16)
    _quantised(exact_y, whole_y)
    _quantised(exact_x, along)
    down = np.zeros((high, taps_y + taps_y % 2), np.int16)
    for k in range(taps_y):
        for y in range(high):
            down[y, k] = whole_y[k, y]
    vectors = (taps_x + _PIXELS - 1) // _PIXELS
    # Half of a vector has two pixels of each line, as pairs of int16 of a channel; then four pixels
    # of 4 bytes.
    weights, come = np.zeros((wide, vectors, 16), np.int16), np.empty(wide, np.int64)
    orders = np.full((2, 32), 255, np.uint8)
    for k in range(_PIXELS):
        for c in range(channels):
            orders[0, k // 2 * 16 + 4 * c + k % 2 * 2] = k * channels + c
            orders[1, k * channels + c] = orders[1, 16 + k * channels + c] = 4 * k + c
    left = first_x[0]
    for i in range(wide):
        x = wide - 1 - i if flip else i
        come[i] = (first_x[x] - left) * channels
        for k in range(taps_x):
            begin = k % _PIXELS // 2 * 8 + k % 2
            for c in range(4):
                weights[i, k // _PIXELS, begin + 2 * c] = along[k, x]
    mixed = np.empty((wide + _PIXELS, 32), np.uint8)
    # rows[k] is the picture's row ``top + k``, filtered along; ``row`` is the next to be filtered
    size = wide * channels
    pitch = (size + 16) // _COLUMNS * _COLUMNS + _COLUMNS
    rows, line = np.zeros((2 * taps_y + 4 * _LINES, pitch), np.uint8), np.empty(pitch, np.uint8)
    # A vector reads up to 16 bytes too much: the last lines are copied to where that may be.
    count = (first_x[wide - 1] + taps_x - left) * channels
    last = np.zeros((_LINES, count + 16), np.uint8)
    top = row = first_y[0]
    for y in range(high):
        while row < first_y[y] + taps_y:
            if row + _LINES - top >= len(rows):  # what is still needed moves to the front
                for k in range(first_y[y], row):
                    memcpy(_address(rows[k - first_y[y] :]), _address(rows[k - top :]), size)
                top = first_y[y]
            begin, step = source + row * stride + left * channels, stride
            if (inside[1] - row - _LINES) * stride < 16:
                for k in range(min(_LINES, inside[1] - row)):
                    memcpy(_address(last[k:]), begin + k * stride, count)
                begin, step = _address(last), count + 16
            _lines_along(begin, step, channels, come, weights, orders, mixed, rows[row - top :])
            row += _LINES
        _line_down(rows[first_y[y] - top :], down[y], line, size)
        memcpy(out + y * size, _address(line), size)
    last[0, 0] = line[0] = 0  # in use until here


@kernel(
    *(types.Array(types.float32, 2, "C", readonly=True), i8, offsets_type, types.float64[::1]),
    *(i8, i8, i8, types.boolean),
    types.float32[:, :, ::1],
)
def resize_f4(  # type: ignore[no-untyped-def]
    pixels, channels, inside, box, method, taps_y, taps_x, flip, out
):
    high, wide = out.shape[0], out.shape[1]
    first_y, first_x = np.empty(high, np.int64), np.empty(wide, np.int64)
    exact_y, exact_x = np.empty((taps_y, high)), np.empty((taps_x, wide))
    _filter_weights(box[0], box[2], inside[0], inside[1], method, first_y, exact_y)
    _filter_weights(box[1], box[3], inside[2], inside[3], method, first_x, exact_x)
    left = first_x[0] * channels
    line = np.empty((first_x[wide - 1] + taps_x) * channels - left, np.float32)
    for y in range(high):
        for j in range(line.size):
            line[j] = 0
        for k in range(taps_y):
            weight = np.float32(exact_y[k, y])
            row = pixels[first_y[y] + k]
            for j in range(line.size):
                line[j] += weight * row[left + j]
        for i in range(wide):
            x = wide - 1 - i if flip else i
            come = first_x[x] * channels - left
            for c in range(channels):
                total = np.float32(0)
                for k in range(taps_x):
                    total += np.float32(exact_x[k, x]) * line[come + k * channels + c]
                out[y, i, c] = total
