"""The episodes of a set, as its tables have them, and the windows that parameters ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..errors import FormatError, ParamsError, located
from ..params.reader import ReaderParams
from ..params.values import reach_of
from ..sampling.episodes import Episodes, FieldRows, Reach, Windows
from ..sampling.rule import Rule
from ..system.array_types import Array, Int64
from ..system.checks import DatasetPath, written
from .fields import SetIndex
from .request import no_field

#: Rows of a table that are compared at a time.
_AT_ONCE: Final = 1 << 22


def episodes_of(
    lengths: Mapping[str, Int64], kind: str, names: Sequence[str] = ()
) -> tuple[Episodes, Int64]:
    """The episodes of a set by the rows that each field has of each, and the numbers of those that
    are not empty. FormatError where the lengths do not go together.

    A field may have one row more than the others, or one for each episode.
    """
    table = np.array(list(lengths.values()))
    there = table.any(axis=0)
    several = ((table != 1) & there).any(axis=1)
    # one row beside a field of two is not one for each episode
    single = ~several & (table.max(initial=0) > 2)
    base = table[~single].min(axis=0) if (~single).any() else table.min(axis=0)
    extras: dict[str, int | None] = {}
    for name, rows, alone in zip(lengths, table, single.tolist(), strict=True):
        extra, first = rows - base, int(np.argmax(there))
        differs = ((extra != extra[first]) | (extra > 1)) & there
        if not alone and differs.any():
            wrong = int(np.argmax(differs))
            found = ", ".join(f"{one} {of[wrong]}" for one, of in lengths.items())
            raise FormatError(
                "the fields of an episode have different numbers of rows",
                found=f"{names[wrong] if names else f'episode {wrong}'}: {found}",
                expected="as many in each, or one more in some fields, or one alone",
            )
        extras[name] = None if alone else int(extra[first])
    kept = _not_empty(base)
    ends = np.cumsum(base[kept])
    fields = {}
    for name, rows in lengths.items():
        if extras[name] != 0:
            own = rows[kept]
            fields[name] = FieldRows(np.cumsum(own) - own, extras[name])
    chosen = tuple(names[i] for i in kept.tolist()) if names else ()
    return Episodes(kind, ends, chosen, {}, base.size - kept.size, fields), kept


def _not_empty(rows: Int64) -> Int64:
    """The numbers of the episodes that have rows. FormatError where none has."""
    kept = np.flatnonzero(rows)
    if not kept.size:
        raise FormatError(
            "this dataset has no rows in any episode",
            found=f"{rows.size} empty episodes",
        )
    return kept


def checked_ends(table: Array, name: str) -> Int64:
    """Cumulative ends, int64; FormatError where they decrease."""
    if table.ndim != 1 or table.dtype.kind not in "iu" or not table.size:
        raise FormatError(
            f"{name!r} is no list of cumulative ends",
            found=f"shape {table.shape}, {table.dtype}",
            expected="whole numbers, (episodes,)",
        )
    ends = table.astype(np.int64)
    steps = np.diff(ends, prepend=0)
    if (steps < 0).any():
        wrong = int(np.argmax(steps < 0))
        raise FormatError(
            f"the ends of episodes in {name!r} decrease",
            found=f"{int(ends[wrong])} for episode {wrong}, after "
            f"{int(ends[wrong - 1]) if wrong else 0}",
        )
    return ends


def ends_of_ids(ids: Array, rows: int) -> Int64:
    """The row behind each run of equal ids."""
    found = []
    for begin in range(0, rows - 1, _AT_ONCE):
        part = np.asarray(ids[begin : begin + _AT_ONCE + 1])
        if part.dtype.kind == "f" and np.isnan(part).any():
            raise FormatError("an id of an episode is not a number; found nan")
        found.append(np.flatnonzero(part[1:] != part[:-1]) + begin + 1)
    return np.concatenate((*found, [rows])).astype(np.int64)


def ends_of_flags(flags: list[Array], rows: int) -> Int64:
    """The row behind each row at which one of the flags is true, and behind the last row."""
    found: list[Array] = [np.zeros(0, np.int64)]
    for begin in range(0, rows, _AT_ONCE):
        true = np.zeros(min(_AT_ONCE, rows - begin), np.bool_)
        for flag in flags:
            part = np.asarray(flag[begin : begin + _AT_ONCE])
            if part.dtype.kind == "f" and np.isnan(part).any():
                raise FormatError("a flag of an episode is not a number; found nan")
            true |= part != 0
        found.append(np.flatnonzero(true) + begin + 1)
    ends: Int64 = np.concatenate(found).astype(np.int64)
    return ends if ends.size and ends[-1] == rows else np.append(ends, rows)


def flat_episodes(ends: Int64, counts: dict[str, int], kind: str) -> Episodes:
    """The episodes of fields whose rows follow each other. A field of as many rows as there are
    episodes has one for each. FormatError where the last end is not the number of rows."""
    total = int(ends[-1])
    of_each = {name: count for name, count in counts.items() if count != total}
    for name, count in of_each.items():
        if count != ends.size or len(of_each) == len(counts):
            raise FormatError(
                "the last episode does not end with the last row",
                found=f"{total} rows by {kind}, {count} rows of {name!r}",
            )
    kept = _not_empty(np.diff(ends, prepend=0))
    each = {name: FieldRows(kept, None) for name in of_each}
    return Episodes(kind, ends[kept], empty=ends.size - kept.size, fields=each)


def along_axis(shapes: Mapping[str, tuple[int, ...]]) -> Episodes:
    """The episodes of fields that are stored as (episode, time, ...), by these two extents."""
    numbers = {shape[0] for shape in shapes.values()}
    if len(numbers) > 1 or any(len(shape) < 2 for shape in shapes.values()):
        raise FormatError(
            "the fields have different numbers of episodes",
            found=", ".join(f"{name} {shape}" for name, shape in shapes.items()),
            expected="(episode, time, ...) of as many episodes",
        )
    count = numbers.pop()
    return episodes_of({n: np.full(count, s[1]) for n, s in shapes.items()}, "axis")[0]


def of_episodes(fields: dict[str, SetIndex], episodes: Episodes) -> SetIndex:
    """One set of the first field of each index, whose rows are those of ``episodes``."""
    first = next(iter(fields.values()))
    count = int(episodes.ends[-1])
    labels = first.labels
    if labels is not None and labels.shape[0] != count:
        raise FormatError(
            "the labels have another number of rows than the episodes",
            path=first.facts.path,
            found=labels.shape[0],
            expected=count,
            hint="labels_field=None serves the data without labels",
        )
    return replace(
        first,
        facts=replace(first.facts, count=count, layout=f"{first.facts.layout}, {episodes.kind}"),
        fields={name: index.first for name, index in fields.items()},
        rule=Windows(episodes, dict.fromkeys(fields)),
    )


# -- arrays --------------------------------------------------------------------------------------


def tables_of(kind: str | None) -> list[str]:
    """The names of the tables that a value of ``episodes`` names."""
    word, _, name = (kind or "").partition(":")
    return name.split(",") if word == "flags" else [name] if word in ("ends", "ids") else []


@located(path="data")
def array_episodes(
    kind: str,
    tables: Mapping[str, Any],
    counts: dict[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> Episodes:
    """The episodes of arrays. ``tables``: those that ``kind`` names; ``counts``: rows of fields;
    ``shapes``: their first two extents, of "axis"."""
    if kind == "axis":
        return along_axis(shapes)
    if kind == "whole":
        return episodes_of({name: np.array([n]) for name, n in counts.items()}, kind)[0]
    word, rows = kind.partition(":")[0], max(counts.values())
    if word not in ("ends", "ids", "flags"):
        raise ParamsError(
            "the episodes of arrays are given by other arrays",
            found=f"episodes={kind!r}",
            expected='"ends:NAME", "ids:NAME", "flags:NAME,NAME", "axis" or "whole"',
        )
    found = []
    for name in tables_of(kind):
        if name not in tables:
            raise no_field(name, list(tables))
        if isinstance(tables[name], DatasetPath):
            raise ParamsError(f"{name!r} is a dataset of a file", hint="pass its values: x[()]")
        found.append(np.asarray(tables[name]))
        if word != "ends" and found[-1].size != rows:
            raise ParamsError(
                f"{name!r} does not have one value for each row",
                found=f"shape {found[-1].shape}",
                expected=f"({rows},)",
            )
    if word == "ends":
        ends = checked_ends(found[0], tables_of(kind)[0])
    else:
        columns = [one.reshape(-1) for one in found]
        ends = ends_of_ids(columns[0], rows) if word == "ids" else ends_of_flags(columns, rows)
    return flat_episodes(ends, counts, kind)


# -- what the parameters ask for -----------------------------------------------------------------


def windows_of(p: ReaderParams, index: SetIndex) -> Rule:
    """The rows of each field in a sample, as the parameters say. ParamsError where the set has no
    episodes and they need some, or where a name is none of a field."""
    found = index.rule
    if not isinstance(found, Windows):
        if p.window.rows is not None or p.episodes is not None or p.episodes_subset is not None:
            raise ParamsError(
                "nothing says where the episodes of this dataset end",
                found=index.facts.layout,
                hint='episodes="whole": all rows are one recording; "ends:NAME", "ids:NAME" or '
                '"flags:NAME" names a dataset that says it'
                + ("" if index.facts.container == "arrays" else '; "files": each file is one'),
            )
        return found
    names = tuple(index.fields)
    window = p.window
    given = window.rows if isinstance(window.rows, dict) else dict.fromkeys(names, window.rows)
    wrong = [name for name in given if name not in names]
    if wrong:
        raise ParamsError(
            "window names a field that is not read",
            found=", ".join(map(repr, wrong)),
            expected=", ".join(map(repr, names)),
        )
    fields: dict[str, Reach] = {
        name: None if (rows := given.get(name)) is None else reach_of(rows) for name in names
    }
    edges = window.edge if isinstance(window.edge, tuple) else (window.edge, window.edge)
    chosen = None
    if p.episodes_subset is not None:
        chosen = _chosen(p.episodes_subset, found.episodes)
    every = 0 if window.every == "episode" else window.every
    if "episode" in fields.values():
        if every > 1:
            raise ParamsError(
                "window_every goes with windows shorter than an episode",
                found=f'window_every={every}, window="episode"',
            )
        every = 1
    outside = window.outside or (None, None)
    most = {name: p.wanted.for_field(name).max_length for name in names}
    return Windows(found.episodes, fields, every, edges, outside, chosen, most)


def _chosen(subset: slice | Int64 | tuple[str, ...], episodes: Episodes) -> Int64:
    """The numbers of the episodes that a subset names."""
    count = episodes.ends.size
    if isinstance(subset, tuple):
        numbers = {name: i for i, name in enumerate(episodes.names)}
        missing = [name for name in subset if name not in numbers]
        if missing:
            raise ParamsError(
                "episodes_subset names an episode that is not in the dataset",
                found=", ".join(map(repr, missing[:10])),
                expected=f"names such as {episodes.names[0]!r}" if numbers else "numbers",
            )
        if len(numbers) < len(episodes.names):
            raise ParamsError(
                "several episodes of these files have one name",
                hint="episodes_subset also takes their numbers",
            )
        chosen = np.array([numbers[name] for name in subset], np.int64)
    elif isinstance(subset, slice):
        chosen = np.arange(count, dtype=np.int64)[subset]
    else:
        chosen = subset
    if not chosen.size or chosen.min() < 0 or chosen.max() >= count:
        raise ParamsError(
            "episodes_subset names episodes that are not in the dataset",
            found=written(subset),
            expected=f"some of 0 to {count - 1}",
        )
    if np.unique(chosen).size < chosen.size:
        raise ParamsError("episodes_subset names an episode twice", found=written(subset))
    return chosen
