"""Shards added to a set: what stays, what changes, what is refused, and where training goes on."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fake_ray import FakeRay
from fakes import hdf5
from split_sets import TEXT, contents, pictures, splits_of

import asyncreader
from asyncreader import AsyncReader, FormatError, ParamsError, SourceError, SourceNotFoundError
from asyncreader.cli.main import main
from asyncreader.tools.verify import verify_file
from converters import convert
from converters.outputs.sharded_set import Grown

KINDS = ("hdf5", "lmdb")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of pictures, and the first of them as shards of each container."""
    root = tmp_path_factory.mktemp("made")
    pictures(root / "first", [f"{'ac'[n % 2]}/{n:02}.png" for n in range(40)])
    pictures(root / "more", [f"{'acb'[n % 3]}/m{n:02}.png" for n in range(9)])
    convert(root / "more", root / "shards", shards=1)
    for kind in KINDS:
        convert(root / "first", root / kind, shards=3, format=kind, split=TEXT)
    return root


@pytest.fixture(params=KINDS)
def grown(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the set of shards, to be added to."""
    return Path(shutil.copytree(made / request.param, tmp_path / "set"))


@pytest.mark.slow
def test_a_set_grows(made: Path, grown: Path) -> None:
    """Records, classes and splits stay what they are; new ones go behind; the shards that were
    there do not change, and a reader that is open serves what it served."""
    before, splits = contents(grown), splits_of(grown)
    shards = {path: path.read_bytes() for path in grown.iterdir() if path.suffix != ".json"}
    with AsyncReader(path=grown, batch_size=40, shuffle=True, copy=True) as reader:
        first = reader.fetchData() and reader.getNextBatch().data
        report = convert(made / "more", grown, append=True, split=TEXT)
        reader.seek(0)
        reader.fetchData()
        assert np.array_equal(first, reader.getNextBatch().data)
    assert (report.count, report.shards, report.classes) == (9, 1, ("a", "c", "b"))
    assert report.notes == ("the dataset has 49 samples in 4 shards now",)
    assert all(path.read_bytes() == old for path, old in shards.items())
    convert(made / "first", grown, append=True, shards=2, split=TEXT)
    report = verify_file(str(grown))  # type: ignore[assignment]
    assert report.problems == ()  # type: ignore[attr-defined]
    assert report.count == 89
    found = contents(grown)
    assert list(found)[:40] == list(before)
    assert {path: found[path] for path in before} == before
    assert found["b/m02.png"][1] == "b"
    convert(made / "more", grown.with_name("of_more.h5"), split=TEXT)
    of_more = splits_of(grown.with_name("of_more.h5"))
    assert splits_of(grown) == {name: splits[name] | of_more[name] for name in splits}
    # the same samples in one file are the same set
    convert(grown, grown.with_name("one.h5"))
    with asyncreader.open(grown.with_name("one.h5")) as one, asyncreader.open(grown) as sharded:
        assert one.fingerprint == sharded.fingerprint
        assert one.class_counts == sharded.class_counts


@pytest.mark.parametrize(
    ("given", "said", "error"),
    [
        ({}, "the dataset has splits, and nothing says", ParamsError),
        ({"encoding": "png"}, "the dataset has another encoding", ParamsError),
        ({"size": (3, 3)}, "images of different sizes", FormatError),
        ({"no_labels": True}, "do not go with the dataset: kind of labels", ParamsError),
        ({"channels": 1}, "do not go with the dataset: channels", ParamsError),
        ({"classes": ["b", "c", "a"]}, "with the dataset: the first classes", ParamsError),
        ({"overwrite": True}, "contradict each other", ParamsError),
        ({"dst": "new"}, "no sharded dataset to append to", SourceNotFoundError),
        ({"dst": "one.h5"}, "the target of shards is a folder", ParamsError),
    ],
)
def test_what_does_not_go_with_the_set(
    made: Path, tmp_path: Path, given: dict[str, Any], said: str, error: type[Exception]
) -> None:
    """Is said, and changes nothing; so is a folder that is not there, and a file."""
    convert(made / "more", tmp_path / "one.h5")
    target = shutil.copytree(made / "hdf5", tmp_path / "set")
    before = contents_of(target)
    if "classes" in given:
        (tmp_path / "names.txt").write_text("\n".join(given["classes"]))
        given = {"classes": tmp_path / "names.txt"}
    split = {"split": TEXT} if given else {}
    asked = {"dst": target, "append": True, **split, **given}
    with pytest.raises(error, match=said):
        convert(made / "more", **{**asked, "dst": tmp_path / asked["dst"]})
    assert contents_of(target) == before


@pytest.mark.slow
def test_sets_of_numbers_grow(tmp_path: Path) -> None:
    """Rows of any dtype and shape, from another program's file, a Writer's or a set of shards, are
    appended as they are; h5py reads them back. Others are refused with what differs."""
    rng = np.random.default_rng(0)
    for number, (dtype, shape) in enumerate(
        [("f4", (8,)), ("u2", (6, 5, 3)), ("f4", (6, 5, 3)), ("i2", (2, 3, 4, 2))]
    ):
        rows, more = (rng.integers(0, 9, (n, *shape)).astype(dtype) for n in (10, 7))
        target, foreign = tmp_path / f"set{number}", tmp_path / f"{number}.h5"
        convert((rows, np.arange(10)), target, shards=2)
        hdf5(foreign, data=more, labels=np.arange(7))
        convert(foreign, target, append=True, params={"data_field": "data"})
        convert((more, np.arange(7)), tmp_path / f"own{number}.h5")
        convert(tmp_path / f"own{number}.h5", target, append=True)
        assert verify_file(str(target)).problems == ()
        found = np.concatenate(
            [h5py.File(one)["data"][:] for one in sorted(target.glob("*.h5"))]  # type: ignore[index]
        )
        assert np.array_equal(found, np.concatenate([rows, more, more]))
    before = contents_of(tmp_path / "set0")
    for source, said in (
        ("own3.h5", r"another kind than the first.* int16, shape \(2, 3, 4, 2\); .*float32"),
        ("own2.h5", r"float32, shape \(6, 5, 3\); expected float32, shape \(8,\)"),
        ("images.h5", "found 3; expected rows of numbers, which are no images"),
    ):
        convert(
            (np.zeros((4, 6, 5, 3), "u1"), np.arange(4)), tmp_path / "images.h5", overwrite=True
        )
        with pytest.raises((FormatError, ParamsError), match=said):
            convert(tmp_path / source, tmp_path / "set0", append=True)
    with pytest.raises(FormatError, match="cannot be resized or encoded"):
        convert(tmp_path / "own0.h5", tmp_path / "x.h5", size=4)
    assert contents_of(tmp_path / "set0") == before


def contents_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("name", ["one.h5", "one.lmdb", "one"])
def test_a_single_file_grows_as_the_error_advises(
    made: Path, tmp_path: Path, name: str, taken: bool
) -> None:
    """The command that the error names makes shards of the file, and those can be added to."""
    kind: Any = "lmdb" if name.endswith("b") else "hdf5"
    convert(made / "first", tmp_path / name, format=kind)
    if taken and name != "one":
        (tmp_path / "one").mkdir()
    with pytest.raises((ParamsError, SourceNotFoundError)) as refused:
        convert(made / "more", tmp_path / name, append=True)
    found = re.search(r"asyncreader (convert (\S+) (\S+) --shards 1)", str(refused.value))
    assert found is not None, refused.value
    with pytest.raises(SystemExit) as ended:
        main(found[1].split())
    assert ended.value.code == 0
    assert found[2] == str(tmp_path / name)
    convert(made / "more", found[3], append=True)
    assert contents(Path(found[3])) == contents(tmp_path / name) | contents(made / "shards")
    with pytest.raises(ParamsError, match="without append"):
        convert(made / "more", tmp_path / "new.h5", append=True)


@pytest.mark.parametrize("written", ["from a folder", "from arrays"])
def test_paths_that_are_there_already_are_counted(tmp_path: Path, written: str) -> None:
    """An append says how many of its paths the set has; it adds them all the same."""
    first, more = (pictures(tmp_path / n, [f"a/{n}", "a/1.png"]) for n in ("0.png", "2.png"))
    convert(first, tmp_path / "set", shards=1)
    src: Any = more
    if written == "from arrays":
        convert(more, tmp_path / "more.h5")
        src = tmp_path / "more.h5"
    for known in (1, 2):
        said = f"{known} of the 2 new paths were in the dataset already"
        assert said in convert(src, tmp_path / "set", append=True).notes
    assert verify_file(str(tmp_path / "set")).count == 6


def test_what_a_cut_run_left(made: Path, grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error before the manifest is replaced leaves the old set; finished shards are kept for
    resume, and shards that a killed run moved are removed by the next one."""
    before = {path.name: path.read_bytes() for path in grown.iterdir()}

    def fail(*_: object) -> None:
        raise SourceError("no", path="x")

    with monkeypatch.context() as patch:
        patch.setattr(Grown, "with_shards", fail)
        with pytest.raises(SourceError, match="finished shards are kept"):
            convert(made / "more", grown, append=True, shards=2, split=TEXT)
    assert {path.name: path.read_bytes() for path in grown.iterdir()} == before
    with pytest.raises(SourceError, match="pass resume"):
        convert(made / "more", grown, append=True, shards=2, split=TEXT)
    (grown / "shards-after-00003-00001-of-00007.h5").write_bytes(b"left by a killed run")
    report = convert(made / "more", grown, append=True, shards=2, split=TEXT, resume=True)
    assert report.kept == 2
    assert len(list(grown.iterdir())) == 6
    assert verify_file(str(grown)).ok
    assert not list(grown.parent.glob(".*"))


def test_tasks_of_a_cluster_append_the_same(
    made: Path, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to a worker of Ray packs its shard to the byte: new classes and splits have the
    numbers of the set, and packed samples are copied."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    source, other = grown.with_name("more.h5"), shutil.copytree(grown, grown.with_name("other"))
    convert(made / "more", source, split="val=0.5,dev=0.5")
    given: dict[str, Any] = {"append": True, "shards": 2, "select": "1:"}
    convert(source, grown, **given)
    convert(source, other, engine="ray", **given)
    assert len(list(grown.glob("shards-after-*"))) == 2
    assert contents_of(other) == contents_of(grown)
    assert {*splits_of(grown)} == {"train", "val", "test", "dev"}


# -- states that were saved before ---------------------------------------------------------------

SHARED: dict[str, Any] = {"batch_size": 4, "seed": 3}


def rest_of(path: Path, state: dict[str, Any] | None, **params: Any) -> list[int]:
    """The records that the rest of the epoch serves behind ``state``."""
    with AsyncReader(path=path, **SHARED, **params) as reader:
        if state is not None:
            reader.load_state_dict(state)
        return [int(n) for batch in reader for n in batch.indices]


def states(path: Path, **params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state after two batches, and at the end of the epoch."""
    with AsyncReader(path=path, **SHARED, **params) as reader:
        for step, _ in enumerate(reader):
            if step == 1:
                middle = reader.state_dict()
        return dict(middle), dict(reader.state_dict())


@pytest.mark.slow
def test_states_go_on_where_the_order_allows_it(made: Path, grown: Path) -> None:
    """In file order, at an epoch's start, and with the samples of before; else the refusal says
    why."""
    orders: list[dict[str, Any]] = [
        {}, {"shuffle": True}, {"shuffle": "block"}, {"weights": "balanced"}, {"subset": "train"},
        {"subset": "train", "shuffle": True}, {"subset": slice(0, 12), "shuffle": True},
    ]  # fmt: skip
    saved = [states(grown, **order) for order in orders]
    whole = [rest_of(grown, None, **order) for order in orders]
    with asyncreader.open(grown) as found:
        train = found.splits["train"]
    convert(made / "more", grown, append=True, split=TEXT)
    convert(made / "more", grown, append=True, split=TEXT)
    for order, (middle, end), old in zip(orders, saved, whole, strict=True):
        assert len(rest_of(grown, end, **order)) >= len(old) - 3
        if order.get("shuffle", False) is False and "weights" not in order:
            assert rest_of(grown, middle, **order) == rest_of(grown, None, **order)[8:]
            assert rest_of(grown, middle, **order)[: len(old) - 8] == old[8:]
        elif isinstance(order.get("subset"), slice):
            assert rest_of(grown, middle, **order) == old[8:]
        else:
            with pytest.raises(
                ParamsError, match="the dataset has grown since the state was saved"
            ):
                rest_of(grown, middle, **order)
            subset = train if "subset" in order else slice(0, 40)
            assert rest_of(grown, middle, **{**order, "subset": subset}) == old[8:]
    with pytest.raises(ParamsError, match="fingerprint differs"):
        rest_of(grown, saved[1][0], shuffle=True, subset=slice(0, 39))
    with pytest.raises(ParamsError, match="seed differs"):
        rest_of(grown, {**saved[0][0], "seed": 4})


def test_states_of_slices_go_on(made: Path, grown: Path) -> None:
    """A slice of any step resumes with the samples of before where they still come first; one that
    runs backwards begins with the new samples, so that a state inside an epoch is refused."""
    forwards, backwards = slice(1, None, 3), slice(None, None, -3)
    saved = {subset.step: states(grown, subset=subset) for subset in (forwards, backwards)}
    convert(made / "more", grown, append=True, split=TEXT)
    chosen = {subset.step: np.arange(49)[subset].tolist() for subset in (forwards, backwards)}
    (middle, end), (inside, behind) = saved[3], saved[-3]
    assert rest_of(grown, middle, subset=forwards) == chosen[3][8:16]
    assert rest_of(grown, end, subset=forwards) == chosen[3][:16]
    assert rest_of(grown, behind, subset=slice(48, None, -3)) == chosen[-3][:16]
    with pytest.raises(ParamsError, match="the dataset has grown since the state was saved"):
        rest_of(grown, inside, subset=slice(48, None, -3))


def test_a_state_of_an_array_that_new_records_come_before(made: Path, grown: Path) -> None:
    """A state inside an epoch of some records is refused where new records now come before them."""
    before = [30, 2, 7, 9, 11, 12, 13, 14, 15, 16, 17, 18]
    middle, end = states(grown, subset=before)
    convert(made / "more", grown, append=True, split=TEXT)
    assert rest_of(grown, middle, subset=[*before, 44]) == before[8:]
    assert rest_of(grown, end, subset=[44, *before]) == [44, *before[:11]]
    with pytest.raises(ParamsError, match="the dataset has grown since the state was saved"):
        rest_of(grown, middle, subset=[44, *before])
