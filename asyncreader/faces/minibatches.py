"""climin's minibatches: aligned slices of several containers, in a random order each cycle."""

from __future__ import annotations

import itertools
import secrets
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from ..errors import ParamsError
from ..sampling.samplers import Replacement, Sampler, Shuffled
from ..sampling.schedule import Cursor, Schedule
from ..system.array_types import Int64
from ..system.checks import whole

T_co = TypeVar("T_co", covariant=True)

#: What a random order follows from; None: another one every time.
Random: TypeAlias = int | np.random.Generator | np.random.RandomState | None


class Container(Protocol[T_co]):
    """What is sliced along an axis; a list, or whatever has ``shape``."""

    def __getitem__(self, key: slice, /) -> T_co: ...


#: Indices of the sample order worked out at a time.
_AHEAD: Final = 1 << 16


def iter_minibatches(
    lst: Sequence[Container[T_co]],
    batch_size: int,
    dims: Sequence[int],
    n_cycles: int | None = None,
    random_state: Random = None,
    discard_uneven: bool = False,
    replace: bool = False,
    *,
    shuffle: str = "block",
    discard_illsized_batch: bool | None = None,
) -> Iterator[tuple[T_co, ...]]:
    """Tuples of aligned minibatches, one of each container in ``lst``.

    ``lst``: numpy arrays, memmaps, h5py datasets, zarr arrays, anything with ``shape`` that can be
    sliced, or lists; ``dims``: the axis of each along which samples lie (0 for a list).

    ``shuffle="block"``: the axis is cut into slices of ``batch_size``, and each cycle serves every
    slice once, in a new random order: one contiguous read a batch; for a numpy array it is a view.
    ``"sample"``: each cycle is a random order of all samples; a batch is read by its sorted
    numbers, in runs, into new arrays. ``replace``: slices (or samples) are drawn with replacement;
    a cycle has as many batches as without.

    ``n_cycles``: None for endless, k passes, 0 none. An incomplete slice is served as well, unless
    ``discard_uneven`` (climin's ``discard_illsized_batch``). ``random_state``: an int, a numpy
    RandomState or Generator (one number is drawn from it, now), or None for another order every
    time; nothing global is read or changed. No more than a batch is in memory.

    Raises ParamsError (a ValueError) when called, not at the first batch.
    """
    size = whole(1)("batch_size", batch_size)
    if discard_illsized_batch is not None:
        discard_uneven = discard_illsized_batch
    if shuffle not in ("block", "sample"):
        raise ParamsError('shuffle is "block" or "sample"', found=repr(shuffle))
    count = _common_length(lst, dims)
    if discard_uneven and count < size:
        raise ParamsError(
            "no batch is whole, and the others are discarded",
            found=f"{count} samples, batch_size {size}",
        )
    seed = _seed(random_state)
    cycles = _cycles(n_cycles)
    both: list[tuple[Any, int]] = [(one, int(dim)) for one, dim in zip(lst, dims, strict=True)]
    kind = Replacement if replace else Shuffled
    if shuffle == "block":
        steps = count // size if discard_uneven else -(-count // size)
        blocks = _blocks(kind(steps, seed), size, count, cycles)
        return (tuple(_slice(one, axis, part) for one, axis in both) for part in blocks)
    last = "drop" if discard_uneven else "short"
    batches = _indices(Schedule(kind(count, seed), size, last_batch=last), cycles)
    return (tuple(_gather(one, axis, rows) for one, axis in both) for rows in batches)


def _indices(schedule: Schedule, cycles: Iterator[int]) -> Iterator[Int64]:
    """What comes in each step of each cycle."""
    for cycle in cycles:
        for step in range(schedule.steps):
            yield schedule.plan(Cursor(cycle, step * schedule.batch, step)).indices


def _blocks(order: Sampler, size: int, count: int, cycles: Iterator[int]) -> Iterator[slice]:
    """The slices of each cycle in its order."""
    for blocks in _indices(Schedule(order, _AHEAD, last_batch="short"), cycles):
        for block in blocks.tolist():
            yield slice(block * size, min((block + 1) * size, count))


def _slice(container: Any, axis: int, part: slice) -> Any:
    return container[part] if axis == 0 else container[(*(slice(None),) * axis, part)]


def _gather(container: Any, axis: int, samples: Int64) -> Any:
    """These samples, read forwards: runs of neighbours in one slice each."""
    if not hasattr(container, "shape"):
        return [container[i] for i in samples.tolist()]
    if type(container) is np.ndarray:
        return np.take(container, samples, axis=axis)
    ascending, inverse = np.unique(samples, return_inverse=True)
    shape = [*container.shape]
    shape[axis] = ascending.size
    rows = np.empty(shape, container.dtype)
    breaks = np.flatnonzero(np.diff(ascending) != 1) + 1
    for run in np.split(np.arange(ascending.size), breaks):
        lo, hi = int(run[0]), int(run[-1]) + 1
        stored = slice(int(ascending[lo]), int(ascending[hi - 1]) + 1)
        _slice(rows, axis, slice(lo, hi))[...] = _slice(container, axis, stored)
    return np.take(rows, inverse, axis=axis)


def _common_length(lst: Sequence[Any], dims: Sequence[int]) -> int:
    """Samples of every container; ParamsError where they differ or are not known."""
    if isinstance(lst, np.ndarray) or hasattr(lst, "shape") or not hasattr(lst, "__len__"):
        raise ParamsError("lst is a list of containers", found=type(lst).__name__)
    if not hasattr(dims, "__len__") or len(lst) == 0 or len(lst) != len(dims):
        raise ParamsError(
            "dims names the sample axis of each container",
            found=f"{len(lst)} containers, dims {dims!r}",
        )
    lengths = []
    for number, (container, dim) in enumerate(zip(lst, dims, strict=True)):
        axis = whole(0)(f"the axis of container {number}", dim)
        shape = getattr(container, "shape", None)
        if shape is None:
            if axis or not hasattr(container, "__len__"):
                raise ParamsError(
                    f"container {number} has no shape: it is a list, along axis 0",
                    found=f"{type(container).__name__}, axis {axis}",
                )
            shape = (len(container),)
        if axis >= len(shape):
            raise ParamsError(
                f"container {number} has no axis {axis}", found=f"shape {tuple(shape)}"
            )
        lengths.append(int(shape[axis]))
    if len(set(lengths)) > 1 or lengths[0] == 0:
        raise ParamsError("the containers have no common number of samples", found=lengths)
    return lengths[0]


def _cycles(n_cycles: Any) -> Iterator[int]:
    if n_cycles is False:
        warnings.warn("n_cycles=False means None: for ever", DeprecationWarning, stacklevel=3)
        n_cycles = None
    if n_cycles is None:
        return itertools.count()
    return iter(range(whole(0)("n_cycles", n_cycles)))


def _seed(random_state: Any) -> int:
    """A seed of our own from any of numpy's, leaving everything global alone."""
    if random_state is None:
        return secrets.randbits(63)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 63, dtype=np.uint64))
    if hasattr(random_state, "__index__"):
        return whole(0)("random_state", random_state)
    raise ParamsError(
        "random_state is an int, a numpy RandomState or Generator, or None",
        found=type(random_state).__name__,
    )


# -- climin's smaller pieces ---------------------------------------------------------------------


def mini_slices(n_samples: int, batch_size: int) -> list[slice]:
    """Slices of ``batch_size`` that cover 0 .. n_samples-1 in order; the last may be shorter."""
    count, size = whole(0)("n_samples", n_samples), whole(1)("batch_size", batch_size)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def minibatches(arr: Container[T_co], batch_size: int, d: int = 0) -> list[T_co]:
    """The minibatches of ``arr`` along axis ``d``, in order; views of a numpy array."""
    axis = whole(0)("d", d)
    count = _common_length([arr], [axis])
    return [_slice(arr, axis, part) for part in mini_slices(count, batch_size)]


def draw_mini_slices(
    n_samples: int, batch_size: int, with_replacement: bool = False, random_state: Random = None
) -> Iterator[slice]:
    """Those slices in random order, without end: each once a cycle, or drawn with replacement."""
    count, size = whole(1)("n_samples", n_samples), whole(1)("batch_size", batch_size)
    kind = Replacement if with_replacement else Shuffled
    order = kind(-(-count // size), _seed(random_state))
    return _blocks(order, size, count, itertools.count())


def draw_mini_indices(
    n_samples: int, batch_size: int, random_state: Random = None
) -> Iterator[Int64]:
    """Sample numbers (int64, always ``batch_size`` of them) of whole batches, without end.

    One random order of all samples follows the other: a batch that begins in the tail of one ends
    in the head of the next, so that nothing is left out. Sort them (numpy.unique) to read h5py.
    """
    count, size = whole(1)("n_samples", n_samples), whole(1)("batch_size", batch_size)
    schedule = Schedule(Shuffled(count, _seed(random_state)), size, last_batch="wrap")
    places = (divmod(step * size, count) for step in itertools.count())
    return (schedule.plan(Cursor(*place)).indices for place in places)
