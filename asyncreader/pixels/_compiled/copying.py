"""Kernels that copy and hash rows of memory and of files, copy boxes of arrays, and inflate."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from .base import inner, instruction, kernel, offsets_type
from .hashing import HASH_SCRATCH, copy_hashed
from .memory import address_in, bytes_from, load, memcpy, pread, store

# -- rows -----------------------------------------------------------------------------------------


@kernel(offsets_type, offsets_type, offsets_type)
def copy_runs(addresses, sizes, targets):
    """Copy ``sizes[i]`` bytes from ``addresses[i]`` to ``targets[i]``."""
    for i in range(addresses.size):
        memcpy(targets[i], addresses[i], sizes[i])


@kernel(*(types.int64, offsets_type, types.int64, types.int64), *[offsets_type] * 3)
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
        target, size = out + rows[first] * row_bytes, count * row_bytes
        if pread(np.int32(fd), target, size, offsets[first]) != size:
            return
        i += count
        done[0] = i


@kernel(offsets_type, types.int64, types.int64, types.uint64[::1])
def hash_rows(addresses, row_bytes, scratch, hashes):
    """XXH3-64 of the ``row_bytes`` bytes at each address; ``scratch``: so many bytes of memory."""
    sums = np.empty(HASH_SCRATCH, np.uint64)
    for i in range(addresses.size):
        hashes[i] = copy_hashed(addresses[i], scratch, row_bytes, False, sums)


# -- boxes of arrays, such as the parts of chunks that samples are made of ------------------------


@inner(inline="always")
def _steps(target, source, count, far, near, kind):
    for _ in range(count):
        store(target, load(source, kind))
        target, source = target + far, source + near


@inner
def _line(target, source, count, far, near, run):
    """Copy ``run`` bytes ``count`` times, ``far`` and ``near`` apart."""
    if run == 1:
        _steps(target, source, count, far, near, np.uint8)
    elif run == 2:
        _steps(target, source, count, far, near, np.uint16)
    elif run == 4:
        _steps(target, source, count, far, near, np.uint32)
    elif run == 8:
        _steps(target, source, count, far, near, np.uint64)
    else:
        for _ in range(count):
            memcpy(target, source, run)
            target, source = target + far, source + near


@inner
def _three_lines(target, one, two, three, count):
    """Copy ``count`` bytes of each of three lines, in turn."""
    to, first = bytes_from(target), bytes_from(one)
    second, third = bytes_from(two), bytes_from(three)
    for k in range(count):
        to[3 * k], to[3 * k + 1], to[3 * k + 2] = first[k], second[k], third[k]


@inner
def _together(sources, targets, extents, i):
    """Whether the boxes ``i``, ``i + 1`` and ``i + 2`` are one byte apart, and as large."""
    if i + 2 >= sources.size:
        return False
    for other in range(1, 3):
        if targets[i + other] != targets[i] + other:
            return False
        for axis in range(extents.shape[1]):
            if extents[i + other, axis] != extents[i, axis]:
                return False
    return True


@kernel(offsets_type, offsets_type, types.int64[:, ::1], offsets_type, offsets_type, types.int64)
def copy_boxes(sources, targets, extents, near, far, item):
    """Copy boxes of elements of ``item`` bytes. Box ``i`` has ``extents[i]`` (n, rank) elements,
    which lie ``near`` (rank,) bytes apart from ``sources[i]`` on; their copies lie ``far`` bytes
    apart from ``targets[i]`` on."""
    at = np.zeros(extents.shape[1], np.int64)
    i = 0
    while i < sources.size:
        run, last, lines = item, extents.shape[1] - 1, 1
        while last >= 0 and (extents[i, last] == 1 or (near[last] == run and far[last] == run)):
            run *= extents[i, last]
            last -= 1
        for axis in range(last):
            lines *= extents[i, axis]
        source, target, boxes = sources[i], targets[i], 1
        if last < 0:
            memcpy(target, source, run)
            i += 1
            continue
        count, step = extents[i, last], far[last]
        if (
            run == 1
            and near[last] == 1
            and far[last] == 3
            and _together(sources, targets, extents, i)
        ):
            boxes = 3
            second = sources[i + 1] - sources[i]
            third = sources[i + 2] - sources[i]
        at[:] = 0
        for _ in range(lines):
            if boxes == 3:
                _three_lines(target, source, source + second, source + third, count)
            else:
                _line(target, source, count, step, near[last], run)
            axis = last - 1
            while axis >= 0:
                at[axis] += 1
                source, target = source + near[axis], target + far[axis]
                if at[axis] < extents[i, axis]:
                    break
                source -= near[axis] * extents[i, axis]
                target -= far[axis] * extents[i, axis]
                at[axis] = 0
                axis -= 1
        i += boxes


# -- gzip chunks, by libdeflate's functions -------------------------------------------------------

_LONG, _INT = ir.IntType(64), ir.IntType(32)


def _called(builder, address, kind, *arguments):
    """Call the C function at ``address``; all arguments are as wide as a pointer."""
    function = ir.FunctionType(kind, [_LONG] * len(arguments)).as_pointer()
    return builder.call(builder.inttoptr(address, function), arguments)


@instruction(types.int64(types.int64))
def _made(builder, function):
    return _called(builder, function, _LONG)


@instruction(types.void(types.int64, types.int64))
def _freed(builder, function, decompressor):
    _called(builder, function, ir.VoidType(), decompressor)


@instruction(types.int32(*[types.int64] * 7))
def _decompressed(builder, function, decompressor, source, size, target, room, found):
    """0 for a whole stream of ``room`` bytes or fewer: ``found`` is where their number is put."""
    return _called(builder, function, _INT, decompressor, source, size, target, room, found)


@inner
def _unshuffle(source, target, size, width):
    """Put bytes that lie in ``width`` planes together as items; what is left over stays."""
    count = size // width
    for first in range(0, count, 1024):
        last = min(first + 1024, count)
        for k in range(width):
            src, dst = bytes_from(source + k * count), bytes_from(target + k)
            for i in range(first, last):
                dst[i * width] = src[i]
    memcpy(target + count * width, source + count * width, size % width)


@kernel(*[offsets_type] * 4, types.int64, types.int64, offsets_type)
def inflate_chunks(functions, sources, sizes, targets, room, width, found):
    """Inflate zlib streams (RFC 1950), which are ``sizes`` bytes from ``sources`` on, into at most
    ``room`` bytes each from ``targets`` on. ``found``: how many bytes; -1 of a stream that is not
    whole, or longer, or has the wrong checksum. Items of ``width`` bytes that HDF5's shuffle filter
    has taken apart are put together where there are ``room`` bytes.

    ``functions``: the addresses of libdeflate's ``zlib_decompress``, ``alloc_decompressor`` and
    ``free_decompressor``.
    """
    inflate, allocate, free = functions[0], functions[1], functions[2]
    planes = np.empty(room if width > 1 else 1, np.uint8)
    length = np.empty(1, np.int64)
    decompressor = _made(allocate)
    for i in range(sources.size):
        target, size, where = targets[i], sizes[i], address_in(length)
        out = target if width == 1 else address_in(planes)
        failed = decompressor == 0 or (
            _decompressed(inflate, decompressor, sources[i], size, out, room, where) != 0
        )
        found[i] = -1 if failed else length[0]
        if width > 1 and found[i] == room:
            _unshuffle(out, target, room, width)
    if decompressor != 0:
        _freed(free, decompressor)
