"""Packs image folders, and samples that a program adds, into standard HDF5 or LMDB files.

``convert`` is what ``asyncreader convert`` calls; the reader is in the package ``asyncreader``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncreader.system.late import late_names

if TYPE_CHECKING:
    from .report import ConvertReport
    from .writer import Writer, convert

__all__ = ["ConvertReport", "Writer", "convert"]

#: Names whose modules import the image libraries. They are imported on first use (PEP 562), so that
#: ``asyncreader convert --help`` starts fast.
_LATE = {"converters.report": "ConvertReport", "converters.writer": "Writer convert"}

__getattr__, __dir__ = late_names(globals(), _LATE)
