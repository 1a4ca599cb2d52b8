"""TorchReader against the real torch, and where Accelerate and Lightning take it."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from child_processes import for_torchrun
from fake_device import FakeDevice
from fakes import packed, write_hdf5
from frameworks import (
    COUNT,
    EPOCHS,
    GOOD,
    IMAGES,
    LABELS,
    LEARNING_RATE,
    SMALL,
    STEPS,
    check,
    checked,
    heldout_params,
    is_whole_epoch,
    lightning_module,
    nchw,
    plain_maps,
    sample_sets,
    train_maps,
    train_params,
)

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")

from asyncreader import AsyncReader, NothingQueuedError, ParamsError, ReaderClosedError  # noqa: E402
from asyncreader import open as open_set  # noqa: E402
from asyncreader.adapters.torch import TorchReader  # noqa: E402

__all__ = ["sample_sets"]  # a fixture


# -- tensors -------------------------------------------------------------------------------------


def test_several_labels_are_a_tuple_of_tensors(tmp_path: Path) -> None:
    """Each of several labels is a tensor of its own, with -100 where integers are padded."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"] = np.zeros((5, 3))
        file["a"], file["b"] = np.arange(5, dtype=np.uint8), np.arange(5) / 2
        file["c"] = np.arange(5, dtype=np.int32)[:, None]
    path = tmp_path / "x.h5"
    for more in ({}, {"zero_copy": True}):
        loader = TorchReader(
            path, labels_field=["a", "b", "c"], batch_size=4, last_batch="pad", **more
        )
        with loader:
            for _, labels in loader:
                a, b, c = labels
            assert (a.dtype, a.tolist()) == (torch.int64, [4, -100, -100, -100])
            assert b.tolist() == [2.0, 0, 0, 0]
            assert (c.dtype, c.tolist()) == (torch.int32, [4, -100, -100, -100])


def test_twelve_batches_held() -> None:
    """Twelve batches of two epochs, all held at once, all have the pixels they had when new."""
    with TorchReader(SMALL, njob=3) as loader:
        held = [pair for _ in range(2) for pair in loader][:12]
        seen = [check(data, labels, nchw=True) for data, labels in held]
    assert is_whole_epoch(seen[:STEPS])
    assert len({data.data_ptr() for data, _ in held}) == 12
    assert {data.dtype for data, _ in held} == {torch.uint8}


def test_the_rest_of_an_epoch_is_told_of() -> None:
    """A loop that begins inside an epoch, because the one before ended early, says so once."""
    arrays: dict[str, Any] = {"data": np.zeros((20, 8, 8, 3), np.uint8), "batch_size": 4}
    with TorchReader(arrays, labels=np.zeros(20, np.int64)) as loader:
        next(iter(loader))
        with pytest.warns(UserWarning, match=r"inside epoch 0, at step 1 of 5.*seek\(0\)"):
            assert sum(1 for _ in loader) == 4
        next(iter(loader))
        assert sum(1 for _ in loader) == 4


def test_order_is_the_readers() -> None:
    """Batches come in AsyncReader's order, and ``last`` names their records, epoch and step."""
    with TorchReader(SMALL) as loader, AsyncReader(SMALL) as reader:
        for epoch in range(2):
            for step, ((data, _), batch) in enumerate(zip(loader, reader, strict=True)):
                np.testing.assert_array_equal(data.numpy(), batch.data)
                assert loader.last is not None
                assert (loader.last.epoch, loader.last.step) == (epoch, step)
                np.testing.assert_array_equal(loader.last.indices, batch.indices)
                assert loader.last.mask.all()


@pytest.mark.parametrize("zero_copy", [False, True])
def test_channels_last(zero_copy: bool) -> None:
    """Images stored (H, W, C) arrive as NCHW in channels_last memory, copied or not."""
    with TorchReader(SMALL, zero_copy=zero_copy) as loader:
        data, labels = next(iter(loader))
        assert data.shape == (4, 3, 6, 5)
        assert data.is_contiguous(memory_format=torch.channels_last)
        assert not data.is_contiguous()
        slots = loader.reader._ring.slots
        ours = any(np.shares_memory(data.numpy(), slot.rows[0]) for slot in slots)
        assert ours == zero_copy
        shared = any(np.shares_memory(labels.numpy(), slot.labels) for slot in slots)
        assert shared == zero_copy
        check(data, labels, nchw=True)


def test_zero_copy_reuses_the_slots() -> None:
    """With zero_copy all batches of an epoch lie in the njob + 1 slots."""
    with TorchReader(SMALL, zero_copy=True, njob=2) as loader:
        places = {data.data_ptr() for data, labels in loader if check(data, labels, nchw=True)}
    assert len(places) <= 3


def test_contiguous_is_contiguous() -> None:
    """contiguous=True gives tensors in torch's own memory order."""
    with TorchReader(SMALL, contiguous=True) as loader:
        assert all(data.is_contiguous() for data, _ in loader)


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        (LABELS, (4,)),
        (LABELS[:, 0], (4,)),
        (LABELS.astype(np.uint8), (4,)),
        (LABELS.astype(np.float32), (4, 1)),
        (LABELS > 7, (4, 1)),
        (np.repeat(LABELS, 2, axis=1), (4, 2)),
        (None, None),
    ],
)
def test_labels(labels: np.ndarray | None, shape: tuple[int, ...] | None) -> None:
    """(B, 1) integers come out as (B,), everything else as stored, no labels as None."""
    with TorchReader(SMALL, labels=labels, shuffle=False) as loader:
        for step, (_, given) in enumerate(loader):
            if labels is None:
                assert given is None
                continue
            expected = labels[4 * step : 4 * step + 4].reshape(shape)
            assert given.shape == shape
            np.testing.assert_array_equal(given.numpy(), expected, strict=True)


@pytest.mark.parametrize("dtype", [">i2", ">f4", ">i8", ">f8", "<u2", "<f2", "u1"])
def test_any_byte_order(tmp_path: Path, dtype: str) -> None:
    """Big-endian sets, which torch refuses, arrive in native byte order with the same values."""
    values = (np.arange(20 * 36).reshape(20, 6, 2, 3) % 99).astype(dtype)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["data"] = values
        file["labels"] = np.arange(20, dtype=">i4")
    for zero_copy in (False, True):
        with TorchReader(
            path=tmp_path / "set.h5", batch_size=4, layout="NHWC", zero_copy=zero_copy
        ) as loader:
            for data, labels in loader:
                assert labels.dtype is torch.int32
                np.testing.assert_array_equal(data.numpy(), values[labels.numpy()])


def test_short_batch() -> None:
    """The short last batch is a short tensor."""
    with TorchReader(SMALL, last_batch="short", shuffle=False) as loader:
        sizes = [(len(data), len(labels)) for data, labels in loader]
    assert sizes == [(4, 4)] * 10 + [(2, 2)]


# -- rows that are not valid ---------------------------------------------------------------------

#: 42 samples in steps of 4: the last batch has two samples and two padded rows.
PADDED: dict[str, Any] = {**SMALL, "last_batch": "pad", "shuffle": False}


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (LABELS, torch.int64),
        (LABELS[:, 0].astype(np.int8), torch.int8),
        (LABELS.astype(np.uint8), torch.int64),
        (LABELS.astype(np.uint32), torch.int64),
        (np.repeat(LABELS, 2, axis=1).astype(np.int32), torch.int32),
    ],
)
def test_padded_rows_have_no_class(labels: np.ndarray, dtype: torch.dtype, zero_copy: bool) -> None:
    """Integer labels of padded rows are -100, which torch's losses ignore, in the dtype of all
    batches: unsigned ones, without room for it, are int64. Labels of samples are as stored."""
    with TorchReader(PADDED, labels=labels, zero_copy=zero_copy) as loader:
        for _ in range(2):
            for step, (_, given) in enumerate(loader):
                stored = labels[4 * step : 4 * step + 4].astype(np.int64)
                padded = np.full((4 - len(stored), *stored.shape[1:]), -100)
                expected = np.concatenate([stored, padded]).reshape(tuple(given.shape))
                assert given.dtype is dtype
                np.testing.assert_array_equal(given.numpy(), expected)
        assert given.tolist()[2:] == [given.tolist()[2]] * 2


def test_padded_rows_add_nothing_to_the_loss() -> None:
    """cross_entropy over a padded batch is that of its samples alone."""
    with TorchReader(PADDED, dtype="float32") as loader:
        *_, (data, labels) = loader
    scores = data.flatten(1)[:, :COUNT]
    loss = torch.nn.functional.cross_entropy
    assert torch.equal(loss(scores, labels), loss(scores[:2], torch.tensor([40, 41])))


@pytest.mark.parametrize("labels", [LABELS.astype(np.float32), LABELS > 7, None])
def test_labels_without_a_class_number(labels: np.ndarray | None) -> None:
    """Labels that are no whole numbers are zeros in padded rows; with_mask tells them apart."""
    with TorchReader(PADDED, labels=labels, with_mask=True) as loader:
        *_, (_, given, mask) = loader
    assert mask.tolist() == [True, True, False, False]
    if labels is None:
        assert given is None
    else:
        assert given.tolist() == [*labels[40:].tolist(), [0], [0]]


def test_postprocess_sees_zeros_and_its_labels_are_marked() -> None:
    """postprocess gets labels of 0 for padded rows, which it may use as indices; what it returns
    has -100 there, (B, H, W) masks too. Labels without a row for each sample stay what it made."""
    seen: list[list[int]] = []

    def masks(data: np.ndarray, labels: np.ndarray) -> Any:
        seen.append(labels[:, 0].tolist())
        return data, np.repeat(labels, 6, axis=1).reshape(-1, 2, 3)

    with TorchReader(PADDED, postprocess=masks, nthread=1) as loader:
        *_, (_, given) = loader
    assert [40, 41, 0, 0] in seen
    assert given.shape == (4, 2, 3)
    assert given.flatten(1).unique(dim=1)[:, 0].tolist() == [40, 41, -100, -100]
    with TorchReader(PADDED, postprocess=lambda data, labels: (data, labels[:1])) as loader:
        *_, (_, given) = loader
    assert given.tolist() == [40]


@pytest.mark.parametrize("zero_copy", [False, True])
def test_soft_labels(zero_copy: bool) -> None:
    """Soft labels come as (B, classes) float32 as the reader has them, zeros in padded rows and not
    -100: cross_entropy takes them, and padded rows add nothing to its sum."""
    soft = {"mixup": 0.5, "label_smoothing": 0.1, "num_classes": 50, "dtype": "float32"}
    with (
        TorchReader(PADDED, **soft, zero_copy=zero_copy, with_mask=True) as loader,
        AsyncReader(PADDED, **soft) as reader,
    ):
        for (data, labels, mask), batch in zip(loader, reader, strict=True):
            assert labels.dtype is torch.float32
            np.testing.assert_array_equal(labels.numpy(), batch.labels, strict=True)
            np.testing.assert_allclose(labels.sum(dim=1).numpy(), mask.numpy(), atol=1e-6)
            scores = data.flatten(1)[:, :50]
            loss = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
            own = torch.nn.functional.cross_entropy(scores[mask], labels[mask], reduction="sum")
            torch.testing.assert_close(loss, own)
    assert mask.tolist() == [True, True, False, False]


def test_zeroed_samples_have_no_class(tmp_path: Path) -> None:
    """A bad sample that on_error="zero" zeroes has the label -100 and the mask False."""
    path = write_hdf5(tmp_path / "bad.h5", packed(IMAGES[:8]))
    with h5py.File(path, "r+") as file:
        file["data"][5] = 255 - file["data"][5]
        stored = file["labels"][:, 0].tolist()
    with TorchReader(path=path, batch_size=4, on_error="zero", with_mask=True) as loader:
        (_, first, whole), (data, second, mask) = loader
    assert whole.all()
    assert not data[1].any()
    assert mask.tolist() == [True, False, True, True]
    assert [*first.tolist(), *second.tolist()] == [*stored[:5], -100, *stored[6:]]


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


@pytest.mark.parametrize("zero_copy", [False, True])
def test_mask_and_indices(zero_copy: bool) -> None:
    """with_mask and with_indices append both to the tuple, in this order, each alone if only one
    was asked for; both are the consumer's own, and a pickled loader gives them too."""
    both = {"with_mask": True, "with_indices": True, "zero_copy": zero_copy}
    with TorchReader(PADDED, **both) as loader, pickle.loads(pickle.dumps(loader)) as twin:
        held = [(mask, indices) for _, _, mask, indices in loader]
        assert all(len(step) == 4 for step in twin)
    assert {(mask.dtype, indices.dtype) for mask, indices in held} == {(torch.bool, torch.int64)}
    assert torch.cat([indices for _, indices in held]).tolist() == [*range(COUNT), -1, -1]
    assert torch.cat([mask for mask, _ in held]).tolist() == [True] * COUNT + [False] * 2
    held[0][0].fill_(False)
    assert held[1][0].all()
    for name, dtype in (("with_mask", torch.bool), ("with_indices", torch.int64)):
        with TorchReader(PADDED, **{name: True}) as loader:
            assert {step[2].dtype for step in loader if len(step) == 3} == {dtype}


@pytest.mark.parametrize("camel", [False, True])
def test_a_dict_may_hold_the_keywords_of_the_loader(camel: bool) -> None:
    """with_mask, with_indices and zero_copy count in the dict as they do as keywords, under both
    spellings; a value that is no bool is a ParamsError."""
    names = ("withMask", "withIndices") if camel else ("with_mask", "with_indices")
    with TorchReader({**PADDED, **dict.fromkeys(names, True)}) as loader:
        with pickle.loads(pickle.dumps(loader)) as twin:
            steps = [*loader, *twin]
        assert {len(step) for step in steps} == {4}
        assert loader.reader.params.copy
    with TorchReader({**PADDED, "zero_copy": True}, with_mask=True) as loader:
        assert {len(step) for step in loader} == {3}
        assert not loader.reader.params.copy
    with pytest.raises(ParamsError, match="with_mask is not valid"):
        TorchReader({**PADDED, "with_mask": "yes"})


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


def test_a_loop_serves_the_epoch_to_its_end() -> None:
    """A loop after an early break serves the rest of that epoch, and the next loop is the next
    epoch, as AsyncReader's are; after a break at an epoch's last batch it is the next one."""
    with TorchReader(SMALL) as loader, AsyncReader(SMALL) as reader:
        first, second, third, fourth = (
            [batch.indices.tolist() for batch in reader] for _ in range(4)
        )
        reader.seek(0)
        for count in (3, 2, None, STEPS, None, 0, None):
            batches = itertools.islice(reader, count)
            assert checked(loader, count) == [batch.indices.tolist() for batch in batches]
        loader.seek(0)
        assert checked(loader, 3) == first[:3]
        assert checked(loader) == first[3:]
        assert checked(loader, STEPS) == second
        assert checked(loader) == third
        assert checked(loader) == fourth
        assert all(is_whole_epoch(epoch) for epoch in (first, second, third))
        assert first != second


def test_a_loop_that_took_nothing() -> None:
    """iter() without a batch taken uses up no epoch and no loaded state."""
    with TorchReader(SMALL) as loader, TorchReader(SMALL) as other:
        iter(loader)
        loop = iter(loader)
        loader.set_epoch(1)
        assert checked(loop) == [checked(other) for _ in range(2)][1]
        loader.seek(1, 4)
        state = loader.state_dict()
        loader.seek(0)
        loader.load_state_dict(state)
        iter(loader)
        assert len(checked(loader)) == 6


def test_an_older_loop_ends() -> None:
    """A loop goes on no more once another one began: no batch goes to the wrong one."""
    with TorchReader(SMALL) as loader:
        old = iter(loader)
        seen = checked(old, 1)
        new = iter(loader)
        seen += checked(new, 1)
        with pytest.raises(NothingQueuedError, match="another loop"):
            next(old)
        assert is_whole_epoch([*seen, *checked(new)])


def test_set_epoch_is_a_distributed_samplers() -> None:
    """set_epoch() begins that epoch from its start, whatever was served of it or of another before,
    and the last of several calls counts: as DistributedSampler's users loop."""
    with TorchReader(SMALL) as loader, TorchReader(SMALL) as other:
        epochs = [checked(other) for _ in range(4)]
        for epoch in range(4):  # training on a few batches of each
            loader.set_epoch(epoch)
            assert checked(loader, 2) == epochs[epoch][:2]
        for _ in range(2):  # a look at the first batches, and then all
            loader.set_epoch(1)
            assert checked(loader, 2) == epochs[1][:2]
        for epochs_said in ((1,), (3, 0), (0, 3), (2, 2)):
            for epoch in epochs_said:
                loader.set_epoch(epoch)
            assert checked(loader) == epochs[epochs_said[-1]]


def test_set_epoch_and_seek() -> None:
    """set_epoch() says which epoch the next loop is; seek() also where in it."""
    with TorchReader(SMALL) as loader, TorchReader(SMALL) as other:
        epochs = [checked(other) for _ in range(4)]
        for epoch in (0, 1, 3, 0):
            loader.set_epoch(epoch)
            assert checked(loader) == epochs[epoch]
        checked(loader, 2)
        loader.set_epoch(1)
        assert checked(loader) == epochs[1]
        loader.seek(2, 7)
        assert checked(loader) == epochs[2][7:]
        assert checked(loader) == epochs[3]
        with pytest.raises(ParamsError):
            loader.seek(0, STEPS)


def test_epochs_end() -> None:
    """With epochs=2 a third loop is empty."""
    with TorchReader(SMALL, epochs=2) as loader:
        assert [len(checked(loader)) for _ in range(4)] == [STEPS, STEPS, 0, 0]


# -- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{}, {"njob": 4, "nthread": 1}, {"zero_copy": True}])
def test_resume_in_the_middle(other: dict[str, Any]) -> None:
    """A state of step 4 of epoch 1 resumes with exactly the batches that were left, then on."""
    with TorchReader(SMALL, njob=3) as loader:
        checked(loader)
        loop = iter(loader)
        checked(loop, 4)
        state = json.loads(json.dumps(loader.state_dict()))
        expected = [*checked(loop), *checked(loader)]
    assert (state["epoch"], state["steps"], state["samples"]) == (1, 4, 16)
    with TorchReader(SMALL, **other) as resumed:
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(0)  # as a framework does that counts from 0 again
        rest = checked(resumed)
        assert len(rest) == 6
        assert [*rest, *checked(resumed)] == expected


def test_resume_in_a_used_loader() -> None:
    """Loading a state ends the running loop and moves the next one, whatever was fetched ahead."""
    with TorchReader(SMALL, njob=3) as loader:
        loop = iter(loader)
        checked(loop, 2)
        state = loader.state_dict()
        expected = checked(loop, 3)
        loader.load_state_dict(state)
        with pytest.raises(NothingQueuedError):
            next(loop)
        assert checked(loader, 3) == expected


def test_resume_at_the_end_of_an_epoch() -> None:
    """A state of an epoch's end resumes with the whole next one."""
    with TorchReader(SMALL) as loader:
        checked(loader)
        state = loader.state_dict()
        expected = checked(loader)
    with TorchReader(SMALL) as resumed:
        resumed.load_state_dict(state)
        assert checked(resumed) == expected


@pytest.mark.parametrize("last_batch", ["drop", "pad", "wrap", "short"])
@pytest.mark.parametrize("again", ["load", "pickle"])
def test_resume_inside_the_last_batch(last_batch: str, again: str) -> None:
    """A state saved inside the loop at an epoch's last batch resumes to nothing left of it, as
    torchdata's StatefulDataLoader does; the loop after that is the next epoch."""
    params = {**SMALL, "last_batch": last_batch, "njob": 3}
    with TorchReader(params) as loader:
        for _ in loader:
            assert loader.last is not None
            if loader.last.step == len(loader) - 1:
                state = json.loads(json.dumps(loader.state_dict()))
                twin = pickle.loads(pickle.dumps(loader))
        after = loader.state_dict()
        expected = [labels.tolist() for _, labels in loader]
    assert (state["epoch"], state["steps"]) == (0, len(loader))
    assert (after["epoch"], after["steps"], after["samples"]) == (1, 0, 0)
    with twin, TorchReader(params) as resumed:
        if again == "pickle":
            resumed = twin
        else:
            resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(0)  # as a framework does that counts from 0 again
        iter(resumed)
        assert list(resumed) == []
        assert [labels.tolist() for _, labels in resumed] == expected
        resumed.load_state_dict(state)
        resumed.set_epoch(1)  # says that the epoch before is over
        assert [labels.tolist() for _, labels in resumed] == expected
        resumed.load_state_dict(after)
        assert [labels.tolist() for _, labels in resumed] == expected


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_resumes_as_torchdata_does() -> None:
    """Of a state of each step, and of one behind the loop, as many batches are left as in
    torchdata's StatefulDataLoader; so in the loop after that."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="no torchdata")

    def left(make: Any) -> list[tuple[int, int]]:
        loader = make()
        states = [loader.state_dict() for _ in loader] + [loader.state_dict()]
        told = []
        for state in states:
            resumed = make()
            resumed.load_state_dict(state)
            told.append((len(list(resumed)), len(list(resumed))))
        return told

    dataset = torch.arange(COUNT)
    judge = left(lambda: stateful.StatefulDataLoader(dataset, batch_size=4, drop_last=True))
    with contextlib.ExitStack() as opened:
        assert left(lambda: opened.enter_context(TorchReader(SMALL))) == judge


def test_the_end_of_an_epoch_with_another_batch_size() -> None:
    """The samples that a larger batch left over at the epoch's end are served by smaller ones."""
    with TorchReader(SMALL) as loader, TorchReader(SMALL, batch_size=2) as resumed:
        loop = iter(loader)
        checked(loop, STEPS)
        resumed.load_state_dict(loader.state_dict())
        assert len(list(resumed)) == 1
        with AsyncReader(SMALL) as reader:  # which has no loops that end: the next epoch's head
            reader.load_state_dict(loader.state_dict())
            assert (reader.state_dict()["epoch"], reader.state_dict()["samples"]) == (1, 0)


def test_resume_with_another_batch_size() -> None:
    """With another batch size the same order goes on, each remaining sample once."""
    with TorchReader(SMALL) as loader, AsyncReader(SMALL, batch_size=1) as one:
        checked(loader, 5)
        order = [int(batch.indices[0]) for batch in one]
        with TorchReader(SMALL, batch_size=2) as resumed:
            resumed.load_state_dict(loader.state_dict())
            left = [label for _, labels in resumed for label in labels.tolist()]
            assert left == order[20:]
            assert len(list(resumed)) == COUNT // 2


def test_foreign_state_is_refused() -> None:
    """The state of another seed is an error, and the place stays."""
    with TorchReader(SMALL, seed=6) as other, TorchReader(SMALL) as loader:
        checked(loader, 3)
        before = loader.state_dict()
        with pytest.raises(ParamsError, match="seed"):
            loader.load_state_dict(other.state_dict())
        assert loader.state_dict() == before


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_pickle_and_copy(duplicate: Any) -> None:
    """A pickled or copied loader has the same place and options, and a reader of its own."""
    with TorchReader(SMALL, zero_copy=True) as loader:
        loop = iter(loader)
        checked(loop, 3)
        made = duplicate(loader)
        twin = pickle.loads(made) if isinstance(made, bytes) else made
        with twin:
            assert twin.reader is not loader.reader
            assert checked(twin) == checked(loop)
            with pytest.raises(ReaderClosedError, match="still held"):  # it copies nothing
                list(twin)


# -- training ------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch on one thread: so small a network is ten times slower on several busy ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_training(sample_sets: dict[str, str]) -> None:
    """A small network trained on sample_data by a plain torch loop names 9 of 10 held-out ones."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 12, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(12, 24, 4, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(4),
    )
    train = {**train_params(sample_sets), "postprocess": nchw(train_maps)}
    heldout = {**heldout_params(sample_sets), "postprocess": nchw(plain_maps)}
    with TorchReader(train) as loader, TorchReader(heldout) as others:
        model(next(iter(others))[0])  # the lazy layer's size
        others.set_epoch(0)
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, betas=(0.9, 0.99))
        steps = EPOCHS * len(loader)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        for _ in range(EPOCHS):
            for maps, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(maps), labels).backward()
                optimizer.step()
                schedule.step()
        with torch.no_grad():
            right = [model(maps).argmax(1) == labels for maps, labels in others]
    accuracy = torch.cat(right).float().mean().item()
    print(f"torch: held-out accuracy {accuracy:.3f}")
    assert len(torch.cat(right)) == 112
    assert accuracy >= GOOD


# -- frameworks ----------------------------------------------------------------------------------


def test_in_a_data_loader() -> None:
    """DataLoader(reader, batch_size=None) takes a reader as the iterable set that it is."""
    with TorchReader(SMALL) as loader:
        wrapped = torch.utils.data.DataLoader(loader, batch_size=None)
        assert len(wrapped) == STEPS
        assert is_whole_epoch(checked(wrapped))
        assert is_whole_epoch(checked(wrapped))


@pytest.mark.parametrize("options", [{}, {"batch_size": 16}, {"batch_size": 2, "drop_last": True}])
def test_batches_of_batches(options: dict[str, Any]) -> None:
    """A DataLoader that would join batches to batches of batches is an error that says
    batch_size=None; a loop by hand in the same place goes on."""
    with TorchReader(SMALL) as loader:
        wrapped = torch.utils.data.DataLoader(loader, **options)
        with pytest.raises(ParamsError, match="batch_size=None"):
            next(iter(wrapped))
        assert is_whole_epoch(checked(loader))


@pytest.mark.parametrize("options", [{}, {"batch_size": 16}, {"batch_size": None}])
def test_an_async_reader_in_a_data_loader(options: dict[str, Any]) -> None:
    """An AsyncReader in a DataLoader, which asks it for samples by number, is an error that names
    TorchReader."""
    with AsyncReader(SMALL) as reader:
        wrapped = torch.utils.data.DataLoader(reader, **options)  # type: ignore[arg-type]
        with pytest.raises(ParamsError, match="TorchReader"):
            next(iter(wrapped))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("context", ["fork", "spawn"])
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
    ended = subprocess.run(
        [sys.executable, *launch, str(here / "rank_scenarios.py"), str(tmp_path), name],
        capture_output=True,
        text=True,
        env=for_torchrun(here.parent / "support"),
    )
    assert ended.returncode == 0, ended.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text())[name] for rank in (0, 1)]
    with AsyncReader(SMALL, batch_size=8) as reader:
        whole = [[batch.indices.tolist() for batch in reader] for _ in range(2)]
    for epoch, expected in enumerate(whole):
        joined = [a + b for a, b in zip(ranks[0][epoch], ranks[1][epoch], strict=True)]
        assert joined == expected


# -- a map-style dataset -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        None,
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_a_dataset_in_a_data_loader(start: str | None, tmp_path: Path) -> None:
    """What open() gives is a map-style dataset: a DataLoader serves all of it, with its own
    sampler, in this process and in workers of each start method; iterating twice is the same."""
    path = write_hdf5(tmp_path / "a.h5", packed(list(IMAGES), labels=LABELS))
    with open_set(path, dtype="float32", scale=1 / 255) as ds:
        workers: dict[str, Any] = {} if start is None else {
            "num_workers": 2, "multiprocessing_context": start, "persistent_workers": True,
        }  # fmt: skip
        sampler = torch.utils.data.RandomSampler(ds, generator=torch.Generator().manual_seed(1))
        order = list(torch.utils.data.RandomSampler(ds, generator=torch.Generator().manual_seed(1)))
        loader = torch.utils.data.DataLoader(ds, batch_size=5, sampler=sampler, **workers)
        found = list(loader)
        images, labels = (torch.cat(column) for column in zip(*found, strict=True))
        assert images.dtype == torch.float32
        np.testing.assert_array_equal(
            images, IMAGES.transpose(0, 3, 1, 2)[order] * np.float32(1 / 255)
        )
        np.testing.assert_array_equal(labels, LABELS[order, 0])  # as cross_entropy takes them
        assert len(list(loader)) == len(found)
