"""Fixtures that the tests of several folders use."""

import contextlib
import faulthandler
import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from observed import take_ctrl_c
from reader_contract import ReaderContract

from asyncreader.pixels import kernels
from asyncreader.sources.remote import client
from asyncreader.system.limits import usable_cores

take_ctrl_c()

# Programs that measure: tests/test_benchmarks.py tries them.
collect_ignore = ["benchmarks"]

# Tests start hundreds of processes, each of which would compile asyncreader's modules again: 0.4 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# in a job of several tasks a reader without world_size warns, and warnings are errors
for _name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
    os.environ.pop(_name, None)
for _name in ("SLURM_PROCID", "SLURM_NTASKS"):
    os.environ.pop(_name, None)


#: What the reason of a skip must not say (a regular expression): a stage of .ci/run exists for the
#: tests of some libraries, and fails where these did not run.
REQUIRE = os.environ.get("REQUIRE", "")

#: A file with the names of tests that have passed: a run adds those that it saw pass to the first,
#: and leaves out those of the second.
PASSED, PASSED_BEFORE = os.environ.get("PASSED"), os.environ.get("PASSED_BEFORE")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long``: whole products of cases, of which the usual run takes a part."""
    parser.addoption("--long", action="store_true", help="whole products of cases, not a part")
    parser.addoption("--figures", action="store_true", help="fault cases: write rows of a page")


#: What `pytest` leaves out where it is not told which tests to run: tiers of their own.
TIERS = "not slow and not faults"


def pytest_configure(config: pytest.Config) -> None:
    """Without paths and -m only the fast tests run; a file that is named runs whole."""
    if config.args_source != pytest.Config.ArgsSource.ARGS and not config.option.markexpr:
        config.option.markexpr = TIERS


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether whole products of cases are asked for."""
    return bool(request.config.getoption("--long"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes that run the tests: one for each core, up to eight; 0, which is this process alone,
    for the tests of one file. Each process takes ten seconds to collect all tests, and 0.5 GB."""
    files = {argument.partition("::")[0] for argument in config.args}
    cores = min(usable_cores(), 8)
    return cores if cores > 1 and (len(files) > 1 or Path(files.pop()).is_dir()) else 0


def pytest_xdist_setupnodes() -> None:
    """Kernels are compiled before any test: two processes would compile each of them twice, and a
    worker that compiles one when its reader is closed would be reported as one that hangs."""
    with contextlib.suppress(RuntimeError):  # they cannot be kept on this disk
        kernels.compile_all()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first: one of them at the end would be waited for by all. Of tests
    that are marked ``some(n)`` every n-th case is fast, and the others are slow. Of the sets of a
    ReaderContract every fourth is read by a worker process; with --long all are. Tests that an
    earlier stage of the gate saw pass are left out."""
    cases = Counter[tuple[object, ...]]()
    for item in items:
        if isinstance(item, pytest.Function) and (mark := item.get_closest_marker("some")):
            case = cases[item.cls, item.function] = cases[item.cls, item.function] + 1
            if case % mark.args[0] != 1:
                item.add_marker("slow")
    passed = set(Path(PASSED_BEFORE).read_text().splitlines()) if PASSED_BEFORE else set[str]()
    before = [item for item in items if item.nodeid in passed]
    items[:] = [item for item in items if item.nodeid not in passed]
    config.hook.pytest_deselected(items=before)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
    if config.getoption("--long"):
        return
    sets, left = Counter[type](), []
    for item in items:
        if isinstance(item, pytest.Function) and item.function is ReaderContract.test_processes:
            sets[item.cls] += 1
            left += [item] * (sets[item.cls] % 4 != 1)
    items[:] = [item for item in items if item not in set(left)]
    config.hook.pytest_deselected(items=left)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the long form wait for it, and may take half an hour."""
    if item.get_closest_marker("long"):
        if not item.config.getoption("--long"):
            pytest.skip("the long form (--long)")
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """A skip for a reason that REQUIRE names is a failure: of a test, a part of one, or a file."""
    report = yield
    if REQUIRE and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if re.search(REQUIRE, reason):
            report.outcome, report.longrepr = "failed", f"REQUIRE={REQUIRE}: {reason}"
    return report


pytest_make_collect_report = pytest_runtest_makereport


_passed, _skipped = set[str](), set[str]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note which tests passed. One of which a part was skipped has not."""
    if report.skipped:
        _skipped.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write down which tests passed, in the process that prints them."""
    if PASSED and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(PASSED, "a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in sorted(_passed - _skipped))


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
