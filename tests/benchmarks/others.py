"""Benchmarks by others' rules: DLIO, the data-loader survey, packing, and an epoch of training.

``python tests/benchmarks/others.py DIR --only survey`` (dlio, packing, epoch) prints a table;
RESULTS.md says what each measures and what to install. FFCV needs another Python
(``--ffcv-python``).
"""

import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Case, Contender, Setting
from inputs import JPEG, Input, Value
from ours import files_of
from player import Result, Spec, timed
from rivals import beside

Job = Callable[[], Result]

# -- the survey's RANDOM set ----------------------------------------------------------------------
# Ofeidis et al., 2022: JPEGs of 256 x 256 random pixels as Pillow writes them, 20 classes; batches
# of 64; flipped at random, divided by 255, normalised with 0.5 and 0.2, float32 (N, C, H, W).

SIDE, CLASSES, BATCH, MEAN, STD = 256, 20, 64, 0.5, 0.2


def write_random(path: Path, count: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(count):
        into = path / f"class{i % CLASSES:02d}"
        into.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(pixels).save(into / f"{i:06d}.jpg")


def _normalised(image: Any) -> np.ndarray:
    import torchvision

    flipped = torchvision.transforms.RandomHorizontalFlip()(image)
    pixels = np.asarray(flipped).astype(np.float32) / 255.0
    return ((pixels - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)


def epochs(loader: Any, take: Callable[[Any], Any] = lambda batch: batch[0]) -> Job:
    """Whole epochs. The first one, which is not counted, starts workers and compiles."""

    def job() -> Result:
        with timed(0) as result:
            for batch in loader:
                result["samples"] += len(take(batch))
        return {**result, "wall s": result["seconds"]}

    return job


def survey_torch(spec: Spec) -> Job:
    import torch
    import torchvision

    pictures = torchvision.datasets.ImageFolder(spec["images"], _normalised)
    return epochs(
        torch.utils.data.DataLoader(
            pictures, BATCH, shuffle=True, num_workers=spec["workers"], drop_last=True
        )
    )


def survey_webdataset(spec: Spec) -> Job:
    import webdataset as wds

    def write(target: str) -> None:
        os.mkdir(target)
        with wds.ShardWriter(f"{target}/%06d.tar", maxcount=1000, verbose=0) as sink:
            for i, file in enumerate(sorted(files_of(spec["images"]), key=os.path.basename)):
                sample = {"jpg": Path(file).read_bytes(), "cls": i % CLASSES}
                sink.write({"__key__": f"sample{i:06d}", **sample})

    tars = sorted(map(str, Path(beside(spec["images"], ".tars", write)).iterdir()))
    pictures = wds.WebDataset(tars, shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
    batches = pictures.map_tuple(_normalised, int).batched(BATCH, partial=False)
    return epochs(wds.WebLoader(batches, batch_size=None, num_workers=spec["workers"]))


def survey_ffcv(spec: Spec) -> Job:
    import torch
    import torchvision
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Convert, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    def write(target: str) -> None:
        fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
        pictures = torchvision.datasets.ImageFolder(spec["images"])
        DatasetWriter(target, fields, num_workers=2).from_indexed_dataset(pictures)

    image = [
        SimpleRGBImageDecoder(), RandomHorizontalFlip(), ToTensor(), ToTorchImage(),
        Convert(torch.float32), torchvision.transforms.Normalize([127.5] * 3, [51.0] * 3),
    ]  # fmt: skip
    return epochs(Loader(
        beside(spec["images"], ".beton", write), batch_size=BATCH,
        num_workers=spec["workers"], order=OrderOption.RANDOM, drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
    ))  # fmt: skip


def survey_ours(spec: Spec) -> Job:
    from asyncreader import AsyncReader

    params = {
        "path": packed(spec["images"], ".h5"), "batch_size": BATCH, "shuffle": True,
        "nthread": spec["workers"], "njob": 2, "flip": True, "dtype": "float32", "scale": 1 / 255,
        "mean": MEAN, "std": STD, "contiguous": True,
    }  # fmt: skip
    return epochs(AsyncReader(params), lambda batch: batch.data)


# -- packing --------------------------------------------------------------------------------------
# 10,000 JPEGs of 500 x 375, either byte for byte or as JPEGs of quality 90 whose shorter side is
# 256. The turn ends when the kernel has written everything (sync).


def conversion(resize: bool) -> dict[str, Any]:
    """Options of ``convert``."""
    return (
        {"encoding": "jpeg", "size": 256, "quality": 90} if resize else {"encoding": "original"}
    )  # fmt: skip


def packed(images: str, suffix: str, resize: bool = False) -> str:
    """The HDF5 file of a folder, written once."""
    from converters import convert

    def write(target: str) -> None:
        convert(images, target, format="hdf5", **conversion(resize))

    return beside(images, suffix, write)


def packing(spec: Spec, pack: Callable[[Path, list[str]], None]) -> Job:
    """The files packed into an empty folder by ``pack(folder, files)``."""
    files, target = files_of(spec["images"]), Path(spec["folder"]) / f"packing-{os.getpid()}"

    def job() -> Result:
        target.mkdir()
        os.sync()
        with timed(len(files)) as result:
            pack(target, files)
            os.sync()
        size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        shutil.rmtree(target)
        return {**result, "wall s": result["seconds"], "MB": size / 1e6}

    return job


def _resized(file: str) -> bytes:
    """The picture with its shorter side 256, as a JPEG."""
    import io

    from PIL import Image

    encoded = io.BytesIO()
    with Image.open(file) as image:
        factor = 256 / min(image.size)
        size = [round(side * factor) for side in image.size]
        # as asyncreader convert resizes; FFCV's writer uses OpenCV's INTER_AREA
        resized = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)  # type: ignore[arg-type]
        resized.save(encoded, "JPEG", quality=90)
    return encoded.getvalue()


def class_of(file: str) -> int:
    return int(Path(file).parent.name.removeprefix("class"))


def pack_ours(spec: Spec) -> Job:
    from converters import convert

    options = {"format": spec["format"], **conversion(spec["resize"])}
    return packing(spec, lambda target, _: convert(spec["images"], target / "set", **options))


def pack_webdataset(spec: Spec) -> Job:
    import webdataset as wds

    def pack(target: Path, files: list[str]) -> None:
        with wds.TarWriter(str(target / "set.tar")) as sink:
            for i, file in enumerate(files):
                stored = _resized(file) if spec["resize"] else Path(file).read_bytes()
                sink.write({"__key__": f"{i:06d}", "jpg": stored, "cls": class_of(file)})

    return packing(spec, pack)


def _litdata_sample(resize: bool, file: str) -> dict[str, Any]:
    """A sample as LitData packs it. Its workers import this function by name."""
    from PIL import Image

    return {"image": _resized(file) if resize else Image.open(file), "class": class_of(file)}


def pack_litdata(spec: Spec) -> Job:
    import litdata

    def pack(target: Path, files: list[str]) -> None:
        one = functools.partial(_litdata_sample, spec["resize"])
        options = {"chunk_bytes": "64MB", "num_workers": spec["workers"]}
        litdata.optimize(one, files, str(target / "set"), **options)

    return packing(spec, pack)


def pack_ffcv(spec: Spec) -> Job:
    import torchvision
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    def pack(target: Path, files: list[str]) -> None:
        # 342: the longer side of 500 x 375 whose shorter side is 256
        image = RGBImageField(write_mode="jpg", max_resolution=342, jpeg_quality=90)
        fields = {"image": image, "label": IntField()}
        pictures = torchvision.datasets.ImageFolder(spec["images"])
        writer = DatasetWriter(str(target / "set.beton"), fields, num_workers=spec["workers"])
        writer.from_indexed_dataset(pictures)

    return packing(spec, pack)


# -- an epoch of training -------------------------------------------------------------------------
# Random resized crops of 224 x 224, flipped at random, normalised; a network of three convolutions
# on the CPU; SGD. Loading and training share the cores.

CHANNEL_MEAN, CHANNEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def training(batches: Callable[[], Iterator[tuple[Any, Any]]]) -> Job:
    import torch
    from torch import nn

    def job() -> Result:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(64, 10),
        ).to(memory_format=torch.channels_last)  # fmt: skip
        steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        with timed(0) as result:
            for images, labels in batches():
                steps.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                steps.step()
                losses.append(loss.item())
                result["samples"] += len(labels)
        more = {"wall s": result["seconds"], "loss": statistics.fmean(losses[-20:])}
        return {**result, **more}

    return job


def epoch_torch(spec: Spec) -> Job:
    from torch.utils.data import DataLoader, Subset
    from torchvision import datasets, transforms

    transform = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(), transforms.Normalize(CHANNEL_MEAN, CHANNEL_STD),
    ])  # fmt: skip
    pictures = datasets.ImageFolder(spec["images"], transform)
    some = Subset(pictures, _some(spec).tolist())
    options: Spec = {"num_workers": spec["workers"], "drop_last": True}
    return training(lambda: iter(DataLoader(some, BATCH, shuffle=True, **options)))


def epoch_none(spec: Spec) -> Job:
    """The same steps on one batch that is there already: what training alone takes."""
    import torch

    images, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH) % 10
    return training(lambda: iter([(images, labels)] * (spec["count"] // BATCH)))


def epoch_ours(spec: Spec) -> Job:
    import torch

    from asyncreader import AsyncReader

    suffix = ".256.h5" if spec["resize"] else ".h5"
    params = {
        "path": packed(spec["images"], suffix, spec["resize"]), "batch_size": BATCH,
        "shuffle": True, "nthread": spec["workers"], "njob": 2, "size": (224, 224),
        "crop": "random-resized", "flip": True, "dtype": "float32", "scale": 1 / 255,
        "mean": CHANNEL_MEAN, "std": CHANNEL_STD, "subset": _some(spec),
    }  # fmt: skip

    def batches() -> Iterator[tuple[Any, Any]]:
        with AsyncReader(params) as reader:
            for batch in reader:
                yield torch.from_numpy(batch.data), torch.from_numpy(batch.labels[:, 0])

    return training(batches)


def _some(spec: Spec) -> np.ndarray:
    return np.random.default_rng(0).permutation(len(files_of(spec["images"])))[: spec["count"]]


# -- DLIO -----------------------------------------------------------------------------------------


def dlio(spec: Spec) -> Job:
    """Samples per second, as DLIO says them: the median of its epochs."""
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
    path = f"{harness.HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def call(more: Spec) -> None:
        given = [f"++workload.{name}={value}" for name, value in {**options, **more}.items()]
        subprocess.run(
            program + given, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": path}
        )

    def job() -> Result:
        if not (folder / "data").exists():
            call({"workflow.generate_data": True, "workflow.train": False})
        call(spec["reader"])
        summary = json.loads((folder / "results/summary.json").read_text())["metric"]
        rate = statistics.median(summary["train_throughput_samples_per_second"])
        return {"samples": 2048, "seconds": 2048 / rate}

    return job


# -- who takes part -------------------------------------------------------------------------------

RANDOM = Input("random{count}", write_random, count=Value(4500, 64, "count"))
PLUGIN, LOADER = "dlio_plugins.", "reader.data_loader_classname"


def group(name: str, rows: dict[str, tuple[Callable[[Spec], Job], Spec]], **more: Any) -> Case:
    contenders = [
        Contender(
            title, f"others.{function.__name__}", spec, "ffcv" if "FFCV" in title else "",
            ours=title.startswith("AsyncReader"),
        )
        for title, (function, spec) in rows.items()
    ]  # fmt: skip
    return Case(name, name, contenders, (), Setting(batch=BATCH), rounds=3, **more)


HDF5, LMDB = ({"images": JPEG, "format": name} for name in ("hdf5", "lmdb"))
AS_IT_IS, AT_256 = ({"images": JPEG, "resize": resize} for resize in (False, True))
COUNT = {"count": Value(10_000, 128, "count")}
CASES = [
    group("dlio", {
        "AsyncReader": (dlio, {"epochs": 20, "reader": {
            LOADER: PLUGIN + "AsyncReaderLoader", "reader.data_loader_sampler": "index"}}),
        "DLIO's PyTorch loader": (dlio, {"epochs": 1, "reader": {}}),
        "DLIO's PyTorch loader, debug formatting off": (dlio, {"epochs": 2, "reader": {
            "reader.reader_classname": PLUGIN + "QuietHDF5Reader"}}),
    }, warm=False),
    group("survey", {
        "AsyncReader": (survey_ours, {"images": RANDOM}),
        "FFCV": (survey_ffcv, {"images": RANDOM}),
        "PyTorch DataLoader": (survey_torch, {"images": RANDOM}),
        "WebDataset": (survey_webdataset, {"images": RANDOM}),
    }),
    group("packing", {
        "AsyncReader, HDF5, as it is": (pack_ours, {**HDF5, "resize": False}),
        "AsyncReader, LMDB, as it is": (pack_ours, {**LMDB, "resize": False}),
        "AsyncReader, HDF5, 256": (pack_ours, {**HDF5, "resize": True}),
        "WebDataset TarWriter, as it is": (pack_webdataset, AS_IT_IS),
        "WebDataset TarWriter, 256": (pack_webdataset, AT_256),
        "LitData optimize, as it is": (pack_litdata, AS_IT_IS),
        "LitData optimize, 256": (pack_litdata, AT_256),
        "FFCV DatasetWriter, 256": (pack_ffcv, AT_256),
    }, warm=False),
    group("epoch", {
        "training alone": (epoch_none, COUNT),
        "AsyncReader, files as they are": (epoch_ours, {**AS_IT_IS, **COUNT}),
        "AsyncReader, packed with size 256": (epoch_ours, {**AT_256, **COUNT}),
        "torchvision + DataLoader": (epoch_torch, {**AS_IT_IS, **COUNT}),
    }, warm=False),
]  # fmt: skip

if __name__ == "__main__":
    sys.exit(harness.main("others", __doc__, CASES))
