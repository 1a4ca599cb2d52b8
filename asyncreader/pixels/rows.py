"""Writes samples into rows of a slot: draws, checks, transforms them, and locates what is wrong.

A source knows where samples lie and how their bytes are read. All that is done with them from
there on is here, in one place for all sources: the draws of crops and flips, the comparison of
checksums, the way into the slot, and the record number that an error names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from xxhash import xxh3_64_intdigest

from ..array_types import Array, Bools, Int64, UInt8, UInt64
from ..errors import (
    AsyncReaderError,
    ChecksumError,
    DecodeError,
    ParamsError,
    SampleError,
    WorkerError,
)
from ..stats import Meter
from ..system.limits import last_level_cache
from ..system.memory import address_of
from . import kernels, twins
from .steps import Row
from .transform import SCRATCH, RowTransform

E = TypeVar("E", bound=AsyncReaderError)

#: Rows are copied, hashed and converted in groups of about this many bytes, so that the second
#: look at a row finds it in the core's cache (L2 is 0.5 to 2 MiB on today's machines).
GROUP_BYTES = 320 << 10

#: Rows of at least this many bytes are written past the caches if the slot is larger than this part
#: of the last-level cache: such a slot would be evicted before the consumer reads it. Measured with
#: a consumer that sums each batch, one that copies it, and none.
STREAMED_ROW: Final = 16 << 10
STREAMED_PART: Final = 8

#: The hint of an error about a bad sample (the converters have their own).
SKIP_HINT: Final = "on_error='skip' leaves such samples out"


def streams(row_bytes: int, batch_bytes: int) -> bool:
    """Whether rows of a batch are copied past the caches, where they would not stay."""
    return row_bytes >= STREAMED_ROW and batch_bytes >= last_level_cache() // STREAMED_PART


class RowJob(NamedTuple):
    """Which samples to read into which rows.

    ``records``: int64, in the source; ``rows``: int64, in the slot; ``keys``: uint64, for crop and
    flip; ``check``: rows whose checksum is compared with the recorded one, or None for none;
    ``positions``: int64, in the epoch's global order, and ``labels``: for steps, None without;
    ``made``: the slot's labels (B, ...), where steps make those.
    """

    records: Int64
    rows: Int64
    keys: UInt64
    check: Bools | None = None
    positions: Int64 | None = None
    labels: Array | None = None
    made: Array | None = None

    def pick(self, which: Int64 | Bools | slice) -> RowJob:
        """The job of some of the rows."""
        return RowJob(
            self.records[which],
            self.rows[which],
            self.keys[which],
            None if self.check is None else self.check[which],
            None if self.positions is None else self.positions[which],
            None if self.labels is None else self.labels[which],
            self.made,
        )


@dataclass(frozen=True)
class RowError:
    """A sample that could not be served: its row in the slot, and why."""

    row: int
    error: SampleError


class Origin(Protocol):
    """What a writer asks of the source whose samples it writes."""

    @property
    def checksums(self) -> UInt64 | None:
        """Recorded XXH3-64 by record number, uint64 (N,); None without checksums."""

    def located(self, error: E, record: int) -> E:
        """``error`` with the file, the record number, the key and the source path of a sample."""


class RowStore(Protocol):
    """Where raw rows are copied from."""

    def gather(self, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
        """Copy ``row_bytes`` bytes at each offset to row ``rows[i]`` of memory at ``out``."""

    def address(self, size: int) -> int | None:
        """The address of offset 0 where ``size`` bytes can be copied from memory now, or None."""

    def resident(self, offsets: Int64, row_bytes: int) -> tuple[int, Int64]:
        """An address, and where the rows lie from there."""

    def view(self, offset: int, length: int) -> UInt8:
        """The bytes of one extent."""


class Writer(Protocol):
    """What a source gives its samples to, each by ``i``, its place in ``job``.

    ``meter``: gets the seconds of decoding. :class:`RowWriter` writes them into a slot.
    """

    job: RowJob
    meter: Meter

    @property
    def stopped(self) -> bool:
        """Whether the samples are no longer wanted."""

    @property
    def in_place(self) -> RowWriter | None:
        """The same writer, where rows are the stored bytes: a source may write those itself."""

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> Writer:
        """The writer of the part of the job that lies in one file of several.

        ``first``: the record number in the set of the file's first sample; ``positions``: places in
        the job; ``local``: their record numbers in the file.
        """

    def raw(self, i: int, sample: Array, stored: UInt8 | None = None) -> None:
        """Take sample ``i`` from an array in stored axis order, of any strides.

        ``stored``: its stored bytes, where the array does not hold these.
        """

    def encoded(self, which: Iterable[int], images: Iterable[UInt8]) -> None:
        """Take the bytes of encoded samples ``which`` in turn."""

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        """Take raw samples that lie at ``offsets`` of ``store``.

        ``which``: their places in the job; None: all of it.
        """

    def fail(self, i: int, error: SampleError) -> None:
        """Sample ``i`` is bad."""

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        """The samples ``which`` are bad for one reason."""


class RowWriter:
    """Writes samples of one field, for one read in one thread.

    ``job``: what to read, where to; ``fill``: how a sample becomes a row; ``out``: the slot's
    memory (B, *fill.row_shape). A source calls the methods with ``i``, a place in ``job``.
    ``errors`` collects the samples that are bad: their rows are not defined. A value that the dtype
    cannot hold is a ParamsError, which ends the read.
    """

    def __init__(
        self,
        origin: Origin,
        job: RowJob,
        fill: RowTransform,
        out: Array,
        meter: Meter,
        errors: list[RowError] | None = None,
        first: int = 0,
    ) -> None:
        self.origin = origin
        self.job = job
        #: rows that are checked here; the files of a set have checksums of their own
        self._check = None if origin.checksums is None else job.check
        self.fill = fill
        self.out = out
        self.meter = meter
        self.errors: list[RowError] = [] if errors is None else errors
        self._first = first
        self._drawn = False
        self._crops: Array | None = None
        self._flips: UInt8 | None = None

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> RowWriter:
        """See :class:`Writer`."""
        job = self.job.pick(positions)._replace(records=local)
        first += self._first
        return RowWriter(origin, job, self.fill, self.out, self.meter, self.errors, first)

    @property
    def stopped(self) -> bool:
        """Whether the rows are no longer wanted: the reader is being closed."""
        return self.meter.stopped

    @property
    def in_place(self) -> RowWriter | None:
        """This writer, where rows are the stored bytes: a source may write those itself."""
        return self if self.fill.mode == "copy" else None

    # -- errors ------------------------------------------------------------------------------

    def fail(self, i: int, error: SampleError) -> None:
        """Sample ``i`` is bad."""
        error.hint = error.hint or SKIP_HINT
        self._locate(error, i).shift_record(self._first)
        self.errors.append(RowError(int(self.job.rows[i]), error))

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        """The samples ``which`` are bad for one reason; each gets an error of its own."""
        for i in which.tolist():
            own = DecodeError(error.what, **error.fields())
            own.__cause__ = error.__cause__
            self.fail(i, own)

    def _locate(self, error: E, i: int) -> E:
        """The error names the file and sample ``i``. Of several files each adds the number of its
        first record to what is raised."""
        return self.origin.located(error, int(self.job.records[i]))

    # -- one sample --------------------------------------------------------------------------

    def raw(self, i: int, sample: Array, stored: UInt8 | None = None) -> None:
        """Write sample ``i``: see :class:`Writer`."""
        if self._check is not None and self._check[i]:
            sample = sample.copy(order="C")  # the bytes served are those checked
            if not self._passes(i, sample.reshape(-1).view(np.uint8) if stored is None else stored):
                return
        self._put(i, sample)

    def _put(self, i: int, sample: Array) -> None:
        row = self.out[self.job.rows[i], ...]
        if self.fill.mode == "copy":
            np.copyto(row, sample)
            return
        if not sample.flags.aligned:  # numbers inside an LMDB value may begin anywhere
            sample = sample.copy()
        crops, flips = self._draws()
        told = self._row(i)
        try:
            self.fill.put(
                sample,
                None if crops is None else crops[i],
                flips is not None and bool(flips[i]),
                row,
                told,
            )
        except (ParamsError, WorkerError) as exc:
            self._locate(exc, i)
            raise
        self._label(i, told)

    def encoded(self, which: Iterable[int], images: Iterable[UInt8]) -> None:
        """Decode the bytes of samples ``which`` in turn, until the reader is closed."""
        job, fill, out, meter = self.job, self.fill, self.out, self.meter
        crops, flips = self._draws()
        rows = job.rows.tolist()
        for i, data in zip(which, images, strict=True):
            if meter.stopped:
                return
            if self._check is not None and self._check[i]:
                copy = SCRATCH.take("encoded", data.size)
                copy[:] = data  # another process may write to the file between hash and decode
                data = copy
                if not self._passes(i, data):
                    continue
            told = self._row(i)
            try:
                fill.put_encoded(
                    data,
                    None if crops is None else crops[i],
                    flips is not None and bool(flips[i]),
                    out[rows[i]],
                    meter,
                    told,
                )
                self._label(i, told)
            except DecodeError as exc:
                self.fail(i, exc)
            except (ParamsError, WorkerError) as exc:
                self._locate(exc, i)
                raise

    def memory(self, i: int) -> UInt8:
        """The bytes of row ``i``, for a source that decodes in place; then :meth:`placed`."""
        row: UInt8 = self.out[self.job.rows[i], ...].reshape(-1).view(np.uint8)
        return row

    def placed(self, i: int) -> None:
        """The bytes of sample ``i`` are in its row: check them."""
        if self._check is not None and self._check[i]:
            self._passes(i, self.memory(i))

    # -- many samples ------------------------------------------------------------------------

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        """Write raw samples that lie at ``offsets`` of ``store``, in the cheapest way.

        ``which``: their places in the job; None: all of it.
        """
        part = self if which is None else self._part(which)
        job, fill, out = part.job, self.fill, self.out
        if part._check is not None:
            part._checked(store, offsets, part._check)
            return
        row_bytes = fill.stored.row_bytes
        if fill.mode == "copy":
            where = None
            if streams(row_bytes, out.nbytes):
                where = store.address(offsets.size * row_bytes)
            if where is not None:
                kernels.stream_rows(where, offsets, row_bytes, address_of(out), job.rows)
            else:
                store.gather(offsets, row_bytes, address_of(out), job.rows)
        elif fill.mode == "each":
            for i, offset in enumerate(offsets.tolist()):
                part.raw(i, fill.as_stored(store.view(offset, row_bytes)))
        else:
            address, starts = store.resident(offsets, row_bytes)
            crops, flips = part._draws()
            fill.bulk(address, starts, job.rows, flips, out, crops)

    def _part(self, which: Int64 | Bools) -> RowWriter:
        """The writer of some of the samples."""
        job = self.job.pick(which)
        part = RowWriter(
            self.origin, job, self.fill, self.out, self.meter, self.errors, self._first
        )
        if self._drawn:
            part._drawn = True
            part._crops = None if self._crops is None else self._crops[which]
            part._flips = None if self._flips is None else self._flips[which]
        return part

    def _checked(self, store: RowStore, offsets: Int64, check: Bools) -> None:
        """Copy rows, then hash and convert the copies: the bytes served are those checked."""
        fill, out, job = self.fill, self.out, self.job
        row_bytes = fill.stored.row_bytes
        expected = self._expected()
        if fill.mode == "copy" and (row_bytes | address_of(out)) % twins.CHECKED_ROW == 0:
            where = store.address(offsets.size * row_bytes)
            if where is not None:
                found = np.empty(offsets.size, np.uint64)
                kernels.checked_rows(where, offsets, row_bytes, address_of(out), job.rows, found)
                for i in np.flatnonzero(check & (found != expected)).tolist():
                    self._differs(i, int(found[i]), int(expected[i]))
                return
        group = max(1, GROUP_BYTES // row_bytes)
        in_place = fill.mode == "copy"
        # once for the whole batch: this loop is the cost of verify="first"
        recorded, wanted = expected.tolist(), check.tolist()
        if in_place:
            copies = out.reshape(out.shape[0], -1).view(np.uint8)
            numbers = job.rows
        else:
            copies = SCRATCH.take("checked", group * row_bytes).reshape(group, row_bytes)
            numbers = np.arange(job.records.size, dtype=np.int64) % group
        crops, flips = (None, None) if in_place else self._draws()
        address, at = copies.ctypes.data, numbers.tolist()
        for lo in range(0, len(recorded), group):
            hi = min(lo + group, len(recorded))
            store.gather(offsets[lo:hi], row_bytes, address, numbers[lo:hi])
            bad = []
            for i in range(lo, hi):
                if wanted[i]:
                    found_now = xxh3_64_intdigest(copies[at[i]].data)
                    if found_now != recorded[i]:
                        bad.append(i)
                        self._differs(i, found_now, recorded[i])
            if in_place:
                continue
            good = np.setdiff1d(np.arange(lo, hi), bad) if bad else np.arange(lo, hi)
            if fill.mode == "each":
                for i in good.tolist():
                    self._put(i, fill.as_stored(copies[at[i]]))
            else:
                turned = None if flips is None else flips[good]
                drawn = None if crops is None else crops[good]
                fill.bulk(address, numbers[good] * row_bytes, job.rows[good], turned, out, drawn)

    # -- inside ------------------------------------------------------------------------------

    def _draws(self) -> tuple[Array | None, UInt8 | None]:
        """Crop draws and flips of all samples of the job, drawn once."""
        if not self._drawn:
            self._crops, self._flips = self.fill.draws(self.job.keys)
            self._drawn = True
        return self._crops, self._flips

    def _row(self, i: int) -> Row | None:
        """What steps are told of sample ``i``; None where there are none."""
        if not self.fill.wanted.steps:
            return None
        job = self.job
        record = int(job.records[i]) + self._first
        position = -1 if job.positions is None else int(job.positions[i])
        label = None if job.labels is None else job.labels[i]
        return Row(record, position, label, int(job.keys[i]), self.meter.seconds)

    def _label(self, i: int, told: Row | None) -> None:
        """Keep the label that the steps made of sample ``i``, where they make one."""
        if self.job.made is not None and told is not None:
            self.job.made[self.job.rows[i]] = told.label

    def _expected(self) -> UInt64:
        assert self.origin.checksums is not None
        expected: UInt64 = self.origin.checksums[self.job.records]
        return expected

    def _passes(self, i: int, data: UInt8) -> bool:
        """Whether the bytes of sample ``i`` have the recorded checksum; else it is bad."""
        assert self.origin.checksums is not None
        expected = int(self.origin.checksums[self.job.records[i]])
        found = xxh3_64_intdigest(data.data)
        if found != expected:
            self._differs(i, found, expected)
        return found == expected

    def _differs(self, i: int, found: int, expected: int) -> None:
        self.fail(i, checksum_error(found, expected))


def checksum_error(found: int, expected: int) -> ChecksumError:
    """The error of a sample whose bytes have another XXH3-64 than the recorded one."""
    return ChecksumError(
        "the stored bytes of a sample are not the bytes that were packed",
        found=f"XXH3-64 {found:016x}",
        expected=f"{expected:016x}",
        hint=f"convert the set again or restore it; {SKIP_HINT}",
    )
