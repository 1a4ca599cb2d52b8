"""Encoded images in foreign sets: their format, and whether all have one size."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import DecodeError
from ..pixels import codec

Int64 = npt.NDArray[np.int64]

#: At most so many image headers are read to tell whether all pictures have one size.
_HEADERS: Final = 512


def image_kind(head: bytes) -> str | None:
    """ "JPEG", "PNG" or "WebP" by a value's first bytes, with which no other layout begins."""
    if head[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return None


def same_size(
    data: npt.NDArray[np.uint8], starts: Int64, sizes: npt.NDArray[Any]
) -> tuple[int, int] | None:
    """(H, W) of encoded images if all headers read agree: every one up to 512, else 512 of them.

    Another image of another size is a DecodeError when it is read, never a wrong pixel.
    """
    which = np.unique(np.linspace(0, starts.size - 1, _HEADERS).astype(np.int64))
    found: set[tuple[int, int]] = set()
    for start, size in zip(starts[which].tolist(), sizes[which].tolist(), strict=True):
        try:
            header = codec.read_header(data[start : start + size])
        except DecodeError:
            continue  # reading the sample raises the error
        found.add((header.height, header.width))
        if len(found) > 1:
            return None
    return next(iter(found), None)
