"""Plain twin of the kernel that inflates chunks."""

from __future__ import annotations

import zlib

import numpy as np

from ..array_types import Int64
from .twins import bytes_at


def inflate_chunks_numpy(
    functions: Int64,
    sources: Int64,
    sizes: Int64,
    targets: Int64,
    room: int,
    width: int,
    good: Int64,
) -> None:
    """Inflate zlib streams (RFC 1950), which are ``sizes`` bytes from ``sources`` on, into ``room``
    bytes each from ``targets`` on, whose items of ``width`` bytes HDF5's shuffle filter has taken
    apart. ``good``: 1 where a stream was whole, had so many bytes and the right checksum, else 0.

    ``functions``: the addresses of zlib's ``uncompress``, or of libdeflate's
    ``libdeflate_zlib_decompress``, ``libdeflate_alloc_decompressor`` and
    ``libdeflate_free_decompressor``, which the kernel calls and this twin does not need.
    """
    for i, (source, size, target) in enumerate(
        zip(sources.tolist(), sizes.tolist(), targets.tolist(), strict=True)
    ):
        step = zlib.decompressobj()
        try:
            found = np.frombuffer(step.decompress(bytes_at(source, size).data, room + 1), np.uint8)
        except zlib.error:
            found = np.empty(0, np.uint8)
        good[i] = step.eof and found.size == room
        if good[i]:
            whole, out = room // width * width, bytes_at(target, room)
            out[:whole].reshape(-1, width)[...] = found[:whole].reshape(width, -1).T
            out[whole:] = found[whole:]
