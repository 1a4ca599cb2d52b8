"""Threads and spawned processes, started together and ended in any case; errors for a pipe."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, TypeAlias

from ..errors import ParamsError, WorkerError
from ..pixels import kernels
from ..system.signals import disown, start_child

#: Seconds that close() waits for a thread inside a read or user code.
STUCK_AFTER: Final = 1.0

#: Parts that this time is waited in. Where a busy machine stops the whole process for a while, one
#: part is lost and not all of the time.
PARTS: Final = 10

#: Seconds that close() waits while kernels are compiled. On a busy machine one takes 10 s.
COMPILED_AFTER: Final = 120.0

#: An error, its cause and its trace, in a form for a pipe.
PackedError: TypeAlias = tuple[bytes, bytes | None, str]


def join_or_leave(threads: Sequence[threading.Thread], seconds: float = STUCK_AFTER) -> None:
    """Join threads that were told to end. Warn of those that do not end within ``seconds``.

    Time in which a kernel is compiled does not count: that happens once on a machine. The threads
    are daemons, so the interpreter can end without them.
    """
    if threading.current_thread() in threads:
        return  # a thread cannot join itself: its reader was collected in it, and it will end
    latest = time.monotonic() + (COMPILED_AFTER if seconds > 0 else 0.0)
    parts = PARTS
    while parts and not _join(threads, seconds / PARTS):
        parts = PARTS if kernels.loading() and time.monotonic() < latest else parts - 1
    frames = sys._current_frames()
    # this function's own frame in one of its variables would be a cycle: it, and the reader that
    # is closed, would wait for the garbage collector
    del frames[threading.get_ident()]
    left = [thread for thread in threads if thread.is_alive() and thread.ident in frames]
    if left:
        stacks = (
            f"{thread.name} is in:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in left
            if thread.ident is not None
        )
        # one warning for all, at the end: where warnings are errors it leaves this function
        warnings.warn(
            f"{len(left)} of {len(threads)} workers did not stop within {seconds} s and are left "
            f"to end by themselves; {''.join(stacks)}",
            RuntimeWarning,
            stacklevel=4,
        )


class Children:
    """Spawned processes with a pipe each. ``instead``: what to do where there can be none."""

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead
        self._context = multiprocessing.get_context("spawn")
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []

    def check_picklable(self, name: str, value: Any, hint: str) -> None:
        """ParamsError unless ``value`` can be pickled."""
        try:
            ForkingPickler.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise ParamsError(
                f"{name} cannot be sent to worker processes",
                found=str(exc),
                hint=f"{hint}, or {self._instead}",
            ) from exc

    def start(
        self,
        target: Callable[..., None],
        arguments: Sequence[tuple[Any, ...]],
        used_kernels: Sequence[str] = (),
    ) -> None:
        """Spawn a process for each of ``arguments``, and wait until all are ready.

        Each runs ``target(pipe, *arguments)``, which first sends None, or the packed error with
        which it failed to begin. That error is raised here, or ParamsError where the main module
        cannot be sent. :meth:`end` ends those that were started.
        """
        folder = kernels.share(used_kernels)
        for number, given in enumerate(arguments):
            self._spawn(f"{self._name}-{number}", folder, target, given)
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            self._await_ready(process, pipe)

    def _spawn(
        self, name: str, folder: str | None, target: Callable[..., None], given: tuple[Any, ...]
    ) -> None:
        mine, theirs = self._context.Pipe()
        self.pipes.append(mine)
        process = self._context.Process(
            target=_begin, args=(folder, target, theirs, *given), name=name, daemon=True
        )
        try:
            with theirs:
                start_child(process)
        except (AssertionError, RuntimeError) as exc:  # so multiprocessing refuses
            raise ParamsError(
                "this process may not start worker processes",
                found="a daemonic process, as of a Pool or a DataLoader"
                if isinstance(exc, AssertionError)
                else "a process that is only starting itself",
                hint='start training under if __name__ == "__main__":, and open what has workers '
                f"in the function that a process runs, not as its argument; or {self._instead}",
            ) from exc
        self.processes.append(process)

    def _await_ready(self, process: Any, pipe: Connection) -> None:
        try:
            packed = pipe.recv()
        except (EOFError, OSError):
            process.join(STUCK_AFTER)
            raise ParamsError(
                "a worker process could not start",
                found=f"exit code {process.exitcode}; its message is on standard error",
                hint="its main module must be importable: a file, with the training started under "
                'if __name__ == "__main__":, not a notebook cell or standard input; '
                f"or use {self._instead}",
            ) from None
        if packed is not None:
            raise unpacked_error(packed)

    def end(self, threads: Sequence[threading.Thread], seconds: float) -> None:
        """End the processes, and the ``threads`` that use their pipes and were told to end.

        Each may take that many seconds; then the processes are killed.
        """
        processes, self.processes = self.processes, []
        try:
            if not _join(threads, seconds):  # in a message: only the other side's end helps
                _kill(processes)
                _join(threads, STUCK_AFTER)
            for pipe in self.pipes:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()  # a worker that waits for a task sees the end and leaves
            _await_end(processes, seconds)
        finally:
            _kill(processes)
            for process in processes:
                process.join(STUCK_AFTER)
                try:
                    process.close()
                except ValueError:  # somebody else reaps our children: it never hears of their end
                    disown(process)


def _begin(folder: str | None, target: Callable[..., None], *arguments: Any) -> None:
    kernels.share_of(folder)
    target(*arguments)


def _join(threads: Sequence[threading.Thread], seconds: float) -> bool:
    """Whether all threads have ended, within that many seconds."""
    until = time.monotonic() + seconds
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _await_end(processes: list[Any], seconds: float) -> list[Any]:
    """The ``processes`` that have not ended within that many seconds."""
    left = {process.sentinel: process for process in processes}
    until = time.monotonic() + seconds
    while left and (gone := connection.wait(list(left), max(0.0, until - time.monotonic()))):
        for sentinel in gone:
            del left[sentinel]
    return list(left.values())


def _kill(processes: list[Any]) -> None:
    # only one whose sentinel is still open: the process id of an ended one may be reused by now
    for process in _await_end(processes, 0.0):
        process.kill()


def death_of(process: Any) -> WorkerError:
    """The error of a process that has ended without being asked to."""
    process.join(STUCK_AFTER)
    code = process.exitcode
    how = f"exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            how = f"signal {signal.Signals(-code).name}"
    return WorkerError(
        "a worker process died",
        found=f"process {process.pid}, {how}",
        hint="open the reader again; a state that was saved before is still valid",
    )


# -- errors --------------------------------------------------------------------------------------


def packed_error(error: BaseException, where: str) -> PackedError:
    """An error in a form for a pipe. ``where``: the process, for the note that holds its trace."""
    trace = "".join(traceback.format_exception(error))
    cause = error.__cause__
    return _dumped(error), None if cause is None else _dumped(cause), f"in {where}:\n{trace}"


def unpacked_error(packed: PackedError) -> BaseException:
    """The error that :func:`packed_error` packed, with its cause, and its trace as a note."""
    body, cause, trace = packed
    error = _loaded(body)
    error.__cause__ = None if cause is None else _loaded(cause)
    error.add_note(trace)
    return error


def _dumped(error: BaseException) -> bytes:
    """An error pickled. One that cannot be becomes its text."""
    try:
        body = bytes(ForkingPickler.dumps(error))
        ForkingPickler.loads(body)
    except Exception:  # its class is local, or its pickle only goes one way
        body = bytes(ForkingPickler.dumps(RuntimeError(f"{type(error).__name__}: {error}")))
    return body


def _loaded(body: bytes) -> BaseException:
    try:
        error: BaseException = ForkingPickler.loads(body)
    except Exception as exc:  # of a class that this process does not have
        error = RuntimeError(f"the original error cannot be unpickled: {exc!r}")
    return error
