"""All fault cases in their short form; with ``--long`` in the one that docs/reliability.md shows.

``--figures`` writes a row of that page for each case that has kept its promise. The pages say of
the cases what the code does.
"""

import faulthandler
import re
from pathlib import Path

import pytest
from project import ROOT

from asyncreader.pixels import codec
from asyncreader.sources.hdf5 import checks
from faults import case_attacks
from faults.case import SEED, Case, Figures, outcomes, with_row
from faults.damage import case_damage
from faults.hostile import all_attacks
from faults.programs import case_exits, case_full, case_kill, case_long_use

PAGE = ROOT / "docs" / "reliability.md"
CASES: tuple[Case, ...] = (
    *case_damage.CASES,
    *case_exits.CASES,
    *case_full.CASES,
    *case_kill.CASES,
    *case_long_use.CASES,
)
#: The short form of the last is each attack by itself: test_attacks.py.
ALL = (*CASES, *case_attacks.CASES)
LONG = [pytest.param(case, marks=pytest.mark.long) for case in case_attacks.CASES]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all cases: the sets of damage are packed once."""
    return tmp_path_factory.mktemp("faults")


@pytest.mark.faults
@pytest.mark.parametrize("case", [*CASES, *LONG], ids=lambda case: case.name)
def test_no_promise_is_broken(
    case: Case,
    long: bool,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    """A case keeps its promise on everything that it is tried on; how fast programs end is measured
    by the long form."""
    if long:
        faulthandler.cancel_dump_traceback_later()  # a case may take half an hour
    else:
        monkeypatch.setattr(case_exits, "LIMIT", float("inf"))
    rounds = case.long if long else case.short
    folder = scratch / case.name
    folder.mkdir()
    lines: list[Figures] = []
    for line in case.run(rounds, SEED, folder):
        print(f"{line.what}: {line.trials:,} trials: {outcomes(line.counts)} {line.note}")
        lines.append(line)
    assert lines
    for line in lines:
        assert not line.broken, f"{line.what}: {line.broken}"
        assert sum(line.counts.values()) > 0
    if isinstance(case, case_damage.Damage):
        assert {line.what.split(",")[0] for line in lines} == set(case_damage.FORMATS)
        for line in lines:
            assert line.trials == rounds
            assert sum(line.counts.values()) - line.counts.get("right", 0) >= rounds // 4
    if pytestconfig.getoption("--figures"):
        PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), case, lines), encoding="utf-8")


def test_a_row_of_the_table() -> None:
    """A row says what a case was tried on, each part once, sums of trials and outcomes, and the
    largest of the notes; the rows of other cases stay. Each case has its row in the page."""
    case = CASES[0]
    lines = [
        Figures(f"HDF5 raw, {workers} workers", 1200, {"right": 1199, "refused": 1, "died": 0},
                note=f"slowest {seconds} s", peak=seconds)
        for workers, seconds in (("thread", 0.5), ("process", 1.25))
    ]  # fmt: skip
    page = f"a\n| {case.row}: old |\n| {CASES[1].row}: old |\n"
    assert with_row(page, case, lines) == (
        f"a\n| {case.row}: {case.promise} | HDF5 raw, thread workers, process workers | 2,400 | "
        f"2,398 right, 2 refused; slowest 1.25 s | 0 |\n| {CASES[1].row}: old |\n"
    )
    with pytest.raises(ValueError, match="unpack"):
        with_row("a\n", case, lines)
    text = PAGE.read_text(encoding="utf-8")
    assert len({one.name for one in ALL}) == len(ALL)
    assert all(text.count(f"\n| {one.row}: ") == 1 for one in ALL)


# -- what the pages say ---------------------------------------------------------------------------


TEXT = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
FIGURES = " ".join(PAGE.read_text(encoding="utf-8").split())


def test_numbers() -> None:
    """The limits that are named are the limits of the code."""
    assert f"{codec.MAX_PIXELS:,} pixels" in TEXT
    assert f"may have {codec.jpeg.MAX_SCANS} scans" in TEXT
    assert f"larger than {checks.BOMB_BYTES >> 20} MiB" in TEXT
    assert f"1/{checks.BOMB_RATIO} of a table" in TEXT
    kinds = {"WEBP": "WebP"}
    assert ", ".join(kinds.get(kind, kind) for kind in codec.headers.PILLOW_FORMATS) in TEXT
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
