"""The kernels of kernels.py as numba compiles them; importable only where numba is."""

from __future__ import annotations

from . import (  # noqa: F401
    augmenting,
    copying,
    filling,
    jpeg_parts,
    jpeg_scans,
    numbers,
    order,
    planes,
    records,
    resizing,
)
from .base import KERNELS, is_kept, keep_in, load

__all__ = ["KERNELS", "is_kept", "keep_in", "load"]
