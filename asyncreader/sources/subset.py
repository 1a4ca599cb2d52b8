"""The records that a ``subset`` selects: a slice, an array of numbers, or a split's name."""

from __future__ import annotations

from typing import Any

from ..array_types import Int64
from ..errors import ParamsError
from .fields import OpenSet


def resolve_subset(subset: Any, source: OpenSet) -> slice | Int64 | None:
    """``subset`` checked against the set: a slice of integers, an int64 array, or None for all.

    ParamsError if it selects nothing or names records that do not exist.
    """
    if isinstance(subset, str):
        subset = _named(subset, source)
    if subset is None:
        return None
    total = source.facts.count
    if isinstance(subset, slice):
        start, stop, step = subset.indices(total)
        if not range(start, stop, step):
            raise ParamsError("subset selects nothing", found=f"{subset} of {total} samples")
        # below 0 a stop of range() is not one of slice()
        return slice(start, None if stop < 0 else stop, step)
    chosen: Int64 = subset
    if not chosen.size:
        raise ParamsError("subset selects nothing", found=f"no record of {total} samples")
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= total:
        raise ParamsError(
            "subset names a record that does not exist",
            found=f"{low if low < 0 else high}",
            expected=f"0 to {total - 1}",
        )
    return chosen


def _named(name: str, source: OpenSet) -> slice | Int64:
    splits = source.splits
    if name not in splits:
        also = "; labels_field=None also reads splits that have no labels" if splits else ""
        raise ParamsError(
            f"no split {name!r} in the set",
            path=source.facts.path,
            expected=" or ".join(map(repr, splits)) or "a set with named splits (Fuel)",
            hint="pass a slice, subset=slice(0, 100) (-p subset=0:100 on the command line), or an "
            f"array of record numbers{also}",
        )
    return splits[name]
