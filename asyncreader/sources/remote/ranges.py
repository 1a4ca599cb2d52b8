"""A packed file in a store, read by byte ranges: a ByteStore for samples, a file for h5py."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from ...errors import FormatError, closed_on_error
from ...system.array_types import Array, Int64, UInt8
from ...system.memory import bytes_at
from ..bytestore import REMOTE, ByteStore
from ..urls import Location
from .client import Objects, Version, merged

#: HDF5's metadata are read in blocks of this size, so many of them kept.
_BLOCK: Final = 128 << 10
_BLOCKS: Final = 64


class _Prefetched(threading.local):
    """The ranges that this thread prefetched for its batch, and how to wait for them."""

    starts: Int64 = np.empty(0, np.int64)
    ends: Int64 = np.empty(0, np.int64)
    wait: Callable[[], list[memoryview]] | None = None
    parts: list[UInt8] | None = None


class RangeStore:
    """Bytes of one object by offset; see :class:`bytestore.ByteStore`.

    A batch costs one round trip: all prefetched ranges are requested at once.
    """

    remote = True

    def __init__(self, objects: Objects, location: Location, size: int) -> None:
        self.size = size
        self._objects = objects
        self._location = location
        self._prefetched = _Prefetched()

    @cached_property
    def bytes(self) -> Slices:
        """The object as slices; HDF5 reads the same cached blocks next."""
        return Slices(RangeFile(self._objects, self._location, self.size))

    def gather(self, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
        lengths = np.full(offsets.size, row_bytes, np.int64)
        held = self._held(offsets, lengths)
        for extent, row in zip(held, rows.tolist(), strict=True):
            bytes_at(out + row * row_bytes, row_bytes)[:] = extent

    def address(self, size: int) -> None:
        return None

    def view(self, offset: int, length: int) -> UInt8:
        if length == 0:
            return np.empty(0, np.uint8)
        return self._held(np.array([offset]), np.array([length]))[0]

    def will_need(self, offsets: Int64, lengths: Array) -> None:
        """Request these extents without waiting; reading one of them waits."""
        wide = lengths.astype(np.int64)
        if self._range_numbers(offsets, wide) is not None:
            return
        kept = self._prefetched
        ranges, _ = merged(offsets, wide)
        kept.starts = np.array([start for start, _ in ranges], np.int64)
        kept.ends = np.array([end for _, end in ranges], np.int64)
        kept.parts = None
        kept.wait = self._objects.begin_ranges(self._location, ranges)

    def _range_numbers(self, offsets: Int64, lengths: Int64) -> Int64 | None:
        """Which prefetched range each extent is in; None unless all are in one."""
        kept = self._prefetched
        if not kept.starts.size:
            return None
        which = np.searchsorted(kept.starts, offsets, side="right") - 1
        inside = (which >= 0) & (offsets + lengths <= kept.ends[which])
        return which if inside.all() else None

    def _held(self, offsets: Int64, lengths: Int64) -> list[UInt8]:
        """The extents, from the prefetched ranges; requests them first if they are not in those."""
        kept = self._prefetched
        if self._range_numbers(offsets, lengths) is None:
            self.will_need(offsets, lengths)
        if kept.parts is None:
            assert kept.wait is not None
            try:
                kept.parts = [np.frombuffer(part, np.uint8) for part in kept.wait()]
            except BaseException:
                kept.starts = np.empty(0, np.int64)  # the next read requests them again
                raise
            finally:
                kept.wait = None
        which = self._range_numbers(offsets, lengths)
        assert which is not None
        inside = offsets - kept.starts[which]
        return [
            kept.parts[i][at : at + n]
            for i, at, n in zip(which.tolist(), inside.tolist(), lengths.tolist(), strict=True)
        ]


class RangeFile(io.RawIOBase):
    """An object as a file for h5py, read by blocks and with a cache of some of them.

    ``failure``: the error of a request, which HDF5 would replace by its own.
    """

    def __init__(self, objects: Objects, location: Location, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._location = location
        self.size = size
        self._at = 0
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
        self.failure: BaseException | None = None
        # HDF5 keeps what it needs at both ends: one round trip for all of a small set
        self._held({0, max(0, size - 1) // _BLOCK})

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        size = self.read_at(self._at, target)
        self._at += size
        return size

    def read_at(self, offset: int, target: Any) -> int:
        """Fill ``target`` from ``offset`` on; how many bytes there were. Threads may call it while
        HDF5 reads."""
        view = memoryview(target).cast("B")
        size = max(0, min(len(view), self.size - offset))
        try:
            if size > _BLOCK:
                view[:size] = self._objects.read(self._location, offset, offset + size)
            else:
                self._copy(offset, view[:size])
        except BaseException as exc:
            self.failure = exc
            raise
        return size

    def _copy(self, at: int, view: memoryview) -> None:
        first, last = at // _BLOCK, (at + len(view) - 1) // _BLOCK
        found = self._held(range(first, last + 1))
        done = 0
        for number in range(first, last + 1):
            lo = at + done - number * _BLOCK
            part = found[number][lo : lo + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)

    def _held(self, numbers: Iterable[int]) -> dict[int, memoryview]:
        """Some blocks, those that are not kept from the store. No lock: a thread that held one
        might collect an object of HDF5, and wait there for the thread that reads."""
        kept = {n: self._blocks.pop(n, None) for n in numbers}
        found = {n: block for n, block in kept.items() if block is not None}
        missing = sorted(kept.keys() - found.keys())
        if missing:
            ranges = [(n * _BLOCK, min((n + 1) * _BLOCK, self.size)) for n in missing]
            parts = self._objects.read_ranges(self._location, ranges)
            found.update(zip(missing, parts, strict=True))
        for number in kept:
            self._blocks[number] = found[number]
        while len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        return found


class Slices:
    """An object's bytes, read through h5py's file when they are asked for."""

    def __init__(self, file: RangeFile) -> None:
        self.file = file
        self.size = file.size
        self.data = self

    def __getitem__(self, part: slice) -> memoryview:
        data = bytearray(part.stop - part.start)
        return memoryview(data)[: self.file.read_at(part.start, data)]


@dataclass(frozen=True)
class RemoteRef:
    """An object by name, as it was when it was opened."""

    location: Location
    version: Version

    def open(self) -> RemoteFile:
        """The same object. FormatError if it was replaced since."""
        objects = Objects(self.location.base)
        with closed_on_error([objects]):
            file = RemoteFile(objects, self.location, owner=True)
            if not file.version.same(self.version):
                raise FormatError(
                    "the object was replaced since its reader opened it",
                    path=self.location.shown,
                    hint="open the reader again",
                )
        return file


class RemoteFile:
    """What :class:`bytestore.OpenFile` is for a file of this machine.

    ``expected``: its size; ``owner``: it closes ``objects``.
    """

    io = REMOTE

    def __init__(
        self,
        objects: Objects,
        location: Location,
        expected: int | None = None,
        *,
        owner: bool = False,
    ) -> None:
        self.path = location.shown
        self.version = objects.version(location)
        self.size = self.version.size
        self._owner = owner
        if self.size == 0:
            raise FormatError("the object is empty", path=self.path)
        if expected is not None and self.size != expected:
            raise FormatError(
                "a shard is not the file that the manifest lists: its size differs",
                path=self.path,
                found=f"{self.size} bytes",
                expected=f"{expected} bytes",
                hint="upload it again, or convert the dataset again",
            )
        self._objects = objects
        self._location = location
        store = RangeStore(objects, location, self.size)
        self.store: ByteStore = store
        self.mapped = store

    @property
    def handle(self) -> RangeFile:
        """What the HDF5 library opens."""
        return self.mapped.bytes.file

    @property
    def where(self) -> RemoteRef:
        """The object by name."""
        return RemoteRef(self._location, self.version)

    def check_same(self) -> None:
        """Nothing to do: sizes and digests show that an object changed."""

    def table(self, offset: int, size: int) -> UInt8:
        """A table that is used as long as the set is open: in memory."""
        return self.store.view(offset, size).copy()

    def close(self) -> None:
        """Close the requests to the store, if they are this file's alone."""
        if self._owner:
            self._objects.close()
