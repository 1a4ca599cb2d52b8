"""ParaLoad: the features of paraload by their numbers (P1-P11), and none of its eight bugs."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from child_processes import run
from face_sources import Odd
from observed import HANG, in_threads, until, waits

from asyncreader import NothingQueuedError, ParamsError, ReaderClosedError
from asyncreader.faces import ParaLoad


class Numbers:
    """A callback over one shared counter: fills batches with 0, 1, 2 ... and then says False."""

    def __init__(self, count: int, end: Any = False) -> None:
        self.count = count
        self.end = end
        self.given = 0
        self.seen: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, batch: np.ndarray) -> Any:
        with self._lock:
            number = self.given
            self.given += 1
            self.seen.append(id(batch))
        if number >= self.count:
            return self.end
        batch[...] = number
        return None


def buffer(slots: int) -> list[np.ndarray]:
    return [np.full(5, -1) for _ in range(slots)]


def drain(loader: ParaLoad) -> list[int]:
    """Everything to the end, each batch returned at once."""
    found = []
    while (index := loader.get_available_data_index()) != -1:
        batch = loader.buffer[index]
        assert (batch == batch[0]).all()
        found.append(int(batch[0]))
        loader.return_back_for_refill(index)
    return found


def loaders() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("asyncreader-load")]


def idle() -> bool:
    """Whether all loaders wait for a free slot."""
    return all(map(waits, loaders()))


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test leaves a loader that another one would count."""
    yield
    gc.collect()
    until(lambda: not loaders())


# -- features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 100])
def test_P1_any_number_of_preallocated_slots(slots: int) -> None:
    """The ring is the caller's list, of any length; every slot of it is used when all are held."""
    made = buffer(slots)
    with ParaLoad(made, Numbers(slots)) as loader:
        loader.start_loaders()
        held = [loader.get_available_data_index() for _ in range(slots)]
        assert sorted(held) == list(range(slots))
        assert sorted(int(made[i][0]) for i in held) == list(range(slots))
        assert all(a is b for a, b in zip(loader.buffer, made, strict=True))


@pytest.mark.parametrize("asked", [1, 3, 8, None])
def test_P2_configurable_loader_threads(asked: int | None) -> None:
    """As many callbacks run at once as loaders were asked for; the default is two."""
    count = asked or 2
    together = threading.Barrier(count, timeout=HANG)

    def callback(batch: list[int]) -> None:
        together.wait()

    with ParaLoad([[] for _ in range(2 * count)], callback) as loader:
        loader.start_loaders(**({} if asked is None else {"num_loaders": asked}))
        for _ in range(2 * count):
            assert loader.get_available_data_index() >= 0
        assert len(loaders()) == count


def test_P3_callback_fills_the_slot_in_place() -> None:
    """The callback gets the caller's own objects, and what it writes is what the consumer finds."""
    made = [{"data": np.zeros(3), "name": ""} for _ in range(2)]

    def callback(batch: dict[str, Any], n: int) -> bool:
        batch["data"] += n
        batch["name"] = f"batch {n}"
        return n < 4

    with ParaLoad(made, callback) as loader:
        loader.start_loaders(1)
        for n in range(4):
            index = loader.get_available_data_index()
            assert made[index]["name"] == f"batch {n}"
            loader.return_back_for_refill(index)
        assert loader.get_available_data_index() == -1
    assert made[0]["data"].sum() + made[1]["data"].sum() == 3 * (0 + 1 + 2 + 3 + 4)


def test_P4_consumer_waits_for_a_filled_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits until a slot is filled, on a condition: nothing ever sleeps."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("polled"))
    gate = threading.Event()
    got: list[int] = []

    def callback(batch: np.ndarray) -> None:
        assert gate.wait(HANG)

    with ParaLoad(buffer(1), callback) as loader:
        loader.start_loaders(1)
        consumer = threading.Thread(target=lambda: got.append(loader.get_available_data_index()))
        consumer.start()
        until(lambda: waits(consumer))
        assert got == []
        gate.set()
        consumer.join(HANG)
        assert got == [0]


def test_P5_consumer_holds_several_and_returns_each() -> None:
    """Held slots are not touched, however many, while the others go round."""
    made = buffer(5)
    with ParaLoad(made, Numbers(200)) as loader:
        loader.start_loaders(3)
        held = {i: made[i].copy() for i in (loader.get_available_data_index() for _ in range(3))}
        for _ in range(100):
            index = loader.get_available_data_index()
            assert index not in held
            loader.return_back_for_refill(index)
        for i, copy in held.items():
            assert (made[i] == copy).all()
            loader.return_back_for_refill(i)
        assert len(drain(loader)) == 97


def test_P6_loaders_wait_without_a_free_slot() -> None:
    """With nobody taking batches no more are made than there are slots; each return makes one."""
    callback = Numbers(1000)
    with ParaLoad(buffer(3), callback) as loader:
        loader.start_loaders(4)
        until(lambda: callback.given >= 3 and idle())
        assert callback.given == 3
        for more in range(1, 5):
            index = loader.get_available_data_index()
            assert callback.given == 2 + more
            loader.return_back_for_refill(index)
            until(lambda more=more: callback.given >= 3 + more and idle())
            assert callback.given == 3 + more


def test_P7_memory_is_the_slots() -> None:
    """The callback only ever sees the N objects of the buffer."""
    made, callback = buffer(4), Numbers(300)
    with ParaLoad(made, callback) as loader:
        loader.start_loaders(3)
        assert len(drain(loader)) == 300
    assert set(callback.seen) <= {id(batch) for batch in made}


@pytest.mark.parametrize(
    ("end", "workers"), [(False, 1), (0, 2), (np.False_, 6), (np.int64(0), 8), (0.0, 3)]
)
def test_P8_end_comes_after_all_good_batches(end: Any, workers: int) -> None:
    """One False, or what equals it, ends all loaders: -1 comes once every good batch was handed
    out, and again whenever asked (bug 4)."""
    for count in (0, 1, 7, 50):
        with ParaLoad(buffer(3), Numbers(count, end)) as loader:
            loader.start_loaders(workers)
            assert sorted(drain(loader)) == list(range(count))
            assert loader.get_available_data_index() == -1
            assert loader.get_available_data_index() == -1
            until(lambda: not loaders())


def test_P9_several_consumers() -> None:
    """Consumers share the ring: each batch goes to one of them, and all see the end."""
    with ParaLoad(buffer(6), Numbers(400)) as loader:
        loader.start_loaders(3)
        found = in_threads(4, lambda: drain(loader))
    assert sorted(n for part in found for n in part) == list(range(400))


@pytest.mark.parametrize(
    "make",
    [lambda: {"x": None}, lambda: [None], lambda: bytearray(8), lambda: (np.zeros(2), np.zeros(1))],
    ids=["dict", "list", "bytearray", "tuple of arrays"],
)
def test_P10_any_kind_of_batch(make: Callable[[], Any]) -> None:
    """A batch is any object: labels can be part of it."""
    made = [make() for _ in range(2)]
    with ParaLoad(made, lambda batch, n: n < 5) as loader:
        loader.start_loaders(2)
        seen = []
        while (index := loader.get_available_data_index()) != -1:
            seen.append(loader.buffer[index])
            loader.return_back_for_refill(index)
    assert len(seen) == 5
    assert all(any(batch is one for one in made) for batch in seen)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_P11_any_source_without_a_file(workers: int) -> None:
    """Batches may come from anywhere: here a callback works them out. It needs no shared state: it
    gets each number once, and batches come in the order of their numbers, whatever the loaders
    (bugs 7 and 8)."""
    turns, seen = threading.Semaphore(workers), list[int]()

    def powers(batch: np.ndarray, n: int) -> bool:
        seen.append(n)
        if n % 3 == 0:  # some take longer than those after them
            for _ in range(200):
                with turns:
                    pass
        batch[...] = n**3
        return n < 150

    with ParaLoad(buffer(5), powers) as loader:
        loader.start_loaders(workers)
        assert drain(loader) == [n**3 for n in range(150)]
    assert sorted(seen) == list(range(len(seen)))
    assert len(seen) >= 151


# -- the bugs it does not have -------------------------------------------------------------------


def test_bug_1_no_lost_tail() -> None:
    """A batch that is being filled while another loader finds the end is still handed out."""
    inside, ended = threading.Event(), threading.Event()

    def callback(batch: np.ndarray) -> Any:
        if not inside.is_set():
            inside.set()
            assert ended.wait(HANG)
            batch[...] = 7
            return True
        ended.set()
        return False

    with ParaLoad(buffer(4), callback) as loader:
        loader.start_loaders(1)
        assert inside.wait(HANG)
        loader.start_loaders(1)
        assert drain(loader) == [7]


def test_bug_2_stop_after_an_early_break() -> None:
    """Leaving early ends the loaders; stopping twice is fine; after it there are no batches."""
    before = len(loaders())
    with ParaLoad(buffer(4), Numbers(1 << 30)) as loader:
        loader.start_loaders(4)
        loader.get_available_data_index()
    loader.stop()
    assert len(loaders()) == before
    assert loader.get_available_data_index() == -1


def test_bug_2_a_stuck_callback_is_left_behind() -> None:
    """stop() waits a second for user code, warns with its stack, and returns; a consumer that waits
    gets -1."""
    inside, gate, got = threading.Event(), threading.Event(), list[int]()

    def stuck_here(batch: Any) -> None:
        inside.set()
        gate.wait(HANG)

    loader = ParaLoad([None], stuck_here)
    loader.start_loaders(1)
    assert inside.wait(HANG)
    consumer = threading.Thread(target=lambda: got.append(loader.get_available_data_index()))
    consumer.start()
    until(lambda: waits(consumer))
    started = time.monotonic()
    with pytest.warns(RuntimeWarning, match="stuck_here"):
        loader.stop()
    assert time.monotonic() - started > 0.9
    consumer.join(HANG)
    assert got == [-1]
    gate.set()


def test_bug_2_a_forgotten_loader_is_collected() -> None:
    """Threads do not keep the object alive: when it is forgotten they end."""
    before = len(loaders())
    loader = ParaLoad(buffer(2), Numbers(1 << 30))
    loader.start_loaders(3)
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    until(lambda: len(loaders()) == before)


@pytest.mark.slow
def test_bugs_2_5_and_6_in_a_program() -> None:
    """A program that never stops its loaders ends all the same. It needs no compiler, no library of
    its own and no ctypes types."""
    code = (
        "from asyncreader.faces import ParaLoad\n"
        "loader = ParaLoad([[0], [0]], lambda batch: True)\n"
        "loader.start_loaders(3)\n"
        "print(loader.get_available_data_index())\n"
    )
    ended = run([sys.executable, "-W", "error", "-c", code], env={"PATH": ""})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() in ("0", "1")
    assert ended.stderr == ""
    import asyncreader.faces.paraload as module

    assert "ctypes" not in vars(module)


def test_bug_3_errors_reach_the_consumer() -> None:
    """An error is raised in its batch's turn, with type and traceback; the others still come."""

    def unlucky(batch: np.ndarray, n: int) -> bool:
        if n == 3:
            raise Odd("batch 3")
        batch[...] = n
        return n < 6

    made = buffer(2)
    with ParaLoad(made, unlucky) as loader:
        loader.start_loaders(2)
        for n in (0, 1, 2, None, 4, 5):
            if n is None:
                with pytest.raises(Odd, match="batch 3") as caught:
                    loader.get_available_data_index()
                assert "unlucky" in "".join(traceback.format_exception(caught.value))
                continue
            index = loader.get_available_data_index()
            assert made[index][0] == n
            loader.return_back_for_refill(index)
        assert loader.get_available_data_index() == -1


def test_bug_3_a_callback_that_always_fails_does_not_hang() -> None:
    """When every call fails the consumer hears of each, and stop() ends it."""

    def broken(batch: Any) -> None:
        raise Odd("always")

    with ParaLoad([0, 1], broken) as loader:
        loader.start_loaders(2)
        for _ in range(20):
            with pytest.raises(Odd, match="always"):
                loader.get_available_data_index()


@pytest.mark.parametrize("result", [None, True, 1, "", [], np.zeros(4), np.zeros(1)])
def test_bug_4_only_false_is_the_end(result: Any) -> None:
    """None goes on, as before; so does anything that is no number, an array of zeros too."""
    with ParaLoad([None] * 2, lambda batch, n: False if n == 4 else result) as loader:
        loader.start_loaders(2)
        for _ in range(4):
            loader.return_back_for_refill(loader.get_available_data_index())
        assert loader.get_available_data_index() == -1


# -- at the door ---------------------------------------------------------------------------------


def test_giving_back_what_is_not_lent_is_an_error() -> None:
    """Twice, never handed out, out of range or no number: ParamsError, and nothing changes."""
    with ParaLoad(buffer(3), Numbers(2)) as loader:
        loader.start_loaders(1)
        index = loader.get_available_data_index()
        loader.return_back_for_refill(np.int64(index))
        for wrong in (index, -1, 3, "0", 1.0, None):
            with pytest.raises(ParamsError):
                loader.return_back_for_refill(wrong)
        assert len(drain(loader)) == 1


def test_a_batch_may_be_returned_by_another_thread_and_after_stop() -> None:
    """Who returns a batch does not matter, nor whether the loaders are still there."""
    loader = ParaLoad(buffer(2), Numbers(50))
    loader.start_loaders()
    index = loader.get_available_data_index()
    thread = threading.Thread(target=loader.return_back_for_refill, args=(index,))
    thread.start()
    thread.join(HANG)
    index = loader.get_available_data_index()
    loader.stop()
    loader.return_back_for_refill(index)


def test_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it waiting is an error; twice adds loaders; after the end it does nothing."""
    before = loaders()
    loader = ParaLoad(buffer(2), Numbers(3))
    with pytest.raises(NothingQueuedError, match="start_loaders"):
        loader.get_available_data_index()
    loader.start_loaders(1)
    loader.start_loaders(2)
    assert len(loaders()) == len(before) + 3
    assert sorted(drain(loader)) == [0, 1, 2]
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("started"))
    loader.start_loaders(5)
    loader.stop()
    with pytest.raises(ReaderClosedError):
        loader.start_loaders()


def test_what_is_refused() -> None:
    """An empty buffer, a callback that cannot be called, no loaders."""
    with pytest.raises(ParamsError, match="no batch"):
        ParaLoad([], print)
    with pytest.raises(ParamsError, match="called"):
        ParaLoad([1], "callback")  # type: ignore[arg-type]
    with ParaLoad([1], print) as loader:
        for wrong in (0, -1, 1.5, True, "2"):
            with pytest.raises(ParamsError, match="num_loaders"):
                loader.start_loaders(wrong)  # type: ignore[arg-type]


def test_importing_the_faces_is_cheap() -> None:
    """Neither the package nor what a user's module of sequences imports loads numpy or numba."""
    code = (
        "import sys, asyncreader.faces as faces\n"
        "from asyncreader.faces import GeneratorEnqueuer, OrderedEnqueuer, Sequence, get_batch\n"
        "assert sorted(faces.__all__) == faces.__all__\n"
        "assert set(faces.__all__) <= set(dir(faces))\n"
        "heavy = {'numpy', 'numba', 'h5py', 'cv2', 'lmdb'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "try:\n"
        "    faces.nonsense\n"
        "except AttributeError as exc:\n"
        "    assert 'nonsense' in str(exc)\n"
    )
    ended = run([sys.executable, "-c", code])
    assert ended.returncode == 0, ended.stderr
