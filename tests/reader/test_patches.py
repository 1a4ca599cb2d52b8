"""Patches of volumes: every kind of set gives the slices that numpy takes of what was written."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from reader_contract import ReaderContract, Served

import asyncreader
from asyncreader import AsyncReader, Batch, DecodeError, FormatError, ParamsError, Writer
from asyncreader.cli.main import cli
from asyncreader.sampling.patches import Patches, Volumes
from asyncreader.sources.hdf5 import chunks
from asyncreader.tools.preview import preview
from asyncreader.tools.preview_batch import preview_batch

#: How a data set is stored, by its number of axes: keywords of h5py. No chunk divides a volume.
CHUNKS = {2: (7, 5), 3: (4, 7, 5), 4: (2, 4, 7, 5), 5: (2, 1, 4, 7, 5)}
STORED: dict[str, Any] = {
    "contiguous": lambda rank: {},
    "chunked": lambda rank: {"chunks": CHUNKS[rank]},
    "gzip": lambda rank: {"chunks": CHUNKS[rank], "compression": "gzip", "shuffle": True},
}
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


def put(file: h5py.File, name: str, data: np.ndarray, stored: str) -> None:
    how = STORED[stored](data.ndim)
    if "chunks" in how:
        how["chunks"] = tuple(map(min, how["chunks"], data.shape))
    file.create_dataset(name, data=data, **how)


def rows(folder: Path, stored: str) -> Written:
    """Volumes of one extent along the first axis, with a class for each."""
    raw, label = volumes(*[(9, 13, 11)] * 3)
    with h5py.File(folder / "rows.h5", "w") as file:
        put(file, "raw", np.stack(raw), stored)
        put(file, "label", np.stack(label), stored)
        file["labels"] = np.array([5, 7, 9])
    return Written({"path": folder / "rows.h5"}, raw, label)


def one(folder: Path, stored: str) -> Written:
    """One volume, as a microscope gives it."""
    raw, label = volumes((12, 17, 14))
    with h5py.File(folder / "one.h5", "w") as file:
        put(file, "raw", raw[0], stored)
        put(file, "label", label[0], stored)
    return Written({"path": folder / "one.h5", "sample_axis": None}, raw, label)


def files(folder: Path, stored: str) -> Written:
    """Files of one volume each, of its own extent; one is as large as the patch."""
    raw, label = volumes((12, 9, 14), PATCH, (7, 15, 9), (5, 6, 21))
    paths = []
    for number, (x, y) in enumerate(zip(raw, label, strict=True)):
        paths.append(folder / f"{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            put(file, "raw", x, stored)
            put(file, "label", y, stored)
    return Written({"path": paths, "sample_axis": None}, raw, label)


def arrays(folder: Path, stored: str) -> Written:
    raw, label = volumes(*[(9, 13, 11)] * 2)
    given = {"raw": np.stack(raw), "label": np.stack(label)}
    if stored == "chunked":  # no runs
        given["raw"] = np.asfortranarray(given["raw"])
    return Written({"data": given}, raw, label)


KINDS = {one.__name__: one for one in (rows, one, files, arrays)}


def asked(known: Written, **more: Any) -> dict[str, Any]:
    """The parameters of a reader of patches."""
    given: dict[str, Any] = {
        "data_field": ["raw", "label"],
        "patch": PATCH,
        "batch_size": 4,
        "labels_field": None,
    }
    if more.get("patch_at", "random") == "random":
        given["epoch_samples"] = 13
    return {**known.params, **given, **more}


def opened(known: Written, **more: Any) -> AsyncReader:
    return AsyncReader(asked(known, **more))


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


def grid(extent: tuple[int, ...], step: tuple[int, ...] = PATCH) -> list[tuple[int, ...]]:
    """The corners of a grid in C order, as pytorch-3dunet's loader takes them."""
    axes = []
    for n, size, by in zip(extent, PATCH, step, strict=True):
        inside = list(range(0, n - size + 1, by))
        axes.append(inside if inside[-1] == n - size else [*inside, n - size])
    return list(itertools.product(*axes))


def places(reader: AsyncReader) -> Iterator[tuple[int, ...]]:
    """(volume, corner) of all samples of an epoch."""
    for batch in reader:
        assert batch.place is not None
        some = np.concatenate((batch.indices[:, None], batch.place), axis=1)[batch.mask]
        yield from map(tuple, some.tolist())


@pytest.fixture(params=[(kind, stored) for kind in KINDS for stored in STORED], ids="-".join)
def known(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    kind, stored = request.param
    return KINDS[kind](tmp_path, stored)


@pytest.fixture(params=["rows", "files"])
def gzipped(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return KINDS[request.param](tmp_path, "gzip")


class TestEverySet(ReaderContract):
    """What holds of every kind of set."""

    @pytest.fixture(params=["random", "grid"])
    def served(self, request: pytest.FixtureRequest, gzipped: Written) -> Served:
        given = asked(gzipped, patch_at=request.param, shuffle=True, last_batch="pad")
        count = sum(len(grid(one.shape)) for one in gzipped.label)
        count = 13 if request.param == "random" else count
        return Served(given, lambda batch: check(batch, gzipped), count)

    def test_patches_are_slices(self, known: Written) -> None:
        """In every order a patch is the slice at its place; a grid has each of its places once."""
        expected = [
            (number, *corner) for number, y in enumerate(known.label) for corner in grid(y.shape)
        ]
        for shuffle in (False, True, "block"):
            with opened(
                known, patch_at="grid", shuffle=shuffle, last_batch="pad", nthread=2
            ) as reader:
                seen = []
                for batch in reader:
                    check(batch, known)
                    seen += places([batch])  # type: ignore[arg-type]
            assert reader.count == len(expected)
            assert sorted(seen) == expected
            assert (seen == expected) == (shuffle is False)
        for at, count in (("random", 13), ("center", len(known.raw))):
            with opened(known, patch_at=at, shuffle=True, last_batch="pad", io="pread") as reader:
                for batch in reader:
                    check(batch, known)
                assert reader.count == count

    def test_cast_and_normalised(self, known: Written) -> None:
        """dtype, mean and std are those of the patch, and do not change its place."""
        more: dict[str, Any] = {"dtype": "float32", "scale": 0.5, "mean": 10, "std": 4}
        with opened(known, **more) as reader, opened(known) as plain:
            for batch, other in zip(reader, plain, strict=True):
                np.testing.assert_allclose(batch.data[0], (other.data[0] * 0.5 - 10) / 4, rtol=1e-6)
                np.testing.assert_array_equal(batch.data[1], other.data[1])


# -- orders --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_places_are_uniform_and_keyed(tmp_path: Path) -> None:
    """Every place of every volume comes about equally often; the places follow from the seed, the
    epoch and the position, and each volume comes once in a pass."""
    known = files(tmp_path, "contiguous")
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
    known = files(tmp_path, "contiguous")
    with opened(known, epoch_samples=6, shuffle=True, batch_size=3) as reader:
        seen = [volume for _ in range(2) for volume, *_ in places(reader)]
    assert np.bincount(seen).tolist() == [3, 3, 3, 3]
    assert all(set(seen[i : i + 4]) == {0, 1, 2, 3} for i in (0, 4, 8))


def test_one_for_each_volume(tmp_path: Path) -> None:
    """An epoch of random patches has one of each volume, the next one other places."""
    known = rows(tmp_path, "gzip")
    with opened(known, epoch_samples=None, batch_size=3, labels_field="labels") as reader:
        found = [list(places(reader)) for _ in range(2)]
        assert [volume for volume, *_ in found[0]] == [0, 1, 2]
        assert found[0] != found[1]
        assert next(iter(reader)).labels.tolist() == [5, 7, 9]


def test_steps_of_a_grid(tmp_path: Path) -> None:
    """Patches of a grid are patch_step apart, and the last ones are shifted inwards."""
    known = files(tmp_path, "contiguous")
    for step in (2, (1, 3, 9)):
        by = (2, 2, 2) if step == 2 else (1, 3, 9)
        with opened(
            known, patch_at="grid", patch_step=step, batch_size=1, subset=slice(2, 3)
        ) as reader:
            assert list(places(reader)) == [(2, *at) for at in grid((7, 15, 9), by)]


def test_cells_are_another_order_of_a_grid() -> None:
    """Numbered cell by cell, a grid has the same places; those of one chunk follow each other."""
    volumes = Volumes(
        (4, 4, 4),
        (1, 2, 3),
        0,
        np.array([[40, 23, 33], [9, 60, 8]]),
        np.array([2, 3]),
        (16, 8, 16),
    )
    patches = Patches(volumes, "grid", (4, 4, 4))
    numbers = np.arange(patches.population)
    plain, cells = patches.places(numbers), patches.places(numbers, by_chunk=True)
    assert np.array_equal(np.sort(cells), np.sort(plain))
    assert np.unique(plain).size == plain.size
    volume, corner = volumes.of(cells)
    chunk = np.concatenate((volume[:, None], corner // volumes.chunk), axis=1)
    aligned = (corner % 4 == 0).all(axis=1)  # the last ones are shifted
    runs = 1 + np.count_nonzero((np.diff(chunk[aligned], axis=0) != 0).any(axis=1))
    assert runs == len(np.unique(chunk[aligned], axis=0))
    assert np.array_equal(volumes.records(volume, corner), cells)


def test_subset_weights_and_classes(tmp_path: Path) -> None:
    """A subset is of volumes, in its order; weights and classes are those of the volumes."""
    known = rows(tmp_path, "contiguous")
    more: dict[str, Any] = {"labels_field": "labels", "epoch_samples": None}
    with opened(known, subset=[2, 0], batch_size=2, **more) as reader:
        assert reader.count == 2
        batch = next(iter(reader))
        assert batch.indices.tolist() == [2, 0]
        assert batch.labels.tolist() == [9, 5]
    with opened(known, weights=[0, 1, 3], epoch_samples=400, batch_size=40) as reader:
        found = np.bincount([volume for volume, *_ in places(reader)])
    assert found[0] == 0
    assert abs(found[1] - 100) < 50
    balanced: dict[str, Any] = {"shuffle": "balanced-permutation", "batch_size": 3, **more}
    for at in ("random", "grid"):
        with opened(known, patch_at=at, **balanced) as reader:
            for batch in reader:
                check(batch, known)
                assert sorted(batch.labels.tolist()) == [5, 7, 9]
    each = len(grid((9, 13, 11)))
    with opened(known, weights=np.ones(3 * each), patch_at="grid", epoch_samples=8) as reader:
        assert reader.count == 8


@pytest.mark.slow
def test_states_hold_the_patch(tmp_path: Path) -> None:
    """A state is refused with another patch, other places or other volumes."""
    known = files(tmp_path, "contiguous")
    with opened(known, shuffle=True) as reader:
        state = reader.state_dict()
    assert "patch" in state
    for other in (
        {"patch": (3, 5, 4)},
        {"patch_at": "center", "batch_size": 2},
        {"subset": [0, 1, 3]},
        {"path": known.params["path"][:3]},
    ):
        with (
            opened(known, shuffle=True, **other) as reader,
            pytest.raises(ParamsError, match="by other training"),
        ):
            reader.load_state_dict(state)
    with (
        opened(known, shuffle=True, epoch_samples=14) as reader,
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
    plain = chunks.decode_into

    def counted(grid: Any, numbers: Any, *more: Any) -> Any:
        read.extend(numbers.tolist())
        return plain(grid, numbers, *more)

    monkeypatch.setattr(chunks, "decode_into", counted)
    given: dict[str, Any] = {"path": tmp_path / "x.h5", "sample_axis": None, "labels_field": None}
    with AsyncReader(given, patch=(8, 8, 8), patch_at="center") as reader:
        batch = next(iter(reader))
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
    sets = [{"path": tmp_path / "x.h5", "data_field": name} for name in names]
    with h5py.File(tmp_path / "x.h5") as file:
        sets += [{"data": file["lzf"]}, {"data": file["big"]}]
        sets += [{"path": tmp_path / "x.npy"}, {"data": data[::-1][:, ::2]}, {"data": Sliced()}]
        sets += [{"data": np.load(tmp_path / "x.npy", mmap_mode="r")}]
        for given in sets:
            expected = data[::-1][:, ::2] if isinstance(given.get("data"), np.ndarray) else data
            if isinstance(given.get("data"), np.memmap):
                expected = data
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


def test_series_and_axes(tmp_path: Path) -> None:
    """A patch has any number of axes, anywhere: stretches of series, and axes before the others."""
    data = np.random.default_rng(0).normal(size=(5, 6, 40)).astype("f4")
    given: dict[str, Any] = {"data": data, "epoch_samples": 20, "batch_size": 5}
    with AsyncReader(given, patch=[9]) as reader:
        for batch in reader:
            assert batch.place is not None
            for k, (at,) in enumerate(batch.place.tolist()):
                np.testing.assert_array_equal(batch.data[k], data[batch.indices[k], :, at : at + 9])
    with AsyncReader(given, patch=(2, 3), patch_axes=(0, 1), sample_axis=2) as reader:
        for batch in reader:
            assert batch.place is not None
            for k, (i, j) in enumerate(batch.place.tolist()):
                np.testing.assert_array_equal(
                    batch.data[k], data[i : i + 2, j : j + 3, batch.indices[k]]
                )


# -- samples by number ---------------------------------------------------------------------------


def test_dataset(tmp_path: Path) -> None:
    """A Dataset numbers the patches of a grid, and has the centre where patches are random."""
    known = rows(tmp_path, "gzip")
    given = {**known.params, "data_field": {"raw": "raw", "mask": "label"}, "patch": PATCH}
    with asyncreader.open(given, as_dict=True) as ds:
        assert len(ds) == 3
        sample: Any = ds[1]
        assert sample["place"].tolist() == [3, 3, 3]
        assert sample["label"] == 7
        np.testing.assert_array_equal(sample["raw"], known.raw[1][:, 3:6, 3:9, 3:7])
        assert ds.sample(2).record == 2
        assert ds.sample(2).stored["mask"] == known.label[2][3:6, 3:9, 3:7].tobytes()
        assert ds.paths == [None] * 3
        assert ds.labels is not None
        assert ds.labels.tolist() == [5, 7, 9]
        assert ds.class_counts == {5: 1, 7: 1, 9: 1}
    corners = grid((9, 13, 11))
    with asyncreader.open(given, patch_at="grid", labels_field=None) as grids:
        assert len(grids) == 3 * len(corners)
        for number in (0, 7, len(grids) - 1):
            volume, at = divmod(number, len(corners))
            where = tuple(slice(a, a + n) for a, n in zip(corners[at], PATCH, strict=True))
            expected: Any = grids[number]
            np.testing.assert_array_equal(expected[1], known.label[volume][where])
        found = pickle.loads(pickle.dumps(grids)).statistics()
        assert found["raw"].count == np.stack(known.raw).size
        assert np.isclose(found["raw"].mean, np.mean(known.raw))
        assert np.isclose(found["mask"].std, np.std(known.label))
    with opened(known) as reader:
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
    known = files(tmp_path, "gzip")
    given = {"data_field": ["raw", "label"], "labels_field": None, **known.params}
    run = CliRunner()
    words = ["-p", 'data_field=["raw","label"]', "-p", "sample_axis=null"]
    words += ["-p", "patch=3x6x4", "-p", "patch_at=grid", "-p", "patch_step=2"]
    path = str(tmp_path / "[0-3].h5")
    told = run.invoke(cli, ["info", path, *words, "--json"])
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
    plain = run.invoke(cli, ["info", path, *words]).stdout
    assert f"{len(touched['raw'])} of 3 x 6 x 4: a grid, 2 x 2 x 2 apart" in plain
    made = preview({**given, "patch": PATCH}, count=9)
    assert list(made.records) == [0, 1, 2, 3]
    assert made.sheet.width > 300
    batch = preview_batch({**given, "patch": PATCH}, count=9)
    assert len(batch.records) == 9
    one = rows(tmp_path, "gzip")
    classes = preview({**one.params, "data_field": "raw", "patch": PATCH}, classes=["7"])
    assert list(classes.records) == [1]


# -- sets that asyncreader packed ----


def test_shards(tmp_path: Path) -> None:
    """Patches of a sharded set are those of its files in sequence; LMDB has none."""
    known = rows(tmp_path, "contiguous")
    for container in ("hdf5", "lmdb"):
        folder = tmp_path / container
        with Writer(folder, format=container, shards=2) as writer:  # type: ignore[arg-type]
            for x, y in zip(known.raw, known.label, strict=True):
                writer.add(x, 1, mask=y)
    with AsyncReader(
        tmp_path / "hdf5", data_field=["data", "mask"], patch=PATCH, patch_at="grid", batch_size=3
    ) as reader:
        seen = []
        for batch in reader:
            check(batch, known)
            seen += places([batch])  # type: ignore[arg-type]
        assert len(set(seen)) == len(seen) == 3 * len(grid((9, 13, 11)))
    with pytest.raises(ParamsError, match="patch goes with volumes: HDF5"):
        AsyncReader(tmp_path / "lmdb", data_field="data", patch=PATCH)


# -- damage --------------------------------------------------------------------------------------


def damaged(path: Path, name: str, at: tuple[int, ...]) -> None:
    """Overwrite the chunk of a data set at ``at``."""
    with h5py.File(path) as file:
        found = file[name].id.get_chunk_info_by_coord(at)
    with path.open("r+b") as raw:
        raw.seek(found.byte_offset + 2)
        raw.write(b"\xff" * min(64, found.size - 2))


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    """Patches that touch a damaged chunk are bad samples, the others are served; the error names
    the chunk, the volume and the place."""
    known = rows(tmp_path, "gzip")
    damaged(known.params["path"], "raw", (2, 1, 4, 7, 5))
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
    known = rows(tmp_path, "gzip")
    path = known.params["path"]
    for more, words in (
        ({"patch": (3, 14, 4)}, r"larger than the volume.*\(3, 14, 4\).*\(9, 13, 11\)"),
        ({"patch": (3, 6, 4), "patch_axes": (0, 2, 3)}, "do not have the axes of a patch"),
        ({"patch": (3, 6, 4), "patch_axes": (3, 2, 4)}, "ascending order"),
        ({"patch": (3, 6, 4), "patch_axes": (2, 3, 9)}, "do not have the axes of a patch"),
        ({"patch": (3, 6, 4), "patch_axes": (2, 3)}, "another number of axes"),
        ({"patch": (3, 6, 4), "patch_axes": (2, 2, 3)}, "patch_axes is not valid"),
        ({"patch": (1, 1, 1, 1, 1)}, "do not have the axes of a patch"),
        ({"patch": (3, 0, 4)}, "patch is not valid"),
        ({"patch": 4}, "patch is not valid"),
        ({"patch": PATCH, "patch_at": "grid", "patch_step": 0}, "patch_step is not valid"),
        ({"patch": PATCH, "patch_step": 2}, "goes with patch_at"),
        ({"patch": PATCH, "patch_at": "grid", "epoch_samples": 3}, "random patches"),
        ({"patch": PATCH, "window": 3}, "patch and window do not go together"),
        ({"patch": PATCH, "max_length": 3}, "patch and max_length do not go together"),
        ({"patch_at": "grid"}, "patch_at goes with patch"),
        ({"sample_axis": None}, "sample_axis goes with patch"),
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
    with pytest.raises(FormatError, match=r"first one.*sample_axis=None with patch=\(Z, Y, X\)"):
        AsyncReader(files(tmp_path, "gzip").params["path"], data_field="label", labels_field=None)


def test_volumes_beside_are_no_labels(tmp_path: Path) -> None:
    """A volume under a usual name of labels is a field; it is not served whole as labels."""
    known = one(tmp_path, "contiguous")
    with AsyncReader(known.params, data_field="raw", patch=PATCH) as reader:
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
