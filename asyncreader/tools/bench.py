"""How fast a set is served: samples per second by number of threads, measured in turns.

Thread counts take turns (1, 2, 4, then 4, 2, 1, ...), so that other load on the machine slows all
of them alike. The figures of each are medians over its turns.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ParamsError
from ..params import ReaderParams, given_params, parse_params
from ..pipeline import build
from ..pipeline.slots import arrays_of
from ..reader import AsyncReader
from ..sources import OpenSet, SetIndex
from ..sources.urls import is_url

#: Turns of each thread count: with three, the median ignores one that was disturbed.
ROUNDS = 3


@dataclass(frozen=True)
class Turn:
    """One turn of one thread count."""

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

    @property
    def wait_share(self) -> float:
        """Part of the time spent in getNextBatch(), 0 to 1."""
        return self.wait_seconds / self.seconds


@dataclass(frozen=True)
class BenchRow:
    """What one thread count reached: medians over its turns."""

    nthread: int
    samples_per_second: float
    slowest: float
    """Samples per second of its slowest turn."""
    fastest: float
    """Samples per second of its fastest turn."""
    megabytes_per_second: float
    """Millions of bytes of ``data`` handed out per second."""
    wait_share: float
    """Part of the time that the consumer spent waiting, 0 to 1."""
    turns: tuple[Turn, ...]
    steps: Mapping[str, float] = field(default_factory=dict)
    """What the workers do: the part of their time in each step, by its name, the longest first."""


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
    """What the consumer pretends to do with each batch; it sleeps, as one waiting for a GPU."""
    rows: tuple[BenchRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


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

    Each is measured for ``seconds`` in all, in ROUNDS turns of at least one batch, each after a
    warm-up in which every slot is filled once. Each turn is a new reader, so with
    ``verify="first"`` it checks checksums as a first epoch does; ``index``: of the set, which the
    first reader finds otherwise, see :func:`index_again`. ``last_batch`` is "wrap" unless given, so
    that small sets do too. ``progress(done, total)`` counts turns. Raises what AsyncReader raises.
    """
    if not nthreads or not seconds > 0 or not consumer_seconds >= 0:
        raise ParamsError("nothing to measure", found=f"nthreads {nthreads}, {seconds} s")
    params = {"last_batch": "wrap", "world_size": 1, **given_params(params, {})}
    chosen = tuple(dict.fromkeys(nthreads))
    turns: dict[int, list[Turn]] = {nthread: [] for nthread in chosen}
    spent: dict[int, Counter[str]] = {nthread: Counter() for nthread in chosen}
    facts: dict[str, Any] = {}
    for number in range(ROUNDS):
        for nthread in chosen if number % 2 == 0 else reversed(chosen):
            with _Reader(index, params, nthread) as reader:
                # each turn another epoch: the samples of the turn before are in memory now
                reader.seek(epoch=sum(map(len, turns.values())))
                _touch_slots(reader, seconds / ROUNDS)
                turns[nthread].append(serve(reader, seconds / ROUNDS, consumer_seconds))
                spent[nthread].update(reader.stats().seconds)
                facts, index = facts or _facts(reader), reader.index
            if progress is not None:
                progress(sum(map(len, turns.values())), ROUNDS * len(chosen))
    return BenchReport(
        **facts,
        params=params,
        seconds=seconds,
        consumer_seconds=consumer_seconds,
        rows=tuple(_row(nthread, found, spent[nthread]) for nthread, found in turns.items()),
    )


def open_set(params: Mapping[str, Any]) -> contextlib.closing[OpenSet]:
    """The set that a reader of ``params`` opens. Raises what that raises."""
    return contextlib.closing(build.open_set(build.rooted(parse_params(params, {}))))


def index_again(source: OpenSet) -> SetIndex | None:
    """The index of a set, if readers may open it when ``source`` is closed: not of remote files,
    whose connections it names, nor of a mix, which is more than its fields."""
    again = type(source) is OpenSet and not is_url(source.facts.path)
    return source.index if again else None


class _Reader(AsyncReader):
    """A reader that opens a set by its ``index``, if there is one: it opens the files and parses
    nothing. Otherwise it finds the index for the next reader."""

    def __init__(self, index: SetIndex | None, params: Mapping[str, Any], nthread: int) -> None:
        self.index = index
        super().__init__(params, nthread=nthread)

    def _open_set(self, p: ReaderParams) -> OpenSet:
        if self.index is not None:
            return self.index.open()
        source = super()._open_set(p)
        self.index = index_again(source)
        return source


def serve(
    reader: AsyncReader, seconds: float, consumer_seconds: float = 0.0, drain: bool = False
) -> Turn:
    """One turn: batches for ``seconds``, one at least.

    What is in flight before is kept so: the next turn goes on with it. With ``drain`` it is counted
    and waited for at the end: workers that went on would take the cores from the next reader.
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


def _touch_slots(reader: AsyncReader, seconds: float) -> None:
    """Serve one batch more than njob, but not for longer: then every slot has its memory."""
    until = time.perf_counter() + seconds
    for _ in range(reader.params.njob + 1):
        serve(reader, 0)
        if time.perf_counter() > until:
            break


def _fields(reader: AsyncReader) -> tuple[tuple[tuple[int, ...], Any], ...]:
    """Shape and dtype of the data of a batch, of each field."""
    shapes: Any = reader.data_shape
    if isinstance(reader.dtype, tuple):
        return tuple(zip(shapes, reader.dtype, strict=True))
    return ((shapes, reader.dtype),)


def batch_bytes(reader: AsyncReader) -> int:
    """Bytes of the data of a batch, of all its fields."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in _fields(reader))


def _facts(reader: AsyncReader) -> dict[str, Any]:
    p = reader.params
    return {
        "path": _named(p.given_path),
        "count": reader.count,
        "data_shape": reader.data_shape,
        "dtype": ", ".join(dtype.name for _, dtype in _fields(reader)),
        "batch_bytes": batch_bytes(reader),
    }


def _named(path: str | tuple[str, ...]) -> str:
    if isinstance(path, str):
        return path
    more = f" and {len(path) - 1} more" if len(path) > 1 else ""
    return f"{path[0]}{more}" if path else "arrays"


def _row(nthread: int, turns: Sequence[Turn], spent: Counter[str]) -> BenchRow:
    rates = [turn.samples_per_second for turn in turns]
    work = sum(spent.values())
    return BenchRow(
        nthread=nthread,
        samples_per_second=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        megabytes_per_second=statistics.median(turn.bytes / turn.seconds / 1e6 for turn in turns),
        wait_share=statistics.median(turn.wait_share for turn in turns),
        turns=tuple(turns),
        steps={name: part / work for name, part in spent.most_common() if part},
    )
