"""What the reader costs beside samples: growth with N and threads, opening, memory, cold files.

``python tests/benchmarks/limits.py DIR`` uses the inputs of run.py in DIR (and builds what more it
needs, about 12 GB), prints each figure with its bar where there is one, and writes
DIR/limits.json. ``--only NAME`` runs some of: growth, threads, open, shards, memory, consumer,
cold, postprocess, jpeg, python, patches, convert.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import inputs
import numpy as np
from inputs import build, pack_lmdb, pack_shards

from asyncreader import AsyncReader
from asyncreader.sources import Inspector

BATCH = 128
#: Pictures of the parts of decoding.
PICTURES = 500
#: Alternations of the slow comparisons (--rounds).
ROUNDS = 3


def private_kib() -> int:
    """RssAnon of this process, KiB: private memory, page cache and memfd left out."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def rate(reader: AsyncReader, seconds: float) -> float:
    """Samples per second of the plain loop."""
    njob = reader.params.njob
    for _ in range(njob):
        reader.fetchData()
    for _ in range(njob + 2):
        reader.getNextBatch()
        reader.fetchData()
    samples, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        samples += len(reader.getNextBatch())
        reader.fetchData()
    for _ in range(njob):
        reader.getNextBatch()
    return samples / elapsed


def growth(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Time per batch and private memory for 10^4 ... 10^8 samples of 16 bytes, shuffle=True."""
    for power in (4, 5, 6, 7, 8):
        path = folder / f"virtual{power}.bin"
        with open(path, "wb") as file:
            file.truncate(16 * 10**power)  # sparse
        data = np.memmap(path, np.uint8, "r", shape=(10**power, 4, 4, 1))
        before = private_kib()
        with AsyncReader(
            {"data": data, "batch_size": BATCH, "shuffle": True, "njob": 4, "nthread": 2}
        ) as reader:
            per_batch = BATCH / statistics.median(rate(reader, 0.4) for _ in range(3))
            grown = private_kib() - before
        path.unlink()
        yield {
            "samples": 10**power,
            "us a batch": round(per_batch * 1e6, 1),
            "private KiB beyond start": grown,
        }


def threads(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Samples/s by nthread."""
    for name in ("raw224.h5", "raw32.h5", "jpeg.lmdb"):
        extra = {"size": (224, 224), "crop_ratio": 0.875} if name.startswith("jpeg") else {}
        row: dict[str, Any] = {"set": name}
        for count in (1, 2, 4, 8):
            with AsyncReader(
                path=made[name], batch_size=BATCH, shuffle=True, njob=8, nthread=count, **extra
            ) as reader:
                row[f"nthread {count}"] = round(
                    statistics.median(rate(reader, 1.0) for _ in range(3))
                )
        yield row


def opening(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Seconds to open; bar: 0.5 s for 50,000 records, 5 s for 1.28 M."""
    big = folder / "raw32_1281167_lmdb"

    def make(path: Path) -> None:
        small = np.load(made["raw32"], mmap_mode="r")
        pack_lmdb(path, Repeated(small, 1_281_167))

    made = {**made, "1.28M lmdb": str(inputs.once(big, make))}
    for name, bar in (
        ("raw32.h5", 0.5), ("raw32.lmdb", 0.5), ("jpeg.h5", 0.5), ("raw32.gz", 0.5),
        ("1.28M lmdb", 5.0),
    ):  # fmt: skip
        times = []
        for _ in range(5):
            started = time.perf_counter()
            reader = AsyncReader(path=made[name], batch_size=BATCH)
            times.append(time.perf_counter() - started)
            count = reader.count
            reader.close()
        yield {
            "set": name,
            "samples": count,
            "seconds": round(statistics.median(times), 4),
            "bar": bar,
        }


def shards(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Samples/s of 1,000 shards of 32x32, by how many of them may be open, beside one file."""

    def make(path: Path) -> None:
        pack_shards(path, np.load(made["raw32"], mmap_mode="r"), 1000)

    many = str(inputs.once(folder / "raw32_1000_shards", make))
    code = (
        "import json, resource, sys; sys.path.insert(0, sys.argv[1]); import limits\n"
        "from asyncreader import AsyncReader\n"
        "opened = int(sys.argv[2])\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4 * opened, hard))\n"
        "reader = AsyncReader(json.loads(sys.argv[3]))\n"
        "list(zip(range(400), reader)); reader.seek(0)\n"  # all are open, where all may be
        "print(max(limits.rate(reader, 2.0) for _ in range(3)))\n"
    )
    for name, path, shuffle, opened in (
        ("one file", made["raw32.h5"], True, 100),
        ("1,000 shards", many, True, 1000),
        ("1,000 shards", many, "block", 100),
        ("1,000 shards", many, True, 100),
    ):
        params = {"path": path, "batch_size": BATCH, "shuffle": shuffle, "nthread": 2, "njob": 2,
                  "verify": "never"}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parent), str(opened),
             json.dumps(params)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        yield {
            "set": name,
            "shuffle": str(shuffle),
            "open at most": opened,
            "samples/s": round(float(done.stdout.splitlines()[-1])),
        }


class Repeated:
    """``count`` rows that repeat those of a smaller array."""

    def __init__(self, rows: Any, count: int) -> None:
        self.rows, self.shape = rows, (count, *rows.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            places = np.arange(*which.indices(len(self)))
            return self.rows[places % len(self.rows)]
        return self.rows[which % len(self.rows)]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


def memory(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Private memory after 10 and after 1,000 batches; bar: equal within 5 MB."""
    for name, extra in (
        ("raw224.h5", {}),
        ("raw224.lmdb", {}),
        ("raw32.gz", {"shuffle": "block"}),
        ("jpeg.lmdb", {"size": (224, 224)}),
        ("raw224.h5", {"dtype": "float32", "scale": 1 / 255}),
    ):
        code = (
            "import json, sys; sys.path.insert(0, sys.argv[1]); import limits\n"
            "from asyncreader import AsyncReader\n"
            "reader = AsyncReader(json.loads(sys.argv[2]))\n"
            "taken = 0; found = []\n"
            "while taken < 1000:\n"
            "    for batch in reader:\n"
            "        taken += 1\n"
            "        if taken in (10, 1000): found.append(limits.private_kib())\n"
            "        if taken == 1000: break\n"
            "print(json.dumps(found))\n"
        )
        params = {"path": made[name], "batch_size": BATCH, "shuffle": True, "nthread": 2,
                  "njob": 2, **extra}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent), json.dumps(params)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        first, last = json.loads(done.stdout.splitlines()[-1])
        yield {
            "set": name,
            **{key: str(value) for key, value in extra.items()},
            "MB after 10": round(first / 1024, 1),
            "MB after 1000": round(last / 1024, 1),
            "bar": "+5",
        }


def consumer(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """JPEGs while the consumer burns 80 ms of pure Python a batch, or sleeps as long."""
    for kind in ("takes no time", "burns 80 ms of Python", "waits 80 ms"):
        with AsyncReader(
            path=made["jpeg.lmdb"], batch_size=BATCH, shuffle=True, njob=4, nthread=2,
            size=(224, 224), crop_ratio=0.875,
        ) as reader:  # fmt: skip
            idle = threading.Event()
            samples, started = 0, time.perf_counter()
            while samples < 40 * BATCH:
                for batch in reader:
                    samples += len(batch)
                    until = time.perf_counter() + 0.08
                    if kind.startswith("burns"):
                        while time.perf_counter() < until:
                            pass
                    elif kind.startswith("waits"):
                        idle.wait(0.08)
            elapsed = time.perf_counter() - started
            yield {
                "consumer": kind,
                "samples/s": round(samples / elapsed),
                "waiting": f"{reader.stats().wait_share:.0%}",
            }


def drop_cache(path: str) -> bool:
    """Put a file's pages out of the page cache; whether that worked."""
    from asyncreader.system.memory import cached_share, map_file

    inside = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    fd = os.open(inside, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return cached_share(map_file(fd, os.fstat(fd).st_size)) < 0.1
    finally:
        os.close(fd)


def cold(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One shuffled epoch of a file that is not in the page cache, by io and nthread."""
    for name in ("raw224.h5", "jpeg.lmdb"):
        for io in ("mmap", "pread", "auto"):
            for count in (2, 8):
                if not drop_cache(made[name]):
                    yield {"set": name, "note": "this machine keeps its page cache"}
                    return
                extra = {"size": (224, 224)} if name.startswith("jpeg") else {}
                with AsyncReader(
                    path=made[name], batch_size=BATCH, shuffle=True, njob=8, nthread=count,
                    io=io, verify="never", **extra,
                ) as reader:  # fmt: skip
                    started = time.perf_counter()
                    samples = sum(len(batch) for batch in reader)
                    elapsed = time.perf_counter() - started
                yield {
                    "set": name,
                    "io": io,
                    "nthread": count,
                    "samples/s": round(samples / elapsed),
                }


def burn(data: np.ndarray, labels: np.ndarray) -> None:
    """A postprocess that holds the GIL for about 10 ms."""
    total = 0
    for i in range(300_000):
        total += i * i


def postprocess(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A postprocess that holds the GIL: threads against processes."""
    for workers in ("thread", "process"):
        row: dict[str, Any] = {"workers": workers}
        for count in (1, 2):
            with AsyncReader(
                path=made["raw32.h5"], batch_size=BATCH, shuffle=True, njob=4, nthread=count,
                workers=workers, postprocess=burn,
            ) as reader:  # fmt: skip
                row[f"samples/s, {count}"] = round(
                    statistics.median(rate(reader, 1.5) for _ in range(5))
                )
        row["2 / 1"] = round(row["samples/s, 2"] / row["samples/s, 1"], 2)
        yield row


def jpeg_parts(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Where the time of a random-resized crop goes, us a picture in one thread, without and with
    restart markers, in turns; and which part of the pictures is decoded with them."""
    import simplejpeg

    from asyncreader.pixels import kernels
    from asyncreader.pixels.encoded import PLANNED_BYTES, Images, groups, planned
    from asyncreader.pixels.specs import OutputSpec
    from asyncreader.pixels.transform import RowTransform
    from asyncreader.sources import open_source
    from asyncreader.stats import Meter

    spent: dict[str, float] = {}

    def timed(module: Any, name: str) -> None:
        call = getattr(module, name)

        def measured(*arguments: Any) -> Any:
            started = time.perf_counter()
            found = call(*arguments)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - started
            if name == "decode_jpeg":
                spent["pixels"] = spent.get("pixels", 0) + found.shape[0] * found.shape[1]
            return found

        setattr(module, name, measured)

    rng = np.random.default_rng(1)
    records = rng.integers(0, inputs.JPEGS * inputs.TIMES, PICTURES).tolist()
    keys = rng.integers(0, 2**63, PICTURES).astype(np.uint64)
    out, rows = np.empty((1, 224, 224, 3), np.uint8), np.zeros(PICTURES, np.int64)
    kept = [(module, name, getattr(module, name)) for module, name in (
        (simplejpeg, "decode_jpeg"), (kernels, "plan_jpegs"), (kernels, "resize_planned"),
    )]  # fmt: skip
    samples, rounds = {}, {}
    for name in ("jpeg.h5", "jpeg.restarts"):
        source = open_source(made[name])
        samples[name] = [Inspector(source.first).bytes(record) for record in records]
        fill = RowTransform(
            source.spec, OutputSpec(size=(224, 224), crop="random-resized", flip=True), name
        )
        rounds[name] = list[dict[str, float]]()
        source.close()
    crops, flips = fill.draws(keys)
    assert crops is not None
    assert flips is not None

    def serve(pictures: list[bytes]) -> None:
        """Put all pictures that are planned into the row."""
        data = np.frombuffer(b"".join(pictures), np.uint8)
        sizes = np.array([len(one) for one in pictures])
        starts, address = np.cumsum(sizes) - sizes, data.ctypes.data
        for some in groups(sizes.tolist(), PLANNED_BYTES):
            images = Images(
                lambda at, size: data[at : at + size], address, starts[some], sizes[some]
            )
            put = planned(fill)(fill, images, crops[some], flips[some], out, rows[some])
            assert not list(put.put_all(Meter()))

    try:
        for module, name, _ in kept:
            timed(module, name)
        for _ in range(1 + ROUNDS):
            for name, pictures in samples.items():
                spent.clear()
                started = time.perf_counter()
                serve(pictures)
                rounds[name].append({**spent, "whole": time.perf_counter() - started})
    finally:
        for module, name, call in kept:
            setattr(module, name, call)
    for name, found in rounds.items():
        us = {
            part: statistics.median(one.get(part, 0.0) for one in found[1:]) / PICTURES * 1e6
            for part in ("decode_jpeg", "plan_jpegs", "resize_planned", "whole")
        }
        rest = 2 * us["whole"] - sum(us.values())
        yield {"set": name, **{part: round(one) for part, one in us.items()}, "rest": round(rest)}
    plain, marked = rounds.values()
    ratio = statistics.median(a["whole"] / b["whole"] for a, b in zip(plain, marked, strict=True))
    part = marked[0]["pixels"] / plain[0]["pixels"]
    yield {"without / with markers": round(ratio, 2), "part decoded": round(part, 2)}


def python_parts(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What a sample costs in one thread if decoding and resizing are free, us of CPU time."""
    import simplejpeg

    from asyncreader.pixels import kernels
    from asyncreader.pixels.rows import RowJob, RowWriter
    from asyncreader.pixels.specs import OutputSpec
    from asyncreader.pixels.transform import RowTransform
    from asyncreader.sources import open_source
    from asyncreader.stats import Meter

    rng = np.random.default_rng(1)
    decode, resize = simplejpeg.decode_jpeg, kernels.resize_planned
    crop = {"size": (192, 192), "crop": "random-resized", "flip": True}
    for name, options, bar in (
        ("jpeg.h5", crop, 14), ("jpeg.h5", {"size": (192, 192), "crop_ratio": 0.875}, 14),
        ("raw224.h5", crop, 6.7),
    ):  # fmt: skip
        opened = open_source(made[name], io="mmap")
        source, fill = opened.first, RowTransform(opened.spec, OutputSpec(**options), name)
        out, shapes = np.empty(fill.allocate_shape(BATCH), fill.dtype), list[tuple[int, ...]]()
        jobs = [
            RowJob(rng.integers(0, 1000, BATCH), np.arange(BATCH),
                   rng.integers(0, 2**63, BATCH).astype(np.uint64))
            for _ in range(PICTURES // BATCH)
        ]  # fmt: skip

        def read(job: Any, fill: Any = fill, out: Any = out, source: Any = source) -> None:
            source.read_into(RowWriter(source, job, fill, out, Meter()))

        def noted(*arguments: Any, shapes: Any = shapes) -> Any:
            shapes.append(decode(*arguments).shape)
            return decode(*arguments)

        def free(*arguments: Any, shapes: Any = shapes) -> Any:
            shapes.append(shapes.pop(0))
            high, wide, channels = shapes[-1]
            return np.frombuffer(arguments[-1], np.uint8, high * wide * channels).reshape(
                shapes[-1]
            )

        try:
            simplejpeg.decode_jpeg = noted
            for job in jobs:
                read(job)
            simplejpeg.decode_jpeg, kernels.resize_planned = free, lambda *arguments: None
            found = []
            for _ in range(5 * ROUNDS):
                started = time.process_time()
                for job in jobs:
                    read(job)
                found.append((time.process_time() - started) / (BATCH * len(jobs)) * 1e6)
        finally:
            simplejpeg.decode_jpeg, kernels.resize_planned = decode, resize
            opened.close()
        yield {"set": name, **options, "us": round(min(found), 2), "bar": bar}


def patches(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Random patches of 64^3 with labels from gzip, against bare inflating of what they touch."""
    import h5py
    import imagecodecs

    path, count, fields = str(inputs.volume(folder)), 256, ["raw", "label"]
    stored: list[tuple[int, bytes]] = []
    reader = AsyncReader(
        path=path, data_field=fields, labels_field=None, sample_axis=None, patch=(64, 64, 64),
        epoch_samples=count, batch_size=8, shuffle=True, nthread=2, njob=4,
    )  # fmt: skip
    with reader, h5py.File(path, "r") as file:
        for batch in reader:
            assert batch.place is not None
            for data in (file[name] for name in fields):
                touched = set()
                for corner in batch.place.tolist():
                    sides = (range(at // n, (at + 63) // n + 1) for at, n in zip(
                        corner, data.chunks, strict=True))  # fmt: skip
                    touched |= set(itertools.product(*sides))
                for chunk in sorted(touched):
                    where = tuple(at * n for at, n in zip(chunk, data.chunks, strict=True))
                    size = int(np.prod(data.chunks)) * data.dtype.itemsize
                    stored.append((size, data.id.read_direct_chunk(where)[1]))

        def bare() -> float:
            """Patches/s of two threads that inflate all of these chunks, and nothing else."""
            left, memory = iter(stored), [np.empty(1 << 20, np.uint8) for _ in range(2)]
            lock = threading.Lock()

            def work(out: np.ndarray) -> None:
                while True:
                    with lock:
                        some = list(itertools.islice(left, 16))
                    if not some:
                        return
                    for size, data in some:
                        imagecodecs.deflate_decode(data, out=out[:size])

            pair = [threading.Thread(target=work, args=(out,)) for out in memory]
            started = time.perf_counter()
            for thread in pair:
                thread.start()
            for thread in pair:
                thread.join()
            return count / (time.perf_counter() - started)

        def ours() -> float:
            reader.seek(0)
            started = time.perf_counter()
            assert sum(len(batch) for batch in reader) == count
            return count / (time.perf_counter() - started)

        rates = [(ours(), bare()) for _ in range(1 + ROUNDS)][1:]
    yield {
        "patches/s": round(statistics.median(one for one, _ in rates)),
        "bare": round(statistics.median(other for _, other in rates)),
        "ratio": round(statistics.median(one / other for one, other in rates), 2),
        "bar": 0.6,
    }


def convert_speed(folder: Path, made: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Packing 10,000 JPEGs against the bare work in as many threads, or ``cp -r`` and ``sync``."""
    from converters import convert
    from converters.encode import Recipe

    photos = Path(made["jpeg"])
    files = sorted(photos.rglob("*.jpg"))
    for file in files:
        file.read_bytes()  # warm

    def bare(recipe: Recipe) -> float:
        """Files/s of reading, decoding, resizing and encoding in two threads, kept nowhere."""
        turn = iter(files)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    file = next(turn, None)
                if file is None:
                    return
                recipe.from_file(file.read_bytes(), lambda size: None)

        pair = [threading.Thread(target=work) for _ in range(2)]
        started = time.perf_counter()
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join()
        return len(files) / (time.perf_counter() - started)

    def ours(target: Path, **options: Any) -> float:
        started = time.perf_counter()
        convert(photos, target, jobs=2, **options)
        elapsed = time.perf_counter() - started
        remove(target)
        return len(files) / elapsed

    def copied() -> float:
        target = folder / "copied"
        started = time.perf_counter()
        subprocess.run(["cp", "-r", str(photos), str(target)], check=True)
        subprocess.run(["sync"], check=True)
        elapsed = time.perf_counter() - started
        remove(target)
        return len(files) / elapsed

    def remove(target: Path) -> None:
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        subprocess.run(["sync"], check=True)

    cases: list[tuple[str, dict[str, Any], Callable[[], float], float]] = [
        (
            f"{encoding} 224x224, {suffix}",
            {"encoding": encoding, "size": (224, 224), "suffix": suffix},
            lambda encoding=encoding: bare(Recipe(encoding, 3, (224, 224))),  # type: ignore[misc]
            0.9,
        )
        for encoding in ("raw", "jpeg")
        for suffix in (".h5", ".lmdb")
    ]
    cases[:0] = [
        (f"original, {suffix}", {"encoding": "original", "suffix": suffix}, copied, 0.4)
        for suffix in (".h5", ".lmdb")
    ]
    restarts = {"encoding": "original", "restarts": True, "suffix": ".h5"}
    plain = partial(ours, folder / "plain.h5", encoding="original")
    cases.append(("original with restart markers, against without", restarts, plain, 0.5))
    for name, options, other, bar in cases:
        ratios, rates = [], []
        suffix = options.pop("suffix")
        for _ in range(ROUNDS):
            one, two = ours(folder / f"converted{suffix}", **options), other()
            ratios.append(one / two)
            rates.append(one)
        yield {
            "convert": name,
            "files/s": round(statistics.median(rates)),
            "ratio": round(statistics.median(ratios), 2),
            "bar": bar,
        }


PARTS: dict[str, Callable[[Path, dict[str, str]], Iterator[dict[str, Any]]]] = {
    "growth": growth,
    "threads": threads,
    "open": opening,
    "shards": shards,
    "memory": memory,
    "consumer": consumer,
    "cold": cold,
    "postprocess": postprocess,
    "jpeg": jpeg_parts,
    "python": python_parts,
    "patches": patches,
    "convert": convert_speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    globals()["ROUNDS"] = options.rounds
    made = build(options.folder)
    told: dict[str, list[dict[str, Any]]] = {}
    for name in options.only or PARTS:
        print(f"\n{name}: {(PARTS[name].__doc__ or '').splitlines()[0]}")
        for row in PARTS[name](options.folder, made):
            told.setdefault(name, []).append(row)
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    (options.folder / "limits.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
