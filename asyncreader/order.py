"""The order under its former name, for the tests that still use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .keyed_random import Bools, Int64
from .sampling.blocks import Blocks
from .sampling.samplers import Replacement, Sampler, Sequential, Shuffled
from .sampling.schedule import BatchPlan, Cursor, Schedule
from .sampling.within import Within


@dataclass(frozen=True)
class EpochOrder:
    """A schedule and its sampler."""

    count: int
    seed: int = 0
    shuffle: bool | str = False
    block: int = 1
    window: int = 1
    batch: int = 1
    rank: int = 0
    world_size: int = 1
    last_batch: str = "drop"
    subset: slice | Int64 | None = None
    ends: Int64 | None = field(default=None, compare=False)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule."""
        sampler: Sampler
        if self.shuffle == "block":
            sampler = Blocks(self.count, self.seed, self.block, self.window, self.ends)
        else:
            kinds: dict[bool | str, type[Sequential | Shuffled | Replacement]]
            kinds = {False: Sequential, True: Shuffled, "replacement": Replacement}
            sampler = kinds[self.shuffle](self.count, self.seed)
        if self.subset is not None:
            sampler = Within(self.subset, sampler)
        return Schedule(sampler, self.batch, self.rank, self.world_size, self.last_batch)

    def plan(self, cursor: Cursor, known: tuple[Int64, Bools] | None = None) -> BatchPlan:
        """The schedule's batch at ``cursor``."""
        return self.schedule.plan(cursor, known)

    def __getattr__(self, name: str) -> Any:
        if name in ("records", "replacements", "_recent", "_files"):
            return getattr(self.schedule.sampler, name)
        return getattr(self.schedule, name)
