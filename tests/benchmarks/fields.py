"""HDF5 of other fields: windows of episodes, sparse rows, structured rows, patches of volumes,
groups that are opened.

``python tests/benchmarks/fields.py DIR`` makes its files in DIR (about 6 GB), and prints for each
the rates of asyncreader, of bare inflating of the chunks that are touched, and of what users run
today: robomimic's SequenceDataset, AnnData and scDataset, h5py, pytorch-3dunet's LazyHDF5Dataset.
Those that are not installed are left out (robomimic and pytorch-3dunet, which need torch, may lie
on PYTHONPATH). All have as many workers or threads (``--workers``).
Contenders alternate, in reversed order every other round; the median of the rounds counts.
``--only NAME`` runs some of: robot, cells, jets, patches, opening, index; ``--json FILE`` also
writes them there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import itertools
import json
import math
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from inputs import VOLUME, crops, once, volume

from asyncreader import AsyncReader

#: Episodes, steps of each, and steps of a window of the robot's file.
EPISODES, STEPS, WINDOW = 200, 200, 16
CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
CELLS, GENES, FULL, TYPES = 20_000, 20_000, 0.05, 20
JETS, MEMBERS = 500_000, 20
#: Sides of a patch, how far those of a grid are apart, and volumes in a list of files.
PATCH, STEP, VOLUMES = 64, 32, 4
#: Groups that are opened, and as many episodes of the index, with the rows of each.
GROUPS, LONG = 10_000, 10_000
#: Chunks that h5py chooses for (200, 84, 84, 3) where robomimic does not say any.
ROBOT_CHUNK = (50, 21, 21, 1)

#: Seconds that a contender runs before its window.
WARM = 0.2

#: Samples that a contender served in at least so many seconds.
Contender = Callable[[float], int]


def installed(name: str) -> bool:
    """Whether a package of that name can be imported."""
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def alternate(
    contenders: dict[str, Contender], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Samples per second of each contender in each round; each is warm before its window."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            contenders[name](WARM)
            started = time.perf_counter()
            samples = contenders[name](seconds)
            rates[name].append(samples / (time.perf_counter() - started))
    return rates


def until(seconds: float, batches: Callable[[], Iterator[int]]) -> int:
    """Samples of batches that come in ``seconds``; a new loop begins where one ends."""
    ends, samples = time.perf_counter() + seconds, 0
    while True:
        for rows in batches():
            samples += rows
            if time.perf_counter() >= ends:
                return samples


def _private() -> float:
    """Megabytes of this process's memory, without mapped files."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("RssAnon:") + 1]) / 1024


def reader_of(reader: AsyncReader) -> Contender:
    """A reader that stays open, and goes on where it was. In "block" it serves at least as many
    samples as are mixed together: the first of them wait for all chunks of theirs."""
    mixed = reader.state_dict()["window"] if reader.params.shuffle == "block" else 0
    for _ in range(reader.params.njob):  # as a loop over the reader keeps them
        reader.fetchData()

    def run(seconds: float) -> int:
        least = mixed if seconds > WARM else 0
        ends, samples = time.perf_counter() + seconds, 0
        while time.perf_counter() < ends or samples < least:
            batch = reader.getNextBatch()
            reader.fetchData()
            samples += len(batch.indices)
        return samples

    return run


def told(rates: dict[str, list[float]], ratios: Sequence[tuple[str, str]]) -> Iterator[Any]:
    """Rows of medians, and of ratios of the same round: (of, to) names."""
    for name, found in rates.items():
        yield {"contender": name, "samples/s": round(statistics.median(found), 1)}
    for one, other in ratios:
        if one in rates and other in rates:
            each = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
            yield {"ratio": f"{one} / {other}", "x": round(statistics.median(each), 2)}


# -- bare inflating ------------------------------------------------------------------------------


class BareChunks:
    """Inflates the chunks that rows of a data set touch, and does nothing else."""

    def __init__(self, path: Path, name: str) -> None:
        with h5py.File(path) as file:
            data = file[name]
            self._chunk, self._shape = data.chunks, data.shape
            size = data.dtype.itemsize * math.prod(data.chunks)
            infos = [data.id.get_chunk_info(i) for i in range(data.id.get_num_chunks())]
        self._at = {info.chunk_offset: (info.byte_offset, info.size) for info in infos}
        self._bytes = np.memmap(path, np.uint8, "r")
        self._size = size

    def touched(self, *sides: tuple[int, int]) -> list[tuple[int, ...]]:
        """Corners of the chunks that hold a box: (start, stop) on its first axes, the others
        whole."""
        whole = ((0, n) for n in self._shape[len(sides) :])
        axes = zip((*sides, *whole), self._chunk, strict=True)
        return list(itertools.product(*(range(low // c * c, high, c) for (low, high), c in axes)))

    def inflate(self, *sides: tuple[int, int]) -> None:
        """Inflate them."""
        import imagecodecs

        for corner in self.touched(*sides):
            at, size = self._at[corner]
            out = np.empty(self._size, np.uint8)
            imagecodecs.deflate_decode(self._bytes[at : at + size], out=out)


def bare(one: Callable[[np.random.Generator], None], workers: int) -> Contender:
    """``one`` sample after the other, in threads."""

    def run(seconds: float) -> int:
        ends = time.perf_counter() + seconds

        def work(seed: int) -> int:
            rng, done = np.random.default_rng(seed), 0
            while time.perf_counter() < ends:
                one(rng)
                done += 1
            return done

        with ThreadPoolExecutor(workers) as pool:
            return sum(pool.map(work, range(workers)))

    return run


# -- windows of a robot's episodes ---------------------------------------------------------------


def robot_file(folder: Path, packed: bool) -> Path:
    """Episodes as robomimic writes them, of moving pieces of photographs."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        how: dict[str, Any] = {"chunks": ROBOT_CHUNK, "compression": "gzip"} if packed else {}
        pieces = [np.asarray(one) for one in crops(40, 84, 84 + STEPS, seed=84)]
        with h5py.File(path, "w") as file:
            for i in range(EPISODES):
                demo = file.create_group(f"data/demo_{i}")
                demo.attrs["num_samples"] = STEPS
                for camera in CAMERAS:
                    wide = pieces[rng.integers(len(pieces))]
                    seen = np.stack([wide[:, s : s + 84] for s in range(STEPS)])
                    demo.create_dataset(f"obs/{camera}", data=seen, **how)
                for name, width in (("obs/robot0_eef_pos", 9), ("actions", 7)):
                    demo[name] = rng.normal(size=(STEPS, width))

    return once(folder / f"robot_{'gzip' if packed else 'contiguous'}.hdf5", make)


def robomimic_loader(path: Path, workers: int, cache: str | None) -> Contender:
    """robomimic's own loader; in memory of a tenth of the episodes, for all take 27 GB. Its module
    for language models is not imported: it loads one."""
    import torch

    name = "robomimic.utils.lang_utils"
    sys.modules.setdefault(name, types.ModuleType(name))
    module = importlib.import_module("robomimic.utils.dataset")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        stored = module.SequenceDataset(
            str(path),
            (*CAMERAS, "robot0_eef_pos"),
            ("actions",),
            ("actions",),
            {"actions": {"normalization": None}},
            seq_length=WINDOW,
            pad_seq_length=False,
            hdf5_cache_mode=cache,
            hdf5_use_swmr=False,
            load_next_obs=False,
            demo_limit=None if cache is None else EPISODES // 10,
        )
        stored.get_action_normalization_stats()
        stored.close_and_delete_hdf5_handle()
    loader = torch.utils.data.DataLoader(
        stored, 16, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    loop = _endless(loader)

    def run(seconds: float) -> int:
        return until(seconds, lambda: (len(batch["actions"]) for batch in loop))

    return run


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def robot(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Windows of 16 steps of two cameras, 200 x 200 steps: windows per second."""
    of = "asyncreader, True"
    pairs = [(of, "bare inflating"), (of, "plain rows, by bytes"), (of, "robomimic")]
    pairs += [("asyncreader, block", "robomimic"), (of, "robomimic, in memory")]
    for packed in (True, False):
        path = robot_file(folder, packed)
        with contextlib.ExitStack() as stack:
            contenders = robot_windows(path, options.workers, stack)
            if packed:
                contenders["bare inflating"] = robot_chunks(path, options.workers)
            else:
                contenders["plain rows, by bytes"] = robot_rows(path, options.workers, stack)
            if installed("torch") and installed("robomimic"):
                contenders["robomimic"] = robomimic_loader(path, options.workers, None)
                if not packed:
                    contenders["robomimic, in memory"] = robomimic_loader(
                        path, options.workers, "all"
                    )
            rates = alternate(contenders, options.rounds, options.seconds)
        for row in told(rates, pairs):
            yield {"file": path.stem, **row}


def robot_windows(path: Path, workers: int, stack: contextlib.ExitStack) -> dict[str, Contender]:
    """Readers of windows in both orders."""
    fields = {"a": f"obs/{CAMERAS[0]}", "b": f"obs/{CAMERAS[1]}", "p": "obs/robot0_eef_pos"}
    found = {}
    for shuffle in (True, "block"):
        reader = AsyncReader(
            path=path,
            data_field={**fields, "actions": "actions"},
            window=WINDOW,
            batch_size=16,
            shuffle=shuffle,
            nthread=workers,
            njob=4,
        )
        found[f"asyncreader, {shuffle}"] = reader_of(stack.enter_context(reader))
    return found


def robot_chunks(path: Path, workers: int) -> Contender:
    """Bare inflating of what random windows of both cameras touch, of some of the episodes."""
    some = min(EPISODES, 20)
    chunks = [
        [BareChunks(path, f"data/demo_{i}/obs/{camera}") for camera in CAMERAS] for i in range(some)
    ]

    def inflate(rng: np.random.Generator) -> None:
        start = int(rng.integers(STEPS - WINDOW + 1))
        for one in chunks[rng.integers(some)]:
            one.inflate((start, start + WINDOW))

    return bare(inflate, workers)


def robot_rows(path: Path, workers: int, stack: contextlib.ExitStack) -> Contender:
    """Plain rows of the file's bytes, counted as windows of as many bytes."""
    row = WINDOW * 84 * 84 * 3
    held = np.memmap(path, np.uint8, "r")
    reader = AsyncReader(
        data=held[: held.size // row * row].reshape(-1, row),
        batch_size=2 * 16,
        shuffle=True,
        nthread=workers,
        njob=4,
    )
    rows = reader_of(stack.enter_context(reader))
    return lambda seconds: rows(seconds) // 2


# -- cells ---------------------------------------------------------------------------------------


def cells_file(folder: Path) -> Path:
    """A CSR matrix as anndata's write_h5ad(compression="gzip") writes it; cells of one type lie
    beside each other."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        each = rng.binomial(GENES, FULL, CELLS)
        ends = np.concatenate(([0], np.cumsum(each)))
        columns = [np.sort(rng.choice(GENES, n, replace=False)).astype(np.int32) for n in each]
        with h5py.File(path, "w") as file:
            x = file.create_group("X")
            x.attrs["encoding-type"], x.attrs["encoding-version"] = "csr_matrix", "0.1.0"
            x.attrs["shape"] = (CELLS, GENES)
            values = rng.poisson(1.5, ends[-1]).astype(np.float32) + 1
            x.create_dataset("data", data=values, compression="gzip")
            x.create_dataset("indices", data=np.concatenate(columns), compression="gzip")
            x["indptr"] = ends
            kinds = file.create_group("obs/cell_type")
            kinds.attrs["encoding-type"], kinds.attrs["encoding-version"] = "categorical", "0.2.0"
            kinds.attrs["ordered"] = False
            kinds["categories"] = np.array([f"type {i}".encode() for i in range(TYPES)])
            kinds["codes"] = np.sort(rng.integers(0, TYPES, CELLS)).astype(np.int8)
            for name, count in (("obs", CELLS), ("var", GENES)):
                group = file.require_group(name)
                group.attrs["encoding-type"] = "dataframe"
                group.attrs["encoding-version"] = "0.2.0"
                group.attrs["_index"] = "_index"
                group.attrs["column-order"] = ["cell_type"] if name == "obs" else np.empty(0, "f8")
                group["_index"] = np.array([f"{name}{i}".encode() for i in range(count)], "O")
            for name in ("obs/_index", "var/_index", "obs/cell_type/categories"):
                values = file[name][()].astype("O")
                del file[name]
                file.create_dataset(name, data=values, dtype=h5py.string_dtype())
                file[name].attrs["encoding-type"] = "string-array"
                file[name].attrs["encoding-version"] = "0.2.0"
            file.attrs["encoding-type"], file.attrs["encoding-version"] = "anndata", "0.1.0"

    return once(folder / "cells.h5ad", make)


def entropy(labels: np.ndarray) -> float:
    """Bits of the labels of a batch: how evenly the types of cells are mixed."""
    share = np.bincount(labels.ravel(), minlength=TYPES) / labels.size
    share = share[share > 0]
    return float(-(share * np.log2(share)).sum())


def cells(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Cells of 20,000 genes, 5 % full, gzip: cells per second, and entropy of batches of 64."""
    path, workers = cells_file(folder), options.workers
    mixed: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        contenders = cells_readers(path, workers, stack, mixed)
        contenders["bare inflating"] = cells_chunks(path, workers)
        if installed("anndata"):
            contenders["AnnData, random rows"] = anndata_rows(path)
        if installed("anndata") and installed("scdataset") and installed("torch"):
            name = "scDataset, blocks of 64"
            contenders[name], mixed[name] = scdataset_blocks(path, workers)
        rates = alternate(contenders, options.rounds, options.seconds)
    yield from told(
        rates,
        [
            ("asyncreader, True", "bare inflating"),
            ("asyncreader, block", "AnnData, random rows"),
            ("asyncreader, block", "scDataset, blocks of 64"),
        ],
    )
    for name, bits in mixed.items():
        yield {"contender": name, "bits of 64 labels": round(statistics.fmean(bits), 2)}


def cells_readers(
    path: Path, workers: int, stack: contextlib.ExitStack, mixed: dict[str, list[float]]
) -> dict[str, Contender]:
    """Readers in both orders; ``mixed`` gets the entropy of some of their batches."""
    found = {}
    for shuffle in (True, "block"):
        name = f"asyncreader, {shuffle}"
        params = {
            "path": path,
            "labels_field": "obs/cell_type",
            "batch_size": 64,
            "shuffle": shuffle,
            "nthread": workers,
            "njob": 4,
        }
        with AsyncReader(params) as reader:
            batches = zip(reader, range(50), strict=False)
            mixed[name] = [entropy(batch.labels) for batch, _ in batches]
        found[name] = reader_of(stack.enter_context(AsyncReader(params)))
    return found


def cells_chunks(path: Path, workers: int) -> Contender:
    """Bare inflating of what random cells touch."""
    data, indices = BareChunks(path, "X/data"), BareChunks(path, "X/indices")
    with h5py.File(path) as file:
        ends = file["X/indptr"][()]

    def inflate(rng: np.random.Generator) -> None:
        row = rng.integers(CELLS)
        data.inflate((ends[row], ends[row + 1]))
        indices.inflate((ends[row], ends[row + 1]))

    return bare(inflate, workers)


def _dense(adata: Any) -> np.ndarray:
    dense: np.ndarray = np.asarray(adata.X.toarray(), np.float32)
    return dense


def anndata_rows(path: Path) -> Contender:
    """Batches of 64 random rows of a backed AnnData, dense."""
    import anndata

    adata, rng = anndata.read_h5ad(path, backed="r"), np.random.default_rng(0)

    def batches() -> Iterator[int]:
        while True:
            rows = np.sort(rng.choice(CELLS, 64, replace=False))
            yield len(_dense(adata[rows].to_memory()))

    return lambda seconds: until(seconds, batches)


def scdataset_blocks(path: Path, workers: int) -> tuple[Contender, list[float]]:
    """scDataset with blocks of 64 cells and its own fetch factor, dense; and how it mixes."""
    import anndata
    import torch
    from scdataset import BlockShuffling, scDataset

    adata = anndata.read_h5ad(path, backed="r")
    stored = scDataset(
        adata,
        BlockShuffling(block_size=64),
        batch_size=64,
        drop_last=True,
        fetch_callback=lambda held, rows: held[rows].to_memory(),
        batch_transform=lambda batch: (_dense(batch), batch.obs["cell_type"].cat.codes.to_numpy()),
    )
    loader = torch.utils.data.DataLoader(
        stored, None, num_workers=workers, persistent_workers=workers > 0, prefetch_factor=4
    )
    loop = _endless(loader)
    bits = [entropy(np.asarray(next(loop)[1])) for _ in range(50)]
    return lambda seconds: until(seconds, lambda: (len(one[0]) for one in loop)), bits


# -- jets ----------------------------------------------------------------------------------------


def jets_file(folder: Path) -> Path:
    """Structured rows as umami-preprocessing writes them for salt: contiguous, float32 and
    float16."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        kinds = [(f"v{i}", "f4" if i % 2 else "f2") for i in range(MEMBERS)]
        jets = np.zeros(JETS, np.dtype([*kinds, ("flavour", "i4")]))
        for name in jets.dtype.names or ():
            jets[name] = rng.integers(0, 100, JETS)
        with h5py.File(path, "w") as file:
            file["jets"] = jets

    return once(folder / "jets.h5", make)


def jets(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """500,000 structured rows, 21 members of which 20 are wanted, in batches of 1000: jets/s."""
    from numpy.lib.recfunctions import structured_to_unstructured

    path = jets_file(folder)
    names = [f"v{i}" for i in range(MEMBERS)]
    file = h5py.File(path)
    table, rng = file["jets"], np.random.default_rng(0)
    rows = np.empty(1000, table.dtype)

    def flat(part: np.ndarray) -> int:
        return len(structured_to_unstructured(part[names], dtype=np.float32))

    def each_row() -> Iterator[int]:  # as __getitem__ of a Dataset
        while True:
            yield flat(np.stack([table[i] for i in rng.integers(0, JETS, 1000).tolist()]))

    def lists_of_rows() -> Iterator[int]:
        while True:
            yield flat(table[np.sort(rng.choice(JETS, 1000, replace=False))])

    def slices() -> Iterator[int]:  # as salt: batches of neighbours, in random order
        for start in rng.permutation(JETS // 1000) * 1000:
            table.read_direct(rows, np.s_[start : start + 1000])
            yield flat(rows)

    contenders: dict[str, Contender] = {}
    readers = []
    for shuffle in (True, "block"):
        reader = AsyncReader(
            path=path,
            data_field="jets",
            labels_field="jets.flavour",
            members=names,
            dtype="float32",
            batch_size=1000,
            shuffle=shuffle,
            nthread=options.workers,
            njob=4,
        )
        readers.append(reader)
        contenders[f"asyncreader, {shuffle}"] = reader_of(reader)
    contenders["h5py, random rows"] = lambda seconds: until(seconds, each_row)
    contenders["h5py, sorted lists of rows"] = lambda seconds: until(seconds, lists_of_rows)
    contenders["h5py, slices as salt's"] = lambda seconds: until(seconds, slices)
    rates = alternate(contenders, options.rounds, options.seconds)
    for reader in readers:
        reader.close()
    file.close()
    of = "asyncreader, True"
    yield from told(rates, [(of, "h5py, random rows"), (of, "h5py, slices as salt's")])


# -- patches -------------------------------------------------------------------------------------


def patches(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Patches of 64^3 with labels, gzip, out of a grid of one volume (300 MB) and of four:
    patches/s. Up to 128 MB of decoded chunks are remembered."""
    of = "asyncreader, True"
    pairs = [(of, "bare inflating"), (of, "3dunet, lazy"), ("asyncreader, block", "3dunet, lazy")]
    for count in (1, VOLUMES):
        paths = [volume(folder, number) for number in range(count)]
        with contextlib.ExitStack() as stack:
            contenders = patch_readers(paths, options.workers, stack)
            contenders["bare inflating"] = patch_chunks(paths, options.workers)
            if installed("torch") and installed("pytorch3dunet"):
                contenders["3dunet, lazy"] = lazy_loader(paths, options.workers)
            rates = alternate(contenders, options.rounds, options.seconds)
        for row in told(rates, pairs):
            yield {"volumes": count, **row}


def patch_readers(
    paths: list[Path], workers: int, stack: contextlib.ExitStack
) -> dict[str, Contender]:
    """Readers in both orders."""
    found = {}
    for shuffle in (True, "block"):
        reader = AsyncReader(
            path=paths,
            data_field=["raw", "label"],
            labels_field=None,
            sample_axis=None,
            patch=(PATCH,) * 3,
            patch_at="grid",
            patch_step=STEP,
            batch_size=8,
            shuffle=shuffle,
            nthread=workers,
            njob=4,
        )
        found[f"asyncreader, {shuffle}"] = reader_of(stack.enter_context(reader))
    return found


def patch_chunks(paths: list[Path], workers: int) -> Contender:
    """Bare inflating of what random patches of the grid touch."""
    chunks = [[BareChunks(path, name) for name in ("raw", "label")] for path in paths]

    def inflate(rng: np.random.Generator) -> None:
        corner = [int(rng.integers((n - PATCH) // STEP + 1)) * STEP for n in VOLUME]
        for one in chunks[rng.integers(len(chunks))]:
            one.inflate(*((at, at + PATCH) for at in corner))

    return bare(inflate, workers)


def lazy_loader(paths: list[Path], workers: int) -> Contender:
    """pytorch-3dunet's own lazy mode, its transforms left out: batches of 8, as they are stored."""
    import torch

    with contextlib.redirect_stdout(io.StringIO()):  # where it logs from now on
        module = importlib.import_module("pytorch3dunet.datasets.hdf5")
    grid = {"name": "SliceBuilder", "patch_shape": [PATCH] * 3, "stride_shape": [STEP] * 3}
    none: dict[str, list[Any]] = {"raw": [], "label": []}
    sets = [module.LazyHDF5Dataset(str(path), "train", dict(grid), none) for path in paths]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.ConcatDataset(sets),
        8,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )
    loop = _endless(loader)
    return lambda seconds: until(seconds, lambda: (len(raw) for raw, _ in loop))


# -- groups --------------------------------------------------------------------------------------


def groups_file(folder: Path) -> Path:
    """Episodes of two data sets each, contiguous and in gzip chunks."""

    def make(path: Path) -> None:
        rows = np.zeros((100, 9), np.float32)
        with h5py.File(path, "w") as file:
            for i in range(GROUPS):
                file[f"data/demo_{i}/actions"] = rows[:, :7]
                file.create_dataset(
                    f"data/demo_{i}/obs/qpos", data=rows, chunks=(50, 9), compression="gzip"
                )

    return once(folder / "groups.hdf5", make)


def opening(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Seconds to open 10,000 episodes of two data sets, h5py for each shape; bars: 2 s, 50 MB."""
    path, fields = groups_file(folder), ["actions", "obs/qpos"]
    held: list[float] = []  # megabytes: before, and while a reader is open

    def ours() -> None:
        with AsyncReader(path=path, data_field=fields, window=WINDOW, batch_size=16) as reader:
            assert reader.count == GROUPS * (100 - WINDOW + 1)
            held.append(_private())

    def plain() -> None:
        with h5py.File(path) as file:
            for group in file["data"].values():
                assert all(len(group[name].shape) == 2 for name in fields)

    for name, run in (("asyncreader", ours), ("h5py", plain)):
        times = []
        for _ in range(options.rounds):
            started, used = time.perf_counter(), time.process_time()
            run()
            times.append((time.perf_counter() - started, time.process_time() - used))
        seconds, of_cpu = (round(statistics.median(one), 2) for one in zip(*times, strict=True))
        yield {"contender": name, "seconds": seconds, "of the CPU": of_cpu}
    yield {"MB of an open reader, after the first": round(max(held) - held[0], 1)}


# -- the index -----------------------------------------------------------------------------------


def ends_file(folder: Path, episodes: int, steps: int) -> Path:
    """Episodes of bytes one after the other, and the ends of them."""

    def make(path: Path) -> None:
        with h5py.File(path, "w") as file:
            data = file.create_dataset("data", (episodes * steps, 1), np.uint8)
            for first in range(0, episodes, 1000):
                last = min(episodes, first + 1000)
                data[first * steps : last * steps] = np.arange(first, last).repeat(steps)[:, None]
            file["ends"] = np.arange(1, episodes + 1) * steps

    return once(folder / f"ends_{episodes}_{steps}.h5", make)


def index(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Microseconds a batch, from 10^4 to 10^8 windows: the reader's, and numpy's of rows alone.

    256 windows of 16 rows of a byte, one worker. Opening: seconds and megabytes; bars: 2 s, 50 MB.
    """
    sizes = [(min(GROUPS, 10**power), LONG) for power in range(math.ceil(math.log10(GROUPS)) + 1)]
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for episodes, steps in sizes:
            path, name = ends_file(folder, episodes, steps), f"{episodes * steps:,}"
            common = {"data_field": "data", "labels_field": None, "window": WINDOW}
            before, started = _private(), time.perf_counter()
            reader = stack.enter_context(
                AsyncReader(path=path, episodes="ends:ends", batch_size=256, nthread=1, **common)
            )
            seconds = time.perf_counter() - started
            assert reader.count == episodes * (steps - WINDOW + 1)
            yield {"rows": name, "opened s": round(seconds, 2), "MB": round(_private() - before, 1)}
            contenders[name] = reader_of(reader)
            contenders[f"rows alone of {name}"] = _bare_windows(path, episodes, steps)
        found = alternate(contenders, options.rounds, options.seconds)
        for name, rates in found.items():
            yield {"contender": name, "us a batch": round(256e6 / statistics.median(rates), 1)}


def _bare_windows(path: Path, episodes: int, steps: int) -> Contender:
    """numpy's copies of as many windows, at random, out of a file that is mapped."""
    with h5py.File(path) as file:
        offset, shape = file["data"].id.get_offset(), file["data"].shape
    rows = np.memmap(path, np.uint8, "r", offset, shape)
    rng, within = np.random.default_rng(0), np.arange(WINDOW)

    def batches() -> Iterator[int]:
        for _ in range(100):
            firsts = rng.integers(0, episodes, 256) * steps + rng.integers(0, steps - WINDOW, 256)
            rows[firsts[:, None] + within].sum()
            yield 256

    return lambda seconds: until(seconds, batches)


PARTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "robot": robot,
    "cells": cells,
    "jets": jets,
    "patches": patches,
    "opening": opening,
    "index": index,
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in options.only or PARTS:
        print(f"\n{name}: {(PARTS[name].__doc__ or '').splitlines()[0]}")
        for row in PARTS[name](options.folder, options):
            rows.setdefault(name, []).append(row)
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
