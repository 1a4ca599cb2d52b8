"""Which part of a picture is cut out, and how it is resized."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import pictures
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from asyncreader import geometry


def test_resize_equals_fit() -> None:
    """Up to a factor 2 a centred crop and resize is close to PIL's ImageOps.fit."""
    image = pictures(5, (97, 131, 3))[4]
    for size in ((60, 70), (70, 60), (97, 131), (50, 50), (90, 40), (120, 150)):
        rect = geometry.choose_rect(97, 131, size, "center", 1.0, None)
        out = np.empty((*size, 3), np.uint8)
        geometry.resize_into(rect.cut(image), out)
        wanted = ImageOps.fit(Image.fromarray(image), size[::-1], Image.Resampling.BILINEAR)
        assert np.abs(out.astype(int) - np.asarray(wanted)).mean() < 2.5, size


@pytest.mark.parametrize("factor", [3, 4, 6, 8])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
def test_shrinking_averages(factor: int, dtype: str) -> None:
    """Beyond a factor 2 nothing is skipped: a fine pattern becomes its mean."""
    rows, columns = 8 * factor, 9 * factor
    pattern = ((np.add.outer(np.arange(rows), np.arange(columns)) % 2) * 200).astype(dtype)
    image = np.repeat(pattern[:, :, None], 3, axis=2)
    out = np.empty((8, 9, 3), dtype)
    geometry.resize_into(image, out)
    assert np.abs(out.astype(float) - 100).max() <= 1


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "float32", "int32", "int64", "bool", "float16"]
)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7])
def test_resize_of_any_kind(dtype: str, channels: int) -> None:
    """Any dtype and number of channels is resized, channel by channel alike, any strides.

    Alike but for rounding: OpenCV has other code for every number of channels.
    """
    rounding = {"rtol": 1e-6, "atol": 1e-9} if dtype == "float32" else {"rtol": 0, "atol": 1}
    values = np.random.default_rng(8).integers(0, 2 if dtype == "bool" else 200, (21, 16, channels))
    image = values.astype(dtype)
    out = np.empty((9, 12, channels), dtype)
    geometry.resize_into(image, out)
    for c in range(channels):
        alone = np.empty((9, 12, 1), dtype)
        geometry.resize_into(np.ascontiguousarray(image[:, :, c : c + 1]), alone)
        np.testing.assert_allclose(
            out[:, :, c].astype(float), alone[:, :, 0].astype(float), **rounding
        )
    odd = np.empty((16, 21, channels), dtype).transpose(1, 0, 2)
    odd[:] = image
    again = np.empty_like(out)
    geometry.resize_into(odd, again)
    np.testing.assert_array_equal(again, out)
    same = np.empty_like(image)
    geometry.resize_into(image, same)
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
    for actual in ((height, width), (-(-height // 2), -(-width // 2)), (-(-height // 8), 1)):
        part = rect.scaled((height, width), actual)
        assert 0 <= part.top <= part.top + part.height <= actual[0]
        assert 0 <= part.left <= part.left + part.width <= actual[1]
        assert min(part.height, part.width) >= 1


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


def test_mirror() -> None:
    """mirror() turns a picture left to right in place."""
    noise = np.random.default_rng(5).integers(0, 256, (13, 17, 3), np.uint8)
    image = noise.copy()
    geometry.mirror(image)
    np.testing.assert_array_equal(image, noise[:, ::-1])
