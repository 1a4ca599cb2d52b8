"""Checks of the parameters of episodes and windows: where episodes end, and rows of a sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from ..system.checks import SUBSET, Check, Wrong, by_field, one_of, plain, whole

if TYPE_CHECKING:
    from ..system.array_types import Int64

#: One window for each episode, or all of its rows; its last row; what becomes of rows outside of an
#: episode.
EachEpisode: TypeAlias = Literal["episode"]
LastRow: TypeAlias = Literal["last"]
Edge: TypeAlias = Literal["drop", "repeat", "zero"]

#: The rows of a window: their number, (start, stop[, step]) relative to the anchor, a list of such,
#: the last one or all of the episode.
WindowRows: TypeAlias = int | Sequence[int] | LastRow | EachEpisode

#: The most rows of a window, and the farthest from its anchor.
MOST_ROWS: Final = 1 << 16
FARTHEST: Final = 1 << 31


def _episodes(value: Any) -> str:
    kind = re.fullmatch(r"files|axis|whole|(groups|ends|ids):(?s:.+)|flags:[^,]+(,[^,]+)*", value)
    if kind is None:
        raise ValueError
    return str(value)


EPISODES: Final = Check(
    '"groups:PATTERN", "files", "ends:NAME", "ids:NAME", "flags:NAME,NAME", "axis" or "whole"',
    _episodes,
    "text",
)


def _some(value: Any) -> slice | Int64 | tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return tuple(value)
    found = SUBSET.take(value)
    assert not isinstance(found, str)
    return found


SOME_EPISODES: Final = Check("a slice, numbers or names of episodes", _some, "slice")


def _rows(value: Any) -> WindowRows:
    """The rows of one field as they were given, checked: see :func:`reach_of`."""
    if isinstance(value, str):
        if value in ("last", "episode"):
            return "last" if value == "last" else "episode"
        raise Wrong(_ROWS, value)
    near = whole(-FARTHEST, FARTHEST)
    number = plain(value)
    if isinstance(number, int):
        kept: WindowRows = whole(1, MOST_ROWS + 1).take(number)
        return kept
    if not isinstance(value, list | tuple):
        value = list(value)  # an array of numbers
    kept = type(value)(near.take(one) for one in value)
    several = isinstance(kept, tuple) and (len(kept) not in (2, 3) or kept[2:] == (0,))
    if several or not 0 < len(reach_of(kept)) <= MOST_ROWS:
        raise Wrong(_ROWS, value)
    return kept


def reach_of(rows: WindowRows) -> tuple[int, ...] | LastRow | EachEpisode:
    """The rows of a window relative to its anchor, "last" or "episode"."""
    if isinstance(rows, str):
        return rows
    if isinstance(rows, int):
        return tuple(range(rows))
    near = range(*rows) if isinstance(rows, tuple) else rows
    return tuple(near[: MOST_ROWS + 1])


_ROWS: Final = (
    "a number of rows, (start, stop[, step]) around the anchor, a list of such rows, "
    '"last" or "episode"'
)


WINDOW: Final = by_field(Check(_ROWS, _rows), "rows")


EVERY: Final[Check[int | EachEpisode]] = Check(
    'a whole number of at least 1, or "episode"',
    lambda value: "episode" if value == "episode" else whole(1, FARTHEST).take(value),
    "json",
    ("episode",),
)

_ONE_EDGE: Final[Check[Edge]] = one_of(Edge)


def _edge(value: Any) -> Edge | tuple[Edge, Edge]:
    if isinstance(value, str):
        found: Edge = _ONE_EDGE.take(value)
        return found
    before, after = value
    return _ONE_EDGE.take(before), _ONE_EDGE.take(after)


EDGE: Final = Check(
    "'drop' or 'repeat' or 'zero', or a pair of them: before, after", _edge, "word", get_args(Edge)
)


def _outside(value: Any) -> tuple[int | None, int | None]:
    before, after = (None if one is None else whole(0, FARTHEST).take(one) for one in value)
    return before, after


OUTSIDE: Final = Check("(before, after), each a whole number of at least 0, or None", _outside)
