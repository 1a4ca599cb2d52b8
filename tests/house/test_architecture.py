"""The layers: who may import whom, of every file, wherever in a file the import stands."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hidden_calls import MISSING
from project import FILES, PACKAGES, ROOT, module_name, tree_of
from tree import folders


def full(name: str) -> str:
    """The name of a part of the project; docs/design.md leaves asyncreader out."""
    return name if name.split(".")[0] in PACKAGES else f"asyncreader.{name}"


def numbered(text: str) -> Iterator[tuple[str, int]]:
    """The names in a numbered list, each with its place."""
    for number, line in enumerate(re.findall(r"^\d+\. (.+)$", text, re.MULTILINE)):
        for name in re.findall("`(.+?)`", line):
            yield name, number


def read_layers() -> dict[str, dict[str, int]]:
    """The layer of each part of the project ("") and of some folders, by its full name, as
    docs/design.md lists them, the lowest first. A file imports from lower layers and from its own
    folder; files of one layer may import each other, folders of one layer may not."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = page.partition("## Layers\n")[2].partition("\n## ")[0]
    top, *inner = re.split("### Inside `(.+)`", section)
    found = {"": {full(name): number for name, number in numbered(top)}}
    for folder, text in zip(map(full, inner[::2]), inner[1::2], strict=True):
        found[folder] = {
            f"{folder}.{name}".removesuffix(".__init__"): number for name, number in numbered(text)
        }
    return found


LAYERS = read_layers()

MODULES = {module_name(path): path for path in FILES}


def imports(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports: at once, in functions, or for the type checker alone."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
        found = []
        if isinstance(node, ast.Import):
            found = [part.name for part in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            inner = [f"{base}.{part.name}" for part in node.names]
            found = [one if one in MODULES else base for one in inner]
        for target in found:
            if target in MODULES:
                yield target


@cache
def graph() -> dict[str, set[str]]:
    """The modules of ours that each module imports."""
    return {name: set(imports(path)) for name, path in MODULES.items()}


def part_of(module: str, parts: dict[str, int], folder: str) -> str | None:
    """The part of a folder that a module belongs to: the longest name that fits; None: outside it.

    A package that is no part with all that is in it (``asyncreader``) fits its __init__.py alone.
    """
    name = module
    while name and name != folder:
        if name in parts and (name == module or name not in PACKAGES or name == "converters"):
            return name
        name = name.rpartition(".")[0]
    return folder if module == folder and folder in parts else None


@pytest.mark.parametrize("folder", LAYERS)
def test_every_module_has_a_layer(folder: str) -> None:
    """A new file or folder is put into a layer of docs/design.md before it is used, and no part is
    empty."""
    parts = LAYERS[folder]
    inside = [name for name in MODULES if f"{name}.".startswith(f"{folder}." if folder else "")]
    used = {name: part_of(name, parts, folder) for name in inside}
    without = [name for name, part in used.items() if part is None]
    assert not without, ", ".join(without)
    empty = sorted(set(parts) - set(used.values()))
    assert not empty, ", ".join(empty)


@pytest.mark.parametrize("folder", LAYERS)
def test_imports_go_down(folder: str) -> None:
    """No file imports from a layer above its own, and no folder from another of its layer; imports
    in functions and under TYPE_CHECKING count."""
    parts = LAYERS[folder]
    wrong = []
    for name, targets in graph().items():
        own = part_of(name, parts, folder)
        for target in targets:
            other = part_of(target, parts, folder)
            if own is None or other is None or own == other:
                continue
            folders = [part for part in (own, other) if MODULES[part].name == "__init__.py"]
            if parts[other] > parts[own] or (parts[other] == parts[own] and len(folders) == 2):
                wrong.append(f"{name} ({own}) imports {target}")
    assert not wrong, "\n".join(sorted(wrong))


#: A dataset makes readers, and a reader has its dataset: what users see is a circle.
MUTUAL = ("asyncreader.dataset", "asyncreader.reader")


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Each circle that a walk of the graph meets, as "a -> b -> a"."""
    found, done = [], set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            found.append(" -> ".join((*trail[trail.index(name) :], name)))
        elif name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
    return found


def test_no_circles_of_files() -> None:
    """No file imports itself through others: not at once, nor in functions, nor for its types. The
    one exception is said by name."""
    above, below = MUTUAL
    found = circles({**graph(), above: graph()[above] - {below}})
    assert not found, "\n".join(found)


def test_no_circles_of_packages() -> None:
    """Of the files and folders that lie in one folder, none imports itself through others."""
    for folder in {name.rpartition(".")[0] for name in MODULES} - {""}:
        dot = f"{folder}."
        parts: dict[str, set[str]] = {}
        for name, targets in graph().items():
            if name.startswith(dot):
                part = dot + name.removeprefix(dot).split(".")[0]
                others = {t.removeprefix(dot).split(".")[0] for t in targets if t.startswith(dot)}
                parts.setdefault(part, set()).update({dot + one for one in others} - {part})
        if MUTUAL[0] in parts:
            parts[MUTUAL[0]] -= {MUTUAL[1]}
        found = circles(parts)
        assert not found, "\n".join(found)


def test_loading_the_package_loads_its_errors_alone() -> None:
    """``import asyncreader`` reads errors.py and version.py at once and nothing else, so that
    ``--help`` answers at once; AsyncReader, Batch and ReaderStats come when they are asked for."""
    tree = tree_of(MODULES["asyncreader"])
    assert [node.module for node in tree.body if isinstance(node, ast.ImportFrom)] == [
        *("__future__", "typing", "errors", "system.late", "version")
    ]


def test_every_file_says_what_it_is_for() -> None:
    """The first sentence of each file and folder fits in a line of the list that tree.py makes of
    them, and files that docs/design.md names exist."""
    listed = {name for name, _, _ in folders()}
    for name, text, files in folders():
        for file, said in [("", text), *files]:
            assert 10 < len(said) < 200, name + file
            listed.add(name + file)
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:asyncreader|converters)/[\w/]+(?:\.py|/))`", page))
    assert len(named) > 30
    assert not named - listed


def test_calls_of_one_system_stand_in_one_folder() -> None:
    """What Linux has and another system lacks is called in asyncreader/system alone, which has a
    way without it."""
    names = {
        (module, name)
        for kind in MISSING.values()
        for module, found in kind.items()
        for name in found.split()
    }
    wrong = []
    for module, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = node.value.id, node.attr
                if used in names and not module.startswith("asyncreader.system."):
                    wrong.append(f"{module}: {used[0]}.{used[1]}")
    assert not wrong, "\n".join(wrong)
