"""boxes_field and keypoints_field: they name the same things in the served and stored picture.

Pictures are black with a white rectangle, which is what their first box holds; a label map is 1
there. So a box that is cut, resized or turned otherwise than its picture shows.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import encoded, hdf5, packed, write_hdf5
from foreign_sets import pyxis_sample, vlen, write_pyxis
from PIL import Image
from reader_contract import ReaderContract, Served

from asyncreader import AsyncReader, DecodeError, FormatError, ParamsError, Writer

COUNT, HIGH, WIDE = 24, 60, 80
RNG = np.random.default_rng(0)
LEFT, TOP = RNG.integers(4, WIDE - 40, COUNT), RNG.integers(4, HIGH - 34, COUNT)
RIGHT, BOTTOM = LEFT + RNG.integers(9, 36, COUNT), TOP + RNG.integers(9, 30, COUNT)
FIRST = np.stack([LEFT, TOP, RIGHT, BOTTOM], axis=1)
NAN = float("nan")


def painted(scale: int = 1) -> np.ndarray:
    """The pictures, so many times as large."""
    found = np.zeros((COUNT, HIGH * scale, WIDE * scale, 3), np.uint8)
    for image, (left, top, right, bottom) in zip(found, FIRST * scale, strict=True):
        image[top:bottom, left:right] = 255
    return found


IMAGES = painted()
#: Boxes of each picture: what it shows, and what marks that there are no more.
BOXES = np.stack([FIRST, np.zeros_like(FIRST), np.full_like(FIRST, -1)], axis=1)
#: The corners of the rectangle as pixels, seen, hidden or not labelled.
POINTS = np.stack(
    [
        np.stack([LEFT, TOP, np.full(COUNT, 2)], axis=1),
        np.stack([RIGHT - 1, BOTTOM - 1, np.full(COUNT, 1)], axis=1),
        np.zeros((COUNT, 3), np.int64),
    ],
    axis=1,
).astype(np.float64)


def arrays(**more: Any) -> dict[str, Any]:
    return {
        "image": IMAGES, "mask": (IMAGES[..., 0] // 255), "boxes": BOXES.astype(np.float32),
        "points": POINTS, **more,
    }  # fmt: skip


def reader(data: Any = None, **params: Any) -> AsyncReader[Any, Any]:
    given = {"boxes_field": "boxes", "keypoints_field": "points", "batch_size": 8, "layout": "NHWC"}
    if not isinstance(data, str):
        given["data"] = arrays() if data is None else data
    else:
        given["path"] = data
    return AsyncReader({**given, **params})


def seen(image: np.ndarray) -> np.ndarray:
    """The box around what is white in a picture (H, W, C); zeros where nothing is."""
    rows, columns = np.nonzero(image[..., 0] > 127)
    if not rows.size:
        return np.zeros(4)
    return np.array((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))


CROPS: dict[str, dict[str, Any]] = {
    "as stored": {},
    "flip": {"flip": True},
    "resized": {"size": (120, 90)},
    "squeezed": {"size": (90, 90), "crop": "none", "flip": True},
    "random": {"size": (48, 48), "crop": "random", "crop_ratio": 0.8, "flip": True},
    "random-resized": {"size": (96, 96), "crop": "random-resized", "flip": True},
    "padded": {"size": (HIGH, WIDE), "crop": "random", "crop_padding": 12, "flip": True},
}
MOVES: dict[str, Any] = {
    "nothing": None,
    "rotation": [("random-rotation", {"degrees": 40}), "random-grayscale"],
    "affine": [("random-affine", {"degrees": 20, "translate": (0.2, 0.2), "shear": 10})],
    "perspective": [("random-perspective", {"p": 1, "interpolation": "nearest"})],
    "vertical": ["random-vertical-flip", ("color-jitter", {"brightness": 0.1})],
    "trivial": "trivial-augment-wide",
    "rand": ("rand-augment", {"num_ops": 1}),
}
WAYS = [(crop, "nothing") for crop in CROPS] + [("squeezed", move) for move in MOVES]


@pytest.mark.some(3)
@pytest.mark.parametrize(("crop", "move"), WAYS)
@pytest.mark.parametrize("kind", ["arrays", "png", "jpeg, turned", "jpeg, many sizes"])
def test_boxes_are_where_their_picture_shows_them(
    kind: str, crop: str, move: str, tmp_path: Path
) -> None:
    """The first box of a sample is the box around what is white in the picture that is served, and
    in its label map, to two pixels; its corners are the keypoints, where nothing turns them. Both
    are in pixels of the upright picture."""
    if kind == "jpeg, many sizes" and "size" not in CROPS[crop]:
        pytest.skip("such images need a size")
    source: Any = arrays()
    if kind != "arrays":
        source = foreign(tmp_path / "a.h5", kind)
    fields = ["image", "mask"]
    if kind == "jpeg, many sizes":
        fields.remove("mask")
    params: dict[str, Any] = {**CROPS[crop], "augment": MOVES[move], "shuffle": True}
    shown = cut = 0
    with reader(source, data_field=fields, labels_field=None, seed=2, **params) as opened:
        for batch in opened:
            assert [part.dtype for part in batch.data[-2:]] == [np.float32] * 2
            for row, record in enumerate(batch.indices):
                image, *mask, boxes, points = (part[row] for part in batch.data)
                expected = seen(image)
                if abs(expected[2:] - expected[:2]).min() < 3 or np.ptp(image) < 250:
                    cut += 1  # little or nothing is left, or its levels were changed
                    continue
                shown += 1
                apart = (boxes[0] - expected) * (1, 1, -1, -1)
                assert apart.max() <= 2, (record, boxes[0], expected)
                # of a turned rectangle that is cut less may be left than its box says
                if move == "nothing" or (boxes[0, :2].min() > 0 and boxes[0, 2:].max() < 90):
                    assert apart.min() >= -2, (record, boxes[0], expected)
                if mask:
                    around = seen(mask[0][..., None] * np.uint8(255))
                    assert abs(around - expected).max() <= 1
                np.testing.assert_array_equal(boxes[1:], BOXES[record][1:])
                np.testing.assert_array_equal(points[2], 0)
                assert points[:2, 2].tolist() == [2, 1]
                if move in ("nothing", "vertical"):
                    corners = np.stack([points[:2, :2].min(axis=0), points[:2, :2].max(axis=0) + 1])
                    corners = corners.clip(0, image.shape[1::-1])
                    # enlarged, the last pixel of a rectangle ends further behind its place
                    assert abs(corners.reshape(-1) - boxes[0]).max() <= 6
    assert shown > (4 if move in ("trivial", "rand") else 8), (shown, cut)


def foreign(path: Path, kind: str) -> str:
    """A file of h5py with encoded pictures, as others write it, and boxes beside them; "turned":
    EXIF says to turn the stored one."""
    scales = np.arange(COUNT) % 3 + 1 if "many" in kind else np.ones(COUNT, np.int64)
    form: dict[str, Any] = {"kind": "JPEG", "quality": 95} if "jpeg" in kind else {}
    with h5py.File(path, "w") as file:
        images = [painted(scale)[number] for number, scale in enumerate(scales.tolist())]
        if "turned" in kind:
            form["exif"] = Image.Exif()
            form["exif"][0x0112] = 6  # by a quarter, clockwise, when shown
            images = [np.rot90(image) for image in images]
        vlen(file, "image", [encoded(image, **form) for image in images])
        places = POINTS.copy()
        places[:, :2, :2] *= scales[:, None, None]
        file["mask"] = IMAGES[..., 0] // 255
        file["points"] = places.astype(np.float32)
        file["boxes"] = np.concatenate([BOXES[:, :1] * scales[:, None, None], BOXES[:, 1:]], axis=1)
    return str(path)


class TestBoxes(ReaderContract):
    """Images, label maps, boxes and keypoints are the same in every way of reading."""

    @pytest.fixture
    def served(self, tmp_path: Path) -> Served:
        given: dict[str, Any] = {
            "path": foreign(tmp_path / "a.h5", "png"), "data_field": ["image", "mask"],
            "boxes_field": "boxes", "keypoints_field": "points", "labels_field": None,
            "size": (40, 48), "crop": "random-resized", "flip": True,
            "augment": ["rand-augment", ("random-perspective", {"p": 0.5}), "random-vertical-flip"],
        }  # fmt: skip
        return Served(given, lambda batch: None, COUNT)


#: How the numbers of boxes and of keypoints of each sample differ: 0 to 3 of those above.
NUMBERS = np.arange(COUNT) * 7 % 4


def of_different_number(where: str, folder: Path) -> Any:
    """Images, and of each so many of its boxes and keypoints as NUMBERS says, from what serves
    them: a Writer's datasets, HDF5 of others, or arrays."""
    boxes = [BOXES[i, :n].astype(np.int32) for i, n in enumerate(NUMBERS)]
    points = [POINTS[i, : 3 - n] for i, n in enumerate(NUMBERS)]
    offsets = np.concatenate([[0], np.cumsum(NUMBERS)])
    if where == "arrays":
        return {
            "image": IMAGES, "boxes": np.concatenate(boxes), "boxes_offsets": offsets,
            "points": np.concatenate(points), "points_lengths": 3 - NUMBERS,
        }  # fmt: skip
    if where == "h5py":
        with h5py.File(folder / "a.h5", "w") as file:
            file["image"] = IMAGES
            file["boxes"], file["boxes_offsets"] = np.concatenate(boxes), offsets
            file["points"], file["points_lengths"] = np.concatenate(points), 3 - NUMBERS
        return str(folder / "a.h5")
    suffix, options = {
        "raw": (".h5", {}), "png": (".h5", {"encoding": "png"}), "lmdb": (".lmdb", {}),
        "shards": ("", {"shards": 3, "encoding": "png"}),
    }[where]  # fmt: skip
    target = folder / f"a{suffix}"
    with Writer(target, variable_length=["boxes", "points"], **options) as writer:
        for image, some, places in zip(IMAGES, boxes, points, strict=True):
            writer.add(image, boxes=some, points=places)
    return str(target)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["raw", "png", "lmdb", "shards", "h5py", "arrays"])
def test_boxes_of_different_number_move_as_those_of_one_number(where: str, tmp_path: Path) -> None:
    """Boxes and keypoints whose number differs from sample to sample are to the bit those of a
    table with room for all, however images are cropped, mirrored and turned, and what fills up
    their rows is not moved; ``lengths`` say how many there are, and ``max_length`` cuts them."""
    given = of_different_number(where, tmp_path)
    name = "data" if where in ("raw", "png", "lmdb", "shards") else "image"
    params: dict[str, Any] = {
        "shuffle": True, "seed": 3, "size": (48, 44), "crop": "random-resized", "flip": True,
        "augment": [("random-rotation", {"degrees": 30})], "labels_field": None, "layout": "NHWC",
    }  # fmt: skip
    whole = {"boxes": 3, "points": 3}
    ways: list[dict[str, Any]] = [{}, {"verify": "always"}, {"nthread": 2, "workers": "process"}]
    if where in ("h5py", "arrays"):
        ways = ways[:1]
    for way in [{"max_length": whole}, {"max_length": {"boxes": 2, "points": 1}}, *ways]:
        way = {"max_length": whole, "pad_value": {"points": 7}, **way}
        most = [way["max_length"][one] for one in ("boxes", "points")]
        opened, plain = reader(given, data_field=[name], **way, **params), reader(**params)
        with opened, plain:
            for batch, other in zip(opened, plain, strict=True):
                np.testing.assert_array_equal(batch.indices, other.indices)
                np.testing.assert_array_equal(batch.data[0], other.data[0])
                numbers = NUMBERS[batch.indices], 3 - NUMBERS[batch.indices]
                for k, (each, limit) in enumerate(zip(numbers, most, strict=True)):
                    served = np.minimum(each, limit)
                    np.testing.assert_array_equal(batch.lengths[k + 1], served)
                    assert batch.data[k + 1].shape[:2] == (8, limit)
                    for row, n in enumerate(served):
                        head = other.data[k + 2][row, :n]  # behind the mask
                        np.testing.assert_array_equal(batch.data[k + 1][row, :n], head)
                        assert (batch.data[k + 1][row, n:] == (7 if k else 0)).all()


def test_keypoints_of_several_figures(tmp_path: Path) -> None:
    """Keypoints (N, figures, K, 3), and boxes that have the numbers of the pictures' sides, are
    none of them pictures: in HDF5, in ml-pyxis' LMDB, as h5py's data sets and as arrays."""
    images = np.zeros((COUNT, 5, 4, 3), np.uint8)
    boxes = np.tile(np.array([0, 1, 2, 4], np.int64), (COUNT, 5, 1))
    points = np.arange(COUNT * 5 * 4 * 3, dtype=np.float32).reshape(COUNT, 5, 4, 3) + 1
    fields = {"image": images, "boxes": boxes, "points": points}
    write_pyxis(
        tmp_path / "pyxis",
        [pyxis_sample({name: values[i] for name, values in fields.items()}) for i in range(COUNT)],
    )
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in fields.items():
            file[name] = values
    params: dict[str, Any] = {"flip": True, "labels_field": None}
    with h5py.File(tmp_path / "a.h5") as file:
        sources = [
            ({name: file[name] for name in fields}, {}),
            (fields, {}),
            (str(tmp_path / "a.h5"), {"data_field": "image"}),
            (str(tmp_path / "pyxis"), {"data_field": "image"}),
        ]
        for source, more in sources:
            with reader(source, **more, **params) as opened:
                _, some, places = next(iter(opened)).data
                assert set(map(tuple, some.reshape(-1, 4).tolist())) == {(0, 1, 2, 4), (2, 1, 4, 4)}
                assert places.shape == (8, 5, 4, 3)
                np.testing.assert_array_equal(places[..., 1:], points[:8, ..., 1:])
                mirrored = (places[..., 0] != points[:8, ..., 0]).any(axis=(1, 2))
                assert 0 < mirrored.sum() < 8
                assert (some[mirrored][:, 0, 0] == 2).all()
                expected = 3 - points[:8][mirrored][..., 0]
                np.testing.assert_array_equal(places[mirrored][..., 0], expected)


def test_rows_that_are_no_boxes_stay() -> None:
    """Boxes without an area, and those that are not a number, are served as stored; so are
    keypoints that are not a number or not labelled. A box outside of the crop becomes zeros."""
    none = np.array([[0, 0, 0, 0], [-1, -1, -1, -1], [NAN] * 4, [30, 30, 20, 20], [70, 5, 79, 9]])
    points = np.array([[0, 0, 0], [NAN, NAN, 2], [3, NAN, 1], [-4, 7, 1], [5, 6, 0]])
    data = {
        "image": np.zeros((4, 40, 80, 3), np.uint8),
        "boxes": np.stack([none] * 4),
        "points": np.stack([points] * 4),
    }
    with reader(data, size=(40, 40), batch_size=4, augment="random-vertical-flip") as opened:
        _, boxes, kept = next(iter(opened)).data
    for row in boxes:
        np.testing.assert_array_equal(row[:4], none[:4].astype(np.float32))
        np.testing.assert_array_equal(row[4], 0)
    for row in kept:
        np.testing.assert_array_equal(row[[0, 1, 2, 4]], points[[0, 1, 2, 4]].astype(np.float32))
        assert row[3].tolist() in ([-24, 7, 1], [-24, 32, 1])


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"boxes_field": "bboxes"}, "no field 'bboxes' in this dataset.*boxes"),
        ({"boxes_field": "points"}, "(?s)'points': the field holds no boxes.*x1, y1"),
        ({"keypoints_field": "boxes"}, "(?s)'boxes': the field holds no keypoints.*visib"),
        (
            {"boxes_field": "data", "data_field": "mask", "flip": True},
            r"(?s)field 'data': .*no boxes.*png",
        ),
        ({"boxes_field": "flags"}, "field 'flags': boxes are numbers"),
        ({"boxes_field": "boxes", "data_field": "flags"}, "boxes need images as the first field"),
        ({"boxes_field": "few"}, "number of samples"),
        ({"boxes_field": "boxes", "data_field": ["data", "boxes"]}, "named twice"),
        ({"boxes_field": "boxes", "keypoints_field": "boxes"}, "named twice"),
        ({"boxes_field": ["boxes"]}, "boxes_field"),
        ({"boxes_field": "boxes", "mixup": 0.2, "num_classes": 3}, "several fields"),
        ({"data": IMAGES, "boxes_field": "boxes"}, "several fields of arrays go as"),
        ({"data": {"image": IMAGES}, "boxes_field": "boxes"}, "(?s)name arrays of data.*'image'"),
        ({"data": {"boxes": BOXES}, "boxes_field": "boxes"}, "beside the images"),
    ],
)
def test_what_are_no_boxes(params: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Each wrong field is a ParamsError, or FormatError, which names it and what is expected."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(IMAGES), "png", np.zeros((COUNT, 1), int)))
    with h5py.File(path, "r+") as file:
        file["boxes"], file["points"], file["few"] = BOXES, POINTS, BOXES[:3]
        file["flags"], file["mask"] = np.zeros((COUNT, 3, 4), bool), IMAGES[..., 0]
    with pytest.raises((ParamsError, FormatError), match=said):
        AsyncReader({} if "data" in params else {"path": path}, batch_size=4, **params)


def test_a_bad_sample_has_no_boxes(tmp_path: Path) -> None:
    """A picture that cannot be decoded is bad with its boxes, whatever its size would be."""
    path = foreign(tmp_path / "a.h5", "jpeg, many sizes")
    with h5py.File(path, "r+") as file:
        file["image"][3] = np.frombuffer(b"\xff\xd8\xff\xe0 no picture", np.uint8)
    params: dict[str, Any] = {"data_field": "image", "labels_field": None, "size": (32, 32)}
    with reader(path, on_error="zero", **params) as opened:
        batch = next(iter(opened))
        assert batch.mask.tolist() == [True] * 3 + [False] + [True] * 4
        assert not batch.data[1][3].any()
        assert batch.data[1][:3, 0].any()
    with reader(path, **params) as opened, pytest.raises(DecodeError):
        next(iter(opened))


def test_a_mix_of_sets_with_boxes(tmp_path: Path) -> None:
    """Each set of a mix has its own size of pictures, and its boxes move accordingly."""
    paths = [tmp_path / f"{scale}.h5" for scale in (1, 2)]
    for scale, path in enumerate(paths, 1):
        hdf5(path, data=painted(scale), boxes=FIRST * scale)
    with AsyncReader(
        mix={str(path): 0.5 for path in paths}, boxes_field="boxes", size=(50, 50), crop="random",
        flip=True, layout="NHWC", batch_size=8, labels_field=None,
    ) as opened:  # fmt: skip
        for batch in opened:
            assert set(batch.source) == {0, 1}
            for image, box in zip(*batch.data, strict=True):
                if min(box[2:] - box[:2]) > 2:
                    assert abs(box - seen(image)).max() <= 2
