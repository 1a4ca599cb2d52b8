"""HDF5 data sets of variable length as sources: image files, or Fuel's pixels with their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DecodeError, FormatError
from ...pixels.transform import Stored
from ..base import Array, FieldIndex, SourceSpec, check_extents, default_block
from ..bytestore import ByteFile
from ..extents import Extents, ImageExtents
from ..hdf5.checks import Dataset, pipeline
from ..hdf5.chunks import ChunkGrid
from ..hdf5.file import Hdf5
from ..hdf5.filters import check_filters, decode_chunk
from ..hdf5.vlen import ELEMENT, heap_extents
from ..images import image_kind, same_size
from ..request import Hdf5Fields
from . import fuel

Int64 = npt.NDArray[np.int64]


class VlenOpener:
    """The part of the HDF5 opener (open_hdf5.py) for data sets of variable length."""

    path: str
    file: ByteFile
    h5: Hdf5
    fields: Hdf5Fields
    _count: Callable[[int], int]
    _labels: Callable[[int], Array | None]
    _grid: Callable[..., ChunkGrid]
    _spec: Callable[..., SourceSpec]
    _inside: Callable[[int, int], None]
    _found: Callable[..., FieldIndex]

    def _vlen(self, data: Dataset, base: np.dtype[Any]) -> FieldIndex:
        """Image files of variable length, or pixels if Fuel's ``shapes`` give their shapes."""
        name = self.fields.data
        if data.ndim != 1 or data.shape[0] == 0 or base.kind not in "buif" or base.itemsize > 8:
            raise FormatError(
                f"data set {name!r} of variable length is not a list of samples",
                path=self.path,
                found=f"shape {data.shape} of {base}",
                expected="shape (N,) of numbers",
            )
        file = self.file.mapped.bytes
        if not isinstance(file, np.ndarray):
            raise FormatError(
                f"data set {name!r} is of variable length, which is not read from a store",
                path=self.path,
                hint="download it, or convert it: asyncreader convert",
            )
        user_block = self.h5.file.id.get_create_plist().get_userblock()
        count = self._count(data.shape[0])
        extents = heap_extents(
            self._elements(data), data.shape[0], file, user_block, base.itemsize, self.path, name
        )
        starts, sizes = extents[0][:count], extents[1][:count]
        check_extents(starts, sizes, self.file.size, self.path)
        labels = self._labels(data.shape[0])
        shapes = fuel.shapes(self.h5, name, data.shape[0])
        if shapes is not None:
            return self._pixels(base, starts, sizes, labels, shapes[0][:count], shapes[1])
        first = int(np.argmax(sizes > 0))
        start = int(starts[first])
        if base.itemsize != 1 or image_kind(file[start : start + 12].tobytes()) is None:
            raise FormatError(
                f"data set {name!r} of variable length holds neither image files nor shapes",
                path=self.path,
                index=first,
                found=f"{base} beginning with {file[start : start + 8].tobytes().hex(' ')}",
                expected="JPEG, PNG or WebP files; or Fuel's dimension scale 'shapes'",
            )
        size = same_size(file, starts, sizes)
        stored = Stored(
            None if size is None else (*size, 3), np.dtype(np.uint8), "HWC", encoded=True
        )
        how = "encoded images of variable length"
        block = default_block(int(sizes.mean()))
        spec = self._spec(count, stored, "original", how, block)
        return self._found(spec, Extents(starts, sizes), labels)

    def _pixels(
        self,
        base: np.dtype[Any],
        starts: Int64,
        sizes: npt.NDArray[np.uint32],
        labels: Array | None,
        shapes: Int64,
        letters: str | None,
    ) -> FieldIndex:
        """Fuel's flattened pixels."""
        values, small = sizes // base.itemsize, (shapes > 0) & (shapes < 1 << 20)
        good = small.all(axis=1) & (np.where(small, shapes, 1).prod(axis=1) == values)
        if letters is None or not good.all():
            bad = int(np.argmin(good))
            raise FormatError(
                "a sample's size does not match its shape"
                if letters is not None
                else "samples of variable shape are not images",
                path=self.path,
                index=bad,
                found=f"{int(values[bad])} values of shape {tuple(shapes[bad].tolist())}",
            )
        channel = letters.index("C")
        channels = int(shapes[0, channel])
        if (shapes[:, channel] != channels).any():
            bad = int(np.argmax(shapes[:, channel] != channels))
            raise FormatError(
                "a sample's number of channels differs from the first one's",
                path=self.path,
                index=bad,
                found=int(shapes[bad, channel]),
                expected=channels,
            )
        same = bool((shapes == shapes[0]).all())
        shape = tuple(shapes[0].tolist()) if same else None
        stored = Stored(shape, base, letters, False, channels)
        block = default_block(int(sizes.mean()))
        how = "pixels of variable length"
        spec = self._spec(len(starts), stored, "raw", how, block)
        return self._found(spec, ImageExtents(starts, sizes, shapes), labels)

    def _elements(self, data: Dataset) -> Iterator[npt.NDArray[np.uint8]]:
        """The stored elements of a data set of variable length, piece by piece."""
        import h5py

        name, plist = self.fields.data, data.id.get_create_plist()
        if self.h5.file.id.get_create_plist().get_sizes() != (8, 8):
            raise FormatError(
                "only offsets of 8 bytes are supported", path=self.path, hint="h5repack it"
            )
        if data.chunks is not None:
            steps = pipeline(plist)
            if not check_filters(steps, self.path, name):
                raise FormatError(
                    f"data set {name!r} has a filter that is not read here",
                    path=self.path,
                    hint="repack it, for example with h5repack -f GZIP=4",
                )
            grid = self._grid(data, ELEMENT)
            for number in range(grid.offsets.size):
                offset = int(grid.offsets[number])
                stored = self.file.mapped.view(offset, int(grid.sizes[number]))
                mask, size = int(grid.masks[number]), grid.chunk_bytes
                try:
                    part = decode_chunk(stored, steps, mask, size, ELEMENT.itemsize)
                except DecodeError as exc:
                    exc.path, exc.index = self.path, number * grid.chunk[0]
                    raise
                inside = min(grid.chunk[0], grid.shape[0] - number * grid.chunk[0])
                yield part[: inside * ELEMENT.itemsize]
            return
        offset = data.id.get_offset()
        if plist.get_layout() != h5py.h5d.CONTIGUOUS or offset is None:
            raise FormatError(
                f"data set {name!r} of variable length is not stored contiguous or chunked",
                path=self.path,
                found=f"shape {data.shape}",
                hint="it may never have been written; else h5repack it",
            )
        self._inside(offset, data.shape[0] * ELEMENT.itemsize)
        yield self.file.mapped.view(offset, data.shape[0] * ELEMENT.itemsize)
