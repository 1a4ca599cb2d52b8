"""Byte ranges from a store far away: throughput, and requests in flight.

``python tests/benchmarks/store.py`` packs pictures into shards, serves them with the range server
of the tests (another process of this machine), and prints samples per second: with 1,000 requests
a second allowed, without and with 50 ms of latency (bar: 0.8 of it without); then without that cap,
by requests in flight.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import inputs
from range_server import server_stats, serving

from asyncreader import AsyncReader
from asyncreader.sources.remote import client
from converters import convert

LATENCY = 0.05
CAP = 1000


def rate(url: str, seconds: float, *, batch: int, nthread: int) -> float:
    """Samples/s of a full shuffle, once every shard is open."""
    with AsyncReader(
        path=f"{url}/set", batch_size=batch, shuffle=True, nthread=nthread, njob=nthread,
        verify="never",
    ) as reader:  # fmt: skip
        for _ in range(nthread):
            reader.fetchData()
        for _ in range(2 * nthread):
            reader.getNextBatch()
            reader.fetchData()
        samples, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            samples += len(reader.getNextBatch())
            reader.fetchData()
        return samples / elapsed


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        photos = inputs.jpeg_folder(root, options.pictures)
        # 64 x 64 pixels, raw: 12 kB a sample, less than what two of them are merged across
        client.MERGE_GAP = 0
        convert(photos, root / "set", shards=8, size=(64, 64))
        near: list[float] = []
        far: list[float] = []
        for _ in range(options.rounds):
            for rates, latency in ((near, 0.0), (far, LATENCY)):
                with serving(root, cap=CAP, latency=latency) as url:
                    rates.append(rate(url, options.seconds, batch=32, nthread=8))
                    peak = server_stats(url)["peak"]
        ratio = statistics.median(f / n for f, n in zip(far, near, strict=True))
        print(f"cap {CAP}/s: {statistics.median(near):,.0f} samples/s without latency, ", end="")
        print(
            f"{statistics.median(far):,.0f} with {LATENCY * 1000:.0f} ms: {ratio:.2f} (bar 0.8); "
        )
        print(f"in flight at the server at most {peak}")
        for flight in (16, 32, 64, 128, 256, 512):
            loop = client.requests_loop()
            loop.gate = client.asyncio.Semaphore(flight)
            found = []
            for _ in range(options.rounds):
                with serving(root, latency=LATENCY) as url:
                    found.append(rate(url, options.seconds, batch=64, nthread=8))
                    peak = server_stats(url)["peak"]
            print(
                f"{flight:4} in flight ({peak} seen): {statistics.median(found):,.0f} samples/s "
                f"({flight / LATENCY:,.0f} possible)"
            )


if __name__ == "__main__":
    main()
