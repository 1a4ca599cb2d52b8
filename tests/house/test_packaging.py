"""What is packaged elsewhere says what pyproject.toml says: the version, dependencies, extras."""

import json
import os
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import jinja2
import pytest
from child_processes import run
from project import ROOT

import asyncreader

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]

#: Packages that have another name in conda-forge.
CONDA = {"deflate": "libdeflate", "lmdb": "python-lmdb", "xxhash": "python-xxhash"}


def test_the_version_stands_in_one_place() -> None:
    """pyproject.toml takes the version from asyncreader/version.py; the citation and the newest
    heading of the changelog, which cannot, have the same."""
    place = PYPROJECT["tool"]["hatch"]["version"]["path"]
    text = (ROOT / place).read_text(encoding="utf-8")
    assert f'__version__ = "{asyncreader.__version__}"\n' in text
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert cited == [asyncreader.__version__]
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([\d.]+)", log, re.MULTILINE)[0] == asyncreader.__version__


def recipe() -> str:
    """The conda recipe as conda-build renders it."""

    def load_file_regex(load_file: str, regex_pattern: str, from_recipe_dir: bool) -> object:
        assert from_recipe_dir
        path = ROOT / ".ci" / "conda" / load_file
        return re.search(regex_pattern, path.read_text(encoding="utf-8"))

    text = (ROOT / ".ci" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    return jinja2.Environment().from_string(text).render(load_file_regex=load_file_regex)


def listed(text: str, section: str) -> list[str]:
    """The lines of a list of the recipe."""
    (found,) = re.findall(rf"^ +{section}:\n((?: +- .+\n)+)", text, re.MULTILINE)
    return [line.strip().removeprefix("- ") for line in found.splitlines()]


def in_conda(requirement: str) -> str:
    """A requirement of pip, as conda writes it."""
    name, at_least = requirement.split(">=")
    return f"{CONDA.get(name, name)} >={at_least}"


def test_the_conda_recipe_says_what_pyproject_says() -> None:
    """Its version, Python, dependencies, build system, command and licence are those of pip."""
    text = recipe()
    assert f"\n  version: {asyncreader.__version__}\n" in text
    python = in_conda(f"python{PROJECT['requires-python']}")
    assert listed(text, "run") == [python, *map(in_conda, PROJECT["dependencies"])]
    build = map(in_conda, PYPROJECT["build-system"]["requires"])
    assert listed(text, "host") == [python, "pip", *build]
    assert listed(text, "entry_points") == [f"{k} = {v}" for k, v in PROJECT["scripts"].items()]
    assert (
        listed(text, "imports")
        == PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    )
    assert f"\n  summary: {PROJECT['description']}\n  license: {PROJECT['license']}\n" in text


def test_the_devcontainer_installs_extras_that_exist() -> None:
    """It installs the checkout with extras of pyproject.toml."""
    file = ROOT / ".devcontainer" / "devcontainer.json"
    command = json.loads(file.read_text(encoding="utf-8"))["postCreateCommand"]
    (extras,) = re.findall(r"\.\[(.+?)\]", command)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("tag", "heading", "says"),
    [
        ("v7.8.9", "## 7.8.9 (2031-01-02)", ""),
        ("v7.8.8", "## 7.8.9 (2031-01-02)", "asyncreader/version.py says 7.8.9"),
        ("v7.8.9", "## 7.8.9 (unreleased)", "no heading"),
    ],
)
def test_a_release_has_the_version_of_its_tag(
    tag: str, heading: str, says: str, tmp_path: Path
) -> None:
    """The step of the release workflow that compares them ends it where the tag is another version,
    or the changelog does not say the day."""
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    script, _ = re.findall(r"^        run: \|\n((?: {10}.*\n)+)", workflow, re.MULTILINE)
    (tmp_path / "asyncreader").mkdir()
    (tmp_path / "asyncreader" / "version.py").write_text('"""A file."""\n\n__version__ = "7.8.9"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    env = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": tag}
    ended = run(["bash", "-e", "-c", textwrap.dedent(script)], cwd=tmp_path, env=env)
    assert (ended.returncode == 0) == (not says)
    assert says in ended.stderr


def test_a_change_is_tested_by_every_stage() -> None:
    """The workflow of pushes and pull requests runs all stages of the gate."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"^        stage: \[(.+)\]$", workflow, re.MULTILINE)
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert matrix.split(", ") == re.findall(r"^stage_(\w+)\(\) \{$", gate, re.MULTILINE)


def test_every_stage_says_what_it_requires() -> None:
    """Each stage sets REQUIRE for the tests that it runs, and these exist."""
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    stages = re.findall(r"^stage_\w+\(\) \{\n.*?^\}$", gate, re.MULTILINE | re.DOTALL)
    assert len(stages) == 10
    assert [stage for stage in stages if "REQUIRE=" not in stage] == []
    paths = re.findall(r"tests/[\w./*]+", gate)
    assert len(paths) > 20
    assert [path for path in paths if not list(ROOT.glob(path))] == []


@pytest.mark.slow
@pytest.mark.parametrize("skipped", ["test_cuda_gpu.py", "faults/test_cases.py"])
def test_a_skip_for_what_is_required_is_a_failure(skipped: str) -> None:
    """A file and tests that are skipped for a reason in which REQUIRE is found are errors; reasons
    are listed either way."""
    line = [sys.executable, "-m", "pytest", "-n", "0", "-m", "long", f"tests/{skipped}"]
    reason = "torch (is not|sees no)" if "cuda" in skipped else "the long form"
    for required, codes in (("", (0, 5)), ("another reason", (0, 5)), (reason, (1, 2))):
        env = {**os.environ, "REQUIRE": required, "CUDA_VISIBLE_DEVICES": ""}
        done = run(line, cwd=ROOT, env=env)
        assert done.returncode in codes, done.stdout
        assert re.search(reason, done.stdout)


def test_agents_find_what_their_page_names() -> None:
    """AGENTS.md has at most 40 lines, and the files that it names exist."""
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    named = re.findall(r"\b(?:asyncreader|converters|docs|tests|\.ci)/[\w./]*\w", text)
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists(), name
