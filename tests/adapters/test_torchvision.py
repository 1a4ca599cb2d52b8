"""What torchvision makes of the same images: pixels, boxes and keypoints, augment."""

import collections
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision_augment import (
    CASES,
    INTERPOLATING,
    differences,
    given_to,
    magnitudes,
    operation,
    theirs,
)
from torchvision_pixels import WAYS, need_torchvision
from torchvision_pixels import differences as pixel_differences

from asyncreader import AsyncReader
from asyncreader.params.parse import parse_params
from asyncreader.pixels.augment import AUGMENT, known
from asyncreader.pixels.augment.operations import Moving
from asyncreader.pixels.augment.policies import Policy
from asyncreader.pixels.points import UNITS, move
from asyncreader.sampling.schedule import Cursor
from asyncreader.sources import open_reader_source
from asyncreader.system.keyed_random import Draws, mix

# -- images ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_sees_what_torchvision_shows_it() -> None:
    """The same files, decoded and resized from the same boxes, are torchvision's pixels to a level
    (bicubic: two) and in the mean to 0.05. Where Pillow resizes, which may resize down first, the
    mean is 0.2, and a few pixels of bicubic are up to 8 levels off. Evaluation's centre crop,
    whose box is rounded to other pixels, is equal to 4 levels in the mean, and JPEGs that are
    decoded at a smaller scale to 1 level in the mean."""
    need_torchvision()
    found = pixel_differences()
    decoded, bilinear, bicubic, image, image_bicubic, centre, large = (found[way] for way in WAYS)
    assert decoded[2] == 0
    assert bilinear[0] < 0.05
    assert bilinear[2] <= 1
    assert bicubic[0] < 0.05
    assert bicubic[2] <= 2
    assert image[0] < 0.2
    assert image[2] <= 1
    assert image_bicubic[0] < 0.2
    assert image_bicubic[1] <= 1
    assert image_bicubic[2] <= 8
    assert centre[0] < 4
    assert large[0] < 1


def test_a_torchvision_for_another_torch_is_a_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it raises when it is imported is the reason of the skip, not the end of all tests."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(pytest.skip.Exception, match="RuntimeError: operator nms does not exist"):
        need_torchvision()


# -- boxes and keypoints --------------------------------------------------------------------------


BIG = (131, 197, 3)
PLACES = 40
MOVING = [name for name in CASES if isinstance(operation(name), (Moving, Policy))]


def boxes(size: tuple[int, ...], count: int = PLACES) -> np.ndarray:
    """Boxes inside of a picture of ``size``, some reaching over its edges."""
    rng = np.random.default_rng(3)
    sides = np.array((size[1], size[0]) * 2)
    found = rng.uniform(-0.1, 1.1, (count, 2, 2))
    found = np.concatenate((found.min(axis=1), found.max(axis=1)), axis=1)
    return (found * sides).astype(np.float32)


def places(size: tuple[int, ...], count: int = PLACES) -> np.ndarray:
    """Keypoints, some of them outside of the picture."""
    shares = np.random.default_rng(4).uniform(-0.2, 1.2, (count, 2))
    return (shares * (size[1], size[0])).astype(np.float32)


def moved_by_theirs(
    values: np.ndarray, size: tuple[int, ...], change: Callable[[Any], Any]
) -> np.ndarray:
    """What torchvision makes of boxes or keypoints in a picture of ``size``."""
    import torch
    from torchvision import tv_tensors

    if values.shape[1] == 4:
        given = tv_tensors.BoundingBoxes(
            torch.from_numpy(values.copy()), format="XYXY", canvas_size=size[:2]
        )
    else:
        given = tv_tensors.KeyPoints(torch.from_numpy(values.copy()), canvas_size=size[:2])
    found: np.ndarray = change(given).numpy()
    return found


def compare(found: np.ndarray, expected: np.ndarray, size: tuple[int, ...]) -> None:
    """Equal to 1e-3 pixels; boxes of which torchvision leaves no area are zeros."""
    if found.shape[1] == 4:
        # which torchvision's crops and warps do, but not its flips
        expected = expected.clip(0, (size[1], size[0]) * 2)
        area = (expected[:, 2:] - expected[:, :2]).min(axis=1)
        found, expected = found[(area == 0) | (area > 1e-3)], expected[(area == 0) | (area > 1e-3)]
        gone = (expected[:, 2:] - expected[:, :2]).min(axis=1) == 0
        assert not found[gone].any()
        found, expected = found[~gone], expected[~gone]
        assert len(found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


def by_policy(name: str, magnitude: float) -> Callable[[Any], Any]:
    """What torchvision's policies do with pictures, done with boxes: they refuse these."""
    from torchvision.transforms import v2

    transform: Any = v2.RandAugment()

    def change(given: Any) -> Any:
        seen = transform._apply_image_or_video_transform.__func__
        return seen(
            transform, given, name, magnitude, v2.InterpolationMode.NEAREST, {type(given): 0}
        )

    return change


def changes(name: str, drawn: dict[str, Any]) -> list[Callable[[Any], Any]]:
    """What an operation drew, as torchvision's functions of boxes and keypoints."""
    from torchvision.transforms import v2

    if "chosen" not in drawn:
        options, kind = CASES[name]
        transform = getattr(v2, kind)(**options)
        return [lambda given: transform.transform(given, given_to(name, drawn, BIG))]
    moves = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
    return [by_policy(one, magnitude) for one, magnitude in drawn["chosen"] if one in moves]


@pytest.mark.parametrize("kind", ["boxes", "keypoints"])
@pytest.mark.parametrize("name", MOVING)
def test_an_operation_moves_them_as_torchvisions(name: str, kind: str) -> None:
    """With the same numbers each operation that moves pixels moves boxes and keypoints as
    torchvision's does, to 1e-3 pixels; those inside policies, too."""
    need_torchvision()
    ours, moved = operation(name), 0
    for draw in range(60 if isinstance(ours, Policy) else 8):
        drawn = ours.draw(Draws(mix(draw)), BIG)
        assert drawn is not None
        expected = (boxes if kind == "boxes" else places)(BIG)
        found = expected.astype(np.float64)
        matrices = ours.matrices(drawn, BIG, UNITS[kind])
        move(found, kind, matrices, BIG[:2])
        one_by_one = changes(name, drawn)
        assert len(one_by_one) == len(matrices)
        lost = np.zeros(len(expected), bool)
        for change in one_by_one:
            expected = moved_by_theirs(expected, BIG, change)
            if kind == "boxes":  # what is outside stays outside
                lost |= (expected[:, 2:] <= expected[:, :2]).any(axis=1)
                expected[lost] = 0
        if one_by_one:
            compare(found, expected, BIG)
            moved += 1
    assert moved >= 8


CROPS: dict[str, dict[str, Any]] = {
    "center": {"size": (64, 80), "crop_ratio": 0.7},
    "none": {"size": (50, 90), "crop": "none"},
    "random": {"size": (64, 80), "crop": "random", "crop_ratio": 0.6, "flip": True},
    "random-resized": {"size": (96, 96), "crop": "random-resized", "flip": True},
    "padded": {"size": BIG[:2], "crop": "random", "crop_padding": 30, "flip": True},
    "flip": {"flip": True},
}


@pytest.mark.parametrize("kind", ["boxes", "keypoints"])
@pytest.mark.parametrize("name", CROPS)
def test_a_crop_moves_them_as_torchvisions(name: str, kind: str) -> None:
    """For the same part of a picture, what a reader serves is torchvision's pad, resized_crop and
    horizontal_flip of the stored boxes and keypoints."""
    need_torchvision()
    from torchvision.transforms.v2 import functional

    count, values = 12, (boxes if kind == "boxes" else places)(BIG)
    data = {"image": np.zeros((count, *BIG), np.uint8), kind: np.stack([values] * count)}
    params: Any = {"data": data, f"{kind}_field": kind, "batch_size": count, **CROPS[name]}
    with AsyncReader(params) as reader:
        found = next(iter(reader)).data[1].copy()
        keys = reader._schedule.plan(Cursor()).keys
    picture = open_reader_source(parse_params(params, {})).fills(parse_params(params, {}).wanted)[0]
    flips = set()
    for row, key in zip(found, keys.tolist(), strict=True):
        placed = picture.placement(key, BIG[:2])
        flips.add(placed.flip)
        rect = placed.rect

        def change(given: Any) -> Any:
            part = (rect.top, rect.left, rect.height, rect.width)  # noqa: B023
            given = functional.resized_crop(given, *part, size=list(placed.size))  # noqa: B023
            return functional.horizontal_flip(given) if placed.flip else given  # noqa: B023

        compare(row, moved_by_theirs(values, BIG, change), placed.size)
    assert flips == ({False, True} if "flip" in params else {False})


# -- augment --------------------------------------------------------------------------------------


SHAPE = (40, 56, 3)
DRAWS = 10_000
#: Compositions, in which a difference of one level grows, and places between two pixels.
MIXED = {"color-jitter, all", "random-rotation", "random-affine", "random-perspective, nearest"}
MIXED |= {"trivial-augment-wide", "trivial-augment-wide, bilinear", "rand-augment", "auto-augment"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_torchvisions(name: str) -> None:
    """With the same numbers an operation gives torchvision's pixels: to one level, and in the mean
    to half a level where operations follow each other or pixels are chosen by their places."""
    need_torchvision()
    assert {one.split(",")[0] for one in CASES} == set(known())
    largest, mean = differences(name)
    assert mean < 0.5
    assert largest <= 1 or name in MIXED
    assert set(INTERPOLATING) <= set(CASES)


def test_magnitudes_are_torchvisions() -> None:
    """Each bin of each table has torchvision's magnitude, to the precision of float32."""
    need_torchvision()
    found = list(magnitudes())
    assert len(found) > 900
    for _, ours, expected in found:
        assert ours == pytest.approx(expected, abs=1e-5)


def numbers(made: dict[str, Any] | None) -> list[float]:
    """What was drawn, as torchvision's make_params() has it, in numbers of one kind each; of a
    rectangle its place, its area and its ratio."""
    if made is None or made.get("v", 0) is None:
        return [-1.0]
    if "h" in made:
        rows, columns = made["h"], made["w"]
        made = {"i": made["i"], "j": made["j"], "area": rows * columns, "ratio": rows / columns}
    flat = (np.ravel(made[key]) for key in sorted(made))
    return [-9.0 if one is None else round(float(one), 4) for part in flat for one in part]


def their_numbers(transform: Any) -> list[float]:
    """What torchvision draws once."""
    import torch

    if hasattr(transform, "p") and torch.rand(1) >= transform.p:
        return numbers(None)
    image = torch.zeros((SHAPE[2], *SHAPE[:2]), dtype=torch.uint8)
    return numbers(transform.make_params([image]))


#: The operations that choose no others.
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {} for name, kind in known().items() if not issubclass(kind, Policy)},
    "color-jitter": {"brightness": 0.4, "contrast": (0.5, 2), "hue": 0.1},
    "random-solarize": {"threshold": 100},
    "random-posterize": {"bits": 3},
    "random-autocontrast": {"p": 0.3},
    "random-sharpness": {"sharpness_factor": 2},
    "gaussian-blur": {"kernel_size": 3},
    "random-erasing": {"p": 0.7, "scale": (0.05, 0.4), "ratio": (0.2, 4), "value": (9, 200, 77)},
    "random-rotation": {"degrees": 30},
    "random-affine": {"degrees": (-10, 20), "translate": (0.2, 0.1), "scale": (0.5, 2), "shear": 9},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_draws_have_torchvisions_distribution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 draws of each number have the distribution of 10,000 of torchvision's (Kolmogorov and
    Smirnov), with the options' defaults, too."""
    need_torchvision()
    import torch
    from scipy.stats import ks_2samp

    case = next(key for key in CASES if key.split(",")[0] == name)
    monkeypatch.setitem(CASES, case, (OPTIONS[name], CASES[case][1]))
    ours, transform = operation(case), theirs(case)
    drawn = (ours.draw(Draws(mix(draw)), SHAPE) for draw in range(DRAWS))
    found = [numbers(None if one is None else given_to(case, one, SHAPE)) for one in drawn]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = [their_numbers(transform) for _ in range(DRAWS)]
    assert {len(one) for one in found} == {len(one) for one in expected}
    widest = max(map(len, found))
    left, right = ([one for one in side if len(one) < widest] for side in (found, expected))
    assert abs(len(left) - len(right)) < 5 * DRAWS**0.5
    for number in range(widest):
        ours_, theirs_ = (
            [one[number] for one in side if len(one) == widest] for side in (found, expected)
        )
        assert ks_2samp(ours_, theirs_).pvalue > 1e-4, number


def as_cells(ours: list[Any], theirs: list[Any]) -> np.ndarray:
    """How often each value came, (2, cells); values that came fewer than 20 times are one cell."""
    both = [collections.Counter(side) for side in (ours, theirs)]
    total = both[0] + both[1]
    usual = [value for value, count in total.items() if count >= 20]
    table = np.array([[side[value] for value in usual] for side in both])
    rare = DRAWS - table.sum(axis=1, keepdims=True)
    return np.hstack([table, rare]) if rare.sum() >= 20 else table


def likely(table: np.ndarray) -> bool:
    """Whether both rows may be of one distribution (Pearson's chi-square)."""
    from scipy.stats import chi2_contingency

    return bool(chi2_contingency(table).pvalue > 1e-3)


def chosen_of(kind: str, magnitude: Any) -> tuple[str, float]:
    """An operation and its magnitude, to three digits; none of them is half-way between two."""
    return kind, round(float(magnitude) + 1e-4, 3)


def choices(name: str, options: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """What a policy chose, 10,000 times, here and in torchvision: operations and magnitudes."""
    import torch

    (ours,) = AUGMENT("augment", (name, options))
    kinds = {"trivial-augment-wide": "TrivialAugmentWide", "rand-augment": "RandAugment"}
    from torchvision.transforms import v2

    transform = getattr(v2, kinds.get(name, "AutoAugment"))(**options)
    chosen: list[tuple[str, float]] = []

    def note(given: Any, kind: str, magnitude: Any, **_: Any) -> Any:
        chosen.append(chosen_of(kind, magnitude))
        return given

    transform._apply_image_or_video_transform = note
    image, expected = torch.zeros((SHAPE[2], *SHAPE[:2]), dtype=torch.uint8), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        for _ in range(DRAWS):
            chosen.clear()
            transform(image)
            expected.append(tuple(chosen))
    found = []
    for draw in range(DRAWS):
        drawn = ours.draw(Draws(mix(draw)), SHAPE)
        assert drawn is not None
        found.append(tuple(chosen_of(*one) for one in drawn["chosen"]))
    return found, expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("trivial-augment-wide", {}),
        ("trivial-augment-wide", {"num_magnitude_bins": 5}),
        ("rand-augment", {}),
        ("rand-augment", {"num_ops": 1, "magnitude": 20}),
        ("auto-augment", {}),
    ],
)
def test_choices_have_torchvisions_distribution(name: str, options: dict[str, Any]) -> None:
    """10,000 choices, each of its operations with their magnitudes and signs, come as often as
    10,000 of torchvision's (chi-square): operations alone, and all that was chosen together."""
    need_torchvision()
    found, expected = choices(name, options)
    names = [[tuple(kind for kind, _ in one) for one in side] for side in (found, expected)]
    together = as_cells(found, expected)
    assert together.shape[1] > 20
    for table in (as_cells(*names), together):
        assert likely(table)
    wrong = [one for one in found if one and one[0][0] != "Equalize"]
    assert not likely(as_cells(wrong + wrong[: DRAWS - len(wrong)], expected))  # it can tell


@pytest.mark.slow
def test_what_is_drawn_of_a_row_is_independent() -> None:
    """The flip of a row, two operations and a second epoch's are independent of each other: the 32
    combinations come equally often in 10,000 rows (chi-square)."""
    from scipy.stats import chisquare

    picture = np.array([[10, 60], [20, 70]], np.uint8)
    data = np.broadcast_to(picture[None, :, :, None], (DRAWS, 2, 2, 1)).copy()
    found = []
    with AsyncReader(
        data=data, batch_size=DRAWS, layout="NHWC", flip=True, num_dim=1, h_dim=2,
        w_dim=3, cha_dim=4,
        augment=["random-vertical-flip", ("random-solarize", {"threshold": 0})],
    ) as reader:  # fmt: skip
        for _ in range(2):
            (batch,) = reader
            rows = batch.data[..., 0].astype(int)
            solarized = rows.sum(axis=(1, 2)) > 500
            rows[solarized] = 255 - rows[solarized]
            found.append(solarized * 4 + (rows[:, 0, 0] > 50) * 2 + (rows[:, 0, 0] % 50 == 20))
    both = np.bincount(found[0] * 8 + found[1], minlength=64)
    assert both.size == 64
    assert chisquare(both).pvalue > 1e-3
