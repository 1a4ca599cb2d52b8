"""The manifest of a sharded set: one JSON file, ``asyncreader.json``, in the folder of its shards.

Each shard is a packed file of its own (packed.py); record numbers run on from shard to shard. The
manifest names the shards with what tells whether each is whole and the right one, so that a set of
a million shards opens without opening any. It is written last, with a digest of its own.

``digests`` are those of the tables of all samples together; ``earlier`` has the count and digests
of the set before each time that shards were added to it. Each other field has its description,
and a column with the digests of its checksums. ``dtype`` is written where it is not uint8.

Nothing in it is trusted: names are plain names of files in its folder, numbers are bounded, and
the length of the text is limited before it is parsed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import xxhash

from ..errors import FormatError, SourceError, SourceNotFoundError, located
from ..system.array_types import Int64, UInt64
from ..system.memory import read_at_most
from . import packed as fmt
from .packed import DIGESTS, OBJECT, JsonText, Rules, each, is_digest, one_of, optional, whole

NAME: Final = "asyncreader.json"
FORMAT_NAME: Final = "asyncreader-shards"
VERSION: Final = 2
#: Of sets with samples of different length, which readers of version 2 do not know.
RAGGED_VERSION: Final = 3

#: The longest manifest that is read: a million shards and more.
MOST_BYTES: Final = 128 << 20
#: Numbers in a manifest: JSON has them exactly up to here (RFC 8259, 6).
MOST: Final = 1 << 53
#: Names of shards: at most 255 bytes, as on every file system of Linux (limits.h, NAME_MAX).
_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")

CONTAINERS: Final = {"hdf5": "HDF5", "lmdb": "LMDB"}
COLUMNS: Final = ("name", "count", "bytes", "xxh3", "checksums", "labels")
#: Times that shards can be added to a set.
MOST_ADDED: Final = 100_000
_NONE: Final = "-"
#: Letters to a comma, at least; but so many values, names of classes say, may be shorter.
_LETTERS: Final = 10
_SHORT: Final = 1 << 17
_READ: Final = 1 << 22
_AGAIN: Final = "copy it again, or convert again; it is not to be edited by hand"


@dataclass(frozen=True, slots=True)
class Shard:
    """One row of the table.

    ``name``: of the file, next to the manifest; ``count``: samples; ``bytes``: the file's size;
    ``xxh3``: XXH3-64 of the whole file; ``checksums``, ``labels``: the digests of these tables that
    the shard's own description states (``labels`` None without); ``fields``: those of the checksums
    of other fields; all digests as 16 hex digits.
    """

    name: str
    count: int
    bytes: int
    xxh3: str
    checksums: str
    labels: str | None
    fields: tuple[str, ...] = ()

    def row(self) -> list[Any]:
        """As it stands in the manifest."""
        labels = _NONE if self.labels is None else self.labels
        return [self.name, self.count, self.bytes, self.xxh3, self.checksums, labels, *self.fields]

    @classmethod
    def of(cls, row: list[Any]) -> Shard:
        """The shard of a row that was checked."""
        name, count, size, xxh3, checksums, labels, *others = row
        stated = None if labels == _NONE else labels
        return cls(name, count, size, xxh3, checksums, stated, tuple(others))


@dataclass(frozen=True, kw_only=True)
class Common(fmt.Described):
    """What all shards of a set share.

    ``container``: "hdf5" or "lmdb"; ``label_width``: labels of a sample; ``chunk`` and
    ``compression``: of raw HDF5, samples compressed together and how, else None; ``data_bytes``:
    bytes of all samples as stored, before any filter; ``field_bytes``: of each other field.
    """

    container: str
    label_width: int
    chunk: int | None
    compression: str | None
    data_bytes: int
    field_bytes: tuple[int, ...] = ()

    def facts(self) -> dict[str, Any]:
        facts = super().facts()
        if not self.fields:
            del facts["field_bytes"]
        if self.dtype == "uint8":
            del facts["dtype"]
        return facts

    def tables(self) -> list[str]:
        """Names of the tables that tell samples from others."""
        labels = [] if self.label_kind == "none" else [fmt.LABELS]
        splits = [fmt.SPLITS] if self.splits else []
        return [fmt.CHECKSUMS, *labels, *splits, *self.columns()[len(COLUMNS) :]]

    def columns(self) -> list[str]:
        """Names of the table's columns."""
        return [*COLUMNS, *(fmt.table_of(one.name, fmt.CHECKSUMS) for one in self.fields)]


@dataclass(frozen=True, eq=False)
class Manifest:
    """A sharded set: what its shards share, and the shards in their order.

    ``digests``: of the tables of all samples, as a single file of them would state them
    (``checksums``, ``labels``, ``mask.checksums``), empty of a part of a set; ``earlier``: (count,
    digests) of the set before each time that shards were added.
    """

    common: Common
    shards: tuple[Shard, ...]
    digests: Mapping[str, str] = field(default_factory=dict)
    earlier: tuple[tuple[int, Mapping[str, str]], ...] = ()

    @classmethod
    def of(
        cls, common: Common, shards: Iterable[Shard], digests: Mapping[str, str] | None = None
    ) -> Manifest:
        """The manifest of these shards, in this order; FormatError for rows that make no sense."""
        rows = [shard.row() for shard in shards]
        with located(path="the manifest"):
            return replace(cls._checked(common, rows), digests=dict(digests or {}))

    @cached_property
    def counts(self) -> Int64:
        """int64 (S,): the number of samples in each shard."""
        return np.array([one.count for one in self.shards], np.int64)

    @cached_property
    def sizes(self) -> Int64:
        """int64 (S,): the bytes of each shard's file."""
        return np.array([one.bytes for one in self.shards], np.int64)

    def table_digests(self, table: str) -> UInt64:
        """uint64 (S,): what each shard states of a table: of its checksums, its labels, or the
        checksums of another field."""
        place = self.common.columns().index(table)
        return np.array([int(one.row()[place], 16) for one in self.shards], np.uint64)

    @cached_property
    def ends(self) -> Int64:
        """int64 (S,): the record number after each shard's last."""
        return np.cumsum(self.counts)

    def take(self, numbers: Sequence[int]) -> Manifest:
        """The manifest of some of the shards, in this order; of samples as large on average."""
        every = list(numbers) == list(range(len(self)))
        shards = tuple(self.shards[number] for number in numbers)
        count = sum(one.count for one in shards)
        first, *others = (
            max(1, size * count // self.count)
            for size in (self.common.data_bytes, *self.common.field_bytes)
        )
        common = replace(self.common, data_bytes=first, field_bytes=tuple(others))
        if every:
            return replace(self, common=common)
        return Manifest(common, shards)

    @property
    def count(self) -> int:
        """Samples in all shards."""
        return int(self.ends[-1])

    @property
    def version(self) -> int:
        """The oldest version that reads it."""
        return RAGGED_VERSION if self.common.ragged else VERSION

    def __len__(self) -> int:
        return len(self.shards)

    def name(self, number: int) -> str:
        """The file name of shard ``number``."""
        return self.shards[number].name

    def meta(self) -> fmt.Meta:
        """The set as one. Where no digests of all samples are known, they are digests of the
        shards' digests: the same for the same shards only."""
        common = self.common
        digests = dict(self.digests)
        if not digests:
            # counts are bound by the digests of checksums, which have a number for each sample
            tables = [name for name in self.common.tables() if name != fmt.SPLITS]
            digests = {name: fmt.digest(self.table_digests(name).astype("<u8")) for name in tables}
        shared = {one.name: getattr(common, one.name) for one in fields(fmt.Described)}
        return fmt.Meta(count=self.count, digests=digests, **shared)

    # -- text --------------------------------------------------------------------------------

    def _head(self) -> str:
        """The lines of all but the digest and the table."""
        head = {
            "format": FORMAT_NAME,
            "version": self.version,
            "count": self.count,
            "columns": self.common.columns(),
            "digests": dict(sorted(self.digests.items())),
            **self.common.facts(),
        }
        if self.earlier:
            head["earlier"] = [
                {"count": count, "digests": dict(sorted(digests.items()))}
                for count, digests in self.earlier
            ]
        return "".join(f"  {json.dumps(key)}: {json.dumps(head[key])},\n" for key in sorted(head))

    def to_json(self) -> str:
        """ASCII text, a line for each shard; equal sets give equal text."""
        head, rows = self._head(), [one.row() for one in self.shards]
        table = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        digest = _text_digest(head, rows)
        return f'{{\n{head}  "digest": "{digest}",\n  "shards": [\n{table}\n  ]\n}}\n'

    @classmethod
    def from_json(cls, text: bytes, path: str) -> Manifest:
        """Read and check what :meth:`to_json` wrote; anything else is a FormatError."""
        with located(path=path):
            return cls._read(text)

    @classmethod
    def _read(cls, text: bytes) -> Manifest:
        # a row has six values in 70 letters or more; two-letter values would take 30 times the text
        if (
            text.count(b",") > len(text) // _LETTERS + _SHORT
            or text.count(b"[") > len(text) // 40 + 9
        ):
            raise FormatError("the manifest is no table of shards", hint=_AGAIN)
        source = JsonText("the manifest", _AGAIN)
        raw = source.parse(text, MOST_BYTES)
        if raw.get("format") != FORMAT_NAME:
            raise FormatError("not the manifest of a sharded dataset")
        source.check_version(raw, RAGGED_VERSION)
        common, digests = _common(raw, source)
        if raw.get("columns") != common.columns():
            raise source.wrong(raw, "columns", str(common.columns()))
        rows = raw.get("shards")
        if not isinstance(rows, list) or not rows:
            raise source.wrong(raw, "shards", "a table")
        manifest = replace(
            cls._checked(common, rows), digests=digests, earlier=_earlier(raw, source)
        )
        for name, expected in (("version", manifest.version), ("count", manifest.count)):
            if raw.get(name) != expected:
                raise source.wrong(raw, name, str(expected))
        found = _text_digest(manifest._head(), rows)
        if raw.get("digest") != found:
            raise FormatError(
                "the manifest is not as it was written",
                found=f"digest {found}",
                expected=f"digest {str(raw.get('digest'))[:40]}",
                hint=_AGAIN,
            )
        return manifest

    @classmethod
    def _checked(cls, common: Common, rows: Sequence[Any]) -> Manifest:
        wide = len(common.columns())
        for number, row in enumerate(rows):
            problem = _row_problem(row, wide, common.label_kind != "none")
            if problem is not None:
                found = repr(row)
                raise FormatError(
                    f"row {number} of the manifest makes no sense: {problem}",
                    found=found if len(found) < 200 else f"{found[:200]}...",
                    hint=_AGAIN,
                )
        if len({row[0] for row in rows}) != len(rows):
            raise FormatError("the manifest names a shard twice", hint=_AGAIN)
        if sum(row[1] for row in rows) > MOST:
            raise FormatError("the manifest counts more samples than there can be")
        return cls(common, tuple(map(Shard.of, rows)))


def _text_digest(head: str, rows: list[Any]) -> str:
    """XXH3-64 of the head's lines and the table as json.dumps gives it, on one line."""
    return xxhash.xxh3_64_hexdigest(f"{head}{json.dumps(rows)}".encode("ascii"))


def _row_problem(row: Any, wide: int, labelled: bool) -> str | None:
    if not isinstance(row, list) or len(row) != wide:
        return f"not {wide} values"
    if not plain_name(row[0]):
        return "its name is not a plain name of a file next to the manifest"
    if any(type(number) is not int or not 1 <= number < MOST for number in row[1:3]):
        return "count or bytes"
    hashes = row[3:] if labelled else row[3:5] + row[6:]
    if not all(map(is_digest, hashes)) or (not labelled and row[5] != _NONE):
        return "a digest"
    return None


def plain_name(name: Any) -> bool:
    """Whether ``name`` can only be a file next to the manifest: letters, digits, ".", "_", "-"."""
    return isinstance(name, str) and name != NAME and _PLAIN.fullmatch(name) is not None


_RULES: Final[Rules] = {
    "container": one_of(*CONTAINERS),
    "label_width": whole(),
    "chunk": optional(whole()),
    "compression": one_of(None, "gzip"),
    "data_bytes": whole(MOST, 0),  # samples of different length may all be empty
    "field_bytes": optional(each(whole(MOST, 0))),
    "digests": DIGESTS,
}


def _common(raw: dict[str, Any], source: JsonText) -> tuple[Common, dict[str, str]]:
    """What the shards share, and the digests of the tables of all samples."""
    entries = fmt.read_samples({"dtype": "uint8", **raw}, _RULES, source)
    digests = entries.pop("digests")
    entries["field_bytes"] = entries["field_bytes"] or ()
    common = Common(**entries)
    if len(common.field_bytes) != len(common.fields):
        raise source.wrong(raw, "field_bytes", "a number for each field")
    if set(digests) != set(common.tables()):
        raise source.wrong(raw, "digests", f"those of {', '.join(common.tables())}")
    return common, digests


def _earlier(raw: dict[str, Any], source: JsonText) -> tuple[tuple[int, dict[str, str]], ...]:
    """Counts and digests of the set before shards were added."""
    rules: Rules = {"earlier": optional(each(OBJECT, most=MOST_ADDED))}
    states = source.read(raw, rules)["earlier"] or ()
    rules = {"count": whole(MOST), "digests": DIGESTS}
    read = [source.read(one, rules, f"earlier[{n}].") for n, one in enumerate(states)]
    return tuple((one["count"], one["digests"]) for one in read)


def manifest_path(path: str) -> str | None:
    """The manifest that ``path`` names, a folder or the file itself; None if it is neither."""
    if os.path.isdir(path):
        inside = os.path.join(path, NAME)
        return inside if os.path.lexists(inside) else None
    if not path.endswith(".json") or not os.path.isfile(path):
        return None
    return path


def read_manifest(path: str) -> Manifest:
    """The manifest in the file ``path``. SourceNotFoundError, SourceError or FormatError."""
    try:
        if not os.path.isfile(path) and os.path.lexists(path):  # a pipe would be waited for
            raise FormatError("the manifest is not a regular file", path=path)
        text = read_at_most(path, MOST_BYTES)
    except FileNotFoundError as exc:
        raise SourceNotFoundError("there is no manifest", path=path) from exc
    except OSError as exc:
        if isinstance(exc, SourceError):
            raise
        raise SourceError("the manifest cannot be read", path=path, found=exc.strerror) from exc
    return Manifest.from_json(text, path)


def file_digest(path: str) -> tuple[int, str]:
    """(bytes, XXH3-64 as 16 hex digits) of a whole file."""
    state, size = xxhash.xxh3_64(), 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_READ):
            state.update(data)
            size += len(data)
    return size, state.hexdigest()
