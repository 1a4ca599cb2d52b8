"""Kernels of augmentation: what is done to the pixels of one picture (H, W, C), uint8.

Numbers are worked out as torchvision's v2 functions work them out, in float32 where these do.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types

from .base import inner, instruction, kernel
from .memory import address_in, bytes_from, load, load_any, memcpy, store, store_any

_address, _int, _float = types.int64, types.int64, types.float32

#: Weights of red, green and blue in a grey level (ITU-R BT.601, as torchvision rounds them).
_RED, _GREEN, _BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
#: Fixed point of the coordinates of affine_nearest: bits behind the point.
_BITS = 32


@inner
def _stretch(image, pixels, channels, c):
    """Stretch channel ``c``; ``channels`` is a number that LLVM knows: it makes vector code."""
    data, least, most = bytes_from(image), np.uint8(255), np.uint8(0)
    for p in range(pixels):
        value = data[channels * p + c]
        least, most = value if value < least else least, value if value > most else most
    if most <= least:
        return
    low, scale = np.float32(least), (np.float32(most) - np.float32(least)) * np.float32(1 / 255)
    for p in range(pixels):
        stretched = (np.float32(data[channels * p + c]) - low) / scale
        data[channels * p + c] = np.uint8(np.int32(min(stretched, np.float32(255))))


@kernel(_address, _int, _int)
def autocontrast(image, pixels, channels):
    """Stretch each channel to the whole range of levels."""
    if channels == 3:
        for c in range(3):
            _stretch(image, pixels, 3, c)
    else:
        _stretch(image, pixels, 1, 0)


@kernel(_address, _int, _int)
def equalize(image, pixels, channels):
    """Spread the levels of each channel evenly, as Pillow's ``ImageOps.equalize``."""
    data = bytes_from(image)
    # neighbours are often equal: a processor waits for the count that it has just written
    counts = np.zeros((4, channels, 256), np.int32)
    table = counts.reshape(-1)
    for p in range(pixels):
        first = (p & 3) * channels * 256
        for c in range(channels):
            table[np.uintp(first + 256 * c + data[p * channels + c])] += 1
    made = np.empty((3, 256), np.uint8)
    for c in range(channels):
        last, count = 0, counts[0, c]
        for k in range(256):
            count[k] += counts[1, c, k] + counts[2, c, k] + counts[3, c, k]
            last = k if count[k] else last
        step, below = (pixels - count[last]) // 255, 0
        for k in range(256):
            made[c, k] = min(255, (below + step // 2) // step) if step else k
            below += count[k]
        made[c, 0] = 0
    red, green, blue = made[0], made[1], made[2]
    if channels == 3:
        for p in range(pixels):
            data[3 * p] = red[np.uintp(data[3 * p])]
            data[3 * p + 1] = green[np.uintp(data[3 * p + 1])]
            data[3 * p + 2] = blue[np.uintp(data[3 * p + 2])]
    else:
        for p in range(pixels):
            data[p] = red[np.uintp(data[p])]


@inner
def _grey(red, green, blue):
    mixed = np.float32(red) * _RED + np.float32(green) * _GREEN + np.float32(blue) * _BLUE
    return np.int32(mixed)


@kernel(_address, _int, types.int64[::1])
def sum_of_grey(image, pixels, total):
    """The sum of the grey levels of an RGB picture, into ``total[0]``."""
    data, found = bytes_from(image), 0
    for p in range(pixels):
        found += _grey(data[3 * p], data[3 * p + 1], data[3 * p + 2])
    total[0] = found


@inner
def _blended(value, other, ratio):
    """``value * ratio + other * (1 - ratio)``, cut to a byte; ``other`` is weighted already."""
    mixed = np.float32(value) * ratio + other
    return np.uint8(np.int32(min(max(mixed, np.float32(0)), np.float32(255))))


@kernel(_address, _int, _float, _float)
def blend_level(image, size, ratio, level):
    """``ratio`` times each byte, plus ``level``, cut to a byte."""
    data = bytes_from(image)
    for k in range(size):
        data[k] = _blended(data[k], level, ratio)


@kernel(_address, _int, _float)
def saturate(image, pixels, ratio):
    """Blend an RGB picture with its grey levels, whose part is ``1 - ratio``."""
    data, rest = bytes_from(image), np.float32(1) - ratio
    for p in range(pixels):
        red, green, blue = data[3 * p], data[3 * p + 1], data[3 * p + 2]
        grey = np.float32(_grey(red, green, blue)) * rest
        data[3 * p] = _blended(red, grey, ratio)
        data[3 * p + 1] = _blended(green, grey, ratio)
        data[3 * p + 2] = _blended(blue, grey, ratio)


#: Pixels whose hues are turned together: LLVM makes vector code of loops without branches.
_HUES = 256


@inner
def _turned(planes, count, by):
    """Turn the hues of ``planes``, red, green and blue as float32 (3, _HUES)."""
    reds, greens, blues = planes[0], planes[1], planes[2]
    two, four, six = np.float32(2), np.float32(4), np.float32(6)
    # as torchvision scales [0, 1] to bytes: 255.999 values, cut
    one, full, scale = np.float32(1), np.float32(255), np.float32(255.999)
    for p in range(count):
        red, green, blue = reds[p], greens[p], blues[p]
        most, least = green if green > blue else blue, blue if green > blue else green
        most, least = red if red > most else most, red if red < least else least
        wide = most - least
        is_red, is_green = most == red, most == green
        apart = green - blue if is_red else (blue - red if is_green else red - green)
        base = np.float32(0) if is_red else (two if is_green else four)
        hue = base + apart / (one if wide == 0 else wide)
        hue = hue / six + one + by  # above 0: cutting its fraction off is floor
        hue -= np.float32(np.int32(hue))
        value, part = most / full, wide / (one if most == 0 else most)
        sixth = hue * six
        section = np.int32(sixth)
        over = sixth - np.float32(section)
        section = np.int32(0) if section == 6 else section
        low = value * (one - part)
        down = value * (one - part * over)
        up = value * (one - part * (one - over))
        r, g, b = value, low, down  # section 5
        r, g, b = (up, low, value) if section == 4 else (r, g, b)
        r, g, b = (low, down, value) if section == 3 else (r, g, b)
        r, g, b = (low, value, up) if section == 2 else (r, g, b)
        r, g, b = (down, value, low) if section == 1 else (r, g, b)
        r, g, b = (value, up, low) if section == 0 else (r, g, b)
        reds[p] = red if wide == 0 else r * scale
        greens[p] = green if wide == 0 else g * scale
        blues[p] = blue if wide == 0 else b * scale


@kernel(_address, _int, _float)
def turn_hue(image, pixels, by):
    """Turn the hues of an RGB picture by a part of the circle, -0.5 to 0.5."""
    planes = np.empty((3, _HUES), np.float32)
    reds, greens, blues = planes[0], planes[1], planes[2]
    for first in range(0, pixels, _HUES):
        data, count = bytes_from(image + 3 * first), min(_HUES, pixels - first)
        for p in range(count):
            reds[p] = np.float32(data[3 * p])
            greens[p] = np.float32(data[3 * p + 1])
            blues[p] = np.float32(data[3 * p + 2])
        _turned(planes, count, by)
        for p in range(count):
            data[3 * p] = np.uint8(np.int32(reds[p]))
            data[3 * p + 1] = np.uint8(np.int32(greens[p]))
            data[3 * p + 2] = np.uint8(np.int32(blues[p]))


@kernel(_address, _address, _int, _int, _int, _float)
def sharpen(source, out, height, width, channels, factor):
    """Blend all but the outermost pixels with the mean of the pixels around them."""
    line, rest = width * channels, np.float32(1) - factor
    for y in range(1, height - 1):
        above = bytes_from(source + (y - 1) * line)
        here = bytes_from(source + y * line)
        below = bytes_from(source + (y + 1) * line)
        made = bytes_from(out + y * line)
        for k in range(channels, line - channels):
            a, b = k - channels, k + channels
            near = np.int32(above[a]) + np.int32(above[k]) + np.int32(above[b])
            near += np.int32(here[a]) + np.int32(here[b])
            near += np.int32(below[a]) + np.int32(below[k]) + np.int32(below[b])
            # the mean with weight 5 in the middle, of 13, rounded
            mean = (2 * (near + 5 * np.int32(here[k])) + 13) // 26
            value = np.float32(here[k])
            mixed = value + rest * (np.float32(mean) - value)
            made[k] = np.uint8(np.int32(min(max(mixed, np.float32(0)), np.float32(255))))


@kernel(_address, _int, _int, _int, types.float32[::1], types.float32[::1])
def blur(image, height, width, channels, across, down):
    """Convolve a picture with odd numbers of weights along each axis, reflected at its edges."""
    line, data = width * channels, bytes_from(image)
    reach_x, reach_y = across.size // 2, down.size // 2
    whole = np.empty((height, line), np.float32)
    padded = np.empty(line + 2 * reach_x * channels, np.float32)
    for y in range(height):
        base = y * line
        for k in range(line):
            padded[reach_x * channels + k] = np.float32(data[base + k])
        for x in range(1, reach_x + 1):  # mirrored, the outermost pixel once
            for c in range(channels):
                padded[(reach_x - x) * channels + c] = np.float32(data[base + x * channels + c])
                at = base + (width - 1 - x) * channels + c
                padded[(reach_x + width - 1 + x) * channels + c] = np.float32(data[at])
        row = whole[y]
        for k in range(line):
            row[k] = np.float32(0)
        for t in range(across.size):
            weight = across[t]
            shifted = padded[t * channels : t * channels + line]
            for k in range(line):
                row[k] += weight * shifted[k]
    mixed = np.empty(line, np.float32)
    for y in range(height):
        for k in range(line):
            mixed[k] = np.float32(0)
        for t in range(down.size):
            at = abs(y + t - reach_y)
            if at >= height:
                at = 2 * (height - 1) - at
            weight, row = down[t], whole[at]
            for k in range(line):
                mixed[k] += weight * row[k]
        base = y * line
        for k in range(line):
            data[base + k] = np.uint8(np.int32(mixed[k] + np.float32(0.5)))


@inner
def _inside(start, step, limit, count):
    """The numbers j of 0 .. count-1 for which ``0 <= start + j * step < limit``: first and end."""
    if step < 0:
        start, step = limit - 1 - start, -step
    if step == 0:
        return (0, count) if 0 <= start < limit else (0, 0)
    first = min(max(0, -(start // step)), count)
    end = min(max(0, -((start - limit) // step)), count)
    return first, max(first, end)


#: Places and steps of so many pixels are not worked out in fixed point.
_FAR = 2.0**29


@kernel(_address, _address, _int, _int, _int, _int, _int, types.float64[::1], types.uint8[::1])
def affine_nearest(source, out, height, width, high, wide, channels, matrix, fill):
    """The kernel ``warp`` of an affine ``matrix`` (6,) by nearest neighbour: in fixed point, 32
    bits after the point, but for places and steps of 2**29 pixels or more. ``fill``: (C,)."""
    one = np.float64(1 << _BITS)
    steps = abs(matrix[0]) < _FAR and abs(matrix[3]) < _FAR
    step_x = np.int64(round(matrix[0] * one)) if steps else np.int64(0)
    step_y = np.int64(round(matrix[3] * one)) if steps else np.int64(0)
    src, size = bytes_from(source), height * width * channels
    for i in range(high):
        y = i - 0.5 * (high - 1)
        left = -0.5 * (wide - 1)
        x0 = matrix[0] * left + matrix[1] * y + matrix[2] + 0.5 * width
        y0 = matrix[3] * left + matrix[4] * y + matrix[5] + 0.5 * height
        line = out + i * wide * channels
        dst, room = bytes_from(line), (high - i) * wide * channels
        if not (abs(x0) < _FAR and abs(y0) < _FAR and steps):  # more than fixed point holds, or NaN
            for j in range(wide):
                x, y_here = x0 + j * matrix[0], y0 + j * matrix[3]
                if 0 <= x < width and 0 <= y_here < height:
                    p = channels * (np.int64(y_here) * width + np.int64(x))
                    for c in range(channels):
                        dst[j * channels + c] = src[p + c]
                else:
                    for c in range(channels):
                        dst[j * channels + c] = fill[c]
            continue
        at_x, at_y = np.int64(math.floor(x0 * one)), np.int64(math.floor(y0 * one))
        first, end = _inside(at_x, step_x, width << _BITS, wide)
        first_y, end_y = _inside(at_y, step_y, height << _BITS, wide)
        first = max(first, first_y)
        end = max(first, min(end, end_y))
        for j in range(first * channels):
            dst[j] = fill[j % channels]
        at_x += first * step_x
        at_y += first * step_y
        if step_x == 1 << _BITS and step_y == 0:  # a line that is moved along
            p = channels * ((at_y >> _BITS) * width + (at_x >> _BITS))
            to = line + first * channels
            memcpy(to, source + max(0, p), (end - first) * channels)
        elif channels == 3:
            for j in range(first, end):
                p = 3 * ((at_y >> _BITS) * width + (at_x >> _BITS))
                if p + 4 <= size and 3 * j + 4 <= room:  # a byte more, which is written over
                    store(line + 3 * j, load(source + p, np.int32))
                else:
                    dst[3 * j] = src[p]
                    dst[3 * j + 1] = src[p + 1]
                    dst[3 * j + 2] = src[p + 2]
                at_x += step_x
                at_y += step_y
        else:
            for j in range(first, end):
                p = channels * ((at_y >> _BITS) * width + (at_x >> _BITS))
                for c in range(channels):
                    dst[j * channels + c] = src[p + c]
                at_x += step_x
                at_y += step_y
        for j in range(end * channels, wide * channels):
            dst[j] = fill[j % channels]


@instruction(types.void(types.int64, types.int64, _float, _float, _float, types.int64, types.int64))
def _mix_rgb(builder, above, line, right, low, share, fill, out):
    """Write the pixel of three bytes that lies between ``above``, the next one, and those a
    ``line`` of bytes later; a byte more is read and written. ``share``: the part of it, besides
    which there is the colour at ``fill`` (4 float32); 1 and zeros for none. A plain loop over the
    channels takes twice as long for an image (224 x 224 x 3, turned by 20 degrees)."""
    kind = ir.VectorType(ir.FloatType(), 4)

    def splat(value):
        one = builder.insert_element(ir.Constant(kind, None), value, ir.IntType(32)(0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), 4), [0] * 4)
        return builder.shuffle_vector(one, one, lanes)

    def pixel(address):
        loaded = load_any(builder, address, ir.VectorType(ir.IntType(8), 4))
        return builder.uitofp(loaded, kind)

    def mixed(first, second, part):
        rest = splat(builder.fsub(ir.Constant(ir.FloatType(), 1.0), part))
        return builder.fadd(builder.fmul(rest, first), builder.fmul(splat(part), second))

    def along(address):
        beside = builder.add(address, ir.Constant(address.type, 3))
        return mixed(pixel(address), pixel(beside), right)

    value = mixed(along(above), along(builder.add(above, line)), low)
    colour = load_any(builder, fill, kind)
    value = builder.fmul(splat(share), builder.fsub(value, colour))
    value = builder.fadd(builder.fadd(value, colour), splat(ir.Constant(ir.FloatType(), 0.5)))
    store_any(builder, builder.fptoui(value, ir.VectorType(ir.IntType(8), 4)), out)


@inner(inline="always")
def _between(at, count, step):
    """Of the pixels on both sides of a place along an axis of ``count``, ``step`` bytes apart: the
    number of the first, the weights of both, 0 outside, and how far behind it the second lies."""
    first = np.int64(math.floor(at))
    after = np.float32(at - first)
    before, behind = np.float32(1) - after, step
    if first < 0:
        before, first = np.float32(0), np.int64(0)
    if at < 0:
        behind = 0
    elif first + 1 >= count:
        behind, after = 0, np.float32(0)
    return first, before, after, behind


@kernel(
    _address, _address, _int, _int, _int, _int, _int, types.float64[::1], types.boolean, _float[::1]
)
def warp(source, out, height, width, high, wide, channels, matrix, bilinear, fill):
    """Write a picture (high, wide) whose pixels lie in the source where ``matrix`` (9,) says.

    ``matrix``: from (x, y, 1) to (x, y, 1), both from the middles of the pictures. ``fill``: (C,)
    outside of the source, none for zeros.
    """
    src, dst = bytes_from(source), bytes_from(out)
    filled, colour = fill.size > 0, np.zeros(4, np.float32)
    colour[: min(4, fill.size)] = fill[:4]
    paint, line_bytes = address_in(colour), width * channels
    projects = matrix[6] != 0 or matrix[7] != 0 or matrix[8] != 1
    quick, size = bilinear and channels == 3, high * wide * channels
    for i in range(high):
        y = i - 0.5 * (high - 1)
        for j in range(wide):
            x = j - 0.5 * (wide - 1)
            at_x = matrix[0] * x + matrix[1] * y + matrix[2]
            at_y = matrix[3] * x + matrix[4] * y + matrix[5]
            if projects:
                below = matrix[6] * x + matrix[7] * y + matrix[8]
                if below == 0:
                    below = np.nan  # nowhere
                at_x, at_y = at_x / below, at_y / below
            at_x, at_y = at_x + 0.5 * (width - 1), at_y + 0.5 * (height - 1)
            to = (i * wide + j) * channels
            # four whole pixels, none of which is the last of the source or of the result
            if quick and 0 <= at_x < width - 2 and 0 <= at_y < height - 1 and to + 3 < size:
                first_x, first_y, one = np.int64(at_x), np.int64(at_y), np.float32(1)
                right, low = np.float32(at_x - first_x), np.float32(at_y - first_y)
                share = ((one - right) + right) * ((one - low) + low)
                above = source + (first_y * width + first_x) * 3
                _mix_rgb(above, line_bytes, right, low, share, paint, out + to)
                continue
            outside = not (-1 < at_x < width and -1 < at_y < height)
            if not bilinear and not outside:
                column, line = math.floor(at_x + 0.5), math.floor(at_y + 0.5)
                outside = not (0 <= column < width and 0 <= line < height)
                if not outside:
                    p = (np.int64(line) * width + np.int64(column)) * channels
                    for c in range(channels):
                        dst[to + c] = src[p + c]
                    continue
            if outside:
                for c in range(channels):
                    dst[to + c] = np.uint8(np.int32(fill[c] + np.float32(0.5))) if filled else 0
                continue
            column, left, right, beside = _between(at_x, width, channels)
            line, top, low, under = _between(at_y, height, width * channels)
            p = (line * width + column) * channels
            share = (left + right) * (top + low)
            for c in range(channels):
                upper = left * np.float32(src[p + c]) + right * np.float32(src[p + beside + c])
                lower = left * np.float32(src[p + under + c])
                lower += right * np.float32(src[p + under + beside + c])
                value = top * upper + low * lower
                if filled:  # torchvision weighs what is inside once more
                    value = share * (value - fill[c]) + fill[c]
                dst[to + c] = np.uint8(np.int32(value + np.float32(0.5)))
    colour[0] = 0  # in use until here
