"""Several fields through every adapter, and on a device: a tuple of what one field would be."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice

from asyncreader import AsyncReader, ParamsError
from asyncreader.adapters.generator import endless

N = 12
IMAGES = np.arange(N * 8 * 6 * 3, dtype=np.uint8).reshape(N, 8, 6, 3)
MASKS = np.arange(N * 8 * 6, dtype=np.uint16).reshape(N, 8, 6) * 7
PARAMS: dict[str, Any] = {
    "data": {"image": IMAGES, "mask": MASKS},
    "labels": np.arange(N)[:, None],
    "batch_size": 4,
    "shuffle": True,
    "flip": True,
}


def check(image: Any, mask: Any, labels: Any, nchw: bool = True) -> None:
    """Image and mask are those of the labels, mirrored together or not at all."""
    pixels = np.asarray(image).transpose(0, 2, 3, 1) if nchw else np.asarray(image)
    for found, classes, label in zip(pixels, np.asarray(mask), np.asarray(labels), strict=True):
        number = int(label.item())
        step = 1 if np.array_equal(found, IMAGES[number]) else -1
        np.testing.assert_array_equal(found, IMAGES[number][:, ::step])
        np.testing.assert_array_equal(classes, MASKS[number][:, ::step])


def test_torch() -> None:
    """(images, masks), labels: tensors of their dtypes, private, images channels-last."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    from asyncreader.adapters.torch import TorchReader

    with TorchReader(PARAMS) as loader:
        held = list(loader)
        assert len(held) == 3
        for (image, mask), labels in held:
            assert (image.dtype, mask.dtype) == (torch.uint8, torch.uint16)
            assert image.is_contiguous(memory_format=torch.channels_last)
            assert labels.shape == (4,)
            check(image.numpy(), mask.numpy(), labels.numpy())
    with TorchReader(PARAMS, batch_size=5, last_batch="pad", with_mask=True) as loader:
        *_, ((image, mask), labels, valid) = loader
        assert valid.tolist() == [True, True, False, False, False]
        assert labels[2:].tolist() == [-100] * 3
        check(image[valid].numpy(), mask.numpy()[:2], labels[valid].numpy())


def test_jax() -> None:
    """(images, masks), labels: arrays of jax, on the device that is asked for."""
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install '.[jax]'")
    from asyncreader.adapters.jax import JaxReader

    with JaxReader(PARAMS, sharding=jax.devices()[0]) as loader:
        held = list(loader)
        assert len(held) == 3
        for (image, mask), labels in held:
            assert isinstance(mask, jax.Array)
            assert mask.dtype == np.uint16
            check(image, mask, labels)


def test_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two inputs of a model; and image and mask as data and target, by postprocess."""
    backends = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
    if "KERAS_BACKEND" not in os.environ and backends:
        monkeypatch.setenv("KERAS_BACKEND", backends[0])
    keras = pytest.importorskip("keras", reason="keras is not installed: pip install '.[keras]'")
    from asyncreader.adapters.keras import ReaderDataset

    images = ReaderDataset(PARAMS)
    for _ in range(3):
        (image, mask), labels = images[0]
        check(image, mask, labels, nchw=False)
    images.close()
    inputs = [keras.Input((8, 6, 3)), keras.Input((8, 6))]
    flat = [keras.layers.Flatten()(keras.ops.cast(one, "float32")) for one in inputs]
    both = keras.Model(inputs, keras.layers.Dense(N)(keras.layers.Concatenate()(flat)))
    both.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = ReaderDataset(PARAMS)
    both.fit(images, epochs=1, verbose=0)
    images.close()
    masks = ReaderDataset(PARAMS, dtype="float32", scale=1 / 255, postprocess=as_target)
    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy")
    history = model.fit(masks, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    masks.close()


def as_target(data: Any, labels: np.ndarray) -> Any:
    """Learn the mask from the image."""
    image, mask = data
    return image, (mask % 2 == 0)[..., None].astype(np.float32)


def test_endless() -> None:
    """The plain generator gives the tuple as it is."""
    batches: Iterator[Any] = endless(PARAMS)
    for _ in range(5):
        (image, mask), labels = next(batches)
        check(image, mask, labels)
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("pace", ["eager", "late"])
def test_on_a_device(monkeypatch: pytest.MonkeyPatch, pace: str) -> None:
    """cuda: every field of every slot is page-locked and has its tensors in both device slots."""
    device = FakeDevice(pace)
    monkeypatch.setattr("asyncreader.reader.open_device", lambda _: device)
    with AsyncReader(PARAMS, cuda=True, njob=2, copy=True) as reader:
        assert len(device.pinned) == 3 * 3  # slots x (image, mask, labels)
        assert len(device.tensors) == 2 * 3
        batches = list(reader)
        device.finish()
        for batch in batches:
            assert isinstance(batch.data, tuple)
            check(*batch.data, batch.labels)
    assert device.unpinned == device.pinned


def test_a_mask_that_does_not_fit_jax() -> None:
    """64-bit numbers of any field that jax would cut are an error."""
    pytest.importorskip("jax", reason="jax is not installed: pip install '.[jax]'")
    from asyncreader.adapters.jax import JaxReader

    data = {"image": IMAGES, "ids": np.full((N, 1), 1 << 40)}
    with (
        JaxReader(data=data, batch_size=4) as loader,
        pytest.raises(ParamsError, match="do not fit the int32"),
    ):
        next(iter(loader))


# -- views ---------------------------------------------------------------------------------------

VIEWS: dict[str, Any] = {
    "data": IMAGES,
    "labels": np.arange(N)[:, None],
    "batch_size": 4,
    "shuffle": True,
    "views": [{"count": 2}, {"count": 3, "size": (4, 4)}],
}


def check_views(data: Any, labels: Any, nchw: bool = True) -> None:
    """Views of two sizes, (B, count, ...); the first ones are whole pictures."""
    large, small = (np.asarray(array) for array in data)
    assert large.shape == ((4, 2, 3, 8, 6) if nchw else (4, 2, 8, 6, 3))
    assert small.shape == ((4, 3, 3, 4, 4) if nchw else (4, 3, 4, 4, 3))
    pictures = IMAGES[np.asarray(labels).reshape(-1)]
    for view in range(2):
        own = large[:, view].transpose(0, 2, 3, 1) if nchw else large[:, view]
        np.testing.assert_array_equal(own, pictures)


def test_views_as_tensors() -> None:
    """A tuple of tensors, one for each size; a number of views is a tuple of one."""
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    from asyncreader.adapters.torch import TorchReader

    with TorchReader(VIEWS) as loader:
        for data, labels in loader:
            check_views([one.numpy() for one in data], labels.numpy())
    with TorchReader(VIEWS, views=2, with_indices=True) as loader:
        for (both,), labels, indices in loader:
            assert both.shape == (4, 2, 3, 8, 6)
            assert indices.tolist() == labels.tolist()


def test_views_as_arrays_of_jax() -> None:
    """The same of jax."""
    pytest.importorskip("jax", reason="jax is not installed: pip install '.[jax]'")
    from asyncreader.adapters.jax import JaxReader

    with JaxReader(VIEWS) as loader:
        for data, labels in loader:
            check_views(data, labels)


def test_views_in_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of keras, with channels last."""
    backends = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
    if "KERAS_BACKEND" not in os.environ and backends:
        monkeypatch.setenv("KERAS_BACKEND", backends[0])
    pytest.importorskip("keras", reason="keras is not installed: pip install '.[keras]'")
    from asyncreader.adapters.keras import ReaderDataset

    dataset = ReaderDataset(VIEWS)
    for step in range(3):
        data, labels = dataset[step]
        check_views(data, labels, nchw=False)
    dataset.close()


@pytest.mark.parametrize("pace", ["eager", "late"])
def test_views_on_a_device(monkeypatch: pytest.MonkeyPatch, pace: str) -> None:
    """cuda: each array of views is page-locked and has tensors of its own."""
    device = FakeDevice(pace)
    monkeypatch.setattr("asyncreader.reader.open_device", lambda _: device)
    with AsyncReader(VIEWS, cuda=True, njob=2, copy=True) as reader:
        assert len(device.pinned) == 3 * 3  # slots x (large, small, labels)
        batches = list(reader)
        device.finish()
        for batch in batches:
            check_views(batch.data, batch.labels)
    assert device.unpinned == device.pinned
