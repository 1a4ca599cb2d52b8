"""What is done with a whole batch: a stage is one class, and its name is in stats and trace."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncreader import AsyncReader
from asyncreader.pipeline import build
from asyncreader.pipeline.slots import BatchArrays, BatchLayout
from asyncreader.pipeline.stages import Stage, Trial, stages_of
from asyncreader.sampling.schedule import BatchPlan

COUNT, CLASSES = 22, 5
DATA = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(COUNT)[:, None] % CLASSES

Add = Callable[..., None]


class Nothing:
    """Leaves batches as they are."""

    name = "nothing"

    def layout(self, given: BatchLayout, trial: Trial) -> BatchLayout:
        return given

    def run(self, given: BatchArrays, made: BatchArrays, plan: BatchPlan) -> None:
        assert made.data[0].shape[0] == plan.indices.size


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Add:
    """Puts stages before those that the parameters ask for."""

    def added(*stages: Stage) -> None:
        monkeypatch.setattr(build, "stages_of", lambda *of: (*stages, *stages_of(*of)))

    return added


def served(**params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Data and labels of an epoch."""
    given = {"data": DATA, "labels": LABELS, "batch_size": 4, "layout": "NHWC", **params}
    with AsyncReader(given, copy=True) as reader:
        return list(reader)


def equal(found: list[tuple[np.ndarray, np.ndarray]], expected: Any) -> bool:
    """Whether two epochs are the same bytes."""
    return all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("last", ["drop", "short"])
def test_a_stage_that_does_nothing_is_one_class(add: Add, tmp_path: Path, last: str) -> None:
    """Batches are those of a reader without it, in the same memory, and its seconds are in stats,
    trace and repr under its name."""
    expected = served(last_batch=last)
    add(Nothing())
    assert equal(served(last_batch=last), expected)
    trace = tmp_path / "trace.json"
    with AsyncReader(data=DATA, labels=LABELS, batch_size=4, trace=trace) as reader:
        for slot in reader._ring.slots:
            assert slot.made[1].data[0] is slot.made[0].data[0]
        assert len(list(reader)) == 5
        stats = reader.stats()
    assert stats.seconds["nothing"] > 0
    assert "nothing 0." in repr(stats)
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["name"] == "nothing" for event in events) >= 5
