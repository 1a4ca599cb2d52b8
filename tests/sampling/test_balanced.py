"""Balanced permutations: groups of one sample of each class, and no repeats inside a class."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncreader.sampling.weighted import Balanced

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
