"""Foreign LMDB sets beyond the contract: fields, shapes that vary, refusals, and damaged or hostile
records: a typed error that names file, record and key."""

import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import h5py
import msgpack
import numpy as np
import pytest
from fakes import encoded, epoch_of, first_batch, paint, pictures

from asyncreader import AsyncReader, DecodeError, FormatError, ParamsError
from asyncreader.pixels.geometry import resize_into
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, Request, extents, open_source
from asyncreader.testing.contract import fill_rows
from converters import convert

COUNT = 12
IMAGES = paint(COUNT, (8, 7, 3))
FILES = foreign.files(pictures(COUNT, (9, 11, 3)))


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    out = np.empty((*size, image.shape[2]), image.dtype)
    rect = OutputSpec(size=size).rect(*image.shape[:2], None)
    resize_into(image, out, rect.box())
    return out


def read_all(path: str, **params: Any) -> Any:
    given = {"path": path, "batch_size": 4, "layout": "NHWC", "last_batch": "short", **params}
    return epoch_of(given)[0]


# -- which fields --------------------------------------------------------------------------------


def test_pyxis_fields_by_name(tmp_path: Path) -> None:
    """data_field and labels_field name any two fields; a wrong one is an error that lists them."""
    samples = [
        foreign.pyxis_sample({"left": i, "right": i[::-1].copy(), "score": np.float32(n)})
        for n, i in enumerate(IMAGES)
    ]
    path = foreign.write_pyxis(tmp_path / "set", samples)
    data, labels = first_batch(path=path, data_field="right", labels_field="score", batch_size=4)
    np.testing.assert_array_equal(data.transpose(0, 2, 3, 1), IMAGES[:4, ::-1])
    assert labels.dtype == np.float32
    np.testing.assert_array_equal(labels, np.arange(4))
    with pytest.raises(ParamsError, match=r"no field 'data'.*found left, right, score.*"):
        open_source(path)
    with pytest.raises(ParamsError, match="no field 'target'"):
        open_source(path, Request("left", "target", labels_required=True))
    assert open_source(path, Request("left")).labels is None


def test_pyxis_labels_of_any_kind(tmp_path: Path) -> None:
    """Label arrays keep their shape, text becomes sorted classes."""
    samples = [
        foreign.pyxis_sample({"x": i, "box": np.arange(4.0) + n, "name": f"n{(n * 7) % 5}"})
        for n, i in enumerate(IMAGES)
    ]
    path = foreign.write_pyxis(tmp_path / "set", samples)
    source = open_source(path, Request("x", "box"))
    np.testing.assert_array_equal(source.labels, np.arange(4.0) + np.arange(COUNT)[:, None])
    source = open_source(path, Request("x", "name"))
    assert source.facts.classes == ("n0", "n1", "n2", "n3", "n4")
    np.testing.assert_array_equal(source.labels, np.arange(COUNT) * 7 % 5)
    assert open_source(path, Request("x", None)).labels is None


def test_a_class_name_with_a_nul_is_not_packed(tmp_path: Path) -> None:
    """Such a name, which no packed set can hold, is named; it is not blamed on the disk."""
    samples = [
        foreign.pyxis_sample({"x": image, "name": "n" + "\0" * (n == 3)})
        for n, image in enumerate(IMAGES)
    ]
    path = foreign.write_pyxis(tmp_path / "set", samples)
    with pytest.raises(FormatError, match=r"NUL.*'n\\x00'.*no_labels"):
        convert(path, tmp_path / "out.h5", params={"data_field": "x", "labels_field": "name"})


def test_pyxis_axes(tmp_path: Path) -> None:
    """Pixels stored CHW are not guessed; named axes are used."""
    samples = [foreign.pyxis_sample({"x": i.transpose(2, 0, 1).copy()}) for i in IMAGES]
    path = foreign.write_pyxis(tmp_path / "set", samples)
    with pytest.raises(ParamsError, match="the order of this dataset's axes is ambiguous"):
        open_source(path)
    axes = {"num_dim": 1, "cha_dim": 2, "h_dim": 3, "w_dim": 4}
    np.testing.assert_array_equal(read_all(path, **axes), IMAGES)
    convert(path, tmp_path / "out.h5", params=axes)
    np.testing.assert_array_equal(read_all(str(tmp_path / "out.h5")), IMAGES)
    with pytest.raises(ParamsError, match="fixed axes"):
        open_source(path, Request(dims=(2, 1, 3, 4)))


def test_tensorpack_fields(tmp_path: Path) -> None:
    """Parts of a datapoint go by number, of a dict by name; labels may be single numpy values."""
    points = [
        [i, foreign.numpy_map(image), foreign.numpy_map(np.int32(i))]
        for i, image in enumerate(IMAGES)
    ]
    path = foreign.write_lmdb(tmp_path / "lists", foreign.tensorpack(points))
    source = open_source(path, Request("1", "2"))
    np.testing.assert_array_equal(source.labels, np.arange(COUNT))
    np.testing.assert_array_equal(read_all(path, data_field="1", labels_field="0"), IMAGES)
    with pytest.raises(FormatError, match=r"'0' is a whole number, not an image"):
        open_source(path)
    with pytest.raises(ParamsError, match=r"no field '7'.*found 0, 1, 2"):
        open_source(path, Request("7"))
    dicts = [{"image": f, "label": 1.5 * i} for i, f in enumerate(FILES)]
    path = foreign.write_lmdb(tmp_path / "dicts", foreign.tensorpack(dicts))
    source = open_source(path)
    np.testing.assert_array_equal(source.labels, 1.5 * np.arange(COUNT))
    assert Inspector(source.first).bytes(5) == FILES[5]


def test_folder2lmdb(tmp_path: Path) -> None:
    """folder2lmdb's msgpack: one in a list, keys without zeros, one file, __len__ beside."""
    points = [[[f], foreign.numpy_map(np.array([i]))] for i, f in enumerate(FILES)]
    entries = {**foreign.tensorpack(points, "{}"), b"__len__": msgpack.packb(COUNT)}
    path = foreign.write_lmdb(tmp_path / "train.lmdb", entries, subdir=False)
    source = open_source(path)
    assert [Inspector(source.first).bytes(i) for i in range(COUNT)] == FILES
    np.testing.assert_array_equal(source.labels, np.arange(COUNT)[:, None])


def test_stylegan_sizes(tmp_path: Path) -> None:
    """data_field names a size; without it the largest is served, and the layout names the rest."""
    sizes = {n: foreign.files(pictures(COUNT, (n, n, 3))) for n in (8, 16, 128)}
    path = foreign.write_lmdb(tmp_path / "set", foreign.stylegan(sizes))
    assert open_source(path).facts.layout == "StyleGAN2, 128 x 128 (data_field: also 8, 16)"
    assert read_all(path, data_field="16").shape == (COUNT, 16, 16, 3)
    with pytest.raises(ParamsError, match=r"no images of size '32'.*found 8, 16, 128"):
        open_source(path, Request("32"))
    bare = {key: value for key, value in foreign.stylegan(sizes).items() if key != b"length"}
    assert "bare" in open_source(foreign.write_lmdb(tmp_path / "bare", bare)).facts.layout


def test_caffe_colours(tmp_path: Path) -> None:
    """Raw planes are BGR, which the layout says; Caffe's own CIFAR sets are RGB and stay so."""
    path = foreign.write_lmdb(tmp_path / "imageset", foreign.caffe(IMAGES, range(COUNT)))
    assert "channel_order='stored'" in open_source(path).facts.layout
    cifar = paint(COUNT, (32, 32, 3))
    entries = {
        b"%05d" % i: foreign.datum((3, 32, 32), image.transpose(2, 0, 1).tobytes(), i)
        for i, image in enumerate(cifar)
    }
    path = foreign.write_lmdb(tmp_path / "cifar", entries)
    assert "RGB (Caffe's CIFAR)" in open_source(path).facts.layout
    np.testing.assert_array_equal(read_all(path), cifar)


def test_no_labels_field(tmp_path: Path) -> None:
    """labels_field=None leaves labels out of every layout; names it lacks are refused."""
    sets = {
        "caffe": foreign.write_lmdb(tmp_path / "a", foreign.caffe(IMAGES, range(COUNT))),
        "ocr": foreign.write_lmdb(tmp_path / "b", foreign.ocr(FILES, ["t"] * COUNT)),
        "lsun": foreign.write_lmdb(tmp_path / "c", {b"%d" % i: f for i, f in enumerate(FILES)}),
    }
    for path in sets.values():
        assert open_source(path, Request(labels=None)).labels is None
        with pytest.raises(ParamsError, match="no field 'pixels'"):
            open_source(path, Request("pixels"))
        with pytest.raises(ParamsError, match="fixed axes"):
            open_source(path, Request(dims=(1, 3, 4, 2)))
    for path in sets.values():
        with pytest.raises(ParamsError, match="labels_path does not go"):
            open_source(path, Request(labels_path=sets["caffe"]))


def test_ocr_without_texts(tmp_path: Path) -> None:
    """Pictures without a single text are a set without labels, unless these are asked for."""
    entries = foreign.ocr(FILES, ["t"] * COUNT)
    pictures_only = {k: v for k, v in entries.items() if not k.startswith(b"label-")}
    path = foreign.write_lmdb(tmp_path / "set", pictures_only)
    source = open_source(path)
    assert (source.labels, source.facts.layout) == (None, "OCR (image-%09d)")
    with pytest.raises(FormatError, match="key label-000000001"):
        open_source(path, Request(labels="label", labels_required=True))


def test_several_ocr_sets(tmp_path: Path) -> None:
    """Sets with texts of their own are one set: classes are those of all, numbers fit them."""
    texts = (["b", "c"] * 6, ["a", "c", "d"] * 4)
    paths = [
        foreign.write_lmdb(tmp_path / f"set{i}", foreign.ocr(FILES, given))
        for i, given in enumerate(texts)
    ]
    with AsyncReader(path=paths, batch_size=2 * COUNT) as reader:
        batch = next(iter(reader))
        assert reader.classes == ("a", "b", "c", "d")
        names = [reader.classes[n] for n in batch.labels]
    assert names == [*texts[0], *texts[1]]


# -- shapes that vary ------------------------------------------------------------------------------


def varied(kind: str, folder: Path) -> str:
    """Images of different heights and widths, of whose lists ``kind`` names the layout."""
    images = foreign.varied(COUNT)
    files = [encoded(image) for image in images]
    if kind == "Caffe":
        return foreign.write_lmdb(folder / "set", foreign.caffe(images, range(COUNT)))
    if kind == "files":
        return foreign.write_lmdb(folder / "set", {b"%03d" % i: f for i, f in enumerate(files)})
    if kind == "Fuel":
        return foreign.write_varied_fuel(folder / "set.h5", COUNT)
    if kind == "vlen":
        with h5py.File(folder / "set.h5", "w") as file:
            foreign.vlen(file, "images", files)
        return str(folder / "set.h5")
    rows = [np.frombuffer(file, np.uint8) for file in files] if "encoded" in kind else images
    return foreign.write_pyxis(
        folder / "set", [foreign.pyxis_sample({"input": row}) for row in rows]
    )


@pytest.mark.parametrize("kind", ["Caffe", "pyxis", "files", "encoded pyxis", "Fuel", "vlen"])
def test_shapes_that_vary_need_a_size(tmp_path: Path, kind: str) -> None:
    """Without size the error says so; with it each picture is cropped and resized; convert too."""
    path = varied(kind, tmp_path)
    assert open_source(path).spec.shape is None
    with pytest.raises(ParamsError, match=r"differ in size.*pass size=\(H, W\)"):
        AsyncReader(path=path)
    wanted = np.stack([resized(image, (5, 6)) for image in foreign.varied(COUNT)])
    np.testing.assert_array_equal(read_all(path, size=(5, 6)), wanted)
    np.testing.assert_array_equal(read_all(path, size=(5, 6), io="pread"), wanted)
    out = tmp_path / "png.h5"
    convert(path, out, encoding="png")
    np.testing.assert_array_equal(read_all(str(out), size=(5, 6)), wanted)
    if open_source(path).spec.encoded:
        convert(path, tmp_path / "original.lmdb")
    else:
        with pytest.raises(FormatError, match="different sizes"):
            convert(path, tmp_path / "raw.h5")
    report = convert(path, tmp_path / "fixed.h5", encoding="raw", size=(5, 6))
    assert report.count == COUNT


def test_sizes_that_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many files some headers tell the size; one that differs is a DecodeError."""
    monkeypatch.setattr(extents, "_HEADERS", 3)
    files = {b"%03d" % i: f for i, f in enumerate(FILES)}
    files[b"004"] = encoded(paint(1, (8, 8, 3))[0])
    path = foreign.write_lmdb(tmp_path / "set", files)
    with AsyncReader(path=path, batch_size=COUNT) as reader:
        reader.fetchData()
        with pytest.raises(DecodeError, match=r"record 4, key 004.*found 8 x 8.*pass size") as got:
            reader.getNextBatch()
    assert (got.value.index, got.value.key) == (4, "004")
    assert read_all(path, size=(4, 4)).shape == (COUNT, 4, 4, 3)


# -- refusals --------------------------------------------------------------------------------------


PYARROW = b"\x01\0\0\0" + b"\0" * 12 + b"\xff\xff\xff\xff\x80\0\0\0" + b"\0" * 99


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({}, "an LMDB without a record"),
        ({b"length": b"0"}, "an LMDB without a record"),
        ({b"a": b"hello world"}, r"not read \[.*key a\].*68 65 6c 6c 6f.*as a Caffe Datum: "),
        ({b"a": b""}, r"not read.*as a Caffe Datum: a Datum that holds no pixels"),
        ({b"\xff\x01": b"\x00" * 50}, r"not read \[.*key 0xff01\]"),
        ({b"a": foreign.datum(label=3)}, "holds no pixels"),
        # pickles without tensorpack's __keys__ (fairchem, say), and what pyarrow.serialize wrote
        ({b"0": pickle.dumps({"x": 0}, 5), b"length": pickle.dumps(1)}, "pickles, which can run"),
        (
            {b"0": PYARROW, b"__keys__": PYARROW},
            r"no pyarrow of today reads them.*convert FOLDER",
        ),
    ],
)
def test_unknown_layouts(tmp_path: Path, entries: foreign.Entries, match: str) -> None:
    """What is none of the layouts is a FormatError that shows the first value and its key."""
    path = foreign.write_lmdb(tmp_path / "set", entries)
    with pytest.raises(FormatError, match=match):
        open_source(path)


def test_unknown_databases(tmp_path: Path) -> None:
    """Named databases that are nobody's are listed."""
    path = foreign.write_named(tmp_path / "set", {b"one": {b"a": b"b"}, b"\xfftwo": {b"c": b"d"}})
    with pytest.raises(FormatError, match=r"found named databases \\xfftwo, one"):
        open_source(path)


def test_shortened_while_read(tmp_path: Path) -> None:
    """With io="pread" a foreign file shortened in place is an error, keys included."""
    path = foreign.write_lmdb(tmp_path / "set", {b"%03d" % i: f for i, f in enumerate(FILES)})
    source = open_source(path, io="pread")
    file = tmp_path / "set" / "data.mdb"
    copy = tmp_path / "copy"
    shutil.copy(file, copy)
    with file.open("r+b") as handle:
        handle.truncate(100)
    with pytest.raises(OSError, match="became shorter"):
        fill_rows(source, OutputSpec(layout="NHWC"), np.arange(3))
    assert Inspector(source.first).key(3) is None


# -- damaged and hostile records -------------------------------------------------------------------

BAD = 5


def raw_map(**fields: Any) -> bytes:
    """A pyxis sample whose input is a map of any kind."""
    inner = msgpack.packb({k.encode(): v for k, v in fields.items()}, use_bin_type=True)
    target = foreign.pyxis_array(np.array(1))
    return msgpack.packb({"input": inner, "target": target}, use_bin_type=True)


def sample(image: Any, target: Any = 1) -> bytes:
    """A pyxis sample with a label."""
    return foreign.pyxis_sample({"input": image, "target": np.asarray(target)})


GOOD = sample(IMAGES[0])
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
    ("text", sample("t"), "found text; expected an"),
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
    ("other shape", sample(IMAGES[0, :5, 0]), "axes"),
    ("empty array", raw_map(type=2, dtype="|u1", shape=[0, 7, 3], data=b""), "is empty"),
    ("other dtype", sample(IMAGES[0].astype("i2")), "of another dtype"),
    ("other channels", sample(IMAGES[0, :, :, :2].copy()), "other channels"),
    ("other label", sample(IMAGES[0], np.arange(2)), "labels 'target' are of another shape"),
    ("label dtype", sample(IMAGES[0], np.array(1.0)), "labels 'target' are of another dtype"),
]


@pytest.mark.parametrize(
    ("value", "match"), [case[1:] for case in BAD_SAMPLES], ids=[case[0] for case in BAD_SAMPLES]
)
def test_damaged_pyxis_sample(tmp_path: Path, value: bytes, match: str) -> None:
    """A damaged or hostile sample is a FormatError that names file, record and key."""
    samples = [GOOD] * COUNT
    samples[BAD] = value
    path = foreign.write_pyxis(tmp_path / "set", samples)
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    error = caught.value
    assert (error.path, error.index, error.key) == (path, BAD, f"{BAD:010d}")


@pytest.mark.parametrize(
    ("numbers", "stated", "match"),
    [
        (range(12), b"11", "found 12 samples; expected 11"),
        (range(12), b"13", "found 12 samples; expected 13"),
        (range(12), b"0", "expected 0"),
        (range(12), b"1e3", "not a number"),
        (range(12), b"-12", "not a number"),
        (range(12), b"9" * 30, "not a number"),
        (range(12), None, "its number of samples is missing"),
        ((0, 1, 3), b"3", "record numbers with gaps"),
    ],
)
def test_pyxis_count(tmp_path: Path, numbers: Any, stated: bytes | None, match: str) -> None:
    """nb_samples and the samples must be as many, without those that a full map left out."""
    meta = {} if stated is None else {b"nb_samples": stated}
    data = {b"%010d" % i: GOOD for i in numbers}
    path = foreign.write_named(tmp_path / "set", {b"data_db": data, b"meta_db": meta})
    with pytest.raises(FormatError, match=match) as caught:
        open_source(path)
    assert caught.value.key == (None if "gaps" in match else "nb_samples")


def test_branch_count(tmp_path: Path) -> None:
    """The branch's list of indices must be as long as there are samples; keys need not be dense."""
    samples = {i * 5: foreign.branch_sample({"x": image}) for i, image in enumerate(IMAGES)}
    for listed, match in (
        ([1, 2, 3], r"key __indices.*found 12 samples; expected 3"),
        ("text", "list of indices is no list"),
    ):
        with pytest.raises(FormatError, match=match):
            open_source(foreign.write_branch(tmp_path / match[:4], samples, listed))


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
    np.testing.assert_array_equal(read_all(path), IMAGES)


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
