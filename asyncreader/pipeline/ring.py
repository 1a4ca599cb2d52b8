"""The ring of slots under the reader: who owns which slot, their order, and the waits for them.

::

    FREE --begin--> FILLING --ready()--> READY --take()--> HELD --release()--> FREE
    ring            workers              ring              caller              ring

Guarantees, each tested: a slot has one owner at a time; slots leave in the order in which they were
begun; ``close()`` wakes every waiter. They rest on one rule: a slot's state changes only under the
ring's lock, but for FILLING to READY, which compiled code may write when it has filled the slot
without the GIL (fill_queue.py). Reading, decoding and user code never run under the lock.

Who owns a slot follows from its place. The slots stand in a circle, and two numbers cut it: the
first ``_held`` slots (one at most) are the caller's, those from there to ``_begun`` are in flight,
oldest first, and those after them are free. A slot that is given back becomes the first of the
free ones: where few are in flight, few are used. A slot that the caller keeps is outside the circle
until it is given back, which leaves room for one less.

Ctrl-C may come anywhere in the consumer's thread, but CPython looks for it only when a call has
returned, a function begins or a loop turns. Hence three rules. Enter the lock itself, which is one
call of C, and never the Condition: its ``__enter__`` and ``__exit__`` are Python, and Ctrl-C in
them could leave the lock held for ever. Assign what must change together without a call in between:
Ctrl-C comes before the change or after it. Enter the lock once, not twice, before a wait: see
``_wait_for``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn

from ..errors import (
    NothingQueuedError,
    QueueFullError,
    ReaderClosedError,
    ReaderTimeoutError,
    WorkerError,
)
from ..sources.labels import apart
from ..stats import Meter
from ..system.signals import wait_for
from .fill_queue import FillQueue
from .slots import (
    FILLING,
    FREE,
    GIVEN,
    HELD,
    READY,
    REFUSED,
    STATES,
    Data,
    Slot,
    SlotMemory,
    Task,
    cut_rows,
)
from .trace import Trace

#: The task of a worker that is to serve the fill queue, in place of the first and last row to fill.
SERVE: Final = (-1, -1)


class SlotRing:
    """The slots of one reader, and the queue of those in flight, oldest first. One lock guards all
    of it.

    ``slots``: one for the batch that the consumer holds, which is given back when it takes one
    more; each of the others may be in flight (begun and not taken) or kept. ``debug``: a slot that
    the consumer had is overwritten when it is given back. ``trace``: sees what happens, under the
    lock but for ``waited``. ``more``: makes the memory of one more slot; None where slots keep what
    they have.
    """

    def __init__(
        self,
        slots: list[Slot],
        debug: bool = False,
        trace: Trace | None = None,
        more: Callable[[], SlotMemory] | None = None,
    ) -> None:
        self.slots = slots
        #: serves slots that are begun in no parts, as soon as there is one
        self.fills: FillQueue | None = None
        #: called by the worker after each slot that became ready, outside the lock
        self.on_ready: Callable[[], None] | None = None
        #: the plan of the slot that left the queue last, whole or failed, or what drop_queued() was
        #: given since
        self.left: Any = None
        self._circle = tuple(slots)
        self._held = self._begun = 0
        self._debug = debug
        self._trace = trace
        self._lock = threading.RLock()
        # One lock with two queues, for workers and for consumers: no thread is woken for nothing.
        # With one queue for both, eight threads took 2.5 times as long for small rows.
        self._cond = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._tasks: deque[Task] = deque()
        self._idle = 0  # workers waiting
        self._waiting = 0  # threads that wait for a state
        #: whether close() was called
        self.closed = False
        self._failure: BaseException | None = None
        self._more = more
        #: what was handed out last with copy=True
        self._given: list[SlotMemory] = []

    # -- beginning -------------------------------------------------------------------------

    def can_begin(self) -> bool:
        """Whether one more slot can be begun now. Raises as begin(), but no QueueFullError."""
        with self._lock:
            self.check_open()
            return self._room()

    def begin(self, plan: Any, parts: int = 1) -> Slot:
        """Begin ``plan`` in a free slot, after all in flight, cut into ``parts`` tasks.

        In no parts it goes to ``fills``. Raises QueueFullError where no more may be in flight,
        after close() what closed the ring or ReaderClosedError.
        """
        with self._lock:
            self.check_open()
            if not self._room():
                raise QueueFullError(
                    "every slot is in use",
                    found=f"{self._begun - self._held} batches in flight, {self._kept()} kept",
                    expected=f"at most njob = {len(self.slots) - 1} together",
                    hint="call getNextBatch() first, or raise njob",
                )
            # free until the end: what Ctrl-C leaves half done here is done again
            slot, fills = self._circle[self._begun], self.fills
            tasks, counter = slot.prepare(plan, parts), None
            if parts == 0 and fills is not None:
                counter = fills.prepare(slot, plan)
                if fills.needs_server() and not self._tasks:
                    tasks = [(slot, *SERVE)]
            self._wake_workers(len(tasks))
            # no call from here on
            slot.mark[0] = FILLING
            slot.generation += 1
            self._tasks += tasks
            self._begun += 1
            if counter is not None:
                counter[0] += 1
            if self._trace is not None:
                self._trace.changed(slot)
            return slot

    def _room(self) -> bool:
        """Whether one more slot may be begun: one is left for the consumer to hold."""
        return self._begun - self._held < len(self._circle) - 1

    def _kept(self) -> int:
        """How many slots are kept."""
        return len(self.slots) - len(self._circle)

    def _wake_workers(self, tasks: int) -> None:
        """Wake idle workers for tasks that are added next (the lock is held)."""
        if tasks and self._idle:
            try:
                self._work.notify(tasks)  # they find the tasks when the lock is free
            except BaseException:
                # Ctrl-C may leave one in the Condition's queue that is awake already: it would be
                # woken in place of a worker the next time
                self._work.notify_all()
                raise

    # -- workers ---------------------------------------------------------------------------

    def next_task(self, meter: Meter | None = None) -> Task | None:
        """Wait for a task; None after close().

        Slots in the queue of compiled code are filled by this call, and counted in ``meter``.
        """
        while True:
            with self._lock:
                while not (self._tasks or self.closed):
                    self._idle += 1
                    try:
                        self._work.wait()
                    finally:
                        self._idle -= 1
                if self.closed:
                    return None
                task = self._tasks.popleft()
            if task[1:] != SERVE:
                return task
            del task  # an idle worker keeps no slot alive
            assert self.fills is not None
            self.fills.work(meter or Meter(), self._lock, self._filled_now)

    def part_done(self, slot: Slot, lo: int, error: BaseException | None) -> bool:
        """Note a filled part and its error (that of the first rows wins); True for the last."""
        with self._lock:
            if error is not None and (slot.error is None or lo < slot.error_at):
                slot.error, slot.error_at = error, lo
            slot.parts_left -= 1
            return slot.parts_left == 0

    def add_part(self, slot: Slot, lo: int, hi: int) -> None:
        """One more task of a slot whose other parts are done."""
        with self._lock:
            slot.parts_left = 1
            self._fill_again(slot, [(slot, lo, hi)])

    def _fill_again(self, slot: Slot, tasks: list[Task]) -> None:
        """The workers have more to do for a slot in flight (the lock is held)."""
        self._wake_workers(len(tasks))
        # no call from here on
        slot.mark[0] = FILLING
        self._tasks += tasks

    def ready(self, slot: Slot) -> None:
        """A worker is through with the slot: it may be taken, and so may its error."""
        with self._lock:
            slot.mark[0] = READY
            if self._trace is not None:
                self._trace.changed(slot)
            if self._waiting:
                self._cond.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    # -- the consumer ----------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> tuple[Slot, BaseException | None]:
        """Wait for the oldest batch and hand it over; the batch held before is given back.

        A batch that failed comes with its error: its slot is free, and the batch held before stays
        valid. Raises NothingQueuedError, ReaderTimeoutError, after close() what closed the ring or
        ReaderClosedError.
        """
        trace, fills = self._trace, self.fills
        asked = 0.0 if trace is None else time.perf_counter()
        taken: Slot | None = None
        try:
            if fills is not None:
                fills.fill_until_whole(self._oldest_filling)
            with self._lock:
                slot = self._oldest(timeout)
                if trace is not None and fills is not None:
                    self._filled_now()
                if self._waiting:
                    self._cond.notify_all()  # they see what is left when the lock is free
                error = self._hand_over(slot)
                if error is None:
                    taken = slot
        except BaseException:
            # Ctrl-C may come when a slot was filled that drop_queued() in another thread waits for
            with self._lock:
                if self._waiting:
                    self._cond.notify_all()
            raise
        finally:
            if trace is not None:
                trace.waited(asked, taken)
        if fills is not None:
            fills.taken_at = time.perf_counter()
        return slot, error

    def _hand_over(self, slot: Slot) -> BaseException | None:
        """The oldest slot leaves the queue: the caller has it, or its error and nobody the slot."""
        circle, begun, error = self._circle, self._begun, slot.error
        # what is given back: this slot with an error, else the one that was held before
        at = 0 if error is None else self._held
        back = circle[at] if self._held or error is not None else None
        if back is not None:
            circle = (*circle[:at], *circle[at + 1 : begun], back, *circle[begun:])
        # no call from here on
        if error is None:
            slot.mark[0] = HELD
            self._held = 1
        slot.error = None
        self.left = slot.plan
        self._circle = circle
        if back is not None:
            self._begun -= 1
            back.mark[0] = FREE
        if self._debug and back is not None:
            back.poison()
        if self._trace is not None:
            self._trace.changed(slot)
            if back is not None:
                self._trace.changed(back)
        return error

    def release(self, slot: Slot, generation: int) -> bool:
        """Give a held slot back; False if it was given back before."""
        with self._lock:
            if slot.generation != generation or slot.mark[0] != HELD:
                return False
            if self._waiting:
                self._cond.notify_all()  # they find it when the lock is free
            circle, begun = self._circle, self._begun
            held = int(slot in circle)  # 0: it is kept, outside the circle
            circle = (*circle[held:begun], slot, *circle[begun:])
            # no call from here on
            self._circle = circle
            self._held -= held
            self._begun -= held
            slot.mark[0] = FREE
            if self._debug:
                slot.poison()
            if self._trace is not None:
                self._trace.changed(slot)
        return True

    def keep(self, slot: Slot, generation: int) -> None:
        """Hold a slot beyond the next take(), until release(). Raises QueueFullError."""
        with self._lock:
            self.check_open()
            if slot.generation != generation or slot.mark[0] != HELD:
                raise QueueFullError(
                    "this batch was given back: it can no longer be kept",
                    hint="call keep() before the next getNextBatch()",
                )
            if slot not in self._circle:  # it is kept
                return
            if len(self._circle) <= 2:
                raise QueueFullError(
                    "no more batches can be kept",
                    found=f"{self._kept()} kept",
                    expected=f"at most njob - 1 = {len(self.slots) - 2}",
                    hint="release() one, or raise njob",
                )
            # no call from here on
            self._circle = self._circle[1:]
            self._held = 0
            self._begun -= 1

    def hand_out(self, slot: Slot, copy: bool) -> tuple[Data, Data | None]:
        """Data and labels of a held slot, cut to the rows of its batch; private with ``copy``."""
        count, whole = slot.plan.indices.size, slot.rows[0].shape[0]
        # not by batch_rows(), which takes 0.5 us longer
        data, labels = [cut_rows(array, count, whole) for array in slot.out], slot.out_labels
        if labels is not None:
            labels = cut_rows(labels, count, whole)
        if copy and self._more is not None:
            self._give(slot, self._more)
        elif copy:
            data = [array.copy(order="K") for array in data]
            labels = None if labels is None else labels.copy(order="K")
        return tuple(data) if slot.several else data[0], apart(labels)

    def _give(self, slot: Slot, more: Callable[[], SlotMemory]) -> None:
        """What a held slot has is the caller's for good; the slot gets memory that was handed out
        before and that nobody can reach any more, or new memory."""
        # not that of a slot: Ctrl-C may have come between the next lines, in an earlier call
        used = [one.memory for one in self.slots]
        free = (one for one in self._given if one not in used and not one.reached())
        other = next(free, None) or more()
        given = [*(one for one in self._given if one is not other), slot.memory][-GIVEN:]
        slot.use(other)
        self._given = given

    def drop_queued(self, left: Any = None) -> None:
        """Forget the slots in flight; waits until no worker writes to them any more.

        ``left``: what :attr:`left` is afterwards. Ctrl-C comes before that change or after it.
        """
        with self._lock:
            self.check_open()
            while self._tasks:
                self._drop_task()
            if self.fills is not None:
                self.fills.fill_all()
            self._wait_for(self._all_filled)
            self.check_open()
            if self._waiting:
                self._cond.notify_all()
            while self._begun > self._held:
                slot = self._circle[self._begun - 1]
                # no call from here on
                slot.error = None
                slot.mark[0] = FREE
                self._begun -= 1
                if self._trace is not None:
                    self._trace.changed(slot)
            self.left = left

    def _drop_task(self) -> None:
        """The last task is dropped: its slot stays in flight, with an error."""
        slot, lo, _ = self._tasks[-1]
        # seen only if Ctrl-C ends the wait for the other slots
        error = WorkerError("this batch was dropped by an interrupted seek()")
        # no call from here on
        del self._tasks[-1]
        if lo >= 0:
            slot.error = error
            slot.parts_left -= 1
            if slot.parts_left == 0:
                slot.mark[0] = READY

    # -- all -------------------------------------------------------------------------------

    def close(self, failure: BaseException | None = None) -> None:
        """Refuse everything from now on and wake every waiter; idempotent."""
        with self._lock:
            self._failure = self._failure or failure
            self.closed = True  # last: check_open() does not enter the lock
            self._tasks.clear()
            if self.fills is not None:
                self.fills.stop()
            self._cond.notify_all()
            self._work.notify_all()

    def check_open(self) -> None:
        """Raise what closed the ring, or ReaderClosedError, after close()."""
        if self.closed:
            if self._failure is not None:
                raise self._failure
            raise ReaderClosedError("this reader is closed", hint="open a new AsyncReader")

    def counts(self) -> dict[str, int]:
        """Slots by owner: free, filling, ready, held (and of these, kept)."""
        with self._lock:
            counted = dict.fromkeys(STATES, 0)
            for slot in self.slots:
                counted[slot.state] += 1
            return {**counted, "kept": self._kept()}

    def in_flight_now(self) -> int:
        """Slots begun and not yet taken."""
        with self._lock:
            return self._begun - self._held

    def newest(self) -> Any:
        """The plan of the slot that was begun last; None where none is in flight."""
        with self._lock:
            return self._circle[self._begun - 1].plan if self._begun > self._held else None

    def head(self) -> Slot | None:
        """The oldest slot in flight, if it is ready and whole."""
        with self._lock:
            slot = self._first()
            whole = slot is not None and slot.mark[0] == READY and slot.error is None
            return slot if whole else None

    # -- inside (the lock is held) ---------------------------------------------------------

    def _first(self) -> Slot | None:
        """The oldest slot in flight; None where there is none, and after close()."""
        return self._circle[self._held] if self._begun > self._held and not self.closed else None

    def _oldest(self, timeout: float | None) -> Slot:
        """Wait for the oldest slot. Where there is none to be had: an error."""
        slot = self._first()
        if slot is None or slot.mark[0] != READY:
            self._wait_for(self._can_take, timeout)
            slot = self._first()
            if slot is None or slot.mark[0] != READY:
                self._refuse(slot, timeout)
        return slot

    def _can_take(self) -> bool:
        self._fill_refused()
        slot = self._first()
        # the consumer begins slots itself: where there is none, there is none to wait for
        return slot is None or slot.mark[0] == READY

    def _refuse(self, slot: Slot | None, timeout: float | None) -> NoReturn:
        """Raise what the consumer gets instead of the oldest slot."""
        self.check_open()
        if slot is None:  # or another thread has taken it, or called drop_queued()
            raise NothingQueuedError(
                "no batch is in flight", hint="call fetchData() before getNextBatch()"
            )
        parts, left = max(1, slot.parts), sum(1 for task in self._tasks if task[0] is slot)
        raise ReaderTimeoutError(
            f"no batch within {timeout} s",
            found=f"{parts - left} of {parts} parts of the oldest batch begun, "
            f"{self._idle} workers idle",
            hint="it is still being filled: call getNextBatch() again to wait on",
        )

    def _in_flight(self) -> tuple[Slot, ...]:
        """The slots in flight, oldest first."""
        return self._circle[self._held : self._begun]

    def _all_filled(self) -> bool:
        self._fill_refused()
        return all(slot.mark[0] == READY for slot in self._in_flight())

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for ``condition`` or close(). The lock is held afterwards, also after Ctrl-C."""
        self._waiting += 1  # whoever changes a state wakes only those counted here
        try:
            wait_for(self._cond, self._lock, lambda: self.closed or condition(), timeout)
        finally:
            self._waiting -= 1

    # -- slots in the queue of compiled code -------------------------------------------------

    def _oldest_filling(self) -> Slot | None:
        """The oldest slot, if compiled code fills it, and it is not whole."""
        with self._lock:
            slot = self._first()
            filling = slot is not None and slot.parts == 0 and slot.mark[0] == FILLING
            return slot if filling else None

    def _fill_refused(self) -> None:
        """Slots with a wrong checksum become tasks of the workers, who find out what is wrong."""
        for slot in self._in_flight():
            if slot.mark[0] == REFUSED:
                self._fill_again(slot, slot.prepare(slot.plan, 1))

    def _filled_now(self) -> None:
        """Slots were filled, and may be READY (the lock is held): show it, and wake who waits."""
        self._fill_refused()
        if self._trace is not None:
            for slot in self._in_flight():
                self._trace.changed(slot)
        if self._waiting:
            self._cond.notify_all()
