"""Patches of volumes: where they lie, what is read for them, and what is refused.

That every kind of set gives the slices that numpy takes, is a case of test_contract.py.
"""

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import run
from fakes import damage_chunk, first_batch, hdf5

import asyncreader
from asyncreader import AsyncReader, Batch, DecodeError, FormatError, ParamsError, Writer
from asyncreader.sources.hdf5 import chunk_cache
from asyncreader.tools.preview import preview, preview_batch

#: Chunks of a volume, by its number of axes. None divides a volume.
CHUNKS = {2: (7, 5), 3: (4, 7, 5), 4: (2, 4, 7, 5), 5: (2, 1, 4, 7, 5)}
PATCH = (3, 6, 4)


@dataclass
class Written:
    """A set, and its volumes: raw (C, Z, Y, X) and label (Z, Y, X) of each."""

    params: dict[str, Any]
    raw: list[np.ndarray]
    label: list[np.ndarray]


def volumes(*extents: tuple[int, ...]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(3)
    raw = [rng.integers(0, 60000, (2, *extent), np.uint16) for extent in extents]
    return raw, [rng.integers(0, 9, extent, np.uint8) for extent in extents]


def put(file: h5py.File, name: str, data: np.ndarray) -> None:
    chunk = tuple(map(min, CHUNKS[data.ndim], data.shape))
    file.create_dataset(name, data=data, chunks=chunk, compression="gzip", shuffle=True)


def rows(folder: Path) -> Written:
    """Volumes of one extent along the first axis, with a class for each."""
    raw, label = volumes(*[(9, 13, 11)] * 3)
    with h5py.File(folder / "rows.h5", "w") as file:
        put(file, "raw", np.stack(raw))
        put(file, "label", np.stack(label))
        file["labels"] = np.array([5, 7, 9])
    return Written({"path": folder / "rows.h5"}, raw, label)


def files(folder: Path) -> Written:
    """Files of one volume each, of its own extent; one is as large as the patch."""
    raw, label = volumes((12, 9, 14), PATCH, (7, 15, 9), (5, 6, 21))
    paths = []
    for number, (x, y) in enumerate(zip(raw, label, strict=True)):
        paths.append(folder / f"{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            put(file, "raw", x)
            put(file, "label", y)
    return Written({"path": paths, "sample_axis": None}, raw, label)


def opened(known: Written, **more: Any) -> AsyncReader:
    """A reader of patches."""
    given = {"data_field": ["raw", "label"], "patch": PATCH, "batch_size": 4, "labels_field": None}
    return AsyncReader({**known.params, **given, **more})


def check(batch: Batch[Any, Any], known: Written) -> None:
    """The batch is the slices that plain numpy takes at its places."""
    assert batch.place is not None
    raw, label = batch.data
    for k, (volume, corner) in enumerate(
        zip(batch.indices.tolist(), batch.place.tolist(), strict=True)
    ):
        if volume < 0:
            assert not batch.mask[k]
            assert corner == [-1, -1, -1]
            assert not raw[k].any()
            continue
        where = tuple(slice(at, at + n) for at, n in zip(corner, PATCH, strict=True))
        np.testing.assert_array_equal(raw[k], known.raw[volume][(slice(None), *where)])
        np.testing.assert_array_equal(label[k], known.label[volume][where])


def places(reader: AsyncReader) -> Iterator[tuple[int, ...]]:
    """(volume, corner) of all samples of an epoch."""
    for batch in reader:
        assert batch.place is not None
        some = np.concatenate((batch.indices[:, None], batch.place), axis=1)[batch.mask]
        yield from map(tuple, some.tolist())


# -- orders --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_places_are_uniform_and_keyed(tmp_path: Path) -> None:
    """Every place of every volume comes about equally often; the places follow from the seed, the
    epoch and the position, and each volume comes once in a pass."""
    known = files(tmp_path)
    with opened(known, epoch_samples=4000, shuffle=True, batch_size=40) as reader:
        first, second = list(places(reader)), list(places(reader))
    assert first != second
    with opened(known, epoch_samples=4000, shuffle=True, batch_size=25) as reader:
        assert list(places(reader)) == first
    for turn in range(0, 4000, 4):
        assert {volume for volume, *_ in first[turn : turn + 4]} == {0, 1, 2, 3}
    counts = np.zeros((10, 4, 11), np.int64)
    for volume, *corner in (*first, *second):
        if volume == 0:
            counts[tuple(corner)] += 1
    assert counts.sum() == 2000
    for axis in range(3):
        along = counts.sum(axis=tuple({0, 1, 2} - {axis}))
        expected = 2000 / along.size
        assert (abs(along - expected) < 5 * expected**0.5).all()


def test_passes_go_on_in_the_next_epoch(tmp_path: Path) -> None:
    """Epochs that are no whole number of passes give each volume as often as the others."""
    known = files(tmp_path)
    with opened(known, epoch_samples=6, shuffle=True, batch_size=3) as reader:
        seen = [volume for _ in range(2) for volume, *_ in places(reader)]
    assert np.bincount(seen).tolist() == [3, 3, 3, 3]
    assert all(set(seen[i : i + 4]) == {0, 1, 2, 3} for i in (0, 4, 8))


@pytest.mark.slow
def test_states_hold_the_patch(tmp_path: Path) -> None:
    """A state is refused with another patch, other places or other volumes."""
    known = files(tmp_path)
    more: dict[str, Any] = {"shuffle": True, "epoch_samples": 13}
    with opened(known, **more) as reader:
        state = reader.state_dict()
    assert "patch" in state
    for other in (
        {"patch": (3, 5, 4)},
        {"patch_at": "center", "batch_size": 2, "epoch_samples": None},
        {"subset": [0, 1, 3]},
        {"path": known.params["path"][:3]},
    ):
        with (
            opened(known, **(more | other)) as reader,
            pytest.raises(ParamsError, match="by other training"),
        ):
            reader.load_state_dict(state)
    with (
        opened(known, **(more | {"epoch_samples": 14})) as reader,
        pytest.raises(ParamsError, match="epoch_samples differs"),
    ):
        reader.load_state_dict(state)


# -- what is read --------------------------------------------------------------------------------


def test_only_the_chunks_that_are_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is decoded once for a batch, those that no patch touches never; in blocks once."""
    data = np.random.default_rng(0).integers(0, 9, (32, 32, 32), np.uint8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("data", data=data, chunks=(8, 8, 8), compression="gzip")
    read: list[int] = []
    plain = chunk_cache.OpenChunks.decode

    def counted(self: Any, numbers: Any, *more: Any) -> Any:
        read.extend(numbers.tolist())
        return plain(self, numbers, *more)

    monkeypatch.setattr(chunk_cache.OpenChunks, "decode", counted)
    given: dict[str, Any] = {"path": tmp_path / "x.h5", "sample_axis": None, "labels_field": None}
    batch = first_batch(given, patch=(8, 8, 8), patch_at="center")
    np.testing.assert_array_equal(batch.data[0], data[12:20, 12:20, 12:20])
    assert sorted(read) == sorted(set(read))
    at = np.stack(np.unravel_index(read, (4, 4, 4)))
    assert at.min() == 1
    assert at.max() == 2
    read.clear()
    more: dict[str, Any] = {"patch": (4, 4, 4), "patch_at": "grid", "batch_size": 64}
    with AsyncReader(given, shuffle="block", shuffle_window=64, **more) as reader:
        assert sum(len(batch) for batch in reader) == 512
    assert len(read) == 64  # in windows of eight whole chunks


@pytest.mark.filterwarnings("ignore:.*can only be decoded by the HDF5 library")
def test_every_way_to_store_a_volume(tmp_path: Path) -> None:
    """Filters of all kinds, other orders of bytes, data inside the header, .npy, h5py data sets,
    and arrays that give slices."""
    data = np.random.default_rng(0).integers(0, 2000, (11, 13, 9)).astype("i2")
    chunked: dict[str, Any] = {"chunks": (4, 5, 4)}

    class Sliced:
        """An array such as zarr's."""

        shape, dtype = data.shape, data.dtype

        def __getitem__(self, where: Any) -> np.ndarray:
            assert isinstance(where, tuple)
            return data[where]

    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("lzf", data=data, compression="lzf", fletcher32=True, **chunked)
        file.create_dataset("scaleoffset", data=data, scaleoffset=0, **chunked)
        file.create_dataset("big", data=data, dtype=">i2")
        file.create_dataset("big gzip", data=data, dtype=">i2", compression="gzip", **chunked)
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(data.shape)
        h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT16, space, compact).write(
            h5py.h5s.ALL, h5py.h5s.ALL, data
        )
    np.save(tmp_path / "x.npy", data)
    names = ("lzf", "scaleoffset", "big", "big gzip", "compact")
    turned = data[::-1][:, ::2]
    with h5py.File(tmp_path / "x.h5") as file:
        sets: list[tuple[dict[str, Any], np.ndarray]] = [
            *(({"path": tmp_path / "x.h5", "data_field": name}, data) for name in names),
            *(({"data": file[name]}, data) for name in ("lzf", "big")),
            ({"path": tmp_path / "x.npy"}, data),
            ({"data": turned}, turned),
            ({"data": Sliced()}, data),
            ({"data": np.load(tmp_path / "x.npy", mmap_mode="r")}, data),
        ]
        for given, expected in sets:
            with AsyncReader(
                given, patch=PATCH, sample_axis=None, epoch_samples=20, batch_size=10, nthread=2
            ) as reader:
                for batch in reader:
                    assert batch.place is not None
                    assert batch.data.dtype == np.int16
                    for patch, (z, y, x) in zip(batch.data, batch.place, strict=True):
                        np.testing.assert_array_equal(
                            patch, expected[z : z + 3, y : y + 6, x : x + 4]
                        )


def test_pictures_are_what_is_left(tmp_path: Path) -> None:
    """Patches of large pictures are pictures: turned to NCHW, and mirrored with their masks."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (2, 40, 50, 3), np.uint8)
    mask = rng.integers(0, 2, (2, 40, 50), np.uint8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("picture", data=picture, chunks=(1, 16, 16, 3), compression="gzip")
        file["mask"] = mask
    with AsyncReader(
        {"path": tmp_path / "x.h5", "data_field": ["picture", "mask"], "labels_field": None},
        patch=(16, 20), patch_axes=(1, 2), batch_size=8, epoch_samples=24, flip=True,
    ) as reader:  # fmt: skip
        assert reader.data_shape == ((8, 3, 16, 20), (8, 16, 20))
        mirrored = set()
        for batch in reader:
            assert batch.place is not None
            for k, (y, x) in enumerate(batch.place.tolist()):
                n = int(batch.indices[k])
                where = n, slice(y, y + 16), slice(x, x + 20)
                for flip in (False, True):
                    step = -1 if flip else 1
                    if (batch.data[1][k] == mask[where][:, ::step]).all():
                        mirrored.add(flip)
                        np.testing.assert_array_equal(
                            batch.data[0][k].transpose(1, 2, 0), picture[where][:, ::step]
                        )
                        break
                else:
                    raise AssertionError
        assert mirrored == {False, True}


@pytest.mark.parametrize("wide", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["u1", "i8", "f8"])
def test_a_narrow_patch_has_no_channels(dtype: str, wide: int) -> None:
    """Where the last axis is cut, patches of few places along it are served as they are stored."""
    data = np.random.default_rng(0).integers(0, 256, (4, 10, 20, 30)).astype(dtype)
    given: dict[str, Any] = {"data": data, "epoch_samples": 12, "batch_size": 4}
    with AsyncReader(given, patch=(8, wide), layout="NCHW") as reader:
        assert reader.data_shape == (4, 10, 8, wide)
        for batch in reader:
            assert batch.place is not None
            for patch, n, (y, x) in zip(batch.data, batch.indices, batch.place, strict=True):
                np.testing.assert_array_equal(patch, data[n, :, y : y + 8, x : x + wide])


def test_any_axis_of_samples() -> None:
    """The axes of a patch may be before that of samples."""
    data = np.random.default_rng(0).normal(size=(5, 6, 40)).astype("f4")
    given: dict[str, Any] = {"data": data, "epoch_samples": 20, "batch_size": 5}
    with AsyncReader(given, patch=(2, 3), patch_axes=(0, 1), sample_axis=2) as reader:
        for batch in reader:
            assert batch.place is not None
            for k, (i, j) in enumerate(batch.place.tolist()):
                np.testing.assert_array_equal(
                    batch.data[k], data[i : i + 2, j : j + 3, batch.indices[k]]
                )


# -- samples by number ---------------------------------------------------------------------------


def test_dataset(tmp_path: Path) -> None:
    """A Dataset says the stored bytes of the patch in the centre and the classes of volumes; its
    statistics are of whole volumes, also of a grid."""
    known = rows(tmp_path)
    given = {**known.params, "data_field": {"raw": "raw", "mask": "label"}, "patch": PATCH}
    with asyncreader.open(given) as ds:
        assert ds.sample(2).stored["mask"] == known.label[2][3:6, 3:9, 3:7].tobytes()
        assert ds.paths == [None] * 3
        assert ds.labels is not None
        assert ds.labels.tolist() == [5, 7, 9]
        assert ds.class_counts == {5: 1, 7: 1, 9: 1}
    with asyncreader.open(given, patch_at="grid", labels_field=None) as grids:
        found = pickle.loads(pickle.dumps(grids)).statistics()
        assert found["raw"].count == np.stack(known.raw).size
        assert np.isclose(found["raw"].mean, np.mean(known.raw))
        assert np.isclose(found["mask"].std, np.std(known.label))
    with opened(known, batch_size=3) as reader:
        np.testing.assert_array_equal(reader.dataset[1][1], known.label[1][3:6, 3:9, 3:7])


@pytest.mark.slow
@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_paths_are_of_the_volumes(tmp_path: Path, compression: Any, shards: int | None) -> None:
    """The path and the label of a patch are those of its volume, in one file, in shards and in a
    list of files, of a grid and of centres."""
    values = np.random.default_rng(0).integers(0, 99, (5, 9, 13), np.uint8)
    names = [f"scan {number}.png" for number in range(len(values))]
    target = tmp_path / ("set" if shards else "set.h5")
    with Writer(target, compression=compression, format="hdf5", shards=shards) as writer:
        for number, volume in enumerate(values):
            writer.add(volume, label=number, path=names[number])
    for path in (target, sorted(target.glob("*.h5")) if shards else [target]):
        with asyncreader.open(path, patch=(4, 5), patch_at="grid") as grids:
            each = len(grids) // len(values)
            assert each > 1
            assert grids.paths == [name for name in names for _ in range(each)]
            for number in range(len(grids)):
                sample = grids.sample(number)
                assert (sample.record, sample.path) == (number // each, names[number // each])
                assert sample.label == [number // each]
        with asyncreader.open(path, patch=(4, 5), subset=[3, 1]) as centres:
            assert centres.paths == [names[3], names[1]]
            assert [centres.sample(i).path for i in range(2)] == [names[3], names[1]]
        with AsyncReader(path, patch=(4, 5), batch_size=5) as reader:
            assert reader.paths == names


@pytest.mark.slow
def test_info_and_preview(tmp_path: Path) -> None:
    """info says how many volumes, patches and chunks of a patch; a sheet has slices of patches."""
    known = files(tmp_path)
    given = {"data_field": ["raw", "label"], "labels_field": None, **known.params}
    words = ["-p", 'data_field=["raw","label"]', "-p", "sample_axis=null"]
    words += ["-p", "patch=3x6x4", "-p", "patch_at=grid", "-p", "patch_step=2"]
    path = str(tmp_path / "[0-3].h5")
    told = run("info", path, *words, "--json")
    facts = json.loads(told.stdout)["patches"]
    named = {**given, "data_field": {"raw": "raw", "mask": "label"}}
    with asyncreader.open(named, patch=PATCH, patch_at="grid", patch_step=2, as_dict=True) as ds:
        assert facts["count"] == len(ds)
        touched: dict[str, list[int]] = {"raw": [], "label": []}
        for number in range(len(ds)):
            sample: Any = ds[number]
            y = known.label[ds.sample(number).record]
            for name, rank in (("raw", 4), ("label", 3)):
                chunk = [min(c, n) for c, n in zip(CHUNKS[rank][-3:], y.shape, strict=True)]
                sides = zip(sample["place"].tolist(), PATCH, chunk, strict=True)
                found = [(at + n - 1) // c - at // c + 1 for at, n, c in sides]
                touched[name].append(int(np.prod(found)))
        assert "4 volumes of 3 to 12 x 6 to 15 x 4 to 21" in repr(ds)
    for name, counts in touched.items():
        assert facts["chunks"][name] == pytest.approx(np.mean(counts))
    assert facts["volumes"] == 4
    plain = run("info", path, *words).stdout
    assert f"{len(touched['raw'])} of 3 x 6 x 4: a grid, 2 x 2 x 2 apart" in plain
    made = preview({**given, "patch": PATCH}, count=9)
    assert list(made.records) == [0, 1, 2, 3]
    assert made.sheet.width > 300
    batch = preview_batch({**given, "patch": PATCH}, count=9)
    assert len(batch.records) == 9
    one = rows(tmp_path)
    classes = preview({**one.params, "data_field": "raw", "patch": PATCH}, classes=["7"])
    assert list(classes.records) == [1]


# -- damage --------------------------------------------------------------------------------------


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    """Patches that touch a damaged chunk are bad samples, the others are served; the error names
    the chunk, the volume and the place."""
    known = rows(tmp_path)
    damage_chunk(known.params["path"], "raw", (2, 1, 4, 7, 5))
    with opened(known, patch_at="grid", batch_size=1) as reader:
        errors = []
        for _ in range(len(reader)):
            reader.fetchData()
            try:
                check(reader.getNextBatch(), known)
            except DecodeError as exc:
                errors.append(exc)
    assert errors
    assert all("chunk (1, 1, 1, 1, 1)" in str(one) for one in errors)
    assert {one.index for one in errors} == {2}
    assert "the patch at (3, 6, 4)" in str(errors[0])
    for action in ("zero", "skip"):
        with opened(known, patch_at="grid", on_error=action, last_batch="pad") as reader:
            for batch in reader:
                if action == "skip":
                    check(batch, known)
            bad = reader.stats().bad_list
        assert len(bad) == len(errors)
        assert {record for record, _ in bad} == {2}


def test_mistakes(tmp_path: Path) -> None:
    """What cannot be cut is a ParamsError that says what was found and what would do."""
    known = rows(tmp_path)
    path = known.params["path"]
    for more, words in (
        ({"patch": (3, 14, 4)}, r"larger than the volume.*\(3, 14, 4\).*\(9, 13, 11\)"),
        ({"patch": (3, 6, 4), "patch_axes": (0, 2, 3)}, "do not have the axes of a patch"),
        ({"patch": (3, 6, 4), "patch_axes": (3, 2, 4)}, "ascending order"),
        ({"patch": (3, 6, 4), "patch_axes": (2, 3, 9)}, "do not have the axes of a patch"),
        ({"patch": (3, 6, 4), "patch_axes": (2, 3)}, "another number of axes"),
        ({"patch": (1, 1, 1, 1, 1)}, "do not have the axes of a patch"),
        ({"patch": PATCH, "patch_step": 2}, "goes with patch_at"),
        ({"patch": PATCH, "patch_at": "grid", "epoch_samples": 3}, "random patches"),
        ({"patch": PATCH, "window": 3}, "patch and window do not go together"),
        ({"patch": PATCH, "max_length": 3}, "patch and max_length do not go together"),
        ({"patch": PATCH, "sample_axis": 7}, "do not have the axes of a patch"),
        ({"patch": PATCH, "batch_size": 8}, "epoch_samples draws more"),
        ({"patch": PATCH, "labels_field": "label"}, r"data_field=\['raw', 'label'\]"),
        ({"patch": PATCH, "data_field": ["raw", "labels"]}, "do not have the axes of a patch"),
        ({"patch": PATCH, "flip": True}, "flip needs images"),
    ):
        with pytest.raises(ParamsError, match=words):
            AsyncReader({"path": path, "data_field": "raw", **more})
    given = {"a": np.zeros((2, 9, 9)), "b": np.zeros((2, 9, 8))}
    with pytest.raises(ParamsError, match=r"different extents.*\(9, 8\).*\(9, 9\)"):
        AsyncReader(data=given, patch=(3, 3))

    class Rows:
        shape, dtype = (4, 9, 9), np.dtype("f4")

        def __getitem__(self, index: int) -> np.ndarray:
            return np.zeros((9, 9))[int(index)]

    with pytest.raises(ParamsError, match="slices along all axes"):
        AsyncReader(data=Rows(), patch=(3, 3))
    with h5py.File(tmp_path / "vlen.h5", "w") as file:
        file.create_dataset("data", (3,), h5py.vlen_dtype(np.uint8))
        for i in range(3):
            file["data"][i] = np.zeros(100, np.uint8)
    with pytest.raises((ParamsError, FormatError)):
        AsyncReader(tmp_path / "vlen.h5", patch=(3, 3))
    with Writer(tmp_path / "lmdb", format="lmdb", shards=2) as writer:
        for x in known.raw:
            writer.add(x, 1)
    with pytest.raises(ParamsError, match="patch goes with volumes: HDF5"):
        AsyncReader(tmp_path / "lmdb", data_field="data", patch=PATCH)
    with pytest.raises(FormatError, match=r"first one.*sample_axis=None with patch=\(Z, Y, X\)"):
        AsyncReader(files(tmp_path).params["path"], data_field="label", labels_field=None)


def test_volumes_beside_are_no_labels(tmp_path: Path) -> None:
    """A volume under a usual name of labels is a field; it is not served whole as labels."""
    hdf5(tmp_path / "one.h5", raw=np.zeros((2, 12, 17, 14)), label=np.zeros((12, 17, 14)))
    with AsyncReader(
        tmp_path / "one.h5", sample_axis=None, data_field="raw", patch=PATCH
    ) as reader:
        assert reader.labels_shape is None
        assert next(iter(reader)).data.shape == (1, 2, *PATCH)


def test_labels_of_volumes(tmp_path: Path) -> None:
    """Several labels of volumes are a tuple; labels are no volumes because there are as many of
    them as there are places along the axis that is cut."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["raw"] = np.zeros((5, 8, 5), np.float32)
        file["labels"], file["depth"] = np.arange(5), np.arange(10.0).reshape(5, 2)
    given = {"path": tmp_path / "set.h5", "data_field": "raw", "patch": (4,), "batch_size": 5}
    for at in ("random", "grid", "center"):
        with AsyncReader(given, patch_at=at, labels_field=["labels", "depth"]) as reader:
            for batch in reader:
                labels, depth = batch.labels
                np.testing.assert_array_equal(labels, batch.indices)
                np.testing.assert_array_equal(depth[:, 0], 2.0 * batch.indices)
        for field in ("labels", "depth"):
            with AsyncReader(given, patch_at=at, labels_field=field) as reader:
                assert reader.labels_shape == ((5,) if field == "labels" else (5, 2))
