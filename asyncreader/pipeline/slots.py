"""Slots of a reader, the buffers of its batches, and the ring of them."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np

from ..array_types import Array, Bools, Int64
from ..sampling.schedule import BatchPlan
from ..stats import BadRow
from .owners import Observer, RingSlot
from .ring import Ring

#: What a batch's data is: one array, or one for each field of a reader with several.
Data: TypeAlias = Array | tuple[Array, ...]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]

#: Private copies of a field that are looked at for one that the caller has dropped.
PRIVATE: Final = 3

_ALONE: Final = [np.empty(0)]
#: References to an item of a list that nothing else refers to, as sys.getrefcount() counts them.
_UNREACHED: Final = sys.getrefcount(_ALONE[0])

#: What ``debug=True`` writes over a slot that is given back.
POISON = 0xA5


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

    ``rows``: shape and dtype of the memory of each field, ``labels``: of the labels; ``several``:
    see :class:`BatchLayout`; ``made``: what each stage makes of the rows (see stages.py); ``sets``:
    the record numbers at which the sets of a mix end.
    """

    rows: tuple[Part, ...]
    labels: Part | None
    several: bool = False
    made: tuple[BatchLayout, ...] = ()
    sets: tuple[int, ...] = ()

    def sizes(self) -> list[int]:
        """Bytes of each buffer, in the order in which build() asks for them."""
        made = (part for one in self.made for part in (*one.data, one.labels))
        own = (*self.rows, self.labels, *(part for part in made if part is not None and part.new))
        return [math.prod(part[0]) * part[1].itemsize for part in own if part is not None]

    def build(
        self,
        count: int,
        allocate: Allocate,
        view: Callable[[Sequence[Array]], tuple[Array, ...]],
    ) -> list[Slot]:
        """``count`` slots; ``view`` takes the rows of each field and returns what the user sees."""
        slots = []
        for number in range(count):
            rows = tuple(allocate(*part[:2]) for part in self.rows)
            labels = None if self.labels is None else allocate(*self.labels[:2])
            made = [BatchArrays(view(rows), labels, self.several)]
            for layout in self.made:
                made.append(made[-1].made_into(layout, allocate))
            slots.append(Slot(number, rows, tuple(made), self.sets))
        return slots


def arrays_of(data: Data) -> tuple[Array, ...]:
    """The arrays of a batch's data, one or several."""
    return data if isinstance(data, tuple) else (data,)


class Slot(RingSlot):
    """The buffers of one batch, allocated once, and what is being done with them.

    ``rows``: memory that workers fill, (B, ...) of each field; ``labels``: (B, ...) or None;
    ``made``: these as the user sees them, then what each stage makes of them; ``out``,
    ``out_labels``, ``several``: the last of these, which is handed out; ``sets``: see
    :class:`SlotLayout`.
    """

    __slots__ = (
        "bad",
        "batch",
        "labels",
        "made",
        "out",
        "out_labels",
        "rows",
        "sets",
        "several",
    )

    plan: BatchPlan | None

    def __init__(
        self,
        number: int,
        rows: tuple[Array, ...],
        made: tuple[BatchArrays, ...],
        sets: tuple[int, ...] = (),
    ) -> None:
        super().__init__(number)
        self.sets = sets
        self.rows = rows
        self.labels = made[0].labels
        self.made = made
        self.out, self.out_labels, self.several = made[-1]
        #: What was handed out last: weak references to the batch and to its first array.
        self.batch: tuple[weakref.ref[Any], weakref.ref[Array]] | None = None
        #: what ``on_error`` skipped or zeroed
        self.bad: list[BadRow] = []

    def prepare(self, plan: Any, parts: int) -> list[tuple[Self, int, int]]:
        """Get ready for a batch: its rows in ``parts`` tasks, in none where they are copied."""
        self.plan, self.error, self.bad = plan, None, []
        if parts == 0:
            self.parts = 0
            return []
        rows = plan.indices.size
        self.parts = self.parts_left = count = min(parts, rows)
        return [(self, rows * part // count, rows * (part + 1) // count) for part in range(count)]

    def batch_rows(self, stage: int) -> BatchArrays:
        """Views of ``made[stage]``, cut to the rows of the batch."""
        assert self.plan is not None
        made, count, whole = self.made[stage], self.plan.indices.size, self.rows[0].shape[0]
        data = tuple(_cut(array, count, whole) for array in made.data)
        labels = None if made.labels is None else _cut(made.labels, count, whole)
        return BatchArrays(data, labels, made.several)

    def served(self) -> tuple[Int64, Bools]:
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
        made = (array for one in self.made for array in (*one.data, one.labels))
        for array in (*self.rows, *made):
            # what is not contiguous is a view of rows
            if array is not None and array.flags.c_contiguous:
                array.reshape(-1).view(np.uint8).fill(POISON)


class SlotRing(Ring[Slot]):
    """The slots of one reader. The consumer begins batches, and holds one, and those it keeps.

    In debug mode a slot that was given back is overwritten before it is free.
    """

    def __init__(
        self,
        slots: list[Slot],
        in_flight: int,
        debug: bool = False,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(
            slots,
            holds=1,
            in_flight=in_flight,
            consumer_begins=True,
            observer=observer,
            clean=Slot.poison if debug else None,
        )
        #: of each field, what was handed out last with copy=True
        self._private_of: dict[int, list[Array]] = {}

    def take(self, timeout: float | None = None) -> tuple[Slot, BaseException | None]:
        """Wait for the oldest batch and hand it over; the batch held before is given back.

        A batch that failed comes with its error: its slot is free, and the batch held before stays
        valid.
        """
        taken = super().take(timeout)
        assert taken is not None  # what there is instead is raised
        return taken

    def hand_out(self, slot: Slot, copy: bool) -> tuple[Data, Array | None]:
        """Data and labels of a held slot, cut to the rows of its batch; private with ``copy``."""
        assert slot.plan is not None
        count, whole = slot.plan.indices.size, slot.rows[0].shape[0]
        # not by batch_rows(), which takes 0.5 us longer
        data, labels = [_cut(array, count, whole) for array in slot.out], slot.out_labels
        if labels is not None:
            labels = _cut(labels, count, whole)
        if copy:
            data = [self._private(*one) for one in enumerate(data)]
            labels = None if labels is None else labels.copy(order="K")
        return tuple(data) if slot.several else data[0], labels

    def _private(self, field: int, array: Array) -> Array:
        """A copy, in memory that was handed out before and that nobody can reach any more: fresh
        memory takes twice as long, since the system clears its pages first.

        What is handed out are views. Whoever holds one, or a view of it, holds a reference.
        """
        kept = self._private_of.setdefault(field, [])
        for number in range(len(kept)):
            if sys.getrefcount(kept[number]) == _UNREACHED and kept[number].shape == array.shape:
                np.copyto(kept[number], array)
                return kept[number].view()
        kept.append(array.copy(order="K"))
        del kept[:-PRIVATE]
        return kept[-1].view()


def _cut(array: Array, count: int, whole: int) -> Array:
    """A view of an array of a batch of ``count`` rows, in a slot for ``whole``."""
    # a stage may have made something that has no row for each sample
    return array[:count] if count < whole == array.shape[0] else array.view()
