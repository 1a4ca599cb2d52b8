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
from asyncreader import Writer  # noqa: E402

IMAGES = pictures(40, (12, 10, 3))


@pytest.mark.parametrize(
    "method",
    [None, "fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("spawn", "forkserver"))],
)
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


def labels_of(batch: Any) -> Any:
    return batch["label"] if isinstance(batch, dict) else batch[1]


@pytest.mark.parametrize("sizes", ["one", "many"])
@pytest.mark.parametrize("as_dict", [False, True])
def test_class_numbers_are_what_cross_entropy_takes(
    tmp_path: Path, sizes: str, as_dict: bool
) -> None:
    """Stored labels (N, 1) of whole numbers reach a loss as (B,) int64, those of a part of the set
    and of each of several labels, too; other labels as they are stored."""
    rng = np.random.default_rng(0)
    with Writer(tmp_path / "a.h5", encoding="png") as writer:
        for n in range(6):
            wide = 4 + n * (sizes == "many")
            writer.add(rng.integers(0, 256, (4, wide, 3), np.uint8), n % 3, depth=np.float32(n))
    given: Any = {"as_dict": as_dict, "size": None if sizes == "one" else (4, 4)}
    with asyncreader.open(tmp_path / "a.h5", **given) as ds:
        for part in (ds, data.Subset(ds, range(6)), data.random_split(ds, [6])[0]):
            for batch in data.DataLoader(part, batch_size=3):
                labels = labels_of(batch)
                assert (labels.shape, labels.dtype) == ((3,), torch.int64)
                torch.nn.functional.cross_entropy(torch.zeros(3, 3), labels)
        label = labels_of(ds[1])
        assert (label.shape, labels_of(ds[:2]).shape, label) == ((1,), (2, 1), 1)
        assert [labels_of(one).shape for one in ds] == [(1,)] * 6  # a sample is that of a reader
    if sizes == "many":
        with asyncreader.open(tmp_path / "a.h5", as_dict=as_dict) as ds:
            assert [labels_of(one).shape for one in ds.__getitems__([1, 4])] == [()] * 2
    given["labels_field"] = ["labels", "depth"]
    with asyncreader.open(tmp_path / "a.h5", **given) as ds:
        numbers, depth = labels_of(next(iter(data.DataLoader(ds, batch_size=3))))
        assert (numbers.shape, depth.shape) == ((3,), (3,))
    column = np.arange(6, dtype=np.uint8)[:, None]
    with asyncreader.open(data=column, labels=column, as_dict=as_dict) as ds:
        batch = next(iter(data.DataLoader(ds, batch_size=3)))
        assert (batch["data"] if as_dict else batch[0]).shape == (3, 1)  # data are no labels
    for labels, shape in ((np.ones((6, 1)), (3, 1)), (np.ones((6, 2), int), (3, 2))):
        with asyncreader.open(data=np.zeros((6, 5)), labels=labels, as_dict=as_dict) as ds:
            assert labels_of(next(iter(data.DataLoader(ds, batch_size=3)))).shape == shape


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
