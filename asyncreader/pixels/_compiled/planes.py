"""Kernels of 4:2:0 planes: made of RGB, and converted to RGB, resized or as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .base import address, i8, kernel, load_any, memcpy, offsets_type, store_any, u8_pointer
from .filter_weights import filter_weights, quantised
from .vectors import COLUMNS, filter_down

# numba frees an array after the last line that names it, also where its address is still in use:
# hence the last lines of the functions that take an address.

#: Rows that are filtered along together: as many bytes as filter_down makes.
_STRIP = COLUMNS
_BYTE, _INT, _LONG = (ir.IntType(bits) for bits in (8, 32, 64))


@intrinsic
def _transpose(typingctx: Any, source: Any, stride: Any, out: Any, pitch: Any) -> Any:
    """16 lines of 16 bytes, transposed: both halves of the lines interleaved, four times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_, stride_, out_, pitch_ = arguments
        order = ir.VectorType(_INT, 16)
        halves = [
            ir.Constant(order, [first + k + of for k in range(8) for of in (0, 16)])
            for first in (0, 8)
        ]

        def at(start: Any, line: int, step: Any) -> Any:
            return builder.add(start, builder.mul(ir.Constant(_LONG, line), step))

        kind = ir.VectorType(_BYTE, 16)
        lines = [load_any(builder, at(source_, k, stride_), kind) for k in range(16)]
        for _ in range(4):
            pairs = [(lines[k], lines[k + 8]) for k in range(8)]
            lines = [builder.shuffle_vector(*pair, half) for pair in pairs for half in halves]
        for k, line in enumerate(lines):
            store_any(builder, line, at(out_, k, pitch_))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def _to_rgb(typingctx: Any, luma: Any, blue: Any, red: Any, out: Any) -> Any:
    """COLUMNS pixels of a line of each plane as RGB: see twins.rgb_of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, wide = (ir.VectorType(one, COLUMNS) for one in (_BYTE, _INT))

        def same(value: int) -> Any:
            return ir.Constant(wide, [value] * COLUMNS)

        y, cb, cr = (builder.zext(load_any(builder, at, kind), wide) for at in arguments[:3])
        cb, cr = (builder.sub(plane, same(128)) for plane in (cb, cr))
        found = []
        for weights in (((cr, 91881),), ((cb, -22554), (cr, -46802)), ((cb, 116130),)):
            total = same(1 << 15)
            for plane, weight in weights:
                total = builder.add(total, builder.mul(plane, same(weight)))
            value = builder.add(y, builder.ashr(total, same(16)))
            for sign, limit in ((">", 255), ("<", 0)):
                over = builder.icmp_signed(sign, value, same(limit))
                value = builder.select(over, same(limit), value)
            found.append(builder.trunc(value, kind))
        order = ir.Constant(ir.VectorType(_INT, 2 * COLUMNS), [*range(2 * COLUMNS)])
        first = builder.shuffle_vector(found[0], found[1], order)
        last = builder.shuffle_vector(found[2], found[2], order)
        lanes = [k + of for k in range(COLUMNS) for of in (0, COLUMNS, 2 * COLUMNS)]
        order = ir.Constant(ir.VectorType(_INT, 3 * COLUMNS), lanes)
        store_any(builder, builder.shuffle_vector(first, last, order), arguments[3])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@njit
def _rgb_line(lines: Any, rgb: Any, wide: Any, out: Any) -> None:
    """A line of RGB at ``out``, of one of each plane; ``rgb`` has room for whole vectors."""
    at, to, pitch = address(lines), address(rgb), lines.shape[1]
    for x in range(0, wide, COLUMNS):
        _to_rgb(at + x, at + pitch + x, at + 2 * pitch + x, to + 3 * x)
    memcpy(out, to, 3 * wide)


# -- whole pictures ------------------------------------------------------------------------------


@intrinsic
def _between(typingctx: Any, sums: Any, out: Any) -> Any:
    """COLUMNS bytes of an upsampled line, of int16 sums of half as many samples and both next to
    them; ``sums``: the address of the first of these."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = COLUMNS // 2
        shorts = ir.VectorType(ir.IntType(16), half)

        def same(value: int) -> Any:
            return ir.Constant(shorts, [value] * half)

        before, here, behind = (
            load_any(builder, builder.add(arguments[0], ir.Constant(_LONG, 2 * k)), shorts)
            for k in range(3)
        )
        three = builder.mul(here, same(3))
        found = [
            builder.lshr(builder.add(builder.add(three, other), same(rounding)), same(4))
            for other, rounding in ((before, 8), (behind, 7))
        ]
        lanes = [k + of for k in range(half) for of in (0, half)]
        order = ir.Constant(ir.VectorType(_INT, COLUMNS), lanes)
        mixed = builder.shuffle_vector(*found, order)
        store_any(builder, builder.trunc(mixed, ir.VectorType(_BYTE, COLUMNS)), arguments[1])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 2), generate


@njit
def _upsampled(source: Any, half_y: Any, half_x: Any, y: Any, sums: Any, line: Any) -> None:
    """Line ``y`` of a chroma plane, upsampled: see twins.upsampled."""
    near_y = y // 2
    near = u8_pointer(np.uintp(source + near_y * half_x))
    if half_x <= 2:
        for x in range(2 * half_x):
            line[x] = near[x // 2]
        return
    far_y = min(max(near_y - 1 if y % 2 == 0 else near_y + 1, 0), half_y - 1)
    far = u8_pointer(np.uintp(source + far_y * half_x))
    inner = sums[1 : half_x + 1]
    for x in range(half_x):
        inner[x] = 3 * np.int32(near[x]) + np.int32(far[x])
    sums[0], sums[half_x + 1] = sums[1], sums[half_x]
    at, to = address(sums), address(line)
    for x in range(0, half_x, COLUMNS // 2):
        _between(at + 2 * x, to + 2 * x)


@njit
def _reversed(line: Any, wide: Any, out: Any) -> None:
    source, to = u8_pointer(np.uintp(address(line))), u8_pointer(np.uintp(address(out)))
    for x in range(wide):
        to[x] = source[wide - 1 - x]


@kernel(types.int64, i8, i8, i8, i8, types.boolean, types.int64, i8, i8)
def convert_420(  # type: ignore[no-untyped-def]
    source, height, width, top, left, flip, out, high, wide
):
    half_y, half_x = (height + 1) // 2, (width + 1) // 2
    pitch = (wide + COLUMNS - 1) // COLUMNS * COLUMNS
    lines, rgb = np.empty((3, pitch), np.uint8), np.empty(3 * pitch, np.uint8)
    turned = np.empty(lines.shape, np.uint8)
    chroma = np.empty((2, 2 * half_x + COLUMNS), np.uint8)
    sums = np.empty(half_x + COLUMNS, np.int16)
    planes = source + height * width
    for row in range(high):
        y = top + row
        _upsampled(planes, half_y, half_x, y, sums, chroma[0])
        _upsampled(planes + half_y * half_x, half_y, half_x, y, sums, chroma[1])
        memcpy(address(lines), source + y * width + left, wide)
        memcpy(address(lines[1]), address(chroma) + left, wide)
        memcpy(address(lines[2]), address(chroma[1]) + left, wide)
        if flip:
            for c in range(3):
                _reversed(lines[c], wide, turned[c])
        _rgb_line(turned if flip else lines, rgb, wide, out + 3 * wide * row)


# -- resized -------------------------------------------------------------------------------------


@njit
def _chroma_weights(
    first: Any, weights: Any, limit: Any, fancy: Any, chroma_first: Any, chroma: Any
) -> None:
    """The weights of chroma samples, of those of the pixels that they are upsampled to."""
    taps, size = weights.shape
    count = chroma.shape[0]
    chroma[:] = 0.0
    for i in range(size):
        chroma_first[i] = max(0, min((first[i] - 1) >> 1, limit - count))
    for k in range(taps):
        for i in range(size):
            j = first[i] + k
            near = far = j >> 1
            if fancy:
                far = min(max(near - 1 if j % 2 == 0 else near + 1, 0), limit - 1)
            chroma[near - chroma_first[i], i] += 0.75 * weights[k, i]
            chroma[far - chroma_first[i], i] += 0.25 * weights[k, i]


@njit
def _by_pixel(weights: Any, flip: Any) -> Any:
    """Weights (taps, size) as filter_down takes them: int16 (size, an even number of taps)."""
    taps, size = weights.shape
    whole = np.empty((taps, size), np.int16)
    quantised(weights, whole)
    found = np.zeros((size, taps + taps % 2), np.int16)
    for k in range(taps):
        for i in range(size):
            found[size - 1 - i if flip else i, k] = whole[k, i]
    return found


@njit
def _along(
    source: Any, stride: Any, end: Any, rows: Any, first: Any, weights: Any, count: Any, out: Any
) -> None:
    """Rows ``rows[0]`` to ``rows[1]`` of a plane, filtered along, as lines of ``out``.

    They are transposed, filtered down, ``_STRIP`` of them at a time, and transposed again. ``end``:
    of the memory that can be read; ``count``: the most columns of the plane that are looked at.
    """
    wide, taps = weights.shape
    left, pitch = first.min(), out.shape[1]
    padded = (count + 15) // 16 * 16
    copy = np.empty((_STRIP, padded), np.uint8)
    strip = np.empty((padded + 2) * _STRIP, np.uint8)
    mixed = np.empty((wide + 16) * _STRIP, np.uint8)
    at, to, by = address(strip), address(mixed), address(weights)
    for row in range(rows[0], rows[1], _STRIP):
        begin, step = source + row * stride + left, stride
        if begin + (_STRIP - 1) * stride + padded > end:
            begin, step = address(copy), padded
            for k in range(min(_STRIP, rows[1] - row)):
                memcpy(begin + k * padded, source + (row + k) * stride + left, count)
        for x in range(0, padded, 16):
            _transpose(begin + x, step, at + x * _STRIP, _STRIP)
            _transpose(begin + x + 16 * step, step, at + x * _STRIP + 16, _STRIP)
        for i in range(wide):
            line, weight = at + (first[i] - left) * _STRIP, by + 2 * taps * i
            filter_down(line, _STRIP, weight, taps // 2, to + i * _STRIP)
        target = address(out) + (row - rows[0]) * pitch
        for x in range(0, wide, 16):
            _transpose(to + x * _STRIP, _STRIP, target + x, pitch)
            _transpose(to + x * _STRIP + 16, _STRIP, target + 16 * pitch + x, pitch)
    copy[0, 0] = strip[0] = mixed[0] = 0


@njit
def _down(lines: Any, start: Any, weights: Any, line: Any) -> None:
    """A line of the result, of ``lines`` from ``start`` on."""
    pitch = lines.shape[1]
    source, at, out = address(lines) + start * pitch, address(weights), address(line)
    for j in range(0, pitch, COLUMNS):
        filter_down(source + j, pitch, at, weights.size // 2, out + j)


@kernel(
    *(types.int64, i8, i8, i8, offsets_type, types.float64[::1], i8, i8, i8, types.boolean),
    *(types.int64, i8, i8),
)
def resize_420(  # type: ignore[no-untyped-def]
    source, end, height, width, inside, box, method, taps_y, taps_x, flip, out, high, wide
):
    half_y, half_x = (height + 1) // 2, (width + 1) // 2
    pitch = (wide + COLUMNS - 1) // COLUMNS * COLUMNS
    first_y, first_x = np.empty((2, high), np.int64), np.empty((2, wide), np.int64)
    exact_y, exact_x = np.empty((taps_y, high)), np.empty((taps_x, wide))
    filter_weights(box[0], box[2], inside[0], inside[1], method, first_y[0], exact_y)
    filter_weights(box[1], box[3], inside[2], inside[3], method, first_x[0], exact_x)
    chroma_y = np.empty((min(half_y, taps_y // 2 + 2), high))
    chroma_x = np.empty((min(half_x, taps_x // 2 + 2), wide))
    fancy = half_x > 2
    _chroma_weights(first_y[0], exact_y, half_y, fancy, first_y[1], chroma_y)
    _chroma_weights(first_x[0], exact_x, half_x, fancy, first_x[1], chroma_x)
    down = _by_pixel(exact_y, False), _by_pixel(chroma_y, False)
    along = _by_pixel(exact_x, flip), _by_pixel(chroma_x, flip)
    taps = np.array([taps_y, chroma_y.shape[0], taps_x, chroma_x.shape[0]])
    rows, counts = np.empty((2, 2), np.int64), np.empty(2, np.int64)
    for c in range(2):
        rows[c, 0], rows[c, 1] = first_y[c, 0], first_y[c, high - 1] + taps[c]
        counts[c] = first_x[c, wide - 1] + taps[2 + c] - first_x[c, 0]
    come = first_x[:, ::-1].copy() if flip else first_x
    luma = np.empty((rows[0, 1] - rows[0, 0] + _STRIP + 1, pitch), np.uint8)
    blue = np.empty((rows[1, 1] - rows[1, 0] + _STRIP + 1, pitch), np.uint8)
    red = np.empty(blue.shape, np.uint8)
    planes, size = source + height * width, half_y * half_x
    _along(source, width, end, rows[0], come[0], along[0], counts[0], luma)
    _along(planes, half_x, end, rows[1], come[1], along[1], counts[1], blue)
    _along(planes + size, half_x, end, rows[1], come[1], along[1], counts[1], red)
    lines, rgb = np.empty((3, pitch), np.uint8), np.empty(3 * pitch, np.uint8)
    for y in range(high):
        _down(luma, first_y[0, y] - rows[0, 0], down[0][y], lines[0])
        _down(blue, first_y[1, y] - rows[1, 0], down[1][y], lines[1])
        _down(red, first_y[1, y] - rows[1, 0], down[1][y], lines[2])
        _rgb_line(lines, rgb, wide, out + 3 * wide * y)


# -- made of RGB ---------------------------------------------------------------------------------


@kernel(types.int64, i8, i8, types.int64)
def make_420(source, height, width, out):  # type: ignore[no-untyped-def]
    half_y, half_x = (height + 1) // 2, (width + 1) // 2
    luma = u8_pointer(np.uintp(out))
    rgb = u8_pointer(np.uintp(source))
    for k in range(height * width):
        r, g, b = np.int32(rgb[3 * k]), np.int32(rgb[3 * k + 1]), np.int32(rgb[3 * k + 2])
        luma[k] = np.uint8((19595 * r + 38470 * g + 7471 * b + 32768) >> 16)
    planes = height * width
    for y in range(half_y):
        lines = 2 * y * width, min(2 * y + 1, height - 1) * width
        for x in range(half_x):
            columns = 2 * x, min(2 * x + 1, width - 1)
            r = g = b = np.int64(0)
            for line in lines:
                for column in columns:
                    at = 3 * (line + column)
                    r += rgb[at]
                    g += rgb[at + 1]
                    b += rgb[at + 2]
            cb = (-11059 * r - 21709 * g + 32768 * b + (128 << 18) + (1 << 17)) >> 18
            cr = (32768 * r - 27439 * g - 5329 * b + (128 << 18) + (1 << 17)) >> 18
            luma[planes + y * half_x + x] = np.uint8(min(cb, 255))
            luma[planes + (half_y + y) * half_x + x] = np.uint8(min(cr, 255))
