"""Damaged files: flipped bytes, damaged structure, truncation, changes while a reader is open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.case import Case, Figures, tally
from faults.damage.trials import Job
from faults.damage.watch import outcomes, watch
from faults.sets import build

FORMATS = ("HDF5 raw", "HDF5 gzip", "HDF5 jpeg", "LMDB raw", "LMDB jpeg")


@dataclass(frozen=True)
class Damage:
    """One kind of damage, on every format and with each value of ``verify``."""

    name: str
    row: str
    promise: str
    short: int
    long: int
    verify: Sequence[str] = ("always", "first")
    formats: Sequence[str] = FORMATS

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each format and value of ``verify``. One process runs all trials; where a
        trial ends it, a new one takes over."""
        made = build(self.formats, scratch.parent / "sets")
        names, jobs = [], []
        for name in self.formats:
            known = tuple(one.to_json() for one in made[name])
            for verify in self.verify:
                folder = str(scratch / f"{name} {verify}")
                names.append(f'{name}, verify="{verify}"' if len(self.verify) > 1 else name)
                jobs.append(Job(self.name, known, verify, seed, 0, rounds, folder))
        trials = outcomes(watch(jobs))
        for name in names:
            yield tally(name, itertools.islice(trials, rounds), "s of CPU")
        at_exit = tally("at exit", trials)
        if at_exit.trials:  # the process died after the last trial
            yield at_exit


_NOTHING_WRONG = "no silently wrong sample, no signal, no hang, no untyped error"

CASES: tuple[Case, ...] = (
    Damage("flips", "random byte flips", _NOTHING_WRONG, 24, 1000),
    Damage("structure", "structural mutations", _NOTHING_WRONG, 24, 1000),
    Damage(
        "live",
        'bytes changed while a reader is open, verify="always"',
        _NOTHING_WRONG,
        12,
        300,
        verify=("always",),
    ),
    Damage(
        "truncations",
        "truncation at every page boundary and at random offsets",
        "FormatError when the file is opened, within 1 s",
        16,
        200,
        verify=("first",),
    ),
)
