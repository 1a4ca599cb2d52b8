"""``asyncreader convert`` as people meet it: what it packs, reports, skips and notes."""

import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_sets import run

import converters
from asyncreader.cli import terminal
from asyncreader.pixels import kernels
from converters import ConvertReport
from converters.options import ConvertKeywords


def test_convert_packs_and_reports(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All packed: exit 0, the report on stdout, as JSON too, and no progress of what takes no
    second; with --quiet nothing."""
    target = tmp_path / "out.h5"
    monkeypatch.setattr(terminal, "_LINES_APART", (1000.0, 1000.0))
    result = run("convert", photos, target)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"wrote 20 samples in 2 classes to {target}\nHDF5, raw, ")
    assert result.stderr == ""
    result = run("convert", photos, tmp_path / "out.lmdb", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "out.lmdb" / "data.mdb").is_file()
    result = run("convert", photos, target, "--json", "--size", "8x6", "--overwrite")
    report = json.loads(result.stdout)
    assert (report["count"], report["skipped"], report["format"]) == (20, [], "hdf5")
    assert report["classes"] == ["cat", "dog"]


def test_progress_elsewhere_is_lines(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal: a line each 10 %, or each minute, with rate and what is left."""
    monkeypatch.setattr(terminal, "_LINES_APART", (0.0, 1000.0))
    lines = run("convert", photos, tmp_path / "out.h5").stderr.splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r"converting: 2 of 20 \(10 %\), [\d,.]+/s, \d+ s left", lines[0])
    assert re.fullmatch(r"converting: 20 of 20 \(100 %\), [\d,.]+/s, finishing", lines[-1])
    monkeypatch.setattr(terminal, "_LINES_APART", (0.0, 0.0))
    assert len(run("convert", photos, tmp_path / "all.h5").stderr.splitlines()) == 20


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (7100, "118 min"), (12_010, "3 h 20 min")],
)
def test_time_left_in_words(seconds: float, words: str) -> None:
    """Seconds, minutes, hours: as many as one can take in."""
    assert terminal.in_time(seconds) == words


def test_convert_says_that_it_compiles(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first run on a machine waits for is said once, by --quiet not at all, and is part of
    the seconds that the report gives."""
    clock = [0.0]

    def slow(*arguments: object) -> None:
        kernels._state.compiling()
        kernels._state.compiling()
        clock[0] = 80

    monkeypatch.setattr("converters.encode.kernels.add_restarts", slow)
    monkeypatch.setattr("converters.writer.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(terminal, "_LINES_APART", (1000.0, 1000.0))
    result = run("convert", photos, tmp_path / "a.h5", "--encoding", "jpeg")
    assert result.stderr == "converting: compiling, once on this machine\n"
    seconds, rate = re.findall(r"; ([\d.]+) s, ([\d.,]+) samples/s", result.stdout)[0]
    assert 80 <= float(seconds) < 500
    assert float(rate) < 1
    assert run("convert", photos, tmp_path / "b.h5", "--encoding", "jpeg", "--quiet").stderr == ""


def test_a_resumed_rate_is_of_new_samples(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples that --resume keeps count in no rate: neither in the progress nor in the report,
    which says how many they are; where all were kept, there is none."""
    monkeypatch.setattr(terminal, "_LINES_APART", (0.0, 0.0))
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    call = terminal.Progress.__call__

    def stop(self: terminal.Progress, done: int, total: int) -> None:
        if done == 16:
            raise KeyboardInterrupt
        call(self, done, total)

    words = ("convert", photos, tmp_path / "set", "--shards", "4", "--resume")
    monkeypatch.setattr(terminal.Progress, "__call__", stop)
    assert run(*words).exit_code == 130

    def slow(self: terminal.Progress, done: int, total: int) -> None:
        clock[0] += 0 if done == 15 else 1.0
        call(self, done, total)

    monkeypatch.setattr(terminal.Progress, "__call__", slow)
    result = run(*words)
    lines = result.stderr.splitlines()
    assert lines[0] == "converting: 16 of 20 (80 %), 1.0/s, 4 s left"
    assert lines[-1] == "converting: 20 of 20 (100 %), 1.0/s, finishing"
    assert len(lines) == 5
    assert "4 shards (3 kept, with 15 samples), " in result.stdout
    report = ConvertReport("t", "hdf5", "raw", 20, (), {}, None, 1, 2.0, kept=4, kept_samples=20)
    monkeypatch.setattr(converters, "convert", lambda *_, **__: replace(report, shards=4))
    assert "samples/s" not in run(*words).stdout
    half = replace(report, shards=4, kept=2, kept_samples=10)
    monkeypatch.setattr(converters, "convert", lambda *_, **__: half)
    assert "; 2.0 s, 5 samples/s\n" in run(*words).stdout


@pytest.fixture
def spoiled(photos: Path, tmp_path: Path) -> Path:
    """The photos with one that is none, and other files."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    for name in ("cat/no picture.jpg", "cat/a.txt", "cat/b.txt", "dog/.hidden.png"):
        (folder / name).write_text("text")
    return folder


def test_convert_skips_and_lists(spoiled: Path, tmp_path: Path) -> None:
    """With --skip-bad a bad file is named on stderr, also when quiet, and the exit code is 3. Files
    that are no pictures are counted in words."""
    result = run("convert", spoiled, tmp_path / "a.h5", "--skip-bad", "--quiet")
    assert (result.exit_code, result.stdout) == (3, "")
    assert re.fullmatch(r"skipped cat/no picture\.jpg: [^\n]+\n", result.stderr)
    result = run("convert", spoiled, tmp_path / "b.h5", "--skip-bad")
    assert result.stdout.splitlines()[-2:] == [
        "ignored: 1 hidden file, 2 files that are no images by suffix",
        "skipped: 1 bad image, listed above",
    ]
    result = run("convert", spoiled, tmp_path / "c.h5", "--skip-bad", "--json", "--quiet")
    assert (result.exit_code, result.stderr) == (3, "")
    (entry,) = json.loads(result.stdout)["skipped"]
    assert entry["path"] == "cat/no picture.jpg"


def test_convert_fails_in_one_line(spoiled: Path, photos: Path, tmp_path: Path) -> None:
    """A bad picture, or a target that exists: exit 1, one line on stderr, nothing half-made."""
    before = sorted(tmp_path.iterdir())
    result = run("convert", spoiled, tmp_path / "out.h5", "--quiet")
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.fullmatch(r"error: [^\n]*no picture\.jpg[^\n]*--skip-bad\)\n", result.stderr)
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "there.h5").write_text("mine")
    result = run("convert", photos, tmp_path / "there.h5")
    assert result.exit_code == 1
    assert "--overwrite" in result.stderr
    assert (tmp_path / "there.h5").read_text() == "mine"


def test_convert_notes_what_folders_lose(photos: Path, tmp_path: Path) -> None:
    """A dropped level is a line on stderr, with --quiet too; --classes-from-folders means it."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "things").symlink_to(photos)
    words = ["convert", tmp_path / "all", tmp_path / "out.h5", "--follow-links", "--overwrite"]
    result = run(*words, "--quiet")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("note: a class is a first-level folder: folders inside")
    assert len(result.stderr.splitlines()) == 1
    result = run(*words, "--quiet", "--classes-from-folders")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    (tmp_path / "all" / "things").rename(tmp_path / "all" / "train")
    result = run(*words)
    assert result.exit_code == 1
    assert "--classes-from-folders" in result.stderr


#: A value of each option, as Python takes it; on the command line flags have none.
GIVEN: dict[str, Any] = {
    "encoding": "jpeg",
    "size": 256,
    "resize": "pad",
    "quality": 80,
    "labels": "l.csv",
    "channels": 1,
    "bits": 8,
    "shuffle": 7,
    "compression": "gzip",
    "chunk": 16,
    "jobs": 3,
    "classes": "c.txt",
    "format": "lmdb",
    "shards": 3,
    "shard_size": "1GB",
    "engine": "ray",
    "address": "auto",
    "split": "a=0.5,b=0.5",
    "group_by": "who",
    "split_column": "part",
    "label_columns": "age,weight",
    "boxes_field": "boxes,faces",
    "keypoints_field": "joints",
    "numbers_field": "pose",
    "select": ("0:5", "b"),
    "sample": 4,
    "params": {"data_field": "x", "num_dim": 1},
    "fields": {"mask": "m", "depth": "d/e"},
    **dict.fromkeys(("restarts", "no_labels", "follow_links", "classes_from_folders"), True),
    **dict.fromkeys(("skip_bad", "overwrite", "check_decode", "resume", "append"), True),
    **dict.fromkeys(("stratify", "splits_from_folders"), True),
}


def test_convert_hands_on_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parameter of converters.convert has an option, and what is not given is left to it."""
    calls: list[dict[str, Any]] = []
    signature = inspect.signature(converters.convert)

    def fake(*paths: str, **given: Any) -> ConvertReport:
        calls.append(given)
        signature.bind(*paths, **given)
        return ConvertReport("t", "lmdb", "jpeg", 1, (), {}, None, 1, 1.0)

    monkeypatch.setattr(converters, "convert", fake)
    words: list[str] = []
    for name, value in GIVEN.items():
        option = {"params": "--param", "fields": "--field"}.get(name, f"--{name.replace('_', '-')}")
        pairs = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else value
        for one in pairs if isinstance(pairs, list | tuple) else [pairs]:
            words += [option] if one is True else [option, str(one)]

    assert run("convert", "a", "b", *words).exit_code == 0
    assert run("convert", "a", "b", "--size", "20x30", "-p", "data_field=x").exit_code == 0
    full, short = calls
    assert callable(full.pop("progress"))
    assert full == GIVEN
    of_python = {"src", "dst", "progress", "variable_length"}  # the last: of samples from a program
    assert set(full) == set(signature.parameters) - of_python
    assert list(ConvertKeywords.__annotations__) == list(signature.parameters)[2:]
    given = {name for name, value in short.items() if value is not False}
    assert given == {"progress", "size", "params"}
    assert (short["size"], short["params"]) == ((20, 30), {"data_field": "x"})
