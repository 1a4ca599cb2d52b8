"""Batch: what one step hands to the caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy.typing as npt

from .device import DeviceRing
from .slots import Slot, SlotRing, arrays_of

Array: TypeAlias = npt.NDArray[Any]


class Batch:
    """One minibatch; unpacks to ``(data, labels)``.

    ``data``: (B, C, H, W) or as ``layout`` says, with several fields a tuple of such, one for each
    (see ``data_field``); ``labels``: (B, ...) or None; ``indices``: int64
    (B,), record numbers in the file, -1 where padded; ``mask``: bool (B,), False for padded or
    zeroed rows; ``epoch``; ``step``: its number in the epoch. ``data`` and ``labels`` are the
    caller's, to read and write, until the next successful ``getNextBatch()`` (or loop step),
    unless :meth:`keep` was called or the reader was opened with ``copy=True``. With ``cuda`` they
    are torch tensors on the device, valid until then in the order of the stream current then.
    """

    __slots__ = (
        "__weakref__",
        "_copied",
        "_generation",
        "_ring",
        "_slot",
        "data",
        "epoch",
        "indices",
        "labels",
        "mask",
        "step",
    )

    def __init__(self, ring: SlotRing | DeviceRing, slot: Slot, copy: bool) -> None:
        plan = slot.plan
        assert plan is not None
        data, labels = ring.hand_out(slot, copy)
        #: Any: an array, or a tuple of arrays where the caller named several fields
        self.data: Any = data
        self.labels: Array | None = labels
        self.indices = plan.indices
        self.mask = plan.valid
        self.epoch = plan.epoch
        self.step = plan.step
        self._copied = copy
        self._ring = ring
        self._slot = slot
        self._generation = slot.generation

    def __iter__(self) -> Iterator[Any]:
        yield self.data
        yield self.labels

    def __len__(self) -> int:
        return int(self.indices.size)

    def release(self) -> None:
        """Give the batch back before the next one is taken; doing so twice is harmless."""
        self._ring.release(self._slot, self._generation)

    def keep(self) -> Batch:
        """Hold the batch until :meth:`release`; at most ``njob - 1`` can be kept.

        Raises QueueFullError when no more can be kept or the batch was given back already. With
        ``copy=True`` there is nothing to hold: the batch is the caller's for ever.
        """
        if self._copied:
            return self
        self._ring.keep(self._slot, self._generation)
        return self

    def __repr__(self) -> str:
        shapes = (
            f"{'x'.join(str(n) for n in array.shape)} {array.dtype}"
            for array in arrays_of(self.data)
        )
        return f"<Batch epoch {self.epoch} step {self.step}: {', '.join(shapes)}>"
