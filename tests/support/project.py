"""Where the checkout is, and the Python files of its packages."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("asyncreader", "converters")
FILES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """What a file says, parsed once for all tests; it must not be changed."""
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    """The dotted name of one of these files."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
