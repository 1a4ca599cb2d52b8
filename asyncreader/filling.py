"""What a worker does with a batch: read its rows, settle bad samples, run postprocess."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import AsyncReaderError, SampleError, SourceError, WorkerError
from .fill import Fill
from .order import BatchPlan, EpochOrder
from .slots import Slot
from .sources import RowError, RowPlan, Source
from .stats import Meter

Array: TypeAlias = npt.NDArray[Any]
Int64: TypeAlias = npt.NDArray[np.int64]
Postprocess: TypeAlias = Callable[..., Any]

#: Stand-ins tried for one bad sample before the batch fails.
ATTEMPTS: Final = 16

#: Samples whose marks (1 GiB of them) say which were checked before: in a larger set all are
#: checked each time they are read, which for most is once in a training.
MOST_MARKED: Final = 1 << 30


def takes_rng(function: Postprocess) -> bool:
    """Whether ``function`` takes (data, labels, rng) rather than (data, labels)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, None, None)
    except TypeError:
        return False
    # f(data, labels, alpha=0.5) binds three too, but did not ask for a generator
    named = list(signature.parameters.values())
    if len(named) < 3:
        return True
    return named[2].default is inspect.Parameter.empty or named[2].name == "rng"


class BatchFiller:
    """Fills slots from one source; used by all workers of a reader at once.

    ``seen`` (uint8 per sample) marks samples whose checksum has passed, with verify="first".
    """

    def __init__(
        self,
        source: Source,
        fill: Fill,
        order: EpochOrder,
        *,
        on_error: str,
        verify: str,
        postprocess: Postprocess | None,
    ) -> None:
        self.source = source
        self.fill = fill
        self.order = order
        self._on_error = on_error
        self._rows: Int64 = np.arange(order.batch, dtype=np.int64)
        self._no_keys: npt.NDArray[np.uint64] = np.zeros(order.batch, np.uint64)
        parts = getattr(source, "parts", (source,))
        self._verify = verify if any(part.spec.checksums for part in parts) else "never"
        if self._verify == "first" and source.spec.count > MOST_MARKED:
            self._verify = "always"
        self._postprocess = postprocess
        self._with_rng = postprocess is not None and takes_rng(postprocess)
        self.seen: npt.NDArray[np.uint8] | None = (
            np.zeros(source.spec.count, np.uint8) if self._verify == "first" else None
        )

    # -- rows ------------------------------------------------------------------------------

    def fill_part(self, slot: Slot, lo: int, hi: int, meter: Meter) -> None:
        """Fill rows ``lo`` to ``hi`` of a slot; raises what fails the whole batch."""
        plan = slot.plan
        assert plan is not None
        started, decoded = time.perf_counter(), meter.decode
        records = plan.indices[lo:hi]
        rows = self._rows[lo:hi]
        # nothing random, nothing to draw: keys are not worked out then
        keys = plan.keys[lo:hi] if self.fill.random else self._no_keys[lo:hi]
        if plan.padded:
            valid = plan.valid[lo:hi]
            self._blank(slot, rows[~valid])
            records, rows, keys = records[valid], rows[valid], keys[valid]
        errors = self._read(records, rows, keys, slot.rows, meter)
        for bad in sorted(errors, key=lambda error: error.row):
            self._settle(slot, plan, bad, meter)
        if slot.labels is not None:
            self._labels(slot, plan, lo, hi)
        meter.read += time.perf_counter() - started - (meter.decode - decoded)

    def _read(
        self,
        records: Int64,
        rows: Int64,
        keys: npt.NDArray[np.uint64],
        out: Array,
        meter: Meter,
    ) -> tuple[RowError, ...]:
        if records.size == 0:
            return ()
        check = None
        if self._verify == "always":
            check = np.ones(records.size, np.bool_)
        elif self.seen is not None:
            unseen = self.seen[records] == 0
            check = unseen if unseen.any() else None
        try:
            errors = self.source.read_into(
                RowPlan(records, rows, keys, check), self.fill, out, meter
            )
        except AsyncReaderError:
            raise
        except OSError as exc:
            raise SourceError(f"reading failed: {exc}", path=self.source.spec.path) from exc
        if self.seen is not None and check is not None:
            if errors:
                check &= ~np.isin(rows, [bad.row for bad in errors])
            self.seen[records[check]] = 1
        return errors

    def _settle(self, slot: Slot, plan: BatchPlan, bad: RowError, meter: Meter) -> None:
        """Do with one bad row what ``on_error`` says."""
        if self._on_error == "raise":
            raise bad.error
        row = bad.row
        slot.bad.append((row, int(plan.indices[row]), str(bad.error)))
        if self._on_error == "zero":
            self._blank(slot, np.array([row]))
            plan.valid[row] = False
            return
        last: SampleError = bad.error
        for record in self.order.stand_ins(plan.epoch, plan.start + row, ATTEMPTS).tolist():
            errors = self._read(
                np.array([record], np.int64),
                np.array([row], np.int64),
                plan.keys[row : row + 1],
                slot.rows,
                meter,
            )
            if not errors:
                plan.indices[row] = record
                return
            last = errors[0].error
        raise SampleError(
            f"{ATTEMPTS} stand-ins for a bad sample were bad too",
            path=bad.error.path,
            index=bad.error.index,
            hint="the set is damaged: run asyncreader verify on it",
        ) from last

    def _blank(self, slot: Slot, rows: npt.NDArray[np.int64]) -> None:
        slot.rows[rows] = 0
        if slot.labels is not None:
            slot.labels[rows] = 0

    def _labels(self, slot: Slot, plan: BatchPlan, lo: int, hi: int) -> None:
        table = self.source.labels  # those of shards are no array
        assert table is not None
        assert slot.labels is not None
        if isinstance(table, np.ndarray) and not plan.padded and not slot.bad:
            np.take(table, plan.indices[lo:hi], axis=0, out=slot.labels[lo:hi], mode="clip")
            return
        rows = np.flatnonzero(plan.valid[lo:hi]) + lo
        slot.labels[rows] = table[plan.indices[rows]]

    # -- the whole batch -------------------------------------------------------------------

    def finish(self, slot: Slot, meter: Meter) -> None:
        """Run postprocess on a filled batch; its result lands in the slot's output buffers."""
        if self._postprocess is None:
            return
        plan = slot.plan
        assert plan is not None
        started = time.perf_counter()
        count = plan.indices.size
        data = self.fill.handed_out(slot.rows[:count])
        labels = None if slot.labels is None else slot.labels[:count]
        result = self.call_postprocess(data, labels, plan.rng_key)
        self._store(slot, result, count)
        meter.postprocess += time.perf_counter() - started

    def call_postprocess(
        self, data: Array, labels: Array | None, rng_key: int
    ) -> tuple[Any, Any] | None:
        """Call the user's function; None where it worked in place. WorkerError if it raised."""
        assert self._postprocess is not None
        arguments: list[Any] = [data, labels]
        if self._with_rng:
            arguments.append(np.random.Generator(np.random.Philox(key=rng_key)))
        try:
            result = self._postprocess(*arguments)
        except Exception as exc:
            raise WorkerError(
                f"postprocess raised {type(exc).__name__}: {exc}",
                hint="the original error is its cause",
            ) from exc
        if result is None:
            return None
        if isinstance(result, tuple | list):
            if len(result) != 2:
                raise WorkerError(
                    "postprocess must return None, data, or (data, labels)",
                    found=f"{len(result)} values",
                )
            return result[0], result[1]
        return result, labels

    def _store(self, slot: Slot, result: tuple[Any, Any] | None, count: int) -> None:
        in_place = slot.out_data.base is not None and np.shares_memory(slot.out_data, slot.rows)
        if result is None:
            if not in_place:
                raise WorkerError(
                    "postprocess returned None, but arrays in its trial call",
                    hint="it must always work in place, or always return arrays",
                )
            return
        if in_place:
            raise WorkerError(
                "postprocess returned arrays, but None in its trial call",
                hint="it must always work in place, or always return arrays",
            )
        for name, made, out in (
            ("data", result[0], slot.out_data),
            ("labels", result[1], slot.out_labels),
        ):
            if out is None:
                if made is not None:
                    raise WorkerError(f"postprocess returned {name}, but none in its trial call")
                continue
            array = np.asarray(made)
            expected = (count, *out.shape[1:]) if out.shape[0] == slot.rows.shape[0] else out.shape
            if array.shape != expected or array.dtype != out.dtype:
                raise WorkerError(
                    f"postprocess returned {name} of another shape or dtype than in its trial call",
                    found=f"{array.shape} {array.dtype}",
                    expected=f"{expected} {out.dtype}",
                    hint="a batch has a fixed shape",
                )
            np.copyto(out[: expected[0]], array)
