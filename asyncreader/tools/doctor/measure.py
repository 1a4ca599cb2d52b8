"""What the trials of the doctor read: which records, and samples packed in another form; and what
the disk adds to their rates."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import SourceError
from ...sources import Source
from ...sources.extents import ExtentSource
from ...sources.hdf5.chunks import ChunkSource
from ...system.array_types import Int64
from ...system.memory import PAGE, cached_pages, map_file
from .advice import Candidate
from .facts import Facts, cached

#: Seconds that one batch of a slow set may take in a trial.
_BATCH_SECONDS: Final = 0.05


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


# -- samples in another form -----------------------------------------------------------------------


#: Bytes of a packed sample: several times the caches of today's processors.
_SAMPLE_BYTES: Final = 192 << 20

#: Pixels, decoded or not, beyond which caches help no more.
_ENOUGH: Final = 96 << 20


@dataclass(frozen=True)
class PackedSample:
    """A packed part of a set."""

    path: str
    bytes_each: float
    """Bytes of file to a sample."""
    count: int


@dataclass(frozen=True)
class Packer:
    """Packs parts of the set at ``path``, of ``count`` samples, ``chunk`` of them compressed
    together. ``records``: those to choose from, None for all; ``read``: how the set is read."""

    path: Any
    count: int
    chunk: int
    records: Int64 | None
    read: Mapping[str, Any]
    folder: str

    def pack(self, candidate: Candidate, seconds: float) -> PackedSample:
        """A few samples first, then as many as the ``seconds`` let expect, until the caches are
        exceeded. Raises what ``convert`` raises."""
        from converters import convert

        if not isinstance(self.path, str) or not os.path.lexists(self.path):
            raise SourceError(
                "doctor does not convert several files",
                hint="run doctor on one of them and convert each, or convert the images to one "
                "dataset",
            )
        options = dict(candidate.options or {})
        until = time.perf_counter() + seconds
        wanted = 16
        while True:
            target = os.path.join(self.folder, f"{candidate.name}-{wanted}.h5")
            chosen = spread(self.count, wanted, self.chunk, self.records)
            params = {**self.read, "subset": chosen}
            begun = time.perf_counter()
            report = convert(
                self.path, target, params=params, skip_bad=True, progress=False, **options
            )
            took = time.perf_counter() - begun
            each = report.bytes / max(1, report.count)
            most = min(self.count, int(_SAMPLE_BYTES / max(each, 1)))
            more = int(wanted * min(16.0, 0.7 * (until - time.perf_counter()) / took))
            if wanted >= most or more < 2 * wanted:
                break
            os.unlink(target)
            wanted = min(more, most)
        most = min(most, int(_ENOUGH / max(each, 1)))
        if options.get("encoding") == "raw" and report.count < most:
            # pixels that all lie in a core's cache would be copied too fast: the same again
            again = {"subset": np.arange(most, dtype=np.int64) % report.count}
            larger = os.path.join(self.folder, f"{candidate.name}.h5")
            report = convert(target, larger, params=again, progress=False)
            target = larger
        return PackedSample(target, each, report.count)
