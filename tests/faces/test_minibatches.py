"""climin's minibatches by their numbers (C1-C10), and none of their bugs."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from asyncreader import AsyncReader, ParamsError
from asyncreader.faces import GeneratorEnqueuer, iter_minibatches
from asyncreader.faces.minibatches import (
    draw_mini_indices,
    draw_mini_slices,
    mini_slices,
    minibatches,
)

COUNT = 23
NUMBERS = np.arange(COUNT)
#: Sample i is known by its looks, along axis 0 and along axis 1.
ROWS = NUMBERS[:, None] * 10 + np.arange(4)
COLUMNS = (NUMBERS[:, None] * 10 + np.arange(3)).T.copy()


class Spy:
    """An array that notes what is read from it, and refuses what h5py would."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.read: list[tuple[int, int]] = []

    def __getitem__(self, key: Any) -> np.ndarray:
        axis = len(key) - 1 if isinstance(key, tuple) else 0
        last = key[-1] if isinstance(key, tuple) else key
        assert isinstance(last, slice)
        assert last.step is None
        assert 0 <= last.start < last.stop <= self.shape[axis]
        self.read.append((last.start, last.stop))
        return self._array[key].copy()


@pytest.fixture(params=["numpy", "memmap", "h5py", "h5py gzip", "zarr", "spy"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """ROWS and COLUMNS in a container of each kind."""
    kind = request.param
    if kind == "numpy":
        yield ROWS, COLUMNS
    elif kind == "spy":
        yield Spy(ROWS), Spy(COLUMNS)
    elif kind == "memmap":
        found = []
        for number, array in enumerate((ROWS, COLUMNS)):
            mapped = np.memmap(tmp_path / f"{number}", array.dtype, "w+", shape=array.shape)
            mapped[...] = array
            found.append(mapped)
        yield found[0], found[1]
    elif kind == "zarr":
        yield zarr.array(ROWS), zarr.array(COLUMNS)
    else:
        storage = {"chunks": True, "compression": "gzip"} if "gzip" in kind else {}
        with h5py.File(tmp_path / "set.h5", "w") as file:
            file.create_dataset("rows", data=ROWS, **storage)
            file.create_dataset("columns", data=COLUMNS, **storage)
            yield file["rows"], file["columns"]


def batches(size: int = 5, **options: Any) -> list[list[int]]:
    """Sample numbers of the batches of one container, two cycles."""
    options = {"n_cycles": 2, "random_state": 1, **options}
    return [batch.tolist() for (batch,) in iter_minibatches([NUMBERS], size, [0], **options)]


@pytest.mark.parametrize("shuffle", ["block", "sample"])
@pytest.mark.parametrize("replace", [False, True])
def test_C1_aligned_containers_with_an_axis_each(stored: Any, shuffle: str, replace: bool) -> None:
    """Each tuple has the same samples of every container, whatever axis they lie on."""
    rows, columns = stored
    found = []
    for a, b, c in iter_minibatches(
        *([rows, columns, list(range(COUNT))], 5, [0, 1, 0]),
        n_cycles=2,
        random_state=3,
        shuffle=shuffle,
        replace=replace,
    ):
        assert isinstance(c, list)
        assert (np.asarray(a) == ROWS[c]).all()
        assert (np.asarray(b) == COLUMNS[:, c]).all()
        assert a.dtype == ROWS.dtype
        found.append(c)
    assert len(found) == 10
    if not replace:
        assert sorted(n for batch in found[:5] for n in batch) == list(range(COUNT))


@pytest.mark.parametrize("shuffle", ["block", "sample"])
def test_C2_never_loads_the_data_set(shuffle: str) -> None:
    """Nothing is read before a batch is asked for, and then no more than that batch."""
    spy = Spy(ROWS)
    made = iter_minibatches([spy], 5, [0], random_state=0, shuffle=shuffle)
    assert spy.read == []
    for _ in range(12):
        spy.read.clear()
        (batch,) = next(made)
        assert sum(stop - start for start, stop in spy.read) == len(batch)


def test_C2_hdf5_data_set_larger_than_its_batch(tmp_path: Path) -> None:
    """A data set whose space is declared, not filled, far beyond memory, is served."""
    with h5py.File(tmp_path / "large.h5", "w") as file:
        data = file.create_dataset("x", (1 << 31, 512), "f4", chunks=(64, 512))
        (batch,) = next(iter_minibatches([data], 100, [0], random_state=0))
        assert batch.shape == (100, 512)


def test_C3_contiguous_blocks_in_random_order() -> None:
    """A batch is one contiguous slice, read at once; each cycle has another order of the same."""
    spy = Spy(ROWS)
    list(iter_minibatches([spy], 5, [0], n_cycles=3, random_state=0))
    assert len(spy.read) == 15
    cycles = [tuple(spy.read[i : i + 5]) for i in range(0, 15, 5)]
    expected = [(lo, min(lo + 5, COUNT)) for lo in range(0, COUNT, 5)]
    assert all(sorted(cycle) == expected for cycle in cycles)
    assert len({*cycles, tuple(expected)}) == 4
    (view,) = next(iter_minibatches([ROWS], 5, [0]))
    assert np.shares_memory(view, ROWS)  # of a numpy array no copy is made


def test_C3_sample_order_is_read_by_sorted_runs() -> None:
    """shuffle="sample" mixes samples, and reads them forwards: neighbours in one slice."""
    spy = Spy(ROWS)
    mixed = set()
    for (batch,) in iter_minibatches([spy], 9, [0], n_cycles=4, random_state=2, shuffle="sample"):
        assert spy.read == sorted(spy.read)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(spy.read))  # runs, not samples
        spy.read.clear()
        mixed |= {int(b - a) for a, b in itertools.pairwise(batch[:, 0] // 10)}
    assert len(mixed) > 10


def test_C4_endless_or_n_passes() -> None:
    """None goes on for ever, k is k passes, 0 none; False is None, with a warning."""
    endless = iter_minibatches([NUMBERS], 10, [0])
    assert len(list(itertools.islice(endless, 100))) == 100
    for cycles in (0, 1, np.int64(3)):
        assert len(batches(n_cycles=cycles)) == 5 * cycles
    with pytest.warns(DeprecationWarning, match="for ever"):
        endless = iter_minibatches([NUMBERS], 10, [0], n_cycles=False)
    assert len(list(itertools.islice(endless, 10))) == 10


@pytest.mark.parametrize("shuffle", ["block", "sample"])
def test_C5_keep_or_drop_the_uneven_batch(shuffle: str) -> None:
    """The batch that is not whole comes, at any place in the cycle, or never comes."""
    sizes = [len(batch) for batch in batches(shuffle=shuffle, n_cycles=40)]
    for i in range(0, 200, 5):
        assert sorted(sizes[i : i + 5]) == [3, 5, 5, 5, 5]
    places = {i % 5 for i, size in enumerate(sizes) if size == 3}
    assert places == ({0, 1, 2, 3, 4} if shuffle == "block" else {4})
    for name in ("discard_uneven", "discard_illsized_batch"):
        whole = batches(shuffle=shuffle, **{name: True})
        assert [len(batch) for batch in whole] == [5] * 8
    positional = iter_minibatches([NUMBERS], 5, [0], 1, 0, True)
    assert len(list(positional)) == 4


def test_C6_length_mismatch_is_detected_at_the_call() -> None:
    """Containers of other lengths are a ValueError of the call, not of the first batch."""
    with pytest.raises(ValueError, match="no common number"):
        iter_minibatches([ROWS, ROWS[:-1]], 5, [0, 0])
    with pytest.raises(ValueError, match=r"\[23, 4\]"):
        iter_minibatches([ROWS, ROWS], 5, [0, 1])


def test_C7_seed() -> None:
    """int, RandomState and Generator each fix the order; None is another one every time."""
    assert batches() == batches() != batches(random_state=2)
    for make in (np.random.RandomState, np.random.default_rng):
        assert batches(random_state=make(5)) == batches(random_state=make(5))
        used = make(5)
        assert batches(random_state=used) != batches(random_state=used)
    assert len({str(batches(2, random_state=None)) for _ in range(5)}) == 5


def test_C8_full_batches_across_cycles() -> None:
    """draw_mini_indices: always whole batches; each order of all samples is used up in turn."""
    for size in (1, 5, 23, 60):
        drawn = list(itertools.islice(draw_mini_indices(COUNT, size, 4), 46))
        assert all(batch.shape == (size,) and batch.dtype == np.int64 for batch in drawn)
        together = np.concatenate(drawn)
        for start in range(0, together.size - COUNT + 1, COUNT):
            assert sorted(together[start : start + COUNT]) == list(range(COUNT))
    with AsyncReader(
        *({"data": ROWS, "batch_size": 5, "shuffle": True, "last_batch": "wrap"},)
    ) as reader:
        assert {len(batch) for _ in range(3) for batch in reader} == {5}


def test_C9_lists() -> None:
    """Lists of anything are served along axis 0, beside arrays."""
    names = [f"sample {i}" for i in range(COUNT)]
    for shuffle in ("block", "sample"):
        found = [
            (name, int(row[0]) // 10)
            for part, rows in iter_minibatches(
                [names, ROWS], 4, [0, 0], 1, random_state=0, shuffle=shuffle
            )
            for name, row in zip(part, rows, strict=True)
        ]
        assert sorted(found, key=lambda pair: pair[1]) == [(names[i], i) for i in range(COUNT)]
    with pytest.raises(ParamsError, match="axis 0"):
        iter_minibatches([names], 4, [1])


def test_C10_single_pass_sources_in_an_args_loop() -> None:
    """An args loop takes any iterator: minibatches, or a stream read once, made ahead."""
    args = zip(iter_minibatches([NUMBERS], 5, [0], 2, 1), itertools.repeat({}), strict=False)
    assert [part.tolist() for (part,), _ in args] == batches()

    def stream() -> Iterator[np.ndarray]:
        for number in range(7):
            yield np.full(3, number)

    with GeneratorEnqueuer(stream()) as enqueuer:
        enqueuer.start(1, 3)
        args = ((batch, {}) for batch in enqueuer.get())
        assert [int(batch[0]) for batch, _ in args] == list(range(7))


# -- the bugs it does not have -------------------------------------------------------------------


def test_bug_global_random_state_is_left_alone() -> None:
    """Nothing global is seeded or drawn from, and two iterators do not disturb each other."""
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    alone = batches()
    one = iter_minibatches([NUMBERS], 5, [0], 2, 1)
    two = iter_minibatches([NUMBERS], 5, [0], 2, 9, shuffle="sample")
    both = [(a.tolist(), b.tolist()) for (a,), (b,) in zip(one, two, strict=True)]
    assert [a for a, _ in both] == alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_bug_replacement_is_a_switch_and_goes_on() -> None:
    """replace=True draws with replacement, in every cycle; draw_mini_slices goes on for ever."""
    drawn = batches(n_cycles=40, replace=True)
    assert len(drawn) == 200
    cycles = [drawn[i : i + 5] for i in range(0, 200, 5)]
    assert any(len({str(batch) for batch in cycle}) < 5 for cycle in cycles)
    assert {str(batch) for batch in drawn} == {str(batch) for batch in batches(n_cycles=1)}
    samples = [n for batch in batches(replace=True, shuffle="sample", n_cycles=1) for n in batch]
    assert len(set(samples)) < COUNT
    for again in (False, True):
        slices = list(itertools.islice(draw_mini_slices(COUNT, 5, again, 0), 50))
        assert all(part in mini_slices(COUNT, 5) for part in slices)
        whole = [sorted(s.start for s in slices[i : i + 5]) for i in range(0, 50, 5)]
        assert all(starts == [0, 5, 10, 15, 20] for starts in whole) is not again


def test_bug_h5py_wants_ascending_numbers(tmp_path: Path) -> None:
    """Random samples of an h5py data set are read without an unsorted list, repeats included."""
    with h5py.File(tmp_path / "set.h5", "w") as file:
        data = file.create_dataset("x", data=ROWS)
        for replace in (False, True):
            for numbers, rows in iter_minibatches(
                *([NUMBERS, data], 20, [0, 0], 3), random_state=1, replace=replace, shuffle="sample"
            ):
                assert (rows == ROWS[numbers]).all()


def test_bug_runs_on_python_3() -> None:
    """No TypeError of shuffling a range, no RuntimeError at the end, no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shuffle in ("block", "sample"):
            assert len(batches(shuffle=shuffle)) == 10


def test_smaller_pieces() -> None:
    """Slices cover all samples in order; minibatches are views along any axis."""
    assert mini_slices(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert mini_slices(0, 3) == []
    parts = minibatches(COLUMNS, 10, d=1)
    assert [part.shape for part in parts] == [(3, 10), (3, 10), (3, 3)]
    assert all(np.shares_memory(part, COLUMNS) for part in parts)
    assert (np.concatenate(parts, axis=1) == COLUMNS).all()


def test_at_the_door() -> None:
    """Every wrong argument is an error of the call itself."""
    for arguments, options in (
        (([NUMBERS], 0, [0]), {}),
        (([NUMBERS], 2.5, [0]), {}),
        (([NUMBERS], 5, [1]), {}),
        (([NUMBERS], 5, [-1]), {}),
        (([NUMBERS], 5, [0, 0]), {}),
        (([NUMBERS], 5, 0), {}),
        ((NUMBERS, 5, [0]), {}),
        (([], 5, []), {}),
        (([np.zeros((0, 3))], 5, [0]), {}),
        (([5], 5, [0]), {}),
        (([NUMBERS], 5, [0]), {"n_cycles": -1}),
        (([NUMBERS], 5, [0]), {"n_cycles": 1.5}),
        (([NUMBERS], 5, [0]), {"random_state": "seed"}),
        (([NUMBERS], 5, [0]), {"random_state": -1}),
        (([NUMBERS], 5, [0]), {"shuffle": "rows"}),
        (([NUMBERS], 50, [0]), {"discard_uneven": True}),
    ):
        with pytest.raises(ParamsError):
            iter_minibatches(*arguments, **options)
