"""Functions that move bytes and numbers: copies past the caches, loads and stores in order."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from .base import instruction, load_any, memcpy, store_any, u8_pointer


@instruction(types.void(types.uintp))
def prefetch(builder, address):
    """Ask for the cache line at ``address``, which need not be readable."""
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # to be read; kept in all caches; data
    constants = [ir.Constant(number, value) for value in (0, 3, 1)]
    builder.call(function, [builder.inttoptr(address, cgutils.voidptr_t), *constants])


@instruction(types.void(types.uintp, types.uintp))
def stream_128(builder, out, source):
    """Copy 128 bytes to ``out``, a multiple of 32, past the caches ("nontemporal" in LLVM)."""
    vector = ir.VectorType(ir.IntType(64), 4).as_pointer()
    target, origin = (builder.inttoptr(address, vector) for address in (out, source))
    indices = [ir.Constant(ir.IntType(64), k) for k in range(4)]
    loaded = [builder.load(builder.gep(origin, [k])) for k in indices]
    mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
    for k, value in zip(indices, loaded, strict=True):
        value.align = 1
        store = builder.store(value, builder.gep(target, [k]))
        store.align = 32
        store.set_metadata("nontemporal", mark)


@instruction(types.void())
def fence(builder):
    """All that was written before is seen before what is written after."""
    builder.fence("seq_cst")


#: Bytes ahead of the copy at which stream_rows asks for the source.
AHEAD = np.uintp(2048)


@njit(inline="always")
def stream_row(come, go, size):
    """Copy ``size`` bytes past the caches, but for what lies before and after whole lines."""
    left = np.uintp(size)
    head = min((np.uintp(64) - (go & np.uintp(63))) & np.uintp(63), left)
    memcpy(go, come, head)
    come, go, left = come + head, go + head, left - head
    for _ in range(left >> np.uintp(7)):
        prefetch(come + AHEAD)
        prefetch(come + AHEAD + np.uintp(64))
        stream_128(go, come)
        come, go = come + np.uintp(128), go + np.uintp(128)
    memcpy(go, come, left & np.uintp(127))


@instruction(types.int64(types.uintp))
def load_i8(builder, address):
    """The int64 at ``address``, which need not be aligned."""
    return load_any(builder, address, ir.IntType(64))


@instruction(types.void(types.uintp, types.int64))
def store_i8(builder, address, value):
    """Write an int64 to ``address``, which need not be aligned."""
    store_any(builder, value, address)


@njit(inline="always")
def store_byte(address, value):
    """Write a byte to ``address``."""
    u8_pointer(address)[0] = value


@njit(inline="always")
def byte_at(address, i):
    """Byte ``i`` from ``address``."""
    return u8_pointer(np.uintp(address))[i]


@instruction(types.void(types.uintp, types.int64))
def store_release(builder, address, value):
    """Write an int64 so that whoever reads it also sees all that was written before."""
    pointer = builder.inttoptr(address, ir.IntType(64).as_pointer())
    builder.store_atomic(value, pointer, "release", 8)


@instruction(types.int64(types.uintp))
def load_acquire(builder, address):
    """The int64 at ``address``; what is read after it is at least as new."""
    pointer = builder.inttoptr(address, ir.IntType(64).as_pointer())
    return builder.load_atomic(pointer, "acquire", 8)


@instruction(types.boolean(types.uintp, types.int64, types.int64))
def swap_if(builder, address, found, wanted):
    """Write ``wanted`` to the int64 at ``address`` if it is ``found``; whether it was."""
    pointer = builder.inttoptr(address, ir.IntType(64).as_pointer())
    pair = builder.cmpxchg(pointer, found, wanted, "acq_rel", "acquire")
    return builder.extract_value(pair, 1)
