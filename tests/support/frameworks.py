"""What the tests of all adapters share: a small set, and the pictures of sample_data packed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import paint
from project import ROOT

from asyncreader import AsyncReader
from asyncreader.tools.demo import IMAGE_SIZE, augment, shape_map
from converters import convert

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


# -- training on sample_data -----------------------------------------------------------------------

EPOCHS = 20
LEARNING_RATE = 6e-3
GOOD = 0.9


def train_maps(data: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Any:
    """postprocess: (B, 48, 48, 3) pictures, changed at random, as (B, 24, 24, 1) float32 maps."""
    augment(data, labels, rng)
    return shape_map(data), labels


def plain_maps(data: np.ndarray, labels: np.ndarray) -> Any:
    """postprocess: as train_maps(), unchanged."""
    return shape_map(data), labels


def nchw(function: Any) -> Any:
    """``function`` as a postprocess, its maps as (B, 1, 24, 24)."""

    def moved(data: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Any:
        rest = (rng,) if function is train_maps else ()
        maps, labels = function(data, labels, *rest)
        return maps.transpose(0, 3, 1, 2), labels

    return moved


def pack_sample_data(folder: Path) -> dict[str, str]:
    """sample_data's two halves, packed: {"train": path, "test": path}."""
    paths = {split: folder / f"{split}.h5" for split in ("train", "test")}
    for split, path in paths.items():
        convert(ROOT / "sample_data" / split, path, size=IMAGE_SIZE)
    return {split: str(path) for split, path in paths.items()}


def train_params(paths: dict[str, str]) -> dict[str, Any]:
    """Parameters of the training half."""
    return {
        "path": paths["train"],
        "batch_size": 32,
        "nthread": 2,
        "njob": 2,
        "layout": "NHWC",
        "shuffle": True,
        "postprocess": train_maps,
    }


def heldout_params(paths: dict[str, str]) -> dict[str, Any]:
    """Parameters of the half that is held out."""
    return {
        "path": paths["test"],
        "batch_size": 28,  # 112 pictures
        "layout": "NHWC",
        "postprocess": plain_maps,
    }


@pytest.fixture(scope="session")
def sample_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The packed halves of sample_data, made once."""
    return pack_sample_data(tmp_path_factory.mktemp("sample_sets"))
