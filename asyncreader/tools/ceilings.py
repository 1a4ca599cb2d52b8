"""What no loader on this machine can beat: copying memory, decoding, and reading the disk.

Each is measured for a fraction of a second in as many threads as the loader would use.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..pixels.transform import RowTransform
from ..sources import RowJob, Source, read_rows
from ..stats import Meter
from ..system.array_types import Array, Int64
from ..system.files import BYTES, DIRECT, read_into
from ..system.memory import aligned_empty

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
    source: Source, fill: RowTransform, records: Int64, threads: int, seconds: float, group: int = 4
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
        fd = os.open(path, os.O_RDONLY | DIRECT | BYTES)
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
