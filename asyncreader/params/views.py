"""The parameter ``views``: what each array of views is made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from ..checks import Check, plain, whole, written
from ..errors import ParamsError
from ..text import slip

if TYPE_CHECKING:
    from .reader import Augment, Crop, ReaderParams


class View(TypedDict, total=False):
    """What an array of views has of its own; what is left out is the reader's."""

    count: int
    size: Sequence[int] | None
    crop: Crop
    crop_area: Sequence[float]
    flip: bool
    augment: Augment | None


#: Those that the parameters of a reader have, too.
OWN: Final = ("size", "crop", "crop_area", "flip", "augment")

#: Parameters that go with one value of ``crop``.
GOES_WITH: Final = {
    "crop_area": "random-resized",
    "crop_aspect": "random-resized",
    "crop_padding": "random",
    "padding_mode": "random",
}

_COUNT: Final = whole(1, 1025)


def _views(value: Any) -> int | tuple[View, ...]:
    if isinstance(plain(value), int):
        return _COUNT.take(value)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    return tuple(_view(f"views[{number}]", one) for number, one in enumerate(value))


def _view(name: str, given: object) -> View:
    """One dict of ``views``, checked."""
    from .reader import PARAMETERS

    if not isinstance(given, Mapping):
        raise ParamsError(
            f"{name} is not valid", found=written(given), expected=f"a dict of {_listed()}"
        )
    checks: dict[str, Check[object]] = {key: PARAMETERS[key].check for key in OWN}
    checks["count"] = _COUNT
    for key in given:
        if key not in checks:
            near = slip(str(key), checks)
            one = "it is a parameter of the reader, for all views" if key in PARAMETERS else None
            raise ParamsError(
                f"unknown key {written(key)} of {name}",
                expected=_listed(),
                hint=one if near is None else f"did you mean {near!r}?",
            )
    kept = {key: checks[key](f"{key} of {name}", one) for key, one in given.items()}
    return cast(View, {"count": 1, **kept})


def _listed() -> str:
    return ", ".join(("count", *OWN))


VIEWS: Final[Check[int | tuple[View, ...]]] = Check(
    "a whole number of at least 1, or a list of dicts", _views
)


def views_of(p: ReaderParams) -> Sequence[View]:
    """What each array of views has of its own; nothing without ``views``."""
    if isinstance(p.views, int):
        return ({"count": p.views},)
    return p.views or ()


def of_view(p: ReaderParams, view: View) -> ReaderParams:
    """The parameters of an array of views. It does not get those that its ``crop`` does not take,
    unless they are its own."""
    own = {name: value for name, value in view.items() if name != "count"}
    crop = own.get("crop", p.crop)
    plain_ones = {
        name: p.__dataclass_fields__[name].default
        for name, needed in GOES_WITH.items()
        if crop != needed
    }
    return replace(p, views=None, **{**plain_ones, **own})  # type: ignore[arg-type]
