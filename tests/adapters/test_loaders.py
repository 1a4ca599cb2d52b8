"""What every adapter does with a reader: TorchReader and JaxReader against the real frameworks."""

import copy
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fakes import hdf5, packed, write_hdf5
from frameworks import (
    COUNT,
    IMAGES,
    LABELS,
    SMALL,
    STEPS,
    check,
    checked,
    is_whole_epoch,
    kept,
    narrowed,
    opener,
)

from asyncreader import AsyncReader, NothingQueuedError, ParamsError

__all__ = ["opener"]  # a fixture

#: 42 samples in steps of 4: the last batch has two samples and two padded rows.
PADDED: dict[str, Any] = {**SMALL, "last_batch": "pad", "shuffle": False}

# -- arrays --------------------------------------------------------------------------------------


def test_order_is_the_readers(opener: Any) -> None:
    """Batches come in AsyncReader's order, and ``last`` names their records, epoch and step."""
    with opener(SMALL) as loader, AsyncReader(SMALL) as reader:
        for epoch in range(2):
            for step, ((data, labels), batch) in enumerate(zip(loader, reader, strict=True)):
                assert check(data, labels, nchw=True) == batch.indices.tolist()
                assert (loader.last.epoch, loader.last.step) == (epoch, step)
                np.testing.assert_array_equal(loader.last.indices, batch.indices)
                assert loader.last.mask.all()


@pytest.mark.parametrize(
    ("labels", "signed"),
    [
        (LABELS, "int64"),
        (LABELS[:, 0].astype(np.int8), "int8"),
        (LABELS.astype(np.uint8), "int64"),
        (LABELS.astype(np.uint32), "int64"),
        (np.repeat(LABELS, 2, axis=1).astype(np.int32), "int32"),
        (LABELS.astype(np.float32), "float32"),
        (LABELS > 7, "bool"),
    ],
)
def test_labels(opener: Any, labels: np.ndarray, signed: str) -> None:
    """(B, 1) integers come out as (B,), everything else as stored. Integers of padded rows are
    -100, which torch's losses ignore, in the dtype of all batches: unsigned ones, without room for
    it, are int64. What is no integer is 0 there."""
    integers = labels.dtype.kind in "iu"
    stored = labels[:, 0] if integers and labels.shape[1:] == (1,) else labels
    padded = np.full((2, *stored.shape[1:]), -100 if integers else 0).astype(signed)
    for last_batch, dtype, expected in (
        ("drop", stored.dtype.name, stored[:40]),
        ("pad", signed, np.concatenate([stored.astype(signed), padded])),
    ):
        with opener(SMALL, labels=labels, shuffle=False, last_batch=last_batch) as loader:
            for _ in range(2):
                found = [kept(given) for _, given in loader]
        assert {array.dtype.name for array in found} == {narrowed(opener, dtype)}
        np.testing.assert_array_equal(np.concatenate(found), expected)
        assert {array.shape for array in found} == {(4, *stored.shape[1:])}


def test_several_labels_are_a_tuple(opener: Any, tmp_path: Path) -> None:
    """Each of several labels is an array of its own, with -100 where integers are padded. A set
    without labels gives None."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros((5, 3))
        file["a"], file["b"] = np.arange(5, dtype=np.uint8), np.arange(5) / 2
        file["c"] = np.arange(5, dtype=np.int32)[:, None]
    with opener(path, labels_field=["a", "b", "c"], batch_size=4, last_batch="pad") as loader:
        for _, labels in loader:
            a, b, c = map(kept, labels)
    assert (a.dtype.name, a.tolist()) == (narrowed(opener, "int64"), [4, -100, -100, -100])
    assert b.tolist() == [2.0, 0, 0, 0]
    assert (c.dtype.name, c.tolist()) == ("int32", [4, -100, -100, -100])
    with opener(PADDED, labels=None) as loader:
        assert all(labels is None for _, labels in loader)


def test_soft_labels(opener: Any) -> None:
    """Soft labels come as (B, classes) float32 as the reader has them, zeros in padded rows and not
    -100."""
    soft: dict[str, Any] = {"mixup": 0.5, "label_smoothing": 0.1, "num_classes": 50}
    with opener(PADDED, **soft) as loader, AsyncReader(PADDED, **soft) as reader:
        for (_, labels), batch in zip(loader, reader, strict=True):
            np.testing.assert_array_equal(np.asarray(labels), batch.labels, strict=True)
            np.testing.assert_allclose(np.asarray(labels).sum(axis=1), batch.mask, atol=1e-6)
        assert batch.mask.tolist() == [True, True, False, False]


def test_postprocess_sees_zeros_and_its_labels_are_marked(opener: Any) -> None:
    """postprocess gets labels of 0 for padded rows, which it may use as indices; what it returns
    has -100 there, (B, H, W) masks too. Labels without a row for each sample stay what it made."""
    seen: list[list[int]] = []

    def masks(data: np.ndarray, labels: np.ndarray) -> Any:
        seen.append(labels[:, 0].tolist())
        return data, np.repeat(labels, 6, axis=1).reshape(-1, 2, 3)

    with opener(PADDED, postprocess=masks, nthread=1) as loader:
        given = [kept(labels) for _, labels in loader][-1]
    assert [40, 41, 0, 0] in seen
    np.testing.assert_array_equal(given, np.repeat([40, 41, -100, -100], 6).reshape(4, 2, 3))
    with opener(PADDED, postprocess=lambda data, labels: (data, labels[:1])) as loader:
        given = [kept(labels) for _, labels in loader][-1]
    assert given.tolist() == [40]


def test_zeroed_samples_have_no_class(opener: Any, tmp_path: Path) -> None:
    """A bad sample that on_error="zero" zeroes has the label -100 and the mask False."""
    path = write_hdf5(tmp_path / "bad.h5", packed(list(IMAGES[:8])))
    with h5py.File(path, "r+") as file:
        file["data"][5] = 255 - file["data"][5]
        stored = file["labels"][:, 0].tolist()
    with opener(path=path, batch_size=4, on_error="zero", with_mask=True) as loader:
        steps = [list(map(kept, step)) for step in loader]
    (_, first, whole), (data, second, mask) = steps
    assert whole.all()
    assert not data[1].any()
    assert mask.tolist() == [True, False, True, True]
    assert [*first.tolist(), *second.tolist()] == [*stored[:5], -100, *stored[6:]]


@pytest.mark.parametrize("names", [("with_mask", "with_indices"), ("withMask", "withIndices")])
def test_mask_and_indices(opener: Any, names: tuple[str, str]) -> None:
    """with_mask and with_indices append both to the tuple, in this order, each alone if only one
    was asked for; as keywords or in the dict, and of a pickled loader. A value that is no bool is a
    ParamsError."""
    camel = names[0] == "withMask"
    both = dict.fromkeys(names, True)
    opened = opener({**PADDED, **both}) if camel else opener(PADDED, **both)
    with opened as loader, pickle.loads(pickle.dumps(loader)) as twin:
        for one in (loader, twin):
            steps = []
            for step in one:
                assert (len(step), len(set(map(type, step)))) == (4, 1)
                steps.append((kept(step[2]), kept(step[3])))
            masks, indices = map(np.concatenate, zip(*steps, strict=True))
            assert masks.dtype == np.bool_
            assert masks.tolist() == [True] * COUNT + [False] * 2
            assert indices.dtype.name == narrowed(opener, "int64")
            assert indices.tolist() == [*range(COUNT), -1, -1]
    for name, dtype in zip(names, ("bool", narrowed(opener, "int64")), strict=True):
        with opener({**PADDED, name: True}) as loader:
            assert {kept(step[2]).dtype.name for step in loader if len(step) == 3} == {dtype}
        with pytest.raises(ParamsError, match="is not valid"):
            opener({**PADDED, name: "yes"})


@pytest.mark.parametrize("dtype", [">i2", ">f4", ">i8", ">f8", "<u2", "<f2", "u1"])
def test_any_byte_order(opener: Any, tmp_path: Path, dtype: str) -> None:
    """Big-endian sets, which torch refuses, arrive in native byte order with the same values."""
    values = (np.arange(20 * 36).reshape(20, 6, 2, 3) % 99).astype(dtype)
    hdf5(tmp_path / "set.h5", data=values, labels=np.arange(20, dtype=">i4"))
    with opener(path=tmp_path / "set.h5", batch_size=4, layout="NHWC") as loader:
        for data, labels in loader:
            assert np.asarray(labels).dtype == np.int32
            np.testing.assert_array_equal(np.asarray(data), values[np.asarray(labels)])


# -- loops ---------------------------------------------------------------------------------------


def test_a_loop_serves_the_epoch_to_its_end(opener: Any) -> None:
    """A loop after an early break serves the rest of that epoch, what was on its way to a device,
    too, and the next loop is the next epoch, as AsyncReader's are; after a break at an epoch's last
    batch it is the next one."""
    with opener(SMALL) as loader, AsyncReader(SMALL) as reader:
        for count in (3, 2, None, STEPS, None, 0, None):
            batches = itertools.islice(reader, count)
            assert checked(loader, count) == [batch.indices.tolist() for batch in batches]
        epochs = [[batch.indices.tolist() for batch in reader] for _ in range(2)]
        assert [checked(loader) for _ in range(2)] == epochs
        assert all(is_whole_epoch(epoch) for epoch in epochs)
        assert epochs[0] != epochs[1]


def test_short_batch(opener: Any) -> None:
    """The last batch may be short; with epochs=2 a third loop is empty."""
    with opener(SMALL, last_batch="short", epochs=2) as loader:
        for _ in range(2):
            sizes = [(len(data), len(labels)) for data, labels in loader]
            assert sizes == [(4, 4)] * 10 + [(2, 2)]
        assert [list(loader) for _ in range(2)] == [[], []]


def test_a_loop_that_took_nothing(opener: Any) -> None:
    """iter() without a batch taken uses up no epoch and no loaded state."""
    with opener(SMALL) as loader, opener(SMALL) as other:
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


def test_an_older_loop_ends(opener: Any) -> None:
    """A loop goes on no more once another one began: no batch goes to the wrong one."""
    with opener(SMALL) as loader:
        old = iter(loader)
        seen = checked(old, 1)
        new = iter(loader)
        seen += checked(new, 1)
        with pytest.raises(NothingQueuedError, match="another loop"):
            next(old)
        assert is_whole_epoch([*seen, *checked(new)])


def test_set_epoch_is_a_distributed_samplers(opener: Any) -> None:
    """set_epoch() begins that epoch from its start, whatever was served of it or of another before,
    and the last of several calls counts: as DistributedSampler's users loop. seek() also says where
    in it."""
    with opener(SMALL) as loader, opener(SMALL) as other:
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
        loader.seek(2, 7)
        assert checked(loader) == epochs[2][7:]
        assert checked(loader) == epochs[3]
        with pytest.raises(ParamsError):
            loader.seek(0, STEPS)


# -- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{}, {"njob": 4, "nthread": 1}])
def test_resume_in_the_middle(opener: Any, other: dict[str, Any]) -> None:
    """A state of step 4 of epoch 1 resumes with exactly the batches that were left, then on."""
    with opener(SMALL, njob=3) as loader:
        checked(loader)
        loop = iter(loader)
        checked(loop, 4)
        state = json.loads(json.dumps(loader.state_dict()))
        expected = [*checked(loop), *checked(loader)]
    assert (state["epoch"], state["steps"], state["samples"]) == (1, 4, 16)
    with opener(SMALL, **other) as resumed:
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(0)  # as a framework does that counts from 0 again
        rest = checked(resumed)
        assert len(rest) == 6
        assert [*rest, *checked(resumed)] == expected


def test_resume_in_a_used_loader(opener: Any) -> None:
    """Loading a state ends the running loop and moves the next one, whatever was fetched ahead.
    That of another seed is an error, and the place stays."""
    with opener(SMALL, njob=3) as loader, opener(SMALL, seed=6) as other:
        loop = iter(loader)
        checked(loop, 2)
        state = loader.state_dict()
        expected = checked(loop, 3)
        loader.load_state_dict(state)
        with pytest.raises(NothingQueuedError):
            next(loop)
        with pytest.raises(ParamsError, match="seed"):
            loader.load_state_dict(other.state_dict())
        assert loader.state_dict() == state
        assert checked(loader, 3) == expected


@pytest.mark.parametrize("last_batch", ["drop", "pad", "wrap", "short"])
@pytest.mark.parametrize("again", ["load", "pickle"])
def test_resume_inside_the_last_batch(opener: Any, last_batch: str, again: str) -> None:
    """A state saved inside the loop at an epoch's last batch resumes to nothing left of it, as
    torchdata's StatefulDataLoader does; the loop after that is the next epoch."""
    params = {**SMALL, "last_batch": last_batch, "njob": 3}
    with opener(params) as loader:
        for _ in loader:
            assert loader.last is not None
            if loader.last.step == len(loader) - 1:
                state = json.loads(json.dumps(loader.state_dict()))
                twin = pickle.loads(pickle.dumps(loader))
        after = loader.state_dict()
        expected = [labels.tolist() for _, labels in loader]
    assert (state["epoch"], state["steps"]) == (0, len(loader))
    assert (after["epoch"], after["steps"], after["samples"]) == (1, 0, 0)
    with twin, opener(params) as resumed:
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


def test_the_end_of_an_epoch_with_another_batch_size(opener: Any) -> None:
    """The samples that a larger batch left over at the epoch's end are served by smaller ones."""
    with opener(SMALL) as loader, opener(SMALL, batch_size=2) as resumed:
        loop = iter(loader)
        checked(loop, STEPS)
        resumed.load_state_dict(loader.state_dict())
        assert len(list(resumed)) == 1
        with AsyncReader(SMALL) as reader:  # which has no loops that end: the next epoch's head
            reader.load_state_dict(loader.state_dict())
            assert (reader.state_dict()["epoch"], reader.state_dict()["samples"]) == (1, 0)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_pickle_and_copy(opener: Any, duplicate: Any) -> None:
    """A pickled or copied loader has the same place, and a reader of its own."""
    with opener(SMALL) as loader:
        loop = iter(loader)
        checked(loop, 3)
        made = duplicate(loader)
        with pickle.loads(made) if isinstance(made, bytes) else made as twin:
            assert twin.reader is not loader.reader
            assert checked(twin) == checked(loop)
