"""The training runs behind ``asyncreader demo --kind``: actions of a robot, cells, volumes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from ..batch import Array
from ..reader import AsyncReader
from ..system.text import in_bytes, times
from .demo import Floats, Network
from .demo_sets import CELLS, EXTENT, GENES, VOLUMES, make_cells, make_robot, make_volumes

#: What there is to train on besides pictures.
Kind: TypeAlias = Literal["robot", "cells", "volumes"]
#: What says how a run goes on.
Echo: TypeAlias = Callable[[str], None]

_RATE: Final = 0.02
#: Voxels of a volume that are looked at together.
PATCH: Final = (16, 32, 40)


def run_kind(kind: Kind, echo: Echo) -> float:
    """Make the set of a kind in a temporary folder and train on it: the figure that it ends with,
    about 1 where all is learned."""
    make, suffix, learn = {
        "robot": (make_robot, "hdf5", _learn_robot),
        "cells": (make_cells, "h5ad", _learn_cells),
        "volumes": (make_volumes, "h5", _learn_volumes),
    }[kind]
    with tempfile.TemporaryDirectory(prefix="asyncreader-demo-") as folder:
        path = Path(folder) / f"{kind}.{suffix}"
        make(path)
        size = in_bytes(path.stat().st_size)
        echo(f"{kind}: made a dataset of {size}; now a small network learns it")
        return learn(path, echo)


def _epochs(
    reader: AsyncReader[Any, Any], count: int, step: Callable[[Any, float], float], echo: Echo
) -> None:
    """Train for so many epochs: ``step`` is given a batch and the rate, and returns the loss."""
    steps, done = count * len(reader), 0
    for epoch in range(1, count + 1):
        losses, samples, started = [], 0, time.perf_counter()
        waited = reader.stats().wait_seconds
        for batch in reader:
            # the rate falls to 0, so that the end is calm
            losses.append(step(batch, _RATE * (1 - done / steps)))
            samples += len(batch)
            done += 1
        seconds = time.perf_counter() - started
        waiting = reader.stats().wait_seconds - waited
        echo(
            f"epoch {epoch}/{count}  loss {np.mean(losses):.3f}  {samples / seconds:6.0f} samples/s"
            f"  wait {waiting / seconds:3.0%}"
        )


# -- a robot's actions -----------------------------------------------------------------------------


def _learn_robot(path: Path, echo: Echo) -> float:
    """Behaviour cloning: the next four actions, from two pictures and places. Returns R^2."""
    common: dict[str, Any] = {
        "path": path,
        "data_field": {
            "image": "obs/agentview_image",
            "place": "obs/eef_pos",
            "actions": "actions",
        },
        "window": {"image": (-1, 1), "place": (-1, 1), "actions": 4},
        "window_edge": "repeat",
        "world_size": 1,
        "nthread": 2,
    }
    network: Network | None = None

    def step(batch: Any, rate: float) -> float:
        nonlocal network
        x, y, counts = _of_robot(batch)
        if network is None:
            network = Network(x.shape[1], y.shape[1], np.random.default_rng(0))
        return network.learn_values(x, y, counts, rate)

    with (
        AsyncReader(common, subset="train", batch_size=32, shuffle=True) as reader,
        AsyncReader(common, subset="valid", batch_size=64, last_batch="short") as held_out,
    ):
        echo(f"{reader.count:,} windows to train on: two images, and the next four actions")
        _epochs(reader, 8, step, echo)
        assert network is not None
        wrong = spread = 0.0
        for batch in held_out:
            x, y, counts = _of_robot(batch)
            wrong += float((((network.scores(x)[0] - y) * counts) ** 2).sum())
            spread += float(((y - y.mean(axis=0)) ** 2 * counts).sum())
    score = 1 - wrong / spread
    echo(f"actions of held-out episodes: R^2 {score:.3f}")
    return score


def _of_robot(batch: Any) -> tuple[Floats, Floats, Floats]:
    """What the network sees of a batch, the actions, and which of them are the episode's own."""
    image, place, actions = batch.data  # (B, 2, 3, 32, 32), (B, 2, 2), (B, 4, 2)
    count = len(batch)
    sides = [image.mean(axis=axis).reshape(count, -1) / 32 - 1.5 for axis in (3, 4)]
    x = np.concatenate([*sides, place.reshape(count, -1)], axis=1)
    real = np.repeat(batch.present[2], actions.shape[2], axis=1)
    return (
        x.astype(np.float32),
        actions.reshape(count, -1).astype(np.float32),
        real.astype(np.float32),
    )


# -- kinds of cells --------------------------------------------------------------------------------


def _learn_cells(path: Path, echo: Echo) -> float:
    """The kind of a cell, from the counts of its genes. Returns the accuracy."""
    common: dict[str, Any] = {
        "path": path,
        "labels_field": "obs/cell_type",
        "world_size": 1,
        "nthread": 2,
    }
    order = np.random.default_rng(1).permutation(CELLS)
    training, testing = np.sort(order[: CELLS * 4 // 5]), np.sort(order[CELLS * 4 // 5 :])
    network: Network | None = None

    def step(batch: Any, rate: float) -> float:
        nonlocal network
        x = _of_cells(batch.data)
        if network is None:
            network = Network(x.shape[1], len(reader.classes or ()), np.random.default_rng(0))
        return network.learn_classes(x, batch.labels, rate)

    with (
        AsyncReader(common, subset=training, batch_size=64, shuffle="block") as reader,
        AsyncReader(common, subset=testing, batch_size=64, last_batch="short") as held_out,
    ):
        echo(f"{reader.count:,} cells to train on, {GENES} genes each")
        _epochs(reader, 4, step, echo)
        assert network is not None
        right = 0
        for data, labels in held_out:
            right += int((network.scores(_of_cells(data))[0].argmax(axis=1) == labels).sum())
    score = right / len(testing)
    echo(f"kinds of held-out cells: accuracy {score:.3f}")
    return score


def _of_cells(counts: Array) -> Floats:
    """Counts (B, genes) as analyses use them: of so many in each cell, and their logarithm."""
    whole = counts.sum(axis=1, keepdims=True)
    logs = np.log1p(counts * (50 / np.maximum(whole, 1)))
    return np.asarray(logs, dtype=np.float32)


# -- volumes ---------------------------------------------------------------------------------------


def _learn_volumes(path: Path, echo: Echo) -> float:
    """Which voxels are in a cell, from random patches; tried on a grid of them. Returns the Dice
    coefficient."""
    common: dict[str, Any] = {
        "path": path,
        "data_field": ["raw", "label"],
        "labels_field": None,
        "dtype": {"raw": "float32"},
        "scale": {"raw": 1 / 255},
        "patch": PATCH,
        "world_size": 1,
        "nthread": 2,
    }
    network: Network | None = None

    def step(batch: Any, rate: float) -> float:
        nonlocal network
        x, y = _of_volumes(*batch.data)
        if network is None:
            network = Network(x.shape[1], 2, np.random.default_rng(0))
        return network.learn_classes(x[::8], y[::8], rate)

    with (
        AsyncReader(
            common, subset=slice(VOLUMES[0]), epoch_samples=12, batch_size=1, shuffle=True
        ) as reader,
        AsyncReader(
            common, subset=slice(VOLUMES[0], None), patch_at="grid", batch_size=1
        ) as held_out,
    ):
        echo(f"patches of {times(PATCH)} voxels, out of {VOLUMES[0]} volumes of {times(EXTENT)}")
        _epochs(reader, 8, step, echo)
        assert network is not None
        both = each = 0
        for data, _ in held_out:
            x, y = _of_volumes(*data)
            found = network.scores(x)[0].argmax(axis=1)
            both += int((found & y).sum())
            each += int(found.sum() + y.sum())
    score = 2 * both / each
    echo(f"cells in held-out volumes: Dice {score:.3f}")
    return score


def _of_volumes(raw: Floats, label: Array) -> tuple[Floats, Any]:
    """What the network sees of each voxel, (voxels, 5): it, the means of boxes around it, and a 1;
    and its label."""
    seen = [raw, *(_mean_around(raw, radius) for radius in (1, 2, 5))]
    x = np.stack([*((one - 0.4) * 4 for one in seen), np.ones_like(raw)], axis=-1)
    return x.reshape(-1, x.shape[-1]).astype(np.float32), label.reshape(-1).astype(np.int64)


def _mean_around(volumes: Floats, radius: int) -> Floats:
    """Means of the boxes of 2 x radius + 1 voxels a side, the outermost voxels repeated."""
    for axis in (1, 2, 3):
        pad = [(0, 0)] * 4
        pad[axis] = radius + 1, radius
        sums = np.cumsum(np.pad(volumes, pad, "edge"), axis=axis, dtype=np.float64)
        size = volumes.shape[axis]
        high = np.take(sums, np.arange(size) + 2 * radius + 1, axis=axis)
        volumes = ((high - np.take(sums, np.arange(size), axis=axis)) / (2 * radius + 1)).astype(
            np.float32
        )
    return volumes
