"""The kernels of kernels.py compiled by numba; importable only where numba is.

Signatures are explicit, so that nothing compiles in the middle of training, and results are cached
on disk. memcpy is LLVM's own (``cgutils.raw_memcpy``): unlike a ctypes pointer it can be cached.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def _compile(signature: Any, **options: Any) -> Any:
    def decorate(function: Any) -> Any:
        try:
            return njit(signature, nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither this folder nor a user cache folder is writable
            return njit(signature, nogil=True, **options)(function)

    return decorate


@intrinsic
def _memcpy(typingctx: Any, out: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out_, source_, size_ = arguments
        pointer = cgutils.voidptr_t
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(out_, pointer),
            builder.inttoptr(source_, pointer),
            size_,
            1,
        )
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), generate


_i8 = types.int64
_offsets = types.int64[::1]


@_compile(types.void(_offsets, _i8, _i8, _i8, types.uint64[::1], _offsets))
def feistel_rows(positions, count, left, right, keys, out):  # type: ignore[no-untyped-def]
    lmask = (np.uint64(1) << np.uint64(left)) - np.uint64(1)
    rmask = (np.uint64(1) << np.uint64(right)) - np.uint64(1)
    shift = np.uint64(right)
    limit = np.uint64(count)
    for i in range(positions.size):
        x = np.uint64(positions[i])
        while True:
            hi = x >> shift
            lo = x & rmask
            for r in range(keys.size):
                z = (lo if r % 2 == 0 else hi) + keys[r]
                z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                z = z ^ (z >> np.uint64(31))
                if r % 2 == 0:
                    hi ^= z & lmask
                else:
                    lo ^= z & rmask
            x = (hi << shift) | lo
            if x < limit:
                break
        out[i] = np.int64(x)


@_compile(types.void(types.uintp, _offsets, _i8, types.uintp, _offsets))
def gather_rows(source, offsets, row_bytes, out, rows):  # type: ignore[no-untyped-def]
    for i in range(offsets.size):
        _memcpy(
            out + np.uintp(rows[i] * row_bytes),
            source + np.uintp(offsets[i]),
            np.uintp(row_bytes),
        )


@intrinsic
def _u8_pointer(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.CPointer(types.uint8)(types.uintp), generate


_f4 = types.float32[::1]


@_compile(
    types.void(
        types.uintp,
        _offsets,
        _i8,
        _f4,
        _f4,
        _i8,
        types.uint8[::1],
        types.boolean,
        types.float32[:, ::1],
        _offsets,
    )
)
def affine_rows(  # type: ignore[no-untyped-def]
    source, offsets, pixels, scale, shift, width, flips, planar, out, rows
):
    channels = scale.size
    height = pixels // width
    line = width * channels
    # One line's coefficients, so that the inner loop runs over contiguous elements.
    a = np.empty(line, np.float32)
    b = np.empty(line, np.float32)
    for i in range(line):
        a[i] = scale[i % channels]
        b[i] = shift[i % channels]
    for i in range(offsets.size):
        src = _u8_pointer(source + np.uintp(offsets[i]))
        dst = out[rows[i]]
        mirrored = flips[i] != 0
        if not planar and not mirrored:
            for y in range(height):
                base = y * line
                for k in range(line):
                    dst[base + k] = np.float32(src[base + k]) * a[k] + b[k]
        elif not planar:
            for y in range(height):
                base = y * line
                for x in range(width):
                    for c in range(channels):
                        value = np.float32(src[base + (width - 1 - x) * channels + c])
                        dst[base + x * channels + c] = value * scale[c] + shift[c]
        else:
            for c in range(channels):
                sc = scale[c]
                sh = shift[c]
                plane = c * pixels
                for y in range(height):
                    base = y * line + c
                    to = plane + y * width
                    if mirrored:
                        base += (width - 1) * channels
                        for x in range(width):
                            dst[to + x] = np.float32(src[base - x * channels]) * sc + sh
                    else:
                        for x in range(width):
                            dst[to + x] = np.float32(src[base + x * channels]) * sc + sh


@_compile(types.void(types.uintp, _offsets, _i8, _i8, _i8, types.uintp, _offsets))
def transpose_rows(  # type: ignore[no-untyped-def]
    source, offsets, pixels, channels, item, out, rows
):
    size = pixels * channels * item
    for i in range(offsets.size):
        src = _u8_pointer(source + np.uintp(offsets[i]))
        dst = _u8_pointer(out + np.uintp(rows[i] * size))
        for c in range(channels):
            for p in range(pixels):
                for k in range(item):
                    dst[(c * pixels + p) * item + k] = src[(p * channels + c) * item + k]
