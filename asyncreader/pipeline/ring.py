"""The ring of slots under the reader and the drop-in replacements: owners, order and waits.

::

    FREE --begin--> FILLING --ready()--> READY --take()--> HELD --release()--> FREE
    ring            workers | void()    ring              caller              ring
                            `--> FREE

Guarantees, each tested: a slot has one owner at a time; slots leave in the order in which they were
begun; ``close()`` wakes every waiter. They rest on one rule: a slot's state changes only under the
ring's lock, but for FILLING to READY, which compiled code may write (owners.py). Reading, decoding
and user code never run under the lock.

Ctrl-C may come anywhere in the consumer's thread, but CPython looks for it only when a call has
returned, a function begins or a loop turns. Hence three rules. Enter the lock itself, which is one
call of C, and never the Condition: its ``__enter__`` and ``__exit__`` are Python, and Ctrl-C in
them could leave the lock held for ever. Assign what must change together without a call in between:
see :class:`Owners`. Enter the lock once, not twice, before a wait: see ``_wait_for``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, cast

from ..errors import (
    NothingQueuedError,
    QueueFullError,
    ReaderClosedError,
    ReaderTimeoutError,
)
from ..stats import Meter
from ..system.signals import wait_for
from .owners import FILLING, HELD, READY, REFUSED, SERVE, Lane, Observer, Owners, S, SlotState, Task

if TYPE_CHECKING:
    from .fill_queue import (  # it loads numpy, which the drop-in replacements need not
        FilledSlot,
        FillQueue,
    )


class Ring(Generic[S]):
    """Slots, and the queue of those in flight, oldest first. One lock guards all of it.

    ``holds``: slots that the caller has at most; when it takes one more, the one that it has had
    longest is given back. ``in_flight``: slots that are begun and not taken, or kept, at most.
    ``lanes``: queues of tasks, each served by workers of its own. ``consumer_begins``: the consumer
    begins slots itself, so with none in flight it need not wait. ``clean``: called with a slot that
    was given back, before it is free.
    """

    def __init__(
        self,
        slots: Iterable[S],
        holds: int,
        *,
        in_flight: int | None = None,
        lanes: int = 1,
        consumer_begins: bool = False,
        observer: Observer | None = None,
        clean: Callable[[S], None] | None = None,
    ) -> None:
        self.slots = list(slots)
        #: serves slots that are begun in no parts, as soon as there is one
        self.fills: FillQueue | None = None
        #: called by the worker after each slot that became ready, outside the lock
        self.on_ready: Callable[[], None] | None = None
        self._consumer_begins = consumer_begins
        self._observer = observer
        self._clean = clean
        self._lock = threading.RLock()
        self._cleaning = threading.RLock()  # entered before the other lock
        # One lock with two queues, for workers and for consumers: no thread is woken for nothing.
        # With one queue for both, eight threads took 2.5 times as long for small rows.
        self._cond = threading.Condition(self._lock)
        self._lanes: list[Lane[S]] = [Lane(threading.Condition(self._lock)) for _ in range(lanes)]
        most = len(self.slots) if in_flight is None else in_flight
        self._owners = Owners(self.slots, holds, most, clean is not None, observer)
        self._waiting = 0  # threads that wait for a state
        self._closed = False
        self._failure: BaseException | None = None
        self._finished = False
        self._end: BaseException | None = None

    # -- beginning -------------------------------------------------------------------------

    def can_begin(self) -> bool:
        """Whether one more slot can be begun now. Raises as begin(), but no QueueFullError."""
        if self._owners.used:
            self._clean_used()  # Ctrl-C came before
        with self._lock:
            self.check_open()
            return self._owners.room()

    def begin(self, plan: Any, parts: int = 1) -> S:
        """Begin ``plan`` in a free slot, behind all in flight, cut into ``parts`` tasks.

        In no parts it goes to ``fills``. Raises QueueFullError where no more may be in flight,
        after close() what closed the ring or ReaderClosedError.
        """
        if self._owners.used:
            self._clean_used()  # Ctrl-C came before
        with self._lock:
            self.check_open()
            self._owners.check_room()
            return self._begin(plan, parts)

    def claim(self, plan: Any = None, lane: int | None = None) -> S | None:
        """Wait for a free slot and begin ``plan`` in it; None when no more are wanted.

        Its task goes to the workers of ``lane``; without one the caller sees to it.
        """
        with self._lock:
            self._wait_for(lambda: self._finished or self._owners.room())
            if self._closed or self._finished:
                return None
            return self._begin(plan, int(lane is not None), lane or 0)

    def _begin(self, plan: Any, parts: int, lane: int = 0) -> S:
        """Begin ``plan`` in the last free slot (the lock is held)."""
        # free until the end: what Ctrl-C leaves half done here is done again
        slot, to, fills = self._owners.free[-1], self._lanes[lane], self.fills
        tasks = slot.prepare(plan, parts)
        counter = None
        if parts == 0 and fills is not None:
            counter = fills.prepare(cast("FilledSlot", slot), plan)
            if fills.needs_server() and not to.tasks:
                tasks = [(slot, *SERVE)]
        self._wake_workers(to, len(tasks))
        self._owners.begin(to.tasks, tasks, counter)
        return slot

    def _wake_workers(self, lane: Lane[S], tasks: int) -> None:
        """Wake idle workers for tasks that are added next (the lock is held)."""
        if tasks and lane.idle:
            try:
                lane.work.notify(tasks)  # they find the tasks when the lock is free
            except BaseException:
                # Ctrl-C may leave one in the Condition's queue that is awake already: it would be
                # woken in place of a worker the next time
                lane.work.notify_all()
                raise

    # -- workers ---------------------------------------------------------------------------

    def next_task(self, lane: int = 0, meter: Meter | None = None) -> Task[S] | None:
        """Wait for a task in this lane; None when no more will come.

        Slots in the queue of compiled code are filled by this call, and counted in ``meter``.
        """
        mine = self._lanes[lane]
        while True:
            with self._lock:
                while not (mine.tasks or self._closed or self._finished):
                    mine.idle += 1
                    try:
                        mine.work.wait()
                    finally:
                        mine.idle -= 1
                if self._closed or not mine.tasks:
                    return None
                task = mine.tasks.popleft()
            if task[1:] != SERVE:
                return task
            del task  # an idle worker keeps no slot alive
            assert self.fills is not None
            self.fills.work(meter or Meter(), self._lock, self._filled_now)

    def part_done(self, slot: S, lo: int, error: BaseException | None) -> bool:
        """Note a filled part and its error (that of the first rows wins); True for the last."""
        with self._lock:
            if error is not None and (slot.error is None or lo < slot.error_at):
                slot.error, slot.error_at = error, lo
            slot.parts_left -= 1
            return slot.parts_left == 0

    def add_part(self, slot: S, lo: int, hi: int) -> None:
        """One more task of a slot whose other parts are done."""
        with self._lock:
            lane = self._lanes[0]
            slot.parts_left = 1
            self._wake_workers(lane, 1)
            self._owners.again(lane.tasks, slot, [(slot, lo, hi)])

    def ready(self, slot: S, error: BaseException | None = None) -> None:
        """A worker is through with the slot: it may be taken, and so may its error."""
        with self._lock:
            if error is not None:
                slot.error = error
            slot.mark[0] = READY
            if self._observer is not None:
                self._observer.changed(slot)
            if self._waiting:
                self._cond.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    def void(self, slot: S) -> None:
        """Nothing was made: the slot is free again, and the consumer does not see it."""
        with self._lock:
            self._owners.void(slot)
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

        One that failed comes with its error, and is free. Raises the error that ended the ring;
        where the consumer begins slots NothingQueuedError, ReaderTimeoutError, ReaderClosedError.
        """
        observer, fills = self._observer, self.fills
        asked = 0.0 if observer is None else time.perf_counter()
        taken: S | None = None
        try:
            if fills is not None:
                fills.fill_until_whole(self._oldest_filling)
            with self._lock:
                slot = self._oldest(timeout)
                if slot is None:
                    return None
                if observer is not None and fills is not None:
                    self._filled_now()
                if self._waiting:
                    self._cond.notify_all()  # they see what is left when the lock is free
                error = self._owners.hand_over()
                if error is None:
                    taken = slot
        except BaseException:
            # Ctrl-C may come when a slot was filled that drop_queued() in another thread waits for
            with self._lock:
                if self._waiting:
                    self._cond.notify_all()
            raise
        finally:
            if observer is not None:
                observer.waited(asked, taken)
        if self._owners.used:
            self._clean_used()
        if fills is not None:
            fills.taken_at = time.perf_counter()
        return slot, error

    def take_item(self) -> tuple[Any] | None:
        """Wait for the oldest item; None after the last one. For a ring with ``holds=0``.

        Raises the item's error, and the one that ended the ring.
        """
        with self._lock:
            slot = self._oldest(None)
            if slot is None:
                return None
            item = slot.item
            if self._waiting:
                self._cond.notify_all()
            error = self._owners.hand_over()
        if error is not None:
            raise error
        return (item,)

    def release(self, slot: S, generation: int) -> bool:
        """Give a held slot back; False if it was given back before."""
        with self._lock:
            if slot.generation != generation or slot.mark[0] != HELD:
                return False
            if self._waiting:
                self._cond.notify_all()  # they find it when the lock is free
            self._owners.give_back(slot)
        if self._owners.used:
            self._clean_used()
        return True

    def keep(self, slot: S, generation: int) -> None:
        """Hold a slot beyond the next take(), until release(). Raises QueueFullError."""
        with self._lock:
            self.check_open()
            if slot.generation != generation or slot.mark[0] != HELD:
                raise QueueFullError(
                    "this batch was given back: it can no longer be kept",
                    hint="call keep() before the next getNextBatch()",
                )
            self._owners.keep(slot)

    def drop_queued(self, left: Any = None) -> None:
        """Forget the slots in flight; waits until no worker writes to them any more.

        ``left``: what :attr:`left` is afterwards. Ctrl-C comes before that change or after it.
        """
        with self._lock:
            self.check_open()
            for lane in self._lanes:
                while lane.tasks:
                    # its error is seen only if Ctrl-C ends the wait below
                    self._owners.drop(lane.tasks)
            if self.fills is not None:
                self.fills.fill_all()
            self._wait_for(self._all_filled)
            self.check_open()
            if self._waiting:
                self._cond.notify_all()
            while self._owners.queue:
                self._owners.forget()
            self._owners.left = left
        if self._owners.used:
            self._clean_used()

    def wait_filled(self) -> bool:
        """Wait until no slot is being filled; False if the ring was closed meanwhile."""
        with self._lock:
            self._wait_for(self._all_filled)
            return not self._closed

    # -- all -------------------------------------------------------------------------------

    def close(self, failure: BaseException | None = None) -> None:
        """Refuse everything from now on and wake every waiter; idempotent."""
        with self._lock:
            self._failure = self._failure or failure
            self._closed = True  # last: check_open() does not enter the lock
            for lane in self._lanes:
                lane.tasks.clear()
            if self.fills is not None:
                self.fills.stop()
            self._wake_all()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def check_open(self) -> None:
        """Raise what closed the ring, or ReaderClosedError, after close()."""
        if self._closed:
            if self._failure is not None:
                raise self._failure
            raise ReaderClosedError("this reader is closed", hint="open a new AsyncReader")

    @property
    def left(self) -> Any:
        """The plan of the slot that left the queue last, whole or failed, or what drop_queued() was
        given since; None at first."""
        return self._owners.left

    @property
    def over(self) -> bool:
        """Whether no more slots will come."""
        with self._lock:
            return self._closed or (self._finished and not self._owners.queue)

    def counts(self) -> dict[str, int]:
        """Slots by owner: free, filling, ready, held (and of these, kept)."""
        with self._lock:
            counted = {state.value: 0 for state in SlotState}
            for slot in self.slots:
                counted[slot.state.value] += 1
            counted["kept"] = len(self._owners.kept)
            return counted

    def in_flight_now(self) -> int:
        """Slots begun and not yet taken."""
        with self._lock:
            return len(self._owners.queue)

    def newest(self) -> Any:
        """The plan of the slot that was begun last; None where none is in flight."""
        with self._lock:
            queue = self._owners.queue
            return queue[-1].plan if queue else None

    def head(self) -> S | None:
        """The oldest slot in flight, if it is ready and whole."""
        with self._lock:
            if self._closed or not self._owners.queue:
                return None
            slot = self._owners.queue[0]
            return slot if slot.mark[0] == READY and slot.error is None else None

    # -- inside (the lock is held) ---------------------------------------------------------

    def _oldest(self, timeout: float | None) -> S | None:
        """Wait for the oldest slot. Where there is none to be had: None, or an error."""
        queue = self._owners.queue
        if self._closed or not queue or queue[0].mark[0] != READY:
            self._wait_for(self._can_take, timeout)
            if self._closed or not queue or queue[0].mark[0] != READY:
                self._refuse(timeout)
                return None
        return queue[0]

    def _can_take(self) -> bool:
        if self._owners.queue:
            self._fill_refused()
            return self._owners.queue[0].mark[0] == READY
        return self._finished or self._consumer_begins

    def _refuse(self, timeout: float | None) -> None:
        """Raise what the consumer gets instead of a slot, if there is such an error."""
        if not self._consumer_begins:
            failure = self._failure if self._closed else self._end
            if failure is not None:
                raise failure
            return
        self.check_open()
        if not self._owners.queue:  # or another thread has taken it, or called drop_queued()
            raise NothingQueuedError(
                "no batch is in flight", hint="call fetchData() before getNextBatch()"
            )
        head, lane = self._owners.queue[0], self._lanes[0]
        parts, left = max(1, head.parts), sum(1 for task in lane.tasks if task[0] is head)
        raise ReaderTimeoutError(
            f"no batch within {timeout} s",
            found=f"{parts - left} of {parts} parts of the oldest batch begun, "
            f"{lane.idle} workers idle",
            hint="it is still being filled: call getNextBatch() again to wait on",
        )

    def _clean_used(self) -> None:
        """Clean and free what was given back (the lock is not held). What Ctrl-C leaves undone, the
        next call does."""
        assert self._clean is not None
        with self._cleaning:
            while self._owners.used:
                self._clean(self._owners.used[0])
                with self._lock:
                    self._owners.clean()

    def _all_filled(self) -> bool:
        self._fill_refused()
        return all(slot.mark[0] == READY for slot in self._owners.queue)

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

    # -- slots in the queue of compiled code -------------------------------------------------

    def _oldest_filling(self) -> S | None:
        """The oldest slot, if compiled code fills it, and it is not whole."""
        with self._lock:
            if self._closed or not self._owners.queue:
                return None
            slot = self._owners.queue[0]
            return slot if slot.parts == 0 and slot.mark[0] == FILLING else None

    def _fill_refused(self) -> None:
        """Slots with a wrong checksum become tasks of the workers, who find out what is wrong."""
        lane = self._lanes[0]
        for slot in self._owners.queue:
            if slot.mark[0] == REFUSED:
                tasks = slot.prepare(slot.plan, 1)
                self._wake_workers(lane, len(tasks))
                self._owners.again(lane.tasks, slot, tasks)

    def _filled_now(self) -> None:
        """Slots were filled, and may be READY (the lock is held): show it, and wake who waits."""
        self._fill_refused()
        if self._observer is not None:
            for slot in self._owners.queue:
                self._observer.changed(slot)
        if self._waiting:
            self._cond.notify_all()
