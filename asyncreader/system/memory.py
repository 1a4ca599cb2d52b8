"""Memory as arrays: page-aligned private memory, and mapped files that keep no descriptor open.

Python's own ``mmap`` duplicates the descriptor and holds it for as long as the mapping lives (until
3.13's ``trackfd=False``); closing a reader must give descriptors back while batches live on.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .array_types import Array, UInt8

PAGE: Final = mmap.PAGESIZE
#: Bytes that read_at_most() asks for at once.
_PIECE: Final = 1 << 20


def _system_calls() -> ctypes.CDLL:
    """The C library of this process with the calls that Python lacks."""
    libc = ctypes.CDLL(None, use_errno=True)
    sizes = (ctypes.c_void_p, ctypes.c_size_t)
    numbers = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (*sizes, *numbers)
    libc.munmap.argtypes = sizes
    with contextlib.suppress(AttributeError):
        libc.mincore.argtypes = (*sizes, ctypes.c_char_p)
    return libc


_libc: Final = _system_calls()
_FAILED: Final = ctypes.c_void_p(-1).value
_MFD_CLOEXEC: Final = 1  # of the kernel; Pythons without memfd_create lack the name, too


class _Mapping:
    """Owns one mapping; numpy keeps it alive as the base of every array that looks into it."""

    def __init__(self, fd: int, size: int, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._unmap = _libc.munmap  # still there when modules are torn down
        self._address, self._size = address, size
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, not writable),
        }

    def __del__(self) -> None:
        if hasattr(self, "_size"):
            self._unmap(self._address, self._size)


def map_file(fd: int, size: int, writable: bool = False) -> UInt8:
    """The first ``size`` bytes of an open file, shared with it, as a 1-D uint8 array.

    ``fd`` may be closed at once. Unmapped when the last array that looks into it is gone; raises
    OSError where the system cannot map it.
    """
    return np.asarray(_Mapping(fd, size, writable))


def shared_file(name: str, size: int) -> int:
    """Descriptor of a file of ``size`` zeros without a path, for memory that processes share.

    Many Pythons are built without ``os.memfd_create``. Then the system's own call serves, or a
    temporary file that is unlinked at once, with all its blocks written: where the disk is full a
    missing one would be SIGBUS. OSError where there is no space.
    """
    try:
        file = _memfd(name)
    except (AttributeError, OSError):  # neither has it, or it is not allowed
        return _temporary(size)
    try:
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return file


def _memfd(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    file: int = _libc.memfd_create(name.encode(), _MFD_CLOEXEC)
    if file < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return file


def _temporary(size: int) -> int:
    zeros = bytes(min(size, 1 << 20))
    for folder in ("/dev/shm", None):  # memory where there is some, else the usual folder
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                done = 0
                while done < size:
                    done += file.write(zeros[: size - done])
                return os.dup(file.fileno())
        except OSError:
            if folder is None:
                raise
    raise AssertionError


def read_at_most(path: str, most: int) -> bytes:
    """The bytes of a file; of one that is longer than ``most`` its first ``most`` + 1.

    Memory grows with what is there: file.read(most) takes all of ``most`` first.
    """
    parts, left = list[bytes](), most + 1
    with open(path, "rb") as file:
        while left and (part := file.read(min(left, _PIECE))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeroed C-ordered array whose first byte is on a page boundary, private to this process."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    pages = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 4 << 20 and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # fewer TLB misses while rows are copied in
    return np.frombuffer(pages, kind, count=size // kind.itemsize).reshape(shape)


#: All pages of files up to this size are looked at, in one call of at most 0.1 ms.
_SMALL_FILE: Final = 16 << 20


#: mincore(2): notes of each page from an address on whether it is in memory, in the lowest bit of a
#: byte; None where the system lacks it.
_mincore: Final = getattr(_libc, "mincore", None)


def cached_pages(mapped: UInt8) -> UInt8 | None:
    """For each page of a mapped file whether it is in the page cache: 1 or 0; None where the system
    does not tell."""
    known = ctypes.create_string_buffer(-(-mapped.size // PAGE))
    if _mincore is None or _mincore(mapped.ctypes.data, mapped.size, known) != 0:
        return None
    return np.frombuffer(known.raw, np.uint8) & np.uint8(1)


def cached_share(mapped: UInt8) -> float:
    """Part of a mapped file's pages in the page cache, 0 to 1; 1.0 where the system does not tell.
    Of a large file 128 evenly spread pages are looked at, in some 0.2 ms: batch after batch asks.
    """
    if mapped.size <= _SMALL_FILE:
        pages = cached_pages(mapped)
        return 1.0 if pages is None else float(pages.mean())
    if _mincore is None:
        return 1.0
    samples, held = 128, 0
    address, known = mapped.ctypes.data, ctypes.create_string_buffer(1)
    for number in np.linspace(0, (mapped.size - 1) // PAGE, samples).astype(np.int64).tolist():
        if _mincore(address + number * PAGE, PAGE, known) != 0:
            return 1.0
        held += known.raw[0] & 1
    return held / samples


def address_of(array: Array | None) -> int:
    """Where the memory of ``array`` (writable, C-contiguous, not empty) begins; 0 of None.

    ``array.ctypes.data`` takes four times as long: 1.5 us.
    """
    buffer: Any = array  # arrays are buffers to type checkers from Python 3.12 on
    return 0 if array is None else ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def bytes_at(address: int, length: int) -> UInt8:
    """The ``length`` bytes at ``address`` as an array that does not own them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


def _counted(arrays: Sequence[UInt8]) -> Iterator[tuple[UInt8, int]]:
    """Arrays, and how many references each has."""
    return zip(arrays, map(sys.getrefcount, arrays), strict=True)


#: The references of an array that has its own memory, and that no other array looks into.
_ALONE: Final = next(_counted([np.empty(1, np.uint8)]))[1]


class _Scratch(threading.local):
    """Byte buffers of the calling thread, by name; they grow and are reused.

    What was taken is the taker's as long as an array looks into it: who takes the same meanwhile,
    such as a read in a signal handler or in a function of the user, gets other memory. So keep the
    array, not its address alone.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, list[UInt8]] = {}

    def take(self, name: str, size: int) -> UInt8:
        """Memory of ``size`` bytes."""
        used: list[UInt8] = []
        for one, references in _counted(self._buffers.get(name, ())):
            if references > _ALONE:
                used.append(one)
            elif one.size >= size:
                return one[:size]
        made = np.empty(size, np.uint8)
        self._buffers[name] = [*used, made]
        return made[:]

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = math.prod(shape) * dtype.itemsize
        return self.take(name, size).view(dtype).reshape(shape)


SCRATCH: Final = _Scratch()
