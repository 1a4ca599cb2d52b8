"""Which part of which chunk goes where: boxes of a data set in chunks, and what copies them.

A sample that is cut over several chunks is such a box, and so is a patch of a volume: only what it
touches is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from ...errors import DecodeError
from ...pixels import kernels
from ...pixels.rows import Writer
from ...system.array_types import Array, Bools, Int64
from ...system.memory import address_of
from ..base import CACHE_BYTES, OpenField, Source
from ..bytestore import ByteFile
from ..patches import PatchSource, StoredVolumes
from .chunk_cache import ChunkCache, ChunkGrid, LibraryChunks, OpenChunks, decode_each

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
