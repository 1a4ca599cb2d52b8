"""Kernels that copy rows, from memory or from a file, or hash them."""

from __future__ import annotations

import numpy as np
from numba import types

from ..fill_tables import LEAST_HASHED
from .base import i8, kernel, memcpy, offsets_type, pread
from .hashing import copy_hashed, hashed_short


@kernel(types.uintp, offsets_type, i8, types.uintp, offsets_type)
def gather_rows(source, offsets, row_bytes, out, rows):
    """Copy ``row_bytes`` bytes at ``source + offsets[i]`` to row ``rows[i]`` of ``out``."""
    for i in range(offsets.size):
        memcpy(
            out + np.uintp(rows[i] * row_bytes),
            source + np.uintp(offsets[i]),
            np.uintp(row_bytes),
        )


@kernel(i8, offsets_type, i8, types.uintp, offsets_type, offsets_type, offsets_type)
def pread_rows(fd, offsets, row_bytes, out, rows, order, done):
    """Read the row at ``offsets[i]`` of a file to row ``rows[i]`` of ``out``, in ``order``.

    What is adjacent both in the file and in ``out`` is one call when it is compiled. ``done[0]``:
    how many were read whole, before the first that was not.
    """
    done[0] = 0
    i = 0
    while i < order.size:
        first = order[i]
        count = 1
        while i + count < order.size:
            following = order[i + count]
            if offsets[following] != offsets[first] + count * row_bytes:
                break
            if rows[following] != rows[first] + count:
                break
            count += 1
        target, size = out + np.uintp(rows[first] * row_bytes), count * row_bytes
        if pread(np.int32(fd), target, np.uintp(size), offsets[first]) != size:
            return
        i += count
        done[0] = i


@kernel(offsets_type, i8, types.uintp, types.uint64[::1])
def hash_rows(addresses, row_bytes, scratch, hashes):
    """XXH3-64 of the ``row_bytes`` bytes at each address; ``scratch``: so many bytes of memory."""
    sums = np.empty(8, np.uint64)
    for i in range(addresses.size):
        if row_bytes < LEAST_HASHED:
            hashes[i] = hashed_short(addresses[i], row_bytes)
        else:
            come = np.uintp(addresses[i])
            hashes[i] = copy_hashed(come, np.uintp(scratch), row_bytes, False, sums)
