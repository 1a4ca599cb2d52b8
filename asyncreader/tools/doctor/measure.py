"""What the doctor looks at before it measures: facts about a set, the records that its trials read,
and samples packed in another form."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...errors import DecodeError, SampleError
from ...pixels import codec
from ...sources import Inspector, OpenSet, Source, expand_paths, sniff
from ...sources.base import FieldIndex, Storage, row_size
from ...sources.extents import ExtentSource
from ...sources.hdf5.chunks import Chunks, ChunkSource
from ...system.array_types import Int64
from ...system.files import NETWORK_FILE_SYSTEMS, file_system
from ...system.limits import available_memory, usable_cores
from ...system.memory import PAGE, cached_pages, cached_share, map_file
from ..describe import mean_over_files, samples_of

#: Pictures whose headers are read to find their usual size.
_LOOKED_AT = 16
#: Files whose pages are looked for in the page cache.
_MOST_MAPPED = 256


@dataclass(frozen=True)
class ChunkCost:
    """Bytes that compressed chunks cost for each sample, where no decoded chunk is remembered:
    ``read`` from the file and ``inflated`` for a sample drawn at random, which needs all chunks
    that it lies in; ``read_in_order``, ``inflated_in_order`` where each chunk is read once."""

    read: float
    inflated: float
    read_in_order: float
    inflated_in_order: float


@dataclass(frozen=True)
class Facts:
    """What is known of a set before anything is timed."""

    path: str
    container: str
    layout: str
    ours: bool
    """Packed by ``asyncreader convert``."""
    count: int
    encoding: str
    encoded: bool
    compression: str | None
    chunk: int
    """Samples that are compressed together; 1 where nothing is compressed."""
    shape: tuple[int, ...] | None
    """The shape of a stored sample; None where samples differ."""
    picture: tuple[int, int] | None
    """(H, W) of a usual picture; None where samples are no pictures."""
    unmarked: bool
    """Whether most samples are baseline JPEGs without restart markers: those can be added."""
    packable: bool
    """Whether ``asyncreader convert`` takes such samples."""
    sample_bytes: float
    """Bytes of a usual sample, decoded."""
    stored_bytes: float
    """Bytes of file to a sample."""
    files: tuple[str, ...]
    size: int
    """Bytes of all files."""
    file_system: str
    network: bool
    cached: float
    """Part of the files in the page cache, 0 to 1."""
    memory: int
    """Bytes that the page cache may take."""
    cores: int
    deep: bool = False
    """Whether its pictures have more than 8 bits, so that they cannot be JPEGs."""
    chunks: ChunkCost | None = None
    """What compressed chunks cost; None where there are none."""

    @property
    def fits(self) -> bool:
        """Whether the files stay in memory once they were read."""
        return self.size <= self.memory


def look(source: OpenSet, path: str | tuple[str, ...], memory: int | None = None) -> Facts:
    """Facts of an open set at ``path``. ``memory``: bytes left to it, else what is free now."""
    facts, stored, index = source.facts, source.spec, source.first.index
    files = tuple(file for name in expand_paths(path) for file in _files(name))
    size = sum(os.path.getsize(file) for file in files)
    kind = file_system(files[0])
    picture, unmarked = None, False
    if stored.axes is not None or stored.encoded:
        picture, unmarked = _usual_picture(source.first)
    if stored.shape is not None:
        sample = float(row_size(stored.shape, stored.dtype))
    else:
        high, wide = picture or (0, 0)
        sample = float(high * wide * stored.channels * stored.dtype.itemsize)
    grey = stored.axes is None and len(stored.shape or ()) == 2
    channels = 1 if grey else stored.image_shape()[2]
    packed_as = {"uint8": (1, 3), "uint16": (1,)}.get(stored.dtype.name, ())
    return Facts(
        path=facts.path,
        container=facts.container,
        layout=facts.layout,
        ours=facts.meta is not None,
        count=facts.count,
        encoding=stored.encoding,
        encoded=stored.encoded,
        compression=index.compression,
        chunk=(index.chunk or 1) if index.compression else 1,
        shape=stored.shape,
        picture=picture,
        unmarked=unmarked,
        packable=stored.encoded or ((grey or picture is not None) and channels in packed_as),
        sample_bytes=sample,
        stored_bytes=size / facts.count,
        files=files,
        size=size,
        file_system=kind,
        network=kind in NETWORK_FILE_SYSTEMS,
        cached=cached(files),
        memory=available_memory() if memory is None else memory,
        cores=usable_cores(),
        deep=stored.dtype != np.uint8,
        chunks=chunk_cost(source.first.index),
    )


def chunk_cost(field: FieldIndex) -> ChunkCost | None:
    """What compressed chunks cost for each sample of a field; of several files the mean."""
    found = mean_over_files(field, _costs)
    return None if found is None else ChunkCost(*map(float, found))


def _costs(storage: Storage) -> tuple[float, ...] | None:
    """The values of :class:`ChunkCost` in one file."""
    if not isinstance(storage, Chunks) or not storage.grid.filters:
        return None
    grid, samples = storage.grid, samples_of(storage)
    along = math.prod(grid.grid[storage.axis : storage.axis + storage.lead])
    stored, inflated = int(grid.sizes.sum()), grid.offsets.size * grid.chunk_bytes
    return stored / along, inflated / along, stored / samples, inflated / samples


def _files(name: str) -> list[str]:
    """The data files of a set: its shards, those of a list, or itself."""
    with contextlib.closing(sniff(name)) as found:
        return found.files()


def cached(files: tuple[str, ...]) -> float:
    """Part of the bytes of ``files`` (of many, evenly spread) in the page cache, 0 to 1."""
    in_memory = size = 0.0
    for file in files[:: -(-len(files) // _MOST_MAPPED)]:
        with open(file, "rb") as opened:
            length = os.fstat(opened.fileno()).st_size
            if length:
                in_memory += cached_share(map_file(opened.fileno(), length)) * length
                size += length
    return in_memory / size if size else 1.0


def _usual_picture(source: Source) -> tuple[tuple[int, int] | None, bool]:
    """Of some pictures that are looked at: (H, W) of the one in the middle, by area, and whether
    most are baseline JPEGs without restart markers."""
    stored = source.spec
    high, wide, _ = stored.image_shape()
    if high is not None and wide is not None and not stored.encoded:
        return (high, wide), False
    found, unmarked, inspector = list[tuple[int, int]](), 0, Inspector(source)
    last = source.facts.count - 1
    for record in np.unique(np.linspace(0, last, _LOOKED_AT).astype(np.int64)).tolist():
        try:
            if stored.encoded:
                data = inspector.bytes(record)
                plain = codec.read_plain_header(data)
                unmarked += plain is not None and plain.facts is None
                header = plain or codec.read_header(data)
                found.append((header.height, header.width))
            else:
                found.append(inspector.size(record))
        except (SampleError, DecodeError):
            continue
    if not found:
        return None, False
    middle = sorted(found, key=lambda size: size[0] * size[1])[len(found) // 2]
    return middle, 2 * unmarked > len(found)


# -- the trials ------------------------------------------------------------------------------------


#: Seconds that one batch of a slow set may take in a trial.
_BATCH_SECONDS: Final = 0.05


def batch_that_fits(batch_size: int, samples_per_second: float, group: int = 1) -> int:
    """A batch for trials of a set that serves so many: as asked for, unless that took seconds.
    Then a multiple of ``group``, the rows that a stage takes together."""
    fits = int(samples_per_second * _BATCH_SECONDS)
    return batch_size if fits >= batch_size else max(group, fits // group * group)


def bring_in(facts: Facts, seconds: float) -> tuple[float, int]:
    """Read the files of a set that fits in memory, for so long.

    Returns the part now in the page cache, and up to which byte the first file was read.
    """
    share, upto = facts.cached, 0
    if share >= 0.9:
        return share, os.path.getsize(facts.files[0])
    until = time.perf_counter() + seconds
    buffer = bytearray(8 << 20)
    for name in facts.files:
        with open(name, "rb", buffering=0) as file:
            while time.perf_counter() < until and file.readinto(buffer):
                upto = file.tell() if name == facts.files[0] else upto
    return cached(facts.files), upto


def _offsets(source: Source, records: Int64) -> Int64 | None:
    """Where records, or the chunks that they are in, begin in the file; None where they are in no
    file, or in several."""
    if isinstance(source, ExtentSource | ChunkSource) and source.file is not None:
        return source.offsets(records)
    return None


def records_below(source: Source, upto: int, records: Int64 | None) -> Int64 | None:
    """Records that lie whole in the first ``upto`` bytes; None where that is not known."""
    every = np.arange(source.facts.count, dtype=np.int64) if records is None else records
    offsets = _offsets(source, every)
    if offsets is None or offsets.size < 2:
        return None
    ends = np.append(np.sort(offsets)[1:], upto + 1)
    limit = offsets[np.argsort(offsets)][ends <= upto]
    return every[offsets <= limit[-1]] if limit.size else None


def cold_records(source: Source, facts: Facts, seed: int) -> Int64 | None:
    """Records that are not in the page cache, in random order.

    None where that is not known or only a few are out of it.
    """
    if len(facts.files) != 1:
        return None
    offsets = _offsets(source, np.arange(source.facts.count, dtype=np.int64))
    if offsets is None:
        return None
    with open(facts.files[0], "rb") as file:
        in_memory = cached_pages(map_file(file.fileno(), os.path.getsize(facts.files[0])))
    if in_memory is None:
        return None
    cold = np.flatnonzero(in_memory[offsets // PAGE] == 0)
    if cold.size < source.facts.count // 4:
        return None
    return np.random.default_rng(seed).permutation(cold)


def share_out(records: Int64, in_order: Sequence[bool]) -> list[Int64]:
    """Some of ``records``, which are in random order, for each trial. A trial that reads in order
    gets a run of the file, the others get what is left, drawn from all of the file.
    """
    runs = np.array_split(np.sort(records), len(in_order))
    taken = [run for run, ordered in zip(runs, in_order, strict=True) if ordered]
    left = records[~np.isin(records, np.concatenate(taken))] if taken else records
    drawn = iter(np.array_split(left, max(1, in_order.count(False))))
    return [run if ordered else next(drawn) for run, ordered in zip(runs, in_order, strict=True)]


def expected_rate(warm: float, stored_bytes: float, hit: float, disk: float | None) -> float:
    """Samples/s of a set of which the part ``hit`` stays in memory, from its rate in memory and
    the disk's bytes/s: whichever is slower, since reading ahead overlaps with the rest.
    """
    if hit >= 1 or disk is None:
        return warm
    return min(warm, disk / (stored_bytes * (1 - hit)))


def hit_share(facts: Facts, in_order: bool, size: float | None = None) -> float:
    """Part of the reads that the page cache serves: of a set of ``size`` bytes, read at random or
    in order (then what was read longest ago is wanted next, and has just been dropped).
    """
    size = facts.size if size is None else size
    if size <= facts.memory:
        return 1.0
    return 0.0 if in_order else facts.memory / size


def spread(count: int, wanted: int, chunk: int, records: Int64 | None) -> Int64:
    """``wanted`` records for a packed sample: evenly spread, or where samples are compressed
    together whole chunks of them, evenly spread.
    """
    total = count if records is None else records.size
    wanted = max(1, min(wanted, total))
    runs = -(-wanted // chunk)
    starts = np.unique(np.linspace(0, max(0, total - chunk), runs).astype(np.int64))
    if chunk > 1:
        starts = np.unique(starts // chunk * chunk)
    chosen = (starts[:, None] + np.arange(chunk)).reshape(-1)
    chosen = chosen[chosen < total][:wanted]
    return chosen if records is None else records[chosen]


def repeated(count: int, batch_size: int) -> Sequence[int] | None:
    """A ``subset`` that serves a small set several times over, so that batches are whole ones."""
    times = -(-4 * batch_size // count)
    return None if times == 1 else np.tile(np.arange(count), times).tolist()


@dataclass(frozen=True)
class PackedSample:
    """A packed part of a set."""

    path: str
    bytes_each: float
    """Bytes of file to a sample."""
    count: int
