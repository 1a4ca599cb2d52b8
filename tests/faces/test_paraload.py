"""ParaLoad: the features of paraload by their numbers (P1-P11)."""

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
        self._lock = threading.Lock()

    def __call__(self, batch: np.ndarray) -> Any:
        with self._lock:
            number = self.given
            self.given += 1
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


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test leaves a loader that another one would count."""
    yield
    gc.collect()
    until(lambda: not loaders())


@pytest.mark.parametrize("slots", [1, 2, 100])
@pytest.mark.parametrize(
    "make",
    [lambda: {"x": None}, lambda: [None], lambda: bytearray(8), lambda: (np.zeros(2), np.zeros(1))],
    ids=["dict", "list", "bytearray", "tuple of arrays"],
)
def test_P1_P3_P6_P7_P10_batches_are_the_callers_own(make: Callable[[], Any], slots: int) -> None:
    """The ring is the caller's list of objects, of any length and kind: the callback fills these
    and no others, and the index that the consumer gets is that of the one that was filled. A loader
    waits where none is free."""
    made, filled = [make() for _ in range(slots)], list[Any]()

    def callback(batch: Any, n: int) -> bool:
        filled.append(batch)
        return n < slots + 5

    with ParaLoad(made, callback) as loader:
        loader.start_loaders(1)
        held = [loader.get_available_data_index() for _ in range(slots)]
        assert sorted(held) == list(range(slots))
        until(lambda: all(map(waits, loaders())))
        assert len(filled) == slots
        for index in held:
            loader.return_back_for_refill(index)
        while (index := loader.get_available_data_index()) != -1:
            held.append(index)
            loader.return_back_for_refill(index)
        assert all(a is b for a, b in zip(loader.buffer, made, strict=True))
    assert len(held) == slots + 5
    assert all(made[index] is batch for index, batch in zip(held, filled, strict=False))


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


@pytest.mark.parametrize(
    ("end", "workers"), [(False, 1), (0, 2), (np.False_, 6), (np.int64(0), 8), (0.0, 3)]
)
def test_P8_end_comes_after_all_good_batches(end: Any, workers: int) -> None:
    """One False, or what equals it, ends all loaders: -1 comes once every good batch was handed
    out, and again whenever asked."""
    for count in (0, 1, 7, 50):
        with ParaLoad(buffer(3), Numbers(count, end)) as loader:
            loader.start_loaders(workers)
            assert sorted(drain(loader)) == list(range(count))
            assert loader.get_available_data_index() == -1
            until(lambda: not loaders())


@pytest.mark.parametrize("result", [None, True, 1, "", [], np.zeros(4), np.zeros(1)])
def test_P8_only_false_is_the_end(result: Any) -> None:
    """None goes on, as before; so does anything that is no number, an array of zeros too."""
    with ParaLoad([None] * 2, lambda batch, n: False if n == 4 else result) as loader:
        loader.start_loaders(2)
        for _ in range(4):
            loader.return_back_for_refill(loader.get_available_data_index())
        assert loader.get_available_data_index() == -1


def test_P4_P8_consumer_waits_for_a_slot_that_is_filled() -> None:
    """The consumer waits, on a condition, until a slot is filled; it is handed out though another
    loader finds the end meanwhile."""
    inside, ended, got = threading.Event(), threading.Event(), list[int]()

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
        consumer = threading.Thread(target=lambda: got.extend(drain(loader)))
        consumer.start()
        until(lambda: waits(consumer))
        loader.start_loaders(1)
        consumer.join(HANG)
        assert got == [7]


def test_P9_several_consumers() -> None:
    """Consumers share the ring: each batch goes to one of them, and all see the end."""
    with ParaLoad(buffer(6), Numbers(400)) as loader:
        loader.start_loaders(3)
        found = in_threads(4, lambda: drain(loader))
    assert sorted(n for part in found for n in part) == list(range(400))


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_P11_any_source_without_a_file(workers: int) -> None:
    """Batches may come from anywhere: here a callback works them out. It needs no shared state: it
    gets each number once, and batches come in the order of their numbers, whatever the
    loaders."""
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


def test_errors_reach_the_consumer() -> None:
    """An error is raised in its batch's turn, with type and traceback, however many there are; the
    other batches still come."""

    def unlucky(batch: np.ndarray, n: int) -> bool:
        if 3 <= n < 8:
            raise Odd(f"batch {n}")
        batch[...] = n
        return n < 10

    made = buffer(2)
    with ParaLoad(made, unlucky) as loader:
        loader.start_loaders(2)
        for n in range(10):
            if 3 <= n < 8:
                with pytest.raises(Odd, match=f"batch {n}") as caught:
                    loader.get_available_data_index()
                assert "unlucky" in "".join(traceback.format_exception(caught.value))
                continue
            index = loader.get_available_data_index()
            assert made[index][0] == n
            loader.return_back_for_refill(index)
        assert loader.get_available_data_index() == -1


# -- the end -------------------------------------------------------------------------------------


def test_a_stuck_callback_is_left_behind() -> None:
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


def test_a_forgotten_loader_is_collected() -> None:
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
def test_a_program_that_never_stops_its_loaders_ends() -> None:
    """It ends all the same, and needs no compiler, which paraload did."""
    code = (
        "from asyncreader.faces import ParaLoad\n"
        "loader = ParaLoad([[0], [0]], lambda batch: True)\n"
        "loader.start_loaders(3)\n"
        "print(loader.get_available_data_index())\n"
    )
    ended = run([sys.executable, "-W", "error", "-c", code], env={"PATH": ""})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip() in ("0", "1")


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


def test_starting_and_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a start waiting is an error; twice adds loaders; after the end it does nothing. After
    a stop there are no batches, and one that is held may be returned, by any thread."""
    before = loaders()
    loader = ParaLoad(buffer(2), Numbers(3))
    with pytest.raises(NothingQueuedError, match="start_loaders"):
        loader.get_available_data_index()
    loader.start_loaders(1)
    loader.start_loaders(2)
    assert len(loaders()) == len(before) + 3
    assert sorted(drain(loader)) == [0, 1, 2]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: pytest.fail("started"))
        loader.start_loaders(5)
    with ParaLoad(buffer(4), Numbers(1 << 30)) as loader:
        loader.start_loaders(4)
        held = loader.get_available_data_index()
    loader.stop()
    assert loaders() == before
    assert loader.get_available_data_index() == -1
    thread = threading.Thread(target=loader.return_back_for_refill, args=(held,))
    thread.start()
    thread.join(HANG)
    with pytest.raises(ParamsError):
        loader.return_back_for_refill(held)
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
