"""An error names the sample's record number in the whole set, however the set is stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import h5py
import numpy as np
import pytest
from fakes import Packed, damage, packed, paint, pictures, write_hdf5, write_lmdb
from shard_sets import cut, write_set

from asyncreader import (
    AsyncReader,
    AsyncReaderError,
    ChecksumError,
    DecodeError,
    FormatError,
    ParamsError,
)
from asyncreader.sources import Inspector, open_source
from asyncreader.tools.verify import verify_file

#: Samples of each of three files. The bad one is in the second file, and none that is looked at
#: when a reader is made.
SIZES = (20, 15, 10)
BAD, COUNT = 30, sum(SIZES)

#: A file with some samples, of which the one with this number (None: none) is bad.
Write = Callable[[Path, slice, int | None], str]


def samples() -> np.ndarray:
    """Numbers of which all but the bad one fit in a byte."""
    made = paint(COUNT, (6, 5, 3), "uint16") % 256
    made[BAD] = 300
    return made


def foreign_rows(axis: int = 0, **storage: Any) -> Write:
    """A data set of numbers, of which dtype="uint8" cannot hold all; samples along an axis."""

    def write(path: Path, rows: slice, bad: int | None) -> str:
        with h5py.File(path.with_suffix(".h5"), "w") as file:
            file.create_dataset("data", data=np.moveaxis(samples()[rows], 0, axis), **storage)
        return str(path.with_suffix(".h5"))

    return write


def foreign_floats(path: Path, rows: slice, bad: int | None) -> str:
    """Caffe's floats in LMDB."""
    entries = {}
    for i, one in enumerate(samples()[rows]):
        turned = one.transpose(2, 0, 1)
        entries[b"%08d" % i] = foreign.datum(turned.shape, label=0, floats=turned)
    return foreign.write_lmdb(path, entries)


def files(rows: slice, bad: int | None) -> list[bytes]:
    """PNG files, the bad one with a byte that is wrong."""
    made = foreign.files(pictures(COUNT, (20, 23, 3)))[rows]
    if bad is not None:
        held = bytearray(made[bad])
        held[len(held) // 2] ^= 0x55
        made[bad] = bytes(held)
    return made


def foreign_files(path: Path, rows: slice, bad: int | None) -> str:
    """Image files of variable length."""
    made = files(rows, bad)
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        foreign.vlen(file, "encoded_images", made)
        file["targets"] = np.zeros((len(made), 1), np.int64)
    return str(path.with_suffix(".h5"))


def bare_files(path: Path, rows: slice, bad: int | None) -> str:
    """LSUN's image files in LMDB."""
    made = files(rows, bad)
    return foreign.write_lmdb(path, {b"%040x" % i: one for i, one in enumerate(made)})


def ours(encoding: str, with_mask: bool = False) -> Packed:
    """A set of ours, with masks as another field."""
    content = packed(pictures(COUNT, (16, 15, 3)), encoding)
    if with_mask:
        masks = [np.full((16, 15, 1), 300 + n, np.uint16).tobytes() for n in range(COUNT)]
        content.fields["mask"] = Packed(masks, None, "raw", (16, 15, 1), 1, dtype="uint16")
    return content


def our_rows(encoding: str, container: str = "hdf5", **storage: Any) -> Write:
    """A file of ours in which a byte of the bad sample changed."""

    def write(path: Path, rows: slice, bad: int | None) -> str:
        part = cut(
            ours(encoding, not storage), (rows.start, rows.stop - rows.start, COUNT - rows.stop)
        )[1]
        if container == "lmdb":
            name = write_lmdb(path, part)
        else:
            name = write_hdf5(path.with_suffix(".h5"), part, **storage)
        if bad is not None and storage:
            with h5py.File(name, "r+") as file:
                file["data"][bad] ^= 0x55
        elif bad is not None:
            damage(name, part.samples[bad])
        return name

    return write


UINT8: dict[str, Any] = {"dtype": "uint8"}
#: How the samples are stored, what is asked of them, and the error of the bad one.
STORAGE: dict[str, tuple[Write, dict[str, Any], type[AsyncReaderError]]] = {
    "contiguous": (foreign_rows(), UINT8, ParamsError),
    "chunks": (foreign_rows(chunks=(4, 6, 5, 3), compression="gzip"), UINT8, ParamsError),
    "chunks that cut samples": (foreign_rows(chunks=(4, 3, 5, 3)), UINT8, ParamsError),
    "number last": (
        foreign_rows(3),
        UINT8 | {"num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3},
        ParamsError,
    ),
    "Caffe floats": (foreign_floats, UINT8, ParamsError),
    "vlen files": (foreign_files, {}, DecodeError),
    "bare files": (bare_files, {}, DecodeError),
    "our rows": (our_rows("raw"), {}, ChecksumError),
    "our chunks": (
        our_rows("raw", chunks=(4, 16, 15, 3), compression="gzip"),
        {},
        ChecksumError,
    ),
    "our blob": (our_rows("png"), {"verify": "never"}, DecodeError),
    "our LMDB": (our_rows("raw", "lmdb"), {}, ChecksumError),
    "our LMDB of files": (our_rows("png", "lmdb"), {"verify": "never"}, DecodeError),
}
KINDS = [
    *((name, way) for name in STORAGE for way in ("one file", "list")),
    *((name, "shards") for name in ("our rows", "our blob", "our LMDB")),
]


def build(folder: Path, name: str, way: str) -> tuple[str | list[str], str]:
    """The set, and the file that has the bad sample."""
    write = STORAGE[name][0]
    if way == "one file":
        path = write(folder / "set", slice(0, COUNT), BAD)
        return path, path
    if way == "shards":
        container = "lmdb" if "LMDB" in name else "hdf5"
        content = ours("png" if "blob" in name else "raw", with_mask=True)
        whole = write_set(folder / "set", [], SIZES, container=container, content=content)
        shard = sorted(whole.glob("shard-*"))[1]
        damage(str(shard), content.samples[BAD])
        return str(whole), str(shard)
    names, at = [], 0
    for number, size in enumerate(SIZES):
        bad = BAD - at if at <= BAD < at + size else None
        names.append(write(folder / f"{number}", slice(at, at + size), bad))
        at += size
    return names, names[1]


def error_of(path: Any, **params: Any) -> AsyncReaderError:
    """The error of the one batch that fails."""
    options = {"batch_size": 5, "last_batch": "short", "epochs": 1, "labels_field": None}
    found = []
    with AsyncReader(path=path, **options | params) as reader:
        for _ in range(len(reader)):
            reader.fetchData()
            try:
                reader.getNextBatch()
            except AsyncReaderError as exc:
                found.append(exc)
    (error,) = found
    return error


def check(error: AsyncReaderError, kind: type[AsyncReaderError], file: str) -> None:
    """The error names the bad sample and its file."""
    assert type(error) is kind
    assert error.index == BAD
    assert error.path is not None
    assert file.startswith(error.path)  # of LMDB the folder
    assert f"record {BAD}" in str(error)


@pytest.mark.parametrize(("name", "way"), KINDS, ids=[" in ".join(kind) for kind in KINDS])
def test_the_record_number_is_that_in_the_set(name: str, way: str, tmp_path: Path) -> None:
    """A reader, its threads, a subset of the set and verify name the bad sample by its number in
    the whole set, and the file that it is in."""
    _, params, kind = STORAGE[name]
    path, file = build(tmp_path, name, way)
    check(error_of(path, **params), kind, file)
    check(error_of(path, nthread=3, njob=2, **params), kind, file)
    some = slice(BAD - 2, BAD + 2)
    if kind is ParamsError:  # a set as small as this is looked at as a whole
        with pytest.raises(kind) as caught:
            error_of(path, subset=some, batch_size=1, **params)
        check(caught.value, kind, file)
        return
    check(error_of(path, subset=some, **params), kind, file)
    pattern = str(tmp_path / "[012]*") if isinstance(path, list) else path
    report = verify_file(pattern, decode=True)
    assert report.bad == 1
    assert f"record {BAD}" in report.problems[0]


@pytest.mark.parametrize("way", ["one file", "list", "shards"])
@pytest.mark.parametrize("name", ["our rows", "our LMDB"])
def test_fields_name_it(name: str, way: str, tmp_path: Path) -> None:
    """So does a reader of several fields, in whatever order, and a source of one sample's bytes."""
    path, file = build(tmp_path, name, way)
    for fields in (["data", "mask"], ["mask", "data"]):
        error = error_of(path, data_field=fields)
        assert error.what.startswith("field 'data': ")
        check(error, ChecksumError, file)
    source = open_source(path)
    with pytest.raises(ChecksumError) as caught:
        Inspector(source.first).bytes(BAD)
    check(caught.value, ChecksumError, file)
    inside = {"our LMDB": BAD if way == "one file" else BAD - SIZES[0]}.get(name)
    assert caught.value.key == (None if inside is None else f"{inside:010d}")
    source.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["contiguous", "our rows"])
def test_worker_processes_name_it(name: str, tmp_path: Path) -> None:
    """An error of a worker process names the record number in the whole set."""
    path, _ = build(tmp_path, name, "list")
    error = error_of(path, workers="process", nthread=2, **STORAGE[name][1])
    assert type(error) is STORAGE[name][2]
    assert error.index == BAD


def test_a_picture_without_a_header(tmp_path: Path) -> None:
    """A picture whose size cannot be read is named, in a list by its number in the whole set."""
    names = []
    for number in range(2):
        content = packed(pictures(5, (16, 15, 3)), "png")
        content.shape = None
        if number:
            content.samples[3] = b"no picture"
        names.append(write_hdf5(tmp_path / f"{number}.h5", content))
    source = open_source(names)
    with pytest.raises(DecodeError) as caught:
        Inspector(source.first).size(8)
    assert (caught.value.index, caught.value.path) == (8, names[1])
    source.close()


def test_a_file_of_a_list_that_cannot_be_opened(tmp_path: Path) -> None:
    """What is found wrong when a list is opened is named by its number in the whole set."""
    names = [foreign.write_varied_fuel(tmp_path / f"{n}.h5", n) for n in SIZES]
    with h5py.File(names[1], "r+") as file:
        file["image_features_shapes"][10] = 3, 6, 6
    with pytest.raises(FormatError, match="size does not match") as caught:
        open_source(names)
    assert (caught.value.index, caught.value.path) == (BAD, names[1])
