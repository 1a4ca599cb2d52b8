"""Layouts that installed packages add, and what such a package needs to write one.

A package names a :class:`LmdbLayout` or :class:`Hdf5Layout` in its entry points of the group
``asyncreader.layouts``. They are loaded for a set that no layout of asyncreader reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from ...errors import AsyncReaderError, SourceError
from ...pixels.specs import SampleSpec
from ..base import FieldIndex, SetFacts
from ..extents import Extents, ImageExtents
from ..fields import Found, Layout, SetIndex
from ..lmdb.entries import Entries
from .base import ForeignSet, encoded_images
from .hdf5_data import index_data
from .hdf5_set import Hdf5Set

__all__ = [
    "Entries",
    "Extents",
    "FieldIndex",
    "ForeignSet",
    "Hdf5Layout",
    "Hdf5Set",
    "ImageExtents",
    "LmdbLayout",
    "SampleSpec",
    "SetFacts",
    "SetIndex",
    "encoded_images",
    "index_data",
]

#: The group of entry points.
GROUP: Final = "asyncreader.layouts"


@dataclass(frozen=True)
class LmdbLayout(Layout[ForeignSet]):
    """A layout of LMDB sets."""


@dataclass(frozen=True)
class Hdf5Layout(Layout[Hdf5Set]):
    """A layout of HDF5 sets."""


def index_installed(found: Found, kind: type[Layout[Found]], path: str) -> SetIndex | None:
    """The index by the first installed layout, by name, that recognises the set in the file
    ``path``; None without one.

    ``kind``: :class:`LmdbLayout` or :class:`Hdf5Layout`. SourceError names the first layout that
    cannot be loaded or fails, if no other reads the set.
    """
    broken: SourceError | None = None
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            index = _index(point, found, kind)
        except AsyncReaderError:
            raise
        except Exception as exc:
            broken = broken or _failed(point, path, exc)
            continue
        if index is not None:
            return index
    if broken is not None:
        raise broken
    return None


def _index(point: EntryPoint, found: Found, kind: type[Layout[Found]]) -> SetIndex | None:
    """The index by the layout of an entry point; None where it does not recognise the set."""
    layout = point.load()
    if not isinstance(layout, LmdbLayout | Hdf5Layout):
        raise TypeError(f"an object of type {type(layout).__name__}")
    if not isinstance(layout, kind) or not layout.recognise(found):
        return None
    index: object = layout.index(found)
    if not isinstance(index, SetIndex):
        raise TypeError(f"index() returned {type(index).__name__}")
    return index


def _failed(point: EntryPoint, path: str, reason: Exception) -> SourceError:
    package = "?" if point.dist is None else point.dist.name
    error = SourceError(
        f"the layout {point.name!r} ({point.value}) of the package {package!r} does not work",
        path=path,
        found=f"{type(reason).__name__}: {reason}",
        expected="an LmdbLayout or Hdf5Layout of asyncreader.sources.layouts.plugins",
        hint=f"update or uninstall {package}",
    )
    error.__cause__ = reason
    return error
