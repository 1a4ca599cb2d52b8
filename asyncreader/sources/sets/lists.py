"""Lists of files as one set: all held open, or packed files of which few are open at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...array_types import Array, Int64
from ...errors import AsyncReaderError, FormatError
from ...formats import packed as fmt
from ..base import FieldIndex, Source, SourceSpec
from ..bytestore import REMOTE
from ..fields import OpenSet
from ..request import Request
from .digests import WholeDigests
from .joined import Joined, JoinedSource
from .open_cache import open_limit


def join(files: Sequence[OpenSet]) -> OpenSet:
    """The open ``files`` as one set of the fields that all have. FormatError where they do not go
    together."""
    names = [name for name in files[0].names if all(name in file.fields for file in files)]
    return OpenSet({name: _join([file.fields[name] for file in files]) for name in names})


def _join(files: Sequence[Source]) -> JoinedSource:
    first = files[0].spec
    for file in files[1:]:
        _check_alike(first, file)
    ends = np.cumsum(np.array([file.spec.count for file in files], np.int64))
    tables, classes = _joined_classes(files)
    shapes = {file.spec.stored.shape for file in files}
    checked = [file.spec.checksums or file.spec.some_checksums for file in files]
    spec = replace(
        first,
        path=f"{first.path} and {len(files) - 1} more",
        count=int(ends[-1]),
        stored=replace(
            first.stored,
            shape=first.stored.shape if len(shapes) == 1 else None,
            narrow=all(file.spec.stored.narrow for file in files),
        ),
        meta=None,
        classes=classes,
        checksums=all(file.spec.checksums for file in files),
        some_checksums=any(checked),
        io=REMOTE if any(file.spec.remote for file in files) else first.io,
        size_on_disk=sum(file.spec.size_on_disk for file in files),
        ends=ends,
        fields=tuple(
            field
            for field in first.fields
            if all(field.name in (one.name for one in file.spec.fields) for file in files)
        ),
    )
    joined = Joined(tuple(file.index for file in files))
    index = FieldIndex(
        spec,
        joined,
        labels=_joined_labels(files, tables),
        splits=_joined_splits(files, [0, *ends.tolist()]),
    )
    return JoinedSource(index, joined, files)


def _joined_labels(files: Sequence[Source], tables: list[Array | None]) -> Array | None:
    there = [table for table in tables if table is not None]
    if not there:
        return None
    if len(there) < len(files):
        raise FormatError(
            "some of the files have labels and some have none",
            path=files[[table is None for table in tables].index(True)].spec.path,
            hint="pass labels_field=None to read all of them without",
        )
    try:
        return np.concatenate(there)
    except ValueError as exc:
        raise FormatError(
            "the files' labels differ in shape",
            found=", ".join(str(table.shape[1:]) for table in there),
        ) from exc


def _joined_splits(files: Sequence[Source], starts: Sequence[int]) -> Mapping[str, slice | Int64]:
    """Splits that every file has: their records, file by file."""
    names = [
        name for name in files[0].index.splits if all(name in file.index.splits for file in files)
    ]
    joined: dict[str, slice | Int64] = {}
    for name in names:
        rows = []
        for file, start in zip(files, starts, strict=False):
            split = file.index.splits[name]
            chosen = np.arange(split.start, split.stop) if isinstance(split, slice) else split
            rows.append(chosen.astype(np.int64) + start)
        joined[name] = np.concatenate(rows)
    return joined


def _joined_classes(
    files: Sequence[Source],
) -> tuple[list[Array | None], tuple[str, ...] | None]:
    """Labels of each file, and the class names of all.

    Foreign sets number the names that they hold (OCR, say), so that numbers are worked out anew.
    """
    labels = [file.labels for file in files]
    named = [file.spec.classes for file in files]
    if all(names == named[0] for names in named):
        return labels, named[0]
    every = sorted({name for names in named for name in names or ()})
    number = {name: i for i, name in enumerate(every)}
    for i, (table, names) in enumerate(zip(labels, named, strict=True)):
        if table is not None and names is not None:
            labels[i] = np.array([number[name] for name in names], np.int64)[table]
    return labels, tuple(every)


def _check_alike(first: SourceSpec, file: Source) -> None:
    one, other = first.stored, file.spec.stored
    same = (one.dtype, one.axes, one.encoded) == (other.dtype, other.axes, other.encoded)
    same = same and one.image_shape()[2] == other.image_shape()[2]
    if not one.encoded:
        same = same and one.shape == other.shape
    packed = first.meta is not None or file.spec.meta is not None
    named = (first.classes is None, file.spec.classes is None)
    if not same or named[0] != named[1] or (packed and first.classes != file.spec.classes):
        raise FormatError(
            "this file does not match the first one",
            path=file.spec.path,
            found=_kind(file.spec),
            expected=_kind(first),
            hint="all files of a set need the same shape, dtype, encoding and classes: convert "
            "them so (--classes takes the classes of another set)",
        )


def _kind(spec: SourceSpec) -> str:
    """What all files of a set have in common, in words."""
    shape = "pictures of many sizes" if spec.stored.shape is None else f"{spec.stored.shape}"
    names = spec.classes or ()
    listed = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    classes = f"{len(names)} classes" + (f" ({listed})" if names else "")
    return f"{shape} {spec.stored.dtype} {spec.encoding}, {classes}"


# -- more files than may be open -----------------------------------------------------------------


#: Opens a file by its name; None if the name means several files.
Opener: TypeAlias = Callable[[str, Request], OpenSet | None]


@dataclass(frozen=True)
class PackedFiles:
    """Files by name."""

    names: Sequence[str]
    opener: Opener

    def open(self, number: int, fields: Request) -> OpenSet:
        """Open a file."""
        found = self.opener(self.names[number], fields)
        if found is None:
            raise FormatError("the file is no longer a packed file", path=self.names[number])
        return found

    def close(self) -> None:
        """Nothing is open."""


def join_packed(names: Sequence[str], opener: Opener, fields: Request) -> OpenSet | None:
    """The files ``names`` as one set, with few open at a time; None unless asyncreader packed all
    of them, of one kind.

    Each file is opened once, for its counts and digests, and closed. The set serves the same
    samples in the same orders under the same fingerprint as :func:`join` of the files. Raises what
    ``opener`` raises.
    """
    columns: dict[str, _Column] = {}
    for name in names:
        try:
            found = opener(name, fields)
        except AsyncReaderError as exc:
            exc.shift_record(columns[fields.data].count if columns else 0)
            raise
        if found is None:
            return None
        with contextlib.closing(found):
            if any(one.spec.meta is None or one.spec.ends is not None for one in found.parts):
                return None
            columns = columns or {field: _Column(one) for field, one in found.fields.items()}
            if found.fields.keys() != columns.keys():
                return None
            if not all(columns[field].add(one) for field, one in found.fields.items()):
                return None
    limit = max(1, open_limit() // len(columns))
    first = columns[fields.data].first
    requests = [replace(fields, others=()), *fields.also(first.stored, list(columns)[1:])]
    return OpenSet({r.data: columns[r.data].joined(names, opener, r, limit) for r in requests})


class _Column:
    """One field of many files: counts, sizes and digests."""

    def __init__(self, source: Source) -> None:
        self.first = source.spec
        self._like = _kind_of(source)
        _, self._labels = self._like
        tables = [fmt.CHECKSUMS, *([fmt.LABELS] * (self._labels is not None))]
        self._digests = WholeDigests(tables)
        self._rows: list[tuple[int, int, int, int]] = []
        self._shapes = set[tuple[int, int, int] | None]()

    @property
    def count(self) -> int:
        """Samples of the files added."""
        return sum(count for count, *_ in self._rows)

    def add(self, source: Source) -> bool:
        """Whether the file goes with the first one, and has checksums."""
        spec = source.spec
        if not spec.checksums or _kind_of(source) != self._like:
            return False
        assert spec.meta is not None
        self._digests.add(OpenSet({fmt.DATA: source}))
        stated = [int(spec.meta.digests.get(n, "0"), 16) for n in (fmt.CHECKSUMS, fmt.LABELS)]
        self._rows.append((spec.count, spec.size_on_disk, stated[0], stated[1]))
        self._shapes.add(spec.meta.shape)
        return True

    def joined(
        self, names: Sequence[str], opener: Opener, fields: Request, limit: int
    ) -> JoinedSource:
        """The field of all files added."""
        first, meta = self.first, self.first.meta
        assert meta is not None
        counts, sizes, checksums, label_digests = np.array(self._rows, np.uint64).T
        ends = np.cumsum(counts.astype(np.int64))
        shape = next(iter(self._shapes)) if len(self._shapes) == 1 else None
        joined = Joined(
            PackedFiles(names, opener),
            stated={
                fmt.CHECKSUMS: checksums,
                fmt.LABELS: None if meta.label_kind == "none" else label_digests,
            },
            labels=self._labels,
            limit=limit,
            request=fields,
        )
        spec = replace(
            first,
            path=f"{first.path} and {len(names) - 1} more",
            layout=f"asyncreader, {len(names)} files",
            count=self.count,
            stored=replace(first.stored, shape=shape),
            meta=replace(meta, count=self.count, shape=shape, digests=self._digests.found()),
            size_on_disk=int(sizes.sum()),
            ends=ends,
            fields=self._like[0].fields,
        )
        return JoinedSource(FieldIndex(spec, joined), joined)


def _kind_of(source: Source) -> tuple[SourceSpec, tuple[int, str] | None]:
    """What one field of all files must share, and the labels' width and dtype. Encoded pictures may
    differ in size."""
    spec, table = source.spec, source.labels
    assert spec.meta is not None
    raw = spec.encoding == "raw"
    meta = replace(spec.meta, count=0, digests={}, fields=())
    shared = replace(
        spec,
        path="",
        layout="",
        io="",
        count=0,
        block=0,
        size_on_disk=0,
        stored=spec.stored if raw else replace(spec.stored, shape=None),
        meta=meta if raw else replace(meta, shape=None),
        fields=tuple(
            one if one.encoding == "raw" else replace(one, shape=None) for one in spec.fields
        ),
    )
    return shared, None if table is None else (int(table.shape[1]), table.dtype.str)
