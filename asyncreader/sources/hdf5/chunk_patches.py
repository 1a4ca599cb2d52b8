"""A source of patches of volumes in HDF5 chunks: only what a patch touches is decoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...errors import DecodeError
from ...pixels import kernels
from ...pixels.rows import Writer
from ...stats import Meter
from ...system.array_types import Array, Bools, Int64
from ...system.memory import address_of
from ..base import FieldIndex, SetFacts, Source
from ..bytestore import ByteFile
from ..patches import PatchSource, StoredVolumes
from .chunk_cache import ChunkCache, Decode
from .chunks import CACHE_BYTES, ChunkGrid, LibraryChunks, decode_each, decode_into

#: Patches are read together that have so many shares of chunks.
_SHARES: Final = 1 << 18


@dataclass(frozen=True, eq=False)
class ChunkVolumes:
    """Volumes in chunks. ``library``: see :class:`Chunks`."""

    grid: ChunkGrid
    stored: StoredVolumes
    library: Callable[[ByteFile, ChunkGrid], LibraryChunks] | None = None

    def serve(self, facts: SetFacts, index: FieldIndex, file: ByteFile | None) -> Source:
        """A source that reads them from ``file``."""
        assert file is not None
        return ChunkPatches(facts, index, file, self)


class _Shares(NamedTuple):
    """What patches have of chunks, ordered by chunk.

    ``chunks``: those that are touched; ``ends``: where the shares of each begin, and the last one's
    end; ``patch``: which one each share is of; ``extents`` (n, rank): its size; ``sources``,
    ``targets``: where it begins in the chunk and in the patch, in bytes.
    """

    chunks: Int64
    ends: Int64
    patch: Int64
    extents: Int64
    sources: Int64
    targets: Int64

    def of(self, some: Int64) -> tuple[Int64, Int64]:
        """The shares of ``some`` of the chunks, and the number of each one's shares."""
        first, counts = self.ends[some], np.diff(self.ends)[some]
        before = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(first - before, counts), counts


def _cache(grids: Sequence[ChunkGrid]) -> ChunkCache:
    """A cache of the chunks of all of them."""
    largest = max(grid.chunk_bytes for grid in grids)
    count = sum(grid.offsets.size for grid in grids)
    return ChunkCache(max(CACHE_BYTES, 2 * largest), count, largest)


class ChunkPatches(PatchSource):
    """Reads patches of chunks, each decoded once for all patches that are read together. A bounded
    number of decoded chunks is remembered."""

    def __init__(
        self, facts: SetFacts, index: FieldIndex, file: ByteFile, volumes: ChunkVolumes
    ) -> None:
        super().__init__(facts, index, file, volumes.stored)
        self._grid = grid = volumes.grid
        self._library = None if volumes.library is None else volumes.library(file, grid)
        #: decoded chunks, and the number of the first one of this file there
        self.cache, self._first = _cache([grid]), 0
        sides, item = (grid.chunk, volumes.stored.box), grid.dtype.itemsize
        #: bytes from one element to the next along each axis of a chunk, and of a patch
        self._near, self._far = (
            np.array([math.prod(one[axis + 1 :]) * item for axis in range(len(one))])
            for one in sides
        )
        #: chunks are copied from where they lie
        self._plain = not grid.filters and grid.fill is None and not self.store.remote

    @staticmethod
    def remember(files: Sequence[ChunkPatches]) -> None:
        """Have sources of several files remember decoded chunks together, as many bytes as one."""
        cache, first = _cache([one._grid for one in files]), 0
        for one in files:
            one.cache, one._first = cache, first
            first += one._grid.offsets.size

    def close(self) -> None:
        super().close()
        if self._library is not None:
            self._library.close()

    def reserve(self, samples: int) -> None:
        # a window, and what the next one needs while the last batches of it are in flight
        count = -(-samples * self.spec.row_bytes // self._grid.chunk_bytes)
        self.cache.resize((count + count // 32 + 2) * self._grid.chunk_bytes)

    def release(self) -> None:
        self.cache.release()

    def prefetch(self, records: Int64) -> None:
        self._grid.will_need(self.store, self._shares(self._stored.starts(records)).chunks)

    def _order(self, starts: Int64) -> Int64:
        corners = starts // np.array(self._grid.chunk)
        return np.argsort(np.ravel_multi_index(tuple(corners.T), self._grid.grid), kind="stable")

    def _shares(self, starts: Int64) -> _Shares:
        chunk, box = np.array(self._grid.chunk), np.array(self._stored.box)
        begin, last = starts // chunk, (starts + box - 1) // chunk
        most = (last - begin).max(axis=0, initial=0) + 1
        steps = np.indices(tuple(most)).reshape(most.size, -1).T
        at = begin[:, None, :] + steps
        patch, number = np.nonzero((at <= last[:, None, :]).all(axis=2))
        touched = at[patch, number]
        numbers = np.ravel_multi_index(tuple(touched.T), self._grid.grid)
        order = np.argsort(numbers, kind="stable")
        patch, corner = patch[order], touched[order] * chunk
        chunks, first = np.unique(numbers[order], return_index=True)
        start = starts[patch]
        low, high = np.maximum(start, corner), np.minimum(start + box, corner + chunk)
        ends = np.append(first, patch.size)
        sources, targets = (low - corner) @ self._near, (low - start) @ self._far
        return _Shares(chunks, ends, patch, high - low, sources, targets)

    def _copy(self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64) -> Bools:
        chunk, box = np.array(self._grid.chunk), np.array(self._stored.box)
        together = max(1, int(_SHARES // ((box - 2) // chunk + 2).prod()))
        parts = []
        for first in range(0, which.size, together):
            some = slice(first, first + together)
            parts.append(self._copy_some(writer, which[some], starts[some], out, rows[some]))
        return np.concatenate(parts) if parts else np.empty(0, np.bool_)

    def _copy_some(
        self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64
    ) -> Bools:
        """:meth:`_copy` of so many that the table of their shares is small."""
        shares, good = self._shares(starts), np.ones(which.size, np.bool_)
        grid, item = self._grid, self._grid.dtype.itemsize
        targets = shares.targets + address_of(out) + rows[shares.patch] * self.spec.row_bytes

        def give(chunks: Int64, addresses: Int64) -> None:
            """Copy all shares of ``shares.chunks[chunks]``, which are at ``addresses``."""
            some, counts = shares.of(chunks)
            sources = shares.sources[some] + np.repeat(addresses, counts)
            extents = shares.extents[some]
            kernels.copy_boxes(sources, targets[some], extents, self._near, self._far, item)

        def fail(i: int, error: DecodeError) -> None:
            at = np.unravel_index(int(shares.chunks[i]), grid.grid)
            error.found = f"chunk {tuple(int(n) for n in at)}: {error.found}"
            bad = np.unique(shares.patch[shares.ends[i] : shares.ends[i + 1]])
            writer.fail_all(which[bad[good[bad]]], error)
            good[bad] = False

        if self._plain:
            self._give_plain(shares.chunks, give, writer)
        else:
            self._give_decoded(shares.chunks, give, fail, writer)
        return good

    def _give_plain(
        self, chunks: Int64, give: Callable[[Int64, Int64], None], writer: Writer
    ) -> None:
        """Give chunks that are stored as they are."""
        offsets, sizes = self._grid.offsets[chunks], self._grid.sizes[chunks]
        base = self.store.address(int(sizes.sum()))
        if base is not None:
            give(np.arange(chunks.size), base + offsets)
            return
        for i, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
            if writer.stopped:
                break
            view = self.store.view(offset, size)
            give(np.array([i]), np.array([address_of(view)]))

    def _give_decoded(
        self,
        chunks: Int64,
        give: Callable[[Int64, Int64], None],
        fail: Callable[[int, DecodeError], None],
        writer: Writer,
    ) -> None:
        """Give all chunks, those that are remembered first."""
        numbers = chunks + self._first
        entries, addresses = self.cache.pin(numbers)
        try:
            there = np.flatnonzero(entries)
            give(there, addresses[there])
        finally:
            self.cache.unpin(entries)
        left = np.flatnonzero(entries == 0)
        if self.store.remote and left.size:
            self._grid.will_need(self.store, chunks[left])
        decode_each(
            self.cache,
            numbers[left],
            self._decoder(writer.meter),
            writer,
            lambda places, at: give(left[places], at),
            lambda place, error: fail(int(left[place]), error),
        )

    def _decoder(self, meter: Meter) -> Decode:
        def decode(numbers: list[int], targets: Int64) -> dict[int, DecodeError]:
            mine = np.array(numbers) - self._first
            return decode_into(self._grid, mine, self.store, self._library, meter, targets)

        return decode
