"""Pictures of every kind the converter must take, damaged ones it must not, and Pillow as judge."""

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fakes import data_file
from jpeg_files import jpeg_of, segment
from PIL import Image, ImageOps

from converters import convert

UInt8 = npt.NDArray[np.uint8]


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> UInt8:
    """Smooth noise: unlike flat colour it shows every misplaced pixel, and JPEG can hold it."""
    rng = np.random.default_rng(seed + height * 10_007 + width)
    small = rng.integers(0, 256, (max(2, height // 8), max(2, width // 8), channels), np.uint8)
    planes = [
        np.asarray(
            Image.fromarray(small[:, :, c]).resize((width, height), Image.Resampling.BICUBIC)
        )
        for c in range(channels)
    ]
    return np.stack(planes, axis=2)


def image(height: int = 40, width: int = 56, seed: int = 0) -> Image.Image:
    """An RGB picture."""
    return Image.fromarray(noise(height, width, 3, seed))


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    """The picture's file."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    """One chunk of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_file(height: int, width: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG of one IDAT chunk."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", head)
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


def png16(height: int, width: int, channels: int) -> bytes:
    """A PNG of 16 bits a channel (Pillow writes only grey ones); high bytes are noise()."""
    rng = np.random.default_rng(5)
    wide = noise(height, width, channels, 5).astype(">u2") * 256
    wide += rng.integers(0, 256, wide.shape).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in wide.astype(">u2"))
    return png_file(height, width, 16, 0 if channels == 1 else 2, rows)


def rotated(orientation: int) -> bytes:
    """A JPEG that says how it is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image(40, 56, orientation), "JPEG", quality=95, exif=exif)


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def turned_by_words() -> dict[bytes, Callable[[], bytes]]:
    """Pictures that are to be turned, and say so elsewhere than in EXIF."""
    exif = b"MM\0*" + struct.pack(">IHHHIH2xI", 8, 1, 0x0112, 3, 1, 8, 0)
    magick = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()

    def png(name: bytes, data: bytes) -> bytes:
        plain = saved(image(), "PNG")
        return plain[:33] + png_chunk(name, data) + plain[33:]

    return {
        b"turned_xmp.jpg": lambda: saved(image(), "JPEG", quality=95, xmp=XMP),
        b"turned_xmp.png": lambda: png(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP),
        b"turned_magick.png": lambda: png(
            b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(magick)
        ),
        b"turned_xmp.webp": lambda: saved(image(), "WEBP", lossless=True, xmp=XMP),
        b"turned_xmp.tif": lambda: saved(image(), "TIFF", tiffinfo={700: XMP}),
    }


def junky() -> bytes:
    """A JPEG with bytes between its segments, and a colour profile that lacks a part."""
    data = saved(image(), "JPEG", quality=95)
    profile = segment(0xE2, b"ICC_PROFILE\0\1\2abc")
    return data[:20] + profile + b"\0junk" + data[20:]


def animated(kind: str) -> bytes:
    """Three frames."""
    frames = [image(40, 56, seed) for seed in (1, 2, 3)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)


def palette(transparent: bool) -> bytes:
    """A PNG with a palette, maybe with one transparent entry."""
    picture = image().quantize(64)
    return saved(picture, "PNG", **({"transparency": 3} if transparent else {}))


#: Every kind that is packed: name -> bytes of its file.
GOOD: dict[bytes, Callable[[], bytes]] = {
    b"large.jpg": lambda: saved(image(1632, 2400), "JPEG", quality=85),
    b"plain.jpg": lambda: saved(image(), "JPEG", quality=95),
    b"fine.JPEG": lambda: saved(image(41, 57), "JPEG", quality=95, subsampling=0),
    b"progressive.jpg": lambda: saved(image(), "JPEG", progressive=True),
    b"grey.jpg": lambda: saved(image().convert("L"), "JPEG"),
    b"cmyk.jpg": lambda: saved(image().convert("CMYK"), "JPEG", quality=95),
    b"plain.png": lambda: saved(image(), "PNG"),
    b"grey.png": lambda: saved(image().convert("L"), "PNG"),
    b"bilevel.png": lambda: saved(image().convert("1"), "PNG"),
    b"grey16.png": lambda: png16(30, 42, 1),
    b"rgb16.png": lambda: png16(30, 42, 3),
    b"palette.png": lambda: palette(False),
    b"palette_transparent.png": lambda: palette(True),
    b"rgba.png": lambda: saved(Image.fromarray(noise(40, 56, 4)), "PNG"),
    b"grey_alpha.png": lambda: saved(Image.fromarray(noise(40, 56, 4)).convert("LA"), "PNG"),
    b"animated.gif": lambda: animated("GIF"),
    b"animated.webp": lambda: animated("WEBP"),
    b"plain.webp": lambda: saved(image(), "WEBP", lossless=True),
    b"alpha.webp": lambda: saved(Image.fromarray(noise(40, 56, 4)), "WEBP", lossless=True),
    b"plain.bmp": lambda: saved(image(), "BMP"),
    b"plain.tif": lambda: saved(image(), "TIFF", compression="tiff_lzw"),
    b"plain.ppm": lambda: saved(image(), "PPM"),
    b"grey16.pgm": lambda: (
        b"P5 56 40 65535\n"
        + (noise(40, 56, 1).astype(np.uint16) * 257 - 99).astype(">u2").tobytes()
    ),
    b"441.jpg": lambda: jpeg_of([(1, 4), (1, 1), (1, 1)], (40, 56)),
    b"410.jpg": lambda: jpeg_of([(4, 2), (1, 1), (1, 1)], (40, 56)),
    b"cmyk_420.jpg": lambda: jpeg_of([(2, 2), (1, 1), (1, 1), (2, 2)], (40, 56)),
    b"junk.jpg": junky,
    b"a png named.jpg": lambda: saved(image(), "PNG"),
    b"with  spaces .png": lambda: saved(image(), "PNG"),
    b"new\nline.png": lambda: saved(image(seed=2), "PNG"),
    b"not-utf8-\xff\xfe.png": lambda: saved(image(seed=3), "PNG"),
    b"quote'\"`$.png": lambda: saved(image(seed=4), "PNG"),
    **{b"turned%d.jpg" % n: (lambda n=n: rotated(n)) for n in range(1, 9)},
    **turned_by_words(),
}


def put(folder: Path, files: Mapping[Any, bytes]) -> Path:
    """Files by their paths in the folder, which is made."""
    for name, data in files.items():
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return folder


def write_good(folder: Path) -> dict[bytes, bytes]:
    """All of GOOD in ``folder``, which is made; path below it -> contents."""
    contents = {name: make() for name, make in GOOD.items()}
    put(folder, contents)
    return contents


@cache
def by_pillow(data: bytes, channels: int = 3) -> UInt8:
    """The upright picture, (H, W, channels), by Pillow alone; it must not be changed."""
    with Image.open(io.BytesIO(data)) as opened:
        picture: Image.Image = opened
        picture.load()
        if picture.mode in ("I;16", "I"):
            high = np.asarray(picture).astype(np.uint16) >> 8
            picture = Image.fromarray(high.astype(np.uint8))
        turned = ImageOps.exif_transpose(picture)
    if turned.mode == "P":
        turned = turned.convert("RGBA")
    if turned.mode in ("1", "LA"):
        turned = turned.convert("L")
    pixels = np.asarray(turned.convert("RGB") if turned.mode != "L" else turned)
    if channels == 1:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], channels, axis=2)
    return pixels


# -- damage --------------------------------------------------------------------------------------


def _cut(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]


def _broken_crc() -> bytes:
    data = bytearray(saved(image(), "PNG"))
    at = data.index(b"IDAT") + 40
    data[at] ^= 0xFF
    return bytes(data)


def _bad_text_crc() -> bytes:
    data = saved(image(), "PNG")
    chunk = bytearray(png_chunk(b"tEXt", b"Comment\0hello"))
    chunk[-1] ^= 1
    return data[:33] + bytes(chunk) + data[33:]


def _bomb(kind: str) -> bytes:
    """A header that declares 65,500 x 65,500 pixels."""
    if kind == "PNG":
        head = struct.pack(">IIBBBBB", 65500, 65500, 8, 2, 0, 0, 0)
        body = png_chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + png_chunk(b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + body
    if kind == "GIF":
        data = bytearray(saved(image(), "GIF"))
        data[6:10] = struct.pack("<HH", 65500, 65500)
        return bytes(data)
    data = bytearray(saved(image(), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65500, 65500)
    return bytes(data)


#: Every kind of damage, by a name with the right suffix.
BAD: dict[bytes, Callable[[], bytes]] = {
    **{
        b"cut%d.jpg" % share: (
            lambda share=share: _cut(saved(image(120, 160), "JPEG", quality=95), share / 100)
        )
        for share in (5, 50, 99)
    },
    b"no_end.jpg": lambda: saved(image(), "JPEG")[:-2],
    b"progressive_cut.jpg": lambda: _cut(saved(image(120, 160), "JPEG", progressive=True), 0.6),
    b"cut.png": lambda: _cut(saved(image(), "PNG"), 0.5),
    b"no_end.png": lambda: saved(image(), "PNG")[:-12],
    b"crc.png": _broken_crc,
    b"text_crc.png": _bad_text_crc,
    b"cut.gif": lambda: _cut(animated("GIF"), 0.2),
    b"cut_later.gif": lambda: _cut(animated("GIF"), 0.8),
    b"cut.webp": lambda: _cut(saved(image(), "WEBP"), 0.5),
    b"cut_later.webp": lambda: _cut(animated("WEBP"), 0.8),
    b"cut.bmp": lambda: _cut(saved(image(), "BMP"), 0.9),
    b"cut.tif": lambda: _cut(saved(image(), "TIFF"), 0.5),
    b"cut.ppm": lambda: _cut(saved(image(), "PPM"), 0.9),
    b"empty.jpg": lambda: b"",
    b"empty.png": lambda: b"",
    b"text.jpg": lambda: b"this is no picture, whatever its name says\n" * 20,
    b"html.png": lambda: b"<!DOCTYPE html><html>404 not found</html>",
    b"bomb.jpg": lambda: _bomb("JPEG"),
    b"bomb.png": lambda: _bomb("PNG"),
    b"bomb.gif": lambda: _bomb("GIF"),
    b"float.tif": lambda: saved(Image.fromarray(np.zeros((8, 8), np.float32)), "TIFF"),
}


# -- folders and files ---------------------------------------------------------------------------


def write_small(root: Path) -> Path:
    """Three classes, 23 pictures of one shape, one of them with an odd name."""
    names = [b"class %d/%02d.png" % (number % 3, number) for number in range(22)]
    images = {name: image(20, 30, number) for number, name in enumerate(names)}
    images[b"class 1/\xff\n.png"] = image(20, 30, 99)
    return put(root, {name: saved(one, "PNG") for name, one in images.items()})


def names_in(folder: Path) -> list[bytes]:
    """Paths of all files below a folder, in the order in which they are packed."""
    found = [
        os.path.relpath(os.path.join(here, name), os.fsencode(folder))
        for here, _, names in os.walk(os.fsencode(folder))
        for name in names
    ]
    return sorted(found, key=lambda path: path.split(b"/"))


def hash_of(target: Path) -> str:
    """SHA-256 of a packed set."""
    return hashlib.sha256(data_file(target).read_bytes()).hexdigest()


def files(folder: Path) -> dict[str, str]:
    """Every file of a folder, by content."""
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in listed(folder)
    }


def listed(folder: Path) -> list[str]:
    """What lies in a folder, hidden entries too."""
    return sorted(os.listdir(folder))


class _Stop(Exception):
    """What a test interrupts a run with."""


def stop_at(number: int, src: Any, dst: Path, **options: Any) -> BaseException:
    """Convert until that sample, where ``progress`` raises; its error."""

    def stop(done: int, _: int) -> None:
        if done == number:
            raise _Stop

    with pytest.raises(_Stop) as caught:
        convert(src, dst, progress=stop, **options)
    return caught.value
