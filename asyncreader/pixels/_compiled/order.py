"""The kernel of the order: a keyed permutation of many numbers."""

from __future__ import annotations

import numpy as np
from numba import types

from .base import i8, kernel, mixed, offsets_type

#: Numbers that feistel_rows takes through its rounds together.
_FEISTEL = 256


@kernel(offsets_type, i8, i8, i8, types.uint64[::1], offsets_type)
def feistel_rows(positions, count, left, right, keys, out):  # type: ignore[no-untyped-def]
    lmask = (np.uint64(1) << np.uint64(left)) - np.uint64(1)
    rmask = (np.uint64(1) << np.uint64(right)) - np.uint64(1)
    shift = np.uint64(right)
    limit = np.uint64(count)
    # Many at a time, so that LLVM makes vector code of the rounds: those that have to walk on
    # close ranks and go through them again.
    hi, lo = np.empty(_FEISTEL, np.uint64), np.empty(_FEISTEL, np.uint64)
    row = np.empty(_FEISTEL, np.int64)
    for first in range(0, positions.size, _FEISTEL):
        left_over = min(_FEISTEL, positions.size - first)
        for i in range(left_over):
            hi[i] = np.uint64(positions[first + i]) >> shift
            lo[i] = np.uint64(positions[first + i]) & rmask
            row[i] = first + i
        while left_over:
            for r in range(keys.size):
                key = keys[r]
                if r % 2 == 0:
                    for i in range(left_over):
                        hi[i] ^= mixed(lo[i] + key) & lmask
                else:
                    for i in range(left_over):
                        lo[i] ^= mixed(hi[i] + key) & rmask
            kept = 0
            for i in range(left_over):
                x = (hi[i] << shift) | lo[i]
                if x < limit:
                    out[row[i]] = np.int64(x)
                else:
                    hi[kept], lo[kept], row[kept] = hi[i], lo[i], row[i]
                    kept += 1
            left_over = kept
