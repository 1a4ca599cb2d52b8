"""JaxReader against the real jax on CPU devices, and its transfers played late."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frameworks import (
    IMAGES,
    LABELS,
    SMALL,
    STEPS,
    check,
    is_whole_epoch,
)

jax = pytest.importorskip("jax", reason="jax is not installed: pip install '.[jax]'")
try:
    jax.config.update("jax_num_cpu_devices", 2)
except AttributeError:  # an older jax
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from asyncreader import AsyncReader, ParamsError  # noqa: E402
from asyncreader.adapters.jax import JaxReader  # noqa: E402
from asyncreader.pipeline.slots import POISON  # noqa: E402


@pytest.fixture
def x64() -> Iterator[None]:
    """jax with 64-bit numbers."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


# -- arrays --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("field", ["data", "labels"])
def test_number_that_does_not_fit(field: str) -> None:
    """A number beyond int32, of any field, is an error with advice, not another number."""
    numbers = LABELS.copy()
    numbers[6] = 1 << 31
    given = {"data": {"image": IMAGES, "ids": numbers}} if field == "data" else {"labels": numbers}
    with (
        JaxReader(SMALL, **given, shuffle=False) as loader,
        pytest.raises(ParamsError, match=f"{field} do not fit the int32"),
    ):
        list(loader)


@pytest.mark.usefixtures("x64")
def test_x64_keeps_64_bits() -> None:
    """With jax_enable_x64 int64 labels stay int64, of any size."""
    labels = LABELS + (1 << 40)
    with JaxReader(SMALL, labels=labels, shuffle=False) as loader:
        given = np.concatenate([np.asarray(labels) for _, labels in loader])
    np.testing.assert_array_equal(given, labels[:40, 0], strict=True)


def test_mask_and_indices_go_where_labels_go() -> None:
    """To their device, or in parts along the axis that both have."""
    padded = {**SMALL, "last_batch": "pad", "with_mask": True, "with_indices": True}
    second = jax.devices()[1]
    with JaxReader(padded, sharding=(None, second)) as loader:
        assert all(mask.devices() == rows.devices() == {second} for _, _, mask, rows in loader)
    both = NamedSharding(mesh(), PartitionSpec("batch", None))
    labels = np.repeat(LABELS, 2, axis=1)
    with JaxReader(padded, labels=labels, sharding=(None, both)) as loader:
        for _, given, mask, _ in loader:
            assert given.sharding == both
            assert {shard.data.shape for shard in mask.addressable_shards} == {(2,)}


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


def test_cuda_is_not_for_jax() -> None:
    """cuda=True, which would give torch tensors, is refused."""
    with pytest.raises(ParamsError):
        JaxReader(SMALL, cuda=True)
