"""The converter's files: readable by anyone without asyncreader, and the same every time."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import xxhash
from converter_corpus import (
    by_pillow,
    hash_of,
    image,
    listed,
    names_in,
    saved,
)

import converters.outputs.disk
import converters.outputs.one_file
import converters.outputs.sinks
from asyncreader.errors import FormatError
from asyncreader.tools.verify import verify_file
from converters import convert
from converters.outputs.tables import Tables

SUFFIXES = ["h5", "lmdb"]
GZIP = [{}, {"compression": "gzip"}, {"compression": "gzip", "chunk": 4}]


# -- what is in the file, without asyncreader ----------------------------------------------------


@pytest.mark.parametrize("options", GZIP)
def test_raw_hdf5_by_plain_h5py(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """/data is (N,H,W,C) uint8, beside it labels (N,1), paths, classes, checksums, attributes."""
    target = tmp_path / "out.h5"
    report = convert(folder, target, **options)
    names = names_in(folder)
    with h5py.File(target) as file:
        assert set(file) == {"data", "labels", "paths", "classes", "checksums"}
        data = file["data"]
        assert (data.shape, data.dtype) == ((23, 20, 30, 3), np.uint8)
        assert data.chunks == ((options.get("chunk", 1), 20, 30, 3) if options else None)
        assert data.compression == options.get("compression")
        for row, name in zip(data, names, strict=True):
            path = os.path.join(os.fsencode(folder), name)
            with open(path, "rb") as picture:
                assert np.array_equal(row, by_pillow(picture.read()))
        assert [bytes(name) for name in file["paths"][:]] == names
        assert file["paths"].dtype.kind == "S"
        assert file["paths"].compression == "gzip"
        labels = file["labels"]
        assert (labels.shape, labels.dtype, labels.chunks) == ((23, 1), np.int64, None)
        assert [int(n) for n in labels[:, 0]] == [int(name[6:7]) for name in names]
        labels_digest = xxhash.xxh3_64_hexdigest(labels[:].astype("<i8"))
        assert [bytes(n) for n in file["classes"][:]] == [b"class 0", b"class 1", b"class 2"]
        sums = [xxhash.xxh3_64_intdigest(row.tobytes()) for row in data]
        assert file["checksums"].dtype == np.uint64
        assert file["checksums"][:].tolist() == sums
        said = dict(file.attrs)
        facts = json.loads(said.pop("description"))
    assert said == {
        "format": b"asyncreader",
        "version": 1,
        "count": 23,
        "encoding": b"raw",
        "axes": b"NHWC",
    }
    digests = facts.pop("digests")
    assert facts == {
        "format": "asyncreader",
        "version": 1,
        "count": 23,
        "encoding": "raw",
        "axes": "NHWC",
        "shape": [20, 30, 3],
        "channels": 3,
        "label_kind": "class",
        "dtype": "uint8",
        "label_dtype": "<i8",
    }
    joined = b"".join(name + b"\0" for name in names)
    assert digests["checksums"] == xxhash.xxh3_64_hexdigest(np.array(sums, "<u8"))
    assert digests["labels"] == labels_digest
    assert digests["paths"] == xxhash.xxh3_64_hexdigest(joined)
    assert set(digests) == {"checksums", "classes", "labels", "meta", "paths"}
    assert report.bytes == target.stat().st_size
    assert report.classes == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize("encoding", ["jpeg", "png", "original"])
def test_encoded_hdf5_by_plain_h5py(folder: Path, tmp_path: Path, encoding: str) -> None:
    """/data is one blob of bytes with /offsets; each piece is a file that any decoder reads."""
    target = tmp_path / "out.h5"
    convert(folder, target, encoding=encoding)
    with h5py.File(target) as file:
        blob, offsets = file["data"], file["offsets"]
        assert (blob.dtype, blob.ndim, blob.chunks) == (np.uint8, 1, None)
        assert (offsets.shape, offsets.dtype) == ((24,), np.int64)
        assert offsets[0] == 0
        assert offsets[-1] == blob.size
        assert json.loads(file.attrs["description"])["shape"] == [20, 30, 3]
        for start, end in itertools.pairwise(offsets):
            assert by_pillow(blob[start:end].tobytes()).shape == (20, 30, 3)


def test_large_contiguous_data_begin_at_a_page(tmp_path: Path) -> None:
    """Data of 64 KiB and more begin at byte 4096, so that they can be mapped and read directly."""
    (tmp_path / "in" / "c").mkdir(parents=True)
    for side in (145, 147):
        for old in (tmp_path / "in" / "c").iterdir():
            old.unlink()
        (tmp_path / "in" / "c" / "1.png").write_bytes(saved(image(side, 150), "PNG"))
        convert(tmp_path / "in", tmp_path / "out.h5", overwrite=True)
        with h5py.File(tmp_path / "out.h5") as file:
            size = file["data"].size
            assert (size >= 65536) == (file["data"].id.get_offset() == 4096)
            assert np.array_equal(file["data"][0], np.asarray(image(side, 150)))


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "original"])
def test_lmdb_by_plain_lmdb(folder: Path, tmp_path: Path, encoding: str) -> None:
    """Values in "data" are exactly the image bytes under ten digits; tables lie beside it."""
    target = tmp_path / "out.lmdb"
    convert(folder, target, encoding=encoding)
    assert listed(target) == ["data.mdb"]
    names = names_in(folder)
    with lmdb.open(str(target), readonly=True, lock=False, max_dbs=8) as env:
        with env.begin() as root:
            found = {bytes(name) for name, _ in root.cursor()}
        assert found == {b"data", b"paths", b"labels", b"checksums", b"meta"}

        def all_of(name: bytes) -> dict[bytes, bytes]:
            with env.begin(db=env.open_db(name, create=False)) as part:
                return {bytes(key): bytes(value) for key, value in part.cursor()}

        data = all_of(b"data")
        assert list(data) == [b"%010d" % n for n in range(23)]
        assert list(all_of(b"paths").values()) == names
        labels = np.frombuffer(all_of(b"labels")[b"table"], "<i8").reshape(23, -1)
        assert [int(n) for n in labels[:, 0]] == [int(name[6:7]) for name in names]
        sums = np.frombuffer(all_of(b"checksums")[b"table"], "<u8")
        assert sums.tolist() == [xxhash.xxh3_64_intdigest(value) for value in data.values()]
        meta = json.loads(all_of(b"meta")[b"meta"])
    assert meta["classes"] == ["class 0", "class 1", "class 2"]
    assert (meta["encoding"], meta["shape"], meta["count"]) == (encoding, [20, 30, 3], 23)
    for value, name in zip(data.values(), names, strict=True):
        with open(os.path.join(os.fsencode(folder), name), "rb") as picture:
            file = picture.read()
        if encoding == "raw":
            assert np.array_equal(
                np.frombuffer(value, np.uint8).reshape(20, 30, 3), by_pillow(file)
            )
        elif encoding == "original":
            assert value == file
        else:
            assert by_pillow(value).shape == (20, 30, 3)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_set_without_labels(folder: Path, tmp_path: Path, suffix: str) -> None:
    """With no_labels there is no labels table and no class."""
    target = tmp_path / f"out.{suffix}"
    report = convert(folder, target, no_labels=True)
    assert report.classes is None
    assert verify_file(str(target)).ok
    if suffix == "h5":
        with h5py.File(target) as file:
            assert set(file) == {"data", "paths", "checksums"}
            assert json.loads(file.attrs["description"])["label_kind"] == "none"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_float_labels_of_several_columns(folder: Path, tmp_path: Path, suffix: str) -> None:
    """A CSV with fractions gives (N, L) float64 in both containers."""
    csv = tmp_path / "l.csv"
    csv.write_text("class 2/05.png,0.5,1\nclass 0/00.png,1,-2\n")
    target = tmp_path / f"out.{suffix}"
    report = convert(folder, target, labels=csv)
    assert (report.count, report.ignored["not in the CSV"]) == (2, 21)
    if suffix == "h5":
        with h5py.File(target) as file:
            labels = file["labels"][:]
    else:
        with (
            lmdb.open(str(target), readonly=True, lock=False, max_dbs=8) as env,
            env.begin(db=env.open_db(b"labels", create=False)) as part,
        ):
            labels = np.frombuffer(part.get(b"table"), "<f8").reshape(2, 2)
    assert labels.tolist() == [[1, -2], [0.5, 1]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_class_numbers_of_another_set(folder: Path, tmp_path: Path, suffix: str) -> None:
    """classes=PACKED_SET gives a test set the numbers of its training set."""
    convert(folder, tmp_path / f"train.{suffix}")
    (tmp_path / "in" / "class 2").mkdir(parents=True)
    (tmp_path / "in" / "class 2" / "1.png").write_bytes(saved(image(20, 30), "PNG"))
    report = convert(tmp_path / "in", tmp_path / "test.h5", classes=tmp_path / f"train.{suffix}")
    assert report.classes == ("class 0", "class 1", "class 2")
    with h5py.File(tmp_path / "test.h5") as file:
        assert file["labels"][:].tolist() == [[2]]
    convert(folder, tmp_path / "none.h5", no_labels=True)
    with pytest.raises(FormatError, match="no class names"):
        convert(tmp_path / "in", tmp_path / "x.h5", classes=tmp_path / "none.h5")


def test_skipping_keeps_class_numbers(tmp_path: Path) -> None:
    """A class all of whose pictures are bad keeps its number and its name."""
    for name, data in (("a/1.png", b"bad"), ("b/1.png", saved(image(8, 8), "PNG"))):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_bytes(data)
    report = convert(tmp_path / "in", tmp_path / "out.h5", skip_bad=True)
    assert (report.classes, report.count, len(report.skipped)) == (("a", "b"), 1, 1)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["labels"][:].tolist() == [[1]]


# -- the same bytes ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "raw"},
        {"encoding": "raw", "size": 8},
        {"encoding": "jpeg", "size": (9, 9)},
        {"encoding": "png"},
        {"encoding": "yuv420"},
        {"encoding": "original"},
        {"encoding": "original", "shuffle": 5},
        {"encoding": "raw", "compression": "gzip"},
        {"encoding": "raw", "compression": "gzip", "chunk": 5},
    ],
    ids=str,
)
def test_the_file_does_not_depend_on_jobs(
    folder: Path, tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    """One hash for jobs 1 and 5, and for a second run."""

    hashes = set()
    for run, jobs in enumerate((1, 5, 5)):
        target = tmp_path / f"out{run}.{suffix}"
        assert convert(folder, target, jobs=jobs, **options).count == 23
        hashes.add(hash_of(target))
    assert len(hashes) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shuffle_packs_another_order_of_the_same(folder: Path, tmp_path: Path, suffix: str) -> None:
    """A seed gives another order, another seed a third; paths and labels go with their samples."""
    orders = []
    for seed in (None, 1, 2, -1):
        target = tmp_path / f"out{seed}.{suffix}"
        convert(folder, target, encoding="original", shuffle=seed)
        back = tmp_path / f"back{seed}.h5"
        convert(target, back)
        with h5py.File(back) as file:
            names = [bytes(name) for name in file["paths"][:]]
            ends = file["offsets"][:]
            for number, name in enumerate(names):
                assert int(name[6:7]) == file["labels"][number, 0]
                with open(os.path.join(os.fsencode(folder), name), "rb") as picture:
                    stored = file["data"][ends[number] : ends[number + 1]].tobytes()
                    assert stored == picture.read()
        orders.append(names)
    assert all(sorted(order) == sorted(names_in(folder)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_the_map_of_lmdb_grows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a first map too small for one picture, and tiny transactions, all is packed the same."""
    grown, commits = [], converters.outputs.sinks.COMMIT_BYTES
    real = converters.outputs.sinks.LmdbSink

    class Small(real):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options, first_map=1 << 16, commit_bytes=commits)

        def finish(self, tables: Tables) -> None:
            super().finish(tables)
            grown.append(self._map)

    monkeypatch.setattr(converters.outputs.one_file, "LmdbSink", Small)
    convert(folder, tmp_path / "a.lmdb", size=100)
    commits = 100_000
    convert(folder, tmp_path / "b.lmdb", size=100)
    assert min(grown) >= 1 << 20
    for name in ("a.lmdb", "b.lmdb"):
        report = verify_file(str(tmp_path / name))
        assert (report.ok, report.count) == (True, 23)


def test_progress_counts_every_sample(folder: Path, tmp_path: Path) -> None:
    """progress(done, total) goes up by one to the total, skipped ones included."""
    (tmp_path / "in").symlink_to(folder)
    (tmp_path / "more" / "c").mkdir(parents=True)
    for name, data in (("1", b"bad"), ("2", saved(image(8, 8), "PNG"))):
        (tmp_path / "more" / "c" / f"{name}.png").write_bytes(data)
    os.mkfifo(tmp_path / "more" / "c" / "3.png")
    seen: list[tuple[int, int]] = []
    convert(
        tmp_path / "more",
        tmp_path / "out.h5",
        skip_bad=True,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(2, 3), (3, 3)]


@pytest.mark.parametrize("code", [*(pytest.param(n, marks=pytest.mark.slow) for n in range(3)), 3])
def test_the_module_is_the_command(folder: Path, tmp_path: Path, code: int) -> None:
    """python -m converters is asyncreader convert, with its exit codes."""
    (tmp_path / "c").mkdir()
    for name, data in (("1", b"bad"), ("2", saved(image(8, 8), "PNG"))):
        (tmp_path / "c" / f"{name}.png").write_bytes(data)
    arguments = {
        0: [folder, tmp_path / "out.h5"],
        1: [tmp_path, tmp_path / "out.h5"],
        2: [folder, tmp_path / "out.h5", "--encoding", "bmp"],
        3: [tmp_path, tmp_path / "out.h5", "--skip-bad"],
    }[code]
    run = subprocess.run(
        [sys.executable, "-m", "converters", *arguments], check=False, capture_output=True
    )
    assert run.returncode == code, run.stderr
    assert (tmp_path / "out.h5").exists() == (code in (0, 3))
    assert b"Traceback" not in run.stderr


@pytest.mark.parametrize("suffix", ["lmdb"])
def test_a_class_whose_name_is_not_utf8(tmp_path: Path, suffix: str) -> None:
    """A class folder's name may be any bytes; it is shown with surrogate escapes."""
    odd = os.path.join(os.fsencode(tmp_path), b"in", b"c\xff")
    os.makedirs(odd)
    with open(os.path.join(odd, b"1.png"), "wb") as file:
        file.write(saved(image(8, 8), "PNG"))
    report = convert(tmp_path / "in", tmp_path / f"out.{suffix}")
    assert report.classes == ("c\udcff",)
    assert json.loads(json.dumps(report.to_dict()))["classes"] == ["c\udcff"]
