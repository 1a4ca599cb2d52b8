"""What Accelerate and Lightning do with a TorchReader on two ranks; run under torchrun by
test_torch.py.

Each rank writes a JSON file: scenario -> the samples of its batches, epoch by epoch. All pixels are
compared.
"""

import faulthandler
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from frameworks import SMALL, checked, lightning_module  # noqa: E402

from asyncreader.adapters.torch import TorchReader  # noqa: E402


def opened() -> TorchReader:
    """This rank's reader."""
    return TorchReader(SMALL, rank="auto", world_size="auto")


def accelerate() -> Any:
    """Two epochs of a DataLoaderShard."""
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderShard

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    with opened() as loader:
        shard = DataLoaderShard(loader, device=accelerator.device, batch_size=None)
        return [checked(shard) for _ in range(2)]


def lightning() -> Any:
    """Two epochs of a Trainer with DistributedDataParallel."""
    import lightning as pl

    seen: list[list[int]] = []

    with opened() as loader:
        steps = len(loader)
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        assert trainer.world_size == 2
        trainer.fit(lightning_module(seen), loader)
    return [seen[:steps], seen[steps:]]


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)  # a deadlock must leave no process behind
    torch.set_num_threads(1)
    told = {name: globals()[name]() for name in sys.argv[2:]}
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(told))
