"""Balanced permutations, and weighted draws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from painted import COUNT, IMAGES, open_reader

from asyncreader import AsyncReader
from asyncreader.sampling.weighted import AliasTable, Balanced

# -- balanced permutations ------------------------------------------------------------------------


#: 40, 15, 6 and 2 samples, in no order.
CLASSES = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [40, 15, 6, 2]))

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def everything(order: Balanced, epoch: int = 0) -> np.ndarray:
    return order.records(epoch, np.arange(order.length))


@settings(max_examples=100, deadline=None)
@given(counts=sizes, seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**40))
def test_each_class_once_in_each_group(counts: list[int], seed: int, epoch: int) -> None:
    """Every K positions hold each of K classes once; what is left holds some of them once."""
    classes = np.repeat(np.arange(len(counts)), counts)
    order = Balanced.of(classes, seed)
    found = classes[everything(order, epoch)]
    assert found.size == sum(counts)
    for first in range(0, found.size, len(counts)):
        group = found[first : first + len(counts)].tolist()
        assert len(set(group)) == len(group)


@settings(max_examples=30, deadline=None)
@given(counts=sizes, seed=st.integers(0, 2**64 - 1))
def test_no_repeats_inside_a_class(counts: list[int], seed: int) -> None:
    """No sample comes again before all of its class have come, from epoch to epoch: after any
    position the samples of a class have come as often as each other, or once more."""
    classes = np.repeat(np.arange(len(counts)), counts)
    order = Balanced.of(classes, seed)
    served = np.concatenate([everything(order, epoch) for epoch in range(6)])
    for one, count in enumerate(counts):
        mine = served[classes[served] == one]
        for begin in range(0, mine.size, count):
            part = mine[begin : begin + count].tolist()
            assert len(set(part)) == len(part)
    shown = np.bincount(classes[served], minlength=len(counts))
    assert shown.max() - shown.min() <= 1  # the last, short groups are of all classes in turn


def test_replacements_are_of_the_same_class() -> None:
    """What replaces a bad sample is of the class that comes at its position."""
    order = Balanced.of(CLASSES, 4)
    classes = CLASSES[everything(order)]
    for position in range(order.length):
        assert set(CLASSES[order.replacements(0, position, 16)]) == {classes[position]}


# -- weighted draws -------------------------------------------------------------------------------


#: Labels of the painted images: twelve of class 4, eight of class -2, and two of class 7.
SOME = np.array([4] * 12 + [-2] * 8 + [7] * 2, np.int64)


def shares(table: AliasTable) -> np.ndarray:
    """The probability of each number, by the table's own whole numbers."""
    cell, shift = 1 << table.bits, np.uint64(64 - table.bits)
    units = (table.cells >> shift).astype(np.int64)
    left = cell - units
    np.add.at(units, table.cells & np.uint64((1 << int(shift)) - 1), left)
    assert units.sum() == cell * units.size
    return units / (cell * units.size)


weights = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 1e300), st.integers(1, 9).map(float)), min_size=1
).filter(any)


@settings(max_examples=300, deadline=None)
@given(values=weights)
def test_the_table_is_the_distribution(values: list[float]) -> None:
    """The table gives each number its share of the weights to 2**-32 of a mean share, and a number
    of weight 0 none at all."""
    given = np.array(values)
    found = shares(AliasTable.of(given))
    wanted = given / given.max()
    wanted /= wanted.sum()
    assert (found[given == 0] == 0).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=2 * 2.0**-32 / given.size)


def served(**params: Any) -> np.ndarray:
    """The record numbers of one epoch."""
    with AsyncReader(data=IMAGES, labels=SOME, **{"batch_size": 1, **params}) as reader:
        return np.concatenate([batch.indices.copy() for batch in reader])


def test_balanced_classes() -> None:
    """weights="balanced" draws each class as often as the others, whatever its numbers, and every
    sample of a class alike."""
    records = served(weights="balanced", epoch_samples=9000, batch_size=90)
    classes = np.unique(SOME[records], return_counts=True)[1]
    assert np.abs(classes - 3000).max() < 5 * (9000 * 2 / 9) ** 0.5
    counted = np.bincount(records, minlength=COUNT)
    expected = np.repeat([250.0, 375.0, 1500.0], [12, 8, 2])
    assert abs(((counted - expected) ** 2 / expected).sum() - 21) < 5 * 42**0.5


def test_balanced_leaves_out_what_has_no_class() -> None:
    """weights="balanced" never draws label -1, which is no class, and says how many samples it has;
    of labels -1 and 1 both are classes."""
    labels = np.array([-1] * 12 + [0] * 8 + [5] * 2)
    given: dict[str, Any] = {"weights": "balanced", "epoch_samples": 2000, "batch_size": 20}
    with pytest.warns(UserWarning, match="never draws the 12 samples of label -1"):
        reader = AsyncReader(data=IMAGES, labels=labels, **given)
    with reader:
        drawn = labels[np.concatenate([batch.indices.copy() for batch in reader])]
    numbers, times = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == [0, 5]
    assert abs(int(times[0]) - 1000) < 5 * 500**0.5
    for both in ([-1, 1], [-1, -1]):
        with AsyncReader(data=IMAGES, labels=np.resize(both, COUNT), **given) as reader:
            drawn = np.concatenate([np.array(batch.labels) for batch in reader])
        assert np.unique(drawn).tolist() == sorted(set(both))


def test_balanced_within_a_subset() -> None:
    """With a subset the classes are counted in it; indices stay record numbers of the file."""
    subset = np.array([0, 1, 2, 3, 12, 4])
    records = served(weights="balanced", subset=subset, epoch_samples=4000, batch_size=40)
    assert set(records.tolist()) == set(subset.tolist())
    assert abs(int((records == 12).sum()) - 2000) < 5 * 1000**0.5


def test_weights_of_a_subset() -> None:
    """With a subset, weights are of its samples in its order."""
    records = served(weights=[0, 1, 0], subset=[3, 5, 7], batch_size=1)
    assert records.tolist() == [5, 5, 5]


def test_an_epoch_of_so_many_samples() -> None:
    """epoch_samples is what an epoch has, and len() follows; other epochs are other draws."""
    weights = np.arange(COUNT)
    with open_reader(weights=weights, epoch_samples=50, last_batch="pad") as reader:
        assert (reader.count, len(reader)) == (50, 13)
        first, second = (
            np.concatenate([batch.indices[batch.mask] for batch in reader]) for _ in range(2)
        )
    assert first.size == second.size == 50
    assert not np.array_equal(first, second)
    assert 0 not in first
    with open_reader(shuffle="replacement", epoch_samples=7, last_batch="short") as reader:
        assert [len(batch) for batch in reader] == [4, 3]
