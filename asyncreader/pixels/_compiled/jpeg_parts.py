"""Kernels that read a JPEG's header, and cut a part of its image out as a smaller JPEG."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types

from ..shared import AVERAGED
from ..tables import FACTS, PART, PLAN
from .base import (
    boxes_type,
    bytes_type,
    choose_rect,
    eighths,
    exif_orientation,
    inner,
    kernel,
    offsets_type,
    planning_types,
    plans_type,
)
from .jpeg_scans import has_255, huffman_tables, peek, segments, u16_at, without_stuffing
from .memory import bytes_from, load, memcpy

#: The most segments of a header, and how many bytes must be there after those of a file.
_SEGMENTS, _SPARE = 256, 64
#: Pixels that must be saved: finding and copying the segments takes as long as decoding some
#: thousand pixels.
_WORTH = 16_384
#: Shortest side of a part: a decoder treats images of a few pixels in other ways.
_SHORTEST = 64
#: How an APP1 segment with EXIF data begins: "Exif".
_EXIF = (0x45, 0x78, 0x69, 0x66, 0, 0)


# -- the header ----------------------------------------------------------------------------------


@inner
def _quantisation_fits(data, at, end):
    """Whether the tables in a DQT segment's body have valid numbers and fill it exactly."""
    while at < end:
        if data[at] >> 4 > 1 or data[at] & 15 > 3:
            return False
        at += 129 if data[at] >> 4 else 65
    return at == end


@inner
def _plain_segments(data, places, facts):
    """Where the frame header is, and how many segments there are, whose ``places`` are written; 0
    for both in a file that is not plain. Sets ``interval`` and ``marked`` of the facts."""
    tables, frame, nothing = np.empty((2, 4), np.int64), np.int64(0), (np.int64(0), np.int64(0))
    count = segments(data, places)
    for k in range(count - 1):
        at, end = places[k, 0], places[k, 1]
        marker, body, length = data[at + 1], at + 4, end - at - 4
        if marker == 0xC4:
            if not huffman_tables(data, body, end, tables):
                return nothing
        elif marker == 0xDB:
            if not _quantisation_fits(data, body, end):
                return nothing
        elif marker == 0xC0 and frame == 0:
            if length < 9:
                return nothing
            frame = at
        elif marker == 0xDD and length == 2:
            facts.interval = u16_at(data, body)
        elif marker == 0xE0:
            # JFIF of another version is a warning of the decoder
            if length >= 14 and data[body] == 0x4A and data[body + 5] != 1:
                return nothing
        elif marker == 0xE1:
            facts.marked = 1
        elif marker == 0xEE:
            # the same for colours that Adobe's segment has no name for
            if length >= 12 and data[body] == 0x41 and data[body + 11] > 1:
                return nothing
        elif marker != 0xFE and marker & 0xF0 != 0xE0:
            return nothing
    return (frame, np.int64(count)) if count and places[count - 1, 1] < data.size else nothing


@inner
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


@inner
def _read_header(data, places, facts):
    """Write what the header of a plain JPEG says: see FACTS. Returns how many segments it has."""
    facts.scan = facts.marked = facts.interval = facts.rows = facts.columns = 0
    frame, count = _plain_segments(data, places, facts)
    if frame == 0 or not _plain_frame(data, frame, places[count - 1, 0], places[count - 1, 1]):
        return 0
    across, down = np.int64(data[frame + 11] >> 4), np.int64(data[frame + 11] & 15)
    high, wide, interval = u16_at(data, frame + 5), u16_at(data, frame + 7), facts.interval
    if high == 0 or wide == 0 or high > 65500 or wide > 65500:
        return 0
    facts.scan, facts.height, facts.width = places[count - 1, 1], high, wide
    facts.down, facts.across = down, across
    columns = (wide + 8 * across - 1) // (8 * across)
    rows = (high + 8 * down - 1) // (8 * down)
    facts.mcus = rows * columns
    if interval == 0 or interval >= rows * columns:
        return count
    if columns % interval == 0:
        facts.rows, facts.columns = rows, columns // interval
        facts.tall, facts.broad = 8 * down, 8 * across * interval
    elif interval % columns == 0:
        many = interval // columns
        facts.rows, facts.columns = (rows + many - 1) // many, 1
        facts.tall, facts.broad = 8 * down * many, wide
    return count


@inner
def _upright(data, places, count):
    """Whether a JPEG with a plain header is known to be stored as it is seen: EXIF says so, or
    there is no orientation in EXIF and no XMP."""
    exif, others, turned = 0, 0, np.int64(0)
    for k in range(count):
        at, end = places[k, 0], places[k, 1]
        if data[at + 1] == 0xE1:
            begins = end >= at + 10
            for letter in range(6 if begins else 0):
                begins = begins and data[at + 4 + letter] == _EXIF[letter]
            if begins:
                exif += 1
                turned = exif_orientation(data, at + 10, end)
            else:
                others += 1
    if exif > 1 or turned < 0:
        return False
    return turned == 1 or (turned == 0 and others == 0)


@kernel(bytes_type, offsets_type)
def jpeg_header(data, facts):
    """Read the header of a plain JPEG: baseline, one scan, 1 or 3 channels of a sampling with a
    name, and no segment at which a decoder would stop or warn. ``facts``: see FACTS.
    """
    _read_header(data, np.empty((_SEGMENTS, 2), np.int64), facts.view(FACTS)[0])


# -- a part --------------------------------------------------------------------------------------


@inner
def _fills(header, scan, blocks, tables, mcus, bits, size):
    """Whether ``mcus`` MCUs are what the ``size`` bytes at address ``bits`` hold, to the last byte.

    ``scan``: where the SOS segment is in ``header``; ``blocks``: of luma in an MCU; ``tables``:
    where the DC and AC tables are.
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
            for _ in range(1 if c else blocks):
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


@inner
def _along_axis(side, step, count, mixed, first, end):
    """The segments along one axis that hold the pixels ``first`` to ``end``: the number of the
    first and the end, and the pixels that they show. ``step``: pixels of one, of which there are
    ``count``; ``mixed``: pixels that the decoder mixes in from outside."""
    low = max(0, first - mixed) // step
    high = min((end + mixed + step - 1) // step, count)
    return low, high, low * step, min(high * step, side)


@inner
def _segment_starts(data, address, scan, begins):
    """Whether the scan has the markers that it should have, and no others. ``begins``: where each
    of its segments begins, and where the last one ends."""
    total = begins.size - 1
    begins[0] = scan
    count, at, size = 1, scan, data.size
    while at + 2 <= size and count <= total:
        if at + 8 <= size and not has_255(load(address + at, np.uint64)):
            at += 8
            continue
        if data[at] == 0xFF and data[at + 1] != 0:
            if data[at + 1] != (0xD9 if count == total else 0xD0 + ((count - 1) & 7)):
                return False
            begins[count] = at + 2
            count += 1
        at += 1
    return count == total + 1


@inner
def _header_of_part(data, places, count, found, out, tables):
    """Write the header of the part ``found``, without what says nothing about its pixels.

    ``tables[kind, number]``: where the counts of a Huffman table are in ``out``. Returns how many
    bytes the header has, and where the scan header is in ``out``; 0, 0 where the file has changed
    meanwhile.
    """
    out[0], out[1] = 0xFF, 0xD8
    written, frame, last = np.int64(2), np.int64(0), np.int64(0)
    target, address = np.int64(out.ctypes.data), np.int64(data.ctypes.data)
    for k in range(count):
        begin, end = places[k, 0], places[k, 1]
        marker = data[begin + 1]
        if marker == 0xFE or (marker & 0xF0 == 0xE0 and marker != 0xE0 and marker != 0xEE):
            continue
        memcpy(target + written, address + begin, end - begin)
        last = written
        written += end - begin
        if marker == 0xC4 and not huffman_tables(out, last + 4, written, tables):
            return np.int64(0), np.int64(0)
        if marker == 0xC0:
            frame = last
    high, wide = found.bottom - found.top, found.right - found.left
    out[frame + 5], out[frame + 6] = high >> 8, high & 255
    out[frame + 7], out[frame + 8] = wide >> 8, wide & 255
    return written, last


@inner
def _cut(data, places, count, facts, wanted, out, found):
    """See cut_jpeg. ``places``: of the header's ``count`` segments."""
    found.size = 0
    rows, columns, mixed = facts.rows, facts.columns, (7 + wanted.eighths) // wanted.eighths
    total = rows * columns
    if total == 0 or total >= data.size or out.size < data.size + _SPARE:
        return
    # upsampling mixes a pixel of a chroma channel with the next one
    down, across = mixed if facts.down > 1 else 0, mixed if facts.across > 1 else 0
    high, wide = facts.height, facts.width
    top, bottom, found.top, found.bottom = _along_axis(
        high, facts.tall, rows, down, wanted.top, wanted.bottom
    )
    left, right, found.left, found.right = _along_axis(
        wide, facts.broad, columns, across, wanted.left, wanted.right
    )
    tall, broad = found.bottom - found.top, found.right - found.left
    if tall < min(_SHORTEST, high) or broad < min(_SHORTEST, wide):
        return
    if high * wide - tall * broad < _WORTH:
        return
    address, target = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    begins, tables = np.empty(total + 1, np.int64), np.zeros((2, 4), np.int64)
    if not _segment_starts(data, address, facts.scan, begins):
        return
    written, last = _header_of_part(data, places, count, found, out, tables)
    if written == 0:
        return
    # The decoder sees bytes left over in a segment at the next one, and where none follows not. The
    # last one has room behind the header, as in the file; the copies of all segments come there.
    k = bottom * columns - columns + right - 1
    mcus, rest = min(facts.interval, facts.mcus - k * facts.interval), out[written:]
    bits, _ = without_stuffing(data, address, begins[k], target + written, rest)
    rest[bits : bits + 8] = 0
    blocks = facts.down * facts.across
    if not _fills(out[:written], last, blocks, tables, mcus, target + written, bits):
        return
    number = 0  # of a segment's marker
    for row in range(top, bottom):
        first, behind = row * columns + left, row * columns + right
        length = begins[behind] - begins[first]
        memcpy(target + written, address + begins[first], length)
        for k in range(first + 1, behind + 1):
            out[written + begins[k] - begins[first] - 1] = 0xD0 + (number & 7)
            number += 1
        written += length
    # an empty comment, at which the decoder says what was left over in the segments before
    out[written - 1] = 0xFE
    out[written], out[written + 1], out[written + 2], out[written + 3] = 0, 2, 0xFF, 0xD9
    found.size = written + 4


@kernel(bytes_type, offsets_type, offsets_type, types.uint8[::1], offsets_type)
def cut_jpeg(data, facts, wanted, out, found):
    """Write a JPEG to ``out`` that has the segments of ``data`` around a part of the image.

    ``facts``: see FACTS. ``wanted``, ``found``: the part, and what is written: see PART. Nothing is
    where it costs no less than the whole, where the scan has not exactly the markers that it should
    have, or where the last of the segments has other MCUs.
    """
    header, part, made = facts.view(FACTS)[0], wanted.view(PART)[0], found.view(PART)[0]
    places = np.empty((_SEGMENTS, 2), np.int64)
    count = segments(data, places)
    made.size = 0
    if count and places[count - 1, 1] == header.scan:
        _cut(data, places, count, header, part, out, made)


# -- many of them --------------------------------------------------------------------------------


@inner
def _needs(length, size, whole):
    """Pixels that a side of ``whole`` must have for ``length`` of it to be at least ``size``: all
    of them, as the decoder takes it, where there are not so many."""
    return min(whole, np.int64(np.ceil(whole * size / length)))


@kernel(*planning_types, types.uint8[::1], plans_type, boxes_type)
def plan_jpegs(
    addresses, sizes, wanted, shares, draws, flips, out, row_bytes, rows, cuts, plan, boxes
):
    """Plan what is decoded of JPEGs, of ``sizes`` bytes at ``addresses``, and what is made of it.

    ``wanted``: height and width of a row, the crop by its number in CROPS, the most pixels of an
    image, and 1 where only images of that very size are planned; ``shares`` and ``draws`` (B, 40):
    see choose_rect. Rows of ``row_bytes`` bytes lie at ``out``. Where an image has restart markers
    and a part of it costs less, the part is written to ``cuts``, of all ``sizes`` and 64 bytes for
    each. ``plan`` (see PLAN) and ``boxes`` (B, 4) are written, but for the address of the pixels.
    Plain JPEGs are planned, if nothing turns them.
    """
    header, both = np.empty(1, FACTS), np.empty(2, PART)
    facts, part, found = header[0], both[0], both[1]
    places, plans = np.empty((_SEGMENTS, 2), np.int64), plan.reshape(-1).view(PLAN)
    high, wide, whole, used = wanted[0], wanted[1], wanted[4] != 0, np.int64(0)
    for i in range(addresses.size):
        line = plans[i]
        line.size = 0
        data = carray(bytes_from(addresses[i]), sizes[i])
        count = _read_header(data, places, facts)
        # turned images, and those that are too large, are left to others
        if count == 0 or facts.height * facts.width > wanted[3]:
            continue
        if facts.marked != 0 and not _upright(data, places, count):
            continue
        height, width = facts.height, facts.width
        if whole and (height != high or width != wide):
            continue
        rect = choose_rect(height, width, high, wide, wanted[2], shares, draws[i])
        if rect[2] > AVERAGED * high or rect[3] > AVERAGED * wide:
            continue
        low_h, low_w = _needs(rect[2], high, height), _needs(rect[3], wide, width)
        n = 8 if whole else eighths(height, width, low_h, low_w)
        tall, broad = (height * n + 7) // 8, (width * n + 7) // 8
        scale = 1.0 if tall == height and broad == width else n / 8
        top = left = np.int64(0)
        line.data, line.size = addresses[i], sizes[i]
        if facts.rows:
            more = (8 + n - 1) // n if n < 8 else 0  # the part begins and ends within a pixel
            part.top, part.left, part.eighths = rect[0] - more, rect[1] - more, n
            part.bottom, part.right = rect[0] + rect[2] + more, rect[1] + rect[3] + more
            room = cuts[used : used + sizes[i] + _SPARE]
            _cut(data, places, count, facts, part, room, found)
            if found.size:
                line.data, line.size = -1 - used, found.size
                used += found.size
                tall = ((found.bottom - found.top) * n + 7) // 8
                broad = ((found.right - found.left) * n + 7) // 8
                top, left = found.top * n // 8, found.left * n // 8
        line.height, line.width, line.mirrored = tall, broad, flips[i]
        line.target = out + rows[i] * row_bytes
        line.low_height, line.low_width = (tall, broad) if n < 8 else (np.int64(0), np.int64(0))
        boxes[i, 0], boxes[i, 1] = rect[0] * scale - top, rect[1] * scale - left
        boxes[i, 2], boxes[i, 3] = rect[2] * scale, rect[3] * scale
    header[0].scan = both[0].size = 0  # in use until here
