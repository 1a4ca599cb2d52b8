"""The order of a training run: permutations, blocks, draws, ranks, last batches and resuming."""

from __future__ import annotations

import itertools
import math
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import feistel_rows_numpy

from asyncreader.sampling import Shuffle, sampler_of
from asyncreader.sampling.blocks import Blocks
from asyncreader.sampling.feistel import ROUNDS, TABLE, Permutation, permutation
from asyncreader.sampling.samplers import Replacement, Sampler, Sequential, Shuffled, Storage
from asyncreader.sampling.schedule import BatchPlan, Cursor, PlanAhead, Schedule
from asyncreader.sampling.state import ORDER_VERSION
from asyncreader.sampling.within import Within, subset_count
from asyncreader.system.keyed_random import key_of, mix, mix_rows, scale_rows, uniforms

counts = st.one_of(st.sampled_from([1, 2, 3, 4, 5]), st.integers(1, 5000))
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**40)


def sampler(
    shuffle: Shuffle, count: int, seed: int, block: int, window: int, subset: Any = None
) -> Sampler:
    """The sampler of ``count`` records, or of a subset of them."""
    return sampler_of(shuffle, seed, window, Storage("memory", count, block), subset)


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


def chi_square(found: np.ndarray, cells: int) -> float:
    """How many standard deviations the chi-square statistic of ``found`` is from its mean."""
    counted = np.bincount(found, minlength=cells)
    mean = found.size / cells
    statistic = float(((counted - mean) ** 2 / mean).sum())
    return (statistic - (cells - 1)) / (2 * (cells - 1)) ** 0.5


# -- the permutation -----------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(count=counts, seed=seeds, epoch=epochs)
def test_shuffle_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    """Every epoch of every seed serves each of N samples exactly once, for any N."""
    order = Shuffled(count, seed)
    assert np.array_equal(np.sort(everything(order, epoch)), np.arange(count))


@settings(max_examples=50, deadline=None)
@given(count=st.integers(30, 5000), seed=seeds, epoch=epochs)
def test_shuffle_differs_by_seed_and_epoch(count: int, seed: int, epoch: int) -> None:
    """Another seed or another epoch is another order."""
    base = everything(Shuffled(count, seed), epoch)
    assert not np.array_equal(base, everything(Shuffled(count, seed), epoch + 1))
    other = Shuffled(count, (seed + 1) % 2**64)
    assert not np.array_equal(base, everything(other, epoch))


@settings(max_examples=50, deadline=None)
@given(count=counts, seed=seeds, data=st.data())
def test_any_position_alone(count: int, seed: int, data: st.DataObject) -> None:
    """A position's record does not depend on which other positions are asked for."""
    for kind in (False, True, "block", "replacement"):
        order = sampler(kind, count, seed, 7, 21)
        whole = everything(order, 3)
        some = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1)), np.int64)
        np.testing.assert_array_equal(order.records(3, some), whole[some])


def test_golden_values() -> None:
    """The orders of version 2, pinned: a change of any of these needs another ORDER_VERSION."""
    assert ORDER_VERSION == 2
    assert mix(0) == 0xE220A8397B1DCDAF  # SplitMix64's first output for seed 0
    assert mix(2**64 - 1) == GOLDEN["mix"]
    assert key_of(1, 2, 3) == GOLDEN["key"]
    assert key_of(2**64 + 5, -1) == GOLDEN["wide key"]
    for name, (order, epoch) in ORDERS.items():
        assert everything(order, epoch).tolist() == GOLDEN[name], name
    replacements = Sequential(1000, 5).replacements(2, 17, 6).tolist()
    assert replacements == GOLDEN["replacements"]
    big = permutation(10**12, 1, 1, 0)(np.array([0, 1, 10**12 - 1])).tolist()
    assert big == GOLDEN["big"]
    plan = Schedule(Shuffled(100, 7), 4).plan(Cursor(1, 8, 2))
    assert plan.keys.tolist() == GOLDEN["keys"]
    assert plan.rng_key == GOLDEN["rng"]
    np.testing.assert_allclose(uniforms(plan.keys, 63), GOLDEN["uniforms"], rtol=1e-15)


ORDERS = {
    "shuffle": (Shuffled(17, 0), 0),
    "shuffle epoch 3": (Shuffled(17, 12345), 3),
    "block": (Blocks(17, 1, block=3, window=6), 0),
    "replacement": (Replacement(10, 1), 2),
}
GOLDEN: dict[str, Any] = {
    "mix": 16490336266968443936,
    "key": 74078413316773926,
    "wide key": 7528683550717403091,
    "shuffle": [16, 6, 3, 11, 13, 8, 1, 14, 4, 5, 15, 0, 9, 12, 10, 7, 2],
    "shuffle epoch 3": [3, 13, 11, 8, 1, 6, 15, 14, 7, 16, 9, 4, 12, 10, 2, 0, 5],
    "block": [1, 0, 7, 8, 6, 2, 9, 10, 3, 5, 11, 4, 13, 14, 16, 15, 12],
    "replacement": [6, 7, 6, 3, 3, 1, 2, 7, 8, 7],
    "replacements": [985, 535, 980, 13, 847, 137],
    "big": [913871609076, 966107661059, 930266186207],
    "keys": [1720096623516987125, 1579468058277228645, 7988339204810399028, 252369929813073770],
    "rng": 9954359092681001186,
    "uniforms": [0.04089977987977644, 0.1996629287420455, 0.9667462675495934, 0.5585649122534174],
}


@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_every_order_of_a_few_is_as_likely(count: int) -> None:
    """Of a handful of numbers, such as blocks or shards, all orders are drawn alike: Pearson's
    chi-square over 10,000 seeds stays within five deviations of its mean."""
    drawn = 10_000
    found: dict[tuple[int, ...], int] = {}
    for seed in range(drawn):
        order = tuple(permutation(count, seed, 1)(np.arange(count)).tolist())
        found[order] = found.get(order, 0) + 1
    orders = math.factorial(count)
    expected = drawn / orders
    assert len(found) == orders
    square = sum((n - expected) ** 2 / expected for n in found.values())
    assert abs(square - (orders - 1)) < 5 * math.sqrt(2 * (orders - 1))


@settings(max_examples=100, deadline=None)
@given(count=st.integers(TABLE + 1, 2**62), key=seeds, data=st.data())
def test_compiled_kernel_equals_numpy(count: int, key: int, data: st.DataObject) -> None:
    """The compiled permutation and its numpy twin are the same function."""
    made = Permutation(count, key)
    positions = np.array(
        data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=30)), np.int64
    )
    twin = np.empty_like(positions)
    bits = max(1, (count - 1).bit_length())
    keys = np.array([key_of(key, r) for r in range(ROUNDS)], np.uint64)
    feistel_rows_numpy(positions, count, bits // 2, bits - bits // 2, keys, twin)
    np.testing.assert_array_equal(made(positions), twin)
    assert ((twin >= 0) & (twin < count)).all()


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


@pytest.mark.parametrize("count", [2, 3, 7, 10, 33, 64, 100])
def test_first_position_is_uniform(count: int) -> None:
    """Over many seeds each sample comes first equally often; over many epochs too."""
    zero = np.zeros(1, np.int64)
    runs = 40 * count
    by_seed = [int(Shuffled(count, s).records(0, zero)[0]) for s in range(runs)]
    by_epoch = [int(Shuffled(count, 1).records(e, zero)[0]) for e in range(runs)]
    assert abs(chi_square(np.array(by_seed), count)) < 4.5
    assert abs(chi_square(np.array(by_epoch), count)) < 4.5


@pytest.mark.parametrize("count", [3, 4])
def test_small_orders_are_all_possible_and_equally_likely(count: int) -> None:
    """Of 3 or 4 samples every order comes, each equally often."""
    orders = {order: i for i, order in enumerate(itertools.permutations(range(count)))}
    found = [orders[tuple(everything(Shuffled(count, seed)).tolist())] for seed in range(2400)]
    assert abs(chi_square(np.array(found), len(orders))) < 4.5


def test_every_position_is_uniform() -> None:
    """Position and record are independent: the whole table over seeds is flat."""
    count, runs = 24, 1500
    positions = np.arange(count)
    cells = np.concatenate(
        [positions * count + everything(Shuffled(count, s)) for s in range(runs)]
    )
    counted = np.bincount(cells, minlength=count * count)
    mean = runs / count
    statistic = float(((counted - mean) ** 2 / mean).sum())
    degrees = (count - 1) ** 2
    assert abs(statistic - degrees) / (2 * degrees) ** 0.5 < 4.5


@pytest.mark.parametrize("count", [1000, 4096, 5000])
def test_neighbours_are_unrelated(count: int) -> None:
    """Samples that follow each other are no nearer than by chance, and hardly ever adjacent."""
    adjacent, distance = 0, []
    for seed in range(60):
        served = everything(Shuffled(count, seed))
        steps = np.abs(np.diff(served))
        adjacent += int((steps == 1).sum())
        distance.append(steps.mean())
    # |i - j| of two different records: mean (n + 1) / 3; P(adjacent) = 2 / n
    assert np.mean(distance) == pytest.approx((count + 1) / 3, rel=0.005)
    assert adjacent == pytest.approx(60 * (count - 1) * 2 / count, abs=5 * (120**0.5))


def test_epochs_are_unrelated() -> None:
    """Two epochs of one seed have about one sample in common place, as by chance."""
    same = [
        int((everything(Shuffled(500, 3), e) == everything(Shuffled(500, 3), e + 1)).sum())
        for e in range(200)
    ]
    assert np.mean(same) == pytest.approx(1.0, abs=0.35)


def test_uniform_draws() -> None:
    """The draws for crops and flips are uniform and unrelated between samples and draws."""
    keys = Schedule(Sequential(20_000), 20_000).plan(Cursor()).keys
    one, two = uniforms(keys, 0), uniforms(keys, 1)
    for draws in (one, two, uniforms(keys, 63)):
        assert 0 <= draws.min() < draws.max() < 1
        assert abs(chi_square((draws * 50).astype(np.int64), 50)) < 4.5
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.03


@settings(max_examples=200, deadline=None)
@given(draws=st.lists(seeds, min_size=1, max_size=8), count=st.integers(1, 2**62))
def test_scaling_is_the_high_half_of_the_product(draws: list[int], count: int) -> None:
    """scale_rows is exactly draw * count >> 64 for any uint64 draw and count."""
    found = scale_rows(np.array(draws, np.uint64), count)
    assert found.tolist() == [draw * count >> 64 for draw in draws]


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4))
def test_keys_depend_on_every_part(parts: list[int]) -> None:
    """Keys tell parts, their number and their order apart."""
    base = key_of(*parts)
    assert 0 <= base < 2**64
    assert key_of(*parts, 0) != base
    for i in range(len(parts)):
        changed = [*parts]
        changed[i] += 1
        assert key_of(*changed) != base
    if parts[0] != parts[-1]:
        assert key_of(*reversed(parts)) != base or parts == parts[::-1]


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


def test_block_order_mixes() -> None:
    """Blocks come in another order each epoch, and samples of several blocks alternate."""
    order = Blocks(10_000, 5, block=50, window=1000)
    one, two = everything(order, 0), everything(order, 1)
    first = [one[lo : lo + 1000] // 50 for lo in range(0, 10_000, 1000)]
    assert all(np.unique(blocks).size == 20 for blocks in first)
    assert np.mean(np.diff(first[0]) != 0) > 0.9
    assert not np.array_equal(np.sort(one[:1000]), np.sort(two[:1000]))


def test_short_block_moves() -> None:
    """The short last block may come anywhere."""
    places = {
        int(np.argmax(everything(Blocks(17, seed, block=5, window=1)) >= 15)) for seed in range(60)
    }
    assert places == {0, 5, 10, 15}


def test_window_larger_than_the_set() -> None:
    """A window or block beyond the set is the whole set mixed."""
    for block, window in ((1, 10**6), (1000, 1000), (30, 3000)):
        served = everything(Blocks(100, 2, block, window))
        assert np.array_equal(np.sort(served), np.arange(100))
        assert np.abs(np.diff(served)).mean() > 20


def test_replacement_draws() -> None:
    """count independent draws an epoch: some twice, some never, all equally likely."""
    order = Replacement(1000, 3)
    one = everything(order, 0)
    assert ((one >= 0) & (one < 1000)).all()
    assert np.unique(one).size == pytest.approx(1000 * (1 - np.exp(-1)), abs=60)
    assert not np.array_equal(one, everything(order, 1))
    many = np.concatenate([everything(order, e) for e in range(40)])
    assert abs(chi_square(many, 1000)) < 4.5
    assert len(list(plans(Schedule(order, 64)))) == 1000 // 64


# -- subsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subset",
    [range(10), range(3, 30, 4), range(29, -1, -1), range(20, 4, -3), range(5, 6)],
)
@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_subset_by_range(subset: range, shuffle: bool | str) -> None:
    """A range serves what it selects of the records, backwards too, and nothing else."""
    chosen = np.array(subset)
    assert subset_count(subset, 30) == chosen.size
    served = everything(sampler(shuffle, 30, 1, 3, 6, subset))
    if shuffle is False:
        np.testing.assert_array_equal(served, chosen)
    else:
        np.testing.assert_array_equal(np.sort(served), np.sort(chosen))


def test_subset_by_array() -> None:
    """An array serves its entries, repeats as often as they are in it."""
    chosen = np.array([7, 3, 3, 9, 3, 0], np.int64)
    assert subset_count(chosen, 10) == 6
    assert everything(Within(chosen, Sequential(6, 1))).tolist() == chosen.tolist()
    served = everything(Within(chosen, Shuffled(6, 1)))
    assert Counter(served.tolist()) == Counter(chosen.tolist())
    replacements = Within(chosen, Sequential(6, 1)).replacements(0, 3, 100)
    assert set(replacements.tolist()) == set(chosen.tolist())


# -- batches, ranks and the end of an epoch ------------------------------------------------------

shuffles = st.sampled_from([False, True, "block", "replacement"])


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 300),
    batch=st.integers(1, 13),
    world=st.integers(1, 5),
    shuffle=shuffles,
    last=st.sampled_from(["drop", "pad", "wrap"]),
    epoch=st.integers(0, 3),
)
def test_ranks_joined_are_one_process(
    count: int, batch: int, world: int, shuffle: bool | str, last: str, epoch: int
) -> None:
    """All ranks' batches of a step, in rank order, are one process's batch of that step."""
    order = sampler(shuffle, count, 9, 4, 16)
    one = Schedule(order, batch * world, 0, 1, last)
    ranks = [Schedule(order, batch, r, world, last) for r in range(world)]
    if one.steps == 0:
        assert all(rank.steps == 0 for rank in ranks)
        return
    start = Cursor(epoch)
    for whole, *parts in zip(plans(one, start), *(plans(o, start) for o in ranks), strict=True):
        for name in ("indices", "valid", "keys"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(joined, getattr(whole, name))
        assert {part.last for part in parts} == {whole.last}
        assert {part.step for part in parts} == {whole.step}
        assert parts[0].rng_key == whole.rng_key


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 200),
    batch=st.integers(1, 60),
    world=st.integers(1, 4),
    shuffle=shuffles,
    last=st.sampled_from(["drop", "pad", "wrap", "short"]),
)
def test_end_of_an_epoch(
    count: int, batch: int, world: int, shuffle: bool | str, last: str
) -> None:
    """drop: floor(N / G) steps; the others ceil; each serves the epoch's order from its start."""
    if last == "short":
        world = 1
    order = sampler(shuffle, count, 4, 3, 9)
    ranks = [Schedule(order, batch, r, world, last) for r in range(world)]
    size = batch * world
    steps = count // size if last == "drop" else -(-count // size)
    assert {rank.steps for rank in ranks} == {steps}
    if steps == 0:
        return
    whole = everything(order, 2)
    served, valid = [], []
    for step, parts in enumerate(zip(*(plans(r, Cursor(2)) for r in ranks), strict=True)):
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


def test_wrap_repeats_in_the_next_epoch() -> None:
    """What "wrap" borrows from the next epoch that epoch still serves."""
    order = Schedule(Shuffled(10, 1), 4, last_batch="wrap")
    borrowed = list(plans(order, Cursor(0)))[-1].indices[2:]
    head = next(plans(order, Cursor(1))).indices[:2]
    np.testing.assert_array_equal(borrowed, head)
    following = np.concatenate([plan.indices for plan in plans(order, Cursor(1))])
    assert set(following[:10].tolist()) == set(range(10))


def test_keys_of_rows_are_all_different() -> None:
    """No two rows of an epoch draw the same random numbers, borrowed and repeated ones included."""
    for last in ("pad", "wrap"):
        order = Schedule(Replacement(50, 1), 16, last_batch=last)
        keys = np.concatenate([p.keys for e in range(3) for p in plans(order, Cursor(e))])
        assert np.unique(keys).size == keys.size


def test_settle_and_advance() -> None:
    """A cursor past the last batch of its epoch is the next epoch's head."""
    order = Schedule(Shuffled(10, 1), 4)
    assert order.next_batch_at(Cursor(3, 8, 2)) == Cursor(4)
    assert order.next_batch_at(Cursor(3, 6, 1)) == Cursor(3, 6, 1)
    assert order.advance(Cursor(3, 4, 1)) == Cursor(4)
    assert order.advance(Cursor(3, 0, 0)) == Cursor(3, 4, 1)
    padded = Schedule(Shuffled(10, 1), 4, last_batch="pad")
    assert padded.advance(Cursor(3, 4, 1)) == Cursor(3, 8, 2)
    assert padded.advance(Cursor(3, 8, 2)) == Cursor(4)


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(16, 300),
    done=st.integers(0, 60),
    before=st.sampled_from([(1, 8), (2, 4), (4, 3)]),
    after=st.sampled_from([(1, 8), (2, 4), (3, 5), (1, 1), (4, 2)]),
    last=st.sampled_from(["drop", "pad", "wrap"]),
    shuffle=st.sampled_from([False, True, "block"]),
)
def test_resuming_with_other_ranks(
    count: int,
    done: int,
    before: tuple[int, int],
    after: tuple[int, int],
    last: str,
    shuffle: bool | str,
) -> None:
    """From any batch boundary, another world x batch serves exactly the rest of the order."""

    order = sampler(shuffle, count, 6, 4, 12)

    def ranks(world: int, batch: int) -> list[Schedule]:
        return [Schedule(order, batch, rank, world, last) for rank in range(world)]

    def run(parts: list[Schedule], cursor: Cursor, steps: int) -> tuple[list[int], Cursor]:
        served: list[int] = []
        for _ in range(steps):
            for part in parts:
                plan = part.plan(cursor)
                served += plan.indices[plan.valid].tolist()
            cursor = parts[0].advance(cursor)
        return served, cursor

    first, second = ranks(*before), ranks(*after)
    steps = min(done, first[0].steps - 1)
    served, cursor = run(first, first[0].next_batch_at(Cursor(1)), steps)
    assert cursor.epoch == 1
    resumed = second[0].next_batch_at(cursor)
    if resumed.epoch == 2:  # "drop": not one more batch of the new size
        assert second[0].steps_left(cursor.position) == 0
        return
    left = second[0].steps_left(cursor.position)
    rest, after_it = run(second, resumed, left)
    assert after_it == Cursor(2)
    whole = everything(order, 1).tolist()
    size = after[0] * after[1]
    expected = whole[len(served) : len(served) + left * size]
    assert rest[: len(expected)] == expected
    if last != "drop":
        assert (served + rest)[:count] == whole
    if last == "pad":
        assert sorted(served + rest) == list(range(count))


class Interrupted(Schedule):
    """A schedule whose plan() of one cursor is interrupted the first time."""

    def plan(self, cursor: Cursor, known: Any = None) -> BatchPlan:
        if cursor == Cursor(0, 24, 3) and not vars(self).get("done"):
            vars(self)["done"] = True
            raise KeyboardInterrupt
        return super().plan(cursor, known)


def test_planning_ahead_goes_on_after_an_interrupt() -> None:
    """Ctrl-C amid a plan shifts nothing: each batch planned ahead is the schedule's own."""
    schedule = Schedule(Shuffled(100, 5), 8)
    ahead = PlanAhead(Interrupted(Shuffled(100, 5), 8))
    cursor = Cursor()
    for _ in range(30):
        try:
            plan = ahead.plan(cursor)
        except KeyboardInterrupt:
            plan = ahead.plan(cursor)
        expected = schedule.plan(cursor)
        assert plan[:5] == expected[:5]
        assert (plan.indices == expected.indices).all()
        assert plan.valid.all()
        cursor = plan.after
