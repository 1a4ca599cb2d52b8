"""The figures of a long run are published whole, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from faults.publish import (
    BEGIN,
    END,
    between_marks,
    joined,
    problems,
    row,
    sentence,
    table,
    things,
    together,
)
from faults.run import cases


def record(**changes: Any) -> dict[str, Any]:
    """Of a long run in which every case was tried on two things."""
    lines = [
        {
            "what": f"HDF5 raw, {workers} workers",
            "trials": 1200,
            "counts": {"right": 1199, "refused": 1, "died": 0},
            "broken": [],
            "note": f"slowest {seconds} s",
        }
        for workers, seconds in (("thread", 0.5), ("process", 1.25))
    ]
    told = [
        {"name": case.name, "row": case.row, "promise": case.promise, "figures": lines}
        for case in cases()
    ]
    machine = {"cores": "2", "python": "3.11", "h5py": "3 (HDF5 2)", "lmdb": "1 (LMDB 0.9)"}
    return {
        "date": "2026-11-21", "form": "long", "rounds": None, "machine": machine, "cases": told,
    } | changes  # fmt: skip


def test_a_line_for_each_case() -> None:
    """What it was tried on, each once; sums of trials and outcomes; the largest of the notes."""
    made = record()
    case = {**made["cases"][0], "row": "flips", "promise": "none wrong"}
    assert row(case) == (
        "| flips: none wrong | HDF5 raw, thread workers, process workers | 2,400 | 2,398 right, "
        "2 refused; slowest 1.25 s | 0 |\n"
    )
    assert table(made).count("\n| ") == len(cases()) + 1
    assert "4,800 damaged" not in sentence(made)
    assert "7,200 damaged files and 2,400 truncated ones" in " ".join(sentence(made).split())
    assert max(map(len, sentence(made).splitlines())) <= 100


def test_runs_of_some_cases_are_put_together() -> None:
    """Records of parts of the cases are the record of all; twice a case, or another machine, is an
    error."""
    whole = record()
    first = {**whole, "cases": whole["cases"][3:]}
    second = {**whole, "cases": whole["cases"][:3]}
    assert together([first, second]) == together([whole]) == whole
    with pytest.raises(ValueError, match="a case is in two records"):
        together([whole, second])
    with pytest.raises(ValueError, match="differ in their machine"):
        together([first, {**second, "machine": {}}])


def test_things_and_notes() -> None:
    """Notes of one kind are one: counts are added, of others the largest stands; numbers of
    several ways are ranges."""
    notes = ["", "slowest 0.2 s (a)", "72 attacks", "slowest 1.3 s (b)", "8 attacks", "x"]
    assert joined(notes) == ["slowest 1.3 s (b)", "80 attacks", "x"]
    whats = ["raw: a write, all of 10", "png: a write, all of 7", "png: disks, 60 of 90"]
    assert things([{"what": what} for what in whats]) == (
        "raw, png; a write, all of 7-10; disks, 60 of 90"
    )


def test_what_is_not_published() -> None:
    """A short form, fewer rounds, a missing case and a broken promise are named."""
    assert problems(record()) == []
    assert problems(record(form="short", rounds=3)) == [
        "it is the short form",
        "it has 3 rounds of each case",
    ]
    made = record()
    made["cases"][0]["figures"][0]["broken"] = ["seed 5 hung"]
    assert "HDF5 raw, thread workers: seed 5 hung" in problems(made)[0]
    last = made["cases"].pop()
    assert problems(made)[0] == f"cases are missing: {last['name']}"


def test_between_marks() -> None:
    """Only what stands between the marks is replaced."""
    text = f"a\n{BEGIN}old\n{END}b\n"
    assert between_marks(text, "new\n") == f"a\n{BEGIN}new\n{END}b\n"
    for wrong in ("a", text + text, BEGIN):
        with pytest.raises(ValueError, match="no single pair of marks"):
            between_marks(wrong, "new")
