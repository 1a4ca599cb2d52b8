"""XXH3-64 of rows, of long ones while they are copied, as xxHash's specification has it
(doc/xxhash_spec.md)."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .base import inner, instruction, upper_half
from .memory import address_in, load, load_any, memcpy, reversed_bytes, store_any, stream_row

#: XXH3's default secret and primes.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_U64 = np.uint64
_PRIMES_32 = (_U64(0x9E3779B1), _U64(0x85EBCA77), _U64(0xC2B2AE3D))
_PRIMES_64 = (
    *(_U64(0x9E3779B185EBCA87), _U64(0xC2B2AE3D27D4EB4F), _U64(0x165667B19E3779F9)),
    *(_U64(0x85EBCA77C2B2AE63), _U64(0x27D4EB2F165667C5)),
)
#: The secret by stripe (from byte 0), of the last stripe (121), and of the end (11).
_KEYS = np.frombuffer(_SECRET, "<u8").astype(np.uint64)
_LAST_KEYS = np.frombuffer(_SECRET[121:185], "<u8").astype(np.uint64)
_END_KEYS = np.frombuffer(_SECRET[11:75], "<u8").astype(np.uint64)
_LOW = _U64(0xFFFFFFFF)
#: The most bytes that XXH3 takes in other ways than longer ones.
_SHORT = 240
_SECRET_BYTES = np.frombuffer(_SECRET, np.uint8)


#: Numbers of scratch memory that copy_hashed needs: eight sums, and a block that is streamed.
HASH_SCRATCH = 8 + 128


@instruction(types.void(types.int64, types.int64, types.int64, types.int64, types.int64))
def _stripes(builder, source, target, keys, count, sums):
    """Copy ``count`` stripes of 64 bytes, and add them to eight sums on their way; the key lies 8
    bytes further for each. A plain loop takes 1.8 times as long (rows of 32 x 32 x 3), or 1.7
    (224 x 224 x 3, AVX-512)."""
    long = ir.IntType(64)
    lanes = ir.VectorType(long, 8)
    low, high = (ir.Constant(lanes, [number] * 8) for number in (0xFFFFFFFF, 32))
    pairs = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])
    kept = cgutils.alloca_once_value(builder, load_any(builder, sums, lanes))
    with cgutils.for_range(builder, count) as loop:
        step = builder.shl(loop.index, ir.Constant(long, 6))
        key = builder.add(keys, builder.shl(loop.index, ir.Constant(long, 3)))
        stored = load_any(builder, builder.add(source, step), lanes)
        store_any(builder, stored, builder.add(target, step))
        keyed = builder.xor(stored, load_any(builder, key, lanes))
        product = builder.mul(builder.and_(keyed, low), builder.lshr(keyed, high))
        swapped = builder.shuffle_vector(stored, stored, pairs)
        total = builder.add(builder.add(builder.load(kept), product), swapped)
        builder.store(total, kept)
    store_any(builder, builder.load(kept), sums)


@inner(inline="always")
def _folded(a, b):
    """The upper half of a product of 128 bits, xor the lower."""
    return upper_half(a, b) ^ (a * b)


@inner(inline="always")
def _word(address, secret):
    """8 bytes of the data, xor 8 of the secret."""
    return load(address, np.uint64) ^ load(secret, np.uint64)


@inner(inline="always")
def _mixed(address, secret):
    """16 bytes of the data with 16 of the secret: XXH3_mix16B."""
    return _folded(_word(address, secret), _word(address + 8, secret + 8))


@inner(inline="always")
def _avalanche(h):
    h = (h ^ (h >> _U64(37))) * _U64(0x165667919E3779F9)
    return h ^ (h >> _U64(32))


@inner(inline="always")
def _avalanche_64(h):
    """XXH64's."""
    h = (h ^ (h >> _U64(33))) * _PRIMES_64[1]
    h = (h ^ (h >> _U64(29))) * _PRIMES_64[2]
    return h ^ (h >> _U64(32))


@inner
def _hashed_least(at, length, secret):
    """Of 1 to 16 bytes."""
    size = _U64(length)
    if length > 8:
        low = load(at, np.uint64) ^ _word(secret + 24, secret + 32)
        high = load(at + length - 8, np.uint64) ^ _word(secret + 40, secret + 48)
        return _avalanche(size + reversed_bytes(low) + high + _folded(low, high))
    if length > 3:
        first, last = _U64(load(at, np.uint32)), _U64(load(at + length - 4, np.uint32))
        h = (last + (first << _U64(32))) ^ _word(secret + 8, secret + 16)
        h ^= ((h << _U64(49)) | (h >> _U64(15))) ^ ((h << _U64(24)) | (h >> _U64(40)))
        h *= _U64(0x9FB21C651E98DF25)
        h = (h ^ ((h >> _U64(35)) + size)) * _U64(0x9FB21C651E98DF25)
        return h ^ (h >> _U64(28))
    first, middle = load(at, np.uint8), load(at + (length >> 1), np.uint8)
    last, word = load(at + length - 1, np.uint8), load(secret, np.uint64)
    h = (_U64(first) << _U64(16)) | (_U64(middle) << _U64(24)) | _U64(last) | (size << _U64(8))
    return _avalanche_64(h ^ (word ^ (word >> _U64(32))) & _LOW)


@inner
def _hashed_short(at, length):
    """XXH3-64 of the 0 to 240 bytes at an address."""
    secret = np.int64(_SECRET_BYTES.ctypes.data)
    if length == 0:
        return _avalanche_64(_word(secret + 56, secret + 64))
    if length <= 16:
        return _hashed_least(at, length, secret)
    result = _U64(length) * _PRIMES_64[0]
    if length <= 128:  # without a loop: it would cost as much as five such rows
        if length > 96:
            result += _mixed(at + 48, secret + 96) + _mixed(at + length - 64, secret + 112)
        if length > 64:
            result += _mixed(at + 32, secret + 64) + _mixed(at + length - 48, secret + 80)
        if length > 32:
            result += _mixed(at + 16, secret + 32) + _mixed(at + length - 32, secret + 48)
        result += _mixed(at, secret) + _mixed(at + length - 16, secret + 16)
        return _avalanche(result)
    for i in range(8):
        result += _mixed(at + 16 * i, secret + 16 * i)
    result = _avalanche(result)
    for i in range(8, length // 16):
        result += _mixed(at + 16 * i, secret + 16 * (i - 8) + 3)
    return _avalanche(result + _mixed(at + length - 16, secret + 136 - 17))


@inner
def copy_hashed(source, target, length, stream, sums):
    """Copy ``length`` bytes and return their XXH3-64; ``sums``: uint64 (HASH_SCRATCH,).

    What is hashed is what was written, also where another process changes the source meanwhile.
    ``stream``: past the caches, where ``target`` is a multiple of 64.
    """
    if length <= _SHORT:
        memcpy(target, source, length)
        return _hashed_short(np.int64(target), length)
    keys, last_keys = address_in(_KEYS), address_in(_LAST_KEYS)
    at = address_in(sums)
    block = at + 64
    sums[0], sums[1], sums[2] = _PRIMES_32[2], _PRIMES_64[0], _PRIMES_64[1]
    sums[3], sums[4], sums[5] = _PRIMES_64[2], _PRIMES_64[3], _PRIMES_32[1]
    sums[6], sums[7] = _PRIMES_64[4], _PRIMES_32[0]
    left = (length - 1) // 64
    tail = left * 64
    last = target + length - 64
    memcpy(target + tail, source + tail, length - tail)
    streamed = stream and (target & 63) == 0
    while left:
        count = min(left, 16)
        if streamed:
            _stripes(source, block, keys, count, at)
            stream_row(block, target, 64 * count)
        else:
            _stripes(source, target, keys, count, at)
        if count == 16:
            for lane in range(8):
                mixed = sums[lane] ^ (sums[lane] >> _U64(47)) ^ _KEYS[16 + lane]
                sums[lane] = mixed * _PRIMES_32[0]
        source, target, left = source + 1024, target + 1024, left - count
    _stripes(last, last, last_keys, 1, at)
    result = _U64(length) * _PRIMES_64[0]
    for lane in range(0, 8, 2):
        result += _folded(sums[lane] ^ _END_KEYS[lane], sums[lane + 1] ^ _END_KEYS[lane + 1])
    return _avalanche(result)
