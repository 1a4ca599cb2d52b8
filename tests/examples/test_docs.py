"""README and the pages of docs/: their blocks run in order, as a reader would run them, and their
tables are those of the declarations.

A block of commands is run line by line. The Python blocks of a page share one namespace. A Python
block whose first line is the name of a file (``# train.py``) is written there for a command to run.
Text that is no input is marked ``text``. ``<!-- not run: REASON -->`` above a block excuses it, and
``<!-- setup: NAME -->`` makes the files that it reads (tests/support/page_files.py).
"""

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import page_tables
import pytest
from child_processes import for_torchrun
from fakes import pictures
from foreign_sets import caffe, pyxis_sample, write_lmdb, write_pyxis
from page_files import SETUPS
from PIL import Image, ImageOps
from project import ROOT
from torchvision_pixels import load_torchvision

import converters
from asyncreader.cli.main import main
from asyncreader.params.reader import PARAMETERS, SHOWN
from asyncreader.sources.layouts.known import HDF5_LAYOUTS, LMDB_LAYOUTS
from asyncreader.sources.layouts.npy import NAME as NPY

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    "README.md",
    "AGENTS.md",
    "tests/benchmarks/RESULTS.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]

#: Modules that a block may need and that need not be installed.
OPTIONAL = {"torch", "jax", "keras", "ray", "lightning", "accelerate", "matplotlib", "msgpack"}
OPTIONAL |= {"zarr", "obstore", "torchvision", "albumentations", "webdataset", "tensorflow"}
OPTIONAL |= {"robomimic", "anndata"}
#: Libraries that write the files of a field.
FIELDS = {"loompy", "pandas", "pynwb", "nexusformat", "cooler", "xarray", "h5netcdf"}
OPTIONAL |= FIELDS
VISION = {"torchvision", "albumentations"}
FRAMEWORKS = {"torch", "jax", "keras", "lightning", "accelerate", *FIELDS}

_BLOCK = re.compile(
    r"(?:^<!-- (not run|setup): ([^\n]+) -->\n)?^( *)```(\w*)\n(.*?)^\3```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """What stands between two fences of a page, why it is not run, and what makes its files."""

    excuse: str
    setup: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(
            said if mark == "not run" else "",
            said if mark == "setup" else "",
            language,
            textwrap.dedent(body),
        )
        for mark, said, _, language, body in _BLOCK.findall(text)
    ]
    assert text.count("<!-- setup: ") == sum(bool(block.setup) for block in found), page
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(found), page
    return found


def optional(code: ast.AST) -> set[str]:
    """The optional modules that code imports, adapters included."""
    named = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            named |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module.split(".")[0], node.module.split(".")[-1]}
            named |= {"msgpack"} & {"msgpack" for name in node.names if name.name == "pyxis"}
    return named & OPTIONAL


def missing(code: ast.AST) -> set[str]:
    """The optional modules that code imports and that are not installed."""
    return {name for name in optional(code) if importlib.util.find_spec(name) is None}


def with_tier(page: str) -> Any:
    """A page as a parameter, with the marker of the stage that has what its blocks import."""
    code = [block.text for block in blocks(page) if block.language == "python"]
    modules = set().union(*(optional(ast.parse(text)) for text in code))
    marks = [pytest.mark.frameworks] * (page == "README.md" or bool(modules & FRAMEWORKS))
    marks += [pytest.mark.vision] * any(name in text for text in code for name in VISION)
    return pytest.param(page, marks=marks)


def names(code: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names that code reads (ast.Load) or gives a value (ast.Store)."""
    return {
        node.id
        for node in ast.walk(code)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


@pytest.fixture(scope="session")
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures ``photos``, ``masks`` of the pictures, both packed, and sets that others
    packed: ``samples`` by ml-pyxis, ``train_lmdb`` by Caffe.
    """
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "sample_data" / "train", folder / "photos")
    for path in filter(Path.is_file, (folder / "photos").rglob("*")):
        mask = (folder / "masks" / path.relative_to(folder / "photos")).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as picture:
            Image.new("L", ImageOps.exif_transpose(picture).size, 1).save(mask)
    photos = str(folder / "photos")
    converters.convert(photos, str(folder / "train.h5"), size=(224, 224))
    fields = {"mask": str(folder / "masks")}
    converters.convert(photos, str(folder / "masked.h5"), size=(224, 224), fields=fields)
    images = list(pictures(64, (256, 256, 3)))
    write_lmdb(folder / "train_lmdb", caffe(images, range(64)))
    write_pyxis(folder / "samples", [pyxis_sample({"x": x, "y": np.int64(3)}) for x in images])
    return folder


@pytest.fixture
def beside_photos(packed_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with what packed_once made in it; its files are links: no page may change
    one in its place."""
    shutil.copytree(packed_once, tmp_path, copy_function=os.link, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "")  # a block sets it: put back at the end
    return tmp_path


def run(words: list[str]) -> int:
    """The exit code of a command of ours."""
    assert words[0] == "asyncreader"
    with pytest.raises(SystemExit) as ended:
        main(words[1:])
    code = ended.value.code
    return int(code or 0)


def run_line(line: str, files: dict[str, ast.AST]) -> set[str]:
    """Run a line of a block of commands as a person would, but in a short time. Returns the modules
    for want of which it was left out."""
    words = shlex.split(line, comments=True)
    others = {"pip", "pytest", "ruff", "mypy", "mkdocs", "export"}  # no command of ours
    if not words or words[0] in others or words[1:3] == ["-m", "venv"]:
        return set()
    if words[0] == "asyncreader":
        if words[1] == "convert" and "--append" not in words and Path(words[3]).exists():
            words.append("--overwrite")
        short = {"bench": ["--seconds", "0.05", "--nthread", "1,2", "--batch-size", "32"]}
        short["doctor"] = ["--seconds", "1", "--batch-size", "32"]
        short["convert"] = ["--seconds", "0.5"] if "--dry-run" in words else []
        assert run(words + short.get(words[1], [])) == 0, line
        return set()
    (script,) = [word for word in words if word.endswith(".py")]
    if script.startswith("tests/"):
        assert (ROOT / script).is_file(), line
        return set()
    absent = missing(files[script])
    if not absent:
        assert words[0] in ("python", "torchrun"), line
        words[:1] = [sys.executable, *(["-m", "torch.distributed.run"] * (words[0] == "torchrun"))]
        subprocess.run(words, check=True, timeout=900, env=for_torchrun())
    return absent


# -- the blocks ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.pages
@pytest.mark.filterwarnings("ignore:The function AnnLoader is deprecated:FutureWarning")
@pytest.mark.parametrize("page", [with_tier(page) for page in PAGES])
def test_blocks_run(page: str, beside_photos: Path, subtests: pytest.Subtests) -> None:
    """Every block of commands and of Python on a page runs, one after the other; one that needs a
    module that is not installed, or what such a block makes, is a skip that names the module."""

    def train(data: Any, target: Any) -> None:
        assert len(target) == len(data) > 0

    namespace: dict[str, Any] = {"train": train, "__name__": "page"}
    files: dict[str, ast.AST] = {}
    lost: dict[str, set[str]] = {}

    def leave_out(text: str, absent: set[str]) -> None:
        with subtests.test(text.splitlines()[0]):
            pytest.skip(f"not installed: {', '.join(sorted(absent))}")

    for block in blocks(page):
        if block.setup:
            namespace |= SETUPS[block.setup]() or {}
        if block.excuse or block.language == "text":
            continue
        if block.language in ("", "bash", "sh"):
            for line in block.text.replace("\\\n", " ").splitlines():
                if absent := run_line(line, files):
                    leave_out(line, absent)
            continue
        assert block.language == "python", f"{page}: {block.language}"
        code = ast.parse(block.text)
        if script := re.match(r"# (\w+\.py)$", block.text.splitlines()[0]):
            Path(script[1]).write_text(block.text, encoding="utf-8")
            files[script[1]] = code
            continue
        used = names(code, ast.Load) & lost.keys() - namespace.keys()
        absent = missing(code).union(*map(lost.__getitem__, used))
        if absent:
            lost |= dict.fromkeys(names(code, ast.Store), absent)
            leave_out(block.text, absent)
        else:
            if "torchvision" in block.text:
                load_torchvision()
            exec(compile(block.text, page, "exec"), namespace)


@pytest.mark.slow
def test_the_contact_sheet_is_what_its_command_draws(beside_photos: Path) -> None:
    """The command of the contact sheet on the page of commands draws it again."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^asyncreader preview .* --output batch\.png$", page, re.MULTILINE)
    committed = ROOT / "docs" / "images" / "batch.png"
    assert "](images/batch.png)" in page
    assert run(shlex.split(line)) == 0
    with Image.open("batch.png") as drawn, Image.open(committed) as shown:
        assert drawn.size == shown.size
        # decoders and fonts may differ a little between versions
        apart = np.asarray(drawn, int) - np.asarray(shown, int)
        assert abs(apart).mean() < 2


def test_the_figures_of_speed_have_the_published_numbers() -> None:
    """The figures are what their command draws; README's numbers, and those that a reader of the
    text alone is given, are those of the table in tests/benchmarks/RESULTS.md."""
    folder = ROOT / "tests" / "benchmarks"
    found = importlib.util.spec_from_file_location("speed_figure", folder / "speed_figure.py")
    assert found is not None
    assert found.loader is not None
    figure = importlib.util.module_from_spec(found)
    found.loader.exec_module(figure)
    results = json.loads((folder / "speed.json").read_text(encoding="utf-8"))
    for name, drawn in figure.figures(results).items():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == drawn
    assert figure.taken(results) == results
    rates = figure.rates_of(results, "raw224", figure.RAW)
    assert max(rates, key=rates.__getitem__) == "asyncreader, the same HDF5 file"
    published = (ROOT / "tests" / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    row = re.findall(r"^\| 128, 2 \|.*\|$", published, re.MULTILINE)[0]  # of 224 x 224
    h5py = re.findall(r"DataLoader with h5py \(batch 128, 2 workers\) reaches ([\d,]+)", published)
    cells = [cell.strip() for cell in row.split("|")]
    assert [f"{rate:,.0f}" for rate in rates.values()] == [h5py[0], cells[6], cells[4], cells[2]]
    (said,) = re.findall(r"!\[(.*)\]\(docs/images/speed\.svg\)", README)
    assert [f"{rate:,.0f}" for rate in rates.values()] == re.findall(r"\d+,\d+", said)


def test_speeds_are_those_of_the_page_of_results() -> None:
    """The guide that helps to choose a format gives no speed that RESULTS.md does not."""
    guide = (ROOT / "docs" / "formats-and-encodings.md").read_text(encoding="utf-8")
    published = (ROOT / "tests" / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    tables_of_speed = re.findall(r"samples/s \|\n\|[-:|]+\|\n((?:\|.*\|\n)+)", guide)
    assert len(tables_of_speed) == 2
    for row in "".join(tables_of_speed).splitlines():
        for speed in re.findall(r"\d+(?:,\d{3})+", row.split("|")[-2]):
            assert re.search(rf"(?<![\d,]){speed}(?![\d,])", published), speed


def test_pictures_are_small_and_shown() -> None:
    """Each picture of docs/images is below 150 kB and stands on a page."""
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    for path in (ROOT / "docs" / "images").iterdir():
        assert path.stat().st_size < 150_000, path.name
        assert f"images/{path.name})" in pages
    assert "python tests/support/figures.py" in pages


def test_extras_are_installed_from_the_checkout() -> None:
    """Pages, errors and skipped tests name extras of this checkout that exist: no package of this
    name is on an index.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    folders = [ROOT / name for name in ("asyncreader", "converters", "tests")]
    files = [ROOT / page for page in PAGES]
    files += [path for folder in folders for path in folder.rglob("*.py")]
    said = [
        (path.name, target, extra)
        for path in files
        for target, names in re.findall(
            r"pip install (?:-e )?'([^'\[]*)\[([^']*)\]'", path.read_text("utf-8").replace("\\", "")
        )
        for extra in names.split(",")
    ]
    wrong = [one for one in said if one[1] != "." or (one[2] not in extras and "{" not in one[2])]
    assert wrong == []
    assert len(said) > 10


def test_links_lead_somewhere() -> None:
    """Every relative link of README and of docs/ names a file of the checkout, and its anchor a
    heading of that file.
    """
    wrong = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", text):
            path = ((ROOT / page).parent / target).resolve() if target else ROOT / page
            heads = set()
            if path.suffix == ".md" and path.is_file():
                found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
                heads = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in found}
                heads |= set(re.findall(r'<a id="(\w+)">', path.read_text(encoding="utf-8")))
            if not path.exists() or (anchor and anchor not in heads):
                wrong.append((page, target, anchor))
    assert wrong == []


def test_the_front_page_is_short() -> None:
    """README has at most 150 lines."""
    assert len(README.splitlines()) <= 150


def test_a_virtual_environment_is_made_before_the_first_command() -> None:
    """A system Python that refuses pip gets the one line that helps, before pip is called."""
    assert README.index("python3 -m venv") < README.index("pip install -e . && asyncreader demo")


def test_ci_runs_the_test_command_of_readme() -> None:
    """.ci/run calls the very test command that README gives."""
    command = "pip install -e '.[test]' && pytest"
    assert f"\n{command}\n" in README
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_each_parameter_is_in_one_section() -> None:
    """docs/parameters.md has each parameter once, with the anchor that errors name."""
    assert sorted(" ".join(page_tables.SECTIONS.values()).split()) == sorted(SHOWN)
    page = (ROOT / "docs" / "parameters.md").read_text(encoding="utf-8")
    names = {*SHOWN, *PARAMETERS}
    assert sorted(re.findall(r'<a id="(\w+)"></a>', page)) == sorted(names)


@pytest.mark.parametrize(("page", "mark"), page_tables.TEXTS)
def test_pages_follow_from_the_code(page: str, mark: str) -> None:
    """Shapes, operations and commands are on their pages as the code says; ``python
    tests/support/page_tables.py`` writes them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == page_tables.placed(page, mark, page_tables.TEXTS[page, mark]())


def test_the_table_of_layouts_names_all_of_them() -> None:
    """It has a row for each layout, in the order in which they are tried."""
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| as `info` calls it \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    names = [one.name for one in (*LMDB_LAYOUTS, *HDF5_LAYOUTS) if one.name]
    assert re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE) == [*names, NPY]
