"""Whatever is done to the bytes of a foreign set, only our own typed errors come out."""

from __future__ import annotations

import warnings
from pathlib import Path

import fuzz_layouts
import pytest
from fakes import data_file
from fuzz_layouts import LAYOUTS, Damaged

from asyncreader import SourceError
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


@pytest.mark.parametrize(
    "layout", ["Caffe", "pyxis", "LSUN", "vlen", "our-HDF5", "our-LMDB", "our-gzip"]
)
def test_truncations(tmp_path: Path, layout: str) -> None:
    """A file cut anywhere is refused when it is opened: no signal, no short set."""
    path = LAYOUTS[layout](tmp_path)
    file = data_file(path)
    whole = file.read_bytes()
    for part in (0, 0.01, 0.1, 0.5, 0.9, 0.999):
        file.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(SourceError):
            open_source(path)
