"""Ways to end a program that has a reader open: in time, the right error, nothing left behind."""

import json
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults.case import Case, Figures, Outcome, tally
from faults.programs.child_runner import ChildRunner, End, started
from faults.programs.endings import BY_SIGNAL, OF_PROCESSES, WAYS
from faults.sets import KnownSet, build

FORMATS = ("HDF5 raw", "HDF5 gzip", "LMDB raw", "LMDB jpeg")
WORKERS = ("thread", "process")

#: Those that Ctrl-C is tried on: one of each container, one raw, one decoded.
INTERRUPTED = ("HDF5 raw", "LMDB jpeg")

#: Seconds in which the program and its processes must have ended.
LIMIT = 2.0

#: Ways that the short form tries: each process takes a second to start.
FEW = {
    "thread": ("no_close", "thread_reads_on", "after_fork", "worker_stuck", "SIGTERM"),
    "process": ("no_close", "worker_killed", "SIGKILL, a worker stuck", "after_fork"),
}

#: A trial that was only slow is tried again so often, and its fastest counts: a shared machine
#: stalls, but a real hang is as slow the next time.
ATTEMPTS = 3


def problems(end: End, code: int, said: str) -> list[str]:
    """Each promise that this trial broke."""
    found = []
    if end.hung:
        found.append(f"hang: {end.output[-1500:]}")
    elif end.code != code:
        found.append(f"{end.how} instead of {code}: {end.output[-600:]}")
    if end.left:
        found.append(f"left behind: {', '.join(end.left)}")
    if end.seconds >= LIMIT:
        found.append(f"took {end.seconds:.1f} s")
    if end.report.get("wrong"):
        found.append(f"not as before: {end.report['wrong']}")
    if end.report.get("unexpected"):
        found.append(end.report["unexpected"])
    last = end.output.strip().rpartition("\n")[2]
    if code >= 0 and (last != said if not said else not last.startswith(said)):
        found.append(f"said {end.output[-600:]!r}")
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
        short = rounds <= self.short
        with ChildRunner("faults.programs.endings") as runner:
            for name, sets in build(FORMATS[:1] if short else FORMATS, scratch).items():
                for workers in WORKERS:
                    few = FEW[workers] if short else None
                    outcomes = _exits(runner, sets, workers, few, rounds)
                    yield tally(f"{name}, {workers} workers", outcomes)


def _exits(
    runner: ChildRunner,
    sets: Sequence[KnownSet],
    workers: str,
    few: Sequence[str] | None,
    rounds: int,
) -> Iterator[Outcome]:
    """Every way to end, or those of ``few``, ``rounds`` times."""
    for way, code, said, plan in ways(workers):
        for number in range(rounds if few is None or way in few else 0):
            given = {"way": way, "path": sets[number % len(sets)].path, "workers": workers}
            end, also = in_time(partial(runner.run, plan, **given))
            broken = tuple(f"{way}: {problem}" for problem in problems(end, code, said))
            yield Outcome("broken" if broken else "as promised", broken, end.seconds, way, also)


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
        short = rounds <= self.short
        formats = INTERRUPTED[:1] if short else INTERRUPTED
        made = build(formats, scratch)
        ways = [(name, "all phases") for name in formats]
        ways += [(formats[0], "all phases, traced"), (formats[0], "all phases, drop-ins")]
        with ChildRunner("faults.programs.endings") as runner:
            for name, way in ways:
                for workers in WORKERS[:1] if short else WORKERS:
                    given = {"way": way, "path": made[name][0].path, "workers": workers}
                    command = [sys.executable, "-m", "faults.programs.endings", json.dumps(given)]
                    programs = [partial(started, command), *[partial(runner.run, **given)] * 3]
                    what = f"{name}, {workers} workers{way.removeprefix('all phases')}"
                    # how long they take is measured twice, but for the short form
                    trials = _interrupts(programs, random.Random(seed), rounds, 1 if short else 2)
                    yield tally(what, trials)


def _interrupts(
    programs: Sequence[Callable[[Mapping[str, Any]], End]],
    rng: random.Random,
    rounds: int,
    measured: int,
) -> Iterator[Outcome]:
    """Interrupt each program in turn, at random moments of its whole run. The first one is started
    in a fresh interpreter and takes longer than the others, which take the same time."""
    whole = [
        max(program({}).lived for _ in range(measured)) for program in (programs[0], programs[-1])
    ]
    for number in range(rounds):
        which = number % len(programs)
        moment = rng.uniform(0, 1.02 * whole[min(which, 1)])
        plan = {"signal": signal.SIGINT, "after": moment, "group": True}
        end, also = in_time(partial(programs[which], plan))
        phase = end.report.get("phase", "start")
        if end.code == 0 and "Exception ignored" in end.output:
            # inside a weak reference's callback or a __del__ Python prints Ctrl-C, and goes on
            yield Outcome("ignored by Python", also=also)
            continue
        broken = tuple(
            f"after {moment:.3f} s, phase {phase}: {problem}" for problem in interrupted(end, phase)
        )
        ended = "finished before it" if end.code == 0 else f"during {phase}"
        yield Outcome("broken" if broken else ended, broken, end.seconds, also=also)


def in_time(attempt: Callable[[], End]) -> tuple[End, tuple[str, ...]]:
    """Run a trial, and run it again if it was only slow. The fastest counts; and what is to be
    counted with it."""
    ends = [attempt()]
    while ends[-1].seconds >= LIMIT and not (ends[-1].hung or ends[-1].left):
        if len(ends) == ATTEMPTS:
            break
        ends.append(attempt())
    also = ("(slow, tried again)",) if len(ends) > 1 else ()
    return min(ends, key=lambda end: end.seconds), also


def interrupted(end: End, phase: str) -> list[str]:
    """Each promise that an interrupted program broke."""
    # in other imports, and as the interpreter starts or ends, they decide what Ctrl-C does
    in_asyncreader = phase in ("open", "loop", "close")
    fine = (0, -signal.SIGINT, 130) if in_asyncreader else (0, -signal.SIGINT, 130, 1)
    last = end.output.strip().rpartition("\n")[2]
    found = problems(end, end.code, last)
    # Python says 1 instead of the signal if code was made of text (exec, eval: numba does that when
    # it loads a kernel) in any thread after the main one ended with KeyboardInterrupt.
    if end.code not in fine and (end.code, last) != (1, "KeyboardInterrupt"):
        found.append(f"{end.how}: {end.output[-900:]}")
    if (
        in_asyncreader
        and end.code
        and end.output.count("Traceback") > 1 + end.output.count("During handling")
    ):
        found.append(f"more than one traceback: {end.output[-1500:]}")
    return found


CASES: tuple[Case, ...] = (Exits(), CtrlC())
