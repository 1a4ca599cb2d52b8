"""The commands on a set in a store: they work, or end with one clear line."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from command_sets import run
from fakes import class_folders
from range_server import serving

from asyncreader import SourceError, SourceNotFoundError
from asyncreader.sources import Inspector, open_source
from asyncreader.tools.verify import verify_file
from converters import convert

pytest.importorskip("obstore", reason="obstore is not installed")

COUNT = 60


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of HDF5 and of LMDB, and one file."""
    root = tmp_path_factory.mktemp("commands")
    class_folders(root / "photos", COUNT)
    (root / "sets").mkdir()
    convert(root / "photos", root / "sets" / "hdf5", shards=4, encoding="original")
    convert(root / "photos", root / "sets" / "lmdb", shards=4, size=16, format="lmdb")
    convert(root / "photos", root / "sets" / "one.h5", size=(16, 16))
    return root / "sets"


@pytest.fixture
def copied(sets: Path, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A copy of all that, to be damaged, and its URL."""
    for file in sets.rglob("*.*"):
        target = tmp_path / "sets" / file.relative_to(sets)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    with serving(tmp_path / "sets") as url:
        yield tmp_path / "sets", url


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder for what is written."""
    monkeypatch.setenv("ASYNCREADER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


KINDS = ["hdf5", "lmdb", "one.h5"]


@pytest.mark.parametrize("kind", KINDS)
def test_verify_finds_nothing(copied: tuple[Path, str], here: Path, kind: str) -> None:
    """A whole set is found so, of every kind, and what was fetched for it is gone again."""
    _, url = copied
    told = run("verify", f"{url}/{kind}", "--decode", "--json", "-q")
    report = json.loads(told.output)
    assert (told.exit_code, report["ok"], report["checked"]) == (0, True, COUNT)
    assert report["decoded"] == (COUNT if kind == "hdf5" else 0)  # of pixels none
    assert not list((here / "cache").rglob("*"))


def flip(file: Path, at: int) -> None:
    """Change a byte of a file."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


#: What is done to a shard, or to the manifest beside it.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "a byte": lambda shard: flip(shard, -1),
    "cut": lambda shard: os.truncate(shard, 1000),
    "missing": lambda shard: shard.unlink(),
    "manifest": lambda shard: shard.with_name("asyncreader.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_finds_damage(copied: tuple[Path, str], damage: str) -> None:
    """Any damage is reported with the name of the shard; the other shards are checked, too. What
    the cache of this machine holds does not count."""
    folder, url = copied
    assert run("bench", f"{url}/hdf5", "--seconds", "0.01", "--nthread", "1").exit_code == 0
    shard = next(folder.glob("hdf5/*-00002-*"))
    DAMAGE[damage](shard)
    report = verify_file(f"{url}/hdf5")
    assert len(report.problems) == 1
    if damage != "manifest":
        assert f"{url}/hdf5/{shard.name}" in report.problems[0]
        assert report.checked == COUNT * 3 // 4
    assert run("verify", f"{url}/hdf5").exit_code == 1


@pytest.mark.parametrize("bad", [0, 1])
def test_verify_finds_damage_of_one_file(copied: tuple[Path, str], bad: int) -> None:
    """A file that is no HDF5 is a problem, and one whose sample changed has a bad one."""
    folder, url = copied
    file = folder / "one.h5"
    with closing(open_source(file)) as source:
        sample = Inspector(source.first).bytes(7)
    flip(file, file.read_bytes().index(sample) + 5 if bad else 0)
    report = verify_file(f"{url}/one.h5")
    assert (report.ok, report.bad) == (False, bad)


def test_verify_needs_the_store(copied: tuple[Path, str], impatient: None) -> None:
    """A set that is not there, or a store that cannot be reached, is an error and no report."""
    _, url = copied
    for name in ("none", "none.h5"):
        with pytest.raises(SourceNotFoundError, match="none"):
            verify_file(f"{url}/{name}")
    for name in ("set", "set.h5"):
        with pytest.raises(SourceError, match="cannot be reached"):
            verify_file(f"http://127.0.0.1:9/{name}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_commands(copied: tuple[Path, str], here: Path, kind: str) -> None:
    """info, preview and bench show the set; the doctor, who measures disks, says who helps."""
    _, url = copied
    path = f"{url}/{kind}"
    told = run("info", path, "--json")
    assert (told.exit_code, json.loads(told.output)["count"]) == (0, COUNT)
    told = run(
        "preview", path, "--count", "6", "--html", "page.html", "--output", "sheet.png", "-q"
    )
    assert (told.exit_code, told.output) == (0, "")
    assert (here / "sheet.png").stat().st_size > 1000
    assert (here / "page.html").stat().st_size > 1000
    told = run("bench", path, "--seconds", "0.01", "--nthread", "1", "--json")
    assert json.loads(told.output)["count"] == COUNT
    told = run("doctor", path)
    assert told.exit_code == 2
    assert len(told.output.splitlines()) == 1
    assert "the doctor is for datasets on this machine" in told.output
    assert "bench" in told.output
