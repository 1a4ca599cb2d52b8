"""Goes through a sharded set shard by shard, each opened with all its fields."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from ...formats import packed as fmt
from ...formats.manifest import Manifest
from ..base import Source
from ..request import Hdf5Fields
from .digests import WholeDigests
from .shards import LocalShards, ShardSource


class Shards(Protocol):
    """Opens the shards of a set by number."""

    def path(self, number: int) -> str:
        """A shard's name for messages."""

    def __call__(self, number: int) -> Source:
        """Open a shard."""


class EachShard:
    """The set of ``manifest``. ``path``: what it is called in messages; ``shards_of``: opens one
    field of its shards."""

    def __init__(
        self, path: str, manifest: Manifest, shards_of: Callable[[Hdf5Fields], Shards]
    ) -> None:
        self.manifest = manifest
        self._wholes: dict[str, ShardSource] = {}
        self._shards = shards_of(Hdf5Fields())
        for name in (fmt.DATA, *(field.name for field in manifest.common.fields)):
            labels = fmt.LABELS if name == fmt.DATA else None  # they go with the data
            shards = shards_of(Hdf5Fields(data=name, labels=labels))
            self._wholes[name] = ShardSource(manifest, shards, path=path, io="auto", field=name)

    @classmethod
    def of_folder(cls, path: str, folder: str, manifest: Manifest) -> EachShard:
        """The set that lies in ``folder``."""
        return cls(path, manifest, lambda fields: LocalShards(folder, manifest, fields, "auto"))

    def path(self, number: int) -> str:
        """The file of shard ``number``, or its URL."""
        return self._shards.path(number)

    @contextlib.contextmanager
    def open(self, number: int) -> Iterator[dict[str, Source]]:
        """Shard ``number`` by field, the data first, compared with the manifest: SourceError."""
        with contextlib.ExitStack() as opened:
            yield {
                name: opened.enter_context(contextlib.closing(whole.open_one(number)))
                for name, whole in self._wholes.items()
            }


def whole_digests(folder: str, manifest: Manifest) -> dict[str, str]:
    """Digests of all samples of the set in ``folder``: opens each shard once and reads
    8 bytes for each checksum and label. SourceError if a shard is wrong."""
    each = EachShard.of_folder(folder, folder, manifest)
    digests = WholeDigests(manifest.common.tables())
    for number in range(len(manifest)):
        with each.open(number) as parts:
            digests.add(parts)
    return digests.found()
