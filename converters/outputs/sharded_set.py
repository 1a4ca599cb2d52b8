"""A sharded set on the disk: where it is written, and how shards are added to it.

The workspace: its plan, its finished shards and a record of each; and files of added samples, which
an interrupted run leaves for the next one. Any machine that sees the folder can write a shard. In
it: ``plan.json``; ``set/``, where a shard appears by rename when it is complete, verified and on
the disk; ``records/``, one small file for each finished shard, written after it; ``attempts/``,
where shards are written, each under its own name.

A set grows in one rename. New shards are packed next to it, as those of a new set are. They get
their names in its folder while its manifest does not list them yet. Then a manifest of all shards
replaces the old one. A reader that has the old one goes on with the shards that it lists, which do
not change.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final, cast

import h5py
import numpy as np
from xxhash import xxh3_64_intdigest

from asyncreader.errors import FormatError, ParamsError, SourceError, SourceNotFoundError
from asyncreader.formats import packed as fmt
from asyncreader.formats.manifest import (
    MOST_ADDED,
    NAME,
    Common,
    Manifest,
    file_digest,
    manifest_path,
    read_manifest,
)
from asyncreader.formats.packed import CHECKSUMS, OFFSETS, FieldMeta, table_of
from asyncreader.sources import Inspector, OpenSet, open_whole
from asyncreader.sources.labels import label_names
from asyncreader.sources.sets.shards import whole_digests
from asyncreader.system import files
from asyncreader.system.array_types import Int64, UInt64

from ..check_options import how_to_append
from ..inputs.opening import check_same
from ..inputs.samples import Samples, Splits
from ..options import MOST_SHARDS, Options
from ..temp_tables import renumbered
from .disk import sync
from .one_file import data_file
from .publish import ADDED, PIECES, PLAN, Target


@dataclass(frozen=True)
class ShardPlan:
    """What is packed where. ``source``: digest of the listing and of all that shapes the bytes;
    ``count``: samples listed; ``fields``: what the samples of each must be, empty where that need
    not be known; ``sample_bytes``: of a raw sample with all its fields, 0 of encoded ones;
    ``before``: shards of the set that these are added to."""

    source: str
    count: int
    shards: int
    fields: tuple[FieldMeta, ...] = ()
    sample_bytes: int = 0
    before: int = 0

    def span(self, number: int) -> range:
        """The samples of shard ``number``; sizes differ by one at most."""
        ends = (number * self.count // self.shards, (number + 1) * self.count // self.shards)
        return range(*ends)

    def numbers(self, number: int) -> Int64:
        """The numbers of these samples."""
        return np.array(self.span(number), np.int64)

    def name(self, number: int, kind: str) -> str:
        """Its file: ``shard-00003-of-00064.h5``."""
        suffix = "h5" if kind == "hdf5" else "lmdb"
        # behind "shard-" in the order of names
        first = f"{ADDED}{self.before:05d}" if self.before else "shard"
        return f"{first}-{number:05d}-of-{self.shards:05d}.{suffix}"

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ShardPlan:
        """Read :meth:`to_json`'s text."""
        facts = json.loads(text)
        for field in facts["fields"]:
            field["shape"] = None if field["shape"] is None else tuple(field["shape"])
        return cls(**facts | {"fields": tuple(FieldMeta(**field) for field in facts["fields"])})


@dataclass(frozen=True)
class ShardRecord:
    """The record of a finished shard. ``shard``, its manifest, is None where all its samples were
    bad.

    ``sources``: digest of the files it was made from, by name, size and times, before they were
    read (:meth:`samples.Samples.sources`): the shard is packed again when it has changed;
    ``skipped``: (position in the shard, reason); ``rewritten``: images that got restart markers,
    None where that was not tried; ``narrowed``: images of 16 bits that became 8.
    """

    sources: str
    shard: Manifest | None
    skipped: tuple[tuple[int, str], ...]
    rewritten: int | None
    narrowed: int

    def to_json(self) -> str:
        """The record as JSON."""
        shard = None if self.shard is None else self.shard.to_json()
        return json.dumps({**vars(self), "shard": shard}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ShardRecord:
        """Read :meth:`to_json`'s text; ValueError, KeyError, TypeError, AttributeError or
        FormatError for anything else."""
        raw = json.loads(text)
        shard = raw["shard"]
        return cls(
            raw["sources"],
            None if shard is None else Manifest.from_json(shard.encode("ascii"), "the record"),
            tuple((int(position), str(why)) for position, why in raw["skipped"]),
            raw["rewritten"],
            raw["narrowed"],
        )


class Workspace:
    """The folders that a run writes to."""

    def __init__(self, root: str, kind: str) -> None:
        self.root = root
        self.kind = kind
        self.set = os.path.join(root, "set")

    def prepare(self) -> None:
        """Make the folders, and remove unfinished attempts."""
        shutil.rmtree(self._path("attempts"), ignore_errors=True)
        for name in ("set", "records", "attempts"):
            os.makedirs(self._path(name), exist_ok=True)

    def _path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def plan(self) -> str | None:
        """The plan of an interrupted run, if there was one."""
        try:
            with open(self._path(PLAN), encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def keep_plan(self, plan: ShardPlan) -> None:
        """Write the plan, durably, before the first shard."""
        self._write(PLAN, plan.to_json())

    def _write(self, name: str, text: str) -> None:
        """Write a small file, whole or not at all."""
        part = self._path("attempts", f"{os.path.basename(name)}.{os.urandom(8).hex()}")
        with open(part, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, self._path(name))
        sync(os.path.dirname(self._path(name)))

    def attempt(self, number: int) -> str:
        """A path to write shard ``number`` to; no other attempt at it has the same."""
        suffix = "h5" if self.kind == "hdf5" else "lmdb"
        return self._path("attempts", f"{number:05d}.{os.urandom(8).hex()}.{suffix}")

    def finish(self, number: int, attempt: str, record: ShardRecord) -> None:
        """Rename a packed shard, then write its record. Twice is harmless: the same bytes."""
        if record.shard is not None:
            os.rename(data_file(attempt, self.kind), os.path.join(self.set, record.shard.name(0)))
            sync(self.set)
        self._write(os.path.join("records", f"{number:05d}.json"), record.to_json())

    def seal(self, manifest: Manifest) -> None:
        """Remove files that do not belong to the set, then write the manifest."""
        known = {manifest.name(number) for number in range(len(manifest))}
        for entry in os.listdir(self.set):
            if entry not in known:
                os.unlink(os.path.join(self.set, entry))
        self._write(os.path.join("set", NAME), manifest.to_json())

    def discard(self, attempt: str) -> None:
        """Remove what is left of an attempt."""
        shutil.rmtree(attempt, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(attempt)

    def record(self, number: int) -> ShardRecord | None:
        """The record of shard ``number``; None if it is not finished, or its record is damaged."""
        try:
            with open(self._path("records", f"{number:05d}.json"), encoding="ascii") as file:
                return ShardRecord.from_json(file.read())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, FormatError):
            return None

    def whole(self, record: ShardRecord) -> bool:
        """Whether the shard's file still has the bytes that were verified when it was packed."""
        if record.shard is None:
            return True
        shard = record.shard.shards[0]
        try:
            size, found = file_digest(os.path.join(self.set, shard.name))
        except OSError:
            return False
        return (size, found) == (shard.bytes, shard.xxh3)


# -- samples that a program adds -------------------------------------------------------------------


#: Bytes of samples after which a file is finished: so much is added again after an interruption.
PIECE: Final = 64 << 20

_NAME: Final = re.compile(r"([0-9a-f]{16})-(\d{6})\.h5")


class Pieces:
    """The finished files in a workspace, and the keys (paths) of their samples as hashes."""

    def __init__(self, workspace: str, keyed: bool) -> None:
        # without keys nothing can go on with them: the next run removes them
        self._folder = os.path.join(workspace, PIECES if keyed else "added")
        self._keyed = keyed
        #: Where the next file is written.
        self.path = os.path.join(workspace, "unfinished.h5")
        for left in glob.glob(f"{glob.escape(self.path)}*"):  # its fields have files of their own
            os.unlink(left)
        os.makedirs(self._folder, exist_ok=True)
        self._next = 0
        #: Of each file its path, and how many samples it and those before it have.
        self._paths: list[str] = []
        self._ends: list[int] = []
        self._kind = ""
        self._keys: UInt64 = np.empty(0, np.uint64)
        for name in sorted(os.listdir(self._folder)):
            found = _NAME.fullmatch(name)
            if found is not None:
                self._kind, self._next = found[1], int(found[2]) + 1
                path = os.path.join(self._folder, name)
                try:
                    self._take(path)
                except (SourceError, FormatError) as exc:
                    raise SourceError(
                        "a file of samples that an interrupted run has finished cannot be read",
                        path=path,
                        found=str(exc),
                        hint="remove that file to add its samples again",
                    ) from exc
        self._kept = self._keys

    def check_kind(self, kind: str) -> None:
        """SourceError unless the kept files have samples of this kind: 16 hex digits."""
        if self._kind not in ("", kind):
            raise SourceError(
                "the interrupted run had other options, or samples of another kind",
                path=self._folder,
                hint="call it with the same ones, or remove that folder to start over",
            )
        self._kind = kind

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._paths)

    @property
    def pattern(self) -> str:
        """A glob of all of them, in order."""
        return os.path.join(glob.escape(self._folder), "*.h5")

    def finish(self) -> None:
        """Give the file at ``path``, which is whole and on the disk, its name."""
        self._take(self.path)
        name = f"{self._kind}-{self._next:06d}.h5"
        self._next += 1
        self._paths[-1] = os.path.join(self._folder, name)
        os.rename(self.path, self._paths[-1])
        sync(self._folder)

    def _take(self, path: str) -> None:
        """Add a file, and its keys. ParamsError for one that another sample has."""
        with contextlib.closing(open_whole(path)) as found:
            names = Inspector(found.first).paths() if self._keyed else ()
            keys = np.sort(hashes(name or b"" for name in names))
            self._ends.append(found.facts.count + (self._ends[-1] if self._ends else 0))
        self._paths.append(path)
        twice = keys[1:] == keys[:-1]
        if twice.any() or np.isin(keys, self._keys, assume_unique=True).any():
            raise ParamsError(
                "two samples have the same path, and resume knows samples by their paths",
                hint="give each sample a path of its own",
            )
        self._keys = np.sort(np.concatenate([self._keys, keys]))

    def give_back(self, samples: range) -> None:
        """Give the disk the space of samples that are in a finished shard. Their tables stay: by
        these a run that resumes knows the samples, and that they are the same."""
        for number in range(bisect_right(self._ends, samples.start), self.count):
            first, end = self._ends[number - 1] if number else 0, self._ends[number]
            if first >= samples.stop:
                break
            span = max(samples.start, first) - first, min(samples.stop, end) - first
            _give_back(self._paths[number], *span)

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether the interrupted run has finished the sample of this path."""
        key = np.uint64(xxh3_64_intdigest(os.fsencode(path)))
        at = int(np.searchsorted(self._kept, key))
        return at < self._kept.size and bool(self._kept[at] == key)


def _give_back(path: str, start: int, stop: int) -> None:
    """Give the disk the space of samples ``start`` to ``stop`` of a file."""
    with h5py.File(path, locking=False) as file, open(path, "r+b") as written:
        for name, data in file.items():
            if table_of(name, CHECKSUMS) not in file or not data.size:
                continue  # a table, or no values
            ends = file.get(table_of(name, OFFSETS))
            first, end = (start, stop) if ends is None else ends[[start, stop]].tolist()
            row = math.prod(data.shape[1:]) * data.dtype.itemsize
            at = data.id.get_offset() + first * row
            files.give_back(written.fileno(), at, (end - first) * row)


def hashes(names: Iterable[bytes]) -> UInt64:
    """XXH3-64 of each name: 8 bytes each."""
    return np.fromiter((xxh3_64_intdigest(name) for name in names), np.uint64)


# -- a set that grows ------------------------------------------------------------------------------


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
            numbers = renumbered(samples.splits.names, names)
            samples.splits = Splits(names, numbers[samples.splits.rows])
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
        shards = [shard for one in (self.manifest, new) for shard in one.shards]
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
    old = hashes(name or b"" for name in looked.paths())
    new = hashes(map(path, range(samples.count)))
    return int(np.isin(new, old).sum())


def _channels(count: int) -> str:
    """Of images; of rows of numbers 0."""
    return str(count) if count else "rows of numbers, which are no images"


#: What new shards may have otherwise than those of the set.
_MAY_DIFFER: Final = ("shape", "fields", "data_bytes", "field_bytes", "classes", "splits")
