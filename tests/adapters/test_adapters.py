"""What the adapters do without their frameworks: the endless generator, and plain words."""

import itertools
import pickle
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from child_processes import run
from frameworks import LABELS, SMALL, STEPS, check, is_whole_epoch

import asyncreader
from asyncreader import AsyncReader, ParamsError, faces
from asyncreader.adapters.base import Loader
from asyncreader.adapters.generator import endless


def seen(batches: Any, count: int) -> list[list[int]]:
    """The samples of ``count`` batches, their pixels compared."""
    return [
        check(data, labels[:, 0], nchw=True) for data, labels in itertools.islice(batches, count)
    ]


def test_endless_goes_on() -> None:
    """The generator serves epoch after epoch, in AsyncReader's order, without end."""
    with AsyncReader(SMALL) as reader:
        expected = [batch.indices.tolist() for _ in range(4) for batch in reader]
    batches = endless(SMALL, njob=2)
    assert isinstance(batches, Iterator)
    assert seen(batches, 4 * STEPS) == expected


def test_endless_holds_twelve() -> None:
    """Twelve batches held at once are right; with zero_copy, which a dict may hold, they lie in the
    njob + 1 slots. as_dict counts in the dict of open()."""
    held = list(itertools.islice(endless(SMALL, debug=True), 12))
    assert is_whole_epoch(seen(held, STEPS))
    for batches in (endless(SMALL, zero_copy=True), endless({**SMALL, "zero_copy": True})):
        places = {data.ctypes.data for data, _ in itertools.islice(batches, 12)}
        assert len(places) <= 2
    with asyncreader.open({"data": np.zeros((3, 2)), "as_dict": True}) as ds:
        assert ds[0].keys() == {"data"}


def test_endless_ends_with_epochs() -> None:
    """epochs=2 ends it after two epochs; (B, 1) labels stay as stored, none are None."""
    batches = list(endless(SMALL, epochs=2))
    assert len(batches) == 2 * STEPS
    assert {labels.shape for _, labels in batches} == {(4, 1)}
    assert next(endless(SMALL, labels=None))[1] is None


@pytest.mark.parametrize("zero_copy", [False, True])
def test_endless_marks_padded_rows(zero_copy: bool) -> None:
    """Integer labels of padded rows are -100, unsigned ones as int64; AsyncReader's, whose batches
    have a mask, stay 0."""
    params: dict[str, Any] = {**SMALL, "last_batch": "pad", "shuffle": False, "epochs": 1}
    for labels, ignored in ((LABELS, -100), (LABELS.astype(np.uint8), -100), (LABELS / 2, 0)):
        batches = endless(params, labels=labels, zero_copy=zero_copy)
        *_, last = (given.copy() for _, given in batches)
        assert last.dtype == (np.float64 if labels.dtype.kind == "f" else np.int64)
        assert last.tolist() == [*labels[40:].tolist(), [ignored], [ignored]]
    with AsyncReader(params) as reader:
        *_, batch = reader
        assert batch.labels.tolist() == [[40], [41], [0], [0]]


def test_endless_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the generator closes its reader; wrong parameters are told at once."""
    opened: list[AsyncReader] = []

    def note(*arguments: Any, **options: Any) -> AsyncReader:
        opened.append(AsyncReader(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr("asyncreader.adapters.generator.AsyncReader", note)
    batches: Any = endless(SMALL)
    next(batches)
    batches.close()
    assert "closed" in repr(opened[0])
    with pytest.raises(ParamsError, match="batch_size"):
        endless(SMALL, batchsize=3)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "TorchReader"),
        ("jax", "JaxReader"),
        ("keras", "ReaderDataset"),
        ("ray", "packed_datasource"),
    ],
)
def test_missing_framework(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    """Without its framework an adapter says which extra to install, that of Keras, which is a class
    of Keras, where it is imported."""
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    monkeypatch.delitem(sys.modules, "asyncreader.adapters.keras", raising=False)
    with pytest.raises(ImportError, match=rf"needs {module}.*'\.\[{module}\]'"):
        getattr(import_module(f"asyncreader.adapters.{module}"), name)(SMALL)


def test_what_is_not_loaded() -> None:
    """What a user's module of sequences imports loads neither numpy nor numba; opening and using a
    reader loads neither torch nor jax nor keras."""
    code = (
        "import sys\n"
        "from asyncreader.faces import GeneratorEnqueuer, OrderedEnqueuer, Sequence, get_batch\n"
        "assert not {'numpy', 'numba', 'h5py', 'cv2', 'lmdb'} & set(sys.modules)\n"
        "import numpy as np\n"
        "import asyncreader.adapters.torch, asyncreader.adapters.jax\n"
        "from asyncreader.adapters.generator import endless\n"
        "next(endless(data=np.zeros((4, 6, 2, 3), np.uint8)))\n"
        "assert not {'torch', 'jax', 'keras'} & set(sys.modules)\n"
    )
    ended = run([sys.executable, "-c", code])
    assert ended.returncode == 0, ended.stderr
    assert set(faces.__all__) <= set(dir(faces))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = faces.nonsense


class Plain(Loader[Any]):
    """A loader without a framework."""

    def _convert(self, batch: Any) -> Any:
        return batch.data.copy()


def sets_of_others(folder: Path) -> list[dict[str, Any]]:
    """Windows, rows of different length, patches and a mix."""
    path, other = str(folder / "a.h5"), str(folder / "b.h5")
    for name in (path, other):
        with h5py.File(name, "w") as file:
            file["rows"], file["ends"] = np.arange(60.0).reshape(20, 3), [7, 9, 20]
            file["parts"], file["parts_offsets"] = np.arange(20.0), np.array([0, 4, 4, 20])
            file["volume"] = np.arange(8 * 9 * 10).reshape(8, 9, 10)
    window = {"data_field": "rows", "episodes": "ends:ends", "window": (-2, 2)}
    patch = {"data_field": "volume", "patch": (4, 4, 4), "sample_axis": None, "patch_at": "grid"}
    sets: list[dict[str, Any]] = [
        {"path": path, "window_edge": "zero", **window},
        {"path": path, "data_field": "parts", "max_length": 6},
        {"path": path, **patch},
        {"mix": {path: 0.5, other: 0.5}, "data_field": "rows"},
    ]
    more = {"batch_size": 2, "shuffle": True, "labels_field": None, "last_batch": "pad"}
    return [{**more, **one} for one in sets]


def test_last_has_what_a_batch_says(tmp_path: Path) -> None:
    """``last`` says what the Batch said beside data and labels, also when its slot has been filled
    again, the loader is closed, and in another process."""
    beside = ("indices", "mask", "episode", "source", "place", "present", "lengths")
    for params in sets_of_others(tmp_path):
        kept = []
        with Plain(None, params) as loader, AsyncReader(params) as reader:
            for _, batch in zip(loader, reader, strict=True):
                kept.append((loader.last, [getattr(batch, name) for name in beside]))
        assert len(kept) > 1
        assert any(one is not None for one in kept[0][1][2:])
        for last, said in kept:
            for held in (last, pickle.loads(pickle.dumps(last))):
                for name, one in zip(beside, said, strict=True):
                    np.testing.assert_array_equal(getattr(held, name), one)
