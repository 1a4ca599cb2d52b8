"""Pictures stored as 4:2:0 planes: their bytes, and RGB of them, whole, in part or resized.

A stored picture is MAGIC, its width and its height (uint32, little-endian), and three planes of
uint8: luma (H, W), then both chroma planes, Cb and Cr, (ceil(H / 2), ceil(W / 2)) each: the samples
that a 4:2:0 JPEG codes, BT.601 with full range, chroma in the middle of 2 x 2 pixels.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..array_types import UInt8
from ..errors import DecodeError
from . import geometry, kernels, twins
from .planes_twins import planes_bytes

#: The encoding, and the kind of an image.
YUV420: Final = "yuv420"
MAGIC: Final = b"yuv420\0\0"
#: Bytes before the planes.
HEADER: Final = len(MAGIC) + 8


def read_size(data: Any) -> tuple[int, int]:
    """(H, W) that the first bytes of ``data`` state; DecodeError where its length is another."""
    head = bytes(memoryview(data)[:HEADER])
    if len(head) < HEADER:
        raise DecodeError("truncated yuv420", found=f"{len(head)} bytes")
    width, height = np.frombuffer(head, "<u4", 2, len(MAGIC)).tolist()
    expected = HEADER + planes_bytes(height, width)
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
    stored = np.empty(HEADER + planes_bytes(height, width), np.uint8)
    head = MAGIC + np.array((width, height), "<u4").tobytes()
    stored[:HEADER] = np.frombuffer(head, np.uint8)
    kernels.make_420(rgb.ctypes.data, height, width, stored.ctypes.data + HEADER)
    return stored.tobytes()


class Planes:
    """The planes of a stored picture, ``data`` as :func:`read_size` has found it.

    ``shape`` and ``dtype`` are those of its pixels, (H, W, 3) uint8.
    """

    dtype: Final = np.dtype(np.uint8)

    def __init__(self, data: Any, height: int, width: int) -> None:
        #: The planes as they are stored, one after the other.
        self.stored: UInt8 = np.frombuffer(data, np.uint8)[HEADER:]
        self._address = self.stored.ctypes.data
        self.shape = height, width, 3

    def pixels(self, scratch: UInt8 | None = None) -> UInt8:
        """All pixels; ``scratch`` (1-D uint8) lends memory, where it has enough."""
        size = self.shape[0] * self.shape[1] * 3
        enough = scratch is not None and scratch.size >= size
        memory = scratch[:size] if scratch is not None and enough else np.empty(size, np.uint8)
        pixels = memory.reshape(self.shape)
        self._convert(pixels, 0, 0, False)
        return pixels

    def resize_into(self, out: UInt8, box: geometry.Box, interpolation: str, flip: bool) -> None:
        """What :func:`geometry.resize_into` makes of the pixels, to a level or two, without making
        them: the planes are resized. ``box``: of whole pixels."""
        high, wide = out.shape[:2]
        top, left, tall, broad = map(int, box)
        if (tall, broad) == (high, wide):
            self._convert(out, top, left, flip)
        elif interpolation == "nearest" or any(
            geometry.reach(length, size) for length, size in ((tall, high), (broad, wide))
        ):
            part = np.empty((tall, broad, 3), np.uint8)
            self._convert(part, top, left, False)
            geometry.resize_into(part, out, None, interpolation, flip)
        else:
            method = geometry.METHODS[interpolation]
            kernels.resize_420(
                self._address,
                self._address + self.stored.size,
                *self.shape[:2],
                np.array((top, top + tall, left, left + broad), np.int64),
                np.array(box, np.float64),
                method,
                twins.taps(tall / high, method, tall),
                twins.taps(broad / wide, method, broad),
                flip,
                out.ctypes.data,
                high,
                wide,
            )

    def _convert(self, out: UInt8, top: int, left: int, flip: bool) -> None:
        size = self.shape[:2]
        kernels.convert_420(self._address, *size, top, left, flip, out.ctypes.data, *out.shape[:2])
