"""Steps: done with each sample between its crop and its row, in the worker that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fakes import CLASSES, packed, pictures, write_hdf5

from asyncreader import AsyncReader
from asyncreader.params import ReaderParams
from asyncreader.pixels.steps import Array, ImageShape, Row
from asyncreader.sources import open_source
from asyncreader.testing.contract import MODES, assert_same, fill_rows, sized

COUNT = 24


@dataclass(frozen=True)
class Nothing:
    """A step that does nothing."""

    random: bool = False
    last: bool = False
    name: str = "nothing"

    def shape(self, given: ImageShape) -> ImageShape:
        return given

    def __call__(self, image: Array, row: Row) -> Array:
        return image


@dataclass(frozen=True)
class Marked(Nothing):
    """A step that writes what it is told of its sample into the first pixels."""

    random: bool = True

    def __call__(self, image: Array, row: Row) -> Array:
        assert row.label is not None
        image[0, 0, 0] = row.record
        image[0, 1, 0] = row.position
        image[0, 2, 0] = row.label[0]
        image[0, 3, 0] = row.rng.integers(0, 256)
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


@pytest.fixture
def with_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives all readers these steps, as a parameter will."""
    plain = ReaderParams.wanted.fget
    assert plain is not None

    def give(*steps: Nothing) -> None:
        monkeypatch.setattr(
            ReaderParams, "wanted", property(lambda self: replace(plain(self), steps=steps))
        )

    return give


def served(path: object, **params: object) -> dict[int, np.ndarray]:
    """Each sample of an epoch by its record number, as a reader serves it."""
    found: dict[int, np.ndarray] = {}
    with AsyncReader(path=path, layout="NHWC", shuffle=True, **params) as reader:
        for batch in reader:
            found |= zip(batch.indices.tolist(), batch.data.copy(), strict=True)
    return found


def test_what_a_step_is_told(path: str | list[str], with_steps: Callable[..., None]) -> None:
    """A step knows the record, the position in the epoch, the label and a random generator of its
    sample, whatever the threads and ranks."""
    with_steps(Marked())
    alone = served(path, batch_size=8)
    assert len(alone) == COUNT
    order = sorted(alone, key=lambda record: alone[record][0, 1, 0])
    with AsyncReader(path=path, batch_size=COUNT, shuffle=True) as reader:
        assert next(iter(reader)).indices.tolist() == order
    for record, image in alone.items():
        assert image[0, 0, 0] == record
        assert image[0, 2, 0] == record % len(CLASSES)
    assert len({int(image[0, 3, 0]) for image in alone.values()}) > COUNT // 3
    ranks = [served(path, batch_size=4, rank=rank, world_size=2, nthread=3) for rank in (0, 1)]
    assert ranks[0].keys().isdisjoint(ranks[1])
    for record, image in (ranks[0] | ranks[1]).items():
        np.testing.assert_array_equal(image, alone[record])
