"""Vectors of pixels: what the kernels that resize are made of, written for LLVM by hand."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

from .base import instruction
from .memory import load_any, store_any

# Along the lines first, and rounded to bytes, then down, as Pillow does it. Weights are int16 (Q14)
# and sums int32. Plain loops take 6.5 times as long (crops of 300 x 400 pixels to 224 x 224), or 4
# (of 64 x 64 to 32 x 32, both AVX2), since LLVM finds no vectors along the lines. With AVX2 two
# products are added at once (pmaddwd), elsewhere one by one. The order of bytes comes from memory,
# where LLVM does not know it: of an order that it knows it makes a slow vpermt2b.

#: Lines that are filtered along together: their weights are loaded once.
LINES = 8
#: Bytes of a line of the result that are made together.
COLUMNS = 32
#: Pixels that are mixed together along a line: 16 bytes have four, of up to four channels.
PIXELS = 4

#: Whether code is made for a processor with AVX2.
FAST = "+avx2" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")

_BYTE, _SHORT, _INT, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _same(count, value):
    """A constant of ``count`` equal lanes of int32."""
    return ir.Constant(ir.VectorType(_INT, count), [value] * count)


def take(builder, a, b, lanes):
    """Lanes of the vectors ``a`` and ``b``, which are numbered through."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), [*lanes]))


def _splat(builder, value, lanes):
    one = builder.insert_element(_same(lanes, 0), value, ir.Constant(_INT, 0))
    return take(builder, one, one, [0] * lanes)


def called(builder, name, result, arguments):
    """What LLVM's own function ``name`` gives."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _products(builder, values, weights):
    """``a * v + b * w`` of eight int32 that are two int16 each: ``values`` a and b, which are
    not negative, ``weights`` v and w."""
    if FAST:
        both = [builder.bitcast(value, ir.VectorType(_SHORT, 16)) for value in (values, weights)]
        return called(builder, "llvm.x86.avx2.pmadd.wd", values.type, both)
    half = _same(8, 16)
    low = builder.ashr(builder.shl(weights, half), half)
    low = builder.mul(builder.and_(values, _same(8, 0xFFFF)), low)
    high = builder.mul(builder.lshr(values, half), builder.ashr(weights, half))
    return builder.add(low, high)


def _sums(builder, count, products):
    """Sums of the vectors that ``products`` gives for 0 to ``count`` - 1, at least one.

    A ``count`` that Python knows is not made a loop, which would take a third longer.
    """
    if isinstance(count, int):
        totals = products(ir.Constant(_LONG, 0))
        for k in range(1, count):
            more = products(ir.Constant(_LONG, k))
            totals = [builder.add(a, b) for a, b in zip(totals, more, strict=True)]
        return totals
    slots = [cgutils.alloca_once_value(builder, one) for one in products(ir.Constant(_LONG, 0))]
    with cgutils.for_range(builder, count, start=ir.Constant(_LONG, 1)) as loop:
        for slot, product in zip(slots, products(loop.index), strict=True):
            builder.store(builder.add(builder.load(slot), product), slot)
    return [builder.load(slot) for slot in slots]


def _ordered(builder, pixels, order):
    """Bytes of the halves of a vector, in the order of another; 0 where that is 255."""
    kind = ir.VectorType(_BYTE, 32)
    order = load_any(builder, order, kind)
    return called(builder, "llvm.x86.avx2.pshuf.b", kind, [pixels, order])


def _clipped(builder, a, b):
    """Eight sums each as int16 that _as_bytes takes; the halves of both are together."""
    shorts = ir.VectorType(_SHORT, 16)
    if FAST:
        both = [builder.ashr(sums, _same(8, 7)) for sums in (a, b)]
        value = called(builder, "llvm.x86.avx2.packssdw", shorts, both)
        power = ir.Constant(shorts, [1 << 8] * 16)
        return called(builder, "llvm.x86.avx2.pmul.hr.sw", shorts, [value, power])
    both = []
    for value in (a, b):
        value = builder.ashr(builder.add(value, _same(8, 1 << 13)), _same(8, 14))
        for sign, limit in ((">", 255), ("<", 0)):
            over = builder.icmp_signed(sign, value, _same(8, limit))
            value = builder.select(over, _same(8, limit), value)
        both.append(builder.bitcast(value, shorts))
    return take(builder, both[0], both[1], _lower_halves(16))


def _as_bytes(builder, a, b):
    """What _clipped gives, as bytes; the halves of both are together."""
    kind = ir.VectorType(_BYTE, 32)
    if FAST:
        return called(builder, "llvm.x86.avx2.packuswb", kind, [a, b])
    a, b = (builder.bitcast(value, kind) for value in (a, b))
    return take(builder, a, b, _lower_halves(32))


def _lower_halves(lanes: int) -> list[int]:
    """Every second lane of two vectors; the halves of both are together."""
    halves = [(of + half) for half in (0, lanes // 2) for of in (0, lanes)]
    return [first + k for first in halves for k in range(0, lanes // 2, 2)]


def _at(builder, address, index, step):
    """``address + index * step``."""
    step = ir.Constant(_LONG, step) if isinstance(step, int) else step
    return builder.add(address, builder.mul(index, step))


@instruction(types.void(*[types.int64] * 5))
def filter_down(builder, source, stride, weights, pairs, out):
    """``out[j] = sum of weights[k] * source[k * stride + j]`` for COLUMNS bytes; pairs of k."""
    shorts, ints = ir.VectorType(_SHORT, 16), ir.VectorType(_INT, 8)
    low = ir.Constant(shorts, [255] * 16)
    byte = ir.Constant(shorts, [8] * 16)

    def products(index):
        begin = _at(builder, source, index, builder.shl(stride, ir.Constant(_LONG, 1)))
        a = load_any(builder, begin, shorts)
        b = load_any(builder, builder.add(begin, stride), shorts)
        pair = load_any(builder, _at(builder, weights, index, 4), _INT)
        pair = _splat(builder, pair, 8)
        found = []
        # of each half: columns of two bytes, of the one line and the other
        for first in (0, 4):
            columns = (*range(first, first + 4), *range(first + 8, first + 12))
            both = take(builder, a, b, [k + of for k in columns for of in (0, 16)])
            for one in (builder.and_(both, low), builder.lshr(both, byte)):
                found.append(_products(builder, builder.bitcast(one, ints), pair))
        return found

    totals = _sums(builder, pairs, products)
    even, odd = (_clipped(builder, *totals[k::2]) for k in (0, 1))
    value = _as_bytes(builder, even, odd)
    lanes = [half + k + of for half in (0, 16) for k in range(8) for of in (0, 8)]
    store_any(builder, take(builder, value, value, lanes), out)


def _by_lines(builder, totals):
    """The sums of eight lines: two lines in each vector."""
    halves = zip(totals[:4], totals[4:], strict=True)
    if not FAST:
        return [take(builder, a, b, range(8)) for a, b in halves]
    return [
        builder.add(
            take(builder, a, b, [0, 1, 2, 3, 12, 13, 14, 15]),
            take(builder, a, b, [4, 5, 6, 7, 8, 9, 10, 11]),
        )
        for a, b in halves
    ]


def _filter_along(known):
    """An intrinsic: a pixel of the result, as 4 bytes, of each of LINES lines, next to each other.

    It is mixed of ``count`` times PIXELS pixels of ``pixel`` bytes (``known``: that many); for
    ``order`` and ``weights`` see resizing.py.
    """

    @instruction(types.void(*[types.int64] * 7))
    def along(builder, source, stride, pixel, order, weights, count, out):
        ints = ir.VectorType(_INT, 8)

        def products(index):
            at = _at(builder, weights, index, 32)
            begin = _at(builder, source, index, builder.shl(pixel, ir.Constant(_LONG, 2)))
            lines = [_at(builder, begin, ir.Constant(_LONG, k), stride) for k in range(LINES)]
            if not FAST:
                return [mixed(line, at) for line in lines]
            pairs = load_any(builder, at, ints)
            return [_products(builder, in_order(line), pairs) for line in lines]

        def in_order(line):
            pixels = load_any(builder, line, ir.VectorType(_BYTE, 16))
            pixels = take(builder, pixels, pixels, [*range(16)] * 2)
            return builder.bitcast(_ordered(builder, pixels, order), ints)

        def mixed(line, weights):
            total = _same(4, 0)
            for k in range(PIXELS):
                at = _at(builder, line, ir.Constant(_LONG, k), pixel)
                value = load_any(builder, at, ir.VectorType(_BYTE, 4))
                value = builder.zext(value, ir.VectorType(_INT, 4))
                at = builder.add(weights, ir.Constant(_LONG, 2 * (k // 2 * 8 + k % 2)))
                weight = builder.sext(load_any(builder, at, _SHORT), _INT)
                total = builder.add(total, builder.mul(value, _splat(builder, weight, 4)))
            return total

        totals = _sums(builder, known or count, products)
        totals = _by_lines(builder, totals)
        both = [_clipped(builder, *two) for two in (totals[:2], totals[2:])]
        store_any(builder, _as_bytes(builder, *both), out)

    return along


along_1, along_2, along_more = (_filter_along(known) for known in (1, 2, None))


@instruction(types.void(*[types.int64] * 5))
def spread(builder, mixed, pixel, order, out, pitch):
    """Store PIXELS pixels that lie as _filter_along leaves them, in LINES lines."""
    found = [
        load_any(builder, builder.add(mixed, ir.Constant(_LONG, 32 * k)), ir.VectorType(_INT, 8))
        for k in range(PIXELS)
    ]
    lines = [_at(builder, out, ir.Constant(_LONG, k), pitch) for k in range(LINES)]
    if not FAST:
        for line, at in enumerate(lines):
            for k, one in enumerate(found):  # what is too much is of the next
                value = builder.extract_element(one, ir.Constant(_INT, line))
                store_any(builder, value, _at(builder, at, ir.Constant(_LONG, k), pixel))
        return
    bytes_ = ir.VectorType(_BYTE, 32)
    for first in (0, 2):  # of lines, which lie four in a half of a vector
        lanes = [k + half + of for half in (0, 4) for k in (first, first + 1) for of in (0, 8)]
        a, b = (take(builder, found[k], found[k + 1], lanes) for k in (0, 2))
        for k in (0, 1):
            lanes = [2 * k + n + half + of for half in (0, 4) for of in (0, 8) for n in (0, 1)]
            value = builder.bitcast(take(builder, a, b, lanes), bytes_)
            value = _ordered(builder, value, order)
            for line in (0, 1):
                part = take(builder, value, value, range(16 * line, 16 * line + 16))
                store_any(builder, part, lines[first + k + 4 * line])
