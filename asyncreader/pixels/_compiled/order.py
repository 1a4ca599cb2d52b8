"""Kernels of keyed numbers: permutations of many of them, weighted draws and uniform draws."""

from __future__ import annotations

import numpy as np
from numba import types

from ...system.keyed_random import SPREAD, STEP
from .base import kernel, mixed, mixed_with, offsets_type, unit, upper_half

#: Numbers that are taken through their rounds together.
_FEISTEL = 256


@kernel(offsets_type, types.int64, types.int64, types.int64, types.uint64[::1], offsets_type)
def feistel_rows(positions, count, left, right, keys, out):
    """Alternating Feistel network on ``left + right`` bits, walked until below ``count``."""
    lmask = (np.uint64(1) << np.uint64(left)) - np.uint64(1)
    rmask = (np.uint64(1) << np.uint64(right)) - np.uint64(1)
    shift = np.uint64(right)
    limit = np.uint64(count)
    # Many at a time, so that LLVM makes vector code of the rounds: those that have to walk on
    # close ranks and go through them again.
    hi, lo = np.empty(_FEISTEL, np.uint64), np.empty(_FEISTEL, np.uint64)
    row = np.empty(_FEISTEL, np.int64)
    for first in range(0, positions.size, _FEISTEL):
        left_over = min(_FEISTEL, positions.size - first)
        for i in range(left_over):
            hi[i] = np.uint64(positions[first + i]) >> shift
            lo[i] = np.uint64(positions[first + i]) & rmask
            row[i] = first + i
        while left_over:
            for r in range(keys.size):
                key = keys[r]
                if r % 2 == 0:
                    for i in range(left_over):
                        hi[i] ^= mixed(lo[i] + key) & lmask
                else:
                    for i in range(left_over):
                        lo[i] ^= mixed(hi[i] + key) & rmask
            kept = 0
            for i in range(left_over):
                x = (hi[i] << shift) | lo[i]
                if x < limit:
                    out[row[i]] = np.int64(x)
                else:
                    hi[kept], lo[kept], row[kept] = hi[i], lo[i], row[i]
                    kept += 1
            left_over = kept


@kernel(offsets_type, offsets_type, types.uint64[::1], types.int64, offsets_type)
def permuted_rows(positions, counts, keys, rounds, out):
    """The swap-or-not shuffle of each position under its own key: see sampling/feistel.py."""
    images, bases = np.empty(_FEISTEL, np.int64), np.empty(_FEISTEL, np.uint64)
    for first in range(0, positions.size, _FEISTEL):
        size = min(_FEISTEL, positions.size - first)
        for i in range(size):
            images[i] = positions[first + i]
            bases[i] = keys[first + i] * SPREAD + STEP  # mixed_with() of each round
        for number in range(rounds):
            for i in range(size):
                image, count = images[i], counts[first + i]
                key = mixed(bases[i] + np.uint64(number))
                drawn = ((key >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)
                partner = np.int64(drawn) - image
                partner += count if partner < 0 else 0
                shared = np.uint64(max(image, partner)) + key
                bit = mixed_with(np.uint64(0), shared) >> np.uint64(63)
                images[i] = partner if bit != np.uint64(0) else image
        for i in range(size):
            out[first + i] = images[i]


_uints = types.Array(types.uint64, 1, "C", readonly=True)


@kernel(offsets_type, types.uint64, _uints, types.int64, offsets_type)
def alias_rows(numbers, key, cells, bits, out):
    """Draws from an alias table: see sampling/weighted.py."""
    count = np.uint64(cells.size)
    shift = np.uint64(64) - np.uint64(bits)
    aliases = (np.uint64(1) << shift) - np.uint64(1)
    for i in range(numbers.size):
        draw = mixed_with(key, np.uint64(numbers[i]))
        chosen = upper_half(draw, count)
        found = cells[chosen]
        coin = (draw * count) >> shift
        out[i] = np.int64(chosen if coin < found >> shift else found & aliases)


@kernel(_uints, types.int64, types.float64[:, ::1])
def uniform_rows(keys, first, out):
    """``out[i, k]`` is the draw ``first + k`` of ``keys[i]``: see keyed_random.uniforms."""
    for i in range(keys.size):
        for k in range(out.shape[1]):
            out[i, k] = unit(mixed_with(np.uint64(first + k + 1), keys[i]))
