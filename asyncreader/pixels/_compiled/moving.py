"""Functions that move bytes and numbers: copies past the caches, loads and stores in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .base import memcpy, u8_pointer


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
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
def stream_128(typingctx: Any, out: Any, source: Any) -> Any:
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
def fence(typingctx: Any) -> Any:
    """All that was written before is seen before what is written after."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


#: Bytes ahead of the copy at which stream_rows asks for the source.
AHEAD = np.uintp(2048)


@njit(inline="always")
def stream_row(come: Any, go: Any, size: Any) -> None:
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


@intrinsic
def load_i8(typingctx: Any, address: Any) -> Any:
    """The int64 at ``address``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.uintp), generate


@intrinsic
def store_i8(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64 to ``address``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store(arguments[1], pointer)
        return context.get_dummy_value()

    return types.void(types.uintp, types.int64), generate


@njit(inline="always")
def store_byte(address, value):  # type: ignore[no-untyped-def]
    """Write a byte to ``address``."""
    u8_pointer(address)[0] = value


@njit(inline="always")
def byte_at(address, i):  # type: ignore[no-untyped-def]
    """Byte ``i`` from ``address``."""
    return u8_pointer(np.uintp(address))[i]


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64 so that whoever reads it also sees all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.uintp, types.int64), generate


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """The int64 at ``address``; what is read after it is at least as new."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.uintp), generate


@intrinsic
def swap_if(typingctx: Any, address: Any, found: Any, wanted: Any) -> Any:
    """Write ``wanted`` to the int64 at ``address`` if it is ``found``; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        pair = builder.cmpxchg(pointer, arguments[1], arguments[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.uintp, types.int64, types.int64), generate
