"""Writes samples into rows of a slot: draws, checks, transforms them, and locates what is wrong.

A source knows where samples lie and how their bytes are read. All that is done with them from
there on is here, in one place for all sources: the draws of crops and flips, the comparison of
checksums, the way into the slot, and the record number that an error names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from ..errors import (
    AsyncReaderError,
    ChecksumError,
    DecodeError,
    ParamsError,
    SampleError,
    WorkerError,
)
from ..stats import Meter
from ..system.array_types import Array, Bools, Int64, UInt8, UInt64
from ..system.memory import SCRATCH, address_of
from . import kernels
from .encoded import PLANNED_BYTES, Images, RowView, groups, planned, put_views
from .lengths import Stretches, too_long
from .row_filler import RowFiller
from .specs import OutputSpec, SampleSpec
from .steps import Row
from .transform import RowTransform

E = TypeVar("E", bound=AsyncReaderError)

#: Rows that are checked before each becomes a picture of its own are copied in groups of about this
#: many bytes: the second look at a row finds it in the core's cache.
GROUP_BYTES = 640 << 10

#: The hint of an error about a bad sample (the converters have their own).
SKIP_HINT: Final = "on_error='skip' serves others in their place"


class RowJob(NamedTuple):
    """Which samples to read into which rows.

    ``records``: int64, in the source; ``rows``: int64, in the slot; ``keys``: uint64, for crop and
    flip; ``check``: rows whose checksum is compared with the recorded one, or None for none;
    ``positions``: int64, in the epoch's global order, and ``labels``: for steps, None without;
    ``made``: the slot's labels (B, ...), where steps make those; ``frames``: int64 (n, 2), height
    and width of the samples' pictures, for boxes and keypoints whose pictures differ in size.
    """

    records: Int64
    rows: Int64
    keys: UInt64
    check: Bools | None = None
    positions: Int64 | None = None
    labels: Array | None = None
    made: Array | None = None
    frames: Int64 | None = None

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
            None if self.frames is None else self.frames[which],
        )


@dataclass(frozen=True)
class RowError:
    """A sample that could not be served: its row in the slot, and why."""

    row: int
    error: SampleError


class Origin(Protocol):
    """What a writer asks of the source whose samples it writes."""

    spec: SampleSpec

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

    def view(self, offset: int, length: int) -> UInt8:
        """The bytes of one extent."""


#: A store, and the offset in it of each value, which the other values of its sample follow.
Runs: TypeAlias = tuple[RowStore, Callable[[Int64], Int64]]


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

    def encoded(self, store: RowStore, offsets: Int64, sizes: Int64) -> None:
        """Take all samples of the job, which are encoded: ``sizes`` bytes at ``offsets`` of
        ``store``."""

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        """Take raw samples that lie at ``offsets`` of ``store``.

        ``which``: their places in the job; None: all of it.
        """

    def values(
        self, origin: Origin, starts: Int64, lengths: Int64, runs: Runs | None = None
    ) -> Iterator[Writer]:
        """Take all samples of the job, which differ in length: each is ``lengths`` values from
        ``starts`` on. Gives the writers of the values that are wanted, whose jobs have the values'
        numbers; ``origin`` knows these. What is read with one is read before the next is asked for.

        ``runs``: where the values lie, if those of a sample lie in one piece.
        """

    def fail(self, i: int, error: SampleError) -> None:
        """Sample ``i`` is bad."""

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        """The samples ``which`` are bad for one reason."""


class NumberWriter:
    """What writers of a data set's numbers share: it lies in one file, and its numbers are neither
    encoded nor samples of different length."""

    in_place: Final = None

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> Writer:
        raise NotImplementedError

    def raw(self, i: int, sample: Array, stored: UInt8 | None = None) -> None:
        raise NotImplementedError

    def encoded(self, store: RowStore, offsets: Int64, sizes: Int64) -> None:
        raise NotImplementedError

    def values(
        self, origin: Origin, starts: Int64, lengths: Int64, runs: Runs | None = None
    ) -> Iterator[Writer]:
        raise NotImplementedError


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
        self._first = self._named_from = first
        #: of values the samples that they belong to, and those samples that are known to be bad
        self._samples: Int64 | None = None
        self._bad: set[int] = set()
        self._drawn = False
        self._crops: Array | None = None
        self._flips: UInt8 | None = None

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> RowWriter:
        """See :class:`Writer`."""
        job = self.job.pick(positions)._replace(records=local)
        part = self._of(origin, job, first + self._first, first)
        # of a mix, errors name records by their numbers in their own set
        part._named_from = self._named_from + (0 if self.fill.members else first)
        return part

    def _of(self, origin: Origin, job: RowJob, first: int, member: int = -1) -> RowWriter:
        """The writer of another job, in the set of a mix that begins at ``member``."""
        fill = self.fill.members.get(member, self.fill)
        return RowWriter(origin, job, fill, self.out, self.meter, self.errors, first)

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
        self._locate(error, i).shift_record(self._named_from)
        self.errors.append(RowError(int(self.job.rows[i]), error))

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        """The samples ``which`` are bad for one reason; each gets an error of its own, but of the
        values of one sample the first: to name it may take opening the file."""
        if self._samples is not None:
            of, first = np.unique(self._samples[which], return_index=True)
            which = which[first[[one not in self._bad for one in of.tolist()]]]
            self._bad.update(of.tolist())
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
        told = self._row(i)
        try:
            self.fill.put(sample, *self._draws_of(i), row, told)
        except (ParamsError, WorkerError) as exc:
            self._locate(exc, i)
            raise
        self._label(i, told)

    def encoded(self, store: RowStore, offsets: Int64, sizes: Int64) -> None:
        """Decode all samples of the job, until the reader is closed: see :class:`Writer`."""
        together = self.fill.method is not None
        address = store.address(int(sizes.sum())) if together else 0
        for some in groups(sizes.tolist(), PLANNED_BYTES if together else 0):
            if self.meter.stopped:
                return
            self._decode_some(some, store, address, offsets[some], sizes[some])

    def _decode_some(
        self, some: slice, store: RowStore, address: int | None, offsets: Int64, sizes: Int64
    ) -> None:
        """Decode a group of samples. ``address``: of the store, where that is known."""
        fill, check, bad = self.fill, self._check, list[int]()
        if address is None or (check is not None and check[some].any()):
            images = self._copied(some.start, store, offsets, sizes, bad)
        else:
            images = Images(store.view, address, offsets, sizes)
        left: Iterable[int] = range(some.stop - some.start)
        if fill.method is not None:
            crops, flips = self._draws()
            crop = None if crops is None else crops[some]
            flip = None if flips is None else flips[some]
            finish = partial(self._finish, range(some.start, some.stop))
            stepped = finish if fill.wanted.steps else None
            rows = self.job.rows[some]
            made = planned(fill)(fill, images, crop, flip, self.out, rows, stepped)
            left = made.put_all(self.meter)
        for k in left:
            if k not in bad:
                self._decode(some.start + k, images[k])

    def _finish(self, which: Sequence[int], k: int, pixels: Array) -> None:
        """Take sample ``which[k]``, cropped, resized and mirrored, through the steps."""
        i = which[k]
        told = self._row(i)
        assert told is not None
        try:
            self.fill.finish_stepped(pixels, self.out[self.job.rows[i]], told)
        except (ParamsError, WorkerError) as exc:
            self._locate(exc, i)
            raise
        self._label(i, told)

    def _copied(
        self, first: int, store: RowStore, offsets: Int64, sizes: Int64, bad: list[int]
    ) -> Images:
        """Copies of images: they are read from a file, or compared with their checksums, and
        another process may write to the file between hash and decode. ``bad`` gets those with
        another checksum, counted from ``first``."""
        copies = SCRATCH.take("encoded", int(sizes.sum()))
        images = Images(
            lambda at, size: copies[at : at + size],
            copies.ctypes.data,
            np.cumsum(sizes) - sizes,
            sizes,
        )
        for k, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
            copy = images[k]
            copy[:] = store.view(offset, size)
            wanted = self._check is not None and self._check[first + k]
            if wanted and not self._passes(first + k, copy):
                bad.append(k)
        return images

    def _decode(self, i: int, data: UInt8) -> None:
        """Decode sample ``i`` by itself."""
        views = self.views(i)
        try:
            put_views(views, data, self.meter)
            self._label(i, views[0].row)
        except DecodeError as exc:
            self.fail(i, exc)
        except (ParamsError, WorkerError) as exc:
            self._locate(exc, i)
            raise

    def views(self, i: int) -> tuple[RowView, ...]:
        """The rows that are made of sample ``i``."""
        return (RowView(self.fill, *self._draws_of(i), self.out[self.job.rows[i]], self._row(i)),)

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
        if not part.job.rows.size:
            return
        filler = self.fill.filler(self.out.nbytes)
        if filler is None:
            part._not_as_one(store, offsets)
            return
        keys = np.ascontiguousarray(part.job.keys) if filler.draws else None
        found = _fill(filler, store, offsets, part.job.rows, self.out, keys, part._check)
        if found is not None:
            part._compare(np.arange(found.size), found)

    def values(
        self, origin: Origin, starts: Int64, lengths: Int64, runs: Runs | None = None
    ) -> Iterator[RowWriter]:
        """Cut samples of different length, and fill up their rows: see :class:`Writer`."""
        wanted, most, writer = self.fill.wanted, self.out.shape[1], self
        if wanted.overlong == "error" and (lengths > most).any():
            for i in np.flatnonzero(lengths > most).tolist():
                self.fail(i, too_long(wanted, int(lengths[i])))
            good = lengths <= most
            writer, starts, lengths = self._part(good), starts[good], lengths[good]
        found = Stretches.of(wanted, starts, lengths, writer.job.keys)
        found.pad(self.out, writer.job.rows, self.fill.pad)
        yield from writer._stretches(origin, starts, lengths, found, runs)
        if wanted.steps and not writer.stopped:
            writer._finish_values(found)

    def _finish_values(self, found: Stretches) -> None:
        """Take the values that were written of each sample through the steps."""
        for i, (row, served) in enumerate(zip(self.job.rows, found.served, strict=True)):
            self.fill.finish_steps(self.out[row, :served], self._row(i))

    def _stretches(
        self, origin: Origin, starts: Int64, lengths: Int64, found: Stretches, runs: Runs | None
    ) -> Iterator[RowWriter]:
        """The values of ``found``, which is served of samples of ``lengths`` from ``starts`` on."""
        fill, most, writer = self.fill.values, self.out.shape[1], self
        check = None if self._check is None or not self._check.any() else self._check
        assert fill is not None
        if fill.mode == "copy" and runs is not None and self._copy(runs, found):
            if check is not None:
                sums = self._copied_sums(runs, starts, lengths, found)
                self._compare(np.arange(starts.size), sums)
            return
        if check is not None:
            checked, some = self._part(check), found.pick(check)
            yield from checked._whole(origin, starts[check], lengths[check], some)
            writer, found = self._part(~check), found.pick(~check)
        bad: list[RowError] = []
        for _, records, rows in found.pieces(writer.job.rows, most):
            part = self._of_values(origin, records, rows, fill, self._flat(fill), bad)
            part._samples = rows // most
            yield part
        # one error for each sample
        each = {one.row // most: RowError(one.row // most, one.error) for one in bad}
        self.errors += each.values()

    def _flat(self, fill: RowTransform) -> Array:
        """The slot's memory, a value a row."""
        return self.out.reshape(-1, *fill.row_shape)

    def _of_values(
        self,
        origin: Origin,
        records: Int64,
        rows: Int64,
        fill: RowTransform,
        out: Array,
        bad: list[RowError],
    ) -> RowWriter:
        """The writer of values of samples, as if each were a sample."""
        one = RowJob(records, rows, records.view(np.uint64))  # numbers draw nothing
        part = RowWriter(origin, one, fill, out, self.meter, bad, self._first)
        part._named_from = self._named_from
        return part

    def _whole(
        self, origin: Origin, starts: Int64, lengths: Int64, found: Stretches
    ) -> Iterator[RowWriter]:
        """Write samples whose checksums are compared: all of their values are read, whatever is
        served, and those that are served are the ones that were hashed."""
        fill, job, check = self.fill.values, self.job, self._check
        assert fill is not None
        assert check is not None
        stored = RowTransform(fill.stored, OutputSpec(layout="NHWC"), "")
        states = [xxh3_64() for _ in range(starts.size)]
        size, most = fill.stored.row_bytes, self.out.shape[1]
        for counts, records, _ in Stretches(starts, lengths).pieces(job.rows, 0):
            held = np.empty(stored.allocate_shape(records.size), stored.dtype)
            lines, bad = np.arange(records.size), list[RowError]()
            of = np.repeat(np.arange(starts.size), counts)
            part = self._of_values(origin, records, lines, stored, held, bad)
            part._samples = of
            yield part
            ends = np.cumsum(counts) * size
            data = held.reshape(-1).view(np.uint8)
            for i in np.flatnonzero(counts).tolist():
                states[i].update(data[ends[i] - counts[i] * size : ends[i]].data)
            for one in bad:
                i = of[one.row]
                if check[i]:
                    self.errors.append(RowError(int(job.rows[i]), one.error))
                check[i] = False
            place = records - found.starts[of]
            served = (place >= 0) & (place < found.served[of]) & check[of]
            rows = (job.rows[of] * most + place)[served]
            self._of_values(origin, records[served], rows, fill, self._flat(fill), [])._take(
                held[served]
            )
        sums = np.array([state.intdigest() for state in states], np.uint64)
        self._compare(np.arange(starts.size), sums)

    def _take(self, values: Array) -> None:
        """Write all samples of the job from an array of their stored values."""
        if self.fill.mode == "copy" or not len(values):
            self.out[self.job.rows] = values
            return
        each = values.reshape(len(values), -1).view(np.uint8)
        lines = np.arange(len(values), dtype=np.int64)
        self._place(lines, each.ctypes.data + lines * each.shape[1], each)

    def _copied_sums(self, runs: Runs, starts: Int64, lengths: Int64, found: Stretches) -> UInt64:
        """XXH3-64 of the samples to be checked, once they were copied: what is served is hashed
        where it was copied to."""
        store, offsets = runs
        size, sums = self.fill.stored.row_bytes, np.zeros(starts.size, np.uint64)
        assert self._check is not None
        for i in np.flatnonzero(self._check).tolist():
            state, served = xxh3_64(), int(found.served[i]) * size
            if lengths[i]:
                first = int(offsets(starts[i : i + 1])[0])
                start = first + int(found.starts[i] - starts[i]) * size
                stop = start + served
                state.update(store.view(first, start - first).data)
                state.update(self.memory(i)[:served].data)
                state.update(store.view(stop, first + int(lengths[i]) * size - stop).data)
            sums[i] = state.intdigest()
        return sums

    def _copy(self, runs: Runs, found: Stretches) -> bool:
        """Copy samples of different length, each in one piece. Whether they are in memory."""
        store, offsets = runs
        full = found.served > 0
        sizes = found.served[full] * self.fill.stored.row_bytes
        where = store.address(int(sizes.sum()))
        if where is None:
            return False
        targets = self.job.rows[full] * self.fill.row_bytes + address_of(self.out)
        kernels.copy_runs(offsets(found.starts[full]) + where, sizes, targets)
        return True

    def _not_as_one(self, store: RowStore, offsets: Int64) -> None:
        """Write raw samples that no RowFiller writes. Those to be checked, or to be read from a
        file, are copied first, some at a time: the bytes served are those that were hashed."""
        fill, size = self.fill, self.fill.stored.row_bytes
        check = np.zeros(offsets.size, np.bool_) if self._check is None else self._check
        where = store.address(offsets.size * size)
        copied = np.arange(offsets.size) if where is None else np.flatnonzero(check)
        if where is not None and copied.size < offsets.size:
            straight = np.flatnonzero(~check)
            views = (store.view(at, size) for at in offsets[straight].tolist())
            self._place(straight, offsets[straight] + where, views)
        group = min(max(1, GROUP_BYTES // size), copied.size)
        copies = SCRATCH.take("checked", group * size).reshape(group, size)
        lines = np.arange(group, dtype=np.int64)
        for lo in range(0, copied.size, max(1, group)):
            which = copied[lo : lo + group]
            rows, wanted = lines[: which.size], check[which] if check.any() else None
            found = _fill(fill.copier, store, offsets[which], rows, copies, None, wanted)
            if found is not None:
                good = ~self._compare(which, found)
                which, rows = which[good], rows[good]
            self._place(which, copies.ctypes.data + rows * size, (copies[row] for row in rows))

    def _place(self, which: Int64, addresses: Int64, views: Iterable[UInt8]) -> None:
        """Write the samples ``which``, which lie at ``addresses``, where ``views`` looks, too."""
        if self.fill.mode == "numbers":
            wrong = self.fill.put_numbers(addresses, self.job.rows[which], self.out)
            if wrong is not None:
                raise self._locate(wrong[1], int(which[wrong[0]]))
        elif self.fill.mode != "resize":
            for i, view in zip(which.tolist(), views, strict=True):
                self._put(i, self.fill.as_stored(view))
        elif which.size:
            crops, flips = self._draws()
            self.fill.resize_rows(
                addresses,
                self.job.rows[which],
                None if flips is None else flips[which],
                self.out,
                None if crops is None else crops[which],
                partial(self._finish, which.tolist()) if self.fill.wanted.steps else None,
            )

    def _compare(self, which: Int64, found: UInt64) -> Bools:
        """Whether the XXH3-64 of each of the samples ``which`` is another than the recorded one, of
        those that are to be checked; such a sample is bad."""
        assert self._check is not None
        assert self.origin.checksums is not None
        expected = self.origin.checksums[self.job.records[which]]
        wrong: Bools = self._check[which] & (found != expected)
        for k in np.flatnonzero(wrong).tolist():
            self._differs(int(which[k]), int(found[k]), int(expected[k]))
        return wrong

    def _part(self, which: Int64 | Bools) -> RowWriter:
        """The writer of some of the samples."""
        part = self._of(self.origin, self.job.pick(which), self._first)
        part._named_from = self._named_from
        if self._drawn:
            part._drawn = True
            part._crops = None if self._crops is None else self._crops[which]
            part._flips = None if self._flips is None else self._flips[which]
        return part

    # -- inside ------------------------------------------------------------------------------

    def _draws(self) -> tuple[Array | None, UInt8 | None]:
        """Crop draws and flips of all samples of the job, drawn once."""
        if not self._drawn:
            self._crops, self._flips = self.fill.draws(self.job.keys)
            self._drawn = True
        return self._crops, self._flips

    def _draws_of(self, i: int) -> tuple[Array | None, bool]:
        """Crop draws of sample ``i``, and whether it is mirrored."""
        crops, flips = self._draws()
        return None if crops is None else crops[i], flips is not None and bool(flips[i])

    def _row(self, i: int) -> Row | None:
        """What steps are told of sample ``i``; None where there are none."""
        if not self.fill.wanted.steps:
            return None
        job = self.job
        record = int(job.records[i]) + self._first
        position = -1 if job.positions is None else int(job.positions[i])
        label = None if job.labels is None else job.labels[i]
        frame = None if job.frames is None else (int(job.frames[i, 0]), int(job.frames[i, 1]))
        return Row(record, position, label, int(job.keys[i]), self.meter.seconds, frame)

    def _label(self, i: int, told: Row | None) -> None:
        """Keep the label that the steps made of sample ``i``, where they make one."""
        if self.job.made is not None and told is not None:
            self.job.made[self.job.rows[i]] = told.label

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


def _fill(
    filler: RowFiller,
    store: RowStore,
    offsets: Int64,
    rows: Int64,
    out: Array,
    keys: UInt64 | None,
    wanted: Bools | None,
) -> UInt64 | None:
    """Fill ``rows`` of ``out`` with what lies at ``offsets`` of a store: see RowFiller.fill."""
    size = filler.row_bytes
    where = store.address(offsets.size * size)
    if where is not None:
        return filler.fill(offsets + where, rows, out, keys, wanted)
    if filler.copies:  # read to where they belong
        at, lines = rows * size + address_of(out), rows
        fetched = out.reshape(-1).view(np.uint8)
    else:
        fetched = SCRATCH.take("fetched rows", offsets.size * size)
        lines = np.arange(offsets.size, dtype=np.int64)
        at = lines * size + address_of(fetched)
    store.gather(offsets, size, address_of(fetched), lines)
    if filler.copies and wanted is None:
        return None
    return filler.fill(at, rows, out, keys, wanted)


def checksum_error(found: int, expected: int) -> ChecksumError:
    """The error of a sample whose bytes have another XXH3-64 than the recorded one."""
    return ChecksumError(
        "the stored bytes of a sample do not match its checksum",
        found=f"XXH3-64 {found:016x}",
        expected=f"{expected:016x}",
        hint=f"convert the dataset again or restore it; {SKIP_HINT}",
    )
