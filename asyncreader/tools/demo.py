"""The training run behind ``asyncreader demo``: a small numpy convnet fed by AsyncReader.

The pictures of ``sample_data`` differ between classes in shape only, so the network is shown a map
of what stands out from the background instead of the colours. The run takes the way a user's own
training takes: convert the folders, open a reader, queue one batch ahead, train, measure.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

IMAGE_SIZE = (48, 48)  # (height, width) the pictures are converted to
BATCH_SIZE = 32
EPOCHS = 24  # at most
CONVERGED = 0.2  # mean loss of an epoch below which there is nothing left to see
EVERY = 2  # epochs to a line of progress
LEARNING_RATE = 6e-3
MAX_SHIFT = 3  # pixels, see augment()


class Stats(Protocol):
    """What train() reads of ``reader.stats()``."""

    @property
    def wait_seconds(self) -> float: ...


class Reader(Protocol):
    """What train() needs of a reader: AsyncReader has it, and so may a test's fake.

    A batch unpacks to images (B, H, W, C) uint8 and labels (B, 1) int64.
    """

    @property
    def classes(self) -> Sequence[str] | None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Iterable[Any]]: ...

    def fetchData(self) -> bool: ...

    def getNextBatch(self) -> Iterable[Any]: ...

    def stats(self) -> Stats: ...


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
    """How far every 2x2 block is from the background's colour: (B, H, W, C) -> (B, H/2, W/2, 1).

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


@dataclass
class Conv:
    """One convolution: weight (K, K, C_in, C_out) and bias (C_out,), float32, without padding."""

    weight: Floats
    bias: Floats
    stride: int

    def parameters(self) -> tuple[Floats, Floats]:
        """The arrays to train, which the optimiser changes in place."""
        return self.weight, self.bias


@dataclass
class Network:
    """Convolutions with ReLUs between them, and the state of the Adam optimiser.

    ``moments`` holds, for every parameter in order, its running mean and mean square.
    """

    layers: list[Conv]
    moments: list[tuple[Floats, Floats]] = field(default_factory=list)
    steps: int = 0

    def parameters(self) -> list[Floats]:
        """All layers' arrays, first layer first."""
        return [parameter for layer in self.layers for parameter in layer.parameters()]


def new_network(map_size: tuple[int, int], classes: int, rng: np.random.Generator) -> Network:
    """An untrained network for maps of ``map_size`` (height, width), at least 15 x 15."""

    def conv(kernel: tuple[int, int], inputs: int, outputs: int, stride: int) -> Conv:
        scale = np.sqrt(2 / (kernel[0] * kernel[1] * inputs))  # He: keeps the signal's size
        weight = rng.normal(0, scale, size=(*kernel, inputs, outputs)).astype(np.float32)
        return Conv(weight, np.zeros(outputs, dtype=np.float32), stride)

    height, width = (((side - 5) // 2 + 1 - 4) // 2 + 1 for side in map_size)
    # The last convolution covers all that is left and so is the fully connected layer.
    last = conv((height, width), 24, classes, 1)
    network = Network([conv((5, 5), 1, 12, 2), conv((4, 4), 12, 24, 2), last])
    network.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in network.parameters()]
    return network


def windows(x: Floats, layer: Conv) -> Floats:
    """What the layer's kernel sees at each position: (B, H, W, C) -> (B, H', W', C * K * K)."""
    view = sliding_window_view(x, layer.weight.shape[:2], axis=(1, 2))
    view = view[:, :: layer.stride, :: layer.stride]  # (B, H', W', C, K, K)
    return view.reshape(*view.shape[:3], -1)


def as_matrix(weight: Floats) -> Floats:
    """The weight (K, K, C_in, C_out) as (C_in * K * K, C_out), in the order of windows()."""
    return weight.transpose(2, 0, 1, 3).reshape(-1, weight.shape[3])


def forward(network: Network, x: Floats) -> tuple[Floats, list[Floats]]:
    """Class scores (B, classes) for maps (B, H, W, 1), and every layer's input for backward()."""
    inputs = []
    for number, layer in enumerate(network.layers):
        x = np.maximum(x, 0) if number else x
        inputs.append(x)
        x = windows(x, layer) @ as_matrix(layer.weight) + layer.bias
    return x.reshape(len(x), -1), inputs


def backward(network: Network, inputs: list[Floats], scores_gradient: Floats) -> list[Floats]:
    """The gradients of all parameters, in their order, from that of the scores (B, classes)."""
    gradients: list[Floats] = []
    gradient = scores_gradient[:, None, None, :]
    for number in reversed(range(len(network.layers))):
        layer, x = network.layers[number], inputs[number]
        rows, columns, channels, outputs = layer.weight.shape
        flat = gradient.reshape(-1, outputs)
        weight_gradient = windows(x, layer).reshape(len(flat), -1).T @ flat
        weight_gradient = weight_gradient.reshape(channels, rows, columns, outputs)
        gradients[:0] = [weight_gradient.transpose(1, 2, 0, 3), flat.sum(axis=0)]
        if number == 0:
            break
        # Each element of the kernel adds its share to the input pixels it was laid over.
        before = np.zeros_like(x)
        height, width = (layer.stride * side for side in gradient.shape[1:3])
        for row in range(rows):
            for column in range(columns):
                target = before[:, row : row + height : layer.stride]
                target = target[:, :, column : column + width : layer.stride]
                target += gradient @ layer.weight[row, column].T
        gradient = before * (x > 0)
    return gradients


def loss_and_gradient(scores: Floats, labels: Labels) -> tuple[float, Floats]:
    """Mean cross entropy of scores (B, classes) for labels (B,), and its gradient."""
    shifted = scores - scores.max(axis=1, keepdims=True)  # exp() of large scores overflows
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    picked = (np.arange(len(labels)), labels)
    gradient = np.exp(logs)
    gradient[picked] -= 1
    return float(-logs[picked].mean()), gradient / np.float32(len(labels))


def train_step(network: Network, images: Images, labels: Labels, rate: float) -> float:
    """One Adam step on a batch; returns the loss before it.

    ``images`` are (B, H, W, C) uint8, ``labels`` (B,) int64.
    """
    scores, inputs = forward(network, shape_map(images))
    loss, scores_gradient = loss_and_gradient(scores, labels)
    gradients = backward(network, inputs, scores_gradient)
    network.steps += 1
    # Both running means start at 0; the factor takes that bias out.
    rate *= float(np.sqrt(1 - 0.99**network.steps) / (1 - 0.9**network.steps))
    for parameter, gradient, (mean, square) in zip(
        network.parameters(), gradients, network.moments, strict=True
    ):
        mean += 0.1 * (gradient - mean)
        square += 0.01 * (gradient**2 - square)
        parameter -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-7))
    return loss


# ------------------------------------------------------------------------------- training


def accuracy(network: Network, heldout: Reader) -> float:
    """The share of the held-out pictures, one epoch of them, that the network names right."""
    right = total = 0
    for images, labels in heldout:
        scores, _ = forward(network, shape_map(images))
        right += int((scores.argmax(axis=1) == labels[:, 0]).sum())
        total += len(labels)
    return right / total


def train(
    reader: Reader,
    heldout: Reader,
    epochs: int,
    echo: Callable[[str], None],
    label: str,
    seed: int = 0,
) -> float:
    """Train a new network over ``reader``; returns the accuracy on ``heldout``.

    It ends with the first epoch whose mean loss is below ``CONVERGED``, after ``epochs`` at most.
    The first epoch, every second and the last echo one line that starts with ``label``: the loss
    of that epoch, and how fast it went since the line before. ``seed`` draws the first weights.
    """
    rng = np.random.default_rng(seed)
    network: Network | None = None
    per_epoch = len(reader)
    steps = epochs * per_epoch
    score, losses, samples = 0.0, [], 0
    started, waited = time.perf_counter(), reader.stats().wait_seconds
    reader.fetchData()
    for step in range(1, steps + 1):
        images, labels = reader.getNextBatch()
        if step < steps:  # the next batch fills while this one is used
            reader.fetchData()
        if network is None:
            if reader.classes is None:
                raise ValueError("the training set has no classes to tell apart")
            map_size = (images.shape[1] // 2, images.shape[2] // 2)
            network = new_network(map_size, len(reader.classes), rng)
        rate = LEARNING_RATE * (1 - (step - 1) / steps)  # falls to 0, so that the end is calm
        losses.append(train_step(network, images, labels[:, 0], rate))
        samples += len(labels)
        epoch, behind = divmod(step, per_epoch)
        if behind:
            continue
        loss, losses = float(np.mean(losses)), []
        done = loss < CONVERGED or epoch == epochs
        if epoch == 1 or epoch % EVERY == 0 or done:
            seconds = time.perf_counter() - started
            waiting = reader.stats().wait_seconds - waited
            score = accuracy(network, heldout)
            echo(
                f"{label} epoch {epoch:2d}/{epochs}  loss {loss:.2f}"
                f"  held-out accuracy {score:.3f}  {samples / seconds:4.0f} samples/s"
                f"  wait {waiting / seconds:3.0%}"
            )
            samples = 0
            started, waited = time.perf_counter(), reader.stats().wait_seconds
        if done:
            why = f"converged, the loss is below {CONVERGED}" if loss < CONVERGED else "stopped"
            echo(f"{label} {why} after {epoch} epochs")
            break
    return score


def run_demo(sample_data: Path, echo: Callable[[str], None]) -> float:
    """Convert ``sample_data``/train and /test to both formats and train once from each.

    Returns the smaller of the two held-out accuracies.
    """
    from asyncreader import AsyncReader
    from converters import convert

    scores: dict[str, float] = {}
    kinds = {"h5": "HDF5", "lmdb": "LMDB"}
    with tempfile.TemporaryDirectory(prefix="asyncreader-demo-") as folder:
        for number, (suffix, kind) in enumerate(kinds.items(), 1):
            echo(f"{number} of {len(kinds)}: pack the pictures into {kind}, then train on them")
            paths = {split: Path(folder) / f"{split}.{suffix}" for split in ("train", "test")}
            begun = time.perf_counter()
            counts = [
                convert(sample_data / split, path, size=IMAGE_SIZE).count
                for split, path in paths.items()
            ]
            echo(
                f"{suffix:4s} {counts[0]} pictures to train on, {counts[1]} held out, packed in "
                f"{time.perf_counter() - begun:.1f} s"
            )
            common: dict[str, Any] = {
                "batchSize": BATCH_SIZE,
                "nthread": 2,
                "seed": 0,
                "layout": "NHWC",
            }
            with (
                AsyncReader(
                    common, path=paths["train"], shuffle=True, postprocess=augment
                ) as reader,
                AsyncReader(common, path=paths["test"], last_batch="short") as heldout,
            ):
                echo(
                    f"{suffix:4s} now a small network learns {len(reader.classes or ())} classes, "
                    f"{EPOCHS} epochs at most; wait: for data"
                )
                scores[suffix] = train(reader, heldout, EPOCHS, echo, f"{suffix:4s}")
    for suffix, score in scores.items():
        echo(f"{suffix:4s} held-out accuracy {score:.3f}")
    return min(scores.values())
