"""Generators, sequences and sample functions for the faces' tests, importable by spawned workers.

Light on purpose: every worker process imports this module.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from asyncreader.faces import Sequence


class Odd(Exception):
    """A user's own exception."""


class OneWay(Exception):
    """An exception whose pickle only goes one way."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)


# -- makers of generators ------------------------------------------------------------------------


def count_to(stop: int) -> Iterator[int]:
    yield from range(stop)


def share_of(stop: int, worker: int, workers: int) -> Iterator[int]:
    yield from range(worker, stop, workers)


def uneven(worker: int, workers: int) -> Iterator[str]:
    """Worker i has 3 i items."""
    yield from (f"{worker}:{i}" for i in range(3 * worker))


def with_nones(stop: int) -> Iterator[int | None]:
    for i in range(stop):
        yield None
        yield i


def draws() -> Iterator[tuple[float, float]]:
    """What the global generators give."""
    while True:
        yield random.random(), float(np.random.random())


def pids(worker: int, workers: int) -> Iterator[int]:
    while True:
        yield os.getpid()


def raises_after(good: int) -> Iterator[int]:
    yield from range(good)
    raise Odd(f"after {good}")


def raises_at_once() -> Iterator[int]:
    raise Odd("at once")


def raises_one_way() -> Iterator[int]:
    yield 0
    raise OneWay("only", "out")


def raises_local() -> Iterator[int]:
    class Local(Exception):
        pass

    yield 0
    raise Local("nobody else knows me")


def dies_after(good: int) -> Iterator[int]:
    yield from range(good)
    os.kill(os.getpid(), signal.SIGKILL)


def stays_for_ever() -> Iterator[int]:
    yield 0
    threading.Event().wait()


def arrays(stop: int) -> Iterator[np.ndarray]:
    for i in range(stop):
        yield np.full((4, 3), i, np.float32)


def unpicklable_items() -> Iterator[Any]:
    yield 0
    yield threading.Lock()


# -- sequences -----------------------------------------------------------------------------------


class Numbers(Sequence):
    """Batch i is the number i + 100 x epoch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)  # on_epoch_end must wait for it
        return index + 100 * self.epoch

    def on_epoch_end(self) -> None:
        self.epoch += 1


class Plain:
    """A sequence that derives from nothing and has no hook."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index * index


class Noise(Sequence):
    """Batch i is what the global generators give for it."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, random.random(), float(np.random.random())


class Faulty(Numbers):
    """Batch 3 cannot be made."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise Odd("batch 3")
        return index

    def on_epoch_end(self) -> None:
        pass


class PyxisBatches(Sequence):
    """Batches of 4 samples of an ml-pyxis file; the reader is brought over to the workers."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return -(-len(self.reader) // 4)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        start = index * 4
        return self.reader.get_samples(start, min(4, len(self.reader) - start))


# -- samples for get_batch -----------------------------------------------------------------------


def sample_pairs(stop: int) -> Iterator[tuple[int, str]]:
    for i in range(stop):
        yield i, str(i)


def shared_pairs(worker: int, workers: int, stop: int) -> Iterator[tuple[int, str]]:
    for i in range(worker, stop, workers):
        yield i, str(i)


def random_sample() -> float:
    """One sample a call."""
    return float(np.random.random())


def failing_sample() -> float:
    raise Odd("no sample")


class FiveSamples:
    """One sample a call, five of them."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self) -> int:
        if self.given == 5:
            raise StopIteration
        self.given += 1
        return self.given
