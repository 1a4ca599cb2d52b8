"""HDF5 sets as sources: h5py reads the metadata once, then samples are byte ranges of the file.

Reading samples never calls h5py or HDF5 (a global lock guards each call), with one exception that
warns: filters that only HDF5 itself can decode.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...errors import FormatError, SourceNotFoundError
from ...formats import packed as fmt
from ...pixels.transform import Stored
from ..arrays import TEXT_LABELS, FileRows, Rows
from ..base import (
    Array,
    FieldIndex,
    Int64,
    Source,
    SourceSpec,
    Storage,
    UInt64,
    check_extents,
    default_block,
    kept,
    open_field,
    packed_rows,
    row_size,
)
from ..bytestore import ByteFile, OpenFile
from ..extents import Extents
from ..hdf5.checks import Dataset, chunk_grid, compare_chunks, odd_bits, pipeline
from ..hdf5.chunks import ChunkGrid, Chunks
from ..hdf5.file import Hdf5, TablePaths, ThroughLibrary, read_meta, translated
from ..hdf5.filters import NAMES, check_filters
from ..request import Hdf5Fields, image_axes, stored_rows
from . import fuel
from .hdf5_names import Known, recognise
from .open_vlen import VlenOpener


def open_hdf5(path: str, fields: Hdf5Fields, *, io: str = "auto") -> Source:
    """Open one HDF5 file's data set. Errors: SourceNotFoundError, FormatError, ParamsError."""
    return open_field(OpenFile(path, io), lambda file: index_hdf5(file, fields))


def index_hdf5(file: ByteFile, fields: Hdf5Fields) -> FieldIndex:
    """The index of one data set of an open file."""
    with translated(file.path), Hdf5(file, checked=True) as h5:
        file.check_same()
        return _Opener(file, h5, fields).index()


class _Opener(VlenOpener):
    """Opens one file: finds the data set, checks it, and chooses how it is read."""

    def __init__(self, file: ByteFile, h5: Hdf5, fields: Hdf5Fields) -> None:
        self.path = file.path
        self.file = file
        self.h5 = h5
        self.meta = read_meta(h5)
        # a set packed by asyncreader describes itself; others may use well-known names
        self.known = Known("", fields) if self.meta is not None else recognise(h5, fields)
        self.fields = self.known.fields
        self.classes = None if self.meta is None else self.meta.classes
        self.others = () if self.meta is None else self.meta.fields
        #: the other field to open, in a set packed by asyncreader; None for the data
        self.other_field: str | None = None

    def index(self) -> FieldIndex:
        """The index of the data set that ``fields`` name."""
        import h5py

        data = self.dataset(self.fields.data)
        name = self.fields.data.strip("/")
        if self.meta is not None and name != fmt.DATA:
            self.meta, self.other_field = self.meta.field(name), name
        if self.meta is not None and self.meta.encoding != "raw":
            return self._blob(data, self.meta)
        base = h5py.check_vlen_dtype(data.dtype)
        return self._raw(data) if base is None else self._vlen(data, np.dtype(base))

    # -- finding things --------------------------------------------------------------------

    def dataset(self, name: str) -> Dataset:
        """A data set by name, reached by links inside the file only and stored in it.

        A missing one is a ParamsError if the caller named it, and a FormatError in a set packed by
        asyncreader, which must have it."""
        meta = self.meta
        own = (fmt.DATA, *(field.name for field in self.others))
        named = name.strip("/") not in (*own, fmt.LABELS) and name in (
            self.fields.data,
            self.fields.labels,
        )
        if meta is not None and not named and self.h5.reach(name) is None:
            raise FormatError(f"its {name} are missing", path=self.path, hint=fmt.REPACK)
        return self.h5.dataset(name)

    def _labels(self, count: int) -> Array | None:
        fields = self.fields
        if fields.labels is None:
            return None
        if fields.labels_path is not None:
            return read_labels(fields.labels_path, fields.labels, count)
        packed = self.meta is not None and fields.labels.strip("/") == fmt.LABELS
        if packed and self.meta is not None and self.meta.label_kind == "none":
            return None
        needed = fields.labels_required or packed
        if not needed and self.h5.reach(fields.labels) is None:
            return None
        labels = self._table(fields.labels, _TEXT_LABELS)[: self._count(count)]
        _check_labels(labels, self._count(count), self.path, fields.labels)
        self.classes = self.classes or self._class_names(labels)
        if packed:
            assert self.meta is not None
            if labels.dtype != self.meta.label_dtype or labels.ndim != 2:
                raise FormatError(
                    "its labels are not what its description says",
                    path=self.path,
                    found=f"shape {labels.shape}, {labels.dtype}",
                    expected=f"({self.meta.count}, L), {self.meta.label_dtype}",
                    hint=fmt.REPACK,
                )
            labels = kept(labels)
            fmt.check_digest(fmt.LABELS, labels, self.meta, self.path)
        return labels

    def _count(self, rows: int) -> int:
        """The number of samples served out of ``rows``: Fuel's unlabelled ones come last."""
        labels = self.fields.labels
        if not self.known.fuel or labels is None or self.h5.reach(labels) is None:
            return rows
        return min(rows, int(self.dataset(labels).shape[0]))

    def _class_names(self, labels: Array) -> tuple[str, ...] | None:
        """Class names of a known layout, if they fit the labels."""
        if self.known.classes is None or labels.dtype.kind not in "iu":
            return None
        table = self.dataset(self.known.classes)
        if table.dtype.kind != "S" or table.ndim != 1 or table.shape[0] > 1 << 16:
            return None
        stored = self.h5.read(table, self.known.classes)
        names = tuple(bytes(name).decode("utf-8", "backslashreplace") for name in stored)
        return names if int(labels.min()) >= 0 and int(labels.max()) < len(names) else None

    def _table(self, name: str, hint: str | None = None) -> Array:
        """A small data set: mapped if it is contiguous in the file, else read by h5py."""
        dataset = self.dataset(name)
        _check_numeric(dataset, name, self.path, hint)
        offset = dataset.id.get_offset()
        size = dataset.size * dataset.dtype.itemsize
        if (
            offset is not None
            and dataset.chunks is None
            and dataset.dtype.isnative
            and dataset.dtype != np.bool_
            and odd_bits(dataset) is None
        ):
            if offset + size > self.file.size:
                raise FormatError(f"{name} lies outside the file", path=self.path, hint=_AGAIN)
            if offset % dataset.dtype.itemsize == 0:
                table: Array = self.file.table(offset, size).view(dataset.dtype)
                return table.reshape(dataset.shape)
        read: Array = self.h5.read(dataset, name)
        return read.astype(read.dtype.newbyteorder("="), copy=False)

    def _checksums(self, count: int) -> UInt64 | None:
        if self.meta is None:
            return None
        table = self._table(fmt.table_of(self.other_field, fmt.CHECKSUMS))
        if table.shape != (count,) or table.dtype != np.uint64:
            raise FormatError("its checksums have the wrong shape", path=self.path, hint=_AGAIN)
        fmt.check_digest(fmt.CHECKSUMS, table, self.meta, self.path)
        return table

    def _paths(self) -> str | None:
        name = fmt.table_of(self.other_field, fmt.PATHS)
        there = self.meta is not None and self.h5.reach(name) is not None
        return name if there else None

    # -- encoded images, packed by asyncreader ---------------------------------------------

    def _blob(self, data: Dataset, meta: fmt.Meta) -> FieldIndex:
        offset = data.id.get_offset()
        if data.ndim != 1 or data.dtype != np.uint8 or offset is None:
            raise FormatError("its data are not the blob it declares", path=self.path, hint=_AGAIN)
        offsets = self._table(fmt.table_of(self.other_field, fmt.OFFSETS))
        if offsets.shape != (meta.count + 1,) or offsets.dtype != np.int64:
            raise FormatError("its offsets have the wrong shape", path=self.path, hint=_AGAIN)
        fmt.check_digest(fmt.OFFSETS, offsets, meta, self.path)
        starts = offsets[:-1]
        sizes = np.diff(offsets)
        if int(offsets[-1]) != data.shape[0]:
            raise FormatError(
                "its offsets do not end where its data do",
                path=self.path,
                found=int(offsets[-1]),
                expected=data.shape[0],
                hint=_AGAIN,
            )
        check_extents(starts, sizes, data.shape[0], self.path)
        self._inside(offset, data.shape[0])
        spec = self._spec(
            meta.count,
            packed_rows(meta, self.other_field is not None),
            meta.encoding,
            "asyncreader, encoded images in one blob",
            default_block(data.shape[0] // meta.count),
        )
        small = sizes.max(initial=0) < 1 << 32
        extents = Extents(starts + offset, sizes.astype(np.uint32) if small else sizes)
        return self._found(spec, extents, self._labels(meta.count), self._checksums(meta.count))

    # -- pixels ----------------------------------------------------------------------------

    def _raw(self, data: Dataset) -> FieldIndex:
        name = self.fields.data
        _check_numeric(data, name, self.path)
        odd = odd_bits(data)
        if odd is not None:
            raise FormatError(
                f"data set {name!r} stores its numbers in an unusual bit layout",
                path=self.path,
                found=odd,
                expected="whole integers, or floats of IEEE 754",
                hint="write it again with a usual dtype, for example through h5py",
            )
        if data.ndim == 0 or data.shape[0] == 0 or 0 in data.shape:
            raise FormatError(
                f"data set {name!r} has no samples", path=self.path, found=f"shape {data.shape}"
            )
        dims = self.fields.dims
        if dims is None and self.known.fuel:
            dims = fuel.axis_order(data.shape)
        if dims is None and self.fields.listed and self.meta is None:
            dims = (1, 3, 4, 2)
        axis, axes = image_axes(data.shape, dims, self.meta, self.path, self.fields.image_size)
        count = data.shape[axis]
        if self.meta is not None and count != self.meta.count:
            raise FormatError(
                "the number of samples is not what was packed",
                path=self.path,
                found=count,
                expected=self.meta.count,
                hint=fmt.REPACK,
            )
        if self.meta is not None and (data.dtype, data.shape[1:]) != (
            np.dtype(self.meta.dtype),
            self.meta.shape,
        ):
            raise FormatError(
                "its data are not what its description says",
                path=self.path,
                found=f"samples of shape {data.shape[1:]}, {data.dtype}",
                expected=f"{self.meta.shape}, {self.meta.dtype}",
                hint=fmt.REPACK,
            )
        shape = tuple(n for i, n in enumerate(data.shape) if i != axis)
        stored = stored_rows(shape, data.dtype, axes)
        labels, checksums = self._labels(count), self._checksums(count)
        if data.chunks is None:
            return self._contiguous(data, axis, stored, labels, checksums)
        return self._chunked(data, axis, stored, labels, checksums)

    def _contiguous(
        self,
        data: Dataset,
        axis: int,
        stored: Stored,
        labels: Array | None,
        checksums: UInt64 | None,
    ) -> FieldIndex:
        import h5py

        assert stored.shape is not None
        size = row_size(stored.shape, stored.dtype)
        spec = self._spec(
            self._count(data.shape[axis]),
            stored,
            "raw",
            "contiguous" if self.meta is None else "asyncreader, contiguous pixels",
            default_block(size),
        )
        if data.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
            held = np.ascontiguousarray(data[()])  # at most 64 KiB, inside the object header
            return self._found(spec, Rows(np.moveaxis(held, axis, 0)), labels, checksums)
        offset = data.id.get_offset()
        if offset is None:
            raise FormatError(
                f"data set {self.fields.data!r} declares samples but stores none",
                path=self.path,
                found=f"shape {data.shape} without storage",
                hint="it was created and never written: convert it again",
            )
        self._inside(offset, data.size * data.dtype.itemsize)
        if axis == 0:
            return self._found(spec, Extents((offset, size), size), labels, checksums)
        rows = FileRows(offset, data.shape, data.dtype, axis)
        return self._found(spec, rows, labels, checksums)

    def _chunked(
        self,
        data: Dataset,
        axis: int,
        stored: Stored,
        labels: Array | None,
        checksums: UInt64 | None,
    ) -> FieldIndex:
        assert stored.shape is not None
        plist = data.id.get_create_plist()
        steps = pipeline(plist)
        packed = check_filters(steps, self.path, self.fields.data)
        grid = self._grid(data)
        names = [NAMES[step.code] for step in steps]
        spec = self._spec(
            self._count(data.shape[axis]),
            stored,
            "raw",
            f"chunks of {'x'.join(str(n) for n in grid.chunk)}"
            + (f", {' + '.join(names)}" if names else ""),
            grid.chunk[axis],
            chunk=grid.chunk[axis],
            compression=" + ".join(names) or None,
        )
        whole = axis == 0 and grid.chunk[1:] == grid.shape[1:]
        if not steps and whole:
            size = row_size(stored.shape, stored.dtype)
            records = np.arange(data.shape[0], dtype=np.int64)
            starts = grid.offsets[records // grid.chunk[0]] + records % grid.chunk[0] * size
            return self._found(spec, Extents(starts, size), labels, checksums)
        if packed:
            return self._found(spec, Chunks(grid, axis), labels, checksums)
        warnings.warn(
            f"{self.path}: {' + '.join(names)} can only be decoded by the HDF5 library, one call "
            "at a time: this will be slow; repack it, for example with h5repack -f GZIP=4",
            stacklevel=2,
        )
        through = ThroughLibrary(self.fields.data)
        return self._found(spec, Chunks(grid, axis, through), labels, checksums)

    def _grid(self, data: Dataset, dtype: np.dtype[Any] | None = None) -> ChunkGrid:
        name = self.fields.data
        grid = chunk_grid(data, name, self.path, self.file.size, dtype)
        if self.meta is None:  # sets packed by asyncreader have checksums
            view = self.file.mapped.view
            compare_chunks(data, grid, view, name, self.path, decoded=dtype is None)
        return grid

    # -- finishing -------------------------------------------------------------------------

    def _inside(self, offset: int, size: int) -> None:
        if offset + size > self.file.size:
            raise FormatError(
                "the file is truncated",
                path=self.path,
                found=f"{self.file.size} bytes",
                expected=f"at least {offset + size}",
                hint="copy or convert it again",
            )

    def _spec(
        self,
        count: int,
        stored: Stored,
        encoding: str,
        layout: str,
        block: int,
        chunk: int | None = None,
        compression: str | None = None,
    ) -> SourceSpec:
        return SourceSpec(
            path=self.path,
            container="HDF5",
            layout=self.known.said(layout),
            count=count,
            stored=stored,
            encoding=encoding,
            block=block,
            meta=self.meta,
            classes=self.classes,
            checksums=self.meta is not None,
            io=self.file.io,
            size_on_disk=self.file.size,
            chunk=chunk,
            compression=compression,
            fields=self.others,
        )

    def _found(
        self,
        spec: SourceSpec,
        storage: Storage,
        labels: Array | None,
        checksums: UInt64 | None = None,
    ) -> FieldIndex:
        splits: Mapping[str, slice | Int64] = {}
        if self.meta is None:
            fields = self.fields
            named = None if labels is None or fields.labels_path else fields.labels
            splits = fuel.read_splits(self.h5, fields.data, named, spec.count)
        names = TablePaths(self._paths(), spec.count)
        return FieldIndex(spec, storage, self.file.where, labels, checksums, names, splits)


_AGAIN: Final = "copy or convert it again"
_WITHOUT: Final = "labels_field=None serves the data without labels"
_TEXT_LABELS: Final = f"{TEXT_LABELS}; {_WITHOUT}"


def read_labels(path: str, name: str, count: int) -> Array:
    """Labels from another file (as in PCam), in memory."""
    if not os.path.isfile(path):  # opening a pipe would block
        raise SourceNotFoundError("no such labels file", path=path)
    file = OpenFile(path, "mmap")
    file.close()  # its mapping stays
    with translated(path), Hdf5(file, checked=True) as h5:
        dataset = h5.dataset(name)
        _check_numeric(dataset, name, path, _TEXT_LABELS)
        _check_labels(dataset, count, path, name)
        labels = h5.read(dataset, name)
    native: Array = labels.astype(labels.dtype.newbyteorder("="), copy=False)
    return native


def _check_labels(labels: Array | Dataset, count: int, path: str, name: str) -> None:
    """``labels``: an array, or a data set before it is read."""
    if labels.ndim == 0 or labels.shape[0] != count or 0 in labels.shape:
        raise FormatError(
            f"{name!r} has another number of rows than the data",
            path=path,
            found=f"shape {labels.shape}",
            expected=f"{count} rows",
            hint=_WITHOUT,
        )


def _check_numeric(dataset: Dataset, name: str, path: str, hint: str | None = None) -> None:
    if dataset.dtype.kind not in "buif" or dataset.dtype.itemsize > 8:
        raise FormatError(
            f"data set {name!r} does not hold plain numbers",
            path=path,
            found=f"dtype {dataset.dtype}",
            expected="integers or floats of at most 64 bits",
            hint=hint,
        )
