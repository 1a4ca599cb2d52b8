"""Items made ahead: so many at most, handed out in the order in which they were begun.

Ctrl-C may come anywhere in the consumer's thread. Hence three rules, as in pipeline/ring.py: enter
the lock itself and never a Condition, change what belongs together without a call in between, and
wake others before that change. They find it when the lock is free.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ..system.signals import wait_for


class Turn:
    """One item, from when it is begun until it is handed out.

    ``number``: how many were begun before it; ``place``: which of the places it takes up; ``task``:
    what to make. Once it is ``done`` it has its ``item`` or an ``error``.
    """

    __slots__ = ("done", "error", "item", "number", "place", "task")

    def __init__(self, number: int, place: int, task: Any) -> None:
        self.number = number
        self.place = place
        self.task = task
        self.done = False
        self.item: Any = None
        self.error: BaseException | None = None


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
        self._alive = list(range(lanes))
        self._tasks: list[deque[Turn]] = [deque() for _ in range(lanes)]
        self._begun = 0
        self._finished = self._closed = False
        self._end: BaseException | None = None

    # -- workers: Ctrl-C never comes here --------------------------------------------------

    def begin(self, task: Any = None, lane: int | None = None) -> Turn | None:
        """Wait for a free place and begin a turn in it; None when no more are wanted.

        Its task goes to the workers of ``lane``; without one the caller sees to it.
        """
        with self._lock:
            self._room.wait_for(lambda: self._free or self._closed or self._finished)
            if self._closed or self._finished:
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
            self._work.wait_for(lambda: turns or self._closed or self._finished)
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

    def alive(self) -> list[int]:
        """The lanes that have not ended."""
        return self._alive

    def end_lane(self, lane: int) -> None:
        """This lane has no more items; with the last lane it is finished."""
        with self._lock:
            self._alive = [other for other in self._alive if other != lane]
            if not self._alive:
                self.finish()

    def wait_made(self) -> bool:
        """Wait until no item is being made; False if it was closed meanwhile."""
        with self._lock:
            self._made.wait_for(lambda: self._closed or all(turn.done for turn in self._turns))
            return not self._closed

    # -- the consumer ----------------------------------------------------------------------

    def take(self) -> Turn | None:
        """Wait for the oldest turn; None after the last one, or what ended it is raised.

        A turn that failed has given its place back.
        """
        with self._lock:
            wait_for(self._made, self._lock, self._can_take)
            if self._closed or not self._turns:
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
        if self._closed or not self._turns:
            return self._closed or self._finished
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
            if not self._closed:
                self._end = failure
                self._closed = True
            for turns in self._tasks:
                turns.clear()
            self._wake_all()

    def _wake_all(self) -> None:
        for queue in (self._room, self._work, self._made):
            queue.notify_all()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    @property
    def over(self) -> bool:
        """Whether no more turns will come."""
        with self._lock:
            return self._closed or (self._finished and not self._turns)
