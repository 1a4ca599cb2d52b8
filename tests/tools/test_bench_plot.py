"""``bench --plot``: a figure with the loader and its ceilings, or one line that says what lacks."""

from __future__ import annotations

import builtins
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fakes import packed, paint, write_hdf5

from asyncreader import SourceError
from asyncreader.cli import main as cli
from asyncreader.tools.bench import BenchReport, BenchRow
from asyncreader.tools.bench_plot import (
    BenchCeilings,
    above_disk,
    bench_ceilings,
    draw_bench,
)

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib (extra plot) is missing"
)


def report(*rates: float) -> BenchReport:
    rows = tuple(
        BenchRow(1 << number, rate, rate * 0.9, rate * 1.1, 1.0, 0.5, ())
        for number, rate in enumerate(rates)
    )
    params = {"shuffle": True}
    return BenchReport("a $x$ b.h5", 10, (8, 3, 4, 4), "uint8", 384, params, 1.0, 0.0, rows)


def test_ceilings_of_a_set(tmp_path: Path) -> None:
    """Copying for every number of threads; decoding only where something is decoded."""
    path = write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3))))
    found = bench_ceilings({"path": path, "batch_size": 8}, (1, 2), 1536, 0.01)
    assert set(found.copy) == {1, 2}
    assert all(rate > 0 for rate in found.copy.values())
    assert found.decode == {}
    assert found.disk is None or found.disk > 0


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names the command that installs it, before anything is measured."""
    real = builtins.__import__

    def without(name: str, *args: Any, **settings: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **settings)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    result = CliRunner().invoke(cli.cli, ["bench", "nowhere.h5", "--plot", str(tmp_path / "a.svg")])
    assert result.exit_code == 2
    assert "pip install -e '.[plot]'" in result.stderr
    assert result.stderr.count("\n") == 1


@needs_matplotlib
@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize("disk", [None, 900.0])
def test_figure(tmp_path: Path, suffix: str, disk: float | None) -> None:
    """The file is of its kind, and nothing is left beside it; names are text, not mathematics."""
    path = tmp_path / f"out.{suffix}"
    tops = BenchCeilings({1: 1e4, 2: 2e4}, {1: 120.0}, disk)
    draw_bench(report(100.0, 190.0), tops, str(path))
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@needs_matplotlib
@pytest.mark.parametrize(
    ("disk", "shuffle", "words"),
    [
        (None, True, None),
        (190.0, True, None),
        (150.0, True, "from memory, the page cache"),
        (150.0, "block", "from memory, the page cache, or in order from the disk"),
    ],
)
def test_a_disk_below_the_curve_is_explained(
    tmp_path: Path, disk: float | None, shuffle: Any, words: str | None, monkeypatch: Any
) -> None:
    """Where the loader is faster than reading the disk at random, figure and command say why."""
    tops = BenchCeilings({1: 1e4, 2: 2e4}, {}, disk)
    made = replace(report(100.0, 190.0), params={"shuffle": shuffle, "njob": 1})
    assert above_disk(made, tops) == words
    draw_bench(made, tops, str(tmp_path / "a.svg"))
    assert ("(the dataset came" in (tmp_path / "a.svg").read_text()) is (words is not None)
    path = write_hdf5(tmp_path / "a.h5", packed(paint(30, (8, 8, 3))))
    monkeypatch.setattr("asyncreader.tools.bench.run_bench", lambda *_, **__: made)
    monkeypatch.setattr("asyncreader.tools.bench_plot.bench_ceilings", lambda *_: tops)
    result = CliRunner().invoke(cli.cli, ["bench", path, "--plot", str(tmp_path / "b.svg")])
    assert result.exit_code == 0, result.output
    assert ("lies below the curve" in result.stdout) is (words is not None)
    assert max(map(len, result.stdout.replace(str(tmp_path), "").splitlines())) <= 80


@needs_matplotlib
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
@pytest.mark.parametrize(
    "name", ["\u732b \u0441.h5", "bad\udcff.h5", "a\nb\x1b[31m.h5", "\U00013000.h5"], ids=ascii
)
@pytest.mark.slow
def test_a_figure_of_any_name(tmp_path: Path, name: str, suffix: str) -> None:
    """Any letters, controls and bytes that are no UTF-8 may stand in a set's name: the figure is
    drawn, and nothing is warned of."""
    path = tmp_path / f"out.{suffix}"
    draw_bench(replace(report(1.0), path=name), BenchCeilings({1: 2.0}, {}, None), str(path))
    assert path.stat().st_size > 1000


@needs_matplotlib
def test_figure_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder that is not there is an error of ours."""
    with pytest.raises(SourceError, match="cannot be written"):
        draw_bench(report(1.0), BenchCeilings({1: 2.0}, {}, None), str(tmp_path / "no" / "a.svg"))


@needs_matplotlib
def test_bench_plots(tmp_path: Path) -> None:
    """The command draws what it measured; an unknown suffix is refused at once."""
    path = write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3))))
    words = ["bench", str(path), "--seconds", "0.05", "--nthread", "1,2", "--batch-size", "8"]
    result = CliRunner().invoke(cli.cli, [*words, "--plot", str(tmp_path / "a.svg")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert f"\nfigure in {tmp_path / 'a.svg'}\n" in result.stdout
    result = CliRunner().invoke(cli.cli, [*words, "--plot", str(tmp_path / "b.svg"), "--json"])
    assert json.loads(result.stdout)["plot"] == str(tmp_path / "b.svg")
    result = CliRunner().invoke(cli.cli, [*words, "--plot", str(tmp_path / "a.txt")])
    assert result.exit_code == 2
    assert ".svg, .png or .pdf" in result.stderr
