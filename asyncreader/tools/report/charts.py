"""Distributions as bars: inline SVG for values, a table with bars for kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .html import Html, join, markup

Array = npt.NDArray[Any]

_BINS: Final = 24
_WIDE, _HIGH = 480, 150
_LEFT, _FOOT, _TOP = 4, 22, 16

#: Ratios of width to height that pictures are named after.
RATIOS: Final = {
    "1:3": 1 / 3,
    "1:2": 1 / 2,
    "9:16": 9 / 16,
    "2:3": 2 / 3,
    "3:4": 3 / 4,
    "4:5": 4 / 5,
    "1:1": 1.0,
    "5:4": 5 / 4,
    "4:3": 4 / 3,
    "3:2": 3 / 2,
    "16:9": 16 / 9,
    "2:1": 2.0,
    "3:1": 3.0,
}


def histogram(values: Array, what: str, *, sizes: bool = True) -> Html:
    """Finite ``values`` in at most 24 bins as a chart; ``what``: they are, with their unit.

    ``sizes``: bins grow by a factor where values span more than 50 times the least of them.
    """
    values = values.astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return markup("<p class=quiet>no values</p>")
    low, high = float(values.min()), float(values.max())
    if low == high:
        return markup("<p>all {value} {what}</p>", value=number(low), what=what)
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
        bars.append(
            markup(
                '<rect x="{x}" y="{y}" width="{w}" height="{h}"><title>{t}</title></rect>',
                x=f"{_LEFT + index * step:.1f}",
                y=f"{_HIGH - _FOOT - tall:.1f}",
                w=f"{max(step - 2, 1):.1f}",
                h=f"{tall:.1f}",
                t=f"{number(edges[index])} to {number(edges[index + 1])}: {count:,}",
            )
        )
    middle = math.sqrt(low * high) if wide else (low + high) / 2
    marks = [("start", _LEFT, low), ("middle", _WIDE / 2, middle), ("end", _WIDE - _LEFT, high)]
    labels = join(
        markup(
            '<text x="{x}" y="{y}" text-anchor="{a}">{t}</text>',
            x=f"{x:g}",
            y=_HIGH - 6,
            a=anchor,
            t=number(value),
        )
        for anchor, x, value in marks
    )
    return markup(
        '<svg class=chart viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
        '{bars}<line x1="0" x2="{w}" y1="{y}" y2="{y}"/>{labels}'
        '<text x="{left}" y="11">highest bar: {most}</text></svg>'
        "<p class=quiet>{what}; median {median}{note}</p>",
        w=_WIDE,
        h=_HIGH,
        y=_HIGH - _FOOT,
        left=_LEFT,
        bars=join(bars),
        labels=labels,
        most=f"{most:,}",
        label=f"{what}: {number(low)} to {number(high)}, {len(values):,} values",
        what=what,
        median=number(float(np.median(values))),
        note="; logarithmic axis" if wide else "",
    )


def ratios(widths: Array, heights: Array) -> list[tuple[str, int]]:
    """Pictures by the named ratio of width to height that is nearest to theirs, by factor."""
    names = list(RATIOS)
    logs = np.log(np.array(list(RATIOS.values())))
    nearest = np.abs(np.log(widths / heights)[:, None] - logs).argmin(axis=1)
    counts = np.bincount(nearest, minlength=len(names)).tolist()
    return [(name, count) for name, count in zip(names, counts, strict=True) if count]


def bar(share: float) -> Html:
    """A bar that fills ``share`` (0 to 1) of its cell."""
    return markup(
        '<svg class=bar viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="{w}" height="8" rx="1"/></svg>',
        w=f"{max(share * 100, 0.5 if share else 0):.2f}",
    )


def bar_table(head: Sequence[str], rows: Sequence[tuple[object, int, Html]], total: int) -> Html:
    """Kinds with counts and bars: (value to sort by, count, what the first cell shows).

    ``total``: what the shares are of: the samples of all kinds, also of those that have no row.
    """
    most = max((count for _, count, _ in rows), default=1) or 1
    body = join(
        markup(
            '<tr><td data-v="{v}">{cell}</td><td class=n data-v="{n}">{count}</td>'
            '<td class=n data-v="{n}">{share}</td><td class=wide>{bar}</td></tr>',
            v=value,
            cell=cell,
            n=count,
            count=f"{count:,}",
            share=f"{count / max(1, total):.1%}",
            bar=bar(count / most),
        )
        for value, count, cell in rows
    )
    return markup(
        "<div class=scroll><table class=bars><thead><tr>{head}<th></th></tr></thead>"
        "<tbody>{body}</tbody></table></div>",
        head=join(sortable(name, at > 0) for at, name in enumerate(head)),
        body=body,
    )


def sortable(name: str, numeric: bool = False) -> Html:
    """A column's head that sorts its table when pressed."""
    return markup(
        "<th{n}><button type=button class=sort>{name}</button></th>",
        n=Html(" class=n") if numeric else Html(""),
        name=name,
    )


def number(value: float) -> str:
    """ "1,234", "0.5", "1.2e-07"."""
    if value == round(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
