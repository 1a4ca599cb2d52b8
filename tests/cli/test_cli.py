"""The command as people meet it: what it prints and where, its exit codes, its manners."""

import fcntl
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
from pathlib import Path
from typing import Any

import child_processes
import h5py
import numpy as np
import pytest
from child_processes import child, ended
from command_sets import damaged, run
from project import ROOT

import asyncreader
from asyncreader.cli import main as cli
from asyncreader.cli import terminal

COMMANDS = ["bench", "convert", "demo", "doctor", "info", "preview", "verify"]

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


# -- help ------------------------------------------------------------------------------------------


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
    assert sorted(cli.cli.commands) == COMMANDS


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


# -- errors ----------------------------------------------------------------------------------------


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


def test_an_empty_path_is_no_path() -> None:
    """A path that a shell's empty variable leaves empty is named as what it is not."""
    assert "'' is not a path; see 'asyncreader info --help'" in run("info", "").stderr


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


# -- pipes, signals, terminals ---------------------------------------------------------------------


SLOW = ("info {}", "info {} --json", "--version")


@pytest.mark.parametrize(
    "words", ["verify {}", *(pytest.param(words, marks=pytest.mark.slow) for words in SLOW)]
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


def completed(line: str, folder: Path) -> list[str]:
    """What bash is handed at a Tab behind ``line``, in ``folder``: kinds and values. What lies in
    the folder comes first on the path."""
    asked = {"_ASYNCREADER_COMPLETE": "bash_complete", "COMP_WORDS": line}
    env = {**os.environ, **asked, "COMP_CWORD": str(line.count(" "))}
    env["PYTHONPATH"] = os.pathsep.join((str(folder), str(ROOT)))
    words = [sys.executable, "-m", "asyncreader"]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_tab_completes_in_bash(tmp_path: Path) -> None:
    """bash completes commands, options and their values, and files."""
    for line, found in {
        "asyncreader ": [f"plain,{name}" for name in COMMANDS],
        "asyncreader ver": ["plain,verify"],
        "asyncreader convert a b --enc": ["plain,--encoding"],
        "asyncreader convert a b --encoding j": ["plain,jpeg"],
        "asyncreader info tr": ["file,tr"],
    }.items():
        assert completed(line, tmp_path) == found, line


# -- the package -----------------------------------------------------------------------------------


def test_what_cannot_be_read_is_no_misuse(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only opening a file says whether it can be read: that it cannot is a failure, 1, not 2."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run("info", packed).exit_code == 0
    os.mkfifo(tmp_path / "set.h5")
    assert run("info", tmp_path / "set.h5").exit_code == 1


# -- names of users' files -------------------------------------------------------------------------


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
    assert set(asyncreader.__all__) <= set(dir(asyncreader))
    with pytest.raises(AttributeError, match="no attribute 'AsyncRaeder'"):
        _ = asyncreader.AsyncRaeder
