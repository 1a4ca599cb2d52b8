"""Which sample comes when: pure functions of (seed, epoch, position), O(1) memory, no I/O.

A *position* is an index in an epoch's global order, 0 .. count-1. Every question (shuffle, resume,
sharding over ranks) is arithmetic on positions, so no state beyond three integers exists.

The full shuffle is a keyed bijection on 0..N-1: an alternating Feistel network over the smallest
power of two >= N, with cycle walking (Black & Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). Its round function is the finaliser of SplitMix64 (Steele, Lea & Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .keyed_random import key_of, mix_rows, scale_rows
from .pixels import kernels

#: Part of a saved state: another version means another order, and the state is refused.
ORDER_VERSION: Final = 2

ROUNDS: Final = 8
#: Permutations of at most so many numbers are tables.
TABLE: Final = 256

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

# Streams keep draws for different purposes independent of each other.
STREAM_SAMPLE: Final = 1
STREAM_BLOCK: Final = 2
STREAM_WINDOW: Final = 3
STREAM_TAIL: Final = 4
STREAM_REPLACEMENT: Final = 5
STREAM_GEOMETRY: Final = 6
STREAM_POSTPROCESS: Final = 7
STREAM_BAD_SAMPLE: Final = 8
STREAM_SHARD: Final = 9

#: Samples planned in one go, see PlanAhead.
PLANNED: Final = 4096

#: Files whose blocks are mixed with each other by shuffle="block", at least: see files_together.
FILES_TOGETHER: Final = 16


@dataclass(frozen=True)
class Permutation:
    """A keyed bijection on 0 .. count-1, evaluated anywhere in O(1) time and memory.

    A Feistel network mixes few bits badly: of 5 numbers it draws some orders twice as often as
    others. Up to ``TABLE`` numbers are sorted by random keys instead, all orders alike.
    """

    count: int
    key: int

    def __post_init__(self) -> None:
        if self.count <= TABLE:
            table = np.argsort(mix_rows(self.key, np.arange(self.count)), kind="stable")
            object.__setattr__(self, "_table", table.astype(np.int64, copy=False))
            return
        bits = max(1, (self.count - 1).bit_length())
        object.__setattr__(self, "_left", bits // 2)
        object.__setattr__(self, "_right", bits - bits // 2)
        keys = np.array([key_of(self.key, r) for r in range(ROUNDS)], dtype=np.uint64)
        object.__setattr__(self, "_keys", keys)

    def __call__(self, positions: Int64) -> Int64:
        """Images of ``positions`` (int64, each in 0 .. count-1), in a new array."""
        if self.count <= TABLE:
            small: Int64 = self._table[positions]  # type: ignore[attr-defined]
            return small
        out = np.empty(positions.shape, np.int64)
        kernels.feistel_rows(
            np.ascontiguousarray(positions),
            self.count,
            self._left,  # type: ignore[attr-defined]
            self._right,  # type: ignore[attr-defined]
            self._keys,  # type: ignore[attr-defined]
            out,
        )
        return out


@lru_cache(maxsize=64)
def permutation(count: int, *key_parts: int) -> Permutation:
    """The permutation of ``count`` keyed by ``key_parts``; the last few are remembered."""
    return Permutation(count, key_of(*key_parts))


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where an epoch stands: global position of the next batch's first row, and its number."""

    epoch: int = 0
    position: int = 0
    step: int = 0


class BatchPlan(NamedTuple):
    """One batch of one rank, before anything is read.

    ``indices``: int64 (B,), record numbers in the file, -1 where padded; ``valid``: bool (B,);
    ``padded``: whether any row is; ``start``: position of the first row in its epoch; ``after``:
    the cursor behind it. A tuple, since one is made for each batch: a frozen dataclass of as many
    fields takes four times as long.
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
        return mix_rows(key_of(self.seed, STREAM_GEOMETRY, self.epoch), positions)

    @property
    def rng_key(self) -> int:
        """The key of postprocess's generator: that of the batch's first row."""
        return key_of(self.seed, STREAM_POSTPROCESS, self.epoch, self.start)


@dataclass(frozen=True)
class EpochOrder:
    """The order of a whole training run. Every method is pure.

    ``count``: samples in the (sub)set; ``shuffle``: False, True, "block" or "replacement";
    ``block`` and ``window``: samples, used by "block" only; ``batch``: rows of this rank's batch.
    ``ends``: int64, where each of several files ends: no block reaches across, and "block" shuffle
    goes from one few of the files to the next. It costs tables of that length, two epochs' worth.
    """

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

    @property
    def global_batch(self) -> int:
        """Samples of all ranks at one step."""
        return self.batch * self.world_size

    @property
    def steps(self) -> int:
        """Batches in a whole epoch."""
        return self.steps_left(0)

    def steps_left(self, position: int) -> int:
        """Batches from global ``position`` to the epoch's end."""
        left = max(0, self.count - position)
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
                rows = min(rows, self.count - start)
            positions = np.arange(start, start + rows, dtype=np.int64)
            valid = np.ones(rows, np.bool_)
            if start + rows <= self.count:
                records = self.records(cursor.epoch, positions)
            elif self.last_batch == "wrap":
                records = np.empty(rows, np.int64)
                for ahead in range(start // self.count, (start + rows - 1) // self.count + 1):
                    part = positions // self.count == ahead
                    records[part] = self.records(
                        cursor.epoch + ahead, positions[part] - ahead * self.count
                    )
            else:  # "pad"
                padded = True
                valid = positions < self.count
                records = np.full(rows, -1, np.int64)
                records[valid] = self.records(cursor.epoch, positions[valid])
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
            self.seed,
        )

    # -- positions to records --------------------------------------------------------------

    def records(self, epoch: int, positions: Int64) -> Int64:
        """Record numbers in the file at ``positions`` (each in 0 .. count-1) of ``epoch``."""
        return self._in_file(self._in_subset(epoch, positions))

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        """Record numbers of the replacement samples to try for a bad one, in order."""
        key = key_of(self.seed, STREAM_BAD_SAMPLE, epoch, position)
        draws = mix_rows(key, np.arange(attempts, dtype=np.int64))
        return self._in_file(scale_rows(draws, self.count))

    def _in_file(self, numbers: Int64) -> Int64:
        if self.subset is None:
            return numbers
        if isinstance(self.subset, slice):
            strided: Int64 = numbers * (self.subset.step or 1) + self.subset.start
            return strided
        taken: Int64 = self.subset[numbers]
        return taken

    def _in_subset(self, epoch: int, positions: Int64) -> Int64:
        if self.shuffle is False:
            return positions
        if self.shuffle is True:
            return permutation(self.count, self.seed, STREAM_SAMPLE, epoch)(positions)
        if self.shuffle == "replacement":
            draws = mix_rows(key_of(self.seed, STREAM_REPLACEMENT, epoch), positions)
            return scale_rows(draws, self.count)
        return self._block_order(epoch, positions)

    def _block_order(self, epoch: int, positions: Int64) -> Int64:
        """Blocks in random order, then samples mixed inside windows of that sequence.

        The last block may be short; a keyed draw says after how many whole blocks it comes, so
        that the whole ones can be permuted among themselves and all stays arithmetic.
        """
        # 1. mix within the window
        window = min(self.window, self.count)
        mixed = np.empty_like(positions)
        which = positions // window
        for number in np.unique(which):
            part = which == number
            base = int(number) * window
            size = min(window, self.count - base)
            shuffled = permutation(size, self.seed, STREAM_WINDOW, epoch, int(number))
            mixed[part] = shuffled(positions[part] - base) + base
        # 2. position in the block sequence -> record
        if self.ends is not None and self.ends.size > 1:
            return self._files(epoch).records(mixed)
        whole, tail = divmod(self.count, self.block)
        if whole == 0:
            return mixed
        order = permutation(whole, self.seed, STREAM_BLOCK, epoch)
        if tail == 0:
            return order(mixed // self.block) * self.block + mixed % self.block
        before = key_of(self.seed, STREAM_TAIL, epoch) % (whole + 1)
        edge = before * self.block
        in_tail = (mixed >= edge) & (mixed < edge + tail)
        shifted = np.where(mixed >= edge + tail, mixed - tail, mixed)
        index = np.minimum(shifted // self.block, whole - 1)
        records = order(index) * self.block + shifted % self.block
        merged: Int64 = np.where(in_tail, whole * self.block + (mixed - edge), records)
        return merged

    @cached_property
    def _recent(self) -> dict[int, FileOrder]:
        return {}

    def _files(self, epoch: int) -> FileOrder:
        """The order of files in ``epoch``; that of the last two asked for is kept."""
        found = self._recent.get(epoch)
        if found is None:
            assert self.ends is not None
            found = FileOrder(self.ends, self.block, self.window, self.seed, epoch)
            while len(self._recent) > 1:
                del self._recent[next(iter(self._recent))]
            self._recent[epoch] = found
        return found


#: No batch is there.
_NOWHERE: Final = Cursor(-1)


class PlanAhead:
    """Plans batch after batch: works out the record numbers of some thousand samples in one go.

    For 128 samples the calls cost ten times what the arithmetic does.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._next = _NOWHERE
        self._ahead: Iterator[tuple[Int64, Bools]] = iter(())

    def plan(self, cursor: Cursor) -> BatchPlan:
        """``order.plan(cursor)``."""
        order = self._order
        # what Ctrl-C stops from here on is planned anew: its row may have been taken
        expected, self._next = self._next, _NOWHERE
        # a row of a block is handed out once: the caller may write into it
        known = next(self._ahead, None) if cursor == expected else None
        if known is None:
            self._ahead = self._block(cursor)
            known = next(self._ahead, None)
        plan = order.plan(cursor, known)
        self._next = plan.after
        return plan

    def _block(self, cursor: Cursor) -> Iterator[tuple[Int64, Bools]]:
        """Record numbers and valid rows of the next whole batches; none for one that is not."""
        order = self._order
        whole = (order.count - cursor.position) // order.global_batch
        steps = min(whole, PLANNED // order.batch)
        if steps < 2:
            return iter(())
        start = cursor.position + order.rank * order.batch
        starts = np.arange(start, start + steps * order.global_batch, order.global_batch)
        positions = (starts[:, None] + np.arange(order.batch)).reshape(-1)
        records = order.records(cursor.epoch, positions).reshape(steps, order.batch)
        return zip(records, np.ones(records.shape, np.bool_), strict=True)


def files_together(files: int, count: int, window: int) -> int:
    """Files that "block" shuffle reads at a time: 16, or as many small ones as fill a window."""
    return max(FILES_TOGETHER, -(-window * files // count))


class FileOrder:
    """The sequence of blocks of one epoch over several files, whatever their sizes.

    Files come in random order, ``files_together`` at a time: a group. Within a group the whole
    blocks of all its files are permuted as one; what is left of each file behind its last whole
    block comes together, after a number of blocks that a keyed draw says.
    """

    def __init__(self, ends: Int64, block: int, window: int, seed: int, epoch: int) -> None:
        self._block = block
        self._together = files_together(ends.size, int(ends[-1]), window)
        self._key = (seed, epoch)
        files = permutation(ends.size, seed, STREAM_SHARD, epoch)(np.arange(ends.size))
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        self._starts = starts[files]
        self._counts = (ends - starts)[files]
        heads = np.arange(0, ends.size, self._together)
        behind = np.cumsum(self._counts)
        #: position in the sequence of each group's first block
        self._heads = behind[heads] - self._counts[heads]

    def records(self, positions: Int64) -> Int64:
        """Record numbers at ``positions`` of the sequence (int64, each in 0 .. count-1)."""
        group = np.searchsorted(self._heads, positions, side="right") - 1
        out = np.empty_like(positions)
        for number in np.unique(group).tolist():
            part = group == number
            out[part] = self._in_group(number, positions[part] - self._heads[number])
        return out

    def _in_group(self, number: int, positions: Int64) -> Int64:
        block = self._block
        (seed, epoch), lo = self._key, number * self._together
        starts = self._starts[lo : lo + self._together]
        whole, tails = np.divmod(self._counts[lo : lo + self._together], block)
        blocks_end, tails_end = np.cumsum(whole), np.cumsum(tails)
        blocks, tail = int(blocks_end[-1]), int(tails_end[-1])
        edge = key_of(seed, STREAM_TAIL, epoch, number) % (blocks + 1) * block
        in_tail = (positions >= edge) & (positions < edge + tail)
        out = np.empty_like(positions)
        if in_tail.any():
            inside = positions[in_tail] - edge
            file = np.searchsorted(tails_end, inside, side="right")
            before = tails_end[file] - tails[file]
            out[in_tail] = starts[file] + whole[file] * block + inside - before
        rest = ~in_tail
        if rest.any():
            inside = positions[rest]
            inside = np.where(inside >= edge, inside - tail, inside)
            chosen = permutation(blocks, seed, STREAM_BLOCK, epoch, number)(inside // block)
            file = np.searchsorted(blocks_end, chosen, side="right")
            before = blocks_end[file] - whole[file]
            out[rest] = starts[file] + (chosen - before) * block + inside % block
        return out


def subset_count(subset: slice | Int64 | None, total: int) -> int:
    """Samples that ``subset`` selects out of ``total``."""
    if subset is None:
        return total
    if isinstance(subset, slice):
        return len(range(*subset.indices(total)))
    return int(subset.size)
