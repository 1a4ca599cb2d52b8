"""Draws and orders by weight or class: how often each record comes.

Drawing from an alias table is Walker's method ("An efficient method for generating discrete random
variables with general distributions", ACM TOMS 3, 1977). The table is made by prefix sums, as in
Hübschle-Schneider & Sanders, "Parallel weighted random sampling" (ESA 2019), in whole numbers: no
rounding can draw a record of weight zero. Balanced permutations draw nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..pixels import kernels
from ..system import keyed_random as keyed
from ..system.array_types import Float64, Int64, UInt64
from ..system.keyed_random import key_of, mix_rows, scale_rows
from .feistel import permutation, permuted
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
        return self.table.draw(key_of(self.seed, keyed.STREAM_WEIGHTED, epoch), positions)

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        key = key_of(self.seed, keyed.STREAM_BAD_SAMPLE, epoch, position)
        return self.table.draw(key, np.arange(attempts, dtype=np.int64))

    def identity(self) -> Mapping[str, str | int | None]:
        """With the number of samples, and a digest of the weights."""
        return {"shuffle": self.kind, "epoch_samples": self.samples, "weights": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest(self.table.cells.astype("<u8").tobytes())


@dataclass(frozen=True, eq=False)
class Balanced(AtRandom):
    """Groups of one sample of each of K classes, in an order that changes from group to group.

    An epoch has as many samples as the set; what is left behind its last whole group has one of
    some classes, which are the next ones in each epoch. Each class goes through permutations of its
    samples, from epoch to epoch: none comes again before all of them have come. ``members``: int32
    or int64 (N,), the records by class; ``ends``: int64 (K,), where each class ends there.
    """

    kind = "balanced-permutation"
    population: int
    seed: int
    members: npt.NDArray[np.signedinteger[Any]]
    ends: Int64

    @classmethod
    def of(cls, classes: Int64, seed: int) -> Balanced:
        """The order of samples of ``classes``: int64 (N,), 0 .. K-1, each of which occurs."""
        kind = np.int32 if classes.size < 1 << 31 else np.int64
        members: npt.NDArray[np.signedinteger[Any]]
        members = np.argsort(classes, kind="stable").astype(kind)
        return cls(classes.size, seed, members, np.cumsum(np.bincount(classes)))

    def records(self, epoch: int, positions: Int64) -> Int64:
        count = self.ends.size
        whole, rest = divmod(self.population, count)
        epoch %= (1 << 62) // (whole + 1)  # numbers stay below 2**63: the order begins anew then
        classes = self._classes(epoch, positions)
        ends = self.ends[classes]
        sizes = self._sizes[classes]
        # what epochs before have served of the class: one a whole group, and those in last groups
        cycles, some = divmod(epoch * rest, count)
        before = epoch * whole + cycles + (self._places[classes] < some)
        turns, inside = np.divmod(before + positions // count, sizes)
        keys = mix_rows(key_of(self.seed, keyed.STREAM_CLASS), classes) + turns.view(np.uint64)
        found: Int64 = self.members[ends - sizes + permuted(inside, sizes, keys)].astype(np.int64)
        return found

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        """Samples of the class that comes there."""
        key = key_of(self.seed, keyed.STREAM_BAD_SAMPLE, epoch, position)
        draws = mix_rows(key, np.arange(attempts, dtype=np.int64))
        (one,) = self._classes(epoch, np.array([position], np.int64)).tolist()
        size = int(self._sizes[one])
        found: Int64 = self.members[self.ends[one] - size + scale_rows(draws, size)]
        return found.astype(np.int64)

    def identity(self) -> Mapping[str, str | int | None]:
        """With a digest of which sample is of which class."""
        return {"shuffle": self.kind, "classes": self._digest}

    @cached_property
    def _digest(self) -> str:
        return digest(self.members.astype("<i8").tobytes() + self.ends.astype("<i8").tobytes())

    @cached_property
    def _sizes(self) -> Int64:
        """Samples of each class."""
        return np.diff(self.ends, prepend=0)

    @cached_property
    def _turns(self) -> Int64:
        """The classes in the order in which last groups have them, from epoch to epoch."""
        order = permutation(self.ends.size, self.seed, keyed.STREAM_CLASSES)
        return order(np.arange(self.ends.size))

    @cached_property
    def _places(self) -> Int64:
        """The place of each class in ``_turns``."""
        return np.argsort(self._turns)

    def _classes(self, epoch: int, positions: Int64) -> Int64:
        """The class of the sample at each position."""
        count = self.ends.size
        whole, rest = divmod(self.population, count)
        groups, slots = np.divmod(positions, count)
        last = groups == whole
        keys = mix_rows(key_of(self.seed, keyed.STREAM_CLASSES, epoch), groups)
        mixed = permuted(slots, np.where(last, rest, count), keys)
        return np.where(last, self._turns[(epoch * rest % count + mixed) % count], mixed)
