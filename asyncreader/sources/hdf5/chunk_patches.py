"""A source of patches of volumes in HDF5 chunks: only what a patch touches is decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ...array_types import Array, Bools, Int64, UInt8
from ...errors import DecodeError
from ...pixels.rows import Writer
from ...pixels.twins import bytes_at
from ...stats import Meter
from ..base import FieldIndex, SetFacts, Source
from ..bytestore import ByteFile
from ..patches import PatchSource, StoredVolumes
from .chunk_cache import ChunkCache, Decode
from .chunks import CACHE_BYTES, ChunkGrid, LibraryChunks, decoded, decoding

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
        library = None if self.library is None else self.library(file, self.grid)
        return ChunkPatches(facts, index, file, self, library)


class _Shares(NamedTuple):
    """What patches have of chunks, ordered by chunk.

    ``chunks``: those that are touched; ``ends``: where the shares of each begin, and the last one's
    end; ``patch``: which one each share is of; ``low``, ``high`` (n, rank): which part of the patch
    it is, and ``inside``: where that begins in the chunk.
    """

    chunks: Int64
    ends: Int64
    patch: Int64
    low: Int64
    high: Int64
    inside: Int64


def _cache(grids: Sequence[ChunkGrid]) -> ChunkCache:
    """A cache of the chunks of all of them."""
    largest = max(grid.chunk_bytes for grid in grids)
    count = sum(grid.offsets.size for grid in grids)
    return ChunkCache(max(CACHE_BYTES, 2 * largest), count, largest)


class ChunkPatches(PatchSource):
    """Reads patches of chunks, each decoded once for all patches that are read together. A bounded
    number of decoded chunks is remembered."""

    def __init__(
        self,
        facts: SetFacts,
        index: FieldIndex,
        file: ByteFile,
        volumes: ChunkVolumes,
        library: LibraryChunks | None,
    ) -> None:
        super().__init__(facts, index, file, file.store, volumes.stored)
        self._grid = grid = volumes.grid
        self._library = library
        #: decoded chunks, and the number of the first one of this file there
        self.cache, self._first = _cache([grid]), 0
        #: chunks are copied from where they lie
        self._plain = not grid.filters and library is None and not self.store.remote

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
        self._will_need(self._shares(self._stored.starts(records)).chunks)

    def _will_need(self, chunks: Int64) -> None:
        self.store.will_need(self._grid.offsets[chunks], self._grid.sizes[chunks])

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
        return _Shares(chunks, ends, patch, low - start, high - start, low - corner)

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
        grid, target = self._grid, out.reshape(-1, *self._stored.box)
        ends, lines = shares.ends.tolist(), rows[shares.patch].tolist()
        low, high, inside = shares.low.tolist(), shares.high.tolist(), shares.inside.tolist()
        behind = (shares.inside + shares.high - shares.low).tolist()

        def give(i: int, chunk: UInt8) -> None:
            """Copy all shares of the chunk ``shares.chunks[i]``."""
            values = chunk[: grid.chunk_bytes].view(grid.dtype).reshape(grid.chunk)
            for k in range(ends[i], ends[i + 1]):
                part = values[tuple(map(slice, inside[k], behind[k]))]
                target[(lines[k], *map(slice, low[k], high[k]))] = part

        def fail(i: int, error: DecodeError) -> None:
            at = np.unravel_index(int(shares.chunks[i]), grid.grid)
            error.found = f"chunk {tuple(int(n) for n in at)}: {error.found}"
            bad = np.unique(shares.patch[ends[i] : ends[i + 1]])
            writer.fail_all(which[bad[good[bad]]], error)
            good[bad] = False

        if self._plain:
            for i, number in enumerate(shares.chunks.tolist()):
                if writer.stopped:
                    break
                at, size = int(grid.offsets[number]), int(grid.sizes[number])
                give(i, self.store.view(at, size))
        else:
            self._give_decoded(shares.chunks, give, fail, writer)
        return good

    def _give_decoded(
        self,
        chunks: Int64,
        give: Callable[[int, UInt8], None],
        fail: Callable[[int, DecodeError], None],
        writer: Writer,
    ) -> None:
        """Give all chunks, those that are remembered first. A thread that waits for another one
        has no pins, so there is no deadlock."""
        chunks = chunks + self._first
        entries, addresses = self.cache.pin(chunks)
        try:
            for i in np.flatnonzero(entries).tolist():
                give(i, bytes_at(int(addresses[i]), self._grid.chunk_bytes))
        finally:
            self.cache.unpin(entries)
        left = np.flatnonzero(entries == 0)
        if self.store.remote and left.size:
            self._will_need(chunks[left] - self._first)
        decode, todo, passed = self._decoder(writer.meter), deque(left.tolist()), 0
        while todo and not writer.stopped:
            i = todo.popleft()
            number = int(chunks[i])
            try:
                chunk = self.cache.get(number, decode, alone=True)
            except DecodeError as exc:
                fail(i, exc)
                passed = 0
                continue
            if chunk is not None:
                try:
                    give(i, chunk.pixels)
                finally:
                    self.cache.unpin([chunk.entry])
                passed = 0
                continue
            todo.append(i)
            passed += 1
            if passed >= len(todo):
                with decoding(writer.meter):  # which another thread does
                    self.cache.wait(number)
                passed = 0

    def _decoder(self, meter: Meter) -> Decode:
        def decode(number: int, memory: UInt8) -> None:
            memory = memory[: self._grid.chunk_bytes]  # that of another file may be larger
            number -= self._first
            decoded(self._grid, number, self.store, self._library, meter, memory)

        return decode
