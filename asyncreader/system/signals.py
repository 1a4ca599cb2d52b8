"""Ctrl-C and the end of processes: what it may not cut in two, and who has to end with whom.

Every worker process imports it first, so it imports little: no numpy, no module of asyncreader.

A Future, and the semaphore of a pool, enter their locks in Python: Ctrl-C at such a moment leaves
the lock held. The thread that then sets the result waits for ever, and the program, which waits for
that thread, never ends. So only this module calls ``submit()`` and ``result()``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import select
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

S = TypeVar("S")
T = TypeVar("T")

#: Items that wait for each thread.
_AHEAD: Final = 4


@contextlib.contextmanager
def after_this() -> Iterator[None]:
    """Raise a Ctrl-C that comes inside only at the end; for what ends within a second or two.

    ``threading.Thread.start()`` needs it: interrupted there, the new thread may wait for ever on a
    lock that the interrupted code still holds. In other threads Ctrl-C is never raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # nothing is raised: default, ignored, or a handler set by C code
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    try:
        signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


def wait_for(
    changed: threading.Condition,
    lock: Any,
    condition: Callable[[], bool],
    timeout: float | None = None,
) -> bool:
    """``changed.wait_for(condition, timeout)``, which Ctrl-C may end: ``lock``, the RLock of
    ``changed``, is held afterwards in any case."""
    try:
        return changed.wait_for(condition, timeout)
    except BaseException:
        try:
            changed.notify(0)  # RuntimeError if this thread does not hold the lock
        except RuntimeError:
            lock.acquire()  # Ctrl-C came when wait() had released it
        raise


# -- work for threads ----------------------------------------------------------------------------


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


def in_threads(
    jobs: int, name: str, work: Callable[[S, threading.Event], T], items: Iterable[S]
) -> Iterator[tuple[S, T]]:
    """Each item and what ``work`` gives for it, in order, in ``jobs`` threads of this ``name``.
    Where the loop over it ends early, by Ctrl-C, say, nothing more is begun, and the event that
    ``work`` is given is set."""
    from concurrent.futures import ThreadPoolExecutor

    stop = threading.Event()
    waiting: deque[tuple[S, Future[T]]] = deque()
    with ThreadPoolExecutor(jobs, thread_name_prefix=name) as pool:
        try:
            for item in items:
                waiting.append((item, submit(pool, partial(work, item, stop))))
                if len(waiting) >= _AHEAD * jobs:
                    first, future = waiting.popleft()
                    yield first, result_of(future)
            for first, future in waiting:
                yield first, result_of(future)
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# -- processes -----------------------------------------------------------------------------------


def start_child(process: Any) -> None:
    """Start a spawned process that Ctrl-C, which goes to the whole group, does not reach."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with after_this():
        try:
            # inherited, so that the child is not ended in its imports, before it can say anything
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            process.start()
            _STARTED.add(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_STARTED: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def disown(process: Any) -> None:
    """Take a process off multiprocessing's list of children; there is no public way to."""
    getattr(multiprocessing.process, "_children", set()).discard(process)


def _disown_all() -> None:
    # a forked child that ends as a program does would end its parent's workers, too: to
    # multiprocessing they are its own
    for process in list(_STARTED):
        disown(process)


os.register_at_fork(after_in_child=_disown_all)


def fork_when_free(lock: Any) -> None:
    """Let forks of this process wait until no other thread has ``lock``, an RLock: in the child
    that thread is not there to release it."""
    release = lock.release
    os.register_at_fork(before=lock.acquire, after_in_parent=release, after_in_child=release)


def end_with_parent() -> None:
    """Called first in a spawned process: ignore Ctrl-C, and end when the parent has ended.

    Who waits for a task sees the end of its pipe. Who is busy does not, nor does anybody whose
    pipe a forked child of the parent holds open too: these are ended by a thread.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    try:
        ended = _open_process(parent.pid)
    except ProcessLookupError:  # it is gone, and so is its end of the pipe
        return
    except (AttributeError, OSError):  # Linux before 5.3, another system, or not allowed
        ended = parent.sentinel  # a forked child of the parent may hold it open; nothing else may
    name = "asyncreader-parent"
    threading.Thread(target=_end_after, args=(ended,), name=name, daemon=True).start()


def _open_process(pid: int) -> int:
    """A descriptor that can be read when a process has ended (pidfd_open(2))."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    import ctypes  # many Pythons are built without it for systems that have it

    system = ctypes.CDLL(None, use_errno=True)
    descriptor: int = system.syscall(_PIDFD_OPEN, pid, 0)
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor


#: Its number in the kernel: the same on every machine but Alpha.
_PIDFD_OPEN: Final = 434


def _end_after(ended: int) -> None:
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.poll()
    os._exit(1)
