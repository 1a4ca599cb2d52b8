"""A cache of open files: opened when used, the least recently used closed first."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from ...errors import SourceError
from ...system.limits import allow_open_files, open_files
from ...system.signals import after_this, result_of
from ..fields import OpenSet

#: Open files: at least and at most so many; in between, a quarter of the process's descriptors. An
#: open shard takes 6 kB of memory.
LEAST_OPEN: Final = 32
MOST_OPEN: Final = 4096
_PART: Final = 4


def open_limit() -> int:
    """How many files a set keeps open."""
    most = open_files()
    allowed = MOST_OPEN if most is None else most // _PART
    return max(LEAST_OPEN, min(MOST_OPEN, allowed))


def allow_open(files: int) -> None:
    """Raise this process's limit of open files where it would not let a set keep ``files`` open."""
    allow_open_files(_PART * files)


class _Entry:
    """A file that is open, or being opened by the thread that asked first."""

    __slots__ = ("source", "users")

    def __init__(self) -> None:
        self.source: Future[OpenSet] = Future()
        self.users = 0


class OpenFileCache:
    """Open files by number, opened by ``open_one`` and shared by threads. ``held``: all of them,
    open already. They stay open; beyond ``limit`` they release decoded chunks instead.

    At most ``limit`` are open, or more if more are in use: a source that a thread is reading is not
    closed. Two threads that need the same source open it once. If opening fails, all threads that
    wait for it get the error, and the next use tries again. The lock is re-entrant, since a
    collected reader is closed by whatever thread collects it, which may be in here.
    """

    def __init__(
        self, open_one: Callable[[int], OpenSet], limit: int, held: Sequence[OpenSet] = ()
    ) -> None:
        self.limit = limit
        self._open_one = held.__getitem__ if held else open_one
        self._held = held
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        for number, source in enumerate(held):
            self._entries[number] = entry = _Entry()
            entry.source.set_result(source)
        self._lock = threading.RLock()
        self._closed = False
        self._keeps_all = False

    def __len__(self) -> int:
        return len(self._entries)

    @contextlib.contextmanager
    def use(self, number: int) -> Iterator[OpenSet]:
        """The source, open for as long as the context lasts."""
        entry: _Entry | None = None
        first = False
        try:
            with after_this():  # nothing comes between counting a user and knowing it
                entry, first = self._take(number)
            if first:
                self._fill(number, entry)
                first = False
            yield result_of(entry.source)
        finally:
            if entry is not None:
                with after_this():
                    if first:  # Ctrl-C: nobody waits for it for ever
                        self._failed(number, entry, SourceError("opening a file was interrupted"))
                    self._give(entry)

    def keep_all(self, count: int) -> tuple[OpenSet, ...]:
        """All of ``count`` sources, if they are open and as many may be: they stay open until
        close(). Else nothing."""
        with self._lock:
            entries = [entry for _, entry in sorted(self._entries.items())]
            whole = len(entries) == count <= self.limit and not self._closed
            self._keeps_all = whole and all(entry.source.done() for entry in entries)
        return tuple(result_of(entry.source) for entry in entries if self._keeps_all)

    def _take(self, number: int) -> tuple[_Entry, bool]:
        with self._lock:
            if self._closed:
                raise SourceError("the dataset is closed")
            entry = self._entries.get(number)
            first = entry is None
            if entry is None:
                entry = self._entries[number] = _Entry()
            else:
                self._entries.move_to_end(number)
            entry.users += 1
            unused = self._over_limit(self.limit)
        self._drop(unused)
        return entry, first

    def _fill(self, number: int, entry: _Entry) -> None:
        try:
            source = self._open_one(number)
            with after_this():
                entry.source.set_result(source)
        except Exception as exc:
            with after_this():
                self._failed(number, entry, exc)

    def _failed(self, number: int, entry: _Entry, error: BaseException) -> None:
        """Give the threads that wait for a source the error, unless it is open."""
        if not entry.source.done():
            with self._lock:
                self._entries.pop(number, None)
            entry.source.set_exception(error)

    def _give(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            unused = self._over_limit(0 if self._closed else self.limit)
        self._drop(unused)

    def _over_limit(self, limit: int) -> list[_Entry]:
        """Remove and return the entries to drop; under the lock."""
        over = len(self._entries) - limit
        if over <= 0 or (self._keeps_all and not self._closed):
            return []
        idle = (number for number, entry in self._entries.items() if not entry.users)
        chosen = [number for number, _ in zip(idle, range(over), strict=False)]
        return [self._entries.pop(number) for number in chosen]

    def _drop(self, entries: list[_Entry]) -> None:
        """Close sources that are no longer used, or release those that are held open."""
        for entry in entries:
            if entry.source.exception() is None:
                source = result_of(entry.source)
                if self._held and not self._closed:
                    source.release()
                else:
                    source.close()

    def release(self) -> None:
        """Drop the sources that no thread uses: they are not needed soon."""
        with self._lock:
            unused = self._over_limit(0)
        self._drop(unused)

    def close(self) -> None:
        """Close the unused sources now, and the others when their last user is done."""
        with self._lock:
            self._closed = True
            released = [one for number, one in enumerate(self._held) if number not in self._entries]
            unused = self._over_limit(0)
        for source in released:
            source.close()
        self._drop(unused)
