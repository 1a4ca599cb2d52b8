"""``cuda``: the discipline of slots and events on a fake device, and where there is no GPU.

test_cuda_gpu.py does the same on a real one.
"""

import contextlib
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice
from fakes import MemorySource, open_fake
from frameworks import IMAGES, LABELS, SMALL, STEPS, check, expected, is_whole_epoch, no_gpu_torch
from observed import slot_states, until

from asyncreader import (
    AsyncReader,
    ChecksumError,
    ParamsError,
    QueueFullError,
    ReaderClosedError,
)
from asyncreader.pipeline.cuda import DEVICE_SLOTS
from asyncreader.pipeline.slots import POISON

Opener = Callable[..., AsyncReader]

#: Paces of the device: see FakeDevice.
PACES = ["late", "eager", 1, 2, 3]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens a reader of the small set, or of a source, on a fake device."""
    readers = []

    def opened(
        device: FakeDevice, source: MemorySource | None = None, **params: Any
    ) -> AsyncReader:
        monkeypatch.setattr("asyncreader.reader.open_device", lambda _: device)
        if source is None:
            readers.append(AsyncReader(SMALL, cuda=True, **params))
        else:
            readers.append(open_fake(monkeypatch, source, cuda=True, batch_size=4, **params))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.close()


class Consumer:
    """Queues work on a device that reads each batch, and keeps what it read."""

    def __init__(self, *device: Any) -> None:
        self.device = FakeDevice(*device)
        self.read: list[tuple[np.ndarray, np.ndarray]] = []

    def use(self, data: Any, labels: Any) -> None:
        self.device.compute(lambda: self.read.append((data.copy(), labels.copy())))

    def records(self) -> list[list[int]]:
        """The samples of all batches, when the device is done, their pixels compared."""
        self.device.finish()
        return [check(data, labels[:, 0], nchw=True) for data, labels in self.read]


# -- the two rules -------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("njob", [1, 3])
def test_loop(on: Opener, pace: str | int, njob: int) -> None:
    """Whatever the device's pace, the consumer's work sees each batch with its own pixels."""
    consumer = Consumer(pace)
    with on(consumer.device, njob=njob, debug=True) as reader:
        for _ in range(3):
            for data, labels in reader:
                consumer.use(data, labels)
        assert consumer.records() == expected(3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pace", "workers"),
    [*((pace, "thread") for pace in PACES), ("late", "process"), ("eager", "process")],
)
def test_fetch_and_get(on: Opener, pace: str | int, workers: str) -> None:
    """The same of a loop that fetches by hand, and of process workers' shared slots."""
    consumer = Consumer(pace)
    with on(consumer.device, njob=1, debug=True, workers=workers) as reader:
        reader.fetchData()
        for _ in range(2 * STEPS):
            batch = reader.getNextBatch()
            reader.fetchData()
            consumer.use(*batch)
        assert consumer.records() == expected(2)


@pytest.mark.parametrize("forgets", ["after", "wait", "follow"])
def test_the_fake_notices(on: Opener, forgets: str) -> None:
    """Without any one of the three waits the consumer's work reads wrong pixels, and it shows."""
    consumer = Consumer("late", forgets)
    with on(consumer.device, njob=2, debug=True) as reader:
        for _ in range(2):
            for data, labels in reader:
                consumer.use(data, labels)
        consumer.device.finish()
    seen = [labels[:, 0].tolist() for _, labels in consumer.read]
    assert len(seen) == 2 * STEPS
    assert seen != expected(2)


def test_two_device_slots(on: Opener) -> None:
    """njob + 1 pinned slots, two device slots of the same strides; batches alternate."""
    device = FakeDevice("eager")
    with on(device, njob=3) as reader:
        slots = reader._ring.slots
        assert len(slots) == 4
        buffers = [buffer for slot in slots for buffer in (slot.out[0], slot.out_labels)]
        assert device.pinned == [(b.ctypes.data, b.nbytes) for b in buffers if b is not None]
        assert all(address % 4096 == 0 for address, _ in device.pinned)
        assert len(device.tensors) == 2 * DEVICE_SLOTS
        assert device.tensors[0].strides == slots[0].out[0].strides
        places = [batch.data.ctypes.data for batch in reader]
    assert places == places[:2] * 5
    assert len(set(places)) == 2
    assert device.unpinned == device.pinned
    assert device.drained == 1


def test_upload_ahead(on: Opener) -> None:
    """The next batch is on its way before it is asked for, by the worker that filled it."""
    device = FakeDevice("late")
    with on(device, njob=1, nthread=1) as reader:
        reader.fetchData()
        until(lambda: device.uploads == 1)
        reader.getNextBatch()
        assert device.uploads == 1
        reader.fetchData()
        until(lambda: device.uploads == 2)
        assert all(name.startswith("asyncreader-fill") for name in device.uploaders)
        # both device slots are taken: the third batch stays on the host
        reader.getNextBatch()
        reader.fetchData()
        until(lambda: device.uploads == 3)
    device = FakeDevice("late")
    with on(device, njob=3) as reader:
        for _ in range(3):
            reader.fetchData()
        until(lambda: slot_states(reader)["ready"] == 3)
        assert device.uploads == 1
        reader.getNextBatch()
        assert device.uploads == 2


# -- what a batch may do -------------------------------------------------------------------------


@pytest.mark.parametrize("pace", PACES)
def test_copy_is_private(on: Opener, pace: str | int) -> None:
    """With copy=True twelve batches held at once keep their pixels."""
    device = FakeDevice(pace)
    with on(device, njob=2, copy=True, debug=True) as reader:
        held = [batch for _ in range(2) for batch in reader][:12]
        device.finish()
        seen = [check(data, labels[:, 0], nchw=True) for data, labels in held]
    assert is_whole_epoch(seen[:STEPS])


def test_what_a_batch_may_not(on: Opener) -> None:
    """keep() on the device is QueueFullError that advises clone(); a batch raises when its data is
    read after the next one was taken."""
    with on(FakeDevice("late"), njob=2) as reader:
        loop = iter(reader)
        first, second = next(loop), next(loop)
        with pytest.raises(QueueFullError, match=r"clone\(\)"):
            second.keep()
        with pytest.raises(ReaderClosedError, match="given back"):
            _ = first.labels
        assert len(second.data) == len(second.labels) == 4


@pytest.mark.parametrize("pace", PACES)
def test_release(on: Opener, pace: str | int) -> None:
    """release() gives a batch back before the next one; twice is harmless; work queued is safe."""
    consumer = Consumer(pace)
    with on(consumer.device, njob=2, debug=True) as reader:
        for batch in reader:
            consumer.use(batch.data, batch.labels)
            batch.release()
            batch.release()
            assert slot_states(reader)["held"] == 0
            with pytest.raises(ReaderClosedError, match="copy=True"):
                _ = batch.data
        assert consumer.records() == expected(1)


def test_poison(on: Opener) -> None:
    """With debug=True a released device slot is overwritten, once the consumer's work passed it."""
    consumer = Consumer("late")
    with on(consumer.device, debug=True) as reader:
        reader.fetchData()
        batch = reader.getNextBatch()
        data = batch.data
        consumer.use(data, batch.labels)
        batch.release()
        assert is_whole_epoch(consumer.records()) is False
        assert (data == POISON).all()


def test_short_and_unlabelled(on: Opener) -> None:
    """A short batch is cut on the device too; a set without labels gives None."""
    device = FakeDevice("eager")
    with on(device, last_batch="short", shuffle=False) as reader:
        *_, last = iter(reader)
        np.testing.assert_array_equal(last.labels, LABELS[40:])
        assert last.data.shape == (2, 3, 6, 5)
    with on(FakeDevice("eager"), labels=None) as reader:
        assert all(batch.labels is None for batch in reader)


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", PACES)
def test_bad_batch(on: Opener, pace: str | int) -> None:
    """A bad batch raises for itself; the one held stays valid, and the next ones are right."""
    consumer, held = Consumer(pace), []
    source = MemorySource(IMAGES, LABELS, damaged=[9])
    with on(consumer.device, source, njob=2, debug=True) as reader:
        for step in range(STEPS):
            with contextlib.suppress(QueueFullError):
                while True:
                    reader.fetchData()
            if step == 2:
                with pytest.raises(ChecksumError):
                    reader.getNextBatch()
            else:
                batch, number = reader.getNextBatch(), step
            consumer.use(*batch)
            held.append(number)
        assert consumer.records() == LABELS[:40, 0].reshape(STEPS, 4)[held].tolist()


@pytest.mark.parametrize("what", ["upload", "pin"])
def test_a_device_that_fails(on: Opener, what: str) -> None:
    """What the device raises reaches the caller, and nothing is left locked or running: a reader
    whose slots cannot be locked does not open, one whose batch is not copied still closes."""
    device, before = FakeDevice(), threading.active_count()
    setattr(device, f"fail_{what}_at", 3)
    with pytest.raises((OSError, RuntimeError), match="planned"), on(device, njob=2) as reader:
        for _ in reader:
            pass
    assert device.unpinned == device.pinned
    assert what == "upload" or len(device.pinned) == 3
    assert threading.active_count() == before


def test_forgotten_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that nobody refers to is collected, and its memory unlocked."""
    device = FakeDevice()
    monkeypatch.setattr("asyncreader.reader.open_device", lambda _: device)
    next(iter(AsyncReader(SMALL, cuda=True)))
    gc.collect()
    assert device.unpinned == device.pinned != []


# -- without a GPU -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "cuda", "words"),
    [
        (None, True, r"needs torch.*pip install -e '\.\[torch\]'"),
        (no_gpu_torch(0), "cuda:0", r"sees no GPU.*built for CPU.*leave cuda out"),
        (no_gpu_torch(2), "cuda:2", r"no GPU cuda:2.*2 GPUs"),
    ],
    ids=["no torch", "no GPU", "no such GPU"],
)
def test_no_gpu(monkeypatch: pytest.MonkeyPatch, torch: Any, cuda: Any, words: str) -> None:
    """cuda without torch, where torch sees no GPU, or with the number of one that is not there is a
    ParamsError with advice, before any thread."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    before = threading.active_count()
    with pytest.raises(ParamsError, match=words):
        AsyncReader(SMALL, cuda=cuda)
    assert threading.active_count() == before


def test_cuda_with_the_real_torch() -> None:
    """The CPU build of torch is told apart from a machine with a GPU."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ParamsError, match="torch sees no GPU"):
        AsyncReader(SMALL, cuda=True)


# -- the calls of the real device ----------------------------------------------------------------


def test_cuda_device_on_host_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """CudaDevice's own calls are torch's: on host tensors, without streams, batches come out right.

    This finds a wrong name or argument where there is no GPU, nothing about order.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from asyncreader.adapters.torch import TorchReader
    from asyncreader.pipeline.cuda import CudaDevice

    class Nothing:
        def __getattr__(self, name: str) -> Any:
            assert name in ("record", "synchronize", "wait_event")
            return lambda *_: None

    registered: list[int] = []
    cudart = types.SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: registered.append(address) or 0,
        cudaHostUnregister=registered.remove,
    )
    for name, made in (
        ("Stream", lambda device: Nothing()),
        ("Event", lambda blocking=False: Nothing()),
        ("current_stream", lambda device: Nothing()),
        ("stream", lambda stream: contextlib.nullcontext()),
        ("device", lambda device: contextlib.nullcontext()),
        ("cudart", lambda: cudart),
    ):
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    device = CudaDevice(torch, 0)
    device._device = torch.device("cpu")
    monkeypatch.setattr("asyncreader.reader.open_device", lambda _: device)
    for options in ({"zero_copy": True, "debug": True}, {"debug": False}, {"contiguous": True}):
        with TorchReader(SMALL, cuda=True, dtype="float32", **options) as loader:
            seen = []
            for data, labels in loader:
                assert data.is_contiguous() == ("contiguous" in options)
                seen.append(check(data.to(torch.uint8), labels, nchw=True))
            assert registered
            with AsyncReader(SMALL) as plain:
                assert seen == [batch.indices.tolist() for batch in plain]
        assert registered == []
    cudart.cudaHostRegister = lambda address, size, flags: 2
    with pytest.raises(ParamsError, match="cannot be locked"):
        TorchReader(SMALL, cuda=True)
