"""HDF5 of other fields: windows of episodes, sparse rows, structured rows, patches of volumes,
groups that are opened, and an index of up to 100 million rows.

``python tests/benchmarks/fields.py DIR`` makes its files in DIR (about 6 GB), and measures
asyncreader, bare inflating of the chunks that are touched, and what users run today: robomimic's
SequenceDataset, AnnData and scDataset, h5py, pytorch-3dunet's LazyHDF5Dataset. Those that are not
installed are named as not run (robomimic and pytorch-3dunet may lie on PYTHONPATH).
``--only NAME`` runs some of: robot, cells, jets, patches, opening, index.
"""

import contextlib
import importlib
import io
import sys
import types
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from harness import Case, Contender, Goal, Setting, Unit, ours
from inputs import CAMERAS, CELLS, ENDS, GROUPS, JETS, ROBOT, VOLUMES
from ours import Chunks, Ours, opened, params_of
from player import Batches, Spec, Threads, With, timed

#: Steps of a window, sides of a patch, how far those of a grid are apart, members of a jet.
WINDOW, PATCH, STEP = 16, 64, 32
MEMBERS = [f"v{i}" for i in range(20)]
ORDERS = (True, "block")
FASTEST = "asyncreader, True"


def orders(path: Any, **params: Any) -> list[Contender]:
    """Readers in both orders."""
    return [ours(f"asyncreader, {shuffle}", path, shuffle=shuffle, **params) for shuffle in ORDERS]


def bare(spec: Spec, one: Callable[[np.random.Generator], None]) -> Threads:
    """Threads that do ``one`` sample after the other."""
    rngs = [np.random.default_rng(thread) for thread in range(spec["workers"])]

    def work(thread: int) -> int:
        one(rngs[thread])
        return 1

    return Threads(spec, work)


def torch_loader(spec: Spec, stored: Any, **options: Any) -> Batches:
    """Batches of a DataLoader over a dataset of another library, without end."""
    from torch.utils.data import DataLoader

    workers = spec["workers"]
    ahead = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    loader = DataLoader(stored, num_workers=workers, **ahead, **options)
    while True:
        yield from loader


# -- windows of a robot's episodes -----------------------------------------------------------------


def robomimic(spec: Spec) -> Batches:
    """robomimic's own loader; in memory ("cache") of a tenth of the episodes, for all take 27 GB.
    Its module for language models is not imported: it loads one."""
    name = "robomimic.utils.lang_utils"
    sys.modules.setdefault(name, types.ModuleType(name))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        module = importlib.import_module("robomimic.utils.dataset")
        stored = module.SequenceDataset(
            spec["path"], (*CAMERAS, "robot0_eef_pos"), ("actions",), ("actions",),
            {"actions": {"normalization": None}}, seq_length=WINDOW, pad_seq_length=False,
            hdf5_cache_mode=spec["cache"], hdf5_use_swmr=False, load_next_obs=False,
            demo_limit=spec["episodes"] // 10 if spec["cache"] else None,
        )  # fmt: skip
        stored.get_action_normalization_stats()
        stored.close_and_delete_hdf5_handle()
    for batch in torch_loader(spec, stored, batch_size=spec["batch"], shuffle=True):
        yield batch["actions"]


def robot_chunks(spec: Spec) -> Threads:
    """Bare inflating of what random windows of both cameras touch, of some of the episodes."""
    episodes = range(min(20, spec["episodes"]))
    chunks = [
        [Chunks(spec["path"], f"data/demo_{i}/obs/{camera}") for camera in CAMERAS]
        for i in episodes
    ]

    def one(rng: np.random.Generator) -> None:
        cameras = chunks[rng.integers(len(chunks))]
        start = int(rng.integers(cameras[0].shape[0] - WINDOW + 1))
        for camera in cameras:
            camera.inflate((start, start + WINDOW))

    return bare(spec, one)


def robot_rows(spec: Spec) -> Batches:
    """Plain rows of the file's bytes, counted as windows of as many bytes: one for two rows."""
    row = WINDOW * 84 * 84 * 3
    stored = np.memmap(spec["path"], np.uint8, "r")
    data = stored[: stored.size // row * row].reshape(-1, row)
    params = {"data": data, "batch_size": 2 * spec["batch"]}
    for batch in Ours({**spec, "params": params}):
        yield range(len(batch) // 2)


def robot(packed: str) -> Case:
    """Windows of 16 steps of two cameras, 200 x 200 steps."""
    spec = {"path": ROBOT[packed], "episodes": ROBOT[packed].sizes["episodes"], "cache": None}
    camera_fields = {"a": f"obs/{CAMERAS[0]}", "b": f"obs/{CAMERAS[1]}", "p": "obs/robot0_eef_pos"}
    contenders = orders(
        spec["path"], data_field={**camera_fields, "actions": "actions"}, window=WINDOW
    )
    if packed == "gzip":
        contenders.append(Contender("bare inflating", "fields.robot_chunks", spec))
    else:
        contenders.append(Contender("plain rows, by bytes", "fields.robot_rows", spec, ours=True))
        memory = {**spec, "cache": "all"}
        contenders.append(Contender("robomimic, in memory", "fields.robomimic", memory, "torch"))
    contenders.append(Contender("robomimic", "fields.robomimic", spec, "torch"))
    goals = [Goal(FASTEST, other.name) for other in contenders[2:]]
    goals.append(Goal("asyncreader, block", "robomimic"))
    setting, unit = Setting(batch=16), Unit("windows/s")
    return Case(f"robot, {packed}", "robot", contenders, goals, setting, unit)


# -- cells -----------------------------------------------------------------------------------------


def entropy(labels: np.ndarray) -> float:
    """Bits of the labels of a batch: how evenly the types of cells are mixed."""
    share = np.bincount(labels.ravel()) / labels.size
    share = share[share > 0]
    return float(-(share * np.log2(share)).sum())


def cells_reader(spec: Spec) -> With:
    """A reader, and the entropy of its first 50 batches."""
    from asyncreader import AsyncReader

    with AsyncReader(params_of(spec)) as reader:
        bits = [entropy(batch.labels) for batch, _ in zip(reader, range(50), strict=False)]
    return With(Ours(spec), **{"bits of labels": np.mean(bits)})


def cells_chunks(spec: Spec) -> Threads:
    """Bare inflating of what random cells touch."""
    import h5py

    parts = [Chunks(spec["path"], name) for name in ("X/data", "X/indices")]
    with h5py.File(spec["path"]) as file:
        ends = file["X/indptr"][()]

    def one(rng: np.random.Generator) -> None:
        row = rng.integers(len(ends) - 1)
        for part in parts:
            part.inflate((ends[row], ends[row + 1]))

    return bare(spec, one)


def dense(adata: Any) -> np.ndarray:
    rows: np.ndarray = np.asarray(adata.X.toarray(), np.float32)
    return rows


def anndata_rows(spec: Spec) -> Batches:
    """Batches of random rows of a backed AnnData, dense."""
    import anndata

    adata, rng = anndata.read_h5ad(spec["path"], backed="r"), np.random.default_rng(0)
    while True:
        rows = np.sort(rng.choice(adata.n_obs, spec["batch"], replace=False))
        yield dense(adata[rows].to_memory())


def scdataset(spec: Spec) -> With:
    """scDataset with blocks of 64 cells and its own fetch factor, dense; and how it mixes."""
    import anndata
    from scdataset import BlockShuffling, scDataset

    stored = scDataset(
        anndata.read_h5ad(spec["path"], backed="r"),
        BlockShuffling(block_size=64),
        batch_size=spec["batch"],
        drop_last=True,
        fetch_callback=lambda held, rows: held[rows].to_memory(),
        batch_transform=lambda batch: (dense(batch), batch.obs["cell_type"].cat.codes.to_numpy()),
    )
    loop = torch_loader(spec, stored, batch_size=None)
    bits = [entropy(np.asarray(next(loop)[1])) for _ in range(50)]
    return With((cells for cells, _ in loop), **{"bits of labels": np.mean(bits)})


def cells() -> Case:
    """Cells of 20,000 genes, 5 % full, gzip, and the entropy of batches of 64."""
    spec, block = {"path": CELLS}, "asyncreader, block"
    contenders = [
        Contender(
            f"asyncreader, {shuffle}", "fields.cells_reader", ours=True,
            spec={"params": {**spec, "labels_field": "obs/cell_type", "shuffle": shuffle}},
        )
        for shuffle in ORDERS
    ]  # fmt: skip
    contenders += [
        Contender("bare inflating", "fields.cells_chunks", spec),
        Contender("AnnData, random rows", "fields.anndata_rows", spec, "torch"),
        Contender("scDataset, blocks of 64", "fields.scdataset", spec, "torch"),
    ]
    goals = [Goal(FASTEST, "bare inflating"), *(Goal(block, one.name) for one in contenders[3:])]
    return Case("cells", "cells", contenders, goals, Setting(batch=64), Unit("cells/s"))


# -- jets ------------------------------------------------------------------------------------------


def jets_h5py(spec: Spec) -> Batches:
    """h5py's rows: one by one as __getitem__ of a Dataset, sorted lists, or slices as salt's."""
    import h5py
    from numpy.lib.recfunctions import structured_to_unstructured

    table, rng = h5py.File(spec["path"])["jets"], np.random.default_rng(0)
    batch = spec["batch"]
    rows = np.empty(batch, table.dtype)
    while True:
        for start in rng.permutation(len(table) // batch) * batch:
            if spec["way"] == "random rows":
                part = np.stack([table[i] for i in rng.integers(0, len(table), batch).tolist()])
            elif spec["way"] == "sorted lists of rows":
                part = table[np.sort(rng.choice(len(table), batch, replace=False))]
            else:
                table.read_direct(rows, np.s_[start : start + batch])
                part = rows
            yield structured_to_unstructured(part[MEMBERS], dtype=np.float32)


def jets() -> Case:
    """500,000 structured rows, 21 members of which 20 are wanted, in batches of 1000."""
    contenders = orders(
        JETS, data_field="jets", labels_field="jets.flavour", members=MEMBERS, dtype="float32"
    )
    for way in ("random rows", "sorted lists of rows", "slices as salt's"):
        spec = {"path": JETS, "way": way}
        contenders.append(Contender(f"h5py, {way}", "fields.jets_h5py", spec))
    goals = [Goal(FASTEST, "h5py, random rows"), Goal(FASTEST, "h5py, slices as salt's")]
    return Case("jets", "jets", contenders, goals, Setting(batch=1000), Unit("jets/s"))


# -- patches ---------------------------------------------------------------------------------------


def patch_chunks(spec: Spec) -> Threads:
    """Bare inflating of what patches at random touch, or random patches of a grid."""
    step = spec["step"]
    volumes = [[Chunks(path, name) for name in ("raw", "label")] for path in spec["paths"]]

    def one(rng: np.random.Generator) -> None:
        pair = volumes[rng.integers(len(volumes))]
        corner = [int(rng.integers((n - PATCH) // step + 1)) * step for n in pair[0].shape]
        for chunks in pair:
            chunks.inflate(*((at, at + PATCH) for at in corner))

    return bare(spec, one)


def lazy_3dunet(spec: Spec) -> Batches:
    """pytorch-3dunet's own lazy mode, its transforms left out: batches as they are stored."""
    from torch.utils.data import ConcatDataset

    with contextlib.redirect_stdout(io.StringIO()):  # where it logs from now on
        module = importlib.import_module("pytorch3dunet.datasets.hdf5")
    grid = {"name": "SliceBuilder", "patch_shape": [PATCH] * 3, "stride_shape": [STEP] * 3}
    none: dict[str, list[Any]] = {"raw": [], "label": []}
    sets = [module.LazyHDF5Dataset(path, "train", dict(grid), none) for path in spec["paths"]]
    loader = torch_loader(spec, ConcatDataset(sets), batch_size=spec["batch"], shuffle=True)
    return (raw for raw, _ in loader)


def patches(name: str, count: int, step: int, **params: Any) -> Case:
    """Patches of 64^3 with labels, gzip, out of one volume (300 MB) or of four. Up to 128 MB of
    decoded chunks are remembered."""
    spec = {"paths": VOLUMES[:count], "step": step}
    contenders = orders(
        spec["paths"], data_field=["raw", "label"], labels_field=None, sample_axis=None,
        patch=[PATCH] * 3, **params,
    )  # fmt: skip
    contenders.append(Contender("bare inflating", "fields.patch_chunks", spec))
    goals = [Goal(FASTEST, "bare inflating")]
    if step == STEP:
        contenders.append(Contender("3dunet, lazy", "fields.lazy_3dunet", spec, "torch"))
        goals += [Goal(one.name, "3dunet, lazy") for one in contenders[:2]]
    setting, unit = Setting(batch=8), Unit("patches/s")
    return Case(f"patches {name}", "patches", contenders, goals, setting, unit)


# -- groups, and the index -------------------------------------------------------------------------


def open_plain(spec: Spec) -> Any:
    """The seconds in which h5py reads the shape of each data set."""
    import h5py

    def job() -> Spec:
        with timed() as result, h5py.File(spec["path"]) as file:
            for group in file["data"].values():
                assert all(len(group[name].shape) == 2 for name in spec["fields"])
        return result

    return job


def opening() -> Case:
    """Seconds to open 10,000 episodes of two data sets."""
    names = ["actions", "obs/qpos"]
    params = {"path": GROUPS, "data_field": names, "window": WINDOW}
    contenders = [
        Contender("asyncreader", "ours.opened", {"params": params}, ours=True),
        Contender("h5py", "fields.open_plain", {"path": GROUPS, "fields": names}),
    ]
    goals = [Goal("asyncreader", "h5py")]
    return Case("opening", "opening", contenders, goals, Setting(batch=16), harness.SECONDS)


def index_reader(spec: Spec) -> With:
    """Windows of an array with episodes; and the seconds and megabytes that opening it takes."""
    job = opened(spec)
    job()  # what is imported is loaded
    figures = job()
    return With(Ours(spec), **{"opened s": figures["seconds"], "MB": figures["MB"]})


def index_rows(spec: Spec) -> Batches:
    """numpy's copies of as many windows, at random, out of a file that is mapped."""
    import h5py

    with h5py.File(spec["path"]) as file:
        offset, shape, ends = file["data"].id.get_offset(), file["data"].shape, file["ends"][()]
    rows = np.memmap(spec["path"], np.uint8, "r", offset, shape)
    rng, within, steps = np.random.default_rng(0), np.arange(WINDOW), ends[0]
    while True:
        firsts = rng.integers(0, len(ends), spec["batch"]) * steps
        firsts += rng.integers(0, steps - WINDOW, spec["batch"])
        rows[firsts[:, None] + within].sum()
        yield firsts


def index() -> Case:
    """256 windows of 16 rows of a byte, one worker, from 10^4 to 10^8 rows."""
    params = {"data_field": "data", "labels_field": None, "window": WINDOW}
    params |= {"shuffle": False, "njob": 1}
    contenders = []
    for rows, path in ENDS.items():
        spec = {"params": {"path": path, "episodes": "ends:ends", **params}}
        contenders.append(Contender(rows, "fields.index_reader", spec, ours=True))
        contenders.append(Contender(f"rows alone of {rows}", "fields.index_rows", {"path": path}))
    setting, unit = Setting(batch=256, workers=1), Unit("us a batch", 1e6, a_batch=True)
    return Case("index", "index", contenders, (), setting, unit)


GRID = {"patch_at": "grid", "patch_step": STEP}
CASES = [
    robot("gzip"), robot("contiguous"), cells(), jets(),
    patches("of a grid", 1, STEP, **GRID), patches("of grids of 4 volumes", 4, STEP, **GRID),
    patches("at random", 1, 1, epoch_samples=256), opening(), index(),
]  # fmt: skip

if __name__ == "__main__":
    sys.exit(harness.main("fields", __doc__, CASES))
