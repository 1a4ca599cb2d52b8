"""The training script in ``tests/examples``, run as its first lines say, also killed midway."""

import ast
import fcntl
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from child_processes import ALONE, child, ended
from command_sets import run
from frameworks import needs
from project import ROOT

SCRIPT = ROOT / "tests" / "examples" / "train_torch.py"
SAMPLES, BATCH = 352, 32
STEPS = SAMPLES // BATCH
EPOCHS = 3


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the script's own commands pack: train.h5 and test.h5."""
    folder = tmp_path_factory.mktemp("examples")
    text = ast.get_docstring(ast.parse(SCRIPT.read_text(encoding="utf-8"))) or ""
    *commands, call = [line.split() for line in text.splitlines() if re.search(r"\.h5 ", line)]
    assert call[1:4] == ["tests/examples/train_torch.py", "train.h5", "test.h5"]
    for program, name, source, target, *words in commands:
        assert (program, name) == ("asyncreader", "convert")
        assert run(name, ROOT / source, folder / target, *words, "--quiet").exit_code == 0
    return folder


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
    environment = {**os.environ, **ALONE, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, SCRIPT, "train.h5", "test.h5", *words]
    with child(
        command, cwd=folder, env=environment, stdout=-1, text=True, pass_fds=(writes,)
    ) as process:
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
    found = re.search(r"^accuracy ([\d.]+)$", out, re.MULTILINE)
    assert found is not None
    assert float(found[1]) > 0.3
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
