"""What the page says of a set: plain frozen values, their distributions as bars, and checks."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from ...sources import OpenSet
from ...system.array_types import Array, Int64
from ...system.text import some
from ..describe import LabelCount
from ..look import Thumb

#: Rows of a table of duplicates, near-constant or bad samples; the rest is only counted.
LISTED: Final = 100

#: Members of one group of duplicates that are listed.
MEMBERS: Final = 12


@dataclass(frozen=True)
class Check:
    """``state``: "ok", "look" (it may be meant so) or "bad"; ``place``: its section."""

    state: str
    name: str
    words: str
    place: str = ""


class Row(NamedTuple):
    """A sample in a table. ``label``: None where it has no class."""

    record: int
    label: int | None
    words: str
    path: str
    why: str
    thumb: Thumb | None


class Group(NamedTuple):
    """Samples of one label, and some of them to look at."""

    tally: LabelCount
    thumbs: tuple[Row, ...]


class Copies(NamedTuple):
    """Samples with the same stored bytes, the first twelve of them; ``samples``: how many."""

    samples: int
    rows: tuple[Row, ...]
    labels: int
    """Different labels among them: more than one is a mistake in at least one of them."""


@dataclass(frozen=True)
class Facts:
    """All that the page says."""

    path: str
    about: str
    """Its container, layout, encoding and dtypes in words."""
    count: int
    looked: int
    """Samples that were looked at, bad ones included."""
    size_on_disk: int
    fingerprint: str
    groups: tuple[Group, ...]
    """A group for each label; one without a label where the set has no classes."""
    classed: bool
    """Whether the groups are classes."""
    label_values: tuple[tuple[str, Array], ...]
    """Where labels are not classes: each column's name and values, at most eight columns."""
    heights: Int64
    widths: Int64
    bytes_each: Int64
    """The bytes of each good sample that was looked at."""
    copies: tuple[Copies, ...]
    extra_copies: int
    """Samples that could go without losing a picture."""
    copy_groups: int
    """Groups of equal samples, of which ``copies`` lists the first hundred."""
    torn_groups: int
    """Groups of equal samples whose labels differ."""
    compared: int
    """Samples whose checksums were compared."""
    flat: tuple[Row, ...]
    flat_count: int
    bad: tuple[Row, ...]
    bad_count: int
    notes: tuple[str, ...]
    checks: tuple[Check, ...] = field(default=())
    shape: str = ""
    """The shape of samples that are no images."""
    lengths: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """The rows of each good sample that was looked at, where samples differ in length."""

    @property
    def sizes(self) -> list[tuple[tuple[int, int], int]]:
        """((height, width), samples), the most frequent first."""
        both = zip(self.heights.tolist(), self.widths.tolist(), strict=True)
        return sorted(Counter(both).items(), key=lambda item: (-item[1], item[0]))

    @property
    def verdict(self) -> str:
        """One line: what was looked at, and how many checks did not pass."""
        passed = sum(check.state == "ok" for check in self.checks)
        rest = len(self.checks) - passed
        also = f", {rest} to look at" if rest else ""
        return f"{self.looked:,} of {self.count:,} samples: {passed} checks passed{also}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, without the pictures and the values of each sample."""

        def listed(row: Row) -> dict[str, Any]:
            return {"record": row.record, "label": row.label, "path": row.path, "why": row.why}

        def of_self(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        return {
            **of_self("path", "count", "looked", "fingerprint", "verdict"),
            "checks": [asdict(check) for check in self.checks],
            "classes": [
                {"label": g.tally.label, "class": g.tally.name, "samples": g.tally.samples}
                for g in self.groups
                if self.classed
            ],
            "sizes": [
                {"height": h, "width": w, "samples": samples} for (h, w), samples in self.sizes
            ],
            "lengths": _spread(self.lengths),
            "bytes": _spread(self.bytes_each),
            **of_self("compared", "extra_copies", "copy_groups"),
            "copy_groups_with_several_labels": self.torn_groups,
            "copies": [
                {"samples": c.samples, "labels": c.labels, "records": [r.record for r in c.rows]}
                for c in self.copies
            ],
            "near_constant": self.flat_count,
            "near_constant_list": [listed(row) for row in self.flat],
            "bad": self.bad_count,
            "bad_list": [listed(row) for row in self.bad],
        }


def _spread(values: Int64) -> dict[str, int | float] | None:
    if not values.size:
        return None
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "max": int(values.max()),
        "mean": float(values.mean()),
    }


# -- distributions as bars -------------------------------------------------------------------------


_BINS: Final = 24

#: Ratios of width to height that pictures are named after.
_SIDES: Final = (
    *((1, 3), (1, 2), (9, 16), (2, 3), (3, 4), (4, 5), (1, 1)),
    *((5, 4), (4, 3), (3, 2), (16, 9), (2, 1), (3, 1)),
)
RATIOS: Final = {f"{wide}:{high}": wide / high for wide, high in _SIDES}


class Bar(NamedTuple):
    """One bar of a histogram: how many values lie between low and high."""

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
    middle: float = 0.0
    """The value in the middle of the axis."""
    high: float = 0.0
    median: float = 0.0
    logarithmic: bool = False
    bars: tuple[Bar, ...] = ()


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
        return Histogram(what, values.size, low, low, high, low)
    whole = bool((values == np.rint(values)).all())
    wide = sizes and low > 0 and high > 50 * low
    edges = np.geomspace(low, high, _BINS + 1) if wide else np.linspace(low, high, _BINS + 1)
    if whole and high - low < _BINS:  # one bar for each value
        edges = np.arange(low - 0.5, high + 1)
    counts, ends = np.histogram(values, edges)[0], edges.tolist()
    bars = tuple(map(Bar, ends, ends[1:], counts.tolist()))
    middle = math.sqrt(low * high) if wide else (low + high) / 2
    return Histogram(what, values.size, low, middle, high, float(np.median(values)), wide, bars)


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


# -- checks: good, to look at, or bad, each in one sentence ----------------------------------------


#: Above this ratio of the largest class to the smallest, the check of classes says "look".
UNEVEN: Final = 10


def checks_of(
    facts: Facts, source: OpenSet, wrong_bytes: int, paths: str | None
) -> tuple[Check, ...]:
    """All checks. ``wrong_bytes``: samples whose checksum failed; ``paths``: their problem."""
    looked, whole = facts.looked, facts.looked == facts.count
    good = looked - facts.bad_count
    part, seen = _of(looked, facts.count), _of(good, facts.count)
    among = some(looked, "sample") if whole else f"the {looked:,} looked at"
    rest = "" if whole else "; 'asyncreader verify' checks all"
    found = []
    tables = "its structure is whole"
    if source.facts.meta is not None:
        tables += ", and labels, classes and checksums match their digests"
    found.append(Check("ok" if paths is None else "bad", "Structure", paths or tables))
    if not source.checked:
        found.append(Check("look", "Checksums", "none recorded: the dataset is served unverified"))
    elif wrong_bytes:
        words = f"{wrong_bytes:,} of {among} do not match their checksums{rest}"
        found.append(Check("bad", "Checksums", words, "bad"))
    elif facts.bad_count:  # what cannot be read may not have been compared
        words = f"{seen} match their checksums; {facts.bad_count:,} cannot be shown{rest}"
        found.append(Check("look", "Checksums", words, "bad"))
    else:
        found.append(Check("ok", "Checksums", f"{part} match their checksums{rest}"))
    name = "Samples" if facts.shape else "Images"
    if facts.bad_count:
        words = f"{facts.bad_count:,} of {among} cannot be shown"
        found.append(Check("bad", name, words, "bad"))
    else:
        words = "decoded" if source.spec.encoded else "read"
        found.append(Check("ok", name, f"{part} {words}"))
    found.append(_copies(facts))
    if facts.flat_count:  # of images: numbers have no colours
        words = f"{facts.flat_count:,} of {among} show (almost) one colour only"
        found.append(Check("look", "Content", words, "flat"))
    elif not facts.shape and not good:
        found.append(Check("look", "Content", "no image could be looked at", "bad"))
    elif not facts.shape:
        found.append(Check("ok", "Content", f"none of {seen} is of one colour"))
    if facts.classed and len(facts.groups) > 1:
        found.append(_classes(facts))
    return tuple(found)


def _of(part: int, count: int) -> str:
    """ "1 sample", or "5 of 24 samples" where there are more."""
    return some(part, "sample") if part == count else f"{part:,} of {some(count, 'sample')}"


def _copies(facts: Facts) -> Check:
    part = _of(facts.compared, facts.count)
    if not facts.compared:
        return Check("look", "Duplicates", "no sample could be compared", "bad")
    if not facts.extra_copies:
        return Check("ok", "Duplicates", f"no two of {part} have the same bytes")
    torn = facts.torn_groups
    words = f"{facts.extra_copies:,} of {part} repeat the bytes of others"
    if torn:
        words += f"; in {some(torn, 'group')} copies carry different labels"
    return Check("bad" if torn else "look", "Duplicates", words, "copies")


def _classes(facts: Facts) -> Check:
    sizes = [group.tally.samples for group in facts.groups]
    empty = sum(size == 0 for size in sizes)
    if empty:
        return Check(
            "look", "Classes", f"{empty:,} of {len(sizes):,} classes have no samples", "classes"
        )
    low, high = min(sizes), max(sizes)
    words = f"{len(sizes):,} classes of {low:,} to {high:,} samples"
    if low == high:
        words = f"{len(sizes):,} classes of {low:,} samples each"
    return Check("look" if high > UNEVEN * low else "ok", "Classes", words, "classes")
