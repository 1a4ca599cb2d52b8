"""What the commands share: options, how their values are read, and opening a set."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..params.declare import Parameter
from ..params.parse import snake_case
from ..params.reader import PARAMETERS
from ..system.checks import Form, path_text
from .terminal import say

if TYPE_CHECKING:
    from ..sources import SetIndex

#: What is made of pictures that differ in size: (H, W) that most ImageNet training uses.
USUAL_SIZE: Final = (224, 224)


F = TypeVar("F", bound=Callable[..., Any])


def size_of(_: click.Context, option: click.Parameter, value: str | None) -> Any:
    """ "224x224" -> (224, 224), and for ``convert`` "256" -> 256."""
    if value is None:
        return None
    sides = tuple(int(side) for side in re.findall(r"\d+", value))
    one = option.metavar != "HxW"
    if not re.fullmatch(r"\d{1,5}([xX]\d{1,5})?" if one else r"\d{1,5}[xX]\d{1,5}", value):
        raise click.BadParameter(f"{value!r} is not {option.metavar}, such as 224x224")
    return sides if len(sides) == 2 else sides[0]


def counts_of(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """ "1,2,4" -> (1, 2, 4)."""
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", value):
        raise click.BadParameter(f"{value!r} is not a list of numbers, such as 1,2,4")
    return tuple(map(int, value.split(",")))


def function_of(text: str) -> Any:
    """ "module:function" -> that function; as ``python -m`` finds it.

    BadParameter where there is none, or where its module cannot be imported.
    """
    from importlib import import_module

    module, colon, name = text.partition(":")
    if not colon or not name:
        raise click.BadParameter(f"{text!r} is not module:function, such as mine:augment")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as exc:  # whatever the user's own module raises
        raise click.BadParameter(
            f"{text!r} cannot be imported ({type(exc).__name__}: {exc})"
        ) from exc
    return found


#: A slice of record numbers: 0:100, ::10, -500: .
_SLICE: Final = re.compile(r"(-?\d{1,18})?(:(-?\d{1,18})?){1,2}")
#: Python's words for what JSON calls true, false and null.
_PYTHON: Final = {"True": True, "False": False, "None": None}


def params_of(_: click.Context, __: click.Parameter, words: Iterable[str]) -> dict[str, object]:
    """ "njob=2" -> {"njob": 2}: values are JSON or Python's words, or else text.

    ``postprocess=module:function`` is that function, ``subset=0:100`` or ``subset=::10`` a slice,
    ``size=224x224`` is (224, 224), and ``patch=64x64x64`` (64, 64, 64). Fields can be called by a
    number (tensorpack's are): data_field=1 means the name "1".
    """
    params: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE, such as data_field=images")
        known = PARAMETERS.get(snake_case(name))
        try:
            params[name] = _value_of(text, "json" if known is None else known.check.form)
        except ValueError as exc:
            raise click.BadParameter(f"{word!r}: {exc}") from None
    return params


def _value_of(text: str, form: Form) -> object:
    """A value as its form is written; ValueError where it cannot be."""
    if form == "slice" and _SLICE.fullmatch(text):
        chosen = slice(*(int(end) if end else None for end in text.split(":")))
        chosen.indices(0)
        return chosen
    if form == "size" and re.fullmatch(r"\d{1,5}([xX]\d{1,5})+", text):
        return [int(side) for side in re.split("[xX]", text)]
    if form == "function" and text not in ("None", "null"):
        return function_of(text)
    try:
        value = _PYTHON[text] if text in _PYTHON else json.loads(text)
    except ValueError:
        return text
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if number and form in ("text", "file", "paths") else value


def folders_of(_: click.Context, _option: click.Parameter, words: Iterable[str]) -> dict[str, str]:
    """ "mask=masks/" -> {"mask": "masks/"}."""
    folders: dict[str, str] = {}
    for word in words:
        name, _equals, folder = word.partition("=")
        if not name or not folder:
            raise click.BadParameter(f"{word!r} is not NAME=DIR, such as mask=masks/")
        if name in folders:
            raise click.BadParameter(f"{name!r} is given twice")
        folders[name] = folder
    return folders


class _Path(click.Path):
    """A path. One that the system cannot take, such as one with a null character, is wrong usage;
    an unreadable one is not: opening it reports that."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            path_text(value)
            return super().convert(value, param, ctx)
        except ValueError as exc:
            self.fail(f"{value!r} is not {str(exc) or 'a path'}", param, ctx)


PATH = _Path(readable=False)

#: The set that a command is about: a path, left out where -p mix={...} names several.
set_argument = click.argument("path", type=PATH, required=False)


def set_of(path: str | None, params: dict[str, Any], **options: object) -> dict[str, Any]:
    """The parameters of a command: its set, PATH or that of -p mix={...}; those of -p, and other
    ``options`` that are given. UsageError where there is no set."""
    if path is None and params.get("mix") is None:
        raise click.UsageError("Missing argument 'PATH', or -p mix={...}.")
    of_set = {} if path is None else {"path": path}
    given = {name: value for name, value in options.items() if value is not None}
    return {**given, **of_set, **params}


#: Limits above this are not shown by --help; the parameter's check knows them.
_LONG: Final = 1 << 20


#: ``--param`` as click.option takes it.
_PARAMS: Final = ("--param", "-p", "params")
_PARAMS_SETTINGS: Final[dict[str, Any]] = {
    "multiple": True,
    "metavar": "NAME=VALUE",
    "callback": params_of,
}


def described(
    parameter: Parameter, default: object = None, help: str = ""
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A declared parameter as click.option takes it; ``default``, ``help``: of this command alone.

    Without a ``default`` an option that is not given is None, False or {}, and so left to the
    parameter's default.
    """
    check, name = parameter.check, f"--{parameter.name.replace('_', '-')}"
    names: tuple[str, ...] = (name,)
    words = [word for word in check.words if word is not None]
    settings: dict[str, Any] = {"metavar": parameter.metavar or None}
    if words == [True, False]:
        settings["is_flag"] = True
        if parameter.default is None:
            names, settings["default"] = (f"{name}/--no-{name[2:]}",), None
    elif check.form == "size":
        settings |= {"metavar": parameter.metavar or "HxW", "callback": size_of}
    elif check.form == "file":
        settings["type"] = PATH
    elif check.form == "texts":
        settings["multiple"] = True
    elif check.form == "params":
        names, settings = _PARAMS, dict(_PARAMS_SETTINGS)
    elif check.form == "folders":
        names = (name.removesuffix("s"), parameter.name)
        settings = {"multiple": True, "metavar": "NAME=DIR", "callback": folders_of}
    elif check.limits is not None:
        low, high = check.limits
        limits = click.IntRange(low, None if high is None or high > _LONG else high)
        kind = click.INT if check.limits == (None, None) else limits
        settings |= {"metavar": parameter.metavar or "N", "type": kind}
    elif check.form == "word":
        settings["type"] = click.Choice(words)
    if default is not None:
        settings |= {"default": default, "show_default": True}
    elif not help and (usual := parameter.shown or parameter.default):
        help = f"{parameter.summary} [{usual}]".replace("`", "")
    return names, {"help": help or parameter.summary, **settings}


def reader_option(name: str, default: object = None, help: str = "") -> Callable[[F], F]:
    """The option of a parameter of AsyncReader: see :func:`described`."""
    names, settings = described(PARAMETERS[name], default, help)
    return click.option(*names, **settings)


def params_option(text: str) -> Callable[[F], F]:
    """``--param NAME=VALUE``, any number of times."""
    return click.option(*_PARAMS, **_PARAMS_SETTINGS, help=text)


param_option = params_option("Any parameter of AsyncReader, such as data_field=images.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
brief_option = click.option("--quiet", "-q", is_flag=True, help="No progress, fewer words.")
batch_size_option = reader_option("batch_size", 128)
njob_option = reader_option("njob", 4, "Batches in flight.")


def number(
    name: str, kind: click.IntRange | click.FloatRange, text: str, default: float | None = None
) -> Callable[[F], F]:
    """An option that takes a number."""
    usual: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option(name, type=kind, metavar="N", help=text, **usual)


jobs_option = number("--jobs", click.IntRange(1, 1024), "Threads. [usable cores]")


def size_for(params: dict[str, Any], quiet: bool = False) -> SetIndex | None:
    """Give ``params`` of a reader what they lack, and say so: a size where the set's pictures
    differ in size, and max_length where samples differ in length. The index of the set, where a
    reader of ``params`` opens the same."""
    from ..sources.ragged import longest_of
    from ..tools.trials import open_set, reusable_index

    said = []
    with open_set(params) as source:
        if "size" not in params and source.spec.shape is None:
            params["size"] = USUAL_SIZE
            said.append("the images differ in size: cut to {}x{}; see --size".format(*USUAL_SIZE))
        most = None if params.get("max_length") else longest_of(source)
        if most is not None:
            params["max_length"] = max(most.values())
            said.append(
                f"the samples differ in length: filled up to {params['max_length']}, the longest; "
                "see -p max_length"
            )
        for line in said:
            if not quiet:
                say(line)
        return None if said else reusable_index(source)
