"""The command as people meet it: what it prints and where, its exit codes, its manners."""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import child_processes
import click
import foreign_sets
import h5py
import numpy as np
import pytest
from child_processes import child, ended
from command_sets import damaged, differing, run
from fakes import paint
from PIL import Image
from project import ROOT

import asyncreader
import asyncreader.tools.demo
import asyncreader.tools.demo_arrays
import converters
from asyncreader import AsyncReader, ParamsError
from asyncreader.cli import main as cli
from asyncreader.cli import terminal
from asyncreader.cli.options import params_of
from asyncreader.pixels import kernels
from asyncreader.sources import open_source
from asyncreader.sources.bytestore import OpenFile
from asyncreader.sources.hdf5.structure import Structure
from asyncreader.system.text import in_bytes
from asyncreader.tools import demo_sets
from asyncreader.tools.bench import run_bench
from converters import ConvertReport
from converters.options import ConvertKeywords

COMMANDS = sorted(cli.cli.commands)

#: The command in a process of its own; SIGINT as in a terminal, however the tests were started.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from asyncreader.cli.main import main
{before}
main()
"""


def command(*words: str | Path, before: str = "") -> list[str | Path]:
    """The command in a process of its own, which runs ``before`` first."""
    return [sys.executable, "-W", "error", "-c", PROGRAM.format(before=before), *words]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 pictures in classes cat and dog, 12 x 10 (height x width)."""
    folder = tmp_path_factory.mktemp("cli") / "photos"
    rng = np.random.default_rng(0)
    for number in range(20):
        path = folder / ("cat" if number % 4 else "dog") / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def packed(photos: Path) -> Path:
    """Those pictures as raw HDF5."""
    target = photos.parent / "packed.h5"
    converters.convert(photos, target)
    return target


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """An HDF5 set that is not ours: images (30, 6, 5, 3) int16, y (30,), boxes (30, 4)."""
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((30, 6, 5, 3), "<i2")
        file["y"] = np.arange(30) % 3 - 1
        file["boxes"] = np.linspace(0, 1, 120).reshape(30, 4)
    return path


def table(text: str) -> dict[str, str]:
    """The name and value columns of ``info``."""
    return dict(re.split(r"  +", line, maxsplit=1) for line in text.split("\n\n")[0].splitlines())


# -- help ----------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    """--help imports click and no more, so that it answers at once."""
    program = (
        "import sys\nfrom asyncreader.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    loaded = set(out.splitlines()[-1].split())
    assert "click" in loaded
    heavy = {"numpy", "h5py", "numba", "rich", "PIL", "cv2", "lmdb", "converters"}
    assert not loaded & heavy


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["info {set}", "verify {set}", "info {set} -p batchsise=3", "convert --help", "info missing"],
)
def test_commands_that_fill_no_batch_load_no_compiler(words: str, packed: Path) -> None:
    """Looking at a set, checking it, and being told of a mistake do not wait for numba."""
    program = (
        "import sys\nfrom asyncreader.cli.main import main\n"
        f"try: main({words.format(set=packed).split()!r})\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "click" in loaded
    assert loaded & {"numba", "llvmlite", "cv2", "scipy", "asyncio", "jinja2"} == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_is_right(command: str) -> None:
    """Each command's help fits 80 columns and shows examples which that command accepts."""
    result = run(command, "--help")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    examples = [
        shlex.split(line) for line in result.stdout.splitlines() if line.startswith("    async")
    ]
    assert examples
    for _, name, *words in examples:
        assert name == command
        cli.cli.commands[name].make_context(name, words)


def test_without_arguments_help_is_shown() -> None:
    """No command at all is a usage error that shows the help."""
    result = run()
    assert result.exit_code == 2
    assert result.stdout == ""
    for command in COMMANDS:
        assert f"\n  {command} " in result.stderr


def test_version_names_the_libraries() -> None:
    """--version gives the versions of the package, of Python and of the libraries below."""
    result = run("--version")
    assert result.exit_code == 0
    found = dict(line.split() for line in result.stdout.splitlines())
    assert found["asyncreader"] == asyncreader.__version__
    assert found["Python"] == sys.version.split()[0]
    assert found["numpy"] == np.__version__
    assert found["HDF5"] == h5py.version.hdf5_version
    for name in ("h5py", "lmdb", "LMDB", "simplejpeg", "numba", "libjpeg-turbo"):
        assert re.fullmatch(r"\d+\.[\d.]+\w*|unknown|not installed", found[name]), name


# -- convert -------------------------------------------------------------------------------------


def test_convert_packs_and_reports(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All packed: exit 0, the report on stdout, and no progress of what takes no second."""
    target = tmp_path / "out.h5"
    monkeypatch.setattr(terminal, "_LINES_APART", (1000.0, 1000.0))
    result = run("convert", photos, target)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"wrote 20 samples in 2 classes to {target}\nHDF5, raw, ")
    assert result.stderr == ""


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


def test_convert_quiet_says_nothing(photos: Path, tmp_path: Path) -> None:
    """--quiet: no progress, no summary, the set is there."""
    result = run("convert", photos, tmp_path / "out.lmdb", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "out.lmdb" / "data.mdb").is_file()


def test_convert_json(photos: Path, tmp_path: Path) -> None:
    """--json: stdout is the whole report as JSON, and nothing else."""
    result = run("convert", photos, tmp_path / "out.h5", "--json", "--size", "8x6")
    report = json.loads(result.stdout)
    assert report["count"] == 20
    assert report["classes"] == ["cat", "dog"]
    assert report["skipped"] == []
    assert report["format"] == "hdf5"


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
    monkeypatch.setattr("converters.pack.time.perf_counter", lambda: clock[0])
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


def test_convert_says_what_it_ignored(photos: Path, tmp_path: Path) -> None:
    """Files that are no pictures are counted in words."""
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    for name in ("cat/a.txt", "cat/b.txt", "dog/.hidden.png"):
        (folder / name).write_text("text")
    result = run("convert", folder, tmp_path / "a.h5")
    assert result.stdout.splitlines()[-1] == (
        "ignored: 1 hidden file, 2 files that are no images by suffix"
    )


def test_convert_skips_and_lists(photos: Path, tmp_path: Path) -> None:
    """With --skip-bad a bad file is named on stderr, also when quiet, and the exit code is 3."""
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "cat" / "no picture.jpg").write_text("text")
    result = run("convert", folder, tmp_path / "a.h5", "--skip-bad", "--quiet")
    assert (result.exit_code, result.stdout) == (3, "")
    assert re.fullmatch(r"skipped cat/no picture\.jpg: [^\n]+\n", result.stderr)
    result = run("convert", folder, tmp_path / "b.h5", "--skip-bad")
    assert result.stdout.endswith("skipped: 1 bad image, listed above\n")
    result = run("convert", folder, tmp_path / "c.h5", "--skip-bad", "--json", "--quiet")
    assert result.exit_code == 3
    assert [entry["path"] for entry in json.loads(result.stdout)["skipped"]] == [
        "cat/no picture.jpg"
    ]
    assert result.stderr == ""


def test_convert_fails_in_one_line(photos: Path, tmp_path: Path) -> None:
    """A bad picture, or a target that exists: exit 1, one line on stderr, nothing half-made."""
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "cat" / "no picture.jpg").write_text("text")
    before = sorted(tmp_path.iterdir())
    result = run("convert", folder, tmp_path / "out.h5", "--quiet")
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


def test_convert_hands_on_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parameter of converters.convert has an option, and what is not given is left to it."""
    calls: list[dict[str, Any]] = []
    signature = inspect.signature(converters.convert)

    def fake(*paths: str, **given: Any) -> ConvertReport:
        calls.append(given)
        signature.bind(*paths, **given)
        return ConvertReport("t", "lmdb", "jpeg", 1, (), {}, None, 1, 1.0)

    monkeypatch.setattr(converters, "convert", fake)
    words = (
        "--encoding jpeg --size 256 --resize pad --quality 80 --restarts --labels l.csv "
        "--no-labels --channels 1 --bits 8 --shuffle 7 --compression gzip --chunk 16 "
        "--classes c.txt --follow-links "
        "--classes-from-folders "
        "--jobs 3 --skip-bad --overwrite --check-decode --format lmdb "
        "--shards 3 --shard-size 1GB --resume --engine ray --address auto "
        "--append --split a=0.5,b=0.5 --stratify --group-by who --splits-from-folders "
        "--split-column part --label-columns age,weight --boxes-field boxes,faces "
        "--keypoints-field joints --numbers-field pose --select 0:5 --select b --sample 4 "
        "-p data_field=x --param num_dim=1 --field mask=m --field depth=d/e"
    )
    assert run("convert", "a", "b", *words.split()).exit_code == 0
    assert run("convert", "a", "b", "--size", "20x30").exit_code == 0
    full, short = calls
    assert callable(full.pop("progress"))
    assert full == {
        "encoding": "jpeg",
        "size": 256,
        "resize": "pad",
        "quality": 80,
        "labels": "l.csv",
        "no_labels": True,
        "channels": 1,
        "bits": 8,
        "shuffle": 7,
        "compression": "gzip",
        "chunk": 16,
        "classes": "c.txt",
        "follow_links": True,
        "classes_from_folders": True,
        "params": {"data_field": "x", "num_dim": 1},
        "fields": {"mask": "m", "depth": "d/e"},
        "shards": 3,
        "shard_size": "1GB",
        "resume": True,
        "engine": "ray",
        "address": "auto",
        "append": True,
        "split": "a=0.5,b=0.5",
        "stratify": True,
        "group_by": "who",
        "splits_from_folders": True,
        "split_column": "part",
        "label_columns": "age,weight",
        "boxes_field": "boxes,faces",
        "keypoints_field": "joints",
        "numbers_field": "pose",
        "select": ("0:5", "b"),
        "sample": 4,
        "jobs": 3,
        "skip_bad": True,
        "overwrite": True,
        "check_decode": True,
        "restarts": True,
        "format": "lmdb",
    }
    of_python = {"src", "dst", "progress", "variable_length"}  # the last: of samples from a program
    assert set(full) == set(signature.parameters) - of_python
    assert list(ConvertKeywords.__annotations__) == list(signature.parameters)[2:]
    given = {name for name, value in short.items() if value is not False}
    assert given == {"progress", "size"}
    assert short["size"] == (20, 30)


@pytest.mark.slow
def test_python_m_converters_is_convert(photos: Path, tmp_path: Path) -> None:
    """``python -m converters`` does what ``asyncreader convert`` does."""
    words = [sys.executable, "-m", "converters", photos, tmp_path / "out.h5", "--quiet"]
    done = subprocess.run(words, capture_output=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert run("info", tmp_path / "out.h5").exit_code == 0


# -- info ----------------------------------------------------------------------------------------


def test_info_of_a_packed_set(packed: Path) -> None:
    """The table tells format, count, shape, encoding, labels per class, and what is checked."""
    result = run("info", packed)
    assert result.exit_code == 0
    facts = table(result.stdout)
    assert facts["format"].startswith("HDF5: ")
    assert facts["count"] == "20 samples"
    assert facts["shape"] == "12 x 10 x 3 (H, W, C)"
    assert (facts["dtype"], facts["encoding"]) == ("uint8", "raw")
    assert facts["labels"] == "20 x 1 int64, 0 to 1, 2 classes"
    assert facts["checksums"] == "XXH3-64 of each sample"
    rows = [line.split() for line in result.stdout.split("\n\n")[1].splitlines()]
    assert rows == [["label", "samples", "class"], ["0", "15", "cat"], ["1", "5", "dog"]]


def test_info_has_no_line_for_what_a_set_lacks(packed: Path, foreign: Path) -> None:
    """No line of info says "none": chunks, compression and splits stand there if the set has them,
    and labels or checksums that it lacks are said in words."""
    for words in ([packed], [foreign, "-p", "data_field=images", "-p", "labels_field=null"]):
        printed = run("info", *words).stdout
        assert "none" not in printed
        assert not {"chunks", "compression", "splits"} & set(table(printed))


def test_info_divides_by_the_samples_of_their_own_field(tmp_path: Path) -> None:
    """Bytes of a sample are those of its field, whatever else the file holds: contiguous, in
    compressed chunks, encoded, in a list of files, and in shards."""
    path = tmp_path / "two.h5"
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((200, 8, 9, 3), np.uint8)
        file["val_images"] = np.zeros((20, 8, 9, 3), np.uint8)
        zipped = file.create_dataset(
            "zipped", (40, 8, 9, 3), np.uint8, chunks=(10, 8, 9, 3), compression="gzip"
        )
        zipped[:] = 7
        stored = zipped.id.get_storage_size() / 40

    def each(*words: str | Path) -> float:
        facts = json.loads(run("info", *words, "--json").stdout)
        return float(facts["bytes_a_sample"])

    for name, size in (("images", 216), ("val_images", 216), ("zipped", stored)):
        words = (path, "-p", f"data_field={name}", "-p", "labels_field=null")
        assert each(*words) == size
        shown_size = table(run("info", *words).stdout)["a sample"]
        assert shown_size == f"{in_bytes(size)} as stored"
    shutil.copy(path, tmp_path / "two2.h5")
    both = tmp_path / "two*.h5"
    assert each(both, "-p", "data_field=val_images", "-p", "labels_field=null") == 216
    for number in range(4):
        place = tmp_path / "in" / "c" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10 + number, 9)).save(place)
    sizes = [one.stat().st_size for one in (tmp_path / "in" / "c").iterdir()]
    converters.convert(tmp_path / "in", tmp_path / "o.lmdb", encoding="original")
    assert each(tmp_path / "o.lmdb") == sum(sizes) / 4
    converters.convert(tmp_path / "in", tmp_path / "s", encoding="original", shards=2)
    assert each(tmp_path / "s") > sum(sizes) / 4


def test_info_json(packed: Path) -> None:
    """--json has the same facts as plain values, with the fingerprint of a reader's state."""
    facts = json.loads(run("info", packed, "--json").stdout)
    assert facts["count"] == 20
    assert facts["shape"] == [12, 10, 3]
    assert facts["checksums"] is True
    assert facts["bytes_on_disk"] == packed.stat().st_size
    assert facts["labels"]["counts"] == [
        {"label": 0, "class": "cat", "samples": 15},
        {"label": 1, "class": "dog", "samples": 5},
    ]
    with asyncreader.AsyncReader(path=packed) as reader:
        assert facts["fingerprint"] == reader.state_dict()["fingerprint"]


@pytest.mark.parametrize(
    ("subset", "rows"),
    [
        ("0:3", slice(0, 3)),
        ("::2", slice(None, None, 2)),
        ("-4:", slice(-4, None)),
        (":-1", slice(None, -1)),
        ("[1,1,5]", [1, 1, 5]),
        ("4:1:-1", slice(4, 1, -1)),
    ],
)
@pytest.mark.parametrize("kind", ["file", "shards"])
def test_info_of_a_subset(packed: Path, subset: str, rows: Any, kind: str, tmp_path: Path) -> None:
    """-p subset= takes slices and lists, and info tells the labels of those records alone."""
    path = packed
    if kind == "shards":
        path = tmp_path / "set"
        assert run("convert", packed, path, "--shards", "3", "-q").exit_code == 0
    with contextlib.closing(open_source(str(packed))) as source:
        assert source.labels is not None
        labels = np.asarray(source.labels)[rows]
        count = source.facts.count
    facts = json.loads(run("info", path, "-p", f"subset={subset}", "--json").stdout)
    assert (facts["count"], facts["subset"]) == (count, len(labels))
    told = {row["label"]: row["samples"] for row in facts["labels"]["counts"] if row["samples"]}
    assert told == {int(n): int((labels == n).sum()) for n in np.unique(labels)}
    words = table(run("info", path, "-p", f"subset={subset}").stdout)
    assert words["subset"].startswith(f"{len(labels)} sample")


def _hints(*words: Any) -> list[str]:
    found: list[str] = json.loads(run("info", *words, "--json").stdout)["hints"]
    return found


def test_info_suggests_what_serves_a_set(tmp_path: Path) -> None:
    """Of volumes, of samples of different length and of values with a table of offsets info says
    what to pass; passed, it serves them, and nothing more is suggested. Of others it is quiet."""
    count = np.array([3, 9, 0, 5])
    sets: dict[str, tuple[dict[str, Any], str]] = {
        "one volume": ({"raw": np.zeros((40, 36, 48), "u2")}, "one volume of 40 x 36 x 48"),
        "volumes": ({"raw": np.zeros((3, 2, 16, 36, 80), "f4")}, "patch=16x32x32 serves"),
        "channels": ({"raw": np.zeros((2, 30, 40, 50), "u1")}, "one volume of 2 x 30 x 40 x 50"),
        "lengths": ({"x": np.ones((17, 2)), "n": count}, "n may say where samples begin in x"),
        "starts": ({"x": np.ones(17), "s": np.cumsum([0, *count])}, "s may say"),
        "found": ({"x": np.ones(17), "x_lengths": count}, "max_length=9 serves all of them whole"),
    }
    for name, (fields, says) in sets.items():
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            for field, values in fields.items():
                file[field] = values
        (hint,) = _hints(path)
        assert says in hint
        passed = [word for part in re.findall(r"-p (\S+)", hint) for word in ("-p", part)]
        assert _hints(path, *passed) == []
        given = {"data_field": next(iter(fields))}
        given.update(part.split("=") for part in passed if part != "-p")
        patch = tuple(map(int, given.pop("patch", "0").split("x")))
        axis = {"sample_axis": None} if given.pop("sample_axis", "") else {}
        most = int(given.pop("max_length", "0"))
        served = {**given, **axis, **({"patch": patch} if any(patch) else {"max_length": most})}
        with asyncreader.open(path, **served) as ds:  # type: ignore[arg-type]
            assert ds[0] is not None
    for name, values in {
        "digits": np.zeros((600, 16, 16), "u1"),
        "rows": np.zeros((20, 8)),
        "maps": np.zeros((9, 64, 7, 7)),
    }.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"], file["y"] = values, np.arange(len(values))
        assert _hints(tmp_path / f"{name}.h5") == []


def test_info_opens_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a foreign file holds besides is looked up in the file that is open: its structure is
    walked once. Of several files the first one is looked into."""
    opened: list[str] = []
    real = OpenFile.__init__

    def note(file: OpenFile, path: str, io: str) -> None:
        opened.append(path)
        real(file, path, io)

    walked: list[Structure] = []
    check = Structure.check
    monkeypatch.setattr(OpenFile, "__init__", note)
    monkeypatch.setattr(Structure, "check", lambda one: walked.append(one) or check(one))
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"], file["n"] = np.ones((17, 2)), np.array([3, 9, 0, 5])
    (hint,) = _hints(tmp_path / "a.h5", "-p", "data_field=x")
    assert "n may say where samples begin in x" in hint
    assert len(opened) == len(walked) == 1
    (again,) = _hints(tmp_path / "*.h5", "-p", "data_field=x")
    assert again == hint
    assert len(opened) == len(walked) == 3


def test_info_lists_the_columns_of_cells(tmp_path: Path) -> None:
    """Of AnnData's files info lists the columns of obs, and says how one becomes the labels."""
    path = tmp_path / "cells.h5ad"
    with h5py.File(path, "w") as file:
        file["X"], file["var/g"] = np.zeros((6, 4), "f4"), np.array([b"a", b"b", b"c", b"d"])
        obs = file.create_group("obs")
        obs.attrs["_index"], file["var"].attrs["_index"] = "cell", "g"
        obs["cell"] = np.array([f"c{n}".encode() for n in range(6)])
        obs["depth"], obs["donor"] = np.arange(6.0), np.array([b"x", b"y"] * 3)
        kind, age, odd = obs.create_group("kind"), obs.create_group("age"), obs.create_group("odd")
        for group, name in ((kind, "categorical"), (age, "nullable-integer"), (odd, "interval")):
            group.attrs["encoding-type"] = name
        kind["categories"], kind["codes"] = np.array([b"B", b"T"]), np.arange(6, dtype="i1") % 2
        age["values"], age["mask"] = np.arange(6), np.arange(6) == 0
        obs.create_group("wrong").attrs["encoding-type"] = np.arange(3)
    facts = json.loads(run("info", path, "--json").stdout)
    assert {one["name"]: (one["words"], one["label"]) for one in facts["columns"]} == {
        "obs/age": ("whole numbers, -1 where missing", True),
        "obs/depth": ("float64", True),
        "obs/donor": ("text, classes by name", True),
        "obs/kind": ("categorical, 2 classes", True),
        "obs/odd": ("of a kind that is not read", False),
        "obs/wrong": ("of a kind that is not read", False),
    }
    assert facts["hints"] == ["-p labels_field=obs/donor serves a column as labels"]
    assert table(run("info", path).stdout)["obs/kind"] == "categorical, 2 classes"
    for one in facts["columns"]:
        found = run("info", path, "-p", f"labels_field={one['name']}")
        assert (found.exit_code == 0) == one["label"]
    with asyncreader.open(path, labels_field="obs/kind") as ds:
        assert ds.classes == ("B", "T")


@pytest.mark.parametrize("subset", ["0:5:0", "train", "900:", "[0,999]", "1:2:3:4", "a:b"])
def test_info_of_a_subset_that_is_not_there(packed: Path, subset: str) -> None:
    """A subset that selects nothing, or makes no sense, is misuse and said in one line."""
    result = run("info", packed, "-p", f"subset={subset}")
    assert result.exit_code == 2
    assert "subset" in result.stderr
    assert "Traceback" not in result.stderr


def test_size_as_it_is_written_elsewhere(packed: Path) -> None:
    """-p size=24x32 is size=(24, 32), as --size writes it."""
    assert params_of(None, None, ["size=24x32", "subset=5:"]) == {  # type: ignore[arg-type]
        "size": [24, 32],
        "subset": slice(5, None),
    }


def test_info_of_pictures_that_differ_in_size(tmp_path: Path) -> None:
    """A set of encoded pictures has a shape only where all have it."""
    target = differing(tmp_path / "o.lmdb")
    facts = table(run("info", target).stdout)
    assert facts["shape"] == "differs"
    assert facts["labels"] == "read without labels"
    assert facts["format"].startswith("LMDB: ")


@pytest.mark.parametrize("kind", ["ours", "shards", "foreign"])
def test_info_says_how_many_jpegs_can_be_cut(tmp_path: Path, kind: str) -> None:
    """Of JPEGs, packed by asyncreader or not, info tells how many have restart markers by which a
    part is decoded without the rest, and of how many it looked at; of other pictures nothing."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    rng = np.random.default_rng(3)
    for number in range(230):
        image = Image.fromarray(rng.integers(0, 256, (32, 144, 3), np.uint8))
        more: dict[str, Any] = {} if number % 2 else {"restart_marker_blocks": 3}
        image.save(pictures / f"{number:03}.jpg", **more)
    image.save(pictures / "999.png")
    target = tmp_path / ("set" if kind == "shards" else "set.lmdb")
    if kind == "foreign":
        files = [file.read_bytes() for file in sorted(pictures.iterdir())]
        foreign_sets.write_lmdb(target, foreign_sets.ocr(files, ["1"] * len(files)))
    else:
        shards = {"shards": 3} if kind == "shards" else {}
        converters.convert(pictures, target, encoding="original", no_labels=True, **shards)
    result = run("info", target, "--json")
    found = json.loads(result.stdout)["restarts"]
    assert (found["looked_at"], found["jpegs"]) == (200, 199)
    assert 90 <= found["can_be_cut"] <= 110
    words = table(run("info", target).stdout)["restart markers"]
    assert words == f"{found['can_be_cut']} of 199 JPEGs can be decoded in part (200 looked at)"


def test_info_of_damaged_jpegs(tmp_path: Path) -> None:
    """A damaged sample does not keep info from showing the set: it is no JPEG that can be cut."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    image = Image.fromarray(np.zeros((90, 160, 3), np.uint8))
    for number in range(2):
        image.save(pictures / f"{number}.jpg")
    target = tmp_path / "set.h5"
    converters.convert(pictures, target, encoding="jpeg", no_labels=True)
    with h5py.File(target, "r+") as file:
        file["data"][: int(file["offsets"][1])] = 0
    result = run("info", target, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["restarts"]
    assert found == {"looked_at": 2, "jpegs": 1, "can_be_cut": 1}


def test_info_of_a_foreign_set(foreign: Path) -> None:
    """--param names the fields; without checksums the set is called unverified."""
    result = run("info", foreign, "-p", "data_field=images", "-p", "labels_field=y")
    facts = table(result.stdout)
    assert facts["checksums"] == "not recorded: served unverified"
    assert facts["labels"] == "30 int64, -1 to 1, 3 different values"
    rows = [line.split() for line in result.stdout.split("\n\n")[1].splitlines()]
    assert rows == [["label", "samples"], ["-1", "10"], ["0", "10"], ["1", "10"]]
    facts = table(
        run("info", foreign, "-p", "data_field=images", "-p", "labels_field=boxes").stdout
    )
    assert facts["labels"] == "30 x 4 float64, 0 to 1"
    for nothing in ("null", "None"):
        words = ("-p", "data_field=images", "-p", f"labels_field={nothing}", "--json")
        assert json.loads(run("info", foreign, *words).stdout)["labels"] is None


def test_info_where_no_field_is_named(tmp_path: Path) -> None:
    """Fields of as many samples are shown together, and values by their offsets; where no number of
    samples is more frequent than another, the largest field is, and a table of offsets never."""
    offsets = np.array([0, 4, 4, 10])
    with h5py.File(tmp_path / "hits.h5", "w") as file:
        file["hits"], file["hits_offsets"], file["y"] = np.ones((10, 2)), offsets, np.arange(3)
    facts = table(run("info", tmp_path / "hits.h5").stdout)
    assert (facts["count"], facts["field"]) == ("3 samples", "hits")
    assert facts["length of hits"] == "0 to 6 values, median 4"
    assert facts["field y"] == "one number int64, raw"
    with h5py.File(tmp_path / "tokens.h5", "w") as file:
        file["tokens"], file["offsets"], file["y"] = np.ones(10), offsets, np.arange(3)
    facts = table(run("info", tmp_path / "tokens.h5").stdout)
    assert (facts["count"], facts["length of tokens"]) == ("3 samples", "0 to 6 values, median 4")


def test_fields_called_by_a_number(tmp_path: Path) -> None:
    """-p data_field=1 is the field "1"; numbers of other parameters stay numbers."""
    points = [[n, paint(1, (4, 5, 3))[0].tobytes()] for n in range(4)]
    path = foreign_sets.write_lmdb(tmp_path / "set", foreign_sets.tensorpack(points))
    result = run("info", path, "-p", "data_field=1", "-p", "labelsField=0")
    assert table(result.stdout)["format"] == "LMDB: tensorpack, msgpack: 1, labels from 0"
    assert params_of(None, None, ["njob=2", "flip=True"]) == {"njob": 2, "flip": True}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "low", "high", "counts"),
    [
        (np.array([True, False, True, True]), 0, 1, [(0, 1), (1, 3)]),
        (np.array([-100, 100, 100, 0], np.int8), -100, 100, [(-100, 1), (0, 1), (100, 2)]),
        (np.array([2**63] * 4, np.uint64), 2**63, 2**63, None),
        (np.array([0, 10**9, 5, 5]), 0, 10**9, None),
        (np.array([0.5, np.nan, np.inf, 1]), None, None, None),
        (np.array([-np.inf, 1, 2, 3]), None, 3, None),
    ],
)
def test_info_of_odd_labels(tmp_path: Path, labels: Any, low: Any, high: Any, counts: Any) -> None:
    """Labels of any dtype and range are described, and never make JSON that others refuse."""
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["data"] = np.zeros((4, 3), "u1")
        file["labels"] = labels
    result = run("info", tmp_path / "odd.h5", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))["labels"]
    assert (found["min"], found["max"]) == (low, high)
    if counts is None:
        assert found["counts"] is None
    else:
        assert [(c["label"], c["samples"]) for c in found["counts"]] == counts
    shown = table(run("info", tmp_path / "odd.h5").stdout)["labels"]
    assert ("not finite" in shown) == (None in (low, high))
    assert "?" not in shown


def test_info_of_many_classes(tmp_path: Path) -> None:
    """Only the first 20 of many classes are shown; --json has all."""
    with h5py.File(tmp_path / "many.h5", "w") as file:
        file["data"] = np.zeros((100, 3), "u1")
        file["labels"] = np.arange(100)
    result = run("info", tmp_path / "many.h5")
    assert result.stdout.endswith("... and 80 more (--json lists all)\n")
    assert len(result.stdout.split("\n\n")[1].splitlines()) == 1 + 20 + 1
    facts = json.loads(run("info", tmp_path / "many.h5", "--json").stdout)
    assert len(facts["labels"]["counts"]) == 100


# -- verify --------------------------------------------------------------------------------------


def test_verify_a_whole_set(packed: Path) -> None:
    """Nothing wrong: exit 0 and one line, with --quiet none, with --json the report."""
    result = run("verify", packed)
    assert result.exit_code == 0
    assert result.stdout == f"ok: 20 checksums right (HDF5, 20 samples, {packed})\n"
    assert run("verify", packed, "--quiet").output == ""
    report = json.loads(run("verify", packed, "--json").stdout)
    assert report["ok"] is True
    assert report["unverified"] is False
    assert (report["count"], report["checked"], report["problems"]) == (20, 20, [])


def test_verify_a_damaged_set(packed: Path, tmp_path: Path) -> None:
    """Each bad sample is a line on stdout, and the exit code is 1, in every form of output."""
    bad = damaged(packed, tmp_path / "bad.h5", 3, 17)
    result = run("verify", bad)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert "record 3" in lines[0]
    assert "record 17" in lines[1]
    assert lines[2] == f"damaged: 2 bad samples (HDF5, 20 samples, {bad})"
    assert run("verify", bad, "--quiet").output.splitlines() == lines[:2]
    result = run("verify", bad, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["bad"] == 2


def test_verify_decodes(photos: Path, tmp_path: Path) -> None:
    """--decode says how many pictures it decoded."""
    target = tmp_path / "e.lmdb"
    converters.convert(photos, target, encoding="original")
    result = run("verify", target, "--decode", "--jobs", "1")
    assert result.exit_code == 0
    assert result.stdout == (
        f"ok: 20 checksums right; 20 images decoded (LMDB, 20 samples, {target})\n"
    )


def test_verify_a_set_without_checksums(tmp_path: Path) -> None:
    """A foreign set is said to be unverified, not ok."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["data"] = np.zeros((4, 3), "u1")
    result = run("verify", tmp_path / "f.h5")
    assert result.exit_code == 0
    assert result.stdout.startswith("unverified: it has no checksums")


# -- bench ---------------------------------------------------------------------------------------


def test_bench_prints_a_row_for_each_thread_count(packed: Path) -> None:
    """bench gives samples/s, MB/s and waiting by nthread, of a set smaller than its batch too."""
    result = run("bench", packed, "--seconds", "0.02", "--nthread", "2,1")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"{packed}: 20 samples, shuffled, njob 4"
    assert lines[1] == "batch 128 x 3 x 12 x 10 uint8, 46.1 kB"
    assert lines[2].split() == ["nthread", "samples/s", "slowest", "-", "fastest", "MB/s", "wait"]
    assert [line.split()[0] for line in lines[3:]] == ["2", "1"]
    assert result.stderr == ""


def test_bench_json_and_parameters(packed: Path) -> None:
    """Options and --param reach the reader; the JSON carries every turn."""
    words = "--seconds 0.02 --nthread 1 --batch-size 4 --njob 2 --no-shuffle --dtype float32"
    result = run("bench", packed, *words.split(), "-p", "layout=NHWC", "-p", "scale=0.5", "--json")
    report = json.loads(result.stdout)
    assert report["data_shape"] == [4, 12, 10, 3]
    assert report["dtype"] == "float32"
    assert report["batch_bytes"] == 4 * 12 * 10 * 3 * 4
    assert report["params"]["shuffle"] is False
    (row,) = report["rows"]
    assert len(row["turns"]) == 3
    rates = sorted(turn["samples"] / turn["seconds"] for turn in row["turns"])
    assert [row["slowest"], row["samples_per_second"], row["fastest"]] == rates
    for turn in row["turns"]:
        assert turn["bytes"] == turn["samples"] * report["batch_bytes"] / 4


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["weights=balanced"], "drawn by weights"),
        (["weights=[1, 0, 0, 3]", "subset=0:4", "epoch_samples=40"], "drawn by weights"),
        (["shuffle=balanced-permutation"], "shuffled"),
        (["shuffle=replacement", "epoch_samples=9"], "shuffled"),
    ],
)
def test_bench_of_draws(packed: Path, words: list[str], order: str) -> None:
    """bench measures draws by weight and by class, given with -p, and says so."""
    asked = [part for word in words for part in ("-p", word)]
    result = run("bench", packed, "--seconds", "0.02", "--nthread", "1", *asked)
    assert result.exit_code == 0, result.stderr
    assert f", {order}, njob 4" in result.stdout.splitlines()[0]
    wrong = run("bench", packed, "--seconds", "0.02", "-p", "weights=[1, -1]")
    assert wrong.exit_code == 2
    assert "weights[1] is not valid; found -1.0" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["augment=trivial-augment-wide"], {"trivial-augment-wide"}),
        (['augment=["color-jitter", {"brightness": 0.4}]', "mixup=0.2"], {"color-jitter", "mixup"}),
        (["transform=dims:dim", "cutmix=1", "label_smoothing=0.1"], {"transform", "cutmix"}),
    ],
)
def test_bench_says_what_each_step_takes(
    words: list[str], steps: set[str], packed: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Augmentation, transform and mixing are given with -p, and each has its part of the time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dims.py").write_text("def dim(image): image //= 2\n")
    asked = [part for word in words for part in ("-p", word)]
    line = ["bench", packed, "--seconds", "0.02", "--nthread", "1", "--batch-size", "8", *asked]
    result = run(*line)
    assert result.exit_code == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith("time of 1 thread: ")
    assert steps <= set(re.findall(r"([a-z-]+) \d+%", last))
    (row,) = json.loads(run(*line, "--json").stdout)["rows"]
    assert {"read", *steps} <= set(row["steps"])
    assert sum(row["steps"].values()) == pytest.approx(1)


def test_a_mix_on_the_command_line(packed: Path, tmp_path: Path) -> None:
    """bench and info take the sets of -p mix={...} in place of PATH; both or none is a mistake."""
    other = differing(tmp_path / "o.h5")
    mix = f"mix={json.dumps({str(packed): 0.75, str(other): 0.25})}"
    quick = ["--seconds", "0.01", "--nthread", "1", "--batch-size", "4"]
    result = run("bench", *quick, "--size", "8x8", "-p", mix, "-p", "labels_field=None")
    assert result.exit_code == 0, result.stderr
    assert re.match(r".* and 1 more: \d+ samples, shuffled, njob 4\n", result.stdout)
    told = json.loads(run("info", "-p", mix, "-p", "labels_field=None", "--json").stdout)
    with asyncreader.AsyncReader(str(other), size=(8, 8)) as reader:
        assert told["count"] == 20 + reader.count
    assert [(one["path"], one["ratio"]) for one in told["sets"]] == [
        (str(packed), 0.75),
        (str(other), 0.25),
    ]
    shown = run("info", "-p", mix, "-p", "labels_field=None").stdout
    assert f"set 0 {packed}: 0.75 of a batch, 20 samples" in re.sub(r"\s+", " ", shown)
    for words, says in (([packed, "-p", mix], "found path and mix"), ([], "Missing argument")):
        result = run("bench", *words)
        assert result.exit_code == 2
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
        assert says in result.stderr


def test_bench_of_pictures_that_differ_in_size(tmp_path: Path) -> None:
    """Such a set is measured at 224 x 224, and that is said, unless --size says otherwise."""
    target = differing(tmp_path / "o.h5")
    words = ["bench", target, "--seconds", "0.01", "--nthread", "1", "--batch-size", "2"]
    result = run(*words)
    assert "\nbatch 2 x 3 x 224 x 224 uint8" in result.stdout
    assert result.stderr == "the images differ in size: cut to 224x224; see --size\n"
    result = run(*words, "--size", "8x9")
    assert "\nbatch 2 x 3 x 8 x 9 uint8" in result.stdout
    assert result.stderr == ""


def test_bench_takes_turns(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread counts alternate and go back and forth, so that none always comes first."""
    order: list[int] = []
    real = AsyncReader.__init__

    def note(reader: AsyncReader, params: Any, **given: Any) -> None:
        order.append(given["nthread"])
        real(reader, params, **given)

    monkeypatch.setattr(AsyncReader, "__init__", note)
    seen: list[tuple[int, int]] = []
    run_bench(
        {"path": str(packed), "batch_size": 4},
        nthreads=(1, 2, 3),
        seconds=0.003,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert order == [1, 2, 3, 3, 2, 1, 1, 2, 3]
    assert seen == [(n, 9) for n in range(1, 10)]


def test_bench_opens_a_set_once(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the turns, the structure of the file is read once."""
    opened: list[object] = []
    real = asyncreader.pipeline.build.open_set

    def note(params: Any) -> Any:
        opened.append(params)
        return real(params)

    monkeypatch.setattr("asyncreader.pipeline.build.open_set", note)
    result = run("bench", packed, "--nthread", "1,2", "--batch-size", "4", "--seconds", "0.003")
    assert result.exit_code == 0
    assert len(opened) == 1


def test_bench_waits_little_for_a_fast_loader(packed: Path) -> None:
    """With a slow consumer the share of waiting falls to where the consumer is the limit."""
    report = run_bench(
        {"path": str(packed), "batch_size": 4, "njob": 2},
        nthreads=(1,),
        seconds=0.3,
        consumer_seconds=0.01,
    )
    (row,) = report.rows
    assert row.wait_share < 0.5
    assert row.samples_per_second <= 4 / 0.01


def test_bench_refuses_what_cannot_be(packed: Path) -> None:
    """Nothing to measure, or an unknown parameter, is a usage error."""
    with pytest.raises(ParamsError):
        run_bench({"path": str(packed)}, nthreads=())
    for words in (["--nthread", "x"], ["-p", "foo=1"], ["-p", "foo"], ["--size", "8"]):
        result = run("bench", packed, *words)
        assert result.exit_code == 2, words
        assert re.fullmatch(r"error: [^\n]+\n", result.stderr)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["convert", "--batchsize", "4"], None),
        (["convert", "--recursive", "4"], None),
        (["bench", "--threads", "4"], None),
        (["bench", "--nthreads", "4"], "Did you mean '--nthread'?"),
        (["convert", "--qualit", "4"], "Did you mean '--quality'?"),
        (["bench", "-p", "rotate=10"], "write augment=[("),
        (["bench", "-p", "mode=eval"], "write path="),
        (["info", "-p", "xyzzy=1"], "docs/parameters.md"),
    ],
)
def test_only_slips_of_the_keyboard_are_guessed(words: list[str], says: str | None) -> None:
    """An option that is unknown, and no slip of the keyboard, is answered without a guess."""
    result = run(words[0], "photos", *(["x.h5"] if words[0] == "convert" else []), *words[1:])
    assert result.exit_code == 2
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    assert says in result.stderr if says else "mean" not in result.stderr


# -- demo ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "code"), [(0.95, 0), (0.9, 0), (0.89, 1)])
def test_demo_fails_below_its_bar(score: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """demo trains on the pictures that come with the package or lie in the checkout, prints what
    it is told, and fails below 0.9.
    """
    folders: list[Path] = []

    def fake(folder: Path, echo: Any) -> float:
        folders.append(folder)
        echo("a line")
        return score

    monkeypatch.setattr(asyncreader.tools.demo, "run_demo", fake)
    result = run("demo")
    assert (result.exit_code, result.stdout) == (code, "a line\n")
    assert result.stderr == (
        f"error: held-out accuracy {score:.3f}, expected at least 0.9\n"
        if code
        else "next: asyncreader convert YOUR_IMAGES/ train.h5 --size 224x224\n"
    )
    assert run("demo", "--sample-data", "elsewhere").exit_code == code
    packed_in = Path(asyncreader.__file__).parent / "sample_data"
    pictures = packed_in if packed_in.exists() else ROOT / "sample_data"
    assert folders == [pictures, Path("elsewhere")]


@pytest.mark.slow
def test_demo_says_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """demo says which of its parts begins and what it does next, in lines of at most 80 columns,
    and stops when it has converged: long before its most epochs, with every picture named right."""
    monkeypatch.setattr(asyncreader.tools.demo, "EVERY", 1)
    result = run("demo")
    lines = result.stdout.splitlines()
    assert (result.exit_code, max(map(len, lines)) <= 80) == (0, True)
    assert [line for line in lines if " of 2: " in line] == [
        "1 of 2: convert the images to HDF5, then train on them",
        "2 of 2: convert the images to LMDB, then train on them",
    ]
    for kind in ("h5  ", "lmdb"):
        mine = [line for line in lines if line.startswith(f"{kind} ")]
        assert mine[0].startswith(f"{kind} 352 images to train on, 112 held out, converted in")
        assert mine[1] == (
            f"{kind} now a small network learns 4 classes, 24 epochs at most; wait: for data"
        )
        epochs = [int(part) for part in re.findall(r"epoch +(\d+)/24 ", "\n".join(mine))]
        assert epochs == list(range(1, len(epochs) + 1))
        assert len(epochs) < 20
        assert mine[-2] == f"{kind} converged, the loss is below 0.05 after {len(epochs)} epochs"
    assert lines[-2:] == ["h5   held-out accuracy 1.000", "lmdb held-out accuracy 1.000"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["robot", "cells", "volumes"])
def test_demo_of_other_fields(kind: str, tmp_path: Path) -> None:
    """demo --kind makes its set, the same one every time and of at most 5 MB, and learns it, in
    lines of at most 80 columns."""
    make = getattr(demo_sets, f"make_{kind}")
    for name in ("a.h5", "b.h5"):
        make(tmp_path / name)
    assert (tmp_path / "a.h5").stat().st_size < 5_000_000
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    result = run("demo", "--kind", kind)
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert re.search(r"(R\^2|accuracy|Dice) (0\.9\d\d|1\.000)$", result.stdout)


def test_demo_of_other_fields_fails_below_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does --kind; pictures of one's own are for the other demo."""
    monkeypatch.setattr(asyncreader.tools.demo_arrays, "run_kind", lambda kind, echo: 0.5)
    result = run("demo", "--kind", "cells")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: held-out figure of cells 0.500, expected at least 0.9\n",
    )
    assert run("demo", "--kind", "cells", "--sample-data", "x").exit_code == 2


def test_demo_without_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no pictures came along, the error says how to name some."""
    place = tmp_path / "asyncreader" / "cli" / "demo.py"
    monkeypatch.setattr(sys.modules["asyncreader.cli.demo"], "__file__", str(place))
    result = run("demo")
    assert result.exit_code == 1
    assert re.fullmatch(r"error: [^\n]+ --sample-data DIR\n", result.stderr)


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("info nowhere.h5", 1),
        ("verify nowhere.h5", 1),
        ("bench nowhere.h5", 1),
        ("convert nowhere out.h5", 1),
        ("convert nowhere out.unknown", 2),
        ("convert nowhere out.h5 --size 0xx", 2),
        ("convert nowhere", 2),
        ("convert nowhere out.h5 --no-labels --labels x.csv", 2),
        ("info", 2),
        ("inf x.h5", 2),
        ("info x.h5 --jsn", 2),
        ("--jsn", 2),
    ],
)
def test_errors_are_one_line(words: str, code: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Every failure is one line on stderr, nothing on stdout, and the contract's exit code."""
    monkeypatch.chdir(tmp_path)
    result = run(*words.split())
    assert (result.exit_code, result.stdout) == (code, "")
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["--traceback info nowhere.h5", "info nowhere.h5 --traceback"])
def test_traceback_on_demand(words: str) -> None:
    """--traceback, at either end of the line, shows where the error arose, then its line."""
    result = run(*words.split())
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("error: no such file")


@pytest.mark.slow
def test_names_are_made_fit_to_print(photos: Path, tmp_path: Path) -> None:
    """Newlines, escapes and bytes that are no UTF-8 in a name neither break a line nor fail."""
    name = os.fsdecode(b"n\xffw\n\x1b[31m.jpg")
    assert terminal.shown(name) == r"n\xffw\n\x1b[31m.jpg"
    folder = tmp_path / os.fsdecode(b"f\xe9")
    shutil.copytree(photos, folder)
    (folder / "cat" / name).write_text("text")
    target = tmp_path / os.fsdecode(b"t\xe9.h5")
    done = child_processes.run(command("convert", folder, target, "--skip-bad"))
    assert done.returncode == 3
    assert r"t\xe9.h5" in done.stdout
    assert r"skipped cat/n\xffw\n\x1b[31m.jpg: " in done.stderr
    assert all(line.isprintable() for line in (done.stdout + done.stderr).splitlines())
    report = json.loads(run("verify", target, "--json").stdout)
    assert report["path"] == str(target)


def test_warnings_are_one_line(tmp_path: Path) -> None:
    """A warning of the library is a line on stderr, without a source line."""
    with h5py.File(tmp_path / "slow.h5", "w") as file:
        file.create_dataset("data", data=np.zeros((9, 8), "u1"), chunks=(3, 8), scaleoffset=3)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = run("info", tmp_path / "slow.h5")
    assert result.exit_code == 0
    assert re.fullmatch(r"warning: [^\n]+\n", result.stderr)


# -- pipes, signals, terminals -------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "verify {}",
        pytest.param("info {}", marks=pytest.mark.slow),
        pytest.param("info {} --json", marks=pytest.mark.slow),
        pytest.param("--version", marks=pytest.mark.slow),
    ],
)
def test_a_closed_pipe_is_no_error(words: str, packed: Path) -> None:
    """A reader that went away ends the command without a word, as it ends other programs."""
    reading, writing = os.pipe()
    os.close(reading)
    done = child_processes.run(command(*words.format(packed).split()), stdout=writing)
    os.close(writing)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("checking: ")]
    assert (done.returncode, lines) == (141, [])


@pytest.mark.slow
def test_a_closed_stderr_stops_no_conversion(photos: Path, tmp_path: Path) -> None:
    """Packing goes on when nobody reads its progress any more."""
    reading, writing = os.pipe()
    os.close(reading)
    done = child_processes.run(command("convert", photos, tmp_path / "out.h5"), stderr=writing)
    os.close(writing)
    assert done.returncode == 0
    assert done.stdout.startswith("wrote 20 samples")


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_no_room_for_the_output(packed: Path, unbuffered: str) -> None:
    """A full disk under stdout is an error like others, whether Python buffers it or not."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        for words in (["info", packed], ["--help"]):
            done = child_processes.run(command(*words), stdout=full, env=env)
            assert done.returncode == 1
            assert re.fullmatch(r"error: .*No space left on device\n", done.stderr)


#: Commands that say something on either stream, their exit codes, and the streams that are closed.
CODES = {
    "convert {photos} {out} --skip-bad": (3, ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")),
    "convert {photos} {out} --resume --shards no": (2, ("2>&-", "<&- >&- 2>&-")),
    "verify {bad}": (1, (">&-", "<&- >&- 2>&-")),
    "bench {packed} --seconds 0.1": (0, (">&-", "<&- >&- 2>&-")),
}


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(
    closed: str, photos: Path, packed: Path, tmp_path: Path
) -> None:
    """With stdin, stdout and stderr closed (a daemon, a cron job), alone or together, a command
    does its work, and its exit code is the documented one."""
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "cat" / "bad.jpg").write_text("text")
    names = {
        "photos": tmp_path / "photos",
        "out": tmp_path / "out.h5",
        "packed": packed,
        "bad": damaged(packed, tmp_path / "bad.h5", 3),
    }
    for words, code in [(words, code) for words, (code, how) in CODES.items() if closed in how]:
        whole = command(*words.format(**names).split())
        done = child_processes.run(["sh", "-c", f'exec "$@" {closed}', "sh", *whole])
        assert (words, done.returncode) == (words, code)
        if code != 2 and closed in ("<&-", "2>&-"):
            assert done.stdout
    assert run("verify", names["out"]).exit_code == 0


def test_no_file_gets_the_descriptor_of_a_closed_stream(tmp_path: Path) -> None:
    """What a library prints on a closed stderr goes into no file that the command has open; so in
    its child processes."""
    code = (
        "import os, subprocess, sys\n"
        "from asyncreader.cli.terminal import open_standard_streams\n"
        "open_standard_streams()\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "print('words'), print('words', file=sys.stderr), sys.stdin.read()\n"
        "[os.write(number, b'words') for number in (1, 2)]\n"
        "there = 'import os; [os.fstat(number) for number in range(3)]'\n"
        "subprocess.run([sys.executable, '-c', there], check=True)\n"
        "os.write(file, b'data')\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "file")]
    done = child_processes.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words])
    assert done.returncode == 0
    assert (tmp_path / "file").read_bytes() == b"data"


def test_convert_without_stderr(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that has no sys.stdout and sys.stderr packs, with and without progress."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    converters.convert(photos, tmp_path / "a.h5")
    with terminal.Progress("packing", quiet=False) as progress, terminal.Status(False) as status:
        status("packing")
        converters.convert(photos, tmp_path / "b.h5", progress=progress)
    terminal.say("done")
    assert (tmp_path / "b.h5").exists()


@pytest.mark.slow
def test_no_room_for_the_report(photos: Path, tmp_path: Path) -> None:
    """Where the disk under stdout is full, convert ends with 1 and says that the set is packed."""
    with open("/dev/full", "w") as full:
        for words in ([], ["--json"]):
            target = tmp_path / f"{len(words)}.h5"
            done = child_processes.run(command("convert", photos, target, *words), stdout=full)
            assert done.returncode == 1
            assert "the dataset is written, but the report cannot be printed" in done.stderr
            assert run("verify", target).exit_code == 0


@pytest.mark.slow
def test_ctrl_c_while_packing(photos: Path, tmp_path: Path) -> None:
    """Ctrl-C ends a conversion with 130 and one line, and leaves nothing behind."""
    patch = (
        "import asyncreader.cli.main, asyncreader.cli.terminal, time\n"
        "def wait(self, done, total):\n"
        "    print('begun', flush=True)\n"
        # CPython notes a signal and looks for it between two instructions: one that comes just
        # before a long sleep is seen after it
        "    while True: time.sleep(0.01)\n"
        "asyncreader.cli.terminal.Progress.__call__ = wait\n"
    )
    words = command("convert", photos, tmp_path / "out.h5", before=patch)
    with child(words, stdout=-1, stderr=-1, text=True) as done:
        assert done.stdout is not None
        assert done.stdout.readline() == "begun\n"
        done.send_signal(signal.SIGINT)
        _, err = ended(done)
    assert (done.returncode, err) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_while_training() -> None:
    """Ctrl-C in the middle of the demo, with workers running, ends at once in the same way."""
    with child(command("demo"), stdout=-1, stderr=-1, text=True) as done:
        assert done.stdout is not None
        assert any("epoch  1/" in line for line in done.stdout)
        done.send_signal(signal.SIGINT)
        _, err = ended(done)
    assert (done.returncode, err) == (130, "interrupted\n")


def on_terminal(*words: str | Path, code: int = 0, **environment: str) -> str:
    """What a terminal of 80 columns gets from the command, which exits with ``code``."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    drop = {"COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"}
    env = {k: v for k, v in os.environ.items() if k not in drop}
    env |= {"TERM": "xterm-256color", **environment}
    parts = []
    with child(command(*words), stdout=theirs, stderr=theirs, env=env) as done:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
        os.close(ours)
        assert done.wait() == code
    return b"".join(parts).decode()


COLOUR = re.compile(r"\x1b\[[\d;]*3[0-9]")


@pytest.mark.parametrize(
    "environment",
    [{}, *(pytest.param(e, marks=pytest.mark.slow) for e in ({"NO_COLOR": "1"}, {"TERM": "dumb"}))],
)
def test_progress_on_a_terminal(photos: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """A terminal gets a bar with rate, in colours unless NO_COLOR; a dumb one gets lines."""
    text = on_terminal("convert", photos, tmp_path / "out.h5", **environment)
    assert bool(COLOUR.search(text)) is (environment == {})
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)
    drawn = re.search(r"converting \S+ 20 of 20, [\d,.]+/s, finishing", plain)
    assert bool(drawn) is ("TERM" not in environment)
    assert "wrote 20 samples" in plain
    bars = [line for line in re.split(r"[\r\n]+", plain) if line.startswith("converting")]
    assert all(len(bar) <= 80 for bar in bars)


@pytest.mark.slow
def test_long_lines_are_broken_between_words() -> None:
    """An error wider than the terminal keeps its words whole; its further lines are indented."""
    assert on_terminal("info", "/nowhere", code=1) == "error: no such file or folder [/nowhere]\r\n"
    text = on_terminal("convert", "nowhere", "x.h5", "--size", "0xx", "--quiet", code=2)
    first, second, end = text.split("\r\n")
    assert first.startswith("error: Invalid value for '--size': '0xx' is not HxW|N")
    assert len(first) <= 80
    assert second.startswith("  ")
    assert end == ""
    assert f"{first} {second.strip()}".endswith("see 'asyncreader convert --help'")


@pytest.mark.slow
def test_output_elsewhere_is_plain(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal there are no escape codes, and the table keeps to 80 columns."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for words in (["info", packed], ["bench", packed, "--seconds", "0.02"]):
        done = child_processes.run(command(*words))
        assert "\x1b" not in done.stdout + done.stderr
        table_lines = [line for line in done.stdout.splitlines() if str(packed) not in line]
        assert max(map(len, table_lines)) <= 80


def completed(line: str, folder: Path) -> list[str]:
    """What bash itself makes of a Tab at the end of ``line``, in ``folder``."""
    script = """
    compopt() { [[ $2 == default ]] && COMPREPLY+=($(compgen -f -- "${COMP_WORDS[-1]}")); true; }
    eval "$(_ASYNCREADER_COMPLETE=bash_source "$PYTHON" -m asyncreader)"
    COMP_WORDS=($1) COMPREPLY=()
    [[ $1 == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _asyncreader_completion asyncreader
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    program = folder / "bin" / "asyncreader"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m asyncreader "$@"\n')
    program.chmod(0o755)
    env = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
    }
    words = ["bash", "--norc", "-c", script, "bash", line]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_tab_completes_in_bash(tmp_path: Path) -> None:
    """bash completes commands, options and their values, and files."""
    (tmp_path / "train.h5").write_text("")
    for line, found in {
        "asyncreader ": COMMANDS,
        "asyncreader ver": ["verify"],
        "asyncreader convert a b --enc": ["--encoding"],
        "asyncreader convert a b --encoding j": ["jpeg"],
        "asyncreader info tr": ["train.h5"],
    }.items():
        assert completed(line, tmp_path) == found, line


def test_text_that_looks_like_a_number() -> None:
    """A field, a path and a trace may be called by a number; a number of samples stays one."""
    words = ["data_field=1", "labelsPath=2", "trace=3", "njob=4", "labels_field=null"]
    assert params_of(None, None, words) == {  # type: ignore[arg-type]
        "data_field": "1",
        "labelsPath": "2",
        "trace": "3",
        "njob": 4,
        "labels_field": None,
    }


# -- the package ---------------------------------------------------------------------------------


def test_public_names_are_all_there() -> None:
    """Names loaded late are the real ones, listed by dir(); others are an AttributeError."""
    from asyncreader.reader import AsyncReader

    for name in asyncreader.__all__:
        assert hasattr(asyncreader, name)
    assert asyncreader.AsyncReader is AsyncReader
    assert set(asyncreader.__all__) <= set(dir(asyncreader))
    with pytest.raises(AttributeError, match="no attribute 'AsyncRaeder'"):
        _ = asyncreader.AsyncRaeder


def test_commands_are_those_of_the_contract() -> None:
    """The commands that exist today; each is a plain click command."""
    assert COMMANDS == ["bench", "convert", "demo", "doctor", "info", "preview", "verify"]
    assert all(isinstance(command, click.Command) for command in cli.cli.commands.values())


def test_what_cannot_be_read_is_no_misuse(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only opening a file says whether it can be read: that it cannot is a failure, 1, not 2."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run("info", packed).exit_code == 0
    os.mkfifo(tmp_path / "set.h5")
    assert run("info", tmp_path / "set.h5").exit_code == 1


# -- names of users' files -----------------------------------------------------------------------


def beside(folder: Path, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Python run in a folder with a ``converters.py`` and a module that breaks."""
    (folder / "converters.py").write_text("def to_grey(image):\n    return image\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([path, str(ROOT)] if path else [str(ROOT)])}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["convert a b.h5", "demo", "doctor a.h5"])
def test_a_converters_of_the_user_is_named(tmp_path: Path, command: str) -> None:
    """Another ``converters`` that comes first on the path is named, with what to do."""
    words = ("-m", "asyncreader", *command.split())
    done = beside(tmp_path, *words, path=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: another module called converters comes first")
    assert str(tmp_path / "converters.py") in done.stderr
    assert done.stderr.count("\n") == 1


def test_tab_where_a_converters_of_the_user_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tab prints no traceback where another ``converters`` hides ours: it offers the options that
    all commands have."""
    monkeypatch.setenv("_ASYNCREADER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "asyncreader convert a b --")
    monkeypatch.setenv("COMP_CWORD", "4")
    done = beside(tmp_path, "-m", "asyncreader", path=str(tmp_path))
    assert done.stderr == ""
    assert "--json" in done.stdout
    assert "--size" not in done.stdout


@pytest.mark.slow
def test_python_m_does_not_take_a_converters_of_the_user(tmp_path: Path, photos: Path) -> None:
    """``python -m asyncreader`` does not look for modules where it is run."""
    words = ("convert", str(photos), str(tmp_path / "a.h5"), "--size", "8x8", "--quiet")
    done = beside(tmp_path, "-m", "asyncreader", *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.h5").exists()


@pytest.mark.parametrize(
    "line", ["from asyncreader import AsyncReader", "from asyncreader.faces import ParaLoad"]
)
def test_an_attribute_error_of_a_package_is_shown(tmp_path: Path, line: str) -> None:
    """Where a module that ours imports fails with AttributeError, the error says so, and where; it
    is not "cannot import name". A name that is not ours is still unknown."""
    (tmp_path / "numpy.py").write_text("import os\nos.no_such_thing\n")
    done = beside(tmp_path, "-c", line)
    assert "cannot import name" not in done.stderr
    assert "ImportError" in done.stderr
    assert "no_such_thing" in done.stderr.splitlines()[-1]
    assert "numpy.py" in done.stderr
    for module in ("asyncreader", "asyncreader.faces"):
        with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
            exec(f"from {module} import nonsense")
