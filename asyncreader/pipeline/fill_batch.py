"""What a worker does with a batch: read its rows, handle bad samples, run the stages."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..errors import AsyncReaderError, ParamsError, SampleError, SourceError, WorkerError
from ..params.reader import ReaderParams
from ..pixels.row_maker import RowFiller, RowMaker, RowTables, RowView
from ..pixels.specs import OutputSpec, SampleSpec
from ..pixels.tables import ALWAYS, NEVER, NO_STARTS, UNSEEN, RowsInMemory, file_table
from ..pixels.transform import plan_rows
from ..pixels.user_transform import Field, LabelSpec, Transform
from ..sampling.schedule import BatchPlan, Schedule
from ..sources import OpenSet, RowError, RowJob
from ..stats import BadRow, Meter
from ..system.array_types import Array, Int64, UInt8, UInt64
from ..system.keyed_random import key_of
from ..system.late import tables_of
from ..system.memory import SCRATCH, address_of
from .fill_queue import FillQueue
from .slots import Allocate, Part, Slot
from .stages import Stage
from .trace import named_by, note

#: Replacement samples tried for one bad sample before the batch fails.
ATTEMPTS: Final = 16

#: Samples whose checks are remembered, a byte each (1 GiB). In a larger set every sample is checked
#: each time it is read; most are read once in a training.
MOST_MARKED: Final = 1 << 30

#: Samples are read and changed in groups of about this many bytes.
_GROUP_BYTES: Final = 4 << 20

#: Keeps what the last steps draw apart from what those before the transform drew.
_LAST: Final = 0x4C41


@dataclass(eq=False, repr=False)
class BatchFiller:
    """Fills slots with the fields of a set. All workers of a reader share one.

    ``fills``: how each field becomes rows; ``stages``: what is done with each batch then.
    ``seen`` (uint8 per sample, made by ``allocate``) marks samples whose checksum has passed, with
    verify="first". ``label``: of a row, where steps make it. ``together``: reads the fields where a
    transform changes them together. Of ``p`` it takes ``verify``, ``on_error`` and
    ``trace``, with which the workers' meters record what was done when.
    """

    p: InitVar[ReaderParams]
    source: OpenSet
    fills: tuple[RowMaker, ...]
    schedule: Schedule
    stages: Sequence[Stage]
    label: LabelSpec | None
    together: Together | None
    allocate: InitVar[Allocate]

    def __post_init__(self, p: ReaderParams, allocate: Allocate) -> None:
        source, fills, together = self.source, self.fills, self.together is not None
        self._random = together or any(one.random for one in fills)
        self._stepped = together or any(one.wanted.steps for one in fills)
        self._on_error = p.on_error
        self._traced = p.trace is not None
        checked = any(one.checked != "none" for one in source.index.fields.values())
        self._verify = p.verify if checked else "never"
        # a window has more rows than the one that would be marked
        many = source.rule.apart or source.facts.count > MOST_MARKED
        if self._verify == "first" and many:
            self._verify = "always"
        #: rows of a sample of each field, None where there is no axis for them
        self._widths: list[int | None] = [None] * len(fills)
        if len(fills) == len(source.names):
            self._widths = [*map(source.rule.width, source.names)]
        widths = zip(fills, self._widths, strict=True)
        #: of the rows of a batch
        rows = self.schedule.batch
        self.slot_bytes = sum(fill.sample_bytes * (w or 1) for fill, w in widths) * rows
        self.seen: UInt8 | None = None
        if self._verify == "first":
            self.seen = allocate((source.facts.count,), np.dtype(np.uint8))
        self._tables: RowTables | None = None
        # each batch asks: of one field that field
        self._in_memory = source.in_memory if len(source.parts) > 1 else source.first.in_memory

    def handed_out(
        self, rows: Sequence[Array], fills: Sequence[RowMaker] | None = None
    ) -> tuple[Array, ...]:
        """The views of a slot's memory that the user gets, one for each array; ``fills``: how it
        was filled, if not as usual."""
        pairs = zip(fills or self.fills, rows, strict=True)
        return tuple(fill.handed_out(array) for fill, array in pairs)

    def rows(self, samples: int, fills: Sequence[RowMaker] | None = None) -> tuple[Part, ...]:
        """The memory of so many samples, of each array: (B, ...), or (B, W, ...) of windows."""
        return tuple(
            Part(shape if width is None else (shape[0], width, *shape[1:]), fill.dtype)
            for fill, width in zip(fills or self.fills, self._widths, strict=True)
            for shape in [fill.allocate_shape(samples)]
        )

    # made when the first batch is filled: by then the slots are known to fit in memory
    @cached_property
    def _rows(self) -> Int64:
        return np.arange(self.schedule.batch, dtype=np.int64)

    @cached_property
    def _no_keys(self) -> UInt64:
        return np.zeros(self.schedule.batch, np.uint64)

    def find_tables(self) -> RowTables | None:
        """How compiled code fills batches. None if it cannot, or not yet: rows of shards are in
        memory when all of them were read."""
        if self._tables is None and self._fillers and self.source.in_memory(0):
            self._tables = self._make_tables()
        return self._tables

    @cached_property
    def _fillers(self) -> list[RowFiller]:
        """What fills each field in compiled code; none where that is not all there is to a row."""
        source, fills, several = self.source, self.fills, len(self.fills) > 1
        check = {"never": NEVER, "first": UNSEEN, "always": ALWAYS}[self._verify]
        # a sample of several fields is seen when all of them are
        if self.together is not None or len(fills) != len(source.names):
            return []
        if any(map(source.rule.is_whole, source.names)) or (several and check == UNSEEN):
            return []
        found = []
        for fill, width in zip(fills, (width or 1 for width in self._widths), strict=True):
            filler = fill.filler(fill.row_bytes * width * self.schedule.batch)
            if filler is None or (several and filler.kernel != "copy_batches"):
                return []
            found.append(filler.having(check=check, window=width))
        return found

    def _make_tables(self) -> RowTables | None:
        source, labels, own = self.source, self.source.labels, self.source.own_records
        tables = [] if labels is None else tables_of(labels)
        if tables is None or not all(t.flags.c_contiguous and t.nbytes for t in tables):
            return None
        size = tables[0].nbytes // tables[0].shape[0] if tables else 0
        held = [part.in_memory(0) for part in source.parts]
        alive = held, tables, self.seen
        fillers = [one.having(seen=address_of(self.seen)) for one in self._fillers]
        if len(held) == 1 and not source.rule.apart:
            filler = fillers[0].having(label_bytes=size)
            return RowTables.of([filler], [file_table(held[0], tables)], alive=alive)
        files = [file_table(one, ()) for one in held]
        if not tables:
            return RowTables.of(fillers, files, own, alive)
        # labels are a field of their own: samples have other numbers than rows
        rows = [RowsInMemory(len(t), t.ctypes.data, NO_STARTS, 0, size) for t in tables]
        fillers.append(RowFiller.copying(size))
        files.append(file_table(rows, ()))
        return RowTables.of(fillers, files, lambda records: (*own(records), records), alive)

    def let_go(self) -> None:
        """Own files no longer: the set is closed."""
        self._tables = None

    def trial(self, stages: int) -> BatchFiller:
        """The same filler with the first of its stages only, for a batch that must not fail."""
        other = copy.copy(self)
        other.stages = self.stages[:stages]
        # a bad sample among the first must not keep the reader from opening
        other._on_error, other._verify, other.seen = "zero", "never", None
        return other

    def fill_queue(self, slots: Sequence[Slot], servers: int) -> FillQueue | None:
        """The queue for batches that compiled code fills; None if it cannot be used, or not yet."""
        tables = None if self.stages or not FillQueue.available() else self.find_tables()
        if tables is None:
            return None
        return FillQueue(slots, tables, servers, self._traced)

    def only_compiled(self, plan: BatchPlan) -> bool:
        """Whether compiled code can fill a batch now: no padding, and all rows are in memory."""
        return not plan.padded and bool(self._in_memory(self.slot_bytes))

    # -- rows ------------------------------------------------------------------------------

    def fill_part(self, slot: Slot, lo: int, hi: int, meter: Meter) -> None:
        """Fill rows ``lo`` to ``hi`` of a slot. What it raises is the error of the whole batch."""
        started, before = time.perf_counter(), dict(meter.seconds)
        try:
            self._fill_rows(slot, slot.plan, lo, hi, meter)
        finally:
            now, inside = time.perf_counter(), meter.since(before)
            if self._traced:
                steps = {f"{name}_ms": round(s * 1e3, 3) for name, s in inside.items()}
                self._note(meter, "fill", started, now, slot, {"rows": f"{lo}:{hi}", **steps})
        meter.seconds["read"] += now - started - sum(inside.values())

    def _fill_rows(self, slot: Slot, plan: BatchPlan, lo: int, hi: int, meter: Meter) -> None:
        tables = self._tables
        if tables is not None and self.only_compiled(plan):
            labels = None if slot.labels is None else slot.labels[lo:hi]
            outs, key = [array[lo:hi] for array in slot.rows], plan.signed_key
            if tables.fill(plan.indices[lo:hi], outs, labels, key, plan.start + lo):
                return
        records = plan.indices[lo:hi]
        rows = self._rows[lo:hi]
        # keys are computed only if something is random
        keys = plan.keys_of(lo, hi) if self._random else self._no_keys[lo:hi]
        if plan.padded:
            valid = plan.valid[lo:hi]
            self._blank(slot, rows[~valid])
            records, rows, keys = records[valid], rows[valid], keys[valid]
        errors = self._read(records, rows, keys, slot, meter)
        for bad in sorted(errors, key=lambda error: error.row) if errors else ():
            self._handle_bad(slot, plan, bad, meter)
        if slot.labels is not None and self.label is None:
            self._labels(slot, plan, lo, hi)

    def _note(
        self, meter: Meter, name: str, begun: float, ended: float, slot: Slot, more: dict[str, Any]
    ) -> None:
        """Record a span of a worker for the trace."""
        note(meter, [(name, begun, ended, {**named_by(slot.plan), "slot": slot.number, **more})])

    def _read(
        self, records: Int64, rows: Int64, keys: UInt64, slot: Slot, meter: Meter
    ) -> tuple[RowError, ...]:
        if records.size == 0:
            return ()
        wanted = RowJob(records, rows, keys)
        if self._stepped:
            table, made = self.source.labels, None if self.label is None else slot.labels
            labels = None if table is None else table[records]
            wanted = wanted._replace(positions=rows + slot.plan.start, labels=labels, made=made)
        return self.read(wanted, self.fills, slot.rows, meter)

    def read(
        self, job: RowJob, fills: Sequence[RowMaker], outs: Sequence[Array], meter: Meter
    ) -> tuple[RowError, ...]:
        """Read samples, their checksums compared as ``verify`` says, into the memory of each field.
        The rows of bad samples are in the errors; what is in them is not defined."""
        check, records = None, job.records
        if self._verify == "always":
            check = np.ones(records.size, np.bool_)
        elif self.seen is not None:
            unseen = self.seen[records] == 0
            check = unseen if unseen.any() else None
        job = job._replace(check=check)
        try:
            if self.together is not None:
                errors = self.together.read_fields(job, outs, meter)
            else:
                errors = self.source.read_fields(job, fills, outs, meter)
        except AsyncReaderError as exc:
            raise self.source.rule.told(exc) from exc.__cause__
        except OSError as exc:
            raise SourceError(f"reading failed: {exc}", path=self.source.facts.path) from exc
        for bad in errors:
            self.source.rule.told(bad.error)
        if self.seen is not None and check is not None:
            if errors:
                check &= ~np.isin(job.rows, [bad.row for bad in errors])
            self.seen[records[check]] = 1
        return errors

    def _handle_bad(self, slot: Slot, plan: BatchPlan, bad: RowError, meter: Meter) -> None:
        """Handle one bad row as ``on_error`` says."""
        if self._on_error == "raise":
            raise bad.error
        row = bad.row
        bad.error.hint = None  # it is left out: advice to do so would end each line
        (record,) = self.source.rule.shown(plan.indices[row : row + 1]).tolist()
        what = row, record, str(bad.error)
        if self._on_error == "zero":
            self._blank(slot, np.array([row]))
            slot.bad.append(BadRow(*what, None))
            return
        last: SampleError = bad.error
        sampler = self.schedule.sampler
        for record in sampler.replacements(plan.epoch, plan.start + row, ATTEMPTS).tolist():
            errors = self._read(
                np.array([record], np.int64),
                np.array([row], np.int64),
                plan.keys_of(row, row + 1),
                slot,
                meter,
            )
            if not errors:
                slot.bad.append(BadRow(*what, record))
                return
            last = errors[0].error
        raise SampleError(
            f"{ATTEMPTS} replacement samples for a bad sample were bad too",
            path=bad.error.path,
            index=bad.error.index,
            hint="the dataset is damaged: run asyncreader verify on it",
        ) from last

    def _blank(self, slot: Slot, rows: Int64) -> None:
        for array in slot.rows:
            array[rows] = 0
        if slot.labels is not None:
            slot.labels[rows] = 0

    def _labels(self, slot: Slot, plan: BatchPlan, lo: int, hi: int) -> None:
        table = self.source.labels  # labels of shards are not an array
        assert table is not None
        assert slot.labels is not None
        if isinstance(table, np.ndarray) and not plan.padded and not slot.bad:
            # the method: np.take() takes 2 us longer
            table.take(plan.indices[lo:hi], 0, slot.labels[lo:hi], "clip")
            return
        records, mask = slot.served()
        rows = np.flatnonzero(mask[lo:hi]) + lo
        slot.labels[rows] = table[records[rows]]

    # -- the whole batch -------------------------------------------------------------------

    def finish(self, slot: Slot, meter: Meter) -> None:
        """Run the stages on a filled batch. What one raises is the error of the whole batch."""
        plan = slot.plan
        if slot.bad or self.source.rule.renumbered:  # stages are told what is served
            records, mask = slot.served()
            plan = plan._replace(indices=self.source.rule.shown(records), valid=mask)
        for number, stage in enumerate(self.stages):
            started = time.perf_counter()
            try:
                stage.run(slot.batch_rows(number), slot.batch_rows(number + 1), plan)
            finally:
                now = time.perf_counter()
                if self._traced:
                    self._note(meter, stage.name, started, now, slot, {})
            meter.seconds[stage.name] += now - started


# -- fields that a transform changes together ----------------------------------------------------


class Together:
    """Several fields of a set, changed by the user's ``transform``.

    ``before``: how each field becomes what the function gets; ``fills``: how what it returns
    becomes rows of a slot, () while a trial call has to say what that is.
    """

    def __init__(self, source: OpenSet, wanted: OutputSpec, transform: Transform) -> None:
        if wanted.layout == "planes":
            raise ParamsError('transform works on images, and layout="planes" serves none')
        self._source = source
        steps = tuple(step for step in wanted.steps if not step.last)
        plain = OutputSpec(layout=wanted.layout)
        uncast = {name: getattr(plain, name) for name in ("dtype", "scale", "mean", "std")}
        # members are chosen before the function, values are cast and normalised after it
        members = {
            name: {"members": one["members"]}
            for name, one in wanted.by_field.items()
            if "members" in one
        }
        raw = replace(wanted, **uncast, contiguous=False, steps=steps, by_field=members)
        self.before = source.fills(raw)
        kinds = [self._kind(number, name, wanted) for number, name in enumerate(source.names)]
        self.transform = replace(transform, fields=tuple(kinds))
        if type(transform.function).__module__.startswith("albumentations"):
            self._check_albumentations()
        self.fills: tuple[RowMaker, ...] = ()
        if transform.made is not None:
            plain = replace(plain, contiguous=wanted.contiguous)
            asked, given = wanted, list[OutputSpec]()
            for name in source.names:
                own = asked.for_field(name)
                given.append(replace(plain, **{what: getattr(own, what) for what in uncast}))
                asked = replace(wanted, **uncast)  # without more said, they are of the first alone
            given[0] = replace(given[0], steps=tuple(step for step in wanted.steps if step.last))
            self.fills = tuple(
                plan_rows(_stored(fill, shape), one, source.facts.path)
                for fill, shape, one in zip(self.before, transform.made.shapes, given, strict=True)
            )

    def _kind(self, number: int, name: str, wanted: OutputSpec) -> Field:
        if name in (wanted.boxes, wanted.keypoints):
            return Field(name, "boxes" if name == wanted.boxes else "keypoints")
        if self.before[number].stored.axes is None:
            return Field(name, "numbers")
        return Field(name, "mask" if number else "image")

    def _check_albumentations(self) -> None:
        odd = [one.name for one in self.transform.fields[1:] if one.kind != "mask"]
        if odd:
            raise ParamsError(
                "a transform of albumentations gets images and label maps",
                found=", ".join(map(repr, odd)),
                hint="call it in a function of your own: f(fields, label, rng)",
            )

    def read_fields(self, job: RowJob, outs: Sequence[Array], meter: Meter) -> tuple[RowError, ...]:
        """Fill rows of each field's memory, as OpenSet.read_fields does. WorkerError, with the
        record, where the function fails."""
        size = sum(fill.row_bytes for fill in self.before)
        together, errors = max(1, _GROUP_BYTES // size), list[RowError]()
        if self._source.facts.remote:  # request all before waiting for the first group
            self._source.prefetch(job.records)
        for first in range(0, job.records.size, together):
            errors += self._read(job.pick(slice(first, first + together)), outs, meter)
        return tuple(errors)

    def _read(self, job: RowJob, outs: Sequence[Array], meter: Meter) -> list[RowError]:
        count = job.records.size
        held = [
            SCRATCH.array(f"field {k}", fill.allocate_shape(count), fill.dtype)
            for k, fill in enumerate(self.before)
        ]
        lines = np.arange(count, dtype=np.int64)
        bad = self._source.read_fields(
            job._replace(rows=lines, made=None), self.before, held, meter
        )
        lost = {one.row for one in bad}
        for i in lines.tolist():
            if meter.stopped:
                break
            if i not in lost:
                self._change(i, job, held, outs, meter)
        return [replace(one, row=int(job.rows[one.row])) for one in bad]

    def _change(
        self, i: int, job: RowJob, held: Sequence[Array], outs: Sequence[Array], meter: Meter
    ) -> None:
        """Call the function for sample ``i``, and write what it returns into its row."""
        row, started, told = int(job.rows[i]), time.perf_counter(), job.told(i, meter.seconds)
        given = (fill.image(rows[i]) for fill, rows in zip(self.before, held, strict=True))
        try:
            made = self.transform.of(tuple(given), told)
            meter.seconds[self.transform.name] += time.perf_counter() - started
            last = replace(told, key=key_of(told.key, _LAST))
            for fill, image, out in zip(self.fills, made, outs, strict=bool(self.fills)):
                axes = fill.stored.axes
                if axes is not None:
                    image = image.transpose(["HWC".index(axis) for axis in axes])
                fill.put(image, RowView(fill, None, False, out[row, ...], last))
        except (ParamsError, WorkerError) as exc:
            self._source.first.located(exc, told.record)
            raise
        if job.made is not None and self.fills:
            job.made[row] = told.label


def _stored(fill: RowMaker, shape: tuple[int, ...]) -> SampleSpec:
    """What the function returned of a field that ``fill`` made, as if a set held it."""
    was, dtype = fill.stored, fill.dtype
    if was.axes is None:
        return SampleSpec(shape, dtype, None)
    sizes = dict(zip("HWC", shape, strict=True))
    return SampleSpec(
        tuple(sizes[axis] for axis in was.axes),
        dtype,
        was.axes,
        channels=shape[2],
        flat=was.flat and shape[2] == 1,
        as_stored=was.as_stored,
    )
