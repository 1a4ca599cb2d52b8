"""Samples by number, ``Dataset`` beside the same calls of h5py: milliseconds for 128 rows.

``python tests/benchmarks/by_number.py DIR`` asks h5py in the two ways that its users have: row by
row, ``[d[i] for i in numbers]``, and with one sorted list, ``d[sorted]``. Compressed rows are read
cold: h5py opens the file anew, and the chunks that asyncreader remembers are dropped, before each
call. "ours, remembered" has its chunks decoded already. All must give the same bytes.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Case, Contender, Goal, Unit
from inputs import RAW, Input, Value, write_rows
from player import Result, Spec, timed

ROWS = 128
MILLISECONDS = Unit("ms for 128 rows", ROWS * 1e3)
ROW_BY_ROW, ONE_LIST = "h5py, row by row", "h5py, one list"
COLD, REMEMBERED = "ours", "ours, remembered"


def write_walks(path: Path, count: int, length: int, **options: Any) -> None:
    """Random walks, float32, with two decimal places."""
    walks = np.random.default_rng(0).normal(size=(count, length)).cumsum(1)
    write_rows(path, np.round(walks, 2).astype(np.float32), **options)


def walks(name: str, **options: Any) -> Input:
    return Input(name, write_walks, count=Value(64_000, 4096), length=512, **options)


def images(name: str, chunk: int) -> Input:
    return Input(f"{name}_{chunk}.h5", write_rows, rows=RAW[name], chunk=chunk)


#: By name: the file, and the rows in a chunk (0: contiguous).
SETS: dict[str, tuple[Input, int]] = {
    "u8 32x32x3, contiguous": (RAW["raw32.h5"], 0),
    "u8 224x224x3, contiguous": (RAW["raw224.h5"], 0),
    "f4 512, contiguous": (walks("walks.h5"), 0),
    "u8 32x32x3, 64 a chunk": (RAW["raw32.gz"], 64),
    "u8 32x32x3, 1 a chunk": (images("raw32", 1), 1),
    "u8 224x224x3, 8 a chunk": (images("raw224", 8), 8),
    "u8 224x224x3, 1 a chunk": (RAW["raw224.gz"], 1),
    "f4 512, 64 a chunk": (walks("walks_64.h5", chunk=64), 64),
    "f4 512, shuffle, 64 a chunk": (walks("walks_shuffle_64.h5", chunk=64, shuffle=True), 64),
}


def numbers_of(spec: Spec, rng: np.random.Generator, count: int) -> list[int]:
    """Numbers of rows: any, so many of each chunk, or one after the other."""
    chunk, each = spec["chunk"], spec["each"]
    if not chunk:
        return rng.choice(count, ROWS, False).tolist()
    if not each:
        start = int(rng.integers(count // chunk - ROWS // chunk)) * chunk
        return list(range(start, start + ROWS))
    chunks = count // chunk
    firsts = rng.choice(chunks, min(ROWS // each, chunks), False) * chunk
    rows = np.concatenate([first + rng.choice(chunk, each, False) for first in firsts])
    return rng.permutation(rows).tolist()


def drop(ds: Any) -> None:
    """Forget the chunks that are remembered, but keep the memory: in training it is there."""
    cache = getattr(ds.source.first, "cache", None)
    if cache is not None:
        cache._entries[:] = 0
        cache._used[:] = 0
        cache._inside = [-1] * len(cache._inside)


def rows_of(spec: Spec) -> Callable[[], Result]:
    """A call for 128 rows, and the digest of what it returned."""
    import h5py

    import asyncreader

    options = {"layout": "NHWC", "labels_field": None, "nthread": spec["workers"]}
    ds, rng, way = asyncreader.open(spec["path"], **options), np.random.default_rng(0), spec["way"]

    def job() -> Result:
        numbers = numbers_of(spec, rng, len(ds))
        drop(ds)
        if way == REMEMBERED:
            ds.__getitems__(numbers)
        with h5py.File(spec["path"]) as file:
            data = file["data"]
            with timed(len(numbers)) as result:
                if way == ROW_BY_ROW:
                    rows: Any = [data[i] for i in numbers]
                elif way == ONE_LIST:
                    rows = data[sorted(numbers)]
                else:
                    rows = ds.__getitems__(numbers)
        if way == ONE_LIST:
            rows = rows[np.argsort(np.argsort(numbers))]
        digest = hashlib.sha256(b"".join(np.asarray(row).tobytes() for row in rows))
        return {**result, "digest": digest.hexdigest()}

    return job


def case(name: str, asked: str, each: int) -> Case:
    path, chunk = SETS[name]
    ways = [ROW_BY_ROW, ONE_LIST, COLD, *([REMEMBERED] if chunk else [])]
    contenders = [
        Contender(way, "by_number.rows_of", ours=way.startswith("ours"), spec={
            "path": path, "chunk": chunk, "each": each, "way": way})
        for way in ways
    ]  # fmt: skip
    goals = [Goal(COLD, way) for way in (ROW_BY_ROW, ONE_LIST)]
    return Case(f"{name}, {asked}", "rows", contenders, goals, unit=MILLISECONDS, rounds=7)


def cases(name: str) -> list[Case]:
    """A case for each way in which the rows fall into chunks."""
    chunk = SETS[name][1]
    if not chunk:
        return [case(name, "any rows", 0)]
    ways = {f"{each} of a chunk": each for each in sorted({1, min(2, chunk), max(1, chunk // 2)})}
    return [case(name, *way) for way in (ways | ({"in sequence": 0} if chunk > 1 else {})).items()]


CASES = [case for name in SETS for case in cases(name)]

if __name__ == "__main__":
    sys.exit(harness.main("by_number", __doc__, CASES))
