"""Thumbnails as they go into a page: small files as ``data:`` URIs."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

from ..system.array_types import UInt8
from .thumbnails import fit

#: Pictures up to this long are kept as they are, in PNG, and enlarged by the browser.
TINY = 48


class Thumb(NamedTuple):
    """One small picture of the page."""

    record: int
    kind: str
    data: bytes
    width: int
    height: int
    tiny: bool
    words: str = ""
    path: str = ""

    @property
    def uri(self) -> str:
        """Its bytes as a ``data:`` URI (RFC 2397)."""
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode('ascii')}"

    @property
    def title(self) -> str:
        """Its record number, its label in words and where it was packed from."""
        return ", ".join(filter(None, (f"record {self.record}", self.words, self.path)))


def thumb_of(record: int, pixels: UInt8, side: int) -> Thumb:
    """``pixels`` (H, W, 3) at most ``side`` long: JPEG, or PNG where each pixel counts."""
    from PIL import Image

    tiny = max(pixels.shape[:2]) <= TINY
    small = pixels if tiny else fit(pixels, side)
    encoded = io.BytesIO()
    kind = "png" if tiny else "jpeg"
    Image.fromarray(small).save(encoded, kind.upper(), **({} if tiny else {"quality": 80}))
    return Thumb(record, kind, encoded.getvalue(), small.shape[1], small.shape[0], tiny)
