"""Ctrl-C at every moment at which CPython looks for it, one after the other: nothing is lost.

The random moments are in tests/faults (cases ctrl-c and interrupts).
"""

import ast
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from ctrl_c import elsewhere, moments
from fake_device import FakeDevice
from fakes import MemorySource, open_fake, paint
from observed import HANG, until, waits
from project import FILES, tree_of

import asyncreader
from asyncreader import AsyncReader, Batch, QueueFullError
from asyncreader.faces import GeneratorEnqueuer, OrderedEnqueuer, ParaLoad
from asyncreader.faces.ahead import Ahead
from asyncreader.pipeline.ring import SlotRing
from asyncreader.pipeline.slots import BatchLayout, Part, SlotLayout
from asyncreader.sampling.schedule import BatchPlan, Cursor

#: Methods that enter a lock, or a context that they are given.
ENTERS = {"acquire", "__enter__", "enter_context"}


def plan(step: int) -> BatchPlan:
    """A batch of two rows."""
    after = Cursor(0, 2 * step + 2, step + 1)
    rows, valid = np.zeros(2, np.int64), np.ones(2, np.bool_)
    return BatchPlan(0, step, 2 * step, False, after, rows, valid, False, seed=0)


def fill(ring: SlotRing) -> None:
    """Fill one batch, as a worker does."""
    task = ring.next_task()
    assert task is not None
    assert ring.part_done(task[0], task[1], None)
    ring.ready(task[0])


def test_the_error_of_a_batch_outlives_ctrl_c() -> None:
    """Ctrl-C at any moment of a take() while another thread waits: a batch that failed is never
    handed out as a good one."""

    def case() -> Iterator[Callable[[], Any]]:
        layout = SlotLayout(BatchLayout((Part((2, 4), np.dtype("u1")),), None))
        ring = SlotRing(layout.build(3, np.zeros, lambda rows: rows))
        slot, _ = [ring.begin(plan(step)) for step in range(2)]
        error = ValueError("row 0")
        other = threading.Thread(target=lambda: seen.append(ring.take()), daemon=True)
        seen: list[Any] = []
        other.start()
        until(lambda: waits(other))
        with ring._lock:  # the thread that waits looks when this one has taken the first batch
            task = ring.next_task()
            assert task is not None
            assert ring.part_done(slot, 0, error)
            ring.ready(slot)
            yield ring.take
        fill(ring)
        other.join(HANG)
        assert seen
        left = [seen[0]] if not ring.in_flight_now() else [seen[0], ring.take(HANG)]
        assert [found for taken, found in left if taken is slot] in ([], [error])

    moments(case)


# -- a reader ------------------------------------------------------------------------------------

#: 14 samples, in batches of 2: 7 steps an epoch.
IMAGES, LABELS = paint(14), np.arange(14)[:, None]
PARAMS: dict[str, Any] = {"batch_size": 2, "njob": 2, "shuffle": True, "layout": "NHWC"}
#: Batches that are served before Ctrl-C, behind a seek() to step 1.
SERVED = 2


def opened(device: FakeDevice | None, **params: Any) -> AsyncReader:
    """A reader of the samples, on a device or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncreader.reader.open_device", lambda _: device)
        cuda = {} if device is None else {"cuda": True}
        return open_fake(patch, MemorySource(IMAGES, LABELS), **PARAMS, **cuda, **params)


def whole_order() -> list[list[int]]:
    """The record numbers of the batches of three epochs."""
    with opened(None) as reader:
        return [batch.indices.tolist() for _ in range(3) for batch in reader]


def pixels_of(batch: Any, device: FakeDevice | None) -> np.ndarray:
    """What the consumer sees of a batch when the device is done."""
    if device is None:
        return np.array(batch.data)
    seen: list[np.ndarray] = []
    device.compute(lambda: seen.append(np.array(batch.data)))
    device.finish()
    return seen[0]


def in_flight(reader: AsyncReader) -> None:
    """Queue all that may be queued, and wait until it is filled."""
    with contextlib.suppress(QueueFullError):
        while True:
            reader.fetchData()
    until(lambda: reader._ring.counts()["ready"] == reader._ring.in_flight_now())


def take(reader: AsyncReader) -> Batch:
    """The next batch."""
    in_flight(reader)
    return reader.getNextBatch()


def kept(batch: Batch) -> None:
    """Keep a batch; on a device none can be kept."""
    with contextlib.suppress(QueueFullError):
        batch.keep()


def acts(reader: AsyncReader) -> dict[str, tuple[Callable[[], Any], set[int]]]:
    """Calls of a reader, and the batches of the whole order that it may stand at afterwards."""
    at = 1 + SERVED
    state, cursor = reader.state_dict(), reader.cursor
    batch = reader.getNextBatch()
    loop = iter(reader)
    return {
        "fetchData": (reader.fetchData, {at + 1}),
        "getNextBatch": (reader.getNextBatch, {at + 1, at + 2}),
        "loop": (lambda: next(loop), {at + 1, at + 2}),
        "seek": (lambda: reader.seek(1, 2), {at + 1, 9}),
        "go_to": (lambda: reader.go_to(cursor), {at + 1, at}),
        "load_state_dict": (lambda: reader.load_state_dict(state), {at + 1, at}),
        "keep": (lambda: kept(batch), {at + 1}),
        "release": (batch.release, {at + 1}),
        "close": (reader.close, {at + 1}),
    }


#: Calls of a reader, and kinds of readers: the usual ones are fast tests.
CALLS = ("fetchData", "getNextBatch", "loop", "seek", "go_to", "load_state_dict", "keep", "release")
KINDS = ("plain", "debug", "copy", "trace", "late", "eager")
FAST = {*((what, "plain") for what in (*CALLS, "close")), ("getNextBatch", "late")}


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        pytest.param(what, kind, marks=[pytest.mark.slow] * ((what, kind) not in FAST))
        for what in (*CALLS, "close")
        for kind in KINDS
    ],
)
def test_reader_at_every_moment(what: str, kind: str, tmp_path: Path) -> None:
    """Ctrl-C at any moment of a call that moves a reader: the lock is free, each slot is
    somebody's, the reader stands at the old place or at the new one, its state says which, the
    batches from there on have their own pixels, and all slots go round."""
    order = whole_order()

    def case() -> Iterator[Callable[[], Any]]:
        device = FakeDevice(kind) if kind in ("late", "eager") else None
        options = {"debug": {"debug": True}, "copy": {"copy": True}}.get(kind, {})
        if kind == "trace":
            options = {"trace": tmp_path / "trace.json"}
        with opened(device, **options) as reader:
            reader.seek(0, 1)
            for _ in range(SERVED):
                take(reader)
            in_flight(reader)
            act, places = acts(reader)[what]
            if what == "fetchData":
                until(lambda: reader._ring.counts()["ready"] == 1)
            elif what != "loop" or device is None:
                in_flight(reader)
            yield act
            ring = reader._ring
            counts, size = elsewhere(ring.counts), len(ring._circle)
            if ring.closed:
                return
            assert counts["ready"] + counts["filling"] == ring.in_flight_now()
            assert counts["free"] == size - ring._begun
            assert counts["held"] == ring._held + len(ring.slots) - size
            assert len({*ring._circle}) == size
            assert ring._waiting == 0
            state = elsewhere(reader.state_dict)
            at = 7 * state["epoch"] + state["steps"]
            assert at in places
            for number in range(at, at + 6):
                in_flight(reader)
                batch = elsewhere(reader.getNextBatch)
                assert batch.indices.tolist() == order[number]
                np.testing.assert_array_equal(pixels_of(batch, device), IMAGES[order[number]])

    moments(case)


SQUARES = [number * number for number in range(1000)]


def workers() -> list[str]:
    """Threads of drop-in classes."""
    found = (thread.name for thread in threading.enumerate())
    return [name for name in found if name.startswith(("asyncreader-enq", "asyncreader-dis"))]


def made_ahead(ahead: Ahead) -> int:
    """How many items wait for the consumer."""
    with ahead._lock:
        return sum(turn.done for turn in ahead._turns)


@pytest.mark.parametrize("make", [OrderedEnqueuer, GeneratorEnqueuer])
def test_enqueuer_at_every_moment(make: Any) -> None:
    """Ctrl-C at any moment of next(): the lock is free, the next get() goes on in order, at most
    the item that was being handed over is gone, and no slot."""

    def case() -> Iterator[Callable[[], Any]]:
        with make(SQUARES if make is OrderedEnqueuer else iter(range(1000))) as enqueuer:
            enqueuer.start(1, 2)
            assert next(enqueuer.get()) == 0
            ahead = enqueuer._run.ahead
            until(lambda: made_ahead(ahead) == 2)
            first = enqueuer.get()
            yield lambda: next(first)
            items = enqueuer.get()
            found = elsewhere(lambda: [next(items) for _ in range(6)])
            numbers = found if make is GeneratorEnqueuer else [round(n**0.5) for n in found]
            assert numbers[0] in (1, 2)
            assert numbers == list(range(numbers[0], numbers[0] + 6))
            until(lambda: made_ahead(ahead) == 2)

    moments(case)
    until(lambda: not workers())


@pytest.mark.parametrize("what", ["start", "stop"])
def test_enqueuer_starts_and_stops_at_every_moment(what: str) -> None:
    """Ctrl-C at any moment of start() or stop(): it runs or it does not, and stop() ends all."""

    def case() -> Iterator[Callable[[], Any]]:
        enqueuer = OrderedEnqueuer(SQUARES)
        if what == "stop":
            enqueuer.start(2, 2)
        yield enqueuer.stop if what == "stop" else lambda: enqueuer.start(2, 2)
        if enqueuer.is_running():
            assert elsewhere(lambda: next(enqueuer.get())) == 0
        elsewhere(lambda: (enqueuer.stop(),))
        until(lambda: not workers())

    moments(case)


@pytest.mark.parametrize("what", ["start_loaders", "get", "give back", "stop"])
def test_paraload_at_every_moment(what: str) -> None:
    """Ctrl-C at any moment of a call: the lock is free, batches come in order, no slot is lost."""

    def case() -> Iterator[Callable[[], Any]]:
        def load(batch: list[int], number: int) -> None:
            batch[:] = [number]

        buffer: list[list[int]] = [[], []]
        loader = ParaLoad(buffer, load)
        if what != "start_loaders":
            loader.start_loaders(2)
            first = loader.get_available_data_index()
            until(lambda: made_ahead(loader._ahead) == 1)
        acts: dict[str, Callable[[], Any]] = {
            "start_loaders": lambda: loader.start_loaders(2),
            "get": loader.get_available_data_index,
            "give back": lambda: loader.return_back_for_refill(first),
            "stop": loader.stop,
        }
        yield acts[what]
        for place, lent in enumerate(list(loader._ahead._lent)):
            if lent:
                elsewhere(lambda place=place: (loader.return_back_for_refill(place),))
        if loader._loaders.threads and not loader._ahead.closed:
            seen = []
            for _ in range(4):
                index = elsewhere(loader.get_available_data_index)
                seen += buffer[index]
                loader.return_back_for_refill(index)
            assert seen == list(range(seen[0], seen[0] + 4))
        threads = list(loader._loaders.threads)
        elsewhere(lambda: (loader.stop(),))
        until(lambda: not any(thread.is_alive() for thread in threads))

    moments(case)


@pytest.mark.parametrize("kind", ["SimpleBatch", "StochasticBatch"])
def test_pyxis_at_every_moment(kind: str, tmp_path: Path) -> None:
    """Ctrl-C at any moment of next(): the lock is free and the endless batches go on, at most the
    one that was being handed over is gone."""
    pyxis = pytest.importorskip("asyncreader.faces.pyxis")
    with pyxis.Writer(tmp_path / "set") as writer:
        writer.put_samples("x", np.arange(8))
    with pyxis.Reader(tmp_path / "set") as reader:

        def case() -> Iterator[Callable[[], Any]]:
            batches = getattr(pyxis, kind)(reader, "x", 2)
            assert len(next(batches)) == 2
            yield lambda: next(batches)
            first = [int(elsewhere(lambda: next(batches))[0]) for _ in range(5)]
            if kind == "SimpleBatch":
                assert first in ([2, 4, 6, 0, 2], [4, 6, 0, 2, 4])

        moments(case)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [(4, 10), (4, 5)])
def test_chunks_at_every_moment(chunk: tuple[int, int], tmp_path: Path) -> None:
    """Ctrl-C at any moment of a read of a dataset: no chunk stays pinned, and none is waited for
    that nobody decodes."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        rows = np.arange(240.0).reshape(24, 10)
        file.create_dataset("x", data=rows, chunks=chunk, compression="gzip")
    with asyncreader.open(tmp_path / "x.h5", data_field="x", nthread=1) as ds:
        cache = ds.source.first.cache  # type: ignore[attr-defined]
        asked = [0, 5, 9, 1, 22]

        def case() -> Iterator[Callable[[], Any]]:
            cache.release()
            _ = ds[[1]]  # of the chunks one is there
            yield lambda: ds[asked]
            assert not cache._pins[1:].any()
            assert not cache._busy
            np.testing.assert_array_equal(elsewhere(lambda: ds[asked]), rows[asked])

        moments(case)


# -- what no file does ---------------------------------------------------------------------------


def nodes(*kinds: type[ast.AST], text: str = "") -> Iterator[tuple[Path, Any]]:
    """Each node of these kinds in the packages' files that hold a text, with its file."""
    for path in (one for one in FILES if text in one.read_text(encoding="utf-8")):
        yield from ((path, node) for node in ast.walk(tree_of(path)) if isinstance(node, kinds))


def assigned(value: str) -> set[tuple[Path, str]]:
    """What is assigned such a value in a file, by its last name."""
    return {
        (path, ast.unparse(target).rpartition(".")[2])
        for path, node in nodes(ast.Assign, text=value)
        if value in ast.unparse(node.value)
        for target in node.targets
    }


@pytest.mark.slow
def test_conditions_have_locks_that_ctrl_c_leaves_whole() -> None:
    """Every Condition has an RLock, which wait() takes back in C. Another lock is taken back in
    Python, and Ctrl-C there would leave wait() without the lock."""
    locks = assigned("threading.RLock()")
    for path, node in nodes(ast.Call, text="Condition("):
        if ast.unparse(node.func).endswith("threading.Condition") and node.args:
            given = ast.unparse(node.args[0]).rpartition(".")[2]
            assert (path, given) in locks, f"{path}:{node.lineno}"


@pytest.mark.slow
def test_futures_are_waited_for_by_one_module() -> None:
    """No other file calls a Future's result() or a pool's submit(): Ctrl-C in them can leave a lock
    held, and then the program never ends."""
    for path, node in nodes(ast.Call):
        if isinstance(node.func, ast.Attribute) and path.name != "signals.py":
            called = ast.unparse(node.func)
            assert not re.search(r"pool\.(submit|map)$|\.result$", called), f"{path}:{node.lineno}"


@pytest.mark.slow
def test_no_condition_is_entered() -> None:
    """No file enters a Condition by ``with`` or acquire(): its lock is entered by itself, since a
    Condition's ``__enter__`` and ``__exit__`` are Python, and Ctrl-C in them leaves it held."""
    conditions = assigned("Condition(")
    assert {"_cond", "_work"} < {name for _, name in conditions}
    for path, node in nodes(ast.With, ast.Call):
        entered: list[ast.expr] = []
        if isinstance(node, ast.With):
            entered = [item.context_expr for item in node.items]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ENTERS:
            entered = [node.func.value, *node.args]
        for expression in entered:
            name = ast.unparse(expression).rpartition(".")[2]
            known = name in ("_cond", "_work") or (path, name) in conditions
            assert not known, f"{path}:{node.lineno} enters {name}"
            assert "Condition(" not in name, f"{path}:{node.lineno}"
