"""Operations of ``augment``: small pictures against torchvision, label maps move along."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import first_batch
from torchvision_pixels import need_torchvision

from asyncreader import AsyncReader
from asyncreader.pixels import kernels
from asyncreader.pixels.augment import AUGMENT, functions, known
from asyncreader.pixels.augment.base import Operation
from asyncreader.system.keyed_random import Draws

COUNT = 24
RNG = np.random.default_rng(0)
DATA = RNG.integers(0, 256, (COUNT, 20, 17, 3), dtype=np.uint8)
LABELS = np.arange(COUNT)[:, None]

#: Each operation, with what it needs.
ALL: dict[str, dict[str, Any]] = {name: {} for name in known()}
ALL["color-jitter"] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2}
ALL["random-solarize"] = {"threshold": 128}
ALL["random-posterize"] = {"bits": 0}
ALL["random-sharpness"] = {"sharpness_factor": 2}
ALL["gaussian-blur"] = {"kernel_size": 5}
ALL["random-rotation"] = ALL["random-affine"] = {"degrees": 30}

#: What functions get beside a picture of (high, wide); torchvision's have the same names.
FUNCTIONS: dict[str, Callable[[np.random.Generator, int, int], tuple[Any, ...]]] = {
    **{
        f"adjust_{what}": lambda rng, *_: (rng.uniform(0, 3),)
        for what in ("brightness", "contrast", "saturation", "sharpness")
    },
    "adjust_hue": lambda rng, *_: (rng.uniform(-0.5, 0.5),),
    **dict.fromkeys(("autocontrast", "equalize", "invert"), lambda *_: ()),
    "posterize": lambda rng, *_: (int(rng.integers(0, 9)),),
    "solarize": lambda rng, *_: (rng.uniform(0, 255),),
    "gaussian_blur": lambda rng, high, wide: (
        [2 * int(rng.integers(0, min(6, side))) + 1 for side in (wide, high)],
        rng.uniform(0.1, 2),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_pictures_are_torchvisions(name: str) -> None:
    """Pictures of one channel or three, of any size from one pixel on, of many levels or few, are
    to one level what torchvision's function makes of them."""
    need_torchvision()
    import torch
    from torchvision.transforms.v2 import functional

    rng = np.random.default_rng(1)
    for trial in range(120):
        (high, wide), channels = rng.integers(1, 25, 2).tolist(), int(rng.choice([1, 3]))
        image = rng.integers(0, 256, (high, wide, channels), np.uint8) // (1 + trial % 4 * 30)
        given, made = FUNCTIONS[name](rng, high, wide), image.astype(np.uint8)
        tensor = torch.from_numpy(made.copy()).permute(2, 0, 1)
        expected = getattr(functional, name)(tensor, *given).permute(1, 2, 0).numpy()
        getattr(functions, name)(made, *given)
        assert np.abs(made.astype(int) - expected).max() <= 1, (image.shape, given)


def placed(image: np.ndarray, matrix: np.ndarray, high: int, wide: int, fill: Any) -> np.ndarray:
    """A picture (high, wide) whose pixels lie in ``image`` where a matrix (6,) says, both seen from
    their middles."""
    y, left = np.arange(high)[:, None] - 0.5 * (high - 1), -0.5 * (wide - 1)
    made = np.empty((high, wide, image.shape[2]), np.uint8)
    made[:] = fill
    with np.errstate(all="ignore"):
        across, down = (
            a * left + b * y + c + 0.5 * side + a * np.arange(wide)
            for (a, b, c), side in zip(matrix.reshape(2, 3), image.shape[1::-1], strict=True)
        )
    there = (across >= 0) & (across < image.shape[1]) & (down >= 0) & (down < image.shape[0])
    made[there] = image[down[there].astype(int), across[there].astype(int)]
    return made


def moved(image: np.ndarray, matrix: np.ndarray, high: int, wide: int, fill: Any) -> np.ndarray:
    """What compiled code makes of it."""
    out = np.empty((high, wide, image.shape[2]), np.uint8)
    size = *image.shape[:2], high, wide, image.shape[2]
    paint = np.array(fill, np.uint8)
    kernels.affine_nearest(image.ctypes.data, out.ctypes.data, *size, matrix, paint)
    return out


def test_pixels_are_moved_as_a_matrix_says() -> None:
    """However a picture of any size and channels is turned, sheared, scaled and moved, and whatever
    the size of the result, each pixel is the one at its place, or the colour of the fill; also by
    numbers that fixed point cannot hold."""
    rng = np.random.default_rng(2)
    image = rng.integers(0, 256, (9, 11, 3), np.uint8)
    for factor in (1.0, 2.0**28, 2.0**29, 2.0**31, 1e20, 1e300, np.inf, np.nan):
        for place in range(6):
            matrix = np.array([1.0, 0, 0, 0, 1.0, 0])
            matrix[place] = factor
            given = image, matrix, 9, 11, (1, 2, 3)
            np.testing.assert_array_equal(moved(*given), placed(*given), f"{place} {factor}")
    for trial in range(300):
        (height, width, high, wide), channels = rng.integers(1, 25, 4).tolist(), trial % 4 * 2 + 1
        image = rng.integers(0, 256, (height, width, channels), np.uint8)
        matrix = rng.uniform(-3, 3, 6)
        matrix[[2, 5]] *= 400 if trial % 5 == 0 else 3
        if trial % 3 == 0:  # lines that are moved along
            matrix[[0, 1, 3, 4]] = 1, 0, 0, rng.uniform(0.5, 2)
        given = image, matrix, high, wide, tuple(range(channels))
        np.testing.assert_array_equal(moved(*given), placed(*given), str(trial))


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
    found = first_batch(data=data, batch_size=8, augment=[augment], size=(33, 40)).data
    assert 7 <= found.min() <= found.max() <= 200
