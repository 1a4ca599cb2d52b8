"""From one container to the other: the same bytes, or processed as the folder would be."""

import json
import os
import pickle
from pathlib import Path

import foreign_sets
import h5py
import numpy as np
import pytest
from command_sets import save_images
from converter_corpus import hash_of, names_in
from fakes import damage, hdf5, pictures
from project import ROOT

import asyncreader
from asyncreader.errors import ChecksumError, FormatError
from asyncreader.tools.verify import verify_file
from converters import convert

SUFFIXES = ["h5", "lmdb"]


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "png", "yuv420", "original"])
def test_there_and_back(folder: Path, tmp_path: Path, encoding: str) -> None:
    """HDF5 -> LMDB -> HDF5 changes nothing, of fields neither: the last file has the bytes of the
    first."""
    masks = {os.fsdecode(n): np.full((20, 30), k, "u1") for k, n in enumerate(names_in(folder))}
    save_images(tmp_path / "masks", masks)
    fields = {"mask": tmp_path / "masks"}
    convert(folder, tmp_path / "a.h5", encoding=encoding, size=None, fields=fields)
    report = convert(tmp_path / "a.h5", tmp_path / "b.lmdb")
    assert (report.encoding, report.count) == (encoding, 23)
    convert(tmp_path / "b.lmdb", tmp_path / "c.h5", jobs=3)
    convert(tmp_path / "c.h5", tmp_path / "d.lmdb")
    assert hash_of(tmp_path / "a.h5") == hash_of(tmp_path / "c.h5")
    assert hash_of(tmp_path / "b.lmdb") == hash_of(tmp_path / "d.lmdb")
    with (
        asyncreader.open(tmp_path / "a.h5", data_field="mask") as one,
        asyncreader.open(tmp_path / "b.lmdb", data_field="mask") as other,
    ):
        np.testing.assert_array_equal(one[:][0], other[:][0])


@pytest.mark.slow
def test_a_packed_set_is_processed_when_asked(folder: Path, tmp_path: Path) -> None:
    """Encoding, size and channels of a packed set can be changed, with the folder's result."""
    sets = [tmp_path / f"{e}.{suffix}" for suffix in SUFFIXES for e in ("raw", "png", "original")]
    for packed in sets:
        convert(folder, packed, encoding=packed.stem)  # type: ignore[arg-type]
    for options in (
        {"encoding": "raw"},
        {"encoding": "png", "size": 9},
        {"encoding": "jpeg", "size": "12x12", "resize": "pad"},
        {"encoding": "yuv420", "size": "12x11", "resize": "pad"},
        {"encoding": "raw", "channels": 1},
        {"encoding": "raw", "compression": "gzip", "chunk": 3},
    ):
        direct, by_way = tmp_path / "direct.h5", tmp_path / "way.h5"
        convert(folder, direct, overwrite=True, **options)  # type: ignore[arg-type]
        for packed in sets:
            convert(packed, by_way, overwrite=True, **options)  # type: ignore[arg-type]
            assert hash_of(direct) == hash_of(by_way), (packed, options)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_packed_set_can_replace_itself(folder: Path, tmp_path: Path, suffix: str) -> None:
    """Source and target may be the same file: it is read to its end before it is replaced."""
    target = tmp_path / f"a.{suffix}"
    convert(folder, target, encoding="png")
    convert(target, target, encoding="raw", overwrite=True)
    assert verify_file(str(target)).ok


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_sample_of_a_packed_set(
    folder: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped byte in a packed source is a ChecksumError, or skipped and listed by its path; the
    others keep their paths and labels."""
    packed = tmp_path / f"a.{suffix}"
    convert(folder, packed, encoding="original")
    victim = names_in(folder)[4]
    with open(os.path.join(os.fsencode(folder), victim), "rb") as picture:
        contents = picture.read()
    damage(str(packed), contents)
    with pytest.raises(ChecksumError, match="record 4") as caught:
        convert(packed, tmp_path / "b.h5")
    assert "--skip-bad" in str(caught.value)
    assert "on_error" not in str(caught.value)
    monkeypatch.setattr("converters.temp_tables.ROWS", 3)
    report = convert(packed, tmp_path / "b.h5", skip_bad=True)
    assert report.count == 22
    assert [path for path, _ in report.skipped] == [os.fsdecode(victim)]
    with asyncreader.open(packed) as given, asyncreader.open(tmp_path / "b.h5") as kept:
        good = [n for n in range(23) if n != 4]
        assert kept.paths == [given.paths[n] for n in good]
        assert np.array_equal(kept.labels, given.labels[good])


def test_a_foreign_hdf5_is_packed(tmp_path: Path) -> None:
    """Pixels and labels of someone else's file become a set of ours; axes and types are mended."""
    pixels = np.random.default_rng(3).integers(0, 256, (7, 10, 12, 3), np.uint8)
    foreign = hdf5(tmp_path / "foreign.h5", data=pixels, labels=np.arange(7, dtype=np.uint8))
    convert(foreign, tmp_path / "ours.h5")
    with h5py.File(tmp_path / "ours.h5") as file:
        assert np.array_equal(file["data"][:], pixels)
        assert file["labels"][:].tolist() == [[n] for n in range(7)]
        assert set(file) == {"data", "labels", "checksums"}
        assert json.loads(file.attrs["description"])["label_kind"] == "values"
    assert verify_file(str(tmp_path / "ours.h5")).ok
    floats = hdf5(tmp_path / "floats.h5", data=pixels.astype(np.float32))
    convert(floats, tmp_path / "x.h5")  # numbers are copied as they are
    with h5py.File(tmp_path / "x.h5") as file:
        assert np.array_equal(file["data"][:], pixels.astype(np.float32))
    with pytest.raises(FormatError, match="8-bit"):
        convert(floats, tmp_path / "y.h5", size=8)


def test_pickles_are_packed_by_the_lines_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines in docs/layouts.md convert a set of pickles, as tensorpack writes it."""
    images = pictures(12, (9, 11, 3))
    points = [(data, i) for i, data in enumerate(foreign_sets.files(images))]
    entries = foreign_sets.tensorpack(points, dumps=pickle.dumps)
    foreign_sets.write_lmdb(tmp_path / "old.lmdb", entries, subdir=False)
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")]
    (*_, lines) = [block for block in blocks if "pickle.loads" in block]
    monkeypatch.chdir(tmp_path)
    exec(compile(lines, "docs/layouts.md", "exec"), {})
    with asyncreader.open(tmp_path / "new.h5", layout="NHWC") as ds:
        np.testing.assert_array_equal(ds[:][0], images)
        assert ds[:][1].ravel().tolist() == list(range(12))


def test_sparse_and_structured_rows_are_converted_from_an_open_set(tmp_path: Path) -> None:
    """convert() of the file refuses both, and says what writes them: what a reader of it serves."""
    dense = np.diag(np.arange(1, 6, dtype=np.float32))
    rows = np.array([(1, 2.5), (3, 4.5)], np.dtype([("n", "i4"), ("x", "f4")]))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("X")
        group.attrs["shape"] = dense.shape
        group["data"], group["indices"], group["indptr"] = dense.diagonal(), np.arange(5), range(6)
        file["rows"] = rows
    for field, more, expected in (
        ("X", {}, dense),
        ("rows", {"members": ["n", "x"]}, np.array([(1, 2.5), (3, 4.5)])),
    ):
        with pytest.raises(FormatError, match=r"cannot be converted.*asyncreader\.open"):
            convert(tmp_path / "a.h5", tmp_path / f"{field}.h5", params={"data_field": field})
        with asyncreader.open(tmp_path / "a.h5", data_field=field, **more) as ds:
            convert(ds, tmp_path / f"{field}.h5")
        with asyncreader.open(tmp_path / f"{field}.h5") as ds:
            assert np.array_equal(ds[:], expected)


@pytest.mark.parametrize("target", ["b.h5", "b.lmdb", "b"])
def test_channels_of_original_files_can_be_changed(
    folder: Path, tmp_path: Path, target: str
) -> None:
    """Encoding "original" with other channels keeps the files' bytes, and the set serves them grey,
    as the set that was packed so from the folder; from shards too."""
    sharded = {"shards": 2} if target == "b" else {}
    convert(folder, tmp_path / "a.h5", encoding="original")
    convert(folder, tmp_path / f"direct{target}", encoding="original", channels=1, **sharded)
    convert(tmp_path / "a.h5", tmp_path / target, channels=1, **sharded)
    assert verify_file(str(tmp_path / target), decode=True).ok
    with (
        asyncreader.open(tmp_path / target) as one,
        asyncreader.open(tmp_path / f"direct{target}") as other,
    ):
        assert one[:][0].shape == (23, 1, 20, 30)
        for found, wanted in zip(one[:], other[:], strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_quality_of_packed_jpegs_can_be_changed(folder: Path, tmp_path: Path) -> None:
    """A quality for a set of JPEGs encodes them again, also where it is the usual one; without it
    their bytes are copied."""
    convert(folder, tmp_path / "a.h5", encoding="jpeg", quality=95)
    convert(tmp_path / "a.h5", tmp_path / "same.h5")
    assert hash_of(tmp_path / "same.h5") == hash_of(tmp_path / "a.h5")
    for quality in (90, 40):
        convert(tmp_path / "a.h5", tmp_path / "less.h5", quality=quality, overwrite=True)
        asked = tmp_path / "asked.h5"
        convert(tmp_path / "a.h5", asked, encoding="jpeg", quality=quality, overwrite=True)
        assert hash_of(tmp_path / "less.h5") == hash_of(asked) != hash_of(tmp_path / "a.h5")
