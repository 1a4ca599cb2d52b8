"""Functions that change a row of pixels while they copy it: mirror, cut out, take channels apart,
cast; and paint a part of it over."""

from __future__ import annotations

import platform

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core.registry import cpu_target

from .base import apart, inner, instruction
from .memory import address_in, bytes_from, memcpy, pointer, stream_row

#: The exponent of the least normal float16, and the bits of its infinity.
_LEAST_HALF, HALF_INF = -14, 0x7C00


@inner
def half_bits(value):
    """The bits of a float64 as float16, rounded to the nearest, half to even."""
    bits = np.float64(value).view(np.uint64)
    sign = (bits >> np.uint64(48)) & np.uint64(0x8000)
    exponent = (np.int64(bits >> np.uint64(52)) & 2047) - 1023
    if value != value:
        return sign | np.uint64(0x7E00)
    if exponent > 15:
        return sign | np.uint64(HALF_INF)
    exponent = max(exponent, np.int64(_LEAST_HALF))
    # in units of the last place: 2 ** (10 - exponent), by its bits
    unit = np.uint64(np.uint64(1033 - exponent) << np.uint64(52)).view(np.float64)
    steps = np.uint64(np.rint(abs(value) * unit))
    return sign | ((np.uint64(exponent - _LEAST_HALF) << np.uint64(10)) + steps)


@instruction(types.uint16(types.float32))
def _rounded_half(builder, value):
    """The bits of a float32 as float16, by the processor. Plain code takes 2.3 times as long for a
    batch (32 x 32 x 3), or 2.4 (224 x 224 x 3)."""
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))


@inner(inline="always")
def _worked_out_half(value):
    """The bits of a float32 as float16, without the processor's own instruction."""
    return np.uint16(half_bits(np.float64(value)))


@inner(inline="always")
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


@inner(inline="always")
def _mirror_line(src, dst, width, pixel):
    """``pixel``: a number that LLVM knows, where it shall find vectors."""
    for x in range(width):
        for k in range(pixel):
            dst[x * pixel + k] = src[(width - 1 - x) * pixel + k]


@inner
def mirror_row(source, stride, target, height, width, pixel):
    """Copy an image of ``pixel``-byte pixels, whose lines are ``stride`` bytes apart, each line
    backwards."""
    line = width * pixel
    for y in range(height):
        src, dst = bytes_from(source + y * stride), bytes_from(target + y * line)
        if pixel == 3:
            _mirror_line(src, dst, width, 3)
        else:
            _mirror_line(src, dst, width, pixel)


@inner
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


@inner
def padded_row(source, target, height, width, pixel, top, left, around):
    """Copy the part of a picture that has its own size and begins at (top, left), which may lie
    outside: there are zeros (``around`` 0), the outermost pixels (1) or the mirror image (2)."""
    line = width * pixel
    first, end = min(max(0, -left), width), max(0, min(width, width - left))
    low, high = min(max(0, -top), height), max(0, min(height, height - top))
    inside = max(0, end - first) * pixel
    if inside and low < high:  # what lies inside in one piece; what is wrong then is written below
        memcpy(
            target + low * line + first * pixel,
            source + (low + top) * line + (first + left) * pixel,
            (high - low - 1) * line + inside,
        )
    for y in range(height):
        at, row = target + y * line, _pixel_at(top + y, height, around)
        to = bytes_from(at)
        if row < 0:
            for k in range(line):
                to[k] = 0
            continue
        begin = source + row * line
        if inside and not low <= y < high:
            inside_line = begin + (left + first) * pixel
            memcpy(at + first * pixel, inside_line, inside)
        if around == 0:
            for k in range(first * pixel):
                to[k] = 0
            for k in range(end * pixel, line):
                to[k] = 0
            continue
        source_line = bytes_from(begin)
        for n in range(width - max(0, end - first)):
            x = n if n < first else n - first + max(first, end)
            column = _pixel_at(left + x, width, around)
            for k in range(pixel):
                to[x * pixel + k] = source_line[column * pixel + k]


@inner
def paint_part(target, top, left, rows, columns, width, pixel, colour):
    """Write the ``pixel`` bytes at ``colour`` to a part of a picture at ``target``."""
    if rows == 0:
        return
    start = target + (top * width + left) * pixel
    to, given, k = bytes_from(start), bytes_from(colour), 0
    for n in range(columns * pixel):
        to[n] = given[k]
        k = k + 1 if k + 1 < pixel else 0
    for y in range(1, rows):
        memcpy(start + y * width * pixel, start, columns * pixel)


@inner(inline="always")
def _split(src, base, count, planes):
    """Take ``count`` RGB pixels apart into ``planes``, uint8 (3, TILE), which stay in cache."""
    # LLVM turns a stride of 3 into vector shuffles where it sees the 3
    p0, p1, p2 = planes[0], planes[1], planes[2]
    for x in range(count):
        p0[x] = src[base + 3 * x]
        p1[x] = src[base + 3 * x + 1]
        p2[x] = src[base + 3 * x + 2]


@inner
def transpose_row(source, target, pixels, channels, item):
    """(pixels, channels) values of ``item`` bytes -> (channels, pixels): not past the caches, which
    takes 1.2 times as long (224 x 224 x 3)."""
    src, dst = bytes_from(source), bytes_from(target)
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


def _affine_row(name, kind, size, element):
    """A function that casts a row to elements of ``kind``, ``size`` bytes each: float32, or bits of
    float16, which ``element`` makes of a float32."""

    @inner(inline="always")
    @apart(name)
    def scaled(source, target, count, a, b, a_step, stream, tile):
        """``count`` (at most TILE) values times a[0], a[a_step] ... plus b."""
        src = bytes_from(source)
        to = address_in(tile) if stream else target
        out = carray(pointer(to, kind), (count,))
        if a_step:
            for k in range(count):
                out[k] = element(np.float32(src[k]) * a[k] + b[k])
        else:
            scale, shift = a[0], b[0]
            for k in range(count):
                out[k] = element(np.float32(src[k]) * scale + shift)
        if stream:
            stream_row(to, target, size * count)

    @inner
    @apart(name)
    def affine_row(source, target, height, width, planar, a, b, stream, planes, tile):
        """uint8 (H, W, C) -> ``x * a + b``, (H, W, C), or (C, H, W) where ``planar``.

        ``a``, ``b``: float32 (W * C,), the coefficients of a whole line; ``stream``: past the
        caches; ``planes``: see _split; ``tile``: scratch, float32 (TILE,).
        """
        pixels, line = height * width, a.size
        channels = line // width
        src = bytes_from(source)
        if not planar or channels == 1:
            for y in range(height):
                for first in range(0, line, TILE):
                    count, at = min(TILE, line - first), y * line + first
                    own_a, own_b = a[first : first + count], b[first : first + count]
                    scaled(source + at, target + at * size, count, own_a, own_b, 1, stream, tile)
            return
        at = address_in(planes)
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
                    plane = at + c * TILE
                to = target + (c * pixels + first) * size
                scaled(plane, to, count, a[c : c + 1], b[c : c + 1], 0, stream, tile)

    return affine_row


affine_row = _affine_row("f4", np.float32, 4, _single)
affine_row_half = _affine_row(
    "f2", np.uint16, 2, _rounded_half if _has_half() else _worked_out_half
)
