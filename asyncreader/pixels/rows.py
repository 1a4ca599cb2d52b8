"""Writes samples into rows of a slot: draws, checks, transforms them, and locates what is wrong.

A source knows where samples lie and how their bytes are read. All that is done with them from
there on is here, in one place for all sources: the draws of crops and flips, the comparison of
checksums, the way into the slot, and the record number that an error names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

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
from ..system.keyed_random import STREAM_VIEW, key_of, mix_rows
from ..system.memory import SCRATCH, address_of
from . import kernels
from .encoded import PLANNED_BYTES, Images, groups, planned, put_views
from .numbers import Numbers, Ragged, Stretches, too_long
from .row_maker import Drawn, RowFiller, RowMaker, RowView
from .specs import OutputSpec, Row, SampleSpec
from .transform import Pictures

E = TypeVar("E", bound=AsyncReaderError)
T = TypeVar("T")

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
        parts: list[Any] = [
            part if part is None else part[which] for part in self._replace(made=None)
        ]
        return RowJob(*parts)._replace(made=self.made)

    def told(self, i: int, seconds: MutableMapping[str, float], first: int = 0) -> Row:
        """What steps are told of sample ``i``; ``first``: added to its record number."""
        position = -1 if self.positions is None else int(self.positions[i])
        label = None if self.labels is None else self.labels[i]
        frame = None if self.frames is None else (int(self.frames[i, 0]), int(self.frames[i, 1]))
        record = int(self.records[i]) + first
        return Row(record, position, label, int(self.keys[i]), seconds, frame)


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


class Writer:
    """What a source gives its samples to, each by ``i``, its place in ``job``. ``meter``: gets the
    seconds of decoding.

    :class:`RowWriter` writes them into a slot. Others take what their one source gives them.
    """

    job: RowJob
    meter: Meter

    @property
    def stopped(self) -> bool:
        """Whether the samples are no longer wanted: the reader is being closed."""
        return self.meter.stopped

    @property
    def in_place(self) -> RowWriter | None:
        """The same writer, where rows are the stored bytes: a source may write those itself."""
        return None

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> Writer:
        """The writer of the part of the job that lies in one file of several.

        ``first``: the record number in the set of the file's first sample; ``positions``: places in
        the job; ``local``: their record numbers in the file.
        """
        raise NotImplementedError

    def raw(self, i: int, sample: Array, stored: UInt8 | None = None) -> None:
        """Take sample ``i`` from an array in stored axis order, of any strides.

        ``stored``: its stored bytes, where the array does not hold these.
        """
        raise NotImplementedError

    def encoded(self, store: RowStore, offsets: Int64, sizes: Int64) -> None:
        """Take all samples of the job, which are encoded: ``sizes`` bytes at ``offsets`` of
        ``store``."""
        raise NotImplementedError

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        """Take raw samples that lie at ``offsets`` of ``store``.

        ``which``: their places in the job; None: all of it.
        """
        raise NotImplementedError

    def values(
        self, origin: Origin, starts: Int64, lengths: Int64, runs: Runs | None = None
    ) -> Iterator[Writer]:
        """Take all samples of the job, which differ in length: each is ``lengths`` values from
        ``starts`` on. Gives the writers of the values that are wanted, whose jobs have the values'
        numbers; ``origin`` knows these. What is read with one is read before the next is asked for.

        ``runs``: where the values lie, if those of a sample lie in one piece.
        """
        raise NotImplementedError

    def fail(self, i: int, error: SampleError) -> None:
        """Sample ``i`` is bad."""
        raise NotImplementedError

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        """The samples ``which`` are bad for one reason."""
        raise NotImplementedError


@dataclass(eq=False)
class RowWriter(Writer):
    """Writes samples of one field, for one read in one thread.

    ``job``: what to read, where to; ``fills``: how a sample becomes a row, and ``outs``: the slot's
    memory (B, *row_shape), of each array that is made of the field; the writer here makes one. A
    source calls the methods with ``i``, a place in ``job``. ``errors`` collects the samples that
    are bad: their rows are not defined. A value that the dtype cannot hold is a ParamsError, which
    ends the read. ``first``, ``named_from``: the number of the file's first record in the set, for
    steps and for errors. ``samples``: of values the samples that they belong to.
    """

    origin: Origin
    job: RowJob
    fills: Sequence[RowMaker]
    outs: Sequence[Array]
    meter: Meter
    errors: list[RowError] = field(default_factory=list)
    first: int = 0
    named_from: int = 0
    samples: Int64 | None = None

    def __post_init__(self) -> None:
        self.fill, self.out, self.rows = self.fills[0], self.outs[0], self.job.rows
        #: rows that are checked here; the files of a set have checksums of their own
        self._check = None if self.origin.checksums is None else self.job.check
        #: of ``samples`` those that are known to be bad
        self._bad: set[int] = set()

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> RowWriter:
        """See :class:`Writer`."""
        return replace(
            self,
            origin=origin,
            job=self.job.pick(positions)._replace(records=local),
            fills=[fill.members.get(first, fill) for fill in self.fills],
            first=self.first + first,
            # of a mix, errors name records by their numbers in their own set
            named_from=self.named_from + (0 if self.fill.members else first),
        )

    def _part(self, which: Int64 | Bools) -> RowWriter:
        """The writer of some of the samples."""
        return replace(self, job=self.job.pick(which))

    @property
    def in_place(self) -> RowWriter | None:
        """This writer, where rows are the stored bytes: a source may write those itself."""
        return self if self.fill.as_stored else None

    # -- errors ------------------------------------------------------------------------------

    def fail(self, i: int, error: SampleError) -> None:
        """Sample ``i`` is bad."""
        error.hint = error.hint or SKIP_HINT
        self.locate(error, i).shift_record(self.named_from)
        self.errors.append(RowError(int(self.rows[i]), error))

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        """The samples ``which`` are bad for one reason; each gets an error of its own, but of the
        values of one sample the first: to name it may take opening the file."""
        if self.samples is not None:
            of, first = np.unique(self.samples[which], return_index=True)
            which = which[first[[one not in self._bad for one in of.tolist()]]]
            self._bad.update(of.tolist())
        for i in which.tolist():
            own = DecodeError(error.what, **error.fields())
            own.__cause__ = error.__cause__
            self.fail(i, own)

    def locate(self, error: E, i: int) -> E:
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
        self.put(i, sample)

    def put(self, i: int, sample: Array) -> None:
        """Write sample ``i``, whose checksum is right, from an array in stored axis order."""
        fill = self.fill
        if fill.as_stored:
            np.copyto(self.out[self.rows[i], ...], sample)
            return
        if not sample.flags.aligned:  # numbers inside an LMDB value may begin anywhere
            sample = sample.copy()
        self._make(i, fill.put, sample)

    def finish(self, i: int, pixels: Array) -> None:
        """Write sample ``i`` from its pixels, cropped, resized and mirrored."""
        fill = self.fill
        assert isinstance(fill, Pictures)
        self._make(i, fill.finish, pixels)

    def _decode(self, i: int, data: UInt8) -> None:
        """Write sample ``i`` from the bytes of an image, by itself."""
        self._make(i, lambda *views: put_views(views, data, self.meter))

    def _make(self, i: int, make: Callable[..., None], *given: object) -> None:
        """Let ``make`` write sample ``i``: it gets what is given and the rows that are made."""
        views = self.views(i)
        try:
            make(*given, *views)
        except DecodeError as exc:
            self.fail(i, exc)
            return
        except (ParamsError, WorkerError) as exc:
            self.locate(exc, i)
            raise
        told = views[0].row
        if self.job.made is not None and told is not None:  # the label that steps made
            self.job.made[self.rows[i]] = told.label

    def views(self, i: int) -> tuple[RowView, ...]:
        """The rows that are made of sample ``i``."""
        out = self.out[self.rows[i], ...]
        return (RowView(self.fill, *self.draws.of(i), out, self._row(i)),)

    def _row(self, i: int) -> Row | None:
        """What steps are told of sample ``i``; None where there are none."""
        if not self.fill.wanted.steps:
            return None
        return self.job.told(i, self.meter.seconds, self.first)

    @cached_property
    def draws(self) -> Drawn:
        """What is drawn for the samples of the job."""
        return self.fill.draws(self.job.keys)

    # -- images ------------------------------------------------------------------------------

    def encoded(self, store: RowStore, offsets: Int64, sizes: Int64) -> None:
        """Decode all samples of the job, until the reader is closed: see :class:`Writer`."""
        together = isinstance(self.fill, Pictures) and self.fill.method is not None
        address = store.address(int(sizes.sum())) if together else 0
        for some in groups(sizes.tolist(), PLANNED_BYTES if together else 0):
            if self.meter.stopped:
                return
            self._decode_some(some, store, address, offsets[some], sizes[some])

    def _decode_some(
        self, some: slice, store: RowStore, address: int | None, offsets: Int64, sizes: Int64
    ) -> None:
        """Decode a group of samples. ``address``: of the store, where that is known."""
        fill, check, bad, first = self.fill, self._check, list[int](), some.start
        if address is None or (check is not None and check[some].any()):
            images = self._copied(first, store, offsets, sizes, bad)
        else:
            images = Images(store.view, address, offsets, sizes)
        left: Iterable[int] = range(some.stop - first)
        if isinstance(fill, Pictures) and fill.method is not None:
            left = planned(fill)(fill, images, self, some).put_all(self.meter)
        for k in left:
            if k not in bad:
                self._decode(first + k, images[k])

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

    # -- checksums ---------------------------------------------------------------------------

    def memory(self, i: int) -> UInt8:
        """The bytes of row ``i``, for a source that decodes in place; then :meth:`placed`."""
        row: UInt8 = self.out[self.rows[i], ...].reshape(-1).view(np.uint8)
        return row

    def placed(self, i: int) -> None:
        """The bytes of sample ``i`` are in its row: check them."""
        if self._check is not None and self._check[i]:
            self._passes(i, self.memory(i))

    def _passes(self, i: int, data: UInt8) -> bool:
        """Whether the bytes of sample ``i`` have the recorded checksum; else it is bad."""
        return self._agrees(i, xxh3_64_intdigest(data.data))

    def _agrees(self, i: int, found: int) -> bool:
        """Whether ``found`` is the recorded XXH3-64 of sample ``i``; else it is bad."""
        assert self.origin.checksums is not None
        expected = int(self.origin.checksums[self.job.records[i]])
        if found != expected:
            self.fail(i, checksum_error(found, expected))
        return found == expected

    def _compare(self, which: Int64, found: UInt64) -> Bools:
        """Whether the XXH3-64 of each of the samples ``which`` is another than the recorded one, of
        those that are to be checked; such a sample is bad."""
        assert self._check is not None
        assert self.origin.checksums is not None
        expected = self.origin.checksums[self.job.records[which]]
        wrong: Bools = self._check[which] & (found != expected)
        for k in np.flatnonzero(wrong).tolist():
            self._agrees(int(which[k]), int(found[k]))
        return wrong

    # -- many samples ------------------------------------------------------------------------

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        """Write raw samples that lie at ``offsets`` of ``store``, in the cheapest way.

        ``which``: their places in the job; None: all of it.
        """
        part = self if which is None else self._part(which)
        if not part.rows.size:
            return
        filler = self.fill.filler(self.out.nbytes)
        if filler is None:
            part._one_by_one(store, offsets)
            return
        keys = np.ascontiguousarray(part.job.keys) if filler.draws else None
        found = _fill(filler, store, offsets, part.rows, self.out, keys, part._check)
        if found is not None:
            part._compare(np.arange(found.size), found)

    def _one_by_one(self, store: RowStore, offsets: Int64) -> None:
        """Write raw samples that no RowFiller writes. Those to be checked, or to be read from a
        file, are copied first, some at a time: the bytes served are those that were hashed."""
        size = self.fill.stored.row_bytes
        check = np.zeros(offsets.size, np.bool_) if self._check is None else self._check
        where = store.address(offsets.size * size)
        copied = np.arange(offsets.size) if where is None else np.flatnonzero(check)
        if where is not None and copied.size < offsets.size:
            straight = np.flatnonzero(~check)
            self._place(straight, offsets[straight] + where)
        group = min(max(1, GROUP_BYTES // size), copied.size)
        copies = SCRATCH.take("checked", group * size)
        lines = np.arange(group, dtype=np.int64)
        for lo in range(0, copied.size, max(1, group)):
            which = copied[lo : lo + group]
            rows, wanted = lines[: which.size], check[which] if check.any() else None
            found = _fill(self.fill.copier, store, offsets[which], rows, copies, None, wanted)
            if found is not None:
                good = ~self._compare(which, found)
                which, rows = which[good], rows[good]
            self._place(which, address_of(copies) + rows * size)

    def _place(self, which: Int64, addresses: Int64) -> None:
        """Write the samples ``which``, which lie at ``addresses``: their checksums are right."""
        self.fill.place(self, which, addresses)

    # -- samples of different length -----------------------------------------------------------

    def values(
        self, origin: Origin, starts: Int64, lengths: Int64, runs: Runs | None = None
    ) -> Iterator[RowWriter]:
        """Cut samples of different length, and fill up their rows: see :class:`Writer`."""
        fill, longest, writer = self.fill, self.out.shape[1], self
        assert isinstance(fill, Ragged)
        if fill.wanted.overlong == "error" and (lengths > longest).any():
            for i in np.flatnonzero(lengths > longest).tolist():
                self.fail(i, too_long(fill.wanted, int(lengths[i])))
            good = lengths <= longest
            writer, starts, lengths = self._part(good), starts[good], lengths[good]
        found = Stretches.of(fill.wanted, starts, lengths, writer.job.keys)
        found.pad(self.out, writer.rows, fill.pad)
        by_value = self.out.reshape(-1, *fill.values.row_shape)
        values = replace(self, origin=origin, fills=(fill.values,), outs=(by_value,))
        check = writer._check
        if check is None or not check.any():
            yield from writer._stretches(values, found, runs)
        else:
            whole = starts[check], lengths[check], found.pick(check)
            yield from writer._part(check)._whole(values, *whole, runs)
            yield from writer._part(~check)._stretches(values, found.pick(~check), runs)
        if fill.wanted.steps and not writer.stopped:
            for i, (row, served) in enumerate(zip(writer.rows, found.served, strict=True)):
                fill.run_last_steps(self.out[row, :served], writer._row(i))

    def _stretches(
        self, values: RowWriter, found: Stretches, runs: Runs | None
    ) -> Iterator[RowWriter]:
        """Write what is served of samples. ``values``: writes their values."""
        size = values.fill.stored.row_bytes
        targets = self.rows * self.fill.row_bytes + address_of(self.out)
        if values.fill.as_stored and runs is not None and _copy(runs, found, size, targets):
            return
        longest, bad = self.out.shape[1], list[RowError]()
        for _, records, rows in found.pieces(self.rows, longest):
            yield values._of(records, rows, rows // longest, bad)
        # one error for each sample
        each = {one.row // longest: RowError(one.row // longest, one.error) for one in bad}
        self.errors += each.values()

    def _whole(
        self, values: RowWriter, starts: Int64, lengths: Int64, found: Stretches, runs: Runs | None
    ) -> Iterator[RowWriter]:
        """Write samples whose checksums are compared: all of their values are read, whatever is
        served, and those that are served are the ones that were hashed."""
        assert self._check is not None
        stored, longest = Numbers(values.fill.stored, OutputSpec(), ""), self.out.shape[1]
        states, size = [xxh3_64() for _ in range(starts.size)], stored.row_bytes
        for counts, records, _ in Stretches(starts, lengths).pieces(self.rows, 0):
            held = np.empty(stored.allocate_shape(records.size), stored.dtype)
            lines, bad = np.arange(records.size), list[RowError]()
            of, begins = np.repeat(np.arange(starts.size), counts), np.cumsum(counts) - counts
            some = np.flatnonzero(counts)
            piece = Stretches(records[begins[some]], counts[some])
            targets = address_of(held) + begins[some] * size
            if runs is None or not _copy(runs, piece, size, targets):
                reader = replace(values, fills=(stored,), outs=(held,))
                yield reader._of(records, lines, of, bad)
            data = held.reshape(-1).view(np.uint8)
            for i, begin in zip(some.tolist(), (begins[some] * size).tolist(), strict=True):
                states[i].update(data[begin : begin + int(counts[i]) * size].data)
            for one in bad:
                i = of[one.row]
                if self._check[i]:
                    self.errors.append(RowError(int(self.rows[i]), one.error))
                self._check[i] = False
            place = records - found.starts[of]
            served = (place >= 0) & (place < found.served[of]) & self._check[of]
            rows, of = (self.rows[of] * longest + place)[served], of[served]
            addresses = address_of(held) + np.flatnonzero(served) * size
            values.fill.place(
                values._of(records[served], rows, of, []), lines[: rows.size], addresses
            )
        sums = np.array([state.intdigest() for state in states], np.uint64)
        self._compare(np.arange(starts.size), sums)

    def _of(self, records: Int64, rows: Int64, samples: Int64, bad: list[RowError]) -> RowWriter:
        """The writer of values of ``samples``, as if each were a sample."""
        job = RowJob(records, rows, records.view(np.uint64))  # numbers draw nothing
        return replace(self, job=job, errors=bad, samples=samples)


def _copy(runs: Runs, found: Stretches, size: int, targets: Int64) -> bool:
    """Copy samples, each in one piece of values of ``size`` bytes. Whether they are in memory."""
    store, offsets = runs
    full = found.served > 0
    sizes = found.served[full] * size
    where = store.address(int(sizes.sum()))
    if where is None:
        return False
    kernels.copy_runs(offsets(found.starts[full]) + where, sizes, targets[full])
    return True


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


# -- several views of a sample ---------------------------------------------------------------------


def by_field(fills: Sequence[RowMaker], of_arrays: Sequence[T]) -> list[Sequence[T]]:
    """What belongs to each field, of what belongs to the arrays that ``fills`` make."""
    if len(fills) == 1:  # each batch asks
        return [of_arrays]
    starts = [k for k, fill in enumerate(fills) if not fill.wanted.first_view]
    ends = [*starts[1:], len(fills)]
    return [of_arrays[start:end] for start, end in zip(starts, ends, strict=True)]


def keys_of_views(keys: UInt64, first: int, count: int) -> UInt64:
    """The keys of ``count`` views of each sample, from view ``first`` on: uint64 (n, count). View 0
    has the sample's own key: it is what a reader without views serves."""
    made = np.empty((keys.size, count), np.uint64)
    for k in range(count):
        number = first + k
        made[:, k] = mix_rows(key_of(STREAM_VIEW, number), keys.view(np.int64)) if number else keys
    return made


class ViewWriter(RowWriter):
    """Writes each sample into several rows: of all arrays of the field, memory (B, views, ...).

    The sample is read, checked and decoded once. A view is a row of its own draws; those of one
    size are an array (B, views, ...), which a RowWriter of its own fills.
    """

    @cached_property
    def _writers(self) -> list[RowWriter]:
        """Those of each array: their samples are the views, their rows those of (B * views, ...).
        What they write has been checked."""
        return [self._writer(*one) for one in zip(self.fills, self.outs, strict=True)]

    def _writer(self, fill: RowMaker, out: Array) -> RowWriter:
        count, job = fill.wanted.views, self.job
        places = self._places(np.arange(job.rows.size), count)
        keys = keys_of_views(job.keys, fill.wanted.first_view, count).reshape(-1)
        rows = self._places(job.rows, count)
        job = job.pick(places // count)._replace(rows=rows, keys=keys, check=None, made=None)
        outs = (out.reshape(-1, *fill.row_shape),)
        numbers = self.first, self.named_from
        return RowWriter(self.origin, job, (fill,), outs, self.meter, self.errors, *numbers)

    @staticmethod
    def _places(samples: Int64, count: int) -> Int64:
        """The numbers of ``count`` views of each sample."""
        return (samples[:, None] * count + np.arange(count)).reshape(-1)

    def _each(self, i: int) -> Iterator[tuple[RowWriter, int]]:
        """The writers of the views of sample ``i``, and its numbers there."""
        for writer in self._writers:
            count = writer.fill.wanted.views
            for k in range(i * count, (i + 1) * count):
                yield writer, k

    def views(self, i: int) -> tuple[RowView, ...]:
        """See :class:`RowWriter`."""
        return tuple(view for writer, k in self._each(i) for view in writer.views(k))

    def put(self, i: int, sample: Array) -> None:
        for writer, k in self._each(i):
            writer.put(k, sample)

    def _place(self, which: Int64, addresses: Int64) -> None:
        for writer in self._writers:
            count = writer.fill.wanted.views
            writer._place(self._places(which, count), np.repeat(addresses, count))
