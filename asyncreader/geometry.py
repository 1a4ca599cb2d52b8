"""The geometry between stored and wanted shape: which part is cut out, and resizing it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Pixels: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Rect:
    """A rectangle of whole pixels in the upright picture."""

    top: int
    left: int
    height: int
    width: int

    def cut(self, pixels: Pixels) -> Pixels:
        """The view of ``pixels`` (H, W, C) inside the rectangle."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]

    def scaled(self, full: tuple[int, int], actual: tuple[int, int]) -> Rect:
        """The same part of a picture that was decoded at ``actual`` instead of ``full`` size."""
        if full == actual:
            return self
        fy, fx = actual[0] / full[0], actual[1] / full[1]
        height = min(max(1, round(self.height * fy)), actual[0])
        width = min(max(1, round(self.width * fx)), actual[1])
        top = min(round(self.top * fy), actual[0] - height)
        return Rect(top, min(round(self.left * fx), actual[1] - width), height, width)


def largest_rect(height: int, width: int, target: tuple[int, int], ratio: float) -> tuple[int, int]:
    """(height, width) of ``ratio`` times the largest rectangle of ``target``'s shape."""
    high, wide = target
    if width * high >= height * wide:
        rows, columns = float(height), height * wide / high
    else:
        rows, columns = width * high / wide, float(width)
    return (
        min(height, max(1, round(rows * ratio))),
        min(width, max(1, round(columns * ratio))),
    )


def choose_rect(
    height: int,
    width: int,
    target: tuple[int, int],
    crop: str,
    ratio: float,
    draws: npt.NDArray[np.float64] | None,
) -> Rect:
    """The part of a (height, width) picture that becomes ``target``.

    ``crop``: "center", "random" (placed by draws[0:2]), "random-resized" (area 0.08 to 1, aspect
    3/4 to 4/3, ten tries with draws[4k : 4k+4], then centred; Szegedy et al., "Going deeper with
    convolutions", 2015, section 6) or "none" (all of it, squeezed).
    ``draws``: float64 in [0, 1), of this sample; None where the mode is not random.
    """
    if crop == "none":
        return Rect(0, 0, height, width)
    if crop == "random-resized" and draws is not None:
        for k in range(0, 40, 4):
            area = height * width * (0.08 + 0.92 * draws[k])
            aspect = math.exp((2 * draws[k + 1] - 1) * math.log(4 / 3))
            columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < rows <= height and 0 < columns <= width:
                top = int(draws[k + 2] * (height - rows + 1))
                return Rect(top, int(draws[k + 3] * (width - columns + 1)), rows, columns)
    rows, columns = largest_rect(height, width, target, ratio)
    if crop == "random" and draws is not None:
        top = int(draws[0] * (height - rows + 1))
        return Rect(top, int(draws[1] * (width - columns + 1)), rows, columns)
    return Rect((height - rows) // 2, (width - columns) // 2, rows, columns)


def resize_into(pixels: Pixels, out: Pixels) -> None:
    """Resize ``pixels`` (h, w, C) into ``out`` (H, W, C; C-contiguous, same dtype).

    Bilinear for at most a factor 2 of shrinking; what is beyond is averaged over whole pixel
    blocks first, so that nothing is skipped over.
    """
    import cv2

    high, wide = out.shape[:2]
    rows, columns = pixels.shape[:2]
    if (rows, columns) == (high, wide):
        np.copyto(out, pixels)
        return
    if out.dtype not in _CV_TYPES:
        wider = np.empty(out.shape, np.float64)
        resize_into(pixels.astype(np.float64), wider)
        np.copyto(out, wider if out.dtype.kind == "f" else np.rint(wider), casting="unsafe")
        return
    if pixels.shape[2] > 4:
        for c in range(pixels.shape[2]):
            plane = np.empty((high, wide, 1), out.dtype)
            resize_into(np.ascontiguousarray(pixels[:, :, c : c + 1]), plane)
            out[:, :, c : c + 1] = plane
        return
    if pixels.strides[2] != pixels.itemsize or pixels.strides[1] != pixels.shape[2] * (
        pixels.itemsize
    ):
        pixels = np.ascontiguousarray(pixels)
    by_y, by_x = max(1, math.ceil(rows / high / 2)), max(1, math.ceil(columns / wide / 2))
    if by_y > 1 or by_x > 1:
        whole = pixels[: rows // by_y * by_y, : columns // by_x * by_x]
        pixels = cv2.resize(
            whole, (columns // by_x, rows // by_y), interpolation=cv2.INTER_AREA
        ).reshape(rows // by_y, columns // by_x, -1)
    flat = out[:, :, 0] if out.shape[2] == 1 else out
    source = pixels[:, :, 0] if out.shape[2] == 1 else pixels
    done = cv2.resize(source, (wide, high), dst=flat, interpolation=cv2.INTER_LINEAR)
    if done is not flat and not np.shares_memory(done, flat):
        np.copyto(flat, done)


_CV_TYPES: Final = frozenset(
    np.dtype(name) for name in ("uint8", "uint16", "int16", "float32", "float64")
)


def mirror(pixels: Pixels) -> None:
    """Mirror ``pixels`` (H, W, C; C-contiguous) left to right, in place."""
    pixels[:] = pixels[:, ::-1].copy()
