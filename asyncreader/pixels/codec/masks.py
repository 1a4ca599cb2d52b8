"""Pictures whose values are numbers: label maps, and grey pictures of 16 bits such as depth maps.

They are decoded to those numbers; label maps are resized by nearest neighbour. A palette picture
gives its palette indices (Pascal VOC's classes), not the colours; grey of 8 or 16 bits is given as
it is, 1 bit as 0 and 1; colours are three channels, of 16 bits from PNG and PPM only; alpha is
dropped. Orientation is applied as everywhere (codec).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import DecodeError
from ...system.array_types import Array, Int64
from .decoding import decode, encode, png_pixels, stored_pixels, upright
from .headers import read_header
from .jpeg import Buffer, is_grey_jpeg


def decode_values(data: Buffer) -> Array:
    """Upright values, (H, W, C) uint8 or uint16 with C 1 or 3, of any image that the codec reads.

    Raises DecodeError for what is damaged, or holds numbers that uint16 does not.
    """
    header = read_header(data)
    if header.kind == "jpeg":
        return decode(data, 1 if is_grey_jpeg(data) else 3, header=header)
    if header.kind == "png" and (channels := _plain_png(data)):
        # the decoder adds a channel where a colour means "transparent"
        values: Array = png_pixels(data)[:, :, :channels]
    else:
        values = stored_pixels(data, header)
    return upright(values, header.orientation)


def _plain_png(data: Buffer) -> int:
    """Channels without alpha of a PNG whose values the fast decoder does not change (IHDR: 8 or 16
    bits, grey or RGB), else 0."""
    depth, colour = memoryview(data)[24:26]
    return {0: 1, 2: 3, 4: 1, 6: 3}.get(colour, 0) if depth in (8, 16) else 0


def encode_values(values: Array) -> bytes:
    """(H, W, 1 or 3) uint8 or uint16 as a PNG file's bytes: lossless."""
    return encode(values, "png")


def check_values(values: Array, channels: int, dtype: np.dtype[Any]) -> Array:
    """``values`` if they have these channels and this dtype, else DecodeError."""
    if values.shape[2] != channels or values.dtype != dtype:
        raise DecodeError(
            "the image's channels or dtype are not those of its dataset",
            found=f"{values.shape[2]} channels of {values.dtype}",
            expected=f"{channels} of {dtype}",
        )
    return values


def pick(values: Array, rows: Int64, columns: Int64, out: Array) -> None:
    """``out`` (H, W, C) = ``values`` (h, w, C) at ``rows`` and ``columns``; dtypes may differ."""
    lines = values[rows]
    if out.flags.c_contiguous and lines.dtype == out.dtype:
        np.take(lines, columns, axis=1, out=out, mode="clip")
    else:
        np.copyto(out, lines[:, columns], casting="unsafe")
