"""The house rules that a machine can check: public names, words, and what is never used."""

import ast
import importlib
import inspect
import itertools
import re
import subprocess
from pathlib import Path

import pytest
from project import FILES, PACKAGES, ROOT

import asyncreader
import converters

PUBLIC = [
    *("AsyncReader", "AsyncReaderError", "Batch", "Block", "ChecksumError", "Crop", "Dataset"),
    *("DecodeError", "FinishedError", "FormatError", "Lengths", "Mix", "NothingQueuedError"),
    *("ParamsError", "Patch", "QueueFullError", "ReaderClosedError", "ReaderStats"),
    *("ReaderTimeoutError", "SampleError", "SourceError", "SourceNotFoundError", "Window"),
    *("WorkerError", "Writer", "__version__", "convert"),
]


# -- public names --------------------------------------------------------------------------------


def test_public_names() -> None:
    """The package has exactly these public names, in order."""
    assert sorted(asyncreader.__all__) == asyncreader.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(asyncreader, name) is not None
        assert name in dir(asyncreader)
    assert sorted(converters.__all__) == ["ConvertReport", "Writer", "convert"]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = asyncreader.nonsense


def test_all_errors_are_public() -> None:
    """Every error type is exported."""
    errors = importlib.import_module("asyncreader.errors")
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    found = {kind.__name__ for kind in kinds if issubclass(kind, Exception)}
    assert found == {name for name in PUBLIC if name.endswith("Error")}
    for name in found:
        assert getattr(asyncreader, name) is getattr(errors, name)


def test_reader_methods() -> None:
    """What users call on a reader and a batch: nothing gets lost, nothing slips in."""

    def public(kind: type) -> list[str]:
        return sorted(name for name in dir(kind) if not name.startswith("_"))

    assert public(asyncreader.AsyncReader) == [
        *("class_counts", "class_to_idx", "classes", "close", "count", "cursor", "data_shape"),
        *("dataset", "dtype", "fetchData", "getNextBatch", "go_to", "labels", "labels_shape"),
        *("load_state_dict", "params", "paths", "sample", "seek", "state_dict", "stats"),
    ]
    assert public(asyncreader.Batch) == [
        *("data", "episode", "epoch", "indices", "keep", "labels", "last", "lengths", "mask"),
        *("place", "present", "release", "show", "source", "step"),
    ]


# -- what is never used --------------------------------------------------------------------------


def test_never_used() -> None:
    """No pickle in an array file and no import by a computed name; what else is never used, such as
    pickle, eval, sleep and a shell, ruff knows (pyproject.toml)."""
    for path in FILES:
        assert not re.search(r"allow_pickle|__import__\(", path.read_text(encoding="utf-8")), path


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


def test_no_conflict_is_left() -> None:
    """No file has the marks of a merge, not even in a docstring, where Python takes them."""
    mark = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    for path in [*texts(), *(ROOT / "docs").glob("*.md")]:
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not mark.search(text), path.relative_to(ROOT)


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


#: Features of the libraries whose APIs are replaced, by letter: paraload, ml-pyxis, climin and the
#: enqueuers of Keras. Those of Torch's reader are the reader's own.
FEATURES = {"P": 11, "X": 19, "C": 10, "K": 14}


def test_every_feature_of_the_ancestors_has_a_test() -> None:
    """Each numbered feature has a test that is called after it, such as test_P8_..."""
    named = {
        found
        for path in (ROOT / "tests" / "faces").glob("test_*.py")
        for names in re.findall(r"def test_((?:[PXCK]\d+_)+)", path.read_text(encoding="utf-8"))
        for found in names.split("_")[:-1]
    }
    assert named == {
        f"{letter}{n}" for letter, last in FEATURES.items() for n in range(1, last + 1)
    }


# -- words ---------------------------------------------------------------------------------------


def test_public_methods_are_documented() -> None:
    """Every public method of what users hold has a docstring."""
    for kind in (asyncreader.AsyncReader, asyncreader.Batch, asyncreader.ReaderStats):
        assert inspect.getdoc(kind)
        for name, member in vars(kind).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_every_test_states_a_fact() -> None:
    """The docstring of each test says what it proves."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
        for node in itertools.chain(tree.body, *inside):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_top_level() -> None:
    """The top level holds what it is meant to hold."""
    allowed = {"asyncreader", "converters", "docs", "tests", "sample_data", "pyproject.toml"}
    allowed |= {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "mkdocs.yml"}
    allowed |= {"AGENTS.md", "CITATION.cff", "CONTRIBUTING.md"}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode == 0 and tracked.stdout:
        found = {name.split("/")[0] for name in tracked.stdout.splitlines()}
        assert {name for name in found if not name.startswith(".")} <= allowed
    assert (ROOT / "asyncreader" / "py.typed").exists()
    assert (ROOT / "converters" / "py.typed").exists()
