"""A kernel that inflates many gzip chunks in one call, by a C library's functions."""

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


@instruction(types.int32(*[types.uintp] * 6))
def _libdeflate(builder, function, decompressor, come, size, go, room):
    """0 for a stream of ``room`` bytes: fewer are an error where they cannot be told."""
    nowhere = ir.Constant(_i8, 0)
    return _called(builder, function, _i4, decompressor, come, size, go, room, nowhere)


@instruction(types.int32(*[types.uintp] * 5))
def _zlib(builder, function, go, room, come, size):
    """0 for a whole stream; ``room``: where the target's bytes are, and then those of it."""
    return _called(builder, function, _i4, go, room, come, size)


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
def inflate_chunks(functions, sources, sizes, targets, room, width, good):
    """Inflate zlib streams (RFC 1950), which are ``sizes`` bytes from ``sources`` on, into ``room``
    bytes each from ``targets`` on, whose items of ``width`` bytes HDF5's shuffle filter has taken
    apart. ``good``: 1 where a stream was whole, had so many bytes and the right checksum, else 0.

    ``functions``: the addresses of zlib's ``uncompress``, or of libdeflate's
    ``libdeflate_zlib_decompress``, ``libdeflate_alloc_decompressor`` and
    ``libdeflate_free_decompressor``.
    """
    decompress = np.uintp(functions[0])
    planes = np.empty(room if width > 1 else 1, np.uint8)
    length = np.empty(1, np.int64)
    decompressor = np.uintp(0)
    if functions.size > 1:
        decompressor = _made(np.uintp(functions[1]))
    for i in range(sources.size):
        target = np.uintp(targets[i])
        out = target if width == 1 else np.uintp(address_in(planes))
        source, size = np.uintp(sources[i]), np.uintp(sizes[i])
        if functions.size > 1:
            failed = decompressor == 0 or (
                _libdeflate(decompress, decompressor, source, size, out, np.uintp(room)) != 0
            )
        else:
            length[0] = room
            found = _zlib(decompress, out, np.uintp(address_in(length)), source, size)
            failed = found != 0 or length[0] != room
        good[i] = 0 if failed else 1
        if width > 1 and not failed:
            _unshuffle(out, target, room, width)
    if decompressor != 0:
        _freed(np.uintp(functions[2]), decompressor)
