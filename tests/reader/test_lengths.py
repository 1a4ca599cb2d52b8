"""Samples of different length: how they are cut and filled up, and what says how long they are.

That every kind of set gives the slices of what was written, is a case of test_contract.py.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import run
from fakes import damage_chunk, first_batch, hdf5

import asyncreader
from asyncreader import AsyncReader, Batch, FormatError, ParamsError, SampleError
from asyncreader.tools.verify import verify_file
from converters import convert

#: Lengths of the samples; some are empty where a set can have such.
LENGTHS = (7, 3, 12, 1, 9, 5, 4, 8, 2, 6, 11, 10)
WITH_EMPTY = (0, 7, 3, 12, 0, 0, 1, 9, 5, 4, 8, 0)
#: Served: of field x, and of field y.
MOST = {"x": 6, "y": 9}
#: What their rows are filled up with.
PAD = {"x": -1, "y": -7}

Samples = list[dict[str, np.ndarray]]


def made(lengths: tuple[int, ...]) -> Samples:
    """Samples whose values say where they stand: x (n, 2): sample and place; y (n,): both in one
    number, big-endian."""
    return [
        {
            "x": np.stack((np.full(n, k), np.arange(n)), axis=1).astype("f4") + 0.5,
            "y": (1000 * (k + 1) + np.arange(n)).astype(">i4"),
        }
        for k, n in enumerate(lengths)
    ]


@dataclass
class Written:
    """A set on disk, or arrays: what a reader is opened with, and what must come out of it."""

    params: dict[str, Any]
    samples: Samples


def joined(samples: Samples, name: str) -> np.ndarray:
    return np.concatenate([one[name] for one in samples], dtype=samples[0][name].dtype)


def offsets_of(samples: Samples, name: str) -> np.ndarray:
    return np.cumsum([0, *(len(one[name]) for one in samples)])


def offsets(folder: Path) -> Written:
    """Values with starts, which go by a usual name, in a group; other starts for each field."""
    samples = made(WITH_EMPTY)
    for one in samples[::2]:
        one["y"] = one["y"][: len(one["y"]) // 2]
    with h5py.File(folder / "set.h5", "w") as file:
        for name in ("x", "y"):
            file[f"in/{name}"] = joined(samples, name)
            file[f"in/{name}_offsets"] = offsets_of(samples, name).astype("u4")
    fields = {"x": "in/x", "y": "in/y"}
    return Written({"path": folder / "set.h5", "data_field": fields}, samples)


def arrays(folder: Path) -> Written:
    """Arrays, with starts that are those of both."""
    samples = made(WITH_EMPTY)
    data = {name: joined(samples, name) for name in ("x", "y")}
    return Written({"data": {**data, "offsets": offsets_of(samples, "x")}}, samples)


def whole(folder: Path) -> Written:
    """Whole episodes of flat arrays."""
    samples = made(LENGTHS)
    with h5py.File(folder / "set.h5", "w") as file:
        for name in ("x", "y"):
            file[name] = joined(samples, name)
        file["ends"] = np.cumsum(LENGTHS)
    where = {"path": folder / "set.h5", "data_field": ["x", "y"]}
    return Written({**where, "episodes": "ends:ends", "window": "episode"}, samples)


def opened(known: Written, **more: Any) -> AsyncReader:
    """A reader of samples of different length."""
    given = {"labels_field": None, "max_length": MOST, "pad_value": PAD, "batch_size": 4}
    return AsyncReader({**known.params, **given, **more})


def numbers_of(batch: Batch) -> list[int]:
    """The numbers of a batch's samples."""
    found = batch.indices if batch.episode is None else batch.episode
    return found.tolist()  # type: ignore[no-any-return]


def check(batch: Batch, known: Written) -> None:
    """The batch is the heads of samples, as plain numpy takes them, filled up."""
    for place, (name, most) in enumerate(MOST.items()):
        for k in np.flatnonzero(batch.mask).tolist():
            part = known.samples[numbers_of(batch)[k]][name][:most]
            np.testing.assert_array_equal(batch.data[place][k, : len(part)], part)
            assert (batch.data[place][k, len(part) :] == PAD[name]).all()
            assert batch.lengths[place][k] == len(part)


@pytest.fixture(params=[offsets, arrays, whole], ids=lambda kind: kind.__name__)
def known(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    made: Written = request.param(tmp_path)
    return made


class TestEverySet:
    """What holds of every kind of set."""

    def test_a_state_is_of_its_lengths(self, known: Written) -> None:
        """A state is refused with another max_length or overlong."""
        with opened(known) as reader:
            state = reader.state_dict()
        for other in ({"max_length": 5}, {"overlong": "random"}):
            with (
                opened(known, **other) as reader,
                pytest.raises(ParamsError, match="lengths differs"),
            ):
                reader.load_state_dict(state)

    def test_random_stretches(self, known: Written) -> None:
        """A longer sample is cut at a random place; over some epochs every place comes."""
        drawn: dict[int, set[int]] = {}
        with opened(known, shuffle=True, overlong="random", max_length=6, batch_size=12) as reader:
            for _ in range(60):
                for batch in reader:
                    for k, number in enumerate(numbers_of(batch)):
                        if len(known.samples[number]["x"]) > 6:
                            drawn.setdefault(number, set()).add(int(batch.data[0][k, 0, 1]))
        assert len(drawn) > 3
        for number, begins in drawn.items():
            assert begins == set(range(len(known.samples[number]["x"]) - 6 + 1))

    def test_samples_by_number(self, known: Written) -> None:
        """A dataset has the stored bytes of samples, and the statistics of their values, each
        counted once, also when it was pickled."""
        given: dict[str, Any] = {"max_length": MOST, "overlong": "random", "as_dict": True}
        with asyncreader.open(known.params, **given) as dataset:
            assert dataset.fields["x"].shape == (6, 2)
            for number, stored in enumerate(known.samples):
                for name in MOST:
                    assert dataset.sample(number).stored[name] == stored[name].tobytes()
            values = joined(known.samples, "x").astype(float)
            found = pickle.loads(pickle.dumps(dataset)).statistics()["x"]
            np.testing.assert_allclose(found.mean, values.mean(axis=0))
            np.testing.assert_allclose(found.std, values.std(axis=0))
            assert found.count == len(values)

    def test_too_long_samples_are_bad(self, known: Written) -> None:
        """With "error" a sample that is longer than max_length is a bad sample."""
        with (
            opened(known, overlong="error") as reader,
            pytest.raises(SampleError, match="longer"),
        ):
            list(reader)
        good: list[int] = []
        more: dict[str, Any] = {"on_error": "zero", "last_batch": "short", "batch_size": 5}
        with opened(known, overlong="error", **more) as reader:
            for batch in reader:
                check(batch, known)
                good += np.array(numbers_of(batch))[batch.mask].tolist()
        samples = enumerate(known.samples)
        fits = [k for k, one in samples if all(len(one[n]) <= MOST[n] for n in MOST)]
        assert good == fits

    def test_the_longest_is_told(self, known: Written) -> None:
        """Without max_length the error has the longest length and the line to write."""
        longest = {n: max(len(one[n]) for one in known.samples) for n in ("x", "y")}
        for most in ({}, {"y": 3}):
            with pytest.raises(ParamsError) as caught:
                opened(known, max_length=most or None, pad_value=0)
            assert f"max_length={longest | most}" in str(caught.value)


# -- rules ---------------------------------------------------------------------------------------


def test_other_numbers(tmp_path: Path) -> None:
    """Values are cast and normalised, and members of structured ones are chosen; pad_value stands
    as it is given. Bytes of variable length are numbers where max_length is given."""
    count = np.array([2, 0, 3])
    hits = np.zeros(5, [("t", "<f4"), ("q", ">i2")])
    hits["t"], hits["q"] = np.arange(5) / 4, np.arange(5)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["hits"], file["hits_lengths"] = hits, count
        raw = file.create_dataset("raw", (3,), h5py.vlen_dtype(np.uint8))
        for i, n in enumerate(count):
            raw[i] = np.arange(n)
    params: dict[str, Any] = {"path": tmp_path / "set.h5", "labels_field": None, "batch_size": 3}
    batch = first_batch(
        params,
        data_field=["hits", "hits.q", "raw"],
        members={"hits": ["q", "t"]},
        dtype={"hits": "float64", "raw": "float16"},
        mean={"hits": [1, 0]},
        std={"raw": 2},
        max_length=2,
        pad_value={"hits": -9, "raw": np.nan},
    )
    both, charge, bytes_ = batch.data
    expected = [[[-1, 0], [0, 0.25]], [[-9, -9], [-9, -9]], [[1, 0.5], [2, 0.75]]]
    np.testing.assert_array_equal(both, expected)
    assert charge.tolist() == [[0, 1], [0, 0], [2, 3]]
    assert charge.dtype == np.int16
    np.testing.assert_array_equal(bytes_, [[0, 0.5], [np.nan, np.nan], [0, 0.5]])
    for name, value, says in (
        ("raw", -1, "uint8.*int64"),
        ("raw", 0.5, "uint8.*float32"),
        ("hits.q", np.nan, "int16"),
    ):
        with pytest.raises(ParamsError, match=rf"pad_value.*{says}"):
            AsyncReader(params, data_field=name, max_length=2, pad_value=value)
    with pytest.raises(FormatError, match="max_length=N serves the bytes"):
        AsyncReader(params, data_field="raw")
    # a value that does not fit is named by its sample
    with pytest.raises(ParamsError, match=r"record 2\]"):
        AsyncReader(params, data_field="hits.q", max_length=3, dtype="bool", shuffle=False)


def negated(data: np.ndarray, labels: object) -> np.ndarray:
    return -data.sum(axis=1)


def test_postprocess_gets_rows_that_are_filled_up(tmp_path: Path) -> None:
    """A postprocess gets (B, max_length), in which pad_value stands as it is given, not cast and
    normalised; ``lengths`` are those of the samples, whatever it makes of them."""
    hdf5(tmp_path / "set.h5", x=np.arange(1.0, 7.0), x_lengths=np.array([4, 0, 2]))
    batch = first_batch(
        tmp_path / "set.h5",
        data_field="x",
        max_length=3,
        pad_value=-9,
        dtype="float32",
        scale=10,
        mean=5,
        postprocess=negated,
        batch_size=3,
    )
    assert batch.data.tolist() == [-45, 27, -91]
    assert batch.lengths.tolist() == [3, 0, 2]


@pytest.mark.parametrize("shape", [(0,), (0, 2)], ids=str)
def test_a_file_whose_samples_are_all_empty(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Samples that are all empty are served as such, alone, beside another file's, and as rows of
    an episode; so is their number known."""
    for name, rows, ends in (("none", 0, [0, 0, 0]), ("some", 3, [0, 1, 3])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            chunks = {} if rows else {"chunks": (2, *shape[1:]), "maxshape": (None, *shape[1:])}
            file.create_dataset("x", data=np.ones((rows, *shape[1:])), **chunks)
            file["x_lengths"] = np.diff(ends)
    given: dict[str, Any] = {"data_field": "x", "max_length": 2, "pad_value": -1, "batch_size": 4}
    paths = [tmp_path / "none.h5", tmp_path / "some.h5", tmp_path / "none.h5"]
    with AsyncReader(paths, **given, last_batch="short", shuffle="block") as reader:
        for batch in reader:
            expected = np.where(np.isin(batch.indices, (2, 3)), batch.indices - 1, 0)
            assert batch.lengths.tolist() == expected.tolist()
            for row, length in zip(batch.data, expected.tolist(), strict=True):
                assert (row[:length] == 1).all()
                assert (row[length:] == -1).all()
        assert reader.count == 6
    with asyncreader.open(paths[0], data_field="x", max_length=2) as stored:
        assert stored.statistics()["x"].count == 0
        assert stored.sample(1).stored["x"] == b""
    assert verify_file(str(paths[0]), params={"data_field": "x"}).ok
    more: dict[str, Any] = {"offsets_field": "x_lengths", "episodes": "files", "window": 1}
    batch = first_batch(paths[:2], **given, **more)
    assert batch.lengths.tolist() == [[0], [0], [1], [2]]
    assert batch.episode.tolist() == [0, 0, 1, 1]


def test_whole_episodes_beside_others(tmp_path: Path) -> None:
    """A field with its whole episode goes with others' first rows, windows, last rows, constants;
    ``subset`` takes episodes."""
    hdf5(tmp_path / "set.h5", t=np.arange(13), who=np.array([5, 6, 7]), ends=np.cumsum([4, 7, 2]))
    fields = {"other": "t", "t": "t", "end": "t", "next": "t", "first": "t", "who": "who"}
    with AsyncReader(
        tmp_path / "set.h5",
        data_field=fields,
        episodes="ends:ends",
        window={"other": "episode", "t": "episode", "end": "last", "next": [1]},
        max_length={"other": 5, "t": 7},
        pad_value={"t": -1},
        subset=[2, 1],
        batch_size=2,
        labels_field=None,
    ) as reader:
        assert (reader.count, len(reader)) == (2, 1)
        batch = next(iter(reader))
    other, t, *rest = (one.tolist() for one in batch.data)
    assert batch.episode.tolist() == [2, 1]
    assert batch.indices.tolist() == [11, 4]
    assert other == [[11, 12, 0, 0, 0], [*range(4, 9)]]
    assert t == [[11, 12, -1, -1, -1, -1, -1], [*range(4, 11)]]
    assert rest == [[[12], [10]], [[12], [5]], [11, 4], [7, 6]]
    lengths = [None if one is None else one.tolist() for one in batch.lengths]
    assert lengths == [[2, 5], [2, 7], *[None] * 4]


def test_one_stretch_of_an_episode(tmp_path: Path) -> None:
    """All fields of an episode are cut at one place, also one that has a row more."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for number, n in enumerate(LENGTHS):
            file[f"episode_{number}/x"] = np.arange(n + 1)
            file[f"episode_{number}/y"] = np.arange(n)
    given: dict[str, Any] = {"data_field": ["x", "y"], "window": "episode", "max_length": 6}
    begins = set()
    with AsyncReader(tmp_path / "set.h5", **given, overlong="random", batch_size=12) as reader:
        for _ in range(60):
            x, y = next(iter(reader)).data
            np.testing.assert_array_equal(x[:, 0], y[:, 0])
            begins.add(int(y[2, 0]))  # of twelve rows
    assert begins == set(range(7))


ARRAYS = {"x": np.zeros((30, 3)), "x_offsets": np.array([0, 10, 30])}


X: dict[str, Any] = {"data_field": "x", "max_length": 3}
EPISODES: dict[str, Any] = {"data_field": "x", "window": "episode"}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({**X, "mixup": 0.2}, "not beside samples of different"),
        ({**X, "transform": np.negative}, "transform works on single"),
        ({**X, "augment": ["random-grayscale"]}, "needs images.*no images"),
        ({**X, "offsets_field": False}, "goes with whole episodes"),
        ({**X, "data_field": "plain"}, "goes with whole episodes"),
        ({"data_field": ["x", "plain"], "max_length": {"x": 1, "plain": 1}}, "field 'plain'"),
        ({"data_field": ["x", "plain"], "max_length": {"x": 1, "y": 1}}, "field 'y'"),
        ({**X, "offsets_field": "nothing"}, "no field 'nothing'"),
        ({**X, "offsets_field": {"y": "n"}}, "names a field"),
        ({"data_field": "plain", "offsets_field": "x_offsets"}, "no field has such"),
        ({"data_field": "x", "max_length": {"none": 3}}, "found field 'none'"),
        ({**X, "columns": [0]}, "field 'x' has none.*in length"),
        ({"data": ARRAYS, "max_length": 3, "columns": [0]}, "field 'x' has none.*in length"),
        ({"data": ARRAYS, "max_length": {"none": 3}}, "found field 'none'"),
        (
            {"data": {"x": np.arange(6.0)}, "data_field": ["x"], "offsets_field": "n"},
            "no field 'n'",
        ),
        (
            {**X, "max_length": 1 << 30, "batch_size": 1 << 20, "last_batch": "pad"},
            "not fit in memory",
        ),
        ({**EPISODES, "window_every": 2, "episodes": "ends:ends"}, "shorter than an episode"),
        (
            {**EPISODES, "max_length": 4, "episodes": "ends:last", "offsets_field": "x_offsets"},
            "not served in whole episodes",
        ),
    ],
    ids=str,
)
def test_wrong_params(tmp_path: Path, params: dict[str, Any], says: str) -> None:
    """What does not go together is a ParamsError that says what would."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["x"], file["x_offsets"] = np.arange(6.0), np.array([0, 2, 6])
        file["plain"], file["ends"], file["last"] = np.arange(2.0), [3, 6], [1, 2]
    where = {} if "data" in params else {"path": tmp_path / "set.h5"}
    with pytest.raises(ParamsError, match=says):
        AsyncReader({"labels_field": None, **where, **params})


class TestOffsets:
    """Which data sets say where samples begin, and which do not."""

    @pytest.mark.parametrize(
        ("table", "numbers", "says"),
        [
            ("x_offsets", [0, 4, 2, 6], "decrease"),
            ("x_offsets", [0, 2, 7], "does not say"),
            ("x_offsets", [1, 2, 6], "does not say"),
            ("x_offsets", np.array([0, 2, 1 << 63], "u8"), "does not say"),
            ("x_lengths", [3, 4], "does not say"),
            ("x_lengths", [-1, 1, 6], "does not say"),
            ("x_lengths", np.array([(1 << 64) - 2, 8], "u8"), "does not say"),
            ("offsets", [0, 4, 2, 6], "decrease"),
            ("indptr", [0, 4, 2, 6], "decrease"),
            ("mine", [0, 4, 2, 6], "decrease"),
            ("mine", [0, 4, 1], "does not say"),
            ("mine", [0, 0, 6], "starts or lengths"),
            ("mine", [[0, 6]], "does not say"),
            ("mine", [0.0, 6.0], "does not say"),
            ("offsets", [0, 2, 7], None),
            ("indptr", [1, 6], None),
            ("x_lengths", [3] * 6, None),
            ("x_offsets", [0.5, 1.5], None),
            ("x_offsets", [[0, 6]], None),
            ("x_offsets", [0, 1, 2, 3, 4, 5], None),
            ("x_offsets", [1, 1, 1, 1, 1, 6], None),
            ("offsets", [0, 3, 2, 3, 4, 5], None),
        ],
        ids=str,
    )
    def test_bad_offsets(self, tmp_path: Path, table: str, numbers: Any, says: str | None) -> None:
        """Offsets that decrease, end elsewhere or overflow are a FormatError that says so; what
        does not fit the values, or has one number for each, leaves them plain rows."""
        given: dict[str, Any] = {"path": tmp_path / "set.h5", "data_field": "x"}
        with h5py.File(given["path"], "w") as file:
            file["x"], file[table] = np.arange(6.0), numbers
        if says is None:
            assert first_batch(given, batch_size=6).data.tolist() == [0, 1, 2, 3, 4, 5]
        else:
            asked = {"offsets_field": "mine"} if table == "mine" else {}
            with pytest.raises(FormatError, match=says):
                AsyncReader(given, max_length=3, **asked)

    def test_as_many_starts_as_values(self, tmp_path: Path) -> None:
        """Starts may be as many as there are values."""
        hdf5(tmp_path / "set.h5", x=np.arange(6.0), x_offsets=np.array([0, 0, 2, 2, 3, 6]))
        with AsyncReader(tmp_path / "set.h5", data_field="x", max_length=3, batch_size=5) as reader:
            assert next(iter(reader)).lengths.tolist() == [0, 2, 0, 1, 3]

    def test_a_table_that_changes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A large table stays in the file: what it says later is checked again."""
        monkeypatch.setattr("asyncreader.sources.base.KEPT_BYTES", 0)
        with h5py.File(tmp_path / "set.h5", "w") as file:
            file["x"], file["x_offsets"] = np.arange(6.0), np.array([0, 2, 4, 6])
            at = file["x_offsets"].id.get_offset()
        with AsyncReader(
            tmp_path / "set.h5", data_field="x", max_length=3, batch_size=1, on_error="zero"
        ) as reader:
            with open(tmp_path / "set.h5", "r+b") as raw:
                raw.seek(at + 8)
                raw.write((1 << 40).to_bytes(8, "little"))
            found = [(b.data[0].tolist(), bool(b.mask[0])) for b in reader]
            bad = reader.stats().bad_list
        assert found == [([0, 0, 0], False), ([0, 0, 0], False), ([4, 5, 0], True)]
        assert "offsets 0 to 1099511627776" in str(bad[0])

    def test_a_damaged_chunk(self, tmp_path: Path) -> None:
        """The samples with values in it are bad, each once, and named; the others are served."""
        how: dict[str, Any] = {"chunks": (6,), "compression": "gzip", "fletcher32": True}
        with h5py.File(tmp_path / "set.h5", "w") as file:
            file.create_dataset("x", data=np.arange(24.0), **how)
            file["x_lengths"] = np.array([4, 4, 0, 4, 4, 8])
        damage_chunk(tmp_path / "set.h5", "x", (6,))
        with AsyncReader(
            tmp_path / "set.h5", data_field="x", max_length=8, batch_size=6, on_error="zero"
        ) as reader:
            batch = next(iter(reader))
            assert batch.mask.tolist() == [True, False, True, False, True, True]
            assert batch.lengths.tolist() == [4, 0, 0, 0, 4, 8]
            assert [record for record, _ in reader.stats().bad_list] == [1, 3]


def test_long_samples_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long samples are, some values are read at a time; the sum is the same. Long rows are
    filled up behind what is served alone."""
    monkeypatch.setattr("asyncreader.pixels.numbers.TOGETHER", 5)
    monkeypatch.setattr("asyncreader.pixels.numbers.WHOLE", 0)
    known = arrays(tmp_path)
    for dtype in ({}, {"dtype": {"x": "float64", "y": "int64"}}):
        with opened(known, **dtype) as reader:
            for batch in reader:
                check(batch, known)


def test_info_and_verify(tmp_path: Path) -> None:
    """``info`` says how long samples are, without max_length; a set without checksums can be
    verified, and copied with checksums."""
    known = offsets(tmp_path)
    path = str(known.params["path"])
    result = run("info", path, "-p", "data_field=in/x")
    assert result.exit_code == 0, result.output
    assert "0 to 12 values, median 3.5" in result.output
    assert verify_file(path, params={"data_field": "in/x"}).ok
    target = tmp_path / "out.h5"
    convert(path, target, params={"data_field": "in/x"}, progress=False)
    assert verify_file(str(target)).checked == len(WITH_EMPTY)
    with h5py.File(target) as file:
        np.testing.assert_array_equal(file["data"][:], joined(known.samples, "x"))
        np.testing.assert_array_equal(file["offsets"][:], offsets_of(known.samples, "x"))


def test_files_without_rows_are_empty_episodes(tmp_path: Path) -> None:
    """Bags of features: an empty one is left out and counted, as an empty group is; alone it is an
    error."""
    lengths = (0, 3, 2, 0, 4)
    for number, n in enumerate(lengths):
        with h5py.File(tmp_path / f"bag_{number}.h5", "w") as file:
            file["x"], file.attrs["grade"] = np.full((n, 2), number), number
    given: dict[str, Any] = {"data_field": "x", "episodes": "files", "window": "episode"}
    given |= {"max_length": 4, "labels_field": "@grade", "batch_size": 3}
    batch = first_batch(str(tmp_path / "bag_*.h5"), **given)
    assert batch.labels.tolist() == [1, 2, 4]
    assert np.asarray(batch.lengths).tolist() == [3, 2, 4]
    assert batch.data[:, 0, 0].tolist() == [1, 2, 4]
    with asyncreader.open(str(tmp_path / "bag_*.h5"), data_field="x", window=2) as found:
        assert len(found) == 2 + 1 + 3
    with pytest.raises(FormatError, match="no samples"):
        AsyncReader([tmp_path / "bag_0.h5", tmp_path / "bag_3.h5"], **given)
    with pytest.raises(FormatError, match="no samples"):
        AsyncReader([tmp_path / "bag_0.h5", tmp_path / "bag_1.h5"], data_field="x")
    for wrong in ((2, 3), (4, 0)):  # of one field alone, or rows of nothing
        with h5py.File(tmp_path / "bag_0.h5", "a") as file:
            file.pop("y", None)
            file["y"] = np.zeros(wrong)
        with pytest.raises(FormatError, match=f"found x 0 x 2, y {wrong[0]} x {wrong[1]}"):
            AsyncReader(str(tmp_path / "bag_*.h5"), **{**given, "data_field": ["x", "y"]})
