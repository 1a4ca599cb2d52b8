"""Orders of draws, classes and mixes: the same bytes in all ways of reading, from any state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import packed, paint, pictures, write_hdf5, write_lmdb
from reader_contract import ReaderContract, Served

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
    "shuffle": False,
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


@pytest.fixture(params=ORDERS)
def served(request: pytest.FixtureRequest, sets: Path) -> Served:
    """An order. The tests beside this one say which samples it draws."""
    asked = ORDERS[request.param]
    files = [str(sets / name) for name in ("a.h5", "b.lmdb", "c.h5")]
    where: dict[str, Any] = {"path": files[0]}
    if "mix" in asked:
        where = {"mix": dict(zip(files, asked["mix"], strict=False))}
    return Served({**READ, **asked, **where}, lambda _: None, None, (8, 2, 3))


class TestEveryOrder(ReaderContract):
    """An order is the same in every way of reading."""
