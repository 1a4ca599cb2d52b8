"""A sharded set of this machine, gone through shard by shard: each open with all its fields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import format as fmt
from ..manifest import Manifest
from .base import Source
from .digests import WholeDigests
from .fields import Hdf5Fields
from .shards import LocalShards, ShardSource


class EachShard:
    """The set in ``folder``. ``path``: what it is called in messages."""

    def __init__(self, path: str, folder: str, manifest: Manifest) -> None:
        self._wholes: dict[str, ShardSource] = {}
        for name in (fmt.DATA, *(field.name for field in manifest.common.fields)):
            labels = fmt.LABELS if name == fmt.DATA else None  # they go with the data
            shards = LocalShards(folder, manifest, Hdf5Fields(data=name, labels=labels), "auto")
            self._wholes[name] = ShardSource(manifest, shards, path=path, io="auto", field=name)

    @contextlib.contextmanager
    def open(self, number: int) -> Iterator[dict[str, Source]]:
        """Shard ``number`` by field, the data first, held against the manifest: SourceError."""
        with contextlib.ExitStack() as opened:
            yield {
                name: opened.enter_context(contextlib.closing(whole.open_one(number)))
                for name, whole in self._wholes.items()
            }


def whole_digests(folder: str, manifest: Manifest) -> dict[str, str]:
    """Digests of all samples of the set in ``folder``: each shard is opened once, and 8 bytes are
    read for each checksum and label. SourceError where a shard is not right."""
    each, digests = EachShard(folder, folder, manifest), WholeDigests(manifest.common.tables())
    for number in range(len(manifest)):
        with each.open(number) as parts:
            digests.add(parts)
    return digests.found()
