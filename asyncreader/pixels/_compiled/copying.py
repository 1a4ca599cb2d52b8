"""Kernels that copy rows: from memory, or from a file."""

from __future__ import annotations

import numpy as np
from numba import types

from .base import i8, kernel, memcpy, offsets_type


@kernel(types.uintp, offsets_type, i8, types.uintp, offsets_type)
def gather_rows(source, offsets, row_bytes, out, rows):  # type: ignore[no-untyped-def]
    for i in range(offsets.size):
        memcpy(
            out + np.uintp(rows[i] * row_bytes),
            source + np.uintp(offsets[i]),
            np.uintp(row_bytes),
        )


#: The system's own: bytes read, or -1.
_pread = types.ExternalFunction(
    "pread", types.int64(types.int32, types.uintp, types.uintp, types.int64)
)


@kernel(i8, offsets_type, offsets_type, offsets_type, offsets_type)
def pread_runs(fd, offsets, sizes, targets, done):  # type: ignore[no-untyped-def]
    done[0] = 0
    for i in range(offsets.size):
        found = _pread(np.int32(fd), np.uintp(targets[i]), np.uintp(sizes[i]), offsets[i])
        if found != sizes[i]:
            return
        done[0] += 1
