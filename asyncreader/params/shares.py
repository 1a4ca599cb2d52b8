"""Checks of the parameters that say how often samples come: weights, and the ratios of a mix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from ..system.checks import FINITE, PATHS, Check, Wrong, check_unmasked
from ..system.late import numpy as np

if TYPE_CHECKING:
    from ..system.array_types import Float64


def _weights(value: Any) -> Literal["balanced"] | Float64:
    if isinstance(value, str) and value == "balanced":
        return "balanced"
    check_unmasked(value)
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
    ratios = {PATHS.take(path): ratio for path, ratio in value.items()}
    if len(ratios) < len(value):
        raise Wrong("each path once", list(value))
    for path, ratio in ratios.items():
        part = f"[{path!r}]"
        try:
            good = FINITE.take(ratio) > 0
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
