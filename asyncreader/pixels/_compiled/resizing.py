"""Kernels that resize pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .base import i8, kernel, load_any, offsets_type, store_any, u8_pointer

# -- resizing ------------------------------------------------------------------------------------
# Vertical first, a line of the result at a time, then along the line. Numbers are int16: pixels as
# Q7, weights as Q14, sums as Q6, by rounding multiplications (pmulhrsw). LLVM
# finds neither the 16-bit lanes nor the splat weights by itself, hence vectors by hand.

#: Pixels' bytes that _filter_down takes together.
_LANES = 32

#: Numbers of the methods: see resize_u8_numpy.
_BILINEAR, _BICUBIC, _AREA = 0, 1, 2


def _vector(kind: Any, count: int, value: int | None = None) -> Any:
    """A type of ``count`` lanes, or a constant of it."""
    vector = ir.VectorType(kind, count)
    return vector if value is None else ir.Constant(vector, [value] * count)


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    undefined = ir.Constant(_vector(value.type, lanes), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, undefined, _vector(ir.IntType(32), lanes, 0))


def _add_product(builder: Any, total: Any, values: Any, weights: Any, lanes: int) -> None:
    """Add values times weights (lanes of int16), >> 15 and rounded, to the lanes at total."""
    known = (n for n, feature, _ in _PMULHRSW if feature in _FEATURES and n <= lanes)
    together = next(known, 0)
    if together == 0:
        product = _rounded_product(builder, values, weights, lanes)
    else:
        parts = [
            _pmulhrsw(builder, *(_part(builder, v, k, together) for v in (values, weights)))
            for k in range(0, lanes, together)
        ]
        while len(parts) > 1:
            count = parts[0].type.count * 2
            order = ir.Constant(_vector(ir.IntType(32), count), list(range(count)))
            parts = [
                builder.shuffle_vector(a, b, order)
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        product = parts[0]
    builder.store(builder.add(builder.load(total), product), total)


#: Lanes of int16, the feature of a processor that multiplies them so, and LLVM's name for it.
_PMULHRSW = (
    (16, "+avx2", "llvm.x86.avx2.pmul.hr.sw"),
    (8, "+ssse3", "llvm.x86.ssse3.pmul.hr.sw.128"),
)
#: Of the processor that code is made for.
_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def _pmulhrsw(builder: Any, values: Any, weights: Any) -> Any:
    kind = values.type
    name = next(name for lanes, _, name in _PMULHRSW if lanes == kind.count)
    function = ir.FunctionType(kind, [kind, kind])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function, name), [values, weights]
    )


def _part(builder: Any, vector: Any, first: int, count: int) -> Any:
    order = ir.Constant(_vector(ir.IntType(32), count), list(range(first, first + count)))
    return builder.shuffle_vector(vector, vector, order)


def _rounded_product(builder: Any, values: Any, weights: Any, lanes: int) -> Any:
    kind = _vector(ir.IntType(32), lanes)
    product = builder.mul(builder.sext(values, kind), builder.sext(weights, kind))
    product = builder.ashr(product, ir.Constant(kind, [14] * lanes))
    product = builder.ashr(
        builder.add(product, ir.Constant(kind, [1] * lanes)), ir.Constant(kind, [1] * lanes)
    )
    return builder.trunc(product, _vector(ir.IntType(16), lanes))


def _clipped(builder: Any, value: Any, lanes: int, most: int) -> Any:
    for sign, limit in ((">", most), ("<", 0)):
        bound = _vector(ir.IntType(16), lanes, limit)
        value = builder.select(builder.icmp_signed(sign, value, bound), bound, value)
    return value


@intrinsic
def _filter_down(
    typingctx: Any, source: Any, stride: Any, weights: Any, taps: Any, out: Any, count: Any
) -> Any:
    """``out[j] = sum of weights[k] * source[k * stride + j]`` for ``count`` bytes, >= _LANES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_, stride_, weights_, taps_, out_, count_ = arguments
        long, short = ir.IntType(64), ir.IntType(16)
        total = cgutils.alloca_once(builder, _vector(short, _LANES))
        last = builder.sub(count_, ir.Constant(long, _LANES))
        step = ir.Constant(long, _LANES)
        with cgutils.for_range_slice(builder, ir.Constant(long, 0), count_, step) as (begin, _):
            # the last vector begins earlier, so that it ends with the line
            over = builder.icmp_signed(">", begin, last)
            begin = builder.select(over, last, begin)
            builder.store(_vector(short, _LANES, 0), total)
            with cgutils.for_range(builder, taps_) as loop:
                line = builder.add(source_, builder.mul(loop.index, stride_))
                bytes_ = load_any(builder, builder.add(line, begin), _vector(ir.IntType(8), _LANES))
                values = builder.zext(bytes_, _vector(short, _LANES))
                values = builder.shl(values, _vector(short, _LANES, 7))
                at = builder.add(weights_, builder.shl(loop.index, ir.Constant(long, 1)))
                weight = _splat(builder, load_any(builder, at, short), _LANES)
                _add_product(builder, total, values, weight, _LANES)
            value = _clipped(builder, builder.load(total), _LANES, 255 << 6)
            value = builder.shl(value, _vector(short, _LANES, 1))
            target = builder.add(out_, builder.shl(begin, ir.Constant(long, 1)))
            store_any(builder, value, target)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


def _filter_across(channels: int) -> Any:
    """An intrinsic: one pixel of the result, as 4 bytes, from the line and 8 weights at a time."""
    pixels = 8 // channels  # that fit in a vector

    @intrinsic
    def across(typingctx: Any, line: Any, weights: Any, vectors: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            line_, weights_, vectors_ = arguments
            long, short, lanes = ir.IntType(64), ir.IntType(16), _vector(ir.IntType(16), 8)
            total = cgutils.alloca_once(builder, lanes)
            builder.store(_vector(short, 8, 0), total)
            with cgutils.for_range(builder, vectors_) as loop:
                step = ir.Constant(long, 2 * pixels * channels)
                at = builder.add(line_, builder.mul(loop.index, step))
                values = load_any(builder, at, lanes)
                at = builder.add(weights_, builder.shl(loop.index, ir.Constant(long, 4)))
                _add_product(builder, total, values, load_any(builder, at, lanes), 8)
            value, left = builder.load(total), pixels
            while left > 1:  # the second half of the pixels onto the first
                left //= 2
                order = [min(k + left * channels, 7) for k in range(8)]
                lower = ir.Constant(_vector(ir.IntType(32), 8), order)
                value = builder.add(value, builder.shuffle_vector(value, value, lower))
            value = builder.add(value, _vector(short, 8, 32))
            value = builder.ashr(value, _vector(short, 8, 6))
            value = builder.trunc(_clipped(builder, value, 8, 255), _vector(ir.IntType(8), 8))
            return builder.trunc(builder.bitcast(value, long), ir.IntType(32))

        return types.uint32(*[types.int64] * 3), generate

    return across


_across_1, _across_2, _across_3, _across_4 = (_filter_across(channels) for channels in (1, 2, 3, 4))


@intrinsic
def _store_u4(typingctx: Any, out: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_any(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32), generate


@njit(inline="always")
def _floor(value: Any) -> Any:
    whole = int(value)
    return whole - 1 if value < whole else whole


@njit
def _filter_weights(
    start: Any, length: Any, low: Any, high: Any, method: Any, first: Any, weights: Any
) -> None:
    size, taps = weights.shape
    scale = length / size
    wide = scale if method == _AREA or scale > 1.0 else 1.0
    reach = wide * (0.5 if method == _AREA else 1.0 if method == _BILINEAR else 2.0)
    for i in range(size):
        centre = start + (i + 0.5) * scale
        if method == _AREA:
            begin, end = _floor(centre - reach), -_floor(-centre - reach)
        else:
            begin, end = _floor(centre - reach + 0.5), _floor(centre + reach + 0.5)
        begin = min(max(begin, low), high - 1)
        end = max(min(end, high), begin + 1)
        first[i] = min(begin, high - taps)
        total = 0.0
        for k in range(taps):
            j = first[i] + k
            weight = 0.0
            if begin <= j < end:
                if method == _AREA:
                    weight = min(j + 1.0, centre + reach) - max(j + 0.0, centre - reach)
                    weight = max(weight, 0.0)
                else:
                    x = (j + 0.5 - centre) / wide
                    x = -x if x < 0.0 else x
                    if method == _BILINEAR:
                        weight = 1.0 - x if x < 1.0 else 0.0
                    elif x < 1.0:
                        weight = (1.5 * x - 2.5) * x * x + 1.0
                    elif x < 2.0:
                        weight = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
            weights[i, k] = weight
            total += weight
        if total == 0.0:
            weights[i, begin - first[i]] = total = 1.0
        for k in range(taps):
            weights[i, k] /= total


@njit
def _quantised(weights: Any, out: Any) -> None:
    for i in range(weights.shape[0]):
        rest, most = 16384, 0
        for k in range(weights.shape[1]):
            out[i, k] = _floor(weights[i, k] * 16384.0 + 0.5)
            rest -= out[i, k]
            if weights[i, k] > weights[i, most]:
                most = k
        out[i, most] += rest


# numba frees an array after the last line that names it, also where its address is still in use:
# hence arrays, not addresses, are handed to these two.


@njit
def _line_down(source: Any, stride: Any, weights: Any, line: Any, count: Any) -> None:
    """``count`` bytes of a line of the result, Q7, from lines of the picture."""
    taps = weights.size
    if count >= _LANES:
        _filter_down(source, stride, weights.ctypes.data, taps, line.ctypes.data, count)
        return
    pixels = u8_pointer(np.uintp(source))
    for j in range(count):
        total: Any = 0
        for k in range(taps):
            value = (np.int64(pixels[k * stride + j]) << 7) * np.int64(weights[k])
            total += ((value >> 14) + 1) >> 1
        line[j] = min(max(total, 0), 255 << 6) << 1


@njit
def _line_across(channels: Any, come: Any, line: Any, weights: Any, out: Any) -> None:
    """A line of the result. A pixel is stored as 4 bytes: what is too much is of the next."""
    lines, at, vectors = line.ctypes.data, weights.ctypes.data, weights.shape[1] // 8
    go = out.ctypes.data
    if channels == 3:
        for i in range(come.size):
            _store_u4(go + 3 * i, _across_3(lines + come[i], at + 16 * vectors * i, vectors))
    elif channels == 4:
        for i in range(come.size):
            _store_u4(go + 4 * i, _across_4(lines + come[i], at + 16 * vectors * i, vectors))
    elif channels == 1:
        for i in range(come.size):
            _store_u4(go + i, _across_1(lines + come[i], at + 16 * vectors * i, vectors))
    else:
        for i in range(come.size):
            _store_u4(go + 2 * i, _across_2(lines + come[i], at + 16 * vectors * i, vectors))


@kernel(
    *(types.int64, i8, i8, offsets_type, types.float64[::1], i8, i8, i8, types.boolean),
    *(types.int64, i8, i8),
)
def resize_u8(  # type: ignore[no-untyped-def]
    source, stride, channels, inside, box, method, taps_y, taps_x, flip, out, high, wide
):
    first_y, first_x = np.empty(high, np.int64), np.empty(wide, np.int64)
    exact_y, exact_x = np.empty((high, taps_y)), np.empty((wide, taps_x))
    _filter_weights(box[0], box[2], inside[0], inside[1], method, first_y, exact_y)
    _filter_weights(box[1], box[3], inside[2], inside[3], method, first_x, exact_x)
    down, across = np.empty((high, taps_y), np.int16), np.empty((wide, taps_x), np.int16)
    _quantised(exact_y, down)
    _quantised(exact_x, across)
    left = first_x[0]
    count = (first_x[wide - 1] + taps_x - left) * channels
    line, target = np.zeros(count + _LANES, np.int16), u8_pointer(np.uintp(out))
    together = 8 // channels  # pixels of a vector
    vectors = (taps_x + together - 1) // together
    weights, come = np.zeros((wide, 8 * vectors), np.int16), np.empty(wide, np.int64)
    for i in range(wide):
        x = wide - 1 - i if flip else i
        come[i] = 2 * (first_x[x] - left) * channels
        for k in range(taps_x):
            begin = 8 * (k // together) + k % together * channels
            for c in range(channels):
                weights[i, begin + c] = across[x, k]
    size = wide * channels
    if method != _BICUBIC:
        row = np.empty(size + 4, np.uint8)
        for y in range(high):
            at = source + first_y[y] * stride + left * channels
            _line_down(at, stride, down[y], line, count)
            _line_across(channels, come, line, weights, row)
            for j in range(size):
                target[y * size + j] = row[j]
        return
    # What overshoots is clipped between the two passes: as Pillow does it, across comes first.
    top, whole = first_y[0], np.full(1, 1 << 14, np.int16)
    rows = np.empty((first_y[high - 1] + taps_y - top) * size + 4, np.uint8)
    for y in range(first_y[high - 1] + taps_y - top):
        at = source + (top + y) * stride + left * channels
        _line_down(at, stride, whole, line, count)
        _line_across(channels, come, line, weights, rows[y * size :])
    line = np.empty(size + _LANES, np.int16)
    for y in range(high):
        _line_down(rows[(first_y[y] - top) * size :].ctypes.data, size, down[y], line, size)
        for j in range(size):
            target[y * size + j] = (line[j] + 64) >> 7
    rows[0] = 0  # in use until here


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
    exact_y, exact_x = np.empty((high, taps_y)), np.empty((wide, taps_x))
    _filter_weights(box[0], box[2], inside[0], inside[1], method, first_y, exact_y)
    _filter_weights(box[1], box[3], inside[2], inside[3], method, first_x, exact_x)
    left = first_x[0] * channels
    line = np.empty((first_x[wide - 1] + taps_x) * channels - left, np.float32)
    for y in range(high):
        for j in range(line.size):
            line[j] = 0
        for k in range(taps_y):
            weight = np.float32(exact_y[y, k])
            row = pixels[first_y[y] + k]
            for j in range(line.size):
                line[j] += weight * row[left + j]
        for i in range(wide):
            x = wide - 1 - i if flip else i
            come = first_x[x] * channels - left
            for c in range(channels):
                total = np.float32(0)
                for k in range(taps_x):
                    total += np.float32(exact_x[x, k]) * line[come + k * channels + c]
                out[y, i, c] = total
