"""Samples along another axis than the first, and data sets that are one sample, against numpy."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import first_batch
from reader_contract import ReaderContract, Served

import asyncreader
from asyncreader import AsyncReader, ParamsError, Writer, convert

N = 45
#: Samples (N, 3, 5), stored along each axis.
SAMPLES = np.random.default_rng(0).normal(size=(N, 3, 5)).astype("f4")
LABELS = np.arange(N) % 7

STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "one chunk across": {"chunks": True},
    "cut": {"chunks": 2, "compression": "gzip", "shuffle": True},
    "library": {"chunks": 4, "scaleoffset": 3},
}


def write(path: Path, how: str, axis: int, labels: str = "labels") -> Path:
    """A file of the samples along an axis."""
    table = np.moveaxis(SAMPLES, 0, axis)
    options = dict(STORED[how])
    if "chunks" in options:
        side = options["chunks"]
        chunk = [min(n, 3 * side if i == axis else side) for i, n in enumerate(table.shape)]
        whole = [16 if i == axis else n for i, n in enumerate(table.shape)]
        options["chunks"] = tuple(whole if side is True else chunk)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=table, **options)
        file["labels"] = LABELS if labels == "labels" else LABELS[None]
    return path


def check(batch: Any, samples: np.ndarray = SAMPLES, near: bool = False) -> None:
    records = batch.indices[batch.mask]
    np.testing.assert_allclose(batch.data[batch.mask], samples[records], atol=near * 1e-3)
    np.testing.assert_array_equal(np.ravel(batch.labels[batch.mask]), LABELS[records])


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore:.*HDF5 library.*")
class TestSampleAxis(ReaderContract):
    """Samples along any axis are numpy's, in every order and way of reading."""

    @pytest.fixture(params=[*STORED, "npy", "array"])
    def served(self, request: pytest.FixtureRequest, tmp_path: Path) -> Served:
        how, axis = request.param, 1 if request.param in ("cut", "npy") else 2
        folder = tmp_path
        given: dict[str, Any] = {"sample_axis": axis}
        table = np.ascontiguousarray(np.moveaxis(SAMPLES, 0, axis))
        if how in STORED:
            given |= {"path": write(folder / "x.h5", how, axis), "data_field": "x"}
        elif how == "npy":
            np.save(folder / "x.npy", table)
            given |= {"path": folder / "x.npy", "labels": LABELS}
        else:
            given |= {"data": table, "labels": LABELS}
        return Served(given, lambda batch: check(batch, near=how == "library"), N, (12, 3, 5))


class TestWholeFiles(ReaderContract):
    """Each file of a list is one sample, with a label that is one number or a row."""

    @pytest.fixture(params=["contiguous", "cut"])
    def served(self, request: pytest.FixtureRequest, tmp_path: Path) -> Served:
        folder, options = tmp_path, STORED[request.param]
        options = options | ({"chunks": (2, 2)} if options else {})
        paths = [folder / f"{i}.h5" for i in range(9)]
        for i, path in enumerate(paths):
            with h5py.File(path, "w") as file:
                file.create_dataset("x", data=SAMPLES[i], **options)
                file["labels"] = LABELS[i] if request.param == "cut" else LABELS[i : i + 1]
        given = {"path": paths, "data_field": "x", "sample_axis": None}
        return Served(given, check, 9, (4, 2, 2))


def test_what_is_one_sample(tmp_path: Path) -> None:
    """A data set, a .npy file or an array is one sample; a set may be converted so."""
    path = write(tmp_path / "x.h5", "one chunk across", 0)
    np.save(tmp_path / "x.npy", SAMPLES)
    for given in (
        {"path": path, "data_field": "x", "labels_field": None},
        {"path": tmp_path / "x.npy"},
        {"data": SAMPLES},
    ):
        with asyncreader.open(**given, sample_axis=None) as dataset:
            assert len(dataset) == 1
            np.testing.assert_array_equal(dataset[0], SAMPLES)
    with asyncreader.open(path, data_field="x", sample_axis=None) as dataset:
        np.testing.assert_array_equal(dataset.labels, LABELS[None])
    across = write(tmp_path / "across.h5", "cut", 2)
    convert(across, tmp_path / "out.h5", params={"data_field": "x", "sample_axis": 2})
    check(first_batch(tmp_path / "out.h5", batch_size=N))


def test_reversed_axes_of_matlab(tmp_path: Path) -> None:
    """Labels (1, N) lie along the axis of the samples, as MATLAB writes both; a vector beside has
    no other axis; axes that are named say the same as sample_axis."""
    path = write(tmp_path / "x.h5", "contiguous", 2, "MATLAB's")
    with h5py.File(path, "a") as file:
        file["t"], file["images"] = LABELS, np.zeros((3, 8, 8, N), "u1")
    given: dict[str, Any] = {"path": path, "sample_axis": 2, "batch_size": N}
    batch = first_batch(given, data_field=["x", "t"])
    np.testing.assert_array_equal(batch.data[0], SAMPLES)
    np.testing.assert_array_equal(batch.data[1], LABELS)
    assert batch.labels.shape == (N, 1)
    named = {"num_dim": 4, "h_dim": 2, "w_dim": 3, "cha_dim": 1, "sample_axis": 3}
    with asyncreader.open(path, data_field="images", **named) as dataset:
        assert dataset[0][0].shape == (3, 8, 8)


def test_windows_along_an_axis(tmp_path: Path) -> None:
    """Windows and blocks are of rows along the axis."""
    path = write(tmp_path / "x.h5", "cut", 1)
    given: dict[str, Any] = {"data_field": "x", "labels_field": None, "sample_axis": 1}
    with AsyncReader(path, window=3, episodes="whole", batch_size=8, **given) as reader:
        for batch in reader:
            for k, record in enumerate(batch.indices):
                np.testing.assert_array_equal(batch.data[k], SAMPLES[record : record + 3])
    with asyncreader.open(path, **given) as dataset:
        (found,) = dataset.statistics().values()
        assert found.count == SAMPLES.size
        np.testing.assert_allclose(found.mean, SAMPLES.mean(), rtol=1e-5)


def test_few_samples_of_large_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few samples of chunks that are not remembered are copied from where they lie, many of them
    or blocks from chunks that are put together: all are the same."""
    monkeypatch.setattr("asyncreader.sources.hdf5.chunks.CACHE_BYTES", 1)
    path = write(tmp_path / "x.h5", "one chunk across", 2)
    for shuffle, size in ((True, 1), (True, 30), (False, 1), ("block", 1)):
        with AsyncReader(
            path, data_field="x", sample_axis=2, shuffle=shuffle, batch_size=size, epochs=1
        ) as reader:
            served = []
            for batch in reader:
                check(batch)
                served += batch.indices.tolist()
        assert len(set(served)) == N // size * size


def test_axes_that_are_none(tmp_path: Path) -> None:
    """An axis that data lack, data that are no arrays, and other rules of what a sample is are
    refused, with what was found."""
    path = write(tmp_path / "x.h5", "contiguous", 0)
    with h5py.File(path, "a") as file:
        ragged = file.create_dataset("r", (3,), h5py.vlen_dtype(np.float32))
        ragged[...] = [np.zeros(2, "f4")] * 3
    with Writer(tmp_path / "packed.h5") as writer:
        for x in SAMPLES:
            writer.add(x, 1)
    with Writer(tmp_path / "packed.lmdb") as writer:
        for x in SAMPLES:
            writer.add(x, 1)
    field = {"path": path, "data_field": "x"}
    for given, words in (
        (field | {"sample_axis": 3}, r"no such axis.*sample_axis=3, shape \(45, 3, 5\).*at most 2"),
        (field | {"sample_axis": None, "window": 2}, "is one sample; window, episodes"),
        (field | {"sample_axis": None, "episodes": "whole"}, 'episodes="files"'),
        (field | {"sample_axis": 2, "num_dim": 4, "h_dim": 2, "w_dim": 3, "cha_dim": 1},
         "different axes of the samples"),
        (field | {"sample_axis": 1, "data_field": "r"}, "arrays of numbers.*variable length"),
        ({"path": tmp_path / "packed.h5", "sample_axis": 1}, "arrays of numbers.*packed"),
        ({"path": tmp_path / "packed.lmdb", "sample_axis": None}, "arrays of numbers.*LMDB"),
    ):  # fmt: skip
        with pytest.raises(ParamsError, match=words):
            AsyncReader(given)
