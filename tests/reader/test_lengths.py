"""Samples of different length: every kind of set gives the slices of what was written."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import asyncreader
from asyncreader import AsyncReader, Batch, ParamsError, SampleError

#: Lengths of the samples; some are empty where a set can have such.
LENGTHS = (7, 3, 12, 1, 9, 5, 4, 8, 2, 6, 11, 10)
WITH_EMPTY = (0, 7, 3, 12, 0, 0, 1, 9, 5, 4, 8, 0)
#: Served: of field x, and of field y.
MOST = {"x": 6, "y": 9}

Samples = list[dict[str, np.ndarray]]

#: How a data set of a shape is stored: keywords of h5py.
STORED: dict[str, Callable[[tuple[int, ...]], dict[str, Any]]] = {
    "contiguous": lambda shape: {},
    "chunked": lambda shape: {"chunks": (min(5, shape[0]), *shape[1:])},
    "gzip": lambda shape: {"chunks": (min(5, shape[0]), *shape[1:]), "compression": "gzip"},
    "cut": lambda shape: {
        "chunks": tuple(max(1, (n + 1) // 2) for n in shape),
        "compression": "lzf",
    },
}


def made(lengths: tuple[int, ...], extra: int = 0) -> Samples:
    """Samples whose values say where they stand: x (n, 2): sample and place; y (n,): both in one
    number, big-endian. ``extra``: values that x has more."""
    return [
        {
            "x": np.stack((np.full(n + extra, k), np.arange(n + extra)), axis=1).astype("f4") + 0.5,
            "y": (1000 * (k + 1) + np.arange(n)).astype(">i4"),
        }
        for k, n in enumerate(lengths)
    ]


@dataclass
class Written:
    """A set on disk, or arrays: what a reader is opened with, and what must come out of it."""

    params: dict[str, Any]
    samples: Samples
    names: dict[str, str] = field(default_factory=lambda: {"x": "x", "y": "y"})


def put(group: h5py.Group, name: str, rows: np.ndarray, stored: str) -> None:
    group.create_dataset(name, data=rows, **STORED[stored](rows.shape))


def joined(samples: Samples, name: str) -> np.ndarray:
    return np.concatenate([one[name] for one in samples], dtype=samples[0][name].dtype)


def offsets_of(samples: Samples, name: str) -> np.ndarray:
    return np.cumsum([0, *(len(one[name]) for one in samples)])


def offsets(folder: Path, stored: str) -> Written:
    """Values with starts, which go by a usual name, in a group; other starts for each field."""
    samples = made(WITH_EMPTY)
    for one in samples[::2]:
        one["y"] = one["y"][: len(one["y"]) // 2]
    with h5py.File(folder / "set.h5", "w") as file:
        for name in ("x", "y"):
            put(file.require_group("in"), name, joined(samples, name), stored)
            file[f"in/{name}_offsets"] = offsets_of(samples, name).astype("u4")
    return Written({"path": folder / "set.h5"}, samples, {"x": "in/x", "y": "in/y"})


def lengths(folder: Path, stored: str) -> Written:
    """Values with lengths, whose name the caller says."""
    samples = made(WITH_EMPTY)
    with h5py.File(folder / "set.h5", "w") as file:
        for name in ("x", "y"):
            put(file, name, joined(samples, name), stored)
        put(file, "n", np.array(WITH_EMPTY, "u2"), stored)
    return Written({"path": folder / "set.h5", "offsets_field": "n"}, samples)


def variable(folder: Path, stored: str) -> Written:
    """HDF5's variable length: y alone can be; x has offsets."""
    samples = made(WITH_EMPTY)
    with h5py.File(folder / "set.h5", "w", userblock_size=512) as file:
        how = STORED[stored]((len(samples),))
        data = file.create_dataset("y", (len(samples),), h5py.vlen_dtype(np.dtype(">i4")), **how)
        for k, one in enumerate(samples):
            data[k] = one["y"]
        put(file, "x", joined(samples, "x"), stored)
        file["x_lengths"] = np.array(WITH_EMPTY)
    return Written({"path": folder / "set.h5"}, samples)


def several(folder: Path, stored: str) -> Written:
    """Two files are one set."""
    samples = made(WITH_EMPTY)
    for number, some in enumerate((samples[:5], samples[5:])):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            for name in ("x", "y"):
                put(file, name, joined(some, name), stored)
            file["indptr"] = offsets_of(some, "x")
    return Written({"path": [folder / "0.h5", folder / "1.h5"]}, samples)


def arrays(folder: Path, stored: str) -> Written:
    samples = made(WITH_EMPTY)
    data = {name: joined(samples, name) for name in ("x", "y")}
    return Written({"data": {**data, "offsets": offsets_of(samples, "x")}}, samples)


def whole(folder: Path, stored: str) -> Written:
    """Whole episodes of flat arrays."""
    samples = made(LENGTHS)
    with h5py.File(folder / "set.h5", "w") as file:
        for name in ("x", "y"):
            put(file, name, joined(samples, name), stored)
        file["ends"] = np.cumsum(LENGTHS)
    return Written(
        {"path": folder / "set.h5", "episodes": "ends:ends", "window": "episode"}, samples
    )


def groups(folder: Path, stored: str) -> Written:
    """Whole episodes of groups, as Minari writes them: x has a row more."""
    samples = made(LENGTHS, extra=1)
    with h5py.File(folder / "set.h5", "w") as file:
        for number, one in enumerate(samples):
            for name, rows in one.items():
                put(file.require_group(f"episode_{number}"), name, rows, stored)
    return Written({"path": folder / "set.h5", "window": "episode"}, samples)


def bags(folder: Path, stored: str) -> Written:
    """Files as rows, as CLAM writes them."""
    samples = made(LENGTHS)
    for number, one in enumerate(samples):
        with h5py.File(folder / f"slide_{number}.h5", "w") as file:
            for name, rows in one.items():
                put(file, name, rows, stored)
    where = {"path": str(folder / "slide_*.h5"), "episodes": "files", "window": "episode"}
    return Written(where, samples)


KINDS = {
    one.__name__: one for one in (offsets, lengths, variable, several, arrays, whole, groups, bags)
}
EPISODES = ("whole", "groups", "bags")


def opened(known: Written, **more: Any) -> AsyncReader:
    params: dict[str, Any] = {
        **known.params,
        "labels_field": None,
        "max_length": MOST,
        "pad_value": {"x": -1, "y": -7},
        "batch_size": 4,
        **more,
    }
    if "data" not in params:
        params.setdefault("data_field", known.names)
    return AsyncReader(params)


def numbers_of(batch: Batch) -> list[int]:
    """The numbers of a batch's samples."""
    found = batch.indices if batch.episode is None else batch.episode
    return found.tolist()  # type: ignore[no-any-return]


def check(batch: Batch, known: Written, starts: Callable[[int, str], int] = lambda k, n: 0) -> None:
    """The batch is the slices that plain numpy takes, filled up."""
    for place, name in enumerate(("x", "y")):
        data, most, pad = batch.data[place], MOST[name], {"x": -1, "y": -7}[name]
        served = batch.lengths[place]
        assert served.dtype == np.int64
        for k, number in enumerate(numbers_of(batch)):
            if not batch.mask[k]:
                assert served[k] == 0
                continue
            stored = known.samples[number][name]
            start = starts(number, name)
            part = stored[start : start + most]
            expected = np.full((most, *stored.shape[1:]), pad, stored.dtype.newbyteorder("="))
            expected[: len(part)] = part
            np.testing.assert_array_equal(data[k], expected)
            assert served[k] == len(part)
            if batch.episode is not None:
                present = batch.present[place]
                np.testing.assert_array_equal(present[k], np.arange(most) < len(part))


@pytest.fixture(params=[(kind, stored) for kind in KINDS for stored in STORED], ids="-".join)
def known(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    kind, stored = request.param
    if kind == "arrays" and stored != "contiguous":
        pytest.skip("arrays are in memory")
    return KINDS[kind](tmp_path, stored)


@pytest.fixture(params=KINDS)
def gzipped(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return KINDS[request.param](tmp_path, "gzip")


def copies(reader: AsyncReader) -> Iterator[tuple[Any, ...]]:
    """All that a batch is, as bytes."""
    for batch in reader:
        parts = [one.tobytes() for one in (*batch.data, *batch.lengths)]
        yield batch.indices.tolist(), batch.mask.tolist(), parts


class TestEverySet:
    """What holds of every kind of set."""

    def test_samples_are_slices(self, known: Written) -> None:
        """In each order each sample comes once: its head, filled up, with its length."""
        for shuffle in (False, True, "block"):
            with opened(
                known, shuffle=shuffle, last_batch="pad", nthread=2, batch_size=5
            ) as reader:
                seen: list[int] = []
                for batch in reader:
                    check(batch, known)
                    seen += np.array(numbers_of(batch))[batch.mask].tolist()
            assert sorted(seen) == list(range(len(known.samples)))
            assert (seen == sorted(seen)) == (shuffle is False)

    def test_random_stretches(self, gzipped: Written) -> None:
        """A longer sample is cut at a random place, in one draw for all of its fields; over some
        epochs every place comes. Shorter ones are whole."""
        both = {"x": 6, "y": 6}
        drawn: dict[int, set[int]] = {}
        with opened(
            gzipped, shuffle=True, overlong="random", max_length=both, batch_size=12
        ) as reader:
            for _ in range(60):
                for batch in reader:
                    for k, number in enumerate(numbers_of(batch)):
                        x, y = (gzipped.samples[number][name] for name in ("x", "y"))
                        begin = int(batch.data[0][k, 0, 1]) if len(x) else 0
                        part = x[begin : begin + 6]
                        np.testing.assert_array_equal(batch.data[0][k, : len(part)], part)
                        if len(y) == len(x) or batch.episode is not None:  # of one episode
                            part = y[begin : begin + 6]
                            np.testing.assert_array_equal(batch.data[1][k, : len(part)], part)
                        if len(y) > 6:
                            drawn.setdefault(number, set()).add(begin)
        for number, begins in drawn.items():
            assert begins == set(range(len(gzipped.samples[number]["y"]) - 6 + 1))

    @pytest.mark.slow
    def test_processes(self, tmp_path: Path) -> None:
        """Worker processes fill the same batches as threads."""
        for kind in ("variable", "groups"):
            (tmp_path / kind).mkdir()
            known = KINDS[kind](tmp_path / kind, "gzip")
            more: dict[str, Any] = {"shuffle": True, "overlong": "random", "nthread": 2}
            with opened(known, **more) as reader:
                expected = list(copies(reader))
            with opened(known, workers="process", njob=2, **more) as reader:
                assert list(copies(reader)) == expected

    def test_ranks(self, gzipped: Written) -> None:
        """The batches of two ranks, joined, are that of one process."""
        for shuffle in (True, "block"):
            more: dict[str, Any] = {"shuffle": shuffle, "overlong": "random"}
            with opened(gzipped, batch_size=6, **more) as reader:
                whole = [[*map(np.copy, (*b.data, *b.lengths))] for b in reader]
            parts = []
            for rank in range(2):
                with opened(gzipped, batch_size=3, rank=rank, world_size=2, **more) as reader:
                    parts.append([[*map(np.copy, (*b.data, *b.lengths))] for b in reader])
            for one, *halves in zip(whole, *parts, strict=True):
                for expected, *found in zip(one, *halves, strict=True):
                    np.testing.assert_array_equal(np.concatenate(found), expected)

    def test_resume_at_every_batch(self, gzipped: Written) -> None:
        """A state taken behind any batch goes on with the next one; with another max_length or
        overlong it is refused."""
        for shuffle in (True, "block"):
            more: dict[str, Any] = {"shuffle": shuffle, "overlong": "random"}
            with opened(gzipped, **more) as reader:
                batches, states = [], [reader.state_dict()]
                for batch in copies(reader):
                    batches.append(batch)
                    states.append(reader.state_dict())
            with opened(gzipped, **more) as reader:
                for done, state in enumerate(states[:-1]):
                    reader.load_state_dict(state)
                    assert list(copies(reader)) == batches[done:]
        for other in ({"max_length": 5}, {"overlong": "cut"}):
            with (
                opened(gzipped, **{**more, **other}) as reader,
                pytest.raises(ParamsError, match="lengths differs"),
            ):
                reader.load_state_dict(states[1])

    def test_samples_by_number(self, gzipped: Written) -> None:
        """A dataset serves heads; it says their lengths, their stored bytes, and the statistics of
        their values, each counted once."""
        given: dict[str, Any] = {**gzipped.params, "max_length": MOST, "overlong": "random"}
        if "data" not in given:
            given["data_field"] = gzipped.names
        with asyncreader.open(given, as_dict=True) as dataset:
            assert len(dataset) == len(gzipped.samples)
            assert dataset.fields["x"].shape == (6, 2)
            rows = dataset[0 : len(dataset)]
            for number, stored in enumerate(gzipped.samples):
                one = dataset[number]
                for name, most in MOST.items():
                    part = stored[name][:most]
                    np.testing.assert_array_equal(one[name][: len(part)], part)
                    assert not one[name][len(part) :].any()
                    assert one[f"{name}.lengths"] == len(part) == rows[f"{name}.lengths"][number]
                    assert dataset.sample(number).stored[name] == stored[name].tobytes()
            values = joined(gzipped.samples, "x").astype(float)
            found = dataset.statistics()["x"]
            np.testing.assert_allclose(found.mean, values.mean(axis=0))
            np.testing.assert_allclose(found.std, values.std(axis=0))
            assert found.count == len(values)
            again = pickle.loads(pickle.dumps(dataset))
            np.testing.assert_array_equal(again[3]["x"], dataset[3]["x"])

    def test_too_long_samples_are_bad(self, gzipped: Written) -> None:
        """With "error" a sample that is longer than max_length is a bad sample."""
        with (
            opened(gzipped, overlong="error") as reader,
            pytest.raises(SampleError, match="longer"),
        ):
            list(reader)
        with opened(
            gzipped, overlong="error", on_error="zero", last_batch="short", batch_size=5
        ) as reader:
            good: list[int] = []
            for batch in reader:
                check(batch, gzipped)
                good += np.array(numbers_of(batch))[batch.mask].tolist()
        fits = [
            k
            for k, one in enumerate(gzipped.samples)
            if len(one["x"]) <= MOST["x"] and len(one["y"]) <= MOST["y"]
        ]
        assert good == fits

    def test_the_longest_is_told(self, gzipped: Written) -> None:
        """Without max_length the error has the longest length and the line to write."""
        longest = {n: max(len(one[n]) for one in gzipped.samples) for n in ("x", "y")}
        with pytest.raises(ParamsError) as caught:
            opened(gzipped, max_length=None, pad_value=0)
        assert f"max_length={longest}" in str(caught.value)
        with pytest.raises(ParamsError) as caught:
            opened(gzipped, max_length={"y": 3}, pad_value=0)
        assert f"max_length={longest | {'y': 3}}" in str(caught.value)
