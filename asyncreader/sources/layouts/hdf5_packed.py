"""Sets that asyncreader packed in HDF5: rows as they are, images in one blob, runs of values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...formats import packed as fmt
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Int64
from ..arrays import Rows
from ..base import FieldIndex, check_extents, default_block, packed_rows
from ..extents import Extents
from ..fields import SetIndex
from ..hdf5.checks import check_inside
from ..hdf5.file import TablePaths
from ..hdf5.stored import Stored
from .hdf5_data import check_samples_of, index_data, index_rows, index_volumes, stored_rows
from .hdf5_ragged import index_ragged
from .hdf5_set import AGAIN, Hdf5Set
from .packed import checked_table, with_tables


@dataclass(frozen=True, kw_only=True)
class PackedHdf5(Hdf5Set):
    """An open set that asyncreader packed: see packed.PackedSet."""

    container: ClassVar[str] = "HDF5"
    whole: fmt.Meta
    meta: fmt.Meta
    other_field: str | None

    def dataset(self, name: str, records: bool = False) -> Stored:
        found = self.h5.find(name, records)
        if found is None:
            raise self.refuse(f"its {name} are missing", hint=fmt.REPACK)
        return found

    def stored_table(self, name: str, dtype: str, count: int) -> Array:
        """See packed.PackedSet."""
        table = self.dataset(name).values()
        axes = 2 if name == fmt.LABELS else 1
        if (table.dtype, table.ndim, table.shape[0]) != (np.dtype(dtype), axes, count):
            raise self.refuse(
                f"its {name} have the wrong shape or type",
                found=f"shape {table.shape}, {table.dtype}",
                expected=f"({count}{', L' if axes == 2 else ','}), {dtype}",
                hint=AGAIN,
            )
        return table

    def names(self, table: str, count: int) -> TablePaths | None:
        """See packed.PackedSet."""
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


def index_packed(found: Hdf5Set, whole: fmt.Meta) -> SetIndex:
    """The index of the field that a set's ``fields`` name. ``whole``: what the set says of itself.

    A data set of which that says nothing is its owner's, and served as of any other file.
    """
    name, fields = found.fields.data.strip("/"), found.fields
    other = None if name == fmt.DATA else name
    meta = whole if other is None else whole.field(other)
    if meta is None:
        index = index_data(found)
        facts = replace(index.facts, classes=whole.classes, fields=whole.fields)
        return replace(index, facts=facts)
    held = PackedHdf5(found.file, found.h5, fields, whole=whole, meta=meta, other_field=other)
    data = held.dataset(fields.data, records=True)
    spec = packed_rows(meta, other is not None, fields, held.path)
    if meta.encoding == fmt.RAGGED:
        return _index_runs(held, data, spec)
    return _index_raw(held, data, spec) if meta.encoding == "raw" else _index_blob(held, data, spec)


def _index_raw(held: PackedHdf5, data: Stored, spec: SampleSpec) -> SetIndex:
    dtype = data.values_dtype()
    check_samples_of(held, data)
    if held.fields.cut is not None:
        return index_volumes(held, data, dtype)
    count = held.rows_in(data)
    if count != held.meta.count:
        raise held.refuse(
            "the number of samples is not what the description says",
            found=count,
            expected=held.meta.count,
            hint=fmt.REPACK,
        )
    _check_kind(held, data, dtype)
    field, how = stored_rows(held, data, 0, spec, compare=False)  # they have checksums
    if data.chunks is None:
        how = f"asyncreader, contiguous {'pixels' if held.meta.channels else 'rows'}"
    return held.index_field(field, count, how)


def _index_blob(held: PackedHdf5, data: Stored, spec: SampleSpec) -> SetIndex:
    offset, count = data.id.get_offset(), held.meta.count
    if data.ndim != 1 or data.dtype != np.uint8 or offset is None:
        raise held.refuse("its data are not the blob it declares", hint=AGAIN)
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
        values = index_rows(Hdf5Set(held.file, held.h5, asked), data)
        one, how = values.first, f"{how}, {values.facts.layout}"
    else:  # all samples are empty
        empty = Rows(np.empty(data.shape, spec.dtype))
        one = FieldIndex(replace(spec, ragged=False), empty, held.file.where)
    return index_ragged(held, one, rows, offsets, how)


def _offsets(held: PackedHdf5, rows: int) -> Int64:
    """Where the samples begin among ``rows`` bytes or values, (N + 1,): checked."""
    offsets = checked_table(held, fmt.OFFSETS, "<i8", held.meta.count + 1)
    if int(offsets[-1]) != rows:
        raise held.refuse(
            "its offsets do not end where its data do",
            found=int(offsets[-1]),
            expected=rows,
            hint=AGAIN,
        )
    check_extents(offsets[:-1], np.diff(offsets), rows, held.path)
    return offsets


def _check_kind(held: PackedHdf5, data: Stored, dtype: np.dtype[Any]) -> None:
    """FormatError unless rows are what the description says."""
    meta = held.meta
    if (dtype, data.shape[1:]) != (np.dtype(meta.dtype), meta.shape):
        raise held.refuse(
            "its data are not what its description says",
            found=f"samples of shape {data.shape[1:]}, {data.dtype}",
            expected=f"{meta.shape}, {meta.dtype}",
            hint=fmt.REPACK,
        )
