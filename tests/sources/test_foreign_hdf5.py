"""Foreign HDF5 sets: Fuel's splits and shapes, variable length, known names."""

import os
import re
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import h5py
import numpy as np
import pytest
from command_sets import run
from fakes import epoch_of, first_batch, hdf5, packed, paint, pictures, put_compact, write_hdf5

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError
from asyncreader.sources import Inspector, Request, open_source
from asyncreader.sources.hdf5 import blocks
from asyncreader.sources.request import NoFieldError
from asyncreader.tools.verify import verify_file
from converters import convert

COUNT = 12
IMAGES = paint(COUNT, (8, 7, 3))
FILES = foreign.files(pictures(COUNT, (9, 11, 3)))
LABELS = np.arange(COUNT, dtype=np.uint8)[:, None]


def served(path: str, **params: Any) -> tuple[np.ndarray, np.ndarray | None, list[int]]:
    given = {"path": path, "batch_size": 3, "layout": "NHWC", "last_batch": "short", **params}
    data, labels, records = epoch_of(given)
    return data, labels, records.tolist()


# -- Fuel ------------------------------------------------------------------------------------------


def write_fuel(path: Path, rows: list[Any], labelled: int = COUNT, **more: Any) -> str:
    with h5py.File(path, "w") as file:
        file["features"] = IMAGES.transpose(0, 3, 1, 2)
        foreign.label_axes(file["features"])
        file["targets"] = LABELS[:labelled]
        for name, value in more.items():
            file[name] = value
        foreign.fuel_split(file, rows)
    return str(path)


def both(split: str, start: int, stop: int, indices: str | None = None) -> list[Any]:
    return [(split, name, start, stop, indices, True) for name in ("features", "targets")]


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("listed", [False, True])
def test_an_empty_split_is_refused(tmp_path: Path, files: int, listed: bool) -> None:
    """A split without samples, a range or a list of records, of one file or of several joined,
    selects nothing."""
    rows = [*both("train", 0, 8), *both("test", 0, 0, "none" if listed else None)]
    none = np.empty(0, np.int64)
    paths = [write_fuel(tmp_path / f"{n}.hdf5", rows, none=none) for n in range(files)]
    with pytest.raises(ParamsError, match="subset selects nothing"):
        AsyncReader(path=paths, subset="test", batch_size=2)


def test_fuel_splits(tmp_path: Path) -> None:
    """subset names a split: a range, or the data set of indices that it refers to, sorted."""
    rows = [*both("train", 0, 8), *both("test", 8, 12), *both("odd", 0, 0, "chosen")]
    rows += both("far", 0, 99)  # more than there are: not offered
    path = write_fuel(tmp_path / "set.hdf5", rows, chosen=np.array([7, 1, 3, 11]))
    source = open_source(path)
    assert source.facts.layout == "Fuel (features, labels from targets), contiguous"
    assert set(source.splits) == {"train", "test", "odd"}
    for name, records in (("train", range(8)), ("test", range(8, 12)), ("odd", (1, 3, 7, 11))):
        data, labels, indices = served(path, subset=name)
        assert indices == list(records)
        np.testing.assert_array_equal(data, IMAGES[indices])
        np.testing.assert_array_equal(labels, LABELS[indices])
    with pytest.raises(ParamsError, match=r"no split 'valid' .*'train' or 'test' or 'odd'"):
        AsyncReader(path=path, subset="valid")
    out = tmp_path / "out.h5"
    report = convert(path, out, params={"subset": "odd"}, shuffle=5)
    assert report.count == 4
    data, labels, _ = served(str(out))
    assert labels is not None
    np.testing.assert_array_equal(data, IMAGES[labels[:, 0]])
    assert sorted(labels[:, 0].tolist()) == [1, 3, 7, 11]


def test_fuel_splits_without_indices(tmp_path: Path) -> None:
    """A table of splits from before Fuel had ``indices`` is read as one with empty ones."""
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["features"], file["targets"] = IMAGES.transpose(0, 3, 1, 2), LABELS
        table = foreign.fuel_split(file, both("train", 0, 9) + both("test", 9, COUNT))
        kept = [name for name in table.dtype.names or () if name != "indices"]
        old = np.zeros(table.shape, [(name, table.dtype[name]) for name in kept])
        for name in kept:
            old[name] = table[name]
        file.attrs["split"] = old
    source = open_source(tmp_path / "x.hdf5")
    assert source.facts.layout.startswith("Fuel (features, labels from targets)")
    assert source.splits == {"train": slice(0, 9), "test": slice(9, COUNT)}


def test_fuel_splits_without_labels(tmp_path: Path) -> None:
    """Samples without labels stand behind the others: served by labels_field=None only."""
    rows = [
        *both("train", 0, 8),
        ("test", "features", 8, 12, None, True),
        ("test", "targets", 0, 0, None, False),
    ]
    path = write_fuel(tmp_path / "set.hdf5", rows, labelled=8)
    source = open_source(path)
    assert (source.facts.count, set(source.splits)) == (8, {"train"})
    np.testing.assert_array_equal(served(path)[0], IMAGES[:8])
    with pytest.raises(ParamsError, match=r"no split 'test'.*labels_field=None also reads splits"):
        AsyncReader(path=path, subset="test")
    data, labels, indices = served(path, subset="test", labels_field=None)
    assert (labels, indices) == (None, [8, 9, 10, 11])
    np.testing.assert_array_equal(data, IMAGES[8:])


def test_fuel_of_several_files(tmp_path: Path) -> None:
    """A split of several files is that of each, one behind the other."""
    a = write_fuel(tmp_path / "a.hdf5", [*both("train", 0, 5), *both("test", 5, 12)])
    b = write_fuel(tmp_path / "b.hdf5", [*both("train", 9, 12), *both("x", 0, 2)])
    _, _, indices = served([a, b], subset="train")  # type: ignore[arg-type]
    assert indices == [0, 1, 2, 3, 4, COUNT + 9, COUNT + 10, COUNT + 11]
    with pytest.raises(ParamsError, match="expected 'train'"):
        AsyncReader(path=[a, b], subset="test")


@pytest.mark.parametrize("names", [("data", "labels"), ("features", "targets")])
def test_no_attribute_is_a_split_by_its_looks(tmp_path: Path, names: tuple[str, str]) -> None:
    """Root attributes of two whole numbers are no splits, whatever the data are called: nothing
    says what they mean. ``subset``, ``splits``, ``info`` and ``convert`` know none."""
    path = tmp_path / "set.h5"
    with h5py.File(path, "w") as file:
        file[names[0]], file[names[1]] = IMAGES, LABELS
        file.attrs["value_range"], file.attrs["version"] = np.array([0, 9]), np.array([0, 2])
        file.attrs["train"], file.attrs["test"] = np.array([0, 9]), np.array([9, 12])
    params = {"data_field": names[0], "labels_field": names[1]}
    with asyncreader.open(path, **params) as dataset:
        assert dataset.splits == {}
    with pytest.raises(ParamsError, match="no split 'train'"):
        AsyncReader(path=path, subset="train", **params)
    assert "splits" not in run("info", path).output
    convert(path, tmp_path / "out.h5", params=params)
    assert open_source(tmp_path / "out.h5").splits == {}


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (both("a", 5, 3), "split 'a' of 'features' is not a valid range.*found 5 to 3"),
        (both("a", -1, 3), "is not a valid range"),
        (both("a", 0, 0, "negative"), "names records below 0"),
        (both("a", 0, 0, "floats"), "not a list of records"),
        (both("a", 0, 0, "group"), "is not a dataset"),
        (both("a", 0, 0, "virtual"), "virtual dataset"),
    ],
)
def test_damaged_fuel_split(tmp_path: Path, rows: list[Any], match: str) -> None:
    """Splits that make no sense, or refer to what is not in the file, are FormatErrors."""
    layout = h5py.VirtualLayout((3,), "i8")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "x", (3,))
    with h5py.File(tmp_path / "set.hdf5", "w") as file:
        file["features"], file["targets"] = IMAGES, LABELS
        file["negative"], file["floats"] = np.array([3, -1]), np.array([0.5])
        file.create_group("group")
        file.create_virtual_dataset("virtual", layout)
        foreign.fuel_split(file, rows)
    with pytest.raises(FormatError, match=match):
        open_source(tmp_path / "set.hdf5")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t + 1, r"record 0\]; found 162 values of shape \(4, 7, 10\)"),
        (lambda t: t[:, :2], "are not images"),
        (lambda t: t[:-1], "table of shapes has the wrong shape"),
        (lambda t: t * 1.0, "table of shapes has the wrong shape"),
        (lambda t: np.where(np.arange(COUNT)[:, None] == 4, -t, t), r"record 4\]"),
        (lambda t: np.where(np.arange(COUNT)[:, None] == 4, 1 << 30, t), r"record 4\]"),
        (lambda t: t[:, [1, 0, 2]], r"number of channels differs from the first.*record 1\]"),
    ],
)
def test_damaged_shapes(tmp_path: Path, change: Any, match: str) -> None:
    """Shapes that do not fit the pixels are FormatErrors that name the record."""
    with pytest.raises(FormatError, match=match):
        open_source(foreign.write_varied_fuel(tmp_path / "set.hdf5", COUNT, change))


# -- variable length -------------------------------------------------------------------------------


def write_vlen(path: Path, values: Any = None, **storage: Any) -> str:
    with h5py.File(path, "w") as file:
        foreign.vlen(file, "images", FILES if values is None else values, **storage)
        file["labels"] = LABELS
    return str(path)


#: A number of the element of sample 4, of its heap or of its object there, what is written in its
#: place (a function of the heap's address, the file's size and the object's address), and what the
#: error says.
HEAP: dict[str, tuple[str, Any, str]] = {
    "address far": ("address", 1 << 40, "its heap lies outside the file"),
    "address near": ("address", lambda heap, *_: heap + 8, "its heap is none"),
    "address end": ("address", lambda heap, size, _: size - 4, "its heap (lies outside|is none)"),
    "address wraps": ("address", (1 << 64) - 16, "its heap lies outside the file"),
    "object": ("number", 999, "it is not in its heap"),
    "object far": ("number", 1 << 30, "number out of range"),
    "object 0": ("number", 0, "it is not in its heap"),
    "length": ("length", (1 << 32) - 1, "longer than its heap object"),
    "length a bit": ("length", len(FILES[4]) + 1, "longer than its heap object"),
    "signature": ("signature", 7, "its heap is none"),
    "heap size": ("heap size", 1 << 50, "its heap is cut short"),
    "heap size 0": ("heap size", 0, "its heap is cut short"),
    "object size": ("object size", 1 << 60, "its heap is damaged"),
    "object size a bit": ("object size", lambda heap, _, at: heap + 4096 - at, "heap is damaged"),
    "object size wraps": ("object size", (1 << 64) - 1, "its heap is damaged"),
}


def poke(what: str, value: Any, raw: bytearray, path: str) -> None:
    """Write a number into the element of sample 4, or into its heap."""
    with h5py.File(path) as file:
        at = file["images"].id.get_offset() + 16 * 4
    _, heap, index = struct.unpack_from("<IQI", raw, at)
    place = heap + 16
    while struct.unpack_from("<H", raw, place)[0] != index:
        place += 16 + (struct.unpack_from("<Q", raw, place + 8)[0] + 7) // 8 * 8
    where, form = {
        "length": (at, "<I"),
        "address": (at + 4, "<Q"),
        "number": (at + 12, "<I"),
        "signature": (heap, "<I"),
        "heap size": (heap + 8, "<Q"),
        "object size": (place + 8, "<Q"),
    }[what]
    struct.pack_into(form, raw, where, value(heap, len(raw), place) if callable(value) else value)


@pytest.mark.parametrize("case", HEAP)
@pytest.mark.parametrize("few", [0, blocks.FEW], ids=["together", "one by one"])
def test_damaged_heap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, few: int) -> None:
    """Whatever an element or its heap claims is held against the file; the record is named."""
    monkeypatch.setattr(blocks, "FEW", few)
    (what, value, match), path = HEAP[case], write_vlen(tmp_path / "set.h5")
    raw = bytearray(Path(path).read_bytes())
    poke(what, value, raw, path)
    Path(path).write_bytes(raw)
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    assert caught.value.path == path
    # a damaged heap is that of several samples: one of them is named
    alone = what in ("length", "address", "number")
    assert caught.value.index in ((4,) if alone else range(COUNT))


def test_a_table_that_ends_with_the_file(tmp_path: Path) -> None:
    """The last byte of a file may be that of a table, of any order of bytes."""
    path = hdf5(tmp_path / "set.h5", data=np.zeros((1000, 12)), labels=np.arange(1000, dtype=">i8"))
    with h5py.File(path) as file:
        assert file["labels"].id.get_offset() + 8000 == path.stat().st_size
    assert first_batch(path, batch_size=1000).labels.tolist() == [*range(1000)]


def test_elements_of_no_length(tmp_path: Path) -> None:
    """An empty element is a bad sample, not a bad set."""
    values = [*FILES[:3], b"", *FILES[4:]]
    path = write_vlen(tmp_path / "set.h5", values)
    batch = first_batch(path=path, batch_size=COUNT, on_error="zero")
    assert batch.mask.tolist() == [i != 3 for i in range(COUNT)]
    report = verify_file(path, decode=True)
    assert (report.bad, report.decoded) == (1, COUNT)


def test_what_vlen_cannot_be(tmp_path: Path) -> None:
    """Elements that are no image files need Fuel's shapes; a data set of variable length that was
    created and never written, or that is a table, is refused."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        foreign.vlen(file, "text", [b"text", b"more"])
        file.create_dataset("never", (3,), h5py.vlen_dtype("u1"))
        file.create_dataset("table", (3, 2), h5py.vlen_dtype("u1"))
    for name, match in (
        ("text", r"neither image files nor shapes.*record 0\]"),
        ("never", None),
        ("table", "not a list of samples"),
    ):
        with pytest.raises(FormatError, match=match):
            open_source(tmp_path / "set.h5", Request(name))


@pytest.mark.parametrize("few", [0, 1, blocks.FEW])
def test_many_objects_in_a_heap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Small elements share heaps; rewritten ones leave holes; all are found."""
    monkeypatch.setattr(blocks, "FEW", few)
    small = foreign.files(paint(300, (2, 2, 3)))
    with h5py.File(tmp_path / "set.h5", "w") as file:
        data = foreign.vlen(file, "images", small)
        for i in range(0, 300, 7):
            data[i] = np.frombuffer(FILES[0], np.uint8)
            file[f"between {i}"] = np.zeros(4096, np.uint8)  # a heap that is followed ends
        for i in range(0, 300, 7):
            data[i] = np.frombuffer(small[i], np.uint8)
    source = open_source(tmp_path / "set.h5")
    assert [Inspector(source.first).bytes(i) for i in range(300)] == small


# -- known names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", ["a/b/c/d/e/f/g/h/x", "episodes/{}/steps/obs/x", "611645479/patch_0/x"]
)
def test_fields_many_groups_deep_are_found(
    tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups deep data sets lie, in however many groups, and where groups go round in
    circles, the error lists them, and so does info."""
    monkeypatch.chdir(tmp_path)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(300 if "{" in names else 1):
            file[names.format(number)] = np.zeros((5, 3))
        top = next(iter(file))
        file[f"{top}/again"] = file[top]
    with pytest.raises(ParamsError, match=r"no field 'data'.*found [a-z0-9_/]*/x \(5 x 3 float64"):
        open_source(tmp_path / "x.h5")
    assert re.search(r"/x +5 x 3 .*float64", run("info", "x.h5").output)


def test_fuel_sequences_of_variable_shape(tmp_path: Path) -> None:
    """Numbers whose shapes are no images' are refused with the parameter that serves them."""
    rows = [np.arange(3 * n, dtype="f4") for n in (1, 3, 2)]
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        data = foreign.vlen(file, "features", rows)
        foreign.shapes(file, data, [(1, 3), (3, 3), (2, 3)])
        foreign.fuel_split(file, [("train", "features", 0, 3, None, True)])
    with pytest.raises(FormatError, match="max_length=N serves their numbers in one row"):
        AsyncReader(path=tmp_path / "x.hdf5")
    with asyncreader.open(tmp_path / "x.hdf5", max_length=9) as dataset:
        for number, row in enumerate(rows):
            np.testing.assert_array_equal(dataset[number][: row.size], row)


def test_groups_that_go_by_a_usual_name(tmp_path: Path) -> None:
    """A group named "data" is no field, and the error lists what is in it; one named "labels" that
    nobody named is no labels."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data/x"], file["y"], file["labels/z"] = IMAGES, IMAGES, LABELS
    for given in ({}, {"data_field": "y", "labels_field": "data"}):
        with pytest.raises(ParamsError, match=r"no field '\w+'.*found data/x.*labels/z"):
            AsyncReader(path=tmp_path / "x.h5", **given)
    with asyncreader.open(tmp_path / "x.h5", data_field="y") as dataset:
        assert dataset.labels is None
    elsewhere = {"data_field": "y", "labels_path": tmp_path / "x.h5"}
    with pytest.raises(ParamsError, match="no field 'labels'"):
        asyncreader.open(tmp_path / "x.h5", **elsewhere)


@pytest.mark.parametrize("kind", ["fixed", "variable", "chunked"])
def test_labels_that_are_text(tmp_path: Path, kind: str) -> None:
    """Labels that are text, of fixed or variable length, under the usual name, under another and in
    another file, are sorted classes; several files have those of all."""
    texts = [["owl", "cat", "owl", "é"], ["ape", "owl", "ape", "cat"]]
    dtype = None if kind == "fixed" else h5py.string_dtype()
    more = {"chunks": (3,), "compression": "gzip"} if kind == "chunked" else {}
    for number, words in enumerate(texts):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["data"] = np.arange(8.0).reshape(4, 2)
            for name in ("labels", "kinds"):
                values = [word.encode() for word in words] if dtype is None else words
                file.create_dataset(name, data=values, dtype=dtype, **more)
    one = tmp_path / "0.h5"
    for given in ({}, {"labels_field": "kinds"}, {"labels_path": one, "labels_field": "kinds"}):
        with asyncreader.open(one, **given) as dataset:
            assert dataset.classes == ("cat", "owl", "é")
            np.testing.assert_array_equal(dataset.labels, [1, 0, 1, 2])
    with asyncreader.open(tmp_path / "*.h5") as dataset:
        assert dataset.classes == ("ape", "cat", "owl", "é")
        np.testing.assert_array_equal(dataset.labels, [2, 1, 2, 3, 0, 2, 0, 1])
    with h5py.File(one, "a") as file:
        file["few"] = np.array([b"a", b"b"])
    with pytest.raises(FormatError, match="another number of rows"):
        asyncreader.open(one, labels_field="few")


def matlab(file: h5py.File, name: str, values: Any, kind: str, **said: int) -> None:
    """A variable as MATLAB's -v7.3 writes it: axes reversed, its class beside it."""
    file[name] = values
    file[name].attrs["MATLAB_class"] = np.bytes_(kind)
    for word, number in said.items():
        file[name].attrs[word] = np.uint8(number)


def test_what_matlab_stores_for_other_things_than_numbers(tmp_path: Path) -> None:
    """Of a MAT-file of version 7.3 numbers are served; the size that stands for an empty matrix,
    the codes of text, and references to cells are refused with what they are, and not listed as
    fields: as data, as labels, and in groups."""
    path = tmp_path / "x.mat"
    with h5py.File(path, "w") as file:
        matlab(file, "X", np.arange(6.0).reshape(2, 3), "double")
        matlab(file, "none", np.array([10, 0], "u8"), "double", MATLAB_empty=1)
        matlab(file, "words", np.array([[97, 98], [99, 100]], "u2"), "char", MATLAB_int_decode=2)
        matlab(file, "flags", np.array([[0, 1]], "u1").T, "logical", MATLAB_int_decode=1)
        cells = np.array([file["X"].ref] * 2, h5py.ref_dtype)
        matlab(file, "cells", cells, "cell")
        for number in range(2):
            matlab(file, f"g/demo_{number}/none", np.array([3, 0], "u8"), "double", MATLAB_empty=1)
            file[f"g/demo_{number}/x"] = np.zeros((2, 3))
    for name, what in {
        "none": "the size of an array that is empty in MATLAB",
        "words": "text as character codes",
        "cells": "references to other arrays",
    }.items():
        for given in ({"data_field": name}, {"data_field": "X", "labels_field": name}):
            with pytest.raises(FormatError, match=f"'{name}' holds no samples.*found {what}"):
                AsyncReader(path=path, **given)
    groups = {"episodes": "groups:g/demo_*", "labels_field": None}
    with pytest.raises(FormatError, match=r"holds no samples.*empty in MATLAB"):
        asyncreader.open(path, data_field="none", **groups)
    with pytest.raises(FormatError, match=r"holds no samples.*empty in MATLAB"):
        asyncreader.open(path, data_field="x", episodes="groups:g/demo_*", labels_field="none")
    with asyncreader.open(path, data_field=["X", "flags"]) as dataset:
        np.testing.assert_array_equal(dataset[:][0], np.arange(6.0).reshape(2, 3))
        np.testing.assert_array_equal(dataset[:][1], [[0], [1]])
    listed = run("info", path).output
    assert re.search(r"X +2 x 3 .*float64, in MATLAB 3 x 2\n", listed)
    with pytest.raises(NoFieldError, match=r"words \(2 x 2 text as character codes") as caught:
        AsyncReader(path=path)
    assert set(caught.value.there) == {"X", "flags", "g/demo_0/x", "g/demo_1/x"}


def frame(file: h5py.File, name: str, kind: str, **parts: Any) -> None:
    """A frame of pandas' in the group ``name``."""
    for part, values in parts.items():
        file[f"{name}/{part}"] = values
    file[name].attrs["pandas_type"] = np.bytes_(kind)


def test_frames_of_pandas(tmp_path: Path) -> None:
    """A frame of one dtype is served by its name, and without one where it is the only one, in the
    formats fixed, whose columns have names, and table, without its index; of several dtypes the
    error lists the parts, which can be named."""
    values, names = np.arange(40.0).reshape(10, 4), np.array([b"a", b"b", b"c", b"d"])
    rows = np.zeros(10, [("index", "i8"), ("values_block_0", "f8", (4,)), ("n", "i8")])
    rows["values_block_0"], rows["n"], rows["index"] = values, np.arange(10), 77
    fixed, table, two = tmp_path / "fixed.h5", tmp_path / "table.h5", tmp_path / "two.h5"
    with h5py.File(fixed, "w") as file:
        frame(file, "df", "frame", block0_values=values, block0_items=names, axis0=names)
    with h5py.File(table, "w") as file:
        frame(file, "df", "frame_table", table=rows[["index", "values_block_0"]])
        file["df/_i_table/index/bounds"] = np.zeros((99, 99))
    with h5py.File(two, "w") as file:
        parts = {"block0_values": values, "block1_values": np.arange(10)[:, None]}
        frame(file, "mixed", "frame", **parts)
        frame(file, "a/s", "series", values=values[:, 0])
        frame(file, "t", "frame_table", table=rows)
    for given in ({}, {"data_field": "df"}):
        for path in (fixed, table):
            with asyncreader.open(path, **given) as dataset:
                np.testing.assert_array_equal(dataset[:], values)
                assert "pandas" in dataset.source.facts.layout
    with asyncreader.open(fixed, columns=["d", "b"]) as dataset:
        np.testing.assert_array_equal(dataset[:], values[:, [3, 1]])
    with asyncreader.open(two, data_field="a/s") as dataset:
        np.testing.assert_array_equal(dataset[:], values[:, 0])
    with asyncreader.open(
        two, data_field=["mixed/block0_values", "mixed/block1_values"]
    ) as dataset:
        np.testing.assert_array_equal(dataset[:][1], np.arange(10)[:, None])
    for name, part in (
        ("mixed", r"mixed/block0_values \(10 x 4 float64\), mixed/block1_values"),
        ("t", r"t/table.values_block_0 \(10 x 4 float64\), t/table.n \(10 int64\).*members=\["),
    ):
        with pytest.raises(ParamsError, match=part):
            asyncreader.open(two, data_field=name)
    with pytest.raises(NoFieldError) as caught:
        asyncreader.open(two)
    assert "_i_table" not in str(caught.value)


def test_loom_files(tmp_path: Path) -> None:
    """Cells are the columns of a loom file's matrices; genes go by name or number, and a column
    attribute of text is classes."""
    counts = np.arange(24.0, dtype="f4").reshape(4, 6)
    path = tmp_path / "x.loom"
    with h5py.File(path, "w") as file:
        file["matrix"], file["layers/spliced"] = counts, counts * 2
        file["row_attrs/Gene"], file["col_attrs/age"] = list("abcd"), np.arange(6)
        file["col_attrs/kind"] = ["T", "B", "T", "B", "B", "T"]
    given = {"labels_field": "col_attrs/kind", "columns": ["c", "a"]}
    with asyncreader.open(path, data_field="layers/spliced", **given) as dataset:
        np.testing.assert_array_equal(dataset[:][0], counts.T[:, [2, 0]] * 2)
        np.testing.assert_array_equal(dataset.labels, [1, 0, 1, 0, 0, 1])
        assert dataset.classes == ("B", "T")
    with asyncreader.open(path, labels_field="col_attrs/age") as dataset:
        np.testing.assert_array_equal(dataset[:][0], counts.T)
    with pytest.raises(ParamsError, match="unknown column"):
        asyncreader.open(path, columns=["z"])


def test_datasets_that_are_one_sample_each(tmp_path: Path) -> None:
    """Data sets of a group are episodes, or samples, with data_field=".", in the order of the
    numbers in their names; labels are attributes of each."""
    rows = [np.arange(3 * n, dtype="f4").reshape(n, 3) for n in (2, 4, 1)]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, values in zip(("p1", "p10", "p2"), rows, strict=True):
            file[f"emb/{name}"] = values
            file[f"emb/{name}"].attrs["family"] = f"f{len(values) % 2}"
    given = {"episodes": "groups:emb/*", "data_field": ".", "labels_field": "@family"}
    with asyncreader.open(tmp_path / "x.h5", window="episode", max_length=4, **given) as dataset:
        assert dataset.classes == ("f0", "f1")
        for number, values in enumerate((rows[0], rows[2], rows[1])):
            np.testing.assert_array_equal(dataset[number][0][: len(values)], values)
        np.testing.assert_array_equal([dataset[n][1] for n in range(3)], [0, 1, 0])
    with asyncreader.open(tmp_path / "x.h5", window=2, **given) as dataset:
        assert len(dataset) == 1 + 3
    with pytest.raises(ParamsError, match=r"'emb/p1' is a dataset, not a group.*data_field='\.'"):
        asyncreader.open(tmp_path / "x.h5", **{**given, "data_field": "x"})


@pytest.mark.parametrize("how", ["renamed", "in place"])
def test_groups_of_a_file_that_is_another_by_now(how: str, tmp_path: Path) -> None:
    """Groups that are opened when they are read, after the file was replaced or written anew with
    larger chunks, are refused: no addresses of one file are used with bytes of the other, and
    nothing is decoded into memory for less."""

    def write(path: Path, value: int, chunk: int) -> None:
        with h5py.File(path, "w") as file:
            for n in range(4):
                data = np.full((200, 100), value + n, "i4")
                file.create_dataset(
                    f"data/demo_{n}/x", data=data, chunks=(chunk, 100), compression="gzip"
                )
            file["more"] = np.zeros(1 << 16)

    path = tmp_path / "a.h5"
    write(path, 0, 5)
    with asyncreader.open(path, data_field="x", episodes="groups:data/demo_*") as dataset:
        other = path if how == "in place" else tmp_path / "b.h5"
        write(other, 50, 200)
        os.replace(other, path)
        with pytest.raises(FormatError, match=r"replaced|changed|not what it was"):
            dataset[[10, 700]]


#: Attributes of a field of int16, and what the warning says of them; None: no warning.
PACKED: dict[str, tuple[dict[str, Any], str | None]] = {
    "fill": ({"_FillValue": np.int16(-9)}, r'_FillValue = -9\): values="physical"'),
    "an array": ({"missing_value": np.array([-9], "i2")}, r"missing_value = -9\)"),
    "scale": (
        {"scale_factor": 0.5, "add_offset": np.array([20.0])},
        r'scale_factor = 0.5, add_offset = 20.0\): values="physical"',
    ),
    "unsigned": ({"_Unsigned": "true"}, r"_Unsigned = true\)"),
    "as usual": ({"scale_factor": 1.0, "add_offset": 0, "_FillValue": np.nan}, None),
    "text": ({"missing_value": "none", "units": "K"}, None),
}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("case", PACKED)
def test_attributes_of_packed_and_missing_values(case: str, grouped: bool, tmp_path: Path) -> None:
    """A field whose attributes say that its numbers are packed or missing is served as stored, and
    one warning names them and says what to write, which makes the values."""
    attributes, says = PACKED[case]
    params: dict[str, Any] = {"data_field": "t", "labels_field": None, "path": tmp_path / "x.nc"}
    params |= {"episodes": "groups:g/demo_*"} if grouped else {}
    stored = np.arange(12, dtype="i2").reshape(4, 3)
    with h5py.File(tmp_path / "x.nc", "w") as file:
        for name in ("g/demo_0/t", "g/demo_1/t") if grouped else ("t",):
            file[name] = stored
            file[name].attrs.update(attributes)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with asyncreader.open(**params) as dataset:
            np.testing.assert_array_equal(dataset[:4], stored)
    assert len(told) == (says is not None)
    if says is not None:
        assert re.search(rf"field 't' is served as stored.*{says}", str(told[0].message))
    if case == "scale":
        unpacked = {"dtype": "float32", "scale": 0.5, "mean": -20.0, "std": 1}
        with pytest.warns(match="packed"), asyncreader.open(**params, **unpacked) as dataset:
            np.testing.assert_array_equal(dataset[:4], stored * 0.5 + 20)


def test_pcam_by_name(tmp_path: Path) -> None:
    """Two files: found beside each other, or named; (N, 1, 1, 1) labels are packed as (N, 1)."""
    labels = LABELS.reshape(COUNT, 1, 1, 1)
    hdf5(tmp_path / "p_x.h5", x=IMAGES)
    with pytest.raises(ParamsError, match=r"no field 'data'.*found x"):
        open_source(tmp_path / "p_x.h5")
    hdf5(tmp_path / "elsewhere.h5", y=labels)
    given = {"labels_path": str(tmp_path / "elsewhere.h5")}
    np.testing.assert_array_equal(served(str(tmp_path / "p_x.h5"), **given)[1], labels)
    os.rename(tmp_path / "elsewhere.h5", tmp_path / "p_y.h5")
    for more in ({}, {"data_field": "x"}):
        np.testing.assert_array_equal(served(str(tmp_path / "p_x.h5"), **more)[1], labels)
    convert(tmp_path / "p_x.h5", tmp_path / "out.h5")
    np.testing.assert_array_equal(served(str(tmp_path / "out.h5"))[1], LABELS)
    assert served(str(tmp_path / "p_x.h5"), labels_field=None)[1] is None
    hdf5(tmp_path / "p_y.h5", y=labels[:-1])
    with pytest.raises(FormatError, match="another number of rows"):
        open_source(tmp_path / "p_x.h5")


def test_labels_of_text_say_what_to_do(tmp_path: Path) -> None:
    """Labels of several texts each, and arrays of text, are errors that show how to go on with
    numbers, or without them."""
    data, text = np.zeros((4, 8, 8, 3), np.uint8), np.array(["cat", "dog", "cat", "cat"])
    for number, labels in enumerate((text.astype("S3"), text.astype(object))):
        path = str(tmp_path / f"{number}.h5")
        hdf5(path, data=data, labels=np.stack([labels, labels], axis=1))
        with pytest.raises(FormatError, match=r"np\.unique.*labels_field=None"):
            open_source(path)
        assert served(path, labels_field=None)[1] is None
    with pytest.raises(ParamsError, match=r"np\.unique"):
        AsyncReader(data=data, labels=text)


@pytest.mark.parametrize("rows", [COUNT + 5, COUNT - 5])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("plain", name) for name in ("labels", "label", "targets", "target", "y")),
        *((kind, "labels") for kind in ("val_images", "images", "imgs")),
        ("features", "targets"),
    ],
)
def test_labels_of_another_number_are_refused(
    tmp_path: Path, kind: str, name: str, rows: int
) -> None:
    """More or fewer labels than samples: a FormatError, under every name, in every layout, and in
    one file of a list; labels_field=None reads the set without them."""
    params: dict[str, Any] = {"path": str(tmp_path / "set.h5")}
    params |= {"data_field": kind} if kind == "val_images" else {}
    params |= {"labels_field": name} if name == "y" else {}
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file[name] = np.zeros(rows)
        if kind == "images":
            foreign.vlen(file, kind, foreign.files(IMAGES))
        else:
            planes = IMAGES.transpose(0, 3, 1, 2)
            file["data" if kind == "plain" else kind] = planes if kind == "imgs" else IMAGES
        if kind == "val_images":
            file["images"] = IMAGES.repeat(2, 0)
        if kind == "features":
            foreign.fuel_split(file, both("train", 0, 4))
    if kind != "features" or rows > COUNT:  # there samples without labels stand after the others
        for one in (params, {**params, "path": [params["path"]] * 2}):
            with pytest.raises(FormatError, match=r"another number of rows.*labels_field=None"):
                AsyncReader(one)
    assert served(**params | {"labels_field": None})[1] is None


def test_any_names_in_convert(tmp_path: Path) -> None:
    """convert reads any names and axes by ``params``, and refuses what is not of reading."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["deep/pixels"], file["deep/kinds"] = IMAGES.transpose(1, 2, 3, 0), LABELS
    params = {"dataField": "deep/pixels", "labels_field": "deep/kinds"}
    axes = {"num_dim": 4, "h_dim": 1, "w_dim": 2, "cha_dim": 3}
    convert(tmp_path / "set.h5", tmp_path / "out.lmdb", params={**params, **axes})
    data, labels, _ = served(str(tmp_path / "out.lmdb"))
    np.testing.assert_array_equal(data, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    with pytest.raises(ParamsError, match=r"params say how.*found batch_size"):
        convert(tmp_path / "set.h5", tmp_path / "x.h5", params={"batch_size": 3})
    (tmp_path / "folder").mkdir()
    with pytest.raises(ParamsError, match="params say how a dataset is read"):
        convert(tmp_path / "folder", tmp_path / "x.h5", params=params)


def test_our_own_names_win(tmp_path: Path) -> None:
    """A set of ours is read as it says, whatever else lies in it."""
    path = write_hdf5(tmp_path / "ours.h5", packed(IMAGES))
    with h5py.File(path, "a") as file:
        file["targets"] = LABELS
        file.attrs["train"] = np.array([0, 3])
    source = open_source(path)
    assert source.facts.meta is not None
    assert source.splits == {}


# -- the structure of a file -----------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 512, 4096])
def test_rows_that_were_never_written(tmp_path: Path, block: int) -> None:
    """Contiguous rows without storage are refused, in files with a user block, too, where the
    library says that they begin at its last byte."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=block) as file:
        file["x"], file["y"] = np.arange(40, dtype=np.int8), np.arange(40)
        file.create_dataset("never", (40,), "i1")
        file.create_dataset("demo_0/never", (40,), "i1")
        file["demo_0/x"] = np.arange(40)
    for params in (
        {"data_field": "never", "labels_field": None},
        {"data_field": "x", "labels_field": "never"},
        {"data_field": "never", "labels_field": None, "episodes": "groups:demo_*"},
    ):
        with pytest.raises(FormatError, match="stores none"):
            AsyncReader(params, path=path)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("block", [0, 512])
def test_groups_that_are_stored_differently(tmp_path: Path, libver: str, block: int) -> None:
    """The rows of groups whose data sets are contiguous or in chunks of other
    extents, filters and versions of HDF5's headers, which may go on in another block,
    or reached by a link, are served as they were written."""
    rng = np.random.default_rng(5)
    stored: list[dict[str, Any]] = [
        {"chunks": (4, 3), "compression": "gzip"},
        {"chunks": (7, 2), "compression": "gzip", "maxshape": (None, 3)},
        {"chunks": (4, 3), "compression": "lzf"},
        {"chunks": (5, 3)},
        {},
        {"chunks": (4, 3), "compression": "gzip", "compression_opts": 9, "shuffle": True},
    ]
    for first in range(len(stored)):
        path, rows = tmp_path / f"{first}.h5", [rng.normal(size=(9 + i, 3)) for i in range(6)]
        with h5py.File(path, "w", libver=libver, userblock_size=block) as file:
            for i, values in enumerate(rows):
                how = stored[(first + i) % len(stored)]
                made = file.create_dataset(f"demo_{i}/x", data=values, **how)
                for number in range(12 if i % 2 else 0):
                    made.attrs[f"note {number}"] = "x" * 60
            file["demo_8"] = h5py.SoftLink("demo_0")
        given = {"episodes": "groups:demo_*", "data_field": "x", "last_batch": "short"}
        with AsyncReader(given, path=path, batch_size=7) as reader:
            served = np.concatenate([batch.data.copy() for batch in reader])
        np.testing.assert_array_equal(served, np.concatenate([*rows, rows[0]]))


#: What a group among others may hold that is not served, and what the error says.
ODD: dict[str, tuple[Callable[[h5py.Group], Any], str]] = {
    "virtual": (
        lambda group: group.create_virtual_dataset("x", h5py.VirtualLayout((4, 3), "f8")),
        "virtual",
    ),
    "outside": (
        lambda group: group.create_dataset("x", (4, 3), "f8", external=[("a.raw", 0, 96)]),
        "outside the file",
    ),
    "compact": (lambda group: put_compact(group, "x", np.zeros((4, 3))), "inside its header"),
    "scalar": (lambda group: group.update(x=3.5), "another kind"),
    "other byte order": (lambda group: group.update(x=np.zeros((4, 3), ">f8")), "another kind"),
    "other dtype": (lambda group: group.update(x=np.zeros((4, 3), "i4")), "another kind"),
    "other shape": (lambda group: group.update(x=np.zeros((4, 2))), "another kind"),
}


@pytest.mark.parametrize("case", ODD)
def test_groups_of_which_one_is_odd(tmp_path: Path, case: str) -> None:
    """What is not rows of numbers in this file, or not such rows as those of the first group, is
    refused in a group, too."""
    put, says = ODD[case]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["demo_0/x"] = np.zeros((4, 3))
        put(file.create_group("demo_1"))
    with pytest.raises(FormatError, match=says):
        AsyncReader(path=tmp_path / "a.h5", episodes="groups:demo_*", data_field="x")


def test_a_tree_of_chunks_is_checked_when_it_is_reached(tmp_path: Path) -> None:
    """The tree of the chunks of a data set is checked before the HDF5 library follows it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=IMAGES, chunks=(1, 8, 7, 3))
    content = bytearray(path.read_bytes())
    node = content.index(b"TREE\x01")  # of the chunks
    content[node + 5] = 200
    path.write_bytes(content)
    with pytest.raises(FormatError, match="a tree that does not go down"):
        open_source(path)


def test_a_tree_of_names_is_checked_when_it_is_reached(tmp_path: Path) -> None:
    """The tree of names of a group is checked when the group is reached, before the HDF5 library
    follows it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["first/late/data"] = IMAGES
        header = h5py.h5o.get_info(file["first/late"].id).addr
    content = bytearray(path.read_bytes())
    kind, tree = struct.unpack_from("<HxxxxxxQ", content, header + 16)
    assert (kind, content[tree : tree + 5]) == (0x11, b"TREE\0")  # a symbol table, in a tree
    asked = Request(data="first/late/data", labels=None)
    open_source(path, asked).close()
    content[tree + 5] = 200
    path.write_bytes(content)
    with pytest.raises(FormatError, match="a tree that does not go down"):
        open_source(path, asked)
