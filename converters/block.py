"""Samples as they are stored, with their checksums: one, or several that were hashed together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import xxhash

from asyncreader.formats.packed import PLAIN, RAGGED, FieldMeta
from asyncreader.pixels import kernels
from asyncreader.system.array_types import Array, Int64, UInt64
from asyncreader.system.memory import SCRATCH


@dataclass(frozen=True, slots=True)
class FieldBlock:
    """One field of a sample as it is stored: bytes, shape if that is known, XXH3-64.

    Or of several raw samples, one after the other: then ``checksum`` is uint64 (n,), and ``data``
    is memory that changes later. ``channels``: of images, whose shape is (H, W, C); 0 of rows of
    numbers of any shape. ``lengths``: of samples of different length, the values of each, int64
    (n,); ``shape`` is that of a value then.
    """

    data: bytes | memoryview
    shape: tuple[int, ...] | None
    checksum: int | UInt64
    dtype: str
    channels: int
    lengths: Int64 | None = None
    #: Whether restart markers were put into it; None where that was not tried.
    rewritten: bool | None = None
    #: Whether the image has 16 bits, and is served with 8.
    narrowed: bool = False

    @property
    def count(self) -> int:
        """Samples in it."""
        return 1 if isinstance(self.checksum, int) else int(self.checksum.size)

    def each(self) -> Iterator[bytes | memoryview]:
        """The bytes of each sample, to be kept: those of several are copied one by one."""
        if isinstance(self.checksum, int):
            yield self.data
            return
        ends = np.arange(1, self.count + 1) * (len(self.data) // self.count)
        if self.lengths is not None:
            assert self.shape is not None
            ends = np.cumsum(self.lengths) * math.prod(self.shape) * np.dtype(self.dtype).itemsize
        for start, end in itertools.pairwise([0, *ends.tolist()]):
            yield bytes(self.data[start:end])

    def described(self, name: str, encoding: str) -> FieldMeta:
        """What all samples of the field ``name`` must have in common: encoded images of a field may
        differ in height and width."""
        shape = self.shape if encoding in PLAIN else None
        return FieldMeta(name, encoding, shape, self.channels, self.dtype)

    def fits(self, field: FieldMeta) -> bool:
        """Whether ``field``, by another of its samples, describes these."""
        return (
            (field.dtype, field.channels) == (self.dtype, self.channels)
            and (field.shape is None or field.shape == self.shape)
            and (field.encoding == RAGGED) == (self.lengths is not None)
        )


#: Samples as they are stored: a block for each field in the order of the set, the image's first.
Block: TypeAlias = tuple[FieldBlock, ...]


def block_bytes(block: Block) -> int:
    """Bytes of all its fields."""
    return sum(len(field.data) for field in block)


def hashed(
    data: bytes | memoryview,
    shape: tuple[int, ...] | None,
    dtype: str = "uint8",
    channels: int | None = None,
) -> FieldBlock:
    """``data`` with its checksum; ``channels``: those of ``shape`` where they are not said."""
    if channels is None:
        assert shape is not None
        channels = shape[-1]
    return FieldBlock(data, shape, xxhash.xxh3_64_intdigest(data), dtype, channels)


def hashed_pixels(pixels: Array, image: bool = True) -> FieldBlock:
    """Pixels (H, W, C), or numbers of any shape, as they are stored raw: more than a byte
    little-endian."""
    row = np.asarray(pixels, pixels.dtype.newbyteorder("<"), order="C")
    data = row.reshape(-1).view(np.uint8).data
    return hashed(data, row.shape, row.dtype.name, row.shape[2] if image else 0)


def hashed_rows(rows: Array, image: bool) -> FieldBlock:
    """Rows (n, ...) as :func:`hashed_pixels` stores each, without a copy where they are
    C-contiguous and little-endian."""
    rows = np.asarray(rows, rows.dtype.newbyteorder("<"), order="C")
    each = rows.reshape(len(rows), -1).view(np.uint8)
    sums = np.empty(len(rows), np.uint64)
    size = each.shape[1]
    scratch = SCRATCH.take("hashed", size)
    first = each.ctypes.data
    at = np.arange(first, first + each.size, size, dtype=np.int64)
    kernels.hash_rows(at, size, scratch.ctypes.data, sums)
    channels = rows.shape[3] if image else 0
    return FieldBlock(each.reshape(-1).data, rows.shape[1:], sums, rows.dtype.name, channels)


def hashed_values(values: Array, lengths: Int64) -> FieldBlock:
    """Samples of different length: ``values`` (total, ...) of all, one after the other, of which
    each has so many."""
    values = np.asarray(values, values.dtype.newbyteorder("<"), order="C")
    data = values.reshape(-1).view(np.uint8).data
    ends = np.cumsum(lengths) * (math.prod(values.shape[1:]) * values.itemsize)
    sums = np.array(
        [xxhash.xxh3_64_intdigest(data[a:b]) for a, b in itertools.pairwise([0, *ends.tolist()])],
        np.uint64,
    )
    return FieldBlock(data, values.shape[1:], sums, values.dtype.name, 0, lengths)
