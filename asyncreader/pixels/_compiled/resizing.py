"""Kernels that resize pictures: the weights, and both passes of a filter over a picture."""

from __future__ import annotations

import numpy as np
from numba import types

from ..shared import AREA, BILINEAR
from ..tables import PLAN
from .base import (
    apart,
    boxes_type,
    choose_rect,
    inner,
    kernel,
    looked_at,
    planning_types,
    plans_type,
)
from .filling import mirror_row
from .memory import address_in, memcpy
from .vectors import COLUMNS, LINES, PIXELS, along_1, along_2, along_more, filter_down, spread

# Loops over pixels are inside, those over their weights outside: so LLVM finds vectors.


@inner
def _filter_weights(start, length, high, method, size, taps):
    """Pixels that each of ``size`` pixels of the result is mixed of: the first, and the weights of
    ``taps`` from there on (taps, size), which sum up to 1.

    The result stands for ``length`` pixels from ``start`` on; pixels outside [0, high) do not
    exist. ``method``: 0 bilinear, 1 bicubic (Keys, "Cubic convolution interpolation for digital
    image processing", 1981, with a = -0.5), both as wide as the shrink factor where that is above
    1, like Pillow's; 2 area, the share of each pixel in what a pixel of the result covers.
    """
    first, weights = np.empty(size, np.int64), np.empty((taps, size))
    scale = length / size
    wide = scale if method == AREA or scale > 1.0 else 1.0
    reach = wide * (0.5 if method == AREA else 1.0 if method == BILINEAR else 2.0)
    centre, begin, total = np.empty(size), np.empty(size, np.int64), np.zeros(size)
    for i in range(size):
        centre[i] = start + (i + 0.5) * scale
        at = np.floor(centre[i] - reach + (0.0 if method == AREA else 0.5))
        begin[i] = min(max(np.int64(at), 0), high - 1)
        first[i] = min(begin[i], high - taps)
    for k in range(taps):
        row = weights[k]
        if method == AREA:
            for i in range(size):
                j = np.float64(first[i] + k)
                weight = min(j + 1.0, centre[i] + reach) - max(j, centre[i] - reach)
                row[i] = max(weight, 0.0)
        else:
            for i in range(size):
                x = abs(first[i] + k + 0.5 - centre[i]) / wide
                if method == BILINEAR:
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
    return first, weights


@inner
def _quantised(weights):
    """Weights in 1/16384, whose rounding errors the largest takes: (size, taps), an even number of
    these."""
    taps, size = weights.shape
    out = np.zeros((size, taps + taps % 2), np.int16)
    rest, most = np.full(size, 16384, np.int64), np.zeros(size, np.int64)
    best = weights[0].copy()
    for k in range(taps):
        for i in range(size):
            whole = np.int64(np.floor(weights[k, i] * 16384.0 + 0.5))
            out[i, k] = whole
            rest[i] -= whole
        for i in range(size):
            if weights[k, i] > best[i]:
                best[i], most[i] = weights[k, i], k
    for i in range(size):
        out[i, most[i]] += rest[i]
    return out


# numba frees an array after the last line that names it, also where its address is still in use:
# hence arrays, not addresses, are handed to these.


@inner
def _line_down(rows, weights, line, size):
    """A line of the result, from rows that are filtered along."""
    source, at, out = address_in(rows), address_in(weights), address_in(line)
    for j in range(0, size, COLUMNS):
        filter_down(source + j, rows.shape[1], at, weights.size // 2, out + j)


@inner
def _lines_along(source, stride, channels, begins, weights, orders, mixed, out):
    """LINES rows, from a picture's lines."""
    at, order, to = address_in(weights), address_in(orders), address_in(mixed)
    vectors, step = weights.shape[1], 32 * weights.shape[1]
    if vectors == 1:
        for i in range(begins.size):
            along_1(source + begins[i], stride, channels, order, at + step * i, 1, to + 32 * i)
    elif vectors == 2:
        for i in range(begins.size):
            along_2(source + begins[i], stride, channels, order, at + step * i, 2, to + 32 * i)
    else:
        for i in range(begins.size):
            along_more(
                source + begins[i], stride, channels, order, at + step * i, vectors, to + 32 * i
            )
    for i in range(0, begins.size, PIXELS):
        spread(to + 32 * i, channels, order + 32, address_in(out) + i * channels, out.shape[1])


@inner
def _weights_along(first, exact, channels, flip):
    """Of each pixel of a line of the result: where what it is mixed of begins, in bytes from the
    first one's, and the weights; and two orders of bytes: see _filter_along."""
    taps, wide = exact.shape
    along, begins = _quantised(exact), np.empty(wide, np.int64)
    # Half of a vector has two pixels of each line, as pairs of int16 of a channel; then four pixels
    # of 4 bytes.
    weights = np.zeros((wide, (taps + PIXELS - 1) // PIXELS, 16), np.int16)
    orders = np.full((2, 32), 255, np.uint8)
    for k in range(PIXELS):
        for c in range(channels):
            orders[0, k // 2 * 16 + 4 * c + k % 2 * 2] = k * channels + c
            orders[1, k * channels + c] = orders[1, 16 + k * channels + c] = 4 * k + c
    for i in range(wide):
        x = wide - 1 - i if flip else i
        begins[i] = (first[x] - first[0]) * channels
        for k in range(taps):
            begin = k % PIXELS // 2 * 8 + k % 2
            for c in range(4):
                weights[i, k // PIXELS, begin + 2 * c] = along[x, k]
    return begins, weights, orders


@inner
def _resize(source, stride, channels, axes, box, method, flip, out, high, wide):
    """Resize part of a picture as Pillow does it: along the lines first, and what is between is
    bytes. ``axes``: see looked_at, of the rows and of the columns."""
    (skip_y, start_y, limit_y, taps_y), (skip_x, start_x, limit_x, taps_x) = axes
    first_y, exact_y = _filter_weights(start_y, box[2], limit_y, method, high, taps_y)
    first_x, exact_x = _filter_weights(start_x, box[3], limit_x, method, wide, taps_x)
    source += skip_y * stride + skip_x * channels
    down, left = _quantised(exact_y), first_x[0]
    begins, weights, orders = _weights_along(first_x, exact_x, channels, flip)
    mixed = np.empty((wide + PIXELS, 32), np.uint8)
    # rows[k] is the picture's row ``top + k``, filtered along; ``row`` is the next to be filtered
    size = wide * channels
    pitch = (size + 16) // COLUMNS * COLUMNS + COLUMNS
    rows, line = np.zeros((2 * taps_y + 4 * LINES, pitch), np.uint8), np.empty(pitch, np.uint8)
    # A vector reads up to 16 bytes too much: the last lines are copied to where that may be.
    count = (first_x[wide - 1] + taps_x - left) * channels
    last = np.zeros((LINES, count + 16), np.uint8)
    top = row = first_y[0]
    for y in range(high):
        while row < first_y[y] + taps_y:
            if row + LINES - top >= len(rows):  # what is still needed moves to the front
                for k in range(first_y[y], row):
                    memcpy(address_in(rows[k - first_y[y] :]), address_in(rows[k - top :]), size)
                top = first_y[y]
            begin, step = source + row * stride + left * channels, stride
            if (limit_y - row - LINES) * stride < 16:
                for k in range(min(LINES, limit_y - row)):
                    memcpy(address_in(last[k:]), begin + k * stride, count)
                begin, step = address_in(last), count + 16
            _lines_along(begin, step, channels, begins, weights, orders, mixed, rows[row - top :])
            row += LINES
        _line_down(rows[first_y[y] - top :], down[y], line, size)
        memcpy(out + y * size, address_in(line), size)
    last[0, 0] = line[0] = 0  # in use until here


@kernel(plans_type, boxes_type, *[types.int64] * 6, types.boolean)
def resize_planned(plan, boxes, first, end, channels, method, high, wide, outside):
    """Resize the boxes of uint8 pictures of 1 to 4 channels, ``first`` to ``end`` of a plan, to
    (high, wide, channels) each; a box that has that size is copied. See geometry.resize_into.
    """
    plans = plan.reshape(-1).view(PLAN)
    for i in range(first, end):
        line, box = plans[i], boxes[i]
        source, stride, flip = line.source, line.width * channels, line.mirrored != 0
        at_pixels = np.floor(box[0]) == box[0] and np.floor(box[1]) == box[1]
        if at_pixels and box[2] == high and box[3] == wide:  # nothing to resize
            source += np.int64(box[0]) * stride + np.int64(box[1]) * channels
            if flip:
                mirror_row(source, stride, line.target, high, wide, channels)
                continue
            size = wide * channels
            for y in range(high):
                memcpy(line.target + y * size, source + y * stride, size)
            continue
        axes = (
            looked_at(box[0], box[2], high, line.height, method, outside),
            looked_at(box[1], box[3], wide, line.width, method, outside),
        )
        _resize(source, stride, channels, axes, box, method, flip, line.target, high, wide)


@kernel(*planning_types, plans_type, boxes_type)
def plan_crops(addresses, shape, wanted, shares, draws, flips, out, row_bytes, rows, plan, boxes):
    """Plan the crops of raw uint8 pictures of one ``shape`` (H, W, C), for resize_planned.

    They are resized to rows of ``row_bytes`` bytes at ``out``. ``wanted``: height and width of a
    row, and the crop by its number in CROPS; ``shares`` and ``draws`` (B, 40): see
    shared.choose_rect. ``plan`` (B, PLAN) and ``boxes`` (B, 4) are written.
    """
    height, width, plans = shape[0], shape[1], plan.reshape(-1).view(PLAN)
    for i in range(addresses.size):
        rect = choose_rect(height, width, wanted[0], wanted[1], wanted[2], shares, draws[i])
        line = plans[i]
        line.source, line.height, line.width = addresses[i], height, width
        line.mirrored, line.target = flips[i], out + rows[i] * row_bytes
        for k in range(4):
            boxes[i, k] = rect[k]


def _resizer(name, number, kind):
    """Enter the kernel ``name``, which resizes floats of one type."""

    @kernel(
        *(types.Array(number, 2, "C", readonly=True), types.int64, types.float64[::1]),
        *(types.int64, types.boolean, types.boolean, number[:, :, ::1]),
        name=name,
    )
    @apart(name)
    def resize(pixels, channels, box, method, outside, flip, out):
        """Resize floats, which are not clipped: ``pixels`` (h, w * C) to ``out`` (H, W, C)."""
        (high, wide), height = out.shape[:2], pixels.shape[0]
        width = pixels.shape[1] // channels
        skip_y, start_y, limit_y, taps_y = looked_at(box[0], box[2], high, height, method, outside)
        skip_x, start_x, limit_x, taps_x = looked_at(box[1], box[3], wide, width, method, outside)
        first_y, exact_y = _filter_weights(start_y, box[2], limit_y, method, high, taps_y)
        first_x, exact_x = _filter_weights(start_x, box[3], limit_x, method, wide, taps_x)
        left = first_x[0] * channels
        begin = left + skip_x * channels
        line = np.empty((first_x[wide - 1] + taps_x) * channels - left, kind)
        for y in range(high):
            for j in range(line.size):
                line[j] = 0
            for k in range(taps_y):
                weight = kind(exact_y[k, y])
                row = pixels[skip_y + first_y[y] + k]
                for j in range(line.size):
                    line[j] += weight * row[begin + j]
            for i in range(wide):
                x = wide - 1 - i if flip else i
                at = first_x[x] * channels - left
                for c in range(channels):
                    total = kind(0)
                    for k in range(taps_x):
                        total += kind(exact_x[k, x]) * line[at + k * channels + c]
                    out[y, i, c] = total


_resizer("resize_f4", types.float32, np.float32)
_resizer("resize_f8", types.float64, np.float64)
