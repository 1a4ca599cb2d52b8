"""A million small rows written by ``Writer``, beside h5py: milliseconds, and shares of h5py's rate.

    python tests/benchmarks/writing.py FOLDER                 # --rounds 5, --rows 1000000

Rows of 16 float32 with a label. In blocks of 10,000: ``Writer.add_many`` beside slices of h5py's
datasets, with and without fsync; one by one: ``Writer.add`` beside ``dataset[i] = row``, a tenth of
the rows. What ``Writer`` leaves has checksums, was read back and is on the disk.
The medians of ROUNDS, which alternate; the disk is asked to finish before each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from asyncreader import Writer

WIDE, BLOCK = 16, 10_000


def h5py_blocks(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("data", rows.shape, "f4")
        table = file.create_dataset("labels", (len(rows), 1), "i8")
        for at in range(0, len(rows), BLOCK):
            data[at : at + BLOCK] = rows[at : at + BLOCK]
            table[at : at + BLOCK, 0] = labels[at : at + BLOCK]


def h5py_synced(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    h5py_blocks(path, rows, labels)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def h5py_rows(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("data", rows.shape, "f4")
        table = file.create_dataset("labels", (len(rows), 1), "i8")
        for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
            data[i], table[i, 0] = row, label


def writer_blocks(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    with Writer(path) as writer:
        for at in range(0, len(rows), BLOCK):
            writer.add_many(rows[at : at + BLOCK], labels[at : at + BLOCK])


def writer_rows(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    with Writer(path) as writer:
        for row, label in zip(rows, labels, strict=True):
            writer.add(row, label)


def milliseconds(
    folder: Path, ways: list[Callable[..., None]], count: int, rounds: int
) -> dict[str, list[float]]:
    """Of each way, in each round."""
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((count, WIDE), np.float32), np.arange(count) % 10
    found: dict[str, list[float]] = {way.__name__: [] for way in ways}
    for number in range(rounds):
        for way in ways[:: 1 if number % 2 == 0 else -1]:
            path = folder / f"{way.__name__}.h5"
            os.sync()
            began = time.perf_counter()
            way(path, rows, labels)
            found[way.__name__].append((time.perf_counter() - began) * 1e3)
            with h5py.File(path) as file:
                assert np.array_equal(file["data"][-BLOCK:], rows[-BLOCK:])
            path.unlink()
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    blocks = [h5py_blocks, h5py_synced, writer_blocks]
    one_by_one = [h5py_rows, writer_rows]
    for ways, count in ((blocks, options.rows), (one_by_one, options.rows // 10)):
        found = milliseconds(options.folder, ways, count, options.rounds)
        ours = found[ways[-1].__name__]
        for name, times in found.items():
            share = statistics.median(a / b for a, b in zip(times, ours, strict=True))
            print(
                f"{count:>9,} rows  {name:13}  {statistics.median(times):8.0f} ms"
                f"  Writer / this: {share:.2f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
