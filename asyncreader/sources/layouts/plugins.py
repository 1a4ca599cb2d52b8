"""What a layout of others' sets is written with: for those here, and for those that packages add.

A package names a :class:`LmdbLayout` or :class:`Hdf5Layout` in its entry points of the group
``asyncreader.layouts``. They are loaded for a set that no layout of asyncreader reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ...errors import AsyncReaderError, ErrorFields, FormatError, ParamsError, SourceError
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Int64
from ..base import FieldIndex, Names, SetFacts, check_extents, check_sizes, default_block
from ..bytestore import ByteFile, OpenFile
from ..extents import Extents, ImageExtents, stored_images
from ..fields import Found, Layout, SetIndex
from ..lmdb import AGAIN, Entries, LmdbFile, Tree, shown_key
from ..request import Request
from .hdf5_data import Hdf5Set, index_data

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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

#: Keys of some layouts that are not records.
_KEYS, _LENGTH_OF, LENGTH = b"__keys__", b"__len__", b"length"

#: What a pickle begins with: the opcode PROTO and a protocol from 2 to 5.
_PICKLES: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


@dataclass(frozen=True)
class ForeignSet:
    """An open LMDB set that others packed; each layout's opener gets one."""

    file: OpenFile
    tree: LmdbFile
    named: Mapping[bytes, Tree]
    fields: Request

    @property
    def path(self) -> str:
        """The set's name for messages."""
        return self.file.path

    @cached_property
    def entries(self) -> Entries:
        """All entries of the main database."""
        return self.tree.table(self.tree.main)

    @cached_property
    def records(self) -> Entries:
        """Its entries but for those that describe the set."""
        entries = self.entries
        keep = np.ones(len(entries), np.bool_)
        for key in (_KEYS, _LENGTH_OF, LENGTH):
            at = entries.place(key)
            if at < len(entries) and entries.key(at) == key:
                keep[at] = False
        if not keep.any():
            raise FormatError("an LMDB without a record")
        return entries if keep.all() else entries.pick(keep)

    @cached_property
    def first(self) -> bytes:
        """What the first record's value begins with."""
        return self.records.value(0)[:64].tobytes()

    @cached_property
    def keyed(self) -> bool:
        """Whether the set lists its keys."""
        return self.find(_KEYS) is not None

    def find(self, key: bytes) -> bytes | None:
        """The value of a key of the main database."""
        value = self.tree.find(self.tree.main, key)
        return None if value is None else value.tobytes()

    def check_fields(self, data: tuple[str, ...], labels: tuple[str, ...]) -> None:
        """ParamsError if this layout lacks a named field: the caller would get other data."""
        self.fields.check_labels_path("this dataset")
        self.fields.check_names(data, labels)
        self.check_dims()

    def check_dims(self) -> None:
        """ParamsError if axes are named and the layout fixes them."""
        if self.fields.dims not in (None, (1, 2, 3, 4)):
            raise ParamsError(
                "num_dim, h_dim, w_dim and cha_dim apply to HDF5 files and to arrays in an LMDB",
                found="a layout with fixed axes",
            )

    def index(
        self,
        layout: str,
        stored: SampleSpec,
        extents: Extents,
        labels: Array | None,
        entries: Entries,
        *,
        classes: tuple[str, ...] | None = None,
        origin: Callable[[bytes], bytes | None] | None = None,
    ) -> SetIndex:
        """The index of samples that lie in the values of ``entries``. FormatError unless they lie
        in the file, as large as they are said to be: they are read without another look."""
        count, starts = len(entries), extents.starts
        if labels is not None and len(labels) != count:
            what = "there are not as many labels as samples"
            raise FormatError(what, found=f"{len(labels)} labels for {count} samples")
        if isinstance(starts, tuple):
            starts = starts[0] + starts[1] * np.arange(count)
        assert isinstance(starts, np.ndarray)
        sizes = np.broadcast_to(extents.sizes, starts.shape)
        check_extents(starts, sizes, self.file.size)
        tagged = isinstance(extents, ImageExtents) and extents.tagged
        if stored.shape is not None and not stored.encoded and not tagged:
            check_sizes(sizes, stored, AGAIN)
        facts = SetFacts.of(self.file, "LMDB", layout, count, classes=classes)
        field = FieldIndex(
            stored,
            extents,
            self.file.where,
            names=EntryNames(entries.key_starts(), entries.key_sizes, origin),
            block=default_block(int(np.mean(extents.sizes))),
        )
        return SetIndex(facts, {self.fields.data: field}, labels)


@dataclass(frozen=True, eq=False)
class EntryNames(Names):
    """Keys of LMDB entries: where each lies in the file, and how long it is.

    ``origin``: the source path of a sample by its key, if that holds it.
    """

    at: Int64
    sizes: npt.NDArray[np.uint16]
    origin: Callable[[bytes], bytes | None] | None = None

    def _key(self, file: ByteFile, index: int) -> bytes | None:
        # through the store: with io="pread" a shortened file must not kill the process
        try:
            return file.store.view(int(self.at[index]), int(self.sizes[index])).tobytes()
        except SourceError:
            return None

    def key(self, file: ByteFile, index: int) -> str | None:
        """A sample's key as errors show it."""
        key = self._key(file, index)
        return None if key is None else shown_key(key)

    def path(self, file: ByteFile, index: int) -> bytes | None:
        """A sample's source path, if its key holds it."""
        key = None if self.origin is None else self._key(file, index)
        return None if key is None or self.origin is None else self.origin(key)


def is_pickle(entries: Entries) -> bool:
    """Whether the first value looks like a pickle of protocol 2 or newer: it ends with a stop."""
    value = entries.value(0)
    return value[:2].tobytes() in _PICKLES and value[-1:].tobytes() == b"."


def in_order(entries: Entries) -> Entries:
    """Entries sorted by number if all keys are numbers: unpadded, "10" comes before "2"."""
    numbers = entries.numbers()
    return entries.pick(np.argsort(numbers, kind="stable")) if (numbers >= 0).all() else entries


def encoded_images(
    found: ForeignSet,
    entries: Entries,
    starts: Int64,
    sizes: Array,
    layout: str,
    *,
    shape: tuple[int, int, int] | None = None,
    channels: int = 3,
    look: bool = True,
    labels: Array | None = None,
    classes: tuple[str, ...] | None = None,
    origin: Callable[[bytes], bytes | None] | None = None,
) -> SetIndex:
    """The index of image files inside values. ``look``: read headers to see if all have one size;
    ``origin``: see :class:`EntryNames`."""
    stored = stored_images(found.tree.data, starts, sizes, shape, channels, look)
    extents = Extents(starts, sizes)
    return found.index(layout, stored, extents, labels, entries, classes=classes, origin=origin)


def unknown(
    what: str, entries: Entries | None = None, why: FormatError | None = None
) -> FormatError:
    """The error for an LMDB of an unknown layout."""
    where: ErrorFields = {} if entries is None else entries.blame(0)
    where["found"] = what + ("" if why is None else f"; as a Caffe Datum: {why.what}")
    where["expected"] = (
        "asyncreader, ml-pyxis, Caffe Datum, OCR, BasicSR, StyleGAN2, tensorpack (msgpack) or bare "
        "images (LSUN)"
    )
    return FormatError("an LMDB layout that is not read", **where)


#: The group of entry points.
GROUP: Final = "asyncreader.layouts"


@dataclass(frozen=True)
class LmdbLayout(Layout[ForeignSet]):
    """A layout of LMDB sets."""


@dataclass(frozen=True)
class Hdf5Layout(Layout[Hdf5Set]):
    """A layout of HDF5 sets."""


def index_installed(found: Found, kind: type[Layout[Found]]) -> SetIndex | None:
    """The index by the first installed layout, by name, that recognises the set; None
    without one.

    ``kind``: :class:`LmdbLayout` or :class:`Hdf5Layout`. SourceError names the first layout that
    cannot be loaded or fails, if no other reads the set.
    """
    from importlib.metadata import entry_points  # loads most of what reads packages

    broken: SourceError | None = None
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            index = _index(point, found, kind)
        except AsyncReaderError:
            raise
        except Exception as exc:
            broken = broken or _failed(point, exc)
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


def _failed(point: EntryPoint, reason: Exception) -> SourceError:
    package = "?" if point.dist is None else point.dist.name
    error = SourceError(
        f"the layout {point.name!r} ({point.value}) of the package {package!r} does not work",
        found=f"{type(reason).__name__}: {reason}",
        expected="an LmdbLayout or Hdf5Layout of asyncreader.sources.layouts.plugins",
        hint=f"update or uninstall {package}",
    )
    error.__cause__ = reason
    return error
