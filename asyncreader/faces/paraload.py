"""paraload's interface: a ring of the caller's own batches, which threads fill by a callback."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import numpy as np

from ..errors import NothingQueuedError, ParamsError, ReaderClosedError
from ..system.checks import whole
from ..system.signals import after_this
from .ahead import Ahead, Crew, asked_for

T = TypeVar("T")

#: Fills a batch, or the batch of a number; returns False when no data are left.
FillBatch: TypeAlias = Callable[[T], object] | Callable[[T, int], object]

#: What get_available_data_index() returns when there is no more.
END: Final = -1


class ParaLoad(Generic[T]):
    """Fills the batches of ``buffer`` by ``callback``, in threads, while others are in use.

    ``buffer``: the caller's batches, objects of any kind, at least one; no other memory is used.
    ``callback(batch)`` fills one in place; it returns False (or 0) when no data are left. A
    callback with two arguments is also given the number of the batch, 0, 1, 2 ... in the order in
    which batches are handed out: what it fills in then depends on that number, not on threads.

    Batches are handed out in the order in which they were begun. An error in the callback is
    raised by the :meth:`get_available_data_index` that would have handed out its batch.
    """

    def __init__(self, buffer: Sequence[T], callback: FillBatch[T]) -> None:
        if len(buffer) == 0:
            raise ParamsError("the buffer holds no batch", hint="pass a list of batches to fill")
        if not callable(callback):
            raise ParamsError("callback cannot be called", found=repr(callback))
        self.buffer = buffer
        self._callback = callback
        self._numbered = asked_for(callback) == 2
        self._batches = list(buffer)
        self._ahead = Ahead(len(self._batches), lends=True)
        self._loaders = Crew(self._ahead)
        # also where the object is forgotten: threads know the queue, not this object
        self._finalizer = weakref.finalize(self, self._loaders.stop)

    def start_loaders(self, num_loaders: int = 2) -> None:
        """Start that many threads; more when called again, none when the data have ended.

        Raises ReaderClosedError after stop().
        """
        count = whole(1)("num_loaders", num_loaders)
        if self._ahead.closed:
            raise ReaderClosedError("this ParaLoad was stopped", hint="make a new one")
        if self._ahead.over:
            return
        with after_this():
            for _ in range(count):
                name = f"asyncreader-load-{len(self._loaders.threads)}"
                work = self._ahead, self._batches, self._callback, self._numbered
                self._loaders.run(name, _load, *work)

    def get_available_data_index(self) -> int:
        """Wait for the next filled batch: its index in ``buffer``, or -1 when there are no more.

        The batch is the caller's until :meth:`return_back_for_refill`; any number may be held.
        Raises what the callback raised; NothingQueuedError before start_loaders().
        """
        if not self._loaders.threads and not self._ahead.closed:
            raise NothingQueuedError(
                "no loader was started", hint="call start_loaders() before asking for data"
            )
        turn = self._ahead.take()
        if turn is None:
            return END
        if turn.error is not None:
            raise turn.error
        return turn.place

    def return_back_for_refill(self, index: int) -> None:
        """Give a batch back. Raises ParamsError if it was never handed out, or is back already."""
        number = whole(0, len(self.buffer))("index", index)
        if not self._ahead.give_back(number):
            raise ParamsError(
                f"batch {number} is not in use",
                hint="give back what get_available_data_index() returned, once",
            )

    def stop(self) -> None:
        """End the loaders; whoever waits for data gets -1. A second call does nothing.

        A callback that does not return within a second is abandoned with a warning.
        """
        with after_this():
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _load(ahead: Ahead, batches: list[Any], callback: Callable[..., Any], numbered: bool) -> None:
    while (turn := ahead.begin()) is not None:
        batch = batches[turn.place]
        try:
            result = callback(batch, turn.number) if numbered else callback(batch)
        except BaseException as exc:
            ahead.made(turn, None, exc)
            continue
        if _says_end(result):
            ahead.finish()
            ahead.made(turn, None)
        else:
            ahead.made(turn, turn.place)


def _says_end(result: Any) -> bool:
    """What equals False; an array that happens to hold zeros does not."""
    return isinstance(result, bool | int | float | np.generic) and bool(result == False)  # noqa: E712
