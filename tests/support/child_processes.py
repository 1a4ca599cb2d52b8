"""Child processes of tests: they end and their pipes are closed, whatever becomes of the test.

``Watched`` is for many trials that may kill their process or make it hang. The child answers one
request after the other with answer_requests(). A new one takes over where it ends.
"""

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Self

from observed import HANG
from project import ROOT

#: One thread for each library: where a machine is busy, their pools are ten times slower.
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


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


def for_torchrun(*paths: str | os.PathLike[str]) -> dict[str, str]:
    """The environment for torchrun: each rank waits a moment as it exits. ``paths``: where Python
    looks for modules, too.

    A thread of gloo lets go of the tensors of the last collective after the caller has them, and
    needs the GIL for it. Where Python has begun to end by then, the rank aborts (torch 2.13;
    https://github.com/pytorch/pytorch/pull/179291).
    """
    found = [ROOT / "tests" / "support" / "ranks", *paths, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in found if path)}


# -- many trials in one process ------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment of this process, with the checkout and its tests first on the path."""
    places = ROOT / "tests", ROOT / "tests/support", ROOT, os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(map(str, places))
    return {**os.environ, "PYTHONPATH": path}


def how_ended(code: int) -> str:
    """In words: "SIGSEGV", or "exit code 1"."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@dataclass(eq=False)
class Ended(Exception):
    """A child ended, or was ended because it hung, instead of giving an answer."""

    how: str
    """ "hang", a signal's name, or "exit code 1"."""
    said: str
    """The last of what it wrote to standard error."""


class Watched:
    """A Python process that answers requests. It starts with the first one, and again with the next
    one after its end. A context manager."""

    def __init__(
        self,
        *words: str,
        patience: float | None = 60,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``words``: Python's arguments. A child hangs that says nothing twice for ``patience``
        seconds: twice, as the whole machine may have been stopped in the first of them. None: its
        requests may take any time."""
        self._words = [sys.executable, *words]
        self._patience = patience
        self._env = {**environment(), **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[str]
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap(stuck=False)

    def start(self) -> None:
        """Start the process, and wait until it is ready. RuntimeError where it ends before."""
        # a file: a pipe that nobody reads would fill up and stop the child
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._rest = b""
        self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=self._env,
        )
        try:
            self._answer(HANG)
        except Ended as end:
            raise RuntimeError(f"the child did not start: {end.how}: {end.said}") from None

    def ask(self, request: Any) -> Any:
        """The answer to a request; both are JSON. ``Ended`` where there is none."""
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its pipe is at the end too
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return self._answer(self._patience)

    def close(self) -> None:
        """End the process; ``Ended`` where it does not end as it should."""
        if self._process is not None:
            code, ended = self._reap(stuck=False)
            if code:
                raise ended

    def _answer(self, patience: float | None) -> Any:
        """The next line that the child writes."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        silent = 0
        while b"\n" not in self._rest:
            if not select.select([pipe], [], [], patience)[0]:
                silent += 1
                if silent == 2:
                    raise self._reap(stuck=True)[1]
                continue
            silent = 0
            more = os.read(pipe, 1 << 16)
            if not more:
                raise self._reap(stuck=False)[1]
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _reap(self, stuck: bool) -> tuple[int, Ended]:
        """Wait until the process has ended: its exit code, and its end in words."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            if stuck:
                process.send_signal(signal.SIGABRT)  # faulthandler shows where it hangs
            process.wait(HANG)
        except subprocess.TimeoutExpired:
            stuck = True
            process.kill()
        code = process.wait()
        process.stdout.close()
        with self._errors:
            self._errors.seek(0)
            said = self._errors.read()[-4000:]
        return code, Ended("hang" if stuck else how_ended(code), said)


def answer_requests(answer: Callable[[Any], Any], memory: int | None = None) -> None:
    """In a child of Watched: answer its requests until there are no more. What else is printed goes
    to standard error. ``memory``: the bytes that the process may have."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # closefd: they are never closed, in no process that answer() forks
    requests, answers = open(os.dup(0), closefd=False), open(os.dup(1), "w", closefd=False)  # noqa: SIM115
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    print("null", file=answers, flush=True)  # it is ready
    for line in requests:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
