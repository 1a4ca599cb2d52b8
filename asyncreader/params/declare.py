"""How a parameter is declared: its default, the check of its value, and what it does in words."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..checks import Check, optional

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Parameter:
    """A parameter as it was declared. ``help`` is Markdown; its first sentence is the summary.

    ``shown``: the default in words, where the value does not say it; ``metavar``: what ``--help``
    calls a value.
    """

    name: str
    default: object
    check: Check[object]
    help: str
    shown: str
    metavar: str

    @property
    def summary(self) -> str:
        """What ``--help`` says of it."""
        text = re.split(r"[.;] ", re.sub(r"[`\"]", "", self.help))[0].removesuffix(".")
        return f"{text[0].upper()}{text[1:]}."


def parameter(default: T, check: Check[T], help: str, *, shown: str = "", metavar: str = "") -> T:
    """The declaration of a parameter, as a field of a dataclass."""
    said = {"check": check, "help": help, "shown": shown, "metavar": metavar}
    return dataclasses.field(default=default, metadata=said)


def worked_out(check: Check[T], help: str, *, shown: str = "", metavar: str = "") -> T:
    """As :func:`parameter`, but the default follows from other values: it is None until then."""
    unknown: Any = None
    field: T = parameter(unknown, optional(check), help, shown=shown, metavar=metavar)
    return field


def declared(kind: type) -> dict[str, Parameter]:
    """The parameters that a dataclass declares, by name and in order."""
    return {
        field.name: Parameter(field.name, field.default, **field.metadata)
        for field in dataclasses.fields(kind)
        if "check" in field.metadata
    }


_INDENT: Final[dict[str, Any]] = {"subsequent_indent": " " * 8, "break_on_hyphens": False}


def documented(parameters: Mapping[str, Parameter]) -> Callable[[F], F]:
    """Shows the keywords that a function takes as ``**`` to ``help()`` and notebooks."""

    def document(taker: F) -> F:
        signature = inspect.signature(taker)
        first = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        named = [
            inspect.Parameter(p.name, inspect.Parameter.KEYWORD_ONLY, default=p.default)
            for p in parameters.values()
        ]
        setattr(taker, "__signature__", signature.replace(parameters=[*first, *named]))  # noqa: B010
        taker.__doc__ = inspect.cleandoc(taker.__doc__ or "Keywords:") + "\n"
        for p in parameters.values():
            taker.__doc__ += "\n" + textwrap.fill(f"    {p.name}: {p.help}", 90, **_INDENT)
        return taker

    return document
