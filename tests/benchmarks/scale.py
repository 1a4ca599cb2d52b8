"""What cannot be had on one machine, simulated: 10^12 samples, 10^6 shards, 10,000 ranks.

``python tests/benchmarks/scale.py`` needs no files and takes about two minutes. It prints
``batch``: time per batch of order and bookkeeping; ``draws``: the same of weighted draws, draws by
class and of mixes; ``reader``: of a whole reader, over shards that
hold nothing;
``ranks``: whether the batches of 1 to 10,000 ranks are disjoint, complete and equal in number;
``elastic``: the same while the number of ranks changes; ``chunks``: how often a compressed chunk is
decoded by all ranks together; ``window``: shards that a window reads, and how far it mixes.
``--only NAME`` runs some of them; ``--json FILE`` also writes them there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asyncreader import AsyncReader
from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import Common, Manifest, Shard
from asyncreader.pipeline import build
from asyncreader.sampling import Shuffle, sampler_of
from asyncreader.sampling.samplers import Sampler, Storage
from asyncreader.sampling.schedule import Cursor, Schedule
from asyncreader.sources import OpenSet, Request, SetIndex, Source
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


class VirtualShard:
    """Stands for an open shard: it writes nothing, so that only the way to it costs time."""

    def __init__(self, whole: Source, row: Shard) -> None:
        assert whole.facts.meta is not None
        meta = replace(
            whole.facts.meta,
            count=row.count,
            digests={
                fmt.CHECKSUMS: row.checksums,
                fmt.LABELS: row.labels,
                fmt.CLASSES: fmt.names_digest([b"a", b"b"]),
            },
        )
        self.facts = replace(whole.facts, count=row.count, meta=meta, ends=None)
        self.spec = whole.spec
        self.index = whole.index
        self.checksums = None
        self.splits: dict[str, Any] = {}
        self.labels = np.lib.stride_tricks.as_strided(
            np.zeros((1, 1), np.int64), (row.count, 1), (0, 8)
        )

    def read_into(self, writer: Any) -> None:
        pass

    def reserve(self, samples: int) -> None:
        pass

    def close(self) -> None:
        pass


class VirtualShards:
    """Opens shards that are not there."""

    def __init__(self, count: int, shards: int) -> None:
        self._manifest = virtual_manifest(count, shards)
        fields = Request()
        found = sharded_set(self._manifest, self, fields, path="virtual", io="mmap")
        self.whole = found

    def path(self, number: int) -> str:
        return f"virtual {number}"

    def open(self, number: int, fields: Request) -> Any:
        shard: Any = VirtualShard(self.whole.first, self._manifest.shard(number))
        return OpenSet(SetIndex(shard.facts, {fields.data: shard.index}, shard.labels), [shard])

    def close(self) -> None:
        pass


def virtual_source(count: int, shards: int) -> OpenSet:
    """A sharded set without files."""
    return VirtualShards(count, shards).whole


def open_virtual(count: int, shards: int, **params: Any) -> AsyncReader:
    """A reader over virtual shards."""
    source = virtual_source(count, shards)
    real, build.open_set = build.open_set, lambda _: source
    try:
        return AsyncReader({"path": "virtual", **params})
    finally:
        build.open_set = real


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


def draws() -> Iterator[dict[str, Any]]:
    """CPU microseconds per batch of 256 of weights, classes and mixes, by number of samples."""
    halves = (0.9, 0.1)
    for power in range(4, 10):
        count = 10**power
        part = Storage("virtual", count)
        kinds: dict[str, tuple[Shuffle, Storage]] = {
            "shuffled": (True, part),
            "mix": (True, replace(part, count=2 * count, sets=(part, part), ratios=halves)),
        }
        if power < 8:  # tables of 8 bytes a sample
            kinds["weights"] = (True, replace(part, weights=np.arange(1.0, count + 1)))
            classes = np.arange(count) % 10
            kinds["classes"] = ("balanced-permutation", replace(part, classes=classes))
        row: dict[str, Any] = {"samples": f"10^{power}"}
        for kind, (shuffle, storage) in kinds.items():
            order = sampler_of(shuffle, 7, 1, storage)
            times = []
            for start in np.linspace(0, order.length - 4096, 200).astype(np.int64).tolist():
                positions = np.arange(start, start + 4096)
                started = time.process_time()
                order.records(1, positions)
                times.append(time.process_time() - started)
            row[kind] = round(min(times) / 16 * 1e6, 1)
        yield row


def reader() -> Iterator[dict[str, Any]]:
    """The same of a whole reader, in shards of 10,000 samples or more that open in 0.2 ms."""
    for power in range(6, 13):
        count = 10**power
        shards = min(SHARDS, count // 10_000)
        with open_virtual(
            count, shards, batch_size=BATCH, shuffle="block", verify="never"
        ) as opened:
            opened.fetchData()
            opened.getNextBatch()
            times = []
            for _ in range(500):
                started = time.perf_counter()
                opened.fetchData()
                opened.getNextBatch()
                times.append(time.perf_counter() - started)
        yield {
            "samples": f"10^{power}",
            "shards": shards,
            "us a batch": round(statistics.median(times) * 1e6),
            "mean us": round(statistics.fmean(times) * 1e6),
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


def elastic() -> Iterator[dict[str, Any]]:
    """Ranks 8, 6, 1, 3, 64, 5 and so on, changed every few steps: the global order, each once."""
    count = 100_003
    ends = virtual_manifest(count, 100).ends
    rng = np.random.default_rng(5)
    for shuffle in (True, "block"):
        for last in ("drop", "pad", "wrap"):
            order = order_of(count, 3, shuffle, 9, 4095, ends)
            whole = [order.records(epoch, np.arange(count)) for epoch in range(3)]
            served: list[list[int]] = [[], [], []]
            cursor, changes = Cursor(), 0
            while cursor.epoch < 3:
                world = int(rng.choice([8, 6, 1, 3, 64, 5]))
                ranks = ranks_of(world, order, int(rng.integers(1, 40)), last)
                cursor = ranks[0].next_batch_at(cursor)
                changes += 1
                for _ in range(int(rng.integers(1, 12))):
                    if cursor.epoch == 3:
                        break
                    rows = np.concatenate([rank.plan(cursor).indices for rank in ranks])
                    served[cursor.epoch] += rows[: count - cursor.position].tolist()
                    cursor = ranks[0].advance(cursor)
            right = all(
                found == list(rows[: len(found)]) for found, rows in zip(served, whole, strict=True)
            )
            yield {
                "shuffle": shuffle,
                "last_batch": last,
                "changes": changes,
                "in the global order, each once": right,
                "left out at epochs' ends": [count - len(found) for found in served],
            }


def chunks() -> Iterator[dict[str, Any]]:
    """Times that a compressed chunk is decoded an epoch, by all ranks together, block shuffle."""
    count = 200_000
    ends = virtual_manifest(count, 20).ends
    starts = np.concatenate(([0], ends[:-1]))
    for inside in (1, 4, 16, 64):
        row: dict[str, Any] = {"samples a chunk": inside}
        for world in (1, 2, 8, 64):
            decoded = 0
            order = order_of(count, 1, "block", inside, 16_384, ends)
            for rank in range(world):
                # the positions of this rank, all at once: plans step by step would give the same
                start = np.arange(0, count, 32 * world)[:, None] + rank * 32
                positions = (start + np.arange(32)).reshape(-1)
                records = order.records(0, positions[positions < count])
                shard = np.searchsorted(ends, records, side="right")
                chunk = shard * count + (records - starts[shard]) // inside
                decoded += np.unique(chunk).size
            total = int(np.sum(-(-np.diff(ends, prepend=0) // inside)))
            row[f"{world} ranks"] = round(decoded / total, 2)
        yield row


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
    "reader": reader,
    "draws": draws,
    "ranks": ranks,
    "elastic": elastic,
    "chunks": chunks,
    "window": window,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    told: dict[str, list[dict[str, Any]]] = {}
    for name in options.only or PARTS:
        print(f"\n{name}: {(PARTS[name].__doc__ or '').splitlines()[0]}")
        for row in PARTS[name]():
            told.setdefault(name, []).append(row)
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
