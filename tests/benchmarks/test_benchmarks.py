"""The benchmark in miniature: inputs, windows, modes, ratios, tables, and another revision."""

from __future__ import annotations

import importlib
import importlib.util
import os
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


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    """The modules of tests/benchmarks."""
    sys.path.insert(0, str(FOLDER))
    try:
        names = ("inputs", "cases", "rivals", "players", "run")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.slow
def test_inputs_are_cut_from_photographs(bench: SimpleNamespace) -> None:
    """Crops have the shape asked for, differ from each other, and repeat with their seed."""
    once = list(bench.inputs.crops(3, 37, 50, seed=1))
    again = list(bench.inputs.crops(3, 37, 50, seed=1))
    assert [piece.shape for piece in once] == [(37, 50, 3)] * 3
    assert all((a == b).all() for a, b in zip(once, again, strict=True))
    assert (once[0] != once[1]).any()


@pytest.mark.slow
def test_contenders_alternate_and_both_modes_are_told(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    """Each mode of a contender has its own rates; one that cannot start is told, not fatal."""
    path = write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3))))
    cases = bench.cases
    case = cases.Case(
        "tiny",
        [
            cases.ours("ours HDF5", path),
            cases.limit("memcpy", "memcpy", row_bytes=192),
            cases.ours("absent", str(tmp_path / "none.h5")),
        ],
        [cases.Goal("ours HDF5", "memcpy", 1e-6), cases.Goal("ours HDF5", "absent", 1.0)],
        cases.Setting(batch=64, workers=1, consumer="sum"),
        count=300,
    )
    bench.run.run_case(case, rounds=2, seconds=0.02)
    told = bench.run.told(case)
    ours, memcpy, absent = told["contenders"]
    assert {mode: len(found["rates"]) for mode, found in ours["modes"].items()} == {
        "epochs": 2,
        "fastest": 2,
    }
    assert ours["median"] == max(found["median"] for found in ours["modes"].values())
    assert list(memcpy["modes"]) == ["fastest"]
    assert [goal["other"] for goal in told["goals"]] == ["memcpy"]
    assert "no such file" in absent["failures"]["epochs"]
    table = bench.run.markdown(told)
    assert "batch 64, 1 worker(s), each batch read once" in table
    assert "| absent | - | - | - | - | not run: " in table


def test_ratios_are_of_the_same_round_and_of_the_better_modes(bench: SimpleNamespace) -> None:
    """A drift of the machine's speed does not show in a ratio, nor does a rival's slower mode."""
    cases = bench.cases
    a = cases.Contender("a", "ours", {}, rates={"epochs": [1.0, 10.0, 100.0]})
    b = cases.Contender("b", "ffcv", {})
    case, goal = cases.Case("", [a, b], []), cases.Goal("a", "b")
    assert bench.run.ratio(case, goal) is None
    b.rates = {"epochs": [1.0, 10.0, 100.0], "fastest": [2.0, 20.0, 200.0]}
    assert bench.run.ratio(case, goal) == 0.5
    assert bench.run.ratio(case, cases.Goal("a", "b", mode="epochs")) == 1.0


def test_a_window_ends_by_samples_or_seconds(bench: SimpleNamespace) -> None:
    """It holds the samples asked for and a fifth of the seconds, or all of the seconds."""
    enough = bench.players.enough
    assert enough(5.0, 1000, 1000, 1.0)
    assert not enough(5.0, 1000, 1000, 0.9)
    assert not enough(5.0, 1000, 999, 4.9)
    assert enough(5.0, 1000, 0, 5.0)
    assert not enough(5.0, 0, 10**9, 4.9)


def test_an_order_is_renewed_between_windows_and_never_inside(bench: SimpleNamespace) -> None:
    """A long index array that is half used is replaced before a window; its end in one is fatal."""

    class Epoch:
        def __init__(self) -> None:
            self.closed, self.rows = False, iter([(np.zeros(4, np.uint8), None)] * 40)

        def __next__(self) -> Any:
            return next(self.rows)

        def close(self) -> None:
            self.closed = True

    made: list[Epoch] = []

    class Loader:
        def __len__(self) -> int:
            return 40

        def __iter__(self) -> Epoch:
            made.append(Epoch())
            return made[-1]

    ffcv = object.__new__(bench.rivals.Ffcv)
    ffcv.long, ffcv.left, ffcv.batches, ffcv.loader = True, 0, None, Loader()
    batches = iter(ffcv)
    ffcv.renew()
    for _ in range(20):
        next(batches)
    ffcv.renew()
    assert [epoch.closed for epoch in made] == [False]
    next(batches)
    ffcv.renew()
    assert [epoch.closed for epoch in made] == [True, False]
    with pytest.raises(bench.rivals.EndInsideError):
        list(batches)


def test_a_batch_is_read_once_where_it_lies(bench: SimpleNamespace) -> None:
    """The consumer sums a batch without a copy, whatever its axes, dtype and size are."""
    data = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    expected = int(data.reshape(-1).view(np.uint64).sum())
    assert np.shares_memory(bench.players.pixels_of(data.transpose(0, 3, 1, 2)), data)
    assert bench.players.read_once(data.transpose(0, 3, 1, 2)) == expected
    assert bench.players.read_once(np.ones(9, np.uint8)) == 0x0101010101010101
    assert bench.players.read_once(np.ones(3, np.float32)) == 0x3F8000003F800000


@pytest.mark.parametrize("mode", ["epochs", "fastest"])
def test_a_dataloader_keeps_its_workers(bench: SimpleNamespace, mode: str) -> None:
    """In both modes the same worker processes serve one epoch after the other."""
    pytest.importorskip("torch", reason="DataLoader is torch's: pip install '.[torch]'")

    class Rows:
        shape = (1,)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return np.array([os.getpid()]), 0

        def rows(self, numbers: list[int], out: np.ndarray) -> np.ndarray:
            out[:, 0] = os.getpid() % 256
            return np.zeros(len(numbers), np.int64)

    spec = {"mode": mode, "batch": 2, "count": 8, "workers": 1}
    batches = bench.rivals.torch_batches(spec, Rows())
    assert len({int(row) for _ in range(12) for row in next(batches)[:, 0]}) == 1
    batches.close()


@pytest.mark.slow
def test_another_revision_runs_from_a_tree_of_its_own(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    """``--against`` measures the code of the revision named, and refuses to take any other."""
    if not (ROOT / ".git").exists():
        pytest.skip("the tests do not lie in a git checkout")
    path = write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3))))
    case = bench.cases.Case("tiny", [bench.cases.ours("ours", path)], [])
    with bench.run.worktree("HEAD") as tree:
        pair = bench.cases.of_two_trees(case, str(ROOT), tree, "HEAD")
        bench.run.run_case(pair, rounds=1, seconds=0.02)
        assert (Path(tree) / "asyncreader").is_dir()
    assert not Path(tree).exists()
    assert [one.failures for one in pair.contenders] == [{}, {}]
    (goal,) = bench.run.told(pair)["goals"]
    assert (goal["ours"], goal["other"]) == ("ours", "ours at HEAD")
    with pytest.raises(RuntimeError, match="asyncreader came from"):
        bench.players.reader_of({"tree": str(tmp_path)})


def test_scale_in_miniature() -> None:
    """The simulations of scale.py run, and find what they look for."""
    spec = importlib.util.spec_from_file_location("scale", FOLDER / "scale.py")
    assert spec is not None
    assert spec.loader is not None
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    with scale.open_virtual(10**11, 1000, batch_size=64, shuffle="block") as reader:
        for _ in range(3):
            reader.fetchData()
            batch = reader.getNextBatch()
            assert np.unique(batch.indices).size == 64
            assert batch.labels is not None
    assert set(scale.PARTS) == {
        *("batch", "draws", "reader", "ranks", "elastic", "chunks", "window"),
    }
    assert all(f"``{name}``" in scale.__doc__ for name in scale.PARTS)


def test_samples_by_number_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """by_number.py compares what it reads with h5py, and has a line for each way to ask."""
    monkeypatch.syspath_prepend(FOLDER)
    by_number = importlib.import_module("by_number")
    rows = np.arange(1024 * 16, dtype=np.float32).reshape(1024, 16)
    cases = {
        "plain": (None, {}, lambda: rows),
        "few, shuffle": (8, {"shuffle": True}, lambda: rows),
    }
    monkeypatch.setattr(by_number, "CASES", cases)
    found = {}
    for name, (chunk, _, _) in cases.items():
        path = by_number.written(tmp_path, name)
        found[name] = [line.split(" | ")[0] for line in by_number.measure(path, chunk, 1, None)]
    each = ["| 1 of a chunk", "| 2 of a chunk", "| 4 of a chunk", "| in sequence"]
    assert found == {"plain": ["| any rows"], "few, shuffle": each}


def test_writing_in_miniature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """writing.py checks what each way has written, and has a line for each."""
    monkeypatch.syspath_prepend(FOLDER)
    writing = importlib.import_module("writing")
    writing.main([str(tmp_path / "made"), "--rounds", "2", "--rows", "300"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[2]) for line in lines] == [
        *((str(300), name) for name in ("h5py_blocks", "h5py_synced", "writer_blocks")),
        *((str(30), name) for name in ("h5py_rows", "writer_rows")),
    ]
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.slow
def test_fields_in_miniature(
    bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of fields.py are made, and ours and bare inflating have rates; bare inflating
    touches the chunks of a window, and no other."""
    monkeypatch.syspath_prepend(FOLDER)
    fields = importlib.import_module("fields")
    small = {"EPISODES": 6, "STEPS": 60, "JETS": 2000, "GROUPS": 30, "CELLS": 200, "GENES": 500}
    small["LONG"] = 1000
    for name, value in small.items():
        monkeypatch.setattr(fields, name, value)
    for module in (fields, importlib.import_module("inputs")):
        monkeypatch.setattr(module, "VOLUME", (70, 100, 96))
    monkeypatch.setattr(fields, "installed", lambda name: False)
    monkeypatch.setattr(fields, "crops", lambda *size, **_: np.zeros((2, *size[1:], 3), np.uint8))
    options = SimpleNamespace(workers=1, rounds=1, seconds=0.05)
    for part, least in {"robot": 5, "cells": 3, "jets": 4, "patches": 6, "opening": 2}.items():
        rows = list(fields.PARTS[part](tmp_path, options))
        rates = [value for row in rows for key, value in row.items() if key == "samples/s"]
        assert all(rate > 0 for rate in rates)
        assert sum("contender" in row for row in rows) >= least
        assert f"{part}" in fields.__doc__
    rows = list(fields.index(tmp_path, options))
    assert [row["rows"] for row in rows if "rows" in row] == ["1,000", "10,000", "30,000"]
    assert all(row["us a batch"] > 0 for row in rows if "contender" in row)
    one = fields.BareChunks(tmp_path / "robot_gzip.hdf5", f"data/demo_0/obs/{fields.CAMERAS[0]}")
    corners = one.touched((45, 45 + fields.WINDOW))
    assert len(corners) == 2 * 4 * 4 * 3
    assert {corner[0] for corner in corners} == {0, 50}
    assert len(one.touched((0, fields.WINDOW))) == 4 * 4 * 3


@pytest.mark.slow
@pytest.mark.parametrize("chain", ["ours", "torchvision v2"])
def test_a_network_learns_from_either_chain(chain: str) -> None:
    """Some steps of train_recipes.py: the classes are those of the photographs, no patch of the
    test is in the training, and the loss falls."""
    pytest.importorskip("torch", reason="the network is torch's: pip install '.[torch]'")
    if chain != "ours":
        need_torchvision()
    sys.path.insert(0, str(FOLDER))
    try:
        training = importlib.import_module("train_recipes")
    finally:
        sys.path.remove(str(FOLDER))
    data = training.patches(training.photographs()[:6])
    assert set(data.train_labels) == set(data.test_labels) == set(range(data.classes))
    seen = {patch.tobytes() for patch in data.train}
    assert not any(patch.tobytes() in seen for patch in data.test)
    run = training.train(chain, data, seed=0, steps=60)
    assert np.mean(run.losses[-10:]) < 0.85 * np.mean(run.losses[:3])
    assert run.accuracy > 1.5 / data.classes


def test_recipes_are_cases_with_ratios(bench: SimpleNamespace, tmp_path: Path) -> None:
    """Each ratio of ``--recipes`` is of contenders that its case has, with parameters that a reader
    takes."""
    made = dict.fromkeys(("raw32.h5", "raw256", "jpeg", "jpeg.restarts"), "/none")
    for name in ("a.h5", "b.h5"):
        (tmp_path / name).touch()
    found = bench.cases.recipes({**made, "raw32.halves": str(tmp_path)}, bench.cases.Pythons())
    assert len(found) == 4
    for case in found:
        names = [one.name for one in case.contenders]
        assert {goal.ours for goal in case.goals} | {goal.other for goal in case.goals} <= set(
            names
        )
        for one in case.contenders:
            assert one.modes == (bench.cases.FASTEST,)
            if one.kind == "ours":
                parse_params(one.spec["params"], {"batch_size": 128})


@pytest.mark.slow
def test_the_survey_runs_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """others.py makes the survey's pictures, packs them, and prints a row for AsyncReader."""
    sys.path.insert(0, str(FOLDER))
    try:
        others = importlib.import_module("others")
    finally:
        sys.path.remove(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = ["--count", "64", "--rounds", "1", "--only", "AsyncReader"]
    monkeypatch.setattr(sys, "argv", ["others.py", "survey", str(tmp_path), *options])
    others.main()
    assert "| AsyncReader |" in capsys.readouterr().out
    assert len(list(tmp_path.rglob("*.jpg"))) == 64
