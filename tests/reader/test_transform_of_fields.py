"""``transform`` of several fields: a tuple of them, changed together in the workers."""

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import process_functions
import pytest
from fakes import encoded, epoch_of, error_of_batch, first_batch
from foreign_sets import vlen
from reader_contract import ReaderContract, Served
from torchvision_pixels import need_torchvision

from asyncreader import AsyncReader, ParamsError, WorkerError
from asyncreader.pixels import codec

COUNT, HIGH, WIDE = 24, 20, 28
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (COUNT, HIGH, WIDE, 3), dtype=np.uint8)
MASKS = RNG.integers(0, 900, (COUNT, HIGH, WIDE, 1)).astype(np.int32)
LABELS = np.arange(COUNT)[:, None]
BOXES = np.array([[[2, 3, 12, 9], [0, 0, 0, 0]]] * COUNT, np.float32)
POINTS = np.array([[[4, 5, 2], [9, 9, 0]]] * COUNT, np.float32)
FIELDS: dict[str, Any] = {"image": IMAGES, "mask": MASKS, "boxes": BOXES, "points": POINTS}


GIVEN: dict[str, Any] = {
    "data": {"image": IMAGES, "mask": MASKS}, "labels": LABELS, "batch_size": 8, "layout": "NHWC",
}  # fmt: skip


def epoch(**params: Any) -> tuple[np.ndarray, ...]:
    """Each field, the labels and the indices of an epoch."""
    fields, labels, records = epoch_of(GIVEN | params)
    return *fields, labels, records


def moved(fields, label, rng):  # type: ignore[no-untyped-def]
    """Rolled by as many columns as are drawn, picture and label map alike."""
    by = int(rng.integers(0, WIDE))
    return tuple(np.roll(one, by, axis=1) for one in fields)


def test_what_it_gets_and_returns() -> None:
    """It gets a tuple of (H, W, C) in the dtypes stored, whatever is served; what it returns is
    served, cast and in the layout asked for, label maps as whole numbers."""
    seen = set()

    def look(fields, label):  # type: ignore[no-untyped-def]
        seen.add((*((one.shape, one.dtype.name) for one in fields), label.shape))
        image, mask = fields
        return (image[:, :14], mask + 1), label * 2

    images, masks, labels, _ = epoch(
        transform=look, layout="NCHW", dtype="float32", scale=1 / 255, size=(10, 28), crop="none"
    )
    assert seen == {(((10, 28, 3), "uint8"), ((10, 28, 1), "int32"), (1,))}
    assert images.shape == (COUNT, 3, 10, 14)
    assert (images.dtype, masks.dtype) == (np.float32, np.int32)
    plain_images, plain_masks, _, _ = epoch(
        layout="NCHW", dtype="float32", scale=1 / 255, size=(10, 28), crop="none"
    )
    np.testing.assert_array_equal(images, plain_images[:, :, :, :14])
    np.testing.assert_array_equal(masks, plain_masks + 1)
    np.testing.assert_array_equal(labels, LABELS * 2)


def test_in_place_and_alike() -> None:
    """None is in place; the same draws change picture and label map; the stored arrays stay."""
    before = IMAGES.copy(), MASKS.copy()

    def dark(fields):  # type: ignore[no-untyped-def]
        for one in fields:
            one[0] = 0

    images, masks, _, _ = epoch(transform=dark)
    assert not images[:, 0].any()
    assert not masks[:, 0].any()
    np.testing.assert_array_equal(images[:, 1:], IMAGES[:, 1:])
    np.testing.assert_array_equal(masks[:, 1:], MASKS[:, 1:])
    places = np.arange(WIDE, dtype=np.uint8)[None, None, :, None]
    both = {"image": np.broadcast_to(places, IMAGES.shape).copy(), "mask": MASKS * 0 + places}
    images, masks, _, _ = epoch(transform=moved, data=both)
    np.testing.assert_array_equal(images[..., :1], masks)
    assert len(set(images[:, 0, 0, 0])) > 8
    for one, was in zip((IMAGES, MASKS), before, strict=True):
        np.testing.assert_array_equal(one, was)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shapes", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["stored NHWC", "stored NCHW"])
def test_one_that_does_nothing_changes_nothing(
    shapes: tuple[int, ...], layout: str, contiguous: bool
) -> None:
    """With a function that does nothing a reader serves what it serves without, for each kind of
    field: pictures, grey ones without an axis of channels, boxes, keypoints and other numbers."""
    data = {**FIELDS, "image": IMAGES.transpose(shapes).copy(), "mask": MASKS[..., 0]}
    data["numbers"] = np.arange(COUNT * 3.0).reshape(COUNT, 3)
    params: dict[str, Any] = {
        "data": data, "boxes_field": "boxes", "keypoints_field": "points", "layout": layout,
        "contiguous": contiguous, "size": (16, 20), "crop": "random-resized", "flip": True,
        "augment": [("random-rotation", {"degrees": 9})], "dtype": "float16", "mean": 3,
        "shuffle": True,
    }  # fmt: skip
    if shapes[1] == 3:
        params.update(num_dim=1, cha_dim=2, h_dim=3, w_dim=4)
    plain, same = epoch(**params), epoch(transform=lambda fields: fields, **params)
    assert len(plain) == 7
    for one, other in zip(plain, same, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def written(path: Path) -> str:
    """Pictures and label maps as PNG files, boxes and keypoints, in a file of h5py."""
    with h5py.File(path, "w") as file:
        vlen(file, "image", [encoded(image) for image in IMAGES])
        vlen(file, "mask", [codec.encode(mask.astype(np.uint16), "png") for mask in MASKS])
        file["boxes"], file["points"], file["labels"] = BOXES, POINTS, LABELS
    return str(path)


class TestTransformOfFields(ReaderContract):
    """Fields that are changed together are the same in every way of reading, erasing included."""

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served:
        given: dict[str, Any] = {
            "path": written(tmp_path / "a.h5"), "data_field": ["image", "mask"],
            "boxes_field": "boxes", "keypoints_field": "points", "size": (16, 16),
            "crop": "random", "flip": True, "dtype": "float32",
            "transform": process_functions.shift_fields,
            "augment": ["trivial-augment-wide", ("random-erasing", {"p": 1})],
        }  # fmt: skip
        return Served(given, lambda batch: None, COUNT)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda image, mask, label: 1 / 0, "transform raised ZeroDivisionError"),
        (lambda image, mask, label: (image, mask[1:]), "'mask': transform returned another shape"),
        (lambda image, mask, label: (image, mask / 2), "'mask': transform must return an image"),
        (lambda image, mask, label: (image, mask[..., 0]), "'mask': transform must return an im"),
        (lambda image, mask, label: image, "found ndarray; expected a tuple of image, mask"),
        (lambda image, mask, label: (image, mask, label), "found 3 values"),
        (lambda image, mask, label: ((image, mask), label), "another label"),
    ],
)
def test_a_failure_names_its_record(how: Any, said: str, tmp_path: Path) -> None:
    """What it raises, or returns wrongly, is a WorkerError of that record's batch alone, which
    names the field."""

    def function(fields, label):  # type: ignore[no-untyped-def]
        return how(*fields, label) if label[0] == 13 else None

    path = written(tmp_path / "a.h5")
    with AsyncReader(
        path=path, batch_size=4, data_field=["image", "mask"], transform=function
    ) as opened:
        error = error_of_batch(opened, 3)
    assert isinstance(error, WorkerError)
    assert said in str(error)
    assert (error.index, error.path) == (13, path)


def test_bad_samples_and_padding(tmp_path: Path) -> None:
    """A sample of which one field is bad is left out, zeroed or an error, and a padded row is
    zeros, as without a transform."""
    path = written(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["mask"][5] = np.frombuffer(b"no picture at all", np.uint8)
    params: dict[str, Any] = {
        "path": path, "batch_size": 10, "data_field": ["image", "mask"], "last_batch": "pad",
        "layout": "NHWC", "transform": lambda fields: (255 - fields[0], fields[1]),
    }  # fmt: skip
    with AsyncReader(params, on_error="zero", copy=True) as opened:
        first, _, last = list(opened)
    assert first.mask.tolist() == [True] * 5 + [False] + [True] * 4
    np.testing.assert_array_equal(first.data[0][first.mask], 255 - IMAGES[:10][first.mask])
    assert not first.data[0][5].any()
    assert not first.data[1][5].any()
    assert last.mask.tolist() == [True] * 4 + [False] * 6
    assert not last.data[0][4:].any()
    batch = first_batch(params, on_error="skip")
    assert batch.mask.all()
    np.testing.assert_array_equal(batch.data[0], 255 - IMAGES[batch.indices])


def test_torchvisions_are_called_as_they_are() -> None:
    """A transform of torchvision v2 gets torchvision's tensor of each kind: it moves label maps,
    boxes and keypoints as the picture; what marks absent boxes and keypoints stays."""
    need_torchvision()
    from torchvision.transforms import v2

    both = v2.Compose([v2.RandomHorizontalFlip(p=1), v2.ColorJitter(brightness=0.1)])
    images, masks, boxes, points, _, _ = epoch(
        data=FIELDS, boxes_field="boxes", keypoints_field="points", transform=both
    )
    assert np.abs(images.astype(int) - IMAGES[:, :, ::-1]).max() < 40
    np.testing.assert_array_equal(masks, MASKS[:, :, ::-1])
    assert boxes[0].tolist() == [[WIDE - 12, 3, WIDE - 2, 9], [0, 0, 0, 0]]
    assert points[0].tolist() == [[WIDE - 1 - 4, 5, 2], [9, 9, 0]]


def test_albumentations_are_called_as_they_are() -> None:
    """A transform of albumentations is called with image= and masks=."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        albumentations = pytest.importorskip("albumentations")
    both = albumentations.Compose([albumentations.HorizontalFlip(p=1)])
    images, masks, _, _ = epoch(transform=both)
    np.testing.assert_array_equal(images, IMAGES[:, :, ::-1])
    np.testing.assert_array_equal(masks, MASKS[:, :, ::-1])
    with pytest.raises(ParamsError, match=r"images and label maps.*'boxes'"):
        epoch(data={"a": IMAGES, "boxes": BOXES}, boxes_field="boxes", transform=both)


def test_values_by_field_are_cast_behind_the_function() -> None:
    """What dtype, mean and std ask of single fields is done with what the function returned."""
    image = np.full((8, 6, 6, 3), 200, np.uint8)
    numbers = np.arange(16, dtype=np.int32).reshape(8, 2)
    kinds = []

    def note(fields: Any) -> None:
        kinds.append([one.dtype for one in fields])

    with AsyncReader(
        data={"image": image, "numbers": numbers}, data_field=["image", "numbers"], batch_size=8,
        dtype={"image": "float32", "numbers": "float64"}, mean={"numbers": 1.0}, transform=note,
    ) as reader:  # fmt: skip
        images, served = next(iter(reader)).data
    assert kinds[-1] == [np.uint8, np.int32]
    assert (images.dtype, served.dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(images, 200)
    np.testing.assert_array_equal(served, numbers - 1.0)
