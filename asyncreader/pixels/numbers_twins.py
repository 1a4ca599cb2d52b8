"""The plain numpy twin of the kernel that casts and normalises numbers of rows."""

from __future__ import annotations

import numpy as np

from ..array_types import Array, Float64, Int64
from .twins import bytes_at

#: Columns of a table of numbers, a line for each run of them in an element of a row. OFFSET: bytes
#: from the element's start; SIZE, KIND: bytes of a number, and numpy's letter of its kind;
#: SWAPPED: whether its bytes are in the other order; COUNT: numbers that follow each other;
#: COPIED: they are served as they are.
OFFSET, SIZE, KIND, SWAPPED, COUNT, COPIED = range(6)
COLUMNS = 6


def cast_numbers_numpy(
    addresses: Int64,
    each: int,
    item: int,
    table: Int64,
    kind: int,
    size: int,
    affine: bool,
    a: Float64,
    b: Float64,
    out: int,
    rows: Int64,
    row_bytes: int,
    bad: Int64,
) -> None:
    """Write the numbers of stored rows at ``addresses`` to ``rows`` of memory at ``out``.

    A row is ``each`` elements of ``item`` bytes, and ``table`` says which of their numbers are
    served. They become numbers of ``kind`` and ``size``, each times ``a`` plus ``b`` where
    ``affine``; ``a`` and ``b`` are repeated along a row. A number that this dtype cannot hold is
    noted in ``bad``: its row in ``addresses`` and its offset there; the first such is kept.
    """
    dtype = np.dtype(f"{chr(kind)}{size}")
    stored = [bytes_at(at, each * item).reshape(each, item) for at in addresses.tolist()]
    elements = np.stack(stored) if stored else np.zeros((0, each, item), np.uint8)
    made = np.empty((addresses.size, each, int(table[:, COUNT].sum())), dtype)
    wrong = np.zeros(made.shape, np.bool_)
    offsets: list[int] = []
    first = 0
    for line in table.tolist():
        end = line[OFFSET] + line[SIZE] * line[COUNT]
        own = np.dtype(f"{chr(line[KIND])}{line[SIZE]}")
        own = own.newbyteorder("S") if line[SWAPPED] else own
        values = np.ascontiguousarray(elements[:, :, line[OFFSET] : end]).view(own)
        into = slice(first, first := first + line[COUNT])
        offsets.extend(range(line[OFFSET], end, line[SIZE]))
        if line[COPIED]:
            made[:, :, into] = values
            continue
        places = (np.arange(each)[:, None] * made.shape[2] + np.arange(into.start, first)) % a.size
        made[:, :, into], wrong[:, :, into] = _cast(
            values, dtype, (a[places], b[places]) if affine else None
        )
    for row, one in zip(rows.tolist(), made, strict=True):
        bytes_at(out + row * row_bytes, one.nbytes)[:] = one.reshape(-1).view(np.uint8)
    if wrong.any() and bad[0] < 0:
        i, e, k = np.argwhere(wrong)[0].tolist()
        bad[:] = i, e * item + offsets[k]


def _cast(
    values: Array, dtype: np.dtype[np.generic], affine: tuple[Float64, Float64] | None
) -> tuple[Array, Array]:
    """``values`` as ``dtype``, and which of them it cannot hold."""
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype.kind != "f":
            made = values.astype(dtype)
            same = made == values
            if {values.dtype.kind, dtype.kind} == {"i", "u"}:  # compared as float64, say
                same &= (made < 0) == (values < 0)
            if values.dtype.kind == "f" and dtype.itemsize == 8:
                # the greatest whole number is no float: the next one would compare as equal
                same &= values < 2.0 ** (64 if dtype.kind == "u" else 63)
            return made, ~same
        work = np.dtype(np.float64 if dtype.itemsize > 4 else np.float32)
        narrow = values.astype(work) if affine is not None or dtype.itemsize > 2 else values
        wrong = ~np.isfinite(values.astype(work)) & np.isfinite(values)
        if affine is not None:
            narrow = narrow * affine[0].astype(work) + affine[1].astype(work)
        made = narrow.astype(dtype)
        if dtype.itemsize == 2:
            wrong |= ~np.isfinite(made) & np.isfinite(narrow)
        return made, wrong
