"""Damaged and hostile records of foreign LMDB sets: a typed error that names file, record, key."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import msgpack
import numpy as np
import pytest
from fakes import paint, pictures

from asyncreader import AsyncReader, DecodeError, FormatError
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import open_source
from asyncreader.testing.contract import fill_rows

COUNT = 12
IMAGES = paint(COUNT, (8, 7, 3))
FILES = foreign.files(pictures(COUNT, (9, 11, 3)))


BAD = 5


def everything(path: str) -> np.ndarray:
    source = open_source(path)
    return fill_rows(source, OutputSpec(layout="NHWC"), np.arange(COUNT))[0]


def pyxis_with(value: bytes) -> dict[str, Any]:
    good = [foreign.pyxis_sample({"input": i, "target": np.array(n)}) for n, i in enumerate(IMAGES)]
    good[BAD] = value
    return {"samples": good}


def raw_map(**fields: Any) -> bytes:
    """A pyxis sample whose input is a map of any kind."""
    inner = msgpack.packb({k.encode(): v for k, v in fields.items()}, use_bin_type=True)
    target = foreign.pyxis_array(np.array(1))
    return msgpack.packb({"input": inner, "target": target}, use_bin_type=True)


GOOD = foreign.pyxis_sample({"input": IMAGES[0], "target": np.array(1)})
ARRAY = {"type": 2, "dtype": "|u1", "shape": [2, 3], "data": b"abcdef"}
BAD_SAMPLES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "cut short"),
    ("truncated", GOOD[:-20], "cut short"),
    ("trailing", GOOD + b"\0", "bytes behind its msgpack"),
    ("not a map", msgpack.packb([1, 2]), "no name|cut short"),
    ("number", b"\x07", "not a msgpack list or map"),
    ("bad first byte", b"\xc1", "cut short or damaged"),
    ("numbers as keys", msgpack.packb({1: b"", 2: b""}), "a key that is no name"),
    ("many keys claimed", b"\xdf\xff\xff\xff\xff", "list or map of some fields"),
    ("deep", b"\x81\xa1x" + b"\x91" * 5000 + b"\x01", "too many nested"),
    ("bomb", b"\x81\xa1x" + b"\xdd\xff\xff\xff\xff" * 3, "cut short"),
    ("no input", foreign.pyxis_sample({"target": np.array(1)}), "a sample without 'input'"),
    ("no target", foreign.pyxis_sample({"input": IMAGES[0]}), "a sample without 'target'"),
    ("not bytes", msgpack.packb({"input": 3, "target": 4}), "'input' is no msgpack in bytes"),
    (
        "text",
        foreign.pyxis_sample({"input": "t", "target": np.array(1)}),
        "found text; expected an",
    ),
    ("lying bin", GOOD.replace(b"\xc4\xa8", b"\xc4\xff", 1), "cut short|lacks|behind|size"),
    ("no dtype", raw_map(type=2, shape=[1], data=b"a"), "without a dtype"),
    ("no shape", raw_map(type=2, dtype="|u1", data=b"a"), "without a shape"),
    ("no data", raw_map(type=2, dtype="|u1", shape=[1]), "lacks type or data"),
    ("data no bytes", raw_map(**{**ARRAY, "data": 7}), "data are no bytes"),
    ("object dtype", raw_map(**{**ARRAY, "dtype": "|O8"}), "does not hold plain numbers"),
    ("structured", raw_map(**{**ARRAY, "dtype": [["a", "<f4"]]}), "dtype is no text"),
    ("odd dtype", raw_map(**{**ARRAY, "dtype": "<u3"}), "does not hold plain numbers"),
    ("long dtype", raw_map(**{**ARRAY, "dtype": "<u1" * 99}), "does not hold plain numbers"),
    ("size", raw_map(**{**ARRAY, "shape": [2, 2]}), "not the size that its shape needs"),
    ("huge shape", raw_map(**{**ARRAY, "shape": [1 << 62, 1 << 62]}), "not the size"),
    ("wrapped shape", raw_map(**{**ARRAY, "shape": [1 << 33, 1 << 31, 6]}), "not the size"),
    ("negative", raw_map(**{**ARRAY, "shape": [-2, -3]}), "side that is no number"),
    ("beyond int64", raw_map(**{**ARRAY, "shape": [(1 << 64) - 1]}), "cut short or damaged"),
    ("many axes", raw_map(**{**ARRAY, "shape": [1] * 9}), "no list of at most"),
    ("shape a number", raw_map(**{**ARRAY, "shape": 6}), "no list of at most"),
    (
        "other shape",
        foreign.pyxis_sample({"input": IMAGES[0, :5, 0], "target": np.array(1)}),
        "axes",
    ),
    ("empty array", raw_map(type=2, dtype="|u1", shape=[0, 7, 3], data=b""), "is empty"),
    (
        "other dtype",
        foreign.pyxis_sample({"input": IMAGES[0].astype("i2"), "target": np.array(1)}),
        "of another dtype",
    ),
    (
        "other channels",
        foreign.pyxis_sample({"input": IMAGES[0, :, :, :2].copy(), "target": np.array(1)}),
        "other channels",
    ),
    (
        "other label",
        foreign.pyxis_sample({"input": IMAGES[0], "target": np.arange(2)}),
        "labels 'target' are of another shape",
    ),
    (
        "label dtype",
        foreign.pyxis_sample({"input": IMAGES[0], "target": np.array(1.0)}),
        "labels 'target' are of another dtype",
    ),
]


@pytest.mark.parametrize(
    ("value", "match"), [case[1:] for case in BAD_SAMPLES], ids=[case[0] for case in BAD_SAMPLES]
)
def test_damaged_pyxis_sample(tmp_path: Path, value: bytes, match: str) -> None:
    """A damaged or hostile sample is a FormatError that names file, record and key."""
    path = foreign.write_pyxis(tmp_path / "set", **pyxis_with(value))
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    error = caught.value
    assert (error.path, error.index, error.key) == (path, BAD, f"{BAD:010d}")


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ("11", "found 12 samples; expected 11"),
        ("13", "found 12 samples; expected 13"),
        ("0", "expected 0"),
        ("1e3", "not a number"),
        ("-12", "not a number"),
        ("9" * 30, "not a number"),
        (None, "its number of samples is missing"),
    ],
)
def test_pyxis_count(tmp_path: Path, stated: str | None, match: str) -> None:
    """nb_samples and the samples must be as many."""
    samples = pyxis_with(GOOD)["samples"]
    path = foreign.write_pyxis(tmp_path / "set", samples, stated)
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    assert caught.value.key == "nb_samples"


def test_pyxis_gaps(tmp_path: Path) -> None:
    """Samples that a full map left out are noticed."""
    data = {b"%010d" % i: GOOD for i in (0, 1, 3)}
    path = foreign.write_named(
        tmp_path / "set", {b"data_db": data, b"meta_db": {b"nb_samples": b"3"}}
    )
    with pytest.raises(FormatError, match="record numbers with gaps"):
        open_source(path)


def test_branch_count(tmp_path: Path) -> None:
    """The branch's list of indices must be as long as there are samples; keys need not be dense."""
    samples = {i * 5: foreign.branch_sample({"x": image}) for i, image in enumerate(IMAGES)}
    with pytest.raises(FormatError, match=r"key __indices.*found 12 samples; expected 3"):
        open_source(foreign.write_branch(tmp_path / "a", samples, [1, 2, 3]))
    with pytest.raises(FormatError, match=r"list of indices is no list"):
        open_source(foreign.write_branch(tmp_path / "b", samples, "text"))


D = foreign.datum
PLANES = foreign.planes(IMAGES[0])
BAD_DATUMS: list[tuple[str, bytes, str]] = [
    ("empty", b"", "holds no pixels"),
    ("truncated", D((3, 8, 7), PLANES, 1)[:-40], "more bytes than there are"),
    ("cut in a varint", b"\x08\x80", "cut short"),
    ("endless varint", b"\x08" + b"\xff" * 11, "cut short"),
    ("lying length", foreign.varint(34) + foreign.varint(1 << 62) + PLANES, "more bytes"),
    ("length 2^64-1", foreign.varint(34) + foreign.varint(-1) + PLANES, "more bytes"),
    ("no shape", D(None, PLANES, 1), "size does not match its shape"),
    ("wrong shape", D((3, 8, 8), PLANES, 1), r"found 168 values, shape 3 x 8 x 8"),
    ("huge shape", D((1 << 30, 1 << 30, 1 << 30), PLANES, 1), "size does not match"),
    ("negative shape", D((-3, -8, 7), PLANES, 1), "size does not match"),
    ("zero", D((0, 8, 7), PLANES, 1), "size does not match"),
    ("channels as bytes", foreign.bytes_field(1, b"abc") + D((3, 8, 7), PLANES), "wire type"),
    ("data as a number", foreign.number_field(4, 9), "data of a Datum is of another wire type"),
    ("label as bytes", D((3, 8, 7), PLANES) + foreign.bytes_field(5, b"1"), "another wire type"),
    ("floats as numbers", foreign.number_field(6, 9), "float_data of a Datum is of another wire"),
    ("field 0", b"\x00\x01", "field without a number"),
    ("group", b"\x0b", "another wire type"),
    ("unknown group", b"\x7b", "damaged"),
    ("many fields", foreign.number_field(9, 1) * 100, "too many fields"),
    ("both", D((3, 8, 7), PLANES, 1, np.zeros(168)), "both data and float_data"),
    ("floats cut", D((1, 1, 2), floats=np.ones(2))[:-2], "cut short"),
    ("odd packed", foreign.bytes_field(6, b"12345"), "not whole floats"),
    (
        "two pieces",
        D((1, 1, 2), floats=np.ones(1)) + D(None, floats=np.ones(1), label=2),
        "several",
    ),
    ("floats among bytes", D((3, 8, 7), floats=np.ones(168)), "bytes and of floats in one dataset"),
    (
        "encoded among raw",
        D(None, FILES[0], 1, encoded=True),
        "encoded and raw Datums in one dataset",
    ),
    ("encoded floats", D((1, 1, 1), floats=np.ones(1), encoded=True), "calls itself encoded"),
    ("other channels", D((1, 8, 21), PLANES, 1), "different channels in one dataset"),
]


@pytest.mark.parametrize(
    ("value", "match"), [case[1:] for case in BAD_DATUMS], ids=[case[0] for case in BAD_DATUMS]
)
def test_damaged_datum(tmp_path: Path, value: bytes, match: str) -> None:
    """A damaged or hostile Datum is a FormatError that names file, record and key."""
    entries = dict(foreign.caffe(IMAGES, range(COUNT)))
    key = f"{BAD:08d}_dir/{BAD}.jpg"
    entries[key.encode()] = value
    path = foreign.write_lmdb(tmp_path / "set", entries)
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    error = caught.value
    assert (error.path, error.index, error.key) == (path, BAD, key)


def test_unknown_fields_of_a_datum(tmp_path: Path) -> None:
    """Fields that Caffe's forks added are stepped over, whatever their wire type."""
    more = foreign.number_field(20, 7) + foreign.bytes_field(21, b"x" * 300)
    more += foreign.varint(22 << 3 | 1) + b"12345678" + foreign.varint(23 << 3 | 5) + b"1234"
    entries = {k: more + v + more for k, v in foreign.caffe(IMAGES, range(COUNT)).items()}
    path = foreign.write_lmdb(tmp_path / "set", entries)
    np.testing.assert_array_equal(everything(path), IMAGES)


def ocr_without(*keys: bytes, **changed: bytes) -> dict[bytes, bytes]:
    entries = dict(foreign.ocr(FILES, ["t"] * COUNT))
    for key in keys:
        del entries[key]
    entries.update({key.replace("_", "-").encode(): value for key, value in changed.items()})
    return entries


@pytest.mark.parametrize(
    ("entries", "key", "match"),
    [
        (ocr_without(num_samples=b"13"), "image-000000013", "found 12 entries image-"),
        (ocr_without(num_samples=b"11"), "image-000000012", "expected 11"),
        (ocr_without(num_samples=b"0"), "image-000000001", "expected 0"),
        (ocr_without(num_samples=b"x"), "num-samples", "not a number"),
        (ocr_without(b"image-000000005"), "image-000000005", "a sample is missing"),
        (ocr_without(b"label-000000012"), "label-000000012", "found 11 entries label-"),
        (ocr_without(label_000000003=b"\xff\xfe"), "label-000000003", "not UTF-8"),
    ],
)
def test_damaged_ocr(tmp_path: Path, entries: Mapping[bytes, bytes], key: str, match: str) -> None:
    """Counts, gaps and labels that cannot be are FormatErrors that name the key."""
    path = foreign.write_lmdb(tmp_path / "set", entries)
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    assert (caught.value.path, caught.value.key) == (path, key)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda text: text.replace("(8,7,3)", "(8,7)", 1),
            r"record 0\].*found 'n00.png \(8,7\) 1'",
        ),
        (lambda text: text + "n99.png (8,7,3) 1\n", "more images than the dataset holds"),
        (lambda text: text.replace("n03", "n33"), r"does not list.*key n03"),
        (lambda text: text.replace("n03", "a33"), r"does not hold.*record 3, key a33"),
        (lambda text: text.replace("n03.png (8,7,3) 1\n", ""), "found 12 samples; expected 11"),
        (lambda text: text.replace("n03", "n04"), r"does not list.*key n03"),
        (lambda text: "", "lists no image"),
        (lambda text: "x" * 100_000, "is not 'key.png"),
        (lambda text: "\udcff\0" + text, "does not list"),
    ],
)
def test_damaged_basicsr(tmp_path: Path, change: Callable[[str], str], match: str) -> None:
    """meta_info.txt and the set must agree, line by line."""
    named = {f"n{i:02d}": image for i, image in enumerate(IMAGES)}
    path = foreign.write_basicsr(tmp_path / "set.lmdb", named)
    listing = tmp_path / "set.lmdb" / "meta_info.txt"
    text = change(listing.read_text())
    listing.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    assert caught.value.path in (path, str(listing))


def test_basicsr_shapes(tmp_path: Path) -> None:
    """Shapes come from meta_info.txt; a picture of another size is a DecodeError when read."""
    named = {f"n{i:02d}": image for i, image in enumerate(foreign.varied(COUNT))}
    path = foreign.write_basicsr(tmp_path / "a.lmdb", named)
    assert open_source(path).spec.shape is None
    named = {f"n{i:02d}": image for i, image in enumerate(IMAGES)}
    path = foreign.write_basicsr(tmp_path / "b.lmdb", named)
    listing = tmp_path / "b.lmdb" / "meta_info.txt"
    listing.write_text(listing.read_text().replace("(8,7,3)", "(9,7,3)"))
    with AsyncReader(path=path, batch_size=2) as reader:
        reader.fetchData()
        with pytest.raises(DecodeError, match=r"key n00, source 'n00.png'"):
            reader.getNextBatch()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({b"length": b"13"}, r"record 12, key 16-00012\]; found 12 images"),
        ({b"length": b"1x"}, "not a number"),
        ({b"16-00013": b"x"}, r"found 13 images"),
        ({b"zz": b"x"}, r"not SIZE-NUMBER \[.*key zz\]"),
        ({b"16-0000x": b"x"}, r"not SIZE-NUMBER \[.*key 16-0000x"),
    ],
)
def test_damaged_stylegan(tmp_path: Path, change: dict[bytes, bytes], match: str) -> None:
    """length and the numbers must agree."""
    entries = {**foreign.stylegan({16: FILES}), **change}
    with pytest.raises(FormatError, match=match):
        open_source(foreign.write_lmdb(tmp_path / "set", entries))


@pytest.mark.parametrize(
    ("point", "match"),
    [
        ([], "without '0'"),
        ([FILES[0]], "without '1'"),
        ({"image": FILES[0]}, "of another kind than the first"),
        ([7, 1], r"found a whole number; expected bytes"),
        ([FILES[0], "text"], r"found text; expected a whole number"),
        ([FILES[0], None], "neither array, bytes, text nor number"),
        ([FILES[0], [1, 2]], "neither array, bytes, text nor number"),
        ([FILES[0], {b"nd": True, b"type": "|O", b"kind": b"O", b"data": b""}], "not read|plain"),
    ],
)
def test_damaged_tensorpack(tmp_path: Path, point: Any, match: str) -> None:
    """A datapoint of another make is a FormatError that names file, record and key."""
    points = [[f, i] for i, f in enumerate(FILES)]
    points[BAD] = point
    path = foreign.write_lmdb(tmp_path / "set", foreign.tensorpack(points))
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    assert (caught.value.index, caught.value.key) == (BAD, f"{BAD:08d}")


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    """msgpack_numpy's arrays of Python objects hold a pickle, which nobody reads."""
    odd = {**foreign.numpy_map(np.zeros(1)), b"kind": b"O", b"data": pickle.dumps("x")}
    path = foreign.write_lmdb(tmp_path / "set", foreign.tensorpack([[odd, 1]]))
    with pytest.raises(FormatError, match="Python objects, which is not read"):
        open_source(path)
