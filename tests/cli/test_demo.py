"""``asyncreader demo``: what it says, and when it fails."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from command_sets import run
from project import ROOT

import asyncreader
import asyncreader.tools.demo


@pytest.mark.parametrize(("score", "code"), [(0.95, 0), (0.9, 0), (0.89, 1)])
def test_demo_fails_below_its_bar(score: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """demo trains on the pictures that come with the package or lie in the checkout, prints what
    it is told, and fails below 0.9.
    """
    folders: list[Path] = []

    def fake(folder: Path, echo: Any) -> float:
        folders.append(folder)
        echo("a line")
        return score

    monkeypatch.setattr(asyncreader.tools.demo, "run_demo", fake)
    result = run("demo")
    assert (result.exit_code, result.stdout) == (code, "a line\n")
    assert result.stderr == (
        f"error: held-out accuracy {score:.3f}, expected at least 0.9\n"
        if code
        else "next: asyncreader convert YOUR_IMAGES/ train.h5 --size 224x224\n"
    )
    assert run("demo", "--sample-data", "elsewhere").exit_code == code
    packed_in = Path(asyncreader.__file__).parent / "sample_data"
    pictures = packed_in if packed_in.exists() else ROOT / "sample_data"
    assert folders == [pictures, Path("elsewhere")]


@pytest.mark.slow
def test_demo_says_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """demo says which of its parts begins and what it does next, in lines of at most 80 columns,
    and stops when it has converged: long before its most epochs, with every picture named right."""
    monkeypatch.setattr(asyncreader.tools.demo, "EVERY", 1)
    result = run("demo")
    lines = result.stdout.splitlines()
    assert (result.exit_code, max(map(len, lines)) <= 80) == (0, True)
    assert [line for line in lines if " of 2: " in line] == [
        "1 of 2: convert the images to HDF5, then train on them",
        "2 of 2: convert the images to LMDB, then train on them",
    ]
    for kind in ("h5  ", "lmdb"):
        mine = [line for line in lines if line.startswith(f"{kind} ")]
        assert mine[0].startswith(f"{kind} 352 images to train on, 112 held out, converted in")
        assert mine[1] == (
            f"{kind} now a small network learns 4 classes, 24 epochs at most; wait: for data"
        )
        epochs = [int(part) for part in re.findall(r"epoch +(\d+)/24 ", "\n".join(mine))]
        assert epochs == list(range(1, len(epochs) + 1))
        assert len(epochs) < 20
        assert mine[-2] == f"{kind} converged, the loss is below 0.05 after {len(epochs)} epochs"
    assert lines[-2:] == ["h5   held-out accuracy 1.000", "lmdb held-out accuracy 1.000"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["robot", "cells", "volumes"])
def test_demo_of_other_fields(kind: str, tmp_path: Path) -> None:
    """demo --kind makes its set, the same one every time and of at most 5 MB, and learns it, in
    lines of at most 80 columns."""
    make = getattr(asyncreader.tools.demo, f"make_{kind}")
    for name in ("a.h5", "b.h5"):
        make(tmp_path / name)
    assert (tmp_path / "a.h5").stat().st_size < 5_000_000
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    result = run("demo", "--kind", kind)
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert re.search(r"(R\^2|accuracy|Dice) (0\.9\d\d|1\.000)$", result.stdout)


def test_demo_of_other_fields_fails_below_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does --kind; pictures of one's own are for the other demo."""
    monkeypatch.setattr(asyncreader.tools.demo, "run_kind", lambda kind, echo: 0.5)
    result = run("demo", "--kind", "cells")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: held-out figure of cells 0.500, expected at least 0.9\n",
    )
    assert run("demo", "--kind", "cells", "--sample-data", "x").exit_code == 2


def test_demo_without_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no pictures came along, the error says how to name some."""
    place = tmp_path / "asyncreader" / "cli" / "convert.py"
    monkeypatch.setattr(sys.modules["asyncreader.cli.convert"], "__file__", str(place))
    result = run("demo")
    assert result.exit_code == 1
    assert re.fullmatch(r"error: [^\n]+ --sample-data DIR\n", result.stderr)
