"""Options of operations: how they are declared, and the checks of their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ...system.checks import Check, one_of, optional, plain

T = TypeVar("T")

INFINITY: Final = math.inf


def option(check: Check[T], default: Any = dataclasses.MISSING) -> T:
    """The declaration of an option, as a field of an operation; without a default it is needed."""
    field: T = dataclasses.field(default=default, metadata={"check": check})
    return field


def between(low: float, high: float = INFINITY, below: bool = False) -> Check[float]:
    """A number from ``low`` to ``high``; ``below``: below ``high``."""

    def take(value: object) -> float:
        found = _number(value, low, high)
        if below and found == high:
            raise ValueError
        return found

    words = _range(low, high, "a number")
    return Check(words.replace(" to ", ", below ") if below else words, take)


def _number(value: object, low: float, high: float) -> float:
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError
    if not low <= number <= high or math.isinf(number):
        raise ValueError
    return float(number)


def _range(low: float, high: float, what: str) -> str:
    return f"{what} from {low:g}" + ("" if high == INFINITY else f" to {high:g}")


def numbers(count: int, low: float = -INFINITY, high: float = INFINITY) -> Check[tuple[float, ...]]:
    """So many numbers from ``low`` to ``high``."""

    def take(value: Any) -> tuple[float, ...]:
        if isinstance(value, str) or len(value) != count:
            raise ValueError
        return tuple(_number(one, low, high) for one in value)

    what = f"{count} numbers"
    return Check(what if low == -INFINITY else _range(low, high, what), take)


def span(low: float, high: float = INFINITY, above: bool = False) -> Check[tuple[float, float]]:
    """(least, most), both from ``low`` to ``high``; ``above``: above ``low``."""

    def take(value: Any) -> tuple[float, float]:
        least, most = numbers(2, low, high).take(value)
        if least > most or (above and least <= low):
            raise ValueError
        return least, most

    words = _range(low, high, "(least, most)")
    return Check(words.replace("from", "above") if above else words, take)


def around(middle: float, low: float, high: float = INFINITY) -> Check[tuple[float, float] | None]:
    """A number x for (middle - x, middle + x), cut at ``low``, or (least, most); None: not done."""

    def take(value: Any) -> tuple[float, float] | None:
        if isinstance(plain(value), int | float):
            far = _number(value, 0, high)
            value = (max(middle - far, low), middle + far)
        least, most = span(low, high).take(value)
        return None if least == most == middle else (least, most)

    return optional(Check(f"a number of at least 0, or {span(low, high).expected}", take))


def angles(counts: Sequence[int] = (2,)) -> Check[tuple[float, ...]]:
    """A number x for (-x, x), or ranges: so many numbers."""

    def take(value: Any) -> tuple[float, ...]:
        if isinstance(plain(value), int | float):
            far = _number(value, 0, INFINITY)
            return -far, far
        found = numbers(len(value)).take(value)
        if len(found) not in counts or any(a > b for a, b in zip(*[iter(found)] * 2, strict=True)):
            raise ValueError
        return found

    more = " or (x least, x most, y least, y most)" if 4 in counts else ""
    return Check(f"a number of at least 0, (least, most){more}, in degrees", take)


def _fill(value: Any) -> float | tuple[float, ...]:
    if isinstance(plain(value), int | float):
        return _number(value, 0, 255)
    return numbers(3, 0, 255).take(value)


FILL: Final = optional(Check("a number from 0 to 255, or one for each channel", _fill))
Interpolation: TypeAlias = Literal["nearest", "bilinear"]
INTERPOLATION: Final[Check[Interpolation]] = one_of(Interpolation)
CHANCE: Final = between(0, 1)
