"""AsyncReader: wires source, order, slots and workers, and keeps the place in the epoch."""

from __future__ import annotations

import hashlib
import os
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import FinishedError, ParamsError, ReaderClosedError
from .fill import Fill
from .filling import BatchFiller
from .order import ORDER_VERSION, Cursor, EpochOrder, subset_count
from .params import (
    WINDOW_BYTES,
    ReaderParams,
    parse_params,
    rank_and_world,
    worker_count,
)
from .slots import Slot, SlotRing, aligned_empty
from .sources import Hdf5Fields, Source, fingerprint, open_source
from .sources.arrays import open_arrays
from .stats import Meter, ReaderStats, Totals
from .workers import ThreadWorkers

Array: TypeAlias = npt.NDArray[Any]

#: A batch of raw rows below this is never split: handing parts round costs more than the copy.
SPLIT_BYTES = 1 << 20


class Batch:
    """One minibatch; unpacks to ``(data, labels)``.

    ``data``: (B, C, H, W) or as ``layout`` says; ``labels``: (B, ...) or None; ``indices``: int64
    (B,), record numbers in the file, -1 where padded; ``mask``: bool (B,), False for padded or
    zeroed rows; ``epoch``; ``step``: its number in the epoch. ``data`` and ``labels`` are the
    caller's, to read and write, until the next successful ``getNextBatch()`` (or loop step),
    unless :meth:`keep` was called or the reader was opened with ``copy=True``.
    """

    __slots__ = (
        "__weakref__",
        "_generation",
        "_ring",
        "_slot",
        "data",
        "epoch",
        "indices",
        "labels",
        "mask",
        "step",
    )

    def __init__(self, ring: SlotRing, slot: Slot, copy: bool) -> None:
        plan = slot.plan
        assert plan is not None
        count = plan.indices.size
        data, labels = slot.out_data, slot.out_labels
        if count < data.shape[0]:
            data, labels = data[:count], None if labels is None else labels[:count]
        if copy:
            data = data.copy(order="K")
            labels = None if labels is None else labels.copy()
        self.data: Array = data
        self.labels: Array | None = labels
        self.indices = plan.indices
        self.mask = plan.valid
        self.epoch = plan.epoch
        self.step = plan.step
        self._ring = ring
        self._slot = slot
        self._generation = slot.generation

    def __iter__(self) -> Iterator[Array | None]:
        yield self.data
        yield self.labels

    def __len__(self) -> int:
        return int(self.indices.size)

    def release(self) -> None:
        """Give the batch back before the next one is taken; doing so twice is harmless."""
        self._ring.release(self._slot, self._generation)

    def keep(self) -> Batch:
        """Hold the batch until :meth:`release`; at most ``njob - 1`` can be kept.

        Raises QueueFullError when no more can be kept or the batch was given back already.
        """
        self._ring.keep(self._slot, self._generation)
        return self

    def __repr__(self) -> str:
        shape = "x".join(str(n) for n in self.data.shape)
        return f"<Batch epoch {self.epoch} step {self.step}: {shape} {self.data.dtype}>"


class AsyncReader:
    """Shuffled fixed-shape minibatches from packed files, filled ahead by a pool of workers.

    ``params``: dict, see the table in README; keywords override it. Raises ParamsError,
    SourceNotFoundError, FormatError or WorkerError (postprocess failed its trial call).
    """

    def __init__(self, params: Mapping[str, Any] | None = None, /, **overrides: Any) -> None:
        self._params = p = parse_params(params, overrides)
        self._rank, world_size = rank_and_world(p)
        self._source = source = _open(p)
        self._closed = False
        try:
            spec = source.spec
            self._fill = fill = Fill(spec.stored, p.wanted, spec.path)
            subset = _resolve_subset(p.subset, spec.count)
            count = subset_count(subset, spec.count)
            self._order = _order(p, self._rank, world_size, source, fill, subset, count)
            if self._order.steps == 0:
                raise ParamsError(
                    "an epoch would have no batch",
                    found=f"{count} samples, batch_size x world_size = {self._order.global_batch}",
                    hint='lower batch_size, or last_batch="pad", "wrap" or "short"',
                )
            if p.verify == "always" and not spec.checksums:
                raise ParamsError(
                    'verify="always" of a set without checksums',
                    path=spec.path,
                    hint="pack it with asyncreader convert, which records them",
                )
            self._filler = BatchFiller(
                source,
                fill,
                self._order,
                on_error=p.on_error,
                verify=p.verify,
                postprocess=p.postprocess,
            )
            slots = self._make_slots()
            self._nthread = worker_count(p)
            self._ring = SlotRing(slots, p.njob, p.debug)
            self._workers = ThreadWorkers(
                self._nthread, self._ring, self._filler, "asyncreader-fill"
            )
            self._workers.start()
        except BaseException:
            source.close()
            raise
        self._parts = self._choose_parts()
        self._next = self._order.settle(Cursor())
        self._delivered = self._next
        self._coming: deque[Cursor] = deque()
        self._totals = Totals()
        self._pid = os.getpid()
        self._fingerprint: str | None = None
        # also runs at interpreter exit, before threads and libraries are torn down
        self._finalizer = weakref.finalize(
            self, _shut_down, self._pid, self._ring, self._workers, source
        )

    # -- construction ----------------------------------------------------------------------

    def _make_slots(self) -> list[Slot]:
        p, fill, source = self._params, self._fill, self._source
        labels_shape = None if source.labels is None else source.labels.shape[1:]
        slots: list[Slot] = []
        for number in range(p.njob + 1):
            rows = aligned_empty(fill.allocate_shape(p.batch_size), fill.dtype)
            labels = None
            if labels_shape is not None and source.labels is not None:
                labels = aligned_empty((p.batch_size, *labels_shape), source.labels.dtype)
            slots.append(Slot(number, rows, labels, fill.handed_out(rows), labels))
        if p.postprocess is not None:
            self._trial(slots)
        return slots

    def _trial(self, slots: list[Slot]) -> None:
        """Call postprocess once on real rows, to learn the shape of what it returns."""
        filler = BatchFiller(
            self._source,
            self._fill,
            self._order,
            on_error="zero",
            verify="never",
            postprocess=self._params.postprocess,
        )
        first = slots[0]
        first.plan = plan = self._order.plan(self._order.settle(Cursor()))
        count = plan.indices.size
        filler.fill_part(first, 0, count, Meter())
        data = self._fill.handed_out(first.rows[:count])
        labels = None if first.labels is None else first.labels[:count]
        result = filler.call_postprocess(data, labels, plan.rng_key)
        if result is None:
            return
        made_data = np.asarray(result[0])
        made_labels = None if result[1] is None else np.asarray(result[1])
        for slot in slots:
            slot.out_data = aligned_empty(made_data.shape, made_data.dtype)
            slot.out_labels = (
                None if made_labels is None else aligned_empty(made_labels.shape, made_labels.dtype)
            )

    def _choose_parts(self) -> int:
        """Tasks that a batch is cut into: enough to keep every thread busy with njob batches."""
        p = self._params
        cheap = self._fill.row_bytes * p.batch_size < SPLIT_BYTES
        if cheap and not self._source.spec.stored.encoded:
            return 1
        return -(-self._nthread // p.njob)

    # -- the training loop -----------------------------------------------------------------

    def fetchData(self) -> bool:
        """Queue the next batch and return at once: True when it is the last of its epoch.

        Raises QueueFullError with ``njob`` batches in flight, FinishedError past the last epoch,
        ReaderClosedError after close().
        """
        self._check_process()
        self._ring.check_open()
        cursor = self._next
        if self._finished(cursor):
            raise FinishedError(
                f"all {self._params.epochs} epochs have been fetched",
                hint="seek() back, or open the reader with more epochs",
            )
        self._ring.begin_check()
        plan = self._order.plan(cursor)
        after = self._order.advance(cursor)
        if self._totals.started is None:
            self._totals.started = time.perf_counter()
        self._coming.append(after)
        try:
            self._ring.begin(plan, self._parts)
        except BaseException:
            self._coming.pop()
            raise
        self._next = after
        return plan.last

    def getNextBatch(self) -> Batch:
        """Wait for the oldest queued batch and hand it out; the one before is given back.

        Raises NothingQueuedError at once when none is queued, ReaderTimeoutError after ``timeout``
        seconds, or the error of that batch (the next call goes on behind it).
        """
        self._check_process()
        started = time.perf_counter()
        try:
            slot, error = self._ring.take(self._params.timeout)
        finally:
            self._totals.waited += time.perf_counter() - started
        self._delivered = self._coming.popleft()
        if error is not None:
            raise error
        totals = self._totals
        if slot.bad:
            totals.note_bad(slot.bad)
        batch = Batch(self._ring, slot, self._params.copy)
        totals.batches += 1
        totals.samples += len(batch)
        totals.bytes += batch.data.nbytes
        if self._params.copy:
            batch.release()
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """The current epoch to its end (the rest of it after a resume or an early break)."""
        self._check_process()
        self._ring.check_open()
        epoch = self._delivered.epoch
        while self._delivered.epoch == epoch and not self._finished(self._delivered):
            self._top_up()
            batch = self.getNextBatch()
            self._top_up()
            yield batch

    def _top_up(self) -> None:
        """Queue batches, also of the next epoch, until as many are in flight as may be."""
        while self._ring.has_room() and not self._finished(self._next):
            self.fetchData()

    def _finished(self, cursor: Cursor) -> bool:
        return self._params.epochs is not None and cursor.epoch >= self._params.epochs

    def __len__(self) -> int:
        """Batches in a whole epoch on this rank."""
        return self._order.steps

    # -- place -----------------------------------------------------------------------------

    def seek(self, epoch: int, step: int = 0) -> None:
        """Drop what is queued and go on with batch ``step`` of ``epoch``."""
        self._check_process()
        for name, value, high in (("epoch", epoch, None), ("step", step, len(self))):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
                raise ParamsError(f"{name} must be a whole number", found=repr(value))
            if high is not None and value >= high:
                raise ParamsError(
                    "no such step", found=step, expected=f"below {high}, the steps of an epoch"
                )
        self._go(Cursor(int(epoch), int(step) * self._order.global_batch, int(step)))

    def _go(self, cursor: Cursor) -> None:
        self._ring.drop_queued()
        self._coming.clear()
        self._next = self._delivered = self._order.settle(cursor)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands, as plain JSON values; equal on all ranks.

        Counts what was handed out, not what was fetched ahead.
        """
        self._check_process()
        at = self._delivered
        return {
            "epoch": at.epoch,
            "samples": at.position,
            "steps": at.step,
            "global_batch": self._order.global_batch,
            **self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where ``state`` says. ParamsError, and nothing changed, if it is of other training.

        Everything must match but world_size x batch_size: with another one the next batch starts
        at the next position of the same global order.
        """
        self._check_process()
        if not isinstance(state, Mapping):
            raise ParamsError("not a state", found=type(state).__name__, expected="a dict")
        missing = [
            name
            for name in ("epoch", "samples", "steps", "global_batch", *self._identity())
            if name not in state
        ]
        if missing:
            raise ParamsError("the state lacks fields", found=", ".join(missing))
        for name, mine in self._identity().items():
            if state[name] != mine:
                raise ParamsError(
                    f"the state is of other training: {name} differs",
                    found=state[name],
                    expected=mine,
                    hint="resume with the same parameters on the same data set",
                )
        numbers = [state[name] for name in ("epoch", "samples", "steps")]
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers):
            raise ParamsError("the state's numbers make no sense", found=numbers)
        if numbers[1] > self._order.count:
            raise ParamsError(
                "the state is past the end of its epoch",
                found=numbers[1],
                expected=f"at most {self._order.count} samples",
            )
        self._go(Cursor(*numbers))

    def _identity(self) -> dict[str, Any]:
        order = self._order
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._source)
            if order.subset is not None:
                chosen = (
                    str(order.subset).encode()
                    if isinstance(order.subset, slice)
                    else order.subset.tobytes()
                )
                self._fingerprint += ":" + hashlib.sha256(chosen).hexdigest()[:16]
        block = order.shuffle == "block"
        return {
            "seed": order.seed,
            "shuffle": order.shuffle,
            "window": order.window if block else None,
            "block": order.block if block else None,
            "last_batch": order.last_batch,
            "order_version": ORDER_VERSION,
            "fingerprint": self._fingerprint,
        }

    # -- what it serves --------------------------------------------------------------------

    @property
    def params(self) -> ReaderParams:
        """The checked parameters."""
        return self._params

    @property
    def count(self) -> int:
        """Samples in an epoch's order (those of ``subset``)."""
        return self._order.count

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label number, where the set has them."""
        return self._source.spec.classes

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Shape of a whole batch's ``data``."""
        return tuple(self._ring.slots[0].out_data.shape)

    @property
    def labels_shape(self) -> tuple[int, ...] | None:
        """Shape of a whole batch's ``labels``; None without labels."""
        labels = self._ring.slots[0].out_labels
        return None if labels is None else tuple(labels.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of ``data``."""
        return self._ring.slots[0].out_data.dtype

    def stats(self) -> ReaderStats:
        """A frozen snapshot of counters, and a verdict on what limits training."""
        totals, meters = self._totals, self._workers.meters
        began = totals.started
        return ReaderStats(
            batches=totals.batches,
            samples=totals.samples,
            bytes=totals.bytes,
            wait_seconds=totals.waited,
            elapsed_seconds=0.0 if began is None else time.perf_counter() - began,
            read_seconds=sum(meter.read for meter in meters),
            decode_seconds=sum(meter.decode for meter in meters),
            postprocess_seconds=sum(meter.postprocess for meter in meters),
            queue_depth=self._ring.in_flight_now(),
            bad_samples=totals.bad,
            bad_list=tuple(totals.bad_listed),
            nthread=self._nthread,
        )

    def __repr__(self) -> str:
        spec = self._source.spec
        name = os.path.basename(spec.path.rstrip("/")) or spec.path
        if self._ring.closed:
            return f"<AsyncReader {name} closed>"
        counts = self._ring.counts()
        slots = ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "none"
        checks = f"verify {self._params.verify}" if spec.checksums else "unverified: no checksums"
        return (
            f"<AsyncReader {name} ({spec.container}, {spec.encoding}, {self.count} samples, "
            f"{checks}) epoch {self._delivered.epoch} batch {self._delivered.step}/{len(self)}, "
            f"slots {slots}>"
        )

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the workers and let go of the file; idempotent, and allowed from any thread."""
        if os.getpid() == self._pid:
            self._finalizer()

    def __enter__(self) -> AsyncReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        p = self._params
        given = {
            name: getattr(p, name)
            for name in p.__dataclass_fields__
            if getattr(p, name) is not p.__dataclass_fields__[name].default
        }
        return _reopen, (given, self.state_dict())

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ReaderClosedError(
                "this reader belongs to the process that this one was forked from",
                found=f"opened in process {self._pid}, called in {os.getpid()}",
                hint="open a reader in the child",
            )


def _reopen(params: dict[str, Any], state: dict[str, Any]) -> AsyncReader:
    """A pickled reader on the other side: the same set and place, its own threads and slots."""
    reader = AsyncReader(params)
    reader.load_state_dict(state)
    return reader


def _shut_down(pid: int, ring: SlotRing, workers: ThreadWorkers, source: Source) -> None:
    if os.getpid() != pid:
        return  # a forked child: threads and locks are the parent's
    ring.close()
    workers.stop()
    source.close()


def _open(p: ReaderParams) -> Source:
    if p.data is not None:
        return _open_arrays(p)
    fields = Hdf5Fields(
        data=p.data_field,
        labels=p.labels_field,
        labels_path=p.labels_path,
        dims=p.dims,
        labels_required=p.labels_field != "labels" or p.labels_path is not None,
    )
    for value, expect in ((p.hdf5_path, "HDF5"), (p.lmdb_path, "LMDB")):
        if value is not None:
            return open_source(value, fields, io=p.io, expect=expect)
    return open_source(p.path, fields, io=p.io)


def _open_arrays(p: ReaderParams) -> Source:
    """Arrays as they are; an h5py data set is reopened by its path, off h5py's global lock."""
    name = getattr(p.data, "name", None)
    file = getattr(p.data, "file", None)
    if isinstance(name, str) and file is not None and type(p.data).__module__.startswith("h5py"):
        fields = Hdf5Fields(data=name, labels=None, dims=p.dims)
        source = open_source(file.filename, fields, io=p.io)
        if p.labels is not None:
            from .sources.arrays import label_array

            source.labels = label_array(p.labels[()], source.spec.count)
        return source
    return open_arrays(p.data, p.labels, p.dims)


def _resolve_subset(subset: Any, total: int) -> slice | npt.NDArray[np.int64] | None:
    if subset is None:
        return None
    if isinstance(subset, str):
        raise ParamsError(
            f"no split {subset!r} in the file", hint="pass a slice or an array of record numbers"
        )
    if isinstance(subset, slice):
        start, stop, step = subset.indices(total)
        if not range(start, stop, step):
            raise ParamsError("subset selects nothing", found=f"{subset} of {total} samples")
        return slice(start, stop, step)
    chosen: npt.NDArray[np.int64] = subset
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= total:
        raise ParamsError(
            "subset names records that are not there",
            found=f"{low if low < 0 else high}",
            expected=f"0 to {total - 1}",
        )
    return chosen


def _order(
    p: ReaderParams,
    rank: int,
    world_size: int,
    source: Source,
    fill: Fill,
    subset: slice | npt.NDArray[np.int64] | None,
    count: int,
) -> EpochOrder:
    if p.last_batch == "short" and world_size != 1:
        raise ParamsError('last_batch="short" needs world_size 1', found=f"{world_size}")
    stored = source.spec.stored
    decoded = (
        int(np.prod(stored.shape)) * stored.dtype.itemsize
        if stored.shape is not None
        else fill.row_bytes
    )
    block = source.spec.block
    window = max(1, min(p.shuffle_window, WINDOW_BYTES // max(1, decoded)))
    return EpochOrder(
        count=count,
        seed=p.seed,
        shuffle=p.shuffle,
        block=block,
        window=max(block, window // block * block),
        batch=p.batch_size,
        rank=rank,
        world_size=world_size,
        last_batch=p.last_batch,
        subset=subset,
    )
