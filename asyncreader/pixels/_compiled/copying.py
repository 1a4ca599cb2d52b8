"""Kernels that copy samples: rows as they are, rows with their checksums, and whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .base import i8, kernel, memcpy, offsets_type


@kernel(types.uintp, offsets_type, i8, types.uintp, offsets_type)
def gather_rows(source, offsets, row_bytes, out, rows):  # type: ignore[no-untyped-def]
    for i in range(offsets.size):
        memcpy(
            out + np.uintp(rows[i] * row_bytes),
            source + np.uintp(offsets[i]),
            np.uintp(row_bytes),
        )


#: The system's own: bytes read, or -1.
_pread = types.ExternalFunction(
    "pread", types.int64(types.int32, types.uintp, types.uintp, types.int64)
)


@kernel(i8, offsets_type, offsets_type, offsets_type, offsets_type)
def pread_runs(fd, offsets, sizes, targets, done):  # type: ignore[no-untyped-def]
    done[0] = 0
    for i in range(offsets.size):
        found = _pread(np.int32(fd), np.uintp(targets[i]), np.uintp(sizes[i]), offsets[i])
        if found != sizes[i]:
            return
        done[0] += 1


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
    memcpy(go, come, head)
    come, go, left = come + head, go + head, left - head
    for _ in range(left >> np.uintp(7)):
        _prefetch(come + _AHEAD)
        _prefetch(come + _AHEAD + np.uintp(64))
        _stream_128(go, come)
        come, go = come + np.uintp(128), go + np.uintp(128)
    memcpy(go, come, left & np.uintp(127))


@kernel(types.uintp, offsets_type, i8, types.uintp, offsets_type)
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


@kernel(types.uintp, offsets_type, i8, types.uintp, offsets_type, types.uint64[::1])
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


@kernel(
    *(types.int64[::1], types.int64[::1], types.int64[:, ::1], types.uintp, offsets_type, i8, i8),
    *(i8, types.boolean, types.uintp, i8, i8, i8),
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
        count, records, out, labels_out, mark, whole = jobs[slot]
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
                    memcpy(row, source + offset, np.uintp(row_bytes))
                row += np.uintp(row_bytes)
        row = np.uintp(labels_out)
        for i in range(count * (label_bytes > 0)):
            record = _load_i8(np.uintp(records + 8 * i))
            label = labels + np.uintp(record * label_bytes)
            if label_bytes == 8:  # one number: a call of memcpy takes longer
                memcpy(row, label, np.uintp(8))
            else:
                memcpy(row, label, np.uintp(label_bytes))
            row += np.uintp(label_bytes)
        if stream:
            _fence()
        _store_release(np.uintp(mark), whole)
        done += 1
        looked = 0


@kernel(types.uintp, i8, i8)
def await_batch(mark, whole, looks):  # type: ignore[no-untyped-def]
    for _ in range(looks):
        if _load_acquire(mark) == whole:
            return
