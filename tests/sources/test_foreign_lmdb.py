"""Foreign LMDB sets beyond the contract: fields, shapes that vary, and refusals."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import msgpack
import numpy as np
import pytest
from fakes import encoded, paint, pictures

from asyncreader import AsyncReader, DecodeError, FormatError, ParamsError
from asyncreader.pixels.geometry import choose_rect, resize_into
from asyncreader.pixels.specs import OutputSpec
from asyncreader.sources import Inspector, Request, images, open_source
from asyncreader.testing.contract import expected, fill_rows
from converters import convert

COUNT = 12
IMAGES = paint(COUNT, (8, 7, 3))
FILES = foreign.files(pictures(COUNT, (9, 11, 3)))


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    out = np.empty((*size, image.shape[2]), image.dtype)
    rect = choose_rect(*image.shape[:2], size, "center", 1.0, None)
    resize_into(image, out, rect.box())
    return out


def read_all(path: str, **params: Any) -> np.ndarray:
    with AsyncReader(
        {"path": path, "batch_size": 4, "layout": "NHWC", "epochs": 1, "last_batch": "short"},
        **params,
    ) as reader:
        return np.concatenate([batch.data.copy() for batch in reader])


# -- which fields --------------------------------------------------------------------------------


def test_pyxis_fields_by_name(tmp_path: Path) -> None:
    """data_field and labels_field name any two fields; a wrong one is an error that lists them."""
    samples = [
        foreign.pyxis_sample({"left": i, "right": i[::-1].copy(), "score": np.float32(n)})
        for n, i in enumerate(IMAGES)
    ]
    path = foreign.write_pyxis(tmp_path / "set", samples)
    with AsyncReader(path=path, data_field="right", labels_field="score", batch_size=4) as reader:
        data, labels = next(iter(reader))
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


def test_caffe_colours(tmp_path: Path) -> None:
    """Raw planes are BGR and come as RGB; Caffe's own CIFAR sets are RGB and stay so."""
    path = foreign.write_lmdb(tmp_path / "imageset", foreign.caffe(IMAGES, range(COUNT)))
    np.testing.assert_array_equal(read_all(path), IMAGES)
    np.testing.assert_array_equal(read_all(path, channel_order="stored"), IMAGES[..., ::-1])
    assert "channel_order='stored'" in open_source(path).facts.layout
    cifar = paint(COUNT, (32, 32, 3))
    entries = {
        b"%05d" % i: foreign.datum((3, 32, 32), image.transpose(2, 0, 1).tobytes(), i)
        for i, image in enumerate(cifar)
    }
    path = foreign.write_lmdb(tmp_path / "cifar", entries)
    assert "RGB (Caffe's CIFAR)" in open_source(path).facts.layout
    np.testing.assert_array_equal(read_all(path), cifar)


@pytest.mark.parametrize(
    "params",
    [
        {"contiguous": True, "layout": "NCHW"},
        {"contiguous": True},
        {"flip": True, "seed": 3},
        {"dtype": "float32", "scale": 1 / 255, "mean": (0.1, 0.2, 0.3), "std": (1, 2, 3)},
        {"size": (5, 5), "crop": "none"},
        {"io": "pread", "layout": "NCHW"},
    ],
)
def test_caffe_colours_in_every_fill(tmp_path: Path, params: dict[str, Any]) -> None:
    """Whatever is done to BGR planes gives what the same does to the RGB pictures."""
    bgr = foreign.write_lmdb(tmp_path / "bgr", foreign.caffe(IMAGES, range(COUNT)))
    common = {"batch_size": COUNT, "layout": "NHWC", **params}
    with (
        AsyncReader(path=bgr, **common) as reader,
        AsyncReader(data=IMAGES, labels=np.arange(COUNT), **common) as plain,
    ):
        found, wanted = next(iter(reader)).data, next(iter(plain)).data
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


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


def varied_caffe(folder: Path) -> str:
    return foreign.write_lmdb(folder / "set", foreign.caffe(foreign.varied(COUNT), range(COUNT)))


def varied_pyxis(folder: Path) -> str:
    images = foreign.varied(COUNT)
    samples = [foreign.pyxis_sample({"input": i, "target": np.array(1)}) for i in images]
    return foreign.write_pyxis(folder / "set", samples)


def varied_files(folder: Path) -> str:
    files = {b"%03d" % i: encoded(image) for i, image in enumerate(foreign.varied(COUNT))}
    return foreign.write_lmdb(folder / "set", files)


def varied_encoded_pyxis(folder: Path) -> str:
    files = [np.frombuffer(encoded(image), np.uint8) for image in foreign.varied(COUNT)]
    samples = [foreign.pyxis_sample({"input": file}) for file in files]
    return foreign.write_pyxis(folder / "set", samples)


@pytest.mark.parametrize("build", [varied_caffe, varied_pyxis, varied_files, varied_encoded_pyxis])
def test_shapes_that_vary_need_a_size(tmp_path: Path, build: Callable[[Path], str]) -> None:
    """Without size the error says so; with it each picture is cropped and resized; convert too."""
    path = build(tmp_path)
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
    monkeypatch.setattr(images, "_HEADERS", 3)
    files = {b"%03d" % i: f for i, f in enumerate(FILES)}
    files[b"004"] = encoded(paint(1, (8, 8, 3))[0])
    path = foreign.write_lmdb(tmp_path / "set", files)
    with AsyncReader(path=path, batch_size=COUNT) as reader:
        reader.fetchData()
        with pytest.raises(DecodeError, match=r"record 4, key 004.*found 8 x 8.*pass size") as got:
            reader.getNextBatch()
    assert (got.value.index, got.value.key) == (4, "004")
    assert read_all(path, size=(4, 4)).shape == (COUNT, 4, 4, 3)


def test_a_bad_file_is_a_bad_sample(tmp_path: Path) -> None:
    """One damaged picture does not keep a set from opening: on_error decides; convert skips it."""
    files = {b"id-%03d" % i: f for i, f in enumerate(FILES)}
    files[b"id-007"] = FILES[7][:40]
    path = foreign.write_lmdb(tmp_path / "set", files)
    with AsyncReader(path=path, batch_size=COUNT, on_error="zero") as reader:
        batch = next(iter(reader))
        assert batch.mask.tolist() == [i != 7 for i in range(COUNT)]
        assert "key id-007" in reader.stats().bad_list[0][1]
    report = convert(path, tmp_path / "out.h5", skip_bad=True)
    assert (report.count, len(report.skipped)) == (COUNT - 1, 1)
    with pytest.raises(DecodeError, match="key id-007"):
        convert(path, tmp_path / "out.lmdb")


@pytest.mark.slow
def test_workers_of_other_processes(tmp_path: Path) -> None:
    """Spawned workers open a foreign set by its path, and serve the same."""
    path = foreign.write_lmdb(tmp_path / "set", foreign.caffe(IMAGES, range(COUNT)))
    with AsyncReader(path=path, batch_size=4, workers="process", layout="NHWC") as reader:
        for batch in reader:
            np.testing.assert_array_equal(batch.data, IMAGES[batch.indices])


def test_bounded_views(tmp_path: Path) -> None:
    """A label array that is larger than the file (values shared by records) is refused."""
    sample = foreign.pyxis_sample({"x": IMAGES[0], "y": np.arange(3)})
    path = foreign.write_pyxis(tmp_path / "set", [sample] * COUNT)
    source = open_source(path, Request("x", "y"))
    found, keys, _ = fill_rows(source, OutputSpec(layout="NHWC"), np.arange(COUNT))
    np.testing.assert_array_equal(
        found, expected(np.stack([IMAGES[0]] * COUNT), OutputSpec(layout="NHWC"), keys)
    )


# -- refusals --------------------------------------------------------------------------------------


class Canary:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.mark),)


def test_pickles_are_refused(tmp_path: Path) -> None:
    """A set of pickles is refused with the reason and what to do; nothing is unpickled."""
    mark = tmp_path / "mark"
    points = [Canary(mark), *([f, 1] for f in FILES)]
    entries = foreign.tensorpack(points, dumps=pickle.dumps)
    path = foreign.write_lmdb(tmp_path / "my set", entries)
    for open_it in (open_source, lambda p: AsyncReader(path=p), lambda p: convert(p, "out.h5")):
        with pytest.raises(FormatError) as caught:
            open_it(path)
        text = str(caught.value)
        assert "pickles, which can run any code" in text
        assert "asyncreader.Writer: docs/layouts.md" in text
        assert caught.value.key == "00000000"
    assert not mark.exists()


def test_pickles_without_keys_are_refused(tmp_path: Path) -> None:
    """So are pickles in a set without tensorpack's __keys__ (fairchem, say)."""
    entries = {b"%d" % i: pickle.dumps({"x": i}, 5) for i in range(COUNT)}
    entries[b"length"] = pickle.dumps(COUNT)
    path = foreign.write_lmdb(tmp_path / "set", entries)
    with pytest.raises(FormatError, match="pickles, which can run any code"):
        open_source(path)


def test_pyarrow_is_refused(tmp_path: Path) -> None:
    """pyarrow.serialize's values are told apart, and called unreadable."""
    value = b"\x01\0\0\0" + b"\0" * 12 + b"\xff\xff\xff\xff\x80\0\0\0" + b"\0" * 99
    entries = {str(i).encode(): value for i in range(COUNT)}
    path = foreign.write_lmdb(tmp_path / "set", {**entries, b"__keys__": value})
    with pytest.raises(FormatError, match=r"no pyarrow of today reads them.*convert FOLDER"):
        open_source(path)


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({}, "an LMDB without a record"),
        ({b"length": b"0"}, "an LMDB without a record"),
        ({b"a": b"hello world"}, r"not read \[.*key a\].*68 65 6c 6c 6f.*as a Caffe Datum: "),
        ({b"a": b""}, r"not read.*as a Caffe Datum: a Datum that holds no pixels"),
        ({b"\xff\x01": b"\x00" * 50}, r"not read \[.*key 0xff01\]"),
        ({b"a": foreign.datum(label=3)}, "holds no pixels"),
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
