"""Several sets by ratio: at each position the set comes that must come soonest.

The order of the sets is Tijdeman's ("The chairman assignment problem", Discrete Mathematics 32,
1980): after any position each of n sets is at most 1 - 1 / (2 n - 2) samples from its share. So in
any row of positions, and in every batch, two sets differ from their ratios by one sample at most,
and more sets by less than two. Of more sets no order can keep to one sample for batches of any
size: it would be a balanced word over more than two letters (Fraenkel's conjecture).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ..system.array_types import Int64
from .samplers import Sampler, Storage, Subset, digest, passes, subset_digest

#: The longest period of a pattern; also the smallest share that a set can have is 1 / LONGEST.
LONGEST: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which of several sets each position draws from, again and again after a period.

    ``sets``: int16, the set at each place of the period; ``before``: int32, draws from the same set
    at earlier places; ``shares``: draws from each set in a period.
    """

    sets: npt.NDArray[np.int16]
    before: npt.NDArray[np.int32]
    shares: tuple[int, ...]

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Pattern:
        """The pattern of ``ratios`` (each above 0, 1 together): they are kept exactly where they
        are fractions of up to LONGEST, else to 1 / LONGEST."""
        shares = shares_of(ratios)
        period = sum(shares)
        parts = max(1, 2 * len(shares) - 2)
        # what each set is behind its share of the places so far, times the period; and the place
        # before which it must come, times the period, or its share falls behind too far
        behind, drawn = [0] * len(shares), [0] * len(shares)
        due = [(1 - 1 / parts) / share for share in shares]
        sets, before = np.empty(period, np.int16), np.empty(period, np.int32)
        for place in range(period):
            behind = [late + share for late, share in zip(behind, shares, strict=True)]
            ready = [i for i, late in enumerate(behind) if late * parts >= period]
            one = min(ready, key=due.__getitem__)
            sets[place], before[place] = one, drawn[one]
            behind[one] -= period
            drawn[one] += 1
            due[one] = (drawn[one] + 1 - 1 / parts) / shares[one]
        return cls(sets, before, shares)

    @cached_property
    def _places(self) -> tuple[Int64, ...]:
        """The places of the period at which each set is drawn from."""
        return tuple(np.flatnonzero(self.sets == one) for one in range(len(self.shares)))

    def drawn(self, one: int, length: int) -> int:
        """Draws from a set in the first ``length`` positions."""
        periods, left = divmod(length, self.sets.size)
        return periods * self.shares[one] + int(np.searchsorted(self._places[one], left))

    def until(self, one: int, draws: int) -> int:
        """Positions up to the one at which a set is drawn from for the ``draws``-th time."""
        periods, left = divmod(draws - 1, self.shares[one])
        return periods * self.sets.size + int(self._places[one][left]) + 1


def shares_of(ratios: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to ``ratios``: the smallest ones, LONGEST together at most."""
    given = np.array(ratios, np.float64)
    given /= given.sum()
    periods = np.arange(1, LONGEST + 1)
    near = np.ones(LONGEST, np.bool_)
    for ratio in given.tolist():
        parts = periods * ratio
        near &= (np.abs(parts - np.rint(parts)) < 1e-6) & (parts > 0.5)
    if near.any():
        return tuple(np.rint(given * periods[np.argmax(near)]).astype(np.int64).tolist())
    # by largest remainders, and each at least once
    shares = np.maximum(np.floor(given * LONGEST), 1)
    left = int(LONGEST - shares.sum())
    if left > 0:
        shares[np.argsort(shares - given * LONGEST, kind="stable")[:left]] += 1
    elif left < 0:
        shares[np.argmax(shares)] += left
    return tuple(shares.astype(np.int64).tolist())


@dataclass(frozen=True, eq=False)
class Mixed(Sampler):
    """Several sets by ratio, each in its own order.

    ``samplers``: of each set, with record numbers of the joined set; ``samples``: in an epoch. A
    set that is used up begins another pass in its order, and goes on with it in the next epoch: its
    samples come equally often.
    """

    samplers: tuple[Sampler, ...]
    pattern: Pattern
    samples: int
    population: int
    seed: int
    kind: bool | str
    window: int
    subset: Subset | None = None

    @classmethod
    def of(
        cls, samplers: tuple[Sampler, ...], seed: int, storage: Storage, subset: Subset | None
    ) -> Mixed:
        """The mix of what is stored so. Without a number of samples its epoch ends when all sets,
        or the first, are used up."""
        pattern, samples = Pattern.of(storage.ratios), storage.epoch_samples
        if samples is None:
            ends = [pattern.until(i, one.length) for i, one in enumerate(samplers)]
            samples = min(ends) if storage.until_first else max(ends)
        population = sum(one.population for one in samplers)
        window = sum(one.window for one in samplers)
        return cls(samplers, pattern, samples, population, seed, samplers[0].kind, window, subset)

    @property
    def length(self) -> int:
        return self.samples

    def records(self, epoch: int, positions: Int64) -> Int64:
        pattern = self.pattern
        periods = positions // pattern.sets.size  # by a number: a fifth of the time of divmod()
        places = positions - periods * pattern.sets.size
        sets, before = pattern.sets[places], pattern.before[places]
        out = np.empty_like(positions)
        for i, sampler in enumerate(self.samplers):
            rows = np.flatnonzero(sets == i)
            if not rows.size:
                continue
            draws: Int64 = periods[rows] * np.int64(pattern.shares[i]) + before[rows]
            first = epoch * pattern.drawn(i, self.samples)
            for number, which, inside in passes(first, sampler.length, draws):
                out[rows[which]] = sampler.records(number, inside)
        return out

    def replacements(self, epoch: int, position: int, attempts: int) -> Int64:
        """Samples of the set that comes there."""
        one = int(self.pattern.sets[position % self.pattern.sets.size])
        return self.samplers[one].replacements(epoch, position, attempts)

    def identity(self) -> Mapping[str, str | int | None]:
        """With the ratios and numbers of samples; windows, blocks and files are in one digest."""
        names = ("window", "block", "files")
        inner = [[one.identity().get(name) for name in names] for one in self.samplers]
        sizes = ":".join(str(one.population) for one in self.samplers)
        found: dict[str, str | int | None] = {
            "shuffle": self.kind,
            "files": digest(repr(inner).encode()) if any(map(any, inner)) else None,
            "mix": f"{':'.join(map(str, self.pattern.shares))} of {sizes} samples",
            "epoch_samples": self.samples,
        }
        return found | ({} if self.subset is None else {"subset": subset_digest(self.subset)})

    def warning(self, storage: Storage) -> str | None:
        pairs = zip(self.samplers, storage.sets, strict=True)
        return next(filter(None, (one.warning(stored) for one, stored in pairs)), None)
