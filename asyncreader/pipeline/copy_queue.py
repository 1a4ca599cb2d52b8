"""Small batches whose rows are only copied: a queue that compiled code serves without the GIL.

Copying a batch of 128 rows of 3 kB takes 30 to 60 us. Handing it to a thread that sleeps, or that
waits for the GIL, takes as long again. So such batches are not tasks of the ring: the ring
publishes them in a table, and compiled code takes one after another from it. That code runs in a
worker, as long as there are batches to copy, and in the consumer, if no thread has begun the batch
that it waits for.

A batch is claimed by compare-and-swap, and after its last row its slot's state becomes READY, one
number in memory. Python reads it: that needs a processor that shows writes to other cores in order.
On other processors, and without numba, batches go through the ring's tasks.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ..array_types import Array, Int64
from ..pixels import kernels
from ..pixels.rows import streams
from ..stats import Meter
from ..system.memory import address_of
from .owners import READY, RingSlot
from .trace import note

#: How often a thread looks for a job, or at its batch, before it sleeps: some 20 us in all.
LOOKS: Final = 20_000

#: With fewer seconds between two batches the consumer copies the next one and wakes no worker.
HURRIED: Final = 50e-6

#: Items of ``control``.
CLAIMED, PUBLISHED, STOPPED = range(3)

_ORDERED: Final = platform.machine() in ("x86_64", "AMD64")


class CopyQueue:
    """Batches of the slots of one ring that are copied as they are.

    ``outs``: the rows of each slot, its labels (None without any) and its mark, where READY is
    written when it is whole (see owners.py);
    ``labels``: the table that labels are copied from; ``extents``: where rows are (the arguments
    of kernels.copy_batches from ``source`` to ``stride``); ``servers``: workers that serve the
    queue at a time; ``traced``: notes in their meters when batches were copied, see trace.py.

    Only the ring writes here, under its lock; compiled code claims and marks. ``control``: batches
    claimed, batches published, and 1 after close(); ``queue``: slot numbers as they were published;
    ``jobs``: for each slot its number of rows, the address of their record numbers, the addresses
    that they go to, of its mark, and what is written there.
    """

    def __init__(
        self,
        outs: Sequence[tuple[Array, Array | None, memoryview[int]]],
        labels: Array | None,
        extents: tuple[int, Int64, int, int],
        servers: int,
        traced: bool = False,
    ) -> None:
        self.servers = servers
        self._traced = traced
        self.meter = Meter()  # for what consumers copy
        self.taken_at = 0.0  # when the consumer got its last batch
        self._hurried = False  # the consumer comes back sooner than a worker wakes up
        self._serving = 0  # workers that serve the queue
        rows = outs[0][0]
        row_bytes = rows.nbytes // rows.shape[0]
        label_bytes = 0 if labels is None else labels.nbytes // labels.shape[0]
        control, queue = np.zeros(3, np.int64), np.zeros(len(outs), np.int64)
        jobs = np.array(
            [
                (0, 0, address_of(data), address_of(label), address_of(np.asarray(mark)), READY)
                for data, label, mark in outs
            ],
            np.int64,
        )
        self._arguments = (
            *(control, queue, jobs, *extents, row_bytes, streams(row_bytes, rows.nbytes)),
            *(0 if labels is None else labels.ctypes.data, label_bytes),
        )
        # their addresses are in the arguments: they must stay alive
        self._alive = (outs, labels)
        # memoryviews: items are read and written without a call
        self.control, self.queue, self.jobs = control.data, queue.data, jobs.data
        self._published = self.control[PUBLISHED : PUBLISHED + 1]

    @staticmethod
    def available() -> bool:
        """Whether compiled code can serve a queue on this machine."""
        return _ORDERED and kernels.compiled()

    def waiting(self) -> bool:
        """Whether there is a batch that no thread has begun."""
        return self.control[PUBLISHED] > self.control[CLAIMED]

    # -- the ring, under its lock ------------------------------------------------------------

    def prepare(self, number: int, records: Int64) -> memoryview[int]:
        """Write down the batch of slot ``number``. One more of what is returned publishes it."""
        jobs, published = self.jobs, self.control[PUBLISHED]
        jobs[number, 0], jobs[number, 1] = records.size, address_of(records)
        self.queue[published % len(self.queue)] = number
        return self._published

    def needs_server(self) -> bool:
        """Whether an idle worker is to be woken for the batch that comes next."""
        return self._serving < self.servers and (self.waiting() or not self._hurried)

    def stop(self) -> None:
        """Begin no other batch."""
        self.control[STOPPED] = 1

    def copy_all(self) -> None:
        """Copy all batches that no thread has begun."""
        kernels.copy_batches(*self._arguments, 1 << 62, 0)

    # -- workers -----------------------------------------------------------------------------

    def work(self, meter: Meter, lock: threading.RLock, copied: Callable[[], None]) -> None:
        """Copy batches while there are any, unless enough workers do so.

        ``lock``: the ring's; ``copied``: wakes those who wait for a batch, under that lock.
        """
        with lock:
            if self._serving >= self.servers:
                return
            self._serving += 1
        serves = True
        while serves:
            self.serve(meter)
            with lock:
                copied()
                serves = self.waiting() and not self.control[STOPPED]
                self._serving -= not serves

    def serve(self, meter: Meter) -> None:
        """Copy batches until there has been none for some microseconds."""
        claimed = self.control[CLAIMED]
        started = time.perf_counter()
        kernels.copy_batches(*self._arguments, 1 << 62, LOOKS)
        now = time.perf_counter()
        meter.seconds["read"] += now - started
        if self._traced and self.control[CLAIMED] > claimed:
            note(meter, [("copy", started, now, {})])

    # -- the consumer ------------------------------------------------------------------------

    def copy_until_whole(self, oldest: Callable[[], RingSlot | None]) -> None:
        """Copy batches until ``oldest`` (the one waited for) is None, or none is left to copy.

        A copy takes less time than waking a thread. Ctrl-C comes before or after a copy.
        """
        self._hurried = time.perf_counter() - self.taken_at < HURRIED
        while (slot := oldest()) is not None:
            if not self.waiting():
                self.look(slot.number)
                return
            self.copy_one()
            if slot.mark[0] == READY:
                return

    def copy_one(self) -> None:
        """Copy the oldest batch that no thread has begun, if there is one."""
        started = time.perf_counter()
        kernels.copy_batches(*self._arguments, 1, 0)
        now = time.perf_counter()
        self.meter.seconds["read"] += now - started
        if self._traced:
            note(self.meter, [("copy", started, now, {})])

    def look(self, number: int) -> None:
        """Wait some microseconds for the batch in slot ``number`` to be whole."""
        kernels.await_batch(self.jobs[number, 4], self.jobs[number, 5], LOOKS)
