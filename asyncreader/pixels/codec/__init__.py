"""Image bytes <-> upright pixels.

Every encoding decodes to the same picture: (H, W, 3) RGB or (H, W, 1) grey, uint8, turned as
Pillow's ``ImageOps.exif_transpose`` turns it: by the orientation in EXIF (CIPA DC-008, tag 0x0112),
in ImageMagick's profile fields of a PNG, or in XMP. Alpha is dropped, 16-bit samples keep their
high byte (masks.py reads all 16 bits), palettes are looked up, CMYK is converted as Pillow does,
and of an animation the first frame is taken. Dimensions come from the header and are compared with
``MAX_PIXELS`` before any decoding, and decoders are strict: a damaged file is a
DecodeError, never a partly grey picture.
"""

from __future__ import annotations

from .decoding import (
    Decoded,
    decode,
    decode_part,
    encode,
    png_pixels,
    reduction,
    stored_pixels,
    upright,
)
from .headers import (
    IMAGE_SUFFIXES,
    PILLOW_FORMATS,
    ImageHeader,
    check_depth,
    read_header,
    read_plain_header,
    sniff,
)
from .jpeg_segments import MAX_PIXELS, MAX_SCANS, Buffer, is_grey_jpeg
from .structure import check_structure

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "MAX_SCANS",
    "PILLOW_FORMATS",
    "Buffer",
    "Decoded",
    "ImageHeader",
    "check_depth",
    "check_structure",
    "decode",
    "decode_part",
    "encode",
    "is_grey_jpeg",
    "png_pixels",
    "read_header",
    "read_plain_header",
    "reduction",
    "sniff",
    "stored_pixels",
    "upright",
]
