"""What the page says of a set: plain frozen values."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from ...system.array_types import Array, Int64
from ..label_stats import LabelCount
from ..pictures import Thumb

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
    thumbs: tuple[Thumb, ...]


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
    container: str
    layout: str
    encoding: str
    dtype: str
    count: int
    looked: int
    """Samples that were looked at, bad ones included."""
    size_on_disk: int
    fingerprint: str
    labels: str
    """The labels' shape and dtype in words."""
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

        return {
            "path": self.path,
            "count": self.count,
            "looked": self.looked,
            "fingerprint": self.fingerprint,
            "verdict": self.verdict,
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
            "compared": self.compared,
            "extra_copies": self.extra_copies,
            "copy_groups": self.copy_groups,
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
