"""The check of the parameter that chooses columns of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from ..system.checks import Check, Wrong, by_field, plain, whole

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
