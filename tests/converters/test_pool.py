"""The pool: results in order, a bounded window, bounded bytes, and always an end."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ctrl_c import elsewhere, moments
from observed import HANG, until

from converters.encode import Hold
from converters.inputs.samples import Samples
from converters.outputs.one_file import Pool


class Work(Samples):
    """Samples that come of a function."""

    def __init__(self, fetch: Callable[[int, Hold], Any], count: int, run: int) -> None:
        super().__init__()
        self.count, self.run = count, run
        self.fetch = fetch  # type: ignore[method-assign]


def fetching(
    fetch: Callable[[int, Hold], Any], count: int, *, group: int = 1, **given: Any
) -> Pool:
    """A pool of such samples, of which a thread takes ``group`` at a time."""
    return Pool(Work(fetch, count, group), **given)


def size_of(result: object) -> int:
    """Results cost nothing here."""
    return 0


@pytest.mark.parametrize("jobs", [1, 2, 7])
@pytest.mark.parametrize("group", [1, 4])
def test_results_come_in_order_whatever_finishes_first(jobs: int, group: int) -> None:
    """Every number comes once, in order, although later ones are made to finish first."""
    gates = [threading.Event() for _ in range(50)]

    def work(number: int, hold: Hold) -> int:
        # Where two threads are at it, an even number waits for the odd one after it.
        if jobs > 1 and group == 1 and number % 2 == 0:
            gates[number + 1].wait(HANG)
        gates[number].set()
        return number * number

    with fetching(work, 50, jobs=jobs, cost=size_of, group=group) as pool:
        found = list(pool)
    assert found == [(number, number * number) for number in range(50)]


def test_begun_minus_consumed_is_bounded() -> None:
    """While the consumer holds still, no more than the window is begun."""
    begun = threading.Semaphore(0)
    count = 0
    lock = threading.Lock()

    def work(number: int, hold: Hold) -> int:
        nonlocal count
        with lock:
            count += 1
        begun.release()
        return number

    with fetching(work, 1000, jobs=4, cost=size_of, window=10) as pool:
        for consumed, (number, _) in enumerate(pool):
            # This one is not given back yet: the window begins with it.
            for _ in range(10 if number == 0 else number <= 990):
                assert begun.acquire(timeout=HANG)
            with lock:
                assert count - consumed <= 10
        assert pool.most_begun <= 10
    assert count == 1000


@pytest.mark.parametrize("group", [1, 5])
def test_bytes_in_flight_are_bounded(group: int) -> None:
    """Leases and results together stay below the limit, but for what the oldest one needs."""

    def work(number: int, hold: Hold) -> bytes:
        hold(40)
        hold(50)
        return b"x" * 20

    with fetching(work, 300, jobs=8, cost=len, group=group, window=64, limit=200) as pool:
        assert [number for number, _ in pool] == list(range(300))
    assert 90 <= pool.most_bytes <= 200 + 90


def test_one_that_is_over_the_limit_alone_still_passes() -> None:
    """A picture larger than the whole budget is let through when it is the oldest."""

    def work(number: int, hold: Hold) -> int:
        hold(10_000)
        return number

    with fetching(work, 20, jobs=4, cost=lambda result: 5_000, limit=100) as pool:
        assert [number for number, _ in pool] == list(range(20))


def test_an_exception_comes_in_its_place() -> None:
    """Work that raises gives its exception in order, and the others go on."""

    def work(number: int, hold: Hold) -> int:
        hold(10)
        if number % 3 == 0:
            raise ValueError(number)
        return number

    with fetching(work, 30, jobs=3, cost=size_of, limit=25) as pool:
        for number, result in pool:
            if number % 3 == 0:
                assert isinstance(result, ValueError)
                assert result.args == (number,)
            else:
                assert result == number


@pytest.mark.parametrize("at", [0, 5])
def test_leaving_early_ends_all_threads(at: int) -> None:
    """A consumer that stops, whatever waits for room or bytes, leaves no thread behind."""
    before = threading.active_count()

    def work(number: int, hold: Hold) -> int:
        hold(100)
        return number

    def consume() -> None:
        with fetching(work, 1000, jobs=6, cost=lambda result: 100, window=8, limit=150) as pool:
            for number, _ in pool:
                if number == at:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert threading.active_count() == before


def test_ctrl_c_at_every_moment() -> None:
    """Ctrl-C at any moment of iterating is a KeyboardInterrupt, and every thread ends."""

    def case() -> Iterator[Callable[[], Any]]:
        def work(number: int, hold: Hold) -> int:
            until(lambda: bool(pool._changed._waiters) or pool._stopped)  # type: ignore[attr-defined]
            return number

        pool = fetching(work, 3, jobs=1, cost=size_of)

        def consume() -> None:
            with pool:
                assert [number for number, _ in pool] == [0, 1, 2]

        yield consume
        elsewhere(lambda: (pool._stop(),))
        assert not any(thread.is_alive() for thread in pool._threads)

    moments(case)
