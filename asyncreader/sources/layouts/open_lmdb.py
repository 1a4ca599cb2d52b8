"""LMDB sets as sources: one walk of the tree gives the byte range of every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...errors import FormatError, ParamsError
from ...formats import packed as fmt
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Int64
from ..base import FieldIndex, check_extents, default_block, packed_rows
from ..bytestore import ByteFile, OpenFile
from ..extents import Extents, RunStarts
from ..fields import SetIndex, index_set
from ..lmdb.btree import LmdbFile, Tree
from ..lmdb.entries import Entries
from ..ragged import ragged_field
from ..request import Request, no_field
from .packed import check_sizes, with_tables


def _tree(file: ByteFile) -> LmdbFile:
    assert isinstance(file, OpenFile)  # LMDB is read from files of this machine alone
    return LmdbFile(file.mapped.bytes, file.path)


@dataclass(frozen=True)
class PackedNames:
    """Keys that are record numbers, and source paths in the database ``tree``."""

    tree: Tree | None

    def key(self, file: ByteFile, index: int) -> str | None:
        """The record number."""
        return fmt.record_key(index).decode()

    def path(self, file: ByteFile, index: int) -> bytes | None:
        """The path of one sample; None also where the file is damaged."""
        if self.tree is None:
            return None
        try:
            value = _tree(file).find(self.tree, fmt.record_key(index))
        except FormatError:
            return None  # only an error message asks for it
        return None if value is None else value.tobytes()

    def paths(self, file: ByteFile, count: int) -> Iterator[bytes | None]:
        """The paths of all samples, in one walk."""
        if self.tree is None:
            yield from [None] * count
            return
        tree = _tree(file)
        entries = Entries.of(tree, self.tree)
        for index in range(len(entries)):
            yield entries.value(index).tobytes()


def index_lmdb(path: str, file: OpenFile, fields: Request) -> SetIndex:
    """The index of a set whose data file is open, packed by asyncreader or in another layout
    (detect.py). ``path``: its name for messages.

    FormatError if it is damaged, truncated or of an unknown layout; SourceNotFoundError or
    ParamsError if it lacks a field of ``fields``.
    """
    fields.check_rows("LMDB", path)
    tree = LmdbFile(file.mapped.bytes, path)
    named = tree.named()
    if fmt.META.encode() in named and fmt.DATA.encode() in named:
        return index_set(fields, lambda one: _packed(path, file, tree, named, one))
    from .detect import index_foreign  # with all layouts, which sets of ours do without

    return index_set(fields, lambda one: index_foreign(path, file, tree, named, one))


def _check_fields(path: str, fields: Request, meta: fmt.Meta) -> None:
    """ParamsError for options of HDF5 sets and unknown fields: the caller would get other data."""
    if fields.labels_path is not None:
        raise ParamsError(
            "labels_path goes with datasets that other programs wrote",
            path=path,
            found="LMDB of asyncreader",
        )
    data = (fmt.DATA, *(field.name for field in meta.fields))
    for name, own in ((fields.data, data), (fields.labels, (fmt.LABELS,))):
        if name is not None and name not in own:
            raise no_field(name, (*data, fmt.LABELS), path)


def _description(path: str, tree: LmdbFile, named: dict[bytes, Tree]) -> fmt.Meta:
    raw_meta = tree.find(named[fmt.META.encode()], fmt.META_KEY)
    if raw_meta is None:
        raise FormatError("its description is missing", path=path, hint=fmt.REPACK)
    whole = fmt.Meta.from_json(raw_meta.tobytes(), path)
    if tree.short():  # asyncreader writes sets to their last page
        raise tree.truncated()
    return whole


@dataclass(frozen=True)
class _PackedLmdb:
    """An open set that asyncreader packed: see packed.PackedSet."""

    container: ClassVar[str] = "LMDB"
    path: str
    file: OpenFile
    tree: LmdbFile
    named: Mapping[bytes, Tree]
    fields: Request
    whole: fmt.Meta
    meta: fmt.Meta
    other_field: str | None

    def stored_table(self, name: str, dtype: str, count: int) -> Array:
        """See packed.PackedSet."""
        database = self.named.get(name.encode())
        value = None if database is None else self.tree.find(database, fmt.TABLE_KEY)
        column = 8 * count
        columns = 1 if value is None or name != fmt.LABELS else max(1, value.size // column)
        if value is None or value.size != columns * column:
            raise FormatError(
                f"its {name} are missing or of the wrong size",
                path=self.path,
                found=None if value is None else f"{value.size} bytes",
                expected=f"{columns * column} bytes",
                hint=fmt.REPACK,
            )
        if self.file.io == "pread":  # tables are used later, when the mapping must not be
            value = value.copy()
        table: Array = value.view(dtype)
        return table.reshape(count, columns) if name == fmt.LABELS else table

    def names(self, table: str, count: int) -> PackedNames:
        """See packed.PackedSet."""
        return PackedNames(self.named.get(table.encode()))


def _packed(
    path: str, file: OpenFile, tree: LmdbFile, named: dict[bytes, Tree], fields: Request
) -> SetIndex:
    whole = _description(path, tree, named)
    _check_fields(path, fields, whole)
    other = None if fields.data == fmt.DATA else fields.data
    meta = whole if other is None else whole.field(other) or whole
    data = named.get(fields.data.encode())
    if data is None or data.entries != meta.count:
        raise FormatError(
            "the number of samples is not what the description says",
            path=path,
            found=0 if data is None else data.entries,
            expected=meta.count,
            hint=fmt.REPACK,
        )
    entries = Entries.of(tree, data)
    entries.check_numbered()
    starts, sizes = entries.starts, entries.sizes
    check_extents(starts, sizes, file.size, path)
    spec = packed_rows(meta, other is not None, fields, path)
    if not spec.encoded:
        check_sizes(sizes, spec, path, fmt.REPACK)
    held = _PackedLmdb(path, file, tree, named, fields, whole, meta, other)
    how, block = "asyncreader, one value a sample", default_block(int(sizes.mean()))
    if spec.ragged:
        return with_tables(held, _runs(spec, starts, sizes, meta, path), meta.count, how)
    field = FieldIndex(spec, Extents(starts, sizes if spec.encoded else int(sizes[0])), block=block)
    return with_tables(held, field, meta.count, how)


def _runs(spec: SampleSpec, starts: Int64, sizes: Array, meta: fmt.Meta, path: str) -> FieldIndex:
    """The field whose samples, which differ in length, lie there."""
    spec, offsets = replace(spec, ragged=False), np.zeros(meta.count + 1, np.int64)
    np.cumsum(sizes // spec.row_bytes, out=offsets[1:])
    fmt.check_digest(fmt.OFFSETS, offsets, meta, path)
    size = spec.row_bytes
    runs = Extents(RunStarts(starts + sizes, offsets[1:], size), size)
    values = FieldIndex(spec, runs, block=default_block(spec.row_bytes))
    return ragged_field(values, int(offsets[-1]), offsets)
