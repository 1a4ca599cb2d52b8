"""A small network trained with torchvision's transforms and with ours, to the same accuracy.

``python tests/benchmarks/train_recipes.py`` trains it on the CPU, with three seeds for each chain,
and prints the accuracy on held-out pictures and the seconds that training took. It needs torch,
torchvision, scikit-image and scikit-learn.

The pictures are patches of 64 x 64 pixels of the photographs that scikit-image and scikit-learn
ship; the class of a patch is its photograph. A photograph is divided into cells of 96 x 96 pixels
like a chessboard: patches for training come from the white cells, those for testing from the black
ones, so that no pixel is in both. Both chains have the same pictures, first weights, optimizer and
number of steps, and the recipe: random-resized crops of 48 x 48, mirrored at random,
trivial-augment-wide, normalised, random-erasing, mixup. "crop and flip alone" is ours without the
last four, and shows what the recipe does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

PATCH, SIDE, CELL = 64, 48, 96
BATCH, WORKERS = 64, 2
AREA = (0.25, 1.0)
ERASED, MIXUP = 0.25, 0.2
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

#: Photographs that come with scikit-image itself.
NAMES = (
    "astronaut", "brick", "camera", "cell", "chelsea", "clock_motion", "coffee", "coins", "grass",
    "gravel", "hubble_deep_field", "ihc", "moon", "motorcycle_left", "page", "retina", "rocket",
    "text",
)  # fmt: skip


class Patches(NamedTuple):
    """``train``, ``test``: uint8 (N, 64, 64, 3), each with labels, int64 (N,)."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    classes: int


def photographs() -> list[np.ndarray]:
    """Photographs as uint8 (H, W, 3), grey ones with three equal channels."""
    from pathlib import Path

    import skimage.data
    from PIL import Image
    from sklearn.datasets import load_sample_images

    found = [np.asarray(image) for image in load_sample_images().images]
    for path in sorted(Path(skimage.data.__file__).parent.iterdir()):
        if path.stem in NAMES and path.suffix in (".png", ".jpg"):
            with Image.open(path) as image:
                found.append(np.asarray(image.convert("RGB")))
    return found


def patches(photos: list[np.ndarray]) -> Patches:
    """The patches: of white cells one each 16 pixels, of black ones one each 32."""
    parts: list[list[np.ndarray]] = [[], []]
    labels: list[list[int]] = [[], []]
    for number, photo in enumerate(photos):
        for top in range(0, photo.shape[0] - CELL + 1, CELL):
            for left in range(0, photo.shape[1] - CELL + 1, CELL):
                test = (top // CELL + left // CELL) % 2
                cell = photo[top : top + CELL, left : left + CELL]
                places = range(0, CELL - PATCH + 1, 32 if test else 16)
                found = [cell[y : y + PATCH, x : x + PATCH] for y in places for x in places]
                parts[test] += found
                labels[test] += [number] * len(found)
    (train, test_), (of_train, of_test) = parts, labels
    return Patches(
        np.stack(train), np.array(of_train), np.stack(test_), np.array(of_test), len(photos)
    )


# -- the chains: endless batches, float32 (B, 3, 48, 48) and labels (B, classes) ------------------

Batches = Iterator[tuple[Any, Any]]


def ours(data: Patches, seed: int, recipe: bool = True) -> Batches:
    from asyncreader.adapters.torch import TorchReader

    more: dict[str, Any] = {"crop_area": AREA, "num_classes": data.classes}
    if recipe:
        erasing = ("random-erasing", {"p": ERASED})
        more |= {"augment": ["trivial-augment-wide", erasing], "mixup": MIXUP}
    with TorchReader(
        data=data.train, labels=data.train_labels, batch_size=BATCH, shuffle=True, seed=seed,
        nthread=WORKERS, njob=4, size=(SIDE, SIDE), crop="random-resized", flip=True,
        dtype="float32", scale=1 / 255, mean=MEAN, std=STD, **more,
    ) as reader:  # fmt: skip
        while True:
            yield from reader


def crop_and_flip(data: Patches, seed: int) -> Batches:
    return ours(data, seed, recipe=False)


def torchvision(data: Patches, seed: int) -> Batches:
    import torch
    from torch.utils.data import DataLoader, default_collate
    from torchvision.transforms import v2

    chain = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, scale=AREA),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.RandomErasing(p=ERASED),
        ]
    )
    pictures = torch.from_numpy(data.train).permute(0, 3, 1, 2).contiguous()
    mixup = v2.MixUp(alpha=MIXUP, num_classes=data.classes)

    class Pictures:
        def __len__(self) -> int:
            return len(pictures)

        def __getitem__(self, index: int) -> Any:
            return chain(pictures[index]), int(data.train_labels[index])

    def mixed(samples: Any) -> Any:
        return mixup(*default_collate(samples))

    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        Pictures(), BATCH, shuffle=True, drop_last=True, num_workers=WORKERS, collate_fn=mixed,
        persistent_workers=True, prefetch_factor=4, generator=order,
    )  # type: ignore[arg-type, var-annotated]  # fmt: skip
    while True:
        yield from loader


CHAINS: dict[str, Callable[[Patches, int], Batches]] = {
    "ours": ours,
    "torchvision v2": torchvision,
    "ours, crop and flip alone": crop_and_flip,
}


# -- training ------------------------------------------------------------------------------------


def network(classes: int) -> Any:
    from torch import nn

    def block(come: int, go: int) -> list[Any]:
        return [nn.Conv2d(come, go, 3, 2, 1, bias=False), nn.BatchNorm2d(go), nn.ReLU()]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class Trained(NamedTuple):
    """``losses``: of each step; ``seconds``: of all steps, waiting for batches included."""

    accuracy: float
    losses: list[float]
    seconds: float


def train(chain: str, data: Patches, seed: int, steps: int) -> Trained:
    """Train a network from the first weights of ``seed``, and test it."""
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    model, losses = network(data.classes), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = CHAINS[chain](data, seed)
    next(batches)  # workers have started
    started = time.perf_counter()
    for _ in range(steps):
        pictures, labels = next(batches)
        loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    seconds = time.perf_counter() - started
    batches.close()  # type: ignore[attr-defined]
    model.eval()
    pictures = torch.from_numpy(data.test).permute(0, 3, 1, 2).float() / 255
    pictures = functional.interpolate(pictures, (SIDE, SIDE), mode="bilinear", antialias=True)
    with torch.no_grad():
        found = model((pictures - 0.5) / 0.25).argmax(1).numpy()
    return Trained(float((found == data.test_labels).mean()), losses, seconds)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--chain", action="append", choices=tuple(CHAINS), help="only this one")
    options = parser.parse_args(arguments)
    data = patches(photographs())
    print(
        f"{len(data.train):,} patches for training, {len(data.test):,} for testing, {data.classes} "
        f"classes; {options.steps} steps of {BATCH}, {WORKERS} workers.\n"
    )
    print("| chain | accuracy, mean | of each seed | last losses | seconds, mean |")
    print("|---|--:|---|--:|--:|", flush=True)
    for chain in options.chain or CHAINS:
        runs = [train(chain, data, seed, options.steps) for seed in range(options.seeds)]
        each = ", ".join(f"{run.accuracy:.3f}" for run in runs)
        mean = statistics.mean(run.accuracy for run in runs)
        loss = statistics.mean(statistics.mean(run.losses[-50:]) for run in runs)
        seconds = statistics.mean(run.seconds for run in runs)
        print(f"| {chain} | {mean:.3f} | {each} | {loss:.3f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
