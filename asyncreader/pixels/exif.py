"""The orientation in EXIF data: a function that Python runs, and that kernels are made of."""

from __future__ import annotations

from typing import Any


def exif_orientation(data: Any, tiff: Any, end: Any) -> Any:
    """The orientation in the EXIF data from byte ``tiff`` of ``data`` to ``end`` (TIFF 6.0, section
    2): 0 where they have none, 9 where it is no number from 1 to 8, -1 where they are not as they
    should be. numba compiles it, too."""
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
