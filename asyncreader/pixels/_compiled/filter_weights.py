"""The weights of the filters that resize, as kernels take them: see twins.filter_weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

#: Numbers of the methods: see resize_u8_numpy.
_BILINEAR, _BICUBIC, _AREA = 0, 1, 2

# Loops over pixels are inside, those over their weights outside: so LLVM finds vectors.


@njit
def filter_weights(
    start: Any, length: Any, low: Any, high: Any, method: Any, first: Any, weights: Any
) -> None:
    taps, size = weights.shape
    scale = length / size
    wide = scale if method == _AREA or scale > 1.0 else 1.0
    reach = wide * (0.5 if method == _AREA else 1.0 if method == _BILINEAR else 2.0)
    centre, begin, total = np.empty(size), np.empty(size, np.int64), np.zeros(size)
    for i in range(size):
        centre[i] = start + (i + 0.5) * scale
        at = np.floor(centre[i] - reach + (0.0 if method == _AREA else 0.5))
        begin[i] = min(max(np.int64(at), low), high - 1)
        first[i] = min(begin[i], high - taps)
    for k in range(taps):
        row = weights[k]
        if method == _AREA:
            for i in range(size):
                j = np.float64(first[i] + k)
                weight = min(j + 1.0, centre[i] + reach) - max(j, centre[i] - reach)
                row[i] = max(weight, 0.0)
        else:
            for i in range(size):
                x = abs(first[i] + k + 0.5 - centre[i]) / wide
                if method == _BILINEAR:
                    row[i] = max(1.0 - x, 0.0)
                else:
                    inner = (1.5 * x - 2.5) * x * x + 1.0
                    outer = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
                    row[i] = inner if x < 1.0 else outer if x < 2.0 else 0.0
        for i in range(size):
            total[i] += row[i]
    for i in range(size):
        if total[i] == 0.0:
            weights[begin[i] - first[i], i] = total[i] = 1.0
    for k in range(taps):
        for i in range(size):
            weights[k, i] /= total[i]


@njit
def quantised(weights: Any, out: Any) -> None:
    taps, size = weights.shape
    rest, most = np.full(size, 16384, np.int64), np.zeros(size, np.int64)
    best = weights[0].copy()
    for k in range(taps):
        for i in range(size):
            whole = np.int64(np.floor(weights[k, i] * 16384.0 + 0.5))
            out[k, i] = whole
            rest[i] -= whole
        for i in range(size):
            if weights[k, i] > best[i]:
                best[i], most[i] = weights[k, i], k
    for i in range(size):
        out[most[i], i] += rest[i]
