"""Many epochs, and many readers opened and closed: the process holds no more than before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.case import Case, Figures
from faults.programs.child_runner import End, child_runner
from faults.sets import build

FORMATS = ("HDF5 raw", "HDF5 gzip", "LMDB raw", "LMDB jpeg")

#: Private bytes gained in 100 epochs, or in 100 readers.
LIMIT = 1_000_000


@dataclass(frozen=True)
class Leaks:
    """``rounds`` epochs of one reader, then five times as many readers, every other forgotten; with
    processes for workers half as many, for each starts two."""

    name: str = "leaks"
    row: str = "many epochs of one reader, many readers opened and closed"
    promise: str = (
        "as many descriptors, threads, processes and shared segments as before, private memory"
        " grows by less than 1 MB per 100"
    )
    short: int = 6
    long: int = 200

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """Four lines for each format; the short form tries one."""
        formats = FORMATS[:1] if rounds <= self.short else FORMATS
        made = build(formats, scratch)
        with child_runner("faults.programs.long_use") as runner:
            for name in formats:
                path = made[name][0].path
                for workers in ("thread", "process"):
                    opened = 5 * rounds if workers == "thread" else max(2, rounds // 2)
                    for what, number in (("epochs", rounds), ("openings", opened)):
                        end = runner.run(
                            {"patience": 900}, what=what, path=path, workers=workers, rounds=number
                        )
                        yield judged(f"{name}, {workers} workers, {what}", number, end)


def judged(what: str, steps: int, end: End) -> Figures:
    """The figures of one long run; too few steps have no slope."""
    report = end.report
    if end.code or end.left or "slope" not in report:
        said = f"{end.how}, left {end.left}: {end.said[-1500:]}"
        return Figures(what, steps, {"broken": 1}, (said,))
    broken = []
    for one, other in (("first", "last"), ("before", "behind")):
        then, now = report[one], report[other]
        broken += [
            f"{name}: {then[name]} {one}, {now[name]} {other}, of {steps}"
            for name in then
            if name != "private" and then[name] != now[name]
        ]
    gained = report["slope"]
    if gained > LIMIT and steps >= 100:
        broken.append(f"private memory grows by {gained / 1e6:.2f} MB per 100")
    note = f"private memory {gained / 1e6:+.3f} MB per 100"
    return Figures(what, steps, {"no growth": int(not broken)}, tuple(broken), note=note)


CASES: tuple[Case, ...] = (Leaks(),)
