"""What the adapters do without their frameworks: the endless generator, and plain words."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from frameworks import LABELS, SMALL, STEPS, check, is_whole_epoch

from asyncreader import AsyncReader, ParamsError
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
