"""An open HDF5 set: its data set, its labels and those of episodes, found and checked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np

from ...errors import FormatError, ParamsError, SourceNotFoundError
from ...formats import packed as fmt
from ...pixels.specs import SampleSpec
from ...sampling.episodes import Episodes
from ...system.array_types import Array, Int64
from ...system.late import h5py
from ..arrays import TEXT_LABELS
from ..base import FieldIndex, Refusing, SetFacts
from ..bytestore import ByteFile, OpenFile
from ..fields import SetIndex
from ..hdf5.checks import attribute
from ..hdf5.file import Hdf5, translated
from ..hdf5.stored import Stored
from ..labels import in_sequence, numbered, of_each_episode
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
        facts = SetFacts.of(self.file, "HDF5", how, count, classes=classes)
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


# -- labels of episodes ----------------------------------------------------------------------------


#: What begins the name of an attribute.
ATTRIBUTE: Final = "@"
#: Attributes that an error lists.
_LISTED: Final = 20

#: Labels, and the names of their classes where they are text.
_Labels = tuple[Array, tuple[str, ...] | None]


class EpisodeValues:
    """Collects the labels ``name`` of episodes, group by group: see :meth:`made`."""

    def __init__(self, found: Hdf5Set, name: str) -> None:
        self._found = found
        self.name = name
        self._values: list[Any] = []

    def add(self, group: Any, where: str) -> None:
        """That of one more episode: a low-level group of h5py's, and its name."""
        value = self._attribute(group, where)
        if value is None:
            value = self._dataset(group, where)
        self._values.append(value)

    def _attribute(self, group: Any, where: str) -> Any:
        if not self.name.startswith(ATTRIBUTE):
            return None
        name, path, item = self.name[1:], self._found.path, _as_object(group)
        value = attribute(item, name)
        if value is None:
            text = self._found.h5.text(where, name)
            value = None if text is None else text.encode("utf-8", "surrogateescape")
        if value is None:
            kind = FormatError if self._values else ParamsError
            names = ", ".join(one.decode("utf-8", "backslashreplace") for one in _names(group))
            raise kind(
                f"no attribute {name!r} of numbers or text in an episode",
                path=path,
                found=f"{where or 'the file'}: {names or 'no attributes'}",
            )
        return bytes(value) if isinstance(value, bytes | np.bytes_) else np.asarray(value)

    def _dataset(self, group: Any, where: str) -> Any:
        h5 = self._found.h5
        held = h5.reach(self.name, group)
        name = f"{where}/{self.name}" if where else self.name
        if not isinstance(held, h5py.h5d.DatasetID):
            if self._values:
                raise self._found.refuse(
                    f"an episode has no dataset {name!r}",
                    hint="labels_field=None serves the data without labels",
                )
            raise h5.no_field(self.name, group if isinstance(group, h5py.h5g.GroupID) else None)
        data = h5.stored(held, name)
        data.check_samples()
        if data.dtype.kind == "S" and data.ndim == 0:
            return bytes(data.read()[()])
        data.check_numeric(f"text that differs in length is read as an attribute: {ATTRIBUTE}NAME")
        return data.read()

    def made(self, kept: Int64, episodes: Episodes) -> _Labels:
        """The labels of the rows of ``episodes``, which are those ``kept`` of all that were added:
        one for each episode where they are single values, else one for each row."""
        values = [self._values[i] for i in kept.tolist()]
        if all(isinstance(value, bytes) for value in values):
            table, classes = numbered(values)
            return of_each_episode(table, episodes), classes
        if any(isinstance(value, bytes) or value.dtype.kind not in "buif" for value in values):
            raise self._differ(values)
        attributes = self.name.startswith(ATTRIBUTE)
        rows = [1 if attributes or one.ndim == 0 else len(one) for one in values]
        if attributes or max(rows) == 1:
            single = [one if attributes or one.ndim == 0 else one[0] for one in values]
            if len({one.shape for one in single}) > 1:
                raise self._differ(values)
            return of_each_episode(in_sequence([one[None] for one in single]), episodes), None
        if len({one.shape[1:] for one in values}) > 1:
            raise self._differ(values)
        lengths = episodes.lengths
        if (lengths != rows).any():
            wrong = int(np.argmax(lengths != rows))
            raise self._found.refuse(
                f"the labels {self.name!r} have another number of rows than an episode",
                found=f"{rows[wrong]} rows, {int(lengths[wrong])} in episode {wrong}",
                hint="name them as a field: data_field also takes those with one more row",
            )
        return in_sequence([np.atleast_1d(one) for one in values]), None

    def _differ(self, values: Sequence[Any]) -> FormatError:
        kinds = [
            type(v).__name__ if isinstance(v, bytes) else f"{v.dtype} {v.shape}" for v in values
        ]
        return self._found.refuse(
            f"the labels {self.name!r} of episodes are not all of one kind",
            found=", ".join(list(dict.fromkeys(kinds))[:5]),
        )


def _as_object(episode: Any) -> Any:
    """An episode as h5py shows it: a group, or a data set that is one."""
    is_data = isinstance(episode, h5py.h5d.DatasetID)
    return h5py.Dataset(episode) if is_data else h5py.Group(episode)


def _names(group: Any) -> list[bytes]:
    """Names of some attributes."""
    item = _as_object(group)
    return [name.encode("utf-8", "surrogateescape") for name in islice(item.attrs, _LISTED)]


def is_single(found: Hdf5Set, name: str) -> bool:
    """Whether labels of this name are one value in the file: an attribute, or a single number."""
    held = found.h5.holder(name)
    return name.startswith(ATTRIBUTE) or (held is not None and not held.shape)


def own_rows(found: Hdf5Set, lead: int) -> bool:
    """Whether the labels that are asked for have another number of rows than the data, as those of
    episodes have. ``lead``: so many first axes number the rows together."""
    asked, h5 = found.fields, found.h5
    if asked.labels is None or asked.labels_path is not None:
        return False
    held = h5.holder(asked.labels)
    if held is None or not held.shape:
        return False
    # fields with one row for each episode may stand before those that have all rows
    names = (asked.data, *(asked.others or {}).values()) if lead == 1 else (asked.data,)
    data = [h5.holder(name) for name in names]
    if None in data:
        return True  # sparse rows
    rows = [int(np.prod(one.shape[:lead])) for one in data]
    return bool(held.shape[0] != rows[0]) or rows[0] < max(rows)


def row_each(found: Hdf5Set, name: str, kept: Int64, episodes: Episodes) -> _Labels:
    """Labels in a data set with a row for each row, or for each episode, of which those ``kept``
    are not empty."""
    texts = found.dataset(name).texts()
    table, classes = (found.table(name), None) if texts is None else numbered(texts)
    total, rows = episodes.ends.size + episodes.empty, int(episodes.ends[-1])
    if table.shape[:1] == (rows,):
        return np.asarray(table), classes
    if table.shape[:1] != (total,):
        raise found.refuse(
            f"{name!r} has another number of rows than the data, and than there are episodes",
            found=f"shape {table.shape}",
            expected=f"{rows} rows, or {total} episodes",
            hint="labels_field=None serves the data without labels",
        )
    return of_each_episode(np.asarray(table[kept]), episodes), classes
