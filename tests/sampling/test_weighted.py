"""Weighted draws: the alias table, how often samples come, and what is said of wrong weights."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import MemorySource, open_fake, packed, paint, write_hdf5
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import alias_rows_numpy
from painted import COUNT, IMAGES, open_reader

from asyncreader import AsyncReader, ParamsError
from asyncreader.sampling.weighted import AliasTable, Weighted

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


@pytest.mark.parametrize("count", [1, 3, 1000, 70_000])
def test_the_kernel_is_its_twin(count: int) -> None:
    """Compiled or not, each position draws the same number, of positions of any size."""
    rng = np.random.default_rng(count)
    table = AliasTable.of(rng.random(count) + (np.arange(count) == 0))
    numbers = np.concatenate((np.arange(3000), rng.integers(0, 2**62, 3000)))
    twin = np.empty_like(numbers)
    for key in (0, 2**64 - 1, 0x9E3779B97F4A7C15):
        alias_rows_numpy(numbers, key, table.cells, table.bits, twin)
        np.testing.assert_array_equal(table.draw(key, numbers), twin)
        assert ((twin >= 0) & (twin < count)).all()


def test_many_weights() -> None:
    """Of a million weights over twelve orders of magnitude each share is right to 1e-6 of a mean
    one, and the table takes 8 bytes a sample."""
    given = 10 ** np.random.default_rng(0).uniform(-12, 0, 1_000_000)
    given[::3] = 0
    table = AliasTable.of(given)
    found = shares(table)
    assert (found[::3] == 0).all()
    np.testing.assert_allclose(found * given.size, given / given.mean(), rtol=1e-9, atol=1e-6)
    assert table.cells.nbytes == 8 * given.size


def test_draws_follow_the_weights() -> None:
    """10,000 draws of a fixed seed match the weights: Pearson's chi-square is within five
    deviations of its mean, in each of five epochs, and epochs differ."""
    given = np.array([5, 0, 1, 1, 3, 0.5, 10, 0, 2, 7.5])
    order = Weighted(10, 3, AliasTable.of(given), 10_000)
    kept = given > 0
    epochs = [order.records(epoch, np.arange(10_000)) for epoch in range(5)]
    for drawn in epochs:
        counted = np.bincount(drawn, minlength=10)
        expected = given * 10_000 / given.sum()
        assert (counted[~kept] == 0).all()
        square = ((counted - expected)[kept] ** 2 / expected[kept]).sum()
        cells = int(kept.sum()) - 1
        assert abs(square - cells) < 5 * (2 * cells) ** 0.5
    assert not np.array_equal(epochs[0], epochs[1])


def test_draws_are_independent() -> None:
    """Pairs of neighbours come as often as their weights multiplied say (chi-square)."""
    given = np.array([1, 2, 5.0])
    drawn = Weighted(3, 0, AliasTable.of(given), 60_000).records(0, np.arange(60_000))
    counted = np.bincount(drawn[::2] * 3 + drawn[1::2], minlength=9)
    part = given / given.sum()
    expected = np.outer(part, part).reshape(-1) * 30_000
    assert abs(((counted - expected) ** 2 / expected).sum() - 8) < 5 * 4


def test_any_position_alone() -> None:
    """A position's record does not depend on which others are asked for, nor on the process."""
    order = Weighted(50, 9, AliasTable.of(np.arange(50.0)), 700)
    whole = order.records(2, np.arange(700))
    some = np.array([699, 0, 13, 13, 350])
    np.testing.assert_array_equal(order.records(2, some), whole[some])
    copy = pickle.loads(pickle.dumps(order))
    np.testing.assert_array_equal(copy.records(2, some), whole[some])


def test_golden_values() -> None:
    """The draws are pinned: with others a state would resume in another order."""
    order = Weighted(6, 7, AliasTable.of(np.array([1, 0, 2, 3, 0.5, 8])), 12)
    assert order.records(1, np.arange(12)).tolist() == GOLDEN["records"]
    assert order.replacements(0, 5, 6).tolist() == GOLDEN["replacements"]
    assert order.identity() == {
        "shuffle": "weights",
        "epoch_samples": 12,
        "weights": GOLDEN["digest"],
    }


GOLDEN: dict[str, Any] = {
    "records": [5, 3, 5, 3, 2, 5, 2, 0, 5, 5, 5, 2],
    "replacements": [2, 5, 3, 5, 5, 5],
    "digest": "a4caedc8beb18938",
}


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


def test_a_state_is_of_its_weights() -> None:
    """A state of other weights, another number of samples, or another order is refused."""
    weights = np.arange(COUNT) + 1.0
    with open_reader(weights=weights) as reader:
        next(iter(reader))
        state = reader.state_dict()
    for other, says in (
        ({"weights": weights[::-1]}, "weights differs"),
        ({"weights": weights, "epoch_samples": 44}, "epoch_samples differs"),
        ({"shuffle": True}, "shuffle differs"),
        ({"shuffle": "replacement"}, "shuffle differs"),
    ):
        with open_reader(**other) as reader:
            with pytest.raises(ParamsError, match=says):
                reader.load_state_dict(state)
            theirs = reader.state_dict()
        with open_reader(weights=weights) as mine, pytest.raises(ParamsError, match="differs"):
            mine.load_state_dict(theirs)
    with open_reader(weights=2 * weights) as reader:  # the same draws
        reader.load_state_dict(state)


def test_epochs_of_another_number_of_draws() -> None:
    """A state of shuffle="replacement" with epoch_samples is not one without, nor the reverse."""
    with open_reader(shuffle="replacement", epoch_samples=8) as short:
        state = short.state_dict()
        with open_reader(shuffle="replacement") as plain:
            with pytest.raises(ParamsError, match="epoch_samples differs"):
                plain.load_state_dict(state)
            with pytest.raises(ParamsError, match="epoch_samples differs"):
                short.load_state_dict(plain.state_dict())


def test_bad_samples_are_replaced_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sample's replacement is drawn by the same weights: never one of weight 0."""
    weights = np.zeros(COUNT)
    weights[[3, 4, 5]] = 1
    source = MemorySource(IMAGES, damaged=[4])
    params = {"weights": weights, "epoch_samples": 60, "on_error": "skip"}
    with open_fake(monkeypatch, source, batch_size=60, **params) as reader:
        batch = reader.fetchData() and reader.getNextBatch()
    assert set(batch.indices.tolist()) == {3, 5}


def test_packed_sets(tmp_path: Path) -> None:
    """Balanced draws of shards read the labels of all of them."""
    labels = np.array([0] * 18 + [1] * 2, np.int64)
    parts = [
        write_hdf5(tmp_path / f"{i}.h5", packed(paint(20, (6, 5, 3)), labels=labels[:, None]))
        for i in range(2)
    ]
    with AsyncReader(path=parts, weights="balanced", epoch_samples=2000, batch_size=100) as reader:
        ones = sum(int(batch.labels.sum()) for batch in reader)
    assert abs(ones - 1000) < 5 * 500**0.5
