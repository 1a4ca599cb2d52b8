"""The training run behind ``asyncreader demo``: a small numpy network fed by AsyncReader.

The pictures of ``sample_data`` differ between classes in shape only, so the network is shown what
stands out from the background instead of the colours. The steps are those of a user's own training:
convert the folders, open a reader, queue one batch ahead, train, measure.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..reader import AsyncReader

Floats = NDArray[np.float32]
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Reader: TypeAlias = AsyncReader[Any, Any]

IMAGE_SIZE = (48, 48)  # (height, width) the pictures are converted to
BATCH_SIZE = 32
EPOCHS = 24  # at most
CONVERGED = 0.05  # mean loss of an epoch below which there is nothing left to see
EVERY = 2  # epochs to a line of progress
LEARNING_RATE = 0.03
MOMENTUM = 0.9
HIDDEN = 64  # width of the network's one hidden layer
MAX_SHIFT = 3  # pixels, see augment()


# ---------------------------------------------------------------------------------- input


def augment(data: Images, labels: Labels, rng: np.random.Generator) -> None:
    """Flip, turn and shift every picture of a batch at random, in place.

    ``data`` is (B, H, W, C) uint8; ``labels`` are left as they are, since no shape changes its
    class by this. The reader runs it on its own threads, while the network trains.
    """
    height, width = data.shape[1:3]
    for image in data:
        flip, turns = rng.integers(2), int(rng.integers(4))
        if height != width:
            turns -= turns % 2  # a quarter turn would not fit into the buffer
        changed = np.rot90(image[:, ::-1] if flip else image, turns)
        rows, columns = rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, size=2)
        # Clipped indices repeat the border; np.roll would bring in the opposite side. The take
        # makes a copy, so writing to the picture that `changed` is a view of is safe.
        changed = changed.take(np.clip(np.arange(height) + rows, 0, height - 1), axis=0)
        image[...] = changed.take(np.clip(np.arange(width) + columns, 0, width - 1), axis=1)


def shape_map(images: Images) -> Floats:
    """Distances of all 2x2 blocks from the background's colour: (B, H, W, C) to (B, H/2, W/2, 1).

    The background's colour is the median of the outermost blocks. The result is float32, about 0
    on the background and about 1 on the shape, whatever the two colours are.
    """
    count, height, width, channels = images.shape
    height, width = height // 2, width // 2
    cut = images[:, : 2 * height, : 2 * width].astype(np.float32)
    # Means of 2x2 blocks: they halve the noise and quarter the work.
    blocks = cut.reshape(count, height, 2, width, 2, channels).mean(axis=(2, 4))
    edges = (blocks[:, 0], blocks[:, -1], blocks[:, :, 0], blocks[:, :, -1])
    background = np.median(np.concatenate(edges, axis=1), axis=1)
    distance = np.linalg.norm(blocks - background[:, None, None], axis=3, keepdims=True)
    # The 97th percentile is the shape's own colour; the maximum would be a noisy block's.
    scale = np.percentile(distance, 97, axis=(1, 2, 3), keepdims=True)
    return np.asarray(distance / np.maximum(scale, 1.0), dtype=np.float32)


# -------------------------------------------------------------------------------- network


def features(images: Images) -> Floats:
    """What the network sees of pictures (B, H, W, C): (B, 190) float32, about -1 to 3.

    The strengths of the lowest frequencies of the shape map: a shift of the shape leaves them as
    they are.
    """
    waves = np.abs(np.fft.rfft2(shape_map(images)[..., 0], s=(32, 32)))
    lowest = np.concatenate([waves[:, :10, :10], waves[:, -9:, :10]], axis=1)
    return np.asarray(np.log1p(lowest).reshape(len(images), -1) - 1, dtype=np.float32)


class Network:
    """Two matrices with a ReLU between them, trained by gradient descent with momentum."""

    def __init__(self, inputs: int, classes: int, rng: np.random.Generator) -> None:
        first = rng.normal(0, np.sqrt(2 / inputs), (inputs, HIDDEN)).astype(np.float32)
        self.weights = [first, np.zeros((HIDDEN, classes), np.float32)]
        self._velocities = [np.zeros_like(weight) for weight in self.weights]

    def scores(self, x: Floats) -> tuple[Floats, Floats]:
        """Class scores (B, classes) for features, and the hidden layer's output."""
        hidden = np.maximum(x @ self.weights[0], 0)
        return hidden @ self.weights[1], hidden

    def learn_classes(self, x: Floats, labels: Labels, rate: float) -> float:
        """One step on features (B, inputs) and labels (B,): the cross entropy before it."""
        scores, hidden = self.scores(x)
        shifted = scores - scores.max(axis=1, keepdims=True)  # exp() of large scores overflows
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        picked = (np.arange(len(labels)), labels)
        loss = float(-logs[picked].mean())
        error = np.exp(logs)
        error[picked] -= 1
        error /= len(labels)
        self._descend(x, hidden, error, rate)
        return loss

    def learn_values(self, x: Floats, targets: Floats, counts: Floats, rate: float) -> float:
        """One step on features (B, inputs) and numbers (B, outputs), of which those count where
        ``counts`` is 1, not 0: the mean squared error before it."""
        values, hidden = self.scores(x)
        error = (values - targets) * counts
        self._descend(x, hidden, error / np.float32(len(x)), rate)
        return float((error**2).sum() / counts.sum())

    def _descend(self, x: Floats, hidden: Floats, error: Floats, rate: float) -> None:
        """One step against the gradient; ``error``: of the loss by the scores."""
        gradients = [x.T @ ((error @ self.weights[1].T) * (hidden > 0)), hidden.T @ error]
        for weight, velocity, gradient in zip(
            self.weights, self._velocities, gradients, strict=True
        ):
            velocity *= MOMENTUM
            velocity -= np.float32(rate) * gradient
            weight += velocity


# ------------------------------------------------------------------------------- training


def accuracy(network: Network, heldout: Reader) -> float:
    """The share of the held-out pictures, one epoch of them, that the network names right."""
    right = total = 0
    for images, labels in heldout:
        scores, _ = network.scores(features(images))
        right += int((scores.argmax(axis=1) == labels[:, 0]).sum())
        total += len(labels)
    return right / total


def epochs(
    reader: Reader, count: int, rate: float, step: Callable[[Any, float], float]
) -> Iterator[tuple[int, float, str]]:
    """Train for so many epochs: ``step`` is given a batch and a rate, and returns the loss.

    Gives after each epoch its number, its mean loss and how fast it went, in words.
    """
    steps, done = count * len(reader), 0
    for epoch in range(1, count + 1):
        losses, samples, started = [], 0, time.perf_counter()
        waited = reader.stats().wait_seconds
        for batch in reader:  # the next batch fills while this one is used
            losses.append(step(batch, rate * (1 - done / steps)))  # it falls to 0: a calm end
            samples += len(batch)
            done += 1
        seconds = time.perf_counter() - started
        waiting = reader.stats().wait_seconds - waited
        speed = f"{samples / seconds:4.0f} samples/s  wait {waiting / seconds:3.0%}"
        yield epoch, float(np.mean(losses)), speed


def train(reader: Reader, heldout: Reader, echo: Callable[[str], None]) -> float:
    """Train a new network over ``reader``; returns the accuracy on ``heldout``.

    It ends with the first epoch whose mean loss is below ``CONVERGED``, after ``EPOCHS`` at most.
    The first epoch, every second and the last echo one line.
    """
    if reader.classes is None:
        raise ValueError("the training set has no classes")
    inputs = features(np.zeros((1, *IMAGE_SIZE, 3), np.uint8)).shape[1]
    network = Network(inputs, len(reader.classes), np.random.default_rng(0))

    def step(batch: Any, rate: float) -> float:
        images, labels = batch
        return network.learn_classes(features(images), labels[:, 0], rate)

    score = 0.0
    for epoch, loss, speed in epochs(reader, EPOCHS, LEARNING_RATE, step):
        done = loss < CONVERGED or epoch == EPOCHS
        if epoch == 1 or epoch % EVERY == 0 or done:
            score = accuracy(network, heldout)
            echo(
                f"epoch {epoch:2d}/{EPOCHS}  loss {loss:.2f}  held-out accuracy {score:.3f}"
                f"  {speed}"
            )
        if done:
            why = f"converged, the loss is below {CONVERGED}" if loss < CONVERGED else "stopped"
            echo(f"{why} after {epoch} epochs")
            break
    return score


def run_demo(sample_data: Path, echo: Callable[[str], None]) -> float:
    """Convert ``sample_data``/train and /test to both formats and train once from each.

    Returns the smaller of the two held-out accuracies.
    """
    from converters import convert

    scores: dict[str, float] = {}
    kinds = {"h5": "HDF5", "lmdb": "LMDB"}
    with tempfile.TemporaryDirectory(prefix="asyncreader-demo-") as folder:
        for number, (suffix, kind) in enumerate(kinds.items(), 1):
            echo(f"{number} of {len(kinds)}: convert the images to {kind}, then train on them")
            paths = {split: Path(folder) / f"{split}.{suffix}" for split in ("train", "test")}
            begun = time.perf_counter()
            counts = [
                convert(sample_data / split, path, size=IMAGE_SIZE).count
                for split, path in paths.items()
            ]
            say = partial(_say, echo, suffix)
            say(
                f"{counts[0]} images to train on, {counts[1]} held out, converted in "
                f"{time.perf_counter() - begun:.1f} s"
            )
            common = {"batchSize": BATCH_SIZE, "nthread": 2, "world_size": 1, "layout": "NHWC"}
            training = {**common, "path": paths["train"], "shuffle": True, "postprocess": augment}
            with (
                AsyncReader(training) as reader,
                AsyncReader(common, path=paths["test"], last_batch="short") as heldout,
            ):
                say(
                    f"now a small network learns {len(reader.classes or ())} classes, "
                    f"{EPOCHS} epochs at most; wait: for data"
                )
                scores[suffix] = train(reader, heldout, say)
    for suffix, score in scores.items():
        _say(echo, suffix, f"held-out accuracy {score:.3f}")
    return min(scores.values())


def _say(echo: Callable[[str], None], suffix: str, text: str) -> None:
    echo(f"{suffix:4s} {text}")
