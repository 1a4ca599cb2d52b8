"""Arrays as sources: numpy, memmap, or anything that is indexed by number (zarr, say)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import ParamsError
from ..pixels.transform import Fill
from ..stats import Meter
from .base import (
    Array,
    BaseSource,
    ExtentSource,
    RowError,
    RowPlan,
    SourceSpec,
    UInt64,
    default_block,
    row_size,
)
from .bytestore import MemoryStore
from .request import image_axes, stored_rows

#: What to do with labels that are names.
TEXT_LABELS: Final = (
    "give names as numbers: classes, labels = np.unique(names, return_inverse=True)"
)


class ArraySource(BaseSource):
    """Samples ``array[i]`` of anything with ``shape``, ``dtype`` and integer indexing."""

    def __init__(
        self,
        spec: SourceSpec,
        array: Any,
        labels: Array | None,
        checksums: UInt64 | None = None,
    ) -> None:
        self.spec = spec
        self.labels = labels
        self.checksums = checksums
        self._array = array

    def sample_bytes(self, index: int) -> bytes:
        data = np.ascontiguousarray(self._array[index]).tobytes()
        if self.checksums is not None:
            error = self.checked(data, index)
            if error is not None:
                raise error
        return data

    def read_into(
        self, plan: RowPlan, fill: Fill, out: Array, meter: Meter
    ) -> tuple[RowError, ...]:
        errors: list[RowError] = []
        crops, flips = fill.draws(plan.keys)
        shape = self.spec.stored.shape
        assert shape is not None
        # ascending: storage behind the array reads forwards
        for i in np.argsort(plan.records, kind="stable").tolist():
            record, row = int(plan.records[i]), int(plan.rows[i])
            sample = np.asarray(self._array[record]).reshape(shape)
            if self.checksums is not None and plan.check is not None and plan.check[i]:
                sample = sample.copy(order="C")  # what is hashed is what is served
                bad = self.checked(sample.reshape(-1).view(np.uint8).data, record)
                if bad is not None:
                    errors.append(RowError(row, bad))
                    continue
            if fill.mode == "copy":
                np.copyto(out[row, ...], sample)
                continue
            try:
                fill.put(
                    sample,
                    None if crops is None else crops[i],
                    flips is not None and bool(flips[i]),
                    out[row, ...],
                )
            except ParamsError as exc:
                exc.index = record
                raise
        return tuple(errors)


def open_arrays(
    data: Any,
    labels: Any,
    dims: tuple[int, int, int, int] | None,
    image_size: tuple[int | None, int | None] | None = None,
) -> ExtentSource | ArraySource:
    """A source over ``data`` (N, ...) and ``labels`` (N, ...) or None.

    ``image_size``: see request.py.
    """
    shape = tuple(int(n) for n in data.shape)
    dtype = np.dtype(data.dtype)
    if not shape or 0 in shape:
        raise ParamsError("data has no samples", found=f"shape {shape}")
    if dtype.kind not in "buif":
        raise ParamsError("data must hold plain numbers", found=f"dtype {dtype}")
    axis, axes = image_axes(shape, dims, None, "data", image_size)
    rows = tuple(n for i, n in enumerate(shape) if i != axis)
    table = None if labels is None else label_array(labels, shape[axis])
    plain = isinstance(data, np.ndarray)
    spec = SourceSpec(
        path="data",
        container="arrays",
        layout=type(data).__name__,
        count=shape[axis],
        stored=stored_rows(rows, dtype, axes),
        encoding="raw",
        block=default_block(row_size(rows, dtype)),
        meta=None,
        classes=None,
        checksums=False,
        io="mmap",
        size_on_disk=int(getattr(data, "nbytes", 0)),
    )
    if plain and axis == 0 and data.flags.c_contiguous:
        size = row_size(rows, dtype)
        source = ExtentSource(spec, MemoryStore(), (data.ctypes.data, size), size, table, None)
        source.keeps = data
        return source
    if axis != 0:
        if not plain:
            raise ParamsError("num_dim other than 1 needs a numpy array", found=type(data).__name__)
        data = np.moveaxis(data, axis, 0)
    return ArraySource(spec, data, table)


def label_array(labels: Any, count: int) -> npt.NDArray[Any]:
    """Labels as a native-endian array of ``count`` rows."""
    table: npt.NDArray[Any] = np.asarray(labels)
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
