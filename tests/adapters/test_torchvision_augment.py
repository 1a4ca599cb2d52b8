"""``augment`` against torchvision's v2 transforms: what each operation does, and what it draws."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from torchvision_augment import CASES, INTERPOLATING, differences, magnitudes, operation, theirs
from torchvision_pixels import need_torchvision

from asyncreader.keyed_random import Draws, mix
from asyncreader.pixels.augment.parse import known

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


def numbers(drawn: Any) -> list[float]:
    """What was drawn, as numbers of one kind each."""
    if drawn is None:
        return [-1.0]
    if "chosen" in drawn:
        return [sum(4000.0 * (len(n) + ord(n[0]) + ord(n[-1])) + m for n, m in drawn["chosen"])]
    found: list[float] = []
    for value in drawn.values():
        found += np.ravel([-9 if one is None else one for one in np.ravel(value)]).tolist()
    return [float(one) for one in found]


def their_numbers(name: str, transform: Any) -> list[float]:
    """What torchvision draws once."""
    import torch

    image = torch.zeros((SHAPE[2], *SHAPE[:2]), dtype=torch.uint8)
    chosen: list[tuple[str, float]] = []
    if hasattr(transform, "_apply_image_or_video_transform"):

        def note(given: Any, kind: str, magnitude: float, **_: Any) -> Any:
            chosen.append((kind, magnitude))
            return given

        transform._apply_image_or_video_transform = note
        transform(image)
        return numbers({"chosen": chosen})
    if hasattr(transform, "p") and torch.rand(1) >= transform.p:
        return numbers(None)
    made = transform.make_params([image])
    if name == "color-jitter":
        words = ("brightness", "contrast", "saturation", "hue")
        order, factors = made["fn_idx"].tolist(), [made[f"{word}_factor"] for word in words]
        return numbers({"order": order, "factors": factors})
    if name == "random-erasing":
        if made["v"] is None:
            return numbers(None)
        return [float(made[letter]) for letter in "ijhw"]
    if name == "random-perspective":
        return [round(value, 4) for value in made["coefficients"]]
    if name == "gaussian-blur":
        return made["sigma"][:1]
    return numbers({key: made[key] for key in made if key != "num_input_channels"})


OPTIONS: dict[str, dict[str, Any]] = {
    "color-jitter": {"brightness": 0.4, "contrast": (0.5, 2), "hue": 0.1},
    "random-grayscale": {},
    "random-solarize": {"threshold": 100},
    "random-posterize": {"bits": 3},
    "random-equalize": {},
    "random-autocontrast": {"p": 0.3},
    "random-sharpness": {"sharpness_factor": 2},
    "gaussian-blur": {"kernel_size": 3},
    "random-rotation": {"degrees": 30},
    "random-affine": {"degrees": (-10, 20), "translate": (0.2, 0.1), "scale": (0.5, 2), "shear": 9},
    "random-perspective": {},
    "random-vertical-flip": {},
    "trivial-augment-wide": {},
    "rand-augment": {},
    "auto-augment": {},
    "random-erasing": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_draws_have_torchvisions_distribution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 draws of each number have the distribution of 10,000 of torchvision's (Kolmogorov and
    Smirnov), with the options' defaults, too."""
    need_torchvision()
    import torch
    from scipy.stats import ks_2samp

    for case in [key for key in CASES if key.split(",")[0] == name][:1]:
        monkeypatch.setitem(CASES, case, (OPTIONS[name], CASES[case][1]))
        ours, transform = operation(case), theirs(case)
    found = []
    for draw in range(COUNT):
        drawn = ours.draw(Draws(mix(draw)), SHAPE)
        if drawn is not None and name == "random-perspective":
            from asyncreader.pixels.augment.functions import perspective_coefficients

            high, wide = SHAPE[0] - 1, SHAPE[1] - 1
            corners = ((0, 0), (wide, 0), (wide, high), (0, high))
            values = perspective_coefficients(corners, drawn["moved"])
            found.append([round(value, 4) for value in values])
        elif drawn is not None and name == "random-erasing":
            found.append([float(drawn[key]) for key in ("top", "left", "rows", "columns")])
        else:
            found.append(numbers(drawn))
    with torch.random.fork_rng(devices=[]), contextlib.suppress(StopIteration):
        torch.manual_seed(5)
        expected = [their_numbers(name, transform) for _ in range(COUNT)]
    assert {len(one) for one in found} == {len(one) for one in expected}
    widest = max(map(len, found))
    left, right = ([one for one in side if len(one) < widest] for side in (found, expected))
    assert abs(len(left) - len(right)) < 5 * COUNT**0.5
    for number in range(widest):
        ours_, theirs_ = (
            [one[number] for one in side if len(one) == widest] for side in (found, expected)
        )
        assert ks_2samp(ours_, theirs_).pvalue > 1e-4, number
