"""The kernels of kernels.py as numba compiles them; importable only where numba is."""

from __future__ import annotations

from . import augmenting, converting, copying, jpeg_parts, jpeg_restarts, order, resizing  # noqa: F401
from .base import KERNELS, is_kept, keep_in, load

__all__ = ["KERNELS", "is_kept", "keep_in", "load"]
