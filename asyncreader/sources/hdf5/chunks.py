"""A source over HDF5 chunks, read and decoded outside the HDF5 library."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import DecodeError
from ...pixels import kernels
from ...pixels.rows import RowWriter, Writer
from ...stats import Meter
from ...system.array_types import Array, Int64, UInt8
from ...system.memory import SCRATCH, address_of, bytes_at
from ...system.signals import after_this
from ..base import BaseSource, FieldIndex, SetFacts, Source
from ..bytestore import ByteFile, ByteStore, MemoryStore
from .chunk_cache import Chunk, ChunkCache, Decode
from .filters import Filter, decode_chunk, inflated_width, inflater

MEMORY: Final = MemoryStore()

#: Decoded chunks that a source may remember.
CACHE_BYTES: Final = 64 << 20
#: The largest piece that is put together of chunks which samples are cut over.
MOST_ASSEMBLED: Final = 16 << 20
#: Bytes of chunks that are decoded before they are put together in one call: less than a core's
#: cache holds.
DECODED_AT_ONCE: Final = 1 << 20
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


class Cuts(NamedTuple):
    """The chunks that the samples of a data set are cut over: their numbers for the first of those
    along the samples, and what is added to these for the next, ``step``.

    Where they lie in a sample, in bytes: ``places`` (n,); how much of it they hold: ``extents``
    (n, 1 + rank), with the number of samples before; bytes from one element to the next in a chunk
    and in samples that lie one behind the other, along these axes: ``near``, ``far`` (1 + rank,).
    ``beside``: so many lie beside each other along the last axis.
    """

    numbers: Int64
    step: int
    places: Int64
    extents: Int64
    near: Int64
    far: Int64
    beside: int

    @staticmethod
    @lru_cache(maxsize=16)  # the data sets of a set's groups are alike
    def of(
        shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int, axis: int, lead: int
    ) -> Cuts:
        """Those of a data set, whose ``lead`` axes from ``axis`` on number samples: these axes of
        ``shape`` count only where they are not the first."""
        others = [i for i in range(len(shape)) if not axis <= i < axis + lead]
        grid = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
        counts = [grid[i] for i in others]
        first = np.arange(math.prod(grid[:axis]))[:, None] * math.prod(grid[axis:])
        step = math.prod(grid[axis + lead :])
        numbers = (first + np.arange(step)).reshape(-1)

        def steps(sizes: list[int]) -> list[int]:
            return [math.prod(sizes[i + 1 :]) * itemsize for i in range(len(sizes))]

        each = steps(list(chunk))
        near = [each[axis + lead - 1], *(each[i] for i in others)]
        rows = math.prod(chunk[axis : axis + lead])
        sizes = np.array([shape[i] for i in others], np.int64)
        most = np.array([chunk[i] for i in others], np.int64)
        far = np.array(steps([rows, *sizes.tolist()]), np.int64)
        corners = np.indices(counts).reshape(len(counts), numbers.size).T * most
        extents = np.full((numbers.size, 1 + len(others)), rows, np.int64)
        extents[:, 1:] = np.minimum(most, sizes - corners)
        places: Int64 = corners @ far[1:]
        return Cuts(numbers, step, places, extents, np.array(near), far, grid[-1])


class Pieces(NamedTuple):
    """What is decoded in one go and remembered, in a data set in chunks.

    ``number``: how many; ``rows``: samples in each; ``nbytes``: of each; ``whole``: its samples are
    whole, one behind the other: it is one chunk, or is put together of all those that the same
    samples are cut over. Else a piece is one of these chunks: together they would be too large.
    """

    number: int
    rows: int
    nbytes: int
    whole: bool

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
        one = math.prod(counts[:axis]) * math.prod(counts[axis + lead :]) == 1
        if rows * sample <= MOST_ASSEMBLED or (one and axis == 0):
            return cls(math.prod(counts[axis : axis + lead]), rows, rows * sample, True)
        return cls(math.prod(counts), rows, math.prod(chunk) * itemsize, False)


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
            pixels = library.read(number)
    elif grid.fill is not None and grid.offsets[number] < 0:
        out.reshape(-1, grid.fill.size)[:] = grid.fill
        return
    else:
        stored = store.view(int(grid.offsets[number]), int(grid.sizes[number]))
        mask, size = int(grid.masks[number]), grid.chunk_bytes
        started = time.perf_counter()  # decoding() takes a microsecond more for each chunk
        try:
            pixels = decode_chunk(stored, grid.filters, mask, size, grid.dtype.itemsize, out)
        finally:
            meter.seconds["decode"] += time.perf_counter() - started
    if pixels is not out:
        out[:] = pixels


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
    functions = None
    if library is None and grid.inflated is not None:
        functions, sizes = inflater(), grid.sizes[numbers]
    if functions is not None and (base := store.address(int(sizes.sum()))) is not None:
        sources, good = grid.offsets[numbers] + base, np.zeros(numbers.size, np.int64)
        with decoding(meter):
            kernels.inflate_chunks(
                functions, sources, sizes, targets, grid.chunk_bytes, grid.inflated, good
            )
        left = np.flatnonzero(good == 0)
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
                found = cache.get_some([number for _, number in some], decode, alone=not held)
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
        behind = math.prod(self._grid.grid[self._axis + self._lead :])
        return self._grid.offsets[self._places(records)[0] * behind]

    def close(self) -> None:
        super().close()
        if self._library is not None:
            self._library.close()

    def reserve(self, samples: int) -> None:
        # a window, and what the next one needs while the last batches of it are in flight
        pieces, axis, lead = self._pieces, self._axis, self._lead
        count = -(-samples // pieces.rows)
        across = (
            1 if pieces.whole else pieces.number // math.prod(self._grid.grid[axis : axis + lead])
        )
        self.cache.resize((count + count // 32 + 2) * across * pieces.nbytes)

    def release(self) -> None:
        self.cache.release()

    def _decode(self, numbers: Int64, targets: Int64, meter: Meter) -> dict[int, DecodeError]:
        """Decode chunks to addresses; the errors of those that are damaged, by their places."""
        return decode_into(self._grid, numbers, self.store, self._library, meter, targets)

    def _decoder(self, meter: Meter) -> Decode:
        """What puts decoded pieces into memory."""
        pieces, first = self._pieces, self._number

        def decode(numbers: list[int], targets: Int64) -> dict[int, DecodeError]:
            if not pieces.whole or self._single:
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
        return (pieces[:, None] * self._cuts.step + self._cuts.numbers).reshape(-1)

    @cached_property
    def _sample_shape(self) -> tuple[int, ...]:
        shape, axis = self._grid.shape, self._axis
        return (*shape[:axis], *shape[axis + self._lead :])

    @cached_property
    def _cuts(self) -> Cuts:
        grid, axis, lead = self._grid, self._axis, self._lead
        # alike in groups of different length
        shape = grid.shape if axis else (0,) * lead + grid.shape[lead:]
        return Cuts.of(shape, grid.chunk, grid.dtype.itemsize, axis, lead)

    def _assemble(self, along: int, target: int, meter: Meter) -> None:
        """Put a piece together, at an address, of the chunks that its samples are cut over."""
        cuts, size, item = self._cuts, self._grid.chunk_bytes, self._grid.dtype.itemsize
        numbers = cuts.numbers + along * cuts.step
        together = min(numbers.size, max(1, DECODED_AT_ONCE // size))
        if together > cuts.beside:
            together -= together % cuts.beside
        scratch = SCRATCH.take("cut chunks", together * size)
        sources = address_of(scratch) + np.arange(together) * size
        for first in range(0, numbers.size, together):
            some = slice(first, first + together)
            places, extents = cuts.places[some] + target, cuts.extents[some]
            for error in self._decode(numbers[some], sources[: places.size], meter).values():
                raise error
            with decoding(meter):
                kernels.copy_boxes(
                    sources[: places.size], places, extents, cuts.near, cuts.far, item
                )

    def _samples(self, along: int, inside: Int64, meter: Meter) -> Array:
        """The samples at ``inside`` of those with number ``along``, which are no piece together."""
        out = np.empty((inside.size, *self._sample_shape), self._grid.dtype)
        decode, cuts, size = self._decoder(meter), self._cuts, self._grid.dtype.itemsize
        numbers = (cuts.numbers + along * cuts.step + self._number).tolist()
        targets = address_of(out) + np.arange(inside.size) * cuts.far[0]
        rows, near, far = inside * cuts.near[0], cuts.near[1:], cuts.far[1:]
        for number, place, extent in zip(numbers, cuts.places, cuts.extents[:, 1:], strict=True):
            extents = np.tile(extent, (rows.size, 1))

            def copy(address: int, places: Int64 = targets + place, box: Int64 = extents) -> None:
                kernels.copy_boxes(rows + address, places, box, near, far, size)

            while not self._handed(number, decode, copy):
                with decoding(meter):  # which another thread does
                    self.cache.wait(number)
        return out

    def _handed(self, number: int, decode: Decode, copy: Callable[[int], None]) -> bool:
        """Whether ``copy`` got the address of a chunk; not while another thread decodes it."""
        with after_this():
            found = self.cache.get(number, decode, alone=True)
            if found is None:
                return False
            try:
                copy(found.address)
            finally:
                self.cache.unpin([found.entry])
        return True

    def read_into(self, writer: Writer) -> None:
        in_place = writer.in_place
        if in_place is not None and self._single and self._pieces.rows == 1:
            self._read_straight(in_place)
            return
        if not self._pieces.whole:
            self._read_cut(writer)
            return
        chunks, inside = self._places(writer.job.records)
        size = self._pieces.nbytes // self._pieces.rows
        chunks, inside = chunks + self._number, inside * size
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
            size = self._pieces.nbytes // self._pieces.rows
            if places is not None:
                writer = writer.of_file(self, 0, places, writer.job.records[places])
            writer.encoded(MEMORY, addresses, np.full(addresses.size, size))

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

    def _read_cut(self, writer: Writer) -> None:
        """Rows of samples that are cut over several chunks, or lie across them."""
        along, inside = self._places(writer.job.records)
        held: list[Array] = []  # what the addresses point into
        addresses = np.zeros(along.size, np.int64)
        # samples of one chunk together, so that it is decoded once even if soon dropped
        order = np.argsort(along, kind="stable")
        _, first = np.unique(along[order], return_index=True)
        for places in np.split(order, first[1:]):
            try:
                rows = self._samples(int(along[places[0]]), inside[places], writer.meter)
            except DecodeError as exc:
                writer.fail_all(places, exc)
                continue
            held.append(rows)
            addresses[places] = address_of(rows) + np.arange(places.size) * rows[0].nbytes
        good = addresses != 0
        self._give(writer, addresses[good], None if good.all() else np.flatnonzero(good))

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
