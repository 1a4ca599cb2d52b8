"""Labels of episodes in HDF5: an attribute of each group, a single value in it, or a row each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from ...errors import FormatError, ParamsError
from ...sampling.episodes import Episodes
from ...system.array_types import Array, Int64
from ...system.late import h5py
from ..hdf5.checks import attribute
from ..labels import in_sequence, numbered, of_each_episode
from .hdf5_set import Hdf5Set

#: What begins the name of an attribute.
ATTRIBUTE: Final = "@"
#: Attributes that an error lists.
_LISTED: Final = 20

#: Labels, and the names of their classes where they are text.
Found = tuple[Array, tuple[str, ...] | None]


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

    def made(self, kept: Int64, episodes: Episodes) -> Found:
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
                hint="name them as a field: data_field takes those of one row more, too",
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


def row_each(found: Hdf5Set, name: str, kept: Int64, episodes: Episodes) -> Found:
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
