"""Writes an HDF5 file piece by piece: data of unknown length in one pass, then its tables.

Contiguous data are written with pwrite from a fixed offset, into a file that HDF5 has only created.
At the end the file is opened with that offset as its alignment. The data set is then created with
its final shape and allocated at once, so HDF5 puts it where the bytes already are.

libver ("v110", "v110"): checksummed metadata that any HDF5 since 1.10 reads. Space is reserved
before HDF5 writes anything itself, so that a full disk cannot interrupt it. Each data set that is
complete is flushed, so that a failure is an error here: h5py ignores such errors when it closes a
data set, and HDF5 crashes later.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5p, h5s, h5t

from asyncreader.errors import SourceError
from asyncreader.formats import packed as fmt
from asyncreader.system.array_types import Array
from asyncreader.system.signals import result_of, submit

from ..encode import FieldBlock
from .disk import Extent

#: Where contiguous data begin: a page, so that they can be mapped and read directly.
START: Final = 4096

#: HDF5 chooses the offset of smaller data, which are written at the end: only objects above the
#: threshold are aligned, and the threshold must be above the size of any metadata.
THRESHOLD: Final = 1 << 16

#: Space for the metadata of each piece, and for each chunk's entry in its index (at most 24 bytes
#: an entry, in blocks that grow with the square root of their number).
MARGIN: Final = 256 << 10

#: zlib's level in ``/data`` and ``/paths``: the usual one of HDF5's users.
LEVEL: Final = 4

#: Bytes of samples whose compression may be pending.
PENDING_BYTES: Final = 256 << 20

#: Bytes of contiguous data that the disk begins with together.
BEGUN: Final = 4 << 20

#: Bytes of a spooled field that are copied at a time.
PIECE: Final = 8 << 20

#: Bytes of a chunk of samples of different length, at least: one of their values may be a number.
VALUES_BYTES: Final = 64 << 10

#: HDF5's own limit of a chunk's size.
MAX_CHUNK: Final = 0xFFFFFFFF


class Hdf5File:
    """A file being written: HDF5's view of it, and the descriptor that reserves and fills it."""

    def __init__(self, path: str, target: str) -> None:
        self._path = path.encode("utf-8", "surrogateescape")
        self.target = target
        creation = h5p.create(h5p.FILE_CREATE)
        creation.set_obj_track_times(False)
        h5f.create(self._path, h5f.ACC_EXCL, fcpl=creation, fapl=_access()).close()
        self.extent = Extent(path, target, START)
        self._h5: Any = None

    def open(self, alignment: bool = False) -> Any:
        """HDF5's handle, opened. The file must be as long as its contents: HDF5 takes all of it
        as used, and ignores bytes that are reserved later."""
        self._h5 = h5f.open(self._path, h5f.ACC_RDWR, fapl=_access(alignment))
        self.reserve(0)
        return self._h5

    def reserve(self, size: int) -> None:
        """Make sure that HDF5 can write ``size`` more bytes."""
        self.extent.reserve(self._h5.get_filesize() + size + MARGIN)

    # -- pieces ------------------------------------------------------------------------------

    def dataset(self, name: str, dtype: Any, shape: tuple[int, ...], written: bool = False) -> Any:
        """A contiguous data set, allocated; its bytes are in the file already or still to come."""
        self.reserve(0 if written else math.prod(shape) * dtype.get_size())
        plan = creation_properties()
        plan.set_layout(h5d.CONTIGUOUS)
        plan.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        plan.set_fill_time(h5d.FILL_TIME_NEVER)
        return h5d.create(self._h5, name.encode(), dtype, h5s.create_simple(shape), dcpl=plan)

    def table(self, name: str, rows: Array) -> None:
        """A contiguous data set of numbers."""
        dataset = self.dataset(name, h5t.py_create(rows.dtype), rows.shape)
        dataset.write(h5s.ALL, h5s.ALL, rows)
        dataset.flush()

    def strings(self, name: str, values: list[bytes]) -> None:
        """A contiguous data set of a few fixed-length strings, marked as UTF-8."""
        longest = max(1, *map(len, values))
        rows = np.array(values, f"S{longest}")
        dtype = h5t.C_S1.copy()
        dtype.set_size(longest)
        dtype.set_cset(h5t.CSET_UTF8)
        dtype.set_strpad(h5t.STR_NULLPAD)
        dataset = self.dataset(name, dtype, rows.shape)
        dataset.write(h5s.ALL, h5s.ALL, rows, dtype)
        dataset.flush()

    def names(self, name: str, count: int, longest: int, values: Iterator[bytes]) -> None:
        """A compressed data set of ``count`` byte strings, as long as the ``longest``."""
        rows, dtype = max(1, min(count, (1 << 16) // longest)), np.dtype(f"S{longest}")
        dataset = self.chunked(name, dtype, h5s.create_simple((count,)), (rows,))
        for start in range(0, count, rows):
            block = np.array(list(itertools.islice(values, rows)), dtype)
            data = zlib.compress(block.tobytes().ljust(rows * longest, b"\0"), LEVEL)
            self.chunk(dataset, (start,), data)
        dataset.flush()

    def chunked(self, name: str, dtype: np.dtype[Any], space: Any, chunk: tuple[int, ...]) -> Any:
        """A data set in compressed chunks, of which none is written yet."""
        plan = creation_properties()
        plan.set_chunk(chunk)
        plan.set_deflate(LEVEL)
        file = self.open() if self._h5 is None else self._h5
        self.reserve(0)
        return h5d.create(file, name.encode(), h5t.py_create(dtype), space, dcpl=plan)

    def chunk(self, dataset: Any, offset: tuple[int, ...], data: bytes) -> None:
        """One chunk, compressed already."""
        self.reserve(len(data))
        dataset.write_direct_chunk(offset, data, 0)

    def describe(self, meta: fmt.Meta) -> None:
        """The description, as attributes of the root group."""
        facts = meta.facts()
        del facts[fmt.CLASSES]
        text = json.dumps(facts, sort_keys=True)
        self.reserve(len(text))
        for name in ("format", *fmt.SHOWN):
            self._attribute(name, facts[name])
        self._attribute(fmt.DESCRIPTION, text)

    def _attribute(self, name: str, value: Any) -> None:
        # Fixed-length strings: those of variable length lie in a heap without checksums.
        array = np.array(value.encode("ascii") if isinstance(value, str) else value)
        dtype = h5t.py_create(array.dtype)
        space = h5s.create_simple(array.shape) if array.ndim else h5s.create(h5s.SCALAR)
        h5a.create(self._h5, name.encode(), dtype, space).write(array)

    def finish(self) -> None:
        """Close the file and cut off reserved space that was not used."""
        h5f.flush(self._h5)  # an error here; where closing fails, the file is half closed
        self._close()
        self.extent.truncate(self._end())
        self.extent.close()

    def _end(self) -> int:
        """End of the file by its superblock (HDF5 specification, II.A, versions 2 and 3)."""
        head = self.extent.read(0, 36)
        if head[8] not in (2, 3) or head[9] != 8:
            raise SourceError(
                "this HDF5 library wrote a superblock of an unexpected version",
                path=self.target,
                found=f"version {head[8]}",
                expected="version 2 or 3",
                hint="update h5py",
            )
        return int.from_bytes(head[28:36], "little")

    def _close(self) -> None:
        handle, self._h5 = self._h5, None
        if handle is not None:
            handle.close()

    def write_nowhere(self) -> None:
        """The file is abandoned: from now on HDF5 writes to the null device. It writes what it has
        cached even now, and may crash where that fails."""
        if self._h5 is not None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, self._h5.get_vfd_handle(), inheritable=False)
            os.close(nowhere)

    def abandon(self) -> None:
        """Close as it is."""
        try:
            self._close()
        finally:
            self.extent.close()


class FieldData(Protocol):
    """One field of the samples, written as they come."""

    def append(self, sample: FieldBlock) -> None:
        """Add one sample's bytes."""

    def finish(self, shape: tuple[int, ...], dtype: str) -> None:
        """Complete the data set; ``shape``, ``dtype``: of all samples as one array."""

    def abandon(self) -> None:
        """Release what is held; nothing, unless a class says otherwise."""
        return


class ContiguousData(FieldData):
    """``/data`` in one piece, written as it comes."""

    def __init__(self, file: Hdf5File) -> None:
        self._file = file

    def append(self, sample: FieldBlock) -> None:
        self._file.extent.append(sample.data)
        self._file.extent.begin_sync(BEGUN)

    def finish(self, shape: tuple[int, ...], dtype: str) -> None:
        # the data set is created around the bytes; HDF5's file is open from here on
        file = self._file
        file.extent.flush()
        size = file.extent.end - START
        small = size < THRESHOLD
        data = file.extent.read(START, size) if small else b""
        file.extent.truncate(START if small else file.extent.end)
        file.open(alignment=not small)
        values = np.dtype(dtype).newbyteorder("<")
        dataset = file.dataset(fmt.DATA, h5t.py_create(values), shape, written=not small)
        if small:
            dataset.write(h5s.ALL, h5s.ALL, np.frombuffer(data, values).reshape(shape))
        elif dataset.get_offset() != START:
            raise SourceError(
                "this HDF5 library put the dataset at another offset than its data",
                path=file.target,
                found=f"byte {dataset.get_offset()}",
                expected=f"byte {START}",
                hint="update h5py",
            )
        dataset.flush()


class SpooledData(FieldData):
    """One of the other fields: in an unlinked file until ``/data`` is complete, then copied."""

    def __init__(self, file: Hdf5File, name: str, path: str) -> None:
        self._file = file
        self._name = name
        temporary = f"{path}.{name}"
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._spool = Extent(temporary, file.target, 0)
        os.unlink(temporary)

    def append(self, sample: FieldBlock) -> None:
        self._spool.append(sample.data)

    def finish(self, shape: tuple[int, ...], dtype: str) -> None:
        self._spool.flush()
        kind = np.dtype(dtype).newbyteorder("<")
        dataset = self._file.dataset(self._name, h5t.py_create(kind), shape)
        row = math.prod(shape[1:]) * kind.itemsize
        rows = max(1, PIECE // row)
        for start in range(0, shape[0], rows):
            stop = min(start + rows, shape[0])
            piece = np.frombuffer(self._spool.read(start * row, (stop - start) * row), kind)
            h5py.Dataset(dataset)[start:stop] = piece.reshape(stop - start, *shape[1:])
        dataset.flush()
        self._spool.close()

    def abandon(self) -> None:
        self._spool.close()


class ChunkedData(FieldData):
    """``/data`` or another field in gzip chunks, compressed by threads and written in order."""

    def __init__(self, file: Hdf5File, name: str, chunk: int, jobs: int) -> None:
        self._file = file
        self._name = name
        self._chunk = chunk
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="asyncreader-gzip")
        self._pending: deque[tuple[int, Future[bytes]]] = deque()
        self._held: list[bytes] = []
        self._held_bytes = self._size = 0
        self._begun = 0
        self._written = 0
        self._dataset: Any = None
        self._row: tuple[int, ...] = ()
        self._row_bytes = self._depth = 1

    def append(self, sample: FieldBlock) -> None:
        if self._dataset is None:
            self._create(sample)
        at, end = 0, len(sample.data)
        while at < end:
            part = bytes(sample.data[at : at + self._size - self._held_bytes])
            self._held.append(part)
            self._held_bytes += len(part)
            at += len(part)
            if self._held_bytes == self._size:
                self._begin()

    def _create(self, sample: FieldBlock) -> None:
        row, dtype = sample.shape, np.dtype(sample.dtype).newbyteorder("<")
        assert row is not None
        self._row, self._row_bytes = row, math.prod(row) * dtype.itemsize
        if sample.lengths is not None:
            self._chunk = max(self._chunk, VALUES_BYTES // self._row_bytes)
        self._size = size = self._chunk * self._row_bytes
        if size > MAX_CHUNK:
            raise SourceError(
                "a chunk would be too large for HDF5",
                path=self._file.target,
                found=f"{self._chunk} samples, {size} bytes",
                expected=f"at most {MAX_CHUNK} bytes",
                hint="choose a smaller chunk",
            )
        self._depth = max(1, min(2 * self._jobs, PENDING_BYTES // size))
        space = h5s.create_simple((0, *row), (h5s.UNLIMITED, *row))
        self._dataset = self._file.chunked(self._name, dtype, space, (self._chunk, *row))

    def _begin(self) -> None:
        """Start compressing a chunk; write the oldest when enough are pending."""
        held, self._held = self._held, []
        self._begun += self._held_bytes // self._row_bytes
        self._held_bytes = 0
        work = partial(_compressed, held, self._size)
        self._pending.append((self._begun, submit(self._pool, work)))
        if len(self._pending) > self._depth:
            self._write()

    def _write(self) -> None:
        end, future = self._pending.popleft()
        data = result_of(future)
        # Never beyond the last sample: HDF5 would cut and compress the chunk again.
        self._dataset.set_extent((end, *self._row))
        self._file.chunk(self._dataset, (self._written, *(0 for _ in self._row)), data)
        self._written = end

    def finish(self, shape: tuple[int, ...], dtype: str) -> None:
        if self._held:  # the last chunk is filled up with zeros
            self._begin()
        while self._pending:
            self._write()
        self._pool.shutdown()
        assert self._dataset.shape == shape
        self._dataset.flush()
        self._dataset = None

    def abandon(self) -> None:
        self._dataset = None
        self._pool.shutdown(cancel_futures=True)


def _compressed(held: list[bytes], size: int) -> bytes:
    return zlib.compress(b"".join(held).ljust(size, b"\0"), LEVEL)


def _access(alignment: bool = False) -> Any:
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    # The workspace is locked already, and not every file system can lock a file.
    access.set_file_locking(False, True)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    if alignment:
        access.set_alignment(THRESHOLD, START)
    return access


def creation_properties() -> Any:
    """Properties to create a data set with: no times, so that the same samples give the same
    bytes."""
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_obj_track_times(False)
    return plan
