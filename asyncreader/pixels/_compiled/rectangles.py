"""Which part of a picture is cut out: what kernels that crop share."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import njit

#: Numbers of the crops: see twins.CROPS.
_RANDOM, _RANDOM_RESIZED, _NONE = 1, 2, 3
#: Pixels of a side, for one of the result, beyond which they are averaged before a resize.
AVERAGED: Final = 64


@njit
def choose_rect(
    height: Any, width: Any, high: Any, wide: Any, crop: Any, shares: Any, draws: Any, rect: Any
) -> None:
    """twins.choose_rect without padding: ``rect`` becomes top, left, height and width."""
    if crop == _NONE:
        rect[0], rect[1], rect[2], rect[3] = 0, 0, height, width
        return
    if crop == _RANDOM_RESIZED:
        for k in range(0, draws.size, 4):
            area = height * width * (shares[1] + shares[2] * draws[k])
            aspect = math.exp(shares[3] + (2 * draws[k + 1] - 1) * shares[4])
            columns = np.int64(np.rint(math.sqrt(area * aspect)))
            rows = np.int64(np.rint(math.sqrt(area / aspect)))
            if 0 < rows <= height and 0 < columns <= width:
                rect[0] = int(draws[k + 2] * (height - rows + 1))
                rect[1] = int(draws[k + 3] * (width - columns + 1))
                rect[2], rect[3] = rows, columns
                return
    if width * high >= height * wide:
        tall, broad = float(height), height * wide / high
    else:
        tall, broad = width * high / wide, float(width)
    rows = min(height, max(np.int64(1), np.int64(np.rint(tall * shares[0]))))
    columns = min(width, max(np.int64(1), np.int64(np.rint(broad * shares[0]))))
    if crop == _RANDOM:
        rect[0] = int(draws[0] * (height - rows + 1))
        rect[1] = int(draws[1] * (width - columns + 1))
    else:
        rect[0], rect[1] = (height - rows) // 2, (width - columns) // 2
    rect[2], rect[3] = rows, columns
