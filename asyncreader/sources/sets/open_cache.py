"""Open shards, a bounded number of them: opened when wanted, the longest unused closed first."""

from __future__ import annotations

import contextlib
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

from ...errors import SourceError
from ..base import Source

#: Open shards: at least and at most so many, and never more than a quarter of the descriptors
#: that this process may have.
LEAST_OPEN: Final = 32
MOST_OPEN: Final = 512


def open_limit() -> int:
    """How many shards a source keeps open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_OPEN if soft == resource.RLIM_INFINITY else soft // 4
    return max(LEAST_OPEN, min(MOST_OPEN, allowed))


class _Place:
    """A shard that is open, or being opened by the thread that asked first."""

    __slots__ = ("source", "users")

    def __init__(self) -> None:
        self.source: Future[Source] = Future()
        self.users = 0


class Shelf:
    """Sources by number, opened by ``open_one`` and shared by threads.

    At most ``limit`` are open, and beyond it only those in use: one that a thread is reading is
    never closed. Two threads that want the same one open it once. An error of opening is raised to
    all who wait for it, and the next one tries again.
    """

    def __init__(self, open_one: Callable[[int], Source], limit: int) -> None:
        self.limit = limit
        self._open_one = open_one
        self._places: OrderedDict[int, _Place] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._places)

    @contextlib.contextmanager
    def use(self, number: int) -> Iterator[Source]:
        """The source, open for as long as the context lasts."""
        place, first = self._take(number)
        try:
            if first:
                self._fill(number, place)
            yield place.source.result()
        finally:
            self._give(place)

    def _take(self, number: int) -> tuple[_Place, bool]:
        with self._lock:
            if self._closed:
                raise SourceError("the set is closed")
            place = self._places.get(number)
            first = place is None
            if place is None:
                place = self._places[number] = _Place()
            else:
                self._places.move_to_end(number)
            place.users += 1
            unused = self._over_limit()
        _close(unused)
        return place, first

    def _fill(self, number: int, place: _Place) -> None:
        try:
            place.source.set_result(self._open_one(number))
        except BaseException as exc:
            with self._lock:
                self._places.pop(number, None)
            place.source.set_exception(exc)

    def _give(self, place: _Place) -> None:
        with self._lock:
            place.users -= 1
            unused = self._over_limit()
        _close(unused)

    def _over_limit(self) -> list[_Place]:
        """What is to be closed, taken off; under the lock."""
        over = len(self._places) - (0 if self._closed else self.limit)
        if over <= 0:
            return []
        idle = (number for number, place in self._places.items() if not place.users)
        chosen = [number for number, _ in zip(idle, range(over), strict=False)]
        return [self._places.pop(number) for number in chosen]

    def close(self) -> None:
        """Close all that nobody uses; the others when their last user is done."""
        with self._lock:
            self._closed = True
            unused = self._over_limit()
        _close(unused)


def _close(places: list[_Place]) -> None:
    for place in places:
        if place.source.exception() is None:
            place.source.result().close()
