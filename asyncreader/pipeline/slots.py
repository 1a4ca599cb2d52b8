"""Slots of a reader: the buffers of its batches, and the memory that worker processes share."""

from __future__ import annotations

import math
import os
import sys
import weakref
from array import array as numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import context, reduction
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import ParamsError, closed_on_error
from ..sampling.rule import EACH_ROW, Lengths, Rule
from ..sampling.schedule import BatchPlan
from ..stats import BadRow
from ..system.array_types import Array, Bools, Int64
from ..system.memory import PAGE, map_file, shared_file

#: What a batch's data is: one array, or one for each field of a reader with several.
Data: TypeAlias = Array | tuple[Array, ...]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]
#: Gives what the user sees of the rows of each field.
View: TypeAlias = Callable[[Sequence[Array]], tuple[Array, ...]]

#: Memory of batches that were handed out for good, looked at for some that the caller has dropped.
GIVEN: Final = 3

#: What ``debug=True`` writes over a slot that is given back.
POISON = 0xA5


#: The states of a slot, as they are written to ``Slot.mark``, and their names. It is owned by the
#: ring, by the workers, by the ring again, by the caller. REFUSED is FILLING by compiled code that
#: has found a wrong checksum: the workers fill the slot anew.
FREE, FILLING, READY, HELD, REFUSED = range(5)
STATES: Final = ("free", "filling", "ready", "held", "filling")

#: Rows lo to hi of a slot: what one worker does at a time.
Task: TypeAlias = tuple["Slot", int, int]


class Part(NamedTuple):
    """Shape and dtype of an array. ``new``: it has memory of its own, not that of the array that
    was in its place before the stage that made it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    new: bool = True


@dataclass(frozen=True)
class BatchLayout:
    """The arrays of whole batches, (B, ...) or what ``postprocess`` makes of that.

    ``data``: of each field; ``several``: data is handed out as a tuple of arrays, not as one.
    """

    data: tuple[Part, ...]
    labels: Part | None
    several: bool = False


class BatchArrays(NamedTuple):
    """The arrays of one batch: see :class:`BatchLayout`."""

    data: tuple[Array, ...]
    labels: Array | None
    several: bool = False

    def layout(self) -> BatchLayout:
        """Their layout, as it is given to the next stage: nothing of it is new."""
        data = (Part(array.shape, array.dtype, False) for array in self.data)
        labels = None if self.labels is None else Part(self.labels.shape, self.labels.dtype, False)
        return BatchLayout(tuple(data), labels, self.several)

    def made_into(self, layout: BatchLayout, allocate: Allocate) -> BatchArrays:
        """The arrays that a stage makes of these."""
        data = (
            allocate(part.shape, part.dtype) if part.new else self.data[number]
            for number, part in enumerate(layout.data)
        )
        labels = layout.labels and (
            allocate(layout.labels.shape, layout.labels.dtype) if layout.labels.new else self.labels
        )
        return BatchArrays(tuple(data), labels, layout.several)


@dataclass(frozen=True)
class SlotLayout:
    """What the buffers of a slot are.

    ``rows``: the memory of each field and of the labels; ``made``: what each stage makes of these
    (see stages.py); ``sets``: the record numbers at which the sets of a mix end; ``rule``: what a
    sample is; ``lengths``: of the samples of each field, where they differ.
    """

    rows: BatchLayout
    made: tuple[BatchLayout, ...] = ()
    sets: tuple[int, ...] = ()
    rule: Rule = EACH_ROW
    lengths: tuple[Lengths | None, ...] = ()

    def sizes(self) -> list[int]:
        """Bytes of each buffer, in the order in which build() asks for them."""
        parts = (part for one in (self.rows, *self.made) for part in (*one.data, one.labels))
        new = (part for part in parts if part is not None and part.new)
        return [math.prod(part.shape) * part.dtype.itemsize for part in new]

    def build(self, count: int, allocate: Allocate, view: View) -> list[Slot]:
        """``count`` slots; ``view`` takes the rows of each field and returns what the user sees."""
        return [Slot(number, self.memory(allocate, view), self) for number in range(count)]

    def memory(self, allocate: Allocate, view: View) -> SlotMemory:
        """The memory of one slot: see :meth:`build`."""
        rows = tuple(allocate(*part[:2]) for part in self.rows.data)
        labels = None if self.rows.labels is None else allocate(*self.rows.labels[:2])
        made = [BatchArrays(view(rows), labels, self.rows.several)]
        for layout in self.made:
            made.append(made[-1].made_into(layout, allocate))
        return SlotMemory(rows, tuple(made))


class SlotMemory:
    """The arrays of a slot.

    ``rows``: memory that workers fill, (B, ...) of each field; ``made``: these, and the labels, as
    the user sees them, then what each stage makes of them.
    """

    def __init__(self, rows: tuple[Array, ...], made: tuple[BatchArrays, ...]) -> None:
        self.rows, self.made = rows, made
        self._owners = _owners(rows, made)
        self._unreached = self._references()

    def reached(self) -> bool:
        """Whether more refers to the arrays than when they were made: a view refers to the array
        that has its memory. Not to be asked while a slot uses them."""
        return self._references() != self._unreached

    def _references(self) -> list[int]:
        return [sys.getrefcount(owner) for owner in self._owners]


def _owners(rows: tuple[Array, ...], made: tuple[BatchArrays, ...]) -> list[Array]:
    """The arrays that have the memory of all others, each once."""
    found: dict[int, Array] = {}
    for array in (*rows, *(one for each in made for one in (*each.data, each.labels))):
        while array is not None and isinstance(array.base, np.ndarray):
            array = array.base
        if array is not None:
            found[id(array)] = array
    return list(found.values())


def arrays_of(data: Data) -> tuple[Array, ...]:
    """The arrays of a batch's data, one or several."""
    return data if isinstance(data, tuple) else (data,)


class Slot:
    """The buffers of one batch, allocated once, and what is being done with them.

    ``mark``: one int64, the number of its state; ``generation``: how often it was begun; ``plan``:
    what to make; ``error``: why a worker could not, and ``error_at``: in which part; ``parts``:
    tasks that it was cut into, of which ``parts_left`` are not done. ``rows``, ``made``: see
    :class:`SlotMemory`; ``labels``: (B, ...) or None; ``out``, ``out_labels``, ``several``: the
    last of ``made``, which is handed out; ``layout``: that of all slots of the ring.
    """

    def __init__(self, number: int, memory: SlotMemory, layout: SlotLayout) -> None:
        self.number = number
        # its items are read and written without a call
        self.mark: memoryview[int] = memoryview(numbers("q", (FREE,)))
        self.generation = 0
        self.plan: BatchPlan  # there is none until the slot is begun
        self.error: BaseException | None = None
        self.error_at = 0
        self.parts = self.parts_left = 0
        self.layout = layout
        self.use(memory)
        #: What was handed out last: weak references to the batch and to its first array.
        self.batch: tuple[weakref.ref[Any], weakref.ref[Array]] | None = None
        #: what ``on_error`` skipped or zeroed
        self.bad: list[BadRow] = []

    @property
    def state(self) -> str:
        """Who owns it now: one of STATES."""
        return STATES[self.mark[0]]

    def use(self, memory: SlotMemory) -> None:
        """Fill ``memory`` from now on."""
        self.memory = memory
        self.rows, self.made = memory.rows, memory.made
        self.labels = memory.made[0].labels
        self.out, self.out_labels, self.several = memory.made[-1]

    def prepare(self, plan: Any, parts: int) -> list[Task]:
        """Get ready for a batch, which is not begun yet: its rows in ``parts`` tasks, in none where
        they are copied. Called under the ring's lock."""
        self.plan, self.error, self.bad = plan, None, []
        if parts == 0:
            self.parts = 0
            return []
        rows = plan.indices.size
        self.parts = self.parts_left = count = min(parts, rows)
        return [(self, rows * part // count, rows * (part + 1) // count) for part in range(count)]

    def batch_rows(self, stage: int) -> BatchArrays:
        """Views of ``made[stage]``, cut to the rows of the batch."""
        made, count, whole = self.made[stage], self.plan.indices.size, self.rows[0].shape[0]
        data = tuple(cut_rows(array, count, whole) for array in made.data)
        labels = None if made.labels is None else cut_rows(made.labels, count, whole)
        return BatchArrays(data, labels, made.several)

    def served(self) -> tuple[Int64, Bools]:
        """Record numbers of the rows (-1 where padded) and their mask: those of the plan, but for
        what ``on_error`` serves in place of bad samples."""
        if not self.bad:
            return self.plan.indices, self.plan.valid
        indices, mask = self.plan.indices.copy(), self.plan.valid.copy()
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
        made = (array for one in self.made for array in (*one.data, one.labels))
        for array in (*self.rows, *made):
            # what is not contiguous is a view of rows
            if array is not None and array.flags.c_contiguous:
                array.reshape(-1).view(np.uint8).fill(POISON)


def cut_rows(array: Array, count: int, whole: int) -> Array:
    """A view of an array of a batch of ``count`` rows, in a slot for ``whole``."""
    # a stage may have made something that has no row for each sample
    return array[:count] if count < whole == array.shape[0] else array.view()


# -- memory of several processes -----------------------------------------------------------------


class Arena:
    """A block of shared memory, cut into arrays that reader and workers both see: each begins at a
    multiple of ``unit`` bytes, by default a page.

    It can be pickled only to spawn a process, which inherits its descriptor.
    """

    _fd = -1

    def __init__(self, size: int, unit: int = PAGE) -> None:
        self._unit = unit
        try:
            self._fd = shared_file("asyncreader-slots", size)
        except OSError as exc:
            raise ParamsError(
                "the memory of worker processes cannot be allocated",
                found=f"{size} bytes: {exc.strerror}",
                hint="free some space in memory (/dev/shm) or in the folder of TMPDIR, or "
                'workers="thread"',
            ) from exc
        with closed_on_error([self]):
            self._map()
        self._used = 0

    def _map(self) -> None:
        self._bytes = map_file(self._fd, os.fstat(self._fd).st_size, writable=True)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """A zeroed C-ordered array; equal calls in equal order give equal memory on each side."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        piece = self._bytes[self._used : self._used + size]
        self._used += padded(size, self._unit)
        return piece.view(kind).reshape(shape)

    def close(self) -> None:
        """Close the descriptor. The mapping lives as long as an array refers to it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return reduction.DupFd(self._fd), self._unit

    def __setstate__(self, state: tuple[Any, int]) -> None:
        handle, self._unit = state
        self._fd = handle.detach()
        self._map()
        self._used = 0
        self.close()


def padded(size: int, unit: int = PAGE) -> int:
    """``size`` rounded up to whole units, by default pages."""
    return -(-size // unit) * unit
