"""The short form of the damage cases, and proof that the harness sees what it is there to see."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from child_processes import Watched

from faults import run
from faults.case import Figures, tally
from faults.damage import read_damaged
from faults.damage.case_damage import CASES, FORMATS, trials
from faults.damage.trials import Job
from faults.sets import BITS, KnownSet, build, number_in, painted


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose sets are packed once for all tests here."""
    return tmp_path_factory.mktemp("faults")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_damaged_files(case: run.Case, scratch: Path) -> None:
    """No damage makes a wrong sample, a signal, a hang or an error that is not a typed one."""
    folder = scratch / case.name
    folder.mkdir()
    lines = list(case.run(case.short, run.SEED, folder))
    assert [line for line in lines if line.broken] == []
    assert {line.what.split(",")[0] for line in lines} == set(FORMATS)
    for line in lines:
        assert line.trials == case.short
        assert sum(line.counts.values()) - line.counts.get("right", 0) >= case.short // 4


@pytest.fixture(scope="module")
def known(scratch: Path) -> KnownSet:
    return build(["LMDB raw"], scratch / "sets")["LMDB raw"][0]


def test_pictures_tell_their_number() -> None:
    """A painted picture shows its number, and another where it is another's."""
    for number in (0, 1, 511, (1 << BITS) - 1):
        assert number_in(painted(number, 16, 1)) == number


def test_wrong_samples_are_seen(known: KnownSet, scratch: Path) -> None:
    """What the harness must find is found: other pixels, labels, order, counts, error types."""
    expected = read_damaged.Expected(known)
    path = Path(known.path)
    assert read_damaged.read(known, expected, path, "always", 1).verdict == "right"
    for name in ("data", "labels"):
        expected = read_damaged.Expected(known)
        getattr(expected, name).reshape(-1)[-1] += 1
        outcome = read_damaged.read(known, expected, path, "always", 1)
        assert outcome.verdict == "silent wrong"
        assert "159" in outcome.said
    expected = read_damaged.Expected(known)
    expected.data = expected.data[:-1]
    assert read_damaged.read(known, expected, path, "first", 1).verdict == "silent wrong"
    other = read_damaged.read(known, read_damaged.Expected(known), Path(known.other), "first", 1)
    assert other.verdict == read_damaged.OTHER_SET
    assert (
        read_damaged.read(known, expected, path / "none", "first", 1).verdict
        == "SourceNotFoundError"
    )
    del expected.data
    assert read_damaged.read(known, expected, path, "first", 1).verdict == "untyped"


def test_an_epoch_that_lacks_a_record_is_seen() -> None:
    """A record that never came, or came twice, is not right."""
    assert read_damaged.complete([np.array([0, 1]), np.array([2])], 3, 1).verdict == "right"
    assert read_damaged.complete([np.array([0, 1])], 3, 1).verdict == "short"
    assert read_damaged.complete([np.array([0, 1, 1])], 2, 1).verdict == "short"


CHILD = """
import os, signal, time
from child_processes import answer_requests
def answer(request):
    (job, number) = request
    if number == 2 and job["kind"] == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2 and job["kind"] == "hangs":
        time.sleep(60)
    return dict(did="", verdict="right", said="", seconds=0.25)
answer_requests(answer)
"""


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("dies", "signal"), pytest.param("hangs", "hang", marks=pytest.mark.slow)],
)
def test_a_killed_or_stuck_process_is_an_outcome(kind: str, verdict: str) -> None:
    """The trial that killed or stopped its process is named; the others go on in a new one."""
    with Watched("-c", CHILD, patience=4 if kind == "hangs" else 60) as child:
        jobs = [(Job("fine", [], "", 0, ""), 2), (Job(kind, [], "", 0, ""), 4)]
        found = [outcome for job, rounds in jobs for outcome in trials(child, job, rounds)]
    assert [one.verdict for one in found] == [*["right"] * 4, verdict, "right"]
    figures = tally("", found, "s of CPU")
    assert figures.counts == {"right": 5, verdict: 1}
    assert len(figures.broken) == 1
    assert figures.broken[0].startswith(f"trial 2: {verdict}")
    assert figures.note == "slowest 0.25 s of CPU"


def test_the_runner_writes_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a thing, the case named once, and exit code 1 when a promise was broken."""

    class Fake:
        name, row, promise, short, long = "fake", "a fault", "0 of it", 2, 5
        broken: tuple[str, ...] = ()

        def run(self, rounds: int, seed: int, scratch: Path) -> object:
            assert scratch.is_dir()
            yield Figures("one", rounds, {"right": rounds, "wrong": 0})
            yield Figures("two", rounds, {"right": seed}, self.broken, note="slowly")

    monkeypatch.setattr(run, "cases", lambda: [Fake()])
    record = tmp_path / "record.json"
    assert run.main(["--long", "--json", str(record), "--seed", "1234"]) == 0
    told = json.loads(record.read_text())
    assert (told["form"], told["seed"], told["cases"][0]["name"]) == ("long", 1234, "fake")
    assert [line["trials"] for line in told["cases"][0]["figures"]] == [5, 5]
    assert told["cases"][0]["figures"][1]["counts"] == {"right": 1234}
    Fake.broken = ("trial 3: wrong",)
    assert run.main(["--only", "fake"]) == 1
    assert "trial 3: wrong" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run.main(["--only", "nonsense"])


def test_every_case_is_registered() -> None:
    """The runner finds the cases by their files' names, each name once."""
    names = [case.name for case in run.cases()]
    assert {"flips", "structure", "live", "truncations"} <= set(names)
