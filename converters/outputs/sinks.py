"""Writes samples and their tables to the two containers: append, finish, abandon.

A sink writes below a workspace (publish.py), which gives the target its name. Equal samples in
equal order give equal bytes: no times are stored, and the ends of LMDB's transactions and the
offsets of HDF5's tables depend on the contents alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import lmdb
import numpy as np

from asyncreader.errors import FormatError, SourceError
from asyncreader.formats import packed as fmt
from asyncreader.system.array_types import Array, Int64, UInt64

from ..encode import Block, FieldBlock
from ..inputs.samples import Samples
from ..options import Options
from ..temp_tables import Numbers, PathOf, blocks, spooled
from .disk import free_bytes, full_error, is_full, reported
from .hdf5_writer import ChunkedData, ContiguousData, FieldData, Hdf5File, SpooledData


class FieldTables:
    """The packed samples of one field in record order: the checksum of each, where it ends, and its
    path; on disk where there are many. ``bytes``: of all of them; ``path``: None where paths are
    not known."""

    def __init__(self, name: str, encoding: str) -> None:
        self._name = name
        self._encoding = encoding
        self._checksums = Numbers("Q")
        self._ends = Numbers("q")
        self._ends.append(0)
        self._values = self.bytes = 0
        self.path: PathOf | None = None
        self._meta: fmt.FieldMeta | None = None

    def add(self, sample: FieldBlock) -> None:
        """Note the next record, or several."""
        meta = self._meta
        if meta is None:
            described = sample.described(self._name, self._encoding)
            self._meta = replace(described, shape=sample.shape)
        elif meta.shape is not None and sample.shape != meta.shape:
            self._meta = replace(meta, shape=None)
        self.bytes += len(sample.data)
        if isinstance(sample.checksum, int):
            self._checksums.append(sample.checksum)
            self._ends.append(self.bytes)
        else:  # raw samples, which need no offsets unless they differ in length
            self._checksums.extend(sample.checksum)
            if sample.lengths is not None:
                self._ends.extend(self._values + np.cumsum(sample.lengths))
                self._values += int(sample.lengths.sum())

    @property
    def meta(self) -> fmt.FieldMeta:
        """What all records have in common."""
        assert self._meta is not None
        return self._meta

    @property
    def checksums(self) -> UInt64:
        """Of each record, uint64 (N,)."""
        return self._checksums.rows()

    @property
    def offsets(self) -> Int64 | None:
        """Of the encoded samples in their blob, or of those of different length in their values,
        int64 (N+1,); None for raw ones."""
        return None if self._encoding == "raw" else self._ends.rows()

    def paths(self) -> Iterator[bytes]:
        """The path of each record; none where they are not known."""
        return iter(()) if self.path is None else map(self.path, range(self.checksums.size))

    def name(self, table: str) -> str:
        """The name of one of these tables in the file."""
        return fmt.table_of(self._name, table)

    def data(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of all samples as one array: (N, H, W, C) of raw ones, else bytes."""
        meta, offsets = self.meta, self.offsets
        if offsets is not None and meta.encoding != fmt.RAGGED:
            return (int(offsets[-1]),), "uint8"
        assert meta.shape is not None
        rows = self.checksums.size if offsets is None else int(offsets[-1])
        return (rows, *meta.shape), meta.dtype

    def digests(self) -> dict[str, str]:
        """The digest of each table by its name in the file."""
        found = {self.name(fmt.CHECKSUMS): fmt.digest(self.checksums)}
        if self.offsets is not None:
            found[self.name(fmt.OFFSETS)] = fmt.digest(self.offsets)
        if self.path is not None:
            found[self.name(fmt.PATHS)] = fmt.names_digest(self.paths())
        return found


@dataclass(frozen=True)
class Tables:
    """The tables of a finished set. ``labels``: (N, L) int64 or float64, None without; ``splits``:
    int64 (N,), None without."""

    meta: fmt.Meta
    labels: Array | None
    splits: Int64 | None
    fields: tuple[FieldTables, ...]


def encoded(name: str) -> bytes:
    """A name's bytes: UTF-8, or whatever bytes a file name had that is not."""
    return name.encode("utf-8", "surrogateescape")


def tables_of(
    samples: Samples, fields: tuple[FieldTables, ...], count: int, skipped: Sequence[int]
) -> Tables:
    """All tables of ``count`` records, and the description with their digests. ``skipped``: numbers
    of samples that are no records."""
    if skipped:
        samples = samples.of(np.delete(np.arange(count + len(skipped)), skipped))
    labels = None if samples.labels is None else _stored_labels(samples.labels, count)
    digests: dict[str, str] = {}
    for field, path in zip(fields, samples.paths, strict=True):
        field.path = path
        digests |= field.digests()
    if labels is not None:
        digests[fmt.LABELS] = fmt.digest(labels)
    if samples.classes is not None:
        digests[fmt.CLASSES] = fmt.names_digest(map(encoded, samples.classes))
    # what a Dataset serves may have other labels than its file
    names = samples.label_names
    names = names if labels is not None and len(names) == labels.shape[1] else ()
    if names:
        digests[fmt.LABEL_NAMES] = fmt.names_digest(map(encoded, names))
    splits = samples.splits
    if splits is not None:
        digests[fmt.SPLITS] = fmt.digest(splits.rows)
    first, *others = (field.meta for field in fields)
    meta = fmt.Meta(
        count=count,
        encoding=first.encoding,
        shape=first.shape,
        channels=first.channels,
        label_kind=samples.label_kind,
        label_dtype="<i8" if labels is None else labels.dtype.newbyteorder("<").str,
        classes=samples.classes,
        splits=None if splits is None else splits.names,
        fields=tuple(others),
        dtype=first.dtype,
        digests=digests,
        label_names=names or None,
    )
    return Tables(meta.sealed(), labels, None if splits is None else splits.rows, fields)


def _stored_labels(table: Any, count: int) -> Array:
    if isinstance(table, np.ndarray):
        return np.ascontiguousarray(table)
    return spooled(table[part] for part in blocks(count))


# -- the containers --------------------------------------------------------------------------------


T = TypeVar("T")


# -- HDF5 ----------------------------------------------------------------------------------------


class Hdf5Sink:
    """An HDF5 file of the layout in ``asyncreader/formats/packed.py``, in which one thread writes
    samples one by one, or several raw ones. ``path``: of the file, ``target``: its name in
    messages.

    Without compression all fields but the first are kept in temporary files until all images are
    written.
    """

    def __init__(self, path: str, target: str, options: Options, samples: Samples) -> None:
        self._target = target
        self._folder = os.path.dirname(path)
        with self._reported():
            self._file = Hdf5File(path, target)
            self._fields: list[FieldData] = []
            for name in samples.fields:
                if options.compression is not None:
                    chunked = ChunkedData(self._file, name, options.chunk, options.jobs)
                    self._fields.append(chunked)
                elif name == fmt.DATA:
                    self._fields.append(ContiguousData(self._file))
                else:
                    self._fields.append(SpooledData(self._file, name, path))

    def append(self, sample: Block) -> None:
        """Add the next record, or several, whose bytes may change as soon as this returns."""
        with self._reported():
            for field, values in zip(self._fields, sample, strict=True):
                field.append(values)

    def finish(self, tables: Tables) -> None:
        file, (first, *others) = self._file, tables.fields
        with self._reported():
            self._fields[0].finish(*first.data())
            for field, found in zip(self._fields[1:], others, strict=True):
                field.finish(*found.data())
                self._tables(found)
            self._tables(first, tables.labels)
            if tables.splits is not None:
                file.table(fmt.SPLITS, tables.splits)
            if tables.meta.classes is not None:
                file.strings(fmt.CLASSES, [encoded(name) for name in tables.meta.classes])
            file.describe(tables.meta)
            file.finish()

    def _tables(self, field: FieldTables, labels: Array | None = None) -> None:
        if field.offsets is not None:
            self._file.table(field.name(fmt.OFFSETS), field.offsets)
        if labels is not None:
            self._file.table(fmt.LABELS, labels)
        self._file.table(field.name(fmt.CHECKSUMS), field.checksums)
        if field.path is not None:
            count, longest = field.checksums.size, max(map(len, field.paths()))
            self._file.names(field.name(fmt.PATHS), count, longest, field.paths())

    def _reported(self) -> contextlib.AbstractContextManager[None]:
        """h5py raises OSError, RuntimeError, ValueError and others."""
        what = "HDF5 cannot write the target"
        return reported(self._target, self._folder, what, errors=Exception)

    def abandon(self) -> None:
        fields = (field.abandon for field in self._fields)
        for close in (self._file.write_nowhere, *fields, self._file.abandon):
            with contextlib.suppress(Exception):
                close()


# -- LMDB ----------------------------------------------------------------------------------------

#: A transaction is written when it has about this much. It bounds memory; where a transaction ends
#: depends on the samples alone.
COMMIT_BYTES: Final = 32 << 20
COMMIT_RECORDS: Final = 1 << 16

#: The map's first size; it doubles whenever it is full.
FIRST_MAP: Final = 64 << 20

#: Bytes that a small transaction writes in addition to its values.
TRANSACTION_BYTES: Final = 32 << 10

#: lmdb.h: MAXDATASIZE, the longest value.
MAX_VALUE: Final = 0xFFFFFFFF


class LmdbSink:
    """An LMDB folder of the layout in ``asyncreader/formats/packed.py``."""

    def __init__(
        self,
        path: str,
        target: str,
        options: Options,
        samples: Samples,
        *,
        first_map: int = FIRST_MAP,
        commit_bytes: int = COMMIT_BYTES,
    ) -> None:
        self._folder = os.path.dirname(path)
        self._target = target
        self._commit_bytes = commit_bytes
        self._count = 0
        self._pending: list[tuple[Any, bytes, Any]] = []
        self._pending_bytes = 0
        self._env: Any = None
        with self._translated():
            os.mkdir(path, 0o777)
            self._map = first_map
            # writemap would turn a full disk into a SIGBUS; syncing is done once, at the end.
            self._env = lmdb.open(
                path,
                map_size=first_map,
                mode=0o666,
                lock=False,
                sync=False,
                metasync=False,
                writemap=False,
                max_dbs=6 + 3 * len(samples.fields),
            )
        self._fields = [self._named(name) for name in samples.fields]

    def append(self, sample: Block) -> None:
        for field, values in zip(self._fields, sample, strict=True):
            for number, data in enumerate(values.each(), self._count):
                self._put(field, fmt.record_key(number), data)
        self._count += sample[0].count

    def _put(self, database: Any, key: bytes, value: Any) -> None:
        self._pending.append((database, key, value))
        self._pending_bytes += len(value)
        if self._pending_bytes >= self._commit_bytes or len(self._pending) >= COMMIT_RECORDS:
            self._commit()

    def _commit(self) -> None:
        """Write what is pending."""
        pending, needed = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0

        def write() -> None:
            with self._env.begin(write=True) as transaction:
                for database, key, value in pending:
                    transaction.put(key, value, append=True, db=database)

        self._with_larger_map(write, needed)

    def _with_larger_map(self, action: Callable[[], T], needed: int = 0) -> T:
        """Do ``action``, a whole transaction; when the map is full, enlarge it and do it again."""
        with self._translated(needed):
            while True:
                try:
                    return action()
                except lmdb.MapFullError:
                    self._map *= 2
                    self._env.set_mapsize(self._map)

    def finish(self, tables: Tables) -> None:
        self._commit()
        for field in tables.fields:
            if field.path is not None:
                database = self._named(field.name(fmt.PATHS))
                for number, path in enumerate(field.paths()):
                    self._put(database, fmt.record_key(number), path)
                self._commit()
        arrays: list[tuple[str, Array]] = [
            (field.name(fmt.CHECKSUMS), field.checksums) for field in tables.fields
        ]
        if tables.labels is not None:
            arrays.insert(1, (fmt.LABELS, tables.labels))
        if tables.splits is not None:
            arrays.append((fmt.SPLITS, tables.splits))
        for name, array in arrays:
            self._table(name, array)
        meta = self._named(fmt.META)
        self._put(meta, fmt.META_KEY, tables.meta.to_json().encode("ascii"))
        self._commit()
        with self._translated():
            self._env.sync(True)
            self._env.close()

    def _named(self, name: str) -> Any:
        return self._with_larger_map(lambda: self._env.open_db(name.encode()))

    def _table(self, name: str, table: Any) -> None:
        if table.nbytes > MAX_VALUE:
            raise FormatError(
                f"{name} are too large for one value of LMDB",
                path=self._target,
                found=f"{table.nbytes} bytes",
                expected=f"at most {MAX_VALUE}",
                hint="write to .h5",
            )
        database = self._named(name)
        # The mapped temporary file: the only copy in memory is LMDB's own.
        self._put(database, fmt.TABLE_KEY, memoryview(table.reshape(-1).view(np.uint8)))
        self._commit()

    def abandon(self) -> None:
        self._pending = []
        if self._env is not None:
            with contextlib.suppress(lmdb.Error):
                self._env.close()

    @contextlib.contextmanager
    def _translated(self, needed: int = 0) -> Iterator[None]:
        try:
            with reported(self._target, self._folder):
                yield
        except lmdb.Error as exc:
            # LMDB reports a write to a full disk as "Input/output error".
            needed += TRANSACTION_BYTES
            if is_full(exc) or free_bytes(self._folder) < needed:
                raise full_error(self._target, self._folder, needed, exc) from exc
            what = "LMDB cannot write the target"
            raise SourceError(what, path=self._target, found=str(exc)) from exc
