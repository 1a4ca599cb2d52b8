"""An open HDF5 set: its data set, labels, checksums and paths, found and checked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from ...errors import FormatError, SourceNotFoundError
from ...formats import packed as fmt
from ...pixels.specs import SampleSpec
from ...system.array_types import Array
from ...system.late import h5py
from ..arrays import TEXT_LABELS
from ..base import FieldIndex, Refusing, SetFacts
from ..bytestore import ByteFile, OpenFile
from ..fields import SetIndex
from ..hdf5.file import Hdf5, translated
from ..hdf5.stored import Stored
from ..labels import numbered
from ..request import Request, check_labels
from . import fuel

#: Labels, and the names of their classes; None where there are none.
Found: TypeAlias = tuple[Array | None, tuple[str, ...] | None]
#: 1-based axes (number, height, width, channel).
Axes: TypeAlias = tuple[int, int, int, int]

#: Names of the root group of which groups are looked at to recognise a file.
_FEW: Final = 16
AGAIN: Final = "copy or convert it again"
_WITHOUT: Final = "labels_field=None serves the data without labels"
#: Fewer labels than rows: the rows may be values of samples of different length.
_RAGGED: Final = (
    f"{_WITHOUT}; where each sample is several of these rows, offsets_field names the dataset with "
    "their starts or lengths"
)
_TEXT_LABELS: Final = f"{TEXT_LABELS}; {_WITHOUT}"


def _unknown(shape: tuple[int, ...]) -> Axes | None:
    return None


@dataclass(frozen=True)
class Hdf5Set(Refusing):
    """An open HDF5 set, which is handed from check to check until it is indexed.

    A layout fills in the rest: ``layout``: its name; ``unlabelled``: samples without labels come
    last, and are left out; ``axes``: of data of a shape, unless the caller names them.
    """

    file: ByteFile
    h5: Hdf5
    fields: Request
    layout: str = ""
    unlabelled: bool = False
    axes: Callable[[tuple[int, ...]], Axes | None] = _unknown

    @cached_property
    def path(self) -> str:  # type: ignore[override]
        """The file's name for messages."""
        return self.file.path

    # -- for layouts -----------------------------------------------------------------------

    @cached_property
    def unnamed(self) -> bool:
        """Whether the file has no ``data``, and the caller does not say what to read instead."""
        return self.fields.data == fmt.DATA and fmt.DATA not in self.h5.names

    @property
    def labels_unnamed(self) -> bool:
        """Whether the file has no ``labels``, and the caller does not say what to read instead."""
        fields = self.fields
        named = fields.labels != fmt.LABELS or fields.labels_required
        return not named and fmt.LABELS not in self.h5.names

    def samples(self, name: str) -> Stored | None:
        """A data set of the root group that is in this file and has rows, or None."""
        item = self.h5.member(name)
        return item if item is not None and item.ndim else None

    def groups(self) -> list[str]:
        """The groups of the root group; none of a file that has many names."""
        h5 = self.h5
        inside = h5.members(h5.reach("")) if len(h5.names) <= _FEW else ()
        named = (name for name, item in inside if isinstance(item, h5py.h5g.GroupID))
        return sorted(name.decode("utf-8", "surrogateescape") for name in named)

    def named(self, layout: str, fields: Request) -> Hdf5Set:
        """The same set, recognised: ``layout`` is its name, "" for none. What the caller did not
        name and ``fields`` do is said after it."""
        before = self.fields
        if (fields.data, fields.labels) != (before.data, before.labels):
            names = fields.data
            if fields.labels is not None and (fields.labels_path or fields.labels in self.h5.names):
                names += f", labels from {fields.labels}"
            layout = f"{layout} ({names})" if layout else names
        return replace(self, layout=layout, fields=fields)

    # -- finding things --------------------------------------------------------------------

    def dataset(self, name: str, records: bool = False) -> Stored:
        """A data set by name, reached by links inside the file only and stored in it; ``records``:
        its rows may be structured."""
        found = self.h5.find(name, records)
        if found is None:
            raise self.h5.no_field(name)
        found.check_samples()
        return found

    def rows(self, name: str) -> Stored:
        """The data set of a field, or the one that it is a member of."""
        return self.dataset(self.h5.member_of(name)[0], records=True)

    def table(self, name: str) -> Array:
        """All of a small data set, or one member of its structured rows."""
        held, member = self.h5.member_of(name)
        return self.dataset(held, member is not None).values(member=member)

    def count(self, rows: int) -> int:
        """The number of samples served out of ``rows``."""
        labels = self.fields.labels
        if not self.unlabelled or labels is None or self.h5.reach(labels) is None:
            return rows
        found = self.dataset(labels)
        if found.ndim == 0 or not found.size:
            _check_labels(found, rows, self.path, labels)
        return min(rows, found.shape[0])

    def rows_in(self, data: Stored, axis: int = 0) -> int:
        """The number of rows in a data set: of episodes and of time, where both are axes."""
        return math.prod(data.shape[axis : axis + self.fields.lead])

    def labels(self, rows: int, spec: SampleSpec) -> Found:
        """The labels that are asked for, of ``rows`` rows of which ``spec`` are served, and of text
        the sorted classes; None where there are none."""
        fields, path = self.fields, self.fields.labels_path
        if fields.labels is None:
            return None, None
        if path is None:
            labels, classes = self._labels_inside(fields.labels, self.count(rows))
        else:
            labels, classes = _labels_elsewhere(path, fields.labels, rows)
        if labels is not None:
            check_labels(labels.shape, spec, fields, self.path, in_file=path is None)
        return labels, classes

    def _labels_inside(self, asked: str, count: int) -> Found:
        name, member = self.h5.member_of(asked)
        stored = self.h5.find(name, member is not None)
        if stored is None:
            if self.fields.labels_required:
                raise self.h5.no_field(asked)
            return None, None
        stored.check_samples()
        shape, along = stored.shape, min(self.fields.along, stored.ndim - 1)
        if member is None and not self.fields.lead and shape[:1] != (1,):
            return stored.values(_TEXT_LABELS)[None], None
        # MATLAB writes those of samples along the last axis as one row of as many columns
        if member is None and along > 0 and shape[along] == count != shape[0]:
            return np.moveaxis(stored.values(_TEXT_LABELS), along, 0), None
        _check_labels(stored, count, self.path, asked)
        texts = stored.texts() if member is None else None
        return (stored.values(_TEXT_LABELS, member), None) if texts is None else numbered(texts)

    # -- what was found --------------------------------------------------------------------

    def index_field(self, field: FieldIndex, rows: int, how: str) -> SetIndex:
        """The index of the ``rows`` samples of a field, with labels and all that goes with them.
        ``how`` they are stored, in words."""
        (labels, classes), count = self.labels(rows, field.spec), self.count(rows)
        how = f"{self.layout}, {how}" if self.layout else how
        facts = replace(SetFacts.of(self.file, "HDF5", how, count), classes=classes)
        fields = {self.fields.data: replace(field, where=self.file.where)}
        if not self.layout.startswith("Fuel"):
            return SetIndex(facts, fields, labels)
        own = None if labels is None or self.fields.labels_path else self.fields.labels
        splits = fuel.read_splits(self.h5, self.fields.data, own, count)
        return SetIndex(facts, fields, labels, splits)


def _labels_elsewhere(path: str, name: str, count: int) -> Found:
    """Labels from another file (as in PCam), in memory."""
    if not os.path.isfile(path):  # opening a pipe would block
        raise SourceNotFoundError("no such labels file", path=path)
    file = OpenFile(path, "mmap")
    file.close()  # its mapping stays
    with translated(path), Hdf5(file, checked=True) as h5:
        asked = Request(labels=name, labels_required=True)
        labels, classes = Hdf5Set(file, h5, asked)._labels_inside(name, count)
        return np.array(labels), classes


def _check_labels(labels: Stored, count: int, path: str, name: str) -> None:
    """FormatError unless there are ``count`` labels."""
    if labels.ndim == 0 or labels.shape[0] != count or 0 in labels.shape:
        raise FormatError(
            f"{name!r} has another number of rows than the data",
            path=path,
            found=f"shape {labels.shape}",
            expected=f"{count} rows",
            hint=_RAGGED if labels.ndim and 0 < labels.shape[0] < count else _WITHOUT,
        )
