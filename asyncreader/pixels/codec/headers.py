"""What the first bytes of an image say: its kind, size, depth and orientation."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import DecodeError
from ...system.array_types import Array
from ...system.text import sides
from . import jpeg, planes
from .jpeg import MAX_PIXELS, Buffer, walk_jpeg

#: The only decoders that Pillow may pick, whatever the bytes claim.
PILLOW_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

#: File name suffixes that count as pictures when a folder is packed (lower case).
IMAGE_SUFFIXES: Final = frozenset(
    f".{suffix}"
    for suffix in "jpg jpeg jpe jfif png webp gif bmp dib tif tiff ppm pgm pbm pnm".split()  # noqa: SIM905
)

#: Width and height of a PPM, after any white space and comments.
_PPM_HEADER: Final = re.compile(
    rb"P\d(?:\s|#[^\r\n]*[\r\n])+\d{1,9}(?:\s|#[^\r\n]*[\r\n])+\d{1,9}\s"
)
PPM_LONGEST: Final = 1 << 14
#: The same of a PGM or PPM with its largest value and the one byte behind that.
PPM_VALUES: Final = re.compile(_PPM_HEADER.pattern[:-2] + rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,5})\s")
_JPEG: Final = b"\xff\xd8"
_PNG: Final = b"\x89PNG\r\n\x1a\n"


@contextlib.contextmanager
def damage(what: str) -> Iterator[None]:
    """Whatever a decoder raises about the data is a DecodeError (Pillow's errors have a dozen
    types, and simplejpeg has raised KeyError). A decoder that cannot be loaded, or memory that
    runs out, says nothing about the data."""
    try:
        yield
    except (DecodeError, ImportError, MemoryError):
        raise
    except KeyError as error:  # simplejpeg's, of a number without a name: no reason
        raise DecodeError(what) from error
    except Exception as error:
        raise DecodeError(what, found=str(error) or type(error).__name__) from error


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
    #: Of a JPEG that can be cut at its restart markers: see jpeg.read_facts.
    facts: Array | None = None
    #: "grey" or "colour" where a channel has more than 8 bits, else "".
    deep: str = ""


#: What the first bytes of images are.
_MAGIC: Final = (
    *((_JPEG + b"\xff", "jpeg"), (_PNG, "png"), (b"GIF87a", "gif"), (b"GIF89a", "gif")),
    *((b"BM", "bmp"), (b"II*\0", "tiff"), (b"MM\0*", "tiff"), (planes.MAGIC, planes.YUV420)),
)


def sniff(data: Buffer) -> str:
    """Kind of image by its first bytes, never by a name; DecodeError if it is none we read."""
    head = bytes(memoryview(data)[:12])
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
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
    elif kind == planes.YUV420:
        header = ImageHeader(kind, *planes.read_size(data))
    else:
        if kind == "webp":
            _check_webp(data)  # Pillow allocates the canvas when it opens one
        elif kind == "ppm" and _PPM_HEADER.match(bytes(memoryview(data)[:PPM_LONGEST])) is None:
            raise DecodeError("damaged image header")  # Pillow reads it letter by letter
        with pillow_open(data) as image:
            width, height = image.size
            turned = jpeg.pillow_orientation(image.getexif) or 1
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
        found = PPM_VALUES.match(bytes(memoryview(data)[:PPM_LONGEST]))
        if found is None or letter in b"14" or int(found[1]) < 256:
            return ""
        return "grey" if letter in b"25" else "colour"
    if kind != "tiff" or image.mode in ("I", "F"):  # 32 bits are not read
        return ""
    with damage("damaged image header"):
        bits = image.tag_v2.get(258, (1,))
        if max(bits if isinstance(bits, tuple) else (bits,)) <= 8:
            return ""
    return "grey" if image.mode.startswith("I;16") else "colour"


def check_depth(header: ImageHeader) -> None:
    """DecodeError for a grey picture of 16 bits, where nothing says that 8 of them are dropped."""
    if header.deep == "grey":
        raise DecodeError(
            "a grey image of 16 bits in a dataset that is served with 8",
            expected="8 bits, or 16 in all of its images",
            hint="convert the dataset with bits 8 (--bits 8), which drops the lower 8 bits, or "
            "leave it out with on_error='skip'",
        )


def read_plain_header(data: Buffer) -> ImageHeader | None:
    """What :func:`read_header` says of a usual JPEG, by a compiled kernel in a tenth of the time,
    and with the facts that it takes to cut it; None for any other data."""
    if bytes(data[:2]) != _JPEG:
        return None
    facts = jpeg.read_facts(data)
    if facts is None:
        return None
    _, height, width, marked, segments, *_ = facts[0].tolist()
    _check_size(height, width)
    turned = walk_jpeg(data).orientation if marked else 1
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

    facts = walk_jpeg(data)
    colorspace, loose = None, False  # None: only Pillow decodes it
    with damage("damaged JPEG header"):
        try:
            height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
        except (ValueError, KeyError):
            loose = True
            if facts.unusual:
                jpeg.check_sampling(facts.sampling)
                height, width = facts.size
            else:
                # what is wrong before the first scan, and not fatal, does not touch the pixels
                height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    odd = colorspace in (None, "CMYK", "YCCK")
    jpeg.check_scans(data, facts, height * width)
    if facts.orientation >= 5:
        height, width = width, height
    return ImageHeader("jpeg", int(height), int(width), facts.orientation, odd, loose)


def _png_facts(data: Buffer) -> tuple[int, int, int, int]:
    """Width, height, bits and colour type of a PNG."""
    view = memoryview(data)
    if len(view) < 33 or bytes(view[12:16]) != b"IHDR":
        raise DecodeError("damaged PNG header")
    return struct.unpack_from(">IIBB", view, 16)


def _png_header(data: Buffer) -> ImageHeader:
    view, (width, height, depth, colour) = memoryview(data), _png_facts(data)
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
        orientation = jpeg.orientation_of(exif, b"")
    else:
        # Pillow's rules of what counts for more, and its limits: asked about a picture of one pixel
        with pillow_open(b"".join((_PIXEL[:33], *texts, _PIXEL[33:]))) as image:
            orientation = jpeg.pillow_orientation(image.getexif) or 1
    if orientation >= 5:
        height, width = width, height
    deep = "" if depth != 16 else "grey" if colour in (0, 4) else "colour"
    return ImageHeader("png", height, width, orientation, odd or orientation != 1, deep=deep)


def png_shape(data: Buffer) -> tuple[tuple[int, int], tuple[int, ...], np.dtype[Any]]:
    """(height, width), (channels,), () of grey, and dtype of what a PNG without a tRNS chunk is
    decoded to. DecodeError for a damaged header, and for one that is too large."""
    width, height, depth, colour = _png_facts(data)
    _check_size(height, width)
    found = {0: (), 2: (3,), 3: (3,), 4: (2,), 6: (4,)}.get(colour)
    if found is None:
        raise DecodeError("damaged PNG header", found=f"colour type {colour}")
    return (height, width), found, np.dtype(np.uint16 if depth == 16 else np.uint8)


def check_png(data: Buffer, all_chunks: bool = True) -> None:
    """DecodeError unless a PNG is whole to its IEND chunk, every chunk as its CRC says; not
    ``all_chunks``: those that its pixels follow from (PNG specification, 5.4)."""
    view, at = memoryview(data), 8
    while True:
        if at + 12 > len(view):
            raise DecodeError("truncated PNG: no IEND chunk")
        size = int.from_bytes(view[at : at + 4], "big")
        name = bytes(view[at + 4 : at + 8])
        if at + 12 + size > len(view):
            raise DecodeError("truncated PNG: a chunk runs past the end", found=repr(name))
        stated = int.from_bytes(view[at + 8 + size : at + 12 + size], "big")
        checked = all_chunks or name[:1].isupper()
        if checked and zlib.crc32(view[at + 4 : at + 8 + size]) != stated:
            raise DecodeError("damaged PNG: wrong CRC", found=f"chunk {name!r} at byte {at}")
        if name == b"IEND":
            return
        at += 12 + size


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


def pillow_open(data: Buffer) -> Any:
    """The image as Pillow opens it, its pixels not yet decoded. DecodeError."""
    # With formats given, Pillow itself loads no plugin beyond its first five.
    import PIL.TiffImagePlugin
    import PIL.WebPImagePlugin  # noqa: F401
    from PIL import Image, UnidentifiedImageError

    with damage("damaged image header"):
        try:
            return Image.open(io.BytesIO(bytes(data)), formats=PILLOW_FORMATS)
        except UnidentifiedImageError as exc:  # its text names a BytesIO object, and no reason
            raise DecodeError("damaged image header") from exc
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
            raise DecodeError("image dimensions out of range", found=str(exc)) from exc
