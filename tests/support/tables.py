"""Rewrites what the documentation takes from declarations: parameters, options, layouts, commands.

python tests/support/tables.py
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import NamedTuple

import click
import numpy as np
from project import ROOT

from asyncreader.cli.main import cli
from asyncreader.errors import ParamsError
from asyncreader.params import PARAMETERS, SHOWN
from asyncreader.params.declare import Parameter, form_of
from asyncreader.pixels.augment.parse import known
from asyncreader.pixels.specs import OutputSpec
from asyncreader.pixels.transform import RowTransform
from asyncreader.sources.layouts.detect import table as layout_table
from asyncreader.sources.request import Request, stored_samples
from converters.options import OPTIONS

#: The parameters that README shows: those that most people need.
TWELVE = ("path", "batch_size", "shuffle", "seed", "nthread", "size", "crop", "flip", "dtype")
TWELVE += ("scale", "last_batch", "rank")

#: The table between two marks of a page.
TABLES = {
    ("README.md", "parameters"): {name: PARAMETERS[name] for name in TWELVE},
    ("docs/parameters.md", "parameters"): SHOWN,
    ("docs/convert.md", "options"): OPTIONS,
}


def command_help() -> str:
    """What --help says of the asyncreader command and of each of its commands, in Markdown."""
    whole = click.Context(cli, info_name="asyncreader", **cli.context_settings)
    parts = [whole] + [
        click.Context(command, parent=whole, info_name=name)
        for name, command in sorted(cli.commands.items())
    ]
    return "\n\n".join(map(_one_command, parts))


def _one_command(context: click.Context) -> str:
    """Its arguments, what it does, its options and its examples."""
    command = context.command
    given = command.get_params(context)
    names = [one.human_readable_name for one in given if isinstance(one, click.Argument)]
    title = " ".join((context.command_path, *names))
    text = inspect.cleandoc(command.help or "").replace("<", r"\<").replace("*", r"\*")
    examples = (command.epilog or "").replace("\b\n", "").rstrip()
    shown = (one.get_help_record(context) for one in given if isinstance(one, click.Option))
    rows = [record for record in shown if record is not None]
    options = "\n".join(
        f"| `{option}` | {meaning} |" for option, meaning in (map(_cell, row) for row in rows)
    )
    return (
        f"## {title}\n\n{text}\n\n| option | meaning |\n|---|---|\n{options}\n\n"
        f"```text\n{examples}\n```"
    )


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


class Shape(NamedTuple):
    """Data of some shape that another program stored: what they are, an example, and the axes
    that the caller names, as (num_dim, h_dim, w_dim, cha_dim)."""

    words: str
    shape: tuple[int, ...]
    dtype: str = "uint8"
    dims: tuple[int, int, int, int] | None = None

    @property
    def example(self) -> str:
        """The shape of the whole data set, its dtype, and what is named."""
        text = (
            f"({', '.join(('N', *map(str, self.shape)))}{'' if self.shape else ','}) {self.dtype}"
        )
        if self.dims is None:
            return text
        names = zip(("num_dim", "h_dim", "w_dim", "cha_dim"), self.dims, strict=True)
        return text + ", `" + ", ".join(f"{name}={number}" for name, number in names) + "`"


#: The examples of the table in docs/layouts.md.
SHAPES = (
    Shape("images, channels last", (64, 48, 3)),
    Shape("one or two channels", (64, 48, 1), "uint16"),
    Shape("one or two channels", (64, 48, 2), "float32"),
    Shape("channels first", (3, 64, 48)),
    Shape("channels first, named", (3, 64, 48), dims=(1, 3, 4, 2)),
    Shape("very narrow images", (4, 48, 4)),
    Shape("volumes", (16, 24, 24), "uint16"),
    Shape("shallow volumes", (3, 24, 24), "float32"),
    Shape("feature maps", (64, 7, 7), "float32"),
    Shape("5 bands", (5, 64, 48), "uint16"),
    Shape("12 bands", (64, 48, 12), "float32"),
    Shape("12 bands, named", (64, 48, 12), "float32", (1, 2, 3, 4)),
    Shape("grey images", (64, 48)),
    Shape("matrices", (64, 48), "float32"),
    Shape("vectors", (10,), "float32"),
    Shape("numbers", (), "int64"),
    Shape("volumes with channels, films", (1, 16, 24, 24), "float32"),
)

#: The size that the table's last column asks for.
SIZE = (32, 32)


def shape_table() -> str:
    """What data of each shape are served as, by the rule that the reader follows."""
    rows = [
        f"| stored | example | served | with `size={SIZE}`, or `flip` |",
        "|---|---|---|---|",
    ]
    for one in SHAPES:
        cells = (one.words, one.example, _served(one), _served(one, SIZE))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _served(one: Shape, size: tuple[int, int] | None = None) -> str:
    asked = Request(dims=one.dims, moved=size is not None)
    try:
        _, stored = stored_samples((8, *one.shape), np.dtype(one.dtype), asked, "data")
    except ParamsError:
        return "asks for the axes"
    try:
        fill = RowTransform(stored, OutputSpec(size=size), "data")
    except ParamsError:
        return "refused: no images"
    _, *shape = fill.handed_out(np.empty(fill.allocate_shape(1), fill.dtype)).shape
    text = f"(B{''.join(f', {n}' for n in shape)}{'' if shape else ','})"
    return f"as stored, {text}" if stored.axes is None else f"images, {text}"


def operation_table() -> str:
    """The operations of ``augment`` with their options and defaults."""
    rows = ["| operation | options, with their defaults |", "|---|---|"]
    for name, kind in known().items():
        fields = sorted(dataclasses.fields(kind), key=lambda one: one.default is not MISSING)
        options = (
            f"`{one.name}`" if one.default is MISSING else f"`{one.name}={one.default!r}`"
            for one in fields
        )
        rows.append(f"| `{name}` | {', '.join(options)} |".replace("'", '"'))
    return "\n".join(rows)


def flat_table() -> str:
    """The fields of families by their flat names."""
    rows = ["| in a family | flat name | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{field}` of `{family.name}` {_row(one)}"
        for family in SHOWN.values()
        for field, one in family.parts.items()
        if one.name != family.name
    ]
    return "\n".join(rows)


#: What else is made, between two marks of a page.
TEXTS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/parameters.md", "flat names"): flat_table,
    ("docs/layouts.md", "layouts"): layout_table,
    ("docs/layouts.md", "shapes"): shape_table,
    ("docs/commands.md", "commands"): command_help,
    ("docs/augmentation.md", "operations"): operation_table,
}


def table(parameters: Mapping[str, Parameter]) -> str:
    """A row for each parameter: its name, its default and what it does."""
    rows = ["| name | default | meaning |", "|---|---|---|"]
    return "\n".join([*rows, *map(_row, parameters.values())])


def _row(one: Parameter) -> str:
    default = f'`"{one.default}"`' if isinstance(one.default, str) else str(one.default)
    meaning = (one.help + form_of(one)).replace("|", r"\|")
    return f"| `{one.name}` | {one.shown or default} | {meaning} |"


def rewritten(page: str, mark: str, parameters: Mapping[str, Parameter]) -> str:
    """The text of a page with its table as the declarations say."""
    return placed(page, mark, table(parameters))


def placed(page: str, mark: str, made: str) -> str:
    """The text of a page with ``made`` between two marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    begin, end = f"<!-- {mark}: begin, from tests/support/tables.py -->\n", f"<!-- {mark}: end -->"
    before, rest = text.split(begin)
    return before + begin + made + "\n" + end + rest.split(end)[1]


if __name__ == "__main__":
    for (page, mark), parameters in TABLES.items():
        (ROOT / page).write_text(rewritten(page, mark, parameters), encoding="utf-8")
    for (page, mark), make in TEXTS.items():
        (ROOT / page).write_text(placed(page, mark, make()), encoding="utf-8")
