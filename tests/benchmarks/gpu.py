"""What reaches a GPU: ``python tests/benchmarks/gpu.py SET.h5``, with CUDA and torch.

Images per second of three loops over the same shuffled batches, by turns, medians of five epochs:
``host`` (the batches stay in host memory), ``cuda`` (``cuda=True``) and ``to`` (TorchReader's
tensors and ``.to("cuda", non_blocking=True)``). The first epoch of each is not counted. At the
end, the rate of a copy from pinned memory, which no loop can exceed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from asyncreader import AsyncReader
from asyncreader.adapters.torch import TorchReader

BATCH = 256
PARAMS = {"batch_size": BATCH, "shuffle": True, "seed": 1, "nthread": 8, "njob": 4}
LOOPS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "host": (AsyncReader, {}),
    "cuda": (AsyncReader, {"cuda": True}),
    "to": (TorchReader, {}),
}


def rate(path: str, loop: str, **params: Any) -> float:
    """Images per second of the second epoch."""
    make, options = LOOPS[loop]
    with make(path=path, **PARAMS, **options, **params) as reader:
        for _ in reader:
            pass
        torch.cuda.synchronize()
        started, count = time.perf_counter(), 0
        for images, *_ in reader:
            if loop == "to":
                images = images.to("cuda", non_blocking=True)
            count += BATCH
        torch.cuda.synchronize()
        return count / (time.perf_counter() - started)


def pinned_copy(size: int) -> float:
    """Bytes per second of a copy of ``size`` bytes from pinned memory."""
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    for repeats in (3, 50):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(repeats):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
    return repeats * size / (time.perf_counter() - started)


def main(path: str) -> None:
    """Print a line for each loop."""
    half = {"dtype": "float16", "scale": 1 / 255, "layout": "NCHW"}
    for params in ({}, half):
        rates: dict[str, list[float]] = {loop: [] for loop in LOOPS}
        for _ in range(5):
            for loop, found in rates.items():
                found.append(rate(path, loop, **params))
        with AsyncReader(path=path, **PARAMS, **params) as reader:
            size = next(iter(reader)).data.nbytes
        for loop, found in rates.items():
            median = statistics.median(found)
            print(
                f"{params.get('dtype', 'as stored')} {loop}: {median:,.0f} images/s, "
                f"{median * size / BATCH / 1e9:.2f} GB/s "
                f"({min(found):,.0f} to {max(found):,.0f})"
            )
    print(f"a bare copy of {size:,} bytes: {pinned_copy(size) / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
