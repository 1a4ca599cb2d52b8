"""Kernels that read a JPEG's header, and cut a part of its picture out as a smaller JPEG."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types

from ..rectangles import AVERAGED
from .base import (
    boxes_type,
    choose_rect,
    draws_type,
    instruction,
    kernel,
    load_any,
    memcpy,
    offsets_type,
    plans_type,
    shares_type,
    u8_pointer,
)
from .jpeg_bits import peek, symbols_of, u16_at, upright, without_stuffing

_bytes = types.Array(types.uint8, 1, "C", readonly=True)


@instruction(types.uint64(types.int64))
def _markers(builder, address):
    """A bit for each of the 64 bytes at ``address``: whether it is 0xFF and the next one not 0."""
    kind = ir.VectorType(ir.IntType(8), 64)
    one = ir.Constant(ir.IntType(64), 1)
    first = load_any(builder, address, kind)
    second = load_any(builder, builder.add(address, one), kind)
    found = builder.and_(
        builder.icmp_unsigned("==", first, ir.Constant(kind, [0xFF] * 64)),
        builder.icmp_unsigned("!=", second, ir.Constant(kind, [0] * 64)),
    )
    return builder.bitcast(found, ir.IntType(64))


@instruction(types.int64(types.uint64))
def _lowest_bit(builder, value):
    """The number of the lowest bit that is set in ``value``, which is not 0."""
    return builder.cttz(value, ir.Constant(ir.IntType(1), 1))


#: Pixels that must be saved: finding and copying the segments takes as long as decoding some
#: thousand pixels.
_WORTH = 16_384
#: Shortest side of a part: a decoder treats pictures of a few pixels in other ways.
_SHORTEST = 64
#: Bytes that must be there behind those of the file.
_SPARE = 64


@njit
def _tables_fit(data, at, end, marker):
    """Whether the tables in a DHT or DQT segment's body have valid numbers and fill it exactly."""
    while at < end:
        kind, number = data[at] >> 4, data[at] & 15
        if kind > 1 or number > 3:
            return False
        at += 1
        if marker == 0xDB:
            at += 128 if kind else 64
            continue
        if at + 16 > end:
            return False
        symbols = symbols_of(data, at)
        if symbols > 256:
            return False
        at += 16 + symbols
    return at == end


@njit
def _plain_segments(data, facts):
    """Where the frame header, the scan header and the scan begin, and the restart interval; 0 for
    the frame header in a file that is not plain. Sets ``facts[3]``."""
    size, at, frame, interval = data.size, np.int64(2), np.int64(0), np.int64(0)
    nothing = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return nothing
    for _ in range(256):
        if at + 4 > size or data[at] != 0xFF:
            return nothing
        marker, end = data[at + 1], at + 2 + u16_at(data, at + 2)
        if end < at + 4 or end > size:
            return nothing
        body, length = at + 4, end - at - 4
        if marker == 0xC4 or marker == 0xDB:
            if not _tables_fit(data, body, end, marker):
                return nothing
        elif marker == 0xC0 and frame == 0:
            if length < 9:
                return nothing
            frame = at
        elif marker == 0xDD and length == 2:
            interval = u16_at(data, body)
        elif marker == 0xDA:
            return (frame, at, end, interval) if end < size else nothing
        elif marker == 0xE0:
            # JFIF of another version is a warning of the decoder
            if length >= 14 and data[body] == 0x4A and data[body + 5] != 1:
                return nothing
        elif marker == 0xE1:
            facts[3] = 1
        elif marker == 0xEE:
            # the same for colours that Adobe's segment has no name for
            if length >= 12 and data[body] == 0x41 and data[body + 11] > 1:
                return nothing
        elif marker != 0xFE and marker & 0xF0 != 0xE0:
            return nothing
        at = end
    return nothing


@njit
def _plain_frame(data, frame, at, end):
    """Whether the headers of the frame and of the scan (from ``at`` to ``end``) belong together,
    and state 1 or 3 channels of 8 bits in a sampling with a name."""
    channels = np.int64(data[frame + 9])
    if data[frame + 4] != 8 or (channels != 1 and channels != 3) or data[at + 4] != channels:
        return False
    if u16_at(data, frame + 2) != 8 + 3 * channels or end != at + 8 + 2 * channels:
        return False
    across, down = data[frame + 11] >> 4, data[frame + 11] & 15
    for c in range(channels):
        if data[at + 5 + 2 * c] != data[frame + 10 + 3 * c]:
            return False
        if c and data[frame + 11 + 3 * c] != 0x11:
            return False
    if across == 0 or down == 0:
        return False
    if channels == 1:
        return across == 1 and down == 1
    return (across <= 2 and down <= 2) or (across == 4 and down == 1)


@njit
def _read_header(data, facts):
    """See jpeg_header."""
    facts[:] = 0
    frame, at, end, interval = _plain_segments(data, facts)
    if frame == 0 or not _plain_frame(data, frame, at, end):
        return
    across, down = np.int64(data[frame + 11] >> 4), np.int64(data[frame + 11] & 15)
    high, wide = u16_at(data, frame + 5), u16_at(data, frame + 7)
    if high == 0 or wide == 0 or high > 65500 or wide > 65500:
        return
    facts[0], facts[1], facts[2] = end, high, wide
    facts[8], facts[9] = down, across
    columns = (wide + 8 * across - 1) // (8 * across)
    rows = (high + 8 * down - 1) // (8 * down)
    facts[10], facts[11] = interval, rows * columns
    if interval == 0 or interval >= rows * columns:
        return
    if columns % interval == 0:
        facts[4], facts[5] = rows, columns // interval
        facts[6], facts[7] = 8 * down, 8 * across * interval
    elif interval % columns == 0:
        many = interval // columns
        facts[4], facts[5] = (rows + many - 1) // many, 1
        facts[6], facts[7] = 8 * down * many, wide


@kernel(_bytes, offsets_type)
def jpeg_header(data, facts):
    """Read the header of a plain JPEG: baseline, one scan, 1 or 3 channels of a sampling with a
    name, and no segment at which a decoder would stop or warn.

    ``facts``: where its scan begins, 0 for another file; height, width as stored; whether it has
    APP1 segments; rows and columns of segments between restart markers, 0 where it cannot be cut
    at them; height and width of a segment in pixels; how many pixels one of the chroma channels
    stands for, down and across; the restart interval; MCUs of the picture.

    This twin finds no file plain: without numba headers are read in Python.
    """
    _read_header(data, facts)


@njit
def _fills(header, scan, facts, tables, mcus, bits, size):
    """Whether ``mcus`` MCUs are what the ``size`` bytes at address ``bits`` hold, to the last byte.

    ``scan``: where the SOS segment is in ``header``; ``tables``: where the DC and AC tables are.
    """
    # For codes of each length: 16 bits that are above them all, and where the symbol of code 0
    # would be.
    length: Any
    k: Any
    above = np.empty((6, 16), np.int32)
    symbol = np.empty((6, 17), np.int64)
    channels = np.int64(header[scan + 4])
    if (channels != 1 and channels != 3) or scan + 8 + 2 * channels != header.size:
        return False
    for c in range(channels):
        for kind in range(2):
            number = header[scan + 6 + 2 * c]
            at = tables[kind, (number if kind else number >> 4) & 3]
            code, place = np.int64(0), at + 16
            for length in range(16):
                many = np.int64(header[at + length])
                symbol[2 * c + kind, length] = place - code
                code += many
                place += many
                if at == 0 or code > 2 << length or place > header.size:
                    return False
                above[2 * c + kind, length] = code << (15 - length)
                code <<= 1
    here = np.int64(0)
    for _ in range(mcus):
        for c in range(channels):
            for _ in range(1 if c else facts[8] * facts[9]):
                k = 0
                while k < 64:
                    table = 2 * c + (k > 0)
                    word = np.int32(peek(bits, here) >> np.uint64(48))
                    length = np.int32(0)  # of the code, less 1: without a branch
                    for shorter in range(16):
                        length += np.int32(word >= above[table, shorter])
                    if length > 15:
                        return False
                    value = np.int64(header[symbol[table, length] + (word >> (15 - length))])
                    category = value if k == 0 else value & 15
                    here += length + 1 + category
                    if here > 8 * size or category > 11:
                        return False
                    if k == 0:
                        k = 1
                    elif category:
                        k += 1 + (value >> 4)
                    elif value == 0xF0:
                        k += 16
                    else:
                        break
                if k > 64:
                    return False
    return (here + 7) >> 3 == size


@njit
def _needed(facts, wanted, found, bounds):
    """Whether cutting the part out costs less than decoding the whole. ``bounds``: its first and
    end row of segments, its first and end column; ``found``: the part that these show."""
    pixels = np.int64(1)
    for axis in range(2):
        side, tall, count = facts[1 + axis], facts[6 + axis], facts[4 + axis]
        # upsampling mixes a pixel of a chroma channel with the next one
        more = (7 + wanted[4]) // wanted[4] if facts[8 + axis] > 1 else 0
        bounds[axis, 0] = max(0, wanted[axis] - more) // tall
        bounds[axis, 1] = min((wanted[axis + 2] + more + tall - 1) // tall, count)
        found[1 + axis] = bounds[axis, 0] * tall
        found[3 + axis] = min(bounds[axis, 1] * tall, side)
        length = found[3 + axis] - found[1 + axis]
        if length < min(_SHORTEST, side):
            return False
        pixels *= length
    return facts[1] * facts[2] - pixels >= _WORTH


@njit
def _segment_starts(data, address, scan, begins):
    """Whether the scan has the markers that it should have, and no others. ``begins``: where each
    of its segments begins, and where the last one ends."""
    total = begins.size - 1
    begins[0] = scan
    count, at, size = 1, scan, data.size
    while at + 2 <= size and count <= total:
        step = 64 if at + 65 <= size else 1
        if step == 64:
            marks = _markers(address + at)
        else:
            marks = np.uint64(data[at] == 0xFF and data[at + 1] != 0)
        while marks and count <= total:
            k = at + _lowest_bit(marks)
            marker = data[k + 1]
            if marker != (0xD9 if count == total else 0xD0 + ((count - 1) & 7)):
                return False
            begins[count] = k + 2
            count += 1
            marks &= marks - np.uint64(1)
        at += step
    return count == total + 1


@njit
def _header_of_part(data, scan, found, out, tables):
    """Write the header of the part ``found``, without what says nothing about its pixels.

    ``tables[kind, number]``: where the symbols of a Huffman table are in ``out``. Returns how many
    bytes the header has, and where the scan header is in ``out``; 0, 0 where the file has changed
    meanwhile.
    """
    out[0], out[1] = 0xFF, 0xD8
    written, at, frame, last = np.int64(2), np.int64(2), np.int64(0), np.int64(0)
    target, address = np.int64(out.ctypes.data), np.int64(data.ctypes.data)
    while at < scan:
        marker, begin, end = data[at + 1], at, at + 2 + u16_at(data, at + 2)
        if end > scan:  # another process writes to the file
            return np.int64(0), np.int64(0)
        at = end
        if marker == 0xFE or (marker & 0xF0 == 0xE0 and marker != 0xE0 and marker != 0xEE):
            continue
        memcpy(np.uintp(target + written), np.uintp(address + begin), np.uintp(end - begin))
        last = written
        written += end - begin
        if marker == 0xC4:
            here = last + 4
            while here + 17 <= written:
                tables[(out[here] >> 4) & 1, out[here] & 3] = here + 1
                here += 17 + symbols_of(out, here + 1)
        elif marker == 0xC0:
            frame = last
    for axis in range(2):
        side = found[3 + axis] - found[1 + axis]
        out[frame + 5 + 2 * axis], out[frame + 6 + 2 * axis] = side >> 8, side & 255
    return written, last


@njit
def _cut(data, facts, wanted, out, found):
    """See cut_jpeg."""
    found[:] = 0
    scan, rows, columns = facts[0], facts[4], facts[5]
    total = rows * columns
    if total == 0 or total >= data.size or out.size < data.size + _SPARE:
        return
    bounds = np.empty((2, 2), np.int64)
    if not _needed(facts, wanted, found, bounds):
        return
    top, bottom, left, right = bounds[0, 0], bounds[0, 1], bounds[1, 0], bounds[1, 1]
    address, target = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    begins, tables = np.empty(total + 1, np.int64), np.zeros((2, 4), np.int64)
    if not _segment_starts(data, address, scan, begins):
        return
    written, last = _header_of_part(data, scan, found, out, tables)
    if written == 0:
        return
    # The decoder sees bytes left over in a segment at the next one, and where none follows not. The
    # last one has room behind the header, as in the file; the copies of all segments come there.
    k = bottom * columns - columns + right - 1
    mcus, rest = min(facts[10], facts[11] - k * facts[10]), out[written:]
    bits, _ = without_stuffing(data, address, begins[k], target + written, rest)
    rest[bits : bits + 8] = 0
    if not _fills(out[:written], last, facts, tables, mcus, target + written, bits):
        return
    number = 0  # of a segment's marker
    for row in range(top, bottom):
        first, behind = row * columns + left, row * columns + right
        length = begins[behind] - begins[first]
        memcpy(np.uintp(target + written), np.uintp(address + begins[first]), np.uintp(length))
        for k in range(first + 1, behind + 1):
            out[written + begins[k] - begins[first] - 1] = 0xD0 + (number & 7)
            number += 1
        written += length
    # an empty comment, at which the decoder says what was left over in the segments before
    out[written - 1] = 0xFE
    out[written], out[written + 1], out[written + 2], out[written + 3] = 0, 2, 0xFF, 0xD9
    found[0] = written + 4


@kernel(_bytes, offsets_type, offsets_type, types.uint8[::1], offsets_type)
def cut_jpeg(data, facts, wanted, out, found):
    """Write a JPEG to ``out`` that has the segments of ``data`` around a part of the picture.

    ``facts``: see jpeg_header. ``wanted``: first row, first column, end row and end column of
    the part, and at how many eighths of its size the picture is decoded. ``found``: bytes written,
    and the part that they show; 0 bytes where it costs no less than the whole, where the scan has
    not exactly the markers that it should have, or where the last of the segments has other MCUs.

    This twin cuts nothing.
    """
    _cut(data, facts, wanted, out, found)


@njit
def _eighths(height, width, low_h, low_w):
    """At how many eighths of its size a JPEG is decoded that must have (low_h, low_w) pixels."""
    if 2 * low_h <= height + 1:
        for n in range(1, 5):
            if (height * n + 7) // 8 >= low_h and (width * n + 7) // 8 >= low_w:
                return n
    return 8


@njit
def _needs(length, size, whole):
    """Pixels that a side of ``whole`` must have for ``length`` of it to be at least ``size``: all
    of them, as the decoder takes it, where there are not so many."""
    return min(whole, np.int64(np.ceil(whole * size / length)))


@kernel(
    *(offsets_type, offsets_type, offsets_type, shares_type, draws_type),
    *(types.Array(types.uint8, 1, "C", readonly=True), types.int64, types.int64, offsets_type),
    *(types.uint8[::1], plans_type, boxes_type),
)
def plan_jpegs(
    addresses, sizes, wanted, shares, draws, flips, out, row_bytes, rows, cuts, plan, boxes
):
    """Plan what is decoded of JPEGs, of ``sizes`` bytes at ``addresses``, and what is made of it.

    ``wanted``: height and width of a row, the crop by its number in CROPS, the most pixels of a
    picture, and 1 where only pictures of that very size are planned; ``shares`` and ``draws``
    (B, 40): see choose_rect. Rows of ``row_bytes`` bytes lie at ``out``. Where a picture has
    restart markers and a part of it costs less, the part is written to ``cuts``, of all ``sizes``
    and 64 bytes for each. ``plan`` (B, PLAN) and ``boxes`` (B, 4) are written, but for the address
    of the pixels. Plain JPEGs are planned, if nothing turns them.

    This twin plans nothing.
    """
    facts = np.empty(12, np.int64)
    part, found = np.empty(5, np.int64), np.empty(5, np.int64)
    high, wide, whole, used = wanted[0], wanted[1], wanted[4] != 0, np.int64(0)
    for i in range(addresses.size):
        plan[i, 6] = 0
        data = carray(u8_pointer(np.uintp(addresses[i])), sizes[i])
        _read_header(data, facts)
        height, width = facts[1], facts[2]
        # turned pictures, and those that are too large, are left to others
        if facts[0] == 0 or height * width > wanted[3]:
            continue
        if facts[3] != 0 and not upright(data, facts[0]):
            continue
        if whole and (height != high or width != wide):
            continue
        rect = choose_rect(height, width, high, wide, wanted[2], shares, draws[i])
        if rect[2] > AVERAGED * high or rect[3] > AVERAGED * wide:
            continue
        low_h, low_w = _needs(rect[2], high, height), _needs(rect[3], wide, width)
        n = 8 if whole else _eighths(height, width, low_h, low_w)
        tall, broad = (height * n + 7) // 8, (width * n + 7) // 8
        scale = 1.0 if tall == height and broad == width else n / 8
        top = left = np.int64(0)
        plan[i, 5], plan[i, 6] = addresses[i], sizes[i]
        if facts[4]:
            more = (8 + n - 1) // n if n < 8 else 0  # the part begins and ends within a pixel
            part[0], part[1] = rect[0] - more, rect[1] - more
            part[2], part[3] = rect[0] + rect[2] + more, rect[1] + rect[3] + more
            part[4] = n
            room = cuts[used : used + sizes[i] + _SPARE]
            _cut(data, facts, part, room, found)
            if found[0]:
                plan[i, 5], plan[i, 6] = -1 - used, found[0]
                used += found[0]
                tall = ((found[3] - found[1]) * n + 7) // 8
                broad = ((found[4] - found[2]) * n + 7) // 8
                top, left = found[1] * n // 8, found[2] * n // 8
        plan[i, 1], plan[i, 2], plan[i, 3], plan[i, 4] = (
            tall,
            broad,
            flips[i],
            out + rows[i] * row_bytes,
        )
        plan[i, 7], plan[i, 8] = (tall, broad) if n < 8 else (np.int64(0), np.int64(0))
        boxes[i, 0], boxes[i, 1] = rect[0] * scale - top, rect[1] * scale - left
        boxes[i, 2], boxes[i, 3] = rect[2] * scale, rect[3] * scale
