"""Sets with splits: tiny pictures, and what a set says of its splits and samples."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import asyncreader

TEXT = "train=0.8,val=0.1,test=0.1"


def pictures(folder: Path, names: Sequence[str]) -> Path:
    """Pictures of 2x2, each of its own colour."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        colour = number % 251, number // 251, len(name)
        Image.new("RGB", (2, 2), colour).save(path)
    return folder


def splits_of(path: Path) -> dict[str, set[str]]:
    """The paths in each split."""
    with asyncreader.open(path) as found:
        paths = found.paths
        assert paths is not None
        return {name: {paths[n] for n in rows.tolist()} for name, rows in found.splits.items()}


def contents(path: Path) -> dict[str, tuple[bytes, str | None]]:
    """The stored bytes and the class of each sample, by its path."""
    with asyncreader.open(path) as found:
        samples = [found.sample(n) for n in range(len(found))]
        return {str(one.path): (one.stored["data"], one.class_name) for one in samples}
