"""Samples by number, ``Dataset`` beside the same calls of h5py: rows of a batch, in milliseconds.

    python tests/benchmarks/by_number.py /tmp/by-number             # --case f4 --rounds 9

h5py is asked in the two ways that its users have: row by row, ``[d[i] for i in numbers]``, and with
one sorted list, ``d[sorted]``. Compressed rows are read cold: h5py opens the file anew, and the
chunks that asyncreader remembers are dropped, before each call; the last column is of chunks that
are remembered. The best of ROUNDS, which alternate.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

if str(Path(__file__).resolve().parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from inputs import crops

import asyncreader
from asyncreader import Dataset

ROWS = 128


def _pictures(count: int, side: int) -> np.ndarray:
    return np.stack(list(crops(count, side, side, seed=1)))


def _features(count: int, length: int) -> np.ndarray:
    walks = np.random.default_rng(0).normal(size=(count, length)).cumsum(1)
    return np.round(walks, 2).astype(np.float32)


#: By name: rows in a chunk (None: contiguous), filters, and what makes the rows.
CASES: dict[str, tuple[int | None, dict[str, bool], Callable[[], np.ndarray]]] = {
    "u8 32x32x3, contiguous": (None, {}, lambda: _pictures(25_600, 32)),
    "u8 224x224x3, contiguous": (None, {}, lambda: _pictures(1_600, 224)),
    "f4 512, contiguous": (None, {}, lambda: _features(64_000, 512)),
    "u8 32x32x3, 64 a chunk": (64, {}, lambda: _pictures(25_600, 32)),
    "u8 32x32x3, 1 a chunk": (1, {}, lambda: _pictures(25_600, 32)),
    "u8 224x224x3, 8 a chunk": (8, {}, lambda: _pictures(1_600, 224)),
    "u8 224x224x3, 1 a chunk": (1, {}, lambda: _pictures(1_600, 224)),
    "f4 512, 64 a chunk": (64, {}, lambda: _features(64_000, 512)),
    "f4 512, shuffle, 64 a chunk": (64, {"shuffle": True}, lambda: _features(64_000, 512)),
}


def written(folder: Path, name: str) -> Path:
    """The file of a case, made once."""
    chunk, filters, made = CASES[name]
    path = folder / f"{name.replace(', ', '-').replace(' ', '_')}.h5"
    if not path.exists():
        rows = made()
        how = {} if chunk is None else {"chunks": (chunk, *rows.shape[1:]), "compression": "gzip"}
        with h5py.File(folder / "part", "w") as file:
            file.create_dataset("data", data=rows, **how, **filters)
        (folder / "part").rename(path)
    return path


def asked(chunk: int | None, count: int, rng: np.random.Generator) -> Iterator[tuple[str, list]]:
    """Numbers of rows, by how they fall into chunks."""
    if chunk is None:
        yield "any rows", rng.choice(count, ROWS, False).tolist()
        return
    for each in sorted({1, min(2, chunk), max(1, chunk // 2)}):
        first = rng.choice(count // chunk, ROWS // each, False) * chunk
        inside = np.concatenate([at + rng.choice(chunk, each, False) for at in first])
        yield f"{each} of a chunk", rng.permutation(inside).tolist()
    if chunk > 1:
        start = int(rng.integers(count // chunk - ROWS // chunk)) * chunk
        yield "in sequence", list(range(start, start + ROWS))


def drop(ds: Dataset) -> None:
    """Forget the chunks that are remembered, but keep the memory: in training it is there."""
    cache = getattr(ds.source.first, "cache", None)
    if cache is not None:
        cache._entries[:] = 0
        cache._used[:] = 0
        cache._inside = [-1] * len(cache._inside)


def measure(path: Path, chunk: int | None, rounds: int, nthread: int | None) -> Iterator[str]:
    """A line of a table for each way to ask."""
    given = {} if nthread is None else {"nthread": nthread}
    best: dict[str, dict[str, float]] = {}
    with asyncreader.open(path, layout="NHWC", **given) as ds:
        rng = np.random.default_rng(0)
        for number in range(rounds + 1):
            for how, numbers in asked(chunk, len(ds), rng):
                times, found = {}, {}
                for what in ("row by row", "one list", "ours", "remembered"):
                    with h5py.File(path) as file:
                        rows = file["data"]
                        if what == "ours":
                            drop(ds)
                        begun = time.perf_counter()
                        if what == "row by row":
                            found[what] = [rows[i] for i in numbers]
                        elif what == "one list":
                            found[what] = rows[sorted(numbers)]
                        else:
                            found[what] = ds.__getitems__(numbers)
                        times[what] = (time.perf_counter() - begun) * 1e3
                for row, mine in zip(found["row by row"], found["ours"], strict=True):
                    np.testing.assert_array_equal(row, mine)
                if number:  # the first round brings the file into memory
                    least = best.setdefault(how, times)
                    best[how] = {what: min(least[what], ms) for what, ms in times.items()}
    for how, ms in best.items():
        ours, ratios = ms["ours"], (ms["row by row"] / ms["ours"], ms["one list"] / ms["ours"])
        yield (
            f"| {how} | {ms['row by row']:.2f} | {ms['one list']:.2f} | {ours:.2f} | "
            f"{ratios[0]:.1f}, {ratios[1]:.1f} | {ms['remembered']:.2f} |"
        )


def main() -> None:
    """Measure all cases, or some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--case", default="", help="part of its name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nthread", type=int)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print("| rows | asked for | h5py, row by row | one list | ours | times as fast | remembered |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for name, (chunk, _, _) in CASES.items():
        if given.case in name:
            for line in measure(written(given.folder, name), chunk, given.rounds, given.nthread):
                print(f"| {name} {line}", flush=True)


if __name__ == "__main__":
    main()
