"""The parameter ``views``: what each array of views is made with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, TypeVar, cast

from ..checks import Check, plain, whole, written
from ..errors import ParamsError
from ..system.text import slip
from .declare import Parameter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P", bound="DataclassInstance")

#: An operation of ``augment``: its name, or its name and its options.
Named: TypeAlias = str | tuple[str, Mapping[str, object]]
Augment: TypeAlias = Named | Sequence[Named]
Crop: TypeAlias = Literal["center", "random", "random-resized", "none"]


class View(TypedDict, total=False):
    """What an array of views has of its own; what is left out is the reader's."""

    count: int
    size: Sequence[int] | None
    crop: Crop
    crop_area: Sequence[float]
    flip: bool
    augment: Augment | None


#: The value of ``crop`` that a parameter goes with.
GOES_WITH: Final = {
    "crop_area": "random-resized",
    "crop_aspect": "random-resized",
    "crop_padding": "random",
    "padding_mode": "random",
}

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


def of_view(p: P, view: View) -> P:
    """The parameters ``p`` as an array of views has them. It does not get those that its ``crop``
    does not take, unless they are its own."""
    own: dict[str, Any] = {key: value for key, value in view.items() if key != "count"}
    defaults = {field.name: field.default for field in dataclasses.fields(p)}
    crop = own.get("crop", vars(p)["crop"])
    without: dict[str, Any] = {
        name: defaults[name] for name, needed in GOES_WITH.items() if crop != needed
    }
    return dataclasses.replace(p, views=None, **{**without, **own})
