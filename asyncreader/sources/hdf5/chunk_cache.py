"""Chunks of a data set: where they lie, how they are decoded, and a cache of those that are.

The first thread that needs a chunk decodes it, outside the HDF5 library.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import DecodeError
from ...pixels.rows import Writer
from ...stats import Meter
from ...system.array_types import Int64, UInt8
from ...system.memory import address_of, aligned_empty, bytes_at
from ...system.signals import after_this
from ..base import OpenField
from ..bytestore import ByteFile
from .filters import Filter, decode_chunk, inflate, inflated_width

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


class LibraryChunks(Protocol):
    """Decoded chunks through the HDF5 library, for filters that only it can undo."""

    def read(self, number: int) -> UInt8:
        """A chunk, one caller at a time."""

    def close(self) -> None:
        """Close the library's file."""


# -- decoding --------------------------------------------------------------------------------------


@contextmanager
def decoding(meter: Meter) -> Iterator[None]:
    """The time of what is done inside counts as decoding, also where it fails."""
    started = time.perf_counter()
    try:
        yield
    finally:
        meter.seconds["decode"] += time.perf_counter() - started


class OpenChunks:
    """The chunks of a data set in an open file. ``library``: opens the HDF5 library's reader of
    them; None: they are decoded here.

    ``plain``: they can be copied from where they lie, where that is memory.
    """

    def __init__(
        self,
        field: OpenField,
        grid: ChunkGrid,
        library: Callable[[ByteFile, ChunkGrid], LibraryChunks] | None = None,
    ) -> None:
        self.grid, self.store = grid, field.own_file.store
        self._library = None if library is None else library(field.own_file, grid)
        self.plain = not grid.filters and grid.fill is None and not self.store.remote

    def will_need(self, numbers: Int64) -> None:
        """Prefetch: the calling thread reads these chunks next."""
        written = numbers[self.grid.offsets[numbers] >= 0]
        if written.size:
            self.store.will_need(self.grid.offsets[written], self.grid.sizes[written])

    def decode(self, numbers: Int64, targets: Int64, meter: Meter) -> dict[int, DecodeError]:
        """Decode chunks into memory at the addresses ``targets``. The errors of those that are
        damaged, by their places in ``numbers``."""
        grid, bad, left = self.grid, dict[int, DecodeError](), np.arange(numbers.size)
        if self._library is None and grid.inflated is not None:
            sizes, found = grid.sizes[numbers], np.empty(numbers.size, np.int64)
            base = self.store.address(int(sizes.sum()))
            if base is not None:
                sources = grid.offsets[numbers] + base
                with decoding(meter):
                    inflate(sources, sizes, targets, grid.chunk_bytes, grid.inflated, found)
                left = np.flatnonzero(found != grid.chunk_bytes)
        for i in left.tolist():
            memory = bytes_at(int(targets[i]), grid.chunk_bytes)
            try:
                self._decode_one(int(numbers[i]), memory, meter)
            except DecodeError as exc:
                bad[i] = exc
        return bad

    def _decode_one(self, number: int, out: UInt8, meter: Meter) -> None:
        """Decode a chunk into ``out``. DecodeError if it is damaged."""
        grid = self.grid
        if self._library is not None:
            with decoding(meter):  # and reading, which the library does along with it
                out[:] = self._library.read(number)
        elif grid.fill is not None and grid.offsets[number] < 0:
            out.reshape(-1, grid.fill.size)[:] = grid.fill
        else:
            stored = self.store.view(int(grid.offsets[number]), int(grid.sizes[number]))
            mask, size = int(grid.masks[number]), grid.chunk_bytes
            started = time.perf_counter()  # decoding() takes a microsecond more for each chunk
            try:
                out[:] = decode_chunk(stored, grid.filters, mask, size, grid.dtype.itemsize)
            finally:
                meter.seconds["decode"] += time.perf_counter() - started

    def close(self) -> None:
        """Close the library's file."""
        if self._library is not None:
            self._library.close()


# -- the cache -------------------------------------------------------------------------------------


#: Puts the pixels of chunks (their numbers) into memory at addresses, and returns the errors of
#: those that are damaged, by their places among these.
Decode: TypeAlias = Callable[[list[int], Int64], dict[int, DecodeError]]

#: Entries that are sorted by age in one go: sorting each time took 3 % of the time of inflating.
SORTED: Final = 32


class Chunk(NamedTuple):
    """A decoded chunk at ``address``, good until ``entry`` is unpinned; with entry 0 that is
    ``memory`` of its own."""

    entry: int
    address: int
    memory: UInt8 | None = None


class ChunkCache:
    """Decoded chunks by number, in one block of memory with ``limit // chunk_bytes`` entries.

    Thread-safe. The memory is allocated with the first chunk and reused: page faults of fresh
    memory took a quarter of the time of inflating. If no entry is free, the least recently used
    chunk that is not pinned is dropped.
    """

    def __init__(self, limit: int, chunks: int, chunk_bytes: int) -> None:
        self._limit = limit
        self._chunks = chunks
        self.chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        #: by chunk: its entry, 0 where it is not held; entry 0 holds nothing
        self._entries = np.zeros(chunks, np.int64)
        self._memory: UInt8 | None = None
        #: by entry: the chunk in it, -1 for none; when it was used; how many pinned it; its address
        self._inside: list[int] = []
        self._used = np.empty(0, np.int64)
        self._pins = np.empty(0, np.int64)
        self._addresses = np.empty(0, np.int64)
        self._tick = 0
        #: entries to be used next, the oldest last, and the tick when they were sorted
        self._oldest: list[int] = []
        self._sorted_at = 0
        self._busy: dict[int, threading.Lock] = {}

    @property
    def capacity(self) -> int:
        """Chunks that are held at most."""
        return max(1, min(self._limit // self.chunk_bytes, self._chunks))

    def hold(self, count: int, nbytes: int) -> None:
        """Hold a window of ``count`` parts of ``nbytes`` from now on, and what the next window
        needs while the last batches of it are in flight: nothing is kept. To be called before
        threads read."""
        self._limit = (count + count // 32 + 2) * nbytes
        self.release()

    def release(self) -> None:
        """Drop all chunks and give the memory back, unless a thread has pinned one."""
        with self._lock:
            if self._memory is not None and not self._pins[1:].any():
                # new zeros: only those that are written take memory
                self._entries = np.zeros(self._chunks, np.int64)
                self._memory = None

    def pin(self, numbers: Int64) -> tuple[Int64, Int64]:
        """(entries, addresses) of chunks (any may come several times), 0 where one is not held.

        What is held stays until :meth:`unpin` of the same entries.
        """
        with self._lock:
            if self._memory is None:
                nothing = np.zeros(numbers.size, np.int64)
                return nothing, nothing
            entries = self._entries[numbers]
            self._tick += 1
            self._used[entries] = self._tick
            np.add.at(self._pins, entries, 1)
        return entries, self._addresses[entries]

    def unpin(self, entries: Int64 | list[int]) -> None:
        """Let chunks go that were pinned, by their entries; 0 is passed over."""
        with self._lock:
            if self._memory is not None:
                np.subtract.at(self._pins, entries, 1)

    def get_some(
        self, numbers: list[int], decode: Decode, or_own_memory: bool = False
    ) -> list[Chunk | DecodeError | None]:
        """Different chunks, each pinned, from memory or as one call of ``decode`` makes them.

        None for one that another thread decodes now, and where all entries are pinned. With
        ``or_own_memory``, where this would be so for all, one ends in memory that is not kept.
        """
        found: list[Chunk | DecodeError | None] = [None] * len(numbers)
        mine, claimed = threading.Lock(), list[tuple[int, int]]()
        bad, done = dict[int, DecodeError](), False
        mine.acquire()
        try:
            with self._lock:
                self._claim(numbers, found, claimed, mine, or_own_memory)
            if claimed:
                entries = [entry for _, entry in claimed]
                own = np.empty(0 if entries[0] else self.chunk_bytes, np.uint8)
                targets = self._addresses[entries] if entries[0] else np.array([address_of(own)])
                bad = decode([numbers[place] for place, _ in claimed], targets)
                for at, (place, entry) in enumerate(claimed):
                    found[place] = bad.get(at) or Chunk(entry, int(targets[at]), own)
            done = True
            return found
        finally:
            with self._lock:
                self._tick += 1
                for at, (place, entry) in enumerate(claimed):
                    self._publish(numbers[place], entry, mine, done and at not in bad)
                    if not done:
                        found[place] = None
                for one in () if done else found:
                    if isinstance(one, Chunk):
                        self._pins[one.entry] -= 1
            mine.release()

    def _claim(
        self,
        numbers: list[int],
        found: list[Chunk | DecodeError | None],
        claimed: list[tuple[int, int]],
        mine: threading.Lock,
        or_own_memory: bool,
    ) -> None:
        """Pin the chunks that are held, which are ``found``; of the others that nobody decodes,
        note the places in ``numbers`` and an entry each, which is the holder's of ``mine``. Entry 0
        is memory of its own, of one chunk alone."""
        self._allocate()
        self._tick += 1
        left = []
        for place, number in enumerate(numbers):
            entry = int(self._entries[number])
            if entry:
                self._pins[entry] += 1
                self._used[entry] = self._tick
                found[place] = Chunk(entry, int(self._addresses[entry]))
            elif number not in self._busy:
                left.append(place)
        for place in left:
            entry = self._free_entry()
            if not entry and (not or_own_memory or claimed or any(found)):
                break
            claimed.append((place, entry))
            self._busy[numbers[place]] = mine
            if not entry:
                break

    def _publish(self, number: int, entry: int, mine: threading.Lock, good: bool) -> None:
        """Let others have the chunk in an entry that was claimed, or the entry, if it is not
        ``good``."""
        if not good:
            self._pins[entry] = 0  # no other thread knows this entry
        elif entry:
            self._used[entry] = self._tick
            self._inside[entry] = number
            self._entries[number] = entry
        if self._busy.get(number) is mine:  # Ctrl-C may have come before
            del self._busy[number]

    def wait(self, number: int) -> None:
        """Until no other thread decodes this chunk. Nothing may be pinned meanwhile."""
        busy = self._busy.get(number)
        if busy is not None:
            with busy:
                pass

    def _allocate(self) -> None:
        if self._memory is not None:
            return
        count = self.capacity + 1
        self._oldest = []
        self._inside = [-1] * count
        self._used = np.zeros(count, np.int64)
        self._pins = np.zeros(count, np.int64)
        # entry 0 has no memory: it is a page that no thread uses
        self._memory = aligned_empty((count, self.chunk_bytes), np.uint8)
        self._addresses = self._memory.ctypes.data + np.arange(count) * self.chunk_bytes
        self._addresses[0] = 0

    def _free_entry(self) -> int:
        """An entry, pinned and empty; 0 where all are pinned."""
        for _ in range(2):
            while self._oldest:
                entry = self._oldest.pop()
                if self._pins[entry] == 0 and self._used[entry] <= self._sorted_at:
                    before = self._inside[entry]
                    if before >= 0:
                        self._entries[before] = 0
                    self._inside[entry] = -1
                    self._used[entry] = 0
                    self._pins[entry] = 1
                    return entry
            # all were taken, or used since they were sorted
            free = np.flatnonzero(self._pins[1:] == 0) + 1
            order = np.argsort(self._used[free], kind="stable")[:SORTED]
            self._oldest = free[order[::-1]].tolist()
            self._sorted_at = self._tick
        return 0


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
