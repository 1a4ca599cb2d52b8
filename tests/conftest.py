"""Fixtures that the tests of several folders use."""

from __future__ import annotations

import gc
import os

import pytest
from observed import take_ctrl_c

from asyncreader.sources.remote import client

take_ctrl_c()

# in a job of several tasks a reader without world_size warns, and warnings are errors
for _name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
    os.environ.pop(_name, None)
for _name in ("SLURM_PROCID", "SLURM_NTASKS"):
    os.environ.pop(_name, None)


@pytest.fixture(scope="module", autouse=True)
def quick_garbage_collection() -> None:
    """What is there before the tests of a file is not looked at again when one of them collects
    garbage: ten thousand tests are so much that each time would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer is given up at once."""
    monkeypatch.setattr(client, "_PATIENCE", 0.0)
    monkeypatch.setattr(client, "_RETRY", {"max_retries": 0})
