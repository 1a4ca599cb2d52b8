"""The structure of an image file to its end, without decoding a pixel."""

from __future__ import annotations

import re
from typing import Final

from ...errors import DecodeError
from . import planes
from .decoding import decode
from .headers import ImageHeader, check_png, read_header

_JPEG_MARKER: Final = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")
#: The same to search for: beginning with one plain byte, it is found 15 times faster.
_JPEG_NEXT: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def check_structure(data: bytes) -> ImageHeader:
    """Header, and the file's structure to its end, without decoding a pixel.

    JPEG: marker segments and scans to the end-of-image marker. PNG: every chunk's CRC to IEND.
    WebP, GIF, BMP, yuv420: the stated length. TIFF, PPM: what Pillow's ``verify`` checks.
    Raises DecodeError naming what is missing.
    """
    header = read_header(data)
    if header.kind == "jpeg":
        _check_jpeg(data)
        if header.loose and header.odd:  # its tables have not been looked at
            decode(data, 3, header=header)
    elif header.kind == "png":
        check_png(data)
    elif header.kind == "webp":
        stated = 8 + int.from_bytes(data[4:8], "little")
        if stated > len(data):
            raise DecodeError("truncated WebP", found=f"{len(data)} bytes", expected=stated)
    elif header.kind == "gif":
        if not data.rstrip(b"\0").endswith(b";"):
            raise DecodeError("truncated GIF: no trailer")
    elif header.kind == "bmp":
        stated = int.from_bytes(data[2:6], "little")
        if stated > len(data):
            raise DecodeError("truncated BMP", found=f"{len(data)} bytes", expected=stated)
    elif header.kind != planes.YUV420:  # its length has been compared
        # neither states its length or carries a check: only decoding tells
        decode(data, 3, header=header)
    return header


def _check_jpeg(data: bytes) -> None:
    at, scans = 2, 0
    while True:
        # what stands between the segments of its header has been looked at by read_header
        marker = (_JPEG_MARKER.match if scans else _JPEG_MARKER.search)(data, at)
        if marker is None:
            raise DecodeError(
                "truncated or damaged JPEG: no marker where one is due",
                found=f"byte {at} of {len(data)}",
            )
        at = marker.end()
        kind = data[at - 1]
        if kind == 0xD9:
            if not scans:
                raise DecodeError("damaged JPEG: it ends before its first scan")
            return
        size = int.from_bytes(data[at : at + 2], "big")
        if size < 2 or at + size > len(data):
            raise DecodeError("truncated JPEG: a segment runs past the end")
        at += size
        if kind == 0xDA:
            scans += 1
            following = _JPEG_NEXT.search(data, at)
            if following is None:
                raise DecodeError("truncated JPEG: no end-of-image marker")
            at = following.start()
