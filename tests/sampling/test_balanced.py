"""Balanced permutations: groups of one sample of each class, and no repeats inside a class."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from fakes import MemorySource, open_fake
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import permuted_rows_numpy
from painted import COUNT, IMAGES, open_reader

from asyncreader import AsyncReader, ParamsError
from asyncreader.sampling.balanced import Balanced
from asyncreader.sampling.feistel import SWAPS, permuted
from asyncreader.system.keyed_random import mix_rows

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


def test_orders_change() -> None:
    """Another group, another epoch and another seed are other orders of the classes, and another
    pass through a class is another order of its samples."""
    order = Balanced.of(CLASSES, 4)
    first, second = (everything(order, epoch) for epoch in (0, 1))
    groups = {tuple(group) for group in CLASSES[first][:60].reshape(-1, 4).tolist()}
    assert len(groups) > 8
    assert not np.array_equal(CLASSES[first], CLASSES[second])
    assert not np.array_equal(first, everything(Balanced.of(CLASSES, 5)))
    six = [record for record in first.tolist() if CLASSES[record] == 2]
    assert sorted(six[:6]) == sorted(six[6:12])
    assert six[:6] != six[6:12]


def test_any_position_alone() -> None:
    """A position's record does not depend on which others are asked for, nor on the process; far
    epochs are served, too."""
    order = pickle.loads(pickle.dumps(Balanced.of(CLASSES, 4)))
    for epoch in (0, 7, 2**62):
        whole = everything(order, epoch)
        some = np.array([62, 0, 13, 13, 61])
        np.testing.assert_array_equal(order.records(epoch, some), whole[some])
        np.testing.assert_array_equal(everything(Balanced.of(CLASSES, 4), epoch), whole)


def test_golden_values() -> None:
    """The order is pinned: with another a state would resume in another order."""
    order = Balanced.of(np.array([0, 0, 1, 2, 0, 2, 0, 0]), 7)
    assert everything(order, 1).tolist() == GOLDEN["records"]
    assert order.replacements(0, 5, 6).tolist() == GOLDEN["replacements"]
    assert order.identity() == {"shuffle": "balanced-permutation", "classes": GOLDEN["digest"]}


GOLDEN: dict[str, Any] = {
    "records": [3, 2, 7, 2, 5, 0, 2, 7],
    "replacements": [4, 1, 0, 7, 1, 6],
    "digest": "92a56956e18f461d",
}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_every_order_is_as_likely(count: int) -> None:
    """Of a handful of numbers all orders are drawn alike: Pearson's chi-square over 60,000 keys
    stays within five deviations of its mean."""
    drawn = 60_000
    keys = mix_rows(3, np.arange(drawn))
    columns = [permuted(np.full(drawn, i), np.full(drawn, count), keys) for i in range(count)]
    orders = np.stack(columns, axis=1)
    assert (np.sort(orders, axis=1) == np.arange(count)).all()
    _, counted = np.unique(orders, axis=0, return_counts=True)
    possible = math.factorial(count)
    assert counted.size == possible
    square = ((counted - drawn / possible) ** 2 / (drawn / possible)).sum()
    assert abs(square - (possible - 1)) < 5 * math.sqrt(2 * (possible - 1))


@pytest.mark.parametrize("count", [1, 2, 255, 1000, 65_537])
def test_permuted_is_a_permutation(count: int) -> None:
    """Each image comes once, and far from where its number was as often as near."""
    key = np.full(count, 12345, np.uint64)
    images = permuted(np.arange(count), np.full(count, count), key)
    assert np.array_equal(np.sort(images), np.arange(count))
    if count > 100:
        assert abs(np.corrcoef(images, np.arange(count))[0, 1]) < 5 / count**0.5


def test_the_kernel_is_its_twin() -> None:
    """Compiled or not, each position has the same image, of any numbers at a time."""
    rng = np.random.default_rng(5)
    counts = np.concatenate(([1, 2, 3, 2**31 - 1, 2**32 - 1], rng.integers(1, 10**6, 1000)))
    positions = (rng.random(counts.size) * counts).astype(np.int64)
    keys = rng.integers(0, 2**64, counts.size, np.uint64)
    twin = np.empty_like(positions)
    permuted_rows_numpy(positions, counts, keys, SWAPS, twin)
    np.testing.assert_array_equal(permuted(positions, counts, keys), twin)
    assert ((twin >= 0) & (twin < counts)).all()


def test_served() -> None:
    """A reader serves it, with labels of any numbers; a subset has its own classes."""
    labels = np.array([4] * 12 + [-1] * 8 + [7] * 2)[:, None]
    given = {"data": IMAGES, "labels": labels, "shuffle": "balanced-permutation", "batch_size": 3}
    with AsyncReader(given) as reader:
        assert (reader.count, len(reader)) == (COUNT, 7)
        for batch in reader:
            assert sorted(batch.labels[:, 0].tolist()) == [-1, 4, 7]
    with AsyncReader(given, subset=[0, 1, 20, 21], batch_size=2) as reader:
        for batch in reader:
            assert sorted(batch.labels[:, 0].tolist()) == [4, 7]


def test_bad_samples_are_replaced_by_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sample's replacement is of the same class."""
    labels = np.arange(COUNT)[:, None] % 2
    source = MemorySource(IMAGES, labels, damaged=[4, 7, 9])
    params = {"shuffle": "balanced-permutation", "on_error": "skip", "batch_size": 2}
    with open_fake(monkeypatch, source, **params) as reader:
        for batch in reader:
            assert sorted(batch.labels[:, 0].tolist()) == [0, 1]
            assert not {4, 7, 9} & set(batch.indices.tolist())
        assert reader.stats().bad_samples == 3


@pytest.mark.parametrize("labels", [None, np.zeros((COUNT, 2), int), np.zeros(COUNT)])
def test_classes_that_are_not_there(labels: Any) -> None:
    """Without one class number for each sample it is a ParamsError that says so."""
    with pytest.raises(ParamsError, match="'balanced-permutation' needs one class number"):
        AsyncReader(data=IMAGES, labels=labels, shuffle="balanced-permutation")


def test_a_state_is_of_its_classes() -> None:
    """A state of other labels, or of another order, is refused."""
    given = {"data": IMAGES, "shuffle": "balanced-permutation"}
    labels = np.arange(COUNT) % 3
    with AsyncReader(given, labels=labels) as reader:
        state = reader.state_dict()
        with open_reader(shuffle=True) as plain:
            with pytest.raises(ParamsError, match="shuffle differs"):
                plain.load_state_dict(state)
            with pytest.raises(ParamsError, match="shuffle differs"):
                reader.load_state_dict(plain.state_dict())
    with (
        AsyncReader(given, labels=labels[::-1]) as reader,
        pytest.raises(ParamsError, match="classes differs"),
    ):
        reader.load_state_dict(state)
