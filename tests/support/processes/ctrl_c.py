"""Ctrl-C at every moment at which CPython looks for it, one after the other."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from observed import HANG


def every_moment(frame: Any, event: str, argument: Any) -> bool:
    """The moments of CPython: a function begins, or a call of C has returned."""
    return event in ("call", "c_return")


def interrupted(
    moment: int,
    act: Callable[[], Any],
    counts: Callable[[Any, str, Any], bool] = every_moment,
) -> bool:
    """Run ``act`` with Ctrl-C at that moment; False where it was over before.

    ``counts``: which events of ``sys.setprofile`` are moments. In finalizers,
    weak references' callbacks and generators that are closed Python prints every error and goes on:
    what it prints of Ctrl-C there is dropped.
    """
    left = moment
    unraisable = sys.unraisablehook

    def drop(error: sys.UnraisableHookArgs) -> None:
        if not issubclass(error.exc_type, KeyboardInterrupt):
            unraisable(error)

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if counts(frame, event, argument):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    sys.unraisablehook = drop
    try:
        sys.setprofile(look)
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        sys.unraisablehook = unraisable
    return left <= 0


def killed(moment: int, act: Callable[[], Any], counts: Callable[[Any, str, Any], bool]) -> bool:
    """Run ``act`` in a forked process that kill -9 ends at that moment; False where it was over
    before. ``counts``: as of :func:`interrupted`."""
    process = os.fork()
    if process:
        return os.WIFSIGNALED(os.waitpid(process, 0)[1])
    left = moment

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        left -= counts(frame, event, argument)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        sys.setprofile(look)
        act()
        code = 0
    finally:
        os._exit(code)


def moments(
    case: Callable[[], Iterator[Callable[[], Any]]],
    stop: Callable[[int, Callable[[], Any]], bool] = interrupted,
) -> None:
    """Try ``case`` with Ctrl-C at every moment of what it yields; it then looks what is left.
    ``stop``: what is done at a moment, if it is not :func:`interrupted`."""
    for moment in itertools.count(1):
        trial = case()
        came = stop(moment, next(trial))
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
