"""AsyncReader: wires source, order, slots and workers, and keeps the cursor in the epoch."""

from __future__ import annotations

import contextlib
import html
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Generic, NoReturn, TypeAlias, Unpack

import numpy as np

from .batch import Array, Batch, D, L
from .dataset import Dataset, Sample
from .errors import Closing, FinishedError, ParamsError, ReaderClosedError, closed_on_error
from .params.declare import documented
from .params.keywords import ReaderKeywords
from .params.parse import parse_params
from .params.reader import SHOWN, Given, ReaderParams
from .pipeline import build
from .pipeline.cuda import DeviceRing, open_device
from .pipeline.distributed import rank_and_world, warn_of_ranks_left_out, worker_count
from .pipeline.fill_batch import BatchFiller
from .pipeline.ring import SlotRing
from .pipeline.slots import Arena, SlotLayout
from .pipeline.trace import Trace
from .pipeline.workers import ProcessWorkers, Recipe, ThreadWorkers
from .sampling.schedule import BatchPlan, Cursor, PlanAhead
from .sampling.state import State, cursor_in, state_at
from .sources import OpenSet, earlier_fingerprints, fingerprint
from .sources.labels import apart
from .stats import ReaderStats, Totals, total_seconds
from .system.late import tools_notebook
from .system.limits import usable_cores
from .system.memory import aligned_empty
from .system.signals import after_this
from .system.text import some

Shape: TypeAlias = tuple[int, ...]


#: A batch of raw rows below this is never split: handing parts round costs more than the copy.
SPLIT_BYTES = 1 << 20


class AsyncReader(Closing, Generic[D, L]):
    """Shuffled minibatches of one shape from HDF5 or LMDB, filled ahead by a pool of workers.

    ``params``: a dict of parameters, or a path; keywords override it. Raises ParamsError,
    SourceNotFoundError, FormatError or WorkerError (``postprocess`` failed its trial call).
    """

    @documented(SHOWN)
    def __init__(self, params: Given | None = None, /, **overrides: Unpack[ReaderKeywords]) -> None:
        self._params = p = build.rooted(parse_params(params, overrides))
        if p.rank != "auto" and "world_size" not in p.names_given:
            warn_of_ranks_left_out()
        self._rank, world_size = rank_and_world(p)
        self._nthread, self._cores = worker_count(p), usable_cores()
        self._totals, self._still_held, self._pid = Totals(), 0, os.getpid()
        # a thread that holds both has entered the second one first
        self._fetching, self._copying = threading.RLock(), threading.RLock()
        #: where a loop stood that ended early
        self._cut_at: Cursor | None = None
        self._warned_of_rest = False
        self._dataset: Dataset | None = None
        device = None if p.cuda is False else open_device(p.cuda)
        self._source: OpenSet | None = None
        # whatever comes from here on, Ctrl-C too, closes what is open by then. It also runs at
        # interpreter exit, before threads and libraries are torn down
        parts = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, _shut_down, self._pid, parts)
        with closed_on_error([self]):
            opened = parts.enter_context(contextlib.ExitStack())
            self._source = source = self._open_set(p)
            opened.callback(source.close)
            self._facts_of_set = source.facts
            self._schedule = build.make_schedule(p, source, self._rank, world_size)
            self._plans = PlanAhead(self._schedule)
            self._filler = build.make_filler(p, source, self._schedule)
            build.check_values(p, self._filler)
            layout = build.slot_layout(p, self._filler)
            arena = build.shared_arena(p, layout, self._filler)
            if arena is not None:
                parts.callback(arena.close)
            self._may_queue = self._parts(p.njob) == 1 and device is None
            trace = None if p.trace is None else Trace(p.trace)
            self._ring = self._make_ring(layout, arena, trace)
            self._look_for_queue()
            self._batches_from: SlotRing | DeviceRing = self._ring
            if device is not None:
                self._batches_from = DeviceRing(self._ring, device, p.debug)
                parts.callback(self._batches_from.close)
            self._workers = self._make_workers(layout, arena, source)
            if trace is not None:
                parts.callback(_write_trace, trace, self._ring, self._workers)
            parts.callback(_let_go, self._ring, self._filler)
            parts.callback(self._workers.stop)
            parts.callback(opened.close)  # a worker that waits for a store waits no longer
            parts.callback(self._ring.close)
            self._workers.start()

    def _open_set(self, p: ReaderParams) -> OpenSet:
        return build.open_set(p)

    def _make_ring(self, layout: SlotLayout, arena: Arena | None, trace: Trace | None) -> SlotRing:
        """The slots and who owns them; with ``copy`` each batch may get other memory."""
        p, filler, more = self._params, self._filler, None
        if p.copy and p.cuda is False and arena is None:
            more = partial(layout.memory, aligned_empty, filler.handed_out)
        return SlotRing(build.make_slots(p, layout, filler, arena), p.debug, trace, more)

    def _make_workers(
        self, layout: SlotLayout, arena: Arena | None, source: OpenSet
    ) -> ThreadWorkers | ProcessWorkers:
        """Threads, or processes that share the memory of the slots."""
        count, ring = self._nthread, self._ring
        if arena is None:
            return ThreadWorkers(count, ring, self._filler, "asyncreader-fill")
        recipe = Recipe(self._params, layout, arena)
        return ProcessWorkers(count, ring, recipe, source.index, self._schedule)

    def _look_for_queue(self) -> None:
        """Have batches filled by compiled code from a queue, as soon as that can be."""
        self._filler.find_tables()
        if self._may_queue:
            servers = max(1, min(self._nthread, self._cores - 1))
            self._ring.fills = self._filler.fill_queue(self._ring.slots, servers)

    def _parts(self, in_flight: int) -> int:
        """Tasks that a batch is cut into: enough to keep every thread busy with so many batches."""
        filler = self._filler
        cheap = filler.slot_bytes < SPLIT_BYTES
        if cheap and not any(fill.stored.encoded or fill.wanted.steps for fill in filler.fills):
            return 1
        return -(-self._nthread // in_flight)

    # -- the training loop -----------------------------------------------------------------

    def fetchData(self) -> bool:
        """Queue the next batch and return at once: True if it is the last of its epoch.

        Raises QueueFullError if ``njob`` batches are in flight, FinishedError after the last epoch,
        ReaderClosedError after close().
        """
        self._check_process()
        with self._fetching:  # two threads must not queue one batch twice
            cursor = self._next
            if self._finished(cursor):
                self._ring.check_open()
                raise FinishedError(
                    f"all {self._params.epochs} epochs have been fetched",
                    hint="seek() back, or open the reader with more epochs",
                )
            plan = self._plans.plan(cursor)
            if self._totals.started is None:
                self._totals.started = time.perf_counter()
            if self._ring.fills is None and plan.step & (plan.step - 1) == 0:
                self._look_for_queue()
            queued = self._ring.fills is not None and self._filler.only_compiled(plan)
            parts = 0 if queued else self._parts(self._ring.in_flight_now() + 1)
            self._ring.begin(plan, parts)
            return plan.last

    def getNextBatch(self) -> Batch[D, L]:
        """Wait for the oldest queued batch and return it; the batch before it is given back.

        Raises NothingQueuedError at once if none is queued, ReaderTimeoutError after ``timeout``
        seconds, or the error of that batch (the next call continues after it). Since each call
        gives back the batch of the call before, several threads can take batches only with
        ``copy=True``.
        """
        self._check_process()
        if not self._params.copy:
            return self._next_batch()
        with self._copying:  # no other thread gives the batch back before it is copied
            return self._next_batch()

    def _next_batch(self) -> Batch[D, L]:
        started = time.perf_counter()
        try:
            slot, error = self._batches_from.take(self._params.timeout)
        finally:
            self._totals.waited += time.perf_counter() - started
        if error is not None:
            raise error
        totals = self._totals
        if slot.bad:
            totals.note_bad(slot.bad)
        held = slot.still_held()
        batch: Batch[D, L] = Batch(self._batches_from, slot, self._params.copy)
        self._still_held = self._still_held + 1 if held else 0
        if self._still_held == 2:  # one may be a variable that was left over
            self._still_held = 0
            raise ReaderClosedError(
                "arrays of batches that were given back are still held, and later batches "
                "overwrite them",
                found=f"two in a row, before epoch {batch.epoch} step {batch.step}",
                hint="copy what you keep (data.copy()), or open the reader with copy=True",
            )
        totals.batches += 1
        totals.samples += batch.indices.size
        data: Any = batch.data
        totals.bytes += sum(part.nbytes for part in data) if slot.several else data.nbytes
        if self._params.copy and self._params.cuda is False:  # that would wait for the device
            batch.release()
        return batch

    def __iter__(self) -> Iterator[Batch[D, L]]:
        """The current epoch to its end (the rest of it after a resume or an early break, which is
        one warning)."""
        self._check_process()
        self._ring.check_open()
        start = self._delivered
        if start.step and start == self._cut_at:
            self._warn_of_rest(start)
        self._top_up()
        while True:
            if self._params.copy:
                with self._copying:  # several threads that are in loops share the epoch
                    batch = self._next_of(start.epoch)
            else:
                batch = self._next_of(start.epoch)
            if batch is None:
                return
            try:
                yield batch
            except GeneratorExit:  # break, or a loop that nobody goes on with
                self._cut_at = self._delivered
                raise

    def _next_of(self, epoch: int) -> Batch[D, L] | None:
        """The next batch of a loop over ``epoch``; None at its end."""
        delivered = self._delivered
        if delivered.epoch != epoch or self._finished(delivered):
            return None
        if not self._ring.in_flight_now():  # the caller took, or dropped, what was queued
            self._top_up()
        batch = self.getNextBatch()
        self._top_up()
        return batch

    def _warn_of_rest(self, start: Cursor) -> None:
        """Say once that a loop serves the rest of an epoch, because the one before ended early."""
        if not self._warned_of_rest:
            self._warned_of_rest = True
            warnings.warn(
                f"this loop begins inside epoch {start.epoch}, at step {start.step} of "
                f"{len(self)}, since the loop before it ended early: seek({start.epoch}) before "
                f"it serves the whole epoch, seek({start.epoch + 1}) the next one",
                stacklevel=3,
            )

    def _top_up(self) -> None:
        """Queue batches, also of the next epoch, until as many are in flight as may be."""
        endless = self._params.epochs is None
        with self._fetching:  # no other thread fetches between the question and the call
            while self._ring.can_begin() and (endless or not self._finished(self._next)):
                self.fetchData()

    def _finished(self, cursor: Cursor) -> bool:
        return self._params.epochs is not None and cursor.epoch >= self._params.epochs

    def __len__(self) -> int:
        """Batches in a whole epoch on this rank."""
        return self._schedule.steps

    # -- samples by number -----------------------------------------------------------------

    @property
    def dataset(self) -> Dataset:
        """The dataset without an order: its samples by number, labels, paths, classes, statistics.

        It is open for as long as the reader. Raises ReaderClosedError after close().
        """
        self._check_process()
        self._ring.check_open()
        if self._dataset is None or self._dataset.closed:
            assert self._source is not None
            self._dataset = Dataset(self._params, source=self._source, owned=False)
        return self._dataset

    def __getitems__(self, indices: object) -> NoReturn:
        raise ParamsError(
            "an AsyncReader serves whole batches, and its length is a number of batches",
            found="samples asked for by number, as a torch DataLoader does",
            hint="samples are reader.dataset[i]; give the DataLoader reader.dataset, or use "
            "asyncreader.adapters.torch.TorchReader in its place",
        )

    # what a DataLoader with batch_size=None calls
    __getitem__ = __getitems__

    def sample(self, index: int) -> Sample:
        """``dataset.sample(index)``: all that the dataset holds of a sample."""
        return self.dataset.sample(index)

    @property
    def labels(self) -> Array | None:
        """``dataset.labels``: the labels of all samples, or None."""
        return self.dataset.labels

    @property
    def paths(self) -> list[str | None]:
        """``dataset.paths``: the files that the samples were converted from."""
        return self.dataset.paths

    @property
    def class_to_idx(self) -> dict[str, int]:
        """``dataset.class_to_idx``: the label number of each class."""
        return self.dataset.class_to_idx

    @property
    def class_counts(self) -> dict[str | int, int]:
        """``dataset.class_counts``: the number of samples of each class."""
        return self.dataset.class_counts

    # -- cursor ----------------------------------------------------------------------------

    def seek(self, epoch: int, step: int = 0) -> None:
        """Drop what is queued and continue with batch ``step`` of ``epoch``."""
        self._check_process()
        self._go(self._schedule.cursor_at(epoch, step))
        self._cut_at = None

    def _go(self, cursor: Cursor) -> None:
        # meanwhile no other thread fetches or copies what is dropped here
        with self._copying, self._fetching:
            self._batches_from.drop_queued(self._schedule.next_batch_at(cursor))

    # The cursor is read from the ring, which changes it together with the queue: nothing, not even
    # Ctrl-C, can come between the two.

    @property
    def _left(self) -> BatchPlan | Cursor:
        """The batch that left the queue last, or where a seek since then led."""
        left: BatchPlan | Cursor | None = self._ring.left
        return left or Cursor()

    @property
    def _delivered(self) -> Cursor:
        """The cursor of the next batch to be handed out."""
        left = self._left
        return left.after if isinstance(left, BatchPlan) else left

    @property
    def cursor(self) -> Cursor:
        """The place after the batch that was returned last; after an epoch's last batch, its end.

        It is for ``go_to()``. It is not a state: it does not name the dataset or the order.
        """
        left = self._left
        return self._schedule.behind(left) if isinstance(left, BatchPlan) else left

    def go_to(self, cursor: Cursor) -> None:
        """Drop what is queued and continue at ``cursor``; an epoch's end means the next one's
        start.

        If the reader is there already, its batches stay queued. Raises ParamsError if ``cursor`` is
        not a position of this reader.
        """
        self._check_process()
        self._ring.check_open()
        self._schedule.check(cursor, "cursor")
        if self._schedule.next_batch_at(cursor) != self._delivered:
            self._go(cursor)

    @property
    def _next(self) -> Cursor:
        """The cursor after the batch that was fetched last."""
        newest = self._ring.newest()
        return self._delivered if newest is None else newest.after

    def state_dict(self) -> State:
        """Where training stands, as plain JSON values; equal on all ranks.

        It counts the batches that were returned, not those that were fetched ahead.
        """
        self._check_process()
        self._ring.check_open()
        return state_at(self._schedule, self._delivered, self._fingerprint)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where ``state`` says. Raises ParamsError, and changes nothing, if other training
        saved it.

        The order and the dataset must match, but not world_size x batch_size: with another one the
        next batch starts at the next position of the same global order. After shards were added to
        the dataset, a state can be loaded if it is of the start of an epoch, of file order, or with
        a ``subset`` of the earlier samples.
        """
        self._check_process()
        self._ring.check_open()
        assert self._source is not None
        earlier = earlier_fingerprints(self._source)
        self._go(cursor_in(self._schedule, state, self._fingerprint, earlier))
        self._cut_at = None

    @cached_property
    def _fingerprint(self) -> str:
        assert self._source is not None
        return fingerprint(self._source)

    # -- what it serves --------------------------------------------------------------------

    @property
    def params(self) -> ReaderParams:
        """The checked parameters."""
        return self._params

    @property
    def count(self) -> int:
        """The number of samples in an epoch (those of ``subset``)."""
        return self._schedule.length

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label number, or None if the dataset has no names."""
        return self._facts_of_set.classes

    @property
    def data_shape(self) -> Shape | tuple[Shape, ...]:
        """The shape of ``data`` of a whole batch; a tuple with several fields, or views."""
        slot = self._ring.slots[0]
        shapes = tuple(array.shape for array in slot.out)
        return shapes if slot.several else shapes[0]

    @property
    def labels_shape(self) -> Shape | tuple[Shape, ...] | None:
        """The shape of ``labels`` of a whole batch; with several labels a tuple of shapes; None
        without labels."""
        labels = apart(self._ring.slots[0].out_labels)
        if isinstance(labels, tuple):
            return tuple(one.shape for one in labels)
        return None if labels is None else tuple(labels.shape)

    @property
    def dtype(self) -> np.dtype[np.generic] | tuple[np.dtype[np.generic], ...]:
        """The dtype of ``data``; with several fields, or views, a tuple of dtypes."""
        slot = self._ring.slots[0]
        dtypes = tuple(array.dtype for array in slot.out)
        return dtypes if slot.several else dtypes[0]

    def stats(self) -> ReaderStats:
        """A snapshot of counters, and a verdict on what limits training."""
        self._check_process()
        totals, meters = self._totals, list(self._workers.meters)
        if self._ring.fills is not None:
            meters.append(self._ring.fills.meter)
        began, seconds = totals.started, total_seconds(meters)
        return ReaderStats(
            batches=totals.batches,
            samples=totals.samples,
            bytes=totals.bytes,
            wait_seconds=totals.waited,
            elapsed_seconds=0.0 if began is None else time.perf_counter() - began,
            read_seconds=seconds.pop("read", 0.0),
            decode_seconds=seconds.pop("decode", 0.0),
            postprocess_seconds=seconds.pop("postprocess", 0.0),
            queue_depth=self._ring.in_flight_now(),
            bad_samples=totals.bad,
            bad_list=tuple(totals.bad_listed),
            nthread=self._nthread,
            cores=self._cores,
            other_seconds=seconds,
        )

    def __repr__(self) -> str:
        facts = self._facts()
        if not facts:
            why = "closed" if self._ring.closed else f"of process {self._pid}"
            return f"<AsyncReader {self._name} {why}>"
        return "<AsyncReader {} ({}, {}) {}, slots {}>".format(self._name, *facts.values())

    def _repr_html_(self) -> str:
        """A table, with some stored pictures, for notebooks (IPython's rich display)."""
        facts = self._facts()
        if not facts:
            return f"<code>{html.escape(repr(self))}</code>"
        made: str = tools_notebook.set_html(f"AsyncReader {self._name}", facts, self.dataset)
        return made

    @property
    def _name(self) -> str:
        return os.path.basename(self._facts_of_set.path.rstrip("/")) or self._facts_of_set.path

    def _facts(self) -> dict[str, str]:
        """What is served, and its state; in a process that did not open the reader, no state."""
        source = self._source
        # in another process the ring's lock may be held for ever
        if source is None or self._ring.closed or os.getpid() != self._pid:
            return {}
        at, counts = self._delivered, self._ring.counts()
        drawn = " an epoch" if self.count != self._schedule.sampler.population else ""
        kind = f"{self._facts_of_set.container}, {source.spec.encoding}"
        return {
            "set": f"{kind}, {some(self.count, source.rule.noun)}{drawn}",
            "checks": f"verify {self._params.verify}"
            if source.checked
            else "unverified: no checksums",
            "now": f"epoch {at.epoch} batch {at.step}/{len(self)}",
            "slots": ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "none",
        }

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the workers and let go of the file; idempotent, and allowed from any thread."""
        if os.getpid() == self._pid:
            with after_this():
                self._finalizer()
            self._source = None
            if self._dataset is not None:
                self._dataset.close()

    def __reduce__(self) -> tuple[Callable[..., AsyncReader], tuple[dict[str, object], State]]:
        # world_size is said: the copy does not warn
        given = {**self._params.given, "world_size": self._params.world_size}
        return _reopen, (given, self.state_dict())

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ReaderClosedError(
                "this reader belongs to the process that this one was forked from",
                found=f"opened in process {self._pid}, called in {os.getpid()}",
                hint="open a reader in the child",
            )


def next_batch(reader: AsyncReader[D, L]) -> Batch[D, L] | None:
    """The next batch, of the next epoch after an epoch's last one; None after the last epoch. For a
    framework that asks for one batch after the other: it is no loop, and an epoch that it leaves
    half served is no cause to warn."""
    return reader._next_of(reader._delivered.epoch)


def _reopen(params: dict[str, Any], state: dict[str, Any]) -> AsyncReader:
    """A pickled reader, opened again: the same set and cursor, its own threads and slots."""
    reader = AsyncReader(params)
    reader.load_state_dict(state)
    return reader


def _shut_down(pid: int, parts: contextlib.ExitStack) -> None:
    """Close the parts of a reader, the newest first: all, whatever one of them raises."""
    if os.getpid() == pid:  # in a forked child threads and locks are the parent's
        with after_this():
            parts.close()


def _let_go(ring: SlotRing, filler: BatchFiller) -> None:
    if ring.fills is not None:
        ring.fills.let_go()
    filler.let_go()


def _write_trace(trace: Trace, ring: SlotRing, workers: ThreadWorkers | ProcessWorkers) -> None:
    kind = "thread" if isinstance(workers, ThreadWorkers) else "process"
    filled = None if ring.fills is None else ring.fills.meter
    trace.write(workers.meters, kind, len(ring.slots), filled)
