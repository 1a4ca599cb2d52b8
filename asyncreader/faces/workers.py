"""Worker groups that make the items of an enqueuer: threads, or spawned processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from ..pipeline.process_group import ProcessGroup
from ..pipeline.threads import join_or_leave
from ..system.signals import after_this
from .ahead import Ahead, Turn
from .jobs import RENEW, Ended, Job, unpacked_error, worker_main


class WorkerGroup(Protocol):
    """Workers that make what was begun."""

    def start(self) -> None:
        """Begin to wait for tasks. ParamsError if a job cannot be sent to a process."""

    def give(self, task: Any, lane: int) -> bool:
        """Wait for a free place, and let the workers of this lane do ``task``.

        False when no more are wanted.
        """

    def renew(self, job: Job) -> None:
        """Use another job for later tasks; called while no item is being made."""

    def stop(self, seconds: float) -> None:
        """End the workers; the queue is closed."""


def worker_group(processes: bool, ahead: Ahead, jobs: Sequence[Job]) -> WorkerGroup:
    """A worker for each of ``jobs``, a thread or a process. Worker ``i`` serves lane ``i``, or all
    of them serve the only one."""
    if processes:
        return SpawnedGroup(ahead, jobs)
    return ThreadGroup(ahead, jobs)


class ThreadGroup:
    """Daemon threads."""

    def __init__(self, ahead: Ahead, jobs: Sequence[Job]) -> None:
        self._ahead = ahead
        self._threads = [
            threading.Thread(
                target=_work,
                args=(ahead, number % ahead.lanes, job),
                name=f"asyncreader-enqueue-{number}",
                daemon=True,
            )
            for number, job in enumerate(jobs)
        ]

    def start(self) -> None:
        with after_this():
            for thread in self._threads:
                thread.start()

    def give(self, task: Any, lane: int) -> bool:
        return self._ahead.begin(task, lane) is not None

    def renew(self, job: Job) -> None:
        pass  # threads use the object itself

    def stop(self, seconds: float) -> None:
        join_or_leave(self._threads, seconds)


def _work(ahead: Ahead, lane: int, job: Job) -> None:
    while (turn := ahead.next_turn(lane)) is not None:
        item: Any = None
        error: BaseException | None = None
        try:
            item = job(turn.task)
        except Ended:
            ahead.end_lane(lane)
        except BaseException as exc:
            error = exc
        ahead.made(turn, item, error)
        # an item may be large: it is the consumer's alone now
        del turn, item, error


class SpawnedGroup(ProcessGroup):
    """Spawned processes. Several tasks are queued in the pipe of each."""

    instead = "use_multiprocessing=False"

    def __init__(self, ahead: Ahead, jobs: Sequence[Job]) -> None:
        super().__init__(len(jobs), ahead, "asyncreader-enqueue")
        self._ahead = ahead
        self._jobs = jobs
        self._turns: dict[int, Turn] = {}

    def _started_with(self, number: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return worker_main, (self._jobs[number],)

    def _check_picklable(self) -> None:
        for job in self._jobs:
            self._try_pickle(
                "what the workers are to do",
                job,
                "use functions and classes defined at the top of a module, and let each open its "
                "files itself when it is first used",
            )

    def give(self, task: Any, lane: int) -> bool:
        turn = self._ahead.begin()
        if turn is None:
            return False
        self._turns[turn.number] = turn
        if self._ahead.lanes == 1:
            lane = self._least_busy()
        else:
            with self._lock:
                self._queued[lane] += 1
        # a dead or closed worker is the receiver's business
        with contextlib.suppress(OSError, ValueError):
            self._pipes[lane].send((turn.number, task))
        return True

    def renew(self, job: Job) -> None:
        self._jobs = [job] * len(self._jobs)
        self._check_picklable()
        for pipe in self._pipes:
            with contextlib.suppress(OSError, ValueError):
                pipe.send((RENEW, job))

    def _hear(self, pipe: Connection) -> tuple[Any, ...]:
        turn, kind, body = pipe.recv()
        return turn, kind, pipe.recv_bytes() if kind == "item" else body

    def _heard(self, number: int, message: tuple[Any, ...]) -> None:
        turn_number, kind, body = message
        with self._lock:
            self._queued[number] -= 1
        item: Any = None
        error: BaseException | None = None
        if kind == "item":
            try:
                item = ForkingPickler.loads(body)
            except Exception as exc:  # a class that the parent has not, say
                error = exc
        elif kind == "error":
            error = unpacked_error(body, f"worker process {number}")
        elif kind == "end":
            self._ahead.end_lane(number)
        self._ahead.made(self._turns.pop(turn_number), item, error)
