"""Child processes of tests: they end and their pipes are closed, whatever becomes of the test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from observed import HANG


@contextmanager
def child(
    words: Sequence[Any], *, env: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A child process that has ended, with its pipes closed, when the block is left.

    A child that the block leaves running is killed: else its pipes and its end would be found, as
    warnings, in other tests.
    """
    given = os.environ if env is None else env
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
    shows = {**given, "PYTHONFAULTHANDLER": "1"}  # SIGABRT prints where each thread is
    with subprocess.Popen(words, env=shows, **settings) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[Any], given: Any = None) -> tuple[Any, Any]:
    """What is left in stdout and stderr when the child has ended; ``given`` goes to its stdin. A
    child that hangs is made to print where, and the test fails."""
    try:
        return process.communicate(given, timeout=HANG)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
    try:
        said = process.communicate(timeout=HANG)
    except subprocess.TimeoutExpired as exc:  # its own children hold the pipes open
        said = exc.output, exc.stderr
    raise AssertionError(f"the child hangs: {said}")


def run(
    words: Sequence[Any], *, given: str | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a child to its end: its exit code and what it wrote. ``given`` goes to its stdin."""
    pipe = subprocess.PIPE
    settings = {"stdin": given and pipe, "stdout": pipe, "stderr": pipe, "text": True, **settings}
    with child(words, **settings) as process:
        out, err = ended(process, given)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
