"""What is in a batch: layout and values, the last batch, bad samples, checksums, postprocess."""

import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import (
    MemorySource,
    damage,
    first,
    first_batch,
    open_fake,
    packed,
    pictures,
    write_hdf5,
    write_lmdb,
)
from observed import HANG, slot_states, until
from painted import COUNT, IMAGES, LABELS, open_reader

from asyncreader import (
    AsyncReader,
    ChecksumError,
    DecodeError,
    ParamsError,
    ReaderTimeoutError,
    SampleError,
    SourceError,
    WorkerError,
)
from asyncreader.sampling.samplers import Sequential

# -- the last batch ------------------------------------------------------------------------------


#: A stored value, the dtype it is stored as, and one that cannot hold it.
TOO_NARROW: list[tuple[Any, str, str]] = [
    (200, "uint8", "int8"),
    (-1, "int8", "uint8"),
    (300, "uint16", "uint8"),
    (-1, "int64", "uint64"),
    (2**63, "uint64", "int64"),
    (2**40, ">i8", "int32"),
    (2, "uint8", "bool"),
    (0.5, "float32", "int16"),
    (256.0, "float64", "uint8"),
    (float("nan"), "float64", "int64"),
    (2.0**63, "float64", "int64"),
    (70_000, "int32", "float16"),
    (65_535, "uint16", "float16"),
    (1e300, ">f8", "float32"),
    (1e5, "float32", "float16"),
]


@pytest.mark.parametrize("shape", [(6, 5, 3), (7,)])
@pytest.mark.parametrize(("value", "stored", "dtype"), TOO_NARROW)
def test_a_dtype_that_cannot_hold_a_stored_value(
    value: Any, stored: str, dtype: str, shape: tuple[int, ...]
) -> None:
    """A value that dtype cannot hold is a ParamsError that names it, never another value.

    Where all values fit they are served, and a value that only a later batch meets fails that one.
    """
    data = np.ones((40, *shape), stored)
    params: dict[str, Any] = {"data": data, "batch_size": 5, "dtype": dtype}
    with AsyncReader(params) as reader:
        assert all(np.array_equal(batch.data, np.ones_like(batch.data)) for batch in reader)
        data[1] = value  # not one of the samples that are looked at when a reader opens
        reader.seek(0)
        reader.fetchData()
        with pytest.raises(ParamsError, match=r"record 1.*cannot hold|cannot hold.*record 1"):
            reader.getNextBatch()
        assert first(reader).indices[0] == 5
    data[:] = value
    with pytest.raises(ParamsError, match="cannot hold") as caught:
        AsyncReader(params, size=None if len(shape) == 1 else (3, 3))
    assert str(caught.value.found).startswith(str(np.array(value, stored).reshape(1)[0]))


def test_a_dtype_that_holds_what_is_stored() -> None:
    """Wide or float storage of small whole numbers is served as a narrow dtype, resized or not."""
    for stored in ("float64", "int64", "uint16", ">f4"):
        plain = np.moveaxis(IMAGES, -1, 1)
        with AsyncReader(data=IMAGES.astype(stored), dtype="uint8", batch_size=22) as reader:
            np.testing.assert_array_equal(first(reader).data, plain)
        with (
            AsyncReader(data=IMAGES.astype(stored), dtype="uint8", size=(3, 3)) as reader,
            AsyncReader(data=IMAGES, size=(3, 3)) as other,
        ):
            off = first(reader).data.astype(int) - first(other).data.astype(int)
            assert abs(off).max() <= 1
    with AsyncReader(data=np.array([[np.inf], [np.nan]]), dtype="float32", batch_size=2) as reader:
        np.testing.assert_array_equal(first(reader).data, [[np.inf], [np.nan]])


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_encoded_pictures_as_int8(encoding: str, workers: str, tmp_path: Path) -> None:
    """Decoded pixels are checked as raw ones are, in whatever worker."""
    images = [np.full((8, 8, 3), 100, np.uint8) for _ in range(40)]
    images[1][:] = 200
    path = write_hdf5(tmp_path / "a.h5", packed(images, encoding))
    with AsyncReader(path=path, dtype="int8", workers=workers) as reader:
        assert first(reader).data.max() == 100
        reader.fetchData()
        with pytest.raises(ParamsError, match=r"record 1.*cannot hold|cannot hold.*record 1"):
            reader.getNextBatch()
    images[0][:] = 200
    path = write_hdf5(tmp_path / "b.h5", packed(images, encoding))
    with pytest.raises(ParamsError, match=r"a wider one"):
        AsyncReader(path=path, dtype="int8")


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ({"mean": MEAN, "std": STD}, "scale=1/255"),
        ({"mean": 0.5, "std": 0.5}, "scale=1/255"),
        ({"mean": 0.5}, "scale=1/255"),
        ({"std": 0.25}, "scale=1/255"),
        ({"mean": 0.5, "std": 0.5, "data": IMAGES.astype("uint16")}, "scale=1/65535"),
        ({"mean": (123.7, 116.3, 103.5), "std": 58.0, "scale": 1 / 255}, "leave scale out"),
        pytest.param(
            {"mean": 0.5, "std": 0.5, "workers": "process", "nthread": 2},
            "scale=1/255",
            marks=pytest.mark.slow,
        ),
        # they are of the scale of what is normalised, or scale says so
        ({"mean": MEAN, "std": STD, "scale": 1 / 255}, None),
        ({"mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)}, None),
        ({"mean": 127.5, "std": 127.5}, None),
        ({"std": 255}, None),
        ({"mean": 0.0, "std": 1.0}, None),
        ({"mean": 0.5, "std": 0.5, "scale": 1}, None),
        ({"mean": 0.5, "std": 0.5, "data": IMAGES / 255}, None),
    ],
)
def test_mean_and_std_of_another_scale(given: dict[str, Any], cure: str | None) -> None:
    """mean and std that are not of the pixels' scale: one warning for a reader, with the cure. It
    names the file that calls AsyncReader."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with open_reader(dtype="float32", last_batch="short", **given) as reader:
            list(reader)
    assert len(said) == (cure is not None)
    for warning in said:
        assert str(cure) in str(warning.message)
        assert warning.filename == open_reader.__code__.co_filename


# -- bad samples ---------------------------------------------------------------------------------


@pytest.fixture(params=["hdf5 raw", "lmdb raw", "hdf5 png", "lmdb png", "hdf5 jpeg"])
def spoilt(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, type[SampleError], str]:
    """A set of ours with bad samples 5 and 6, their error and a word of it. They are damaged, or,
    of JPEG, were never images: the checksums fit."""
    container, encoding = request.param.split()
    content = packed(pictures(COUNT, (16, 15, 3)), encoding)
    if encoding == "jpeg":
        content.samples[5] = b"\xff\xd8\xff\xe0 no picture"
        content.samples[6] = content.samples[6][: len(content.samples[6]) // 2]
        return write_hdf5(tmp_path / "set.h5", content), DecodeError, "JPEG"
    write = write_hdf5 if container == "hdf5" else write_lmdb
    path = write(tmp_path / f"set.{container}", content)
    for index in (5, 6):
        damage(path, content.samples[index])
    return path, ChecksumError, "do not match its checksum"


def test_a_bad_sample_raises(spoilt: tuple[str, type[SampleError], str]) -> None:
    """on_error="raise": the error belongs to its batch, names the sample, and is passed."""
    path, kind, _ = spoilt
    with AsyncReader(path=path, batch_size=4, njob=3, nthread=2, epochs=2) as reader:
        for _ in range(3):
            reader.fetchData()
        held = reader.getNextBatch()
        with pytest.raises(kind) as caught:
            reader.getNextBatch()
        assert caught.value.index == 5
        assert caught.value.path == path
        assert caught.value.source_path == "photos/0005.png"
        assert held.indices.tolist() == [0, 1, 2, 3]
        assert held.data.any()
        # the position moved past it: the next call is the next batch
        assert reader.state_dict()["steps"] == 2
        assert reader.getNextBatch().indices.tolist() == [8, 9, 10, 11]
        # and a loop goes on too
        assert [batch.step for batch in reader] == [3, 4]
        with pytest.raises(kind):
            list(reader)
        assert [batch.step for batch in reader] == [2, 3, 4]


def test_bad_samples_are_skipped(spoilt: tuple[str, type[SampleError], str]) -> None:
    """on_error="skip": a replacement by seed, epoch and position, in indices, counted. The reason
    says what and where, not how to leave it out."""
    path, _, what = spoilt

    def served(**params: Any) -> list[list[int]]:
        with AsyncReader(path=path, batch_size=4, on_error="skip", epochs=2, **params) as reader:
            found = []
            for _ in range(2):
                for batch in reader:
                    assert batch.mask.all()
                    assert batch.labels is not None
                    assert (batch.labels[:, 0] == batch.indices % 3).all()
                    found.append(batch.indices.tolist())
            stats = reader.stats()
        assert stats.bad_samples == 4
        assert [index for index, _ in stats.bad_list] == [5, 6, 5, 6]
        for index, reason in stats.bad_list:
            assert what in reason
            assert f"record {index}" in reason
        assert "on_error" not in repr(stats)
        return found

    one = served()
    assert one[1][0] == 4
    assert one[1][3] == 7
    assert not {5, 6} & {index for batch in one for index in batch}
    assert one[1][1:3] != one[6][1:3]  # by epoch and position
    assert served(nthread=4, njob=3) == one


def test_bad_samples_are_zeroed(spoilt: tuple[str, type[SampleError], str]) -> None:
    """on_error="zero": zeros and mask False, indices kept, counted; all other rows are right."""
    path, kind, _ = spoilt
    images = pictures(COUNT, (16, 15, 3))
    with AsyncReader(
        path=path, batch_size=4, on_error="zero", debug=True, njob=2, layout="NHWC"
    ) as reader:
        for _ in range(2):
            for batch in reader:
                bad = np.isin(batch.indices, [5, 6])
                np.testing.assert_array_equal(batch.mask, ~bad)
                assert batch.labels is not None
                assert not batch.data[bad].any()
                assert not batch.labels[bad].any()
                assert batch.data[~bad].any(axis=(1, 2, 3)).all()
                if kind is ChecksumError:
                    np.testing.assert_array_equal(batch.data[~bad], images[batch.indices[~bad]])
        stats = reader.stats()
    assert stats.bad_samples >= 4
    assert "on_error" not in repr(stats)


def test_stand_ins_are_those_of_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement is the first good one of the order's own list, and so resumes alike."""
    bad = {5, *Sequential(COUNT, 7).replacements(0, 5, 2).tolist()}
    source = MemorySource(IMAGES, LABELS, damaged=sorted(bad))
    with open_fake(
        monkeypatch, source, batch_size=COUNT, on_error="skip", seed=7, layout="NHWC"
    ) as reader:
        batch = first(reader)
        wanted = next(
            i for i in Sequential(COUNT, 7).replacements(0, 5, 16).tolist() if i not in bad
        )
        assert batch.indices[5] == wanted
        np.testing.assert_array_equal(batch.data, IMAGES[batch.indices])
        np.testing.assert_array_equal(batch.labels, LABELS[batch.indices])


def test_sixteen_bad_in_a_row_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every replacement is bad too, the batch fails; a subset's replacements are its own."""
    source = MemorySource(IMAGES, LABELS, undecodable=range(4, COUNT))
    with open_fake(
        monkeypatch, source, batch_size=2, on_error="skip", subset=[0, 9, 10, 11, 12, 1]
    ) as reader:
        assert set(first(reader).indices.tolist()) <= {0, 1}
    with open_fake(
        monkeypatch, source, batch_size=2, on_error="skip", subset=[9, 10, 11, 12]
    ) as reader:
        with pytest.raises(SampleError, match="16 replacement samples") as caught:
            first(reader)
        assert isinstance(caught.value.__cause__, DecodeError)


def test_an_io_error_is_never_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error belongs to its batch, whatever on_error says, with the original as cause."""
    for on_error in ("raise", "skip", "zero"):
        source = MemorySource(IMAGES, LABELS, fail_calls=[1])
        with open_fake(monkeypatch, source, batch_size=4, on_error=on_error, njob=3) as reader:
            for _ in range(3):
                reader.fetchData()
            assert reader.getNextBatch().step == 0
            with pytest.raises(SourceError, match="Input/output error") as caught:
                reader.getNextBatch()
            assert isinstance(caught.value.__cause__, OSError)
            assert not isinstance(caught.value, SampleError)
            assert reader.getNextBatch().step == 2
            assert reader.stats().bad_samples == 0


def test_bad_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of bad samples stops at 1,000; the count goes on."""
    source = MemorySource(IMAGES, LABELS, undecodable=range(COUNT))
    with open_fake(
        monkeypatch, source, batch_size=COUNT, on_error="zero", nthread=2, njob=2
    ) as reader:
        for _ in range(50):
            batch = first(reader)
        assert not batch.mask.any()
        stats = reader.stats()
    assert stats.bad_samples == 50 * COUNT
    assert len(stats.bad_list) == 1000
    assert [index for index, _ in stats.bad_list[:COUNT]] == list(range(COUNT))


# -- checksums -----------------------------------------------------------------------------------


def test_only_a_passed_check_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that failed is checked, and fails, every time it comes up."""
    source = MemorySource(IMAGES, LABELS, damaged=[5])
    with open_fake(
        monkeypatch, source, batch_size=4, on_error="zero", epochs=3, last_batch="pad"
    ) as reader:
        for _ in range(3):
            list(reader)
        assert reader.stats().bad_samples == 3
    assert source.checked.count(5) == 3
    assert all(source.checked.count(i) == 1 for i in range(COUNT) if i != 5)


def test_a_failed_batch_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a batch that ended in an I/O error were not checked: they are next time."""
    source = MemorySource(IMAGES, LABELS, fail_calls=[0])
    with open_fake(monkeypatch, source, batch_size=4) as reader:
        with pytest.raises(SourceError):
            first(reader)
        reader.seek(0)
        first(reader)
        reader.seek(0)
        first(reader)
    assert source.checked == [0, 1, 2, 3, 0, 1, 2, 3]


def test_verify_always_and_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "always" checks every read, "never" none, and a set without checksums none."""
    for verify, checksums, times in (("always", True, 3), ("never", True, 0), ("first", False, 0)):
        source = MemorySource(IMAGES, LABELS, damaged=[21], checksums=checksums)
        with open_fake(
            monkeypatch, source, batch_size=4, verify=verify, on_error="zero", last_batch="pad"
        ) as reader:
            for _ in range(3):
                for batch in reader:
                    bad = (batch.indices == 21) & (times > 0)
                    np.testing.assert_array_equal(batch.mask, (batch.indices >= 0) & ~bad)
            reader.seek(9)
        assert all(source.checked.count(i) >= times for i in range(COUNT))
        assert bool(source.checked) == bool(times)


# -- postprocess ---------------------------------------------------------------------------------


def test_postprocess_in_place() -> None:
    """A function that returns None works on the slot itself."""

    def brighten(data: np.ndarray, labels: np.ndarray) -> None:
        data[:] = 255 - data
        labels += 1

    for layout in ("NHWC", "NCHW"):
        with open_reader(postprocess=brighten, layout=layout, shuffle=True, njob=2) as reader:
            assert reader.data_shape == ((4, 6, 5, 3) if layout == "NHWC" else (4, 3, 6, 5))
            for batch in reader:
                pixels = batch.data if layout == "NHWC" else batch.data.transpose(0, 2, 3, 1)
                np.testing.assert_array_equal(pixels, 255 - IMAGES[batch.indices])
                np.testing.assert_array_equal(batch.labels, LABELS[batch.indices] + 1)


def test_postprocess_returns_arrays() -> None:
    """What a function returns is copied to C-ordered, page-aligned slots of its own shape."""

    def shrink(data: np.ndarray, labels: np.ndarray) -> Any:
        return data[:, :, ::2].astype(np.float32).transpose(0, 2, 1, 3), labels[:, 0] * 0.5

    with open_reader(postprocess=shrink, layout="NCHW") as reader:
        assert reader.data_shape == (4, 3, 3, 5)
        assert reader.labels_shape == (4,)
        assert reader.dtype == np.float32
        addresses = set()
        for batch in reader:
            wanted, labels = shrink(
                IMAGES[batch.indices].transpose(0, 3, 1, 2), LABELS[batch.indices]
            )
            np.testing.assert_array_equal(batch.data, wanted)
            np.testing.assert_array_equal(batch.labels, labels)
            assert batch.data.flags.c_contiguous
            assert batch.data.ctypes.data % 4096 == 0
            addresses.add(batch.data.ctypes.data)
        assert len(addresses) == 2


class Scaler:
    """A function as an object, and as its method."""

    def __call__(self, data: np.ndarray, labels: np.ndarray) -> Any:
        return data * 2.0

    def method(self, data: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Any:
        assert isinstance(rng, np.random.Generator)
        return data * 2.0


def shade(data: np.ndarray, labels: np.ndarray, strength: float = 0.5) -> Any:
    return data * strength


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda data, labels: data.sum(axis=(1, 2, 3)), IMAGES[:4].sum(axis=(1, 2, 3))),
        (lambda data, labels: (data[:, ::-1], labels), IMAGES[:4, ::-1]),  # a view
        (shade, IMAGES[:4] * 0.5),  # a third argument with a default is no generator
        (partial(shade, strength=2.0), IMAGES[:4] * 2.0),
        (Scaler(), IMAGES[:4] * 2.0),
        (Scaler().method, IMAGES[:4] * 2.0),
    ],
)
def test_any_callable(function: Any, expected: np.ndarray) -> None:
    """Functions, partials, objects and methods serve; a single array is the data, and the labels
    stay as they are."""
    with open_reader(postprocess=function) as reader:
        batch = first(reader)
        np.testing.assert_array_equal(batch.data, expected)
        np.testing.assert_array_equal(batch.labels, LABELS[:4])


def test_postprocess_without_labels() -> None:
    """Without labels a function gets None, and may make some."""
    seen = []

    def note(data: np.ndarray, labels: Any) -> None:
        seen.append(labels)

    assert first_batch(data=IMAGES, postprocess=note).labels is None
    assert seen == [None, None]
    with AsyncReader(data=IMAGES, postprocess=lambda d, la: (d, d[:, 0, 0, 0])) as reader:
        assert reader.labels_shape == (1,)
        assert first(reader).labels is not None
    with open_reader(postprocess=lambda d, la: (d, None)) as reader:
        assert first(reader).labels is None
        assert reader.labels_shape is None


def test_postprocess_of_a_short_batch() -> None:
    """With last_batch="short" the function gets and returns the rows that there are."""
    for function in (lambda d, la: None, lambda d, la: (d * 2, la)):
        with open_reader(postprocess=function, last_batch="short", epochs=1) as reader:
            sizes = [(len(batch), batch.data.shape[0]) for batch in reader]
        assert sizes == [(4, 4)] * 5 + [(2, 2)]


@pytest.mark.parametrize("nthread", [1, 4])
@pytest.mark.parametrize("njob", [1, 3])
def test_generator_of_a_batch(nthread: int, njob: int) -> None:
    """rng is keyed by the position of the batch's first row: the same for any threads."""

    def draw(data: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Any:
        return data, rng.random((len(data), 2))

    def optional(data: np.ndarray, labels: np.ndarray, rng: Any = None) -> Any:
        return draw(data, labels, rng)

    def epochs(**params: Any) -> list[np.ndarray]:
        with open_reader(**params) as reader:
            return [batch.labels.copy() for _ in range(2) for batch in reader]

    plain = epochs(postprocess=draw)
    assert len({labels.tobytes() for labels in plain}) == 10
    for function in (draw, optional):
        again = epochs(postprocess=function, nthread=nthread, njob=njob)
        np.testing.assert_array_equal(again, plain)
    assert not np.array_equal(epochs(postprocess=draw, seed=1), plain)


def test_several_at_once() -> None:
    """Batches are postprocessed side by side: two functions meet inside."""
    meet = threading.Barrier(2)
    calls = []

    def together(data: np.ndarray, labels: np.ndarray) -> None:
        calls.append(1)
        if len(calls) > 1:  # not the trial call
            meet.wait(HANG)

    with open_reader(postprocess=together, nthread=2, njob=2) as reader:
        reader.fetchData()
        reader.fetchData()
        assert [reader.getNextBatch().step for _ in range(2)] == [0, 1]


def failing(change: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[..., Any]:
    """Returns arrays, but for the batch that begins with record 8: ``change`` of them."""

    def function(data: np.ndarray, labels: np.ndarray) -> Any:
        if labels[0, 0] == 80:
            return change(data, labels)
        return data * 2, labels

    return function


def _raise(data: np.ndarray, labels: np.ndarray) -> Any:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_raise, "KeyError"),
        (lambda d, la: (d[:, :3], la), "another shape"),
        (lambda d, la: (d[:2], la), "another shape"),
        (lambda d, la: (np.ma.masked_equal(d, d.flat[0]), la), r"data with masked.*\.filled\("),
        (lambda d, la: (d * 2.0, la), "float64"),
        (lambda d, la: (d, la[:, 0]), "labels of another shape"),
        (lambda d, la: (d, None), "labels"),
        (lambda d, la: None, "returned None"),
        (lambda d, la: (d, la, la), "3 values"),
        (lambda d, la: ("text", la), "another shape"),
        (lambda d, la: (d, [[1], [1, 2], [3], [4]]), "inhomogeneous"),
    ],
)
def test_postprocess_that_fails(change: Any, says: str) -> None:
    """A function that raises or changes its shape is a WorkerError of that batch alone."""
    with open_reader(postprocess=failing(change), njob=2, nthread=2) as reader:
        served = []
        for step in range(5):
            reader.fetchData()
            if step != 2:
                served.append(reader.getNextBatch().step)
                continue
            with pytest.raises(WorkerError, match=says) as caught:
                reader.getNextBatch()
            if change is _raise:
                assert isinstance(caught.value.__cause__, KeyError)
        assert served == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_raise, "KeyError"),
        (lambda d, la: (d.astype(object), la), "numbers"),
        (lambda d, la: (d, 5), "numbers"),
        (lambda d, la: (None, la), "numbers"),
        (lambda d, la: (d, la, la), "3 values"),
        (lambda d: None, "TypeError"),
    ],
)
def test_postprocess_that_fails_its_trial(function: Any, says: str) -> None:
    """A function that cannot work is a WorkerError when the reader is opened."""
    before = threading.active_count()
    with pytest.raises(WorkerError, match=says):
        open_reader(postprocess=function)
    assert threading.active_count() == before


def test_bad_samples_do_not_stop_the_trial(spoilt: tuple[str, type[SampleError], str]) -> None:
    """A damaged sample in the first batch does not keep the reader from opening."""
    with AsyncReader(
        path=spoilt[0], batch_size=11, postprocess=lambda d, la: (d, la), on_error="skip"
    ) as reader:
        assert not {5, 6} & set(first(reader).indices.tolist())


# -- timeouts ------------------------------------------------------------------------------------


def test_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``timeout`` seconds a typed error; the batch comes when it is asked for again."""
    gate = threading.Event()
    source = MemorySource(IMAGES, LABELS, gate=gate)
    with open_fake(monkeypatch, source, batch_size=4, timeout=0.01) as reader:
        reader.fetchData()
        before = reader.state_dict()
        for _ in range(2):
            with pytest.raises(ReaderTimeoutError, match=r"0\.01 s"):
                reader.getNextBatch()
        with pytest.raises(TimeoutError):
            next(iter(reader))
        assert reader.state_dict() == before
        gate.set()
        until(lambda: slot_states(reader)["ready"] == 1)
        assert reader.getNextBatch().step == 0
