"""Is the doctor right? Five prepared sets: its advice is followed, and the factor it named held
against what ``asyncreader bench`` then measures.

    python tests/benchmarks/advice.py FOLDER [gzip64 gzip1 huge tiny photos]

Takes some 2 GB and 6 minutes. Sets are built once. A line for each change that was tried: the
factor named, the factor reached (median of three alternations), and their ratio; exit code 1 if one
that was advised is off by more than 30 %, or one that was not reaches a factor that is worth it.
"huge" is read in a control group with less memory than the set has bytes, which takes root. On a
machine that does other work, ratios wander.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from inputs import RAW, Input, Place, crops, write_converted
from PIL import Image

#: How far the factor reached may be from the factor named.
TOLERANCE = 0.3

#: A change that makes a loader that many times as fast is worth it (tools/doctor/advice.py).
WORTH = 1.25

#: Memory (bytes) of a process that reads the set "huge", of 0.9 GB, with the pages it has read.
HUGE_MEMORY = 450 << 20


def write_huge(path: Path, rows: str, times: int) -> None:
    """Plain pixels, twice as large as the memory of the process that reads them."""
    pixels = np.load(rows, mmap_mode="r")
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", (times * len(pixels), *pixels.shape[1:]), "u1")
        for start in range(0, len(data), len(pixels)):
            data[start : start + len(pixels)] = pixels
        file["labels"] = np.arange(len(data)) % 10
    os.sync()  # what is not on the disk yet cannot be dropped from memory


def write_photos(path: Path, count: int) -> None:
    """JPEGs of 4000 x 3000 as cameras write them."""
    rng = np.random.default_rng(0)
    for number, piece in enumerate(crops(count, 750, 1000, seed=5)):
        into = path / f"class{number % 4}"
        into.mkdir(parents=True, exist_ok=True)
        large = Image.fromarray(piece).resize((4000, 3000), Image.Resampling.BICUBIC)
        grain = rng.integers(-4, 5, (3000, 4000, 1), np.int16)
        pixels = np.clip(np.asarray(large).astype(np.int16) + grain, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(into / f"{number:03}.jpg", "JPEG", quality=92)


PHOTOS = Input("photos", write_photos, count=60)
#: The set, and the parameters of training on it.
CASES: dict[str, tuple[Input, list[str]]] = {
    "gzip64": (RAW["raw32.gz"], []),
    "gzip1": (RAW["raw224.gz"], []),
    "huge": (Input("huge.h5", write_huge, rows=RAW["raw32"], times=6), []),
    "tiny": (RAW["raw32.lmdb"], []),
    "photos": (
        Input("photos.h5", write_converted, source=PHOTOS, encoding="original", format="hdf5"),
        ["--size", "224x224", "--batch-size", "64"],
    ),
}


def run(*words: str | Path, group: Path | None = None) -> str:
    """Output of an ``asyncreader`` command, run in a control group; CalledProcessError shows what
    went wrong.
    """
    command = [sys.executable, "-m", "asyncreader", *map(str, words)]
    if group is not None:
        enter = f'echo $$ > {shlex.quote(str(group / "cgroup.procs"))} && exec "$@"'
        command = ["sh", "-c", enter, "sh", *command]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def limited(memory: int) -> Iterator[Path]:
    """A control group whose processes have that much memory (bytes), page cache included.

    OSError where this is not allowed, or the system has no such groups.
    """
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    top, limit = (first, "memory.limit_in_bytes") if first.exists() else (second, "memory.max")
    group = top / f"asyncreader-advice-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(memory))
        yield group
    finally:
        group.rmdir()


def bench(path: Path, *words: str, group: Path | None = None) -> float:
    """Samples/s as ``asyncreader bench`` gives them, from the second epoch on."""
    given = ["bench", path, "--json", "--seconds", "3", "-p", "verify=never", *words]
    rate: float = json.loads(run(*given, group=group))["rows"][0]["samples_per_second"]
    return rate


def read_in(path: Path) -> None:
    """Bring a set into memory."""
    with open(path / "data.mdb" if path.is_dir() else path, "rb", buffering=0) as file:
        while file.read(8 << 20):
            pass


def drop(path: Path) -> None:
    """Out of memory with it: what posix_fadvise(DONTNEED) does for pages nobody maps."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def follow(path: Path, change: dict[str, Any], words: list[str], group: Path | None) -> float:
    """The factor that a change reaches."""
    after, extra, threads = path, [], ["--nthread", "2", "--njob", "4"]
    if change["command"] is not None:
        command = shlex.split(change["command"])
        after = path.with_name(f"after-{change['name']}.h5")
        command[3] = str(after)
        run(*command[1:], "--overwrite", "--quiet")
    for name, value in change["params"].items():
        extra += ["-p", f"{name}={json.dumps(value)}"]
    if "nthread" in change["params"]:
        threads, extra = [f"--{n}={v}" for n, v in change["params"].items()], []
    ratios = []
    for _ in range(3):
        for place in (path, after):
            # what this process reads would not count as the group's
            drop(place) if group is not None else read_in(place)
        before = bench(path, *words, "--nthread", "2", "--njob", "4", group=group)
        then = bench(after, *words, *threads, *extra, group=group)
        ratios.append(then / before)
    if after != path:
        after.unlink()
    return statistics.median(ratios)


def judged(change: dict[str, Any], advised: str | None, reached: float) -> bool:
    """Whether a change did what was said of it."""
    if change["name"] == advised:
        return abs(reached / change["factor"] - 1) <= TOLERANCE
    if change["factor"] < WORTH:
        return reached < WORTH * (1 + TOLERANCE)
    return True


def visit(name: str, path: Path, words: list[str], group: Path | None) -> int:
    """Ask the doctor about a set and follow all that it tried; how often it was wrong."""
    told = json.loads(run("doctor", path, "--json", "--nthread", "2", *words, group=group))
    advised = told["advised"] and told["advised"]["name"]
    print(f"{name}: {told['samples_per_second']:,.0f} samples/s, limit {told['limit']}")
    print(f"  advice: {advised or 'keep it as it is'}", flush=True)
    wrong = 0
    for change in told["tried"]:
        if change["factor"] is None:
            print(f"  {change['name']}: could not be tried: {change['failure']}")
            continue
        reached = follow(path, change, words, group)
        right = judged(change, advised, reached)
        wrong += not right
        print(
            f"  {change['name']}: named {change['factor']:,.2f}, reached {reached:,.2f}: "
            f"{reached / change['factor']:.2f}{'' if right else ' WRONG'}",
            flush=True,
        )
    return wrong


def main(folder: Path, chosen: list[str]) -> int:
    """Exit code: 1 if advice was wrong."""
    place, wrong = Place(folder), 0
    for name in chosen or CASES:
        wanted, words = CASES[name]
        path = place.path(wanted)
        if name != "huge":
            wrong += visit(name, path, words, None)
            continue
        drop(path)
        try:
            with limited(HUGE_MEMORY) as group:
                wrong += visit(name, path, words, group)
        except PermissionError as exc:
            print(f"{name}: not tried: no control group can be made here: {exc}")
    return int(wrong > 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
