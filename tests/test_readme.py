"""README's Python blocks run, in order, as a reader would run them."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from asyncreader.cli import main

ROOT = Path(__file__).resolve().parent.parent
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
    assert seen == [((32, 3, 224, 224), "uint8")] * 2 * steps + [((32, 3, 224, 224), "float32")] * (
        2 * steps
    )


def test_commands_run(beside_photos: Path) -> None:
    """Every asyncreader command shown in README's list of commands succeeds."""
    lines = [
        line
        for block in blocks("")
        for line in block.splitlines()
        if line.startswith("asyncreader ") and "bench" not in line
    ]
    assert len(lines) >= 6
    for line in dict.fromkeys(lines):
        if " convert " in line:
            target = line.split("#")[0].split()[3]
            if (beside_photos / target).exists():
                line = line.split("#")[0] + " --overwrite"
        assert run(line) == 0, line
    assert run("asyncreader bench train.h5 --seconds 0.05 --nthread 1,2 --batch-size 32") == 0


def test_ci_runs_the_test_command_of_readme() -> None:
    """.ci/run calls the very test command that README gives."""
    command = "pip install -e '.[test]' && pytest"
    assert f"\n{command}\n" in README
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_parameter_is_in_the_table() -> None:
    """README's table names every parameter that can be used now."""
    from asyncreader.params import ReaderParams

    later = {"workers", "cuda"}
    table = README.split("## Parameters")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_0-9]+)`", table))
    assert set(ReaderParams.__dataclass_fields__) - later <= named
