"""Segmentation: which texture is at each pixel; targets (B, H, W) int64, as torch's losses take.

python tests/examples/recipes/segmentation.py textures

Images are mosaics of three photographs of scikit-image (brick, grass, gravel); those to learn from
are cut from their left halves, those to be judged by from their right halves.
"""

import argparse

import numpy as np
import skimage.data
import torch
from torch import nn

from asyncreader import Writer
from asyncreader.adapters.torch import TorchReader

SIDE, CLASSES = 64, 3


def pack(path, count, half, rng):
    """``count`` mosaics (64, 64, 1) uint8, each with its ``mask`` (64, 64) uint8."""
    photos = [skimage.data.brick(), skimage.data.grass(), skimage.data.gravel()]  # (512, 512)
    with Writer(path, overwrite=True) as writer:
        for _ in range(count):
            places = zip(
                rng.integers(0, 512 - SIDE, 3), rng.integers(0, 256 - SIDE, 3), strict=True
            )
            parts = [p[y:, x + 256 * half :] for p, (y, x) in zip(photos, places, strict=True)]
            # the class of a pixel is that of the nearest of five points
            points, kinds = rng.uniform(0, SIDE, (5, 2, 1, 1)), rng.permutation([0, 1, 2, 0, 1])
            nearest = ((np.mgrid[:SIDE, :SIDE] - points) ** 2).sum(axis=1).argmin(axis=0)
            mask = kinds[nearest].astype(np.uint8)
            image = np.choose(mask, [part[:SIDE, :SIDE] for part in parts])
            writer.add(image[:, :, None], mask=mask)


def masks_as_targets(data, labels):
    """What the workers do with a batch: the masks become its labels."""
    images, masks = data
    return images, masks.astype(np.int64)


def network():
    def block(come, go, dilation):
        convolution = nn.Conv2d(come, go, 3, padding=dilation, dilation=dilation)
        return [convolution, nn.BatchNorm2d(go), nn.ReLU()]

    layers = [layer for d in (1, 2, 4, 8) for layer in block(1 if d == 1 else 16, 16, d)]
    return nn.Sequential(*layers, nn.Conv2d(16, CLASSES, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="NAME-train.h5 and NAME-test.h5 are written")
    parser.add_argument("--count", type=int, default=1000, help="images to learn from")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    pack(f"{options.name}-train.h5", options.count, 0, rng)
    pack(f"{options.name}-test.h5", 200, 1, rng)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    shared = {"data_field": ["data", "mask"], "postprocess": masks_as_targets, "batch_size": 20}
    shared |= {"dtype": "float32", "scale": 1 / 255, "mean": 0.5, "std": 0.25, "njob": 3}
    with TorchReader(shared, path=f"{options.name}-train.h5", shuffle=True, flip=True) as loader:
        for epoch in range(options.epochs):
            for images, targets in loader:  # (20, 1, 64, 64) float32, (20, 64, 64) int64
                loss = nn.functional.cross_entropy(model(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
    model.eval()
    both, either = torch.zeros(CLASSES), torch.zeros(CLASSES)
    with TorchReader(shared, path=f"{options.name}-test.h5") as test, torch.inference_mode():
        for images, targets in test:
            found = model(images).argmax(1)
            for k in range(CLASSES):
                both[k] += ((found == k) & (targets == k)).sum()
                either[k] += ((found == k) | (targets == k)).sum()
    print(f"IoU {(both / either).mean():.3f}:", *(f"{value:.3f}" for value in both / either))


if __name__ == "__main__":
    main()
