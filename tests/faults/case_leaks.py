"""Many epochs, and many readers opened and closed: descriptors, threads and memory stay level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.case import Case, Figures
from faults.nursery import nursery
from faults.sets import build

FORMATS = ("HDF5 raw", "HDF5 gzip", "LMDB raw", "LMDB jpeg")

#: Private bytes gained in 100 epochs, or in 100 readers.
LIMIT = 1_000_000


@dataclass(frozen=True)
class Leaks:
    """``rounds`` epochs of one reader, then five times as many readers, every other forgotten."""

    name: str = "leaks"
    row: str = "epochs of one reader, and readers opened and closed"
    promise: str = "descriptors and threads equal, private memory below +1 MB in 100"
    short: int = 6
    long: int = 200

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """Two lines to each format; the short form is of one."""
        formats = FORMATS[:1] if rounds <= self.short else FORMATS
        made = build(formats, scratch)
        with nursery("faults.soaking") as place:
            for name in formats:
                path = made[name][0].path
                for what, number in (("epochs", rounds), ("openings", 5 * rounds)):
                    end = place.run(
                        {"patience": 600}, what=what, path=path, workers="thread", rounds=number
                    )
                    yield judged(f"{name}, {what}", number, end.report, end.code, end.said)


def judged(what: str, steps: int, report: object, code: int, said: str) -> Figures:
    """The figures of one long run; too few steps have no slope."""
    if code or not isinstance(report, dict) or "slope" not in report:
        return Figures(what, steps, {"broken": 1}, (f"exit code {code}: {said[-1500:]}",))
    first, last, gained = report["first"], report["last"], report["slope"]
    broken = [
        f"{name}: {first[name]}, and {last[name]} behind {steps}"
        for name in ("descriptors", "threads")
        if first[name] != last[name]
    ]
    if gained > LIMIT and steps >= 100:
        broken.append(f"private memory grows by {gained / 1e6:.2f} MB in 100")
    note = f"private memory {gained / 1e6:+.3f} MB in 100"
    return Figures(what, steps, {"level": int(not broken)}, tuple(broken), note=note)


CASES: tuple[Case, ...] = (Leaks(),)
