"""Packs picture folders into standard HDF5 or LMDB files, and one container into the other.

``convert`` is what ``asyncreader convert`` calls; the reader is in the package ``asyncreader``.
"""

from .pack import convert
from .report import ConvertReport

__all__ = ["ConvertReport", "convert"]
