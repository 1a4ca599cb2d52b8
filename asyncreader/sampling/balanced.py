"""Balanced permutations: each class as often as the others, its samples in random order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..system.array_types import Int64
from ..system.keyed_random import (
    STREAM_BAD_SAMPLE,
    STREAM_CLASS,
    STREAM_CLASSES,
    key_of,
    mix_rows,
    scale_rows,
)
from .feistel import permutation, permuted
from .samplers import AtRandom, digest


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
        keys = mix_rows(key_of(self.seed, STREAM_CLASS), classes) + turns.view(np.uint64)
        found: Int64 = self.members[ends - sizes + permuted(inside, sizes, keys)].astype(np.int64)
        return found

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        """Samples of the class that comes there."""
        key = key_of(self.seed, STREAM_BAD_SAMPLE, epoch, position)
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
        return permutation(self.ends.size, self.seed, STREAM_CLASSES)(np.arange(self.ends.size))

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
        keys = mix_rows(key_of(self.seed, STREAM_CLASSES, epoch), groups)
        mixed = permuted(slots, np.where(last, rest, count), keys)
        return np.where(last, self._turns[(epoch * rest % count + mixed) % count], mixed)
