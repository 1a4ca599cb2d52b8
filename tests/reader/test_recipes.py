"""Training recipes: padded crops, mixed rows and smoothed labels, the same for all workers."""

from pathlib import Path
from typing import Any

import numpy as np
import process_functions
import pytest
from fakes import epoch_of, error_of_batch, packed, write_hdf5
from reader_contract import ReaderContract, Served

from asyncreader import AsyncReader, ParamsError
from asyncreader.pixels.encoded import Planned
from asyncreader.pixels.transform import Form
from asyncreader.system.keyed_random import Draws, mix
from converters import convert

COUNT = 32
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 12, 3), dtype=np.uint8)
LABELS = np.arange(COUNT)[:, None] % 5


@pytest.mark.some(3)
@pytest.mark.parametrize(("verify", "views"), [("always", 1), ("never", 2)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("encoding", ["raw", "png"])
@pytest.mark.parametrize("mode", ["zero", "edge", "reflect"])
def test_a_padded_crop(
    encoding: str, mode: str, dtype: str, verify: str, views: int, tmp_path: Path
) -> None:
    """crop_padding puts pixels around a picture: each crop, of each view, is a part of it, of the
    picture's own size, all places come up, and a label map is cut alike."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(DATA), encoding))
    numpy = "constant" if mode == "zero" else mode
    padded = np.pad(DATA, ((0, 0), (2, 2), (2, 2), (0, 0)), numpy)  # type: ignore[call-overload]
    params: dict[str, Any] = {"size": (16, 12), "crop": "random", "crop_padding": 2}
    params |= {"batch_size": 8, "padding_mode": mode} | ({"views": views} if views > 1 else {})
    places = set()
    with AsyncReader(
        path=path, layout="NHWC", shuffle=True, dtype=dtype, verify=verify, **params
    ) as reader:
        for _ in range(8):
            for batch in reader:
                images = batch.data[0] if views > 1 else batch.data[:, None]
                for image, record in zip(
                    images.reshape(-1, 16, 12, 3), batch.indices.repeat(views), strict=True
                ):
                    found = [
                        (top, left)
                        for top in range(5)
                        for left in range(5)
                        if (padded[record, top : top + 16, left : left + 12] == image).all()
                    ]
                    places.update(found)
                    assert found
    assert len(places) == 25
    both: Any = {"image": DATA, "mask": DATA[..., :1].astype(np.int32)}
    with AsyncReader(data=both, data_field=["image", "mask"], **params) as reader:
        for batch in reader:
            image, mask = batch.data
            np.testing.assert_array_equal(image.take([0], axis=-3), mask)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_ranges_of_a_random_resized_crop(interpolation: str) -> None:
    """crop_area and crop_aspect say which parts of a picture come up."""
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8), (COUNT, 64, 64))
    image = np.stack([ramp, ramp.transpose(0, 2, 1), ramp * 0], axis=3)
    with AsyncReader(
        data=image, batch_size=COUNT, size=(64, 64), layout="NHWC", crop="random-resized",
        crop_area=(0.2, 0.3), crop_aspect=(2, 2.5), interpolation=interpolation,
    ) as reader:  # fmt: skip
        for _ in range(5):
            data = next(iter(reader)).data.astype(int)
            wide, high = (np.ptp(data[..., c], axis=(1, 2)) + 1 for c in (0, 1))
            assert ((wide / high > 1.8) & (wide / high < 2.7)).all()
            assert ((wide * high / 4096 > 0.17) & (wide * high / 4096 < 0.33)).all()


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop", [{}, {"size": (16, 12), "crop": "random", "crop_padding": 3}])
@pytest.mark.parametrize(
    "output",
    [
        {},
        {"contiguous": True},
        {"dtype": "float32", "scale": 1 / 255, "mean": (0.5, 0.4, 0.3)},
        {"dtype": "float16", "contiguous": True},
        {"dtype": "float64"},
    ],
)
def test_many_rows_are_cut_and_erased_as_one_by_one(
    output: dict[str, Any], crop: dict[str, Any], flip: bool, tmp_path: Path
) -> None:
    """What compiled code serves from memory, padded crops and erased rectangles with it, is what
    steps make of decoded pictures one by one, for any number of threads and after a bad start."""
    erasing = ("random-erasing", {"p": 0.8, "value": (9, 200, 77)})
    params: dict[str, Any] = {**output, **crop, "flip": flip, "augment": [erasing]}
    png = write_hdf5(tmp_path / "png.h5", packed(list(DATA), "png"))
    raw = write_hdf5(tmp_path / "raw.h5", packed(list(DATA)))
    found = []
    for given in (
        {"path": png}, {"data": DATA}, {"path": raw, "verify": "always", "nthread": 3},
        {"path": raw, "io": "pread"}, {"path": raw, "rank": 1, "world_size": 2, "batch_size": 4},
    ):  # fmt: skip
        given = {"batch_size": 8, "shuffle": True, **params, **given}
        with AsyncReader(copy=True, epochs=2, **given) as reader:
            found.append([batch.data for _ in range(2) for batch in reader])
    for other in found[1:4]:
        np.testing.assert_array_equal(other, found[0])
    np.testing.assert_array_equal(found[4], np.array(found[0])[:, 4:])
    painted = (np.array(found[0]) != np.array(found[0])[0, 0]).any()
    assert painted


@pytest.mark.parametrize("output", [{}, {"dtype": "float32", "scale": 1 / 255, "contiguous": True}])
@pytest.mark.parametrize("encoding", ["jpeg", "raw", "yuv420"])
def test_many_pictures_take_the_steps_as_one_by_one(
    encoding: str, output: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures that are cropped and resized together take the same steps as each by itself, and
    each step has its seconds."""
    pictures = [np.ascontiguousarray(DATA[k].repeat(4, 0).repeat(5, 1)) for k in range(COUNT)]
    path = write_hdf5(tmp_path / "a.h5", packed(pictures, "raw" if encoding == "raw" else "jpeg"))
    if encoding == "yuv420":
        convert(path, path := str(tmp_path / "b.h5"), encoding=encoding)
    params: dict[str, Any] = {
        "path": path, "size": (24, 20), "crop": "random-resized", "flip": True, "batch_size": 8,
        "augment": ["rand-augment", ("random-erasing", {"p": 0.8})], **output,
    }  # fmt: skip
    found = []
    for alone in (False, True):
        if alone:
            none = lambda images, _: range(images._rows.size)  # noqa: E731
            monkeypatch.setattr(Planned, "put_all", none)
            if encoding == "raw":
                monkeypatch.setattr(Form, "method", None)
        with AsyncReader(copy=True, **params) as reader:
            found.append([batch.data for batch in reader])
            assert set(reader.stats().other_seconds) == {"rand-augment", "random-erasing"}
    np.testing.assert_array_equal(*found)


# -- mixing --------------------------------------------------------------------------------------

PARAMS: dict[str, Any] = {"data": DATA, "labels": LABELS, "batch_size": 8, "num_classes": 5}
FLOATS: dict[str, Any] = {**PARAMS, "dtype": "float32", "layout": "NHWC", "shuffle": True}


def test_soft_labels() -> None:
    """num_classes alone gives rows with a 1; label_smoothing spreads its part over all classes; a
    label of -1 is a row of zeros."""
    rows = np.eye(5, dtype=np.float32)[LABELS[:, 0]]
    _, labels, indices = epoch_of(PARAMS, shuffle=True)
    assert labels.dtype == np.float32
    np.testing.assert_array_equal(labels, rows[indices])
    _, labels, indices = epoch_of(PARAMS, label_smoothing=0.1)
    np.testing.assert_allclose(labels, 0.9 * rows + 0.02, atol=1e-6)
    some = np.where(LABELS == 3, -1, LABELS)
    _, labels, indices = epoch_of({**PARAMS, "labels": some[:, 0]}, label_smoothing=0.1)
    assert (labels[LABELS[:, 0] == 3] == 0).all()
    np.testing.assert_allclose(labels.sum(axis=1), some[:, 0] >= 0, atol=1e-6)


def parts_of(labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The part of each row that is its own, by its label; nan where both have one class."""
    own, other = rows, rows.reshape(-1, 2, 5)[:, ::-1].reshape(-1, 5)
    same = (own == other).all(axis=1)
    part = (labels * own).sum(axis=1)
    expected = part[:, None] * own + (1 - part)[:, None] * other
    np.testing.assert_allclose(labels[~same], expected[~same], atol=1e-6)
    np.testing.assert_allclose(labels[same], own[same], atol=1e-6)
    return np.where(same, np.nan, part)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_mixup(dtype: str) -> None:
    """Each row is blended with its neighbour in the order, and its label by the same part."""
    data, labels, indices = epoch_of({**FLOATS, "dtype": dtype}, mixup=0.4)
    plain = DATA[indices].astype(np.float64)
    partners = plain.reshape(-1, 2, *plain.shape[1:])[:, ::-1].reshape(plain.shape)
    parts = parts_of(labels, np.eye(5)[LABELS[indices, 0]])
    known = ~np.isnan(parts)
    assert known.sum() > COUNT / 2
    share = parts[:, None, None, None]
    expected = share * plain + (1 - share) * partners
    limit = {"float32": 1e-3, "float16": 0.5, "uint8": 0.51}[dtype]
    assert np.abs(data.astype(np.float64) - expected)[known].max() < limit
    assert len(np.unique(np.round(parts[known], 6))) > COUNT // 4


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("contiguous", [False, True])
def test_cutmix(layout: str, contiguous: bool) -> None:
    """A rectangle is exchanged, and labels have the parts that are left."""
    params = {**FLOATS, "layout": layout, "contiguous": contiguous}
    data, labels, indices = epoch_of(params, cutmix=1.0)
    if layout == "NCHW":
        data = data.transpose(0, 2, 3, 1)
    plain = DATA[indices].astype(np.float32)
    partners = plain.reshape(-1, 2, *plain.shape[1:])[:, ::-1].reshape(plain.shape)
    own, theirs = (data == plain).all(axis=3), (data == partners).all(axis=3)
    assert (own | theirs).all()
    parts = parts_of(labels, np.eye(5)[LABELS[indices, 0]])
    known = ~np.isnan(parts)
    np.testing.assert_allclose(own.mean(axis=(1, 2))[known], parts[known], atol=1e-6)
    for one in theirs[parts < 1]:
        rows, columns = np.flatnonzero(one.any(axis=1)), np.flatnonzero(one.any(axis=0))
        assert one.sum() == rows.size * columns.size


def test_both_are_drawn() -> None:
    """With both alphas some pairs are blended and some exchange a rectangle."""
    data, _, indices = epoch_of(FLOATS, mixup=1.0, cutmix=1.0)
    plain = DATA[indices].astype(np.float32)
    partners = plain.reshape(-1, 2, *plain.shape[1:])[:, ::-1].reshape(plain.shape)
    cut = ((data == plain) | (data == partners)).all(axis=(1, 2, 3))
    assert 0 < cut.sum() < COUNT


@pytest.mark.slow
def test_rows_without_a_partner(tmp_path: Path) -> None:
    """A row whose partner is padded, bad or without a class stays as it is, with its own label;
    a padded row has a label of zeros."""
    rows = np.eye(5, dtype=np.float32)
    short = {**FLOATS, "data": DATA[:29], "labels": LABELS[:29], "shuffle": False, "mixup": 1.0}
    for last in ("pad", "short"):
        data, labels, _ = epoch_of(short, last_batch=last)
        np.testing.assert_array_equal(data[28], DATA[28].astype(np.float32))
        np.testing.assert_array_equal(labels[28], rows[LABELS[28, 0]])
        assert (labels[29:] == 0).all()
        assert (data[26] != DATA[26]).any()
    bad = packed(list(DATA), "png")
    bad.samples[3] = b"no picture"
    path = write_hdf5(tmp_path / "bad.h5", bad)
    found = []
    for workers in ({"nthread": 3}, {"nthread": 2, "workers": "process"}):
        params = {"path": path, "batch_size": 8, "mixup": 1.0, "on_error": "zero", **workers}
        data, labels, _ = epoch_of(params, dtype="float32", layout="NHWC")
        assert not data[3].any()
        assert not labels[3].any()
        np.testing.assert_array_equal(data[2], DATA[2].astype(np.float32))
        assert labels[2].max() == 1
        assert labels[4].max() < 1
        found.append((data.tobytes(), labels.tobytes()))
    assert found[0] == found[1]
    some = np.where(np.arange(COUNT) == 6, -1, LABELS[:, 0])
    data, labels, _ = epoch_of({**FLOATS, "labels": some, "shuffle": False}, cutmix=1.0)
    assert not labels[6].any()
    np.testing.assert_array_equal(data[6:8], DATA[6:8].astype(np.float32))
    np.testing.assert_array_equal(labels[7], rows[some[7]])


def test_a_label_of_no_class() -> None:
    """A label that is no class number is an error of its batch, which names the record."""
    labels = np.where(np.arange(COUNT) == 13, 5, LABELS[:, 0])
    with AsyncReader({**PARAMS, "labels": labels}) as reader:
        error = error_of_batch(reader, 1)
    assert isinstance(error, ParamsError)
    assert "no class number" in str(error)
    assert error.index == 13


def test_an_odd_place_is_refused() -> None:
    """Mixing cannot go on between two neighbours: the batch is a ParamsError."""
    with AsyncReader(data=DATA, labels=LABELS, batch_size=3) as reader:
        next(iter(reader))
        cursor = reader.cursor
    with AsyncReader(PARAMS, mixup=1.0) as reader:
        reader.go_to(cursor)
        reader.fetchData()
        with pytest.raises(ParamsError, match="cannot begin between two"):
            reader.getNextBatch()


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 5.0])
def test_beta(alpha: float) -> None:
    """4,000 shares have the distribution Beta(alpha, alpha)."""
    stats = pytest.importorskip("scipy.stats")
    drawn = [Draws(mix(number)).beta(alpha) for number in range(4_000)]
    assert all(0 <= one <= 1 for one in drawn)
    if alpha > 0.1:
        assert stats.kstest(drawn, stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    else:  # numbers so near to 0 and 1 are rounded
        assert np.mean([one < 0.5 for one in drawn]) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_each_step_has_its_seconds(workers: str, tmp_path: Path) -> None:
    """stats() says how long each operation, transform and stage took, by its name."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(DATA), "png", labels=LABELS))
    with AsyncReader(
        path=path, batch_size=8, augment=["random-equalize", "random-erasing"], mixup=0.2,
        cutmix=1.0, num_classes=5, transform=process_functions.dims, workers=workers,
        postprocess=process_functions.nothing,
    ) as reader:  # fmt: skip
        for _ in reader:
            pass
        seconds = reader.stats().seconds
    names = {"random-equalize", "random-erasing", "transform", "mixup/cutmix", "postprocess"}
    assert set(seconds) == {"read", "decode", *names}
    assert all(spent > 0 for spent in seconds.values())


# -- all of it together --------------------------------------------------------------------------

ALONE: dict[str, dict[str, Any]] = {
    "augment": {"augment": ["trivial-augment-wide", "random-erasing"]},
    "transform": {"transform": process_functions.darker},
    "mixing": {"mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1, "num_classes": 5},
    "crop": {"crop": "random", "crop_padding": 3, "size": (16, 12), "flip": True},
    "ranges": {"crop": "random-resized", "crop_area": (0.3, 0.9), "size": (14, 14)},
    "views": {
        "views": [{"count": 1}, {"count": 2, "size": (8, 6), "crop_area": (0.1, 0.5)}],
        "size": (14, 14), "crop": "random-resized", "flip": True,
        "transform": process_functions.dims,
        "augment": ["trivial-augment-wide", "random-erasing"],
    },
}  # fmt: skip
TOGETHER: dict[str, Any] = {"dtype": "float32", "mean": 9}
for _name in ("augment", "mixing", "crop"):
    TOGETHER |= ALONE[_name]
TOGETHER |= {"size": (16, 16), "transform": process_functions.dims}


#: What is served: a way of reading, and what is switched on; of these, few are fast tests.
CASES = [
    pytest.param((kind, name), marks=[pytest.mark.slow] * (name not in fast))
    for kinds, every, fast in (
        (("jpeg", "raw"), [*ALONE, "together"], {"together", "crop"}),
        (("weights", "mix"), ["nothing", "views", "together"], {"views"}),
    )
    for kind in kinds
    for name in every
]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pictures as JPEGs and as raw pixels."""
    folder = tmp_path_factory.mktemp("recipes")
    return {
        kind: write_hdf5(folder / f"{kind}.h5", packed(list(DATA), kind, labels=LABELS))
        for kind in ("jpeg", "raw")
    }


def params_of(sets: dict[str, str], kind: str, name: str) -> dict[str, Any]:
    """The parameters of a case: 31 samples, so that the last one has no partner to mix with."""
    on = {"together": TOGETHER, "nothing": {}}.get(name) or ALONE.get(name, {})
    given: dict[str, Any] = {"last_batch": "pad", **on}
    if kind == "mix":
        mix = {sets["jpeg"]: 0.75, sets["raw"]: 0.25}
        return {**given, "mix": mix, "epoch_samples": COUNT - 1, "shuffle": True}
    if kind == "weights":
        weights = np.linspace(1, 2, COUNT)
        return {
            **given,
            "path": sets["jpeg"],
            "weights": weights,
            "epoch_samples": COUNT - 1,
            "shuffle": False,
        }
    return {**given, "path": sets[kind], "subset": slice(1, None), "shuffle": True}


@pytest.fixture(params=CASES, ids="-".join)
def served(request: pytest.FixtureRequest, sets: dict[str, str]) -> Served:
    """A case, with even batches. The tests above say what each of its parts makes of pixels."""
    return Served(params_of(sets, *request.param), lambda _: None, COUNT - 1, (8, 2, 4))


@pytest.mark.some(2)
class TestAllTogether(ReaderContract):
    """Random pixels are the same in every way of reading."""
