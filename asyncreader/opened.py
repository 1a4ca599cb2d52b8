"""A set that this process has open: how its samples become rows, and what is stored of them."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from multiprocessing import parent_process
from typing import Any, Final, NamedTuple, SupportsIndex, TypeGuard

import numpy as np

from .errors import ParamsError, closed_on_error
from .moments import FieldStatistics, Moments
from .params import Crop, Order, ReaderParams, Run
from .params.declare import declared
from .pipeline import build
from .pipeline.distributed import worker_count
from .pipeline.fill_batch import BatchFiller
from .pixels.rows import RowError, RowJob
from .pixels.specs import OutputSpec, SampleSpec
from .pixels.transform import RowTransform
from .sampling import sampler_of
from .sampling.lengths import Lengths
from .sampling.patches import Patched
from .sampling.samplers import Storage
from .sampling.schedule import Schedule
from .sources import Inspector, OpenSet
from .sources.base import Source, read_stored
from .sources.request import Cut
from .sources.subset import resolve_rule, selected_rows
from .stats import Meter
from .system.array_types import Array, Int64
from .system.futures import result_of, submit
from .system.keyed_random import STREAM_GEOMETRY, key_of, mix_rows
from .system.text import times

#: Samples of so many bytes are read together where a whole set is gone through.
_TOGETHER: Final = 16 << 20
#: What threads are started for: seconds of decoding, bytes in all, and bytes of each chunk or
#: picture: small ones take about as long in Python, where one thread holds up the other.
_LEAST: Final = 3e-3
_LEAST_BYTES: Final = 1 << 20
_LEAST_EACH: Final = 32 << 10
#: Bytes of samples whose statistics are worked out together.
_MEASURED: Final = 2 << 20


class Rows(NamedTuple):
    """Samples that were read: ``data`` of each field (n, ...), ``labels`` (n, ...) or None, and
    their ``records`` in ``source``; ``lengths``: of the samples of each field, where they differ.
    """

    source: OpenSet
    data: tuple[Array, ...]
    labels: Array | None
    records: Int64
    lengths: tuple[Lengths | None, ...]

    @property
    def several(self) -> bool:
        """Whether data is handed out as a tuple."""
        return self.source.named

    def named(self) -> dict[str, Any]:
        """The fields by name, with the label, of patches their places, and of episodes their
        numbers and, of each window, which rows are the episode's own."""
        names, windows = self.source.names, self.source.windows
        found: dict[str, Any] = dict(zip(names, self.data, strict=True))
        if self.labels is not None:
            found["label"] = self.labels
        every = np.ones(self.records.size, np.bool_)
        for name, one in zip(names, self.lengths, strict=True):
            if one is not None:
                served = one.served(self.records, every)
                found["lengths" if len(names) == 1 else f"{name}.lengths"] = served
        if self.source.patches is not None:
            found["place"] = self.source.patches.volumes.of(self.records)[1]
        if windows is None:
            return found
        found["episode"] = windows.episodes.of(self.records)
        for name in names:
            present = windows.present(name, self.records, every)
            if present is not None:
                found["present" if len(names) == 1 else f"{name}.present"] = present
        return found


class Opened:
    """A set that this process has open, and how its samples become rows."""

    def __init__(
        self, params: ReaderParams, source: OpenSet, owned: bool = True, threads: int = 1
    ) -> None:
        self.pid = os.getpid()
        self._threads = threads
        self.source = source
        self._owned = owned
        with closed_on_error([self]):
            p = _without_training(params)
            #: pictures are served in their own sizes, each by itself
            self.sizes_differ = p.size is None and p.transform is None and _differ(source.spec)
            if self.sizes_differ:
                p = replace(p, size=(1, 1), crop=Crop("none"))
            self._params = p
            self._cut = Cut(p.patch.shape or (), p.patch.axes, p.sample_axis)
            self._schedule: Schedule = _in_order(p, source)
            self._lengths = source.lengths(p.wanted)
        self.length = self._schedule.length

    @cached_property
    def _filler(self) -> BatchFiller:
        return build.make_filler(self._params, self.source, self._schedule)

    @cached_property
    def fills(self) -> tuple[RowTransform, ...]:
        """How each field becomes rows."""
        return tuple(self._filler.fills)

    def check(self) -> None:
        """ParamsError where samples cannot be served as the parameters say."""
        build.make_schedule(self._params, self.source, 0, 1)
        assert self.fills

    @property
    def together(self) -> int:
        """Samples that are read together where all are gone through."""
        return max(1, _TOGETHER // self._bytes)

    @cached_property
    def _bytes(self) -> int:
        """Bytes of a sample as it is served."""
        return max(1, sum(fill.row_bytes for fill in self.fills))

    def records(self, numbers: Int64) -> Int64:
        """The record numbers of samples."""
        return self._schedule.sampler.records(0, numbers)

    def read(self, numbers: Int64) -> Rows:
        """Samples by number."""
        records, count = self.records(numbers), numbers.size
        rows = self._compiled(records) if count else None
        if rows is not None:
            return rows
        fills = self._fills_of(records) if self.sizes_differ and count else self.fills
        outs = [np.empty(part.shape, part.dtype) for part in self._filler.rows(count, fills)]
        table, label = self.source.labels, self._filler.label
        labels = None if table is None else np.asarray(table[records])
        if count:
            made = None if label is None else np.zeros((count, *label.shape), label.dtype)
            keys = mix_rows(key_of(self._params.seed, STREAM_GEOMETRY, 0), numbers)
            job = RowJob(records, np.arange(count), keys, None, numbers, labels, made)
            for bad in sorted(self._read(job, fills, outs), key=lambda b: b.row):
                raise bad.error
            labels = labels if made is None else made
        data = self._filler.handed_out(outs, fills)
        return Rows(self.source, data, labels, records, self._lengths)

    def _read(
        self, job: RowJob, fills: Sequence[RowTransform], outs: Sequence[Array]
    ) -> Sequence[RowError]:
        """Read samples, in several threads where much is to be decoded. The bad ones."""
        meter = Meter()

        def read(which: Int64 | slice) -> Sequence[RowError]:
            return self._filler.read(job.pick(which), fills, outs, meter)

        first, *todo = self._parts(job.records)
        found = [*read(first)]
        if not todo:
            return found
        left = sum(part.size for part in todo)
        if meter.seconds["decode"] * left < _LEAST * (job.records.size - left):
            return [*found, *read(np.concatenate(todo))]

        def work() -> None:
            while not meter.stopped:
                try:
                    part = todo.pop()
                except IndexError:
                    return
                found.extend(read(part))

        # threads that stay would be in the way of a fork; to start one takes 0.1 ms
        others = min(self._threads, len(todo)) - 1
        with ThreadPoolExecutor(max(1, others), thread_name_prefix="asyncreader-dataset") as pool:
            helped = []
            try:
                with contextlib.suppress(RuntimeError):  # no more threads, or Python ends
                    for _ in range(others):
                        helped.append(submit(pool, work))
                work()
                for one in helped:
                    result_of(one)
            finally:
                meter.stopped = True
        return found

    @cached_property
    def _block(self) -> int:
        """Samples that are decoded together; 0 where one thread reads all samples."""
        first, parts = self.source.first, self.source.parts
        block = 1 if first.spec.encoded else first.index.block
        decoded = any(part.spec.encoded or part.index.compression for part in parts)
        many = self._threads > 1 and decoded and block * self._bytes >= _LEAST_EACH
        return block if many else 0

    def _parts(self, records: Int64) -> list[Any]:
        """The places of samples in parts that threads can read, those of one chunk in one part: a
        small one, by which the others are judged, and those. One thread reads what is one part."""
        whole, block = [slice(None)], self._block
        if not block or records.size < 2:
            return whole
        blocks, of = np.unique(records // block, return_inverse=True)
        if blocks.size * block * self._bytes < _LEAST_BYTES:
            return whole
        edges = np.linspace(-(-blocks.size // 32), blocks.size, 4 * self._threads + 1)
        edges = np.unique(edges.astype(np.int64))
        part = np.searchsorted(edges, of, "right")
        return [np.flatnonzero(part == k) for k in range(edges.size)]

    def _fills_of(self, records: Int64) -> tuple[RowTransform, ...]:
        """How pictures become rows in their own size. ParamsError where they have several."""
        looked = Inspector(self.source.first)
        sizes = sorted({looked.size(record) for record in records.tolist()})
        if len(sizes) > 1:
            raise ParamsError(
                "images that differ in size cannot be stacked",
                path=self.source.facts.path,
                found=" and ".join(times(size) for size in sizes[:3]),
                hint="pass size=(H, W), or read them one by one",
            )
        return self.source.fills(replace(self._params.wanted, size=sizes[0]))

    def _compiled(self, records: Int64) -> Rows | None:
        """Rows that compiled code wrote: it can where they lie in memory."""
        tables, count = self._filler.find_tables(), records.size
        if tables is None or not self.source.in_memory(self._bytes * count):
            return None
        outs = [np.empty(part.shape, part.dtype) for part in self._filler.rows(count)]
        table = self.source.labels
        labels = None if table is None else np.empty((count, *table.shape[1:]), table.dtype)
        if not tables.fill(records, outs, labels, 0, 0):
            return None
        return Rows(self.source, self._filler.handed_out(outs), labels, records, self._lengths)

    def stored(self, name: str, part: Source, record: int) -> bytes:
        """The stored bytes of a field of a sample; of a window those of its rows in sequence."""
        rows, windows = np.array([record], np.int64), self.source.windows
        if windows is not None and windows.reach(name) == "episode":
            start, length, _ = windows.whole(name, rows)
            rows = np.arange(start[0], start[0] + length[0])
        elif windows is not None:
            rows = windows.stored(name, rows)[0].reshape(-1)
        return b"".join(map(Inspector(part).bytes, rows.tolist()))

    def statistics(self, name: str) -> FieldStatistics:
        """Those of one field."""
        found = Moments()
        for values in self._stored(name):
            found.add(values)
        return found.made()

    def _stored(self, name: str) -> Iterator[Array]:
        """The stored values of all samples, some at a time: (n, C), (n, D) or (n,)."""
        part = self.source.part(name)
        if self.source.patches is not None:
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

    def _good(self, part: Source, records: Int64, fill: RowTransform | None = None) -> Array:
        """:func:`read_stored`; the first bad sample is an error."""
        out, errors = read_stored(part, records, fill)
        for bad in errors:
            raise self.source.told(bad.error)
        return out

    def _plain(self, name: str, part: Source, most: int | None = None) -> RowTransform:
        """How the stored values of a field are measured: of structured rows those of the members
        that are asked for; ``most``: the length of samples, where these differ."""
        members = self._params.wanted.for_field(name).members
        wanted = OutputSpec(
            layout="NHWC",
            contiguous=True,  # the channels are the last axis in memory
            members=members,
            max_length=most,
        )
        return RowTransform(part.spec, wanted, part.facts.path)

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
        if source.windows is None:
            for at in range(0, self.length, together):
                yield self.records(np.arange(at, min(at + together, self.length)))
            return
        windows, rows = selected_rows(self._params.subset, source, source.windows)
        if isinstance(rows, np.ndarray):
            rows = np.sort(rows)
        count = source.rows_of(name)
        for at in range(0, count, together):
            records = np.arange(at, min(at + together, count))
            records = records[windows.selects(name, records, rows)]
            if records.size:
                yield records

    def _tiles(self, part: Source) -> Iterator[Array]:
        """The stored values of all volumes, each once: (n, C) of pictures, else (n,)."""
        sampler, spec = self._schedule.sampler, part.spec
        assert isinstance(sampler, Patched)
        cut = sampler.patches.volumes
        tiles = replace(sampler.patches, at="grid", step=cut.patch)
        together = max(1, _MEASURED // spec.row_bytes)
        for first in range(0, tiles.population, together):
            numbers = np.arange(first, min(first + together, tiles.population), dtype=np.int64)
            out = self._good(part, tiles.records(numbers))
            axes = self._cut.axes_of_sample(out.ndim - 1 - spec.flat)
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

    def close(self) -> None:
        if "_filler" in self.__dict__:
            self._filler.let_go()
        if self._owned:
            self.source.close()


def threads_for(p: ReaderParams, given: Mapping[str, object]) -> int:
    """Threads that decode what one call asks for: ``nthread`` where it was given. Else all usable
    cores; but 1 in a worker process of a loader, and where samples go through the user's code."""
    if "nthread" in given:
        return worker_count(p)
    if p.transform is not None or parent_process() is not None:
        return 1
    return worker_count(replace(p, nthread="auto"))


def _in_order(p: ReaderParams, source: OpenSet) -> Schedule:
    """The samples by number: of a mix each of all sets once, in sequence."""
    facts, (rule, subset) = source.facts, resolve_rule(p.subset, p.patch.at, source)
    storage = Storage(facts.path, facts.count)
    return Schedule(sampler_of(False, p.seed, 1, storage, subset, rule))


def _differ(stored: SampleSpec) -> bool:
    """Whether samples are pictures of several sizes."""
    return stored.axes is not None and None in stored.image_shape()[:2]


def _without_training(p: ReaderParams) -> ReaderParams:
    """``p`` without what belongs to training, or to whole batches."""
    groups = {**declared(Order), **declared(Run)}
    plain: dict[str, Any] = {n: one.default for n, one in groups.items() if n != "seed"}
    long = p.lengths.overlong
    if isinstance(long, dict):
        long = {name: "cut" if one == "random" else one for name, one in long.items()}
    return replace(
        p,
        **plain,
        crop=Crop("center" if p.crop.at_random else p.crop.kind, p.crop.ratio),
        lengths=replace(p.lengths, overlong="cut" if long == "random" else long),
        patch=replace(p.patch, at="center" if p.patch.at == "random" else p.patch.at),
        flip=False,
        augment=None,
        views=None,
    )


def is_number(index: object) -> TypeGuard[SupportsIndex]:
    """Whether it is one whole number, and no list, array or truth value."""
    one = getattr(index, "ndim", 0) == 0 and not isinstance(index, bool)
    return one and hasattr(index, "__index__")


def number_of(index: SupportsIndex, length: int) -> Int64:
    """One of :func:`numbers_of`, in a fifth of the time."""
    index = operator.index(index)
    if not -length <= index < length:
        raise IndexError(f"no sample {index}: there are {length}")
    return np.array([index if index >= 0 else index + length], np.int64)


def numbers_of(indices: Any, length: int) -> Int64:
    """Numbers of samples, counted from the end below 0; IndexError for one that is not there."""
    given = np.asarray(indices)
    if isinstance(indices, tuple):
        given = given[None]  # numpy takes it for several axes
    if given.dtype == np.bool_ and given.ndim:
        if given.shape != (length,):
            raise IndexError(f"a mask of shape {given.shape} for {length} samples")
        return np.flatnonzero(given)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise TypeError(f"samples are chosen by whole numbers, not by {indices!r:.80}")
    wrong = (given >= length) | ((given < -length) if given.dtype.kind == "i" else False)
    if wrong.any():
        raise IndexError(f"no sample {given[wrong][0]}: there are {length}")
    numbers = given.astype(np.int64)
    return np.where(numbers < 0, numbers + length, numbers)
