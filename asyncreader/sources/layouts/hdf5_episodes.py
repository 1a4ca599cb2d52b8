"""Where the episodes of an HDF5 file end: as the caller says, or as its layout is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np

from ...errors import FormatError, ParamsError
from ...sampling.episodes import Episodes
from ...system.array_types import Array, Int64
from ...system.late import h5py
from ...system.text import times
from ..episodes import (
    along_axis,
    checked_ends,
    ends_of_flags,
    ends_of_ids,
    episodes_of,
    flat_episodes,
    of_episodes,
)
from ..fields import SetIndex, index_each
from ..hdf5.checks import attribute
from ..hdf5.listing import some_names
from ..labels import in_sequence, labelled, numbered, of_each_episode
from ..request import NoSamplesError, Request
from .hdf5_data import Hdf5Set
from .hdf5_groups import GroupScan, matching_groups

#: Finds one field in a file that is open.
IndexOne: TypeAlias = Callable[[Request], SetIndex]

#: Where episodes are groups: the group that they are in, how their names begin, and who writes so.
_GROUPS: Final = (
    ("data", "demo_", "robomimic"),
    ("", "episode_", "Minari"),
    ("", "traj_", "ManiSkill"),
)
#: D4RL's flags of an episode's last row.
_FLAGS: Final = ("terminals", "timeouts")
#: Where a file is one episode, or a part of one.
_OF_FILES: Final = ("files", "whole")
#: Names of a group that are looked at to recognise episodes.
_LOOKED_AT: Final = 66


def index_episodes(found: Hdf5Set, index_one: IndexOne) -> SetIndex | None:
    """The index of a set of episodes; None where it is none, or where rows do as well."""
    asked = found.fields
    kind, layout = (asked.episodes, "") if asked.episodes else _recognised(found)
    if kind is None:
        return None
    word, _, name = kind.partition(":")
    groups = matching_groups(found, name) if word == "groups" else [""]
    if not groups:
        raise ParamsError("no group of this file matches", found=repr(name))
    values = _values(found, groups[0])
    if word == "groups":
        if asked.labels_path is not None:
            raise ParamsError(
                "labels of episodes in groups lie in the same file", path=asked.labels_path
            )
        look = None if values is None else values.add
        index, episodes, kept = GroupScan(replace(found, layout=layout), groups, look).index(kind)
        return index if values is None else labelled(index, *values.made(kept, episodes))
    asked = replace(asked, lead=_leading(found, asked.data, word))
    if word == "axis" and asked.labels is not None and asked.labels_path is None:
        _check_own(found, asked.labels)
    # labels with a row for each episode are read when it is known where these end
    alone = values is not None and word in _OF_FILES and is_single(found, values.name)
    each = not alone and own_rows(replace(found, fields=asked), asked.lead)
    rows = replace(asked, labels=None, labels_required=False) if alone or each else asked

    def index_rows(one: Request) -> SetIndex:
        return index_one(replace(one, lead=_leading(found, one.data, word)))

    try:
        fields = index_each(rows, index_rows)
    except NoSamplesError:
        _check_empty(found, [asked.data, *(asked.others or {}).values()])
        raise
    episodes, kept = _episodes(found, kind, fields)
    index = of_episodes(fields, episodes)
    if alone:
        assert values is not None
        values.add(found.h5.reach(""), "")
        return labelled(index, *values.made(kept, episodes))
    if each:
        assert asked.labels is not None
        return labelled(index, *row_each(found, asked.labels, kept, episodes))
    return index


def _values(found: Hdf5Set, first: str) -> EpisodeValues | None:
    """What collects the labels of episodes, of which ``first`` is one: those that the caller named,
    or that it has under the usual name."""
    asked = found.fields
    if asked.labels is None or asked.labels_path is not None:
        return None
    inside = f"{first}/{asked.labels}" if first else asked.labels
    there = isinstance(found.h5.reach(inside), h5py.h5d.DatasetID)
    return EpisodeValues(found, asked.labels) if there or asked.labels_required else None


def _episodes(found: Hdf5Set, kind: str, fields: Mapping[str, SetIndex]) -> tuple[Episodes, Int64]:
    """The episodes of ``fields``, and the numbers of those that are not empty."""
    word, _, name = kind.partition(":")
    counts = {one: index.facts.count for one, index in fields.items()}
    if word not in ("axis", *_OF_FILES):
        ends = _ends(found, word, name, max(counts.values()))
        kept = np.flatnonzero(np.diff(ends, prepend=0))
        return flat_episodes(ends, counts, kind), kept
    if word == "axis":
        stored = {one: next(iter(index.fields)) for one, index in fields.items()}
        leading = {one: _leading(found, data, word) for one, data in stored.items()}
        shapes = {n: (*found.rows(stored[n]).shape[:lead], 1)[:2] for n, lead in leading.items()}
        episodes = along_axis(shapes)
    else:
        one_each = {one: np.array([count]) for one, count in counts.items()}
        episodes, _ = episodes_of(one_each, kind)
    return episodes, np.arange(episodes.ends.size)


def _check_empty(found: Hdf5Set, names: Sequence[str]) -> None:
    """FormatError where one of the fields has rows, so that an episode is not an empty one."""
    held = {name: found.h5.holder(name) for name in names}
    shapes = {name: data.shape for name, data in held.items() if data is not None}
    if any(shape[:1] > (1,) for shape in shapes.values()):
        raise FormatError(
            "some fields of an episode have no rows, and others have",
            found=", ".join(f"{name} {times(shape)}" for name, shape in shapes.items()),
        )


def _leading(found: Hdf5Set, name: str, word: str) -> int:
    """How many axes lead to the rows of a field: with "axis" episode and time, but the episode
    alone of what The Well marks as constant in time (``t0_fields/...``)."""
    if word != "axis":
        return 1
    _check_own(found, name)
    return 1 if attribute(found.rows(name).data, "time_varying") == np.False_ else 2


def _check_own(found: Hdf5Set, name: str) -> None:
    """ParamsError where The Well marks a data set as one for all episodes: without their axis."""
    held = found.h5.holder(name)
    if held is None:
        return
    rows = h5py.Dataset(held)
    if attribute(rows, "sample_varying") == np.False_:
        raise ParamsError(
            "a dataset that is one for all episodes cannot be served with them",
            found=f"{name!r} of shape {times(rows.shape)}, marked sample_varying = False",
            expected="datasets of (episode, ...); read this one by itself, with h5py",
        )


# -- what is recognised --------------------------------------------------------------------------


def _recognised(found: Hdf5Set) -> tuple[str | None, str]:
    """What says where episodes end, and who writes so; None where nothing does, or where data are
    read as rows."""
    asked, h5 = found.fields, found.h5
    for inside, begin, layout in () if h5.holder(asked.data) is not None else _GROUPS:
        group = h5.reach(inside) if not inside or inside in h5.names else None
        if isinstance(group, h5py.h5g.GroupID) and _has_numbered(group, begin):
            return f"groups:{inside}/{begin}*".replace(":/", ":"), layout
    if not asked.windowed:
        return None, ""
    flags = [name for name in _FLAGS if name in h5.names]
    if flags and "observations" in h5.names:
        return f"flags:{','.join(flags)}", "D4RL"
    if asked.several or {"observations", "action"} <= h5.names:
        return "files", "ACT"
    return None, ""


def _has_numbered(group: Any, begin: str) -> bool:
    """Whether a group has members such as demo_0: some of its names tell."""
    names = (name.decode("utf-8", "replace") for name in some_names(group, _LOOKED_AT))
    return any(name.startswith(begin) and name[len(begin) :].isdigit() for name in names)


# -- tables that say it --------------------------------------------------------------------------


def _ends(found: Hdf5Set, word: str, name: str, rows: int) -> Int64:
    """The row after each episode, as the file has them."""
    if word == "flags":
        return ends_of_flags([_column(found, one, rows) for one in name.split(",")], rows)
    if word == "ids":
        return ends_of_ids(_column(found, name, rows), rows)
    return checked_ends(_table(found, name), name)


def _table(found: Hdf5Set, name: str) -> Array:
    data = found.h5.find(name)
    if data is not None and data.dtype.kind == "S" and data.dtype.itemsize <= 256:
        return data.read()
    return found.table(name)


def _column(found: Hdf5Set, name: str, rows: int) -> Array:
    table = _table(found, name)
    if table.shape not in ((rows,), (rows, 1)):
        raise FormatError(
            f"dataset {name!r} does not have one value for each row",
            found=f"shape {table.shape}",
            expected=f"({rows},)",
        )
    return table.reshape(-1)


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
        one = self._attribute if self.name.startswith(ATTRIBUTE) else self._dataset
        self._values.append(one(group, where))

    def _attribute(self, group: Any, where: str) -> Any:
        name, item = self.name[1:], _as_object(group)
        value = attribute(item, name)
        if value is None:
            text = self._found.h5.text(where, name)
            value = None if text is None else text.encode("utf-8", "surrogateescape")
        if value is None:
            kind = FormatError if self._values else ParamsError
            names = ", ".join(islice(item.attrs, _LISTED))
            raise kind(
                f"no attribute {name!r} of numbers or text in an episode",
                found=f"{where or 'the file'}: {names or 'no attributes'}",
            )
        return bytes(value) if isinstance(value, bytes | np.bytes_) else np.asarray(value)[None]

    def _dataset(self, group: Any, where: str) -> Any:
        h5 = self._found.h5
        held = h5.reach(self.name, group)
        name = f"{where}/{self.name}" if where else self.name
        if not isinstance(held, h5py.h5d.DatasetID):
            if self._values:
                raise FormatError(
                    f"an episode has no dataset {name!r}",
                    hint="labels_field=None serves the data without labels",
                )
            raise h5.no_field(self.name, group if isinstance(group, h5py.h5g.GroupID) else None)
        data = h5.stored(held, name)
        data.check_samples()
        if data.dtype.kind == "S" and data.ndim == 0:
            return bytes(data.read()[()])
        data.check_numeric(f"text that differs in length is read as an attribute: {ATTRIBUTE}NAME")
        return np.atleast_1d(data.read())

    def made(self, kept: Int64, episodes: Episodes) -> _Labels:
        """The labels of the rows of ``episodes``, which are those ``kept`` of all that were added:
        one for each episode where they are single values, else one for each row."""
        values = [self._values[i] for i in kept.tolist()]
        if all(isinstance(value, bytes) for value in values):
            table, classes = numbered(values)
            return of_each_episode(table, episodes), classes
        if any(isinstance(value, bytes) or value.dtype.kind not in "buif" for value in values):
            raise self._differ(values)
        if len({one.shape[1:] for one in values}) > 1:
            raise self._differ(values)
        rows, lengths = [len(one) for one in values], episodes.lengths
        if max(rows) == 1:
            return of_each_episode(in_sequence(values), episodes), None
        if (lengths != rows).any():
            wrong = int(np.argmax(lengths != rows))
            raise FormatError(
                f"the labels {self.name!r} have another number of rows than an episode",
                found=f"{rows[wrong]} rows, {int(lengths[wrong])} in episode {wrong}",
                hint="name them as a field: data_field also takes those with one more row",
            )
        return in_sequence(values), None

    def _differ(self, values: Sequence[Any]) -> FormatError:
        kinds = [
            "bytes" if isinstance(one, bytes) else f"{one.dtype} {one.shape[len(one) == 1 :]}"
            for one in values
        ]
        return FormatError(
            f"the labels {self.name!r} of episodes are not all of one kind",
            found=", ".join(list(dict.fromkeys(kinds))[:5]),
        )


def _as_object(episode: Any) -> Any:
    """An episode as h5py shows it: a group, or a data set that is one."""
    is_data = isinstance(episode, h5py.h5d.DatasetID)
    return h5py.Dataset(episode) if is_data else h5py.Group(episode)


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
        raise FormatError(
            f"{name!r} has another number of rows than the data, and than there are episodes",
            found=f"shape {table.shape}",
            expected=f"{rows} rows, or {total} episodes",
            hint="labels_field=None serves the data without labels",
        )
    return of_each_episode(np.asarray(table[kept]), episodes), classes
