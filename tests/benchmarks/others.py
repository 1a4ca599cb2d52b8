"""Benchmarks by others' rules: DLIO, the data-loader survey, packing, and an epoch of training.

``python tests/benchmarks/others.py dlio|survey|packing|epoch FOLDER`` prints a Markdown table;
docs/others-benchmarks.md says what each measures and what to install. Each contender is a process
of its own and takes turns with the others. FFCV needs another Python (``--ffcv-python``).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
Spec = dict[str, Any]
Result = dict[str, float]


@contextlib.contextmanager
def clock(samples: int) -> Iterator[Result]:
    """Fills what it yields with the samples, and the wall and CPU seconds of this block.

    CPU seconds are those of this process and of children that ended within the block.
    """
    found: Result = {"samples": samples}
    cpu, wall = _cpu(), time.perf_counter()
    yield found
    found["seconds"], found["cpu"] = time.perf_counter() - wall, _cpu() - cpu


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


# -- the survey's RANDOM set ----------------------------------------------------------------------
# Ofeidis et al., 2022: JPEGs of 256 x 256 random pixels as Pillow writes them, 20 classes; batches
# of 64; flipped at random, divided by 255, normalised with 0.5 and 0.2, float32 (N, C, H, W).

SIDE, CLASSES, BATCH, MEAN, STD = 256, 20, 64, 0.5, 0.2


def random_pictures(spec: Spec) -> Path:
    from inputs import once
    from PIL import Image

    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        for i in range(spec["count"]):
            into = path / f"class{i % CLASSES:02d}"
            into.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
            Image.fromarray(pixels).save(into / f"{i:06d}.jpg")

    return once(Path(spec["folder"]) / f"random{spec['count']}", make)


def _normalised(image: Any) -> np.ndarray:
    import torchvision

    flipped = torchvision.transforms.RandomHorizontalFlip()(image)
    pixels = np.asarray(flipped).astype(np.float32) / 255.0
    return ((pixels - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)


def _second_epoch(loader: Any, spec: Spec, take: Callable[[Any], Any] = lambda b: b[0]) -> Result:
    """The first epoch starts workers, compiles and fills the page cache; the second counts."""
    for _ in loader:
        pass
    with clock(0) as found:
        for batch in loader:
            found["samples"] += len(take(batch))
    return found


def survey_torch(spec: Spec) -> Result:
    import torch
    import torchvision

    pictures = torchvision.datasets.ImageFolder(random_pictures(spec), _normalised)
    loader = torch.utils.data.DataLoader(
        pictures, BATCH, shuffle=True, num_workers=spec["workers"], drop_last=True
    )
    return _second_epoch(loader, spec)


def survey_webdataset(spec: Spec) -> Result:
    import webdataset as wds

    def make(path: Path) -> None:
        path.mkdir(exist_ok=True)
        files = sorted(random_pictures(spec).rglob("*.jpg"), key=lambda file: file.name)
        with wds.ShardWriter(str(path / "%06d.tar"), maxcount=1000, verbose=0) as sink:
            for i, file in enumerate(files):
                name = f"sample{i:06d}"
                sink.write({"__key__": name, "jpg": file.read_bytes(), "cls": i % CLASSES})

    from inputs import once

    tars = sorted(map(str, once(random_pictures(spec).with_suffix(".tars"), make).iterdir()))
    pictures = wds.WebDataset(tars, shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
    batches = pictures.map_tuple(_normalised, int).batched(BATCH, partial=False)
    return _second_epoch(wds.WebLoader(batches, batch_size=None, num_workers=spec["workers"]), spec)


def survey_ffcv(spec: Spec) -> Result:
    import torch
    import torchvision
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Convert, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from inputs import once

    def make(path: Path) -> None:
        fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
        pictures = torchvision.datasets.ImageFolder(random_pictures(spec))
        DatasetWriter(str(path), fields, num_workers=2).from_indexed_dataset(pictures)

    image = [
        SimpleRGBImageDecoder(), RandomHorizontalFlip(), ToTensor(), ToTorchImage(),
        Convert(torch.float32), torchvision.transforms.Normalize([127.5] * 3, [51.0] * 3),
    ]  # fmt: skip
    loader = Loader(
        str(once(random_pictures(spec).with_suffix(".beton"), make)), batch_size=BATCH,
        num_workers=spec["workers"], order=OrderOption.RANDOM, drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
    )  # fmt: skip
    return _second_epoch(loader, spec)


def survey_ours(spec: Spec) -> Result:
    from inputs import once

    from asyncreader import AsyncReader
    from converters import convert

    def make(path: Path) -> None:
        convert(random_pictures(spec), path, encoding="original", format="hdf5")

    params = {
        "path": once(random_pictures(spec).with_suffix(".h5"), make), "batch_size": BATCH,
        "shuffle": True, "nthread": spec["workers"], "njob": 2, "flip": True, "dtype": "float32",
        "scale": 1 / 255, "mean": MEAN, "std": STD, "contiguous": True,
    }  # fmt: skip
    with AsyncReader(params) as reader:
        return _second_epoch(reader, spec, lambda batch: batch.data)


# -- packing --------------------------------------------------------------------------------------
# 10,000 JPEGs of 500 x 375, either byte for byte or as JPEGs of quality 90 whose shorter side is
# 256. The window ends when the kernel has written everything (sync).


def pictures_of(spec: Spec) -> Path:
    from inputs import JPEGS, TIMES, jpeg_folder

    return jpeg_folder(Path(spec["folder"]), JPEGS, TIMES)


def _packed(spec: Spec, pack: Callable[[Path, list[Path]], None]) -> Result:
    files = sorted(pictures_of(spec).rglob("*.jpg"))[: spec["count"]]
    target = Path(spec["folder"]) / "packing"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    os.sync()
    with clock(len(files)) as found:
        pack(target, files)
        os.sync()
    found["MB"] = sum(file.stat().st_size for file in target.rglob("*") if file.is_file()) / 1e6
    shutil.rmtree(target)
    return found


def _resized(file: Path) -> Any:
    """The picture with its shorter side 256."""
    from PIL import Image

    with Image.open(file) as image:
        factor = 256 / min(image.size)
        size = [round(side * factor) for side in image.size]
        # as asyncreader convert resizes; FFCV's writer uses OpenCV's INTER_AREA
        return image.convert("RGB").resize(size, Image.Resampling.BICUBIC)


def _jpeg(file: Path) -> bytes:
    import io

    held = io.BytesIO()
    _resized(file).save(held, "JPEG", quality=90)
    return held.getvalue()


def pack_ours(spec: Spec) -> Result:
    from converters import convert

    def pack(target: Path, files: list[Path]) -> None:
        options: dict[str, Any] = {"encoding": "original"}
        if spec["resize"]:
            options = {"encoding": "jpeg", "size": 256, "quality": 90}
        convert(pictures_of(spec), target / "set", format=spec["format"], **options)

    return _packed(spec, pack)


def pack_webdataset(spec: Spec) -> Result:
    import webdataset as wds

    def pack(target: Path, files: list[Path]) -> None:
        with wds.TarWriter(str(target / "set.tar")) as sink:
            for i, file in enumerate(files):
                stored = _jpeg(file) if spec["resize"] else file.read_bytes()
                sink.write({"__key__": f"{i:06d}", "jpg": stored, "cls": int(file.parent.name[5:])})

    return _packed(spec, pack)


def _litdata_sample(resize: bool, file: Path) -> dict[str, Any]:
    """A sample as LitData packs it. Its workers import this function by name."""
    from PIL import Image

    return {
        "image": _jpeg(file) if resize else Image.open(file),
        "class": int(file.parent.name[5:]),
    }


def pack_litdata(spec: Spec) -> Result:
    import litdata

    def pack(target: Path, files: list[Path]) -> None:
        options = {"chunk_bytes": "64MB", "num_workers": spec["workers"]}
        one = functools.partial(_litdata_sample, spec["resize"])
        litdata.optimize(one, files, str(target / "set"), **options)

    return _packed(spec, pack)


def pack_ffcv(spec: Spec) -> Result:
    import torchvision
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    def pack(target: Path, files: list[Path]) -> None:
        # 342: the longer side of 500 x 375 whose shorter side is 256
        image = RGBImageField(write_mode="jpg", max_resolution=342, jpeg_quality=90)
        fields = {"image": image, "label": IntField()}
        pictures = torchvision.datasets.ImageFolder(pictures_of(spec))
        writer = DatasetWriter(str(target / "set.beton"), fields, num_workers=spec["workers"])
        writer.from_indexed_dataset(pictures)

    return _packed(spec, pack)


# -- an epoch of training -------------------------------------------------------------------------
# Random resized crops of 224 x 224, flipped at random, normalised; a network of three convolutions
# on the CPU; SGD. Loading and training share the cores.

CHANNEL_MEAN, CHANNEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _train(spec: Spec, batches: Callable[[], Iterator[tuple[Any, Any]]]) -> Result:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    model = model.to(memory_format=torch.channels_last)
    steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    with clock(0) as found:
        for images, labels in batches():
            steps.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            steps.step()
            losses.append(loss.item())
            found["samples"] += len(labels)
    found["loss"] = statistics.fmean(losses[-20:])
    return found


def epoch_torch(spec: Spec) -> Result:
    from torch.utils.data import DataLoader, Subset
    from torchvision import datasets, transforms

    transform = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(), transforms.Normalize(CHANNEL_MEAN, CHANNEL_STD),
    ])  # fmt: skip
    pictures = datasets.ImageFolder(pictures_of(spec), transform)
    chosen = Subset(pictures, _chosen(spec, len(pictures)))
    options: Spec = {"num_workers": spec["workers"], "drop_last": True}
    return _train(spec, lambda: iter(DataLoader(chosen, BATCH, shuffle=True, **options)))


def epoch_none(spec: Spec) -> Result:
    """The same steps on one batch that is there already: what training alone takes."""
    import torch

    images, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH) % 10
    return _train(spec, lambda: iter([(images, labels)] * (spec["count"] // BATCH)))


def epoch_ours(spec: Spec) -> Result:
    import torch
    from inputs import once

    from asyncreader import AsyncReader
    from converters import convert

    def make(path: Path) -> None:
        options: dict[str, Any] = {"encoding": "original"}
        if spec["resize"]:
            options = {"encoding": "jpeg", "size": 256, "quality": 90}
        convert(pictures_of(spec), path, format="hdf5", **options)

    suffix = ".256.h5" if spec["resize"] else ".h5"
    path = once(pictures_of(spec).with_suffix(suffix), make)
    params = {
        "path": path, "batch_size": BATCH, "shuffle": True, "nthread": spec["workers"], "njob": 2,
        "size": (224, 224), "crop": "random-resized", "flip": True, "dtype": "float32",
        "scale": 1 / 255, "mean": CHANNEL_MEAN, "std": CHANNEL_STD,
        "subset": _chosen(spec, 10_000),
    }  # fmt: skip

    def batches() -> Iterator[tuple[Any, Any]]:
        with AsyncReader(params) as reader:
            for batch in reader:
                yield torch.from_numpy(batch.data), torch.from_numpy(batch.labels[:, 0])

    return _train(spec, batches)


def _chosen(spec: Spec, total: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(total)[: spec["count"]]


# -- DLIO -----------------------------------------------------------------------------------------


def dlio(spec: Spec) -> Result:
    """Samples per second, as DLIO tells them: the median of its epochs."""
    folder = Path(spec["folder"]) / "dlio"
    # DLIO trims the files to a multiple of samples in a file x batch size: 8 x 32.
    options = {
        "framework": "pytorch", "workflow.evaluation": False, "train.epochs": spec["epochs"],
        "train.computation_time": 0, "dataset.data_folder": folder / "data",
        "dataset.format": "hdf5", "dataset.num_files_train": 256,
        "dataset.num_samples_per_file": 8, "dataset.record_length_bytes": 150528,
        "dataset.num_files_eval": 0, "dataset.num_subfolders_train": 0,
        "dataset.num_subfolders_eval": 0, "output.folder": folder / "results",
        "reader.data_loader": "pytorch", "reader.batch_size": 32, "reader.prefetch_size": 4,
        "reader.read_threads": spec["workers"], "reader.sample_shuffle": "seed",
    }  # fmt: skip
    program = [str(Path(sys.executable).with_name("dlio_benchmark")), f"hydra.run.dir={folder}"]
    path = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def call(more: Spec) -> None:
        given = [f"++workload.{name}={value}" for name, value in {**options, **more}.items()]
        subprocess.run(
            program + given, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": path}
        )

    if not (folder / "data").exists():
        call({"workflow.generate_data": True, "workflow.train": False})
    call(spec["reader"])
    told = json.loads((folder / "results/summary.json").read_text())["metric"]
    rate = statistics.median(told["train_throughput_samples_per_second"])
    return {"samples": 2048, "seconds": 2048 / rate}


# -- who takes part -------------------------------------------------------------------------------

PLUGIN = "dlio_plugins."
Row = tuple[str, Callable[[Spec], Result], Spec]
TASKS: dict[str, list[Row]] = {
    "dlio": [
        ("AsyncReader", dlio, {
            "epochs": 20, "reader": {
                "reader.data_loader_classname": PLUGIN + "AsyncReaderLoader",
                "reader.data_loader_sampler": "index",
            },
        }),
        ("DLIO's PyTorch loader", dlio, {"epochs": 1, "reader": {}}),
        ("DLIO's PyTorch loader, debug formatting off", dlio, {
            "epochs": 2, "reader": {"reader.reader_classname": PLUGIN + "QuietHDF5Reader"},
        }),
    ],
    "survey": [
        ("AsyncReader", survey_ours, {}), ("FFCV", survey_ffcv, {}),
        ("PyTorch DataLoader", survey_torch, {}), ("WebDataset", survey_webdataset, {}),
    ],
    "packing": [
        ("AsyncReader, HDF5, as it is", pack_ours, {"format": "hdf5", "resize": False}),
        ("AsyncReader, LMDB, as it is", pack_ours, {"format": "lmdb", "resize": False}),
        ("AsyncReader, HDF5, 256", pack_ours, {"format": "hdf5", "resize": True}),
        ("WebDataset TarWriter, as it is", pack_webdataset, {"resize": False}),
        ("WebDataset TarWriter, 256", pack_webdataset, {"resize": True}),
        ("LitData optimize, as it is", pack_litdata, {"resize": False}),
        ("LitData optimize, 256", pack_litdata, {"resize": True}),
        ("FFCV DatasetWriter, 256", pack_ffcv, {}),
    ],
    "epoch": [
        ("training alone", epoch_none, {}),
        ("AsyncReader, files as they are", epoch_ours, {"resize": False}),
        ("AsyncReader, packed with size 256", epoch_ours, {"resize": True}),
        ("torchvision + DataLoader", epoch_torch, {}),
    ],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("folder", help="inputs are built here once, and found again")
    parser.add_argument("--count", type=int, help="pictures (survey 4,500; epoch 10,000)")
    parser.add_argument("--workers", type=int, default=2, help="threads, or processes (2)")
    parser.add_argument("--rounds", type=int, default=3, help="each row is a median (3)")
    parser.add_argument("--ffcv-python", help="a Python with FFCV and torchvision")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    count = given.count or {"survey": 4500}.get(given.task, 10_000)
    spec = {"folder": given.folder, "count": count, "workers": given.workers}
    rows = TASKS[given.task]
    if given.row is not None:  # a contender's own process
        _, run, more = rows[given.row]
        print("\n" + json.dumps(run({**spec, **more})), flush=True)
        os._exit(0)  # loaders of some contenders do not end
    Path(given.folder).mkdir(parents=True, exist_ok=True)
    results: dict[int, list[Result]] = {}
    for turn in range(given.rounds):
        for row in range(len(rows))[:: 1 if turn % 2 == 0 else -1]:
            if given.only not in rows[row][0]:
                continue
            ffcv = rows[row][0].startswith("FFCV")
            python = given.ffcv_python if ffcv else sys.executable
            if python:
                results.setdefault(row, []).append(_child(python, row))
                print(f"{rows[row][0]}: {results[row][-1]}", file=sys.stderr, flush=True)
    print("| | samples/s | wall s | CPU s | |\n|---|--:|--:|--:|---|")
    for row in sorted(results):
        told = {key: statistics.median(one[key] for one in results[row]) for key in results[row][0]}
        rate = statistics.median(one["samples"] / one["seconds"] for one in results[row])
        more = ", ".join(f"{key} {told[key]:.4g}" for key in ("MB", "loss") if key in told)
        cpu = f"{told['cpu']:.1f}" if "cpu" in told else "-"
        print(f"| {rows[row][0]} | {rate:,.0f} | {told['seconds']:.1f} | {cpu} | {more} |")


def _child(python: str, row: int) -> Result:
    command = [python, __file__, *sys.argv[1:], "--row", str(row)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Result = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
