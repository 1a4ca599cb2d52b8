"""Where the episodes of an HDF5 file end: as the caller says, or as its layout is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from ...errors import ParamsError
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
from ..labels import labelled
from ..request import NoSamplesError, Request
from .hdf5_groups import GroupScan, matching_groups, read_masks
from .hdf5_set import EpisodeValues, Hdf5Set, is_single, own_rows, row_each

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
        raise ParamsError("no group of this file matches", path=found.path, found=repr(name))
    values = _values(found, groups[0])
    if word == "groups":
        if asked.labels_path is not None:
            raise ParamsError(
                "labels of episodes in groups lie in the same file", path=asked.labels_path
            )
        named = replace(found, layout=layout)
        grouped = GroupScan(named, groups, values)
        return grouped.index(kind, lambda names: read_masks(found, names))
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
        return flat_episodes(ends, counts, kind, found.path), kept
    if word == "axis":
        stored = {one: next(iter(index.fields)) for one, index in fields.items()}
        leading = {one: _leading(found, data, word) for one, data in stored.items()}
        shapes = {n: (*found.rows(stored[n]).shape[:lead], 1)[:2] for n, lead in leading.items()}
        episodes = along_axis(shapes, found.path)
    else:
        one_each = {one: np.array([count]) for one, count in counts.items()}
        episodes, _ = episodes_of(one_each, kind, found.path)
    return episodes, np.arange(episodes.ends.size)


def _check_empty(found: Hdf5Set, names: Sequence[str]) -> None:
    """FormatError where one of the fields has rows, so that an episode is not an empty one."""
    held = {name: found.h5.holder(name) for name in names}
    shapes = {name: data.shape for name, data in held.items() if data is not None}
    if any(shape[:1] > (1,) for shape in shapes.values()):
        raise found.refuse(
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
            path=found.path,
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
    return checked_ends(_table(found, name), name, found.path)


def _table(found: Hdf5Set, name: str) -> Array:
    data = found.h5.find(name)
    if data is not None and data.dtype.kind == "S" and data.dtype.itemsize <= 256:
        return data.read()
    return found.table(name)


def _column(found: Hdf5Set, name: str, rows: int) -> Array:
    table = _table(found, name)
    if table.shape not in ((rows,), (rows, 1)):
        raise found.refuse(
            f"dataset {name!r} does not have one value for each row",
            found=f"shape {table.shape}",
            expected=f"({rows},)",
        )
    return table.reshape(-1)
