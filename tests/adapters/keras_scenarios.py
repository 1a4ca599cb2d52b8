"""What Keras does with a ReaderDataset; run by test_keras.py, one process per backend.

Prints one JSON object: the name of each scenario -> what was recorded in it. The samples of a batch
are recorded where Keras trains on them, in train_step(), after comparing every pixel.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
import warnings
from typing import Any

import numpy as np
from frameworks import (
    EPOCHS,
    IMAGES,
    LABELS,
    LEARNING_RATE,
    SMALL,
    STEPS,
    check,
    expected,
    heldout_params,
    train_params,
)

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

Batches = list[list[int]]


def host(array: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(array))


class Recording(keras.Sequential):  # type: ignore[misc]
    """A model that records the samples of every batch it trains on or is tested on."""

    def __init__(self, built: bool) -> None:
        layers = [keras.layers.Flatten(), keras.layers.Dense(1)]
        super().__init__([keras.Input((6, 5, 3)), *layers] if built else layers)
        self.trained: Batches = []
        self.tested: Batches = []

    def _record(self, to: Batches, data: Any) -> None:
        to.append(check(host(data[0]), host(data[1]), nchw=False))

    def train_step(self, *arguments: Any) -> Any:
        self._record(self.trained, arguments[-1])
        return super().train_step(*arguments)

    def test_step(self, *arguments: Any) -> Any:
        self._record(self.tested, arguments[-1])
        return super().test_step(*arguments)


def model(built: bool, **options: Any) -> Recording:
    made = Recording(built)
    made.compile(optimizer="sgd", loss="mse", run_eagerly=True, **options)
    made.optimizer.learning_rate = 0.0
    return made


def dataset(**params: Any) -> Any:
    return ReaderDataset(SMALL, njob=2, **params)


# -- scenarios -----------------------------------------------------------------------------------


def two_fits(built: bool) -> Any:
    """Two fit calls of two epochs each, with one dataset."""
    with dataset() as data:
        net = model(built)
        for _ in range(2):
            net.fit(data, epochs=2, verbose=0)
        place = data.state_dict()
    return {"trained": net.trained, "place": [place["epoch"], place["steps"]]}


def unbuilt_after_built() -> Any:
    """A new, unbuilt model after a fit; then the old one, compiled again."""
    with dataset() as data:
        first, second = model(True), model(False)
        first.fit(data, epochs=1, verbose=0)
        second.fit(data, epochs=1, verbose=0)
        first.compile(optimizer="sgd", loss="mse", run_eagerly=True, metrics=["mae"])
        first.fit(data, epochs=1, verbose=0)
    return [*first.trained[:STEPS], *second.trained, *first.trained[STEPS:]]


def several_steps(built: bool) -> Any:
    """steps_per_execution=4 over 10 batches: the last execution is not full. None: not allowed."""
    with dataset() as data:
        net = model(built, steps_per_execution=4)
        try:
            net.make_train_function()
        except ValueError:
            return None
        for _ in range(2):
            net.fit(data, epochs=2, verbose=0)
    return net.trained


def steps_per_epoch(built: bool) -> Any:
    """Epochs of 3 of the 10 batches, in two fits; then a whole one."""
    with dataset() as data:
        net = model(built)
        for _ in range(2):
            net.fit(data, epochs=2, steps_per_epoch=3, verbose=0)
        net.fit(data, epochs=1, verbose=0)
    return net.trained


def looked_at() -> Any:
    """The user looks at a batch for its shapes, then fits."""
    trained = []
    for built in (True, False):
        with dataset() as data:
            shapes = [array.shape for array in data[0]]
            assert shapes == [(4, 6, 5, 3), (4,)]
            net = model(built)
            net.fit(data, epochs=1, verbose=0)
            trained.append(net.trained)
    return trained


def interrupted() -> Any:
    """A callback raises in batch 4 of the second epoch; the next fit goes on."""

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
        other.fit(data, epochs=1, verbose=0)
    return [net.trained, other.trained]


def validation() -> Any:
    """Validation after each of two epochs, then evaluate(): whole epochs each time."""
    with dataset() as data, dataset(seed=9, shuffle=False) as others:
        net = model(False)
        net.fit(data, epochs=2, validation_data=others, verbose=0)
        net.evaluate(others, verbose=0)
    return {"trained": net.trained, "tested": net.tested}


def resumed() -> Any:
    """A state after 14 batches of training, through JSON and through pickle."""
    with dataset() as data:
        net = model(False)
        net.fit(data, epochs=1, verbose=0)
        net.fit(data, epochs=1, steps_per_epoch=4, verbose=0)
        state = json.dumps(data.state_dict())
        pickled = pickle.dumps(data)
    results = []
    loaded = dataset()
    loaded.load_state_dict(json.loads(state))
    for again in (loaded, pickle.loads(pickled)):
        with again:
            for built in (True, False):
                other = model(built)
                other.fit(again, epochs=1, steps_per_epoch=6, verbose=0)
                results.append(other.trained)
                again.load_state_dict(json.loads(state))
    return results


def held() -> Any:
    """Twelve batches held at once; and in how many buffers twelve are, copied or not."""
    with dataset(debug=True) as data:
        batches = [data[i] for i in range(12)]
        seen = [check(*batch, nchw=False) for batch in batches]
    copies = {images.ctypes.data for images, _ in batches}
    with dataset(zero_copy=True, debug=True) as data:
        slots = {data[i][0].ctypes.data for i in range(12)}
    return {"seen": seen, "buffers": [len(copies), len(slots)]}


def kinds() -> Any:
    """Batches of sets with padding, without labels, as NCHW, pickled; the end of epochs=1."""
    with dataset(last_batch="pad", shuffle=False) as data:
        weights = [data[i][2].tolist() for i in range(len(data))]
    with dataset(labels=None) as data:
        alone = len(data[0])
        net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
        predicted = [list(net.predict(data, verbose=0).shape) for _ in range(2)]
        place = data.state_dict()["epoch"]
    with dataset(layout="NCHW") as data, pickle.loads(pickle.dumps(data)) as twin:
        shapes = [list(data[0][0].shape), list(twin[0][0].shape)]
    with dataset(epochs=1) as data:
        whole = len(list(data))
        try:
            data[0]
        except FinishedError:
            whole += 100
    return {
        "weights": weights,
        "alone": alone,
        "predicted": predicted,
        "place": place,
        "shapes": shapes,
        "whole": whole,
    }


def weighted() -> Any:
    """The loss over a padded epoch, and that over its 42 samples alone."""
    with dataset(last_batch="pad", shuffle=False, dtype="float32") as data:
        net = keras.Sequential(
            [keras.Input((6, 5, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        net.compile(loss="mse")
        given = net.evaluate(data, verbose=0)
        flat = IMAGES.astype(np.float32).reshape(len(IMAGES), -1)
        scores = host(net(IMAGES.astype(np.float32)))
        assert flat.shape == (42, 90)
        return [given, float(((scores - LABELS) ** 2).mean())]


def soft() -> Any:
    """Soft labels: their sums and weights in each batch, and the loss of a fit."""
    given = {"mixup": 0.5, "label_smoothing": 0.1, "num_classes": 50, "last_batch": "pad"}
    with ReaderDataset(SMALL, **given, dtype="float32", scale=1 / 255) as data:
        steps = [data[0] for _ in range(len(data))]
        layers = [keras.layers.Flatten(), keras.layers.Dense(50, activation="softmax")]
        made = keras.Sequential(layers)
        made.compile(loss=keras.losses.CategoricalCrossentropy())
        history = made.fit(data, epochs=1, verbose=0).history
    return {
        "types": sorted({f"{labels.dtype} {labels.shape}" for _, labels, _ in steps}),
        "sums": [labels.sum(axis=1).tolist() for _, labels, _ in steps],
        "weights": [weights.tolist() for *_, weights in steps],
        "loss": history["loss"],
    }


def training(paths: dict[str, str]) -> float:
    """Held-out accuracy of a small network trained on sample_data."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    net = keras.Sequential(
        [
            layers.Conv2D(12, 5, strides=2, activation="relu"),
            layers.Conv2D(24, 4, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    with ReaderDataset(train_params(paths)) as data, ReaderDataset(heldout_params(paths)) as others:
        steps = EPOCHS * len(data)
        rate = keras.optimizers.schedules.PolynomialDecay(LEARNING_RATE, steps, 0.0)
        net.compile(
            optimizer=keras.optimizers.Adam(rate, beta_2=0.99),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        net.fit(data, epochs=EPOCHS, verbose=0)
        return float(net.evaluate(others, verbose=0, return_dict=True)["accuracy"])


def main(paths: dict[str, str]) -> None:
    """Run all scenarios."""
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
    started = time.perf_counter()
    told = {
        "backend": keras.backend.backend(),
        "expected": expected(6),
        "two_fits": [two_fits(built) for built in (True, False)],
        "unbuilt_after_built": unbuilt_after_built(),
        "several_steps": [several_steps(built) for built in (True, False)],
        "steps_per_epoch": [steps_per_epoch(built) for built in (True, False)],
        "looked_at": looked_at(),
        "interrupted": interrupted(),
        "validation": validation(),
        "resumed": resumed(),
        "held": held(),
        "kinds": kinds(),
        "weighted": weighted(),
        "soft": soft(),
        "training": training(paths),
    }
    told["seconds"] = time.perf_counter() - started
    print(json.dumps(told))


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main(json.loads(sys.argv[1]))
