"""The house rules that a machine can check: public names, floors, and what is never used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncreader
import converters

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("asyncreader", "converters")
FILES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))

PUBLIC = [
    "AsyncReader",
    "AsyncReaderError",
    "Batch",
    "ChecksumError",
    "DecodeError",
    "FinishedError",
    "FormatError",
    "NothingQueuedError",
    "ParamsError",
    "QueueFullError",
    "ReaderClosedError",
    "ReaderStats",
    "ReaderTimeoutError",
    "SampleError",
    "SourceError",
    "SourceNotFoundError",
    "WorkerError",
    "__version__",
]

#: Floor of each module; imports go down, or across where that makes no ring.
FLOORS = {
    0: "asyncreader.errors",
    1: "asyncreader.order asyncreader.codec asyncreader.kernels asyncreader._compiled "
    "asyncreader.stats asyncreader.params asyncreader.format asyncreader.fill asyncreader.memory "
    "asyncreader.interrupts asyncreader.manifest asyncreader.labels asyncreader.values "
    "asyncreader.geometry asyncreader.machine asyncreader.launch asyncreader.copy_queue",
    2: "asyncreader.slots asyncreader.sources asyncreader.device asyncreader.thumbs",
    3: "asyncreader.workers asyncreader.filling asyncreader.processes asyncreader.verify "
    "asyncreader.trace asyncreader.batch asyncreader.assembly asyncreader.arena",
    4: "asyncreader.reader asyncreader.faces asyncreader.adapters",
    5: "asyncreader.cli asyncreader.commands asyncreader.bench asyncreader.demo "
    "asyncreader.terminal asyncreader.__main__ asyncreader.ceilings asyncreader.doctor "
    "asyncreader.figure asyncreader.preview asyncreader.sheet asyncreader.report "
    "asyncreader.completion",
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names.split()}

#: The highest floor of asyncreader that a module of converters may use: 1, 2 (the sources) where
#: one container is converted to the other, 3 where what was packed is verified.
CONVERTERS_USE = {
    "converters.options": 2,
    "converters.origins": 2,
    "converters.scan": 2,
    "converters.stores": 2,
    "converters.ray_engine": 2,
    "converters.packing": 3,
    "converters.samples": 2,
    "converters.folder_samples": 2,
    "converters.packed_samples": 2,
    "converters.shards": 2,
    "converters.pickled": 2,
    "converters.__main__": 5,
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(module: str) -> int | None:
    """Floor of a module of asyncreader; None for the package itself, which has none."""
    while module != "asyncreader":
        if module in FLOOR_OF:
            return FLOOR_OF[module]
        module = module.rpartition(".")[0]
    return None


def imports(path: Path, top_only: bool = False) -> Iterator[str]:
    """Modules of ours that a file imports at run time; with ``top_only`` when it is loaded."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path.parent / "x")
    package = package.removesuffix(".x")
    modules = {module_name(file) for file in FILES}
    stack: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in PACKAGES)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            if base.split(".")[0] in PACKAGES:
                for name in node.names:
                    inner = f"{base}.{name.name}"
                    yield inner if inner in modules else base
        stack.extend(ast.iter_child_nodes(node))


# -- public names --------------------------------------------------------------------------------


def test_public_names() -> None:
    """The package has exactly these public names, in order."""
    assert sorted(asyncreader.__all__) == asyncreader.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(asyncreader, name) is not None
        assert name in dir(asyncreader)
    assert sorted(converters.__all__) == ["ConvertReport", "convert"]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = asyncreader.nonsense


def test_all_errors_are_public() -> None:
    """Every error type is exported."""
    errors = importlib.import_module("asyncreader.errors")
    assert set(errors.__all__) == {name for name in PUBLIC if name.endswith("Error")}
    for name in errors.__all__:
        assert getattr(asyncreader, name) is getattr(errors, name)


def test_version() -> None:
    """The version is that of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert asyncreader.__version__ == project["version"]


def test_reader_methods() -> None:
    """What users call on a reader and a batch: nothing gets lost, nothing slips in."""

    def public(kind: type) -> list[str]:
        return sorted(name for name in vars(kind) if not name.startswith("_"))

    assert public(asyncreader.AsyncReader) == [
        *("classes", "close", "count", "cursor", "data_shape", "dtype", "fetchData"),
        *("getNextBatch", "go_to", "labels_shape", "load_state_dict", "params", "seek"),
        *("state_dict", "stats"),
    ]
    assert public(asyncreader.Batch) == [
        *("data", "epoch", "indices", "keep", "labels", "last", "mask", "release", "step"),
    ]


# -- floors --------------------------------------------------------------------------------------


def test_every_module_has_a_floor() -> None:
    """A new module of asyncreader is put on a floor here before it is used."""
    for path in FILES:
        name = module_name(path)
        if name.startswith("asyncreader."):
            assert floor(name) is not None, name


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_go_down(path: Path) -> None:
    """No module imports from a floor above its own."""
    name = module_name(path)
    if name == "asyncreader":
        assert set(imports(path, top_only=True)) == {"asyncreader.errors"}
        return
    for target in imports(path):
        above = floor(target) if target.startswith("asyncreader") else None
        if name.startswith("asyncreader."):
            own = floor(name)
            assert own is not None
            assert above is None or above <= own, f"{name} (floor {own}) uses {target}"
            assert own == 5 or not target.startswith("converters"), f"{name} uses {target}"
        elif above is not None:
            assert above <= CONVERTERS_USE.get(name, 1), f"{name} uses {target}"


def test_no_rings() -> None:
    """Loading a module never needs the module itself: what it imports at once has no rings."""
    graph = {
        module_name(path): {t for t in imports(path, top_only=True) if t != module_name(path)}
        for path in FILES
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            # a package's own __init__ gathers what is in it
            inner = {t for t in graph.get(name, ()) if not trail or not name.startswith(f"{t}.")}
            for target in inner:
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_adapters_do_not_load_frameworks() -> None:
    """Nothing of the package imports a training framework when it is loaded."""
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            names = []
            if isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] not in {"torch", "tensorflow", "jax", "keras", "ray"}, (
                    path
                )


# -- what is never used --------------------------------------------------------------------------

#: Where a forbidden name is right all the same, and why.
ALLOWED = {
    # the pipes of multiprocessing to processes that we have spawned ourselves
    ("asyncreader.processes", "pickle"),
    # convert --allow-pickle, for owners who trust whoever wrote the set
    ("converters.pickled", "pickle"),
    ("converters.pack", "allow_pickle"),
    # a store that failed is asked again a little later, on the thread that waits for answers
    ("asyncreader.sources.remote.objects", "sleep"),
    # bench plays a consumer that takes its time
    ("asyncreader.bench", "sleep"),
}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_never_used(path: Path) -> None:
    """No pickle of data, no eval, no sleep, no shell: in any module."""
    name = module_name(path)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {part.name for part in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(part.name for part in node.names)}
        elif isinstance(node, ast.Call):
            called = node.func
            found.add(called.attr if isinstance(called, ast.Attribute) else ast.unparse(called))
            found |= {keyword.arg or "" for keyword in node.keywords}
    forbidden = {"pickle", "cPickle", "dill", "marshal", "shelve", "eval", "exec", "sleep"}
    forbidden |= {"allow_pickle", "os.system", "system", "popen", "shell", "__import__"}
    assert {word for word in found & forbidden if (name, word) not in ALLOWED} == set()


def texts() -> list[Path]:
    """Every text file of the project that is shipped or documents it."""
    places = [*PACKAGES, "tests", "sample_data", ".ci"]
    files = [path for place in places for path in (ROOT / place).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml")]
    return [
        path
        for path in files
        if path.suffix in (".py", ".md", ".toml", ".txt", ".csv", ".sh", "")
        and not {"__pycache__", "venv"} & set(path.parts)
    ]


def test_no_machine_paths() -> None:
    """No file names a place on somebody's machine."""
    pattern = re.compile(r"(?<![\w.<])/(?:home|root|Users|work|mnt|scratch)/\w|[A-Z]:\\\\")
    for path in texts():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        assert not pattern.search(text), f"{path.relative_to(ROOT)}: {pattern.search(text)}"


#: Features of the systems whose faces we wear, by letter: Torch's reader, paraload, ml-pyxis,
#: climin and Keras' enqueuers.
FEATURES = {"T": 13, "P": 11, "X": 19, "C": 10, "K": 14}


def test_every_feature_of_the_ancestors_has_a_test() -> None:
    """Each numbered feature has a test that is called after it, such as test_P8_..."""
    named = {
        found
        for path in (ROOT / "tests").glob("test_*.py")
        for found in re.findall(r"def test_([TPXCK]\d+)_", path.read_text(encoding="utf-8"))
    }
    assert named == {
        f"{letter}{n}" for letter, last in FEATURES.items() for n in range(1, last + 1)
    }


# -- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_docstrings(path: Path) -> None:
    """Every module, public class and public function says what it is; so do public methods of
    classes that are not overrides."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "the module"
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if path.name == "_compiled.py":
            continue  # the twins in kernels.py say what each does
        if isinstance(node, kinds) and not node.name.startswith("_") and node.name != "main":
            assert ast.get_docstring(node), node.name


def test_public_methods_are_documented() -> None:
    """Every public method of what users hold has a docstring."""
    for kind in (asyncreader.AsyncReader, asyncreader.Batch, asyncreader.ReaderStats):
        assert inspect.getdoc(kind)
        for name, member in vars(kind).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_only_two_names_are_camel_case() -> None:
    """fetchData and getNextBatch are the only camelCase functions of ours."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and re.search(r"[a-z][A-Z]", node.name):
                found.add(node.name)
    assert found == {"fetchData", "getNextBatch"}


def test_every_test_states_a_fact() -> None:
    """The docstring of each test says what it proves."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_top_level() -> None:
    """The top level holds what it is meant to hold."""
    allowed = {"asyncreader", "converters", "tests", "sample_data", "pyproject.toml"}
    allowed |= {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode == 0 and tracked.stdout:
        found = {name.split("/")[0] for name in tracked.stdout.splitlines()}
        assert {name for name in found if not name.startswith(".")} <= allowed
    assert (ROOT / "asyncreader" / "py.typed").exists()
    assert (ROOT / "converters" / "py.typed").exists()
