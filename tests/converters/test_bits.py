"""Grey pictures of 16 bits: kept, or brought to 8 bits, as asked, and never without a word."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import imagecodecs
import lmdb
import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from PIL import Image

from asyncreader import AsyncReader, DecodeError, ParamsError
from asyncreader.cli.main import cli
from asyncreader.formats.packed import record_key
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
    for number, one in enumerate(values):
        path = folder / f"c{number * 2 // COUNT}" / f"{number}{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(WRITERS[name](one))
    return values


def served(path: Path, **params: Any) -> npt.NDArray[Any]:
    """All samples of a set in order, as a reader serves them."""
    with AsyncReader(path=path, batch_size=COUNT, **params) as reader:
        return np.array(next(iter(reader)).data)


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
    assert verify_file(str(tmp_path / "a.h5"), decode=True).ok


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
    told = CliRunner().invoke(cli, ["info", "--json", str(path)])
    facts = json.loads(told.stdout)
    assert (facts["dtype"], facts["encoding"]) == ("uint16", encoding)
    assert facts["shape"] == [HEIGHT, WIDTH, 1]
    assert not preview({"path": str(path)}).bad


def test_raw_sets_are_uint16_for_plain_readers(tmp_path: Path) -> None:
    """Without asyncreader: h5py finds (N, H, W, 1) uint16, contiguous or compressed, large or
    small, and lmdb little-endian values."""
    values = write_depths(tmp_path / "in")
    for number, options in enumerate(({}, {"compression": "gzip", "chunk": 4})):
        target = tmp_path / f"{number}.h5"
        convert(tmp_path / "in", target, bits=16, **options)  # type: ignore[arg-type]
        with h5py.File(target) as file:
            assert file["data"].dtype == "<u2"
            assert np.array_equal(file["data"][..., 0], values)
            assert json.loads(file.attrs["description"])["dtype"] == "uint16"
        assert np.array_equal(served(target)[:, 0], values)
    convert(tmp_path / "in", tmp_path / "a.lmdb", bits=16)
    with lmdb.open(str(tmp_path / "a.lmdb"), max_dbs=9, readonly=True, lock=False) as env:
        data = env.open_db(b"data", create=False)
        with env.begin() as transaction:
            found = transaction.get(record_key(3), db=data)
    assert np.array_equal(np.frombuffer(found, "<u2").reshape(HEIGHT, WIDTH), values[3])


@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg", "original"])
def test_without_a_choice_it_is_an_error(tmp_path: Path, encoding: str) -> None:
    """A grey picture of 16 bits without ``bits`` is a ParamsError that names the file and both
    options, with ``skip_bad``, too; nothing is written."""
    write_depths(tmp_path / "in")
    for target, skip_bad in itertools.product(TARGETS, (False, True)):
        options = {"encoding": encoding, "skip_bad": skip_bad, **_sharded(target)}
        with pytest.raises(ParamsError, match=r"0cv\.png.*--bits 16.*--bits 8"):
            convert(tmp_path / "in", tmp_path / target, **options)
    words = ["convert", str(tmp_path / "in"), str(tmp_path / "x.h5"), "--encoding", encoding]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 2
    assert "--bits 16" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg", "original"])
def test_eight_bits_are_counted(tmp_path: Path, encoding: str) -> None:
    """With bits 8 the lower 8 bits are dropped, and the report and the command count the pictures;
    the set says uint8, and a reader serves the high bytes."""
    values = write_depths(tmp_path / "in")
    (tmp_path / "in" / "c0" / "a.png").write_bytes(WRITERS["cv.png"](values[0].astype(np.uint8)))
    told = CliRunner().invoke(
        cli,
        [
            *("convert", str(tmp_path / "in"), str(tmp_path / "a.h5"), "--bits", "8"),
            *("--encoding", encoding, "--channels", "1"),
        ],
    )
    assert told.exit_code == 0, told.stderr
    assert f"16 bits became 8: in {COUNT} of {COUNT + 1} samples" in told.stdout
    data = served(tmp_path / "a.h5", subset=np.array([0, 1, 2, 4, 5, 6]))  # "a" sorts behind digits
    assert data.dtype == np.uint8
    if encoding != "jpeg":
        assert np.array_equal(data[:, 0], values >> 8)
    assert verify_file(str(tmp_path / "a.h5"), decode=True).ok
    assert not preview({"path": str(tmp_path / "a.h5")}).bad


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
    (tmp_path / "in" / "c").mkdir(parents=True)
    file = tmp_path / "in" / "c" / f"0.{name}"
    file.write_bytes(_colour(values, name))
    (tmp_path / "in" / "c" / "1.png").write_bytes(_colour((values >> 8).astype(np.uint8), "png"))
    report = convert(tmp_path / "in", tmp_path / "a.h5", encoding=encoding)
    assert (report.count, report.narrowed) == (2, 1)
    with Image.open(file) as picture:
        wanted = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
    with AsyncReader(path=tmp_path / "a.h5", batch_size=2) as reader:
        data, _ = next(iter(reader))
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
    (tmp_path / "in" / "c").mkdir(parents=True)
    for number, one in enumerate(values):
        (tmp_path / "in" / "c" / f"{number}.png").write_bytes(WRITERS["cv.png"](one))
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
    files = {
        "wide": (WRITERS["alpha.png"], "png", values),
        "narrow": (lambda one: b"P5 30 20 20\n" + one.tobytes(), "pgm", small),
        "thousand": (
            lambda one: b"P5\n30 20\n4095\n" + np.minimum(one, 4095).astype(">u2").tobytes(),
            "pgm",
            np.minimum(values, 4095),
        ),
        "colours": (
            lambda one: b"P6 30 20 999\n" + colours.astype(">u2").tobytes(),
            "ppm",
            np.stack([colours] * COUNT),
        ),
    }
    for name, (write, suffix, wanted) in files.items():
        for number in range(COUNT):
            path = tmp_path / name / f"c{number * 2 // COUNT}" / f"{number}cv.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(write(wanted[number]))  # type: ignore[operator]
    fields = {name: tmp_path / name for name in files}
    for bits, encoding in itertools.product((8, 16), ("raw", "png")):
        target = tmp_path / f"{bits}{encoding}.h5"
        convert(tmp_path / "in", target, bits=bits, encoding=encoding, fields=fields)  # type: ignore[arg-type]
        names = ["data", *files]
        with AsyncReader(path=target, batch_size=COUNT, data_field=names, layout="NHWC") as reader:
            data, _ = next(iter(reader))
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


def _foreign_lmdb(path: Path, pictures: list[bytes]) -> None:
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as transaction:
        for number, data in enumerate(pictures):
            transaction.put(b"%08d" % number, data)


def _foreign_hdf5(path: Path, pictures: list[bytes]) -> None:
    with h5py.File(path, "w") as file:
        kind = h5py.vlen_dtype(np.uint8)
        images = file.create_dataset("images", (len(pictures),), kind)
        for number, data in enumerate(pictures):
            images[number] = np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("write", [_foreign_lmdb, _foreign_hdf5])
def test_foreign_sets_of_16_bits(
    tmp_path: Path, write: Callable[[Path, list[bytes]], None]
) -> None:
    """A set of PNGs of 16 bits that others packed is served as uint16, verified and converted so;
    where only some of its pictures have 16 bits, those are DecodeErrors, and bits 8 converts it."""
    values = depths()
    deep = [WRITERS["cv.png"](one) for one in values]
    write(tmp_path / "deep", deep)
    assert np.array_equal(served(tmp_path / "deep", labels_field=None)[:, 0], values)
    assert verify_file(str(tmp_path / "deep"), decode=True).ok
    convert(tmp_path / "deep", tmp_path / "ours.h5", encoding="raw")
    assert np.array_equal(served(tmp_path / "ours.h5")[:, 0], values)
    plain = WRITERS["cv.png"]((values[0] >> 8).astype(np.uint8))
    write(tmp_path / "mixed", [*deep[:3], plain, *deep[4:]])
    with pytest.raises(DecodeError, match=r"16 bits.*--bits 8"):
        served(tmp_path / "mixed", labels_field=None)
    skipping = AsyncReader(
        path=tmp_path / "mixed", labels_field=None, batch_size=COUNT, on_error="zero"
    )
    with skipping as reader:
        batch = next(iter(reader))
        assert batch.mask.tolist() == [False] * 3 + [True] + [False] * 2
    assert verify_file(str(tmp_path / "mixed"), decode=True).bad == COUNT - 1
    with pytest.raises(ParamsError, match=r"--bits 16.*--bits 8"):
        convert(tmp_path / "mixed", tmp_path / "x.h5", encoding="raw")
    report = convert(tmp_path / "mixed", tmp_path / "x.h5", encoding="raw", bits=8, channels=1)
    assert report.narrowed == COUNT - 1
    assert np.array_equal(
        served(tmp_path / "x.h5")[[0, 1, 2, 4, 5], 0], values[[0, 1, 2, 4, 5]] >> 8
    )


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
@pytest.mark.parametrize("axes", [(), (1,)], ids=["NHW", "NHW1"])
def test_foreign_arrays_of_16_bits(tmp_path: Path, dtype: str, axes: tuple[int, ...]) -> None:
    """An array of grey uint16 pictures that others stored, of either byte order, is packed with its
    values, and with bits 8 with the high bytes."""
    values = depths()
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["data"] = values.reshape(*values.shape, *axes).astype(dtype)
    for target in TARGETS:
        convert(tmp_path / "foreign.h5", tmp_path / target, **_sharded(target))
        assert np.array_equal(served(tmp_path / target)[:, 0], values)
    report = convert(tmp_path / "foreign.h5", tmp_path / "8.h5", bits=8)
    assert report.narrowed == COUNT
    assert np.array_equal(served(tmp_path / "8.h5")[:, 0], values >> 8)


def test_a_run_with_other_bits_is_not_resumed(tmp_path: Path) -> None:
    """--resume refuses a run that was begun with other ``bits``, and goes on with the same ones."""
    values = write_depths(tmp_path / "in")
    options: dict[str, Any] = {"shards": 3, "bits": 16}

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "in", tmp_path / "set", progress=stop, **options)
    with pytest.raises(OSError, match="other sources or options"):
        convert(tmp_path / "in", tmp_path / "set", shards=3, bits=8, resume=True)
    assert convert(tmp_path / "in", tmp_path / "set", resume=True, **options).kept == 1
    assert np.array_equal(served(tmp_path / "set")[:, 0], values)


@pytest.mark.parametrize("target", TARGETS)
def test_sixteen_bits_are_kept_where_markers_are_asked_for(tmp_path: Path, target: str) -> None:
    """``restarts`` is for JPEGs: pictures of 16 bits among the files' own bytes stay as they are,
    packed from files and from another set."""
    values = write_depths(tmp_path / "photos")
    options = _sharded(target)
    first = tmp_path / f"first{target}"
    convert(tmp_path / "photos", first, encoding="original", bits=16, restarts=True, **options)
    second = tmp_path / f"second{target}"
    convert(first, second, restarts=True, **options)
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
def test_big_endian_numbers_are_packed(
    tmp_path: Path, target: str, encoding: Any, size: str | None
) -> None:
    """Pictures and masks of big-endian numbers give what little-endian ones give."""
    values = depths()
    made = []
    for order in "<>":
        source = tmp_path / f"{order == '>'}.h5"
        with h5py.File(source, "w") as file:
            file["data"], file["labels"] = values.astype(f"{order}u2"), np.arange(COUNT)
            file["mask"] = values[..., None].astype(f"{order}u2")
        for name, params in (
            ("grey", {"num_dim": 1}),
            ("masks", {"data_field": ["data", "mask"]}),
        ):
            path = tmp_path / f"{name} {order == '>'}{target}"
            given = None if name == "grey" else params
            convert(source, path, encoding=encoding, size=size, params=given, **_sharded(target))
            fields = {} if name == "grey" else params
            with AsyncReader(path=path, batch_size=COUNT, **fields) as reader:
                made.append(next(iter(reader)).data)
    np.testing.assert_array_equal(made[2], made[0])
    for little, big in zip(made[1], made[3], strict=True):
        np.testing.assert_array_equal(big, little)
    if size is None:
        np.testing.assert_array_equal(made[2][:, 0], values)
