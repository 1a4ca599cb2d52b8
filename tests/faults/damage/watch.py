"""Watches the process that runs the trials: a crash or a hang is counted as an outcome."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults.case import Outcome
from faults.damage.trials import Job, to_json

ROOT = Path(__file__).resolve().parents[3]
TESTS = str(ROOT / "tests")

#: A trial hangs that says nothing twice for so many seconds: twice, as the whole machine may have
#: been stopped in the first of them. The slowest honest one takes below one second.
PATIENCE = 60

#: Verdicts that break the promise.
BROKEN = ("silent wrong", "short", "untyped", "signal", "hang", "slow", "not at open")


@dataclass(frozen=True)
class Trial:
    """What came of one trial."""

    number: int
    verdict: str
    did: str
    said: str
    seconds: float = 0.0


class Child:
    """A process that runs the trials of some jobs, one job after the other."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        path = os.pathsep.join([TESTS, str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.damage.trials", to_json(jobs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._rest = b""

    def lines(self) -> Iterator[dict[str, Any] | str]:
        """Each trial's line; "hang" where none comes, "" at the end."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        silent = 0
        while True:
            head, newline, self._rest = self._rest.partition(b"\n")
            if newline:
                yield json.loads(head)
                continue
            self._rest = head
            if not select.select([pipe], [], [], PATIENCE)[0]:
                silent += 1
                if silent == 2:
                    yield "hang"
                    return
                continue
            silent = 0
            more = os.read(pipe, 1 << 16)
            if not more:
                yield ""
                return
            self._rest += more

    def end(self, stuck: bool) -> tuple[int, str]:
        """Exit code, and the last of what it said on standard error."""
        try:
            if stuck:
                self._process.send_signal(signal.SIGABRT)  # faulthandler shows where it hangs
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.seek(0)
        said = " | ".join(line.strip() for line in self._errors.read().splitlines())[:600]
        self._errors.close()
        return code, said


def watch(jobs: Sequence[Job]) -> Iterator[Trial]:
    """All trials of all jobs; where a trial ends the process, a new one goes on with the next."""
    left = [job for job in jobs if job.first < job.stop]

    def done() -> int:
        """Step over the trial that is due; its number."""
        job = left.pop(0)
        if job.first + 1 < job.stop:
            left.insert(0, replace(job, first=job.first + 1))
        return job.first

    while left:
        child = Child(left)
        ended = ""
        try:
            for line in child.lines():
                if isinstance(line, str):
                    ended = line
                    break
                assert line["number"] == left[0].first
                number = done()
                yield Trial(number, *(line[name] for name in ("verdict", "did", "said", "seconds")))
        finally:
            code, said = child.end(ended == "hang")
        if ended == "hang":
            yield Trial(done(), "hang", "", said)
        elif code < 0:
            # the process may also die at exit, of what the last trial did
            number = done() if left else jobs[-1].stop - 1
            yield Trial(number, "signal", signal.Signals(-code).name, said)
        elif code != 0:
            raise RuntimeError(f"the process of the trials failed: {said}")


def outcomes(trials: Iterable[Trial]) -> Iterator[Outcome]:
    """Trials as they are counted, each broken promise in words."""
    for trial in trials:
        said = f"trial {trial.number}: {trial.verdict}: {trial.did}: {trial.said}"
        broken = (said,) if trial.verdict in BROKEN else ()
        yield Outcome(trial.verdict, broken, trial.seconds)
