"""A folder of 50,000 small JPEGs, packed, divided, sampled, joined and added to, beside ``cp -r``.

    python tests/benchmarks/sets.py /tmp/sets                    # --pictures 2000 for a short one

The pictures are cut from photographs that scikit-image ships, in ``train/`` and ``val/`` with ten
classes in each. Each command of docs/sets.md is timed as a process of its own, and so is ``cp -r``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg

if str(Path(__file__).resolve().parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from inputs import crops

import asyncreader
from asyncreader import AsyncReader

CLASSES = 10
SIDE = 64


def write_pictures(folder: Path, pictures: int) -> None:
    """One in ten is in val/."""
    for number, pixels in enumerate(crops(pictures, SIDE, SIDE, seed=1)):
        split = "val" if number // CLASSES % 10 == 0 else "train"
        path = folder / split / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=90))


def timed(what: str, act: Callable[[], object]) -> None:
    """Run it and print a row of a table."""
    begun = time.perf_counter()
    act()
    print(f"| {what} | {time.perf_counter() - begun:.1f} s |", flush=True)


def command(line: str) -> None:
    """Run and time a command: ``asyncreader ...`` or another program."""
    words = line.split()
    if words[0] == "asyncreader":
        words[:1] = [sys.executable, "-m", "asyncreader"]
        words += ["--quiet"] * (words[3] in ("convert", "verify"))
    timed(f"`{line}`", lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))


def epoch(**params: object) -> tuple[list[int], list[int]]:
    """The records and labels of an epoch."""
    records, labels = [], []
    with AsyncReader(batch_size=256, nthread=2, njob=2, **params) as reader:
        for batch in reader:
            records += batch.indices.tolist()
            labels += batch.labels[:, 0].tolist()
    return records, labels


def main() -> None:
    """Run all of it in the folder that is named; what is there is removed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=int, default=50_000, help="a multiple of 1,000")
    given = parser.parse_args()
    folder, pictures = given.folder, given.pictures
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_pictures(folder / "photos", pictures)
    subprocess.run(["sync"], check=True)
    os.chdir(folder)
    pack = "--encoding original --splits-from-folders"
    command("cp -r photos copy")
    command(f"asyncreader convert photos all.h5 {pack}")
    command("asyncreader convert all.h5 shares.h5 --split train=0.8,val=0.1,test=0.1 --stratify")
    command("asyncreader convert all.h5 val.h5 --select split=val")
    sample = f"--select train --sample {pictures // 10} --stratify"
    command(f"asyncreader convert all.h5 some.h5 {sample}")
    command("asyncreader convert val.h5 some.h5 joined.h5")
    command(f"asyncreader convert photos growing {pack} --shards 8")

    with asyncreader.open("shares.h5") as found:
        rows = {name: np.bincount(found.labels[rows, 0]) for name, rows in found.splits.items()}
    tenth = pictures // CLASSES // 10
    assert {name: set(counts.tolist()) for name, counts in rows.items()} == {
        "train": {8 * tenth}, "val": {tenth}, "test": {tenth},
    }  # fmt: skip

    def balanced() -> None:
        counts = np.bincount(epoch(path="all.h5", subset="train", weights="balanced")[1])
        assert pictures * 0.9 - 256 < counts.sum() <= pictures * 0.9
        assert abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())

    timed('an epoch of `subset="train", weights="balanced"`, decoded', balanced)
    shuffled, steps = {"path": "growing", "shuffle": True, "seed": 1}, pictures // 512
    with AsyncReader(batch_size=256, **shuffled) as reader:
        for _ in zip(range(steps), reader, strict=False):
            state = reader.state_dict()
    whole = epoch(**shuffled)[0]
    command("asyncreader convert joined.h5 growing --append")
    command("asyncreader verify growing")

    def resumed() -> None:
        with AsyncReader(
            batch_size=256, nthread=2, njob=2, subset=slice(0, pictures), **shuffled
        ) as reader:
            reader.load_state_dict(state)
            rest = [int(n) for batch in reader for n in batch.indices]
        assert rest == whole[steps * 256 :]

    timed("the rest of an epoch from a state that was saved before, decoded", resumed)
    with asyncreader.open("growing") as found:
        print({name: len(rows) for name, rows in found.splits.items()}, len(found))


if __name__ == "__main__":
    main()
