"""The benchmark in miniature: its inputs, its players' protocol, its ratios and its figure."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from fakes import packed, paint, write_hdf5

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def run() -> ModuleType:
    """tests/benchmarks/run.py as a module."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("run", FOLDER / "run.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["run"] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def test_inputs_are_cut_from_photographs(run: ModuleType) -> None:
    """Crops have the shape asked for, differ from each other, and repeat with their seed."""
    once = list(run.inputs.crops(3, 37, 50, seed=1))
    again = list(run.inputs.crops(3, 37, 50, seed=1))
    assert [piece.shape for piece in once] == [(37, 50, 3)] * 3
    assert all((a == b).all() for a, b in zip(once, again, strict=True))
    assert (once[0] != once[1]).any()


def test_players_take_turns(run: ModuleType, tmp_path: Path) -> None:
    """Ours and a bare copy run side by side; a contender that cannot start is told, not fatal."""
    path = write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3))))
    case = run.Case(
        "tiny",
        [
            run.Contender("ours HDF5", "ours", {"params": {"path": path}}),
            run.Contender("memcpy", "memcpy", {"row_bytes": 192}),
            run.Contender("absent", "ours", {"params": {"path": str(tmp_path / "none.h5")}}),
        ],
        [run.Goal("ours HDF5", "memcpy", 0.0001), run.Goal("ours HDF5", "absent", 1.0)],
    )
    run.run_case(case, rounds=3, seconds=0.02)
    (told,) = run.report([case])
    assert [row["name"] for row in told["contenders"]] == ["ours HDF5", "memcpy"]
    assert all(len(row["rates"]) == 3 and row["median"] > 0 for row in told["contenders"])
    assert [goal["other"] for goal in told["goals"]] == ["memcpy"]
    assert "no such file" in case.contenders[2].failure


def test_ratios_are_of_the_same_round(run: ModuleType) -> None:
    """A drift of the machine's speed does not show in a ratio."""
    a = run.Contender("a", "ours", {}, rates=[1.0, 10.0, 100.0])
    b = run.Contender("b", "ours", {}, rates=[2.0, 20.0, 200.0])
    assert run.ratio(run.Case("", [a, b], []), run.Goal("a", "b", 1.0)) == 0.5
    assert np.median(a.rates) / np.median(b.rates) == 0.5


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
    assert set(scale.PARTS) == {"batch", "reader", "ranks", "elastic", "chunks", "window"}
    assert all(f"``{name}``" in scale.__doc__ for name in scale.PARTS)
