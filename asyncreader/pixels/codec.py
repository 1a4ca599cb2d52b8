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

import io
import logging
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ..array_types import Array, Int64, UInt8
from ..errors import DecodeError
from ..text import sides
from . import jpeg_cut

Pixels: TypeAlias = Array
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

#: The next marker, as libjpeg finds it: any number of fill bytes may stand in front.
_JPEG_HEAD: Final = re.compile(rb"\xff[^\x00\xff]")
_JFIF: Final = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
_XMP_SEGMENT: Final = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION: Final = re.compile(rb'tiff:Orientation(="|>)([0-9])')
#: Width and height of a PPM, after any white space and comments.
_PPM_HEADER: Final = re.compile(
    rb"P\d(?:\s|#[^\r\n]*[\r\n])+\d{1,9}(?:\s|#[^\r\n]*[\r\n])+\d{1,9}\s"
)
_PPM_LONGEST: Final = 1 << 14
#: The same of a PGM or PPM with its largest value and the one byte behind that.
_PPM_VALUES: Final = re.compile(_PPM_HEADER.pattern[:-2] + rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,5})\s")
_PNG: Final = b"\x89PNG\r\n\x1a\n"


class _damage:
    """Whatever a decoder raises about the data is a DecodeError (Pillow's errors have a dozen
    types, and simplejpeg has raised KeyError). A decoder that cannot be loaded, or memory that
    runs out, says nothing about the data."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception):
            return
        if isinstance(error, (DecodeError, ImportError, MemoryError)):
            return
        if isinstance(error, KeyError):  # simplejpeg's, of a number without a name: no reason
            raise DecodeError(self._what) from error
        raise DecodeError(self._what, found=str(error) or type(error).__name__) from error


class ImageHeader(NamedTuple):
    """What the first bytes say: ``height`` and ``width`` are those of the upright picture."""

    kind: str
    height: int
    width: int
    orientation: int = 1
    #: Decoded by Pillow (slow) because the fast decoder does not do this variety.
    odd: bool = False
    #: A JPEG whose header the fast decoder does not take as it is: harmless junk stands in it, or
    #: its sampling is unusual.
    loose: bool = False
    #: Of a JPEG that can be cut at its restart markers: see jpeg_cut.read_facts.
    facts: Int64 | None = None
    #: "grey" or "colour" where a channel has more than 8 bits, else "".
    deep: str = ""


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
            turned = _pillow_orientation(image) or 1
            # Pillow turns a TIFF itself; the size that it states is that of the upright picture
            # only where the orientation is in a tag of its own.
            in_tag = kind == "tiff" and 0x0112 in image.tag_v2
            deep = _deep_of(data, kind, image)
        if turned >= 5 and not in_tag:
            height, width = width, height
        turned = 1 if kind == "tiff" else turned
        header = ImageHeader(kind, height, width, turned, odd=True, deep=deep)
    _check_size(header.height, header.width)
    return header


def _deep_of(data: Buffer, kind: str, image: Any) -> str:
    """``deep`` of a header, for an image that Pillow has opened."""
    if kind == "ppm":
        letter = memoryview(data)[1]
        found = _PPM_VALUES.match(bytes(memoryview(data)[:_PPM_LONGEST]))
        if found is None or letter in b"14" or int(found[1]) < 256:
            return ""
        return "grey" if letter in b"25" else "colour"
    if kind != "tiff" or image.mode in ("I", "F"):  # 32 bits are not read
        return ""
    with _damage("damaged image header"):
        bits = image.tag_v2.get(258, (1,))
        if max(bits if isinstance(bits, tuple) else (bits,)) <= 8:
            return ""
    return "grey" if image.mode.startswith("I;16") else "colour"


def check_depth(header: ImageHeader) -> None:
    """DecodeError for a grey picture of 16 bits, where nothing says that 8 of them are dropped."""
    if header.deep == "grey":
        raise DecodeError(
            "a grey picture of 16 bits in a set that is served with 8",
            expected="8 bits, or 16 in all of its pictures",
            hint="convert the set with bits 8 (--bits 8), which drops the lower 8 bits, or leave "
            "it out with on_error='skip'",
        )


def read_plain_header(data: Buffer) -> ImageHeader | None:
    """What :func:`read_header` says of a usual JPEG, by a compiled kernel in a tenth of the time,
    and with the facts that it takes to cut it; None for any other data."""
    facts = jpeg_cut.read_facts(data)
    if facts is None:
        return None
    _, height, width, marked, segments = facts[:5].tolist()
    _check_size(height, width)
    turned = _walk_jpeg(data).orientation if marked else 1
    if turned >= 5:
        height, width = width, height
    return ImageHeader("jpeg", height, width, turned, facts=facts if segments else None)


def _check_size(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise DecodeError(
            "image dimensions out of range",
            found=sides(height, width),
            expected=f"1 to {MAX_PIXELS} pixels",
        )


def _jpeg_header(data: Buffer) -> ImageHeader:
    import simplejpeg

    facts = _walk_jpeg(data)
    odd = loose = False
    with _damage("damaged JPEG header"):
        try:
            height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
            odd = colorspace in ("CMYK", "YCCK")
        except (ValueError, KeyError):
            if facts.unusual:
                _check_sampling(facts.sampling)
                height, width = facts.size
                odd = loose = True
            else:
                # what is wrong before the first scan, and not fatal, does not touch the pixels
                height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
                odd = colorspace in ("CMYK", "YCCK")
                loose = True
    _check_scans(data, facts, height * width)
    if facts.orientation >= 5:
        height, width = width, height
    return ImageHeader("jpeg", int(height), int(width), facts.orientation, odd, loose)


def jpeg_orientation(data: Buffer) -> int:
    """Orientation, 1 to 8, of a JPEG; 1 where there is none or it makes no sense."""
    return _walk_jpeg(data).orientation


def is_grey_jpeg(data: Buffer) -> bool:
    """Whether a JPEG stores one channel."""
    return len(_walk_jpeg(data).sampling) == 1


@dataclass(frozen=True)
class _Jpeg:
    """What stands before a JPEG's first scan, which begins at ``scan``.

    ``several``: it may have more than one scan (progressive, its channels apart, or odd).
    ``size``: (H, W) as stored; ``sampling``: a byte for each channel, horizontal and vertical
    factor in its high and low half.
    """

    orientation: int
    several: bool
    scan: int
    size: tuple[int, int]
    sampling: bytes

    @property
    def unusual(self) -> bool:
        """Whether its sampling is valid (T.81, B.2.2) and turbojpeg has no name for it."""
        first, others = self.sampling[:1], set(self.sampling[1:])
        valid = all(1 <= factor >> 4 <= 4 and 1 <= factor & 15 <= 4 for factor in self.sampling)
        count = len(self.sampling)
        named = count == 3 and others == {0x11} and first in _NAMED_SAMPLING
        return valid and 2 <= count <= 4 and not named


#: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1. What else there is, 4:4:1 too, is known to some versions only.
_NAMED_SAMPLING: Final = (b"\x11", b"\x21", b"\x22", b"\x12", b"\x41")


def _check_sampling(sampling: bytes) -> None:
    """DecodeError for what libjpeg, which is in all our decoders, does not decode."""
    if len(sampling) == 2:
        raise DecodeError("a JPEG of 2 channels is not read", expected="1, 3 or 4 channels")
    axes = [factor >> 4 for factor in sampling], [factor & 15 for factor in sampling]
    if any(max(axis) % factor for axis in axes for factor in axis):
        raise DecodeError(
            "a JPEG with sampling that is not read",
            found=", ".join(f"{across}x{down}" for across, down in zip(*axes, strict=True)),
            expected="factors that divide the largest of them",
            hint="convert it to a usual JPEG or PNG",
        )


def _segments(data: Buffer) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of a JPEG's segments up to its first scan or its end (T.81, B.1.1).

    Bytes between segments are passed over, as libjpeg and Pillow do. The last one is (0, start,
    start) where no segment can be made out. DecodeError where there are more of them than any
    camera or program writes.
    """
    view = memoryview(data)
    at, end = 2, len(view)
    for _ in range(_JPEG_SEGMENTS):
        if at + 4 > end:
            break
        start, marker = at, view[at + 1]
        if view[at] != 0xFF or marker in (0x00, 0xFF):
            found = _JPEG_HEAD.search(view, at)
            if found is None or found.end() + 2 > end:
                break
            start = found.end() - 2
            marker = view[start + 1]
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # these stand alone
            at = start + 2
            continue
        size = (view[start + 2] << 8) | view[start + 3]
        if size < 2:
            break
        yield marker, start, start + 2 + size
        at = start + 2 + size
        if marker in (0xDA, 0xD9):
            return
    else:
        raise DecodeError(
            "a JPEG with too many segments before its picture", expected=f"at most {_JPEG_SEGMENTS}"
        )
    yield 0, at, at


def _walk_jpeg(data: Buffer) -> _Jpeg:
    """The facts of the segments up to the first scan; APP1 "Exif" or XMP turn the picture."""
    view = memoryview(data)
    exif: list[bytes] = []
    xmp = b""
    several, size, sampling = False, (0, 0), b""
    for marker, start, end in _segments(data):
        if marker == 0xE1:
            body = bytes(view[start + 4 : end])
            if body.startswith(b"Exif\0\0"):
                exif.append(body[6:])
            elif body.startswith(_XMP_SEGMENT):
                xmp = body[len(_XMP_SEGMENT) :]
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            body = bytes(view[start + 4 : end])
            several = marker & 3 == 2
            if len(body) >= 6:
                size = ((body[1] << 8) | body[2], (body[3] << 8) | body[4])
                sampling = body[7 : 6 + 3 * body[5] : 3]
        elif marker == 0xDA:
            several = several or len(view) <= start + 4 or view[start + 4] < len(sampling)
    several = several or marker != 0xDA
    turned = _orientation(b"".join(exif), xmp)
    return _Jpeg(turned, several, start, size, sampling)


def _plain_jpeg(data: Buffer) -> bytes:
    """A JPEG without the bytes between its segments, and without the segments that say nothing
    about its pixels."""
    view = memoryview(data)
    parts = [b"\xff\xd8"]
    for marker, start, end in _segments(data):
        if marker in (0x00, 0xDA, 0xD9):
            parts.append(bytes(view[start:]))
        elif marker == 0xE0 and bytes(view[start + 4 : start + 9]) == b"JFIF\0":
            parts.append(_JFIF)  # that it is there says which colours; its version does not matter
        elif marker == 0xEE:
            adobe = bytearray(view[start:end])
            if len(adobe) > 15 and adobe[15] > 1:  # no such colours: YCbCr, as libjpeg takes it
                adobe[15] = 1
            parts.append(bytes(adobe))
        elif not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            parts.append(bytes(view[start:end]))
    return b"".join(parts)


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


def _orientation(exif: bytes, xmp: bytes) -> int:
    """1 to 8: what EXIF says, or where that does not speak of it, what XMP says."""
    turned = _tiff_orientation(exif) if exif else 0
    if turned == 0 and (found := _XMP_ORIENTATION.search(xmp)) is not None:
        turned = int(found[2])
    return turned if 1 <= turned <= 8 else 1


def _tiff_orientation(tiff: bytes) -> int:
    """The orientation in EXIF data; 0 where it has none, 1 where it makes no sense."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    (ifd,) = struct.unpack_from(order + "I", tiff, 4) if order and len(tiff) >= 8 else (len(tiff),)
    if order is None or ifd + 2 > len(tiff):
        return _odd_orientation(tiff)
    (entries,) = struct.unpack_from(order + "H", tiff, ifd)
    turned = 0
    for entry in range(ifd + 2, min(ifd + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == 0x0112:
            if kind != 3 or count != 1:
                return _odd_orientation(tiff)
            turned = value if 1 <= value <= 8 else 1
    return turned


def _odd_orientation(tiff: bytes) -> int:
    """The same for EXIF data that are not as they should be: whatever Pillow makes of them."""
    from PIL import Image

    exif = Image.Exif()
    try:
        exif.load(tiff)
        turned = exif.get(0x0112, 0)
    except (ImportError, MemoryError):
        raise
    except Exception:
        return 1
    return int(turned) if turned in range(9) else 1


def _pillow_orientation(image: Any) -> int:
    """The orientation of an opened image, 1 where it makes no sense."""
    try:
        turned = image.getexif().get(0x0112, 1)
    except (ImportError, MemoryError):
        raise
    except Exception:
        return 1
    return int(turned) if turned in range(1, 9) else 1


def _png_header(data: Buffer) -> ImageHeader:
    view = memoryview(data)
    if len(view) < 33 or bytes(view[12:16]) != b"IHDR":
        raise DecodeError("damaged PNG header")
    width, height, depth, colour = struct.unpack_from(">IIBB", view, 16)
    odd = depth != 8 or colour not in (0, 2)
    exif = b""
    texts: list[memoryview] = []
    at = 33
    while at + 8 <= len(view):
        size, name = struct.unpack_from(">I4s", view, at)
        if name == b"IDAT":
            pass
        elif name == b"IEND":
            break
        elif name == b"eXIf":
            exif = bytes(view[at + 8 : at + 8 + size])
            texts.append(view[at : at + 12 + size])
        elif name == b"tRNS":
            odd = True
        elif name in _PNG_TEXTS:
            keyword = bytes(view[at + 8 : at + 8 + min(size, 80)]).split(b"\0", 1)[0]
            if keyword in _PNG_KEYWORDS:
                texts.append(view[at : at + 12 + size])
        at += 12 + size
    if all(bytes(chunk[4:8]) == b"eXIf" for chunk in texts):
        orientation = _orientation(exif, b"")
    else:
        # Pillow's rules of what counts for more, and its limits: asked about a picture of one pixel
        with _pillow_open(b"".join((_PIXEL[:33], *texts, _PIXEL[33:]))) as image:
            orientation = _pillow_orientation(image)
    if orientation >= 5:
        height, width = width, height
    deep = "" if depth != 16 else "grey" if colour in (0, 4) else "colour"
    return ImageHeader("png", height, width, orientation, odd or orientation != 1, deep=deep)


#: Text chunks of a PNG, and the keywords under which Pillow finds an orientation.
_PNG_TEXTS: Final = (b"tEXt", b"zTXt", b"iTXt")
_PNG_KEYWORDS: Final = (b"Raw profile type exif", b"XML:com.adobe.xmp", b"exif", b"xmp")
#: A PNG of one grey pixel.
_PIXEL: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)


def _check_webp(data: Buffer) -> None:
    """DecodeError if the canvas of an extended WebP is over MAX_PIXELS (RFC 9649, 2.7)."""
    view = memoryview(data)
    if bytes(view[12:16]) == b"VP8X" and len(view) >= 30:
        width = 1 + int.from_bytes(view[24:27], "little")
        _check_size(1 + int.from_bytes(view[27:30], "little"), width)


def _pillow_open(data: Buffer) -> Any:
    # With formats given, Pillow itself loads no plugin beyond its first five.
    import PIL.TiffImagePlugin
    import PIL.WebPImagePlugin  # noqa: F401
    from PIL import Image, UnidentifiedImageError

    with _damage("damaged image header"):
        try:
            return Image.open(io.BytesIO(bytes(data)), formats=PILLOW_FORMATS)
        except UnidentifiedImageError as exc:  # its text names a BytesIO object, and no reason
            raise DecodeError("damaged image header") from exc
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
            raise DecodeError("image dimensions out of range", found=str(exc)) from exc


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
        if header.kind == "jpeg" and not header.loose:
            _check_cmyk(data)
        return _pillow_pixels(data, channels, header)
    if header.kind == "png":
        return _grey_or_rgb(png_pixels(data), channels)
    jpeg = _plain_jpeg(data) if header.loose else data
    if scratch is not None and scratch.size < header.height * header.width * 3:
        scratch = None
    return _decode_jpeg(jpeg, channels, header.orientation, min_size, min_factor, scratch)


def _decode_jpeg(
    data: Buffer,
    channels: int,
    orientation: int,
    min_size: tuple[int, int] | None,
    min_factor: float,
    scratch: UInt8 | None,
) -> UInt8:
    import simplejpeg

    low_h, low_w = (min_size[::-1] if orientation >= 5 else min_size) if min_size else (0, 0)
    with _damage("damaged JPEG"):
        pixels: UInt8 = simplejpeg.decode_jpeg(
            data,
            colorspace="RGB",
            min_height=low_h,
            min_width=low_w,
            min_factor=min_factor if min_size else 1,
            buffer=scratch,
        )
    return _grey_or_rgb(upright(pixels, orientation), channels)


class Decoded(NamedTuple):
    """Pixels (H, W, C) of a picture, or of a part: they begin at row ``top`` and column ``left`` of
    those of the whole picture, whose shape is ``whole``."""

    pixels: UInt8
    top: int
    left: int
    whole: tuple[int, int]


def decode_part(
    data: Buffer,
    channels: int,
    *,
    header: ImageHeader,
    part: tuple[int, int, int, int] | None,
    reach: tuple[int, int] = (0, 0),
    min_size: tuple[int, int] | None = None,
    scratch: UInt8 | None = None,
    copy: UInt8 | None = None,
) -> Decoded:
    """All of a picture, as :func:`decode` gives it, or some of it: where a JPEG has restart markers
    and that costs less.

    ``part``: top, left, height and width in the upright picture of full size; None: all. There,
    and ``reach`` (down, across) pixels of the result around it, the pixels are those of the whole.
    ``copy``: memory as ``scratch`` is, of ``jpeg_cut.most(data)`` bytes.
    """
    if header.facts is not None and part is not None:
        found = _decode_cut(
            data, channels, header, header.facts, part, reach, min_size, scratch, copy
        )
        if found is not None:
            return found
    pixels = decode(data, channels, header=header, min_size=min_size, scratch=scratch)
    return Decoded(pixels, 0, 0, (pixels.shape[0], pixels.shape[1]))


def _decode_cut(
    data: Buffer,
    channels: int,
    header: ImageHeader,
    facts: Int64,
    part: tuple[int, int, int, int],
    reach: tuple[int, int],
    min_size: tuple[int, int] | None,
    scratch: UInt8 | None,
    copy: UInt8 | None,
) -> Decoded | None:
    full, turned = (header.height, header.width), header.orientation
    eighths = _eighths(full, min_size) if min_size else 8
    down, across = reach
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
    if copy is None:
        copy = np.empty(jpeg_cut.most(data), np.uint8)
    cut = jpeg_cut.cut(data, facts, (rows[0], columns[0], rows[1], columns[1]), eighths, copy)
    if cut is None:
        return None
    jpeg, (top, left, bottom, right) = cut
    shape = bottom - top, right - left
    if turned >= 5:
        shape, top, left = shape[::-1], left, top
    if scratch is not None and scratch.size < shape[0] * shape[1] * 3:
        scratch = None
    shape = _scaled(shape, eighths)
    try:
        pixels = _decode_jpeg(jpeg, channels, turned, shape if eighths < 8 else None, 2, scratch)
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
    return Decoded(pixels, top, left, whole)


def _eighths(size: tuple[int, int], least: tuple[int, int]) -> int:
    """At how many eighths of its (H, W) ``size`` a JPEG is decoded when ``least`` is asked for: at
    most half, or all."""
    high, wide = size
    for n in (1, 2, 3, 4) if 2 * least[0] <= high + 1 else ():
        if -(-high * n // 8) >= least[0] and -(-wide * n // 8) >= least[1]:
            return n
    return 8


def _scaled(size: tuple[int, int], eighths: int) -> tuple[int, int]:
    return -(-size[0] * eighths // 8), -(-size[1] * eighths // 8)


def _turned(orientation: int) -> tuple[bool, bool]:
    """Whether the rows and the columns of an upright picture are the other way round than those
    that are stored (as columns and rows, from 5 on)."""
    return orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


def _check_cmyk(data: Buffer) -> None:
    """DecodeError for a damaged JPEG of four channels: Pillow shows what it can of it."""
    import simplejpeg

    with _damage("damaged JPEG"):
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
    """Stored pixels (H, W, C) of a PNG; DecodeError for a damaged one."""
    import imagecodecs

    _UNLOGGED.decoding = True
    try:
        with _damage("damaged PNG"):
            pixels: UInt8 = imagecodecs.png_decode(data)
    finally:
        _UNLOGGED.decoding = False
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


def _pillow_pixels(data: Buffer, channels: int, header: ImageHeader) -> UInt8:
    with _damage(f"damaged {header.kind.upper()}"), _pillow_open(data) as image:
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
    return _grey_or_rgb(upright(pixels, header.orientation), channels)


def _load(image: Any) -> None:
    from PIL import Image

    try:
        image.load()
    except Image.DecompressionBombError as exc:
        raise DecodeError("image dimensions out of range", found=str(exc)) from exc


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
    with _damage(f"damaged {header.kind.upper()}"), _pillow_open(data) as image:
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
    found = _PPM_VALUES.match(bytes(memoryview(data)[:_PPM_LONGEST]))
    if found is None:
        raise DecodeError("damaged PPM header")
    letter, most = memoryview(data)[1], int(found[1])
    channels = 1 if letter in b"25" else 3
    dtype = np.dtype(np.uint8 if most < 256 else ">u2")
    count = header.height * header.width * channels
    with _damage("damaged PPM"):
        if letter in b"56":
            pixels: Pixels = np.frombuffer(data, dtype, count, found.end())
        else:
            words = re.sub(rb"#[^\r\n]*", b"", bytes(data)[found.end() :]).split(None, count)
            pixels = np.array(words[:count]).astype(np.int64)
        if pixels.size != count or not 0 <= int(pixels.min()) <= int(pixels.max()) <= most:
            raise DecodeError("damaged PPM", expected=f"{count} numbers of at most {most}")
        pixels = pixels.astype(dtype.newbyteorder("="))
    return pixels.reshape(header.height, header.width, channels)


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
    rows_turned, columns_turned = _turned(orientation)
    if columns_turned:
        pixels = pixels[:, ::-1]
    if rows_turned:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def encode(pixels: Pixels, encoding: str, quality: int = 90) -> bytes:
    """Pixels (H, W, 1 or 3) as a "jpeg" (uint8; 4:2:0) or "png" (uint8, uint16) file's bytes."""
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
        if header.loose and header.odd:  # its tables have not been looked at
            decode(data, 3, header=header)
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
