"""Keras' enqueuers, and get_batch() built on them: threads or processes make items ahead."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeAlias, cast

from ..errors import NothingQueuedError, ParamsError
from ..pipeline.children import STUCK_AFTER
from ..system.checks import whole
from ..system.late import TypeVar
from ..system.late import numpy as np
from .ahead import Ahead, Ended, Job, Workers, asked_for

__all__ = ["GeneratorEnqueuer", "OrderedEnqueuer", "Sequence", "get_batch"]

T = TypeVar("T", default=object)
T_co = TypeVar("T_co", covariant=True)

#: Samples of a batch; of samples that are tuples, a list of each of their parts.
Samples: TypeAlias = list[object] | tuple[list[object], ...]


class Batches(Protocol[T_co]):
    """Batches by number: a :class:`Sequence`, or any object with these two."""

    def __getitem__(self, index: int, /) -> T_co: ...

    def __len__(self) -> int: ...


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


class _Enqueuer(Generic[T]):
    """The base of both enqueuers: start, get and stop."""

    def __init__(self) -> None:
        self._run: Workers | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def start(
        self,
        workers: int = 1,
        max_queue_size: int = 10,
        wait_time: float | None = None,
        *,
        max_q_size: int | None = None,
    ) -> None:
        """Prefetch items: at most ``max_queue_size`` wait for the consumer.

        ``wait_time`` is accepted and not needed; ``max_q_size`` is the older name. Raises
        ParamsError while it is running; after stop() it can start again.
        """
        count = whole(1)("workers", workers)
        depth = whole(1)("max_queue_size", max_queue_size if max_q_size is None else max_q_size)
        if self._run is not None:
            if not self._run.ahead.over:
                raise ParamsError("it is running already", hint="call stop() before start()")
            self.stop()
        run = self._make_run(count, depth)
        try:
            run.start()
            # an enqueuer that nobody uses is collected: its workers do not refer to it
            self._run, self._finalizer = run, weakref.finalize(self, run.stop)
        except BaseException:  # Ctrl-C, too
            run.stop()
            raise

    def _make_run(self, workers: int, depth: int) -> Workers:
        raise NotImplementedError

    def is_running(self) -> bool:
        """Whether it was started, not stopped, and has more items to hand out."""
        return self._run is not None and not self._run.ahead.over

    def get(self) -> Iterator[T]:
        """The items, in order, until the source ends or stop(); None is skipped.

        An item whose making failed raises its error, type and traceback as they were; another
        ``get()`` continues after it. Several threads may have one each. Raises NothingQueuedError
        before start().
        """
        if self._run is None:
            raise NothingQueuedError("it was not started", hint="call start() before get()")
        return self._items(self._run.ahead)

    def _items(self, ahead: Ahead) -> Iterator[T]:
        # a method: it keeps the enqueuer alive while somebody reads its items
        while (turn := ahead.take()) is not None:
            if turn.error is not None:
                raise turn.error
            item = turn.item
            del turn  # an item may be large: it is the consumer's alone now
            yield item
            del item

    def stop(self, timeout: float | None = None) -> None:
        """End the workers and drop what was made ahead; every ``get()`` ends. Idempotent.

        User code that does not return within ``timeout`` (1) seconds: a thread is left behind with
        a warning, a process is killed.
        """
        run, finalizer = self._run, self._finalizer
        if finalizer is not None and finalizer.alive:
            assert run is not None
            try:
                run.stop(STUCK_AFTER if timeout is None else max(0.0, timeout))
            except Exception:  # its warning. After Ctrl-C the next call, or the exit, does the rest
                finalizer.detach()
                raise
            finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


class GeneratorEnqueuer(_Enqueuer[T]):
    """Makes the items of a generator ahead.

    ``generator``: an iterator, whose items come in its order; Python runs it in one thread at a
    time, so more workers do not help. Or a callable that makes one: then each worker runs its own,
    and their items come in turn (worker 0, 1, 2 ... 0), in the same order every time; a callable
    with two arguments is given ``(worker, workers)``, so that each can take its share. With
    ``use_multiprocessing`` (``pickle_safe`` in older versions) pass a callable: a generator cannot
    be sent to a process.

    ``random_seed`` (or ``seed``): worker ``i`` sets the global generators of ``random`` and
    ``numpy.random`` to ``random_seed + i`` in its process; threads share one state, which is left
    alone. ``wait_time`` is accepted and not needed. Raises ParamsError.
    """

    def __init__(
        self,
        generator: Iterator[T] | Callable[..., Iterable[T]],
        use_multiprocessing: bool = False,
        wait_time: float | None = None,
        random_seed: int | None = None,
        *,
        seed: int | None = None,
        pickle_safe: bool | None = None,
    ) -> None:
        super().__init__()
        self._processes = bool(use_multiprocessing if pickle_safe is None else pickle_safe)
        self._seed = random_seed if seed is None else seed
        if self._seed is not None:
            self._seed = whole(0)("random_seed", self._seed)
        #: the jobs of so many workers
        self._jobs: Callable[[int], list[Job]]
        if hasattr(generator, "__next__"):
            if self._processes:
                raise ParamsError(
                    "a generator cannot be sent to worker processes",
                    found=type(generator).__name__,
                    hint="pass the function that makes it (GeneratorEnqueuer(make, ...), not "
                    "GeneratorEnqueuer(make(), ...)), defined at the top of a module; let it take "
                    "(worker, workers) to share the data out; or use_multiprocessing=False",
                )
            shared = SharedIterator(cast(Iterator[T], generator))
            self._jobs = lambda workers: [shared]
        elif callable(generator):
            base = self._seed if self._processes else None
            self._jobs = partial(_iterators, generator, base)
        else:
            raise ParamsError(
                "neither a generator nor a callable that makes one",
                found=type(generator).__name__,
                hint="pass iter(...) of it",
            )

    def _make_run(self, workers: int, depth: int) -> Workers:
        jobs = self._jobs(workers)
        return Workers(Ahead(depth, lanes=len(jobs)), jobs, _in_turn, self._processes)


def _iterators(make: Callable[..., Any], seed: int | None, workers: int) -> list[Job]:
    """A job for each worker, with an iterator of its own."""
    return [
        MadeIterator(make, number, workers, None if seed is None else seed + number)
        for number in range(workers)
    ]


def _in_turn(workers: Workers) -> Iterator[tuple[int, None]]:
    """A task for each lane in turn, until all have ended. A lane that ends meanwhile makes none."""
    while lanes := workers.ahead.alive:
        for lane in lanes:
            yield lane, None


class OrderedEnqueuer(_Enqueuer[T]):
    """Makes the batches of a :class:`Sequence` ahead: in order, whatever the number of workers.

    It serves epoch after epoch, without end. ``shuffle``: the batches of each epoch in a new random
    order, a function of (``random_seed``, epoch) alone. ``on_epoch_end()`` is called once an epoch,
    in this process, when its last batch has been made and before the next is begun; worker
    processes get the changed sequence then. In worker processes ``random`` and ``numpy.random`` are
    seeded for each batch from (``random_seed``, epoch, index), so augmentation does not depend on
    the workers either. ``wait_time`` is accepted and not needed. Raises ParamsError.
    """

    def __init__(
        self,
        sequence: Batches[T],
        use_multiprocessing: bool = False,
        shuffle: bool = False,
        *,
        wait_time: float | None = None,
        random_seed: int = 0,
    ) -> None:
        super().__init__()
        for name in ("__getitem__", "__len__"):
            if not hasattr(sequence, name):
                raise ParamsError(
                    f"a sequence needs {name}",
                    found=type(sequence).__name__,
                    hint="derive it from asyncreader.faces.Sequence",
                )
        self._sequence = sequence
        self._processes = bool(use_multiprocessing)
        self._shuffle = bool(shuffle)
        self._seed = whole(0)("random_seed", random_seed)

    def _make_run(self, workers: int, depth: int) -> Workers:
        if len(self._sequence) < 1:
            raise ParamsError("the sequence is empty", found=f"length {len(self._sequence)}")
        tasks = partial(_epochs, self._sequence, self._shuffle, self._seed)
        jobs = [partial(batch_of, self._sequence)] * workers
        return Workers(Ahead(depth), jobs, tasks, self._processes)


def _epochs(
    sequence: Any, shuffle: bool, seed: int, workers: Workers
) -> Iterator[tuple[int, tuple[int, int | None]]]:
    """(lane, (index, seed of the batch)) of all batches, epoch after epoch."""
    from ..sampling.samplers import Sequential, Shuffled
    from ..system.keyed_random import STREAM_POSTPROCESS, key_of

    hook = getattr(sequence, "on_epoch_end", None)
    if getattr(hook, "__func__", None) is Sequence.on_epoch_end:
        hook = None
    epoch = 0
    while count := len(sequence):
        order = (Shuffled if shuffle else Sequential)(count, seed)
        for index in order.records(epoch, np.arange(count, dtype=np.int64)).tolist():
            own = None  # threads share one state, which is the user's
            if workers.processes:
                own = key_of(seed, STREAM_POSTPROCESS, epoch, index)
            yield 0, (index, own)
        if hook is not None:
            # a batch of the old epoch must not see what the hook changes
            if not workers.ahead.wait_made():
                return
            hook()
            workers.renew(partial(batch_of, sequence))
        epoch += 1
    raise ParamsError("the sequence became empty", found=f"length 0 in epoch {epoch}")


def get_batch(
    num_workers: int,
    data_provide: Callable[..., object],
    batch_size: int = 32,
    *,
    max_queue_size: int = 64,
    random_seed: int | None = None,
    use_multiprocessing: bool = True,
    **arguments: object,
) -> Iterator[Samples]:
    """Batches of samples from ``num_workers`` processes (or threads), made ahead.

    ``data_provide(**arguments)`` returns one sample at each call, or an iterator of samples (a
    generator function). If it has two more arguments, it is given ``(worker, workers)`` and returns
    that worker's share; without them every worker runs all of it, which is right for random samples
    only: ``random_seed + worker`` is set in each process. Samples that are tuples come as a tuple
    of lists of ``batch_size``, others as a list; the last one of each worker may be shorter.

    It ends when all workers have ended (StopIteration in a function that returns single samples).
    An error in ``data_provide`` is raised here. The workers start with the first ``next()`` and end
    with the iterator. Raises ParamsError.
    """
    workers, size = whole(1)("num_workers", num_workers), whole(1)("batch_size", batch_size)
    depth = whole(1)("max_queue_size", max_queue_size)
    if not callable(data_provide):
        raise ParamsError(
            "data_provide cannot be called",
            found=type(data_provide).__name__,
            hint="pass the function, not what it returns",
        )
    missing = asked_for(data_provide, tuple(arguments))
    if missing not in (0, 2):
        raise ParamsError(
            "data_provide needs arguments that were not given",
            found=f"{missing} missing",
            hint="pass them to get_batch by name; two more are (worker, workers)",
        )
    make = partial(collect, data_provide, size, arguments)
    enqueuer = GeneratorEnqueuer(make, use_multiprocessing, random_seed=random_seed)
    return _batches(enqueuer, workers, depth)


def _batches(enqueuer: GeneratorEnqueuer[Samples], workers: int, depth: int) -> Iterator[Samples]:
    with enqueuer:
        enqueuer.start(workers, depth)
        yield from enqueuer.get()


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
