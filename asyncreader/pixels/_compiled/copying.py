"""Kernels that copy rows: from memory, from a file, or parts of them with padding around."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from .base import i8, kernel, memcpy, offsets_type, pread, u8_pointer


@kernel(types.uintp, offsets_type, i8, types.uintp, offsets_type)
def gather_rows(source, offsets, row_bytes, out, rows):  # type: ignore[no-untyped-def]
    for i in range(offsets.size):
        memcpy(
            out + np.uintp(rows[i] * row_bytes),
            source + np.uintp(offsets[i]),
            np.uintp(row_bytes),
        )


@kernel(i8, offsets_type, i8, types.uintp, offsets_type, offsets_type, offsets_type)
def pread_rows(fd, offsets, row_bytes, out, rows, order, done):  # type: ignore[no-untyped-def]
    done[0] = 0
    i = 0
    while i < order.size:
        first = order[i]
        count = 1
        while i + count < order.size:
            following = order[i + count]
            if offsets[following] != offsets[first] + count * row_bytes:
                break
            if rows[following] != rows[first] + count:
                break
            count += 1
        target, size = out + np.uintp(rows[first] * row_bytes), count * row_bytes
        if pread(np.int32(fd), target, np.uintp(size), offsets[first]) != size:
            return
        i += count
        done[0] = i


@njit
def _pixel_at(place, limit, around):  # type: ignore[no-untyped-def]
    """The pixel that stands at ``place``; -1 for none. ``around``: as of padded_rows."""
    if 0 <= place < limit:
        return place
    if around == 0:
        return -1
    if around == 1:
        return min(max(place, 0), limit - 1)
    if limit == 1:
        return 0
    place = abs(place) % (2 * (limit - 1))
    return min(place, 2 * (limit - 1) - place)


@kernel(
    *(offsets_type, i8, i8, i8, offsets_type, offsets_type, i8),
    *(types.uint8[::1], types.uintp, offsets_type),
)
def padded_rows(  # type: ignore[no-untyped-def]
    addresses, height, width, pixel, tops, lefts, around, flips, out, rows
):
    line = width * pixel
    for i in range(addresses.size):
        come = np.uintp(addresses[i])
        go = out + np.uintp(rows[i] * height * line)
        left, flipped = lefts[i], flips[i] != 0
        first, end = min(max(0, -left), width), max(0, min(width, width - left))
        for y in range(height):
            to, row = u8_pointer(go + np.uintp(y * line)), _pixel_at(tops[i] + y, height, around)
            if row < 0:
                for k in range(line):
                    to[k] = 0
                continue
            given = u8_pointer(come + np.uintp(row * line))
            if not flipped:
                memcpy(
                    go + np.uintp(y * line + first * pixel),
                    come + np.uintp(row * line + (left + first) * pixel),
                    np.uintp((end - first) * pixel),
                )
            elif pixel == 3:
                for x in range(first, end):
                    a, b = 3 * (width - 1 - x), 3 * (left + x)
                    to[a], to[a + 1], to[a + 2] = given[b], given[b + 1], given[b + 2]
            else:
                for x in range(first, end):
                    for k in range(pixel):
                        to[(width - 1 - x) * pixel + k] = given[(left + x) * pixel + k]
            for n in range(width - (end - first)):
                x = n if n < first else n + end - first
                column, at = _pixel_at(left + x, width, around), width - 1 - x if flipped else x
                for k in range(pixel):
                    to[at * pixel + k] = given[column * pixel + k] if column >= 0 else 0
