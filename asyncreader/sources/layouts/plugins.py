"""Layouts that installed packages add, and what such a package needs to write one.

A package names a :class:`LmdbLayout` or :class:`Hdf5Layout` in its entry points of the group
``asyncreader.layouts``. They are loaded for a set that no layout of asyncreader reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import numpy as np

from ...errors import AsyncReaderError, FormatError, SourceError
from ...pixels.specs import SampleSpec
from ..base import FieldIndex, SetFacts, check_extents
from ..bytestore import ByteFile
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


def index_installed(found: Found, kind: type[Layout[Found]], file: ByteFile) -> SetIndex | None:
    """The index by the first installed layout, by name, that recognises the set in ``file``; None
    without one.

    ``kind``: :class:`LmdbLayout` or :class:`Hdf5Layout`. SourceError names a layout that cannot be
    loaded, if no other recognises the set, and one that fails; FormatError where samples do not lie
    in the file.
    """
    path = file.path
    broken: SourceError | None = None
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            layout = _load(point, path)
        except SourceError as exc:
            broken = broken or exc
            continue
        if not isinstance(layout, kind):
            continue
        if _called(layout.recognise, found, point, path):
            index = _called(layout.index, found, point, path)
            if not isinstance(index, SetIndex):
                raise _failed(point, path, f"index() returned {type(index).__name__}")
            _check(index, point, file)
            return index
    if broken is not None:
        raise broken
    return None


def _load(point: EntryPoint, path: str) -> object:
    try:
        layout = point.load()
    except Exception as exc:
        raise _failed(point, path, f"{type(exc).__name__}: {exc}") from exc
    if not isinstance(layout, LmdbLayout | Hdf5Layout):
        raise _failed(point, path, f"an object of type {type(layout).__name__}")
    return layout


def _called(call: Callable[[Found], object], found: Found, point: EntryPoint, path: str) -> object:
    """What a function of a layout returns."""
    try:
        return call(found)
    except AsyncReaderError:
        raise
    except Exception as exc:
        raise _failed(point, path, f"{type(exc).__name__}: {exc}") from exc


def _failed(point: EntryPoint, path: str, found: str) -> SourceError:
    package = "?" if point.dist is None else point.dist.name
    return SourceError(
        f"the layout {point.name!r} ({point.value}) of the package {package!r} does not work",
        path=path,
        found=found,
        expected="an LmdbLayout or Hdf5Layout of asyncreader.sources.layouts.plugins",
        hint=f"update or uninstall {package}",
    )


def _check(index: SetIndex, point: EntryPoint, file: ByteFile) -> None:
    """SourceError unless an index has a row of each table for each sample; FormatError unless its
    samples lie inside the file: they are read without another look at their bounds."""
    count, field = index.facts.count, index.first
    spec, storage = field.spec, field.storage
    tables = {"labels": index.labels, "checksums": field.checksums}
    if isinstance(storage, Extents):
        tables |= {name: getattr(storage, name, None) for name in ("starts", "sizes", "shapes")}
    for name, table in tables.items():
        if isinstance(table, np.ndarray) and len(table) != count:
            raise _failed(point, file.path, f"{len(table)} {name} for {count} samples")
    if not isinstance(storage, Extents):
        return
    starts = storage.starts
    if isinstance(starts, tuple):
        starts = starts[0] + starts[1] * np.arange(count, dtype=np.int64)
    sizes = np.broadcast_to(np.asarray(storage.sizes), starts.shape)
    check_extents(starts, sizes, file.size, file.path)
    if spec.encoded or (isinstance(storage, ImageExtents) and storage.tagged):
        return
    shapes = getattr(storage, "shapes", None)
    item = spec.dtype.itemsize
    expected = spec.row_bytes if shapes is None else shapes.prod(axis=1) * item
    wrong = np.flatnonzero(sizes != expected)
    if wrong.size:
        record = int(wrong[0])
        raise FormatError(
            "a sample's size does not match its shape",
            path=file.path,
            index=record,
            found=f"{int(sizes[record])} bytes",
            expected=f"{int(np.broadcast_to(expected, sizes.shape)[record])} bytes",
        )
