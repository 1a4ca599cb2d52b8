"""A kernel that inflates many gzip chunks in one call, by libdeflate's functions."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types

from .base import instruction, kernel, offsets_type
from .memory import address_in, bytes_from, memcpy

_i8, _i4 = ir.IntType(64), ir.IntType(32)


def _called(builder, address, kind, *arguments):
    """Call the C function at ``address``; all arguments are as wide as a pointer."""
    function = ir.FunctionType(kind, [_i8] * len(arguments)).as_pointer()
    return builder.call(builder.inttoptr(address, function), arguments)


@instruction(types.uintp(types.uintp))
def _made(builder, function):
    return _called(builder, function, _i8)


@instruction(types.void(types.uintp, types.uintp))
def _freed(builder, function, decompressor):
    _called(builder, function, ir.VoidType(), decompressor)


@instruction(types.int32(*[types.uintp] * 7))
def _decompressed(builder, function, decompressor, come, size, go, room, found):
    """0 for a whole stream of ``room`` bytes or fewer: ``found`` is where their number is put."""
    return _called(builder, function, _i4, decompressor, come, size, go, room, found)


@njit
def _unshuffle(come, go, size, width):
    """Put bytes that lie in ``width`` planes together as items; what is left over stays."""
    count = size // width
    for first in range(0, count, 1024):
        last = min(first + 1024, count)
        for k in range(width):
            source, target = bytes_from(come + np.uintp(k * count)), bytes_from(go + np.uintp(k))
            for i in range(first, last):
                target[i * width] = source[i]
    memcpy(go + np.uintp(count * width), come + np.uintp(count * width), np.uintp(size % width))


@kernel(*[offsets_type] * 4, types.int64, types.int64, offsets_type)
def inflate_chunks(functions, sources, sizes, targets, room, width, found):
    """Inflate zlib streams (RFC 1950), which are ``sizes`` bytes from ``sources`` on, into at most
    ``room`` bytes each from ``targets`` on. ``found``: how many bytes; -1 of a stream that is not
    whole, or longer, or has the wrong checksum. Items of ``width`` bytes that HDF5's shuffle filter
    has taken apart are put together where there are ``room`` bytes.

    ``functions``: the addresses of libdeflate's ``zlib_decompress``, ``alloc_decompressor`` and
    ``free_decompressor``.
    """
    planes = np.empty(room if width > 1 else 1, np.uint8)
    length = np.empty(1, np.int64)
    decompressor = _made(np.uintp(functions[1]))
    for i in range(sources.size):
        target = np.uintp(targets[i])
        out = target if width == 1 else np.uintp(address_in(planes))
        failed = decompressor == 0 or (
            _decompressed(
                np.uintp(functions[0]),
                decompressor,
                np.uintp(sources[i]),
                np.uintp(sizes[i]),
                out,
                np.uintp(room),
                np.uintp(address_in(length)),
            )
            != 0
        )
        found[i] = -1 if failed else length[0]
        if width > 1 and found[i] == room:
            _unshuffle(out, target, room, width)
    if decompressor != 0:
        _freed(np.uintp(functions[2]), decompressor)
