"""What tests observe of their process: waiting threads, slots, descriptors, memory.

Light on purpose: worker processes import this module too.
"""

import contextlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

#: Seconds after which a wait counts as a hang. No test measures time by it: a loaded machine can
#: stop a process for a minute.
HANG: Final = 300.0


def take_ctrl_c() -> None:
    """Ctrl-C raises KeyboardInterrupt in this process and its children. A command that a script
    started with & inherits that it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads to make it true (a hang ends in faulthandler's timeout), and leave
    them the processor."""
    while not condition():
        time.sleep(0.0005)


def in_threads(count: int, take: Callable[[], Iterable[Any]]) -> list[list[Any]]:
    """What each of so many threads took, all at once; they end."""
    taken: list[list[Any]] = [[] for _ in range(count)]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(take())) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    return taken


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns after a microsecond, so that they meet between any two steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def waits(thread: threading.Thread) -> bool:
    """Whether a thread waits on a condition: it is inside threading.Condition.wait."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


def slot_states(reader: object) -> Counter[str]:
    """How many slots of a reader are free, filling, ready and held, as its repr says."""
    found = re.findall(r"(\d+) (free|filling|ready|held)", repr(reader).rpartition("slots")[2])
    return Counter({state: int(number) for number, state in found})


class Terminal(io.StringIO):
    """A terminal in the place of stderr."""

    def isatty(self) -> bool:
        return True


def descriptors() -> int:
    """File descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd"))


def private_bytes(process: int | str = "self") -> int:
    """Private memory of a process; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10
    return 0
