"""Samples of different length in HDF5: values, and a data set that says where samples begin."""

from __future__ import annotations

from typing import Final

from ...errors import FormatError
from ...system.array_types import Array
from ...system.late import h5py
from ..base import FieldIndex, copied_if_small
from ..fields import SetIndex
from ..hdf5.checks import check_bomb
from ..ragged import candidates, fitting, is_table, ragged_field
from .hdf5_set import Hdf5Set

#: Bytes of an offset in memory.
_OFFSET_BYTES: Final = 8


def offsets_of(found: Hdf5Set, name: str, shape: tuple[int, ...]) -> tuple[str, Array] | None:
    """The name of the table that says where the samples of the data set ``name`` begin among its
    rows, and what it says, (N + 1,); None where each row is a sample. FormatError where the table
    that should say it does not."""
    fields = found.fields
    asked = fields.own_offsets
    episodes = fields.windowed or fields.episodes is not None
    if asked is False or (asked is None and episodes):
        return None
    if not shape or fields.lead > 1:
        return None
    if asked is not None:
        offsets = _fitting(found, asked, name, shape[0], None, True)
        return None if offsets is None else (asked, offsets)
    group, _, own = name.rpartition("/")
    for last, lengths in candidates(own).items():
        table = f"{group}/{last}" if group else last
        if table == name or (not group and table not in found.h5.names):
            continue
        offsets = _fitting(found, table, name, shape[0], lengths, False)
        if offsets is not None:
            return table, offsets
    return None


def _fitting(
    found: Hdf5Set, table: str, name: str, rows: int, lengths: bool | None, asked: bool
) -> Array | None:
    """What a data set says of the ``rows`` of ``name``: see :func:`fitting`."""
    if not asked and not _may_be_table(found, table):
        return None
    data = found.dataset(table)
    if not is_table(tuple(data.shape), data.dtype):
        raise found.refuse(
            f"{table!r} does not say where samples begin",
            found=f"shape {data.shape}, {data.dtype}",
            expected="whole numbers (N + 1,), or (N,) lengths",
        )
    # lengths of small numbers take more memory as offsets
    check_bomb(data.shape[0] * _OFFSET_BYTES, found.file.size, table, found.path)
    return fitting(table, name, rows, copied_if_small(data.values()), found.path, lengths, asked)


def _may_be_table(found: Hdf5Set, table: str) -> bool:
    """Whether a data set that was not asked for is whole numbers."""
    try:
        data = found.h5.reach(table)
    except FormatError:  # a link out of the file
        return False
    if not isinstance(data, h5py.h5d.DatasetID) or data.get_type().get_class() != h5py.h5t.INTEGER:
        return False
    return len(data.shape) == 1 and data.shape[0] > 0


def index_ragged(
    found: Hdf5Set,
    values: FieldIndex,
    count: int,
    offsets: Array,
    how: str,
    table: str | None = None,
) -> SetIndex:
    """The index of the samples whose ``count`` values are those of ``values``; ``table``: see
    :func:`ragged_field`."""
    field = ragged_field(values, count, offsets, table)
    return found.index_field(field, offsets.size - 1, f"{how}, rows of different length")
