"""Whatever is done to the bytes of a foreign set, only our own typed errors come out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import foreign_sets as foreign
import fuzz_layouts
import numpy as np
import pytest
from fuzz_layouts import IMAGES, LAYOUTS, Damaged

from asyncreader import AsyncReaderError
from asyncreader.sources import open_source

#: Rounds of each layout here; many more by the command that fuzz_layouts.py is.
ROUNDS = 24


@pytest.mark.parametrize("layout", LAYOUTS)
def test_damaged_at_random(tmp_path: Path, layout: str) -> None:
    """Damaged files are refused or read, and nothing else happens."""
    damaged = Damaged(layout, tmp_path)
    assert bool(damaged.values) == any(file.name == "data.mdb" for file in damaged.whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = [damaged.round(number) for number in range(ROUNDS)]
    assert any(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("import os\nos.kill(os.getpid(), 11)", "SIGSEGV"),
        ("raise ValueError('odd')", "ValueError: odd"),
        ("import pickle\npickle.loads(pickle.dumps(print))", "a pickle was read"),
        ("bytearray(5 << 30)", "MemoryError"),
    ],
)
def test_failures_are_noticed(said: str, code: str) -> None:
    """The command names the round of a signal, another exception, a pickle and too much memory."""
    program = (
        "import sys\nimport fuzz_layouts as fuzz\n"
        "def read(path, asked=[]):\n"
        "    asked.append(1)\n"
        "    if len(asked) != 3: return ''\n"
        + "".join(f"    {line}\n" for line in said.splitlines())
        + "fuzz.read_everything = read\nsys.exit(fuzz.main())\n"
    )
    refused, failures = fuzz_layouts.fuzz("LSUN", 4, ("-c", program))
    # the first read is of the whole set: rounds 0 and 1, and again after the new start
    assert refused == 0
    assert failures[0].startswith("LSUN, round 1:")
    assert code in failures[0]


def test_truncations(tmp_path: Path) -> None:
    """A file cut anywhere is refused when it is opened: no signal, no short set."""
    for layout in ("Caffe", "pyxis", "LSUN", "vlen"):
        folder = tmp_path / layout
        folder.mkdir()
        path = LAYOUTS[layout](folder)
        file = Path(path) / "data.mdb" if Path(path).is_dir() else Path(path)
        whole = file.read_bytes()
        for part in (0.1, 0.5, 0.9):
            file.write_bytes(whole[: int(len(whole) * part)])
            with pytest.raises(AsyncReaderError):
                open_source(path)


@pytest.mark.slow
def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """A hostile set cannot take much memory: claims are checked before anything is allocated."""
    sample = foreign.pyxis_sample({"input": IMAGES[0], "target": np.arange(3)})
    hostile = sample.replace(b"\x91\x03", b"\x91\x7f").replace(b"\xc4\x18", b"\xc4\xff")
    path = foreign.write_pyxis(tmp_path / "set", [sample] * 4 + [hostile] * 4)
    program = (
        "import resource, sys, json\n"
        "from asyncreader.sources import open_source\n"
        "from asyncreader import AsyncReaderError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    open_source(sys.argv[1])\n    said = ''\n"
        "except AsyncReaderError as exc:\n    said = str(exc)\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps([said, after - before]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    said, grown = json.loads(done.stdout)
    assert "0000000004" in said
    assert grown < 100_000  # kB
    shutil.rmtree(path)
