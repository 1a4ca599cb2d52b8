"""The kernels of kernels.py as numba compiles them; importable only where numba is."""

from __future__ import annotations

from . import copying, jpeg, resizing
from .base import KERNELS, is_kept, keep_in, load

__all__ = ["KERNELS", "copying", "is_kept", "jpeg", "keep_in", "load", "resizing"]
