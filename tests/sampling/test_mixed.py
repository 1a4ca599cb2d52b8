"""Mixes of sets: the ratios at any place, and each set in its own order.

Facts that the tests of other libraries state about mixing are stated here for this one, in its own
words (Streaming's test_mixing.py; Grain's mix_test.py).
"""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncreader import ParamsError
from asyncreader.sampling import sampler_of
from asyncreader.sampling.mixed import LONGEST, Mixed, Pattern, shares_of
from asyncreader.sampling.samplers import Storage

ratios = st.lists(st.floats(0.01, 1), min_size=2, max_size=6).map(
    lambda parts: tuple(part / sum(parts) for part in parts)
)


def mixed(
    sizes: tuple[int, ...],
    shares: tuple[float, ...],
    shuffle: Any = False,
    *,
    until_first: bool = False,
    samples: int | None = None,
    subset: Any = None,
    seed: int = 3,
) -> Mixed:
    sets = tuple(Storage(f"set {i}", count, block=4) for i, count in enumerate(sizes))
    storage = Storage(
        "mix",
        sum(sizes),
        sets=sets,
        ratios=shares,
        until_first=until_first,
        epoch_samples=samples,
    )
    order = sampler_of(shuffle, seed, 16, storage, subset)
    assert isinstance(order, Mixed)
    return order


def everything(order: Mixed, epoch: int = 0) -> np.ndarray:
    return order.records(epoch, np.arange(order.length))


def source_of(records: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), records, side="right")


def apart(sets: np.ndarray, parts: tuple[float, ...]) -> float:
    """The most samples by which any row of positions differs from the ratios."""
    most = 0.0
    for i, part in enumerate(parts):
        ahead = np.concatenate(([0.0], np.cumsum(sets == i) - np.arange(1, sets.size + 1) * part))
        most = max(most, float(ahead.max() - ahead.min()))
    return most


# -- the ratios ----------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(parts=ratios)
def test_more_sets_differ_by_less_than_two(parts: tuple[float, ...]) -> None:
    """More sets differ by less than two samples in any row of positions, and after any position by
    no more than Tijdeman's 1 - 1 / (2 n - 2)."""
    pattern = Pattern.of(parts)
    exact = tuple(share / pattern.sets.size for share in pattern.shares)
    assert apart(np.concatenate([pattern.sets, pattern.sets]), exact) < 2
    for i, part in enumerate(exact):
        ahead = np.cumsum(pattern.sets == i) - np.arange(1, pattern.sets.size + 1) * part
        assert np.abs(ahead).max() <= 1 - 1 / (2 * len(exact) - 2) + 1e-6


@pytest.mark.parametrize("batch", [10, 16, 32, 64, 100, 128, 256])
@pytest.mark.parametrize("parts", [(0.9, 0.1), (0.5, 0.3, 0.2), (0.6, 0.3, 0.1), (1 / 3,) * 3])
def test_every_batch_has_the_ratios(batch: int, parts: tuple[float, ...]) -> None:
    """Every batch of usual sizes holds usual ratios to within one sample."""
    sizes = (1000,) * len(parts)
    order = mixed(sizes, parts, True, samples=batch * 500)
    sets = source_of(everything(order), sizes).reshape(-1, batch)
    for i, part in enumerate(parts):
        assert np.abs((sets == i).sum(axis=1) - part * batch).max() <= 1 + 1e-9


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((0.9, 0.1), (9, 1)),
        ((1 / 3, 2 / 3), (1, 2)),
        ((0.333, 0.667), (333, 667)),
        ((0.5, 0.3, 0.2), (5, 3, 2)),
        ((1.0,), (1,)),
        ((1 / 7, 6 / 7), (1, 6)),
        ((1e-9, 1 - 1e-9), (1, LONGEST - 1)),
    ],
)
def test_shares(given: tuple[float, ...], expected: tuple[int, ...]) -> None:
    """Ratios that are fractions are kept exactly; the smallest share is one."""
    assert shares_of(given) == expected


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.floats(1e-9, 1), min_size=1, max_size=8))
def test_other_shares(parts: list[float]) -> None:
    """Of any ratios each share is at least one, and right to one of LONGEST."""
    given = np.array(parts) / sum(parts)
    shares = np.array(shares_of(tuple(given)))
    assert (shares >= 1).all()
    assert shares.sum() <= LONGEST
    np.testing.assert_allclose(shares / shares.sum(), given, atol=len(parts) / LONGEST)


# -- each set's order ----------------------------------------------------------------------------


def test_the_end_of_an_epoch() -> None:
    """An epoch ends with the last set, or the first one, that is used up; or after so many."""
    sizes, parts = (100, 37), (0.9, 0.1)
    for until_first in (False, True):
        order = mixed(sizes, parts, True, until_first=until_first)
        records = everything(order)
        seen = np.bincount(records, minlength=137)
        used_up = [bool(part.min()) for part in np.split(seen, [100])]
        assert any(used_up) if until_first else all(used_up)
        again = np.bincount(records[:-1], minlength=137)
        still = [bool(part.min()) for part in np.split(again, [100])]
        assert not any(still) if until_first else not all(still)
    assert everything(mixed(sizes, parts, True, samples=12)).size == 12


def test_replacements_are_of_the_same_set() -> None:
    """What replaces a bad sample is of the set that comes at its position."""
    order = mixed((50, 20), (0.6, 0.4), True)
    sets = source_of(everything(order), (50, 20))
    for position in range(20):
        found = order.replacements(0, position, 16)
        assert (source_of(found, (50, 20)) == sets[position]).all()


def test_of_a_subset() -> None:
    """Of a subset each set has the records that lie in it; where it has none, that is an error."""
    ranges = (range(40, 60), range(41, 70, 3), range(68, -1, -2), range(60, 45, -4))
    for subset in (np.array([3, 4, 5, 51, 60]), *ranges):
        order = mixed((50, 20), (0.5, 0.5), True, subset=subset)
        assert set(everything(order).tolist()) == set(np.array(subset).tolist())
    with pytest.raises(ParamsError, match="nothing of a dataset of the mix") as caught:
        mixed((50, 20), (0.5, 0.5), subset=range(50))
    assert caught.value.path == "set 1"


@pytest.mark.parametrize("power", [4, 6, 9, 12])
def test_large_sets(power: int) -> None:
    """A mix of 10^4 to 10^12 samples has the same small tables, and its last position is found."""
    count = 10**power
    order = mixed((count, count // 10), (0.9, 0.1), True)
    last = order.records(0, np.array([order.length - 1, order.length // 2]))
    assert (last >= 0).all()
    assert (last < count + count // 10).all()
    assert len(pickle.dumps(order)) < 5000


# -- what others' tests state --------------------------------------------------------------------


def test_interleaved_in_order() -> None:
    """Grain: without shuffling two sets come in turn, each in its own order; in the second epoch a
    set goes on where it was."""
    even_odd = mixed((5, 5), (0.5, 0.5))
    assert everything(even_odd).tolist() == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
    order = mixed((5, 5), (0.75, 0.25), until_first=True)
    both = np.concatenate([everything(order, epoch) for epoch in range(2)])
    assert both[both < 5].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    odd = both[both >= 5].tolist()
    assert odd == [5, 6, 7, 8, 9][: len(odd)]
