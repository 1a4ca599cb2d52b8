"""Proof that the harness of damage sees what it is there to see."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from child_processes import Ended

from faults.case import tally
from faults.damage import read_damaged
from faults.damage.case_damage import trials
from faults.damage.trials import Job
from faults.sets import BITS, KnownSet, build, number_in, painted


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> KnownSet:
    return build(["LMDB raw"], tmp_path_factory.mktemp("faults"))["LMDB raw"][0]


def test_pictures_tell_their_number() -> None:
    """A painted picture shows its number, and another where it is another's."""
    for number in (0, 1, 511, (1 << BITS) - 1):
        assert number_in(painted(number, 16, 1)) == number


@pytest.mark.slow
def test_wrong_samples_are_seen(known: KnownSet) -> None:
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


@pytest.mark.parametrize(("how", "verdict"), [("SIGSEGV", "signal"), ("hang", "hang")])
def test_a_killed_or_stuck_process_is_an_outcome(how: str, verdict: str) -> None:
    """The trial that killed or stopped its process is named; the others go on."""

    def ask(request: tuple[dict[str, Any], int]) -> dict[str, Any]:
        if request[1] == 2:
            raise Ended(how, "its last words")
        return {"did": "", "verdict": "right", "said": "", "seconds": 0.25}

    child: Any = SimpleNamespace(ask=ask)
    figures = tally("", trials(child, Job("flips", [], "", 0, ""), 4), "s of CPU")
    assert figures.counts == {"right": 3, verdict: 1}
    assert figures.broken == (f"trial 2: {verdict}: {how}: its last words",)
    assert figures.note == "slowest 0.25 s of CPU"
