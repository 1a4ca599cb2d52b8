"""A page about a dataset: how it is read (looking), what is found (facts), and its HTML.

The page is one self-contained file, for a desktop, a phone and dark mode. ``page.html`` is its
template (Jinja, autoescape on): every value is escaped there, and ``_shown`` makes it fit first.
The page's policy (``default-src 'none'``) names the hashes of the one style and the one script in
it, so that nothing else in it can run, and no browser asks any host for anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from importlib.resources import files
from typing import Final

import jinja2
import numpy as np

from ... import __version__
from ...errors import shown
from ...system.text import in_bytes, sides, some
from ..describe import LabelCount
from .facts import Facts, Histogram, Row, histogram, number, ratios
from .looking import gather

__all__ = ["Facts", "gather", "page"]


#: Rows of the tables of classes and of picture sizes.
CLASS_ROWS: Final = 5000
SIZE_ROWS: Final = 50

#: Letters of one value that a page shows: longer than any path, and what it says a thousand times.
LONGEST: Final = 4096


def page(facts: Facts) -> str:
    """The whole page as text, to be written as UTF-8."""
    here = files(__package__)
    template, style, script = (
        here.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=_shown)
    made.filters |= {
        "class_name": _class_name,
        "grouped": "{:,}".format,
        "labels_of": _labels_of,
        "number": number,
        "some": some,
    }
    sizes = facts.sizes
    ratio_counts = ratios(facts.widths, facts.heights) if len(sizes) > 1 else []
    thumbs = [len(group.thumbs) for group in facts.groups]
    each = np.unique(facts.bytes_each).tolist()
    return made.from_string(template).render(
        facts=facts,
        name=os.path.basename(facts.path.rstrip("/")) or facts.path,
        version=__version__,
        style=style,
        script=script,
        policy=f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'",
        tiles=_tiles(facts),
        classes=[(g.tally.samples, g.tally.label, g.tally) for g in facts.groups[:CLASS_ROWS]],
        labels=[(name, histogram(v, "value", sizes=False)) for name, v in facts.label_values],
        few=not facts.shape and np.count_nonzero(thumbs) > 1 and max(thumbs) <= 2,
        without=sum(not group.thumbs and group.tally.samples > 0 for group in facts.groups),
        charts=_charts(facts),
        each_size=f"Each sample takes {in_bytes(each[0])}." if len(each) == 1 else "",
        ratios=[(count, order, ratio) for order, (ratio, count) in enumerate(ratio_counts)],
        sizes=[(count, size[0] * size[1], size) for size, count in sizes],
        size_rows=SIZE_ROWS,
    )


def _shown(value: object) -> object:
    """A value as the page shows it, before it is escaped: controls and surrogates as escapes, and
    of what is longer than ``LONGEST`` the beginning."""
    if hasattr(value, "__html__"):  # already HTML
        return value
    line = str(value)
    return shown(f"{line[:LONGEST]}..." if len(line) > LONGEST else line)


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _tiles(facts: Facts) -> list[tuple[str, str]]:
    sizes = facts.sizes
    size = "none read" if not sizes else sides(*sizes[0][0]).replace("x", "\u00d7")
    if len(sizes) > 1:
        size = f"{len(sizes):,} different"
    each = int(facts.bytes_each.mean()) if facts.bytes_each.size else 0
    return [
        ("Samples", f"{facts.count:,}"),
        ("Classes", f"{len(facts.groups):,}" if facts.classed else "none"),
        ("Shape", facts.shape) if facts.shape else ("Image size", size),
        ("Bytes a sample", in_bytes(each)),
        ("On disk", in_bytes(facts.size_on_disk)),
    ]


def _charts(facts: Facts) -> list[tuple[str, Histogram]]:
    charts = []
    if len(facts.sizes) > 1:
        charts.append(("Shorter side", np.minimum(facts.widths, facts.heights), "pixels"))
        charts.append(("Longer side", np.maximum(facts.widths, facts.heights), "pixels"))
    if facts.lengths.size:
        charts.append(("Length", facts.lengths, "rows"))
    if np.unique(facts.bytes_each).size > 1:
        charts.append(("Bytes a sample", facts.bytes_each, "bytes"))
    return [(name, histogram(values, unit)) for name, values, unit in charts]


def _class_name(count: LabelCount) -> str:
    return f"label {count.label}" if count.name is None else count.name


def _labels_of(rows: Iterable[Row]) -> str:
    return " ".join(sorted({str(row.label) for row in rows if row.label is not None}))
