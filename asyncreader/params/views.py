"""The parameter ``views``: what each array of views is made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict, cast

from ..errors import ParamsError
from ..system.checks import Check, plain, whole, written
from ..system.text import slip
from .declare import Parameter
from .families import CropKind

#: An operation of ``augment``: its name, or its name and its options.
Named: TypeAlias = str | tuple[str, Mapping[str, object]]
Augment: TypeAlias = Named | Sequence[Named]


class View(TypedDict, total=False):
    """What an array of views has of its own; what is left out is the reader's."""

    count: int
    size: Sequence[int] | None
    crop: CropKind
    crop_area: Sequence[float]
    flip: bool
    augment: Augment | None


_COUNT: Final = whole(1, 1025)
_KEYS: Final = tuple(View.__annotations__)


def views_check(parameters: Callable[[], Mapping[str, Parameter]]) -> Check[int | tuple[View, ...]]:
    """The check of ``views``; ``parameters``: those of a reader, whose checks a dict's values
    have, too."""

    def take(value: Any) -> int | tuple[View, ...]:
        if isinstance(plain(value), int):
            return _COUNT.take(value)
        if not isinstance(value, list | tuple) or not value:
            raise ValueError
        return tuple(
            _view(f"views[{number}]", one, parameters()) for number, one in enumerate(value)
        )

    return Check("a whole number of at least 1, or a list of dicts", take)


def _view(name: str, given: object, parameters: Mapping[str, Parameter]) -> View:
    """One dict of ``views``, checked."""
    keys = ", ".join(_KEYS)
    if not isinstance(given, Mapping):
        raise ParamsError(
            f"{name} is not valid", found=written(given), expected=f"a dict of {keys}"
        )
    for key in given:
        if key not in _KEYS:
            near = slip(str(key), _KEYS)
            one = "it is a parameter of the reader, for all views" if key in parameters else None
            raise ParamsError(
                f"unknown key {written(key)} of {name}",
                expected=keys,
                hint=one if near is None else f"did you mean {near!r}?",
            )
    kept: dict[str, object] = {"count": 1}
    for key, value in given.items():
        check = _COUNT if key == "count" else parameters[key].check
        kept[key] = check(f"{key} of {name}", value)
    return cast(View, kept)


def listed_views(views: int | tuple[View, ...] | None) -> tuple[View, ...]:
    """What each array of views has of its own; nothing without ``views``."""
    return ({"count": views},) if isinstance(views, int) else views or ()
