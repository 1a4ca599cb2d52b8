"""Plain numpy twins of the kernels of augmentation: see twins.py.

``image``, ``source`` and ``out`` are addresses of pictures (H, W, C), uint8, C order.
"""

from __future__ import annotations

import numpy as np

from ..array_types import Array, Float32, Float64, Int64, UInt8
from .twins import bytes_at


def _at(address: int, *shape: int) -> UInt8:
    return bytes_at(address, int(np.prod(shape))).reshape(shape)


def autocontrast_numpy(image: int, pixels: int, channels: int) -> None:
    """Stretch each channel to the whole range of levels."""
    for values in _at(image, pixels, channels).T:
        least, most = np.float32(values.min()), np.float32(values.max())
        if most > least:
            values[:] = _bytes((values - least) / ((most - least) * np.float32(1 / 255)))


def equalize_numpy(image: int, pixels: int, channels: int) -> None:
    """Spread the levels of each channel evenly, as Pillow's ``ImageOps.equalize``."""
    for values in _at(image, pixels, channels).T:
        counts = np.bincount(values, minlength=256)
        step = int(counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        if step:
            table = (np.cumsum(counts) - counts + step // 2) // step
            table[0] = 0
            values[:] = _bytes(table)[values]


def _grey(rgb: UInt8) -> Float32:
    """Grey levels as torchvision has them: whole numbers in float32."""
    weights = np.array((0.2989, 0.587, 0.114), np.float32)
    red, green, blue = (rgb[:, c].astype(np.float32) * weights[c] for c in range(3))
    level: Float32 = np.floor(red + green + blue)
    return level


def _bytes(values: Array) -> UInt8:
    """``values`` cut to what a byte holds, without rounding."""
    return np.clip(values, 0, 255).astype(np.uint8)


def sum_of_grey_numpy(image: int, pixels: int, total: Int64) -> None:
    """The sum of the grey levels of an RGB picture, into ``total[0]``."""
    total[0] = int(_grey(_at(image, pixels, 3)).sum(dtype=np.float64))


def blend_level_numpy(image: int, size: int, ratio: float, level: float) -> None:
    """``ratio`` times each byte, plus ``level``, cut to a byte."""
    data = _at(image, size)
    data[:] = _bytes(data * np.float32(ratio) + np.float32(level))


def saturate_numpy(image: int, pixels: int, ratio: float) -> None:
    """Blend an RGB picture with its grey levels, whose part is ``1 - ratio``."""
    data = _at(image, pixels, 3)
    part = np.float32(ratio)
    data[:] = _bytes(data * part + (_grey(data) * (np.float32(1) - part))[:, None])


def turn_hue_numpy(image: int, pixels: int, by: float) -> None:
    """Turn the hues of an RGB picture by a part of the circle, -0.5 to 0.5."""
    data = _at(image, pixels, 3)
    rgb = data.astype(np.float32)
    most, least = rgb.max(1), rgb.min(1)
    wide = np.where(most == least, np.float32(1), most - least)
    red, green, blue = rgb.T
    hue = np.where(
        most == red,
        (green - blue) / wide,
        np.where(most == green, 2 + (blue - red) / wide, 4 + (red - green) / wide),
    )
    hue = (hue / np.float32(6) + np.float32(1) + np.float32(by)) % np.float32(1)
    value, part = most / np.float32(255), (most - least) / np.maximum(most, 1)
    sixth = hue * np.float32(6)
    section = np.floor(sixth)
    over = sixth - section
    low, down, up = value * (1 - part), value * (1 - part * over), value * (1 - part * (1 - over))
    ways = [
        *((value, up, low), (down, value, low), (low, value, up)),
        *((low, down, value), (up, low, value), (value, low, down)),
    ]
    choice = section.astype(np.int64) % 6
    turned = np.stack([np.choose(choice, [way[c] for way in ways]) for c in range(3)], axis=1)
    # as torchvision scales [0, 1] to bytes
    data[:] = np.where((most == least)[:, None], data, _bytes(turned * np.float32(255.999)))


def sharpen_numpy(
    source: int, out: int, height: int, width: int, channels: int, factor: float
) -> None:
    """Blend all but the outermost pixels with the mean of the pixels around them."""
    given = _at(source, height, width, channels).astype(np.int32)
    made = _at(out, height, width, channels)
    total = 4 * given[1:-1, 1:-1]
    for y in range(3):
        for x in range(3):
            total = total + given[y : height - 2 + y, x : width - 2 + x]
    mean = ((2 * total + 13) // 26).astype(np.float32)
    value = given[1:-1, 1:-1].astype(np.float32)
    made[1:-1, 1:-1] = _bytes(value + (np.float32(1) - np.float32(factor)) * (mean - value))


def blur_numpy(
    image: int, height: int, width: int, channels: int, across: Float32, down: Float32
) -> None:
    """Convolve a picture with odd numbers of weights along each axis, reflected at its edges."""
    data = _at(image, height, width, channels)
    x, y = across.size // 2, down.size // 2
    padded = np.pad(data.astype(np.float32), ((0, 0), (x, x), (0, 0)), "reflect")
    rows = np.zeros((height, width, channels), np.float32)
    for t, weight in enumerate(across):
        rows += weight * padded[:, t : t + width]
    padded = np.pad(rows, ((y, y), (0, 0), (0, 0)), "reflect")
    mixed = np.zeros_like(rows)
    for t, weight in enumerate(down):
        mixed += weight * padded[t : t + height]
    data[:] = _bytes(mixed + np.float32(0.5))


def affine_nearest_numpy(
    source: int,
    out: int,
    height: int,
    width: int,
    high: int,
    wide: int,
    channels: int,
    matrix: Float64,
    fill: UInt8,
) -> None:
    """:func:`warp_numpy` of an affine ``matrix`` (6,) by nearest neighbour: in fixed point, 32 bits
    behind the point, but for places and steps of 2**29 pixels or more. ``fill``: (C,)."""
    one, far = float(1 << 32), 2.0**29
    given, made = _at(source, height, width, channels), _at(out, high, wide, channels)
    y, left = np.arange(high)[:, None] - 0.5 * (high - 1), -0.5 * (wide - 1)
    axes = (width, *matrix[:3]), (height, *matrix[3:])
    with np.errstate(all="ignore"):
        starts = [a * left + b * y + c + 0.5 * side for side, a, b, c in axes]
    near = (np.abs(starts[0]) < far) & (np.abs(starts[1]) < far)
    near &= bool(abs(matrix[0]) < far and abs(matrix[3]) < far)
    places = []
    for start, (_, a, _, _) in zip(starts, axes, strict=True):
        fixed = np.floor(np.where(near, start, 0) * one).astype(np.int64)
        step = round(a * one) if abs(a) < far else 0
        with np.errstate(all="ignore"):
            floating = start + np.arange(wide) * a
        places.append(np.where(near, (fixed + np.arange(wide) * step) >> 32, floating))
    columns, rows = places
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    made[:] = fill
    made[inside] = given[rows[inside].astype(np.int64), columns[inside].astype(np.int64)]


def warp_numpy(
    source: int,
    out: int,
    height: int,
    width: int,
    high: int,
    wide: int,
    channels: int,
    matrix: Float64,
    bilinear: bool,
    fill: Float32,
) -> None:
    """Write a picture (high, wide) whose pixels lie in the source where ``matrix`` (9,) says.

    ``matrix``: from (x, y, 1) to (x, y, 1), both from the middles of the pictures. ``fill``: (C,)
    outside of the source, none for zeros.
    """
    given, made = _at(source, height, width, channels), _at(out, high, wide, channels)
    y, x = np.meshgrid(
        np.arange(high) - 0.5 * (high - 1), np.arange(wide) - 0.5 * (wide - 1), indexing="ij"
    )
    at_x, at_y, below = (row[0] * x + row[1] * y + row[2] for row in matrix.reshape(3, 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        at_x, at_y = at_x / below + 0.5 * (width - 1), at_y / below + 0.5 * (height - 1)
    near = (at_x > -1) & (at_x < width) & (at_y > -1) & (at_y < height)
    at_x, at_y = np.where(near, at_x, -1), np.where(near, at_y, -1)
    paint = fill if fill.size else np.zeros(channels, np.float32)
    if not bilinear:
        columns, rows = (np.floor(at + 0.5).astype(np.int64) for at in (at_x, at_y))
        near &= (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        made[:] = _bytes(paint + np.float32(0.5))
        made[near] = given[rows[near], columns[near]]
        return
    column, row = np.floor(at_x).astype(np.int64), np.floor(at_y).astype(np.int64)
    right, low = (at_x - column).astype(np.float32), (at_y - row).astype(np.float32)
    padded = np.pad(given.astype(np.float32), ((1, 1), (1, 1), (0, 0)))
    ones = np.pad(np.ones((height, width), np.float32), 1)
    value, share = np.zeros(made.shape, np.float32), np.zeros(made.shape[:2], np.float32)
    for dy, weight_y in enumerate((1 - low, low)):
        for dx, weight_x in enumerate((1 - right, right)):
            weight = weight_y * weight_x
            value += weight[..., None] * padded[row + 1 + dy, column + 1 + dx]
            share += weight * ones[row + 1 + dy, column + 1 + dx]
    if fill.size:
        value = share[..., None] * (value - fill) + fill
    value[~near] = paint
    made[:] = _bytes(value + np.float32(0.5))
