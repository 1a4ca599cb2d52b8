"""Where a sharded set is written: its plan, its finished shards and a record of each; and files of
added samples, which an interrupted run leaves for the next one.

Any machine that sees the folder can write a shard. In it: ``plan.json``; ``set/``, where a shard
appears by rename when it is complete, verified and on the disk; ``records/``, one small file for
each finished shard, written after it; ``attempts/``, where shards are written, each
under its own name.
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
from dataclasses import asdict, dataclass
from typing import Final

import h5py
import numpy as np
from xxhash import xxh3_64_intdigest

from asyncreader.errors import FormatError, ParamsError, SourceError
from asyncreader.formats.manifest import NAME, Manifest, file_digest
from asyncreader.formats.packed import CHECKSUMS, OFFSETS, FieldMeta, table_of
from asyncreader.sources import Inspector, open_whole
from asyncreader.system import files
from asyncreader.system.array_types import Int64, UInt64

from .disk import sync
from .one_file import data_file
from .publish import ADDED, PIECES


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
            field["shape"] = field["shape"] and tuple(field["shape"])
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
        facts = {name: getattr(self, name) for name in ("sources", "skipped", *_COUNTED)}
        shard = None if self.shard is None else self.shard.to_json()
        return json.dumps({**facts, "shard": shard}, sort_keys=True)

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
            *(raw[name] for name in _COUNTED),
        )


_COUNTED: Final = ("rewritten", "narrowed")


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
            with open(self._path("plan.json"), encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def keep_plan(self, plan: ShardPlan) -> None:
        """Write the plan, durably, before the first shard."""
        self._write("plan.json", plan.to_json())

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
        shard = record.shard.shard(0)
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
    """The finished files in a workspace, and the keys (paths) of their samples.

    Each key is kept as its XXH3-64, 8 bytes.
    """

    def __init__(self, workspace: str, keyed: bool) -> None:
        # without keys nothing can go on with them: the next run removes them
        self._folder = os.path.join(workspace, PIECES if keyed else "added")
        self._keyed = keyed
        #: Where the next file is written.
        self.path = os.path.join(workspace, "unfinished.h5")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
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
                self._take_kept(os.path.join(self._folder, name))
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

    def _take_kept(self, path: str) -> None:
        """Add the keys of a file that an interrupted run has finished. SourceError for one that
        cannot be read."""
        try:
            self._take(path)
        except (SourceError, FormatError) as exc:
            raise SourceError(
                "a file of samples that an interrupted run has finished cannot be read",
                path=path,
                found=str(exc),
                hint="remove that file to add its samples again",
            ) from exc

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
    """XXH3-64 of each name."""
    return np.fromiter((xxh3_64_intdigest(name) for name in names), np.uint64)
