"""Count, mean, deviation and ends of the fields of a set, from values that come in parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from ..pipeline.opened import Opened
from ..pixels.row_maker import RowMaker
from ..pixels.specs import OutputSpec
from ..pixels.transform import plan_rows
from ..sampling.episodes import Windows
from ..sampling.patches import Patched, Patches
from ..sources import Inspector
from ..sources.base import Source, read_stored
from ..sources.request import Cut
from ..sources.subset import selected
from ..stats import FieldStatistics
from ..system.array_types import Array, Float64, Int64

#: Bytes of samples whose statistics are worked out together.
_MEASURED: Final = 2 << 20


def statistics(opened: Opened) -> dict[str, FieldStatistics]:
    """Those of each field of an open set, of its stored values. SampleError for a bad sample."""
    found = {}
    for name in opened.source.names:
        moments = Moments()
        for values in _Stored(opened).values(name):
            if opened.params.values == "physical" and values.dtype.kind == "f":
                values = values[~np.isnan(values).reshape(len(values), -1).any(axis=1)]
            moments.add(values)
        found[name] = moments.made()
    return found


class _Stored:
    """The stored values of the samples of an open set."""

    def __init__(self, opened: Opened) -> None:
        self._opened, self.source = opened, opened.source

    def values(self, name: str) -> Iterator[Array]:
        """The stored values of all samples, some at a time: (n, C), (n, D) or (n,)."""
        part = self.source.part(name)
        if isinstance(self.source.rule, Patches):
            yield from self._tiles(part)
            return
        spec = part.spec
        step = max(1, _MEASURED // max(1, 1 if spec.shape is None else spec.row_bytes))
        if spec.ragged:
            yield from self._values(name, part)
            return
        for records in self._counted(name, step):
            if spec.encoded or spec.shape is None:
                for record in records.tolist():
                    yield self._pixels(part, record)
                continue
            out = self._good(part, records, self._plain(name, part))
            yield out.reshape(-1, out.shape[-1]) if spec.axes or out.ndim == 2 else out.reshape(-1)

    def _good(self, part: Source, records: Int64, fill: RowMaker | None = None) -> Array:
        """:func:`read_stored`; the first bad sample is an error."""
        out, errors = read_stored(part, records, fill)
        for bad in errors:
            raise self.source.rule.told(bad.error)
        return out

    def _plain(self, name: str, part: Source, most: int | None = None) -> RowMaker:
        """How the stored values of a field are measured: of structured rows those of the members
        that are asked for; ``most``: the length of samples, where these differ."""
        members = self._opened.params.wanted.for_field(name).members
        wanted = OutputSpec(
            layout="NHWC",
            contiguous=True,  # the channels are the last axis in memory
            members=members,
            max_length=most,
        )
        return plan_rows(part.spec, wanted, part.facts.path)

    def _values(self, name: str, part: Source) -> Iterator[Array]:
        """The values of samples of different length, each by itself."""
        offsets = part.index.offsets
        assert offsets is not None
        for record in itertools.chain.from_iterable(self._counted(name, _MEASURED)):
            most = int(offsets[record + 1]) - int(offsets[record])
            if most:
                out = self._good(part, np.array([record]), self._plain(name, part, most))
                yield out[0] if out.ndim == 3 else out.reshape(-1)

    def _counted(self, name: str, together: int) -> Iterator[Int64]:
        """The field's own rows whose values count, from so many at a time: those of all samples; of
        episodes, where a row may be in many windows or in none, those that are selected."""
        source = self.source
        params = self._opened.params
        rule, rows = selected(params.subset, params.patch.at, source)
        if not isinstance(rule, Windows):
            for at in range(0, self._opened.length, together):
                yield self._opened.records(np.arange(at, min(at + together, self._opened.length)))
            return
        if isinstance(rows, np.ndarray):
            rows = np.sort(rows)
        count = source.rows_of(name)
        for at in range(0, count, together):
            records = np.arange(at, min(at + together, count))
            records = records[rule.selects(name, records, rows)]
            if records.size:
                yield records

    def _tiles(self, part: Source) -> Iterator[Array]:
        """The stored values of all volumes, each once: (n, C) of pictures, else (n,)."""
        sampler, spec = self._opened.schedule.sampler, part.spec
        assert isinstance(sampler, Patched)
        cut, p = sampler.rule.volumes, self._opened.params
        asked = Cut(p.patch.shape or (), p.patch.axes, p.sample_axis)
        tiles = replace(sampler.rule, at="grid", step=cut.patch)
        together = max(1, _MEASURED // spec.row_bytes)
        for first in range(0, tiles.population, together):
            numbers = np.arange(first, min(first + together, tiles.population), dtype=np.int64)
            out = self._good(part, tiles.places(numbers))
            axes = asked.axes_of_sample(out.ndim - 1 - spec.flat)
            for tile, shift in zip(out, tiles.repeated(numbers).tolist(), strict=True):
                for axis, known in zip(axes, shift, strict=True):
                    tile = tile[(slice(None),) * axis + (slice(known, None),)]
                if spec.axes is None:
                    yield tile.reshape(-1)
                else:
                    yield np.moveaxis(tile, spec.axes.index("C"), -1).reshape(
                        -1, tile.shape[spec.axes.index("C")]
                    )

    def _pixels(self, part: Source, record: int) -> Array:
        """The stored values of one sample, in its own size: (H x W, C)."""
        size = Inspector(part).size(record)
        wanted = OutputSpec(layout="NHWC", contiguous=True, size=size, crop="none")
        name = self.source.names[self.source.parts.index(part)]
        whole = self.source if len(self.source.parts) == 1 else self.source.only(name)
        out = self._good(part, np.array([record]), whole.fills(wanted)[0])
        return out.reshape(-1, out.shape[-1])


class Moments:
    """Count, mean, variance and ends of values that come in parts (Chan, Golub and LeVeque,
    "Algorithms for Computing the Sample Variance", 1983)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = np.zeros(())
        self._low = self._high = np.zeros(())

    def add(self, values: Array) -> None:
        """More of them: (n, ...) of each channel."""
        count = len(values)
        if not count:
            return
        if values.dtype == np.uint8:
            mean, squares = _of_bytes(values)
        else:
            wide = values.astype(np.float64)
            mean = wide.mean(axis=0)
            squares = ((wide - mean) ** 2).sum(axis=0)
        low, high = values.min(axis=0).astype(float), values.max(axis=0).astype(float)
        if not self._count:
            self._mean, self._squares, self._low, self._high = mean, squares, low, high
        else:
            total, apart = self._count + count, mean - self._mean
            self._squares = self._squares + squares + apart**2 * (self._count * count / total)
            self._mean = self._mean + apart * (count / total)
            self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)
        self._count += count

    def made(self) -> FieldStatistics:
        """The numbers of all that was added."""
        std = np.sqrt(self._squares / max(1, self._count))
        return FieldStatistics(self._count, self._mean, std, self._low, self._high)


def _of_bytes(values: Array) -> tuple[Float64, Float64]:
    """Mean, and squares of the distances to it, of bytes: exact, from how often each comes."""
    levels, count = np.arange(256.0), len(values)
    columns = values.reshape(count, -1).T
    times = np.array([np.bincount(column, minlength=256) for column in columns], np.float64)
    mean = times @ levels / count
    squares = (times * (levels - mean[:, None]) ** 2).sum(axis=1)
    return mean.reshape(values.shape[1:]), squares.reshape(values.shape[1:])
