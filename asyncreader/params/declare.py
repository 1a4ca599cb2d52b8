"""How a parameter is declared: its default, the check of its value, and what it does in words."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeVar, Unpack

from ..system.checks import Check, optional

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

#: Any value but the default, of what a parameter goes with.
ANY: Final = "any"


@dataclass(frozen=True)
class Parameter:
    """A parameter as it was declared. ``help`` is Markdown; its first sentence is the summary.

    ``shown``: the default in words, where the value does not say it; ``metavar``: what ``--help``
    calls a value. ``goes_with``: parameters of which one must have such a value (or ANY but its
    default) where this one is not left at its default. ``parts``: of a family the parameters that
    it stands for, by the names of its fields; ``kind``: its class.
    """

    name: str
    default: object
    check: Check[object]
    help: str
    shown: str = ""
    metavar: str = ""
    goes_with: Mapping[str, object] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    kind: type | None = None

    @property
    def summary(self) -> str:
        """What ``--help`` says of it."""
        text = re.split(r"[.;] ", re.sub(r"[`\"]", "", self.help))[0].removesuffix(".")
        return f"{text[0].upper()}{text[1:]}."


class _More(TypedDict, total=False):
    """What a declaration may say besides: see :class:`Parameter`. ``goes_with``: in a family its
    first field, where nothing else is said. ``name``: what a field of a family is called outside of
    it, where that is not ``family_field``, and for its first field not the name of the family."""

    shown: str
    metavar: str
    goes_with: Mapping[str, object]
    name: str


def parameter(default: T, check: Check[T], help: str, **more: Unpack[_More]) -> T:
    """The declaration of a parameter, as a field of a dataclass."""
    metadata = {"check": check, "help": help, **more}
    return dataclasses.field(default=default, metadata=metadata)


def worked_out(check: Check[T], help: str, **more: Unpack[_More]) -> T:
    """As :func:`parameter`, but the default follows from other values: it is None until then."""
    unknown: Any = None
    field: T = parameter(unknown, optional(check), help, **more)
    return field


def family(made: T) -> T:
    """The declaration of parameters that belong together: ``made`` is their dataclass with its
    defaults."""
    return dataclasses.field(default=made, metadata={"kind": type(made)})


def shown(kind: type) -> dict[str, Parameter]:
    """The parameters that a dataclass declares, by name and in order; a family is one of them."""
    return {
        field.name: _family(field.name, field.metadata["kind"])
        if "kind" in field.metadata
        else Parameter(**{"name": field.name, "default": field.default, **field.metadata})
        for field in dataclasses.fields(kind)
        if field.metadata
    }


def _family(name: str, kind: type) -> Parameter:
    """A family as one parameter: what is said of its first field is said of it."""
    head, *others = dataclasses.fields(kind)
    first = Parameter(**{"name": name, "default": head.default, **head.metadata})
    parts = {head.name: first}
    for one in others:
        said = {"name": f"{name}_{one.name}", "goes_with": {first.name: ANY}, **one.metadata}
        parts[one.name] = Parameter(default=one.default, **said)
    return dataclasses.replace(first, name=name, parts=parts, kind=kind)


def declared(kind: type) -> dict[str, Parameter]:
    """The parameters that a dataclass declares, by name and in order; those of its families by
    their flat names."""
    return {one.name: one for top in shown(kind).values() for one in top.parts.values() or (top,)}


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
            taker.__doc__ += "\n" + textwrap.fill(
                f"    {p.name}: {p.help}{form_of(p)}", 90, **_INDENT
            )
            for field, one in list(p.parts.items())[1:]:
                text = f"        {field} (or {one.name}=): {one.help}"
                taker.__doc__ += "\n" + textwrap.fill(text, 90, **_INDENT)
        return taker

    return document


def form_of(p: Parameter) -> str:
    """How a family is written, after its text."""
    if p.kind is None or hasattr(p.kind, "of"):  # which has a short form of all its fields
        return ""
    head, *others = p.parts.items()
    said = ", ".join([head[0], *(f"{name}={one.default!r}" for name, one in others)])
    return f"; in full `{p.kind.__name__}({said})`".replace("'", '"')
