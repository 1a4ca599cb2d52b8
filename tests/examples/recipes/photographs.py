"""Packs patches of the photographs that scikit-image and scikit-learn ship, for other recipes.

python tests/examples/recipes/photographs.py photos-train.h5 photos-test.h5

The class of a patch is its photograph. A photograph is divided like a chessboard: patches to learn
from come from the white cells, those to be judged by from the black ones, so no pixel is in both.
"""

import argparse
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image
from sklearn.datasets import load_sample_images

from asyncreader import Writer

CELL, PATCH = 96, 64  # pixels
NAMES = (
    "astronaut", "brick", "camera", "chelsea", "coffee", "coins", "grass", "gravel", "ihc", "moon",
    "motorcycle_left", "page", "rocket", "text",
)  # fmt: skip


def photographs():
    """Names and pixels: uint8 (H, W, 3), grey ones with three equal channels."""
    for number, pixels in enumerate(load_sample_images().images):
        yield f"scikit-learn-{number}", np.asarray(pixels)
    for path in sorted(Path(skimage.data.__file__).parent.iterdir()):
        if path.stem in NAMES and path.suffix in (".png", ".jpg"):
            with Image.open(path) as image:
                yield path.stem, np.asarray(image.convert("RGB"))


def patches(test):
    """Names and patches (64, 64, 3) of the black cells (``test``), or of the white ones."""
    for name, photo in photographs():
        for y in range(0, photo.shape[0] - CELL + 1, CELL):
            for x in range(0, photo.shape[1] - CELL + 1, CELL):
                if (y // CELL + x // CELL) % 2 == test:
                    for dy in range(0, CELL - PATCH + 1, 16):
                        for dx in range(0, CELL - PATCH + 1, 16):
                            yield name, photo[y + dy :, x + dx :][:PATCH, :PATCH]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    options = parser.parse_args()
    for test, path in enumerate((options.train, options.test)):
        with Writer(path, overwrite=True) as writer:
            for name, patch in patches(test):
                writer.add(patch, name)
        print(f"{path}: {writer.report.count} patches")


if __name__ == "__main__":
    main()
