"""One rank of a training that may be killed at any moment: run under torchrun by test_torchrun.py.

Each step is written down by rank 0 with the reader's state, in one file that is renamed into place:
what it says was trained was trained, and training goes on behind it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from asyncreader.adapters.torch import TorchReader


def note(place: Path, seen: list[Any], state: dict[str, Any]) -> None:
    """The steps so far and the state behind them, as one."""
    part = place.with_suffix(".part")
    with open(part, "w") as file:
        json.dump({"seen": seen, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(place)


def main(path: str, folder: str, kill_at: int, batch: int) -> None:
    """Train to the end of two epochs; rank 1 kills itself before step ``kill_at`` of this run."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 4))
    )
    optimiser = torch.optim.SGD(model.parameters(), 0.01)
    loader = TorchReader(
        path=path, batch_size=batch, shuffle="block", shuffle_window=64, seed=11, size=(16, 16),
        dtype="float32", scale=1 / 255, epochs=2, last_batch="pad", rank="auto", world_size="auto",
    )  # fmt: skip
    place = Path(folder) / "state.json"
    seen: list[Any] = []
    if place.exists():
        held = json.loads(place.read_text())
        seen = held["seen"]
        loader.load_state_dict(held["state"])
    here = 0
    for _ in range(2):  # of the epoch that was resumed there may be nothing left
        for images, labels in loader:
            assert loader.last is not None
            if rank == 1 and here == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            loss.backward()  # gloo: waits for all ranks
            optimiser.step()
            rows = torch.from_numpy(loader.last.indices.copy())
            joined = [torch.empty_like(rows) for _ in range(world)]
            dist.all_gather(joined, rows)
            seen.append([loader.last.epoch, world, torch.cat(joined).tolist()])
            if rank == 0:
                note(place, seen, loader.state_dict())
            here += 1
    loader.close()
    # A rank that exits right after a collective of gloo may abort: torch leaves the threads of a
    # group that DistributedDataParallel used running, and they need the interpreter once more
    # (https://github.com/pytorch/pytorch/pull/179291).
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
