"""Packs one shard of a set, whole or not at all, and returns its record."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import Shard, file_digest

from ..inputs.samples import Samples
from ..options import Options
from .disk import full_disk_reported
from .one_file import Packing, data_file
from .workspace import Plan, ShardRecord, Workspace


def pack_shard(
    options: Options,
    plan: Plan,
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
        packed = Packing(options, samples, attempt, shown, kinds=plan.kinds, done=done).run()
        shard = None
        if packed.meta is not None:
            first, *others = (
                packed.meta.digests[fmt.table_of(name, fmt.CHECKSUMS)] for name in samples.fields
            )
            size, digest = file_digest(data_file(attempt, options.format))
            shard = Shard(
                name=name,
                count=packed.meta.count,
                bytes=size,
                xxh3=digest,
                checksums=first,
                labels=packed.meta.digests.get(fmt.LABELS),
                fields=tuple(others),
            )
        record = ShardRecord(
            sources=sources,
            shard=shard,
            label_dtype="<i8" if packed.meta is None else packed.meta.label_dtype,
            label_width=packed.label_width,
            fields=packed.fields,
            bytes=packed.bytes,
            skipped=packed.skipped,
            rewritten=packed.rewritten,
            narrowed=packed.narrowed,
        )
        with full_disk_reported(shown, workspace.root):
            workspace.finish(number, attempt, record)
    finally:
        workspace.discard(attempt)
    return record


def sources_digest(samples: Samples) -> str:
    """Digest of the source files of all of ``samples``."""
    return samples.sources(np.arange(samples.count, dtype=np.int64))
