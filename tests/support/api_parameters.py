"""An extension of griffe, by which mkdocstrings shows the keywords that a function takes as ``**``.

They are declared: their types in a TypedDict (ReaderKeywords, ConvertKeywords, WriterKeywords),
their defaults and meanings beside it. What takes all of AsyncReader's refers to its table.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import griffe

from asyncreader.params.declare import Parameter
from asyncreader.params.reader import PARAMETERS, SHOWN
from converters.options import OPTIONS

#: The declarations of the keywords of a TypedDict, and where their table stands.
DECLARED: dict[str, tuple[Mapping[str, Parameter], str]] = {
    "ReaderKeywords": ({**SHOWN, **PARAMETERS}, "asyncreader.reader.AsyncReader"),
    "ConvertKeywords": (OPTIONS, "converters.writer.convert"),
    "WriterKeywords": (OPTIONS, "converters.writer.Writer"),
}

#: Where these TypedDicts stand.
_DECLARED_IN = dict.fromkeys(("ConvertKeywords", "WriterKeywords"), "converters.options")
_DECLARED_IN |= {"ReaderKeywords": "asyncreader.params.keywords"}

#: Names for types that are longer than what they stand for.
_SHORT = {"npt.ArrayLike": "array", "npt.DTypeLike": "dtype", "os.PathLike[str]": "PathLike"}
_SHORT |= {"npt.NDArray[np.integer]": "array of int", "Callable[..., object]": "callable"}
_SHORT |= {"LastRow": "Literal['last']", "EachEpisode": "Literal['episode']"}

#: A name that may be an alias: not what it is subscribed with, and no text.
_NAME = re.compile(r"(?<![\w.\"'])[A-Z]\w+\b(?![\"'\[])")

#: What a caller gets, and never makes: how it is made is not shown.
_MADE_INSIDE = ("asyncreader.batch.Batch", "asyncreader.dataset.Dataset")


class KeywordTables(griffe.Extension):
    """Writes the table of keywords behind the text of the class or function that takes them."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Writes into the texts of a package that was read; ValueError where no table has a place,
        or a keyword no declaration."""
        homes = {home for _, home in DECLARED.values() if home.startswith(f"{pkg.name}.")}
        for function in _functions(pkg):
            of_class = function.name == "__init__" and isinstance(function.parent, griffe.Class)
            owner = function.parent if of_class else function
            assert isinstance(owner, griffe.Class | griffe.Function)
            for parameter in function.parameters:
                taken = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
                if taken and taken[1] in DECLARED and owner.docstring is not None:
                    text = owner.docstring.value.removesuffix("The options:").rstrip()
                    owner.docstring.value = f"{text}\n\n{_said(owner, taken[1], loader)}"
                    homes.discard(owner.path)
            if of_class and owner.path in _MADE_INSIDE:
                owner.del_member("__init__")
        if homes:
            raise ValueError(f"no table of keywords was written for {', '.join(sorted(homes))}")


def _functions(inside: griffe.Object) -> Iterable[griffe.Function]:
    for member in list(inside.members.values()):
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _functions(member)


def _said(owner: griffe.Object, keywords: str, loader: griffe.GriffeLoader) -> str:
    """The table, or where it stands."""
    declarations, home = DECLARED[keywords]
    if owner.path != home:
        return f"Keywords: [those of `{home.split('.')[-1]}`](#{_public(home)})."
    module = loader.modules_collection[_DECLARED_IN[keywords]]
    rows = ["| keyword | type, default and meaning |", "|---|---|"]
    for name, attribute in module[keywords].all_members.items():
        one = declarations[name]
        default = f'`"{one.default}"`' if isinstance(one.default, str) else f"`{one.default}`"
        known = f"{_type(attribute, loader)}, default: {one.shown or default}"
        rows.append(f"| `{name}` | {known}<br>{one.help} |")
    return "\n".join(rows)


def _public(path: str) -> str:
    """The name under which docs/api.md shows what lies at a path."""
    return f"{path.split('.')[0]}.{path.split('.')[-1]}"


def _type(attribute: griffe.Object, loader: griffe.GriffeLoader) -> str:
    """The type of a keyword, with the values that an alias stands for."""
    text = str(getattr(attribute, "annotation", ""))
    for _ in range(4):  # aliases of aliases
        text = _NAME.sub(lambda one: _alias(attribute, one[0], loader), text)
    for long, short in _SHORT.items():
        text = text.replace(long, short)
    literals = re.sub(r"Literal\[([^\]]*)\]", lambda one: one[1].replace(", ", " | "), text)
    return "`" + literals.replace("'", '"') + "`"


def _alias(attribute: griffe.Object, name: str, loader: griffe.GriffeLoader) -> str:
    """What an alias stands for; another name as it is."""
    module = attribute.module
    try:
        found: Any = loader.modules_collection[module.resolve(name)]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.NameResolutionError, griffe.AliasResolutionError):
        return name
    value = str(getattr(found, "value", None) or "")
    return value.strip("\"'") if value and len(value) < 120 else name
