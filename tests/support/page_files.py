"""The files that blocks of pages read, as their programs write them: ``<!-- setup: NAME -->`` above
a block calls the function of that name in the working folder of the page. What it returns are names
that the blocks of the page may use."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anndata_files
import h5py
import numpy as np

from asyncreader.tools.demo import make_volumes

Names = Mapping[str, Any] | None


def robot() -> None:
    """``robot.hdf5`` as robomimic writes it: twelve recordings, six of them in the split train."""
    rng = np.random.default_rng(0)
    with h5py.File("robot.hdf5", "w") as file:
        file.create_group("data").attrs["total"] = sum(range(40, 52))
        for i in range(12):
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = steps = 40 + i
            demo["obs/agentview_image"] = rng.integers(0, 255, (steps, 84, 84, 3), np.uint8)
            demo["obs/qpos"] = rng.normal(size=(steps, 9))
            demo["actions"] = rng.normal(size=(steps, 7))
        file["mask/train"] = np.array([f"demo_{i}" for i in range(0, 12, 2)], "S")
        file["mask/valid"] = np.array([f"demo_{i}" for i in range(1, 12, 2)], "S")


def maze() -> None:
    """``maze.hdf5`` as D4RL has it: 500 rows, of which three episodes end at their goal."""
    with h5py.File("maze.hdf5", "w") as file:
        file["observations"] = np.arange(2000.0).reshape(500, 4)
        file["actions"], file["rewards"] = np.zeros((500, 2), "f4"), np.ones(500, "f4")
        file["terminals"] = np.arange(500) % 200 == 99
        file["timeouts"] = np.arange(500) % 200 == 199


def minari() -> None:
    """``main_data.hdf5`` as Minari writes it: five episodes of 30 actions and 31 observations."""
    rng = np.random.default_rng(0)
    with h5py.File("main_data.hdf5", "w") as file:
        for i in range(5):
            episode = file.create_group(f"episode_{i}")
            episode["observations"] = rng.normal(size=(31, 4))
            episode["actions"] = rng.normal(size=(30, 2))


def aloha() -> None:
    """``episode_0.hdf5`` to ``episode_3.hdf5`` as ACT writes them."""
    rng = np.random.default_rng(0)
    for i in range(4):
        with h5py.File(f"episode_{i}.hdf5", "w") as file:
            file["observations/qpos"] = rng.normal(size=(50 + i, 14))
            file["action"] = rng.normal(size=(50 + i, 14))
            file["observations/images/top"] = rng.integers(0, 255, (50 + i, 48, 64, 3), np.uint8)


def push() -> None:
    """``push.zarr`` as Diffusion Policy's replay buffers are: three episodes of 30 rows."""
    import zarr

    rng = np.random.default_rng(0)
    root = zarr.open_group("push.zarr", mode="w")
    for name, values in (
        ("data/img", rng.integers(0, 255, (90, 32, 32, 3), np.uint8)),
        ("data/action", rng.normal(size=(90, 2)).astype(np.float32)),
        ("meta/episode_ends", np.array([30, 60, 90])),
    ):
        stored = root.create_array(name, shape=values.shape, dtype=values.dtype)
        stored[:] = values


def well() -> None:
    """``gas.hdf5`` as The Well has it: fields of (trajectory, time, ...)."""
    rng = np.random.default_rng(0)
    with h5py.File("gas.hdf5", "w") as file:
        file["t0_fields/density"] = rng.normal(size=(6, 25, 32, 32)).astype("f4")
        file["t1_fields/velocity"] = rng.normal(size=(6, 25, 32, 32, 2)).astype("f4")


def series() -> Names:
    """``series.h5``: 5,000 rows of three numbers."""
    values = np.cumsum(np.random.default_rng(0).normal(size=(5000, 3)), axis=0)
    with h5py.File("series.h5", "w") as file:
        file["values"] = values
    return {"series": values}


def tasks() -> None:
    """``tasks.hdf5``: six recordings with a task, a success, and a reward for each row."""
    with h5py.File("tasks.hdf5", "w") as file:
        for i in range(6):
            demo = file.create_group(f"data/demo_{i}")
            demo["actions"], demo["rewards"] = np.ones((20, 7)), np.linspace(0, 1, 20)
            demo["success"], demo.attrs["task"] = i % 2, ["pour", "open"][i % 2]


def cells() -> Names:
    """``cells.h5ad`` as AnnData's write_h5ad() writes it: 600 cells, 50 genes, ``obs/cell_type``,
    ``obs/donor`` and ``obs/total_counts``."""
    genes, count = 50, 600
    counts = np.random.default_rng(0).poisson(0.2, (count, genes)).astype(np.float32)
    row, column = np.nonzero(counts)

    with h5py.File("cells.h5ad", "w") as file:
        anndata_files.mark(file, "anndata")
        parts = counts[row, column], column.astype(np.int32), np.searchsorted(row, range(count + 1))
        anndata_files.put(file.create_group("X"), parts, counts.shape, compression="gzip")
        obs = ["cell_type", "donor", "total_counts"]
        anndata_files.frame(file, "obs", [f"CELL{i}" for i in range(count)], obs)
        anndata_files.frame(file, "var", [f"GENE{i}" for i in range(genes)])
        number = np.arange(count)
        anndata_files.categorical(file["obs"], "cell_type", number % 3, ["B", "NK", "T"])
        anndata_files.categorical(file["obs"], "donor", number // 200, ["d1", "d2", "d3"])
        anndata_files.mark(file["obs"].create_dataset("total_counts", data=counts.sum(1)), "array")
    return {"counts": counts}


def jets() -> Names:
    """``jets.h5`` as salt and ftag read it: jets, and up to 40 tracks of each."""
    members = [("pt", "f4"), ("eta", "f2"), ("flavour", "i8"), ("valid", "?"), ("name", "S8")]
    table = np.zeros(1000, [*members, ("cov", "f4", (3, 3))])
    table["pt"] = np.random.default_rng(0).normal(size=1000)
    table["flavour"] = np.arange(1000) % 3
    with h5py.File("jets.h5", "w") as file:
        file["jets"] = table
        tracks = np.zeros((1000, 40), table.dtype)
        file.create_dataset("tracks", data=tracks, chunks=(100, 40), compression="gzip")
    return {"jets": table}


def events() -> Names:
    """``events.h5``: hits of 200 events by offsets, and ids in HDF5's own variable length."""
    rng = np.random.default_rng(0)
    count = rng.integers(0, 30, 200)
    hits, starts = rng.normal(size=(count.sum(), 3)), np.concatenate([[0], np.cumsum(count)])
    with h5py.File("events.h5", "w") as file:
        file.create_dataset("hits", data=hits, chunks=(64, 3), compression="gzip")
        file["hits_offsets"] = starts
        ids = file.create_dataset("ids", (200,), h5py.vlen_dtype(np.int32))
        for i, n in enumerate(count):
            ids[i] = np.arange(n)
        file["labels"] = count > 15
    return {"count": count, "hits": hits, "offsets": starts}


def slides() -> None:
    """``slide_0.h5`` to ``slide_5.h5`` as CLAM and TRIDENT write the patches of a slide."""
    rng = np.random.default_rng(0)
    for i in range(6):
        with h5py.File(f"slide_{i}.h5", "w") as file:
            file["features"] = rng.normal(size=(50 + i, 16)).astype(np.float32)
            file["coords"] = rng.integers(0, 1000, (50 + i, 2))


def ovules() -> None:
    """``ovule_0.h5`` and ``ovule_1.h5`` as pytorch-3dunet reads them: ``raw`` and ``label``."""
    rng = np.random.default_rng(0)
    for i, depth in enumerate((40, 56)):
        with h5py.File(f"ovule_{i}.h5", "w") as file:
            for name, most in (("raw", 255), ("label", 3)):
                values = rng.integers(0, most, (depth, 72, 80), np.uint8)
                file.create_dataset(name, data=values, chunks=(16, 32, 32), compression="gzip")


def eeg() -> None:
    """``eeg.h5``: trials of 22 channels, their classes, and tokens of one length."""
    rng = np.random.default_rng(0)
    with h5py.File("eeg.h5", "w") as file:
        trials = rng.normal(size=(300, 22, 250)).astype(np.float32)
        file.create_dataset("x", data=trials, chunks=(10, 22, 250))
        file["y"] = rng.integers(0, 4, 300)
        file["tokens"] = rng.integers(0, 50_000, (300, 128), np.uint16)


def wind() -> None:
    """``wind.h5``: 720 hours of wind at 400 sites."""
    with h5py.File("wind.h5", "w") as file:
        file["windspeed"] = np.random.default_rng(0).normal(size=(720, 400))


def weather() -> None:
    """``weather.nc``: temperatures as CF packs them, with none over the poles."""
    rng = np.random.default_rng(0)
    packed = rng.integers(-3000, 3000, (64, 90, 180)).astype(np.int16)
    packed[:, :2] = -32767
    with h5py.File("weather.nc", "w") as file:
        file.create_dataset("t2m", data=packed, chunks=(1, 90, 180), compression="gzip")
        said = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32767)}
        file["t2m"].attrs.update(said)


def parts() -> None:
    """``parts``: a folder with train/ and val/, and a folder for each class in them."""
    for number, path in enumerate(sorted(Path("photos").glob("*/*"))):
        if number % 2 == 0:
            part = Path("parts", "val" if number % 3 == 0 else "train", path.parent.name)
            part.mkdir(parents=True, exist_ok=True)
            (part / path.name).write_bytes(path.read_bytes())


def volumes() -> None:
    """``volumes.h5``: four volumes and their labels in two arrays."""
    make_volumes(Path("volumes.h5"))


SETUPS: Final[Mapping[str, Callable[[], Names]]] = {
    made.__name__: made
    for made in (robot, maze, minari, aloha, push, well, series, tasks, cells, jets, events)
} | {made.__name__: made for made in (slides, ovules, eeg, wind, weather, parts, volumes)}
