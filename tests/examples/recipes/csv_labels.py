"""Labels from a CSV: regression (R2) and several yes or no for each image (mean precision, F1).

python tests/examples/recipes/csv_labels.py digits

It draws images of one to four digits of scikit-learn, each of which was blurred, and writes two
CSVs: how much (``blur``), and which digits are there (``has 0`` ... ``has 9``). Of each one network
learns.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, f1_score, r2_score
from torch import nn

from asyncreader import convert
from asyncreader.adapters.torch import TorchReader


def draw(folder, train, count):
    """Images 32 x 32 and their CSVs; digits to learn from and to be judged by are others."""
    rng, digits = np.random.default_rng(train), load_digits()
    numbers = np.arange(len(digits.target))[slice(0, 1200) if train else slice(1200, None)]
    (folder / "images").mkdir(parents=True, exist_ok=True)
    with (
        open(folder / "blur.csv", "w", newline="") as one,
        open(folder / "digits.csv", "w", newline="") as other,
    ):
        blurs, tags = csv.writer(one), csv.writer(other)
        blurs.writerow(["path", "blur"])
        tags.writerow(["path", *(f"has {k}" for k in range(10))])
        for number in range(count):
            chosen, radius = rng.choice(numbers, rng.integers(1, 5)), rng.uniform(0, 2)
            canvas = np.zeros((32, 32), np.uint8)
            for place, digit in zip(rng.permutation(4), chosen, strict=False):
                y, x = np.array(divmod(place, 2)) * 16 + rng.integers(0, 2, 2)
                large = np.kron(digits.images[digit], np.ones((2, 2)))[:15, :15]
                canvas[y : y + 15, x : x + 15] = large * 15
            name = f"{number:05}.png"
            blurred = Image.fromarray(canvas).filter(ImageFilter.GaussianBlur(radius))
            blurred.save(folder / "images" / name)
            blurs.writerow([name, round(radius, 3)])
            there = set(digits.target[chosen])
            tags.writerow([name, *(int(k in there) for k in range(10))])


def network(outputs):
    layers, width = [], 1
    for wider in (16, 32, 64):
        layers += [nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        width = wider
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, outputs))


def learn(name, loss_of, outputs, epochs):
    """Train on NAME.h5 of train and return targets and outputs of test, (N, outputs)."""
    torch.manual_seed(0)
    model = network(outputs)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    shared = {"batch_size": 50, "dtype": "float32", "scale": 1 / 255, "njob": 3}
    with TorchReader(shared, path=f"{name}-train.h5", shuffle=True) as loader:
        for _ in range(epochs):
            for images, targets in loader:  # as the CSV has them: float64 (50, 1), int64 (50, 10)
                loss = loss_of(model(images), targets.float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    model.eval()
    with (
        TorchReader(shared, path=f"{name}-test.h5", last_batch="short") as test,
        torch.inference_mode(),
    ):
        pairs = [(targets, model(images)) for images, targets in test]
    return (torch.cat(part).numpy() for part in zip(*pairs, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=4000, help="images to learn from")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    for part, count in (("train", options.count), ("test", 1000)):
        draw(options.folder / part, part == "train", count)
        for name in ("blur", "digits"):
            labels = options.folder / part / f"{name}.csv"
            packed = options.folder / f"{name}-{part}.h5"
            images = options.folder / part / "images"
            convert(images, packed, labels=labels, channels=1, progress=False, overwrite=True)
    truth, found = learn(options.folder / "blur", nn.functional.mse_loss, 1, options.epochs)
    print(f"R2 {r2_score(truth, found):.3f}")
    loss = nn.functional.binary_cross_entropy_with_logits
    truth, found = learn(options.folder / "digits", loss, 10, options.epochs)
    print(f"mean average precision {average_precision_score(truth, found):.3f}", end=", ")
    print(f"F1 {f1_score(truth, found > 0, average='macro'):.3f}")


if __name__ == "__main__":
    main()
