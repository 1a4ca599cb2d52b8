"""Samples as small images, fit for the eye: images, and arrays as strips, lines and slices; and as
files in a page."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ..errors import FormatError
from ..pixels.points import real
from ..sources.request import NAME_AXES
from ..system.array_types import Array, Float64, UInt8
from ..system.text import times

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


# -- arrays ----------------------------------------------------------------------------------------


#: The height of a field's picture, the gap between pictures, the most of them in a strip, and how
#: wide lines are drawn at least: in pixels.
HIGH: Final = 96
_GAP: Final = 4
_STRIP: Final = 6
WIDE: Final = 3 * (HIGH + _GAP) - _GAP

#: Numbers beside each other that are drawn as lines; more of them are drawn as a picture.
LINES: Final = 16
#: Points of a line that are drawn.
_POINTS: Final = 2 * WIDE
#: Lines are drawn this much larger, and made smaller smoothly.
_FINER: Final = 3

_PAPER: Final = (255, 255, 255)
_MOUNT: Final = (238, 239, 242)


class FieldDrawing:
    """Draws one field of the samples of a sheet. Of each sample only what is drawn is kept.

    ``picture``: samples are (H, W, C) or (H, W), else numbers of any shape; ``windowed``: several
    rows of these, (W, ...); ``differ``: as many rows as a sample has, none at all, too. The scale
    is that of the samples that are drawn first.
    """

    def __init__(self, name: str, picture: bool, windowed: bool, differ: bool = False) -> None:
        self.name = name
        self._picture, self._windowed, self._differ = picture, windowed or differ, differ
        self._series: list[Float64] = []
        self._panels: list[list[Array]] = []
        self._words = ""
        self._scale: Scale | None = None
        self._lines: tuple[float, float, bool] | None = None

    def add(self, value: Array) -> None:
        """One more sample."""
        axes = value.ndim
        if self._windowed and (self._picture or axes == 3):
            self._add_strip(value)
        elif self._picture:
            self._panels.append([value])
        elif axes == 1:
            self._add_lines(value[:, None])
        elif axes == 2 and (value.shape[1] if self._differ else min(value.shape)) <= LINES:
            # time runs along the longer axis, or along that of the window
            along = self._windowed or value.shape[0] >= value.shape[1]
            self._add_lines(value if along else value.T)
        elif axes == 2:
            self._panels.append([value] * bool(value.size))
        elif axes > 2:
            self._add_slices(value)

    def _add_lines(self, lines: Array) -> None:
        """Lines (T, K). Of many points the least and the greatest of each run, so that no peak is
        lost."""
        if len(lines) > _POINTS:
            runs = np.array_split(lines, _POINTS // 2)
            lines = np.concatenate([np.stack([run.min(axis=0), run.max(axis=0)]) for run in runs])
        self._series.append(lines.astype(np.float64))

    def _add_strip(self, value: Array) -> None:
        rows = len(value)
        which = np.unique(np.linspace(0, rows - 1, min(rows, _STRIP)).round().astype(int)).tolist()
        if len(which) < rows:
            self._words = f"rows {', '.join(map(str, which))} of {rows}"
            if self._differ:
                self._words = f"up to {_STRIP} rows of each, evenly spread"
        self._panels.append([value[i].copy() for i in which])

    def _add_slices(self, value: Array) -> None:
        if not value.size:
            self._panels.append([])
            return
        one = value.reshape(-1, *value.shape[-3:])[0]
        deep, high, wide = (n // 2 for n in one.shape)
        self._panels.append([one[deep].copy(), one[:, high].copy(), one[:, :, wide].copy()])
        more = "" if value.ndim == 3 else f", the first of {times(value.shape[:-3])}"
        more = ", the first of each sample" if self._differ else more
        self._words = f"slices through the middle of {times(one.shape)}{more}"

    def charts(self, wide: int) -> tuple[list[UInt8], list[str]]:
        """As :meth:`pictures`, of series: lines, so many pixels ``wide``."""
        series, self._series = self._series, []
        if not series:
            return [], []
        if self._lines is None:
            self._lines = _extent(series)
        low, high, gaps = self._lines
        note = f"{self.name}: lines from {low:.4g} to {high:.4g}"
        note += ", with gaps where a value is not a number" * gaps
        return [_chart(one, low, high, wide) for one in series], [note]

    def pictures(self) -> tuple[list[UInt8], list[str]]:
        """A picture (h, w, 3) of each sample, and what the foot of the sheet says of them; none of
        series, and of single numbers."""
        panels, self._panels = self._panels, []
        if not panels:
            return [], []
        deep = [[p if p.ndim == 3 else p[:, :, None] for p in one] for one in panels]
        if not self._picture:  # as other numbers are shown: a label of 1 is not black
            deep = [[p.astype(np.int16) if p.dtype == np.uint8 else p for p in o] for o in deep]
        scale = self._scale = self._scale or scale_of(p for pictures in deep for p in pictures)
        made = [
            beside([fit(to_rgb(p, scale), HIGH) for p in pictures], HIGH, _GAP, _MOUNT)
            for pictures in deep
        ]
        words = filter(None, [self._words, *scale.notes])
        return made, [f"{self.name}: {note}" for note in words]


def draw_samples(fields: Sequence[FieldDrawing], wide: int = WIDE) -> tuple[list[UInt8], list[str]]:
    """An image of each sample, its fields below each other, and what the foot of the sheet says of
    them; nothing where all of them are single numbers. ``wide``: of lines at least, in pixels."""
    drawn = [field.pictures() for field in fields]
    wide = max([wide, *(one.shape[1] for pictures, _ in drawn for one in pictures)])
    both = [one if one[0] else field.charts(wide) for field, one in zip(fields, drawn, strict=True)]
    kept = [(field.name, *one) for field, one in zip(fields, both, strict=True) if one[0]]
    made = [_below(rows) for rows in zip(*(pictures for _, pictures, _ in kept), strict=True)]
    notes = [note for _, _, own in kept for note in own]
    if len(kept) > 1:
        notes.insert(0, f"from above: {', '.join(name for name, _, _ in kept)}")
    return made, notes


def _extent(series: Sequence[Float64]) -> tuple[float, float, bool]:
    """The least and the greatest value of all lines, and whether some are not finite."""
    good = [one[np.isfinite(one)] for one in series]
    there = [one for one in good if one.size]
    low = min((float(one.min()) for one in there), default=0.0)
    high = max((float(one.max()) for one in there), default=1.0)
    return low, high, any(one.size < all_.size for one, all_ in zip(good, series, strict=True))


def _chart(lines: Float64, low: float, high: float, wide: int) -> UInt8:
    """Lines (T, K) from ``low``, at the foot, to ``high``."""
    from PIL import Image, ImageDraw

    size = wide * _FINER, HIGH * _FINER
    image = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(image)
    across = np.full(len(lines), size[0] / 2)
    if len(lines) > 1:
        across = np.linspace(2, size[0] - 3, len(lines))
    span = high - low or 1.0
    down = size[1] - 4 - (lines - low) / span * (size[1] - 8)
    for number, colour in enumerate(colours_of(np.arange(1, lines.shape[1] + 1)).tolist()):
        ink = tuple(int(one * 0.8) for one in colour)
        run: list[tuple[float, float]] = []
        for x, y in [*zip(across.tolist(), down[:, number].tolist(), strict=True), (0.0, np.nan)]:
            if np.isfinite(y):
                run.append((x, y))
                continue
            if len(run) > 1:
                draw.line(run, fill=ink, width=_FINER)
            elif run:
                ((left, top),) = run
                draw.ellipse((left - 3, top - 3, left + 3, top + 3), fill=ink)
            run = []
    return np.asarray(image.resize((wide, HIGH), Image.Resampling.BOX))


def _below(rows: Sequence[UInt8]) -> UInt8:
    wide = max(row.shape[1] for row in rows)
    sheet = np.full((len(rows) * (HIGH + _GAP) - _GAP, wide, 3), _MOUNT, np.uint8)
    for number, row in enumerate(rows):
        top = number * (HIGH + _GAP)
        sheet[top : top + HIGH, : row.shape[1]] = row
    return sheet


# -- files in a page -------------------------------------------------------------------------------


#: Pictures up to this long are kept as they are, in PNG, and enlarged by the browser.
TINY = 48


class Thumb(NamedTuple):
    """One small picture of the page."""

    record: int
    kind: str
    data: bytes
    width: int
    height: int
    tiny: bool
    words: str = ""
    path: str = ""

    @property
    def uri(self) -> str:
        """Its bytes as a ``data:`` URI (RFC 2397)."""
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode('ascii')}"

    @property
    def title(self) -> str:
        """Its record number, its label in words and where it was packed from."""
        return ", ".join(filter(None, (f"record {self.record}", self.words, self.path)))


def thumb_of(record: int, pixels: UInt8, side: int) -> Thumb:
    """``pixels`` (H, W, 3) at most ``side`` long: JPEG, or PNG where each pixel counts."""
    from PIL import Image

    tiny = max(pixels.shape[:2]) <= TINY
    small = pixels if tiny else fit(pixels, side)
    encoded = io.BytesIO()
    kind = "png" if tiny else "jpeg"
    Image.fromarray(small).save(encoded, kind.upper(), **({} if tiny else {"quality": 80}))
    return Thumb(record, kind, encoded.getvalue(), small.shape[1], small.shape[0], tiny)
