"""Plain numpy twins of the kernels: the oracles of their tests, and what serves without numba."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from ..array_types import Array, Float32, Float64, Int64, UInt8, UInt64
from ..system.memory import read_into

#: Methods of resizing: see filter_weights.
BILINEAR, BICUBIC, AREA = 0, 1, 2

#: Elements that the twin of affine_rows takes at a time: they stay in the cache (16,384 was best).
_TILE: Final = 16_384


#: What divides the size and the address of rows that checked_rows can copy: it writes 64 bytes at
#: once, and XXH3 takes up to 240 bytes in another way.
CHECKED_ROW: Final = 256


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
                hi ^= _round(lo, keys[r]) & lmask
            else:
                lo ^= _round(hi, keys[r]) & rmask
        walked = (hi << shift) | lo
        x[todo] = walked
        todo = todo[walked >= np.uint64(count)]
    out[:] = x.astype(np.int64)


def _round(half: UInt64, key: np.uint64) -> UInt64:
    z: Any = half + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64 = z ^ (z >> np.uint64(31))
    return mixed


def bytes_at(address: int, length: int) -> UInt8:
    """The ``length`` bytes at ``address`` as an array that does not own them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


def gather_rows_numpy(source: int, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
    """Copy ``row_bytes`` bytes at ``source + offsets[i]`` to row ``rows[i]`` of ``out``."""
    for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
        ctypes.memmove(out + row * row_bytes, source + offset, row_bytes)


def pread_runs_numpy(fd: int, offsets: Int64, sizes: Int64, targets: Int64, done: Int64) -> None:
    """Read ``sizes[i]`` bytes at ``offsets[i]`` of a file to the address ``targets[i]``, in turn.

    ``done[0]``: how many were read whole, before the first that was not.
    """
    done[0] = 0
    for offset, size, target in zip(
        offsets.tolist(), sizes.tolist(), targets.tolist(), strict=True
    ):
        try:
            if read_into(fd, bytes_at(target, size).data, offset) != size:
                return
        except OSError:
            return
        done[0] += 1


#: It also writes past the caches when it is compiled.
stream_rows_numpy = gather_rows_numpy


def affine_rows_numpy(
    source: int,
    offsets: Int64,
    pixels: int,
    scale: Float32,
    shift: Float32,
    width: int,
    flips: UInt8,
    planar: bool,
    out: Array,
    rows: Int64,
) -> None:
    """uint8 (H, W, C) rows -> float32 ``x * scale[c] + shift[c]``, mirrored where ``flips``.

    ``out``: (B, H*W*C), C-contiguous, float32, or uint16 to get float16 bits; its rows are
    (H, W, C), or (C, H, W) when ``planar``.
    """
    channels, height = scale.size, pixels // width
    # numpy casts to float16 slowly: looked up, each of the 256 values of a channel is cast once
    values = np.arange(256, dtype=np.float32)[:, None] * scale + shift
    halves = values.T.astype(np.float16) if out.dtype == np.uint16 else None
    # a whole line's coefficients: the inner loops run over contiguous elements
    lines = max(1, _TILE // (width * channels))
    a, b = np.tile(scale, width).reshape(width, -1), np.tile(shift, width).reshape(width, -1)
    for offset, row, flip in zip(offsets.tolist(), rows.tolist(), flips.tolist(), strict=True):
        image = bytes_at(source + offset, pixels * channels).reshape(height, width, channels)
        if flip:
            image = image[:, ::-1]
        shape = (channels, height, width) if planar else image.shape
        if halves is not None:
            target = out[row].view(np.float16).reshape(shape)
            for c, plane in enumerate(target if planar else target.transpose(2, 0, 1)):
                plane[:] = halves[c].take(image[..., c], mode="clip")
            continue
        target = out[row].reshape(shape)
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
affine_rows_half_numpy = affine_rows_numpy


def checked_rows_numpy(
    source: int, offsets: Int64, row_bytes: int, out: int, rows: Int64, found: UInt64
) -> None:
    """stream_rows that also writes the XXH3-64 of each row to ``found``.

    The bytes written are those hashed. ``out`` and ``row_bytes`` are multiples of CHECKED_ROW.
    """
    for i, row in enumerate(rows.tolist()):
        gather_rows_numpy(source, offsets[i : i + 1], row_bytes, out, rows[i : i + 1])
        found[i] = xxh3_64_intdigest(bytes_at(out + row * row_bytes, row_bytes).data)


def mirror_rows_numpy(
    source: int,
    offsets: Int64,
    height: int,
    width: int,
    pixel: int,
    flips: UInt8,
    out: int,
    rows: Int64,
) -> None:
    """Copy (height, width) rows of ``pixel``-byte pixels, mirrored where ``flips``."""
    size = height * width * pixel
    for i in range(offsets.size):
        src = bytes_at(source + int(offsets[i]), size).reshape(height, width, pixel)
        dst = bytes_at(out + int(rows[i]) * size, size).reshape(height, width, pixel)
        dst[:] = src[:, ::-1] if flips[i] else src


def transpose_rows_numpy(
    source: int, offsets: Int64, pixels: int, channels: int, item: int, out: int, rows: Int64
) -> None:
    """(pixels, channels) rows of ``item``-byte elements -> (channels, pixels) rows of ``out``."""
    size = pixels * channels * item
    for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
        src = bytes_at(source + offset, size).reshape(pixels, channels, item)
        bytes_at(out + row * size, size).reshape(channels, pixels, item)[:] = src.transpose(1, 0, 2)


def copy_batches_numpy(
    control: Int64,
    queue: Int64,
    jobs: Int64,
    source: int,
    starts: Int64,
    first: int,
    stride: int,
    row_bytes: int,
    stream: bool,
    labels: int,
    label_bytes: int,
    most: int,
    looks: int,
) -> None:
    """Copy the batches of a queue, at most ``most``: their rows, and labels out of a table.

    ``control``: jobs claimed, published, and 1 to stop; job k is line ``queue[k % queue.size]`` of
    ``jobs``: rows, addresses of the record numbers (int64), of the rows and of the labels to be
    written, the address of a mark and what is written to it when the batch is whole. Record r lies
    at ``source + starts[r]``, without ``starts`` at ``source + first + r * stride``. ``stream``:
    rows are copied past the caches. Returns when it has looked ``looks`` times in vain for a job.
    Several threads may serve one queue; this twin
    is for one.
    """
    while most > 0 and control[0] < control[1] and not control[2]:
        job = jobs[queue[control[0] % queue.size]]
        control[0] += 1
        count, records, out, labels_out, mark, whole = job.tolist()
        numbers = bytes_at(records, 8 * count).view(np.int64)
        offsets = starts[numbers] if starts.size else first + numbers * stride
        rows = np.arange(count)
        gather_rows_numpy(source, offsets, row_bytes, out, rows)
        if label_bytes:
            gather_rows_numpy(labels, numbers * label_bytes, label_bytes, labels_out, rows)
        bytes_at(mark, 8).view(np.int64)[0] = whole
        most -= 1


def await_batch_numpy(mark: int, whole: int, looks: int) -> None:
    """Look ``looks`` times (about a ns each) whether the int64 at ``mark`` is ``whole``."""


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
        whole = _quantised(weights)
        shape = [1, 1, 1]
        shape[axis] = -1
        total: Any = 1 << 13
        for k in range(weights.shape[1]):
            total = total + values.take(first + k, axis=axis) * whole[:, k].reshape(shape)
        values = np.clip(total >> 14, 0, 255)
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
        total: Any = 0
        shape = [1, 1, 1]
        shape[axis] = -1
        for k in range(weights.shape[1]):
            weight = weights[:, k].astype(pixels.dtype).reshape(shape)
            total = total + values.take(first + k, axis=axis) * weight
        values = total
    out[:] = values[:, ::-1] if flip else values


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


def padded_rows_numpy(
    source: int,
    offsets: Int64,
    height: int,
    width: int,
    pixel: int,
    tops: Int64,
    lefts: Int64,
    around: int,
    flips: UInt8,
    out: int,
    rows: Int64,
) -> None:
    """Write the part of each picture's own size that begins at (top, left), which may lie outside:
    there are zeros (``around`` 0), the outermost pixels (1) or the mirror image (2). ``pixel``: its
    bytes."""
    size = height * width * pixel
    for i, offset in enumerate(offsets.tolist()):
        image = bytes_at(source + offset, size).reshape(height, width, pixel)
        made = bytes_at(out + int(rows[i]) * size, size).reshape(height, width, pixel)
        places = [np.arange(height) + tops[i], np.arange(width) + lefts[i]]
        known = [(at >= 0) & (at < side) for at, side in zip(places, image.shape[:2], strict=True)]
        for n, side in enumerate((height, width)):
            if around == 2:
                period = max(1, 2 * (side - 1))
                places[n] = np.minimum(abs(places[n]) % period, period - abs(places[n]) % period)
            places[n] = np.clip(places[n], 0, side - 1)
        part = image[places[0][:, None], places[1]]
        if around == 0:
            part[~(known[0][:, None] & known[1])] = 0
        made[:] = part[:, ::-1] if flips[i] else part
