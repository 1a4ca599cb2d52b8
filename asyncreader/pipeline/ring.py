"""The ring of slots under the reader and the drop-in replacements: owners, order and waits.

::

    FREE --begin--> FILLING --ready()--> READY --take()--> HELD --release()--> FREE
    ring            workers | void()    ring              caller              ring
                            `--> FREE

Guarantees, each tested: a slot has one owner at a time; slots leave in the order in which they were
begun; ``close()`` wakes every waiter. They rest on one rule: a slot's ``state`` changes only under
the ring's lock. Reading, decoding and user code never run under it.

Ctrl-C may come anywhere in the consumer's thread, but CPython looks for it only when a call has
returned, a function begins or a loop turns. Hence three rules. Enter the lock itself, which is one
call of C, and never the Condition: its ``__enter__`` and ``__exit__`` are Python, and Ctrl-C in
them could leave the lock held for ever. Assign what must change together without a call in between.
Enter the lock once, not twice, before a wait: see ``_wait_for``.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from ..system.signals import wait_for


class SlotState(enum.Enum):
    """Owner of a slot: the ring, the workers, the ring again, the caller."""

    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    HELD = "held"


# looked up through the class, a member is a call of Python
_FREE, _FILLING, _READY, _HELD = SlotState


class RingSlot:
    """What the ring knows of a slot.

    ``plan``: what to make; ``item``: what a worker made, if it is not in the slot's own memory;
    ``error``: why it could not; ``step``: how many were begun before it; ``generation``: how often
    it was begun.
    """

    __slots__ = ("error", "generation", "item", "number", "plan", "state", "step")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = _FREE
        self.generation = 0
        self.step = -1
        self.plan: Any = None
        self.item: Any = None
        self.error: BaseException | None = None


S = TypeVar("S", bound=RingSlot)

#: Part lo to hi of a slot: what one worker does at a time.
Task: TypeAlias = tuple[S, int, int]

#: The task of a slot that is not cut into parts.
WHOLE: Final = (0, 1)


class Observer(Protocol):
    """Sees what happens in a ring. Called under its lock, but for ``waited``."""

    def changed(self, slot: RingSlot) -> None:
        """``slot.state`` has changed just now."""

    def waited(self, asked: float, slot: RingSlot | None) -> None:
        """The consumer asked at ``asked`` (perf_counter) and has ``slot`` now, or an error."""


class _Lane(Generic[S]):
    """Tasks for the workers that serve one lane."""

    def __init__(self, work: threading.Condition) -> None:
        self.tasks: deque[Task[S]] = deque()
        self.work = work
        self.idle = 0  # workers waiting


class Ring(Generic[S]):
    """Slots, and the queue of those in flight, oldest first. One lock guards all of it.

    ``holds``: slots that the caller has at most; when it takes one more, the one that it has had
    longest is given back. ``lanes``: queues of tasks, each served by workers of its own.
    ``consumer_begins``: the consumer begins slots itself, so with none in flight it need not wait.
    """

    def __init__(
        self,
        slots: Iterable[S],
        holds: int,
        *,
        lanes: int = 1,
        consumer_begins: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self.slots = list(slots)
        self._holds = holds
        self._consumer_begins = consumer_begins
        self._observer = observer
        self._lock = threading.RLock()
        # One lock with two queues, for workers and for consumers: no thread is woken for nothing.
        # With one queue for both, eight threads took 2.5 times as long for small rows.
        self._cond = threading.Condition(self._lock)
        self._lanes: list[_Lane[S]] = [_Lane(threading.Condition(self._lock)) for _ in range(lanes)]
        self._free = list(self.slots)
        self._returned = self._free  # where slots go that are given back, and the state they get
        self._returned_state = _FREE
        self._queue: deque[S] = deque()
        self._held: tuple[S, ...] = ()  # the one held longest first
        self._kept: tuple[S, ...] = ()  # held until they are given back
        self._begun = 0
        self._waiting = 0  # threads that wait for a state
        self._closed = False
        self._failure: BaseException | None = None
        self._finished = False
        self._end: BaseException | None = None
        #: plan of the slot that left the queue last, whole or failed
        self.left: Any = None

    # -- beginning -------------------------------------------------------------------------

    def claim(self, plan: Any = None, lane: int | None = None) -> S | None:
        """Wait for a free slot and begin ``plan`` in it; None when no more are wanted.

        Its task goes to the workers of ``lane``; without one the caller sees to it.
        """
        with self._lock:
            self._wait_for(lambda: self._finished or bool(self._free))
            if self._closed or self._finished:
                return None
            slot = self._free[-1]
            slot.plan, slot.error = plan, None
            self._begin(slot, () if lane is None else ((slot, *WHOLE),), lane or 0)
            return slot

    def _begin(
        self,
        slot: S,
        tasks: Sequence[Task[S]],
        lane: int = 0,
        counter: memoryview[int] | None = None,
    ) -> None:
        """Begin the last free slot, which is prepared (the lock is held).

        ``counter``: one number, which then goes up by one.
        """
        to = self._lanes[lane]
        if tasks and to.idle:
            try:
                to.work.notify(len(tasks))  # they find the tasks when the lock is free
            except BaseException:
                # Ctrl-C may leave one in the Condition's queue that is awake already: it would be
                # woken in place of a worker the next time
                to.work.notify_all()
                raise
        # no call from here on
        del self._free[-1]
        slot.state = _FILLING
        slot.generation += 1
        slot.step = self._begun
        self._begun += 1
        to.tasks += tasks
        self._queue += (slot,)
        if counter is not None:
            counter[0] += 1
        if self._observer is not None:
            self._observer.changed(slot)

    # -- workers ---------------------------------------------------------------------------

    def next_task(self, lane: int = 0) -> Task[S] | None:
        """Wait for a task in this lane; None when no more will come."""
        with self._lock:
            mine = self._lanes[lane]
            while not (mine.tasks or self._closed or self._finished):
                mine.idle += 1
                try:
                    mine.work.wait()
                finally:
                    mine.idle -= 1
            return None if self._closed or not mine.tasks else mine.tasks.popleft()

    def ready(self, slot: S, error: BaseException | None = None) -> None:
        """A worker is through with the slot: it may be taken, and so may its error."""
        with self._lock:
            if error is not None:
                slot.error = error
            slot.state = _READY
            if self._observer is not None:
                self._observer.changed(slot)
            if self._waiting:
                self._cond.notify_all()

    def void(self, slot: S) -> None:
        """Nothing was made: the slot is free again, and the consumer does not see it."""
        with self._lock:
            self._queue.remove(slot)
            slot.state = _FREE
            self._free += (slot,)
            if self._waiting:
                self._cond.notify_all()

    def finish(self, end: BaseException | None = None) -> None:
        """Begin no more slots; after the last one the consumer gets the error ``end``, if given."""
        with self._lock:
            self._finished = True
            self._end = self._end or end
            self._wake_all()

    # -- the consumer ----------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> tuple[S, BaseException | None] | None:
        """Wait for the oldest slot, which then is the caller's; None after the last one.

        One that failed comes with its error, and is free. Raises the error that ended the ring.
        """
        with self._lock:
            slot = self._oldest(timeout)
            return None if slot is None else (slot, self._hand_over(slot))

    def take_item(self) -> tuple[Any] | None:
        """Wait for the oldest item; None after the last one. For a ring with ``holds=0``.

        Raises the item's error, and the one that ended the ring.
        """
        with self._lock:
            slot = self._oldest(None)
            if slot is None:
                return None
            item = slot.item
            error = self._hand_over(slot)
        if error is not None:
            raise error
        return (item,)

    def release(self, slot: S, generation: int) -> bool:
        """Give a held slot back; False if it was given back before."""
        with self._lock:
            if slot.generation != generation or slot.state is not _HELD:
                return False
            held, kept = _without(slot, self._held), _without(slot, self._kept)
            if self._waiting:
                self._cond.notify_all()  # they find it when the lock is free
            # no call from here on
            self._held, self._kept = held, kept
            slot.item = None
            slot.state = self._returned_state
            self._returned += (slot,)
            if self._observer is not None and self._returned is self._free:
                self._observer.changed(slot)
            return True

    def wait_filled(self) -> bool:
        """Wait until no slot is being filled; False if the ring was closed meanwhile."""
        with self._lock:
            self._wait_for(self._all_filled)
            return not self._closed

    # -- all -------------------------------------------------------------------------------

    def close(self, failure: BaseException | None = None) -> None:
        """Refuse everything from now on and wake every waiter; idempotent."""
        with self._lock:
            self._closed = True
            self._failure = self._failure or failure
            for lane in self._lanes:
                lane.tasks.clear()
            self._wake_all()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    @property
    def over(self) -> bool:
        """Whether no more slots will come."""
        with self._lock:
            return self._closed or (self._finished and not self._queue)

    def counts(self) -> dict[str, int]:
        """Slots by owner: free, filling, ready, held (and of these, kept)."""
        with self._lock:
            counted = {state.value: 0 for state in SlotState}
            for slot in self.slots:
                state = _READY if self._is_ready(slot) else slot.state
                counted[state.value] += 1
            counted["kept"] = len(self._kept)
            return counted

    def in_flight_now(self) -> int:
        """Slots begun and not yet taken."""
        with self._lock:
            return len(self._queue)

    # -- inside (the lock is held) ---------------------------------------------------------

    def _oldest(self, timeout: float | None) -> S | None:
        """Wait for the oldest slot. Where there is none to be had: None, or an error."""
        queue = self._queue
        if self._closed or not queue or not self._is_ready(queue[0]):
            self._wait_for(self._can_take, timeout)
            if self._closed or not queue or not self._is_ready(queue[0]):
                self._refuse(timeout)
                return None
        return queue[0]

    def _can_take(self) -> bool:
        if self._queue:
            return self._is_ready(self._queue[0])
        return self._finished or self._consumer_begins

    def _refuse(self, timeout: float | None) -> None:
        """Raise what the consumer gets instead of a slot, if there is such an error."""
        failure = self._failure if self._closed else self._end
        if failure is not None:
            raise failure

    def _hand_over(self, slot: S) -> BaseException | None:
        """The oldest slot leaves the queue: the caller has it, or its error and nobody the slot."""
        error, held = slot.error, self._held
        back: S | None = slot
        if error is None:
            held, back = (*held, slot), None
            if len(held) > self._holds:
                back, held = held[0], held[1:]
        if self._waiting:
            self._cond.notify_all()  # they see what is left when the lock is free
        observer = self._observer
        # no call from here on
        if error is None:
            slot.state = _HELD
        slot.error = None
        self._held = held
        self.left = slot.plan
        del self._queue[0]
        if back is not None:
            back.item = None
            back.state = self._returned_state
            self._returned += (back,)
        if observer is not None:
            if error is None:
                observer.changed(slot)
            if back is not None and self._returned is self._free:
                observer.changed(back)
        return error

    def _is_ready(self, slot: S) -> bool:
        return slot.state is _READY

    def _all_filled(self) -> bool:
        return all(map(self._is_ready, self._queue))

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for ``condition`` or close(). After Ctrl-C, too, the lock is held."""
        self._waiting += 1  # whoever changes a state wakes only those counted here
        try:
            wait_for(self._cond, self._lock, lambda: self._closed or condition(), timeout)
        finally:
            self._waiting -= 1

    def _wake_all(self) -> None:
        self._cond.notify_all()
        for lane in self._lanes:
            lane.work.notify_all()


def _without(slot: S, slots: tuple[S, ...]) -> tuple[S, ...]:
    if slot not in slots:
        return slots
    at = slots.index(slot)
    return slots[:at] + slots[at + 1 :]
