"""The Source protocol, which every container implements, and the code that all sources share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from ..errors import ChecksumError, FormatError, ParamsError, SampleError
from ..formats.packed import FieldMeta, Meta
from ..pixels import kernels
from ..pixels.transform import SCRATCH, Fill, Stored
from ..stats import Meter
from ..system.limits import last_level_cache
from ..system.memory import address_of
from .bytestore import ByteFile, ByteStore, FileRef
from .request import Hdf5Fields

Array: TypeAlias = npt.NDArray[Any]
Int64: TypeAlias = npt.NDArray[np.int64]
UInt64: TypeAlias = npt.NDArray[np.uint64]
Bools: TypeAlias = npt.NDArray[np.bool_]
File = TypeVar("File", bound=ByteFile)
Found = TypeVar("Found")

#: Labels up to this size (2 million of 8 bytes) are copied into memory, so that a file that changes
#: while it is read cannot change them. Larger ones are mapped: memory must not grow with the set.
KEPT_BYTES: Final = 16 << 20

#: Rows are copied, hashed and converted in groups of about this many bytes, so that the second
#: look at a row finds it in the core's cache (L2 is 0.5 to 2 MiB on today's machines).
GROUP_BYTES = 320 << 10

#: Rows of at least this many bytes are written past the caches if the slot is larger than this part
#: of the last-level cache: such a slot would be evicted before the consumer reads it. Measured with
#: a consumer that sums each batch, one that copies it, and none.
STREAMED_ROW: Final = 16 << 10
STREAMED_PART: Final = 8


def streams(row_bytes: int, batch_bytes: int) -> bool:
    """Whether rows of a batch are copied past the caches, where they would not stay."""
    return row_bytes >= STREAMED_ROW and batch_bytes >= last_level_cache() // STREAMED_PART


#: The hint of an error about a bad sample (the converters have their own).
SKIP_HINT: Final = "on_error='skip' leaves such samples out"


class RowPlan(NamedTuple):
    """Which samples to read into which rows.

    ``records``: int64, in the source; ``rows``: int64, in the slot; ``keys``: uint64, for crop and
    flip; ``check``: rows whose checksum is compared with the recorded one, or None for none.
    """

    records: Int64
    rows: Int64
    keys: UInt64
    check: Bools | None = None

    def pick(self, which: Int64 | Bools | slice) -> RowPlan:
        """The same for some of the rows."""
        check = None if self.check is None else self.check[which]
        return RowPlan(self.records[which], self.rows[which], self.keys[which], check)


class RowsInMemory(NamedTuple):
    """Where samples lie: at ``address + starts[r]``, or ``address + first + r * stride``."""

    address: int
    starts: Int64
    first: int
    stride: int


@dataclass(frozen=True)
class RowError:
    """A sample that could not be served: its row in the slot, and why."""

    row: int
    error: SampleError


def packed_rows(meta: Meta, other_field: bool) -> Stored:
    """What a set packed by asyncreader stores; ``other_field``: in a field after the first."""
    encoded = meta.encoding != "raw"
    dtype = np.dtype(meta.dtype)
    values = encoded and (other_field or dtype != np.uint8)
    return Stored(meta.shape, dtype, "HWC", encoded, meta.channels, values=values, narrow=True)


@dataclass(frozen=True)
class SourceSpec:
    """What a source serves, as found when it was opened."""

    path: str
    container: str
    """"HDF5", "LMDB" or "arrays"."""
    layout: str
    """How samples are stored in it, in words."""
    count: int
    stored: Stored
    encoding: str
    block: int
    """Samples stored together: the unit of ``shuffle="block"``."""
    meta: Meta | None
    """The description of a set packed by asyncreader, else None."""
    classes: tuple[str, ...] | None
    checksums: bool
    """Whether all samples have checksums."""
    io: str
    size_on_disk: int
    chunk: int | None = None
    compression: str | None = None
    ends: Int64 | None = field(default=None, compare=False)
    """Where each of several files ends, int64; None for one file."""
    fields: tuple[FieldMeta, ...] = ()
    """The set's other fields, after the first."""
    some_checksums: bool = False
    """Whether only some of its files or fields have checksums. Those are compared."""

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of a stored sample; None where samples differ in size."""
        return self.stored.shape

    @property
    def channels(self) -> int:
        """Colour channels of an image set."""
        return self.stored.image_shape()[2]


class Names(Protocol):
    """What a file says of its samples' keys and origins: frozen and picklable."""

    def key(self, file: ByteFile, index: int) -> str | None:
        """The key of a sample, for messages."""

    def path(self, file: ByteFile, index: int) -> bytes | None:
        """The recorded path of the file that a sample was packed from."""

    def paths(self, file: ByteFile, count: int) -> Iterator[bytes | None]:
        """The paths of all ``count`` samples, in order."""


class Storage(Protocol):
    """Where the samples of an index lie: frozen and picklable."""

    def serve(self, index: FieldIndex, file: ByteFile | None) -> Source:
        """A source that reads them from ``file`` (None: from memory)."""


@dataclass(frozen=True, eq=False)
class FieldIndex:
    """All that was found out of one field of a set when it was opened: frozen and picklable.

    ``where``: the file that it lies in; None for arrays in memory, and for several files, which
    ``storage`` opens.
    """

    spec: SourceSpec
    storage: Storage
    where: FileRef | None = None
    labels: Array | None = None
    checksums: UInt64 | None = None
    names: Names | None = None
    #: Named parts of the set.
    splits: Mapping[str, slice | Int64] = field(default_factory=dict)

    def open(self) -> Source:
        """Its source, of a file that is opened anew. FormatError if it was replaced or changed."""
        return self.storage.serve(self, None if self.where is None else self.where.open())


#: The fields of a set by name; the first is the one that has the labels.
Fields: TypeAlias = Mapping[str, "Source"]


def open_fields(file: File, index: Callable[[File], Mapping[str, FieldIndex]]) -> Fields:
    """The sources of what ``index`` finds in ``file``, which is closed if that fails."""
    try:
        return {name: found.storage.serve(found, file) for name, found in index(file).items()}
    except BaseException:
        file.close()
        raise


def index_fields(
    fields: Hdf5Fields, index: Callable[[Hdf5Fields], FieldIndex]
) -> dict[str, FieldIndex]:
    """The indexes of the fields that are asked for, of a file that is open."""
    first = index(fields)
    others = fields.also(first.spec.stored, [one.name for one in first.spec.fields])
    return {fields.data: first, **{one.data: index(one) for one in others}}


@dataclass(frozen=True)
class Layout(Generic[Found]):
    """A layout of sets, which are handed to it open.

    ``name``: what ``info`` calls it; ``row``: what docs/layouts.md says of it (known by, served,
    give), "" for nothing.
    """

    name: str
    recognise: Callable[[Found], bool]
    index: Callable[[Found], FieldIndex]
    row: str = ""


def index_of(found: Found, layouts: Iterable[Layout[Found]]) -> FieldIndex:
    """The index by the first layout that recognises what was found; the last one takes all."""
    for layout in layouts:
        if layout.recognise(found):
            return layout.index(found)
    raise AssertionError(layouts)


class Source(Protocol):
    """Samples by record number. Thread-safe; opened in the process that uses it."""

    @property
    def index(self) -> FieldIndex:
        """What was found when it was opened: another process opens it with that."""

    spec: SourceSpec
    labels: Array | None
    splits: Mapping[str, slice | Int64]
    """Named parts of the set, for ``subset="name"``."""
    remote: bool
    """Each read is a round trip over a network."""

    def read_into(
        self, plan: RowPlan, fill: Fill, out: Array, meter: Meter
    ) -> tuple[RowError, ...]:
        """Fill rows of ``out`` (B, *fill.row_shape). Returns the bad samples; fills the others."""

    def sample_bytes(self, index: int) -> bytes:
        """The stored bytes of one sample, checked against its checksum where there is one."""

    def sample_pixels(self, index: int) -> Array:
        """One raw sample in stored axis order, with the channels in the order served."""

    def picture_size(self, index: int) -> tuple[int, int]:
        """(H, W) of one sample of an image set, upright; DecodeError if its header is damaged."""

    def key_of(self, index: int) -> str | None:
        """The key of a sample in its container, where that has keys."""

    def source_path(self, index: int) -> bytes | None:
        """The recorded path of the file that a sample was packed from; None if not recorded."""

    def all_paths(self) -> Iterator[bytes | None]:
        """source_path of every sample, in order."""

    def checksum_rows(self, start: int, stop: int) -> UInt64 | None:
        """Recorded XXH3-64 of samples start .. stop-1; None without checksums."""

    def prefetch(self, records: Int64) -> None:
        """Prefetch: the calling thread reads these samples next."""

    def offsets(self, records: Int64) -> Int64 | None:
        """Where records, or the chunks that they are in, begin in the file; None where they are in
        no file, or in several."""

    def in_memory(self, size: int) -> RowsInMemory | None:
        """Where ``size`` bytes of raw rows can be copied from now; None: they must be read.

        With ``size`` 0: the address from which they can ever be copied.
        """

    def digests(self) -> dict[str, str] | None:
        """Digests of the tables of a set packed by asyncreader, as one file of all its samples
        would state them; None for other sets."""

    def shuffle_warning(self) -> str | None:
        """What to warn of before all samples are read in random order."""

    def reserve(self, samples: int) -> None:
        """Keep chunks for that many samples: shuffle="block" mixes them and reads them soon."""

    def release(self) -> None:
        """Give back the memory of decoded chunks, unless a thread uses it: none is read soon."""

    def close(self) -> None:
        """Close the file. Memory that a thread can still reach stays mapped."""


class BaseSource:
    """The code that sources share: errors with file and record, checksums, encoded samples."""

    def __init__(self, index: FieldIndex, file: ByteFile | None, store: ByteStore) -> None:
        self.index = index
        self.file = file
        self.store = store
        self.spec = index.spec
        self.labels = index.labels
        self.checksums = index.checksums
        self.splits = index.splits
        self.remote = store.remote

    def key_of(self, index: int) -> str | None:
        names = self.index.names
        return None if names is None or self.file is None else names.key(self.file, index)

    def sample_bytes(self, index: int) -> bytes:
        raise NotImplementedError

    def sample_pixels(self, index: int) -> Array:
        stored = self.spec.stored
        assert stored.shape is not None
        pixels: Array = np.frombuffer(self.sample_bytes(index), stored.dtype)
        return pixels.reshape(stored.shape)

    def picture_size(self, index: int) -> tuple[int, int]:
        high, wide, _ = self.spec.stored.image_shape()
        assert high is not None
        assert wide is not None
        return high, wide

    def source_path(self, index: int) -> bytes | None:
        names = self.index.names
        return None if names is None or self.file is None else names.path(self.file, index)

    def all_paths(self) -> Iterator[bytes | None]:
        names, count = self.index.names, self.spec.count
        if names is None or self.file is None:
            return iter([None] * count)
        return names.paths(self.file, count)

    def checksum_rows(self, start: int, stop: int) -> UInt64 | None:
        return None if self.checksums is None else self.checksums[start:stop]

    def offsets(self, records: Int64) -> Int64 | None:
        return None

    def in_memory(self, size: int) -> RowsInMemory | None:
        return None

    def prefetch(self, records: Int64) -> None:
        pass

    def digests(self) -> dict[str, str] | None:
        return None if self.spec.meta is None else dict(self.spec.meta.digests)

    def shuffle_warning(self) -> str | None:
        return None

    def reserve(self, samples: int) -> None:
        pass

    def release(self) -> None:
        pass

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def located(self, error: SampleError, record: int) -> SampleError:
        """``error`` with this sample's file, record number, key, source path and a hint."""
        error.hint = error.hint or SKIP_HINT
        error.path, error.index = self.spec.path, record
        error.key = self.key_of(record)
        error.source_path = shown_path(self.source_path(record))
        return error

    def checked(self, data: Any, record: int) -> SampleError | None:
        """None if the bytes have the recorded checksum, else the error."""
        assert self.checksums is not None
        found = xxh3_64_intdigest(data)
        expected = int(self.checksums[record])
        if found == expected:
            return None
        return self.located(
            ChecksumError(
                "the stored bytes of a sample are not the bytes that were packed",
                found=f"XXH3-64 {found:016x}",
                expected=f"{expected:016x}",
                hint=f"convert the set again or restore it; {SKIP_HINT}",
            ),
            record,
        )

    def verified(self, data: bytes, record: int) -> bytes:
        """``data``, the bytes of a sample; ChecksumError if they are not those that were packed."""
        error = None if self.checksums is None else self.checked(data, record)
        if error is not None:
            raise error
        return data

    def _read_rows(
        self, store: ByteStore, offsets: Int64, plan: RowPlan, fill: Fill, out: Array
    ) -> tuple[RowError, ...]:
        """Read raw samples at byte offsets of a store into slot rows, in the cheapest way."""
        row_bytes = self._row_bytes()
        if plan.check is not None and self.checksums is not None:
            return tuple(self._read_checked(store, offsets, plan, fill, out))
        if fill.mode == "copy":
            where = None
            if streams(row_bytes, out.nbytes):
                where = store.address(offsets.size * row_bytes)
            if where is not None:
                kernels.stream_rows(where, offsets, row_bytes, address_of(out), plan.rows)
            else:
                store.gather(offsets, row_bytes, address_of(out), plan.rows)
        elif fill.mode == "each":
            samples = (store.view(offset, row_bytes) for offset in offsets.tolist())
            self._put_each(samples, plan, fill, out)
        else:
            address, starts = store.resident(offsets, row_bytes)
            fill.bulk(address, starts, plan.rows, plan.keys, out)
        return ()

    def _bad_row(self, copy: Array, plan: RowPlan, i: int) -> RowError:
        error = self.checked(copy.data, int(plan.records[i]))
        assert error is not None
        return RowError(int(plan.rows[i]), error)

    def _row_bytes(self) -> int:
        stored = self.spec.stored
        assert stored.shape is not None
        return row_size(stored.shape, stored.dtype)

    def _put_each(
        self, samples: Iterable[npt.NDArray[np.uint8]], plan: RowPlan, fill: Fill, out: Array
    ) -> None:
        """Fill rows one by one: samples to resize, or of an unusual dtype or axis order."""
        shape, dtype = self.spec.stored.shape, self.spec.stored.dtype
        assert shape is not None
        crops, flips = fill.draws(plan.keys)
        for i, (sample, row) in enumerate(zip(samples, plan.rows.tolist(), strict=True)):
            pixels = sample.view(dtype).reshape(shape)
            try:
                fill.put(
                    # numbers inside an LMDB value may be unaligned
                    pixels if pixels.flags.aligned else pixels.copy(),
                    None if crops is None else crops[i],
                    flips is not None and bool(flips[i]),
                    out[row, ...],
                )
            except ParamsError as exc:
                exc.index = int(plan.records[i])
                raise

    def _read_checked(
        self, store: ByteStore, offsets: Int64, plan: RowPlan, fill: Fill, out: Array
    ) -> Iterator[RowError]:
        """Copy rows, then hash and convert the copies: the bytes served are those checked."""
        assert plan.check is not None
        assert self.checksums is not None
        row_bytes = self._row_bytes()
        if fill.mode == "copy" and (row_bytes | address_of(out)) % kernels.CHECKED_ROW == 0:
            where = store.address(offsets.size * row_bytes)
            if where is not None:
                found = np.empty(offsets.size, np.uint64)
                kernels.checked_rows(where, offsets, row_bytes, address_of(out), plan.rows, found)
                differ = plan.check & (found != self.checksums[plan.records])
                for i in np.flatnonzero(differ).tolist():
                    row = int(plan.rows[i])
                    yield self._bad_row(out[row].reshape(-1).view(np.uint8), plan, i)
                return
        group = max(1, GROUP_BYTES // row_bytes)
        in_place = fill.mode == "copy"
        # once for the whole batch: this loop is the cost of verify="first"
        expected = self.checksums[plan.records].tolist()
        wanted = plan.check.tolist()
        if in_place:
            copies = out.reshape(out.shape[0], -1).view(np.uint8)
            numbers = plan.rows
        else:
            copies = SCRATCH.take("checked", group * row_bytes).reshape(group, row_bytes)
            numbers = np.arange(plan.records.size, dtype=np.int64) % group
        address, at = copies.ctypes.data, numbers.tolist()
        for lo in range(0, len(expected), group):
            hi = min(lo + group, len(expected))
            store.gather(offsets[lo:hi], row_bytes, address, numbers[lo:hi])
            bad = [
                i
                for i in range(lo, hi)
                if wanted[i] and xxh3_64_intdigest(copies[at[i]].data) != expected[i]
            ]
            for i in bad:
                yield self._bad_row(copies[at[i]], plan, i)
            if not in_place:
                good = np.setdiff1d(np.arange(lo, hi), bad) if bad else np.arange(lo, hi)
                part = plan.pick(good)
                if fill.mode == "each":
                    self._put_each((copies[i] for i in numbers[good]), part, fill, out)
                else:
                    fill.bulk(address, numbers[good] * row_bytes, part.rows, part.keys, out)


def fingerprint(source: Source, digests: Mapping[str, str] | None) -> str:
    """What identifies this data set in a saved state.

    Packed by asyncreader: count and the ``digests`` of checksums and labels. Others (None): count,
    shape, dtype and a hash of 64 fixed samples.
    """
    spec = source.spec
    if digests is not None:
        return f"{spec.count}:{digests.get('checksums')}:{digests.get('labels', '-')}"
    state = hashlib.sha256(
        f"{spec.count} {spec.stored.shape} {spec.stored.dtype.str} {spec.encoding}".encode()
    )
    for index in np.linspace(0, spec.count - 1, min(64, spec.count)).astype(np.int64).tolist():
        try:
            state.update(source.sample_bytes(index))
        except SampleError:  # with on_error a set with bad samples can be resumed, too
            state.update(b"bad")
    return f"{spec.count}:{state.hexdigest()[:32]}"


def shown_path(path: bytes | None) -> str | None:
    """A recorded path as errors show it."""
    return None if path is None else path.decode("utf-8", "backslashreplace")


def kept(labels: Array) -> Array:
    """A copy of the labels up to KEPT_BYTES, made before their digest is checked: a later write to
    the file cannot change the labels that were checked."""
    return labels.copy() if labels.nbytes <= KEPT_BYTES else labels


def default_block(row_bytes: int) -> int:
    """Samples in a block of about a MiB, for storage without chunks."""
    return max(1, (1 << 20) // max(1, row_bytes))


def check_extents(starts: Int64, sizes: npt.NDArray[Any], size: int, path: str) -> None:
    """FormatError unless every extent lies inside a file of ``size`` bytes."""
    if starts.size == 0:
        return
    bad = (starts < 0) | (sizes < 0) | (starts > size) | (sizes.astype(np.int64) > size - starts)
    if bad.any():
        record = int(np.argmax(bad))
        raise FormatError(
            "a sample lies outside the file: it is truncated or damaged",
            path=path,
            index=record,
            found=f"bytes {int(starts[record])} to {int(starts[record]) + int(sizes[record])}",
            expected=f"within the {size} bytes of the file",
            hint="copy or convert it again",
        )


def row_size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes of one raw sample."""
    return math.prod(shape) * dtype.itemsize
