"""Prints every folder and file of the product with the first sentence of its docstring.

python tests/support/tree.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from project import FILES, ROOT, tree_of


def first_sentence(path: Path) -> str:
    """The first line of a file's docstring, without its full stop and its marks of code."""
    text = ast.get_docstring(tree_of(path)) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.replace("``", "").removesuffix(".")


def folders() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Each folder with its sentence, and its files with theirs."""
    for folder in sorted({path.parent for path in FILES}):
        inside = sorted(path for path in FILES if path.parent == folder)
        files = [(path.name, first_sentence(path)) for path in inside if path.name[:2] != "__"]
        name = folder.relative_to(ROOT).as_posix()
        yield f"{name}/", first_sentence(folder / "__init__.py"), files


def page() -> str:
    """All of it as a page of the site."""
    parts = ["# Every file in one line\n", "Made of the first sentences of the files.\n"]
    for name, text, files in folders():
        parts.append(f"## {name}\n\n{text}.\n")
        if files:
            rows = "\n".join(f"| `{file}` | {said} |".replace("*", r"\*") for file, said in files)
            parts.append(f"| file | what it is for |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    for name, text, files in folders():
        print(f"{name}  {text}")
        for file, said in files:
            print(f"    {file}  {said}")
