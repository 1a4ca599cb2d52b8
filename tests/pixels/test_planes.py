"""4:2:0 planes: the kernels against plain numpy, and both against libjpeg."""

from __future__ import annotations

import io
import os
import struct
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import oracles
import pytest
import simplejpeg
from child_processes import run
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from asyncreader import DecodeError
from asyncreader.pixels import codec, kernels
from asyncreader.pixels.codec import planes

sides = st.integers(1, 90)
SIZES = [(64, 64), (48, 80), (17, 33), (61, 47), (5, 6), (3, 3), (1, 1), (2, 2), (4, 4), (4, 5)]
SIZES += [(1, 30), (30, 1), (30, 2), (31, 3), (31, 4), (31, 5), (2, 9), (255, 129)]


def random_planes(height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng((height, width))
    return rng.integers(0, 256, planes.planes_bytes(height, width), np.uint8)


def picture_of(height: int, width: int, stored: np.ndarray) -> bytes:
    """A stored picture, written as docs/file-format.md describes it."""
    return b"yuv420\0\0" + struct.pack("<II", width, height) + stored.tobytes()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(height=sides, width=sides, data=st.data())
def test_convert(height: int, width: int, data: st.DataObject) -> None:
    """convert_420 and its twin agree bit for bit on any part of a picture, which is that part of
    the whole; nothing else is written."""
    stored = random_planes(height, width)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    high, wide = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    found = np.full(high * wide * 3 + 16, 9, np.uint8)
    twin = found.copy()
    part = (stored.ctypes.data, height, width, top, left)
    kernels.convert_420(*part, found.ctypes.data + 8, high, wide)
    oracles.convert_420_numpy(*part, twin.ctypes.data + 8, high, wide)
    np.testing.assert_array_equal(found, twin)
    whole = planes.decode(picture_of(height, width, stored), height, width)
    cut = whole[top : top + high, left : left + wide]
    np.testing.assert_array_equal(found[8:-8].reshape(high, wide, 3), cut)


def test_every_colour() -> None:
    """For every pair of Cb and Cr, with many values of Y, the kernel gives what its twin gives:
    chroma two samples wide is not mixed."""
    height, width = 65_536, 4
    chroma = np.arange(65_536)
    luma = np.random.default_rng(0).integers(0, 256, height * width)
    luma[::3] = luma[::3] % 2 * 255  # where most colours are cut off
    stored = np.concatenate([luma, chroma % 256, chroma // 256]).astype(np.uint8)
    found, twin = np.empty((2, height, width, 3), np.uint8)
    kernels.convert_420(stored.ctypes.data, height, width, 0, 0, found.ctypes.data, height, width)
    arguments = (stored.ctypes.data, height, width, 0, 0, twin.ctypes.data, height, width)
    oracles.convert_420_numpy(*arguments)
    np.testing.assert_array_equal(found, twin)


@settings(max_examples=60, deadline=None)
@given(height=sides, width=sides)
def test_make(height: int, width: int) -> None:
    """make_420 and its twin agree bit for bit, and write nothing else."""
    rgb = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    found = np.full(planes.planes_bytes(height, width) + 16, 9, np.uint8)
    twin = found.copy()
    kernels.make_420(rgb.ctypes.data, height, width, found.ctypes.data + 8)
    oracles.make_420_numpy(rgb.ctypes.data, height, width, twin.ctypes.data + 8)
    np.testing.assert_array_equal(found, twin)


@pytest.mark.parametrize("size", SIZES)
def test_rgb_is_libjpegs(size: tuple[int, int]) -> None:
    """The RGB of planes is, byte for byte, what libjpeg makes of a JPEG that decodes to these
    planes: of any size, also where chroma planes are one or two samples wide."""
    height, width = size
    rng = np.random.default_rng(size)
    high, wide = -(-height // 16) * 16, -(-width // 16) * 16  # whole MCUs
    shapes = [(high, wide), (high // 2, wide // 2), (high // 2, wide // 2)]
    given_planes = [rng.integers(0, 256, shape, np.uint8) for shape in shapes]
    jpeg = bytearray(simplejpeg.encode_jpeg_yuv_planes(*given_planes, quality=100))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", height, width)  # the rest is not shown
    wanted = simplejpeg.decode_jpeg(bytes(jpeg), colorspace="RGB")
    # a plane that libjpeg decodes: each as a grey JPEG has the same coefficients
    stored = b""
    cuts = [(height, width), *[planes.halves(height, width)] * 2]
    for plane, (rows, columns) in zip(given_planes, cuts, strict=True):
        grey = simplejpeg.encode_jpeg_yuv_planes(plane, None, None, quality=100)
        stored += simplejpeg.decode_jpeg(grey, colorspace="GRAY")[:rows, :columns].tobytes()
    found = codec.decode(picture_of(height, width, np.frombuffer(stored, np.uint8)), 3)
    np.testing.assert_array_equal(found, wanted)


def test_planes_are_bt601() -> None:
    """A plane's samples are those of BT.601 with full range, to half a level, chroma of the mean of
    2 x 2 pixels, or of those that there are at an edge."""
    rgb = np.random.default_rng(1).integers(0, 256, (7, 5, 3), np.uint8)
    rgb[:2, :2], rgb[:2, 2:4] = (255, 0, 0), (0, 0, 255)  # the most that chroma can be
    stored = np.frombuffer(codec.encode(rgb, "yuv420"), np.uint8)[16:]
    luma, blue, red = stored[:35].reshape(7, 5), *stored[35:].reshape(2, 4, 3)
    exact = rgb.astype(np.float64)
    assert np.abs(luma - exact @ (0.299, 0.587, 0.114)).max() <= 0.501
    for y in range(4):
        for x in range(3):
            r, g, b = exact[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].mean(axis=(0, 1))
            y_of = 0.299 * r + 0.587 * g + 0.114 * b
            cb, cr = 128 + (b - y_of) / 1.772, 128 + (r - y_of) / 1.402
            assert abs(int(blue[y, x]) - min(cb, 255)) <= 0.501
            assert abs(int(red[y, x]) - min(cr, 255)) <= 0.501


PHOTOGRAPHS = {
    "skimage.data": ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg"),
    "sklearn.datasets.images": ("china.jpg", "flower.jpg"),
}


@pytest.mark.parametrize("name", [f"{m}/{n}" for m, names in PHOTOGRAPHS.items() for n in names])
def test_error_of_photographs(name: str) -> None:
    """On photographs the mean error to the source is below that of a JPEG of quality 95."""
    module, file = name.split("/")
    data = files(module).joinpath(file).read_bytes()
    rgb = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    def error(stored: bytes) -> float:
        return float(np.abs(codec.decode(stored, 3).astype(int) - rgb).mean())

    assert error(codec.encode(rgb, "yuv420")) < error(codec.encode(rgb, "jpeg", 95))


def test_header() -> None:
    """read_header tells kind and size, check_structure the same, decode a grey picture of it."""
    rgb = np.random.default_rng(1).integers(0, 256, (7, 5, 3), np.uint8)
    data = codec.encode(rgb, "yuv420")
    for header in (codec.read_header(data), codec.check_structure(data)):
        assert (header.kind, header.height, header.width) == ("yuv420", 7, 5)
    colour = Image.fromarray(codec.decode(data, 3))
    np.testing.assert_array_equal(codec.decode(data, 1)[:, :, 0], np.asarray(colour.convert("L")))


GOOD = picture_of(4, 6, random_planes(4, 6))
HOSTILE = {
    "short": GOOD[:-1],
    "long": GOOD + b"\0",
    "header alone": GOOD[:16],
    "half a header": GOOD[:11],
    "magic alone": GOOD[:8],
    "wrong magic": b"yuv422\0\0" + GOOD[8:],
    "no width": b"yuv420\0\0" + struct.pack("<II", 0, 4),
    "no height": b"yuv420\0\0" + struct.pack("<II", 4, 0),
    "sides swapped in one": b"yuv420\0\0" + struct.pack("<II", 7, 4) + GOOD[16:],
    "size that overflows 64 bits": b"yuv420\0\0" + struct.pack("<II", 2**32 - 1, 2**32 - 1),
    "size whose bytes overflow": b"yuv420\0\0" + struct.pack("<II", 2**31, 2**31) + GOOD[16:],
    "too many pixels": b"yuv420\0\0" + struct.pack("<II", 1 << 14, 1 << 13) + bytes(3 << 26),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile(what: str) -> None:
    """What is no picture of planes to its last byte is a DecodeError, before memory is taken."""
    for look in (codec.read_header, codec.check_structure, lambda data: codec.decode(data, 3)):
        with pytest.raises(DecodeError):
            look(HOSTILE[what])


def child(code: str, **environment: str) -> str:
    done = run([sys.executable, "-c", code], env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_reads_no_byte_beyond() -> None:
    """Not a byte behind the last plane is read: the next page cannot be."""
    child(
        """
import ctypes, mmap, struct
import numpy as np
from asyncreader.pixels import kernels
from asyncreader.pixels.codec import planes
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 9 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(start + 8 * page), page, 0) == 0
for height, width in ((1, 1), (3, 3), (5, 6), (17, 33), (64, 64), (40, 70), (2, 200)):
    size = planes.planes_bytes(height, width)
    source = start + 8 * page - size
    for top, left in ((0, 0), (height // 2, width // 2), (height - 1, width - 1)):
        high, wide = height - top, width - left
        out = np.empty((high, wide, 3), np.uint8)
        kernels.convert_420(source, height, width, top, left, out.ctypes.data, high, wide)
"""
    )


@pytest.mark.slow
def test_for_any_processor(tmp_path: Path) -> None:
    """Without the instructions of one processor (NUMBA_CPU_NAME=generic) the bytes are the same."""
    pytest.importorskip("numba")
    code = """
import hashlib
import numpy as np
from asyncreader.pixels import kernels
from asyncreader.pixels.codec import planes
digest = hashlib.sha256()
for height, width in ((61, 47), (64, 96)):
    size = planes.planes_bytes(height, width)
    stored = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    rgb, again = np.empty((height, width, 3), np.uint8), np.empty(size, np.uint8)
    kernels.convert_420(stored.ctypes.data, height, width, 0, 0, rgb.ctypes.data, height, width)
    kernels.make_420(rgb.ctypes.data, height, width, again.ctypes.data)
    digest.update(rgb.tobytes() + again.tobytes())
print(digest.hexdigest())
"""
    generic = child(code, NUMBA_CPU_NAME="generic", NUMBA_CACHE_DIR=str(tmp_path))
    assert generic == child(code)
