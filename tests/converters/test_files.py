"""The converter's files: readable by anyone without asyncreader, and the same every time."""

import errno
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
from converter_corpus import by_pillow, image, listed, names_in, put, saved

import asyncreader
import converters.outputs.one_file
import converters.outputs.sinks
from asyncreader.errors import FormatError, SourceError
from asyncreader.tools.verify import verify_file
from converters import convert
from converters.outputs import disk
from converters.outputs.sinks import Tables

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
        found = {name: table[()] for name, table in file.items()}
        chunk = (options.get("chunk", 1), 20, 30, 3) if options else None
        assert (file["data"].chunks, file["data"].compression) == (
            chunk,
            options.get("compression"),
        )
        assert (file["paths"].dtype.kind, file["paths"].compression) == ("S", "gzip")
        assert file["labels"].chunks is None
        said = dict(file.attrs)
    data, labels = found.pop("data"), found.pop("labels")
    assert (data.shape, data.dtype) == ((23, 20, 30, 3), np.uint8)
    for row, name in zip(data, names, strict=True):
        picture = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))
        assert np.array_equal(row, by_pillow(picture.read_bytes()))
    assert labels.dtype == np.int64
    assert labels.tolist() == [[int(name[6:7])] for name in names]
    sums = found.pop("checksums")
    assert sums.dtype == np.uint64
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in data]
    assert {name: list(map(bytes, rows)) for name, rows in found.items()} == {
        "paths": names,
        "classes": [b"class 0", b"class 1", b"class 2"],
    }
    facts = json.loads(said.pop("description"))
    common = {"format": "asyncreader", "version": 1, "count": 23, "encoding": "raw", "axes": "NHWC"}
    assert said == {k: v.encode() if isinstance(v, str) else v for k, v in common.items()}
    digests = facts.pop("digests")
    assert facts == {
        **common,
        "shape": [20, 30, 3],
        "channels": 3,
        "label_kind": "class",
        "dtype": "uint8",
        "label_dtype": "<i8",
    }
    joined = b"".join(name + b"\0" for name in names)
    for name, held in (("checksums", sums.astype("<u8")), ("labels", labels), ("paths", joined)):
        assert digests[name] == xxhash.xxh3_64_hexdigest(held)
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
    for side in (145, 147):
        put(tmp_path / "in", {"c/1.png": saved(image(side, 150), "PNG")})
        convert(tmp_path / "in", tmp_path / "out.h5", overwrite=True)
        with h5py.File(tmp_path / "out.h5") as file:
            size = file["data"].size
            assert (size >= 65536) == (file["data"].id.get_offset() == 4096)
            assert np.array_equal(file["data"][0], np.asarray(image(side, 150)))


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "original"])
def test_lmdb_by_plain_lmdb(folder: Path, tmp_path: Path, encoding: str) -> None:
    """Values in "data" are exactly the image bytes under ten digits; tables lie beside it."""
    target, names = tmp_path / "out.lmdb", names_in(folder)
    convert(folder, target, encoding=encoding)
    assert listed(target) == ["data.mdb"]
    found: dict[bytes, dict[bytes, bytes]] = {}
    with lmdb.open(str(target), readonly=True, lock=False, max_dbs=8) as env:
        for name in (b"data", b"paths", b"labels", b"checksums", b"meta"):
            with env.begin(db=env.open_db(name, create=False)) as part:
                found[name] = {bytes(key): bytes(value) for key, value in part.cursor()}
        with env.begin() as root:
            assert {bytes(name) for name, _ in root.cursor()} == set(found)
    data = found[b"data"]
    assert list(data) == [b"%010d" % n for n in range(23)]
    assert list(found[b"paths"].values()) == names
    labels = np.frombuffer(found[b"labels"][b"table"], "<i8")
    assert labels.tolist() == [int(name[6:7]) for name in names]
    sums = np.frombuffer(found[b"checksums"][b"table"], "<u8")
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(value) for value in data.values()]
    meta = json.loads(found[b"meta"][b"meta"])
    assert meta["classes"] == ["class 0", "class 1", "class 2"]
    assert (meta["encoding"], meta["shape"], meta["count"]) == (encoding, [20, 30, 3], 23)
    assert "fields" not in meta
    for value, name in zip(data.values(), names, strict=True):
        file = Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).read_bytes()
        if encoding == "raw":
            pixels = np.frombuffer(value, np.uint8).reshape(20, 30, 3)
            assert np.array_equal(pixels, by_pillow(file))
        elif encoding == "original":
            assert value == file
        else:
            assert by_pillow(value).shape == (20, 30, 3)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_set_without_labels(folder: Path, tmp_path: Path, suffix: str) -> None:
    """With no_labels there is no labels table and no class, of a packed set neither."""
    convert(folder, tmp_path / "with.h5")
    for number, source in enumerate((folder, tmp_path / "with.h5")):
        target = tmp_path / f"{number}.{suffix}"
        assert convert(source, target, no_labels=True).classes is None
        assert verify_file(str(target)).ok
        if suffix == "h5":
            with h5py.File(target) as file:
                assert set(file) == {"data", "paths", "checksums"}
                assert json.loads(file.attrs["description"])["label_kind"] == "none"


@pytest.mark.parametrize("name", ["train.h5", "train.lmdb", "shards", "shards/asyncreader.json"])
def test_class_numbers_of_another_set(folder: Path, tmp_path: Path, name: str) -> None:
    """classes=PACKED_SET, or a set of shards, gives a test set the numbers of its training set."""
    sharded: Any = {} if "." in name.partition("/")[0] else {"shards": 2}
    convert(folder, tmp_path / name.partition("/")[0], **sharded)
    put(tmp_path / "in" / "class 2", {"1.png": saved(image(20, 30), "PNG")})
    report = convert(tmp_path / "in", tmp_path / "test.h5", classes=tmp_path / name)
    assert report.classes == ("class 0", "class 1", "class 2")
    with h5py.File(tmp_path / "test.h5") as file:
        assert file["labels"][:].tolist() == [[2]]
    convert(folder, tmp_path / "none.h5", no_labels=True)
    with pytest.raises(FormatError, match="no class names"):
        convert(tmp_path / "in", tmp_path / "x.h5", classes=tmp_path / "none.h5")


# -- the same bytes ------------------------------------------------------------------------------


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


def test_room_for_what_is_needed_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with room for the samples, and none for what is reserved ahead of them, is enough;
    where it has none for the samples, the error says for how many bytes."""
    least, reserve = disk.LEAST_AHEAD, disk.files.reserve

    def nearly_full(file: int, start: int, size: int) -> bool:
        if size >= least:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return reserve(file, start, size)

    monkeypatch.setattr(disk.files, "reserve", nearly_full)
    assert convert(folder, tmp_path / "out.h5").count == 23
    assert verify_file(str(tmp_path / "out.h5")).ok
    least = 100
    with pytest.raises(SourceError, match=r"no space on the disk.*bytes free; expected \d+ more"):
        convert(folder, tmp_path / "more.h5")


def test_progress_counts_every_sample(tmp_path: Path) -> None:
    """progress(done, total) goes up by one to the total, skipped ones included. A class whose
    pictures are all bad keeps its number and its name."""
    put(tmp_path / "in", {"a/1.png": b"bad", "c/1.png": saved(image(8, 8), "PNG")})
    os.mkfifo(tmp_path / "in" / "c" / "3.png")
    seen: list[tuple[int, int]] = []
    report = convert(
        tmp_path / "in", tmp_path / "out.h5", skip_bad=True, progress=lambda *n: seen.append(n)
    )
    assert seen == [(2, 3), (3, 3)]
    assert (report.classes, report.count, len(report.skipped)) == (("a", "c"), 1, 2)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["labels"][:].tolist() == [[1]]


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """python -m converters is asyncreader convert, with its exit codes."""
    put(tmp_path / "c", {"1.png": b"bad", "2.png": saved(image(8, 8), "PNG")})
    line = [sys.executable, "-m", "converters", tmp_path, tmp_path / "out.h5", "--skip-bad"]
    run = subprocess.run(line, check=False, capture_output=True)
    assert run.returncode == 3, run.stderr
    assert (tmp_path / "out.h5").exists()


def test_a_class_whose_name_is_not_utf8(tmp_path: Path) -> None:
    """A class folder's name may be any bytes; it is shown with surrogate escapes."""
    put(tmp_path / "in", {b"c\xff/1.png": saved(image(8, 8), "PNG")})
    report = convert(tmp_path / "in", tmp_path / "out.lmdb")
    assert report.classes == ("c\udcff",)
    assert json.loads(json.dumps(report.to_dict()))["classes"] == ["c\udcff"]
    with asyncreader.open(tmp_path / "out.lmdb") as found:
        assert found.classes == report.classes
