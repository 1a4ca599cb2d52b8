"""A set that this process has open: how its samples become rows, and what is stored of them."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from multiprocessing import parent_process
from typing import Any, Final, NamedTuple, SupportsIndex, TypeGuard

import numpy as np

from ..errors import ParamsError, closed_on_error
from ..params.declare import declared
from ..params.families import Crop
from ..params.reader import Order, ReaderParams, Run
from ..pixels.row_maker import RowMaker
from ..pixels.rows import RowError, RowJob
from ..sampling import sampler_of
from ..sampling.rule import Lengths
from ..sampling.samplers import Storage
from ..sampling.schedule import Schedule
from ..sources import Inspector, OpenSet
from ..sources.base import Source
from ..sources.labels import resolve_rule
from ..stats import Meter
from ..system.array_types import Array, Int64
from ..system.keyed_random import STREAM_GEOMETRY, key_of, mix_rows
from ..system.signals import result_of, submit
from ..system.text import times
from . import build
from .distributed import worker_count
from .fill_batch import BatchFiller

#: Samples of so many bytes are read together where a whole set is gone through.
_TOGETHER: Final = 16 << 20
#: What threads are started for: seconds of decoding, bytes in all, and bytes of each chunk or
#: image: small ones take about as long in Python, where one thread holds up the other.
_LEAST: Final = 3e-3
_LEAST_BYTES: Final = 1 << 20
_LEAST_EACH: Final = 32 << 10


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

    def named(self, labels: Any) -> dict[str, Any]:
        """The fields by name, with ``labels`` as the label, of patches their places, and of
        episodes their numbers and, of each window, which rows are the episode's own."""
        names, rule, records = self.source.names, self.source.rule, self.records
        every = np.ones(records.size, np.bool_)
        said = {"label": labels, "place": rule.place(records), "episode": rule.episode(records)}
        for name, lengths in zip(names, self.lengths, strict=True):
            before = "" if len(names) == 1 else f"{name}."
            said[f"{before}lengths"] = lengths and lengths.served(records, every)
            said[f"{before}present"] = rule.present(name, records, every)
        known = {name: values for name, values in said.items() if values is not None}
        return {**dict(zip(names, self.data, strict=True)), **known}


class Opened:
    """A set that this process has open, and how its samples become rows. ``owned``: it is closed
    with this."""

    def __init__(self, params: ReaderParams, source: OpenSet, owned: bool = True) -> None:
        self.pid = os.getpid()
        self._threads = threads_for(params)
        self.source = source
        self._owned = owned
        with closed_on_error([self]):
            p = _without_training(params)
            spec = source.spec
            several = spec.axes is not None and None in spec.image_shape()[:2]
            #: images are served in their own sizes, each by itself
            self.sizes_differ = several and p.size is None and p.transform is None
            if self.sizes_differ:
                p = replace(p, size=(1, 1), crop=Crop("none"))
            self.params = p
            # the samples by number: of a mix each of all sets once, in sequence
            rule, subset = resolve_rule(p.subset, p.patch.at, source)
            storage = Storage(source.facts.path, source.facts.count)
            self.schedule = Schedule(sampler_of(False, p.seed, 1, storage, subset, rule))
            self._lengths = source.lengths(p.wanted)
        self.length = self.schedule.length

    @cached_property
    def _filler(self) -> BatchFiller:
        return build.make_filler(self.params, self.source, self.schedule)

    @cached_property
    def fills(self) -> tuple[RowMaker, ...]:
        """How each field becomes rows."""
        return tuple(self._filler.fills)

    def check(self) -> None:
        """ParamsError where samples cannot be served as the parameters say."""
        build.make_schedule(self.params, self.source, 0, 1)
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
        return self.schedule.sampler.records(0, numbers)

    def read(self, numbers: Int64) -> Rows:
        """Samples by number."""
        records, count = self.records(numbers), numbers.size
        fills = self._fills_of(records) if self.sizes_differ and count else self.fills
        outs = [np.empty(part.shape, part.dtype) for part in self._filler.rows(count, fills)]
        table, label = self.source.labels, self._filler.label
        labels = None if table is None else np.empty((count, *table.shape[1:]), table.dtype)
        if count and not self._compiled(records, outs, labels):
            labels = None if table is None else np.asarray(table[records])
            made = None if label is None else np.zeros((count, *label.shape), label.dtype)
            keys = mix_rows(key_of(self.params.seed, STREAM_GEOMETRY, 0), numbers)
            job = RowJob(records, np.arange(count), keys, None, numbers, labels, made)
            for bad in sorted(self._read(job, fills, outs), key=lambda b: b.row):
                raise bad.error
            labels = labels if made is None else made
        data = self._filler.handed_out(outs, fills)
        return Rows(self.source, data, labels, records, self._lengths)

    def _compiled(self, records: Int64, outs: Sequence[Array], labels: Array | None) -> bool:
        """Whether compiled code wrote the samples and their labels: it can where they lie in
        memory."""
        tables, size = self._filler.find_tables(), self._bytes * records.size
        return (
            tables is not None
            and bool(self.source.in_memory(size))
            and tables.fill(records, outs, labels, 0, 0)
        )

    def _read(
        self, job: RowJob, fills: Sequence[RowMaker], outs: Sequence[Array]
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

    def _fills_of(self, records: Int64) -> tuple[RowMaker, ...]:
        """How images become rows in their own size. ParamsError where they have several."""
        looked = Inspector(self.source.first)
        sizes = sorted({looked.size(record) for record in records.tolist()})
        if len(sizes) > 1:
            raise ParamsError(
                "images that differ in size cannot be stacked",
                path=self.source.facts.path,
                found=" and ".join(times(size) for size in sizes[:3]),
                hint="pass size=(H, W), or read them one by one",
            )
        return self.source.fills(replace(self.params.wanted, size=sizes[0]))

    def stored(self, name: str, part: Source, record: int) -> bytes:
        """The stored bytes of a field of a sample; of a window those of its rows in sequence."""
        rows, rule = np.array([record], np.int64), self.source.rule
        if rule.is_whole(name):
            start, length, _ = rule.whole(name, rows)
            rows = np.arange(start[0], start[0] + length[0])
        else:
            rows = rule.stored(name, rows)[0].reshape(-1)
        return b"".join(map(Inspector(part).bytes, rows.tolist()))

    def close(self) -> None:
        if "_filler" in self.__dict__:
            self._filler.let_go()
        if self._owned:
            self.source.close()


def threads_for(p: ReaderParams) -> int:
    """Threads that decode what one call asks for: ``nthread`` where it was given. Else all usable
    cores; but 1 in a worker process of a loader, and where samples go through the user's code."""
    if "nthread" in p.names_given:
        return worker_count(p)
    if p.transform is not None or parent_process() is not None:
        return 1
    return worker_count(replace(p, nthread="auto"))


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
    if isinstance(indices, slice):
        return np.arange(*indices.indices(length), dtype=np.int64)
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
