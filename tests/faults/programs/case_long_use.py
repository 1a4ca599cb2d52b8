"""Long use of one process: batches stay right, and nothing is left over.

Each trial is a function of long_use.py in a process of its own. It reports ``found``, the broken
promises, and ``counts``, the outcomes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fakes import packed, write_hdf5, write_lmdb

from faults.case import Case, Figures
from faults.programs.child_runner import ChildRunner
from faults.programs.long_use import painted
from faults.sets import build

FORMATS = ("HDF5 raw", "HDF5 gzip", "LMDB raw", "LMDB jpeg")
WORKERS = ("thread", "process")
#: Samples of the stress set.
COUNT = 2000


@dataclass(frozen=True)
class Run:
    """One process: the line of the table, its rounds, the seconds that it may take, and the
    arguments of ``long_use.trial``."""

    line: str
    rounds: int
    patience: float
    arguments: dict[str, Any]


@dataclass(frozen=True)
class LongUse:
    """``runs(short, rounds, seed, scratch)``: the processes of the case; ``short``: in the short
    form, which tries less."""

    name: str
    row: str
    promise: str
    short: int
    long: int
    runs: Callable[[bool, int, int, Path], Iterator[Run]]

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each process."""
        with ChildRunner("faults.programs.long_use") as runner:
            for one in self.runs(rounds <= self.short, rounds, seed, scratch):
                end = runner.run({"patience": one.patience}, **one.arguments, rounds=one.rounds)
                broken = list(end.report.get("found", ()))
                if end.code or end.left:
                    broken.append(f"{end.how}, left {end.left}: {end.output[-2500:]}")
                counts = end.report.get("counts", {"broken": 1})
                note, peak = end.report.get("note", ""), end.report.get("peak", 0.0)
                yield Figures(one.line, one.rounds, counts, tuple(broken), note, peak)


def leaks(short: bool, rounds: int, seed: int, scratch: Path) -> Iterator[Run]:
    """``rounds`` epochs of one reader, then five times as many readers, every other one not closed.
    With worker processes half as many, for each reader starts two; one in the short form."""
    for name, (known, *_) in build(FORMATS[:1] if short else FORMATS, scratch).items():
        for workers in WORKERS:
            opened = 5 * rounds if workers == "thread" else max(2, rounds // 2)
            for what, number in (("epochs", rounds), ("openings", opened)):
                given = {"what": what, "path": known.path, "workers": workers}
                given["nthread"] = 1 if short and workers == "process" else 2
                yield Run(f"{name}, {workers} workers, {what}", number, 900, given)


def stress(short: bool, rounds: int, seed: int, scratch: Path) -> Iterator[Run]:
    """``rounds`` batches of pictures that spell their index, by eight workers with random pauses in
    workers and consumer. Each is checked at once and again later, some a few batches later."""
    content = packed(painted(COUNT), labels=np.arange(COUNT)[:, None])
    sets = {
        "HDF5 raw": write_hdf5(scratch / "set.h5", content),
        "LMDB raw": write_lmdb(scratch / "set.lmdb", content),
    }
    kinds = [(name, workers) for name in sets for workers in WORKERS]
    for name, workers in kinds[:1] if short else kinds:
        given = {"what": "stress", "path": sets[name], "workers": workers, "seed": seed}
        yield Run(f"{name}, {workers} workers", rounds, 60 + rounds / 20, given)


CASES: tuple[Case, ...] = (
    LongUse(
        "leaks",
        "many epochs of one reader, many readers opened and closed",
        "as many descriptors, threads, processes and shared segments as before, private memory"
        " grows by less than 1 MB per 100",
        6,
        200,
        leaks,
    ),
    LongUse(
        "stress",
        "batches under stress: 8 workers, random pauses, more batches in flight",
        "no mixed batch, no wrong label, each sample once per epoch",
        300,
        100_000,
        stress,
    ),
)
