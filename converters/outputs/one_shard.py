"""Packs one shard of a set, whole or not at all, and returns its record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields

import numpy as np

from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import Common, Manifest, Shard, file_digest

from ..inputs.samples import Samples
from ..options import Options
from .disk import full_disk_reported
from .one_file import WrittenFile, data_file, pack_file
from .workspace import ShardPlan, ShardRecord, Workspace


def pack_shard(
    options: Options,
    plan: ShardPlan,
    number: int,
    samples: Samples,
    workspace: Workspace,
    done: Callable[[int], None] | None = None,
) -> ShardRecord:
    """Pack shard ``number`` of ``plan``, whose samples are ``samples``, and give it its name."""
    name = plan.name(number, options.format)
    attempt = workspace.attempt(number)
    shown = os.path.join(options.dst, name)
    sources = sources_digest(samples)
    try:
        packed = pack_file(options, samples, attempt, shown, described=plan.fields, done=done)
        shard = None
        if packed.meta is not None:
            size, digest = file_digest(data_file(attempt, options.format))
            shard = _manifest(options, packed, packed.meta, name, size, digest)
        record = ShardRecord(sources, shard, packed.skipped, packed.rewritten, packed.narrowed)
        with full_disk_reported(shown, workspace.root):
            workspace.finish(number, attempt, record)
    finally:
        workspace.discard(attempt)
    return record


def _manifest(
    options: Options, packed: WrittenFile, meta: fmt.Meta, name: str, size: int, digest: str
) -> Manifest:
    """The manifest of a set of this shard alone; ``size`` and ``digest`` are those of its file."""
    first, *others = packed.bytes
    common = Common(
        **{fact.name: getattr(meta, fact.name) for fact in fields(fmt.Described)},
        container=options.format,
        label_width=packed.label_width,
        chunk=options.chunk if options.compression else None,
        compression=options.compression,
        data_bytes=first,
        field_bytes=tuple(others),
    )
    checksums, *field_checksums = (
        meta.digests[fmt.table_of(field, fmt.CHECKSUMS)]
        for field in (None, *(field.name for field in meta.fields))
    )
    labels = meta.digests.get(fmt.LABELS)
    shard = Shard(name, meta.count, size, digest, checksums, labels, tuple(field_checksums))
    digests = {table: meta.digests[table] for table in common.tables()}
    return Manifest.of(common, [shard], digests)


def sources_digest(samples: Samples) -> str:
    """Digest of the source files of all of ``samples``."""
    return samples.sources(np.arange(samples.count, dtype=np.int64))
