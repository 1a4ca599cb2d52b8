"""Blocks of an HDF5 file that carry a checksum of themselves, to be damaged and sealed again.

HDF5's own checksums catch almost all damage to its metadata. A hostile file has correct ones, so
that the library trusts the block. The checksum is Bob Jenkins' lookup3, stored after the bytes that
it covers (HDF5 File Format Specification 3.0, II.A and III;
http://burtleburtle.net/bob/c/lookup3.c).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

#: Signatures of sealed blocks: object headers, B-trees, fractal heaps, fixed and extensible arrays.
SIGNATURES = tuple(
    (b"OHDR OCHK BTHD BTIN BTLF FRHP FHIB FSHD FSSE FAHD FADB EAHD EAIB EASB EADB").split()
)
#: The longest block that is looked for.
LONGEST = 8192


@numba.njit("uint32(uint8[:], int64)", cache=True)
def lookup3(key: Any, length: int) -> Any:
    """hashlittle() of the first ``length`` bytes, initial value 0."""
    mask = np.uint32(0xFFFFFFFF)
    a = np.uint32(0xDEADBEEF + length)
    b, c = a, a
    at = 0
    left = length
    while left > 0:
        word = np.zeros(3, np.uint32)
        for i in range(min(left, 12)):
            word[i // 4] |= np.uint32(np.uint32(key[at + i]) << np.uint32(8 * (i % 4)))
        a = np.uint32((a + word[0]) & mask)
        b = np.uint32((b + word[1]) & mask)
        c = np.uint32((c + word[2]) & mask)
        if left > 12:
            for r, s, t in ((4, 6, 8), (16, 19, 4)):
                a = np.uint32((np.uint32(a - c) & mask) ^ np.uint32((c << r) | (c >> (32 - r))))
                c = np.uint32((c + b) & mask)
                b = np.uint32((np.uint32(b - a) & mask) ^ np.uint32((a << s) | (a >> (32 - s))))
                a = np.uint32((a + c) & mask)
                c = np.uint32((np.uint32(c - b) & mask) ^ np.uint32((b << t) | (b >> (32 - t))))
                b = np.uint32((b + a) & mask)
        else:
            c = np.uint32((c ^ b) - np.uint32((b << 14) | (b >> 18)))
            a = np.uint32((a ^ c) - np.uint32((c << 11) | (c >> 21)))
            b = np.uint32((b ^ a) - np.uint32((a << 25) | (a >> 7)))
            c = np.uint32((c ^ b) - np.uint32((b << 16) | (b >> 16)))
            a = np.uint32((a ^ c) - np.uint32((c << 4) | (c >> 28)))
            b = np.uint32((b ^ a) - np.uint32((a << 14) | (a >> 18)))
            c = np.uint32((c ^ b) - np.uint32((b << 24) | (b >> 8)))
        at += 12
        left -= 12
    return c


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
