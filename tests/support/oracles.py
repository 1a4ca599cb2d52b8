"""Plain numpy versions of kernels of which no library is the judge: fills, casts, resizes.

Each takes the arguments of the kernel of its name: see asyncreader/pixels/_compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncreader.pixels.codec.planes import halves, planes_bytes
from asyncreader.pixels.fill_tables import RUN
from asyncreader.pixels.geometry import AREA, BICUBIC, BILINEAR
from asyncreader.system.array_types import Array, Float32, Float64, Int64, UInt8
from asyncreader.system.memory import bytes_at


def filter_weights(
    start: float, length: float, low: int, high: int, method: int, size: int, taps: int
) -> tuple[Int64, Float64]:
    """Pixels that each of ``size`` pixels of the result is mixed of: the first, and the weights of
    ``taps`` from there on, which sum up to 1.

    The result stands for ``length`` pixels from ``start`` on; pixels outside [low, high) do not
    exist. ``method``: 0 bilinear, 1 bicubic (Keys, "Cubic convolution interpolation for digital
    image processing", 1981, with a = -0.5), both as wide as the shrink factor where that is above
    1, like Pillow's; 2 area, the share of each pixel in what a pixel of the result covers.
    """
    scale = length / size
    wide = scale if method == AREA else max(scale, 1.0)
    reach = wide * (0.5, 1.0, 2.0)[{AREA: 0, BILINEAR: 1, BICUBIC: 2}[method]]
    centre = start + (np.arange(size) + 0.5) * scale
    begin = np.floor(centre - reach + (0.0 if method == AREA else 0.5)).astype(np.int64)
    begin = np.minimum(np.maximum(begin, low), high - 1)
    first = np.minimum(begin, high - taps)
    weights = np.zeros((size, taps))
    total = np.zeros(size)
    for k in range(taps):
        j = first + k
        if method == AREA:
            weight = np.minimum(j + 1.0, centre + reach) - np.maximum(j + 0.0, centre - reach)
            weight = np.maximum(weight, 0.0)
        else:
            x = np.abs((j + 0.5 - centre) / wide)
            if method == BILINEAR:
                weight = np.maximum(1.0 - x, 0.0)
            else:
                inner = (1.5 * x - 2.5) * x * x + 1.0
                outer = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
                weight = np.where(x < 1.0, inner, np.where(x < 2.0, outer, 0.0))
        weights[:, k] = weight
        total += weights[:, k]
    nothing = np.flatnonzero(total == 0.0)
    weights[nothing, (begin - first)[nothing]] = total[nothing] = 1.0
    weights /= total[:, None]
    return first, weights


def _both_weights(
    inside: Int64, box: Float64, method: int, size: tuple[int, int], taps: tuple[int, int]
) -> tuple[tuple[Int64, Float64], tuple[Int64, Float64]]:
    return (
        filter_weights(box[0], box[2], inside[0], inside[1], method, size[0], taps[0]),
        filter_weights(box[1], box[3], inside[2], inside[3], method, size[1], taps[1]),
    )


def _quantised(weights: Float64) -> Int64:
    """Weights in 1/16384, whose rounding errors the largest takes."""
    whole = np.floor(weights * 16384.0 + 0.5).astype(np.int64)
    whole[np.arange(len(whole)), weights.argmax(axis=1)] += 16384 - whole.sum(axis=1)
    return whole


def _weighted(values: Array, axis: int, first: Int64, weights: Array) -> Any:
    """Sums of ``values`` along an axis, from ``first`` on, times their ``weights``."""
    shape = [-1 if i == axis else 1 for i in range(3)]
    steps = enumerate(weights.T)
    return sum(values.take(first + k, axis=axis) * one.reshape(shape) for k, one in steps)


def resize_u8_numpy(
    source: int,
    stride: int,
    channels: int,
    inside: Int64,
    box: Float64,
    method: int,
    taps_y: int,
    taps_x: int,
    flip: bool,
    out: int,
    high: int,
    wide: int,
) -> None:
    """Resize part of a uint8 picture of 1 to 4 channels to (high, wide, channels) at ``out``.

    ``source``: address of its first pixel; a line is ``stride`` bytes, a pixel ``channels``.
    ``inside``: first and end row, first and end column of what may be looked at; ``box``: top,
    left, height and width of what the result shows, in pixels and fractions. ``method``, ``taps_y``
    and ``taps_x``: see :func:`filter_weights`. ``flip``: mirrored left to right.

    As Pillow does it: along the lines first, and what is between is bytes.
    """
    down, across = _both_weights(inside, box, method, (high, wide), (taps_y, taps_x))
    rows, columns = int(inside[1]), int(inside[3])
    flat = bytes_at(source, (rows - 1) * stride + columns * channels)
    strides = (stride, channels, 1)
    picture = np.lib.stride_tricks.as_strided(flat, (rows, columns, channels), strides)
    values = picture.astype(np.int64)
    for axis, (first, weights) in ((1, across), (0, down)):
        total = _weighted(values, axis, first, _quantised(weights))
        values = np.clip((total + (1 << 13)) >> 14, 0, 255)
    result = bytes_at(out, high * wide * channels).reshape(high, wide, channels)
    np.copyto(result, values[:, ::-1] if flip else values, casting="unsafe")


def resize_f4_numpy(
    pixels: Array,
    channels: int,
    inside: Int64,
    box: Float64,
    method: int,
    taps_y: int,
    taps_x: int,
    flip: bool,
    out: Array,
) -> None:
    """Resize floats, which are not clipped: ``pixels`` (h, w * channels) to ``out`` (H, W, C)."""
    high, wide = out.shape[:2]
    down, across = _both_weights(inside, box, method, (high, wide), (taps_y, taps_x))
    values = pixels.reshape(len(pixels), -1, channels)
    for axis, (first, weights) in ((0, down), (1, across)):
        values = _weighted(values, axis, first, weights.astype(pixels.dtype))
    out[:] = values[:, ::-1] if flip else values


# -- 4:2:0 planes ----------------------------------------------------------------------------------


def _planes(address: int, height: int, width: int) -> tuple[UInt8, UInt8, UInt8]:
    data, size = bytes_at(address, planes_bytes(height, width)), height * width
    blue, red = data[size:].reshape(2, *halves(height, width))
    return data[:size].reshape(height, width), blue, red


def rgb_of(luma: Array, blue: Array, red: Array) -> UInt8:
    """Planes (H, W) of one size as RGB (H, W, 3), by the inverse of BT.601 with full range (JFIF
    1.02, "Conversion to and from RGB"), in 1/65536 as libjpeg has it (jdcolor.c)."""
    y = luma.astype(np.int64)
    cb, cr = blue.astype(np.int64) - 128, red.astype(np.int64) - 128
    parts = 91881 * cr, -22554 * cb - 46802 * cr, 116130 * cb
    rgb = np.stack([y + ((part + (1 << 15)) >> 16) for part in parts], axis=2)
    found: UInt8 = np.clip(rgb, 0, 255).astype(np.uint8)
    return found


def _neighbours(count: int, limit: int) -> tuple[Int64, Int64]:
    """For each of ``count`` pixels along an axis: the chroma sample that it lies in, and the one
    that is next to it; outside the plane the last one counts again."""
    at = np.arange(count)
    return at // 2, np.clip(at // 2 + np.where(at % 2, 1, -1), 0, limit - 1)


def upsampled(plane: UInt8, height: int, width: int) -> UInt8:
    """A chroma plane at the size of its picture, as libjpeg makes it (jdsample.c,
    h2v2_fancy_upsample): 3/4 of the sample that a pixel lies in and 1/4 of the next one, in each
    direction. Planes of one or two columns are repeated, as there."""
    (near_y, far_y), (near_x, far_x) = (
        _neighbours(*sides) for sides in zip((height, width), plane.shape, strict=True)
    )
    if plane.shape[1] <= 2:
        return plane[near_y[:, None], near_x]
    wide = plane.astype(np.int64)
    sums = 3 * wide[near_y] + wide[far_y]
    rounding = np.where(np.arange(width) % 2, 7, 8)
    return ((3 * sums[:, near_x] + sums[:, far_x] + rounding) >> 4).astype(np.uint8)


def convert_420_numpy(
    source: int, height: int, width: int, top: int, left: int, out: int, high: int, wide: int
) -> None:
    """Part of a picture of 4:2:0 planes at ``source`` as RGB (high, wide, 3) at ``out``: the same
    bytes as libjpeg makes of these planes."""
    luma, blue, red = _planes(source, height, width)
    part = slice(top, top + high), slice(left, left + wide)
    chroma = (upsampled(plane, height, width)[part] for plane in (blue, red))
    bytes_at(out, high * wide * 3).reshape(high, wide, 3)[:] = rgb_of(luma[part], *chroma)


def make_420_numpy(source: int, height: int, width: int, out: int) -> None:
    """The planes of RGB (height, width, 3) at ``source``: BT.601 with full range (JFIF 1.02), in
    1/65536; chroma is that of the mean of 2 x 2 pixels, or of those that there are at an edge."""
    rgb = bytes_at(source, height * width * 3).reshape(height, width, 3).astype(np.int64)
    luma, blue, red = _planes(out, height, width)
    luma[:] = (rgb @ (19595, 38470, 7471) + (1 << 15)) >> 16
    even = np.pad(rgb, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
    sums = even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]
    middle = (128 << 18) + (1 << 17)
    blue[:] = np.minimum((sums @ (-11059, -21709, 32768) + middle) >> 18, 255)
    red[:] = np.minimum((sums @ (32768, -27439, -5329) + middle) >> 18, 255)


# -- augmentation ----------------------------------------------------------------------------------


def _at(address: int, *shape: int) -> UInt8:
    return bytes_at(address, int(np.prod(shape))).reshape(shape)


def autocontrast_numpy(image: int, pixels: int, channels: int) -> None:
    """Stretch each channel to the whole range of levels."""
    for values in _at(image, pixels, channels).T:
        least, most = np.float32(values.min()), np.float32(values.max())
        if most > least:
            values[:] = _bytes((values - least) / ((most - least) * np.float32(1 / 255)))


def equalize_numpy(image: int, pixels: int, channels: int) -> None:
    """Spread the levels of each channel evenly, as Pillow's ``ImageOps.equalize``."""
    for values in _at(image, pixels, channels).T:
        counts = np.bincount(values, minlength=256)
        step = int(counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        if step:
            table = (np.cumsum(counts) - counts + step // 2) // step
            table[0] = 0
            values[:] = _bytes(table)[values]


def _grey(rgb: UInt8) -> Float32:
    """Grey levels as torchvision has them: whole numbers in float32."""
    weights = np.array((0.2989, 0.587, 0.114), np.float32)
    red, green, blue = (rgb[:, c].astype(np.float32) * weights[c] for c in range(3))
    level: Float32 = np.floor(red + green + blue)
    return level


def _bytes(values: Array) -> UInt8:
    """``values`` cut to what a byte holds, without rounding."""
    return np.clip(values, 0, 255).astype(np.uint8)


def sum_of_grey_numpy(image: int, pixels: int, total: Int64) -> None:
    """The sum of the grey levels of an RGB picture, into ``total[0]``."""
    total[0] = int(_grey(_at(image, pixels, 3)).sum(dtype=np.float64))


def blend_level_numpy(image: int, size: int, ratio: float, level: float) -> None:
    """``ratio`` times each byte, plus ``level``, cut to a byte."""
    data = _at(image, size)
    data[:] = _bytes(data * np.float32(ratio) + np.float32(level))


def saturate_numpy(image: int, pixels: int, ratio: float) -> None:
    """Blend an RGB picture with its grey levels, whose part is ``1 - ratio``."""
    data = _at(image, pixels, 3)
    part = np.float32(ratio)
    data[:] = _bytes(data * part + (_grey(data) * (np.float32(1) - part))[:, None])


def turn_hue_numpy(image: int, pixels: int, by: float) -> None:
    """Turn the hues of an RGB picture by a part of the circle, -0.5 to 0.5."""
    data = _at(image, pixels, 3)
    rgb = data.astype(np.float32)
    most, least = rgb.max(1), rgb.min(1)
    wide = np.where(most == least, np.float32(1), most - least)
    red, green, blue = rgb.T
    hue = np.where(
        most == red,
        (green - blue) / wide,
        np.where(most == green, 2 + (blue - red) / wide, 4 + (red - green) / wide),
    )
    hue = (hue / np.float32(6) + np.float32(1) + np.float32(by)) % np.float32(1)
    value, part = most / np.float32(255), (most - least) / np.maximum(most, 1)
    sixth = hue * np.float32(6)
    section = np.floor(sixth)
    over = sixth - section
    low, down, up = value * (1 - part), value * (1 - part * over), value * (1 - part * (1 - over))
    ways = [
        *((value, up, low), (down, value, low), (low, value, up)),
        *((low, down, value), (up, low, value), (value, low, down)),
    ]
    choice = section.astype(np.int64) % 6
    turned = np.stack([np.choose(choice, [way[c] for way in ways]) for c in range(3)], axis=1)
    # as torchvision scales [0, 1] to bytes
    data[:] = np.where((most == least)[:, None], data, _bytes(turned * np.float32(255.999)))


def sharpen_numpy(
    source: int, out: int, height: int, width: int, channels: int, factor: float
) -> None:
    """Blend all but the outermost pixels with the mean of the pixels around them."""
    given = _at(source, height, width, channels).astype(np.int32)
    made = _at(out, height, width, channels)
    total = 4 * given[1:-1, 1:-1]
    for y in range(3):
        for x in range(3):
            total = total + given[y : height - 2 + y, x : width - 2 + x]
    mean = ((2 * total + 13) // 26).astype(np.float32)
    value = given[1:-1, 1:-1].astype(np.float32)
    made[1:-1, 1:-1] = _bytes(value + (np.float32(1) - np.float32(factor)) * (mean - value))


def blur_numpy(
    image: int, height: int, width: int, channels: int, across: Float32, down: Float32
) -> None:
    """Convolve a picture with odd numbers of weights along each axis, reflected at its edges."""
    data = _at(image, height, width, channels)
    x, y = across.size // 2, down.size // 2
    padded = np.pad(data.astype(np.float32), ((0, 0), (x, x), (0, 0)), "reflect")
    rows = np.zeros((height, width, channels), np.float32)
    for t, weight in enumerate(across):
        rows += weight * padded[:, t : t + width]
    padded = np.pad(rows, ((y, y), (0, 0), (0, 0)), "reflect")
    mixed = np.zeros_like(rows)
    for t, weight in enumerate(down):
        mixed += weight * padded[t : t + height]
    data[:] = _bytes(mixed + np.float32(0.5))


def affine_nearest_numpy(
    source: int,
    out: int,
    height: int,
    width: int,
    high: int,
    wide: int,
    channels: int,
    matrix: Float64,
    fill: UInt8,
) -> None:
    """:func:`warp_numpy` of an affine ``matrix`` (6,) by nearest neighbour: in fixed point, 32 bits
    behind the point, but for places and steps of 2**29 pixels or more. ``fill``: (C,)."""
    one, far = float(1 << 32), 2.0**29
    given, made = _at(source, height, width, channels), _at(out, high, wide, channels)
    y, left = np.arange(high)[:, None] - 0.5 * (high - 1), -0.5 * (wide - 1)
    axes = (width, *matrix[:3]), (height, *matrix[3:])
    with np.errstate(all="ignore"):
        starts = [a * left + b * y + c + 0.5 * side for side, a, b, c in axes]
    near = (np.abs(starts[0]) < far) & (np.abs(starts[1]) < far)
    near &= bool(abs(matrix[0]) < far and abs(matrix[3]) < far)
    places = []
    for start, (_, a, _, _) in zip(starts, axes, strict=True):
        fixed = np.floor(np.where(near, start, 0) * one).astype(np.int64)
        step = round(a * one) if abs(a) < far else 0
        with np.errstate(all="ignore"):
            floating = start + np.arange(wide) * a
        places.append(np.where(near, (fixed + np.arange(wide) * step) >> 32, floating))
    columns, rows = places
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    made[:] = fill
    made[inside] = given[rows[inside].astype(np.int64), columns[inside].astype(np.int64)]


def warp_numpy(
    source: int,
    out: int,
    height: int,
    width: int,
    high: int,
    wide: int,
    channels: int,
    matrix: Float64,
    bilinear: bool,
    fill: Float32,
) -> None:
    """Write a picture (high, wide) whose pixels lie in the source where ``matrix`` (9,) says.

    ``matrix``: from (x, y, 1) to (x, y, 1), both from the middles of the pictures. ``fill``: (C,)
    outside of the source, none for zeros.
    """
    given, made = _at(source, height, width, channels), _at(out, high, wide, channels)
    y, x = np.meshgrid(
        np.arange(high) - 0.5 * (high - 1), np.arange(wide) - 0.5 * (wide - 1), indexing="ij"
    )
    at_x, at_y, below = (row[0] * x + row[1] * y + row[2] for row in matrix.reshape(3, 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        at_x, at_y = at_x / below + 0.5 * (width - 1), at_y / below + 0.5 * (height - 1)
    near = (at_x > -1) & (at_x < width) & (at_y > -1) & (at_y < height)
    at_x, at_y = np.where(near, at_x, -1), np.where(near, at_y, -1)
    paint = fill if fill.size else np.zeros(channels, np.float32)
    if not bilinear:
        columns, rows = (np.floor(at + 0.5).astype(np.int64) for at in (at_x, at_y))
        near &= (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        made[:] = _bytes(paint + np.float32(0.5))
        made[near] = given[rows[near], columns[near]]
        return
    column, row = np.floor(at_x).astype(np.int64), np.floor(at_y).astype(np.int64)
    right, low = (at_x - column).astype(np.float32), (at_y - row).astype(np.float32)
    padded = np.pad(given.astype(np.float32), ((1, 1), (1, 1), (0, 0)))
    ones = np.pad(np.ones((height, width), np.float32), 1)
    value, share = np.zeros(made.shape, np.float32), np.zeros(made.shape[:2], np.float32)
    for dy, weight_y in enumerate((1 - low, low)):
        for dx, weight_x in enumerate((1 - right, right)):
            weight = weight_y * weight_x
            value += weight[..., None] * padded[row + 1 + dy, column + 1 + dx]
            share += weight * ones[row + 1 + dy, column + 1 + dx]
    if fill.size:
        value = share[..., None] * (value - fill) + fill
    value[~near] = paint
    made[:] = _bytes(value + np.float32(0.5))


# -- numbers and sparse rows -----------------------------------------------------------------------


def cast_numbers_numpy(
    addresses: Int64,
    each: int,
    item: int,
    table: Int64,
    kind: int,
    size: int,
    affine: bool,
    a: Float64,
    b: Float64,
    out: int,
    rows: Int64,
    row_bytes: int,
    bad: Int64,
) -> None:
    """Write the numbers of stored rows at ``addresses`` to ``rows`` of memory at ``out``.

    A row is ``each`` elements of ``item`` bytes, and ``table`` says which of their numbers are
    served. They become numbers of ``kind`` and ``size``, each times ``a`` plus ``b`` where
    ``affine``; ``a`` and ``b`` are repeated along a row. A number that this dtype cannot hold is
    noted in ``bad``: its row in ``addresses`` and its offset there; the first such is kept.
    """
    dtype = np.dtype(f"{chr(kind)}{size}")
    stored = [bytes_at(at, each * item).reshape(each, item) for at in addresses.tolist()]
    elements = np.stack(stored) if stored else np.zeros((0, each, item), np.uint8)
    runs = table.reshape(-1).view(RUN)
    made = np.empty((addresses.size, each, int(runs["count"].sum())), dtype)
    wrong = np.zeros(made.shape, np.bool_)
    offsets: list[int] = []
    first = 0
    for offset, stored_size, letter, swapped, count, copied in runs.tolist():
        end = offset + stored_size * count
        own = np.dtype(f"{chr(letter)}{stored_size}")
        own = own.newbyteorder("S") if swapped else own
        values = np.ascontiguousarray(elements[:, :, offset:end]).view(own)
        into = slice(first, first := first + count)
        offsets.extend(range(offset, end, stored_size))
        if copied:
            made[:, :, into] = values
            continue
        places = (np.arange(each)[:, None] * made.shape[2] + np.arange(into.start, first)) % a.size
        made[:, :, into], wrong[:, :, into] = _cast(
            values, dtype, (a[places], b[places]) if affine else None
        )
    for row, one in zip(rows.tolist(), made, strict=True):
        bytes_at(out + row * row_bytes, one.nbytes)[:] = one.reshape(-1).view(np.uint8)
    if wrong.any() and bad[0] < 0:
        i, e, k = np.argwhere(wrong)[0].tolist()
        bad[:] = i, e * item + offsets[k]


def _cast(
    values: Array, dtype: np.dtype[np.generic], affine: tuple[Float64, Float64] | None
) -> tuple[Array, Array]:
    """``values`` as ``dtype``, and which of them it cannot hold."""
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype.kind != "f":
            made = values.astype(dtype)
            same = made == values
            if {values.dtype.kind, dtype.kind} == {"i", "u"}:  # compared as float64, say
                same &= (made < 0) == (values < 0)
            if values.dtype.kind == "f" and dtype.itemsize == 8:
                # the greatest whole number is no float: the next one would compare as equal
                same &= values < 2.0 ** (64 if dtype.kind == "u" else 63)
            return made, ~same
        work = np.dtype(np.float64 if dtype.itemsize > 4 else np.float32)
        narrow = values.astype(work) if affine is not None or dtype.itemsize > 2 else values
        wrong = ~np.isfinite(values.astype(work)) & np.isfinite(values)
        if affine is not None:
            narrow = narrow * affine[0].astype(work) + affine[1].astype(work)
        made = narrow.astype(dtype)
        if dtype.itemsize == 2:
            wrong |= ~np.isfinite(made) & np.isfinite(narrow)
        return made, wrong


def add_rows_f4_numpy(
    columns: Int64,
    values: Array,
    ends: Int64,
    first: UInt8,
    lookup: Int64,
    rows: Int64,
    width: int,
    bound: int,
    out: Array,
    bad: Int64,
) -> None:
    """Add values to rows of ``width`` in ``out``, each at its column of 0 .. ``bound - 1``.

    Run ``i`` ends at ``ends[i]`` of the values and goes to ``rows[i]``, which is zeroed before
    where ``first[i]`` is set. ``lookup``: where each column stands in a row, -1 for one that is
    not served; empty: where it is. ``bad[i]``: 0; ``k + 1`` where the column of value ``k`` is out
    of range; ``-k - 1`` where value ``k`` makes a sum infinite. What follows in the run is then
    left out.
    """
    begin = 0
    for i, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
        line = out[row * width : (row + 1) * width]
        if first[i]:
            line[:] = 0
        wrong = np.flatnonzero((columns[begin:end] < 0) | (columns[begin:end] >= bound))
        bad[i] = begin + int(wrong[0]) + 1 if wrong.size else 0
        stop = begin + int(wrong[0]) if wrong.size else end
        at, added = columns[begin:stop], values[begin:stop]
        number = np.arange(begin, stop)
        if lookup.size:
            at = lookup[at]
            at, added, number = at[at >= 0], added[at >= 0], number[at >= 0]
        before = line.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(line, at, added)
            if line.dtype.kind == "f" and not np.isfinite(line).all():
                line[:] = before
                bad[i] = _add_one_by_one(line, at, added, number) or bad[i]
        begin = end


def _add_one_by_one(line: Array, at: Int64, added: Array, number: Int64) -> int:
    column: int
    k: int
    for column, value, k in zip(at.tolist(), added, number.tolist(), strict=True):
        total = line[column] + value
        if not np.isfinite(total) and np.isfinite(value) and np.isfinite(line[column]):
            return -k - 1
        line[column] = total
    return 0
