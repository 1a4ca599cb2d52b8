"""Samples of arrays as small pictures: strips of pictures, lines of series, slices of volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..system.array_types import Array, Float64, UInt8
from ..system.text import times
from .thumbnails import Scale, beside, colours_of, fit, scale_of, to_rgb

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
