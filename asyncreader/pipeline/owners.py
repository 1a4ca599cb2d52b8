"""Who owns a slot: its state, and the lists of a ring, with each change of owner in one piece.

The state is one number in memory. It alone says when a slot is READY: ``SlotRing.ready()`` writes
that, or compiled code that has filled the slot without the GIL (fill_queue.py).
"""

from __future__ import annotations

import enum
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from ..errors import QueueFullError, WorkerError


class SlotState(enum.Enum):
    """Owner of a slot: the ring, the workers, the ring again, the caller."""

    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    HELD = "held"


#: The states as they are written to ``RingSlot.mark``. REFUSED is FILLING by compiled code that has
#: found a wrong checksum: the workers fill the slot anew.
FREE, FILLING, READY, HELD, REFUSED = range(5)
_STATES: Final[tuple[SlotState, ...]] = (*SlotState, SlotState.FILLING)


class RingSlot:
    """What the ring knows of a slot.

    ``mark``: one int64, the number of its state; ``plan``: what to make; ``error``: why a worker
    could not, and ``error_at``: in which part; ``parts``: tasks that it was cut into, of which
    ``parts_left`` are not done; ``generation``: how often it was begun.
    """

    __slots__ = (
        *("error", "error_at", "generation", "mark", "number"),
        *("parts", "parts_left", "plan"),
    )

    def __init__(self, number: int) -> None:
        self.number = number
        # its items are read and written without a call
        self.mark: memoryview[int] = memoryview(array("q", (FREE,)))
        self.generation = 0
        self.plan: Any = None
        self.error: BaseException | None = None
        self.error_at = 0
        self.parts = self.parts_left = 0

    @property
    def state(self) -> SlotState:
        """Who owns it now."""
        return _STATES[self.mark[0]]

    def prepare(self, plan: Any, parts: int) -> list[tuple[Self, int, int]]:
        """Get ready for ``plan``, which is not begun yet: the ``parts`` tasks that it is cut into.

        Called under the ring's lock.
        """
        self.plan, self.error = plan, None
        self.parts = self.parts_left = parts
        return [(self, *WHOLE)] * parts


S = TypeVar("S", bound=RingSlot)

#: Part lo to hi of a slot: what one worker does at a time.
Task: TypeAlias = tuple[S, int, int]

#: The task of a slot that is not cut into parts.
WHOLE: Final = (0, 1)

#: The task of a worker that is to serve the fill queue, in place of the first and last row to fill.
SERVE: Final = (-1, -1)


class Observer(Protocol):
    """Sees what happens in a ring. Called under its lock, but for ``waited``."""

    def changed(self, slot: RingSlot) -> None:
        """``slot.state`` may have changed since the last call."""

    def waited(self, asked: float, slot: RingSlot | None) -> None:
        """The consumer asked at ``asked`` (perf_counter) and has ``slot`` now, or an error."""


class Owners(Generic[S]):
    """Which slots are whose: ``free``, ``queue`` (in flight, oldest first), ``held`` (one at
    most), ``kept`` (held until given back), ``used`` (given back, to be cleaned before free).

    Each method is one change, under the ring's lock. It calls nothing between its first assignment
    and its last: Ctrl-C comes before the change, or behind it. ``in_flight``: see SlotRing;
    ``cleaned``: whether slots are cleaned.
    """

    def __init__(
        self,
        slots: Sequence[S],
        in_flight: int,
        cleaned: bool,
        observer: Observer | None,
    ) -> None:
        self.free, self.used = list(slots), list[S]()
        self.queue: deque[S] = deque()
        self.held: tuple[S, ...] = ()
        self.kept: tuple[S, ...] = ()
        #: see SlotRing.left
        self.left: Any = None
        self._in_flight = in_flight
        self._observer = observer
        # where slots go that are given back, the state they get, and who sees it
        self._back_to, self._back = (self.used, FILLING) if cleaned else (self.free, FREE)
        self._back_seen = None if cleaned else observer

    def room(self) -> bool:
        """Whether one more slot may be begun."""
        return len(self.queue) < self._in_flight - len(self.kept) and bool(self.free)

    def check_room(self) -> None:
        """QueueFullError where no more slots may be begun."""
        if not self.room():
            raise QueueFullError(
                "every slot is in use",
                found=f"{len(self.queue)} batches in flight, {len(self.kept)} kept",
                expected=f"at most njob = {self._in_flight} together",
                hint="call getNextBatch() first, or raise njob",
            )

    def begin(
        self, tasks_left: deque[Task[S]], tasks: Sequence[Task[S]], counter: memoryview[int] | None
    ) -> None:
        """The last free slot, which is prepared, is the workers'; ``counter`` goes up by one."""
        slot = self.free[-1]
        del self.free[-1]
        slot.mark[0] = FILLING
        slot.generation += 1
        tasks_left += tasks
        self.queue += (slot,)
        if counter is not None:
            counter[0] += 1
        if self._observer is not None:
            self._observer.changed(slot)

    def again(self, tasks_left: deque[Task[S]], slot: S, tasks: Sequence[Task[S]]) -> None:
        """The workers have more to do for a slot in flight."""
        slot.mark[0] = FILLING
        tasks_left += tasks

    def drop(self, tasks_left: deque[Task[S]]) -> None:
        """The last of ``tasks_left`` is dropped: its slot stays in flight, with an error."""
        slot, lo, _ = tasks_left[-1]
        error = WorkerError("this batch was dropped by an interrupted seek()")
        # no call from here on
        del tasks_left[-1]
        if lo >= 0:
            slot.error = error
            slot.parts_left -= 1
            if slot.parts_left == 0:
                slot.mark[0] = READY

    def forget(self) -> None:
        """The newest slot in flight is given back."""
        slot = self.queue[-1]
        slot.error = None
        slot.mark[0] = self._back
        self._back_to += (slot,)
        del self.queue[-1]
        if self._back_seen is not None:
            self._back_seen.changed(slot)

    def hand_over(self) -> BaseException | None:
        """The oldest slot leaves the queue: the caller has it, or its error and nobody the slot."""
        slot, held = self.queue[0], self.held
        error = slot.error
        back: S | None = slot
        if error is None:
            held, back = (slot,), next(iter(held), None)
        # no call from here on
        if error is None:
            slot.mark[0] = HELD
        slot.error = None
        self.held = held
        self.left = slot.plan
        del self.queue[0]
        if back is not None:
            back.mark[0] = self._back
            self._back_to += (back,)
        if self._observer is not None and error is None:
            self._observer.changed(slot)
        if self._back_seen is not None and back is not None:
            self._back_seen.changed(back)
        return error

    def give_back(self, slot: S) -> None:
        """A slot that is held or kept is given back."""
        held, kept = _without(slot, self.held), _without(slot, self.kept)
        # no call from here on
        self.held, self.kept = held, kept
        slot.mark[0] = self._back
        self._back_to += (slot,)
        if self._back_seen is not None:
            self._back_seen.changed(slot)

    def keep(self, slot: S) -> None:
        """A slot that is held is kept. Raises QueueFullError."""
        if slot in self.kept:
            return
        if len(self.kept) >= self._in_flight - 1:
            raise QueueFullError(
                "no more batches can be kept",
                found=f"{len(self.kept)} kept",
                expected=f"at most njob - 1 = {self._in_flight - 1}",
                hint="release() one, or raise njob",
            )
        held = _without(slot, self.held)
        # no call from here on
        self.held = held
        self.kept += (slot,)

    def clean(self) -> None:
        """The slot that was used first is clean, and free."""
        slot = self.used[0]
        del self.used[0]
        slot.mark[0] = FREE
        self.free += (slot,)
        if self._observer is not None:
            self._observer.changed(slot)


def _without(slot: S, slots: tuple[S, ...]) -> tuple[S, ...]:
    if slot not in slots:
        return slots
    at = slots.index(slot)
    return slots[:at] + slots[at + 1 :]
