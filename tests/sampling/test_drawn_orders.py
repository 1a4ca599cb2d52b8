"""Orders of draws, classes and mixes: the same bytes in all ways of reading, from any state."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import packed, paint, pictures, write_hdf5, write_lmdb

from asyncreader import AsyncReader

COUNT = 63
#: Of classes 0 to 2: 45, 16 and 2 samples.
CLASSES = np.repeat([0, 1, 2], [45, 16, 2])
ORDERS: dict[str, dict[str, Any]] = {
    "weights": {"weights": (np.arange(COUNT) % 7).tolist()},
    "balanced": {"weights": "balanced", "epoch_samples": 100},
    "some": {"weights": "balanced", "subset": slice(5, 60, 2)},
    "classes": {"shuffle": "balanced-permutation"},
    "classes of some": {"shuffle": "balanced-permutation", "subset": slice(5, 60, 2)},
    "mix": {"mix": (0.75, 0.25), "shuffle": True},
    "three": {"mix": (0.5, 0.3, 0.2), "shuffle": True, "mix_until": "first", "classes": "own"},
    "in order": {"mix": (0.6, 0.4), "epoch_samples": 77},
    "blocks": {"mix": (0.75, 0.25), "shuffle": "block", "shuffle_window": 16},
    "mix of some": {"mix": (0.8, 0.2), "shuffle": True, "subset": slice(5, 90, 2)},
    "replacement": {"shuffle": "replacement", "epoch_samples": 41},
}
READ: dict[str, Any] = {
    "size": (8, 8),
    "crop": "random",
    "flip": True,
    "layout": "NHWC",
    "last_batch": "wrap",
    "batch_size": 8,
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packed sets."""
    folder = tmp_path_factory.mktemp("sets")
    labels = np.random.default_rng(0).permutation(CLASSES)[:, None]
    write_hdf5(folder / "a.h5", packed(paint(COUNT, (12, 10, 3)), labels=labels))
    write_lmdb(folder / "b.lmdb", packed(pictures(31, (20, 24, 3)), "png", labels=labels[:31]))
    gzip = {"chunks": (5, 16, 9, 3), "compression": "gzip"}
    write_hdf5(folder / "c.h5", packed(paint(17, (16, 9, 3)), labels=labels[:17]), **gzip)
    return folder


def params(sets: Path, order: str) -> dict[str, Any]:
    asked = ORDERS[order]
    files = [str(sets / name) for name in ("a.h5", "b.lmdb", "c.h5")]
    where: dict[str, Any] = {"path": files[0]}
    if "mix" in asked:
        where = {"mix": dict(zip(files, asked["mix"], strict=False))}
    return {**READ, **asked, **where}


def rows(batch: Any) -> list[tuple[bytes, ...]]:
    """What is served of each row."""
    columns = [batch.data, batch.labels, batch.indices, batch.mask]
    return [tuple(column[i].tobytes() for column in columns) for i in range(len(batch))]


def epochs(given: dict[str, Any], count: int = 3, **more: Any) -> list[list[tuple[bytes, ...]]]:
    """The rows of each step of some epochs; of two ranks those of both, joined."""
    world = more.get("world_size", 1)
    given = {**given, "batch_size": given["batch_size"] // world, "epochs": count, **more}
    ranks = [AsyncReader(given, rank=rank) for rank in range(world)]
    try:
        found = []
        for _ in range(count):
            for batches in zip(*ranks, strict=True):
                found.append([row for batch in batches for row in rows(batch)])
        return found
    finally:
        for rank in ranks:
            rank.close()


def hashed(steps: list[list[tuple[bytes, ...]]]) -> str:
    return hashlib.sha256(b"".join(b"".join(row) for step in steps for row in step)).hexdigest()


#: Threads, jobs and ranks: each value of one with each of another.
PAIRS = [(1, 1, 1), (2, 3, 2), (4, 1, 2), (8, 3, 1), (1, 3, 2), (8, 1, 2)]


@pytest.mark.parametrize("order", ORDERS)
def test_one_hash_in_threads(sets: Path, order: str, long: bool) -> None:
    """Three epochs are the same bytes with 1, 2, 4 and 8 threads, one rank and two ranks joined."""
    ways = itertools.product((1, 2, 4, 8), (1, 3), (1, 2)) if long else PAIRS
    found = {
        hashed(epochs(params(sets, order), nthread=nthread, njob=njob, world_size=world))
        for nthread, njob, world in ways
    }
    assert len(found) == 1


#: Of orders, processes and ranks: each order is served by a process in the next test.
SOME = [("balanced", 1, 2), ("three", 2, 2), ("blocks", 3, 1)]
OTHERS = itertools.product(ORDERS, (1, 4, 8), (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "nthread", "world"),
    [*SOME, *(pytest.param(*one, marks=pytest.mark.long) for one in OTHERS)],
)
def test_one_hash_in_processes(sets: Path, order: str, nthread: int, world: int) -> None:
    """Three epochs are the bytes of a thread in some processes, with one rank and two."""
    ways = {"workers": "process", "nthread": nthread, "world_size": world}
    found = hashed(epochs(params(sets, order), **ways))
    assert found == hashed(epochs(params(sets, order)))


@pytest.mark.parametrize("order", ORDERS)
def test_a_worker_process_has_the_order(sets: Path, order: str) -> None:
    """A worker process serves what a thread does: it gets the order, and works none out."""
    given = params(sets, order)
    assert epochs(given, 2, workers="process", nthread=1) == epochs(given, 2)


@pytest.mark.parametrize("order", ORDERS)
def test_resumed_anywhere(sets: Path, order: str) -> None:
    """From the state at each batch boundary of two epochs the rest is the same, also with other
    threads."""
    given = params(sets, order)
    whole = epochs(given, 2)
    with AsyncReader(given, epochs=2) as reader, AsyncReader(given, epochs=2, nthread=3) as other:
        for boundary in range(len(whole)):
            reader.seek(*divmod(boundary, len(reader)))
            other.load_state_dict(json.loads(json.dumps(reader.state_dict())))
            rest = [rows(batch) for _ in range(2) for batch in other]
            assert rest == whole[boundary:]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("batch", "world"), [(4, 1), (3, 2), (1, 5), (16, 2)])
def test_resumed_with_other_ranks(sets: Path, order: str, batch: int, world: int) -> None:
    """With other ranks and batch sizes the rest of the epoch is the rest of the same global order,
    from each batch boundary."""
    given = {**params(sets, order), "last_batch": "pad"}
    whole = [row for step in epochs(given, 1) for row in step if row[3] == b"\1"]
    with AsyncReader(given) as reader:
        count = reader.count
        assert len(whole) == count
        states = []
        for step in range(len(reader)):
            reader.seek(0, step)
            states.append(reader.state_dict())
    other = {**given, "batch_size": batch, "world_size": world}
    ranks = [AsyncReader(other, rank=rank) for rank in range(world)]
    for step, state in enumerate(states):
        for one in ranks:
            one.load_state_dict(state)
        rest = [
            row
            for batches in zip(*ranks, strict=True)
            for batch_of in batches
            for row in rows(batch_of)
            if row[3] == b"\1"
        ]
        assert rest == whole[8 * step :]
    for one in ranks:
        one.close()
