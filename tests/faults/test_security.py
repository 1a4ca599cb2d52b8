"""SECURITY.md and docs/reliability.md say what the code does: numbers, commands, figures."""

from __future__ import annotations

import re

from project import ROOT

from asyncreader.pixels import codec
from asyncreader.sources.hdf5 import checks
from faults.hostile import all_attacks
from faults.test_cases import ALL, PAGE

TEXT = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
FIGURES = " ".join(PAGE.read_text(encoding="utf-8").split())


def test_numbers() -> None:
    """The limits that are named are the limits of the code."""
    assert f"{codec.MAX_PIXELS:,} pixels" in TEXT
    assert f"may have {codec.MAX_SCANS} scans" in TEXT
    assert f"larger than {checks.BOMB_BYTES >> 20} MiB" in TEXT
    assert f"1/{checks.BOMB_RATIO} of a table" in TEXT
    kinds = {"WEBP": "WebP"}
    assert ", ".join(kinds.get(kind, kind) for kind in codec.PILLOW_FORMATS) in TEXT
    stated = re.search(r"makes some (\d+) attacks", FIGURES)
    assert stated is not None
    assert 0 <= len(all_attacks()) - int(stated[1]) < 100


def test_commands() -> None:
    """The commands that the page names have their files, and the marks of the table are there."""
    for command in re.findall(r"(?:pytest|python) (\S+\.py)", FIGURES):
        assert (ROOT / command).exists()
    assert "attacks" in {case.name for case in ALL}
    assert "pytest tests/faults/test_cases.py --long -k attacks" in FIGURES
    begin, end = (FIGURES.index(f"figures of the long run: {word}") for word in ("begin", "end"))
    assert begin < end


def test_table() -> None:
    """The table has a row for each case, with what it promises."""
    for case in ALL:
        assert f"| {case.row}: {case.promise} |" in FIGURES, case.name


def test_length() -> None:
    """SECURITY.md is short enough to be read: 70 lines at most."""
    assert len((ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()) <= 70
