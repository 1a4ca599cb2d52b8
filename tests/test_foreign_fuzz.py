"""Whatever is done to the bytes of a foreign set, only our own typed errors come out."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import foreign_sets as foreign
import h5py
import numpy as np
import pytest
from fakes import paint, pictures
from source_contract import fill_rows

from asyncreader import AsyncReaderError, SampleError
from asyncreader.fill import Wanted
from asyncreader.sources import open_source

COUNT = 9
IMAGES = paint(COUNT, (8, 7, 3))
FILES = foreign.files(pictures(COUNT, (9, 8, 3)))
#: Mutations of each layout; the whole file takes some three seconds.
ROUNDS = 60


def pyxis(folder: Path) -> str:
    samples = [
        foreign.pyxis_sample({"input": i, "target": np.array(n)}) for n, i in enumerate(IMAGES)
    ]
    return foreign.write_pyxis(folder / "set", samples)


def branch(folder: Path) -> str:
    samples = {n: foreign.branch_sample({"input": i, "target": n}) for n, i in enumerate(IMAGES)}
    return foreign.write_branch(folder / "set", samples)


def tensorpack(folder: Path) -> str:
    points = [[foreign.numpy_map(i), f"text {n}"] for n, i in enumerate(IMAGES)]
    return foreign.write_lmdb(folder / "set", foreign.tensorpack(points))


def caffe(folder: Path) -> str:
    return foreign.write_lmdb(folder / "set", foreign.caffe(IMAGES, range(COUNT)))


def caffe_floats(folder: Path) -> str:
    entries = {
        b"%d" % n: foreign.datum((3, 8, 7), label=n, floats=i.transpose(2, 0, 1))
        for n, i in enumerate(IMAGES)
    }
    return foreign.write_lmdb(folder / "set", entries)


def ocr(folder: Path) -> str:
    return foreign.write_lmdb(folder / "set", foreign.ocr(FILES, [f"w{n}" for n in range(COUNT)]))


def basicsr(folder: Path) -> str:
    named = {f"n{n}": image for n, image in enumerate(IMAGES)}
    return foreign.write_basicsr(folder / "set", named)


def stylegan(folder: Path) -> str:
    return foreign.write_lmdb(folder / "set", foreign.stylegan({8: FILES}))


def bare(folder: Path) -> str:
    return foreign.write_lmdb(folder / "set", {b"%d" % n: f for n, f in enumerate(FILES)})


def vlen(folder: Path) -> str:
    with h5py.File(folder / "set.h5", "w") as file:
        foreign.vlen(file, "images", FILES)
        file["labels"] = np.arange(COUNT)
    return str(folder / "set.h5")


def fuel(folder: Path) -> str:
    flat = [np.ascontiguousarray(i.transpose(2, 0, 1)).reshape(-1) for i in IMAGES]
    with h5py.File(folder / "set.h5", "w") as file:
        data = foreign.vlen(file, "image_features", flat, chunks=(4,), compression="gzip")
        foreign.shapes(file, data, [(3, 8, 7)] * COUNT)
        file["targets"], file["chosen"] = np.arange(COUNT), np.array([1, 2])
        foreign.fuel_split(
            file,
            [
                (s, n, 0, 4, i, True)
                for s, i in (("a", None), ("b", "chosen"))
                for n in ("image_features", "targets")
            ],
        )
    return str(folder / "set.h5")


LAYOUTS: list[Callable[[Path], str]] = [
    *(pyxis, branch, tensorpack, caffe, caffe_floats, ocr, basicsr, stylegan, bare, vlen, fuel)
]


def mutate(raw: bytearray, rng: np.random.Generator) -> None:
    """A few bit flips, boundary numbers, zeros or copied pieces, where the file is not empty."""
    used = np.flatnonzero(np.frombuffer(bytes(raw), np.uint8))
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.choice(used))
        kind = int(rng.integers(5))
        if kind == 0:
            raw[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            raw[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == 2:
            width = int(rng.choice([2, 4, 8]))
            raw[at : at + width] = b"\xff" * len(raw[at : at + width])
        elif kind == 3:
            raw[at : at + 16] = bytes(len(raw[at : at + 16]))
        else:
            other = int(rng.choice(used))
            piece = raw[other : other + 8]
            raw[at : at + len(piece)] = piece[: len(raw[at : at + len(piece)])]


def read_everything(path: str) -> None:
    """All that a reader and convert would ask of a set; only our errors may come."""
    source = None
    try:
        source = open_source(path)
        size = None if source.spec.stored.shape is not None else (4, 4)
        fill_rows(source, Wanted(layout="NHWC", size=size), np.arange(source.spec.count))
        for index in range(source.spec.count):
            with contextlib.suppress(SampleError):
                source.sample_bytes(index)
                source.source_path(index)
                if not source.spec.stored.encoded:
                    source.sample_pixels(index)
    except AsyncReaderError as exc:
        assert str(exc)  # noqa: PT017 (most mutations open well, some must not)
    finally:
        if source is not None:
            source.close()


@pytest.mark.parametrize("build", LAYOUTS, ids=lambda build: build.__name__)
def test_mutations(tmp_path: Path, build: Callable[[Path], str]) -> None:
    """Mutated files are refused or read, and nothing else happens."""
    path = build(tmp_path)
    file = Path(path) / "data.mdb" if Path(path).is_dir() else Path(path)
    whole = file.read_bytes()
    rng = np.random.default_rng(2026)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(ROUNDS):
            raw = bytearray(whole)
            mutate(raw, rng)
            file.write_bytes(raw)
            read_everything(path)


@pytest.mark.parametrize(
    "build", [pyxis, tensorpack, caffe, caffe_floats, ocr], ids=lambda b: b.__name__
)
def test_mutated_values(tmp_path: Path, build: Callable[[Path], str]) -> None:
    """So are sound trees whose values are damaged: that is what the parsers see."""
    path = build(tmp_path)
    file = Path(path) / "data.mdb"
    whole = file.read_bytes()
    source = open_source(path)
    entries = source.entries  # type: ignore[attr-defined]
    places = [
        (int(start), int(size)) for start, size in zip(entries.starts, entries.sizes, strict=True)
    ]
    source.close()
    rng = np.random.default_rng(7)
    for _ in range(ROUNDS):
        raw = bytearray(whole)
        start, size = places[int(rng.integers(len(places)))]
        # the structure is at the ends of a value, the pixels between
        piece = bytearray(raw[start : start + size])
        edge = min(size, 120)
        at = (
            int(rng.integers(edge))
            if rng.random() < 0.7
            else size - 1 - int(rng.integers(min(size, 60)))
        )
        piece[at] = int(rng.integers(256))
        raw[start : start + size] = piece
        file.write_bytes(raw)
        read_everything(path)


def test_truncations(tmp_path: Path) -> None:
    """A file cut anywhere is refused when it is opened: no signal, no short set."""
    for number, build in enumerate((caffe, pyxis, bare, vlen)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = build(folder)
        file = Path(path) / "data.mdb" if Path(path).is_dir() else Path(path)
        whole = file.read_bytes()
        for part in (0.1, 0.5, 0.9):
            file.write_bytes(whole[: int(len(whole) * part)])
            with pytest.raises(AsyncReaderError):
                open_source(path)


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """A hostile set cannot take much memory: claims are checked before anything is allocated."""
    sample = foreign.pyxis_sample({"input": IMAGES[0], "target": np.arange(3)})
    hostile = sample.replace(b"\x91\x03", b"\x91\x7f").replace(b"\xc4\x18", b"\xc4\xff")
    path = foreign.write_pyxis(tmp_path / "set", [sample] * 4 + [hostile] * 4)
    program = (
        "import resource, sys, json\n"
        "from asyncreader.sources import open_source\n"
        "from asyncreader import AsyncReaderError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    open_source(sys.argv[1])\n    said = ''\n"
        "except AsyncReaderError as exc:\n    said = str(exc)\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps([said, after - before]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    said, grown = json.loads(done.stdout)
    assert "0000000004" in said
    assert grown < 100_000  # kB
    shutil.rmtree(path)
