"""What operations do to a picture once their numbers are drawn: torchvision's v2 functions.

Each changes ``image``, (H, W, C) uint8 in C order with 1 or 3 channels, in place. They give what
``torchvision.transforms.v2.functional`` gives for the same numbers, to one level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ...system.array_types import Float32, Float64, UInt8
from ...system.memory import SCRATCH
from .. import kernels

#: What is painted where a picture has no pixels: one number, or one for each channel; None: zeros.
Fill: TypeAlias = float | tuple[float, ...] | None

_NO_COLOUR: Final = np.empty(0, np.float32)


def _before(image: UInt8) -> UInt8:
    """A copy of ``image``, for what cannot read where it writes."""
    copy: UInt8 = SCRATCH.array("before", image.shape, image.dtype)
    # numpy would free the GIL for these microseconds, and wait to have it again
    copy.reshape(-1).data[:] = image.reshape(-1).data
    return copy


# -- levels --------------------------------------------------------------------------------------


def adjust_brightness(image: UInt8, factor: float) -> None:
    """Multiply all levels by ``factor``."""
    kernels.blend_level(image.ctypes.data, image.size, factor, 0.0)


def adjust_contrast(image: UInt8, factor: float) -> None:
    """Blend with the mean grey level of the picture, whose part is 1 - ``factor``."""
    total = np.zeros(1, np.int64)
    pixels = image.shape[0] * image.shape[1]
    if image.shape[2] == 3:
        kernels.sum_of_grey(image.ctypes.data, pixels, total)
    else:
        total[0] = image.sum(dtype=np.int64)
    level = np.float32(1.0 - factor) * np.float32(total[0] / pixels)
    kernels.blend_level(image.ctypes.data, image.size, factor, level)


def adjust_saturation(image: UInt8, factor: float) -> None:
    """Blend with the grey level of each pixel, whose part is 1 - ``factor``."""
    if image.shape[2] == 3:
        kernels.saturate(image.ctypes.data, image.size // 3, factor)


def adjust_hue(image: UInt8, factor: float) -> None:
    """Turn the hues by ``factor`` of the circle, -0.5 to 0.5."""
    if image.shape[2] == 3:
        kernels.turn_hue(image.ctypes.data, image.size // 3, factor)


def posterize(image: UInt8, bits: int) -> None:
    """Keep the upper ``bits`` of each level, 0 to 8."""
    np.bitwise_and(image, np.uint8((0xFF << (8 - bits)) & 0xFF), out=image)


def solarize(image: UInt8, threshold: float) -> None:
    """Invert levels of at least ``threshold``, 0 to 255."""
    # rounded as torch rounds it: 255 * 0.6 is 153
    bright = (image >= np.uint8(math.ceil(np.float32(threshold)))).view(np.uint8)
    np.bitwise_xor(image, np.negative(bright, out=bright), out=image)


def invert(image: UInt8) -> None:
    """Invert all levels."""
    np.invert(image, out=image)


def autocontrast(image: UInt8) -> None:
    """Stretch each channel to the whole range of levels."""
    channels = image.shape[2]
    kernels.autocontrast(image.ctypes.data, image.size // channels, channels)


def equalize(image: UInt8) -> None:
    """Spread the levels of each channel evenly, as Pillow's ``ImageOps.equalize``."""
    channels = image.shape[2]
    kernels.equalize(image.ctypes.data, image.size // channels, channels)


# -- neighbours ----------------------------------------------------------------------------------


def adjust_sharpness(image: UInt8, factor: float) -> None:
    """Blend with the mean of the neighbours, whose part is 1 - ``factor``; edges stay."""
    high, wide, channels = image.shape
    if high > 2 and wide > 2:
        source = _before(image)
        kernels.sharpen(source.ctypes.data, image.ctypes.data, high, wide, channels, factor)


def gaussian_blur(image: UInt8, size: tuple[int, int], sigma: float) -> None:
    """Blur with ``size`` (x, y) weights, odd numbers below twice the sides."""
    across, down = (_gaussian(length, sigma) for length in size)
    high, wide, channels = image.shape
    kernels.blur(image.ctypes.data, high, wide, channels, across, down)


def _gaussian(size: int, sigma: float) -> Float32:
    """torchvision's weights, which are wider than the definition by the square root of 2 where
    there are many."""
    end = (size - 1) / (2 * math.sqrt(2))
    weights = np.exp(-((np.linspace(-end, end, size) / sigma) ** 2))
    normal: Float32 = (weights / weights.sum()).astype(np.float32)
    return normal


# -- geometry ------------------------------------------------------------------------------------


class Affine(NamedTuple):
    """An affine map of a picture, T * C * R(angle) * S(scale) * shears * C^-1, as torchvision has
    it. Angles in degrees, clockwise; the rest in pixels. ``center``: (x, y) from the upper left
    corner; None: the middle."""

    angle: float = 0.0
    translate: Sequence[float] = (0.0, 0.0)
    scale: float = 1.0
    shear: Sequence[float] = (0.0, 0.0)
    center: Sequence[float] | None = None

    def _turned_and_sheared(self) -> tuple[float, float, float, float]:
        """R(angle) * shears, of determinant 1, by rows."""
        turn, shear_x, shear_y = (math.radians(one) for one in (self.angle, *self.shear))
        a = math.cos(turn - shear_y) / math.cos(shear_y)
        c = math.sin(turn - shear_y) / math.cos(shear_y)
        tangent = math.tan(shear_x)
        return a, -(a * tangent + math.sin(turn)), c, math.cos(turn) - c * tangent

    def matrix(self, size: Sequence[int]) -> Float64:
        """The matrix (3, 3) from a place (x, y, 1) in a picture of ``size`` (H, W) to the place to
        which it is moved, both in pixels from the upper left corner."""
        a, b, c, d = (self.scale * one for one in self._turned_and_sheared())
        x, y = self.center or (0.5 * size[1], 0.5 * size[0])
        move_x, move_y = self.translate
        across, down = x + move_x - a * x - b * y, y + move_y - c * x - d * y
        return np.array(((a, b, across), (c, d, down), (0.0, 0.0, 1.0)))

    def inverse(self, size: Sequence[int]) -> Float64:
        """The matrix (6,) from a place in the result to the place in a picture of ``size`` (H, W),
        both seen from the middle: torchvision's ``_get_inverse_affine_matrix``."""
        a, b, c, d = self._turned_and_sheared()
        center_x, center_y = 0.0, 0.0
        if self.center is not None:
            center_x, center_y = self.center[0] - 0.5 * size[1], self.center[1] - 0.5 * size[0]
        first, second = (d / self.scale, -b / self.scale), (-c / self.scale, a / self.scale)
        x, y = center_x + self.translate[0], center_y + self.translate[1]
        across = center_x - first[0] * x - first[1] * y
        return np.array((*first, across, *second, center_y - second[0] * x - second[1] * y))


def affine(image: UInt8, how: Affine, interpolation: str = "nearest", fill: Fill = None) -> None:
    """Turn, scale, shear and move a picture."""
    matrix = how.inverse(image.shape)
    if interpolation == "nearest":
        source = _before(image)
        paint = _whole_colours(fill, image.shape[2])
        where = source.ctypes.data, image.ctypes.data
        size = image.shape[:2]
        kernels.affine_nearest(*where, *size, *size, image.shape[2], matrix, paint)
    else:
        _warp(image, np.array((*matrix, 0.0, 0.0, 1.0)), True, fill)


def rotate(
    image: UInt8,
    angle: float,
    interpolation: str = "nearest",
    fill: Fill = None,
    center: Sequence[float] | None = None,
) -> None:
    """Turn a picture by ``angle`` degrees, counter-clockwise."""
    angle %= 360
    quarters, rest = divmod(angle, 90)
    square = image.shape[0] == image.shape[1]
    if center is None and rest == 0 and (square or quarters in (0, 2)):
        if quarters:
            image[:] = np.rot90(_before(image), int(quarters))
    else:
        affine(image, Affine(-angle, center=center), interpolation, fill)


def perspective(
    image: UInt8, coefficients: Sequence[float], interpolation: str = "bilinear", fill: Fill = None
) -> None:
    """Project a picture: ``coefficients`` as of :func:`perspective_coefficients`."""
    middle = np.eye(3)
    middle[:2, 2] = 0.5 * image.shape[1], 0.5 * image.shape[0]
    back = np.eye(3)
    back[:2, 2] = -middle[:2, 2]
    matrix = back @ np.array((*coefficients, 1.0)).reshape(3, 3) @ middle
    _warp(image, matrix.reshape(-1), interpolation == "bilinear", fill)


def perspective_coefficients(
    corners: Sequence[Sequence[float]], moved: Sequence[Sequence[float]]
) -> tuple[float, ...]:
    """The 8 numbers of the projection that takes ``moved`` to ``corners``, four (x, y) each:
    (x, y) becomes ((ax + by + c) / (gx + hy + 1), (dx + ey + f) / (gx + hy + 1))."""
    rows: list[tuple[float, ...]] = []
    for (x, y), (to_x, to_y) in zip(moved, corners, strict=True):
        rows.append((x, y, 1, 0, 0, 0, -to_x * x, -to_x * y))
        rows.append((0, 0, 0, x, y, 1, -to_y * x, -to_y * y))
    try:
        solved = np.linalg.solve(np.array(rows, np.float64), np.ravel(corners).astype(np.float64))
    except np.linalg.LinAlgError:  # a picture of one row or column has no four corners
        return 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0
    return tuple(solved.astype(np.float32).tolist())


def perspective_matrix(coefficients: Sequence[float]) -> Float64:
    """The matrix (3, 3) from a place (x, y, 1) in a picture to the place where :func:`perspective`
    moves it, times a number: the adjugate of the projection, which is there without an inverse."""
    (a, b, c), (d, e, f), (g, h, one) = np.array((*coefficients, 1.0)).reshape(3, 3).tolist()
    return np.array(
        (
            (e * one - f * h, c * h - b * one, b * f - c * e),
            (f * g - d * one, a * one - c * g, c * d - a * f),
            (d * h - e * g, b * g - a * h, a * e - b * d),
        )
    )


@lru_cache(64)
def _colours(fill: Fill, channels: int) -> Float32:
    return np.full(channels, 0 if fill is None else fill, np.float32)


@lru_cache(64)
def _whole_colours(fill: Fill, channels: int) -> UInt8:
    return np.rint(_colours(fill, channels)).astype(np.uint8)


def _warp(image: UInt8, matrix: Float64, bilinear: bool, fill: Fill) -> None:
    source, (high, wide, channels) = _before(image), image.shape
    # None and 0 differ at the edges, as they do in torchvision
    paint = _NO_COLOUR if fill is None else _colours(fill, channels)
    where = source.ctypes.data, image.ctypes.data
    kernels.warp(*where, high, wide, high, wide, channels, matrix, bilinear, paint)


def vertical_flip(image: UInt8) -> None:
    """Turn a picture upside down."""
    image[:] = _before(image)[::-1]
