"""The order over shards, and resuming it with another number of ranks, again and again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncreader.sampling import sampler_of
from asyncreader.sampling.blocks import FILES_TOGETHER, Blocks
from asyncreader.sampling.samplers import Sampler, Storage
from asyncreader.sampling.schedule import Cursor, Schedule

counts_of = st.lists(st.integers(1, 60), min_size=2, max_size=70)


def over(counts: list[int], seed: int, block: int, window: int) -> Blocks:
    ends = np.cumsum(np.array(counts, np.int64))
    return Blocks(int(ends[-1]), seed, block, window, ends)


def everything(order: Sampler, epoch: int = 0) -> np.ndarray:
    return order.records(epoch, np.arange(order.length, dtype=np.int64))


@settings(max_examples=60, deadline=None)
@given(counts_of, st.integers(0, 2**64 - 1), st.integers(0, 3), st.integers(1, 70))
def test_every_sample_once(counts: list[int], seed: int, epoch: int, block: int) -> None:
    """Whatever the sizes of shards and blocks, an epoch is a permutation of all samples."""
    for window in (block, 3 * block, 10**6 // block * block):
        order = over(counts, seed, block, window)
        assert np.array_equal(np.sort(everything(order, epoch)), np.arange(order.length))


def test_blocks_stay_in_their_shard() -> None:
    """Without mixing, runs of the order are whole blocks of one shard, or its one short end."""
    counts = [10, 23, 8, 4, 1, 17] * 5
    order = over(counts, seed=3, block=8, window=8)
    assert order.ends is not None
    starts = order.ends - counts
    shard = np.searchsorted(order.ends, everything(order), side="right")
    block = shard * 1000 + (everything(order) - starts[shard]) // 8
    # each block is served in at most two windows, so its samples lie within two of them
    for number in np.unique(block):
        places = np.flatnonzero(block == number)
        assert places[-1] - places[0] < 2 * 8 + 8


@pytest.mark.slow
def test_few_shards_at_a_time() -> None:
    """A window of positions visits the shards of two groups at most, however many there are."""
    counts = np.random.default_rng(0).integers(900, 1100, 400).tolist()
    order = over(counts, seed=1, block=9, window=900)
    assert order.ends is not None
    shard = np.searchsorted(order.ends, everything(order), side="right")
    seen = [np.unique(shard[lo : lo + 900]).size for lo in range(0, order.length, 900)]
    assert max(seen) <= 2 * FILES_TOGETHER
    assert np.median(seen) >= FILES_TOGETHER  # and mixes that many
    first = everything(order, 1)[:900]
    assert np.unique(np.searchsorted(order.ends, first, side="right")).size <= 2 * FILES_TOGETHER
    assert set(shard[:900]) != set(np.searchsorted(order.ends, first, side="right"))
    tiny = over([1, 2, 3] * 1000, seed=1, block=9, window=900)
    assert tiny.ends is not None
    shard = np.searchsorted(tiny.ends, everything(tiny)[:900], side="right")
    assert np.unique(shard).size <= 900  # small ones as many as fill a window or two


def test_one_shard_is_the_plain_order() -> None:
    """A set of one shard has the order of the same samples in a file."""
    np.testing.assert_array_equal(
        everything(over([100], 5, 7, 21)), everything(Blocks(100, 5, 7, 21))
    )


def test_virtual_shards_cost_tables_only() -> None:
    """A million shards of a million samples: plans need tables of that many numbers, no more."""
    ends = np.arange(1, 10**6 + 1) * 10**6
    order = Blocks(10**12, 7, block=9, window=16_380, ends=ends)
    schedule = Schedule(order, 256)
    for position in (0, 10**6, 10**11, 10**12 - 256):
        plan = schedule.plan(Cursor(2, position, position // 256))
        assert np.unique(plan.indices).size == 256
        assert 0 <= plan.indices.min() <= plan.indices.max() < 10**12
    assert len(order._recent) <= 2


# -- another number of ranks ---------------------------------------------------------------------


def step(ranks: list[Schedule], cursor: Cursor) -> tuple[list[int], Cursor]:
    """Record numbers that all ranks get at ``cursor``, joined, and the cursor behind it."""
    rows: list[int] = []
    for rank in ranks:
        plan = rank.plan(cursor)
        rows += [int(n) if ok else -1 for n, ok in zip(plan.indices, plan.valid, strict=True)]
    return rows, ranks[0].advance(cursor)


@settings(max_examples=60, deadline=None)
@given(
    counts_of,
    st.sampled_from([False, True, "block", "replacement"]),
    st.sampled_from(["drop", "pad", "wrap"]),
    st.integers(0, 999),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 6)), max_size=12),
)
def test_worlds_come_and_go(
    counts: list[int], shuffle: Any, last: str, seed: int, changes: list[tuple[int, int, int]]
) -> None:
    """Ranks and batch sizes change after any steps: the global order goes on, each sample once."""
    ends = np.cumsum(np.array(counts, np.int64))
    order = sampler_of(shuffle, seed, 9, Storage("memory", int(ends[-1]), 3, ends=ends))
    served: dict[int, list[int]] = {0: []}
    cursor = Cursor()
    for world, batch, steps in changes:
        ranks = [Schedule(order, batch, rank, world, last) for rank in range(world)]
        if last == "drop" and ranks[0].steps == 0:
            continue
        cursor = ranks[0].next_batch_at(cursor)  # what loading the state does
        for _ in range(steps):
            epoch = cursor.epoch
            rows, after = step(ranks, cursor)
            inside = rows[: order.length - cursor.position]  # behind it: padded, or the next head
            served.setdefault(epoch, []).extend(inside)
            if last == "pad":
                assert set(rows[len(inside) :]) <= {-1}
            if last == "wrap":
                head = order.records(epoch + 1, np.arange(min(order.length, len(rows))))
                behind = rows[len(inside) :][: order.length]
                assert behind == head[: len(behind)].tolist()
            cursor = after
    for epoch, rows in served.items():
        whole = everything(order, epoch).tolist()
        assert rows == whole[: len(rows)]
        if epoch < cursor.epoch and last != "drop":
            assert len(rows) == len(whole)
        if epoch < cursor.epoch and last == "drop":
            assert len(whole) - len(rows) < max(w * b for w, b, _ in changes)
