"""What the reader costs beside samples: growth with N, opening, packing.

``python tests/benchmarks/limits.py DIR`` uses the inputs of run.py in DIR, and builds what more it
needs (about 12 GB). ``--only NAME`` runs some of: growth, open, jpeg, python, convert.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Case, Contender, Goal, Setting, Unit
from inputs import (
    JPEG,
    JPEG_H5,
    JPEG_RESTARTS,
    MANY_RECORDS,
    RAW,
    Value,
)  # fmt: skip
from ours import Ours, files_of
from player import Result, Spec, private_mb, timed

SIZE = {"size": [224, 224]}
#: Pictures of the parts of decoding.
PICTURES = 500


def job(name: str, function: str, **spec: Any) -> Contender:
    return Contender(name, function, spec, ours=True)


# -- growth, opening ----------------------------------------------------------------------


class Virtual(Ours):
    """A reader of samples of 16 bytes in a sparse file, and its private memory."""

    def __init__(self, spec: Spec) -> None:
        path = Path(spec["folder"]) / f"virtual{spec['count']}.bin"
        with open(path, "wb") as file:
            file.truncate(16 * spec["count"])
        data = np.memmap(path, np.uint8, "r", shape=(spec["count"], 16))
        path.unlink()
        Ours({**spec, "params": {"data": data[:1000]}}).reader.close()  # what is imported is loaded
        self.before = private_mb()
        super().__init__({**spec, "params": {"data": data}})

    def figures(self) -> Result:
        return {"private MB beyond start": private_mb() - self.before}


def growth() -> Case:
    """Time per batch and private memory for 10^4 ... 10^8 samples of 16 bytes."""
    contenders = [job(f"10^{n}", "limits.Virtual", count=10**n) for n in (4, 5, 6, 7, 8)]
    unit = Unit("us a batch", 1e6, a_batch=True)
    return Case("growth", "growth", contenders, unit=unit, rounds=3, seconds=0.4)


def opening() -> Case:
    paths = {name: RAW[name] for name in ("raw32.h5", "raw32.lmdb", "raw32.gz")}
    paths |= {"jpeg.h5": JPEG_H5, "1.28M lmdb": MANY_RECORDS}
    contenders = [
        job(name, "ours.opened", params={"path": path, "njob": 1}) for name, path in paths.items()
    ]
    return Case("open", "open", contenders, unit=harness.SECONDS)


# -- where the time of a picture goes --------------------------------------------------------------


def jpeg_parts(spec: Spec) -> Callable[[], Result]:
    """Microseconds a picture of each part of a random-resized crop, in one thread."""
    import simplejpeg

    from asyncreader.pixels import kernels

    spent: dict[str, float] = {}

    def clocked(module: Any, name: str) -> None:
        call = getattr(module, name)

        def measured(*arguments: Any) -> Any:
            began = time.perf_counter()
            value = call(*arguments)
            spent[name] = spent.get(name, 0.0) + (time.perf_counter() - began) / PICTURES * 1e6
            if name == "decode_jpeg":
                pixels = value.shape[0] * value.shape[1] / PICTURES
                spent["pixels decoded"] = spent.get("pixels decoded", 0.0) + pixels
            return value

        setattr(module, name, measured)

    clocked(simplejpeg, "decode_jpeg")
    clocked(kernels, "plan_jpegs")
    clocked(kernels, "resize_planned")
    reader = Ours(spec).reader

    def run() -> Result:
        reader.seek(0)
        spent.clear()
        with timed(PICTURES) as result:
            for _ in range(PICTURES // spec["batch"]):
                reader.fetchData()
                reader.getNextBatch()
        parts = sum(us for name, us in spent.items() if name != "pixels decoded")
        return {**result, **spent, "rest": result["seconds"] / PICTURES * 1e6 - parts}

    return run


def jpegs() -> Case:
    """Without and with restart markers, and how many pixels of a picture are decoded."""
    crop = {**SIZE, "crop": "random-resized", "flip": True, "verify": "never", "njob": 1}
    names = {"without markers": JPEG_H5, "with markers": JPEG_RESTARTS}
    contenders = [
        job(name, "limits.jpeg_parts", params={"path": path, **crop})
        for name, path in names.items()
    ]
    goals, setting = [Goal("with markers", "without markers")], Setting(batch=125, workers=1)
    return Case("jpeg", "jpeg", contenders, goals, setting, Unit("us a picture", 1e6), rounds=3)


def python_part(spec: Spec) -> Callable[[], Result]:
    """What a sample costs in one thread if decoding and resizing are free: CPU time."""
    import simplejpeg

    from asyncreader.pixels import kernels
    from asyncreader.pixels.rows import RowJob, RowWriter
    from asyncreader.pixels.specs import OutputSpec
    from asyncreader.pixels.transform import plan_rows
    from asyncreader.sources import open_source
    from asyncreader.stats import Meter

    opened, batch = open_source(spec["path"], io="mmap"), spec["batch"]
    source, rng = opened.first, np.random.default_rng(1)
    options = {**spec["options"], "size": (192, 192)}
    fill = plan_rows(opened.spec, OutputSpec(**options), spec["path"])
    out, shapes = np.empty(fill.allocate_shape(batch), fill.dtype), list[tuple[int, ...]]()
    jobs = [
        RowJob(rng.integers(0, spec["count"], batch), np.arange(batch),
               rng.integers(0, 2**63, batch).astype(np.uint64))
        for _ in range(PICTURES // batch)
    ]  # fmt: skip
    decode = simplejpeg.decode_jpeg

    def run() -> Result:
        began = time.process_time()
        for one in jobs:
            source.read_into(RowWriter(source, one, (fill,), (out,), Meter()))
        return {"samples": batch * len(jobs), "seconds": time.process_time() - began}

    def noted(*arguments: Any) -> Any:
        pixels = decode(*arguments)
        shapes.append(pixels.shape)
        return pixels

    def free(*arguments: Any) -> Any:
        shapes.append(shapes.pop(0))
        high, wide, channels = shapes[-1]
        return np.frombuffer(arguments[-1], np.uint8, high * wide * channels).reshape(shapes[-1])

    simplejpeg.decode_jpeg = noted
    run()
    simplejpeg.decode_jpeg, kernels.resize_planned = free, lambda *arguments: None
    return run


def pythons() -> Case:
    crop = {"crop": "random-resized", "flip": True}
    rows = {
        "JPEG, random-resized crop": (JPEG_H5, crop),
        "JPEG, centre crop": (JPEG_H5, {"crop_ratio": 0.875}),
        "raw, random-resized crop": (RAW["raw224.h5"], crop),
    }
    count = Value(1000, 100)
    contenders = [
        job(name, "limits.python_part", path=path, options=options, count=count)
        for name, (path, options) in rows.items()
    ]
    return Case("python", "python", contenders, unit=Unit("us a sample", 1e6), rounds=15)


# -- converting ------------------------------------------------------------------------------------


def remove(target: Path) -> None:
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    os.sync()


def converted(spec: Spec) -> Callable[[], Result]:
    """The files a second that ``convert`` packs, with its fsync and its verification."""
    from converters import convert

    target = Path(spec["folder"]) / f"{spec['file']}"
    options, count = spec["options"], len(files_of(spec["images"]))

    def run() -> Result:
        with timed(count) as result:
            convert(spec["images"], target, jobs=spec["workers"], **options)
        remove(target)
        return result

    return run


def bare_convert(spec: Spec) -> Callable[[], Result]:
    """Reading, decoding, resizing and encoding in as many threads; nothing is written."""
    from converters.encode import Recipe

    files = files_of(spec["images"])
    recipe = Recipe(spec["encoding"], 3, (224, 224))

    def one(path: str) -> None:
        recipe.from_file(Path(path).read_bytes(), lambda size: None)

    def run() -> Result:
        with timed(len(files)) as result, ThreadPoolExecutor(spec["workers"]) as pool:
            for _ in pool.map(one, files):
                pass
        return result

    return run


def copied(spec: Spec) -> Callable[[], Result]:
    """``cp -r`` followed by ``sync``."""
    target, count = Path(spec["folder"]) / "copied", len(files_of(spec["images"]))

    def run() -> Result:
        with timed(count) as result:
            subprocess.run(["cp", "-r", spec["images"], str(target)], check=True)
            os.sync()
        remove(target)
        return result

    return run


def converting(name: str, options: Spec, other: Contender) -> Case:
    """Packing 10,000 JPEGs beside the bare work, or beside ``cp -r``."""
    contenders = [
        job(f"to {file}", "limits.converted", images=JPEG, options=options, file=file)
        for file in ("converted.h5", "converted.lmdb")
    ]
    goals = [Goal(one.name, other.name) for one in contenders]
    group = {"unit": Unit("files/s"), "rounds": 3, "warm": False}
    return Case(f"convert {name}", "convert", [*contenders, other], goals, **group)


def conversions() -> list[Case]:
    original = {"encoding": "original"}
    cp = Contender("cp -r and sync", "limits.copied", {"images": JPEG})
    cases = [converting("original", original, cp)]
    for encoding in ("raw", "jpeg"):
        spec = {"images": JPEG, "encoding": encoding}
        bare = Contender("bare work", "limits.bare_convert", spec)
        options = {"encoding": encoding, **SIZE}
        cases.append(converting(f"{encoding} 224x224", options, bare))
    return cases


CASES = [
    growth(),
    opening(),
    jpegs(),
    pythons(),
    *conversions(),
]

if __name__ == "__main__":
    sys.exit(harness.main("limits", __doc__, CASES))
