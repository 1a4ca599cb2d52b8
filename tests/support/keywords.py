"""Writes asyncreader/params/keywords.py, the types of a reader's keywords, from the declarations.

python tests/support/page_tables.py
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from project import ROOT

from asyncreader.params.declare import Parameter
from asyncreader.params.reader import SHOWN

#: The file that is written.
KEYWORDS: Final = "asyncreader/params/keywords.py"

#: Where the names of types are defined, and whatever else types are made of.
_MODULES: Final = {
    "families": "asyncreader/params/families.py",
    "reader": "asyncreader/params/reader.py",
    "sampling": "asyncreader/sampling/__init__.py",
    "checked": "asyncreader/params/values.py",
}

#: What a caller may pass where more is taken than what is kept of it, or its sequences and dicts.
TAKES: Final = {
    **dict.fromkeys(("path", "hdf5_path", "lmdb_path"), "Paths | None"),
    **dict.fromkeys(("labels_path", "trace"), "str | os.PathLike[str] | None"),
    **dict.fromkeys(("mean", "std"), "npt.ArrayLike | Mapping[str, npt.ArrayLike] | None"),
    "mix": "Mix | Ratios | None",
    "data": "npt.ArrayLike | Mapping[str, npt.ArrayLike] | None",
    "labels": "npt.ArrayLike | None",
    "columns": "Sequence[int] | Sequence[str] | Mapping[str, Sequence[int] | Sequence[str]] | None",
    "subset": "slice | str | Sequence[int] | npt.NDArray[np.integer] | None",
    "episodes_subset": (
        "slice | str | Sequence[int] | Sequence[str] | npt.NDArray[np.integer] | None"
    ),
    "window": "Window | WindowRows | Mapping[str, WindowRows] | None",
    "lengths": "Lengths | int | Mapping[str, int] | None",
    "patch": "Patch | Sequence[int] | None",
    "crop": "Crop | CropKind",
    "axes": "str | None",
    "shuffle": "Shuffle | Block",
    "weights": "Literal['balanced'] | npt.ArrayLike | None",
    "dtype": "npt.DTypeLike | Mapping[str, npt.DTypeLike] | None",
    "augment": "Augment | None",
    "views": "int | Sequence[View] | None",
}

_HEAD: Final = '''"""Types of what a caller may pass: tests/support/page_tables.py writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from .. import sampling
from . import families, reader
from . import values as checked

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ReaderKeywords(TypedDict, total=False):
    """Types of what a caller may pass; ReaderParams says what each means and what is kept."""

{fields}
'''


def types() -> dict[str, str]:
    """What a caller may pass, by the names of parameters."""
    kept = {name: kind for module in _MODULES.values() for name, kind in _annotations(module)}
    return {
        one: TAKES.get(one) or _passed(kept[_place(one, top)])
        for name, top in SHOWN.items()
        for one in (name, *(part.name for part in top.parts.values()))
    }


#: How the table of parameters writes types; other names of types are those of texts.
WORDS: Final = {
    **{name: name for name in ("int", "float", "bool", "slice", "Mix", "Window", "Patch", "Crop")},
    "Lengths": "Lengths",
    "Block": "Block",
    "Paths": "path, list",
    "Ratios": "dict",
    "Sequence": "list",
    "Mapping": "dict",
    "Callable": "function",
    "ArrayLike": "array",
    "NDArray": "array",
    "DTypeLike": "dtype",
    "PathLike": "path",
    "View": "dict",
    "WindowRows": "int, tuple, list, str",
    "Augment": "str, list",
    "Shuffle": "bool, str",
}


def told(kind: str) -> str:
    """A type in the words of the table of parameters; whether None is taken, its default says."""

    def words(node: ast.expr) -> Iterator[str]:
        match node:
            case ast.BinOp():
                yield from (*words(node.left), *words(node.right))
            case ast.Subscript(value=ast.Name(id="Literal")):
                yield "str" if isinstance(ast.literal_eval(node.slice), str) else "bool"
            case ast.Subscript():
                yield from words(node.value)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                yield from WORDS.get(name, "str").split(", ")

    return ", ".join(dict.fromkeys(words(ast.parse(kind, mode="eval").body)))


def keywords() -> str:
    """The text of the file. Types are named by the modules that define them."""
    fields = "\n".join(f"    {one}: {kind}".replace("'", '"') for one, kind in types().items())
    for module, file in _MODULES.items():
        fields = re.sub(rf"\b({'|'.join(_defined(file))})\b(?!:)", rf"{module}.\1", fields)
    return _HEAD.format(fields=fields)


def _place(flat: str, top: Parameter) -> str:
    """Where a parameter is declared: ``Class.field`` in a family, else its own name."""
    for field, one in top.parts.items():
        if one.name == flat and top.kind is not None:
            return f"{top.kind.__name__}.{field}"
    return flat


def _annotations(file: str) -> Iterator[tuple[str, ast.expr]]:
    """The annotations of the fields of a module's classes, by field and by ``Class.field``."""
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        for field in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield field.target.id, field.annotation
                yield f"{node.name}.{field.target.id}", field.annotation


def _defined(file: str) -> Iterator[str]:
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


class _Wider(ast.NodeTransformer):
    """A tuple may be any sequence, a dict any mapping."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        kind = ast.unparse(node.value)
        if kind == "tuple":
            first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            return ast.parse(f"Sequence[{ast.unparse(first)}]", mode="eval").body
        if kind == "dict":
            return ast.parse(f"Mapping[{ast.unparse(node.slice)}]", mode="eval").body
        return node


def _passed(kept: ast.expr) -> str:
    """What may be passed where this is kept."""
    return ast.unparse(_Wider().visit(kept)).replace("Mapping[(", "Mapping[").replace(")]", "]")
