"""Small sets as other fields write them, made for ``asyncreader demo --kind``: 5 MB at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

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
    """Counts of genes as AnnData's ``write_h5ad()`` writes them: ``X`` (cells, genes) in CSR, gzip,
    and ``obs/cell_type``, a categorical column. Cells lie ordered by kind, as they often do."""
    rng = np.random.default_rng(0)
    kind = np.sort(rng.integers(0, len(KINDS), CELLS))
    rates = np.full((len(KINDS), GENES), 0.05)
    for number in range(len(KINDS)):  # genes that cells of one kind use more
        rates[number, rng.choice(GENES, 40, replace=False)] = 0.4
    depth = rng.gamma(4, 0.25, (CELLS, 1))
    counts = rng.poisson(rates[kind] * depth).astype(np.float32)
    row, column = np.nonzero(counts)
    with h5py.File(path, "w") as file:
        _encoding(file, "anndata", "0.1.0")
        x = file.create_group("X")
        _encoding(x, "csr_matrix", "0.1.0")
        x.attrs["shape"] = np.array(counts.shape)
        x.create_dataset("data", data=counts[row, column], chunks=(4096,), compression="gzip")
        x.create_dataset(
            "indices", data=column.astype(np.int32), chunks=(4096,), compression="gzip"
        )
        x["indptr"] = np.searchsorted(row, np.arange(CELLS + 1)).astype(np.int64)
        for name, prefix, count in (("obs", "CELL", CELLS), ("var", "GENE", GENES)):
            table = file.create_group(name)
            _encoding(table, "dataframe", "0.2.0")
            table.attrs["_index"] = "_index"
            columns = ["cell_type"] if name == "obs" else []
            table.attrs.create("column-order", columns, dtype=h5py.string_dtype())
            names = np.array([f"{prefix}{i}" for i in range(count)], object)
            table.create_dataset("_index", data=names, dtype=h5py.string_dtype())
            _encoding(table["_index"], "string-array", "0.2.0")
        column_of = file["obs"].create_group("cell_type")
        _encoding(column_of, "categorical", "0.2.0")
        column_of.attrs["ordered"] = False
        column_of["codes"] = kind.astype(np.int8)
        _encoding(column_of["codes"], "array", "0.2.0")
        names = np.array(KINDS, object)
        column_of.create_dataset("categories", data=names, dtype=h5py.string_dtype())
        _encoding(column_of["categories"], "string-array", "0.2.0")


def _encoding(item: Any, kind: str, version: str) -> None:
    item.attrs["encoding-type"], item.attrs["encoding-version"] = kind, version


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
