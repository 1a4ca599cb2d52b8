"""A group of spawned processes with a pipe each: started, heard, and ended in any case."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ..errors import ParamsError, WorkerError, as_ours
from ..pixels import kernels
from ..system.signals import CHILDREN, after_this, disown, start_child
from .pipe_errors import receive_error
from .threads import STUCK_AFTER


class Closable(Protocol):
    """The queue that workers serve: they end when it is closed, and close it when they fail."""

    @property
    def closed(self) -> bool: ...

    def close(self, failure: BaseException | None = None) -> None: ...


class ProcessGroup:
    """``count`` spawned processes with a pipe each, and one parent thread that reads every pipe.

    Whoever derives from it says what a process runs (``_started_with``), what it sends (``_hear``)
    and what that means (``_heard``).
    """

    #: What to do instead where processes cannot be had.
    instead = 'workers="thread"'
    #: Kernels that every process will use.
    kernels: tuple[str, ...] = ()

    def __init__(self, count: int, ring: Closable, name: str) -> None:
        if not CHILDREN:
            raise ParamsError(
                "this system cannot start worker processes",
                found=sys.platform,
                expected="a system that hands open files to a spawned process: Linux, macOS",
                hint=self.instead,
            )
        self._count = count
        self._ring = ring
        self._name = name
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._queued = [0] * count
        self._lock = threading.Lock()
        self._wake_read = self._wake_write = -1
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Spawn all processes and wait until each has said that it is ready.

        Raises ParamsError where something or the main module cannot be sent, or the error
        with which a process failed to begin; nothing is left running then.
        """
        try:
            self._check_picklable()
            self._wake_read, self._wake_write = os.pipe()
            self._kernels_folder = kernels.share(self.kernels)
            for number in range(self._count):
                self._spawn(number)
            for process, pipe in zip(self._processes, self._pipes, strict=True):
                self._await_ready(process, pipe)
            for target in self._helpers():
                thread = threading.Thread(
                    target=self._help,
                    args=(target,),
                    name=f"{self._name}-{target.__name__.strip('_')}",
                    daemon=True,
                )
                self._threads.append(thread)
                with after_this():
                    thread.start()
        except BaseException:
            self._ring.close()
            self.stop(0.0)
            raise

    def _spawn(self, number: int) -> None:
        mine, theirs = self._context.Pipe()
        self._pipes.append(mine)
        target, arguments = self._started_with(number)
        process = self._context.Process(
            target=_begin,
            args=(self._kernels_folder, target, theirs, *arguments),
            name=f"{self._name}-{number}",
            daemon=True,
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
                f"in the function that a process runs, not as its argument; or {self.instead}",
            ) from exc
        self._processes.append(process)

    def _help(self, target: Callable[[], None]) -> None:
        """Run one of the parent's threads; the consumer gets the error that ends it."""
        try:
            target()
        except BaseException as exc:
            self._ring.close(as_ours(exc))

    def _started_with(self, number: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Function that process ``number`` runs, and its arguments behind the pipe."""
        raise NotImplementedError

    def _hear(self, pipe: Connection) -> tuple[Any, ...]:
        """Receive one message."""
        raise NotImplementedError

    def _heard(self, number: int, message: tuple[Any, ...]) -> None:
        """Act on a message of process ``number``."""
        raise NotImplementedError

    def _check_picklable(self) -> None:
        """ParamsError if something cannot be sent to a process."""
        raise NotImplementedError

    def _helpers(self) -> tuple[Callable[[], None], ...]:
        """What the parent's threads run."""
        return (self._receive,)

    def _try_pickle(self, name: str, value: Any, hint: str) -> None:
        """ParamsError unless ``value`` can be pickled."""
        try:
            reduction.ForkingPickler(io.BytesIO()).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise ParamsError(
                f"{name} cannot be sent to worker processes",
                found=str(exc),
                hint=f"{hint}, or {self.instead}",
            ) from exc

    def _await_ready(self, process: Any, pipe: Connection) -> None:
        try:
            (error,) = receive_error(pipe)
        except (EOFError, OSError):
            process.join(STUCK_AFTER)
            raise ParamsError(
                "a worker process could not start",
                found=f"exit code {process.exitcode}; its message is on standard error",
                hint="its main module must be importable: a file, with the training started under "
                'if __name__ == "__main__":, not a notebook cell or standard input; '
                f"or use {self.instead}",
            ) from None
        if error is not None:
            raise error

    def stop(self, seconds: float = STUCK_AFTER) -> None:
        """End the processes of a closed ring: asked first, killed after that many seconds."""
        if threading.current_thread() in self._threads:
            return
        try:
            if self._wake_write >= 0:
                os.write(self._wake_write, b"x")
            self._join(STUCK_AFTER)
        finally:
            self._end_processes(seconds)
            self._close_descriptors()

    def _join(self, seconds: float) -> bool:
        """Whether all threads have ended, within that many seconds."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _end_processes(self, seconds: float) -> None:
        processes, self._processes = self._processes, []
        try:
            if not self._join(0.0):  # in the midst of a message: only the other side's end helps
                _kill(processes)
                self._join(STUCK_AFTER)
            for pipe in self._pipes:
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

    def _close_descriptors(self) -> None:
        fds, self._wake_read, self._wake_write = (self._wake_read, self._wake_write), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def _least_busy(self) -> int:
        """The process with the fewest tasks, which gets one more."""
        with self._lock:
            number = min(range(self._count), key=self._queued.__getitem__)
            self._queued[number] += 1
        return number

    def _receive(self) -> None:
        sentinels = {process.sentinel: process for process in self._processes}
        pipes = {pipe: number for number, pipe in enumerate(self._pipes)}
        while not self._ring.closed:
            try:
                ready = connection.wait([*pipes, *sentinels, self._wake_read])
            except OSError:
                return  # closed under us by stop()
            if self._wake_read in ready or self._ring.closed:
                return
            for source in ready:
                if isinstance(source, Connection):
                    try:
                        message = self._hear(source)
                    except (EOFError, OSError):
                        continue  # its sentinel tells why
                    self._heard(pipes[source], message)
            for source in ready:
                if source in sentinels:
                    self._ring.close(_death(sentinels[source]))
                    return


def _begin(folder: str | None, target: Callable[..., None], *arguments: Any) -> None:
    kernels.share_of(folder)
    target(*arguments)


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


def _death(process: Any) -> WorkerError:
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
