"""Is the doctor right? Five prepared sets: its advice is followed, and the factor it named held
against what ``asyncreader bench`` then measures.

    python tests/benchmarks/advice.py FOLDER [gzip64 gzip1 huge tiny photos]

Takes some 2 GB and 5 minutes. Sets are built once. A line for each change that was tried: the
factor named, the factor reached (median of three alternations), and their ratio; exit code 1 if one
that was advised is off by more than 30 %. On a machine that does other work, ratios wander.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import inputs
import numpy as np
from PIL import Image

#: How far the factor reached may be from the factor named.
TOLERANCE = 0.3

#: Memory that is left to the set "huge", of 0.9 GB.
HUGE_GB = 0.3

#: Photographs of 12 megapixels.
PHOTOS = 60


def gzip64(folder: Path) -> Path:
    """32 x 32, 64 samples compressed together."""
    return compressed(folder, "gzip64", inputs.RAW32, 32, 64)


def gzip1(folder: Path) -> Path:
    """224 x 224, each sample compressed."""
    return compressed(folder, "gzip1", inputs.RAW224, 224, 1)


def compressed(folder: Path, name: str, count: int, side: int, chunk: int) -> Path:
    """A foreign HDF5 set of raw pictures, gzip level 4."""

    def make(path: Path) -> None:
        pixels = np.load(inputs.raw_array(folder, f"raw{side}", count, side), mmap_mode="r")
        with h5py.File(path, "w") as file:
            shape = (chunk, side, side, 3)
            file.create_dataset("data", data=pixels, chunks=shape, compression="gzip")
            file["labels"] = np.arange(count) % 10

    return inputs.once(folder / f"{name}.h5", make)


def huge(folder: Path) -> Path:
    """32 x 32 as plain pixels, larger than the memory that is left to it."""

    def make(path: Path) -> None:
        source = inputs.raw_array(folder, "raw32", inputs.RAW32, 32)
        pixels = np.load(source, mmap_mode="r")
        with h5py.File(path, "w") as file:
            data = file.create_dataset("data", (6 * len(pixels), 32, 32, 3), "u1")
            for start in range(0, len(data), len(pixels)):
                data[start : start + len(pixels)] = pixels
            file["labels"] = np.arange(len(data)) % 10
        os.sync()  # what is not on the disk yet cannot be dropped from memory

    return inputs.once(folder / "huge.h5", make)


def tiny(folder: Path) -> Path:
    """32 x 32 in an LMDB of ours."""

    def make(path: Path) -> None:
        run("convert", gzip64(folder), path, "--format", "lmdb", "--quiet")

    return inputs.once(folder / "tiny.lmdb", make)


def photos(folder: Path) -> Path:
    """JPEGs of 4000 x 3000 as cameras write them, unchanged."""

    def make(path: Path) -> None:
        pictures = folder / "photos"
        rng = np.random.default_rng(0)
        for number, piece in enumerate(inputs.crops(PHOTOS, 750, 1000, seed=5)):
            into = pictures / f"class{number % 4}"
            into.mkdir(parents=True, exist_ok=True)
            large = Image.fromarray(piece).resize((4000, 3000), Image.Resampling.BICUBIC)
            grain = rng.integers(-4, 5, (3000, 4000, 1), np.int16)
            pixels = np.clip(np.asarray(large).astype(np.int16) + grain, 0, 255).astype(np.uint8)
            held = io.BytesIO()
            Image.fromarray(pixels).save(held, "JPEG", quality=92)
            (into / f"{number:03}.jpg").write_bytes(held.getvalue())
        run("convert", pictures, path, "--encoding", "original", "--format", "hdf5", "--quiet")

    return inputs.once(folder / "photos.h5", make)


#: Set, its builder, and the parameters of training on it.
CASES: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "gzip64": (gzip64, []),
    "gzip1": (gzip1, []),
    "huge": (huge, []),
    "tiny": (tiny, []),
    "photos": (photos, ["--size", "224x224", "--batch-size", "64"]),
}


def run(*words: str | Path) -> str:
    """Output of an ``asyncreader`` command; CalledProcessError shows what went wrong."""
    command = [sys.executable, "-m", "asyncreader", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def bench(path: Path, *words: str) -> float:
    """Samples/s as ``asyncreader bench`` gives them, from the second epoch on."""
    told = run("bench", path, "--json", "--seconds", "3", "-p", "verify=never", *words)
    rate: float = json.loads(told)["rows"][0]["samples_per_second"]
    return rate


def read_in(path: Path, size: int = 1 << 62) -> None:
    """Bring the first ``size`` bytes of a set into memory."""
    with open(path / "data.mdb" if path.is_dir() else path, "rb", buffering=0) as file:
        while size > 0 and (got := file.read(min(size, 8 << 20))):
            size -= len(got)


def drop(path: Path) -> None:
    """Out of memory with it: what posix_fadvise(DONTNEED) does for pages nobody maps."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def follow(path: Path, change: dict[str, Any], words: list[str], cold: bool) -> float:
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
    fixed = ["-p", "io=pread"] if cold else []
    ratios = []
    for _ in range(3):
        for place in (path, after):
            read_in(place)
        if cold:  # what would have stayed in memory is there, the rest is not
            drop(path)
            read_in(path, int(HUGE_GB * 1e9))
        before = bench(path, *words, "--nthread", "2", "--njob", "4", *fixed)
        if cold:
            drop(path)
            if "shuffle" not in change["params"]:  # block by block nothing stays until it is wanted
                read_in(path, int(HUGE_GB * 1e9))
        then = bench(after, *words, *threads, *extra, *([] if change["command"] else fixed))
        ratios.append(then / before)
    if after != path:
        after.unlink()
    return statistics.median(ratios)


def main(folder: Path, chosen: list[str]) -> int:
    """Exit code: 1 if advice was off."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in chosen or CASES:
        build, words = CASES[name]
        path, cold = build(folder), name == "huge"
        if cold:
            drop(path)
            words = [*words]
        memory = ["--memory-gb", str(HUGE_GB)] if cold else []
        told = json.loads(run("doctor", path, "--json", "--nthread", "2", *words, *memory))
        advised = told["advised"] and told["advised"]["name"]
        print(f"{name}: {told['samples_per_second']:,.0f} samples/s, limit {told['limit']}")
        print(f"  advice: {advised or 'keep it as it is'}", flush=True)
        for change in told["tried"]:
            if change["factor"] is None or change["factor"] < 1.25:
                print(f"  {change['name']}: not worth it ({change['factor']})")
                continue
            reached = follow(path, change, words, cold)
            ratio = reached / change["factor"]
            off = abs(ratio - 1) > TOLERANCE
            wrong += off and change["name"] == advised
            print(
                f"  {change['name']}: named {change['factor']:,.1f}, reached {reached:,.1f}: "
                f"{ratio:.2f}{' OFF' if off else ''}",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
