"""Augmentation: operations on one image, drawn at random for each sample.

Here the parameter ``augment`` becomes operations: their names and options are checked. Nothing
here loads numpy before a list of operations is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from ...errors import ParamsError
from ...system.checks import Check, Wrong, written

if TYPE_CHECKING:
    from .base import Operation


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
