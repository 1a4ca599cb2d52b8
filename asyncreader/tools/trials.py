"""The harness that measures: readers that take turns, what each of them reached, and the ceilings
that no loader on this machine can beat.

Trials take turns (1, 2, 3, then 3, 2, 1, ...), so that other load on the machine slows all of them
alike. The figures of each are medians over its turns.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from ..errors import AsyncReaderError, ParamsError
from ..params.parse import given_params, parse_params
from ..params.reader import ReaderParams
from ..pipeline import build
from ..pipeline.slots import arrays_of
from ..pixels.row_maker import RowMaker
from ..reader import AsyncReader
from ..sources import OpenSet, RowJob, SetIndex, Source, read_rows
from ..sources.sniff import is_url
from ..stats import Meter, ReaderStats
from ..system.array_types import Array, Int64
from ..system.files import DIRECT, read_into
from ..system.memory import aligned_empty
from ..system.signals import in_threads

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
        return tuple(turn.samples / turn.seconds for turn in self.turns)

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


def rate_of(reader: AsyncReader, turns: Sequence[Turn], stats: Sequence[ReaderStats]) -> Rate:
    """What ``reader`` and those like it reached in ``turns``, by their ``stats``."""
    spent, done = Counter[str](), sum(one.samples for one in stats)
    for one in stats:
        spent.update(one.seconds)
    return Rate(
        nthread=stats[-1].nthread,
        turns=tuple(turns),
        seconds={name: seconds / max(1, done) for name, seconds in spent.most_common()},
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
        return rate_of(self._reader, self._turns, [self._reader.stats()])

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class Trials(contextlib.ExitStack):
    """Named trials that take turns. ``trial`` makes one of the parameters of a reader and the
    seconds of its warm-up."""

    def __init__(self, trial: Callable[[Params, float], Trial] = Trial) -> None:
        super().__init__()
        self._trial = trial
        self._open: dict[str, Trial] = {}
        self._needed: set[str] = set()
        self.failures: dict[str, AsyncReaderError] = {}
        """What went wrong in trials that could not be run."""

    def add(self, name: str, params: Params, warm_up: float = 0.0, needed: bool = False) -> None:
        """Add a trial, which serves for ``warm_up`` seconds before its first turn.

        What a reader raises is noted in ``failures``, then or in a turn; of one that is ``needed``
        it is raised.
        """
        if needed:
            self._needed.add(name)
        try:
            self._open[name] = self._trial(params, warm_up)
            self.callback(self._open[name].close)
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


# -- bench -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchReport:
    """What :func:`run_bench` measured, and of what."""

    path: str
    count: int
    data_shape: Any
    """The shape of a batch as handed out."""
    dtype: str
    batch_bytes: int
    """Bytes of ``data`` of a batch."""
    params: Mapping[str, Any]
    """The parameters of the reader, but for nthread."""
    seconds: float
    """Measured for each thread count, over all its turns."""
    consumer_seconds: float
    """What the consumer pretends to do with each batch."""
    rows: tuple[Rate, ...]
    """What each thread count reached."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "rows": [row.to_dict() for row in self.rows]}


def run_bench(
    params: Mapping[str, Any],
    *,
    nthreads: Sequence[int],
    seconds: float = 2.0,
    consumer_seconds: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    index: SetIndex | None = None,
) -> BenchReport:
    """Measure ``params`` (as for AsyncReader) with each number of threads in ``nthreads``.

    Each is measured for ``seconds`` in all, in turns of at least one batch, each after a warm-up in
    which every slot is filled once. Each turn is a new reader, so with ``verify="first"`` it checks
    checksums as a first epoch does; ``index``: of the set, which the first reader finds otherwise,
    see :func:`reusable_index`. ``last_batch`` is "wrap" unless given, so that small sets do too.
    ``progress(done, total)`` counts turns. Raises what AsyncReader raises.
    """
    if not nthreads or not seconds > 0 or not consumer_seconds >= 0:
        raise ParamsError("nothing to measure", found=f"nthreads {nthreads}, {seconds} s")
    params = {"last_batch": "wrap", "world_size": 1, **given_params(params, {})}
    bench = _Bench(params, index, consumer_seconds)
    with Trials(bench.trial) as trials:
        for nthread in dict.fromkeys(nthreads):
            trials.add(str(nthread), {"nthread": nthread}, needed=True)
        rows = tuple(trials.run(seconds * len(set(nthreads)), progress).values())
    return BenchReport(
        **bench.facts,
        batch_bytes=rows[0].batch_bytes,
        params=params,
        seconds=seconds,
        consumer_seconds=consumer_seconds,
        rows=rows,
    )


def open_set(params: Mapping[str, Any]) -> contextlib.closing[OpenSet]:
    """The set that a reader of ``params`` opens. Raises what that raises."""
    return contextlib.closing(build.open_set(build.rooted(parse_params(params, {}))))


def reusable_index(source: OpenSet) -> SetIndex | None:
    """An index that later readers can open; None for remote files and mixes."""
    again = type(source) is OpenSet and not is_url(source.facts.path)
    return source.index if again else None


@dataclass
class _Bench:
    """What the turns of all thread counts share: the parameters, and what the first one found."""

    params: dict[str, Any]
    index: SetIndex | None
    consumer_seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    turns: int = 0

    def trial(self, params: Params, _: float) -> Trial:
        """The trial of a number of threads."""
        return _FreshTrial(self, params["nthread"])


class _FreshTrial(Trial):
    """A number of threads whose every turn is a new reader."""

    def __init__(self, bench: _Bench, nthread: int) -> None:
        self._bench, self._nthread = bench, nthread
        self._turns: list[Turn] = []
        self._stats: list[ReaderStats] = []

    def turn(self, seconds: float) -> None:
        bench = self._bench
        with _Reader(bench, self._nthread) as reader:
            # each turn another epoch: the samples of the turn before are in memory now
            reader.seek(epoch=bench.turns)
            until = time.perf_counter() + seconds
            for _ in range(reader.params.njob + 1):  # then every slot has its memory
                serve(reader, 0)
                if time.perf_counter() > until:
                    break
            self._turns.append(serve(reader, seconds, bench.consumer_seconds))
            self._stats.append(reader.stats())
            self._rate = rate_of(reader, self._turns, self._stats)
            bench.turns += 1
            bench.facts = bench.facts or {
                "path": _named(reader.params.given_path),
                "count": reader.count,
                "data_shape": reader.data_shape,
                "dtype": ", ".join(dtype.name for _, dtype in fields_of(reader)),
            }

    def rate(self) -> Rate:
        return self._rate

    def close(self) -> None:
        """Nothing is open between turns."""


class _Reader(AsyncReader):
    """A reader that opens a set by its index, if there is one: it opens the files and parses
    nothing. Otherwise it finds the index for the next reader."""

    def __init__(self, bench: _Bench, nthread: int) -> None:
        self._bench = bench
        super().__init__(bench.params, nthread=nthread)

    def _open_set(self, p: ReaderParams) -> OpenSet:
        if self._bench.index is not None:
            return self._bench.index.open()
        source = super()._open_set(p)
        self._bench.index = reusable_index(source)
        return source


def _named(path: str | tuple[str, ...]) -> str:
    if isinstance(path, str):
        return path
    more = f" and {len(path) - 1} more" if len(path) > 1 else ""
    return f"{path[0]}{more}" if path else "arrays"


# -- ceilings: each is measured for a moment, in as many threads as a loader would use -------------


#: Steps of work without end: what was done in each.
Steps: TypeAlias = Generator[int, None, None]

#: Threads that read at once: enough requests in flight for what disks do in parallel.
READERS: Final = 8

#: Pieces of reading in order.
IN_ORDER: Final = 4 << 20

#: A larger batch is copied as fast, byte by byte, as one of so many bytes.
_COPIED: Final = 16 << 20

#: What O_DIRECT asks of offsets, sizes and addresses (open(2): a multiple of the block size).
_BLOCK: Final = 4096


def copy_ceiling(batch_bytes: int, threads: int, seconds: float) -> float:
    """Batches per second that ``threads`` can copy from memory that stays in their caches to
    five batches in turn.
    """
    slots = 5
    size = max(1, min(batch_bytes, _COPIED))
    sources = [aligned_empty((size,), np.uint8) for _ in range(threads)]
    targets = [[aligned_empty((size,), np.uint8) for _ in range(slots)] for _ in range(threads)]
    for target in (array for mine in targets for array in mine):
        target.fill(1)  # the system has given the memory before the clock starts

    def work(number: int) -> Steps:
        for target in itertools.cycle(targets[number]):
            np.copyto(target, sources[number])
            yield 1

    return sum(rate for _, rate in _together(work, threads, seconds)) * size / max(1, batch_bytes)


def decode_ceiling(
    source: Source, fill: RowMaker, records: Int64, threads: int, seconds: float, group: int = 4
) -> tuple[float | None, float]:
    """How fast bare threads fill rows with ``records`` in turn, ``group`` at a time (those of one
    chunk together: then each is decoded once); a bad sample counts as one.

    Returns samples/s of decoding alone (None where nothing is to be decoded), and samples/s with
    reading, resizing and converting. Raises what reading raises, but for SampleError.
    """
    meters = [Meter() for _ in range(threads)]

    def rows(at: Int64, begin: int, meter: Meter, out: Array) -> None:
        keys = np.arange(begin, begin + group, dtype=np.uint64)
        job = RowJob(records[at % records.size], np.arange(group, dtype=np.int64), keys)
        read_rows(source, job, fill, out, meter)

    def work(number: int) -> Steps:
        out = np.zeros(fill.allocate_shape(group), fill.dtype)
        for done in itertools.count(0, group):
            rows(done * threads + number * group + np.arange(group), done, meters[number], out)
            yield group

    # untimed, of the last records: the kernels that decode are loaded, or compiled, by the first
    rows(np.arange(-group, 0), 0, Meter(), np.zeros(fill.allocate_shape(group), fill.dtype))
    rates = _together(work, threads, seconds)
    decoding = [
        done / meter.seconds["decode"]
        for (done, _), meter in zip(rates, meters, strict=True)
        if meter.seconds["decode"]
    ]
    return sum(decoding) or None, sum(rate for _, rate in rates)


def read_ceiling(path: str, piece: int, seconds: float, random: bool = True) -> float | None:
    """Bytes per second that the disk gives, past the page cache (O_DIRECT), None where that cannot
    be had (tmpfs, some network file systems) or the file is too small.

    ``piece``: bytes asked for at once, at ``random`` offsets or one after the other.
    """
    size = os.path.getsize(path)
    piece = min(-(-piece // _BLOCK) * _BLOCK, size // _BLOCK * _BLOCK)
    if piece < _BLOCK or not DIRECT:
        return None
    positions = size // _BLOCK - piece // _BLOCK + 1

    def work(number: int) -> Steps:
        draw = np.random.default_rng(number)
        at = positions * number // READERS
        fd = os.open(path, os.O_RDONLY | DIRECT)
        try:
            with mmap.mmap(-1, piece) as buffer:
                while True:
                    at = int(draw.integers(positions)) if random else at % positions
                    yield read_into(fd, buffer, at * _BLOCK)
                    at += piece // _BLOCK
        finally:
            os.close(fd)

    try:
        return sum(rate for _, rate in _together(work, READERS, seconds)) or None
    except OSError:
        return None


def _together(
    work: Callable[[int], Steps], threads: int, seconds: float
) -> list[tuple[int, float]]:
    """What each of ``threads`` did at the same time, and did per second. Raises what one raised."""
    ready = threading.Barrier(threads)

    def run(number: int) -> tuple[int, float]:
        ready.wait()
        done, begun = 0, time.perf_counter()
        with contextlib.closing(work(number)) as steps:
            for step in steps:
                done += step
                if (took := time.perf_counter() - begun) >= seconds:
                    break
        return done, done / took

    together = in_threads(threads, "trial", lambda number, _: run(number), range(threads))
    return [found for _, found in together]
