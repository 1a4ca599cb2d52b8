"""Batches that compiled code fills without the GIL, from a queue in memory.

Filling a batch of 128 rows of 3 kB takes 10 to 60 us. Handing it to a thread that sleeps, or that
waits for the GIL, takes as long again. So such batches are not tasks of the ring: the ring
publishes them in a table, and compiled code takes one after another from it. That code runs in a
worker, as long as there are batches to fill, and in the consumer, if no thread has begun the batch
that it waits for.

A batch is claimed by compare-and-swap. After its last row its slot's state becomes READY, one
number in memory, or REFUSED where a checksum is not the recorded one: such a batch becomes a task
of the ring, which finds out what is wrong. Python reads the number: that needs a processor that
shows writes to other cores in order. On other processors batches go through the ring's tasks.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ..pixels import kernels
from ..pixels.row_maker import RowTables
from ..pixels.tables import CLAIMED, PUBLISHED, STOPPED, Jobs
from ..sampling.schedule import BatchPlan
from ..stats import Meter
from ..system.array_types import Int64
from ..system.memory import address_of
from .slots import FILLING, READY, REFUSED, Slot
from .trace import note

#: How often a thread looks for a job, or at its batch, before it sleeps: some 20 us in all.
LOOKS: Final = 20_000

#: With fewer seconds between two batches the consumer fills the next one and wakes no worker.
HURRIED: Final = 50e-6

_ORDERED: Final = platform.machine() in ("x86_64", "AMD64")


class FillQueue:
    """Batches of the slots of one ring that compiled code fills.

    ``tables``: what is written into the ``slots``, and into the mark of each, which becomes READY
    when it is whole; ``servers``: workers that serve the queue at a time; ``traced``: notes in
    their meters when batches were filled, see trace.py.

    Only the ring writes here, under its lock; compiled code claims and marks. ``control``,
    ``jobs``: see tables.py; ``queue``: slot numbers as they were published.
    """

    def __init__(
        self, slots: Sequence[Slot], tables: RowTables, servers: int, traced: bool = False
    ) -> None:
        self.servers = servers
        self._traced = traced
        self.meter = Meter()  # for what consumers fill
        self.taken_at = 0.0  # when the consumer got its last batch
        self._hurried = False  # the consumer comes back sooner than a worker wakes up
        self._serving = 0  # workers that serve the queue
        control, queue = np.zeros(3, np.int64), np.zeros(len(slots), np.int64)
        filler = tables.filler
        self._each = len(filler.terms)  # jobs of a batch
        self.jobs, self._marks = Jobs(len(slots) * self._each), list[int]()
        for number, slot in enumerate(slots):
            self._marks.append(address_of(np.asarray(slot.mark)))
            self.jobs.mark(number * self._each, self._marks[-1], READY, REFUSED)
        self._fill = getattr(kernels, filler.kernel)
        self._draws = filler.draws
        self._arguments = (control, queue, self.jobs.table, tables.files, *filler.arguments)
        # memoryviews: items are read and written without a call
        self.control, self.queue = control.data, queue.data
        # their addresses are in the tables: they must stay alive
        self._alive: tuple[RowTables, object] | None = tables, [slot.mark for slot in slots]
        #: what each slot had when it was published last
        self._memory: list[object] = [None] * len(slots)
        #: the records of each field
        self._own: list[Sequence[Int64]] = [()] * len(slots)
        self._published = self.control[PUBLISHED : PUBLISHED + 1]

    @staticmethod
    def available() -> bool:
        """Whether compiled code can serve a queue on this machine."""
        return _ORDERED

    def waiting(self) -> bool:
        """Whether there is a batch that no thread has begun."""
        return self.control[PUBLISHED] > self.control[CLAIMED]

    # -- the ring, under its lock ------------------------------------------------------------

    def prepare(self, slot: Slot, plan: BatchPlan) -> memoryview[int]:
        """Write down the batch of a slot. One more of what is returned publishes it."""
        published, number = self.control[PUBLISHED], slot.number
        if self._memory[number] is not slot.memory:  # at first, and with copy=True
            place = address_of(slot.labels)
            # the last where labels are a field of their own
            outs = [*map(address_of, slot.rows), place][: self._each]
            for job, out in enumerate(outs, number * self._each):
                self.jobs.memory(job, out, place)
            self._memory[number] = slot.memory
        assert self._alive is not None
        found = self._alive[0].records
        self._own[number] = own = (plan.indices,) if found is None else found(plan.indices)
        drawn = (plan.signed_key, plan.start) if self._draws else ()
        for job, records in enumerate(own, number * self._each):
            self.jobs.records(job, records, *drawn)
        self.queue[published % len(self.queue)] = number
        return self._published

    def needs_server(self) -> bool:
        """Whether an idle worker is to be woken for the batch that comes next."""
        return self._serving < self.servers and (self.waiting() or not self._hurried)

    def stop(self) -> None:
        """Begin no other batch."""
        self.control[STOPPED] = 1

    def let_go(self) -> None:
        """Own files and memory no longer, after stop(): a thread that still fills has its own
        reference to them."""
        self._alive = None

    def fill_all(self) -> None:
        """Fill all batches that no thread has begun."""
        self.fill(self.meter)

    def fill(self, meter: Meter, most: int = 1 << 62, looks: int = 0) -> None:
        """Fill ``most`` batches, as long as there is one that no thread has begun, or comes while
        this looks so many times. Their seconds go to ``meter``."""
        alive = self._alive  # not in vain: see let_go()
        claimed, started = self.control[CLAIMED], time.perf_counter()
        self._fill(*self._arguments, most, looks)
        del alive
        now = time.perf_counter()
        meter.seconds["read"] += now - started
        if self._traced and self.control[CLAIMED] > claimed:
            note(meter, [("fill queue", started, now, {})])

    # -- workers -----------------------------------------------------------------------------

    def work(self, meter: Meter, lock: threading.RLock, filled: Callable[[], None]) -> None:
        """Fill batches while there are any, unless enough workers do so.

        ``lock``: the ring's; ``filled``: wakes those who wait for a batch, under that lock.
        """
        with lock:
            if self._serving >= self.servers:
                return
            self._serving += 1
        serves = True
        while serves:
            self.fill(meter, looks=LOOKS)
            with lock:
                filled()
                serves = self.waiting() and not self.control[STOPPED]
                self._serving -= not serves

    # -- the consumer ------------------------------------------------------------------------

    def fill_until_whole(self, oldest: Callable[[], Slot | None]) -> None:
        """Fill batches until ``oldest`` (the one waited for) is None, or none is left to fill.

        Filling one takes less time than waking a thread. Ctrl-C comes before or after it.
        """
        self._hurried = time.perf_counter() - self.taken_at < HURRIED
        while (slot := oldest()) is not None:
            if not self.waiting():
                self.look(slot.number)
                return
            self.fill(self.meter, 1)
            if slot.mark[0] != FILLING:
                return

    def look(self, number: int) -> None:
        """Wait some microseconds for the batch in slot ``number`` to be whole."""
        alive = self._alive
        if alive is not None:  # else the mark may be gone
            kernels.await_batch(self._marks[number], FILLING, LOOKS)
        del alive
