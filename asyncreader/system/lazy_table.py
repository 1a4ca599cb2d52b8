"""A table that is read when it is asked for: in place of an array, with a row for each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from .array_types import Array, Int64


class LazyTable:
    """In place of an array of ``shape`` (N, ...) and ``dtype``.

    ``read``: gives the rows of record numbers (n,), int64, as an array (n, ...); ``tables``: gives
    the arrays that hold all rows in sequence, where they can be in memory.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        read: Callable[[Int64], Array],
        tables: Callable[[], list[Array]] | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._read = read
        self._tables = tables

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, rows: Int64 | slice | int) -> Array:
        """The rows of these numbers, (n, ...); of one number its row."""
        if isinstance(rows, slice):
            return self._read(np.arange(*rows.indices(len(self)), dtype=np.int64))
        if isinstance(rows, int | np.integer):
            row: Array = self._read(np.array([rows], np.int64))[0]
            return row
        return self._read(rows)


def as_array(
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    read: Callable[[Int64], Array],
    tables: Callable[[], list[Array]] | None = None,
) -> Array:
    """A :class:`LazyTable`, for those who take it for an array."""
    return cast(Array, LazyTable(shape, dtype, read, tables))


def tables_of(table: Array) -> list[Array] | None:
    """The arrays in memory that hold all rows of a table in sequence; None where there are none."""
    given: object = table
    if not isinstance(given, LazyTable):
        return [table]
    return None if given._tables is None else given._tables()
