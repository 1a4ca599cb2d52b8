"""Combinations of features do what every reader must do: some of those that
tests/robustness/combinations.py draws."""

from __future__ import annotations

import pytest
from drawn_sets import DrawnContract, DrawnSet, draw_set
from reader_contract import Served


@pytest.fixture(params=range(24), scope="class")
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DrawnSet:
    return draw_set(tmp_path_factory.mktemp("set"), request.param)


@pytest.fixture(scope="class")
def served(drawn: DrawnSet) -> Served:
    return drawn.served()


class TestCombinations(DrawnContract):
    """All that holds of a reader, for each combination."""
