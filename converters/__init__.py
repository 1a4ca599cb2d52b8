"""Packs picture folders, and samples that a program adds, into standard HDF5 or LMDB files.

``convert`` is what ``asyncreader convert`` calls; the reader is in the package ``asyncreader``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .pack import convert
    from .report import ConvertReport
    from .writer import Writer

__all__ = ["ConvertReport", "Writer", "convert"]

#: Names whose modules import the image libraries. They are imported on first use (PEP 562), so that
#: ``asyncreader convert --help`` starts fast.
_LATE = {"ConvertReport": "report", "Writer": "writer", "convert": "pack"}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
