"""climin's minibatches by their numbers (C1-C10)."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from asyncreader import ParamsError
from asyncreader.faces import iter_minibatches
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


#: Makes a container of each kind.
CONTAINERS: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "numpy": lambda folder, array: array,
    "h5py": lambda folder, array: h5py.File(folder / f"{len(array)}", "w").create_dataset(
        "x", data=array
    ),
    "zarr": lambda folder, array: zarr.array(array),
    "spy": lambda folder, array: Spy(array),
}


def batches(size: int = 5, **options: Any) -> list[list[int]]:
    """Sample numbers of the batches of one container, two cycles."""
    options = {"n_cycles": 2, "random_state": 1, **options}
    return [batch.tolist() for (batch,) in iter_minibatches([NUMBERS], size, [0], **options)]


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("shuffle", ["block", "sample"])
@pytest.mark.parametrize("replace", [False, True])
def test_C1_C9_aligned_containers_with_an_axis_each(
    kind: str, shuffle: str, replace: bool, tmp_path: Path
) -> None:
    """Each tuple has the same samples of every container, whatever axis they lie on, of a list, and
    of h5py's, which take numbers in ascending order alone."""
    rows, columns = (CONTAINERS[kind](tmp_path, array) for array in (ROWS, COLUMNS))
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


def test_C4_C10_endless_or_n_passes() -> None:
    """None goes on for ever, k is k passes, 0 none; False is None, with a warning. What comes is an
    iterator, as an args loop takes it."""
    endless = iter_minibatches([NUMBERS], 10, [0])
    args = zip(endless, itertools.repeat({}), strict=False)
    assert len(list(itertools.islice(args, 100))) == 100
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
    """int, RandomState and Generator each fix the order; None is another one every time. Nothing
    global is seeded or drawn from, and two iterators do not disturb each other."""
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    alone = batches()
    assert alone == batches() != batches(random_state=2)
    for make in (np.random.RandomState, np.random.default_rng):
        assert batches(random_state=make(5)) == batches(random_state=make(5))
        used = make(5)
        assert batches(random_state=used) != batches(random_state=used)
    assert len({str(batches(2, random_state=None)) for _ in range(5)}) == 5
    one = iter_minibatches([NUMBERS], 5, [0], 2, 1)
    two = iter_minibatches([NUMBERS], 5, [0], 2, 9, shuffle="sample")
    assert [a.tolist() for (a,), _ in zip(one, two, strict=True)] == alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_C8_full_batches_across_cycles() -> None:
    """draw_mini_indices: always whole batches; each order of all samples is used up in turn."""
    for size in (1, 5, 23, 60):
        drawn = list(itertools.islice(draw_mini_indices(COUNT, size, 4), 46))
        assert all(batch.shape == (size,) and batch.dtype == np.int64 for batch in drawn)
        together = np.concatenate(drawn)
        for start in range(0, together.size - COUNT + 1, COUNT):
            assert sorted(together[start : start + COUNT]) == list(range(COUNT))


def test_replacement_is_a_switch_and_goes_on() -> None:
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


def test_smaller_pieces() -> None:
    """Slices cover all samples in order; minibatches are views along any axis."""
    assert mini_slices(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert mini_slices(0, 3) == []
    parts = minibatches(COLUMNS, 10, d=1)
    assert [part.shape for part in parts] == [(3, 10), (3, 10), (3, 3)]
    assert all(np.shares_memory(part, COLUMNS) for part in parts)
    assert (np.concatenate(parts, axis=1) == COLUMNS).all()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
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
        (([["a", "list"]], 1, [1]), {}),
        *((([NUMBERS], 5, [0]), {"n_cycles": wrong}) for wrong in (-1, 1.5)),
        *((([NUMBERS], 5, [0]), {"random_state": wrong}) for wrong in ("seed", -1)),
        (([NUMBERS], 5, [0]), {"shuffle": "rows"}),
        (([NUMBERS], 50, [0]), {"discard_uneven": True}),
    ],
)
def test_what_is_refused(arguments: Any, options: dict[str, Any]) -> None:
    """Every wrong argument is an error of the call itself."""
    with pytest.raises(ParamsError):
        iter_minibatches(*arguments, **options)
