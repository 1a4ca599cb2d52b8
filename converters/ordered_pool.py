"""Runs work in threads and returns its results in order, with bounded samples and bytes.

The consumer is the only writer, so what it writes cannot depend on the number of threads. Threads
take numbers: at most ``window`` of them are begun and not yet consumed, and together they hold at
most ``limit`` bytes. The oldest never waits for bytes: the others release theirs only after it is
consumed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from asyncreader.system.signals import after_this, wait_for

T = TypeVar("T")

#: Numbers that one thread takes at a time where each sample is only read and checked.
RUN: Final = 16

#: Bytes of images and results in flight, for each thread: a 24-megapixel photo, decoded.
BYTES_PER_JOB: Final = 192 << 20


class Stopped(Exception):
    """Raised inside work when the pool is closed; caught in the pool's thread."""


class Pool(Generic[T]):
    """Iterates (number, result or exception) of ``work(number, hold)`` for 0 .. count-1, in order.

    Work calls ``hold(size)`` before it takes so many bytes of memory, which waits until they are
    free. ``group``: numbers a thread takes at a time, more than one where the work on each is tiny.
    ``cost``: bytes a result holds until it is consumed. ``most_begun`` and ``most_bytes`` are the
    largest figures seen.
    """

    def __init__(
        self,
        work: Callable[[int, Callable[[int], None]], T],
        count: int,
        *,
        jobs: int,
        cost: Callable[[T], int],
        group: int = 1,
        window: int | None = None,
        limit: int | None = None,
    ) -> None:
        self._work = work
        self._count = count
        self._group = group
        self._cost = cost
        self.window = window or 4 * jobs * group
        self.limit = limit or BYTES_PER_JOB * jobs
        #: Numbers for the threads; None ends one.
        self._begun: SimpleQueue[range | None] = SimpleQueue()
        self._lock = threading.RLock()  # which wait() takes back in C, where no Ctrl-C comes
        self._changed = threading.Condition(self._lock)  # what is done, or held
        self._head = 0
        self._bytes = 0
        self._done: dict[int, tuple[T | Exception, int]] = {}
        self._stopped = False
        self.most_begun = 0
        self.most_bytes = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"asyncreader-convert-{n}", daemon=True)
            for n in range(min(jobs, count))
        ]

    def __enter__(self) -> Pool[T]:
        try:
            with after_this():
                for thread in self._threads:
                    thread.start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def __iter__(self) -> Iterator[tuple[int, T | Exception]]:
        begun = 0
        for number in range(self._count):
            while begun < min(self._count, number + self.window):
                stop = min(begun + self._group, self._count, number + self.window)
                self._begun.put(range(begun, stop))
                begun = stop
            self.most_begun = max(self.most_begun, begun - number)
            with self._lock:
                wait_for(self._changed, self._lock, partial(self._done.__contains__, number))
                result, size = self._done.pop(number)
            yield number, result
            # Only now has the consumer written it: until here its bytes counted.
            with self._lock:
                self._bytes -= size
                self._head = number + 1
                self._changed.notify_all()

    # -- in the threads ----------------------------------------------------------------------

    def _run(self) -> None:
        for numbers in iter(self._begun.get, None):
            for number in numbers:
                if self._stopped:
                    return
                self._one(number)

    def _one(self, number: int) -> None:
        held = size = 0

        def hold(more: int) -> None:
            nonlocal held
            with self._lock:
                while (
                    not self._stopped and number != self._head and self._bytes + more > self.limit
                ):
                    self._changed.wait()
                if self._stopped:
                    raise Stopped
                held += more
                self._bytes += more
                self.most_bytes = max(self.most_bytes, self._bytes)

        result: T | Exception
        try:
            result = self._work(number, hold)
            size = self._cost(result)
        except Stopped:
            return
        except Exception as exc:
            result = exc
        except BaseException as exc:  # a decoder's panic: the consumer must not wait for ever
            result = RuntimeError(f"the work on an image ended in {exc!r}")
        with self._lock:
            self._bytes += size - held
            self.most_bytes = max(self.most_bytes, self._bytes)
            self._done[number] = result, size
            self._changed.notify_all()
