"""Opens what a URL names: a sharded set by its manifest, or one packed HDF5 file.

A file in a store is read by byte ranges: a ByteStore for samples, a file for h5py.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from ...errors import FormatError, ParamsError, SourceNotFoundError, closed_on_error
from ...formats.manifest import MOST_BYTES, NAME, Manifest
from ...system.array_types import Array, Int64, UInt8
from ...system.memory import bytes_at
from ..bytestore import REMOTE, ByteStore
from ..fields import OpenSet, open_file
from ..hdf5.structure import SIGNATURE
from ..layouts.known import index_hdf5
from ..request import Request
from ..sets.joined import open_limit
from ..sets.shards import EachShard, open_shard, sharded
from ..sniff import Location, location_of
from .cache import ShardCache, cache_folder
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
    def bytes(self) -> RangeFile:
        """The object as slices; HDF5 reads the same cached blocks next."""
        return RangeFile(self._objects, self._location, self.size)

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
    """An object as a file for h5py, and as slices of bytes, read by blocks and with a cache of some
    of them.

    ``failure``: the error of a request, which HDF5 would replace by its own.
    """

    def __init__(self, objects: Objects, location: Location, size: int) -> None:
        super().__init__()
        self._objects = objects
        self._location = location
        self.size, self.data = size, self
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

    def __getitem__(self, part: slice) -> memoryview:
        data = bytearray(part.stop - part.start)
        return memoryview(data)[: self.read_at(part.start, data)]

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
        return self.mapped.bytes

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


# -- sets ------------------------------------------------------------------------------------------


#: Suffixes of single packed files.
_FILES: Final = (".h5", ".hdf5")


@dataclass(eq=False)
class RemoteShards:
    """Opens the shards of a manifest in a store, by ranges or through the cache."""

    objects: Objects
    location: Location
    manifest: Manifest
    cache: ShardCache | None

    def open(self, number: int, fields: Request) -> OpenSet:
        """Open a shard."""
        row = self.manifest.shards[number]
        location = self.location.sibling(row.name)
        if self.cache is None:
            return _opened(RemoteFile(self.objects, location, row.bytes), fields)
        container = self.manifest.common.container
        suffix = "lmdb" if container == "lmdb" else "h5"

        def opened(path: str) -> OpenSet:
            # mapped: an open shard stays readable after the cache removes its file
            return open_shard(path, container, fields, "mmap")

        return self.cache.open(self.objects, location, row, suffix, opened)

    def close(self) -> None:
        """Close the requests to the store."""
        self.objects.close()

    def __reduce__(self) -> tuple[object, ...]:
        # another process makes its own requests, and uses the same folder as its cache
        return _shards_again, (self.location, self.manifest, self.cache is not None)

    def path(self, number: int) -> str:
        """A shard's name for messages."""
        return self.location.sibling(self.manifest.name(number)).shown


def _shards_again(location: Location, manifest: Manifest, cached: bool) -> RemoteShards:
    cache = ShardCache.by_environment() if cached else None
    return RemoteShards(Objects(location.base), location, manifest, cache)


@contextmanager
def fetched_shards(url: str) -> Iterator[EachShard | None]:
    """The set at ``url``; opening a shard downloads it again and compares all its bytes with the
    manifest's checksum. None for one HDF5 file. Needs disk space for two shards in the cache's
    folder while the context lasts.
    """
    location = location_of(url)
    if location.key.endswith(_FILES):
        yield None
        return
    objects = Objects(location.base)
    try:
        location = _manifest_location(location)
        manifest = _manifest(objects, location)
        parent = cache_folder()
        if parent is not None:
            os.makedirs(parent, mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="verify-", dir=parent) as folder:
            cache = ShardCache(folder, 2 * int(manifest.sizes.max()))
            yield EachShard(url, manifest, RemoteShards(objects, location, manifest, cache))
    finally:
        objects.close()


def _manifest_location(location: Location) -> Location:
    """The location of the manifest, given that or its folder."""
    return location if location.key.endswith(".json") else location.inside(NAME)


def _opened(file: RemoteFile, fields: Request) -> OpenSet:
    try:
        if bytes(file.mapped.bytes[0:8]) != SIGNATURE:  # where asyncreader has it
            raise FormatError("not an HDF5 file", path=file.path)
        return open_file(file, lambda opened: index_hdf5(opened, fields))
    except FormatError:
        if file.handle.failure is not None:  # HDF5 hides the error of the request
            raise file.handle.failure from None
        raise


def open_remote(url: str, fields: Request, *, io: str = "auto") -> OpenSet:
    """Open the set at ``url``: the folder of a sharded one, its manifest, or an HDF5 file.

    ``io``: "pread" reads byte ranges, "mmap" whole shards through the cache; "auto" is the cache
    where ASYNCREADER_CACHE_DIR names one or the shards are LMDB, else ranges. Raises ParamsError,
    SourceNotFoundError, SourceError, FormatError.
    """
    location = location_of(url)
    objects = Objects(location.base)
    with closed_on_error([objects]):
        return _opened_set(objects, location, fields, io)


def _opened_set(objects: Objects, location: Location, fields: Request, io: str) -> OpenSet:
    if location.key.endswith(_FILES):
        if io == "mmap":
            raise ParamsError(
                "one file in a store is read by ranges, not through the cache",
                found=f'io="mmap" of {location.shown}',
                hint="the cache is for sharded datasets: convert --shards",
            )
        return _opened(RemoteFile(objects, location, owner=True), fields)
    location = _manifest_location(location)
    manifest = _manifest(objects, location)
    lmdb = manifest.common.container == "lmdb"
    cached = io == "mmap" or (io == "auto" and (lmdb or cache_folder() is not None))
    if lmdb and not cached:
        raise ParamsError(
            "LMDB shards in a store are read through the cache, not by ranges",
            found=f'io="{io}"',
            hint='leave io="auto", or write HDF5 shards',
        )
    cache = None
    limit = open_limit()
    if cached:
        cache = ShardCache.by_environment()
        largest = int(manifest.sizes.max())
        cache.check_fits(largest, location.shown)
        # all open shards must fit into the cache together
        limit = max(1, min(limit, cache.limit // largest - 1))
    return sharded(
        manifest,
        RemoteShards(objects, location, manifest, cache),
        fields,
        path=location.shown.rpartition("/")[0],
        io="cache" if cached else REMOTE,
        limit=limit,
    )


def _manifest(objects: Objects, location: Location) -> Manifest:
    try:
        size = objects.version(location).size
    except SourceNotFoundError as exc:
        raise SourceNotFoundError(
            "there is no manifest of a sharded dataset",
            path=location.shown,
            hint="name the folder that asyncreader convert --shards wrote, or one .h5 file",
        ) from exc
    if size > MOST_BYTES:
        raise FormatError("the manifest is too long to be one", path=location.shown, found=size)
    text = bytes(objects.read(location, 0, size)) if size else b""
    return Manifest.from_json(text, location.shown)
