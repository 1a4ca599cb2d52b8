"""Who owns a slot: its state, and the lists of a ring, with each change of owner in one piece.

The state is one number in memory. It alone says when a slot is READY: ``SlotRing.ready()`` writes
that, or compiled code that has filled the slot without the GIL (fill_queue.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from ..errors import QueueFullError, WorkerError
from .slots import FILLING, FREE, HELD, READY, Slot, Task

#: The task of a worker that is to serve the fill queue, in place of the first and last row to fill.
SERVE: Final = (-1, -1)


class Observer(Protocol):
    """Sees what happens in a ring. Called under its lock, but for ``waited``."""

    def changed(self, slot: Slot) -> None:
        """``slot.state`` may have changed since the last call."""

    def waited(self, asked: float, slot: Slot | None) -> None:
        """The consumer asked at ``asked`` (perf_counter) and has ``slot`` now, or an error."""


class Owners:
    """Which slots are whose: ``free``, ``queue`` (in flight, oldest first), ``held`` (one at
    most), ``kept`` (held until given back).

    Each method is one change, under the ring's lock. It calls nothing between its first assignment
    and its last: Ctrl-C comes before the change, or behind it. ``in_flight``, ``debug``: see
    SlotRing.
    """

    def __init__(
        self, slots: Sequence[Slot], in_flight: int, debug: bool, observer: Observer | None
    ) -> None:
        self.free = list(slots)
        self.queue: deque[Slot] = deque()
        self.held: tuple[Slot, ...] = ()
        self.kept: tuple[Slot, ...] = ()
        #: see SlotRing.left
        self.left: Any = None
        self._in_flight = in_flight
        self._observer = observer
        self._debug = debug

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
        self, tasks_left: deque[Task], tasks: Sequence[Task], counter: memoryview[int] | None
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

    def again(self, tasks_left: deque[Task], slot: Slot, tasks: Sequence[Task]) -> None:
        """The workers have more to do for a slot in flight."""
        slot.mark[0] = FILLING
        tasks_left += tasks

    def drop(self, tasks_left: deque[Task]) -> None:
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
        slot.mark[0] = FREE
        self.free += (slot,)
        del self.queue[-1]
        if self._observer is not None:
            self._observer.changed(slot)

    def hand_over(self) -> BaseException | None:
        """The oldest slot leaves the queue: the caller has it, or its error and nobody the slot."""
        slot, held = self.queue[0], self.held
        error = slot.error
        back: Slot | None = slot
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
            back.mark[0] = FREE
            self.free += (back,)
        if self._debug and back is not None:
            back.poison()
        if self._observer is not None:
            self._observer.changed(slot)
            if back is not None:
                self._observer.changed(back)
        return error

    def give_back(self, slot: Slot) -> None:
        """A slot that is held or kept is given back."""
        held, kept = _without(slot, self.held), _without(slot, self.kept)
        # no call from here on
        self.held, self.kept = held, kept
        slot.mark[0] = FREE
        self.free += (slot,)
        if self._debug:
            slot.poison()
        if self._observer is not None:
            self._observer.changed(slot)

    def keep(self, slot: Slot) -> None:
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


def _without(slot: Slot, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    if slot not in slots:
        return slots
    at = slots.index(slot)
    return slots[:at] + slots[at + 1 :]
