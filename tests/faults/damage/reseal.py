"""Blocks of an HDF5 file that carry a checksum of themselves, to be damaged and sealed again.

HDF5's own checksums catch almost all damage to its metadata. A hostile file has correct ones, so
that the library trusts the block. The checksum is Bob Jenkins' lookup3, stored after the bytes that
it covers (HDF5 File Format Specification 3.0, II.A and III;
http://burtleburtle.net/bob/c/lookup3.c).
"""

from typing import Any

import numba
import numpy as np

#: Signatures of sealed blocks: object headers, B-trees, fractal heaps, fixed and extensible arrays.
SIGNATURES = tuple(
    (b"OHDR OCHK BTHD BTIN BTLF FRHP FHIB FSHD FSSE FAHD FADB EAHD EAIB EASB EADB").split()
)
#: The longest block that is looked for.
LONGEST = 8192


@numba.njit("int64(int64, int64)", cache=True)
def _turned(word: Any, bits: int) -> Any:
    """32 bits turned to the left."""
    return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF


@numba.njit("int64(uint8[:], int64)", cache=True)
def lookup3(key: Any, length: int) -> Any:
    """hashlittle() of the first ``length`` bytes, initial value 0."""
    mask = np.int64(0xFFFFFFFF)
    a = (np.int64(0xDEADBEEF) + length) & mask
    b, c = a, a
    for at in range(0, length, 12):
        words = np.zeros(3, np.int64)
        for i in range(min(length - at, 12)):
            words[i // 4] |= np.int64(key[at + i]) << 8 * (i % 4)
        a, b, c = (a + words[0]) & mask, (b + words[1]) & mask, (c + words[2]) & mask
        if length - at > 12:
            for bits in (4, 6, 8, 16, 19, 4):
                a = ((a - c) & mask) ^ _turned(c, bits)
                a, b, c = b, (c + b) & mask, a
        else:
            for bits in (14, 11, 25, 16, 4, 14, 24):
                c = ((c ^ b) - _turned(b, bits)) & mask
                a, b, c = b, c, a
    return b


def sealed_blocks(data: bytes) -> tuple[tuple[int, int], ...]:
    """(start, length without checksum) of every sealed block that is found."""
    held = np.frombuffer(data, np.uint8).copy()
    found = [(0, 44)] if data[:4] == b"\x89HDF" else []
    for signature in SIGNATURES:
        at = data.find(signature)
        while at >= 0:
            length = _length(held, at)
            if length:
                found.append((at, length))
            at = data.find(signature, at + 4)
    return tuple(found)


def _length(held: Any, at: int) -> int:
    for length in range(12, min(LONGEST, held.size - at - 4)):
        stated = int.from_bytes(held[at + length : at + length + 4].tobytes(), "little")
        if int(lookup3(held[at:], length)) == stated:
            return length
    return 0


def seal(data: bytearray, start: int, length: int) -> None:
    """Write the checksum that a block now needs."""
    found = int(lookup3(np.frombuffer(data[start : start + length], np.uint8), length))
    data[start + length : start + length + 4] = found.to_bytes(4, "little")
