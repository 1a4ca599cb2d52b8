"""A source of sparse rows (CSR): the runs of a row in two data sets, added to a dense row.

The numbers of a row are ``indptr[i]`` to ``indptr[i + 1]`` of ``indices`` and ``data``. Each of
these two is read by a source of its own, which knows its chunks; their runs are copied into memory
of the thread, where they are checked and added by compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...errors import DecodeError, ParamsError, SampleError
from ...pixels import kernels
from ...pixels.rows import RowJob, RowStore, Writer
from ...pixels.specs import SampleSpec, checked, holds_all
from ...stats import Meter
from ...system.array_types import Array, Bools, Int64, UInt8
from ...system.memory import SCRATCH, address_of
from ..base import BaseSource, FieldIndex, OpenField, Source, Storage

#: Numbers that are read and added together: their memory stays in a core's cache.
TOGETHER: Final = 1 << 16
#: The longest run that is read in one piece: it bounds what a hostile row takes.
LONGEST: Final = 1 << 21
#: Dense rows that are made together.
DENSE_BYTES: Final = 1 << 20

#: Dense rows are made in one of these types; what ``dtype`` asks for is made of it.
KERNELS: Final = {"f4": "add_rows_f4", "f8": "add_rows_f8", "i8": "add_rows_i8"}


def sum_dtype(stored: np.dtype[Any], asked: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype in which the sums of a row are made, so that ``asked`` loses nothing more than its
    own precision: float32 where it is None or a float of at most 32 bits; int64 of whole numbers
    where whole numbers are asked for; else float64."""
    if asked is None or (asked.kind == "f" and asked.itemsize <= 4):
        return np.dtype(np.float32)
    whole = asked.kind in "iub" and stored.kind in "iub"
    return np.dtype(np.int64 if whole else np.float64)


@dataclass(frozen=True, eq=False)
class Numbers:
    """A data set of one axis: what its numbers are, and where they lie. ``chunk``: numbers in a
    chunk, of a contiguous data set all."""

    name: str
    dtype: np.dtype[Any]
    storage: Storage
    chunk: int
    in_file: bool = True

    def open(self, field: OpenField, count: int) -> Source:
        """The source of the ``count`` numbers."""
        spec, path = SampleSpec((), self.dtype, None), field.index.path
        own = FieldIndex(spec, self.storage, path=path, chunk=self.chunk)
        file = field.file if self.in_file else None
        return self.storage.serve(OpenField(replace(field.facts, count=count), own, file))


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows whose columns and values lie in two data sets of ``count`` numbers (``numbers``).

    ``indptr``: whole numbers (N + 1,), where each row begins; ``width``: columns as stored;
    ``lookup``: int64 (width,), where each stands in a row that is served, -1 for one that is not;
    None: all, as they are.
    """

    indptr: Array
    numbers: tuple[Numbers, ...]
    count: int
    width: int
    lookup: Int64 | None = None

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        return SparseSource(field, self)


class _Runs(Writer):
    """A :class:`Writer` that copies runs of numbers to memory: run ``i`` of the job goes to
    ``targets[i]`` (addresses) with ``sizes[i]`` bytes. ``failed``: runs that cannot be decoded."""

    def __init__(self, begin: Int64, sizes: Int64, targets: Int64, meter: Meter) -> None:
        self.job = RowJob(begin, begin, begin.view(np.uint64))
        self.meter = meter
        self._sizes = sizes
        self._targets = targets
        self.failed: list[tuple[Int64, DecodeError]] = []

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        sizes, targets = self._sizes, self._targets
        if which is not None:
            sizes, targets = sizes[which], targets[which]
        where = store.address(int(sizes.sum()))
        if where is not None:
            kernels.copy_runs(offsets + where, sizes, targets)
            return
        for at, size, target in zip(
            offsets.tolist(), sizes.tolist(), targets.tolist(), strict=True
        ):
            view = store.view(at, size)
            kernels.copy_runs(*(np.array([n]) for n in (address_of(view), size, target)))

    def fail(self, i: int, error: SampleError) -> None:
        raise error  # a source of numbers has no other errors than those of its chunks

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        self.failed.append((which, error))


@dataclass
class _Group:
    """Rows that are read together: their places in the job, and where their runs begin and end.

    Of a row that is longer than LONGEST, one piece; ``first``, ``last``: whether it is the first
    and the last of the row's.
    """

    which: Int64
    begin: Int64
    end: Int64
    first: bool = True
    last: bool = True


class SparseSource(BaseSource):
    """Reads sparse rows: see :class:`SparseRows`."""

    def __init__(self, field: OpenField, rows: SparseRows) -> None:
        super().__init__(field)
        self._rows = rows
        self.parts = tuple(one.open(field, rows.count) for one in rows.numbers)
        self._lookup = np.empty(0, np.int64) if rows.lookup is None else rows.lookup
        assert self.spec.shape is not None
        self._width = self.spec.shape[0]
        # loaded by the thread that opens the set, not by a worker during the first batch
        self._add = getattr(kernels, KERNELS[self.spec.dtype.str[1:]])
        kernels.copy_runs  # noqa: B018

    def read_into(self, writer: Writer) -> None:
        records, count = writer.job.records, self._rows.count
        begin, end = (self._rows.indptr[records + k].astype(np.int64) for k in (0, 1))
        good = (begin >= 0) & (begin <= end) & (end <= count)
        for i in np.flatnonzero(~good).tolist():
            what = "a sparse row does not lie among the stored numbers"
            found = f"indptr {int(begin[i])} to {int(end[i])}"
            writer.fail(i, SampleError(what, found=found, expected=f"within 0 to {count}"))
        # in the order of storage: rows that share a chunk come together
        order = np.flatnonzero(good)
        order = order[np.argsort(begin[order], kind="stable")]
        failed = False
        scratch = writer.in_place is None
        most = max(1, DENSE_BYTES // self.spec.row_bytes) if scratch else order.size
        for group in _groups(order, begin[order], end[order], most):
            if writer.stopped:
                return
            if group.first:
                failed = False
            if not failed:
                failed = not self._read(group, writer)

    def _read(self, group: _Group, writer: Writer) -> bool:
        """Read rows. Whether all are good, or wanted no more."""
        raw, bad = [], np.zeros(group.which.size, np.bool_)
        for numbers, part in zip(self._rows.numbers, self.parts, strict=True):
            stored, failed = _read_runs(numbers, part, group, writer.meter)
            raw.append(stored)
            for which, error in failed:
                new = which[~bad[which]]
                bad[which] = True
                writer.fail_all(group.which[new], error)
        if writer.stopped:
            return True
        if bad.any():  # the others once more, from decoded chunks
            rest = replace(
                group, which=group.which[~bad], begin=group.begin[~bad], end=group.end[~bad]
            )
            if rest.which.size:
                self._read(rest, writer)
            return False
        return self._add_rows(group, raw[0], raw[1], writer)

    def _add_rows(self, group: _Group, indices: UInt8, stored: UInt8, writer: Writer) -> bool:
        """Make dense rows of the numbers that were read. Whether all are good."""
        records = writer.job.records[group.which]
        ends = np.cumsum(group.end - group.begin)
        columns = _as("sparse columns", indices, self._rows.numbers[0].dtype, np.dtype(np.int64))
        values = self._converted(stored, ends, records)
        straight = writer.in_place
        if straight is not None:
            out, rows = straight.out, writer.job.rows[group.which]
        else:
            rows = np.arange(group.which.size)
            out = SCRATCH.array("sparse rows", (rows.size, self._width), self.spec.dtype)
        wrong = np.empty(rows.size, np.int64)
        first = np.full(rows.size, group.first, np.uint8)
        width, bound = self._width, self._rows.width
        self._add(
            *(columns, values, ends, first, self._lookup, rows, width, bound),
            *(out.reshape(-1), wrong),
        )
        for k in np.flatnonzero(wrong < 0).tolist():
            raise self.located(_too_large(self.spec.dtype), int(records[k]))
        for k in np.flatnonzero(wrong).tolist():
            what, column = "a sparse row names a column that does not exist", columns[wrong[k] - 1]
            error = SampleError(what, found=int(column), expected=f"0 to {bound - 1}")
            writer.fail(int(group.which[k]), error)
        if straight is None and group.last:
            cuts = zip((indices, stored), self._rows.numbers, strict=True)
            parts = [np.split(one, ends[:-1] * of.dtype.itemsize) for one, of in cuts]
            for k in np.flatnonzero(wrong == 0).tolist():
                as_stored = np.concatenate([one[k] for one in parts]) if group.first else None
                writer.raw(int(group.which[k]), out[k], as_stored)
        return not wrong.any()

    def _converted(self, stored: UInt8, ends: Int64, records: Int64) -> Array:
        """The values in the dtype of the sums. ParamsError where that cannot hold one."""
        kind, made, path = self._rows.numbers[1].dtype, self.spec.dtype, self.facts.path
        if kind == np.bool_:
            stored, kind = (stored != 0).view(np.uint8), np.dtype(np.uint8)
        if holds_all(kind, made):
            return _as("sparse values", stored, kind, made)
        try:
            with checked(stored.view(kind), kind, made, path):
                return _as("sparse values", stored, kind, made)
        except ParamsError:
            for values, record in zip(np.split(stored.view(kind), ends), records, strict=False):
                try:
                    with checked(values, kind, made, path):
                        values.astype(made)
                except ParamsError as exc:
                    raise self.located(exc, int(record)) from None
            raise


def _groups(which: Int64, begin: Int64, end: Int64, most: int) -> Iterator[_Group]:
    """Rows in groups of about TOGETHER numbers and ``most`` rows; a long one in pieces."""
    total, at = np.cumsum(end - begin), 0
    while at < which.size:
        before = int(total[at - 1]) if at else 0
        stop = int(np.searchsorted(total, before + TOGETHER, side="right"))
        stop = min(max(stop, at + 1), at + most)
        some, last = slice(at, stop), int(end[at])
        if stop > at + 1 or last - int(begin[at]) <= LONGEST:
            yield _Group(which[some], begin[some], end[some])
        else:
            for lo in range(int(begin[at]), last, LONGEST):
                hi = min(lo + LONGEST, last)
                piece = np.array([lo]), np.array([hi])
                yield _Group(which[some], *piece, first=lo == begin[at], last=hi == last)
        at = stop


def _read_runs(
    numbers: Numbers, part: Source, group: _Group, meter: Meter
) -> tuple[UInt8, list[tuple[Int64, DecodeError]]]:
    """The bytes of all runs of a group, one after the other; and of runs that cannot be decoded
    the places of their rows in the group, with the error of each."""
    item, chunk = numbers.dtype.itemsize, numbers.chunk
    sizes = group.end - group.begin
    at = np.cumsum(sizes) - sizes
    memory = SCRATCH.take(f"sparse {numbers.name}", int(sizes.sum()) * item)
    if not memory.size:
        return memory, []
    low = group.begin // chunk
    counts = np.where(sizes > 0, (group.end - 1) // chunk - low + 1, 0)
    piece = np.repeat(np.arange(sizes.size), counts)
    number = np.arange(piece.size) - np.repeat(np.cumsum(counts) - counts, counts) + low[piece]
    begin = np.maximum(group.begin[piece], number * chunk)
    end = np.minimum(group.end[piece], (number + 1) * chunk)
    targets = (at[piece] + begin - group.begin[piece]) * item + address_of(memory)
    runs = _Runs(begin, (end - begin) * item, targets, meter)
    part.read_into(runs)
    return memory, [(np.unique(piece[which]), error) for which, error in runs.failed]


def _as(name: str, stored: UInt8, kind: np.dtype[Any], dtype: np.dtype[Any]) -> Array:
    """Stored numbers in another dtype, in memory of the thread where it is one."""
    values = stored.view(kind)
    if kind == dtype:
        return values
    made = SCRATCH.array(name, values.shape, dtype)
    np.copyto(made, values, casting="unsafe")
    return made


def _too_large(dtype: np.dtype[Any]) -> ParamsError:
    return ParamsError(
        f"the sum of the values of a column is too large for {dtype}",
        expected=f"at most {np.finfo(dtype).max:g}",
        hint='dtype="float64" has room for more',
    )
