"""What kernels of JPEGs share: bits of a scan, read and written, and numbers in its segments."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .base import load_any, store_any


@intrinsic
def load_u8(typingctx: Any, address: Any) -> Any:
    """The 8 bytes at ``address``, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return load_any(builder, arguments[0], ir.IntType(64))

    return types.uint64(types.int64), generate


@intrinsic
def load_bits(typingctx: Any, address: Any) -> Any:
    """64 bits from ``address`` on, the first one the highest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(load_any(builder, arguments[0], ir.IntType(64)))

    return types.uint64(types.int64), generate


@intrinsic
def store_u8(typingctx: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_any(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@njit(inline="always")
def peek(bits: Any, at: Any) -> Any:
    """57 or more bits of ``bits`` (an address) from bit ``at`` on, the first one the highest."""
    return load_bits(bits + (at >> 3)) << np.uint64(at & 7)


@njit
def without_stuffing(data: Any, address: Any, at: Any, bits: Any, out: Any) -> Any:
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
def u16_at(data: Any, at: Any) -> Any:
    """The 16 bits at ``data[at]``."""
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@njit
def symbols_of(data: Any, at: Any) -> Any:
    """How many symbols the Huffman table at ``data[at]`` has."""
    found = np.int64(0)
    for k in range(16):
        found += np.int64(data[at + k])
    return found


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
        store_u8(out, byte)
        store_u8(out + 1, np.uint64(0))
        out += 2 if byte == np.uint64(0xFF) else 1
    return out


@njit
def put(out: Any, held: Any, count: Any, value: Any, length: Any) -> Any:
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
def copy_bits(bits: Any, start: Any, end: Any, out: Any, held: Any, count: Any) -> Any:
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
def end_segment(out: Any, held: Any, count: Any) -> Any:
    """Write the bits in ``held``, filled up with ones; returns where the next byte goes."""
    filled = -count & 7
    held = (held << np.uint64(filled)) | ((np.uint64(1) << np.uint64(filled)) - np.uint64(1))
    return _put_bytes(out, held, (count + filled) >> 3)
