"""Foreign HDF5 sets: Fuel's splits and shapes, variable length, known names."""

from __future__ import annotations

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
from click.testing import CliRunner
from fakes import encoded, packed, paint, pictures, write_hdf5

import asyncreader
from asyncreader import (
    AsyncReader,
    AsyncReaderError,
    DecodeError,
    FormatError,
    ParamsError,
)
from asyncreader.cli.main import cli
from asyncreader.pixels.geometry import choose_rect, resize_into
from asyncreader.sources import Inspector, Request, fields_of, open_source
from asyncreader.sources.bytestore import OpenFile
from asyncreader.sources.hdf5 import structure, vlen
from asyncreader.sources.hdf5.file import Hdf5
from asyncreader.sources.request import NoFieldError
from asyncreader.tools.verify import verify_file
from converters import convert

COUNT = 12
IMAGES = paint(COUNT, (8, 7, 3))
FILES = foreign.files(pictures(COUNT, (9, 11, 3)))
LABELS = np.arange(COUNT, dtype=np.uint8)[:, None]


def served(path: str, **params: Any) -> tuple[np.ndarray, np.ndarray | None, list[int]]:
    with AsyncReader(
        {"path": path, "batch_size": 3, "layout": "NHWC", "epochs": 1, "last_batch": "short"},
        **params,
    ) as reader:
        data, labels, indices = [], [], []
        for batch in reader:
            data.append(batch.data.copy())
            labels += [] if batch.labels is None else [batch.labels.copy()]
            indices += batch.indices.tolist()
    return np.concatenate(data), np.concatenate(labels) if labels else None, indices


# -- Fuel ------------------------------------------------------------------------------------------


def write_fuel(path: Path, rows: list[Any], labelled: int = COUNT, **more: Any) -> str:
    with h5py.File(path, "w") as file:
        file["features"] = IMAGES.transpose(0, 3, 1, 2)
        for dim, name in zip(
            file["features"].dims, ("batch", "channel", "height", "width"), strict=True
        ):
            dim.label = name
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
    assert "splits" not in CliRunner().invoke(cli, ["info", str(path)]).output
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


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("used", ["data", "labels", "split", "listed"])
def test_virtual_sets_are_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: str, userblock: int
) -> None:
    """HDF5 is never asked to open a virtual data set, whose list of sources may be forged: not as
    data, labels, a split's indices or a name that an error lists."""
    layout = h5py.VirtualLayout((COUNT,), "i8")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "x", (COUNT,))
    name = {"data": "data", "labels": "labels"}.get(used, "virtual")
    path = tmp_path / "set.h5"
    with h5py.File(path, "w", userblock_size=userblock, libver="latest") as file:
        file.create_virtual_dataset(name, layout)
        if used == "split":
            file["features"], file["targets"] = IMAGES, LABELS
            foreign.fuel_split(file, both("a", 0, 0, "virtual"))
        elif used == "labels":
            file["data"] = IMAGES
    opened: list[bytes] = []
    real = h5py.h5o.open

    def open_object(group: Any, name: bytes, **more: Any) -> Any:
        opened.append(name)
        return real(group, name, **more)

    monkeypatch.setattr(h5py.h5o, "open", open_object)
    monkeypatch.setattr(h5py.h5r, "dereference", lambda *_: opened.append(name.encode()))
    with pytest.raises(AsyncReaderError, match=name):
        open_source(path)
    assert name.encode() not in opened


def test_a_split_beyond_the_data(tmp_path: Path) -> None:
    """A split of more records than there are is not offered."""
    path = write_fuel(tmp_path / "set.hdf5", [*both("train", 0, 99), *both("test", 0, 3)])
    assert set(open_source(path).splits) == {"test"}


def write_varied(path: Path, change: Callable[[np.ndarray], np.ndarray] | None = None) -> str:
    images = foreign.varied(COUNT)
    table = np.array([(3, i.shape[0], i.shape[1]) for i in images], np.int32)
    with h5py.File(path, "w") as file:
        flat = [np.ascontiguousarray(i.transpose(2, 0, 1)).reshape(-1) for i in images]
        data = foreign.vlen(file, "image_features", flat)
        foreign.shapes(file, data, table if change is None else change(table))
        file["targets"] = LABELS
        foreign.fuel_split(file, [("train", "image_features", 0, COUNT, None, True)])
    return str(path)


def test_fuel_images_of_variable_shape(tmp_path: Path) -> None:
    """vlen pixels with shapes beside them: size resizes them; without it the error says so."""
    path = write_varied(tmp_path / "set.hdf5")
    with pytest.raises(ParamsError, match=r"differ in size.*pass size=\(H, W\)"):
        AsyncReader(path=path)
    data, labels, _ = served(path, size=(5, 6))
    for image, found in zip(foreign.varied(COUNT), data, strict=True):
        wanted = np.empty((5, 6, 3), np.uint8)
        rect = choose_rect(*image.shape[:2], (5, 6), "center", 1.0, None)
        resize_into(image, wanted, rect.box())
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(labels, LABELS)
    convert(path, tmp_path / "out.h5", encoding="png")
    np.testing.assert_array_equal(served(str(tmp_path / "out.h5"), size=(5, 6))[0], data)


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

    def as_given(table: np.ndarray) -> np.ndarray:
        return np.asarray(change(table))

    with pytest.raises(FormatError, match=match):
        open_source(write_varied(tmp_path / "set.hdf5", as_given))


# -- variable length -------------------------------------------------------------------------------


def write_vlen(path: Path, values: Any = None, **storage: Any) -> str:
    with h5py.File(path, "w") as file:
        foreign.vlen(file, "images", FILES if values is None else values, **storage)
        file["labels"] = LABELS
    return str(path)


def element(raw: bytearray, path: str, number: int) -> tuple[int, int, int]:
    """(place of an element, address of its heap, number of its object)."""
    with h5py.File(path) as file:
        at = file["images"].id.get_offset() + 16 * number
    _, address, index = struct.unpack_from("<IQI", raw, at)
    return at, address, index


def poke(what: str, raw: bytearray, path: str) -> None:
    at, heap, index = element(raw, path, 4)
    place = heap + 16
    while struct.unpack_from("<H", raw, place)[0] != index:
        place += 16 + (struct.unpack_from("<Q", raw, place + 8)[0] + 7) // 8 * 8
    where, form, value = {
        "address far": (at + 4, "<Q", 1 << 40),
        "address near": (at + 4, "<Q", heap + 8),
        "address end": (at + 4, "<Q", len(raw) - 4),
        "address wraps": (at + 4, "<Q", (1 << 64) - 16),
        "object": (at + 12, "<I", 999),
        "object far": (at + 12, "<I", 1 << 30),
        "object 0": (at + 12, "<I", 0),
        "length": (at, "<I", (1 << 32) - 1),
        "length a bit": (at, "<I", len(FILES[4]) + 1),
        "signature": (heap, "<I", 7),
        "heap size": (heap + 8, "<Q", 1 << 50),
        "heap size 0": (heap + 8, "<Q", 0),
        "object size": (place + 8, "<Q", 1 << 60),
        "object size wraps": (place + 8, "<Q", (1 << 64) - 1),
    }[what]
    struct.pack_into(form, raw, where, value)


OF_A_HEAP = ("signature", "heap size", "heap size 0", "object size", "object size wraps")


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("address far", "its heap lies outside the file"),
        ("address near", "its heap is none"),
        ("address end", "its heap lies outside the file|its heap is none"),
        ("address wraps", "its heap lies outside the file"),
        ("object", "it is not in its heap"),
        ("object far", "number out of range"),
        ("object 0", "it is not in its heap"),
        ("length", "longer than its heap object"),
        ("length a bit", "longer than its heap object"),
        ("signature", "its heap is none"),
        ("heap size", "its heap is cut short"),
        ("heap size 0", "its heap is cut short"),
        ("object size", "its heap is damaged"),
        ("object size wraps", "its heap is damaged"),
    ],
)
@pytest.mark.parametrize("few", [0, vlen.FEW], ids=["together", "one by one"])
def test_damaged_heap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, match: str, few: int
) -> None:
    """Whatever an element or its heap claims is held against the file; the record is named."""
    monkeypatch.setattr(vlen, "FEW", few)
    path = write_vlen(tmp_path / "set.h5")
    raw = bytearray(Path(path).read_bytes())
    poke(what, raw, path)
    Path(path).write_bytes(raw)
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    assert caught.value.path == path
    # a damaged heap is that of several samples: one of them is named
    assert caught.value.index in (range(COUNT) if what in OF_A_HEAP else (4,))


def test_elements_of_no_length(tmp_path: Path) -> None:
    """An empty element is a bad sample, not a bad set."""
    values = [*FILES[:3], b"", *FILES[4:]]
    path = write_vlen(tmp_path / "set.h5", values)
    with AsyncReader(path=path, batch_size=COUNT, on_error="zero") as reader:
        batch = next(iter(reader))
        assert batch.mask.tolist() == [i != 3 for i in range(COUNT)]
    report = verify_file(path, decode=True)
    assert (report.bad, report.decoded) == (1, COUNT)


@pytest.mark.parametrize(
    ("values", "storage", "match"),
    [
        ([b"text", b"more"], {}, r"neither image files nor shapes.*record 0\]"),
        (None, {"maxshape": (None,), "chunks": (3,), "scaleoffset": None}, ""),
    ],
)
def test_what_vlen_holds(tmp_path: Path, values: Any, storage: Any, match: str) -> None:
    """Elements that are no image files need Fuel's shapes."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        foreign.vlen(file, "images", FILES if values is None else values, **storage)
    if not match:
        assert open_source(tmp_path / "set.h5").facts.count == COUNT
        return
    with pytest.raises(FormatError, match=match):
        open_source(tmp_path / "set.h5")


def test_vlen_never_written(tmp_path: Path) -> None:
    """A data set of variable length that was created and never written is refused."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file.create_dataset("images", (3,), h5py.vlen_dtype("u1"))
        file.create_dataset("more", (3, 2), h5py.vlen_dtype("u1"))
    with pytest.raises(FormatError):
        open_source(tmp_path / "set.h5")
    with pytest.raises(FormatError, match="not a list of samples"):
        open_source(tmp_path / "set.h5", Request("more"))


@pytest.mark.parametrize("few", [0, 1, vlen.FEW])
def test_many_objects_in_a_heap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Small elements share heaps; rewritten ones leave holes; all are found."""
    monkeypatch.setattr(vlen, "FEW", few)
    small = foreign.files(paint(300, (2, 2, 3)))
    with h5py.File(tmp_path / "set.h5", "w") as file:
        data = foreign.vlen(file, "images", small)
        for i in range(0, 300, 7):
            data[i] = np.frombuffer(FILES[0], np.uint8)
        for i in range(0, 300, 7):
            data[i] = np.frombuffer(small[i], np.uint8)
    source = open_source(tmp_path / "set.h5")
    assert [Inspector(source.first).bytes(i) for i in range(300)] == small


def test_vlen_sizes_that_differ(tmp_path: Path) -> None:
    """Encoded images of different sizes need a size."""
    files = [encoded(image) for image in foreign.varied(COUNT)]
    path = write_vlen(tmp_path / "set.h5", files)
    assert open_source(path).spec.shape is None
    with pytest.raises(ParamsError, match="differ in size"):
        AsyncReader(path=path)
    assert served(path, size=(4, 4))[0].shape == (COUNT, 4, 4, 3)
    files[3] = files[3][:50]
    path = write_vlen(tmp_path / "bad.h5", files)
    with pytest.raises(DecodeError, match="record 3"):
        served(path, size=(4, 4))


# -- known names -----------------------------------------------------------------------------------


def test_fields_far_inside_are_listed(tmp_path: Path) -> None:
    """A missing field's error lists those in groups at any depth, and ends where groups go round in
    circles."""
    with h5py.File(tmp_path / "x.h5", "w") as file:  # as QuakeSet
        file["611645479/patch_0/before"] = IMAGES
        file["611645479/again"] = file["611645479"]
    with pytest.raises(ParamsError, match=r"no field 'data'.*found 6.*/patch_0/before"):
        open_source(tmp_path / "x.h5")


@pytest.mark.parametrize("names", ["a/b/c/d/e/f/g/h/x", "episodes/{}/steps/obs/x"])
def test_fields_many_groups_deep_are_found(tmp_path: Path, names: str) -> None:
    """However many groups deep data sets lie, and in however many groups, the error lists them, and
    info describes them."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(300 if "{" in names else 1):
            file[names.format(number)] = np.zeros((5, 3))
    with pytest.raises(ParamsError, match=r"no field 'data'.*found [a-z0-9/]*/x \(5 x 3 float64\)"):
        open_source(tmp_path / "x.h5")
    assert "5 samples" in CliRunner().invoke(cli, ["info", str(tmp_path / "x.h5")]).output


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
    with pytest.raises(NoFieldError, match=r"words \(2 x 2 text as character codes") as caught:
        AsyncReader(path=path)
    assert set(caught.value.there) == {"X", "flags", "g/demo_0/x", "g/demo_1/x"}


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
    "fill": ({"_FillValue": np.int16(-9)}, r"_FillValue = -9\): a transform"),
    "an array": ({"missing_value": np.array([-9], "i2")}, r"missing_value = -9\)"),
    "scale": (
        {"scale_factor": 0.5, "add_offset": np.array([20.0])},
        r'scale_factor = 0.5, add_offset = 20.0\): dtype="float32", scale=0.5, mean=-20.0, std=1',
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
    with h5py.File(tmp_path / "p_x.h5", "w") as file:
        file["x"] = IMAGES
    with pytest.raises(ParamsError, match=r"no field 'data'.*found x"):
        open_source(tmp_path / "p_x.h5")
    with h5py.File(tmp_path / "elsewhere.h5", "w") as file:
        file["y"] = labels
    given = {"labels_path": str(tmp_path / "elsewhere.h5")}
    np.testing.assert_array_equal(served(str(tmp_path / "p_x.h5"), **given)[1], labels)
    os.rename(tmp_path / "elsewhere.h5", tmp_path / "p_y.h5")
    for more in ({}, {"data_field": "x"}):
        np.testing.assert_array_equal(served(str(tmp_path / "p_x.h5"), **more)[1], labels)
    convert(tmp_path / "p_x.h5", tmp_path / "out.h5")
    np.testing.assert_array_equal(served(str(tmp_path / "out.h5"))[1], LABELS)
    assert served(str(tmp_path / "p_x.h5"), labels_field=None)[1] is None
    with h5py.File(tmp_path / "p_y.h5", "w") as file:
        file["y"] = labels[:-1]
    with pytest.raises(FormatError, match="another number of rows"):
        open_source(tmp_path / "p_x.h5")


def test_labels_that_do_not_fit_say_what_to_do(tmp_path: Path) -> None:
    """Labels of text or of another count are errors that show how to go on without them."""
    data = np.zeros((4, 8, 8, 3), np.uint8)
    text = np.array(["cat", "dog", "cat", "cat"])
    for number, labels in enumerate((text.astype("S3"), np.zeros(3), text.astype(object))):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file["data"], file["labels"] = data, labels
        with pytest.raises(FormatError, match="labels_field=None") as caught:
            open_source(path)
        assert ("np.unique" in str(caught.value)) == (number != 1)
        assert served(str(path), labels_field=None)[1] is None
    with pytest.raises(ParamsError, match=r"np\.unique"):
        AsyncReader(data=data, labels=text)


@pytest.mark.parametrize("name", ["labels", "label", "targets", "target", "y"])
@pytest.mark.parametrize("rows", [COUNT + 5, COUNT - 5])
def test_labels_of_another_number_are_refused(tmp_path: Path, name: str, rows: int) -> None:
    """More or fewer labels than samples: a FormatError, under every name, in every layout, and in
    one file of a list; labels_field=None reads the set without them."""
    contents: dict[str, dict[str, Any]] = {
        "plain": {"data": IMAGES},
        "field": {"images": IMAGES.repeat(2, 0), "val_images": IMAGES},
        "encoded": {"images": None},
        "gan": {"imgs": IMAGES.transpose(0, 3, 1, 2)},
        "fuel": {"features": IMAGES},
    }
    for kind, fields in contents.items():
        path = tmp_path / f"{kind}.h5"
        with h5py.File(path, "w") as file:
            for field, data in fields.items():
                if data is None:
                    foreign.vlen(file, field, foreign.files(IMAGES))
                else:
                    file[field] = data
            file[name] = np.zeros(rows)
            if kind == "fuel":
                foreign.fuel_split(file, both("train", 0, 4))
        if kind == "fuel" and rows < COUNT:
            continue  # samples without labels stand behind the others there
        params = {"path": str(path)}
        if kind == "field":
            params["data_field"] = "val_images"
        if name == "y":
            params["labels_field"] = name
        for one in (params, {**params, "path": [str(path)] * 2}):
            with pytest.raises(FormatError, match=r"another number of rows.*labels_field=None"):
                AsyncReader(one)
        assert served(**{**params, "labels_field": None})[1] is None


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


def test_links_are_refused_for_known_names(tmp_path: Path) -> None:
    """Recognised names are held to the same rules: no bytes of other files."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = LABELS
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["imgs"] = IMAGES
        file["labels"] = h5py.ExternalLink("other.h5", "secret")
    with pytest.raises(FormatError, match="link into another file"):
        open_source(tmp_path / "set.h5")
    with h5py.File(tmp_path / "caffe.h5", "w") as file:
        file["data"] = IMAGES
        file["label"] = h5py.ExternalLink("other.h5", "secret")
    assert open_source(tmp_path / "caffe.h5").labels is None


def test_our_own_names_win(tmp_path: Path) -> None:
    """A set of ours is read as it says, whatever else lies in it."""
    path = write_hdf5(tmp_path / "ours.h5", packed(IMAGES))
    with h5py.File(path, "a") as file:
        file["targets"] = LABELS
        file.attrs["train"] = np.array([0, 3])
    source = open_source(path)
    assert source.facts.meta is not None
    assert source.splits == {}


def test_fields_of_params() -> None:
    """A reader's parameters name the fields; labels that are named are required."""
    from asyncreader.params import parse_params

    p = parse_params({"path": "a", "labels_field": "y", "channel_order": "stored"}, {})
    assert fields_of(p) == Request("data", "y", None, None, True, "stored")
    assert not fields_of(parse_params({"path": "a"}, {})).labels_required


# -- the structure of a file -----------------------------------------------------------------------


def test_the_structure_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a file reads each object header once, also of objects that are asked for later."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["data"], file["labels"] = IMAGES, LABELS
    walked: list[int] = []
    messages = structure.Structure._messages

    def note(self: structure.Structure, at: int, kinds: Any) -> Any:
        walked.append(at)
        return messages(self, at, kinds)

    monkeypatch.setattr(structure.Structure, "_messages", note)
    open_source(path).close()
    assert len(walked) == len(set(walked)) == 3  # the root and both data sets


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


@pytest.mark.parametrize("block", [0, 512])
def test_headers_say_what_h5py_says(tmp_path: Path, block: int) -> None:
    """What is read of a data set's header is what h5py says of it; nothing is said of one that
    only the library reads."""
    path, rows = tmp_path / "a.h5", np.arange(60, dtype=np.int16).reshape(10, 3, 2)
    plain = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plain.set_layout(h5py.h5d.COMPACT)
    with h5py.File(path, "w", userblock_size=block) as file:
        file["contiguous"], file["float"], file["one"] = rows, rows.astype(">f8"), rows[:1]
        file["bool"], file["text"] = rows > 3, np.array([b"abc", b"d"])
        file["structured"] = np.zeros(4, [("a", "f4"), ("b", "i8", 3)])
        file.create_dataset("chunks", data=rows, chunks=(4, 3, 1), maxshape=(None, 3, 2))
        file.create_dataset("gzip", data=rows, chunks=(3, 2, 2), compression="gzip", shuffle=True)
        file.create_dataset("empty", (0, 3), "f4", chunks=(5, 3), maxshape=(None, 3))
        file.create_dataset("vlen", 4, h5py.vlen_dtype(np.uint8), chunks=(2,))
        for i in range(12):  # which move the messages into another block
            file["gzip"].attrs[f"note {i}"] = "x" * 60
        for many in ("contiguous", "chunks"):
            file[f"{many} again"] = file[many]
        read = set(file)
        file["scalar"], file["type"] = 3.5, np.dtype("f4")
        file.create_dataset("committed", (2,), file["type"])
        file.create_dataset("unwritten", (4, 2), "f4")
        file.create_dataset("outside", (4,), "f4", external=[("a.raw", 0, 16)])
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT16, space, plain)
        virtual = h5py.VirtualLayout((10, 3, 2), "i2")
        virtual[:] = h5py.VirtualSource(file["contiguous"])
        file.create_virtual_dataset("virtual", virtual)
        file["soft"] = h5py.SoftLink("contiguous")
        every = [*file, "missing", ""]
    file = OpenFile(str(path), "mmap")
    with h5py.File(path) as known, Hdf5(file) as h5:
        root = h5.reach("")
        found = {name: h5.header(name, root) for name in every}
        assert {name for name, header in found.items() if header is not None} == read
        for name in read:
            header, data = found[name], known[name]
            assert header is not None
            assert (header.shape, header.chunk) == (data.shape, data.chunks)
            assert header.address == data.id.get_offset()
            for other in read - {"text", "bool"}:
                same = found[other]
                assert same is not None
                alike = data.dtype == known[other].dtype and data.shape[1:] == same.shape[1:]
                alike &= (data.chunks is None) == (same.chunk is None)
                alike &= data.compression == known[other].compression
                assert header.like(same) == alike, (name, other)
    file.close()


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_groups_that_are_stored_differently(tmp_path: Path, libver: str) -> None:
    """The rows of groups whose data sets are contiguous or in chunks of other extents, of other
    filters and of other versions of HDF5's headers, are served as they were written."""
    rng = np.random.default_rng(5)
    stored: list[dict[str, Any]] = [
        {"chunks": (4, 3), "compression": "gzip"},
        {"chunks": (7, 2), "compression": "gzip"},
        {"chunks": (4, 3), "compression": "lzf"},
        {"chunks": (5, 3)},
        {},
        {"chunks": (4, 3), "compression": "gzip", "compression_opts": 9, "shuffle": True},
    ]
    for first in range(len(stored)):
        path, rows = tmp_path / f"{first}.h5", [rng.normal(size=(9 + i, 3)) for i in range(6)]
        with h5py.File(path, "w", libver=libver) as file:
            for i, values in enumerate(rows):
                how = stored[(first + i) % len(stored)]
                file.create_dataset(f"demo_{i}/x", data=values, **how)
        with AsyncReader(
            path=path, episodes="groups:demo_*", data_field="x", batch_size=7, last_batch="short"
        ) as reader:
            served = np.concatenate([batch.data.copy() for batch in reader])
        np.testing.assert_array_equal(served, np.concatenate(rows))


def test_the_library_opens_the_data_sets_of_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many groups the library opens each group, but the data sets of the first one alone."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(20):
            for name in ("x", "obs/y", "obs/z"):
                file[f"data/demo_{i}/{name}"] = np.zeros((3, 2))
    opened: list[bytes] = []
    really = Hdf5._opened

    def note(self: Hdf5, group: Any, part: bytes, address: int) -> object | None:
        opened.append(part)
        return really(self, group, part, address)

    monkeypatch.setattr(Hdf5, "_opened", note)
    with AsyncReader(path=tmp_path / "a.h5", data_field=["x", "obs/y", "obs/z"]) as reader:
        assert reader.count == 60
    assert len(opened) <= 2 * 20 + 3 + 6


def test_an_object_after_the_first_ten_thousand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that the walk through the whole file left out is checked when it is opened."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=IMAGES, chunks=(1, 8, 7, 3))
    content = bytearray(path.read_bytes())
    node = content.index(b"TREE\x01")  # of the chunks
    content[node + 5] = 200
    path.write_bytes(content)
    monkeypatch.setattr(structure, "OBJECTS", -1)
    with pytest.raises(FormatError, match="a tree that does not go down"):
        open_source(path)


def test_a_group_after_the_first_ten_thousand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of names of a group that the walk through the whole file left out is checked when
    the group is reached, before the HDF5 library follows it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["first/late/data"] = IMAGES
        header = h5py.h5o.get_info(file["first/late"].id).addr
    content = bytearray(path.read_bytes())
    kind, tree = struct.unpack_from("<HxxxxxxQ", content, header + 16)
    assert (kind, content[tree : tree + 5]) == (0x11, b"TREE\0")  # a symbol table, in a tree
    asked = Request(data="first/late/data", labels=None)
    monkeypatch.setattr(structure, "OBJECTS", -1)
    open_source(path, asked).close()
    content[tree + 5] = 200
    path.write_bytes(content)
    with pytest.raises(FormatError, match="a tree that does not go down"):
        open_source(path, asked)
