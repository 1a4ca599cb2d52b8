"""Labels that are not one array with a row for each sample: those of episodes, and several at once.

Several labels are one structured array inside, with a member for each, and a tuple outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from ..errors import ParamsError
from ..formats import packed as fmt
from ..sampling.episodes import Episodes, Windows
from ..system.array_types import Array, Int64
from ..system.late import LazyTable
from .arrays import label_array
from .fields import OpenSet, SetIndex


class EpisodeLabels(LazyTable):
    """Labels of the rows of episodes, ``table[e]`` for all rows of episode ``e``, in the place of
    an array (N, ...). ``ends``: int64 (E,), the row after each episode."""

    def __init__(self, table: Array, ends: Int64) -> None:
        super().__init__(
            (int(ends[-1]), *table.shape[1:]), table.dtype, partial(_of_episodes, table, ends)
        )
        self.table, self.ends = table, ends


def _of_episodes(table: Array, ends: Int64, rows: Int64) -> Array:
    """The labels of the episodes that rows are in."""
    return table[np.searchsorted(ends, rows, side="right")]


def of_each_episode(table: Array, episodes: Episodes) -> Array:
    """Labels of all rows, one for each episode: (E, ...) as (N, ...). Where fields are stored as
    (episode, time, ...), so are labels of both extents: they have one for each row."""
    rows = int(episodes.lengths[0])
    if episodes.kind == "axis" and rows > 1 and table.shape[1:2] == (rows,):
        return table.reshape(-1, *table.shape[2:])
    return cast(Array, EpisodeLabels(table, episodes.ends))


def joined_tables(tables: Sequence[Array]) -> Array:
    """Labels of several files in sequence."""
    each = [one for one in cast(Sequence[object], tables) if isinstance(one, EpisodeLabels)]
    if len(each) < len(tables):
        return in_sequence([np.asarray(one) for one in tables])
    starts = np.cumsum([0, *(len(one) for one in each)])
    ends = [one.ends + start for one, start in zip(each, starts.tolist(), strict=False)]
    table = in_sequence([one.table for one in each])
    return cast(Array, EpisodeLabels(table, np.concatenate(ends)))


def in_sequence(tables: Sequence[Array]) -> Array:
    """Tables of labels, one behind the other, in the dtype that numpy finds for all of them; whole
    numbers stay such. ParamsError where that dtype would round one, ValueError for other shapes."""
    names = tables[0].dtype.names
    if names is not None:
        return together({name: in_sequence([one[name] for one in tables]) for name in names})
    made = np.concatenate(tables)
    if made.dtype.kind != "f" or len({one.dtype for one in tables}) == 1:
        return made
    exact = 1 << (np.finfo(made.dtype).nmant + 1)
    whole = [one for one in tables if one.dtype.kind in "iu"]
    largest = max((max(-int(one.min()), int(one.max())) for one in whole if one.size), default=0)
    if len(whole) == len(tables) and largest <= np.iinfo(np.int64).max:
        return np.concatenate([one.astype(np.int64) for one in tables])
    if largest > exact:
        kinds = ", ".join(dict.fromkeys(str(one.dtype) for one in tables))
        raise ParamsError(
            "labels of several dtypes have no dtype that holds all of them",
            found=f"{kinds}, and a number as large as {largest}",
            expected=f"at most {exact}, which {made.dtype} holds",
            hint="write labels of one dtype, or pass labels_field=None to read without labels",
        )
    return made


def united(
    tables: Sequence[Array | None], named: Sequence[tuple[str, ...] | None]
) -> tuple[list[Array | None], tuple[str, ...]]:
    """Labels of several sets, each numbered by the sorted names of the classes of all, and these.
    ``named``: the classes of each set. A label that is missing is -1, and stays so."""
    every = sorted({name for names in named for name in names or ()})
    number = {name: i for i, name in enumerate(every)}
    found = list(tables)
    for i, (table, names) in enumerate(zip(tables, named, strict=True)):
        if table is not None and names is not None:
            numbers = np.array([*(number[name] for name in names), -1], np.int64)
            each: object = table
            if isinstance(each, EpisodeLabels):
                found[i] = cast(Array, EpisodeLabels(numbers[each.table], each.ends))
            else:
                found[i] = numbers[table]
    return found, tuple(every)


def numbered(texts: Iterable[bytes]) -> tuple[Array, tuple[str, ...]]:
    """Numbers of texts in the sorted list of them, and the list. Each text is kept once."""
    met: dict[bytes, int] = {}
    given = np.array([met.setdefault(text, len(met)) for text in texts], np.int64)
    names = np.array([text.decode("utf-8", "surrogateescape") for text in met], object)
    order = np.argsort(names, kind="stable")
    return np.argsort(order)[given], tuple(names[order].tolist())


# -- several at once -------------------------------------------------------------------------------


def together(tables: Mapping[str, Array]) -> Array:
    """Several labels as one structured array."""
    given: list[Any] = list(tables.values())
    each = [one for one in given if isinstance(one, EpisodeLabels)]
    if len(each) == len(given):  # it stays one for each episode
        inside = together(dict(zip(tables, (one.table for one in each), strict=True)))
        return cast(Array, EpisodeLabels(inside, each[0].ends))
    arrays = [np.asarray(one) for one in given]
    kinds = [(name, one.dtype, one.shape[1:]) for name, one in zip(tables, arrays, strict=True)]
    # aligned: torch takes arrays whose strides are whole numbers
    made = np.empty(len(arrays[0]), np.dtype(kinds, align=True))
    for name, one in zip(tables, arrays, strict=True):
        made[name] = one
    return made


def apart(labels: Any) -> Any:
    """Labels as they are handed out: of several a tuple of views."""
    names = None if labels is None else labels.dtype.names
    return labels if names is None else tuple(labels[name] for name in names)


def label_names(found: OpenSet, field: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the columns of the labels ``field``, where asyncreader packed those; of several
    files those of the first."""
    if field != fmt.LABELS or found.labels is None or found.facts.meta is None:
        return ()
    with found.first.holding(0) as (file, _):  # no manifest has them
        meta = file.facts.meta
    return () if meta is None else meta.label_names or ()


def with_labels(found: OpenSet, labels: Any) -> SetIndex:
    """The index of a set with labels of the caller's: one for each row, or for each episode.
    ParamsError for another number of them."""
    index, count = found.index, found.facts.count
    episodes = index.rule.episodes if isinstance(index.rule, Windows) else None
    given = np.shape(labels)[:1]
    if episodes is None or given == (count,):
        table = label_array(labels, count)
    elif given == episodes.ends.shape:
        table = of_each_episode(label_array(labels, episodes.ends.size), episodes)
    else:
        left_out = f" ({episodes.empty} empty ones are not counted)" if episodes.empty else ""
        raise ParamsError(
            "labels has one row for each row of the dataset, or for each episode",
            path=found.facts.path,
            found=f"shape {np.shape(labels)}",
            expected=f"{count} rows, or {episodes.ends.size} episodes{left_out}",
        )
    return labelled(index, table, None)


def labelled(index: SetIndex, labels: Array, classes: tuple[str, ...] | None) -> SetIndex:
    """A set with other labels, and the names of their classes."""
    return replace(index, labels=labels, facts=replace(index.facts, classes=classes))
