"""Kernels that work on a JPEG's bytes: cut a part out, put restart markers in."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from .base import i8, kernel, load_any, memcpy, offsets_type, store_any, u8_pointer


@intrinsic
def _load_u8(typingctx: Any, address: Any) -> Any:
    """The 8 bytes at ``address``, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return load_any(builder, arguments[0], ir.IntType(64))

    return types.uint64(types.int64), generate


_bytes = types.Array(types.uint8, 1, "C", readonly=True)


@intrinsic
def _load_bits(typingctx: Any, address: Any) -> Any:
    """64 bits from ``address`` on, the first one the highest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(load_any(builder, arguments[0], ir.IntType(64)))

    return types.uint64(types.int64), generate


@intrinsic
def _store_u8(typingctx: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_any(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@njit(inline="always")
def _peek(bits: Any, at: Any) -> Any:
    """57 or more bits of ``bits`` (an address) from bit ``at`` on, the first one the highest."""
    return _load_bits(bits + (at >> 3)) << np.uint64(at & 7)


@njit
def _without_stuffing(data: Any, address: Any, at: Any, bits: Any, out: Any) -> Any:
    """Copy a scan from ``data[at]`` on without the 0 after each 0xFF, up to a marker or the end.

    Returns (its bytes, where it ends).
    """
    size, count = data.size, 0
    while at < size:
        if at + 8 <= size:
            word = _load_u8(address + at)
            other = ~word
            high = np.uint64(0x8080808080808080)
            if not (other - np.uint64(0x0101010101010101)) & word & high:
                _store_u8(bits + count, word)
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


@intrinsic
def _markers(typingctx: Any, address: Any) -> Any:
    """A bit for each of the 64 bytes at ``address``: whether it is 0xFF and the next one not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.IntType(8), 64)
        one = ir.Constant(ir.IntType(64), 1)
        first = load_any(builder, arguments[0], kind)
        second = load_any(builder, builder.add(arguments[0], one), kind)
        found = builder.and_(
            builder.icmp_unsigned("==", first, ir.Constant(kind, [0xFF] * 64)),
            builder.icmp_unsigned("!=", second, ir.Constant(kind, [0] * 64)),
        )
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(types.int64), generate


@intrinsic
def _lowest_bit(typingctx: Any, value: Any) -> Any:
    """The number of the lowest bit that is set in ``value``, which is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


# -- the header, and parts ------------------------------------------------------------------------

#: Pixels that must be saved: finding and copying the segments takes as long as decoding some
#: thousand pixels.
_WORTH = 16_384
#: Shortest side of a part: a decoder treats pictures of a few pixels in other ways.
_SHORTEST = 64
#: Bytes that must be there behind those of the file.
_SPARE = 64


@njit
def _number(data: Any, at: Any) -> Any:
    """The 16 bits at ``data[at]``."""
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@njit
def _tables_fit(data: Any, at: Any, end: Any, marker: Any) -> Any:
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
        symbols = np.int64(0)
        for k in range(16):
            symbols += np.int64(data[at + k])
        if symbols > 256:
            return False
        at += 16 + symbols
    return at == end


@kernel(_bytes, offsets_type)
def jpeg_header(data, facts):  # type: ignore[no-untyped-def]
    facts[:] = 0
    size, at, frame, interval = data.size, np.int64(2), np.int64(0), np.int64(0)
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return
    for _ in range(256):
        if at + 4 > size or data[at] != 0xFF:
            return
        marker, end = data[at + 1], at + 2 + _number(data, at + 2)
        if end < at + 4 or end > size:
            return
        body, length = at + 4, end - at - 4
        if marker == 0xC4 or marker == 0xDB:
            if not _tables_fit(data, body, end, marker):
                return
        elif marker == 0xC0 and frame == 0:
            frame = at
        elif marker == 0xDD and length == 2:
            interval = _number(data, body)
        elif marker == 0xDA:
            break
        elif marker == 0xE0:
            # JFIF of another version is a warning of the decoder
            if length >= 14 and data[body] == 0x4A and data[body + 5] != 1:
                return
        elif marker == 0xE1:
            facts[3] = 1
        elif marker == 0xEE:
            # the same for colours that Adobe's segment has no name for
            if length >= 12 and data[body] == 0x41 and data[body + 11] > 1:
                return
        elif marker != 0xFE and marker & 0xF0 != 0xE0:
            return
        at = end
    if frame == 0 or data[at + 1] != 0xDA or end >= size:
        return
    channels = np.int64(data[frame + 9])
    if data[frame + 4] != 8 or (channels != 1 and channels != 3):
        return
    if _number(data, frame + 2) != 8 + 3 * channels or end != at + 8 + 2 * channels:
        return
    if data[at + 4] != channels:
        return
    across, down = np.int64(data[frame + 11] >> 4), np.int64(data[frame + 11] & 15)
    for c in range(channels):
        if data[at + 5 + 2 * c] != data[frame + 10 + 3 * c]:
            return
        if c and data[frame + 11 + 3 * c] != 0x11:
            return
    if channels == 1:
        if across != 1 or down != 1:
            return
    elif not (across <= 2 and down <= 2) and not (across == 4 and down == 1):
        return
    if across == 0 or down == 0:
        return
    high, wide = _number(data, frame + 5), _number(data, frame + 7)
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


@njit
def _fills(data: Any, scan: Any, facts: Any, tables: Any, mcus: Any, bits: Any, size: Any) -> Any:
    """Whether ``mcus`` MCUs are what the ``size`` bytes at address ``bits`` hold, to the last byte.

    ``scan``: where the SOS segment is; ``tables``: where the DC and AC tables are.
    """
    # For codes of each length: 16 bits that are above them all, and where the symbol of code 0
    # would be.
    length: Any
    k: Any
    above = np.empty((6, 16), np.int32)
    symbol = np.empty((6, 17), np.int64)
    channels = np.int64(data[scan + 4])
    for c in range(channels):
        for kind in range(2):
            number = data[scan + 6 + 2 * c]
            at = tables[kind, (number if kind else number >> 4) & 3]
            code, place = np.int64(0), at + 16
            for length in range(16):
                many = np.int64(data[at + length])
                symbol[2 * c + kind, length] = place - code
                code += many
                place += many
                if at == 0 or code > 2 << length or place > data.size:
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
                    word = np.int32(_peek(bits, here) >> np.uint64(48))
                    length = np.int32(0)  # of the code, less 1: without a branch
                    for shorter in range(16):
                        length += np.int32(word >= above[table, shorter])
                    if length > 15:
                        return False
                    value = np.int64(data[symbol[table, length] + (word >> (15 - length))])
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


@kernel(_bytes, offsets_type, offsets_type, types.uint8[::1], offsets_type)
def cut_jpeg(data, facts, wanted, out, found):  # type: ignore[no-untyped-def]
    found[:] = 0
    scan, rows, columns = facts[0], facts[4], facts[5]
    total = rows * columns
    if total == 0 or total >= data.size or out.size < data.size + _SPARE:
        return
    # -- the segments that the part needs ---------------------------------------------------------
    bounds = np.empty((2, 2), np.int64)
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
            return
        pixels *= length
    if facts[1] * facts[2] - pixels < _WORTH:
        return
    top, bottom, left, right = bounds[0, 0], bounds[0, 1], bounds[1, 0], bounds[1, 1]
    # -- where the segments begin; all markers of the scan, and their numbers ---------------------
    begins = np.empty(total + 1, np.int64)
    begins[0] = scan
    count, at, size = 1, scan, data.size
    address = np.int64(data.ctypes.data)
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
                return
            begins[count] = k + 2
            count += 1
            marks &= marks - np.uint64(1)
        at += step
    if count != total + 1:
        return
    # -- the header, without what says nothing about the pixels; tables[kind, number]: of symbols --
    tables = np.zeros((2, 4), np.int64)
    out[0], out[1] = 0xFF, 0xD8
    written, at, frame, last = np.int64(2), np.int64(2), np.int64(0), np.int64(0)
    target = np.int64(out.ctypes.data)
    while at < scan:
        marker, end = data[at + 1], at + 2 + _number(data, at + 2)
        if end > scan:  # another process writes to the file
            return
        if marker == 0xC4:
            here = at + 4
            while here + 17 <= end:
                tables[(data[here] >> 4) & 1, data[here] & 3] = here + 1
                symbols = np.int64(0)
                for k in range(16):
                    symbols += np.int64(data[here + 1 + k])
                here += 17 + symbols
        elif marker == 0xC0:
            frame = written
        last = at
        at = end
        if marker != 0xFE and (marker & 0xF0 != 0xE0 or marker == 0xE0 or marker == 0xEE):
            memcpy(np.uintp(target + written), np.uintp(address + last), np.uintp(end - last))
            written += end - last
    for axis in range(2):
        side = found[3 + axis] - found[1 + axis]
        out[frame + 5 + 2 * axis], out[frame + 6 + 2 * axis] = side >> 8, side & 255
    # -- the segments, with new numbers ------------------------------------------------------------
    number = 0
    for row in range(top, bottom):
        first, behind = row * columns + left, row * columns + right
        length = begins[behind] - begins[first]
        memcpy(np.uintp(target + written), np.uintp(address + begins[first]), np.uintp(length))
        for k in range(first + 1, behind + 1):
            out[written + begins[k] - begins[first] - 1] = 0xD0 + (number & 7)
            number += 1
        written += length
    # The decoder sees bytes left over in a segment at the next one, and where none follows not.
    k = bottom * columns - columns + right - 1
    mcus = min(facts[10], facts[11] - k * facts[10])
    unstuffed = out[written:]
    bits, _ = _without_stuffing(data, address, begins[k], target + written, unstuffed)
    unstuffed[bits : bits + 8] = 0
    if not _fills(data, last, facts, tables, mcus, target + written, bits):
        return
    # an empty comment, at which the decoder says what was left over in the segments before
    out[written - 1] = 0xFE
    out[written], out[written + 1], out[written + 2], out[written + 3] = 0, 2, 0xFF, 0xD9
    found[0] = written + 4


# -- restart markers -----------------------------------------------------------------------------

#: Bits of a Huffman code that the tables are indexed by; longer codes are searched for.
_LOOKUP = 11
_ENTRIES = 1 << _LOOKUP
#: What is added to a number of coefficients: see _pairs.
_ENDED, _OTHER = 128, 1024
#: Bytes behind a scan that may be read, as zeros: one block is at most 250 bytes.
_BEHIND = 512
#: Pixels between two restart markers where they divide the row, and the least and most elsewhere.
_APART, _CLOSEST, _FARTHEST = 64, 48, 160
#: Bytes that a marker and the DC values behind it add, and which part of a scan they may be.
_MARKER, _SHARE = 4, 45


@intrinsic
def _store_64_bits(typingctx: Any, address: Any, value: Any) -> Any:
    """All bits of ``value``, the highest first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_any(builder, builder.bswap(arguments[1]), arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@intrinsic
def _store_bits(typingctx: Any, address: Any, value: Any) -> Any:
    """The 32 low bits of ``value``, the highest first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low = builder.trunc(arguments[1], ir.IntType(32))
        store_any(builder, builder.bswap(low), arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@njit(inline="always")
def _put_bytes(out: Any, word: Any, size: Any) -> Any:
    """Write the ``size`` low bytes of ``word``, a 0 after each 0xFF; the address behind them."""
    for k in range(size):
        byte = (word >> np.uint64(8 * (size - 1 - k))) & np.uint64(0xFF)
        _store_u8(out, byte)
        _store_u8(out + 1, np.uint64(0))
        out += 2 if byte == np.uint64(0xFF) else 1
    return out


@njit
def _put(out: Any, held: Any, count: Any, value: Any, length: Any) -> Any:
    """Append the ``length`` (at most 32) low bits of ``value`` to the ``count`` bits in ``held``.

    32 bits go to address ``out`` as soon as there are so many, with a 0 after each 0xFF (T.81,
    F.1.2.3). Returns (out, held, count).
    """
    held = (held << np.uint64(length)) | value
    count += length
    if count >= 32:
        count -= 32
        word = (held >> np.uint64(count)) & np.uint64(0xFFFFFFFF)
        other = word ^ np.uint64(0xFFFFFFFF)
        if (other - np.uint64(0x01010101)) & word & np.uint64(0x80808080):
            out = _put_bytes(out, word, 4)
        else:
            _store_bits(out, word)
            out += 4
    return out, held, count


@njit
def _copy_bits(bits: Any, start: Any, end: Any, out: Any, held: Any, count: Any) -> Any:
    """Append bits ``start`` to ``end`` of ``bits``; returns as _put does."""
    length = min(-count & 7, end - start)  # so that what follows begins a byte
    if length:
        word = _peek(bits, start) >> np.uint64(64 - length)
        out, held, count = _put(out, held, count, word, length)
        start += length
    if end - start >= 64 and count & 7 == 0:
        out = _put_bytes(out, held, count >> 3)
        count = 0
        more = np.uint64(start & 7)
        while end - start >= 64:
            at = bits + (start >> 3)
            word = _load_bits(at) << more
            word |= (_load_bits(at + 8) >> np.uint64(1)) >> (np.uint64(63) - more)
            start += 64
            other = ~word
            if (other - np.uint64(0x0101010101010101)) & word & np.uint64(0x8080808080808080):
                out = _put_bytes(out, word, 8)
            else:
                _store_64_bits(out, word)
                out += 8
    while end > start:
        length = min(end - start, 32)
        word = _peek(bits, start) >> np.uint64(64 - length)
        out, held, count = _put(out, held, count, word, length)
        start += length
    return out, held, count


@njit
def _end_segment(out: Any, held: Any, count: Any) -> Any:
    """Write the bits in ``held``, filled up with ones; returns where the next byte goes."""
    filled = -count & 7
    held = (held << np.uint64(filled)) | ((np.uint64(1) << np.uint64(filled)) - np.uint64(1))
    return _put_bytes(out, held, (count + filled) >> 3)


@njit
def _huffman(data: Any, at: Any, single: Any, long: Any, codes: Any) -> Any:
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


@njit
def _pairs(single: Any, many: Any) -> None:
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


@njit
def _long_code(word: Any, long: Any, data: Any) -> Any:
    """Length << 8 | symbol of the code of over _LOOKUP bits that ``word`` begins with, or 0."""
    for length in range(_LOOKUP + 1, 17):
        code = np.int64(word >> np.uint64(64 - length)) - long[length, 0]
        if 0 <= code < long[length, 1]:
            return length << 8 | np.int64(data[long[length, 2] + code])
    return 0


@njit
def _interval(row: Any, rows: Any, pixels: Any, size: Any) -> Any:
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


@njit
def _sections(data: Any, size: Any, tables: Any) -> Any:
    """Where a baseline JPEG's frame header, its scan header and its scan begin; 0, 0, 0 for a file
    that gets no markers. ``tables`` (2, 4): where its DC and AC tables are, -1 for none."""
    tables[:] = -1
    frame, scan, at = np.int64(0), np.int64(0), np.int64(2)
    while scan == 0:
        if at + 4 > size or data[at] != 0xFF:
            return 0, 0, 0
        marker = data[at + 1]
        end = at + 2 + _number(data, at + 2)
        if end < at + 4 or end > size:
            return 0, 0, 0
        if marker == 0xC0 and frame == 0:
            frame = at
        elif marker == 0xC4:
            here = at + 4
            while here < end:
                kind, number = data[here] >> 4, data[here] & 15
                if here + 17 > end or kind > 1 or number > 3:
                    return 0, 0, 0
                symbols = _symbols(data, here + 1)
                if symbols > 256 or here + 17 + symbols > end:
                    return 0, 0, 0
                tables[kind, number] = here + 1
                here += 17 + symbols
        elif marker == 0xDA and end >= at + 10:
            scan = at
        elif marker == 0xE2 and end >= at + 8:
            # Multi-picture files state the offset of their other pictures.
            if data[at + 4] == 0x4D and data[at + 5] == 0x50 and data[at + 6] == 0x46:
                return 0, 0, 0
        elif not (marker == 0xDB or marker == 0xFE or (marker & 0xF0) == 0xE0):
            return 0, 0, 0
        at = end
    parts = np.int64(data[scan + 4])
    if frame == 0 or at != scan + 8 + 2 * parts or (parts != 1 and parts != 3):
        return 0, 0, 0
    if _number(data, frame + 2) != 8 + 3 * parts or data[frame + 4] != 8:
        return 0, 0, 0
    high, wide = _number(data, frame + 5), _number(data, frame + 7)
    if data[frame + 9] != parts or high == 0 or wide == 0:
        return 0, 0, 0
    if data[at - 3] != 0 or data[at - 2] != 63 or data[at - 1] != 0:
        return 0, 0, 0
    return frame, scan, at


@njit
def _symbols(data: Any, at: Any) -> Any:
    """How many symbols the Huffman table at ``data[at]`` has."""
    found = np.int64(0)
    for k in range(16):
        found += np.int64(data[at + k])
    return found


@njit
def _mcu(data: Any, frame: Any, scan: Any, tables: Any, codes: Any, made: Any, blocks: Any) -> Any:
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
                if place < 0:
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


@njit
def _longer_codes(symbols: Any, made: Any, extra: Any) -> Any:
    """Codes for the differences that a DC table lacks: longer than all it has, so that these stay.

    ``extra`` (4, 3): of each table the length of the new codes, how many there are, and whether one
    is used. Returns the bytes that new tables may add to the header.
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


@njit
def _own_value(value: Any, symbols: Any, extra: Any) -> Any:
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


@njit(inline="always")
def _behind_block(bits: Any, here: Any, t: Any, codes: Any, data: Any) -> Any:
    """The bit behind a block's AC coefficients, which begin at bit ``here``; -1 for an invalid one.

    ``t``: their table.
    """
    single, many, long, _ = codes
    base = np.uint64(t * _ENTRIES)
    k = np.int64(1)
    while True:
        # Of the 57 bits or more of a word three look-ups take 22 each at most.
        word = _peek(bits, here)
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
        word = _peek(bits, here)
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


@njit
def _segments(
    data: Any, bits: Any, count: Any, mcus: Any, interval: Any, mcu: Any, codes: Any, extra: Any,
    out: Any, limit: Any,
) -> Any:  # fmt: skip
    """Write a scan of ``count`` bytes from address ``bits`` to ``out``, with a marker after each
    ``interval`` MCUs; returns the address behind it, 0 for a scan that gets no markers.

    ``mcu``: component, DC and AC table of its blocks, and how many there are. AC bits are copied as
    they are; of the DC values only the first of each component behind a marker is coded anew.
    """
    single, _, long, symbols = codes
    part_of, dc_of, ac_of, blocks = mcu
    held, in_held = np.uint64(0), np.int64(0)
    before = np.zeros(3, np.int64)
    due = np.zeros(3, np.uint8)
    here, copied, left, marks = np.int64(0), np.int64(0), interval, np.int64(0)
    for _ in range(mcus):
        if left == 0:
            if limit - out < (here - copied) // 4 + 64:
                return 0
            out, held, in_held = _copy_bits(bits, copied, here, out, held, in_held)
            out = _end_segment(out, held, in_held)
            in_held = np.int64(0)
            _store_u8(out, np.uint64(0xFF | (0xD0 + (marks & 7)) << 8))
            out += 2
            marks += 1
            copied, left = here, interval
            due[:] = 1
        left -= 1
        for b in range(blocks):
            word = _peek(bits, here)
            c, t = part_of[b], dc_of[b]
            index = word >> np.uint64(64 - _LOOKUP)
            entry = np.int64(single[np.uint64(t * _ENTRIES) + index])
            if entry == 0:
                entry = _long_code(word, long[0, t], data)
                if entry == 0:
                    return 0
            length, category = entry >> 8, entry & 255
            if category > 11:
                return 0
            # T.81, F.2.2.1, without branches: a first bit of 0 means a negative difference
            value = np.int64(word << np.uint64(length) >> np.uint64(1) >> np.uint64(63 - category))
            value -= ((value << 1 >> category) ^ 1) * ((1 << category) - 1)
            before[c] += value
            if before[c] > 2047 or before[c] < -2047:
                return 0
            if due[c]:
                # The first block of a component in a segment: its own value, not the difference.
                if limit - out < (here - copied) // 4 + 64:
                    return 0
                out, held, in_held = _copy_bits(bits, copied, here, out, held, in_held)
                code, own = _own_value(before[c], symbols[0, t], extra[t])
                if own == 0:
                    return 0
                out, held, in_held = _put(out, held, in_held, np.uint64(code), own)
                copied = here + length + category
                due[c] = 0
            here = _behind_block(bits, here + length + category, ac_of[b], codes, data)
            if here < 0 or here > count * 8:
                return 0
    if (here + 7) >> 3 != count or limit - out < (here - copied) // 4 + 64:
        return 0
    out, held, in_held = _copy_bits(bits, copied, here, out, held, in_held)
    return _end_segment(out, held, in_held)


@njit
def _scan_header(
    data: Any, address: Any, scan: Any, at: Any, out: Any, interval: Any, tables: Any,
    symbols: Any, extra: Any,
) -> Any:  # fmt: skip
    """Write, from ``out`` backwards, the scan's header, the interval, and the DC tables that got
    new codes which are used; returns where they begin."""
    out -= at - scan
    memcpy(np.uintp(out), np.uintp(address + scan), np.uintp(at - scan))
    out -= 6
    _store_u8(out, np.uint64(0x0400DDFF | (interval >> 8) << 32 | (interval & 255) << 40))
    memcpy(np.uintp(out + 6), np.uintp(address + scan), np.uintp(2))
    for t in range(4):
        if extra[t, 2]:
            place = tables[0, t]
            number = _symbols(data, place)
            length = 19 + number + extra[t, 1]
            out -= 2 + length
            table = carray(u8_pointer(np.uintp(out)), 2 + length)
            table[0], table[1] = 0xFF, 0xC4
            table[2], table[3], table[4] = length >> 8, length & 255, t
            for k in range(16):
                table[5 + k] = data[place + k]
            table[4 + extra[t, 0]] = extra[t, 1]
            for k in range(number):
                table[21 + k] = data[place + 16 + k]
            k = 21 + number
            for value in range(12):
                if symbols[t, value] >> 32 == extra[t, 0]:
                    table[k] = value
                    k += 1
    return out


@kernel(i8, i8, i8, i8, i8, offsets_type)
def add_restarts(address, size, scratch, start, room, result):  # type: ignore[no-untyped-def]
    result[0], result[1] = 0, 0
    data = carray(u8_pointer(np.uintp(address)), size)
    tables = np.empty((2, 4), np.int64)
    frame, scan, at = _sections(data, size, tables)
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
    plain = carray(u8_pointer(np.uintp(scratch)), size - at + _BEHIND)
    count, tail = _without_stuffing(data, address, at, scratch, plain)
    if tail + 2 > size or data[tail + 1] != 0xD9:
        return
    row = (_number(data, frame + 7) + 8 * most_x - 1) // (8 * most_x)
    rows = (_number(data, frame + 5) + 8 * most_y - 1) // (8 * most_y)
    interval = _interval(row, rows, 8 * most_x, count)
    if row * rows <= interval or header + size - scan > room:
        return
    plain[count : count + _BEHIND] = 0
    first = start + header + (at - scan)
    limit = start + room - (size - tail)
    mcu = blocks[0], blocks[1], blocks[2], number
    end = _segments(data, scratch, count, row * rows, interval, mcu, codes, extra, first, limit)
    if end == 0:
        return
    memcpy(np.uintp(end), np.uintp(address + tail), np.uintp(size - tail))
    result[1] = end + size - tail - start
    out = _scan_header(
        data, address, scan, at, first, interval, tables, codes[3][0], extra
    )  # fmt: skip
    out -= scan
    memcpy(np.uintp(out), np.uintp(address), np.uintp(scan))
    result[0] = out - start
