"""A reader's work in time, as Trace Event Format: workers, slots and the consumer in lanes.

Opens in https://ui.perfetto.dev and chrome://tracing. Events are "complete" ones (``ph: "X"``,
``ts`` and ``dur`` in microseconds) and names of lanes (``ph: "M"``), after "Trace Event Format" by
the Chrome team (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).

A trace observes the ring (ring.py), and workers note what they did in their meters; so does whoever
fills small batches (fill_queue.py). What is done is the same with a trace and without; without one
nothing is noted. That a batch was filled is seen when its worker, or the consumer, has filled all
that there was: the end of FILLING is shown up to that much later.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from ..errors import ParamsError
from ..sampling.schedule import BatchPlan
from ..stats import Meter
from .slots import FREE, STATES, Slot

#: (name, begun, ended, arguments): seconds of time.perf_counter(), one clock for all processes.
Span: TypeAlias = tuple[str, float, float, dict[str, Any]]

#: Spans kept for the consumer, for all slots, and for each worker: the last ones. Some 500 bytes
#: each while they are kept, 150 in the file.
KEPT: Final = 20_000

#: Numbers of lanes. Viewers sort by them.
_CONSUMER: Final = 1
_FILLED: Final = 2
_WORKERS: Final = 100
_SLOTS: Final = 10_000


class Trace:
    """What happened since the reader was opened, the last ``kept`` spans of each kind.

    Raises ParamsError where ``path`` cannot be a file.
    """

    def __init__(self, path: str, kept: int = KEPT) -> None:
        folder = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or not os.access(folder, os.W_OK):
            raise ParamsError(
                "the trace cannot be written there",
                found=path,
                expected="a file in a folder that exists and can be written to",
            )
        self._path = os.path.abspath(path)
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self._slots: deque[tuple[int, Span]] = deque(maxlen=kept)
        self._consumer: deque[Span] = deque(maxlen=kept)
        #: of each slot: its state, since when, of which batch
        self._states: dict[int, tuple[str, float, dict[str, Any]]] = {}
        self._using = ("before the first", self._began, dict[str, Any]())

    def changed(self, slot: Slot) -> None:
        """``slot`` is in ``slot.state`` now, perhaps since an earlier call."""
        now, state = time.perf_counter(), slot.state
        was, since, batch = self._states.get(slot.number, (STATES[FREE], self._began, {}))
        if state == was:
            return
        span = (was.upper(), since, now, batch)
        named = {} if state == STATES[FREE] else named_by(slot.plan)
        # no call from here on: Ctrl-C comes between none of them
        self._states[slot.number] = (state, now, named)
        self._slots += ((slot.number, span),)

    def waited(self, asked: float, slot: Slot | None) -> None:
        """The consumer asked for a batch at ``asked`` and has it (None: an error) now."""
        now = time.perf_counter()
        with self._lock:  # two threads may take; their spans must not cross in one lane
            name, since, batch = self._using
            asked, named = min(max(asked, since), now), {} if slot is None else named_by(slot.plan)
            # no call from here on
            self._consumer += ((name, since, asked, batch), ("wait", asked, now, named))
            self._using = ("use" if slot is not None else "after an error", now, named)

    def write(
        self, meters: Sequence[Meter], workers: str, slots: int, fills: Meter | None = None
    ) -> None:
        """Write the file, whole or not at all; a warning says where that fails.

        ``meters``: of the workers; ``workers``: what they are; ``slots``: how many there are;
        ``fills``: the meter of what the consumer filled itself.
        """
        temporary = f"{self._path}.{os.getpid()}.part"
        try:
            with open(temporary, "w", encoding="ascii") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                events = self._events(meters, workers, slots, fills)
                file.write(",\n".join(json.dumps(event) for event in events))
                file.write("\n]}\n")
            os.replace(temporary, self._path)
        except OSError as exc:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            warnings.warn(f"the trace could not be written: {exc}", RuntimeWarning, stacklevel=2)

    def _events(
        self, meters: Sequence[Meter], workers: str, slots: int, fills: Meter | None
    ) -> Iterator[dict[str, Any]]:
        now = time.perf_counter()
        name, since, batch = self._using
        lanes: list[tuple[int, str, list[Span]]]
        lanes = [(_CONSUMER, "consumer", [*self._consumer, (name, since, now, batch)])]
        if fills is not None and fills.spans:
            lanes.append((_FILLED, "consumer, filling", list(fills.spans)))
        for number, meter in enumerate(meters):
            lanes.append((_WORKERS + number, f"worker {workers} {number}", list(meter.spans)))
        for number, (state, since, batch) in self._states.items():
            self._slots.append((number, (state.upper(), since, now, batch)))
        for number in range(slots):
            spans = [span for slot, span in self._slots if slot == number]
            lanes.append((_SLOTS + number, f"slot {number}", spans))
        yield _meta("process_name", 0, {"name": "asyncreader"})
        for lane, title, spans in lanes:
            yield _meta("thread_name", lane, {"name": title})
            yield _meta("thread_sort_index", lane, {"sort_index": lane})
            for span in spans:
                yield self._event(lane, span)

    def _event(self, lane: int, span: Span) -> dict[str, Any]:
        name, begun, ended, arguments = span
        # whole nanoseconds: what ends where the next begins must do so in the file, too
        ts = round((begun - self._began) * 1e6, 3)
        dur = round(max(0.0, round((ended - self._began) * 1e6, 3) - ts), 3)
        event = {"name": name, "ph": "X", "ts": ts, "dur": dur, "pid": os.getpid(), "tid": lane}
        return {**event, "args": arguments} if arguments else event


def named_by(plan: BatchPlan) -> dict[str, Any]:
    """What names a batch in a trace."""
    return {"epoch": plan.epoch, "step": plan.step}


def _meta(name: str, lane: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": os.getpid(), "tid": lane, "args": arguments}


def note(meter: Meter, spans: Iterable[Span]) -> None:
    """Add spans to those of a worker, of which the last are kept."""
    if not isinstance(meter.spans, deque):
        meter.spans = deque(maxlen=KEPT)
    meter.spans.extend(spans)
