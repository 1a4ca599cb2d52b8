"""ml-pyxis' batch iterators: in order, shuffled, or drawn with replacement."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Self, TypeAlias

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Int64
from .jobs import whole
from .pyxis_reader import Array, Reader

#: One array, or one for each key.
Arrays: TypeAlias = Array | tuple[Array, ...]

#: What draws: ``numpy.random`` itself, or a generator of it.
Random: TypeAlias = np.random.Generator | np.random.RandomState | ModuleType


class DataIterator:
    """Base of the iterators: derive from one of them to change what it gives.

    ``keys``: a name, or several; batches are an array, or a tuple of arrays in that order, new ones
    each time; threads may share an iterator. ``gen``: the batches as they are stored; ``lock``:
    take it around ``next(gen)``. Override ``__next__`` (or ``next``) for batches of your own.
    ``rng``: ``numpy.random``, a RandomState or a Generator.
    """

    #: True while the last batch of a pass is out.
    end_of_dataset = False

    def __init__(self, db: Reader, keys: str | Sequence[str], rng: Random = np.random) -> None:
        self.db = db
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        self.rng = rng
        self.lock = threading.RLock()
        indices = db.indices
        if indices.size == 0:
            raise ParamsError("the dataset has no samples", found=db.dirpath)
        self.spec = db.get_data_specification(int(indices[0]))
        for key in self.keys:
            if key not in self.spec:
                raise KeyError(f"Key does not exist: {key}")
        self.gen: Iterator[Arrays] = iter(())

    def __iter__(self) -> Self:
        return self

    def next(self) -> Arrays:
        """The next batch; StopIteration after the last one of a single pass."""
        with self.lock:
            return next(self.gen)

    def __next__(self) -> Arrays:
        return self.next()

    def _batch(self, indices: Int64) -> Arrays:
        arrays = self.db.stacked(indices.tolist(), self.keys)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)


@dataclass
class _Pass:
    """The sample numbers in the order of this pass, and how many of them are left of it."""

    order: Int64
    left: int = 0
    begun: bool = False


class SimpleBatch(DataIterator):
    """Each sample once a pass; ``shuffle``: in another order every pass.

    ``batch_size`` samples a batch, the last one of a pass may be shorter (``end_of_dataset`` is
    True with it). ``endless``: pass after pass; else StopIteration after one. Raises KeyError or
    ParamsError.
    """

    def __init__(
        self,
        db: Reader,
        keys: str | Sequence[str],
        batch_size: int,
        shuffle: bool = False,
        endless: bool = True,
        rng: Random = np.random,
    ) -> None:
        super().__init__(db, keys, rng)
        self.batch_size = whole("batch_size", batch_size)
        self.shuffle = shuffle
        self.endless = endless
        self.gen = self.batch()

    def batch(self) -> Iterator[Arrays]:
        """The batches as they are stored. After an error the next one comes."""
        # no generator: Ctrl-C and errors would end it
        return map(self._next_of, itertools.repeat(_Pass(self.db.indices)))

    def _next_of(self, now: _Pass) -> Arrays:
        if now.left == 0:
            if now.begun and not self.endless:
                raise StopIteration
            if self.shuffle:
                self.rng.shuffle(now.order)
            now.left, now.begun = now.order.size, True
        left = max(0, now.left - self.batch_size)
        try:
            part = self._batch(now.order[now.order.size - now.left :][: self.batch_size])
        except Exception:
            now.left = left
            raise
        self.end_of_dataset = left == 0
        now.left = left
        return part


class SequentialBatch(SimpleBatch):
    """The samples in the order in which they were written; see SimpleBatch."""

    def __init__(
        self, db: Reader, keys: str | Sequence[str], batch_size: int, endless: bool = True
    ) -> None:
        super().__init__(db, keys, batch_size, shuffle=False, endless=endless)


class StochasticBatch(DataIterator):
    """``batch_size`` samples drawn uniformly, with replacement; endless."""

    def __init__(
        self, db: Reader, keys: str | Sequence[str], batch_size: int, rng: Random = np.random
    ) -> None:
        super().__init__(db, keys, rng)
        self.batch_size = whole("batch_size", batch_size)
        self.gen = self.batch()

    def batch(self) -> Iterator[Arrays]:
        """The batches as they are stored."""
        # no generator: Ctrl-C and errors would end it
        return map(self._drawn_from, itertools.repeat(self.db.indices))

    def _drawn_from(self, indices: Int64) -> Arrays:
        draw = self.rng.integers if hasattr(self.rng, "integers") else self.rng.randint
        drawn = draw(indices.size, size=self.batch_size, dtype=np.uint64)
        return self._batch(indices[drawn.astype(np.int64)])


#: Every iterator can be shared by threads.
SimpleBatchThreadSafe = SimpleBatch
SequentialBatchThreadSafe = SequentialBatch
StochasticBatchThreadSafe = StochasticBatch
