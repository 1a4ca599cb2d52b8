"""The harness that measures: readers that take turns, and what each of them reached.

Trials take turns (1, 2, 3, then 3, 2, 1, ...), so that other load on the machine slows all of them
alike. The figures of each are medians over its turns.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from ..errors import AsyncReaderError
from ..params.parse import given_params
from ..pipeline.slots import arrays_of
from ..reader import AsyncReader

Params: TypeAlias = Mapping[str, Any]

#: Turns of each trial: with three, the median ignores one that was disturbed.
ROUNDS: Final = 3


@dataclass(frozen=True)
class Turn:
    """One turn of one trial."""

    samples: int
    bytes: int
    """The bytes of ``data``, as handed out."""
    seconds: float
    wait_seconds: float
    """How many of the seconds were spent in getNextBatch()."""

    @property
    def samples_per_second(self) -> float:
        """Rows handed out per second."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class Rate:
    """What a trial reached: medians over its turns."""

    nthread: int
    turns: tuple[Turn, ...]
    seconds: Mapping[str, float]
    """What a worker takes for one sample in each step, by its name, the longest first."""
    batch_size: int
    batch_bytes: int

    @property
    def rates(self) -> tuple[float, ...]:
        """Samples/s of each turn."""
        return tuple(turn.samples_per_second for turn in self.turns)

    @property
    def samples_per_second(self) -> float:
        """Samples/s of the turn in the middle."""
        return statistics.median(self.rates)

    @property
    def slowest(self) -> float:
        """Samples/s of the slowest turn."""
        return min(self.rates)

    @property
    def fastest(self) -> float:
        """Samples/s of the fastest turn."""
        return max(self.rates)

    @property
    def megabytes_per_second(self) -> float:
        """Millions of bytes of ``data`` handed out per second."""
        return statistics.median(turn.bytes / turn.seconds / 1e6 for turn in self.turns)

    @property
    def wait_share(self) -> float:
        """Part of the time that the consumer spent waiting, 0 to 1."""
        return statistics.median(turn.wait_seconds / turn.seconds for turn in self.turns)

    @property
    def steps(self) -> dict[str, float]:
        """The part of the workers' time in each step, by its name, the longest first."""
        work = sum(self.seconds.values())
        return {name: seconds / work for name, seconds in self.seconds.items() if seconds}

    def against(self, other: Rate) -> float:
        """How many times as fast as ``other``: the median over their common turns, so that what
        slowed the machine down for a while cancels out.
        """
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=False))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        worked_out = ("samples_per_second", "slowest", "fastest", "megabytes_per_second")
        names = (*worked_out, "wait_share", "steps")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}


def serve(
    reader: AsyncReader, seconds: float, consumer_seconds: float = 0.0, drain: bool = False
) -> Turn:
    """One turn: batches for ``seconds``, one at least.

    What is in flight before is kept so: the next turn goes on with it. With ``drain`` it is counted
    and waited for at the end: workers that went on would take the cores from the next reader.
    ``consumer_seconds``: what the consumer pretends to do with each batch; it sleeps, as one that
    waits for a GPU.
    """
    before, begun = reader.stats(), time.perf_counter()
    ahead, samples, size, more = before.queue_depth, 0, 0, True
    for _ in range(reader.params.njob - ahead):
        reader.fetchData()
        ahead += 1
    while more or (drain and ahead):
        batch = reader.getNextBatch()
        more = time.perf_counter() - begun < seconds
        if more or not drain:
            reader.fetchData()
        else:
            ahead -= 1
        samples += len(batch)
        size += sum(array.nbytes for array in arrays_of(batch.data))
        if consumer_seconds:
            time.sleep(consumer_seconds)
    took = time.perf_counter() - begun
    return Turn(samples, size, took, reader.stats().wait_seconds - before.wait_seconds)


def fields_of(reader: AsyncReader) -> tuple[tuple[tuple[int, ...], Any], ...]:
    """Shape and dtype of the data of a batch, of each field."""
    shapes: Any = reader.data_shape
    if isinstance(reader.dtype, tuple):
        return tuple(zip(shapes, reader.dtype, strict=True))
    return ((shapes, reader.dtype),)


def rate_of(
    reader: AsyncReader, turns: Sequence[Turn], spent: Mapping[str, float], done: int
) -> Rate:
    """What ``reader`` reached in its ``turns``. ``spent``: the workers' seconds in each step, for
    ``done`` samples."""
    longest = Counter(spent).most_common()
    return Rate(
        nthread=reader.stats().nthread,
        turns=tuple(turns),
        seconds={name: seconds / max(1, done) for name, seconds in longest},
        batch_size=reader.params.batch_size,
        batch_bytes=sum(math.prod(shape) * kind.itemsize for shape, kind in fields_of(reader)),
    )


class Trial:
    """A reader that is kept open between its turns. Raises what AsyncReader raises."""

    def __init__(self, params: Params, warm_up: float = 0.0) -> None:
        self._reader = AsyncReader({"world_size": 1, **given_params(params, {})})
        self._warm_up = warm_up
        self._turns: list[Turn] = []

    def turn(self, seconds: float) -> None:
        """Serve for so many seconds, one batch at least, and end with nothing in flight.

        Each turn continues where the last one ended, so that no sample repeats within an epoch.
        """
        if not self._turns:  # every slot's memory is touched once, and caches are filled
            serve(self._reader, self._warm_up, drain=True)
        self._turns.append(serve(self._reader, seconds, drain=True))

    def rate(self) -> Rate:
        """The medians of its turns so far."""
        stats = self._reader.stats()
        return rate_of(self._reader, self._turns, stats.seconds, stats.samples)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class Trials:
    """Named trials that take turns. ``trial`` makes one of the parameters of a reader and the
    seconds of its warm-up."""

    def __init__(self, trial: Callable[[Params, float], Trial] = Trial) -> None:
        self._trial = trial
        self._open: dict[str, Trial] = {}
        self._needed: set[str] = set()
        self.failures: dict[str, AsyncReaderError] = {}
        """What went wrong in trials that could not be run."""

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        for trial in self._open.values():
            trial.close()
        self._open = {}

    def add(self, name: str, params: Params, warm_up: float = 0.0, needed: bool = False) -> None:
        """Add a trial, which serves for ``warm_up`` seconds before its first turn.

        What a reader raises is noted in ``failures``, then or in a turn; of one that is ``needed``
        it is raised.
        """
        if needed:
            self._needed.add(name)
        try:
            self._open[name] = self._trial(params, warm_up)
        except AsyncReaderError as exc:
            self._note(name, exc)

    def run(
        self, seconds: float, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Rate]:
        """Run all of them, for ``seconds`` in total. ``progress(done, total)`` counts turns."""
        total, done = ROUNDS * len(self._open), 0
        for number in range(ROUNDS):
            names = list(self._open)
            for name in names if number % 2 == 0 else reversed(names):
                try:
                    self._open[name].turn(seconds / total)
                except AsyncReaderError as exc:
                    self._note(name, exc)
                    self._open.pop(name).close()
                done += 1
                if progress is not None:
                    progress(done, total)
        return {name: trial.rate() for name, trial in self._open.items()}

    def _note(self, name: str, failure: AsyncReaderError) -> None:
        if name in self._needed:
            raise failure
        self.failures[name] = failure
