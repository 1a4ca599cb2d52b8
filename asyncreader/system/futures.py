"""Work for a pool of threads, submitted and waited for so that Ctrl-C leaves no lock held.

A Future, and the semaphore of a pool, enter their locks in Python: Ctrl-C at such a moment leaves
the lock held. The thread that then sets the result waits for ever, and the program, which waits for
that thread, never ends. Only this module calls ``submit()`` and ``result()``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from .signals import after_this

S = TypeVar("S")
T = TypeVar("T")


def submit(pool: Executor, work: Callable[[], T]) -> Future[T]:
    """Have a thread of ``pool`` do ``work``."""
    with after_this():
        return pool.submit(work)


def result_of(future: Future[T]) -> T:
    """The result, or the error raised, of work that was submitted; waits for it."""
    if threading.current_thread() is not threading.main_thread():
        return future.result()  # Ctrl-C never comes here
    done: SimpleQueue[Future[T]] = SimpleQueue()  # it is in C: Ctrl-C ends its get(), and no more
    with after_this():
        future.add_done_callback(done.put)
    done.get()
    with after_this():
        return future.result()


def in_order(
    pool: Executor, work: Callable[[S], T], items: Iterable[S], ahead: int
) -> Iterator[tuple[S, T]]:
    """Each item and what ``work`` gives for it, in order. At most ``ahead`` items are taken before
    the oldest is done."""
    waiting: deque[tuple[S, Future[T]]] = deque()
    for item in items:
        waiting.append((item, submit(pool, partial(work, item))))
        if len(waiting) >= ahead:
            first, future = waiting.popleft()
            yield first, result_of(future)
    for first, future in waiting:
        yield first, result_of(future)
