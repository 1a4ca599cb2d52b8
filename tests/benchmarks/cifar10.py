"""CIFAR-10 trained from asyncreader and from torchvision: the accuracy and the seconds of both.

``python tests/benchmarks/cifar10.py CIFAR_FOLDER --json cifar10.json`` trains the network of
``tests/examples/recipes/cifar10.py`` with three seeds and either loader by turns, writes every run
to the JSON and prints a table. The folder has ``train/CLASS/*`` and ``test/CLASS/*``. It needs
torch and torchvision.

Both have the same network, first weights, batches of 128, optimizer, number of steps, and the
same random crop with padding, mirror image and normalising. Each has its best mode on a CPU:

* asyncreader: the images packed as pixels, one file; one thread prepares three batches ahead.
* torchvision: ``ImageFolder`` decodes the images once, into one uint8 tensor in memory; v2
  transforms crop and mirror each image in two persistent workers of a DataLoader, which normalise
  a batch at a time. ``--loader imagefolder`` decodes the files in every epoch instead.

Evaluation is the same code for both, and not in the seconds. "prepared" is what comes before
training: packing, once for all runs, or decoding, once for each process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "recipes"))

import cifar10 as recipe  # type: ignore[import-not-found]
import torch
from torch.utils.data import DataLoader, TensorDataset

BATCH, WORKERS = 128, 2
Loaders = tuple[Any, Any]


class Ours:
    """The set packed in a temporary folder."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        from asyncreader import convert

        self.files = {split: scratch / f"{split}.h5" for split in ("train", "test")}
        for split, file in self.files.items():
            convert(folder / split, file, size=(32, 32), progress=False)

    @contextmanager
    def loaders(self, seed: int) -> Iterator[Loaders]:
        shared = {**recipe.NUMBERS, "batch_size": BATCH, "njob": 3}
        with (
            recipe.TorchReader(
                shared, **recipe.RANDOM, path=self.files["train"], shuffle=True, seed=seed
            ) as train,
            recipe.TorchReader(shared, path=self.files["test"], last_batch="short") as test,
        ):
            yield train, test


class Torchvision:
    """The images in memory (``decoded``), or as files that are decoded in every epoch."""

    def __init__(self, folder: Path, scratch: Path, decoded: bool = True) -> None:
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        self.numbers = v2.Compose(
            [
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(recipe.NUMBERS["mean"], recipe.NUMBERS["std"]),
            ]
        )
        chain = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])
        if decoded:
            pixels, labels = in_memory(ImageFolder(folder / "train", v2.PILToTensor()))
            self.train: Any = Transformed(pixels, labels, chain)
        else:
            self.train = ImageFolder(folder / "train", v2.Compose([v2.PILToTensor(), chain]))
        self.test = in_memory(ImageFolder(folder / "test", v2.PILToTensor()))

    def joined(self, samples: list[Any]) -> Loaders:
        images, labels = torch.utils.data.default_collate(samples)
        return self.ready(images), labels

    def ready(self, images: Any) -> Any:
        return self.numbers(images).contiguous(memory_format=torch.channels_last)

    @contextmanager
    def loaders(self, seed: int) -> Iterator[Loaders]:
        train: Any = DataLoader(
            self.train, BATCH, shuffle=True, drop_last=True, num_workers=WORKERS,
            persistent_workers=True, prefetch_factor=4, collate_fn=self.joined,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        test = DataLoader(TensorDataset(*self.test), BATCH)
        yield train, ((self.ready(images), labels) for images, labels in test)


class Transformed:
    """Images in memory, each transformed when it is asked for."""

    def __init__(self, pixels: Any, labels: Any, chain: Any) -> None:
        self.pixels, self.labels, self.chain = pixels, labels, chain

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        return self.chain(self.pixels[index]), self.labels[index]


def in_memory(folder: Any) -> Loaders:
    """Images uint8 (N, 3, 32, 32) and labels int64 (N,) of an ImageFolder."""
    batches = list(DataLoader(folder, 1000, num_workers=WORKERS))
    return torch.cat([images for images, _ in batches]), torch.cat(
        [labels for _, labels in batches]
    )


def from_files(folder: Path, scratch: Path) -> Torchvision:
    return Torchvision(folder, scratch, decoded=False)


MAKERS = {"asyncreader": Ours, "torchvision": Torchvision, "imagefolder": from_files}


def run(made: Any, seed: int, epochs: int) -> dict[str, float]:
    """One training: accuracy, seconds of the training, and those of them waiting for batches."""
    torch.manual_seed(seed)
    with made.loaders(seed) as (train, test):
        model = recipe.network(10)
        seconds, waited = recipe.train(model, train, epochs)
        return {"accuracy": recipe.accuracy(model, test), "seconds": seconds, "waited": waited}


def table(runs: list[dict[str, Any]], prepared: dict[str, float]) -> str:
    """The runs by loader, as the page of recipes shows them."""
    lines = [
        "| loader | accuracy, mean | of each seed | seconds, mean | waiting, s | prepared, s |"
    ]
    lines.append("|---|--:|---|--:|--:|--:|")
    for name in prepared:
        of = [one for one in runs if one["loader"] == name]
        if of:
            mean = {k: statistics.mean(r[k] for r in of) for k in ("accuracy", "seconds", "waited")}
            each = ", ".join(f"{one['accuracy']:.4f}" for one in of)
            lines.append(
                f"| {name} | {mean['accuracy']:.4f} | {each} | {mean['seconds']:.1f} | "
                f"{mean['waited']:.1f} | {prepared[name]:.1f} |"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="train/CLASS/* and test/CLASS/*")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--loader", choices=("both", *MAKERS), default="both")
    parser.add_argument("--json", type=Path, default=Path("cifar10.json"))
    options = parser.parse_args(arguments)
    names = ["asyncreader", "torchvision"] if options.loader == "both" else [options.loader]
    runs: list[dict[str, Any]] = []
    made, prepared = {}, {}
    with tempfile.TemporaryDirectory(prefix="cifar10-") as scratch:
        for name in names:
            began = time.perf_counter()
            made[name] = MAKERS[name](options.folder, Path(scratch))
            prepared[name] = time.perf_counter() - began
        for seed in range(options.seeds):
            for name in names[:: 1 if seed % 2 == 0 else -1]:
                print(f"seed {seed}, {name}", flush=True)
                found = run(made[name], seed, options.epochs)
                runs.append({"loader": name, "seed": seed, **found})
                report = {
                    "epochs": options.epochs,
                    "machine": platform.processor() or platform.machine(),
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                    "prepared": prepared,
                    "runs": runs,
                }
                options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(table(runs, prepared))


if __name__ == "__main__":
    main()
