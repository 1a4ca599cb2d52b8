"""A sample, stored or handed out, as a small picture fit for the eye."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..errors import FormatError
from ..pixels.points import real
from ..sources.request import NAME_AXES
from ..system.array_types import Array, Float64, UInt8

#: What pixels are shown as that are not a number, or infinite.
NOT_A_NUMBER: Final = (255, 0, 255)


@dataclass(frozen=True)
class Scale:
    """Which values are shown as black and as white; the same for all pictures of a sheet."""

    low: float = 0.0
    high: float = 255.0
    stretched: bool = False
    holes: bool = False
    """Whether some values are not numbers, or infinite."""

    @property
    def notes(self) -> list[str]:
        """What a reader of the sheet must know; nothing where values are shown as they are."""
        notes = []
        if self.stretched:
            notes.append(f"values {self.low:.6g} to {self.high:.6g} are shown as black to white")
        if self.holes:
            notes.append("pixels that are not a number are magenta")
        return notes


def scale_of(pictures: Iterable[Array]) -> Scale:
    """The scale that suits pictures (H, W, C): uint8 as it is, 0 to 1, or all that occurs.

    Floats that stay within 0 to 1 are taken for that range, floats that stay within 0 to 255 and
    exceed 1 for bytes. Everything else is stretched from its least to its greatest value.
    """
    low, high, floats, holes = math.inf, -math.inf, False, False
    for pixels in pictures:
        if pixels.dtype == np.uint8:
            return Scale()
        if pixels.dtype == np.bool_:
            return Scale(0.0, 1.0)
        floats = pixels.dtype.kind == "f"
        values = pixels[np.isfinite(pixels)] if floats else pixels
        holes |= values.size < pixels.size
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    if floats and low >= 0 and high <= 1:
        return Scale(0.0, 1.0, holes=holes)
    if low > high or (floats and low >= 0 and high <= 255):  # no picture at all, or like bytes
        return Scale(holes=holes)
    return Scale(low, high if high > low else low + 1, True, holes)


def to_rgb(pixels: Array, scale: Scale) -> UInt8:
    """(H, W, C) of any numeric dtype as (H, W, 3) uint8: grey or the first three channels."""
    pixels = pixels[:, :, : 3 if pixels.shape[2] >= 3 else 1]
    if pixels.dtype != np.uint8:
        wide = pixels.astype(np.float64)
        good = np.isfinite(wide)
        wide = (np.where(good, wide, scale.low) - scale.low) / (scale.high - scale.low) * 255
        pixels = np.rint(np.clip(wide, 0, 255)).astype(np.uint8)
        if not good.all():
            pixels = np.where(
                good.all(axis=2, keepdims=True), pixels, np.array(NOT_A_NUMBER, np.uint8)
            )
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    return np.ascontiguousarray(pixels)


def fit(pixels: UInt8, side: int) -> UInt8:
    """(H, W, 3) made to fill a square of ``side`` as far as its shape lets it.

    Pixels of small pictures stay squares, so that one sees what a network sees; what is larger
    than a third of the square is enlarged or shrunk smoothly.
    """
    height, width = pixels.shape[:2]
    longer = max(height, width)
    if 3 * longer <= side:
        factor = side // longer
        return pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    from PIL import Image

    size = (max(1, round(width * side / longer)), max(1, round(height * side / longer)))
    picture = Image.fromarray(pixels)
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0))


#: How much of a mask's colour there is over the picture.
_TINT: Final = 0.5


def tinted(picture: UInt8, mask: Array) -> UInt8:
    """``picture`` (h, w, 3) with each value of ``mask`` (H, W) but 0 in a colour of its own.

    The mask is brought to the picture's size without mixing its values; 255 of bytes, which
    most sets keep for unlabelled pixels, is grey.
    """
    rows = np.arange(picture.shape[0]) * mask.shape[0] // picture.shape[0]
    columns = np.arange(picture.shape[1]) * mask.shape[1] // picture.shape[1]
    values, which = np.unique(mask[rows][:, columns], return_inverse=True)
    colours = colours_of(values)
    if mask.dtype == np.uint8:
        colours[values == 255] = 128
    share = np.where(values == 0, 0, _TINT)[which].reshape(*picture.shape[:2], 1)
    tint = colours[which].reshape(picture.shape)
    return np.rint((1 - share) * picture + share * tint).astype(np.uint8)


def colours_of(values: Array) -> Float64:
    """A colour (n, 3) for each whole number, from 0 to 255."""
    # steps of the golden ratio keep the hues of neighbouring numbers apart
    hues = np.array([value * 0.6180339887 % 1 for value in values.tolist()]).reshape(-1, 1)
    colours: Float64 = np.clip(np.abs((hues * 6 + (3, 1, 5)) % 6 - 3) - 1, 0, 1) * 255
    return colours


def marked(picture: UInt8, size: tuple[int, int], places: Mapping[str, Array]) -> UInt8:
    """``picture`` (h, w, 3) with a frame around each of its "boxes" (..., 4), and a disc on each of
    its "keypoints" (..., 2 or 3), in pixels of a picture of ``size`` (H, W)."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    by_x, by_y = picture.shape[1] / size[1], picture.shape[0] / size[0]
    for what, values in places.items():
        rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
        colours = colours_of(np.arange(1, len(rows) + 1)).astype(int).tolist()
        for number in np.flatnonzero(real(rows, what)).tolist():
            colour, row = tuple(colours[number]), rows[number].tolist()
            if what == "boxes":
                ends = row[2] * by_x - 1, row[3] * by_y - 1
                start = min(row[0] * by_x, ends[0]), min(row[1] * by_y, ends[1])
                draw.rectangle((*start, *ends), outline=colour, width=2)
            else:  # the middle of its pixel
                x, y = (row[0] + 0.5) * by_x, (row[1] + 0.5) * by_y
                draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour, outline=(255, 255, 255))
    return np.asarray(image)


def beside(
    pictures: Sequence[UInt8], side: int, gap: int, paper: tuple[int, int, int] = (255, 255, 255)
) -> UInt8:
    """Pictures (h, w, 3), each in the middle of a square of ``side``, side by side on ``paper``;
    of none an empty square."""
    sheet = np.full((side, max(1, len(pictures)) * (side + gap) - gap, 3), paper, np.uint8)
    for number, picture in enumerate(pictures):
        high, wide = picture.shape[:2]
        top, left = (side - high) // 2, number * (side + gap) + (side - wide) // 2
        sheet[top : top + high, left : left + wide] = picture
    return sheet


def as_mask(pixels: Array) -> Array | None:
    """(H, W) of whole numbers, of (H, W) or (H, W, 1); None where it is no mask."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return pixels if pixels.ndim == 2 and pixels.dtype.kind in "bui" else None


def not_pictures(path: str, shape: tuple[int, ...]) -> FormatError:
    """The error for data that cannot be looked at."""
    return FormatError(
        "its samples are not images",
        path=path,
        found=f"samples of shape {shape}",
        expected="height x width, or height x width x channels",
        hint="name a field that holds images with -p data_field=NAME; 'asyncreader info' "
        "describes any dataset" + (f"; or {NAME_AXES}" if len(shape) == 3 else ""),
    )
