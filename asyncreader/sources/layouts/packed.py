"""What goes with the samples that asyncreader packed: found in one way in HDF5 and in LMDB."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from ...errors import FormatError
from ...formats import packed as fmt
from ...pixels.specs import SampleSpec
from ...system.array_types import Array
from ..base import FieldIndex, Names, SetFacts, copied_if_small
from ..bytestore import ByteFile
from ..fields import SetIndex
from ..request import Request
from ..splits import PackedSplits

#: Tables of which each field has its own.
_OF_A_FIELD: Final = (fmt.CHECKSUMS, fmt.OFFSETS, fmt.PATHS)


class PackedSet(Protocol):
    """An open set that asyncreader packed, in one of its containers.

    ``whole``: its description; ``other_field``: the field that is opened, None for the data;
    ``meta``: the description of that field.
    """

    @property
    def container(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def file(self) -> ByteFile: ...
    @property
    def fields(self) -> Request: ...
    @property
    def whole(self) -> fmt.Meta: ...
    @property
    def meta(self) -> fmt.Meta: ...
    @property
    def other_field(self) -> str | None: ...

    def stored_table(self, name: str, dtype: str, count: int) -> Array:
        """The table ``name`` of ``count`` rows: (count,), of labels (count, L). FormatError where
        it is missing, or of another shape or type."""

    def names(self, table: str, count: int) -> Names | None:
        """What the set says of its samples' keys, and of their paths in the table ``table``."""


def checked_table(held: PackedSet, name: str, dtype: str, count: int) -> Array:
    """A table of the field that is opened, which has its digest."""
    stored = fmt.table_of(held.other_field, name) if name in _OF_A_FIELD else name
    table = held.stored_table(stored, dtype, count)
    if name != fmt.CHECKSUMS:
        table = copied_if_small(table)
    fmt.check_digest(name, table, held.meta, held.path)
    return table


def check_sizes(sizes: Array, spec: SampleSpec, path: str, hint: str) -> None:
    """FormatError unless samples of these bytes are of the shape that ``spec`` says; those of
    different length are of whole values."""
    wrong = sizes % spec.row_bytes != 0 if spec.ragged else sizes != spec.row_bytes
    if wrong.any():
        record = int(np.argmax(wrong))
        raise FormatError(
            "a sample's size does not match its shape",
            path=path,
            index=record,
            found=f"{int(sizes[record])} bytes",
            expected=f"{spec.row_bytes} bytes for shape {spec.shape}",
            hint=hint,
        )


def with_tables(held: PackedSet, field: FieldIndex, count: int, how: str) -> SetIndex:
    """The index of a field of ``count`` samples, with all that was packed with them. ``how`` they
    are stored, in words."""
    whole, meta, labels = held.whole, held.meta, None
    asked = held.fields.labels is not None and held.fields.labels.strip("/") == fmt.LABELS
    if asked and held.fields.labels_path is None and meta.label_kind != "none":
        labels = checked_table(held, fmt.LABELS, meta.label_dtype, count)
    facts = replace(
        SetFacts.of(held.file, held.container, how, count),
        path=held.path,
        meta=whole,
        classes=whole.classes,
        fields=whole.fields,
    )
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
