"""Items made ahead: a queue of so many at most, and the workers that make them.

Items are handed out in the order in which they were begun. Workers are threads, each of which may
have a spawned process do its job.

Ctrl-C may come anywhere in the consumer's thread. Hence three rules, as in pipeline/ring.py: enter
the lock itself and never a Condition, change what belongs together without a call in between, and
wake others before that change. They find it when the lock is free.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

from ..pipeline import children
from ..pipeline.children import STUCK_AFTER, Children, join_or_leave, packed_error
from ..system.signals import after_this, end_with_parent, wait_for


class Ended(Exception):
    """Raised by a job whose iterator has no more items."""


#: Makes the item of one task; Ended where there are no more.
Job: TypeAlias = Callable[[Any], Any]


@dataclass(slots=True, eq=False)
class Turn:
    """One item, from when it is begun until it is handed out.

    ``number``: how many were begun before it; ``place``: which of the places it takes up; ``task``:
    what to make. Once it is ``done`` it has its ``item`` or an ``error``.
    """

    number: int
    place: int
    task: Any
    done: bool = False
    item: Any = None
    error: BaseException | None = None


class Ahead:
    """A queue of turns, oldest first, each in one of ``places`` places.

    A place is free again when its item is handed out; with ``lends``, when the consumer gives it
    back. ``lanes``: queues of tasks, each served by workers of its own.
    """

    def __init__(self, places: int, *, lanes: int = 1, lends: bool = False) -> None:
        self._lock = threading.RLock()
        # three queues of one lock, so that few threads are woken for nothing
        self._room = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._made = threading.Condition(self._lock)
        self._free = list(range(places))
        self._lends = lends
        self._lent = [False] * places
        self._turns: deque[Turn] = deque()
        self.lanes = lanes
        #: the lanes that have not ended
        self.alive = list(range(lanes))
        self._tasks: list[deque[Turn]] = [deque() for _ in range(lanes)]
        self._begun = 0
        #: ``closed``: whether close() was called
        self._finished = self.closed = False
        self._end: BaseException | None = None

    # -- workers: Ctrl-C never comes here --------------------------------------------------

    def begin(self, task: Any = None, lane: int | None = None) -> Turn | None:
        """Wait for a free place and begin a turn in it; None when no more are wanted.

        Its task goes to the workers of ``lane``; without one the caller sees to it.
        """
        with self._lock:
            self._room.wait_for(lambda: self._free or self.closed or self._finished)
            if self.closed or self._finished:
                return None
            turn = Turn(self._begun, self._free.pop(), task)
            self._begun += 1
            self._turns.append(turn)
            if lane is not None:
                self._tasks[lane].append(turn)
                self._work.notify_all()
            return turn

    def next_turn(self, lane: int) -> Turn | None:
        """Wait for a turn to make in this lane; None when no more will come."""
        turns = self._tasks[lane]
        with self._lock:
            self._work.wait_for(lambda: turns or self.closed or self._finished)
            return turns.popleft() if turns else None

    def made(self, turn: Turn, item: Any, error: BaseException | None = None) -> None:
        """A turn has its item, or its error. None is no item: the consumer does not see it."""
        with self._lock:
            turn.item, turn.error, turn.done = item, error, True
            if item is None and error is None:
                self._turns.remove(turn)
                self._free.append(turn.place)
                self._room.notify_all()
            self._made.notify_all()

    def end_lane(self, lane: int) -> None:
        """This lane has no more items; with the last lane it is finished."""
        with self._lock:
            self.alive = [other for other in self.alive if other != lane]
            if not self.alive:
                self.finish()

    def wait_made(self) -> bool:
        """Wait until no item is being made; False if it was closed meanwhile."""
        with self._lock:
            self._made.wait_for(lambda: self.closed or all(turn.done for turn in self._turns))
            return not self.closed

    # -- the consumer ----------------------------------------------------------------------

    def take(self) -> Turn | None:
        """Wait for the oldest turn; None after the last one, or what ended it is raised.

        A turn that failed has given its place back.
        """
        with self._lock:
            wait_for(self._made, self._lock, self._can_take)
            if self.closed or not self._turns:
                if self._end is not None:
                    raise self._end
                return None
            turn = self._turns[0]
            lent = self._lends and turn.error is None
            self._room.notify_all()
            # no call from here on: Ctrl-C comes before the change, or after it
            del self._turns[0]
            self._lent[turn.place] = lent
            if not lent:
                self._free += (turn.place,)
        return turn

    def _can_take(self) -> bool:
        if self.closed or not self._turns:
            return self.closed or self._finished
        return self._turns[0].done

    def give_back(self, place: int) -> bool:
        """Free a place that was lent; False if it is not."""
        with self._lock:
            if not self._lent[place]:
                return False
            self._room.notify_all()
            # no call from here on
            self._lent[place] = False
            self._free += (place,)
        return True

    # -- the end ---------------------------------------------------------------------------

    def finish(self, end: BaseException | None = None) -> None:
        """Begin no more turns; after the last one the consumer gets the error ``end``, if given."""
        with self._lock:
            self._finished = True
            self._end = self._end or end
            self._wake_all()

    def close(self, failure: BaseException | None = None) -> None:
        """Drop everything and wake every waiter; the consumer gets ``failure``. Idempotent."""
        with self._lock:
            if not self.closed:
                self._end = failure
                self.closed = True
            for turns in self._tasks:
                turns.clear()
            self._wake_all()

    def _wake_all(self) -> None:
        for queue in (self._room, self._work, self._made):
            queue.notify_all()

    @property
    def over(self) -> bool:
        """Whether no more turns will come."""
        with self._lock:
            return self.closed or (self._finished and not self._turns)


class Crew:
    """Threads that work for one queue."""

    def __init__(self, ahead: Ahead) -> None:
        self.ahead = ahead
        self.threads: list[threading.Thread] = []
        self._pid = os.getpid()

    def run(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        """Start a thread."""
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def stop(self, seconds: float = STUCK_AFTER) -> None:
        """End everything. It may be called again, as after Ctrl-C. In a forked child, which has
        none of the threads, it does nothing."""
        if os.getpid() == self._pid:
            self.ahead.close()
            try:
                self._end_processes(seconds)
            finally:
                join_or_leave(self.threads, seconds)

    def _end_processes(self, seconds: float) -> None:
        """There are none."""


class Workers(Crew):
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
        super().__init__(ahead)
        self.processes, self._jobs, self._tasks = processes, jobs, tasks
        self._children = Children("asyncreader-enqueue", "use_multiprocessing=False")
        self._in_children: list[_InChild] = []
        self._stopping = threading.RLock()

    def start(self) -> None:
        """Start all. ParamsError where a job cannot be sent to a process."""
        jobs = self._jobs
        if self.processes:
            self._check_picklable(jobs)
            self._children.start(_serve, list(enumerate(jobs)))
            pairs = zip(self._children.processes, self._children.pipes, strict=True)
            jobs = self._in_children = [_InChild(self.ahead, *pair) for pair in pairs]
        with after_this():
            for number, job in enumerate(jobs):
                lane = number % self.ahead.lanes
                self.run(f"asyncreader-enqueue-{number}", _work, self.ahead, lane, job)
            self.run("asyncreader-dispatch", _dispatch, self.ahead, self._tasks(self))

    def _check_picklable(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._children.check_picklable(
                "what the workers are to do",
                job,
                "use functions and classes defined at the top of a module, and let each open its "
                "files itself when it is first used",
            )

    def renew(self, job: Job) -> None:
        """Use another job for later tasks; called while no item is being made."""
        if self.processes:  # threads use the object itself
            self._check_picklable([job])
            for worker in self._in_children:
                worker.renewed = job

    def _end_processes(self, seconds: float) -> None:
        with self._stopping:
            if self.processes:
                self._children.end(self.threads, seconds)


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


@dataclass(eq=False)
class _InChild:
    """A job that a spawned process does, one task at a time. ``renewed``: another job, which goes
    with the next task: the process does it from then on."""

    ahead: Ahead
    process: Any
    pipe: Connection
    renewed: Job | None = None

    def __call__(self, task: Any) -> Any:
        try:
            self.pipe.send((self.renewed, task))
            self.renewed = None
            answer = self.pipe.recv_bytes()
        except (EOFError, OSError):  # it died, or stop() ended it
            if not self.ahead.closed:
                self.ahead.close(children.death_of(self.process))
            raise Ended from None
        item, packed = ForkingPickler.loads(answer)
        if packed is not None:
            raise children.unpacked_error(packed)
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


def asked_for(function: Callable[..., Any], given: tuple[str, ...] = ()) -> int:
    """Positional arguments that ``function`` cannot be called without, but for those ``given``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a C function without a signature
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        p.kind in positional and p.default is inspect.Parameter.empty and p.name not in given
        for p in parameters
    )
