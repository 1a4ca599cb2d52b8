"""Kernels that change pixels while they copy them: cast and scale, mirror, take channels apart."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .base import i8, kernel, memcpy, offsets_type, u8_pointer


@intrinsic
def _like(typingctx: Any, row: Any, value: Any) -> Any:
    """``value`` (float32) as an element of ``row``: itself, or its float16 bits for uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.return_type == types.float32:
            return arguments[1]
        half = builder.fptrunc(arguments[1], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return row.dtype(row, types.float32), generate


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
_TILE = 1024

_f4 = types.float32[::1]


def _affine(element: Any) -> tuple[Any, ...]:
    head = (types.uintp, offsets_type, i8, _f4, _f4, i8)
    return (*head, types.uint8[::1], types.boolean, element[:, ::1], offsets_type)


@njit
def _of_line(coefficients: Any, line: Any) -> Any:
    """The coefficients of a line: the inner loop runs over contiguous elements."""
    repeated = np.empty(line, np.float32)
    for i in range(line):
        repeated[i] = coefficients[i % coefficients.size]
    return repeated


# LLVM turns loads and stores with a stride of 3 into vector shuffles, but only where it sees the 3:
# hence the branch for RGB. Lines are taken apart into planes of bytes first, which stay in cache.
@kernel(*_affine(types.float32))
def affine_rows(  # type: ignore[no-untyped-def]
    source, offsets, pixels, scale, shift, width, flips, planar, out, rows
):
    channels = scale.size
    line = width * channels
    a, b = _of_line(scale, line), _of_line(shift, line)
    planes = np.empty((3, max(width, _TILE)), np.uint8)
    p0, p1, p2 = planes[0], planes[1], planes[2]
    s0, s1, s2 = scale[0], scale[min(1, channels - 1)], scale[min(2, channels - 1)]
    t0, t1, t2 = shift[0], shift[min(1, channels - 1)], shift[min(2, channels - 1)]
    for i in range(offsets.size):
        src = u8_pointer(source + np.uintp(offsets[i]))
        dst = out[rows[i]]
        mirrored = flips[i] != 0
        if not mirrored and (not planar or channels == 1):
            for y in range(pixels // width):
                base = y * line
                row = dst[base : base + line]
                for k in range(line):
                    row[k] = _like(row, np.float32(src[base + k]) * a[k] + b[k])
        elif channels == 3:
            # whole tiles of pixels; mirroring needs a tile to be a line
            tile = width if mirrored else _TILE
            for first in range(0, pixels, tile):
                count = min(tile, pixels - first)
                base = 3 * first
                if mirrored:
                    base += 3 * (count - 1)
                    for x in range(count):
                        p0[x] = src[base - 3 * x]
                        p1[x] = src[base - 3 * x + 1]
                        p2[x] = src[base - 3 * x + 2]
                else:
                    for x in range(count):
                        p0[x] = src[base + 3 * x]
                        p1[x] = src[base + 3 * x + 1]
                        p2[x] = src[base + 3 * x + 2]
                if planar:
                    row = dst[first : first + count]
                    for x in range(count):
                        row[x] = _like(row, np.float32(p0[x]) * s0 + t0)
                    row = dst[pixels + first : pixels + first + count]
                    for x in range(count):
                        row[x] = _like(row, np.float32(p1[x]) * s1 + t1)
                    row = dst[2 * pixels + first : 2 * pixels + first + count]
                    for x in range(count):
                        row[x] = _like(row, np.float32(p2[x]) * s2 + t2)
                else:
                    row = dst[3 * first : 3 * (first + count)]
                    for x in range(count):
                        row[3 * x] = _like(row, np.float32(p0[x]) * s0 + t0)
                        row[3 * x + 1] = _like(row, np.float32(p1[x]) * s1 + t1)
                        row[3 * x + 2] = _like(row, np.float32(p2[x]) * s2 + t2)
        else:
            for y in range(pixels // width):
                for x in range(width):
                    come = y * line + ((width - 1 - x) if mirrored else x) * channels
                    for c in range(channels):
                        go = c * pixels + y * width + x if planar else y * line + x * channels + c
                        dst[go] = _like(dst, np.float32(src[come + c]) * scale[c] + shift[c])


if _has_half():  # otherwise the twin serves
    kernel(*_affine(types.uint16), name="affine_rows_half")(affine_rows)


@kernel(types.uintp, offsets_type, i8, i8, i8, types.uint8[::1], types.uintp, offsets_type)
def mirror_rows(  # type: ignore[no-untyped-def]
    source, offsets, height, width, pixel, flips, out, rows
):
    line = width * pixel
    size = height * line
    for i in range(offsets.size):
        come = source + np.uintp(offsets[i])
        go = out + np.uintp(rows[i] * size)
        if flips[i] == 0:
            memcpy(go, come, np.uintp(size))
            continue
        src, dst = u8_pointer(come), u8_pointer(go)
        for y in range(height):
            base = y * line
            if pixel == 3:
                for x in range(width):
                    dst[base + 3 * x] = src[base + 3 * (width - 1 - x)]
                    dst[base + 3 * x + 1] = src[base + 3 * (width - 1 - x) + 1]
                    dst[base + 3 * x + 2] = src[base + 3 * (width - 1 - x) + 2]
            else:
                for x in range(width):
                    for k in range(pixel):
                        dst[base + x * pixel + k] = src[base + (width - 1 - x) * pixel + k]


@kernel(types.uintp, offsets_type, i8, i8, i8, types.uintp, offsets_type)
def transpose_rows(  # type: ignore[no-untyped-def]
    source, offsets, pixels, channels, item, out, rows
):
    size = pixels * channels * item
    for i in range(offsets.size):
        src = u8_pointer(source + np.uintp(offsets[i]))
        dst = u8_pointer(out + np.uintp(rows[i] * size))
        if channels == 3 and item == 1:
            for p in range(pixels):
                dst[p] = src[3 * p]
                dst[pixels + p] = src[3 * p + 1]
                dst[2 * pixels + p] = src[3 * p + 2]
            continue
        for c in range(channels):
            for p in range(pixels):
                for k in range(item):
                    dst[(c * pixels + p) * item + k] = src[(p * channels + c) * item + k]


@njit
def _inside(place, limit, around):  # type: ignore[no-untyped-def]
    """The pixel that stands at ``place``; -1 for none. ``around``: as of padded_rows."""
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


@kernel(
    *(types.uintp, offsets_type, i8, i8, i8, offsets_type, offsets_type, i8),
    *(types.uint8[::1], types.uintp, offsets_type),
)
def padded_rows(  # type: ignore[no-untyped-def]
    source, offsets, height, width, pixel, tops, lefts, around, flips, out, rows
):
    line = width * pixel
    for i in range(offsets.size):
        come = source + np.uintp(offsets[i])
        go = out + np.uintp(rows[i] * height * line)
        left, flipped = lefts[i], flips[i] != 0
        first, end = min(max(0, -left), width), max(0, min(width, width - left))
        for y in range(height):
            to, row = u8_pointer(go + np.uintp(y * line)), _inside(tops[i] + y, height, around)
            if row < 0:
                for k in range(line):
                    to[k] = 0
                continue
            given = u8_pointer(come + np.uintp(row * line))
            if not flipped:
                memcpy(
                    go + np.uintp(y * line + first * pixel),
                    come + np.uintp(row * line + (left + first) * pixel),
                    np.uintp((end - first) * pixel),
                )
            elif pixel == 3:
                for x in range(first, end):
                    a, b = 3 * (width - 1 - x), 3 * (left + x)
                    to[a], to[a + 1], to[a + 2] = given[b], given[b + 1], given[b + 2]
            else:
                for x in range(first, end):
                    for k in range(pixel):
                        to[(width - 1 - x) * pixel + k] = given[(left + x) * pixel + k]
            for n in range(width - (end - first)):
                x = n if n < first else n + end - first
                column, at = _inside(left + x, width, around), width - 1 - x if flipped else x
                for k in range(pixel):
                    to[at * pixel + k] = given[column * pixel + k] if column >= 0 else 0
