"""Writer, and convert of samples that are no files: what was added is what is stored and served."""

import contextlib
import errno
import gc
import io
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import child_processes
import h5py
import numpy as np
import pytest
from command_sets import save_images
from converter_corpus import files as files_of
from converter_corpus import stop_at
from fakes import encoded, first_batch, hdf5
from observed import Terminal
from PIL import Image
from split_sets import splits_of

import asyncreader
from asyncreader import (
    AsyncReader,
    ChecksumError,
    FormatError,
    ParamsError,
    ReaderClosedError,
    SampleError,
    SourceError,
    Writer,
    convert,
)
from asyncreader.tools.verify import verify_file
from converters import temp_tables
from converters.outputs.adding import Blocks
from converters.outputs.sharded_set import Workspace

SUFFIXES = (".h5", ".lmdb")
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (5,),
    (3, 4),
    (16, 9, 3),
    (3, 16, 9),
    (2, 3, 4, 5),
    (9, 9),
)
DTYPES = ("u1", "<u2", ">u2", "i4", "?", "<f2", ">f4", "f8", "u8")


def served(row: Any) -> Any:
    """A row as the default layout hands it out: pictures with their channels first."""
    picture = row.ndim == 3 and row.shape[0] > 4 and row.shape[2] <= 4
    return row.transpose(2, 0, 1) if picture else row


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_of_any_dtype_and_shape(tmp_path: Path, suffix: str) -> None:
    """Each dtype and shape, with a field, labels and paths: verified, and served by a Dataset and
    a reader as it was added."""
    rng = np.random.default_rng(0)
    target = tmp_path / f"set{suffix}"
    for number, dtype in enumerate(DTYPES):
        for shape in SHAPES if number < 2 else SHAPES[number % 3 :: 3]:
            rows = (rng.random((6, *shape)) * 200).astype(dtype)
            side = rng.standard_normal((6, 3)).astype("f4")
            with Writer(target, overwrite=True) as writer:
                for i in range(6):
                    writer.add(rows[i], i * 2, path=f"a/{i}", side=side[i])
            assert writer.report is not None
            assert writer.report.count == writer.count == 6
            report = verify_file(str(target))
            assert (report.ok, report.checked) == (True, 12)
            with asyncreader.open(target, data_field=["data", "side"]) as found:
                assert found.paths == [f"a/{i}" for i in range(6)]
                for i in range(6):
                    (row, other), label = found[i]
                    assert row.dtype == rows.dtype.newbyteorder("=")
                    np.testing.assert_array_equal(row, served(rows[i]))
                    np.testing.assert_array_equal(other, side[i])
                    assert label.tolist() == [i * 2]
            data, labels = first_batch(str(target), batch_size=6, verify="always")
            np.testing.assert_array_equal(data, np.stack([served(row) for row in rows]))
            np.testing.assert_array_equal(labels[:, 0], np.arange(6) * 2)


@pytest.mark.slow
def test_blocks_and_single_rows_make_the_same_file(tmp_path: Path) -> None:
    """Bytes do not depend on how samples are added: one by one, many at once, or both. h5py finds
    plain data sets of the dtype and shape that were added."""
    rows = np.random.default_rng(2).standard_normal((5000, 17)).astype("f4")
    labels = np.arange(5000) / 4
    ways: dict[str, Callable[[Writer], object]] = {
        "one": lambda w: [w.add(row, n / 4, double=row * 2) for n, row in enumerate(rows)],
        "many": lambda w: w.add_many(rows, labels, double=rows * 2),
        "both": lambda w: (
            w.add(rows[0], 0.0, double=rows[0] * 2),
            w.add_many(rows[1:4000], labels[1:4000], double=rows[1:4000] * 2),
            [w.add(rows[n], n / 4, double=rows[n] * 2) for n in range(4000, 5000)],
        ),
    }
    for name, way in ways.items():
        with Writer(tmp_path / f"{name}.h5") as writer:
            way(writer)
    (one, *others) = [(tmp_path / f"{name}.h5").read_bytes() for name in ways]
    assert all(other == one for other in others)
    convert((rows, labels), tmp_path / "array.h5", compression="gzip", chunk=7)
    assert verify_file(str(tmp_path / "array.h5")).ok
    for name in ("one", "array"):
        with h5py.File(tmp_path / f"{name}.h5") as file:
            np.testing.assert_array_equal(file["data"][()], rows)
            np.testing.assert_array_equal(file["labels"][:, 0], labels)
            assert file["data"].dtype == np.dtype("<f4")
            if name == "one":
                np.testing.assert_array_equal(file["double"][()], rows * 2)


@pytest.mark.parametrize("held", [100, 1 << 20])
def test_tables_in_memory_and_in_files(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and names come back as they were added, whether they are few or many."""
    monkeypatch.setattr(temp_tables, "HELD", held)
    numbers, names = temp_tables.Numbers("d", 2), temp_tables.Strings()
    rows = np.random.default_rng(0).random((50, 2))
    given = [b"", b"\xff\n\0", b"x" * 100_000, *(b"name %d" % n * (n % 3) for n in range(40))]
    numbers.append(-1.0)
    numbers.append(-2.0)
    for start in range(0, 50, 7):
        numbers.extend(rows[start : start + 7])
    for name in given:
        names.append(name)
    assert np.array_equal(numbers.rows(), [(-1.0, -2.0), *rows])
    assert list(names.freeze()) == [names[n] for n in range(43)] == given
    assert type(names[0]) is bytes
    with pytest.raises(IndexError):
        names[43]
    assert temp_tables.Numbers("q").rows().shape == (0,)
    whole = temp_tables.Numbers("q")
    whole.append(2**62)
    assert whole.rows().tolist() == [2**62]


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}], ids=["lmdb", "gzip"])
def test_memory_that_is_used_again_is_copied(tmp_path: Path, options: Any) -> None:
    """Rows of several blocks, and of a caller's array that changes, are stored as they were added:
    in LMDB, and in chunks, which are written later."""
    target = tmp_path / ("set.h5" if options else "set.lmdb")
    given = np.empty((3, 300_000), "f4")  # a block has no more than one of them
    with Writer(target, **options) as writer:
        for number in range(4):
            given[:] = number
            writer.add(given[0])
            writer.add_many(given[1:2])
            writer.add_many(given)
    with asyncreader.open(target) as found:
        assert [float(found[n].max()) for n in range(20)] == [n // 5 for n in range(20)]


def test_pictures_are_encoded_as_convert_does(tmp_path: Path) -> None:
    """PNG of arrays, in order whatever the threads, with masks as PNG and boxes beside them; a
    file's bytes are kept, or resized; uint16 stays so."""
    rng = np.random.default_rng(3)
    pictures = [rng.integers(0, 256, (20 + n, 30, 3), np.uint8) for n in range(12)]
    masks = [(picture[:, :, 0] > 99).astype("u1") for picture in pictures]
    for jobs in (1, 3):
        with Writer(tmp_path / f"{jobs}.lmdb", encoding="png", jobs=jobs) as writer:
            for n, picture in enumerate(pictures):
                writer.add(picture, f"class {n % 3}", mask=masks[n], box=np.arange(4.0) + n)
    data = [(tmp_path / f"{jobs}.lmdb" / "data.mdb").read_bytes() for jobs in (1, 3)]
    assert data[0] == data[1]
    with asyncreader.open(tmp_path / "1.lmdb", data_field=["data", "mask", "box"]) as found:
        assert found.classes == ("class 0", "class 1", "class 2")
        for n, picture in enumerate(pictures):
            (image, mask, box), label = found[n]
            np.testing.assert_array_equal(image, picture.transpose(2, 0, 1))
            np.testing.assert_array_equal(mask[0], masks[n])
            np.testing.assert_array_equal(box, np.arange(4.0) + n)
            assert label.tolist() == [n % 3]
    deep = rng.integers(0, 65_536, (4, 20, 30)).astype("u2")
    convert(list(deep), tmp_path / "deep.h5", encoding="png")
    with asyncreader.open(tmp_path / "deep.h5") as found:
        np.testing.assert_array_equal(found[0:4][:, 0], deep)
    files = [(encoded(picture), 1) for picture in pictures]
    convert(files, tmp_path / "files.h5", encoding="original")
    convert(iter(files), tmp_path / "small.h5", size=(8, 8))
    with asyncreader.open(tmp_path / "files.h5") as found:
        assert found.sample(3).stored["data"] == files[3][0]
    with asyncreader.open(tmp_path / "small.h5") as found:
        assert (len(found), found[0][0].shape) == (12, (3, 8, 8))


class MapStyle:
    """As torch's map-style datasets: no iterator, and no IndexError at the end."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.full((3, 6), index % 9, "f4"), index


def samples() -> Iterator[dict[str, Any]]:
    for n in range(9):
        yield {"image": np.full((3, 6), n, "f4"), "label": n, "path": f"{n}", "side": [n, 1]}


def test_sources_of_convert(tmp_path: Path) -> None:
    """Arrays, tuples, dicts, a map-style dataset, a generator, an h5py data set: the same rows."""
    rows = np.stack([np.full((3, 6), n, "f4") for n in range(9)])
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        stored = file.create_dataset("x", data=rows, chunks=(2, 3, 6))
        sources: list[Any] = [
            *(rows, list(rows), (row for row in rows), (rows, np.arange(9)), stored),
            *({"data": rows, "labels": np.arange(9)}, [(row, n) for n, row in enumerate(rows)]),
            *(MapStyle(), samples()),
        ]
        for number, source in enumerate(sources):
            told: list[int] = []
            report = convert(source, tmp_path / f"{number}.h5", progress=lambda *n: told.extend(n))  # noqa: B023
            assert report.count == 9
            assert told[-2:] == [9, 9]
            with asyncreader.open(tmp_path / f"{number}.h5", labels_field=None) as found:
                np.testing.assert_array_equal(np.asarray(found[:]), rows)
    with asyncreader.open(tmp_path / "8.h5", data_field="side") as found:
        assert found[4][0].tolist() == [4, 1]
    with asyncreader.open(tmp_path / "7.h5") as found:
        assert convert(found, tmp_path / "again.lmdb").count == 9
    assert verify_file(str(tmp_path / "again.lmdb")).ok


@pytest.mark.slow
@pytest.mark.parametrize("as_dict", [False, True])
def test_a_dataset_is_written_as_it_serves_its_samples(tmp_path: Path, as_dict: bool) -> None:
    """Fields, labels, classes and paths are kept; images stay images, which can be encoded."""
    rng = np.random.default_rng(0)
    source, target = tmp_path / "from.h5", tmp_path / "to.h5"
    with Writer(source, classes=["low", "high"]) as writer:
        for n in range(12):
            image, mask = rng.integers(0, 9, (8, 8, 3), np.uint8), rng.integers(0, 5, (8, 8), "u1")
            pose = rng.random(4, dtype="f4")
            writer.add(image, n % 3 - 1, path=f"a/{n}", mask=mask, pose=pose)  # -1: no class
    cases: list[dict[str, Any]] = [
        {"data_field": ["data", "mask", "pose"], "subset": slice(3, 9), "labels_field": None},
        {"data_field": {"mask": "mask", "data": "data"}, "size": (6, 6), "dtype": "float32"},
        {"data_field": "pose"},
    ]
    for given in cases:
        with asyncreader.open(source, **given, as_dict=as_dict) as ds:
            convert(ds, target, overwrite=True)
            served: Any = asyncreader.open(ds.given, as_dict=True)
            stored = sorted(ds.fields, key="data".__ne__) if len(ds.fields) > 1 else "data"
            found: Any = asyncreader.open(target, data_field=stored, as_dict=True)
            assert found.paths == ds.paths
            assert found.classes == (None if "labels_field" in given else ds.classes)
            for one, wanted in zip(found, served, strict=True):
                if given == {"data_field": "pose"}:
                    wanted["data"] = wanted.pop("pose")
                assert one.keys() == wanted.keys()
                for name, rows in wanted.items():
                    np.testing.assert_array_equal(one[name], rows)
    with asyncreader.open(source) as ds:
        assert convert(ds, tmp_path / "png.h5", encoding="png").encoding == "png"
        with asyncreader.open(tmp_path / "png.h5") as found:
            np.testing.assert_array_equal(found[:][0], ds[:][0])


def test_fields_of_a_dataset_that_would_have_one_name(tmp_path: Path) -> None:
    """Such as a/x and b/x, which are a ParamsError."""
    path = hdf5(tmp_path / "x.h5", **dict.fromkeys(("a/x", "data", "b/x"), np.zeros((3, 5))))
    with (
        asyncreader.open(path, data_field=["a/x", "data", "b/x"], labels_field=None) as ds,
        pytest.raises(ParamsError, match="would have one name"),
    ):
        convert(ds, tmp_path / "y.h5")


@pytest.mark.parametrize("of", ["a list", "a file", "a set"])
def test_classes_renumber_a_dataset_as_they_do_its_file(tmp_path: Path, of: str) -> None:
    """The classes that are given number the names of a dataset's labels, as those of its file; -1
    stays, and a name that they lack is an error."""
    numbers, names = [0, 2, 1, -1, 2], ["cat", "dog", "eel"]
    convert({"data": np.zeros((5, 4)), "label": numbers}, tmp_path / "in.h5", classes=names)
    wanted = ["eel", "owl", "cat", "dog"]
    (tmp_path / "names.txt").write_text("\n".join(wanted))
    convert((([1.0], name) for name in wanted), tmp_path / "names.h5", classes=wanted)
    given: Any = {
        "a list": wanted,
        "a file": tmp_path / "names.txt",
        "a set": tmp_path / "names.h5",
    }
    with asyncreader.open(tmp_path / "in.h5") as ds:
        convert(ds, tmp_path / "out.h5", classes=given[of])
        with pytest.raises(FormatError, match=r"an unknown class.*'eel'"):
            convert(ds, tmp_path / "no.h5", classes=["cat", "dog"])
    convert(tmp_path / "in.h5", tmp_path / "of_file.h5", classes=tmp_path / "names.txt")
    for path in ("out.h5", "of_file.h5"):
        with h5py.File(tmp_path / path) as file:
            found, kept = file["labels"][:, 0], file["classes"].asstr()[:].tolist()
        assert kept == wanted
        assert [n if n < 0 else kept[n] for n in found] == [
            n if n < 0 else names[n] for n in numbers
        ]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_dataset_keeps_several_labels(tmp_path: Path, compression: Any) -> None:
    """One HDF5 file has the first as its labels and the others as fields of their names, which
    labels_field serves again as they were; other targets are told that they cannot."""
    fields = {"data": np.random.default_rng(0).random((7, 5)), "obs/kind": np.arange(7) % 3}
    fields |= {"obs/depth": np.arange(7, dtype="f4"), "obs/pose": np.ones((7, 2), "u1")}
    hdf5(tmp_path / "x.h5", **fields)
    named = ["obs/kind", "obs/depth", "obs/pose"]
    with asyncreader.open(tmp_path / "x.h5", labels_field=named) as ds:
        for target, options in (("y", {"shards": 2, "format": "hdf5"}), ("y.lmdb", {})):
            with pytest.raises(ParamsError, match=r"several labels.*one HDF5 file.*labels_field"):
                convert(ds, tmp_path / target, **options)  # type: ignore[arg-type]
        (note,) = convert(ds, tmp_path / "y.h5", compression=compression).notes
        assert note.startswith("labels_field=['labels', 'depth', 'pose'] serves")
        again: Any = ["labels", "depth", "pose"]
        with asyncreader.open(tmp_path / "y.h5", labels_field=again, subset=slice(1, 6)) as found:
            for (data, labels), (wanted, expected) in zip(found, list(ds)[1:6], strict=True):
                np.testing.assert_array_equal(data, wanted)
                for one, other in zip(labels, expected, strict=True):
                    np.testing.assert_array_equal(np.asarray(one).ravel(), np.ravel(other))
            assert [one.dtype.name for one in found.labels] == ["int64", "float32", "uint8"]
    assert verify_file(str(tmp_path / "y.h5")).ok
    ds = asyncreader.open(tmp_path / "x.h5", labels_field=["obs/kind", "data"])
    with ds, pytest.raises(ParamsError, match="a label and a field would have one name"):
        convert(ds, tmp_path / "z.h5")
    assert not (tmp_path / "z.h5").exists()


@pytest.mark.slow
def test_a_dataset_keeps_its_splits(tmp_path: Path) -> None:
    """Those of the samples that are written, in each format and with a subset, whatever a sample
    is: an image, a window (the split of its anchor, or of its episode), a patch of a volume. Those
    that share samples are left out, as a file has one split for each sample; the report says so."""
    known = {"rows": _with_splits(tmp_path / "rows", (4,)), "maps": {}, "robot.h5": {}}
    known["maps"] = _with_splits(tmp_path / "maps", (6, 8))
    known["robot.h5"] = {0: "train", 2: "train", 3: "valid"}
    with h5py.File(tmp_path / "robot.h5", "w") as file:
        for n in range(4):
            file[f"data/demo_{n}/actions"] = np.full((5, 2), n, "f4")
        file["mask/train"], file["mask/valid"] = [b"demo_2", b"demo_0"], [b"demo_3"]
    shutil.copy(tmp_path / "robot.h5", tmp_path / "shared.h5")
    with h5py.File(tmp_path / "shared.h5", "a") as file:
        file["mask/half"] = [b"demo_2", b"demo_1"]
    robot: dict[str, Any] = {"data_field": "actions", "window": 2}
    cases: list[tuple[str, dict[str, Any]]] = [
        *(("rows", {}), ("rows", {"subset": [7, 2, 2, 9, 0]}), ("rows", {"subset": "val"})),
        *(("robot.h5", robot), ("robot.h5", {**robot, "subset": "train"})),
        ("robot.h5", {**robot, "window": "episode", "max_length": 5}),
        ("maps", {"patch": (3, 3), "patch_at": "grid", "subset": slice(2, 9)}),
    ]
    targets: list[tuple[str, dict[str, Any]]] = [
        *(("x.h5", {}), ("x.lmdb", {}), ("s", {"shards": 1, "format": "lmdb"}))
    ]
    for (source, given), (target, options) in itertools.product(cases, targets):
        with asyncreader.open(tmp_path / source, **given) as ds:
            report = convert(ds, tmp_path / target, overwrite=True, **options)
            served = [np.asarray(row) for row in ds]
        with asyncreader.open(tmp_path / target) as found:
            splits = {int(n): name for name, rows in found.splits.items() for n in rows}
            for number, (row, wanted) in enumerate(zip(found, served, strict=True)):
                np.testing.assert_array_equal(np.asarray(row), wanted)
                assert splits.get(number) == known[source].get(int(wanted.flat[0]))
            assert splits
            assert report.notes == ()
        assert verify_file(str(tmp_path / target)).ok
    with asyncreader.open(tmp_path / "shared.h5", **robot) as ds:
        report = convert(ds, tmp_path / "none.h5")
    assert report.notes == ("the splits of the source share samples, so they are left out",)
    with asyncreader.open(tmp_path / "none.h5") as found:
        assert found.splits == {}


def _with_splits(path: Path, shape: tuple[int, ...] = (4,)) -> dict[int, str]:
    """Ten samples with paths in three splits, as shards: each is filled with its number. Returns
    the split of each."""
    rows = np.zeros((10, *shape)) + np.arange(10).reshape(10, *[1] * len(shape))
    with Writer(path.with_suffix(".h5")) as writer:
        writer.add_many(rows, paths=[f"a/{n}" for n in range(10)])
    split = {"train": 0.5, "val": 0.2, "test": 0.3}
    convert(path.with_suffix(".h5"), path, shards=3, format="hdf5", split=split)
    with asyncreader.open(path) as ds:
        return {int(n): name for name, rows in ds.splits.items() for n in rows}


@pytest.mark.slow
def test_splits_of_a_run_that_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample has its split, in whatever order the samples come again."""
    _with_splits(tmp_path / "from")
    monkeypatch.setattr("converters.writer.PIECE", 64)
    options: Any = {"shards": 2, "format": "hdf5", "resume": True}
    with asyncreader.open(tmp_path / "from") as ds:
        stop_at(5, ds, tmp_path / "to", **options)
    with asyncreader.open(tmp_path / "from", subset=slice(None, None, -1)) as ds:
        assert convert(ds, tmp_path / "to", **options).count == 10
    with asyncreader.open(tmp_path / "to") as ds:
        assert ds.paths != [f"a/{n}" for n in range(9, -1, -1)]
    assert splits_of(tmp_path / "to") == splits_of(tmp_path / "from")


GOOD = np.zeros((3, 4), "f4")

#: What is refused as sample 5000, behind good ones, and a word of the error.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"data": np.zeros((4, 3), "f4"), "label": 1, "side": 0.5}, "differs from the first"),
    "dtype": ({"data": GOOD.astype("f8"), "label": 1, "side": 0.5}, "float64"),
    "ragged": ({"data": [[1, 2], [3]], "label": 1, "side": 0.5}, "no array"),
    "text": ({"data": "abc", "label": 1, "side": 0.5}, "dtype that cannot be stored"),
    "no label": ({"data": GOOD, "side": 0.5}, "other parts"),
    "a path": ({"data": GOOD, "label": 1, "side": 0.5, "path": "x"}, "other parts"),
    "no field": ({"data": GOOD, "label": 1}, "other parts"),
    "a field": ({"data": GOOD, "label": 1, "side": 0.5, "more": 1}, "other parts"),
    "label": ({"data": GOOD, "label": 0.5, "side": 0.5}, "label differs"),
    "masked": ({"data": np.ma.masked_array(GOOD), "label": 1, "side": 0.5}, "mask"),
    "complex": ({"data": GOOD * 1j, "label": 1, "side": 0.5}, "complex"),
    "huge": ({"data": GOOD, "label": 1 << 70, "side": 0.5}, "int64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_sample_that_differs_is_refused_with_its_number(tmp_path: Path, case: str) -> None:
    """It is a ParamsError with its number; nothing is published, also where the caller goes on."""
    given, words = REFUSED[case]

    def write(goes_on: bool) -> None:
        with Writer(tmp_path / "set.h5") as writer:
            writer.add_many(np.zeros((5000, 3, 4), "f4"), np.arange(5000), side=np.zeros(5000))
            with contextlib.suppress(ParamsError) if goes_on else contextlib.nullcontext():
                writer.add(**given)

    with pytest.raises(ParamsError, match=words) as info:
        write(goes_on=False)
    assert info.value.index == 5000
    assert "5000" in str(info.value)
    with pytest.raises(ParamsError, match=r"nothing more can be added.*5000"):
        write(goes_on=True)
    assert os.listdir(tmp_path) == []


def test_nothing_is_published_after_an_error(tmp_path: Path) -> None:
    """An exception of the caller leaves an old set as it was; a closed Writer takes no more."""
    target = tmp_path / "set.h5"
    with Writer(target) as writer:
        writer.add(np.arange(3))
    assert writer.close() == writer.report
    with pytest.raises(ReaderClosedError):
        writer.add(np.arange(3))
    before = target.read_bytes()
    with pytest.raises(ZeroDivisionError), Writer(target, overwrite=True) as writer:
        writer.add(np.arange(4) if writer.count else np.arange(4) // (1 // writer.count))
    assert target.read_bytes() == before
    with pytest.raises(SourceError, match="no sample"), Writer(tmp_path / "none.h5"):
        pass
    files = [{"data": encoded(np.zeros((8, 8, 3), "u1")), "path": f"{n}.png"} for n in range(40)]
    files[3]["data"] = b"no picture"
    with pytest.raises(SampleError) as info:
        convert(files, tmp_path / "bad.h5", encoding="original")
    assert (info.value.index, info.value.source_path) == (3, "3.png")
    assert os.listdir(tmp_path) == ["set.h5"]


@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_a_writer_that_is_lost_leaves_nothing(tmp_path: Path, encoding: Any) -> None:
    """One that is never closed gives its lock, files and threads back; a cell is run again."""
    for _ in range(2):
        threads = threading.active_count()
        writer = Writer(tmp_path / "set.h5", encoding=encoding)
        writer.add(np.zeros((8, 8, 3), "u1"))
        del writer
        assert os.listdir(tmp_path) == []
        assert threading.active_count() == threads


def test_a_field_may_be_called_self(tmp_path: Path) -> None:
    """ "self" is a name like others, and so is a name of a class that is numpy's."""
    convert([{"data": GOOD, "self": 1, "label": np.str_("a")}], tmp_path / "self.h5")
    with asyncreader.open(tmp_path / "self.h5", data_field="self") as found:
        assert (found[0][0], type(found.classes[0])) == (1, str)


@pytest.mark.parametrize("label", [0.5, float("nan"), 1.0, np.float16(1), np.array([0.0, 1.0])])
@pytest.mark.parametrize("number", [0, 3])
def test_class_numbers_are_whole(tmp_path: Path, label: Any, number: int) -> None:
    """Where classes are given, a label that is no whole number is refused, whichever sample has
    it: one by one, of many, of arrays and of a Dataset."""
    rows, labels = np.zeros((5, *GOOD.shape), "f4"), [0, 1, -1, 0, 1]

    def add(target: Path) -> None:
        with Writer(target, classes=["a", "b"]) as writer:
            for n, row in enumerate(rows):
                writer.add(row, label if n == number else labels[n])

    words = "no whole number" if number == 0 else "differs from the first"
    with pytest.raises(ParamsError, match=words) as caught:
        add(tmp_path / "x.h5")
    assert caught.value.index == number
    if np.ndim(label) == 0:
        real = np.array([*labels[:number], label, *labels[number + 1 :]], "f8")
        with asyncreader.open(hdf5(tmp_path / "theirs.h5", data=rows, labels=real)) as ds:
            for source in ((rows, real), ds):
                with pytest.raises(ParamsError, match="no whole number"):
                    convert(source, tmp_path / "x.h5", classes=["a", "b"])
        (tmp_path / "theirs.h5").unlink()
    assert os.listdir(tmp_path) == []


def test_one_label_and_many_have_two_names(tmp_path: Path) -> None:
    """A label of add() that is called labels, and those of add_many() that are called label, are
    ParamsErrors which say so, and so is a label beside the classes; nothing is written."""
    rows = np.zeros((2, *GOOD.shape), GOOD.dtype)
    with pytest.raises(ParamsError, match="write labels="), Writer(tmp_path / "x.h5") as writer:
        writer.add_many(rows, label=[0, 1])
    with pytest.raises(ParamsError, match="write label="):
        Writer(tmp_path / "x.h5").add(GOOD, labels=0)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["u1", ">u2", "f4", "f8"])
def test_shards_of_any_shape(tmp_path: Path, dtype: str) -> None:
    """Numbers, and rows with the shape of a grey picture, keep their shapes in shards of each
    container, and so do such fields; sets that hold them are copied. Readers serve them."""
    rng = np.random.default_rng(9)
    for shape, other in (((), (5, 4)), ((6, 5), ())):
        rows = (rng.random((7, *shape)) * 200).astype(dtype)
        side = (rng.random((7, *other)) * 200).astype(dtype)
        given = {"data": rows, "side": side}
        for format in ("hdf5", "lmdb"):
            convert(given, tmp_path / format, shards=2, format=format, overwrite=True)
        convert(given, tmp_path / "one.h5", overwrite=True)
        convert(str(tmp_path / "one.h5"), tmp_path / "copy.lmdb", overwrite=True)
        for name in ("hdf5", "lmdb", "one.h5", "copy.lmdb"):
            assert verify_file(str(tmp_path / name)).ok
            with AsyncReader(tmp_path / name, data_field=["data", "side"], batch_size=7) as reader:
                served, beside = next(iter(reader)).data
                np.testing.assert_array_equal(served, rows)
                np.testing.assert_array_equal(beside, side)


def test_columns_may_be_lists(tmp_path: Path) -> None:
    """Labels, paths and rows in lists are columns, as arrays are; a tuple is data and labels."""
    rows, names, target = np.arange(6).reshape(3, 2), ["b", "a", "b"], tmp_path / "a.h5"
    sources: list[Any] = [(rows, names), {"data": rows.tolist(), "label": names}]
    sources += [({"data": rows, "labels": names, "paths": ["x", "y", "z"]})]
    for number, source in enumerate(sources):
        convert(source, target, overwrite=True)
        with asyncreader.open(target) as found:
            np.testing.assert_array_equal(found[:][0], rows)
            assert found.labels[:, 0].tolist() == [1, 0, 1]
            assert found.paths == (["x", "y", "z"] if number == 2 else [None] * 3)
    convert((rows[:, 0], [7, 8, 9]), target, overwrite=True)  # not two samples of three numbers
    with asyncreader.open(target) as found:
        assert found.labels.ravel().tolist() == [7, 8, 9]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With resume what was finished is kept and not made again; the result is the same set."""
    monkeypatch.setattr("converters.writer.PIECE", 2000)
    made: list[int] = []

    def run(stop: int, target: Path, **options: Any) -> None:
        with Writer(target, shards=4, resume=True, **options) as writer:
            for n in range(stop):
                if f"{n}" not in writer:
                    made.append(n)
                    writer.add(np.full((8, 9), n, "u2"), n, path=f"{n}")
            if stop < 60:
                raise ZeroDivisionError

    run(60, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError) as info:
        run(41, tmp_path / "set")
    assert "resume goes on with it" in info.value.__notes__[0]
    with pytest.raises(SourceError, match="pass resume"):
        Writer(tmp_path / "set", shards=4)
    with pytest.raises(SourceError, match="other options, or samples of another kind"):
        run(60, tmp_path / "set", encoding="png")
    made.clear()
    run(60, tmp_path / "set")
    assert made == list(range(28, 60))
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole")
    keyed = [{"data": np.full(300, n), "path": f"{n % 9}"} for n in range(18)]
    with pytest.raises(ParamsError, match="two samples have the same path"):
        convert(keyed, tmp_path / "twice", shards=2, resume=True)
    with pytest.raises(ParamsError, match="resume needs the path"):
        convert([np.arange(3)], tmp_path / "none", shards=1, resume=True)
    assert sorted(n for n in os.listdir(tmp_path) if "twice" not in n) == ["set", "whole"]


@pytest.fixture
def resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Writer]:
    """Opens a Writer that resumes; a file of its shards is finished after 10 samples of row()."""
    monkeypatch.setattr("converters.writer.PIECE", 400)
    return lambda: Writer(tmp_path / "set", shards=2, resume=True)


def row(number: int) -> dict[str, Any]:
    """A sample of 40 bytes, with its key."""
    return {"data": np.full(10, number, "f4"), "path": f"{number}"}


#: A program that ends without closing its Writer.
ENDS = """
import sys, numpy, converters.writer
converters.writer.PIECE = 400
writer = converters.writer.Writer(sys.argv[1], shards=2, resume=True)
for number in range(25):
    writer.add(numpy.full(10, number, "f4"), path=f"{number}")
"""


def known(writer: Writer) -> int:
    """How many samples an interrupted run has finished."""
    return sum(f"{number}" in writer for number in range(100))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["lost", "abandoned", "process", "unreadable"])
def test_what_was_finished_outlives_its_writer(
    tmp_path: Path, resumable: Callable[[], Writer], end: str
) -> None:
    """However a Writer with resume ends, with or without a block around it, the next one has what
    was finished, and there is no lock."""
    if end == "process":
        child_processes.run([sys.executable, "-c", ENDS, tmp_path / "set"]).check_returncode()
    else:
        writer = resumable()
        for number in range(25):
            writer.add(**row(number))
        if end != "lost":
            writer.abandon()
        del writer
    pieces = tmp_path / ".set.asyncreader-tmp" / "pieces"
    first = pieces / min(os.listdir(pieces))
    if end == "unreadable":
        whole = first.read_bytes()
        first.write_bytes(whole[:500])
        with pytest.raises(SourceError, match=r"cannot be read.*remove that file") as caught:
            resumable()
        assert caught.value.path == str(first)
        first.write_bytes(whole)
    with resumable() as again:
        assert known(again) == 20
        for number in range(30):
            again.add(**row(number))
    with asyncreader.open(tmp_path / "set") as found:
        assert sorted(found.paths) == sorted(f"{number}" for number in range(30))
    assert os.listdir(tmp_path) == ["set"]


def test_a_finished_file_that_was_removed_takes_no_other_with_it(
    tmp_path: Path, resumable: Callable[[], Writer]
) -> None:
    """Its samples are added again, to a file whose name no other has."""
    writer = resumable()
    for number in range(40):
        writer.add(**row(number))
    writer.abandon()
    pieces = tmp_path / ".set.asyncreader-tmp" / "pieces"
    (pieces / sorted(os.listdir(pieces))[1]).unlink()
    for name in ("unfinished.h5", "unfinished.h5.side"):  # of a run that was killed
        (pieces.parent / name).write_bytes(b"half")
    with resumable() as again:
        assert known(again) == 30
        for number in range(50):
            again.add(**row(number))
        assert "unfinished.h5.side" not in os.listdir(pieces.parent)
    with asyncreader.open(tmp_path / "set") as found:
        assert sorted(found.paths) == sorted(f"{number}" for number in range(50))


def test_memory_does_not_grow_with_the_finished_files(resumable: Callable[[], Writer]) -> None:
    """Nothing of a file of samples stays in memory when it is finished."""
    with resumable() as writer:
        for number in range(85):
            writer.add(**row(number))
        gc.collect()
        assert sum(isinstance(one, Blocks) for one in gc.get_objects()) == 1


@pytest.mark.parametrize("name", ["set.h5", "set"])
def test_no_space_for_tables_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Where no space is left for temporary files, that is told, and the target is as it was."""

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(temp_tables, "HELD", 1000)
    monkeypatch.setattr(temp_tables, "_temporary", full)
    options: dict[str, Any] = {"shards": 2} if name == "set" else {}
    wanted = pytest.raises(SourceError, match=r"no space for temporary files.*TMPDIR")
    with wanted, Writer(tmp_path / name, **options) as writer:
        for number in range(1000):
            writer.add(**row(number))
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone gives parts of files back")
@pytest.mark.parametrize("kind", ["raw", "png", "lengths", "grey"])
def test_space_is_given_back_as_samples_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What is in a finished shard takes its space once. A run that ends then goes on with nothing
    made again; with other options it is refused, and it tells that a finished shard is gone. In how
    many files samples are kept is not seen in the set."""
    monkeypatch.setattr("converters.writer.PIECE", 100_000)
    rows = np.random.default_rng(0).integers(0, 256, (48, 64, 64, 3), dtype=np.uint8)
    differ = {"variable_length": ["data", "n"]}
    options = {"png": {"encoding": "png"}, "lengths": differ}.get(kind, {})

    def run(target: Path, shards: int = 4) -> list[int]:
        made = []
        with Writer(target, shards=shards, resume=True, **options) as writer:
            for number, sample in enumerate(rows):
                if f"{number}" not in writer:
                    made.append(number)
                    sample = sample[: number + 9] if kind == "lengths" else sample
                    sample = sample[..., 0] if kind == "grey" else sample
                    values = {"n": np.arange(number), "side": rows[0] + number}
                    if kind != "lengths":
                        del values["n"]
                    writer.add(sample, number, path=f"{number}", **values)
        return made

    def finish(workspace: Workspace, number: int, *given: Any) -> None:
        real(workspace, number, *given)
        if number == 2:
            raise KeyboardInterrupt

    real, target = Workspace.finish, tmp_path / "set"
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            run(target)
    left = tmp_path / ".set.asyncreader-tmp"
    facts = [file.stat() for file in (left / "pieces").iterdir()]
    there = sum(one.st_blocks * 512 for one in facts) / sum(one.st_size for one in facts)
    assert len(facts) > 2
    assert 0.3 < there < 0.7
    with pytest.raises(SourceError, match="other sources or options"):
        run(target, shards=5)
    shutil.copytree(left, tmp_path / ".gone.asyncreader-tmp")
    os.unlink(tmp_path / ".gone.asyncreader-tmp" / "set" / "shard-00000-of-00004.h5")
    with pytest.raises(ChecksumError, match=r"given back, so remove.*to start over"):
        run(tmp_path / "gone")
    assert run(target) == []
    monkeypatch.undo()
    run(tmp_path / "whole")
    assert files_of(target) == files_of(tmp_path / "whole")


@pytest.mark.parametrize("name", ["set", "set.h5", "set.lmdb"])
def test_a_forked_child_has_no_part_in_a_writer(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot add samples, leaves the target, the workspace and the tables on disk alone however
    it ends, and keeps no lock when its parent has published."""
    monkeypatch.setattr(temp_tables, "HELD", 10)
    options: dict[str, Any] = {"shards": 2} if name == "set" else {}
    writer = Writer(tmp_path / name, **options)
    for number in range(15):
        writer.add(**row(number))
    (ready, is_ready), (begin, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(end)
            for act in (lambda: writer.add(**row(15)), writer.close, writer.__enter__().close):
                with pytest.raises(ReaderClosedError, match="forked from"):
                    act()
            with contextlib.suppress(ZeroDivisionError), writer:
                raise ZeroDivisionError
            writer.abandon()
            del act, writer
            gc.collect()
            os.close(is_ready)
            os.read(begin, 1)  # until the parent is done
            code = 0
        finally:
            os._exit(code)
    os.close(begin)
    os.close(is_ready)
    os.read(ready, 1)  # until the child is done
    os.close(ready)
    try:
        for number in range(15, 20):
            writer.add(**row(number))
        writer.close()
        with asyncreader.open(tmp_path / name) as found:
            np.testing.assert_array_equal(found[:][:, 0], np.arange(20))
            assert found.paths == [f"{number}" for number in range(20)]
        with Writer(tmp_path / name, overwrite=True, **options) as again:
            again.add(**row(0))
            again.add(**row(1))
    finally:
        os.close(end)
        assert os.waitpid(child, 0)[1] == 0
    assert os.listdir(tmp_path) == [name]


def test_progress_is_one_line_where_a_person_looks_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal a line is written and removed; with progress=False, or elsewhere, nothing."""
    rows = np.zeros((50, 3))
    for number, (stream, progress) in enumerate(
        ((Terminal(), None), (Terminal(), False), (io.StringIO(), None))
    ):
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        convert(rows, tmp_path / f"{number}.h5", progress=progress)
        said = stream.getvalue()
        assert ("converting: 50 of 50" in said) == (number == 0)
        assert said.endswith("\r") == (number == 0)
        assert "\n" not in said


def test_progress_in_a_notebook_replaces_one_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a notebook's kernel the line is one output, replaced and empty at the end; IPython in a
    terminal is no notebook."""
    shown: list[tuple[str, str, bool]] = []

    def publish(data: dict[str, str], transient: dict[str, str], update: bool) -> None:
        shown.append((data["text/plain"], transient["display_id"], update))

    for number, config in enumerate(({"IPKernelApp": {}}, {})):
        ipython = SimpleNamespace(
            get_ipython=lambda config=config: SimpleNamespace(config=config),
            display=SimpleNamespace(publish_display_data=publish),
        )
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        convert(np.zeros((50, 3)), tmp_path / f"{number}.h5")
    assert shown[-2][0].startswith("converting: 50 of 50, ")
    assert shown[-1][0] == ""
    assert [update for _, _, update in shown] == [False] + [True] * (len(shown) - 1)
    assert len({key for _, key, _ in shown}) == 1
    assert capsys.readouterr() == ("", "")


def test_a_report_is_a_table_in_notebooks(tmp_path: Path) -> None:
    """It says what was packed and, of what was skipped, where and why, as far as there is room."""
    image = Image.new("RGB", (4, 4))
    folder = save_images(tmp_path / "a<b>", {"x/good.png": image, "y/good.png": image})
    page = convert(folder, tmp_path / "set.h5")._repr_html_()
    assert "2 samples" in page
    assert "2: x, y" in page
    assert "skipped" not in page
    for number in range(7):
        (folder / "x" / f"{number}.png").write_text("<html>")
    page = convert(folder, tmp_path / "bad.h5", skip_bad=True)._repr_html_()
    assert "skipped: 7" in page
    assert page.count("not an image of a kind that is read") == 5
    assert "<html>" not in page


@pytest.mark.parametrize("many", [1, 1 << 30])
@pytest.mark.parametrize("wide", [5, 300])
def test_verify_finds_a_changed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int, wide: int
) -> None:
    """One byte of one row: compiled code that hashes many rows names it, and so does the other."""
    rows = np.arange(700 * wide, dtype=np.float32).reshape(700, wide)
    with Writer(tmp_path / "set.h5") as writer:
        writer.add_many(rows)
    monkeypatch.setattr("asyncreader.tools.verify._MANY", many)
    assert verify_file(str(tmp_path / "set.h5")).ok
    with h5py.File(tmp_path / "set.h5", "r+") as file:
        file["data"][413, 2] += 1
    report = verify_file(str(tmp_path / "set.h5"))
    assert report.bad == 1
    assert "record 413" in report.problems[0]
