"""Kernels that fill slots: they locate rows, copy or convert and hash them in one pass.

See ../fill_tables.py for what is in the tables. A kernel is made of the same functions for each
thing that can be done with a row, so that a reader compiles the one that it needs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from .. import fill_tables as tables
from .base import apart, i8, kernel, memcpy, mixed, pread
from .converting import (
    TILE,
    affine_row,
    affine_row_half,
    mirror_row,
    padded_row,
    paint_part,
    transpose_row,
)
from .hashing import copy_hashed
from .moving import (
    byte_at,
    fence,
    load_acquire,
    load_i8,
    prefetch,
    store_byte,
    store_i8,
    store_release,
    stream_row,
    swap_if,
)

#: Bytes of the next row that are asked for before a row is copied: the processor cannot guess a
#: random order. 256 to 1024 gained 8 % at rows of 3 kB, whole rows nothing.
_ROW_AHEAD = 512

_table, _numbers, _f4 = types.int64[:, ::1], types.int64[::1], types.float32[::1]
_ARGUMENTS = (_numbers, _numbers, _table, _table, _table, _f4, _f4, i8, i8)


@njit(inline="always")
def _mixed_with(key, value):
    """keyed_random.mix_rows of one value."""
    return mixed(
        np.uint64(value) * np.uint64(0xD1342543DE82EF95) + key + np.uint64(0x9E3779B97F4A7C15)
    )


@njit(inline="always")
def _unit(drawn):
    """64 random bits as a number in [0, 1)."""
    return np.float64(drawn >> np.uint64(11)) * 2.0**-53


@njit(inline="always")
def _uniform(key, draw):
    """keyed_random.uniforms of one key."""
    return _unit(_mixed_with(np.uint64(draw + 1), key))


@njit(inline="always")
def _next(state):
    """keyed_random.Draws: 64 bits, and the state behind them."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    return mixed(state), state


@njit(inline="always")
def _below(drawn, count):
    """keyed_random.Draws.below of 64 bits, for a count below 2**31."""
    high, low = drawn >> np.uint64(32), drawn & np.uint64(0xFFFFFFFF)
    low = low * np.uint64(count) >> np.uint64(32)
    return np.int64((high * np.uint64(count) + low) >> np.uint64(32))


@njit
def _erase(go, key, sizes):
    """Paint over what rectangles.erased_part draws for the row at ``go``."""
    terms, high, wide = sizes.view(np.float64), sizes[tables.HEIGHT], sizes[tables.WIDTH]
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = mixed((np.uint64(2) ^ key) + golden)  # keyed_random.key_of
    state = mixed((state ^ np.uint64(tables.STEP_DRAWS)) + golden)
    drawn, state = _next(state)
    if not _unit(drawn) < terms[tables.CHANCE]:
        return
    for _ in range(tables.ERASURE_TRIES):
        drawn, state = _next(state)
        area = terms[tables.LEAST] + (terms[tables.MOST] - terms[tables.LEAST]) * _unit(drawn)
        area = high * wide * area
        drawn, state = _next(state)
        aspect = terms[tables.NARROW] + (terms[tables.BROAD] - terms[tables.NARROW]) * _unit(drawn)
        aspect = math.exp(aspect)
        rows = np.int64(np.rint(math.sqrt(area * aspect)))
        columns = np.int64(np.rint(math.sqrt(area / aspect)))
        if rows < high and columns < wide:
            drawn, state = _next(state)
            top = _below(drawn, high - rows + 1)
            drawn, state = _next(state)
            left = _below(drawn, wide - columns + 1)
            parts = sizes[tables.CHANNELS] if sizes[tables.PLANAR] else 1
            pixel = sizes[tables.OUT_BYTES] // (high * wide * parts)
            for part in range(parts):
                plane = go + np.uintp(part * high * wide * pixel)
                colour = np.uintp(sizes[tables.PAINT] + part * pixel)
                paint_part(plane, top, left, rows, columns, wide, pixel, colour)
            return


@njit(inline="always")
def _file_of(files, record, near):
    """The line of ``files`` that holds a record; ``near`` is tried first."""
    if files[near, tables.START] <= record < files[near, tables.END]:
        return near
    low, high = 0, files.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if record < files[middle, tables.END]:
            high = middle
        else:
            low = middle + 1
    return low


@njit(inline="always")
def _place_in(files, line, local):
    """Where a row lies: its address, or the offset in its file; ``local``: its number there."""
    if files[line, tables.STARTS]:
        begins = load_i8(np.uintp(files[line, tables.STARTS] + 8 * local))
    else:
        begins = local * files[line, tables.STRIDE]
    return np.uintp(files[line, tables.BASE] + begins)


@njit(inline="always")
def _copy_label(label, out, row, size):
    if size == 8:  # one number: a call of memcpy takes longer
        memcpy(out + np.uintp(8 * row), np.uintp(label), np.uintp(8))
    else:
        memcpy(out + np.uintp(size * row), np.uintp(label), np.uintp(size))


@njit(inline="always")
def _move(come, go, size, stream):
    if stream:
        stream_row(come, go, size)
    else:
        memcpy(go, come, np.uintp(size))


@njit
def _of_line(coefficients, width):
    """The coefficients of a whole line: the inner loops run over contiguous elements."""
    repeated = np.empty(width * coefficients.size, np.float32)
    for k in range(repeated.size):
        repeated[k] = coefficients[k % coefficients.size]
    return repeated


def _fill(name: str, put: Any, plain: bool) -> Any:
    """A function that fills the rows of one job, each as ``put`` does; ``plain``: by a copy."""

    @njit
    @apart(name)
    def fill(job, files, sizes, a, b, scratch, planes, tile, sums):
        """Returns the number of rows that could not be read, or whose checksum differs."""
        size, stream, mode = sizes[tables.ROW_BYTES], sizes[tables.STREAM] != 0, sizes[tables.CHECK]
        seen, label_bytes = np.uintp(sizes[tables.SEEN]), sizes[tables.LABEL_BYTES]
        count, offsets, targets = job[tables.COUNT], job[tables.OFFSETS], job[tables.TARGETS]
        keys, wanted, found_at = job[tables.KEYS], job[tables.WANTED], job[tables.FOUND]
        window = max(1, sizes[tables.WINDOW])
        mirrored, cut = sizes[tables.MIRRORED] != 0, sizes[tables.PADDING] != 0
        erased = sizes[tables.CHANCE] != 0  # its bits: not 0.0
        drawn = mirrored or cut or erased
        out, label_out = np.uintp(job[tables.OUT]), np.uintp(job[tables.LABELS])
        shared_key, key = np.uint64(job[tables.KEY]), np.uint64(0)
        hashed, read_to = np.uintp(scratch[0].ctypes.data), np.uintp(scratch[1].ctypes.data)
        moved = np.uintp(scratch[2].ctypes.data), np.uintp(scratch[3].ctypes.data)
        fd, next_fd = np.int64(-1), np.int64(-1)
        coming, next_sum, next_label = np.uintp(0), np.int64(0), np.int64(0)
        next_record = np.int64(0)
        near, bad = 0, 0
        for i in range(-1, count):
            come, sum_at, label, record = coming, next_sum, next_label, next_record
            fd = next_fd
            if i + 1 < count:
                if offsets:
                    coming = np.uintp(load_i8(np.uintp(offsets + 8 * i + 8)))
                else:
                    next_record = load_i8(np.uintp(job[tables.RECORDS] + 8 * i + 8))
                    near = _file_of(files, max(next_record, 0), near)
                    local = max(next_record, 0) - files[near, tables.START]
                    coming, next_fd = _place_in(files, near, local), files[near, tables.READ]
                    next_sum, next_label = (
                        np.int64(0),
                        files[near, tables.LABEL_TABLE] + local * label_bytes,
                    )
                    if mode != tables.NEVER and files[near, tables.SUMS]:
                        next_sum = files[near, tables.SUMS] + 8 * local
                for line in range(0, min(size, _ROW_AHEAD) if next_fd < 0 else 0, 64):
                    prefetch(coming + np.uintp(line))
            if i < 0:
                continue
            row = load_i8(np.uintp(targets + 8 * i)) if targets else i
            go = out + np.uintp(row * sizes[tables.OUT_BYTES])
            if record < 0:
                for k in range(sizes[tables.OUT_BYTES]):
                    store_byte(go + np.uintp(k), 0)
                continue
            if drawn:
                if keys:
                    key = np.uint64(load_i8(np.uintp(keys + 8 * i)))
                else:
                    key = _mixed_with(shared_key, job[tables.POSITION] + i // window)
            flipped = mirrored and _uniform(key, tables.MIRROR_DRAW) < 0.5
            straight = plain and not flipped and not cut
            if wanted:
                checked = byte_at(wanted, i) != 0
            else:
                checked = sum_at != 0 and (mode == tables.ALWAYS or byte_at(seen, record) == 0)
            if fd >= 0:
                read = go if straight else read_to
                if pread(np.int32(fd), read, np.uintp(size), np.int64(come)) != size:
                    bad += 1
                    continue
                come = read
            if checked:
                copied = go if straight else hashed
                found = copy_hashed(come, copied, size, stream and straight, sums)
                come = copied
                if wanted:
                    store_i8(np.uintp(found_at + 8 * i), np.int64(found))
                elif np.int64(found) != load_i8(np.uintp(sum_at)):
                    bad += 1
                elif mode != tables.ALWAYS:
                    store_byte(seen + np.uintp(record), 1)
            elif straight and fd < 0:
                _move(come, go, size, stream)
            if not straight:
                put(come, go, flipped, key, sizes, a, b, moved, planes, tile)
            if erased:
                if stream:
                    fence()
                _erase(go, key, sizes)
            if label_bytes:
                _copy_label(label, label_out, row, label_bytes)
        if stream:
            fence()
        return bad

    return fill


def _enter_filler(name: str, put: Any, plain: bool = False, casts: bool = False) -> None:
    """Enter a kernel: the batches of a queue, each claimed by one of the threads that call it.

    ``plain``: see _fill; ``casts``: ``put`` takes the coefficients of a line."""
    fill = _fill(name, put, plain)

    @kernel(*_ARGUMENTS, name=name)
    @apart(name)
    def batches(control, queue, jobs, files, sizes, scale, shift, most, looks):
        """Fill the batches of a queue, at most ``most``: see fill_tables.py for the tables.

        Returns when it has looked ``looks`` times (about a ns each) in vain for a job.
        """
        claimed_at = np.uintp(control.ctypes.data)
        published_at = claimed_at + np.uintp(8 * tables.PUBLISHED)
        stopped_at = claimed_at + np.uintp(8 * tables.STOPPED)
        fields, used = sizes.shape[0], 1
        wide = sizes[0, tables.WIDTH] if casts else 0
        a, b = _of_line(scale, wide), _of_line(shift, wide)
        for k in range(fields):
            if sizes[k, tables.MIRRORED] != 0 or sizes[k, tables.PADDING] != 0 or not plain:
                used = max(used, sizes[k, tables.ROW_BYTES] + 64)
        scratch, planes = np.empty((4, used), np.uint8), np.empty((3, TILE), np.uint8)
        tile = np.empty(TILE, np.float32)
        sums = np.empty(8, np.uint64)
        done, looked = 0, 0
        while done < most and load_acquire(stopped_at) == 0:
            claimed = load_acquire(claimed_at)
            if claimed >= load_acquire(published_at):
                looked += 1
                if looked > looks:
                    return
                continue
            slot = queue[claimed % queue.size]
            if not swap_if(claimed_at, claimed, claimed + 1):
                continue
            bad, first = 0, jobs[slot * fields]
            for k in range(fields):
                own, job = sizes[k], jobs[slot * fields + k]
                held = files[own[tables.FIRST] : own[tables.LAST]]
                bad += fill(job, held, own, a, b, scratch, planes, tile, sums)
            if first[tables.MARK]:
                mark = first[tables.REFUSED] if bad else first[tables.WHOLE]
                store_release(np.uintp(first[tables.MARK]), mark)
            done += 1
            looked = 0


@njit
def _move_pixels(come, go, flipped, key, sizes, scratch):
    """Copy a row, mirrored or the part of it that was drawn, by way of ``scratch`` where both."""
    height, width, padding = sizes[tables.HEIGHT], sizes[tables.WIDTH], sizes[tables.PADDING]
    pixel = sizes[tables.CHANNELS] * sizes[tables.ITEM]
    if padding == 0:
        mirror_row(come, go, height, width, pixel)
        return
    # see rectangles.choose_rect: parts have the size of the picture
    top = np.int64(_uniform(key, 0) * (2 * padding + 1)) - padding
    left = np.int64(_uniform(key, 1) * (2 * padding + 1)) - padding
    if flipped:  # as far on the other side of the mirror image
        mirror_row(come, scratch, height, width, pixel)
        come, left = scratch, -left
    padded_row(come, go, height, width, pixel, top, left, sizes[tables.AROUND])


@njit
def _put_moved(come, go, flipped, key, sizes, a, b, scratch, planes, tile):
    first, second = scratch
    if sizes[tables.STREAM]:
        _move_pixels(come, first, flipped, key, sizes, second)
        stream_row(first, go, sizes[tables.ROW_BYTES])
    else:
        _move_pixels(come, go, flipped, key, sizes, second)


@njit
def _moved(come, flipped, key, sizes, scratch):
    """Where a row lies whose pixels are moved, if they are: in ``scratch``."""
    first, second = scratch
    if not flipped and sizes[tables.PADDING] == 0:
        return come
    _move_pixels(come, first, flipped, key, sizes, second)
    return first


@njit
def _put_planes(come, go, flipped, key, sizes, a, b, scratch, planes, tile):
    come = _moved(come, flipped, key, sizes, scratch)
    pixels, stream = sizes[tables.HEIGHT] * sizes[tables.WIDTH], sizes[tables.STREAM] != 0
    transpose_row(come, go, pixels, sizes[tables.CHANNELS], sizes[tables.ITEM], stream, planes)


def _put_affine(name: str, affine: Any) -> Any:
    @njit
    @apart(name)
    def put(come, go, flipped, key, sizes, a, b, scratch, planes, tile):
        come = _moved(come, flipped, key, sizes, scratch)
        planar, stream = sizes[tables.PLANAR] != 0, sizes[tables.STREAM] != 0
        height, width = sizes[tables.HEIGHT], sizes[tables.WIDTH]
        affine(come, go, height, width, planar, a, b, stream, planes, tile)

    return put


def _enter_row(name: str, affine: Any, element: Any) -> None:
    """Enter a kernel that casts one picture."""

    @njit
    @apart(name)
    def cast(source, height, width, mirrored, planar, out, a, b, scratch, planes, tile):
        come = source
        if mirrored:
            come = np.uintp(scratch.ctypes.data)
            mirror_row(source, come, height, width, a.size // width)
        go = np.uintp(out.ctypes.data)
        affine(come, go, height, width, planar, a, b, False, planes, tile)

    @kernel(types.uintp, i8, _f4, _f4, i8, types.boolean, types.boolean, element, name=name)
    @apart(name)
    def row(source, pixels, scale, shift, width, mirrored, planar, out):
        """``pixels`` pixels of uint8 at ``source`` -> ``x * scale[c] + shift[c]``.

        ``out``: (H * W * C,), float32, or uint16 to get float16 bits: (H, W, C), or (C, H, W) when
        ``planar``.
        """
        a, b = _of_line(scale, width), _of_line(shift, width)
        planes, tile = np.empty((3, TILE), np.uint8), np.empty(1, np.float32)
        # numba frees an array behind its last use by name: its address is taken in a function of
        # its own, while this one has it
        scratch = np.empty(pixels * scale.size if mirrored else 1, np.uint8)
        height = pixels // width
        cast(source, height, width, mirrored, planar, out, a, b, scratch, planes, tile)


_enter_filler("copy_batches", _put_moved, plain=True)
_enter_filler("transpose_batches", _put_planes)
_enter_filler("affine_batches", _put_affine("f4", affine_row), casts=True)
_enter_row("affine_row", affine_row, _f4)
_enter_filler("affine_batches_half", _put_affine("f2", affine_row_half), casts=True)
_enter_row("affine_row_half", affine_row_half, types.uint16[::1])


@kernel(types.uintp, i8, i8)
def await_batch(mark, filling, looks):
    """Look ``looks`` times (about a ns each) whether the int64 at ``mark`` is still ``filling``."""
    for _ in range(looks):
        if load_acquire(mark) != filling:
            return
