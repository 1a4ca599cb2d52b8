"""Arrays as sources: numpy, memmap, or anything that is indexed by number (zarr, say)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, ParamsError
from ..pixels.numbers import flat_dtype
from ..pixels.rows import Writer
from ..system.array_types import Array
from ..system.checks import FILL_MASKED
from .base import BaseSource, FieldIndex, OpenField, SetFacts, Source, default_block, row_size
from .extents import Extents, ExtentSource
from .fields import SetIndex
from .patches import ArrayVolumes, StoredVolumes, cut_volumes, of_volumes
from .request import Request, check_labels, stored_samples

#: What to do with labels that are names.
TEXT_LABELS: Final = (
    "give names as numbers: classes, labels = np.unique(names, return_inverse=True)"
)


class Indexed(Protocol):
    """What can be an array of samples: numpy's, zarr's, or any that is indexed by number."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The first number is the number of samples."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """The dtype of plain numbers."""

    def __getitem__(self, index: int, /) -> npt.ArrayLike:
        """One sample."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples ``array[i]``. Of a file: a small array that was read when the set was opened."""

    array: Indexed

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        data: Any = self.array
        plain = isinstance(data, np.ndarray) and data.flags.c_contiguous
        # numpy pickles an array with gaps as one of the machine's byte order, whatever its own is
        stored = field.index.spec.dtype
        if field.file is None and plain and data.dtype.isnative == stored.isnative:
            size = row_size(data.shape[1:], data.dtype)
            return ExtentSource(field, Extents((data.ctypes.data, size), size))
        return ArraySource(field, data)


@dataclass(frozen=True)
class FileRows:
    """A contiguous array of a file whose samples lie along ``axis``."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        size = row_size(self.shape, self.dtype)
        flat = field.own_file.mapped.view(self.offset, size).view(self.dtype)
        return ArraySource(field, np.moveaxis(flat.reshape(self.shape), self.axis, 0))


class ArraySource(BaseSource):
    """Samples ``array[i]`` of anything with ``shape``, ``dtype`` and integer indexing."""

    def __init__(self, field: OpenField, array: Indexed) -> None:
        super().__init__(field)
        self._array = array
        self._shape = tuple(array.shape[1:])

    def _row(self, record: int) -> Array:
        row = self._array[record]
        if np.ma.is_masked(row):  # what netCDF4 gives, for one
            raise ParamsError(
                "a row has masked values, and would be served without its mask",
                index=record,
                hint=FILL_MASKED,
            )
        row, stored = np.asarray(row), self.spec
        same = row.dtype == stored.dtype  # of most: each row comes by here
        same = same or row.dtype.newbyteorder("=") == stored.dtype.newbyteorder("=")
        if row.shape != self._shape or not (same or stored.dtype.names):
            raise ParamsError(
                "a row of an array is another than its shape and dtype say",
                index=record,
                found=f"{row.dtype} of shape {row.shape}",
                expected=f"{stored.dtype} of shape {self._shape}",
            )
        # a single number, taken out of an array, is one of the machine's byte order; an image
        # without an axis of channels is stored as one of one channel
        assert stored.shape is not None
        row = row.reshape(stored.shape)
        return row if stored.dtype.names else row.astype(stored.dtype, copy=False)

    def read_into(self, writer: Writer) -> None:
        records = writer.job.records
        # ascending: storage behind the array reads forwards
        for i in np.argsort(records, kind="stable").tolist():
            writer.raw(i, self._row(int(records[i])))


def index_arrays(data: Any, labels: Any, asked: Request, member: str | None = None) -> SetIndex:
    """The index of ``data`` (N, ...) and ``labels`` (N, ...) or None. ``member``: of structured
    rows, the one that is the field."""
    shape = tuple(int(n) for n in data.shape)
    dtype = np.dtype(data.dtype)
    if not shape or 0 in shape:
        raise ParamsError("data has no samples", found=f"shape {shape}")
    dtype = flat(dtype, ParamsError, "data")
    if dtype.kind not in "buif" and (dtype.names is None or not isinstance(data, np.ndarray)):
        needed = "plain numbers" if dtype.names is None else "structured rows in a numpy array"
        raise ParamsError(f"data must hold {needed}", found=f"{type(data).__name__}, dtype {dtype}")
    if not asked.lead and isinstance(data, np.ndarray):
        data, shape = data[None], (1, *shape)
    elif not asked.lead:
        raise ParamsError("sample_axis=None needs a numpy array", found=type(data).__name__)
    if asked.lead > 1:
        if not isinstance(data, np.ndarray) or len(shape) < asked.lead:
            raise ParamsError(
                'episodes="axis" needs numpy arrays (episode, time, ...)',
                found=f"{type(data).__name__} of shape {shape}",
            )
        data = data.reshape(-1, *shape[asked.lead :])
        shape = data.shape
    volumes: StoredVolumes | None = None
    if asked.cut is not None:
        volumes, stored = cut_volumes(shape, dtype, asked, "data")
        axis, count = 0, volumes.volumes.count
        _check_slices(data, shape)
    else:
        axis, stored = stored_samples(shape, dtype, asked, "data")
        count = shape[axis]
    if member is not None and dtype.names is None:
        raise ParamsError(f"no field {asked.data!r}: its data have no members", found=f"{dtype}")
    stored = replace(stored, members=member)
    rows = tuple(n for i, n in enumerate(shape) if i != axis)
    table = None if labels is None else label_array(labels, count)
    if table is not None:
        check_labels(table.shape, stored, asked, "data", in_file=False)
    facts = SetFacts(
        path="data",
        container="arrays",
        layout=type(data).__name__,
        count=count,
        io="mmap",
        size_on_disk=int(getattr(data, "nbytes", 0)),
    )
    if volumes is not None:
        field = FieldIndex(stored, ArrayVolumes(data, volumes))
        return of_volumes(SetIndex(facts, {asked.data: field}, table), volumes)
    if axis != 0:
        if not isinstance(data, np.ndarray):
            raise ParamsError(
                "samples along another axis than the first need a numpy array",
                found=type(data).__name__,
            )
        data = np.moveaxis(data, axis, 0)
    field = FieldIndex(stored, Rows(data), block=default_block(row_size(rows, dtype)))
    return SetIndex(facts, {asked.data: field}, table)


def _check_slices(data: Any, shape: tuple[int, ...]) -> None:
    """ParamsError where an array gives no slices along all of its axes."""
    if isinstance(data, np.ndarray):
        return
    try:
        found = np.shape(data[tuple(slice(0, 1) for _ in shape)])
    except (TypeError, IndexError, ValueError, NotImplementedError) as exc:
        found = exc
    if found != (1,) * len(shape):
        raise ParamsError(
            "patches need an array that gives slices along all axes: array[0:4, 8:12]",
            found=f"{type(data).__name__}: {found}",
        )


def flat(
    dtype: np.dtype[Any], error: type[ParamsError] | type[FormatError], path: str
) -> np.dtype[Any]:
    """The flat dtype of structured rows, and any other as it is; ``error`` where rows of that dtype
    are not read."""
    if dtype.names is None:
        return dtype
    try:
        if dtype.hasobject:
            raise ValueError("objects")
        return flat_dtype(dtype)
    except ValueError as exc:
        raise error("these structured rows are not read", path=path, found=str(exc)) from exc


def label_array(labels: Any, count: int) -> Array:
    """Labels as a native-endian array of ``count`` rows."""
    given = np.asanyarray(labels)
    if np.ma.is_masked(given):
        raise ParamsError(
            "labels have masked values, and would be served without their mask", hint=FILL_MASKED
        )
    table: Array = np.asarray(given)
    if table.ndim == 0 or table.shape[0] != count:
        raise ParamsError(
            "labels has another number of rows than data",
            found=f"shape {table.shape}",
            expected=f"{count} rows",
        )
    if table.dtype.kind not in "buif":
        raise ParamsError(
            "labels must hold plain numbers", found=f"dtype {table.dtype}", hint=TEXT_LABELS
        )
    return table.astype(table.dtype.newbyteorder("="), copy=False)
