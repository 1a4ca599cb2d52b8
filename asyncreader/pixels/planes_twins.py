"""Plain numpy twins of the kernels of 4:2:0 planes (see twins.py)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..array_types import Array, Float64, Int64, UInt8
from .twins import bytes_at


def halves(height: int, width: int) -> tuple[int, int]:
    """(H, W) of a chroma plane of a picture."""
    return (height + 1) // 2, (width + 1) // 2


#: Bytes before the planes.
HEADER: Final = 16


def planes_bytes(height: int, width: int) -> int:
    """Bytes of a picture's planes."""
    high, wide = halves(height, width)
    return height * width + 2 * high * wide


def _planes(address: int, height: int, width: int) -> tuple[UInt8, UInt8, UInt8]:
    data, size = bytes_at(address, planes_bytes(height, width)), height * width
    blue, red = data[size:].reshape(2, *halves(height, width))
    return data[:size].reshape(height, width), blue, red


def rgb_of(luma: Array, blue: Array, red: Array) -> UInt8:
    """Planes (H, W) of one size as RGB (H, W, 3), by the inverse of BT.601 with full range (JFIF
    1.02, "Conversion to and from RGB"), in 1/65536 as libjpeg has it (jdcolor.c)."""
    y = luma.astype(np.int64)
    cb, cr = blue.astype(np.int64) - 128, red.astype(np.int64) - 128
    parts = 91881 * cr, -22554 * cb - 46802 * cr, 116130 * cb
    rgb = np.stack([y + ((part + (1 << 15)) >> 16) for part in parts], axis=2)
    found: UInt8 = np.clip(rgb, 0, 255).astype(np.uint8)
    return found


def _neighbours(count: int, limit: int) -> tuple[Int64, Int64]:
    """For each of ``count`` pixels along an axis: the chroma sample that it lies in, and the one
    that is next to it; outside the plane the last one counts again."""
    at = np.arange(count)
    return at // 2, np.clip(at // 2 + np.where(at % 2, 1, -1), 0, limit - 1)


def upsampled(plane: UInt8, height: int, width: int) -> UInt8:
    """A chroma plane at the size of its picture, as libjpeg makes it (jdsample.c,
    h2v2_fancy_upsample): 3/4 of the sample that a pixel lies in and 1/4 of the next one, in each
    direction. Planes of one or two columns are repeated, as there."""
    (near_y, far_y), (near_x, far_x) = (
        _neighbours(*sides) for sides in zip((height, width), plane.shape, strict=True)
    )
    if plane.shape[1] <= 2:
        return plane[near_y[:, None], near_x]
    wide = plane.astype(np.int64)
    sums = 3 * wide[near_y] + wide[far_y]
    rounding = np.where(np.arange(width) % 2, 7, 8)
    return ((3 * sums[:, near_x] + sums[:, far_x] + rounding) >> 4).astype(np.uint8)


def convert_420_numpy(
    source: int, height: int, width: int, top: int, left: int, out: int, high: int, wide: int
) -> None:
    """Part of a picture of 4:2:0 planes at ``source`` as RGB (high, wide, 3) at ``out``: the same
    bytes as libjpeg makes of these planes."""
    luma, blue, red = _planes(source, height, width)
    part = slice(top, top + high), slice(left, left + wide)
    chroma = (upsampled(plane, height, width)[part] for plane in (blue, red))
    bytes_at(out, high * wide * 3).reshape(high, wide, 3)[:] = rgb_of(luma[part], *chroma)


def make_420_numpy(source: int, height: int, width: int, out: int) -> None:
    """The planes of RGB (height, width, 3) at ``source``: BT.601 with full range (JFIF 1.02), in
    1/65536; chroma is that of the mean of 2 x 2 pixels, or of those that there are at an edge."""
    rgb = bytes_at(source, height * width * 3).reshape(height, width, 3).astype(np.int64)
    luma, blue, red = _planes(out, height, width)
    luma[:] = (rgb @ (19595, 38470, 7471) + (1 << 15)) >> 16
    even = np.pad(rgb, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
    sums = even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]
    middle = (128 << 18) + (1 << 17)
    blue[:] = np.minimum((sums @ (-11059, -21709, 32768) + middle) >> 18, 255)
    red[:] = np.minimum((sums @ (32768, -27439, -5329) + middle) >> 18, 255)


def plan_planes_numpy(
    addresses: Int64,
    sizes: Int64,
    wanted: Int64,
    shares: Float64,
    draws: Float64,
    flips: UInt8,
    out: int,
    row_bytes: int,
    rows: Int64,
    magic: int,
    plan: Int64,
    boxes: Float64,
    parts: Int64,
) -> None:
    """twins.plan_jpegs_numpy of 4:2:0 planes, which begin with the eight bytes ``magic``.

    ``parts`` (B, 4): height and width of a picture, top and left of what is converted of it; its
    height and width are in ``plan``. This twin plans nothing.
    """
    plan[:, 6] = 0
