"""Encoded images in foreign sets: their format, their depth, and whether all have one size."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..errors import DecodeError
from ..pixels import codec
from ..pixels.specs import SampleSpec
from ..system.array_types import Array, Int64, UInt8

#: At most so many image headers are read to tell whether all pictures have one size; and where that
#: is known, whether they have 16 bits.
_HEADERS: Final = 512
_OF_KNOWN_SIZE: Final = 16


def image_kind(head: bytes) -> str | None:
    """ "JPEG", "PNG" or "WebP" by a value's first bytes, with which no other layout begins."""
    if head[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return None


def stored_images(
    data: UInt8,
    starts: Int64,
    sizes: Array,
    shape: tuple[int, int, int] | None = None,
    channels: int = 3,
    look: bool = True,
) -> SampleSpec:
    """What image files in ``data`` hold, by their headers: every one up to 512, else 512 of them.

    Grey pictures of 16 bits, if all are, are uint16 numbers of one channel. ``look``: their shape,
    too, if all have one; else it is ``shape``. A picture of another size or depth than this says is
    a DecodeError when it is read, never a wrong pixel.
    """
    most = _HEADERS if look else _OF_KNOWN_SIZE
    which = np.unique(np.linspace(0, starts.size - 1, most).astype(np.int64))
    found: set[tuple[int, int]] = set()
    deep: set[bool] = set()
    for start, size in zip(starts[which].tolist(), sizes[which].tolist(), strict=True):
        try:
            header = codec.read_header(data[start : start + size])
        except DecodeError:
            continue  # reading the sample raises the error
        found.add((header.height, header.width))
        deep.add(header.deep == "grey")
        if len(found) > 1 and False in deep:
            break
    if deep == {True}:
        channels, shape = 1, shape and (*shape[:2], 1)
    if look and len(found) == 1:
        shape = (*found.pop(), channels)
    dtype = np.dtype(np.uint16 if deep == {True} else np.uint8)
    return SampleSpec(shape, dtype, "HWC", "original", channels, values=deep == {True})
