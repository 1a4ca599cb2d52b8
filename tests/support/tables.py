"""Rewrites the tables of parameters and layouts in the documentation from their declarations.

python tests/support/tables.py
"""

from __future__ import annotations

from collections.abc import Mapping

from project import ROOT

from asyncreader.checks import Parameter
from asyncreader.params import PARAMETERS
from asyncreader.sources.layouts.detect import table as layout_table
from converters.options import OPTIONS

#: The table between two marks of a page.
TABLES = {("README.md", "parameters"): PARAMETERS, ("docs/convert.md", "options"): OPTIONS}


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
    """The text of a page with the table ``made`` between two marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    begin, end = f"<!-- {mark}: begin, from tests/support/tables.py -->\n", f"<!-- {mark}: end -->"
    before, rest = text.split(begin)
    return before + begin + made + "\n" + end + rest.split(end)[1]


if __name__ == "__main__":
    for (page, mark), parameters in TABLES.items():
        (ROOT / page).write_text(rewritten(page, mark, parameters), encoding="utf-8")
    layouts = placed("README.md", "layouts", layout_table())
    (ROOT / "README.md").write_text(layouts, encoding="utf-8")
