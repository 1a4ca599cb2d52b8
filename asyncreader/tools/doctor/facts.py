"""Facts about a set that need no timing: its layout, its file system, and the memory."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass

import numpy as np

from ...errors import DecodeError, SampleError
from ...pixels import codec
from ...sources import Inspector, OpenSet, Source, expand_paths, sniff
from ...sources.base import FieldIndex, Storage, row_size
from ...sources.hdf5.chunks import Chunks
from ...system.files import BYTES, NETWORK_FILE_SYSTEMS, file_system
from ...system.limits import available_memory, usable_cores
from ...system.memory import cached_share, map_file
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

    @property
    def chunk_bytes(self) -> float:
        """Bytes of a decoded chunk."""
        return self.chunk * self.sample_bytes


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
        packable=stored.encoded
        or (
            stored.dtype == np.uint8
            and (grey or picture is not None)
            and stored.image_shape()[2] in (1, 3)
        )
        or (
            stored.dtype == np.uint16
            and (grey or (picture is not None and stored.image_shape()[2] == 1))
        ),
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
        fd = os.open(file, os.O_RDONLY | BYTES)
        try:
            length = os.fstat(fd).st_size
            if length:
                in_memory += cached_share(map_file(fd, length)) * length
                size += length
        finally:
            os.close(fd)
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
