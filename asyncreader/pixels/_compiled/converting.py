"""Functions that change a row of pixels while they copy it: mirror, take channels apart, cast."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .base import u8_pointer


@intrinsic
def _f4_pointer(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.uintp), generate


@intrinsic
def _u2_pointer(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint16)(types.uintp), generate


@intrinsic
def _like(typingctx: Any, row: Any, value: Any) -> Any:
    """``value`` (float32) as an element of ``row``: itself, or its float16 bits for uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.return_type == types.float32:
            return arguments[1]
        half = builder.fptrunc(arguments[1], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return row.dtype(row, types.float32), generate


def has_half() -> bool:
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


@njit
def mirror_row(come, go, height, width, pixel):  # type: ignore[no-untyped-def]
    """Copy a picture of ``pixel``-byte pixels, each line backwards."""
    line = width * pixel
    src, dst = u8_pointer(come), u8_pointer(go)
    for y in range(height):
        base = y * line
        # LLVM makes vector shuffles of a stride that it sees: hence the branch for RGB
        if pixel == 3:
            for x in range(width):
                dst[base + 3 * x] = src[base + 3 * (width - 1 - x)]
                dst[base + 3 * x + 1] = src[base + 3 * (width - 1 - x) + 1]
                dst[base + 3 * x + 2] = src[base + 3 * (width - 1 - x) + 2]
        else:
            for x in range(width):
                for k in range(pixel):
                    dst[base + x * pixel + k] = src[base + (width - 1 - x) * pixel + k]


@njit
def transpose_row(come, go, pixels, channels, item):  # type: ignore[no-untyped-def]
    """(pixels, channels) values of ``item`` bytes -> (channels, pixels)."""
    src, dst = u8_pointer(come), u8_pointer(go)
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


def _affine_row(pointer: Any) -> Any:
    """A function that casts a row to the elements of ``pointer``: float32, or bits of float16."""

    @njit
    def affine_row(come, go, height, width, planar, a, b, planes):  # type: ignore[no-untyped-def]
        """uint8 (H, W, C) -> ``x * a + b``, (H, W, C), or (C, H, W) where ``planar``.

        ``a``, ``b``: float32 (W * C,), the coefficients of a whole line; ``planes``: scratch,
        uint8 (3, TILE).
        """
        pixels, line = height * width, a.size
        channels = line // width
        out = carray(pointer(go), (pixels * channels,))
        src = u8_pointer(come)
        if not planar or channels == 1:
            for y in range(height):
                base = y * line
                row = out[base : base + line]
                for k in range(line):
                    row[k] = _like(row, np.float32(src[base + k]) * a[k] + b[k])
            return
        if channels != 3:
            for c in range(channels):
                row = out[c * pixels : (c + 1) * pixels]
                for p in range(pixels):
                    row[p] = _like(row, np.float32(src[p * channels + c]) * a[c] + b[c])
            return
        # taken apart into planes of bytes first, which stay in cache
        p0, p1, p2 = planes[0], planes[1], planes[2]
        for first in range(0, pixels, TILE):
            count = min(TILE, pixels - first)
            base = 3 * first
            for x in range(count):
                p0[x] = src[base + 3 * x]
                p1[x] = src[base + 3 * x + 1]
                p2[x] = src[base + 3 * x + 2]
            for c in range(3):
                plane, scale, shift = planes[c], a[c], b[c]
                row = out[c * pixels + first : c * pixels + first + count]
                for x in range(count):
                    row[x] = _like(row, np.float32(plane[x]) * scale + shift)

    return affine_row


affine_row, affine_row_half = _affine_row(_f4_pointer), _affine_row(_u2_pointer)
