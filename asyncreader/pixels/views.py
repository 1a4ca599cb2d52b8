"""Several views of a sample, which is read, checked and decoded once, as rows of a slot.

A view is a row of its own draws. Those of one size are an array (B, views, ...), which a RowWriter
of its own fills; the writer here gives each sample to all of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from ..stats import Meter
from ..system.array_types import Array, Int64, UInt64
from ..system.keyed_random import STREAM_VIEW, key_of, mix_rows
from .row_maker import RowMaker, RowView
from .rows import Origin, RowJob, RowWriter

T = TypeVar("T")


def by_field(fills: Sequence[RowMaker], of_arrays: Sequence[T]) -> list[Sequence[T]]:
    """What belongs to each field, of what belongs to the arrays that ``fills`` make."""
    if len(fills) == 1:  # each batch asks
        return [of_arrays]
    starts = [k for k, fill in enumerate(fills) if not fill.wanted.first_view]
    ends = [*starts[1:], len(fills)]
    return [of_arrays[start:end] for start, end in zip(starts, ends, strict=True)]


def writer_for(
    origin: Origin, job: RowJob, fills: Sequence[RowMaker], outs: Sequence[Array], meter: Meter
) -> RowWriter:
    """What writes the samples of one field, into all arrays that are made of it."""
    kind = ViewWriter if fills[0].wanted.views else RowWriter
    return kind(origin, job, fills, outs, meter)


def keys_of_views(keys: UInt64, first: int, count: int) -> UInt64:
    """The keys of ``count`` views of each sample, from view ``first`` on: uint64 (n, count). View 0
    has the sample's own key: it is what a reader without views serves."""
    made = np.empty((keys.size, count), np.uint64)
    for k in range(count):
        number = first + k
        made[:, k] = mix_rows(key_of(STREAM_VIEW, number), keys.view(np.int64)) if number else keys
    return made


class ViewWriter(RowWriter):
    """Writes each sample into several rows: of all arrays of the field, memory (B, views, ...)."""

    @cached_property
    def _writers(self) -> list[RowWriter]:
        """Those of each array: their samples are the views, their rows those of (B * views, ...).
        What they write has been checked."""
        return [self._writer(*one) for one in zip(self.fills, self.outs, strict=True)]

    def _writer(self, fill: RowMaker, out: Array) -> RowWriter:
        count, job = fill.wanted.views, self.job
        places = self._places(np.arange(job.rows.size), count)
        keys = keys_of_views(job.keys, fill.wanted.first_view, count).reshape(-1)
        rows = self._places(job.rows, count)
        job = job.pick(places // count)._replace(rows=rows, keys=keys, check=None, made=None)
        outs = (out.reshape(-1, *fill.row_shape),)
        numbers = self.first, self.named_from
        return RowWriter(self.origin, job, (fill,), outs, self.meter, self.errors, *numbers)

    @staticmethod
    def _places(samples: Int64, count: int) -> Int64:
        """The numbers of ``count`` views of each sample."""
        return (samples[:, None] * count + np.arange(count)).reshape(-1)

    def _each(self, i: int) -> Iterator[tuple[RowWriter, int]]:
        """The writers of the views of sample ``i``, and its numbers there."""
        for writer in self._writers:
            count = writer.fill.wanted.views
            for k in range(i * count, (i + 1) * count):
                yield writer, k

    def views(self, i: int) -> tuple[RowView, ...]:
        """See :class:`RowWriter`."""
        return tuple(view for writer, k in self._each(i) for view in writer.views(k))

    def put(self, i: int, sample: Array) -> None:
        for writer, k in self._each(i):
            writer.put(k, sample)

    def _place(self, which: Int64, addresses: Int64) -> None:
        for writer in self._writers:
            count = writer.fill.wanted.views
            writer._place(self._places(which, count), np.repeat(addresses, count))
