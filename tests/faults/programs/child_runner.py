"""Trials in processes of their own, forked from one that has imported everything already.

``python -m faults.programs.child_runner MODULE`` forks a child for each request, which runs
``MODULE.trial(**arguments)`` and ends as a program does, and watches it from outside. A trial is a
session: nothing that it leaves behind escapes.
"""

import fcntl
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from child_processes import Watched, answer_requests, environment, how_ended
from project import ROOT

#: Seconds after which a trial hangs.
PATIENCE = 300.0

#: Seconds for which processes may outlive their trial; they count as part of its time.
OUTLIVE = 60.0

#: The descriptor on which a child reports facts: when its end began, what it found.
_REPORT = 198


@dataclass(frozen=True)
class End:
    """How a trial ended."""

    code: int
    """Exit code, or minus the signal."""
    seconds: float
    """From the signal, or the child's start_clock(), until it and all its processes were gone."""
    lived: float
    """From its start."""
    output: str
    """Its standard error."""
    report: Mapping[str, Any]
    """The facts that it reported with tell()."""
    left: tuple[str, ...] = ()
    """Processes that outlived it by OUTLIVE; they are killed then."""
    hung: bool = False

    @property
    def how(self) -> str:
        """In words."""
        return "hang" if self.hung else how_ended(self.code)


# -- in a trial ----------------------------------------------------------------------------------


def start_clock() -> None:
    """From now on the trial's time counts."""
    tell(ending=time.monotonic())


def tell(**facts: Any) -> None:
    """Report facts; the last ones of a name count."""
    try:
        os.write(_REPORT, json.dumps(facts).encode() + b"\n")
    except OSError:
        print(facts, file=sys.stderr)


# -- watching ------------------------------------------------------------------------------------


def session(leader: int) -> list[tuple[int, str]]:
    """Living processes of a session: number and command line."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            facts = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(facts[3]) == leader and facts[0] not in "ZX":
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                found.append((int(name), line.decode(errors="replace").strip()[-120:]))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def watched(pid: int, report: int, said: int, plan: Mapping[str, Any]) -> End:
    """Wait for a child that leads a session. ``plan``: {"signal": 9, "after": 0.3, "group": True}
    sends that, to the whole group; a "word" is waited for before it; "patience" and "outlive" are
    other seconds than those above."""
    began = time.monotonic()
    handle = os.pidfd_open(pid)
    held = b""
    signalled: float | None = None

    def wait(until: float, word: str | None = None) -> bool:
        """Whether the child ended, or said ``word``, before that time."""
        nonlocal held
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(report, select.POLLIN)
        while (rest := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(rest * 1000):
                if fd == handle:
                    return True
                more = os.read(report, 1 << 16)
                if not more:
                    poll.unregister(report)
                held += more
            if word is not None and word.encode() in held:
                return False
        return False

    if plan.get("signal"):
        ended = False
        if plan.get("word"):
            ended = wait(began + PATIENCE, plan["word"])
        if not ended and not wait(time.monotonic() + plan.get("after", 0.0)):
            signalled = time.monotonic()
            if plan.get("group"):
                os.killpg(pid, plan["signal"])
            else:
                os.kill(pid, plan["signal"])
    hung = not wait(time.monotonic() + plan.get("patience", PATIENCE))
    if hung:
        os.kill(pid, signal.SIGABRT)  # faulthandler shows where it hangs
        wait(time.monotonic() + 5)
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    gone = time.monotonic()
    left = session(pid)
    while left and time.monotonic() < gone + plan.get("outlive", OUTLIVE):
        time.sleep(0.002)
        left = session(pid)
    done = time.monotonic()
    for number, _ in left:
        os.kill(number, signal.SIGKILL)
    os.close(handle)
    held += _rest(report)
    facts: dict[str, Any] = {}
    for line in held.splitlines():
        facts.update(json.loads(line))
    since = facts.get("ending", began)
    if plan.get("signal"):
        since = done if signalled is None else signalled  # it had ended before the signal
    return End(
        code,
        done - since,
        done - began,
        _rest(said).decode(errors="replace"),
        facts,
        tuple(line for _, line in left),
        hung,
    )


def _rest(pipe: int) -> bytes:
    """All that is in a pipe."""
    os.set_blocking(pipe, False)
    held = b""
    try:
        while more := os.read(pipe, 1 << 16):
            held += more
    except BlockingIOError:  # a child of the child has it open too
        pass
    return held


def started(command: Sequence[str], plan: Mapping[str, Any]) -> End:
    """A trial in a fresh interpreter, watched from its first instant."""
    report, reporting = os.pipe()
    said, saying = os.pipe()
    fcntl.fcntl(saying, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.dup2(reporting, _REPORT, inheritable=True)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=saying,
        stderr=saying,
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
        pass_fds=(_REPORT,),
    )
    for fd in (reporting, _REPORT, saying):
        os.close(fd)
    try:
        end = watched(process.pid, report, said, plan)
    finally:
        os.close(report)
        os.close(said)
    process.returncode = end.code
    return end


# -- the runner ----------------------------------------------------------------------------------


class ChildRunner(Watched):
    """A process that forks a child for each trial of that module."""

    def __init__(self, module: str) -> None:
        # the process watches its children itself
        super().__init__("-m", "faults.programs.child_runner", module, patience=None)

    def run(self, plan: Mapping[str, Any] | None = None, /, **arguments: Any) -> End:
        """One trial. ``plan``: see :func:`watched`; ``arguments``: of ``MODULE.trial``."""
        facts = self.ask({"plan": plan or {}, "arguments": arguments})
        return End(**{**facts, "left": tuple(facts["left"])})


def main() -> None:
    """Fork for each request; a child runs the trial and ends as any program ends."""
    module = importlib.import_module(sys.argv[1])
    module.warm()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        report, reporting = os.pipe()
        said, saying = os.pipe()  # no file: its growth may be forbidden
        fcntl.fcntl(saying, fcntl.F_SETPIPE_SZ, 1 << 20)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(reporting, _REPORT, inheritable=False)
            os.dup2(saying, 2)
            os.dup2(saying, 1)
            for fd in (report, reporting, said, saying):
                os.close(fd)
            # the inherited ones were made for the runner's output, which may have been a file
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            os.write(_REPORT, b"\n")  # from now on it can be signalled
            sys.exit(module.trial(**request["arguments"]))
        os.close(reporting)
        os.close(saying)
        os.read(report, 1)
        end = watched(pid, report, said, request["plan"])
        os.close(report)
        os.close(said)
        return asdict(end)

    answer_requests(answer)


if __name__ == "__main__":
    main()
