"""Plain numpy twin of the kernel that copies boxes."""

from __future__ import annotations

import numpy as np

from ..array_types import Array, Int64
from .twins import bytes_at


def copy_boxes_numpy(
    sources: Int64, targets: Int64, extents: Int64, near: Int64, far: Int64, item: int
) -> None:
    """Copy boxes of elements of ``item`` bytes. Box ``i`` has ``extents[i]`` (n, rank) elements,
    which lie ``near`` (rank,) bytes apart from ``sources[i]`` on, and go ``far`` bytes apart from
    ``targets[i]`` on."""
    for source, target, extent in zip(
        sources.tolist(), targets.tolist(), extents.tolist(), strict=True
    ):
        if 0 not in extent:
            _box(target, extent, far, item)[...] = _box(source, extent, near, item)


def _box(address: int, extent: list[int], steps: Int64, item: int) -> Array:
    """The elements of a box as bytes, uint8 (*extent, item)."""
    last = sum((n - 1) * step for n, step in zip(extent, steps.tolist(), strict=True))
    found: Array = np.ndarray(
        (*extent, item), np.uint8, bytes_at(address, last + item), 0, (*steps.tolist(), 1)
    )
    return found
