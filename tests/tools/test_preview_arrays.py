"""Sheets of samples that are no single pictures, and what info says of such sets."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_sets import run
from fakes import hdf5, paint

import asyncreader
import converters
from asyncreader import FormatError, ParamsError
from asyncreader.dataset import look_into
from asyncreader.tools.look import HIGH, FieldDrawing, draw_samples
from asyncreader.tools.preview import preview, preview_batch


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    """Four episodes of 6 to 9 rows, as robomimic writes them."""
    with h5py.File(tmp_path / "robot.h5", "w") as file:
        for i in range(4):
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/image"] = paint(6 + i, (8, 8, 3))
            demo["actions"] = np.arange(2.0 * (6 + i)).reshape(-1, 2)
            demo["rewards"] = np.ones(6 + i, np.float32)
            demo.attrs["num_samples"] = 6 + i
        file["mask/train"] = np.array([b"demo_0", b"demo_3"])
    return tmp_path / "robot.h5"


def drawn(values: list[np.ndarray], *, picture: bool = False, windowed: bool = False) -> Any:
    field = FieldDrawing("x", picture, windowed)
    for value in values:
        field.add(value)
    return draw_samples([field])


def test_windows_are_strips_of_pictures() -> None:
    """Up to six rows of a window beside each other, pixel for pixel; the foot says which."""
    rows = paint(9, (8, 8, 3))
    (strip,), notes = drawn([rows], picture=True, windowed=True)
    assert strip.shape == (HIGH, 6 * 100 - 4, 3)
    for place, row in enumerate((0, 2, 3, 5, 6, 8)):
        part = strip[:, place * 100 : place * 100 + HIGH]
        np.testing.assert_array_equal(part, rows[row].repeat(12, axis=0).repeat(12, axis=1))
    assert notes == ["x: rows 0, 2, 3, 5, 6, 8 of 9"]
    (alone,), _ = drawn([rows[0]], picture=True)
    np.testing.assert_array_equal(alone, strip[:, :HIGH])


def test_a_volume_is_three_slices() -> None:
    """Slices through the middle, along each axis; of several channels the first. Values are
    stretched, bytes too."""
    volume = np.zeros((2, 6, 8, 8), np.uint8)
    volume[0, 3, 4, 5] = 1
    (picture,), notes = drawn([volume])
    for place, (row, column, high) in enumerate([(4, 5, 8), (3, 5, 6), (3, 4, 6)]):
        panel = picture[:, place * 100 : place * 100 + HIGH]
        top = (HIGH - high * 12) // 2
        pixels = panel[top : top + high * 12 : 12, ::12, 0]
        expected = np.zeros((high, 8))
        if place < 2:
            expected[row, column] = 255
        np.testing.assert_array_equal(pixels, expected)
    assert notes == [
        "x: slices through the middle of 6 x 8 x 8, the first of 2",
        "x: values 0 to 1 are shown as black to white",
    ]


def test_series_are_lines() -> None:
    """A line runs from the foot to the top as its values do, on one scale for all samples; a peak
    of one value among many is seen, and what is no number is a gap."""
    up, down = np.linspace(0, 1, 50), np.linspace(1, 0, 50)
    peak = np.zeros(100_000)
    peak[70_000] = 2
    hole = np.where(np.arange(50) < 25, up, np.nan)
    pictures, notes = drawn([up, down, peak, hole])
    assert notes == ["x: lines from 0 to 2, with gaps where a value is not a number"]
    ink = [(picture < 250).any(axis=2) for picture in pictures]

    def height(of: np.ndarray, column: int) -> float:
        return 1 - float(np.flatnonzero(of[:, column]).min()) / HIGH

    wide = ink[0].shape[1]
    assert height(ink[0], 5) < 0.1
    assert 0.4 < height(ink[0], wide - 5) < 0.6
    assert height(ink[1], wide - 5) < 0.1
    assert height(ink[2], round(wide * 0.7)) > 0.9
    assert ink[3][:, : wide // 2 - 5].any(axis=0).all()
    assert not ink[3][:, wide // 2 + 5 :].any()
    (several,), _ = drawn([np.stack([up, down], 1)])  # (T, K): a line each
    assert len(np.unique(several.reshape(-1, 3), axis=0)) > 10
    assert np.array_equal(several, drawn([np.stack([up, down])])[0][0])  # (K, T)
    (matrix,), _ = drawn([np.arange(400.0).reshape(20, 20)])
    assert matrix.shape == (HIGH, HIGH, 3)


def test_a_set_of_episodes(robot: Path, tmp_path: Path) -> None:
    """Without a field named, all fields that go together are drawn, by episode and row."""
    made = preview({"path": robot, "window": 3, "window_edge": "repeat"}, count=4, seed=1)
    assert made.notes[0] == "from above: actions, obs/image, rewards"
    assert "obs/image: 8 x 8 x 3, uint8, in the file" in made.notes
    assert list(made.records) == sorted(made.records)
    all_rows = preview({"path": robot}, indices=[29, 0], columns=1)
    assert all_rows.records == (29, 0)
    narrow, wide = (preview({"path": robot}, count=9, columns=n).sheet.size[0] for n in (1, 9))
    assert 4 * narrow < wide
    assert preview({"path": robot, "subset": "train", "window": 2}, count=99).records == (
        *range(5),
        *range(21, 29),
    )
    with pytest.raises(ParamsError, match="0 to 29"):
        preview({"path": robot}, indices=[30])
    result = run("preview", robot, "-p", "window=3", "--output", tmp_path / "r.png")
    assert result.exit_code == 0, result.output
    with asyncreader.open(robot, data_field=["actions"], window=2) as data:
        assert "4 episodes of 6 to 9 rows, median 7.5" in repr(data)
        assert data.preview(count=2).size[0] > 300


def test_whole_episodes_without_max_length(robot: Path) -> None:
    """They are drawn as long as the longest: their rows are written into memory of that size."""
    for fields in ("actions", ["actions", "rewards", "obs/image"]):
        given = {"path": robot, "data_field": fields, "window": "episode"}
        with look_into(given) as ds:
            rows = ds.source.rule.most  # type: ignore[union-attr]
            assert set(rows.values()) == {9}
            data = ds[1]
            first = data[0] if isinstance(data, tuple) else data
            np.testing.assert_array_equal(first[:7], np.arange(14.0).reshape(-1, 2))
            np.testing.assert_array_equal(first[7:], np.zeros((2, 2)))
        assert preview(given).records == (0, 6, 13, 21)


def test_a_batch_of_windows(robot: Path, tmp_path: Path) -> None:
    """--batch draws the windows of the reader's first batch: strips of its pictures as they are,
    and labels, of several each."""
    given: dict[str, Any] = {
        "path": robot,
        "data_field": ["obs/image", "actions"],
        "labels_field": ["rewards", "@num_samples"],
        "window": {"obs/image": 2, "actions": 4},
        "shuffle": True,
        "seed": 5,
    }
    made = preview_batch(given, count=3, columns=1)
    with asyncreader.AsyncReader(given, batch_size=3) as reader:
        batch = next(iter(reader))
        assert made.records == tuple(batch.indices.tolist())
        assert made.labels == tuple(f"label 1, {6 + e}" for e in batch.episode.tolist())
        images = np.moveaxis(batch.data[0], 2, -1).copy()
    sheet = np.asarray(made.sheet)
    tiles = (sheet[:, 20 : 20 + HIGH] != 255).any(axis=2).all(axis=1)  # no paper from side to side
    top = int(np.argmax(tiles))
    strip = sheet[top : top + HIGH, 20 : 20 + 2 * (HIGH + 4)]
    for place in range(2):
        part = strip[:, place * 100 : place * 100 + HIGH]
        enlarged = images[0, place].repeat(12, axis=0).repeat(12, axis=1)
        np.testing.assert_array_equal(part, enlarged)
    assert any("window" in note or "seed=5" in note for note in made.notes)
    few = preview_batch({"path": robot, "data_field": "actions", "window": 9}, count=30)
    assert len(few.records) == 1


def test_samples_of_different_length(tmp_path: Path) -> None:
    """Each is drawn as long as it is: lines, and strips of images; empty ones are blank, and the
    words say how long they are. --batch fills them up to the longest and says so."""
    rng = np.random.default_rng(0)
    counts = (3, 0, 8)
    images = [rng.integers(0, 255, (n, 8, 8, 3), np.uint8) for n in counts]
    with converters.Writer(tmp_path / "x.h5", variable_length=True) as writer:
        for rows in images:
            writer.add(rows, len(rows), lines=np.full((len(rows), 2), 9.0), wide=np.ones((3, 30)))
    given: dict[str, Any] = {"path": tmp_path / "x.h5", "data_field": ["data", "lines", "wide"]}
    made = preview(given, count=3, columns=1)
    assert made.notes[:2] == (
        "from above: data, lines, wide",
        "data: up to 6 rows of each, evenly spread",
    )
    sheet = np.asarray(made.sheet)
    strip = 6 * 100 - 4
    part = sheet[:, 20 : 20 + strip]
    rows = np.flatnonzero((part != 255).any(axis=2).all(axis=1))  # no paper from side to side
    tops = rows[np.flatnonzero(np.diff(rows, prepend=-9) > 1)]
    tops = tops[[(part[top : top + HIGH] != 255).any(axis=2).all() for top in tops]]
    first, empty, last = (part[top : top + HIGH] for top in tops)
    enlarged = images[0][1].repeat(12, axis=0).repeat(12, axis=1)
    np.testing.assert_array_equal(first[:, 100:196], enlarged)
    np.testing.assert_array_equal(last[:, 500:], images[2][7].repeat(12, axis=0).repeat(12, axis=1))
    assert len(np.unique(empty.reshape(-1, 3), axis=0)) == 1
    words = ["preview", given["path"], "--batch", "--output", tmp_path / "b.png"]
    result = run(*words)
    assert result.stderr == (
        "the samples differ in length: filled up to 8, the longest; see -p max_length\n"
    )
    assert run(*words, "-p", "max_length=2").stderr == ""
    with asyncreader.open(given, max_length=4) as ds:
        assert ds.preview(count=3).size[0] > strip


@pytest.mark.parametrize("kind", ["structured", "ragged"])
def test_rows_in_the_shape_of_images_that_are_none(tmp_path: Path, kind: str) -> None:
    """Structured rows, and values of samples of different length, whose shape is that of a grey
    image are drawn as what they are: on a sheet, in a notebook and in a report."""
    path, rng = tmp_path / "x.h5", np.random.default_rng(0)
    table = rng.random((9, 40, 30), np.float32)
    given: dict[str, Any] = {"path": path, "data_field": "x", "labels_field": None}
    if kind == "structured":
        rows = np.zeros((9, 40, 30), [("a", "f4"), ("b", "i2")])
        rows["a"] = table
        hdf5(path, x=rows)
        given["members"] = ["a", "b"]
    else:
        hdf5(path, x=table, x_lengths=np.array([4, 2, 3]))
        given["max_length"] = 4
    assert len(preview(given).records) == (9 if kind == "structured" else 3)
    with asyncreader.open(**given) as dataset:
        assert "<img" in dataset._repr_html_()
    del given["path"]
    words = [f"{name}={json.dumps(value)}" for name, value in given.items()]
    passed = [word for one in words for word in ("-p", one)]
    assert run("preview", path, "--html", tmp_path / "r.html", *passed).exit_code == 0


def test_labels_and_bad_samples(tmp_path: Path) -> None:
    """Series with labels: classes choose, and words say which; what is one number cannot be
    drawn, and members that are not named are listed."""
    rows = np.random.default_rng(0).normal(size=(20, 4, 100))
    jets = np.zeros(20, [("pt", "f4"), ("flavour", "i8")])
    more = {"labels": np.arange(20) % 4, "one": np.arange(20.0), "jets": jets}
    path = hdf5(tmp_path / "x.h5", data=rows, **more)
    made = preview({"path": path}, classes=["2"], count=3)
    assert set(made.labels) == {"label 2"}
    assert all(record % 4 == 2 for record in made.records)
    with pytest.raises(FormatError, match=r"nothing to draw.*one"):
        preview({"path": path, "data_field": "one"})
    with pytest.raises(ParamsError, match=r"members.*found pt \(float32\), flavour \(int64\)"):
        preview({"path": path, "data_field": "jets"})


# -- info ----------------------------------------------------------------------------------------


def facts(*words: object) -> dict[str, Any]:
    result = run("info", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_info_of_episodes(robot: Path) -> None:
    """Episodes, their lengths, splits, and all fields that go together, none of them named."""
    found = facts(robot)
    assert found["episodes"]["rows"] == [6, 7.5, 9]
    assert found["episodes"]["splits"] == {"train": 2}
    assert (found["field"], found["shape"], found["dtype"]) == ("actions", [2], "float64")
    others = {field["name"]: (field["shape"], field["dtype"]) for field in found["fields"]}
    assert others == {"obs/image": ([8, 8, 3], "uint8"), "rewards": ([], "float32")}
    words = run("info", robot).stdout
    assert "4 episodes of 6 to 9 rows, median 7.5" in words
    assert "train 2" in words


def test_info_of_sparse_and_structured_rows(tmp_path: Path) -> None:
    """The part of the values that is stored; members with their dtypes."""
    with h5py.File(tmp_path / "cells.h5", "w") as file:
        group = file.create_group("matrix")
        group.attrs["shape"] = (10, 40)
        group["data"], group["indices"] = np.ones(30, np.float32), np.arange(30, dtype=np.int32)
        group["indptr"] = np.arange(0, 33, 3)
        file["jets"] = np.zeros(20, [("pt", "f4"), ("flavour", "i8")])
    found = facts(tmp_path / "cells.h5", "-p", "data_field=matrix")
    assert found["stored_values"] == 30 / 400
    assert found["bytes_a_sample"] == 24
    two = facts(f"{tmp_path}/c*.h5", "-p", 'data_field=["matrix"]')
    assert (two["stored_values"], two["field"]) == (30 / 400, "matrix")
    jets = facts(tmp_path / "cells.h5", "-p", "data_field=jets")  # members need not be chosen
    assert jets["dtype"] == "pt (float32), flavour (int64)"
    chosen = facts(tmp_path / "cells.h5", "-p", "data_field=jets", "-p", 'members=["pt"]')
    assert chosen["dtype"] == "pt (float32), flavour (int64)"


def test_errors_list_fields_with_shapes(tmp_path: Path) -> None:
    """A reader that is told no field says which there are, with shapes and dtypes."""
    names = {"names": np.array([b"a"] * 4), "flags": np.zeros(4, bool), "some": [b"x"] * 4}
    path = hdf5(
        tmp_path / "x.h5", x=np.zeros((4, 3), ">f4"), table=np.zeros(4, [("a", "u2")]), **names
    )

    with pytest.raises(ParamsError) as caught:
        asyncreader.AsyncReader(path)
    assert caught.value.found == (
        "flags (4 bool), names (4 text), some (4 of variable length), table (4 structured), "
        "x (4 x 3 float32)"
    )
