"""The training scripts in ``tests/examples``, run as their first lines say, also killed midway."""

import ast
import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from child_processes import ALONE, child, ended
from frameworks import needs
from project import ROOT

from asyncreader.cli.main import main

EXAMPLES = ROOT / "tests" / "examples"
SAMPLES, BATCH = 352, 32
STEPS = SAMPLES // BATCH
EPOCHS = 3


def command_lines(script: str) -> list[list[str]]:
    """What a script's first lines tell people to type."""
    text = ast.get_docstring(ast.parse((EXAMPLES / script).read_text(encoding="utf-8"))) or ""
    return [line.split() for line in text.splitlines() if re.search(r"\.(h5|py) ", line)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the scripts' own commands pack: train.h5 and test.h5."""
    folder = tmp_path_factory.mktemp("examples")
    for line in command_lines("train_numpy.py")[:2]:
        assert line[:2] == ["asyncreader", "convert"]
        with pytest.raises(SystemExit) as ended:
            main(["convert", str(ROOT / line[2]), str(folder / line[3]), *line[4:], "--quiet"])
        assert not ended.value.code
    return folder


def started(
    script: str, folder: Path, *words: str, **settings: Any
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    environment = {**os.environ, **ALONE, "PYTHONPATH": str(ROOT), **settings.pop("env", {})}
    line = [sys.executable, EXAMPLES / script, "train.h5", "test.h5", *words]
    return child(line, cwd=folder, env=environment, stdout=-1, text=True, **settings)


def output(script: str, folder: Path, *words: str, **settings: Any) -> str:
    with started(script, folder, *words, **settings) as process:
        out: str = ended(process)[0]
    assert process.returncode == 0
    return out


def accuracy(out: str) -> float:
    found = re.search(r"^accuracy ([\d.]+)$", out, re.MULTILINE)
    assert found, out
    return float(found[1])


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("train_*.py")))
def test_each_says_how_it_is_run(script: str) -> None:
    """Every script begins with the three lines that run it from a checkout."""
    lines = command_lines(script)
    assert lines[:2] == command_lines("train_numpy.py")[:2]
    assert f"tests/examples/{script}" in lines[2]
    assert len(lines) == 3


@pytest.mark.slow
def test_numpy(packed: Path) -> None:
    """The numpy script names 9 of 10 held-out pictures."""
    out = output("train_numpy.py", packed)
    assert accuracy(out) >= 0.9
    assert "bottleneck" in out


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras(packed: Path, backend: str) -> None:
    """The Keras script learns on either backend."""
    needs("keras", backend)
    words = ["--epochs", "5"]
    out = output("train_keras.py", packed, *words, env={"KERAS_BACKEND": backend})
    assert accuracy(out) >= 0.6


# -- torch, killed midway --------------------------------------------------------------------------


def records(
    folder: Path, checkpoint: str, kill_after: int | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Run the torch script: what it recorded of each step, and what it printed.

    With ``kill_after`` it gets SIGKILL once so many steps are known. The pipe holds one page of
    records, so that it cannot run ahead to its end before.
    """
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    words = ["--epochs", str(EPOCHS), "--save-every", "4", "--checkpoint", checkpoint]
    words += ["--record", f"/dev/fd/{writes}"]
    seen: list[dict[str, Any]] = []
    with started("train_torch.py", folder, *words, pass_fds=(writes,)) as process:
        os.close(writes)
        with open(reads) as lines:
            for line in lines:
                if line.endswith("\n"):
                    seen.append(json.loads(line))
                if len(seen) == kill_after:
                    process.send_signal(signal.SIGKILL)
        out, _ = ended(process)
    assert process.returncode == (0 if kill_after is None else -signal.SIGKILL)
    return seen, out


def by_step(seen: list[dict[str, Any]]) -> dict[tuple[int, int], list[int]]:
    return {(entry["epoch"], entry["step"]): entry["indices"] for entry in seen}


@pytest.mark.slow
def test_torch_goes_on_after_a_kill(packed: Path) -> None:
    """Killed and started again, the torch script trains as if nothing had been.

    Steps that were done again had the same samples; each epoch serves each sample exactly once;
    and the weights are, bit for bit, those of a run that was not killed.
    """
    needs("torch")
    import torch

    whole, out = records(packed, "whole.pt")
    assert accuracy(out) > 0.3
    expected = by_step(whole)
    assert sorted(expected) == [(epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]
    for epoch in range(EPOCHS):
        served = sorted(n for step in range(STEPS) for n in expected[epoch, step])
        assert served == list(range(SAMPLES))

    before, _ = records(packed, "killed.pt", kill_after=7)
    after, out = records(packed, "killed.pt")
    assert "goes on in epoch" in out
    # it begins where the last state was saved, at most four steps before it was killed
    begins = after[0]["epoch"] * STEPS + after[0]["step"]
    assert begins > 0
    assert len(before) - 4 <= begins <= len(before)
    assert len(after) == EPOCHS * STEPS - begins
    assert by_step(before).items() <= expected.items()
    assert by_step(after).items() <= expected.items()
    assert by_step(before) | by_step(after) == expected

    one, other = (
        torch.load(packed / name, weights_only=True) for name in ("whole.pt", "killed.pt")
    )
    assert one["loader"] == other["loader"]
    assert one["model"].keys() == other["model"].keys()
    for name, weights in one["model"].items():
        assert torch.equal(weights, other["model"][name]), name
