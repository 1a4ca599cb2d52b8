"""Scans of JPEGs: their bits, read and written, the segments before them, and the kernel that puts
restart markers into one."""

from __future__ import annotations

import numpy as np
from numba import carray, types

from .base import inner, kernel, offsets_type
from .memory import bytes_from, load, memcpy, reversed_bytes, store

#: Bits of a Huffman code that the tables are indexed by; longer codes are searched for.
_LOOKUP = 11
_ENTRIES = 1 << _LOOKUP
#: What is added to a number of coefficients: see _pairs.
_ENDED, _OTHER = 128, 1024
#: The most segments of a header, as codec reads them.
_SEGMENTS = 4096
#: Bytes behind a scan that may be read, as zeros: one block is at most 250 bytes.
_BEHIND = 512
#: Pixels between two restart markers where they divide the row, and the least and most elsewhere.
_APART, _CLOSEST, _FARTHEST = 64, 48, 160
#: Bytes that a marker and the DC values behind it add, and which part of a scan they may be.
_MARKER, _SHARE = 4, 45


# -- bits, and numbers in segments ----------------------------------------------------------------


@inner(inline="always")
def bits_at(address):
    """64 bits from ``address`` on, the first one the highest."""
    return reversed_bytes(load(address, np.uint64))


@inner(inline="always")
def peek(bits, at):
    """57 or more bits of ``bits`` (an address) from bit ``at`` on, the first one the highest."""
    return bits_at(bits + (at >> 3)) << np.uint64(at & 7)


@inner(inline="always")
def has_255(word):
    """Whether one of the 8 bytes of ``word`` is 0xFF."""
    return (~word - np.uint64(0x0101010101010101)) & word & np.uint64(0x8080808080808080) != 0


@inner
def without_stuffing(data, address, at, bits, out):
    """Copy a scan from ``data[at]`` on without the 0 after each 0xFF, up to a marker or the end.

    Returns (its bytes, where it ends).
    """
    size, count = data.size, 0
    while at < size:
        if at + 8 <= size:
            word = load(address + at, np.uint64)
            if not has_255(word):
                store(bits + count, word)
                at += 8
                count += 8
                continue
        byte = data[at]
        if byte == 0xFF:
            if at + 1 >= size or data[at + 1] != 0:
                break
            at += 1
        out[count] = byte
        at += 1
        count += 1
    return count, at


@inner
def u16_at(data, at):
    """The 16 bits at ``data[at]``."""
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@inner
def symbols_of(data, at):
    """How many symbols the Huffman table at ``data[at]`` has."""
    found = np.int64(0)
    for k in range(16):
        found += np.int64(data[at + k])
    return found


@inner
def segments(data, table):
    """Where the segments of a JPEG begin and end, up to the header of its first scan (T.81, B.1.1):
    a line of ``table`` (n, 2) for each. Returns how many they are; 0 where something stands between
    them, one is not whole, or they are more."""
    size, at = data.size, np.int64(2)
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return 0
    for count in range(table.shape[0]):
        if at + 4 > size or data[at] != 0xFF:
            return 0
        end = at + 2 + u16_at(data, at + 2)
        if end < at + 4 or end > size:
            return 0
        table[count, 0], table[count, 1] = at, end
        if data[at + 1] == 0xDA:
            return count + 1
        at = end
    return 0


@inner
def huffman_tables(data, at, end, places):
    """Whether the tables in a DHT segment's body have valid numbers and fill it exactly.
    ``places`` (2, 4): where each DC and AC table's counts of symbols are in ``data``."""
    while at < end:
        kind, number = data[at] >> 4, data[at] & 15
        if kind > 1 or number > 3 or at + 17 > end:
            return False
        symbols = symbols_of(data, at + 1)
        if symbols > 256:
            return False
        places[kind, number] = at + 1
        at += 17 + symbols
    return at == end


@inner(inline="always")
def _put_bytes(out, word, size):
    """Write the ``size`` low bytes of ``word``, a 0 after each 0xFF; the address behind them."""
    for k in range(size):
        byte = (word >> np.uint64(8 * (size - 1 - k))) & np.uint64(0xFF)
        store(out, byte)
        store(out + 1, np.uint64(0))
        out += 2 if byte == np.uint64(0xFF) else 1
    return out


@inner
def put(out, held, count, value, length):
    """Append the ``length`` (at most 32) low bits of ``value`` to the ``count`` bits in ``held``.

    32 bits go to address ``out`` as soon as there are so many, with a 0 after each 0xFF (T.81,
    F.1.2.3). Returns (out, held, count).
    """
    held = (held << np.uint64(length)) | value
    count += length
    if count >= 32:
        count -= 32
        word = (held >> np.uint64(count)) & np.uint64(0xFFFFFFFF)
        if has_255(word):
            out = _put_bytes(out, word, 4)
        else:
            store(out, reversed_bytes(np.uint32(word)))
            out += 4
    return out, held, count


@inner
def copy_bits(bits, start, end, out, held, count):
    """Append bits ``start`` to ``end`` of ``bits``; returns as put does."""
    length = min(-count & 7, end - start)  # so that what follows begins a byte
    if length:
        word = peek(bits, start) >> np.uint64(64 - length)
        out, held, count = put(out, held, count, word, length)
        start += length
    if end - start >= 64 and count & 7 == 0:
        out = _put_bytes(out, held, count >> 3)
        count = 0
        more = np.uint64(start & 7)
        while end - start >= 64:
            at = bits + (start >> 3)
            word = bits_at(at) << more
            word |= (bits_at(at + 8) >> np.uint64(1)) >> (np.uint64(63) - more)
            start += 64
            if has_255(word):
                out = _put_bytes(out, word, 8)
            else:
                store(out, reversed_bytes(word))
                out += 8
    while end > start:
        length = min(end - start, 32)
        word = peek(bits, start) >> np.uint64(64 - length)
        out, held, count = put(out, held, count, word, length)
        start += length
    return out, held, count


@inner
def end_segment(out, held, count):
    """Write the bits in ``held``, filled up with ones; returns where the next byte goes."""
    filled = -count & 7
    held = (held << np.uint64(filled)) | ((np.uint64(1) << np.uint64(filled)) - np.uint64(1))
    return _put_bytes(out, held, (count + filled) >> 3)


# -- restart markers ------------------------------------------------------------------------------


@inner
def _huffman(data, at, single, long, codes):
    """Make the tables of the Huffman table at ``data[at]`` (T.81, C.2); False for an invalid one.

    ``single``: by the next bits: length of the code << 8 | its symbol, 0 for a longer one or none;
    ``long``: for each length: first code, number of codes, index of its first symbol in the file;
    ``codes``: for each symbol up to 15: length << 32 | code, 0 for none; then, as number 16, the
    same of the last code plus one.
    """
    single[:] = 0
    codes[:] = 0
    code, symbol = 0, at + 16
    for length in range(1, 17):
        number = np.int64(data[at + length - 1])
        long[length, 0], long[length, 1], long[length, 2] = code, number, symbol
        if number and code + number >= 1 << length:  # no code may be all ones
            return False
        for _ in range(number):
            value = np.int64(data[symbol])
            if length <= _LOOKUP:
                shift = _LOOKUP - length
                single[code << shift : (code + 1) << shift] = length << 8 | value
            if value < 16 and codes[value] == 0:
                codes[value] = length << 32 | code
            code += 1
            symbol += 1
        if number:
            codes[16] = length << 32 | code
        code <<= 1
    return True


@inner
def _pairs(single, many):
    """``many``: what ``single`` says of AC coefficients, as many as the bits hold: their bits
    (5 bits), and how many they are, zeros included, << 5; _ENDED more of these at the end of the
    block, _OTHER more where it is no valid symbol, or a longer one."""
    for i in range(_ENTRIES):
        entry = np.int64(single[i])
        length, run, size = entry >> 8, (entry >> 4) & 15, entry & 15
        if entry == 0 or size > 10 or (size == 0 and run not in (0, 15)):
            many[i] = _OTHER << 5
        elif size == 0 and run == 0:
            many[i] = length | _ENDED << 5
        else:
            many[i] = (length + size) | (run + 1) << 5
    # From the longest first symbols on: what follows has been looked up by then or is looked up
    # as it is, one symbol: both are right.
    for i in range(_ENTRIES):
        entry = np.int64(many[i])
        taken = entry & 31
        if entry >> 5 >= _ENDED or taken >= _LOOKUP:
            continue
        follow = np.int64(many[(i << taken) & (_ENTRIES - 1)])
        number = (entry >> 5) + (follow >> 5)
        if taken + (follow & 31) <= _LOOKUP and number < _OTHER and number & (_ENDED - 1) < 64:
            many[i] = (taken + (follow & 31)) | number << 5


@inner
def _long_code(word, long, data):
    """Length << 8 | symbol of the code of over _LOOKUP bits that ``word`` begins with, or 0."""
    for length in range(_LOOKUP + 1, 17):
        code = np.int64(word >> np.uint64(64 - length)) - long[length, 0]
        if 0 <= code < long[length, 1]:
            return length << 8 | np.int64(data[long[length, 2] + code])
    return 0


@inner
def _interval(row, rows, pixels, size):
    """MCUs between two markers: a divisor of a row's, or all of them.

    ``row``: MCUs of ``pixels`` pixels each; ``size``: bytes of the scan, to which markers that
    are closer than a row add 1 in _SHARE at most.
    """
    best = row
    for number in range(1, row):
        apart = number * pixels
        nearer = best == row or abs(apart - _APART) <= abs(best * pixels - _APART)
        cheap = row // number * rows * _MARKER * _SHARE <= size
        if row % number == 0 and _CLOSEST <= apart <= _FARTHEST and nearer and cheap:
            best = number
    return best


@inner
def _sections(data, tables):
    """Where a baseline JPEG's frame header, its scan header and its scan begin; 0, 0, 0 for a file
    that gets no markers. ``tables`` (2, 4): where its DC and AC tables are, 0 for none."""
    nothing = np.int64(0), np.int64(0), np.int64(0)
    places, frame = np.empty((_SEGMENTS, 2), np.int64), np.int64(0)
    count = segments(data, places)
    for k in range(count - 1):
        at, end = places[k, 0], places[k, 1]
        marker = data[at + 1]
        if marker == 0xC0 and frame == 0:
            frame = at
        elif marker == 0xC4:
            if not huffman_tables(data, at + 4, end, tables):
                return nothing
        elif marker == 0xE2 and end >= at + 8:
            # Multi-picture files state the offset of their other pictures.
            if data[at + 4] == 0x4D and data[at + 5] == 0x50 and data[at + 6] == 0x46:
                return nothing
        elif not (marker == 0xDB or marker == 0xFE or (marker & 0xF0) == 0xE0):
            return nothing
    if count == 0 or frame == 0:
        return nothing
    scan, at = places[count - 1, 0], places[count - 1, 1]
    parts = np.int64((at - scan - 8) // 2)  # components in the scan
    if at != scan + 8 + 2 * parts or (parts != 1 and parts != 3) or data[scan + 4] != parts:
        return nothing
    if u16_at(data, frame + 2) != 8 + 3 * parts or data[frame + 4] != 8:
        return nothing
    high, wide = u16_at(data, frame + 5), u16_at(data, frame + 7)
    if data[frame + 9] != parts or high == 0 or wide == 0:
        return nothing
    if data[at - 3] != 0 or data[at - 2] != 63 or data[at - 1] != 0:
        return nothing
    return frame, scan, at


@inner
def _mcu(data, frame, scan, tables, codes, made, blocks):
    """Make the Huffman tables that a scan uses, and note the blocks of an MCU.

    ``codes``: the tables ``single``, ``many`` and ``long``, and the codes of the DC symbols, see
    _huffman and _pairs; ``made`` (2, 4): which of them there are; ``blocks`` (3, 10): component, DC
    and AC table of each block. Returns how many blocks an MCU has, and its blocks across and down;
    0, 0, 0 for a file that gets no markers.
    """
    single, many, long, symbols = codes
    parts, count = np.int64(data[scan + 4]), np.int64(0)
    most_x, most_y = np.int64(1), np.int64(1)
    for c in range(parts):
        spread = data[frame + 11 + 3 * c]
        x, y = np.int64(spread >> 4), np.int64(spread & 15)
        dc, ac = np.int64(data[scan + 6 + 2 * c] >> 4), np.int64(data[scan + 6 + 2 * c] & 15)
        if data[scan + 5 + 2 * c] != data[frame + 10 + 3 * c] or dc > 3 or ac > 3:
            return 0, 0, 0
        if x < 1 or x > 4 or y < 1 or y > 4:
            return 0, 0, 0
        if parts == 1:
            x, y = np.int64(1), np.int64(1)
        if count + x * y > 10:
            return 0, 0, 0
        for kind in range(2):
            number = ac if kind else dc
            if not made[kind, number]:
                place = tables[kind, number]
                if place == 0:
                    return 0, 0, 0
                own = single[(4 * kind + number) * _ENTRIES :][:_ENTRIES]
                if not _huffman(data, place, own, long[kind, number], symbols[kind, number]):
                    return 0, 0, 0
                if kind:
                    _pairs(own, many[number * _ENTRIES :][:_ENTRIES])
                made[kind, number] = 1
        most_x, most_y = max(most_x, x), max(most_y, y)
        for _ in range(x * y):
            blocks[0, count], blocks[1, count], blocks[2, count] = c, dc, ac
            count += 1
    return count, most_x, most_y


@inner
def _longer_codes(symbols, made, extra):
    """Codes for the differences that a DC table lacks: longer than all it has, so that these stay.

    ``extra`` (4, 3): of each table the length of the new codes, how many there are, and whether one
    is used. Returns the bytes that new tables may add.
    """
    more = np.int64(0)
    for t in range(4):
        lacking = np.int64(0)
        for value in range(12):
            lacking += made[0, t] and symbols[t, value] == 0
        last = symbols[t, 16] >> 32
        if not lacking or not last:
            continue
        for length in range(last + 1, 17):
            code = (symbols[t, 16] & 0xFFFF) << (length - last)
            if code + lacking < 1 << length:
                extra[t, 0], extra[t, 1] = length, lacking
                more += 2 + 2 + 17 + 12 + 256
                for value in range(12):
                    if symbols[t, value] == 0:
                        symbols[t, value] = length << 32 | code
                        code += 1
                break
    return more


@inner
def _own_value(value, symbols, extra):
    """(code, its length) of a block's own DC value, where the file has the difference; length 0
    where the table has no code for it."""
    size, new = abs(value), np.int64(0)
    while size >> new:
        new += 1
    code = symbols[new]
    if code == 0:
        return 0, 0
    if extra[0] and code >> 32 == extra[0]:
        extra[2] = 1
    bits = value if value >= 0 else value + (1 << new) - 1
    return (code & 0xFFFF) << new | bits, (code >> 32) + new


@inner(inline="always")
def _behind_block(bits, here, t, codes, data):
    """The bit behind a block's AC coefficients, which begin at bit ``here``; -1 for an invalid one.

    ``t``: their table.
    """
    single, many, long, _ = codes
    base = np.uint64(t * _ENTRIES)
    k = np.int64(1)
    while True:
        # Of the 57 bits or more of a word three look-ups take 22 each at most.
        word = peek(bits, here)
        entry = np.int64(many[base + (word >> np.uint64(64 - _LOOKUP))])
        here += entry & 31
        k += entry >> 5
        if k < 64:
            word <<= np.uint64(entry & 31)
            entry = np.int64(many[base + (word >> np.uint64(64 - _LOOKUP))])
            here += entry & 31
            k += entry >> 5
            if k < 64:
                word <<= np.uint64(entry & 31)
                entry = np.int64(many[base + (word >> np.uint64(64 - _LOOKUP))])
                here += entry & 31
                k += entry >> 5
                if k < 64:
                    continue
        if k == 64 or 0 <= k - _ENDED < 64:
            return here
        # One symbol: long codes, and a block that ends without a code, at number 64.
        here -= entry & 31
        k -= entry >> 5
        word = peek(bits, here)
        index = base + (word >> np.uint64(64 - _LOOKUP))
        entry = np.int64(single[np.uint64(4 * _ENTRIES) + index])
        if entry == 0:
            entry = _long_code(word, long[1, t], data)
            if entry == 0:
                return -1
        run, category = (entry >> 4) & 15, entry & 15
        here += (entry >> 8) + category
        if category == 0 and run == 0:
            return here
        k += run + 1
        if category > 10 or (category == 0 and run != 15) or k > 64:
            return -1
        if k == 64:
            return here


@inner
def _difference(word, t, codes, data):
    """The bits of a DC difference with its code, which begin ``word``, and its value; 0 bits for
    one that is not in table ``t``."""
    entry = np.int64(codes[0][np.uint64(t * _ENTRIES) + (word >> np.uint64(64 - _LOOKUP))])
    if entry == 0:
        entry = _long_code(word, codes[2][0, t], data)
    length, category = entry >> 8, entry & 255
    if category > 11:
        return np.int64(0), np.int64(0)
    # T.81, F.2.2.1, without branches: a first bit of 0 means a negative difference
    value = np.int64(word << np.uint64(length) >> np.uint64(1) >> np.uint64(63 - category))
    value -= ((value << 1 >> category) ^ 1) * ((1 << category) - 1)
    return length + category, value


@inner
def _write_scan(
    data, bits, count, mcus, interval, mcu, codes, extra,
    out, limit
):  # fmt: skip
    """Write a scan of ``count`` bytes from address ``bits`` to ``out``, with a marker after each
    ``interval`` MCUs; returns the address behind it, 0 for a scan that gets no markers.

    ``mcu``: component, DC and AC table of its blocks, and how many there are. AC bits are copied as
    they are; of the DC values only the first of each component behind a marker is coded anew.
    """
    symbols = codes[3]
    part_of, dc_of, ac_of, blocks = mcu
    held, in_held = np.uint64(0), np.int64(0)
    before = np.zeros(3, np.int64)
    due = np.zeros(3, np.uint8)
    here, copied, left, marks = np.int64(0), np.int64(0), interval, np.int64(0)
    for _ in range(mcus):
        if left == 0:
            if limit - out < (here - copied) // 4 + 64:
                return 0
            out, held, in_held = copy_bits(bits, copied, here, out, held, in_held)
            out = end_segment(out, held, in_held)
            in_held = np.int64(0)
            store(out, np.uint64(0xFF | (0xD0 + (marks & 7)) << 8))
            out += 2
            marks += 1
            copied, left = here, interval
            due[:] = 1
        left -= 1
        for b in range(blocks):
            c, t = part_of[b], dc_of[b]
            length, value = _difference(peek(bits, here), t, codes, data)
            before[c] += value
            if length == 0 or before[c] > 2047 or before[c] < -2047:
                return 0
            if due[c]:
                # The first block of a component in a segment: its own value, not the difference.
                if limit - out < (here - copied) // 4 + 64:
                    return 0
                out, held, in_held = copy_bits(bits, copied, here, out, held, in_held)
                code, own = _own_value(before[c], symbols[0, t], extra[t])
                if own == 0:
                    return 0
                out, held, in_held = put(out, held, in_held, np.uint64(code), own)
                copied = here + length
                due[c] = 0
            here = _behind_block(bits, here + length, ac_of[b], codes, data)
            if here < 0 or here > count * 8:
                return 0
    if (here + 7) >> 3 != count or limit - out < (here - copied) // 4 + 64:
        return 0
    out, held, in_held = copy_bits(bits, copied, here, out, held, in_held)
    return end_segment(out, held, in_held)


@inner
def _scan_header(
    data, address, scan, at, out, interval, tables,
    symbols, extra
):  # fmt: skip
    """Write, from ``out`` backwards, the scan's header, the interval, and the DC tables that got
    new codes which are used; returns where they begin."""
    out -= at - scan
    memcpy(out, address + scan, at - scan)
    out -= 6
    store(out, np.uint64(0x0400DDFF | (interval >> 8) << 32 | (interval & 255) << 40))
    memcpy(out + 6, address + scan, 2)
    for t in range(4):
        if extra[t, 2]:
            place = tables[0, t]
            number = symbols_of(data, place)
            length = 19 + number + extra[t, 1]
            out -= 2 + length
            table = carray(bytes_from(out), 2 + length)
            table[0], table[1] = 0xFF, 0xC4
            table[2], table[3], table[4] = length >> 8, length & 255, t
            for k in range(16 + number):
                table[5 + k] = data[place + k]
            table[4 + extra[t, 0]] = extra[t, 1]
            k = 21 + number
            for value in range(12):
                if symbols[t, value] >> 32 == extra[t, 0]:
                    table[k] = value
                    k += 1
    return out


@kernel(*[types.int64] * 5, offsets_type)
def add_restarts(address, size, scratch, start, room, result):
    """Put restart markers into a JPEG of one baseline Huffman scan without any other change to its
    pixels, tables and segments: only the DC differences at the markers are coded anew.

    ``address`` and ``size``: the file. ``scratch``: ``size + 1024`` bytes. ``out``: ``room`` bytes,
    in which the new file is written. ``result``: where it begins and ends there; 0 and 0 where the
    file is of another kind, has markers, is too small for them or is damaged.
    """
    result[0], result[1] = 0, 0
    data = carray(bytes_from(address), size)
    tables = np.zeros((2, 4), np.int64)
    frame, scan, at = _sections(data, tables)
    if scan == 0:
        return
    codes = (
        np.empty(8 * _ENTRIES, np.uint16),  # four DC tables, four AC tables
        np.empty(4 * _ENTRIES, np.uint16),
        np.empty((2, 4, 17, 3), np.int64),
        np.zeros((2, 4, 17), np.int64),
    )
    made, blocks = np.zeros((2, 4), np.uint8), np.zeros((3, 10), np.int64)
    number, most_x, most_y = _mcu(data, frame, scan, tables, codes, made, blocks)
    if number == 0:
        return
    extra = np.zeros((4, 3), np.int64)
    # bytes before the scan's header: with the interval, and new tables where needed
    header = scan + 6 + _longer_codes(codes[3][0], made, extra)
    plain = carray(bytes_from(scratch), size - at + _BEHIND)
    count, tail = without_stuffing(data, address, at, scratch, plain)
    if tail + 2 > size or data[tail + 1] != 0xD9:
        return
    row = (u16_at(data, frame + 7) + 8 * most_x - 1) // (8 * most_x)
    rows = (u16_at(data, frame + 5) + 8 * most_y - 1) // (8 * most_y)
    interval = _interval(row, rows, 8 * most_x, count)
    if row * rows <= interval or header + size - scan > room:
        return
    plain[count : count + _BEHIND] = 0
    first = start + header + (at - scan)
    limit = start + room - (size - tail)
    mcu = blocks[0], blocks[1], blocks[2], number
    end = _write_scan(data, scratch, count, row * rows, interval, mcu, codes, extra, first, limit)
    if end == 0:
        return
    memcpy(end, address + tail, size - tail)
    result[1] = end + size - tail - start
    out = _scan_header(data, address, scan, at, first, interval, tables, codes[3][0], extra)
    memcpy(out - scan, address, scan)
    result[0] = out - scan - start
