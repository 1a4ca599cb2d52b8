"""Checks of the values of parameters: columns, patches, episodes and windows, weights and mixes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from ..system import checks
from ..system.checks import Check, Wrong, by_field, one_of, plain, whole
from ..system.late import numpy as np

if TYPE_CHECKING:
    from ..system.array_types import Float64, Int64

# -- columns ---------------------------------------------------------------------------------------


#: Columns as they are kept: numbers, or names.
Chosen: TypeAlias = tuple[int, ...] | tuple[str, ...]

_CHOSEN: Final = "numbers or names of columns, at least one and none twice"


def _chosen(value: Any) -> Chosen:
    if isinstance(value, str | bytes | Mapping):
        raise Wrong(_CHOSEN, value)
    given = list(value)
    names = [str(one) for one in given if isinstance(one, str)]
    kept: Chosen = tuple(names)
    if not names:
        kept = tuple(int(whole(0, 1 << 62).take(plain(one))) for one in given)
    if not kept or len(kept) < len(given) or len(set(kept)) < len(kept):
        raise Wrong(_CHOSEN, value)
    return kept


COLUMNS: Final = by_field(Check(_CHOSEN, _chosen), "columns")


# -- patches ---------------------------------------------------------------------------------------


PatchAt: TypeAlias = Literal["random", "grid", "center"]

#: Axes of a patch, and numbers along one.
_MOST_AXES: Final = 8
_LONGEST: Final = 1 << 40


def _several(value: Any, one: Check[int]) -> tuple[int, ...]:
    found = tuple(one.take(number) for number in value)
    if not 0 < len(found) <= _MOST_AXES:
        raise ValueError
    return found


PATCH: Final = Check(
    "(Z, Y, X) or (Y, X), each at least 1",
    lambda value: _several(value, whole(1, _LONGEST)),
    "size",
)


def _patch_axes(value: Any) -> tuple[int, ...]:
    found = _several(value, whole(-32, 32))
    if len(set(found)) < len(found):
        raise ValueError
    return found


PATCH_AXES: Final = Check(
    "a list of different axes, counted from 0 or, below 0, from the end", _patch_axes
)


def _patch_step(value: Any) -> int | tuple[int, ...]:
    each = whole(1, _LONGEST)
    return _several(value, each) if isinstance(value, list | tuple) else each.take(value)


PATCH_STEP: Final = Check(
    "a whole number of at least 1, or one for each axis of the patch", _patch_step
)


# -- episodes and windows --------------------------------------------------------------------------


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


def _some_episodes(value: Any) -> slice | Int64 | tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return tuple(value)
    found = checks.SUBSET.take(value)
    assert not isinstance(found, str)
    return found


SOME_EPISODES: Final = Check("a slice, numbers or names of episodes", _some_episodes, "slice")


def _window(value: Any) -> WindowRows:
    """The rows of one field as they were given, checked: see :func:`reach_of`."""
    if isinstance(value, str):
        if value in ("last", "episode"):
            return "last" if value == "last" else "episode"
        raise Wrong(_WINDOW_WORDS, value)
    near = whole(-FARTHEST, FARTHEST)
    number = plain(value)
    if isinstance(number, int):
        return whole(1, MOST_ROWS + 1).take(number)
    if not isinstance(value, list | tuple):
        value = list(value)  # an array of numbers
    kept: WindowRows = type(value)(near.take(one) for one in value)
    several = isinstance(kept, tuple) and (len(kept) not in (2, 3) or kept[2:] == (0,))
    if several or not 0 < len(reach_of(kept)) <= MOST_ROWS:
        raise Wrong(_WINDOW_WORDS, value)
    return kept


def reach_of(rows: WindowRows) -> tuple[int, ...] | LastRow | EachEpisode:
    """The rows of a window relative to its anchor, "last" or "episode"."""
    if isinstance(rows, str):
        return rows
    if isinstance(rows, int):
        return tuple(range(rows))
    near = range(*rows) if isinstance(rows, tuple) else rows
    return tuple(near[: MOST_ROWS + 1])


_WINDOW_WORDS: Final = (
    "a number of rows, (start, stop[, step]) around the anchor, a list of such rows, "
    '"last" or "episode"'
)


WINDOW: Final = by_field(Check(_WINDOW_WORDS, _window), "rows")


EVERY: Final[Check[int | EachEpisode]] = Check(
    'a whole number of at least 1, or "episode"',
    lambda value: "episode" if value == "episode" else whole(1, FARTHEST).take(value),
    "json",
    ("episode",),
)

_ONE_EDGE: Final[Check[Edge]] = one_of(Edge)


def _edge(value: Any) -> Edge | tuple[Edge, Edge]:
    if isinstance(value, str):
        return _ONE_EDGE.take(value)
    before, after = value
    return _ONE_EDGE.take(before), _ONE_EDGE.take(after)


EDGE: Final = Check(
    "'drop' or 'repeat' or 'zero', or a pair of them: before, after", _edge, "word", get_args(Edge)
)


def _outside(value: Any) -> tuple[int | None, int | None]:
    before, after = (None if one is None else whole(0, FARTHEST).take(one) for one in value)
    return before, after


OUTSIDE: Final = Check("(before, after), each a whole number of at least 0, or None", _outside)


# -- weights and mixes -----------------------------------------------------------------------------


def _weights(value: Any) -> Literal["balanced"] | Float64:
    if isinstance(value, str) and value == "balanced":
        return "balanced"
    checks.check_unmasked(value)
    weights = np.array(value, np.float64)  # a copy, as of a subset
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        first = int(wrong[0])
        hint = f"{wrong.size} of {weights.size} weights are so" if wrong.size > 1 else None
        raise Wrong("a finite number of at least 0", float(weights[first]), f"[{first}]", hint)
    if not weights.any():
        raise Wrong("at least one weight above 0", f"{weights.size} weights, all 0")
    return weights


WEIGHTS: Final[Check[Literal["balanced"] | Float64]] = Check(
    'a 1-D array of numbers, one for each sample, or "balanced"', _weights, words=("balanced",)
)


def _mix(value: Any) -> dict[str | tuple[str, ...], float]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError
    ratios = {checks.PATHS.take(path): ratio for path, ratio in value.items()}
    if len(ratios) < len(value):
        raise Wrong("each path once", list(value))
    for path, ratio in ratios.items():
        part = f"[{path!r}]"
        try:
            good = checks.FINITE.take(ratio) > 0
        except ValueError:
            good = False
        if not good:
            raise Wrong("a finite ratio above 0", ratio, part)
    total = math.fsum(ratios.values())
    if abs(total - 1) > 1e-6:
        shares = ", ".join(f"{ratio / total:.6g}" for ratio in ratios.values())
        raise Wrong(
            "ratios that add up to 1",
            f"{total:.6g} together",
            hint=f"in the same proportion they are {shares}",
        )
    return {path: float(ratio) for path, ratio in ratios.items()}


MIX: Final = Check('{path: ratio, ...}, such as {"a.h5": 0.9, "b.h5": 0.1}', _mix)
