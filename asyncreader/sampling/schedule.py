"""The schedule: which positions of an epoch's order make which batch of which rank.

A *position* is an index in an epoch's global order, 0 .. length-1. Every question (resuming,
sharing an epoch among ranks) is arithmetic on positions, so no state beyond three integers exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Bools, Int64, UInt64
from ..system.checks import whole
from ..system.keyed_random import STREAM_GEOMETRY, STREAM_POSTPROCESS, key_of, mix_rows
from .samplers import Sampler, passes

#: Samples planned in one go, see PlanAhead.
PLANNED: Final = 4096

#: Epochs and steps are below this: messages between processes hold no larger number.
_FAR: Final = 1 << 63


class Cursor(NamedTuple):
    """Where an epoch stands: global position of the next batch's first row, and its number.

    A tuple, as BatchPlan is: one is made and one is compared for each batch.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0


@lru_cache(maxsize=4)  # 3 us, for each batch of an epoch the same
def _geometry_key(seed: int, epoch: int) -> int:
    return key_of(seed, STREAM_GEOMETRY, epoch)


class BatchPlan(NamedTuple):
    """One batch of one rank, before anything is read.

    ``indices``: int64 (B,), record numbers in the file, -1 where padded; ``valid``: bool (B,);
    ``padded``: whether any row is; ``start``: position of the first row in its epoch; ``after``:
    the cursor behind it. A tuple: a frozen dataclass of as many fields takes four times as long to
    make.
    """

    epoch: int
    step: int
    start: int
    last: bool
    after: Cursor
    indices: Int64
    valid: Bools
    padded: bool
    seed: int

    @property
    def keys(self) -> UInt64:
        """One random key per row, uint64 (B,), a function of (seed, epoch, position) alone."""
        return self.keys_of(0, self.indices.size)

    def keys_of(self, lo: int, hi: int) -> UInt64:
        """:attr:`keys` of the rows ``lo`` to ``hi``: most batches need none at all."""
        positions = np.arange(self.start + lo, self.start + hi, dtype=np.int64)
        return mix_rows(_geometry_key(self.seed, self.epoch), positions)

    @property
    def signed_key(self) -> int:
        """What :attr:`keys` are mixed of with the rows' positions, as an int64."""
        key = _geometry_key(self.seed, self.epoch)
        return key - (key >> 63 << 64)

    @property
    def rng_key(self) -> int:
        """The key of postprocess's generator: that of the batch's first row."""
        return key_of(self.seed, STREAM_POSTPROCESS, self.epoch, self.start)


@dataclass(frozen=True)
class Schedule:
    """The batches of one rank in a whole training run. Every method is pure.

    ``batch``: rows of this rank's batch; ``last_batch``: "drop", "pad", "wrap" or "short";
    ``lengths``: how samples of different length are cut, None where there are none.
    """

    sampler: Sampler
    batch: int = 1
    rank: int = 0
    world_size: int = 1
    last_batch: str = "drop"
    lengths: str | None = None

    @cached_property
    def length(self) -> int:
        """Samples in an epoch's order."""
        return self.sampler.length

    @cached_property
    def global_batch(self) -> int:
        """Samples of all ranks at one step."""
        return self.batch * self.world_size

    @property
    def steps(self) -> int:
        """Batches in a whole epoch."""
        return self.steps_left(0)

    def steps_left(self, position: int) -> int:
        """Batches from global ``position`` to the epoch's end."""
        left = max(0, self.length - position)
        if self.last_batch == "drop":
            return left // self.global_batch
        return -(-left // self.global_batch)

    # -- walking ---------------------------------------------------------------------------

    def next_batch_at(self, cursor: Cursor) -> Cursor:
        """The next batch's cursor: ``cursor``, or the next epoch's start if no batch is left."""
        if self.steps_left(cursor.position):
            return cursor
        return Cursor(cursor.epoch + 1, 0, 0)

    def advance(self, cursor: Cursor) -> Cursor:
        """The cursor after the batch at ``cursor``."""
        position = cursor.position + self.global_batch
        if self.steps_left(position):
            return Cursor(cursor.epoch, position, cursor.step + 1)
        return Cursor(cursor.epoch + 1, 0, 0)

    def behind(self, plan: BatchPlan) -> Cursor:
        """The cursor behind a batch; behind the last one of an epoch that epoch's end."""
        if not plan.last:
            return plan.after
        position = plan.start - self.rank * self.batch + self.global_batch
        return Cursor(plan.epoch, min(position, self.length), plan.step + 1)

    def cursor_at(self, epoch: int, step: int) -> Cursor:
        """The cursor of batch ``step`` of ``epoch``; ParamsError if there is none."""
        epoch = whole(0, _FAR)("epoch", epoch)
        step = whole(0, self.steps)(f"step, of {self.steps} in an epoch,", step)
        return Cursor(epoch, step * self.global_batch, step)

    def check(self, cursor: Cursor, what: str) -> None:
        """ParamsError if ``cursor``, that of ``what``, is no position of this schedule."""
        numbers = [cursor.epoch, cursor.position, cursor.step]
        if any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < _FAR for n in numbers):
            raise ParamsError(f"the {what}'s numbers make no sense", found=repr(numbers)[:200])
        if cursor.position > self.length:
            raise ParamsError(
                f"the {what} is past the end of its epoch",
                found=cursor.position,
                expected=f"at most {self.length} samples",
            )

    # -- batches ---------------------------------------------------------------------------

    def plan(self, cursor: Cursor, known: tuple[Int64, Bools] | None = None) -> BatchPlan:
        """This rank's batch at ``cursor``, which must have one.

        ``known``: its record numbers and valid rows, where :class:`PlanAhead` has them.
        """
        start = cursor.position + self.rank * self.batch
        padded = False
        if known is not None:
            records, valid = known
        else:
            rows = self.batch
            if self.last_batch == "short":
                rows = min(rows, self.length - start)
            positions = np.arange(start, start + rows, dtype=np.int64)
            valid = np.ones(rows, np.bool_)
            if start + rows <= self.length:
                records = self.sampler.records(cursor.epoch, positions)
            elif self.last_batch == "wrap":
                records = np.empty(rows, np.int64)
                first = cursor.epoch * self.length
                for epoch, which, inside in passes(first, self.length, positions):
                    records[which] = self.sampler.records(epoch, inside)
            else:  # "pad"
                padded = True
                valid = positions < self.length
                records = np.full(rows, -1, np.int64)
                records[valid] = self.sampler.records(cursor.epoch, positions[valid])
        after = self.advance(cursor)
        return BatchPlan(
            cursor.epoch,
            cursor.step,
            start,
            after.epoch != cursor.epoch,
            after,
            records,
            valid,
            padded,
            self.sampler.seed,
        )


#: No batch is there.
_NOWHERE: Final = Cursor(-1)


class PlanAhead:
    """Plans batch after batch: works out the record numbers of some thousand samples in one go.

    For 128 samples the calls cost ten times what the arithmetic does.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._next = _NOWHERE
        self._ahead: Iterator[tuple[Int64, Bools]] = iter(())

    def plan(self, cursor: Cursor) -> BatchPlan:
        """``schedule.plan(cursor)``."""
        schedule = self._schedule
        # what Ctrl-C stops from here on is planned anew: its row may have been taken
        expected, self._next = self._next, _NOWHERE
        # a row of a block is handed out once: the caller may write into it
        known = next(self._ahead, None) if cursor == expected else None
        if known is None:
            self._ahead = self._block(cursor)
            known = next(self._ahead, None)
        plan = schedule.plan(cursor, known)
        self._next = plan.after
        return plan

    def _block(self, cursor: Cursor) -> Iterator[tuple[Int64, Bools]]:
        """Record numbers and valid rows of the next whole batches; none for one that is not."""
        schedule = self._schedule
        whole = (schedule.length - cursor.position) // schedule.global_batch
        steps = min(whole, PLANNED // schedule.batch)
        if steps < 2:
            return iter(())
        start = cursor.position + schedule.rank * schedule.batch
        starts = np.arange(start, start + steps * schedule.global_batch, schedule.global_batch)
        positions = (starts[:, None] + np.arange(schedule.batch)).reshape(-1)
        records = schedule.sampler.records(cursor.epoch, positions).reshape(steps, schedule.batch)
        return zip(records, np.ones(records.shape, np.bool_), strict=True)
