"""Which part of a picture is cut out, and how it is resized."""

import io
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import encoded
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from asyncreader.pixels import geometry
from asyncreader.pixels.encoded import put_views
from asyncreader.pixels.row_maker import RowView
from asyncreader.pixels.specs import OutputSpec, SampleSpec
from asyncreader.pixels.transform import plan_rows
from asyncreader.stats import Meter

PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def shares(start: float, length: float, size: int, count: int) -> np.ndarray:
    """The share of each of ``count`` pixels in each of ``size`` that stand for a length."""
    edges, pixels = start + np.arange(size + 1)[:, None] * length / size, np.arange(count)
    covered = np.minimum(pixels + 1, edges[1:]) - np.maximum(pixels, edges[:-1])
    found: np.ndarray = covered.clip(0) / covered.clip(0).sum(axis=1, keepdims=True)
    return found


def resized(
    plane: np.ndarray, box: tuple[float, ...], size: tuple[int, int], interpolation: str
) -> np.ndarray:
    """A channel of uint8 or of floats, of which the pixels that a box touches are cut out before it
    is resized: by Pillow, along the lines first, or by the area that each pixel covers."""
    (top, left), (high, wide) = map(math.floor, box[:2]), size
    cut = plane[top : math.ceil(box[0] + box[2]), left : math.ceil(box[1] + box[3])]
    (y, x), (tall, broad) = (box[0] - top, box[1] - left), box[2:]
    if interpolation == "area":
        down, across = shares(y, tall, high, len(cut)), shares(x, broad, wide, cut.shape[1])
        return np.asarray(down @ cut.astype(float) @ across.T)
    how = PILLOW[interpolation]
    cut = np.ascontiguousarray(cut if cut.dtype == np.uint8 else cut.astype(np.float32))
    along = Image.fromarray(cut).resize((wide, len(cut)), how, (x, 0, x + broad, len(cut)))
    return np.asarray(along.resize((wide, high), how, (0, y, wide, y + tall)))


def eighths(data: st.DataObject, side: int) -> tuple[int, int]:
    """Start and length of a part of a side, in eighths of a pixel."""
    start = data.draw(st.integers(0, 8 * side - 4))
    return start, data.draw(st.integers(4, 8 * side - start))


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "i4", "i8", "?", "f2", "f4", "f8"])
@pytest.mark.parametrize("interpolation", geometry.INTERPOLATIONS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_part_is_what_pillow_makes_of_it(
    interpolation: str, dtype: str, data: st.DataObject
) -> None:
    """Any part of a picture, in fractions of pixels, of any dtype, channels and strides, mirrored
    too: Pillow's pixels of what is cut out, to a level ("bicubic": two) in bytes and to rounding
    elsewhere; "area" is the mean of what is covered, and "nearest" the pixel under the middle."""
    stored, size = (
        (data.draw(st.integers(1, most)), data.draw(st.integers(1, most))) for most in (150, 60)
    )
    channels, flip = data.draw(st.integers(1, 6)), data.draw(st.booleans())
    (top, tall), (left, broad) = (eighths(data, side) for side in stored)
    most = 2 if dtype == "?" else 256
    values = np.random.default_rng(tall).integers(0, most, (*stored, channels))
    image = values.astype(dtype, data.draw(st.sampled_from("CF")))
    box = (top / 8, left / 8, tall / 8, broad / 8)
    out = np.empty((*size, channels), dtype)
    geometry.resize_into(image, out, box, interpolation, flip)
    found = out[:, ::-1] if flip else out
    if interpolation == "nearest" or (size == box[2:] and top % 8 == 0 == left % 8):
        rows, columns = (
            (2 * count * start + (2 * np.arange(count) + 1) * length) // (16 * count)
            for count, start, length in ((size[0], top, tall), (size[1], left, broad))
        )
        np.testing.assert_array_equal(found, image[rows[:, None], columns])
        return
    for c in range(channels):
        plane = image[:, :, c] if dtype in ("u1", "f4", "f8") else image[:, :, c].astype("f8")
        wanted = resized(plane, box, size, interpolation)
        off = np.abs(found[:, :, c].astype(float) - wanted)
        if geometry.averaged(box[2], box[3], size):  # blocks of many pixels: not to the last bits
            assert off.max() <= 4
        elif dtype == "u1":
            assert off.max() <= {"bilinear": 1, "bicubic": 2, "area": 1.1}[interpolation]
            assert off.mean() < (0.5 if interpolation == "area" else 0.1) or off.size < 3000
        elif image.dtype.kind == "f":
            exact = 1e-12 if interpolation == "area" else 1e-6
            assert off.max() <= 256 * {"f2": 2e-3, "f4": 1e-5, "f8": exact}[dtype]
        else:
            low, high = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            assert np.abs(found[:, :, c] - wanted.clip(low, high)).max() <= 0.501


@pytest.mark.parametrize("interpolation", PILLOW)
def test_noise_of_black_and_white_is_resized_along_the_lines_first(interpolation: str) -> None:
    """Pixels of 0 and 255, at which "bicubic" overshoots most, each axis shrunk or enlarged: within
    a level ("bicubic": two) of Pillow's pass along the lines, rounded and clipped to bytes, and its
    pass down after that. The other order is about 30 levels off."""
    rng, swapped = np.random.default_rng(18), 0
    for tall, broad, high, wide in itertools.product((40, 97), (31, 120), (23, 64), (52, 150)):
        noise = (rng.random((tall, broad, 3)) < 0.5).astype(np.uint8) * 255
        image, out = Image.fromarray(noise), np.empty((high, wide, 3), np.uint8)
        geometry.resize_into(noise, out, None, interpolation)
        how = PILLOW[interpolation]
        along = np.asarray(image.resize((wide, tall), how).resize((wide, high), how))
        down = np.asarray(image.resize((broad, high), how).resize((wide, high), how))
        off = np.abs(out.astype(int) - along).max()
        assert off <= {"bilinear": 1, "bicubic": 2}[interpolation], (tall, broad, high, wide)
        swapped = max(swapped, int(np.abs(out.astype(int) - down).max()))
    assert swapped > 10 if interpolation == "bicubic" else swapped <= 2


def choose_rect(
    height: int, width: int, size: tuple[int, int], crop: str, ratio: float, draws: Any
) -> geometry.Rect:
    return OutputSpec(size=size, crop=crop, crop_ratio=ratio).rect(height, width, draws)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_rectangles_lie_inside(data: st.DataObject) -> None:
    """Every rectangle is at least a pixel and inside the picture."""
    height, width = (data.draw(st.integers(1, 400)) for _ in range(2))
    target = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))
    crop = data.draw(st.sampled_from(["center", "random", "random-resized", "none"]))
    draws = np.array([data.draw(st.floats(0, 1, exclude_max=True)) for _ in range(40)])
    ratio = data.draw(st.floats(0.05, 1))
    rect = choose_rect(height, width, target, crop, ratio, draws)
    assert 0 <= rect.top <= rect.top + rect.height <= height
    assert 0 <= rect.left <= rect.left + rect.width <= width
    assert rect.height >= 1
    assert rect.width >= 1


SPOT = (211.3, 330.8)


def spotted(height: int, width: int, at: tuple[float, float] = SPOT) -> np.ndarray:
    """A dark picture with one bright spot."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    spot = 255 * np.exp(-((y - at[0]) ** 2 + (x - at[1]) ** 2) / (2 * 16**2))
    return np.repeat(np.rint(spot).astype(np.uint8)[:, :, None], 3, axis=2)


def centre(pixels: np.ndarray) -> np.ndarray:
    """(y, x) of the middle of what is bright."""
    bright = np.clip(pixels[:, :, 0].astype(float) - 20, 0, None)
    y, x = np.mgrid[0 : bright.shape[0], 0 : bright.shape[1]] + 0.5
    return np.array([(bright * y).sum(), (bright * x).sum()]) / bright.sum()


@pytest.mark.parametrize(
    ("turn", "size"),
    [
        *((1, size) for size in ((30, 30), (37, 50), (64, 48), (96, 131))),
        *((turn, (37, 50)) for turn in range(2, 9)),
    ],
)
def test_a_jpeg_decoded_smaller_is_where_it_is_at_full_size(
    turn: int, size: tuple[int, int]
) -> None:
    """A JPEG's crops, decoded at any fraction and turned any way, cut out between restart markers
    or not, are those of Pillow's full decode to 1/20 of a pixel, and a label map moves with them.
    """
    exif = Image.Exif()
    exif[0x0112] = turn
    marks = 19 if turn % 2 == 0 or size == (37, 50) else 0
    data = encoded(
        spotted(431, 601), "JPEG", quality=95, subsampling=0, exif=exif, restart_marker_blocks=marks
    )
    with Image.open(io.BytesIO(data)) as opened:
        full = ImageOps.exif_transpose(opened)
    numbers = (np.asarray(full)[:, :, :1] > 127).astype(np.uint8)
    numbers_image = Image.fromarray(numbers[:, :, 0])
    factors = set()
    for crop, number in [("none", 0), ("center", 0), *[("random", n) for n in range(12)]]:
        wanted = OutputSpec(layout="NHWC", size=size, crop=crop, crop_ratio=0.83 if number else 1.0)
        draws = np.random.default_rng(number).random(40)
        stored = SampleSpec(None, np.dtype(np.uint8), "HWC", encoding="original")
        out = np.empty((*size, 3), np.uint8)
        fill = plan_rows(stored, wanted, "")
        put_views((RowView(fill, draws, False, out),), data, Meter())
        rect = wanted.rect(full.height, full.width, draws)
        box = (rect.left, rect.top, rect.left + rect.width, rect.top + rect.height)
        judge = np.asarray(full.resize(size[::-1], Image.Resampling.BILINEAR, box=box))
        if judge.max() < 200 or judge[[0, -1]].max() > 20 or judge[:, [0, -1]].max() > 20:
            continue  # cut by the border, or not in it
        factors.add(round(full.height / rect.height))
        assert np.abs(centre(out) - centre(judge)).max() < 0.05, (crop, number)
        plain = SampleSpec(None, np.dtype(np.uint8), "HWC", channels=1)
        mask = np.empty((*size, 1), np.uint8)
        frame = full.height, full.width
        nearest = replace(wanted, nearest=True)
        fill = plan_rows(plain, nearest, "", frame)
        fill.put(numbers, RowView(fill, draws, False, mask))
        nearby = numbers_image.resize(size[::-1], Image.Resampling.NEAREST, box=box)
        # all but what lies on the edge between two pixels
        assert (mask[:, :, 0] != np.asarray(nearby)).sum() <= 1
    assert factors


def test_centre_crop_is_the_largest_of_its_shape() -> None:
    """ "center" takes crop_ratio of the largest rectangle of the target's shape, centred."""
    for height, width, target, ratio, wanted in (
        (100, 200, (50, 50), 1.0, (0, 50, 100, 100)),
        (200, 100, (50, 50), 1.0, (50, 0, 100, 100)),
        (256, 256, (224, 224), 0.875, (16, 16, 224, 224)),
        (100, 200, (30, 60), 1.0, (0, 0, 100, 200)),
        (100, 100, (10, 40), 1.0, (37, 0, 25, 100)),
    ):
        rect = choose_rect(height, width, target, "center", ratio, None)
        assert (rect.top, rect.left, rect.height, rect.width) == wanted
    assert choose_rect(9, 7, (5, 5), "none", 1.0, None) == geometry.Rect(0, 0, 9, 7)


def test_random_crop_reaches_everywhere() -> None:
    """ "random" has the size of the centred one and reaches every place equally."""
    rng = np.random.default_rng(10)
    places = set()
    for _ in range(600):
        rect = choose_rect(10, 8, (4, 4), "random", 0.75, rng.random(2))
        assert (rect.height, rect.width) == (6, 6)
        places.add((rect.top, rect.left))
    assert places == {(top, left) for top in range(5) for left in range(3)}


def test_random_resized_areas_and_shapes() -> None:
    """ "random-resized" has areas of 0.08 to 1 and shapes of 3/4 to 4/3, evenly."""
    rng = np.random.default_rng(11)
    rects = [
        choose_rect(400, 400, (224, 224), "random-resized", 1.0, rng.random(40)) for _ in range(800)
    ]
    areas = np.array([r.height * r.width / 160_000 for r in rects])
    shapes = np.array([r.width / r.height for r in rects])
    assert 0.07 < areas.min() < 0.12
    assert 0.9 < areas.max() <= 1
    assert 0.74 < shapes.min() < 0.8
    assert 1.25 < shapes.max() < 1.34
    assert np.mean(areas) == pytest.approx(0.5, abs=0.05)
    assert np.log(shapes).mean() == pytest.approx(0, abs=0.02)
    # a picture too narrow for any of them falls back to the centre
    narrow = choose_rect(400, 2, (224, 224), "random-resized", 1.0, np.full(40, 0.9))
    assert narrow.width == 2


@pytest.mark.parametrize(("length", "count"), [(198, 49), (150, 98), (35, 50), (161, 49)])
def test_nearest_takes_the_same_pixels_of_a_picture_and_of_its_label_map(
    length: int, count: int
) -> None:
    """A picture resized with "nearest" takes the pixels that its label map takes, also where a
    middle lies exactly between two: the second one, by whole numbers. Elsewhere Pillow's."""
    sample = np.arange(length * length, dtype=np.int32).reshape(length, length, 1)
    rows = []
    for options in ({"interpolation": "nearest"}, {"nearest": True}):
        wanted = OutputSpec(size=(count, count), crop="none", **options)
        fill = plan_rows(SampleSpec(sample.shape, sample.dtype, "HWC", channels=1), wanted, "")
        rows.append(np.zeros(fill.allocate_shape(1), fill.dtype)[0])
        fill.put(sample, RowView(fill, None, False, rows[-1]))
    np.testing.assert_array_equal(*rows)
    twice = (2 * np.arange(count) + 1) * length
    exact = twice // (2 * count)
    np.testing.assert_array_equal(rows[0][..., 0], sample[exact][:, exact, 0])
    image = Image.fromarray(sample[:, :, 0]).resize((count, count), Image.Resampling.NEAREST)
    inside = np.ix_(*[twice % (2 * count) != 0] * 2)
    np.testing.assert_array_equal(rows[0][..., 0][inside], np.asarray(image)[inside])
