"""What a fault case is, the figures that it returns, and their row in docs/reliability.md.

A file ``case_<name>.py`` here or in a folder below has its cases in a tuple ``CASES``, which
test_cases.py runs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SEED = 20261121


@dataclass(frozen=True)
class Figures:
    """One line of the table: a case tried on one thing (a format, a way to end a program ...)."""

    what: str
    """What it was tried on: "LMDB jpeg, verify always"."""
    trials: int
    """How often."""
    counts: Mapping[str, int]
    """Outcomes and how often each was seen, good ones too: {"served right": 310, ...}."""
    broken: tuple[str, ...] = ()
    """Each broken promise in a line that is enough to repeat it; empty is what passes."""
    note: str = ""
    """What else is worth a few words in the table: "slowest 0.02 s"."""
    peak: float = 0.0
    """The number in the note: the table has the note with the largest one."""


@dataclass(frozen=True)
class Outcome:
    """What came of one trial."""

    verdict: str
    """In a word or two, as it is counted: "right", "exit code 1"."""
    broken: tuple[str, ...] = ()
    """Each promise that it broke, with what is needed to repeat it."""
    seconds: float = 0.0
    """How long it took; 0: not measured."""
    way: str = ""
    """What was done in this trial, if the slowest one is to name it."""
    also: tuple[str, ...] = ()
    """What else is counted: "tried again"."""


def tally(what: str, outcomes: Iterable[Outcome], clock: str = "s") -> Figures:
    """The figures of all trials on one thing. ``clock``: the unit of their seconds."""
    trials = 0
    counts: Counter[str] = Counter()
    broken: list[str] = []
    slowest = Outcome("")
    for outcome in outcomes:
        trials += 1
        counts.update((outcome.verdict, *outcome.also))
        broken += outcome.broken
        slowest = max(slowest, outcome, key=lambda one: one.seconds)
    note = f"slowest {slowest.seconds:.2f} {clock}" if slowest.seconds else ""
    note += f" ({slowest.way})" if slowest.way else ""
    return Figures(what, trials, dict(counts), tuple(broken), note, slowest.seconds)


class Case(Protocol):
    """One kind of fault. ``run`` yields a Figures for each thing that it was tried on.

    ``name``: one word, for ``-k`` (``flips``); ``row``: the first cell of the table, in
    words ("random byte flips"); ``promise``: the figure that must come out ("0 silent wrong
    samples, 0 signals, 0 hangs"); ``short``, ``long``: rounds per thing in the two forms.
    """

    name: str
    row: str
    promise: str
    short: int
    long: int

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """Try ``rounds`` times on each thing. The same seed tries the same; ``scratch`` is an
        empty folder of its own. A broken promise is a figure, not an exception."""


def outcomes(counts: Mapping[str, int]) -> str:
    """The counts in a table's cell, most frequent first; zeros only where nothing else is."""
    some = {name: n for name, n in counts.items() if n} or counts
    return ", ".join(f"{n:,} {name}" for name, n in sorted(some.items(), key=lambda x: -x[1]))


def with_row(page: str, case: Case, lines: Sequence[Figures]) -> str:
    """The page with a new row for this case. ValueError unless the page has one row for it."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.counts)
    first = f"| {case.row}: "
    parts = dict.fromkeys(part for line in lines for part in line.what.split(", "))
    note = max(lines, key=lambda line: line.peak).note
    cells = (
        ", ".join(parts),
        f"{sum(line.trials for line in lines):,}",
        "; ".join(filter(None, (outcomes(counts), note))),
        f"{sum(len(line.broken) for line in lines)}",
    )
    rows = page.splitlines(keepends=True)
    (at,) = [number for number, row in enumerate(rows) if row.startswith(first)]
    rows[at] = f"{first}{case.promise} | {' | '.join(cells)} |\n"
    return "".join(rows)
