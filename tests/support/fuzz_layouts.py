"""Damages sets of every foreign layout and reads them in processes of their own.

Each round changes some bytes of a set's files, or cuts one short, opens what is left and reads all
of it. Anything but a set that is read or an error of asyncreader is a failure: another exception, a
signal, ten seconds of silence, more than 4 GB, a pickle that is read. A failure is shown with its
round: ``Damaged(layout, folder).round(17)`` repeats it. tests/sources/test_foreign_contract.py runs
them, with ``--long`` many.
"""

import contextlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import h5py
import numpy as np
from child_processes import Ended, Watched, answer_requests
from fakes import packed, paint, pictures, write_hdf5, write_lmdb
from foreign_cases import CASES

from asyncreader import AsyncReaderError, SampleError
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, open_source
from asyncreader.sources.bytestore import OpenFile
from asyncreader.sources.lmdb import LmdbFile, lmdb_data_file
from asyncreader.testing.contract import fill_rows

COUNT = 9
IMAGES = paint(COUNT, (8, 7, 3))
FILES = foreign.files(pictures(COUNT, (9, 8, 3)))
SECONDS = 10
MEMORY = 4 << 30


# -- the layouts -----------------------------------------------------------------------------------


def pickles(folder: Path) -> str:
    """Pickled datapoints, which stay what they are, whatever is done to them."""
    import pickle

    points = [(f, n) for n, f in enumerate(FILES)]
    entries = foreign.tensorpack(points, dumps=pickle.dumps)
    return foreign.write_lmdb(folder / "set", entries)


def any_names(folder: Path) -> str:
    """The names of Torch's reader, labels of two columns, in a file of h5py's newest format."""
    with h5py.File(folder / "set.h5", "w", libver="latest") as file:
        file["data"], file["labels"] = IMAGES, np.zeros((COUNT, 2))
    return str(folder / "set.h5")


def written(case: str) -> Callable[[Path], str]:
    """What writes a set of foreign_cases.py."""
    return lambda folder: CASES[case](folder).path


#: Cases of foreign_cases.py: one for each way in which a layout can be read.
OTHERS = (
    *("pyxis", "pyxis branch", "tensorpack files", "Caffe", "Caffe floats", "Caffe encoded"),
    *("tensorpack pixels", "OCR", "BasicSR", "Fuel vlen", "StyleGAN2", "LSUN", "vlen", "vlen gzip"),
    *("PCam", "AnnData", "AnnData contiguous", "10x"),
)
LAYOUTS: dict[str, Callable[[Path], str]] = {
    **{case.replace(" ", "-"): written(case) for case in OTHERS},
    **{make.__name__: make for make in (pickles, any_names)},
    "our-HDF5": lambda folder: write_hdf5(folder / "set.h5", packed(IMAGES, "png")),
    "our-LMDB": lambda folder: write_lmdb(folder / "set", packed(IMAGES)),
    "our-gzip": lambda folder: write_hdf5(
        folder / "set.h5", packed(IMAGES), chunks=(2, 8, 7, 3), compression="gzip"
    ),
}


# -- one round -------------------------------------------------------------------------------------


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


def values_of(path: str) -> list[tuple[int, int]]:
    """Where the values of an LMDB's records lie in its file: what the parsers see."""
    data_file = lmdb_data_file(path)
    if data_file is None:
        return []
    with contextlib.closing(OpenFile(data_file, "mmap")) as file:
        tree = LmdbFile(file.mapped.bytes, path)
        found = [tree.table(one) for one in tree.named().values() or (tree.main,)]
        return [
            value
            for one in found
            for value in zip(one.starts.tolist(), one.sizes.tolist(), strict=True)
        ]


def change_value(raw: bytearray, value: tuple[int, int], rng: np.random.Generator) -> None:
    """Some bytes of a value of a sound tree; its structure is at its ends, the pixels between."""
    start, size = value
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() < 0.7:
            at = int(rng.integers(min(size, 120)))
        else:
            at = size - 1 - int(rng.integers(min(size, 60)))
        raw[start + at] = int(rng.integers(256))


def read_everything(path: str) -> str:
    """All that a reader and convert would ask of a set; only our errors may come: what they say."""
    source = None
    try:
        source = open_source(path)
        size = None if source.spec.shape is not None else (4, 4)
        fill_rows(source, OutputSpec(layout="NHWC", size=size), np.arange(source.facts.count))
        for index in range(source.facts.count):
            with contextlib.suppress(SampleError):
                Inspector(source.first).bytes(index)
                Inspector(source.first).path(index)
                if not source.spec.encoded:
                    Inspector(source.first).pixels(index)
    except AsyncReaderError as exc:
        assert str(exc)  # noqa: PT017 (most sets are read, some must be refused)
        return str(exc)
    finally:
        if source is not None:
            source.close()
    return ""


class Damaged:
    """A set in ``folder`` that each round damages anew."""

    def __init__(self, layout: str, folder: Path) -> None:
        self.path = LAYOUTS[layout](folder)
        said = read_everything(self.path)
        assert not said or layout == "pickles", said
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock.mdb")
        self.whole = {file: file.read_bytes() for file in files}
        self.layout = layout
        self.values = values_of(self.path)

    def round(self, number: int) -> str:
        """What came of one round: "" where the set is read, or the error's text."""
        rng = np.random.default_rng([number, *self.layout.encode()])
        for file, whole in self.whole.items():
            file.write_bytes(whole)
        file = list(self.whole)[int(rng.integers(len(self.whole)))]
        raw = bytearray(self.whole[file])
        kind = rng.random()
        if kind < 0.15:
            del raw[int(rng.integers(len(raw))) :]
        elif kind < 0.5 and self.values and file.name == "data.mdb":
            change_value(raw, self.values[int(rng.integers(len(self.values)))], rng)
        else:
            mutate(raw, rng)
        file.write_bytes(raw)
        return read_everything(self.path)


def no_pickles(event: str, arguments: Any) -> None:
    """An audit hook: a pickle that names anything, as the dangerous ones must, is a failure."""
    # numba keeps the error that a kernel raises as a pickle in its own compiled code
    if event == "pickle.find_class" and arguments != ("builtins", "ValueError"):
        raise AssertionError(f"a pickle was read: {arguments}")


def child(layout: str) -> None:
    """Rounds that are asked for: whether each is refused. Any exception ends the process."""
    sys.addaudithook(no_pickles)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        damaged = Damaged(layout, Path(folder))
        answer_requests(lambda number: damaged.round(number) != "", MEMORY)


# -- all of them -----------------------------------------------------------------------------------


def fuzz(layout: str, rounds: int, program: Sequence[str] = (__file__,)) -> tuple[int, list[str]]:
    """(rounds that were refused with an error of ours, failures) of a layout."""
    refused, failures = 0, []
    with Watched(*program, layout, patience=SECONDS) as watched:
        for number in range(rounds):
            try:
                refused += watched.ask(number)
            except Ended as end:
                said = end.said.strip().rpartition("\n")[2]
                failures.append(f"{layout}, round {number}: {end.how}: {said}")
    return refused, failures


if __name__ == "__main__":
    child(sys.argv[1])
