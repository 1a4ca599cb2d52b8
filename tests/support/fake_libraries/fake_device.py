"""A GPU played by numpy arrays: two streams whose operations run as late as a test wants.

It stands in for ``asyncreader.pipeline.cuda.CudaDevice``. Nothing is copied when a copy is asked
for: the operation waits in its stream, as on a real device, until the test's ``pace`` or somebody
who waits runs it. What then is in the memory is what counts.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class Event:
    """Happens when the streams get to it."""

    def __init__(self) -> None:
        self.done = False
        self.stream: deque[Operation] | None = None


@dataclass
class Operation:
    """One of: call ``run``; wait for ``awaits``; let ``happens`` happen."""

    run: Callable[[], None] | None = None
    awaits: Event | None = None
    happens: Event | None = None


class FakeDevice:
    """``pace``: "late" runs only what somebody waits for, "eager" all at once, a number at random.

    ``forgets``: a rule of the real device that this one breaks, to see that tests notice: "after"
    (copies wait for nothing), "wait" (the host does not wait), "follow" (the consumer does not).
    """

    def __init__(self, pace: str | int = "late", forgets: str | None = None) -> None:
        self.pace = pace
        self.forgets = forgets
        self.random = random.Random(pace if isinstance(pace, int) else 0)
        self.side: deque[Operation] = deque()
        self.main: deque[Operation] = deque()
        self.lock = threading.RLock()
        self.pinned: list[tuple[int, int]] = []
        self.unpinned: list[tuple[int, int]] = []
        self.tensors: list[np.ndarray] = []
        self.uploads = 0
        self.uploaders: set[str] = set()
        self.drained = 0
        self.fail_pin_at: int | None = None
        self.fail_upload_at: int | None = None

    # -- the streams -----------------------------------------------------------------------

    def _queue(self, stream: deque[Operation], *operations: Operation) -> None:
        with self.lock:
            for operation in operations:
                if operation.happens is not None:
                    operation.happens.stream = stream
                stream.append(operation)
            self._advance()

    def _advance(self) -> None:
        if self.pace == "eager":
            while self._step(self.side) or self._step(self.main):
                pass
        elif isinstance(self.pace, int):
            for _ in range(self.random.randrange(4)):
                self._step(self.random.choice([self.side, self.main]))

    def _step(self, stream: deque[Operation]) -> bool:
        """Run the next operation of a stream; False where there is none, or it must wait."""
        if not stream:
            return False
        operation = stream[0]
        if operation.awaits is not None and not operation.awaits.done:
            return False
        if operation.run is not None:
            operation.run()
        if operation.happens is not None:
            operation.happens.done = True
        stream.popleft()  # last: a device does its work whether Ctrl-C comes or not
        return True

    def _force(self, event: Event) -> None:
        """Run what must run before ``event`` happens, and nothing else."""
        while not event.done:
            assert event.stream is not None
            if not self._step(event.stream):
                awaited = event.stream[0].awaits
                assert awaited is not None
                self._force(awaited)

    def compute(self, run: Callable[[], None]) -> None:
        """Work of the consumer, queued on its stream."""
        self._queue(self.main, Operation(run))

    def finish(self) -> None:
        """Run all that is queued, the consumer's work first where it may be."""
        with self.lock:
            while self._step(self.main) or self._step(self.side):
                pass
            assert not self.main
            assert not self.side

    # -- the device ------------------------------------------------------------------------

    def pin(self, array: np.ndarray) -> None:
        if len(self.pinned) == self.fail_pin_at:
            raise OSError("no more memory can be locked (planned)")
        self.pinned.append((array.ctypes.data, array.nbytes))

    def unpin(self, array: np.ndarray) -> None:
        self.unpinned.append((array.ctypes.data, array.nbytes))

    def empty(self, array: np.ndarray) -> np.ndarray:
        tensor = np.empty_like(array)
        assert tensor.strides == array.strides
        tensor[...] = 0
        self.tensors.append(tensor)
        return tensor

    def upload(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]], after: Any) -> Event:
        if self.uploads == self.fail_upload_at:
            raise RuntimeError("the device failed (planned)")
        self.uploads += 1
        self.uploaders.add(threading.current_thread().name)
        event = Event()
        if self.forgets == "after":
            after = None
        operations = [] if after is None else [Operation(awaits=after)]
        for array, tensor in pairs:
            operations.append(Operation(lambda t=tensor, a=array: np.copyto(t, a)))
        self._queue(self.side, *operations, Operation(happens=event))
        return event

    def fill(self, tensors: Sequence[np.ndarray], after: Any, value: int) -> Event:
        event = Event()

        def run() -> None:
            for tensor in tensors:
                tensor.view(np.uint8)[...] = value

        waiting = [] if self.forgets == "after" else [Operation(awaits=after)]
        self._queue(self.side, *waiting, Operation(run), Operation(happens=event))
        return event

    def wait(self, event: Event) -> None:
        with self.lock:
            if self.forgets != "wait":
                self._force(event)

    def passed(self) -> Event:
        event = Event()
        self._queue(self.main, Operation(happens=event))
        return event

    def follow(self, event: Event, tensors: Sequence[np.ndarray]) -> None:
        if self.forgets != "follow":
            self._queue(self.main, Operation(awaits=event))

    def private(self, tensor: np.ndarray) -> np.ndarray:
        copy = np.zeros_like(tensor)
        self._queue(self.main, Operation(lambda: np.copyto(copy, tensor)))
        return copy

    def drain(self) -> None:
        self.drained += 1
        with self.lock:
            while self.side:
                if not self._step(self.side):
                    awaited = self.side[0].awaits
                    assert awaited is not None
                    self._force(awaited)
