"""Checks of the parameters of patches: their shape, where they are, and the axes of volumes."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from ..system.checks import Check, whole

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


def _axes(value: Any) -> tuple[int, ...]:
    found = _several(value, whole(-32, 32))
    if len(set(found)) < len(found):
        raise ValueError
    return found


PATCH_AXES: Final = Check(
    "a list of different axes, counted from 0 or, below 0, from the end", _axes
)


def _step(value: Any) -> int | tuple[int, ...]:
    each = whole(1, _LONGEST)
    return _several(value, each) if isinstance(value, list | tuple) else each.take(value)


PATCH_STEP: Final = Check("a whole number of at least 1, or one for each axis of the patch", _step)
