"""Adds shards to a sharded set: what the set asks of them, and how it changes in one rename.

New shards are packed next to the set, as those of a new set are. They get their names in its folder
while its manifest does not list them yet. Then a manifest of all shards replaces the old one. A
reader that has the old one goes on with the shards that it lists, which do not change.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
from xxhash import xxh3_64_intdigest

from asyncreader.errors import FormatError, ParamsError, SourceNotFoundError
from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import (
    MOST_ADDED,
    NAME,
    Common,
    Manifest,
    manifest_path,
    read_manifest,
)
from asyncreader.sources import Inspector, OpenSet, open_whole
from asyncreader.sources.labels import label_names
from asyncreader.sources.sets.shards import whole_digests

from ..check_options import how_to_append
from ..inputs.opening import check_same
from ..inputs.samples import Samples, Splits
from ..options import MOST_SHARDS, Options
from .disk import sync
from .publish import Target
from .workspace import Workspace

#: Of a set without splits, or classes.
_NO_NAMES: Final[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Grown:
    """The set that shards are added to: its ``folder``, and its manifest as it is."""

    folder: str
    manifest: Manifest

    @classmethod
    def open(cls, folder: str, shown: str) -> Grown:
        """The set in ``folder``."""
        found = manifest_path(folder)
        if found is None or not os.path.isdir(folder):
            raise SourceNotFoundError(
                "there is no sharded dataset to append to",
                path=shown,
                expected="a folder of shards",
                hint=how_to_append(folder),
            )
        manifest = read_manifest(found)
        if len(manifest.earlier) >= MOST_ADDED or not manifest.digests:
            raise ParamsError("this dataset cannot grow", path=shown, hint="convert it again")
        return cls(folder, manifest)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, which keep their numbers."""
        return self.manifest.common.classes or _NO_NAMES

    @property
    def shard_size(self) -> int:
        """Bytes of a shard, on average."""
        return max(1, int(self.manifest.sizes.mean()))

    @property
    def encoding(self) -> fmt.Encoding:
        """How its samples are stored."""
        return cast(fmt.Encoding, self.manifest.common.encoding)

    def options(self, options: Options) -> Options:
        """``options`` with what the set has."""
        common = self.manifest.common
        if options.encoding not in (None, common.encoding):
            raise ParamsError(
                "the dataset has another encoding",
                path=options.dst,
                found=repr(options.encoding),
                expected=repr(common.encoding),
                hint="leave encoding out (--encoding)",
            )
        channels, bits = options.channels, options.bits
        if common.channels:  # of rows of numbers neither can be asked for
            channels = channels or (3 if common.channels == 3 else 1)
            bits = bits or (16 if common.dtype == "uint16" else None)
        return replace(
            options,
            format="hdf5" if common.container == "hdf5" else "lmdb",
            channels=channels,
            bits=bits,
            no_labels=options.no_labels or common.label_kind == "none",
            compression="gzip" if common.compression else None,
            chunk=common.chunk or 1,
        )

    def fields(self) -> tuple[fmt.FieldMeta, ...]:
        """What raw samples of each field must be; () of encoded ones."""
        common = self.manifest.common
        if common.encoding not in fmt.PLAIN or common.shape is None:
            return ()
        shared = (common.encoding, common.shape, common.channels, common.dtype)
        return fmt.FieldMeta(fmt.DATA, *shared), *common.fields

    def fit(self, samples: Samples, shown: str) -> None:
        """Number the splits of ``samples`` as the set does, new ones behind its own; and note how
        many of their paths the set has. ParamsError where they are not like those of the set."""
        common = self.manifest.common
        labels = samples.labels
        width = 1 if labels is None else labels.shape[1]
        dtype = "<i8" if labels is None else np.dtype(labels.dtype).newbyteorder("<").str
        classes = () if samples.classes is None else samples.classes[: len(self.classes)]
        named = samples.label_names
        with contextlib.closing(open_whole(self.folder)) as found:
            names = label_names(found, fmt.LABELS)
            known = _known_paths(found, samples)
        check_same(
            "the samples do not go with the dataset: {}",
            shown,
            ("channels", _channels(samples.channels), _channels(common.channels)),
            ("fields", list(samples.fields), list(common.field_names)),
            ("kind of labels", samples.label_kind, common.label_kind),
            ("labels of a sample", width, common.label_width),
            ("dtype of labels", dtype, common.label_dtype),
            ("the first classes", classes, self.classes),
            ("label names", named, named and (names or named)),
        )
        own = common.splits or _NO_NAMES
        if own and samples.splits is None:
            raise ParamsError(
                "the dataset has splits, and nothing says which of them the new samples are in",
                path=shown,
                found=", ".join(own[:5]),
                hint="pass split as it was passed before (--split), splits_from_folders or "
                "split_column",
            )
        if samples.splits is not None:
            names = (*own, *(name for name in samples.splits.names if name not in own))
            place = [*map(names.index, samples.splits.names), -1]
            samples.splits = Splits(names, np.array(place, np.int64)[samples.splits.rows])
        if known:
            words = f"{known:,} of the {samples.count:,} new paths were in the dataset already"
            samples.notes = (*samples.notes, words)

    def with_shards(self, new: Manifest) -> Manifest:
        """The manifest with the shards of ``new`` behind its own; without digests of the whole."""
        old, added = self.manifest.common, new.common
        common = replace(together(old, added), classes=added.classes, splits=added.splits)
        if replace(added, **{n: getattr(common, n) for n in _MAY_DIFFER}) != common:
            raise FormatError(
                "the new shards are of another kind than those of the dataset",
                path=self.folder,
                found=f"{added.encoding} {added.dtype}",
                expected=f"{old.encoding} {old.dtype}",
            )
        shards = [one.shard(n) for one in (self.manifest, new) for n in range(len(one))]
        if len(shards) > MOST_SHARDS:
            raise ParamsError("more shards than a dataset can have", expected=f"{MOST_SHARDS:,}")
        earlier = (*self.manifest.earlier, (self.manifest.count, self.manifest.digests))
        return replace(Manifest.of(common, shards), earlier=earlier)

    def publish(self, target: Target, workspace: Workspace, new: Manifest) -> Manifest:
        """Add the shards of ``new`` that are in ``workspace``; on an error the set is as it was,
        once ``target`` is left."""
        for number in range(len(new)):
            name = new.name(number)
            os.rename(os.path.join(workspace.set, name), os.path.join(self.folder, name))
        sync(self.folder)
        manifest = self.with_shards(new)
        manifest = replace(manifest, digests=whole_digests(self.folder, manifest))
        workspace.seal(manifest)
        target.replace(os.path.join(workspace.set, NAME), os.path.join(self.folder, NAME))
        return manifest


def together(one: Common, other: Common) -> Common:
    """What shards of both share; where it may differ, what ``one`` says."""
    pairs = zip(one.fields, other.fields, strict=True)
    sizes = zip(one.field_bytes, other.field_bytes, strict=True)
    return replace(
        one,
        shape=one.shape if one.shape == other.shape else None,
        fields=tuple(replace(a, shape=a.shape if a.shape == b.shape else None) for a, b in pairs),
        data_bytes=one.data_bytes + other.data_bytes,
        field_bytes=tuple(map(sum, sizes)),
    )


def _known_paths(found: OpenSet, samples: Samples) -> int:
    """How many of the samples have the path of one in the set."""
    looked, path = Inspector(found.first), samples.paths[0]
    if path is None or looked.path(0) is None:
        return 0
    # hashes, which take 8 bytes each
    old = np.fromiter((xxh3_64_intdigest(one or b"") for one in looked.paths()), np.uint64)
    new = np.fromiter((xxh3_64_intdigest(path(n)) for n in range(samples.count)), np.uint64)
    return int(np.isin(new, old).sum())


def _channels(count: int) -> str:
    """Of images; of rows of numbers 0."""
    return str(count) if count else "rows of numbers, which are no images"


#: What new shards may have otherwise than those of the set.
_MAY_DIFFER: Final = ("shape", "fields", "data_bytes", "field_bytes", "classes", "splits")
