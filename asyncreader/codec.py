"""Image bytes <-> upright pixels.

Every encoding decodes to the same picture: (H, W, 3) RGB or (H, W, 1) grey, uint8, turned as its
EXIF orientation says (CIPA DC-008, tag 0x0112). Alpha is dropped, 16-bit samples keep their high
byte, palettes are looked up, CMYK is converted as Pillow does, and of an animation the first frame
is taken. Dimensions come from the header and are held against ``MAX_PIXELS`` before any decoding,
and decoders are strict: a damaged file is a DecodeError, never a partly grey picture.
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import DecodeError

UInt8: TypeAlias = npt.NDArray[np.uint8]
Pixels: TypeAlias = npt.NDArray[Any]
#: Anything with the buffer protocol (collections.abc.Buffer is Python 3.12's).
Buffer: TypeAlias = Any

#: Above this an image is refused by its header: Pillow's own warning limit (about 9,459 squared).
MAX_PIXELS: Final = 89_478_485

#: Scans of a progressive JPEG, and pixels in all of them: usual encoders make 10, none 100.
MAX_SCANS: Final = 256
_SCANNED: Final = 32 * MAX_PIXELS
#: Marker segments before a JPEG's first scan: a colour profile takes 255 at most.
_JPEG_SEGMENTS: Final = 4096

#: The only decoders that Pillow may pick, whatever the bytes claim.
PILLOW_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

#: File name suffixes that count as pictures when a folder is packed (lower case).
IMAGE_SUFFIXES: Final = frozenset(
    f".{suffix}"
    for suffix in "jpg jpeg jpe jfif png webp gif bmp dib tif tiff ppm pgm pbm pnm".split()  # noqa: SIM905
)

_JPEG_FILL: Final = re.compile(rb"\xff+")
#: Width and height of a PPM, after any white space and comments.
_PPM_HEADER: Final = re.compile(
    rb"P\d(?:\s|#[^\r\n]*[\r\n])+\d{1,9}(?:\s|#[^\r\n]*[\r\n])+\d{1,9}\s"
)
_PPM_LONGEST: Final = 1 << 14
_PNG: Final = b"\x89PNG\r\n\x1a\n"

#: What Pillow raises for damaged files (found by flipping bytes), and its warnings where they are
#: errors.
_DAMAGE: Final = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    RuntimeError,
    AttributeError,
    struct.error,
    zlib.error,
    Warning,
)


@dataclass(frozen=True)
class ImageHeader:
    """What the first bytes say: ``height`` and ``width`` are those of the upright picture."""

    kind: str
    height: int
    width: int
    orientation: int = 1
    #: Decoded by Pillow (slow) because the fast decoder does not do this variety.
    odd: bool = False


def sniff(data: Buffer) -> str:
    """Kind of image by its first bytes, never by a name; DecodeError if it is none we read."""
    head = bytes(memoryview(data)[:12])
    if head[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if head[:8] == _PNG:
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if head[:2] == b"BM":
        return "bmp"
    if head[:4] in (b"II*\0", b"MM\0*"):
        return "tiff"
    if head[:1] == b"P" and head[1:2] in b"123456" and len(head) > 2:
        return "ppm"
    if not head:
        raise DecodeError("an empty file is not an image")
    raise DecodeError(
        "not an image of a kind that is read",
        found=f"first bytes {head[:4]!r}",
        expected="JPEG, PNG, WebP, GIF, BMP, TIFF or PPM",
    )


def read_header(data: Buffer) -> ImageHeader:
    """Kind and upright size, checked against MAX_PIXELS; DecodeError if there is no header."""
    kind = sniff(data)
    if kind == "jpeg":
        header = _jpeg_header(data)
    elif kind == "png":
        header = _png_header(data)
    else:
        if kind == "webp":
            _check_webp(data)  # Pillow allocates the canvas when it opens one
        elif kind == "ppm" and _PPM_HEADER.match(bytes(memoryview(data)[:_PPM_LONGEST])) is None:
            raise DecodeError("damaged image header")  # Pillow reads it letter by letter
        with _pillow_open(data) as image:
            width, height = image.size
            turned = 1
            if kind != "tiff":  # which Pillow turns by itself, and states the size of so
                with contextlib.suppress(*_DAMAGE):
                    turned = image.getexif().get(0x0112, 1)
        turned = turned if turned in range(1, 9) else 1
        if turned >= 5:
            height, width = width, height
        header = ImageHeader(kind, height, width, turned, odd=True)
    _check_size(header.height, header.width)
    return header


def _check_size(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise DecodeError(
            "image dimensions out of range",
            found=f"{height} x {width}",
            expected=f"1 to {MAX_PIXELS} pixels",
        )


def _jpeg_header(data: Buffer) -> ImageHeader:
    import simplejpeg

    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as exc:
        raise DecodeError("damaged JPEG header", found=str(exc)) from exc
    facts = _walk_jpeg(data)
    _check_scans(data, facts, height * width)
    orientation = facts.orientation
    if orientation >= 5:
        height, width = width, height
    odd = colorspace in ("CMYK", "YCCK")
    return ImageHeader("jpeg", int(height), int(width), orientation, odd)


def jpeg_orientation(data: Buffer) -> int:
    """EXIF orientation, 1 to 8, of a JPEG; 1 where there is none or it makes no sense."""
    return _walk_jpeg(data).orientation


@dataclass(frozen=True)
class _Jpeg:
    """What stands before a JPEG's first scan, which begins at ``scan``.

    ``several``: it may have more than one scan (progressive, its channels apart, or odd).
    """

    orientation: int
    several: bool
    scan: int


def _walk_jpeg(data: Buffer) -> _Jpeg:
    """The marker segments up to the first scan (ITU-T T.81, B.1.1); APP1 "Exif" turns the picture.

    DecodeError where there are more of them than any camera or program writes.
    """
    view = memoryview(data)
    at, end = 2, len(view)
    orientation, several, channels = 1, False, 0
    for _ in range(_JPEG_SEGMENTS):
        if at + 4 > end or view[at] != 0xFF:
            return _Jpeg(orientation, True, at)  # whatever the decoder makes of it
        marker = view[at + 1]
        if marker == 0xFF:  # fill bytes: any number of them, passed over in one go
            found = _JPEG_FILL.match(view, at)
            if found is None or found.end() + 3 > end:
                return _Jpeg(orientation, True, at)
            at = found.end() - 1
            marker = view[at + 1]
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # these stand alone
            at += 2
            continue
        size = (view[at + 2] << 8) | view[at + 3]
        if orientation == 1 and marker == 0xE1 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0":
            orientation = _tiff_orientation(bytes(view[at + 10 : at + 2 + size]))
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and at + 10 <= end:
            several, channels = marker & 3 == 2, view[at + 9]
        if marker == 0xDA and at + 5 <= end and view[at + 4] < channels:
            several = True
        if marker in (0xDA, 0xD9) or size < 2:
            return _Jpeg(orientation, several or marker != 0xDA, at)
        at += 2 + size
    raise DecodeError(
        "a JPEG with too many segments before its picture", expected=f"at most {_JPEG_SEGMENTS}"
    )


def _check_scans(data: Buffer, facts: _Jpeg, pixels: int) -> None:
    """DecodeError where decoding would go over the picture absurdly often: a few bytes of a
    progressive JPEG can be a scan of all its pixels."""
    if not facts.several:
        return
    scans = bytes(memoryview(data)[facts.scan :]).count(b"\xff\xda")
    if scans > MAX_SCANS or scans * pixels > _SCANNED:
        raise DecodeError(
            "a JPEG of too many scans",
            found=f"{scans} scans of {pixels} pixels",
            expected=f"at most {MAX_SCANS}, and {_SCANNED} pixels in all",
        )


def _tiff_orientation(tiff: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (ifd,) = struct.unpack_from(order + "I", tiff, 4)
    if ifd + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, ifd)
    for entry in range(ifd + 2, min(ifd + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == 0x0112 and kind == 3 and count == 1:
            return value if 1 <= value <= 8 else 1
    return 1


def _png_header(data: Buffer) -> ImageHeader:
    view = memoryview(data)
    if len(view) < 33 or bytes(view[12:16]) != b"IHDR":
        raise DecodeError("damaged PNG header")
    width, height, depth, colour = struct.unpack_from(">IIBB", view, 16)
    odd = depth != 8 or colour not in (0, 2)
    orientation = 1
    at = 33
    while at + 8 <= len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        name = bytes(view[at + 4 : at + 8])
        if name in (b"IDAT", b"IEND"):
            break
        if name == b"eXIf":
            orientation = _tiff_orientation(bytes(view[at + 8 : at + 8 + size]))
        if name == b"tRNS":
            odd = True
        at += 12 + size
    if orientation >= 5:
        height, width = width, height
    return ImageHeader("png", height, width, orientation, odd or orientation != 1)


def _check_webp(data: Buffer) -> None:
    """Hold the canvas of an extended WebP against MAX_PIXELS (RFC 9649, 2.7)."""
    view = memoryview(data)
    if bytes(view[12:16]) == b"VP8X" and len(view) >= 30:
        width = 1 + int.from_bytes(view[24:27], "little")
        _check_size(1 + int.from_bytes(view[27:30], "little"), width)


def _pillow_open(data: Buffer) -> Any:
    # With formats given, Pillow itself loads no plugin beyond its first five.
    import PIL.TiffImagePlugin
    import PIL.WebPImagePlugin  # noqa: F401
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(bytes(data)), formats=PILLOW_FORMATS)
    except UnidentifiedImageError as exc:
        raise DecodeError("damaged image header") from exc
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise DecodeError("image dimensions out of range", found=str(exc)) from exc
    except _DAMAGE as exc:
        raise DecodeError("damaged image header", found=str(exc)) from exc


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
    lends memory: the result may be a view of it.
    Raises DecodeError for anything damaged, truncated, too large or not an image.
    """
    header = header or read_header(data)
    if header.odd:
        return _pillow_pixels(data, channels, header)
    if header.kind == "png":
        return _grey_or_rgb(png_pixels(data), channels)
    import simplejpeg

    turned = header.orientation >= 5
    low_h, low_w = (min_size[::-1] if turned else min_size) if min_size else (0, 0)
    if scratch is not None and scratch.size < header.height * header.width * 3:
        scratch = None
    try:
        pixels: UInt8 = simplejpeg.decode_jpeg(
            data,
            colorspace="RGB",
            min_height=low_h,
            min_width=low_w,
            min_factor=min_factor if min_size else 1,
            buffer=scratch,
        )
    except ValueError as exc:
        raise DecodeError("damaged JPEG", found=str(exc)) from exc
    return _grey_or_rgb(upright(pixels, header.orientation), channels)


def png_pixels(data: Buffer) -> UInt8:
    """Stored pixels (H, W, C) of a PNG; DecodeError for a damaged one."""
    import imagecodecs

    try:
        pixels: UInt8 = imagecodecs.png_decode(data)
    except (imagecodecs.PngError, ValueError) as exc:
        raise DecodeError("damaged PNG", found=str(exc)) from exc
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _pillow_pixels(data: Buffer, channels: int, header: ImageHeader) -> UInt8:
    from PIL import Image

    try:
        with _pillow_open(data) as image:
            image.load()
            mode = image.mode
            if mode.startswith("I"):  # 16-bit grey: Pillow's own conversion would clip at 255
                if header.kind != "png" and not mode.startswith("I;16"):
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
    except DecodeError:
        raise
    except _DAMAGE as exc:
        raise DecodeError(f"damaged {header.kind.upper()}", found=str(exc)) from exc
    except Image.DecompressionBombError as exc:
        raise DecodeError("image dimensions out of range", found=str(exc)) from exc
    return _grey_or_rgb(upright(pixels, header.orientation), channels)


def stored_pixels(data: Buffer, header: ImageHeader) -> Pixels:
    """What Pillow finds stored, not turned: (H, W, 1) palette indices or grey (uint16 above 8 bits,
    0 and 1 of one bit), else (H, W, 3) RGB. DecodeError for what is damaged or beyond uint16."""
    from PIL import Image

    try:
        with _pillow_open(data) as image:
            image.load()
            mode = image.mode
            if mode in ("LA", "La", "PA"):
                image = image.getchannel(0)
            elif mode not in ("1", "L", "P", "I", "F") and not mode.startswith("I;16"):
                image = image.convert("RGB")
            pixels: Pixels = np.asarray(image)
    except _DAMAGE as exc:
        raise DecodeError(f"damaged {header.kind.upper()}", found=str(exc)) from exc
    except Image.DecompressionBombError as exc:
        raise DecodeError("image dimensions out of range", found=str(exc)) from exc
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    elif pixels.dtype != np.uint8:
        if pixels.dtype.kind == "f" or int(pixels.min()) < 0 or int(pixels.max()) > 65_535:
            raise DecodeError("numbers that uint16 cannot hold", found=f"mode {mode}")
        pixels = pixels.astype(np.uint16)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _grey_or_rgb(pixels: UInt8, channels: int) -> UInt8:
    if pixels.shape[2] == channels:
        return pixels
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
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def encode(pixels: UInt8, encoding: str, quality: int = 90) -> bytes:
    """Pixels (H, W, 1 or 3) uint8 as a "jpeg" (4:2:0) or "png" file's bytes."""
    pixels = np.ascontiguousarray(pixels)
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
    import imagecodecs

    return bytes(imagecodecs.png_encode(pixels[:, :, 0] if grey else pixels, level=3))


# -- structure, without decoding -----------------------------------------------------------------

_JPEG_MARKER: Final = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")
#: The same to search for: beginning with one plain byte, it is found 15 times faster.
_JPEG_NEXT: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def check_structure(data: bytes) -> ImageHeader:
    """Header, and the file's structure to its end, without decoding a pixel.

    JPEG: marker segments and scans to the end-of-image marker. PNG: every chunk's CRC to IEND.
    WebP, GIF, BMP: the stated length. TIFF, PPM: what Pillow's ``verify`` checks.
    Raises DecodeError naming what is missing.
    """
    header = read_header(data)
    if header.kind == "jpeg":
        _check_jpeg(data)
    elif header.kind == "png":
        _check_png(data)
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
    else:
        # neither states its length or carries a check: only decoding tells
        decode(data, 3, header=header)
    return header


def _check_jpeg(data: bytes) -> None:
    at, scans = 2, 0
    while True:
        marker = _JPEG_MARKER.match(data, at)
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


def _check_png(data: bytes) -> None:
    at = 8
    while True:
        if at + 12 > len(data):
            raise DecodeError("truncated PNG: no IEND chunk")
        size = int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8]
        if at + 12 + size > len(data):
            raise DecodeError("truncated PNG: a chunk runs past the end", found=repr(name))
        stated = int.from_bytes(data[at + 8 + size : at + 12 + size], "big")
        if zlib.crc32(memoryview(data)[at + 4 : at + 8 + size]) != stated:
            raise DecodeError("damaged PNG: wrong CRC", found=f"chunk {name!r} at byte {at}")
        if name == b"IEND":
            return
        at += 12 + size
