"""Dataset: samples by number, as a reader serves them, and what a set says of itself."""

import base64
import io
import os
import pickle
import re
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h5py
import numpy as np
import process_functions
import pytest
from fakes import CLASSES, damage, hdf5, packed, pictures, write_hdf5
from observed import switching_often
from PIL import Image

import asyncreader
from asyncreader import (
    AsyncReader,
    ChecksumError,
    Dataset,
    DecodeError,
    ParamsError,
    ReaderClosedError,
)
from asyncreader.adapters.base import Loader
from asyncreader.pipeline import build
from asyncreader.system.limits import usable_cores

COUNT = 23
IMAGES = pictures(COUNT, (24, 20, 3))


def raw(folder: Path) -> dict[str, Any]:
    return {"path": write_hdf5(folder / "a.h5", packed(IMAGES))}


def fields(folder: Path) -> dict[str, Any]:
    with h5py.File(folder / "a.h5", "w") as file:
        file["image"], file["mask"] = IMAGES, IMAGES[..., 0].astype(np.int32)
        file.create_dataset("y", data=np.arange(COUNT), chunks=(7,), compression="gzip")
    both = ["image", "mask"]
    return {"path": folder / "a.h5", "data_field": both, "labels_field": "y", "layout": "NHWC"}


def arrays(folder: Path) -> dict[str, Any]:
    return {"data": np.random.default_rng(0).normal(size=(COUNT, 5)).astype(np.float32)}


def test_samples_by_number(tmp_path: Path) -> None:
    """A sample by its number, a slice, a list, a mask and a loop are those in the file; negative
    numbers count from the end. TestCombinations has all kinds of samples."""
    wanted = [IMAGES, IMAGES[..., 0].astype(np.int32), np.arange(COUNT)]

    def flat(found: Any) -> list[np.ndarray]:
        if isinstance(found, tuple):
            return [array for one in found for array in flat(one)]
        return [np.asarray(found)]

    with asyncreader.open(fields(tmp_path)) as ds:
        assert len(ds) == ds.count == COUNT
        some = [5, 0, 5, -1]
        for index in (0, 3, -1, np.int64(2), np.array(4)):
            same(flat(ds[index]), [column[index] for column in wanted])
        for several in (slice(2, 9, 3), some, np.arange(COUNT) < 4, slice(0)):
            same(flat(ds[several]), [column[several] for column in wanted])
        for numbers in (some, tuple(some), np.array(some)):
            for number, sample in zip(some, ds.__getitems__(numbers), strict=True):
                same(flat(sample), [column[number] for column in wanted])
        for number, sample in enumerate(ds):
            same(flat(sample), [column[number] for column in wanted])
        assert number == COUNT - 1
        for name, column in zip(ds.fields, wanted, strict=False):
            assert ds.fields[name] == (column.shape[1:], column.dtype)


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_a_sample_is_the_callers_own(tmp_path: Path) -> None:
    """What one call returned no later call changes."""
    with asyncreader.open(raw(tmp_path)) as ds:
        first, _ = ds[0]
        kept = first.copy()
        ds[1][0][:] = 0
        ds[0][0][:] = 7
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(ds[0][0], kept)


@pytest.mark.filterwarnings("ignore:samples by number have no")
def test_what_belongs_to_training_is_left_out(tmp_path: Path) -> None:
    """Random crops are centred; flips, augmentation, mixed rows and orders are left out. A
    transform works on each sample, alike in each call."""
    given = raw(tmp_path)
    training: dict[str, Any] = {
        "shuffle": True, "crop": "random-resized", "crop_area": (0.1, 0.2), "flip": True,
        "augment": "trivial-augment-wide", "mixup": 0.2, "label_smoothing": 0.1, "seed": 3,
        "batch_size": 8, "weights": None, "size": (12, 12), "last_batch": "pad",
    }  # fmt: skip
    with (
        asyncreader.open(given, **training) as ds,
        AsyncReader(given, batch_size=COUNT, size=(12, 12)) as plain,
    ):
        data, labels = next(iter(plain))
        np.testing.assert_array_equal(ds[:][0], data)
        np.testing.assert_array_equal(ds[:][1], labels)
        assert ds.params.shuffle is True
        with ds.reader(epochs=1) as reader, AsyncReader(ds, epochs=1) as other:
            assert reader.params == other.params
            for one, two in zip(reader, other, strict=True):
                np.testing.assert_array_equal(one.data, two.data)
                assert one.data.shape == (8, 3, 12, 12)
    with asyncreader.open(given, transform=process_functions.dims) as ds:
        np.testing.assert_array_equal(ds[4][0], ds[4][0])
        assert (ds[4][0] != IMAGES[4].transpose(2, 0, 1)).any()


def test_what_is_random_is_left_out_with_a_warning() -> None:
    """Samples by number have no flip, no random crop and no augment: open() says so once, and a
    reader of the dataset, which has them, or a pickled copy does not."""
    given: dict[str, Any] = {"data": np.zeros((6, 9, 8, 3), np.uint8), "size": (4, 4)}
    wanted = r"no flip and no augment and no crop='random', .* AsyncReader"
    with pytest.warns(UserWarning, match=wanted):
        ds = asyncreader.open(given, flip=True, crop="random", augment="trivial-augment-wide")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ds, ds.reader(batch_size=2) as reader, pickle.loads(pickle.dumps(ds)) as copy:
            assert len(reader.dataset) == len(copy) == 6
        asyncreader.open(given, crop_ratio=0.5).close()


@pytest.mark.parametrize(
    "index",
    [COUNT, -COUNT - 1, [0, COUNT], [True] * 3, np.array([2**64 - 1], np.uint64)],
)
def test_a_number_that_is_not_there(index: Any, tmp_path: Path) -> None:
    """IndexError, as of a list: a loop over the numbers ends with it."""
    with asyncreader.open(raw(tmp_path)) as ds, pytest.raises(IndexError):
        ds[index]


@pytest.mark.parametrize("index", [1.0, "1", [0.5], None, True, ()])
def test_what_is_no_number(index: Any, tmp_path: Path) -> None:
    """TypeError, as of a list."""
    with asyncreader.open(raw(tmp_path)) as ds, pytest.raises(TypeError, match="whole numbers"):
        ds[index]


def test_a_bad_sample(tmp_path: Path) -> None:
    """A sample whose bytes are not those that were packed is an error each time, which names it;
    others are served. Once it has passed, it is not compared again with verify="first"."""
    path = write_hdf5(tmp_path / "a.h5", packed(IMAGES))
    with asyncreader.open(path) as ds:
        damage(path, IMAGES[5].tobytes())
        for _ in range(2):
            with pytest.raises(ChecksumError) as caught:
                ds[4:7]
            assert caught.value.index == 5
        np.testing.assert_array_equal(ds[4][0], IMAGES[4].transpose(2, 0, 1))
    with asyncreader.open(path, verify="never") as ds:
        assert (ds[5][0] != IMAGES[5].transpose(2, 0, 1)).any()


def test_what_a_set_says(tmp_path: Path) -> None:
    """Labels, paths, classes and their counts, splits, and all of one sample."""
    content = packed(IMAGES)
    path = write_hdf5(tmp_path / "a.h5", content)
    with asyncreader.open(path, subset=[7, 2, 9]) as ds:
        np.testing.assert_array_equal(ds.labels, content.labels[[7, 2, 9]])
        assert ds.paths == [content.paths[i].decode() for i in (7, 2, 9)]
        assert ds.classes == CLASSES
        assert ds.class_to_idx == {"cat": 0, "dog": 1, "owl": 2}
        assert ds.class_counts == {"cat": 1, "dog": 1, "owl": 1}
        assert ds.splits == {}
        one = ds.sample(1)
        assert (one.record, one.path, one.key) == (2, content.paths[2].decode(), None)
        assert one.class_name == CLASSES[int(content.labels[2, 0])]
        assert one.stored == {"data": IMAGES[2].tobytes()}
        np.testing.assert_array_equal(one.data, IMAGES[2].transpose(2, 0, 1))
        assert "3 samples" in repr(ds)
        assert ds.preview(count=2).size > ds.preview(count=1).size
    with asyncreader.open(arrays(tmp_path)) as plain:
        assert (plain.labels, plain.classes, plain.class_to_idx) == (None, None, {})
        with pytest.raises(ParamsError, match="no class to count"):
            _ = plain.class_counts


def test_data_and_label_of_a_sample(tmp_path: Path) -> None:
    """A sample's data and label are those of ``dataset[i]``: with several fields a tuple, with a
    transform what it returns, and of a dataset of dicts the arrays of a batch."""
    labels = np.arange(COUNT * 2).reshape(COUNT, 2)
    with asyncreader.open(data=IMAGES, labels=labels, subset=[5, 3]) as ds:
        data, label = ds[1]
        np.testing.assert_array_equal(ds.sample(1).data, data)
        np.testing.assert_array_equal(ds.sample(1).label, label)
        assert ds.sample(1).label.tolist() == [6, 7]
    given: Any = {"data": {"a": IMAGES, "b": labels}, "labels": labels[:, 0]}
    with asyncreader.open(given, as_dict=True) as ds:
        first, second = ds.sample(4).data
        np.testing.assert_array_equal(first, IMAGES[4].transpose(2, 0, 1))
        np.testing.assert_array_equal(second, labels[4])
        assert ds.sample(4).label == 8

    def turned(image: np.ndarray, label: Any) -> tuple[np.ndarray, Any]:
        return image[:2, :2], label * 10

    with asyncreader.open(data=IMAGES, labels=labels, transform=turned, layout="NHWC") as ds:
        np.testing.assert_array_equal(ds.sample(6).data, IMAGES[6, :2, :2])
        assert ds.sample(6).label.tolist() == ds[6][1].tolist() == [120, 130]


def shown_in(page: str) -> list[np.ndarray]:
    """The pictures of a page, (h, w, 3)."""
    found = re.findall(r'src="data:image/\w+;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))) for one in found]


def test_what_a_notebook_shows(tmp_path: Path) -> None:
    """A set, a reader and a batch are tables with pictures: small ones pixel by pixel, with their
    class. Other samples are drawn as lines and slices, single numbers not at all, and a bad one is
    left out."""
    path = write_hdf5(tmp_path / "a<b>.h5", packed(IMAGES))
    chosen = np.linspace(0, COUNT - 1, 8).astype(int)
    with asyncreader.open(path) as ds, AsyncReader(path, batch_size=9) as reader:
        for page in (ds._repr_html_(), reader._repr_html_()):
            np.testing.assert_array_equal(shown_in(page), IMAGES[chosen])
            assert "a&lt;b&gt;.h5" in page
            assert f"{CLASSES[0]} #0" in page
        batch = next(iter(reader))
        page = batch._repr_html_()
        np.testing.assert_array_equal(shown_in(page), IMAGES[:8])
        assert "(9, 3, 24, 20) uint8" in page
        batch.release()
        assert "given back" in batch._repr_html_()
        assert not shown_in(batch._repr_html_())
    with Loader[Any]({"path": path}, {}) as loader:
        page = loader.reader._repr_html_()
        assert loader._repr_html_() == page.replace("AsyncReader a&lt;b", "Loader a&lt;b")
    with AsyncReader(path, batch_size=4, layout="NHWC", dtype="float32", scale=2.0) as reader:
        batch = next(iter(reader))
        assert len(shown_in(batch._repr_html_())) == 4
        assert "black to white" in batch._repr_html_()
    damage(path, IMAGES[chosen[1]].tobytes())
    with asyncreader.open(path) as ds:
        assert len(shown_in(ds._repr_html_())) == 7
    for data, drawn in ((np.zeros((9, 5)), 1), (np.zeros((9, 4, 5, 6, 7)), 1), (np.zeros(9), 0)):
        given: dict[str, Any] = {"data": data}
        with asyncreader.open(given) as ds, AsyncReader(given, batch_size=2) as reader:
            for page in (ds._repr_html_(), reader._repr_html_(), next(iter(reader))._repr_html_()):
                assert "<table>" in page
                assert len(shown_in(page)) == drawn * (2 if "Batch:" in page else 8)


def test_a_notebook_shows_the_labels_of_rows(tmp_path: Path) -> None:
    """The pictures of episodes that have one picture more than labels are shown with their own."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for number in range(3):
            group = file.create_group(f"episode_{number}")
            group["cam"], group["act"] = IMAGES[3 * number : 3 * number + 3], np.zeros((2, 1))
            group["label"] = 10 * number + np.arange(2)
    fields = ["cam", "act"]
    with asyncreader.open(tmp_path / "set.h5", data_field=fields, labels_field="label") as ds:
        page = ds._repr_html_()
    np.testing.assert_array_equal(shown_in(page), IMAGES[[0, 1, 3, 4, 6, 7]])
    labels = re.findall(r">label (\d+) #(\d)<", page)
    assert labels == [("0", "0"), ("1", "1"), ("10", "2"), ("11", "3"), ("20", "4"), ("21", "5")]


def test_a_batch_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """show() prints what a batch holds; in a notebook it shows so many of its pictures too, those
    of a window side by side, with the labels. ParamsError for a number that is none, and
    ReaderClosedError for a batch that was given back."""
    path = write_hdf5(tmp_path / "a.h5", packed(IMAGES))
    shown: list[dict[str, str]] = []
    ipython = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": {}}),
        display=SimpleNamespace(publish_display_data=lambda data, **_: shown.append(data)),
    )
    with AsyncReader(path, batch_size=9) as reader:
        batch = next(iter(reader))
        batch.show()
        printed = capsys.readouterr().out
        assert printed.splitlines()[1] == "  data     (9, 3, 24, 20) uint8"
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        batch.show(3)
        assert capsys.readouterr().out == ""
        assert shown[0]["text/plain"] + "\n" == printed
        np.testing.assert_array_equal(shown_in(shown[0]["text/html"]), IMAGES[:3])
        for wrong in (-1, 2.5, "all"):
            with pytest.raises(ParamsError, match="count"):
                batch.show(wrong)  # type: ignore[arg-type]
        batch.release()
        with pytest.raises(ReaderClosedError, match="given back"):
            batch.show()
    hdf5(tmp_path / "b.h5", x=np.zeros((COUNT, 5)), image=IMAGES, y=np.arange(COUNT), ends=[COUNT])
    names = {"data_field": ["x", "image"], "labels_field": ["y", "x"], "episodes": "ends:ends"}
    given = {"path": tmp_path / "b.h5", **names, "window": {"image": 2}}
    with AsyncReader(given, batch_size=4) as reader:
        next(iter(reader)).show(2)
    page = shown[-1]["text/html"]
    pairs = [np.concatenate(IMAGES[i : i + 2], axis=1) for i in range(2)]
    np.testing.assert_array_equal(shown_in(page), pairs)
    assert "data[1]" in page
    assert "label 1 #1" in page


STATISTICS: dict[str, Any] = {
    "bytes": np.random.default_rng(1).integers(0, 256, (COUNT, 9, 8, 3), dtype=np.uint8),
    "16 bits": np.random.default_rng(2).integers(0, 65_536, (COUNT, 9, 8, 3), dtype=np.uint16),
    "far from 0": np.random.default_rng(3).normal(1e9, 1.0, (COUNT, 9, 8, 3)),
    "vectors": np.random.default_rng(4).normal(size=(COUNT, 6)).astype(np.float32),
    "numbers": np.random.default_rng(5).integers(-9, 9, COUNT),
    "volumes": np.random.default_rng(6).normal(size=(COUNT, 7, 6, 5)),
}


@pytest.mark.parametrize("kind", STATISTICS)
def test_statistics(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean, deviation and ends of each channel, as numpy works them out, of parts of any size."""
    values = STATISTICS[kind]
    pictures = values.ndim == 4 and values.shape[3] == 3
    axes = tuple(range(values.ndim)) if values.ndim > 2 else (0,)
    axes = axes[:-1] if pictures else axes
    for together in (1, 900, 1 << 20):
        monkeypatch.setattr("asyncreader.tools.statistics._MEASURED", together)
        with asyncreader.open(data=values, subset=slice(1, None)) as ds:
            found = ds.statistics()["data"]
        chosen = values[1:].astype(np.float64)
        assert found.count == chosen.size // max(1, found.mean.size)
        for name, wanted in (
            *(("mean", chosen.mean(axes)), ("std", chosen.std(axes))),
            *(("min", chosen.min(axes)), ("max", chosen.max(axes))),
        ):
            np.testing.assert_allclose(getattr(found, name), wanted, 1e-7, 1e-9)
            assert np.shape(getattr(found, name)) == wanted.shape


@pytest.mark.parametrize("axes", ["NCHW", "HWCN", "CHNW", "NHWC"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_statistics_are_of_channels(tmp_path: Path, axes: str, layout: Any) -> None:
    """Of images stored in any order of axes, of several sizes, too, statistics are of channels."""
    files = [np.random.default_rng(n).integers(0, 99, (5, 8 + n, 9, 3)) for n in range(2)]
    paths = [tmp_path / f"{n}.h5" for n in range(2)]
    for path, images in zip(paths, files, strict=True):
        hdf5(path, data=np.transpose(images, ["NHWC".index(axis) for axis in axes]))
    names = {"num_dim": "N", "h_dim": "H", "w_dim": "W", "cha_dim": "C"}
    dims: Any = {name: axes.index(letter) + 1 for name, letter in names.items()}
    for some in (0, 1):
        given = {"path": paths[some], "labels_field": None, "layout": layout, **dims}
        with asyncreader.open(given) as ds:
            found = ds.statistics()["data"]
        np.testing.assert_allclose(found.mean, files[some].mean((0, 1, 2)))
        np.testing.assert_allclose(found.std, files[some].std((0, 1, 2)))


def test_statistics_of_encoded_pictures(tmp_path: Path) -> None:
    """Of the decoded pixels, of pictures that differ in size too."""
    images = [*IMAGES[:5], *pictures(4, (13, 30, 3))]
    with asyncreader.open(write_hdf5(tmp_path / "a.h5", packed(images, "png"))) as ds:
        found = ds.statistics()["data"]
    pixels = np.concatenate([image.reshape(-1, 3) for image in images]).astype(np.float64)
    np.testing.assert_allclose(found.mean, pixels.mean(0))
    np.testing.assert_allclose(found.std, pixels.std(0))
    assert found.count == len(pixels)


#: What is selected of a set of episodes of EPISODES rows, and which episodes and rows these are.
EPISODES = (30, 50, 20, 40)
SELECTED: dict[str, tuple[dict[str, Any], list[int], Any]] = {
    "all": ({}, [0, 1, 2, 3], slice(None)),
    "rows": ({"subset": slice(20, 90)}, [0, 1, 2, 3], slice(20, 90)),
    "rows backwards": ({"subset": slice(139, None, -3)}, [0, 1, 2, 3], slice(139, None, -3)),
    "row numbers": ({"subset": [3, 100, 3, 29]}, [0, 1, 2, 3], [3, 100, 3, 29]),
    "split": ({"subset": "train"}, [1, 3], slice(None)),
    "episodes": ({"episodes_subset": [2, 0]}, [0, 2], slice(None)),
    "rows of episodes": (
        {"episodes_subset": [2, 0], "subset": slice(25, 95)},
        [0, 2],
        slice(25, 95),
    ),
    "whole": ({"window": "episode", "max_length": 60, "subset": [1, 1]}, [1], slice(None)),
    "one of each": (
        {"window": 2, "window_every": "episode", "subset": slice(1, 3)},
        [1, 2],
        slice(None),
    ),
}


@pytest.mark.parametrize("kind", SELECTED)
def test_statistics_of_what_is_selected(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a set of episodes the rows that are selected count, each once: no row of validation is in
    the mean of training. A row more goes with an episode's last one, one row with any."""
    monkeypatch.setattr("asyncreader.tools.statistics._MEASURED", 200)
    params, episodes, rows = SELECTED[kind]
    rng = np.random.default_rng(0)
    act = [rng.normal(number * 10, 1, (n, 3)) for number, n in enumerate(EPISODES)]
    obs = [rng.normal(number * 10, 1, n + 1) for number, n in enumerate(EPISODES)]
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for number in range(len(EPISODES)):
            group = file.create_group(f"data/demo_{number}")
            group["act"], group["obs"] = act[number], obs[number]
            group["goal"] = np.full((1, 2), float(number))
        file["mask/train"] = np.array([b"demo_1", b"demo_3"])
    of, every = np.repeat(range(len(EPISODES)), EPISODES), np.arange(sum(EPISODES))
    chosen = np.isin(every, every[rows]) & np.isin(of, episodes)
    expected = {
        "act": np.concatenate(act)[chosen],
        "obs": np.concatenate(
            [
                values[np.append(chosen[of == number], chosen[of == number][-1])]
                for number, values in enumerate(obs)
            ]
        ),
        "goal": np.repeat(np.unique(of[chosen]).astype(float)[:, None], 2, axis=1),
    }
    with asyncreader.open(
        {"path": tmp_path / "set.h5", "data_field": [*expected], "labels_field": None, **params}
    ) as ds:
        found = ds.statistics()
    for name, values in expected.items():
        assert found[name].count == len(values)
        np.testing.assert_allclose(found[name].mean, values.mean(0), err_msg=name)
        np.testing.assert_allclose(found[name].std, values.std(0), atol=1e-9)
        np.testing.assert_array_equal(found[name].max, values.max(0))


def test_statistics_of_episodes_of_different_length() -> None:
    """Values of rows that are not selected do not count where rows differ in length, too."""
    given = {
        "hits": np.arange(12.0),
        "hits_lengths": np.array([3, 0, 4, 5]),
        "ends": np.array([2, 4]),
    }
    with asyncreader.open(
        {"data": given, "data_field": ["hits"], "offsets_field": "hits_lengths", "max_length": 5},
        episodes="ends:ends",
        window=1,
        subset=slice(1, 3),
    ) as ds:
        found = ds.statistics()["hits"]
    assert (found.count, float(found.mean)) == (4, 4.5)


@pytest.fixture
def chunked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int]]:
    """A file of 40 gzip chunks of 32 rows, for which threads are started however fast they are
    decoded; and numbers of samples, some in one chunk, in no order."""
    monkeypatch.setattr("asyncreader.pipeline.opened._LEAST", 0.0)
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = rng.integers(0, 4, (1280, 32, 64, 1), np.uint8)
        file.create_dataset("data", data=values, chunks=(32, 32, 64, 1), compression="gzip")
        file["labels"] = np.arange(1280)
    return tmp_path / "a.h5", rng.permutation(np.arange(0, 1280, 11)).tolist()


@pytest.mark.slow
def test_threads_decode_what_one_call_asks_for(
    chunked: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are those of one thread, in the order asked for. ``nthread`` says how many; if not
    given it is all cores, but one in a worker process and one for a transform. None stays."""
    (path, numbers), started = chunked, list[int]()

    class Pool(ThreadPoolExecutor):
        def __init__(self, most: int, **how: Any) -> None:
            started.append(most + 1)  # and the one that calls
            super().__init__(most, **how)

    def read(**params: Any) -> list[int]:
        with asyncreader.open(path, layout="NHWC", **params) as ds:
            found = ds[numbers]
            same(list(found), wanted)
            for number, sample in zip(numbers, ds.__getitems__(numbers), strict=True):
                assert sample[1] == number
            assert len(list(ds)) == len(ds)
        assert not [one for one in threading.enumerate() if "dataset" in one.name]
        some, started[:] = started[:1], []
        return some

    with h5py.File(path) as file:
        wanted = [file["data"][:][numbers], np.array(numbers)]
    monkeypatch.setattr("asyncreader.pipeline.opened.ThreadPoolExecutor", Pool)
    assert read(nthread=3) == [3]
    assert read(nthread=1) == []
    monkeypatch.setattr("asyncreader.pipeline.distributed.usable_cores", lambda: 2)
    assert read() == [2]
    assert read(transform=lambda image, rng: image) == []
    monkeypatch.setattr("asyncreader.pipeline.opened.parent_process", lambda: object())
    assert read() == []
    assert read(nthread=2) == [2]


def test_where_no_thread_can_be_started(
    chunked: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's own thread reads all: at the limit of threads, and where Python ends."""

    class Pool(ThreadPoolExecutor):
        def submit(self, *_: Any) -> Any:
            raise RuntimeError("can't start new thread")

    (path, numbers) = chunked
    with asyncreader.open(path, nthread=1) as ds, asyncreader.open(path, nthread=3) as threads:
        wanted = ds[numbers]
        monkeypatch.setattr("asyncreader.pipeline.opened.ThreadPoolExecutor", Pool)
        same(list(threads[numbers]), list(wanted))


def test_a_bad_chunk_among_threads(chunked: tuple[Path, list[int]]) -> None:
    """The error is that of one thread: of the first sample asked for that is bad."""
    path, numbers = chunked
    with h5py.File(path) as file:
        bad = [file["data"].id.read_direct_chunk((32 * n, 0, 0, 0))[1] for n in (3, 30)]
    for stored in bad:
        damage(str(path), stored)
    told = []
    for nthread in (1, 3):
        with (
            asyncreader.open(path, nthread=nthread) as ds,
            pytest.raises(DecodeError) as raised,
        ):
            ds.__getitems__(numbers)
        told.append(str(raised.value))
    assert told[0] == told[1]


def test_pictures_of_many_sizes(tmp_path: Path) -> None:
    """Without size= each picture is served in its own size; they cannot be stacked."""
    images = [*IMAGES[:5], *pictures(4, (13, 30, 3))]
    with asyncreader.open(write_hdf5(tmp_path / "a.h5", packed(images, "png"))) as ds:
        for number, (data, label) in enumerate(ds):
            np.testing.assert_array_equal(data, images[number].transpose(2, 0, 1))
            assert label == number % len(CLASSES)
        assert [data.shape for data, _ in ds.__getitems__([0, -1])] == [(3, 24, 20), (3, 13, 30)]
        assert ds[:5][0].shape == (5, 3, 24, 20)
        with pytest.raises(ParamsError, match="cannot be stacked"):
            ds[4:6]
        assert ds.fields["data"].shape is None
        assert "many sizes" in repr(ds)


def test_pickled_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset is pickled as its parameters, relative paths included; a closed one says so."""
    raw(tmp_path)
    monkeypatch.chdir(tmp_path)
    ds = asyncreader.open("a.h5", dtype="float32")
    monkeypatch.chdir("/")
    stored = pickle.dumps(ds)
    assert len(stored) < 1000
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again[3][0], ds[3][0])
    ds.close()
    ds.close()
    assert repr(ds) == "<Dataset, closed>"
    for use in (lambda: ds[0], lambda: len(ds), lambda: ds.labels, lambda: ds.statistics()):
        with pytest.raises(ReaderClosedError, match="closed"):
            use()
    again.close()


def test_the_dataset_of_a_reader(tmp_path: Path) -> None:
    """It is open for as long as the reader, and the reader says what it says. A DataLoader that is
    given the reader is told what to take."""
    reader = AsyncReader(raw(tmp_path), batch_size=4, shuffle=True)
    ds: Dataset = reader.dataset
    assert ds is reader.dataset
    np.testing.assert_array_equal(reader.labels, ds.labels)
    assert reader.paths == ds.paths
    assert reader.class_to_idx == ds.class_to_idx
    assert reader.class_counts == ds.class_counts
    assert reader.sample(3).record == 3
    with pytest.raises(ParamsError, match=r"reader\.dataset"):
        reader.__getitems__([0])
    with pytest.raises(ParamsError, match=r"reader\.dataset\[i\]"):
        reader[0]
    ds.close()
    next(iter(reader))
    ds = reader.dataset
    assert ds[0][0].shape == (3, 24, 20)
    reader.close()
    for use in (lambda: ds[0], lambda: reader.dataset, lambda: reader.labels):
        with pytest.raises(ReaderClosedError):
            use()


def test_windows_of_episodes(tmp_path: Path) -> None:
    """A sample of a set of episodes is its window, and what is stored of it is that of its rows."""
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    hdf5(tmp_path / "a.h5", obs=rows, ends=[5, 12])
    given: dict[str, Any] = {
        "path": tmp_path / "a.h5", "data_field": ["obs"], "labels_field": None,
        "episodes": "ends:ends", "window": 3, "window_edge": "repeat",
    }  # fmt: skip
    with asyncreader.open(given, as_dict=True) as ds:
        assert ds.sample(4).stored == {"obs": rows[[4, 4, 4]].tobytes()}
        assert ds.fields["obs"] == ((3, 2), np.float32)
        np.testing.assert_array_equal(cast(Any, ds[6:8])["obs"], [rows[6:9], rows[7:10]])


def test_a_mix(tmp_path: Path) -> None:
    """Of a mix, samples are numbered as batch.indices number them: those of each set once, in
    sequence, whatever the ratios and encodings; statistics count each of them once."""
    first = write_hdf5(tmp_path / "a.h5", packed(IMAGES[:5]))
    second = write_hdf5(tmp_path / "b.h5", packed(IMAGES[5:12], "png"))
    params: dict[str, Any] = {"mix": {first: 0.25, second: 0.75}, "size": (24, 20)}
    with asyncreader.open(params) as ds:
        for number, picture in enumerate(IMAGES[:12]):
            np.testing.assert_array_equal(ds[number][0], picture.transpose(2, 0, 1))
        found = ds.statistics()["data"]
        pixels = np.asarray(IMAGES[:12]).reshape(-1, 3).astype(np.float64)
        assert found.count == len(pixels)
        np.testing.assert_allclose(found.mean, pixels.mean(0))
        assert sum(ds.class_counts.values()) == 12


def test_a_field_that_has_the_name_of_the_label() -> None:
    """A dict of a sample cannot hold both: it is refused."""
    arrays = {"label": IMAGES, "x": IMAGES}
    with pytest.raises(ParamsError, match="under the name of a field"):
        asyncreader.open(data=arrays, labels=np.arange(COUNT), as_dict=True)
    with asyncreader.open(data=arrays, labels=np.arange(COUNT)) as ds:
        assert len(ds[0][0]) == 2


def test_threads_of_a_forked_child_open_a_set_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a forked child a dataset opens its set again, once for all threads."""
    opened: list[int] = []
    open_set = build.open_set

    def noted(params: Any) -> Any:
        opened.append(1)
        return open_set(params)

    with asyncreader.open(**raw(tmp_path)) as dataset:
        monkeypatch.setattr(build, "open_set", noted)
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)
        barrier = threading.Barrier(8)

        def use(_: int) -> int:
            barrier.wait()
            return len(dataset)

        with switching_often(), ThreadPoolExecutor(8) as pool:
            assert set(pool.map(use, range(8))) == {COUNT}
        assert opened == [1]
        dataset.close()
        monkeypatch.undo()


def test_threads_of_the_dataset_of_a_reader() -> None:
    """nthread counts for reader.dataset where it was given; else all cores decode."""
    given = [{}, {"nthread": 1}, {"nthread": 3}]
    for more in given:
        with AsyncReader(data=np.zeros((4, 3)), batch_size=2, **more) as reader:
            threads = reader.dataset._now()._threads
            expected = usable_cores() if not more else more["nthread"]
            assert threads == expected
