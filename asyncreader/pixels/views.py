"""Several views of a sample, which is read, checked and decoded once, as rows of a slot.

A view is a row of its own draws. Those of one size are an array (B, views, ...), which a RowWriter
of its own fills; the writer here gives each sample to all of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import tee
from typing import TypeVar

import numpy as np

from ..stats import Meter
from ..system.array_types import Array, Int64, UInt8, UInt64
from ..system.keyed_random import STREAM_VIEW, key_of, mix_rows
from .encoded import RowView
from .rows import Origin, RowError, RowJob, RowWriter
from .transform import RowTransform

T = TypeVar("T")


def by_field(fills: Sequence[RowTransform], of_arrays: Sequence[T]) -> list[Sequence[T]]:
    """What belongs to each field, of what belongs to the arrays that ``fills`` make."""
    if len(fills) == 1:  # each batch asks
        return [of_arrays]
    starts = [k for k, fill in enumerate(fills) if not fill.wanted.first_view]
    ends = [*starts[1:], len(fills)]
    return [of_arrays[start:end] for start, end in zip(starts, ends, strict=True)]


def writer_for(
    origin: Origin, job: RowJob, fills: Sequence[RowTransform], outs: Sequence[Array], meter: Meter
) -> RowWriter:
    """What writes the samples of one field, into all arrays that are made of it."""
    if fills[0].wanted.views:
        return ViewWriter(origin, job, fills, outs, meter)
    return RowWriter(origin, job, fills[0], outs[0], meter)


def keys_of_views(keys: UInt64, first: int, count: int) -> UInt64:
    """The keys of ``count`` views of each sample, from view ``first`` on: uint64 (n, count). View 0
    has the sample's own key: it is what a reader without views serves."""
    made = np.empty((keys.size, count), np.uint64)
    for k in range(count):
        number = first + k
        made[:, k] = mix_rows(key_of(STREAM_VIEW, number), keys.view(np.int64)) if number else keys
    return made


class ViewWriter(RowWriter):
    """Writes each sample into several rows. ``fills``, ``outs``: of each array that is made of the
    field, memory (B, views, ...)."""

    def __init__(
        self,
        origin: Origin,
        job: RowJob,
        fills: Sequence[RowTransform],
        outs: Sequence[Array],
        meter: Meter,
        errors: list[RowError] | None = None,
        first: int = 0,
    ) -> None:
        super().__init__(origin, job, fills[0], outs[0], meter, errors, first)
        self._fills, self._outs = fills, outs

    def _of(self, origin: Origin, job: RowJob, first: int, member: int = -1) -> RowWriter:
        fills = [fill.members.get(member, fill) for fill in self._fills]
        return ViewWriter(origin, job, fills, self._outs, self.meter, self.errors, first)

    @cached_property
    def _writers(self) -> list[RowWriter]:
        """Those of each array: their samples are the views, their rows those of (B * views, ...).
        What they write has been checked."""
        return [self._writer(*one) for one in zip(self._fills, self._outs, strict=True)]

    def _writer(self, fill: RowTransform, out: Array) -> RowWriter:
        count, job = fill.wanted.views, self.job
        places = self._places(np.arange(job.rows.size), count)
        keys = keys_of_views(job.keys, fill.wanted.first_view, count).reshape(-1)
        rows = self._places(job.rows, count)
        job = job.pick(places // count)._replace(rows=rows, keys=keys, check=None, made=None)
        out = out.reshape(-1, *fill.row_shape)
        return RowWriter(self.origin, job, fill, out, self.meter, self.errors, self._first)

    @staticmethod
    def _places(samples: Int64, count: int) -> Int64:
        """The numbers of ``count`` views of each sample."""
        return (samples[:, None] * count + np.arange(count)).reshape(-1)

    def views(self, i: int) -> tuple[RowView, ...]:
        """See :class:`RowWriter`."""
        return tuple(
            view
            for writer in self._writers
            for k in self._views_of(writer, i)
            for view in writer.views(k)
        )

    @staticmethod
    def _views_of(writer: RowWriter, i: int) -> range:
        count = writer.fill.wanted.views
        return range(i * count, (i + 1) * count)

    def _put(self, i: int, sample: Array) -> None:
        for writer in self._writers:
            for k in self._views_of(writer, i):
                writer._put(k, sample)

    def _place(self, which: Int64, addresses: Int64, views: Iterable[UInt8]) -> None:
        for writer, samples in zip(self._writers, tee(views, len(self._writers)), strict=True):
            count = writer.fill.wanted.views
            each = (sample for sample in samples for _ in range(count))
            writer._place(self._places(which, count), np.repeat(addresses, count), each)
