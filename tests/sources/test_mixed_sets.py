"""Mixes of sets that differ: each row is what its own set serves, and what clashes is an error."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import foreign_sets as foreign
import numpy as np
import pytest
from fakes import Packed, damage, hdf5, packed, paint, pictures, write_hdf5, write_lmdb
from painted import open_reader

import asyncreader
from asyncreader import AsyncReader, ChecksumError, DecodeError, ParamsError

SIZES = {"raw": 30, "jpeg": 20, "planes": 12, "files": 25, "grey": 9}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | tuple[str, ...]]:
    """Sets by name, of other containers, encodings, sizes and numbers of files."""
    folder = tmp_path_factory.mktemp("sets")
    sizes = ((11 + i % 5, 17 - i % 3, 3) for i in itertools.count())
    many = [pictures(1, next(sizes))[0] for _ in range(SIZES["jpeg"])]
    parts = [
        write_hdf5(folder / f"{i}.h5", packed(paint(n, (12, 10, 3))[::-1], labels=ones(n, i)))
        for i, n in enumerate((10, 15))
    ]
    planes = {}
    for i, image in enumerate(pictures(12, (24, 20, 3))):
        turned = np.ascontiguousarray(image.transpose(2, 0, 1)[::-1])  # Caffe's: planes, BGR
        planes[b"%08d" % i] = foreign.datum(turned.shape, data=turned.tobytes(), label=i % 3)
    return {
        "raw": write_hdf5(folder / "raw.h5", packed(paint(30, (12, 10, 3)))),
        "jpeg": write_lmdb(folder / "jpeg.lmdb", packed(many, "jpeg")),
        "files": tuple(parts),
        "planes": foreign.write_lmdb(folder / "planes", planes),
        "grey": write_hdf5(folder / "grey.h5", packed(paint(9, (12, 10, 1)))),
    }


def ones(count: int, label: int) -> np.ndarray:
    return np.full((count, 1), label, np.int64)


def mix_of(sets: dict[str, Any], *names: str) -> dict[Any, float]:
    """A mix of sets of ``names``, in equal parts."""
    return {sets[name]: 1 / len(names) for name in names}


SERVED: dict[str, dict[str, Any]] = {
    "size": {"size": (8, 9), "layout": "NHWC"},
    "crop": {"size": (6, 6), "crop_ratio": 0.8, "interpolation": "bicubic"},
    "float": {"size": (8, 9), "dtype": "float32", "scale": 1 / 255, "mean": (0.5, 0.4, 0.3)},
    "contiguous": {"size": (8, 9), "contiguous": True},
    "stored": {"layout": "NHWC"},
    "always": {"verify": "always"},
    "pread": {"io": "pread", "nthread": 2},
}


@pytest.mark.parametrize("served", SERVED)
@pytest.mark.parametrize(
    "names", [("raw", "files"), ("raw", "jpeg"), ("jpeg", "files", "raw"), ("files", "planes")]
)
def test_rows_are_those_of_their_sets(
    sets: dict[str, Any], served: str, names: tuple[str, ...]
) -> None:
    """Each row and label is what a reader of its set alone serves under the record's number there,
    whatever the sets' containers, encodings and sizes; source and indices say which."""
    params = SERVED[served]
    same = set(names) <= {"raw", "files"}
    if "size" not in params and not same:
        return  # other sizes need one
    if served == "always" and "planes" in names:
        return  # foreign sets have no checksums
    alone = []
    for name in names:
        with AsyncReader(path=sets[name], batch_size=SIZES[name], **params) as reader:
            batch = reader.fetchData() and reader.getNextBatch()
            alone.append((np.array(batch.data), np.array(batch.labels)))
    firsts = np.concatenate(([0], np.cumsum([SIZES[name] for name in names])))
    # three classes each; Caffe's have no names, and (N,) labels
    apart = 3 if "planes" in names else 0
    classes = "own" if apart else "joined"
    given = {"mix": mix_of(sets, *names), "classes": classes, "shuffle": True, "batch_size": 6}
    with AsyncReader(given, **params) as reader:
        for batch in itertools.chain(reader, reader):
            for i, (source, record) in enumerate(zip(batch.source, batch.indices, strict=True)):
                data, labels = alone[source]
                inside = record - firsts[source]
                np.testing.assert_array_equal(batch.data[i], data[inside])
                assert batch.labels[i].tolist() == [labels[inside].item() + apart * source]
            assert batch.source.dtype == np.int64


@pytest.mark.parametrize(
    "subset",
    [
        slice(98, None, -2),
        slice(None, None, -3),
        slice(70, 20, -1),
        slice(3, None, 7),
        slice(30, 90),
        slice(-2, 10, -5),
    ],
)
def test_slices_of_a_mix(tmp_path: Path, subset: slice) -> None:
    """A slice of any step and direction selects of each set what numpy selects of the records in
    sequence, in that order; a Dataset has the same samples."""
    values = np.arange(100, dtype=np.float32)[:, None]
    mix: dict[Any, float] = {}
    for name, part in (("a", values[:60]), ("b", values[60:])):
        hdf5(tmp_path / f"{name}.h5", data=part)
        mix[str(tmp_path / f"{name}.h5")] = 0.5
    chosen = np.arange(100)[subset]
    with AsyncReader(mix=mix, subset=subset, mix_until="first", last_batch="short") as reader:
        served = [(int(batch.indices[0]), float(batch.data[0, 0])) for batch in reader]
    assert all(index == value for index, value in served)
    for expected in (chosen[chosen < 60], chosen[chosen >= 60]):
        of_set = [index for index, _ in served if (index < 60) == (expected[0] < 60)]
        assert of_set == expected[: len(of_set)].tolist()
    with asyncreader.open(mix=mix, subset=subset) as ds:
        np.testing.assert_array_equal(ds[:], values[chosen])


def test_source(sets: dict[str, Any]) -> None:
    """source is -1 where padded, stays with a batch that was given back, and is None without a
    mix."""
    given = {"mix": mix_of(sets, "raw", "files"), "last_batch": "pad", "batch_size": 32}
    with AsyncReader(given, mix_until="first") as reader:
        batches = [(batch.source, batch.indices.copy()) for batch in reader]
    source, indices = batches[-1]
    np.testing.assert_array_equal(source, np.where(indices < 0, -1, indices >= 30))
    assert (source == -1).any()
    with open_reader() as reader:
        for batch in reader:
            assert batch.source is None


# -- what clashes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "params", "says"),
    [
        (("raw", "jpeg"), {}, "differ in size.*jpeg.lmdb.*pass size"),
        (("raw", "grey"), {"size": (4, 4)}, "grey.h5.*found.*1 x 4 x 4.*3 x 4 x 4.*raw.h5"),
        (("raw", "planes"), {}, "planes.*found.*3 x 24 x 20.*3 x 12 x 10.*raw.h5.*size="),
    ],
)
def test_rows_that_differ(
    sets: dict[str, Any], names: tuple[str, ...], params: dict[str, Any], says: str
) -> None:
    """Sets whose rows would differ are an error that names both of them."""
    with pytest.raises(ParamsError, match=says):
        AsyncReader(mix=mix_of(sets, *names), classes="own", **params)


def write(folder: Path, name: str, content: Packed) -> str:
    return write_hdf5(folder / name, content)


def test_layouts_in_memory_that_differ(tmp_path: Path) -> None:
    """Rows that are stored in another order of axes, or as another dtype, need a word on how to
    serve them; with it they are served."""
    images = pictures(8, (6, 5, 3))
    named = {"num_dim": 1, "h_dim": 3, "w_dim": 4, "cha_dim": 2}
    paths = []
    for name, dtype in (("a", "uint8"), ("b", "uint8"), ("c", "int16")):
        path = str(tmp_path / f"{name}.h5")
        hdf5(path, data=images.transpose(0, 3, 1, 2).astype(dtype))
        paths.append(path)
    mine = write(tmp_path, "mine.h5", packed(images, with_labels=False))
    with pytest.raises(ParamsError, match="axes of this dataset are known"):
        AsyncReader(mix={mine: 0.5, paths[0]: 0.5}, **named)
    with pytest.raises(ParamsError, match=r"3 x 6 x 5 int16.*3 x 6 x 5 uint8.*dtype="):
        AsyncReader(mix={paths[0]: 0.5, paths[2]: 0.5}, **named)
    with AsyncReader(mix={paths[0]: 0.5, paths[2]: 0.5}, dtype="float32", **named) as reader:
        for batch in reader:
            expected = images.transpose(0, 3, 1, 2)[batch.indices % 8]
            np.testing.assert_array_equal(batch.data, expected)
    turned = {"dtype": "float32", "augment": "random-equalize", **named}
    with pytest.raises(ParamsError, match="needs images of 8 bits") as caught:
        AsyncReader(mix={paths[0]: 0.5, paths[2]: 0.5}, **turned)
    assert caught.value.path == paths[2]


CLASSES = {
    "same": (("cat", "dog"), ("cat", "dog")),
    "other order": (("dog", "owl"), ("cat", "dog")),
    "apart": (("ant",), ("bee", "cow")),
}


@pytest.mark.parametrize("case", CLASSES)
def test_classes_are_joined_by_name(tmp_path: Path, case: str) -> None:
    """Classes of one name are one class; labels are numbers in the list that the reader has."""
    names = CLASSES[case]
    paths, expected = [], []
    for i, mine in enumerate(names):
        labels = (np.arange(6) % len(mine))[:, None]
        content = replace(packed(paint(6, (4, 4, 3)), labels=labels), classes=mine)
        paths.append(write(tmp_path, f"{i}.h5", content))
        expected += [mine[label] for label in labels[:, 0]]
    mix = dict.fromkeys(paths, 0.5)
    with AsyncReader(mix=mix, batch_size=12) as reader:
        assert reader.classes == tuple(sorted({*names[0], *names[1]}))
        batch = reader.fetchData() and reader.getNextBatch()
        for label, record in zip(batch.labels[:, 0], batch.indices, strict=True):
            assert reader.classes[label] == expected[record]
        state = reader.state_dict()
    with AsyncReader(mix=mix, batch_size=12, classes="own") as reader:
        assert reader.classes == (*names[0], *names[1])
        batch = reader.fetchData() and reader.getNextBatch()
        for label, record in zip(batch.labels[:, 0], batch.indices, strict=True):
            assert reader.classes[label] == expected[record]
            assert (label >= len(names[0])) == (record >= 6)
        with pytest.raises(ParamsError, match="fingerprint differs"):
            reader.load_state_dict(state)


def test_numbers_without_names(tmp_path: Path) -> None:
    """Without names equal numbers are one class, or none with classes="own"."""
    paths = []
    for i, labels in enumerate(([0, 1, 2], [2, 0, 5])):
        column = np.array(labels)[:, None]
        content = replace(packed(paint(3, (4, 4, 3)), labels=column), classes=None)
        paths.append(write(tmp_path, f"{i}.h5", content))
    for classes, expected in (("joined", [0, 1, 2, 2, 0, 5]), ("own", [0, 1, 2, 5, 3, 8])):
        given = {"mix": dict.fromkeys(paths, 0.5), "classes": classes, "batch_size": 6}
        with AsyncReader(given) as reader:
            assert reader.classes is None
            batch = reader.fetchData() and reader.getNextBatch()
            order = np.argsort(batch.indices)
            assert batch.labels[order, 0].tolist() == expected


CLASHES: dict[str, tuple[Any, str]] = {
    "one has names": ((ones(4, 0), ones(4, 1), None), "names of its classes.*found no names.*own"),
    "label shapes": ((ones(4, 0), np.zeros((4, 2), np.int64), 1), r"\(4, 2\).*\(4, 1\)"),
    "no labels": ((ones(4, 0), None, 1), "found no labels.*labels_field=None"),
    "floats": ((ones(4, 0), np.zeros((4, 1)), 1), "float64.*int64"),
}


@pytest.mark.parametrize("case", CLASHES)
def test_labels_and_classes_that_clash(tmp_path: Path, case: str) -> None:
    """Sets whose labels or classes do not go together are a ParamsError with both of them, and
    nothing stays open."""
    (first, second, names), says = CLASHES[case]
    one = packed(paint(4, (4, 4, 3)), labels=first)
    other = packed(paint(4, (4, 4, 3)), labels=second, with_labels=second is not None)
    if names is None:
        other = replace(other, classes=None)
    paths = [write(tmp_path, "a.h5", one), write(tmp_path, "b.h5", other)]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ParamsError, match=says) as caught:
        AsyncReader(mix=dict.fromkeys(paths, 0.5))
    assert str(tmp_path / "b.h5") in str(caught.value)
    assert str(tmp_path / "a.h5") in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("label", [-2, 3])
def test_a_label_that_is_no_class(tmp_path: Path, label: int) -> None:
    """A label without a class is an error that names the record, where classes are renumbered."""
    labels = np.array([0, 1, label, 2])[:, None]
    paths = [
        write(tmp_path, "a.h5", packed(paint(4, (4, 4, 3)))),
        write(tmp_path, "b.h5", packed(paint(4, (4, 4, 3)), labels=labels)),
    ]
    with pytest.raises(ParamsError, match="no class number") as caught:
        AsyncReader(mix=dict.fromkeys(paths, 0.5), classes="own")
    assert (caught.value.path, caught.value.index) == (paths[1], 2)


def test_a_set_without_a_field(tmp_path: Path) -> None:
    """A set without a field that is asked for is named."""
    content = packed(pictures(6, (8, 10, 3)), "png")
    masks = packed(paint(6, (8, 10, 1)), "png", with_labels=False)
    masked = write(tmp_path, "masked.h5", replace(content, fields={"mask": masks}))
    fields = {"data_field": ["data", "mask"], "layout": "NHWC", "size": (6, 6)}
    plain = write(tmp_path, "plain.h5", packed(pictures(6, (8, 10, 3))))
    with pytest.raises(ParamsError, match="mask") as caught:
        AsyncReader(mix={masked: 0.5, plain: 0.5}, **fields)
    assert caught.value.path == plain


# -- bad samples ---------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> dict[Any, float]:
    """A mix whose second set is two files: record 13 of them, which is number 3 of the second file,
    is damaged, and is number 33 of the mix."""
    parts = [pictures(10, (8, 8, 3)), pictures(20, (8, 8, 3))[10:]]
    contents = [packed(part, "png") for part in parts]
    files = tuple(write_hdf5(tmp_path / f"{i}.h5", content) for i, content in enumerate(contents))
    damage(files[1], contents[1].samples[3])
    return {write_hdf5(tmp_path / "good.h5", packed(paint(20, (8, 8, 3)))): 0.5, files: 0.5}


def test_errors_name_the_record_in_its_set(damaged: dict[Any, float]) -> None:
    """An error names the file, and the record by its number in that set of the mix; both rows and
    samples that are looked at alone."""
    for workers in ("thread", "process"):
        given = {"mix": damaged, "size": (4, 4), "epoch_samples": 40, "workers": workers}
        with AsyncReader(given, batch_size=20) as reader:
            reader.fetchData()
            reader.getNextBatch()
            reader.fetchData()
            with pytest.raises((ChecksumError, DecodeError)) as caught:
                reader.getNextBatch()
        assert os.path.basename(str(caught.value.path)) == "1.h5"
        assert caught.value.index == 13


def test_bad_samples_are_replaced_by_their_set(damaged: dict[Any, float]) -> None:
    """A replacement sample is of the same set, so that the ratios stay; with "zero" the row keeps
    its number and its source."""
    given = {"mix": damaged, "size": (4, 4), "epoch_samples": 40, "batch_size": 40}
    with AsyncReader(given, on_error="skip") as reader:
        batch = reader.fetchData() and reader.getNextBatch()
        assert batch.source.tolist() == [0, 1] * 20
        assert 33 not in batch.indices
        (bad,) = reader.stats().bad_list
        assert bad[0] == 33
    with AsyncReader(given, on_error="zero") as reader:
        batch = reader.fetchData() and reader.getNextBatch()
        row = int(np.flatnonzero(~batch.mask)[0])
        assert (batch.indices[row], batch.source[row]) == (33, 1)


# -- states and copies ---------------------------------------------------------------------------


def test_a_state_is_of_its_sets(sets: dict[str, Any], tmp_path: Path) -> None:
    """The same samples in another container resume, and other samples do not."""
    images = pictures(10, (8, 8, 3))
    first = write_hdf5(tmp_path / "a.h5", packed(images, "png"))
    same = write_lmdb(tmp_path / "b.lmdb", packed(images, "png"))
    other = write_hdf5(tmp_path / "c.h5", packed(images[::-1], "png"))
    given = {"size": (4, 4), "batch_size": 4, "shuffle": True}
    with AsyncReader(given, mix={first: 0.5, sets["jpeg"]: 0.5}) as reader:
        whole = [batch.indices.copy() for batch in reader]
        reader.seek(0, 2)
        state = json.loads(json.dumps(reader.state_dict()))
    with AsyncReader(given, mix={same: 0.5, sets["jpeg"]: 0.5}) as reader:
        reader.load_state_dict(state)
        rest = [batch.indices.copy() for batch in reader]
    np.testing.assert_array_equal(rest, whole[2:])
    for mix, says in (
        ({other: 0.5, sets["jpeg"]: 0.5}, "fingerprint differs"),
        ({sets["jpeg"]: 0.5, first: 0.5}, "mix differs"),
        ({first: 0.6, sets["jpeg"]: 0.4}, "mix differs"),
    ):
        with AsyncReader(given, mix=mix) as reader, pytest.raises(ParamsError, match=says):
            reader.load_state_dict(state)
