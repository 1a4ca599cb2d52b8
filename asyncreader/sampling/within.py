"""Samplers of some records of a set alone: a range of them, or an array of record numbers; and what
all samplers share that number anew what another one draws."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from ..system.array_types import Int64
from .samplers import Sampler, Storage, Subset, digest


def subset_count(subset: Subset | None, total: int) -> int:
    """Samples that ``subset`` selects out of ``total``."""
    if subset is None:
        return total
    return len(subset)


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
    found: Int64 = np.clip(-((ordered.start - bounds) // ordered.step), 0, len(ordered))
    return found


def ends_inside(ends: Int64 | None, subset: Subset | None) -> Int64 | None:
    """Where files end, counted in the subset; None if the subset is not in the files' order."""
    if ends is None or subset is None:
        return ends
    if not isinstance(subset, range) or subset.step != 1:
        return None
    inside: Int64 = np.unique(np.clip(ends, subset.start, subset.stop))
    left: Int64 = inside[inside > subset.start] - subset.start
    return left


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
            strided: Int64 = numbers * self.subset.step + self.subset.start
            return strided
        return self.subset[numbers]
