"""What all trials in child processes rely on: how a child ends is seen."""

import signal

import pytest
from child_processes import Ended, Watched

CHILD = """
import os, signal, sys, threading, time
from child_processes import answer_requests

def answer(request):
    if request == "exits": os._exit(3)
    if request == "fails": raise ValueError("odd")
    if request == "hangs": time.sleep(600)
    if request == "half an answer": os.write(4, b"[1,"); time.sleep(600)
    if request == "dies": os.kill(os.getpid(), signal.SIGSEGV)
    if request == "dies at exit":
        import atexit
        atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    if request == "too much": bytearray(3 << 30)
    print("printed", request)
    os.system("echo of a child of the child")
    return [request, sys.stdin.read()]

answer_requests(answer, 2 << 30)
"""


@pytest.mark.parametrize(
    ("request_", "how", "said"),
    [
        ("dies", "SIGSEGV", "Segmentation fault"),
        ("exits", "exit code 3", "printed fine"),
        ("fails", "exit code 1", "ValueError: odd"),
        ("too much", "exit code 1", "MemoryError"),
        ("hangs", "hang", "in answer"),
        pytest.param("half an answer", "hang", "in answer", marks=pytest.mark.slow),
    ],
)
def test_every_end_is_seen(request_: str, how: str, said: str) -> None:
    """A child that dies, exits, raises, asks for too much memory or hangs is told by the request
    that it was at, with what it said last; the next request is answered by a new child."""
    hangs = how == "hang"
    with Watched("-c", CHILD, patience=1 if hangs else 60) as child:
        assert child.ask("fine") == ["fine", ""]
        with pytest.raises(Ended) as caught:
            child.ask(request_)
        assert caught.value.how == how
        assert said in caught.value.said
        assert child.ask("fine") == ["fine", ""]
        child.close()


def test_an_end_between_two_requests_is_seen() -> None:
    """A child that dies after its answer is told by the next request, or by the end of all."""
    with Watched("-c", CHILD) as child:
        assert child.ask(1) == [1, ""]
        process = child._process
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(Ended) as caught:
            child.ask(2)
        assert caught.value.how == "SIGKILL"
        child.ask("dies at exit")
        with pytest.raises(Ended) as caught:
            child.close()
        assert caught.value.how == "SIGSEGV"


def test_a_child_that_does_not_start_ends_the_trials() -> None:
    """A child that ends before its first request is an error of the harness, not an outcome."""
    with Watched("-c", "raise ValueError(1)") as child, pytest.raises(RuntimeError, match="Value"):
        child.ask(1)


def test_no_child_is_left() -> None:
    """A child that is still there when its block is left has been ended and reaped."""
    with Watched("-c", CHILD) as child:
        child.ask(1)
        process = child._process
    assert process is not None
    assert process.returncode == -signal.SIGKILL
