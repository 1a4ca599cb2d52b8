"""Samplers: which record comes at which position of an epoch, and the plain ones of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np

from ..system import keyed_random
from ..system.array_types import Bools, Float64, Int64
from ..system.keyed_random import key_of, mix_rows, scale_rows
from .feistel import permutation

#: Some records of a set: a range of them, or record numbers. No slice: what its bounds mean depends
#: on the number of records that it is applied to.
Subset: TypeAlias = range | Int64


def digest(data: bytes) -> str:
    """A short digest for a sampler's identity."""
    return hashlib.sha256(data).hexdigest()[:16]


def passes(first: int, count: int, draws: Int64) -> Iterator[tuple[int, Bools | slice, Int64]]:
    """Passes over ``count`` records that the draws ``first + draws`` are of: the number of each,
    which of the draws, and the positions of these in the pass (int64)."""
    begun, at = divmod(first, count)
    lowest, highest = ((int(draw) + at) // count for draw in (draws.min(), draws.max()))
    if lowest == highest:  # all are of one, as most are
        yield begun + lowest, slice(None), draws + (at - lowest * count)
        return
    draws = draws + at
    number = draws // count
    inside = draws - number * count
    for one in np.unique(number).tolist():
        which = number == one
        yield begun + one, which, inside[which]


@dataclass(frozen=True, eq=False)
class Storage:
    """What an order depends on: how a set is stored, and what is wanted of its samples.

    ``count``: its samples; ``block``: those that are stored together; ``sample_bytes``: of one
    decoded; ``ends``: where each of several files ends; ``open_files``: those that stay open.
    ``weights``: float64, of each sample (of the subset), and ``classes``: int64, 0 .. K-1;
    ``epoch_samples``: draws in an epoch, None for as many as there are samples. ``sets``: those
    of a mix, with their ``ratios``; ``until_first``: its epoch ends when one of them is used up.
    """

    path: str
    count: int
    block: int = 1
    sample_bytes: int = 1
    ends: Int64 | None = None
    open_files: int | None = None
    weights: Float64 | None = None
    classes: Int64 | None = None
    epoch_samples: int | None = None
    sets: tuple[Storage, ...] = ()
    ratios: tuple[float, ...] = ()
    until_first: bool = False


class Sampler(Protocol):
    """Which record comes at which position: a pure function of (seed, epoch, position).

    A sampler is a small frozen value without I/O; worker processes get it pickled, with its arrays
    in shared memory. Derive from this class: what has a body here is right for most samplers.

    ``kind``: its value of ``shuffle``; ``population``: records that it draws from; ``seed``: of all
    that it draws; ``subset``: the only records of the set that can come, None for all; ``window``:
    samples mixed together that lie near each other in storage, whose decoded chunks are kept, 0 if
    they lie anywhere.
    """

    kind: bool | str
    population: int
    seed: int
    subset: Subset | None = None
    window: int = 0

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        return self.population

    def records(self, epoch: int, positions: Int64) -> Int64:
        """Record numbers at ``positions`` (int64, each in 0 .. length-1) of ``epoch``."""

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        """Record numbers of the replacement samples to try for a bad one, in order."""
        key = key_of(self.seed, keyed_random.STREAM_BAD_SAMPLE, epoch, position)
        return scale_rows(mix_rows(key, np.arange(attempts, dtype=np.int64)), self.population)

    def identity(self) -> Mapping[str, str | int | None]:
        """What a saved state must match, besides the seed: all that the order follows from."""
        return {"shuffle": self.kind}

    def warning(self, storage: Storage) -> str | None:
        """What to warn of before a set that is stored so is read in this order."""
        return None


@dataclass(frozen=True)
class Sequential(Sampler):
    """Record after record, the same in each epoch."""

    kind = False
    population: int
    seed: int = 0

    def records(self, epoch: int, positions: Int64) -> Int64:
        return positions


class AtRandom(Sampler, Protocol):
    """A sampler whose samples come from anywhere in the set."""

    def warning(self, storage: Storage) -> str | None:
        files = 1 if storage.ends is None else storage.ends.size
        if storage.open_files is None or files <= storage.open_files:
            return None
        return (
            f"{storage.path}: {files} shards, of which {storage.open_files} stay open: a full "
            'shuffle opens one for nearly every sample; shuffle="block" reads a few at a time, and '
            "a higher limit of open files (ulimit -n) also helps"
        )


@dataclass(frozen=True)
class Shuffled(AtRandom):
    """Another permutation of all records in each epoch."""

    kind = True
    population: int
    seed: int = 0

    def records(self, epoch: int, positions: Int64) -> Int64:
        return permutation(self.population, self.seed, keyed_random.STREAM_SAMPLE, epoch)(positions)


@dataclass(frozen=True)
class Replacement(AtRandom):
    """Independent draws; ``samples`` in each epoch, None for as many as there are records."""

    kind = "replacement"
    population: int
    seed: int = 0
    samples: int | None = None

    @property
    def length(self) -> int:
        return self.population if self.samples is None else self.samples

    def identity(self) -> Mapping[str, str | int | None]:
        """With the number of samples, where that is not the number of records."""
        same = self.length == self.population
        return {"shuffle": self.kind} | ({} if same else {"epoch_samples": self.length})

    def records(self, epoch: int, positions: Int64) -> Int64:
        draws = mix_rows(key_of(self.seed, keyed_random.STREAM_REPLACEMENT, epoch), positions)
        return scale_rows(draws, self.population)


def subset_count(subset: Subset | None, total: int) -> int:
    """Samples that ``subset`` selects out of ``total``."""
    return total if subset is None else len(subset)


def subset_numbers(subset: Subset | None, total: int) -> Int64:
    """The record numbers that ``subset`` selects out of ``total``."""
    if subset is None:
        subset = range(total)
    if isinstance(subset, range):
        return np.arange(subset.start, subset.stop, subset.step, dtype=np.int64)
    return subset


def numbers_below(subset: Subset, bounds: Int64) -> Int64:
    """How many of the records that ``subset`` selects are below each of ``bounds``: of a range, or
    of record numbers that are sorted."""
    if not isinstance(subset, range):
        return np.searchsorted(subset, bounds)
    ordered = subset if subset.step > 0 else subset[::-1]
    return np.clip(-((ordered.start - bounds) // ordered.step), 0, len(ordered))


def ends_inside(ends: Int64 | None, subset: Subset | None) -> Int64 | None:
    """Where files end, counted in the subset; None if the subset is not in the files' order."""
    if ends is None or subset is None:
        return ends
    if not isinstance(subset, range) or subset.step != 1:
        return None
    inside: Int64 = np.unique(np.clip(ends, subset.start, subset.stop))
    return inside[inside > subset.start] - subset.start


def subset_digest(subset: Subset) -> str:
    """A digest of which records these are."""
    if not isinstance(subset, range):
        return digest(subset.tobytes())
    # the text of the slice that selects them: saved states hold its digest
    stop = None if subset.stop < 0 else subset.stop
    return digest(str(slice(subset.start, stop, subset.step)).encode())


def subset_inside(subset: Subset | None, first: int, end: int) -> Subset | None:
    """The part of ``subset`` that lies in records ``first`` to ``end - 1``, numbered from there."""
    if subset is None:
        return None
    if not isinstance(subset, range):
        return subset[(subset >= first) & (subset < end)] - first
    start, stop, step = subset.start, subset.stop, subset.step
    if step > 0:
        start += max(0, -(-(first - start) // step)) * step
        return range(start - first, min(stop, end) - first, step)
    start += max(0, -((end - 1 - start) // -step)) * step
    return range(start - first, max(stop, first - 1) - first, step)


class Renumbered(Sampler):
    """Records in the order of ``sampler``, which draws their numbers: :meth:`chosen` says which."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.kind, self.window = sampler.kind, sampler.window
        self.population, self.seed = sampler.population, sampler.seed

    @property
    def length(self) -> int:
        return self._sampler.length

    def records(self, epoch: int, positions: Int64) -> Int64:
        return self.chosen(self._sampler.records(epoch, positions))

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        return self.chosen(self._sampler.replacements(epoch, position, attempts))

    def warning(self, storage: Storage) -> str | None:
        return self._sampler.warning(storage)

    def chosen(self, numbers: Int64) -> Int64:
        """The records of the numbers that are drawn."""
        raise NotImplementedError


class Within(Renumbered):
    """The records of ``subset`` in the order of ``sampler``, whose population is their number."""

    subset: Subset

    def __init__(self, subset: Subset, sampler: Sampler) -> None:
        super().__init__(sampler)
        self.subset = subset

    def identity(self) -> Mapping[str, str | int | None]:
        return {**self._sampler.identity(), "subset": self._digest}

    @cached_property
    def _digest(self) -> str:
        return subset_digest(self.subset)

    def chosen(self, numbers: Int64) -> Int64:
        if isinstance(self.subset, range):
            return numbers * self.subset.step + self.subset.start
        return self.subset[numbers]
