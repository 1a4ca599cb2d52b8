"""The operations of ``augment``: a class each, with torchvision's v2 options, defaults and draws.

A new operation is a class here: its options, what it draws, and what it does with the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import ParamsError
from ...system.array_types import Array, Float64, UInt8
from ...system.checks import Check, between, numbers, optional, span, whole
from ...system.keyed_random import Draws
from ..shared import ERASURE_DRAWS, erased_part
from ..specs import ImageShape
from ..tables import Erasure
from . import functions
from .base import (
    CHANCE,
    FILL,
    INTERPOLATION,
    WARPS,
    Drawn,
    Interpolation,
    Operation,
    angles,
    around,
    option,
)
from .functions import Affine, Fill

# -- levels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColorJitter(Operation, name="color-jitter"):
    """Brightness, contrast, saturation and hue, in random order."""

    brightness: Any = option(around(1, 0), None)
    contrast: Any = option(around(1, 0), None)
    saturation: Any = option(around(1, 0), None)
    hue: Any = option(around(0, -0.5, 0.5), None)

    kernels = ("blend_level", "sum_of_grey", "saturate", "turn_hue")

    def __post_init__(self) -> None:
        if all(getattr(self, field.name) is None for field in fields(self)):
            raise ParamsError(
                '"color-jitter" changes nothing without options',
                expected=", ".join(field.name for field in fields(self)),
                hint='("color-jitter", {"brightness": 0.4})',
            )

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        order = draws.order(4)
        ranges = [getattr(self, field.name) for field in fields(self)]
        factors = [None if one is None else draws.uniform(*one) for one in ranges]
        return {"order": order, "factors": factors}

    def apply(self, image: Array, drawn: Drawn) -> None:
        adjust = (
            functions.adjust_brightness,
            functions.adjust_contrast,
            functions.adjust_saturation,
            functions.adjust_hue,
        )
        for number in drawn["order"]:
            factor = drawn["factors"][number]
            if factor is not None:
                adjust[number](image, factor)


@dataclass(frozen=True)
class RandomGrayscale(Operation, name="random-grayscale"):
    """Grey levels in all channels."""

    p: float = option(CHANCE, 0.1)

    kernels = ("saturate",)

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.adjust_saturation(image, 0.0)


@dataclass(frozen=True)
class RandomSolarize(Operation, name="random-solarize"):
    """Levels from the threshold on inverted."""

    threshold: float = option(between(0, 255))
    p: float = option(CHANCE, 0.5)

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.solarize(image, self.threshold)


@dataclass(frozen=True)
class RandomPosterize(Operation, name="random-posterize"):
    """The upper bits of each level."""

    bits: int = option(whole(0, 9))
    p: float = option(CHANCE, 0.5)

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.posterize(image, self.bits)


@dataclass(frozen=True)
class RandomEqualize(Operation, name="random-equalize"):
    """Levels spread evenly."""

    p: float = option(CHANCE, 0.5)

    kernels = ("equalize",)

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.equalize(image)


@dataclass(frozen=True)
class RandomAutocontrast(Operation, name="random-autocontrast"):
    """Levels stretched to the whole range."""

    p: float = option(CHANCE, 0.5)

    kernels = ("autocontrast",)

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.autocontrast(image)


# -- neighbours ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomSharpness(Operation, name="random-sharpness"):
    """RandomAdjustSharpness: 0 blurred, 1 as it is, 2 sharper."""

    sharpness_factor: float = option(between(0))
    p: float = option(CHANCE, 0.5)

    kernels = ("sharpen",)

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.adjust_sharpness(image, self.sharpness_factor)


def _odd(value: Any) -> tuple[int, int]:
    sizes = value if isinstance(value, list | tuple) else (value, value)
    x, y = (whole(1).take(one) for one in sizes)
    if not x % 2 == y % 2 == 1:
        raise ValueError
    return x, y


def _sigma(value: Any) -> tuple[float, float]:
    return span(0, above=True).take(value if isinstance(value, list | tuple) else (value, value))


@dataclass(frozen=True)
class GaussianBlur(Operation, name="gaussian-blur"):
    """Blurred; sigma is drawn from a range."""

    kernel_size: tuple[int, int] = option(
        Check("an odd number of at least 1, or (x, y) of these", _odd)
    )
    sigma: tuple[float, float] = option(
        Check("a number above 0, or (least, most) above 0", _sigma), (0.1, 2.0)
    )

    kernels = ("blur",)

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        return {"sigma": draws.uniform(*self.sigma)}

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.gaussian_blur(image, self.kernel_size, drawn["sigma"])

    def check(self, dtype: np.dtype[np.generic], shape: ImageShape, path: str) -> None:
        super().check(dtype, shape, path)
        x, y = self.kernel_size
        if x // 2 >= shape[1] or y // 2 >= shape[0]:
            raise ParamsError(
                f'kernel_size of "{self.name}" is too large for the images',
                path=path,
                found=f"{x} x {y}",
                expected=f"below twice {shape[1]} x {shape[0]}",
            )


# -- geometry ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moving(Operation):
    """What operations that move pixels share."""

    kernels = WARPS

    def move(self, values: UInt8, drawn: Drawn) -> None:
        names = {field.name for field in fields(self)} & {"interpolation", "fill"}
        plain: dict[str, Any] = {"interpolation": "nearest", "fill": None}
        replace(self, **{name: plain[name] for name in names}).apply(values, drawn)

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomRotation(Moving, name="random-rotation"):
    """Turned; ``center`` (x, y) in pixels, None: the middle."""

    degrees: tuple[float, ...] = option(angles())
    interpolation: Interpolation = option(INTERPOLATION, "nearest")
    center: tuple[float, ...] | None = option(optional(numbers(2)), None)
    fill: Fill = option(FILL, 0)

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        return {"angle": draws.uniform(*self.degrees)}

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.rotate(image, drawn["angle"], self.interpolation, self.fill, self.center)

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        return [Affine(-drawn["angle"], center=self.center).matrix(shape)]


@dataclass(frozen=True)
class RandomAffine(Moving, name="random-affine"):
    """Turned, moved by parts of the sides, scaled and sheared."""

    degrees: tuple[float, ...] = option(angles())
    translate: tuple[float, ...] | None = option(optional(numbers(2, 0, 1)), None)
    scale: tuple[float, float] | None = option(optional(span(0, above=True)), None)
    shear: tuple[float, ...] | None = option(optional(angles((2, 4))), None)
    interpolation: Interpolation = option(INTERPOLATION, "nearest")
    fill: Fill = option(FILL, 0)
    center: tuple[float, ...] | None = option(optional(numbers(2)), None)

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        angle = draws.uniform(*self.degrees[:2])
        translate = (0, 0)
        if self.translate is not None:
            x, y = self.translate[0] * shape[1], self.translate[1] * shape[0]
            translate = (round(draws.uniform(-x, x)), round(draws.uniform(-y, y)))
        scale = 1.0 if self.scale is None else draws.uniform(*self.scale)
        shear = [0.0, 0.0]
        if self.shear is not None:
            for axis in range(len(self.shear) // 2):
                shear[axis] = draws.uniform(*self.shear[2 * axis : 2 * axis + 2])
        return {"angle": angle, "translate": translate, "scale": scale, "shear": tuple(shear)}

    def apply(self, image: Array, drawn: Drawn) -> None:
        how = Affine(**drawn, center=self.center)
        functions.affine(image, how, self.interpolation, self.fill)

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        return [Affine(**drawn, center=self.center).matrix(shape)]


@dataclass(frozen=True)
class RandomPerspective(Moving, name="random-perspective"):
    """Projected: each corner is moved inwards by at most ``distortion_scale`` of half a side."""

    distortion_scale: float = option(between(0, 1), 0.5)
    p: float = option(CHANCE, 0.5)
    interpolation: Interpolation = option(INTERPOLATION, "bilinear")
    fill: Fill = option(FILL, 0)

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        if super().draw(draws, shape) is None:
            return None
        high, wide = shape[:2]
        down = int(self.distortion_scale * (high // 2)) + 1
        across = int(self.distortion_scale * (wide // 2)) + 1
        moved = []
        for right, low in ((0, 0), (1, 0), (1, 1), (0, 1)):
            x = draws.below(across) + right * (wide - across)
            moved.append((x, draws.below(down) + low * (high - down)))
        return {"moved": tuple(moved)}

    def apply(self, image: Array, drawn: Drawn) -> None:
        coefficients = self._coefficients(drawn, image.shape)
        functions.perspective(image, coefficients, self.interpolation, self.fill)

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        return [functions.perspective_matrix(self._coefficients(drawn, shape))]

    @staticmethod
    def _coefficients(drawn: Drawn, shape: ImageShape) -> tuple[float, ...]:
        high, wide = shape[0] - 1, shape[1] - 1
        corners = ((0, 0), (wide, 0), (wide, high), (0, high))
        return functions.perspective_coefficients(corners, drawn["moved"])


@dataclass(frozen=True)
class RandomVerticalFlip(Moving, name="random-vertical-flip"):
    """Upside down."""

    p: float = option(CHANCE, 0.5)

    def apply(self, image: Array, drawn: Drawn) -> None:
        functions.vertical_flip(image)

    def matrices(self, drawn: Drawn, shape: ImageShape, unit: int) -> list[Float64]:
        return [np.array(((1.0, 0.0, 0.0), (0.0, -1.0, shape[0] - unit), (0.0, 0.0, 1.0)))]


# -- after normalising ---------------------------------------------------------------------------


def _value(value: Any) -> float | tuple[float, ...] | str:
    if value == "random":
        return "random"
    if isinstance(value, list | tuple):
        return numbers(len(value)).take(value)
    return between(-math.inf).take(value)


@dataclass(frozen=True)
class RandomErasing(Operation, name="random-erasing"):
    """A rectangle painted over (Zhong et al., "Random Erasing Data Augmentation", 2017)."""

    p: float = option(CHANCE, 0.5)
    scale: tuple[float, float] = option(span(0, 1), (0.02, 0.33))
    ratio: tuple[float, float] = option(span(0, above=True), (0.3, 3.3))
    value: float | tuple[float, ...] | str = option(
        Check("a number, one for each channel, or 'random'", _value), 0.0
    )

    last = True

    @cached_property
    def _drawn_from(self) -> Erasure:
        return Erasure(self.p, *self.scale, *map(math.log, self.ratio))

    @property
    def erasure(self) -> Erasure | None:
        """See :class:`Step`."""
        return None if self.value == "random" else self._drawn_from

    def paint(self, dtype: np.dtype[np.generic], channels: int) -> Array:
        """A pixel of ``value``."""
        return np.full(channels, np.asarray(self.value, dtype))

    def draw(self, draws: Draws, shape: ImageShape) -> Drawn | None:
        found = erased_part(draws.ahead(ERASURE_DRAWS), self._drawn_from, *shape[:2])
        draws.skip(found[4])
        part = [int(number) for number in found[:4]]
        if not part[2]:
            return None
        key = draws.bits() if self.value == "random" else None
        return {**dict(zip(("top", "left", "rows", "columns"), part, strict=True)), "key": key}

    def apply(self, image: Array, drawn: Drawn) -> None:
        top, left, key = drawn["top"], drawn["left"], drawn["key"]
        part = image[top : top + drawn["rows"], left : left + drawn["columns"]]
        if key is None:
            part[:] = self.paint(image.dtype, image.shape[2])
        else:
            rng = np.random.Generator(np.random.Philox(key=key))
            part[:] = rng.standard_normal(part.shape, np.float32)

    def check(self, dtype: np.dtype[np.generic], shape: ImageShape, path: str) -> None:
        values = np.atleast_1d(0.0 if self.value == "random" else self.value)
        if not shape or len(values) not in (1, shape[2]):
            raise ParamsError(
                f'"{self.name}" needs images, and value one number, or one for each channel',
                path=path,
                found=f"{len(values)} for {shape[2]} channels" if shape else "no images",
            )
        if dtype.kind == "f":
            return
        with np.errstate(invalid="ignore"):
            held = self.value != "random" and bool((values.astype(dtype) == values).all())
        if not held:
            raise ParamsError(
                f'value of "{self.name}" is none that {dtype} images can hold',
                path=path,
                found=self.value,
                hint='it works on what is served: pass dtype="float32"',
            )
