"""Which part of a picture is cut out, and how it is resized."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
from fakes import encoded, pictures
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import resize_u8_numpy
from PIL import Image, ImageOps
from skimage.data import astronaut

from asyncreader.pixels import geometry, kernels
from asyncreader.pixels.encoded import RowView, put_views
from asyncreader.pixels.specs import OutputSpec, SampleSpec
from asyncreader.pixels.transform import RowTransform
from asyncreader.stats import Meter


def test_resize_equals_fit() -> None:
    """A centred crop and resize is close to PIL's ImageOps.fit, which cuts off fractions of pixels
    where ours cuts off whole ones."""
    image = pictures(5, (97, 131, 3))[4]
    for size in ((60, 70), (70, 60), (97, 131), (50, 50), (90, 40), (120, 150)):
        rect = geometry.choose_rect(97, 131, size, "center", 1.0, None)
        out = np.empty((*size, 3), np.uint8)
        geometry.resize_into(image, out, rect.box())
        wanted = ImageOps.fit(Image.fromarray(image), size[::-1], Image.Resampling.BILINEAR)
        assert np.abs(out.astype(int) - np.asarray(wanted)).mean() < 2.5, size


PILLOW = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    part=st.tuples(*[st.integers(0, 200)] * 2, *[st.integers(1, 250)] * 2),
    size=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    channels=st.sampled_from([1, 3, 4]),
    flip=st.booleans(),
)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "area"])
def test_a_cropped_photograph_is_what_pillow_makes_of_it(
    interpolation: str, part: tuple[int, ...], size: tuple[int, int], channels: int, flip: bool
) -> None:
    """Any crop of a photograph, shrunk or enlarged: at most one level from Pillow's ("bicubic":
    two), in the mean 0.1, where that resizes along the lines first. Pillow 13 does it last where
    that is cheaper: then 0.3 for "bilinear". "area" 0.5 from OpenCV's INTER_AREA when it shrinks,
    for that does not round between the passes; "nearest" is equal."""
    photograph = np.dstack([astronaut(), astronaut()[:, :, :1]])[:, :, :channels]
    top, left, tall, broad = part
    if interpolation == "area":
        tall, broad = min(tall + size[0], 312), min(broad + size[1], 312)
    tall, broad = min(tall, 64 * size[0]), min(broad, 64 * size[1])
    crop = np.ascontiguousarray(photograph[top : top + tall, left : left + broad])
    out = np.empty((*size, channels), np.uint8)
    box = (top, left, *crop.shape[:2])
    geometry.resize_into(np.ascontiguousarray(photograph), out, box, interpolation, flip)
    if interpolation == "area":
        wanted = cv2.resize(crop, size[::-1], interpolation=cv2.INTER_AREA)
        wanted = wanted.reshape(out.shape)
    else:
        kind = {1: "L", 3: "RGB", 4: "RGBX"}[channels]
        image = Image.frombytes(kind, crop.shape[1::-1], crop.tobytes())
        along = image.resize((size[1], image.height), PILLOW[interpolation])
        wanted = np.asarray(along.resize(size[::-1], PILLOW[interpolation])).reshape(out.shape)
        if interpolation == "bilinear":
            at_once = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))
            off = np.abs((out[:, ::-1] if flip else out).astype(int) - at_once.reshape(out.shape))
            assert off.max() <= 1
            assert off.mean() < 0.3 or min(crop.shape[:2]) < 8 or off.size < 3000
    off = np.abs((out[:, ::-1] if flip else out).astype(int) - wanted)
    if interpolation == "nearest":  # but for what lies on the edge between two pixels
        for axis, (side, count) in enumerate(zip(crop.shape, size, strict=False)):
            edges = (np.arange(count) + 0.5) * side / count
            off = np.delete(off, np.abs(edges - np.rint(edges)) < 1e-6, axis=axis)
    assert off.max(initial=0) <= {"nearest": 0, "bicubic": 2}.get(interpolation, 1)
    if off.size > 3000 and min(crop.shape[:2]) >= 8:
        assert off.mean() < (0.5 if interpolation == "area" else 0.1)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_noise_of_black_and_white_is_resized_along_the_lines_first(
    interpolation: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels of 0 and 255, at which "bicubic" overshoots most, each axis shrunk or enlarged: within
    a level ("bicubic": two) of Pillow's pass along the lines, rounded and clipped to bytes, and its
    pass down after that. The other order is about 30 levels off."""
    if not compiled:
        monkeypatch.setattr(kernels, "resize_u8", resize_u8_numpy)
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


@pytest.mark.parametrize("factor", [3, 4, 6, 8, 40])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "area"])
def test_shrinking_averages(factor: int, dtype: str, interpolation: str) -> None:
    """Nothing is skipped over: a fine pattern becomes its mean, but for what the border cuts off of
    a filter."""
    rows, columns = 8 * factor, 9 * factor
    pattern = ((np.add.outer(np.arange(rows), np.arange(columns)) % 2) * 200).astype(dtype)
    image = np.repeat(pattern[:, :, None], 3, axis=2)
    out = np.empty((8, 9, 3), dtype)
    geometry.resize_into(image, out, None, interpolation)
    off = np.abs(out.astype(float) - 100)
    # an odd block of the pattern has one white pixel more
    assert off.max() <= (2 if interpolation == "bilinear" else 100 / factor**2 + 2)
    assert off[1:-1, 1:-1].max() <= 100 / factor**2 + 1


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "float32", "int32", "int64", "bool", "float16"]
)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("interpolation", geometry.INTERPOLATIONS)
def test_resize_of_any_kind(interpolation: str, dtype: str, channels: int) -> None:
    """Any dtype and number of channels is resized, channel by channel alike, any strides."""
    rounding = {"rtol": 1e-6, "atol": 1e-9} if dtype == "float32" else {"rtol": 0, "atol": 0}
    values = np.random.default_rng(8).integers(0, 2 if dtype == "bool" else 200, (21, 16, channels))
    image = values.astype(dtype)
    out = np.empty((9, 12, channels), dtype)
    geometry.resize_into(image, out, None, interpolation)
    for c in range(channels):
        alone = np.empty((9, 12, 1), dtype)
        one = np.ascontiguousarray(image[:, :, c : c + 1])
        geometry.resize_into(one, alone, None, interpolation)
        np.testing.assert_allclose(
            out[:, :, c].astype(float), alone[:, :, 0].astype(float), **rounding
        )
    odd = np.empty((16, 21, channels), dtype).transpose(1, 0, 2)
    odd[:] = image
    again = np.empty_like(out)
    geometry.resize_into(odd, again, None, interpolation)
    np.testing.assert_array_equal(again, out)
    same = np.empty_like(image)
    geometry.resize_into(image, same, None, interpolation)
    np.testing.assert_array_equal(same, image)


def test_flat_stays_flat() -> None:
    """Resizing a picture of one colour changes no pixel, whatever the sizes."""
    rng = np.random.default_rng(9)
    for _ in range(60):
        high, wide, rows, columns = rng.integers(1, 60, 4)
        out = np.empty((rows, columns, 3), np.uint8)
        geometry.resize_into(np.full((high, wide, 3), 77, np.uint8), out)
        assert (out == 77).all()


draws40 = st.lists(st.floats(0, 1, exclude_max=True), min_size=40, max_size=40)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    target=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    crop=st.sampled_from(["center", "random", "random-resized", "none"]),
    ratio=st.floats(0.05, 1),
    draws=draws40,
)
def test_rectangles_lie_inside(
    height: int, width: int, target: tuple[int, int], crop: str, ratio: float, draws: list[float]
) -> None:
    """Every rectangle is at least a pixel and inside the picture."""
    rect = geometry.choose_rect(height, width, target, crop, ratio, np.array(draws))
    assert 0 <= rect.top <= rect.top + rect.height <= height
    assert 0 <= rect.left <= rect.left + rect.width <= width
    assert rect.height >= 1
    assert rect.width >= 1


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    stored=st.tuples(st.integers(8, 700), st.integers(8, 700)),
    size=st.tuples(st.integers(8, 200), st.integers(8, 200)),
    cut=st.tuples(*[st.floats(0, 1)] * 4),
    whole=st.booleans(),
)
def test_what_is_resized_lies_where_pillow_puts_it(
    stored: tuple[int, int], size: tuple[int, int], cut: tuple[float, ...], whole: bool
) -> None:
    """Any part of a picture, fractions of pixels too, at any size: what Pillow's resize of that box
    gives, to half a pixel at the border."""
    box = (0.0, 0.0, float(stored[0]), float(stored[1]))
    if not whole:
        sides = [
            max(1.0, side * (0.3 + 0.7 * part)) for side, part in zip(stored, cut, strict=False)
        ]
        starts = [(n - side) * part for n, side, part in zip(stored, sides, cut[2:], strict=True)]
        box = (*starts, *sides)
    ramps = np.stack(np.mgrid[0 : stored[0], 0 : stored[1]], axis=2).astype(np.float32)
    out = np.empty((*size, 2), np.float32)
    geometry.resize_into(ramps, out, box)
    window = (box[1], box[0], box[1] + box[3], box[0] + box[2])
    for axis in (0, 1):
        ramp = Image.fromarray(np.ascontiguousarray(ramps[:, :, axis]))
        wanted = np.asarray(ramp.resize(size[::-1], Image.Resampling.BILINEAR, box=window))
        scale = box[2 + axis] / size[axis]  # old pixels for a new one
        off = np.abs(out[:, :, axis] - wanted).max(axis=1 - axis) / max(scale, 1)
        # at the border of a box Pillow looks at pixels outside of it
        assert off.max() <= 0.5
        border = 1 + math.ceil(1 / scale)
        assert off[border : size[axis] - border].max(initial=0) <= 0.01


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
    """A JPEG's crops, decoded at any fraction and turned any way, are those of Pillow's full decode
    to 1/20 of a pixel, and a label map moves with them."""
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encoded(spotted(431, 601), "JPEG", quality=95, subsampling=0, exif=exif)
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
        fill = RowTransform(stored, wanted, "")
        put_views((RowView(fill, draws, False, out),), data, Meter())
        rect = geometry.choose_rect(full.height, full.width, size, crop, wanted.crop_ratio, draws)
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
        RowTransform(plain, nearest, "", frame).put(numbers, draws, False, mask)
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
        rect = geometry.choose_rect(height, width, target, "center", ratio, None)
        assert (rect.top, rect.left, rect.height, rect.width) == wanted
    assert geometry.choose_rect(9, 7, (5, 5), "none", 1.0, None) == geometry.Rect(0, 0, 9, 7)


def test_random_crop_reaches_everywhere() -> None:
    """ "random" has the size of the centred one and reaches every place equally."""
    rng = np.random.default_rng(10)
    places = set()
    for _ in range(600):
        rect = geometry.choose_rect(10, 8, (4, 4), "random", 0.75, rng.random(2))
        assert (rect.height, rect.width) == (6, 6)
        places.add((rect.top, rect.left))
    assert places == {(top, left) for top in range(5) for left in range(3)}


def test_random_resized_areas_and_shapes() -> None:
    """ "random-resized" has areas of 0.08 to 1 and shapes of 3/4 to 4/3, evenly."""
    rng = np.random.default_rng(11)
    rects = [
        geometry.choose_rect(400, 400, (224, 224), "random-resized", 1.0, rng.random(40))
        for _ in range(800)
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
    narrow = geometry.choose_rect(400, 2, (224, 224), "random-resized", 1.0, np.full(40, 0.9))
    assert narrow.width == 2


@pytest.mark.parametrize("channels", [3, 5])
@pytest.mark.parametrize("interpolation", geometry.INTERPOLATIONS)
def test_mirror(interpolation: str, channels: int) -> None:
    """With ``flip`` a resized picture is the same one turned left to right."""
    noise = np.random.default_rng(5).integers(0, 256, (13, 17, channels), np.uint8)
    plain, mirrored = np.empty((2, 9, 11, channels), np.uint8)
    geometry.resize_into(noise, plain, None, interpolation)
    geometry.resize_into(noise, mirrored, None, interpolation, flip=True)
    np.testing.assert_array_equal(mirrored, plain[:, ::-1])


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
        fill = RowTransform(SampleSpec(sample.shape, sample.dtype, "HWC", channels=1), wanted, "")
        rows.append(np.zeros(fill.allocate_shape(1), fill.dtype)[0])
        fill.put(sample, None, False, rows[-1])
    np.testing.assert_array_equal(*rows)
    twice = (2 * np.arange(count) + 1) * length
    exact = twice // (2 * count)
    np.testing.assert_array_equal(rows[0][..., 0], sample[exact][:, exact, 0])
    image = Image.fromarray(sample[:, :, 0]).resize((count, count), Image.Resampling.NEAREST)
    inside = np.ix_(*[twice % (2 * count) != 0] * 2)
    np.testing.assert_array_equal(rows[0][..., 0][inside], np.asarray(image)[inside])
