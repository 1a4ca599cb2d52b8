"""Sharded sets: the files that a manifest lists, as one set or one after the other.

The manifest gives count, shape, labels and fingerprint. Opening a set compares the file size of up
to ``ALL_LOOKED_AT`` shards, evenly spread, with the manifest. Opening a shard compares its size,
count and digests.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from ...errors import FormatError, SourceError, SourceNotFoundError, located
from ...formats import packed as fmt
from ...formats.manifest import CONTAINERS, Manifest, read_manifest
from ..base import FieldIndex, SetFacts, default_block, packed_rows
from ..bytestore import OpenFile
from ..fields import OpenSet, SetIndex, index_set
from ..request import Request
from ..sniff import Sniffed
from .combined import joined_offsets
from .joined import (
    MOST_OPEN,
    RESTORE,
    Files,
    Joined,
    JoinedSource,
    WholeDigests,
    allow_open,
    open_limit,
)

#: At most so many shard sizes are checked when a set is opened.
ALL_LOOKED_AT: Final = 4096


def sharded(
    manifest: Manifest,
    shards: Files,
    fields: Request,
    *,
    path: str,
    io: str,
    limit: int | None = None,
    lengths: bool = True,
) -> OpenSet:
    """The set of ``manifest``. ``path``: its name for messages; ``limit``: shards
    open at most, by all fields together; ``lengths``: where samples differ in length, open each
    shard for that."""
    common = manifest.common
    packed = [field.name for field in common.fields]
    limit = max(1, (limit or open_limit()) // (1 + len(fields.other_names(packed))))
    facts = SetFacts(
        path=path,
        container=CONTAINERS[common.container],
        layout=f"asyncreader, {len(manifest)} shards",
        count=manifest.count,
        io=io,
        size_on_disk=int(manifest.sizes.sum()),
        meta=manifest.meta(),
        classes=common.classes,
        fields=common.fields,
        ends=manifest.ends,
        earlier=manifest.earlier,
    )

    def index(one: Request) -> SetIndex:
        field = _sharded(manifest, facts, shards, one, limit)
        if field.spec.ragged and lengths:
            field = _with_offsets(field, shards, len(manifest))
        return SetIndex(facts, {one.own_name: field})

    with located(path=path):
        return index_set(fields, index).open()


def _sharded(
    manifest: Manifest, facts: SetFacts, shards: Files, fields: Request, limit: int
) -> FieldIndex:
    """The data of the set, or another field. A shard that is opened for it is not indexed for the
    others."""
    common, meta = manifest.common, facts.meta
    labels = None if fields.labels is None else fields.labels.strip("/")
    fields = replace(fields, data=fields.data.strip("/"), labels=labels, others={})
    fields.check_labels_path("a sharded dataset")
    fields.check_names(common.field_names, (fmt.LABELS,))
    assert meta is not None
    checksums, size = fmt.table_of(fields.data, fmt.CHECKSUMS), common.data_bytes
    other = meta.field(fields.data)
    if other is not None:
        size = common.field_bytes[[one.name for one in common.fields].index(fields.data)]
    labelled = common.label_kind != "none"
    joined = Joined(
        shards,
        stated={
            checksums: manifest.table_digests(checksums),
            fmt.LABELS: manifest.table_digests(fmt.LABELS) if labelled else None,
        },
        labels=(common.label_width, common.label_dtype) if labelled and fields.labels else None,
        limit=limit,
        request=fields,
    )
    return FieldIndex(
        packed_rows(other or meta, other is not None, fields, facts.path),
        joined,
        block=common.chunk or default_block(size // manifest.count),
        chunk=common.chunk,
        compression=common.compression,
        checked="all",
    )


def _with_offsets(field: FieldIndex, shards: Files, count: int) -> FieldIndex:
    """``field`` with where its samples begin, which differ in length: each shard is opened, and
    says it."""
    assert isinstance(field.storage, Joined)
    tables, first = [], field
    for number in range(count):
        with contextlib.closing(shards.open(number, field.storage.request)) as one:
            first = one.index.first
            tables.append(None if first.offsets is None else first.offsets.astype(np.int64))
    return replace(
        field,
        block=first.block,
        chunk=first.chunk,
        memory=first.memory,
        offsets=joined_offsets(tables),
    )


class EachShard:
    """Goes through a set shard by shard, each opened with all its fields. ``path``: what the set is
    called in messages."""

    def __init__(self, path: str, manifest: Manifest, shards: Files) -> None:
        self.manifest = manifest
        self.path = shards.path
        self._shards = shards
        self._fields = Request(others=None)
        self._whole = sharded(manifest, shards, self._fields, path=path, io="auto", lengths=False)

    @contextlib.contextmanager
    def open(self, number: int) -> Iterator[OpenSet]:
        """Shard ``number`` with all fields, compared with the manifest: SourceError."""
        with contextlib.closing(self._shards.open(number, self._fields)) as found:
            for name, whole in zip(self._whole.names, self._whole.parts, strict=True):
                assert isinstance(whole, JoinedSource)
                whole.check(found.only(name), number)
            yield found


def whole_digests(folder: str, manifest: Manifest) -> dict[str, str]:
    """Digests of all samples of the set in ``folder``: opens each shard once and reads
    8 bytes for each checksum and label. SourceError if a shard is wrong."""
    each = EachShard(folder, manifest, LocalShards(folder, manifest))
    digests = WholeDigests(manifest.common.tables())
    for number in range(len(manifest)):
        with each.open(number) as shard:
            digests.add(shard)
    return digests.found()


# -- in a folder ---------------------------------------------------------------------------------


def open_shard(path: str, container: str, fields: Request, io: str) -> OpenSet:
    """The shard that is a file of this machine."""
    return Sniffed(path, CONTAINERS[container], OpenFile(path, io)).open(fields)


class LocalShards:
    """Opens the shards in the folder of a manifest."""

    def __init__(self, folder: str, manifest: Manifest, io: str = "auto") -> None:
        self._folder = folder
        self._manifest = manifest
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
                "a shard of the dataset is missing",
                path=path,
                expected=f"shard {number + 1} of {len(self._manifest)}",
                hint=RESTORE,
            ) from exc
        except OSError as exc:
            raise SourceError(f"a shard cannot be reached: {exc.strerror}", path=path) from exc
        if not stat.S_ISREG(facts.st_mode):
            raise FormatError("a shard is not a regular file", path=path)
        if facts.st_size != expected:
            raise FormatError(
                "a shard is not the file that the manifest lists: its size differs",
                path=path,
                found=f"{facts.st_size} bytes",
                expected=f"{expected} bytes",
                hint=RESTORE,
            )

    def open(self, number: int, fields: Request) -> OpenSet:
        """Open a shard whose file has the packed size."""
        self.check_size(number)
        return open_shard(self.path(number), self._manifest.common.container, fields, self._io)

    def close(self) -> None:
        """Nothing is open."""


def open_shards(
    path: str,
    fields: Request,
    *,
    io: str = "auto",
    limit: int | None = None,
    manifest: Manifest | None = None,
) -> OpenSet:
    """Open the set whose manifest is the file ``path``.

    ``manifest``: the rows of some of its shards, to read only those.
    """
    manifest = manifest or read_manifest(path)
    folder = os.path.dirname(path)
    shards = LocalShards(folder, manifest, io)
    shards.look()
    allow_open(min(len(manifest), MOST_OPEN))
    return sharded(manifest, shards, fields, path=folder or os.curdir, io=io, limit=limit)


def volumes_of_shards(
    path: str, manifest: Manifest, fields: Request, *, io: str
) -> Iterator[OpenSet]:
    """The shards of the set whose manifest is the file ``path``, each open for patches: as files
    of a list, since their records are places, which the manifest does not count."""
    shards = LocalShards(os.path.dirname(path), manifest, io)
    shards.look()
    for number in range(len(manifest)):
        yield shards.open(number, fields)
