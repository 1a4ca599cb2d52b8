"""The training runs behind ``asyncreader demo --kind``, on small sets as other fields write them:
actions of a robot, cells, volumes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from ..reader import AsyncReader
from ..system.array_types import Array
from ..system.text import in_bytes, times
from .demo import Floats, Network, epochs

_RATE: Final = 0.02
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


@dataclass(frozen=True)
class Seen:
    """What the network sees of a batch: features (B, inputs), and the classes (B,) or numbers
    (B, outputs) to learn. ``counts``: 1 for numbers that count, 0 for others."""

    x: Floats
    y: Array
    counts: Floats | None = None


@dataclass(frozen=True)
class Lesson:
    """What is learned of one kind of set."""

    make: Callable[[Path], None]
    begins: str
    """What there is to train on, in words, with a place for the number of samples."""
    common: Mapping[str, Any]
    """Parameters of both readers, and those of one of them."""
    training: Mapping[str, Any]
    held_out: Mapping[str, Any]
    epochs: int
    outputs: int
    see: Callable[[Any], Seen]
    parts: Callable[[Floats, Seen], tuple[float, float]]
    """Of the network's outputs for held-out samples: what is summed, and then divided."""
    figure: str
    """What the quotient is called."""


# -- sets ----------------------------------------------------------------------------------------


def make_robot(path: Path) -> None:
    """Recordings of a robot as robomimic writes them: a red gripper drives to a blue target.

    ``data/demo_<i>``: ``actions`` (T, 2), ``obs/agentview_image`` (T, 32, 32, 3) uint8, gzip, and
    ``obs/eef_pos`` (T, 2); ``mask/train`` and ``mask/valid``: the splits.
    """
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(sum(DEMOS)):
            place, target = rng.uniform(0.15, 0.85, (2, 2))
            places, actions = [], []
            for _ in range(_LONGEST):
                action = np.clip((target - place) * 8, -1, 1)
                places.append(place)
                actions.append(action)
                place = place + 0.03 * action + rng.normal(0, 0.004, 2)
                if np.abs(target - place).max() < 0.02:
                    break
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = len(actions)
            demo["actions"] = np.array(actions)
            demo["obs/eef_pos"] = np.array(places)
            pictures = np.stack([_picture(one, target) for one in places])
            demo.create_dataset("obs/agentview_image", data=pictures, compression="gzip")
        names = np.array([f"demo_{i}" for i in range(sum(DEMOS))], "S")
        file["mask/train"], file["mask/valid"] = names[: DEMOS[0]], names[DEMOS[0] :]


def _picture(place: NDArray[Any], target: NDArray[Any]) -> NDArray[np.uint8]:
    """The scene from above (H, W, C)."""
    rows, columns = np.mgrid[:SIDE, :SIDE] / SIDE
    picture = np.full((SIDE, SIDE, 3), 40.0)
    for channel, (x, y) in ((0, place), (2, target)):
        near = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 0.06**2))
        picture[:, :, channel] += 200 * near
    return picture.astype(np.uint8)


def make_cells(path: Path) -> None:
    """Counts of genes as AnnData lays them out: ``X`` (cells, genes) in CSR, gzip, and
    ``obs/cell_type``, a categorical column. Cells lie ordered by kind, as they often do."""
    rng = np.random.default_rng(0)
    kind = np.sort(rng.integers(0, len(KINDS), CELLS))
    rates = np.full((len(KINDS), GENES), 0.05)
    for number in range(len(KINDS)):  # genes that cells of one kind use more
        rates[number, rng.choice(GENES, 40, replace=False)] = 0.4
    depth = rng.gamma(4, 0.25, (CELLS, 1))
    counts = rng.poisson(rates[kind] * depth).astype(np.float32)
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
    for number in range(len(raw)):
        for _ in range(25):
            middle = rng.uniform(0, EXTENT)
            radius = rng.uniform(4, 9)
            away = 2 * (z - middle[0]) ** 2 + (y - middle[1]) ** 2 + (x - middle[2]) ** 2
            label[number] |= (away < radius**2).astype(np.uint8)
        light = 60 + 40 * x / EXTENT[2]
        bright = light + 80 * label[number] + rng.normal(0, 30, EXTENT)
        raw[number] = np.clip(bright, 0, 255).astype(np.uint8) & 0xF0
    with h5py.File(path, "w") as file:
        for name, values in (("raw", raw), ("label", label)):
            chunks = (1, 16, 32, 40)
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip")


# -- training ------------------------------------------------------------------------------------


def run_kind(kind: str, echo: Callable[[str], None]) -> float:
    """Make the set of a kind in a temporary folder and train on it: the figure that it ends with,
    about 1 where all is learned."""
    lesson = LESSONS[kind]
    with tempfile.TemporaryDirectory(prefix="asyncreader-demo-") as folder:
        path = Path(folder) / f"{kind}.h5"
        lesson.make(path)
        size = in_bytes(path.stat().st_size)
        echo(f"{kind}: made a dataset of {size}; now a small network learns it")
        common = {"path": path, "world_size": 1, "nthread": 2, **lesson.common}
        with (
            AsyncReader(common, **lesson.training) as reader,
            AsyncReader(common, **lesson.held_out) as held_out,
        ):
            echo(lesson.begins.format(reader.count))
            network = _train(lesson, reader, echo)
            seen = map(lesson.see, held_out)
            pairs = [lesson.parts(network.scores(one.x)[0], one) for one in seen]
    above, below = np.sum(pairs, axis=0).tolist()
    score = above / below
    echo(f"{lesson.figure} {score:.3f}")
    return float(score)


def _train(lesson: Lesson, reader: AsyncReader[Any, Any], echo: Callable[[str], None]) -> Network:
    """Train a new network for the epochs of a lesson, a line each."""
    seen = lesson.see(next(iter(reader)))
    network = Network(seen.x.shape[1], lesson.outputs, np.random.default_rng(0))
    reader.seek(epoch=0)

    def step(batch: Any, rate: float) -> float:
        seen = lesson.see(batch)
        if seen.counts is None:
            return network.learn_classes(seen.x, seen.y, rate)
        return network.learn_values(seen.x, seen.y, seen.counts, rate)

    for epoch, loss, speed in epochs(reader, lesson.epochs, _RATE, step):
        echo(f"epoch {epoch}/{lesson.epochs}  loss {loss:.3f}  {speed}")
    return network


def _of_robot(batch: Any) -> Seen:
    """Two images and places; the actions, and which of them are the episode's own."""
    image, place, actions = batch.data  # (B, 2, 3, 32, 32), (B, 2, 2), (B, 4, 2)
    count = len(batch)
    sides = [image.mean(axis=axis).reshape(count, -1) / 32 - 1.5 for axis in (3, 4)]
    x = np.concatenate([*sides, place.reshape(count, -1)], axis=1)
    own = np.repeat(batch.present[2], actions.shape[2], axis=1)
    return Seen(*(part.astype(np.float32) for part in (x, actions.reshape(count, -1), own)))


def _r_squared(values: Floats, seen: Seen) -> tuple[float, float]:
    """The spread of the actions less the squares of what is wrong, and the spread."""
    assert seen.counts is not None
    spread = float(((seen.y - seen.y.mean(axis=0)) ** 2 * seen.counts).sum())
    return spread - float((((values - seen.y) * seen.counts) ** 2).sum()), spread


def _of_cells(batch: Any) -> Seen:
    """Counts (B, genes) as analyses use them: of so many in each cell, and their logarithm."""
    whole = batch.data.sum(axis=1, keepdims=True)
    logs = np.log1p(batch.data * (50 / np.maximum(whole, 1)))
    return Seen(np.asarray(logs, dtype=np.float32), batch.labels)


def _accuracy(scores: Floats, seen: Seen) -> tuple[float, float]:
    return float((scores.argmax(axis=1) == seen.y).sum()), float(len(seen.y))


def _of_volumes(batch: Any) -> Seen:
    """Of one voxel in eight (voxels, 5): it, the means of boxes around it, and a 1; its label."""
    raw, label = batch.data
    boxes = [raw, *(_mean_around(raw, radius) for radius in (1, 2, 5))]
    x = np.stack([*((one - 0.4) * 4 for one in boxes), np.ones_like(raw)], axis=-1)
    x, y = x.reshape(-1, x.shape[-1])[::8], label.reshape(-1)[::8]
    return Seen(x.astype(np.float32), y.astype(np.int64))


def _mean_around(volumes: Floats, radius: int) -> Floats:
    """Means of the boxes of 2 x radius + 1 voxels a side, the outermost voxels repeated."""
    for axis in (1, 2, 3):
        pad = [(0, 0)] * 4
        pad[axis] = radius, radius
        boxes = np.lib.stride_tricks.sliding_window_view(
            np.pad(volumes, pad, "edge"), 2 * radius + 1, axis=axis
        )
        volumes = boxes.mean(axis=-1, dtype=np.float64).astype(np.float32)
    return volumes


def _dice(scores: Floats, seen: Seen) -> tuple[float, float]:
    found = scores.argmax(axis=1)
    return 2.0 * int((found & seen.y).sum()), float(found.sum() + seen.y.sum())


_ORDER: Final = np.random.default_rng(1).permutation(CELLS)

#: What there is to train on besides images, by the word of --kind.
LESSONS: Final = {
    "robot": Lesson(
        make_robot,
        "{:,} windows to train on: two images, and the next four actions",
        {
            "data_field": {
                "image": "obs/agentview_image",
                "place": "obs/eef_pos",
                "actions": "actions",
            },
            "window": {"image": (-1, 1), "place": (-1, 1), "actions": 4},
            "window_edge": "repeat",
        },
        {"subset": "train", "batch_size": 32, "shuffle": True},
        {"subset": "valid", "batch_size": 64, "last_batch": "short"},
        epochs=8,
        outputs=8,
        see=_of_robot,
        parts=_r_squared,
        figure="actions of held-out episodes: R^2",
    ),
    "cells": Lesson(
        make_cells,
        f"{{:,}} cells to train on, {GENES} genes each",
        {"labels_field": "obs/cell_type", "batch_size": 64},
        {"subset": np.sort(_ORDER[: CELLS * 4 // 5]), "shuffle": "block"},
        {"subset": np.sort(_ORDER[CELLS * 4 // 5 :]), "last_batch": "short"},
        epochs=4,
        outputs=4,
        see=_of_cells,
        parts=_accuracy,
        figure="kinds of held-out cells: accuracy",
    ),
    "volumes": Lesson(
        make_volumes,
        f"patches of {times(PATCH)} voxels, out of {VOLUMES[0]} volumes of {times(EXTENT)}",
        {
            "data_field": ["raw", "label"],
            "labels_field": None,
            "dtype": {"raw": "float32"},
            "scale": {"raw": 1 / 255},
            "patch": PATCH,
            "batch_size": 1,
        },
        {"subset": slice(VOLUMES[0]), "epoch_samples": 12, "shuffle": True},
        {"subset": slice(VOLUMES[0], None), "patch_at": "grid"},
        epochs=8,
        outputs=2,
        see=_of_volumes,
        parts=_dice,
        figure="cells in held-out volumes: Dice",
    ),
}
