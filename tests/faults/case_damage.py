"""Damaged files: flipped bytes, blows at the structure, truncation, changes under a reader."""

from __future__ import annotations

import itertools
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
        """A line to each format and way to verify; one process for all while none breaks."""
        made = build(self.formats, scratch.parent / "sets")
        names, jobs = [], []
        for name in self.formats:
            known = tuple(one.to_json() for one in made[name])
            for verify in self.verify:
                folder = str(scratch / f"{name} {verify}")
                names.append(f'{name}, verify="{verify}"' if len(self.verify) > 1 else name)
                jobs.append(Job(self.name, known, verify, seed, 0, rounds, folder))
        trials = watch(jobs)
        for name in names:
            counts, broken, note = count(itertools.islice(trials, rounds))
            yield Figures(name, sum(counts.values()), counts, broken, note=note)
        counts, broken, _ = count(trials)
        if counts:  # its process died when all was done
            yield Figures("on the way out", 1, counts, broken)


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
        "truncations, every page edge and random offsets",
        "a FormatError at open each, below 1 s",
        16,
        200,
        verify=("first",),
    ),
)
