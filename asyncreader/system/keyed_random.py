"""Random numbers that follow from keys: pure functions, the same on every machine.

The mixing function is the finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from .array_types import Float64, Int64, UInt64

_MASK: Final = (1 << 64) - 1

#: The distance of two states in SplitMix64's sequence, and what numbers that follow each other are
#: multiplied by, to lie far apart in it.
STEP: Final = np.uint64(0x9E3779B97F4A7C15)
SPREAD: Final = np.uint64(0xD1342543DE82EF95)

# Streams keep draws for different purposes independent of each other.
STREAM_SAMPLE, STREAM_BLOCK, STREAM_WINDOW, STREAM_TAIL, STREAM_REPLACEMENT = range(1, 6)
STREAM_GEOMETRY, STREAM_POSTPROCESS, STREAM_BAD_SAMPLE, STREAM_SHARD = range(6, 10)
STREAM_WEIGHTED, STREAM_CLASSES, STREAM_CLASS, STREAM_SET, STREAM_VIEW = range(10, 15)
STREAM_ANCHOR, STREAM_PLACE = range(15, 17)


def mix(value: int) -> int:
    """SplitMix64's finaliser: one well-mixed uint64 from another."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def key_of(*parts: int) -> int:
    """One uint64 key from whole numbers of any size; order and count of the parts matter."""
    key = len(parts)
    for part in parts:
        part = int(part)
        while True:
            key = mix(key ^ (part & _MASK))
            part >>= 64
            if part in (0, -1):
                break
    return key


def mixed(x: Any) -> Any:
    """The rounds of the finaliser, of uint64 numbers. numba compiles it, too."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mixed_with(key: Any, value: Any) -> Any:
    """A well-mixed uint64 from two. numba compiles it, too."""
    return mixed(value * SPREAD + (key + STEP))


def unit(bits: Any) -> Any:
    """64 random bits as a number in [0, 1). numba compiles it, too."""
    return (bits >> np.uint64(11)) * 2.0**-53


def below(bits: Any, count: Any) -> Any:
    """64 random bits as one of 0 .. ``count`` - 1, for at most 2**31. numba compiles it, too."""
    high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    low = low * np.uint64(count) >> np.uint64(32)
    return np.int64((high * np.uint64(count) + low) >> np.uint64(32))


def upper_half(a: Any, b: Any) -> Any:
    """The upper 64 bits of the product of two uint64. numba compiles it, too."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & mask, b >> half, b & mask
    across, other = a_high * b_low, a_low * b_high
    middle = (across & mask) + (other & mask) + ((a_low * b_low) >> half)
    return a_high * b_high + (across >> half) + (other >> half) + (middle >> half)


def mix_rows(key: int, values: Int64) -> UInt64:
    """:func:`mixed_with` of each value: uint64, shape of ``values``."""
    with np.errstate(over="ignore"):
        made: UInt64 = mixed_with(np.uint64(key & _MASK), values.astype(np.uint64))
    return made


def scale_rows(draws: UInt64, count: int) -> Int64:
    """Map uniform uint64 draws to 0 .. count-1 by the high half of their product.

    The bias is below count / 2**62.
    """
    if count >> 32 == 0:  # the halves that are 0 are left out: a third of the time
        rows: UInt64 = (draws & np.uint64(0xFFFFFFFF)) * np.uint64(count)
        rows >>= np.uint64(32)
        rows += (draws >> np.uint64(32)) * np.uint64(count)
        rows >>= np.uint64(32)
        return rows.view(np.int64)
    scaled: Int64 = upper_half(draws, np.uint64(count)).astype(np.int64)
    return scaled


def uniforms(keys: UInt64, draw: int) -> Float64:
    """The ``draw``-th uniform number in [0, 1) of each key: float64, shape of ``keys``."""
    found: Float64 = unit(mix_rows(draw + 1, keys.view(np.int64)))
    return found


class Draws:
    """Numbers drawn one after the other from a key: the sequence of SplitMix64.

    One costs 0.6 us; to make a numpy generator takes 15 us.
    """

    def __init__(self, key: int) -> None:
        self._state = key

    def bits(self) -> int:
        """64 random bits."""
        drawn = mix(self._state)
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        return drawn

    def ahead(self, count: int) -> UInt64:
        """The next ``count`` times 64 bits, which are still to be drawn: see :meth:`skip`."""
        with np.errstate(over="ignore"):
            steps = np.arange(1, count + 1, dtype=np.uint64) * STEP
            made: UInt64 = mixed(steps + np.uint64(self._state))
        return made

    def skip(self, count: int) -> None:
        """Go on after ``count`` times 64 bits."""
        self._state = (self._state + count * int(STEP)) & _MASK

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number from ``low``, below ``high``."""
        return low + (high - low) * ((self.bits() >> 11) * 2.0**-53)

    def below(self, count: int) -> int:
        """One of 0 .. count-1."""
        return (self.bits() * count) >> 64

    def order(self, count: int) -> list[int]:
        """0 .. count-1 in random order (Fisher and Yates)."""
        numbers = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.below(last + 1)
            numbers[last], numbers[other] = numbers[other], numbers[last]
        return numbers

    def beta(self, alpha: float) -> float:
        """A number of Beta(alpha, alpha): the share of one of two gamma variates."""
        first, second = self._log_gamma(alpha), self._log_gamma(alpha)
        apart = second - first
        return 1 / (1 + math.exp(apart)) if apart < 700 else 0.0

    def _log_gamma(self, alpha: float) -> float:
        """The logarithm of a number of Gamma(alpha): Marsaglia and Tsang, "A simple method for
        generating gamma variables", ACM TOMS 26 (2000); of a tiny alpha the number itself would be
        0."""
        if alpha < 1:
            return self._log_gamma(alpha + 1) + math.log(1 - self.uniform()) / alpha
        d = alpha - 1 / 3
        c = 1 / math.sqrt(9 * d)
        while True:
            radius = math.sqrt(-2 * math.log(1 - self.uniform()))  # Box and Muller
            normal = radius * math.cos(2 * math.pi * self.uniform())
            cube = (1 + c * normal) ** 3
            if cube > 0 and math.log(1 - self.uniform()) < (
                normal * normal / 2 + d * (1 - cube + math.log(cube))
            ):
                return math.log(d * cube)
