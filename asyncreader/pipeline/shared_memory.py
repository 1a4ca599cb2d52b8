"""Arena: the shared memory that holds the slots of worker processes."""

from __future__ import annotations

import math
import os
from multiprocessing import context, reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ParamsError, closed_on_error
from ..system.array_types import Array, UInt8
from ..system.memory import PAGE, map_file, shared_file


class Arena:
    """A block of shared memory, cut into page-aligned arrays that reader and workers both see.

    It can be pickled only to spawn a process, which inherits its descriptor.
    """

    _fd = -1

    def __init__(self, size: int) -> None:
        try:
            self._fd = shared_file("asyncreader-slots", size)
        except OSError as exc:
            raise ParamsError(
                "the memory of worker processes cannot be allocated",
                found=f"{size} bytes: {exc.strerror}",
                hint="free some space in memory (/dev/shm) or in the folder of TMPDIR, or "
                'workers="thread"',
            ) from exc
        with closed_on_error([self]):
            self._map()
        self._used = 0

    def _map(self) -> None:
        self._bytes = map_file(self._fd, os.fstat(self._fd).st_size, writable=True)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """A zeroed C-ordered array; equal calls in equal order give equal memory on each side."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        piece = self._bytes[self._used : self._used + size]
        self._used += pages(size)
        return piece.view(kind).reshape(shape)

    def start(self, size: int) -> UInt8:
        """The first ``size`` bytes: the map of checked samples, where there is one."""
        return self._bytes[:size]

    def close(self) -> None:
        """Close the descriptor. The mapping lives as long as an array refers to it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return reduction.DupFd(self._fd)

    def __setstate__(self, handle: Any) -> None:
        self._fd = handle.detach()
        self._map()
        self._used = 0
        self.close()


def pages(size: int) -> int:
    """``size`` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE
