"""A million small rows written by ``Writer``, beside h5py: milliseconds.

``python tests/benchmarks/writing.py DIR`` writes rows of 16 float32 with a label. In blocks of
10,000: ``Writer.add_many`` beside slices of h5py's datasets, with and without fsync; one by one:
``Writer.add`` beside ``dataset[i] = row``, a tenth of the rows. What ``Writer`` leaves has
checksums, was read back and is on the disk. The disk is asked to finish before each turn.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import harness
import numpy as np
from harness import MILLISECONDS, Case, Contender, Goal
from inputs import Value
from player import Result, Spec, timed

WIDE, BLOCK = 16, 10_000
Write = Callable[[Path, np.ndarray, np.ndarray], None]


def h5py_blocks(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    import h5py

    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("data", rows.shape, "f4")
        table = file.create_dataset("labels", (len(rows), 1), "i8")
        for at in range(0, len(rows), BLOCK):
            data[at : at + BLOCK] = rows[at : at + BLOCK]
            table[at : at + BLOCK, 0] = labels[at : at + BLOCK]


def h5py_synced(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    h5py_blocks(path, rows, labels)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def h5py_rows(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    import h5py

    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("data", rows.shape, "f4")
        table = file.create_dataset("labels", (len(rows), 1), "i8")
        for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
            data[i], table[i, 0] = row, label


def writer_blocks(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    from asyncreader import Writer

    with Writer(path) as writer:
        for at in range(0, len(rows), BLOCK):
            writer.add_many(rows[at : at + BLOCK], labels[at : at + BLOCK])


def writer_rows(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    from asyncreader import Writer

    with Writer(path) as writer:
        for row, label in zip(rows, labels, strict=True):
            writer.add(row, label)


def written(spec: Spec) -> Callable[[], Result]:
    """A file written, and compared with what it should hold."""
    import h5py

    count, path = spec["rows"] // spec["part"], Path(spec["folder"]) / f"{spec['way']}.h5"
    rows = np.random.default_rng(0).standard_normal((count, WIDE), np.float32)
    labels, write = np.arange(count) % 10, globals()[spec["way"]]

    def job() -> Result:
        os.sync()
        with timed() as result:
            write(path, rows, labels)
        with h5py.File(path) as file:
            if not np.array_equal(file["data"][()], rows):
                raise RuntimeError(f"{spec['way']} has written other rows")
        path.unlink()
        return result

    return job


def case(name: str, writer: Write, others: tuple[Write, ...], part: int) -> Case:
    """A million rows, or a part of them."""
    rows = Value(1_000_000, 3000, "rows")
    contenders = [
        Contender(way.__name__, "writing.written", ours=way is writer, spec={
            "way": way.__name__, "rows": rows, "part": part})
        for way in (*others, writer)
    ]  # fmt: skip
    goals = [Goal(writer.__name__, other.__name__) for other in others]
    return Case(name, name.split()[0], contenders, goals, unit=MILLISECONDS)


CASES = [
    case("blocks of 10,000", writer_blocks, (h5py_blocks, h5py_synced), 1),
    case("rows one by one", writer_rows, (h5py_rows,), 10),
]

if __name__ == "__main__":
    sys.exit(harness.main("writing", __doc__, CASES))
