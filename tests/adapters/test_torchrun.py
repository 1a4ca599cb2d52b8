"""torchrun with 4, 2 and 3 ranks, killed and resumed: each sample is trained exactly once."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
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


def torchrun(ranks: int, *words: Any) -> int:
    """Exit code of torchrun over torchrun_worker.py."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    script = ROOT / "tests/adapters/torchrun_worker.py"
    done = run([sys.executable, *launch, script, *words], env=for_torchrun())
    assert done.returncode in (0, 1), done.stderr[-3000:]
    return done.returncode


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
