"""Episodes and windows: which rows are samples, what holds them, and what is refused.

That every kind of set gives the slices of what was written, is a case of test_contract.py.
"""

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from drawn_sets import draw_set
from fakes import damage_chunk, encoded, first_batch, hdf5
from field_kinds import WIDTH
from foreign_sets import fuel_split, vlen

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError
from asyncreader.pipeline.fill_batch import BatchFiller
from asyncreader.pipeline.fill_queue import FillQueue
from asyncreader.sources.hdf5 import chunk_cache, chunks
from asyncreader.tools.verify import verify_file
from converters import convert

LENGTHS = (7, 3, 12, 1, 9, 5)
COUNT = sum(LENGTHS)
#: Six episodes in arrays; a row of ``at`` is its episode, and its number in the set.
ARRAYS = {
    "at": np.stack((np.repeat(np.arange(6), LENGTHS), np.arange(COUNT)), axis=1),
    "cam": np.random.default_rng(7).integers(0, 256, (COUNT, 6, 5, 3), np.uint8),
    "end": np.cumsum(LENGTHS),
}


def opened(**params: Any) -> AsyncReader:
    """A reader of windows of the arrays above."""
    given: dict[str, Any] = {"data": ARRAYS, "episodes": "ends:end", "data_field": "at"}
    if isinstance(params.get("data_field", ""), str):  # a single field of arrays is a list of one
        given["data_field"] = [params.pop("data_field", "at")]
    return AsyncReader({**given, "batch_size": 4, **params})


def groups(path: Path) -> Path:
    """As robomimic writes: demo_10 after demo_9; a row of ``at`` is the number of its episode."""
    with h5py.File(path, "w") as file:
        for number, rows in enumerate(LENGTHS * 2):
            file[f"data/demo_{number}/at"] = np.full((rows, 1), number)
        file["mask/train"] = np.array([b"demo_2", b"demo_10"])
    return path


def anchors_of(reader: AsyncReader) -> list[tuple[int, int]]:
    """(episode, row) of all samples of an epoch."""
    found: list[tuple[int, int]] = []
    for batch in reader:
        assert batch.episode is not None
        found += zip(
            batch.episode[batch.mask].tolist(), batch.indices[batch.mask].tolist(), strict=True
        )
    return found


@pytest.mark.parametrize(
    ("container", "episodes"),
    [("file", "groups"), ("files", "files"), ("file", "ends"), ("file", "axis")],
)
def test_compiled_code_fills_windows(
    tmp_path: Path, container: str, episodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of contiguous rows are filled by compiled code: the same batches as without it,
    mirrored alike, and with memory of their own."""
    forced = {"sample": "windows", "container": container, "episodes": episodes, "fields": 2}
    forced |= {"kind": "Image", "kind of b": "Image", "stored": "contiguous", "views": False}
    drawn = draw_set(tmp_path, 1, **forced, move=True, look=(WIDTH, "center"), mirrored=True)
    served = drawn.served()
    size = served.sizes[0]
    with monkeypatch.context() as patched:
        patched.setattr(BatchFiller, "find_tables", lambda _: None)
        with AsyncReader(served.params, batch_size=size) as reader:
            assert reader._ring.fills is None
        order = served.order  # each sample as expected
    with AsyncReader(served.params, batch_size=size) as reader:
        assert (reader._ring.fills is not None) == FillQueue.available()
    for copied in (False, True):
        epochs = served.read(2, batch_size=size, nthread=2, njob=3, copy=copied)
        for batches, rows in zip(epochs, order, strict=True):
            served.compare(batches, rows, 0, size)


@pytest.mark.parametrize("cut", ["groups", "ends", "axis"])
def test_large_pieces(tmp_path: Path, cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are cut over chunks too large to be put together are the same."""
    monkeypatch.setattr(chunks, "MOST_ASSEMBLED", 0)
    forced = {"sample": "windows", "container": "file", "episodes": cut, "stored": "cut"}
    for seed in range(3):
        (tmp_path / f"{seed}").mkdir()
        served = draw_set(tmp_path / f"{seed}", seed, **forced, kind="Image").served()
        assert len(served.order[0]) == served.count  # each as expected


def test_windows_without_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window whose rows all lie outside is zeros; of such chunks none is read for it."""
    monkeypatch.setattr(chunks, "MOST_ASSEMBLED", 0)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.ones((6, 4)), chunks=(2, 2), compression="gzip")
    given: dict[str, Any] = {"path": tmp_path / "x.h5", "data_field": "x", "episodes": "whole"}
    batch = first_batch(given, window=[9], window_edge="zero", batch_size=6)
    assert not batch.data.any()
    assert not batch.present.any()


def test_pictures_of_a_window_are_moved_alike() -> None:
    """All rows of a sample have one crop, one flip and one draw of each operation: that of the
    sample's place in the order."""
    same: dict[str, Any] = {
        "size": (4, 4),
        "crop": "random-resized",
        "flip": True,
        "augment": [("color-jitter", {"brightness": 0.4})],
        "shuffle": True,
        "data_field": "cam",
    }

    def served(**more: Any) -> np.ndarray:
        with opened(**same, **more) as reader:
            return np.concatenate([batch.data[0].copy() for batch in reader])

    single, many = served(), served(window=[0, 0, 0])
    for number in range(3):
        np.testing.assert_array_equal(many[:, number], single)


# -- rules ---------------------------------------------------------------------------------------


def test_one_window_of_each_episode() -> None:
    """With "episode" each episode that is long enough comes once an epoch, at a row drawn anew:
    at each where the window fits."""
    more: dict[str, Any] = {"window_every": "episode", "last_batch": "short", "shuffle": True}
    with opened(window=3, **more) as reader:
        assert reader.count == 5
        epochs = [sorted(anchors_of(reader)) for _ in range(40)]
    assert all([e for e, _ in epoch] == [0, 1, 2, 4, 5] for epoch in epochs)
    drawn = {row - sum(LENGTHS[:2]) for epoch in epochs for e, row in epoch if e == 2}
    assert drawn == set(range(10))


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
        hdf5(tmp_path / f"one_{number}.h5", x=np.full((rows, 2), number), who=np.array([number]))
    with asyncreader.open(
        str(tmp_path / "one_*.h5"), data_field=["who", "x"], episodes="files", window={"x": 1}
    ) as stored:
        assert stored[:][0].tolist() == stored[:][1][:, 0, 0].tolist() == [0] * 4 + [1] + [2] * 3
    hdf5(tmp_path / "one_3.h5", x=np.zeros((3, 2), int), who=np.arange(3))
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


def test_who_takes_the_same_row_of_each_field(tmp_path: Path) -> None:
    """A mix and a conversion refuse fields whose rows are not numbered alike, which they would pair
    wrongly; verify looks at all rows of each."""
    names = ("a", "b")
    for name in names:
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for number in range(3):
                group = file.create_group(f"episode_{number}")
                group["act"], group["goal"] = np.zeros((2, 4)), np.full((1, 3), number)
                image = encoded(np.full((6, 5, 3), number, np.uint8))
                bad = name == "b" and number == 2
                vlen(group, "cam", [image, image, image[:20] if bad else image])
    paths = [str(tmp_path / f"{name}.h5") for name in names]
    ratios = dict.fromkeys(paths, 0.5)
    for fields in (["cam", "act"], ["act", "goal"]):
        with pytest.raises(ParamsError, match="a mix takes one row of each field"):
            AsyncReader(mix=ratios, data_field=fields)
        with pytest.raises(ParamsError, match="a conversion takes one row of each field"):
            convert(paths[0], tmp_path / "out.h5", params={"data_field": fields})
        assert not (tmp_path / "out.h5").exists()
    given: dict[str, Any] = {"size": (6, 5), "batch_size": 18, "on_error": "zero"}
    assert first_batch(mix=ratios, data_field="cam", **given).data.shape == (18, 3, 6, 5)
    params = {"data_field": ["act", "cam", "goal"]}
    assert verify_file(paths[0], params=params, decode=True).ok
    report = verify_file(paths[1], params=params, decode=True)
    assert report.bad == 1
    assert "record 8" in report.problems[0]


@pytest.mark.parametrize("kind", ["STD_U8LE", "STD_U8BE", "STD_I8LE", "STD_I8BE"])
def test_image_files_in_groups_as_any_bytes(tmp_path: Path, kind: str) -> None:
    """Bytes of image files are signed in the videos of SLEAP, and big-endian on some machines."""
    images = [encoded(np.full((6, 5, 3), 40 * n, np.uint8)) for n in range(3)]
    stored = h5py.h5t.vlen_create(getattr(h5py.h5t, kind))
    with h5py.File(tmp_path / "set.h5", "w") as file:
        for name in ("video0", "video1"):
            group, space = file.create_group(name), h5py.h5s.create_simple((3,))
            video = h5py.Dataset(h5py.h5d.create(group.id, b"video", stored, space))
            for n, image in enumerate(images):
                video[n] = np.frombuffer(image, video.dtype.metadata["vlen"])
    params = {"episodes": "groups:video*", "data_field": "video"}
    with asyncreader.open(tmp_path / "set.h5", **params) as ds:
        assert ds[:].shape == (6, 3, 6, 5)
        with asyncreader.open(tmp_path / "set.h5", data_field="video1/video") as alone:
            np.testing.assert_array_equal(ds[3:], alone[:])


def test_a_mix_of_samples_of_different_length(tmp_path: Path) -> None:
    """A mix has none, with max_length and without it."""
    for name in ("a", "b"):
        hdf5(tmp_path / f"{name}.h5", x=np.arange(6.0), x_lengths=[2, 4])
    ratios = {str(tmp_path / f"{name}.h5"): 0.5 for name in ("a", "b")}
    for more in ({}, {"max_length": 3}):
        with pytest.raises(ParamsError, match="samples of one length"):
            AsyncReader(mix=ratios, data_field="x", **more)


@pytest.mark.parametrize("outside", [(0, 2), (1, 3), (2, None), (9, 9), (None, 0)], ids=str)
@pytest.mark.parametrize(
    "rows",
    [(0, 32, 4), [0, 28], (-1, 7), [5, 1, 1], (-9, -2, 3), (4, -5, -2)],
    ids=str,
)
def test_outside_counts_rows_of_the_window(outside: tuple[Any, Any], rows: Any) -> None:
    """window_outside counts rows of the window, however far they are from each other and in
    whatever order they are named."""
    lengths = (40, 7, 3)
    near = np.arange(*rows) if isinstance(rows, tuple) else np.array(rows)
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


@pytest.mark.parametrize("subset", [[30, 8, 9, 12, 13], slice(4, 20), slice(1, 30, 3)], ids=str)
def test_subset_of_rows(subset: Any) -> None:
    """A subset selects, in its order, the rows at which windows begin; a window sees its whole
    episode."""
    starts = np.cumsum([0, *LENGTHS[:-1]])
    able = [s + r for s, n in zip(starts.tolist(), LENGTHS, strict=True) for r in range(2, n - 1)]
    with opened(window=(-2, 2), subset=subset, batch_size=1) as reader:
        found = [row for _, row in anchors_of(reader)]
    assert found == [row for row in np.arange(COUNT)[subset].tolist() if row in able]


@pytest.mark.parametrize("chosen", [None, [5, 3, 1, 0], slice(4, None, -1)], ids=str)
@pytest.mark.parametrize("every", [False, True], ids=["whole episodes", "one of each"])
def test_subset_of_episodes(every: bool, chosen: Any) -> None:
    """Where samples are episodes, or one of each, subset takes their numbers in any order and as
    often as it names them, among those of episodes_subset; weights are in its order."""
    subset = [3, 1, 1, 5, 0]
    among = range(len(LENGTHS)) if chosen is None else np.arange(len(LENGTHS))[chosen].tolist()
    expected = [episode for episode in subset if episode in among]
    more: dict[str, Any] = {"window": "episode", "max_length": 12, "window_edge": "drop"}
    if every:
        more = {"window": 1, "window_every": "episode"}
    more |= {"last_batch": "short", "episodes_subset": chosen}
    with opened(subset=subset, **more) as reader:
        assert [episode for episode, _ in anchors_of(reader)] == expected
    for number, episode in enumerate(expected):
        weights = np.eye(len(expected))[number]
        with opened(subset=subset, weights=weights, **more) as reader:
            assert {one for one, _ in anchors_of(reader)} == {episode}
    with pytest.raises(ParamsError, match=r"names an episode that does not exist.*0 to 5"):
        opened(subset=[6], **more)
    with pytest.raises(ParamsError, match=r"selects nothing.*of 6 episodes"):
        opened(subset=slice(6, 9), **more)


def test_a_split_of_rows_is_none_of_episodes(tmp_path: Path) -> None:
    """A split of rows, such as Fuel's, selects rows at which windows begin; where samples are
    episodes, whose numbers its rows are not, it is an error and no split of the dataset."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["features"], file["at"] = np.arange(12.0), np.repeat([0, 1, 2], 4)
        rows = [("train", "features", 0, 4, None, True), ("test", "features", 4, 12, None, True)]
        fuel_split(file, rows)
    given: dict[str, Any] = {"path": tmp_path / "set.h5", "data_field": "features"}
    given |= {"episodes": "ids:at", "labels_field": None, "last_batch": "short"}
    with AsyncReader(given, window=2, subset="test", batch_size=9) as reader:
        assert next(iter(reader)).indices.tolist() == [4, 5, 6, 8, 9, 10]
    whole: dict[str, Any] = {"window": "episode", "max_length": 4}
    with asyncreader.open(given, **whole) as dataset:
        assert dataset.splits == {}
    with pytest.raises(ParamsError, match="no split 'test'"):
        AsyncReader(given, **whole, subset="test")


def test_some_episodes(tmp_path: Path) -> None:
    """episodes_subset takes names, too, and beside a split of robomimic's it selects some of its
    episodes; a name that two episodes have is an error."""
    path = groups(tmp_path / "set.h5")
    for chosen, numbers in (
        ({"episodes_subset": ["demo_4", "demo_11"]}, {4, 11}),
        ({"episodes_subset": slice(0, 3), "subset": "train"}, {2}),
    ):
        with AsyncReader(path, data_field="at", window=1, **chosen) as reader:
            found = anchors_of(reader)
        assert {e for e, _ in found} == numbers
        assert len(found) == sum((LENGTHS * 2)[e] for e in numbers)
    with pytest.raises(ParamsError, match="one name"):
        AsyncReader([path, path], data_field="at", window=1, episodes_subset=["demo_2"])


@pytest.mark.parametrize("every", [{}, {"window": 2, "window_every": "episode"}])
def test_splits_are_all_that_subset_takes(tmp_path: Path, every: dict[str, Any]) -> None:
    """A Dataset names robomimic's masks among its splits, with what ``subset`` takes for them: the
    rows of their episodes, or where a sample is one of each episode the episodes' numbers. So with
    one file and with several."""
    with h5py.File(groups(tmp_path / "set.h5"), "a") as file:
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


@pytest.mark.parametrize(
    "other",
    [
        {"window": 4},
        {"window": [0, 2, 1]},
        {"window_every": 2},
        {"window_edge": "repeat"},
        {"episodes_subset": slice(0, 3)},
        {"window_edge": "repeat", "window_outside": (0, 1)},
    ],
    ids=str,
)
def test_states_of_other_windows_are_refused(other: dict[str, Any]) -> None:
    """A state is of one window, one rule of anchors and one choice of episodes."""
    mine: dict[str, Any] = {"window": 3, "shuffle": True}
    with (
        opened(**mine) as reader,
        opened(**(mine | other)) as another,
        opened(episodes=None, shuffle=True) as plain,
    ):
        for one in (another, plain):
            with pytest.raises(ParamsError, match="the state was saved by other training"):
                one.load_state_dict(reader.state_dict())


# -- what is recognised --------------------------------------------------------------------------


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
    with AsyncReader(path=tmp_path / "d4rl.h5", data_field="observations") as reader:
        assert next(iter(reader)).episode is None  # without a window flags are not looked for


def test_aloha(tmp_path: Path) -> None:
    """Several files with a window are an episode each, ordered by the number in their name; what
    lies outside is zeros."""
    for number in (0, 1, 2, 10):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["observations/qpos"] = np.full((6, 14), number)
            file["action"] = np.full((6, 14), -number)
    batch = first_batch(
        path=str(tmp_path / "episode_*.hdf5"),
        data_field={"qpos": "observations/qpos", "action": "action"},
        window={"action": (0, 100)},
        window_edge="zero",
        window_every="episode",
        batch_size=4,
    )
    assert batch.data[0][:, 0].tolist() == [0, 1, 2, 10]
    assert batch.data[1].shape == (4, 100, 14)
    assert (batch.present[1].sum(1) <= 6).all()
    assert not batch.data[1][~batch.present[1]].any()


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
                hdf5(given["path"][-1], x=rows)
        if "npy" in kind:
            del given["data_field"]
    given |= {"labels_field": None, "window": (-1, 3), "batch_size": 17, "last_batch": "short"}
    if kind in ("array", "file", "npy", "packed"):  # where nothing says that it is one
        with pytest.raises(ParamsError, match=r'episodes="whole"') as caught:
            AsyncReader(given)
        assert ('"files"' in str(caught.value)) == (kind != "array")
    expected = np.stack([x[i - 1 : i + 3] for i in range(1, 18)])
    batch = first_batch(given, episodes="whole")
    served = batch.data[0] if kind == "arrays" else batch.data
    np.testing.assert_array_equal(served, expected)
    assert not batch.episode.any()
    if kind == "arrays":  # which has a row more
        np.testing.assert_array_equal(batch.data[1], np.arange(1, 18)[:, None] + [-1, 0, 1, 2])


def test_one_recording_in_files_of_other_rows(tmp_path: Path) -> None:
    """A field of a row more in each file has no place in a recording of several files."""
    paths = [tmp_path / f"{number}.h5" for number in range(2)]
    for path in paths:
        hdf5(path, obs=np.zeros((6, 2)), act=np.zeros((5, 2)))
    given: dict[str, Any] = {"data_field": ["act", "obs"], "window": 2, "labels_field": None}
    with AsyncReader(given, path=paths[0], episodes="whole") as reader:
        assert reader.count == 4
    with pytest.raises(FormatError, match="one recording in several files"):
        AsyncReader(given, path=paths, episodes="whole")


# -- what is wrong -------------------------------------------------------------------------------


def hostile(path: Path, name: str = "", new: Any = None) -> Path:
    """A set of three episodes; ``new`` (None: nothing) stands in the place of what has a name."""
    with h5py.File(path, "w") as file:
        for e in range(3):
            file[f"data/demo_{e}/a"] = np.zeros((4, 2))
            file[f"data/demo_{e}/b"] = np.zeros((4, 3), "f4")
        file["a"], file["ends"] = np.zeros((12, 2)), [4, 8, 12]
        if name:
            del file[name]
        if isinstance(new, dict):
            file.create_dataset(name, **new)
        elif new is not None:
            file[name] = new
    return path


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
    ("name", "new", "says"),
    [
        ("data/demo_1/b", np.zeros((4, 2), "f4"), "of another kind"),
        ("data/demo_1/b", np.zeros((4, 3), "f8"), "of another kind"),
        ("data/demo_2/b", np.zeros((7, 3), "f4"), "demo_2: a 4, b 7"),
        ("data/demo_2/b", None, "has no dataset 'b'"),
        ("data/demo_2", h5py.SoftLink("/data/demo_2"), "in circles"),
        ("data/demo_2/b", h5py.ExternalLink("other.h5", "b"), "another file"),
        ("data/demo_2/b", {"shape": (4, 3), "dtype": "f4"}, "stores none"),
        ("ends", [4, 3, 12], "decrease"),
        ("ends", [-1, 12], "decrease"),
        ("ends", [4, 8], "last row"),
        ("ends", [4, 8, 13], "last row"),
        ("ends", [0, 0], "last row"),
        ("ends", [4.0, 8.0, 12.0], "whole numbers"),
        ("ends", [[4, 8, 12]], "whole numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_sets(tmp_path: Path, name: str, new: Any, says: str) -> None:
    """Groups that do not go together are a FormatError that names the group; so are ends that
    decrease, or do not end with the rows."""
    path = hostile(tmp_path / "x.h5", name, new)
    given = {"data_field": ["a", "b"], "episodes": "groups:data/demo_*"}
    if name == "ends":
        given = {"data_field": ["a"], "episodes": "ends:ends"}
    with pytest.raises(FormatError, match=says):
        AsyncReader(path, window=2, **given)


LISTED = r"a \(4 x 2 float64\), b \(4 x 3 float32\)"
GROUPS, ENDS = {"data_field": "a", "episodes": "groups:data/demo_*"}, {"episodes": "ends:ends"}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"window": 2}, "nothing says where the episodes"),
        ({**GROUPS, "data_field": "c"}, LISTED),
        ({"data_field": "data", "window": 2}, LISTED),
        ({"episodes": "groups:nothing_*"}, "no group"),
        ({"episodes": "ends:nothing"}, "no field 'nothing'"),
        ({**ENDS, "window": {"b": 2}}, "not read"),
        ({"window": 2, "window_outside": (0, 2)}, "leaves no row"),
        ({"window": 2, "mixup": 0.1}, "not on windows"),
        ({**ENDS, "window": 5}, "at most 4 rows"),
        ({**ENDS, "window": 3, "subset": [2]}, "selects no row"),
        ({**GROUPS, "episodes_subset": ["demo_99"]}, "episodes_subset"),
        ({**GROUPS, "episodes_subset": [3]}, "episodes_subset"),
        ({**GROUPS, "episodes_subset": [1, 1]}, "episodes_subset"),
    ],
    ids=str,
)
def test_wrong_params(tmp_path: Path, params: dict[str, Any], says: str) -> None:
    """What does not go together is a ParamsError that says what would."""
    with pytest.raises(ParamsError, match=says):
        AsyncReader({"path": hostile(tmp_path / "x.h5"), "data_field": "a", **params})


def test_a_damaged_chunk(tmp_path: Path) -> None:
    """A chunk that cannot be decoded is bad for the samples whose windows touch it, once each, and
    the error names the data set; with "skip" a whole window of another place stands in."""
    rows = np.random.default_rng(1).normal(size=(24, 30))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for e in range(3):
            data = rows[8 * e : 8 * e + 8]
            how: dict[str, Any] = {"chunks": (4, 30), "compression": "gzip"}
            file.create_dataset(f"data/demo_{e}/a", data=data, **how)
    damage_chunk(tmp_path / "x.h5", "data/demo_1/a", (4, 0))
    for action in ("zero", "skip"):
        bad = set()
        with AsyncReader(
            tmp_path / "x.h5", data_field="a", window=3, on_error=action, batch_size=6
        ) as reader:
            for batch in reader:
                bad |= set(batch.indices[~batch.mask].tolist())
                expected = rows[batch.indices[:, None] + np.arange(3)]
                np.testing.assert_array_equal(batch.data[batch.mask], expected[batch.mask])
            assert bad == ({10, 11, 12, 13} if action == "zero" else set())
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
    really = chunk_cache.OpenChunks.decode

    def note(self: chunk_cache.OpenChunks, numbers: np.ndarray, *rest: Any) -> Any:
        decoded.extend(numbers.tolist())
        return really(self, numbers, *rest)

    monkeypatch.setattr(chunk_cache.OpenChunks, "decode", note)
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
