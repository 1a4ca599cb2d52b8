"""Fuel's H5PYDataset: its splits, axis labels and shapes of samples.

Splits are rows of the root attribute ``split`` (split, source, start, stop, indices, available,
comment). A source of variable shape is (N,) of variable length with a dimension scale ``shapes``
(N, axes) and one ``shape_labels``.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from ...errors import FormatError
from ...system.array_types import Array, Int64
from ...system.late import h5py
from ..hdf5.checks import BOMB_BYTES, attribute
from ..hdf5.file import Hdf5
from ..hdf5.stored import Stored

#: Columns of ``split``; ``indices`` came later.
_FIELDS: Final = {"split", "source", "start", "stop", "available"}
#: At most so many rows of ``split`` are read.
_MOST: Final = 4096


def split_table(h5: Hdf5) -> Array | None:
    """Fuel's attribute ``split``; None where a file has none."""
    # text of variable length is not what Fuel writes, and not read (see shapes)
    # one that Fuel writes has a row of some hundred bytes for each split and source
    table = attribute(h5.file, "split", BOMB_BYTES, compound=True)
    if not isinstance(table, np.ndarray) or table.ndim != 1:
        return None
    fields = table.dtype.fields or {}
    return table if set(fields) >= _FIELDS and fields["split"][0].kind == "S" else None


def read_splits(h5: Hdf5, data: str, labels: str | None, count: int) -> dict[str, slice | Int64]:
    """Rows of each split that ``data`` and ``labels`` (None: not needed) both have.

    A split that goes beyond ``count`` rows is left out: there are no labels for it.
    """
    table = split_table(h5)
    if table is None:
        return {}
    if table.size > _MOST:
        raise FormatError("its table of splits is too long", found=f"{table.size} rows")
    found: dict[str, dict[str, slice | Int64]] = {}
    for row, address in zip(table, _addresses(h5, table), strict=True):
        source = _text(row["source"])
        if not row["available"] or source not in (data, labels):
            continue
        found.setdefault(_text(row["split"]), {})[source] = _rows(h5, row, address, count)
    splits: dict[str, slice | Int64] = {}
    for name, sources in found.items():
        rows = sources.get(data)
        if rows is None or (labels is not None and not _same(rows, sources.get(labels))):
            continue
        if _end(rows) <= count:
            splits[name] = rows
    return splits


def _addresses(h5: Hdf5, table: Array) -> list[int]:
    """Where in the file the references in ``indices`` lead, 0 of none: h5py does not say it."""
    if "indices" not in (table.dtype.names or ()):
        return [0] * table.size
    stored = h5py.h5a.open(h5.file.id, b"split")
    kind = stored.get_type()
    rows = np.empty(table.size, (np.void, kind.get_size()))
    stored.read(rows, mtype=kind)  # as the file's own type: nothing is converted
    at = kind.get_member_offset(kind.get_member_index(b"indices"))
    return [int.from_bytes(row.tobytes()[at : at + 8], "little") for row in rows]


def _rows(h5: Hdf5, row: Any, address: int, most: int) -> slice | Int64:
    name = f"split {_text(row['split'])!r} of {_text(row['source'])!r}"
    if address:
        indices = h5.referenced(row["indices"], address, f"indices of {name}")
        if indices is None:
            raise FormatError(f"what is named as the indices of {name} is not a dataset")
        # compared with the number of records before reading: a small file may declare terabytes
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or indices.shape[0] > most:
            raise FormatError(
                f"the indices of {name} are not a list of records",
                found=f"{indices.shape} {indices.dtype}",
            )
        held = indices.read()
        records: Int64 = np.sort(held.astype(np.int64))
        if records.size == 0:
            return slice(0, 0)
        if int(records[0]) < 0:
            raise FormatError(f"{name} names records below 0", found=int(records[0]))
        return records
    start, stop = int(row["start"]), int(row["stop"])
    if not 0 <= start <= stop:
        raise FormatError(f"{name} is not a valid range", found=f"{start} to {stop}")
    return slice(start, stop)


def _end(rows: slice | Int64) -> int:
    return int(rows.stop if isinstance(rows, slice) else rows[-1] + 1)


def _same(one: slice | Int64, other: slice | Int64 | None) -> bool:
    if isinstance(one, slice) or isinstance(other, slice) or other is None:
        return isinstance(one, slice) and one == other
    return np.array_equal(one, other)


def axis_order(shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """1-based (number, height, width, channel) of 4-D data that look like NCHW, Fuel's order.

    Fuel's axis labels are not read: in a damaged file reading them makes HDF5 hang.
    """
    return (1, 3, 4, 2) if len(shape) == 4 and shape[1] <= 4 < shape[3] else None


def shapes(h5: Hdf5, name: str, count: int) -> tuple[Int64, str | None] | None:
    """(shapes (N, axes), letters of the axes or None) of a source of variable shape, or None.

    The scales are found by their own names: the list that attaches them to the source has variable
    length, and HDF5 2.0 never returns from reading a damaged one.
    """
    table = _scale(h5, f"{name}_shapes", b"shapes")
    if table is None:
        return None
    fits = table.ndim == 2 and table.shape[0] == count and table.shape[1] <= 8
    if not fits or table.dtype.kind not in "iu":
        raise FormatError(
            "its table of shapes has the wrong shape",
            found=f"{table.shape} {table.dtype}",
            expected=f"({count}, axes) whole numbers",
        )
    sizes: Int64 = table.read().astype(np.int64)
    letters = None
    if sizes.shape[1] == 3:
        letters = "CHW"  # what Fuel's own converters write
        labels = _scale(h5, f"{name}_shape_labels", b"shape_labels")
        if labels is not None and labels.dtype.kind == "S" and labels.shape == (3,):
            words = labels.read()
            letters = "".join(_text(word)[:1].upper() for word in words)
        if sorted(letters) != ["C", "H", "W"]:
            letters = None
    return sizes, letters


def _scale(h5: Hdf5, usual: str, label: bytes) -> Stored | None:
    """The data set that calls itself the dimension scale ``label``: by its usual name, else the
    only one of the root group."""
    found = []
    for name in (usual, *itertools.islice(h5.file, _MOST)):
        item = h5.member(name)
        said = None if item is None else attribute(item.data, "NAME")
        if item is not None and isinstance(said, bytes) and said.rstrip(b"\0") == label:
            if name == usual:
                return item
            found.append(item)
    return found[0] if len(found) == 1 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "backslashreplace")
