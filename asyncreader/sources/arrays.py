"""Arrays as sources: rows of numpy's, memmaps, or anything that is indexed by number (zarr, say).

And patches of volumes, wherever these are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, ParamsError, located
from ..params.reader import Source as SourceParams
from ..pixels.numbers import flat_dtype
from ..pixels.rows import E, Writer
from ..pixels.specs import SampleSpec
from ..sampling.patches import Patches, Volumes, no_volumes
from ..system.array_types import Array, Bools, Int64
from ..system.checks import FILL_MASKED
from ..system.memory import SCRATCH, address_of
from .base import BaseSource, FieldIndex, OpenField, SetFacts, Source, default_block, row_size
from .bytestore import MemoryStore
from .extents import Extents, ExtentSource
from .fields import SetIndex
from .request import Cut, Request, check_labels, stored_samples

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
    with located(path="data"):
        dtype = flat(dtype, ParamsError)
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
    with located(path="data"):
        if asked.cut is not None:
            volumes, stored = cut_volumes(shape, dtype, asked, "data")
            axis, count = 0, volumes.volumes.count
        else:
            axis, stored = stored_samples(shape, dtype, asked, "data")
            count = shape[axis]
    if volumes is not None:
        _check_slices(data, shape)
    if member is not None and dtype.names is None:
        raise ParamsError(f"no field {asked.data!r}: its data have no members", found=f"{dtype}")
    stored = replace(stored, members=member)
    rows = tuple(n for i, n in enumerate(shape) if i != axis)
    table = None if labels is None else label_array(labels, count)
    if table is not None:
        with located(path="data"):
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


def flat(dtype: np.dtype[Any], error: type[ParamsError] | type[FormatError]) -> np.dtype[Any]:
    """The flat dtype of structured rows, and any other as it is; ``error`` where rows of that dtype
    are not read."""
    if dtype.names is None:
        return dtype
    try:
        if dtype.hasobject:
            raise ValueError("objects")
        return flat_dtype(dtype)
    except ValueError as exc:
        raise error("these structured rows are not read", found=str(exc)) from exc


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


# -- patches of volumes ----------------------------------------------------------------------------


#: Patches of so many bytes are put together before they are cast, cropped or normalised.
TOGETHER: Final = 16 << 20
#: Runs of bytes whose places are worked out together.
_RUNS: Final = 1 << 18

_MEMORY: Final = MemoryStore()


@dataclass(frozen=True, eq=False)
class StoredVolumes:
    """An array of ``shape`` and ``dtype`` that holds the ``volumes``."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    volumes: Volumes

    @classmethod
    def of(cls, cut: Cut, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StoredVolumes:
        """The volumes in an array. ParamsError where they cannot be cut so."""
        rank, number = len(shape), cut.sample_axis
        axes = cut.axes_of(rank)
        good = all(0 <= axis < rank for axis in axes) and number not in axes
        if not good or list(axes) != sorted(set(axes)) or (number is not None and number >= rank):
            raise ParamsError(
                "the data do not have the axes of a patch",
                found=f"shape {shape}, patch {cut.patch} of axes {cut.axes or axes}, volumes along "
                f"{'no axis' if number is None else f'axis {number}'}",
                expected="different axes in ascending order, and another one for the volumes",
                hint="sample_axis=None if the dataset is one volume; patch_axes names the axes "
                "that are cut",
            )
        extent = tuple(shape[axis] for axis in axes)
        if any(n > of for n, of in zip(cut.patch, extent, strict=True)):
            raise ParamsError(
                "the patch is larger than the volume",
                found=f"patch {cut.patch}",
                expected=f"at most {extent}, axes {axes} of the shape {shape}",
                hint="patch_axes names the axes that are cut, where they are not the last ones",
            )
        if 0 in shape:
            raise FormatError("there are no volumes", found=f"shape {shape}")
        if math.prod(shape) >= 1 << 62:
            raise ParamsError("the volumes have too many places", found=f"{shape}")
        count = 1 if number is None else shape[number]
        volumes = Volumes(
            cut.patch, axes, number, np.array([extent], np.int64), np.array([count], np.int64)
        )
        return cls(shape, dtype, volumes)

    @cached_property
    def box(self) -> tuple[int, ...]:
        """The extent of a patch on each axis, 1 on that of the volumes."""
        sizes = list(self.shape)
        for axis, size in zip(self.volumes.axes, self.volumes.patch, strict=True):
            sizes[axis] = size
        if self.volumes.sample_axis is not None:
            sizes[self.volumes.sample_axis] = 1
        return tuple(sizes)

    @cached_property
    def sample(self) -> tuple[int, ...]:
        """The shape of a patch as it is stored."""
        number = self.volumes.sample_axis
        return tuple(size for axis, size in enumerate(self.box) if axis != number)

    def starts(self, records: Int64) -> Int64:
        """Where patches begin on each axis: int64 (n, rank)."""
        found = np.zeros((records.size, len(self.shape)), np.int64)
        volumes, corners = self.volumes.of(records)
        found[:, self.volumes.axes] = corners
        if self.volumes.sample_axis is not None:
            found[:, self.volumes.sample_axis] = volumes
        return found

    def with_chunks(self, chunk: tuple[int, ...]) -> StoredVolumes:
        """The same, of an array in chunks."""
        sides = tuple(chunk[axis] for axis in self.volumes.axes)
        return replace(self, volumes=replace(self.volumes, chunk=sides))


def cut_volumes(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    asked: Request,
    path: str,
    axes: Callable[[tuple[int, ...]], tuple[int, int, int, int] | None] | None = None,
) -> tuple[StoredVolumes, SampleSpec]:
    """The volumes of an array, and what a patch of them is: what is left of a row decides whether
    it is a picture. Unless the caller names the axes, three that are cut are none, and a last axis
    that is cut is no channels. ``axes``: those of pictures of a shape, as a layout knows them.
    ParamsError where they cannot be cut as it is asked."""
    assert asked.cut is not None
    if dtype.names is not None:
        raise ParamsError("structured rows have no patches", found=f"{dtype}")
    stored = StoredVolumes.of(asked.cut, shape, dtype)
    left = (stored.volumes.count, *stored.sample)
    if asked.dims is None and axes is not None:
        asked = replace(asked, dims=axes(left))
    if asked.dims is None and len(stored.volumes.axes) > 2:
        return stored, SampleSpec(stored.sample, dtype, None)
    number, spec = stored_samples(left, dtype, asked, path)
    if number:
        raise ParamsError("num_dim of patches is 1: sample_axis numbers the volumes")
    last = stored.volumes.axes[-1] == len(shape) - 1
    if asked.dims is None and last and spec.axes == "HWC" and not spec.flat:
        return stored, SampleSpec(stored.sample, dtype, None)
    return stored, spec


def of_volumes(index: SetIndex, stored: StoredVolumes) -> SetIndex:
    """The index of a field whose samples are patches. Checksums of whole samples say nothing of
    them."""
    fields = {
        name: replace(one, checksums=None, checked="none") for name, one in index.fields.items()
    }
    return replace(index, fields=fields, rule=Patches(stored.volumes))


def patches_of(p: SourceParams, index: SetIndex) -> Patches:
    """The patches that the parameters ask for; ParamsError where the set has no volumes."""
    patch, shape = p.patch, p.patch.shape
    assert shape is not None
    if not isinstance(index.rule, Patches):
        raise no_volumes(index.facts.path, index.facts.layout)
    step = shape if patch.step is None else patch.step
    step = step if isinstance(step, tuple) else (step,) * len(shape)
    return replace(index.rule, at=patch.at, step=step)


# -- sources -------------------------------------------------------------------------------------


class PatchSource(BaseSource):
    """Reads patches; what copies them is in the derived classes. A record is a place."""

    def __init__(self, field: OpenField, stored: StoredVolumes) -> None:
        super().__init__(replace(field, facts=replace(field.facts, count=stored.volumes.places)))
        self._stored = stored

    def holding(self, record: int) -> AbstractContextManager[tuple[BaseSource, int]]:
        return nullcontext((self, self._volume(record)))

    def located(self, error: E, record: int) -> E:
        super().located(error, self._volume(record)).index = record
        return error

    def _volume(self, record: int) -> int:
        return int(self._stored.volumes.of(np.array([record]))[0][0])

    def read_into(self, writer: Writer) -> None:
        straight, size = writer.in_place, self.spec.row_bytes
        starts = self._stored.starts(writer.job.records)
        every = np.arange(len(starts))
        if straight is not None:
            out = straight.out.reshape(-1, *self._stored.sample)
            self._copy(writer, every, starts, out, writer.job.rows)
            return
        every, together = self._order(starts), max(1, TOGETHER // size)
        for first in range(0, every.size, together):
            which = every[first : first + together]
            out = SCRATCH.array("patches", (which.size, *self._stored.sample), self.spec.dtype)
            lines = np.arange(which.size)
            good = self._copy(writer, which, starts[which], out, lines)
            if writer.stopped:
                return
            writer.bulk(_MEMORY, address_of(out) + lines[good] * size, which[good])

    def _order(self, starts: Int64) -> Int64:
        """The order in which patches that begin at ``starts`` are read."""
        return np.arange(len(starts))

    def _copy(self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64) -> Bools:
        """Copy the patches ``which`` of the job, which begin at ``starts``, into ``rows`` of
        ``out``. Which of them are good."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class FlatVolumes:
    """Volumes that lie in one piece at ``offset`` of a file, or at that address of memory."""

    offset: int
    stored: StoredVolumes
    in_memory: bool = False

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        return FlatPatches(field, self)


@dataclass(frozen=True, eq=False)
class ArrayVolumes:
    """Volumes in an array: numpy's, or any that gives slices of numpy's."""

    array: Any
    stored: StoredVolumes

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        data = self.array
        plain = isinstance(data, np.ndarray) and data.flags.c_contiguous
        # numpy pickles an array with gaps as one of the machine's byte order, whatever its own is
        if plain and data.dtype.isnative == field.index.spec.dtype.isnative:
            flat = FlatVolumes(data.ctypes.data, self.stored, in_memory=True)
            return FlatPatches(field, flat)  # the index holds the array
        return ArrayPatches(field, self.stored)


class FlatPatches(PatchSource):
    """Copies patches out of volumes that lie in one piece: runs along the last axes."""

    def __init__(self, field: OpenField, volumes: FlatVolumes) -> None:
        stored = volumes.stored
        super().__init__(field, stored)
        if volumes.in_memory:
            self.store = _MEMORY
        shape, box, item = stored.shape, stored.box, stored.dtype.itemsize
        behind = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self._offset = volumes.offset
        self._strides = np.array(behind, np.int64) * item
        #: the first axis of those that a run goes along: the ones behind it are whole
        axis = len(shape) - 1
        while axis > 0 and box[axis] == shape[axis]:
            axis -= 1
        self._run_bytes = box[axis] * behind[axis] * item
        runs = np.zeros(1, np.int64)
        for size, stride in zip(box[:axis], self._strides.tolist(), strict=False):
            runs = (runs[:, None] + np.arange(size) * stride).reshape(-1)
        #: where the runs of a patch begin, in bytes from its corner
        self._runs = runs

    def prefetch(self, records: Int64) -> None:
        for _, offsets in self._offsets(self._stored.starts(records)):
            self.store.will_need(offsets, np.full(offsets.size, self._run_bytes))

    def _offsets(self, starts: Int64) -> Iterator[tuple[slice, Int64]]:
        """Some of the patches, and where all of their runs begin, a bounded number at a time."""
        begin, runs = self._offset + starts @ self._strides, self._runs
        together = len(begin) if self.store.remote else max(1, _RUNS // runs.size)
        for first in range(0, len(begin), max(1, together)):
            some = slice(first, first + together)
            yield some, (begin[some, None] + runs).reshape(-1)

    def _copy(self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64) -> Bools:
        lines = np.arange(self._runs.size)
        for some, offsets in self._offsets(starts):
            if writer.stopped:
                break
            at = (rows[some, None] * lines.size + lines).reshape(-1)
            self.store.gather(offsets, self._run_bytes, address_of(out), at)
        return np.ones(which.size, np.bool_)


class ArrayPatches(PatchSource):
    """Copies patches out of an array that gives slices."""

    def _copy(self, writer: Writer, which: Int64, starts: Int64, out: Array, rows: Int64) -> Bools:
        storage = self.index.storage
        assert isinstance(storage, ArrayVolumes)
        box = self._stored.box
        for start, row in zip(starts.tolist(), rows.tolist(), strict=True):
            if writer.stopped:
                break
            where = tuple(slice(at, at + size) for at, size in zip(start, box, strict=True))
            values = storage.array[where]
            if np.ma.is_masked(values):
                raise ParamsError(
                    "a patch has masked values, and would be served without its mask",
                    hint=FILL_MASKED,
                )
            out[row] = np.asarray(values).reshape(self._stored.sample)
        return np.ones(which.size, np.bool_)
