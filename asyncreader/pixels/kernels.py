"""The hot loops: one call, and one release of the GIL, for a whole batch.

Each kernel has a plain numpy twin (``*_numpy``) here, which is the oracle of its test, and a
function in ``_compiled/`` that numba compiles. A kernel is loaded or compiled when its name is
first read (``kernels.gather_rows``); from then on the name is an ordinary global, so that a call
costs nothing more. Therefore write ``kernels.gather_rows(...)``: ``from .kernels import
gather_rows`` would load numba with the module. Without numba the twins do the work.

A new kernel is a function under ``@kernel`` in ``_compiled/``, its twin in ``_TWINS`` and a line
of annotation here.

Compiled code is kept on disk: in ``NUMBA_CACHE_DIR``, in ``_compiled/__pycache__`` or in
the user's cache folder, whichever can be written. Worker processes get what cannot be kept from a
folder that their parent makes. An image whose files cannot be written later is warmed by one line,
run while it is built, for machines with the processor of the one that builds it (or for all, where
NUMBA_CPU_NAME=generic is set at both times)::

    python -c "from asyncreader.pixels import kernels; kernels.compile_all()"

Addresses are integers: the caller guarantees that every row lies inside the memory it names
(sources check their offset tables against the file once, when they open it).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from ..array_types import Array, Float32, Float64, Int64, UInt8, UInt64

#: Methods of resizing: see filter_weights.
BILINEAR, BICUBIC, AREA = 0, 1, 2

_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


#: Elements that the twin of affine_rows takes at a time: they stay in the cache (16,384 was best).
_TILE: Final = 16_384


#: What divides the size and the address of rows that checked_rows can copy: it writes 64 bytes at
#: once, and XXH3 takes up to 240 bytes in another way.
CHECKED_ROW: Final = 256


# -- plain twins ---------------------------------------------------------------------------------


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
                hi ^= _round_numpy(lo, keys[r]) & lmask
            else:
                lo ^= _round_numpy(hi, keys[r]) & rmask
        walked = (hi << shift) | lo
        x[todo] = walked
        todo = todo[walked >= np.uint64(count)]
    out[:] = x.astype(np.int64)


def _round_numpy(half: UInt64, key: np.uint64) -> UInt64:
    z: Any = half + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
    mixed: UInt64 = z ^ (z >> np.uint64(31))
    return mixed


def bytes_at(address: int, length: int) -> UInt8:
    """The ``length`` bytes at ``address`` as an array that does not own them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


def gather_rows_numpy(source: int, offsets: Int64, row_bytes: int, out: int, rows: Int64) -> None:
    """Copy ``row_bytes`` bytes at ``source + offsets[i]`` to row ``rows[i]`` of ``out``."""
    for offset, row in zip(offsets.tolist(), rows.tolist(), strict=True):
        ctypes.memmove(out + row * row_bytes, source + offset, row_bytes)


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


# -- the kernels, loaded when they are first used --------------------------------------------------


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
    """The same for floats, without clipping: ``pixels`` (h, w * channels) to ``out`` (H, W, C)."""
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


feistel_rows: Callable[..., None]
gather_rows: Callable[..., None]
stream_rows: Callable[..., None]
checked_rows: Callable[..., None]
affine_rows: Callable[..., None]
affine_rows_half: Callable[..., None]
mirror_rows: Callable[..., None]
transpose_rows: Callable[..., None]
copy_batches: Callable[..., None]
await_batch: Callable[..., None]
resize_u8: Callable[..., None]
resize_f4: Callable[..., None]
jpeg_header: Callable[..., None]
cut_jpeg: Callable[..., None]
add_restarts: Callable[..., None]

_TWINS: Final[dict[str, Callable[..., None]]] = {
    "feistel_rows": feistel_rows_numpy,
    "gather_rows": gather_rows_numpy,
    "stream_rows": gather_rows_numpy,  # the same, past the caches
    "checked_rows": checked_rows_numpy,
    "affine_rows": affine_rows_numpy,
    "affine_rows_half": affine_rows_numpy,
    "mirror_rows": mirror_rows_numpy,
    "transpose_rows": transpose_rows_numpy,
    "copy_batches": copy_batches_numpy,
    "await_batch": await_batch_numpy,
    "resize_u8": resize_u8_numpy,
    "resize_f4": resize_f4_numpy,
    "jpeg_header": jpeg_header_numpy,
    "cut_jpeg": cut_jpeg_numpy,
    "add_restarts": add_restarts_numpy,
}

#: Those whose twins take so much longer that the user is told.
_SLOW: Final = frozenset({"affine_rows", "affine_rows_half"})

_NOT_INSTALLED: Final = "numba is not installed"


class _State:
    """What this process knows of numba and of compiled code."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: _compiled, once it has been tried; None where numba does not serve, and why.
        self.module: ModuleType | None = None
        self.reason: str | None = None
        self.tried = False
        #: A folder of the process that started this one, or of this one for those it starts.
        self.folder: str | None = None
        #: Whether the user has been told that twins do the work.
        self.told = False
        #: How many times loading a kernel was begun, and ended. Loading one may compile it.
        self.begun = self.ended = 0
        #: Called before a kernel is compiled, because no cache on disk has it.
        self.compiling: Callable[[], None] = lambda: None


_state: Final = _State()


def __getattr__(name: str) -> Any:
    if name not in _TWINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kernel = _loaded(name)
    if kernel is _TWINS[name]:
        _tell(name)
    return kernel


def _loaded(name: str) -> Callable[..., None]:
    with _state.lock:
        if name not in globals():
            _state.begun += 1
            try:
                globals()[name] = _load(name)
            finally:
                _state.ended += 1
        kernel: Callable[..., None] = globals()[name]
        return kernel


def _load(name: str) -> Callable[..., None]:
    module = _module()
    if module is not None:
        try:
            kernel: Callable[..., None] = module.load(name, _state.folder, _state.compiling)
            return kernel
        except Exception as exc:
            _state.reason = f"numba cannot compile {name} ({type(exc).__name__}: {exc})"
    return _TWINS[name]


def _module() -> ModuleType | None:
    """numba's side of the kernels, or None where numba does not serve."""
    with _state.lock:
        if not _state.tried:
            try:
                from numba import config

                if config.DISABLE_JIT:
                    _state.reason = "NUMBA_DISABLE_JIT is set"
                else:
                    from . import _compiled

                    _state.module = _compiled
            except ModuleNotFoundError as exc:
                absent = exc.name == "numba"
                _state.reason = _NOT_INSTALLED if absent else f"numba cannot be imported ({exc})"
            except Exception as exc:
                _state.reason = f"numba cannot be imported ({type(exc).__name__}: {exc})"
            _state.tried = True
        return _state.module


def _tell(name: str) -> None:
    """Say once that the work is done without numba, where that is a surprise or slow."""
    if _state.told or (_state.reason == _NOT_INSTALLED and name not in _SLOW):
        return
    _state.told = True
    warnings.warn(
        f"{_state.reason}: numpy does the work of the compiled kernels, with the same results; "
        "float output takes about three times as long",
        RuntimeWarning,
        stacklevel=3,
    )


@contextlib.contextmanager
def compiling_told(tell: Callable[[], None]) -> Iterator[None]:
    """Inside, ``tell`` is called before a kernel is compiled, by the thread that needs it."""
    before, _state.compiling = _state.compiling, tell
    try:
        yield
    finally:
        _state.compiling = before


def loads() -> tuple[int, int]:
    """How many times loading a kernel was begun in this process, and how many times it ended."""
    return _state.begun, _state.ended


def compiled(name: str | None = None) -> bool:
    """Whether compiled kernels are in use (imports numba), the kernel ``name`` among them."""
    if name is None:
        return _module() is not None
    return _loaded(name) is not _TWINS[name]


def reason() -> str | None:
    """Why numpy does the work of a compiled kernel; None where that is not known to happen."""
    return _state.reason


def compile_all() -> None:
    """Compile every kernel and keep the code on disk; RuntimeError where that cannot be done."""
    module = _module()
    if module is None:
        raise RuntimeError(f"nothing to compile with: {_state.reason}")
    kernels = {name: __getattr__(name) for name in module.KERNELS}
    lost = [name for name, kernel in kernels.items() if not _kept(module, kernel)]
    if lost:
        raise RuntimeError(
            f"not kept on disk: {', '.join(lost)}; set NUMBA_CACHE_DIR to a folder that can be "
            "written"
        )


def _kept(module: ModuleType, kernel: Callable[..., None]) -> bool:
    return kernel not in _TWINS.values() and bool(module.is_kept(kernel))


def share(names: Iterable[str] = ()) -> str | None:
    """A folder with what no cache on disk holds, for processes to be started; None for nothing.

    ``names``: kernels that they will use, compiled here once and not in each of them. They hand
    the folder to :func:`share_of`; it is removed when this process ends.
    """
    for name in names:
        __getattr__(name)
    with _state.lock:
        module, found = _state.module, globals()
        loaded = [found[name] for name in _TWINS if found.get(name, _TWINS[name]) != _TWINS[name]]
        lost = [kernel for kernel in loaded if module is not None and not module.is_kept(kernel)]
        if lost and module is not None:
            with contextlib.suppress(Exception):  # they compile it themselves, then
                _state.folder = _state.folder or _own_folder()
                for kernel in lost:
                    module.keep_in(_state.folder, kernel)
        return _state.folder


def _own_folder() -> str:
    """A new folder that is removed when this process ends, not a fork of it."""
    import atexit
    import shutil
    import tempfile

    folder, owner = tempfile.mkdtemp(prefix="asyncreader-kernels-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def share_of(folder: str | None) -> None:
    """In a worker process: load kernels from that folder too; the parent has told the user."""
    _state.folder, _state.told = folder, True
