"""Samples of different length that asyncreader writes: h5py slices and readers give what was added,
and damage is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from command_sets import run
from fakes import first_batch

import asyncreader
from asyncreader import (
    AsyncReader,
    ChecksumError,
    FormatError,
    ParamsError,
    SourceError,
    Writer,
    convert,
)
from asyncreader.formats.packed import described_digest, digest
from asyncreader.tools.verify import verify_file

#: Ways to store a set: suffix of its name, and options.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "hdf5": (".h5", {}),
    "gzip": (".h5", {"compression": "gzip"}),
    "small chunks": (".h5", {"compression": "gzip", "chunk": 20_000}),
    "lmdb": (".lmdb", {}),
    "shards": ("", {"shards": 2}),
    "lmdb shards": ("", {"shards": 2, "format": "lmdb"}),
}
FIELDS = {"data_field": ["data", "ids", "side"]}

Samples = list[dict[str, Any]]


def made(
    lengths: list[int], seed: int = 0, shape: tuple[int, ...] = (3,), dtype: str = "f4"
) -> Samples:
    """Samples of ``data``, of ``ids`` of another length, and of ``side``, which has one shape."""
    rng = np.random.default_rng(seed)
    return [
        {
            "data": (rng.normal(size=(n, *shape)) * 50).astype(dtype),
            "ids": rng.integers(0, 1 << 40, lengths[-1 - k]),
            "side": rng.random(4),
        }
        for k, n in enumerate(lengths)
    ]


def add(writer: Writer, samples: Samples, numbers: range) -> None:
    """Add some samples, whose labels are their numbers."""
    for k in numbers:
        one = samples[k]
        writer.add(one["data"], k, path=f"k{k}", ids=one["ids"], side=one["side"])


def write(target: Path, samples: Samples, **options: Any) -> Path:
    """A set of ``samples``."""
    with Writer(target, variable_length=("data", "ids"), **options) as writer:
        add(writer, samples, range(len(samples)))
    return target


def check_served(path: Any, samples: Samples, most: int = 7, **params: Any) -> None:
    """A reader serves the heads of what was written, with lengths and zeros behind."""
    limits, count = {"data": most, "ids": most + 2}, len(samples)
    asked = {**FIELDS, "max_length": limits, "batch_size": count, **params}
    with AsyncReader(path, **asked) as reader:
        assert reader.count == count
        batch = next(iter(reader))
        assert batch.labels[:, 0].tolist() == list(range(count))
        for row, one in enumerate(samples):
            for part, lengths, (name, limit) in zip(
                batch.data[:2], batch.lengths[:2], limits.items(), strict=True
            ):
                head = one[name][:limit]
                np.testing.assert_array_equal(part[row, : len(head)], head)
                assert not part[row, len(head) :].any()
                assert lengths[row] == len(head)
            np.testing.assert_array_equal(batch.data[2][row], one["side"])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_was_added_is_what_is_stored_and_served(tmp_path: Path, way: str) -> None:
    """Lengths 0, 1 and many, or 0 alone, of several dtypes and shapes of a value: each stored
    checksum is right, plain slices of the file are the samples, and so is what readers serve."""
    suffix, options = WAYS[way]
    rng = np.random.default_rng(list(WAYS).index(way))
    kinds = (("f4", (3,)), (">i2", ()), ("?", (2, 5, 3)), ("f4", (3,)))
    for number, (dtype, shape) in enumerate(kinds):
        lengths = [0, 1, *rng.integers(0, 12, 4).tolist(), 20_000 if number == 1 else 40, 0]
        lengths = lengths if number < 3 else [0] * 4
        samples = made(lengths, number, shape, dtype)
        target = write(tmp_path / f"{number}{suffix}", samples, **options)
        report = verify_file(str(target))
        assert (report.ok, report.checked, report.problems) == (True, 3 * len(samples), ())
        if suffix == ".h5":
            with h5py.File(target) as file:
                assert file.attrs["encoding"] == b"ragged"
                for name, where in (("data", "offsets"), ("ids", "ids.offsets")):
                    off = file[where][:]
                    assert off.dtype == np.int64
                    for i, one in enumerate(samples):
                        np.testing.assert_array_equal(file[name][off[i] : off[i + 1]], one[name])
        elif suffix == ".lmdb":
            with (
                lmdb.open(str(target), readonly=True, lock=False, max_dbs=9) as env,
                env.begin() as txn,
            ):
                data = env.open_db(b"data", txn, create=False)
                for i, one in enumerate(samples):
                    little = one["data"].astype(one["data"].dtype.newbyteorder("<"))
                    assert txn.get(b"%010d" % i, db=data) == little.tobytes()
        for params in ({"verify": "always"}, {"dtype": {"data": "float64"}}, {"io": "pread"}):
            check_served(target, samples, **params)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hdf5", "gzip"])
def test_a_row_that_is_larger_than_all_blocks(tmp_path: Path, way: str) -> None:
    """Rows beyond what is kept and read together, beside short ones, equal to the byte however
    they are added."""
    (suffix, options), other = WAYS[way], tmp_path / f"other{WAYS[way][0]}"
    samples = made([5, 140_000, 0, 3, 150_000, 1], shape=(), dtype="f8")
    target = write(tmp_path / f"one{suffix}", samples, **options)
    assert verify_file(str(target)).ok
    check_served(target, samples, most=140_001)
    check_served(target, samples, most=4, verify="always")
    columns = {name: [one[name] for one in samples] for name in ("data", "ids", "side")}
    columns |= {"label": list(range(6)), "path": [f"k{i}" for i in range(6)]}
    convert(columns, other, variable_length=["data", "ids"], **options)
    assert target.read_bytes() == other.read_bytes()


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hdf5", "gzip", "lmdb", "shards"])
def test_damage_is_found_wherever_it_lies_in_a_row(tmp_path: Path, way: str) -> None:
    """A changed value is a ChecksumError with the record, also where that value is not served;
    on_error serves the others, and verify lists it."""
    suffix, options = WAYS[way]
    samples = made([4, 0, 30, 6, 9], shape=(2,), dtype="f8")
    target = write(tmp_path / f"set{suffix}", samples, **options)
    record, file = 2, target
    wanted = samples[2]["data"][25].tobytes()
    if way == "shards":
        file = next(one for one in target.glob("*.h5") if wanted in one.read_bytes())
    if way == "lmdb":
        file = target / "data.mdb"
    if way == "gzip":
        with h5py.File(file) as h5:
            place = h5["data"].id.get_chunk_info(0).byte_offset + 60  # in the one chunk
    else:
        place = file.read_bytes().index(wanted)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    report = verify_file(str(target))
    assert not report.ok
    assert way == "gzip" or report.bad == 1
    for params in ({}, {"dtype": {"data": "f4"}}, {"io": "pread"}, {"overlong": "random"}):
        for limit in (3, 40):
            asked = dict(FIELDS, max_length=limit, batch_size=5, verify="always", **params)
            with AsyncReader(target, **asked, on_error="zero") as reader:
                batch = next(iter(reader))
                assert not batch.mask[record]
                assert not batch.data[0][record].any()
                if way != "gzip":
                    assert batch.mask.sum() == 4
                    assert reader.stats().bad_samples == 1
            with AsyncReader(target, **asked) as reader:
                with pytest.raises(SourceError) as caught:
                    next(iter(reader))
                if way != "gzip":
                    assert isinstance(caught.value, ChecksumError)
                    assert (caught.value.index, caught.value.source_path) == (2, "k2")


def reseal(file: h5py.File, **changed: Any) -> None:
    """Write the description with other entries, whose own digest is right."""
    facts = json.loads(file.attrs["description"])
    facts |= changed
    facts["digests"]["offsets"] = digest(file["offsets"][:])
    facts["digests"]["meta"] = described_digest({**facts, "classes": None})
    file.attrs["description"] = np.bytes_(json.dumps(facts, sort_keys=True).encode())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: file["offsets"].write_direct(np.array([0, 5, 3, 9])), "outside the file"),
        (lambda file: file["offsets"].write_direct(np.array([0, 3, 5, 99])), "do not end"),
        (lambda file: reseal(file, shape=[3]), "not what its description says"),
        (lambda file: reseal(file, dtype="float64"), "not what its description says"),
        (lambda file: reseal(file, channels=3), "wrong 'channels'"),
        (lambda file: reseal(file, shape=None), "wrong 'shape'"),
        (lambda file: reseal(file, version=3), "newer asyncreader"),
        (lambda file: reseal(file, encoding="raw"), "contradicts"),
    ],
)
def test_a_false_description_is_a_format_error(
    tmp_path: Path, change: Callable[[h5py.File], None], said: str
) -> None:
    """Tables that contradict each other are found when the set is opened, digests right or not."""
    path = tmp_path / "set.h5"
    convert([np.ones((n, 2), "f4") for n in (3, 2, 4)], path, variable_length=True)
    with h5py.File(path, "r+") as file:
        change(file)
        if said in ("outside the file", "do not end"):
            reseal(file)
    with pytest.raises(FormatError, match=said):
        AsyncReader(path, max_length=3)
    assert not verify_file(str(path)).ok


def test_a_set_without_such_fields_is_what_it_was(tmp_path: Path) -> None:
    """Its description has version 1, and nothing of lengths; the option changes nothing of it."""
    rows = np.arange(12.0).reshape(4, 3)
    found = []
    for source, named, version in ((rows, False, 1), (rows, (), 1), ([rows, rows[:1]], True, 2)):
        convert(source, tmp_path / "a.h5", variable_length=named, overwrite=True)
        found.append((tmp_path / "a.h5").read_bytes())
        with h5py.File(tmp_path / "a.h5") as file:
            described = json.loads(file.attrs["description"])
            assert described["version"] == file.attrs["version"] == version
            assert ("offsets" in file) == (version == 2)
    assert found[0] == found[1]


# -- copies ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_copies_selections_and_joined_sets(tmp_path: Path) -> None:
    """From one container to another and back, some samples, several sets in one, splits, lists of
    sets, and shards added to shards: the values are copied, and what is served stays the same."""
    samples, more = made([3, 0, 8, 1, 5, 12]), made([2, 9], seed=1)
    first = write(tmp_path / "a.h5", samples)
    second = write(tmp_path / "b.lmdb", more)
    convert(first, tmp_path / "c.lmdb")
    convert(tmp_path / "c.lmdb", tmp_path / "d", shards=3)
    convert(tmp_path / "d", tmp_path / "e.h5")
    prints = set()
    for path in (first, tmp_path / "c.lmdb", tmp_path / "d", tmp_path / "e.h5"):
        check_served(path, samples)
        with asyncreader.open(path, max_length=4, **FIELDS) as found:
            prints.add(found.fingerprint)
    assert len(prints) == 1
    with h5py.File(first) as one, h5py.File(tmp_path / "e.h5") as other:
        for table in ("data", "offsets", "ids", "ids.offsets", "checksums", "ids.checksums"):
            np.testing.assert_array_equal(one[table][:], other[table][:])
    convert(first, tmp_path / "some.h5", select="2:5", split={"a": 0.5, "b": 0.5})
    with asyncreader.open(tmp_path / "some.h5", max_length=12) as found:
        assert sum(map(len, found.splits.values())) == 3
        np.testing.assert_array_equal(found[0][0][:8], samples[2]["data"])
    convert([first, second], tmp_path / "both.h5")
    both = tmp_path / "both"
    convert(first, both, shards=2)
    convert(second, both, append=True)
    every = samples + more
    for path in (tmp_path / "both.h5", both, [first, second]):
        batch = first_batch(path, **FIELDS, max_length=12, batch_size=8)
        assert batch.lengths[0].tolist() == [len(one["data"]) for one in every]
        for row, one in enumerate(every):
            np.testing.assert_array_equal(batch.data[0][row, : len(one["data"])], one["data"])
    raw = tmp_path / "raw.h5"
    convert(np.ones((3, 3), "f4"), raw)
    for source, target, options in (
        ([first, raw], tmp_path / "x.h5", {}),
        (raw, both, {"append": True}),
        (first, tmp_path / "x.h5", {"encoding": "jpeg"}),
        (first, tmp_path / "x.h5", {"variable_length": True}),
    ):
        with pytest.raises((ParamsError, FormatError)):
            convert(source, target, **options)
    assert not (tmp_path / "x.h5").exists()


@pytest.mark.slow
def test_resume_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was interrupted goes on where its finished files end."""
    samples, target = made([7, 0, 3, 2, 9]), tmp_path / "set"
    options: dict[str, Any] = {"shards": 2, "resume": True, "variable_length": ["data", "ids"]}
    monkeypatch.setattr("converters.writer.PIECE", 60)
    writer = Writer(target, **options)
    add(writer, samples, range(3))
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with Writer(target, **options) as writer:
        assert "k0" in writer
        add(writer, samples, range(5))
    assert verify_file(str(target)).ok
    check_served(target, samples)


# -- what is refused -------------------------------------------------------------------------------

ROWS = [np.zeros((n, 3), "f4") for n in (2, 4)]


@pytest.mark.parametrize(
    ("added", "options", "number", "said"),
    [
        (ROWS, {}, 1, "variable_length='data'"),
        ([*ROWS, np.zeros((2, 4), "f4")], {"variable_length": True}, 2, "differs from the first"),
        ([*ROWS, np.zeros((2, 3), "f8")], {"variable_length": True}, 2, "differs from the first"),
        ([*ROWS, np.zeros((), "f4")], {"variable_length": True}, 2, "differs from the first"),
        ([*ROWS, np.zeros(3, "f4")], {"variable_length": True}, 2, "differs from the first"),
        ([*ROWS, np.zeros((0,), "f4")], {"variable_length": True}, 2, "without values"),
        ([np.zeros((), "f4")], {"variable_length": True}, 0, "too many axes"),
        ([np.zeros((3, 0), "f4")], {"variable_length": True}, 0, "without a number"),
        (ROWS, {"variable_length": "boxes"}, 0, "does not have"),
        ([b"\xff\xd8\xff"], {"variable_length": True}, 0, "cannot be stored"),
    ],
)
def test_samples_that_differ_otherwise(
    tmp_path: Path, added: list[Any], options: dict[str, Any], number: int, said: str
) -> None:
    """A ParamsError with the sample's number, and nothing is published."""
    with pytest.raises(ParamsError, match=said) as caught:
        convert(iter(added), tmp_path / "x.h5", **options)
    assert caught.value.index == number
    assert list(tmp_path.iterdir()) == []


def test_what_readers_say_of_lengths(tmp_path: Path) -> None:
    """Without max_length the error says how long the longest is, and so does info; what takes
    samples for rows of one length is refused; statistics and single samples work."""
    samples = made([3, 0, 8, 1])
    target = write(tmp_path / "a.h5", samples)
    with pytest.raises(ParamsError, match="max_length=8") as caught:
        AsyncReader(target)
    assert "offsets_field" not in str(caught.value)
    for params in (
        {"offsets_field": False},
        {"offsets_field": "ids.offsets"},
        {"patch": (2,)},
        {"episodes": "axis", "max_length": 8},
        {"columns": [0], "max_length": 8},
        {"size": (4, 4), "max_length": 8},
        {"window": "episode", "max_length": 8},
    ):
        with pytest.raises(ParamsError):
            AsyncReader(target, **params)
    with asyncreader.open(target, max_length=5) as found:
        values = np.concatenate([one["data"] for one in samples]).astype("f8")
        np.testing.assert_allclose(found.statistics()["data"].mean, values.mean(axis=0))
        assert found.sample(2).stored["data"] == samples[2]["data"].tobytes()
        assert found[2][0].shape == (5, 3)
    assert "0 to 8 values" in run("info", target).output
