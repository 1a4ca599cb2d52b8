"""The Torch AsyncReader's namesake: AsyncReader takes its one table of names, and serves its loop.

What the loop promises beyond that is in tests/reader.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import hdf5

from asyncreader import AsyncReader, NothingQueuedError, QueueFullError
from asyncreader.pixels.rows import RowWriter

COUNT = 22
#: (N, H, W, C), sample i is known by its looks.
IMAGES = (np.arange(COUNT)[:, None, None, None] * 5 + np.arange(5 * 6 * 3).reshape(5, 6, 3)).astype(
    np.uint8
)
LABELS = np.stack([np.arange(COUNT), np.arange(COUNT) * 2], axis=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file as torch-hdf5 writes it: contiguous /data (N, H, W, C), /labels (N, L)."""
    path = tmp_path_factory.mktemp("torch7") / "train.h5"
    with h5py.File(path, "w") as file:
        file["data"], file["labels"] = IMAGES, LABELS
        file["other/pixels"], file["other/classes"] = IMAGES[::-1], LABELS[::-1]
    return str(path)


def opened(path: str, **params: Any) -> AsyncReader:
    """A reader opened as the original is: one table of camelCase names."""
    return AsyncReader({"hdf5_path": path, "batchSize": 4, **params})


@pytest.mark.parametrize("group", ["", "other/"])
def test_the_originals_loop(path: str, group: str) -> None:
    """One fetch is in flight: a second is an error, and so is to take what was not fetched. The
    last fetch of an epoch says so; each epoch is another permutation, without its tail."""
    fields = {"data_field": f"{group}pixels", "labels_field": f"{group}classes"} if group else {}
    epochs = []
    with opened(path, shuffle=True, **fields) as reader:
        with pytest.raises(NothingQueuedError):
            reader.getNextBatch()
        for _ in range(3):
            found: list[int] = []
            last = False
            while not last:
                last = reader.fetchData()
                with pytest.raises(QueueFullError):
                    reader.fetchData()
                data, labels = reader.getNextBatch()
                np.testing.assert_array_equal(data, IMAGES[labels[:, 0]].transpose(0, 3, 1, 2))
                assert (labels[:, 1] == labels[:, 0] * 2).all()
                found += labels[:, 0].tolist()
            assert len(found) == len(set(found)) == 20
            epochs.append(found)
    assert len(set(map(tuple, epochs))) == 3


@pytest.mark.parametrize("axes", ["NHWC", "NCHW", "HWCN", "CNWH", "WHNC"])
def test_axis_order(tmp_path: Path, axes: str) -> None:
    """num_dim, h_dim, w_dim, cha_dim say how the data lie, in any order; out comes NCHW."""
    stored = IMAGES.transpose(["NHWC".index(axis) for axis in axes])
    hdf5(tmp_path / "set.h5", data=stored, labels=LABELS)
    names = {"N": "num_dim", "H": "h_dim", "W": "w_dim", "C": "cha_dim"}
    dims = {names[axis]: place + 1 for place, axis in enumerate(axes)}
    with opened(str(tmp_path / "set.h5"), shuffle=True, **dims) as reader:
        assert reader.data_shape == (4, 3, 5, 6)
        for batch in reader:
            assert (batch.data == IMAGES[batch.indices].transpose(0, 3, 1, 2)).all()
            assert (batch.labels == LABELS[batch.indices]).all()


@pytest.mark.parametrize("given", [{}, {"io": "pread", "dtype": "float64", "nthread": 1}])
def test_threads_need_no_hdf5(
    path: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads make no call of HDF5 while they fill, whose lock another thread may hold, and nobody
    holds the file. A shuffled batch that one thread fills is one call of the source."""
    with opened(path, shuffle=True, **{"nthread": 8, "njob": 4, **given}) as reader:
        h5py.File(path, "r+").close()
        calls: list[int] = []
        source = reader._source.first
        real = source.read_into

        def counted(writer: RowWriter) -> None:
            calls.append(writer.job.rows.size)
            real(writer)

        monkeypatch.setattr(source, "read_into", counted)
        for name in ("__getitem__", "read_direct"):
            monkeypatch.setattr(h5py.Dataset, name, lambda *_: pytest.fail("HDF5 was asked"))
        h5py._hl.base.phil.acquire()  # as another thread inside HDF5 would
        try:
            for _ in range(20):
                for data, labels in reader:
                    assert (data == IMAGES[labels[:, 0]].transpose(0, 3, 1, 2)).all()
        finally:
            h5py._hl.base.phil.release()
    # compiled code fills rows that need no conversion, without a call
    assert set(calls) == ({4} if given else set())
