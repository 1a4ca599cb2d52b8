"""A plain numpy version of the kernel of sparse rows, of which no library is the judge.

It takes the arguments of the kernel of its name: see asyncreader/pixels/_compiled.
"""

from __future__ import annotations

import numpy as np

from asyncreader.system.array_types import Array, Int64, UInt8


def add_rows_f4_numpy(
    columns: Int64,
    values: Array,
    ends: Int64,
    first: UInt8,
    lookup: Int64,
    rows: Int64,
    width: int,
    bound: int,
    out: Array,
    bad: Int64,
) -> None:
    """Add values to rows of ``width`` in ``out``, each at its column of 0 .. ``bound - 1``.

    Run ``i`` ends at ``ends[i]`` of the values and goes to ``rows[i]``, which is zeroed before
    where ``first[i]`` is set. ``lookup``: where each column stands in a row, -1 for one that is
    not served; empty: where it is. ``bad[i]``: 0; ``k + 1`` where the column of value ``k`` is out
    of range; ``-k - 1`` where value ``k`` makes a sum infinite. What follows in the run is then
    left out.
    """
    begin = 0
    for i, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
        line = out[row * width : (row + 1) * width]
        if first[i]:
            line[:] = 0
        wrong = np.flatnonzero((columns[begin:end] < 0) | (columns[begin:end] >= bound))
        bad[i] = begin + int(wrong[0]) + 1 if wrong.size else 0
        stop = begin + int(wrong[0]) if wrong.size else end
        at, added = columns[begin:stop], values[begin:stop]
        number = np.arange(begin, stop)
        if lookup.size:
            at = lookup[at]
            at, added, number = at[at >= 0], added[at >= 0], number[at >= 0]
        before = line.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(line, at, added)
            if line.dtype.kind == "f" and not np.isfinite(line).all():
                line[:] = before
                bad[i] = _add_one_by_one(line, at, added, number) or bad[i]
        begin = end


def _add_one_by_one(line: Array, at: Int64, added: Array, number: Int64) -> int:
    column: int
    k: int
    for column, value, k in zip(at.tolist(), added, number.tolist(), strict=True):
        total = line[column] + value
        if not np.isfinite(total) and np.isfinite(value) and np.isfinite(line[column]):
            return -k - 1
        line[column] = total
    return 0
