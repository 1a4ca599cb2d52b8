"""What the commands are tried on: a folder of images, a packed set, and a set of others."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

import converters


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 pictures in classes cat and dog, 12 x 10 (height x width)."""
    folder = tmp_path_factory.mktemp("cli") / "photos"
    rng = np.random.default_rng(0)
    for number in range(20):
        path = folder / ("cat" if number % 4 else "dog") / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def packed(photos: Path) -> Path:
    """Those pictures as raw HDF5."""
    target = photos.parent / "packed.h5"
    converters.convert(photos, target)
    return target


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """An HDF5 set that is not ours: images (30, 6, 5, 3) int16, y (30,), boxes (30, 4)."""
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((30, 6, 5, 3), "<i2")
        file["y"] = np.arange(30) % 3 - 1
        file["boxes"] = np.linspace(0, 1, 120).reshape(30, 4)
    return path
