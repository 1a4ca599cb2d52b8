"""Processes that fill slots: the same slots in shared memory, the same tasks, order and errors.

For ``postprocess`` functions that hold the GIL. The slots lie in one file without a path, mapped by
parent and workers; its descriptor travels once, while a worker is spawned. A task is a few numbers
on the worker's pipe (the order is pure, so a worker works out its rows itself), and several are
queued in it. Where the system has memfd_create(2) nothing needs /dev/shm; nothing is ever forked.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np

from ..array_types import UInt8
from ..errors import AsyncReaderError, ParamsError, WorkerError, as_ours
from ..params import ReaderParams
from ..pixels import kernels
from ..sampling.schedule import BatchPlan, Cursor
from ..sources import SetIndex
from ..stats import BadRow, Meter
from ..system.signals import after_this, disown, end_with_parent, start_child
from .fill_batch import BatchFiller
from .ring import Ring
from .shared_memory import Arena
from .slots import Slot, SlotLayout, SlotRing
from .threads import STUCK_AFTER
from .trace import note

T = TypeVar("T")


@dataclass(frozen=True)
class Recipe:
    """How a worker rebuilds what the parent has, but for the set: picklable, and small."""

    params: ReaderParams
    rank: int
    world_size: int
    layout: SlotLayout
    arena: Arena
    build: Callable[
        [SetIndex, ReaderParams, int, int, SlotLayout, Arena], tuple[BatchFiller, list[Slot]]
    ]


#: Parameters that hold what a user made.
_GIVEN: Final = ("postprocess", "data", "labels")

#: (slot number, cursor, lo, hi, whole): fill rows; whole: and finish the batch.
#: lo = hi = -1: only finish it.
_Task: TypeAlias = tuple[int, Cursor, int, int, bool]


class ProcessGroup:
    """``count`` spawned processes with a pipe each, and one parent thread that reads every pipe.

    Whoever derives from it says what a process runs (``_started_with``), what it sends (``_hear``)
    and what that means (``_heard``).
    """

    #: What to do instead where processes cannot be had.
    instead = 'workers="thread"'
    #: Kernels that every process will use.
    kernels: tuple[str, ...] = ()

    def __init__(self, count: int, ring: Ring[Any], name: str) -> None:
        self._count = count
        self._ring = ring
        self._name = name
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._queued = [0] * count
        self._lock = threading.Lock()
        self._wake_read = self._wake_write = -1
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Spawn all processes and wait until each has said that it is ready.

        Raises ParamsError where something or the main module cannot be sent, or the error
        with which a process failed to begin; nothing is left running then.
        """
        try:
            self._check_picklable()
            self._wake_read, self._wake_write = os.pipe()
            self._kernels_folder = kernels.share(self.kernels)
            for number in range(self._count):
                self._spawn(number)
            for process, pipe in zip(self._processes, self._pipes, strict=True):
                self._await_ready(process, pipe)
            for target in self._helpers():
                thread = threading.Thread(
                    target=self._help,
                    args=(target,),
                    name=f"{self._name}-{target.__name__.strip('_')}",
                    daemon=True,
                )
                self._threads.append(thread)
                with after_this():
                    thread.start()
        except BaseException:
            self._ring.close()
            self.stop(0.0)
            raise

    def _spawn(self, number: int) -> None:
        mine, theirs = self._context.Pipe()
        self._pipes.append(mine)
        target, arguments = self._started_with(number)
        process = self._context.Process(
            target=_begin,
            args=(self._kernels_folder, target, theirs, *arguments),
            name=f"{self._name}-{number}",
            daemon=True,
        )
        try:
            with theirs:
                start_child(process)
        except (AssertionError, RuntimeError) as exc:  # so multiprocessing refuses
            raise ParamsError(
                "this process may not start worker processes",
                found="a daemonic process, as of a Pool or a DataLoader"
                if isinstance(exc, AssertionError)
                else "a process that is only starting itself",
                hint='start training under if __name__ == "__main__":, and open what has workers '
                f"in the function that a process runs, not as its argument; or {self.instead}",
            ) from exc
        self._processes.append(process)

    def _help(self, target: Callable[[], None]) -> None:
        """Run one of the parent's threads; the consumer gets the error that ends it."""
        try:
            target()
        except BaseException as exc:
            self._ring.close(as_ours(exc))

    def _started_with(self, number: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Function that process ``number`` runs, and its arguments behind the pipe."""
        raise NotImplementedError

    def _hear(self, pipe: Connection) -> tuple[Any, ...]:
        """Receive one message."""
        raise NotImplementedError

    def _heard(self, number: int, message: tuple[Any, ...]) -> None:
        """Act on a message of process ``number``."""
        raise NotImplementedError

    def _check_picklable(self) -> None:
        """ParamsError if something cannot be sent to a process."""
        raise NotImplementedError

    def _helpers(self) -> tuple[Callable[[], None], ...]:
        """What the parent's threads run."""
        return (self._receive,)

    def _try_pickle(self, name: str, value: Any, hint: str) -> None:
        """ParamsError unless ``value`` can be pickled."""
        try:
            reduction.ForkingPickler(io.BytesIO()).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError) as exc:
            raise ParamsError(
                f"{name} cannot be sent to worker processes",
                found=str(exc),
                hint=f"{hint}, or {self.instead}",
            ) from exc

    def _await_ready(self, process: Any, pipe: Connection) -> None:
        try:
            (error,) = _receive_error(pipe)
        except (EOFError, OSError):
            process.join(STUCK_AFTER)
            raise ParamsError(
                "a worker process could not start",
                found=f"exit code {process.exitcode}; its message is on standard error",
                hint="its main module must be importable: a file, with the training started under "
                'if __name__ == "__main__":, not a notebook cell or standard input; '
                f"or use {self.instead}",
            ) from None
        if error is not None:
            raise error

    def stop(self, seconds: float = STUCK_AFTER) -> None:
        """End the processes of a closed ring: asked first, killed after that many seconds."""
        if threading.current_thread() in self._threads:
            return
        try:
            if self._wake_write >= 0:
                os.write(self._wake_write, b"x")
            self._join(STUCK_AFTER)
        finally:
            self._end_processes(seconds)
            self._close_descriptors()

    def _join(self, seconds: float) -> bool:
        """Whether all threads have ended, within that many seconds."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _end_processes(self, seconds: float) -> None:
        processes, self._processes = self._processes, []
        try:
            if not self._join(0.0):  # in the midst of a message: only the other side's end helps
                _kill(processes)
                self._join(STUCK_AFTER)
            for pipe in self._pipes:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()  # a worker that waits for a task sees the end and leaves
            _await_end(processes, seconds)
        finally:
            _kill(processes)
            for process in processes:
                process.join(STUCK_AFTER)
                try:
                    process.close()
                except ValueError:  # somebody else reaps our children: it never hears of their end
                    disown(process)

    def _close_descriptors(self) -> None:
        fds, self._wake_read, self._wake_write = (self._wake_read, self._wake_write), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def _least_busy(self) -> int:
        """The process with the fewest tasks, which gets one more."""
        with self._lock:
            number = min(range(self._count), key=self._queued.__getitem__)
            self._queued[number] += 1
        return number

    def _receive(self) -> None:
        sentinels = {process.sentinel: process for process in self._processes}
        pipes = {pipe: number for number, pipe in enumerate(self._pipes)}
        while not self._ring.closed:
            try:
                ready = connection.wait([*pipes, *sentinels, self._wake_read])
            except OSError:
                return  # closed under us by stop()
            if self._wake_read in ready or self._ring.closed:
                return
            for source in ready:
                if isinstance(source, Connection):
                    try:
                        message = self._hear(source)
                    except (EOFError, OSError):
                        continue  # its sentinel tells why
                    self._heard(pipes[source], message)
            for source in ready:
                if source in sentinels:
                    self._ring.close(_death(sentinels[source]))
                    return


class Shared(Generic[T]):
    """A value for worker processes. Its large arrays lie in shared memory, once for all of them,
    where the processes may read them and not write.

    Pickles only while a process is being spawned, as the Arena.
    """

    def __init__(self, value: T) -> None:
        parts: list[pickle.PickleBuffer] = []
        self._head = pickle.dumps(value, protocol=5, buffer_callback=parts.append)
        raw = [part.raw() for part in parts]
        self._ends = np.cumsum([_line(one.nbytes) for one in raw], dtype=np.int64).tolist()
        self._sizes = [one.nbytes for one in raw]
        self._bytes = max([1, *self._ends])  # of no arrays, too, there is a piece of memory
        self._arena = Arena(self._bytes)
        for piece, one in zip(self._pieces(), raw, strict=True):
            piece[:] = np.frombuffer(one, np.uint8)

    def _pieces(self) -> list[UInt8]:
        whole = self._arena.start(self._bytes)
        return [
            whole[end - _line(size) :][:size]
            for end, size in zip(self._ends, self._sizes, strict=True)
        ]

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


def _line(size: int) -> int:
    """``size`` rounded up to whole cache lines."""
    return -(-size // 64) * 64


class ProcessWorkers(ProcessGroup):
    """``count`` spawned processes over one ring, with the methods of ThreadWorkers.

    Two threads of the parent move messages: one takes tasks from the ring and sends each to the
    worker with the fewest, the other waits on all pipes and sentinels.
    """

    kernels = ("feistel_rows", "gather_rows")
    _ring: SlotRing

    def __init__(
        self,
        count: int,
        ring: SlotRing,
        recipe: Recipe,
        index: SetIndex,
        rank: int,
        batch: int,
    ) -> None:
        super().__init__(count, ring, "asyncreader-fill")
        self.meters = [Meter() for _ in range(count)]
        # data and labels are in the index
        self._recipe = replace(recipe, params=replace(recipe.params, data=None, labels=None))
        self._given = {name: getattr(recipe.params, name) for name in _GIVEN}
        self._index = index
        self._shared: Shared[SetIndex] | None = None
        self._offset = rank * batch

    def _started_with(self, number: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return _main, (self._recipe, self._shared)

    def _check_picklable(self) -> None:
        for name, value in self._given.items():
            self._try_pickle(
                name, value, "use a function defined at the top of a module and data given by path"
            )
        self._shared = Shared(self._index)

    def start(self) -> None:
        """Spawn all processes; they get the set's index, and share its memory from then on."""
        try:
            super().start()
        finally:
            if self._shared is not None:
                self._shared.close()
                self._shared = None

    def _helpers(self) -> tuple[Callable[[], None], ...]:
        return self._send, self._receive

    def _close_descriptors(self) -> None:
        super()._close_descriptors()
        self._recipe.arena.close()

    # -- messages --------------------------------------------------------------------------

    def _send(self) -> None:
        while True:
            task = self._ring.next_task()
            if task is None:
                return
            slot, lo, hi = task
            self._give(slot, lo, hi, slot.parts == 1)

    def _give(self, slot: Slot, lo: int, hi: int, whole: bool) -> None:
        plan = slot.plan
        assert plan is not None
        cursor = Cursor(plan.epoch, plan.start - self._offset, plan.step)
        number = self._least_busy()
        # a dead or closed worker is the receiver's business
        with contextlib.suppress(OSError, ValueError):
            self._pipes[number].send((slot.number, cursor, lo, hi, whole))

    def _hear(self, pipe: Connection) -> tuple[Any, ...]:
        return _receive_error(pipe)

    def _heard(self, number: int, message: tuple[Any, ...]) -> None:
        self._done(number, *message)

    def _done(
        self,
        number: int,
        slot_number: int,
        lo: int,
        whole: bool,
        meter: Meter,
        bad: list[BadRow],
        error: AsyncReaderError | None,
    ) -> None:
        with self._lock:
            self._queued[number] -= 1
        mine = self.meters[number]
        mine.seconds = meter.seconds
        if meter.spans:
            note(mine, meter.spans)
        slot = self._ring.slots[slot_number]
        slot.bad.extend(bad)
        if whole or lo < 0:
            slot.error = slot.error or error
        elif not self._ring.part_done(slot, lo, error):
            return
        elif slot.error is None and self._recipe.layout.made:
            self._give(slot, -1, -1, True)
            return
        self._ring.ready(slot)


def _await_end(processes: list[Any], seconds: float) -> list[Any]:
    """The ``processes`` that have not ended within that many seconds."""
    left = {process.sentinel: process for process in processes}
    until = time.monotonic() + seconds
    while left and (gone := connection.wait(list(left), max(0.0, until - time.monotonic()))):
        for sentinel in gone:
            del left[sentinel]
    return list(left.values())


def _kill(processes: list[Any]) -> None:
    # only one whose sentinel is still open: the process id of an ended one may be reused by now
    for process in _await_end(processes, 0.0):
        process.kill()


def _death(process: Any) -> WorkerError:
    process.join(STUCK_AFTER)
    code = process.exitcode
    how = f"exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            how = f"signal {signal.Signals(-code).name}"
    return WorkerError(
        "a worker process died",
        found=f"process {process.pid}, {how}",
        hint="open the reader again; state_dict() of before still holds",
    )


# -- in the worker -------------------------------------------------------------------------------


def _begin(folder: str | None, target: Callable[..., None], *arguments: Any) -> None:
    kernels.share_of(folder)
    target(*arguments)


def _main(pipe: Connection, recipe: Recipe, index: Shared[SetIndex]) -> None:
    try:
        end_with_parent()
        filler, slots = recipe.build(
            index.load(),
            recipe.params,
            recipe.rank,
            recipe.world_size,
            recipe.layout,
            recipe.arena,
        )
    except BaseException as exc:
        _send_error(pipe, as_ours(exc))
        return
    _send_error(pipe, None)
    meter = Meter()
    try:
        for number, cursor, lo, hi, whole in _tasks(pipe):
            slot, plan = slots[number], filler.schedule.plan(cursor)
            if whole and recipe.params.postprocess is not None:
                _seed_generators(plan.rng_key)
            error = _one(filler, slot, plan, lo, hi, whole, meter)
            _send_error(pipe, error, number, lo, whole, meter, slot.bad)
            if meter.spans:
                meter.spans.clear()  # they are the parent's now
    except OSError:
        return  # the parent has ended


def _seed_generators(key: int) -> None:
    """Seed what a postprocess may draw from besides its rng: the global generators of ``random``,
    numpy and, where it is imported, torch. This process has no other thread that draws."""
    words = [key & 0xFFFFFFFF, key >> 32]
    random.seed(key)
    np.random.seed([*words, 1])  # of the same words alone both would draw the same numbers
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(key)


def _tasks(pipe: Connection) -> Iterator[_Task]:
    while True:
        try:
            yield pipe.recv()
        except (EOFError, OSError):
            return


def _one(
    filler: BatchFiller, slot: Slot, plan: BatchPlan, lo: int, hi: int, whole: bool, meter: Meter
) -> AsyncReaderError | None:
    slot.plan, slot.bad = plan, []
    try:
        if lo >= 0:
            filler.fill_part(slot, lo, hi, meter)
        if whole:
            filler.finish(slot, meter)
    except BaseException as exc:
        return as_ours(exc)
    return None


def _describe(error: AsyncReaderError) -> tuple[AsyncReaderError, str, BaseException | None]:
    """An error as it can cross a pipe: itself, the worker's trace, and its cause where that can."""
    cause = error.__cause__
    trace = "".join(traceback.format_exception(cause or error))
    if cause is not None:
        try:
            reduction.ForkingPickler(io.BytesIO()).dump(cause)
        except Exception:
            cause = RuntimeError(f"{type(cause).__name__}: {cause}")
    return error, f"in worker process {os.getpid()}:\n{trace}", cause


def _send_error(pipe: Connection, error: AsyncReaderError | None, *head: Any) -> None:
    """Send (*head, error, trace), and its cause as a message of its own: it may not unpickle."""
    if error is None:
        pipe.send((*head, None, None))
        return
    error, trace, cause = _describe(error)
    pipe.send((*head, error, trace))
    pipe.send(cause)


def _receive_error(pipe: Connection) -> tuple[Any, ...]:
    """What _send_error sent, the error put together again."""
    *head, error, trace = pipe.recv()
    if error is not None:
        try:
            cause = pipe.recv()
        except (EOFError, OSError):
            raise
        except Exception as exc:  # a class whose pickle only goes one way
            cause = RuntimeError(f"the original error cannot be unpickled: {exc!r}")
        error.__cause__ = cause
        error.add_note(trace)
    return (*head, error)
