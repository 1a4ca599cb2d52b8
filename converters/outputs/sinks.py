"""Writes samples to the two containers: append, finish, abandon.

A sink writes below a workspace (publish.py), which gives the target its name. Equal samples in
equal order give equal bytes: no times are stored, and the ends of LMDB's transactions and the
offsets of HDF5's tables depend on the contents alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import lmdb
import numpy as np

from asyncreader.errors import AsyncReaderError, FormatError, SourceError
from asyncreader.formats import packed as fmt

from ..encode import Packed
from .disk import ENTRY, check_space, free_bytes, full_error, is_full
from .hdf5_writer import ChunkedData, ContiguousData, Hdf5File, SpooledData
from .tables import FieldTables, Paths, Tables

T = TypeVar("T")


class Sink(Protocol):
    """Where samples go, one by one; used by one thread."""

    def append(self, sample: Packed) -> None:
        """Add the next record."""

    def finish(self, tables: Tables) -> None:
        """Write the tables and the description, and close."""

    def abandon(self) -> None:
        """Close without finishing; also after finish(), where it does nothing."""


# -- HDF5 ----------------------------------------------------------------------------------------


class Hdf5Sink:
    """An HDF5 file of the layout in ``asyncreader/formats/packed.py``.

    ``expected``: samples that are coming, at most; ``fields``: names of their other fields, which
    are kept in temporary files until all pictures are written; ``compression``: None, or "gzip"
    in chunks of ``chunk`` samples, compressed by ``jobs`` threads.
    """

    def __init__(
        self,
        path: str,
        target: str,
        *,
        encoding: str,
        expected: int,
        fields: tuple[str, ...] = (),
        compression: str | None = None,
        chunk: int = 1,
        jobs: int = 1,
    ) -> None:
        self._target = target
        self._raw = encoding == "raw"
        self._expected = expected
        self._folder = os.path.dirname(path)
        with _translated(target, self._folder):
            self._file = Hdf5File(path, target)
            self._data: ContiguousData | ChunkedData
            self._fields: list[SpooledData | ChunkedData] = []
            if compression is None:
                self._data = ContiguousData(self._file)
                self._fields += [SpooledData(self._file, name, path) for name in fields]
            else:
                self._data = ChunkedData(self._file, chunk, jobs)
                self._fields += [ChunkedData(self._file, chunk, jobs, name) for name in fields]
        self._first = True

    def append(self, sample: Packed) -> None:
        with _translated(self._target, self._folder):
            if self._first and self._raw and isinstance(self._data, ContiguousData):
                # a field's values are written twice
                needed = 2 * sample.size - len(sample.data)
                check_space(self._target, self._folder, self._expected * needed)
            self._first = False
            self._data.append(sample)
            for field, values in zip(self._fields, sample.fields, strict=True):
                field.append(values)

    def finish(self, tables: Tables) -> None:
        with _translated(self._target, self._folder):
            meta = tables.meta
            if self._raw:
                assert meta.shape is not None
                shape: tuple[int, ...] = (meta.count, *meta.shape)
            else:
                assert tables.offsets is not None
                shape = (int(tables.offsets[-1]),)
            self._data.finish(shape)
            file = self._file
            for field, values in zip(self._fields, tables.fields, strict=True):
                self._finish_field(field, values, meta.count)
            if tables.offsets is not None:
                file.table(fmt.OFFSETS, tables.offsets)
            if tables.labels is not None:
                file.table(fmt.LABELS, tables.labels)
            file.table(fmt.CHECKSUMS, tables.checksums)
            if tables.paths is not None:
                self._paths(fmt.PATHS, tables.paths, meta.count)
            if meta.classes is not None:
                file.strings(fmt.CLASSES, tables.class_names())
            file.describe(meta)
            file.finish()

    def _finish_field(
        self, field: SpooledData | ChunkedData, tables: FieldTables, count: int
    ) -> None:
        name, offsets = tables.meta.name, tables.offsets
        if offsets is None:
            assert tables.meta.shape is not None
            field.finish((count, *tables.meta.shape), tables.meta.dtype)
        else:
            field.finish((int(offsets[-1]),), "uint8")
            self._file.table(fmt.table_of(name, fmt.OFFSETS), offsets)
        self._file.table(fmt.table_of(name, fmt.CHECKSUMS), tables.checksums)
        if tables.paths is not None:
            self._paths(fmt.table_of(name, fmt.PATHS), tables.paths, count)

    def _paths(self, name: str, paths: Paths, count: int) -> None:
        rows = max(1, min(count, (1 << 16) // paths.longest))
        self._file.names(name, count, paths.longest, rows, paths.blocks(rows))

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._file.write_nowhere()
        for data in (self._data, *self._fields):
            with contextlib.suppress(Exception):
                data.abandon()
        with contextlib.suppress(Exception):
            self._file.abandon()


@contextlib.contextmanager
def _translated(target: str, folder: str) -> Iterator[None]:
    """Turn h5py's errors (OSError, RuntimeError, ValueError and others) into SourceError."""
    try:
        yield
    except (AsyncReaderError, AssertionError, MemoryError):
        raise
    except Exception as exc:
        if is_full(exc):
            raise full_error(target, folder, ENTRY, exc) from exc
        raise SourceError("HDF5 cannot write the target", path=target, found=str(exc)) from exc


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
    """An LMDB folder of the layout in ``asyncreader/formats/packed.py``.

    ``expected``, ``fields``: as for HDF5.
    """

    def __init__(
        self,
        path: str,
        target: str,
        *,
        encoding: str,
        expected: int,
        fields: tuple[str, ...] = (),
        first_map: int = FIRST_MAP,
    ) -> None:
        self._folder = os.path.dirname(path)
        self._target = target
        self._expected = expected if encoding == "raw" else 0
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
                subdir=True,
                mode=0o666,
                lock=False,
                sync=False,
                metasync=False,
                writemap=False,
                meminit=True,
                max_dbs=8 + 3 * len(fields),
            )
        self._data = self._named(fmt.DATA)
        self._fields = [self._named(name) for name in fields]

    def append(self, sample: Packed) -> None:
        if self._count == 0:
            check_space(self._target, self._folder, self._expected * sample.size)
        self._put(self._data, fmt.record_key(self._count), sample.data)
        for field, values in zip(self._fields, sample.fields, strict=True):
            self._put(field, fmt.record_key(self._count), values.data)
        self._count += 1

    def _put(self, database: Any, key: bytes, value: Any) -> None:
        self._pending.append((database, key, value))
        self._pending_bytes += len(value)
        if self._pending_bytes >= COMMIT_BYTES or len(self._pending) >= COMMIT_RECORDS:
            self._commit()

    def _commit(self) -> None:
        """Write what is pending."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0

        def write() -> None:
            with self._env.begin(write=True) as transaction:
                for database, key, value in pending:
                    transaction.put(key, value, append=True, db=database)

        self._with_larger_map(write, sum(len(value) for _, _, value in pending))

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
        of_fields = ((fmt.table_of(f.meta.name, fmt.PATHS), f.paths) for f in tables.fields)
        for name, paths in ((fmt.PATHS, tables.paths), *of_fields):
            if paths is not None:
                database = self._named(name)
                for number, path in enumerate(paths.each()):
                    self._put(database, fmt.record_key(number), path)
                self._commit()
        sums = ((fmt.table_of(f.meta.name, fmt.CHECKSUMS), f.checksums) for f in tables.fields)
        own = ((fmt.CHECKSUMS, tables.checksums), (fmt.LABELS, tables.labels))
        for name, table in (*own, *sums):
            if table is not None:
                self._table(name, table)
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
            yield
        except lmdb.Error as exc:
            # LMDB reports a write to a full disk as "Input/output error".
            needed += TRANSACTION_BYTES
            if is_full(exc) or free_bytes(self._folder) < needed:
                raise full_error(self._target, self._folder, needed, exc) from exc
            raise SourceError(
                "LMDB cannot write the target", path=self._target, found=str(exc)
            ) from exc
        except OSError as exc:
            if isinstance(exc, SourceError) or not is_full(exc):
                raise
            raise full_error(self._target, self._folder, ENTRY, exc) from exc
