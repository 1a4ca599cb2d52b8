"""What kernels of JPEGs share: bits of a scan, read and written, and numbers in its segments."""

from __future__ import annotations

import numpy as np

from .base import inner
from .memory import load, reversed_bytes, store


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
