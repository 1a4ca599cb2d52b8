"""Fixtures that the tests of several folders use."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from observed import take_ctrl_c

from asyncreader.pixels import kernels
from asyncreader.sources.remote import client
from asyncreader.system.limits import usable_cores

take_ctrl_c()

# Tests start hundreds of processes, each of which would compile asyncreader's modules again: 0.4 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# in a job of several tasks a reader without world_size warns, and warnings are errors
for _name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
    os.environ.pop(_name, None)
for _name in ("SLURM_PROCID", "SLURM_NTASKS"):
    os.environ.pop(_name, None)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes that run the tests: one for each core, up to eight; 0, which is this process alone,
    for the tests of one file. Each process takes ten seconds to collect all tests, and 0.5 GB."""
    files = {argument.partition("::")[0] for argument in config.args}
    cores = min(usable_cores(), 8)
    return cores if cores > 1 and (len(files) > 1 or Path(files.pop()).is_dir()) else 0


def pytest_xdist_setupnodes() -> None:
    """Kernels are compiled before any test: two processes would compile each of them twice, and a
    worker that compiles one when its reader is closed would be reported as one that hangs."""
    with contextlib.suppress(RuntimeError):  # without numba there is nothing to compile
        kernels.compile_all()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: one of them at the end would be waited for by all."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


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
