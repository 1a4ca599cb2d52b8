"""Several fields: image and mask of one sample, in one order, under one crop and one flip.

Images are painted so that each pixel says where it is and which sample it belongs to: channel 0 is
5 x row, channel 1 is 4 x column (both smooth, so that resizing keeps the meaning), channel 2 is the
sample's number. Masks say the same exactly: uint16, row x 256 + column. Any row that is swapped,
cropped elsewhere or mirrored alone shows.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import Packed, damage, describe, described, packed, write_hdf5, write_lmdb
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
    QueueFullError,
    SampleError,
    WorkerError,
)
from asyncreader.params import parse_params
from asyncreader.pipeline.slots import POISON
from asyncreader.pixels.codec.masks import decode_values, encode_values
from asyncreader.pixels.geometry import nearest_pixels
from asyncreader.sources import (
    fingerprint,
    open_reader_source,
    open_whole,
)
from asyncreader.tools.verify import verify_file

N, HIGH, WIDE = 22, 48, 56
LABELS = np.arange(N, dtype=np.int64)[:, None] * 10
ROWS, COLUMNS = np.mgrid[0:HIGH, 0:WIDE]
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
        samples = [row.tobytes() if kind == "raw" else encode_values(row) for row in rows]
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


def write_maps_of_all(path: Path) -> str:
    rows = zip(IMAGES, MASKS, IDS, LABELS, strict=True)
    return write_maps(path, [dict(zip([*ALL, "labels"], row, strict=True)) for row in rows])


def write_plain(path: Path, four: bool = True, **storage: Any) -> str:
    """A foreign HDF5 file; masks with an axis of channels, or without."""
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=IMAGES, **storage)
        file.create_dataset("mask", data=MASKS[..., None] if four else MASKS)
        file.create_dataset("ids", data=IDS[..., None] if four else IDS, **(storage and {}))
        file["labels"] = LABELS
        file["boxes"] = BOXES
    return str(path)


def write_chunked(path: Path, **storage: Any) -> str:
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=IMAGES, chunks=(3, HIGH, WIDE, 3), **storage)
        file.create_dataset("mask", data=MASKS[..., None], chunks=(5, HIGH, WIDE, 1), **storage)
        file.create_dataset("ids", data=IDS[..., None], chunks=(1, 20, WIDE, 1), **storage)
        file["labels"] = LABELS
    return str(path)


def write_two(path: Path) -> list[str]:
    """The same set in two files."""
    names = []
    for part in (slice(0, 9), slice(9, N)):
        names.append(str(path / f"part{part.start}.h5"))
        with h5py.File(names[-1], "w") as file:
            file["data"], file["labels"] = IMAGES[part], LABELS[part]
            file["mask"], file["ids"] = MASKS[part], IDS[part]
    return names


CONTAINERS: dict[str, Callable[[Path], Any]] = {
    "hdf5": lambda path: write_plain(path / "set.h5"),
    "hdf5 without channels": lambda path: write_plain(path / "set.h5", four=False),
    "hdf5 chunks": lambda path: write_chunked(path / "set.h5"),
    "hdf5 gzip": lambda path: write_chunked(path / "set.h5", compression="gzip"),
    "two files": write_two,
    "ours raw hdf5": lambda path: write_hdf5(path / "set.h5", ours()),
    "ours gzip hdf5": lambda path: write_hdf5(path / "set.h5", ours(), compression="gzip"),
    "ours jpeg hdf5": lambda path: write_hdf5(path / "set.h5", ours("jpeg")),
    "ours raw lmdb": lambda path: write_lmdb(path / "set.lmdb", ours()),
    "ours png lmdb": lambda path: write_lmdb(path / "set.lmdb", ours("png")),
    "pyxis": lambda path: write_maps_of_all(path / "set.lmdb"),
}

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
def container(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    return request.param, CONTAINERS[request.param](tmp_path_factory.mktemp("fields"))


def everything(params: dict[str, Any], epochs: int = 1) -> list[Any]:
    """(fields, labels, indices, mask) of all batches, as copies."""
    found = []
    with AsyncReader(params, copy=True) as reader:
        for _ in range(epochs):
            found += [(*b.data, b.labels, b.indices, b.mask) for b in reader]
    return found


def digest(found: list[Any]) -> str:
    state = hashlib.sha256()
    for batch in found:
        for array in batch:
            state.update(repr((array.shape, array.dtype)).encode())
            state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


@pytest.mark.parametrize("mode", MODES)
def test_image_and_mask_agree(container: tuple[str, Any], mode: str) -> None:
    """In every container and mode: same samples, same order, same part, same side of the mirror."""
    name, path = container
    params = {"path": path, "data_field": ALL, "batch_size": 5, "nthread": 2, "njob": 2}
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


class TestFields(ReaderContract):
    """All fields of a sample are the same in every way of reading."""

    @pytest.fixture
    def served(self, container: tuple[str, Any]) -> Served:
        given = {"path": container[1], "data_field": ALL, **MODES["random-resized"]}
        return Served(given, lambda _: None, N)


# -- the first field is as it would be alone -----------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_first_field_is_as_alone(tmp_path: Path, mode: str) -> None:
    """Masks beside them change no byte of the images, nor of order and labels."""
    path = write_plain(tmp_path / "set.h5")
    params: dict[str, Any] = {"path": path, "batch_size": 5, **MODES[mode]}
    params |= {"dtype": "float32", "scale": 1 / 255, "mean": (0.5,), "std": (0.25,)}
    alone = []
    with AsyncReader(params, copy=True) as reader:
        alone = [(b.data, b.labels, b.indices, b.mask) for b in reader]
    both = everything({**params, "data_field": FIELDS})
    assert digest(alone) == digest([(image, *rest) for image, _, *rest in both])
    assert {mask.dtype for _, mask, *_ in both} == {np.dtype(np.uint16)}


def test_a_list_of_one_name_is_a_tuple_of_one(tmp_path: Path) -> None:
    """What was asked for as a list comes as a tuple; what was asked for as a name, as an array."""
    path = write_plain(tmp_path / "set.h5")
    with AsyncReader(path=path, data_field=["mask"], batch_size=2) as reader:
        batch = next(iter(reader))
        assert isinstance(batch.data, tuple)
        assert batch.data[0].shape == reader.data_shape[0] == (2, 1, HIGH, WIDE)
    with AsyncReader(path=path, data_field="mask", batch_size=2) as reader:
        assert reader.data_shape == (2, 1, HIGH, WIDE)


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


def test_fields_that_are_no_pictures(tmp_path: Path) -> None:
    """Boxes are served as stored, whatever is done to the pictures."""
    path = write_plain(tmp_path / "set.h5")
    params = {"path": path, "data_field": ["data", "boxes"], "batch_size": 4, "shuffle": True}
    with AsyncReader(params, size=(9, 9), flip=True, dtype="float32", scale=2.0) as reader:
        assert reader.data_shape == ((4, 3, 9, 9), (4, 5))
        for batch in reader:
            np.testing.assert_array_equal(batch.data[1], BOXES[batch.indices])


def test_labels_still_apply(tmp_path: Path) -> None:
    """labels_field names any labels, or none, beside the fields."""
    path = write_plain(tmp_path / "set.h5")
    with AsyncReader(path=path, data_field=FIELDS, labels_field="boxes", batch_size=3) as reader:
        batch = next(iter(reader))
        np.testing.assert_array_equal(batch.labels, BOXES[:3])
    with AsyncReader(path=path, data_field=FIELDS, labels_field=None, batch_size=3) as reader:
        assert next(iter(reader)).labels is None


LABEL_MAPS: dict[str, Callable[[], np.ndarray]] = {
    "(N, H, W)": lambda: MASKS,
    "(N, H, W, 1)": lambda: MASKS[..., None],
    "(N, 2, H, W)": lambda: np.stack([MASKS, MASKS], 1),
}


@pytest.mark.parametrize("asked", [{"size": (20, 20)}, {"flip": True}])
@pytest.mark.parametrize("kind", LABEL_MAPS)
def test_masks_as_labels_are_refused_where_pictures_move(
    tmp_path: Path, kind: str, asked: dict[str, Any]
) -> None:
    """Labels of the pictures' height and width would stay behind: the error says how to serve
    them as a field, and that works."""
    masks, path = LABEL_MAPS[kind](), tmp_path / "set.h5"
    with h5py.File(path, "w") as file:
        file["data"], file["mask"], file["ids"] = IMAGES, masks, IDS
    with AsyncReader(path=path, labels_field="mask", batch_size=N) as reader:
        np.testing.assert_array_equal(next(iter(reader)).labels, masks)
    match = r"labels 'mask'.*data_field=\["
    with pytest.raises(ParamsError, match=match + r'"data", "mask"\]'):
        AsyncReader(path=path, labels_field="mask", **asked)
    with pytest.raises(ParamsError, match=match + r'"data", "ids", "mask"\]'):
        AsyncReader(path=path, labels_field="mask", data_field=["data", "ids"], **asked)
    with AsyncReader(path=path, data_field=FIELDS, batch_size=N, **asked) as reader:
        assert next(iter(reader)).labels is None
    match = r'labels.*data=\{"data": \.\.\., "labels": \.\.\.\}'
    with pytest.raises(ParamsError, match=match):
        AsyncReader(data=IMAGES, labels=masks, **asked)
    with h5py.File(path) as file, pytest.raises(ParamsError, match=match):
        AsyncReader(data=file["data"], labels=masks, **asked)
    named = {"data": IMAGES, "labels": masks}
    with AsyncReader(data=named, data_field=["data", "labels"], **asked) as reader:
        assert next(iter(reader)).labels is None


@pytest.mark.parametrize("asked", [{"size": (20, 20)}, {"flip": True}])
def test_masks_as_labels_of_every_layout_are_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Under the usual name, in another file, found by a usual name, in a list of files, and in an
    LMDB: the error names the data set that the labels are in."""
    path = tmp_path / "usual.h5"
    with h5py.File(path, "w") as file:
        file["data"], file["labels"] = IMAGES, MASKS
    match = r'"data", "labels"\], labels_field=None'
    for several in (path, [path, path]):
        with pytest.raises(ParamsError, match=match):
            AsyncReader(path=several, **asked)
    reader = AsyncReader(path=path, data_field=["data", "labels"], labels_field=None, **asked)
    reader.close()
    with h5py.File(tmp_path / "found.h5", "w") as file:
        file["data"], file["target"] = IMAGES, MASKS
    match = r'"data", "target"\], labels_field=None'
    for named in ({}, {"data_field": ["data", "target"]}):
        with pytest.raises(ParamsError, match=match):
            AsyncReader(path=tmp_path / "found.h5", **named, **asked)
    both = {"data_field": ["data", "target"], "labels_field": None}
    AsyncReader(path=tmp_path / "found.h5", **both, **asked).close()
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["data"] = IMAGES
    elsewhere = {"labels_path": path, "labels_field": "labels"}
    with pytest.raises(ParamsError, match="in one file"):
        AsyncReader(path=tmp_path / "images.h5", **elsewhere, **asked)
    rows = [{"image": image, "label": mask} for image, mask in zip(IMAGES, MASKS, strict=True)]
    with pytest.raises(ParamsError, match=r'"image", "label"\]'):
        AsyncReader(path=write_maps(tmp_path / "set.lmdb", rows), **asked)


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


def test_arrays(tmp_path: Path) -> None:
    """Arrays by name: numpy in any axis order, memmap, h5py data sets; all, or those named."""
    with h5py.File(write_plain(tmp_path / "set.h5")) as file:
        data = {"data": IMAGES, "mask": MASKS, "ids": file["ids"], "boxes": BOXES}
        params = {"data": data, "labels": LABELS, "batch_size": 6, "size": (30, 30), "flip": True}
        with AsyncReader(params, data_field=ALL) as reader:
            for batch in reader:
                check(batch, "NCHW", (30, 30), 6)
        with AsyncReader(params) as reader:
            assert len(reader.data_shape) == 4
    planar = {"data": IMAGES.transpose(0, 3, 1, 2), "mask": MASKS, "ids": IDS[:, None]}
    params = {"data": planar, "labels": LABELS, "batch_size": 6, "size": (30, 30), "flip": True}
    with AsyncReader(params, h_dim=3, w_dim=4, cha_dim=2) as reader:
        for batch in reader:
            check(batch, "NCHW", (30, 30), 6)


def test_matlab_axes(tmp_path: Path) -> None:
    """With the number last, masks without channels have theirs last, too."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["data"] = np.moveaxis(IMAGES, 0, 3)
        file["mask"], file["ids"] = np.moveaxis(MASKS, 0, 2), np.moveaxis(IDS, 0, 2)
        file["labels"] = LABELS
    dims = {"num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3}
    params = {"path": tmp_path / "set.h5", "data_field": ALL, "batch_size": 5, **dims}
    with AsyncReader(params, flip=True) as reader:
        for batch in reader:
            check(batch, "NCHW", None, 0)


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
    with AsyncReader(data={"data": IMAGES, "mask": masks}, batch_size=2, size=(28, 28)) as reader:
        _, mask = next(iter(reader)).data
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
    samples = [masks.get(f"at{i}", encode_values(row)) for i, row in enumerate(rows)]
    content.fields["mask"] = Packed(samples, None, "png", None, 1, dtype="uint16")
    ids = [encode_values(np.full((*row.shape[:2], 1), i, np.uint8)) for i, row in enumerate(rows)]
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
    other = encode_values(places(20, 20)[0][:, :, None])
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
    wrong = encode_values(np.zeros((33, 57, 1), np.uint8))
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
    with AsyncReader(path=damaged, data_field=ALL, batch_size=11, on_error="zero") as reader:
        batch = next(iter(reader))
        assert np.flatnonzero(~batch.mask).tolist() == [2, 5]
        for array in (*batch.data, batch.labels):
            assert not array[[2, 5]].any()
            assert array[3].any()


def test_padding(tmp_path: Path) -> None:
    """last_batch: zeros in every field, or fewer rows of every field."""
    path = write_hdf5(tmp_path / "set.h5", ours())
    with AsyncReader(path=path, data_field=ALL, batch_size=8, last_batch="pad") as reader:
        *_, batch = reader
        assert batch.mask.tolist() == [True] * 6 + [False] * 2
        assert not any(array[6:].any() for array in batch.data)
        np.testing.assert_array_equal(batch.data[1][:6, 0], MASKS[16:])
    with AsyncReader(path=path, data_field=ALL, batch_size=8, last_batch="short") as reader:
        *_, batch = reader
        assert [len(array) for array in batch.data] == [6, 6, 6]


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


def test_buffers(tmp_path: Path) -> None:
    """Every field lies in its own aligned slot array, is handed out as a view of it, kept and
    released with the batch, and poisoned when debugging."""
    path = write_plain(tmp_path / "set.h5")
    with AsyncReader(path=path, data_field=FIELDS, batch_size=4, njob=2, debug=True) as reader:
        for field in range(2):
            places = {batch.data[field].ctypes.data for batch in reader}
            assert len(places) == 3
            assert all(place % 4096 == 0 for place in places)
        reader.seek(0)
        reader.fetchData()
        reader.fetchData()
        batch = reader.getNextBatch().keep()
        held = [array.copy() for array in batch.data]
        other = reader.getNextBatch()
        with pytest.raises(QueueFullError):
            other.keep()
        for array, before in zip(batch.data, held, strict=True):
            np.testing.assert_array_equal(array, before)
        arrays = batch.data
        batch.release()
        for array in arrays:
            assert (np.ascontiguousarray(array).view(np.uint8) == POISON).all()
        assert (other.data[1][:, 0] == MASKS[4:8]).all()
    # with debug what is still in a slot would be poisoned
    params = {"path": path, "data_field": FIELDS, "batch_size": 4, "copy": True, "debug": True}
    with AsyncReader(params) as reader:
        for number, batch in enumerate(list(reader)):
            np.testing.assert_array_equal(batch.data[1][:, 0], MASKS[4 * number :][:4])


def test_stats_and_words(tmp_path: Path) -> None:
    """Bytes count all fields; a batch's repr names all shapes."""
    path = write_plain(tmp_path / "set.h5")
    with AsyncReader(path=path, data_field=FIELDS, batch_size=4) as reader:
        batch = next(iter(reader))
        assert reader.stats().bytes == 4 * HIGH * WIDE * (3 + 2)
        assert "4x3x48x56 uint8, 4x1x48x56 uint16" in repr(batch)


# -- postprocess ---------------------------------------------------------------------------------


def test_postprocess_gets_the_tuple(tmp_path: Path) -> None:
    """It works in place, or returns data of any number of arrays, with labels."""
    path = write_plain(tmp_path / "set.h5")

    def in_place(data: Any, labels: Any) -> None:
        data[1][...] = 7

    def pair(data: Any, labels: Any) -> Any:
        return data  # two arrays: (data, labels) of segmentation

    def one(data: Any, labels: Any) -> Any:
        return data[0][:, 0] + data[1][:, 0], labels

    def three(data: Any, labels: Any) -> Any:
        return [data[0], data[1], data[1] == 0], labels

    def read(function: Any) -> Any:
        params = {"path": path, "data_field": FIELDS, "batch_size": 4}
        with AsyncReader(params, postprocess=function, copy=True) as reader:
            return next(iter(reader)), reader.data_shape

    batch, shape = read(in_place)
    assert (batch.data[1] == 7).all()
    assert len(shape) == 2
    batch, shape = read(pair)
    assert shape == (4, 3, HIGH, WIDE)
    np.testing.assert_array_equal(batch.labels[:, 0], MASKS[:4])
    batch, shape = read(one)
    assert shape == (4, HIGH, WIDE)
    batch, shape = read(three)
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

    with AsyncReader(data=IDS, labels=LABELS, batch_size=4, postprocess=twice) as reader:
        batch = next(iter(reader))
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


def test_open_whole(tmp_path: Path) -> None:
    """A packed set's own fields are found without naming them; another set is what it is."""
    for write in (write_hdf5, write_lmdb):
        source = open_whole(write(tmp_path / write.__name__, ours()))
        assert source.names == ("data", "mask", "ids")
        named = parse_params({"path": tmp_path / write.__name__, "data_field": ALL}, {})
        assert fingerprint(source) == fingerprint(open_reader_source(named))
        source.close()
    source = open_whole(write_plain(tmp_path / "plain.h5"))
    assert (source.names, source.named) == (("data",), False)
    source.close()


@pytest.mark.parametrize("write", [write_hdf5, write_lmdb])
def test_all_fields_are_opened_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    """A set is opened once, however many fields of it are read."""
    path = write(tmp_path / "set", ours())
    opened: list[Any] = []
    system_open = os.open

    def note(name: Any, *more: Any, **named: Any) -> int:
        opened.append(name)
        return system_open(name, *more, **named)

    monkeypatch.setattr(os, "open", note)
    open_whole(path).close()
    open_reader_source(parse_params({"path": path, "data_field": ALL}, {})).close()
    assert len(opened) == 2


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


def test_nearest_is_pils() -> None:
    """Nearest neighbour takes the pixels that PIL's does, up and down, for a part or all.

    But for centres that fall between two pixels, where PIL's sums of floats decide.
    """
    values = np.random.default_rng(3).integers(0, 255, (37, 53), dtype=np.uint8)

    def chosen(start: int, length: int, count: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
        between = start * 2 * count + (2 * np.arange(count) + 1) * length
        return nearest_pixels(start, length, count, limit), between % (2 * count) != 0

    for high, wide in ((37, 53), (20, 20), (90, 111), (1, 1), (74, 106)):
        for left, top, columns, rows in ((0, 0, 53, 37), (5, 3, 40, 30)):
            box = (left, top, left + columns, top + rows)
            resized = Image.fromarray(values).resize((wide, high), Image.Resampling.NEAREST, box)
            (ys, by_y), (xs, by_x) = chosen(top, rows, high, 37), chosen(left, columns, wide, 53)
            found, expected = values[ys][:, xs], np.asarray(resized)
            np.testing.assert_array_equal(found[by_y][:, by_x], expected[by_y][:, by_x])
            assert high == 1 or by_y.any()


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
        (saved(np.stack([GREY, GREY + 1, GREY + 2], 2)), np.stack([GREY, GREY + 1, GREY + 2], 2)),
        (saved(np.stack([GREY] * 4, 2)), np.stack([GREY] * 3, 2)),
    ],
)
def test_values_are_what_is_stored(data: bytes, expected: np.ndarray) -> None:
    """Palette indices and not colours, grey and 16 bits as they are, no alpha; and PNG and back."""
    wanted = np.asarray(expected, np.uint16 if expected.dtype == np.uint16 else np.uint8)
    wanted = wanted if wanted.ndim == 3 else wanted[:, :, None]
    for found in (decode_values(data), decode_values(encode_values(wanted))):
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
    with AsyncReader(
        same_field(tmp_path, kind),
        data_field=dict.fromkeys(names, "x"),
        columns={"some": [0], "other": [4, 1]},
    ) as reader:
        batch = next(iter(reader))
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
    with AsyncReader(
        {"data": given} if kind == "arrays" else {"path": tmp_path / "set.h5"},
        data_field=dict.fromkeys(names, "v"),
        offsets_field={"a": "na", "b": "nb"},
        max_length=8,
        batch_size=4,
    ) as reader:
        batch = next(iter(reader))
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
    with AsyncReader(
        path=tmp_path / "set.h5",
        data_field=dict.fromkeys(names, "m"),
        dtype={"high": "float64"},
        batch_size=2,
    ) as reader:
        batch = next(iter(reader))
        for name, served in zip(names, batch.data, strict=True):
            expected = exact if name == "high" else exact.astype(np.float32)
            assert served.dtype == expected.dtype
            np.testing.assert_array_equal(served, expected)


def test_names_of_one_field_share_its_chunks(tmp_path: Path) -> None:
    """Names that ask the same of a stored field are one source: its chunks are decoded once."""
    given = same_field(tmp_path, "file")
    with AsyncReader(
        given,
        data_field={"a": "x", "b": "x", "c": "x"},
        columns={"c": [1]},
        dtype={"a": "float32"},
    ) as reader:
        first, second, third = reader.dataset.source.parts
        assert first is second
        assert third is not first


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
