"""Opens what a URL names: a sharded set by its manifest, or one packed HDF5 file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ...errors import FormatError, ParamsError, SourceNotFoundError, closed_on_error
from ...formats.manifest import MOST_BYTES, NAME, Manifest
from ..bytestore import REMOTE
from ..fields import OpenSet, open_file
from ..hdf5.structure import SIGNATURE
from ..layouts.hdf5_layouts import index_hdf5
from ..request import Request
from ..sets.open_cache import open_limit
from ..sets.shards import EachShard, open_shard, sharded
from ..urls import Location, location_of
from .cache import ShardCache, cache_folder
from .client import Objects
from .ranges import RemoteFile

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
        row = self.manifest.shard(number)
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
        size = objects.size(location)
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
