"""What a fault case is, and the figures that it returns.

A file ``case_<name>.py`` here or in a folder below registers its cases in a tuple ``CASES``. It
imports ``from faults.case import Figures``: ``tests`` is on the path, in pytest as in run.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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
    seconds: float = 0.0
    """Wall time of all trials."""
    note: str = ""
    """What else is worth a few words in the table: "slowest 0.02 s"."""


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
    return Figures(what, trials, dict(counts), tuple(broken), note=note)


class Case(Protocol):
    """One kind of fault. ``run`` yields a Figures for each thing that it was tried on.

    ``name``: one word, for ``--only`` (``flips``); ``row``: the first cell of the table, in
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
