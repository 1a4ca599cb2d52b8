"""What is in a batch: layout and values, the last batch, bad samples, checksums, postprocess."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import (
    MemorySource,
    damage,
    encoded,
    first,
    open_fake,
    packed,
    paint,
    pictures,
    write_hdf5,
    write_lmdb,
)
from observed import HANG
from painted import COUNT, IMAGES, LABELS, open_reader

from asyncreader import (
    AsyncReader,
    Batch,
    ChecksumError,
    DecodeError,
    ParamsError,
    ReaderTimeoutError,
    SampleError,
    SourceError,
    WorkerError,
)
from asyncreader.pixels import transform
from asyncreader.sampling.samplers import Sequential

# -- layout and values ---------------------------------------------------------------------------


def test_layouts() -> None:
    """NCHW of NHWC data is a free view; contiguous=True is in C order; NHWC is as stored."""
    with open_reader(layout="NCHW") as reader:
        data = first(reader).data
        assert data.shape == reader.data_shape == (4, 3, 6, 5)
        assert data.strides == (90, 1, 15, 3)
        assert data.transpose(0, 2, 3, 1).flags.c_contiguous
        np.testing.assert_array_equal(data, IMAGES[:4].transpose(0, 3, 1, 2))
    with open_reader(layout="NCHW", contiguous=True) as reader:
        data = first(reader).data
        assert data.flags.c_contiguous
        np.testing.assert_array_equal(data, IMAGES[:4].transpose(0, 3, 1, 2))
    with open_reader() as reader:
        data = first(reader).data
        assert data.flags.c_contiguous
        np.testing.assert_array_equal(data, IMAGES[:4])
    nchw = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))
    for layout, wanted in (("NCHW", nchw), ("NHWC", IMAGES)):
        with AsyncReader(
            data=nchw, batch_size=4, layout=layout, cha_dim=2, h_dim=3, w_dim=4
        ) as reader:
            np.testing.assert_array_equal(first(reader).data, wanted[:4])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_normalised(layout: str, contiguous: bool, dtype: str) -> None:
    """dtype, scale, mean and std give (x * scale - mean) / std per channel."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    with open_reader(
        layout=layout, contiguous=contiguous, dtype=dtype, scale=1 / 255, mean=mean, std=std
    ) as reader:
        data = first(reader).data
        assert reader.dtype == data.dtype == dtype
    wanted = (IMAGES[:4] / 255 - mean) / std
    if layout == "NCHW":
        wanted = wanted.transpose(0, 3, 1, 2)
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(data, wanted, rtol=tolerance, atol=tolerance)


def test_cast_alone() -> None:
    """dtype without scale casts and changes no value."""
    with open_reader(dtype="int32") as reader:
        data = first(reader).data
        assert data.dtype == np.int32
        np.testing.assert_array_equal(data, IMAGES[:4])


@pytest.mark.parametrize("kind", ["raw", "png"])
def test_geometry_is_by_position(kind: str, tmp_path: Path) -> None:
    """Random crops and flips differ by position and epoch, and are the same in every run."""
    path = write_hdf5(tmp_path / "a.h5", packed(pictures(COUNT, (30, 28, 3)), kind))
    params = {"path": path, "batch_size": 11, "size": (16, 16), "crop": "random", "flip": True}

    def epochs(**more: Any) -> list[np.ndarray]:
        with AsyncReader(params, crop_ratio=0.7, **more) as reader:
            return [np.concatenate([b.data.copy() for b in reader]) for _ in range(2)]

    one, two = epochs()
    again, _ = epochs(nthread=3, njob=2)
    other, _ = epochs(seed=1)
    np.testing.assert_array_equal(one, again)
    for changed in (two, other):
        same = [np.array_equal(a, b) for a, b in zip(one, changed, strict=True)]
        assert sum(same) < 4


def test_other_ranks_of_data() -> None:
    """Data that is not 4-D is served as stored, whatever the axis parameters say."""
    for shape in ((), (7,), (4, 5), (2, 3, 4, 5)):
        data = paint(9, shape, "float32")
        with AsyncReader(data=data, batch_size=3, layout="NCHW", cha_dim=2, h_dim=3, w_dim=4) as r:
            np.testing.assert_array_equal(first(r).data, data[:3])
        with AsyncReader(data=data, batch_size=3, dtype="float64", scale=2) as r:
            np.testing.assert_array_equal(first(r).data, data[:3] * 2.0)


@pytest.mark.parametrize("shape", [(COUNT,), (COUNT, 1), (COUNT, 4), (COUNT, 2, 3)])
def test_labels_keep_their_shape(shape: tuple[int, ...]) -> None:
    """Labels keep their stored per-sample shape and dtype."""
    labels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with open_reader(labels=labels, shuffle=True) as reader:
        batch = first(reader)
        assert reader.labels_shape == (4, *shape[1:])
        assert batch.labels is not None
        assert batch.labels.dtype == np.float32
        np.testing.assert_array_equal(batch.labels, labels[batch.indices])


# -- the last batch ------------------------------------------------------------------------------


def last(reader: AsyncReader) -> Batch:
    """The last batch of the first epoch, on slots that were used before."""
    list(reader)
    reader.seek(0)
    for batch in reader:
        if batch.step == len(reader) - 1:
            break
    return batch


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


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ({"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}, r"scale=1/255"),
        ({"mean": 0.5, "std": 0.5}, r"scale=1/255"),
        ({"mean": 0.5}, r"scale=1/255"),
        ({"std": 0.25}, r"scale=1/255"),
        ({"mean": 0.5, "std": 0.5, "data": IMAGES.astype("uint16")}, r"scale=1/65535"),
        ({"mean": (123.7, 116.3, 103.5), "std": 58.0, "scale": 1 / 255}, "leave scale out"),
        pytest.param(
            {"mean": 0.5, "std": 0.5, "workers": "process", "nthread": 2},
            r"scale=1/255",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_mean_and_std_of_another_scale(given: dict[str, Any], cure: str) -> None:
    """mean and std that are not of the pixels' scale: one warning for a reader, with the cure. It
    names the file that calls AsyncReader."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with open_reader(dtype="float32", last_batch="short", **given) as reader:
            list(reader)
    (warning,) = said
    assert cure in str(warning.message)
    assert warning.filename == open_reader.__code__.co_filename


@pytest.mark.parametrize(
    "given",
    [
        {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "scale": 1 / 255},
        {"mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)},
        {"mean": 127.5, "std": 127.5},
        {"std": 255},
        {"mean": 0.0, "std": 1.0},
        {"mean": 0.5, "std": 0.5, "scale": 1},
        {"mean": 0.5, "std": 0.5, "data": IMAGES / 255},
    ],
)
def test_mean_and_std_of_the_right_scale(given: dict[str, Any]) -> None:
    """No word where mean and std are of the scale of what is normalised, or scale says so."""
    with open_reader(dtype="float32", **given) as reader:
        first(reader)


@pytest.mark.parametrize("nthread", [1, 3])
@pytest.mark.parametrize("more", [{}, {"dtype": "float32", "scale": 1.0, "mean": 9.0}])
def test_last_batch(nthread: int, more: dict[str, Any]) -> None:
    """drop, pad, wrap and short: rows, labels, indices and mask of the last batch."""
    plain = IMAGES.astype(more.get("dtype", "uint8")) - np.asarray(more.get("mean", 0), "uint8")
    with open_reader(last_batch="drop", nthread=nthread, **more) as reader:
        batch = last(reader)
        assert batch.indices.tolist() == [16, 17, 18, 19]
    with open_reader(last_batch="pad", nthread=nthread, **more) as reader:
        batch = last(reader)
        assert batch.data.shape[0] == 4
        np.testing.assert_array_equal(batch.data[:2], plain[20:])
        assert not batch.data[2:].any()
        assert batch.labels is not None
        assert batch.labels[:, 0].tolist() == [200, 210, 0, 0]
        assert batch.indices.tolist() == [20, 21, -1, -1]
        assert batch.mask.tolist() == [True, True, False, False]
    with open_reader(last_batch="wrap", nthread=nthread, **more) as reader:
        batch = last(reader)
        np.testing.assert_array_equal(batch.data, plain[[20, 21, 0, 1]])
        assert batch.indices.tolist() == [20, 21, 0, 1]
        assert batch.mask.all()
    with open_reader(last_batch="short", nthread=nthread, **more) as reader:
        batch = last(reader)
        np.testing.assert_array_equal(batch.data, plain[20:])
        assert batch.labels is not None
        assert batch.labels.shape == (2, 1)
        assert batch.indices.tolist() == [20, 21]
        assert batch.mask.tolist() == [True, True]


def test_padded_ranks() -> None:
    """A rank whose whole batch is padding gets zeros and a mask of False."""
    with open_reader(last_batch="pad", batch_size=6, rank=1, world_size=4) as reader:
        batch = first(reader)
        assert batch.indices.tolist() == [6, 7, 8, 9, 10, 11]
    with open_reader(last_batch="pad", batch_size=20, rank=3, world_size=4) as reader:
        batch = first(reader)
        assert not batch.mask.any()
        assert not batch.data.any()
        assert (batch.indices == -1).all()


def test_batch_larger_than_the_set() -> None:
    """A batch larger than the set is padded, wrapped several times over, or short."""
    with open_reader(batch_size=50, last_batch="wrap") as reader:
        batch = first(reader)
        np.testing.assert_array_equal(batch.indices, np.arange(50) % COUNT)
        np.testing.assert_array_equal(batch.data, IMAGES[batch.indices])
    with open_reader(batch_size=50, last_batch="short") as reader:
        assert first(reader).data.shape[0] == COUNT
    with open_reader(batch_size=50, last_batch="pad") as reader:
        assert first(reader).mask.sum() == COUNT


# -- bad samples ---------------------------------------------------------------------------------


@pytest.fixture(params=["hdf5 raw", "lmdb raw", "hdf5 png", "lmdb png"])
def spoilt(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A set of ours with samples 5 and 6 damaged."""
    container, encoding = request.param.split()
    content = packed(pictures(COUNT, (16, 15, 3)), encoding)
    write = write_hdf5 if container == "hdf5" else write_lmdb
    path = write(tmp_path / f"set.{container}", content)
    for index in (5, 6):
        damage(path, content.samples[index])
    return path


@pytest.fixture
def undecodable(tmp_path: Path) -> str:
    """A set of ours whose samples 5 and 6 were never pictures; the checksums fit."""
    content = packed(pictures(COUNT, (16, 15, 3)), "jpeg")
    content.samples[5] = b"\xff\xd8\xff\xe0 no picture"
    content.samples[6] = content.samples[6][: len(content.samples[6]) // 2]
    return write_hdf5(tmp_path / "set.h5", content)


def check_raise(path: str, kind: type[SampleError]) -> None:
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


def check_skip(path: str, what: str) -> None:
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
        assert all(what in reason for _, reason in stats.bad_list)
        return found

    one = served()
    assert one[1][0] == 4
    assert one[1][3] == 7
    assert not {5, 6} & {index for batch in one for index in batch}
    assert one[1][1:3] != one[6][1:3]  # by epoch and position
    assert served(nthread=4, njob=3) == one


def check_zero(path: str) -> None:
    with AsyncReader(path=path, batch_size=4, on_error="zero", debug=True, njob=2) as reader:
        for _ in range(2):
            for batch in reader:
                bad = np.isin(batch.indices, [5, 6])
                np.testing.assert_array_equal(batch.mask, ~bad)
                assert batch.labels is not None
                assert not batch.data[bad].any()
                assert not batch.labels[bad].any()
                assert batch.data[~bad].any(axis=(1, 2, 3)).all()
        assert reader.stats().bad_samples >= 4


def test_damage_raises(spoilt: str) -> None:
    """on_error="raise": the error belongs to its batch, names the sample, and is passed."""
    check_raise(spoilt, ChecksumError)


def test_damage_is_skipped(spoilt: str) -> None:
    """on_error="skip": a replacement by seed, epoch and position, in indices, counted."""
    check_skip(spoilt, "do not match its checksum")


def test_damage_is_zeroed(spoilt: str) -> None:
    """on_error="zero": zeros and mask False, indices kept; counted."""
    check_zero(spoilt)


def test_undecodable_raises(undecodable: str) -> None:
    """An image that cannot be decoded is a DecodeError of its batch."""
    check_raise(undecodable, DecodeError)


def test_undecodable_is_skipped(undecodable: str) -> None:
    """An image that cannot be decoded has a replacement sample."""
    check_skip(undecodable, "JPEG")


def test_undecodable_is_zeroed(undecodable: str) -> None:
    """An image that cannot be decoded is zeros."""
    check_zero(undecodable)


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


def test_a_surprise_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other exception in a worker is a WorkerError of that batch, with it as cause."""
    source = MemorySource(IMAGES, LABELS)
    read = source.read_into

    def fails_once(*arguments: Any) -> Any:
        if source.calls == 1:
            source.calls += 1
            raise ZeroDivisionError("surprise")
        return read(*arguments)

    monkeypatch.setattr(source, "read_into", fails_once)
    with open_fake(monkeypatch, source, batch_size=4, njob=3) as reader:
        for _ in range(3):
            reader.fetchData()
        reader.getNextBatch()
        with pytest.raises(WorkerError, match="surprise") as caught:
            reader.getNextBatch()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert reader.getNextBatch().step == 2


@pytest.mark.parametrize("on_error", ["skip", "zero"])
def test_bad_list_does_not_advise_what_is_done(
    spoilt: str, undecodable: str, on_error: str
) -> None:
    """The reason of a sample that was left out says what and where, not how to leave it out."""
    for path in (spoilt, undecodable):
        with AsyncReader(path=path, batch_size=4, on_error=on_error, epochs=1) as reader:
            list(reader)
            stats = reader.stats()
        assert stats.bad_samples == 2
        for record, reason in stats.bad_list:
            assert f"record {record}" in reason
            assert "on_error" not in reason
        assert "on_error" not in repr(stats)


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


def test_verify_first_checks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """verify="first" checks each sample until it has passed once in this reader."""
    source = MemorySource(IMAGES, LABELS)
    with open_fake(monkeypatch, source, batch_size=4, shuffle=True, nthread=2) as reader:
        for _ in range(4):
            list(reader)
    assert len(source.checked) == len(set(source.checked)) >= 20


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


def test_verify_never_serves_damage(tmp_path: Path) -> None:
    """verify="never" hands out what is in the file; "always" finds it after a first pass too."""
    content = packed(IMAGES)
    path = write_hdf5(tmp_path / "a.h5", content)
    with AsyncReader(path=path, batch_size=11, verify="always") as reader:
        list(reader)
        damage(path, content.samples[3])
        reader.seek(5)
        with pytest.raises(ChecksumError):
            first(reader)
    with AsyncReader(path=path, batch_size=11, verify="never", layout="NHWC") as reader:
        batch = first(reader)
        assert (batch.data[3] != IMAGES[3]).sum() == 1


@pytest.mark.parametrize("write", [write_hdf5, write_lmdb])
def test_damage_is_found_while_rows_are_copied(write: Any, tmp_path: Path) -> None:
    """Rows are hashed while they are copied: the damaged one alone is bad, in the first pass and in
    the next."""

    images = np.random.default_rng(7).integers(0, 256, (40, 16, 16, 3), np.uint8)
    content = packed(images)
    path = write(tmp_path / "set", content)
    damage(path, content.samples[13])
    with AsyncReader(
        path=path, batch_size=8, shuffle=True, layout="NHWC", on_error="zero", epochs=3
    ) as reader:
        for _ in range(3):
            for batch in reader:
                bad = batch.indices == 13
                np.testing.assert_array_equal(batch.mask, ~bad)
                assert (batch.data[~bad] == images[batch.indices[~bad]]).all()
                assert not batch.data[bad].any()
        assert reader.stats().bad_samples == 3


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


def test_postprocess_returns_data_alone() -> None:
    """A single array is the data; the labels stay as they are."""
    with open_reader(postprocess=lambda data, labels: data.sum(axis=(1, 2, 3))) as reader:
        batch = first(reader)
        np.testing.assert_array_equal(batch.data, IMAGES[:4].sum(axis=(1, 2, 3)))
        np.testing.assert_array_equal(batch.labels, LABELS[:4])


def test_postprocess_of_the_same_arrays() -> None:
    """Returning what was given, or a view of it, is right too."""
    with open_reader(postprocess=lambda data, labels: (data[:, ::-1], labels)) as reader:
        np.testing.assert_array_equal(first(reader).data, IMAGES[:4, ::-1])


def test_postprocess_without_labels() -> None:
    """Without labels a function gets None, and may make some."""
    seen = []

    def note(data: np.ndarray, labels: Any) -> None:
        seen.append(labels)

    with AsyncReader(data=IMAGES, postprocess=note) as reader:
        assert first(reader).labels is None
    assert seen == [None, None]
    with AsyncReader(data=IMAGES, postprocess=lambda d, la: (d, d[:, 0, 0, 0])) as reader:
        assert reader.labels_shape == (1,)
        assert first(reader).labels is not None
    with open_reader(postprocess=lambda d, la: (d, None)) as reader:
        assert first(reader).labels is None
        assert reader.labels_shape is None


def test_trial_call_is_on_real_rows() -> None:
    """The one call at construction gets the first batch's real rows, and none starts later."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def note(data: np.ndarray, labels: np.ndarray) -> None:
        seen.append((data.copy(), labels.copy()))

    with open_reader(postprocess=note, shuffle=True) as reader:
        assert len(seen) == 1
        batch = first(reader)
        assert len(seen) == 2
        for data, labels in seen:
            np.testing.assert_array_equal(data, IMAGES[batch.indices])
            np.testing.assert_array_equal(labels, LABELS[batch.indices])


def test_postprocess_sees_what_a_caller_would() -> None:
    """The function gets layout, dtype and values as a caller without it would get them."""
    seen = []

    def note(data: np.ndarray, labels: np.ndarray) -> None:
        seen.append((data.shape, data.dtype, data.strides, float(data.max())))

    params = {"layout": "NCHW", "dtype": "float32", "scale": 1 / 255, "size": (4, 4)}
    with open_reader(**params) as reader:
        plain = first(reader).data
        wanted = (plain.shape, plain.dtype, plain.strides, float(plain.max()))
    with open_reader(**params, postprocess=note) as reader:
        first(reader)
    assert seen == [wanted, wanted]


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


def test_third_argument_with_a_default_is_not_the_generator() -> None:
    """f(data, labels, strength=0.5) is called with two arguments."""

    def shade(data: np.ndarray, labels: np.ndarray, strength: float = 0.5) -> Any:
        return data * strength

    with open_reader(postprocess=shade) as reader:
        np.testing.assert_array_equal(first(reader).data, IMAGES[:4] * 0.5)


def test_any_callable() -> None:
    """Objects, methods and partials serve as postprocess."""
    from functools import partial

    class Scaler:
        def __call__(self, data: np.ndarray, labels: np.ndarray) -> Any:
            return data * 2.0

        def method(self, data: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Any:
            assert isinstance(rng, np.random.Generator)
            return data * 2.0

    def scale(factor: float, data: np.ndarray, labels: np.ndarray) -> Any:
        return data * factor

    for function in (Scaler(), Scaler().method, partial(scale, 2.0)):
        with open_reader(postprocess=function) as reader:
            np.testing.assert_array_equal(first(reader).data, IMAGES[:4] * 2.0)


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
        (lambda d, la: (d, ["a"] * 4), "numbers"),
        (lambda d, la: (d, [[1], [1, 2], [3], [4]]), "arrays"),
        (lambda d, la: (d, 5), "numbers"),
        (lambda d, la: (None, la), "numbers"),
        (lambda d, la: "text", "numbers"),
        (lambda d, la: (d, la, la), "3 values"),
        (lambda: None, "TypeError"),
        (lambda d: None, "TypeError"),
    ],
)
def test_postprocess_that_fails_its_trial(function: Any, says: str) -> None:
    """A function that cannot work is a WorkerError when the reader is opened."""
    before = threading.active_count()
    with pytest.raises(WorkerError, match=says):
        open_reader(postprocess=function)
    assert threading.active_count() == before


def test_bad_samples_do_not_stop_the_trial(spoilt: str) -> None:
    """A damaged sample in the first batch does not keep the reader from opening."""
    with AsyncReader(
        path=spoilt, batch_size=11, postprocess=lambda d, la: (d, la), on_error="skip"
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
        while True:
            try:
                assert reader.getNextBatch().step == 0
                break
            except ReaderTimeoutError:
                continue


def test_encoded_of_another_size_is_a_bad_sample(tmp_path: Path) -> None:
    """An image of another size than the set declares is a bad sample of that record."""
    content = packed(pictures(COUNT, (16, 15, 3)), "png")
    content.samples[3] = encoded(pictures(1, (16, 16, 3))[0])
    with AsyncReader(
        path=write_hdf5(tmp_path / "a.h5", content), batch_size=11, on_error="zero"
    ) as reader:
        batch = first(reader)
        assert np.flatnonzero(~batch.mask).tolist() == [3]
        assert "16 x 16" in reader.stats().bad_list[0][1]


def test_large_rows_go_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are streamed into large slots are the same pixels, whatever their alignment."""

    monkeypatch.setattr(transform, "STREAMED_ROW", 1)
    monkeypatch.setattr(transform, "STREAMED_PART", 1 << 40)
    images = np.random.default_rng(5).integers(0, 256, (40, 37, 41, 3), np.uint8)
    monkeypatch.setattr("asyncreader.reader.SPLIT_BYTES", 0)  # as large batches are
    with AsyncReader(data=images, batch_size=8, shuffle=True, layout="NHWC", nthread=2) as reader:
        for batch in reader:
            assert (batch.data == images[batch.indices]).all()
        (filler,) = reader._filler._fillers
        assert filler.terms["stream"][0]
