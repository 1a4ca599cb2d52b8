"""The Source protocol, which every container implements, and the code that all sources share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

import numpy as np

from ..errors import FormatError, ParamsError
from ..formats.packed import RAGGED, FieldMeta, Meta
from ..pixels.row_maker import RowMaker
from ..pixels.rows import E, RowError, RowJob, RowWriter, ViewWriter, Writer
from ..pixels.specs import OutputSpec, SampleSpec
from ..pixels.tables import RowsInMemory
from ..pixels.transform import plan_rows
from ..stats import Meter
from ..system.array_types import Array, Int64, UInt64
from .bytestore import REMOTE, ByteFile, ByteStore, FileRef, MemoryStore
from .request import Request, stored_samples

#: Labels up to this size (2 million of 8 bytes) are copied into memory, so that a file that changes
#: while it is read cannot change them. Larger ones are mapped: memory must not grow with the set.
KEPT_BYTES: Final = 16 << 20
#: Decoded chunks of a field that a source remembers.
CACHE_BYTES: Final = 64 << 20


def packed_rows(meta: Meta, other_field: bool, asked: Request, path: str) -> SampleSpec:
    """What a set packed by asyncreader stores; ``other_field``: in a field after the first.

    ParamsError where ``asked`` names the axes of pictures, whose order is known, or takes samples
    of different length for others."""
    asked.check_rows("a dataset that asyncreader packed")
    ragged = meta.encoding == RAGGED
    fixed = meta.channels or ragged
    if asked.dims not in (None, (1, 2, 3, 4)) and (fixed or asked.dims[0] != 1):
        raise ParamsError("the axes of this dataset are known", found=asked.dims)
    dtype, encoding = np.dtype(meta.dtype), meta.encoding
    if ragged:
        if asked.cut is not None or asked.lead > 1 or asked.own_offsets is not None:
            raise ParamsError(
                f"asyncreader stored field {asked.data!r} as samples of different length",
                found="offsets_field, patch or episodes='axis'",
                hint="leave that out, and pass max_length",
            )
        return SampleSpec(meta.shape, dtype, None, ragged=True)
    if not meta.channels:
        assert meta.shape is not None
        return stored_samples((meta.count, *meta.shape), dtype, asked, path, known=True)[1]
    values = encoding != "raw" and (other_field or dtype != np.uint8)
    return SampleSpec(meta.shape, dtype, "HWC", encoding, meta.channels, values=values, narrow=True)


@dataclass(frozen=True, kw_only=True)
class SetFacts:
    """What was found out of a set as a whole when it was opened.

    ``container``: "HDF5", "LMDB", "NPY" or "arrays"; ``layout``: how its samples are stored, in
    words; ``meta``: the description of a set packed by asyncreader, else None; ``fields``: those
    that asyncreader packed after the first; ``ends``: int64, the record numbers at which several
    files end, None for one file; ``earlier``: count and digests before shards were added.
    """

    path: str
    container: str
    layout: str
    count: int
    io: str
    size_on_disk: int
    meta: Meta | None = None
    classes: tuple[str, ...] | None = None
    fields: tuple[FieldMeta, ...] = ()
    ends: Int64 | None = field(default=None, compare=False)
    earlier: tuple[tuple[int, Mapping[str, str]], ...] = ()

    @classmethod
    def of(cls, file: ByteFile, container: str, layout: str, count: int, **more: Any) -> SetFacts:
        """Those of a set that is one file, with ``more`` that is known of it."""
        more = {"path": file.path, "io": file.io, "size_on_disk": file.size, **more}
        return cls(container=container, layout=layout, count=count, **more)

    @property
    def remote(self) -> bool:
        """Whether each read is a round trip over a network."""
        return self.io == REMOTE


class Names(Protocol):
    """What a file says of its samples' keys and origins: frozen and picklable. Without more than
    this it says nothing."""

    def key(self, file: ByteFile, index: int) -> str | None:
        """The key of a sample, for messages."""
        return None

    def path(self, file: ByteFile, index: int) -> bytes | None:
        """The recorded path of the file that a sample was packed from."""
        return None

    def paths(self, file: ByteFile, count: int) -> Iterator[bytes | None]:
        """The paths of all ``count`` samples, in order."""
        return (self.path(file, index) for index in range(count))


class Storage(Protocol):
    """Where the samples of an index lie: frozen and picklable."""

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""


@dataclass(frozen=True, eq=False)
class FieldIndex:
    """What was found out of one field of a set when it was opened: frozen and picklable.

    ``where``: the file that it lies in; None for arrays in memory, and for several files, which
    ``storage`` opens. ``block``: samples that are stored together, the unit of
    ``shuffle="block"``; ``chunk`` and ``compression``: of HDF5 chunks. ``checked``: whether "all",
    "some" or "none" of the samples have checksums. ``path``: the name of its own file, where the
    set has several. ``stored_as``: what is stored, where ``spec`` follows from what the caller asks
    for; ``columns``: a digest of the names of the columns that are served, where they have any;
    ``memory``: bytes that a sample takes of decoded chunks, where not those of its values;
    ``offsets``: whole numbers (N + 1,), where the values of samples of different length begin;
    ``table``: the name of the table beside the values that says it; ``numbers``: the field of
    stored numbers, where what is served is made of them (physical.py).
    """

    spec: SampleSpec
    storage: Storage
    where: FileRef | None = None
    checksums: UInt64 | None = None
    names: Names | None = None
    block: int = 1
    chunk: int | None = None
    compression: str | None = None
    checked: Literal["all", "some", "none"] = "none"
    path: str | None = None
    stored_as: str | None = None
    columns: str | None = None
    memory: int | None = None
    offsets: Array | None = None
    table: str | None = None
    numbers: FieldIndex | None = None

    @property
    def stored(self) -> FieldIndex:
        """The field as it is stored."""
        return self.numbers or self

    def open(self, facts: SetFacts) -> Source:
        """Its source, of a file that is opened anew. FormatError if it was replaced or changed."""
        file = None if self.where is None else self.where.open()
        return self.storage.serve(OpenField(facts, self, file))


@dataclass(frozen=True, eq=False)
class OpenField:
    """A field of a set that is open: what was found of both, and the file, None of memory."""

    facts: SetFacts
    index: FieldIndex
    file: ByteFile | None

    @property
    def own_file(self) -> ByteFile:
        """The file of what lies in one."""
        assert self.file is not None
        return self.file


class Source:
    """Samples by record number. Thread-safe; opened in the process that uses it. Derive from this
    class: what has a body here is right for most sources.

    ``index``: what was found when it was opened, with which another process opens it; ``labels``,
    ``splits``: those of the set, where they are read from several files when they are asked for;
    ``parts``: the sources that its samples are made of, where they are made of others.
    """

    facts: SetFacts
    index: FieldIndex
    spec: SampleSpec
    checksums: UInt64 | None = None
    labels: Array | None = None
    splits: Mapping[str, Int64] = MappingProxyType({})
    parts: tuple[Source, ...] = ()

    def read_into(self, writer: Writer) -> None:
        """Give the samples of ``writer.job`` to the writer, in any order."""
        raise NotImplementedError

    def holding(self, record: int) -> AbstractContextManager[tuple[BaseSource, int]]:
        """The open file that holds a sample, and the sample's number in it, of a patch that of its
        volume: by this number the file's tables know it. An error inside names the record in the
        set."""
        raise NotImplementedError

    def located(self, error: E, record: int) -> E:
        """See :class:`Origin`."""
        raise NotImplementedError

    def prefetch(self, records: Int64) -> None:
        """Prefetch: the calling thread reads these samples next."""

    def in_memory(self, size: int) -> tuple[RowsInMemory, ...]:
        """Where ``size`` bytes of raw rows can be copied from now, file by file; nothing where they
        must be read.

        With ``size`` 0: where they can ever be copied from.
        """
        return ()

    def reserve(self, samples: int) -> None:
        """Keep chunks for that many samples: shuffle="block" mixes them and reads them soon."""

    def release(self) -> None:
        """Give back the memory of decoded chunks, unless a thread uses it: none is read soon."""

    def close(self) -> None:
        """Close the file. Memory that a thread can still reach stays mapped."""


class BaseSource(Source):
    """A source of one file, or of memory: errors name the file and the record."""

    def __init__(self, field: OpenField) -> None:
        self.facts, self.index, self.file = field.facts, field.index, field.file
        #: where bytes are read from
        self.store: ByteStore = MemoryStore() if self.file is None else self.file.store
        self.spec = self.index.spec
        self.checksums = self.index.checksums

    def holding(self, record: int) -> AbstractContextManager[tuple[BaseSource, int]]:
        return nullcontext((self, record))

    def reserve(self, samples: int) -> None:
        # a block also touches the chunks in which the blocks beside it begin and end
        blocks = -(-samples // self.index.block)
        for part in self.parts:
            mean = part.facts.count / max(1, self.facts.count)
            part.reserve(int(samples * mean) + blocks * (part.index.chunk or 0))

    def release(self) -> None:
        for part in self.parts:
            part.release()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        for part in self.parts:
            part.close()

    def key(self, record: int) -> str | None:
        """The key of a sample in its container, where that has keys."""
        names = self.index.names
        return None if names is None or self.file is None else names.key(self.file, record)

    def path(self, record: int) -> bytes | None:
        """The recorded path of the file that a sample was packed from; None if not recorded."""
        names, file = self.index.names, self.file
        if names is not None and file is not None:
            with suppress(Exception):  # of a damaged file: only an error message asks for it
                return names.path(file, record)
        return None

    def located(self, error: E, record: int) -> E:
        error.path, error.index = self.index.path or self.facts.path, record
        error.key, error.source_path = self.key(record), shown_path(self.path(record))
        return error


def read_rows(
    source: Source, job: RowJob, fill: RowMaker, out: Array, meter: Meter
) -> tuple[RowError, ...]:
    """:func:`read_field` of what is one array."""
    return read_field(source, job, (fill,), (out,), meter)


def read_stored(
    source: Source, records: Int64, fill: RowMaker | None = None, check: bool = False
) -> tuple[Array, tuple[RowError, ...]]:
    """Samples as they are stored, or as ``fill`` makes them, and those that are bad; ``check``:
    their checksums are compared."""
    fill = fill or plan_rows(source.spec, OutputSpec(layout="NHWC"), source.facts.path)
    out = np.empty(fill.allocate_shape(records.size), fill.dtype)
    every = np.ones(records.size, np.bool_) if check else None
    job = RowJob(records, np.arange(records.size), np.zeros(records.size, np.uint64), every)
    return out, read_rows(source, job, fill, out, Meter()) if records.size else ()


def read_field(
    source: Source,
    job: RowJob,
    fills: Sequence[RowMaker],
    outs: Sequence[Array],
    meter: Meter,
) -> tuple[RowError, ...]:
    """Fill rows of ``outs``, the arrays that are made of a field: each of fill.allocate_shape().
    Returns the bad samples; fills the others."""
    kind = ViewWriter if fills[0].wanted.views else RowWriter
    writer = kind(source, job, fills, outs, meter)
    source.read_into(writer)
    return tuple(writer.errors)


def shown_path(path: bytes | None) -> str | None:
    """A recorded path as errors show it."""
    return None if path is None else path.decode("utf-8", "backslashreplace")


def copied_if_small(labels: Array) -> Array:
    """A copy of the labels up to KEPT_BYTES, made before their digest is checked: a later write to
    the file cannot change the labels that were checked."""
    return labels.copy() if labels.nbytes <= KEPT_BYTES else labels


def default_block(row_bytes: int) -> int:
    """Samples in a block of about a MiB, for storage without chunks."""
    return max(1, (1 << 20) // max(1, row_bytes))


def check_extents(
    starts: Int64,
    sizes: Array,
    size: int,
    named: Callable[[int], str] | None = None,
) -> None:
    """FormatError unless every extent lies inside a file of ``size`` bytes. ``named``: what an
    extent is, by its number; None: a sample, whose record number that is."""
    bad = (starts < 0) | (sizes < 0) | (starts > size) | (sizes.astype(np.int64) > size - starts)
    if bad.any():
        number = int(np.argmax(bad))
        raise FormatError(
            f"{'a sample' if named is None else named(number)} lies outside the file: it is "
            "truncated or damaged",
            index=number if named is None else None,
            found=f"bytes {int(starts[number])} to {int(starts[number]) + int(sizes[number])}",
            expected=f"within the {size} bytes of the file",
            hint="copy or convert it again",
        )


def check_sizes(sizes: Array, spec: SampleSpec, hint: str) -> None:
    """FormatError unless samples of these bytes are of the shape that ``spec`` says; those of
    different length are of whole values."""
    wrong = sizes % spec.row_bytes != 0 if spec.ragged else sizes != spec.row_bytes
    if wrong.any():
        record = int(np.argmax(wrong))
        raise FormatError(
            "a sample's size does not match its shape",
            index=record,
            found=f"{int(sizes[record])} bytes",
            expected=f"{spec.row_bytes} bytes for shape {spec.shape}",
            hint=hint,
        )


def row_size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes of one raw sample."""
    return math.prod(shape) * dtype.itemsize
