"""What a worker of an enqueuer does, in a thread or in a process of its own.

A user's module of sequences imports this one, so it stays light: no numpy.
"""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias

from ..errors import ParamsError
from ..system import checks
from ..system.late import TypeVar
from ..system.late import numpy as np

T = TypeVar("T", default=object)


class Ended(Exception):
    """Raised by a job whose iterator has no more items."""


#: Makes the item of one task; Ended where there are no more.
Job: TypeAlias = Callable[[Any], Any]


class Sequence(Generic[T]):
    """Batches by number, as Keras asks for them: override ``__getitem__`` and ``__len__``.

    Any object with these two will do as well; this class only says so.
    """

    def __getitem__(self, index: int) -> T:
        """Batch ``index``, 0 .. len-1; called in the workers, several at once."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches in an epoch."""
        raise NotImplementedError

    def on_epoch_end(self) -> None:
        """Called once an epoch, when its last batch has been made and before the next is begun."""


def batch_of(sequence: Any, task: tuple[int, int | None]) -> Any:
    """A batch of a sequence. A task is (index, seed); None seeds nothing."""
    index, seed = task
    if seed is not None:
        seed_everything(seed)
    return sequence[index]


class SharedIterator:
    """The items of an iterator that belongs to the caller. It outlives start() and stop()."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        # a worker left behind inside next() must be waited for: a generator runs once at a time
        self._lock = threading.Lock()

    def __call__(self, task: Any) -> Any:
        with self._lock:
            return _next(self._iterator)


class MadeIterator:
    """The items of an iterator of the worker's own, made when the first one is asked for.

    ``make``: called without arguments, or as ``make(worker, workers)`` where it asks for two.
    ``seed``: of the global generators of ``random`` and ``numpy.random``, set before that.
    """

    def __init__(
        self, make: Callable[..., Any], worker: int, workers: int, seed: int | None
    ) -> None:
        self._make = make
        self._share = (worker, workers) if asked_for(make) == 2 else ()
        self._seed = seed
        self._iterator: Iterator[Any] | None = None

    def __call__(self, task: Any) -> Any:
        if self._iterator is None:
            self._iterator = iter(())  # where making it fails, that is the end
            if self._seed is not None:
                seed_everything(self._seed)
            self._iterator = iter(self._make(*self._share))
        return _next(self._iterator)


def _next(iterator: Iterator[Any]) -> Any:
    try:
        return next(iterator)
    except StopIteration:
        raise Ended from None


def seed_everything(seed: int) -> None:
    """Seed the global generators of ``random`` and ``numpy.random`` in this process."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def whole(name: str, value: object, low: int = 1) -> int:
    """``value`` as an int; ParamsError unless it is a whole number of at least ``low``."""
    return checks.whole(low)(name, value)


def asked_for(function: Callable[..., Any], given: tuple[str, ...] = ()) -> int:
    """Positional arguments that ``function`` cannot be called without, but for those ``given``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a C function without a signature
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        p.kind in positional and p.default is inspect.Parameter.empty and p.name not in given
        for p in parameters
    )


# -- the recipe's batches ------------------------------------------------------------------------


def collect(
    data_provide: Callable[..., Any],
    batch_size: int,
    arguments: dict[str, Any],
    worker: int,
    workers: int,
) -> Iterator[Any]:
    """Batches of ``batch_size`` samples of ``data_provide``; the last one may be shorter.

    Samples that are tuples give a tuple of lists, others a list; None is no sample.
    """
    shares = asked_for(data_provide, tuple(arguments)) == 2
    share = (worker, workers) if shares else ()
    batch: list[Any] = []
    for sample in _samples(data_provide, share, arguments):
        if sample is None:
            continue
        batch.append(sample)
        if len(batch) == batch_size:
            yield _columns(batch)
            batch = []
    if batch:
        yield _columns(batch)
    if workers > 1 and not shares:
        raise ParamsError(
            "data_provide came to an end in a worker, and every worker runs all of it",
            found=f"{workers} workers: each sample comes {workers} times, unless it is random",
            hint="let it take (worker, workers) and give the worker's share, or use one worker",
        )


def _samples(
    data_provide: Callable[..., Any], share: tuple[int, ...], arguments: dict[str, Any]
) -> Iterator[Any]:
    try:
        first = data_provide(*share, **arguments)
        if hasattr(first, "__next__"):
            yield from first
            return
        yield first
        while True:
            yield data_provide(*share, **arguments)
    except StopIteration:
        return


def _columns(batch: list[Any]) -> Any:
    if isinstance(batch[0], tuple):
        return tuple(list(column) for column in zip(*batch, strict=True))
    return batch
