"""Rewrites what is taken from declarations: tables of the documentation, and types of keywords.

python tests/support/page_tables.py
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import MISSING
from functools import partial
from typing import Final, NamedTuple

import click
import numpy as np
from keywords import KEYWORDS, keywords, told, types
from project import ROOT
from tree import folders

from asyncreader.cli.main import cli
from asyncreader.errors import ParamsError
from asyncreader.params.declare import Parameter, form_of
from asyncreader.params.reader import SHOWN
from asyncreader.pixels.augment import known
from asyncreader.pixels.specs import OutputSpec
from asyncreader.pixels.transform import plan_rows
from asyncreader.sources.request import Request, stored_samples
from converters.options import OPTIONS

#: The sections of docs/parameters.md, and the parameters in each. A family brings its fields.
SECTIONS: Final = {
    "source": "path hdf5_path lmdb_path data labels labels_path mix",
    "fields": "data_field labels_field boxes_field keypoints_field members columns offsets_field "
    "axes sample_axis values missing channel_order",
    "samples": "subset episodes episodes_subset window patch lengths",
    "order": "shuffle shuffle_window weights epoch_samples seed epochs batch_size last_batch",
    "ranks": "rank world_size",
    "images": "size crop interpolation flip augment views transform",
    "values": "dtype scale mean std layout contiguous",
    "batches": "mixup cutmix label_smoothing num_classes postprocess",
    "running": "nthread njob workers copy cuda io",
    "errors": "verify on_error timeout trace debug",
}


def parameter_table(section: str) -> str:
    """The parameters of a section: name with its anchor, type, default and meaning."""
    rows = ["| name | type | default | meaning |", "|---|---|---|---|"]
    kinds = types()
    for name in SECTIONS[section].split():
        top = SHOWN[name]
        rows.append(_row(top, told(kinds[name])))
        for field, one in top.parts.items() if top.kind is not None else ():
            if one.name != top.name and one.help != top.help:
                rows.append(_row(one, told(kinds[one.name]), f"`{field}` of `{name}`: "))
            elif one.name != top.name:
                alias = f"the flat name of `{field}` of `{name}`"
                rows.append(_row(dataclasses.replace(one, help=alias), told(kinds[one.name])))
    return "\n".join(rows)


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
    shown = (
        (one.name, one.get_help_record(context)) for one in given if isinstance(one, click.Option)
    )
    whole = OPTIONS if command.name == "convert" else {}
    rows = [(name, *record) for name, record in shown if record is not None]
    told = [
        (f"`{option}`", _option(whole[name]) if name in whole else meaning)
        for name, option, meaning in rows
    ]
    known = {name for name, *_ in rows}
    told += [(f"`{name}=`, in Python", _option(whole[name])) for name in whole if name not in known]
    options = "\n".join(f"| {_cell(name)} | {_cell(meaning)} |" for name, meaning in told)
    return (
        f"## {title}\n\n{text}\n\n| option | meaning |\n|---|---|\n{options}\n\n"
        f"```text\n{examples}\n```"
    )


def _option(one: Parameter) -> str:
    """What an option of convert means, and its default."""
    default = one.shown or ("" if one.default in (None, False) else f"`{one.default}`")
    return f"{one.help[0].upper()}{one.help[1:]}.{default and f' Default: {default}.'}"


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
        fill = plan_rows(stored, OutputSpec(size=size), "data")
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


def folder_table() -> str:
    """The folders of the product with the first sentence of each."""
    rows = [f"| `{name}` | {text} |" for name, text, _ in folders()]
    return "\n".join(("| folder | what it is for |", "|---|---|", *rows))


#: What is made, between two marks of a page.
TEXTS: dict[tuple[str, str], Callable[[], str]] = {
    **{("docs/parameters.md", name): partial(parameter_table, name) for name in SECTIONS},
    ("docs/layouts.md", "shapes"): shape_table,
    ("docs/commands.md", "commands"): command_help,
    ("docs/augmentation.md", "operations"): operation_table,
    ("docs/design.md", "folders"): folder_table,
}


def _row(one: Parameter, kind: str, of: str = "") -> str:
    default = f'`"{one.default}"`' if isinstance(one.default, str) else str(one.default)
    meaning = (of + one.help + form_of(one)).replace("|", r"\|")
    name = f'<a id="{one.name}"></a>`{one.name}`'
    return f"| {name} | {kind} | {one.shown or default} | {meaning} |"


def placed(page: str, mark: str, made: str) -> str:
    """The text of a page with ``made`` between two marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    begin, end = (
        f"<!-- {mark}: begin, from tests/support/page_tables.py -->\n",
        f"<!-- {mark}: end -->",
    )
    before, rest = text.split(begin)
    return before + begin + made + "\n" + end + rest.split(end)[1]


if __name__ == "__main__":
    for (page, mark), make in TEXTS.items():
        (ROOT / page).write_text(placed(page, mark, make()), encoding="utf-8")
    (ROOT / KEYWORDS).write_text(keywords(), encoding="utf-8")
