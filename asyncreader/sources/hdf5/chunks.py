"""A source over HDF5 chunks, read and decoded outside the HDF5 library."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import DecodeError
from ...pixels import kernels
from ...pixels.rows import RowWriter, Writer
from ...stats import Meter
from ...system.array_types import Array, Bools, Int64, UInt8
from ...system.memory import SCRATCH, address_of, bytes_at
from ...system.signals import after_this
from ..base import CACHE_BYTES, BaseSource, FieldIndex, SetFacts, Source
from ..bytestore import ByteFile, ByteStore, MemoryStore
from .chunk_cache import Chunk, ChunkCache, Decode
from .filters import Filter, decode_chunk, inflate, inflated_width
from .shares import Boxes, Shares, first_piece

MEMORY: Final = MemoryStore()

#: The largest piece that is put together of chunks which samples are cut over.
MOST_ASSEMBLED: Final = 16 << 20
#: Bytes of chunks that are decoded before they are put together in one call: less than a core's
#: cache holds.
DECODED_AT_ONCE: Final = 1 << 20
#: Boxes are read together that have so many shares of chunks.
_SHARES: Final = 1 << 18
#: To put a piece together takes as long as to copy the n-th part of its samples, each by itself.
_FEW: Final = 8
#: Chunks whose rows are copied in one call after they were decoded, and are pinned until then.
TOGETHER: Final = 32


@dataclass(frozen=True)
class ChunkGrid:
    """A chunked data set: ``shape``, ``chunk`` shape, and per chunk (C order over the grid) its
    offset, stored size and filter mask.

    ``fill``: the bytes of one element, as stored, that stands for all of a chunk that was never
    written, whose offset is -1; None where all were written.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    filters: tuple[Filter, ...]
    offsets: Int64
    sizes: Int64
    masks: npt.NDArray[np.uint32]
    fill: UInt8 | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk."""
        return math.prod(self.chunk) * self.dtype.itemsize

    @cached_property
    def inflated(self) -> int | None:
        """Where all chunks are of gzip, the width that they are shuffled by; else None."""
        return None if self.masks.any() else inflated_width(self.filters, self.dtype.itemsize)

    def will_need(self, store: ByteStore, numbers: Int64) -> None:
        """Prefetch from ``store``: the calling thread reads these chunks next."""
        written = numbers[self.offsets[numbers] >= 0]
        if written.size:
            store.will_need(self.offsets[written], self.sizes[written])


class Pieces(NamedTuple):
    """What is decoded in one go and remembered, in a data set in chunks.

    ``number``: how many; ``rows``: samples in each; ``nbytes``: of each; ``whole``: its samples are
    whole, one after the other: it is one chunk, or is put together of all those that the same
    samples are cut over. Else a piece is one of these chunks, ``across`` of which hold the same
    samples: together they would be too large.
    """

    number: int
    rows: int
    nbytes: int
    whole: bool
    across: int

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        itemsize: int,
        axis: int = 0,
        lead: int = 1,
    ) -> Pieces:
        """Those of a data set, whose ``lead`` axes from ``axis`` on number samples."""
        rows = math.prod(chunk[axis : axis + lead])
        sample = math.prod(shape[:axis]) * math.prod(shape[axis + lead :]) * itemsize
        counts = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
        along, number = math.prod(counts[axis : axis + lead]), math.prod(counts)
        if rows * sample <= MOST_ASSEMBLED or (along == number and axis == 0):
            return cls(along, rows, rows * sample, True, 1)
        return cls(number, rows, math.prod(chunk) * itemsize, False, number // along)


class LibraryChunks(Protocol):
    """Decoded chunks through the HDF5 library, for filters that only it can undo."""

    def read(self, number: int) -> UInt8:
        """A chunk, one caller at a time."""

    def close(self) -> None:
        """Close the library's file."""


@dataclass(frozen=True, eq=False)
class Chunks:
    """Samples inside chunks. ``axis``: where the sample number is in the stored shape; of ``lead``
    axes, where the first so many number the samples together.

    ``library``: opens the HDF5 library's reader of the chunks; None: they are decoded here.
    """

    grid: ChunkGrid
    axis: int
    library: Callable[[ByteFile, ChunkGrid], LibraryChunks] | None = None
    lead: int = 1

    def serve(self, facts: SetFacts, index: FieldIndex, file: ByteFile | None) -> Source:
        """A source that reads them from ``file``."""
        assert file is not None
        return ChunkSource(facts, index, file, self)


@contextmanager
def decoding(meter: Meter) -> Iterator[None]:
    """The time of what is done inside counts as decoding, also where it fails."""
    started = time.perf_counter()
    try:
        yield
    finally:
        meter.seconds["decode"] += time.perf_counter() - started


def _decode_one(
    grid: ChunkGrid,
    number: int,
    store: ByteStore,
    library: LibraryChunks | None,
    meter: Meter,
    out: UInt8,
) -> None:
    """Decode a chunk into ``out``. DecodeError if it is damaged."""
    if library is not None:
        with decoding(meter):  # and reading, which the library does along with it
            out[:] = library.read(number)
    elif grid.fill is not None and grid.offsets[number] < 0:
        out.reshape(-1, grid.fill.size)[:] = grid.fill
    else:
        stored = store.view(int(grid.offsets[number]), int(grid.sizes[number]))
        mask, size = int(grid.masks[number]), grid.chunk_bytes
        started = time.perf_counter()  # decoding() takes a microsecond more for each chunk
        try:
            out[:] = decode_chunk(stored, grid.filters, mask, size, grid.dtype.itemsize)
        finally:
            meter.seconds["decode"] += time.perf_counter() - started


def decode_into(
    grid: ChunkGrid,
    numbers: Int64,
    store: ByteStore,
    library: LibraryChunks | None,
    meter: Meter,
    targets: Int64,
) -> dict[int, DecodeError]:
    """Decode chunks into memory at the addresses ``targets``. The errors of those that are damaged,
    by their places in ``numbers``."""
    bad, left = dict[int, DecodeError](), np.arange(numbers.size)
    if library is None and grid.inflated is not None:
        sizes, found = grid.sizes[numbers], np.empty(numbers.size, np.int64)
        base = store.address(int(sizes.sum()))
        if base is not None:
            sources = grid.offsets[numbers] + base
            with decoding(meter):
                inflate(sources, sizes, targets, grid.chunk_bytes, grid.inflated, found)
            left = np.flatnonzero(found != grid.chunk_bytes)
    for i in left.tolist():
        memory = bytes_at(int(targets[i]), grid.chunk_bytes)
        try:
            _decode_one(grid, int(numbers[i]), store, library, meter, memory)
        except DecodeError as exc:
            bad[i] = exc
    return bad


def decode_each(
    cache: ChunkCache,
    numbers: Int64,
    decode: Decode,
    writer: Writer,
    give: Callable[[Int64, Int64], None],
    fail: Callable[[int, DecodeError], None],
) -> None:
    """Decode the chunks ``numbers``, each once, that were not in ``cache``, and hand on some at a
    time: ``give`` gets their places in ``numbers`` and their addresses, good until it returns;
    ``fail`` the place of one that is damaged.

    A chunk that another thread is decoding comes last. A thread that waits has no pins, and a
    thread that decodes does not wait, so there is no deadlock.
    """
    held: list[tuple[int, Chunk]] = []

    def hand_on() -> None:
        give(*np.array([(place, chunk.address) for place, chunk in held], np.int64).T)
        unpin()

    def unpin() -> None:
        cache.unpin([chunk.entry for _, chunk in held])
        held.clear()

    todo, passed = deque(enumerate(numbers.tolist())), 0
    # other threads that want one of them wait for all
    together = max(1, min(TOGETHER, DECODED_AT_ONCE // cache.chunk_bytes))
    try:
        while todo and not writer.stopped:
            with after_this():  # else Ctrl-C could leave chunks pinned, or being decoded, for good
                some = [todo.popleft() for _ in range(min(together, len(todo)))]
                found = cache.get_some([number for _, number in some], decode, not held)
                pairs = list(zip(some, found, strict=True))
                # all that is pinned first: fail() may raise
                held += [(i, one) for (i, _), one in pairs if isinstance(one, Chunk)]
                todo += [pair for pair, one in pairs if one is None]
                for (i, _), one in pairs:
                    if isinstance(one, DecodeError):
                        fail(i, one)
                passed = passed + len(some) if found.count(None) == len(some) else 0
                last = len(held) >= TOGETHER or passed >= len(todo)
                if held and (last or held[-1][1].entry == 0):
                    hand_on()
            if passed and passed >= len(todo):
                with decoding(writer.meter):  # which another thread does
                    cache.wait(todo[0][1])
                passed = 0
    finally:
        unpin()


class BoxReader:
    """Copies boxes of a data set in chunks, each of which is decoded once for all boxes that are
    read together. A bounded number of decoded chunks is remembered.

    ``cache``: decoded chunks; ``first``: the number of the data set's first one there.
    """

    def __init__(
        self,
        grid: ChunkGrid,
        boxes: Boxes,
        store: ByteStore,
        library: LibraryChunks | None,
        cache: ChunkCache,
        first: int = 0,
    ) -> None:
        self.grid, self.boxes, self.store = grid, boxes, store
        self.cache, self.first = cache, first
        self._library = library
        #: chunks are copied from where they lie, where that is memory
        self._plain = not grid.filters and grid.fill is None and not store.remote

    def will_need(self, starts: Int64) -> None:
        """Prefetch: the calling thread reads the boxes that begin at ``starts`` next."""
        self.grid.will_need(self.store, self.boxes.shares(starts).chunks)

    def copy(self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64) -> Bools:
        """Copy the boxes ``which`` of the job, which begin at ``starts``, into ``rows`` of ``out``.
        Which of them are good."""
        chunk, extent = np.array(self.boxes.chunk), np.array(self.boxes.extent)
        together = max(1, int(_SHARES // ((extent - 2) // chunk + 2).prod()))
        parts = []
        for first in range(0, which.size, together):
            some = slice(first, first + together)
            parts.append(self._copy_some(writer, which[some], starts[some], out, rows[some]))
        return np.concatenate(parts) if parts else np.empty(0, np.bool_)

    def _copy_some(
        self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64
    ) -> Bools:
        """:meth:`copy` of so many that the table of their shares is small."""
        boxes, good = self.boxes, np.ones(which.size, np.bool_)
        shares, item = boxes.shares(starts), self.grid.dtype.itemsize
        targets = shares.targets + address_of(out) + rows[shares.box] * boxes.nbytes

        def give(chunks: Int64, addresses: Int64) -> None:
            """Copy all shares of ``shares.chunks[chunks]``, which are at ``addresses``."""
            some, counts = shares.of(chunks)
            sources = shares.sources[some] + np.repeat(addresses, counts)
            extents = shares.extents[some]
            kernels.copy_boxes(sources, targets[some], extents, boxes.near, boxes.far, item)

        def fail(i: int, error: DecodeError) -> None:
            at = np.unravel_index(int(shares.chunks[i]), boxes.grid)
            error.found = f"chunk {tuple(int(n) for n in at)}: {error.found}"
            bad = np.unique(shares.box[shares.ends[i] : shares.ends[i + 1]])
            writer.fail_all(which[bad[good[bad]]], error)
            good[bad] = False

        base, stored = None, shares.chunks
        if self._plain:
            base = self.store.address(int(self.grid.sizes[stored].sum()))
        if base is None:
            self._give_decoded(stored, give, fail, writer)
        else:
            give(np.arange(stored.size), self.grid.offsets[stored] + base)
        return good

    def _give_decoded(
        self,
        chunks: Int64,
        give: Callable[[Int64, Int64], None],
        fail: Callable[[int, DecodeError], None],
        writer: Writer,
    ) -> None:
        """Give all chunks, those that are remembered first."""
        numbers = chunks + self.first
        entries, addresses = self.cache.pin(numbers)
        try:
            there = np.flatnonzero(entries)
            give(there, addresses[there])
        finally:
            self.cache.unpin(entries)
        left = np.flatnonzero(entries == 0)
        if self.store.remote and left.size:
            self.grid.will_need(self.store, chunks[left])

        def decode(numbers: list[int], targets: Int64) -> dict[int, DecodeError]:
            mine, meter = np.array(numbers) - self.first, writer.meter
            return decode_into(self.grid, mine, self.store, self._library, meter, targets)

        decode_each(
            self.cache,
            numbers[left],
            decode,
            writer,
            lambda places, at: give(left[places], at),
            lambda place, error: fail(int(left[place]), error),
        )


class ChunkSource(BaseSource):
    """Reads samples inside chunks: decoded in the calling thread, a bounded number remembered.

    ``cached``: a cache that others use as well, and the number of the first chunk there.
    """

    def __init__(
        self,
        facts: SetFacts,
        index: FieldIndex,
        file: ByteFile,
        chunks: Chunks,
        cached: tuple[ChunkCache, int] | None = None,
    ) -> None:
        super().__init__(facts, index, file)
        grid, axis, lead = chunks.grid, chunks.axis, chunks.lead
        self._grid = grid
        self._axis = axis
        self._lead = lead
        self._library = None if chunks.library is None else chunks.library(file, grid)
        pieces = Pieces.of(grid.shape, grid.chunk, grid.dtype.itemsize, axis, lead)
        self._pieces = pieces
        #: a piece is one chunk
        self._single = axis == 0 and grid.chunk[lead:] == grid.shape[lead:]
        limit = max(CACHE_BYTES, 2 * pieces.nbytes)
        if self._single and pieces.rows == 1:
            limit = TOGETHER * 2 * pieces.nbytes  # memory to decode in: nothing comes twice
        own = cached or (ChunkCache(limit, pieces.number, pieces.nbytes), 0)
        self.cache, self._number = own
        #: few samples are copied from where they lie: a piece is much more, and soon dropped
        self._plain = axis > 0 and not grid.filters and grid.fill is None and not self.store.remote
        self._plain = self._plain and pieces.number * pieces.nbytes > limit

    @cached_property
    def _sample_bytes(self) -> int:
        """Bytes of a sample as it is stored."""
        grid, end = self._grid, self._axis + self._lead
        return math.prod((*grid.shape[: self._axis], *grid.shape[end:])) * grid.dtype.itemsize

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return self._grid.offsets.size

    def _places(self, records: Int64) -> tuple[Int64, Int64]:
        """Where samples lie: the number of the chunk, along the samples alone, and the place in
        it."""
        if self._lead == 1:
            return np.divmod(records, self._grid.chunk[self._axis])
        grid, lead = self._grid, self._lead
        at = np.unravel_index(records, grid.shape[:lead])
        chunks = tuple(a // c for a, c in zip(at, grid.chunk, strict=False))
        inside = tuple(a % c for a, c in zip(at, grid.chunk, strict=False))
        return (
            np.ravel_multi_index(chunks, grid.grid[:lead]),
            np.ravel_multi_index(inside, grid.chunk[:lead]),
        )

    def offsets(self, records: Int64) -> Int64:
        """Byte offsets in the file of the (first) chunk that each record lies in."""
        return self._grid.offsets[self._places(records)[0] * self._step]

    def close(self) -> None:
        super().close()
        if self._library is not None:
            self._library.close()

    def reserve(self, samples: int) -> None:
        pieces, self._plain = self._pieces, False
        self.cache.hold(-(-samples // pieces.rows), pieces.across * pieces.nbytes)

    def release(self) -> None:
        self.cache.release()

    def _decode(self, numbers: Int64, targets: Int64, meter: Meter) -> dict[int, DecodeError]:
        """Decode chunks to addresses; the errors of those that are damaged, by their places."""
        return decode_into(self._grid, numbers, self.store, self._library, meter, targets)

    def _decoder(self, meter: Meter) -> Decode:
        """What puts decoded pieces into memory."""
        first = self._number

        def decode(numbers: list[int], targets: Int64) -> dict[int, DecodeError]:
            if self._single:
                return self._decode(np.array(numbers) - first, targets, meter)
            bad = {}
            for i, (number, target) in enumerate(zip(numbers, targets.tolist(), strict=True)):
                try:
                    self._assemble(number - first, target, meter)
                except DecodeError as exc:
                    bad[i] = exc
            return bad

        return decode

    def _across_all(self, pieces: Int64) -> Int64:
        """The numbers of all chunks of some pieces."""
        if self._single:
            return pieces
        return (pieces[:, None] * self._step + self._first_piece[1].chunks).reshape(-1)

    @cached_property
    def _step(self) -> int:
        """What is added to the numbers of a piece's chunks for those of the next."""
        return math.prod(self._grid.grid[self._axis + self._lead :])

    @cached_property
    def _first_piece(self) -> tuple[Boxes, Shares]:
        grid, axis, lead = self._grid, self._axis, self._lead
        # alike in groups of different length
        shape = grid.shape if axis else grid.chunk[:lead] + grid.shape[lead:]
        return first_piece(shape, grid.chunk, grid.dtype.itemsize, axis, lead)

    def _assemble(self, along: int, target: int, meter: Meter) -> None:
        """Put a piece together, at an address, of the chunks that its samples are cut over."""
        boxes, shares = self._first_piece
        size, item = self._grid.chunk_bytes, self._grid.dtype.itemsize
        numbers = shares.chunks + along * self._step
        together = min(numbers.size, max(1, DECODED_AT_ONCE // size))
        line = boxes.grid[-1]  # chunks that are copied together
        if together > line:
            together -= together % line
        scratch = SCRATCH.take("cut chunks", together * size)
        sources = address_of(scratch) + np.arange(together) * size
        for first in range(0, numbers.size, together):
            some = slice(first, first + together)
            places, extents = shares.targets[some] + target, shares.extents[some]
            for error in self._decode(numbers[some], sources[: places.size], meter).values():
                raise error
            with decoding(meter):
                kernels.copy_boxes(
                    sources[: places.size], places, extents, boxes.near, boxes.far, item
                )

    def read_into(self, writer: Writer) -> None:
        in_place = writer.in_place
        if in_place is not None and self._single and self._pieces.rows == 1:
            self._read_straight(in_place)
            return
        chunks, inside = self._places(writer.job.records)
        few = self._plain and chunks.size * _FEW < np.unique(chunks).size * self._pieces.rows
        if few or not self._pieces.whole:
            self._read_cut(writer)
            return
        chunks, inside = chunks + self._number, inside * self._sample_bytes
        with after_this():
            entries, addresses = self.cache.pin(chunks)
            there = entries != 0
            every = bool(there.all())
            try:
                if every:
                    self._give(writer, addresses + inside)
                else:
                    self._give(writer, (addresses + inside)[there], np.flatnonzero(there))
            finally:
                self.cache.unpin(entries)
        if every:
            return
        self._read_missing(chunks, inside, np.flatnonzero(~there), writer)

    def _give(self, writer: Writer, addresses: Int64, places: Int64 | None = None) -> None:
        """Give the samples at ``addresses`` of memory, which are at ``places`` of the job."""
        if not self.spec.encoded:
            writer.bulk(MEMORY, addresses, places)
        elif addresses.size:
            if places is not None:
                writer = writer.of_file(self, 0, places, writer.job.records[places])
            writer.encoded(MEMORY, addresses, np.full(addresses.size, self._sample_bytes))

    def _read_missing(self, chunks: Int64, inside: Int64, places: Int64, writer: Writer) -> None:
        """Rows ``places`` of the job, at ``inside`` (bytes) of ``chunks``, which are not in
        memory."""
        numbers, which = np.unique(chunks[places], return_inverse=True)
        if self.store.remote:
            self._grid.will_need(self.store, self._across_all(numbers - self._number))
        starts = np.zeros(numbers.size, np.int64)

        def give(held: Int64, at: Int64) -> None:
            starts[held] = at
            addresses = starts[which]
            good = addresses != 0
            addresses += inside[places]
            self._give(writer, addresses[good], places[good])
            starts[held] = 0

        def fail(i: int, error: DecodeError) -> None:
            writer.fail_all(places[which == i], error)

        decode_each(self.cache, numbers, self._decoder(writer.meter), writer, give, fail)

    @cached_property
    def _cut(self) -> BoxReader:
        """What copies a sample that is cut over several chunks, or lies across them."""
        grid, axes = self._grid, range(self._axis, self._axis + self._lead)
        extent = tuple(1 if axis in axes else n for axis, n in enumerate(grid.shape))
        boxes = Boxes.of(grid.shape, grid.chunk, extent, grid.dtype.itemsize, axes)
        return BoxReader(grid, boxes, self.store, self._library, self.cache, self._number)

    def _read_cut(self, writer: Writer) -> None:
        """Rows of samples of which no piece is put together: each is copied by itself."""
        records, shape, nbytes = writer.job.records, self._grid.shape, self._sample_bytes
        axes = range(self._axis, self._axis + self._lead)
        starts = np.zeros((records.size, len(shape)), np.int64)
        starts[:, axes] = np.transpose(np.unravel_index(records, [shape[axis] for axis in axes]))
        # samples of one chunk together, so that it is decoded once even if soon dropped
        chunks = self._places(records)[0]
        order = np.argsort(chunks, kind="stable")
        _, first = np.unique(chunks[order], return_index=True)
        for places in np.split(order, first)[1:]:  # of no sample none
            rows, lines = np.empty((places.size, nbytes), np.uint8), np.arange(places.size)
            good = self._cut.copy(writer, places, starts[places], rows, lines)
            if writer.stopped:
                return
            self._give(writer, address_of(rows) + lines[good] * nbytes, places[good])

    def _read_straight(self, writer: RowWriter) -> None:
        """One sample a chunk and nothing to convert: decoded where it is wanted."""
        records = self._places(writer.job.records)[0]
        if self.store.remote:
            self._grid.will_need(self.store, records)
        together = max(1, DECODED_AT_ONCE // self._grid.chunk_bytes)
        for first in range(0, records.size, together):
            if writer.stopped:
                break
            some = range(first, min(first + together, records.size))
            targets = np.array([address_of(writer.memory(i)) for i in some])
            bad = self._decode(records[first : first + together], targets, writer.meter)
            for at, i in enumerate(some):
                if at in bad:
                    writer.fail(i, bad[at])
                else:
                    writer.placed(i)
