"""Weighted draws: each record as often as its weight says, drawn from an alias table.

Drawing from an alias table is Walker's method ("An efficient method for generating discrete random
variables with general distributions", ACM TOMS 3, 1977). The table is made by prefix sums, as in
Hübschle-Schneider & Sanders, "Parallel weighted random sampling" (ESA 2019), in whole numbers: no
rounding can draw a record of weight zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..pixels import kernels
from ..system.array_types import Float64, Int64, UInt64
from ..system.keyed_random import STREAM_BAD_SAMPLE, STREAM_WEIGHTED, key_of
from .samplers import AtRandom, digest


@dataclass(frozen=True, eq=False)
class AliasTable:
    """A distribution over the numbers 0 .. n-1, from which each draw takes the same time.

    A draw chooses a cell, all alike, and a coin of ``bits`` bits: below the cell's threshold it is
    the cell's number, else the cell's alias. Of a random uint64 times the number of cells the high
    half is the cell, and the first bits of the low half are the coin. ``cells``: uint64 (n,), the
    threshold in the first bits and the alias in the others, so that a draw reads memory once.
    """

    cells: UInt64
    bits: int

    @classmethod
    def of(cls, weights: Float64) -> AliasTable:
        """The table of ``weights`` (float64, each finite and at least 0, one above 0)."""
        count = weights.size
        bits = min(32, 62 - count.bit_length())
        whole = 1 << bits
        # shares as whole numbers of 1 / whole of a cell, which are count * whole together
        ends = np.cumsum(weights / weights.max())
        shares = np.diff(np.rint(ends * (count * whole / ends[-1])).astype(np.int64), prepend=0)
        shares[np.argmax(shares)] += count * whole - int(shares.sum())
        light = np.flatnonzero(shares < whole)
        heavy = np.flatnonzero(shares >= whole)
        missing, excess = whole - shares[light], np.cumsum(shares[heavy] - whole)
        behind = np.cumsum(missing)
        thresholds, aliases = np.zeros(count, np.int64), np.arange(count, dtype=np.int64)
        # One heavy number after the other fills up light cells. Each fills those that begin before
        # its excess ends; what it lacks in its own cell then comes from the next heavy number.
        thresholds[light] = shares[light]
        aliases[light] = heavy[np.searchsorted(excess, behind - missing, side="right")]
        taken = np.concatenate((np.zeros(1, np.int64), behind))
        left = whole + excess - taken[np.searchsorted(taken, excess, side="left")]
        short = np.flatnonzero(left < whole)
        thresholds[heavy[short]] = left[short]
        aliases[heavy[short]] = heavy[short + 1]
        thresholds <<= 64 - bits
        thresholds |= aliases
        return cls(thresholds.view(np.uint64), bits)

    def draw(self, key: int, numbers: Int64) -> Int64:
        """Draws ``numbers`` (int64, of any number) of those keyed by ``key``, in a new array."""
        out = np.empty(numbers.shape, np.int64)
        kernels.alias_rows(
            np.ascontiguousarray(numbers), np.uint64(key), self.cells, self.bits, out
        )
        return out


@dataclass(frozen=True, eq=False)
class Weighted(AtRandom):
    """Independent draws, each record as often as its weight says; ``samples`` in an epoch."""

    kind = "weights"
    population: int
    seed: int
    table: AliasTable
    samples: int

    @property
    def length(self) -> int:
        return self.samples

    def records(self, epoch: int, positions: Int64) -> Int64:
        return self.table.draw(key_of(self.seed, STREAM_WEIGHTED, epoch), positions)

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        key = key_of(self.seed, STREAM_BAD_SAMPLE, epoch, position)
        return self.table.draw(key, np.arange(attempts, dtype=np.int64))

    def identity(self) -> Mapping[str, str | int | None]:
        """With the number of samples, and a digest of the weights."""
        return {"shuffle": self.kind, "epoch_samples": self.samples, "weights": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest(self.table.cells.astype("<u8").tobytes())
