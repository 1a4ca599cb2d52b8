"""TorchReader against the real torch, in Accelerate and Lightning; a Dataset in DataLoader."""

import contextlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_processes import for_torchrun, run
from fake_device import FakeDevice
from fakes import packed, pictures, write_hdf5
from frameworks import (
    COUNT,
    LABELS,
    SMALL,
    STEPS,
    check,
    checked,
    is_whole_epoch,
    lightning_module,
)

import asyncreader
from asyncreader import Writer

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")

from torch.utils import data  # noqa: E402

from asyncreader import AsyncReader, ParamsError, ReaderClosedError  # noqa: E402
from asyncreader.adapters.torch import TorchReader  # noqa: E402

# -- tensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_copy", [False, True])
def test_channels_last(zero_copy: bool) -> None:
    """Images stored (H, W, C) arrive as NCHW in channels_last memory, copied or not: with zero_copy
    all batches of an epoch lie in the njob + 1 slots, and a pickled loader copies nothing, too."""
    with TorchReader(SMALL, zero_copy=zero_copy, njob=2) as loader:
        slots, places = loader.reader._ring.slots, set()
        for data, labels in loader:
            assert data.shape == (4, 3, 6, 5)
            assert data.is_contiguous(memory_format=torch.channels_last)
            assert not data.is_contiguous()
            ours = any(np.shares_memory(data.numpy(), slot.rows[0]) for slot in slots)
            shared = any(np.shares_memory(labels.numpy(), slot.labels) for slot in slots)
            assert (ours, shared) == (zero_copy, zero_copy)
            check(data, labels, nchw=True)
            places.add(data.data_ptr())
        if zero_copy:
            assert len(places) <= 3
            with (
                pickle.loads(pickle.dumps(loader)) as twin,
                pytest.raises(ReaderClosedError, match="still held"),
            ):
                list(twin)
    with TorchReader(SMALL, contiguous=True, zero_copy=zero_copy) as loader:
        assert all(data.is_contiguous() for data, _ in loader)


def test_the_rest_of_an_epoch_is_told_of() -> None:
    """A loop that begins inside an epoch, because the one before ended early, says so once."""
    arrays: dict[str, Any] = {"data": np.zeros((20, 8, 8, 3), np.uint8), "batch_size": 4}
    with TorchReader(arrays, labels=np.zeros(20, np.int64)) as loader:
        next(iter(loader))
        with pytest.warns(UserWarning, match=r"inside epoch 0, at step 1 of 5.*seek\(0\)"):
            assert sum(1 for _ in loader) == 4
        next(iter(loader))
        assert sum(1 for _ in loader) == 4


#: 42 samples in steps of 4: the last batch has two samples and two padded rows.
PADDED: dict[str, Any] = {**SMALL, "last_batch": "pad", "shuffle": False}


def test_padded_rows_add_nothing_to_the_loss() -> None:
    """cross_entropy over a padded batch is that of its samples alone."""
    with TorchReader(PADDED, dtype="float32") as loader:
        *_, (data, labels) = loader
    scores = data.flatten(1)[:, :COUNT]
    loss = torch.nn.functional.cross_entropy
    assert torch.equal(loss(scores, labels), loss(scores[:2], torch.tensor([40, 41])))


def test_unsigned_labels_of_64_bits() -> None:
    """uint64 labels are int64 where rows can be padded or zeroed, and one that does not fit is an
    error, not another number; where no row can be, unsigned labels stay as stored."""
    labels = LABELS.astype(np.uint64)
    for given in ({"last_batch": "pad"}, {"on_error": "zero"}):
        with TorchReader(SMALL, labels=labels, **given) as loader:
            assert {labels.dtype for _, labels in loader} == {torch.int64}
    labels[1] = 1 << 63
    with TorchReader(PADDED, labels=labels) as loader, pytest.raises(ParamsError, match="-100"):
        next(iter(loader))
    with TorchReader(SMALL, labels=labels) as loader:
        assert next(iter(loader))[1].dtype is torch.uint64


def test_types_of_a_step() -> None:
    """Types of data and labels can be said alone, and with that of a whole step."""
    tensor = torch.Tensor
    assert TorchReader[tensor, None].__origin__ is TorchReader
    assert TorchReader[tensor, tensor, tuple[tensor, tensor]].__origin__ is TorchReader


def test_padded_rows_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With cuda, labels of padded rows are -100 and the mask is where the data are."""
    monkeypatch.setattr("asyncreader.reader.open_device", lambda _: FakeDevice("eager"))
    for given in ({}, {"labels": LABELS.astype(np.uint8)}, {"zero_copy": True}):
        with TorchReader(PADDED, cuda=True, with_mask=True, **given) as loader:
            for _ in range(2):
                *_, (data, labels, mask) = loader
                assert labels.tolist() == [40, 41, -100, -100]
                assert (labels.dtype, mask.device) == (torch.int64, data.device)
                assert mask.tolist() == [True, True, False, False]


# -- where a DataLoader stands -------------------------------------------------------------------


def test_what_loops_ask() -> None:
    """len(loader), len(loader.dataset), batch_size and drop_last are a DataLoader's."""
    with TorchReader(SMALL) as loader:
        assert len(loader) == STEPS
        assert len(loader.dataset) == COUNT
        assert loader.batch_size == 4
        assert loader.drop_last
        assert loader.classes is None is loader.dataset.classes
    with TorchReader(SMALL, last_batch="short") as loader:
        assert not loader.drop_last
        assert len(loader) == STEPS + 1
        assert "TorchReader" in repr(loader)


# -- frameworks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch_size": 16}, {"batch_size": 2, "drop_last": True}])
def test_in_a_data_loader(options: dict[str, Any]) -> None:
    """DataLoader(reader, batch_size=None) takes a reader as the iterable set that it is; one that
    would join batches to batches of batches is an error that says so. An AsyncReader, which it asks
    for samples by number, is an error that names TorchReader."""
    wrapped: Any = torch.utils.data.DataLoader
    with TorchReader(SMALL) as loader:
        with pytest.raises(ParamsError, match="batch_size=None"):
            next(iter(wrapped(loader, **options)))
        assert is_whole_epoch(checked(loader))
        whole = wrapped(loader, batch_size=None)
        assert len(whole) == STEPS
        assert all(is_whole_epoch(checked(whole)) for _ in range(2))
    with AsyncReader(SMALL) as reader:
        for more in (options, {"batch_size": None}):
            with pytest.raises(ParamsError, match="TorchReader"):
                next(iter(wrapped(reader, **more)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_in_workers_of_a_data_loader(context: str) -> None:
    """DataLoader's num_workers=2 is an error that says num_workers=0, not every sample twice."""
    with TorchReader(SMALL) as loader:
        wrapped = torch.utils.data.DataLoader(
            loader, batch_size=None, num_workers=2, multiprocessing_context=context
        )
        batches: Any = iter(wrapped)
        with pytest.raises(ParamsError, match="num_workers=0"):
            next(batches)
        # here and not in a later test: torch reports a worker that was still starting
        with contextlib.suppress(RuntimeError):
            batches._shutdown_workers()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_accelerate() -> None:
    """Accelerate, which looks one batch ahead, yields each batch with its pixels; it resumes."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderShard

    accelerator = Accelerator(cpu=True)
    with TorchReader(SMALL) as loader, TorchReader(SMALL) as other:
        epochs = [checked(other) for _ in range(2)]
        assert accelerator.prepare(loader) is loader
        prepared = accelerator.prepare(torch.utils.data.DataLoader(loader, batch_size=None))
        assert [checked(prepared), checked(prepared)] == epochs
    with TorchReader(SMALL) as loader:
        shard = DataLoaderShard(loader, device=accelerator.device, batch_size=None)
        assert [checked(shard), checked(shard)] == epochs
        state = loader.state_dict()
        held = list(shard)
        seen = [check(data, labels, nchw=True) for data, labels in held]
        assert is_whole_epoch(seen)
    with TorchReader(SMALL) as loader:
        loader.load_state_dict(state)
        resumed = DataLoaderShard(loader, device=accelerator.device, batch_size=None)
        resumed.iteration = state["epoch"]
        assert checked(resumed) == seen
        assert resumed.iteration == 3
        checked(resumed)
        assert loader.last is not None
        assert loader.last.epoch == 3


@pytest.mark.filterwarnings("ignore")  # of Lightning's many parts
def test_lightning(tmp_path: Path) -> None:
    """A Lightning Trainer fits two epochs of a reader: each sample once an epoch, then resumes."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    seen: list[list[int]] = []

    def trainer(*callbacks: Any, **limits: Any) -> Any:
        return lightning.Trainer(
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            callbacks=list(callbacks),
            **limits,
        )

    with TorchReader(SMALL) as loader, TorchReader(SMALL) as other:
        epochs = [checked(other) for _ in range(3)]
        keep = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path, "at{step}", every_n_train_steps=13, save_top_k=-1
        )
        fitted = trainer(keep, max_epochs=2)
        fitted.fit(lightning_module(seen), loader)
        assert seen == [*epochs[0], *epochs[1]]
        fitted.save_checkpoint(tmp_path / "end.ckpt")
    for name, expected in (
        ("end", epochs[2]),
        ("atstep=13", [*epochs[1][3:], *epochs[2]]),
    ):
        seen.clear()
        with TorchReader(SMALL) as resumed:
            ckpt = tmp_path / f"{name}.ckpt"
            trainer(max_epochs=3).fit(
                lightning_module(seen), resumed, ckpt_path=ckpt, weights_only=False
            )
        assert seen == expected, name


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_two_ranks(tmp_path: Path, name: str) -> None:
    """On two ranks each has a reader of its own: joined, their batches are those of one process
    with twice the batch size, in both epochs."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    here = Path(__file__).resolve().parent
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [sys.executable, *launch, here / "rank_scenarios.py", tmp_path, name]
    ended = run(words, env=for_torchrun(here.parent / "support"))
    assert ended.returncode == 0, ended.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text())[name] for rank in (0, 1)]
    with AsyncReader(SMALL, batch_size=8) as reader:
        whole = [[batch.indices.tolist() for batch in reader] for _ in range(2)]
    for epoch, expected in enumerate(whole):
        joined = [a + b for a, b in zip(ranks[0][epoch], ranks[1][epoch], strict=True)]
        assert joined == expected


# -- a Dataset in DataLoader ----------------------------------------------------------------------


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
