"""Worker groups that make the items of an enqueuer: threads, or spawned processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from ..pipeline.owners import RingSlot
from ..pipeline.process_group import ProcessGroup
from ..pipeline.ring import Ring
from ..pipeline.threads import join_or_leave
from ..system.signals import after_this
from .jobs import RENEW, Ended, Job, unpacked_error, worker_main

#: Told the lane of a job that has no more items.
OnEnd = Callable[[int], None]


class WorkerGroup(Protocol):
    """Workers over a ring."""

    def start(self) -> None:
        """Begin to wait for tasks. ParamsError if a job cannot be sent to a process."""

    def give(self, task: Any, lane: int) -> bool:
        """Wait for a free slot, and let the job of this lane do ``task`` in it.

        False when no more are wanted.
        """

    def renew(self, job: Job) -> None:
        """Use another job for later tasks; called while no item is being made."""

    def stop(self, seconds: float) -> None:
        """End the workers of a closed ring."""


def worker_group(
    processes: bool, ring: Ring[RingSlot], jobs: Sequence[Job], lanes: Sequence[int], ended: OnEnd
) -> WorkerGroup:
    """Workers for ``jobs``: processes, or threads that serve ``lanes``."""
    if processes:
        return SpawnedGroup(ring, jobs, ended)
    return ThreadGroup(ring, jobs, lanes, ended)


class ThreadGroup:
    """Threads, one for each of ``jobs``; thread ``i`` serves lane ``lanes[i]``."""

    def __init__(
        self, ring: Ring[RingSlot], jobs: Sequence[Job], lanes: Sequence[int], ended: OnEnd
    ) -> None:
        self._ring = ring
        self._threads = [
            threading.Thread(
                target=_work,
                args=(ring, lane, job, ended),
                name=f"asyncreader-enqueue-{number}",
                daemon=True,
            )
            for number, (job, lane) in enumerate(zip(jobs, lanes, strict=True))
        ]

    def start(self) -> None:
        with after_this():
            for thread in self._threads:
                thread.start()

    def give(self, task: Any, lane: int) -> bool:
        return self._ring.claim(task, lane) is not None

    def renew(self, job: Job) -> None:
        pass  # threads use the object itself

    def stop(self, seconds: float) -> None:
        join_or_leave(self._threads, seconds)


def _work(ring: Ring[RingSlot], lane: int, job: Job, ended: OnEnd) -> None:
    while (task := ring.next_task(lane)) is not None:
        slot = task[0]
        try:
            item = job(slot.plan)
        except Ended:
            ended(lane)
            ring.void(slot)
        except BaseException as exc:
            ring.ready(slot, exc)
        else:
            if item is None:
                ring.void(slot)
            else:
                slot.item = item
                ring.ready(slot)
        # an item may be large: it is the consumer's alone now
        item = None
        del task, slot


class SpawnedGroup(ProcessGroup):
    """Spawned processes, one for each of ``jobs``. Lane ``i`` is process ``i``; -1 is any."""

    instead = "use_multiprocessing=False"
    _ring: Ring[RingSlot]

    def __init__(self, ring: Ring[RingSlot], jobs: Sequence[Job], ended: OnEnd) -> None:
        super().__init__(len(jobs), ring, "asyncreader-enqueue")
        self._jobs = jobs
        self._ended = ended

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
        slot = self._ring.claim()
        if slot is None:
            return False
        if lane < 0:
            lane = self._least_busy()
        else:
            with self._lock:
                self._queued[lane] += 1
        # a dead or closed worker is the receiver's business
        with contextlib.suppress(OSError, ValueError):
            self._pipes[lane].send((slot.number, task))
        return True

    def renew(self, job: Job) -> None:
        self._jobs = [job] * len(self._jobs)
        self._check_picklable()
        for pipe in self._pipes:
            with contextlib.suppress(OSError, ValueError):
                pipe.send((RENEW, job))

    def _hear(self, pipe: Connection) -> tuple[Any, ...]:
        slot_number, kind, body = pipe.recv()
        return slot_number, kind, pipe.recv_bytes() if kind == "item" else body

    def _heard(self, number: int, message: tuple[Any, ...]) -> None:
        slot_number, kind, body = message
        with self._lock:
            self._queued[number] -= 1
        slot = self._ring.slots[slot_number]
        if kind == "item":
            try:
                slot.item = ForkingPickler.loads(body)
            except Exception as exc:  # a class that the parent has not, say
                self._ring.ready(slot, exc)
            else:
                self._ring.ready(slot)
        elif kind == "error":
            self._ring.ready(slot, unpacked_error(body, f"worker process {number}"))
        else:
            if kind == "end":
                self._ended(number)
            self._ring.void(slot)
