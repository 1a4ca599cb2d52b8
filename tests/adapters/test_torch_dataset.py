"""Dataset in PyTorch's own DataLoader: workers of every start method, samplers, parts and sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import packed, pictures, write_hdf5

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra torch")

from torch.utils import data  # noqa: E402

import asyncreader  # noqa: E402

IMAGES = pictures(40, (12, 10, 3))


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_workers_of_every_start_method(tmp_path: Path, method: str | None) -> None:
    """What a DataLoader serves is what the set holds, epoch after epoch: in this process, and in
    workers of each start method; of a part of the set joined to all of it, in tuples of numbers."""
    content = packed(IMAGES)
    path = write_hdf5(tmp_path / "a.h5", content)
    numbers = [(0, 44, 3), (39, 1), (4, 4, 4, 20)]
    stored = [7, 2, 9, 30, 5, *range(40)]
    with asyncreader.open(path) as ds:
        assert ds[0][0].shape == (3, 12, 10)  # open in this process before others are started
        joined = data.ConcatDataset([data.Subset(ds, stored[:5]), ds])
        if method is None:
            loader = data.DataLoader(joined, batch_sampler=numbers)
        else:
            how: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
            loader = data.DataLoader(joined, batch_sampler=numbers, persistent_workers=True, **how)
        for _ in range(2):
            for chosen, (images, labels) in zip(numbers, loader, strict=True):
                records = [stored[number] for number in chosen]
                expected = IMAGES[records].transpose(0, 3, 1, 2)
                np.testing.assert_array_equal(images.numpy(), expected)
                np.testing.assert_array_equal(labels.numpy(), content.labels[records])


def test_parts_and_samplers(tmp_path: Path) -> None:
    """random_split, slices of a Subset, a sampler with replacement, whole batches by a sampler of
    lists, and numbers that are tensors."""
    content = packed(IMAGES)
    with asyncreader.open(write_hdf5(tmp_path / "a.h5", content)) as ds:
        first, second = data.random_split(ds, [0.75, 0.25])
        assert (len(first), len(second)) == (30, 10)
        assert sorted([*first.indices, *second.indices]) == list(range(40))
        np.testing.assert_array_equal(second[2:5][0], ds[second.indices[2:5]][0])
        drawn = data.RandomSampler(ds, replacement=True, num_samples=50)
        loader = data.DataLoader(ds, batch_size=8, sampler=drawn)
        assert sum(len(labels) for _, labels in loader) == 50
        loader = data.DataLoader(ds, batch_size=None, sampler=[[3, 1], [0]])
        for chosen, (images, _) in zip([[3, 1], [0]], loader, strict=True):
            np.testing.assert_array_equal(images, IMAGES[chosen].transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(ds[torch.tensor(5)][0], ds[5][0])
        np.testing.assert_array_equal(ds[torch.tensor([5, 1])][0], ds[[5, 1]][0])
        with pytest.raises(IndexError):
            next(iter(data.DataLoader(ds, sampler=[40])))
