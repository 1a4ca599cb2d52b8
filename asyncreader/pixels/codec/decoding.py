"""Decodes images to upright pixels or numbers, encodes pixels, and checks whole files."""

from __future__ import annotations

import importlib
import io
import logging
import re
import sys
import threading
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ...errors import DecodeError
from ...system.array_types import Array, UInt8
from ...system.memory import SCRATCH
from ...system.text import sides
from .. import shared
from . import headers, jpeg, planes
from .headers import ImageHeader, damage, pillow_open, read_header
from .jpeg import Buffer, plain_jpeg, walk_jpeg

Pixels: TypeAlias = Array

#: What to do where imagecodecs is needed.
INSTALL: Final = "pip install -e '.[codecs]' in asyncreader's checkout"


#: imagecodecs as it was loaded last; False where it was looked for and is not installed.
_imagecodecs: Any = None


def find_imagecodecs() -> Any | None:
    """imagecodecs, or None where it is not installed; ImportError where it cannot be loaded.

    Each chunk and picture asks: to search for a module that is not there takes longer than to
    decode one.
    """
    global _imagecodecs
    there = sys.modules.get("imagecodecs", False)
    if there is _imagecodecs:  # of one that another thread still loads this is not so
        return None if there is False else there
    try:
        _imagecodecs = importlib.import_module("imagecodecs")
    except ModuleNotFoundError as exc:
        if exc.name != "imagecodecs":
            raise
        _imagecodecs = sys.modules.get("imagecodecs", False)
        return None
    return _imagecodecs


def decode(
    data: Buffer,
    channels: int,
    *,
    header: ImageHeader | None = None,
    min_size: tuple[int, int] | None = None,
    min_factor: float = 2,
    scratch: UInt8 | None = None,
) -> UInt8:
    """Upright pixels, (H, W, channels) uint8, of any image we read.

    With ``min_size`` (H, W), a JPEG may be decoded smaller (in its DCT, by 2, 4 or 8 as
    ``min_factor`` allows) as long as both sides stay at least that long. ``scratch`` (1-D uint8)
    lends memory, if it has enough for RGB: the result may be a view of it.
    Raises DecodeError for anything damaged, truncated, too large or not an image.
    """
    header = header or read_header(data)
    if scratch is not None and scratch.size < header.height * header.width * 3:
        scratch = None
    if header.odd:
        if header.kind == "jpeg" and not header.loose:
            _check_cmyk(data)
        pixels = _pillow_pixels(data, header)
    elif header.kind == planes.YUV420:
        pixels = planes.decode(data, header.height, header.width, scratch=scratch)
    elif header.kind == "png":
        pixels = png_pixels(data)
    else:
        jpeg = plain_jpeg(data) if header.loose else data
        pixels = _decode_jpeg(jpeg, header.orientation, min_size, min_factor, scratch)
    return with_channels(check_size(pixels, header, min_size is not None), channels)


def check_size(pixels: Pixels, header: ImageHeader, reduced: bool = False) -> Pixels:
    """``pixels`` (H, W, C) if they are of the size that ``header`` states, or if ``reduced`` of a
    size that the JPEG decoder makes of it; else DecodeError: the header was read before."""
    size, full = (pixels.shape[0], pixels.shape[1]), (header.height, header.width)
    if size == full or (reduced and any(_scaled(full, n) == size for n in range(1, 8))):
        return pixels
    raise DecodeError(
        "the image has another size than its header stated",
        found=sides(*size),
        expected=sides(*full),
        hint="never write to a dataset that is in use: convert to a new one",
    )


def _decode_jpeg(
    data: Buffer,
    orientation: int,
    min_size: tuple[int, int] | None,
    min_factor: float,
    scratch: UInt8 | None,
) -> UInt8:
    import simplejpeg

    low_h, low_w = (min_size[::-1] if orientation >= 5 else min_size) if min_size else (0, 0)
    with damage("damaged JPEG"):
        pixels: UInt8 = simplejpeg.decode_jpeg(
            data,
            colorspace="RGB",
            min_height=low_h,
            min_width=low_w,
            min_factor=min_factor if min_size else 1,
            buffer=scratch,
        )
    return upright(pixels, orientation)


class Decoded(NamedTuple):
    """Pixels (H, W, C) of a picture, or of a part: they begin at row ``top`` and column ``left`` of
    those of the whole picture, whose shape is ``whole``."""

    pixels: UInt8
    top: int
    left: int
    whole: tuple[int, int]


class Shown(NamedTuple):
    """What is needed of a picture. ``part``: top, left, height and width in the upright picture of
    full size; there, and ``reach`` (down, across) pixels of the result around it, the pixels are
    those of the whole; None: all of it. ``min_size``: see :func:`decode`."""

    part: tuple[int, int, int, int] | None = None
    reach: tuple[int, int] = (0, 0)
    min_size: tuple[int, int] | None = None


def decode_part(data: Buffer, channels: int, header: ImageHeader, shown: Shown) -> Decoded:
    """All of a picture, as :func:`decode` gives it, or what is ``shown``: of planes, and where a
    JPEG has restart markers and that costs less. The pixels may lie in memory that this thread
    reuses."""
    if header.kind == planes.YUV420 and shown.part is not None:
        return _decode_planes(data, channels, header, shown.part, shown.reach)
    found = _decode_cut(data, channels, header, shown)
    if found is not None:
        return found
    scratch = SCRATCH.take("decode", header.height * header.width * 3)
    pixels = decode(data, channels, header=header, min_size=shown.min_size, scratch=scratch)
    return Decoded(pixels, 0, 0, (pixels.shape[0], pixels.shape[1]))


def _decode_planes(
    data: Buffer, channels: int, header: ImageHeader, part: tuple[int, ...], reach: tuple[int, int]
) -> Decoded:
    full = header.height, header.width
    top, left = max(0, part[0] - reach[0]), max(0, part[1] - reach[1])
    high = min(full[0], part[0] + part[2] + reach[0]) - top
    wide = min(full[1], part[1] + part[3] + reach[1]) - left
    scratch = SCRATCH.take("decode", high * wide * 3)
    pixels = planes.decode(data, *full, (top, left, high, wide), scratch)
    return Decoded(with_channels(pixels, channels), top, left, full)


def _decode_cut(data: Buffer, channels: int, header: ImageHeader, shown: Shown) -> Decoded | None:
    """The part of a JPEG that is shown, where it can be cut out and that costs less."""
    part, (down, across), min_size = shown.part, shown.reach, shown.min_size
    if header.facts is None or part is None:
        return None
    full, turned = (header.height, header.width), header.orientation
    eighths = shared.eighths(*full, *min_size) if min_size else 8
    if eighths < 8:  # the part begins and ends within a pixel
        down, across = -(-8 * (down + 1) // eighths), -(-8 * (across + 1) // eighths)
    rows = part[0] - down, part[0] + part[2] + down
    columns = part[1] - across, part[1] + part[3] + across
    rows_turned, columns_turned = _turned(turned)
    if rows_turned:
        rows = full[0] - rows[1], full[0] - rows[0]
    if columns_turned:
        columns = full[1] - columns[1], full[1] - columns[0]
    if turned >= 5:
        rows, columns = columns, rows
    stored = rows[0], columns[0], rows[1], columns[1]
    cut = jpeg.cut(data, header.facts, stored, eighths, SCRATCH.take("cut", jpeg.most(data)))
    if cut is None:
        return None
    smaller, (top, left, bottom, right) = cut
    shape = bottom - top, right - left
    if turned >= 5:
        shape, top, left = shape[::-1], left, top
    scratch = SCRATCH.take("decode", shape[0] * shape[1] * 3)
    shape = _scaled(shape, eighths)
    try:
        pixels = _decode_jpeg(smaller, turned, shape if eighths < 8 else None, 2, scratch)
    except DecodeError:
        return None  # decoding all of it says what is wrong
    if pixels.shape[:2] != shape:
        return None
    whole = _scaled(full, eighths)
    top, left = top * eighths // 8, left * eighths // 8  # they are multiples of 8
    if rows_turned:
        top = whole[0] - top - shape[0]
    if columns_turned:
        left = whole[1] - left - shape[1]
    return Decoded(with_channels(pixels, channels), top, left, whole)


def _scaled(size: tuple[int, int], eighths: int) -> tuple[int, int]:
    return -(-size[0] * eighths // 8), -(-size[1] * eighths // 8)


def _turned(orientation: int) -> tuple[bool, bool]:
    """Whether the rows and the columns of an upright picture are the other way round than those
    that are stored (as columns and rows, from 5 on)."""
    return orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


def _check_cmyk(data: Buffer) -> None:
    """DecodeError for a damaged JPEG of four channels: Pillow shows what it can of it."""
    import simplejpeg

    with damage("damaged JPEG"):
        simplejpeg.decode_jpeg(data, colorspace="CMYK", min_height=1, min_width=1, min_factor=2)


def reduction(header: ImageHeader, shape: tuple[int, ...]) -> tuple[float, float, float]:
    """(s, y, x) of a picture that :func:`decode` gave at ``shape`` (H, W, C): what lies at
    (row, column) of the full picture lies at (row * s + y, column * s + x) of those pixels.

    The JPEG decoder rounds the size up: its last pixels stand for more than there is of the
    picture, and are the first ones where it was turned.
    """
    full, actual = (header.height, header.width), (shape[0], shape[1])
    if full == actual:
        return 1.0, 0.0, 0.0
    eighths = (n for n in range(1, 8) if _scaled(full, n) == actual)
    scale = next(eighths) / 8  # the decoder takes the smallest that is enough
    rows_turned, columns_turned = _turned(header.orientation)
    return (
        scale,
        actual[0] - full[0] * scale if rows_turned else 0.0,
        actual[1] - full[1] * scale if columns_turned else 0.0,
    )


def png_pixels(data: Buffer) -> UInt8:
    """Stored pixels (H, W, C) of a PNG; DecodeError for a damaged one. ImportError for 16 bits that
    are not grey where imagecodecs is not installed: Pillow would halve them."""
    imagecodecs = find_imagecodecs()
    if imagecodecs is None:
        return _png_by_pillow(data)
    _UNLOGGED.decoding = True
    try:
        with damage("damaged PNG"):
            pixels = _png_by_imagecodecs(imagecodecs, data)
    finally:
        _UNLOGGED.decoding = False
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _png_by_imagecodecs(imagecodecs: Any, data: Buffer) -> UInt8:
    """A PNG decoded into memory of ours. Of a damaged one for which it had made the array itself
    imagecodecs (2026.3.6) drops a reference to None more than it has, and after some 8,000 of these
    Python aborts; and the array is never freed."""
    size, channels, dtype = headers.png_shape(data)
    try:
        decoded: UInt8 = imagecodecs.png_decode(data, out=np.empty((*size, *channels), dtype))
    except ValueError:  # the shape is another: there is an alpha channel in a tRNS chunk
        with_alpha = channels[0] + 1 if channels else 2
        decoded = imagecodecs.png_decode(data, out=np.empty((*size, with_alpha), dtype))
    return decoded


def _png_by_pillow(data: Buffer) -> UInt8:
    depth, colour = memoryview(data)[24:26]
    if depth == 16 and colour != 0:
        raise ImportError(f"16 bits of PNG other than grey need imagecodecs: {INSTALL}")
    headers.check_png(data, all_chunks=False)  # Pillow reads past a wrong CRC
    with damage("damaged PNG"), pillow_open(data) as image:
        _load(image)
        pixels: UInt8 = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


class _Unlogged(threading.local):
    """Drops what imagecodecs logs in a thread while it decodes a PNG here: libpng's warnings about
    chunks that are no part of the pixels (a sloppy colour profile), for every picture again. What
    is wrong with the pixels is an error. What others have imagecodecs do is logged as ever."""

    decoding = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is logged."""
        return not self.decoding


_UNLOGGED: Final = _Unlogged()
logging.getLogger("imagecodecs").addFilter(_UNLOGGED)


def _pillow_pixels(data: Buffer, header: ImageHeader) -> UInt8:
    with damage(f"damaged {header.kind.upper()}"), pillow_open(data) as image:
        _load(image)
        mode = image.mode
        if mode.startswith("I"):  # 16-bit grey: Pillow's own conversion would clip at 255
            if header.kind == "tiff" and not mode.startswith("I;16"):
                raise DecodeError("32-bit pixels are not read", found=f"mode {mode}")
            grey = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
            pixels: UInt8 = grey[:, :, None]
        elif mode == "F":
            raise DecodeError("floating-point pixels are not read", found="mode F")
        else:
            if mode in ("P", "PA"):  # a palette's transparency goes by way of RGBA
                image = image.convert("RGBA")
            target = "L" if mode in ("1", "L", "LA", "La") else "RGB"
            pixels = np.asarray(image.convert(target))
            if pixels.ndim == 2:
                pixels = pixels[:, :, None]
    return upright(pixels, header.orientation)


def _load(image: Any) -> None:
    from PIL import Image

    try:
        image.load()
    except Image.DecompressionBombError as exc:
        raise DecodeError("image dimensions out of range", found=str(exc)) from exc


def with_channels(pixels: UInt8, channels: int) -> UInt8:
    """Pixels (H, W, 1) or (H, W, 3) as grey or RGB."""
    if pixels.shape[2] == channels:
        return pixels
    if pixels.shape[2] not in (1, 3):
        raise DecodeError("the image has other channels than its header stated")
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]


def upright(pixels: UInt8, orientation: int) -> UInt8:
    """Turn stored pixels (H, W, C) as the EXIF orientation (1 to 8) says."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    # after the transpose: 5 nothing more, 6 mirror, 7 both, 8 upside down
    rows_turned, columns_turned = _turned(orientation)
    if columns_turned:
        pixels = pixels[:, ::-1]
    if rows_turned:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def encode(pixels: Pixels, encoding: str, quality: int = 90) -> bytes:
    """Pixels (H, W, 1 or 3) as a "jpeg" (uint8; 4:2:0) or "png" (uint8, uint16) file's bytes; of
    three channels of uint8 as the planes of "yuv420"."""
    pixels = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("="))
    grey = pixels.shape[2] == 1
    if encoding == "jpeg":
        import simplejpeg

        jpeg: bytes = simplejpeg.encode_jpeg(
            pixels,
            quality=quality,
            colorspace="GRAY" if grey else "RGB",
            colorsubsampling="Gray" if grey else "420",
        )
        return jpeg
    if encoding == planes.YUV420:
        return planes.encode(pixels)
    imagecodecs = find_imagecodecs()
    if imagecodecs is not None:
        return bytes(imagecodecs.png_encode(pixels[:, :, 0] if grey else pixels, level=3))
    if pixels.dtype != np.uint8 and not grey:
        raise ImportError(f"16 bits of PNG other than grey need imagecodecs: {INSTALL}")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if grey else pixels).save(file, "PNG", compress_level=3)
    return file.getvalue()


# -- pictures whose values are numbers: label maps, and grey of 16 bits such as depth maps ---------


def decode_values(data: Buffer) -> Array:
    """Upright values, (H, W, C) uint8 or uint16 with C 1 or 3, of any image that the codec reads.

    A palette picture gives its palette indices (Pascal VOC's classes), not the colours; grey of 8
    or 16 bits is given as it is, 1 bit as 0 and 1; colours are three channels, of 16 bits from PNG
    and PPM only; alpha is dropped. Raises DecodeError for what is damaged, or holds numbers that
    uint16 does not.
    """
    header = read_header(data)
    if header.kind == "jpeg":
        return decode(data, 1 if len(walk_jpeg(data).sampling) == 1 else 3, header=header)
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


def stored_pixels(data: Buffer, header: ImageHeader) -> Pixels:
    """What Pillow finds stored, not turned: (H, W, 1) palette indices or grey (uint16 above 8 bits,
    0 and 1 of one bit), else (H, W, 3) RGB. DecodeError for what is damaged or beyond uint16.

    A PGM or PPM gives its numbers, which Pillow stretches to 255 or 65535."""
    if header.kind == "ppm" and memoryview(data)[1] not in b"14":
        return _ppm_values(data, header)
    if header.deep == "colour":
        raise DecodeError(
            f"colours of 16 bits are not read from {header.kind.upper()}",
            hint="convert it to PNG, or to 8 bits",
        )
    with damage(f"damaged {header.kind.upper()}"), pillow_open(data) as image:
        _load(image)
        mode = image.mode
        if mode in ("LA", "La", "PA"):
            image = image.getchannel(0)
        elif mode not in ("1", "L", "P", "I", "F") and not mode.startswith("I;16"):
            image = image.convert("RGB")
        pixels: Pixels = np.asarray(image)
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    elif pixels.dtype != np.uint8:
        if pixels.dtype.kind == "f" or int(pixels.min()) < 0 or int(pixels.max()) > 65_535:
            raise DecodeError("numbers that uint16 cannot hold", found=f"mode {mode}")
        pixels = pixels.astype(np.uint16)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _ppm_values(data: Buffer, header: ImageHeader) -> Pixels:
    """The numbers of a PGM or PPM: (H, W, 1 or 3), uint16 where the largest may be above 255."""
    found = headers.PPM_VALUES.match(bytes(memoryview(data)[: headers.PPM_LONGEST]))
    if found is None:
        raise DecodeError("damaged PPM header")
    letter, most = memoryview(data)[1], int(found[1])
    channels = 1 if letter in b"25" else 3
    dtype = np.dtype(np.uint8 if most < 256 else ">u2")
    count = header.height * header.width * channels
    with damage("damaged PPM"):
        if letter in b"56":
            pixels: Pixels = np.frombuffer(data, dtype, count, found.end())
        else:
            words = re.sub(rb"#[^\r\n]*", b"", bytes(data)[found.end() :]).split(None, count)
            pixels = np.array(words[:count]).astype(np.int64)
        if pixels.size != count or not 0 <= int(pixels.min()) <= int(pixels.max()) <= most:
            raise DecodeError("damaged PPM", expected=f"{count} numbers of at most {most}")
        pixels = pixels.astype(dtype.newbyteorder("="))
    return pixels.reshape(header.height, header.width, channels)


# -- a whole file -------------------------------------------------------------------------------


#: Kinds that state their length: their name, what is to be added, and where it stands.
_STATED: Final = {"webp": ("WebP", 8, 4), "bmp": ("BMP", 0, 2)}


def check_structure(data: bytes) -> ImageHeader:
    """Header, and the file's structure to its end, without decoding a pixel.

    JPEG: marker segments and scans to the end-of-image marker. PNG: every chunk's CRC to IEND.
    WebP, GIF, BMP, yuv420: the stated length. TIFF, PPM: what Pillow's ``verify`` checks.
    Raises DecodeError naming what is missing.
    """
    header = read_header(data)
    if header.kind == "jpeg":
        jpeg.check_jpeg(data)
        if header.loose and header.odd:  # its tables have not been looked at
            decode(data, 3, header=header)
    elif header.kind == "png":
        headers.check_png(data)
    elif header.kind in _STATED:
        name, more, at = _STATED[header.kind]
        stated = more + int.from_bytes(data[at : at + 4], "little")
        if stated > len(data):
            raise DecodeError(f"truncated {name}", found=f"{len(data)} bytes", expected=stated)
    elif header.kind == "gif":
        if not data.rstrip(b"\0").endswith(b";"):
            raise DecodeError("truncated GIF: no trailer")
    elif header.kind != planes.YUV420:  # its length has been compared
        # neither states its length or carries a check: only decoding tells
        decode(data, 3, header=header)
    return header
