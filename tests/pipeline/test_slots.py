"""Who owns a slot: a state machine without threads, and the ring's waits with them."""

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from observed import HANG, until, waits

from asyncreader import (
    DecodeError,
    NothingQueuedError,
    QueueFullError,
    ReaderClosedError,
    ReaderTimeoutError,
    WorkerError,
)
from asyncreader.pipeline.ring import SlotRing
from asyncreader.pipeline.slots import POISON, BatchLayout, Part, Slot, SlotLayout
from asyncreader.sampling.schedule import BatchPlan, Cursor
from asyncreader.system.memory import aligned_empty

ROWS = 6


def plan(step: int, rows: int = ROWS) -> BatchPlan:
    """A plan that only its step tells from another."""
    return BatchPlan(
        epoch=0,
        step=step,
        start=step * rows,
        last=False,
        after=Cursor(0, (step + 1) * rows, step + 1),
        indices=np.full(rows, step, np.int64),
        valid=np.ones(rows, np.bool_),
        padded=False,
        seed=step,
    )


def make_ring(njob: int = 1, debug: bool = False) -> SlotRing:
    """A ring as a reader makes it, of slots of one number and one label a row."""
    rows, labels = (Part((ROWS, size), np.dtype(np.int64)) for size in (4, 1))
    layout = SlotLayout(BatchLayout((rows,), labels))
    return SlotRing(layout.build(njob + 1, aligned_empty, lambda rows: rows), debug)


class RingMachine(RuleBasedStateMachine):
    """Any sequence of calls by a consumer and by workers, against a model of three lists."""

    @initialize(njob=st.integers(1, 4), debug=st.booleans())
    def make(self, njob: int, debug: bool) -> None:
        self.njob = njob
        self.debug = debug
        self.ring = make_ring(njob, debug)
        self.steps = 0
        self.queued: list[Slot] = []  # in the order begun
        self.tasks: list[tuple[Slot, int, int]] = []  # not yet taken by a worker
        self.working: list[tuple[Slot, int, int]] = []  # taken by a worker
        self.parts: dict[int, int] = {}
        self.failed: dict[int, list[tuple[int, BaseException]]] = {}
        self.ready: set[int] = set()
        self.held: tuple[Slot, int] | None = None
        self.kept: list[tuple[Slot, int]] = []
        self.stale: list[tuple[Slot, int]] = []
        self.closed = False

    def owned(self) -> list[Slot]:
        """Every slot that somebody has, as often as somebody has it."""
        held = [] if self.held is None else [self.held[0]]
        return [*self.queued, *held, *(slot for slot, _ in self.kept)]

    # -- the consumer --------------------------------------------------------------------------

    @rule(parts=st.integers(1, 4))
    def begin(self, parts: int) -> None:
        if self.closed:
            with pytest.raises(ReaderClosedError):
                self.ring.begin(plan(self.steps), parts)
            return
        room = len(self.queued) < self.njob - len(self.kept)
        assert self.ring.can_begin() is room
        if not room:
            with pytest.raises(QueueFullError):
                self.ring.begin(plan(self.steps), parts)
            return
        slot = self.ring.begin(plan(self.steps), parts)
        assert slot not in self.owned()
        assert slot.state == "filling"
        slot.rows[0][:] = -1  # as left by the batch before
        self.queued.append(slot)
        self.parts[id(slot)], self.failed[id(slot)] = parts, []
        bounds = [ROWS * p // parts for p in range(parts + 1)]
        self.tasks += [(slot, lo, hi) for lo, hi in itertools.pairwise(bounds)]
        self.steps += 1

    @rule()
    def take(self) -> None:
        if self.closed:
            with pytest.raises(ReaderClosedError):
                self.ring.take()
        elif not self.queued:
            with pytest.raises(NothingQueuedError):
                self.ring.take()
        elif id(self.queued[0]) not in self.ready:
            left = sum(task[0] is self.queued[0] for task in self.tasks)
            parts = self.parts[id(self.queued[0])]
            with pytest.raises(ReaderTimeoutError, match=f"{parts - left} of {parts} parts"):
                self.ring.take(timeout=0.0001)
            if self.held is not None:
                assert self.held[0].state == "held"
        else:
            expected = self.queued.pop(0)
            self.ready.discard(id(expected))
            slot, error = self.ring.take()
            assert slot is expected
            errors = self.failed.pop(id(slot))
            if errors:
                assert error is min(errors, key=lambda pair: pair[0])[1]
                assert slot.state == "free"
                return
            assert error is None
            assert slot.state == "held"
            assert (slot.rows[0] == slot.plan.step).all()
            if self.held is not None:
                self.give_back(self.held)
            self.held = (slot, slot.generation)

    def give_back(self, owned: tuple[Slot, int]) -> None:
        slot, _ = owned
        assert slot.state == "free"
        if self.debug:
            assert (slot.rows[0].view(np.uint8) == POISON).all()
            assert (slot.labels.view(np.uint8) == POISON).all()
        self.stale.append(owned)

    @precondition(lambda self: self.held is not None)
    @rule()
    def release_held(self) -> None:
        held, self.held = self.held, None
        self.ring.release(*held)
        self.give_back(held)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def release_kept(self, data: st.DataObject) -> None:
        kept = self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))
        self.ring.release(*kept)
        self.give_back(kept)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        before = self.ring.counts()
        self.ring.release(*data.draw(st.sampled_from(self.stale)))
        assert self.ring.counts() == before

    @precondition(lambda self: self.held is not None)
    @rule()
    def keep(self) -> None:
        if self.closed:
            with pytest.raises(ReaderClosedError):
                self.ring.keep(*self.held)
        elif len(self.kept) >= self.njob - 1:
            with pytest.raises(QueueFullError):
                self.ring.keep(*self.held)
        else:
            self.ring.keep(*self.held)
            self.kept.append(self.held)
            self.held = None

    @precondition(lambda self: self.kept and not self.closed)
    @rule()
    def keep_again(self) -> None:
        before = self.ring.counts()
        self.ring.keep(*self.kept[0])
        assert self.ring.counts() == before

    @precondition(lambda self: self.stale and not self.closed)
    @rule(data=st.data())
    def keep_stale(self, data: st.DataObject) -> None:
        with pytest.raises(QueueFullError):
            self.ring.keep(*data.draw(st.sampled_from(self.stale)))

    @precondition(lambda self: not self.closed and not self.working)
    @rule()
    def drop_queued(self) -> None:
        # with a worker busy this waits for it: see the threaded test
        self.ring.drop_queued()
        for slot in self.queued:
            assert slot.state == "free"
            assert slot.error is None
        self.queued, self.tasks, self.ready, self.failed = [], [], set(), {}

    @precondition(lambda self: self.steps > 1)
    @rule(chance=st.integers(0, 9))
    def close(self, chance: int) -> None:
        # rarely, and not at once: after it there is little left to find (teardown closes early)
        if chance in (3, 7):
            self.ring.close()
            self.closed = True
            self.tasks = []

    # -- workers -------------------------------------------------------------------------------

    @precondition(lambda self: self.tasks or self.closed)
    @rule()
    def next_task(self) -> None:
        task = self.ring.next_task()
        if self.closed:
            assert task is None
            return
        assert task == self.tasks.pop(0)
        self.working.append(task)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), fails=st.booleans())
    def part_done(self, data: st.DataObject, fails: bool) -> None:
        self.fill(self.working.pop(data.draw(st.integers(0, len(self.working) - 1))), fails)

    @precondition(lambda self: self.queued and not self.closed)
    @rule()
    def all_done(self) -> None:
        # many more batches are taken and kept than where each part is a step of its own
        while self.tasks:
            task = self.ring.next_task()
            assert task == self.tasks.pop(0)
            self.working.append(task)
        while self.working:
            self.fill(self.working.pop(), fails=False)

    def fill(self, task: tuple[Slot, int, int], fails: bool) -> None:
        """A worker's part, to its end."""
        slot, lo, hi = task
        assert slot.state == "filling"
        slot.rows[0][lo:hi] = slot.plan.step
        error = DecodeError(f"row {lo}") if fails else None
        if error is not None:
            self.failed[id(slot)].append((lo, error))
        last = self.ring.part_done(slot, lo, error)
        others = [task for task in [*self.tasks, *self.working] if task[0] is slot]
        if self.closed:
            return
        assert last == (not others)
        if last:
            self.ring.ready(slot)
            self.ready.add(id(slot))

    # -- always --------------------------------------------------------------------------------

    @invariant()
    def no_slot_is_owned_twice(self) -> None:
        owned = self.owned()
        assert len({id(slot) for slot in owned}) == len(owned) <= self.njob + 1

    @invariant()
    def states_tell_owners(self) -> None:
        counts = self.ring.counts()
        held = (self.held is not None) + len(self.kept)
        assert counts["held"] == held
        assert counts["kept"] == len(self.kept) <= max(0, self.njob - 1)
        assert counts["filling"] + counts["ready"] == len(self.queued)
        assert counts["free"] == self.njob + 1 - held - len(self.queued)
        assert self.ring.in_flight_now() == len(self.queued)
        for slot, _ in [*self.kept, *([self.held] if self.held else [])]:
            assert (slot.rows[0] == slot.plan.step).all()

    def teardown(self) -> None:
        if hasattr(self, "ring"):
            self.ring.close()
            assert self.ring.next_task() is None
            with pytest.raises(ReaderClosedError):
                self.ring.begin(plan(0))


RingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestRing = RingMachine.TestCase
TestRing.__doc__ = """No slot is owned twice, batches keep their order, close always ends."""


# -- with threads --------------------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[Callable[..., threading.Thread]]:
    """Starts threads, and joins all of them at the end of the test."""
    threads: list[threading.Thread] = []

    def start(target: Callable[..., Any], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=args)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()


def fill(slot: Slot, ring: SlotRing) -> None:
    """A worker's part in one batch."""
    slot.rows[0][:] = slot.plan.step
    if ring.part_done(slot, 0, None):
        ring.ready(slot)


@pytest.mark.parametrize("failure", [None, WorkerError("a worker died")])
def test_close_wakes_a_waiting_consumer(
    failure: WorkerError | None, started: Callable[..., threading.Thread]
) -> None:
    """A consumer inside take() gets ReaderClosedError as soon as the ring closes, or the failure
    that closes it, which is raised from then on."""
    ring = make_ring()
    ring.begin(plan(0))
    seen: list[BaseException] = []

    def consume() -> None:
        try:
            ring.take()
        except (ReaderClosedError, WorkerError) as exc:
            seen.append(exc)

    thread = started(consume)
    until(lambda: waits(thread))
    ring.close(failure)
    ring.close()
    thread.join(HANG)
    assert len(seen) == 1
    assert seen[0] is failure or (failure is None and isinstance(seen[0], ReaderClosedError))
    with pytest.raises(WorkerError if failure else ReaderClosedError):
        ring.begin(plan(0))


def test_drop_waits_for_busy_workers(started: Callable[..., threading.Thread]) -> None:
    """drop_queued() returns when no worker writes any more; what was begun is finished unseen."""
    ring = make_ring(3)
    for step in range(3):
        ring.begin(plan(step), parts=2)
    busy = [ring.next_task() for _ in range(3)]  # batch 0 whole, half of batch 1
    dropped = threading.Event()

    def drop() -> None:
        ring.drop_queued()
        dropped.set()

    thread = started(drop)
    until(lambda: waits(thread))
    for slot, lo, hi in busy:
        assert not dropped.is_set()
        assert slot.state == "filling"
        slot.rows[0][lo:hi] = 5
        if ring.part_done(slot, lo, None):
            ring.ready(slot)
    thread.join(HANG)
    assert dropped.is_set()
    assert ring.in_flight_now() == 0
    assert ring.counts()["free"] == 4
    slot = ring.begin(plan(9))
    assert ring.next_task()[0] is slot
    assert slot.error is None


@pytest.mark.parametrize("how", ["taken by another thread", "dropped"])
def test_a_waiting_consumer_is_told_that_nothing_is_left(
    how: str, started: Callable[..., threading.Thread]
) -> None:
    """Whoever waits in take() while the last batch goes elsewhere gets NothingQueuedError."""
    ring = make_ring()
    slot = ring.begin(plan(0))
    ring.next_task()
    seen: list[type] = []

    def consume() -> None:
        try:
            ring.take()
            seen.append(Slot)
        except NothingQueuedError as exc:
            seen.append(type(exc))

    threads = [started(consume) for _ in range(2)]
    until(lambda: all(map(waits, threads)))
    if how == "dropped":
        with ring._cond:  # the consumers look when the batch is gone
            fill(slot, ring)
            ring.drop_queued()
    else:
        fill(slot, ring)
    for thread in threads:
        thread.join(HANG)
    expected = {Slot, NothingQueuedError} if how != "dropped" else {NothingQueuedError}
    assert len(seen) == 2
    assert set(seen) == expected


def test_an_interrupted_begin_loses_no_wake_up() -> None:
    """Ctrl-C in begin() when a worker is awake, but still in the Condition's queue: nothing is
    queued, and the next begin() wakes the worker, not the one that the queue remembers."""
    ring = make_ring(njob=1)
    waits, filled = queue.SimpleQueue[None](), queue.SimpleQueue[Slot]()
    wait = ring._work.wait

    def counted() -> bool:
        waits.put(None)
        return wait()

    def work() -> None:
        while (task := ring.next_task()) is not None:
            filled.put(task[0])

    def awake_and_interrupted(count: int) -> None:
        ring._work._waiters[0].release()  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring._work, "wait", counted)
        worker = threading.Thread(target=work)
        worker.start()
        waits.get(timeout=HANG)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ring._work, "notify", awake_and_interrupted)
            inner.setattr(ring._work, "notify_all", lambda: type(ring._work).notify(ring._work, 9))
            with pytest.raises(KeyboardInterrupt):
                ring.begin(plan(0))
        assert ring.counts()["free"] == 2
        assert ring.newest() is None
        waits.get(timeout=HANG)  # the worker found nothing, and waits again
        slot = ring.begin(plan(0))
        try:
            assert filled.get(timeout=HANG) is slot
        finally:
            ring.close()
            worker.join(HANG)
