"""What cannot be had on one machine, simulated: 10^12 samples, 10^6 shards, 10,000 ranks.

``python tests/benchmarks/scale.py`` needs no files and takes about two minutes. It prints
``batch``: time per batch of order and bookkeeping; ``ranks``: whether the batches of 1 to 10,000
ranks are disjoint, complete and equal in number; ``window``: shards that a window reads, and how
far it mixes.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from asyncreader.formats.manifest import Common, Manifest, Shard
from asyncreader.sampling import Shuffle, sampler_of
from asyncreader.sampling.samplers import Sampler, Storage
from asyncreader.sampling.schedule import Cursor, Schedule
from asyncreader.sources import OpenSet, Request
from asyncreader.sources.sets.shards import sharded as sharded_set

SHARDS = 10**6
BATCH = 256
#: (H, W, C) of the samples that are not there.
SHAPE = (4, 4, 3)


def virtual_manifest(count: int, shards: int) -> Manifest:
    """``count`` samples in ``shards`` shards whose sizes differ by a fifth."""
    sizes = np.random.default_rng(0).integers(90, 110, shards).astype(np.float64)
    ends = np.round(np.cumsum(sizes) / sizes.sum() * count).astype(np.int64)
    common = Common(
        container="hdf5",
        encoding="raw",
        shape=SHAPE,
        channels=3,
        label_kind="class",
        label_width=1,
        classes=("a", "b"),
        chunk=None,
        compression=None,
        data_bytes=count * 48,
    )
    rows = (
        Shard(f"shard-{i:07d}", n, n * 48, f"{i:016x}", f"{i:016x}", f"{i:016x}")
        for i, n in enumerate(np.diff(ends, prepend=0).tolist())
    )
    return Manifest(common, tuple(rows))


class VirtualShards:
    """Shards that are not there: none of them is opened."""

    def path(self, number: int) -> str:
        return f"virtual {number}"

    def close(self) -> None:
        pass


def virtual_source(count: int, shards: int) -> OpenSet:
    """A sharded set without files."""
    opener: Any = VirtualShards()
    manifest = virtual_manifest(count, shards)
    return sharded_set(manifest, opener, Request(), path="virtual", io="mmap")


# -- parts ---------------------------------------------------------------------------------------


def batch() -> Iterator[dict[str, Any]]:
    """Microseconds per batch of 256 by number of samples: in one file, and in a million shards."""
    for shuffle, sharded in ((True, False), ("block", False), (True, True), ("block", True)):
        for power in range(4, 13):
            count = 10**power
            shards = min(SHARDS, count) if sharded else 1
            source = virtual_source(count, shards)
            order = Schedule(order_of(count, 7, shuffle, 9, 16_380, source.facts.ends), BATCH)
            started = time.perf_counter()
            order.plan(Cursor())
            first = time.perf_counter() - started
            steps = max(1, order.steps)
            times = []
            for number in np.linspace(0, steps - 1, 300).astype(np.int64).tolist():
                cursor = Cursor(0, number * BATCH, number)
                started = time.perf_counter()
                plan = order.plan(cursor)
                order.advance(cursor)
                for _ in source.first.split(plan.indices):
                    pass
                times.append(time.perf_counter() - started)
            yield {
                "shuffle": shuffle,
                "samples": f"10^{power}",
                "shards": shards,
                "us a batch": round(statistics.median(times) * 1e6),
                "first ms": round(first * 1e3, 1),
            }


def order_of(
    count: int, seed: int, shuffle: Shuffle, block: int, window: int, ends: Any
) -> Sampler:
    """The order of a set of files that end there."""
    return sampler_of(shuffle, seed, window, Storage("virtual", count, block, ends=ends))


def ranks_of(world: int, order: Sampler, batch: int, last_batch: str = "drop") -> list[Schedule]:
    """The schedule of each rank."""
    return [Schedule(order, batch, rank, world, last_batch) for rank in range(world)]


def ranks() -> Iterator[dict[str, Any]]:
    """One epoch of 1,000,003 samples in 1,000 shards on 1 to 10,000 ranks."""
    count = 1_000_003
    ends = virtual_manifest(count, 1000).ends
    for world, rows in (
        (1, 8192),
        (2, 4096),
        (3, 1000),
        (8, 512),
        (64, 64),
        (1000, 25),
        (10_000, 7),
    ):
        for shuffle in (True, "block"):
            for last in ("drop", "pad"):
                order = order_of(count, 1, shuffle, 9, 16_380, ends)
                times = np.zeros(count, np.int64)
                steps = set()
                for rank in ranks_of(world, order, rows, last):
                    cursor = Cursor()
                    served = 0
                    while cursor.epoch == 0:
                        plan = rank.plan(cursor)
                        np.add.at(times, plan.indices[plan.valid], 1)
                        served += 1
                        cursor = rank.advance(cursor)
                    steps.add(served)
                whole = count if last == "pad" else count // (world * rows) * world * rows
                yield {
                    "ranks": world,
                    "shuffle": shuffle,
                    "last_batch": last,
                    "disjoint": bool(times.max() == 1),
                    "complete": int(times.sum()) == whole,
                    "equal steps": len(steps) == 1,
                    "steps": steps.pop(),
                }


def window() -> Iterator[dict[str, Any]]:
    """Shards that are read together, and mixed in a batch, by size of shard and window."""
    for per_shard in (1000, 10_000, 100_000):
        count = per_shard * 1000
        ends = np.arange(1, 1001) * per_shard
        for wanted in (1024, 16_384, 131_072):
            order = order_of(count, 1, "block", 9, wanted, ends)
            seen = []
            for lo in np.linspace(0, count - wanted, 20).astype(np.int64).tolist():
                records = order.records(0, np.arange(lo, lo + wanted))
                seen.append(np.unique(np.searchsorted(ends, records, side="right")).size)
            batches = []
            for lo in np.linspace(0, count - BATCH, 50).astype(np.int64).tolist():
                records = order.records(0, np.arange(lo, lo + BATCH))
                batches.append(np.unique(np.searchsorted(ends, records, side="right")).size)
            yield {
                "samples a shard": per_shard,
                "window": wanted,
                "shards in a window": round(float(np.median(seen))),
                "most": max(seen),
                "shards in a batch of 256": round(float(np.median(batches))),
            }


PARTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "batch": batch,
    "ranks": ranks,
    "window": window,
}


def main() -> None:
    for name, part in PARTS.items():
        print(f"\n{name}: {(part.__doc__ or '').splitlines()[0]}")
        for row in part():
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
