"""Labels of episodes, several labels at once, and labels of the caller's beside a path."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import run
from fakes import first_batch, hdf5, paint

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError

LENGTHS = (4, 7, 5, 6)
TOTAL = sum(LENGTHS)
ENDS = np.cumsum(LENGTHS)
OF_ROW = np.repeat(np.arange(4), LENGTHS)


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    """Four episodes in groups, an empty one between them, labelled in all ways."""
    with h5py.File(tmp_path / "robot.h5", "w") as file:
        row = 0
        for i, steps in enumerate((4, 0, 7, 5, 6)):
            demo = file.create_group(f"data/demo_{i}")
            demo["x"] = np.arange(row, row + steps, dtype=np.float32)
            demo["reward"] = np.arange(row, row + steps) * 10
            demo["success"] = np.float32(i % 2)
            demo["one"] = np.array([i], np.int16)
            demo.attrs["task"] = ("pour", "empty", "open", "pour", "close")[i]
            demo.attrs["goal"] = np.array([i, -i], np.float32)
            row += steps
    return tmp_path / "robot.h5"


def rows_of(reader: AsyncReader[Any, Any]) -> Iterator[tuple[int, Any]]:
    """The record of each sample of an epoch, and its label."""
    with reader:
        for batch in reader:
            several = batch.labels if isinstance(batch.labels, tuple) else (batch.labels,)
            assert all(len(one) == len(batch) for one in several)
            for i in np.flatnonzero(batch.mask).tolist():
                label = tuple(one[i].tolist() for one in several)
                yield int(batch.indices[i]), label if isinstance(batch.labels, tuple) else label[0]


KEPT = (0, 2, 3, 4)
WAYS: dict[str, list[Any]] = {
    "@task": [("close", "open", "pour").index(w) for w in ("pour", "open", "pour", "close")],
    "@goal": [[float(i), float(-i)] for i in KEPT],
    "success": [float(i % 2) for i in KEPT],
    "one": list(KEPT),
}


def test_several_labels(robot: Path) -> None:
    """A tuple of labels, in the order given: of rows and of episodes together; a Dataset has them,
    too, also when it was pickled."""
    names = ["reward", "@task", "success"]
    given: dict[str, Any] = {"path": robot, "data_field": "x", "labels_field": names}
    expected = {
        row: (row * 10, WAYS["@task"][OF_ROW[row]], WAYS["success"][OF_ROW[row]])
        for row in range(TOTAL)
    }
    assert dict(rows_of(AsyncReader(given, batch_size=4, last_batch="pad"))) == expected
    with asyncreader.open(given) as data:
        assert data[3][1] == expected[3]
        _, (reward, task, success) = data[2:5]
        assert (reward.tolist(), task.dtype, success.dtype) == ([20, 30, 40], np.int64, np.float32)
        again = pickle.loads(pickle.dumps(data))
        assert again[3][1] == expected[3]
        assert [one.shape for one in data.labels] == [(TOTAL,)] * 3
        assert data.sample(1).label == expected[1]
        with pytest.raises(ParamsError, match="several labels"):
            _ = data.class_counts
    with asyncreader.open(given, as_dict=True) as data:
        assert data[3]["label"] == expected[3]


def test_a_postprocess_returns_other_labels(robot: Path) -> None:
    """A postprocess gets the tuple, and returns another one, one array, or the data alone."""
    given: dict[str, Any] = {"path": robot, "data_field": "x", "labels_field": ["reward", "@task"]}
    made: dict[str, Any] = {
        "swapped": lambda data, labels: (data, (labels[1], labels[0])),
        "one": lambda data, labels: (data, labels[0] + 1),
        "data": lambda data, labels: data + 1,
        "in place": lambda data, labels: labels[0].fill(7),
    }
    found = {}
    for name, function in made.items():
        with AsyncReader(given, batch_size=4, postprocess=function) as reader:
            labels = next(iter(reader)).labels
            found[name] = np.array(labels).tolist()
            if name == "swapped":
                assert reader.classes is None  # of the first
                assert reader.labels_shape == ((4,), (4,))
    task = WAYS["@task"][0]
    assert found == {
        "swapped": [[task] * 4, [0, 10, 20, 30]],
        "one": [1, 11, 21, 31],
        "data": [[0, 10, 20, 30], [task] * 4],
        "in place": [[7] * 4, [task] * 4],
    }


def test_labels_of_flat_episodes_and_files(tmp_path: Path) -> None:
    """A data set with a row for each episode, numbers or text; of files an attribute or a single
    value. Empty episodes have their label, too."""
    ends = np.array([4, 4, 11, 16, 22])
    for i in range(4):
        with h5py.File(tmp_path / f"episode_{i}.h5", "w") as file:
            file["x"] = np.arange(ENDS[i] - LENGTHS[i], ENDS[i])
            file["score"] = i * 5
            file.attrs["task"] = "ab"[i % 2]
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["x"], file["ends"] = np.arange(TOTAL), ends
        file["labels"], file["word"] = np.arange(5) * 3, np.array([b"b", b"", b"a", b"b", b"c"])
        file["long"] = np.array(["b", "", "a", "b", "c"], object)
    flat: dict[str, Any] = {
        "path": tmp_path / "flat.h5",
        "data_field": "x",
        "episodes": "ends:ends",
    }
    files: dict[str, Any] = {"path": f"{tmp_path}/episode_*.h5", "data_field": "x", "window": 1}
    word = [2, 1, 2, 3]
    for given, field, expected in (
        (flat, "labels", [0, 6, 9, 12]),
        (flat, "word", word),
        (flat, "long", word),
        (files, "score", [0, 5, 10, 15]),
        (files, "@task", [0, 1, 0, 1]),
        (files, ["score", "@task"], [(0, 0), (5, 1), (10, 0), (15, 1)]),
    ):
        found = dict(rows_of(AsyncReader(given, labels_field=field, batch_size=22)))
        assert found == {row: expected[OF_ROW[row]] for row in range(TOTAL)}, field
    with AsyncReader(files, labels_field=["@task", "score"], batch_size=2) as reader:
        assert reader.classes == ("a", "b")
    with AsyncReader(flat, labels_field="word", window_every="episode", window=2) as reader:
        assert (reader.classes, reader.count) == (("", "a", "b", "c"), 4)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("kind", ["groups", "files"])
@pytest.mark.parametrize("single", [True, False])
def test_the_usual_name_of_labels_is_read_in_episodes(
    tmp_path: Path, kind: str, single: bool, window: int | None
) -> None:
    """``labels`` beside the data of each episode are its labels, named by the caller or not."""
    for i, steps in enumerate(LENGTHS):
        with h5py.File(tmp_path / ("set.h5" if kind == "groups" else f"{i}.h5"), "a") as file:
            group = file.require_group(f"data/demo_{i}") if kind == "groups" else file
            group["x"] = np.zeros(steps)
            group["labels"] = i if single else np.full(steps, i)
    path: Any = tmp_path / "set.h5"
    if kind == "files":
        path = [tmp_path / f"{i}.h5" for i in range(4)]
    given = {"path": path, "data_field": "x", "window": window, "batch_size": 3}
    given["episodes"] = "files" if kind == "files" else "groups:data/demo_*"
    for named in ({}, {"labels_field": "labels"}):
        found = dict(rows_of(AsyncReader({**given, **named}, last_batch="pad")))
        assert found == {row: OF_ROW[row] for row in found}
    with AsyncReader(given, labels_field=None) as reader:
        assert reader.labels is None


def test_labels_of_the_callers(robot: Path, tmp_path: Path) -> None:
    """labels= beside a path: one for each row, or each episode; and beside arrays of episodes."""
    given: dict[str, Any] = {"path": robot, "data_field": "x"}
    of_rows, of_episodes = np.arange(TOTAL) ** 2, np.array([5, 6, 7, 8])
    for labels, expected in ((of_rows, of_rows), (of_episodes, of_episodes[OF_ROW])):
        for more in ({}, {"window": 2, "shuffle": True}):
            found = dict(rows_of(AsyncReader(given, labels=labels, batch_size=2, **more)))
            assert found == {row: expected[row] for row in found}
            assert len(found) > 10
    arrays = {"x": np.arange(TOTAL), "ends": ENDS}
    reader = AsyncReader(data=arrays, labels=of_episodes, episodes="ends:ends", batch_size=22)
    assert dict(rows_of(reader)) == dict(enumerate(of_episodes[OF_ROW]))
    hdf5(tmp_path / "plain.h5", data=paint(9, (8, 8, 3)), labels=np.arange(9))
    for nthread in (1, 2):
        reader = AsyncReader(tmp_path / "plain.h5", labels=np.arange(9) + 5, nthread=nthread)
        assert dict(rows_of(reader)) == {i: i + 5 for i in range(9)}
    with pytest.raises(ParamsError, match=r"expected 22 rows, or 4 episodes \(1 empty ones"):
        AsyncReader(given, labels=np.arange(5))
    with pytest.raises(ParamsError, match="both asked for"):
        AsyncReader(given, labels=of_rows, labels_field="reward")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"labels_field": "@nothing"}, ParamsError, r"no attribute 'nothing'.*goal, mixed, task"),
        ({"labels_field": "nothing"}, ParamsError, r"no field 'nothing'.*reward \(4 int64\)"),
        ({"labels_field": ["reward", "nothing"]}, ParamsError, "no field 'nothing'"),
        ({"labels_field": ["reward", "reward"]}, ParamsError, "different names"),
        ({"labels_field": "late"}, FormatError, "demo_0/late|not a|no dataset"),
        ({"labels_field": "more"}, FormatError, "5 rows, 4 in episode 0"),
        ({"labels_field": "@mixed"}, FormatError, "not all of one kind"),
        ({"labels_field": ["reward"], "cuda": True}, ParamsError, "do not go with cuda"),
        ({"labels_field": ["reward"], "mixup": 0.1}, ParamsError, "class number"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_labels(robot: Path, change: Any, error: type[Exception], says: str) -> None:
    """What is missing is named beside what is there; what does not go together is an error."""
    with h5py.File(robot, "r+") as file:
        for i, demo in enumerate(file["data"].values()):
            demo["more"] = np.zeros(len(demo["x"]) + 1)
            demo.attrs["mixed"] = "text" if i else 1
        file["data/demo_0/late"] = np.float32(1)
    with pytest.raises(error, match=says):
        AsyncReader({"path": robot, "data_field": "x", "batch_size": 2, **change})


def test_several_labels_are_told(robot: Path) -> None:
    """info tells each of them."""
    words = ["-p", "data_field=x", "-p", 'labels_field=["reward", "@task"]']
    found = json.loads(run("info", robot, *words, "--json").stdout)["labels"]
    assert [one["name"] for one in found] == ["reward", "@task"]
    assert (found[0]["max"], found[1]["counts"][0]["samples"]) == (210, 6)
    assert "labels @task" in run("info", robot, *words).stdout


def test_labels_along_an_axis(tmp_path: Path) -> None:
    """Of (episode, time, ...) labels of both extents have one for each row, as fields do; those of
    the first alone one for each episode."""
    rows = np.arange(30).reshape(5, 6)
    with h5py.File(tmp_path / "axis.h5", "w") as file:
        file["x"], file["rows"] = np.arange(90.0).reshape(5, 6, 3), rows
        file["pairs"], file["each"] = np.stack((rows, -rows), axis=2), np.arange(10).reshape(5, 2)
    given: dict[str, Any] = {"episodes": "axis", "window": 2, "batch_size": 25}
    of_row = rows[:, :5].reshape(-1)
    wanted = {"rows": of_row, "pairs": np.stack((of_row, -of_row), axis=1)}
    wanted["each"] = np.repeat(np.arange(10).reshape(5, 2), 5, axis=0)
    for name, labels in wanted.items():
        with AsyncReader(tmp_path / "axis.h5", data_field="x", labels_field=name, **given) as one:
            np.testing.assert_array_equal(next(iter(one)).labels, labels)
    with AsyncReader(data=np.arange(90.0).reshape(5, 6, 3), labels=rows, **given) as one:
        np.testing.assert_array_equal(next(iter(one)).labels, of_row)


@pytest.mark.parametrize("kind", ["files", "mix", "groups", "rows of groups", "two"])
def test_labels_of_several_dtypes(tmp_path: Path, kind: str) -> None:
    """Labels of one dtype in one part of a set and of another in the next are the stored numbers:
    whole ones stay whole, and where no dtype holds all of them that is an error."""
    large, labels = 2**53 + 1, ["two", "label"] if kind == "two" else "label"
    paths = [tmp_path / f"{i}.h5" for i in range(2)]
    for first, second, right in (
        (np.array([large, 3], np.uint64), np.array([-1, large], np.int64), np.int64),
        (np.array([3, 1 << 53], np.int64), np.array([0.5, 1.5]), np.float64),
        (np.array([large, 3], np.int64), np.array([0.5, 1.5]), None),
        (np.array([1 << 63, 3], np.uint64), np.array([-1, 2], np.int8), None),
    ):
        parts, params = (first, second), {"path": paths}
        for path, part in zip(paths, parts, strict=True):
            hdf5(path, data=np.zeros((2, 3)), label=part, two=part)
        if kind == "mix":
            params = {"mix": {str(path): 0.5 for path in paths}}
        elif kind.endswith("groups"):
            with h5py.File(tmp_path / "groups.h5", "w") as file:
                for i, part in enumerate(parts):
                    file[f"demo_{i}/data"] = np.zeros((2, 3))
                    file[f"demo_{i}/label"] = part if kind != "groups" else part[0]
            params = {"path": tmp_path / "groups.h5", "episodes": "groups:demo_*"}
        params |= {"data_field": "data", "labels_field": labels}
        stored = [*first, *second] if kind != "groups" else [first[0]] * 2 + [second[0]] * 2
        refused = right is None or (kind == "mix" and right is np.float64)
        if refused:
            with pytest.raises(ParamsError, match=r"no dtype that holds all|different kinds"):
                AsyncReader(params)
            continue
        batch = first_batch(params, batch_size=4)
        for found in batch.labels if isinstance(batch.labels, tuple) else (batch.labels,):
            assert found.dtype == right
            wanted = [stored[i] for i in batch.indices]
            assert [int(2 * n) for n in found] == [int(2 * n.item()) for n in wanted]


@pytest.mark.parametrize("names", [["goal", "x"], ["x", "goal"]])
@pytest.mark.parametrize("labels", ["of_row", "of_episode", ["of_row", "of_episode"]])
def test_labels_beside_a_field_with_a_row_for_each_episode(
    tmp_path: Path, names: list[str], labels: Any
) -> None:
    """Labels of rows and of episodes are the same whichever field is named first."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["goal"], file["ends"] = np.arange(TOTAL), np.arange(4), ENDS
        file["of_row"], file["of_episode"] = np.arange(TOTAL) + 100, np.arange(4) + 10
    params = {"data_field": names, "labels_field": labels, "episodes": "ends:ends"}
    with AsyncReader(params, path=tmp_path / "a.h5", window={"x": 2}, batch_size=6) as reader:
        for batch in reader:
            right = {"of_row": batch.indices + 100, "of_episode": batch.episode + 10}
            found = batch.labels if isinstance(labels, list) else (batch.labels,)
            for name, one in zip(np.atleast_1d(labels), found, strict=True):
                assert np.array_equal(one, right[name])
            assert np.array_equal(batch.data[names.index("goal")], batch.episode)
