"""Ctrl-C at every moment at which CPython looks for it, one after the other."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from observed import HANG


def interrupted(moment: int, act: Callable[[], Any]) -> bool:
    """Run ``act`` with Ctrl-C at that moment; False where it was over before.

    The moments are those of CPython: a function begins, or a call of C has returned.
    """
    left = moment

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and not _swallowed(frame):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(look)
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return left <= 0


def _swallowed(frame: Any) -> bool:
    """Whether Python prints an error in this frame and goes on.

    It does so in a finalizer and in a weak reference's callback, whenever they happen to run.
    """
    while frame is not None:
        code = frame.f_code
        callback = code.co_name in ("_remove", "remove") and "weakref" in code.co_filename
        if callback or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def moments(case: Callable[[], Iterator[Callable[[], Any]]]) -> None:
    """Try ``case`` with Ctrl-C at every moment of what it yields; it then looks what is left."""
    for moment in itertools.count(1):
        trial = case()
        came = interrupted(moment, next(trial))
        assert next(trial, None) is None
        if not came:
            assert moment > 2
            return


def elsewhere(call: Callable[[], Any]) -> Any:
    """What ``call`` gives in another thread, which a lock left held would stop for ever."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(HANG)
    assert found, "the lock was left held"
    return found[0]
