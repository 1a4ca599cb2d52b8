"""Rewrites what the documentation takes from declarations: parameters, options, layouts, commands.

python tests/support/tables.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import click
from project import ROOT

from asyncreader.checks import Parameter
from asyncreader.cli.main import cli
from asyncreader.params import PARAMETERS
from asyncreader.sources.layouts.detect import table as layout_table
from converters.options import OPTIONS

#: The parameters that README shows: those that most people need.
TWELVE = ("path", "batch_size", "shuffle", "seed", "nthread", "size", "crop", "flip", "dtype")
TWELVE += ("scale", "last_batch", "rank")

#: The table between two marks of a page.
TABLES = {
    ("README.md", "parameters"): {name: PARAMETERS[name] for name in TWELVE},
    ("docs/parameters.md", "parameters"): PARAMETERS,
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


#: What else is made, between two marks of a page.
TEXTS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/layouts.md", "layouts"): layout_table,
    ("docs/commands.md", "commands"): command_help,
}


def table(parameters: Mapping[str, Parameter]) -> str:
    """A row for each parameter: its name, its default and what it does."""
    rows = ["| name | default | meaning |", "|---|---|---|"]
    for one in parameters.values():
        default = f'`"{one.default}"`' if isinstance(one.default, str) else str(one.default)
        meaning = one.help.replace("|", r"\|")
        rows.append(f"| `{one.name}` | {one.shown or default} | {meaning} |")
    return "\n".join(rows)


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
