"""The converter's pixels: every kind of picture right, every bad one named, resizing as PIL's."""

import io
import itertools
import os
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from converter_corpus import (
    BAD,
    GOOD,
    by_pillow,
    image,
    put,
    saved,
    turned_by_words,
    write_good,
)
from PIL import Image, ImageOps

import asyncreader
from asyncreader.errors import DecodeError, FormatError
from converters import convert
from converters.encode import Recipe


def near(found: Any, wanted: Any) -> bool:
    """Whether pixels are Pillow's to one level of 255 (of 200 values one may be 2 off), and to 0.2
    on average (0.25 where a picture is so small that few rows are mixed of many)."""
    apart = np.abs(np.asarray(found).astype(int) - np.asarray(wanted))
    most = 0.25 if apart.size < 1000 else 0.2
    return bool(apart.max() <= 2 and (apart > 1).mean() <= 0.005 and apart.mean() < most)


def no_hold(size: int) -> None:
    """Bytes are free here."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[bytes, bytes]]:
    folder = tmp_path_factory.mktemp("corpus") / "pictures"
    return folder, write_good(folder / "all")


def samples_of(target: Path) -> dict[bytes, bytes]:
    """Path -> stored bytes, by the container's own library."""
    if target.is_dir():
        with lmdb.open(str(target), readonly=True, lock=False, max_dbs=8) as env:
            with env.begin(db=env.open_db(b"data", create=False)) as data:
                values = [bytes(value) for _, value in data.cursor()]
            with env.begin(db=env.open_db(b"paths", create=False)) as paths:
                names = [bytes(value) for _, value in paths.cursor()]
    else:
        with h5py.File(target) as file:
            names = [bytes(name) for name in file["paths"][:]]
            if "offsets" in file:
                ends, blob = file["offsets"][:], file["data"][:]
                values = [blob[a:b].tobytes() for a, b in itertools.pairwise(ends)]
            else:
                values = [row.tobytes() for row in file["data"]]
    return dict(zip(names, values, strict=True))


#: Options of convert, by what the pictures are stored as.
FORMS: dict[str, dict[str, Any]] = {
    "png": {"encoding": "png", "jobs": 3},
    "grey png": {"encoding": "png", "channels": 1},
    "raw": {"size": "30x42"},
    "jpeg": {"encoding": "jpeg", "quality": 95},
    "original": {"encoding": "original"},
    "checked": {"encoding": "original", "check_decode": True},
}


def right(form: str, data: bytes, file: bytes) -> bool:
    """Whether a sample is what its file gives: the same bytes or pixels, or nearly so."""
    wanted = by_pillow(file, 1 if form == "grey png" else 3)
    if form == "raw":
        fit = ImageOps.fit(Image.fromarray(wanted), (42, 30), Image.Resampling.BICUBIC)
        return near(np.frombuffer(data, np.uint8).reshape(30, 42, 3), fit)
    if form in ("original", "checked"):
        return data == file
    found = by_pillow(data, wanted.shape[2])
    if form == "jpeg":  # no further off than Pillow's JPEG of the same quality
        usual = by_pillow(saved(Image.fromarray(wanted), "JPEG", quality=95, subsampling=2))
        loss, its = (np.abs(one - wanted.astype(int)).mean() for one in (found, usual))
        return found.shape == wanted.shape and bool(loss < its + 0.5)
    return np.array_equal(found, wanted)


@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
@pytest.mark.parametrize(
    "form",
    [pytest.param(f, marks=[pytest.mark.slow] * (("png" in f) or f == "jpeg")) for f in FORMS],
)
def test_every_kind_of_picture(
    corpus: tuple[Path, dict[bytes, bytes]], tmp_path: Path, suffix: str, form: str
) -> None:
    """Grey, CMYK, 16-bit, palette, alpha, animated, EXIF-turned, oddly named: PNGs have the exact
    pixels that Pillow decodes, raw pixels those of its ImageOps.fit to a level, JPEGs nearly the
    same, and "original" has the very files."""
    folder, contents = corpus

    target = tmp_path / f"set.{suffix}"
    report = convert(folder, target, bits=8, **FORMS[form])
    stored = samples_of(target)
    assert report.count == len(stored) == len(GOOD)
    assert list(stored) == [b"all/" + name for name in sorted(contents)]
    for name, file in contents.items():
        if form == "raw" and name == b"large.jpg":
            continue  # decoded smaller first: test_reduced_jpegs_are_where_they_belong
        data = stored[b"all/" + name]
        assert right(form, data, file), name
        if "png" in form:
            with Image.open(io.BytesIO(data)) as picture:
                assert picture.mode == ("RGB" if form == "png" else "L")


@pytest.mark.parametrize("encoding", ["original", "raw", "png"])
def test_orientation_outside_exif_is_followed(tmp_path: Path, encoding: str) -> None:
    """Pictures that XMP or ImageMagick's fields turn are served upright, also from their own files:
    there it is the reader that turns them."""
    contents = {name: make() for name, make in turned_by_words().items()}
    folder = put(tmp_path / "in", contents)
    convert(folder, tmp_path / "set.h5", encoding=encoding, no_labels=True)
    with asyncreader.open(tmp_path / "set.h5", layout="NHWC") as found:
        for (name, data), pixels in zip(sorted(contents.items()), found, strict=True):
            wanted = by_pillow(data)
            assert pixels.shape == wanted.shape == (56, 40, 3)
            assert np.abs(pixels.astype(int) - wanted).max() <= (3 if name.endswith(b"jpg") else 0)


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["raw", "png", "original"])
@pytest.mark.parametrize("name", BAD, ids=lambda name: name.decode())
def test_a_damaged_picture_is_named(tmp_path: Path, name: bytes, encoding: str) -> None:
    """A damaged file stops the run with its path in a DecodeError, and nothing is left."""
    folder = put(tmp_path / "in" / "c", {"a.png": saved(image(), "PNG"), name: BAD[name]()})
    with pytest.raises(DecodeError) as caught:
        convert(tmp_path / "in", tmp_path / "out.h5", encoding=encoding, check_decode=True)
    assert caught.value.source_path == str(folder / os.fsdecode(name))
    assert os.fsdecode(name) in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("encoding", ["raw", "original"])
@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
def test_damaged_pictures_are_skipped_and_reported(
    tmp_path: Path, suffix: str, encoding: Any
) -> None:
    """With skip_bad all damaged files are listed, all others packed, and none is lost count of."""
    folder, target = tmp_path / "in" / "c", tmp_path / f"out.{suffix}"
    write_good(put(folder, {name: make() for name, make in BAD.items()}))
    given: Any = {"size": (24, 24) if encoding == "raw" else None, "bits": 8, "check_decode": True}
    report = convert(tmp_path / "in", target, encoding=encoding, skip_bad=True, **given)
    assert [path for path, _ in report.skipped] == [f"c/{os.fsdecode(n)}" for n in sorted(BAD)]
    assert all(reason for _, reason in report.skipped)
    assert report.count == len(GOOD)
    assert list(samples_of(target)) == [b"c/" + name for name in sorted(GOOD)]


@pytest.mark.parametrize("name", ["cut50.jpg", "cut5.jpg", "crc.png", "no_end.png", "cut.gif"])
def test_original_finds_damage_without_decoding(tmp_path: Path, name: str) -> None:
    """Encoding "original" checks markers, CRCs and lengths although it decodes nothing."""
    put(tmp_path / "c", {name: BAD[name.encode()]()})
    with pytest.raises(DecodeError, match=name):
        convert(tmp_path, tmp_path / "out.h5", encoding="original")


@pytest.mark.parametrize("more", [{}, {"shards": 2}])
def test_raw_needs_one_shape(tmp_path: Path, more: dict[str, Any]) -> None:
    """The first picture of another shape is named, and --size advised; of one length, which leaves
    pictures of two shapes, the error says that 4x4 makes one shape of them."""
    sides = {"a.png": (8, 16), "b.png": (8, 16), "c.png": (16, 8)}
    put(tmp_path / "in" / "c", {n: saved(image(*shape), "PNG") for n, shape in sides.items()})
    given: Any = {"format": "hdf5", **more}
    with pytest.raises(FormatError, match=r"16 x 8.*8 x 16.*--size HxW") as caught:
        convert(tmp_path / "in", tmp_path / "out", **given)
    assert caught.value.source_path == str(tmp_path / "in" / "c" / "c.png")
    with pytest.raises(FormatError, match=r"shorter side.*'4x4' \(--size 4x4\)"):
        convert(tmp_path / "in", tmp_path / "four", size=4, **given)


# -- resizing ------------------------------------------------------------------------------------


SHAPES = [(40, 56), (56, 40), (41, 41), (100, 30), (7, 200), (1, 1), (24, 32), (72, 96)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", [(24, 32), (33, 20), (5, 64)], ids=str)
def test_resizing_is_pils(shape: tuple[int, int], target: tuple[int, int]) -> None:
    """crop, pad and squeeze give the pixels of ImageOps.fit, ImageOps.pad and Image.resize, to one
    level."""
    picture = image(*shape)
    wide_high = target[::-1]
    bicubic = Image.Resampling.BICUBIC
    for resize, wanted in (
        ("crop", ImageOps.fit(picture, wide_high, bicubic)),
        ("pad", ImageOps.pad(picture, wide_high, bicubic)),
        ("squeeze", picture.resize(wide_high, bicubic)),
    ):
        recipe = Recipe("raw", 3, target, resize)
        found = recipe.from_file(saved(picture, "PNG"), no_hold)
        assert found.shape == (*target, 3)
        if resize == "pad" and min(wanted.size) == 0:
            continue
        pixels = np.frombuffer(found.data, np.uint8).reshape(found.shape)
        assert near(pixels, wanted), resize


@pytest.mark.parametrize("turned", range(1, 9))
@pytest.mark.parametrize("resize", ["crop", "pad", "squeeze"])
def test_reduced_jpegs_are_where_they_belong(resize: str, turned: int) -> None:
    """A JPEG that is decoded smaller, of sides that the reduction does not divide, is not moved: a
    spot lies to 1/50 of a pixel where it lies with the full picture."""
    exif = Image.Exif()
    exif[0x0112] = turned
    y, x = np.mgrid[0:1003, 0:1205]
    spot = 255 * np.exp(-((y - 890) ** 2 + (x - 990) ** 2) / 3200)
    data = saved(Image.fromarray(np.rint(spot).astype(np.uint8)), "JPEG", quality=95, exif=exif)
    full = Image.fromarray(by_pillow(data))
    bicubic = Image.Resampling.BICUBIC
    judges = {"crop": ImageOps.fit, "pad": ImageOps.pad, "squeeze": Image.Image.resize}
    judge = judges[resize](full, (40, 38), bicubic)
    found = Recipe("raw", 3, (38, 40), resize).from_file(data, no_hold)
    pixels = np.frombuffer(found.data, np.uint8).reshape(found.shape or ())

    def centre(picture: object) -> list[float]:
        bright = np.clip(np.asarray(picture)[:, :, 0].astype(float) - 20, 0, None)
        return [float((bright * at).sum() / bright.sum()) for at in np.mgrid[0:38, 0:40]]

    np.testing.assert_allclose(centre(pixels), centre(judge), atol=0.02)


@pytest.mark.parametrize("shape", [(40, 56), (56, 40), (30, 30), (200, 7)], ids=str)
def test_shorter_side(shape: tuple[int, int], tmp_path: Path) -> None:
    """One number is the length of the shorter side; the other side keeps the shape."""
    put(tmp_path / "c", {"a.png": saved(image(*shape), "PNG")})
    convert(tmp_path, tmp_path / "out.h5", encoding="png", size=28)
    (data,) = samples_of(tmp_path / "out.h5").values()
    scale = 28 / min(shape)
    assert by_pillow(data).shape[:2] == tuple(round(side * scale) for side in shape)


def test_shorter_side_cannot_blow_up(tmp_path: Path) -> None:
    """A sliver whose long side would become millions of pixels is a bad picture, not a crash."""
    put(tmp_path / "c", {"a.png": saved(image(2, 40_000), "PNG")})
    with pytest.raises(DecodeError, match="too large"):
        convert(tmp_path, tmp_path / "out.h5", encoding="png", size=2000)
    with pytest.raises(DecodeError, match="too long for a JPEG"):
        convert(tmp_path, tmp_path / "out.h5", encoding="jpeg", size=4)


def test_the_suffix_says_the_format(tmp_path: Path) -> None:
    """.h5, .hdf5 and .lmdb are known in any case, others need format."""
    put(tmp_path / "in" / "c", {"a.png": saved(image(), "PNG")})

    for name, asked, kind in (
        ("a.H5", None, "hdf5"),
        ("a.hdf5", None, "hdf5"),
        ("a.lmdb/", None, "lmdb"),
        ("b.dat", "lmdb", "lmdb"),
        ("c.lmdb", "hdf5", "hdf5"),
    ):
        assert convert(tmp_path / "in", f"{tmp_path}/{name}", format=asked).format == kind
