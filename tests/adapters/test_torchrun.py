"""torchrun with 4, 2 and 3 ranks, killed and resumed: each sample is trained exactly once."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from child_processes import for_torchrun, run
from project import ROOT

from asyncreader import AsyncReader
from converters import convert

pytestmark = [
    pytest.mark.machines,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


def launched(ranks: int, script: Path, *words: Any) -> subprocess.CompletedProcess[str]:
    """A script that torchrun has run."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [*launch, f"--nproc_per_node={ranks}", script, *words]
    done = run(words, env=for_torchrun())
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return done


def torchrun(ranks: int, *words: Any) -> int:
    """Exit code of torchrun over torchrun_worker.py."""
    return launched(ranks, ROOT / "tests/adapters/torchrun_worker.py", *words).returncode


def test_killed_and_resumed_with_other_ranks(tmp_path: Path) -> None:
    """A rank is killed, torchrun ends the others, and other numbers of ranks go on behind the last
    step written down: together they are the order of one process, each sample once an epoch."""
    faulthandler.cancel_dump_traceback_later()  # each run has a limit of its own
    path = tmp_path / "set"
    convert(ROOT / "sample_data" / "train", path, size=64, shards=5, encoding="jpeg")
    killed = [torchrun(4, path, tmp_path, 5, 8), torchrun(2, path, tmp_path, 9, 11)]
    assert killed == [1, 1]
    assert torchrun(3, path, tmp_path, -1, 8) == 0
    seen = json.loads((tmp_path / "state.json").read_text())["seen"]
    worlds = [world for _, world, _ in seen]
    assert worlds == sorted(worlds, key=[4, 2, 3].index)
    assert set(worlds) == {4, 2, 3}
    with AsyncReader(
        path=path, batch_size=1, shuffle="block", shuffle_window=64, seed=11, size=(16, 16)
    ) as reader:
        for epoch in range(2):
            whole = [int(batch.indices[0]) for batch in reader]
            served = [n for at, _, rows in seen if at == epoch for n in rows if n >= 0]
            assert served == whole


def test_evaluation_counts_each_sample_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation of docs/pytorch.md prints the same on one rank and on two, whose last batches
    have 23 and 48 padded rows: what plain torch finds in the 352 samples."""
    import torch

    faulthandler.cancel_dump_traceback_later()  # each run has a limit of its own
    monkeypatch.chdir(tmp_path)
    convert(ROOT / "sample_data" / "train", "train.h5", size=(224, 224))
    page = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^# evaluate_ddp\.py\n.*?(?=^```)", page, re.MULTILINE | re.DOTALL)
    Path("evaluate_ddp.py").write_text(script, encoding="utf-8")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4))
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save({"model": state}, "checkpoint.pt")
    with AsyncReader(path="train.h5", size=(32, 32), dtype="float32", scale=1 / 255) as reader:
        scores, labels = [], []
        for data, label in reader:
            scores.append(model(torch.from_numpy(data.copy())).detach())
            labels.append(int(label[0, 0]))
    found, right = torch.cat(scores), torch.tensor(labels)
    accuracy = (found.argmax(1) == right).float().mean()
    loss = torch.nn.functional.cross_entropy(found, right)
    for ranks in (1, 2):
        done = launched(ranks, tmp_path / "evaluate_ddp.py")
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout == f"accuracy {accuracy:.3f}, loss {loss:.3f}, 352 samples\n"
