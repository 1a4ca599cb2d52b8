"""Every source passes the contract; what only some of them can meet stands below it."""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fuzz_layouts
import h5py
import lmdb
import numpy as np
import pytest
import zarr
from fakes import (
    CLASSES,
    damage,
    data_file,
    first,
    first_batch,
    hdf5,
    packed,
    paint,
    pictures,
    put_compact,
    write_hdf5,
    write_lmdb,
)
from PIL import Image
from shard_sets import write_set
from source_contract import Build, Built, PackedContract, each_of

from asyncreader import (
    AsyncReader,
    ChecksumError,
    DecodeError,
    FormatError,
    ParamsError,
    SourceError,
    SourceNotFoundError,
)
from asyncreader.params.parse import parse_params
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, Request, fingerprint, open_reader_source, open_source
from asyncreader.sources.arrays import index_arrays
from asyncreader.sources.bytestore import AdaptiveStore, MappedStore, OpenFile, PreadStore
from asyncreader.sources.lmdb import LmdbFile
from asyncreader.system.checks import DatasetPath
from asyncreader.system.files import file_system
from asyncreader.testing.contract import CheckedSourceContract, SourceContract, fill_rows

COUNT = 23
LABELS = (np.arange(COUNT, dtype=np.int64) % 5)[:, None]


# -- cases ---------------------------------------------------------------------------------------


def foreign(
    dtype: str = "uint8",
    shape: tuple[int, ...] = (8, 7, 3),
    *,
    stored_dtype: str | None = None,
    order: Sequence[int] | None = None,
    dims: tuple[int, int, int, int] | None = None,
    labels: np.ndarray | None = LABELS,
    io: str = "auto",
    user_block: int = 0,
    compact: bool = False,
    warns: str | None = None,
    **storage: Any,
) -> Build:
    """An HDF5 set as others write it. ``order``: how (N, H, W, C) is transposed for storage."""

    def build(folder: Path) -> Built:
        images = paint(COUNT, shape, dtype)
        laid = images if order is None else np.ascontiguousarray(images.transpose(order))
        laid = laid.astype(stored_dtype or dtype)
        path = str(folder / "foreign.hdf5")
        with h5py.File(path, "w", userblock_size=user_block) as file:
            if compact:
                put_compact(file, "data", laid)
            else:
                file.create_dataset("data", data=laid, **storage)
            if labels is not None:
                file.create_dataset("labels", data=labels)
        axis = 0 if order is None else list(order).index(0)
        rows = np.moveaxis(laid, axis, 0)
        return Built(
            lambda: open_source(path, Request(dims=dims), io=io),
            images,
            [rows[i : i + 1].tobytes() for i in range(COUNT)],
            labels,
            warns=warns,
        )

    return build


def ours(
    encoding: str,
    container: str,
    side: int = 20,
    channels: int = 3,
    io: str = "auto",
    compact: bool = False,
    **storage: Any,
) -> Build:
    """A set in our own layout; ``compact``: repacked into the object header."""

    def build(folder: Path) -> Built:
        images = pictures(COUNT, (side, side + 3, channels))
        content = packed(images, encoding)
        if container == "LMDB":
            path = write_lmdb(folder / "ours.lmdb", content)
        else:
            path = write_hdf5(folder / "ours.h5", content, **storage)
        if compact:
            with h5py.File(path, "r+") as file:
                del file["data"]
                put_compact(file, "data", images)
        if encoding == "jpeg":
            images = np.stack([np.asarray(Image.open(BytesIO(s))) for s in content.samples])
        return Built(
            lambda: open_source(path, io=io),
            images,
            content.samples,
            content.labels,
            content.paths,
            file=path,
            checked=True,
            # two JPEG decoders differ by their rounding
            tolerance=3 if encoding == "jpeg" else 0,
        )

    return build


def arrays(
    change: Callable[[np.ndarray, Path], Any],
    dtype: str = "uint8",
    shape: tuple[int, ...] = (8, 7, 3),
) -> Build:
    """What the user gives as ``data``."""

    def build(folder: Path) -> Built:
        images = paint(COUNT, shape, dtype)
        data = change(images, folder)
        dims = None
        if isinstance(data, tuple):
            data, dims = data
        typed = images.astype(data.dtype)
        stored = [typed[i : i + 1].tobytes() for i in range(COUNT)]
        return Built(
            lambda: index_arrays(data, LABELS, Request(dims=dims)).open(), images, stored, LABELS
        )

    return build


def mapped(images: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "images.npy", images)
    return np.load(folder / "images.npy", mmap_mode="r")


class Indexed:
    """The least that an array must do."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, index: int) -> np.ndarray:
        return self._array[index]


def several(folder: Path) -> Built:
    """Three files of ours, of different length, as one set."""
    images = pictures(COUNT, (9, 11, 3))
    labels = LABELS % len(CLASSES)
    cuts = [0, 4, 15, COUNT]
    paths, stored, names = [], [], []
    for number, (lo, hi) in enumerate(itertools.pairwise(cuts)):
        content = packed(images[lo:hi], labels=labels[lo:hi])
        stored += content.samples
        names += content.paths
        paths.append(write_hdf5(folder / f"part{number}.h5", content))
    return Built(lambda: open_source(paths), images, stored, labels, names, checked=True)


def h5py_dataset(folder: Path) -> Built:
    """Data sets just written by h5py, which has their file open, given as ``data`` and ``labels``:
    they are opened again by their places."""
    images = paint(COUNT, (8, 7, 3))
    path = folder / "given.h5"
    file = h5py.File(path, "w")
    file.create_dataset("group/images", data=images, chunks=(4, 8, 7, 3), compression="lzf")
    file["group/labels"] = LABELS

    def opened() -> Any:
        params = parse_params({"data": file["group/images"], "labels": file["group/labels"]}, {})
        assert isinstance(params.data, DatasetPath)
        return open_reader_source(params)

    return Built(opened, images, [image.tobytes() for image in images], LABELS, keep=[file])


GZIP: dict[str, Any] = {"chunks": (4, 8, 7, 3), "compression": "gzip"}
NCHW: dict[str, Any] = {"order": (0, 3, 1, 2), "dims": (1, 3, 4, 2)}
N_LAST: dict[str, Any] = {"order": (1, 2, 3, 0), "dims": (4, 1, 2, 3)}

#: Sets without checksums: HDF5 of others.
HDF5: dict[str, Build] = {
    "contiguous": foreign(),
    "contiguous pread": foreign(io="pread"),
    "without labels": foreign(labels=None),
    "flat labels": foreign(labels=np.arange(COUNT, dtype=">i4")),
    "float labels": foreign(labels=np.ones((COUNT, 3), ">f8")),
    "one sample a chunk": foreign(chunks=(1, 8, 7, 3)),
    "seven samples a chunk": foreign(chunks=(7, 8, 7, 3)),
    "seven samples a chunk pread": foreign(chunks=(7, 8, 7, 3), io="pread"),
    "chunks across": foreign(chunks=(4, 3, 7, 2)),
    "chunks across gzip": foreign("uint16", chunks=(5, 3, 2, 2), compression="gzip"),
    "chunks beyond": foreign(chunks=(4, 16, 16, 3), maxshape=(None,) * 4),
    "gzip": foreign(**GZIP),
    "gzip one": foreign(chunks=(1, 8, 7, 3), compression="gzip"),
    "gzip pread": foreign(io="pread", **GZIP),
    "gzip shuffle uint16": foreign("uint16", shuffle=True, **GZIP),
    "gzip shuffle fletcher32": foreign("float64", shuffle=True, fletcher32=True, **GZIP),
    "lzf": foreign(chunks=(4, 8, 7, 3), compression="lzf"),
    "lzf noise": foreign("float64", chunks=(2, 8, 7, 3), compression="lzf"),
    "fletcher32 odd": foreign(shape=(5, 7, 3), chunks=(1, 5, 7, 3), fletcher32=True),
    "shuffle alone": foreign("int16", chunks=(4, 8, 7, 3), shuffle=True),
    "scaleoffset": foreign("int16", chunks=(4, 8, 7, 3), scaleoffset=0, warns="scaleoffset"),
    "scaleoffset across": foreign(
        "u2", chunks=(4, 3, 7, 2), scaleoffset=0, compression="gzip", warns="scaleoffset"
    ),
    "big-endian": foreign("int16", stored_dtype=">i2"),
    "big-endian float": foreign("float32", stored_dtype=">f4"),
    "big-endian gzip": foreign("uint16", stored_dtype=">u2", **GZIP),
    "user block": foreign(user_block=512),
    "user block chunks": foreign(user_block=512, chunks=(2, 8, 7, 3)),
    "user block gzip": foreign(user_block=1024, **GZIP),
    # MATLAB's H x W x C x N lies as (N, C, W, H)
    "MATLAB": foreign(order=(0, 3, 2, 1), dims=(1, 4, 3, 2), user_block=512),
    "NCHW": foreign(**NCHW),
    "NCHW float32": foreign("float32", **NCHW),
    "NCHW gzip": foreign(chunks=(3, 1, 4, 4), compression="gzip", **NCHW),
    "N last": foreign(**N_LAST),
    "N last pread": foreign(io="pread", **N_LAST),
    "N last uint16": foreign("uint16", order=(3, 2, 1, 0), dims=(4, 3, 2, 1)),
    "N last gzip": foreign(chunks=(4, 7, 3, 6), compression="gzip", **N_LAST),
    "N second": foreign(order=(3, 0, 1, 2), dims=(2, 3, 4, 1)),
    "compact": foreign(compact=True),
    **{dtype: foreign(dtype) for dtype in ("i1", "u2", "i2", "i4", "i8", "f2", "f4", "f8", "bool")},
    "one channel": foreign(shape=(9, 6, 1)),
    "five channels": foreign(shape=(6, 9, 5), dims=(1, 2, 3, 4)),
    "float16 gzip": foreign("float16", **GZIP),
    "vectors": foreign("float32", shape=(11,)),
    "numbers": foreign("float64", shape=()),
    "numbers gzip": foreign("int32", shape=(), chunks=(5,), compression="gzip"),
    "numbers big-endian": foreign("int16", shape=(), stored_dtype=">i2"),
    "numbers big-endian compact": foreign("int16", shape=(), stored_dtype=">i2", compact=True),
    "planes big-endian": foreign("int32", shape=(4, 6), stored_dtype=">i4"),
    "five dimensions": foreign("uint16", shape=(2, 3, 4, 3), chunks=(4, 2, 3, 4, 3)),
    "h5py dataset": h5py_dataset,
}
if h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP) and (
    h5py.h5z.get_filter_info(h5py.h5z.FILTER_SZIP) & h5py.h5z.FILTER_CONFIG_ENCODE_ENABLED
):
    HDF5["szip"] = foreign(chunks=(4, 8, 7, 3), compression="szip", warns="szip")

#: What is given as ``data``.
ARRAYS: dict[str, Build] = {
    "array": arrays(lambda images, _: images),
    "array big-endian": arrays(lambda images, _: images.astype(">f4"), "float32"),
    "array strided": arrays(lambda images, _: np.repeat(images, 2, axis=0)[::2]),
    "array reversed": arrays(lambda images, _: images[::-1].copy()[::-1]),
    "array transposed": arrays(lambda images, _: (images.transpose(1, 2, 3, 0), (4, 1, 2, 3))),
    "array fortran": arrays(lambda images, _: np.asfortranarray(images), "int16"),
    "memmap": arrays(mapped, "uint16"),
    "any array": arrays(lambda images, _: Indexed(images)),
    "array strided big-endian": arrays(
        lambda images, _: np.repeat(images.astype(">f4"), 2, axis=0)[::2], "float32"
    ),
    "array of numbers": arrays(lambda rows, _: np.repeat(rows.astype(">i2"), 2)[::2], "int16", ()),
    "any array of numbers": arrays(lambda rows, _: Indexed(rows.astype(">i2")), "int16", ()),
    "zarr": arrays(lambda images, _: zarr.array(images)),
}

#: Files of ours that hold the samples' bytes as they are.
PACKED: dict[str, Build] = {
    "hdf5 raw": ours("raw", "HDF5"),
    "hdf5 raw pread": ours("raw", "HDF5", io="pread"),
    "hdf5 raw grey": ours("raw", "HDF5", channels=1),
    "hdf5 raw compact": ours("raw", "HDF5", side=9, compact=True),
    "hdf5 png": ours("png", "HDF5"),
    "hdf5 png grey": ours("png", "HDF5", channels=1),
    "hdf5 jpeg": ours("jpeg", "HDF5"),
    "hdf5 jpeg pread": ours("jpeg", "HDF5", io="pread"),
    # LMDB: values on the leaf (below half a page) and on pages of their own
    "lmdb raw small": ours("raw", "LMDB", side=9),
    "lmdb raw large": ours("raw", "LMDB", side=60),
    "lmdb raw pread": ours("raw", "LMDB", side=60, io="pread"),
    "lmdb jpeg small": ours("jpeg", "LMDB"),
    "lmdb jpeg large": ours("jpeg", "LMDB", side=150),
    "lmdb png pread": ours("png", "LMDB", io="pread"),
}

#: Sets of ours whose samples lie in chunks, or in several files.
PIECES: dict[str, Build] = {
    "hdf5 raw gzip": ours("raw", "HDF5", chunks=(4, 20, 23, 3), compression="gzip"),
    "hdf5 raw chunks": ours("raw", "HDF5", chunks=(1, 20, 23, 3)),
    "several files": several,
}


@pytest.fixture(scope="class")
def built(case: Build, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The set, built once for all tests that only read it."""
    return case(tmp_path_factory.mktemp("set"))


@pytest.fixture
def fresh(case: Build, tmp_path: Path) -> Built:
    """The set, built for this test alone."""
    return case(tmp_path)


@pytest.mark.some(2)
class TestForeign(SourceContract):
    """Sets without checksums: HDF5 of others, and arrays."""

    case = each_of(HDF5 | ARRAYS)


@pytest.mark.some(2)
class TestPacked(PackedContract):
    """Our own files."""

    case = each_of(PACKED)


class TestPackedInPieces(CheckedSourceContract):
    """Our own files whose samples cannot be found in them as they are."""

    case = each_of(PIECES)


# -- HDF5 alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gzip", "fletcher32"])
def test_damaged_chunk_names_its_samples(tmp_path: Path, how: str) -> None:
    """A chunk that cannot be inflated, or whose sum does not fit, is a DecodeError of each of its
    samples; others are served."""
    path = str(tmp_path / "set.h5")
    images = paint(12, (8, 7, 3))
    filters = {"compression": "gzip"} if how == "gzip" else {"fletcher32": True}
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", data=images, chunks=(4, 8, 7, 3), **filters)
        _, chunk = data.id.read_direct_chunk((4, 0, 0, 0))
    damage(path, chunk)
    source = open_source(path)
    found, _, errors = fill_rows(source, OutputSpec(layout="NHWC"), np.arange(12))
    assert [error.row for error in errors] == [4, 5, 6, 7]
    for row, bad in zip(range(4, 8), errors, strict=True):
        assert isinstance(bad.error, DecodeError)
        assert (bad.error.index, bad.error.path) == (row, path)
        assert how in str(bad.error)
    good = np.delete(np.arange(12), range(4, 8))
    np.testing.assert_array_equal(found[good], images[good])
    with pytest.raises(DecodeError, match="record 6"):
        Inspector(source.first).bytes(6)
    # such a set can still be told from another, and so resumed
    assert fingerprint(source) == fingerprint(source)
    source.close()


@pytest.mark.parametrize("locking", [None, True, False, "best-effort"])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_file_that_is_open_in_h5py(tmp_path: Path, locking: Any, mode: str) -> None:
    """A file that this process has open in h5py, with any locking, is read; h5py's goes on."""
    images = paint(9, (6, 5, 3))
    path = tmp_path / "open.h5"
    hdf5(path, data=images)
    with h5py.File(path, mode, locking=locking) as file:
        with AsyncReader(path=path, batch_size=9, layout="NHWC") as reader:
            np.testing.assert_array_equal(first(reader).data, images)
        np.testing.assert_array_equal(file["data"][3], images[3])


def test_h5py_opens_a_file_that_a_reader_has(tmp_path: Path) -> None:
    """Also where the library keeps the file open for the reader: chunked data sets in groups."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for name in "ab":
            file.create_dataset(f"{name}/x", data=np.arange(8.0), chunks=(2,), compression="gzip")
    with (
        AsyncReader(tmp_path / "set.h5", episodes="groups:*", data_field="x", window=2) as reader,
        h5py.File(tmp_path / "set.h5") as file,
    ):
        assert reader.count == 14
        np.testing.assert_array_equal(file["a/x"][:], np.arange(8.0))


def test_h5py_dataset_in_memory() -> None:
    """A data set of a file without a place on disk is read through h5py itself."""
    images = paint(9, (6, 5, 3))
    with h5py.File("not on disk", "w", driver="core", backing_store=False) as file:
        file["d"] = images
        with AsyncReader(data=file["d"], batch_size=9, layout="NHWC") as reader:
            np.testing.assert_array_equal(first(reader).data, images)


def test_our_data_by_any_name(tmp_path: Path) -> None:
    """Our encoded set stays pictures with checksums, also where a slash leads its name."""
    images = pictures(6)
    path = write_hdf5(tmp_path / "ours.h5", packed(images, "png"))
    with h5py.File(path) as file:
        for given in ({"path": path, "data_field": "/data"}, {"data": file["data"]}):
            with AsyncReader(given, batch_size=6, layout="NHWC", verify="always") as reader:
                np.testing.assert_array_equal(first(reader).data, images)


def test_soft_link_and_group(tmp_path: Path) -> None:
    """Paths in the file and soft links inside it lead to the data."""
    images = paint(5, (6, 5, 3))
    path = tmp_path / "links.h5"
    with h5py.File(path, "w") as file:
        file["a/b/images"] = images
        file["short"] = h5py.SoftLink("/a/b/images")
        file["a/labels"] = np.arange(5)
    for name in ("a/b/images", "/a/b/images", "short"):
        source = open_source(path, Request(name, "a/labels"))
        assert source.labels is not None
        found, _, _ = fill_rows(source, OutputSpec(layout="NHWC"), np.arange(5))
        np.testing.assert_array_equal(found, images)
        source.close()


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4, 5, 6, 3), np.uint8)
    layout[:] = h5py.VirtualSource("elsewhere.h5", "data", (4, 5, 6, 3))
    file.create_virtual_dataset("data", layout)


def outside(file: h5py.File) -> None:
    file.create_dataset("data", (4, 5, 6, 3), np.uint8, external=[("/etc/hostname", 0, 360)])


#: What is put into an HDF5 file, the error, and what that says.
NOT_SERVED: dict[str, tuple[Callable[[h5py.File], Any], type[SourceError], str]] = {
    "link": (
        lambda file: file.update({"data": h5py.ExternalLink("elsewhere.h5", "/data")}),
        FormatError,
        "link into another file",
    ),
    "virtual": (virtual, FormatError, "virtual"),
    "outside": (outside, FormatError, "outside the file"),
    "text": (lambda file: file.update(data=np.array([b"a", b"b"])), FormatError, "plain numbers"),
    "empty": (lambda file: file.update(data=np.zeros((0, 5))), FormatError, "no samples"),
    "scalar": (lambda file: file.update(data=5), FormatError, "no samples"),
    "group": (lambda file: file.create_group("data"), ParamsError, "'data'.*found no fields$"),
}


@pytest.mark.parametrize("case", NOT_SERVED)
def test_hdf5_that_is_not_served(tmp_path: Path, case: str) -> None:
    """What is not samples in this very file is an error that names file and reason."""
    put, error, says = NOT_SERVED[case]
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        put(file)
    with pytest.raises(error, match=says) as caught:
        open_source(tmp_path / "odd.h5")
    assert caught.value.path == str(tmp_path / "odd.h5")


def test_missing_files(tmp_path: Path) -> None:
    """A missing file, also of labels, is a SourceNotFoundError, which is a FileNotFoundError."""
    path = write_hdf5(tmp_path / "ours.h5", packed(paint(4)))
    none = str(tmp_path / "none.h5")
    for given, says in (
        ({"path": none}, "no such file"),
        ({"path": str(tmp_path / "*.hdf5")}, "nothing matches"),
        ({"path": path, "labels_path": none}, "no such labels file"),
    ):
        with pytest.raises(SourceNotFoundError, match=says) as missing:
            AsyncReader(given)
        assert isinstance(missing.value, FileNotFoundError)


#: Sets of every container, each of which is asked for two fields that it lacks.
CONTAINERS: dict[str, Callable[[Path], str]] = {
    **fuzz_layouts.LAYOUTS,
    "ours without labels": lambda folder: write_hdf5(
        folder / "set.h5", packed(paint(4), with_labels=False)
    ),
    "shards of HDF5": lambda folder: str(write_set(folder / "set", paint(23))),
    "shards of LMDB": lambda folder: str(write_set(folder / "set", paint(23), container="lmdb")),
}
for _name in ("pickles", "StyleGAN2", "PCam"):
    del CONTAINERS[_name]


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_field_that_a_set_lacks(tmp_path: Path, name: str) -> None:
    """Whatever the container, a data field, labels field or one of several fields that is not
    there is a ParamsError, and no FileNotFoundError, that lists what is there."""
    path = CONTAINERS[name](tmp_path)
    open_source(path).close()
    for params in (
        {"data_field": "nothing"},
        {"labels_field": "nothing"},
        {"data_field": ["nothing", "less"]},
    ):
        with pytest.raises(ParamsError, match=r"'nothing'.*; found \w") as missing:
            AsyncReader(path=path, **params)
        assert not isinstance(missing.value, OSError)


def test_labels_of_another_file_for_a_set_without(tmp_path: Path) -> None:
    """Labels that are named in another file are served, also with a set packed without labels."""
    path = write_hdf5(tmp_path / "set.h5", packed(paint(4), with_labels=False))
    hdf5(tmp_path / "labels.h5", y=np.arange(4))
    there = {"labels_path": str(tmp_path / "labels.h5"), "labels_field": "y"}
    with AsyncReader(path=path, batch_size=4, **there) as reader:
        np.testing.assert_array_equal(next(iter(reader)).labels, np.arange(4))
    with pytest.raises(ParamsError, match=r"'x'.*found y"):
        AsyncReader(path=path, **{**there, "labels_field": "x"})


@pytest.mark.parametrize("value", [np.array([1, 2]), "HDF5 of ours", 3, np.array([b"a", b"b"])])
def test_foreign_attribute_named_format(tmp_path: Path, value: Any) -> None:
    """A foreign file whose root has a "format" of its own is a foreign file."""
    with h5py.File(tmp_path / "theirs.h5", "w") as file:
        file["data"], file.attrs["format"] = paint(4), value
    assert open_source(tmp_path / "theirs.h5").facts.meta is None


def test_a_set_of_ours_that_lacks_a_part_is_damaged(tmp_path: Path) -> None:
    """A part that every set of ours has is not a field that the caller named: a FormatError."""
    for name in ("data", "labels", "checksums"):
        path = write_hdf5(tmp_path / f"{name}.h5", packed(paint(4)))
        with h5py.File(path, "a") as file:
            del file[name]
        with pytest.raises(FormatError, match=f"its {name} are missing"):
            open_source(path)


@pytest.mark.parametrize("table", ["labels", "checksums", "offsets", "classes"])
def test_changed_table_is_refused(tmp_path: Path, table: str) -> None:
    """Each table is bound to its set: a changed one is a FormatError at opening."""
    path = write_hdf5(tmp_path / "ours.h5", packed(pictures(5), "png"))
    with h5py.File(path, "r+") as file:
        values = file[table][()]
        file[table][...] = values[::-1].copy()
    with pytest.raises(FormatError, match=table):
        open_source(path)
    if table in ("labels", "checksums"):
        lm = write_lmdb(tmp_path / "ours.lmdb", packed(pictures(5), "png"))
        with lmdb.open(lm, max_dbs=8, lock=False) as env:
            database = env.open_db(table.encode())
            with env.begin(write=True, db=database) as transaction:
                value = bytes(transaction.get(b"table"))
                transaction.put(b"table", value[8:] + value[:8])
        with pytest.raises(FormatError, match=table):
            open_source(lm)


def test_not_a_set(tmp_path: Path) -> None:
    """Other files and folders are a FormatError that says what to do."""
    (tmp_path / "text.h5").write_text("no")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.h5").touch()
    for name in ("text.h5", "folder", "empty.h5"):
        with pytest.raises(FormatError, match="asyncreader convert"):
            open_source(tmp_path / name)
    path = write_hdf5(tmp_path / "ours.h5", packed(paint(4)))
    with pytest.raises(FormatError, match="not an LMDB file"):
        AsyncReader(lmdb_path=path)
    with pytest.raises(FormatError, match="not an HDF5 file"):
        AsyncReader(hdf5_path=write_lmdb(tmp_path / "ours.lmdb", packed(paint(4))))


def test_pipes_and_devices_are_never_opened(tmp_path: Path) -> None:
    """A pipe, a device or a dangling link is a typed error at once, not a wait."""
    os.mkfifo(tmp_path / "pipe.h5")
    (tmp_path / "dangling.h5").symlink_to(tmp_path / "none")
    for path in (tmp_path / "pipe.h5", "/dev/zero", tmp_path / "dangling.h5"):
        with pytest.raises(SourceError):
            open_source(path)
    path = write_hdf5(tmp_path / "ours.h5", packed(paint(4)))
    with pytest.raises(SourceError):
        AsyncReader(path=path, labels_path=tmp_path / "pipe.h5")


def test_content_tells_the_format_not_the_suffix(tmp_path: Path) -> None:
    """``path`` goes by what is in the file."""
    images = paint(4)
    one = write_hdf5(tmp_path / "set.lmdb", packed(images))
    two = write_lmdb(tmp_path / "set.h5", packed(images))
    assert open_source(one).facts.container == "HDF5"
    assert open_source(two).facts.container == "LMDB"
    # the data file of an LMDB folder, by its own name
    assert open_source(Path(two) / "data.mdb").facts.container == "LMDB"


def test_lmdb_of_many_pages(tmp_path: Path) -> None:
    """A tree of several levels is walked in key order."""
    images = np.arange(5000, dtype=np.uint16)[:, None].view(np.uint8).reshape(5000, 1, 2, 1)
    path = write_lmdb(tmp_path / "deep.lmdb", packed(images))
    source = open_source(path)
    records = np.random.default_rng(1).permutation(5000)
    found, _, errors = fill_rows(
        source, OutputSpec(layout="NHWC"), records, check=np.ones(5000, np.bool_)
    )
    assert errors == ()
    np.testing.assert_array_equal(found, images[records])
    assert Inspector(source.first).path(4321) == b"photos/4321.png"
    source.close()


def test_paths_whose_tree_is_damaged(tmp_path: Path) -> None:
    """A bad sample is replaced also where its path cannot be looked up for the message: the root
    page of the paths has no child."""
    images = paint(300, (4, 4, 3))
    path = write_lmdb(tmp_path / "deep.lmdb", packed(images))
    file = data_file(path)
    held = bytearray(file.read_bytes())
    tree = LmdbFile(np.frombuffer(bytes(held), np.uint8), path)
    paths = tree.named()[b"paths"]
    assert paths.depth >= 2
    at = paths.root * tree.page_size
    held[at + 12 : at + 14] = (16).to_bytes(2, "little")
    file.write_bytes(held)
    damage(path, images[7].tobytes())
    with AsyncReader(path=path, batch_size=300, on_error="skip") as reader:
        batch = next(iter(reader))
        assert 7 not in batch.indices
        assert reader.stats().bad_samples == 1


# -- several files -------------------------------------------------------------------------------


def test_several_files_keep_their_order(tmp_path: Path) -> None:
    """A list keeps the given order; a glob is sorted; an entry of a list may be a glob."""
    images = pictures(6, (5, 6, 3))
    for name, part in (("a", images[:2]), ("b", images[2:3]), ("c", images[3:])):
        write_hdf5(tmp_path / f"{name}.h5", packed(part))
    a, b, c = (tmp_path / f"{name}.h5" for name in "abc")
    for path, numbers in (
        (str(tmp_path / "*.h5"), [0, 1, 2, 3, 4, 5]),
        ([a, b, c], [0, 1, 2, 3, 4, 5]),
        ([c, b, a], [3, 4, 5, 2, 0, 1]),
        ([str(c), str(tmp_path / "[ab].h5")], [3, 4, 5, 0, 1, 2]),
    ):
        with AsyncReader(path=path, batch_size=6, layout="NHWC") as reader:
            np.testing.assert_array_equal(first(reader).data, images[numbers])


def test_several_files_that_do_not_go_together(tmp_path: Path) -> None:
    """Files that differ in shape, encoding, classes or labels are refused by name."""
    images = pictures(4, (5, 6, 3))
    one = write_hdf5(tmp_path / "one.h5", packed(images))
    for content in (
        packed(pictures(4, (6, 5, 3))),
        packed(images, "png"),
        packed(images, with_labels=False),
        replace(packed(images), classes=("cat", "dog", "pig")),
    ):
        other = write_hdf5(tmp_path / "other.h5", content)
        with pytest.raises(FormatError) as caught:
            open_source([one, other])
        assert caught.value.path == other


def test_fields_of_files_of_which_some_have_checksums(tmp_path: Path) -> None:
    """Where only some files of a list have checksums, those are compared, of each field."""
    images = pictures(7, (9, 9, 3))
    content = packed(images[3:], with_labels=False)
    content.classes = None
    content.fields["mask"] = packed(images[3:], with_labels=False)
    known = write_hdf5(tmp_path / "b.h5", content)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = file["mask"] = images[:3]
    damage(known, images[5].tobytes())
    for names in (["data"], ["data", "mask"]):
        with AsyncReader(
            path=[tmp_path / "a.h5", known], labels_field=None, data_field=names, batch_size=7
        ) as reader:
            reader.fetchData()
            assert "unverified" in repr(reader)
            with pytest.raises(ChecksumError) as caught:
                reader.getNextBatch()
        assert (caught.value.index, caught.value.path) == (5, known)


# -- arrays --------------------------------------------------------------------------------------


def test_arrays_that_are_not_served() -> None:
    """Arrays without samples or numbers, and labels of another length, are ParamsErrors."""
    for data, labels in (
        (np.zeros((0, 3)), None),
        (np.array(5), None),
        (np.array(["a"]), None),
        (np.zeros(3, [("a", "i4")]), None),
        (np.zeros(3, object), None),
        (np.zeros(3, complex), None),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.array(1)),
        (np.zeros(3), np.array(["a", "b", "c"])),
    ):
        with pytest.raises(ParamsError):
            AsyncReader(data=data, labels=labels)


@pytest.mark.parametrize("hidden", [[False] * 6, [True] + [False] * 5])
def test_masked_arrays_are_refused(hidden: list[bool]) -> None:
    """A masked array would be served without its mask: ParamsError that names ``.filled(...)``, as
    data, labels, one of several fields, in a list, and as record numbers."""
    masked = np.ma.MaskedArray(np.arange(6), hidden)
    plain = np.arange(6)
    for params in (
        {"data": masked},
        {"data": plain, "labels": masked},
        {"data": {"a": plain, "b": masked}},
        {"data": [masked, masked]},
        {"data": plain, "labels": list(np.ma.MaskedArray(np.ones((6, 1)), np.ones((6, 1))))},
        {"data": plain, "subset": masked},
    ):
        with pytest.raises(ParamsError, match=r"masked.*\.filled\("):
            AsyncReader(params)


class _Variable:
    """What netCDF4 gives: numbered rows, each a masked array, whether or not one is masked."""

    dtype = np.dtype("float32")

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.shape = rows.shape

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def test_rows_that_are_masked_are_refused() -> None:
    """Rows of an array-like are masked arrays: served while no value is masked, else an error of
    the batch that names the record."""
    rows = np.ma.MaskedArray(np.arange(12, dtype="float32").reshape(4, 3), np.zeros((4, 3)))
    np.testing.assert_array_equal(first_batch(data=_Variable(rows), batch_size=4).data, rows.data)
    rows.mask[2, 1] = True
    with (
        AsyncReader(data=_Variable(rows), batch_size=4) as reader,
        pytest.raises(ParamsError, match=r"masked.*record 2.*\.filled\("),
    ):
        next(iter(reader))


@pytest.mark.slow
def test_patches_of_volumes_with_gaps_in_another_process() -> None:
    """numpy pickles big-endian arrays with gaps in the machine's byte order: their patches have
    their values all the same."""
    volumes = np.repeat(np.arange(96, dtype=">f4").reshape(4, 4, 6), 2, axis=0)[::2]
    given: dict[str, Any] = {"patch": (4, 6), "patch_at": "grid", "sample_axis": 0}
    with AsyncReader(given, data=volumes, batch_size=4, workers="process") as reader:
        np.testing.assert_array_equal(next(iter(reader)).data, volumes)


def test_rows_that_are_not_what_their_array_says() -> None:
    """A row of another dtype or shape than the array says is an error that names the record."""
    for rows in (np.ones((4, 3), "f8"), np.ones((4, 4), "f4"), np.ones(4, "f4")):
        array = Indexed(rows)
        array.shape, array.dtype = (4, 3), np.dtype("f4")
        for dtype in (None, "float64"):
            with (
                AsyncReader(data=array, batch_size=4, dtype=dtype) as reader,
                pytest.raises(ParamsError, match=r"another than its shape and dtype say.*record 0"),
            ):
                next(iter(reader))


def test_lists_are_arrays() -> None:
    """A plain list serves as data and labels."""
    data, labels = first_batch(data=[[1, 2], [3, 4], [5, 6]], labels=[7, 8, 9], batch_size=3)
    np.testing.assert_array_equal(data, [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(labels, [7, 8, 9])
    with pytest.raises(ParamsError):
        AsyncReader(data=[[1, 2], [3]])


# -- identity and I/O ----------------------------------------------------------------------------


def test_fingerprint_tells_sets_apart(tmp_path: Path) -> None:
    """Pixels, labels and count each change a set's fingerprint; the container does not."""
    images = pictures(8, (9, 9, 3))
    base = packed(images)
    other_pixels = images.copy()
    other_pixels[3, 0, 0, 0] ^= 1
    contents = {
        "base": base,
        "pixels": packed(other_pixels),
        "labels": packed(images, labels=np.zeros((8, 1), np.int64)),
        "count": packed(images[:7]),
        "none": packed(images, with_labels=False),
    }
    found = {}
    for name, content in contents.items():
        one = open_source(write_hdf5(tmp_path / f"{name}.h5", content))
        two = open_source(write_lmdb(tmp_path / f"{name}.lmdb", content))
        assert fingerprint(one) == fingerprint(two)
        found[name] = fingerprint(one)
    assert len(set(found.values())) == len(found)
    plain = paint(9, (6, 4, 3))
    prints = {
        fingerprint(index_arrays(array, None, Request()).open())
        for array in (plain, plain[:8], plain.astype("uint16"), plain[::-1].copy())
    }
    assert len(prints) == 4


def test_choice_of_io(tmp_path: Path) -> None:
    """io= is obeyed, "auto" stays adaptive on a local disk, any path's file system can be asked."""
    assert file_system(str(tmp_path)) == file_system(str(tmp_path / "not there"))
    path = write_hdf5(tmp_path / "a.h5", packed(paint(3)))
    for how, kind in (("pread", PreadStore), ("mmap", MappedStore), ("auto", AdaptiveStore)):
        source = open_source(path, io=how)
        assert source.facts.io == how
        assert type(source.first.store) is kind
        source.close()


def test_auto_follows_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "auto" reads cold files by pread and goes over to the mapping once the pages are there."""
    path = write_hdf5(tmp_path / "a.h5", packed(paint(3)))
    share = [0.2]
    monkeypatch.setattr(MappedStore, "cached_share", lambda self: share[0])
    source = open_source(path, io="auto")
    store = source.first.store
    assert type(store.now) is PreadStore
    assert Inspector(source.first).bytes(1) == paint(3)[1].tobytes()
    share[0] = 1.0
    store.will_need(np.array([0]), np.array([8]))
    store._choose(64 << 20)
    assert type(store.now) is MappedStore
    assert Inspector(source.first).bytes(1) == paint(3)[1].tobytes()
    source.close()


def test_nothing_stays_open_after_a_failure(tmp_path: Path) -> None:
    """A set that cannot be opened leaves no descriptor behind."""
    good = write_hdf5(tmp_path / "good.h5", packed(pictures(4, (5, 6, 3))))
    bad = write_hdf5(tmp_path / "bad.h5", packed(pictures(4, (6, 5, 3))))
    lm = write_lmdb(tmp_path / "bad.lmdb", packed(pictures(4, (6, 5, 3))))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        for paths in ([good, bad], [good, lm], [good, str(tmp_path / "none.h5")]):
            with pytest.raises(SourceError):
                open_source(paths)
        with pytest.raises(ParamsError):
            open_source(good, Request("nothing"))
        with pytest.raises(ParamsError):
            AsyncReader(path=good, batch_size=99)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_number_is_never_read_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file closed while a read has begun is read to its end, whoever opens files meanwhile."""
    (tmp_path / "a").write_bytes(b"a" * 4096)
    (tmp_path / "b").write_bytes(b"b" * 4096)
    file = OpenFile(str(tmp_path / "a"), "pread")
    real, others = os.preadv, []

    def late(fd: int, *rest: Any) -> int:
        file.close()  # from another thread, just now
        others.append(os.open(tmp_path / "b", os.O_RDONLY))
        return real(fd, *rest)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "preadv", late)
    assert set(file.store.view(0, 4096).tobytes()) == {ord("a")}
    monkeypatch.undo()
    with pytest.raises(SourceError, match="was closed while it was read"):
        file.store.view(0, 10)
    assert len(os.listdir("/proc/self/fd")) == before  # that of a is gone, that of b has come
    os.close(others[0])
