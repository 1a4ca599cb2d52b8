"""What a sink needs at the end besides the samples: labels, paths, checksums, and their digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncreader import format as fmt

from .spool import Numbers

#: Samples whose labels or paths are handled at a time.
BLOCK = 1 << 16


@dataclass(frozen=True)
class Tables:
    """The tables of a finished set, on disk, in record order.

    ``offsets``: (N+1,) int64, of the encoded samples in their blob, None for raw; ``checksums``:
    (N,) uint64; ``labels``: (N, L) int64 or float64, None without; ``paths``: a function that
    starts over at the first path, None where none are known; ``longest``: bytes of the longest.
    """

    meta: fmt.Meta
    offsets: npt.NDArray[np.int64] | None
    checksums: npt.NDArray[np.uint64]
    labels: npt.NDArray[Any] | None
    paths: Callable[[], Iterator[bytes]] | None
    longest: int

    def path_blocks(self, size: int) -> Iterator[npt.NDArray[np.bytes_]]:
        """Paths as arrays of fixed-length bytes, ``size`` of them at a time."""
        assert self.paths is not None
        block: list[bytes] = []
        for path in self.paths():
            block.append(path)
            if len(block) == size:
                yield np.array(block, f"S{self.longest}")
                block = []
        if block:
            yield np.array(block, f"S{self.longest}")

    def class_names(self) -> list[bytes]:
        """Class names as they are stored."""
        return [encoded(name) for name in self.meta.classes or ()]


def encoded(name: str) -> bytes:
    """A name's bytes: UTF-8, or whatever bytes a file name had that is not."""
    return name.encode("utf-8", "surrogateescape")


class Ledger:
    """Which samples were packed, in record order: number in the source, checksum, bytes."""

    def __init__(self) -> None:
        self._numbers = Numbers("q")
        self._checksums = Numbers("Q")
        self._ends = Numbers("q")
        self._ends.append(0)
        self.bytes = 0
        self.count = 0

    def add(self, number: int, checksum: int, size: int) -> None:
        """Note the next record."""
        self._numbers.append(number)
        self._checksums.append(checksum)
        self.bytes += size
        self._ends.append(self.bytes)
        self.count += 1

    def tables(
        self,
        meta: fmt.Meta,
        labels: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any] | None],
        path: Callable[[int], bytes] | None,
    ) -> Tables:
        """All tables. ``meta`` lacks its digests; ``labels`` and ``path`` ask by source number."""
        numbers = self._numbers.rows()
        rows = self._labels(numbers, labels)
        paths = None if path is None else lambda: (path(int(number)) for number in numbers)
        longest = 0 if paths is None else max(len(name) for name in paths())
        offsets = None if meta.encoding == "raw" else self._ends.rows()
        checksums = self._checksums.rows()
        digests = {fmt.CHECKSUMS: fmt.digest(checksums)}
        if offsets is not None:
            digests[fmt.OFFSETS] = fmt.digest(offsets)
        if rows is not None:
            digests[fmt.LABELS] = fmt.digest(rows)
        if paths is not None:
            digests[fmt.PATHS] = fmt.names_digest(paths())
        if meta.classes is not None:
            digests[fmt.CLASSES] = fmt.names_digest(map(encoded, meta.classes))
        dtype = "<i8" if rows is None else rows.dtype.newbyteorder("<").str
        return Tables(
            meta=fmt.Meta(
                count=self.count,
                encoding=meta.encoding,
                shape=meta.shape,
                channels=meta.channels,
                label_kind=meta.label_kind,
                classes=meta.classes,
                digests=digests,
                label_dtype=dtype,
            ).sealed(),
            offsets=offsets,
            checksums=checksums,
            labels=rows,
            paths=paths,
            longest=longest,
        )

    def _labels(
        self,
        numbers: npt.NDArray[np.int64],
        labels: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any] | None],
    ) -> npt.NDArray[Any] | None:
        spool: Numbers | None = None
        for start in range(0, self.count, BLOCK):
            rows = labels(numbers[start : start + BLOCK])
            if rows is None:
                return None
            if spool is None:
                spool = Numbers("d" if rows.dtype.kind == "f" else "q", rows.shape[1])
            spool.extend(rows)
        assert spool is not None
        return spool.rows().reshape(self.count, -1)

    def close(self) -> None:
        """Give the temporary files back."""
        for numbers in (self._numbers, self._checksums, self._ends):
            numbers.close()
