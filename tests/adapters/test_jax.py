"""JaxReader against the real jax on CPU devices, and its transfers played late."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frameworks import (
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
    sample_sets,
    train_params,
)

jax = pytest.importorskip("jax", reason="jax is not installed: pip install '.[jax]'")
try:
    jax.config.update("jax_num_cpu_devices", 2)
except AttributeError:  # an older jax
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from asyncreader import AsyncReader, ParamsError  # noqa: E402
from asyncreader.adapters.jax import JaxReader  # noqa: E402
from asyncreader.pipeline.slots import POISON  # noqa: E402

__all__ = ["sample_sets"]  # a fixture


@pytest.fixture
def x64() -> Iterator[None]:
    """jax with 64-bit numbers."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


# -- arrays --------------------------------------------------------------------------------------


def test_twelve_batches_held() -> None:
    """Twelve batches of two epochs, all held at once, all have the pixels they had when new."""
    with JaxReader(SMALL, njob=3, debug=True) as loader:
        held = [pair for _ in range(2) for pair in loader][:12]
        seen = [check(data, labels, nchw=True) for data, labels in held]
    assert is_whole_epoch(seen[:STEPS])
    assert all(isinstance(array, jax.Array) for pair in held for array in pair)


def test_no_aliasing() -> None:
    """On the CPU no jax array shares memory with a slot, also where the slot is C-ordered."""
    for layout in ("NHWC", "NCHW"):
        with JaxReader(SMALL, layout=layout) as loader:
            slots = loader.reader._ring.slots
            for data, labels in loader:
                for array in (data, labels):
                    for slot in slots:
                        assert not np.shares_memory(np.asarray(array), slot.rows[0])
                        assert not np.shares_memory(np.asarray(array), slot.labels)
                check(data, labels, nchw=layout == "NCHW")


def test_plain_device_put_would_alias() -> None:
    """What the copy is for: jax.device_put on the CPU aliases a slot's aligned memory."""
    with AsyncReader(SMALL, layout="NHWC") as reader:
        rows = next(iter(reader)).data
        assert np.shares_memory(np.asarray(jax.device_put(rows)), rows)


def test_soft_labels() -> None:
    """Soft labels come as (B, classes) float32 as the reader has them, zeros in padded rows."""
    soft = {"mixup": 0.5, "label_smoothing": 0.1, "num_classes": 50, "last_batch": "pad"}
    with JaxReader(SMALL, **soft) as loader, AsyncReader(SMALL, **soft) as reader:
        for (_, labels), batch in zip(loader, reader, strict=True):
            assert isinstance(labels, jax.Array)
            np.testing.assert_array_equal(np.asarray(labels), batch.labels, strict=True)
            np.testing.assert_allclose(labels.sum(axis=1), batch.mask, atol=1e-6)
    assert not batch.mask.all()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int64", "int32"),
        ("uint64", "uint32"),
        ("float64", "float32"),
        ("int32", "int32"),
        ("uint8", "uint8"),
        ("float16", "float16"),
        ("bool", "bool"),
    ],
)
def test_64_bits_become_32(dtype: str, expected: str) -> None:
    """64-bit labels and data arrive as 32-bit ones with the same values, without a warning."""
    labels, images = LABELS.astype(dtype), IMAGES.astype(dtype)
    with JaxReader(SMALL, data=images, labels=labels, shuffle=False) as loader:
        for step, (data, given) in enumerate(loader):
            assert data.dtype == given.dtype == expected
            rows = slice(4 * step, 4 * step + 4)
            flat = labels[rows, 0] if labels.dtype.kind in "iu" else labels[rows]
            np.testing.assert_array_equal(np.asarray(given), flat.astype(expected), strict=True)
            moved = images[rows].transpose(0, 3, 1, 2)
            np.testing.assert_array_equal(np.asarray(data), moved.astype(expected), strict=True)


def test_number_that_does_not_fit() -> None:
    """A label beyond int32 is an error with advice, not another number."""
    labels = LABELS.copy()
    labels[6] = 1 << 31
    with JaxReader(SMALL, labels=labels, shuffle=False) as loader:
        loop = iter(loader)
        with pytest.raises(ParamsError, match="do not fit the int32"):
            list(loop)


@pytest.mark.usefixtures("x64")
def test_x64_keeps_64_bits() -> None:
    """With jax_enable_x64 int64 labels stay int64, of any size."""
    labels = LABELS + (1 << 40)
    with JaxReader(SMALL, labels=labels, shuffle=False) as loader:
        given = np.concatenate([np.asarray(labels) for _, labels in loader])
    np.testing.assert_array_equal(given, labels[:40, 0], strict=True)


def test_no_labels() -> None:
    """A set without labels gives None; several labels a sample keep their shape."""
    with JaxReader(SMALL, labels=None) as loader:
        assert all(labels is None for _, labels in loader)
    with JaxReader(SMALL, labels=np.repeat(LABELS, 3, axis=1)) as loader:
        assert {labels.shape for _, labels in loader} == {(4, 3)}


# -- rows that are not valid ---------------------------------------------------------------------

#: 42 samples in steps of 4: the last batch has two samples and two padded rows.
PADDED: dict[str, Any] = {**SMALL, "last_batch": "pad", "shuffle": False}


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (LABELS, "int32"),
        (LABELS.astype(np.uint8), "int32"),
        (LABELS[:, 0].astype(np.int8), "int8"),
        (np.repeat(LABELS, 2, axis=1), "int32"),
        (LABELS.astype(np.float32), "float32"),
    ],
)
def test_padded_rows_have_no_class(labels: np.ndarray, dtype: str) -> None:
    """Integer labels of padded rows are -100, unsigned ones in a dtype that holds it, in all
    batches; floats are 0 there."""
    with JaxReader(PADDED, labels=labels) as loader:
        for _ in range(2):
            steps = [given for _, given in loader]
    assert {str(given.dtype) for given in steps} == {dtype}
    last = np.asarray(steps[-1]).reshape(4, -1)
    assert last[:, 0].tolist() == [40, 41, *([0, 0] if dtype == "float32" else [-100, -100])]
    assert (last == last[:, :1]).all()
    np.testing.assert_array_equal(
        np.concatenate(steps[:-1]), labels[:40].reshape(-1, *steps[0].shape[1:])
    )


def test_mask_and_indices() -> None:
    """with_mask and with_indices append both to the tuple, and where labels go they go; a pickled
    loader gives them too. A dict may hold both."""
    second = jax.devices()[1]
    with JaxReader(PADDED, sharding=(None, second), with_mask=True, with_indices=True) as loader:
        steps = list(loader)
        assert all(mask.devices() == rows.devices() == {second} for _, _, mask, rows in steps)
    assert np.concatenate([mask for _, _, mask, _ in steps]).tolist() == [True] * 42 + [False] * 2
    assert np.concatenate([rows for *_, rows in steps]).tolist() == [*range(42), -1, -1]
    both = NamedSharding(mesh(), PartitionSpec("batch", None))
    labels = np.repeat(LABELS, 2, axis=1)
    with JaxReader(PADDED, labels=labels, sharding=(None, both), with_mask=True) as loader:
        for _, given, mask in loader:
            assert given.sharding == both
            assert {shard.data.shape for shard in mask.addressable_shards} == {(2,)}
    with JaxReader({**PADDED, "with_indices": True}) as loader, copy.copy(loader) as twin:
        assert [len(step) for step in twin] == [3] * 11


# -- shardings -----------------------------------------------------------------------------------


def mesh() -> Any:
    return Mesh(np.array(jax.devices()[:2]), ("batch",))


def test_sharding() -> None:
    """With a sharding data and labels lie in halves on two devices; held batches stay right."""
    sharding = NamedSharding(mesh(), PartitionSpec("batch"))
    with JaxReader(SMALL, sharding=sharding, debug=True) as loader:
        held = list(loader)
    for data, labels in held:
        assert data.sharding == labels.sharding == sharding
        assert {shard.data.shape for shard in data.addressable_shards} == {(2, 3, 6, 5)}
    assert is_whole_epoch(check(data, labels, nchw=True) for data, labels in held)


def test_sharding_pair_and_device() -> None:
    """A pair shards data and labels apart; a device is a sharding too."""
    spread = NamedSharding(mesh(), PartitionSpec("batch", None, None, None))
    whole = NamedSharding(mesh(), PartitionSpec())
    with JaxReader(SMALL, sharding=(spread, whole)) as loader:
        for data, labels in loader:
            assert (data.sharding, labels.sharding) == (spread, whole)
            check(data, labels, nchw=True)
    second = jax.devices()[1]
    with JaxReader(SMALL, sharding=second) as loader:
        assert all(data.devices() == labels.devices() == {second} for data, labels in loader)
    with pytest.raises(ParamsError, match="pair"):
        JaxReader(SMALL, sharding=(whole,))


# -- transfers -----------------------------------------------------------------------------------


class Transfer:
    """An array on its way: its memory is read when somebody waits for it, as late as may be."""

    def __init__(self, source: np.ndarray) -> None:
        self.source = source[...]  # its memory, as a device has it
        self.landed: np.ndarray | None = None

    def land(self) -> np.ndarray:
        if self.landed is None:
            self.landed = self.source.copy()
        return self.landed


class LateReader(JaxReader):
    """A device that is not the CPU, and slow."""

    waits = True

    def _put(self, array: np.ndarray, sharding: Any) -> Any:
        return Transfer(array)

    def _wait(self, arrays: Any) -> None:
        if self.waits:
            for transfer in arrays:
                transfer.land()


class HastyReader(LateReader):
    """As if the slot could be given back at once."""

    waits = False


def landed(loader: Any, epochs: int = 2) -> Iterator[Any]:
    held = [pair for _ in range(epochs) for pair in loader]
    return ((data.land(), labels.land()) for data, labels in held)


@pytest.mark.parametrize("njob", [1, 3])
def test_a_slot_waits_for_its_transfer(njob: int) -> None:
    """However late a transfer reads the slot, it reads that batch: 20 held batches are right."""
    with LateReader(SMALL, njob=njob, debug=True) as loader:
        seen = [check(data, labels, nchw=True) for data, labels in landed(loader)]
    assert is_whole_epoch(seen[:STEPS])
    assert is_whole_epoch(seen[STEPS:])
    with HastyReader(SMALL, njob=njob, debug=True) as loader:
        poison = [bool((data == POISON).all()) for data, _ in landed(loader)]
    assert any(poison)


def test_a_slot_waits_after_an_early_end() -> None:
    """What an abandoned loop left under way is waited for before its slot is refilled."""
    with LateReader(SMALL, debug=True) as loader:
        left = iter(loader)
        data, labels = next(left)
        first = check(data.land(), labels.land(), nchw=True)
        ahead: Any = loader._sent
        rest = [check(data, labels, nchw=True) for data, labels in landed(loader, 1)]
        assert is_whole_epoch([first, *rest])
        check(ahead[0].land(), ahead[1].land(), nchw=True)


def test_the_next_transfer_is_started_before_a_batch_is_used() -> None:
    """While the consumer has batch n, the transfer of batch n + 1 is under way."""
    sent = 0

    class Counting(LateReader):
        def _put(self, array: np.ndarray, sharding: Any) -> Any:
            nonlocal sent
            sent += 1
            return super()._put(array, sharding)

    with Counting(SMALL) as loader:
        for step, _ in enumerate(loader):
            assert sent == 2 * min(step + 2, STEPS)


# -- place ---------------------------------------------------------------------------------------


def test_a_loop_serves_the_epoch_to_its_end() -> None:
    """A loop after an early break serves the rest of that epoch, the batch on its way to the device
    too; the next loop is the next epoch, and set_epoch() begins one from its start."""
    with JaxReader(SMALL) as loader, JaxReader(SMALL) as other:
        first, second, third = (checked(other) for _ in range(3))
        assert checked(loader, 3) == first[:3]
        assert checked(loader) == first[3:]
        assert checked(loader, STEPS) == second
        assert checked(loader, 1) == third[:1]
        loader.set_epoch(2)
        assert checked(loader) == third


def test_resume_in_the_middle() -> None:
    """A state counts the batches the consumer has, not the one on its way; resuming is exact."""
    with JaxReader(SMALL, njob=2) as loader:
        checked(loader)
        loop = iter(loader)
        checked(loop, 4)
        state = json.loads(json.dumps(loader.state_dict()))
        expected = [*checked(loop), *checked(loader)]
    assert (state["epoch"], state["steps"]) == (1, 4)
    with JaxReader(SMALL) as resumed:
        resumed.load_state_dict(state)
        assert [*checked(resumed), *checked(resumed)] == expected
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert checked(resumed, 2) == expected[:2]


@pytest.mark.parametrize("duplicate", [copy.copy, pickle.dumps])
def test_pickle_and_copy(duplicate: Any) -> None:
    """A pickled or copied loader goes on behind the batch its original handed out last."""
    with JaxReader(SMALL) as loader:
        loop = iter(loader)
        checked(loop, 3)
        made = duplicate(loader)
        with pickle.loads(made) if isinstance(made, bytes) else made as twin:
            assert checked(twin) == checked(loop)


def test_last() -> None:
    """``last`` belongs to the batch that was handed out, not to the one on its way."""
    with JaxReader(SMALL) as loader:
        for _, labels in loader:
            assert loader.last is not None
            np.testing.assert_array_equal(loader.last.indices, np.asarray(labels))


def test_cuda_is_not_for_jax() -> None:
    """cuda=True, which would give torch tensors, is refused."""
    with pytest.raises(ParamsError):
        JaxReader(SMALL, cuda=True)


# -- training ------------------------------------------------------------------------------------


def test_training(sample_sets: dict[str, str]) -> None:
    """A small network trained on sample_data by plain jax names 9 of 10 held-out pictures."""

    def conv(x: Any, weight: Any, stride: int) -> Any:
        return jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def scores(params: Any, maps: Any) -> Any:
        x = jax.nn.relu(conv(maps, params["a"], 2) + params["b"])
        x = jax.nn.relu(conv(x, params["c"], 2) + params["d"])
        return x.reshape(len(x), -1) @ params["e"] + params["f"]

    def loss(params: Any, maps: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(scores(params, maps))
        return -jnp.take_along_axis(logs, labels[:, None], axis=1).mean()

    @jax.jit
    def train_step(params: Any, moments: Any, step: Any, total: int, maps: Any, labels: Any) -> Any:
        gradients = jax.grad(loss)(params, maps, labels)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, moments[1], gradients)
        rate = LEARNING_RATE * (1 - step / total)
        rate *= jnp.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        params = jax.tree.map(
            lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-7), params, mean, square
        )
        return params, (mean, square)

    shapes = {"a": (5, 5, 1, 12), "b": (12,), "c": (4, 4, 12, 24), "d": (24,)}
    shapes |= {"e": (4 * 4 * 24, 4), "f": (4,)}
    rng = np.random.default_rng(0)
    params: Any = {
        name: jnp.asarray(
            rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape) * (len(shape) > 1), jnp.float32
        )
        for name, shape in shapes.items()
    }
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    step = 0
    with JaxReader(train_params(sample_sets)) as loader:
        for _ in range(EPOCHS):
            for maps, labels in loader:
                params, moments = train_step(
                    params, moments, step, EPOCHS * len(loader), maps, labels
                )
                step += 1
    with JaxReader(heldout_params(sample_sets)) as others:
        right = [np.asarray(scores(params, maps).argmax(1) == labels) for maps, labels in others]
    accuracy = float(np.concatenate(right).mean())
    print(f"jax: held-out accuracy {accuracy:.3f}")
    assert accuracy >= GOOD
