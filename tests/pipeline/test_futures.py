"""Work for a pool of threads under Ctrl-C."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ctrl_c import elsewhere, moments
from observed import until

from asyncreader.system.signals import in_threads, result_of, submit


def test_in_order_with_few_waiting() -> None:
    """Results come in the order of the items, an error in its turn; four items are taken ahead for
    each thread."""
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(50):
            taken += 1
            yield number

    def inverse(number: int, stop: threading.Event) -> float:
        return 1 / (number - 20)

    results = in_threads(2, "inverse", inverse, items())
    for number in range(20):
        assert next(results) == (number, 1 / (number - 20))
        assert taken <= number + 8
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_ctrl_c_at_every_moment() -> None:
    """Ctrl-C at any moment of submitting work and waiting for it: no lock stays held, so that the
    threads of the pool end, and with them the program."""

    def case() -> Iterator[Callable[[], Any]]:
        pool = ThreadPoolExecutor(1)
        waiting, stop = threading.Event(), threading.Event()

        def work() -> int:
            until(lambda: waiting.is_set() or stop.is_set())
            return 7

        def act() -> None:
            future = submit(pool, work)
            waiting.set()
            assert result_of(future) == 7

        yield act
        stop.set()
        elsewhere(lambda: (pool.shutdown(),))

    moments(case)
