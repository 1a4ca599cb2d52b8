"""Batches on a GPU: pinned slots, copies on a side stream, two device slots taken in turn.

Two rules make reuse safe, and events keep them without stopping the host or the device:

* a host slot is refilled only after its copy to the device has finished: the host waits for the
  copy's event before it gives the slot back;
* a device slot is overwritten only after the consumer's stream has passed its last use: an event
  recorded on the stream that is current at the next ``getNextBatch()``, for which the copy waits.

Everything that calls torch.cuda is in a :class:`CudaDevice`; tests use a fake instead.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ParamsError, QueueFullError
from ..system.array_types import Array
from .ring import SlotRing
from .slots import HELD, POISON, READY, Slot

#: Device buffers of one batch: the one that is used, and the one that is copied to.
DEVICE_SLOTS = 2


class CudaDevice:
    """A CUDA device by torch; ``index``: its number. Tensors and events are its own: other code
    only passes them on.

    ``upload``, ``fill`` and ``wait`` are called from any thread, ``passed`` and ``follow`` from the
    consumer's.
    """

    def __init__(self, torch: Any, index: int) -> None:
        self._torch = torch
        self._device = torch.device("cuda", index)
        with torch.cuda.device(self._device):
            self._side = torch.cuda.Stream(self._device)

    def pin(self, array: Array) -> None:
        """Lock the memory that ``array`` (a whole slot's buffer, any axis order) lies in."""
        # our own pages are registered: torch's allocator would round a slot up to the next power
        # of two, and cannot hand out memory shared with worker processes
        with self._torch.cuda.device(self._device):
            result = self._torch.cuda.cudart().cudaHostRegister(array.ctypes.data, array.nbytes, 0)
        if int(result) != 0:
            raise ParamsError(
                "the slots' memory cannot be locked for the GPU",
                found=f"cudaHostRegister of {array.nbytes} bytes: CUDA error {int(result)}",
                hint="lower batch_size or njob",
            )

    def unpin(self, array: Array) -> None:
        """Undo :meth:`pin`; no copy from it is in flight."""
        with self._torch.cuda.device(self._device):
            self._torch.cuda.cudart().cudaHostUnregister(array.ctypes.data)

    def empty(self, array: Array) -> Any:
        """A tensor of the device with shape, strides and dtype of ``array``."""
        torch = self._torch
        strides = [step // array.itemsize for step in array.strides]
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        # opened under inference_mode() or not, the tensors must be good for training
        with torch.inference_mode(False):
            return torch.empty_strided(array.shape, strides, dtype=dtype, device=self._device)

    def upload(self, pairs: Sequence[tuple[Array, Any]], after: Any | None) -> Any:
        """Copy each array to its tensor, when event ``after`` has happened; the event of its end.

        Returns at once.
        """
        torch = self._torch
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(self._side):
            if after is not None:
                self._side.wait_event(after)
            for array, tensor in pairs:
                tensor.copy_(torch.from_numpy(array), non_blocking=True)
            return self._side_event()

    def fill(self, tensors: Sequence[Any], after: Any, value: int) -> Any:
        """Set all bytes of ``tensors``, when ``after`` has happened; the event of its end."""
        torch = self._torch
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(self._side):
            self._side.wait_event(after)
            for tensor in tensors:
                dense = tensor.as_strided((tensor.numel(),), (1,))
                dense.view(torch.uint8).fill_(value)
            return self._side_event()

    def _side_event(self) -> Any:
        event = self._torch.cuda.Event(blocking=True)  # the waiting host sleeps
        event.record(self._side)
        return event

    def wait(self, event: Any) -> None:
        """Let the host wait until ``event`` has happened."""
        event.synchronize()

    def passed(self) -> Any:
        """The event of all work queued so far on the consumer's current stream."""
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def follow(self, event: Any, tensors: Sequence[Any]) -> None:
        """Let the consumer's current stream wait for ``event`` before its use of ``tensors``."""
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)  # freed while in use there, its memory waits

    def private(self, tensor: Any) -> Any:
        """A copy of ``tensor`` in memory of its own, in the order of the current stream."""
        return tensor.clone()

    def drain(self) -> None:
        """Let the host wait until all copies are done."""
        self._side.synchronize()


def open_device(cuda: bool | str) -> CudaDevice:
    """The device that parameter ``cuda`` names; ParamsError with advice where there is none."""
    try:
        import torch
    except ImportError as exc:
        raise ParamsError(
            f"cuda={cuda!r} needs torch",
            found=f"{type(exc).__name__}: {exc}",
            hint="pip install -e '.[torch]' in asyncreader's checkout, or leave cuda out",
        ) from exc
    if not torch.cuda.is_available():
        built = "built for CUDA, but no GPU is usable" if torch.version.cuda else "built for CPU"
        raise ParamsError(
            f"cuda={cuda!r}, but torch sees no GPU",
            found=f"torch {torch.__version__}, {built}",
            hint="nvidia-smi should list a GPU and CUDA_VISIBLE_DEVICES not hide it; "
            "or leave cuda out",
        )
    named = None if isinstance(cuda, bool) else torch.device(cuda).index
    index = torch.cuda.current_device() if named is None else named
    if index >= torch.cuda.device_count():
        raise ParamsError(
            f"there is no GPU cuda:{index}", found=f"{torch.cuda.device_count()} GPUs, from cuda:0"
        )
    return CudaDevice(torch, index)


# -- the two slots -------------------------------------------------------------------------------


@dataclass(eq=False)
class DeviceSlot:
    """Tensors of one batch.

    ``batch``: the host slot, and its generation, that they are a copy of; ``copied``: the event of
    the end of that copy; ``used``: the consumer's stream may have used them since ``passed``, the
    event of its last use.
    """

    tensors: tuple[Any, ...]
    batch: tuple[Slot, int] | None = None
    copied: Any = None
    used: bool = False
    passed: Any = None

    def holds(self, *states: int) -> bool:
        """Whether they hold a batch whose host slot is in one of these states."""
        if self.batch is None:
            return False
        slot, generation = self.batch
        return slot.generation == generation and slot.mark[0] in states


class DeviceRing:
    """Hands out the batches of a :class:`SlotRing` as device tensors.

    Has that ring's ``take``, ``hand_out``, ``release``, ``keep`` and ``drop_queued``. A batch goes
    to the device as soon as it is filled and the oldest in flight, and one of the two device slots
    is not in the consumer's hands: from the worker that filled it, else from ``take()``. Which
    device slots are free follows from the states of the host slots that they are copies of, so
    that nothing here has to change together with the ring. ``_lock`` guards all fields below it; a
    worker never waits for it. It is re-entrant, since a collected reader is closed by whatever
    thread collects it.
    """

    def __init__(self, ring: SlotRing, device: CudaDevice, debug: bool = False) -> None:
        self._ring = ring
        self._device = device
        self._debug = debug
        self._pinned: list[Array] = []
        self._lock = threading.RLock()
        #: the one that was copied to last is the last
        self._slots: list[DeviceSlot] = []
        try:
            for slot in ring.slots:
                for array in _handed_out(slot):
                    device.pin(array)
                    self._pinned.append(array)
            for _ in range(DEVICE_SLOTS):
                like = _handed_out(ring.slots[0])
                self._slots.append(DeviceSlot(tuple(device.empty(array) for array in like)))
        except BaseException:
            self._unpin()
            raise
        ring.on_ready = self._filled

    # -- consumer side ---------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> tuple[Slot, BaseException | None]:
        """As SlotRing's: wait for the oldest batch, which :meth:`hand_out` then gives.

        The device slot held before may be overwritten once the current stream has passed all that
        is queued on it now.
        """
        with self._lock:
            # the ring gives that host slot back as soon as it has the next one
            self._await_copies(HELD)
            slot, error = self._ring.take(timeout)
            self._give_up()
            if error is None and not self._copies_of(slot):
                self._upload(slot)
            self._upload_ahead()
            return slot, error

    def hand_out(self, slot: Slot, copy: bool) -> tuple[Any, Any]:
        """Data and labels of the batch just taken: device tensors, cut to its rows.

        Data is one tensor, or with several fields a tuple of them. The stream that is current now
        sees them filled; with ``copy`` they are private.
        """
        with self._lock:
            (held,) = self._copies_of(slot)
            held.used = True
            self._device.follow(held.copied, held.tensors)
            # slicing makes an object of its own: what the consumer sets on it stays with it
            made = [tensor[: slot.plan.indices.size] for tensor in held.tensors]
            if copy:
                made = [self._device.private(tensor) for tensor in made]
            labels = None if slot.out_labels is None else made.pop()
            return tuple(made) if slot.several else made[0], labels

    def release(self, slot: Slot, generation: int) -> None:
        """Give the held batch back; nothing happens if it was given back before."""
        with self._lock:
            self._await_copies(HELD)
            if self._ring.release(slot, generation):
                self._give_up()
                self._upload_ahead()

    def keep(self, slot: Slot, generation: int) -> None:
        """Always QueueFullError: the next two batches need the two device slots."""
        raise QueueFullError(
            "a batch on the device cannot be kept",
            found=f"{DEVICE_SLOTS} device slots, used in turn",
            hint="clone() its tensors, or open the reader with copy=True",
        )

    def drop_queued(self, left: Any = None) -> None:
        """As SlotRing's: forget the batches in flight, also one that is on the device already."""
        with self._lock:
            self._await_copies(READY)
            self._ring.drop_queued(left)

    def close(self) -> None:
        """Wait for the copies and unlock the memory. The ring is closed; tensors stay valid."""
        with self._lock:
            with contextlib.suppress(Exception):  # a device that failed has told the consumer
                self._device.drain()
            self._unpin()

    # -- inside (the lock is held) -----------------------------------------------------------

    def _filled(self) -> None:
        """A worker finished a batch. If the consumer is inside, it handles the batch itself."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            # a device that fails must not end a worker: take() meets the same error
            with contextlib.suppress(Exception):
                self._upload_ahead()
        finally:
            self._lock.release()

    def _copies_of(self, slot: Slot) -> list[DeviceSlot]:
        """The device slot with the batch that is in ``slot`` now; none where it is not there."""
        return [one for one in self._slots if one.batch == (slot, slot.generation)]

    def _await_copies(self, state: int) -> None:
        """Let the host wait for the copies from slots in ``state``, which are given back next."""
        for one in self._slots:
            if one.holds(state):
                self._device.wait(one.copied)

    def _upload_ahead(self) -> None:
        slot = self._ring.head()
        if slot is not None and not self._copies_of(slot) and self._free():
            self._upload(slot)

    def _free(self) -> list[DeviceSlot]:
        """The device slots that may be copied to, the one that was copied to first is the first."""
        return [one for one in self._slots if not one.used and not one.holds(READY, HELD)]

    def _upload(self, slot: Slot) -> None:
        target = self._free()[0]
        pairs = list(zip(_handed_out(slot), target.tensors, strict=True))
        copied = self._device.upload(pairs, target.passed)
        others = [one for one in self._slots if one is not target]
        # no call from here on: Ctrl-C comes before, and the batch is copied again, or after
        target.batch, target.copied = (slot, slot.generation), copied
        self._slots = [*others, target]

    def _give_up(self) -> None:
        """Note the last use of device slots whose batches the consumer gave back."""
        for one in self._slots:
            if one.used and not one.holds(HELD):
                one.passed = self._device.passed()
                if self._debug:
                    one.passed = self._device.fill(one.tensors, one.passed, POISON)
                one.used = False

    def _unpin(self) -> None:
        for array in self._pinned:
            with contextlib.suppress(Exception):
                self._device.unpin(array)
        self._pinned = []


def _handed_out(slot: Slot) -> list[Array]:
    return [*slot.out] if slot.out_labels is None else [*slot.out, slot.out_labels]
