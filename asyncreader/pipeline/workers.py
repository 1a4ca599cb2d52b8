"""Workers that fill the slots of a ring: threads, or spawned processes over shared memory.

Processes are for ``postprocess`` functions that hold the GIL. They fill the same slots, with the
same tasks, order and errors. The slots lie in one file without a path, mapped by parent and
workers; its descriptor travels once, while a worker is spawned. A task is a few numbers on the
worker's pipe (the order is pure, so a worker works out its rows itself), and several are queued in
it. Where the system has memfd_create(2) nothing needs /dev/shm; nothing is ever forked.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Final, Generic, TypeAlias, TypeVar

import numpy as np

from ..errors import as_ours
from ..params.reader import ReaderParams
from ..pixels.user_transform import seed_generators
from ..sampling.rule import EACH_ROW
from ..sampling.schedule import Cursor, Schedule
from ..sources import SetIndex
from ..stats import BadRow, Meter
from ..system.array_types import UInt8
from ..system.signals import after_this, end_with_parent
from . import children
from .build import build_worker
from .children import STUCK_AFTER, Children, PackedError, packed_error
from .fill_batch import BatchFiller
from .ring import SlotRing
from .slots import Arena, Slot, SlotLayout, padded
from .trace import note

T = TypeVar("T")


class ThreadWorkers:
    """``count`` daemon threads that fill the slots of one ring.

    They hold no reference to the reader. So a reader that nobody uses is collected and closed.
    """

    def __init__(self, count: int, ring: SlotRing, filler: BatchFiller, name: str) -> None:
        self.meters = [Meter() for _ in range(count)]
        self._ring = ring
        self._threads = [
            threading.Thread(
                target=_work, args=(ring, filler, meter), name=f"{name}-{number}", daemon=True
            )
            for number, meter in enumerate(self.meters)
        ]

    def start(self) -> None:
        """Start all threads. If one cannot start, the ring is closed, and stop() joins the rest."""
        try:
            with after_this():
                for thread in self._threads:
                    thread.start()
        except BaseException:
            self._ring.close()
            raise

    def stop(self) -> None:
        """Join the threads of a closed ring. A warning names those that do not end."""
        for meter in self.meters:
            meter.stopped = True  # a batch of large images takes seconds: do not finish it
        children.join_or_leave(self._threads)


def _work(ring: SlotRing, filler: BatchFiller, meter: Meter) -> None:
    while True:
        task = ring.next_task(meter=meter)
        if task is None:
            return
        slot, lo, hi = task
        error: BaseException | None = None
        try:
            filler.fill_part(slot, lo, hi, meter)
        except BaseException as exc:
            error = as_ours(exc)
        if slot.parts == 1:
            slot.error = error
        elif not ring.part_done(slot, lo, error):
            continue
        if slot.error is None:
            try:
                filler.finish(slot, meter)
            except BaseException as exc:
                slot.error = as_ours(exc)
        ring.ready(slot)
        # an idle thread must not keep the slot alive
        del task, slot, error


# -- processes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How a worker rebuilds what the parent has, but for the set and the order: picklable, and
    small."""

    params: ReaderParams
    layout: SlotLayout
    arena: Arena


#: Bytes of a line of the caches.
_LINE: Final = 64

#: Parameters that hold what a user made.
_GIVEN: Final = ("transform", "postprocess", "data", "labels")

#: (slot number, cursor, lo, hi, whole, bad): fill rows; whole: and finish the batch.
#: lo = hi: only finish it; ``bad``: its bad samples, which were found by several workers.
_Task: TypeAlias = tuple[int, Cursor, int, int, bool, list[BadRow]]
#: (slot number, lo, whole, meter, bad, error): those rows are filled, and what was bad or wrong.
_Answer: TypeAlias = tuple[int, int, bool, Meter, list[BadRow], PackedError | None]


class Shared(Generic[T]):
    """A value for worker processes. Its large arrays lie in shared memory, once for all of them,
    where the processes may read them and not write.

    Pickles only while a process is being spawned, as the Arena.
    """

    def __init__(self, value: T) -> None:
        parts: list[pickle.PickleBuffer] = []
        self._head = pickle.dumps(value, protocol=5, buffer_callback=parts.append)
        raw = [part.raw() for part in parts]
        self._sizes = [one.nbytes for one in raw]
        # of no arrays, too, there is a piece of memory
        self._arena = Arena(max(1, sum(padded(size, _LINE) for size in self._sizes)), _LINE)
        for piece, one in zip(self._pieces(), raw, strict=True):
            piece[:] = np.frombuffer(one, np.uint8)

    def _pieces(self) -> list[UInt8]:
        return [self._arena.empty((size,), np.uint8) for size in self._sizes]

    def load(self) -> T:
        """The value, its arrays in the shared memory."""
        pieces = self._pieces()
        for piece in pieces:
            piece.flags.writeable = False
        value: T = pickle.loads(self._head, buffers=pieces)  # our own process wrote it
        return value

    def close(self) -> None:
        """Close the descriptor."""
        self._arena.close()


class ProcessWorkers:
    """``count`` spawned processes over one ring, with the methods of ThreadWorkers.

    Two threads of the parent move messages: one takes tasks from the ring and sends each to the
    worker with the fewest, the other waits on all pipes and sentinels. The other never sends: a
    worker that is sending reads nothing until what it sends is read.
    """

    def __init__(
        self, count: int, ring: SlotRing, recipe: Recipe, index: SetIndex, schedule: Schedule
    ) -> None:
        self.meters = [Meter() for _ in range(count)]
        self._children = Children("asyncreader-fill", 'workers="thread"')
        self._ring = ring
        # data and labels are in the index, the others in the schedule
        few = replace(recipe.params, data=None, labels=None, subset=None, weights=None)
        # batches are made in this process, which knows the rows of their samples
        layout = replace(recipe.layout, rule=EACH_ROW, lengths=())
        self._recipe = replace(recipe, params=few, layout=layout)
        self._given = {name: getattr(recipe.params, name) for name in _GIVEN}
        self._set = index, schedule
        self._offset = schedule.rank * schedule.batch
        #: tasks that each process has not answered
        self._queued = [0] * count
        self._lock = threading.Lock()
        #: ends of a pipe by which stop() wakes the thread that receives
        self._wake: tuple[int, ...] = ()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Spawn all processes and wait until each has opened the set; they get its index and the
        order, and share their memory from then on.

        Raises ParamsError where something or the main module cannot be sent, or the error
        with which a process failed to begin; nothing is left running then.
        """
        try:
            for name, value in self._given.items():
                self._children.check_picklable(
                    name,
                    value,
                    "use a function defined at the top of a module and data given by path",
                )
            self._wake = os.pipe()
            with contextlib.closing(Shared(self._set)) as shared:
                given = [(self._recipe, shared)] * len(self.meters)
                self._children.start(_main, given, ("feistel_rows", "pread_rows"))
            for name, target in (("send", self._send), ("receive", self._receive)):
                thread = threading.Thread(
                    target=self._help, args=(target,), name=f"asyncreader-fill-{name}", daemon=True
                )
                self._threads.append(thread)
                with after_this():
                    thread.start()
        except BaseException:
            self._ring.close()
            self.stop(0.0)
            raise

    def _help(self, target: Callable[[], None]) -> None:
        """Run one of the parent's threads; the consumer gets the error that ends it."""
        try:
            target()
        except BaseException as exc:
            self._ring.close(as_ours(exc))

    def stop(self, seconds: float = STUCK_AFTER) -> None:
        """End the processes of a closed ring: asked first, killed after that many seconds."""
        if threading.current_thread() in self._threads:
            return
        try:
            for end in self._wake[1:]:
                os.write(end, b"x")
        finally:
            self._children.end(self._threads, seconds)
            ends, self._wake = self._wake, ()
            for end in ends:
                os.close(end)
            self._recipe.arena.close()

    # -- messages --------------------------------------------------------------------------

    def _send(self) -> None:
        while True:
            task = self._ring.next_task()
            if task is None:
                return
            slot, lo, hi = task
            plan = slot.plan
            cursor = Cursor(plan.epoch, plan.start - self._offset, plan.step)
            whole, bad = slot.parts == 1 or lo == hi, slot.bad if lo == hi else []
            with self._lock:  # the process with the fewest tasks gets one more
                number = min(range(len(self._queued)), key=self._queued.__getitem__)
                self._queued[number] += 1
            # a dead or closed worker is the receiver's business
            with contextlib.suppress(OSError, ValueError):
                self._children.pipes[number].send((slot.number, cursor, lo, hi, whole, bad))

    def _receive(self) -> None:
        sentinels = {process.sentinel: process for process in self._children.processes}
        pipes = {pipe: number for number, pipe in enumerate(self._children.pipes)}
        wake = self._wake[0]
        while not self._ring.closed:
            try:
                ready = connection.wait([*pipes, *sentinels, wake])
            except OSError:
                return  # closed under us by stop()
            if wake in ready or self._ring.closed:
                return
            for source in ready:
                if isinstance(source, Connection):
                    try:
                        message = source.recv()
                    except (EOFError, OSError):
                        continue  # its sentinel tells why
                    self._done(pipes[source], message)
            for source in ready:
                if source in sentinels:
                    self._ring.close(children.death_of(sentinels[source]))
                    return

    def _done(self, number: int, answer: _Answer) -> None:
        slot_number, lo, whole, meter, bad, packed = answer
        with self._lock:
            self._queued[number] -= 1
        mine = self.meters[number]
        mine.seconds = meter.seconds
        if meter.spans:
            note(mine, meter.spans)
        slot = self._ring.slots[slot_number]
        slot.bad.extend(bad)
        error = None if packed is None else children.unpacked_error(packed)
        if whole:
            slot.error = slot.error or error
        elif not self._ring.part_done(slot, lo, error):
            return
        elif slot.error is None and self._recipe.layout.made:
            rows = slot.plan.indices.size
            self._ring.add_part(slot, rows, rows)
            return
        self._ring.ready(slot)


# -- in the worker -------------------------------------------------------------------------------


def _main(pipe: Connection, recipe: Recipe, shared: Shared[tuple[SetIndex, Schedule]]) -> None:
    try:
        end_with_parent()
        index, schedule = shared.load()
        filler, slots = build_worker(index, recipe.params, schedule, recipe.layout, recipe.arena)
    except BaseException as exc:
        pipe.send(packed_error(as_ours(exc), _here()))
        return
    pipe.send(None)
    meter = Meter()
    try:
        while True:
            task: _Task = pipe.recv()
            number, cursor, lo, hi, whole, bad = task
            slot, plan = slots[number], filler.schedule.plan(cursor)
            slot.plan, slot.bad = plan, list(bad)
            if plan.step & (plan.step - 1) == 0:
                filler.find_tables()
            if whole and recipe.params.postprocess is not None:
                seed_generators(plan.rng_key)
            error = _one(filler, slot, lo, hi, whole, meter)
            pipe.send((number, lo, whole, meter, slot.bad[len(bad) :], error))
            if meter.spans:
                meter.spans.clear()  # they are the parent's now
    except (EOFError, OSError):
        return  # the parent has ended, or closed the pipe


def _one(
    filler: BatchFiller, slot: Slot, lo: int, hi: int, whole: bool, meter: Meter
) -> PackedError | None:
    try:
        if lo < hi:
            filler.fill_part(slot, lo, hi, meter)
        if whole:
            filler.finish(slot, meter)
    except BaseException as exc:
        return packed_error(as_ours(exc), _here())
    return None


def _here() -> str:
    return f"worker process {os.getpid()}"
