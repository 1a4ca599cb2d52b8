"""Kernels of 4:2:0 planes: made of RGB, and converted to RGB."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from ..shared import AVERAGED
from ..tables import PLAN, PLANES_HEADER
from .base import boxes_type, choose_rect, inner, instruction, kernel, planning_types, plans_type
from .memory import address_in, bytes_from, load, load_any, memcpy, store_any
from .vectors import COLUMNS, FAST, called, take

_BYTE, _SHORT, _INT, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _exact(builder, planes):
    """Red, green and blue of vectors of luma, Cb and Cr: the inverse of BT.601 with full range
    (JFIF 1.02), in 1/65536 as libjpeg has it (jdcolor.c)."""
    kind, wide = (ir.VectorType(one, COLUMNS) for one in (_BYTE, _INT))

    def same(value):
        return ir.Constant(wide, [value] * COLUMNS)

    y, cb, cr = (builder.zext(plane, wide) for plane in planes)
    cb, cr = (builder.sub(plane, same(128)) for plane in (cb, cr))
    found = []
    for weights in (((cr, 91881),), ((cb, -22554), (cr, -46802)), ((cb, 116130),)):
        total = same(1 << 15)
        for plane, weight in weights:
            total = builder.add(total, builder.mul(plane, same(weight)))
        value = builder.add(y, builder.ashr(total, same(16)))
        for sign, limit in ((">", 255), ("<", 0)):
            over = builder.icmp_signed(sign, value, same(limit))
            value = builder.select(over, same(limit), value)
        found.append(builder.trunc(value, kind))
    return found


def _fast(builder, planes):
    """The same by instructions of AVX2 on int16, in half the time. The whole part of a weight is
    added (1.402 = 1 + 0.402). The 15 bits of the rest give what _exact gives, for every colour."""
    bytes_, shorts, ints = (
        ir.VectorType(one, lanes) for one, lanes in ((_BYTE, 32), (_SHORT, 16), (_INT, 8))
    )
    zeros = ir.Constant(bytes_, [0] * 32)

    def halves(a, b, lanes, kind):
        """The elements of ``a`` and ``b``, which alternate, in two vectors: in the first those of
        the lower half of each 128 bits, where AVX2 finds them and its packs put them back."""
        found = []
        for first in (0, lanes // 4):
            order = [
                k + of
                for half in (0, lanes // 2)
                for k in range(half + first, half + first + lanes // 4)
                for of in (0, lanes)
            ]
            found.append(builder.bitcast(take(builder, a, b, order), kind))
        return found

    def same(kind, *values):
        return ir.Constant(kind, [*values] * (kind.count // len(values)))

    def part(y, cb, cr):
        cb, cr = (builder.sub(plane, same(shorts, 128)) for plane in (cb, cr))
        sums = []
        for pairs in halves(cb, cr, 16, shorts):
            total = called(
                builder, "llvm.x86.avx2.pmadd.wd", ints, [pairs, same(shorts, -22554, 18734)]
            )
            total = builder.add(total, same(ints, 1 << 15))
            sums.append(builder.ashr(total, same(ints, 16)))
        green = called(builder, "llvm.x86.avx2.packssdw", shorts, sums)
        red, blue = (
            called(builder, "llvm.x86.avx2.pmul.hr.sw", shorts, [plane, same(shorts, weight)])
            for plane, weight in ((cr, 13173), (cb, -7471))
        )
        return [
            builder.add(y, builder.add(cr, red)),
            builder.add(builder.sub(y, cr), green),
            builder.add(y, builder.add(builder.add(cb, cb), blue)),
        ]

    low, high = (
        part(*half)
        for half in zip(*(halves(plane, zeros, 32, shorts) for plane in planes), strict=True)
    )
    return [
        called(builder, "llvm.x86.avx2.packuswb", bytes_, [*both])
        for both in zip(low, high, strict=True)
    ]


@instruction(types.void(*[types.int64] * 4))
def _to_rgb(builder, luma, blue, red, out):
    """COLUMNS pixels of a line of each plane as RGB: see _exact. With a plain loop a picture takes
    1.8 times as long (250 x 350, AVX2)."""
    kind = ir.VectorType(_BYTE, COLUMNS)
    planes = [load_any(builder, at, kind) for at in (luma, blue, red)]
    red, green, blue = (_fast if FAST else _exact)(builder, planes)
    first = take(builder, red, green, range(2 * COLUMNS))
    last = take(builder, blue, blue, range(2 * COLUMNS))
    lanes = [k + of for k in range(COLUMNS) for of in (0, COLUMNS, 2 * COLUMNS)]
    store_any(builder, take(builder, first, last, lanes), out)


@inner
def _rgb_line(lines, first, rgb, wide, out):
    """A line of RGB at ``out``, of one of each plane; ``rgb`` has room for whole vectors."""
    at, to, pitch = address_in(lines) + first, address_in(rgb), lines.shape[1]
    for x in range(0, wide, COLUMNS):
        _to_rgb(at + x, at + pitch + x, at + 2 * pitch + x, to + 3 * x)
    memcpy(out, to, 3 * wide)


@inner
def _upsampled(source, half_y, half_x, y, first, count, sums, line):
    """Line ``y`` of an upsampled chroma plane, of ``count`` of its samples from ``first`` on: 3/4
    of the sample that a pixel lies in and 1/4 of the next one, in each direction (jdsample.c,
    h2v2_fancy_upsample)."""
    near_y = y // 2
    near = bytes_from(source + near_y * half_x + first)
    if half_x <= 2:
        for x in range(2 * count):
            line[x] = near[x // 2]
        return
    far_y = min(max(near_y - 1 if y % 2 == 0 else near_y + 1, 0), half_y - 1)
    far = bytes_from(source + far_y * half_x + first)
    inner = sums[1 : count + 1]
    for x in range(count):
        inner[x] = 3 * np.int32(near[x]) + np.int32(far[x])
    sums[0], sums[count + 1] = sums[1], sums[count]
    if first > 0:
        sums[0] = 3 * np.int32(near[-1]) + np.int32(far[-1])
    if first + count < half_x:
        sums[count + 1] = 3 * np.int32(near[count]) + np.int32(far[count])
    made = bytes_from(address_in(line))
    for x in range(count):
        three = np.int16(3 * sums[x + 1])
        made[2 * x] = np.uint8(np.uint16(three + sums[x] + 8) >> np.uint16(4))
        made[2 * x + 1] = np.uint8(np.uint16(three + sums[x + 2] + 7) >> np.uint16(4))


@kernel(*[types.int64] * 8)
def convert_420(source, height, width, top, left, out, high, wide):
    """Part of a picture of 4:2:0 planes at ``source`` as RGB (high, wide, 3) at ``out``: the same
    bytes as libjpeg makes of these planes."""
    half_y, half_x = (height + 1) // 2, (width + 1) // 2
    first, count = left // 2, (left + wide + 1) // 2 - left // 2
    lines = np.empty((3, 2 * count + 2 * COLUMNS), np.uint8)
    sums, rgb = np.empty(count + 2, np.int16), np.empty(3 * (wide + COLUMNS), np.uint8)
    planes = source + height * width
    for y in range(top, top + high):
        memcpy(address_in(lines[0]) + left % 2, source + y * width + left, wide)
        _upsampled(planes, half_y, half_x, y, first, count, sums, lines[1])
        _upsampled(planes + half_y * half_x, half_y, half_x, y, first, count, sums, lines[2])
        _rgb_line(lines, left % 2, rgb, wide, out + 3 * wide * (y - top))


@kernel(*planning_types, types.uint64, plans_type, boxes_type, plans_type)
def plan_planes(
    addresses, sizes, wanted, shares, draws, flips, out, row_bytes, rows, magic, plan, boxes, parts
):
    """plan_jpegs of 4:2:0 planes, which begin with the eight bytes ``magic``.

    ``parts`` (B, 4): height and width of a picture, top and left of what is converted of it; its
    height and width are in ``plan``.
    """
    high, wide, whole = wanted[0], wanted[1], wanted[4] != 0
    plans = plan.reshape(-1).view(PLAN)
    for i in range(addresses.size):
        line = plans[i]
        line.size = 0
        if sizes[i] < PLANES_HEADER or load(addresses[i], np.uint64) != magic:
            continue
        width = np.int64(load(addresses[i] + 8, np.uint32))
        height = np.int64(load(addresses[i] + 12, np.uint32))
        if width == 0 or height == 0 or width > wanted[3] // height:
            continue
        half = ((height + 1) // 2) * ((width + 1) // 2)
        if sizes[i] != PLANES_HEADER + height * width + 2 * half:
            continue
        if whole and (height != high or width != wide):
            continue
        rect = choose_rect(height, width, high, wide, wanted[2], shares, draws[i])
        if rect[2] > AVERAGED * high or rect[3] > AVERAGED * wide:
            continue
        parts[i, 0], parts[i, 1], parts[i, 2], parts[i, 3] = height, width, rect[0], rect[1]
        line.height, line.width, line.mirrored = rect[2], rect[3], flips[i]
        line.target, line.data, line.size = out + rows[i] * row_bytes, addresses[i], sizes[i]
        boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3] = 0.0, 0.0, rect[2], rect[3]


@kernel(*[types.int64] * 4)
def make_420(source, height, width, out):
    """The planes of RGB (height, width, 3) at ``source``: BT.601 with full range (JFIF 1.02), in
    1/65536; chroma is that of the mean of 2 x 2 pixels, or of those that there are at an edge."""
    half_y, half_x = (height + 1) // 2, (width + 1) // 2
    luma = bytes_from(out)
    rgb = bytes_from(source)
    for k in range(height * width):
        r, g, b = np.int32(rgb[3 * k]), np.int32(rgb[3 * k + 1]), np.int32(rgb[3 * k + 2])
        luma[k] = np.uint8((19595 * r + 38470 * g + 7471 * b + 32768) >> 16)
    planes = height * width
    for y in range(half_y):
        lines = 2 * y * width, min(2 * y + 1, height - 1) * width
        for x in range(half_x):
            columns = 2 * x, min(2 * x + 1, width - 1)
            red, green, blue = np.int64(0), np.int64(0), np.int64(0)
            for line in lines:
                for column in columns:
                    at = 3 * (line + column)
                    red += rgb[at]
                    green += rgb[at + 1]
                    blue += rgb[at + 2]
            cb = (-11059 * red - 21709 * green + 32768 * blue + (128 << 18) + (1 << 17)) >> 18
            cr = (32768 * red - 27439 * green - 5329 * blue + (128 << 18) + (1 << 17)) >> 18
            luma[planes + y * half_x + x] = np.uint8(min(cb, np.int64(255)))
            luma[planes + (half_y + y) * half_x + x] = np.uint8(min(cr, np.int64(255)))
