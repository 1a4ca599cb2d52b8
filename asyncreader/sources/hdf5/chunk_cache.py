"""A cache of decoded chunks of fixed size; the first thread that needs a chunk decodes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ...errors import DecodeError
from ...system.array_types import Int64, UInt8
from ...system.memory import address_of, aligned_empty

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

    def resize(self, limit: int) -> None:
        """Hold as much from now on: nothing is kept. To be called before threads read."""
        self._limit = limit
        self.release()

    def hold(self, count: int, nbytes: int) -> None:
        """:meth:`resize` for a window of ``count`` parts of ``nbytes``, and what the next window
        needs while the last batches of it are in flight."""
        self.resize((count + count // 32 + 2) * nbytes)

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
