"""The geometry between stored and wanted shape: which part is cut out, and resizing it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from ..system.array_types import Array, Float64, Int64
from . import kernels, shared
from .shared import AREA, BICUBIC, BILINEAR
from .tables import PLAN, numbers

Pixels: TypeAlias = Array
#: Top, left, height and width of a part of a picture, in pixels and fractions of them.
Box: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True)
class Rect:
    """A rectangle of whole pixels in the upright picture."""

    top: int
    left: int
    height: int
    width: int

    def box(self, scale: float = 1.0, top: float = 0.0, left: float = 0.0) -> Box:
        """The same part in pixels of another size, where (row, column) of the picture lies at
        (row * scale + top, column * scale + left)."""
        return (
            self.top * scale + top,
            self.left * scale + left,
            self.height * scale,
            self.width * scale,
        )


@dataclass(frozen=True)
class Placement:
    """Where a picture is served: its part ``rect`` becomes a picture of ``size`` (H, W), mirrored
    left to right with ``flip``. The part of a padded picture may reach beyond the picture."""

    rect: Rect
    size: tuple[int, int]
    flip: bool

    def matrix(self, unit: int) -> Float64:
        """The matrix (3, 3) that takes a place (x, y, 1) in the picture to its place as served.

        ``unit``: 0 where a place is a distance from the upper left corner, as of boxes; 1 where it
        is the number of a pixel, as of keypoints: x is then mirrored to W - 1 - x.
        """
        by_x, by_y = self.size[1] / self.rect.width, self.size[0] / self.rect.height
        left, top = -self.rect.left * by_x, -self.rect.top * by_y
        if self.flip:
            by_x, left = -by_x, self.size[1] - unit - left
        return np.array(((by_x, 0.0, left), (0.0, by_y, top), (0.0, 0.0, 1.0)))


#: What is put around a picture; compiled code knows it by its number.
PADDINGS: Final = ("zero", "edge", "reflect")


#: Ways to resize. "bilinear" and "bicubic" are antialiased, as Pillow's and torchvision's;
#: "area" takes the mean of what a pixel covers, as OpenCV's INTER_AREA.
INTERPOLATIONS: Final = ("bilinear", "bicubic", "area", "nearest")
#: Those that a kernel computes, by the number that it knows them by.
METHODS: Final = {"bilinear": BILINEAR, "bicubic": BICUBIC, "area": AREA}


def resize_into(
    pixels: Pixels,
    out: Pixels,
    box: Box | None = None,
    interpolation: str = "bilinear",
    flip: bool = False,
    outside: bool = False,
) -> None:
    """Resize the part ``box`` of ``pixels`` (h, w, C), or all, into ``out`` (H, W, C; C-contiguous,
    the same dtype in native byte order), mirrored left to right with ``flip``.

    ``interpolation``: one of INTERPOLATIONS. What lies at a share of the box lies at the same share
    of the result, to a fraction of a pixel. Pixels outside the box do not matter, as if it had been
    cut out; with ``outside`` "bilinear", "bicubic" and "area" look at them, as Pillow's
    ``Image.resize`` with a box does.
    """
    high, wide = out.shape[:2]
    box = box or (0, 0, *pixels.shape[:2])
    inside = box[0] < pixels.shape[0] and box[1] < pixels.shape[1]
    if not inside or pixels.shape[2] != out.shape[2]:  # compiled code would not see it
        raise ValueError(f"part {box} of pixels {pixels.shape} for pixels {out.shape}")
    if box[0] % 1 == 0 == box[1] % 1 and box[2:] == (high, wide):  # nothing to resize
        part = pixels[int(box[0]) :, int(box[1]) :][:high, :wide]
        copy_into(part, out, flip)
    elif interpolation == "nearest":
        rows = nearest_pixels(box[0], box[2], high, pixels.shape[0])
        columns = nearest_pixels(box[1], box[3], wide, pixels.shape[1])
        pick(pixels, rows, columns[::-1] if flip else columns, out)
    elif pixels.shape[2] > 4 and pixels.dtype == np.uint8:
        for c in range(pixels.shape[2]):
            plane = np.empty((high, wide, 1), out.dtype)
            resize_into(pixels[:, :, c : c + 1], plane, box, interpolation, flip, outside)
            out[:, :, c : c + 1] = plane
    else:
        _resample(pixels, out, box, interpolation, flip, outside)


def copy_into(pixels: Pixels, out: Pixels, flip: bool) -> None:
    """Copy ``pixels`` (H, W, C) into ``out`` (C-contiguous, the same shape), mirrored left to right
    with ``flip``; numpy copies mirrored pixels byte by byte."""
    if pixels.shape != out.shape:
        raise ValueError(f"pixels of shape {pixels.shape} for {out.shape}")
    small = pixels.dtype == np.uint8 == out.dtype and pixels.shape[2] <= 4 and out.size
    if not flip or not small or not pixels.flags.c_contiguous:
        np.copyto(out, pixels[:, ::-1] if flip else pixels, casting="unsafe")
        return
    _planned(pixels, out, (0, 0, *pixels.shape[:2]), AREA, flip, False)


def _planned(pixels: Pixels, out: Pixels, box: Box, method: int, flip: bool, outside: bool) -> None:
    """Make one image of uint8, of 1 to 4 channels, as compiled code makes many."""
    pixels = np.ascontiguousarray(pixels)
    (height, width, channels), (high, wide) = pixels.shape, out.shape[:2]
    line = pixels.ctypes.data, height, width, flip, out.ctypes.data, 0, 0, 0, 0
    plan, boxes = numbers(np.array([line], PLAN)), np.array([box], np.float64)
    kernels.resize_planned(plan, boxes, 0, 1, channels, method, high, wide, outside)


def reach(length: float, size: int) -> int:
    """How many pixels outside a box of ``length`` resize_into looks at for a result of ``size``."""
    by = _blocks(length, size)
    return by + 1 if by > 1 else 0


def averaged(height: int, width: int, size: tuple[int, int]) -> bool:
    """Whether pixels are averaged before a part of (height, width) is resized to ``size``."""
    return _blocks(height, size[0]) > 1 or _blocks(width, size[1]) > 1


def nearest_pixels(start: float, length: float, count: int, limit: int) -> Int64:
    """Which of ``limit`` pixels each of ``count`` new ones takes that stand for ``length`` pixels
    from ``start`` on: the one under its middle, as Pillow's NEAREST does; of two pixels between
    which a middle lies the second one.
    """
    first = math.floor(start)  # apart, so that the same part of other pixels is the same
    # divided last: a middle that is a whole number is found as one
    middles = start - first + (np.arange(count) + 0.5) * length / count
    found: Int64 = np.floor(middles).astype(np.int64)
    return np.clip(found + first, 0, limit - 1)


def pick(pixels: Pixels, rows: Int64, columns: Int64, out: Pixels) -> None:
    """``out`` (H, W, C) = ``pixels`` (h, w, C) at ``rows`` and ``columns``; dtypes may differ."""
    lines = pixels[rows]
    if out.flags.c_contiguous and lines.dtype == out.dtype:
        np.take(lines, columns, axis=1, out=out, mode="clip")
    else:
        np.copyto(out, lines[:, columns], casting="unsafe")


def _resample(
    pixels: Pixels, out: Pixels, box: Box, interpolation: str, flip: bool, outside: bool
) -> None:
    """A weighted mean of all pixels that a pixel of the result covers, without aliasing."""
    method = METHODS[interpolation]
    top, left, tall, broad = box
    by_y, by_x = _blocks(tall, out.shape[0]), _blocks(broad, out.shape[1])
    if by_y > 1 or by_x > 1:
        rows, top = _around(top, tall, by_y, pixels.shape[0])
        columns, left = _around(left, broad, by_x, pixels.shape[1])
        pixels = _averaged(pixels[rows, columns], by_y, by_x)
        top, left, tall, broad = top / by_y, left / by_x, tall / by_y, broad / by_x
    box = top, left, tall, broad
    if pixels.dtype == np.uint8 == out.dtype:
        _planned(pixels, out, box, method, flip, outside)
        return
    single = out.dtype.itemsize <= 2 or out.dtype == np.float32
    work = np.float32 if single else np.float64
    lines = np.ascontiguousarray(pixels, work).reshape(len(pixels), -1)
    mixed = out if out.dtype == work else np.empty(out.shape, work)
    resize = kernels.resize_f4 if single else kernels.resize_f8
    resize(lines, pixels.shape[2], np.array(box, np.float64), method, outside, flip, mixed)
    if mixed is out:
        return
    if out.dtype.kind in "iu":  # rounded to what it can hold
        limit = np.iinfo(out.dtype)
        np.clip(np.rint(mixed), limit.min, limit.max, out=mixed)
    elif out.dtype.kind == "b":
        np.rint(mixed, out=mixed)
    np.copyto(out, mixed, casting="unsafe")


def _blocks(length: float, size: int) -> int:
    """Pixels to average first along an axis: weights have 14 bits, enough for 128 pixels."""
    return max(1, int(length / size / 32)) if length > shared.AVERAGED * size else 1


def _around(start: float, length: float, by: int, limit: int) -> tuple[slice, float]:
    """The pixels along one axis that a stretch of them needs, in whole blocks of ``by`` as far as
    there are any; and where it starts in these."""
    # enlarging looks half a pixel out of the stretch; where it ends with pixels, it stays inside
    more = 0.0 if start % 1 == 0 == (start + length) % 1 else 0.5
    first = max(0, math.floor(start - more))
    end = first + by * math.ceil((start + length + more - first) / by)
    return slice(first, min(end, limit)), start - first


def _averaged(pixels: Pixels, by_y: int, by_x: int) -> Pixels:
    """Means of blocks of pixels, the last of which may be smaller: uint8, or floats."""
    rows, columns = -(-pixels.shape[0] // by_y), -(-pixels.shape[1] // by_x)
    small = pixels.dtype.itemsize <= 2 or pixels.dtype == np.float32
    dtype = np.uint8 if pixels.dtype == np.uint8 else np.float32 if small else np.float64
    means = np.empty((rows, columns, pixels.shape[2]), dtype)
    _resample(pixels, means, (0, 0, rows * by_y, columns * by_x), "area", False, True)
    return means
