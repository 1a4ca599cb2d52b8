"""Timed trials of the doctor: readers that take turns, on the set itself and on packed samples."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from ...errors import AsyncReaderError
from ...params import given_params
from ...reader import AsyncReader
from ...sources import Source
from ...sources.extents import ExtentSource
from ...sources.hdf5.chunks import ChunkSource
from ...system.array_types import Int64
from ...system.memory import PAGE, cached_pages, map_file
from ..bench import ROUNDS, Turn, batch_bytes, serve
from .facts import Facts, cached

Params: TypeAlias = Mapping[str, Any]

#: Seconds that one batch of a slow set may take in a trial.
_BATCH_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Rate:
    """What a trial reached."""

    samples_per_second: float
    wait_share: float
    """Part of the time that the consumer waited."""
    read_seconds: float
    """What a worker takes for one sample to read, copy and convert it."""
    decode_seconds: float
    """What a worker takes for one sample to decode its image or chunk."""
    batch_bytes: int
    batch_size: int
    nthread: int
    rates: tuple[float, ...]
    """Samples/s of each turn."""
    other_seconds: Mapping[str, float] = field(default_factory=dict)
    """What a worker takes for one sample in the other steps, by their names."""

    @property
    def seconds(self) -> dict[str, float]:
        """What a worker takes for one sample in each step, by its name."""
        return {"read": self.read_seconds, "decode": self.decode_seconds, **self.other_seconds}

    @property
    def decode_share(self) -> float:
        """Part of the workers' time that goes into decoding, 0 to 1."""
        return self.share(self.decode_seconds)

    def share(self, seconds: float) -> float:
        """Part of the workers' time that so many seconds for one sample are, 0 to 1."""
        work = sum(self.seconds.values())
        return seconds / work if work else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest turn, samples/s."""
        return min(self.rates), max(self.rates)

    def against(self, other: Rate) -> float:
        """How many times as fast as ``other``: the median over their common turns, so that what
        slowed the machine down for a while cancels out.
        """
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=False))


class Trial:
    """A reader that is kept open between its turns. Raises what AsyncReader raises."""

    def __init__(self, params: Params, warm_up: float = 0.0) -> None:
        self._reader = AsyncReader({"world_size": 1, **given_params(params, {})})
        self._warm_up = warm_up
        self._turns: list[Turn] = []

    def turn(self, seconds: float) -> None:
        """Serve for so many seconds, one batch at least, and end with nothing in flight."""
        if not self._turns:  # every slot's memory is touched once, and caches are filled
            serve(self._reader, self._warm_up, drain=True)
        self._turns.append(serve(self._reader, seconds, drain=True))

    def rate(self) -> Rate:
        """The medians of its turns so far."""
        reader, stats = self._reader, self._reader.stats()
        done = max(1, stats.samples)
        return Rate(
            samples_per_second=statistics.median(turn.samples_per_second for turn in self._turns),
            wait_share=statistics.median(turn.wait_share for turn in self._turns),
            read_seconds=stats.read_seconds / done,
            decode_seconds=stats.decode_seconds / done,
            batch_bytes=batch_bytes(reader),
            batch_size=reader.params.batch_size,
            nthread=stats.nthread,
            rates=tuple(turn.samples_per_second for turn in self._turns),
            other_seconds={
                name: spent / done
                for name, spent in stats.seconds.items()
                if spent and name not in ("read", "decode")
            },
        )

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class Trials:
    """Named trials that take turns, so that other load on the machine slows all of them alike."""

    def __init__(self) -> None:
        self._open: dict[str, Trial] = {}
        self.failures: dict[str, AsyncReaderError] = {}
        """What went wrong in trials that could not be run."""

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        for trial in self._open.values():
            trial.close()
        self._open = {}

    def add(self, name: str, params: Params, warm_up: float = 0.0) -> None:
        """Add a trial, which serves for ``warm_up`` seconds before its first turn.

        A reader that cannot be opened is noted in ``failures``.
        """
        try:
            self._open[name] = Trial(params, warm_up)
        except AsyncReaderError as exc:
            self.failures[name] = exc

    def run(self, seconds: float) -> dict[str, Rate]:
        """Run all of them, for ``seconds`` in total.

        Each trial continues where its last turn ended, so that no sample repeats within an epoch.
        """
        share = seconds / max(1, ROUNDS * len(self._open))
        for number in range(ROUNDS):
            names = list(self._open)
            for name in names if number % 2 == 0 else reversed(names):
                try:
                    self._open[name].turn(share)
                except AsyncReaderError as exc:
                    self.failures[name] = exc
                    self._open.pop(name).close()
        return {name: trial.rate() for name, trial in self._open.items()}


def batch_that_fits(batch_size: int, samples_per_second: float, group: int = 1) -> int:
    """A batch for trials of a set that serves so many: as asked for, unless that took seconds.
    Then a multiple of ``group``, the rows that a stage takes together."""
    fits = int(samples_per_second * _BATCH_SECONDS)
    return batch_size if fits >= batch_size else max(group, fits // group * group)


def bring_in(facts: Facts, seconds: float) -> tuple[float, int]:
    """Read the files of a set that fits in memory, for so long.

    Returns the part now in the page cache, and up to which byte the first file was read.
    """
    share, upto = facts.cached, 0
    if share >= 0.9:
        return share, os.path.getsize(facts.files[0])
    until = time.perf_counter() + seconds
    buffer = bytearray(8 << 20)
    for number, name in enumerate(facts.files):
        with open(name, "rb", buffering=0) as file:
            while time.perf_counter() < until:
                got = file.readinto(buffer)
                if not got:
                    break
                upto += got if number == 0 else 0
    return cached(facts.files), upto


def _offsets(source: Source, records: Int64) -> Int64 | None:
    """Where records, or the chunks that they are in, begin in the file; None where they are in no
    file, or in several."""
    if isinstance(source, ExtentSource | ChunkSource) and source.file is not None:
        return source.offsets(records)
    return None


def records_below(source: Source, upto: int, records: Int64 | None) -> Int64 | None:
    """Records that lie whole in the first ``upto`` bytes; None where that is not known."""
    every = np.arange(source.facts.count, dtype=np.int64) if records is None else records
    offsets = _offsets(source, every)
    if offsets is None or offsets.size < 2:
        return None
    ends = np.append(np.sort(offsets)[1:], upto + 1)
    limit = offsets[np.argsort(offsets)][ends <= upto]
    return every[offsets <= limit[-1]] if limit.size else None


def cold_records(source: Source, facts: Facts, seed: int) -> Int64 | None:
    """Records that are not in the page cache, in random order.

    None where that is not known or only a few are out of it.
    """
    if len(facts.files) != 1:
        return None
    offsets = _offsets(source, np.arange(source.facts.count, dtype=np.int64))
    if offsets is None:
        return None
    with open(facts.files[0], "rb") as file:
        in_memory = cached_pages(map_file(file.fileno(), os.path.getsize(facts.files[0])))
    if in_memory is None:
        return None
    cold = np.flatnonzero(in_memory[offsets // PAGE] == 0)
    if cold.size < source.facts.count // 4:
        return None
    return np.random.default_rng(seed).permutation(cold)


def share_out(records: Int64, in_order: Sequence[bool]) -> list[Int64]:
    """Some of ``records``, which are in random order, for each trial. A trial that reads in order
    gets a run of the file, the others get what is left, drawn from all of the file.
    """
    runs = np.array_split(np.sort(records), len(in_order))
    taken = [run for run, ordered in zip(runs, in_order, strict=True) if ordered]
    left = records[~np.isin(records, np.concatenate(taken))] if taken else records
    drawn = iter(np.array_split(left, max(1, in_order.count(False))))
    return [run if ordered else next(drawn) for run, ordered in zip(runs, in_order, strict=True)]


def expected_rate(warm: float, stored_bytes: float, hit: float, disk: float | None) -> float:
    """Samples/s of a set of which the part ``hit`` stays in memory, from its rate in memory and
    the disk's bytes/s: whichever is slower, since reading ahead overlaps with the rest.
    """
    if hit >= 1 or disk is None:
        return warm
    return min(warm, disk / (stored_bytes * (1 - hit)))


def hit_share(facts: Facts, in_order: bool, size: float | None = None) -> float:
    """Part of the reads that the page cache serves: of a set of ``size`` bytes, read at random or
    in order (then what was read longest ago is wanted next, and has just been dropped).
    """
    size = facts.size if size is None else size
    if size <= facts.memory:
        return 1.0
    return 0.0 if in_order else facts.memory / size


def spread(count: int, wanted: int, chunk: int, records: Int64 | None) -> Int64:
    """``wanted`` records for a packed sample: evenly spread, or where samples are compressed
    together whole chunks of them, evenly spread.
    """
    total = count if records is None else records.size
    wanted = max(1, min(wanted, total))
    runs = -(-wanted // chunk)
    starts = np.unique(np.linspace(0, max(0, total - chunk), runs).astype(np.int64))
    if chunk > 1:
        starts = np.unique(starts // chunk * chunk)
    chosen = (starts[:, None] + np.arange(chunk)).reshape(-1)
    chosen = chosen[chosen < total][:wanted]
    return chosen if records is None else records[chosen]


def repeated(count: int, batch_size: int) -> Sequence[int] | None:
    """A ``subset`` that serves a small set several times over, so that batches are whole ones."""
    times = -(-4 * batch_size // count)
    return None if times == 1 else np.tile(np.arange(count), times).tolist()
