"""Several fields, and views, through every adapter and on a device: a tuple of what one field would
be."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice
from frameworks import kept, opener

from asyncreader import AsyncReader

__all__ = ["opener"]  # a fixture

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


def test_fields(opener: Any) -> None:
    """(images, masks), labels: arrays of their dtypes."""
    with opener(PARAMS, batch_size=5, last_batch="pad", with_mask=True) as loader:
        steps = 0
        for (image, mask), labels, valid in loader:
            steps += 1
            rows = int(np.asarray(valid).sum())
            image, mask, labels = map(kept, (image, mask, labels))
            assert (image.dtype, mask.dtype, labels.shape) == (np.uint8, np.uint16, (5,))
            check(image[:rows], mask[:rows], labels[:rows])
        assert (steps, rows, labels[2:].tolist()) == (3, 2, [-100] * 3)


def test_views(opener: Any) -> None:
    """A tuple of arrays, one for each size; a number of views is a tuple of one."""
    with opener(VIEWS) as loader:
        for data, labels in loader:
            check_views(data, labels)
    with opener(VIEWS, views=2, with_indices=True) as loader:
        for (both,), labels, indices in loader:
            assert both.shape == (4, 2, 3, 8, 6)
            assert indices.tolist() == labels.tolist()


def test_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two inputs of a model; and image and mask as data and target, by postprocess. Views have
    channels last."""
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
    views = ReaderDataset(VIEWS)
    for step in range(3):
        check_views(*views[step], nchw=False)
    views.close()


def as_target(data: Any, labels: np.ndarray) -> Any:
    """Learn the mask from the image."""
    image, mask = data
    return image, (mask % 2 == 0)[..., None].astype(np.float32)


@pytest.mark.parametrize("pace", ["eager", "late"])
@pytest.mark.parametrize(
    ("params", "same"),
    [(PARAMS, lambda data, labels: check(*data, labels)), (VIEWS, check_views)],
    ids=["fields", "views"],
)
def test_on_a_device(
    params: dict[str, Any], same: Callable[..., None], pace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuda: each array of every slot is page-locked and has its tensors in both device slots."""
    device = FakeDevice(pace)
    monkeypatch.setattr("asyncreader.reader.open_device", lambda _: device)
    with AsyncReader(params, cuda=True, njob=2, copy=True) as reader:
        assert len(device.pinned) == 3 * 3  # slots x (two arrays, and labels)
        assert len(device.tensors) == 2 * 3
        batches = list(reader)
        device.finish()
        for batch in batches:
            assert isinstance(batch.data, tuple)
            same(batch.data, batch.labels)
    assert device.unpinned == device.pinned
