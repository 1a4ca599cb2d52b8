"""Several fields: image and mask of one sample, in one order, under one crop and one flip.

Images are painted so that each pixel says where it is and which sample it belongs to: channel 0 is
5 x row, channel 1 is 4 x column (both smooth, so that resizing keeps the meaning), channel 2 is the
sample's number. Masks say the same exactly: uint16, row x 256 + column. Any row that is swapped,
cropped elsewhere or mirrored alone shows.
"""

import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import Packed, damage, describe, described, first_batch, packed, write_hdf5, write_lmdb
from foreign_sets import pyxis_sample, write_pyxis
from PIL import Image
from reader_contract import ReaderContract, Served

import asyncreader
from asyncreader import (
    AsyncReader,
    ChecksumError,
    DecodeError,
    FormatError,
    ParamsError,
    SampleError,
    WorkerError,
)
from asyncreader.pixels.codec import decode_values, encode
from asyncreader.tools.verify import verify_file

N, HIGH, WIDE = 22, 48, 56
LABELS = np.arange(N, dtype=np.int64)[:, None] * 10
BOXES = np.arange(N * 5, dtype=np.float64).reshape(N, 5)
FIELDS = ["data", "mask"]
ALL = ["data", "mask", "ids"]


def pixels(high: int = HIGH, wide: int = WIDE) -> np.ndarray:
    """N images whose pixels say where they are."""
    images = np.empty((N, high, wide, 3), np.uint8)
    rows, columns = np.mgrid[0:high, 0:wide]
    images[..., 0], images[..., 1] = rows * 5 % 256, columns * 4 % 256
    images[..., 2] = np.arange(N)[:, None, None]
    return images


def places(high: int = HIGH, wide: int = WIDE) -> np.ndarray:
    """The mask of all of them: row x 256 + column of each pixel."""
    rows, columns = np.mgrid[0:high, 0:wide]
    return np.repeat((rows * 256 + columns).astype(np.uint16)[None], N, axis=0)


IMAGES, MASKS = pixels(), places()
#: One number a sample: a mask that belongs to another shows.
IDS = np.repeat(np.arange(N, dtype=np.uint8)[:, None, None], HIGH, 1).repeat(WIDE, 2)


def ours(kind: str = "raw") -> Packed:
    """A packed set with the fields ``mask`` (uint16) and ``ids`` (uint8)."""
    content = packed(list(IMAGES), kind, LABELS, **({"quality": 95} if kind == "jpeg" else {}))
    for name, values in (("mask", MASKS), ("ids", IDS)):
        rows = [np.ascontiguousarray(row)[:, :, None] for row in values]
        samples = [row.tobytes() if kind == "raw" else encode(row, "png") for row in rows]
        content.fields[name] = Packed(
            samples,
            None,
            "raw" if kind == "raw" else "png",
            (HIGH, WIDE, 1),
            1,
            dtype=values.dtype.name,
        )
    return content


def check(batch: Any, layout: str, size: tuple[int, int] | None, tolerance: float) -> None:
    """Image, mask and ids of a batch are those of its indices and show the same part."""
    image, mask, ids = (np.asarray(array, np.float64) for array in batch.data)
    if layout == "NCHW":
        image = image.transpose(0, 2, 3, 1)
        mask, ids = (array[:, 0] if array.ndim == 4 else array for array in (mask, ids))
    else:
        mask, ids = (array[..., 0] if array.ndim == 4 else array for array in (mask, ids))
    np.testing.assert_array_equal(ids, np.broadcast_to(batch.indices[:, None, None], ids.shape))
    np.testing.assert_array_equal(batch.labels, LABELS[batch.indices])
    assert np.abs(image[..., 2] - batch.indices[:, None, None]).max() <= min(tolerance, 12)
    row, column = mask // 256, mask % 256
    assert np.abs(image[..., 0] - 5 * row).max() <= tolerance
    assert np.abs(image[..., 1] - 4 * column).max() <= tolerance


# -- containers ----------------------------------------------------------------------------------


def write_maps(path: Path, samples: list[dict[str, Any]]) -> str:
    """ml-pyxis: one msgpack map a sample, with arrays inside."""
    return write_pyxis(path, [pyxis_sample(sample) for sample in samples])


def maps_of_all(path: Path) -> str:
    """The set as ml-pyxis writes it."""
    rows = zip(IMAGES, MASKS, IDS, LABELS, strict=True)
    return write_maps(path, [dict(zip([*ALL, "labels"], row, strict=True)) for row in rows])


def write_plain(path: Path, *, part: slice = slice(None), **tables: Any) -> str:
    """A foreign HDF5 file, of a part of the set. ``tables``: other arrays, or keywords of
    h5py's create_dataset, for some of the fields."""
    given = {"data": IMAGES, "mask": MASKS[..., None], "ids": IDS[..., None], "labels": LABELS}
    with h5py.File(path, "w") as file:
        for name, values in given.items():
            other = tables.get(name, {})
            how = other if isinstance(other, dict) else {"data": other}
            file.create_dataset(name, **({"data": values[part]} | how))
    return str(path)


def write_chunked(path: Path, **storage: Any) -> str:
    """Each field in chunks of its own; those of ``ids`` are parts of a row."""
    chunks = {"data": (3, HIGH, WIDE, 3), "mask": (5, HIGH, WIDE, 1), "ids": (1, 20, WIDE, 1)}
    return write_plain(path, **{name: {"chunks": c, **storage} for name, c in chunks.items()})


def write_two(folder: Path) -> list[str]:
    """The same set in two files."""
    parts = (slice(0, 9), slice(9, N))
    return [write_plain(folder / f"part{part.start}.h5", part=part) for part in parts]


def number_last(path: Path) -> str:
    """The axis of samples comes last, as MATLAB has it; masks without channels have theirs last,
    too."""
    return write_plain(path, data=np.moveaxis(IMAGES, 0, 3), mask=np.moveaxis(MASKS, 0, 2),
                       ids=np.moveaxis(IDS, 0, 2))  # fmt: skip


def arrays(**images: Any) -> dict[str, Any]:
    return {"data": {"data": IMAGES, "mask": MASKS, "ids": IDS, **images}, "labels": LABELS}


CONTAINERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "hdf5": lambda path: {"path": write_plain(path / "set.h5")},
    "hdf5 without channels": lambda path: {
        "path": write_plain(path / "set.h5", mask=MASKS, ids=IDS)
    },
    "hdf5 chunks": lambda path: {"path": write_chunked(path / "set.h5")},
    "hdf5 gzip": lambda path: {"path": write_chunked(path / "set.h5", compression="gzip")},
    "hdf5, number last": lambda path: {
        "path": number_last(path / "set.h5"), "num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3,
    },
    "two files": lambda path: {"path": write_two(path)},
    "ours raw hdf5": lambda path: {"path": write_hdf5(path / "set.h5", ours())},
    "ours gzip hdf5": lambda path: {
        "path": write_hdf5(path / "set.h5", ours(), compression="gzip")
    },
    "ours jpeg hdf5": lambda path: {"path": write_hdf5(path / "set.h5", ours("jpeg"))},
    "ours raw lmdb": lambda path: {"path": write_lmdb(path / "set.lmdb", ours())},
    "ours png lmdb": lambda path: {"path": write_lmdb(path / "set.lmdb", ours("png"))},
    "pyxis": lambda path: {"path": maps_of_all(path / "set.lmdb")},
    "arrays": lambda path: arrays(),
    "planar arrays": lambda path: {
        **arrays(data=IMAGES.transpose(0, 3, 1, 2), ids=IDS[:, None]),
        "num_dim": 1, "h_dim": 3, "w_dim": 4, "cha_dim": 2,
    },
}  # fmt: skip

MODES: dict[str, dict[str, Any]] = {
    "as stored": {},
    "flip": {"flip": True, "shuffle": True},
    "contiguous": {"contiguous": True, "flip": True},
    "centre": {"size": (20, 24), "layout": "NHWC"},
    "random": {"size": (24, 24), "crop": "random", "crop_ratio": 0.7, "shuffle": True},
    "random-resized": {
        "size": (32, 30),
        "crop": "random-resized",
        "flip": True,
        "shuffle": "block",
        "contiguous": True,
    },
    "squeezed": {"size": (30, 30), "crop": "none", "flip": True, "shuffle": "replacement"},
}


@pytest.fixture(scope="module", params=CONTAINERS)
def container(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    return request.param, CONTAINERS[request.param](tmp_path_factory.mktemp("fields"))


@pytest.mark.some(3)
@pytest.mark.parametrize("mode", MODES)
def test_image_and_mask_agree(container: tuple[str, dict[str, Any]], mode: str) -> None:
    """In every container and mode: same samples, same order, same part, same side of the mirror."""
    name, given = container
    params = {**given, "data_field": ALL, "batch_size": 5, "nthread": 2, "njob": 2}
    params |= MODES[mode]
    size = params.get("size")
    # half a pixel of the mask's rounding and of the image's mixing, at 5 grey levels a row; the
    # largest shrinking of a random-resized crop is a factor of 2
    tolerance = (0 if size is None else 6) + ("jpeg" in name) * 14
    with AsyncReader(params) as reader:
        seen = []
        for batch in reader:
            check(batch, params.get("layout", "NCHW"), size, tolerance)
            seen += batch.indices.tolist()
        assert reader.dtype == (np.uint8, np.uint16, np.uint8)
        shape = {tuple(array.shape) for array in batch.data}
        assert set(reader.data_shape) == shape
        assert len(seen) == 20


@pytest.mark.parametrize(
    "container", ["hdf5 chunks", "two files", "ours png lmdb", "pyxis"], indirect=True
)
class TestFields(ReaderContract):
    """All fields of a sample are the same in every way of reading."""

    @pytest.fixture
    def served(self, container: tuple[str, dict[str, Any]]) -> Served:
        given = {**container[1], "data_field": ALL, **MODES["random-resized"]}
        return Served(given, lambda _: None, N)


# -- the first field is as it would be alone -----------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_first_field_is_as_alone(tmp_path: Path, mode: str) -> None:
    """Masks beside them change no byte of the images, nor of order and labels."""
    path = write_plain(tmp_path / "set.h5")
    params: dict[str, Any] = {"path": path, "batch_size": 5, **MODES[mode]}
    params |= {"dtype": "float32", "scale": 1 / 255, "mean": (0.5,), "std": (0.25,)}
    both = {**params, "data_field": FIELDS}
    with AsyncReader(params, copy=True) as alone, AsyncReader(both, copy=True) as reader:
        for one, batch in zip(alone, reader, strict=True):
            np.testing.assert_array_equal(batch.data[0], one.data)
            np.testing.assert_array_equal(batch.labels, one.labels)
            np.testing.assert_array_equal(batch.indices, one.indices)
            assert batch.data[1].dtype == np.uint16


def test_any_order_of_fields(tmp_path: Path) -> None:
    """The first name is the one that is cast; ours may begin with a mask, values kept."""
    path = write_lmdb(tmp_path / "set.lmdb", ours("png"))
    with AsyncReader(path=path, data_field=["mask", "data"], batch_size=N) as reader:
        (batch,) = reader
        np.testing.assert_array_equal(batch.data[0][:, 0], MASKS)
        np.testing.assert_array_equal(batch.data[1].transpose(0, 2, 3, 1), IMAGES)
    with AsyncReader(path=path, data_field="ids", batch_size=N) as reader:
        (batch,) = reader
        np.testing.assert_array_equal(batch.data[:, 0], IDS)


LABEL_MAPS: dict[str, np.ndarray] = {
    "(N, H, W)": MASKS,
    "(N, H, W, 1)": MASKS[..., None],
    "(N, 2, H, W)": np.stack([MASKS, MASKS], 1),
}


@pytest.mark.parametrize("asked", [{"size": (20, 20)}, {"flip": True}])
@pytest.mark.parametrize("kind", LABEL_MAPS)
def test_masks_as_labels_are_refused_where_pictures_move(
    tmp_path: Path, kind: str, asked: dict[str, Any]
) -> None:
    """Labels of the pictures' height and width would stay behind, wherever they are found: the
    error names the data set that they are in and says how to serve them as a field, and that
    works."""
    masks, paths = LABEL_MAPS[kind], {}
    for name in ("mask", "labels", "target"):  # named by the caller, or under a usual name
        paths[name] = tmp_path / f"{name}.h5"
        with h5py.File(paths[name], "w") as file:
            file["data"], file["ids"], file[name] = IMAGES, IDS, masks
    mask, labels, target = paths.values()
    rows = [{"image": image, "label": one} for image, one in zip(IMAGES, MASKS, strict=True)]
    maps = write_maps(tmp_path / "set.lmdb", rows)
    with AsyncReader(path=mask, labels_field="mask", batch_size=N) as reader:
        np.testing.assert_array_equal(next(iter(reader)).labels, masks)
    several, both = ["data", "ids"], {"data_field": ["data", "target"]}
    with h5py.File(mask) as file:
        as_arrays = r'labels.*data=\{"data": \.\.\., "labels": \.\.\.\}'
        for given, says in (
            ({"path": mask, "labels_field": "mask"}, r'\["data", "mask"\]'),
            ({"path": mask, "labels_field": "mask", "data_field": several},
             r'labels .mask..*data_field=\["data", "ids", "mask"\]'),
            ({"path": labels}, r'"data", "labels"\], labels_field=None'),
            ({"path": [labels, labels]}, r'"data", "labels"\], labels_field=None'),
            ({"path": target}, r'"data", "target"\], labels_field=None'),
            ({"path": target, **both}, r'"data", "target"\], labels_field=None'),
            ({"path": mask, "labels_path": labels, "labels_field": "labels"}, "in one file"),
            ({"path": maps}, r'"image", "label"\]'),
            ({"data": IMAGES, "labels": masks}, as_arrays),
            ({"data": file["data"], "labels": masks}, as_arrays),
        ):  # fmt: skip
            with pytest.raises(ParamsError, match=says):
                AsyncReader(given, **asked)
    for cured in (
        {"path": mask, "data_field": FIELDS},
        {"path": labels, "data_field": ["data", "labels"], "labels_field": None},
        {"path": target, **both, "labels_field": None},
        {"data": {"data": IMAGES, "labels": masks}, "data_field": ["data", "labels"]},
    ):
        assert first_batch(cured, **asked).labels is None


def test_maps_of_other_sides_are_warned_of() -> None:
    """Labels and fields whose sides are the pictures' times a whole number, or divided by it, are
    served as stored, with a warning; as fields with an axis of channels they move."""
    half, twice = MASKS[:, ::2, ::2], MASKS.repeat(2, 1).repeat(2, 2)
    for maps, sides in ((half, "24 x 28"), (twice, "96 x 112")):
        for data, labels, named in (
            (IMAGES, maps, "labels 'labels'"),
            (IMAGES, maps[..., None], "labels 'labels'"),
            ({"data": IMAGES, "mask": maps}, None, "field 'mask'"),
        ):
            with pytest.warns(UserWarning, match=f"{named} of {sides} are served as stored"):
                AsyncReader(data=data, labels=labels, flip=True).close()
            AsyncReader(data=data, labels=labels).close()
        AsyncReader(data={"data": IMAGES, "mask": maps[..., None]}, flip=True).close()
    # numbers and small matrices are no maps
    for labels in (LABELS, np.zeros((N, 3, 3)), np.zeros((N, 1, 1, 1)), np.zeros((N, 24, 24))):
        AsyncReader(data=IMAGES, labels=labels, flip=True).close()


def test_data_sets_as_arrays(tmp_path: Path) -> None:
    """Arrays by name may be open data sets of h5py; without names all are served."""
    with h5py.File(write_plain(tmp_path / "set.h5")) as file:
        given = arrays(ids=file["ids"], boxes=BOXES) | {"batch_size": 6, **MODES["centre"]}
        with AsyncReader(given, data_field=ALL) as reader:
            for batch in reader:
                check(batch, "NHWC", (20, 24), 6)
        with AsyncReader(given) as reader:
            assert len(reader.data_shape) == 4


def test_masks_of_half_the_size(tmp_path: Path) -> None:
    """A mask of another fixed size shows the part of the picture that the image shows."""
    small = MASKS[:, ::2, ::2]
    data = {"data": IMAGES, "mask": small[..., None], "ids": IDS}
    params = {"data": data, "labels": LABELS, "batch_size": 5, **MODES["random-resized"]}
    with AsyncReader(params) as reader:
        for batch in reader:
            check(batch, "NCHW", (32, 30), 12)


def test_masks_that_have_the_size_already() -> None:
    """A mask of the wanted size, of pictures of another shape, is still cut as they are."""
    masks = MASKS[:, :28, :28, None]
    _, mask = first_batch(data={"data": IMAGES, "mask": masks}, batch_size=2, size=(28, 28)).data
    # the middle 48 of 56 columns of the picture are the middle 24 of the mask's 28
    assert (mask[0, 0, 0] % 256).tolist() == [int(2 + (x + 0.5) * 24 / 28) for x in range(28)]
    assert (mask[0, 0, :, 0] // 256).tolist() == list(range(28))


# -- pictures that differ in size ----------------------------------------------------------------


def varied(kind: str = "png", **masks: bytes) -> Packed:
    """Pictures of many sizes, encoded, with masks of theirs; ``masks``: others instead."""
    images, rows = [], []
    for i in range(N):
        high, wide = 30 + i, 60 - i
        images.append(pixels(high, wide)[i])
        rows.append(places(high, wide)[i][:, :, None])
    content = packed(images, kind, LABELS)
    samples = [masks.get(f"at{i}", encode(row, "png")) for i, row in enumerate(rows)]
    content.fields["mask"] = Packed(samples, None, "png", None, 1, dtype="uint16")
    ids = [encode(np.full((*row.shape[:2], 1), i, np.uint8), "png") for i, row in enumerate(rows)]
    content.fields["ids"] = Packed(ids, None, "png", None, 1)
    return content


@pytest.mark.parametrize("write", [write_hdf5, write_lmdb])
@pytest.mark.parametrize("crop", ["center", "random", "random-resized"])
def test_pictures_of_many_sizes(tmp_path: Path, write: Any, crop: str) -> None:
    """Where pictures differ in size, each mask takes the crop of its own picture."""
    path = write(tmp_path / "set", varied())
    params = {"path": path, "data_field": ALL, "batch_size": 4, "size": (26, 26), "crop": crop}
    with AsyncReader(params, flip=True, shuffle=True, nthread=2) as reader:
        for batch in reader:
            check(batch, "NCHW", (26, 26), 8)
    with pytest.raises(ParamsError, match="differ in size"):
        AsyncReader(path=path, data_field=ALL)


def test_a_mask_of_another_size_is_a_bad_sample(tmp_path: Path) -> None:
    """One crop would show two parts: such a sample is an error, or skipped, and named."""
    other = encode(places(20, 20)[0][:, :, None], "png")
    path = write_lmdb(tmp_path / "set", varied(at3=other))
    params = {"path": path, "data_field": FIELDS, "batch_size": 11, "size": (20, 20)}
    with (
        AsyncReader(params) as reader,
        pytest.raises(SampleError, match=r"'mask' has another size.*record 3.*20 x 20.*33 x 57"),
    ):
        next(iter(reader))
    with AsyncReader(params, on_error="skip") as reader:
        batch = next(iter(reader))
        assert batch.indices[3] != 3
        assert reader.stats().bad_samples == 1
    with AsyncReader(params, crop="none") as reader:
        assert len(list(reader)) == 2


def test_a_mask_of_another_kind_is_a_bad_sample(tmp_path: Path) -> None:
    """A mask of other channels or bits than the set declares is no sample of it."""
    wrong = encode(np.zeros((33, 57, 1), np.uint8), "png")
    path = write_hdf5(tmp_path / "set", varied(at3=wrong))
    with (
        AsyncReader(path=path, data_field=FIELDS, batch_size=N, size=(20, 20)) as reader,
        pytest.raises(
            DecodeError,
            match=r"field 'mask'.*not those of its dataset.*found 1 channels of uint8.*of uint16",
        ),
    ):
        next(iter(reader))


def test_foreign_pictures_and_masks_of_many_sizes(tmp_path: Path) -> None:
    """ml-pyxis: raw pictures of many sizes and their masks, without an axis of channels, and
    masks that are palette PNGs: their indices."""
    samples = []
    for i in range(N):
        high, wide = 30 + i, 60 - i
        rows = (np.mgrid[0:high, 0:wide][0] % 21).astype(np.uint8)
        sample = {"data": pixels(high, wide)[i], "mask": places(high, wide)[i]}
        sample |= {"png": np.frombuffer(saved(rows, mode="P"), np.uint8), "labels": LABELS[i]}
        samples.append(sample)
    write_maps(tmp_path / "set", samples)
    params = {"path": tmp_path / "set", "data_field": ["data", "mask", "png"], "batch_size": 4}
    with AsyncReader(params, size=(26, 26), crop="random-resized", flip=True) as reader:
        assert reader.data_shape == ((4, 3, 26, 26), (4, 26, 26), (4, 1, 26, 26))
        for batch in reader:
            image, mask, classes = batch.data
            assert np.abs(image[:, 0].astype(int) - 5 * (mask // 256).astype(int)).max() <= 8
            np.testing.assert_array_equal(classes[:, 0], mask // 256 % 21)


# -- bad samples ---------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """Ours, with a mask (record 2) and an image (record 5) damaged."""
    path = write_hdf5(tmp_path / "set.h5", ours("png"))
    damage(path, ours("png").fields["ids"].samples[2])
    damage(path, ours("png").samples[5])
    return path


def test_a_bad_mask_is_an_error_that_names_the_field(damaged: str) -> None:
    """on_error="raise": which field, which record."""
    with (
        AsyncReader(path=damaged, data_field=ALL, batch_size=4) as reader,
        pytest.raises(ChecksumError, match=r"field 'ids'.*record 2") as raised,
    ):
        next(iter(reader))
    assert raised.value.index == 2
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)


@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_all_fields_stand_in_together(damaged: str, workers: str) -> None:
    """on_error="skip": one replacement for the whole sample, whichever field is bad."""
    params = {"path": damaged, "data_field": ALL, "batch_size": 11, "on_error": "skip"}
    with AsyncReader(params, workers=workers, nthread=2) as reader:
        for batch in reader:
            check(batch, "NCHW", None, 0)
            assert batch.mask.all()
        assert reader.stats().bad_samples == 2


def test_all_fields_are_zero_together(damaged: str) -> None:
    """on_error="zero": no field keeps what it read before another turned out bad."""
    batch = first_batch(path=damaged, data_field=ALL, batch_size=11, on_error="zero")
    assert np.flatnonzero(~batch.mask).tolist() == [2, 5]
    for array in (*batch.data, batch.labels):
        assert not array[[2, 5]].any()
        assert array[3].any()


def test_verify_always_needs_checksums_of_all_fields(tmp_path: Path) -> None:
    """A field that someone added to a packed set has none: it is served, but not as verified."""
    path = write_hdf5(tmp_path / "set.h5", ours())
    with h5py.File(path, "a") as file:
        file["extra"] = IDS
    names = ["data", "mask", "extra"]
    with AsyncReader(path=path, data_field=names, batch_size=N) as reader:
        (batch,) = reader
        np.testing.assert_array_equal(batch.data[2], IDS)
    with pytest.raises(ParamsError, match=r"without checksums.*'extra'"):
        AsyncReader(path=path, data_field=names, verify="always")
    with AsyncReader(path=path, data_field=ALL, verify="always", batch_size=N) as reader:
        assert len(list(reader)) == 1


@pytest.mark.parametrize("write", [write_hdf5, write_lmdb])
@pytest.mark.parametrize("kind", ["raw", "png"])
def test_verify_checks_all_fields(tmp_path: Path, write: Any, kind: str) -> None:
    """``asyncreader verify`` holds each field's samples against its own checksums."""
    path = write(tmp_path / "set", ours(kind))
    report = verify_file(path, decode=True)
    assert (report.ok, report.count, report.checked) == (True, N, 3 * N)
    assert report.decoded == (0 if kind == "raw" else 3 * N)
    damage(path, ours(kind).fields["ids"].samples[7])
    report = verify_file(path)
    assert (report.bad, len(report.problems)) == (1, 1)
    assert "field 'ids'" in report.problems[0]
    assert "record 7" in report.problems[0]


@pytest.mark.parametrize("write", [write_hdf5, write_lmdb])
def test_tables_of_fields_are_bound_by_their_digests(tmp_path: Path, write: Any) -> None:
    """A damaged table of a further field is noticed when the field is opened."""
    path = write(tmp_path / "set", ours())
    damage(path, ours().fields["mask"].checksums.tobytes())
    assert len(list(AsyncReader(path=path, batch_size=11))) == 2
    with pytest.raises(FormatError, match="its checksums do not match their digest"):
        AsyncReader(path=path, data_field=FIELDS)
    assert not verify_file(path).ok


# -- buffers -------------------------------------------------------------------------------------


def test_stats_and_words(tmp_path: Path) -> None:
    """Bytes count all fields; a batch's repr names all shapes."""
    path = write_plain(tmp_path / "set.h5")
    with AsyncReader(path=path, data_field=FIELDS, batch_size=4) as reader:
        batch = next(iter(reader))
        assert reader.stats().bytes == 4 * HIGH * WIDE * (3 + 2)
        assert "4x3x48x56 uint8, 4x1x48x56 uint16" in repr(batch)


# -- postprocess ---------------------------------------------------------------------------------


def test_postprocess_gets_the_tuple(tmp_path: Path) -> None:
    """It works in place, or returns data of any number of arrays, with labels; a pair is (data,
    labels) of segmentation."""
    path = write_plain(tmp_path / "set.h5")

    def read(function: Any) -> Any:
        params = {"path": path, "data_field": FIELDS, "batch_size": 4}
        with AsyncReader(params, postprocess=function, copy=True) as reader:
            return next(iter(reader)), reader.data_shape

    batch, shape = read(lambda data, labels: data[1].fill(7))
    assert (batch.data[1] == 7).all()
    assert len(shape) == 2
    batch, shape = read(lambda data, labels: data)
    assert shape == (4, 3, HIGH, WIDE)
    np.testing.assert_array_equal(batch.labels[:, 0], MASKS[:4])
    batch, shape = read(lambda data, labels: (data[0][:, 0] + data[1][:, 0], labels))
    assert shape == (4, HIGH, WIDE)
    batch, shape = read(lambda data, labels: ([*data, data[1] == 0], labels))
    assert [array.dtype for array in batch.data] == [np.uint8, np.uint16, np.bool_]
    np.testing.assert_array_equal(batch.data[2], batch.data[1] == 0)


def test_postprocess_that_changes_its_mind(tmp_path: Path) -> None:
    """Another number of arrays than in the trial call is a WorkerError, and so is one too many."""
    path = write_plain(tmp_path / "set.h5")
    calls = []

    def fickle(data: Any, labels: Any) -> Any:
        calls.append(1)
        return (data if len(calls) == 1 else data[:1]), labels

    params = {"path": path, "data_field": FIELDS, "batch_size": 4}
    with (
        AsyncReader(params, postprocess=fickle) as reader,
        pytest.raises(WorkerError, match=r"another number of arrays.*found 1.*expected 2"),
    ):
        next(iter(reader))
    with pytest.raises(WorkerError, match=r"3 values.*\(\(first, second, \.\.\.\), labels\)"):
        AsyncReader(params, postprocess=lambda data, labels: (*data, labels))
    with pytest.raises(WorkerError, match="arrays of numbers"):
        AsyncReader(params, postprocess=lambda data, labels: ((data[0], None), labels))


def test_more_rows_than_samples_stay(tmp_path: Path) -> None:
    """What postprocess makes with an axis of its own is never cut to the batch's rows."""

    def twice(data: np.ndarray, labels: np.ndarray) -> Any:
        return np.concatenate([data, data]), np.concatenate([labels, labels])

    batch = first_batch(data=IDS, labels=LABELS, batch_size=4, postprocess=twice)
    assert batch.data.shape[0] == batch.labels.shape[0] == 8


# -- state ---------------------------------------------------------------------------------------


def test_a_state_is_of_its_fields(tmp_path: Path) -> None:
    """A state is refused with other fields, and in another order of them."""
    path = write_hdf5(tmp_path / "set.h5", ours())
    params = {"path": path, "data_field": ALL, "batch_size": 4, **MODES["random"]}
    with AsyncReader(params) as reader:
        state = reader.state_dict()
    for other in ("data", FIELDS, ["data", "ids", "mask"]):
        with (
            AsyncReader({**params, "data_field": other}) as reader,
            pytest.raises(ParamsError, match="fingerprint differs"),
        ):
            reader.load_state_dict(state)
    with AsyncReader({**params, "data_field": ["data"]}) as one, AsyncReader(path=path) as plain:
        assert one.state_dict()["fingerprint"] == plain.state_dict()["fingerprint"]


# -- opening -------------------------------------------------------------------------------------


def test_fields_that_are_not_there(tmp_path: Path) -> None:
    """A name that the set does not have, or of another length, is an error that says so."""
    path = write_plain(tmp_path / "set.h5")
    with pytest.raises(ParamsError, match=r"no field 'masks'.*found .*mask"):
        AsyncReader(path=path, data_field=["data", "masks"])
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        file["obs/image"], file["next/obs/kind"] = IMAGES, np.arange(len(IMAGES))
        file["obs/kind/codes"] = np.arange(len(IMAGES))
    for name, meant in (
        ("image", "found .*did you mean 'obs/image'[?] name one of them"),
        ("kind", "found .*did you mean 'next/obs/kind' or 'obs/kind'[?]"),
        ("imag", r"found [^?]*$"),
        ("obs/imag", r"found [^?]*$"),
    ):
        with pytest.raises(ParamsError, match=meant):
            AsyncReader(path=tmp_path / "groups.h5", data_field=name)
    with h5py.File(path, "a") as file:
        file["short"] = MASKS[:5]
    with pytest.raises(FormatError, match=r"'short' has another number of samples.*5.*22"):
        AsyncReader(path=path, data_field=["data", "short"])
    path = write_lmdb(tmp_path / "set.lmdb", ours())
    with pytest.raises(ParamsError, match=r"no field 'depth'.*found data, mask, ids, labels"):
        AsyncReader(path=path, data_field=["data", "depth"])
    with pytest.raises(ParamsError, match="another number of samples"):
        AsyncReader(data={"a": IMAGES, "b": MASKS[:3]})


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"path": "x", "data_field": []}, "different names"),
        ({"path": "x", "data_field": ["a", "a"]}, "different names"),
        ({"path": "x", "data_field": ["a", 1]}, "different names"),
        ({"data": IMAGES, "data_field": ["a", "b"]}, "data={name: array"),
        ({"data": {}}, "name: array"),
        ({"data": {"a": None}}, "under each name"),
        ({"data": {1: IMAGES}}, "name: array"),
        ({"data": {"a": IMAGES}, "data_field": "a"}, "choose"),
        ({"data": {"a": IMAGES}, "data_field": ["b"]}, "choose"),
    ],
)
def test_bad_params(params: dict[str, Any], match: str) -> None:
    """What cannot be is told before anything is opened."""
    with pytest.raises(ParamsError, match=match):
        AsyncReader(params)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": "a.b"}, "wrong 'fields.0..name'.*found 'a.b'"),
        ({"name": "data"}, "wrong 'fields.0..name'.*found 'data'"),
        ({"name": 5}, "wrong 'fields.0..name'.*found 5"),
        ({"encoding": "jpeg"}, "wrong 'fields.0..encoding'.*found 'jpeg'; expected 'raw' or 'png'"),
        ({"dtype": "float64"}, "wrong 'fields.0..dtype'"),
        ({"channels": 2}, "wrong 'fields.0..channels'.*found 2; expected 0 or 1 or 3"),
        ({"shape": [HIGH, WIDE, 3]}, "wrong 'fields.0..shape'.*expected 1 channels"),
        ({"shape": [HIGH, WIDE + 1, 1]}, "not what its description says"),
    ],
)
def test_garbled_descriptions(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    """A description of fields that makes no sense is a FormatError."""
    path = write_hdf5(tmp_path / "set.h5", ours())
    with h5py.File(path, "a") as file:
        facts = described(file)
        facts["fields"][0].update(change)
        describe(file, facts)
    with pytest.raises(FormatError, match=match):
        AsyncReader(path=path, data_field=FIELDS)
    with h5py.File(path, "a") as file:
        file.attrs["description"] = np.bytes_("{[")
    with pytest.raises(FormatError, match="description is not JSON"):
        AsyncReader(path=path)


# -- values --------------------------------------------------------------------------------------


def saved(values: np.ndarray, kind: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    image = Image.fromarray(values)
    if mode == "P":
        image = Image.frombytes("P", image.size, np.ascontiguousarray(values).tobytes())
        image.putpalette([(7 * i + 3) % 256 for i in range(768)])
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


GREY = np.arange(60, dtype=np.uint8).reshape(6, 10)
DEEP = GREY.astype(np.uint16) * 1000
COLOURS = np.stack([GREY, GREY + 1, GREY + 2], 2)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (saved(GREY), GREY),
        (saved(GREY, mode="P"), GREY),
        (saved(GREY, mode="P", transparency=3), GREY),
        (saved(GREY % 4, mode="P", bits=2), GREY % 4),
        (saved(GREY, "GIF", mode="P"), GREY),
        (saved(GREY, "BMP", mode="P"), GREY),
        (saved(GREY, "TIFF", mode="P"), GREY),
        (saved(GREY > 9), GREY > 9),
        (saved(GREY, transparency=3), GREY),
        (saved(DEEP), DEEP),
        (saved(DEEP, "TIFF"), DEEP),
        (saved(DEEP, "PPM"), DEEP),
        (saved(np.stack([GREY, GREY + 1], 2)), GREY),
        (saved(COLOURS), COLOURS),
        (saved(COLOURS, transparency=(9, 10, 11)), COLOURS),
        (saved(np.stack([GREY] * 4, 2)), np.stack([GREY] * 3, 2)),
    ],
)
def test_values_are_what_is_stored(data: bytes, expected: np.ndarray) -> None:
    """Palette indices and not colours, grey and 16 bits as they are, no alpha; and PNG and back."""
    wanted = np.asarray(expected, np.uint16 if expected.dtype == np.uint16 else np.uint8)
    wanted = wanted if wanted.ndim == 3 else wanted[:, :, None]
    for found in (decode_values(data), decode_values(encode(wanted, "png"))):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_values_are_upright() -> None:
    """A mask's own EXIF orientation is applied; JPEG, the odd choice, is decoded as it is."""
    turned = Image.Exif()
    turned[0x0112] = 6
    found = decode_values(saved(GREY, mode="P", exif=turned.tobytes()))
    np.testing.assert_array_equal(found[:, :, 0], np.rot90(GREY, -1))
    flat = np.full((16, 16), 7, np.uint8)
    found = decode_values(saved(flat, "JPEG", exif=turned.tobytes()))
    np.testing.assert_array_equal(found, flat[:, :, None])
    assert decode_values(saved(np.stack([flat] * 3, 2), "JPEG")).shape == (16, 16, 3)


@pytest.mark.parametrize(
    "data",
    [
        saved(GREY)[:-20],
        saved(GREY, mode="P")[:60],
        saved(np.float32(GREY), "TIFF"),
        saved(np.int32(GREY) - 9, "TIFF"),
        saved(np.int32(GREY) * 100_000, "TIFF"),
        b"",
    ],
)
def test_values_that_cannot_be_had(data: bytes) -> None:
    """Damage, floats and numbers beyond uint16 are a DecodeError."""
    with pytest.raises(DecodeError):
        decode_values(data)


# -- one stored field under several names --------------------------------------------------------


def same_field(folder: Path, kind: str) -> dict[str, Any]:
    """Parameters of a set of rows ``x`` (24, 5): in one file, two files, arrays or episodes."""
    x = np.arange(120.0).reshape(24, 5)
    if kind == "arrays":
        return {"data": {"x": x, "ends": np.array([9, 24])}, "batch_size": 24}
    parts = [x[:10], x[10:]] if kind == "files" else [x]
    for number, rows in enumerate(parts):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            if kind == "groups":
                file["demo_0/x"], file["demo_1/x"] = rows[:9], rows[9:]
            else:
                file.create_dataset("x", data=rows, chunks=(7, 5), compression="gzip")
                file["ends"] = np.array([9, 24])
    more = {"groups": {"episodes": "groups:demo_*"}, "ends": {"episodes": "ends:ends"}}
    paths = sorted(folder.glob("*.h5"))
    return {"path": paths, "batch_size": 24, "labels_field": None, **more.get(kind, {})}


@pytest.mark.parametrize("kind", ["file", "files", "arrays", "ends", "groups"])
@pytest.mark.parametrize("names", [("all", "some", "other"), ("some", "other", "all")])
def test_columns_by_name(tmp_path: Path, kind: str, names: tuple[str, ...]) -> None:
    """Each name of a stored field has the columns that are given for it, in any order of names."""
    x = np.arange(120.0).reshape(24, 5)
    expected = {"all": x, "some": x[:, [0]], "other": x[:, [4, 1]]}
    batch = first_batch(
        same_field(tmp_path, kind),
        data_field=dict.fromkeys(names, "x"),
        columns={"some": [0], "other": [4, 1]},
    )
    for name, served in zip(names, batch.data, strict=True):
        np.testing.assert_array_equal(served, expected[name])


@pytest.mark.parametrize("kind", ["file", "arrays"])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_offsets_by_name(tmp_path: Path, kind: str, names: tuple[str, ...]) -> None:
    """Each name of a stored field has the samples of its own offsets, and their lengths."""
    values = np.arange(12.0)
    lengths = {"a": np.array([5, 0, 3, 4]), "b": np.array([1, 1, 8, 2])}
    given: dict[str, Any] = {"v": values, "na": lengths["a"], "nb": lengths["b"]}
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for name, table in given.items():
            file[name] = table
    batch = first_batch(
        {"data": given} if kind == "arrays" else {"path": tmp_path / "set.h5"},
        data_field=dict.fromkeys(names, "v"),
        offsets_field={"a": "na", "b": "nb"},
        max_length=8,
        batch_size=4,
    )
    for name, served, told in zip(names, batch.data, batch.lengths, strict=True):
        assert told.tolist() == lengths[name].tolist()
        ends = np.cumsum(lengths[name])
        for row, end, length in zip(served, ends, lengths[name], strict=True):
            np.testing.assert_array_equal(row[:length], values[end - length : end])
            assert not row[length:].any()


@pytest.mark.parametrize("names", [("low", "high"), ("high", "low")])
def test_dtype_of_sparse_rows_by_name(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Sparse float64 under two names is float32 where no dtype is given, and exact where float64
    is."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        group = file.create_group("m")
        group["data"], group["indices"] = np.array([1 / 3, 2 / 3, 1e-9]), np.array([0, 2, 1])
        group["indptr"], group["shape"] = np.array([0, 2, 3]), np.array([2, 3])
    exact = np.array([[1 / 3, 0, 2 / 3], [0, 1e-9, 0]])
    batch = first_batch(
        path=tmp_path / "set.h5",
        data_field=dict.fromkeys(names, "m"),
        dtype={"high": "float64"},
        batch_size=2,
    )
    for name, served in zip(names, batch.data, strict=True):
        expected = exact if name == "high" else exact.astype(np.float32)
        assert served.dtype == expected.dtype
        np.testing.assert_array_equal(served, expected)


@pytest.mark.parametrize("kind", ["variable length", "sparse", "packed", "rows", "groups", "mix"])
def test_offsets_that_nothing_uses(tmp_path: Path, kind: str) -> None:
    """offsets_field is an error where it says nothing of the fields that are read."""
    given: dict[str, Any] = {"path": tmp_path / "set.h5", "data_field": "x", "max_length": 9}
    given |= {"labels_field": None}
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["table"] = np.array([1, 2])
        if kind == "variable length":
            rows = file.create_dataset("x", (2,), h5py.vlen_dtype("f4"))
            rows[:] = [np.ones(2, "f4"), np.ones(3, "f4")]
        elif kind == "sparse":
            file["x/data"], file["x/indices"] = np.ones(2), np.array([0, 1])
            file["x/indptr"], file["x/shape"] = np.array([0, 1, 2]), np.array([2, 2])
        elif kind == "rows":
            file["x"] = np.zeros((2, 3))
        elif kind == "groups":
            file["e/demo_0/x"] = np.zeros((4, 3))
            given |= {"episodes": "groups:e/demo_*", "window": "episode"}
        elif kind == "mix":
            file["x"] = np.zeros((2, 3))
    if kind == "packed":
        path = write_hdf5(tmp_path / "packed.h5", packed(pixels(), "png"))
        given |= {"path": path, "data_field": "data"}
    if kind == "mix":
        given |= {"mix": {given.pop("path"): 1.0}}
    if kind in ("sparse", "packed", "rows", "mix"):
        del given["max_length"]
    name = "nowhere" if kind in ("variable length", "sparse", "packed", "groups") else "table"
    with pytest.raises(ParamsError, match=f"offsets_field.*'{name}'"):
        AsyncReader(given, offsets_field=name)
    if kind != "mix":
        with pytest.raises(ParamsError, match="offsets_field"):
            AsyncReader(given, offsets_field={given["data_field"]: name})


@pytest.mark.parametrize("opens", [AsyncReader, asyncreader.open], ids=["reader", "dataset"])
@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"dtype": "float32"}, "dtype is of the first field, 'a', alone, and 'b' served"),
        ({"dtype": "float64"}, None),
        ({"mean": 0.5, "std": 2.0}, "mean and std are of the first field, 'a', alone, and 'b' and"),
        ({"scale": {"a": 2.0}}, None),
        ({"dtype": "float32", "data_field": ["i", "b"]}, None),
        ({"dtype": "float32", "data_field": ["a", "i"]}, None),
        ({"dtype": "float32", "data_field": ["a"]}, None),
    ],
    ids=str,
)
def test_values_of_the_first_field_alone(opens: Any, params: dict[str, Any], says: Any) -> None:
    """Where several fields are floating-point numbers, dtype, scale, mean or std without a dict are
    said to be of the first alone, if they would change the others."""
    rows = np.arange(12.0).reshape(6, 2)
    given = {"a": rows, "b": rows, "c": rows.astype(np.float32), "i": rows.astype(np.int32)}
    if "dtype" in params:
        del given["c"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opens({"data": given, "data_field": [*given], **params}).close()
    told = [str(one.message) for one in caught if "first field" in str(one.message)]
    assert len(told) == (says is not None)
    assert says is None or says in told[0]
