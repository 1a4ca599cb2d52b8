"""Kernels that copy and hash rows of memory and of files, copy boxes of arrays, and inflate."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from .base import instruction, kernel, offsets_type
from .hashing import copy_hashed
from .memory import address_in, bytes_from, load, load_any, memcpy, pread, store, store_any

# -- rows -----------------------------------------------------------------------------------------


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


# -- boxes, such as the parts of chunks that samples are made of ----------------------------------


#: Bytes of each of three lines that are woven in one go.
_WOVEN = 16


@instruction(types.void(types.uintp, types.uintp, types.uintp, types.uintp))
def _weave(builder, out, first, second, third):
    """Write 16 times a byte of each of three addresses, in turn."""
    vector, number = ir.VectorType(ir.IntType(8), _WOVEN), ir.IntType(32)

    def shuffled(a: Any, b: Any, lanes: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(number, len(lanes)), lanes)
        return builder.shuffle_vector(a, b, mask)

    one, two, three = (load_any(builder, address, vector) for address in (first, second, third))
    each, wide = list(range(_WOVEN)), 2 * _WOVEN
    pair = shuffled(one, two, [*each, *(_WOVEN + k for k in each)])
    other = shuffled(three, three, [*each, *each])
    # lanes of the pair, then those of the third
    lanes = [lane for k in each for lane in (k, _WOVEN + k, wide + k)]
    store_any(builder, shuffled(pair, other, lanes), out)


@njit(inline="always")
def _steps(go, come, count, far, near, kind):
    for _ in range(count):
        store(go, load(come, kind))
        go, come = go + far, come + near


@njit
def _line(go, come, count, far, near, run):
    """Copy ``run`` bytes ``count`` times, ``far`` and ``near`` apart."""
    if run == 1:
        _steps(go, come, count, far, near, np.uint8)
    elif run == 2:
        _steps(go, come, count, far, near, np.uint16)
    elif run == 4:
        _steps(go, come, count, far, near, np.uint32)
    elif run == 8:
        _steps(go, come, count, far, near, np.uint64)
    else:
        for _ in range(count):
            memcpy(go, come, np.uintp(run))
            go, come = go + far, come + near


@njit
def _three_lines(go, one, two, three, count):
    """Copy ``count`` bytes of each of three lines, in turn."""
    k = 0
    while k < count:
        if count >= _WOVEN:
            k = min(k, count - _WOVEN)  # some of the last ones twice
            at = np.uintp(k)
            _weave(go + np.uintp(3 * k), one + at, two + at, three + at)
            k += _WOVEN
        else:
            at, to = np.uintp(k), go + np.uintp(3 * k)
            store(to, load(one + at, np.uint8))
            store(to + np.uintp(1), load(two + at, np.uint8))
            store(to + np.uintp(2), load(three + at, np.uint8))
            k += 1


@njit
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
    which lie ``near`` (rank,) bytes apart from ``sources[i]`` on, and go ``far`` bytes apart from
    ``targets[i]`` on."""
    at = np.zeros(extents.shape[1], np.int64)
    i = 0
    while i < sources.size:
        run, last, lines = item, extents.shape[1] - 1, 1
        while last >= 0 and (extents[i, last] == 1 or (near[last] == run and far[last] == run)):
            run *= extents[i, last]
            last -= 1
        for axis in range(last):
            lines *= extents[i, axis]
        come, go, boxes = np.uintp(sources[i]), np.uintp(targets[i]), 1
        if last < 0:
            memcpy(go, come, np.uintp(run))
            i += 1
            continue
        count, step = extents[i, last], np.uintp(far[last])
        if (
            run == 1
            and near[last] == 1
            and far[last] == 3
            and _together(sources, targets, extents, i)
        ):
            boxes = 3
            second = np.uintp(sources[i + 1] - sources[i])
            third = np.uintp(sources[i + 2] - sources[i])
        at[:] = 0
        for _ in range(lines):
            if boxes == 3:
                _three_lines(go, come, come + second, come + third, count)
            else:
                _line(go, come, count, step, np.uintp(near[last]), run)
            axis = last - 1
            while axis >= 0:
                at[axis] += 1
                come, go = come + np.uintp(near[axis]), go + np.uintp(far[axis])
                if at[axis] < extents[i, axis]:
                    break
                come -= np.uintp(near[axis] * extents[i, axis])
                go -= np.uintp(far[axis] * extents[i, axis])
                at[axis] = 0
                axis -= 1
        i += boxes


# -- gzip chunks, by libdeflate's functions -------------------------------------------------------

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
