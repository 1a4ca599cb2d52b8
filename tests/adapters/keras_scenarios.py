"""What Keras does with a ReaderDataset; run by test_keras.py, one process per backend.

Prints one JSON object: the name of each scenario -> "", what went wrong in it, or null where this
Keras cannot do it. The samples of a batch are recorded where Keras trains on them, in train_step(),
after comparing every pixel.
"""

import json
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from frameworks import IMAGES, LABELS, SMALL, STEPS, check, expected

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.simplefilter("error")
# pyproject.toml has it for tests: some ask for whole batches of few samples
warnings.filterwarnings("ignore", 'last_batch="drop" leaves out', UserWarning)
# Keras's own, of converting torch tensors under numpy 2
warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of importing the frameworks
    import keras

    from asyncreader.adapters.keras import ReaderDataset

from asyncreader import FinishedError  # noqa: E402

#: The samples of the batches of six epochs.
EXPECTED = expected(6)
SCENARIOS: dict[str, Callable[[], None]] = {}


class NotHere(Exception):
    """This Keras cannot do it."""


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    """Declares a scenario."""
    SCENARIOS[function.__name__] = function
    return function


def host(array: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(array))


class Recording(keras.Sequential):  # type: ignore[misc]
    """A model that records the samples of every batch it trains on or is tested on."""

    def __init__(self, built: bool) -> None:
        layers = [keras.layers.Flatten(), keras.layers.Dense(1)]
        super().__init__([keras.Input((6, 5, 3)), *layers] if built else layers)
        self.trained: list[list[int]] = []
        self.tested: list[list[int]] = []

    def train_step(self, *arguments: Any) -> Any:
        self.trained.append(check(*map(host, arguments[-1][:2]), nchw=False))
        return super().train_step(*arguments)

    def test_step(self, *arguments: Any) -> Any:
        self.tested.append(check(*map(host, arguments[-1][:2]), nchw=False))
        return super().test_step(*arguments)


def model(built: bool, **options: Any) -> Recording:
    made = Recording(built)
    made.compile(optimizer="sgd", loss="mse", run_eagerly=True, **options)
    made.optimizer.learning_rate = 0.0
    return made


def dataset(**params: Any) -> Any:
    return ReaderDataset(SMALL, njob=2, **params)


def fit(data: Any, net: Recording, *fits: dict[str, int]) -> list[list[int]]:
    """What a model was trained on by one fit after the other."""
    for one in fits:
        net.fit(data, verbose=0, **one)
    return net.trained


# -- scenarios: each with a model that is built, and one that is not -----------------------------


@scenario
def two_fits() -> None:
    """Two fits of two epochs train on exactly the reader's four epochs."""
    for built in (True, False):
        with dataset() as data:
            trained = fit(data, model(built), *[{"epochs": 2}] * 2)
            assert trained == EXPECTED[: 4 * STEPS]
            place = data.state_dict()
            assert (place["epoch"], place["steps"]) == (4, 0)


@scenario
def new_models() -> None:
    """A new, unbuilt model after a fit, and the old one compiled again, only peek in the middle of
    a dataset's life."""
    with dataset() as data:
        first, second = model(True), model(False)
        trained = [*fit(data, first, {}), *fit(data, second, {})]
        first.compile(optimizer="sgd", loss="mse", run_eagerly=True, metrics=["mae"])
        trained += fit(data, first, {})[STEPS:]
    assert trained == EXPECTED[: 3 * STEPS]


@scenario
def several_steps() -> None:
    """With steps_per_execution=4, of which the last one is not full, every batch is trained on
    once, in order."""
    for built in (True, False):
        with dataset() as data:
            net = model(built, steps_per_execution=4)
            try:
                net.make_train_function()
            except ValueError as exc:
                raise NotHere from exc
            assert fit(data, net, *[{"epochs": 2}] * 2) == EXPECTED[: 4 * STEPS]


@scenario
def steps_per_epoch() -> None:
    """With steps_per_epoch=3 each epoch of each fit goes on where the last one stopped."""
    for built in (True, False):
        with dataset() as data:
            fits = [{"epochs": 2, "steps_per_epoch": 3}] * 2
            assert fit(data, model(built), *fits, {}) == EXPECTED[: 4 * 3 + STEPS]


@scenario
def interrupted() -> None:
    """After an exception in batch 4 of the second epoch the next fit serves that epoch from its
    start."""

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if (self.epoch, batch) == (1, 3):
                raise InterruptedError

    with dataset() as data:
        net = model(True)
        try:
            net.fit(data, epochs=2, verbose=0, callbacks=[Stop()])
        except InterruptedError:
            other = model(True)  # in Keras 3.5 with jax an exception breaks the model
        assert net.trained == EXPECTED[: STEPS + 4]
        assert fit(data, other, {}) == EXPECTED[STEPS : 2 * STEPS]


@scenario
def validation() -> None:
    """Validation and evaluate() see each held-out sample once, and do not disturb training."""
    with dataset() as data, dataset(seed=9, shuffle=False) as others:
        net = model(False)
        net.fit(data, epochs=2, validation_data=others, verbose=0)
        net.evaluate(others, verbose=0)
    assert net.trained == EXPECTED[: 2 * STEPS]
    assert net.tested == LABELS[: STEPS * 4, 0].reshape(STEPS, 4).tolist() * 3


@scenario
def resumed() -> None:
    """A state, through JSON, or pickle of batch 14 goes on with batch 14."""
    with dataset() as data:
        fit(data, model(False), {}, {"steps_per_epoch": 4})
        state = json.dumps(data.state_dict())
        pickled = pickle.dumps(data)
    loaded = dataset()
    loaded.load_state_dict(json.loads(state))
    for again in (loaded, pickle.loads(pickled)):
        with again:
            for built in (True, False):
                assert fit(again, model(built), {"steps_per_epoch": 6}) == EXPECTED[14:20]
                again.load_state_dict(json.loads(state))


@scenario
def padded() -> None:
    """last_batch="pad" comes with sample weights: what is padded adds nothing to the loss."""
    with dataset(last_batch="pad", shuffle=False, dtype="float32") as data:
        weights = [data[i][2].tolist() for i in range(len(data))]
        assert weights == [[1.0] * 4] * 10 + [[1.0, 1.0, 0.0, 0.0]]
        layers = [keras.Input((6, 5, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]
        net = keras.Sequential(layers)
        net.compile(loss="mse")
        found = net.evaluate(data, verbose=0)
        scores = host(net(IMAGES.astype(np.float32)))
    alone = float(((scores - LABELS) ** 2).mean())
    # Keras divides the weighted sum by the number of all rows, 44 with the padded ones
    np.testing.assert_allclose(found, alone * 42 / 44, rtol=1e-4)


@scenario
def soft() -> None:
    """Soft labels come as (B, classes) float32 and fit() trains on them; padded rows have labels of
    zeros and weigh nothing."""
    given = {"mixup": 0.5, "label_smoothing": 0.1, "num_classes": 50, "last_batch": "pad"}
    with ReaderDataset(SMALL, **given, dtype="float32", scale=1 / 255) as data:
        for _ in range(len(data)):
            _, labels, weights = data[0]
            assert (labels.dtype, labels.shape) == (np.float32, (4, 50))
            np.testing.assert_allclose(labels.sum(axis=1), weights, atol=1e-5)
        assert weights.tolist() == [1.0, 1.0, 0.0, 0.0]
        layers = [keras.layers.Flatten(), keras.layers.Dense(50, activation="softmax")]
        net = keras.Sequential(layers)
        net.compile(loss=keras.losses.CategoricalCrossentropy())
        (loss,) = net.fit(data, epochs=1, verbose=0).history["loss"]
    assert 0 < loss < 10


@scenario
def without_labels() -> None:
    """A set without labels gives (data,); predict() serves whole epochs."""
    with dataset(labels=None) as data:
        assert len(data[0]) == 1
        net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
        assert [net.predict(data, verbose=0).shape for _ in range(2)] == [(40, 1)] * 2
        assert data.state_dict()["epoch"] == 2


@scenario
def layout_and_end() -> None:
    """layout="NCHW" is kept, also by pickle; past epochs=1 comes FinishedError."""
    with dataset(layout="NCHW") as data, pickle.loads(pickle.dumps(data)) as twin:
        assert data[0][0].shape == twin[0][0].shape == (4, 3, 6, 5)
    with dataset(epochs=1) as data:
        assert len(list(data)) == STEPS
        try:
            data[0]
        except FinishedError:
            return
    raise AssertionError("a batch past the end")


def came_of(function: Callable[[], None]) -> str | None:
    """What came of a scenario."""
    try:
        function()
    except NotHere:
        return None
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    print(json.dumps({name: came_of(function) for name, function in SCENARIOS.items()}))
