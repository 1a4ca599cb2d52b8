"""Hostile pictures, each tried in an LMDB of pictures and in a folder that is packed."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

from .corpus import NONE, SAMPLE, Scratch, Target, attack, jpeg
from .lmdb_files import bare

Make = Callable[[], bytes]


def picture_attack(name: str, make: Make, says: str = "", harmless: bool = False) -> None:
    """One picture, as a record of a set and as a file of a folder."""

    def in_set(scratch: Scratch) -> Target:
        path = bare(scratch, [jpeg(0), jpeg(1), make(), jpeg(3)])
        return Target(path, {"size": [8, 8]})

    def in_folder(scratch: Scratch) -> Target:
        folder = scratch.folder / "pictures"
        folder.mkdir()
        for number in range(3):
            (folder / f"{number}.jpg").write_bytes(jpeg(number))
        (folder / "3.jpg").write_bytes(make())
        return Target(folder, {"size": [8, 8]}, {"no_labels": True})

    in_set.__doc__ = f"A record: {name.replace('_', ' ')}."
    in_folder.__doc__ = f"A file: {name.replace('_', ' ')}."
    attack(
        NONE if harmless else SAMPLE,
        says,
        ("read", "info", "verify", "convert"),
        name=f"picture_{name}",
    )(in_set)
    attack(
        NONE if harmless else ("convert",), says, ("convert",), name=f"picture_{name}_in_folder"
    )(in_folder)


# -- PNG -------------------------------------------------------------------------------------------


def chunk(name: bytes, body: bytes) -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(
    width: int,
    height: int,
    depth: int = 8,
    colour: int = 2,
    body: bytes | None = None,
    before: bytes = b"",
    interlaced: int = 0,
) -> bytes:
    """A PNG of any header."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    if body is None:
        body = zlib.compress(bytes((width * 3 + 1) * height), 9)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + before
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


BOMB = zlib.compress(bytes(50 << 20), 9)
RANGE = "dimensions out of range|damaged|too large"
picture_attack("png_2_31_wide", lambda: png((1 << 31) - 1, 1, body=BOMB), RANGE)
picture_attack("png_65535_square", lambda: png(65535, 65535, 1, 0, BOMB), RANGE)
picture_attack(
    "png_65535_square_interlaced", lambda: png(65535, 65535, 1, 0, BOMB, interlaced=1), RANGE
)
picture_attack("png_no_size", lambda: png(0, 0, body=zlib.compress(b"")), RANGE)
picture_attack("png_inflates_to_50_mb", lambda: png(8, 8, body=BOMB), harmless=True)
picture_attack(
    "png_ztxt_bomb",
    lambda: png(8, 8, 8, 6, zlib.compress(bytes(8 * 33)), chunk(b"zTXt", b"k\0\0" + BOMB)),
    harmless=True,
)
picture_attack(
    "png_itxt_bombs",
    lambda: png(
        8, 8, 8, 6, zlib.compress(bytes(8 * 33)), chunk(b"iTXt", b"k\0\1\0\0\0" + BOMB) * 50
    ),
    harmless=True,
)
picture_attack(
    "png_iccp_bomb",
    lambda: png(8, 8, 8, 6, zlib.compress(bytes(8 * 33)), chunk(b"iCCP", b"k\0\0" + BOMB)),
    harmless=True,
)
picture_attack(
    "png_iccp_bomb_fast_decoder",
    lambda: png(8, 8, before=chunk(b"iCCP", b"k\0\0" + BOMB)),
    harmless=True,
)
picture_attack(
    "png_200000_chunks", lambda: png(8, 8, before=chunk(b"teSt", b"") * 200_000), harmless=True
)
picture_attack("png_no_pixels", lambda: png(8, 8, body=b""), "damaged|truncated")
picture_attack("png_short", lambda: png(64, 64, body=zlib.compress(bytes(10))), "damaged|truncated")
picture_attack("png_wrong_crc", lambda: png(8, 8)[:-20] + b"\0" * 8 + png(8, 8)[-12:], "PNG")
picture_attack("png_cut", lambda: png(8, 8)[:50], "PNG|truncated")
picture_attack(
    "png_exif_garbage",
    lambda: png(8, 8, before=chunk(b"eXIf", b"II*\0" + b"\xff" * 30)),
    harmless=True,
)


# -- JPEG ------------------------------------------------------------------------------------------


def resized(data: bytes, height: int, width: int) -> bytes:
    """A JPEG with another size in its header."""
    at = data.index(b"\xff\xc0") if b"\xff\xc0" in data else data.index(b"\xff\xc2")
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def progressive(height: int, width: int, scans: int) -> bytes:
    """A progressive JPEG whose first scan is repeated: a scan is a few bytes, and all pixels."""
    file = io.BytesIO()
    Image.new("L", (16, 16), 90).save(file, "JPEG", progressive=True, quality=50)
    data = resized(file.getvalue(), height, width)
    start = data.index(b"\xff\xda")
    after = next(
        i for i in range(start + 12, len(data)) if data[i] == 0xFF and data[i + 1] not in (0,)
    )
    return data[:start] + data[start:after] * scans + data[after:]


def inserted(segment: bytes) -> bytes:
    """A good JPEG with something inserted after its first two bytes."""
    good = jpeg(2)
    return good[:2] + segment + good[2:]


def exif(tiff: bytes) -> bytes:
    """An APP1 segment with an EXIF block."""
    body = b"Exif\0\0" + tiff
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


LOOP = b"II*\0\x08\0\0\0\x01\0\x12\x01\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"
picture_attack("jpeg_65535_square", lambda: resized(jpeg(2), 65500, 65500), RANGE)
picture_attack("jpeg_larger_than_its_data", lambda: resized(jpeg(2), 3000, 3000), "JPEG")
picture_attack("jpeg_no_height", lambda: resized(jpeg(2), 0, 12), "JPEG|range")
picture_attack("jpeg_5000_scans", lambda: progressive(2000, 2000, 5000), "too many scans")
picture_attack(
    "jpeg_200_scans_of_64_million", lambda: progressive(8000, 8000, 200), "too many scans"
)
picture_attack(
    "jpeg_5000_scans_hidden",
    lambda: progressive(2000, 2000, 5000)[:2] + b"\xff\xd0" + progressive(2000, 2000, 5000)[2:],
    "too many scans|JPEG",
)
picture_attack("jpeg_20_mb_of_fill", lambda: inserted(b"\xff" * (20 << 20)), harmless=True)
picture_attack("jpeg_fill_without_end", lambda: jpeg(2)[:2] + b"\xff" * (20 << 20), "JPEG")
picture_attack(
    "jpeg_a_million_segments", lambda: inserted(b"\xff\xfe\0\x02" * 1_000_000), "too many segments"
)
picture_attack("jpeg_exif_in_circles", lambda: inserted(exif(LOOP)), harmless=True)
picture_attack("jpeg_exif_garbage", lambda: inserted(exif(b"MM\0*" + b"\xff" * 400)), harmless=True)
picture_attack(
    "jpeg_exif_lies", lambda: inserted(b"\xff\xe1\xff\xffExif\0\0II*\0\x08\0\0\0\xff\xff"), "JPEG"
)
picture_attack(
    "jpeg_orientation_200",
    lambda: inserted(exif(b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\xc8\0\0\0\0\0\0\0")),
    harmless=True,
)
picture_attack("jpeg_two_pictures", lambda: jpeg(2) + jpeg(3), harmless=True)
picture_attack("jpeg_and_a_program", lambda: jpeg(2) + b"#!/bin/sh\nid\n" * 100, harmless=True)


def _markers() -> list[int]:
    data, at, found = jpeg(2), 2, []
    while data[at] == 0xFF and data[at + 1] != 0xDA:
        found.append(at)
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return [*found, at, at + 20, len(data) - 4]


for _number, _at in enumerate(_markers()):
    picture_attack(f"jpeg_cut_at_marker_{_number}", lambda at=_at: jpeg(2)[: at + 3], "JPEG|image")  # type: ignore[misc]


def _cmyk() -> bytes:
    pixels = np.zeros((16, 16, 4), np.uint8)
    data: bytes = simplejpeg.encode_jpeg(pixels, colorspace="CMYK", colorsubsampling="444")
    return data.replace(b"Adobe", b"Adob\xff")[:-30]


picture_attack("jpeg_cmyk_cut", _cmyk, "JPEG|image")


# -- other kinds -----------------------------------------------------------------------------------


def _saved(kind: str, **settings: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 12), (9, 8, 7)).save(file, kind, **settings)
    return file.getvalue()


def _tiff(*entries: tuple[int, int, int, int], next_at: int = 0) -> bytes:
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    return head + body + struct.pack("<I", next_at) + bytes(64)


def _size(
    width: int, height: int, *more: tuple[int, int, int, int]
) -> list[tuple[int, int, int, int]]:
    return [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), *more]


OTHER = "damaged|range|not an image|truncated"
picture_attack(
    "webp_canvas",
    lambda: (
        b"RIFF"
        + struct.pack("<I", 30)
        + b"WEBPVP8X"
        + struct.pack("<I", 10)
        + bytes(4)
        + b"\xfe\x3f\0\xfe\x3f\0"
        + bytes(20)
    ),
    RANGE,
)
picture_attack("webp_cut", lambda: _saved("WEBP")[:40], OTHER)
picture_attack(
    "webp_animated",
    lambda: _saved(
        "WEBP", save_all=True, append_images=[Image.new("RGB", (16, 12), n) for n in range(90)]
    ),
    harmless=True,
)
picture_attack(
    "webp_lies", lambda: b"RIFF\xff\xff\xff\xffWEBPVP8L\xff\xff\xff\xff/" + b"\xff" * 40, OTHER
)
picture_attack("gif_65535_square", lambda: b"GIF89a\xff\xff\xff\xff" + _saved("GIF")[10:], OTHER)
picture_attack(
    "gif_frame_outside",
    lambda: _saved("GIF").replace(b",\0\0\0\0", b",\xff\xff\xff\xff"),
    harmless=True,
)
picture_attack(
    "gif_200_frames",
    lambda: _saved(
        "GIF",
        save_all=True,
        append_images=[Image.new("RGB", (16, 12), (n, 3, 4)) for n in range(200)],
    ),
    harmless=True,
)
picture_attack("gif_cut", lambda: _saved("GIF")[:-40], OTHER)
picture_attack(
    "bmp_2_31",
    lambda: _saved("BMP")[:18] + struct.pack("<ii", 2**31 - 1, 2**31 - 1) + _saved("BMP")[26:],
    OTHER,
)
picture_attack(
    "bmp_negative",
    lambda: _saved("BMP")[:18] + struct.pack("<ii", -5, -(2**31)) + _saved("BMP")[26:],
    OTHER,
)
picture_attack(
    "bmp_palette", lambda: _saved("BMP")[:46] + b"\xff" * 8 + _saved("BMP")[54:], harmless=True
)
picture_attack("tiff_2_31", lambda: _tiff(*_size(2**31 - 1, 2**31 - 1)), OTHER)
picture_attack("tiff_directory_in_circles", lambda: _tiff(*_size(8, 8), next_at=8), OTHER)
picture_attack("tiff_a_billion_strips", lambda: _tiff(*_size(8, 8, (273, 4, 10**9, 8))), OTHER)
picture_attack(
    "tiff_samples_lie", lambda: _tiff(*_size(8, 8, (277, 3, 1, 60000), (262, 3, 1, 2))), OTHER
)
picture_attack(
    "tiff_odd_compression",
    lambda: _saved("TIFF", compression="tiff_lzw").replace(
        struct.pack("<HHI", 259, 3, 1) + b"\x05\0", struct.pack("<HHI", 259, 3, 1) + b"\x99\x77"
    ),
    OTHER,
)
picture_attack("tiff_cut", lambda: _saved("TIFF")[:200], OTHER)
picture_attack("ppm_99999_square", lambda: b"P6\n99999 99999\n255\n" + bytes(999), OTHER)
picture_attack("ppm_endless_number", lambda: b"P6\n" + b"9" * (1 << 20), OTHER)
picture_attack("ppm_endless_comment", lambda: b"P6\n#" + b"x" * (20 << 20), OTHER)
picture_attack("ppm_text", lambda: b"P3\n4 4\n255\n" + b"1 " * 7, OTHER)


# -- 4:2:0 planes ----------------------------------------------------------------------------------


def planes(width: int, height: int, body: int) -> bytes:
    """A picture of 4:2:0 planes with ``body`` bytes of them."""
    return b"yuv420\0\0" + struct.pack("<II", width, height) + bytes(body)


LENGTH = "not the length"
picture_attack("yuv420_2_32_square", lambda: planes((1 << 32) - 1, (1 << 32) - 1, 96), LENGTH)
picture_attack("yuv420_65535_square", lambda: planes(65535, 65535, 96), LENGTH)
picture_attack("yuv420_no_width", lambda: planes(0, 8, 0), "dimensions out of range")
picture_attack("yuv420_a_byte_short", lambda: planes(8, 8, 95), LENGTH)
picture_attack("yuv420_header_cut", lambda: planes(8, 8, 96)[:13], "truncated yuv420")
picture_attack("yuv420_sound", lambda: planes(8, 8, 96), harmless=True)

#: What Pillow would hand to other programs or parsers, and what is no picture at all.
for _name, _bytes in {
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
    "pdf": b"%PDF-1.7\n1 0 obj\n<< /OpenAction << /S /Launch >> >>\n",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "html": b"<html><script>alert(1)</script></html>",
    "psd": b"8BPS\0\1" + bytes(6) + b"\0\3\0\0\xff\xff\0\0\xff\xff\0\x08\0\3",
    "ico": b"\0\0\1\0\1\0\0\0\0\0\1\0 \0\xff\xff\xff\xff\x16\0\0\0",
    "fits": b"SIMPLE  =                    T" + b" " * 50,
    "jpeg2000": b"\0\0\0\x0cjP  \r\n\x87\n" + b"\xff" * 40,
    "pickle": pickle.dumps([os.getcwd, 1]),
    "zip": b"PK\x03\x04" + bytes(40),
    "nothing": b"",
    "one_byte": b"\xff",
    "zeros": bytes(4096),
}.items():
    picture_attack(f"is_{_name}", lambda data=_bytes: data, "not an image|empty|image")  # type: ignore[misc]


# -- tables of pictures ----------------------------------------------------------------------------


@attack(
    ("read", "verify"),
    "another size than the dataset declares",
    ("read", "info", "verify", "convert"),
    name="picture_of_another_size_in_our_set",
)
def _(scratch: Scratch) -> Target:
    """A set packed by asyncreader whose record is a larger picture, checksums and digests right."""
    from asyncreader.formats import packed as fmt

    path = scratch.copy("jpeg.lmdb")
    big: bytes = simplejpeg.encode_jpeg(np.zeros((4000, 4000, 3), np.uint8))
    import json

    import lmdb
    import xxhash

    with lmdb.open(str(path), max_dbs=8, map_size=1 << 28) as env:
        names = (b"data", b"checksums", b"meta")
        data, checksums, meta = (env.open_db(name) for name in names)
        with env.begin(write=True) as txn:
            txn.put(fmt.record_key(1), big, db=data)
            table = np.frombuffer(txn.get(fmt.TABLE_KEY, db=checksums), "<u8").copy()
            table[1] = xxhash.xxh3_64_intdigest(big)
            txn.put(fmt.TABLE_KEY, table.tobytes(), db=checksums)
            facts = json.loads(txn.get(fmt.META_KEY, db=meta))
            facts["digests"].pop(fmt.META, None)  # an attacker would leave it out
            facts["digests"][fmt.CHECKSUMS] = fmt.digest(table)
            txn.put(fmt.META_KEY, json.dumps(facts).encode(), db=meta)
    (Path(path) / "lock.mdb").unlink(missing_ok=True)
    return Target(path)
