"""Slots of a reader, the buffers of its batches, and the ring of them."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import (
    NothingQueuedError,
    QueueFullError,
    ReaderClosedError,
    ReaderTimeoutError,
    WorkerError,
)
from ..sampling.schedule import BatchPlan
from ..stats import BadRow, Meter
from .copy_queue import SERVE, CopyQueue
from .ring import Observer, Ring, RingSlot, SlotState, Task

Array: TypeAlias = npt.NDArray[Any]
#: What a batch's data is: one array, or one for each field of a reader with several.
Data: TypeAlias = Array | tuple[Array, ...]
#: Shape and dtype of a buffer.
Part: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]

#: What ``debug=True`` writes over a slot that is given back.
POISON = 0xA5


# looked up through the class, a member is a call of Python
_FREE, _FILLING, _READY, _HELD = SlotState


@dataclass(frozen=True)
class SlotLayout:
    """Shape and dtype of a slot's buffers.

    ``rows``: of each field. ``several``: data is handed out as a tuple of arrays, not as one.
    ``out`` is None where what is handed out is views of the rows; then ``out_labels`` is None too,
    and the labels themselves are handed out.
    """

    rows: tuple[Part, ...]
    labels: Part | None
    several: bool = False
    out: tuple[Part, ...] | None = None
    out_labels: Part | None = None

    def sizes(self) -> list[int]:
        """Bytes of each buffer, in the order in which build() asks for them."""
        parts = (*self.rows, self.labels, *(self.out or ()), self.out_labels)
        return [math.prod(part[0]) * part[1].itemsize for part in parts if part is not None]

    def build(
        self,
        count: int,
        allocate: Allocate,
        view: Callable[[Sequence[Array]], tuple[Array, ...]],
    ) -> list[Slot]:
        """``count`` slots; ``view`` takes the rows of each field and returns what is handed out."""
        slots = []
        for number in range(count):
            rows = tuple(allocate(*part) for part in self.rows)
            labels = None if self.labels is None else allocate(*self.labels)
            if self.out is None:
                slots.append(Slot(number, rows, labels, view(rows), labels, self.several))
                continue
            out = tuple(allocate(*part) for part in self.out)
            out_labels = None if self.out_labels is None else allocate(*self.out_labels)
            slots.append(Slot(number, rows, labels, out, out_labels, self.several))
        return slots


def arrays_of(data: Data) -> tuple[Array, ...]:
    """The arrays of a batch's data, one or several."""
    return data if isinstance(data, tuple) else (data,)


class Slot(RingSlot):
    """The buffers of one batch, allocated once, and what is being done with them.

    ``rows``: memory that workers fill, (B, ...) of each field; ``labels``: (B, ...) or None;
    ``out``/``out_labels``: what is handed out: views of these, or buffers of their own where
    ``postprocess`` returns new arrays. ``several``: see :class:`SlotLayout`.
    """

    __slots__ = (
        "bad",
        "batch",
        "copied",
        "error_at",
        "labels",
        "out",
        "out_labels",
        "parts",
        "parts_left",
        "rows",
        "several",
    )

    plan: BatchPlan | None

    def __init__(
        self,
        number: int,
        rows: tuple[Array, ...],
        labels: Array | None,
        out: tuple[Array, ...],
        out_labels: Array | None,
        several: bool = False,
    ) -> None:
        super().__init__(number)
        self.rows = rows
        self.labels = labels
        self.out = out
        self.out_labels = out_labels
        self.several = several
        #: What was handed out last: weak references to the batch and to its first array.
        self.batch: tuple[weakref.ref[Any], weakref.ref[Array]] | None = None
        self.copied = False
        self.parts = 0
        self.parts_left = 0
        self.error_at = 0
        #: what ``on_error`` skipped or zeroed
        self.bad: list[BadRow] = []

    def served(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Record numbers of the rows (-1 where padded) and their mask: those of the plan, but for
        what ``on_error`` serves in place of bad samples."""
        plan = self.plan
        assert plan is not None
        if not self.bad:
            return plan.indices, plan.valid
        indices, mask = plan.indices.copy(), plan.valid.copy()
        for bad in self.bad:
            if bad.replacement is None:
                mask[bad.row] = False
            else:
                indices[bad.row] = bad.replacement
        return indices, mask

    def still_held(self) -> bool:
        """Whether the caller holds an array of the batch before, without its Batch."""
        return self.batch is not None and self.batch[0]() is None and self.batch[1]() is not None

    def poison(self) -> None:
        """Overwrite everything the caller could still be looking at."""
        for array in (*self.rows, self.labels, *self.out, self.out_labels):
            # what is not contiguous is a view of rows
            if array is not None and array.flags.c_contiguous:
                array.reshape(-1).view(np.uint8).fill(POISON)


class SlotRing(Ring[Slot]):
    """The slots of one reader. The consumer begins batches, and holds one, and those it keeps.

    A batch whose rows are only copied goes to ``copies``, where the reader has that queue. In debug
    mode a slot that was given back is overwritten before it is free.
    """

    def __init__(
        self,
        slots: list[Slot],
        in_flight: int,
        debug: bool = False,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(slots, holds=1, consumer_begins=True, observer=observer)
        self.in_flight = in_flight
        self._used: list[Slot] = []  # given back, to be poisoned before they are free
        self._poisoning = threading.RLock()  # entered before the other lock
        if debug:
            self._returned, self._returned_state = self._used, _READY
        #: called by the worker after each batch that became ready, outside the lock
        self.on_ready: Callable[[], None] | None = None
        #: for batches that are only copied; None where there are none
        self.copies: CopyQueue | None = None

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
                    found=f"{len(self._queue)} batches in flight, {len(self._kept)} kept",
                    expected=f"at most njob = {self.in_flight} together",
                    hint="call getNextBatch() first, or raise njob",
                )
            # free until _begin(): what Ctrl-C leaves half done here is done again
            slot = self._free[-1]
            rows = plan.indices.size
            count = max(1, min(parts, rows))
            slot.plan, slot.error, slot.bad = plan, None, []
            slot.parts = slot.parts_left = count
            slot.copied = copied
            if not copied:
                tasks = [
                    (slot, rows * part // count, rows * (part + 1) // count)
                    for part in range(count)
                ]
                self._begin(slot, tasks)
                return slot
            copies = self.copies
            assert copies is not None
            copies.prepare(slot.number, slot.generation + 1, plan.indices)
            serve = copies.needs_server() and not self._lanes[0].tasks
            self._begin(slot, ((slot, *SERVE),) if serve else (), counter=copies.published)
            return slot

    def take(self, timeout: float | None = None) -> tuple[Slot, BaseException | None]:
        """Wait for the oldest batch and hand it over; the batch held before is given back.

        A batch that failed comes with its error: its slot is free, and the batch held before stays
        valid.
        """
        observer, copies = self._observer, self.copies
        asked = 0.0 if observer is None else time.perf_counter()
        taken: Slot | None = None
        try:
            if copies is not None:
                copies.copy_until_whole(self._oldest_copied)
            with self._lock:
                slot = self._oldest(timeout)
                assert slot is not None  # what there is instead is raised
                if observer is not None:
                    self._show_copied(observer)
                error = self._hand_over(slot)
                if error is None:
                    taken = slot
        except BaseException:
            # Ctrl-C may come after a copy that a seek() in another thread waits for
            with self._lock:
                if self._waiting:
                    self._cond.notify_all()
            raise
        finally:
            if observer is not None:
                observer.waited(asked, taken)
        if self._used:
            self._free_used()
        if copies is not None:
            copies.taken_at = time.perf_counter()
        return slot, error

    def newest(self) -> BatchPlan | None:
        """The plan of the batch that was begun last; None where none is in flight."""
        with self._lock:
            return self._queue[-1].plan if self._queue else None

    def release(self, slot: Slot, generation: int) -> bool:
        """Give a held (or kept) batch back; False if it was given back before."""
        released = super().release(slot, generation)
        if self._used:
            self._free_used()
        return released

    def keep(self, slot: Slot, generation: int) -> None:
        """Hold a batch beyond the next take(), until release()."""
        with self._lock:
            self._check_open()
            if slot.generation != generation or slot.state is not _HELD:
                raise QueueFullError(
                    "this batch was given back: it can no longer be kept",
                    hint="call keep() before the next getNextBatch()",
                )
            if slot not in self._held:
                return
            if len(self._kept) >= self.in_flight - 1:
                raise QueueFullError(
                    "no more batches can be kept",
                    found=f"{len(self._kept)} kept",
                    expected=f"at most njob - 1 = {self.in_flight - 1}",
                    hint="release() one, or raise njob",
                )
            # no call from here on
            self._held = ()
            self._kept += (slot,)

    def hand_out(self, slot: Slot, copy: bool) -> tuple[Data, Array | None]:
        """Data and labels of a held slot, cut to the rows of its batch; private with ``copy``."""
        assert slot.plan is not None
        count, whole = slot.plan.indices.size, slot.rows[0].shape[0]

        def handed(array: Array) -> Array:
            # postprocess may have made something that has no row for each sample
            if count < whole == array.shape[0]:
                array = array[:count]
            return array.copy(order="K") if copy else array.view()  # of its own: see still_held

        labels = slot.out_labels
        seen = tuple(map(handed, slot.out)) if slot.several else handed(slot.out[0])
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
            tasks = self._lanes[0].tasks
            while tasks:
                slot, lo, _ = tasks[-1]
                # seen only if Ctrl-C ends the wait below: the batch stays queued, but is not filled
                error = WorkerError("this batch was dropped by an interrupted seek()")
                # no call from here on
                del tasks[-1]
                if lo >= 0:
                    slot.error = error
                    slot.parts_left -= 1
                    if slot.parts_left == 0:
                        slot.state = _READY
            if self.copies is not None:
                self.copies.copy_all()
            self._wait_for(self._all_filled)
            self._check_open()
            if self._waiting:
                self._cond.notify_all()
            while self._queue:
                slot = self._queue[-1]
                # no call from here on
                slot.error = None
                slot.state = self._returned_state
                self._returned += (slot,)
                del self._queue[-1]
                if self._observer is not None and self._returned is self._free:
                    self._observer.changed(slot)
            self.left = None
        if self._used:
            self._free_used()

    # -- worker side -----------------------------------------------------------------------

    def next_task(self, lane: int = 0, meter: Meter | None = None) -> Task[Slot] | None:
        """Wait for rows to fill; None when the ring is closed.

        Batches that are only copied are filled by this call, and counted in ``meter``.
        """
        while True:
            task = super().next_task(lane)
            if task is None or task[1:] != SERVE:
                return task
            del task  # an idle worker keeps no slot alive
            assert self.copies is not None
            self.copies.work(meter or Meter(), self._lock, self._wake)

    def part_done(self, slot: Slot, lo: int, error: BaseException | None) -> bool:
        """Note a filled part and its error (that of the first rows wins); True for the last."""
        with self._lock:
            if error is not None and (slot.error is None or lo < slot.error_at):
                slot.error, slot.error_at = error, lo
            slot.parts_left -= 1
            return slot.parts_left == 0

    def ready(self, slot: Slot, error: BaseException | None = None) -> None:
        """The batch is whole, or its error is known: it may be taken."""
        super().ready(slot, error)
        if self.on_ready is not None:
            self.on_ready()

    # -- both ------------------------------------------------------------------------------

    def close(self, failure: BaseException | None = None) -> None:
        """Refuse everything from now on and wake every waiter; idempotent."""
        super().close(failure)
        if self.copies is not None:
            self.copies.stop()

    # -- inside ----------------------------------------------------------------------------

    def _oldest_copied(self) -> Slot | None:
        """The oldest batch, if it is one to copy, and not whole."""
        with self._lock:
            if self._closed or not self._queue:
                return None
            slot = self._queue[0]
            return slot if slot.copied and not self._is_ready(slot) else None

    def _wake(self) -> None:
        if self._observer is not None:
            self._show_copied(self._observer)
        if self._waiting:
            self._cond.notify_all()

    def _show_copied(self, observer: Observer) -> None:
        """Show the observer which batches compiled code has copied; without one nobody asks."""
        for slot in self._queue:
            if slot.state is _FILLING and self._is_ready(slot):
                slot.state = _READY
                observer.changed(slot)

    def _can_begin(self) -> bool:
        return len(self._queue) < self.in_flight - len(self._kept) and bool(self._free)

    def _is_ready(self, slot: Slot) -> bool:
        if slot.state is _FILLING and slot.copied:
            assert self.copies is not None
            return bool(self.copies.marks[slot.number] == slot.generation)
        return slot.state is _READY

    def _refuse(self, timeout: float | None) -> None:
        self._check_open()
        if not self._queue:  # or another thread has taken it, or called seek()
            raise NothingQueuedError(
                "no batch is in flight", hint="call fetchData() before getNextBatch()"
            )
        head = self._queue[0]
        left = sum(1 for task in self._lanes[0].tasks if task[0] is head)
        idle = self._lanes[0].idle
        raise ReaderTimeoutError(
            f"no batch within {timeout} s",
            found=f"{head.parts - left} of {head.parts} parts of the oldest batch begun, "
            f"{idle} workers idle",
            hint="it is still being filled: call getNextBatch() again to wait on",
        )

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
                    if self._observer is not None:
                        self._observer.changed(slot)

    def _check_open(self) -> None:
        if self._closed:
            if self._failure is not None:
                raise self._failure
            raise ReaderClosedError("this reader is closed", hint="open a new AsyncReader")
