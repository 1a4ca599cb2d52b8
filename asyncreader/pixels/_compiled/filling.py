"""Kernels that fill slots: they locate rows, copy or convert and hash them in one pass: mirror, cut
out, take channels apart, cast, and paint a part over.

See ../tables.py for what is in the tables. A kernel is made of the same functions for each
thing that can be done with a row, so that a reader compiles the one that it needs.
"""

from __future__ import annotations

import platform

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core.registry import cpu_target

from ...system.keyed_random import STEP
from .. import tables
from ..shared import ERASURE_DRAWS
from .base import apart, erased_part, inner, instruction, kernel, mixed, mixed_with, unit
from .hashing import HASH_SCRATCH, copy_hashed
from .memory import (
    address_in,
    bytes_from,
    fence,
    load,
    load_acquire,
    memcpy,
    pointer,
    pread,
    prefetch,
    store,
    store_release,
    stream_row,
    swap_if,
)

#: Bytes of the next row that are asked for before a row is copied: the processor cannot guess a
#: random order. Without it float32 and NCHW of 32 x 32 x 3 take a tenth longer.
_ROW_AHEAD = 512

_table, _numbers, _floats = types.int64[:, ::1], types.int64[::1], types.float32[::1]


# -- pixels that are changed while they are copied ------------------------------------------------

#: The exponent of the least normal float16, and the bits of its infinity.
_LEAST_HALF, HALF_INF = -14, 0x7C00


@inner
def half_bits(value):
    """The bits of a float64 as float16, rounded to the nearest, half to even."""
    bits = np.float64(value).view(np.uint64)
    sign = (bits >> np.uint64(48)) & np.uint64(0x8000)
    exponent = (np.int64(bits >> np.uint64(52)) & 2047) - 1023
    if value != value:
        return sign | np.uint64(0x7E00)
    if exponent > 15:
        return sign | np.uint64(HALF_INF)
    exponent = max(exponent, np.int64(_LEAST_HALF))
    # in units of the last place: 2 ** (10 - exponent), by its bits
    unit = np.uint64(np.uint64(1033 - exponent) << np.uint64(52)).view(np.float64)
    steps = np.uint64(np.rint(abs(value) * unit))
    return sign | ((np.uint64(exponent - _LEAST_HALF) << np.uint64(10)) + steps)


@instruction(types.uint16(types.float32))
def _rounded_half(builder, value):
    """The bits of a float32 as float16, by the processor. Plain code takes 2.3 times as long for a
    batch (32 x 32 x 3), or 2.4 (224 x 224 x 3)."""
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))


@inner(inline="always")
def _worked_out_half(value):
    """The bits of a float32 as float16, without the processor's own instruction."""
    return np.uint16(half_bits(np.float64(value)))


@inner(inline="always")
def _single(value):
    return value


def _has_half() -> bool:
    """Whether the processor compiled for converts to float16 itself.

    Otherwise LLVM calls a function that is missing, and ends the process. The processor is not
    always this machine's: NUMBA_CPU_NAME=generic makes code for all of a kind.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    features = cpu_target.target_context.codegen().magic_tuple()[2]
    return "+f16c" in features.split(",")


#: Pixels taken apart at a time: their bytes and floats fit the first-level cache.
TILE = 1024


@inner(inline="always")
def _mirror_line(src, dst, width, pixel):
    """``pixel``: a number that LLVM knows, where it shall find vectors."""
    for x in range(width):
        for k in range(pixel):
            dst[x * pixel + k] = src[(width - 1 - x) * pixel + k]


@inner
def mirror_row(source, stride, target, height, width, pixel):
    """Copy an image of ``pixel``-byte pixels, whose lines are ``stride`` bytes apart, each line
    backwards."""
    line = width * pixel
    for y in range(height):
        src, dst = bytes_from(source + y * stride), bytes_from(target + y * line)
        if pixel == 3:
            _mirror_line(src, dst, width, 3)
        else:
            _mirror_line(src, dst, width, pixel)


@inner
def _pixel_at(place, limit, around):
    """The pixel that stands at ``place``; -1 for none. ``around``: as of padded_row."""
    if 0 <= place < limit:
        return place
    if around == 0:
        return -1
    if around == 1:
        return min(max(place, 0), limit - 1)
    if limit == 1:
        return 0
    place = abs(place) % (2 * (limit - 1))
    return min(place, 2 * (limit - 1) - place)


@inner
def padded_row(source, target, height, width, pixel, top, left, around):
    """Copy the part of a picture that has its own size and begins at (top, left), which may lie
    outside: there are zeros (``around`` 0), the outermost pixels (1) or the mirror image (2)."""
    line = width * pixel
    first, end = min(max(0, -left), width), max(0, min(width, width - left))
    low, high = min(max(0, -top), height), max(0, min(height, height - top))
    inside = max(0, end - first) * pixel
    if inside and low < high:  # what lies inside in one piece; what is wrong then is written below
        memcpy(
            target + low * line + first * pixel,
            source + (low + top) * line + (first + left) * pixel,
            (high - low - 1) * line + inside,
        )
    for y in range(height):
        at, row = target + y * line, _pixel_at(top + y, height, around)
        to = bytes_from(at)
        if row < 0:
            for k in range(line):
                to[k] = 0
            continue
        begin = source + row * line
        if inside and not low <= y < high:
            inside_line = begin + (left + first) * pixel
            memcpy(at + first * pixel, inside_line, inside)
        if around == 0:
            for k in range(first * pixel):
                to[k] = 0
            for k in range(end * pixel, line):
                to[k] = 0
            continue
        source_line = bytes_from(begin)
        for n in range(width - max(0, end - first)):
            x = n if n < first else n - first + max(first, end)
            column = _pixel_at(left + x, width, around)
            for k in range(pixel):
                to[x * pixel + k] = source_line[column * pixel + k]


@inner
def paint_part(target, top, left, rows, columns, width, pixel, colour):
    """Write the ``pixel`` bytes at ``colour`` to a part of a picture at ``target``."""
    if rows == 0:
        return
    start = target + (top * width + left) * pixel
    to, given, k = bytes_from(start), bytes_from(colour), 0
    for n in range(columns * pixel):
        to[n] = given[k]
        k = k + 1 if k + 1 < pixel else 0
    for y in range(1, rows):
        memcpy(start + y * width * pixel, start, columns * pixel)


@inner(inline="always")
def _split(src, base, count, planes):
    """Take ``count`` RGB pixels apart into ``planes``, uint8 (3, TILE), which stay in cache."""
    # LLVM turns a stride of 3 into vector shuffles where it sees the 3
    p0, p1, p2 = planes[0], planes[1], planes[2]
    for x in range(count):
        p0[x] = src[base + 3 * x]
        p1[x] = src[base + 3 * x + 1]
        p2[x] = src[base + 3 * x + 2]


@inner
def transpose_row(source, target, pixels, channels, item):
    """(pixels, channels) values of ``item`` bytes -> (channels, pixels): not past the caches, which
    takes 1.2 times as long (224 x 224 x 3)."""
    src, dst = bytes_from(source), bytes_from(target)
    if channels == 3 and item == 1:
        for p in range(pixels):
            dst[p] = src[3 * p]
            dst[pixels + p] = src[3 * p + 1]
            dst[2 * pixels + p] = src[3 * p + 2]
        return
    for c in range(channels):
        for p in range(pixels):
            for k in range(item):
                dst[(c * pixels + p) * item + k] = src[(p * channels + c) * item + k]


def _affine_row(name, kind, size, element):
    """A function that casts a row to elements of ``kind``, ``size`` bytes each: float32, or bits of
    float16, which ``element`` makes of a float32."""

    @inner(inline="always")
    @apart(name)
    def scaled(source, target, count, a, b, a_step, stream, tile):
        """``count`` (at most TILE) values times a[0], a[a_step] ... plus b."""
        src = bytes_from(source)
        to = address_in(tile) if stream else target
        out = carray(pointer(to, kind), (count,))
        if a_step:
            for k in range(count):
                out[k] = element(np.float32(src[k]) * a[k] + b[k])
        else:
            scale, shift = a[0], b[0]
            for k in range(count):
                out[k] = element(np.float32(src[k]) * scale + shift)
        if stream:
            stream_row(to, target, size * count)

    @inner
    @apart(name)
    def affine_row(source, target, height, width, planar, a, b, stream, planes, tile):
        """uint8 (H, W, C) -> ``x * a + b``, (H, W, C), or (C, H, W) where ``planar``.

        ``a``, ``b``: float32 (W * C,), the coefficients of a whole line; ``stream``: past the
        caches; ``planes``: see _split; ``tile``: scratch, float32 (TILE,).
        """
        pixels, line = height * width, a.size
        channels = line // width
        src = bytes_from(source)
        if not planar or channels == 1:
            for y in range(height):
                for first in range(0, line, TILE):
                    count, at = min(TILE, line - first), y * line + first
                    own_a, own_b = a[first : first + count], b[first : first + count]
                    scaled(source + at, target + at * size, count, own_a, own_b, 1, stream, tile)
            return
        at = address_in(planes)
        for first in range(0, pixels, TILE):
            count = min(TILE, pixels - first)
            for c in range(channels):
                plane = at
                if channels != 3:
                    for x in range(count):
                        planes[0, x] = src[(first + x) * channels + c]
                else:
                    if c == 0:
                        _split(src, 3 * first, count, planes)
                    plane = at + c * TILE
                to = target + (c * pixels + first) * size
                scaled(plane, to, count, a[c : c + 1], b[c : c + 1], 0, stream, tile)

    return affine_row


affine_row = _affine_row("f4", np.float32, 4, _single)
affine_row_half = _affine_row(
    "f2", np.uint16, 2, _rounded_half if _has_half() else _worked_out_half
)


# -- where rows lie ------------------------------------------------------------------------------


@inner(inline="always")
def _number_of_file(files, record, near):
    """The number of the file that holds a record; ``near`` is tried first."""
    if files[near].start <= record < files[near].end:
        return near
    low, high = 0, files.size - 1
    while low < high:
        middle = (low + high) // 2
        if record < files[middle].end:
            high = middle
        else:
            low = middle + 1
    return low


@inner(inline="always")
def _located(job, files, terms, i, near):
    """Where row ``i`` lies: the record, the number of its file, the address of the row or its
    offset in the file, the file's descriptor or -1, and the addresses of its checksum and its
    label, 0 for none."""
    none = np.int64(0)
    if job.offsets:
        return none, near, load(job.offsets + 8 * i, np.int64), np.int64(-1), none, none
    record = load(job.records + 8 * i, np.int64)
    near = _number_of_file(files, max(record, 0), near)
    file = files[near]
    local = max(record, 0) - file.start
    begins = load(file.starts + 8 * local, np.int64) if file.starts else local * file.stride
    checksum = file.sums + 8 * local if terms.check != tables.NEVER and file.sums else none
    label = file.labels + local * terms.label_bytes
    return record, near, file.base + begins, file.read, checksum, label


# -- one row -------------------------------------------------------------------------------------


@inner(inline="always")
def _uniform(key, draw):
    """keyed_random.uniforms of one key."""
    return unit(mixed_with(np.uint64(draw + 1), key))


@inner
def _erase(target, key, terms):
    """Paint over what shared.erased_part draws for the row at ``target``."""
    state = mixed((np.uint64(2) ^ key) + STEP)  # keyed_random.key_of
    state = mixed((state ^ np.uint64(tables.STEP_DRAWS)) + STEP)
    bits = np.empty(ERASURE_DRAWS, np.uint64)
    for k in range(bits.size):
        state += STEP
        bits[k] = mixed(state)
    high, wide = terms.height, terms.width
    top, left, rows, columns, _ = erased_part(bits, terms, high, wide)
    parts = terms.channels if terms.planar else 1
    pixel = terms.out_bytes // (high * wide * parts)
    for part in range(parts):
        plane = target + part * high * wide * pixel
        paint_part(plane, top, left, rows, columns, wide, pixel, terms.paint + part * pixel)


@inner
def _move_pixels(source, target, flipped, key, terms, scratch):
    """Copy a row, mirrored or the part of it that was drawn, by way of ``scratch`` where both."""
    height, width, padding = terms.height, terms.width, terms.padding
    pixel = terms.channels * terms.item
    if padding == 0:
        mirror_row(source, width * pixel, target, height, width, pixel)
        return
    # see shared.choose_rect: parts have the size of the image
    top = np.int64(_uniform(key, 0) * (2 * padding + 1)) - padding
    left = np.int64(_uniform(key, 1) * (2 * padding + 1)) - padding
    if flipped:  # as far on the other side of the mirror image
        mirror_row(source, width * pixel, scratch, height, width, pixel)
        source, left = scratch, -left
    padded_row(source, target, height, width, pixel, top, left, terms.around)


@inner
def _moved(source, flipped, key, terms, scratch):
    """Where a row lies whose pixels are moved, if they are: in ``scratch``."""
    first, second = scratch
    if not flipped and terms.padding == 0:
        return source
    _move_pixels(source, first, flipped, key, terms, second)
    return first


@inner
def _put_moved(source, target, flipped, key, terms, a, b, scratch, planes, tile):
    first, second = scratch
    if terms.stream:
        _move_pixels(source, first, flipped, key, terms, second)
        stream_row(first, target, terms.row_bytes)
    else:
        _move_pixels(source, target, flipped, key, terms, second)


@inner
def _put_planes(source, target, flipped, key, terms, a, b, scratch, planes, tile):
    source = _moved(source, flipped, key, terms, scratch)
    transpose_row(source, target, terms.height * terms.width, terms.channels, terms.item)


def _put_affine(name, affine):
    @inner
    @apart(name)
    def put(source, target, flipped, key, terms, a, b, scratch, planes, tile):
        source = _moved(source, flipped, key, terms, scratch)
        planar, stream = terms.planar != 0, terms.stream != 0
        affine(source, target, terms.height, terms.width, planar, a, b, stream, planes, tile)

    return put


@inner(inline="always")
def _passes(job, terms, i, record, checksum, found):
    """Keep the hash that a row was found to have; whether it is the recorded one."""
    if job.wanted:
        store(job.hashes + 8 * i, found)
    elif found != load(checksum, np.uint64):
        return False
    elif terms.check != tables.ALWAYS:
        store(terms.seen + record, np.uint8(1))
    return True


@inner(inline="always")
def _is_checked(job, terms, i, record, checksum):
    if job.wanted:
        return load(job.wanted + i, np.uint8) != 0
    if checksum == 0:
        return False
    return terms.check == tables.ALWAYS or load(terms.seen + record, np.uint8) == 0


@inner(inline="always")
def _key_of(job, terms, i, drawn):
    """The key of row ``i``, from which follows what is drawn for it; 0 where nothing is."""
    if job.keys:
        return load(job.keys + 8 * i, np.uint64)
    if drawn:
        position = job.position + i // max(1, terms.window)
        return mixed_with(np.uint64(job.key), np.uint64(position))
    return np.uint64(0)


@inner(inline="always")
def _put_label(label, target, size):
    if size == 8:  # one number: a call of memcpy takes longer
        store(target, load(label, np.int64))
    elif size:
        memcpy(target, label, size)


# -- batches -------------------------------------------------------------------------------------


def _fill(name, put, plain):
    """A function that fills the rows of one job, each as ``put`` does; ``plain``: by a copy."""

    @inner
    @apart(name)
    def fill(job, files, terms, a, b, scratch, planes, tile, sums):
        """Returns the number of rows that could not be read, or whose checksum differs."""
        count, size, stream = job.count, terms.row_bytes, terms.stream != 0
        mirrored, cut, erased = terms.mirrored != 0, terms.padding != 0, terms.chance != 0
        targets, out, out_bytes = job.targets, job.out, terms.out_bytes
        labels, label_bytes = job.labels, terms.label_bytes
        hashed, read_to = address_in(scratch[0]), address_in(scratch[1])
        moved = address_in(scratch[2]), address_in(scratch[3])
        bad = 0
        following = _located(job, files, terms, 0, 0)
        for i in range(count):
            record, near, source, fd, checksum, label = following
            if i + 1 < count:
                following = _located(job, files, terms, i + 1, near)
                for line in range(0, min(size, _ROW_AHEAD) if following[3] < 0 else 0, 64):
                    prefetch(following[2] + line)
            row = load(targets + 8 * i, np.int64) if targets else i
            target = out + row * out_bytes
            if record < 0:
                for k in range(out_bytes):
                    bytes_from(target)[k] = 0
                continue
            key = _key_of(job, terms, i, mirrored or cut or erased)
            flipped = mirrored and _uniform(key, tables.MIRROR_DRAW) < 0.5
            straight = plain and not flipped and not cut
            if fd >= 0:
                read = target if straight else read_to
                if pread(np.int32(fd), read, size, source) != size:
                    bad += 1
                    continue
                source = read
            if _is_checked(job, terms, i, record, checksum):
                copied = target if straight else hashed
                found = copy_hashed(source, copied, size, stream and straight, sums)
                source = copied
                bad += 0 if _passes(job, terms, i, record, checksum, found) else 1
            elif straight and fd < 0:
                if stream:
                    stream_row(source, target, size)
                else:
                    memcpy(target, source, size)
            if not straight:
                put(source, target, flipped, key, terms, a, b, moved, planes, tile)
            if erased:
                if stream:
                    fence()
                _erase(target, key, terms)
            _put_label(label, labels + label_bytes * row, label_bytes)
        if stream:
            fence()
        return bad

    return fill


@inner
def _of_line(coefficients, width):
    """The coefficients of a whole line: the inner loops run over contiguous elements."""
    repeated = np.empty(width * coefficients.size, np.float32)
    for k in range(repeated.size):
        repeated[k] = coefficients[k % coefficients.size]
    return repeated


def _enter_filler(name, put, plain=False, casts=False):
    """Enter a kernel: the batches of a queue, each claimed by one of the threads that call it.

    ``plain``: see _fill; ``casts``: ``put`` takes the coefficients of a line."""
    fill = _fill(name, put, plain)

    @kernel(
        *(_numbers, _numbers, _table, _table, _table, _floats, _floats, types.int64, types.int64),
        name=name,
    )
    @apart(name)
    def batches(control, queue, jobs, files, terms, scale, shift, most, looks):
        """Fill the batches of a queue, at most ``most``: see tables.py for the tables.

        Returns when it has looked ``looks`` times (about a ns each) in vain for a job.
        """
        claimed_at = address_in(control)
        published_at = claimed_at + 8 * tables.PUBLISHED
        stopped_at = claimed_at + 8 * tables.STOPPED
        all_jobs, all_files = jobs.reshape(-1).view(tables.JOB), files.reshape(-1).view(tables.FILE)
        fields = terms.reshape(-1).view(tables.ROWS)
        wide, used = fields[0].width if casts else 0, 1
        a, b = _of_line(scale, wide), _of_line(shift, wide)
        for k in range(fields.size):
            if fields[k].mirrored != 0 or fields[k].padding != 0 or not plain:
                used = max(used, fields[k].row_bytes + 64)
        scratch, planes = np.empty((4, used), np.uint8), np.empty((3, TILE), np.uint8)
        tile, sums = np.empty(TILE, np.float32), np.empty(HASH_SCRATCH, np.uint64)
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
            bad, first = 0, all_jobs[slot * fields.size]
            for k in range(fields.size):
                own, job = fields[k], all_jobs[slot * fields.size + k]
                held = all_files[own.first : own.last]
                if job.count:
                    bad += fill(job, held, own, a, b, scratch, planes, tile, sums)
            if first.mark:
                store_release(first.mark, first.refused if bad else first.whole)
            done += 1
            looked = 0


_enter_filler("copy_batches", _put_moved, plain=True)
_enter_filler("transpose_batches", _put_planes)
_enter_filler("affine_batches", _put_affine("f4", affine_row), casts=True)
_enter_filler("affine_batches_half", _put_affine("f2", affine_row_half), casts=True)


@kernel(types.int64, types.int64, types.int64)
def await_batch(mark, filling, looks):
    """Look ``looks`` times (about a ns each) whether the int64 at ``mark`` is still ``filling``."""
    for _ in range(looks):
        if load_acquire(mark) != filling:
            return
