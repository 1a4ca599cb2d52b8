"""The kernels of kernels.py as numba compiles them; importable only where numba is.

A kernel is a function under ``@_kernel`` with the types of its arguments. Importing this module
compiles nothing: :func:`load` does, one kernel at a time, and keeps the code on disk. memcpy is
LLVM's own (``cgutils.raw_memcpy``): unlike a ctypes pointer it can be kept.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, config, njit, types
from numba.core import caching, cgutils
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.extending import intrinsic

#: The kernels by name: the function, and its signature.
KERNELS: dict[str, tuple[Callable[..., None], Any]] = {}


def _kernel(*arguments: Any, name: str | None = None) -> Any:
    """Enter a function into the table, by its own name or another."""

    def decorate(function: Any) -> Any:
        KERNELS[name or function.__name__] = (function, types.void(*arguments))
        return function

    return decorate


# -- compiling and keeping -----------------------------------------------------------------------


class Caches:
    """What numba asks for kept code: several folders. What goes wrong with one stays in here.

    numba's own choice comes first (``NUMBA_CACHE_DIR``, ``__pycache__`` next to this file, the
    user's cache folder: the first that is writable), then the same folders where they can only be
    read, as in a container, then ``folder``, which a parent process shares with its workers.
    """

    def __init__(self, function: Any, folder: str | None) -> None:
        #: Whether the code lies in one of the folders.
        self.kept = False
        self._caches: list[Any] = []
        with contextlib.suppress(Exception):
            self._caches.append(caching.FunctionCache(function))
        for path in (*_readable_folders(), *([folder] if folder else ())):
            with contextlib.suppress(Exception):
                self._caches.append(_cache_in(path, function))

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled function from the first folder that has it whole, or None."""
        with contextlib.suppress(Exception):
            # All that loaded code needs of numba. cache.load_overload() would first import all that
            # compiling needs: half a second, and scipy.
            rtsys.initialize(target)
        for cache in self._caches:
            with contextlib.suppress(Exception):  # truncated, or of another version
                found = cache._load_overload(signature, target)
                if found is not None:
                    self.kept = True
                    return found
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a compiled function in the first folder that takes it, if any does."""
        for cache in self._caches:
            for before in (lambda: None, cache.flush):  # a damaged index is written anew
                with contextlib.suppress(Exception):  # read-only, full, over quota
                    before()
                    cache.save_overload(signature, compiled)
                    self.kept = True
                    return

    @property
    def cache_path(self) -> str:
        """The folder that is asked first, for numba's statistics."""
        return str(self._caches[0].cache_path) if self._caches else ""


def _readable_folders() -> Sequence[str]:
    folders = [os.path.join(os.path.dirname(__file__), "__pycache__")]
    if config.CACHE_DIR:
        inner = caching._CacheLocator.get_suitable_cache_subpath(__file__)
        folders.insert(0, os.path.join(config.CACHE_DIR, inner))
    return folders


def _cache_in(folder: str, function: Any) -> Any:
    """numba's cache of a function, in a folder that need not be writable."""

    class Locator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
        def __init__(self, function: Any, file: str) -> None:
            self._py_file = file
            self._lineno = function.__code__.co_firstlineno

        def get_cache_path(self) -> str:
            return folder

        @classmethod
        def from_function(cls, function: Any, file: str) -> Any:
            return cls(function, file)

    class Impl(caching.CompileResultCacheImpl):
        _locator_classes = (Locator,)

    class Cache(caching.FunctionCache):
        _impl_class = Impl

    return Cache(function)


def load(name: str, folder: str | None = None) -> Any:
    """Kernel ``name``, from a cache on disk or compiled and kept there (see :class:`Caches`)."""
    function, signature = KERNELS[name]
    dispatcher = njit(nogil=True)(function)
    dispatcher._cache = Caches(function, folder)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def is_kept(kernel: Any) -> bool:
    """Whether another process finds this kernel on disk."""
    return bool(kernel._cache.kept)


def keep_in(folder: str, name: str, kernel: Any) -> None:
    """Write a loaded kernel to ``folder``, which other processes are told of."""
    function, signature = KERNELS[name]
    _cache_in(folder, function).save_overload(signature, kernel.overloads[signature.args])
    kernel._cache.kept = True


# -- what the kernels are made of ----------------------------------------------------------------


@intrinsic
def _memcpy(typingctx: Any, out: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out_, source_, size_ = arguments
        pointer = cgutils.voidptr_t
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(out_, pointer),
            builder.inttoptr(source_, pointer),
            size_,
            1,
        )
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), generate


_i8 = types.int64
_offsets = types.int64[::1]


#: Numbers that feistel_rows takes through its rounds together.
_FEISTEL = 256


@njit(inline="always")
def _mixed(z: Any) -> Any:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_kernel(_offsets, _i8, _i8, _i8, types.uint64[::1], _offsets)
def feistel_rows(positions, count, left, right, keys, out):  # type: ignore[no-untyped-def]
    lmask = (np.uint64(1) << np.uint64(left)) - np.uint64(1)
    rmask = (np.uint64(1) << np.uint64(right)) - np.uint64(1)
    shift = np.uint64(right)
    limit = np.uint64(count)
    # Many at a time, so that LLVM makes vector code of the rounds: those that have to walk on
    # close ranks and go through them again.
    hi, lo = np.empty(_FEISTEL, np.uint64), np.empty(_FEISTEL, np.uint64)
    row = np.empty(_FEISTEL, np.int64)
    for first in range(0, positions.size, _FEISTEL):
        left_over = min(_FEISTEL, positions.size - first)
        for i in range(left_over):
            hi[i] = np.uint64(positions[first + i]) >> shift
            lo[i] = np.uint64(positions[first + i]) & rmask
            row[i] = first + i
        while left_over:
            for r in range(keys.size):
                key = keys[r]
                if r % 2 == 0:
                    for i in range(left_over):
                        hi[i] ^= _mixed(lo[i] + key) & lmask
                else:
                    for i in range(left_over):
                        lo[i] ^= _mixed(hi[i] + key) & rmask
            kept = 0
            for i in range(left_over):
                x = (hi[i] << shift) | lo[i]
                if x < limit:
                    out[row[i]] = np.int64(x)
                else:
                    hi[kept], lo[kept], row[kept] = hi[i], lo[i], row[i]
                    kept += 1
            left_over = kept


@_kernel(types.uintp, _offsets, _i8, types.uintp, _offsets)
def gather_rows(source, offsets, row_bytes, out, rows):  # type: ignore[no-untyped-def]
    for i in range(offsets.size):
        _memcpy(
            out + np.uintp(rows[i] * row_bytes),
            source + np.uintp(offsets[i]),
            np.uintp(row_bytes),
        )


@intrinsic
def _prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at ``address``, which need not be readable."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # to be read; kept in all caches; data
        constants = [ir.Constant(number, value) for value in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], cgutils.voidptr_t), *constants])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


@intrinsic
def _stream_128(typingctx: Any, out: Any, source: Any) -> Any:
    """Copy 128 bytes to ``out``, a multiple of 32, past the caches ("nontemporal" in LLVM)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), 4).as_pointer()
        target, origin = (builder.inttoptr(address, vector) for address in arguments)
        indices = [ir.Constant(ir.IntType(64), k) for k in range(4)]
        loaded = [builder.load(builder.gep(origin, [k])) for k in indices]
        mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        for k, value in zip(indices, loaded, strict=True):
            value.align = 1
            store = builder.store(value, builder.gep(target, [k]))
            store.align = 32
            store.set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@intrinsic
def _fence(typingctx: Any) -> Any:
    """All that was written before is seen before what is written after."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


#: Bytes ahead of the copy at which stream_rows asks for the source.
_AHEAD = np.uintp(2048)

#: Bytes of the next row that copy_batches asks for before it copies a row: the processor cannot
#: guess a random order. 256 to 1024 gained 8 % at rows of 3 kB, whole rows nothing.
_ROW_AHEAD = 512


@njit(inline="always")
def _stream_row(come: Any, go: Any, size: Any) -> None:
    """Copy ``size`` bytes past the caches, but for what lies before and after whole lines."""
    left = np.uintp(size)
    head = min((np.uintp(64) - (go & np.uintp(63))) & np.uintp(63), left)
    _memcpy(go, come, head)
    come, go, left = come + head, go + head, left - head
    for _ in range(left >> np.uintp(7)):
        _prefetch(come + _AHEAD)
        _prefetch(come + _AHEAD + np.uintp(64))
        _stream_128(go, come)
        come, go = come + np.uintp(128), go + np.uintp(128)
    _memcpy(go, come, left & np.uintp(127))


@_kernel(types.uintp, _offsets, _i8, types.uintp, _offsets)
def stream_rows(source, offsets, row_bytes, out, rows):  # type: ignore[no-untyped-def]
    for i in range(offsets.size):
        come = source + np.uintp(offsets[i])
        _stream_row(come, out + np.uintp(rows[i] * row_bytes), row_bytes)
    _fence()


#: XXH3's default secret and primes (xxHash's specification, doc/xxhash_spec.md, "XXH3").
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_U64 = np.uint64
_PRIMES_32 = (_U64(0x9E3779B1), _U64(0x85EBCA77), _U64(0xC2B2AE3D))
_PRIMES_64 = (
    *(_U64(0x9E3779B185EBCA87), _U64(0xC2B2AE3D27D4EB4F), _U64(0x165667B19E3779F9)),
    *(_U64(0x85EBCA77C2B2AE63), _U64(0x27D4EB2F165667C5)),
)
#: The secret by stripe (from byte 0), of the last stripe (121), and of the end (11).
_KEYS = np.frombuffer(_SECRET, "<u8").astype(np.uint64)
_LAST_KEYS = np.frombuffer(_SECRET[121:185], "<u8").astype(np.uint64)
_END_KEYS = np.frombuffer(_SECRET[11:75], "<u8").astype(np.uint64)
_LOW = _U64(0xFFFFFFFF)


@intrinsic
def _stripe(typingctx: Any, come: Any, go: Any, keys: Any, sums: Any) -> Any:
    """Copy 64 bytes past the caches to ``go``, a multiple of 64, and add them to eight sums."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), 8)
        source, target, secret, kept = (
            builder.inttoptr(address, vector.as_pointer()) for address in arguments
        )

        def all_of(number: int) -> Any:
            return ir.Constant(vector, [number] * 8)

        stored = builder.load(source)
        stored.align = 1
        store = builder.store(stored, target)
        store.align = 64
        mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", mark)
        keyed, before = builder.load(secret), builder.load(kept)
        keyed.align = before.align = 8
        keyed = builder.xor(stored, keyed)
        product = builder.mul(
            builder.and_(keyed, all_of(0xFFFFFFFF)), builder.lshr(keyed, all_of(32))
        )
        pairs = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])
        swapped = builder.shuffle_vector(stored, stored, pairs)
        after = builder.store(builder.add(builder.add(before, product), swapped), kept)
        after.align = 8
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp), generate


@njit(inline="always")
def _folded(a, b):  # type: ignore[no-untyped-def]
    """The upper half of a product of 128 bits, xor the lower."""
    low = (a & _LOW) * (b & _LOW)
    one, two = (a >> _U64(32)) * (b & _LOW), (a & _LOW) * (b >> _U64(32))
    cross = (low >> _U64(32)) + (one & _LOW) + two
    upper = (one >> _U64(32)) + (cross >> _U64(32)) + (a >> _U64(32)) * (b >> _U64(32))
    return upper ^ ((cross << _U64(32)) | (low & _LOW))


@_kernel(types.uintp, _offsets, _i8, types.uintp, _offsets, types.uint64[::1])
def checked_rows(source, offsets, row_bytes, out, rows, found):  # type: ignore[no-untyped-def]
    sums = np.empty(8, np.uint64)
    at = np.uintp(sums.ctypes.data)
    keys, last_keys = np.uintp(_KEYS.ctypes.data), np.uintp(_LAST_KEYS.ctypes.data)
    for i in range(offsets.size):
        come = source + np.uintp(offsets[i])
        go = out + np.uintp(rows[i] * row_bytes)
        sums[0], sums[1], sums[2] = _PRIMES_32[2], _PRIMES_64[0], _PRIMES_64[1]
        sums[3], sums[4], sums[5] = _PRIMES_64[2], _PRIMES_64[3], _PRIMES_32[1]
        sums[6], sums[7] = _PRIMES_64[4], _PRIMES_32[0]
        for stripe in range(row_bytes // 64 - 1):
            _prefetch(come + _AHEAD)
            _stripe(come, go, keys + np.uintp(8 * (stripe % 16)), at)
            if stripe % 16 == 15:
                for lane in range(8):
                    mixed = sums[lane] ^ (sums[lane] >> _U64(47)) ^ _KEYS[16 + lane]
                    sums[lane] = mixed * _PRIMES_32[0]
            come, go = come + np.uintp(64), go + np.uintp(64)
        _stripe(come, go, last_keys, at)
        result = _U64(row_bytes) * _PRIMES_64[0]
        for lane in range(0, 8, 2):
            result += _folded(sums[lane] ^ _END_KEYS[lane], sums[lane + 1] ^ _END_KEYS[lane + 1])
        result = (result ^ (result >> _U64(37))) * _U64(0x165667919E3779F9)
        found[i] = result ^ (result >> _U64(32))
    _fence()


@intrinsic
def _load_i8(typingctx: Any, address: Any) -> Any:
    """The int64 at ``address``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.uintp), generate


@intrinsic
def _store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64 so that whoever reads it also sees all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.uintp, types.int64), generate


@intrinsic
def _load_acquire(typingctx: Any, address: Any) -> Any:
    """The int64 at ``address``; what is read after it is at least as new."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.uintp), generate


@intrinsic
def _swap_if(typingctx: Any, address: Any, found: Any, wanted: Any) -> Any:
    """Write ``wanted`` to the int64 at ``address`` if it is ``found``; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        pair = builder.cmpxchg(pointer, arguments[1], arguments[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.uintp, types.int64, types.int64), generate


@_kernel(
    *(types.int64[::1], types.int64[::1], types.int64[:, ::1], types.uintp, _offsets, _i8, _i8),
    *(_i8, types.boolean, types.uintp, _i8, _i8, _i8),
)
def copy_batches(  # type: ignore[no-untyped-def]
    control,
    queue,
    jobs,
    source,
    starts,
    first,
    stride,
    row_bytes,
    stream,
    labels,
    label_bytes,
    most,
    looks,
):
    claimed_at = np.uintp(control.ctypes.data)
    published_at, stopped_at = claimed_at + np.uintp(8), claimed_at + np.uintp(16)
    done, looked = 0, 0
    while done < most and _load_acquire(stopped_at) == 0:
        claimed = _load_acquire(claimed_at)
        if claimed >= _load_acquire(published_at):
            looked += 1
            if looked > looks:
                return
            continue
        slot = queue[claimed % queue.size]
        if not _swap_if(claimed_at, claimed, claimed + 1):
            continue
        count, records, out, labels_out, filled, generation = jobs[slot]
        row = np.uintp(out)
        coming = np.uintp(0)
        for i in range(-1, count):
            offset = coming
            if i + 1 < count:
                record = _load_i8(np.uintp(records + 8 * i + 8))
                coming = np.uintp(starts[record] if starts.size else first + record * stride)
                for line in range(0, min(row_bytes, _ROW_AHEAD), 64):
                    _prefetch(source + coming + np.uintp(line))
            if i >= 0:
                if stream:
                    _stream_row(source + offset, row, row_bytes)
                else:
                    _memcpy(row, source + offset, np.uintp(row_bytes))
                row += np.uintp(row_bytes)
        row = np.uintp(labels_out)
        for i in range(count * (label_bytes > 0)):
            record = _load_i8(np.uintp(records + 8 * i))
            label = labels + np.uintp(record * label_bytes)
            if label_bytes == 8:  # one number: a call of memcpy takes longer
                _memcpy(row, label, np.uintp(8))
            else:
                _memcpy(row, label, np.uintp(label_bytes))
            row += np.uintp(label_bytes)
        if stream:
            _fence()
        _store_release(np.uintp(filled), generation)
        done += 1
        looked = 0


@_kernel(types.uintp, _i8, _i8)
def await_batch(filled, generation, looks):  # type: ignore[no-untyped-def]
    for _ in range(looks):
        if _load_acquire(filled) == generation:
            return


@intrinsic
def _u8_pointer(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.CPointer(types.uint8)(types.uintp), generate


@intrinsic
def _like(typingctx: Any, row: Any, value: Any) -> Any:
    """``value`` (float32) as an element of ``row``: itself, or its float16 bits for uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.return_type == types.float32:
            return arguments[1]
        half = builder.fptrunc(arguments[1], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return row.dtype(row, types.float32), generate


def _has_half() -> bool:
    """Whether the processor compiled for converts to float16 itself.

    Otherwise LLVM calls a function that is missing, and ends the process. The processor is not
    always this machine's: NUMBA_CPU_NAME=generic makes code for all of a kind.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    features = cpu_target.target_context.codegen().magic_tuple()[2]
    return "+f16c" in features.split(",")


#: Pixels taken apart at a time: their bytes and floats fit the first-level cache.
_TILE = 1024

_f4 = types.float32[::1]


def _affine(element: Any) -> tuple[Any, ...]:
    head = (types.uintp, _offsets, _i8, _f4, _f4, _i8)
    return (*head, types.uint8[::1], types.boolean, element[:, ::1], _offsets)


# LLVM turns loads and stores with a stride of 3 into vector shuffles, but only where it sees the 3:
# hence the branch for RGB. Lines are taken apart into planes of bytes first, which stay in cache.
@_kernel(*_affine(types.float32))
def affine_rows(  # type: ignore[no-untyped-def]
    source, offsets, pixels, scale, shift, width, flips, planar, out, rows
):
    channels = scale.size
    line = width * channels
    height = pixels // width
    # One line's coefficients, so that the inner loop runs over contiguous elements.
    a = np.empty(line, np.float32)
    b = np.empty(line, np.float32)
    for i in range(line):
        a[i] = scale[i % channels]
        b[i] = shift[i % channels]
    planes = np.empty((3, max(width, _TILE)), np.uint8)
    p0, p1, p2 = planes[0], planes[1], planes[2]
    s0, s1, s2 = scale[0], scale[min(1, channels - 1)], scale[min(2, channels - 1)]
    t0, t1, t2 = shift[0], shift[min(1, channels - 1)], shift[min(2, channels - 1)]
    for i in range(offsets.size):
        src = _u8_pointer(source + np.uintp(offsets[i]))
        dst = out[rows[i]]
        mirrored = flips[i] != 0
        if not mirrored and (not planar or channels == 1):
            for y in range(height):
                base = y * line
                row = dst[base : base + line]
                for k in range(line):
                    row[k] = _like(row, np.float32(src[base + k]) * a[k] + b[k])
        elif channels == 3:
            # whole tiles of pixels; mirroring needs a tile to be a line
            tile = width if mirrored else _TILE
            for first in range(0, pixels, tile):
                count = min(tile, pixels - first)
                base = 3 * first
                if mirrored:
                    base += 3 * (count - 1)
                    for x in range(count):
                        p0[x] = src[base - 3 * x]
                        p1[x] = src[base - 3 * x + 1]
                        p2[x] = src[base - 3 * x + 2]
                else:
                    for x in range(count):
                        p0[x] = src[base + 3 * x]
                        p1[x] = src[base + 3 * x + 1]
                        p2[x] = src[base + 3 * x + 2]
                if planar:
                    row = dst[first : first + count]
                    for x in range(count):
                        row[x] = _like(row, np.float32(p0[x]) * s0 + t0)
                    row = dst[pixels + first : pixels + first + count]
                    for x in range(count):
                        row[x] = _like(row, np.float32(p1[x]) * s1 + t1)
                    row = dst[2 * pixels + first : 2 * pixels + first + count]
                    for x in range(count):
                        row[x] = _like(row, np.float32(p2[x]) * s2 + t2)
                else:
                    row = dst[3 * first : 3 * (first + count)]
                    for x in range(count):
                        row[3 * x] = _like(row, np.float32(p0[x]) * s0 + t0)
                        row[3 * x + 1] = _like(row, np.float32(p1[x]) * s1 + t1)
                        row[3 * x + 2] = _like(row, np.float32(p2[x]) * s2 + t2)
        else:
            for y in range(height):
                for x in range(width):
                    come = y * line + ((width - 1 - x) if mirrored else x) * channels
                    for c in range(channels):
                        go = c * pixels + y * width + x if planar else y * line + x * channels + c
                        dst[go] = _like(dst, np.float32(src[come + c]) * scale[c] + shift[c])


if _has_half():  # otherwise the twin serves
    _kernel(*_affine(types.uint16), name="affine_rows_half")(affine_rows)


@_kernel(types.uintp, _offsets, _i8, _i8, _i8, types.uint8[::1], types.uintp, _offsets)
def mirror_rows(  # type: ignore[no-untyped-def]
    source, offsets, height, width, pixel, flips, out, rows
):
    line = width * pixel
    size = height * line
    for i in range(offsets.size):
        come = source + np.uintp(offsets[i])
        go = out + np.uintp(rows[i] * size)
        if flips[i] == 0:
            _memcpy(go, come, np.uintp(size))
            continue
        src, dst = _u8_pointer(come), _u8_pointer(go)
        for y in range(height):
            base = y * line
            if pixel == 3:
                for x in range(width):
                    dst[base + 3 * x] = src[base + 3 * (width - 1 - x)]
                    dst[base + 3 * x + 1] = src[base + 3 * (width - 1 - x) + 1]
                    dst[base + 3 * x + 2] = src[base + 3 * (width - 1 - x) + 2]
            else:
                for x in range(width):
                    for k in range(pixel):
                        dst[base + x * pixel + k] = src[base + (width - 1 - x) * pixel + k]


@_kernel(types.uintp, _offsets, _i8, _i8, _i8, types.uintp, _offsets)
def transpose_rows(  # type: ignore[no-untyped-def]
    source, offsets, pixels, channels, item, out, rows
):
    size = pixels * channels * item
    for i in range(offsets.size):
        src = _u8_pointer(source + np.uintp(offsets[i]))
        dst = _u8_pointer(out + np.uintp(rows[i] * size))
        if channels == 3 and item == 1:
            for p in range(pixels):
                dst[p] = src[3 * p]
                dst[pixels + p] = src[3 * p + 1]
                dst[2 * pixels + p] = src[3 * p + 2]
            continue
        for c in range(channels):
            for p in range(pixels):
                for k in range(item):
                    dst[(c * pixels + p) * item + k] = src[(p * channels + c) * item + k]


# -- resizing ------------------------------------------------------------------------------------
# Vertical first, a line of the result at a time, then along the line. Numbers are int16: pixels as
# Q7, weights as Q14, sums as Q6, by rounding multiplications (pmulhrsw). LLVM
# finds neither the 16-bit lanes nor the splat weights by itself, hence vectors by hand.

#: Pixels' bytes that _filter_down takes together.
_LANES = 32

#: Numbers of the methods: see resize_u8_numpy.
_BILINEAR, _BICUBIC, _AREA = 0, 1, 2


def _vector(kind: Any, count: int, value: int | None = None) -> Any:
    """A type of ``count`` lanes, or a constant of it."""
    vector = ir.VectorType(kind, count)
    return vector if value is None else ir.Constant(vector, [value] * count)


def _load_any(builder: Any, address: Any, kind: Any) -> Any:
    """A load that need not be aligned."""
    found = builder.load(builder.inttoptr(address, kind.as_pointer()))
    found.align = 1
    return found


def _store_any(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    undefined = ir.Constant(_vector(value.type, lanes), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, undefined, _vector(ir.IntType(32), lanes, 0))


def _add_product(builder: Any, total: Any, values: Any, weights: Any, lanes: int) -> None:
    """Add values times weights (lanes of int16), >> 15 and rounded, to the lanes at total."""
    known = (n for n, feature, _ in _PMULHRSW if feature in _FEATURES and n <= lanes)
    together = next(known, 0)
    if together == 0:
        product = _rounded_product(builder, values, weights, lanes)
    else:
        parts = [
            _pmulhrsw(builder, *(_part(builder, v, k, together) for v in (values, weights)))
            for k in range(0, lanes, together)
        ]
        while len(parts) > 1:
            count = parts[0].type.count * 2
            order = ir.Constant(_vector(ir.IntType(32), count), list(range(count)))
            parts = [
                builder.shuffle_vector(a, b, order)
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        product = parts[0]
    builder.store(builder.add(builder.load(total), product), total)


#: Lanes of int16, the feature of a processor that multiplies them so, and LLVM's name for it.
_PMULHRSW = (
    (16, "+avx2", "llvm.x86.avx2.pmul.hr.sw"),
    (8, "+ssse3", "llvm.x86.ssse3.pmul.hr.sw.128"),
)
#: Of the processor that code is made for.
_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def _pmulhrsw(builder: Any, values: Any, weights: Any) -> Any:
    kind = values.type
    name = next(name for lanes, _, name in _PMULHRSW if lanes == kind.count)
    function = ir.FunctionType(kind, [kind, kind])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function, name), [values, weights]
    )


def _part(builder: Any, vector: Any, first: int, count: int) -> Any:
    order = ir.Constant(_vector(ir.IntType(32), count), list(range(first, first + count)))
    return builder.shuffle_vector(vector, vector, order)


def _rounded_product(builder: Any, values: Any, weights: Any, lanes: int) -> Any:
    kind = _vector(ir.IntType(32), lanes)
    product = builder.mul(builder.sext(values, kind), builder.sext(weights, kind))
    product = builder.ashr(product, ir.Constant(kind, [14] * lanes))
    product = builder.ashr(
        builder.add(product, ir.Constant(kind, [1] * lanes)), ir.Constant(kind, [1] * lanes)
    )
    return builder.trunc(product, _vector(ir.IntType(16), lanes))


def _clipped(builder: Any, value: Any, lanes: int, most: int) -> Any:
    for sign, limit in ((">", most), ("<", 0)):
        bound = _vector(ir.IntType(16), lanes, limit)
        value = builder.select(builder.icmp_signed(sign, value, bound), bound, value)
    return value


@intrinsic
def _filter_down(
    typingctx: Any, source: Any, stride: Any, weights: Any, taps: Any, out: Any, count: Any
) -> Any:
    """``out[j] = sum of weights[k] * source[k * stride + j]`` for ``count`` bytes, >= _LANES."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_, stride_, weights_, taps_, out_, count_ = arguments
        long, short = ir.IntType(64), ir.IntType(16)
        total = cgutils.alloca_once(builder, _vector(short, _LANES))
        last = builder.sub(count_, ir.Constant(long, _LANES))
        step = ir.Constant(long, _LANES)
        with cgutils.for_range_slice(builder, ir.Constant(long, 0), count_, step) as (begin, _):
            # the last vector begins earlier, so that it ends with the line
            over = builder.icmp_signed(">", begin, last)
            begin = builder.select(over, last, begin)
            builder.store(_vector(short, _LANES, 0), total)
            with cgutils.for_range(builder, taps_) as loop:
                line = builder.add(source_, builder.mul(loop.index, stride_))
                bytes_ = _load_any(
                    builder, builder.add(line, begin), _vector(ir.IntType(8), _LANES)
                )
                values = builder.zext(bytes_, _vector(short, _LANES))
                values = builder.shl(values, _vector(short, _LANES, 7))
                at = builder.add(weights_, builder.shl(loop.index, ir.Constant(long, 1)))
                weight = _splat(builder, _load_any(builder, at, short), _LANES)
                _add_product(builder, total, values, weight, _LANES)
            value = _clipped(builder, builder.load(total), _LANES, 255 << 6)
            value = builder.shl(value, _vector(short, _LANES, 1))
            target = builder.add(out_, builder.shl(begin, ir.Constant(long, 1)))
            _store_any(builder, value, target)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


def _filter_across(channels: int) -> Any:
    """An intrinsic: one pixel of the result, as 4 bytes, from the line and 8 weights at a time."""
    pixels = 8 // channels  # that fit in a vector

    @intrinsic
    def across(typingctx: Any, line: Any, weights: Any, vectors: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            line_, weights_, vectors_ = arguments
            long, short, lanes = ir.IntType(64), ir.IntType(16), _vector(ir.IntType(16), 8)
            total = cgutils.alloca_once(builder, lanes)
            builder.store(_vector(short, 8, 0), total)
            with cgutils.for_range(builder, vectors_) as loop:
                step = ir.Constant(long, 2 * pixels * channels)
                at = builder.add(line_, builder.mul(loop.index, step))
                values = _load_any(builder, at, lanes)
                at = builder.add(weights_, builder.shl(loop.index, ir.Constant(long, 4)))
                _add_product(builder, total, values, _load_any(builder, at, lanes), 8)
            value, left = builder.load(total), pixels
            while left > 1:  # the second half of the pixels onto the first
                left //= 2
                order = [min(k + left * channels, 7) for k in range(8)]
                lower = ir.Constant(_vector(ir.IntType(32), 8), order)
                value = builder.add(value, builder.shuffle_vector(value, value, lower))
            value = builder.add(value, _vector(short, 8, 32))
            value = builder.ashr(value, _vector(short, 8, 6))
            value = builder.trunc(_clipped(builder, value, 8, 255), _vector(ir.IntType(8), 8))
            return builder.trunc(builder.bitcast(value, long), ir.IntType(32))

        return types.uint32(*[types.int64] * 3), generate

    return across


_across_1, _across_2, _across_3, _across_4 = (_filter_across(channels) for channels in (1, 2, 3, 4))


@intrinsic
def _store_u4(typingctx: Any, out: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store_any(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32), generate


@njit(inline="always")
def _floor(value: Any) -> Any:
    whole = int(value)
    return whole - 1 if value < whole else whole


@njit
def _filter_weights(
    start: Any, length: Any, low: Any, high: Any, method: Any, first: Any, weights: Any
) -> None:
    size, taps = weights.shape
    scale = length / size
    wide = scale if method == _AREA or scale > 1.0 else 1.0
    reach = wide * (0.5 if method == _AREA else 1.0 if method == _BILINEAR else 2.0)
    for i in range(size):
        centre = start + (i + 0.5) * scale
        if method == _AREA:
            begin, end = _floor(centre - reach), -_floor(-centre - reach)
        else:
            begin, end = _floor(centre - reach + 0.5), _floor(centre + reach + 0.5)
        begin = min(max(begin, low), high - 1)
        end = max(min(end, high), begin + 1)
        first[i] = min(begin, high - taps)
        total = 0.0
        for k in range(taps):
            j = first[i] + k
            weight = 0.0
            if begin <= j < end:
                if method == _AREA:
                    weight = min(j + 1.0, centre + reach) - max(j + 0.0, centre - reach)
                    weight = max(weight, 0.0)
                else:
                    x = (j + 0.5 - centre) / wide
                    x = -x if x < 0.0 else x
                    if method == _BILINEAR:
                        weight = 1.0 - x if x < 1.0 else 0.0
                    elif x < 1.0:
                        weight = (1.5 * x - 2.5) * x * x + 1.0
                    elif x < 2.0:
                        weight = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
            weights[i, k] = weight
            total += weight
        if total == 0.0:
            weights[i, begin - first[i]] = total = 1.0
        for k in range(taps):
            weights[i, k] /= total


@njit
def _quantised(weights: Any, out: Any) -> None:
    for i in range(weights.shape[0]):
        rest, most = 16384, 0
        for k in range(weights.shape[1]):
            out[i, k] = _floor(weights[i, k] * 16384.0 + 0.5)
            rest -= out[i, k]
            if weights[i, k] > weights[i, most]:
                most = k
        out[i, most] += rest


# numba frees an array after the last line that names it, also where its address is still in use:
# hence arrays, not addresses, are handed to these two.


@njit
def _line_down(source: Any, stride: Any, weights: Any, line: Any, count: Any) -> None:
    """``count`` bytes of a line of the result, Q7, from lines of the picture."""
    taps = weights.size
    if count >= _LANES:
        _filter_down(source, stride, weights.ctypes.data, taps, line.ctypes.data, count)
        return
    pixels = _u8_pointer(np.uintp(source))
    for j in range(count):
        total: Any = 0
        for k in range(taps):
            value = (np.int64(pixels[k * stride + j]) << 7) * np.int64(weights[k])
            total += ((value >> 14) + 1) >> 1
        line[j] = min(max(total, 0), 255 << 6) << 1


@njit
def _line_across(channels: Any, come: Any, line: Any, weights: Any, out: Any) -> None:
    """A line of the result. A pixel is stored as 4 bytes: what is too much is of the next."""
    lines, at, vectors = line.ctypes.data, weights.ctypes.data, weights.shape[1] // 8
    go = out.ctypes.data
    if channels == 3:
        for i in range(come.size):
            _store_u4(go + 3 * i, _across_3(lines + come[i], at + 16 * vectors * i, vectors))
    elif channels == 4:
        for i in range(come.size):
            _store_u4(go + 4 * i, _across_4(lines + come[i], at + 16 * vectors * i, vectors))
    elif channels == 1:
        for i in range(come.size):
            _store_u4(go + i, _across_1(lines + come[i], at + 16 * vectors * i, vectors))
    else:
        for i in range(come.size):
            _store_u4(go + 2 * i, _across_2(lines + come[i], at + 16 * vectors * i, vectors))


@_kernel(
    *(types.int64, _i8, _i8, _offsets, types.float64[::1], _i8, _i8, _i8, types.boolean),
    *(types.int64, _i8, _i8),
)
def resize_u8(  # type: ignore[no-untyped-def]
    source, stride, channels, inside, box, method, taps_y, taps_x, flip, out, high, wide
):
    first_y, first_x = np.empty(high, np.int64), np.empty(wide, np.int64)
    exact_y, exact_x = np.empty((high, taps_y)), np.empty((wide, taps_x))
    _filter_weights(box[0], box[2], inside[0], inside[1], method, first_y, exact_y)
    _filter_weights(box[1], box[3], inside[2], inside[3], method, first_x, exact_x)
    down, across = np.empty((high, taps_y), np.int16), np.empty((wide, taps_x), np.int16)
    _quantised(exact_y, down)
    _quantised(exact_x, across)
    left = first_x[0]
    count = (first_x[wide - 1] + taps_x - left) * channels
    line, target = np.zeros(count + _LANES, np.int16), _u8_pointer(np.uintp(out))
    together = 8 // channels  # pixels of a vector
    vectors = (taps_x + together - 1) // together
    weights, come = np.zeros((wide, 8 * vectors), np.int16), np.empty(wide, np.int64)
    for i in range(wide):
        x = wide - 1 - i if flip else i
        come[i] = 2 * (first_x[x] - left) * channels
        for k in range(taps_x):
            begin = 8 * (k // together) + k % together * channels
            for c in range(channels):
                weights[i, begin + c] = across[x, k]
    size = wide * channels
    if method != _BICUBIC:
        row = np.empty(size + 4, np.uint8)
        for y in range(high):
            at = source + first_y[y] * stride + left * channels
            _line_down(at, stride, down[y], line, count)
            _line_across(channels, come, line, weights, row)
            for j in range(size):
                target[y * size + j] = row[j]
        return
    # What overshoots is clipped between the two passes: as Pillow does it, across comes first.
    top, whole = first_y[0], np.full(1, 1 << 14, np.int16)
    rows = np.empty((first_y[high - 1] + taps_y - top) * size + 4, np.uint8)
    for y in range(first_y[high - 1] + taps_y - top):
        at = source + (top + y) * stride + left * channels
        _line_down(at, stride, whole, line, count)
        _line_across(channels, come, line, weights, rows[y * size :])
    line = np.empty(size + _LANES, np.int16)
    for y in range(high):
        _line_down(rows[(first_y[y] - top) * size :].ctypes.data, size, down[y], line, size)
        for j in range(size):
            target[y * size + j] = (line[j] + 64) >> 7
    rows[0] = 0  # in use until here


@_kernel(
    *(types.Array(types.float32, 2, "C", readonly=True), _i8, _offsets, types.float64[::1]),
    *(_i8, _i8, _i8, types.boolean),
    types.float32[:, :, ::1],
)
def resize_f4(  # type: ignore[no-untyped-def]
    pixels, channels, inside, box, method, taps_y, taps_x, flip, out
):
    high, wide = out.shape[0], out.shape[1]
    first_y, first_x = np.empty(high, np.int64), np.empty(wide, np.int64)
    exact_y, exact_x = np.empty((high, taps_y)), np.empty((wide, taps_x))
    _filter_weights(box[0], box[2], inside[0], inside[1], method, first_y, exact_y)
    _filter_weights(box[1], box[3], inside[2], inside[3], method, first_x, exact_x)
    left = first_x[0] * channels
    line = np.empty((first_x[wide - 1] + taps_x) * channels - left, np.float32)
    for y in range(high):
        for j in range(line.size):
            line[j] = 0
        for k in range(taps_y):
            weight = np.float32(exact_y[y, k])
            row = pixels[first_y[y] + k]
            for j in range(line.size):
                line[j] += weight * row[left + j]
        for i in range(wide):
            x = wide - 1 - i if flip else i
            come = first_x[x] * channels - left
            for c in range(channels):
                total = np.float32(0)
                for k in range(taps_x):
                    total += np.float32(exact_x[x, k]) * line[come + k * channels + c]
                out[y, i, c] = total


@intrinsic
def _load_u8(typingctx: Any, address: Any) -> Any:
    """The 8 bytes at ``address``, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load_any(builder, arguments[0], ir.IntType(64))

    return types.uint64(types.int64), generate


_bytes = types.Array(types.uint8, 1, "C", readonly=True)


@_kernel(_bytes, _i8, _bytes, _offsets, types.uint8[::1], _offsets)
def cut_jpeg(data, scan, head, part, out, written):  # type: ignore[no-untyped-def]
    written[0] = 0
    columns, total = part[1], part[0] * part[1]
    if total > data.size:
        return
    begins = np.empty(total + 1, np.int64)
    begins[0] = scan
    count, at, end = 1, scan, data.size - 1
    address = np.int64(data.ctypes.data)
    ones, highs = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    while at < end and count <= total:
        if at + 8 <= data.size:
            inverse = ~_load_u8(address + at)
            if not (inverse - ones) & ~inverse & highs:  # none of the 8 bytes is 0xFF
                at += 8
                continue
        if data[at] != 0xFF:
            at += 1
            continue
        marker = data[at + 1]
        at += 2
        if marker == 0xD9 or marker == 0xD0 + ((count - 1) & 7):
            begins[count] = at
            count += 1
            if marker == 0xD9:
                break
        elif marker != 0:
            return
    if count != total + 1 or data[begins[total] - 1] != 0xD9:
        return
    size, number = head.size, 0
    _memcpy(np.uintp(out.ctypes.data), np.uintp(head.ctypes.data), np.uintp(size))
    for row in range(part[2], part[3]):
        first, last = row * columns + part[4], row * columns + part[5]
        length = begins[last] - begins[first]
        come, go = np.uintp(address + begins[first]), np.uintp(out.ctypes.data + size)
        _memcpy(go, come, np.uintp(length))
        for k in range(first + 1, last + 1):
            out[size + begins[k] - begins[first] - 1] = 0xD0 + (number & 7)
            number += 1
        size += length
    # an empty comment, behind which the decoder looks whether bytes were left over
    out[size - 1] = 0xFE
    out[size], out[size + 1], out[size + 2], out[size + 3] = 0, 2, 0xFF, 0xD9
    written[0] = size + 4


# -- restart markers -----------------------------------------------------------------------------

#: Bits of a Huffman code that the tables are indexed by; longer codes are searched for.
_LOOKUP = 11
_ENTRIES = 1 << _LOOKUP
#: Bytes behind a scan that may be read, as zeros: one block is at most 250 bytes.
_BEHIND = 512
#: Pixels between two restart markers where they divide the row, and the least and most elsewhere.
_APART, _CLOSEST, _FARTHEST = 64, 48, 160
#: Bytes that a marker and the DC values behind it add, and which part of a scan they may be.
_MARKER, _SHARE = 4, 45


@intrinsic
def _load_bits(typingctx: Any, address: Any) -> Any:
    """64 bits from ``address`` on, the first one the highest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(_load_any(builder, arguments[0], ir.IntType(64)))

    return types.uint64(types.int64), generate


@intrinsic
def _store_bits(typingctx: Any, address: Any, value: Any) -> Any:
    """The 32 low bits of ``value``, the highest first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low = builder.trunc(arguments[1], ir.IntType(32))
        _store_any(builder, builder.bswap(low), arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@intrinsic
def _store_u8(typingctx: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store_any(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@njit(inline="always")
def _peek(bits: Any, at: Any) -> Any:
    """57 or more bits of ``bits`` (an address) from bit ``at`` on, the first one the highest."""
    return _load_bits(bits + (at >> 3)) << np.uint64(at & 7)


@njit
def _put(out: Any, held: Any, count: Any, value: Any, length: Any) -> Any:
    """Append the ``length`` (at most 32) low bits of ``value`` to the ``count`` bits in ``held``.

    32 bits go to address ``out`` as soon as there are so many, with a 0 after each 0xFF (T.81,
    F.1.2.3). Returns (out, held, count).
    """
    held = (held << np.uint64(length)) | value
    count += length
    if count >= 32:
        count -= 32
        word = (held >> np.uint64(count)) & np.uint64(0xFFFFFFFF)
        other = word ^ np.uint64(0xFFFFFFFF)
        if (other - np.uint64(0x01010101)) & word & np.uint64(0x80808080):
            for k in range(4):
                byte = (word >> np.uint64(24 - 8 * k)) & np.uint64(0xFF)
                _store_u8(out, byte)
                _store_u8(out + 1, np.uint64(0))
                out += 2 if byte == np.uint64(0xFF) else 1
        else:
            _store_bits(out, word)
            out += 4
    return out, held, count


@njit
def _copy_bits(bits: Any, start: Any, end: Any, out: Any, held: Any, count: Any) -> Any:
    """Append bits ``start`` to ``end`` of ``bits``; returns as _put does."""
    while end - start >= 32:
        word = _peek(bits, start) >> np.uint64(32)
        out, held, count = _put(out, held, count, word, 32)
        start += 32
    if end > start:
        word = _peek(bits, start) >> np.uint64(64 - (end - start))
        out, held, count = _put(out, held, count, word, end - start)
    return out, held, count


@njit
def _end_segment(out: Any, held: Any, count: Any) -> Any:
    """Write the bits in ``held``, filled up with ones; returns where the next byte goes."""
    filled = -count & 7
    held = (held << np.uint64(filled)) | ((np.uint64(1) << np.uint64(filled)) - np.uint64(1))
    count += filled
    while count:
        count -= 8
        byte = (held >> np.uint64(count)) & np.uint64(0xFF)
        _store_u8(out, byte)
        _store_u8(out + 1, np.uint64(0))
        out += 2 if byte == np.uint64(0xFF) else 1
    return out


@njit
def _huffman(data: Any, at: Any, single: Any, long: Any, codes: Any) -> Any:
    """Make the tables of the Huffman table at ``data[at]`` (T.81, C.2); False for an invalid one.

    ``single``: by the next bits: length of the code << 8 | its symbol, 0 for a longer one or none;
    ``long``: for each length: first code, number of codes, index of its first symbol in the file;
    ``codes``: for each symbol up to 15: length << 32 | code, 0 for none; then, as number 16, the
    same of the last code plus one.
    """
    single[:] = 0
    codes[:] = 0
    code, symbol = 0, at + 16
    for length in range(1, 17):
        number = np.int64(data[at + length - 1])
        long[length, 0], long[length, 1], long[length, 2] = code, number, symbol
        if number and code + number >= 1 << length:  # no code may be all ones
            return False
        for _ in range(number):
            value = np.int64(data[symbol])
            if length <= _LOOKUP:
                shift = _LOOKUP - length
                single[code << shift : (code + 1) << shift] = length << 8 | value
            if value < 16 and codes[value] == 0:
                codes[value] = length << 32 | code
            code += 1
            symbol += 1
        if number:
            codes[16] = length << 32 | code
        code <<= 1
    return True


@njit
def _pairs(single: Any, many: Any) -> None:
    """``many``: what ``single`` says of AC coefficients, as many as the bits hold: their bits
    (5 bits), 32 for the end of the block, how many they are, zeros included, << 6; 0 for none."""
    for i in range(_ENTRIES):
        entry = np.int64(single[i])
        length, run, size = entry >> 8, (entry >> 4) & 15, entry & 15
        if entry == 0 or size > 10 or (size == 0 and run not in (0, 15)):
            many[i] = 0
        elif size == 0 and run == 0:
            many[i] = length | 32
        else:
            many[i] = (length + size) | (run + 1) << 6
    # From the longest first symbols on: what follows has been looked up by then or is looked up
    # as it is, one symbol: both are right.
    for i in range(_ENTRIES):
        entry = np.int64(many[i])
        taken = entry & 31
        if entry == 0 or entry & 32 or taken >= _LOOKUP:
            continue
        follow = np.int64(many[(i << taken) & (_ENTRIES - 1)])
        if follow and taken + (follow & 31) <= _LOOKUP and (entry >> 6) + (follow >> 6) < 64:
            many[i] = (taken + (follow & 31)) | (follow & 32) | ((entry >> 6) + (follow >> 6)) << 6


@njit
def _long_code(word: Any, long: Any, data: Any) -> Any:
    """Length << 8 | symbol of the code of over _LOOKUP bits that ``word`` begins with, or 0."""
    for length in range(_LOOKUP + 1, 17):
        code = np.int64(word >> np.uint64(64 - length)) - long[length, 0]
        if 0 <= code < long[length, 1]:
            return length << 8 | np.int64(data[long[length, 2] + code])
    return 0


@njit
def _interval(row: Any, rows: Any, pixels: Any, size: Any) -> Any:
    """MCUs between two markers: a divisor of a row's, or all of them.

    ``row``: MCUs of ``pixels`` pixels each; ``size``: bytes of the scan, to which markers that
    are closer than a row add 1 in _SHARE at most.
    """
    best = row
    for number in range(1, row):
        apart = number * pixels
        nearer = best == row or abs(apart - _APART) <= abs(best * pixels - _APART)
        cheap = row // number * rows * _MARKER * _SHARE <= size
        if row % number == 0 and _CLOSEST <= apart <= _FARTHEST and nearer and cheap:
            best = number
    return best


@njit
def _without_stuffing(data: Any, address: Any, at: Any, bits: Any, out: Any) -> Any:
    """Copy a scan from ``data[at]`` on without the 0 after each 0xFF, up to a marker or the end.

    Returns (its bytes, where it ends).
    """
    size, count = data.size, 0
    while at < size:
        if at + 8 <= size:
            word = _load_u8(address + at)
            other = ~word
            high = np.uint64(0x8080808080808080)
            if not (other - np.uint64(0x0101010101010101)) & word & high:
                _store_u8(bits + count, word)
                at += 8
                count += 8
                continue
        byte = data[at]
        if byte == 0xFF:
            if at + 1 >= size or data[at + 1] != 0:
                break
            at += 1
        out[count] = byte
        at += 1
        count += 1
    return count, at


@_kernel(_i8, _i8, _i8, _i8, _i8, _offsets)
def add_restarts(address, size, scratch, start, room, result):  # type: ignore[no-untyped-def]
    result[0], result[1] = 0, 0
    data = carray(_u8_pointer(np.uintp(address)), size)
    # -- the header ----------------------------------------------------------------------------
    k: Any
    value: Any
    entry: Any
    length: Any
    tables = np.full((2, 4), -1)  # where the DC and AC tables are
    frame, scan = np.int64(0), np.int64(0)
    at = np.int64(2)
    while scan == 0:
        if at + 4 > size or data[at] != 0xFF:
            return
        marker = data[at + 1]
        length = (np.int64(data[at + 2]) << 8) | np.int64(data[at + 3])
        end = at + 2 + length
        if length < 2 or end > size:
            return
        if marker == 0xC0 and frame == 0:
            frame = at
        elif marker == 0xC4:
            here = at + 4
            while here < end:
                kind, number = data[here] >> 4, data[here] & 15
                if here + 17 > end or kind > 1 or number > 3:
                    return
                symbols = np.int64(0)
                for k in range(16):
                    symbols += np.int64(data[here + 1 + k])
                if symbols > 256 or here + 17 + symbols > end:
                    return
                tables[kind, number] = here + 1
                here += 17 + symbols
        elif marker == 0xDA and length >= 8:
            scan = at
        elif marker == 0xE2 and length >= 6:
            # Multi-picture files state the offset of their other pictures.
            if data[at + 4] == 0x4D and data[at + 5] == 0x50 and data[at + 6] == 0x46:
                return
        elif not (marker == 0xDB or marker == 0xFE or (marker & 0xF0) == 0xE0):
            return
        at = end
    parts = np.int64(data[scan + 4])
    if frame == 0 or at != scan + 8 + 2 * parts or (parts != 1 and parts != 3):
        return
    if (np.int64(data[frame + 2]) << 8) + np.int64(data[frame + 3]) != 8 + 3 * parts:
        return
    high = (np.int64(data[frame + 5]) << 8) | np.int64(data[frame + 6])
    wide = (np.int64(data[frame + 7]) << 8) | np.int64(data[frame + 8])
    if data[frame + 4] != 8 or data[frame + 9] != parts or high == 0 or wide == 0:
        return
    if data[at - 3] != 0 or data[at - 2] != 63 or data[at - 1] != 0:
        return
    # -- its tables, and the blocks of an MCU ---------------------------------------------------
    single = np.empty(8 * _ENTRIES, np.uint16)  # four DC tables, four AC tables
    many = np.empty(4 * _ENTRIES, np.uint16)
    long = np.empty((2, 4, 17, 3), np.int64)
    codes = np.empty((2, 4, 17), np.int64)
    made = np.zeros((2, 4), np.uint8)
    part_of, dc_of, ac_of = np.zeros(10, np.int64), np.zeros(10, np.int64), np.zeros(10, np.int64)
    blocks, most_x, most_y = np.int64(0), np.int64(1), np.int64(1)
    for c in range(parts):
        spread = data[frame + 11 + 3 * c]
        x, y = np.int64(spread >> 4), np.int64(spread & 15)
        dc, ac = np.int64(data[scan + 6 + 2 * c] >> 4), np.int64(data[scan + 6 + 2 * c] & 15)
        if data[scan + 5 + 2 * c] != data[frame + 10 + 3 * c] or dc > 3 or ac > 3:
            return
        if x < 1 or x > 4 or y < 1 or y > 4:
            return
        if parts == 1:
            x, y = np.int64(1), np.int64(1)
        if blocks + x * y > 10:
            return
        for kind in range(2):
            number = ac if kind else dc
            if not made[kind, number]:
                place = tables[kind, number]
                if place < 0:
                    return
                own = single[(4 * kind + number) * _ENTRIES :][:_ENTRIES]
                if not _huffman(data, place, own, long[kind, number], codes[kind, number]):
                    return
                if kind:
                    _pairs(own, many[number * _ENTRIES :][:_ENTRIES])
                made[kind, number] = 1
        most_x, most_y = max(most_x, x), max(most_y, y)
        for _ in range(x * y):
            part_of[blocks], dc_of[blocks], ac_of[blocks] = c, dc, ac
            blocks += 1
    row = (wide + 8 * most_x - 1) // (8 * most_x)
    rows = (high + 8 * most_y - 1) // (8 * most_y)
    mcus = row * rows
    # Codes for the differences that a DC table lacks: longer than all it has, so that these stay.
    extra = np.zeros((4, 3), np.int64)  # their length, how many, whether one is used
    for t in range(4):
        if made[0, t]:
            lacking = np.int64(0)
            for value in range(12):
                lacking += codes[0, t, value] == 0
            last = codes[0, t, 16] >> 32
            for length in range(last + 1, 17):
                code = (codes[0, t, 16] & 0xFFFF) << (length - last)
                if last and lacking and code + lacking < 1 << length:
                    extra[t, 0], extra[t, 1] = length, lacking
                    for value in range(12):
                        if codes[0, t, value] == 0:
                            codes[0, t, value] = length << 32 | code
                            code += 1
                    break
    # -- the scan --------------------------------------------------------------------------------
    bits = scratch
    plain = carray(_u8_pointer(np.uintp(scratch)), size - at + _BEHIND)
    count, tail = _without_stuffing(data, address, at, bits, plain)
    if tail + 2 > size or data[tail + 1] != 0xD9:
        return
    interval = _interval(row, rows, 8 * most_x, count)
    if mcus <= interval:
        return
    plain[count : count + _BEHIND] = 0
    total = count * 8
    header = scan + 6  # bytes before the scan's segment: with DRI, and new tables where needed
    for t in range(4):
        if extra[t, 0]:
            header += 2 + 2 + 17 + 12 + 256
    if header + size - scan > room:
        return
    first = start + header + (at - scan)
    out, limit = first, start + room
    held, in_held = np.uint64(0), np.int64(0)
    before = np.zeros(3, np.int64)
    due = np.zeros(3, np.uint8)
    here, copied, left, marks = np.int64(0), np.int64(0), interval, np.int64(0)
    for _ in range(mcus):
        if left == 0:
            if limit - out < (here - copied) // 4 + 64:
                return
            out, held, in_held = _copy_bits(bits, copied, here, out, held, in_held)
            out = _end_segment(out, held, in_held)
            in_held = np.int64(0)
            _store_u8(out, np.uint64(0xFF | (0xD0 + (marks & 7)) << 8))
            out += 2
            marks += 1
            copied, left = here, interval
            due[:] = 1
        left -= 1
        for b in range(blocks):
            word = _peek(bits, here)
            t, c = dc_of[b], part_of[b]
            index = word >> np.uint64(64 - _LOOKUP)
            entry = np.int64(single[np.uint64(t * _ENTRIES) + index])
            if entry == 0:
                entry = _long_code(word, long[0, t], data)
                if entry == 0:
                    return
            length, category = entry >> 8, entry & 255
            if category > 11:
                return
            if category:
                value = np.int64((word << np.uint64(length)) >> np.uint64(64 - category))
                if value < 1 << (category - 1):
                    value -= (1 << category) - 1
                before[c] += value
                if before[c] > 2047 or before[c] < -2047:
                    return
            if due[c]:
                # The first block of a component in a segment: its own value, not the difference.
                if limit - out < (here - copied) // 4 + 64:
                    return
                out, held, in_held = _copy_bits(bits, copied, here, out, held, in_held)
                value, new = abs(before[c]), np.int64(0)
                while value >> new:
                    new += 1
                code = codes[0, t, new]
                if code == 0:
                    return
                if extra[t, 0] and code >> 32 == extra[t, 0]:
                    extra[t, 2] = 1
                value = before[c] if before[c] >= 0 else before[c] + (1 << new) - 1
                code_length = code >> 32
                code = (code & 0xFFFF) << new | value
                out, held, in_held = _put(out, held, in_held, np.uint64(code), code_length + new)
                copied = here + length + category
                due[c] = 0
            here += length + category
            word <<= np.uint64(length + category)
            known = 57 - length - category  # bits of word
            base, t = np.uint64(ac_of[b] * _ENTRIES), ac_of[b]
            k = np.int64(1)
            while k < 64:
                if known < _LOOKUP:
                    word, known = _peek(bits, here), np.int64(57)
                index = base + (word >> np.uint64(64 - _LOOKUP))
                entry = np.int64(many[index])
                k += entry >> 6
                if entry != 0 and k < 64:
                    here += entry & 31
                    if entry & 32:
                        break
                    word <<= np.uint64(entry & 31)
                    known -= entry & 31
                    continue
                # One symbol after the other: long codes, and the end of a block without a code.
                k -= entry >> 6
                known = np.int64(0)
                entry = np.int64(single[np.uint64(4 * _ENTRIES) + index])
                if entry == 0:
                    entry = _long_code(_peek(bits, here), long[1, t], data)
                    if entry == 0:
                        return
                run, category = (entry >> 4) & 15, entry & 15
                here += (entry >> 8) + category
                if category == 0 and run == 0:
                    break
                k += run + 1
                if category > 10 or (category == 0 and run != 15) or k > 64:
                    return
            if here > total:
                return
    if (here + 7) >> 3 != count or limit - out < (here - copied) // 4 + 64 + size - tail:
        return
    out, held, in_held = _copy_bits(bits, copied, here, out, held, in_held)
    out = _end_segment(out, held, in_held)
    _memcpy(np.uintp(out), np.uintp(address + tail), np.uintp(size - tail))
    result[1] = out + size - tail - start
    # -- the header, up to the scan --------------------------------------------------------------
    out = first - (at - scan)
    _memcpy(np.uintp(out), np.uintp(address + scan), np.uintp(at - scan))
    out -= 6
    _store_u8(out, np.uint64(0x0400DDFF | (interval >> 8) << 32 | (interval & 255) << 40))
    _memcpy(np.uintp(out + 6), np.uintp(address + scan), np.uintp(2))
    for t in range(4):
        if extra[t, 2]:
            place = tables[0, t]
            symbols = np.int64(0)
            for k in range(16):
                symbols += np.int64(data[place + k])
            length = 19 + symbols + extra[t, 1]
            out -= 2 + length
            table = carray(_u8_pointer(np.uintp(out)), 2 + length)
            table[0], table[1] = 0xFF, 0xC4
            table[2], table[3], table[4] = length >> 8, length & 255, t
            for k in range(16):
                table[5 + k] = data[place + k]
            table[4 + extra[t, 0]] = extra[t, 1]
            for k in range(symbols):
                table[21 + k] = data[place + 16 + k]
            k = 21 + symbols
            for value in range(12):
                if codes[0, t, value] >> 32 == extra[t, 0]:
                    table[k] = value
                    k += 1
    out -= scan
    _memcpy(np.uintp(out), np.uintp(address), np.uintp(scan))
    result[0] = out - start
