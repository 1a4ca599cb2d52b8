"""``augment`` against torchvision's v2 transforms: what each operation does, and what it draws."""

from __future__ import annotations

import collections
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
from torchvision_pixels import need_torchvision

from asyncreader import AsyncReader
from asyncreader.pixels.augment.parse import AUGMENT, known
from asyncreader.pixels.augment.policies import Policy
from asyncreader.system.keyed_random import Draws, mix

SHAPE = (40, 56, 3)
COUNT = 10_000
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
    drawn = (ours.draw(Draws(mix(draw)), SHAPE) for draw in range(COUNT))
    found = [numbers(None if one is None else given_to(case, one, SHAPE)) for one in drawn]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = [their_numbers(transform) for _ in range(COUNT)]
    assert {len(one) for one in found} == {len(one) for one in expected}
    widest = max(map(len, found))
    left, right = ([one for one in side if len(one) < widest] for side in (found, expected))
    assert abs(len(left) - len(right)) < 5 * COUNT**0.5
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
    rare = COUNT - table.sum(axis=1, keepdims=True)
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
        for _ in range(COUNT):
            chosen.clear()
            transform(image)
            expected.append(tuple(chosen))
    found = []
    for draw in range(COUNT):
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
    assert not likely(as_cells(wrong + wrong[: COUNT - len(wrong)], expected))  # it can tell


@pytest.mark.slow
def test_what_is_drawn_of_a_row_is_independent() -> None:
    """The flip of a row, two operations and a second epoch's are independent of each other: the 32
    combinations come equally often in 10,000 rows (chi-square)."""
    from scipy.stats import chisquare

    picture = np.array([[10, 60], [20, 70]], np.uint8)
    data = np.broadcast_to(picture[None, :, :, None], (COUNT, 2, 2, 1)).copy()
    found = []
    with AsyncReader(
        data=data, batch_size=COUNT, layout="NHWC", flip=True, num_dim=1, h_dim=2,
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
