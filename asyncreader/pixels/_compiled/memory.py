"""How kernels reach memory: numbers and bits at an address, copies, and stores in order."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .base import inner, instruction

# -- numbers -------------------------------------------------------------------------------------


def load_any(builder, address, kind):
    """LLVM's load of a value of ``kind``, which need not be aligned."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def store_any(builder, value, address):
    """LLVM's store to an address that need not be aligned."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


@intrinsic
def load(typingctx, address, kind):
    """The number of type ``kind`` at ``address``, which need not be aligned."""
    number = kind.instance_type

    def generate(context, builder, signature, arguments):
        return load_any(builder, arguments[0], context.get_value_type(number))

    return number(address, kind), generate


@intrinsic
def store(typingctx, address, value):
    """Write a number to ``address``, which need not be aligned."""

    def generate(context, builder, signature, arguments):
        store_any(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(address, value), generate


@intrinsic
def pointer(typingctx, address, kind):
    """What an address points to, as an array of ``kind`` that is indexed without a bound."""
    number = types.CPointer(kind.instance_type)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(number))

    return number(address, kind), generate


@inner(inline="always")
def bytes_from(address):
    """The bytes at ``address`` and after it."""
    return pointer(address, np.uint8)


@intrinsic
def reversed_bytes(typingctx, value):
    """A whole number of several bytes, in the other order of bytes."""

    def generate(context, builder, signature, arguments):
        return builder.bswap(arguments[0])

    return value(value), generate


@inner(inline="always")
def address_in(array):
    """The address of an array, which must stay in use by its name: numba frees it after that."""
    return np.int64(array.ctypes.data)  # with other integers its own type would make a float


# -- copies --------------------------------------------------------------------------------------


@instruction(types.void(types.int64, types.int64, types.int64))
def memcpy(builder, out, source, size):
    target, origin = (builder.inttoptr(address, cgutils.voidptr_t) for address in (out, source))
    cgutils.raw_memcpy(builder, target, origin, size, 1)


@instruction(types.void(types.int64))
def prefetch(builder, address):
    """Ask for the cache line at ``address``, which need not be readable."""
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # to be read; kept in all caches; data
    constants = [ir.Constant(number, value) for value in (0, 3, 1)]
    builder.call(function, [builder.inttoptr(address, cgutils.voidptr_t), *constants])


@instruction(types.void(types.int64, types.int64))
def _stream_128(builder, out, source):
    """Copy 128 bytes to ``out``, a multiple of 32, past the caches. Ordinary stores take 1.3 times
    as long for a batch (64 of 224 x 224 x 3), and 1.4 times where it is cast to float32."""
    vector = ir.VectorType(ir.IntType(64), 4).as_pointer()
    target, origin = (builder.inttoptr(address, vector) for address in (out, source))
    indices = [ir.Constant(ir.IntType(64), k) for k in range(4)]
    loaded = [builder.load(builder.gep(origin, [k])) for k in indices]
    mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
    for k, value in zip(indices, loaded, strict=True):
        value.align = 1
        stored = builder.store(value, builder.gep(target, [k]))
        stored.align = 32
        stored.set_metadata("nontemporal", mark)


#: Bytes ahead of a copy at which the source is asked for.
_AHEAD = 2048


@inner(inline="always")
def stream_row(source, target, size):
    """Copy ``size`` bytes past the caches, but for what lies before and after whole lines."""
    head = min((64 - (target & 63)) & 63, size)
    memcpy(target, source, head)
    source, target, left = source + head, target + head, size - head
    for _ in range(left >> 7):
        prefetch(source + _AHEAD)
        prefetch(source + _AHEAD + 64)
        _stream_128(target, source)
        source, target = source + 128, target + 128
    memcpy(target, source, left & 127)


#: The system's own: bytes read, or -1.
pread = types.ExternalFunction(
    "pread", types.int64(types.int32, types.int64, types.int64, types.int64)
)

# -- stores in order -----------------------------------------------------------------------------


@instruction(types.void())
def fence(builder):
    """All that was written before is seen before what is written after."""
    builder.fence("seq_cst")


def _number_at(builder, address):
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@instruction(types.void(types.int64, types.int64))
def store_release(builder, address, value):
    """Write an int64 so that whoever reads it also sees all that was written before."""
    builder.store_atomic(value, _number_at(builder, address), "release", 8)


@instruction(types.int64(types.int64))
def load_acquire(builder, address):
    """The int64 at ``address``; what is read after it is at least as new."""
    return builder.load_atomic(_number_at(builder, address), "acquire", 8)


@instruction(types.boolean(types.int64, types.int64, types.int64))
def swap_if(builder, address, expected, wanted):
    """Write ``wanted`` to the int64 at ``address`` if it is ``expected``; whether it was."""
    pair = builder.cmpxchg(_number_at(builder, address), expected, wanted, "acq_rel", "acquire")
    return builder.extract_value(pair, 1)
