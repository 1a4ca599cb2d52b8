"""A source of patches of volumes in HDF5 chunks: only what a patch touches is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...pixels.rows import Writer
from ...system.array_types import Array, Bools, Int64
from ..base import CACHE_BYTES, FieldIndex, SetFacts, Source
from ..bytestore import ByteFile
from ..patches import PatchSource, StoredVolumes
from .chunk_cache import ChunkCache
from .chunks import BoxReader, ChunkGrid, LibraryChunks
from .shares import Boxes


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
        boxes = Boxes.of(grid.shape, grid.chunk, volumes.stored.box, grid.dtype.itemsize)
        self._boxes = BoxReader(grid, boxes, self.store, self._library, _cache([grid]))

    @staticmethod
    def remember(files: Sequence[ChunkPatches]) -> None:
        """Have sources of several files remember decoded chunks together, as many bytes as one."""
        cache, first = _cache([one._grid for one in files]), 0
        for one in files:
            one._boxes.cache, one._boxes.first = cache, first
            first += one._grid.offsets.size

    def close(self) -> None:
        super().close()
        if self._library is not None:
            self._library.close()

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
