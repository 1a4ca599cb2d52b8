"""The workers of an enqueuer: threads, each of which may have a spawned process do its job."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ..pipeline.children import Children, death_of, join_or_leave, packed_error, unpacked_error
from ..system.signals import after_this, end_with_parent
from .ahead import Ahead
from .jobs import Ended, Job


class Workers:
    """A thread for each of ``jobs``, and one that begins tasks where ``ahead`` has a free place.

    ``tasks``: gives the (lane, task) of all turns, for these workers. Worker ``i`` serves lane
    ``i``, or all of them serve the only one. With ``processes`` each has a process of its own,
    which does the job.
    """

    def __init__(
        self,
        ahead: Ahead,
        jobs: Sequence[Job],
        tasks: Callable[[Workers], Iterator[tuple[int, Any]]],
        processes: bool,
    ) -> None:
        self.ahead = ahead
        self.processes = processes
        self._jobs = jobs
        self._tasks = tasks
        self._children = (
            Children("asyncreader-enqueue", "use_multiprocessing=False") if processes else None
        )
        self._in_children: list[_InChild] = []
        self._threads: list[threading.Thread] = []
        self._stopping = threading.RLock()
        self._pid = os.getpid()

    def start(self) -> None:
        """Start all. ParamsError where a job cannot be sent to a process."""
        jobs = self._jobs
        if self._children is not None:
            self._check_picklable(jobs)
            self._children.start(_serve, list(enumerate(jobs)))
            pairs = zip(self._children.processes, self._children.pipes, strict=True)
            jobs = self._in_children = [_InChild(self.ahead, *pair) for pair in pairs]
        with after_this():
            for number, job in enumerate(jobs):
                lane = number % self.ahead.lanes
                self._run(f"asyncreader-enqueue-{number}", _work, self.ahead, lane, job)
            self._run("asyncreader-dispatch", _dispatch, self.ahead, self._tasks(self))

    def _run(self, name: str, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _check_picklable(self, jobs: Sequence[Job]) -> None:
        assert self._children is not None
        for job in jobs:
            self._children.check_picklable(
                "what the workers are to do",
                job,
                "use functions and classes defined at the top of a module, and let each open its "
                "files itself when it is first used",
            )

    def renew(self, job: Job) -> None:
        """Use another job for later tasks; called while no item is being made."""
        if self._children is not None:  # threads use the object itself
            self._check_picklable([job])
            for worker in self._in_children:
                worker.renewed = job

    def stop(self, seconds: float) -> None:
        """End everything. It may be called again, as after Ctrl-C. In a forked child, which has
        none of the threads, it does nothing."""
        if os.getpid() != self._pid:
            return
        self.ahead.close()
        with self._stopping:
            try:
                if self._children is not None:
                    self._children.end(self._threads, seconds)
            finally:
                join_or_leave(self._threads, seconds)


def _dispatch(ahead: Ahead, tasks: Iterator[tuple[int, Any]]) -> None:
    """Begin tasks in order, one for each free place."""
    try:
        for lane, task in tasks:
            if ahead.begin(task, lane) is None:
                return
    except BaseException as exc:  # of the user's on_epoch_end or __len__
        ahead.finish(exc)


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


class _InChild:
    """A job that a spawned process does, one task at a time."""

    def __init__(self, ahead: Ahead, process: Any, pipe: Connection) -> None:
        self._ahead = ahead
        self._process = process
        self._pipe = pipe
        #: sent with the next task: the process uses it from then on
        self.renewed: Job | None = None

    def __call__(self, task: Any) -> Any:
        try:
            self._pipe.send((self.renewed, task))
            self.renewed = None
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):  # it died, or stop() ended it
            if not self._ahead.closed:
                self._ahead.close(death_of(self._process))
            raise Ended from None
        item, packed = ForkingPickler.loads(answer)
        if packed is not None:
            raise unpacked_error(packed)
        return item


def _serve(pipe: Connection, number: int, job: Job) -> None:
    """In a worker process: do tasks until the parent closes the pipe."""
    end_with_parent()
    try:
        pipe.send(None)  # started: no error
        while True:
            renewed, task = pipe.recv()
            job = job if renewed is None else renewed
            try:
                answer = ForkingPickler.dumps((job(task), None))
            except BaseException as exc:
                answer = ForkingPickler.dumps((None, packed_error(exc, f"worker process {number}")))
            pipe.send_bytes(answer)
    except (EOFError, OSError):
        return  # the parent is gone, or wants no more
