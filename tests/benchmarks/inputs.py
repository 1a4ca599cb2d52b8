"""The benchmark's inputs, cut from photographs that scikit-image and scikit-learn ship.

Each is built once in the folder given and found again by later runs. Sizes follow what people
train on: 224 x 224 crops, CIFAR's 32 x 32, and JPEGs of 500 x 375 and about 110 kB (ImageNet's).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

RAW224 = 4000
RAW32 = 50_000
JPEGS = 1000


def photographs() -> list[np.ndarray]:
    """The colour photographs, uint8 (H, W, 3)."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    names = ("astronaut", "chelsea", "coffee", "rocket", "retina", "immunohistochemistry")
    found = []
    for name in names:
        try:
            found.append(np.asarray(getattr(skimage.data, name)())[..., :3])
        except Exception:  # some are fetched over a network on first use: those that ship will do
            continue
    return found + [np.asarray(image) for image in load_sample_images().images]


def crops(count: int, height: int, width: int, seed: int) -> Iterator[np.ndarray]:
    """``count`` pieces of the photographs, rescaled to (height, width, 3), mirrored at random."""
    rng = np.random.default_rng(seed)
    photos = photographs()
    for _ in range(count):
        photo = photos[rng.integers(len(photos))]
        h, w = photo.shape[:2]
        scale = rng.uniform(0.45, 1.0)
        if w * height >= h * width:
            rows, columns = h * scale, h * scale * width / height
        else:
            rows, columns = w * scale * height / width, w * scale
        top, left = rng.uniform(0, h - rows), rng.uniform(0, w - columns)
        piece = Image.fromarray(photo).resize(
            (width, height), Image.Resampling.BILINEAR, box=(left, top, left + columns, top + rows)
        )
        pixels = np.asarray(piece)
        yield pixels[:, ::-1] if rng.random() < 0.5 else pixels


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, made by ``make(temporary)`` unless it is there."""
    if not path.exists():
        temporary = path.with_name(path.name + ".part")
        print(f"building {path.name} ...", flush=True)
        make(temporary)
        temporary.rename(path)
    return path


def raw_array(folder: Path, name: str, count: int, side: int) -> Path:
    """``count`` raw pictures as a .npy (count, side, side, 3) uint8."""

    def make(path: Path) -> None:
        pixels = np.empty((count, side, side, 3), np.uint8)
        for i, piece in enumerate(crops(count, side, side, seed=side)):
            pixels[i] = piece
        with open(path, "wb") as file:
            np.save(file, pixels)

    return once(folder / f"{name}.npy", make)


def jpeg_folder(folder: Path, count: int = JPEGS) -> Path:
    """``count`` JPEGs of 500 x 375 and about 110 kB in ten class folders."""

    def make(path: Path) -> None:
        for i, piece in enumerate(crops(count, 375, 500, seed=1)):
            into = path / f"class{i % 10}"
            into.mkdir(parents=True, exist_ok=True)
            (into / f"{i:05d}.jpg").write_bytes(_jpeg_of_about(piece, 110_000))

    return once(folder / f"jpeg{count}", make)


def _jpeg_of_about(pixels: np.ndarray, size: int) -> bytes:
    """The JPEG (4:2:0) whose quality brings it nearest to ``size`` bytes."""
    best = b""
    for quality in (85, 90, 93, 95, 97, 98, 99):
        held = io.BytesIO()
        Image.fromarray(pixels).save(held, "JPEG", quality=quality, subsampling=2)
        data = held.getvalue()
        if not best or abs(len(data) - size) < abs(len(best) - size):
            best = data
    return best
