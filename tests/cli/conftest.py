"""What the commands are tried on: a folder of images, a packed set, and a set of others."""

from pathlib import Path

import numpy as np
import pytest
from command_sets import save_images
from fakes import hdf5

import converters


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 pictures in classes cat and dog, 12 x 10 (height x width)."""
    noise = np.random.default_rng(0).integers(0, 256, (20, 12, 10, 3), np.uint8)
    named = {f"{'cat' if n % 4 else 'dog'}/{n:02}.png": image for n, image in enumerate(noise)}
    return save_images(tmp_path_factory.mktemp("cli") / "photos", named)


@pytest.fixture(scope="module")
def packed(photos: Path) -> Path:
    """Those pictures as raw HDF5."""
    target = photos.parent / "packed.h5"
    converters.convert(photos, target)
    return target


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """An HDF5 set that is not ours: images (30, 6, 5, 3) int16, y (30,), boxes (30, 4)."""
    return hdf5(
        tmp_path / "foreign.h5",
        images=np.zeros((30, 6, 5, 3), "<i2"),
        y=np.arange(30) % 3 - 1,
        boxes=np.linspace(0, 1, 120).reshape(30, 4),
    )
