"""Decoded chunks in memory: a bounded number, each decoded once, and their memory used again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..memory import aligned_empty

Int64: TypeAlias = npt.NDArray[np.int64]
UInt8: TypeAlias = npt.NDArray[np.uint8]

#: Memory of dropped chunks that is kept for the next ones.
SPARE_BYTES: Final = 2 << 20


class _Dropped:
    """Chunks dropped in one stretch of time, and the next stretch: alive as long as someone who
    began before it ended holds on. Its memory is then used again (``spare``): fresh pages cost a
    fault each, a quarter of the time that inflating takes."""

    __slots__ = ("chunks", "next", "spare")

    def __init__(self, spare: deque[UInt8]) -> None:
        self.chunks: list[UInt8] = []
        self.next: _Dropped | None = None
        self.spare = spare

    def __del__(self) -> None:
        self.spare.extend(self.chunks)


class ChunkCache:
    """Decoded chunks by number, the longest unused dropped first. Thread-safe.

    Two threads that want the same chunk decode it once: the second waits for the first.
    ``addresses``: int64 (chunks,), where each chunk lies in memory now, 0 where it is not held. An
    address read, or a chunk got, after :meth:`pin` stays good for as long as what pin() returned
    is kept, and no longer: then another chunk is decoded into the same memory.
    """

    def __init__(self, limit: int, chunks: int, chunk_bytes: int) -> None:
        self.limit = limit
        self.addresses = np.zeros(chunks, np.int64)
        self._used = np.zeros(chunks, np.int64)
        self._tick = 0
        self._held: dict[int, UInt8] = {}
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._busy: dict[int, threading.Lock] = {}
        #: memory of chunks that nobody looks at any more; what is beyond a few goes back
        self._spare: deque[UInt8] = deque(maxlen=max(1, SPARE_BYTES // chunk_bytes))
        self._dropped = _Dropped(self._spare)

    def pin(self) -> object:
        """Keep every chunk that is held now, or dropped from now on, until this is let go."""
        return self._dropped

    def find(self, numbers: Int64) -> Int64:
        """Addresses of chunks (after :meth:`pin`), 0 where one is not held; notes their use."""
        self._tick += 1  # two threads may take the same tick: it only tells old from new
        self._used[numbers] = self._tick
        return self.addresses[numbers]

    def get(self, number: int, decode: Callable[[UInt8], None], wait: bool = True) -> UInt8 | None:
        """The chunk (after :meth:`pin`) from memory, else what ``decode(memory)`` puts there.

        None where another thread is at it and not to be waited for.
        """
        with self._lock:
            found = self._held.get(number)
            if found is not None:
                return found
            busy = self._busy.setdefault(number, threading.Lock())
            mine = busy.acquire(blocking=False)
        if not mine:
            if not wait:
                return None
            busy.acquire()
        try:
            with self._lock:
                found = self._held.get(number)
            if found is not None:
                return found
            try:
                pixels = self._memory()
                decode(pixels)
                self._put(number, pixels)
            finally:
                with self._lock:
                    self._busy.pop(number, None)
        finally:
            busy.release()
        return pixels

    def _memory(self) -> UInt8:
        """Room for a chunk, in pages of its own, which go back to the system when it is dropped."""
        try:
            return self._spare.pop()
        except IndexError:
            fresh: UInt8 = aligned_empty((self._chunk_bytes,), np.uint8)
            return fresh

    def _put(self, number: int, pixels: UInt8) -> None:
        with self._lock:
            if number in self._held:  # dropped meanwhile, and decoded by two: counted once
                self._dropped.chunks.append(pixels)  # its decoder still looks at it
                return
            while self._held and (len(self._held) + 1) * self._chunk_bytes > self.limit:
                self._drop_oldest()
            self._tick += 1
            self._used[number] = self._tick
            self._held[number] = pixels
            self.addresses[number] = pixels.ctypes.data

    def _drop_oldest(self) -> None:
        held = np.fromiter(self._held, np.int64, len(self._held))
        oldest = int(held[np.argmin(self._used[held])])
        self.addresses[oldest] = 0  # first: nobody finds it any more
        self._dropped.chunks.append(self._held.pop(oldest))
        self._dropped.next = _Dropped(self._spare)
        self._dropped = self._dropped.next
