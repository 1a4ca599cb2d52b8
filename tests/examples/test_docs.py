"""README's Python blocks run, in order, as a reader would run them."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tables
from fakes import pictures
from foreign_sets import caffe, pyxis_sample, write_lmdb, write_pyxis
from PIL import Image, ImageOps
from project import ROOT

import asyncreader
from asyncreader.cli.main import main

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def beside_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a picture folder ``photos`` in it, and ``masks`` of the pictures."""
    shutil.copytree(ROOT / "sample_data" / "train", tmp_path / "photos")
    for path in filter(Path.is_file, (tmp_path / "photos").rglob("*")):
        mask = (tmp_path / "masks" / path.relative_to(tmp_path / "photos")).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as picture:
            Image.new("L", ImageOps.exif_transpose(picture).size, 1).save(mask)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str) -> int:
    arguments = line.split("#")[0].split()
    assert arguments[0] == "asyncreader"
    with pytest.raises(SystemExit) as ended:
        main(arguments[1:])
    code = ended.value.code
    return int(code or 0)


def test_python_blocks_run(beside_photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of README runs, after the command that stands above the first."""
    monkeypatch.setenv("KERAS_BACKEND", "")  # a block sets it: put back at the end
    assert run("asyncreader convert photos/ train.h5 --size 224x224") == 0
    assert run("asyncreader convert photos/ masked.h5 --size 224x224 --field mask=masks/") == 0
    seen: list[tuple[tuple[int, ...], str]] = []

    def train(data: np.ndarray, labels: np.ndarray) -> None:
        assert labels.shape == (32, 1)
        seen.append((data.shape, data.dtype.name))

    namespace: dict[str, object] = {"train": train}
    found = blocks("python")
    for block in found:
        needed = re.findall(r"^import (torch|keras|jax)$", block, re.MULTILINE)
        needed += re.findall(r"""KERAS_BACKEND"] = "(\w+)""", block)
        if all(importlib.util.find_spec(name) is not None for name in needed):
            exec(compile(block, "README.md", "exec"), namespace)
    steps = 352 // 32
    assert json.loads(Path("trace.json").read_text())["traceEvents"]
    assert seen == [((32, 3, 224, 224), "uint8")] * 2 * steps + [((32, 3, 224, 224), "float32")] * (
        2 * steps
    )


def test_commands_run(beside_photos: Path) -> None:
    """Every asyncreader command shown in README's list of commands succeeds."""
    lines = [
        line
        for block in blocks("")
        for line in block.splitlines()
        if line.startswith("asyncreader ") and not re.search("bench|doctor", line)
    ]
    assert len(lines) >= 6
    for line in dict.fromkeys(lines):
        if " convert " in line:
            target = line.split("#")[0].split()[3]
            if (beside_photos / target).exists():
                line = line.split("#")[0] + " --overwrite"
        assert run(line) == 0, line
    assert run("asyncreader bench train.h5 --seconds 0.05 --nthread 1,2 --batch-size 32") == 0
    assert run("asyncreader doctor train.h5 --consumer-ms 35 --seconds 1 --batch-size 32") == 0
    if importlib.util.find_spec("matplotlib") is not None:
        assert run("asyncreader bench train.h5 --plot speed.svg --seconds 0.05 --nthread 1") == 0
        assert Path("speed.svg").stat().st_size > 0


def test_the_contact_sheet_is_what_its_command_draws(beside_photos: Path) -> None:
    """README's contact sheet is small, and the command above it draws it again."""
    (line,) = re.findall(r"^asyncreader preview .* --output batch\.png$", README, re.MULTILINE)
    committed = ROOT / "tests" / "examples" / "batch.png"
    assert f"]({committed.relative_to(ROOT)})" in README
    assert committed.stat().st_size < 150_000
    assert run("asyncreader convert photos/ train.h5 --size 224x224 --quiet") == 0
    assert run(line) == 0
    with Image.open("batch.png") as drawn, Image.open(committed) as shown:
        assert drawn.size == shown.size
        # decoders and fonts may differ a little between versions
        apart = np.asarray(drawn, int) - np.asarray(shown, int)
        assert abs(apart).mean() < 2


def test_what_is_written_here_works(beside_photos: Path) -> None:
    """The readers in the table for those who come from another loader open and serve a batch."""
    pytest.importorskip("msgpack", reason="ml-pyxis' sets need msgpack: pip install '.[pyxis]'")
    images = list(pictures(64, (256, 256, 3)))
    write_lmdb(Path("train_lmdb"), caffe(images, range(64)))
    write_pyxis(Path("samples"), [pyxis_sample({"x": x, "y": np.int64(3)}) for x in images])
    names: dict[str, Any] = {"AsyncReader": asyncreader.AsyncReader}
    if importlib.util.find_spec("torch") is not None:
        from asyncreader.adapters.torch import TorchReader

        names["TorchReader"] = TorchReader
    table = README.split("Coming from a loader of today")[1].split("\n## ")[0]
    rows = [row.split(" | ")[2] for row in table.splitlines() if row.startswith("| ")][1:]
    shapes = []
    for cell in rows:
        for code in re.findall(r"`([^`]+)`", cell):
            if code.startswith("asyncreader "):
                assert run(f"{code} --overwrite --quiet") == 0
            elif code.split("(")[0] in names:
                with eval(code, names) as reader:
                    data, labels = next(iter(reader))
                    shapes.append((tuple(data.shape), len(labels)))
    tensors = [((32, 3, 224, 224), 32)] * ("TorchReader" in names)
    assert shapes == [
        *tensors,
        ((32, 3, 224, 224), 32),
        ((64, 3, 227, 227), 64),
        ((32, 3, 256, 256), 32),
    ]


def test_extras_are_installed_from_the_checkout() -> None:
    """README, errors and skipped tests say how to install an extra of this checkout, which exists:
    no package of this name is on an index.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    folders = [ROOT / name for name in ("asyncreader", "converters", "tests")]
    files = [ROOT / "README.md", *(path for folder in folders for path in folder.rglob("*.py"))]
    said = [
        (path.name, target, extra)
        for path in files
        for target, names in re.findall(
            r"pip install (?:-e )?'([^'\[]*)\[([^']*)\]'", path.read_text("utf-8").replace("\\", "")
        )
        for extra in names.split(",")
    ]
    wrong = [one for one in said if one[1] != "." or (one[2] not in extras and "{" not in one[2])]
    assert wrong == []
    assert len(said) > 10


def test_a_virtual_environment_is_made_before_the_first_command() -> None:
    """A system Python that refuses pip gets the one line that helps, before pip is called."""
    assert README.index("python3 -m venv") < README.index("pip install -e . && asyncreader demo")


def test_ci_runs_the_test_command_of_readme() -> None:
    """.ci/run calls the very test command that README gives."""
    command = "pip install -e '.[test]' && pytest"
    assert f"\n{command}\n" in README
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "mark"), tables.TABLES)
def test_tables_follow_from_the_declarations(page: str, mark: str) -> None:
    """A table is what the declarations say; ``python tests/support/tables.py`` writes it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == tables.rewritten(page, mark, tables.TABLES[page, mark])
    for name in tables.TABLES[page, mark]:
        assert f"\n| `{name}` |" in text


@pytest.mark.parametrize(("page", "mark"), tables.TEXTS)
def test_pages_follow_from_the_code(page: str, mark: str) -> None:
    """The layouts, in the order in which they are tried, and the commands are on their pages as the
    code says; ``python tests/support/tables.py`` writes them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == tables.placed(page, mark, tables.TEXTS[page, mark]())
