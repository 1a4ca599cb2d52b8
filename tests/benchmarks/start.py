"""Start-up: the first batch in a fresh environment, where kernels are compiled, and in later ones.

    python -m venv /tmp/fresh && /tmp/fresh/bin/pip install .
    python tests/benchmarks/start.py /tmp/start --give python=/tmp/fresh/bin/python

The second program is the one that is measured. Compiled kernels are kept in folders of the
benchmark's own; that of a first process is emptied before each turn. All in milliseconds.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from harness import MILLISECONDS, Case, Contender
from inputs import Input, Value, crops
from player import Result, Spec, timed

PYTHON = Value(sys.executable, name="python")
FLOAT = {"dtype": "float32", "scale": 1 / 255, "mean": 0.5, "std": 0.25}
CROP = {"crop": "random-resized", "size": [128, 128], "flip": True}
BEGIN = "import json, sys, time; began = time.perf_counter()\n"
END = "print(imported - began, opened - imported, time.perf_counter() - opened)\n"
READER = f"""{BEGIN}
from asyncreader import AsyncReader
imported = time.perf_counter()
with AsyncReader(json.loads(sys.argv[1]), batch_size=128) as reader:
    opened = time.perf_counter()
    reader.fetchData()
    reader.getNextBatch()
    {END}"""
DATASET = f"""{BEGIN}
from asyncreader import open
imported = time.perf_counter()
with open(json.loads(sys.argv[1])) as ds:
    opened = time.perf_counter()
    ds[:128]
    {END}"""


def write_set(path: Path, count: int, side: int, encoding: str) -> None:
    """Pictures in a file that a Writer leaves."""
    import asyncreader

    with asyncreader.Writer(path.with_suffix(".h5"), encoding=encoding) as writer:
        for number, pixels in enumerate(crops(count, side, side, seed=1)):
            writer.add(pixels, number % 10)
    path.with_suffix(".h5").rename(path)


FILES = {
    "raw": Input("start_raw.h5", write_set, count=Value(20_000, 600), side=32, encoding="raw"),
    "JPEG": Input("start_jpeg.h5", write_set, count=600, side=224, encoding="jpeg"),
}


def process(spec: Spec) -> Callable[[], Result]:
    """A process with these words: its time, and what it prints."""
    kernels = Path(spec["folder"]) / f"kernels-{os.getpid()}"
    cache = {"NUMBA_CACHE_DIR": str(kernels), "XDG_CACHE_HOME": str(kernels)}
    line = [os.path.abspath(spec["python"]), "-c", spec["code"], json.dumps(spec.get("params"))]

    def job() -> Result:
        if spec["fresh"]:
            shutil.rmtree(kernels, ignore_errors=True)
        kernels.mkdir(exist_ok=True)
        with timed() as result:
            done = subprocess.run(
                line, check=True, capture_output=True, text=True, cwd=spec["folder"],
                env={"PATH": os.environ["PATH"], "HOME": str(kernels), **cache},
            )  # fmt: skip
        parts = (float(word) * 1e3 for word in done.stdout.split())
        return {**result, **dict(zip(("import", "open", "first batch"), parts, strict=False))}

    return job


def contender(name: str, code: str, fresh: bool = False, **params: Any) -> Contender:
    spec = {"code": code, "fresh": fresh, "params": params, "python": PYTHON}
    return Contender(name, "start.process", spec)


def case(name: str, code: str, file: str, **params: Any) -> Case:
    """The first process with a set, and later ones."""
    contenders = [
        contender(which, code, which == "first process", path=FILES[file], **params)
        for which in ("first process", "later process")
    ]
    return Case(name, "sets", contenders, unit=MILLISECONDS, rounds=3)


LINES = ("pass", "import numpy, h5py", "import numba", "import asyncreader",
         "from asyncreader import AsyncReader")  # fmt: skip
CASES = [
    Case("imports", "imports", [contender(line, line) for line in LINES], unit=MILLISECONDS),
    case("raw 32x32", READER, "raw", shuffle=True),
    case("raw to normalised float32, mirrored", READER, "raw", shuffle=True, flip=True, **FLOAT),
    case("JPEG, random-resized crops", READER, "JPEG", shuffle=True, nthread=2, **CROP),
    case("JPEG to float32", READER, "JPEG", shuffle=True, nthread=2, **CROP, **FLOAT),
    case("asyncreader.open of raw", DATASET, "raw"),
    case("asyncreader.open of JPEG", DATASET, "JPEG"),
]

if __name__ == "__main__":
    sys.exit(harness.main("start", __doc__, CASES))
