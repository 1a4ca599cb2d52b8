"""A source over HDF5 chunks, read and decoded outside the HDF5 library."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ...array_types import Array, Int64, UInt8
from ...errors import DecodeError
from ...pixels.rows import RowWriter, Writer
from ...stats import Meter
from ...system.memory import address_of
from ..base import BaseSource, FieldIndex, SetFacts, Source, row_size
from ..bytestore import ByteFile, MemoryStore
from .chunk_cache import ChunkCache, Decode
from .filters import Filter, decode_chunk

MEMORY: Final = MemoryStore()

#: Decoded chunks that a source may remember.
CACHE_BYTES: Final = 64 << 20
#: Chunks whose rows are copied in one call after they were decoded, and are pinned until then.
TOGETHER: Final = 32


@dataclass(frozen=True)
class ChunkGrid:
    """A chunked data set: ``shape``, ``chunk`` shape, and per chunk (C order over the grid) its
    offset, stored size and filter mask."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    filters: tuple[Filter, ...]
    offsets: Int64
    sizes: Int64
    masks: npt.NDArray[np.uint32]

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk."""
        return math.prod(self.chunk) * self.dtype.itemsize


class LibraryChunks(Protocol):
    """Decoded chunks through the HDF5 library, for filters that only it can undo."""

    def read(self, number: int) -> UInt8:
        """A chunk, one caller at a time."""

    def close(self) -> None:
        """Close the library's file."""


@dataclass(frozen=True, eq=False)
class Chunks:
    """Samples inside chunks. ``axis``: where the sample number is in the stored shape.

    ``library``: opens the HDF5 library's reader of the chunks; None: they are decoded here.
    """

    grid: ChunkGrid
    axis: int
    library: Callable[[ByteFile, ChunkGrid], LibraryChunks] | None = None

    def serve(self, facts: SetFacts, index: FieldIndex, file: ByteFile | None) -> Source:
        """A source that reads them from ``file``."""
        assert file is not None
        library = None if self.library is None else self.library(file, self.grid)
        return ChunkSource(facts, index, file, self, library)


@contextmanager
def _decoding(meter: Meter) -> Iterator[None]:
    """The time of what is done inside counts as decoding, also where it fails."""
    started = time.perf_counter()
    try:
        yield
    finally:
        meter.seconds["decode"] += time.perf_counter() - started


class ChunkSource(BaseSource):
    """Reads samples inside chunks: decoded in the calling thread, a bounded number remembered."""

    def __init__(
        self,
        facts: SetFacts,
        index: FieldIndex,
        file: ByteFile,
        chunks: Chunks,
        library: LibraryChunks | None,
    ) -> None:
        super().__init__(facts, index, file, file.store)
        grid, axis = chunks.grid, chunks.axis
        self._grid = grid
        self._axis = axis
        self._library = library
        #: samples lie whole in a chunk, one behind the other
        self._row_bytes = row_size(grid.shape[1:], grid.dtype)
        self._whole = axis == 0 and grid.chunk[1:] == grid.shape[1:]
        limit = max(CACHE_BYTES, 2 * grid.chunk_bytes)
        if self._whole and grid.chunk[0] == 1:
            limit = TOGETHER * 2 * grid.chunk_bytes  # memory to decode in: nothing comes twice
        self.cache = ChunkCache(limit, math.prod(grid.grid), grid.chunk_bytes)

    def offsets(self, records: Int64) -> Int64:
        """Byte offsets in the file of the (first) chunk that each record lies in."""
        behind = math.prod(self._grid.grid[self._axis + 1 :])
        first: Int64 = self._grid.offsets[records // self._grid.chunk[self._axis] * behind]
        return first

    def close(self) -> None:
        super().close()
        if self._library is not None:
            self._library.close()

    def reserve(self, samples: int) -> None:
        # a window, and what the next one needs while the last batches of it are in flight
        chunks = -(-samples // self._grid.chunk[self._axis])
        across = math.prod(n for i, n in enumerate(self._grid.grid) if i != self._axis)
        self.cache.resize((chunks + chunks // 32 + 2) * across * self._grid.chunk_bytes)

    def release(self) -> None:
        self.cache.release()

    def _decode(self, number: int, meter: Meter, out: UInt8 | None = None) -> UInt8:
        """A decoded chunk, in memory of its own (or in ``out``)."""
        if self._library is not None:
            with _decoding(meter):  # and reading, which the library does along with it
                return self._library.read(number)
        grid = self._grid
        stored = self.store.view(int(grid.offsets[number]), int(grid.sizes[number]))
        mask, size = int(grid.masks[number]), grid.chunk_bytes
        with _decoding(meter):
            pixels = decode_chunk(stored, grid.filters, mask, size, grid.dtype.itemsize, out)
            if np.may_share_memory(pixels, stored):
                pixels = pixels.copy()  # nothing was to be undone
        return pixels

    def _decoder(self, meter: Meter) -> Decode:
        """What puts a decoded chunk into memory."""

        def decode(number: int, memory: UInt8) -> None:
            pixels = self._decode(number, meter, memory)
            if not np.may_share_memory(pixels, memory):
                memory[:] = pixels

        return decode

    @contextmanager
    def _chunk(self, number: int, meter: Meter) -> Iterator[UInt8]:
        """A decoded chunk, for as long as the context lasts."""
        decode = self._decoder(meter)
        while (found := self.cache.get(number, decode, alone=True)) is None:
            with _decoding(meter):  # which another thread does
                self.cache.wait(number)
        try:
            yield found.pixels
        finally:
            self.cache.unpin([found.entry])

    def _sample(self, record: int, meter: Meter) -> Array:
        """A sample that is cut over chunks, in stored axis order."""
        grid, axis = self._grid, self._axis
        along, inside = divmod(record, grid.chunk[axis])
        shape = tuple(n for i, n in enumerate(grid.shape) if i != axis)
        out = np.empty(shape, grid.dtype)
        counts = grid.grid
        for across in np.ndindex(*(n for i, n in enumerate(counts) if i != axis)):
            at = (*across[:axis], along, *across[axis:])
            number = int(np.ravel_multi_index(at, counts))
            with self._chunk(number, meter) as chunk:
                plane = chunk.view(grid.dtype).reshape(grid.chunk).take(inside, axis=axis)
            steps = tuple(n for i, n in enumerate(grid.chunk) if i != axis)
            where = tuple(
                slice(a * s, min((a + 1) * s, n))
                for a, s, n in zip(across, steps, shape, strict=True)
            )
            out[where] = plane[tuple(slice(0, w.stop - w.start) for w in where)]
        return out

    def read_into(self, writer: Writer) -> None:
        in_place = writer.in_place
        if in_place is not None and self._whole and self._grid.chunk[0] == 1:
            self._read_straight(in_place)
            return
        if not self._whole:
            self._read_cut(writer)
            return
        chunks, inside = np.divmod(writer.job.records, self._grid.chunk[0])
        inside *= self._row_bytes
        entries, addresses = self.cache.pin(chunks)
        there = entries != 0
        try:
            if there.all():
                writer.bulk(MEMORY, addresses + inside)
                return
            writer.bulk(MEMORY, (addresses + inside)[there], there)
        finally:
            self.cache.unpin(entries)
        self._read_missing(chunks, inside, np.flatnonzero(~there), writer)

    def _read_missing(self, chunks: Int64, inside: Int64, places: Int64, writer: Writer) -> None:
        """Rows ``places`` of the job, at ``inside`` (bytes) of ``chunks``, which are not in memory.

        A chunk that another thread is decoding is read last. A thread that waits has no pins, and a
        thread that decodes does not wait, so there is no deadlock.
        """
        numbers, which = np.unique(chunks[places], return_inverse=True)
        if self.store.remote:
            self.store.will_need(self._grid.offsets[numbers], self._grid.sizes[numbers])
        starts = np.zeros(numbers.size, np.int64)
        held: list[int] = []

        def gather() -> None:
            """Copy the rows of the pinned chunks, and unpin them."""
            if held:
                addresses = starts[which]
                good = addresses != 0
                addresses += inside[places]
                writer.bulk(MEMORY, addresses[good], places[good])
                self.cache.unpin(held)
                held.clear()
                starts[:] = 0

        decode, passed = self._decoder(writer.meter), 0
        todo = deque(enumerate(numbers.tolist()))
        try:
            while todo and not writer.stopped:
                i, number = todo.popleft()
                try:
                    chunk = self.cache.get(number, decode, alone=not held)
                except DecodeError as exc:
                    writer.fail_all(places[which == i], exc)
                    continue
                if chunk is not None:
                    held.append(chunk.entry)
                    starts[i] = address_of(chunk.pixels)
                    passed = 0
                    if chunk.entry == 0 or len(held) == TOGETHER:
                        gather()
                    continue
                todo.append((i, number))
                passed += 1
                if passed >= len(todo):
                    gather()
                    with _decoding(writer.meter):
                        self.cache.wait(number)
                    passed = 0
            gather()
        finally:
            self.cache.unpin(held)

    def _read_cut(self, writer: Writer) -> None:
        """Rows of samples that are cut over several chunks, or lie across them."""
        records = writer.job.records
        held: list[Array] = []  # what the addresses point into
        chunks = records // self._grid.chunk[self._axis]
        addresses = np.zeros(records.size, np.int64)
        # samples of one chunk together, so that it is decoded once even if soon dropped
        for i in np.argsort(chunks, kind="stable").tolist():
            try:
                held.append(self._sample(int(records[i]), writer.meter))
                addresses[i] = held[-1].ctypes.data
            except DecodeError as exc:
                writer.fail_all(np.array([i]), exc)
        good = addresses != 0
        writer.bulk(MEMORY, addresses[good], None if good.all() else good)

    def _read_straight(self, writer: RowWriter) -> None:
        """One sample a chunk and nothing to convert: decoded where it is wanted."""
        records = writer.job.records
        if self.store.remote:
            self.store.will_need(self._grid.offsets[records], self._grid.sizes[records])
        for i, record in enumerate(records.tolist()):
            if writer.stopped:
                break
            target = writer.memory(i)
            try:
                pixels = self._decode(record, writer.meter, target)
            except DecodeError as exc:
                writer.fail(i, exc)
                continue
            if pixels.ctypes.data != target.ctypes.data:
                target[:] = pixels
            writer.placed(i)
