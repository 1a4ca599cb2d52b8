"""Count, mean, deviation and ends of the fields of a set, from values that come in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..pipeline.opened import Opened
from ..pixels.row_maker import RowMaker
from ..pixels.specs import OutputSpec
from ..pixels.transform import plan_rows
from ..sampling.episodes import Windows
from ..sampling.patches import Patched, Patches
from ..sources import Inspector
from ..sources.base import Source, read_stored
from ..sources.labels import selected
from ..sources.request import Cut
from ..stats import FieldStatistics
from ..system.array_types import Array, Float64, Int64

#: Bytes of samples whose statistics are worked out together.
_MEASURED: Final = 2 << 20


def statistics(opened: Opened) -> dict[str, FieldStatistics]:
    """Those of each field of an open set, of its stored values. SampleError for a bad sample."""
    found = {}
    for name in opened.source.names:
        moments = Moments()
        tiled = isinstance(opened.source.rule, Patches)
        for values in _of_volumes(opened, name) if tiled else _of_samples(opened, name):
            if opened.params.values == "physical" and values.dtype.kind == "f":
                values = values[~np.isnan(values).reshape(len(values), -1).any(axis=1)]
            moments.add(values)
        found[name] = moments.made()
    return found


def _of_samples(opened: Opened, name: str) -> Iterator[Array]:
    """The stored values of all samples, some at a time: (n, C), (n, D) or (n,). Samples that differ
    in length or size come each by itself."""
    part = opened.source.part(name)
    spec, path = part.spec, part.facts.path
    members = opened.params.wanted.for_field(name).members  # of structured rows
    # the channels are the last axis in memory
    wanted = OutputSpec(layout="NHWC", contiguous=True, members=members)
    alike = spec.shape is not None and not spec.ragged and not spec.encoded
    fill = plan_rows(spec, wanted, path) if alike else None
    together = _MEASURED
    if not spec.ragged and spec.shape is not None:
        together = max(1, _MEASURED // max(1, spec.row_bytes))
    for records in _counted(opened, name, together):
        if fill is not None:
            out = _read(opened, part, records, fill)
            yield out.reshape(-1, out.shape[-1]) if spec.axes or out.ndim == 2 else out.reshape(-1)
            continue
        for record in records.tolist():
            own = _own_size(part, record)
            if own.get("max_length") == 0:
                continue
            fill_one = plan_rows(spec, replace(wanted, **own), path)
            out = _read(opened, part, np.array([record]), fill_one)
            flat = spec.ragged and out.ndim != 3
            yield out.reshape(-1) if flat else out.reshape(-1, out.shape[-1])


def _own_size(part: Source, record: int) -> dict[str, Any]:
    """What is wanted of a sample so that it comes whole: its own length, or size."""
    offsets = part.index.offsets
    if offsets is None:
        return {"size": Inspector(part).size(record), "crop": "none"}
    return {"max_length": int(offsets[record + 1]) - int(offsets[record])}


def _read(opened: Opened, part: Source, records: Int64, fill: RowMaker | None = None) -> Array:
    """:func:`read_stored`; the first bad sample is an error."""
    out, errors = read_stored(part, records, fill)
    for bad in errors:
        raise opened.source.rule.told(bad.error)
    return out


def _counted(opened: Opened, name: str, together: int) -> Iterator[Int64]:
    """The field's own rows whose values count, from so many at a time: those of all samples; of
    episodes, where a row may be in many windows or in none, those that are selected."""
    params, source = opened.params, opened.source
    rule, rows = selected(params.subset, params.patch.at, source)
    if not isinstance(rule, Windows):
        for at in range(0, opened.length, together):
            yield opened.records(np.arange(at, min(at + together, opened.length)))
        return
    if isinstance(rows, np.ndarray):
        rows = np.sort(rows)
    count = source.rows_of(name)
    for at in range(0, count, together):
        records = np.arange(at, min(at + together, count))
        records = records[rule.selects(name, records, rows)]
        if records.size:
            yield records


def _of_volumes(opened: Opened, name: str) -> Iterator[Array]:
    """The stored values of all volumes, each once: (n, C) of images, else (n,)."""
    part, sampler, p = opened.source.part(name), opened.schedule.sampler, opened.params
    assert isinstance(sampler, Patched)
    cut, spec = sampler.rule.volumes, part.spec
    asked = Cut(p.patch.shape or (), p.patch.axes, p.sample_axis)
    tiles = replace(sampler.rule, at="grid", step=cut.patch)
    together = max(1, _MEASURED // spec.row_bytes)
    for first in range(0, tiles.population, together):
        numbers = np.arange(first, min(first + together, tiles.population), dtype=np.int64)
        out = _read(opened, part, tiles.places(numbers))
        axes = asked.axes_of_sample(out.ndim - 1 - spec.flat)
        for tile, shift in zip(out, tiles.repeated(numbers).tolist(), strict=True):
            for axis, known in zip(axes, shift, strict=True):
                tile = tile[(slice(None),) * axis + (slice(known, None),)]
            if spec.axes is None:
                yield tile.reshape(-1)
            else:
                channels = spec.axes.index("C")
                yield np.moveaxis(tile, channels, -1).reshape(-1, tile.shape[channels])


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
