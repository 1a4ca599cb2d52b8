"""The recipes in ``tests/examples/recipes`` in a short form: each ends in the figure it is for."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from child_processes import ALONE, child, ended, for_torchrun
from frameworks import needs
from project import ROOT

from asyncreader import Writer

RECIPES = ROOT / "tests" / "examples" / "recipes"
#: Runs the script that follows; torchvision may have been built for another torch than this one.
BESIDE_TORCHVISION = (
    "-c",
    "import runpy, sys, torchvision_pixels; torchvision_pixels.load_torchvision();"
    "del sys.argv[0]; sys.path[0] = sys.argv[0].rpartition('/')[0];"
    "runpy.run_path(sys.argv[0], run_name='__main__')",
)


def figures(folder: Path, script: Path, *words: str, launcher: tuple[str, ...] = ()) -> list[float]:
    """The numbers of the last line that a script prints."""
    line = [sys.executable, *launcher, script, *words]
    pipe = subprocess.PIPE
    env = {**for_torchrun(ROOT, ROOT / "tests" / "support"), **ALONE}
    with child(line, cwd=folder, env=env, stdout=pipe, text=True) as process:
        out = ended(process)[0]
    assert process.returncode == 0, out
    return [float(number) for number in re.findall(r"\d+\.\d+", out.splitlines()[-1])]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.h5 and test.h5: scikit-learn's digits as images of 32 x 32."""
    needs("torch", "sklearn")
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("recipes")
    found = load_digits()
    images = np.kron(found.images, np.ones((4, 4))).astype(np.uint8)[..., None].repeat(3, axis=3)
    for name, part in (("train.h5", slice(0, 1400)), ("test.h5", slice(1400, None))):
        with Writer(folder / name) as writer:
            for image, digit in zip(images[part] * 15, found.target[part], strict=True):
                writer.add(image, str(digit))
    return folder


def test_each_says_how_it_is_run_and_stands_on_the_page() -> None:
    """A recipe begins with the command that runs it, and docs/recipes.md has that command."""
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for path in RECIPES.glob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        (line,) = re.findall(rf"^(?:python|torchrun .*) \S*/{path.name} .*$", text, re.MULTILINE)
        assert f"\n{line}\n" in page
        assert all(line in page for line in re.findall("^asyncreader .*$", text, re.MULTILINE))


#: Of each recipe its words, and what the figures of its last line are above.
SHORT: dict[str, tuple[str, list[float]]] = {
    "cifar10": ("train.h5 test.h5 --epochs 12", [0.8]),
    "simclr": ("train.h5 test.h5 --every 2 --epochs 1", [0.5, 0.8]),
    "mixed": ("train.h5 test.h5 --every 70 --samples 1280 --epochs 12", [0.6, 0.2]),
    "segmentation": ("textures --count 200 --epochs 3", [0.3, 0, 0, 0]),
    "csv_labels": ("digits --count 1500 --epochs 4", [0.5, 0.3]),
    "distributed": ("train.h5 test.h5 --epochs 2", [0.5, 0.5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SHORT)
def test_a_recipe(digits: Path, recipe: str) -> None:
    """Each recipe ends in the figure that it is for. From few images and many grey ones more is
    learned than from the few alone; two processes that share the evaluation count what one does."""
    needs("skimage")
    words, lowest = SHORT[recipe]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    launcher = torchrun if recipe == "distributed" else ()
    found = figures(digits, RECIPES / f"{recipe}.py", *words.split(), launcher=launcher)
    assert all(one > least for one, least in zip(found, lowest, strict=True)), found
    assert recipe != "mixed" or found[0] > found[1]
    assert recipe != "distributed" or found[0] == found[1]


@pytest.mark.slow
def test_finetune(tmp_path: Path) -> None:
    """A network of torchvision is trained on photographs, and judged by their centres."""
    needs("torch", "torchvision", "skimage", "sklearn")
    figures(tmp_path, RECIPES / "photographs.py", "a.h5", "b.h5")
    words = ("a.h5", "b.h5", "--epochs", "1", "--size", "32")
    (found,) = figures(tmp_path, RECIPES / "finetune.py", *words, launcher=BESIDE_TORCHVISION)
    assert found > 2 / 16


@pytest.mark.slow
def test_cifar10_beside_torchvision(tmp_path: Path) -> None:
    """The comparison trains from both loaders by turns, and keeps every run."""
    needs("torch", "torchvision")
    from PIL import Image

    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(10):
            folder = tmp_path / "images" / split / f"{number}"
            folder.mkdir(parents=True)
            for image in range(20):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{image}.png")
    script = ROOT / "tests" / "benchmarks" / "training.py"
    given = ("--give", "cifar=images", "--give", "epochs=1", "--rounds", "2")
    figures(tmp_path, script, "--cifar10", *given, "--json", "runs.json")
    (case,) = json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))["cases"]
    runs = {row["name"]: row["modes"]["fastest"]["results"] for row in case["contenders"]}
    turns = {name: [run["turn"] for run in results] for name, results in runs.items()}
    assert turns == {"asyncreader": [1, 4], "torchvision": [2, 3]}
    assert all(
        run["seconds"] > run["waited s"] >= 0 for results in runs.values() for run in results
    )
