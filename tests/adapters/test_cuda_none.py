"""``cuda`` where there is no GPU: what is said, and that the real device's calls are torch's."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from typing import Any

import pytest
from frameworks import SMALL, check, no_gpu_torch

from asyncreader import AsyncReader, ParamsError

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
