"""Kernels that copy rows, from memory or from a file, or hash them."""

from __future__ import annotations

import numpy as np
from numba import types

from .base import kernel, offsets_type
from .hashing import copy_hashed
from .memory import memcpy, pread


@kernel(offsets_type, offsets_type, offsets_type)
def copy_runs(addresses, sizes, targets):
    """Copy ``sizes[i]`` bytes from ``addresses[i]`` to ``targets[i]``."""
    for i in range(addresses.size):
        memcpy(np.uintp(targets[i]), np.uintp(addresses[i]), np.uintp(sizes[i]))


@kernel(*(types.int64, offsets_type, types.int64, types.uintp), *[offsets_type] * 3)
def pread_rows(fd, offsets, row_bytes, out, rows, order, done):
    """Read the row at ``offsets[i]`` of a file to row ``rows[i]`` of ``out``, in ``order``.

    What is adjacent both in the file and in ``out`` is one call. ``done[0]``: how many were read
    whole, before the first that was not.
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


@kernel(offsets_type, types.int64, types.uintp, types.uint64[::1])
def hash_rows(addresses, row_bytes, scratch, hashes):
    """XXH3-64 of the ``row_bytes`` bytes at each address; ``scratch``: so many bytes of memory."""
    sums = np.empty(8, np.uint64)
    for i in range(addresses.size):
        hashes[i] = copy_hashed(np.uintp(addresses[i]), scratch, row_bytes, False, sums)
