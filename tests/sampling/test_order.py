"""The order of a training run: permutations, blocks, draws, ranks, last batches and resuming."""

import pickle
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncreader.sampling import sampler_of
from asyncreader.sampling.blocks import Blocks
from asyncreader.sampling.feistel import permutation, permuted
from asyncreader.sampling.samplers import (
    Replacement,
    Sampler,
    Sequential,
    Shuffled,
    Storage,
    numbers_below,
)
from asyncreader.sampling.schedule import BatchPlan, Cursor, Schedule
from asyncreader.sampling.state import ORDER_VERSION
from asyncreader.sampling.weighted import AliasTable, Balanced, Weighted
from asyncreader.system.keyed_random import key_of, mix, mix_rows, scale_rows, uniforms

counts = st.one_of(st.sampled_from([1, 2, 3, 4, 5]), st.integers(1, 5000))
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**40)


def everything(sampler: Sampler, epoch: int = 0) -> np.ndarray:
    """The records of a whole epoch by position."""
    return sampler.records(epoch, np.arange(sampler.length, dtype=np.int64))


def plans(schedule: Schedule, cursor: Cursor | None = None) -> Iterator[BatchPlan]:
    """The batches from ``cursor`` to the end of its epoch."""
    cursor = schedule.next_batch_at(cursor or Cursor())
    epoch = cursor.epoch
    while cursor.epoch == epoch:
        yield schedule.plan(cursor)
        cursor = schedule.advance(cursor)


# -- the permutation -----------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(count=counts, seed=seeds, epoch=epochs)
def test_shuffle_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    """Every epoch of every seed serves each of N samples exactly once, for any N."""
    order = Shuffled(count, seed)
    assert np.array_equal(np.sort(everything(order, epoch)), np.arange(count))


#: Samplers of each kind, and an epoch.
ORDERS: dict[str, tuple[Sampler, int]] = {
    "shuffle": (Shuffled(17, 0), 0),
    "shuffle epoch 3": (Shuffled(17, 12345), 3),
    "block": (Blocks(17, 1, block=3, window=6), 0),
    "files": (Blocks(17, 1, block=2, window=4, ends=np.array([3, 8, 10, 17])), 0),
    "replacement": (Replacement(10, 1), 2),
    "weights": (Weighted(6, 7, AliasTable.of(np.array([1, 0, 2, 3, 0.5, 8])), 12), 1),
    "balanced": (Balanced.of(np.array([0, 0, 1, 2, 0, 2, 0, 0]), 7), 1),
    "mix": (
        sampler_of(
            *(True, 3, 16),
            Storage("mix", 10, sets=(Storage("a", 6), Storage("b", 4)), ratios=(0.7, 0.3)),
        ),
        1,
    ),
}
FAR = np.array([0, 1, 2**31, 2**32 - 2])
GOLDEN: dict[str, list[int]] = {
    "shuffle": [16, 6, 3, 11, 13, 8, 1, 14, 4, 5, 15, 0, 9, 12, 10, 7, 2],
    "shuffle epoch 3": [3, 13, 11, 8, 1, 6, 15, 14, 7, 16, 9, 4, 12, 10, 2, 0, 5],
    "block": [1, 0, 7, 8, 6, 2, 9, 10, 3, 5, 11, 4, 13, 14, 16, 15, 12],
    "files": [15, 13, 14, 12, 7, 0, 2, 1, 5, 6, 3, 16, 11, 8, 10, 4, 9],
    "replacement": [6, 7, 6, 3, 3, 1, 2, 7, 8, 7],
    "weights": [5, 3, 5, 3, 2, 5, 2, 0, 5, 5, 5, 2],
    "balanced": [3, 2, 7, 2, 5, 0, 2, 7],
    "mix": [4, 7, 1, 2, 5, 8, 3, 2, 6, 4, 0, 9],
}
REPLACEMENTS: list[tuple[Sampler, int, int, list[int]]] = [
    (Sequential(1000, 5), 2, 17, [985, 535, 980, 13, 847, 137]),
    (ORDERS["weights"][0], 0, 5, [2, 5, 3, 5, 5, 5]),
    (ORDERS["balanced"][0], 0, 5, [4, 1, 0, 7, 1, 6]),
    (ORDERS["mix"][0], 0, 2, [2, 2, 0, 2, 0, 3]),
]


def test_golden_values() -> None:
    """The orders of version 2, pinned: a change of any of these needs another ORDER_VERSION."""
    assert ORDER_VERSION == 2
    assert mix(0) == 0xE220A8397B1DCDAF  # SplitMix64's first output for seed 0
    assert mix(2**64 - 1) == 16490336266968443936
    assert key_of(1, 2, 3) == 74078413316773926
    assert key_of(2**64 + 5, -1) == 7528683550717403091
    for name, (order, epoch) in ORDERS.items():
        assert everything(order, epoch).tolist() == GOLDEN[name], name
    for order, epoch, position, expected in REPLACEMENTS:
        assert order.replacements(epoch, position, 6).tolist() == expected
    big = permutation(10**12, 1, 1, 0)(np.array([0, 1, 10**12 - 1])).tolist()
    assert big == [913871609076, 966107661059, 930266186207]
    keys = mix_rows(3, FAR)
    assert permuted(FAR, np.full(4, 2**32 - 1), keys).tolist() == PERMUTED
    assert AliasTable.of(np.arange(1.0, 6)).draw(2**64 - 1, FAR << 30).tolist() == DRAWN
    plan = Schedule(Shuffled(100, 7), 4).plan(Cursor(1, 8, 2))
    assert plan.keys.tolist() == KEYS
    assert plan.rng_key == 9954359092681001186
    draws = [0.04089977987977644, 0.1996629287420455, 0.9667462675495934, 0.5585649122534174]
    np.testing.assert_allclose(uniforms(plan.keys, 63), draws, rtol=1e-15)


PERMUTED = [2420243405, 1598065444, 794168501, 3879536195]
DRAWN = [4, 3, 4, 2]
KEYS = [1720096623516987125, 1579468058277228645, 7988339204810399028, 252369929813073770]


@pytest.mark.parametrize("name", [*ORDERS, "large", "large blocks"])
def test_any_position_alone(name: str) -> None:
    """A position's record does not depend on which others are asked for, nor on the process; far
    epochs are served, too."""
    large = {"large": Shuffled(5000, 4), "large blocks": Blocks(5000, 4, block=7, window=21)}
    order: Sampler = large[name] if name in large else ORDERS[name][0]
    copy = pickle.loads(pickle.dumps(order))
    for epoch in (0, 7, 2**62):
        whole = everything(order, epoch)
        some = np.random.default_rng(epoch).integers(0, order.length, 50)
        np.testing.assert_array_equal(copy.records(epoch, some), whole[some])


def test_a_million_millions_cost_nothing() -> None:
    """A set of 10**12 samples has an order without memory for it."""
    order = Schedule(Shuffled(10**12, 1), 64)
    plan = order.plan(Cursor(0, 64, 1))  # warm up
    tracemalloc.start()
    plan = order.plan(Cursor(5, 10**12 - 128, 10**12 // 64 - 2))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert np.unique(plan.indices).size == 64
    assert order.steps == 10**12 // 64
    assert sys.getsizeof(order) < 1000


# -- looks uniform -------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(draws=st.lists(seeds, min_size=1, max_size=8), count=st.integers(1, 2**62))
def test_scaling_is_the_high_half_of_the_product(draws: list[int], count: int) -> None:
    """scale_rows is exactly draw * count >> 64 for any uint64 draw and count."""
    found = scale_rows(np.array(draws, np.uint64), count)
    assert found.tolist() == [draw * count >> 64 for draw in draws]


def test_mixing_rows_is_injective() -> None:
    """No two positions of 200,000 share a key."""
    assert np.unique(mix_rows(77, np.arange(200_000))).size == 200_000


# -- block and replacement -----------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    count=counts,
    seed=seeds,
    epoch=st.integers(0, 9),
    block=st.integers(1, 700),
    blocks=st.integers(1, 9),
)
def test_block_order(count: int, seed: int, epoch: int, block: int, blocks: int) -> None:
    """A permutation, made of whole blocks, in which samples move inside their window only."""
    window = block * blocks
    order = Blocks(count, seed, block, window)
    served = everything(order, epoch)
    assert np.array_equal(np.sort(served), np.arange(count))
    # what a window serves is a run of the sequence of blocks: at most blocks + 2 of them
    seen: Counter[int] = Counter()
    for lo in range(0, count, window):
        touched = np.unique(served[lo : lo + window] // block)
        assert touched.size <= blocks + 2
        seen.update(touched.tolist())
    # so each block is read in at most two windows
    assert max(seen.values()) <= 2


# -- batches, ranks and the end of an epoch ------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 200),
    batch=st.integers(1, 60),
    world=st.integers(1, 4),
    shuffle=st.sampled_from([False, True, "block", "replacement"]),
    last=st.sampled_from(["drop", "pad", "wrap", "short"]),
)
def test_end_of_an_epoch(
    count: int, batch: int, world: int, shuffle: bool | str, last: str
) -> None:
    """drop: floor(N / G) steps; the others ceil; each serves the epoch's order from its start. The
    ranks' batches of a step, in rank order, draw what one process's batch of that step draws."""
    if last == "short":
        world = 1
    order = sampler_of(shuffle, 4, 9, Storage("memory", count, 3))
    ranks = [Schedule(order, batch, r, world, last) for r in range(world)]
    size = batch * world
    each = [Schedule(order, size, 0, 1, last), *ranks]
    steps = count // size if last == "drop" else -(-count // size)
    assert {rank.steps for rank in ranks} == {steps}
    if steps == 0:
        return
    whole = everything(order, 2)
    served, valid = [], []
    for step, (joined, *parts) in enumerate(
        zip(*(plans(one, Cursor(2)) for one in each), strict=True)
    ):
        keys = np.concatenate([part.keys for part in parts])
        np.testing.assert_array_equal(keys, joined.keys)
        assert parts[0].rng_key == joined.rng_key
        for part in parts:
            assert part.step == step
            assert part.epoch == 2
            assert part.last == (step == steps - 1)
            if last != "short":
                assert part.indices.shape == part.valid.shape == part.keys.shape == (batch,)
            served.append(part.indices)
            valid.append(part.valid)
    found, mask = np.concatenate(served), np.concatenate(valid)
    inside = min(count, steps * size)
    np.testing.assert_array_equal(found[:inside], whole[:inside])
    assert mask[:inside].all()
    if last == "short":
        assert found.size == count
    elif last == "pad":
        assert not mask[inside:].any()
        assert (found[inside:] == -1).all()
    elif last == "wrap":
        assert mask.all()
        ahead = np.concatenate(
            [everything(order, 3 + e) for e in range(1 + (steps * size - count) // count)]
        )
        np.testing.assert_array_equal(found[inside:], ahead[: found.size - inside])


def test_keys_of_rows_are_all_different() -> None:
    """No two rows of an epoch draw the same random numbers, borrowed and repeated ones included."""
    for last in ("pad", "wrap"):
        order = Schedule(Replacement(50, 1), 16, last_batch=last)
        keys = np.concatenate([p.keys for e in range(3) for p in plans(order, Cursor(e))])
        assert np.unique(keys).size == keys.size


@pytest.mark.parametrize("subset", [range(10), range(3, 40, 4), range(98, -1, -2), range(9, 2, -3)])
def test_numbers_below(subset: range) -> None:
    """How many of the selected records are below a bound does not follow from their order."""
    bounds = np.arange(120)
    expected = np.searchsorted(np.sort(subset), bounds)
    assert numbers_below(subset, bounds).tolist() == expected.tolist()
