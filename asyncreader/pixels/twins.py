"""Plain numpy twins of the kernels: the oracles of their tests, and what serves without numba."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from ..array_types import Array, Float32, Float64, Int64, UInt8, UInt64
from ..keyed_random import Draws, key_of, mix_rows, mixed, scale_rows, uniforms
from ..system.files import read_into
from . import fill_tables as tables
from .rectangles import choose_rect

#: Methods of resizing: see filter_weights.
BILINEAR, BICUBIC, AREA = 0, 1, 2
#: Elements that the twin of affine_row takes at a time: they stay in the cache (16,384 was best).
_TILE: Final = 16_384


def feistel_rows_numpy(
    positions: Int64, count: int, left: int, right: int, keys: UInt64, out: Int64
) -> None:
    """Alternating Feistel network on ``left + right`` bits, walked until below ``count``."""
    lmask, rmask = np.uint64((1 << left) - 1), np.uint64((1 << right) - 1)
    shift = np.uint64(right)
    x = positions.astype(np.uint64)
    todo = np.arange(x.size)
    while todo.size:
        hi, lo = x[todo] >> shift, x[todo] & rmask
        for r in range(keys.size):
            if r % 2 == 0:
                hi ^= mixed(lo + keys[r]) & lmask
            else:
                lo ^= mixed(hi + keys[r]) & rmask
        walked = (hi << shift) | lo
        x[todo] = walked
        todo = todo[walked >= np.uint64(count)]
    out[:] = x.astype(np.int64)


def uniform_rows_numpy(keys: UInt64, first: int, out: Float64) -> None:
    """``out[i, k]`` is the draw ``first + k`` of ``keys[i]``: see keyed_random.uniforms."""
    for k in range(out.shape[1]):
        out[:, k] = uniforms(keys, first + k)


def permuted_rows_numpy(
    positions: Int64, counts: Int64, keys: UInt64, rounds: int, out: Int64
) -> None:
    """The swap-or-not shuffle of each position under its own key: see sampling/feistel.py."""
    sizes, images = counts.astype(np.uint64), positions.copy()
    for number in range(rounds):
        key = mix_rows(number, keys.view(np.int64))
        # the first 32 bits times the count, over 2**32
        partners = ((key >> np.uint64(32)) * sizes >> np.uint64(32)).view(np.int64) - images
        partners += np.where(partners < 0, counts, 0)
        shared = np.maximum(images, partners)
        swap = mix_rows(0, shared + key.view(np.int64)) >> np.uint64(63) != 0
        images = np.where(swap, partners, images)
    out[:] = images


def alias_rows_numpy(numbers: Int64, key: int, cells: UInt64, bits: int, out: Int64) -> None:
    """Draws from an alias table: see sampling/weighted.py."""
    shift = np.uint64(64 - bits)
    draws = mix_rows(int(key), numbers)
    chosen = scale_rows(draws, cells.size)
    found = cells[chosen]
    coins = draws * np.uint64(cells.size) >> shift
    aliases = (found & ((np.uint64(1) << shift) - np.uint64(1))).view(np.int64)
    out[:] = np.where(coins < found >> shift, chosen, aliases)


def bytes_at(address: int, length: int) -> UInt8:
    """The ``length`` bytes at ``address`` as an array that does not own them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


def gather_rows_numpy(source: int, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
    """Copy ``row_bytes`` bytes at ``source + offsets[i]`` to row ``rows[i]`` of ``out``."""
    for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
        ctypes.memmove(out + row * row_bytes, source + offset, row_bytes)


def pread_rows_numpy(
    fd: int, offsets: Int64, row_bytes: int, out: int, rows: Int64, order: Int64, done: Int64
) -> None:
    """Read the row at ``offsets[i]`` of a file to row ``rows[i]`` of ``out``, in ``order``.

    What is adjacent both in the file and in ``out`` is one call when it is compiled. ``done[0]``:
    how many were read whole, before the first that was not.
    """
    done[0] = 0
    for i in order.tolist():
        target = bytes_at(out + int(rows[i]) * row_bytes, row_bytes)
        try:
            if read_into(fd, target.data, int(offsets[i])) != row_bytes:
                return
        except OSError:
            return
        done[0] += 1


def hash_rows_numpy(addresses: Int64, row_bytes: int, scratch: int, hashes: UInt64) -> None:
    """XXH3-64 of the ``row_bytes`` bytes at each address; ``scratch``: so many bytes of memory."""
    rows = (xxh3_64_intdigest(bytes_at(at, row_bytes).data) for at in addresses.tolist())
    hashes[:] = np.fromiter(rows, np.uint64, addresses.size)


def affine_row_numpy(
    source: int,
    pixels: int,
    scale: Float32,
    shift: Float32,
    width: int,
    mirrored: bool,
    planar: bool,
    out: Array,
) -> None:
    """``pixels`` pixels of uint8 at ``source`` -> float32 ``x * scale[c] + shift[c]``.

    ``out``: (H * W * C,), float32, or uint16 to get float16 bits: (H, W, C), or (C, H, W) when
    ``planar``.
    """
    channels = scale.size
    image = bytes_at(source, pixels * channels).reshape(-1, width, channels)
    if mirrored:
        image = image[:, ::-1]
    height = image.shape[0]
    shape = (channels, height, width) if planar else image.shape
    if out.dtype == np.uint16:
        # numpy casts to float16 slowly: looked up, each of the 256 values of a channel is cast once
        values = np.arange(256, dtype=np.float32)[:, None] * scale + shift
        halves, target = values.T.astype(np.float16), out.view(np.float16).reshape(shape)
        for c, plane in enumerate(target if planar else target.transpose(2, 0, 1)):
            plane[:] = halves[c].take(image[..., c], mode="clip")
        return
    # a whole line's coefficients: the inner loops run over contiguous elements
    lines = max(1, _TILE // (width * channels))
    a, b = np.tile(scale, width).reshape(width, -1), np.tile(shift, width).reshape(width, -1)
    target = out.reshape(shape)
    for top in range(0, height, lines):
        tile = image[top : top + lines]
        if not planar:
            done = target[top : top + lines]
            np.copyto(done, tile)
            done *= a
            done += b
            continue
        for c in range(channels):
            done = target[c, top : top + lines]
            np.copyto(done, tile[..., c])
            done *= scale[c]
            done += shift[c]


#: Its rows are uint16, the bits of float16.
affine_row_half_numpy = affine_row_numpy


def _found(files: Int64, record: int) -> tuple[int, int, Int64]:
    """The address of a record's row, its number in its file, and the line of that file."""
    file = files[int(np.searchsorted(files[:, tables.END], record, side="right"))]
    local = record - int(file[tables.START])
    if not file[tables.STARTS]:
        return int(file[tables.BASE] + local * file[tables.STRIDE]), local, file
    start = bytes_at(int(file[tables.STARTS]) + 8 * local, 8).view(np.int64)[0]
    return int(file[tables.BASE] + start), local, file


def _fill_batches(
    put: Callable[[UInt8, int, Int64, Float32, Float32], None],
    control: Int64,
    queue: Int64,
    jobs: Int64,
    files: Int64,
    sizes: Int64,
    scale: Float32,
    shift: Float32,
    most: int,
    looks: int,
) -> None:
    """Fill the batches of a queue, at most ``most``: see fill_tables.py for the tables. ``put``
    writes a row, whose pixels are where they belong already, to an address.

    Returns when it has looked ``looks`` times (about a ns each) in vain for a job. Several threads
    may serve one queue; these twins are for one.
    """
    while most > 0 and control[0] < control[1] and not control[2]:
        at = queue[control[0] % queue.size] * len(sizes)
        batch, bad = jobs[at : at + len(sizes)].tolist(), 0
        control[0] += 1
        for job, own in zip(batch, sizes, strict=True):
            held = files[own[tables.FIRST] : own[tables.LAST]]
            bad += sum(not _fill_row(put, i, job, held, own, scale, shift) for i in range(job[0]))
        if batch[0][tables.MARK]:
            mark = batch[0][tables.REFUSED if bad else tables.WHOLE]
            bytes_at(batch[0][tables.MARK], 8).view(np.int64)[0] = mark
        most -= 1


def _fill_row(
    put: Callable[[UInt8, int, Int64, Float32, Float32], None],
    i: int,
    job: list[int],
    files: Int64,
    sizes: Int64,
    scale: Float32,
    shift: Float32,
) -> bool:
    """Fill row ``i`` of a job; whether its checksum, if it is compared, is right."""

    def number(at: int, kind: type[np.generic] = np.int64) -> int:
        size = np.dtype(kind).itemsize
        return int(bytes_at(job[at] + size * i, size).view(kind)[0])

    good, record, local, file = True, 0, 0, None
    if job[tables.OFFSETS]:
        come = number(tables.OFFSETS)
    else:
        record = number(tables.RECORDS)
        come, local, file = _found(files, max(record, 0))
    row = number(tables.TARGETS) if job[tables.TARGETS] else i
    if record < 0:
        size = int(sizes[tables.OUT_BYTES])
        bytes_at(job[tables.OUT] + row * size, size)[:] = 0
        return True
    size, mode = int(sizes[tables.ROW_BYTES]), sizes[tables.CHECK]
    if file is not None and file[tables.READ] >= 0:
        stored = np.empty(size, np.uint8)
        try:
            if read_into(int(file[tables.READ]), stored.data, come) != size:
                return False
        except OSError:
            return False
    else:
        stored = bytes_at(come, size).copy()  # what is hashed is what is written
    if job[tables.WANTED]:
        if number(tables.WANTED, np.uint8):
            at = job[tables.FOUND] + 8 * i
            bytes_at(at, 8).view(np.uint64)[0] = xxh3_64_intdigest(stored.data)
    elif file is not None and mode != tables.NEVER and file[tables.SUMS]:
        seen = None if mode == tables.ALWAYS else bytes_at(int(sizes[tables.SEEN]) + record, 1)
        if seen is None or not seen[0]:
            recorded = bytes_at(int(file[tables.SUMS]) + 8 * local, 8).view(np.uint64)[0]
            good = xxh3_64_intdigest(stored.data) == recorded
            if good and seen is not None:
                seen[0] = 1
    if job[tables.KEYS]:
        keys = np.array([number(tables.KEYS, np.uint64)], np.uint64)
    else:
        sample = job[tables.POSITION] + i // max(1, int(sizes[tables.WINDOW]))
        keys = mix_rows(job[tables.KEY], np.array([sample]))
    go = job[tables.OUT] + row * int(sizes[tables.OUT_BYTES])
    put(_moved(stored, keys, sizes), go, sizes, scale, shift)
    _erase(go, int(keys[0]), sizes)
    labels = int(sizes[tables.LABEL_BYTES])
    if labels and file is not None:
        at = int(file[tables.LABEL_TABLE]) + local * labels
        ctypes.memmove(job[tables.LABELS] + row * labels, at, labels)
    return good


def _moved(stored: UInt8, keys: UInt64, sizes: Int64) -> UInt8:
    """The bytes of a picture, after the padded crop and the mirror that its key draws."""
    mirrored = sizes[tables.MIRRORED] and uniforms(keys, tables.MIRROR_DRAW)[0] < 0.5
    padding, around = int(sizes[tables.PADDING]), int(sizes[tables.AROUND])
    if not mirrored and not padding:
        return stored
    high, wide = int(sizes[tables.HEIGHT]), int(sizes[tables.WIDTH])
    image = stored.reshape(high, wide, -1)
    if padding:
        mode = ("constant", "edge", "reflect")[around]
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode)  # type: ignore[call-overload]
        top, left = (int(uniforms(keys, k)[0] * (2 * padding + 1)) for k in (0, 1))
        image = padded[top : top + high, left : left + wide]
    return np.ascontiguousarray(image[:, ::-1] if mirrored else image).reshape(-1)


def erased_part(
    draws: Draws, erasure: tables.Erasure, height: int, width: int
) -> tuple[int, int, int, int] | None:
    """The part of a picture that is painted over: top, left, height and width; None for none."""
    if not draws.uniform() < erasure.chance:
        return None
    for _ in range(tables.ERASURE_TRIES):
        area = height * width * draws.uniform(erasure.least, erasure.most)
        aspect = math.exp(draws.uniform(erasure.narrow, erasure.broad))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            return draws.below(height - rows + 1), draws.below(width - columns + 1), rows, columns
    return None


def _erase(go: int, key: int, sizes: Int64) -> None:
    """Paint over what is drawn for the row at ``go``."""
    erasure = tables.Erasure(*sizes[tables.CHANCE : tables.PAINT].view(np.float64).tolist())
    high, wide = int(sizes[tables.HEIGHT]), int(sizes[tables.WIDTH])
    part = None
    if erasure.chance:
        part = erased_part(Draws(key_of(key, tables.STEP_DRAWS)), erasure, high, wide)
    if part is not None:
        size, channels = int(sizes[tables.OUT_BYTES]), int(sizes[tables.CHANNELS])
        item, (top, left, rows, columns) = size // (high * wide * channels), part
        image = bytes_at(go, size)
        if sizes[tables.PLANAR]:
            image = image.reshape(channels, high, wide, item).transpose(1, 2, 0, 3)
        else:
            image = image.reshape(high, wide, channels, item)
        paint = bytes_at(int(sizes[tables.PAINT]), channels * item).reshape(channels, item)
        image[top : top + rows, left : left + columns] = paint


def _put_copy(stored: UInt8, out: int, sizes: Int64, scale: Float32, shift: Float32) -> None:
    ctypes.memmove(out, stored.ctypes.data, stored.size)


def _put_planes(stored: UInt8, out: int, sizes: Int64, scale: Float32, shift: Float32) -> None:
    channels, item = int(sizes[tables.CHANNELS]), int(sizes[tables.ITEM])
    planes = stored.reshape(-1, channels, item).transpose(1, 0, 2)
    bytes_at(out, stored.size).reshape(planes.shape)[:] = planes


def _put_affine(half: bool) -> Callable[[UInt8, int, Int64, Float32, Float32], None]:
    def put(stored: UInt8, out: int, sizes: Int64, scale: Float32, shift: Float32) -> None:
        kind = np.dtype(np.uint16 if half else np.float32)
        row = bytes_at(out, stored.size * kind.itemsize).view(kind)
        width, planar = int(sizes[tables.WIDTH]), bool(sizes[tables.PLANAR])
        pixels = stored.size // scale.size
        affine_row_numpy(stored.ctypes.data, pixels, scale, shift, width, False, planar, row)

    return put


# one for each kernel of _compiled/filling.py
copy_batches_numpy = partial(_fill_batches, _put_copy)
transpose_batches_numpy = partial(_fill_batches, _put_planes)
affine_batches_numpy = partial(_fill_batches, _put_affine(False))
affine_batches_half_numpy = partial(_fill_batches, _put_affine(True))


def await_batch_numpy(mark: int, filling: int, looks: int) -> None:
    """Look ``looks`` times (about a ns each) whether the int64 at ``mark`` is still ``filling``."""


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


def taps(scale: float, method: int, limit: int) -> int:
    """The most pixels, of ``limit`` that exist, that one of the result is mixed of, where it stands
    for ``scale``."""
    if method == AREA:
        return min(limit, math.ceil(scale) + 1)
    return min(limit, math.ceil((2 if method == BILINEAR else 4) * max(scale, 1.0)))


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


#: Numbers that are planned of a picture: the address of its first pixel, its height and width, 1
#: to mirror it, the address of its row. Of a JPEG also the address of its bytes, or -1 less where
#: they begin in the memory for what is cut out; how many they are, 0 where nothing is planned; and
#: the least height and width to be asked of the decoder, 0 where it decodes in full size.
PLAN: Final = 9


def plan_crops_numpy(
    source: int,
    offsets: Int64,
    shape: Int64,
    wanted: Int64,
    shares: Float64,
    draws: Float64,
    flips: UInt8,
    out: int,
    rows: Int64,
    plan: Int64,
    boxes: Float64,
) -> None:
    """Plan the crops of raw uint8 pictures of one ``shape`` (H, W, C), for resize_planned.

    They lie at ``source + offsets``, and are resized to rows of ``out``. ``wanted``: height and
    width of a row, and the crop by its number in CROPS; ``shares`` and ``draws`` (B, 40): see
    rectangles.choose_rect. ``plan`` (B, PLAN) and ``boxes`` (B, 4) are written.
    """
    (height, width, channels), (high, wide, crop) = shape.tolist(), wanted[:3].tolist()
    size, numbers = high * wide * channels, shares.tolist()
    for i, (offset, row) in enumerate(zip(offsets.tolist(), rows.tolist(), strict=True)):
        boxes[i] = choose_rect(height, width, high, wide, crop, numbers, draws[i])
        plan[i, :5] = source + offset, height, width, flips[i], out + row * size


def resize_planned_numpy(
    plan: Int64,
    boxes: Float64,
    first: int,
    end: int,
    channels: int,
    method: int,
    high: int,
    wide: int,
) -> None:
    """Resize the boxes of uint8 pictures, ``first`` to ``end`` of a plan, to (high, wide, channels)
    each; a box that has that size is copied. See geometry.resize_into.
    """
    size = high * wide * channels
    for i in range(first, end):
        source, tall, broad, flip, out = plan[i, :5].tolist()
        box = boxes[i].copy()
        if box[0] % 1 == 0 == box[1] % 1 and box[2] == high and box[3] == wide:
            picture = bytes_at(source, tall * broad * channels).reshape(tall, broad, channels)
            part = picture[int(box[0]) :, int(box[1]) :][:high, :wide]
            bytes_at(out, size).reshape(part.shape)[:] = part[:, ::-1] if flip else part
            continue
        begin = [max(0, math.floor(start)) for start in box[:2]]
        box[:2] -= begin
        inside = [
            max(1, min(side - first_, math.ceil(start + length)))
            for side, first_, start, length in zip(
                (tall, broad), begin, box[:2], box[2:], strict=True
            )
        ]
        resize_u8_numpy(
            source + (begin[0] * broad + begin[1]) * channels,
            broad * channels,
            channels,
            np.array((0, inside[0], 0, inside[1])),
            box,
            method,
            taps(box[2] / high, method, inside[0]),
            taps(box[3] / wide, method, inside[1]),
            bool(flip),
            out,
            high,
            wide,
        )


#: Numbers that jpeg_header says.
JPEG_FACTS: Final = 12


def jpeg_header_numpy(data: UInt8, facts: Int64) -> None:
    """Read the header of a plain JPEG: baseline, one scan, 1 or 3 channels of a sampling with a
    name, and no segment at which a decoder would stop or warn.

    ``facts``: where its scan begins, 0 for another file; height, width as stored; whether it has
    APP1 segments; rows and columns of segments between restart markers, 0 where it cannot be cut
    at them; height and width of a segment in pixels; how many pixels one of the chroma channels
    stands for, down and across; the restart interval; MCUs of the picture.

    This twin finds no file plain: without numba headers are read in Python.
    """
    facts[:] = 0


def cut_jpeg_numpy(data: UInt8, facts: Int64, wanted: Int64, out: UInt8, found: Int64) -> None:
    """Write a JPEG to ``out`` that has the segments of ``data`` around a part of the picture.

    ``facts``: see jpeg_header_numpy. ``wanted``: first row, first column, end row and end column of
    the part, and at how many eighths of its size the picture is decoded. ``found``: bytes written,
    and the part that they show; 0 bytes where it costs no less than the whole, where the scan has
    not exactly the markers that it should have, or where the last of the segments has other MCUs.

    This twin cuts nothing.
    """
    found[:] = 0


def plan_jpegs_numpy(
    addresses: Int64,
    sizes: Int64,
    wanted: Int64,
    shares: Float64,
    draws: Float64,
    flips: UInt8,
    out: int,
    row_bytes: int,
    rows: Int64,
    cuts: UInt8,
    plan: Int64,
    boxes: Float64,
) -> None:
    """Plan what is decoded of JPEGs, of ``sizes`` bytes at ``addresses``, and what is made of it.

    ``wanted``: height and width of a row, the crop by its number in CROPS, the most pixels of a
    picture, and 1 where only pictures of that very size are planned; ``shares`` and ``draws``
    (B, 40): see choose_rect. Rows of ``row_bytes`` bytes lie at ``out``. Where a picture has
    restart markers and a part of it costs less, the part is written to ``cuts``, of all ``sizes``
    and 64 bytes for each. ``plan`` (B, PLAN) and ``boxes`` (B, 4) are written, but for the address
    of the pixels. Plain JPEGs are planned, if nothing turns them.

    This twin plans nothing.
    """
    plan[:, 6] = 0


def add_restarts_numpy(
    address: int, size: int, scratch: int, out: int, room: int, result: Int64
) -> None:
    """Put restart markers into a JPEG of one baseline Huffman scan without any other change to its
    pixels, tables and segments: only the DC differences at the markers are coded anew.

    ``address`` and ``size``: the file. ``scratch``: ``size + 1024`` bytes. ``out``: ``room`` bytes,
    in which the new file is written. ``result``: where it begins and ends there; 0 and 0 where the
    file is of another kind, has markers, is too small for them or is damaged.

    This twin does nothing: converters refuses restarts, or says that there are none.
    """
    result[:] = 0
