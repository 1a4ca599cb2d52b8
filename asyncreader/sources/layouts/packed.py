"""Sets that asyncreader packed, and what goes with their samples: in HDF5 and in LMDB.

In HDF5 rows lie as they are, images in one blob, and samples of different length as runs of
values; in LMDB each sample is one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from ...errors import FormatError
from ...formats import packed as fmt
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Int64
from ..arrays import Rows
from ..base import (
    FieldIndex,
    Names,
    SetFacts,
    check_extents,
    check_sizes,
    copied_if_small,
    default_block,
    packed_rows,
)
from ..bytestore import ByteFile, OpenFile
from ..extents import Extents, RunStarts
from ..fields import SetIndex
from ..hdf5.checks import AGAIN, check_inside
from ..hdf5.file import TablePaths
from ..hdf5.stored import Stored
from ..labels import PackedSplits
from ..lmdb import LmdbFile, Tree
from ..ragged import ragged_field
from ..request import Request
from . import hdf5_data

#: Tables of which each field has its own.
_OF_A_FIELD: Final = (fmt.CHECKSUMS, fmt.OFFSETS, fmt.PATHS)


@dataclass(frozen=True, kw_only=True)
class PackedSet:
    """An open set that asyncreader packed, in one of its containers.

    ``whole``: its description; ``other_field``: the field that is opened, None for the data;
    ``meta``: the description of that field.
    """

    container: ClassVar[str]
    file: ByteFile
    fields: Request
    whole: fmt.Meta
    meta: fmt.Meta
    other_field: str | None

    def stored_table(self, name: str, dtype: str, count: int) -> Array:
        """The table ``name`` of ``count`` rows: (count,), of labels (count, L). FormatError where
        it is missing, or of another shape or type."""
        raise NotImplementedError

    def names(self, table: str, count: int) -> Names | None:
        """What the set says of its samples' keys, and of their paths in the table ``table``."""
        raise NotImplementedError


def check_count(held: PackedSet, count: int) -> None:
    """FormatError unless the field that is opened has as many samples as the description says."""
    if count != held.meta.count:
        raise FormatError(
            "the number of samples is not what the description says",
            found=count,
            expected=held.meta.count,
            hint=fmt.REPACK,
        )


def checked_table(held: PackedSet, name: str, dtype: str, count: int) -> Array:
    """A table of the field that is opened, which has its digest."""
    stored = fmt.table_of(held.other_field, name) if name in _OF_A_FIELD else name
    table = held.stored_table(stored, dtype, count)
    if name != fmt.CHECKSUMS:
        table = copied_if_small(table)
    fmt.check_digest(name, table, held.meta)
    return table


def with_tables(held: PackedSet, field: FieldIndex, count: int, how: str) -> SetIndex:
    """The index of a field of ``count`` samples, with all that was packed with them. ``how`` they
    are stored, in words."""
    whole, meta, labels = held.whole, held.meta, None
    asked = held.fields.labels is not None and held.fields.labels.strip("/") == fmt.LABELS
    if asked and held.fields.labels_path is None and meta.label_kind != "none":
        labels = checked_table(held, fmt.LABELS, meta.label_dtype, count)
    more = {"meta": whole, "classes": whole.classes, "fields": whole.fields}
    facts = SetFacts.of(held.file, held.container, how, count, **more)
    field = replace(
        field,
        where=held.file.where,
        checksums=checked_table(held, fmt.CHECKSUMS, "<u8", count),
        names=held.names(fmt.table_of(held.other_field, fmt.PATHS), count),
        checked="all",
    )
    index = SetIndex(facts, {held.fields.data: field}, labels)
    if not meta.splits:
        return index
    rows = checked_table(held, fmt.SPLITS, "<i8", count)
    return replace(index, splits=PackedSplits(meta.splits, rows))


# -- HDF5 ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PackedHdf5(hdf5_data.Hdf5Set, PackedSet):
    """A set in HDF5: see :class:`PackedSet`."""

    container = "HDF5"

    def dataset(self, name: str, records: bool = False) -> Stored:
        found = self.h5.find(name, records)
        if found is None:
            raise FormatError(f"its {name} are missing", hint=fmt.REPACK)
        return found

    def stored_table(self, name: str, dtype: str, count: int) -> Array:
        table = self.dataset(name).values()
        axes = 2 if name == fmt.LABELS else 1
        if (table.dtype, table.ndim, table.shape[0]) != (np.dtype(dtype), axes, count):
            raise FormatError(
                f"its {name} have the wrong shape or type",
                found=f"shape {table.shape}, {table.dtype}",
                expected=f"({count}{', L' if axes == 2 else ','}), {dtype}",
                hint=AGAIN,
            )
        return table

    def names(self, table: str, count: int) -> TablePaths | None:
        if self.h5.reach(table) is not None:
            return TablePaths(table, count)
        return TablePaths(None, count) if table in self.meta.digests else None

    def index_field(self, field: FieldIndex, rows: int, how: str) -> SetIndex:
        index, labels = with_tables(self, field, rows, how), self.fields.labels
        if labels is None or (labels.strip("/") == fmt.LABELS and not self.fields.labels_path):
            return index
        table, classes = self.labels(rows, field.spec)
        facts = replace(index.facts, classes=classes or index.facts.classes)
        return replace(index, labels=table, facts=facts)


def index_packed_hdf5(found: hdf5_data.Hdf5Set, whole: fmt.Meta) -> SetIndex:
    """The index of the field that a set's ``fields`` name. ``whole``: what the set says of itself.

    A data set of which that says nothing is its owner's, and served as of any other file.
    """
    name, fields = found.fields.data.strip("/"), found.fields
    other = None if name == fmt.DATA else name
    meta = whole if other is None else whole.field(other)
    if meta is None:
        index = hdf5_data.index_data(found)
        facts = replace(index.facts, classes=whole.classes, fields=whole.fields)
        return replace(index, facts=facts)
    held = PackedHdf5(
        file=found.file, fields=fields, whole=whole, meta=meta, other_field=other, h5=found.h5
    )
    data = held.dataset(fields.data, records=True)
    spec = packed_rows(meta, other is not None, fields, found.path)
    if meta.encoding == fmt.RAGGED:
        return _index_runs(held, data, spec)
    return _index_raw(held, data, spec) if meta.encoding == "raw" else _index_blob(held, data, spec)


def _index_raw(held: PackedHdf5, data: Stored, spec: SampleSpec) -> SetIndex:
    dtype = data.values_dtype()
    hdf5_data.check_samples_of(held, data)
    if held.fields.cut is not None:
        return hdf5_data.index_volumes(held, data, dtype)
    count = held.rows_in(data)
    check_count(held, count)
    _check_kind(held, data, dtype)
    field, how = hdf5_data.stored_rows(held, data, 0, spec, compare=False)  # they have checksums
    if data.chunks is None:
        how = f"asyncreader, contiguous {'pixels' if held.meta.channels else 'rows'}"
    return held.index_field(field, count, how)


def _index_blob(held: PackedHdf5, data: Stored, spec: SampleSpec) -> SetIndex:
    offset, count = data.id.get_offset(), held.meta.count
    if data.ndim != 1 or data.dtype != np.uint8 or offset is None:
        raise FormatError("its data are not the blob it declares", hint=AGAIN)
    offsets = _offsets(held, data.shape[0])
    starts, sizes = offsets[:-1], np.diff(offsets)
    check_inside(held.file, offset, data.shape[0])
    small = sizes.max(initial=0) < 1 << 32
    storage = Extents(starts + offset, sizes.astype(np.uint32) if small else sizes)
    field = FieldIndex(spec, storage, block=default_block(data.shape[0] // count))
    return held.index_field(field, count, "asyncreader, encoded images in one blob")


def _index_runs(held: PackedHdf5, data: Stored, spec: SampleSpec) -> SetIndex:
    """Rows of numbers that differ in length."""
    _check_kind(held, data, data.values_dtype())
    offsets, rows, how = _offsets(held, data.shape[0]), data.shape[0], "asyncreader"
    if rows:
        asked = replace(held.fields, labels=None, places=(held.fields.data,))
        values = hdf5_data.index_rows(hdf5_data.Hdf5Set(held.file, held.h5, asked), data)
        one, how = values.first, f"{how}, {values.facts.layout}"
    else:  # all samples are empty
        empty = Rows(np.empty(data.shape, spec.dtype))
        one = FieldIndex(replace(spec, ragged=False), empty, held.file.where)
    return hdf5_data.index_ragged(held, one, rows, offsets, how)


def _offsets(held: PackedHdf5, rows: int) -> Int64:
    """Where the samples begin among ``rows`` bytes or values, (N + 1,): checked."""
    offsets = checked_table(held, fmt.OFFSETS, "<i8", held.meta.count + 1)
    if int(offsets[-1]) != rows:
        raise FormatError(
            "its offsets do not end where its data do",
            found=int(offsets[-1]),
            expected=rows,
            hint=AGAIN,
        )
    check_extents(offsets[:-1], np.diff(offsets), rows)
    return offsets


def _check_kind(held: PackedHdf5, data: Stored, dtype: np.dtype[Any]) -> None:
    """FormatError unless rows are what the description says."""
    meta = held.meta
    if (dtype, data.shape[1:]) != (np.dtype(meta.dtype), meta.shape):
        raise FormatError(
            "its data are not what its description says",
            found=f"samples of shape {data.shape[1:]}, {data.dtype}",
            expected=f"{meta.shape}, {meta.dtype}",
            hint=fmt.REPACK,
        )


# -- LMDB ------------------------------------------------------------------------------------------


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
        """The path of one sample."""
        value = self.tree and _tree(file).find(self.tree, fmt.record_key(index))
        return None if value is None else value.tobytes()

    def paths(self, file: ByteFile, count: int) -> Iterator[bytes | None]:
        """The paths of all samples, in one walk."""
        if self.tree is None:
            yield from [None] * count
            return
        tree = _tree(file)
        entries = tree.table(self.tree)
        for index in range(len(entries)):
            yield entries.value(index).tobytes()


def _description(tree: LmdbFile, named: dict[bytes, Tree]) -> fmt.Meta:
    raw_meta = tree.find(named[fmt.META.encode()], fmt.META_KEY)
    if raw_meta is None:
        raise FormatError("its description is missing", hint=fmt.REPACK)
    whole = fmt.Meta.from_json(raw_meta.tobytes(), tree.path)
    if tree.short():  # asyncreader writes sets to their last page
        raise tree.truncated()
    return whole


@dataclass(frozen=True, kw_only=True)
class _PackedLmdb(PackedSet):
    """A set in LMDB: see :class:`PackedSet`."""

    container = "LMDB"
    tree: LmdbFile
    named: Mapping[bytes, Tree]

    def stored_table(self, name: str, dtype: str, count: int) -> Array:
        database = self.named.get(name.encode())
        value = None if database is None else self.tree.find(database, fmt.TABLE_KEY)
        column = 8 * count
        columns = 1 if value is None or name != fmt.LABELS else max(1, value.size // column)
        if value is None or value.size != columns * column:
            raise FormatError(
                f"its {name} are missing or of the wrong size",
                found=None if value is None else f"{value.size} bytes",
                expected=f"{columns * column} bytes",
                hint=fmt.REPACK,
            )
        if self.file.io == "pread":  # tables are used later, when the mapping must not be
            value = value.copy()
        table: Array = value.view(dtype)
        return table.reshape(count, columns) if name == fmt.LABELS else table

    def names(self, table: str, count: int) -> PackedNames:
        return PackedNames(self.named.get(table.encode()))


def index_packed_lmdb(
    file: OpenFile, tree: LmdbFile, named: dict[bytes, Tree], fields: Request
) -> SetIndex:
    """The index of the field that ``fields`` name, of a set in LMDB."""
    whole = _description(tree, named)
    fields.check_labels_path("an LMDB of asyncreader")
    fields.check_names(whole.field_names, (fmt.LABELS,))
    other = None if fields.data == fmt.DATA else fields.data
    meta = whole if other is None else whole.field(other) or whole
    data = named.get(fields.data.encode())
    held = _PackedLmdb(
        file=file, fields=fields, whole=whole, meta=meta, other_field=other, tree=tree, named=named
    )
    check_count(held, 0 if data is None else data.entries)
    assert data is not None  # no set is empty
    entries = tree.table(data)
    entries.check_numbered()
    starts, sizes = entries.starts, entries.sizes
    check_extents(starts, sizes, file.size)
    spec = packed_rows(meta, other is not None, fields, file.path)
    if not spec.encoded:
        check_sizes(sizes, spec, fmt.REPACK)
    how, block = "asyncreader, one value a sample", default_block(int(sizes.mean()))
    if spec.ragged:
        return with_tables(held, _lmdb_runs(spec, starts, sizes, meta), meta.count, how)
    field = FieldIndex(spec, Extents(starts, sizes if spec.encoded else int(sizes[0])), block=block)
    return with_tables(held, field, meta.count, how)


def _lmdb_runs(spec: SampleSpec, starts: Int64, sizes: Array, meta: fmt.Meta) -> FieldIndex:
    """The field whose samples, which differ in length, lie there."""
    spec, offsets = replace(spec, ragged=False), np.zeros(meta.count + 1, np.int64)
    np.cumsum(sizes // spec.row_bytes, out=offsets[1:])
    fmt.check_digest(fmt.OFFSETS, offsets, meta)
    size = spec.row_bytes
    runs = Extents(RunStarts(starts + sizes, offsets[1:], size), size)
    values = FieldIndex(spec, runs, block=default_block(spec.row_bytes))
    return ragged_field(values, int(offsets[-1]), offsets)
