"""Patches of stored volumes: where they lie in an array, and sources that copy them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..errors import FormatError, ParamsError
from ..params.reader import Source as SourceParams
from ..pixels.rows import E, Writer
from ..pixels.specs import SampleSpec
from ..sampling.patches import Patches, Volumes, no_volumes
from ..system.array_types import Array, Bools, Int64
from ..system.checks import FILL_MASKED
from ..system.memory import SCRATCH, address_of
from .base import BaseSource, OpenField, Source
from .bytestore import MemoryStore
from .fields import SetIndex
from .request import Cut, Request, stored_samples

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
    def of(cls, cut: Cut, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> StoredVolumes:
        """The volumes in an array. ParamsError where they cannot be cut so."""
        rank, number = len(shape), cut.sample_axis
        axes = cut.axes_of(rank)
        good = all(0 <= axis < rank for axis in axes) and number not in axes
        if not good or list(axes) != sorted(set(axes)) or (number is not None and number >= rank):
            raise ParamsError(
                "the data do not have the axes of a patch",
                path=path,
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
                path=path,
                found=f"patch {cut.patch}",
                expected=f"at most {extent}, axes {axes} of the shape {shape}",
                hint="patch_axes names the axes that are cut, where they are not the last ones",
            )
        if 0 in shape:
            raise FormatError("there are no volumes", path=path, found=f"shape {shape}")
        if math.prod(shape) >= 1 << 62:
            raise ParamsError("the volumes have too many places", path=path, found=f"{shape}")
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
        raise ParamsError("structured rows have no patches", path=path, found=f"{dtype}")
    stored = StoredVolumes.of(asked.cut, shape, dtype, path)
    left = (stored.volumes.count, *stored.sample)
    if asked.dims is None and axes is not None:
        asked = replace(asked, dims=axes(left))
    if asked.dims is None and len(stored.volumes.axes) > 2:
        return stored, SampleSpec(stored.sample, dtype, None)
    number, spec = stored_samples(left, dtype, asked, path)
    if number:
        raise ParamsError("num_dim of patches is 1: sample_axis numbers the volumes", path=path)
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
