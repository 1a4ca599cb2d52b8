"""What kernels of JPEGs share: bits of a scan, read and written, and numbers in its segments."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types

from .base import instruction, load_any, store_any

#: How an APP1 segment with EXIF data begins: "Exif".
_EXIF = (0x45, 0x78, 0x69, 0x66, 0, 0)


@instruction(types.uint64(types.int64))
def load_u8(builder, address):
    """The 8 bytes at ``address``, which need not be aligned."""
    return load_any(builder, address, ir.IntType(64))


@instruction(types.uint64(types.int64))
def load_bits(builder, address):
    """64 bits from ``address`` on, the first one the highest."""
    return builder.bswap(load_any(builder, address, ir.IntType(64)))


@instruction(types.void(types.int64, types.uint64))
def store_u8(builder, address, value):
    store_any(builder, value, address)


@njit(inline="always")
def peek(bits, at):
    """57 or more bits of ``bits`` (an address) from bit ``at`` on, the first one the highest."""
    return load_bits(bits + (at >> 3)) << np.uint64(at & 7)


@njit
def without_stuffing(data, address, at, bits, out):
    """Copy a scan from ``data[at]`` on without the 0 after each 0xFF, up to a marker or the end.

    Returns (its bytes, where it ends).
    """
    size, count = data.size, 0
    while at < size:
        if at + 8 <= size:
            word = load_u8(address + at)
            other = ~word
            high = np.uint64(0x8080808080808080)
            if not (other - np.uint64(0x0101010101010101)) & word & high:
                store_u8(bits + count, word)
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


@njit
def u16_at(data, at):
    """The 16 bits at ``data[at]``."""
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@njit
def _number(data, at, size, little):
    """The number in ``size`` bytes at ``data[at]``, the lowest one first where ``little``."""
    found = np.int64(0)
    for k in range(size):
        found = found << 8 | np.int64(data[at + (size - 1 - k if little else k)])
    return found


@njit
def _exif_turn(data, tiff, end):
    """The orientation in EXIF data: 0 where they have none, -1 where they are not as they should
    be (codec/jpeg_segments.py)."""
    size = end - tiff
    if size < 8 or data[tiff] != data[tiff + 1]:
        return -1
    little = data[tiff] == 0x49
    if (not little and data[tiff] != 0x4D) or _number(data, tiff + 2, 2, little) != 42:
        return -1
    ifd = _number(data, tiff + 4, 4, little)
    if ifd + 2 > size:
        return -1
    turned, last = 0, ifd + 2 + 12 * _number(data, tiff + ifd, 2, little)
    for entry in range(ifd + 2, min(last, size - 11), 12):
        if _number(data, tiff + entry, 2, little) == 0x0112:
            kind = _number(data, tiff + entry + 2, 2, little)
            if kind != 3 or _number(data, tiff + entry + 4, 4, little) != 1:
                return -1
            turned = _number(data, tiff + entry + 8, 2, little)
    return turned


@njit
def upright(data, scan):
    """Whether a JPEG with a plain header, whose scan begins at ``scan``, is known to be stored as
    it is seen: EXIF says so, or there is no orientation in EXIF and no XMP."""
    at, exif, others, turned = np.int64(2), 0, 0, np.int64(0)
    while at + 10 <= scan and data[at + 1] != 0xDA:
        end = at + 2 + u16_at(data, at + 2)
        if end > scan:  # another process writes to the file
            return False
        if data[at + 1] == 0xE1:
            begins = end >= at + 10
            for k in range(6 if begins else 0):
                begins = begins and data[at + 4 + k] == _EXIF[k]
            if begins:
                exif += 1
                turned = _exif_turn(data, at + 10, end)
            else:
                others += 1
        at = end
    if exif > 1 or turned < 0:
        return False
    return turned == 1 or (turned == 0 and others == 0)


@njit
def symbols_of(data, at):
    """How many symbols the Huffman table at ``data[at]`` has."""
    found = np.int64(0)
    for k in range(16):
        found += np.int64(data[at + k])
    return found


@instruction(types.void(types.int64, types.uint64))
def _store_64_bits(builder, address, value):
    """All bits of ``value``, the highest first."""
    store_any(builder, builder.bswap(value), address)


@instruction(types.void(types.int64, types.uint64))
def _store_bits(builder, address, value):
    """The 32 low bits of ``value``, the highest first."""
    low = builder.trunc(value, ir.IntType(32))
    store_any(builder, builder.bswap(low), address)


@njit(inline="always")
def _put_bytes(out, word, size):
    """Write the ``size`` low bytes of ``word``, a 0 after each 0xFF; the address behind them."""
    for k in range(size):
        byte = (word >> np.uint64(8 * (size - 1 - k))) & np.uint64(0xFF)
        store_u8(out, byte)
        store_u8(out + 1, np.uint64(0))
        out += 2 if byte == np.uint64(0xFF) else 1
    return out


@njit
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
        other = word ^ np.uint64(0xFFFFFFFF)
        if (other - np.uint64(0x01010101)) & word & np.uint64(0x80808080):
            out = _put_bytes(out, word, 4)
        else:
            _store_bits(out, word)
            out += 4
    return out, held, count


@njit
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
            word = load_bits(at) << more
            word |= (load_bits(at + 8) >> np.uint64(1)) >> (np.uint64(63) - more)
            start += 64
            other = ~word
            if (other - np.uint64(0x0101010101010101)) & word & np.uint64(0x8080808080808080):
                out = _put_bytes(out, word, 8)
            else:
                _store_64_bits(out, word)
                out += 8
    while end > start:
        length = min(end - start, 32)
        word = peek(bits, start) >> np.uint64(64 - length)
        out, held, count = put(out, held, count, word, length)
        start += length
    return out, held, count


@njit
def end_segment(out, held, count):
    """Write the bits in ``held``, filled up with ones; returns where the next byte goes."""
    filled = -count & 7
    held = (held << np.uint64(filled)) | ((np.uint64(1) << np.uint64(filled)) - np.uint64(1))
    return _put_bytes(out, held, (count + filled) >> 3)
