"""What a type checker tells users: every public annotation says what it is, and none says Any."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from project import FILES, ROOT, module_name, tree_of

#: What users import: the ``__all__`` of these, or where there is none the names that a module
#: defines itself.
PUBLIC = (
    *(
        "asyncreader",
        "asyncreader.faces",
        "asyncreader.faces.pyxis",
        "asyncreader.testing",
        "converters",
    ),
    *(f"asyncreader.adapters.{name}" for name in ("torch", "jax", "keras", "ray", "generator")),
)

#: Nothing of these is handed to users: they are named where parts of the reader are put together.
INNER = ("asyncreader.pipeline.", "asyncreader.sources.", "asyncreader.pixels.rows")

#: Too wide to say anything, as Any is.
NOTHING_SAID = ("typing.Any", "_typeshed.Incomplete")

MODULES = {module_name(path): path for path in FILES}


@cache
def names_of(module: str) -> dict[str, ast.stmt | str]:
    """What the names of a module mean at its top level: a statement, or where it is imported from.

    Imports for the type checker count: annotations use them.
    """
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    found: dict[str, ast.stmt | str] = {}
    todo: list[ast.stmt] = list(tree_of(MODULES[module]).body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.If):
            todo = [*node.orelse, *node.body, *todo]  # of both, what the type checker sees wins
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            found |= {part.asname or part.name: f"{base}.{part.name}" for part in node.names}
        elif isinstance(node, ast.Import):
            found |= {part.asname or part.name: part.name for part in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            found |= {one.id: node for one in node.targets if isinstance(one, ast.Name)}
    return found


def resolve(module: str, name: str) -> tuple[str, ast.stmt | str]:
    """Where ``name`` is defined: (module, statement); of another library ("", dotted name)."""
    meant = names_of(module).get(name, f"builtins.{name}")
    while isinstance(meant, str):
        module, _, name = meant.rpartition(".")
        if module not in MODULES or name not in names_of(module):
            return "", meant
        meant = names_of(module)[name]
    return module, meant


def annotated(node: ast.expr | None) -> Iterator[ast.Name | ast.Attribute]:
    """The names in an annotation, those in strings too; an attribute counts as a whole."""
    todo = [] if node is None else [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Name | ast.Attribute):
            yield part
        elif isinstance(part, ast.Subscript) and ast.unparse(part.value).endswith("Literal"):
            continue
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            todo.append(ast.parse(part.value, mode="eval").body)
        else:
            todo += [child for child in ast.iter_child_nodes(part) if isinstance(child, ast.expr)]


def is_public(name: str) -> bool:
    """Whether users see a member of this name; of special methods they see what Python calls."""
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def annotations_of(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """(What it is called, annotation) of all that users see of a class, function or alias."""
    if isinstance(node, ast.AnnAssign):
        alias = ast.unparse(node.annotation).endswith("TypeAlias")
        yield ast.unparse(node.target), node.value if alias else node.annotation
        return
    parts = [node]
    if isinstance(node, ast.ClassDef):
        yield from ((f"class {node.name}", base) for base in node.bases)
        parts = [part for part in ast.walk(node) if isinstance(part, ast.AnnAssign)]
        parts = [part for part in parts if part in node.body or hasattr(part.target, "attr")]
        parts += [part for part in node.body if isinstance(part, ast.FunctionDef)]
    for part in parts:
        if isinstance(part, ast.FunctionDef) and is_public(part.name):
            given = part.args
            every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
            for argument in filter(None, every):
                yield f"{part.name}({argument.arg})", argument.annotation
            yield f"{part.name} ->", part.returns
        elif isinstance(part, ast.AnnAssign):
            name = ast.unparse(part.target)
            if is_public(name.removeprefix("self.")):
                yield name, part.annotation


def reached(module: str, name: str) -> Iterator[tuple[str, ast.stmt, list[str]]]:
    """All definitions that users reach from a name, with their module, and the public annotations
    of each that say Any."""
    seen, todo = set(), [resolve(module, name)]
    while todo:
        module, node = todo.pop()
        if isinstance(node, str) or (module, id(node)) in seen:
            continue
        seen.add((module, id(node)))
        found = []
        for what, annotation in annotations_of(node):
            for part in annotated(annotation):
                first, _, rest = ast.unparse(part).partition(".")
                where, meant = resolve(module, first)
                if isinstance(meant, str):
                    if (f"{meant}.{rest}" if rest else meant) in NOTHING_SAID:
                        found.append(f"{module}: {what} {ast.unparse(annotation or part)}")
                elif not where.startswith(INNER):
                    todo.append((where, meant))
        yield module, node, found


def public_names(module: str) -> list[str]:
    """``__all__``, or what the module defines itself."""
    listed = names_of(module).get("__all__")
    if isinstance(listed, ast.Assign):
        return [*ast.literal_eval(listed.value), *({"__getattr__"} & names_of(module).keys())]
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [
        name
        for name, node in names_of(module).items()
        if isinstance(node, kinds) and is_public(name)
    ]


@pytest.mark.parametrize("module", PUBLIC)
def test_no_public_annotation_says_any(module: str) -> None:
    """Every type that a public name shows, directly or through what it returns, is one."""
    every = (found for name in public_names(module) for _, _, found in reached(module, name))
    wrong = {line for found in every for line in found}
    assert not wrong, "\n".join(sorted(wrong))


def test_the_walk_reaches_what_users_hold() -> None:
    """The classes of what a reader returns are looked at, and so are inherited methods."""
    starts = [("asyncreader", "AsyncReader"), ("asyncreader.adapters.keras", "ReaderDataset")]
    seen = {getattr(node, "name", "") for start in starts for _, node, _ in reached(*start)}
    assert {"Batch", "Cursor", "ReaderParams", "ReaderStats", "Loader", "Taken"} <= seen


#: A program of a user, which is right, and whose types are known.
PROGRAM = """
import numpy as np
import numpy.typing as npt
from asyncreader import AsyncReader
from asyncreader.adapters.jax import JaxReader
from asyncreader.adapters.torch import TorchReader
from asyncreader.faces import GeneratorEnqueuer, iter_minibatches
Array = npt.NDArray[np.number]
with AsyncReader("train.h5", batch_size=32, shuffle=True) as reader:
    for batch in reader:
        print((batch.data / 255.0).mean(), batch.labels[0] + 1)
    for data, labels in reader:
        data *= 2
        reveal_type(data)
masks: AsyncReader[tuple[Array, ...], None] = AsyncReader("a.h5", data_field=("image", "mask"))
image, mask = masks.getNextBatch().data
reveal_type(mask)
reveal_type(masks.getNextBatch().labels)
reveal_type(next(GeneratorEnqueuer(iter([1, 2])).get()))
reveal_type(next(iter_minibatches([np.zeros(3)], 2, [0])))
for x, y in TorchReader("a.h5"):
    x.mean()
for x, y, valid in TorchReader("a.h5", with_mask=True):
    x[valid]
for x, y, valid, records in JaxReader("a.h5", with_mask=True, with_indices=True):
    x[records]
pairs: TorchReader[tuple[Array, Array], None] = TorchReader("a.h5")
for _, nothing in pairs:
    reveal_type(nothing)
"""


#: Right uses of sets without a reader, of batches and of convert.
RIGHT = """
import numpy as np
import numpy.typing as npt
import asyncreader
import converters
from asyncreader import AsyncReader, Batch, Dataset
Array = npt.NDArray[np.number]
with asyncreader.open("a.h5", size=(32, 32)) as ds:
    image, label = ds[3]
    images, labels = ds[2:8]
    rows = ds.__getitems__([1, 2])
    print((image / 255).mean(), label + 1, images[0], rows[0][1] + 1)
    print(ds.statistics()["data"].mean / 255, ds.splits["train"].size, ds.fields["data"].dtype)
    print(sum(ds.class_counts.values()), ds.class_to_idx["cat"] + 1, ds.sample(3).path)
    with AsyncReader(ds, batch_size=8) as reader, ds.reader(shuffle="block") as other:
        print(reader.dataset[3][0].shape, other.count + len(reader))
    if ds.labels is not None:
        print(ds.labels.max() + 1)
named: Dataset[dict[str, Array]] = asyncreader.open("a.h5", as_dict=True)
print(named[0]["data"].shape, [one["label"] for one in named])
def work(batch: Batch) -> int:
    return int(batch.indices.sum()) + len(batch)
report = converters.convert("photos", "a.h5", encoding="jpeg", size=(256, 256))
print(report.count + report.bytes, work(reader.getNextBatch()))
plain: Dataset[Array] = asyncreader.open("a.h5", labels_field=None)
print(plain[3].mean())
"""

#: Wrong uses, and what mypy says of each: the beginning of its error.
WRONG = {
    'AsyncReader("a.h5", batch_size="32")': 'Argument "batch_size" to "AsyncReader" has incompat',
    'AsyncReader("a.h5", batchsize=32)': 'Unexpected keyword argument "batchsize" for "AsyncReade',
    'AsyncReader("a.h5", shuffle="random")': 'Argument "shuffle" to "AsyncReader" has incompatib',
    'AsyncReader("a.h5", layout="CHW")': 'Argument "layout" to "AsyncReader" has incompatible ty',
    'asyncreader.open("a.h5", as_dict="yes")': 'Argument "as_dict" to "open" has incompatible ty',
    'asyncreader.open("a.h5", sise=32)': 'Unexpected keyword argument "sise" for "open"',
    'ds["cat"]': 'Invalid index type "str" for "Dataset[',
    "ds.labels + 1": 'Unsupported operand types for + ("None" and "int")',
    "ds.statistics().mean": '"dict[str, FieldStatistics]" has no attribute "mean"',
    'ds.sample("3")': 'Argument 1 to "sample" of "Dataset" has incompatible type "str"',
    'ds.class_counts["cat"] + "1"': 'Unsupported operand types for + ("int" and "str")',
    "batch.data = None": 'Property "data" defined in "Batch" is read-only',
    'reader.seek("1")': 'Argument 1 to "seek" of "AsyncReader" has incompatible type "str"',
    'converters.convert("in", "a.h5", encoding="gif")': 'Argument "encoding" to "convert" has in',
    'converters.convert("in", "a.h5", qualty=9)': 'Unexpected keyword argument "qualty" for',
    'TorchReader("a.h5", njobs=3)': 'Unexpected keyword argument "njobs" for',
    'converters.convert("in", size=256)': 'Missing positional argument "dst" in call to "convert"',
}
BEFORE = """import asyncreader, converters
from asyncreader import AsyncReader
from asyncreader.adapters.torch import TorchReader
reader = AsyncReader({"path": "a.h5", "batchSize": 3}, size=(2, 3))
ds = asyncreader.open("a.h5")
batch = reader.getNextBatch()
"""


@pytest.mark.slow
def test_a_type_checker_knows_what_a_loop_gives(tmp_path: Path) -> None:
    """mypy --strict takes a plain training loop as it is: arrays are arrays there, in arithmetic,
    too, and a reader or a set that serves something else can be annotated so. Of each wrong use it
    says what is wrong with it."""
    pytest.importorskip("mypy", reason="mypy comes with the extra dev")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(BEFORE + "\n".join(WRONG))
    files = [str(tmp_path / f"{name}.py") for name in ("program", "right", "wrong")]
    words = [sys.executable, "-m", "mypy", "--strict", *files]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert not [line for line in errors if "wrong.py" not in line], done.stdout
    for number, (line, meant) in enumerate(WRONG.items(), BEFORE.count("\n") + 1):
        assert any(f"wrong.py:{number}: error: {meant}" in one for one in errors), line
    shown = [line.split('"')[1] for line in done.stdout.splitlines() if "Revealed" in line]
    assert "number" in shown[0]
    assert "number" in shown[1]
    assert shown[2:4] == ["None", "int"]
    assert "float64" in shown[4]
    assert shown[5] == "None"
