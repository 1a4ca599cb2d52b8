"""How fast a set is served, by number of threads, and what no loader on this machine can beat:
copying memory, decoding, and reading the disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import ParamsError
from ..params.parse import given_params, parse_params
from ..params.reader import ReaderParams
from ..pipeline import build
from ..pixels.row_maker import RowMaker
from ..reader import AsyncReader
from ..sources import OpenSet, RowJob, SetIndex, Source, read_rows
from ..sources.urls import is_url
from ..stats import Meter
from ..system.array_types import Array, Int64
from ..system.files import DIRECT, read_into
from ..system.memory import aligned_empty
from .trials import Params, Rate, Trial, Trials, Turn, fields_of, rate_of, serve


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


class _Bench:
    """What the turns of all thread counts share: the parameters, and what the first one found."""

    def __init__(
        self, params: dict[str, Any], index: SetIndex | None, consumer_seconds: float
    ) -> None:
        self.params, self.index, self.consumer_seconds = params, index, consumer_seconds
        self.facts: dict[str, Any] = {}
        self.turns = 0

    def trial(self, params: Params, _: float) -> Trial:
        """The trial of a number of threads."""
        return _FreshTrial(self, params["nthread"])


class _FreshTrial(Trial):
    """A number of threads whose every turn is a new reader."""

    def __init__(self, bench: _Bench, nthread: int) -> None:
        self._bench, self._nthread = bench, nthread
        self._turns: list[Turn] = []
        self._spent: Counter[str] = Counter()
        self._done = 0

    def turn(self, seconds: float) -> None:
        bench = self._bench
        with _Reader(bench, self._nthread) as reader:
            # each turn another epoch: the samples of the turn before are in memory now
            reader.seek(epoch=bench.turns)
            _touch_slots(reader, seconds)
            self._turns.append(serve(reader, seconds, bench.consumer_seconds))
            stats = reader.stats()
            self._spent.update(stats.seconds)
            self._done += stats.samples
            self._rate = rate_of(reader, self._turns, self._spent, self._done)
            bench.turns += 1
            bench.facts = bench.facts or _facts(reader)

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


def _touch_slots(reader: AsyncReader, seconds: float) -> None:
    """Serve one batch more than njob, but not for longer: then every slot has its memory."""
    spent = 0.0
    for _ in range(reader.params.njob + 1):
        spent += serve(reader, 0).seconds
        if spent > seconds:
            break


def _facts(reader: AsyncReader) -> dict[str, Any]:
    return {
        "path": _named(reader.params.given_path),
        "count": reader.count,
        "data_shape": reader.data_shape,
        "dtype": ", ".join(dtype.name for _, dtype in fields_of(reader)),
    }


def _named(path: str | tuple[str, ...]) -> str:
    if isinstance(path, str):
        return path
    more = f" and {len(path) - 1} more" if len(path) > 1 else ""
    return f"{path[0]}{more}" if path else "arrays"


# -- ceilings: each is measured for a moment, in as many threads as a loader would use -------------


#: Threads that read at once: enough requests in flight for what disks do in parallel.
READERS: Final = 8

#: Pieces of reading in order.
IN_ORDER: Final = 4 << 20

#: A larger batch is copied as fast, byte by byte, as one of so many bytes.
_COPIED: Final = 16 << 20

#: What O_DIRECT asks of offsets, sizes and addresses (open(2): a multiple of the block size).
_BLOCK: Final = 4096


@dataclass(frozen=True)
class Decoding:
    """How fast stored samples become rows in bare threads."""

    decoded_per_second: float | None
    """Samples/s of decoding alone, in all threads; None where nothing is to be decoded."""
    filled_per_second: float
    """Samples/s with reading, resizing and converting."""


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

    def work(number: int, until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            np.copyto(targets[number][done % slots], sources[number])
            done += 1
        return done

    return sum(rate for _, rate in _together(work, threads, seconds)) * size / max(1, batch_bytes)


def decode_ceiling(
    source: Source, fill: RowMaker, records: Int64, threads: int, seconds: float, group: int = 4
) -> Decoding:
    """Bare threads fill rows with ``records`` in turn, ``group`` at a time (those of one chunk
    together: then each is decoded once); a bad sample counts as one.

    Raises what reading raises, but for SampleError.
    """
    meters = [Meter() for _ in range(threads)]

    def rows(at: Int64, begin: int, meter: Meter, out: Array) -> None:
        keys = np.arange(begin, begin + group, dtype=np.uint64)
        job = RowJob(records[at % records.size], np.arange(group, dtype=np.int64), keys)
        read_rows(source, job, fill, out, meter)

    def work(number: int, until: float) -> int:
        out = np.zeros(fill.allocate_shape(group), fill.dtype)
        done = 0
        while True:
            rows(done * threads + number * group + np.arange(group), done, meters[number], out)
            done += group
            if time.perf_counter() >= until:
                return done

    # untimed, of the last records: the kernels that decode are loaded, or compiled, by the first
    rows(np.arange(-group, 0), 0, Meter(), np.zeros(fill.allocate_shape(group), fill.dtype))
    rates = _together(work, threads, seconds)
    decoding = [
        done / meter.seconds["decode"]
        for (done, _), meter in zip(rates, meters, strict=True)
        if meter.seconds["decode"]
    ]
    return Decoding(sum(decoding) or None, sum(rate for _, rate in rates))


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

    def work(number: int, until: float) -> int:
        draw = np.random.default_rng(number)
        at = positions * number // READERS
        done = 0
        fd = os.open(path, os.O_RDONLY | DIRECT)
        try:
            with mmap.mmap(-1, piece) as buffer:
                while time.perf_counter() < until:
                    at = int(draw.integers(positions)) if random else at % positions
                    done += read_into(fd, buffer, at * _BLOCK)
                    at += piece // _BLOCK
        finally:
            os.close(fd)
        return done

    try:
        return sum(rate for _, rate in _together(work, READERS, seconds)) or None
    except OSError:
        return None


def _together(
    work: Callable[[int, float], int], threads: int, seconds: float
) -> list[tuple[int, float]]:
    """What each of ``threads`` did at the same time, and did per second. Raises what one raised."""
    found: list[Any] = [None] * threads
    ready = threading.Barrier(threads)

    def run(number: int) -> None:
        try:
            ready.wait()
            begun = time.perf_counter()
            done = work(number, begun + seconds)
            found[number] = (done, done / (time.perf_counter() - begun))
        except BaseException as exc:
            found[number] = exc

    group = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in group:
        thread.start()
    for thread in group:
        thread.join()
    for entry in found:
        if isinstance(entry, BaseException):
            raise entry
    return found
