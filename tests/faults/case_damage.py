"""Damaged files: flipped bytes, blows at the structure, truncation, changes under a reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.case import Case, Figures
from faults.sets import build
from faults.trials import Job
from faults.watch import count, watch

FORMATS = ("HDF5 raw", "HDF5 gzip", "HDF5 jpeg", "LMDB raw", "LMDB jpeg")


@dataclass(frozen=True)
class Damage:
    """Trials of one kind, on every format and with each way to verify."""

    name: str
    row: str
    promise: str
    short: int
    long: int
    verify: Sequence[str] = ("always", "first")
    formats: Sequence[str] = FORMATS

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line to each format and way to verify."""
        made = build(self.formats, scratch)
        for name in self.formats:
            for verify in self.verify:
                place = scratch / f"{name} {verify}"
                place.mkdir()
                known = tuple(one.to_json() for one in made[name])
                job = Job(self.name, known, verify, seed, 0, rounds, str(place))
                counts, broken, note = count(watch(job))
                what = f'{name}, verify="{verify}"' if len(self.verify) > 1 else name
                yield Figures(what, rounds, counts, broken, note=note)


_NOTHING_WRONG = "0 silent wrong samples, 0 signals, 0 hangs, 0 untyped errors"

CASES: tuple[Case, ...] = (
    Damage("flips", "random byte flips", _NOTHING_WRONG, 24, 1000),
    Damage("structure", "structural mutations", _NOTHING_WRONG, 24, 1000),
    Damage(
        "live",
        'bytes changed under an open reader, verify="always"',
        _NOTHING_WRONG,
        12,
        300,
        verify=("always",),
    ),
    Damage(
        "truncations",
        "truncations, every page edge and random places",
        "a FormatError at open each, below 1 s",
        16,
        200,
        verify=("first",),
    ),
)
