"""Augmentation: operations on one picture, drawn at random for each sample.

Here are the options of operations, how they are declared and checked, and the parameter
``augment``, which becomes operations. Nothing here loads numpy before a list of operations is read.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from ...errors import ParamsError
from ...system.checks import Check, Wrong, one_of, optional, plain, real_number, written

if TYPE_CHECKING:
    from .base import Operation

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
    found = real_number(value)
    if not low <= found <= high or math.isinf(found):
        raise ValueError
    return float(found)


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


# -- the parameter ------------------------------------------------------------------------------


def _operations(value: Any) -> tuple[Operation, ...]:
    pair = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], Mapping)
    if isinstance(value, str) or pair:
        value = [value]
    if not isinstance(value, list | tuple):
        raise ValueError
    found = tuple(_operation(one) for one in value)
    for one in found[:-1]:
        if one.last:
            raise ParamsError(
                f'"{one.name}" works on normalised images: it comes last in augment',
                found=", ".join(one.name for one in found),
            )
    return found


def known() -> dict[str, type[Operation]]:
    """The operations by name, those that choose others first, whichever file was loaded first."""
    from . import operations, policies  # noqa: F401 (each class enters itself into the table)
    from .base import OPERATIONS

    return dict(sorted(OPERATIONS.items(), key=lambda one: not issubclass(one[1], policies.Policy)))


def _operation(value: Any) -> Operation:
    from .base import Operation

    if isinstance(value, Operation):
        return value
    name, options = (value, {}) if isinstance(value, str) else value
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise Wrong("a name, or (name, {option: value, ...})", value)
    table = known()
    if name not in table:
        raise ParamsError(
            f"unknown operation {written(name)} of augment",
            hint=_nearest(name, table),
            expected=", ".join(table),
        )
    kind = table[name]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for given in options:
        if given not in fields:
            raise ParamsError(
                f'unknown option {written(given)} of "{name}"',
                expected=", ".join(fields) or "no options",
                hint=_nearest(str(given), fields),
            )
    for field in fields.values():
        if field.default is dataclasses.MISSING and field.name not in options:
            raise ParamsError(
                f'"{name}" needs {field.name}',
                expected=field.metadata["check"].expected,
                hint=f'("{name}", {{"{field.name}": ...}})',
            )
    kept = {
        given: fields[given].metadata["check"](f'{given} of "{name}"', one)
        for given, one in options.items()
    }
    return kind(**kept)


def _nearest(typed: str, names: Iterable[str]) -> str | None:
    """A hint: the names that look most like what was typed, torchvision's spelling among them."""
    plain_name = re.sub(r"(?<=[a-z])(?=[A-Z])|_", "-", typed).lower()
    near = get_close_matches(plain_name, list(names), 3, 0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else None


AUGMENT: Final = Check("a list of names or (name, {option: value, ...})", _operations)
