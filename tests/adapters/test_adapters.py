"""What the adapters do without their frameworks: the endless generator, and plain words."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from frameworks import LABELS, SMALL, STEPS, check, is_whole_epoch

import asyncreader
from asyncreader import AsyncReader, ParamsError
from asyncreader.adapters.base import Loader
from asyncreader.adapters.generator import endless
from asyncreader.batch import Taken


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


def test_endless_marks_each_of_several_labels(tmp_path: Path) -> None:
    """Padded rows of each of several integer labels are -100."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"], file["a"], file["b"] = np.zeros((5, 3)), np.arange(5), np.arange(5) / 2
    batches = endless(
        tmp_path / "x.h5", labels_field=["a", "b"], batch_size=4, last_batch="pad", epochs=1
    )
    (_, (_, (a, b))) = list(batches)
    assert a.tolist() == [4, -100, -100, -100]
    assert b.tolist() == [2, 0, 0, 0]


def test_endless_holds_twelve() -> None:
    """Twelve batches held at once are right; with zero_copy they lie in the njob + 1 slots."""
    held = list(itertools.islice(endless(SMALL, debug=True), 12))
    assert is_whole_epoch(seen(held, STEPS))
    places = [data.ctypes.data for data, _ in itertools.islice(endless(SMALL, zero_copy=True), 12)]
    assert len(set(places)) <= 2


def test_a_dict_may_hold_the_keywords_of_the_generator_and_of_open(tmp_path: Path) -> None:
    """zero_copy counts in the dict of endless(), and as_dict in that of open()."""
    given = {**SMALL, "zero_copy": True}
    places = [data.ctypes.data for data, _ in itertools.islice(endless(given), 12)]
    assert len(set(places)) <= 2
    with asyncreader.open({"data": np.zeros((3, 2)), "as_dict": True}) as ds:
        assert ds[0].keys() == {"data"}


def test_endless_ends_with_epochs() -> None:
    """epochs=2 ends it after two epochs; (B, 1) labels stay as stored, none are None."""
    batches = list(endless(SMALL, epochs=2))
    assert len(batches) == 2 * STEPS
    assert {labels.shape for _, labels in batches} == {(4, 1)}
    assert next(endless(SMALL, labels=None))[1] is None


@pytest.mark.parametrize(
    ("labels", "dtype"), [(LABELS, np.int64), (LABELS.astype(np.uint8), np.int64)]
)
def test_endless_marks_padded_rows(labels: np.ndarray, dtype: type) -> None:
    """Integer labels of padded rows are -100, in the dtype of all batches; AsyncReader's, whose
    batches have a mask, stay 0."""
    params = {**SMALL, "labels": labels, "last_batch": "pad", "shuffle": False, "epochs": 1}
    for zero_copy in (False, True):
        *_, last = (labels.copy() for _, labels in endless(params, zero_copy=zero_copy))
        assert last.dtype == dtype
        assert last.tolist() == [[40], [41], [-100], [-100]]
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
    ("module", "name", "extra"),
    [("torch", "TorchReader", "torch"), ("jax", "JaxReader", "jax")],
)
def test_missing_framework(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    """Without its framework an adapter says which extra to install."""
    from importlib import import_module

    monkeypatch.setitem(sys.modules, module, None)
    adapter = getattr(import_module(f"asyncreader.adapters.{module}"), name)
    with pytest.raises(ImportError, match=rf"needs {module}.*'\.\[{extra}\]'"):
        adapter(SMALL)


def test_missing_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """ReaderDataset is a Keras class: without Keras its module says which extra to install."""
    from importlib import import_module

    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.delitem(sys.modules, "asyncreader.adapters.keras", raising=False)
    with pytest.raises(ImportError, match=r"needs keras.*'\.\[keras\]'"):
        import_module("asyncreader.adapters.keras")


@pytest.mark.slow
def test_frameworks_are_not_loaded() -> None:
    """Opening and using a reader loads neither torch nor jax nor keras."""
    code = (
        "import sys, numpy as np\n"
        "import asyncreader.adapters.torch, asyncreader.adapters.jax\n"
        "from asyncreader import AsyncReader\n"
        "from asyncreader.adapters.generator import endless\n"
        "next(endless(data=np.zeros((4, 6, 2, 3), np.uint8)))\n"
        "assert not {'torch', 'jax', 'keras'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_a_step_works_out_what_is_asked_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that reads nothing of ``last`` works out no rows of windows, lengths or places."""
    asked: list[str] = []

    def note(name: str) -> None:
        really = getattr(Taken, name)

        def noted(self: Taken) -> object:
            asked.append(name)
            return really.__get__(self)

        monkeypatch.setattr(Taken, name, property(noted))

    beside = ("episode", "source", "place", "present", "lengths")
    for name in beside:
        note(name)
    for params in sets_of_others(tmp_path):
        with Plain(None, params) as loader:
            list(loader)
            assert not asked
            said = [getattr(loader.last, name) for name in beside]
        assert any(one is not None for one in said)
        assert tuple(asked) == beside
        asked.clear()
