"""Hostile pictures, each tried in an LMDB of pictures and in a folder that is packed."""

import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from .corpus import CONVERT, SAMPLE, SET, Scratch, Target, attack, family, jpeg
from .lmdb_files import bare

#: By name: what an error must say (None: it may be served), and the bytes of the picture.
Rows = dict[str, tuple[str | None, Callable[[], bytes]]]


def in_set(scratch: Scratch, make: Callable[[], bytes]) -> Target:
    """The picture as a record of a set."""
    path = bare(scratch, [jpeg(0), jpeg(1), make(), jpeg(3)])
    return Target(path, {"size": [8, 8]})


def in_folder(scratch: Scratch, make: Callable[[], bytes]) -> Target:
    """The picture as a file of a folder."""
    folder = scratch.folder / "pictures"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    (folder / "3.jpg").write_bytes(make())
    return Target(folder, {"size": [8, 8]}, {"no_labels": True})


def pictures(rows: Rows) -> None:
    """Register both of each picture."""
    family("A record", "picture_", in_set, rows, SAMPLE, SET)
    files = {f"{name}_in_folder": row for name, row in rows.items()}
    family("A file", "picture_", in_folder, files, CONVERT, CONVERT)


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


def rgba(before: bytes) -> bytes:
    """A good PNG with chunks before its pixels."""
    return png(8, 8, 8, 6, zlib.compress(bytes(8 * 33)), before)


BOMB = zlib.compress(bytes(50 << 20), 9)
RANGE, CUT = "dimensions out of range|damaged|too large", "damaged|truncated"
PNGS: Rows = {
    "png_2_31_wide": (RANGE, lambda: png((1 << 31) - 1, 1, body=BOMB)),
    "png_65535_square": (RANGE, lambda: png(65535, 65535, 1, 0, BOMB)),
    "png_65535_square_interlaced": (RANGE, lambda: png(65535, 65535, 1, 0, BOMB, interlaced=1)),
    "png_no_size": (RANGE, lambda: png(0, 0, body=zlib.compress(b""))),
    "png_inflates_to_50_mb": (None, lambda: png(8, 8, body=BOMB)),
    "png_ztxt_bomb": (None, lambda: rgba(chunk(b"zTXt", b"k\0\0" + BOMB))),
    "png_itxt_bombs": (None, lambda: rgba(chunk(b"iTXt", b"k\0\1\0\0\0" + BOMB) * 50)),
    "png_iccp_bomb": (None, lambda: rgba(chunk(b"iCCP", b"k\0\0" + BOMB))),
    "png_iccp_bomb_fast_decoder": (None, lambda: png(8, 8, before=chunk(b"iCCP", b"k\0\0" + BOMB))),
    "png_200000_chunks": (None, lambda: png(8, 8, before=chunk(b"teSt", b"") * 200_000)),
    "png_no_pixels": (CUT, lambda: png(8, 8, body=b"")),
    "png_short": (CUT, lambda: png(64, 64, body=zlib.compress(bytes(10)))),
    "png_wrong_crc": ("PNG", lambda: png(8, 8)[:-20] + b"\0" * 8 + png(8, 8)[-12:]),
    "png_cut": ("PNG|truncated", lambda: png(8, 8)[:50]),
    "png_exif_garbage": (None, lambda: png(8, 8, before=chunk(b"eXIf", b"II*\0" + b"\xff" * 30))),
}


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


def inserted(segment: bytes, good: bytes = jpeg(2)) -> bytes:
    """A JPEG with something inserted after its first two bytes."""
    return good[:2] + segment + good[2:]


def exif(tiff: bytes) -> bytes:
    """An APP1 segment with an EXIF block."""
    body = b"Exif\0\0" + tiff
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


LOOP = b"II*\0\x08\0\0\0\x01\0\x12\x01\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"
ORIENTED = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\xc8\0\0\0\0\0\0\0"
LIAR = b"\xff\xe1\xff\xffExif\0\0II*\0\x08\0\0\0\xff\xff"
SCANS = "too many scans"
JPEGS: Rows = {
    "jpeg_65535_square": (RANGE, lambda: resized(jpeg(2), 65500, 65500)),
    "jpeg_larger_than_its_data": ("JPEG", lambda: resized(jpeg(2), 3000, 3000)),
    "jpeg_no_height": ("JPEG|range", lambda: resized(jpeg(2), 0, 12)),
    "jpeg_5000_scans": (SCANS, lambda: progressive(2000, 2000, 5000)),
    "jpeg_200_scans_of_64_million": (SCANS, lambda: progressive(8000, 8000, 200)),
    "jpeg_5000_scans_hidden": (
        "too many scans|JPEG",
        lambda: inserted(b"\xff\xd0", progressive(2000, 2000, 5000)),
    ),
    "jpeg_20_mb_of_fill": (None, lambda: inserted(b"\xff" * (20 << 20))),
    "jpeg_fill_without_end": ("JPEG", lambda: jpeg(2)[:2] + b"\xff" * (20 << 20)),
    "jpeg_a_million_segments": (
        "too many segments",
        lambda: inserted(b"\xff\xfe\0\x02" * 1_000_000),
    ),
    "jpeg_exif_in_circles": (None, lambda: inserted(exif(LOOP))),
    "jpeg_exif_garbage": (None, lambda: inserted(exif(b"MM\0*" + b"\xff" * 400))),
    "jpeg_exif_lies": ("JPEG", lambda: inserted(LIAR)),
    "jpeg_orientation_200": (None, lambda: inserted(exif(ORIENTED))),
    "jpeg_two_pictures": (None, lambda: jpeg(2) + jpeg(3)),
    "jpeg_and_a_program": (None, lambda: jpeg(2) + b"#!/bin/sh\nid\n" * 100),
    "jpeg_cmyk_cut": ("JPEG|image", lambda: _cmyk()),
}


def _markers() -> list[int]:
    data, at, found = jpeg(2), 2, []
    while data[at] == 0xFF and data[at + 1] != 0xDA:
        found.append(at)
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return [*found, at, at + 20, len(data) - 4]


JPEGS |= {
    f"jpeg_cut_at_marker_{number}": ("JPEG|image", lambda at=at: jpeg(2)[: at + 3])  # type: ignore[misc]
    for number, at in enumerate(_markers())
}


def _cmyk() -> bytes:
    pixels = np.zeros((16, 16, 4), np.uint8)
    data: bytes = simplejpeg.encode_jpeg(pixels, colorspace="CMYK", colorsubsampling="444")
    return data.replace(b"Adobe", b"Adob\xff")[:-30]


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


def frames(kind: str, count: int, colour: Callable[[int], Any]) -> bytes:
    """An animation."""
    more = [Image.new("RGB", (16, 12), colour(n)) for n in range(count)]
    return _saved(kind, save_all=True, append_images=more)


def bmp(width: int, height: int) -> bytes:
    """A BMP of another size."""
    return _saved("BMP")[:18] + struct.pack("<ii", width, height) + _saved("BMP")[26:]


def odd_tiff() -> bytes:
    """A TIFF of a compression that nobody knows."""
    head = struct.pack("<HHI", 259, 3, 1)
    lzw = _saved("TIFF", compression="tiff_lzw")
    return lzw.replace(head + b"\x05\0", head + b"\x99\x77")


CANVAS = b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xfe\x3f\0\xfe\x3f\0" + bytes(20)
LOSSLESS = b"RIFF\xff\xff\xff\xffWEBPVP8L\xff\xff\xff\xff/" + b"\xff" * 40
OTHER = "damaged|range|not an image|truncated"
OTHERS: Rows = {
    "webp_canvas": (RANGE, lambda: CANVAS),
    "webp_cut": (OTHER, lambda: _saved("WEBP")[:40]),
    "webp_animated": (None, lambda: frames("WEBP", 90, lambda n: n)),
    "webp_lies": (OTHER, lambda: LOSSLESS),
    "gif_65535_square": (OTHER, lambda: b"GIF89a\xff\xff\xff\xff" + _saved("GIF")[10:]),
    "gif_frame_outside": (None, lambda: _saved("GIF").replace(b",\0\0\0\0", b",\xff\xff\xff\xff")),
    "gif_200_frames": (None, lambda: frames("GIF", 200, lambda n: (n, 3, 4))),
    "gif_cut": (OTHER, lambda: _saved("GIF")[:-40]),
    "bmp_2_31": (OTHER, lambda: bmp(2**31 - 1, 2**31 - 1)),
    "bmp_negative": (OTHER, lambda: bmp(-5, -(2**31))),
    "bmp_palette": (None, lambda: _saved("BMP")[:46] + b"\xff" * 8 + _saved("BMP")[54:]),
    "tiff_2_31": (OTHER, lambda: _tiff(*_size(2**31 - 1, 2**31 - 1))),
    "tiff_directory_in_circles": (OTHER, lambda: _tiff(*_size(8, 8), next_at=8)),
    "tiff_a_billion_strips": (OTHER, lambda: _tiff(*_size(8, 8, (273, 4, 10**9, 8)))),
    "tiff_samples_lie": (OTHER, lambda: _tiff(*_size(8, 8, (277, 3, 1, 60000), (262, 3, 1, 2)))),
    "tiff_odd_compression": (OTHER, odd_tiff),
    "tiff_cut": (OTHER, lambda: _saved("TIFF")[:200]),
    "ppm_99999_square": (OTHER, lambda: b"P6\n99999 99999\n255\n" + bytes(999)),
    "ppm_endless_number": (OTHER, lambda: b"P6\n" + b"9" * (1 << 20)),
    "ppm_endless_comment": (OTHER, lambda: b"P6\n#" + b"x" * (20 << 20)),
    "ppm_text": (OTHER, lambda: b"P3\n4 4\n255\n" + b"1 " * 7),
}


# -- 4:2:0 planes ----------------------------------------------------------------------------------


def planes(width: int, height: int, body: int) -> bytes:
    """A picture of 4:2:0 planes with ``body`` bytes of them."""
    return b"yuv420\0\0" + struct.pack("<II", width, height) + bytes(body)


LENGTH = "not the length"
PLANES: Rows = {
    "yuv420_2_32_square": (LENGTH, lambda: planes((1 << 32) - 1, (1 << 32) - 1, 96)),
    "yuv420_65535_square": (LENGTH, lambda: planes(65535, 65535, 96)),
    "yuv420_no_width": ("dimensions out of range", lambda: planes(0, 8, 0)),
    "yuv420_a_byte_short": (LENGTH, lambda: planes(8, 8, 95)),
    "yuv420_header_cut": ("truncated yuv420", lambda: planes(8, 8, 96)[:13]),
    "yuv420_sound": (None, lambda: planes(8, 8, 96)),
}

#: What Pillow would hand to other programs or parsers, and what is no picture at all.
NO_PICTURES = {
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
}
NONE_AT_ALL: Rows = {
    f"is_{name}": ("not an image|empty|image", lambda data=data: data)  # type: ignore[misc]
    for name, data in NO_PICTURES.items()
}
pictures(PNGS | JPEGS | OTHERS | PLANES | NONE_AT_ALL)


# -- tables of pictures ----------------------------------------------------------------------------


@attack(
    ("read", "verify"),
    "another size than the dataset declares",
    SET,
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
