"""A sharded set as one source: record numbers continue, and a shard is opened when it is read.

The manifest gives count, shape, labels and fingerprint. Opening a set compares the file size of up
to ``ALL_LOOKED_AT`` shards, evenly spread, with the manifest. Opening a shard compares its size,
count and digests; a wrong or missing shard is an error with any ``on_error``.
"""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ...errors import FormatError, ParamsError, SampleError, SourceError, SourceNotFoundError
from ...formats import packed as fmt
from ...formats.manifest import CONTAINERS, Manifest, Shard, read_manifest
from ...order import files_together
from ...pixels.transform import Fill
from ...stats import Meter
from ..base import (
    Array,
    Int64,
    RowError,
    RowPlan,
    Source,
    SourceSpec,
    UInt64,
    default_block,
    packed_rows,
)
from ..layouts.open_hdf5 import open_hdf5
from ..layouts.open_lmdb import open_lmdb
from ..request import Hdf5Fields, no_field
from .open_cache import OpenFileCache, open_limit

#: At most so many shard sizes are checked when a set is opened.
ALL_LOOKED_AT: Final = 4096

_RESTORE: Final = "restore it, or convert the set again"


class ShardLabels:
    """Labels of all shards: (N, L), read from the shards that hold them."""

    def __init__(self, source: ShardSource, width: int, dtype: str) -> None:
        self._source = source
        self.shape = (source.spec.count, width)
        self.dtype = np.dtype(dtype).newbyteorder("=")

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, records: Int64 | slice | int) -> Array:
        """Rows of ``records``, (n, L); of one number its row, (L,)."""
        if isinstance(records, int | np.integer):
            row: Array = self[np.array([records], np.int64)][0]
            return row
        if isinstance(records, slice):
            records = np.arange(*records.indices(len(self)), dtype=np.int64)
        out: Array = np.empty((records.size, self.shape[1]), self.dtype)
        for number, rows, local in self._source.split(records):
            with self._source.open_files.use(number) as shard:
                assert shard.labels is not None
                out[rows] = shard.labels[local]
        return out


class ShardSource:
    """The shards of ``manifest`` in sequence; ``open_shard(number)`` opens one of them.

    ``path``: the set's name for messages; ``limit``: shards open at most; ``field``: the field
    that ``open_shard`` opens.
    """

    splits: Mapping[str, slice | Int64] = MappingProxyType({})
    #: Each read is a round trip over a network.
    remote = False

    def __init__(
        self,
        manifest: Manifest,
        open_shard: Callable[[int], Source],
        *,
        path: str,
        io: str,
        labels: bool = True,
        limit: int | None = None,
        field: str = fmt.DATA,
    ) -> None:
        self.manifest = manifest
        self.path = path
        self._column = None if field == fmt.DATA else _column(manifest, field)
        self.spec = _spec(manifest, path, io, self._column)
        self.open_files = OpenFileCache(self.open_one, limit or open_limit())
        self._open_shard = open_shard
        self._classes: str | None = None
        if manifest.common.classes is not None:
            names = manifest.common.classes
            self._classes = fmt.names_digest(n.encode("utf-8", "surrogateescape") for n in names)
        self._window = 0
        self.labels: Any = None
        if labels and manifest.common.label_kind != "none":
            width, dtype = manifest.common.label_width, manifest.common.label_dtype
            self.labels = ShardLabels(self, width, dtype)

    # -- shards ------------------------------------------------------------------------------

    def open_one(self, number: int) -> Source:
        """Shard ``number``, opened and compared with the manifest."""
        shard = self._open_shard(number)
        try:
            self._check(shard, self.manifest.shard(number))
        except BaseException:
            shard.close()
            raise
        if self._window:
            shard.reserve(self._share(shard.spec.count))
        return shard

    def _check(self, shard: Source, row: Shard) -> None:
        """FormatError unless ``shard`` is the one that the manifest describes."""
        spec, mine = shard.spec, self.spec
        digests: Mapping[str, str] = {} if spec.meta is None else spec.meta.digests
        checksums = row.checksums if self._column is None else row.fields[self._column]
        for what, found, expected in (
            ("count", spec.count, row.count),
            ("digest of checksums", digests.get(fmt.CHECKSUMS), checksums),
            ("digest of labels", digests.get(fmt.LABELS), row.labels),
            ("digest of class names", digests.get(fmt.CLASSES), self._classes),
            ("encoding", spec.encoding, mine.encoding),
            ("channels", spec.channels, mine.channels),
            ("dtype", spec.stored.dtype, mine.stored.dtype),
            ("list of fields", [f.name for f in spec.fields], [f.name for f in mine.fields]),
            ("shape", spec.stored.shape if mine.stored.shape else None, mine.stored.shape),
        ):
            if found != expected:
                raise FormatError(
                    f"a shard is not the one that was packed: its {what} differs",
                    path=spec.path,
                    found=found,
                    expected=expected,
                    hint=f"it belongs to another set or was packed anew: {_RESTORE}",
                )
        width = self.manifest.common.label_width
        if shard.labels is not None and shard.labels.shape[1:] != (width,):
            raise FormatError(
                "a shard's labels have another shape than the set's",
                path=spec.path,
                found=shard.labels.shape[1:],
                expected=(width,),
            )

    def split(self, records: Int64) -> Iterator[tuple[int, Int64, Int64]]:
        """(shard, positions in ``records``, record numbers in the shard), by shard."""
        if not records.size:  # a rank with only padding left
            return
        which = np.searchsorted(self.manifest.ends, records, side="right")
        order = np.argsort(which, kind="stable")
        numbers, first = np.unique(which[order], return_index=True)
        for number, positions in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            yield number, positions, records[positions] - self._start(number)

    def _start(self, number: int) -> int:
        return int(self.manifest.ends[number - 1]) if number else 0

    # -- the source --------------------------------------------------------------------------

    def in_memory(self, size: int) -> None:
        return None

    def read_into(
        self, plan: RowPlan, fill: Fill, out: Array, meter: Meter
    ) -> tuple[RowError, ...]:
        errors: list[RowError] = []
        parts = list(self.split(plan.records))
        self._prefetch(parts)
        for number, positions, local in parts:
            part = plan.pick(positions)._replace(records=local)
            with self.open_files.use(number) as shard:
                found = shard.read_into(part, fill, out, meter)
            for bad in found:
                self._renumber(bad.error, number)
                errors.append(bad)
        return tuple(errors)

    def prefetch(self, records: Int64) -> None:
        self._prefetch(list(self.split(records)), least=1)

    def _prefetch(self, parts: list[tuple[int, Int64, Int64]], least: int = 2) -> None:
        """Of a remote set, request the rows of all shards before waiting for the first."""
        if self.remote and len(parts) >= least:
            for number, _, local in parts:
                with self.open_files.use(number) as shard:
                    shard.prefetch(local)

    def _renumber(self, error: SampleError, number: int) -> None:
        """The error names the file, and the record number in the whole set."""
        if error.index is not None:
            error.index += self._start(number)

    @contextlib.contextmanager
    def _holding(self, index: int) -> Iterator[tuple[Source, int]]:
        """The open shard of a sample and its number in it; errors get the number in the set."""
        number = int(np.searchsorted(self.manifest.ends, index, side="right"))
        try:
            with self.open_files.use(number) as shard:
                yield shard, index - self._start(number)
        except SampleError as exc:
            self._renumber(exc, number)
            raise

    def sample_bytes(self, index: int) -> bytes:
        with self._holding(index) as (shard, inside):
            return shard.sample_bytes(inside)

    def sample_pixels(self, index: int) -> Array:
        with self._holding(index) as (shard, inside):
            return shard.sample_pixels(inside)

    def picture_size(self, index: int) -> tuple[int, int]:
        with self._holding(index) as (shard, inside):
            return shard.picture_size(inside)

    def key_of(self, index: int) -> str | None:
        with self._holding(index) as (shard, inside):
            return shard.key_of(inside)

    def source_path(self, index: int) -> bytes | None:
        with self._holding(index) as (shard, inside):
            return shard.source_path(inside)

    def all_paths(self) -> Iterator[bytes | None]:
        for number in range(len(self.manifest)):
            with self.open_files.use(number) as shard:
                yield from shard.all_paths()

    def checksum_rows(self, start: int, stop: int) -> UInt64 | None:
        out = np.empty(stop - start, np.uint64)
        for number, positions, local in self.split(np.arange(start, stop, dtype=np.int64)):
            with self.open_files.use(number) as shard:
                rows = shard.checksum_rows(int(local[0]), int(local[-1]) + 1)
                assert rows is not None
                out[positions] = rows
        return out

    def warn_if_scattered(self) -> None:
        """Warn if a full shuffle would open and close shards for nearly every sample."""
        if len(self.manifest) > self.open_files.limit:
            warnings.warn(
                f"{self.path}: {len(self.manifest)} shards, of which {self.open_files.limit} stay "
                'open: a full shuffle opens one for nearly every sample; shuffle="block" reads a '
                "few at a time, and a higher limit of open files (ulimit -n) helps, too",
                stacklevel=4,
            )

    def reserve(self, samples: int) -> None:
        self._window = samples
        if self.manifest.common.compression is not None:
            # each open shard caches decoded chunks: keep at most two groups of shards open
            self.open_files.limit = min(self.open_files.limit, 2 * self._together())

    def _together(self) -> int:
        return files_together(len(self.manifest), self.spec.count, self._window)

    def _share(self, count: int) -> int:
        """Samples of a window that may come from one shard of ``count``, as blocks are mixed."""
        shards = len(self.manifest)
        larger = max(1.0, count * shards / self.spec.count)
        return min(count, int(1.25 * self._window * larger / min(self._together(), shards)) + 1)

    def close(self) -> None:
        self.open_files.close()


def _column(manifest: Manifest, field: str) -> int:
    return [one.name for one in manifest.common.fields].index(field)


def _spec(manifest: Manifest, path: str, io: str, column: int | None) -> SourceSpec:
    """What the set serves: its data, or the other field in ``column``."""
    common, meta = manifest.common, manifest.meta()
    size = common.data_bytes
    if column is not None:
        size = common.field_bytes[column]
        meta = meta.field(common.fields[column].name) or meta
    return SourceSpec(
        path=path,
        container=CONTAINERS[common.container],
        layout=f"asyncreader, {len(manifest)} shards",
        count=manifest.count,
        stored=packed_rows(meta, column is not None),
        encoding=meta.encoding,
        block=common.chunk or default_block(size // manifest.count),
        meta=meta,
        classes=common.classes,
        checksums=True,
        io=io,
        size_on_disk=int(manifest.sizes.sum()),
        chunk=common.chunk,
        compression=common.compression,
        ends=manifest.ends,
        fields=common.fields,
    )


# -- in a folder ---------------------------------------------------------------------------------


class LocalShards:
    """Opens the shards in the folder of a manifest."""

    def __init__(self, folder: str, manifest: Manifest, fields: Hdf5Fields, io: str) -> None:
        self._folder = folder
        self._manifest = manifest
        self._fields = fields
        self._io = io

    def path(self, number: int) -> str:
        """The path of shard ``number``."""
        return os.path.join(self._folder, self._manifest.name(number))

    def look(self) -> None:
        """Compare file sizes with the manifest: of all shards, or of many, evenly spread."""
        count = len(self._manifest)
        chosen = np.linspace(0, count - 1, min(count, ALL_LOOKED_AT)).astype(np.int64)
        for number in chosen.tolist():
            self.check_size(number)

    def check_size(self, number: int) -> None:
        """SourceNotFoundError or FormatError unless the shard's file has the packed size."""
        path, expected = self.path(number), int(self._manifest.sizes[number])
        try:
            facts = os.stat(path)
        except FileNotFoundError as exc:
            raise SourceNotFoundError(
                "a shard of the set is missing",
                path=path,
                expected=f"shard {number + 1} of {len(self._manifest)}",
                hint=_RESTORE,
            ) from exc
        except OSError as exc:
            raise SourceError(f"a shard cannot be reached: {exc.strerror}", path=path) from exc
        if not stat.S_ISREG(facts.st_mode):
            raise FormatError("a shard is not a regular file", path=path)
        if facts.st_size != expected:
            raise FormatError(
                "a shard is not the file that was packed: its size differs",
                path=path,
                found=f"{facts.st_size} bytes",
                expected=f"{expected} bytes",
                hint=_RESTORE,
            )

    def __call__(self, number: int) -> Source:
        self.check_size(number)
        opener = open_lmdb if self._manifest.common.container == "lmdb" else open_hdf5
        source: Source = opener(self.path(number), self._fields, io=self._io)
        return source


def open_shards(
    path: str,
    fields: Hdf5Fields,
    *,
    io: str = "auto",
    limit: int | None = None,
    manifest: Manifest | None = None,
) -> ShardSource:
    """Open the set whose manifest is the file ``path``.

    ``manifest``: the rows of some of its shards, to read only those.
    """
    manifest = manifest or read_manifest(path)
    folder = os.path.dirname(path)
    fields = checked_fields(path, fields, manifest)
    shards = LocalShards(folder, manifest, fields, io)
    shards.look()
    return ShardSource(
        manifest,
        shards,
        path=folder or os.curdir,
        io=io,
        labels=fields.labels is not None,
        limit=limit,
        field=fields.data,
    )


def checked_fields(path: str, fields: Hdf5Fields, manifest: Manifest) -> Hdf5Fields:
    """``fields`` as the shards name them; ParamsError for what only sets of others have."""
    if fields.labels_path is not None:
        raise ParamsError("labels_path goes with one HDF5 file", path=path, found="a sharded set")
    data = (fmt.DATA, *(field.name for field in manifest.common.fields))
    for name, own in ((fields.data, data), (fields.labels, (fmt.LABELS,))):
        if name is not None and name.strip("/") not in own:
            raise no_field(name, (*data, fmt.LABELS), path)
    if fields.dims not in (None, (1, 2, 3, 4)):
        raise ParamsError("the axes of this set are known", path=path, found=fields.dims)
    return replace(fields, data=fields.data.strip("/"), dims=None)
