"""Ways to end a program that has a reader open: in time, the right error, nothing left behind."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.case import Case, Figures
from faults.programs.child_runner import End, child_runner, started
from faults.programs.endings import BY_SIGNAL, OF_PROCESSES, WAYS
from faults.sets import build

FORMATS = ("HDF5 raw", "HDF5 gzip", "LMDB raw", "LMDB jpeg")
WORKERS = ("thread", "process")

#: Those that Ctrl-C is tried on: one of each container, one raw, one decoded.
INTERRUPTED = ("HDF5 raw", "LMDB jpeg")

#: Seconds in which the program and its processes must have ended.
LIMIT = 2.0

#: Ways that the short form tries: each process takes a second to start.
FEW = {
    "thread": ("no_close", "thread_reads_on", "after_fork", "worker_stuck", "pickled", "SIGTERM"),
    "process": ("no_close", "worker_killed", "SIGKILL, a worker stuck", "after_fork"),
}

#: A trial that was only slow is tried again so often, and its fastest counts: a shared machine
#: stalls, but a real hang is as slow the next time.
ATTEMPTS = 3


def problems(end: End, code: int, said: str) -> list[str]:
    """Each promise that this trial broke."""
    found = []
    if end.hung:
        found.append(f"hang: {end.said[-1500:]}")
    elif end.code != code:
        found.append(f"{end.how} instead of {code}: {end.said[-600:]}")
    if end.left:
        found.append(f"left behind: {', '.join(end.left)}")
    if end.seconds >= LIMIT:
        found.append(f"took {end.seconds:.1f} s")
    if end.report.get("wrong"):
        found.append(f"not as before: {end.report['wrong']}")
    if end.report.get("unexpected"):
        found.append(end.report["unexpected"])
    last = end.said.strip().rpartition("\n")[2]
    if code >= 0 and (last != said if not said else not last.startswith(said)):
        found.append(f"said {end.said[-600:]!r}")
    return found


def ways(workers: str) -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    """Each way: name, exit code, start of the last line on stderr, and the signal that ends it."""
    own = {**WAYS, **(OF_PROCESSES if workers == "process" else {})}
    for name, (_, code, said) in own.items():
        yield name, code, said, {}
    for name, (_, plan, code) in BY_SIGNAL.items():
        yield name, code, "", {**plan, "word": "reads", "after": 0.05}


@dataclass(frozen=True)
class Exits:
    """Every way with each format and kind of workers, ``rounds`` times."""

    name: str = "exits"
    row: str = "ways to end a program that has a reader open"
    promise: str = (
        "the process ends within 2 s with the right exit code or error, nothing left behind"
    )
    short: int = 1
    long: int = 2

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each format and kind of workers; the short form tries one format."""
        formats = FORMATS[:1] if rounds <= self.short else FORMATS
        made = build(formats, scratch)
        with child_runner("faults.programs.endings") as runner:
            for name in formats:
                for workers in WORKERS:
                    counts: Counter[str] = Counter()
                    broken: list[str] = []
                    slowest = (0.0, "")
                    for way, code, said, plan in ways(workers):
                        if rounds <= self.short and way not in FEW[workers]:
                            continue
                        for number in range(rounds):
                            path = made[name][number % len(made[name])].path

                            def attempt(
                                way: str = way, path: str = path, plan: dict[str, Any] = plan
                            ) -> End:
                                return runner.run(plan, way=way, path=path, workers=workers)  # noqa: B023

                            end = in_time(attempt, counts)
                            found = problems(end, code, said)
                            counts["as promised" if not found else "broken"] += 1
                            broken += [f"{way}: {problem}" for problem in found]
                            slowest = max(slowest, (end.seconds, way))
                    yield Figures(
                        f"{name}, {workers} workers",
                        counts["as promised"] + counts["broken"],
                        dict(counts),
                        tuple(broken),
                        note=f"slowest {slowest[0]:.2f} s ({slowest[1]})",
                    )


@dataclass(frozen=True)
class CtrlC:
    """SIGINT to the whole process group, at moments spread from the first import to the end."""

    name: str = "ctrl-c"
    row: str = "Ctrl-C at a random moment, from the first import on"
    promise: str = "the process ends within 2 s, nothing left behind"
    short: int = 2
    long: int = 200

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each format and kind of workers, with a trace, and for the drop-in classes;
        the short form tries one of each, with threads."""
        formats = INTERRUPTED[:1] if rounds <= self.short else INTERRUPTED
        made = build(formats, scratch)
        ways = [(name, "all phases") for name in formats]
        ways += [(formats[0], "all phases, traced"), (formats[0], "all phases, drop-ins")]
        with child_runner("faults.programs.endings") as runner:
            for name, way in ways:
                for workers in WORKERS[:1] if rounds <= self.short else WORKERS:
                    given = {"way": way, "path": made[name][0].path, "workers": workers}
                    command = [sys.executable, "-m", "faults.programs.endings", json.dumps(given)]
                    counts, broken, slowest = _moments(
                        [
                            lambda plan, command=command: started(command, plan),
                            *[lambda plan, given=given: runner.run(plan, **given)] * 3,
                        ],
                        random.Random(seed),
                        rounds,
                    )
                    what = f"{name}, {workers} workers{way.removeprefix('all phases')}"
                    yield Figures(what, rounds, counts, broken, note=f"slowest {slowest:.2f} s")


def _moments(
    ways: Sequence[Callable[[Mapping[str, Any]], End]], rng: random.Random, rounds: int
) -> tuple[dict[str, int], tuple[str, ...], float]:
    """Interrupt each program in turn, at random moments of its whole run."""
    whole = [max(way({}).lived for _ in range(2)) for way in (ways[0], ways[-1])]
    counts: Counter[str] = Counter()
    broken: list[str] = []
    slowest = 0.0
    for number in range(rounds):
        fresh = number % len(ways) == 0
        way = ways[number % len(ways)]
        moment = rng.uniform(0, 1.02 * whole[0 if fresh else 1])
        plan = {"signal": signal.SIGINT, "after": moment, "group": True}
        end = in_time(lambda way=way, plan=plan: way(plan), counts)  # type: ignore[misc]
        phase = end.report.get("phase", "start")
        if end.code == 0 and "Exception ignored" in end.said:
            # inside a weak reference's callback or a __del__ Python prints Ctrl-C, and goes on
            counts["ignored by Python"] += 1
            continue
        found = interrupted(end, phase)
        counts[
            "broken" if found else "finished before it" if end.code == 0 else f"during {phase}"
        ] += 1
        broken += [f"after {moment:.3f} s, phase {phase}: {problem}" for problem in found]
        slowest = max(slowest, end.seconds)
    return dict(counts), tuple(broken), slowest


def in_time(attempt: Callable[[], End], counts: Counter[str]) -> End:
    """Run a trial, and run it again if it was only slow; the fastest counts."""
    ends = [attempt()]
    while ends[-1].seconds >= LIMIT and not (ends[-1].hung or ends[-1].left):
        if len(ends) == ATTEMPTS:
            break
        ends.append(attempt())
    if len(ends) > 1:
        counts["(slow, tried again)"] += 1
    return min(ends, key=lambda end: end.seconds)


def interrupted(end: End, phase: str) -> list[str]:
    """Each promise that an interrupted program broke."""
    # in other imports, and as the interpreter starts or ends, they decide what Ctrl-C does
    in_asyncreader = phase in ("open", "loop", "close")
    fine = (0, -signal.SIGINT, 130) if in_asyncreader else (0, -signal.SIGINT, 130, 1)
    found = problems(end, end.code, end.said.strip().rpartition("\n")[2])
    if end.code not in fine:
        found.append(f"{end.how}: {end.said[-900:]}")
    if (
        in_asyncreader
        and end.code
        and end.said.count("Traceback") > 1 + end.said.count("During handling")
    ):
        found.append(f"more than one traceback: {end.said[-1500:]}")
    return found


@dataclass(frozen=True)
class Interrupts:
    """Ctrl-C that the program catches, to go on with the same reader: in one process, thousands."""

    name: str = "interrupts"
    row: str = "Ctrl-C that the program catches before it goes on with the same reader"
    promise: str = "the same epoch as without, no lock held, no thread or descriptor left"
    short: int = 200
    long: int = 20_000

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A reader, a reader with a trace, and the drop-in classes."""
        path = build(FORMATS[:1], scratch)[FORMATS[0]][0].path
        given = {"path": path, "workers": "thread", "rounds": rounds, "seed": seed}
        kinds: dict[str, dict[str, str]] = {
            FORMATS[0]: {"what": "interrupts"},
            f"{FORMATS[0]}, traced": {"what": "interrupts", "trace": str(scratch / "trace.json")},
            "drop-in classes": {"what": "drop_ins"},
        }
        with child_runner("faults.programs.long_use") as runner:
            for name, kind in kinds.items():
                end = runner.run({"patience": 60 + rounds / 10}, **given, **kind)
                broken = list(end.report.get("found", ()))
                if end.code or end.left:
                    broken.append(f"{end.how}, left {end.left}: {end.said[-2500:]}")
                yield Figures(name, rounds, end.report.get("counts", {}), tuple(broken))


CASES: tuple[Case, ...] = (Exits(), CtrlC(), Interrupts())
