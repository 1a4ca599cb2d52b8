"""What the tests of all adapters share: a small set, and what is served of it."""

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import paint

from asyncreader import AsyncReader

COUNT = 42
#: All different; the label of image i is i.
IMAGES = paint(COUNT, (6, 5, 3))
LABELS = np.arange(COUNT, dtype=np.int64)[:, None]

#: Four samples a batch, ten batches an epoch, two samples left over.
SMALL: dict[str, Any] = {
    "data": IMAGES,
    "labels": LABELS,
    "batch_size": 4,
    "shuffle": True,
    "seed": 5,
    "nthread": 2,
}
STEPS = 10


def check(data: Any, labels: Any, nchw: bool) -> list[int]:
    """The samples of a batch by their labels, after comparing every pixel to what was stored."""
    records = np.asarray(labels)
    assert records.shape == (4,)
    expected = IMAGES[records]
    np.testing.assert_array_equal(
        np.asarray(data), expected.transpose(0, 3, 1, 2) if nchw else expected
    )
    return [int(record) for record in records]


def checked(loop: Iterable[Any], count: int | None = None) -> list[list[int]]:
    """The samples of (``count``) batches of NCHW, their pixels compared."""
    loop = iter(loop)
    taken = loop if count is None else (next(loop) for _ in range(count))
    return [check(data, labels, nchw=True) for data, labels in taken]


def expected(epochs: int) -> list[list[int]]:
    """The samples of the batches that the reader alone serves."""
    with AsyncReader(SMALL) as reader:
        return [batch.indices.tolist() for _ in range(epochs) for batch in reader]


def is_whole_epoch(batches: Iterable[list[int]]) -> bool:
    """Whether the batches serve 40 different samples."""
    records = [record for batch in batches for record in batch]
    return len(records) == len(set(records)) == STEPS * 4


def needs(*modules: str) -> None:
    """Skips a test where one of the modules is not installed."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.fixture(params=["torch", "torch, zero_copy", "jax"])
def opener(request: pytest.FixtureRequest) -> Any:
    """Opens the loader of each framework that is installed."""
    name, *zero_copy = request.param.split(", ")
    needs(name)
    kind = getattr(import_module(f"asyncreader.adapters.{name}"), f"{name.title()}Reader")
    return partial(kind, zero_copy=True) if zero_copy else kind


def kept(array: Any) -> np.ndarray:
    """An array of a framework, copied."""
    return np.asarray(array).copy()


def narrowed(opener: Any, dtype: str) -> str:
    """The name of what a dtype becomes: jax holds 32 bits."""
    return dtype.replace("64", "32") if "Jax" in str(opener) else dtype


def lightning_module(seen: list[list[int]]) -> Any:
    """A LightningModule over the batches of SMALL; it adds their samples to ``seen``."""
    import lightning
    import torch

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(90, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            seen.append(check(*batch, nchw=True))
            return self.layer(batch[0].float().flatten(1)).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    return Module()


def no_gpu_torch(count: int) -> Any:
    """As much of torch as is looked at before a device is opened, with so many GPUs."""
    torch: Any = ModuleType("torch")
    torch.__version__ = "9.9+fake"
    torch.version = SimpleNamespace(cuda=None)
    torch.device = lambda name: SimpleNamespace(index=int(name[5:]) if ":" in name else None)
    torch.cuda = SimpleNamespace(
        is_available=lambda: count > 0, device_count=lambda: count, current_device=lambda: 0
    )
    return torch
