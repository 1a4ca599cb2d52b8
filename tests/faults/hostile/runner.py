"""Runs attacks in a child process; checks the process, the canaries and the files afterwards."""

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child_processes import Ended, Watched

from .corpus import Attack, Corpus


@dataclass(frozen=True)
class Result:
    """Of one attack in one way. ``outcome``: "served", "refused", or what must not be."""

    way: str
    outcome: str
    said: str
    seconds: float


class AttackRunner(Watched):
    """The child process that opens attacks, and a new one when it dies."""

    def __init__(self, corpus: Corpus) -> None:
        environment = {
            "HDF5_PLUGIN_PATH": str(corpus.plugins),
            "MALLOC_ARENA_MAX": "2",  # each reserves addresses, which are what is limited
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "200",
            "TMPDIR": str(corpus.temporary),
            "XDG_CACHE_HOME": str(corpus.cache),
        }
        super().__init__("-m", "faults.hostile.child", env=environment)
        self._corpus = corpus

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._corpus.close()

    def start(self) -> None:
        """Start a child, load all that it needs, and limit its memory."""
        super().start()
        for way in ("read", "info", "verify", "convert", "drop_in"):
            out = self._corpus.root / "warm"
            out.mkdir()
            warm = self._ask(way, str(self._corpus.base("raw.h5")), {}, {"out": str(out)})
            shutil.rmtree(out)
            assert warm["outcome"] == "served", warm
        assert self._ask("limit", "", {}, {})["outcome"] == "limited"

    def _ask(
        self, way: str, path: str, params: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """What came of a request; a child that ends or hangs is an outcome."""
        request = {"way": way, "path": path, "params": params, "options": options}
        try:
            result: dict[str, Any] = self.ask(request)
        except Ended as end:
            outcome = "hang" if end.how == "hang" else "signal"
            return {"outcome": outcome, "said": f"{end.how}\n{end.said}", "seconds": 0.0}
        return result

    def settings(self) -> str:
        """ "same", or the settings of the child process that were changed."""
        said: str = self._ask("settings", "", {}, {})["outcome"]
        return said

    def run(self, attack: Attack, ways: tuple[str, ...]) -> Iterator[Result]:
        """Make an attack, open it in each way, and check what must not be touched."""
        made, folder = self._corpus.prepare(attack)
        before = [snapshot(self._corpus.outside), snapshot(folder)]
        for way in ways:
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
                self.close()
                outcome, said = "plugin loaded", said
            if [snapshot(self._corpus.outside), snapshot(folder)] != before:
                outcome, said = "files changed", said
                before = [snapshot(self._corpus.outside), snapshot(folder)]
            yield Result(way, outcome, said, found["seconds"])
        remove(folder)


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
