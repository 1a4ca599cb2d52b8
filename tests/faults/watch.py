"""Watches a process full of trials: what kills it or makes it hang is an outcome like another."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults.trials import Job

ROOT = Path(__file__).resolve().parent.parent.parent

#: Seconds without a word after which a trial hangs. The slowest honest one takes below one.
PATIENCE = 30

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
    """A process that runs a job's trials."""

    def __init__(self, job: Job) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.trials", job.to_json()],
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
        while True:
            head, newline, self._rest = self._rest.partition(b"\n")
            if newline:
                yield json.loads(head)
                continue
            self._rest = head
            if not select.select([pipe], [], [], PATIENCE)[0]:
                yield "hang"
                return
            more = os.read(pipe, 1 << 16)
            if not more:
                yield ""
                return
            self._rest += more

    def end(self) -> tuple[int, str]:
        """Exit code, and the last of what it said on standard error; a hanging one is aborted."""
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler shows where it hangs
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.seek(0)
        said = " | ".join(line.strip() for line in self._errors.read().splitlines())[:600]
        self._errors.close()
        return code, said


def watch(job: Job) -> Iterator[Trial]:
    """Run all trials of a job; a new process goes on behind a trial that ended the last one."""
    number = job.first
    while number < job.stop:
        child = Child(replace(job, first=number))
        ended = ""
        try:
            for line in child.lines():
                if isinstance(line, str):
                    ended = line
                    break
                assert line["number"] == number
                number += 1
                yield Trial(number - 1, *(line[n] for n in ("verdict", "did", "said", "seconds")))
        finally:
            code, said = child.end()
        if ended == "hang":
            yield Trial(number, "hang", "", said)
            number += 1
        elif code < 0:
            yield Trial(number, "signal", signal.Signals(-code).name, said)
            number += 1
        elif code != 0:
            raise RuntimeError(f"the trials broke down at {number}: {said}")


def count(trials: Iterator[Trial]) -> tuple[dict[str, int], tuple[str, ...], str]:
    """How often each verdict was given, the broken promises in words, and the slowest trial."""
    verdicts: Counter[str] = Counter()
    broken: list[str] = []
    slowest = 0.0
    for trial in trials:
        verdicts[trial.verdict] += 1
        slowest = max(slowest, trial.seconds)
        if trial.verdict in BROKEN:
            broken.append(f"trial {trial.number}: {trial.verdict}: {trial.did}: {trial.said}")
    return dict(verdicts), tuple(broken), f"the slowest {slowest:.2f} s"
