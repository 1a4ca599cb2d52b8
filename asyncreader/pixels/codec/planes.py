"""Pictures stored as 4:2:0 planes: their bytes, and RGB of them, whole or in part.

A stored picture is MAGIC, its width and its height (uint32, little-endian), and three planes of
uint8: luma (H, W), then both chroma planes, Cb and Cr, (ceil(H / 2), ceil(W / 2)) each: the samples
that a 4:2:0 JPEG codes, BT.601 with full range, chroma in the middle of 2 x 2 pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...errors import DecodeError, ParamsError
from ...system.array_types import UInt8
from ...system.memory import address_of
from .. import kernels
from ..tables import PLANES_HEADER

#: The encoding, and the kind of an image.
YUV420: Final = "yuv420"
MAGIC: Final = b"yuv420\0\0"
_SIZE: Final = struct.Struct("<II")


def halves(height: int, width: int) -> tuple[int, int]:
    """(H, W) of a chroma plane of a picture."""
    return (height + 1) // 2, (width + 1) // 2


def planes_bytes(height: int, width: int) -> int:
    """Bytes of a picture's planes."""
    high, wide = halves(height, width)
    return height * width + 2 * high * wide


def read_size(data: Any) -> tuple[int, int]:
    """(H, W) that the first bytes of ``data`` state; DecodeError where its length is another."""
    if len(data) < PLANES_HEADER:
        raise DecodeError("truncated yuv420", found=f"{len(data)} bytes")
    width, height = _SIZE.unpack_from(data, len(MAGIC))
    expected = PLANES_HEADER + planes_bytes(height, width)
    if len(data) != expected:
        raise DecodeError(
            f"not the length of yuv420 planes of {height} x {width} pixels (height x width)",
            found=f"{len(data)} bytes",
            expected=f"{expected} bytes",
        )
    return height, width


def encode(pixels: UInt8) -> bytes:
    """Pixels (H, W, 3) uint8 as a stored picture."""
    rgb = np.ascontiguousarray(pixels)
    height, width, _ = rgb.shape
    stored = np.empty(PLANES_HEADER + planes_bytes(height, width), np.uint8)
    stored[:PLANES_HEADER] = np.frombuffer(MAGIC + _SIZE.pack(width, height), np.uint8)
    kernels.make_420(rgb.ctypes.data, height, width, stored.ctypes.data + PLANES_HEADER)
    return stored.tobytes()


def check_served(encoding: str, asked: Mapping[str, bool], path: str) -> None:
    """ParamsError where planes cannot be handed out as they are: the set has another ``encoding``,
    or something is asked for that changes them."""
    if encoding != YUV420:
        raise ParamsError(
            'layout="planes" is for datasets of encoding yuv420',
            path=path,
            found=f"encoding {encoding}",
            hint="convert the dataset with encoding 'yuv420' (--encoding yuv420), or pass "
            'layout="NCHW" or "NHWC"',
        )
    changes = [name for name, there in asked.items() if there]
    if changes:
        raise ParamsError(
            'layout="planes" serves planes as they are stored',
            path=path,
            found=f"{' and '.join(changes)} asked for",
            hint='leave that to the code that converts them, or pass layout="NCHW" or "NHWC"',
        )


def stored_planes(data: Any) -> UInt8:
    """The planes of a stored picture, one after the other."""
    return np.frombuffer(data, np.uint8)[PLANES_HEADER:]


def decode(
    data: Any,
    height: int,
    width: int,
    part: tuple[int, int, int, int] | None = None,
    scratch: UInt8 | None = None,
) -> UInt8:
    """Pixels (H, W, 3) of a stored picture, whose size :func:`read_size` has found, or of a
    ``part`` of it: top, left, height and width. The same bytes as libjpeg makes of the planes.

    ``scratch`` (1-D uint8) lends memory.
    """
    top, left, high, wide = part or (0, 0, height, width)
    size = high * wide * 3
    scratch = np.empty(size, np.uint8) if scratch is None else scratch
    pixels = scratch[:size].reshape(high, wide, 3)
    source, out = stored_planes(data).ctypes.data, address_of(pixels)
    kernels.convert_420(source, height, width, top, left, out, high, wide)
    return pixels
