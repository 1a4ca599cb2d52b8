"""Distributions as bars: of values (drawn as SVG by page.html), and of ratios of sides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...system.array_types import Array

_BINS: Final = 24
_WIDE, _HIGH = 480, 150
_LEFT, _FOOT, _TOP = 4, 22, 16

#: Ratios of width to height that pictures are named after.
_SIDES: Final = (
    *((1, 3), (1, 2), (9, 16), (2, 3), (3, 4), (4, 5), (1, 1)),
    *((5, 4), (4, 3), (3, 2), (16, 9), (2, 1), (3, 1)),
)
RATIOS: Final = {f"{wide}:{high}": wide / high for wide, high in _SIDES}


class Bar(NamedTuple):
    """One bar of a histogram: its position, and how many values lie between low and high."""

    x: float
    width: float
    height: float
    low: float
    high: float
    values: int


@dataclass(frozen=True)
class Histogram:
    """A chart of ``values`` finite values; without bars where these are all the same."""

    what: str
    """What the values are, with their unit."""
    values: int
    low: float = 0.0
    high: float = 0.0
    median: float = 0.0
    logarithmic: bool = False
    bars: tuple[Bar, ...] = ()
    marks: tuple[tuple[str, int, float], ...] = ()
    """Below the bars: text-anchor, x, value."""
    width: int = _WIDE
    height: int = _HIGH
    ground: int = _HIGH - _FOOT
    """The y of the bars' feet."""


def histogram(values: Array, what: str, *, sizes: bool = True) -> Histogram:
    """Finite ``values`` in at most 24 bins as a chart; ``what``: they are, with their unit.

    ``sizes``: bins grow by a factor where values span more than 50 times the least of them.
    """
    values = values.astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return Histogram(what, 0)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return Histogram(what, values.size, low, high, low)
    whole = bool((values == np.rint(values)).all())
    wide = sizes and low > 0 and high > 50 * low
    bins = min(_BINS, int(high - low) + 1) if whole and high - low < _BINS else _BINS
    edges = np.geomspace(low, high, bins + 1) if wide else np.linspace(low, high, bins + 1)
    if whole and high - low < _BINS:  # one bar for each value
        edges = np.arange(low - 0.5, high + 1)
    counts = np.histogram(values, edges)[0].tolist()
    most = max(counts)
    step = (_WIDE - 2 * _LEFT) / len(counts)
    bars = []
    for index, count in enumerate(counts):
        tall = (_HIGH - _FOOT - _TOP) * count / most
        if count:
            tall = max(tall, 1.5)
        between = (float(edges[index]), float(edges[index + 1]))
        bars.append(Bar(_LEFT + index * step, max(step - 2, 1), tall, *between, count))
    middle = math.sqrt(low * high) if wide else (low + high) / 2
    marks = (("start", _LEFT, low), ("middle", _WIDE // 2, middle), ("end", _WIDE - _LEFT, high))
    median = float(np.median(values))
    return Histogram(what, values.size, low, high, median, wide, tuple(bars), marks)


def ratios(widths: Array, heights: Array) -> list[tuple[str, int]]:
    """Pictures by the named ratio of width to height that is nearest to theirs, by factor."""
    names = list(RATIOS)
    logs = np.log(np.array(list(RATIOS.values())))
    nearest = np.abs(np.log(widths / heights)[:, None] - logs).argmin(axis=1)
    counts = np.bincount(nearest, minlength=len(names)).tolist()
    return [(name, count) for name, count in zip(names, counts, strict=True) if count]


def number(value: float) -> str:
    """ "1,234", "0.5", "1.2e-07"."""
    if value == round(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
