"""Sources over HDF5 chunks, read and decoded outside the HDF5 library: of samples, and of patches.

Boxes say which part of which chunk goes where. A sample that is cut over several chunks is such a
box, and so is a patch of a volume: only what it touches is decoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np

from ...errors import DecodeError
from ...pixels import kernels
from ...pixels.rows import RowWriter, Writer
from ...stats import Meter
from ...system.array_types import Array, Bools, Int64
from ...system.memory import SCRATCH, address_of
from ...system.signals import after_this
from ..arrays import PatchSource, StoredVolumes
from ..base import CACHE_BYTES, BaseSource, OpenField, Source
from ..bytestore import ByteFile, MemoryStore
from .chunk_cache import (
    DECODED_AT_ONCE,
    TOGETHER,
    ChunkCache,
    ChunkGrid,
    Decode,
    LibraryChunks,
    OpenChunks,
    decode_each,
    decoding,
)

MEMORY: Final = MemoryStore()

#: The largest piece that is put together of chunks which samples are cut over.
MOST_ASSEMBLED: Final = 16 << 20
#: To put a piece together takes as long as to copy the n-th part of its samples, each by itself.
_FEW: Final = 8


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

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        return ChunkSource(field, self)


class ChunkSource(BaseSource):
    """Reads samples inside chunks: decoded in the calling thread, a bounded number remembered.

    ``cached``: a cache that others use as well, and the number of the first chunk there.
    """

    def __init__(
        self, field: OpenField, chunks: Chunks, cached: tuple[ChunkCache, int] | None = None
    ) -> None:
        super().__init__(field)
        grid, axis, lead = chunks.grid, chunks.axis, chunks.lead
        self._grid = grid
        self._axis = axis
        self._lead = lead
        self._chunks = OpenChunks(field, grid, chunks.library)
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
        self._plain = axis > 0 and self._chunks.plain and pieces.number * pieces.nbytes > limit

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
        self._chunks.close()

    def reserve(self, samples: int) -> None:
        pieces, self._plain = self._pieces, False
        self.cache.hold(-(-samples // pieces.rows), pieces.across * pieces.nbytes)

    def release(self) -> None:
        self.cache.release()

    def _decoder(self, meter: Meter) -> Decode:
        """What puts decoded pieces into memory."""
        first = self._number

        def decode(numbers: list[int], targets: Int64) -> dict[int, DecodeError]:
            if self._single:
                return self._chunks.decode(np.array(numbers) - first, targets, meter)
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
            bad = self._chunks.decode(numbers[some], sources[: places.size], meter)
            for error in bad.values():
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
            self._chunks.will_need(self._across_all(numbers - self._number))
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
        return BoxReader(self._chunks, boxes, self.cache, self._number)

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
            self._chunks.will_need(records)
        together = max(1, DECODED_AT_ONCE // self._grid.chunk_bytes)
        for first in range(0, records.size, together):
            if writer.stopped:
                break
            some = range(first, min(first + together, records.size))
            targets = np.array([address_of(writer.memory(i)) for i in some])
            bad = self._chunks.decode(records[first : first + together], targets, writer.meter)
            for at, i in enumerate(some):
                if at in bad:
                    writer.fail(i, bad[at])
                else:
                    writer.placed(i)


# -- boxes -----------------------------------------------------------------------------------------


#: Boxes are read together that have so many shares of chunks.
_SHARES: Final = 1 << 18


class Shares(NamedTuple):
    """What boxes have of chunks, ordered by chunk.

    ``chunks``: those that are touched; ``ends``: where the shares of each begin, and the last one's
    end; ``box``: which one each share is of; ``extents`` (n, rank): its size; ``sources``,
    ``targets``: where it begins in the chunk and in the box, in bytes.
    """

    chunks: Int64
    ends: Int64
    box: Int64
    extents: Int64
    sources: Int64
    targets: Int64

    def of(self, some: Int64) -> tuple[Int64, Int64]:
        """The shares of ``some`` of the chunks, and the number of each one's shares."""
        first, counts = self.ends[some], np.diff(self.ends)[some]
        before = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(first - before, counts), counts


class Boxes(NamedTuple):
    """Boxes of ``extent`` elements of a data set, which lies in a ``grid`` of chunks of ``chunk``
    elements each. A box is copied to one piece of memory, in which its axes have this ``order``.

    ``near``, ``far``: bytes from one element to the next along each axis, in that order, of a chunk
    and of a box; ``nbytes``: of a box.
    """

    grid: tuple[int, ...]
    chunk: tuple[int, ...]
    extent: tuple[int, ...]
    order: tuple[int, ...]
    near: Int64
    far: Int64
    nbytes: int

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        extent: tuple[int, ...],
        item: int,
        first: Sequence[int] = (),
    ) -> Boxes:
        """Those of a data set of ``item`` bytes an element. ``first``: axes that come before the
        others in a box."""
        grid = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
        order = (*first, *(axis for axis in range(len(shape)) if axis not in first))
        near, far = _steps(chunk, item), _steps([extent[axis] for axis in order], item)
        nbytes = math.prod(extent) * item
        return cls(grid, chunk, extent, order, near[list(order)], far, nbytes)

    def shares(self, starts: Int64) -> Shares:
        """What the boxes that begin at ``starts`` (n, rank) have of chunks."""
        chunk, extent, order = np.array(self.chunk), np.array(self.extent), list(self.order)
        begin, last = starts // chunk, (starts + extent - 1) // chunk
        most = (last - begin).max(axis=0, initial=0) + 1
        steps = np.indices(tuple(most)).reshape(most.size, -1).T
        at = begin[:, None, :] + steps
        box, number = np.nonzero((at <= last[:, None, :]).all(axis=2))
        touched = at[box, number]
        numbers = np.ravel_multi_index(tuple(touched.T), self.grid)
        by_chunk = np.argsort(numbers, kind="stable")
        box, corner = box[by_chunk], touched[by_chunk] * chunk
        chunks, first = np.unique(numbers[by_chunk], return_index=True)
        start = starts[box]
        low, high = np.maximum(start, corner), np.minimum(start + extent, corner + chunk)
        extents = np.take(high - low, order, axis=1)
        sources = np.take(low - corner, order, axis=1) @ self.near
        targets = np.take(low - start, order, axis=1) @ self.far
        return Shares(chunks, np.append(first, box.size), box, extents, sources, targets)


def _steps(sizes: Sequence[int], item: int) -> Int64:
    """Bytes from one element to the next along each axis of an array of such sizes."""
    return np.array([math.prod(sizes[axis + 1 :]) * item for axis in range(len(sizes))])


@lru_cache(maxsize=16)  # the data sets of a set's groups are alike
def first_piece(
    shape: tuple[int, ...], chunk: tuple[int, ...], item: int, axis: int, lead: int
) -> tuple[Boxes, Shares]:
    """The first samples of a data set, as many as chunks have along the ``lead`` axes from ``axis``
    on that number samples: their box, one sample after the other, and its shares."""
    along = range(axis, axis + lead)
    extent = tuple(chunk[i] if i in along else n for i, n in enumerate(shape))
    boxes = Boxes.of(shape, chunk, extent, item, along)
    return boxes, boxes.shares(np.zeros((1, len(shape)), np.int64))


class BoxReader:
    """Copies boxes of a data set in chunks, each of which is decoded once for all boxes that are
    read together. A bounded number of decoded chunks is remembered.

    ``cache``: decoded chunks; ``first``: the number of the data set's first one there.
    """

    def __init__(self, chunks: OpenChunks, boxes: Boxes, cache: ChunkCache, first: int = 0) -> None:
        self.chunks, self.boxes = chunks, boxes
        self.cache, self.first = cache, first

    def will_need(self, starts: Int64) -> None:
        """Prefetch: the calling thread reads the boxes that begin at ``starts`` next."""
        self.chunks.will_need(self.boxes.shares(starts).chunks)

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
        shares, grid, store = boxes.shares(starts), self.chunks.grid, self.chunks.store
        near, far, item = boxes.near, boxes.far, grid.dtype.itemsize
        targets = shares.targets + address_of(out) + rows[shares.box] * boxes.nbytes

        def give(chunks: Int64, addresses: Int64) -> None:
            """Copy all shares of ``shares.chunks[chunks]``, which are at ``addresses``."""
            some, counts = shares.of(chunks)
            sources = shares.sources[some] + np.repeat(addresses, counts)
            extents = shares.extents[some]
            kernels.copy_boxes(sources, targets[some], extents, near, far, item)

        def fail(i: int, error: DecodeError) -> None:
            at = np.unravel_index(int(shares.chunks[i]), boxes.grid)
            error.found = f"chunk {tuple(int(n) for n in at)}: {error.found}"
            bad = np.unique(shares.box[shares.ends[i] : shares.ends[i + 1]])
            writer.fail_all(which[bad[good[bad]]], error)
            good[bad] = False

        base, stored = None, shares.chunks
        if self.chunks.plain:
            base = store.address(int(grid.sizes[stored].sum()))
        if base is None:
            self._give_decoded(stored, give, fail, writer)
        else:
            give(np.arange(stored.size), grid.offsets[stored] + base)
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
        if self.chunks.store.remote and left.size:
            self.chunks.will_need(chunks[left])
        decode_each(
            self.cache,
            numbers[left],
            lambda some, at: self.chunks.decode(np.array(some) - self.first, at, writer.meter),
            writer,
            lambda places, at: give(left[places], at),
            lambda place, error: fail(int(left[place]), error),
        )


# -- patches of volumes ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ChunkVolumes:
    """Volumes in chunks. ``library``: see :class:`Chunks`."""

    grid: ChunkGrid
    stored: StoredVolumes
    library: Callable[[ByteFile, ChunkGrid], LibraryChunks] | None = None

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        return ChunkPatches(field, self)


def _cache(grids: Sequence[ChunkGrid]) -> ChunkCache:
    """A cache of the chunks of all of them."""
    largest = max(grid.chunk_bytes for grid in grids)
    count = sum(grid.offsets.size for grid in grids)
    return ChunkCache(max(CACHE_BYTES, 2 * largest), count, largest)


class ChunkPatches(PatchSource):
    """Reads patches of chunks, each decoded once for all patches that are read together. A bounded
    number of decoded chunks is remembered."""

    def __init__(self, field: OpenField, volumes: ChunkVolumes) -> None:
        super().__init__(field, volumes.stored)
        self._grid = grid = volumes.grid
        self._chunks = OpenChunks(field, grid, volumes.library)
        boxes = Boxes.of(grid.shape, grid.chunk, volumes.stored.box, grid.dtype.itemsize)
        self._boxes = BoxReader(self._chunks, boxes, _cache([grid]))

    @staticmethod
    def remember(files: Sequence[ChunkPatches]) -> None:
        """Have sources of several files remember decoded chunks together, as many bytes as one."""
        cache, first = _cache([one._grid for one in files]), 0
        for one in files:
            one._boxes.cache, one._boxes.first = cache, first
            first += one._grid.offsets.size

    def close(self) -> None:
        super().close()
        self._chunks.close()

    def reserve(self, samples: int) -> None:
        size = self._grid.chunk_bytes
        self._boxes.cache.hold(-(-samples * self.spec.row_bytes // size), size)

    def release(self) -> None:
        self._boxes.cache.release()

    def prefetch(self, records: Int64) -> None:
        self._boxes.will_need(self._stored.starts(records))

    def _order(self, starts: Int64) -> Int64:
        corners = starts // np.array(self._grid.chunk)
        return np.argsort(np.ravel_multi_index(tuple(corners.T), self._grid.grid), kind="stable")

    def _copy(self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64) -> Bools:
        return self._boxes.copy(writer, which, starts, out, rows)
