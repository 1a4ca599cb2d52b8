"""Keyed permutations of 0 .. N-1, evaluated anywhere in O(1) time and memory.

:class:`Permutation` is an alternating Feistel network over the smallest power of two >= N, with
cycle walking (Black & Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Its round
function is the finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014). :func:`permuted` is for positions of many permutations at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from ..pixels import kernels
from ..system.array_types import Int64, UInt64
from ..system.keyed_random import key_of, mix_rows

ROUNDS: Final = 8
#: Permutations of at most so many numbers are tables.
TABLE: Final = 256


class Permutation:
    """A keyed bijection on 0 .. count-1, evaluated anywhere in O(1) time and memory.

    A Feistel network mixes few bits badly: of 5 numbers it draws some orders twice as often as
    others. Up to ``TABLE`` numbers are sorted by random keys instead, all orders alike.
    """

    def __init__(self, count: int, key: int) -> None:
        self.count = count
        self._table: Int64 | None = None
        if count <= TABLE:
            table = np.argsort(mix_rows(key, np.arange(count)), kind="stable")
            self._table = table.astype(np.int64, copy=False)
            return
        bits = max(1, (count - 1).bit_length())
        self._left, self._right = bits // 2, bits - bits // 2
        self._keys = np.array([key_of(key, r) for r in range(ROUNDS)], dtype=np.uint64)

    def __call__(self, positions: Int64) -> Int64:
        """Images of ``positions`` (int64, each in 0 .. count-1), in a new array."""
        if self._table is not None:
            return self._table[positions]
        out = np.empty(positions.shape, np.int64)
        source = np.ascontiguousarray(positions)
        kernels.feistel_rows(source, self.count, self._left, self._right, self._keys, out)
        return out


@lru_cache(maxsize=64)
def permutation(count: int, *key_parts: int) -> Permutation:
    """The permutation of ``count`` keyed by ``key_parts``; the last few are remembered."""
    return Permutation(count, key_of(*key_parts))


#: Rounds of permuted(): with 16, all orders of 2 to 6 numbers are drawn alike, as far as 500,000
#: keys can tell; a number is in no swap of 20 rounds once in a million times.
SWAPS: Final = 20


def permuted(positions: Int64, counts: Int64, keys: UInt64) -> Int64:
    """The image of each position (int64, 0 .. count-1) under a permutation of its own, of so many
    numbers (int64, below 2**32) and with such a key (uint64); in a new array.

    This is the swap-or-not shuffle (Hoang, Morris & Rogaway, "An enciphering scheme based on a card
    shuffle", CRYPTO 2012): in each round a number and its partner, the round's key less the number,
    stay or change places, as a random bit says that both of them share.
    """
    out = np.empty(positions.shape, np.int64)
    kernels.permuted_rows(positions, np.ascontiguousarray(counts), keys, SWAPS, out)
    return out
