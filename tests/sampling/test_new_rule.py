"""A new kind of sample is one class: what a sample is, nothing else has to know."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import asyncreader
from asyncreader import AsyncReader
from asyncreader.params import ReaderParams
from asyncreader.pipeline import build
from asyncreader.sampling.rule import Rule, Ruled
from asyncreader.sampling.samplers import Sampler, Storage
from asyncreader.sources import OpenSet, open_reader_source
from asyncreader.system.array_types import Bools, Int64

COUNT = 12


class Pairs(Rule):
    """Two rows that follow each other are a sample."""

    apart = True
    fields = ("data",)

    @property
    def noun(self) -> str:
        return "pair"

    def samples(self, count: int) -> int:
        return count // 2

    def storage(self, rows: Storage) -> Storage:
        return Storage(rows.path, rows.count // 2)

    def sampler(self, numbers: Sampler, storage: Storage) -> Sampler:
        return Ruled(self, numbers)

    def begins(self, numbers: Int64) -> Int64:
        return numbers * 2

    def width(self, name: str) -> int:
        return 2

    def stored(self, name: str, records: Int64) -> tuple[Int64, Bools]:
        return records[:, None] + np.arange(2), np.ones((records.size, 2), np.bool_)

    def records(self, name: str, records: Int64) -> Int64:
        return self.stored(name, records)[0].reshape(-1)


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose samples are pairs of its rows, whoever opens it."""

    def opened(params: ReaderParams) -> OpenSet:
        return open_reader_source(params).ruled(Pairs())

    monkeypatch.setattr(build, "open_reader_source", opened)
    with h5py.File(tmp_path / "pairs.h5", "w") as file:
        file["data"] = np.arange(COUNT * 3, dtype=np.float32).reshape(COUNT, 3)
        file["labels"] = np.arange(COUNT)
    return str(tmp_path / "pairs.h5")


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_pairs_are_served(pairs: str, io: str, workers: str) -> None:
    """An epoch has each pair once, with the label of its first row, copied by compiled code or read
    by workers."""
    rows, found = np.arange(COUNT * 3).reshape(COUNT, 3), []
    given = {"batch_size": 2, "shuffle": True, "epochs": 1, "io": io, "workers": workers}
    with AsyncReader({"path": pairs, **given}) as served:
        assert len(served) == COUNT // 4
        for batch in served:
            assert batch.data.shape == (2, 2, 3)
            for first, data, label in zip(batch.indices, batch.data, batch.labels, strict=True):
                np.testing.assert_array_equal(data, rows[first : first + 2])
                assert label == first
                found.append(int(first))
    assert sorted(found) == list(range(0, COUNT, 2))


def test_pairs_by_number(pairs: str) -> None:
    """A Dataset has them by number, and says what they are."""
    with asyncreader.open(pairs) as ds:
        assert len(ds) == COUNT // 2
        np.testing.assert_array_equal(ds[1][0], np.arange(6, 12).reshape(2, 3))
        assert "6 pairs" in repr(ds)
