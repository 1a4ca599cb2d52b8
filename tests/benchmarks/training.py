"""Networks trained on the CPU with asyncreader and with torchvision: the accuracy, and the seconds.

``python tests/benchmarks/training.py --patches`` trains a small network on the patches of
photographs that tests/examples/recipes/photographs.py cuts. The recipe: random-resized crops of
48 x 48, mirrored at random, trivial-augment-wide, normalised, random-erasing, mixup. "crop and flip
alone" is ours without the last four, and shows what the recipe does.

``--cifar10 --give cifar=FOLDER`` trains the network of tests/examples/recipes/cifar10.py; the
folder has ``train/CLASS/*`` and ``test/CLASS/*``. Each loader has its best mode on a CPU:

* asyncreader: the images packed as pixels, one file; one thread prepares three batches ahead.
* torchvision: ``ImageFolder`` decodes the images once, into one uint8 tensor in memory; v2
  transforms crop and mirror each image in two persistent workers of a DataLoader, which normalise
  a batch at a time. ``--imagefolder`` decodes the files in every epoch instead.

All have the same first weights, optimizer and number of steps. Each turn is a training with the
next seed. Evaluation is the same code for all, and not in the seconds; "prepared" is what comes
before training, once in each process: packing, or decoding. It needs torch and torchvision.
"""

import importlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import SECONDS, Case, Contender, Goal, Setting
from inputs import Value
from player import Result, Spec

Batches = Iterator[tuple[Any, Any]]


class Trained(NamedTuple):
    """``losses``: of each step; ``seconds``: of all steps, waiting for batches included."""

    accuracy: float
    losses: list[float]
    seconds: float


def seeds(train: Callable[[int], Result]) -> Callable[[], Result]:
    """Trainings with one seed after the other, and the accuracy of each."""
    numbers, reached = itertools.count(), list[str]()

    def job() -> Result:
        result = train(next(numbers))
        reached.append(f"{result['accuracy']:.4f}")
        return {**result, "of each seed": ", ".join(reached)}

    return job


def recipe_of(name: str) -> Any:
    """A module of tests/examples/recipes."""
    sys.path.insert(0, str(harness.ROOT / "tests" / "examples" / "recipes"))
    return importlib.import_module(name)


class Transformed:
    """Images in memory, each transformed when it is asked for."""

    def __init__(self, pixels: Any, labels: Any, chain: Any) -> None:
        self.pixels, self.labels, self.chain = pixels, labels, chain

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        return self.chain(self.pixels[index]), self.labels[index]


def loader_of(spec: Spec, images: Any, seed: int, collate: Callable[[Any], Any]) -> Any:
    """A shuffled DataLoader that keeps its workers."""
    import torch

    return torch.utils.data.DataLoader(
        images, spec["batch"], shuffle=True, drop_last=True, num_workers=spec["workers"],
        persistent_workers=True, prefetch_factor=4, collate_fn=collate,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


# -- patches of photographs ------------------------------------------------------------------------

SIDE = 48
AREA = (0.25, 1.0)
ERASED, MIXUP = 0.25, 0.2
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


class Patches(NamedTuple):
    """``train``, ``test``: uint8 (N, 64, 64, 3), each with labels, int64 (N,)."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    classes: int


def patches(photographs: int | None = None) -> Patches:
    """The patches of the recipe, or of so many of its photographs."""
    cut = [list(recipe_of("photographs").patches(test)) for test in (False, True)]
    names = list(dict.fromkeys(name for name, _ in cut[0]))[:photographs]
    train, test = ([(pixels, names.index(name)) for name, pixels in part if name in names]
                   for part in cut)  # fmt: skip
    (a, of_a), (b, of_b) = (zip(*part, strict=True) for part in (train, test))
    return Patches(np.stack(a), np.array(of_a), np.stack(b), np.array(of_b), len(names))


def patches_of_ours(spec: Spec, data: Patches, seed: int) -> Batches:
    """Endless batches: float32 (B, 3, 48, 48), and labels (B, classes)."""
    from asyncreader.adapters.torch import TorchReader

    with TorchReader(
        data=data.train, labels=data.train_labels, batch_size=spec["batch"], shuffle=True,
        seed=seed, nthread=spec["workers"], njob=4, size=(SIDE, SIDE), crop="random-resized",
        flip=True, dtype="float32", scale=1 / 255, mean=MEAN, std=STD, crop_area=AREA,
        num_classes=data.classes, **spec["recipe"],
    ) as reader:  # fmt: skip
        while True:
            yield from reader


def patches_of_torchvision(spec: Spec, data: Patches, seed: int) -> Batches:
    """The same with torchvision's v2 transforms."""
    import torch
    from torchvision.transforms import v2

    chain = v2.Compose([
        v2.RandomResizedCrop(SIDE, scale=AREA), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.RandomErasing(p=ERASED),
    ])  # fmt: skip
    pixels = torch.from_numpy(data.train).permute(0, 3, 1, 2).contiguous()
    mixup = v2.MixUp(alpha=MIXUP, num_classes=data.classes)

    def mixed(samples: Any) -> Any:
        return mixup(*torch.utils.data.default_collate(samples))

    images = Transformed(pixels, data.train_labels, chain)
    loader = loader_of(spec, images, seed, mixed)
    while True:
        yield from loader


def small_network(classes: int) -> Any:
    from torch import nn

    def block(come: int, go: int) -> list[Any]:
        return [nn.Conv2d(come, go, 3, 2, 1, bias=False), nn.BatchNorm2d(go), nn.ReLU()]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def train_patches(batches: Batches, data: Patches, seed: int, steps: int) -> Trained:
    """Train a network from the first weights of ``seed``, and test it."""
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    model, losses = small_network(data.classes), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    next(batches)  # workers have started
    began = time.perf_counter()
    for images, labels in itertools.islice(batches, steps):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    seconds = time.perf_counter() - began
    batches.close()  # type: ignore[attr-defined]
    model.eval()
    images = torch.from_numpy(data.test).permute(0, 3, 1, 2).float() / 255
    images = functional.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
    with torch.no_grad():
        classes = model((images - 0.5) / 0.25).argmax(1).numpy()
    return Trained(float((classes == data.test_labels).mean()), losses, seconds)


def trained_on_patches(spec: Spec) -> Callable[[], Result]:
    data = patches()
    chain = patches_of_ours if "recipe" in spec else patches_of_torchvision

    def train(seed: int) -> Result:
        run = train_patches(chain(spec, data, seed), data, seed, spec["steps"])
        loss = float(np.mean(run.losses[-50:]))
        return {"seconds": run.seconds, "accuracy": run.accuracy, "last losses": loss}

    return seeds(train)


# -- CIFAR-10 --------------------------------------------------------------------------------------

Loaders = tuple[Any, Any]


class OfOurs:
    """The set packed in a temporary folder."""

    def __init__(self, spec: Spec, recipe: Any) -> None:
        from asyncreader import convert

        self.spec, self.recipe = spec, recipe
        self.scratch = tempfile.TemporaryDirectory(prefix="cifar10-")
        self.files = {split: Path(self.scratch.name) / f"{split}.h5" for split in ("train", "test")}
        for split, file in self.files.items():
            convert(Path(spec["cifar"]) / split, file, size=(32, 32), progress=False)

    @contextmanager
    def loaders(self, seed: int) -> Iterator[Loaders]:
        recipe = self.recipe
        shared = {**recipe.NUMBERS, "batch_size": self.spec["batch"], "njob": 3}
        with (
            recipe.TorchReader(
                shared, **recipe.RANDOM, path=self.files["train"], shuffle=True, seed=seed
            ) as train,
            recipe.TorchReader(shared, path=self.files["test"], last_batch="short") as test,
        ):
            yield train, test


class OfTorchvision:
    """The images in memory ("decoded"), or as files that are decoded in every epoch."""

    def __init__(self, spec: Spec, recipe: Any) -> None:
        import torch

        sys.path.insert(0, str(harness.ROOT / "tests" / "support"))
        from torchvision_pixels import load_torchvision

        load_torchvision()
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        self.spec, folder = spec, Path(spec["cifar"])
        normalise = v2.Normalize(recipe.NUMBERS["mean"], recipe.NUMBERS["std"])
        self.numbers = v2.Compose([v2.ToDtype(torch.float32, scale=True), normalise])
        chain = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])
        if spec["decoded"]:
            pixels, labels = self.in_memory(ImageFolder(folder / "train", v2.PILToTensor()))
            self.train: Any = Transformed(pixels, labels, chain)
        else:
            self.train = ImageFolder(folder / "train", v2.Compose([v2.PILToTensor(), chain]))
        self.test = self.in_memory(ImageFolder(folder / "test", v2.PILToTensor()))

    def in_memory(self, folder: Any) -> Loaders:
        """Images uint8 (N, 3, 32, 32) and labels int64 (N,) of an ImageFolder."""
        import torch

        loader = torch.utils.data.DataLoader(folder, 1000, num_workers=self.spec["workers"])
        images, labels = map(torch.cat, zip(*loader, strict=True))
        return images, labels

    def ready(self, samples: Loaders) -> Loaders:
        import torch

        images, labels = samples
        return self.numbers(images).contiguous(memory_format=torch.channels_last), labels

    def joined(self, samples: list[Any]) -> Loaders:
        import torch

        return self.ready(torch.utils.data.default_collate(samples))

    @contextmanager
    def loaders(self, seed: int) -> Iterator[Loaders]:
        from torch.utils.data import DataLoader, TensorDataset

        test = DataLoader(TensorDataset(*self.test), self.spec["batch"])
        train = loader_of(self.spec, self.train, seed, self.joined)
        yield train, map(self.ready, test)


def trained_on_cifar10(spec: Spec) -> Callable[[], Result]:
    import torch

    recipe, began = recipe_of("cifar10"), time.perf_counter()
    images: Any = (OfTorchvision if "decoded" in spec else OfOurs)(spec, recipe)
    prepared = time.perf_counter() - began

    def train(seed: int) -> Result:
        torch.manual_seed(seed)
        with images.loaders(seed) as (loader, test):
            model = recipe.network(10)
            seconds, waited = recipe.train(model, loader, spec["epochs"])
            figures = {"accuracy": recipe.accuracy(model, test), "waited s": waited}
            return {"seconds": seconds, **figures, "prepared s": prepared}

    return seeds(train)


# -- cases -----------------------------------------------------------------------------------------

TURNS: dict[str, Any] = {"unit": SECONDS, "warm": False, "rounds": 3}
RECIPE = {"augment": ["trivial-augment-wide", ["random-erasing", {"p": ERASED}]], "mixup": MIXUP}
STEPS = {"steps": Value(600, 60, "steps")}
CIFAR = {"cifar": Value("cifar", name="cifar"), "epochs": Value(8, 1, "epochs")}
PATCHES, CIFAR10 = "training.trained_on_patches", "training.trained_on_cifar10"
OURS, OTHER = "asyncreader", "torchvision"


def cifar10(name: str, group: str, decoded: bool) -> Case:
    contenders = [
        Contender(OURS, CIFAR10, CIFAR, ours=True),
        Contender(OTHER, CIFAR10, {**CIFAR, "decoded": decoded}, "torch"),
    ]
    return Case(name, group, contenders, [Goal(OURS, OTHER)], Setting(batch=128), **TURNS)


CASES = [
    Case("patches", "patches", [
        Contender(OURS, PATCHES, {**STEPS, "recipe": RECIPE}, ours=True),
        Contender(OTHER, PATCHES, STEPS, "torch"),
        Contender(f"{OURS}, crop and flip alone", PATCHES, {**STEPS, "recipe": {}}, ours=True),
    ], [Goal(OURS, OTHER)], Setting(batch=64), **TURNS),
    cifar10("CIFAR-10", "cifar10", True),
    cifar10("CIFAR-10, files decoded in every epoch", "imagefolder", False),
]  # fmt: skip

if __name__ == "__main__":
    asked = ("cifar10", "imagefolder")
    sys.exit(harness.main("training", __doc__, CASES, asked=asked))
