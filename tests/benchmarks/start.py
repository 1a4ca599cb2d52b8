"""Start-up: the first batch in a fresh environment, where kernels are compiled, and in later ones.

    python -m venv /tmp/fresh && /tmp/fresh/bin/pip install .
    python tests/benchmarks/start.py /tmp/start /tmp/fresh/bin/python

The second program is the one that is measured. Compiled kernels are kept in a folder of the
benchmark's own, which is emptied before each first process. Medians of ROUNDS, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

if str(Path(__file__).resolve().parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from inputs import crops

import asyncreader

_FLOAT = {"dtype": "float32", "scale": 1 / 255, "mean": 0.5, "std": 0.25}
_CROP = {"crop": "random-resized", "size": [128, 128], "flip": True}
#: By name: the file, and the parameters of a reader; None: of ``asyncreader.open``.
CASES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "raw 32x32": ("raw.h5", {"shuffle": True}),
    "raw to normalised float32, mirrored": ("raw.h5", {"shuffle": True, "flip": True, **_FLOAT}),
    "JPEG, random-resized crops": ("jpeg.h5", {"shuffle": True, "nthread": 2, **_CROP}),
    "JPEG to float32": ("jpeg.h5", {"shuffle": True, "nthread": 2, **_CROP, **_FLOAT}),
    "`asyncreader.open` of raw": ("raw.h5", None),
    "`asyncreader.open` of JPEG": ("jpeg.h5", None),
}
_READER = """
import json, sys, time
begun = time.perf_counter()
from asyncreader import AsyncReader
imported = time.perf_counter()
with AsyncReader(json.loads(sys.argv[1]), batch_size=128) as reader:
    opened = time.perf_counter()
    reader.fetchData()
    reader.getNextBatch()
    print(imported - begun, opened - imported, time.perf_counter() - opened)
"""
_DATASET = """
import json, sys, time
begun = time.perf_counter()
from asyncreader import open
imported = time.perf_counter()
with open(json.loads(sys.argv[1])) as ds:
    opened = time.perf_counter()
    ds[:128]
    print(imported - begun, opened - imported, time.perf_counter() - opened)
"""


def write_sets(folder: Path) -> None:
    """20,000 raw pictures, and 600 JPEGs."""
    sets: tuple[tuple[str, Callable[[], Iterator[np.ndarray]], str], ...] = (
        ("raw.h5", lambda: crops(20_000, 32, 32, seed=1), "raw"),
        ("jpeg.h5", lambda: crops(600, 224, 224, seed=1), "jpeg"),
    )
    for name, made, encoding in sets:
        if not (folder / name).exists():
            with asyncreader.Writer(str(folder / name), encoding=encoding) as writer:
                for number, pixels in enumerate(made()):
                    writer.add(pixels, number % 10)


def process(python: str, kernels: Path, *words: str) -> list[float]:
    """What a process prints, and its own time, in milliseconds."""
    kept = {"NUMBA_CACHE_DIR": str(kernels), "XDG_CACHE_HOME": str(kernels)}
    begun = time.perf_counter()
    done = subprocess.run(
        [python, "-c", *words],
        check=True,
        capture_output=True,
        text=True,
        cwd=kernels.parent,
        env={"PATH": os.environ["PATH"], "HOME": str(kernels), **kept},
    )
    seconds = [*map(float, done.stdout.split()), time.perf_counter() - begun]
    return [one * 1e3 for one in seconds]


def main() -> None:
    """Measure imports, then each case in a first and in a second process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("python", help="of an environment that asyncreader was just installed in")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = given.folder.resolve()
    write_sets(folder)
    kernels, python = folder / "kernels", os.path.abspath(given.python)
    kernels.mkdir(exist_ok=True)

    def median(runs: list[list[float]]) -> list[str]:
        return [f"{statistics.median(column):,.0f}" for column in zip(*runs, strict=True)]

    lines = ("pass", "import numpy, h5py", "import numba", "import asyncreader")
    for line in (*lines, "from asyncreader import AsyncReader"):
        runs = [process(python, kernels, line) for _ in range(2 * given.rounds + 1)]
        print(f"| `{line}` | {median(runs)[0]} |")
    print()
    print("| | process | import | open | first batch | whole process |\n|---|---|--:|--:|--:|--:|")
    for name, (file, params) in CASES.items():
        code = _DATASET if params is None else _READER
        words = code, json.dumps({"path": str(folder / file), **(params or {})})
        first, second = [], []
        for _ in range(given.rounds):
            shutil.rmtree(kernels)
            kernels.mkdir()
            first.append(process(python, kernels, *words))
            second.append(process(python, kernels, *words))
        for which, runs in (("first", first), ("second", second)):
            print(f"| {name} | {which} | {' | '.join(median(runs))} |", flush=True)


if __name__ == "__main__":
    main()
