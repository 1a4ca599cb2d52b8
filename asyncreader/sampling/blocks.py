"""Blocks of storage in random order, their samples mixed over a window: one file, or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ..system.array_types import Int64
from ..system.keyed_random import STREAM_BLOCK, STREAM_SHARD, STREAM_TAIL, STREAM_WINDOW, key_of
from .feistel import permutation
from .samplers import Sampler, digest

#: The most bytes that the samples of a window may take decoded.
WINDOW_BYTES: Final = 256 << 20

#: Files whose blocks are mixed with each other, at least: see files_together.
FILES_TOGETHER: Final = 16


def window_of(wanted: int, block: int, sample_bytes: int) -> int:
    """Samples of a window: whole blocks of ``block`` samples, one at least, and about ``wanted`` if
    so many, of ``sample_bytes`` each, take no more than 256 MiB."""
    window = min(wanted, WINDOW_BYTES // max(1, sample_bytes))
    return max(block, window // block * block)


@dataclass(frozen=True, eq=False)
class Blocks(Sampler):
    """Blocks in random order, then samples mixed inside windows of that sequence.

    ``block``, ``window``: samples of each. ``ends``: int64, where each of several files ends: no
    block reaches across, and the order goes from one few of the files to the next. It costs tables
    of that length, two epochs' worth.
    """

    kind = "block"
    population: int
    seed: int = 0
    block: int = 1
    window: int = 1
    ends: Int64 | None = None

    def identity(self) -> Mapping[str, str | int | None]:
        """With a digest of how samples are cut into files, where there are several."""
        files = None
        if self.ends is not None and self.ends.size > 1:
            files = digest(self.ends.astype("<i8").tobytes())
        return {"shuffle": self.kind, "window": self.window, "block": self.block, "files": files}

    def records(self, epoch: int, positions: Int64) -> Int64:
        """Samples are mixed in their window, then the sequence of blocks gives the records.

        The last block may be short; a keyed draw says after how many whole blocks it comes, so
        that the whole ones can be permuted among themselves and all stays arithmetic.
        """
        # 1. mix within the window
        window = min(self.window, self.population)
        mixed = np.empty_like(positions)
        which = positions // window
        for number in np.unique(which):
            part = which == number
            base = int(number) * window
            size = min(window, self.population - base)
            shuffled = permutation(size, self.seed, STREAM_WINDOW, epoch, int(number))
            mixed[part] = shuffled(positions[part] - base) + base
        # 2. position in the block sequence -> record
        if self.ends is not None and self.ends.size > 1:
            return self._files(epoch).records(mixed)
        whole, tail = divmod(self.population, self.block)
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
        return np.where(in_tail, whole * self.block + (mixed - edge), records)

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
