"""Slots, the buffers of batches: who owns each one now, and how threads wait for them.

::

    FREE --begin(plan)--> FILLING --last part--> READY --take()--> HELD --release()--> FREE
    ring                  workers               ring             caller               ring

Guarantees, each tested: a slot is FILLING or HELD by one owner at a time; batches leave in the
order in which they were begun; a worker never writes to a held slot; ``close()`` wakes every
waiter. They rest on one rule: a slot's ``state`` changes only under the ring's lock. Reading,
decoding, user code and poisoning never run under it.

Ctrl-C may come anywhere in the consumer's thread, but CPython looks for it only when a call has
returned, a function begins or a loop turns. Hence two rules. Enter the lock itself, which is one
call of C, and never the Condition: its ``__enter__`` and ``__exit__`` are Python, and Ctrl-C in
them could leave the lock held for ever. Assign what must change together without a call in between.
"""

from __future__ import annotations

import enum
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import (
    NothingQueuedError,
    QueueFullError,
    ReaderClosedError,
    ReaderTimeoutError,
    WorkerError,
)
from ..order import BatchPlan
from ..stats import Meter
from ..system.memory import address_of
from .copy_queue import PUBLISHED, STOPPED, CopyQueue

Array: TypeAlias = npt.NDArray[Any]
#: What a batch's data is: one array, or one for each field of a reader with several.
Data: TypeAlias = Array | tuple[Array, ...]
#: Shape and dtype of a buffer.
Part: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]

#: With fewer seconds between two batches the consumer fills the next one and wakes no worker.
HURRIED: Final = 50e-6

#: What ``debug=True`` writes over a slot that is given back.
POISON = 0xA5


class SlotState(enum.Enum):
    """Owner of a slot: the ring, the workers, the ring again, the caller."""

    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    HELD = "held"


# looked up through the class, a member is a call of Python
_FREE, _FILLING, _READY, _HELD = SlotState


@dataclass(frozen=True)
class SlotLayout:
    """Shape and dtype of a slot's buffers.

    ``other_fields``: rows of the fields after the first. ``out_data`` (one array) and
    ``out_fields`` (a tuple of them) are None where what is handed out is a view of the rows; then
    ``out_labels`` is None too, and the labels themselves are handed out.
    """

    rows: Part
    labels: Part | None
    out_data: Part | None = None
    out_labels: Part | None = None
    other_fields: tuple[Part, ...] = ()
    out_fields: tuple[Part, ...] | None = None

    def sizes(self) -> list[int]:
        """Bytes of each buffer, in the order in which build() asks for them."""
        parts = (self.rows, *self.other_fields, self.labels, self.out_data)
        parts = (*parts, *(self.out_fields or ()), self.out_labels)
        return [math.prod(part[0]) * part[1].itemsize for part in parts if part is not None]

    def build(self, count: int, allocate: Allocate, view: Callable[..., Data]) -> list[Slot]:
        """``count`` slots; ``view`` takes the rows of each field and returns what is handed out."""
        slots = []
        for number in range(count):
            rows = allocate(*self.rows)
            other_fields = tuple(allocate(*part) for part in self.other_fields)
            labels = None if self.labels is None else allocate(*self.labels)
            if self.out_data is None and self.out_fields is None:
                slots.append(
                    Slot(number, rows, labels, view(rows, *other_fields), labels, other_fields)
                )
                continue
            out_data: Data
            if self.out_data is not None:
                out_data = allocate(*self.out_data)
            else:
                out_data = tuple(allocate(*part) for part in self.out_fields or ())
            out_labels = None if self.out_labels is None else allocate(*self.out_labels)
            slots.append(Slot(number, rows, labels, out_data, out_labels, other_fields))
        return slots


def arrays_of(data: Data) -> tuple[Array, ...]:
    """The arrays of a batch's data, one or several."""
    return data if isinstance(data, tuple) else (data,)


class Slot:
    """The buffers of one batch, allocated once, and what is being done with them.

    ``rows``: memory that workers fill, (B, ...); ``other_fields``: the same for each field after
    the first; ``labels``: (B, ...) or None; ``out_data``/``out_labels``: what is handed out: views
    of these, or buffers of their own where ``postprocess`` returns new arrays.
    """

    __slots__ = (
        "bad",
        "copied",
        "error",
        "error_at",
        "generation",
        "labels",
        "number",
        "other_fields",
        "out_data",
        "out_labels",
        "parts",
        "parts_left",
        "plan",
        "rows",
        "state",
    )

    def __init__(
        self,
        number: int,
        rows: Array,
        labels: Array | None,
        out_data: Data,
        out_labels: Array | None,
        other_fields: tuple[Array, ...] = (),
    ) -> None:
        self.number = number
        self.rows = rows
        self.other_fields = other_fields
        self.labels = labels
        self.out_data = out_data
        self.out_labels = out_labels
        self.state = _FREE
        self.copied = False
        self.generation = 0
        self.plan: BatchPlan | None = None
        self.parts = 0
        self.parts_left = 0
        self.error: BaseException | None = None
        self.error_at = 0
        self.bad: list[tuple[int, int, str]] = []

    def poison(self) -> None:
        """Overwrite everything the caller could still be looking at."""
        out_data = arrays_of(self.out_data)
        for array in (self.rows, *self.other_fields, self.labels, *out_data, self.out_labels):
            # what is not contiguous is a view of rows
            if array is not None and array.flags.c_contiguous:
                array.reshape(-1).view(np.uint8).fill(POISON)


#: Rows lo to hi of a slot's batch: what one worker does at a time.
Task: TypeAlias = tuple[Slot, int, int]


class SlotRing:
    """The slots of one reader and the deque of batches in flight, oldest first.

    One lock guards everything below, and every slot's ``state``.
    """

    def __init__(self, slots: list[Slot], in_flight: int, debug: bool = False) -> None:
        self.slots = slots
        self._count = len(slots)
        self.in_flight = in_flight
        self._debug = debug
        # One lock with two queues, for workers and for consumers: no thread is woken for nothing.
        # With one queue for both, eight threads took 2.5 times as long for small rows.
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._free = list(slots)
        self._used: list[Slot] = []  # given back, to be poisoned before they are free
        self._poisoning = threading.RLock()  # entered before the other lock
        self._queue: deque[Slot] = deque()
        self._tasks: deque[Task] = deque()
        self._held: Slot | None = None
        self._kept = 0
        self._idle = 0  # workers waiting
        self._waiting = 0  # consumers waiting
        self._closed = False
        self._failure: BaseException | None = None
        #: plan of the batch that left the queue last, whole or failed; None after drop_queued()
        self.left: BatchPlan | None = None
        #: called by the worker after each batch that became ready, outside the lock
        self.on_ready: Callable[[], None] | None = None
        #: for batches that are only copied; None where there are none
        self.copies: CopyQueue | None = None
        self._serving = 0  # workers that serve ``copies``
        self._left_at = 0.0  # when take() returned last
        self._hurried = False  # the consumer comes back sooner than a worker wakes up

    # -- consumer side ---------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise ReaderClosedError after close()."""
        with self._lock:
            self._check_open()

    def can_begin(self) -> bool:
        """Whether one more batch can be begun now."""
        if self._used:
            self._free_used()  # Ctrl-C came before
        with self._lock:
            self._check_open()
            return self._can_begin()

    def begin(self, plan: BatchPlan, parts: int = 1, copied: bool = False) -> Slot:
        """Put ``plan`` in a free slot, behind all batches in flight, cut into ``parts`` tasks.

        ``copied``: it goes to ``copies`` instead. Raises QueueFullError without a free slot,
        ReaderClosedError after close().
        """
        if self._used:
            self._free_used()  # Ctrl-C came before
        with self._lock:
            self._check_open()
            if not self._can_begin():
                raise QueueFullError(
                    "every slot is in use",
                    found=f"{len(self._queue)} batches in flight, {self._kept} kept",
                    expected=f"at most njob = {self.in_flight} together",
                    hint="call getNextBatch() first, or raise njob",
                )
            slot = self._free[-1]
            rows = plan.indices.size
            count = max(1, min(parts, rows))
            tasks: list[Task] = []
            copies = self.copies if copied else None
            if copies is None:
                tasks = [
                    (slot, rows * part // count, rows * (part + 1) // count)
                    for part in range(count)
                ]
                if self._idle:
                    self._work.notify(count)  # they find the tasks when the lock is free
            else:
                at, number = address_of(plan.indices), slot.number
                waiting = copies.waiting()
                if self._idle and self._serving < copies.servers and (waiting or not self._hurried):
                    self._work.notify()
            # no call from here on
            del self._free[-1]
            slot.state = _FILLING
            slot.copied = copies is not None
            slot.generation += 1
            slot.plan = plan
            slot.error = None
            slot.bad = []
            slot.parts = slot.parts_left = count
            self._tasks += tasks
            self._queue += (slot,)
            if copies is not None:
                control = copies.control
                copies.jobs[number, 0] = rows
                copies.jobs[number, 1] = at
                copies.jobs[number, 5] = slot.generation
                copies.queue[control[PUBLISHED] % self._count] = number
                control[PUBLISHED] += 1
            return slot

    def take(self, timeout: float | None = None) -> tuple[Slot, BaseException | None]:
        """Wait for the oldest batch and hand it over; the batch held before is freed.

        A batch that failed comes with its error: its slot is freed, and the batch held before
        stays valid.
        """
        if self.copies is not None:
            try:
                self._copy_here(self.copies)
            except BaseException:
                # Ctrl-C came after a copy that a seek() in another thread waits for
                with self._lock:
                    if self._waiting:
                        self._cond.notify_all()
                raise
        with self._lock:
            self._check_open()
            self._check_queued()
            if not self._head_is_ready():
                self._waiting += 1
                try:
                    ready = self._wait_for(
                        lambda: not self._queue or self._head_is_ready(), timeout
                    )
                finally:
                    self._waiting -= 1
                self._check_open()
                self._check_queued()  # another thread may have taken it, or called seek()
                if not ready:
                    raise ReaderTimeoutError(
                        f"no batch within {timeout} s",
                        found=self._describe(),
                        hint="it is still being filled: call getNextBatch() again to wait on",
                    )
            slot = self._queue[0]
            error, slot.error = slot.error, None
            if self._waiting:
                self._cond.notify_all()  # they see what is left when the lock is free
            # no call from here on
            retired: Slot | None = slot
            if error is None:
                slot.state = _HELD
                retired, self._held = self._held, slot
            self.left = slot.plan
            del self._queue[0]
            if retired is not None and self._debug:
                retired.state = _READY  # the ring's again, free after it is poisoned
                self._used += (retired,)
            elif retired is not None:
                retired.state = _FREE
                self._free += (retired,)
        if self._used:
            self._free_used()
        self._left_at = time.perf_counter()
        return slot, error

    def _copy_here(self, copies: CopyQueue) -> None:
        """Copy batches in this thread until the oldest in flight is whole, or none is left to copy.

        A copy takes less time than waking a thread. Ctrl-C comes before or after a copy.
        """
        self._hurried = time.perf_counter() - self._left_at < HURRIED
        while True:
            with self._lock:
                if self._closed or not self._queue:
                    return
                head = self._queue[0]
                if not head.copied or self._is_ready(head):
                    return
                waiting = copies.waiting()
            if not waiting:
                copies.look(head.number, head.generation)
                return
            copies.copy_one()

    def newest(self) -> BatchPlan | None:
        """The plan of the batch that was begun last; None where none is in flight."""
        with self._lock:
            return self._queue[-1].plan if self._queue else None

    def release(self, slot: Slot, generation: int) -> None:
        """Give a held (or kept) batch back; nothing happens if it was given back before."""
        with self._lock:
            if slot.generation != generation or slot.state is not _HELD:
                return
            if self._held is slot:
                self._held = None
            else:
                self._kept -= 1
            if self._debug:
                slot.state = _READY  # the ring's again, free after it is poisoned
                self._used += (slot,)
            else:
                slot.state = _FREE
                self._free += (slot,)
        if self._used:
            self._free_used()

    def keep(self, slot: Slot, generation: int) -> None:
        """Hold a batch beyond the next take(), until release()."""
        with self._lock:
            self._check_open()
            if slot.generation != generation or slot.state is not _HELD:
                raise QueueFullError(
                    "this batch was given back: it can no longer be kept",
                    hint="call keep() before the next getNextBatch()",
                )
            if self._held is not slot:
                return
            if self._kept >= self.in_flight - 1:
                raise QueueFullError(
                    "no more batches can be kept",
                    found=f"{self._kept} kept",
                    expected=f"at most njob - 1 = {self.in_flight - 1}",
                    hint="release() one, or raise njob",
                )
            self._kept += 1
            self._held = None

    def hand_out(self, slot: Slot, copy: bool) -> tuple[Data, Array | None]:
        """Data and labels of a held slot, cut to the rows of its batch; private with ``copy``."""
        assert slot.plan is not None
        count, whole = slot.plan.indices.size, slot.rows.shape[0]

        def handed(array: Array) -> Array:
            # postprocess may have made something that has no row for each sample
            if count < whole == array.shape[0]:
                array = array[:count]
            return array.copy(order="K") if copy else array

        data, labels = slot.out_data, slot.out_labels
        seen = tuple(map(handed, data)) if isinstance(data, tuple) else handed(data)
        return seen, None if labels is None else handed(labels)

    def head(self) -> Slot | None:
        """The oldest batch in flight, if it is ready and whole."""
        with self._lock:
            if self._closed or not self._queue:
                return None
            slot = self._queue[0]
            return slot if slot.state is _READY and slot.error is None else None

    def drop_queued(self) -> None:
        """Forget the batches in flight; waits until no worker writes to them any more."""
        with self._lock:
            self._check_open()
            while self._tasks:
                slot = self._tasks[-1][0]
                # seen only if Ctrl-C ends the wait below: the batch stays queued, but is not filled
                error = WorkerError("this batch was dropped by an interrupted seek()")
                # no call from here on
                del self._tasks[-1]
                slot.error = error
                slot.parts_left -= 1
                if slot.parts_left == 0:
                    slot.state = _READY
            if self.copies is not None:
                self.copies.copy_all()
            self._waiting += 1
            try:
                self._wait_for(lambda: self._closed or all(map(self._is_ready, self._queue)))
            finally:
                self._waiting -= 1
            self._check_open()
            if self._waiting:
                self._cond.notify_all()
            while self._queue:
                slot = self._queue[-1]
                slot.error = None
                if self._debug:
                    self._used += (slot,)
                else:
                    slot.state = _FREE
                    self._free += (slot,)
                del self._queue[-1]
            self.left = None
        if self._used:
            self._free_used()

    # -- worker side -----------------------------------------------------------------------

    def next_task(self, meter: Meter | None = None) -> Task | None:
        """Wait for rows to fill; None when the ring is closed.

        Batches that are only copied are filled by this call.
        """
        while True:
            with self._lock:
                while not (self._tasks or self._closed or self._may_serve()):
                    self._idle += 1
                    try:
                        self._work.wait()
                    finally:
                        self._idle -= 1
                if self._closed:
                    return None
                if self._tasks:
                    return self._tasks.popleft()
                self._serving += 1
            try:
                assert self.copies is not None
                self.copies.serve(meter or Meter())
            finally:
                with self._lock:
                    self._serving -= 1
                    if self._waiting:
                        self._cond.notify_all()

    def _may_serve(self) -> bool:
        copies = self.copies
        return copies is not None and self._serving < copies.servers and copies.waiting()

    def part_done(self, slot: Slot, lo: int, error: BaseException | None) -> bool:
        """Note a filled part and its error (that of the first rows wins); True for the last."""
        with self._lock:
            if error is not None and (slot.error is None or lo < slot.error_at):
                slot.error, slot.error_at = error, lo
            slot.parts_left -= 1
            return slot.parts_left == 0

    def ready(self, slot: Slot) -> None:
        """The batch is whole (or its error is in the slot): it may be taken."""
        with self._lock:
            slot.state = _READY
            if self._waiting:
                self._cond.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    # -- both ------------------------------------------------------------------------------

    def close(self, failure: BaseException | None = None) -> None:
        """Refuse everything from now on and wake every waiter; idempotent."""
        with self._lock:
            self._closed = True
            if self.copies is not None:
                self.copies.control[STOPPED] = 1
            self._failure = self._failure or failure
            self._tasks.clear()
            self._work.notify_all()
            self._cond.notify_all()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def counts(self) -> dict[str, int]:
        """Slots by owner: free, filling, ready, held, kept."""
        with self._lock:
            counted = {state.value: 0 for state in SlotState}
            for slot in self.slots:
                state = _READY if self._is_ready(slot) else slot.state
                counted[state.value] += 1
            counted["kept"] = self._kept
            return counted

    def in_flight_now(self) -> int:
        """Batches begun and not yet taken."""
        with self._lock:
            return len(self._queue)

    def _can_begin(self) -> bool:
        return len(self._queue) < self.in_flight - self._kept and bool(self._free)

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """The consumer's wait, which Ctrl-C may end; afterwards the lock is held in any case."""
        try:
            return self._cond.wait_for(condition, timeout)
        except BaseException:
            try:
                self._cond.notify(0)  # RuntimeError if this thread does not hold the lock
            except RuntimeError:
                self._lock.acquire()  # Ctrl-C came just before wait() would have acquired it
            raise

    def _head_is_ready(self) -> bool:
        return self._closed or (bool(self._queue) and self._is_ready(self._queue[0]))

    def _is_ready(self, slot: Slot) -> bool:
        if slot.state is _FILLING and slot.copied:
            assert self.copies is not None
            return bool(self.copies.marks[slot.number] == slot.generation)
        return slot.state is _READY

    def _free_used(self) -> None:
        """Poison and free what was given back. What Ctrl-C leaves undone, the next call does."""
        with self._poisoning:
            while self._used:
                slot = self._used[0]
                slot.poison()
                with self._lock:
                    # no call from here on
                    del self._used[0]
                    slot.state = _FREE
                    self._free += (slot,)

    def _check_open(self) -> None:
        if self._closed:
            if self._failure is not None:
                raise self._failure
            raise ReaderClosedError("this reader is closed", hint="open a new AsyncReader")

    def _check_queued(self) -> None:
        if not self._queue:
            raise NothingQueuedError(
                "no batch is in flight", hint="call fetchData() before getNextBatch()"
            )

    def _describe(self) -> str:
        head = self._queue[0]
        begun = head.parts - sum(1 for task in self._tasks if task[0] is head)
        return f"{begun} of {head.parts} parts of the oldest batch begun, {self._idle} workers idle"
