"""The benchmarks in miniature: inputs, windows, modes, ratios, tables, and another revision."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import packed, paint, write_hdf5
from project import ROOT
from torchvision_pixels import need_torchvision

from asyncreader.params.parse import parse_params

FOLDER = ROOT / "tests" / "benchmarks"
#: Those that are lists of cases.
PROGRAMS = (
    "run", "limits", "fields", "by_number", "writing", "start", "store", "others", "training",
)  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    """The modules of tests/benchmarks."""
    sys.path.insert(0, str(FOLDER))
    try:
        names = ("harness", "inputs", "player", "ours", "rivals", "scale", *PROGRAMS)
        return SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(FOLDER))


def outcome_of(bench: SimpleNamespace, case: Any, folder: Path, **more: Any) -> dict[str, Any]:
    """The outcome of a case in two short rounds."""
    options = {"place": bench.inputs.Place(folder), "workers": None, "tree": str(ROOT), **more}
    options = {"rounds": 2, "seconds": 0.02, **options}
    outcome: dict[str, Any] = bench.harness.run_case(case, SimpleNamespace(**options))
    return outcome


def small(bench: SimpleNamespace, program: str, folder: Path, *words: str) -> None:
    """Run a program as its command line does, with tiny inputs and one round of each contender."""
    module = getattr(bench, program)
    arguments = [str(folder), "--small", "--rounds", "1", "--seconds", "0.05", *words]
    assert bench.harness.main(program, module.__doc__, module.CASES, arguments=arguments) == 0


@pytest.mark.slow
def test_contenders_alternate_in_both_modes(bench: SimpleNamespace, tmp_path: Path) -> None:
    """Each mode of a contender has its own rates; one that cannot start is named, not fatal."""
    path = str(write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3)))))
    harness = bench.harness
    case = harness.Case(
        "tiny",
        "group",
        [
            harness.ours("ours HDF5", path),
            bench.run.limit("memcpy", "memcpy", row_bytes=192),
            harness.ours("absent", str(tmp_path / "none.h5")),
        ],
        [harness.Goal("ours HDF5", "memcpy"), harness.Goal("ours HDF5", "absent")],
        harness.Setting(batch=64, workers=1, consumer="sum"),
        modes=harness.BOTH,
        count=300,
    )
    outcome = outcome_of(bench, case, tmp_path)
    ours, memcpy, absent = outcome["contenders"]
    assert {mode: len(row["rates"]) for mode, row in ours["modes"].items()} == {
        "epochs": 2,
        "fastest": 2,
    }
    turns = [[one["turn"] for one in row["results"]] for row in (*ours["modes"].values(),)]
    turns.append([one["turn"] for one in memcpy["modes"]["fastest"]["results"]])
    assert turns == [[1, 6], [2, 5], [3, 4]]
    assert ours["median"] == max(row["median"] for row in ours["modes"].values())
    assert list(memcpy["modes"]) == ["fastest"]
    assert [goal["other"] for goal in outcome["goals"]] == ["memcpy"]
    assert "no such file" in absent["failures"]["epochs"]
    table = harness.markdown(outcome)
    assert "batch 64, 1 worker(s), each batch read once" in table
    assert "| absent | - | - | - | - | not run: " in table


def test_ratios_are_of_the_same_round_and_of_the_better_modes(bench: SimpleNamespace) -> None:
    """A drift of the machine's speed does not show in a ratio, nor does a rival's slower mode."""
    harness = bench.harness

    def row(name: str, counts: str, **rates: list[float]) -> dict[str, Any]:
        modes = {mode: {"rates": values} for mode, values in rates.items()}
        return {"name": name, "counts": counts, "modes": modes}

    a = row("a", "epochs", epochs=[1.0, 10.0, 100.0])
    b = row("b", "fastest", epochs=[1.0, 10.0, 100.0], fastest=[2.0, 20.0, 200.0])
    failed = {"name": "b", "modes": {}}
    assert harness.ratio([a, failed], harness.Goal("a", "b")) is None
    assert harness.ratio([a, b], harness.Goal("a", "b")) == 0.5
    assert harness.ratio([a, b], harness.Goal("a", "b", mode="epochs")) == 1.0


def test_contenders_that_serve_other_bytes_are_refused(bench: SimpleNamespace) -> None:
    """Digests of the same round are compared; a contender without digests is not."""
    case = bench.harness.Case("rows", "group", [])
    players = [SimpleNamespace(results=[{"digest": one} for one in digests])
               for digests in (("a", "b"), (), ("a", "b"))]  # fmt: skip
    bench.harness.check_digests(case, players)
    players[2].results[1]["digest"] = "c"
    with pytest.raises(RuntimeError, match="rows: the contenders served different bytes"):
        bench.harness.check_digests(case, players)


def test_a_window_ends_by_samples_or_seconds(bench: SimpleNamespace) -> None:
    """It holds the samples asked for and a fifth of the seconds, or all of the seconds; and at
    least one sample."""
    enough = bench.player.enough
    assert enough(5.0, 1000, 1000, 1.0)
    assert not enough(5.0, 1000, 1000, 0.9)
    assert not enough(5.0, 1000, 999, 4.9)
    assert enough(5.0, 1000, 1, 5.0)
    assert not enough(5.0, 0, 10**9, 4.9)
    assert not enough(5.0, 0, 0, 5.0)


def test_a_batch_is_read_once_where_it_lies(bench: SimpleNamespace) -> None:
    """The consumer sums a batch without a copy, whatever its axes, dtype and size are."""
    data = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    expected = int(data.reshape(-1).view(np.uint64).sum())
    assert np.shares_memory(bench.player.pixels_of(data.transpose(0, 3, 1, 2)), data)
    assert bench.player.read_once(data.transpose(0, 3, 1, 2)) == expected
    assert bench.player.read_once(np.ones(9, np.uint8)) == 0x0101010101010101
    assert bench.player.read_once(np.ones(3, np.float32)) == 0x3F8000003F800000


@pytest.mark.slow
def test_another_revision_runs_from_a_tree_of_its_own(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    """``--against`` measures the code of the revision named, and refuses to take any other."""
    if not (ROOT / ".git").exists():
        pytest.skip("the tests do not lie in a git checkout")
    path = write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3))))
    harness = bench.harness
    case = harness.Case("tiny", "group", [harness.ours("ours", str(path))])
    with harness.worktree("HEAD") as tree:
        pair = harness.of_two_trees(case, str(ROOT), tree, "HEAD")
        outcome = outcome_of(bench, pair, tmp_path)
        assert (Path(tree) / "asyncreader").is_dir()
    assert not Path(tree).exists()
    assert [row["failures"] for row in outcome["contenders"]] == [{}, {}]
    (goal,) = outcome["goals"]
    assert (goal["ours"], goal["other"]) == ("ours", "ours at HEAD")
    with pytest.raises(RuntimeError, match="asyncreader came from"):
        bench.player.check_tree(str(tmp_path))


@pytest.mark.parametrize("program", PROGRAMS)
def test_cases_are_whole(bench: SimpleNamespace, tmp_path: Path, program: str) -> None:
    """Each contender is a function that exists, with parameters that a reader takes; each ratio is
    of contenders that its case has; and no two cases, nor two contenders of one, share a name."""
    cases = getattr(bench, program).CASES
    assert len({case.name for case in cases}) == len(cases)
    place = bench.inputs.Place(tmp_path, small=True)
    place.path = lambda wanted: f"/{wanted.file}"
    for case in cases:
        names = [contender.name for contender in case.contenders]
        assert len(set(names)) == len(names)
        assert {name for goal in case.goals for name in (goal.ours, goal.other)} <= set(names)
        for contender in case.contenders:
            module, _, function = contender.kind.partition(".")
            assert callable(getattr(importlib.import_module(module), function))
            spec = place.plain(contender.spec)
            if contender.kind == "ours.Ours":
                spec = {"batch": case.setting.batch, "workers": 2, **spec}
                parse_params(bench.ours.params_of(spec), {})


def test_scale_in_miniature(bench: SimpleNamespace) -> None:
    """The simulations of scale.py run, and find what they look for."""
    scale = bench.scale
    source = scale.virtual_source(10**11, 1000)
    order = scale.order_of(10**11, 7, "block", 9, 16_380, source.facts.ends)
    (schedule,) = scale.ranks_of(1, order, 64)
    rows = [schedule.plan(scale.Cursor(0, step * 64, step)).indices for step in range(3)]
    assert np.unique(rows).size == 3 * 64
    assert sum(len(part[1]) for part in source.first.split(rows[0])) == 64
    assert set(scale.PARTS) == {"batch", "ranks", "window"}
    assert all(f"``{name}``" in scale.__doc__ for name in scale.PARTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words", "rows"),
    [
        ("by_number", ("--case", "u8 224x224x3, 8 a chunk, 4"), ["ours, remembered"]),
        ("writing", (), ["h5py_synced", "writer_blocks", "writer_rows"]),
        ("start", ("--imports",), ["from asyncreader import AsyncReader"]),
        ("store", ("--cap",), ["50 ms away"]),
        ("limits", ("--open",), ["1.28M lmdb"]),
        ("others", ("--survey",), ["AsyncReader"]),
    ],
)
def test_programs_in_miniature(
    bench: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program: str,
    words: tuple[str, ...],
    rows: list[str],
) -> None:
    """A program makes its inputs, and has figures for each of its contenders."""
    small(bench, program, tmp_path, *words)
    lines = capsys.readouterr().out.splitlines()
    for row in rows:
        (line,) = [line for line in lines if line.startswith(f"| {row} |")]
        assert "not run" not in line


@pytest.mark.slow
def test_fields_in_miniature(
    bench: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of fields.py are made, and ours and bare inflating have rates; bare inflating
    touches the chunks of a window, and no other."""
    cases = ("robot, gzip", "cells", "patches at random", "opening", "index")
    small(bench, "fields", tmp_path, *(word for case in cases for word in ("--case", case)))
    failed = [line for line in capsys.readouterr().out.splitlines() if "not run" in line]
    absent = ("robomimic", "AnnData", "scDataset", "3dunet")
    assert all(line.removeprefix("| ").startswith(absent) for line in failed)
    window, camera = bench.fields.WINDOW, bench.inputs.CAMERAS[0]
    one = bench.ours.Chunks(tmp_path / "small" / "robot_gzip.hdf5", f"data/demo_0/obs/{camera}")
    corners = one.touched((45, 45 + window))
    assert len(corners) == 2 * 4 * 4 * 3
    assert {corner[0] for corner in corners} == {0, 50}
    assert len(one.touched((0, window))) == 4 * 4 * 3


@pytest.mark.slow
@pytest.mark.parametrize("chain", ["ours", "torchvision"])
def test_a_network_learns_from_either_chain(bench: SimpleNamespace, chain: str) -> None:
    """Some steps of training.py: the classes are those of the photographs, no patch of the test is
    in the training, and the loss falls."""
    pytest.importorskip("torch", reason="the network is torch's: pip install '.[torch]'")
    if chain != "ours":
        need_torchvision()
    training = bench.training
    data = training.patches(6)
    assert set(data.train_labels) == set(data.test_labels) == set(range(data.classes))
    seen = {patch.tobytes() for patch in data.train}
    assert not any(patch.tobytes() in seen for patch in data.test)
    batches = getattr(training, f"patches_of_{chain}")
    spec = {"batch": 64, "workers": 2, "recipe": training.RECIPE}
    run = training.train_patches(batches(spec, data, 0), data, seed=0, steps=60)
    assert np.mean(run.losses[-10:]) < 0.85 * np.mean(run.losses[:3])
    assert run.accuracy > 1.5 / data.classes
