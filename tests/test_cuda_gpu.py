"""``cuda`` on a real GPU: the facts that adapters/test_cuda.py shows on a fake one."""

from typing import Any

import pytest
from frameworks import LABELS, SMALL, STEPS, check, is_whole_epoch

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU here", allow_module_level=True)

from asyncreader import AsyncReader  # noqa: E402
from asyncreader.adapters.torch import TorchReader  # noqa: E402

#: Cycles that a kernel of the consumer wastes first: some 10 ms, many copies' time.
SLEEP = 20_000_000


def seen_by(reader: Any, steps: int, wait: bool) -> list[list[int]]:
    """The samples that slow work, queued on the current stream, finds in each batch."""
    found = []
    reader.fetchData()
    for _ in range(steps):
        data, labels = reader.getNextBatch()
        reader.fetchData()
        torch.cuda._sleep(SLEEP)
        found.append((data.clone(), labels.clone()))
        if wait:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return [check(data.cpu(), labels[:, 0].cpu(), nchw=True) for data, labels in found]


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("options", [{}, {"njob": 3}, {"workers": "process"}, {"debug": True}])
def test_slow_work_reads_its_batch(options: dict[str, Any], wait: bool, own_stream: bool) -> None:
    """Kernels that run long after they were queued read their own batch, on any stream."""
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream), AsyncReader(SMALL, cuda=True, **options) as reader:
        seen = seen_by(reader, 2 * STEPS, wait)
    assert is_whole_epoch(seen[:STEPS])
    assert is_whole_epoch(seen[STEPS:])


def test_slots_are_pinned_and_tensors_on_the_device() -> None:
    """The slots' own memory is page-locked while the reader is open; tensors are channels_last."""
    with AsyncReader(SMALL, cuda="cuda:0") as reader:
        slots = reader._ring.slots
        assert all(torch.from_numpy(slot.out[0]).is_pinned() for slot in slots)
        addresses = set()
        for batch in reader:
            assert batch.data.device == torch.device("cuda", 0)
            assert batch.data.is_contiguous(memory_format=torch.channels_last)
            addresses.add(batch.data.data_ptr())
        assert len(addresses) == 2
    assert not any(torch.from_numpy(slot.out[0]).is_pinned() for slot in slots)


def test_torch_reader_holds_twelve() -> None:
    """TorchReader's private device tensors, twelve held at once, are all right."""
    with TorchReader(SMALL, cuda=True, njob=2) as loader:
        held = [pair for _ in range(2) for pair in loader][:12]
    seen = [check(data.cpu(), labels.cpu(), nchw=True) for data, labels in held]
    assert is_whole_epoch(seen[:STEPS])


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "uint16", "uint64"])
def test_padded_rows_have_no_class(dtype: str, zero_copy: bool) -> None:
    """Labels of padded rows are -100 on the device, where the mask and the indices are, too."""
    params = {**SMALL, "shuffle": False, "last_batch": "pad", "labels": LABELS.astype(dtype)}
    beside = {"with_mask": True, "with_indices": True, "zero_copy": zero_copy}
    with TorchReader(params, cuda=True, **beside) as loader:
        for _ in range(2):
            steps = [[array.clone() for array in step[1:]] for step in loader]
    labels, mask, indices = (torch.cat(arrays) for arrays in zip(*steps, strict=True))
    assert {array.device.type for array in (labels, mask, indices)} == {"cuda"}
    assert labels.dtype is torch.int64
    assert labels.tolist() == [*range(42), -100, -100]
    assert mask.tolist() == [True] * 42 + [False] * 2
    assert indices.tolist() == [*range(42), -1, -1]
