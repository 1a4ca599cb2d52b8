"""What every reader must do, whatever it serves: the same samples in threads, processes and ranks,
from any place on, copied, kept and pickled.

A feature brings a :class:`Served` for each of its kinds of sets, and gets every test.
"""

import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest

from asyncreader import AsyncReader


class Row(NamedTuple):
    """A row of a batch as it was served; what a batch does not have is None."""

    record: int
    place: Any
    data: tuple[Any, ...]
    label: Any
    episode: Any
    source: Any
    present: Any
    lengths: Any


#: The rows of batches; None for those that the mask leaves out.
Batches = list[list[Row | None]]


def at(value: Any, k: int) -> Any:
    """Row ``k`` of an array, of each array of a tuple, or of None; a copy."""
    if value is None or isinstance(value, tuple):
        return value and tuple(at(one, k) for one in value)
    return np.array(value[k])


def tupled(value: Any) -> Any:
    """A tuple, or None."""
    return (value,) if value is not None and not isinstance(value, tuple) else value


def row_of(batch: Any, k: int) -> Row:
    """Row ``k`` of a batch, copied."""
    data, present, lengths = map(tupled, (batch.data, batch.present, batch.lengths))
    values = batch.place, data, batch.labels, batch.episode, batch.source, present, lengths
    return Row(int(batch.indices[k]), *(at(value, k) for value in values))


def rows_of(batch: Any) -> list[Row | None]:
    """The rows of a batch, copied."""
    return [row_of(batch, k) if valid else None for k, valid in enumerate(batch.mask.tolist())]


def same(one: Any, other: Any, near: bool = False) -> bool:
    """Whether two values are equal, with shapes and dtypes; ``near``: but for rounding."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if one is None or other is None or isinstance(one, tuple) or isinstance(other, tuple):
        return one is other
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.allclose(one, other, 1e-5, 1e-6) if near else np.array_equal(one, other))


@dataclass(frozen=True)
class Served:
    """What a reader must serve: ``params`` open it, ``expected`` checks a batch, and an epoch has
    ``count`` samples (None: not known), which ``unit`` tells apart. ``sizes``: samples of a batch,
    ranks, and samples of a batch of each rank; even ones for mixup and cutmix."""

    params: dict[str, Any]
    expected: Callable[[Any], None]
    count: int | None
    sizes: tuple[int, int, int] = (4, 2, 3)
    unit: Callable[[Row], Any] = lambda row: (row.record, str(row.place))

    def read(
        self, epochs: int, state: dict[str, Any] | None = None, checked: bool = False, **more: Any
    ) -> list[Batches]:
        """The batches of some epochs, from a state on. ``checked``: all of them are checked, not
        only the last one of each epoch."""
        with AsyncReader(self.params, **more) as reader:
            return self.loops(reader, epochs, state, checked)

    def loops(
        self, reader: Any, epochs: int, state: dict[str, Any] | None, checked: bool = False
    ) -> list[Batches]:
        """The same of an open reader."""
        epoch = first = 0 if state is None else state["epoch"]
        served: list[Batches] = [[] for _ in range(epochs)]
        if state is not None:
            reader.load_state_dict(state)
        while epoch < first + epochs:
            for batch in reader:
                if checked or batch.step == len(reader) - 1:
                    self.expected(batch)
                epoch = batch.epoch
                if epoch < first + epochs:
                    served[epoch - first].append(rows_of(batch))
            epoch += 1
        return served

    @cached_property
    def order(self) -> list[list[Row]]:
        """The samples of two epochs, in their order, each as expected."""
        pairs = not self.params.keys().isdisjoint(("mixup", "cutmix"))
        epochs = self.read(2, checked=True, batch_size=2 if pairs else 1)
        return [[row for row in itertools.chain(*epoch) if row is not None] for epoch in epochs]

    def compare(self, served: Batches, order: list[Row], position: int, size: int) -> None:
        """Batches of ``size`` are those of the samples of an epoch, from a position on."""
        rule, wanted = self.params.get("last_batch", "drop"), order[position:]
        whole, rest = divmod(len(wanted), size)
        last = {"drop": 0, "short": rest}.get(rule, size) if rest else 0
        assert [len(batch) for batch in served] == [size] * whole + [last] * (last > 0)
        for k, row in enumerate(itertools.chain(*served)):
            if k < len(wanted):
                assert same(row, wanted[k]), f"row {k}: {row} for {wanted[k]}"
            else:  # the head of the next epoch, or nothing
                assert (row is None) == (rule == "pad")

    def ranks(self, epoch: list[Row], state: dict[str, Any] | None = None) -> None:
        """The batches of the ranks, joined, are those of the samples of an epoch."""
        _, world, size = self.sizes
        world = 1 if self.params.get("last_batch") == "short" else world
        parts = [
            self.read(1, state, batch_size=size, rank=rank, world_size=world)[0]
            for rank in range(world)
        ]
        joined = [list(itertools.chain(*step)) for step in zip(*parts, strict=True)]
        self.compare(joined, epoch, 0 if state is None else state["samples"], world * size)


class ReaderContract:
    """Tests of any reader. A subclass, or its module, has a fixture ``served``: a
    :class:`Served`."""

    def test_every_sample(self, served: Served) -> None:
        """In every order an epoch has the same samples, as many as there are, each as expected."""
        epochs = []
        for shuffle in (False, True, "block"):
            if "shuffle" in served.params:
                first, second = served.order
            else:
                first, second = replace(served, params=served.params | {"shuffle": shuffle}).order
            assert served.count in (None, len(first))
            assert len(first) == len(second)
            epochs.append(sorted(str(served.unit(row)) for row in first))
        assert epochs == epochs[:1] * len(epochs)

    def test_threads(self, served: Served) -> None:
        """Threads, batches in flight and the size of a batch change nothing."""
        size = served.sizes[0]
        epochs = served.read(2, batch_size=size, nthread=3, njob=2)
        for batches, order in zip(epochs, served.order, strict=True):
            served.compare(batches, order, 0, size)

    @pytest.mark.slow
    def test_processes(self, served: Served) -> None:
        """A worker process fills the same batches as a thread."""
        (batches,) = served.read(1, batch_size=served.sizes[0], workers="process")
        served.compare(batches, served.order[0], 0, served.sizes[0])

    def test_ranks(self, served: Served) -> None:
        """The batches of the ranks, joined, are those of one process."""
        served.ranks(served.order[0])

    def test_resume(self, served: Served) -> None:
        """A state taken after a batch goes on with the next one, in batches of this size or of
        others, on other ranks."""
        size, order = served.sizes[0], served.order
        with AsyncReader(served.params, batch_size=size) as reader:
            states: list[dict[str, Any]] = [reader.state_dict()]
            states += [reader.state_dict() for _ in reader]
        last = len(states) - 1
        with AsyncReader(served.params, batch_size=size) as reader:
            for step in sorted({*range(0, last, max(1, last // 4)), last}, reverse=True):
                state, ended = states[step], step == last
                assert (state["epoch"], state["samples"]) == ((1, 0) if ended else (0, step * size))
                (batches,) = served.loops(reader, 1, state)
                served.compare(batches, order[ended], state["samples"], size)
        served.ranks(order[last == 1], states[1])

    def test_copies(self, served: Served) -> None:
        """Batches that are copied, or kept, stay what they are; a pickled reader goes on where it
        was."""
        size, (order, _) = served.sizes[0], served.order
        with AsyncReader(served.params, batch_size=size, copy=True) as reader:
            served.compare([rows_of(batch) for batch in list(reader)], order, 0, size)
        with AsyncReader(served.params, batch_size=size, njob=2) as reader:
            batch = next(iter(reader)).keep()
            if len(reader) == 1:
                return
            with pickle.loads(pickle.dumps(reader)) as other:
                served.compare([rows_of(one) for one in other], order, size, size)
            served.compare([rows_of(one) for one in reader], order, size, size)
            served.compare([rows_of(batch)], order[:size], 0, size)
