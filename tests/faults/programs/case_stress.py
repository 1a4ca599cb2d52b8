"""The buffer contract under stress: no batch ever holds a row or a label of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fakes import packed, write_hdf5, write_lmdb

from faults.case import Case, Figures
from faults.programs.child_runner import child_runner
from faults.programs.long_use import painted

COUNT = 2000


@dataclass(frozen=True)
class Stress:
    """``rounds`` batches of pictures that spell their index, by eight workers with random pauses
    in workers and consumer; each is looked at at once, later, and some a few batches later."""

    name: str = "stress"
    row: str = "batches under stress: 8 workers, random pauses, more batches in flight"
    promise: str = "no mixed batch, no wrong label, each sample once per epoch"
    short: int = 300
    long: int = 100_000

    def run(self, rounds: int, seed: int, scratch: Path) -> Iterator[Figures]:
        """A line for each container and kind of workers; the short form tries one."""
        content = packed(painted(COUNT), labels=np.arange(COUNT)[:, None])
        sets = {
            "HDF5 raw": write_hdf5(scratch / "set.h5", content),
            "LMDB raw": write_lmdb(scratch / "set.lmdb", content),
        }
        kinds = [(name, workers) for name in sets for workers in ("thread", "process")]
        with child_runner("faults.programs.long_use") as runner:
            for name, workers in kinds[:1] if rounds <= self.short else kinds:
                end = runner.run(
                    {"patience": 60 + rounds / 20},
                    what="stress",
                    path=sets[name],
                    workers=workers,
                    batches=rounds,
                    seed=seed,
                )
                broken = list(end.report.get("found", ()))
                if end.code or end.left:
                    broken.append(f"{end.how}, left {end.left}: {end.said[-1500:]}")
                counts = {"mixed or wrong": len(broken), "right": rounds - len(broken)}
                yield Figures(f"{name}, {workers} workers", rounds, counts, tuple(broken))


CASES: tuple[Case, ...] = (Stress(),)
