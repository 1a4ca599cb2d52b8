"""The Torch AsyncReader's features by their numbers (T1-T13), and none of its six bugs.

The namesake's face is AsyncReader itself; these tests use its names and its one-dict argument.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fake_device import FakeDevice
from observed import HANG, slot_states, until

from asyncreader import (
    AsyncReader,
    NothingQueuedError,
    ParamsError,
    QueueFullError,
    ReaderClosedError,
)
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
        file["data"] = IMAGES
        file["labels"] = LABELS
        file["other/pixels"] = IMAGES[::-1]
        file["other/classes"] = LABELS[::-1, :1]
    return str(path)


def opened(path: str, **params: Any) -> AsyncReader:
    """A reader opened as the original is: one table of camelCase names."""
    return AsyncReader({"hdf5_path": path, "batchSize": 4, **params})


def nchw(indices: Any) -> np.ndarray:
    return IMAGES[indices].transpose(0, 3, 1, 2)


def epoch(reader: AsyncReader) -> list[int]:
    """Record numbers of one epoch, by the original's loop."""
    found, last = [], False
    while not last:
        last = reader.fetchData()
        found += reader.getNextBatch().indices.tolist()
    return found


# -- features ------------------------------------------------------------------------------------


def test_T1_fetch_at_once_and_blocking_get(path: str) -> None:
    """fetchData() returns while its batch is still filling; getNextBatch() waits for it."""
    gate, inside = threading.Event(), threading.Event()
    trial = [True]

    def held_up(data: Any, labels: Any) -> None:
        if trial:
            trial.clear()  # the one at construction
            return
        inside.set()
        assert gate.wait(HANG)

    with opened(path, postprocess=held_up) as reader:
        reader.fetchData()
        assert inside.wait(HANG)
        threading.Timer(0.01, gate.set).start()
        data, labels = reader.getNextBatch()
        assert gate.is_set()
        assert (data == nchw(slice(4))).all()
        assert (labels == LABELS[:4]).all()


def test_T2_preallocated_double_buffer(path: str) -> None:
    """Batches alternate between two buffers of data and two of labels, allocated once."""
    with opened(path) as reader:
        places = []
        for _ in range(10):
            reader.fetchData()
            data, labels = reader.getNextBatch()
            places.append((data.ctypes.data, labels.ctypes.data))
        assert len(set(places)) == 2


def test_T3_batch_is_not_touched_by_the_fetch_in_flight(path: str) -> None:
    """The returned batch keeps its values, and may be written, while the next one is filled."""
    with opened(path) as reader:
        reader.fetchData()
        for step in range(12):
            data, labels = reader.getNextBatch()
            reader.fetchData()
            until(lambda: slot_states(reader)["ready"] == 1)
            first = step % 5 * 4
            assert (data == nchw(slice(first, first + 4))).all()
            data[...], labels[...] = 255, -1
            assert (data == 255).all()


@pytest.mark.parametrize("workers", [1, 3])
def test_T4_thread_pool(path: str, workers: int) -> None:
    """nthread threads, which need no handle of HDF5: the batches are right, the file is closed."""
    with opened(path, nthread=workers, njob=2) as reader:
        names = [t.name for t in threading.enumerate() if t.name.startswith("asyncreader-fill")]
        assert len(names) == workers
        for data, labels in reader:
            assert (data == nchw(labels[:, 0])).all()
        with h5py.File(path, "r+"):  # nobody holds it
            pass


def test_T5_end_of_epoch_comes_with_the_fetch(path: str) -> None:
    """fetchData() is True for the last batch of an epoch, one step before it is consumed."""
    with opened(path) as reader:
        for _ in range(3):
            flags = []
            for _ in range(5):
                flags.append(reader.fetchData())
                reader.getNextBatch()
            assert flags == [False] * 4 + [True]


def test_T6_field_names(path: str) -> None:
    """data_field and labels_field name any data sets of the file, in groups too."""
    fields = {"data_field": "other/pixels", "labels_field": "other/classes"}
    with opened(path, **fields) as reader:
        reader.fetchData()
        data, labels = reader.getNextBatch()
        assert (data == nchw(np.arange(COUNT)[::-1][:4])).all()
        assert (labels == LABELS[::-1, :1][:4]).all()


@pytest.mark.parametrize("axes", ["NHWC", "NCHW", "HWCN", "CNWH", "WHNC"])
def test_T7_axis_order(tmp_path: Path, axes: str) -> None:
    """num_dim, h_dim, w_dim, cha_dim say how the data lie, in any order; out comes NCHW."""
    stored = IMAGES.transpose(["NHWC".index(axis) for axis in axes])
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["data"], file["labels"] = stored, LABELS
    names = {"N": "num_dim", "H": "h_dim", "W": "w_dim", "C": "cha_dim"}
    dims = {names[axis]: place + 1 for place, axis in enumerate(axes)}
    with opened(str(tmp_path / "set.h5"), shuffle=True, **dims) as reader:
        assert reader.data_shape == (4, 3, 5, 6)
        for batch in reader:
            assert (batch.data == nchw(batch.indices)).all()
            assert (batch.labels == LABELS[batch.indices]).all()


def test_T8_shuffle(path: str) -> None:
    """shuffle=True: another permutation each epoch, inspectable, reproducible from its seed."""
    with (
        opened(path, shuffle=True, batchSize=2) as one,
        opened(*(path,), shuffle=True, batchSize=2, nthread=3) as two,
    ):
        epochs = [epoch(one) for _ in range(3)]
        assert [epoch(two) for _ in range(3)] == epochs
    assert all(sorted(order) == list(range(COUNT)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    with opened(path, shuffle=True, batchSize=2, seed=1) as other:
        assert epoch(other) != epochs[0]


def test_T9_postprocess(path: str) -> None:
    """postprocess is called with each batch, and what it returns is handed out."""

    def halves(data: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return data[:, :, ::2].astype(np.float32) / 2, labels[:, 1]

    with opened(path, postprocess=halves) as reader:
        reader.fetchData()
        data, labels = reader.getNextBatch()
        assert data.dtype == np.float32
        assert (data == nchw(slice(4))[:, :, ::2] / np.float32(2)).all()
        assert labels.tolist() == [0, 2, 4, 6]


def test_T10_gpu_transfer(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda=True hands out the device's tensors with the batch in them; without a GPU it says so."""
    device = FakeDevice("eager")
    with monkeypatch.context() as patch:
        patch.setattr("asyncreader.reader.open_device", lambda _: device)
        with opened(path, cuda=True) as reader:
            reader.fetchData()
            data, labels = reader.getNextBatch()
            device.finish()
            assert any(data is tensor or data.base is tensor for tensor in device.tensors)
            assert (data == nchw(slice(4))).all()
            assert (labels == LABELS[:4]).all()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ParamsError, match="cuda"):
        opened(path, cuda=True)


def test_T11_fixed_shape_and_the_last_is_dropped(path: str) -> None:
    """Every batch has batchSize rows; the tail is dropped, with shuffle another one each time."""
    with opened(path, shuffle=True) as reader:
        assert len(reader) == COUNT // 4
        missing = set()
        for _ in range(20):
            orders = [batch.indices.tolist() for batch in reader]
            assert [len(order) for order in orders] == [4] * 5
            missing |= set(range(COUNT)) - {i for order in orders for i in order}
    assert len(missing) > 10


def test_T12_explicit_end(path: str) -> None:
    """close() ends threads and lets go of the file, also with a batch in flight."""
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    reader = opened(path, nthread=4)
    reader.fetchData()
    reader.close()
    reader.close()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    with pytest.raises(ReaderClosedError):
        reader.fetchData()


@pytest.mark.parametrize("njob", [2, 3, 5])
def test_T13_several_fetches_ahead(path: str, njob: int) -> None:
    """njob batches are in flight at once, with any nthread, and come whole and in order."""
    with opened(path, njob=njob, nthread=4) as reader:
        for _ in range(njob):
            reader.fetchData()
        for step in range(20):
            data, labels = reader.getNextBatch()
            first = step % 5 * 4
            assert labels[:, 0].tolist() == list(range(first, first + 4))
            assert (data == nchw(labels[:, 0])).all()
            reader.fetchData()


# -- the bugs it does not have -------------------------------------------------------------------


def test_bug_1_no_batch_is_overwritten_by_a_second_fetch(path: str) -> None:
    """A fetch beyond njob is refused at once: nothing that was fetched is lost."""
    with opened(path, nthread=3) as reader:
        reader.fetchData()
        with pytest.raises(QueueFullError):
            reader.fetchData()
        assert reader.getNextBatch().indices.tolist() == [0, 1, 2, 3]
        reader.fetchData()
        assert reader.getNextBatch().indices.tolist() == [4, 5, 6, 7]


def test_bug_2_nothing_queued_is_an_error(path: str) -> None:
    """getNextBatch() without a fetch is an error, never old data; the held batch stays."""
    with opened(path) as reader:
        with pytest.raises(NothingQueuedError):
            reader.getNextBatch()
        reader.fetchData()
        data, _ = reader.getNextBatch()
        with pytest.raises(NothingQueuedError):
            reader.getNextBatch()
        assert (data == nchw(slice(4))).all()


def test_bug_3_a_batch_larger_than_the_set(path: str) -> None:
    """More rows than samples: an error at construction, or padded; never out of range."""
    with pytest.raises(ParamsError, match="no batch"):
        opened(path, batchSize=COUNT + 1)
    with opened(path, batchSize=COUNT + 3, last_batch="pad") as reader:
        assert reader.fetchData() is True
        batch = reader.getNextBatch()
        assert batch.mask.sum() == COUNT
        assert (batch.data[:COUNT] == nchw(slice(None))).all()


def test_bug_4_shuffled_rows_are_not_read_one_by_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shuffled batch is one call of the source, and no call of HDF5 at all."""
    # rows that compiled code converts need no call at all
    with opened(path, shuffle=True, io="pread", dtype="float64") as reader:
        calls: list[int] = []
        source = reader._source.first
        real = source.read_into

        def counted(writer: RowWriter) -> None:
            calls.append(writer.job.rows.size)
            real(writer)

        monkeypatch.setattr(source, "read_into", counted)
        monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("HDF5 was asked"))
        epoch(reader)
        assert calls == [4] * 5


@pytest.mark.parametrize(
    ("shape", "labels"),
    [((9,), (5,)), ((9, 7), (5, 1)), ((9, 2, 3), (5, 2, 2)), ((9, 2, 3, 4, 5), (5,))],
)
@pytest.mark.parametrize("dtype", ["u1", "<i4", ">f4", "f8"])
def test_bug_5_any_rank_and_dtype(
    tmp_path: Path, shape: tuple[int, ...], labels: tuple[int, ...], dtype: str
) -> None:
    """Data of any rank keep their dtype (no doubles), labels of any rank their shape."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 99, shape).astype(dtype)
    names = rng.integers(0, 9, (9, *labels[1:]))
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["data"], file["labels"] = data, names
    with opened(str(tmp_path / "set.h5"), batchSize=5) as reader:
        reader.fetchData()
        batch = reader.getNextBatch()
        assert batch.data.dtype == np.dtype(dtype).newbyteorder("=")
        assert (batch.data == data[:5]).all()
        assert (batch.labels == names[:5]).all()
        assert batch.labels.shape == labels


def test_bug_6_hdf5_need_not_be_thread_safe(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads make no call of HDF5 while they fill: they cannot crash it, nor wait for its lock."""
    with opened(path, shuffle=True, nthread=8, njob=4) as reader:
        for name in ("__getitem__", "read_direct"):
            monkeypatch.setattr(h5py.Dataset, name, lambda *_: pytest.fail("HDF5 was asked"))
        h5py._hl.base.phil.acquire()  # as another thread inside HDF5 would
        try:
            for _ in range(20):
                for data, labels in reader:
                    assert (data == nchw(labels[:, 0])).all()
        finally:
            h5py._hl.base.phil.release()
