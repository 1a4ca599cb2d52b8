"""Grey pictures of 16 bits: kept, or brought to 8 bits, as asked, and never without a word."""

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
from command_sets import run
from converter_corpus import put
from fakes import first_batch, hdf5
from foreign_sets import write_lmdb
from PIL import Image

from asyncreader import AsyncReader, DecodeError, ParamsError
from asyncreader.tools.preview import preview
from asyncreader.tools.verify import verify_file
from converters import convert

UInt16 = npt.NDArray[np.uint16]

#: Pictures of a depth map's values: 12 bits, and both ends of uint16.
COUNT, HEIGHT, WIDTH = 6, 20, 30


def depths() -> UInt16:
    """(N, H, W) of uint16, of which 8 bits hold next to nothing."""
    rng = np.random.default_rng(7)
    found = rng.integers(0, 4096, (COUNT, HEIGHT, WIDTH), np.uint16)
    found[:, 0, 0], found[:, -1, -1] = 65_535, 0
    return found


def _pillow(values: UInt16, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(values).save(out, kind, **options)
    return out.getvalue()


def _tiff(values: UInt16, **options: Any) -> bytes:
    return bytes(imagecodecs.tiff_encode(values, **options))


#: Ways to write grey pictures of 16 bits, by suffix of the file.
WRITERS: dict[str, Callable[[UInt16], bytes]] = {
    "pillow.png": lambda values: _pillow(values, "PNG"),
    "cv.png": lambda values: cv2.imencode(".png", values)[1].tobytes(),
    "alpha.png": lambda values: bytes(imagecodecs.png_encode(np.stack([values, ~values], axis=2))),
    "pillow.tif": lambda values: _pillow(values, "TIFF"),
    "big-endian.tif": lambda values: _pillow(values.astype(">u2"), "TIFF"),
    "lzw.tif": lambda values: _pillow(values.astype(">u2"), "TIFF", compression="tiff_lzw"),
    "deflate.tiff": lambda values: _tiff(values, compression="deflate"),
    "binary.pgm": lambda values: b"P5 30 20 65535\n" + values.astype(">u2").tobytes(),
    "plain.pgm": lambda values: (
        b"P2\n# a comment\n30 20 # of two\n65535\n"
        + b"".join(b"%d\n" % number for number in values.reshape(-1).tolist())
    ),
}


def write_depths(folder: Path, name: str = "cv.png") -> UInt16:
    """A folder of pictures in two classes, written in one way; their values."""
    values = depths()
    put(folder, {place(n, name): WRITERS[name](one) for n, one in enumerate(values)})
    return values


def place(number: int, name: str) -> str:
    """Where a picture lies in the folder."""
    return f"c{number * 2 // COUNT}/{number}{name}"


def served(path: Path, **params: Any) -> npt.NDArray[Any]:
    """All samples of a set in order, as a reader serves them."""
    return np.array(first_batch(path=path, batch_size=COUNT, **params).data)


TARGETS = ["b.h5", "b.lmdb", "shards"]


def _sharded(target: str) -> dict[str, Any]:
    return {"shards": 2} if target == "shards" else {}


# -- from folders --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("encoding", ["raw", "png", "original"])
def test_sixteen_bits_are_kept(tmp_path: Path, encoding: str, name: str) -> None:
    """With bits 16 a reader serves uint16, every value as it was written, from PNG, TIFF and PGM of
    all kinds, stored raw, as PNG and as the files' own bytes."""
    values = write_depths(tmp_path / "in", name)
    for one, whole in zip(sorted((tmp_path / "in").glob("*/*")), values, strict=True):
        judged = cv2.imread(str(one), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(judged if name != "alpha.png" else whole, whole)
    report = convert(tmp_path / "in", tmp_path / "a.h5", encoding=encoding, bits=16)
    assert (report.count, report.narrowed) == (COUNT, 0)
    data = served(tmp_path / "a.h5")
    assert (data.dtype, data.shape) == (np.uint16, (COUNT, 1, HEIGHT, WIDTH))
    assert np.array_equal(data[:, 0], values)
    with pytest.raises(ParamsError, match="uint8"):
        served(tmp_path / "a.h5", dtype="uint8")
    assert verify_file(str(tmp_path / "a.h5"), decode=True).ok
    with h5py.File(tmp_path / "a.h5") as file:
        assert encoding != "raw" or file["data"].dtype == "<u2"
        assert json.loads(file.attrs["description"])["dtype"] == "uint16"


@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg", "original"])
def test_without_a_choice_it_is_an_error(tmp_path: Path, encoding: str) -> None:
    """A grey picture of 16 bits without ``bits`` is a ParamsError that names the file and both
    options, with ``skip_bad``, too; nothing is written."""
    write_depths(tmp_path / "in")
    for target, skip_bad in itertools.product(TARGETS, (False, True)):
        options = {"encoding": encoding, "skip_bad": skip_bad, **_sharded(target)}
        with pytest.raises(ParamsError, match=r"0cv\.png.*--bits 16.*--bits 8"):
            convert(tmp_path / "in", tmp_path / target, **options)
    told = run("convert", tmp_path / "in", tmp_path / "x.h5", "--encoding", encoding)
    assert told.exit_code == 2
    assert "--bits 16" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg", "original"])
def test_eight_bits_are_counted(tmp_path: Path, encoding: str) -> None:
    """With bits 8 the lower 8 bits are dropped, and the report and the command count the pictures;
    the set says uint8, and a reader serves the high bytes."""
    values, target = write_depths(tmp_path / "in"), tmp_path / "a.h5"
    (tmp_path / "in" / "c0" / "a.png").write_bytes(WRITERS["cv.png"](values[0].astype(np.uint8)))
    words = ["--bits", "8", "--encoding", encoding, "--channels", "1"]
    told = run("convert", tmp_path / "in", target, *words)
    assert told.exit_code == 0, told.stderr
    assert f"16 bits became 8: in {COUNT} of {COUNT + 1} samples" in told.stdout
    data = served(target, subset=np.array([0, 1, 2, 4, 5, 6]))  # "a" sorts behind digits
    assert data.dtype == np.uint8
    if encoding != "jpeg":
        assert np.array_equal(data[:, 0], values >> 8)
    assert verify_file(str(target), decode=True).ok
    assert not preview({"path": str(target)}).bad


def _colour(values: UInt16, name: str) -> bytes:
    if name == "ppm":
        return b"P6 30 20 65535\n" + values.astype(">u2").tobytes()
    if name == "tif":
        return _tiff(values, photometric="rgb")
    if name == "rgba.png":
        alpha = np.full((*values.shape[:2], 1), 65_535, np.uint16)
        values = np.concatenate([values, alpha], axis=2)
    return bytes(imagecodecs.png_encode(values))


@pytest.mark.parametrize("name", ["png", "rgba.png", "tif", "ppm"])
@pytest.mark.parametrize("encoding", ["raw", "original"])
def test_colours_of_16_bits_become_8_and_are_counted(
    tmp_path: Path, encoding: str, name: str
) -> None:
    """Colour pictures of 16 bits need no option: Pillow's 8 bits are served, and the report counts
    them; with bits 16 they are a DecodeError."""
    values = np.random.default_rng(3).integers(0, 1 << 16, (HEIGHT, WIDTH, 3), np.uint16)
    small = _colour((values >> 8).astype(np.uint8), "png")
    folder = put(tmp_path / "in" / "c", {f"0.{name}": _colour(values, name), "1.png": small})
    report = convert(tmp_path / "in", tmp_path / "a.h5", encoding=encoding)
    assert (report.count, report.narrowed) == (2, 1)
    with Image.open(folder / f"0.{name}") as picture:
        wanted = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
    data, _ = first_batch(path=tmp_path / "a.h5", batch_size=2)
    assert data.dtype == np.uint8
    assert np.array_equal(data[0], wanted)
    with pytest.raises(DecodeError, match="colour"):
        convert(tmp_path / "in", tmp_path / "b.h5", encoding=encoding, bits=16)


def test_all_pictures_must_have_16_bits(tmp_path: Path) -> None:
    """With bits 16 a picture of 8 bits, whose scale nothing says, is a DecodeError; ``skip_bad``
    leaves it out and lists it."""
    values = write_depths(tmp_path / "in")
    (tmp_path / "in" / "c0" / "8.png").write_bytes(WRITERS["cv.png"](values[0].astype(np.uint8)))
    for encoding in ("raw", "png", "original"):
        target = tmp_path / f"{encoding}.h5"
        options: dict[str, Any] = {"encoding": encoding, "bits": 16}
        with pytest.raises(DecodeError, match=r"8\.png.*8 bits.*--bits 8"):
            convert(tmp_path / "in", target, **options)
        report = convert(tmp_path / "in", target, skip_bad=True, **options)
        assert [path for path, _ in report.skipped] == ["c0/8.png"]
        assert np.array_equal(served(target)[:, 0], values)


@pytest.mark.parametrize(
    ("size", "resize"), [("8x11", "squeeze"), ("31x17", "squeeze"), ("9", "crop")]
)
def test_resized_16_bits_are_pillows(tmp_path: Path, size: str, resize: Any) -> None:
    """Pixels of 16 bits are resized as Pillow resizes floats, to half a level, and clipped: values
    at both ends of the range do not wrap."""
    values = depths()
    values[0] = np.where(np.arange(WIDTH) % 7 < 3, 65_535, 0)
    put(tmp_path / "in", {f"c/{n}.png": WRITERS["cv.png"](one) for n, one in enumerate(values)})
    convert(tmp_path / "in", tmp_path / "a.h5", bits=16, size=size, resize=resize)
    data = served(tmp_path / "a.h5")[:, 0]
    high, wide = data.shape[1:]
    for one, whole in zip(data, values, strict=True):
        floats = Image.fromarray(whole.astype(np.float32))
        wanted = np.asarray(floats.resize((wide, high), Image.Resampling.BICUBIC))
        assert np.abs(one - np.clip(wanted.astype(np.float64), 0, 65_535)).max() <= 0.51


@pytest.mark.slow
def test_masks_keep_their_numbers(tmp_path: Path) -> None:
    """Masks keep their numbers with any ``bits``: of 8 and 16 bits, grey with alpha, PGM whose
    largest value is neither 255 nor 65535, and colours of 16 bits in PPM."""
    values = write_depths(tmp_path / "in")
    small = (values % 20).astype(np.uint8)
    colours = np.stack([values[0] % 1000] * 3, axis=2)
    files: dict[str, tuple[str, bytes, npt.NDArray[Any]]] = {
        "wide": ("png", b"", values),
        "narrow": ("pgm", b"P5 30 20 20\n", small),
        "thousand": ("pgm", b"P5\n30 20\n4095\n", np.minimum(values, 4095)),
        "colours": ("ppm", b"P6 30 20 999\n", np.stack([colours] * COUNT)),
    }
    for name, (suffix, head, wanted) in files.items():
        order = ">u2" if wanted.itemsize == 2 else "u1"
        bodies = [one.astype(order).tobytes() for one in wanted]
        whole = [head + one for one in bodies] if head else map(WRITERS["alpha.png"], wanted)
        put(tmp_path / name, {place(n, f"cv.{suffix}"): one for n, one in enumerate(whole)})
    fields = {name: tmp_path / name for name in files}
    for bits, encoding in itertools.product((8, 16), ("raw", "png")):
        target = tmp_path / f"{bits}{encoding}.h5"
        convert(tmp_path / "in", target, bits=bits, encoding=encoding, fields=fields)  # type: ignore[arg-type]
        names = ["data", *files]
        data, _ = first_batch(path=target, batch_size=COUNT, data_field=names, layout="NHWC")
        for found, (_, _, wanted) in zip(data[1:], files.values(), strict=True):
            assert found.dtype == wanted.dtype
            assert np.array_equal(found.reshape(wanted.shape), wanted)


# -- from packed sets ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["raw", "png", "original"])
def test_from_one_packed_set_to_another(tmp_path: Path, encoding: str) -> None:
    """A packed set of 16 bits stays one, with its bytes or encoded again; bits 8 drops the lower
    ones and counts; what cannot keep them is refused without it."""
    values = write_depths(tmp_path / "in")
    source = tmp_path / "a.h5"
    convert(tmp_path / "in", source, encoding=encoding, bits=16)
    for number, target in enumerate(TARGETS):
        path = tmp_path / target
        convert(source, path, **_sharded(target), check_decode=True)
        assert np.array_equal(served(path)[:, 0], values)
        convert(path, tmp_path / f"{number}.h5", encoding="png", size=f"{HEIGHT}x{WIDTH}")
        assert np.array_equal(served(tmp_path / f"{number}.h5")[:, 0], values)
        report = convert(path, tmp_path / f"8{number}.lmdb", bits=8)
        assert (report.encoding, report.narrowed) == (encoding, COUNT)
        assert np.array_equal(served(tmp_path / f"8{number}.lmdb"), (values >> 8)[:, None])
        convert(path, tmp_path / f"{number}.lmdb", bits=8, encoding="jpeg", channels=3)
        assert served(tmp_path / f"{number}.lmdb").shape == (COUNT, 3, HEIGHT, WIDTH)
        for wrong in ({"encoding": "jpeg"}, {"channels": 3}):
            with pytest.raises(ParamsError, match="--bits 8"):
                convert(path, tmp_path / "wrong.h5", **wrong)  # type: ignore[arg-type]


def test_original_files_can_get_their_bits_back(tmp_path: Path) -> None:
    """A set of original files that is served with 8 bits holds all 16: bits 16 serves them again;
    without it, pixels made of them have the 8 that the set says."""
    values = write_depths(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "a.h5", encoding="original", bits=8, channels=1)
    convert(tmp_path / "a.h5", tmp_path / "b.h5", bits=16)
    assert np.array_equal(served(tmp_path / "b.h5")[:, 0], values)
    convert(tmp_path / "a.h5", tmp_path / "c.h5", encoding="raw")
    assert np.array_equal(served(tmp_path / "c.h5")[:, 0], values >> 8)
    convert(tmp_path / "in", tmp_path / "d.h5", encoding="raw", bits=8)
    with pytest.raises(DecodeError, match="8 bits"):
        convert(tmp_path / "d.h5", tmp_path / "e.h5", bits=16)


@pytest.mark.parametrize("kind", ["lmdb", "hdf5"])
def test_foreign_sets_of_16_bits(tmp_path: Path, kind: str) -> None:
    """A set of PNGs of 16 bits that others packed is served as uint16, verified and converted so;
    where only some of its pictures have 16 bits, those are DecodeErrors, and bits 8 converts it."""

    def write(path: Path, files: list[bytes]) -> None:
        if kind == "hdf5":
            hdf5(path, images=files)
        else:
            write_lmdb(path, {b"%08d" % number: data for number, data in enumerate(files)})

    values, some = depths(), [0, 1, 2, 4, 5]
    deep, mixed = tmp_path / "deep", tmp_path / "mixed"
    files = [WRITERS["cv.png"](one) for one in values]
    write(deep, files)
    assert np.array_equal(served(deep, labels_field=None)[:, 0], values)
    assert verify_file(str(deep), decode=True).ok
    convert(deep, tmp_path / "ours.h5", encoding="raw")
    assert np.array_equal(served(tmp_path / "ours.h5")[:, 0], values)
    files[3] = WRITERS["cv.png"]((values[0] >> 8).astype(np.uint8))
    write(mixed, files)
    with pytest.raises(DecodeError, match=r"16 bits.*--bits 8"):
        served(mixed, labels_field=None)
    with AsyncReader(mixed, labels_field=None, batch_size=COUNT, on_error="zero") as reader:
        assert np.flatnonzero(next(iter(reader)).mask).tolist() == [3]
    assert verify_file(str(mixed), decode=True).bad == COUNT - 1
    with pytest.raises(ParamsError, match=r"--bits 16.*--bits 8"):
        convert(mixed, tmp_path / "x.h5", encoding="raw")
    report = convert(mixed, tmp_path / "x.h5", encoding="raw", bits=8, channels=1)
    assert report.narrowed == COUNT - 1
    assert np.array_equal(served(tmp_path / "x.h5")[some, 0], values[some] >> 8)


def test_sixteen_bits_are_kept_where_markers_are_asked_for(tmp_path: Path) -> None:
    """``restarts`` is for JPEGs: pictures of 16 bits among the files' own bytes stay as they are,
    packed from files and from another set."""
    values = write_depths(tmp_path / "photos")
    first, second = tmp_path / "first.h5", tmp_path / "second.h5"
    convert(tmp_path / "photos", first, encoding="original", bits=16, restarts=True)
    convert(first, second, restarts=True)
    for made in (first, second):
        np.testing.assert_array_equal(served(made)[:, 0], values)


@pytest.mark.parametrize(
    ("target", "encoding", "size"),
    [
        *((target, "raw", None) for target in TARGETS),
        *((TARGETS[0], encoding, "10x12") for encoding in ("raw", "png")),
        (TARGETS[1], "png", None),
    ],
)
@pytest.mark.parametrize("axes", [(), (1,)], ids=["NHW", "NHW1"])
def test_arrays_of_either_byte_order(
    tmp_path: Path, target: str, encoding: Any, size: str | None, axes: tuple[int, ...]
) -> None:
    """Grey uint16 pictures and masks that others stored as big-endian numbers give what
    little-endian ones give: their values, and with bits 8 the high bytes."""
    values = depths()
    fields, made = {"data_field": ["data", "mask"]}, []
    for order in "<>":
        stored = values.astype(f"{order}u2")
        grey, source = stored.reshape(*values.shape, *axes), tmp_path / f"{order == '>'}.h5"
        hdf5(source, data=grey, labels=np.arange(COUNT), mask=stored[..., None])
        for name, params in (("grey", {"num_dim": 1}), ("masks", fields)):
            path = tmp_path / f"{name} {order == '>'}{target}"
            given = None if name == "grey" else params
            convert(source, path, encoding=encoding, size=size, params=given, **_sharded(target))
            asked = {} if name == "grey" else fields
            made.append(first_batch(path=path, batch_size=COUNT, **asked).data)
        report = convert(source, tmp_path / "8.h5", bits=8, overwrite=True)
        assert report.narrowed == COUNT
        assert np.array_equal(served(tmp_path / "8.h5")[:, 0], values >> 8)
    np.testing.assert_array_equal(made[2], made[0])
    for little, big in zip(made[1], made[3], strict=True):
        np.testing.assert_array_equal(big, little)
    if size is None:
        np.testing.assert_array_equal(made[2][:, 0], values)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("encoding", ["raw", "png", "original"])
def test_sixteen_bits_in_every_container(tmp_path: Path, encoding: str, target: str) -> None:
    """HDF5, LMDB and shards serve 16 bits alike: in threads and in processes; resized, normalised
    and mixed as other uint16; their descriptions say uint16, and ``info`` and ``preview`` work."""
    values = write_depths(tmp_path / "in")
    path = tmp_path / target
    convert(tmp_path / "in", path, encoding=encoding, bits=16, **_sharded(target))
    assert np.array_equal(served(path)[:, 0], values)
    if (encoding == "original") == (target == "shards"):
        assert np.array_equal(served(path, workers="process")[:, 0], values)
    cast = served(path, dtype="float32", scale=0.5, mean=1.0)
    assert np.array_equal(cast[:, 0], values.astype(np.float32) * np.float32(0.5) - 1)
    small = served(path, size=(8, 11), crop="none")
    for one, whole in zip(small[:, 0], values, strict=True):
        wanted = Image.fromarray(whole.astype(np.float32)).resize(
            (11, 8), Image.Resampling.BILINEAR
        )
        assert np.abs(one - np.asarray(wanted, np.float64)).max() <= 0.51
    with pytest.raises(ParamsError, match="uint8"):
        served(path, dtype="uint8")
    assert verify_file(str(path), decode=True).ok
    facts = json.loads(run("info", "--json", path).stdout)
    assert (facts["dtype"], facts["encoding"]) == ("uint16", encoding)
    assert facts["shape"] == [HEIGHT, WIDTH, 1]
    assert not preview({"path": str(path)}).bad
