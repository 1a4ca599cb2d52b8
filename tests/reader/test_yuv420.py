"""Sets of encoding yuv420: packed from and to everything, and served like any other pictures."""

import itertools
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from fakes import Packed, digest, encoded, first, first_batch, packed, write_hdf5, write_lmdb
from PIL import Image
from reader_contract import ReaderContract, Served

from asyncreader import AsyncReader, DecodeError, FormatError, ParamsError
from asyncreader.pixels import codec
from asyncreader.tools.verify import verify_file
from converters import convert

COUNT = 13


def painted(number: int, size: tuple[int, int]) -> np.ndarray:
    """A picture of smooth colours with some noise."""
    rng = np.random.default_rng((7, number))
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8))
    smooth = np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC)).astype(np.int64)
    return np.clip(smooth + rng.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


def written(path: Path, sizes: list[tuple[int, int]]) -> str:
    """A packed set of pictures as PNG, and of their masks."""
    images = [painted(number, size) for number, size in enumerate(sizes)]
    content = packed(images, "png")
    masks = [image[..., :1] // 64 for image in images]
    content.fields["mask"] = packed(masks, "png", with_labels=False)
    return write_hdf5(path, content)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """yuv.h5 of pictures of 41 x 50, and png.h5 of the pixels that it decodes to; any.h5 and
    any_png.h5 of pictures of many sizes."""
    folder = tmp_path_factory.mktemp("yuv")
    for name, sizes in (
        ("yuv", [(41, 50)] * COUNT),
        ("any", [(20 + 3 * k, 61 - 4 * k) for k in range(COUNT)]),
    ):
        source = written(folder / f"{name}_source.h5", sizes)
        convert(source, folder / f"{name}.h5", encoding="yuv420")
        convert(folder / f"{name}.h5", folder / f"{name}_png.h5", encoding="png")
    return folder


def stored_in(path: Path) -> list[bytes]:
    """The stored samples of a packed file, without asyncreader."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            assert file.attrs["encoding"] == b"yuv420"
            ends = file["offsets"][:]
            blob = file["data"][:].tobytes()
        return [blob[a:b] for a, b in itertools.pairwise(ends)]
    with lmdb.open(str(path), readonly=True, lock=False, max_dbs=16) as env, env.begin() as txn:
        data = env.open_db(b"data", txn, create=False)
        return [value for _, value in txn.cursor(data)]


# -- packing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
def test_values(tmp_path: Path, suffix: str) -> None:
    """A value is what codec.encode makes of the picture, of any size: the samples differ in it."""
    sizes = [(1, 1), (1, 7), (9, 1), (2, 2), (5, 4), (33, 17)]
    target = tmp_path / f"set.{suffix}"
    report = convert(written(tmp_path / "png.h5", sizes), target, encoding="yuv420")
    assert (report.count, report.encoding) == (len(sizes), "yuv420")
    wanted = [codec.encode(painted(k, size), "yuv420") for k, size in enumerate(sizes)]
    assert stored_in(target) == wanted
    assert verify_file(str(target), decode=True).ok


@pytest.mark.slow
def test_there_and_back(sets: Path, tmp_path: Path) -> None:
    """Between containers and shards the stored bytes stay; naming the encoding again, or its size,
    changes nothing that it need not; as pixels and PNG they are the pixels that are served."""
    start = sets / "yuv.h5"
    wanted = stored_in(start)
    convert(start, tmp_path / "b.lmdb")
    convert(tmp_path / "b.lmdb", tmp_path / "shards", shards=3)
    convert(tmp_path / "shards", tmp_path / "c.h5", encoding="yuv420")
    for name in ("b.lmdb", "c.h5"):
        assert stored_in(tmp_path / name) == wanted
    pixels = np.stack([codec.decode(value, 3) for value in wanted])
    convert(tmp_path / "shards", tmp_path / "raw.h5", encoding="raw")
    with h5py.File(tmp_path / "raw.h5") as file:
        np.testing.assert_array_equal(file["data"][:], pixels)
    for name in ("raw.h5", "shards"):
        assert verify_file(str(tmp_path / name), decode=True).ok
    convert(tmp_path / "raw.h5", tmp_path / "again.h5", encoding="yuv420")
    again = np.stack([codec.decode(value, 3) for value in stored_in(tmp_path / "again.h5")])
    assert np.abs(again.astype(int) - pixels).mean() < 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"channels": 1}, "colour"),
        ({"bits": 16}, "8 bits"),
        ({"quality": 50}, "quality applies only"),
        ({"compression": "gzip"}, "compression is for raw"),
        ({"restarts": True}, "restarts applies only"),
    ],
)
def test_options_that_do_not_apply(
    sets: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    """Grey pictures, 16 bits, a quality, compression and restart markers are ParamsErrors."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(encoded(painted(0, (6, 10))))
    with pytest.raises(ParamsError, match=words):
        convert(tmp_path / "photos", tmp_path / "a.h5", encoding="yuv420", **options)
    with pytest.raises(ParamsError, match="image files' own bytes"):
        convert(sets / "yuv.h5", tmp_path / "a.h5", encoding="original")


# -- serving -------------------------------------------------------------------------------------

SERVED: dict[str, dict[str, Any]] = {
    "whole": {},
    "whole, mirrored": {"flip": True, "layout": "NHWC"},
    "whole, contiguous": {"contiguous": True, "flip": True},
    "whole, float": {"dtype": "float32", "scale": 1 / 255, "mean": 0.4, "std": 0.2, "flip": True},
    "fit": {"size": (24, 24)},
    "cut": {"size": (36, 44), "crop_ratio": 0.88, "layout": "NHWC", "flip": True},
    "squeezed": {"size": (60, 20), "crop": "none", "interpolation": "bicubic"},
    "random": {"size": (24, 20), "crop": "random", "crop_ratio": 0.7},
    "random-resized": {"size": (24, 24), "crop": "random-resized", "flip": True},
    "nearest": {"size": (24, 24), "crop": "random-resized", "interpolation": "nearest"},
    "area": {"size": (7, 9), "interpolation": "area"},
    "float16": {"size": (24, 24), "dtype": "float16", "mean": (1, 2, 3), "flip": True},
    "float64": {"size": (24, 24), "dtype": "float64", "contiguous": True, "flip": True},
    "int8 that does not fit": {"size": (24, 24), "dtype": "int8"},
}


@pytest.mark.parametrize("way", SERVED)
@pytest.mark.parametrize("name", ["yuv", "any"])
def test_served_as_any_picture(sets: Path, name: str, way: str) -> None:
    """Every crop, flip, dtype and order of axes gives, byte for byte, what the same pixels give as
    PNG; masks move with the pictures."""
    params = {"batch_size": 6, "shuffle": True, "data_field": ["data", "mask"], **SERVED[way]}
    if name == "any" and "size" not in params:
        with pytest.raises(ParamsError, match="differ in size"):
            AsyncReader(str(sets / "any.h5"), **params)
        return
    found = []
    for file in (f"{name}.h5", f"{name}_png.h5"):
        try:
            with AsyncReader(str(sets / file), **params) as reader:
                found.append([np.copy(one) for batch in reader for one in batch.data])
        except ParamsError as exc:
            found.append([exc.what])
    assert len(found[0]) == len(found[1])
    for ours, other in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, other)


@pytest.mark.slow
def test_shrunk_beyond_the_weights(tmp_path: Path) -> None:
    """Also where pixels are averaged before they are resized (shrunk more than 64 times)."""
    convert(written(tmp_path / "png.h5", [(700, 900)] * 2), tmp_path / "a.h5", encoding="yuv420")
    convert(tmp_path / "a.h5", tmp_path / "b.h5", encoding="png")
    sizes = {"batch_size": 2, "size": (5, 7), "crop": "random-resized"}
    found = [digest(AsyncReader(str(tmp_path / name), **sizes), 3) for name in ("a.h5", "b.h5")]
    assert found[0] == found[1]


@pytest.fixture
def served(sets: Path) -> Served:
    given = {"path": str(sets / "yuv.h5"), "data_field": "data", **SERVED["random-resized"]}
    return Served(given, lambda _: None, COUNT)


class TestYuv420(ReaderContract):
    """Images of this encoding are the same in every way of reading."""


# -- planes as they are --------------------------------------------------------------------------


@pytest.mark.parametrize("verify", ["first", "never"])
def test_planes(sets: Path, tmp_path: Path, verify: Any) -> None:
    """layout="planes" serves the planes as they are stored, also beside a mask and from shards."""
    convert(sets / "yuv.h5", tmp_path / "shards", shards=2)
    wanted = [np.frombuffer(value, np.uint8)[16:] for value in stored_in(sets / "yuv.h5")]
    for path in (sets / "yuv.h5", tmp_path / "shards"):
        params: dict[str, Any] = {"batch_size": 4, "shuffle": True, "verify": verify}
        params |= {"layout": "planes", "data_field": ["data", "mask"]}
        with AsyncReader(str(path), **params) as reader:
            assert reader.data_shape == ((4, 41 * 50 + 2 * 21 * 25), (4, 1, 41, 50))
            for batch in reader:
                data, mask = batch.data
                assert (data.dtype, mask.max()) == (np.uint8, 3)
                for row, index in zip(data, batch.indices, strict=True):
                    np.testing.assert_array_equal(row, wanted[index])


@pytest.mark.parametrize(
    ("name", "changed", "says", "hint"),
    [
        ("yuv.h5", {"size": (24, 24)}, "as they are stored", ""),
        ("yuv.h5", {"size": (24, 24), "crop": "random"}, "as they are stored", ""),
        ("yuv.h5", {"flip": True}, "as they are stored", ""),
        ("yuv.h5", {"dtype": "float32"}, "as they are stored", ""),
        ("yuv.h5", {"dtype": "float32", "scale": 1 / 255}, "as they are stored", ""),
        ("yuv.h5", {"crop": "none"}, "as they are stored", ""),
        ("yuv_png.h5", {}, "for datasets of encoding yuv420", "--encoding yuv420"),
        (None, {"data": painted(0, (8, 8))[None]}, "for datasets of encoding yuv420", "--encoding"),
        ("any.h5", {}, "differ in size", "--size"),
    ],
)
def test_planes_that_are_not_there(
    sets: Path, name: str | None, changed: dict[str, Any], says: str, hint: str
) -> None:
    """Beside layout="planes" a size, a crop, a flip, another dtype or numbers that normalise, and
    sets of another encoding, of arrays, or whose pictures differ in size, are ParamsErrors with
    advice."""
    given = changed if name is None else {"path": sets / name, **changed}
    with pytest.raises(ParamsError, match=says) as caught:
        AsyncReader(given, layout="planes")
    assert caught.value.hint
    assert hint in caught.value.hint


# -- bad values ----------------------------------------------------------------------------------


def yuv_set(images: list[np.ndarray]) -> Packed:
    content = packed(images)
    content.encoding = "yuv420"
    content.samples = [codec.encode(image, "yuv420") for image in images]
    return content


BAD = {
    "short": lambda value: value[:-1],
    "empty": lambda value: b"",
    "wrong magic": lambda value: b"yuv422\0\0" + value[8:],
    "no width": lambda value: value[:8] + bytes(4) + value[12:],
    "a size that overflows": lambda value: value[:8] + b"\xff" * 8 + value[16:],
    "another size": lambda value: codec.encode(painted(1, (10, 6)), "yuv420"),
    "a PNG of another size": lambda value: codec.encode(painted(1, (10, 6)), "png"),
    "a PNG": lambda value: codec.encode(painted(1, (6, 10)), "png"),
}


@pytest.mark.parametrize("container", [write_hdf5, write_lmdb])
@pytest.mark.parametrize("layout", ["NCHW", "planes"])
@pytest.mark.parametrize("what", BAD)
def test_bad_values(tmp_path: Path, container: Any, layout: Any, what: str) -> None:
    """A value that is no picture of planes is a DecodeError that names its record, and can be
    skipped; its neighbours are served. (A picture of the right size is one, but has no planes.)"""
    content = yuv_set([painted(k, (6, 10)) for k in range(5)])
    content.samples[3] = BAD[what](content.samples[3])
    path = container(tmp_path / "set", content)
    params = {"batch_size": 5, "layout": layout}
    if (what, layout) == ("a PNG", "NCHW"):
        with AsyncReader(path, **params) as reader:
            np.testing.assert_array_equal(first(reader).data[3, 0], painted(1, (6, 10))[..., 0])
        return
    with AsyncReader(path, **params) as reader, pytest.raises(DecodeError) as caught:
        first(reader)
    assert caught.value.index == 3
    batch = first_batch(path, **params, on_error="skip")
    assert sorted({*batch.indices.tolist()}) == [0, 1, 2, 4]


def test_descriptions_that_contradict(tmp_path: Path) -> None:
    """A description of grey pictures in encoding yuv420 is a FormatError."""
    content = yuv_set([painted(0, (6, 10))])
    content.channels, content.shape = 1, (6, 10, 1)
    with pytest.raises(FormatError, match="channels"):
        AsyncReader(write_hdf5(tmp_path / "a.h5", content))
