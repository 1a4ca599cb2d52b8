"""Opening a damaged set: what is refused before a sample is read, and what is still served."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from child_processes import child, ended
from fakes import (
    data_file,
    describe,
    described,
    packed,
    paint,
    pictures,
    write_hdf5,
    write_lmdb,
)

import asyncreader
from asyncreader import AsyncReader, FormatError, SourceError
from asyncreader.sources import Request, open_source
from asyncreader.sources.hdf5 import file as hdf5_file
from asyncreader.sources.lmdb import LmdbFile
from converters import convert

IMAGES = paint(12, (16, 16, 3))


def served(path: str | Path, **params: Any) -> np.ndarray:
    """All pixels of a set, in order."""
    with AsyncReader(path=path, batch_size=4, layout="NHWC", copy=True, **params) as reader:
        return np.concatenate([batch.data for batch in reader])


@contextmanager
def another_process(code: str, path: str) -> Iterator[None]:
    """A process that has run ``code`` (``path`` is its sys.argv[1]) and waits."""
    code = f"import sys\n{code}\nprint(1, flush=True)\nsys.stdin.read()"
    words = [sys.executable, "-c", code, path]
    with child(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        yield
        ended(process)


# -- short files ---------------------------------------------------------------------------------


def test_lmdb_pages_that_were_never_written(tmp_path: Path) -> None:
    """LMDB takes pages and frees them unwritten: such a file ends early and is whole all the same,
    but not where a page that is in use is missing."""
    path = tmp_path / "a.lmdb"
    with lmdb.open(str(path), map_size=1 << 24, lock=False, sync=False) as env:
        for puts, deletes in (({b"1": 9000}, [b"1"]), ({b"3": 3000}, []), ({b"0": 50_000}, b"03")):
            with env.begin(write=True) as transaction:
                for key, size in puts.items():
                    transaction.put(key, b"x" * size)
                for key in deletes:
                    transaction.delete(bytes([key]) if isinstance(key, int) else key)
                transaction.put(b"kept%d" % size, b"y" * 5000)
    data = np.fromfile(path / "data.mdb", np.uint8)
    tree = LmdbFile(data, "a")
    assert tree.short()
    nodes = tree.table(tree.main)
    starts, sizes = nodes.starts, nodes.sizes
    kept = [data[at : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]
    assert kept == [b"y" * 5000] * 3
    used = int(starts.max()) // tree.page_size
    for end in (data.size - 1, used * tree.page_size):
        with pytest.raises(FormatError, match="truncated"):
            LmdbFile(data[:end], "a")


# -- locks, and other users of the file ---------------------------------------------------------


def test_lmdb_leaves_nothing_next_to_the_file(tmp_path: Path) -> None:
    """No lock file: a set on a read-only medium is read, and nothing is created next to it."""
    path = Path(write_lmdb(tmp_path / "a.lmdb", packed(IMAGES)))
    (path / "lock.mdb").unlink(missing_ok=True)
    path.chmod(0o555)
    os.chmod(path / "data.mdb", 0o444)
    try:
        before = sorted(os.listdir(path))
        assert np.array_equal(served(path), IMAGES)
        assert sorted(os.listdir(path)) == before == ["data.mdb"]
    finally:
        path.chmod(0o755)


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_hdf5_is_read_in_spite_of_a_lock(tmp_path: Path, call: str) -> None:
    """Another process's exclusive lock on the file (cluster file systems hold some for ever) does
    not keep a reader out."""
    path = write_hdf5(tmp_path / "a.h5", packed(IMAGES))
    code = f"import fcntl\nf = open(sys.argv[1], 'r+b')\nfcntl.{call}(f, fcntl.LOCK_EX)"
    with another_process(code, path):
        assert np.array_equal(served(path), IMAGES)


def test_hdf5_that_is_being_written(tmp_path: Path) -> None:
    """A packed file that another process has open for writing is refused with what to do."""
    path = write_hdf5(tmp_path / "a.h5", packed(IMAGES))
    with (
        another_process("import h5py\nf = h5py.File(sys.argv[1], 'r+')", path),
        pytest.raises(FormatError, match=r"open for writing.*h5clear"),
    ):
        open_source(path)
    assert np.array_equal(served(path), IMAGES)  # it was closed as it should be


# -- what binds a set together -------------------------------------------------------------------


def packed_set(tmp_path: Path, suffix: str) -> Path:
    """A set of our converter's, of jpeg, with float labels."""
    photos = tmp_path / "photos"
    photos.mkdir()
    rows = ["path,x,y"]
    from PIL import Image

    for i, image in enumerate(pictures(6)):
        Image.fromarray(image).save(photos / f"{i}.png")
        rows.append(f"{i}.png,{i / 4},{i}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    convert(photos, tmp_path / f"a{suffix}", encoding="jpeg", labels=tmp_path / "labels.csv")
    return tmp_path / f"a{suffix}"


def change_fact(path: Path, name: str, value: object) -> None:
    """Change one fact of a set's description; None drops it."""
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            describe(file, {**described(file), name: value})
        return
    with lmdb.open(str(path), max_dbs=8, lock=False, map_size=1 << 24) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True, db=meta) as transaction:
            facts = json.loads(transaction.get(b"meta"))
            facts[name] = value
            if value is None:
                del facts[name]
            transaction.put(b"meta", json.dumps(facts).encode())


@pytest.mark.parametrize("suffix", [".h5", ".lmdb"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("label_dtype", "<i8"), ("label_dtype", None), ("channels", 1), ("encoding", "png")),
        *(("label_kind", "none"), ("label_kind", "class"), ("shape", [1, 1, 3]), ("shape", None)),
        *(("version", 0), ("count", 5)),
    ],
)
def test_the_description_is_bound(tmp_path: Path, suffix: str, name: str, value: Any) -> None:
    """A description with one changed fact is refused: labels read as another type, grey pictures
    for coloured ones, no labels where there are some."""
    path = packed_set(tmp_path, suffix)
    assert open_source(path).labels is not None
    change_fact(path, name, value)
    with pytest.raises(FormatError, match=r"facts are not the ones|description|number of samples"):
        open_source(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.move("labels", "aside"),
        lambda file: file.move("classes", "aside"),
        lambda file: file.attrs.__delitem__("format"),
        lambda file: [file.attrs.__delitem__(name) for name in list(file.attrs)],
        lambda file: _replace(file, "data", file["data"][()].view(np.int8)),
        lambda file: _replace(file, "data", file["data"][()].reshape(12, 32, 8, 3)),
        lambda file: _replace(file, "labels", file["labels"][()].view(np.float64)),
        lambda file: _replace(file, "labels", file["labels"][()][:, 0]),
    ],
)
def test_data_sets_are_what_the_description_says(tmp_path: Path, change: Any) -> None:
    """Data of another shape or type, and tables that have gone, are refused, though every byte of
    what is there is the one that was packed."""
    path = write_hdf5(tmp_path / "a.h5", packed(IMAGES))
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(SourceError, match=r"description|labels|classes"):
        open_source(path)


def _replace(file: Any, name: str, rows: np.ndarray) -> None:
    del file[name]
    file[name] = rows


@pytest.mark.parametrize("write", [write_hdf5, write_lmdb])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_labels_stay_as_they_were_checked(tmp_path: Path, write: Any, io: str) -> None:
    """Labels are kept in memory: a later change of the file does not change them."""
    labels = np.arange(1000, 1012, dtype=np.int64)[:, None] * 7919
    path = write(tmp_path / "set", packed(IMAGES, labels=labels))
    with AsyncReader(path=path, batch_size=4, io=io, copy=True) as reader:
        held = data_file(path).read_bytes()
        assert labels.tobytes() in held
        with open(data_file(path), "r+b") as file:
            file.write(held.replace(labels.tobytes(), bytes(labels.nbytes)))
        assert np.array_equal(np.concatenate([batch.labels for batch in reader]), labels)


@pytest.mark.parametrize("what", ["the set", "its labels"])
def test_a_file_replaced_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The metadata of one file are never used on the bytes of another: HDF5 opens it by its name,
    after we have."""
    path = Path(write_hdf5(tmp_path / "a.h5", packed(IMAGES)))
    other = Path(write_hdf5(tmp_path / "b.h5", packed(IMAGES[::-1])))
    asked, swapped = Request(), path
    if what == "its labels":
        asked = Request(labels_path=str(path))
        path = tmp_path / "images.h5"
        with h5py.File(path, "w") as file:
            file["data"] = IMAGES
    open_library = hdf5_file.open_library

    def swap(name: str) -> Any:
        if name == str(swapped):
            os.replace(other, swapped)
        return open_library(name)

    monkeypatch.setattr(hdf5_file, "open_library", swap)
    with pytest.raises(FormatError, match="replaced by another"):
        open_source(path, asked)
    monkeypatch.undo()
    assert np.array_equal(served(swapped), IMAGES[::-1])


def test_a_file_replaced_while_it_is_read(tmp_path: Path) -> None:
    """What is looked up in a file while it is read, such as the chunks of a group or recorded
    paths, is never that of another file under its name."""

    def written(name: str, first: int) -> Path:
        with h5py.File(tmp_path / name, "w") as file:
            for number in range(3):
                rows = np.full((4, 2), first + number, "f4")
                file.create_dataset(f"data/demo_{number}/act", data=rows, chunks=(2, 2))
        return tmp_path / name

    groups, packed_set = written("groups.h5", 0), write_hdf5(tmp_path / "a.h5", packed(IMAGES))
    with (
        AsyncReader(path=groups, data_field="act", batch_size=4) as reader,
        asyncreader.open(packed_set) as dataset,
    ):
        os.replace(written("other.h5", 7), groups)
        content = packed(IMAGES)
        content.paths = content.paths[::-1]
        os.replace(write_hdf5(tmp_path / "b.h5", content), packed_set)
        with pytest.raises(FormatError, match="replaced by another"):
            next(iter(reader))
        with pytest.raises(FormatError, match="replaced by another"):
            dataset.paths  # noqa: B018
        assert dataset.sample(0).path is None


@pytest.mark.parametrize("how", ["replaced", "written to", "one of two"])
def test_worker_processes_read_the_same_set(tmp_path: Path, how: str) -> None:
    """A file replaced or changed between the reader's opening and its workers' is an error, not a
    mix."""
    path = Path(write_hdf5(tmp_path / "a.h5", packed(IMAGES)))
    other = Path(write_hdf5(tmp_path / "b.h5", packed(IMAGES[::-1])))
    with contextlib.closing(open_source([other, path] if how == "one of two" else path)) as source:
        index = pickle.loads(pickle.dumps(source.index))
    index.open().close()
    if how == "written to":
        with h5py.File(path, "r+") as file:
            file["data"][3] = 0
        os.utime(path, ns=(1, 1))  # the clock of some file systems is coarse
    else:
        os.replace(write_hdf5(tmp_path / "c.h5", packed(IMAGES[::-1])), path)
    with pytest.raises(FormatError, match="replaced or changed"):
        index.open()
