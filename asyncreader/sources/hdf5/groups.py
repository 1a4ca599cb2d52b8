"""A source over data sets of many groups of one HDF5 file: their rows in sequence are one field.

Each data set costs a few numbers in memory. Where the rows of a contiguous one lie is known when
the set is open; the chunks of another are looked up when its first row is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from ...errors import AsyncReaderError, FormatError
from ...pixels.rows import Writer
from ...pixels.tables import RowsInMemory
from ...system.array_types import Int64
from ..base import CACHE_BYTES, BaseSource, Names, OpenField, Source
from ..bytestore import ByteFile
from ..fields import SetIndex
from .chunk_cache import ChunkCache
from .chunks import Chunks, ChunkSource, Pieces
from .file import Hdf5, translated
from .filters import check_filters, in_words, remedy

#: Chunks whose places are remembered, 24 bytes each: those of the data sets used last.
KNOWN_CHUNKS: Final = 2 << 20

#: The address of a data set that is not contiguous.
CHUNKED: Final = -1
#: Data sets of image files that stay open: each may keep decoded chunks of its own.
_ENCODED_OPEN: Final = 16


@dataclass(frozen=True)
class GroupNames(Names):
    """The names of groups, and of the data set in each: keys for messages. ``ends``: see
    :class:`GroupRows`."""

    groups: tuple[str, ...]
    field: str
    ends: Int64

    def key(self, file: ByteFile, index: int) -> str | None:
        """The data set that a row lies in."""
        number = int(np.searchsorted(self.ends, index, side="right"))
        return f"{self.groups[number]}/{self.field}" if number < len(self.groups) else None


@dataclass(frozen=True, eq=False)
class GroupRows:
    """Rows in the data sets ``names.field`` of ``names.groups``.

    ``addresses``: int64, where the rows of each begin in the file, CHUNKED of one in chunks;
    ``ends``, ``pieces``: int64, the number of rows and of pieces (see chunks.py) up to the end of
    each; ``piece_bytes``: of the largest piece.
    """

    names: GroupNames
    addresses: Int64
    ends: Int64
    pieces: Int64
    piece_bytes: int
    #: finds the samples of a data set by name, of those that are encoded
    look_up: Callable[[ByteFile, Hdf5, str], SetIndex]

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        facts = replace(field.facts, count=int(self.ends[-1]))
        return GroupSource(replace(field, facts=facts), self)


class GroupSource(BaseSource):
    """Reads the rows of :class:`GroupRows`. Decoded chunks of all data sets share one cache."""

    def __init__(self, field: OpenField, members: GroupRows) -> None:
        super().__init__(field)
        self._members = members
        self._file = field.own_file
        self._starts = np.concatenate((np.zeros(1, np.int64), members.ends[:-1]))
        limit = max(CACHE_BYTES, 2 * members.piece_bytes)
        self.cache = ChunkCache(limit, int(members.pieces[-1]), max(1, members.piece_bytes))
        # re-entrant, since a collected reader is closed by whatever thread collects it
        self._lock = threading.RLock()
        self._library: Hdf5 | None = None
        self._closed = False
        #: open data sets in chunks by number, the one used last at the end
        self._open: dict[int, Source] = {}
        self._known = 0

    @cached_property
    def _in_memory(self) -> tuple[RowsInMemory, ...]:
        """The runs of rows of contiguous data sets."""
        where, members, size = self.store.address(0), self._members, self.spec.row_bytes
        if where is None or (members.addresses == CHUNKED).any():
            return ()
        sums, owner = self.checksums, (self.store, self.index)
        rows = self.facts.count, where, members.addresses, 0, size, sums, None, owner, members.ends
        return (RowsInMemory(*rows),)

    def in_memory(self, size: int) -> tuple[RowsInMemory, ...]:
        return () if self._closed or self.store.address(size) is None else self._in_memory

    def read_into(self, writer: Writer) -> None:
        records = writer.job.records
        which = np.searchsorted(self._members.ends, records, side="right")
        at = self._members.addresses[which]
        inside = records - self._starts[which]
        flat = at != CHUNKED
        every = bool(flat.all())
        if every or flat.any():
            offsets = (at + inside * self.spec.row_bytes)[flat]
            if self.store.remote:
                self.store.will_need(offsets, np.full(offsets.size, self.spec.row_bytes))
            writer.bulk(self.store, offsets, None if every else flat)
        if every:
            return
        for number in np.unique(which[~flat]).tolist():
            if writer.stopped:
                break
            places, start = np.flatnonzero(which == number), int(self._starts[number])
            try:
                source = self._source(number)
                part = writer.of_file(source, start, places, inside[places])
                source.read_into(part)
            except AsyncReaderError as exc:
                exc.shift_record(start)
                raise

    def _source(self, number: int) -> Source:
        """The open data set ``number``, which lies in chunks."""
        with self._lock:
            found = self._open.pop(number, None)
            if found is None:
                found = self._opened(number)
                self._known += _chunks(found)
                while self._known > KNOWN_CHUNKS and self._open:
                    oldest = next(iter(self._open))
                    self._known -= _chunks(self._open.pop(oldest))
            self._open[number] = found
            return found

    def _opened(self, number: int) -> Source:
        names = self._members.names
        name, path = f"{names.groups[number]}/{names.field}", self._file.path
        rows = int(self._members.ends[number] - self._starts[number])
        one = GroupNames(names.groups[number : number + 1], names.field, np.array([rows]))
        index, facts = replace(self.index, names=one), replace(self.facts, count=rows)
        with translated(path):
            if self._library is None:
                if self._closed:
                    raise FormatError("the file was closed while it was read", path=path)
                self._library = Hdf5(self._file)
                self._library.many_objects()
            if self.spec.encoded:
                found = self._members.look_up(self._file, self._library, name)
                if found.facts.count != rows or not found.first.spec.encoded:
                    raise FormatError(
                        f"dataset {name!r} does not hold an image file for each row", path=path
                    )
                own = replace(found.first, names=one)
                return own.storage.serve(OpenField(facts, own, self._file))
            data = self._library.dataset(name, records=True)
            steps = data.filters
            if not check_filters(steps, path, name):
                raise FormatError(
                    f"dataset {name!r} has a filter that only the HDF5 library decodes",
                    path=path,
                    found=in_words(steps),
                    hint=remedy(steps),
                )
            dtype = data.values_dtype()
            records = None if dtype.names is None else dtype
            grid = data.grid(records)
            row = grid.shape[1:] + (1,) * self.spec.flat
            last = int(self._members.pieces[number])
            first = int(self._members.pieces[number - 1]) if number else 0
            pieces = Pieces.of(grid.shape, grid.chunk, grid.dtype.itemsize)
            same = (
                grid.shape[0] == rows and row == self.spec.shape and pieces.number == last - first
            )
            same = same and pieces.nbytes <= self.cache.chunk_bytes
            if not same or dtype != self.spec.dtype:
                raise FormatError(f"dataset {name!r} is not what it was", path=path)
            whole = not self._open and not self._known  # one of them is also compared decoded
            whole = whole and records is None
            data.compare(grid, decoded=whole)
        one_field = OpenField(facts, index, self._file)
        return ChunkSource(one_field, Chunks(grid, 0), (self.cache, first))

    def reserve(self, samples: int) -> None:
        # of chunks that samples are cut over and that make no piece, enough for one of each
        if self.spec.encoded:
            return
        count = -(-samples // max(1, self.index.chunk or 1))
        share = max(self._members.piece_bytes, self.spec.row_bytes * (self.index.chunk or 1))
        self.cache.hold(count, share)

    def release(self) -> None:
        self.cache.release()
        with self._lock:
            opened = list(self._open.values())
        for source in opened:  # of image files each has a cache of its own
            source.release()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()
            self.__dict__.pop("_in_memory", None)  # it owns the file
            if self._library is not None:
                self._library.close()
                self._library = None
        super().close()


def _chunks(source: Source) -> int:
    """What a data set that is open counts for among KNOWN_CHUNKS."""
    if isinstance(source, ChunkSource) and not source.spec.encoded:
        return source.chunks
    return KNOWN_CHUNKS // _ENCODED_OPEN
