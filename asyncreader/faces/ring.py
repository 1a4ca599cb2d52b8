"""The buffer ring of the drop-in replacements: workers begin slots, a consumer holds any number.

::

    FREE --claim()--> FILLING --ready()--> READY --hold()--> HELD --give_back()--> FREE
    ring                 | worker          ring             caller                 ring
                         `---void()---> FREE

States, queue, lock and the rules against Ctrl-C are those of
:class:`~asyncreader.pipeline.slots.SlotRing`. Two things differ: workers decide which item begins
next, and a ring can be finished: it hands out its last items and takes no new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from ..pipeline.slots import Slot, SlotRing, SlotState

_NOTHING: Final = np.empty(0, np.uint8)

# looked up through the class, a member is a call of Python
_FREE, _FILLING, _, _HELD = SlotState


class Buffer(Slot):
    """A slot for any object: the caller's own batch, or whatever a worker made.

    ``item``: that object; ``task``: what to make; ``step``: how many were begun before it.
    """

    __slots__ = ("item", "step", "task")

    def __init__(self, number: int, item: Any = None) -> None:
        super().__init__(number, _NOTHING, None, _NOTHING, None)
        self.item = item
        self.task: Any = None
        self.step = -1


class BufferRing(SlotRing):
    """The slots of one drop-in replacement. Items leave in the order in which they were begun.

    ``lanes``: queues that tasks can be assigned to, each served by workers of its own.
    """

    def __init__(self, slots: Iterable[Buffer], lanes: int = 0) -> None:
        self.buffers = list(slots)
        super().__init__(list(self.buffers), len(self.buffers))
        self._lanes: list[deque[Buffer]] = [deque() for _ in range(lanes)]
        self._begun = 0
        self._finished = False
        self._end: BaseException | None = None

    # -- worker side -----------------------------------------------------------------------

    def claim(self) -> Buffer | None:
        """Wait for a free slot and begin the next item in it; None when no more are wanted."""
        with self._lock:
            self._cond.wait_for(lambda: self._stopping or bool(self._free))
            if self._stopping:
                return None
            slot = _buffer(self._free.pop())
            slot.state = _FILLING
            slot.generation += 1
            slot.step = self._begun
            self._begun += 1
            self._queue.append(slot)
            return slot

    def assign(self, slot: Buffer, lane: int) -> None:
        """Leave a claimed slot to the workers of a lane."""
        with self._lock:
            if self._stopping:  # the workers may have ended: none would fill it
                self.void(slot)
                return
            self._lanes[lane].append(slot)
            self._cond.notify_all()

    def next_in(self, lane: int) -> Buffer | None:
        """Wait for a slot assigned to this lane; None if no more will come."""
        with self._lock:
            mine = self._lanes[lane]
            self._cond.wait_for(lambda: self._stopping or bool(mine))
            return None if self._closed or not mine else mine.popleft()

    def failed(self, slot: Buffer, error: BaseException) -> None:
        """The item could not be made: its error is handed out instead."""
        slot.error = error
        self.ready(slot)

    def void(self, slot: Buffer) -> None:
        """The step made no item: its slot is free again, and the consumer does not see it."""
        with self._lock:
            self._queue.remove(slot)
            self._free_now(slot)

    def finish(self, end: BaseException | None = None) -> None:
        """Begin no more items; after the last one the consumer gets the error ``end``, if given."""
        with self._lock:
            self._finished = True
            self._end = self._end or end
            self._cond.notify_all()

    def wait_filled(self) -> bool:
        """Wait until no item is being made; False if the ring was closed meanwhile."""
        with self._lock:
            self._wait(lambda: all(s.state is not _FILLING for s in self._queue))
            return not self._closed

    # -- consumer side ---------------------------------------------------------------------

    def hold(self) -> Buffer | None:
        """Wait for the oldest item; its slot is the caller's until give_back().

        None after the last one, and when the ring is closed. Raises the item's error; the next
        call goes on with the next item.
        """
        with self._lock:
            slot = self._oldest()
            if slot is None:
                return None
            error = slot.error
            if error is not None or (self._finished and len(self._queue) == 1):
                self._cond.notify_all()  # a slot is free, or other consumers: that was the last
            # no call from here on
            slot.error = None
            del self._queue[0]
            if error is None:
                slot.state = _HELD
                return slot
            slot.state = _FREE
            self._free += (slot,)
        raise error

    def take_item(self) -> tuple[Any] | None:
        """Wait for the oldest item and free its slot at once; None and errors as hold()."""
        with self._lock:
            slot = self._oldest()
            if slot is None:
                return None
            item, error = slot.item, slot.error
            self._cond.notify_all()  # they find the free slot when the lock is free
            # no call from here on
            slot.item = slot.error = None
            del self._queue[0]
            slot.state = _FREE
            self._free += (slot,)
        if error is not None:
            raise error
        return (item,)

    def give_back(self, number: int) -> bool:
        """Free a held slot; False if it is not held."""
        with self._lock:
            slot = self.buffers[number]
            if slot.state is not _HELD:
                return False
            self._free_now(slot)
            return True

    # -- both ------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether no more items will come."""
        with self._lock:
            return self._closed or (self._finished and not self._queue)

    @property
    def _stopping(self) -> bool:
        return self._closed or self._finished

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._waiting += 1  # ready() only wakes whoever is counted here
        try:
            self._wait_for(lambda: self._closed or condition())
        finally:
            self._waiting -= 1

    def _oldest(self) -> Buffer | None:
        """Wait for the oldest item's slot. After the last item: None, or the end's error."""
        self._wait(lambda: self._head_is_ready() or (self._finished and not self._queue))
        if not self._closed and self._queue:
            return _buffer(self._queue[0])
        failure = self._failure if self._closed else self._end
        if failure is not None:
            raise failure
        return None

    def _free_now(self, slot: Buffer) -> None:
        self._cond.notify_all()  # they find it when the lock is free
        # no call from here on
        slot.state = _FREE
        self._free += (slot,)


def _buffer(slot: Slot) -> Buffer:
    assert isinstance(slot, Buffer)
    return slot
