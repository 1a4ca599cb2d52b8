"""Runs attacks in a child process; checks the process, the canaries and the files afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpus import Attack, Corpus

TESTS = Path(__file__).resolve().parents[2]
#: Seconds after which the child process is taken to hang.
HANG = 60.0


@dataclass(frozen=True)
class Result:
    """Of one attack in one way. ``outcome``: "served", "refused", or what must not be."""

    way: str
    outcome: str
    said: str
    seconds: float


class AttackRunner:
    """Runs the child process that opens attacks, and a new one when it dies. A context manager."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._process: subprocess.Popen[str] | None = None
        self._log = corpus.root / "child.log"

    def __enter__(self) -> AttackRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._corpus.close()

    def _start(self) -> subprocess.Popen[str]:
        folders = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(folders),
            "HDF5_PLUGIN_PATH": str(self._corpus.plugins),
            "MALLOC_ARENA_MAX": "2",  # each reserves addresses, which are what is limited
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "200",
            "TMPDIR": str(self._corpus.temporary),
            "XDG_CACHE_HOME": str(self._corpus.cache),
        }
        with open(self._log, "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "faults.hostile.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        for way in ("read", "info", "verify", "convert", "drop_in"):
            out = self._corpus.root / "warm"
            out.mkdir()
            warm = self._ask(way, str(self._corpus.base("raw.h5")), {}, {"out": str(out)})
            shutil.rmtree(out)
            assert warm["outcome"] == "served", warm
        assert self._ask("limit", "", {}, {})["outcome"] == "limited"
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.kill()
            process.wait()
            process.stdout.close()

    def _ask(
        self, way: str, path: str, params: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"way": way, "path": path, "params": params, "options": options}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], HANG)
        line = process.stdout.readline() if ready else ""
        if line:
            result: dict[str, Any] = json.loads(line)
            return result
        if not ready:
            process.kill()
        code = process.wait()
        self._end()
        said = "it hung" if not ready else f"it died: {signal_name(code)}"
        return {
            "outcome": "hang" if not ready else "signal",
            "said": f"{said}\n{self._log.read_text(errors='replace')[-2000:]}",
            "seconds": HANG if not ready else 0.0,
        }

    def settings(self) -> str:
        """ "same", or the settings of the child process that were changed."""
        if self._process is None:
            self._start()
        said: str = self._ask("settings", "", {}, {})["outcome"]
        return said

    def run(self, attack: Attack, ways: tuple[str, ...]) -> Iterator[Result]:
        """Make an attack, open it in each way, and check what must not be touched."""
        made, folder = self._corpus.prepare(attack)
        before = [snapshot(self._corpus.outside), snapshot(folder)]
        for way in ways:
            if self._process is None:
                self._start()
            out = self._corpus.root / "out"
            out.mkdir()
            path = str(made.path)
            options = {**made.options, "out": str(out)}
            found = self._ask(way, path, dict(made.params), options)
            outcome, said = found["outcome"], found["said"]
            left = sorted(entry.name for entry in out.iterdir())
            if outcome == "refused" and left:
                outcome, said = "left behind", str(left)
            shutil.rmtree(out)
            if temporary := sorted(os.listdir(self._corpus.temporary)):
                outcome, said = "left behind", f"temporary files: {temporary}"
                remove(self._corpus.temporary)
                self._corpus.temporary.mkdir()
            if self._corpus.touched.exists():
                self._corpus.touched.unlink()
                self._end()
                outcome, said = "plugin loaded", said
            if [snapshot(self._corpus.outside), snapshot(folder)] != before:
                outcome, said = "files changed", said
                before = [snapshot(self._corpus.outside), snapshot(folder)]
            yield Result(way, outcome, said, found["seconds"])
        remove(folder)


def signal_name(code: int) -> str:
    """ "SIGSEGV", or the exit code."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All files below ``folder``: kind, size, time, and content of small ones."""
    found: dict[str, tuple[Any, ...]] = {}
    for parent, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            path = os.path.join(parent, name)
            try:
                facts = os.lstat(path)
            except OSError:  # deeper than a path can say
                continue
            digest = ""
            if stat.S_ISREG(facts.st_mode) and facts.st_size < 1 << 20:
                with open(path, "rb") as file:
                    digest = hashlib.sha256(file.read()).hexdigest()
            found[os.fsdecode(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, digest)
    return found


def remove(folder: Path) -> None:
    """Remove an attack's folder, however deep it is."""
    subprocess.run(["rm", "-rf", "--", str(folder)], check=True)
