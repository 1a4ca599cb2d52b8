"""The parameter views: a sample several times, from one read, one check and one decode."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import cut_jpegs
import numpy as np
import process_functions
import pytest
from fakes import first_batch, packed, write_hdf5
from PIL import Image
from reader_contract import ReaderContract, Served

from asyncreader import AsyncReader, ParamsError, WorkerError
from asyncreader.pixels import codec, encoded
from asyncreader.pixels.geometry import resize_into
from asyncreader.pixels.tables import MIRROR_DRAW
from asyncreader.sampling.schedule import Cursor
from asyncreader.system.keyed_random import STREAM_VIEW, key_of, mix_rows, uniforms

COUNT = 24
RNG = np.random.default_rng(0)
PICTURES = [cut_jpegs.picture(RNG, 300, 400) for _ in range(8)]
SMALL = np.stack([cut_jpegs.picture(RNG, 24, 20) for _ in range(COUNT)])
LABELS = np.arange(COUNT)[:, None] % 5
#: Two large and three small views.
CROPS: list[Any] = [
    {"count": 2, "size": (160, 176), "crop_area": (0.4, 1.0)},
    {"count": 3, "size": (96, 96), "crop_area": (0.05, 0.4)},
]
SOLARIZE = ("random-solarize", {"threshold": 128})
DINO: list[Any] = [
    {"count": 2, "size": (16, 14), "crop_area": (0.4, 1.0), "augment": SOLARIZE},
    {"count": 6, "size": (8, 8), "crop_area": (0.05, 0.4)},
]
TWO: dict[str, Any] = {"size": (16, 14), "crop": "random-resized", "flip": True, "views": 2}


def drawn(
    key: np.ndarray, area: tuple[float, float], high: int, wide: int
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random-resized crop of (high, wide), as torchvision's
    RandomResizedCrop takes them from random numbers."""
    numbers = [float(uniforms(key, k)[0]) for k in range(40)]
    for k in range(0, 40, 4):
        pixels = high * wide * (area[0] + (area[1] - area[0]) * numbers[k])
        low, top = math.log(3 / 4), math.log(4 / 3)
        aspect = math.exp(low + (top - low) * numbers[k + 1])
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= wide and 0 < h <= high:
            return (
                int(numbers[k + 2] * (high - h + 1)),
                int(numbers[k + 3] * (wide - w + 1)),
                h,
                w,
            )
    raise AssertionError("none of ten tries fits")  # pragma: no cover


def keys_of(reader: AsyncReader, views: int) -> np.ndarray:
    """The keys of all views of the first batch's samples, (B, views)."""
    keys = reader._schedule.plan(reader._schedule.next_batch_at(Cursor())).keys
    others = [mix_rows(key_of(STREAM_VIEW, k), keys.view(np.int64)) for k in range(1, views)]
    return np.stack([keys, *others], axis=1)


def written(folder: Path, kind: str) -> str:
    """A set of the pictures, in storage of some kind."""
    if kind in ("raw", "chunks"):
        storage = {"chunks": (2, 300, 400, 3), "compression": "gzip"} if kind == "chunks" else {}
        return write_hdf5(folder / f"{kind}.h5", packed(PICTURES, "raw"), **storage)
    set_ = packed(PICTURES, "png")
    if kind == "yuv420":
        set_.samples = [codec.encode(one, "yuv420") for one in PICTURES]
    elif kind != "png":
        turn, interval = (6 if kind == "turned" else 1), (0 if kind == "jpeg" else 5)
        turned = [np.rot90(one) if turn == 6 else one for one in PICTURES]
        set_.samples = [cut_jpegs.marked(one, "4:2:0", interval, turn) for one in turned]
    return write_hdf5(folder / f"{kind}.h5", replace(set_, encoding="original"))


def by_pillow(part: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(H, W, 3) as Pillow resizes it."""
    return np.asarray(Image.fromarray(part).resize(size[::-1], Image.Resampling.BILINEAR))


@pytest.mark.parametrize("kind", ["raw", "chunks", "png", "yuv420", "jpeg", "restarts", "turned"])
def test_each_view_is_a_crop_of_the_picture(kind: str, tmp_path: Path) -> None:
    """Each view shows the rectangle that its own key draws: within a level as Pillow
    resizes it, and to the byte what the whole decoded picture gives."""
    path, areas = written(tmp_path, kind), set()
    params: dict[str, Any] = {"crop": "random-resized", "flip": True, "layout": "NHWC"}
    with AsyncReader(path=path, batch_size=8, views=CROPS, verify="always", **params) as reader:
        keys = keys_of(reader, 5)
        data, _ = next(iter(reader))
        assert [array.shape for array in data] == [(8, 2, 160, 176, 3), (8, 3, 96, 96, 3)]
        for record in range(8):
            whole = PICTURES[record] if kind in ("raw", "chunks", "png") else decoded(path, record)
            for number, view in enumerate([*data[0][record], *data[1][record]]):
                of_size = CROPS[number >= 2]
                key = keys[record, number : number + 1]
                top, left, h, w = drawn(key, of_size["crop_area"], 300, 400)
                areas.add(h * w // 5000)
                part = np.ascontiguousarray(whole[top : top + h, left : left + w])
                flip = bool(uniforms(key, MIRROR_DRAW)[0] < 0.5)
                exact = np.empty_like(view)
                resize_into(part, exact, flip=flip)
                np.testing.assert_array_equal(view, exact)
                theirs = by_pillow(part, of_size["size"]).astype(int)
                assert np.abs((theirs[:, ::-1] if flip else theirs) - view).max() <= 1
    assert len(areas) > 10


def decoded(path: str, record: int) -> np.ndarray:
    """A picture of a set as it is decoded whole, by a reader without views."""
    data: np.ndarray = first_batch(path=path, layout="NHWC", subset=[record]).data[0].copy()
    return data


def test_the_part_that_holds_all_views_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a JPEG with restart markers one part is decoded, once, which holds all views; they are to
    the byte those of the file without markers."""
    parts: list[codec.Decoded] = []
    decode_part = codec.decode_part

    def kept(*args: Any, **options: Any) -> codec.Decoded:
        parts.append(decode_part(*args, **options))
        return parts[-1]

    both = [written(tmp_path, kind) for kind in ("jpeg", "restarts")]
    views = [{"count": 3, "size": (60, 50), "crop_area": (0.02, 0.1)}]
    data = []
    for path in both:
        params: dict[str, Any] = {"size": (60, 50), "crop": "random-resized", "flip": True}
        with AsyncReader(path=path, batch_size=8, views=views, epochs=5, **params) as reader:
            monkeypatch.setattr(encoded.codec, "decode_part", kept)
            data.append([batch.data[0].copy() for _ in range(5) for batch in reader])
            monkeypatch.undo()
    np.testing.assert_array_equal(data[0], data[1])
    whole, cut = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    assert len(whole) == len(cut) == 40
    assert not any(cut_jpegs.is_cut(one) for one in whole)
    assert sum(cut_jpegs.is_cut(one) for one in cut) > len(cut) // 3


def test_views_are_decoded_as_large_as_the_largest_needs(tmp_path: Path) -> None:
    """A JPEG is decoded smaller where that is enough for all views: alone a small view is what a
    reader without views serves; beside a large one it comes from all pixels."""
    path = written(tmp_path, "jpeg")
    params: dict[str, Any] = {"path": path, "layout": "NHWC", "crop": "none", "size": (32, 40)}
    (plain,) = (reader_data(**params),)
    (alone,) = reader_data(**params, views=2)
    np.testing.assert_array_equal(alone[:, 0], plain)
    small, _ = reader_data(**params, views=[{}, {"size": (300, 400)}])
    for record in range(8):
        exact = np.empty_like(plain[record])
        resize_into(decoded(path, record), exact)
        np.testing.assert_array_equal(small[record, 0], exact)
    assert (small[:, 0] != plain).any()


def reader_data(**params: Any) -> Any:
    """The data of the first batch of eight."""
    with AsyncReader({"batch_size": 8, **params}, copy=True) as reader:
        return next(iter(reader)).data


@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_the_first_view_is_what_a_reader_without_views_serves(
    encoding: str, tmp_path: Path
) -> None:
    """View 0 has the sample's own draws, the others have draws of their own; a view of the second
    array is numbered on."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(SMALL), encoding))
    augment = ["trivial-augment-wide", "random-erasing"]
    params: dict[str, Any] = {**TWO, "path": path, "shuffle": True, "augment": augment}
    once = {name: value for name, value in params.items() if name != "views"}
    plain = reader_data(**once)
    (views,) = reader_data(**params)
    assert views.shape == (8, 2, 3, 16, 14)
    np.testing.assert_array_equal(views[:, 0], plain)
    assert all((views[row, 1] != plain[row]).any() for row in range(8))
    (four,) = reader_data(**{**params, "views": 4})
    first, second = reader_data(**{**params, "views": [{}, {"count": 3}]})
    np.testing.assert_array_equal(four[:, :1], first)
    np.testing.assert_array_equal(four[:, 1:], second)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("views", [3, [{"count": 1, "size": None}]])
def test_shapes_and_strides(layout: str, contiguous: bool, views: Any) -> None:
    """data is a tuple of arrays, (B, count, C, H, W) or (B, count, H, W, C): NCHW of stored NHWC is
    a view with strides of channels last, unless contiguous is asked for."""
    params: dict[str, Any] = {"layout": layout, "contiguous": contiguous, "views": views}
    with AsyncReader(data=SMALL, batch_size=4, size=(24, 20), dtype="float32", **params) as reader:
        (data,) = next(iter(reader)).data
        count = 3 if views == 3 else 1
        shape = (4, count, 3, 24, 20) if layout == "NCHW" else (4, count, 24, 20, 3)
        assert data.shape == reader.data_shape[0] == shape
        assert reader.dtype == (np.float32,)
        plain = data.transpose(0, 1, 3, 4, 2) if layout == "NCHW" else data
        assert data.flags.c_contiguous == (layout == "NHWC" or contiguous)
        assert plain.flags.c_contiguous == (layout == "NHWC" or not contiguous)
        for view in range(count):
            np.testing.assert_array_equal(plain[:, view], SMALL[:4].astype(np.float32))


def test_pictures_of_one_channel() -> None:
    """Grey pictures without a channel axis are (B, count, H, W)."""
    grey = SMALL[..., 0]
    for layout in ("NCHW", "NHWC"):
        (data,) = reader_data(data=grey, views=2, layout=layout)
        assert data.shape == (8, 2, 24, 20)
        np.testing.assert_array_equal(data[:, 1], grey[:8])


# -- the same for all workers --------------------------------------------------------------------

#: All that works on a view, with several arrays, in float32.
ALL: dict[str, Any] = {
    "crop": "random-resized", "flip": True, "dtype": "float32", "scale": 1 / 255,
    "augment": ["trivial-augment-wide", "random-erasing"], "views": DINO, "shuffle": True,
    "transform": process_functions.dims,
}  # fmt: skip


@pytest.fixture(params=["raw", "jpeg"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A set of pictures, 24 x 20."""
    return write_hdf5(tmp_path / "train.h5", packed(list(SMALL), request.param))


@pytest.fixture
def served(path: str) -> Served:
    return Served({**ALL, "path": path}, lambda _: None, len(SMALL))


class TestAllViews(ReaderContract):
    """Views are the same in every way of reading."""


# -- what else a reader does ---------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_label_maps_move_with_each_view(encoding: str, tmp_path: Path) -> None:
    """A label map has the views of its picture, by the same draws; numbers come once a sample. The
    arrays of each field come one after the other."""
    stripes = (np.arange(24)[:, None] // 6 * 5 + np.arange(20) // 4).astype(np.uint8)
    image = np.stack([np.roll(stripes, k % 4 * 6, axis=0) for k in range(COUNT)])[..., None]
    whole = packed(list(np.repeat(image, 3, axis=3)), encoding)
    whole.fields = {"mask": packed(list(image), encoding, with_labels=False)}
    path = write_hdf5(tmp_path / "a.h5", whole)
    views: list[Any] = [{"count": 2, "size": (12, 10)}, {"count": 3, "size": (6, 5)}]
    params: dict[str, Any] = {"crop": "random-resized", "flip": True, "interpolation": "nearest"}
    augment = ("random-rotation", {"degrees": 30})
    batch = first_batch(
        path=path, data_field=["data", "mask"], batch_size=8, views=views, augment=augment,
        shuffle=True, **params,
    )  # fmt: skip
    shapes = [array.shape[:3] for array in batch.data]
    assert shapes == [(8, 2, 3), (8, 3, 3), (8, 2, 1), (8, 3, 1)]
    for picture, mask in zip(batch.data[:2], batch.data[2:], strict=True):
        np.testing.assert_array_equal(picture[:, :, :1], mask)
        assert (mask[:, 0] != mask[:, 1]).any()
    fields: Any = {"image": SMALL, "place": np.arange(COUNT * 2.0).reshape(COUNT, 2)}
    views_, places = reader_data(data=fields, views=2, size=(8, 8), crop="random")
    assert views_.shape == (8, 2, 3, 8, 8)
    np.testing.assert_array_equal(places, fields["place"][:8])


@pytest.mark.parametrize("on_error", ["skip", "zero"])
def test_bad_samples(on_error: str, tmp_path: Path) -> None:
    """All views of a bad sample are zero, or those of one other sample."""
    bad = packed(list(SMALL), "png")
    bad.samples[5] = bad.samples[5][:-30]
    path = write_hdf5(tmp_path / "a.h5", bad)
    with AsyncReader(path=path, batch_size=8, views=2, on_error=on_error) as reader:
        batch = next(iter(reader))
        (data,) = batch.data
        assert batch.mask[5] == (on_error == "skip")
        assert (batch.indices[5] == 5) == (on_error == "zero")
        expected = SMALL[batch.indices[5]] if on_error == "skip" else np.zeros_like(SMALL[5])
        for view in range(2):
            np.testing.assert_array_equal(data[5, view].transpose(1, 2, 0), expected)
        np.testing.assert_array_equal(data[4, 1].transpose(1, 2, 0), SMALL[4])
        assert reader.stats().bad_samples == 1


def lowered(image: np.ndarray, label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Half the height, and darker by a random number."""
    return image[::2] // int(rng.integers(1, 5))


def test_transform_runs_on_each_view() -> None:
    """A transform gets each view, with a generator of its own; the arrays may have several shapes.
    An error names the record; a label cannot be returned."""
    params: dict[str, Any] = {"data": SMALL, "labels": LABELS, "layout": "NHWC"}
    views: list[Any] = [{"count": 2}, {"count": 4, "size": (8, 6)}]
    large, small = reader_data(**params, views=views, transform=lowered)
    assert large.shape == (8, 2, 12, 20, 3)
    assert small.shape == (8, 4, 4, 6, 3)
    dark = [
        [n for n in range(1, 5) if (half // n == view).all()]
        for half, views_ in zip(SMALL[:8, ::2], large, strict=True)
        for view in views_
    ]
    assert all(dark)
    assert len({n for one in dark for n in one}) > 2
    with pytest.raises(ParamsError, match="views of one sample have one label"):
        AsyncReader(params, views=2, transform=lambda image, label: (image, label))

    def fails(image: np.ndarray, label: np.ndarray) -> None:
        if label[0] == 3:
            raise KeyError("three")

    with AsyncReader(params, batch_size=8, views=2, transform=fails) as reader:
        reader.fetchData()
        with pytest.raises(WorkerError, match="KeyError") as caught:
            reader.getNextBatch()
        assert caught.value.index == 3


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"views": "two"}, "a whole number of at least 1, or a list of dicts"),
        ({"views": []}, "a list of dicts"),
        ({"views": True}, "a list of dicts"),
        ({"views": [3]}, r"views\[0\] is not valid; found 3; expected a dict of count, size"),
        ({"views": [{}, {"count": 0}]}, r"count of views\[1\] is not valid; found 0"),
        ({"views": [{"sise": 8}]}, r"unknown key 'sise' of views\[0\].*did you mean 'size'"),
        ({"views": [{"cropArea": (0.1, 1)}]}, "did you mean 'crop_area'"),
        ({"views": [{"mean": 0.5}]}, r"unknown key 'mean' of views\[0\].*for all views"),
        ({"views": [{"size": (0, 8)}]}, r"size of views\[0\] is not valid"),
        ({"views": [{"augment": "trivial"}]}, "unknown operation 'trivial'"),
        ({"views": [{"size": (8, 8), "crop_area": (0.1, 1)}]}, r"views\[0\]: crop_area goes with"),
        ({"views": [{}, {"crop": "random"}]}, r"views\[1\]: crop and crop_ratio need size"),
        ({"views": [{}, {"augment": SOLARIZE}], "data": SMALL[..., :2]}, "1 or 3 channels"),
        ({"crop_area": (0.1, 1), "size": (8, 8)}, "crop_area goes with"),
        ({"mixup": 0.2, "labels": LABELS}, "mixup mixes one array"),
        ({"cutmix": 0.2, "labels": LABELS}, "cutmix mixes one array"),
        ({"layout": "planes"}, "without views"),
        ({"data": SMALL[:, 0, 0]}, "views need"),
        ({"numViews": 2}, "views=2"),
    ],
)
def test_wrong_views(params: dict[str, Any], said: str) -> None:
    """A wrong value, or what views do not go with, is a ParamsError that says which, and what is
    expected."""
    with pytest.raises(ParamsError, match="(?s)" + said):
        AsyncReader({"data": SMALL, "views": 2, **params})


def test_sizes_that_differ(tmp_path: Path) -> None:
    """Pictures of several sizes need a size for each array of views."""
    images = [cut_jpegs.picture(RNG, 30 + k, 40) for k in range(6)]
    path = write_hdf5(tmp_path / "a.h5", packed(images, "png"))
    with pytest.raises(ParamsError, match="stored images differ in size"):
        AsyncReader(path=path, views=[{"size": (8, 8)}, {"count": 2}])
    data = reader_data(path=path, batch_size=6, views=[{"size": (8, 8)}, {"size": (4, 4)}])
    assert [array.shape for array in data] == [(6, 1, 3, 8, 8), (6, 1, 3, 4, 4)]
