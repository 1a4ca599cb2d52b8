"""``trace=``: a file that viewers of the Trace Event Format take, and that tells the truth."""

import json
import os
import signal
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_processes import child, ended
from fakes import packed, paint, write_hdf5
from project import ROOT

from asyncreader import AsyncReader, NothingQueuedError, WorkerError
from asyncreader.pipeline.fill_queue import FillQueue
from asyncreader.pipeline.trace import Trace, note
from asyncreader.stats import Meter


def load(path: Path) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Events by the name of their lane, in order of time, each checked against the format.

    The format's rules: a name and a phase each; "X" with ``ts`` and ``dur`` >= 0 in microseconds;
    events of one thread nest, that is, never overlap in part.
    """
    with open(path, encoding="ascii") as file:
        whole = json.load(file, parse_constant=lambda name: pytest.fail(name))
    events = whole["traceEvents"]
    assert whole["displayTimeUnit"] == "ms"
    names: dict[int, str] = {}
    lanes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name", "thread_sort_index"}
            if event["name"] == "thread_name":
                names[event["tid"]] = event["args"]["name"]
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            lanes[names[event["tid"]]].append(event)
    for lane in lanes.values():
        lane.sort(key=lambda event: (event["ts"], -event["dur"]))
        ends: list[float] = []
        for event in lane:
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])
    return dict(lanes), events


def states(lanes: dict[str, list[dict[str, Any]]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """By epoch and step of a batch: what its slot was, one after the other, with its number."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for number in range(3):
        for event in lanes[f"slot {number}"]:
            if event["name"] != "FREE":
                key = event["args"]["epoch"], event["args"]["step"]
                found[key].append(event | {"slot": number})
    return found


def names(events: list[dict[str, Any]]) -> list[str]:
    """Those of some events."""
    return [event["name"] for event in events]


@pytest.fixture
def small(tmp_path: Path) -> str:
    """300 samples of 8 x 8 x 3."""
    return str(write_hdf5(tmp_path / "a.h5", packed(paint(300, (8, 8, 3)))))


def slowly(data: np.ndarray, labels: np.ndarray) -> None:
    """A postprocess that takes some milliseconds, in place."""
    until = time.perf_counter() + 0.005
    while time.perf_counter() < until:
        data[:] = data


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_lanes(small: str, tmp_path: Path, workers: str) -> None:
    """A lane for each worker, each slot and the consumer; every batch passes through all states,
    and is filled while its slot is FILLING, in workers of either kind."""
    path = tmp_path / "trace.json"
    with AsyncReader(
        path=small,
        batch_size=32,
        nthread=2,
        njob=2,
        workers=workers,
        postprocess=slowly,
        trace=path,
    ) as reader:
        steps = [batch.step for batch in reader]
        assert not path.exists()
    lanes, events = load(path)
    kind = f"worker {workers}"
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        *("consumer", f"{kind} 0", f"{kind} 1", "slot 0", "slot 1", "slot 2")
    }
    waits = [e["args"]["step"] for e in lanes["consumer"] if e["name"] == "wait"]
    assert lanes["consumer"][0]["name"] == "before the first"
    used = [e["args"]["step"] for e in lanes["consumer"] if e["name"] == "use" and "args" in e]
    assert waits == used == steps
    batches = states(lanes)
    assert all(names(batches[0, step]) == ["FILLING", "READY", "HELD"] for step in steps)
    work = [e for number in range(2) for e in lanes.get(f"{kind} {number}", [])]
    for name in ("fill", "postprocess"):
        done = [e for e in work if e["name"] == name]
        assert {e["args"]["step"] for e in done} >= set(steps)
        for event in done:
            filling = batches[event["args"]["epoch"], event["args"]["step"]][0]
            assert event["args"]["slot"] == filling["slot"]
            # another process notes its times itself, on the same clock
            assert filling["ts"] - 1 <= event["ts"]
            assert event["ts"] + event["dur"] <= filling["ts"] + filling["dur"] + 1
    assert all(e["dur"] >= 5000 for e in work if e["name"] == "postprocess")


@pytest.mark.slow
@pytest.mark.skipif(not FillQueue.available(), reason="no x86-64 processor")
def test_a_trace_shows_what_is_measured_without_it(small: str, tmp_path: Path) -> None:
    """Small batches go through the queue of compiled copies with a trace as without: the copies are
    shown, by whom they were made, and every batch passes through all states."""
    path = tmp_path / "trace.json"
    given = {"path": small, "batch_size": 32, "nthread": 2, "njob": 2, "verify": "never"}
    with AsyncReader(given, trace=path) as reader:
        steps = [(batch.epoch, batch.step) for _ in range(4) for batch in reader]
    lanes, _ = load(path)
    work = [e for name, lane in lanes.items() if "slot" not in name for e in lane]
    named = {e["name"] for e in work}
    assert "fill queue" in named
    assert "fill" not in named
    batches = states(lanes)
    assert all(names(batches[step]) == ["FILLING", "READY", "HELD"] for step in steps)


def test_written_after_errors(small: str, tmp_path: Path) -> None:
    """A consumer or a batch that failed leaves a whole file, and no other file beside it."""
    path = tmp_path / "out" / "trace.json"
    path.parent.mkdir()

    def fails(data: np.ndarray, labels: np.ndarray) -> None:
        if broken:
            raise ValueError("no")

    broken: list[int] = []
    reader = AsyncReader(path=small, batch_size=32, postprocess=fails, trace=str(path))
    with pytest.raises(NothingQueuedError):
        reader.getNextBatch()
    broken.append(1)
    reader.fetchData()
    with pytest.raises(WorkerError):
        reader.getNextBatch()
    reader.fetchData()  # left in flight
    reader.close()
    reader.close()
    lanes, _ = load(path)
    assert [e["name"] for e in lanes["consumer"]].count("after an error") == 2
    assert "postprocess" in [e["name"] for e in lanes["worker thread 0"]]
    assert os.listdir(path.parent) == ["trace.json"]


@pytest.mark.slow
def test_written_when_training_is_interrupted(small: str, tmp_path: Path) -> None:
    """Ctrl-C in a program that closes nothing: the file is there, whole, when the program ends."""
    path = tmp_path / "trace.json"
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from asyncreader import AsyncReader\n"
        f"reader = AsyncReader(path={small!r}, batch_size=32, trace={str(path)!r})\n"
        "while True:\n"
        "    reader.fetchData(); reader.getNextBatch(); print(flush=True)\n"
    )
    with child([sys.executable, "-c", program], stdout=-1, stderr=-1, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = ended(process)
    assert b"KeyboardInterrupt" in errors
    lanes, _ = load(path)
    assert "HELD" in [e["name"] for n in (0, 1) for e in lanes.get(f"slot {n}", [])]


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Of each kind the last spans are kept, and the file still nests."""
    trace = Trace(str(tmp_path / "t.json"), kept=10)
    meter = Meter()
    for number in range(100):
        trace.waited(time.perf_counter(), None)
        begun = time.perf_counter()
        note(meter, [("fill", begun, begun, {"step": number})])
    note(meter, [("fill", begun, begun, {})] * 30_000)
    trace.write([meter], "thread", 2)
    lanes, _ = load(tmp_path / "t.json")
    assert len(lanes["consumer"]) == 11  # and what goes on now
    assert len(lanes["worker thread 0"]) == 20_000


def test_a_folder_that_vanished_is_a_warning(small: str, tmp_path: Path) -> None:
    """What cannot be written at close() is told, and closing goes on."""
    folder = tmp_path / "gone"
    folder.mkdir()
    reader = AsyncReader(path=small, batch_size=32, trace=folder / "t.json")
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match="trace could not be written"):
        reader.close()


def test_seek(small: str, tmp_path: Path) -> None:
    """seek() frees what was queued, and the trace shows it."""
    path = tmp_path / "t.json"
    with AsyncReader(path=small, batch_size=32, njob=2, trace=path) as reader:
        reader.fetchData()
        reader.fetchData()
        reader.seek(1)
        reader.fetchData()
        assert reader.getNextBatch().epoch == 1
    lanes, _ = load(path)
    used = [e["args"]["epoch"] for e in lanes["consumer"] if e["name"] == "use" and "args" in e]
    assert used == [1]


def test_a_batch_given_back_frees_its_slot(small: str, tmp_path: Path) -> None:
    """A slot is FREE from release() on, or from the next batch on, until it is filled again."""
    path = tmp_path / "trace.json"
    with AsyncReader(path=small, batch_size=32, trace=path) as reader:
        for number in range(6):
            reader.fetchData()
            batch = reader.getNextBatch()
            if number < 3:
                batch.release()
    lanes, _ = load(path)
    named = [e["name"] for number in (0, 1) for e in lanes.get(f"slot {number}", [])]
    assert named.count("HELD") == named.count("FILLING") == 6
    assert named.count("FREE") >= 6


def test_without_trace_the_plain_classes_run(small: str) -> None:
    """trace=None: ring and filler are the plain ones, and no worker keeps spans."""
    with AsyncReader(path=small, batch_size=32) as reader:
        list(reader)
        assert type(reader._ring).__name__ == "SlotRing"
        assert [meter.spans for meter in reader._workers.meters] == [()]


# -- stats ---------------------------------------------------------------------------------------


def test_stats_are_readable(tmp_path: Path) -> None:
    """repr is a block of lines with the numbers and the verdict; in HTML what a file says of itself
    is escaped."""
    from asyncreader.stats import ReaderStats

    shown = ReaderStats(
        batches=1000,
        samples=128_000,
        bytes=19_300_000_000,
        wait_seconds=1.5,
        elapsed_seconds=3.0,
        read_seconds=1.0,
        decode_seconds=4.5,
        postprocess_seconds=0.0,
        queue_depth=4,
        bad_samples=2,
        bad_list=((7, "cat<b>.jpg is no picture"), (9, "x")),
        nthread=2,
    )
    lines = repr(shown).splitlines()
    assert lines == [
        "ReaderStats",
        "  served       1,000 batches, 128,000 samples, 19,300.0 MB",
        "  in           3.00 s: 42,667 samples/s",
        "  consumer     waited 1.50 s, 50% of the time",
        "  2 workers    busy 92% of the time: read 1.00 s, decode 4.50 s, postprocess 0.00 s",
        "  in flight    4 batches",
        "  bad samples  2: record 7 (cat<b>.jpg is no picture), ...",
        f"  verdict      {shown.verdict}",
    ]
    again = replace(shown, bad_list=((7, "no picture"), (7, "no picture")))
    assert "  bad samples  2: record 7 (no picture), 2 times" in repr(again).splitlines()
    page = shown._repr_html_()
    assert "cat&lt;b&gt;.jpg" in page
    assert "<b>" not in page
    assert page.count("<tr>") == page.count("</tr>") == 7


def test_stats_of_an_idle_reader(small: str) -> None:
    """Nothing fetched yet: no division by zero."""
    with AsyncReader(path=small, batch_size=32) as reader:
        assert "nothing served yet" in repr(reader.stats())
        reader.fetchData()
        assert "in flight    1 batch\n" in repr(reader.stats())
        assert "0 samples/s" in reader.stats()._repr_html_()
