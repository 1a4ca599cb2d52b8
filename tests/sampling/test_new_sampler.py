"""A sampler of one's own: a class in one file, and all else works with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from painted import COUNT, IMAGES, LABELS, open_reader
from reader_contract import ReaderContract, Served

from asyncreader import ParamsError
from asyncreader.sampling.samplers import Sampler, Storage, Subset, Within


@dataclass(frozen=True)
class Twice(Sampler):
    """Each record twice in a row, the first one first."""

    kind = "twice"
    population: int
    seed: int = 0

    @property
    def length(self) -> int:
        return 2 * self.population

    def records(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        return positions // 2

    def identity(self) -> Mapping[str, str | int | None]:
        return {**super().identity(), "times": 2}


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers draw with it."""

    def chosen(
        shuffle: Any,
        seed: int,
        window: int,
        storage: Storage,
        subset: Subset | None = None,
        windows: Any = None,
    ) -> Sampler:
        return Twice(storage.count, seed)

    monkeypatch.setattr("asyncreader.pipeline.build.sampler_of", chosen)


@pytest.mark.usefixtures("twice")
class TestTwice(ReaderContract):
    """Its order is the same in every way of reading."""

    #: A worker process would not have the sampler: it is no part of the package.
    test_processes = None  # type: ignore[assignment]

    @pytest.fixture(params=["drop", "pad", "wrap", "short"])
    def served(self, request: pytest.FixtureRequest) -> Served:
        def expected(batch: Any) -> None:
            np.testing.assert_array_equal(batch.data[batch.mask], IMAGES[batch.indices[batch.mask]])

        given = {"data": IMAGES, "labels": LABELS, "layout": "NHWC", "last_batch": request.param}
        return Served(given, expected, 2 * COUNT)


def test_its_states_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state names what the sampler says, and a reader of another order refuses it."""
    with open_reader() as reader:
        plain = reader.state_dict()
        monkeypatch.setattr("asyncreader.pipeline.build.sampler_of", lambda *_: Twice(COUNT))
        with open_reader() as other:
            state = other.state_dict()
            assert next(iter(other)).indices.tolist() == [0, 0, 1, 1]
            assert state == plain | {"shuffle": "twice", "times": 2}
            with pytest.raises(ParamsError, match="times"):
                other.load_state_dict(plain)
        with pytest.raises(ParamsError, match="shuffle differs"):
            reader.load_state_dict(state)


def test_within_a_subset() -> None:
    """A subset of it is its order over the records of the subset, of twice their number."""
    part = Within(np.array([9, 4, 4], np.int64), Twice(3, 5))
    assert part.length == 6
    assert part.records(0, np.arange(6)).tolist() == [9, 9, 4, 4, 4, 4]
    assert part.identity()["shuffle"] == "twice"
    assert set(part.replacements(0, 0, 50).tolist()) == {4, 9}
