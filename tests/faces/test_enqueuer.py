"""Keras' enqueuers by their numbers (K1-K14), and the recipe on top."""

import gc
import itertools
import multiprocessing
import os
import pickle
import random
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import face_sources as made
import h5py
import numpy as np
import pytest
from child_processes import run
from face_sources import Odd
from observed import HANG, until, waits

from asyncreader import (
    NothingQueuedError,
    ParamsError,
    ReaderClosedError,
    SourceNotFoundError,
    WorkerError,
)
from asyncreader.faces import (
    GeneratorEnqueuer,
    HDF5Matrix,
    OrderedEnqueuer,
    Sequence,
    get_batch,
)

#: use_multiprocessing; a process takes a third of a second to start
EITHER = pytest.mark.parametrize(
    "processes",
    [pytest.param(False, id="threads"), pytest.param(True, id="processes", marks=pytest.mark.slow)],
)


def some(enqueuer: Any, count: int, workers: int = 2, depth: int = 10) -> list[Any]:
    """The first ``count`` items."""
    with enqueuer:
        enqueuer.start(workers, depth)
        return list(itertools.islice(enqueuer.get(), count))


def everything(enqueuer: Any, workers: int = 2, depth: int = 10) -> list[Any]:
    """All items of a finite source."""
    with enqueuer:
        enqueuer.start(workers, depth)
        found = list(enqueuer.get())
        assert not enqueuer.is_running()
        return found


def threads() -> list[threading.Thread]:
    ours = ("asyncreader-enqueue", "asyncreader-dispatch")
    return [thread for thread in threading.enumerate() if thread.name.startswith(ours)]


def idle() -> bool:
    """Whether all threads of enqueuers wait: for a task, or for a free slot."""
    return all(map(waits, threads()))


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test leaves a thread or a process of an enqueuer."""
    before = len(threads())
    yield
    gc.collect()
    until(lambda: len(threads()) <= before)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_K1_wraps_any_generator(workers: int) -> None:
    """The items of a generator, or of any iterator, come whole and in its order: with many workers
    on one generator no ValueError, none twice and none lost (keras#1638)."""
    numbers = everything(GeneratorEnqueuer(x for x in range(3000)), workers, depth=7)
    assert numbers == list(range(3000))
    assert everything(GeneratorEnqueuer(iter("abc")), workers) == ["a", "b", "c"]
    assert some(GeneratorEnqueuer(itertools.count(5)), 40, workers) == list(range(5, 45))


def test_K3_bounded_prefetch() -> None:
    """No more than max_queue_size items are made ahead: not one more, whatever the workers."""
    given = 0

    def counting() -> Iterator[int]:
        nonlocal given
        while True:
            given += 1
            yield given

    enqueuer = GeneratorEnqueuer(counting())
    with enqueuer:
        enqueuer.start(workers=4, max_queue_size=5)
        items = enqueuer.get()
        for taken in range(10):
            until(lambda taken=taken: given >= 5 + taken and idle())
            assert given == 5 + taken
            assert next(items) == taken + 1

    class Counting(made.Plain):
        def __init__(self) -> None:
            self.made: list[int] = []

        def __getitem__(self, index: int) -> int:
            self.made.append(index)
            return index

    counted = Counting()
    with OrderedEnqueuer(counted) as ordered:
        ordered.start(workers=4, max_q_size=3, wait_time=0.05)
        until(lambda: len(counted.made) >= 3 and idle())
        assert len(counted.made) == 3


@pytest.mark.slow
def test_K4_seed_per_worker() -> None:
    """Worker i draws from random_seed + i, set in its own process; the parent's state stays."""
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    found = some(GeneratorEnqueuer(made.draws, True, random_seed=40), 6, workers=2)
    for worker in (0, 1):
        own, theirs = random.Random(40 + worker), np.random.RandomState(40 + worker)
        expected = [(own.random(), float(theirs.random_sample())) for _ in range(3)]
        assert found[worker::2] == expected
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert some(GeneratorEnqueuer(made.draws, True, seed=40), 6, workers=2) == found
    unseeded = some(GeneratorEnqueuer(made.draws, pickle_safe=True), 4, workers=2)
    assert len(set(unseeded)) == 4
    assert len(set(some(GeneratorEnqueuer(made.pids, True), 12, 3))) == 3


def test_K5_ordered_parallel_loading_by_index() -> None:
    """Batches are made in parallel and come in index order, with any number of workers."""

    class Backwards(Sequence):
        """Batch 2 k is ready only when batch 2 k + 1 is."""

        def __init__(self) -> None:
            self.done = [threading.Event() for _ in range(20)]

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            if index % 2 == 0:
                assert self.done[index + 1].wait(HANG)
            self.done[index].set()
            return index

    for workers in (2, 3, 8):
        assert some(OrderedEnqueuer(Backwards()), 20, workers) == list(range(20))


@EITHER
def test_K6_K12_epoch_hooks_of_two_at_once(processes: bool) -> None:
    """on_epoch_end is called once an epoch, in this process: after the last batch of an epoch was
    made, and all of the next epoch sees it. Two enqueuers that are read in turn do not mix."""
    one, two = made.Numbers(4), made.Numbers(3)
    two.epoch = 50
    with OrderedEnqueuer(one, processes) as a, OrderedEnqueuer(two, processes) as b:
        a.start(3)
        b.start(1)
        pairs = list(itertools.islice(zip(a.get(), b.get(), strict=False), 9))
    assert [pair[0] for pair in pairs] == [i + 100 * e for e in range(3) for i in range(4)][:9]
    assert [pair[1] for pair in pairs] == [5000 + i + 100 * e for e in range(3) for i in range(3)]
    assert one.epoch in (2, 3, 4, 5)  # it may be ahead by what is prefetched


@pytest.mark.slow
def test_K7_shuffle_per_epoch() -> None:
    """Each epoch has another order of the same batches: the same for any workers and run."""
    orders = []
    for workers, processes in ((1, False), (4, False), (2, True)):
        random.seed(workers)  # the global state plays no part
        enqueuer = OrderedEnqueuer(made.Plain(), processes, shuffle=True)
        orders.append(some(enqueuer, 21, workers))
    assert orders[0] == orders[1] == orders[2]
    epochs = [tuple(orders[0][i : i + 7]) for i in range(0, 21, 7)]
    assert all(sorted(epoch) == [i * i for i in range(7)] for epoch in epochs)
    assert len(set(epochs)) == 3
    other = some(OrderedEnqueuer(made.Plain(), shuffle=True, random_seed=1), 21)
    assert other != orders[0]


@pytest.mark.slow
def test_K7_augmentation_does_not_depend_on_workers() -> None:
    """In worker processes what a batch draws is a function of (seed, epoch, index)."""
    one, two = (some(OrderedEnqueuer(made.Noise(), True), 12, workers) for workers in (1, 2))
    assert one == two
    assert len({draw for _, draw, _ in one}) == 12
    other = some(OrderedEnqueuer(made.Noise(), True, random_seed=9), 3, 1)
    assert other != one[:3]


@EITHER
@pytest.mark.parametrize(
    ("source", "workers", "expected"),
    [
        *((partial(made.count_to, count), 1, list(range(count))) for count in (0, 1, 25)),
        (partial(made.count_to, 2), 2, [0, 0, 1, 1]),
        (partial(made.share_of, 21), 2, list(range(21))),
        (made.uneven, 3, ["1:0", "2:0", "1:1", "2:1", "1:2", "2:2", "2:3", "2:4", "2:5"]),
    ],
)
def test_K2_K8_finite_sources_drain_completely(
    processes: bool, source: Callable[..., Any], workers: int, expected: list[Any]
) -> None:
    """Every item of a finite source is delivered, in the same order by threads and processes, then
    get() ends and is_running() is False."""
    assert everything(GeneratorEnqueuer(source, processes), workers, depth=2) == expected


def test_K8_slow_consumer_gets_all() -> None:
    """Items made before the source ended are still there when the consumer comes late."""
    with GeneratorEnqueuer(made.count_to(6)) as enqueuer:
        enqueuer.start(1, 10)
        until(lambda: enqueuer._run.ahead._finished)
        assert enqueuer.is_running()
        assert list(enqueuer.get()) == list(range(6))
        assert not enqueuer.is_running()
        assert list(enqueuer.get()) == []


@EITHER
@pytest.mark.parametrize("good", [0, 4])
def test_K9_errors_keep_type_and_traceback(processes: bool, good: int) -> None:
    """What was made before comes first; then the original error, with the worker's trace. That of
    the callable which makes the generator, too."""
    source = partial(made.raises_after, good) if good else made.raises_at_once
    with GeneratorEnqueuer(source, processes) as enqueuer:
        enqueuer.start(1, 10)
        items = enqueuer.get()
        assert list(itertools.islice(items, good)) == list(range(good))
        with pytest.raises(Odd, match="after 4" if good else "at once") as caught:
            next(items)
        assert "raises_a" in "".join(traceback.format_exception(caught.value))
        assert list(enqueuer.get()) == []  # a generator that raised has ended


@EITHER
def test_K9_an_error_belongs_to_its_batch(processes: bool) -> None:
    """A sequence goes on behind a batch that could not be made."""
    with OrderedEnqueuer(made.Faulty(6), processes) as enqueuer:
        enqueuer.start(2)
        items = enqueuer.get()
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(Odd, match="batch 3"):
            next(items)
        assert list(itertools.islice(enqueuer.get(), 4)) == [4, 5, 0, 1]


class BadHook(made.Plain):
    def on_epoch_end(self) -> None:
        raise Odd("hook")


class Shrinks(made.Numbers):
    def on_epoch_end(self) -> None:
        self.count -= 1


class Stops(made.Plain):
    def __getitem__(self, index: int) -> int:
        raise StopIteration("inside")


@pytest.mark.parametrize(
    ("sequence", "good", "kind", "words"),
    [
        (BadHook(), [i * i for i in range(7)], Odd, "hook"),
        (Shrinks(3), [0, 1, 2, 0, 1, 0], ParamsError, "became empty"),
        (Stops(), [], RuntimeError, "StopIteration"),
    ],
)
def test_K9_what_ends_a_sequence(sequence: Any, good: list[int], kind: type, words: str) -> None:
    """An error of the hook, or of a sequence that became empty, comes behind the batches of its
    epoch; a batch that raises StopIteration does not end the data silently."""
    with OrderedEnqueuer(sequence) as enqueuer:
        enqueuer.start(2)
        items = enqueuer.get()
        assert list(itertools.islice(items, len(good))) == good
        with pytest.raises(kind, match=words):
            next(items)


@pytest.mark.slow
def test_K9_errors_that_cannot_be_pickled() -> None:
    """An error, or an item, that cannot cross the pipe says so, with the worker's trace."""
    for source, kind, text in (
        (made.raises_one_way, RuntimeError, "OneWay: only"),
        (made.raises_local, RuntimeError, "Local: nobody else knows me"),
        (made.unpicklable_items, TypeError, "pickle"),
    ):
        with GeneratorEnqueuer(source, True) as enqueuer:
            enqueuer.start(1)
            items = enqueuer.get()
            assert next(items) == 0
            with pytest.raises(kind, match=text) as caught:
                next(items)
            assert "worker process 0" in "".join(caught.value.__notes__)


@EITHER
def test_K10_start_and_stop_are_repeatable(processes: bool) -> None:
    """stop() ends all workers and drops what was prefetched; start() begins anew."""
    enqueuer = OrderedEnqueuer(made.Plain(), processes)
    before = len(threads())
    for _ in range(2):
        enqueuer.start(2)
        assert enqueuer.is_running()
        items = enqueuer.get()
        assert list(itertools.islice(items, 3)) == [0, 1, 4]
        assert processes or len(threads()) == before + 3
        with pytest.raises(ParamsError, match="running"):
            enqueuer.start()
        enqueuer.stop()
        enqueuer.stop(timeout=5)
        assert not enqueuer.is_running()
        assert list(items) == []
        assert len(threads()) == before
        assert multiprocessing.active_children() == []


def test_K10_a_generator_goes_on_after_a_stop() -> None:
    """A bare generator is the caller's: started again it goes on behind what was prefetched."""
    enqueuer = GeneratorEnqueuer(itertools.count())
    assert some(enqueuer, 3, depth=4) == [0, 1, 2]
    later = some(enqueuer, 3)
    assert later == list(range(later[0], later[0] + 3))
    assert 3 <= later[0] <= 8


@EITHER
def test_K11_none_is_skipped(processes: bool) -> None:
    """Items that are None are left out."""
    assert everything(GeneratorEnqueuer(partial(made.with_nones, 20), processes), 1) == list(
        range(20)
    )
    if not processes:

        class Sparse(made.Plain):
            def __getitem__(self, index: int) -> int | None:
                return index if index % 2 else None

        assert some(OrderedEnqueuer(Sparse()), 6) == [1, 3, 5] * 2


SCRIPT = """
from asyncreader.faces import OrderedEnqueuer

class Doubles:
    def __len__(self):
        return 5
    def __getitem__(self, index):
        import multiprocessing
        assert multiprocessing.current_process().name != "MainProcess"
        return 2 * index

if __name__ == "__main__":
    forgotten = OrderedEnqueuer(Doubles(), use_multiprocessing=True)
    forgotten.start(2)
    items = forgotten.get()
    print([next(items) for _ in range(6)])
"""


@pytest.mark.slow
def test_K13_spawn_from_a_script(tmp_path: Path) -> None:
    """Workers are spawned from a plain script; a forgotten enqueuer does not keep it running."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ended = run([sys.executable, "-W", "error", script])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "[0, 2, 4, 6, 8, 0]\n"


# -- K14: HDF5Matrix -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["contiguous", "gzip", "rank 2", "NCHW"])
def matrix_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    shape = {"rank 2": (50, 7), "NCHW": (50, 3, 8, 9)}.get(request.param, (50, 6, 5, 3))
    data = np.random.default_rng(3).integers(0, 255, shape, dtype=np.uint8)
    path = tmp_path_factory.mktemp("matrix") / "set.h5"
    storage = {"chunks": (4, *shape[1:]), "compression": "gzip"} if request.param == "gzip" else {}
    with h5py.File(path, "w") as file:
        file.create_dataset("group/x", data=data, **storage)
    return path, data


def test_K14_hdf5_slice_view(matrix_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows start to end by number, slice or list, in any order, as stored and as numpy would."""
    path, data = matrix_file
    view = data[10:40]
    with HDF5Matrix(path, "group/x", start=10, end=40) as matrix:
        assert len(matrix) == 30
        assert (matrix.shape, matrix.dtype) == (view.shape, view.dtype)
        assert (matrix.ndim, matrix.size) == (view.ndim, view.size)
        for key in (
            *(0, 29, -1, -30, np.int64(3), slice(None), slice(2, 9), slice(20, 30, 3)),
            *(slice(None, None, -1), slice(5, 5), [3, 1, 1, 28], np.array([7, -2]), []),
        ):
            wanted = view[key] if not isinstance(key, list) else view[np.array(key, np.int64)]
            found = matrix[key]
            assert found.dtype == view.dtype
            assert found.shape == wanted.shape
            assert (found == wanted).all()
        # slices, too: Keras' code, to which a loop over too many steps is an error
        for key in (30, -31, [0, 30], slice(30, 31), slice(20, 31), slice(1000, 1001), slice(31)):
            with pytest.raises(IndexError):
                _ = matrix[key]
        for key in ("a", [[1]], [0.5]):
            with pytest.raises(ParamsError):
                _ = matrix[key]
        monkeypatch.chdir(os.path.dirname(path))
        with HDF5Matrix(os.path.basename(path), "group/x", 10, 40) as relative:
            monkeypatch.chdir("/")
            again = pickle.loads(pickle.dumps(relative))
        assert (again[:] == view).all()
        assert "group/x" in repr(matrix)
    with pytest.raises(ReaderClosedError):
        _ = matrix[0]


def test_K14_normaliser(matrix_file: Any) -> None:
    """The normaliser sees the rows that are handed out; shape and dtype are those it gives."""
    path, data = matrix_file
    with HDF5Matrix(path, "group/x", normalizer=lambda rows: rows / np.float32(255)) as matrix:
        assert matrix.dtype == np.float32
        assert (matrix[[4, 2]] == data[[4, 2]] / np.float32(255)).all()
        assert (matrix[3] == data[3] / np.float32(255)).all()


def test_K14_what_is_refused(matrix_file: Any, tmp_path: Path) -> None:
    """No such file or data set, and rows that are not there, are errors when it is opened."""
    path, _ = matrix_file
    for start, end in ((0, 51), (5, 5), (9, 3), (50, None)):
        with pytest.raises(ParamsError, match="select no rows"):
            HDF5Matrix(path, "group/x", start, end)
    with pytest.raises(ParamsError, match="no field 'group/y'"):
        HDF5Matrix(path, "group/y")
    with pytest.raises(SourceNotFoundError):
        HDF5Matrix(tmp_path / "none.h5", "x")


# -- get_batch -----------------------------------------------------------------------------------


@EITHER
def test_recipe_gives_batches_of_samples(processes: bool) -> None:
    """Tuples come as lists of each field, whole batches first, and the rest is not lost. With
    (worker, workers) every sample comes exactly once, from several workers."""
    given: dict[str, Any] = {"use_multiprocessing": processes}
    batches = get_batch(1, made.sample_pairs, 4, stop=10, random_seed=1, **given)
    assert list(batches) == [
        ([0, 1, 2, 3], ["0", "1", "2", "3"]),
        ([4, 5, 6, 7], ["4", "5", "6", "7"]),
        ([8, 9], ["8", "9"]),
    ]
    shared = get_batch(3, made.shared_pairs, 2, stop=13, **given)
    assert sorted(n for numbers, _ in shared for n in numbers) == list(range(13))


@pytest.mark.slow
def test_recipe_single_samples() -> None:
    """A function of single samples: independent random ones in each process, seeded there."""
    batches = list(itertools.islice(get_batch(2, made.random_sample, 3, random_seed=5), 4))
    for worker in (0, 1):
        rng = np.random.RandomState(5 + worker)
        expected = [[float(rng.random_sample()) for _ in range(3)] for _ in range(2)]
        assert batches[worker::2] == expected
    five = list(get_batch(1, made.FiveSamples(), 2, use_multiprocessing=False))
    assert five == [[1, 2], [3, 4], [5]]


@EITHER
def test_recipe_raises_what_went_wrong(processes: bool) -> None:
    """A permanent error is raised, once: it is not swallowed, and nothing loops for ever."""
    batches = get_batch(2, made.failing_sample, 3, use_multiprocessing=processes)
    with pytest.raises(Odd, match="no sample"):
        next(batches)
    assert list(batches) == []


def test_recipe_tells_of_duplicates() -> None:
    """A source without shares that ends in several workers is an error: all came several times."""
    batches = get_batch(2, made.sample_pairs, 50, stop=10, use_multiprocessing=False)
    with pytest.raises(ParamsError, match=r"\(worker, workers\)"):
        list(batches)


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dead_worker_is_an_error() -> None:
    """A process that dies is a WorkerError that says how: never None for ever."""
    with GeneratorEnqueuer(partial(made.dies_after, 2), True) as enqueuer:
        enqueuer.start(1, 1)
        with pytest.raises(WorkerError, match="SIGKILL"):
            list(enqueuer.get())
        assert not enqueuer.is_running()


def test_stuck_threads_are_left_behind() -> None:
    """stop() waits a second for user code in a thread, warns with its stack, and returns."""
    inside, gate = threading.Event(), threading.Event()

    def stuck_here() -> Iterator[int]:
        inside.set()
        gate.wait(HANG)
        yield 1

    enqueuer = GeneratorEnqueuer(stuck_here())
    enqueuer.start()
    assert inside.wait(HANG)
    with pytest.warns(RuntimeWarning, match="stuck_here"):
        enqueuer.stop(timeout=0.05)
    gate.set()


@pytest.mark.slow
def test_stuck_processes_are_killed() -> None:
    """stop() kills a process that is stuck in user code; the prefetched items are dropped."""
    enqueuer = GeneratorEnqueuer(made.stays_for_ever, True)
    enqueuer.start(2)
    assert next(enqueuer.get()) == 0
    enqueuer.stop()
    assert multiprocessing.active_children() == []


def test_a_forgotten_enqueuer_is_collected() -> None:
    """Workers do not keep it alive; an iterator in use does."""

    def opened() -> tuple[Callable[[], Any], Iterator[int]]:
        enqueuer = GeneratorEnqueuer(itertools.count())
        enqueuer.start()
        return weakref.ref(enqueuer), enqueuer.get()

    gone, items = opened()
    gc.collect()
    assert [next(items) for _ in range(100)] == list(range(100))
    del items
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_large_items_cross_the_pipe() -> None:
    """Arrays come from processes whole, and may be written to."""
    items = everything(GeneratorEnqueuer(partial(made.arrays, 5), True), 1, depth=2)
    for i, item in enumerate(items):
        assert (item == i).all()
        item += 1


# -- at the door ---------------------------------------------------------------------------------


def started(enqueuer: Any, *arguments: Any) -> None:
    """Start it; its threads end with the block."""
    with enqueuer:
        enqueuer.start(*arguments)


#: What is wrong, and what the error says.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    **{
        f"{wrong!r} workers": (partial(started, OrderedEnqueuer(made.Plain()), wrong), "workers")
        for wrong in (0, -1, 1.5, True, "2", None)
    },
    "a queue of 0": (partial(started, OrderedEnqueuer(made.Plain()), 1, 0), "max_queue_size"),
    "no sequence": (lambda: OrderedEnqueuer(made.count_to(3)), "__getitem__"),
    "an empty sequence": (lambda: started(OrderedEnqueuer([])), "empty"),
    "a seed below 0": (lambda: GeneratorEnqueuer(made.draws, random_seed=-1), "random_seed"),
    "a list": (lambda: GeneratorEnqueuer([1, 2, 3]), "iter"),
    # it cannot be duplicated silently
    "a generator for processes": (
        lambda: GeneratorEnqueuer(made.count_to(3), use_multiprocessing=True),
        r"pass the function that makes it .*worker, workers",
    ),
    "a local function for processes": (
        lambda: started(GeneratorEnqueuer(lambda: iter(()), use_multiprocessing=True)),
        r"top of a module.*use_multiprocessing=False",
    ),
    "get_batch of 0 workers": (lambda: get_batch(0, made.random_sample), "num_workers"),
    "get_batch of 0 samples": (lambda: get_batch(1, made.random_sample, 0), "batch_size"),
    "get_batch of no queue": (
        lambda: get_batch(1, made.random_sample, max_queue_size=0),
        "max_queue_size",
    ),
    "get_batch of a number": (lambda: get_batch(1, made.random_sample()), "not what it returns"),
    "get_batch without arguments": (lambda: get_batch(1, made.sample_pairs), "1 missing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    """Wrong arguments are errors of the call itself, before a worker starts."""
    call, words = REFUSED[what]
    with pytest.raises(ParamsError, match=words):
        call()


def test_at_the_door() -> None:
    """get() needs start(), stop() does not; a list is a sequence; Sequence is to be derived."""
    enqueuer = OrderedEnqueuer(["a", "b"])
    with pytest.raises(NothingQueuedError, match="start"):
        enqueuer.get()
    assert not enqueuer.is_running()
    enqueuer.stop()
    assert some(enqueuer, 3) == ["a", "b", "a"]
    with pytest.raises(NotImplementedError):
        _ = Sequence()[0]
    with pytest.raises(NotImplementedError):
        len(Sequence())
