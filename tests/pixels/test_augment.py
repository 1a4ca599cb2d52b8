"""Operations of ``augment``: compiled and plain code agree, label maps move along."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncreader import AsyncReader
from asyncreader.pixels import kernels
from asyncreader.pixels.augment.base import Operation
from asyncreader.pixels.augment.parse import AUGMENT, known
from asyncreader.system.keyed_random import Draws

COUNT = 24
RNG = np.random.default_rng(0)
DATA = RNG.integers(0, 256, (COUNT, 20, 17, 3), dtype=np.uint8)
LABELS = np.arange(COUNT)[:, None]

#: Each operation, with what it needs.
ALL: dict[str, dict[str, Any]] = {name: {} for name in known()}
ALL["color-jitter"] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2}
ALL["random-solarize"] = {"threshold": 128}
ALL["random-posterize"] = {"bits": 4}
ALL["random-sharpness"] = {"sharpness_factor": 2}
ALL["gaussian-blur"] = {"kernel_size": 5}
ALL["random-rotation"] = ALL["random-affine"] = {"degrees": 30}

sides = st.integers(1, 24)
floats = st.floats(-3, 3, width=32)


def both(name: str, image: np.ndarray, *arguments: Any, out: bool = False) -> np.ndarray:
    """What a kernel and its twin make of ``image``, compared: bytes around it stay as they are."""
    made = []
    for function in (getattr(kernels, name), getattr(oracles, f"{name}_numpy")):
        memory = np.full(image.nbytes + 512, 77, np.uint8)
        inside = memory[256 : 256 + image.nbytes]
        given, rest = image.copy(), arguments
        if out:
            function(given.ctypes.data, inside.ctypes.data, *rest)
            np.testing.assert_array_equal(given, image)
        else:
            inside[:] = image.reshape(-1)
            function(inside.ctypes.data, *rest)
        assert (memory[:256] == 77).all()
        assert (memory[-256:] == 77).all()
        made.append(inside.reshape(image.shape).astype(np.int64))
    assert np.abs(made[0] - made[1]).max(initial=0) <= 1
    return made[0] != made[1]


def picture(high: int, wide: int, channels: int) -> np.ndarray:
    return np.random.default_rng(high * wide).integers(0, 256, (high, wide, channels), np.uint8)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(high=sides, wide=sides, channels=st.sampled_from([1, 3]), factor=floats, data=st.data())
def test_kernels_of_levels(
    high: int, wide: int, channels: int, factor: float, data: st.DataObject
) -> None:
    """Kernels of levels and neighbours give what plain numpy gives, and write nowhere else."""
    image = picture(high, wide, channels)
    few = image // np.uint8(data.draw(st.integers(1, 99)))
    for name in ("autocontrast", "equalize"):
        assert not both(name, image, high * wide, channels).any()
        assert not both(name, few, high * wide, channels).any()
    if channels == 3:
        totals = np.zeros((2, 1), np.int64)
        kernels.sum_of_grey(image.ctypes.data, high * wide, totals[0])
        oracles.sum_of_grey_numpy(image.ctypes.data, high * wide, totals[1])
        assert totals[0] == totals[1]
        both("saturate", image, high * wide, abs(factor))
        both("turn_hue", image, high * wide, factor / 6)
    assert not both("blend_level", image, image.size, abs(factor), 30 * factor).any()
    if high > 2 < wide:
        both("sharpen", image, high, wide, channels, abs(factor), out=True)
    x, y = data.draw(st.integers(0, min(5, wide - 1))), data.draw(st.integers(0, min(5, high - 1)))
    weights = [np.full(2 * n + 1, 1 / (2 * n + 1), np.float32) for n in (x, y)]
    both("blur", image, high, wide, channels, *weights)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    sides=st.tuples(sides, sides, sides, sides),
    channels=st.sampled_from([1, 2, 3, 8]),
    matrix=st.lists(floats, min_size=6, max_size=6),
    move=st.tuples(st.floats(-400, 400), st.floats(-400, 400)),
    tilt=st.tuples(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2)),
    bilinear=st.booleans(),
    painted=st.booleans(),
)
def test_kernels_of_geometry(
    sides: Any, channels: int, matrix: Any, move: Any, tilt: Any, bilinear: bool, painted: bool
) -> None:
    """Pictures are moved as by plain numpy, however far, and nothing is read or written outside."""
    high, wide, height, width = sides
    source = picture(height, width, channels)
    out = np.zeros((high, wide, channels), np.uint8)
    affine = np.array([*matrix[:2], move[0], *matrix[2:4], move[1]])
    fill = np.arange(channels, dtype=np.uint8)
    size = height, width, high, wide, channels

    def each(name: str, *arguments: Any) -> float:
        made = []
        for function in (getattr(kernels, name), getattr(oracles, f"{name}_numpy")):
            memory = np.full(out.nbytes + 512, 77, np.uint8)
            function(source.ctypes.data, memory[256:].ctypes.data, *size, *arguments)
            assert (memory[:256] == 77).all()
            assert (memory[256 + out.nbytes :] == 77).all()
            made.append(memory[256 : 256 + out.nbytes].astype(np.int64))
        differ: float = (np.abs(made[0] - made[1]) > 1).mean()
        return differ

    assert each("affine_nearest", affine, fill) == 0
    full = np.array([*affine, *tilt, 1.0])
    paint = fill.astype(np.float32) if painted else np.empty(0, np.float32)
    assert each("warp", full, bilinear, paint) < 0.2  # places between two pixels


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ALL)
def test_pictures_keep_their_memory(name: str, channels: int) -> None:
    """An operation changes the picture in place, of one channel, too, and of 1 x 1 pixels."""
    (operation,) = AUGMENT("augment", [(name, ALL[name])])
    sizes = [(20, 17), (3, 2), (1, 1)] if name != "gaussian-blur" else [(20, 17), (3, 3)]
    changed = False
    for high, wide in sizes:
        image = DATA[0, :high, :wide, :channels].copy()
        for key in range(40):
            before = image.copy()
            drawn = operation.draw(Draws(key), image.shape)
            if drawn is not None:
                operation.apply(image, drawn)
            changed = changed or bool((before != image).any())
    grey = channels == 1 and name == "random-grayscale"
    assert changed != grey
    assert pickle.loads(pickle.dumps(operation)) == operation
    assert hash(operation) == hash(pickle.loads(pickle.dumps(operation)))


MOVING = ["random-vertical-flip", ("random-rotation", {"degrees": 90})]
MOVING += [("random-affine", {"degrees": 20, "translate": (0.2, 0.2), "shear": 9, "fill": 0})]
MOVING += [("random-perspective", {"p": 0.9, "interpolation": "nearest"})]


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_label_maps_move_along(dtype: str, contiguous: bool) -> None:
    """A label map is moved as its picture, with the same draws, whatever its dtype; operations on
    levels leave it alone."""
    mask = (DATA[..., :1] // (128 if dtype == "bool" else 1)).astype(dtype)
    params: dict[str, Any] = {
        "data": {"image": DATA, "mask": mask}, "data_field": ["image", "mask"], "shuffle": True
    }  # fmt: skip
    params |= {"batch_size": 8, "contiguous": contiguous, "layout": "NCHW", "flip": True}
    moved = 0
    with AsyncReader(params, augment=MOVING) as reader:
        for image, seen in (batch.data for batch in reader):
            expected = image[:, :1] // (128 if dtype == "bool" else 1)
            np.testing.assert_array_equal(seen, expected.astype(dtype))
            moved += 1
    assert moved == 3
    levels = [("color-jitter", {"brightness": 0.9}), "random-equalize"]
    with AsyncReader(params, augment=levels) as reader, AsyncReader(params) as plain:
        for one, other in zip(reader, plain, strict=True):
            np.testing.assert_array_equal(one.data[1], other.data[1])
            assert (one.data[0] != other.data[0]).any()


def test_each_operation_has_its_seconds() -> None:
    """stats() and a trace name the seconds of each operation."""
    both = ["trivial-augment-wide", "random-erasing"]
    with AsyncReader(data=DATA, batch_size=8, augment=both) as reader:
        for _ in reader:
            pass
        assert set(reader.stats().other_seconds) == set(both)
        assert all(reader.stats().other_seconds.values())


def test_erasing_is_behind_normalising() -> None:
    """random-erasing paints normalised values: 0 is the mean; "random" is normal noise."""
    params: dict[str, Any] = {"data": DATA, "batch_size": COUNT, "dtype": "float32", "mean": 7}
    with AsyncReader(params, augment=[("random-erasing", {"p": 1, "scale": (0.2, 0.3)})]) as reader:
        shares = (next(iter(reader)).data == 0).mean(axis=(1, 2, 3))
        assert ((shares > 0.1) & (shares < 0.4)).all()
    noise = ("random-erasing", {"p": 1, "value": "random"})
    with AsyncReader(params, augment=[noise]) as reader, AsyncReader(params) as plain:
        seen, given = next(iter(reader)).data, next(iter(plain)).data
        painted = seen[seen != given]
        assert abs(painted.mean()) < 0.2
        assert 0.9 < painted.std() < 1.1


def test_on_the_command_line(tmp_path: Path) -> None:
    """-p takes a name, a pair and a list."""
    from asyncreader.cli.options import params_of

    words = ["augment=trivial-augment-wide"]
    assert params_of(None, None, words) == {"augment": "trivial-augment-wide"}  # type: ignore[arg-type]
    words = ['augment=["color-jitter", {"brightness": 0.4}]']
    (pair,) = AUGMENT("augment", params_of(None, None, words)["augment"])  # type: ignore[arg-type]
    assert pair.brightness == (0.6, 1.4)


@pytest.mark.parametrize("name", ALL)
def test_what_moves_pixels_says_where_places_go(name: str) -> None:
    """Operations that move label maps, and no others, move places: a pixel of a map that is set
    lies, after the operation, where its matrices say, to a pixel and a half."""
    (operation,) = AUGMENT("augment", (name, ALL[name]))
    high, wide = 40, 52
    there = 0
    for key in range(30):
        drawn = operation.draw(Draws(key << 40), (high, wide, 3))
        if drawn is None:
            continue
        values = np.zeros((high, wide, 1), np.uint8)
        values[18:21, 25:28] = 1
        before = values.copy()
        operation.move(values, drawn)
        place = np.array([26.5, 19.5, 1.0])
        for matrix in operation.matrices(drawn, (high, wide, 3), 0):
            place = matrix @ place
            place /= place[2]
        rows, columns = np.nonzero(values[..., 0])
        if not operation.matrices(drawn, (high, wide, 3), 0):
            np.testing.assert_array_equal(values, before)
        elif 2 < place[0] < wide - 2 and 2 < place[1] < high - 2 and rows.size:
            there += 1
            assert abs(columns.mean() + 0.5 - place[0]) < 1.5
            assert abs(rows.mean() + 0.5 - place[1]) < 1.5
    assert (there > 3) == (type(operation).move is not Operation.move)


#: Options at which a picture is enlarged or sheared without bounds.
BEYOND: list[dict[str, Any]] = [
    {"degrees": 0, "shear": (0, 0, 90, 90)},
    {"degrees": (30, 30), "shear": (0, 0, 270, 270)},
    {"degrees": 0, "shear": (90, 90)},
    *({"degrees": (30, 30), "scale": (by, by)} for by in (1e-12, 2e-10, 1e-320)),
    {"degrees": (30, 30), "center": (1e300, 0.0)},
]


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("options", BEYOND)
def test_a_picture_without_bounds(options: dict[str, Any], interpolation: str) -> None:
    """However far a place lies outside, nothing is read there: it has the colour of the fill, or
    the one pixel that is left."""
    data = np.full((8, 33, 40, 3), 200, np.uint8)
    augment = ("random-affine", {**options, "interpolation": interpolation, "fill": 7})
    with AsyncReader(data=data, batch_size=8, augment=[augment], size=(33, 40)) as reader:
        found = next(iter(reader)).data
    assert 7 <= found.min() <= found.max() <= 200


def test_matrices_without_bounds() -> None:
    """Compiled code and its twin agree on matrices that fixed point cannot hold."""
    image = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    fill = np.array([1, 2, 3], np.uint8)
    for factor in (1.0, 2.0**28, 2.0**29, 2.0**31, 1e20, 1e300, np.inf, np.nan):
        for place in range(6):
            matrix = np.array([1.0, 0, 0, 0, 1.0, 0])
            matrix[place] = factor
            found = []
            for kernel in (kernels.affine_nearest, oracles.affine_nearest_numpy):
                out = np.zeros_like(image)
                kernel(image.ctypes.data, out.ctypes.data, 9, 11, 9, 11, 3, matrix, fill)
                found.append(out)
            np.testing.assert_array_equal(*found)
