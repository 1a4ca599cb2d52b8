"""Boxes and keypoints against torchvision's v2 functions of ``BoundingBoxes`` and ``KeyPoints``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torchvision_augment import CASES, given_to, operation
from torchvision_pixels import need_torchvision

from asyncreader import AsyncReader
from asyncreader.params import parse_params
from asyncreader.pixels.augment.operations import Moving
from asyncreader.pixels.augment.policies import Policy
from asyncreader.pixels.points import UNITS, move
from asyncreader.sampling.schedule import Cursor
from asyncreader.sources import open_reader_source
from asyncreader.system.keyed_random import Draws, mix

SHAPE = (131, 197, 3)
COUNT = 40
MOVING = [name for name in CASES if isinstance(operation(name), (Moving, Policy))]


def boxes(size: tuple[int, ...], count: int = COUNT) -> np.ndarray:
    """Boxes inside of a picture of ``size``, some reaching over its edges."""
    rng = np.random.default_rng(3)
    sides = np.array((size[1], size[0]) * 2)
    found = rng.uniform(-0.1, 1.1, (count, 2, 2))
    found = np.concatenate((found.min(axis=1), found.max(axis=1)), axis=1)
    return (found * sides).astype(np.float32)


def places(size: tuple[int, ...], count: int = COUNT) -> np.ndarray:
    """Keypoints, some of them outside of the picture."""
    shares = np.random.default_rng(4).uniform(-0.2, 1.2, (count, 2))
    return (shares * (size[1], size[0])).astype(np.float32)


def theirs(values: np.ndarray, size: tuple[int, ...], change: Callable[[Any], Any]) -> np.ndarray:
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
        return [lambda given: transform.transform(given, given_to(name, drawn, SHAPE))]
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
        drawn = ours.draw(Draws(mix(draw)), SHAPE)
        assert drawn is not None
        expected = (boxes if kind == "boxes" else places)(SHAPE)
        found = expected.astype(np.float64)
        matrices = ours.matrices(drawn, SHAPE, UNITS[kind])
        move(found, kind, matrices, SHAPE[:2])
        one_by_one = changes(name, drawn)
        assert len(one_by_one) == len(matrices)
        lost = np.zeros(len(expected), bool)
        for change in one_by_one:
            expected = theirs(expected, SHAPE, change)
            if kind == "boxes":  # what is outside stays outside
                lost |= (expected[:, 2:] <= expected[:, :2]).any(axis=1)
                expected[lost] = 0
        if one_by_one:
            compare(found, expected, SHAPE)
            moved += 1
    assert moved >= 8


CROPS: dict[str, dict[str, Any]] = {
    "center": {"size": (64, 80), "crop_ratio": 0.7},
    "none": {"size": (50, 90), "crop": "none"},
    "random": {"size": (64, 80), "crop": "random", "crop_ratio": 0.6, "flip": True},
    "random-resized": {"size": (96, 96), "crop": "random-resized", "flip": True},
    "padded": {"size": SHAPE[:2], "crop": "random", "crop_padding": 30, "flip": True},
    "flip": {"flip": True},
}


@pytest.mark.parametrize("kind", ["boxes", "keypoints"])
@pytest.mark.parametrize("name", CROPS)
def test_a_crop_moves_them_as_torchvisions(name: str, kind: str) -> None:
    """For the same part of a picture, what a reader serves is torchvision's pad, resized_crop and
    horizontal_flip of the stored boxes and keypoints."""
    need_torchvision()
    from torchvision.transforms.v2 import functional

    count, values = 12, (boxes if kind == "boxes" else places)(SHAPE)
    data = {"image": np.zeros((count, *SHAPE), np.uint8), kind: np.stack([values] * count)}
    params: Any = {"data": data, f"{kind}_field": kind, "batch_size": count, **CROPS[name]}
    with AsyncReader(params) as reader:
        found = next(iter(reader)).data[1].copy()
        keys = reader._schedule.plan(Cursor()).keys
    picture = open_reader_source(parse_params(params, {})).fills(parse_params(params, {}).wanted)[0]
    flips = set()
    for row, key in zip(found, keys.tolist(), strict=True):
        placed = picture.placement(key, SHAPE[:2])
        flips.add(placed.flip)
        rect = placed.rect

        def change(given: Any) -> Any:
            part = (rect.top, rect.left, rect.height, rect.width)  # noqa: B023
            given = functional.resized_crop(given, *part, size=list(placed.size))  # noqa: B023
            return functional.horizontal_flip(given) if placed.flip else given  # noqa: B023

        compare(row, theirs(values, SHAPE, change), placed.size)
    assert flips == ({False, True} if "flip" in params else {False})
