"""Which part of an image is cut out: a function that Python runs, and that kernels are made of."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

from ..system.keyed_random import Draws
from .fill_tables import ERASURE_TRIES, Erasure

#: Ways to cut a part out, by their numbers: see geometry.choose_rect.
CROPS: Final = ("center", "random", "random-resized", "none")
RANDOM, RANDOM_RESIZED, NONE = 1, 2, 3

#: Pixels of a side, for one of the result, beyond which they are averaged before a resize.
AVERAGED: Final = 64


@lru_cache(64)
def crop_shares(
    ratio: float, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[float, ...]:
    """What choose_rect takes of a crop: ``ratio``, the least area and how much more there may be,
    and the middle of the logarithms of the aspects and how far they reach to both sides of it."""
    # rounded: of 3/4 and 4/3 it is 0
    middle = round((math.log(aspect[0]) + math.log(aspect[1])) / 2, 15)
    return ratio, area[0], area[1] - area[0], middle, math.log(aspect[1]) - middle


def choose_rect(
    height: Any,
    width: Any,
    high: Any,
    wide: Any,
    crop: Any,
    shares: Any,
    draws: Any,
    padding: Any = 0,
) -> tuple[int, int, int, int]:
    """Top, left, height and width of the part of a picture (``height``, ``width``) that becomes
    (``high``, ``wide``): see geometry.choose_rect. ``crop``: its number in CROPS; ``shares``: see
    crop_shares; ``draws``: float64, None where nothing is random. numba compiles it, too."""
    if crop == NONE:
        return 0, 0, height, width
    if crop == RANDOM_RESIZED and draws is not None:
        for k in range(0, draws.size, 4):
            area = height * width * (shares[1] + shares[2] * draws[k])
            aspect = math.exp(shares[3] + (2 * draws[k + 1] - 1) * shares[4])
            columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < rows <= height and 0 < columns <= width:
                top = int(draws[k + 2] * (height - rows + 1))
                return top, int(draws[k + 3] * (width - columns + 1)), rows, columns
    # the largest rectangle of the shape of (high, wide)
    if width * high >= height * wide:
        tall, broad = float(height), height * wide / high
    else:
        tall, broad = width * high / wide, float(width)
    rows = min(height, max(1, round(tall * shares[0])))
    columns = min(width, max(1, round(broad * shares[0])))
    if crop == RANDOM and draws is not None:
        top = int(draws[0] * (height + 2 * padding - rows + 1))
        return top, int(draws[1] * (width + 2 * padding - columns + 1)), rows, columns
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def erased_part(
    draws: Draws, erasure: Erasure, height: int, width: int
) -> tuple[int, int, int, int] | None:
    """The part of a picture that is painted over: top, left, height and width; None for none."""
    if not draws.uniform() < erasure.chance:
        return None
    for _ in range(ERASURE_TRIES):
        area = height * width * draws.uniform(erasure.least, erasure.most)
        aspect = math.exp(draws.uniform(erasure.narrow, erasure.broad))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            return draws.below(height - rows + 1), draws.below(width - columns + 1), rows, columns
    return None
