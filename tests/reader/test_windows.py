"""Episodes and windows: every kind of set gives the slices of what was written, in every order."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image
from reader_contract import ReaderContract, Served

import asyncreader
from asyncreader import AsyncReader, Batch, FormatError, ParamsError
from asyncreader.pipeline.fill_batch import BatchFiller
from asyncreader.pipeline.fill_queue import FillQueue
from asyncreader.sources.hdf5 import chunks
from asyncreader.tools.verify import verify_file
from converters import convert

#: One recording: its fields, (T, ...) each.
Episode = dict[str, np.ndarray]

LENGTHS = (7, 3, 12, 1, 9, 5)


def recordings(lengths: tuple[int, ...] = LENGTHS, extra: int = 0) -> list[Episode]:
    """Episodes of pictures, numbers and a number for each row that says where it is from;
    ``extra``: rows that the pictures have more."""
    rng = np.random.default_rng(7)
    found = []
    for number, rows in enumerate(lengths):
        found.append(
            {
                "cam": rng.integers(0, 256, (rows + extra, 6, 5, 3), np.uint8),
                "act": rng.normal(size=(rows, 4)).astype("f4"),
                "at": np.stack((np.full(rows, number), np.arange(rows)), axis=1),
            }
        )
    return found


#: How a data set of a shape is stored: keywords of h5py.
STORED: dict[str, Callable[[tuple[int, ...]], dict[str, Any]]] = {
    "contiguous": lambda shape: {},
    "chunked": lambda shape: {"chunks": (min(4, shape[0]), *shape[1:])},
    "gzip": lambda shape: {"chunks": (min(4, shape[0]), *shape[1:]), "compression": "gzip"},
    "cut": lambda shape: {
        "chunks": tuple(max(1, (n + 1) // 2) for n in shape),
        "compression": "lzf",
    },
}


@dataclass
class Written:
    """A set on disk: what a reader is opened with, and what must come out of it."""

    params: dict[str, Any]
    episodes: list[Episode]
    names: dict[str, str] = field(default_factory=lambda: {n: n for n in ("cam", "act", "at")})


def put(group: h5py.Group, name: str, rows: np.ndarray, stored: str) -> None:
    group.create_dataset(name, data=rows, **STORED[stored](rows.shape))


def joined(episodes: list[Episode], name: str) -> np.ndarray:
    return np.concatenate([one[name] for one in episodes])


def groups(folder: Path, stored: str) -> Written:
    """As robomimic writes: demo_10 behind demo_9, observations in a group of their own."""
    episodes = recordings(LENGTHS * 2)
    order = sorted(range(len(episodes)), key=str)  # as HDF5 lists them
    with h5py.File(folder / "set.h5", "w") as file:
        for number in order:
            inside = file.create_group(f"data/demo_{number}")
            for name in ("cam", "act", "at"):
                put(
                    inside, f"obs/{name}" if name == "cam" else name, episodes[number][name], stored
                )
        file["mask/train"] = np.array([b"demo_2", b"demo_10"])
    return Written(
        {"path": folder / "set.h5"}, episodes, {"cam": "obs/cam", "act": "act", "at": "at"}
    )


def minari(folder: Path, stored: str) -> Written:
    """As Minari writes: one observation more than actions."""
    episodes = recordings(extra=1)
    with h5py.File(folder / "set.h5", "w") as file:
        for number, one in enumerate(episodes):
            for name, rows in one.items():
                put(file.require_group(f"episode_{number}"), name, rows, stored)
    return Written({"path": folder / "set.h5"}, episodes)


def files(folder: Path, stored: str) -> Written:
    episodes = recordings((*LENGTHS, 2, 4, 3, 6, 5))
    for number, one in enumerate(episodes):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            for name, rows in one.items():
                put(file, name, rows, stored)
    return Written({"path": str(folder / "episode_*.hdf5"), "episodes": "files"}, episodes)


def more_in_files(folder: Path, stored: str) -> Written:
    """Files of which one field has a row more."""
    episodes = recordings(extra=1)
    for number, one in enumerate(episodes):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            for name, rows in one.items():
                put(file, name, rows, stored)
    paths = [folder / f"{number}.h5" for number in range(len(episodes))]
    return Written({"path": paths, "episodes": "files"}, episodes)


def flat(folder: Path, stored: str, kind: str, tables: dict[str, np.ndarray]) -> Written:
    episodes = recordings()
    with h5py.File(folder / "set.h5", "w") as file:
        for name in ("cam", "act", "at"):
            put(file, name, joined(episodes, name), stored)
        for name, table in tables.items():
            file[name] = table
    return Written({"path": folder / "set.h5", "episodes": kind}, episodes)


def ends(folder: Path, stored: str) -> Written:
    return flat(folder, stored, "ends:meta/ends", {"meta/ends": np.cumsum(LENGTHS)})


def ids(folder: Path, stored: str) -> Written:
    numbers = np.repeat([5, 2, 9, 2, 7, 1], LENGTHS)
    return flat(folder, stored, "ids:id", {"id": numbers[:, None]})


def flags(folder: Path, stored: str) -> Written:
    last = np.cumsum(LENGTHS) - 1
    one, other = np.zeros(sum(LENGTHS), bool), np.zeros(sum(LENGTHS), "u1")
    one[last[:2]], other[last[1:4]], one[last[4]] = True, 1, True  # none at the very end
    return flat(folder, stored, "flags:done,cut", {"done": one, "cut": other})


def axis(folder: Path, stored: str) -> Written:
    episodes = recordings((11,) * 4)
    with h5py.File(folder / "set.h5", "w") as file:
        for name in ("cam", "act", "at"):
            rows = np.stack([one[name] for one in episodes])
            chunks = {"chunked": (2, 3), "gzip": (2, 3), "cut": (3, 2)}.get(stored)
            more = {} if stored in ("contiguous", "chunked") else {"compression": "gzip"}
            if chunks is not None:
                shape = (*chunks, *rows.shape[2:])
                if stored == "cut":
                    shape = (*chunks, *(max(1, (n + 1) // 2) for n in rows.shape[2:]))
                more["chunks"] = shape
            file.create_dataset(name, data=rows, **more)
    return Written({"path": folder / "set.h5", "episodes": "axis"}, episodes)


KINDS = {
    one.__name__: one for one in (groups, minari, files, more_in_files, ends, ids, flags, axis)
}

#: The windows that are asked for, by field: rows relative to the anchor.
WINDOW: dict[str, Any] = {"cam": (-2, 1), "act": (0, 4), "at": [-5, 0, 2]}


def offsets(rows: Any) -> np.ndarray:
    return np.arange(*rows) if isinstance(rows, tuple) else np.array(rows)


def asked(known: Written, rows: dict[str, Any] = WINDOW, /, **more: Any) -> dict[str, Any]:
    """The parameters of a reader of windows."""
    return {
        **known.params,
        "data_field": {name: known.names[name] for name in rows},
        "window": {name: one for name, one in rows.items() if one is not None},
        "labels_field": None,
        "layout": "NHWC",
        "batch_size": 4,
        "window_edge": "repeat",
        **more,
    }


def opened(known: Written, rows: dict[str, Any] = WINDOW, /, **more: Any) -> AsyncReader:
    return AsyncReader(asked(known, rows, **more))


def check(batch: Batch, known: Written, window: dict[str, Any], edges: str = "repeat") -> None:
    """The batch is the slices that plain numpy takes of the recordings."""
    rows_of = [one["at"].shape[0] for one in known.episodes]
    starts = np.cumsum([0, *rows_of])
    assert batch.episode is not None
    for k in np.flatnonzero(batch.mask).tolist():
        number = int(batch.episode[k])
        anchor = int(batch.indices[k]) - int(starts[number])
        assert 0 <= anchor < rows_of[number]
        for (name, rows), data, present in zip(
            window.items(), batch.data, batch.present, strict=True
        ):
            stored = known.episodes[number][name]
            if rows is None:
                np.testing.assert_array_equal(data[k], stored[anchor])
                assert present is None
                continue
            wanted = anchor + offsets(rows)
            inside = (wanted >= 0) & (wanted < len(stored))
            expected = stored[np.clip(wanted, 0, len(stored) - 1)].copy()
            if edges == "zero":
                expected[~inside] = 0
            np.testing.assert_array_equal(data[k], expected)
            np.testing.assert_array_equal(present[k], inside)
    for present in batch.present:
        assert present is None or not present[~batch.mask].any()


@pytest.fixture(params=[(kind, stored) for kind in KINDS for stored in STORED], ids="-".join)
def known(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    kind, stored = request.param
    return KINDS[kind](tmp_path, stored)


@pytest.fixture(params=KINDS)
def gzipped(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return KINDS[request.param](tmp_path, "gzip")


def copies(reader: AsyncReader) -> Iterator[tuple[Any, ...]]:
    """All that a batch is, as bytes."""
    for batch in reader:
        parts = [one.tobytes() for one in batch.data]
        shown = [None if one is None else one.tobytes() for one in batch.present]
        labels = None if batch.labels is None else batch.labels.tobytes()
        where = batch.indices.tolist(), batch.mask.tolist(), batch.episode.tolist()
        yield (*where, parts, shown, labels)


class TestEverySet(ReaderContract):
    """What holds of every kind of set."""

    @pytest.fixture(params=[*KINDS, "minari_pictures", "aloha_pictures"])
    def served(self, request: pytest.FixtureRequest, tmp_path: Path) -> Served:
        make = KINDS.get(request.param) or globals()[request.param]
        known = make(tmp_path, "gzip")
        count = sum(len(one["at"]) for one in known.episodes)
        given = asked(known, last_batch="pad")
        return Served(given, lambda batch: check(batch, known, WINDOW), count)

    @pytest.mark.parametrize("edge", ["drop", "repeat", "zero"])
    def test_windows_are_slices(self, known: Written, edge: str) -> None:
        """Each sample is the slice of its episode around its anchor; each anchor comes once."""
        with opened(known, window_edge=edge, shuffle=True, last_batch="pad", nthread=2) as reader:
            seen = []
            for batch in reader:
                check(batch, known, WINDOW, edge)
                seen += batch.indices[batch.mask].tolist()
        rows = [one["at"].shape[0] for one in known.episodes]
        extra = known.episodes[0]["cam"].shape[0] - rows[0]
        expected, start = [], 0
        for length in rows:
            for anchor in range(length):
                last = max(0 - extra, 3, 2)
                whole = anchor - 5 >= 0 and anchor + last < length
                if edge != "drop" or whole:
                    expected.append(start + anchor)
            start += length
        assert sorted(seen) == expected
        assert reader.count == len(expected)

    def test_large_pieces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Samples that are cut over chunks too large to be put together are the same."""
        monkeypatch.setattr(chunks, "MOST_ASSEMBLED", 0)
        for kind in (groups, ends, axis):
            (tmp_path / kind.__name__).mkdir()
            known = kind(tmp_path / kind.__name__, "cut")
            with opened(known, shuffle="block", last_batch="pad", nthread=2) as reader:
                for batch in reader:
                    check(batch, known, WINDOW)

    def test_one_row_of_some_fields(self, gzipped: Written) -> None:
        """A field that the window does not name has its one row, and no axis for it."""
        window = {"cam": None, "act": (0, 3), "at": None}
        with opened(gzipped, window) as reader:
            assert reader.data_shape[0] == (4, 6, 5, 3)
            for batch in reader:
                check(batch, gzipped, window)

    def test_pictures_of_a_window_are_moved_alike(self, gzipped: Written) -> None:
        """All rows of a sample have one crop, one flip and one draw of each operation: that of the
        sample's place in the order."""
        same: dict[str, Any] = {
            "size": (4, 4),
            "crop": "random-resized",
            "flip": True,
            "augment": [("color-jitter", {"brightness": 0.4})],
            "shuffle": True,
            "data_field": [gzipped.names["cam"]],
        }
        with opened(gzipped, {}, window=[0, 0, 0], **same) as reader:
            for batch in reader:
                (data,) = batch.data
                np.testing.assert_array_equal(data[:, 0], data[:, 1])
                np.testing.assert_array_equal(data[:, 0], data[:, 2])
        with opened(gzipped, {}, window=None, window_edge="drop", **same) as reader:
            single = np.concatenate([batch.data[0].copy() for batch in reader])
        with opened(gzipped, {}, window=[0, 0], **same) as reader:
            double = np.concatenate([batch.data[0].copy() for batch in reader])
        np.testing.assert_array_equal(double[:, 1], single)


# -- rules ---------------------------------------------------------------------------------------


def anchors_of(reader: AsyncReader) -> list[tuple[int, int]]:
    """(episode, row) of all samples of an epoch."""
    found: list[tuple[int, int]] = []
    for batch in reader:
        assert batch.episode is not None
        found += zip(
            batch.episode[batch.mask].tolist(), batch.indices[batch.mask].tolist(), strict=True
        )
    return found


@pytest.mark.parametrize("kind", [groups, minari, files, ends, axis], ids=lambda one: one.__name__)
def test_compiled_code_fills_windows(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of contiguous rows are filled by compiled code: the same batches as without it,
    mirrored alike, from any step on, and with memory of their own."""
    known = kind(tmp_path, "contiguous")
    more: dict[str, Any] = {"window_edge": ("repeat", "zero"), "flip": True, "shuffle": True}
    if kind is ends:
        more["labels_field"] = "at"
    with monkeypatch.context() as patched:
        patched.setattr(BatchFiller, "find_tables", lambda _: None)
        with opened(known, **more) as reader:
            assert reader._ring.fills is None
            expected = list(copies(reader))
    assert (expected[0][-1] is None) == (kind is not ends)
    for copied in (False, True):
        with opened(known, nthread=2, njob=3, copy=copied, **more) as reader:
            assert (reader._ring.fills is not None) == FillQueue.available()
            assert list(copies(reader)) == expected
            reader.seek(0, len(expected) - 2)
            assert list(copies(reader)) == expected[-2:]


def test_every_nth_anchor(tmp_path: Path) -> None:
    """Windows begin at rows 0, n, 2n of each episode, those that fit."""
    known = ends(tmp_path, "contiguous")
    rows: dict[str, Any] = {"at": (0, 3)}
    with opened(known, rows, window_every=4, window_edge="drop", last_batch="short") as reader:
        found = anchors_of(reader)
    starts = np.cumsum([0, *LENGTHS])
    assert found == [
        (e, int(starts[e]) + r) for e, n in enumerate(LENGTHS) for r in range(0, n - 2, 4)
    ]


def test_negative_starts_with_every(tmp_path: Path) -> None:
    """The first anchor of an episode is a multiple of n with room before it."""
    known = ends(tmp_path, "contiguous")
    with opened(
        known, {"at": (-3, 1)}, window_every=2, window_edge="drop", last_batch="short"
    ) as reader:
        found = anchors_of(reader)
    starts = np.cumsum([0, *LENGTHS])
    assert found == [(e, int(starts[e]) + r) for e, n in enumerate(LENGTHS) for r in range(4, n, 2)]


def test_one_window_of_each_episode(tmp_path: Path) -> None:
    """With "episode" each episode that is long enough comes once an epoch, at a row drawn anew."""
    known = ends(tmp_path, "contiguous")
    rows: dict[str, Any] = {"at": (0, 3)}
    with opened(
        known, rows, window_every="episode", window_edge="drop", last_batch="short", shuffle=True
    ) as reader:
        epochs = []
        for _ in range(40):
            epochs.append(sorted(anchors_of(reader)))
        assert reader.count == 5
        state = reader.state_dict()
        after = anchors_of(reader)
        reader.load_state_dict(state)
        assert anchors_of(reader) == after
    starts = np.cumsum([0, *LENGTHS])
    assert all([e for e, _ in epoch] == [0, 1, 2, 4, 5] for epoch in epochs)
    drawn = {row - int(starts[2]) for epoch in epochs for e, row in epoch if e == 2}
    assert drawn == set(range(10))


def test_last_row_and_names_of_own(tmp_path: Path) -> None:
    """One stored field is served under two names: the rows from the anchor, and the last row."""
    known = minari(tmp_path, "gzip")
    with AsyncReader(
        {
            **known.params,
            "data_field": {"now": "cam", "goal": "cam", "act": "act"},
            "window": {"now": 2, "goal": "last", "act": 1},
            "layout": "NHWC",
            "batch_size": 4,
        }
    ) as reader:
        assert reader.count == sum(LENGTHS)  # the pictures have a row more
        for batch in reader:
            now, goal, act = batch.data
            assert batch.episode is not None
            for k, e in enumerate(batch.episode.tolist()):
                one = known.episodes[e]
                row = int(batch.indices[k]) - sum(LENGTHS[:e])
                np.testing.assert_array_equal(now[k], one["cam"][row : row + 2])
                np.testing.assert_array_equal(goal[k], one["cam"][-1:])
                np.testing.assert_array_equal(act[k], one["act"][row : row + 1])


def test_a_row_for_each_episode(tmp_path: Path) -> None:
    """A field with one row for an episode is served for each of its samples, without an axis."""
    known = ends(tmp_path, "contiguous")
    words = np.arange(len(LENGTHS) * 3).reshape(-1, 3)
    with h5py.File(tmp_path / "set.h5", "r+") as file:
        file["words"] = words
    with AsyncReader(
        {**known.params, "data_field": ["at", "words"], "window": 3, "batch_size": 2}
    ) as reader:
        for batch in reader:
            np.testing.assert_array_equal(batch.data[1], words[batch.episode])
            assert batch.present[1] is None
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        for e, one in enumerate(known.episodes):
            file[f"e/{e}/at"], file[f"e/{e}/words"] = one["at"], words[e : e + 1]
    with AsyncReader(
        path=tmp_path / "groups.h5",
        episodes="groups:e/*",
        data_field=["words", "at"],
        window={"at": 3},
        shuffle=True,
    ) as reader:
        for batch in reader:
            np.testing.assert_array_equal(batch.data[0], words[batch.episode])


def test_a_row_for_each_episode_beside_odd_ones(tmp_path: Path) -> None:
    """A row for each episode stays that of its episode where others are empty, where all have two
    rows, and where a file's one episode has one row; its statistics are of all its rows."""
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["x"], file["who"] = np.arange(9.0), np.array([10, 20, 30, 40, 50])
        file["ends"] = [3, 3, 7, 9, 9]
        file["y"], file["whose"], file["twos"] = np.arange(4.0), np.array([1, 2]), [2, 4]
    names = {"x": ["x", "who"], "y": ["y", "whose"]}
    with asyncreader.open(
        tmp_path / "flat.h5", data_field=names["x"], episodes="ends:ends"
    ) as stored:
        assert stored[:][1].tolist() == [10, 10, 10, 30, 30, 30, 30, 40, 40]
        assert stored.statistics()["x"].count == 9
        assert stored.statistics()["who"].max == 40
    with asyncreader.open(
        tmp_path / "flat.h5", data_field=names["y"], episodes="ends:twos", window={"y": [0, 1]}
    ) as stored:
        assert [part.tolist() for part in stored[:]] == [[[0, 1], [2, 3]], [1, 2]]
    for number, rows in enumerate((4, 1, 3)):
        with h5py.File(tmp_path / f"one_{number}.h5", "w") as file:
            file["x"], file["who"] = np.full((rows, 2), number), np.array([number])
    with asyncreader.open(
        str(tmp_path / "one_*.h5"), data_field=["who", "x"], episodes="files", window={"x": 1}
    ) as stored:
        assert stored[:][0].tolist() == stored[:][1][:, 0, 0].tolist() == [0] * 4 + [1] + [2] * 3
    with h5py.File(tmp_path / "one_3.h5", "w") as file:
        file["x"], file["who"] = np.zeros((3, 2), int), np.arange(3)
    with pytest.raises(ParamsError, match="'who' has as many rows as the others in some files"):
        AsyncReader(str(tmp_path / "one_*.h5"), data_field=["who", "x"], episodes="files")


def test_an_empty_group_beside_a_row_more(tmp_path: Path) -> None:
    """Of a set whose observations have a row more, a group without any row is empty, too; the
    statistics are of all observations."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for number, rows in enumerate((2, 0, 3)):
            group = file.create_group(f"episode_{number}")
            group["action"] = np.full((rows, 1), number)
            group["observation"] = np.arange(rows + 1 if rows else 0)
    fields = ["action", "observation"]
    with asyncreader.open(tmp_path / "set.h5", data_field=fields, as_dict=True) as stored:
        rows = stored[:]
        assert rows["episode"].tolist() == [0, 0, 1, 1, 1]
        assert rows["action"][:, 0].tolist() == [0, 0, 2, 2, 2]
        assert rows["observation"].tolist() == [0, 1, 0, 1, 2]
        assert stored.statistics()["observation"].count == 7


def test_labels_are_those_of_the_anchor(tmp_path: Path) -> None:
    """Labels are not windows: they are those of the row at which the window begins."""
    known = ends(tmp_path, "contiguous")
    labels = np.arange(sum(LENGTHS)) * 10
    with h5py.File(tmp_path / "set.h5", "r+") as file:
        file["labels"] = labels
    with AsyncReader({**known.params, "data_field": "at", "window": 2, "batch_size": 3}) as reader:
        for batch in reader:
            np.testing.assert_array_equal(batch.labels, labels[batch.indices])
            assert batch.present.shape == (3, 2)  # one field: no tuple


def test_who_takes_the_same_row_of_each_field(tmp_path: Path) -> None:
    """A mix and a conversion refuse fields whose rows are not numbered alike, which they would pair
    wrongly; verify looks at all rows of each."""
    names = ("a", "b")
    for name in names:
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for number in range(3):
                group = file.create_group(f"episode_{number}")
                group["act"], group["goal"] = np.zeros((2, 4)), np.full((1, 3), number)
                files = encoded(np.full((3, 6, 5, 3), number, np.uint8))
                group.create_dataset("cam", (3,), h5py.vlen_dtype(np.uint8))[:] = files
            cut = file["episode_2/cam"][2][:20]
            group["cam"][2] = cut if name == "b" else files[2]
    paths = [str(tmp_path / f"{name}.h5") for name in names]
    ratios = dict.fromkeys(paths, 0.5)
    for fields in (["cam", "act"], ["act", "goal"]):
        with pytest.raises(ParamsError, match="a mix takes one row of each field"):
            AsyncReader(mix=ratios, data_field=fields)
        with pytest.raises(ParamsError, match="a conversion takes one row of each field"):
            convert(paths[0], tmp_path / "out.h5", params={"data_field": fields})
        assert not (tmp_path / "out.h5").exists()
    given: dict[str, Any] = {"size": (6, 5), "batch_size": 18, "on_error": "zero"}
    with AsyncReader(mix=ratios, data_field="cam", **given) as reader:
        assert next(iter(reader)).data.shape == (18, 3, 6, 5)
    params = {"data_field": ["act", "cam", "goal"]}
    assert verify_file(paths[0], params=params, decode=True).ok
    report = verify_file(paths[1], params=params, decode=True)
    assert report.bad == 1
    assert "record 8" in report.problems[0]


def test_a_mix_of_samples_of_different_length(tmp_path: Path) -> None:
    """A mix has none, with max_length and without it."""
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"], file["x_lengths"] = np.arange(6.0), [2, 4]
    ratios = {str(tmp_path / f"{name}.h5"): 0.5 for name in ("a", "b")}
    for more in ({}, {"max_length": 3}):
        with pytest.raises(ParamsError, match="samples of one length"):
            AsyncReader(mix=ratios, data_field="x", **more)


def test_labels_of_rows_beside_values_with_offsets(tmp_path: Path) -> None:
    """Labels go with rows whose values differ in length, which are another number than rows."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["hits"], file["hits_offsets"] = np.arange(7.0), np.array([0, 2, 2, 7])
        file["labels"], file["grade"], file["ends"] = [5, 6, 7], [8, 9], [1, 3]
    given: dict[str, Any] = {"data_field": "hits", "offsets_field": "hits_offsets"}
    given |= {"path": tmp_path / "set.h5", "max_length": 5, "episodes": "ends:ends"}
    with asyncreader.open(given, window=1, labels_field=["labels", "grade"]) as stored:
        data, (labels, grades) = stored[:]
        assert data[:, 0, 0].tolist() == [0, 0, 2]
        assert (labels.tolist(), grades.tolist()) == ([5, 6, 7], [8, 9, 9])


def test_outside_at_most(tmp_path: Path) -> None:
    """With window_outside a window may reach so many rows beyond the ends: Diffusion Policy's
    horizon 8 with pad_before 1 and pad_after 3."""
    known = ends(tmp_path, "contiguous")
    with opened(
        known, {"at": (-1, 7)}, window_outside=(1, 3), last_batch="short", shuffle=False
    ) as reader:
        found = anchors_of(reader)
    expected = []
    for e, n in enumerate(LENGTHS):
        # its create_indices(): starts from -pad_before to n - horizon + pad_after
        for start in range(-1, n - 8 + 3 + 1):
            expected.append((e, sum(LENGTHS[:e]) + start + 1))
    assert found == expected


@pytest.mark.parametrize("outside", [(0, 2), (1, 3), (2, None), (9, 9), (None, 0)], ids=str)
@pytest.mark.parametrize(
    "rows",
    [(0, 32, 4), [0, 28], (-1, 7), [5, 1, 1], (-9, -2, 3), (4, -5, -2)],
    ids=str,
)
def test_outside_counts_rows_of_the_window(outside: tuple[Any, Any], rows: Any) -> None:
    """window_outside counts rows of the window, however far they are from each other and in
    whatever order they are named."""
    lengths, near = (40, 7, 3), offsets(rows)
    expected, start = [], 0
    for length in lengths:
        for anchor in range(length):
            wanted = anchor + near
            beyond = (wanted < 0).sum(), (wanted >= length).sum()
            if all(most is None or n <= most for n, most in zip(beyond, outside, strict=True)):
                expected.append(start + anchor)
        start += length
    given: dict[str, Any] = {"data": {"x": np.arange(50.0), "ends": np.cumsum(lengths)}}
    given |= {"episodes": "ends:ends", "window": rows, "last_batch": "short"}
    with AsyncReader(given, window_edge="repeat", window_outside=outside) as reader:
        assert [int(batch.indices[0]) for batch in reader] == expected


def test_subset_of_rows(tmp_path: Path) -> None:
    """A subset selects rows at which windows begin; a window sees its whole episode."""
    known = ends(tmp_path, "contiguous")
    rows: dict[str, Any] = {"at": (0, 3)}
    starts = np.cumsum([0, *LENGTHS])
    able = [s + r for s, n in zip(starts.tolist(), LENGTHS, strict=False) for r in range(n - 2)]
    more: dict[str, Any] = {"window_edge": "drop", "last_batch": "short"}
    for subset in (slice(4, 20), slice(1, 30, 3), [30, 8, 8, 13], slice(0, 8)):
        with opened(known, rows, subset=subset, **more) as reader:
            found = [row for _, row in anchors_of(reader)]
        asked = np.arange(sum(LENGTHS))[subset].tolist()
        assert found == [row for row in asked if row in able]
        with opened(known, rows, subset=subset, shuffle=True, **more) as reader:
            assert sorted(row for _, row in anchors_of(reader)) == sorted(found)
    with pytest.raises(ParamsError, match="selects no row"):
        opened(known, rows, subset=[22], **more)


def test_some_episodes(tmp_path: Path) -> None:
    """episodes_subset and a split of robomimic's serve these episodes alone, under their numbers in
    the whole set."""
    known = groups(tmp_path, "gzip")
    for chosen, numbers in (
        ({"subset": "train"}, {2, 10}),
        ({"episodes_subset": ["demo_4", "demo_11"]}, {4, 11}),
        ({"episodes_subset": slice(0, 3)}, {0, 1, 2}),
        ({"episodes_subset": [7, 1]}, {1, 7}),
        ({"episodes_subset": slice(0, 3), "subset": "train"}, {2}),
    ):
        with opened(known, shuffle=True, last_batch="pad", **chosen) as reader:
            found = []
            for batch in reader:
                check(batch, known, WINDOW)
                found += batch.episode[batch.mask].tolist()
            assert set(found) == numbers
            assert len(found) == sum(len(known.episodes[e]["at"]) for e in numbers)
    for wrong in (["demo_99"], [12], [1, 1]):
        with pytest.raises(ParamsError, match="episodes_subset"):
            opened(known, episodes_subset=wrong)


@pytest.mark.parametrize("chosen", [None, [5, 3, 1, 0], slice(4, None, -1)], ids=str)
@pytest.mark.parametrize("every", [False, True], ids=["whole episodes", "one of each"])
def test_subset_of_episodes(tmp_path: Path, every: bool, chosen: Any) -> None:
    """Where samples are episodes, or one of each, subset takes their numbers in any order and as
    often as it names them, among those of episodes_subset; weights are in its order."""
    known, subset = ends(tmp_path, "contiguous"), [3, 1, 1, 5, 0]
    among = range(len(LENGTHS)) if chosen is None else np.arange(len(LENGTHS))[chosen].tolist()
    expected = [episode for episode in subset if episode in among]
    more: dict[str, Any] = {"window": "episode", "max_length": 12, "window_edge": "drop"}
    if every:
        more = {"window": 1, "window_every": "episode"}
    more |= {"data_field": "at", "last_batch": "short", "episodes_subset": chosen}
    with opened(known, {}, subset=subset, **more) as reader:
        assert [episode for episode, _ in anchors_of(reader)] == expected
    for number, episode in enumerate(expected):
        weights = np.eye(len(expected))[number]
        with opened(known, {}, subset=subset, weights=weights, **more) as reader:
            assert {one for one, _ in anchors_of(reader)} == {episode}
    with pytest.raises(ParamsError, match=r"names an episode that does not exist.*0 to 5"):
        opened(known, {}, subset=[6], **more)
    with pytest.raises(ParamsError, match=r"selects nothing.*of 6 episodes"):
        opened(known, {}, subset=slice(6, 9), **more)


def test_a_split_of_rows_is_none_of_episodes(tmp_path: Path) -> None:
    """A split of rows, such as Fuel's, selects rows at which windows begin; where samples are
    episodes, whose numbers its rows are not, it is an error and no split of the dataset."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["features"], file["at"] = np.arange(12.0), np.repeat([0, 1, 2], 4)
        kind = [("split", "S5"), ("source", "S8"), ("start", "i8"), ("stop", "i8")]
        kind += [("indices", h5py.ref_dtype), ("available", "?"), ("comment", "S1")]
        rows = [
            ("train", "features", 0, 4, None, True, b"."),
            ("test", "features", 4, 12, None, 1, b"."),
        ]
        file.attrs["split"] = np.array(rows, np.dtype(kind))
    given: dict[str, Any] = {"path": tmp_path / "set.h5", "data_field": "features"}
    given |= {"episodes": "ids:at", "labels_field": None, "last_batch": "short"}
    with AsyncReader(given, window=2, subset="test", batch_size=9) as reader:
        assert next(iter(reader)).indices.tolist() == [4, 5, 6, 8, 9, 10]
    whole: dict[str, Any] = {"window": "episode", "max_length": 4}
    with asyncreader.open(given, **whole) as dataset:
        assert dataset.splits == {}
    with pytest.raises(ParamsError, match="no split 'test'"):
        AsyncReader(given, **whole, subset="test")


def test_a_split_in_the_order_of_the_set(tmp_path: Path) -> None:
    """A split of robomimic's is served in the order of the episodes' numbers, however its mask
    lists them: the order of its SequenceDataset."""
    known = groups(tmp_path, "contiguous")
    with h5py.File(tmp_path / "set.h5", "a") as file:
        file["mask/valid"] = np.array([b"demo_11", b"demo_9", b"demo_10", b"demo_0"])
    with AsyncReader(**known.params, data_field="at", subset="valid", batch_size=1) as reader:
        served = [int(batch.data[0, 0]) for batch in reader]
    assert list(dict.fromkeys(served)) == [0, 9, 10, 11]


@pytest.mark.parametrize("every", [{}, {"window": 2, "window_every": "episode"}])
def test_splits_are_all_that_subset_takes(tmp_path: Path, every: dict[str, Any]) -> None:
    """A Dataset names robomimic's masks among its splits, with what ``subset`` takes for them: the
    rows of their episodes, or where a sample is one of each episode the episodes' numbers. So with
    one file and with several."""
    groups(tmp_path, "contiguous")
    with h5py.File(tmp_path / "set.h5", "a") as file:
        file.create_dataset("mask/valid", data=["demo_11", "demo_1"])  # of variable length
    for path, chosen in (
        (tmp_path / "set.h5", {"train": [2, 10], "valid": [1, 11]}),
        ([tmp_path / "set.h5"] * 2, {"train": [2, 10, 14, 22], "valid": [1, 11, 13, 23]}),
    ):
        params: dict[str, Any] = {"path": path, "data_field": "at", "seed": 3, **every}
        with asyncreader.open(**params) as dataset:
            assert set(dataset.splits) == set(chosen)
            for name, rows in dataset.splits.items():
                assert rows.dtype == np.int64
                found = []
                for subset in (name, rows):
                    with AsyncReader(
                        **params, batch_size=2, last_batch="pad", subset=subset
                    ) as one:
                        found += [[(b.indices[b.mask], b.episode[b.mask]) for b in one]]
                np.testing.assert_equal(found[0], found[1])
                assert {e for _, some in found[0] for e in some.tolist()} == set(chosen[name])


def test_episodes_of_several_files(tmp_path: Path) -> None:
    """Several files of groups are one set: episodes are numbered through, splits are joined, and a
    name that two episodes have is an error."""
    known = groups(tmp_path, "gzip")
    (tmp_path / "more").mkdir()
    groups(tmp_path / "more", "contiguous")
    paths = [tmp_path / "set.h5", tmp_path / "more/set.h5"]
    both = Written({"path": paths}, known.episodes * 2, known.names)
    with opened(both, shuffle=True, last_batch="pad", nthread=2) as reader:
        seen = []
        for batch in reader:
            check(batch, both, WINDOW)
            seen += batch.indices[batch.mask].tolist()
        assert sorted(seen) == list(range(4 * sum(LENGTHS)))
    with opened(both, subset="train") as reader:
        assert {e for e, _ in anchors_of(reader)} == {2, 10, 14, 22}
    with pytest.raises(ParamsError, match="one name"):
        opened(both, episodes_subset=["demo_2"])


def test_weights_and_replacement(tmp_path: Path) -> None:
    """Weights are of samples, one for each anchor; draws with replacement are of anchors, too."""
    known = ends(tmp_path, "contiguous")
    rows: dict[str, Any] = {"at": (0, 3)}
    with opened(known, rows, window_edge="drop") as reader:
        count = reader.count
    weights = np.zeros(count)
    weights[[2, 7]] = 1
    with opened(known, rows, window_edge="drop", weights=weights) as reader:
        assert {row for _, row in anchors_of(reader)} == {2, 11}
    with opened(known, rows, window_edge="drop", shuffle="replacement", epoch_samples=50) as reader:
        for batch in reader:
            check(batch, known, rows)


@pytest.mark.parametrize(
    "other",
    [
        {"window": {"at": 4}},
        {"window": {"at": [0, 2, 1]}},
        {"window_every": 2},
        {"window_edge": "repeat"},
        {"episodes_subset": slice(0, 3)},
        {"window_edge": "repeat", "window_outside": (0, 1)},
    ],
    ids=str,
)
def test_states_of_other_windows_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    """A state is of one window, one rule of anchors and one choice of episodes."""
    known = ends(tmp_path, "contiguous")
    rows: dict[str, Any] = {"at": (0, 3)}
    mine: dict[str, Any] = {"window_edge": "drop", "shuffle": True}
    with opened(known, rows, **mine) as reader, opened(known, rows, **(mine | other)) as another:
        with pytest.raises(ParamsError, match="the state was saved by other training"):
            another.load_state_dict(reader.state_dict())
        with (
            AsyncReader(
                {**known.params, "episodes": None, "data_field": ["at"], "shuffle": True}
            ) as plain,
            pytest.raises(ParamsError, match="the state was saved by other training"),
        ):
            plain.load_state_dict(reader.state_dict())


# -- what is recognised --------------------------------------------------------------------------


def test_d4rl(tmp_path: Path) -> None:
    """D4RL's flags are found where a window is asked for; rows behind the last are an episode."""
    rows = np.arange(20)[:, None]
    with h5py.File(tmp_path / "d4rl.h5", "w") as file:
        file["observations"], file["actions"] = rows, -rows
        file["terminals"] = np.arange(20) == 6
        file["timeouts"] = np.arange(20) == 13
        file["metadata/algorithm"] = 1
    with AsyncReader(
        path=tmp_path / "d4rl.h5",
        data_field=["observations", "actions"],
        window={"observations": 2, "actions": 1},
        window_edge="repeat",
    ) as reader:
        for batch in reader:
            (i,), (e,) = batch.indices, batch.episode
            last = (6, 13, 19)[e]
            assert batch.data[0][0, :, 0].tolist() == [i, min(i + 1, last)]
        assert reader.count == 20
    with AsyncReader(path=tmp_path / "d4rl.h5", data_field="observations") as reader:
        assert next(iter(reader)).episode is None  # rows, as before


def test_transitions_of_d4rl(tmp_path: Path) -> None:
    """With window_edge=("drop", "zero"), the rows whose next observation is present or that are
    done are the transitions of d4rl's qlearning_dataset, each that ends an episode among them, and
    the last row of the file, of which d4rl makes none."""
    rng = np.random.default_rng(0)
    observations, rewards = rng.normal(size=(300, 4)), rng.normal(size=300)
    terminals, timeouts = np.zeros((2, 300), bool)
    terminals[[20, 21, 150, 299]] = timeouts[[60, 200, 201]] = True
    with h5py.File(tmp_path / "d4rl.h5", "w") as file:
        file["observations"], file["rewards"] = observations, rewards
        file["terminals"], file["timeouts"] = terminals, timeouts
    # for i in range(N - 1): skip the time limits, else obs[i + 1] follows, and done is terminals[i]
    expected = {i: bool(terminals[i]) for i in range(299) if not timeouts[i]} | {299: True}
    fields = {"now": "observations", "reward": "rewards", "done": "terminals"}
    served: dict[int, bool] = {}
    with AsyncReader(
        path=tmp_path / "d4rl.h5",
        data_field={**fields, "next": "observations"},
        window={"next": [1]},
        window_edge=("drop", "zero"),
        batch_size=30,
        shuffle=True,
    ) as reader:
        assert reader.count == 300
        for batch in reader:
            now, reward, done, following = batch.data
            present = batch.present[3][:, 0]
            assert batch.present[:3] == (None, None, None)
            np.testing.assert_array_equal(present, ~(terminals | timeouts)[batch.indices])
            for k in np.flatnonzero(present | done).tolist():
                i = int(batch.indices[k])
                served[i] = bool(done[k])
                assert (now[k] == observations[i]).all()
                assert reward[k] == rewards[i]
                assert (following[k, 0] == (0 if done[k] else observations[i + 1])).all()
    assert served == expected
    assert sum(served.values()) == 4


def test_aloha(tmp_path: Path) -> None:
    """Several files with a window are an episode each, ordered by the number in their name."""
    for number in (0, 1, 2, 10):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["observations/qpos"] = np.full((6, 14), number)
            file["action"] = np.full((6, 14), -number)
    with AsyncReader(
        path=str(tmp_path / "episode_*.hdf5"),
        data_field={"qpos": "observations/qpos", "action": "action"},
        window={"action": (0, 100)},
        window_edge="zero",
        window_every="episode",
        batch_size=4,
    ) as reader:
        reader.fetchData()
        batch = reader.getNextBatch()
        assert batch.data[0][:, 0].tolist() == [0, 1, 2, 10]
        assert batch.data[1].shape == (4, 100, 14)
        assert (batch.present[1].sum(1) <= 6).all()
        zeros = ~batch.present[1]
        assert not batch.data[1][zeros].any()


def test_arrays(tmp_path: Path) -> None:
    """Arrays have episodes, too: by ends, ids or flags in another array, or along an axis."""
    episodes = recordings()
    at = joined(episodes, "at")
    tables = {
        "ends:end": np.cumsum(LENGTHS),
        "ids:id": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
        "flags:last": np.isin(np.arange(len(at)), np.cumsum(LENGTHS) - 1),
    }
    for kind, table in tables.items():
        name = kind.partition(":")[2]
        known = Written({"data": {"at": at, name: table}, "episodes": kind}, episodes)
        with AsyncReader({**known.params, "window": 3, "window_edge": "zero"}) as reader:
            for batch in reader:
                check(batch, known, {"at": (0, 3)}, "zero")
    same = recordings((5,) * 4)
    stacked = np.stack([one["at"] for one in same])
    known = Written({"data": {"at": stacked}, "episodes": "axis"}, same)
    with AsyncReader({**known.params, "window": [0, -1]}) as reader:
        for batch in reader:
            check(batch, known, {"at": [0, -1]})


@pytest.mark.parametrize("kind", ["array", "arrays", "file", "files", "npy", "npys", "packed"])
def test_one_recording(tmp_path: Path, kind: str) -> None:
    """With episodes="whole" all rows are one recording, whatever holds them: windows reach from a
    file of a list into the next one."""
    x = np.arange(40.0).reshape(20, 2)
    given: dict[str, Any] = {"path": tmp_path / "set.h5", "data_field": "x"}
    if kind == "array":
        given = {"data": x}
    elif kind == "arrays":
        given = {"data": {"y": np.arange(21), "x": x}, "data_field": ["x", "y"]}
    elif kind == "packed":
        convert({"data": x}, tmp_path / "set.h5")
        del given["data_field"]
    else:
        parts = [x[:8], x[8:]] if kind in ("files", "npys") else [x]
        given["path"] = []
        for number, rows in enumerate(parts):
            given["path"].append(tmp_path / f"{number}.{'npy' if 'npy' in kind else 'h5'}")
            if "npy" in kind:
                np.save(given["path"][-1], rows)
            else:
                with h5py.File(given["path"][-1], "w") as file:
                    file["x"] = rows
        if "npy" in kind:
            del given["data_field"]
    given |= {"labels_field": None, "window": (-1, 3), "batch_size": 17, "last_batch": "short"}
    if kind in ("array", "file", "npy", "packed"):  # where nothing says that it is one
        with pytest.raises(ParamsError, match=r'episodes="whole"') as caught:
            AsyncReader(given)
        assert ('"files"' in str(caught.value)) == (kind != "array")
    expected = np.stack([x[i - 1 : i + 3] for i in range(1, 18)])
    with AsyncReader(given, episodes="whole") as reader:
        batch = next(iter(reader))
        served = batch.data[0] if kind == "arrays" else batch.data
        np.testing.assert_array_equal(served, expected)
        assert not batch.episode.any()
        if kind == "arrays":  # which has a row more
            np.testing.assert_array_equal(batch.data[1], np.arange(1, 18)[:, None] + [-1, 0, 1, 2])


def test_one_recording_in_files_of_other_rows(tmp_path: Path) -> None:
    """A field of a row more in each file has no place in a recording of several files."""
    paths = [tmp_path / f"{number}.h5" for number in range(2)]
    for path in paths:
        with h5py.File(path, "w") as file:
            file["obs"], file["act"] = np.zeros((6, 2)), np.zeros((5, 2))
    given: dict[str, Any] = {"data_field": ["act", "obs"], "window": 2, "labels_field": None}
    with AsyncReader(given, path=paths[0], episodes="whole") as reader:
        assert reader.count == 4
    with pytest.raises(FormatError, match="one recording in several files"):
        AsyncReader(given, path=paths, episodes="whole")


# -- what is wrong -------------------------------------------------------------------------------


def hostile(path: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "w") as file:
        for e in range(3):
            file[f"data/demo_{e}/a"] = np.zeros((4, 2))
            file[f"data/demo_{e}/b"] = np.zeros((4, 3), "f4")
        file["a"], file["ends"] = np.zeros((12, 2)), [4, 8, 12]
        change(file)


def _other_shape(file: h5py.File) -> None:
    del file["data/demo_1/b"]
    file["data/demo_1/b"] = np.zeros((4, 2), "f4")


def _other_dtype(file: h5py.File) -> None:
    del file["data/demo_1/b"]
    file["data/demo_1/b"] = np.zeros((4, 3), "f8")


def _unequal(file: h5py.File) -> None:
    del file["data/demo_2/b"]
    file["data/demo_2/b"] = np.zeros((7, 3), "f4")


def _missing(file: h5py.File) -> None:
    del file["data/demo_2/b"]


def _circle(file: h5py.File) -> None:
    del file["data/demo_2"]
    file["data/demo_2"] = h5py.SoftLink("/data/demo_2")


def _elsewhere(file: h5py.File) -> None:
    del file["data/demo_2/b"]
    file["data/demo_2/b"] = h5py.ExternalLink("other.h5", "b")


def _unwritten(file: h5py.File) -> None:
    del file["data/demo_2/b"]
    file.create_dataset("data/demo_2/b", (4, 3), "f4")


@pytest.mark.parametrize("kind", ["ids", "flags"])
def test_ids_and_flags_that_are_not_a_number(tmp_path: Path, kind: str) -> None:
    """An id or a flag that is NaN says nothing of an episode: an error, in files and arrays."""
    given = {"x": np.arange(6), "t": np.array([0, 0, np.nan, 0, 0, 1], np.float32)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in given.items():
            file[name] = values
    rest = {"data_field": ["x"], "episodes": f"{kind}:t", "window": 2}
    for params in ({"path": tmp_path / "a.h5", "labels_field": None}, {"data": given}):
        with pytest.raises(FormatError, match="is not a number; found nan"):
            AsyncReader(params, **rest)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_other_shape, "of another kind"),
        (_other_dtype, "of another kind"),
        (_unequal, "demo_2: a 4, b 7"),
        (_missing, "has no dataset 'b'"),
        (_circle, "in circles"),
        (_elsewhere, "another file"),
        (_unwritten, "stores none"),
    ],
)
def test_wrong_groups(tmp_path: Path, change: Callable[[h5py.File], None], says: str) -> None:
    """Groups that do not go together are a FormatError that names the group."""
    hostile(tmp_path / "x.h5", change)
    with pytest.raises(FormatError, match=says):
        AsyncReader(
            path=tmp_path / "x.h5",
            data_field=["a", "b"],
            window=2,
            episodes="groups:data/demo_*",
        )


@pytest.mark.parametrize(
    ("ends_are", "says"),
    [
        ([4, 3, 12], "decrease"),
        ([-1, 12], "decrease"),
        ([4, 8], "last row"),
        ([4, 8, 13], "last row"),
        ([0, 0], "last row"),
        ([4.0, 8.0, 12.0], "whole numbers"),
        ([[4, 8, 12]], "whole numbers"),
    ],
)
def test_wrong_ends(tmp_path: Path, ends_are: list[Any], says: str) -> None:
    """Ends that decrease, or do not end with the rows, are a FormatError."""

    def change(file: h5py.File) -> None:
        del file["ends"]
        file["ends"] = ends_are

    hostile(tmp_path / "x.h5", change)
    with pytest.raises(FormatError, match=says):
        AsyncReader(path=tmp_path / "x.h5", data_field="a", window=2, episodes="ends:ends")


def test_empty_episodes_are_left_out(tmp_path: Path) -> None:
    """An empty episode has no number."""

    def change(file: h5py.File) -> None:
        for name in ("a", "b"):
            shape = file[f"data/demo_1/{name}"].shape
            del file[f"data/demo_1/{name}"]
            file.create_dataset(
                f"data/demo_1/{name}", (0, *shape[1:]), "f8" if name == "a" else "f4"
            )
        file["data/demo_2/a"][...] = 2
        del file["ends"]
        file["ends"] = [0, 4, 4, 12, 12]
        file["a"][4:] = 1

    hostile(tmp_path / "x.h5", change)
    with AsyncReader(
        path=tmp_path / "x.h5", data_field=["a", "b"], window=4, episodes="groups:data/demo_*"
    ) as reader:
        found = [(int(b.episode[0]), float(b.data[0].max())) for b in reader]
    assert found == [(0, 0.0), (1, 2.0)]
    with AsyncReader(
        path=tmp_path / "x.h5", data_field="a", window=2, episodes="ends:ends"
    ) as reader:
        assert {int(batch.episode[0]) for batch in reader} == {0, 1}
        assert reader.count == 3 + 7


def test_a_window_longer_than_all_episodes(tmp_path: Path) -> None:
    """A window that fits nowhere is a ParamsError, with the longest episode."""
    hostile(tmp_path / "x.h5", lambda file: None)
    with pytest.raises(ParamsError, match="at most 4 rows"):
        AsyncReader(path=tmp_path / "x.h5", data_field="a", window=5, episodes="ends:ends")


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"data_field": "a", "window": 2}, "nothing says where the episodes"),
        (
            {"data_field": "c", "episodes": "groups:data/demo_*"},
            r"a \(4 x 2 float64\), b \(4 x 3 float32\)",
        ),
        ({"window": 2}, r"a \(4 x 2 float64\), b \(4 x 3 float32\)"),
        ({"data_field": "a", "episodes": "groups:nothing_*"}, "no group"),
        ({"data_field": "a", "episodes": "ends:nothing"}, "no field 'nothing'"),
        ({"data_field": "a", "episodes": "ends:ends", "window": {"b": 2}}, "not read"),
        ({"data_field": "a", "window_edge": "zero"}, "goes with window"),
        ({"data_field": "a", "window": 2, "window_outside": (0, 2)}, "leaves no row"),
        ({"data_field": "a", "window": 0}, "window is not valid"),
        ({"data_field": "a", "window": (3, 1)}, "window is not valid"),
        ({"data_field": "a", "window": "episodes"}, "window is not valid"),
        ({"data_field": "a", "window": 2, "mixup": 0.1}, "not on windows"),
        ({"data_field": "a", "episodes": "nonsense"}, "episodes is not valid"),
    ],
    ids=str,
)
def test_wrong_params(tmp_path: Path, params: dict[str, Any], says: str) -> None:
    """What does not go together is a ParamsError that says what would."""
    hostile(tmp_path / "x.h5", lambda file: None)
    with pytest.raises(ParamsError, match=says):
        AsyncReader({"path": tmp_path / "x.h5", **params})


def test_damaged_chunk_fails_its_samples_alone(tmp_path: Path) -> None:
    """A chunk that cannot be decoded is bad for the samples whose windows touch it, once each, and
    the error names the data set."""
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for e in range(3):
            file.create_dataset(
                f"data/demo_{e}/a",
                data=rng.normal(size=(8, 30)),
                chunks=(4, 30),
                compression="gzip",
            )
        info = file["data/demo_1/a"].id.get_chunk_info(1)
    whole = bytearray((tmp_path / "x.h5").read_bytes())
    whole[info.byte_offset + 20 : info.byte_offset + 60] = bytes(40)
    (tmp_path / "x.h5").write_bytes(whole)
    with AsyncReader(
        path=tmp_path / "x.h5", data_field="a", window=3, on_error="zero", batch_size=6
    ) as reader:
        bad = {row for b in reader for row in b.indices[~b.mask].tolist()}
        assert bad == {10, 11, 12, 13}
        assert reader.stats().bad_samples == 4
        assert "data/demo_1/a" in str(reader.stats().bad_list[0])


# -- size ----------------------------------------------------------------------------------------


def test_block_windows_count_the_rows_that_are_decoded(tmp_path: Path) -> None:
    """With "block" so many samples are mixed that their decoded rows, also those between them, take
    256 MiB: at every 50th row less than a fiftieth of the samples. Where not every row begins one,
    blocks begin anywhere in a chunk, and all of it counts."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a", (4000, 1 << 12), "u1", chunks=(100, 1 << 12), compression="gzip")
        for row in range(0, 4000, 100):
            file["a"][row] = 1
        file["ends"] = [4000]
    found = []
    for every in (1, 50):
        with AsyncReader(
            path=tmp_path / "x.h5",
            data_field="a",
            episodes="ends:ends",
            window=3,
            window_every=every,
            shuffle="block",
            shuffle_window=1 << 20,
        ) as reader:
            found.append(reader.state_dict()["window"])
    assert found == [32_400, 1284]


def test_block_windows_decode_a_chunk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "block" the cache holds all chunks of the samples that are mixed: each block of samples,
    which begins anywhere in a chunk, decodes the two or three that it touches once."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for i in range(20):
            rows = np.full((60, 50), i, np.uint8)
            file.create_dataset(f"demo_{i}/a", data=rows, chunks=(10, 25), compression="gzip")
    decoded: list[int] = []
    really = chunks.ChunkSource._decode

    def note(self: chunks.ChunkSource, numbers: np.ndarray, *rest: Any) -> Any:
        decoded.extend(numbers.tolist())
        return really(self, numbers, *rest)

    monkeypatch.setattr(chunks.ChunkSource, "_decode", note)
    with AsyncReader(
        path=tmp_path / "x.h5",
        episodes="groups:demo_*",
        data_field="a",
        window=8,
        shuffle="block",
        shuffle_window=200,
        batch_size=20,
    ) as reader:
        blocks = reader.count // 10
        for _ in reader:
            pass
    assert len(decoded) <= 2 * 3 * blocks


def test_the_index_is_in_proportion_to_episodes() -> None:
    """10,000 episodes of 10,000 rows are 10^8 windows; what is kept of them is some numbers for
    each episode, and a state is as short as ever."""
    rows = np.lib.stride_tricks.as_strided(np.zeros(1), (10**8, 1), (0, 0))
    ends_at = np.arange(1, 10_001) * 10_000
    with AsyncReader(
        data={"x": rows, "end": ends_at},
        episodes="ends:end",
        window=(-8, 8),
        window_edge="repeat",
        shuffle=True,
        batch_size=16,
    ) as reader:
        assert reader.count == 10**8
        assert len(pickle.dumps(reader._schedule)) < 64 * 10_000
        reader.fetchData()
        assert reader.getNextBatch().data[0].shape == (16, 16, 1)


# -- the field's own rules -----------------------------------------------------------------------


@pytest.mark.parametrize("files", [1, 2])
def test_the_well(tmp_path: Path, files: int) -> None:
    """Sample i is item i of The Well's WellDataset: steps in and steps out of a trajectory, with a
    stride, and the fields that are marked as constant in time, which have no axis for it."""
    rng = np.random.default_rng(4)
    steps, constant = rng.normal(size=(files, 3, 10, 6, 5)), rng.normal(size=(files, 3, 6, 5))
    for i in range(files):
        with h5py.File(tmp_path / f"{i}.hdf5", "w") as file:
            for name, rows in (("t1_fields/u", steps[i]), ("t0_fields/mask", constant[i])):
                file[name] = rows
                file[name].attrs["time_varying"] = name == "t1_fields/u"
    into, out, stride = 2, 3, 2
    with AsyncReader(
        path=[tmp_path / f"{i}.hdf5" for i in range(files)],
        data_field={"in": "t1_fields/u", "out": "t1_fields/u", "mask": "t0_fields/mask"},
        episodes="axis",
        window={"in": (0, into * stride, stride), "out": (into * stride, 10, stride)},
        batch_size=2,
    ) as reader:
        expected = [
            (steps[file, number, at : at + 9 : stride], constant[file, number])
            for file, number, at in np.ndindex(files, 3, 2)
        ]
        assert reader.count == len(expected)
        served = [one for b in reader for one in zip(*(np.copy(d) for d in b.data), strict=True)]
        for (first, second, mask), (rows, still) in zip(served, expected, strict=True):
            np.testing.assert_array_equal(np.concatenate((first, second)), rows)
            np.testing.assert_array_equal(mask, still)
            assert len(second) == out


@pytest.mark.parametrize("constant", [True, False])
def test_the_well_shared(tmp_path: Path, constant: bool) -> None:
    """A field that The Well marks as one for all trajectories has no axis of them: its axes of time
    and space are not taken for episodes and time, however long they are."""
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["own"], file["shared"] = np.zeros((4, 4, 4, 4)), np.zeros((4, 4, 4))
        file["shared"].attrs.update({"sample_varying": False, "time_varying": constant})
    for fields, labels in ((["shared"], None), (["own", "shared"], None), (["own"], "shared")):
        with pytest.raises(ParamsError, match=r"all episodes.*'shared'.*sample_varying"):
            AsyncReader(
                tmp_path / "x.hdf5", data_field=fields, labels_field=labels, episodes="axis"
            )


@pytest.mark.parametrize("stack", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 3, 10])
@pytest.mark.parametrize("pads", [(True, True), (True, False), (False, True), (False, False)])
def test_robomimic(tmp_path: Path, stack: int, length: int, pads: tuple[bool, bool]) -> None:
    """Sample i is item i of robomimic's SequenceDataset (v0.3), for all of frame_stack, seq_length,
    pad_frame_stack and pad_seq_length: its rule, restated here."""
    rows = (12, 14, 19)
    rng = np.random.default_rng(3)
    demos = [rng.normal(size=(n, 5)) for n in rows]
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for i, one in enumerate(demos):
            file[f"data/demo_{i}/actions"] = one
    expected = []
    for one in demos:
        samples = len(one) - (0 if pads[0] else stack - 1) - (0 if pads[1] else length - 1)
        for i in range(max(samples, 1) if pads[1] else samples):
            at = i + (0 if pads[0] else stack - 1)
            inside = one[max(0, at - (stack - 1)) : min(len(one), at + length)]
            before, after = max(0, stack - 1 - at), max(0, at + length - len(one))
            mask = np.array([False] * before + [True] * len(inside) + [False] * after)
            expected.append((np.pad(inside, ((before, after), (0, 0)), "edge"), mask))
    with AsyncReader(
        path=tmp_path / "x.hdf5",
        data_field="actions",
        window=(1 - stack, length),
        window_edge=("repeat" if pads[0] else "drop", "repeat" if pads[1] else "drop"),
    ) as reader:
        assert reader.count == len(expected)
        for batch, (sequence, mask) in zip(reader, expected, strict=True):
            np.testing.assert_array_equal(batch.data[0], sequence)
            np.testing.assert_array_equal(batch.present[0], mask)


def test_lerobot() -> None:
    """Samples are those of LeRobot: rows at a list of offsets, the first or last row of the episode
    where they lie outside, and is_pad there (_get_query_indices); and without such rows those of
    its EpisodeAwareSampler with drop_n_first_frames and drop_n_last_frames."""
    lengths = (30, 7, 1, 12)
    ends_at = np.cumsum(lengths)
    rows = np.random.default_rng(1).normal(size=(50, 3))
    deltas = {"a": list(range(-10, 10)), "b": [0], "c": [5, -3, 0], "d": [-100, 100, 100]}
    with AsyncReader(
        data={"x": rows, "end": ends_at},
        data_field=dict.fromkeys(deltas, "x"),
        episodes="ends:end",
        window=deltas,
        window_edge="repeat",
    ) as reader:
        assert reader.count == 50
        for i, batch in enumerate(reader):
            first = int(ends_at[batch.episode[0]]) - lengths[batch.episode[0]]
            for number, offsets in enumerate(deltas.values()):
                asked = i + np.array(offsets)
                inside = np.clip(asked, first, first + lengths[batch.episode[0]] - 1)
                np.testing.assert_array_equal(batch.data[number][0], rows[inside])
                np.testing.assert_array_equal(~batch.present[number][0], asked != inside)
    for before, after in np.ndindex(4, 4):
        begins = ends_at - lengths
        frames = zip(begins + before, ends_at - after, strict=True)
        expected = [i for first, end in frames for i in range(first, end)]
        with AsyncReader(
            data={"x": rows, "end": ends_at},
            data_field=["x"],
            episodes="ends:end",
            window=(-before, after + 1),
        ) as reader:
            assert [int(batch.indices[0]) for batch in reader] == expected


# -- encoded pictures ----------------------------------------------------------------------------


def encoded(pictures: np.ndarray) -> list[np.ndarray]:
    found = []
    for one in pictures:
        file = io.BytesIO()
        Image.fromarray(one).save(file, "PNG")
        found.append(np.frombuffer(file.getvalue(), np.uint8))
    return found


def padded(files: list[np.ndarray]) -> np.ndarray:
    length = max(one.size for one in files)
    return np.stack([np.pad(one, (0, length - one.size)) for one in files])


def minari_pictures(folder: Path, stored: str) -> Written:
    """As Minari writes encoded observations: variable length in one episode, and where all are of
    one length, rows in the next."""
    episodes = recordings(extra=1)
    with h5py.File(folder / "set.h5", "w") as file:
        for number, one in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            files = encoded(one["cam"])
            if number % 2:
                rows = padded(files)
                group.create_dataset("cam", data=rows, **STORED[stored](rows.shape))
            else:
                data = group.create_dataset("cam", len(files), h5py.vlen_dtype(np.uint8))
                for i, value in enumerate(files):
                    data[i] = value
            for name in ("act", "at"):
                put(group, name, one[name], stored)
    return Written({"path": folder / "set.h5"}, episodes)


def aloha_pictures(folder: Path, stored: str) -> Written:
    """As ACT compresses: rows of as many bytes, with zeros behind each picture."""
    episodes = recordings()
    for number, one in enumerate(episodes):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            put(file, "cam", padded(encoded(one["cam"])), stored)
            for name in ("act", "at"):
                put(file, name, one[name], stored)
    return Written({"path": str(folder / "episode_*.hdf5")}, episodes)


@pytest.mark.parametrize("kind", [minari_pictures, aloha_pictures], ids=lambda one: one.__name__)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("shuffle", [True, "block"])
def test_encoded_pictures(tmp_path: Path, kind: Any, stored: str, shuffle: Any) -> None:
    """Image files in rows, or of variable length, are decoded: the pictures are those that were
    encoded."""
    known = kind(tmp_path, stored)
    with opened(known, shuffle=shuffle, last_batch="pad", nthread=2) as reader:
        for batch in reader:
            check(batch, known, WINDOW)


# -- all else that a reader does -----------------------------------------------------------------


def test_names_of_own_without_episodes(tmp_path: Path) -> None:
    """A stored field may be served under several names in any set."""
    known = ends(tmp_path, "contiguous")
    with AsyncReader(
        path=tmp_path / "set.h5", data_field={"a": "at", "b": "act", "c": "at"}, shuffle=True
    ) as reader:
        for batch in reader:
            np.testing.assert_array_equal(
                batch.data[0], joined(known.episodes, "at")[batch.indices]
            )
            np.testing.assert_array_equal(batch.data[0], batch.data[2])
            assert batch.episode is None
            assert batch.present is None


def test_replacement_samples(tmp_path: Path) -> None:
    """A bad sample is replaced by a whole window of another place."""
    known = groups(tmp_path, "gzip")
    path = tmp_path / "set.h5"
    with h5py.File(path) as file:
        info = file["data/demo_2/act"].id.get_chunk_info(1)
    whole = bytearray(path.read_bytes())
    whole[info.byte_offset + 5 : info.byte_offset + 40] = bytes(35)
    path.write_bytes(whole)
    with opened(known, {"act": (0, 3), "at": (0, 3)}, on_error="skip", shuffle=True) as reader:
        for batch in reader:
            check(batch, known, {"act": (0, 3), "at": (0, 3)})
            assert batch.mask.all()
        assert reader.stats().bad_samples == 6
