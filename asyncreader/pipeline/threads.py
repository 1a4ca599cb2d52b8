"""Threads that fill slots: they take tasks from the ring until it closes."""

from __future__ import annotations

import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Final

from ..errors import as_ours
from ..pixels import kernels
from ..stats import Meter
from ..system.signals import after_this
from .fill_batch import BatchFiller
from .ring import SlotRing

#: Seconds that close() waits for a thread inside a read or user code.
STUCK_AFTER: Final = 1.0

#: Parts that this time is waited in. Where a busy machine stops the whole process for a while, one
#: part is lost and not all of the time.
PARTS: Final = 10

#: Seconds that close() waits while kernels are compiled. On a busy machine one takes 10 s.
COMPILED_AFTER: Final = 120.0


class ThreadWorkers:
    """``count`` daemon threads that fill the slots of one ring.

    They hold no reference to the reader. So a reader that nobody uses is collected and closed.
    """

    def __init__(self, count: int, ring: SlotRing, filler: BatchFiller, name: str) -> None:
        self.meters = [Meter() for _ in range(count)]
        self._ring = ring
        self._threads = [
            threading.Thread(
                target=_work, args=(ring, filler, meter), name=f"{name}-{number}", daemon=True
            )
            for number, meter in enumerate(self.meters)
        ]

    def start(self) -> None:
        """Start all threads. If one cannot start, the ring is closed, and stop() joins the rest."""
        try:
            with after_this():
                for thread in self._threads:
                    thread.start()
        except BaseException:
            self._ring.close()
            raise

    def stop(self) -> None:
        """Join the threads of a closed ring. A warning names those that do not end."""
        for meter in self.meters:
            meter.stopped = True  # a batch of large pictures takes seconds: do not finish it
        join_or_leave(self._threads)


def join_or_leave(threads: Sequence[threading.Thread], seconds: float = STUCK_AFTER) -> None:
    """Join threads that were told to end. Warn of those that do not end within ``seconds``.

    Time in which a kernel is compiled does not count: that happens once on a machine. The threads
    are daemons, so the interpreter can end without them.
    """
    if threading.current_thread() in threads:
        return  # a thread cannot join itself: its reader was collected in it, and it will end
    latest = time.monotonic() + (COMPILED_AFTER if seconds > 0 else 0.0)
    loads, parts = kernels.loads(), PARTS
    while parts and any(thread.is_alive() for thread in threads):
        until = time.monotonic() + seconds / PARTS
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        before, loads = loads, kernels.loads()
        compiling = loads != before or loads[0] > loads[1]
        parts = PARTS if compiling and time.monotonic() < latest else parts - 1
    if not any(thread.is_alive() for thread in threads):
        return
    frames = sys._current_frames()
    # this function's own frame in one of its variables would be a cycle: it, and the reader that
    # is closed, would wait for the garbage collector
    del frames[threading.get_ident()]
    left = [thread for thread in threads if thread.is_alive() and thread.ident in frames]
    if left:
        stacks = (
            f"{thread.name} is in:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in left
            if thread.ident is not None
        )
        # one warning for all, at the end: where warnings are errors it leaves this function
        warnings.warn(
            f"{len(left)} of {len(threads)} workers did not stop within {seconds} s and are left "
            f"to end by themselves; {''.join(stacks)}",
            RuntimeWarning,
            stacklevel=4,
        )


def _work(ring: SlotRing, filler: BatchFiller, meter: Meter) -> None:
    while True:
        task = ring.next_task(meter=meter)
        if task is None:
            return
        slot, lo, hi = task
        error: BaseException | None = None
        try:
            filler.fill_part(slot, lo, hi, meter)
        except BaseException as exc:
            error = as_ours(exc)
        if slot.parts == 1:
            slot.error = error
        elif not ring.part_done(slot, lo, error):
            continue
        if slot.error is None:
            try:
                filler.finish(slot, meter)
            except BaseException as exc:
                slot.error = as_ours(exc)
        ring.ready(slot)
        # an idle thread must not keep the slot alive
        del task, slot, error
