"""Samples that are byte ranges of one file: raw rows, image files, LMDB values.

What image files hold is told by their headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..errors import DecodeError
from ..pixels import codec
from ..pixels.rows import RowWriter, Runs, Writer
from ..pixels.specs import SampleSpec
from ..pixels.tables import NO_STARTS, RowsInMemory
from ..system.array_types import Array, Int64, UInt8
from .base import BaseSource, OpenField, Source
from .bytestore import PreadStore


@dataclass(frozen=True, eq=False)
class RunStarts:
    """Where samples of ``size`` bytes begin that follow each other in runs. ``stops``: int64, the
    byte behind each run; ``ends``: int64, the samples up to its end."""

    stops: Int64
    ends: Int64
    size: int

    def __getitem__(self, records: Int64) -> Int64:
        which = np.searchsorted(self.ends, records, side="right")
        return self.stops[which] - (self.ends[which] - records) * self.size


@dataclass(frozen=True, eq=False)
class Extents:
    """Samples that are byte ranges of one file: raw rows, a blob with offsets, LMDB values.

    ``starts`` and ``sizes``: int64 (N,) each, or ``starts`` = (first, stride) where regular and
    ``sizes`` = bytes of every sample. The opener checked all of them against the file's size.
    """

    starts: Int64 | RunStarts | tuple[int, int]
    sizes: Array | int

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        return ExtentSource(field, self)


@dataclass(frozen=True, eq=False)
class ImageExtents(Extents):
    """Byte ranges that hold raw images which are not one plain row each.

    ``shapes``: int64 (N, 3), each sample's in stored axis order; None: all of spec.shape.
    ``bgr``: the channels lie as blue, green, red, and are served as red, green, blue.
    ``tagged``: floats of 4 bytes with a byte before each but the first (Caffe's unpacked floats).
    """

    shapes: Int64 | None = None
    bgr: bool = False
    tagged: bool = False

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        return RawImages(field, self)


class ExtentSource(BaseSource):
    """Reads samples that are byte ranges of one store."""

    def __init__(self, field: OpenField, extents: Extents) -> None:
        super().__init__(field)
        # numpy's own numbers: with Python's each operation takes a microsecond longer
        starts = extents.starts
        self._starts = tuple(map(np.int64, starts)) if isinstance(starts, tuple) else starts
        self._sizes = extents.sizes
        self._rows: tuple[RowsInMemory, ...] | None = None
        self._rows_of_file = False

    def close(self) -> None:
        self._rows = None  # it may own the file
        super().close()

    def offsets(self, records: Int64) -> Int64:
        """Byte offsets of records in the store."""
        if isinstance(self._starts, tuple):
            first, stride = self._starts
            return records * stride + first
        return self._starts[records]

    def prefetch(self, records: Int64) -> None:
        self.store.will_need(self.offsets(records), self._lengths(records))

    @property
    def runs(self) -> Runs | None:
        """Where samples lie, where the next one always lies behind; None where not."""
        regular = isinstance(self._starts, tuple) and int(self._starts[1]) == self._sizes
        return (self.store, self.offsets) if regular and not self.spec.encoded else None

    def _lengths(self, records: Int64) -> Int64:
        """Bytes of stored samples, int64."""
        sizes = self._sizes
        if isinstance(sizes, int):
            return np.full(records.size, sizes)
        return sizes[records].astype(np.int64)

    def length(self, record: int) -> int:
        """Bytes of one stored sample."""
        return self._sizes if isinstance(self._sizes, int) else int(self._sizes[record])

    def in_memory(self, size: int) -> tuple[RowsInMemory, ...]:
        if self._rows is None:  # made once: each batch asks for it
            self._rows = self._rows_in_memory()
        now = self.store.address(size) is not None or self._rows_of_file
        return self._rows if now else ()

    def _rows_in_memory(self) -> tuple[RowsInMemory, ...]:
        """Where raw rows lie, or the file that they are read from one by one."""
        where, file = self.store.address(0), None
        if where is None and isinstance(self.store, PreadStore):
            file = self.store.read_singly(self.spec.row_bytes)
        if self.spec.encoded or (where is None and file is None):
            return ()
        self._rows_of_file = file is not None
        starts, first, stride = NO_STARTS, 0, 0
        if isinstance(self._starts, tuple):
            first, stride = map(int, self._starts)
        elif isinstance(self._starts, np.ndarray):
            starts = self._starts
        else:  # runs are no table
            return ()
        count, sums, owner = self.facts.count, self.checksums, (self.store, self.index)
        return (RowsInMemory(count, where or 0, starts, first, stride, sums, file, owner),)

    def read_into(self, writer: Writer) -> None:
        records = writer.job.records
        if self.facts.remote:
            self.prefetch(records)
        offsets = self.offsets(records)
        if self.spec.encoded:
            sizes = self._lengths(records)
            if not isinstance(self._sizes, int):
                self.store.will_need(offsets, sizes)
            writer.encoded(self.store, offsets, sizes)
        else:
            writer.bulk(self.store, offsets)

    def _views(self, offsets: Int64, records: Int64) -> Iterator[UInt8]:
        """The stored bytes of samples, one after the other."""
        if not isinstance(self._sizes, int):
            self.store.will_need(offsets, self._sizes[records])
        for offset, record in zip(offsets.tolist(), records.tolist(), strict=True):
            yield self.store.view(offset, self.length(record))


class RawImages(ExtentSource):
    """Reads raw images of different shapes, or with reversed channels."""

    def __init__(self, field: OpenField, extents: ImageExtents) -> None:
        super().__init__(field, extents)
        self._extents = extents

    def values(self, data: UInt8, record: int) -> Array:
        """A sample's pixels in stored axis order, from its bytes."""
        if self._extents.tagged:
            tagged = np.zeros(data.size + 1, np.uint8)
            tagged[1:] = data  # the first tag stands before the range
            data = np.ascontiguousarray(tagged.reshape(-1, 5)[:, 1:]).reshape(-1)
        stored = self.spec
        shapes = self._extents.shapes
        shape = stored.shape if shapes is None else tuple(shapes[record].tolist())
        assert shape is not None
        pixels: Array = data.view(stored.dtype).reshape(shape)
        if self._extents.bgr:
            assert stored.axes is not None
            pixels = np.flip(pixels, stored.axes.index("C"))
        # inside a value numbers may begin anywhere
        return pixels if pixels.flags.aligned else pixels.copy()

    def read_into(self, writer: Writer) -> None:
        records, in_place = writer.job.records, writer.in_place
        if in_place is not None and self._planes() > 1:
            self._copy_planes(in_place)
            return
        offsets = self.offsets(records)
        for i, data in enumerate(self._views(offsets, records)):
            writer.raw(i, self.values(data, int(records[i])), data)

    def in_memory(self, size: int) -> tuple[RowsInMemory, ...]:
        return ()  # rows may be turned about

    def _planes(self) -> int:
        """Channels, where each lies in one piece and a row is all of them in reverse."""
        stored = self.spec
        if not self._extents.bgr or stored.axes != "CHW" or stored.shape is None:
            return 0
        return stored.shape[0]

    def _copy_planes(self, writer: RowWriter) -> None:
        """Rows as they are but for the order of their channel planes: still one gather."""
        planes, job = self._planes(), writer.job
        size = writer.fill.stored.row_bytes // planes
        steps = np.arange(planes, dtype=np.int64)
        offsets = self.offsets(job.records)[:, None] + steps[::-1] * size
        rows = job.rows[:, None] * planes + steps
        self.store.gather(offsets.reshape(-1), size, writer.out.ctypes.data, rows.reshape(-1))


# -- image files -----------------------------------------------------------------------------------


#: At most so many image headers are read to tell whether all pictures have one size; and where that
#: is known, whether they have 16 bits.
_HEADERS: Final = 512
_OF_KNOWN_SIZE: Final = 16


def image_kind(head: bytes) -> str | None:
    """ "JPEG", "PNG" or "WebP" by a value's first bytes, with which no other layout begins."""
    if head[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return None


def stored_images(
    data: UInt8,
    starts: Int64,
    sizes: Array,
    shape: tuple[int, int, int] | None = None,
    channels: int = 3,
    look: bool = True,
) -> SampleSpec:
    """What image files in ``data`` hold, by their headers: every one up to 512, else 512 of them.

    Grey pictures of 16 bits, if all are, are uint16 numbers of one channel. ``look``: their shape,
    too, if all have one; else it is ``shape``. A picture of another size or depth than this says is
    a DecodeError when it is read, never a wrong pixel.
    """
    most = _HEADERS if look else _OF_KNOWN_SIZE
    which = np.unique(np.linspace(0, starts.size - 1, most).astype(np.int64))
    found: set[tuple[int, int]] = set()
    deep: set[bool] = set()
    for start, size in zip(starts[which].tolist(), sizes[which].tolist(), strict=True):
        try:
            header = codec.read_header(data[start : start + size])
        except DecodeError:
            continue  # reading the sample raises the error
        found.add((header.height, header.width))
        deep.add(header.deep == "grey")
        if len(found) > 1 and False in deep:
            break
    if deep == {True}:
        channels, shape = 1, shape and (*shape[:2], 1)
    if look and len(found) == 1:
        shape = (*found.pop(), channels)
    dtype = np.dtype(np.uint16 if deep == {True} else np.uint8)
    return SampleSpec(shape, dtype, "HWC", "original", channels, values=deep == {True})
