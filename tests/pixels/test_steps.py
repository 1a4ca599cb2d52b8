"""Steps: done with each sample between its crop and its row, in the worker that reads it."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fakes import CLASSES, packed, pictures, write_hdf5
from source_contract import MODES

from asyncreader.pixels.specs import Row, Step
from asyncreader.sources import open_source
from asyncreader.testing.contract import assert_same, fill_rows, sized

COUNT = 24


@dataclass(frozen=True)
class Nothing(Step):
    """A step that does nothing."""

    random: bool = False
    last: bool = False
    name: str = "nothing"

    def __call__(self, image: np.ndarray, row: Row) -> np.ndarray:
        return image


def images() -> np.ndarray:
    return np.stack(list(pictures(COUNT, (16, 12, 3))))


@pytest.fixture(params=["raw", "png", "files"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | list[str]:
    """A set of pictures, 16 x 12, raw or encoded, or in several files."""
    made = list(images())
    if request.param != "files":
        return write_hdf5(tmp_path / "train.h5", packed(made, request.param))
    labels = (np.arange(COUNT) % len(CLASSES))[:, None]
    parts = {"a": slice(9), "b": slice(9, None)}
    return [
        write_hdf5(tmp_path / f"{name}.h5", packed(made[part], labels=labels[part]))
        for name, part in parts.items()
    ]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_does_nothing_changes_nothing(
    path: str | list[str], mode: str, last: bool
) -> None:
    """With a step, each way of filling gives the rows that it gives without."""
    source, wanted = open_source(path), sized(MODES[mode], images())
    records = np.array([3, 0, 7, 7, 20])
    plain = fill_rows(source, wanted, records)[0]
    stepped = fill_rows(source, replace(wanted, steps=(Nothing(last=last),)), records)[0]
    assert_same(stepped, plain, 1e-6 if plain.dtype.kind == "f" else 0)
    source.close()
