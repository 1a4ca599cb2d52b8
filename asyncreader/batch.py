"""Batch: what one step returns to the caller."""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from .errors import ReaderClosedError
from .pipeline.cuda import DeviceRing
from .pipeline.ring import SlotRing
from .pipeline.slots import HELD, Data, Slot, arrays_of
from .system.late import TypeVar, tools_notebook

#: An array of a batch. What it holds is known when the set is opened, not to a type checker.
Array: TypeAlias = npt.NDArray[np.number]

#: What of a field's windows is the episode's own; None for a field without a window.
Present: TypeAlias = npt.NDArray[np.bool_] | None

#: The lengths of a field's samples; None where they are alike.
Served: TypeAlias = npt.NDArray[np.int64] | None

D = TypeVar("D", default=Array)
L = TypeVar("L", default=Array)


class Taken:
    """What a batch says in addition to its data and labels: see :class:`Batch`.

    It stays right when the batch is given back. ``source``, ``episode``, ``place``, ``present`` and
    ``lengths`` are computed from the record numbers each time they are asked for.
    """

    __slots__ = (
        *("_layout", "_records", "_several"),
        *("epoch", "indices", "last", "mask", "step"),
    )

    def __init__(self, slot: Slot) -> None:
        plan = slot.plan
        self._layout, self._several = slot.layout, slot.several
        self.indices, self.mask = slot.served()
        self._records = self.indices
        if self._layout.rule.renumbered:
            self.indices = self._layout.rule.shown(self.indices)
        self.epoch = plan.epoch
        self.step = plan.step
        self.last = plan.last

    @property
    def source(self) -> npt.NDArray[np.int64] | None:
        """The dataset of the mix that each row comes from: int64 (B,), 0 for the first one, -1 in
        padded rows; None for a reader without ``mix``."""
        sets = self._layout.sets
        if not sets:
            return None
        found = np.searchsorted(np.array(sets, np.int64), self.indices, side="right")
        return np.where(self.indices < 0, -1, found)

    @property
    def episode(self) -> npt.NDArray[np.int64] | None:
        """The number of each row's episode in the whole dataset: int64 (B,), -1 in padded rows;
        None for a dataset without episodes."""
        return self._layout.rule.episode(self._records)

    @property
    def place(self) -> npt.NDArray[np.int64] | None:
        """Where each patch begins in its volume, on the axes that are cut: int64 (B, k), -1 in
        padded rows; None for a reader without ``patch``."""
        return self._layout.rule.place(self._records)

    @property
    def present(self) -> Present | tuple[Present, ...]:
        """Which rows of each window lie in the episode: bool (B, W), False where a row was repeated
        or zeroed, and in rows that ``mask`` leaves out. With several fields a tuple, with None for
        those without a window; None if no field has one."""
        rule = self._layout.rule
        found = tuple(rule.present(name, self._records, self.mask) for name in rule.fields)
        if all(one is None for one in found):
            return None
        return found if self._several else found[0]

    @property
    def lengths(self) -> Served | tuple[Served, ...]:
        """How many values of each sample are served, if samples differ in length: int64 (B,), (B,
        W) for windows of such rows, 0 in rows that ``mask`` leaves out. With several fields a
        tuple, with None for those of one length; None if all have one length."""
        each = self._layout.lengths
        if not any(each):
            return None
        found = tuple(None if one is None else one.served(self.indices, self.mask) for one in each)
        return found if self._several else found[0]


class Batch(Taken, Generic[D, L]):
    """One minibatch; unpacks to ``(data, labels)``.

    * ``data``: (B, C, H, W) or as ``layout`` says; with several fields (``data_field``), or with
      ``views``, a tuple of arrays
    * ``labels``: (B, ...); with several labels a tuple; None without labels
    * ``indices``: int64 (B,), record numbers in the file (of a mix: in all its datasets in
      sequence; of patches: of the volumes), -1 in padded rows
    * ``mask``: bool (B,), False for padded or zeroed rows
    * ``epoch``; ``step``: its number in the epoch; ``last``: whether it is the last of its epoch
    * ``source``: int64 (B,), the dataset of a mix; ``place``: int64 (B, k), the corner of each
      patch
    * ``episode``: int64 (B,), the episode of each sample; ``present``: bool (B, W), which rows of
      the windows lie in the episode
    * ``lengths``: int64 (B,), the length of each sample if samples differ in length; with several
      fields a tuple

    ``data`` and ``labels`` are yours to read and write until the next successful ``getNextBatch()``
    (or loop step), unless ``keep()`` was called or the reader was opened with ``copy=True``. With
    ``cuda`` they are torch tensors on the device, valid until then in the order of the stream that
    is current at that call.

    ``D`` and ``L`` are the types of ``data`` and ``labels``: arrays, unless the reader was
    annotated otherwise, as ``AsyncReader[tuple[Array, ...], None]`` or ``AsyncReader[torch.Tensor,
    torch.Tensor]``.

    Reading ``data`` or ``labels`` of a batch that was given back raises ReaderClosedError. Arrays
    taken from it before still share the slot's memory, which later batches overwrite: a reader
    whose caller collects them (``[data for data, labels in reader]``) also raises
    ReaderClosedError.
    """

    __slots__ = ("__weakref__", *("_copied", "_data", "_generation", "_labels", "_ring", "_slot"))

    def __init__(self, ring: SlotRing | DeviceRing, slot: Slot, copy: bool) -> None:
        super().__init__(slot)
        data: Any
        labels: Any
        data, labels = ring.hand_out(slot, copy)
        self._data: D = data
        self._labels: L = labels
        self._copied = copy
        if not copy and isinstance(ring, SlotRing):
            slot.batch = weakref.ref(self), weakref.ref(arrays_of(data)[0])
        self._ring = ring
        self._slot = slot
        self._generation = slot.generation

    @property
    def data(self) -> D:
        """The batch's data. Raises ReaderClosedError once the batch was given back."""
        self._check_held()
        return self._data

    @property
    def labels(self) -> L:
        """The batch's labels, or None. Raises ReaderClosedError once the batch was given back."""
        self._check_held()
        return self._labels

    def __iter__(self) -> Iterator[D | L]:
        self._check_held()
        return iter((self._data, self._labels))

    def _check_held(self) -> None:
        # without the lock: the state is HELD with this generation from take() to release() only
        slot = self._slot
        if (slot.mark[0] != HELD or slot.generation != self._generation) and not self._copied:
            raise ReaderClosedError(
                "this batch was given back: its memory is used for later batches",
                found=f"epoch {self.epoch} step {self.step}",
                hint="a batch is valid until the next getNextBatch() or step of the loop: use it "
                "before that, keep() it, or open the reader with copy=True",
            )

    def __len__(self) -> int:
        return int(self.indices.size)

    def release(self) -> None:
        """Give the batch back before the next one is taken; a second call does nothing."""
        self._ring.release(self._slot, self._generation)

    def keep(self) -> Self:
        """Hold the batch until ``release()``; at most ``njob - 1`` batches can be kept.

        Raises QueueFullError if no more can be kept or the batch was given back already. With
        ``copy=True`` this does nothing: such a batch is always yours.
        """
        if self._copied:
            return self
        self._ring.keep(self._slot, self._generation)
        return self

    def __repr__(self) -> str:
        shapes = (
            f"{'x'.join(str(n) for n in array.shape)} {array.dtype}"
            for array in arrays_of(cast(Data, self._data))
        )
        return f"<Batch epoch {self.epoch} step {self.step}: {', '.join(shapes)}>"

    def show(self, count: int = 8) -> None:
        """Show the batch as training gets it: in a notebook a table of its arrays and its first
        ``count`` images, anywhere in a cell; elsewhere the table is printed.

        Raises ReaderClosedError once the batch was given back, ParamsError for a ``count`` below 0.
        """
        self._check_held()
        tools_notebook.show_batch(self, count)

    def _repr_html_(self) -> str:
        """A table, with some pictures, for notebooks (IPython's rich display)."""
        try:
            self._check_held()
        except ReaderClosedError:
            return f"<code>{html.escape(repr(self))}: given back</code>"
        made: str = tools_notebook.batch_html(self)
        return made


def taken(batch: Batch) -> Taken:
    """What ``batch`` says beside data and labels, without its memory."""
    found = Taken.__new__(Taken)
    for name in Taken.__slots__:
        setattr(found, name, getattr(batch, name))
    return found


def of_each(data: Any, make: Callable[[Any], Any]) -> Any:
    """``make`` of a batch's data; of several fields a tuple of what it makes of each."""
    return tuple(map(make, data)) if isinstance(data, tuple) else make(data)


def flat_labels(labels: Any) -> Any:
    """(B, 1) integers as (B,), what losses over class numbers take; all else as it is. Of several
    labels each."""
    return of_each(labels, _flat)


def _flat(labels: Array | None) -> Array | None:
    if labels is None or labels.shape[1:] != (1,) or labels.dtype.kind not in "iu":
        return labels
    return labels[:, 0]
