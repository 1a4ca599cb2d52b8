"""``transform``: the user's function of each sample, in threads and processes."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import process_functions
import pytest
from fakes import epoch_of, error_of_batch, packed, write_hdf5

from asyncreader import AsyncReader, ParamsError, WorkerError

COUNT = 24
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, 9, 8, 3), dtype=np.uint8)
LABELS = np.arange(COUNT)[:, None]


GIVEN: dict[str, Any] = {"data": DATA, "labels": LABELS, "batch_size": 8, "layout": "NHWC"}


def reader(**params: Any) -> AsyncReader[Any, Any]:
    return AsyncReader({**GIVEN, **params})


def epoch(**params: Any) -> tuple[Any, Any, np.ndarray]:
    """Data, labels and indices of an epoch."""
    return epoch_of(GIVEN | params)


def test_what_it_may_take_and_return() -> None:
    """f(image) in place, f(image, label) and f(image, label, rng); an image of another size, and a
    label of another shape and dtype."""

    def in_place(image):  # type: ignore[no-untyped-def]
        image[:] = 255 - image

    def smaller(image, label):  # type: ignore[no-untyped-def]
        return image[::2, 1:], np.array([label[0] / 2, 7], np.float32)

    def drawn(image, label, rng, strength=3):  # type: ignore[no-untyped-def]
        assert strength == 3
        image[0, 0] = rng.integers(256, size=3)
        return image

    before = DATA.copy()
    data, labels, indices = epoch(transform=in_place, shuffle=True)
    np.testing.assert_array_equal(data, 255 - DATA[indices])
    np.testing.assert_array_equal(labels, LABELS[indices])
    np.testing.assert_array_equal(DATA, before)
    data, labels, indices = epoch(transform=smaller, shuffle=True)
    np.testing.assert_array_equal(data, DATA[indices][:, ::2, 1:])
    assert labels.dtype == np.float32
    np.testing.assert_array_equal(labels, np.stack([indices / 2, 0 * indices + 7], axis=1))
    data, labels, indices = epoch(transform=drawn)
    assert len({tuple(one[0, 0]) for one in data}) > COUNT - 3
    np.testing.assert_array_equal(data[:, 1:], DATA[:, 1:])


@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_another_number_of_channels(
    layout: str, channels: int, encoding: str, tmp_path: Path
) -> None:
    """What the function leaves of the channels is cast and normalised, with mean and std of these
    channels; rows stay within their memory."""

    def changed(image):  # type: ignore[no-untyped-def]
        return np.concatenate([image, image], axis=2)[:, :, :channels]

    path = write_hdf5(tmp_path / "set.h5", packed(list(DATA), encoding))
    mean = [float(n) for n in range(channels)]
    for more in ({}, {"size": (6, 5)}):
        given = {"path": path, "data": None, "labels": None, "layout": layout, "contiguous": True}
        plain, _, _ = epoch(**{**given, "layout": "NHWC"}, **more)
        expected = np.concatenate([plain, plain], axis=3)[..., :channels].astype(np.float64)
        for dtype, scale, means in (
            ("float32", 0.5, mean),
            ("float16", 1 / 256, [0.25]),
            ("float64", 2.0, mean),
            ("uint8", 1.0, [0.0]),
        ):
            served = {"dtype": dtype}
            if dtype != "uint8":
                served |= {"scale": scale, "mean": means}
            data, _, _ = epoch(transform=changed, **given, **more, **served)
            wanted = expected * scale - means
            if layout == "NCHW":
                wanted = wanted.transpose(0, 3, 1, 2)
            assert data.dtype == dtype
            np.testing.assert_allclose(data, wanted, rtol=2e-3, atol=2e-3)


def test_its_place() -> None:
    """It gets (H, W, C) uint8 after crop and flip, whatever is served; cast, normalising and the
    axes come behind it, erasing last."""
    seen = []

    def look(image):  # type: ignore[no-untyped-def]
        seen.append((image.shape, image.dtype.name))
        image[:] = 10

    data, _, _ = epoch(
        transform=look, size=(4, 6), flip=True, dtype="float32", mean=10, layout="NCHW",
        contiguous=True, augment=["random-equalize", ("random-erasing", {"p": 1, "value": 5})]
    )  # fmt: skip
    assert set(seen) == {((4, 6, 3), "uint8")}
    assert data.shape == (COUNT, 3, 4, 6)
    assert set(np.unique(data)) == {0.0, 5.0}


def test_it_may_make_labels() -> None:
    """A set without labels has those that the function returns."""
    data, labels, _ = epoch(labels=None, transform=lambda image: (image, image[0, 0, 0] % 3))
    np.testing.assert_array_equal(labels, DATA[:, 0, 0, 0] % 3)
    np.testing.assert_array_equal(data, DATA)


@pytest.mark.slow
def test_global_generators_in_processes() -> None:
    """In worker processes the global generators are seeded for each sample: the same numbers with
    any number of processes."""
    params: dict[str, Any] = {"transform": process_functions.from_global_generators}
    params["workers"] = "process"
    one, other = (epoch(nthread=count, **params)[0] for count in (1, 2))
    np.testing.assert_array_equal(one, other)
    assert len({(*a[0, 0], *a[0, 1]) for a in one}) > COUNT - 2


def raises(image: Any, label: Any) -> Any:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (raises, "transform raised KeyError: 'mine'"),
        (lambda image, label: (image[1:], label), "another shape than in its trial call"),
        (lambda image, label: (image / 255, label), "with the dtype that it gets"),
        (lambda image, label: image, "another label than in its trial call"),
        (lambda image, label: (image, label[0]), "another label"),
        (lambda image, label: (image, label, 5), "found 3 values"),
        (lambda image, label: ("picture", label), "must return an image"),
        (lambda image, label: (image, "cat"), "a label of numbers"),
    ],
)
@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_a_failure_names_its_record(how: Any, said: str, encoding: str, tmp_path: Path) -> None:
    """What it raises, or returns wrongly, is a WorkerError of that record's batch alone."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(DATA), encoding))
    with AsyncReader(path=path, batch_size=4, transform=_numbered(how)) as opened:
        error = error_of_batch(opened, 3)
    assert isinstance(error, WorkerError)
    assert said in str(error)
    assert (error.index, error.path) == (13, path)


def _numbered(how: Any) -> Any:
    """A function that fails for the picture of record 13."""

    def function(image, label):  # type: ignore[no-untyped-def]
        return how(image, label) if (image == DATA[13]).all() else (image, label)

    return function


@pytest.mark.slow
def test_the_trial_call_fails() -> None:
    """A function that fails at once is an error at construction."""

    def fails(image):  # type: ignore[no-untyped-def]
        raise ZeroDivisionError("always")

    with pytest.raises(WorkerError, match="ZeroDivisionError: always") as caught:
        reader(transform=fails)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ParamsError, match="f\\(image, label, rng\\)"):
        reader(transform="mine")
    with pytest.raises(ParamsError, match="top of a module"):
        reader(transform=lambda image: image, workers="process")
    with pytest.raises(ParamsError, match="works on images"):
        reader(data=DATA[:, 0, 0], transform=fails)
    with pytest.raises(WorkerError, match="trial call of a worker process"):
        reader(transform=process_functions.dies_in_worker, workers="process")


def test_albumentations_are_called_as_they_are() -> None:
    """A transform of albumentations is called with image=, and its image is served; in worker
    processes its own generators are seeded for each sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        albumentations = pytest.importorskip("albumentations")
    both = albumentations.Compose([albumentations.HorizontalFlip(p=1)])
    data, _, _ = epoch(transform=both)
    np.testing.assert_array_equal(data, DATA[:, :, ::-1])
    drawn = albumentations.Compose([albumentations.RandomBrightnessContrast(p=1)])
    processes: dict[str, Any] = {"transform": drawn, "workers": "process"}
    one, other = (epoch(nthread=count, **processes)[0] for count in (1, 2))
    np.testing.assert_array_equal(one, other)
    assert (one != DATA).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(("stored", "served"), [("float64", "float32"), ("uint16", "float16")])
def test_with_a_dtype_that_narrows(stored: str, served: str) -> None:
    """The function gets its label in all calls, where dtype cannot hold all that is stored, too. It
    is called once before the first batch."""
    labels: list[object] = []

    def note(image: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        labels.append(label)
        return image, label + 1

    data = np.ones((8, 6, 6, 3), stored)
    with AsyncReader(
        data=data, labels=np.arange(8), batch_size=8, dtype=served, transform=note
    ) as reader:
        assert len(labels) == 1
        found = next(iter(reader))
        np.testing.assert_array_equal(found.labels, np.arange(8) + 1)
    assert not any(label is None for label in labels)
