"""Slots of a reader, the buffers of its batches, and the ring of them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from ..sampling.schedule import BatchPlan
from ..stats import BadRow
from .copy_queue import CopyQueue
from .owners import Observer, RingSlot
from .ring import Ring

Array: TypeAlias = npt.NDArray[Any]
#: What a batch's data is: one array, or one for each field of a reader with several.
Data: TypeAlias = Array | tuple[Array, ...]
#: Shape and dtype of a buffer.
Part: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]

#: What ``debug=True`` writes over a slot that is given back.
POISON = 0xA5


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
        "labels",
        "out",
        "out_labels",
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

    In debug mode a slot that was given back is overwritten before it is free.
    """

    def __init__(
        self,
        slots: list[Slot],
        in_flight: int,
        debug: bool = False,
        observer: Observer | None = None,
        copies: CopyQueue | None = None,
    ) -> None:
        super().__init__(
            slots,
            holds=1,
            in_flight=in_flight,
            consumer_begins=True,
            observer=observer,
            clean=Slot.poison if debug else None,
            copies=copies,
        )

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

        def handed(array: Array) -> Array:
            # postprocess may have made something that has no row for each sample
            if count < whole == array.shape[0]:
                array = array[:count]
            return array.copy(order="K") if copy else array.view()  # of its own: see still_held

        labels = slot.out_labels
        seen = tuple(map(handed, slot.out)) if slot.several else handed(slot.out[0])
        return seen, None if labels is None else handed(labels)
