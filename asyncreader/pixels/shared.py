"""Functions that Python runs, and that kernels are made of: which part of an image is cut out,
painted over or looked at, and the orientation in EXIF data. Their types are whatever comes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

from ..system.keyed_random import below, unit

#: Ways to cut a part out, by their numbers: see OutputSpec.rect.
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
    (``high``, ``wide``): see OutputSpec.rect. ``crop``: its number in CROPS; ``shares``: see
    crop_shares; ``draws``: float64, None where nothing is random."""
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


#: Tries to find a rectangle that is smaller than the picture, and the draws that it all takes.
_TRIES: Final = 10
ERASURE_DRAWS: Final = 1 + 2 * _TRIES + 2


def erased_part(bits: Any, erasure: Any, height: Any, width: Any) -> tuple[int, int, int, int, int]:
    """The part of a picture that is painted over: top, left, height and width, which are 0 for
    none; and how many draws of ``bits``, uint64 (ERASURE_DRAWS,), that takes."""
    used = 1
    if unit(bits[0]) < erasure.chance:
        for _ in range(_TRIES):
            area = erasure.least + (erasure.most - erasure.least) * unit(bits[used])
            aspect = erasure.narrow + (erasure.broad - erasure.narrow) * unit(bits[used + 1])
            area, aspect = height * width * area, math.exp(aspect)
            rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            used += 2
            if rows < height and columns < width:
                top = below(bits[used], height - rows + 1)
                return top, below(bits[used + 1], width - columns + 1), rows, columns, used + 2
    return 0, 0, 0, 0, used


def eighths(height: Any, width: Any, least_high: Any, least_wide: Any) -> Any:
    """At how many eighths of its size a JPEG is decoded when (``least_high``, ``least_wide``)
    pixels are asked for: at most half, or all."""
    if 2 * least_high <= height + 1:
        for n in range(1, 5):
            if (height * n + 7) // 8 >= least_high and (width * n + 7) // 8 >= least_wide:
                return n
    return 8


#: Ways to resize that kernels compute, by their numbers: see geometry.METHODS.
BILINEAR, BICUBIC, AREA = 0, 1, 2


def taps(scale: Any, method: Any, limit: Any) -> Any:
    """The most pixels, of ``limit`` that exist, that one of a resize's result is mixed of, where it
    stands for ``scale``."""
    if method == AREA:
        return min(limit, math.ceil(scale) + 1)
    return min(limit, math.ceil((2 if method == BILINEAR else 4) * max(scale, 1.0)))


def looked_at(
    start: Any, length: Any, size: Any, side: Any, method: Any, outside: Any
) -> tuple[int, float, int, int]:
    """What a resize looks at along an axis of ``side`` pixels, whose part from ``start`` on, of
    ``length``, becomes ``size`` pixels: the first pixel, where the part starts from there on, how
    many pixels there are, and the ``taps``. ``outside``: all pixels, not only those of the part.
    """
    first = 0 if outside else max(0, math.floor(start))
    start -= first
    limit = side - first
    if not outside:
        limit = max(1, min(limit, math.ceil(start + length)))
    return first, start, limit, taps(length / size, method, limit)


def exif_orientation(data: Any, tiff: Any, end: Any) -> Any:
    """The orientation in the EXIF data from byte ``tiff`` of ``data`` to ``end`` (TIFF 6.0, section
    2): 0 where they have none, 9 where it is no number from 1 to 8, -1 where they are not as they
    should be."""
    size = end - tiff
    if size < 8 or data[tiff] != data[tiff + 1]:
        return -1
    little = data[tiff] == 0x49

    def number(at: Any, count: Any) -> Any:
        found = 0
        for k in range(count):
            found = found << 8 | data[tiff + at + (count - 1 - k if little else k)]
        return found

    if (not little and data[tiff] != 0x4D) or number(2, 2) != 42:
        return -1
    ifd = number(4, 4)
    if ifd + 2 > size:
        return -1
    turned, last = 0, ifd + 2 + 12 * number(ifd, 2)
    for entry in range(ifd + 2, min(last, size - 11), 12):
        if number(entry, 2) == 0x0112:
            if number(entry + 2, 2) != 3 or number(entry + 4, 4) != 1:
                return -1
            turned = number(entry + 8, 2)
            if not 1 <= turned <= 8:
                turned = 9
    return turned
