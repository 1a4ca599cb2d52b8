"""Functions that change a row of pixels while they copy it: mirror, cut out, take channels apart,
cast; and paint a part of it over."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core.registry import cpu_target

from .base import apart, instruction
from .memory import (
    AHEAD,
    bytes_from,
    load_any,
    memcpy,
    pointer,
    prefetch,
    store_any,
    stream_row,
    with_bits,
)

#: The exponent of the least normal float16, and the bits of its infinity.
_LEAST_HALF, HALF_INF = -14, 0x7C00


@njit
def half_bits(value):
    """The bits of a float64 as float16, rounded to the nearest, half to even."""
    bits = with_bits(value, np.uint64)
    sign = (bits >> np.uint64(48)) & np.uint64(0x8000)
    exponent = (np.int64(bits >> np.uint64(52)) & 2047) - 1023
    if value != value:
        return sign | np.uint64(0x7E00)
    if exponent > 15:
        return sign | np.uint64(HALF_INF)
    exponent = max(exponent, np.int64(_LEAST_HALF))
    # in units of the last place: 2 ** (10 - exponent), by its bits
    unit = with_bits(np.uint64(1033 - exponent) << np.uint64(52), np.float64)
    steps = np.uint64(np.rint(abs(value) * unit))
    return sign | ((np.uint64(exponent - _LEAST_HALF) << np.uint64(10)) + steps)


@instruction(types.uint16(types.float32))
def _rounded_half(builder, value):
    """The bits of a float32 as float16, by the processor."""
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))


@njit(inline="always")
def _worked_out_half(value):
    """The bits of a float32 as float16, without the processor's own instruction."""
    return np.uint16(half_bits(np.float64(value)))


@njit(inline="always")
def _single(value):
    return value


def _has_half() -> bool:
    """Whether the processor compiled for converts to float16 itself.

    Otherwise LLVM calls a function that is missing, and ends the process. The processor is not
    always this machine's: NUMBA_CPU_NAME=generic makes code for all of a kind.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    features = cpu_target.target_context.codegen().magic_tuple()[2]
    return "+f16c" in features.split(",")


#: Pixels taken apart at a time: their bytes and floats fit the first-level cache.
TILE = 1024


@instruction(types.void(types.uintp, types.uintp))
def _reversed_pixels(builder, come, go):
    """Write five pixels of three bytes backwards, and a byte that means nothing behind them; a byte
    before them is read."""
    before = builder.sub(come, ir.Constant(come.type, 1))
    stored = load_any(builder, before, ir.VectorType(ir.IntType(8), 16))
    lanes = [1 + 3 * pixel + k for pixel in (4, 3, 2, 1, 0) for k in range(3)]
    order = ir.Constant(ir.VectorType(ir.IntType(32), 16), [*lanes, 0])
    store_any(builder, builder.shuffle_vector(stored, stored, order), go)


@njit
def mirror_row(source, stride, target, height, width, pixel):
    """Copy an image of ``pixel``-byte pixels, whose lines are ``stride`` bytes apart, each line
    backwards."""
    line = width * pixel
    for y in range(height):
        come, go, x = source + np.uintp(y * stride), target + np.uintp(y * line), 0
        src, dst = bytes_from(come), bytes_from(go)
        # the processor guesses what is read next only where it is read forwards
        for ahead in range(0, line, 64):
            prefetch(come + AHEAD + np.uintp(ahead))
        if pixel == 3 and width >= 5:
            # neither what is read before five pixels nor what is written behind them may lie
            # outside of the picture: in its first and its last line the last five go one by one
            last = width - (10 if y == 0 or y == height - 1 else 5)
            end = come + np.uintp(3 * (width - 5))
            while x <= last:
                _reversed_pixels(end - np.uintp(3 * x), go + np.uintp(3 * x))
                x += 5
            if x < width and last == width - 5:
                _reversed_pixels(end - np.uintp(3 * last), go + np.uintp(3 * last))
                x = width
        while x < width:
            for k in range(pixel):
                dst[x * pixel + k] = src[(width - 1 - x) * pixel + k]
            x += 1


@njit
def _pixel_at(place, limit, around):
    """The pixel that stands at ``place``; -1 for none. ``around``: as of padded_row."""
    if 0 <= place < limit:
        return place
    if around == 0:
        return -1
    if around == 1:
        return min(max(place, 0), limit - 1)
    if limit == 1:
        return 0
    place = abs(place) % (2 * (limit - 1))
    return min(place, 2 * (limit - 1) - place)


@njit
def padded_row(come, go, height, width, pixel, top, left, around):
    """Copy the part of a picture that has its own size and begins at (top, left), which may lie
    outside: there are zeros (``around`` 0), the outermost pixels (1) or the mirror image (2)."""
    line = width * pixel
    first, end = min(max(0, -left), width), max(0, min(width, width - left))
    low, high = min(max(0, -top), height), max(0, min(height, height - top))
    inside = max(0, end - first) * pixel
    if inside and low < high:  # what lies inside in one piece; what is wrong then is written below
        memcpy(
            go + np.uintp(low * line + first * pixel),
            come + np.uintp((low + top) * line + (first + left) * pixel),
            np.uintp((high - low - 1) * line + inside),
        )
    for y in range(height):
        at, row = go + np.uintp(y * line), _pixel_at(top + y, height, around)
        to = bytes_from(at)
        if row < 0:
            for k in range(line):
                to[k] = 0
            continue
        given = come + np.uintp(row * line)
        if inside and not low <= y < high:
            source = given + np.uintp((left + first) * pixel)
            memcpy(at + np.uintp(first * pixel), source, np.uintp(inside))
        if around == 0:
            for k in range(first * pixel):
                to[k] = 0
            for k in range(end * pixel, line):
                to[k] = 0
            continue
        source_line = bytes_from(given)
        for n in range(width - max(0, end - first)):
            x = n if n < first else n - first + max(first, end)
            column = _pixel_at(left + x, width, around)
            for k in range(pixel):
                to[x * pixel + k] = source_line[column * pixel + k]


@njit
def paint_part(go, top, left, rows, columns, width, pixel, colour):
    """Write the ``pixel`` bytes at ``colour`` to a part of a picture at ``go``."""
    if rows == 0:
        return
    start = go + np.uintp((top * width + left) * pixel)
    to, given, k = bytes_from(start), bytes_from(colour), 0
    for n in range(columns * pixel):
        to[n] = given[k]
        k = k + 1 if k + 1 < pixel else 0
    for y in range(1, rows):
        memcpy(start + np.uintp(y * width * pixel), start, np.uintp(columns * pixel))


@njit(inline="always")
def _split(src, base, count, planes):
    """Take ``count`` RGB pixels apart into ``planes``, uint8 (3, TILE), which stay in cache."""
    # LLVM turns a stride of 3 into vector shuffles where it sees the 3
    p0, p1, p2 = planes[0], planes[1], planes[2]
    for x in range(count):
        p0[x] = src[base + 3 * x]
        p1[x] = src[base + 3 * x + 1]
        p2[x] = src[base + 3 * x + 2]


@njit
def transpose_row(come, go, pixels, channels, item, stream, planes):
    """(pixels, channels) values of ``item`` bytes -> (channels, pixels).

    ``stream``: past the caches; ``planes``: see _split.
    """
    src, dst = bytes_from(come), bytes_from(go)
    if channels == 3 and item == 1 and stream:
        at = np.uintp(planes.ctypes.data)
        for first in range(0, pixels, TILE):
            count = min(TILE, pixels - first)
            _split(src, 3 * first, count, planes)
            for c in range(3):
                to = go + np.uintp(c * pixels + first)
                stream_row(at + np.uintp(c * TILE), to, count)
        return
    if channels == 3 and item == 1:
        for p in range(pixels):
            dst[p] = src[3 * p]
            dst[pixels + p] = src[3 * p + 1]
            dst[2 * pixels + p] = src[3 * p + 2]
        return
    for c in range(channels):
        for p in range(pixels):
            for k in range(item):
                dst[(c * pixels + p) * item + k] = src[(p * channels + c) * item + k]


def _affine_row(name: str, kind: Any, size: int, element: Any) -> Any:
    """A function that casts a row to elements of ``kind``, ``size`` bytes each: float32, or bits of
    float16, which ``element`` makes of a float32."""

    @njit(inline="always")
    @apart(name)
    def scaled(come, go, count, a, b, a_step, stream, tile):
        """``count`` (at most TILE) values times a[0], a[a_step] ... plus b."""
        src = bytes_from(come)
        to = np.uintp(tile.ctypes.data) if stream else go
        out = carray(pointer(to, kind), (count,))
        if a_step:
            for k in range(count):
                out[k] = element(np.float32(src[k]) * a[k] + b[k])
        else:
            scale, shift = a[0], b[0]
            for k in range(count):
                out[k] = element(np.float32(src[k]) * scale + shift)
        if stream:
            stream_row(to, go, size * count)

    @njit
    @apart(name)
    def affine_row(come, go, height, width, planar, a, b, stream, planes, tile):
        """uint8 (H, W, C) -> ``x * a + b``, (H, W, C), or (C, H, W) where ``planar``.

        ``a``, ``b``: float32 (W * C,), the coefficients of a whole line; ``stream``: past the
        caches; ``planes``: see _split; ``tile``: scratch, float32 (TILE,).
        """
        pixels, line = height * width, a.size
        channels = line // width
        src = bytes_from(come)
        if not planar or channels == 1:
            for y in range(height):
                for first in range(0, line, TILE):
                    count, at = min(TILE, line - first), np.uintp(y * line + first)
                    own_a, own_b = a[first : first + count], b[first : first + count]
                    scaled(
                        come + at, go + at * np.uintp(size), count, own_a, own_b, 1, stream, tile
                    )
            return
        at = np.uintp(planes.ctypes.data)
        for first in range(0, pixels, TILE):
            count = min(TILE, pixels - first)
            for c in range(channels):
                plane = at
                if channels != 3:
                    for x in range(count):
                        planes[0, x] = src[(first + x) * channels + c]
                else:
                    if c == 0:
                        _split(src, 3 * first, count, planes)
                    plane = at + np.uintp(c * TILE)
                to = go + np.uintp((c * pixels + first) * size)
                scaled(plane, to, count, a[c : c + 1], b[c : c + 1], 0, stream, tile)

    return affine_row


affine_row = _affine_row("f4", np.float32, 4, _single)
affine_row_half = _affine_row(
    "f2", np.uint16, 2, _rounded_half if _has_half() else _worked_out_half
)
