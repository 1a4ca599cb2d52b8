"""4:2:0 planes: the kernels against libjpeg and BT.601."""

import struct

import numpy as np
import pytest
import simplejpeg
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
    """convert_420 makes any part of a picture that part of the whole, and writes nothing else."""
    stored = random_planes(height, width)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    high, wide = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    found = np.full(high * wide * 3 + 16, 9, np.uint8)
    part = (stored.ctypes.data, height, width, top, left)
    kernels.convert_420(*part, found.ctypes.data + 8, high, wide)
    whole = planes.decode(picture_of(height, width, stored), height, width)
    cut = whole[top : top + high, left : left + wide]
    np.testing.assert_array_equal(found[8:-8].reshape(high, wide, 3), cut)
    assert (found[:8] == 9).all()
    assert (found[-8:] == 9).all()


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


#: Half a level, and what three weights in 1/65536 are off for values of 255 at most.
_ROUNDED = 0.5 + 3 * 0.5 * 255 / 65536


@settings(max_examples=60, deadline=None)
@given(height=sides, width=sides)
def test_planes_are_bt601(height: int, width: int) -> None:
    """A plane's samples are those of BT.601 with full range, to half a level, chroma of the mean of
    2 x 2 pixels, or of those that there are at an edge."""
    rgb = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    rgb[:2, :2], rgb[:2, 2:4] = (255, 0, 0), (0, 0, 255)  # the most that chroma can be
    stored = np.frombuffer(codec.encode(rgb, "yuv420"), np.uint8)[16:]
    weights = np.array((0.299, 0.587, 0.114))
    luma = stored[: rgb[:, :, 0].size].reshape(height, width)
    assert np.abs(luma - rgb @ weights).max() <= _ROUNDED
    even = np.pad(rgb, ((0, height % 2), (0, width % 2), (0, 0)), "edge").astype(float)
    mean = (even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]) / 4
    y = mean @ weights
    chroma = stored[luma.size :].reshape(2, *y.shape)
    for plane, c, size in ((chroma[0], 2, 1.772), (chroma[1], 0, 1.402)):
        assert np.abs(plane - np.minimum(128 + (mean[..., c] - y) / size, 255)).max() <= _ROUNDED


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
