"""Memory between two pages that nobody may touch: a byte read or written outside of it is SIGSEGV.

For children of ``Watched`` (child_processes.py): the fault ends the child, and fails one test.
"""

import ctypes
import math
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncreader import reader
from asyncreader.pipeline import build
from asyncreader.sources import bytestore
from asyncreader.sources.hdf5 import chunk_cache
from asyncreader.system import memory

_PROTECT = ctypes.CDLL(None, use_errno=True).mprotect
_PROTECT.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NONE = 0  # PROT_NONE


class Guards:
    """The arrays of a case, each in pages of its own, which live as long as this object.

    ``end``: the last byte of an array is the last before a guard page; else its first byte is the
    first behind one. What lies at the end begins at an odd address where its size is odd.
    """

    def __init__(self, end: bool) -> None:
        self._end = end
        self._held: list[npt.NDArray[Any]] = []

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> Any:
        """An array with 0xA5 in all bytes."""
        kind, page = np.dtype(dtype), mmap.PAGESIZE
        size = math.prod(np.atleast_1d(shape).tolist()) * kind.itemsize
        inside = -(-max(size, 1) // page) * page
        pages = mmap.mmap(-1, inside + 2 * page)
        first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        for guard in (first, first + page + inside):
            if _PROTECT(guard, page, _NONE) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        at = page + (inside - size if self._end else 0)
        array = np.frombuffer(pages, np.uint8, size, at)
        array[:] = 0xA5
        found = array.view(kind).reshape(shape)
        self._held.append(found)
        return found

    def of(self, values: npt.ArrayLike) -> Any:
        """A copy of ``values``."""
        given = np.asarray(values)
        found = self.empty(given.shape, given.dtype)
        found[...] = given
        return found

    def bytes(self, data: bytes) -> npt.NDArray[np.uint8]:
        """A copy of some bytes."""
        found: npt.NDArray[np.uint8] = self.of(np.frombuffer(data, np.uint8))
        return found

    def replace_allocators(self) -> None:
        """Give this process memory between guard pages, of the size asked for, in place of the
        threads' scratch memory, of slots, of decoded chunks and of mapped files."""

        def take(_: object, __: str, size: int) -> npt.NDArray[np.uint8]:
            found: npt.NDArray[np.uint8] = self.empty(size)
            return found

        def mapped(file: int, size: int) -> npt.NDArray[np.uint8]:
            return self.bytes(os.pread(file, size, 0))

        type(memory.SCRATCH).take = take  # type: ignore[method-assign, assignment]
        for module in (build, chunk_cache, reader):
            module.aligned_empty = self.empty
        bytestore.map_file = mapped  # type: ignore[assignment]


def address(array: npt.NDArray[Any]) -> int:
    """Where the memory of an array begins."""
    return int(array.ctypes.data)
