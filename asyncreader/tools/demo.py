"""The training runs behind ``asyncreader demo``: a small numpy network fed by AsyncReader.

The images of ``sample_data`` differ between classes in shape only, so the network is shown what
stands out from the background instead of the colours. The steps are those of a user's own training:
convert the folders, open a reader, queue one batch ahead, train, measure. With ``--kind`` it learns
small sets as other fields write them: actions of a robot, cells, volumes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import h5py
import numpy as np

from ..reader import AsyncReader
from ..system.array_types import Array, Float32, Int64, UInt8
from ..system.text import in_bytes, times

IMAGE_SIZE = (48, 48)  # (height, width) the pictures are converted to
EVERY = 2  # epochs to a line of progress
MOMENTUM = 0.9
HIDDEN = 64  # width of the network's one hidden layer
MAX_SHIFT = 3  # pixels, see augment()


# ---------------------------------------------------------------------------------- input


def augment(data: UInt8, labels: Int64, rng: np.random.Generator) -> None:
    """Flip, turn and shift every image of a batch at random, in place.

    ``data`` is (B, H, H, C) uint8; ``labels`` are left as they are, since no shape changes its
    class by this. The reader runs it on its own threads, while the network trains.
    """
    places = np.arange(data.shape[1])
    for image in data:
        flip, turns = rng.integers(2), int(rng.integers(4))
        changed = np.rot90(image[:, ::-1] if flip else image, turns)
        # Clipped indices repeat the border; np.roll would bring in the opposite side. They make a
        # copy, so writing to the image that `changed` is a view of is safe.
        shifts = rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, (2, 1))
        image[...] = changed[np.ix_(*np.clip(places + shifts, 0, places[-1]))]


def shape_map(images: UInt8) -> Float32:
    """Distances of all 2x2 blocks from the background's colour: (B, H, W, C) to (B, H/2, W/2, 1).

    The background's colour is the median of the outermost blocks. The result is float32, about 0
    on the background and about 1 on the shape, whatever the two colours are.
    """
    count, height, width, channels = images.shape
    pairs = images.reshape(count, height // 2, 2, width // 2, 2, channels)
    # Means of 2x2 blocks: they halve the noise and quarter the work.
    blocks = pairs.mean(axis=(2, 4), dtype=np.float32)
    edges = (blocks[:, 0], blocks[:, -1], blocks[:, :, 0], blocks[:, :, -1])
    background = np.median(np.concatenate(edges, axis=1), axis=1)
    distance = np.linalg.norm(blocks - background[:, None, None], axis=3, keepdims=True)
    # The 97th percentile is the shape's own colour; the maximum would be a noisy block's.
    scale = np.percentile(distance, 97, axis=(1, 2, 3), keepdims=True)
    return np.asarray(distance / np.maximum(scale, 1.0), dtype=np.float32)


# -------------------------------------------------------------------------------- network


def features(images: UInt8) -> Float32:
    """What the network sees of pictures (B, H, W, C): (B, 190) float32, about -1 to 3.

    The strengths of the lowest frequencies of the shape map: a shift of the shape leaves them as
    they are.
    """
    waves = np.abs(np.fft.rfft2(shape_map(images)[..., 0], s=(32, 32)))
    lowest = np.concatenate([waves[:, :10, :10], waves[:, -9:, :10]], axis=1)
    return np.asarray(np.log1p(lowest).reshape(len(images), -1) - 1, dtype=np.float32)


#: What the network sees of a batch, and learns: features (B, inputs), and the classes (B,) or
#: numbers (B, outputs), NaN where any will do.
Seen: TypeAlias = tuple[Float32, Array]


class Network:
    """Two matrices with a ReLU between them, trained by gradient descent with momentum."""

    def __init__(self, inputs: int, classes: int, rng: np.random.Generator) -> None:
        first = rng.normal(0, np.sqrt(2 / inputs), (inputs, HIDDEN)).astype(np.float32)
        self.weights = [first, np.zeros((HIDDEN, classes), np.float32)]
        self._velocities = [np.zeros_like(weight) for weight in self.weights]

    def scores(self, x: Float32) -> tuple[Float32, Float32]:
        """Class scores (B, classes) for features, and the hidden layer's output."""
        hidden = np.maximum(x @ self.weights[0], 0)
        return hidden @ self.weights[1], hidden

    def learn(self, x: Float32, targets: Array, rate: float) -> float:
        """One step against the gradient, on features (B, inputs) and labels (B,) or numbers
        (B, outputs), NaN where any will do. The loss before it: see :func:`loss_of`."""
        outputs, hidden = self.scores(x)
        loss, error = loss_of(outputs, targets)
        gradients = [x.T @ ((error @ self.weights[1].T) * (hidden > 0)), hidden.T @ error]
        for weight, velocity, gradient in zip(
            self.weights, self._velocities, gradients, strict=True
        ):
            velocity *= MOMENTUM
            velocity -= np.float32(rate) * gradient
            weight += velocity
        return loss


def loss_of(outputs: Float32, targets: Array) -> tuple[float, Float32]:
    """The cross entropy of labels (B,), or the mean squared error of numbers (B, outputs), of which
    NaN counts for nothing; and its gradient by ``outputs``."""
    count = np.float32(len(targets))
    if targets.ndim > 1:
        error = np.nan_to_num(outputs - targets)
        return float((error**2).sum() / np.isfinite(targets).sum()), error / count
    shifted = outputs - outputs.max(axis=1, keepdims=True)  # exp() of large scores overflows
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    picked = (np.arange(len(targets)), targets)
    loss, error = float(-logs[picked].mean()), np.exp(logs)
    error[picked] -= 1
    return loss, error / count


# ------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Lesson:
    """What is learned of one kind of data."""

    begins: str
    """What there is to train on, in words, with places for the numbers of samples and classes."""
    common: Mapping[str, Any]
    """Parameters of both readers, and those of one of them."""
    training: Mapping[str, Any]
    held_out: Mapping[str, Any]
    outputs: int | None
    """Of the network: None: one for each class."""
    see: Callable[[Any], Seen]
    score: Callable[[Float32, Array], float]
    """By the network's outputs for all held-out samples, and what they were to be."""
    figure: str
    """What the score is called."""
    rate: float = 0.02
    epochs: int = 8
    """At most."""
    converged: float = 0.0
    """The mean loss of an epoch below which there is nothing left to see."""


def learn(lesson: Lesson, path: Path, held_out_path: Path, say: Callable[[str], None]) -> float:
    """Train a new network on one dataset; returns its score on another.

    It ends with the first epoch whose mean loss shows that it has converged. The first epoch, every
    second and the last say one line.
    """
    common = {"nthread": 2, "world_size": 1, **lesson.common}
    with (
        AsyncReader({**common, "path": path, **lesson.training}) as reader,
        AsyncReader({**common, "path": held_out_path, **lesson.held_out}) as held_out,
    ):
        say(lesson.begins.format(samples=reader.count, classes=len(reader.classes or ())))
        inputs = lesson.see(next(iter(reader)))[0].shape[1]
        outputs = lesson.outputs or len(reader.classes or ())
        network = Network(inputs, outputs, np.random.default_rng(0))
        reader.seek(epoch=0)
        steps, step, score = lesson.epochs * len(reader), 0, 0.0
        for epoch in range(1, lesson.epochs + 1):
            losses, samples, started = [], 0, time.perf_counter()
            waited = reader.stats().wait_seconds
            for batch in reader:  # the next batch fills while this one is used
                rate = lesson.rate * (1 - step / steps)  # it falls to 0: a calm end
                losses.append(network.learn(*lesson.see(batch), rate))
                samples, step = samples + len(batch), step + 1
            seconds = time.perf_counter() - started
            waiting = (reader.stats().wait_seconds - waited) / seconds
            loss = float(np.mean(losses))
            done = loss < lesson.converged or epoch == lesson.epochs
            if epoch == 1 or epoch % EVERY == 0 or done:
                seen = zip(*map(lesson.see, held_out), strict=True)
                x, y = (np.concatenate(part) for part in seen)
                score = lesson.score(network.scores(x)[0], y)
                say(
                    f"epoch {epoch:2d}/{lesson.epochs}  loss {loss:.2f}  held-out {lesson.figure} "
                    f"{score:.3f}  {samples / seconds:4.0f} samples/s  wait {waiting:3.0%}"
                )
            if loss < lesson.converged:
                say(f"converged, the loss is below {lesson.converged} after {epoch} epochs")
                break
    return score


def _of_images(batch: Any) -> Seen:
    images, labels = batch
    return features(images), labels[:, 0].copy()


def _accuracy(scores: Float32, labels: Array) -> float:
    return float((scores.argmax(axis=1) == labels).mean())


IMAGES: Final = Lesson(
    "now a small network learns {classes} classes, 24 epochs at most; wait: for data",
    {"batchSize": 32, "layout": "NHWC"},
    {"shuffle": True, "postprocess": augment},
    {"last_batch": "short"},
    rate=0.03,
    outputs=None,
    see=_of_images,
    score=_accuracy,
    figure="accuracy",
    epochs=24,
    converged=0.05,
)


def run_demo(sample_data: Path, echo: Callable[[str], None]) -> float:
    """Convert ``sample_data``/train and /test to both formats and train once from each.

    Returns the smaller of the two held-out accuracies.
    """
    from converters import convert

    scores, kinds = dict[str, float](), {"h5": "HDF5", "lmdb": "LMDB"}
    with tempfile.TemporaryDirectory(prefix="asyncreader-demo-") as folder:
        for number, (suffix, kind) in enumerate(kinds.items(), 1):
            echo(f"{number} of {len(kinds)}: convert the images to {kind}, then train on them")

            def say(text: str, suffix: str = suffix) -> None:
                echo(f"{suffix:4s} {text}")

            begun = time.perf_counter()
            train, test = (Path(folder) / f"{split}.{suffix}" for split in ("train", "test"))
            count = convert(sample_data / "train", train, size=IMAGE_SIZE).count
            held_out = convert(sample_data / "test", test, size=IMAGE_SIZE).count
            took = time.perf_counter() - begun
            say(f"{count} images to train on, {held_out} held out, converted in {took:.1f} s")
            scores[suffix] = learn(IMAGES, train, test, say)
    for suffix, score in scores.items():
        echo(f"{suffix:4s} held-out accuracy {score:.3f}")
    return min(scores.values())


# ---------------------------------------------------------------------- other kinds of data


#: Voxels of a volume that are looked at together.
PATCH: Final = (16, 32, 40)
#: Side of the robot's pictures, episodes to train on and held out, and their most rows.
SIDE: Final = 32
DEMOS: Final = (80, 20)
_LONGEST: Final = 40
#: Cells, genes, and kinds of cells.
CELLS, GENES = 2500, 300
KINDS: Final = ("B", "NK", "T", "monocyte")
#: Volumes to train on and held out, and their extent.
VOLUMES: Final = (3, 1)
EXTENT: Final = (32, 64, 80)


# -- sets ----------------------------------------------------------------------------------------


def make_robot(path: Path) -> None:
    """Recordings of a robot as robomimic writes them: a red gripper drives to a blue target.

    ``data/demo_<i>``: ``actions`` (T, 2), ``obs/agentview_image`` (T, 32, 32, 3) uint8, gzip, and
    ``obs/eef_pos`` (T, 2); ``mask/train`` and ``mask/valid``: the splits.
    """
    rng = np.random.default_rng(0)
    names = np.array([f"demo_{number}" for number in range(sum(DEMOS))], "S")
    with h5py.File(path, "w") as file:
        for name in names.astype(str):
            place, target = rng.uniform(0.15, 0.85, (2, 2))
            places, actions = [], []
            for _ in range(_LONGEST):
                places.append(place)
                actions.append(np.clip((target - place) * 8, -1, 1))
                place = place + 0.03 * actions[-1] + rng.normal(0, 0.004, 2)
                if np.abs(target - place).max() < 0.02:
                    break
            demo = file.create_group(f"data/{name}")
            demo.attrs["num_samples"] = len(actions)
            demo["actions"], demo["obs/eef_pos"] = np.array(actions), np.array(places)
            images = np.stack([_image(place, target) for place in places])
            demo.create_dataset("obs/agentview_image", data=images, compression="gzip")
        file["mask/train"], file["mask/valid"] = names[: DEMOS[0]], names[DEMOS[0] :]


def _image(place: Array, target: Array) -> UInt8:
    """The scene from above (H, W, C)."""
    rows, columns = np.mgrid[:SIDE, :SIDE] / SIDE
    image = np.full((SIDE, SIDE, 3), 40.0)
    for channel, (x, y) in ((0, place), (2, target)):
        near = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 0.06**2))
        image[:, :, channel] += 200 * near
    return image.astype(np.uint8)


def make_cells(path: Path) -> None:
    """Counts of genes as AnnData lays them out: ``X`` (cells, genes) in CSR, gzip, and
    ``obs/cell_type``, a categorical column. Cells lie ordered by kind, as they often do."""
    rng = np.random.default_rng(0)
    kind = np.sort(rng.integers(0, len(KINDS), CELLS))
    rates = np.full((len(KINDS), GENES), 0.05)
    for rate in rates:  # genes that cells of one kind use more
        rate[rng.choice(GENES, 40, replace=False)] = 0.4
    counts = rng.poisson(rates[kind] * rng.gamma(4, 0.25, (CELLS, 1))).astype(np.float32)
    row, column = np.nonzero(counts)
    with h5py.File(path, "w") as file:
        x, _ = file.create_group("X"), file.create_group("var")
        cell_type = file.create_group("obs/cell_type")
        x.attrs["encoding-type"], x.attrs["shape"] = "csr_matrix", counts.shape
        cell_type.attrs["encoding-type"] = "categorical"
        for name, values in (("data", counts[row, column]), ("indices", column.astype(np.int32))):
            x.create_dataset(name, data=values, chunks=(4096,), compression="gzip")
        x["indptr"] = np.searchsorted(row, np.arange(CELLS + 1))
        cell_type["codes"] = kind.astype(np.int8)
        cell_type["categories"] = np.array(KINDS, h5py.string_dtype())


def make_volumes(path: Path) -> None:
    """Pictures of several layers, as microscopes make them, and what is a cell there: ``raw`` and
    ``label`` (N, Z, Y, X) uint8, gzip. The light falls off to one side."""
    rng = np.random.default_rng(0)
    z, y, x = np.mgrid[tuple(slice(n) for n in EXTENT)]
    raw = np.zeros((sum(VOLUMES), *EXTENT), np.uint8)
    label = np.zeros_like(raw)
    light = 60 + 40 * x / EXTENT[2]
    for volume, cells in zip(raw, label, strict=True):
        for _ in range(25):
            middle, radius = rng.uniform(0, EXTENT), rng.uniform(4, 9)
            away = 2 * (z - middle[0]) ** 2 + (y - middle[1]) ** 2 + (x - middle[2]) ** 2
            cells |= (away < radius**2).astype(np.uint8)
        bright = light + 80 * cells + rng.normal(0, 30, EXTENT)
        volume[:] = np.clip(bright, 0, 255).astype(np.uint8) & 0xF0
    with h5py.File(path, "w") as file:
        for name, values in (("raw", raw), ("label", label)):
            file.create_dataset(name, data=values, chunks=(1, *PATCH), compression="gzip")


# -- training ------------------------------------------------------------------------------------


def run_kind(kind: str, echo: Callable[[str], None]) -> float:
    """Make the set of a kind in a temporary folder and train on it: the score that it ends with,
    about 1 where all is learned."""
    lesson = LESSONS[kind]
    with tempfile.TemporaryDirectory(prefix="asyncreader-demo-") as folder:
        path = Path(folder) / f"{kind}.h5"
        _MAKE[kind](path)
        size = in_bytes(path.stat().st_size)
        echo(f"{kind}: made a dataset of {size}; now a small network learns it")
        score = learn(lesson, path, path, echo)
    echo(f"held-out {lesson.figure} {score:.3f}")
    return score


def _of_robot(batch: Any) -> Seen:
    """Two images and places; the actions that are the episode's own."""
    image, place, actions = batch.data  # (B, 2, 3, 32, 32), (B, 2, 2), (B, 4, 2)
    count = len(batch)
    sides = [image.mean(axis=axis).reshape(count, -1) / 32 - 1.5 for axis in (3, 4)]
    x = np.concatenate([*sides, place.reshape(count, -1)], axis=1)
    own = np.where(batch.present[2][:, :, None], actions, np.nan)
    return x.astype(np.float32), own.reshape(count, -1).astype(np.float32)


def _r_squared(values: Float32, actions: Array) -> float:
    spread = np.nansum((actions - np.nanmean(actions, axis=0)) ** 2)
    return 1 - float(np.nansum((values - actions) ** 2) / spread)


def _of_cells(batch: Any) -> Seen:
    """Counts (B, genes) as analyses use them: of so many in each cell, and their logarithm."""
    whole = batch.data.sum(axis=1, keepdims=True)
    logs = np.log1p(batch.data * (50 / np.maximum(whole, 1)))
    return logs.astype(np.float32), batch.labels.copy()


def _of_volumes(batch: Any) -> Seen:
    """Of one voxel in eight (voxels, 5): it, the means of boxes around it, and a 1; its label."""
    raw, label = batch.data[0].astype(np.float32) / 255, batch.data[1]
    boxes = [raw, *(_mean_around(raw, radius) for radius in (1, 2, 5))]
    x = np.stack([*((one - 0.4) * 4 for one in boxes), np.ones_like(raw)], axis=-1)
    return x.reshape(-1, x.shape[-1])[::8], label.reshape(-1)[::8].astype(np.int64)


def _dice(scores: Float32, cells: Array) -> float:
    found = scores.argmax(axis=1)
    return 2.0 * int((found & cells).sum()) / float(found.sum() + cells.sum())


def _mean_around(volumes: Float32, radius: int) -> Float32:
    """Means of the boxes of 2 x radius + 1 voxels a side, the outermost voxels repeated."""
    for axis in (1, 2, 3):
        at = np.arange(volumes.shape[axis])
        moved = ((at + shift).clip(0, at[-1]) for shift in range(-radius, radius + 1))
        volumes = np.mean([volumes.take(rows, axis) for rows in moved], axis=0)
    return volumes


_ORDER: Final = np.random.default_rng(1).permutation(CELLS)

_MAKE: Final = {"robot": make_robot, "cells": make_cells, "volumes": make_volumes}

#: What is learned besides images, by the word of --kind.
LESSONS: Final = {
    "robot": Lesson(
        "{samples:,} windows to train on: two images, and the next four actions",
        {
            "data_field": ["obs/agentview_image", "obs/eef_pos", "actions"],
            "window": {"obs/agentview_image": (-1, 1), "obs/eef_pos": (-1, 1), "actions": 4},
            "window_edge": "repeat",
        },
        {"subset": "train", "batch_size": 32, "shuffle": True},
        {"subset": "valid", "batch_size": 64, "last_batch": "short"},
        outputs=8,
        see=_of_robot,
        score=_r_squared,
        figure="actions: R^2",
    ),
    "cells": Lesson(
        f"{{samples:,}} cells to train on, {GENES} genes each",
        {"labels_field": "obs/cell_type", "batch_size": 64},
        {"subset": np.sort(_ORDER[: CELLS * 4 // 5]), "shuffle": "block"},
        {"subset": np.sort(_ORDER[CELLS * 4 // 5 :]), "last_batch": "short"},
        outputs=4,
        see=_of_cells,
        score=_accuracy,
        figure="kinds: accuracy",
    ),
    "volumes": Lesson(
        f"patches of {times(PATCH)} voxels, out of {VOLUMES[0]} volumes of {times(EXTENT)}",
        {
            "data_field": ["raw", "label"],
            "labels_field": None,
            "patch": PATCH,
            "batch_size": 1,
        },
        {"subset": slice(VOLUMES[0]), "epoch_samples": 12, "shuffle": True},
        {"subset": slice(VOLUMES[0], None), "patch_at": "grid"},
        outputs=2,
        see=_of_volumes,
        score=_dice,
        figure="cells: Dice",
    ),
}
