"""The hot loops: one call, and one release of the GIL, for a whole batch.

Each kernel is compiled by numba where numba can be imported and has a plain numpy twin
(``*_numpy``), which is the oracle of its test and the way without numba. Compiled code is kept on
disk beside this file, or in the user's cache folder where that is not writable.

Addresses are integers: the caller guarantees that every row lies inside the memory it names
(sources check their offset tables against the file once, when they open it).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]

_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


# -- plain twins ---------------------------------------------------------------------------------


def feistel_rows_numpy(
    positions: Int64, count: int, left: int, right: int, keys: UInt64, out: Int64
) -> None:
    """Alternating Feistel network on ``left + right`` bits, walked until below ``count``."""
    lmask, rmask = np.uint64((1 << left) - 1), np.uint64((1 << right) - 1)
    shift = np.uint64(right)
    x = positions.astype(np.uint64)
    todo = np.arange(x.size)
    while todo.size:
        hi, lo = x[todo] >> shift, x[todo] & rmask
        for r in range(keys.size):
            if r % 2 == 0:
                hi ^= _round_numpy(lo, keys[r]) & lmask
            else:
                lo ^= _round_numpy(hi, keys[r]) & rmask
        walked = (hi << shift) | lo
        x[todo] = walked
        todo = todo[walked >= np.uint64(count)]
    out[:] = x.astype(np.int64)


def _round_numpy(half: UInt64, key: np.uint64) -> UInt64:
    z: Any = half + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
    mixed: UInt64 = z ^ (z >> np.uint64(31))
    return mixed


def bytes_at(address: int, length: int) -> UInt8:
    """The ``length`` bytes at ``address`` as an array that does not own them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


def gather_rows_numpy(source: int, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
    """Copy ``row_bytes`` bytes at ``source + offsets[i]`` to row ``rows[i]`` of ``out``."""
    for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
        ctypes.memmove(out + row * row_bytes, source + offset, row_bytes)


def affine_rows_numpy(
    source: int,
    offsets: Int64,
    pixels: int,
    scale: npt.NDArray[np.float32],
    shift: npt.NDArray[np.float32],
    width: int,
    flips: UInt8,
    planar: bool,
    out: npt.NDArray[Any],
    rows: Int64,
) -> None:
    """uint8 (H, W, C) rows -> float32 ``x * scale[c] + shift[c]``, mirrored where ``flips``.

    ``out``: (B, H*W*C), C-contiguous, float32, or uint16 to get float16 bits; its rows are
    (H, W, C), or (C, H, W) when ``planar``.
    """
    channels = scale.size
    for i in range(offsets.size):
        pixel = bytes_at(source + int(offsets[i]), pixels * channels)
        image = pixel.reshape(pixels // width, width, channels)
        if flips[i]:
            image = image[:, ::-1]
        done = image.astype(np.float32) * scale + shift
        flat = (done.transpose(2, 0, 1) if planar else done).reshape(-1)
        out[rows[i]] = flat.astype(np.float16).view(np.uint16) if out.dtype == np.uint16 else flat


def mirror_rows_numpy(
    source: int,
    offsets: Int64,
    height: int,
    width: int,
    pixel: int,
    flips: UInt8,
    out: int,
    rows: Int64,
) -> None:
    """Copy (height, width) rows of ``pixel``-byte pixels, mirrored where ``flips``."""
    size = height * width * pixel
    for i in range(offsets.size):
        src = bytes_at(source + int(offsets[i]), size).reshape(height, width, pixel)
        dst = bytes_at(out + int(rows[i]) * size, size).reshape(height, width, pixel)
        dst[:] = src[:, ::-1] if flips[i] else src


def transpose_rows_numpy(
    source: int, offsets: Int64, pixels: int, channels: int, item: int, out: int, rows: Int64
) -> None:
    """(pixels, channels) rows of ``item``-byte elements -> (channels, pixels) rows of ``out``."""
    size = pixels * channels * item
    for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
        src = bytes_at(source + offset, size).reshape(pixels, channels, item)
        bytes_at(out + row * size, size).reshape(channels, pixels, item)[:] = src.transpose(1, 0, 2)


try:
    from . import _compiled
except ImportError:  # no numba on this Python: the twins do the work
    #: Whether the compiled kernels are in use.
    COMPILED = False
    #: Whether affine_rows takes float16 output.
    HALF = True
    feistel_rows: Callable[..., None] = feistel_rows_numpy
    gather_rows: Callable[..., None] = gather_rows_numpy
    affine_rows: Callable[..., None] = affine_rows_numpy
    mirror_rows: Callable[..., None] = mirror_rows_numpy
    transpose_rows: Callable[..., None] = transpose_rows_numpy
else:
    COMPILED = True
    HALF = _compiled.HALF
    feistel_rows = _compiled.feistel_rows
    gather_rows = _compiled.gather_rows
    affine_rows = _compiled.affine_rows
    mirror_rows = _compiled.mirror_rows
    transpose_rows = _compiled.transpose_rows
