"""Kernels of sparse rows: numbers added to dense rows by their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from .base import apart, kernel, offsets_type


def _adder(name: str, number: Any) -> Any:
    """The kernel ``name``, for values of one type."""

    @kernel(
        *(offsets_type, number[::1], offsets_type, types.uint8[::1]),
        # the table of columns, which worker processes share
        types.Array(types.int64, 1, "C", readonly=True),
        *(offsets_type, types.int64, types.int64, number[::1], offsets_type),
        name=name,
    )
    @apart(name)
    def scatter(columns, values, ends, first, lookup, rows, width, bound, out, bad):
        """Add values to rows of ``width`` in ``out``, each at its column of 0 .. ``bound - 1``.

        Run ``i`` ends at ``ends[i]`` of the values and goes to ``rows[i]``, which is zeroed before
        where ``first[i]`` is set. ``lookup``: where each column stands in a row, -1 for one that is
        not served; empty: where it is. ``bad[i]``: 0; ``k + 1`` where the column of value ``k`` is
        out of range; ``-k - 1`` where value ``k`` makes a sum infinite. What follows in the run is
        then left out.
        """
        begin = 0
        for i in range(rows.size):
            row = rows[i] * width
            if first[i] != 0:
                out[row : row + width] = 0
            bad[i] = 0
            for k in range(begin, ends[i]):
                column = columns[k]
                if column < 0 or column >= bound:
                    bad[i] = k + 1
                    break
                if lookup.size != 0:
                    column = lookup[column]
                    if column < 0:
                        continue
                value, before = values[k], out[row + column]
                total = before + value
                if not np.isfinite(total) and np.isfinite(value) and np.isfinite(before):
                    bad[i] = -k - 1
                    break
                out[row + column] = total
            begin = ends[i]

    return scatter


add_rows_f4 = _adder("add_rows_f4", types.float32)
add_rows_f8 = _adder("add_rows_f8", types.float64)
add_rows_i8 = _adder("add_rows_i8", types.int64)
