"""An open HDF5 set, its data set and its labels; and how samples are stored in it: contiguous, in
chunks, or of different length.

Reading samples never calls h5py or HDF5 (a global lock guards each call), with one exception that
warns: filters that only HDF5 itself can decode.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import FormatError, ParamsError, SourceNotFoundError
from ...formats import packed as fmt
from ...pixels.numbers import is_number, members_of
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Int64
from ...system.late import h5py
from ...system.text import times
from ..arrays import (
    TEXT_LABELS,
    ArrayVolumes,
    FileRows,
    FlatVolumes,
    Rows,
    StoredVolumes,
    cut_volumes,
    of_volumes,
)
from ..base import FieldIndex, SetFacts, Storage, copied_if_small, default_block, row_size
from ..bytestore import ByteFile, OpenFile
from ..extents import Extents, ImageExtents, RunStarts, image_kind, stored_images
from ..fields import SetIndex
from ..hdf5.checks import check_bomb, check_inside
from ..hdf5.chunk_cache import ChunkGrid
from ..hdf5.chunks import Chunks, ChunkVolumes
from ..hdf5.file import Hdf5, ThroughLibrary, translated
from ..hdf5.filters import BUILT_IN_ONLY, LIBRARY, check_filters, in_words, remedy
from ..hdf5.physical import Meaning, as_physical, meaning_of, physical_field
from ..hdf5.stored import Stored
from ..labels import numbered
from ..ragged import candidates, find_offsets, is_table, ragged_field
from ..request import NoSamplesError, Request, check_labels, stored_samples
from . import fuel

#: Labels, and the names of their classes; None where there are none.
Found: TypeAlias = tuple[Array | None, tuple[str, ...] | None]
#: 1-based axes (number, height, width, channel).
Axes: TypeAlias = tuple[int, int, int, int]

#: Names of the root group of which groups are looked at to recognise a file.
_FEW: Final = 16
_WITHOUT: Final = "labels_field=None serves the data without labels"
#: Fewer labels than rows: the rows may be values of samples of different length.
_RAGGED: Final = (
    f"{_WITHOUT}; where each sample is several of these rows, offsets_field names the dataset with "
    "their starts or lengths"
)
_TEXT_LABELS: Final = f"{TEXT_LABELS}; {_WITHOUT}"


def _unknown(shape: tuple[int, ...]) -> Axes | None:
    return None


@dataclass(frozen=True)
class Hdf5Set:
    """An open HDF5 set, which is handed from check to check until it is indexed.

    A layout fills in the rest: ``layout``: its name; ``unlabelled``: samples without labels come
    last, and are left out; ``axes``: of data of a shape, unless the caller names them.
    """

    file: ByteFile
    h5: Hdf5
    fields: Request
    layout: str = ""
    unlabelled: bool = False
    axes: Callable[[tuple[int, ...]], Axes | None] = _unknown

    @property
    def path(self) -> str:
        """The file's name for messages."""
        return self.file.path

    # -- for layouts -----------------------------------------------------------------------

    @cached_property
    def unnamed(self) -> bool:
        """Whether the file has no ``data``, and the caller does not say what to read instead."""
        return self.fields.data == fmt.DATA and fmt.DATA not in self.h5.names

    @property
    def labels_unnamed(self) -> bool:
        """Whether the file has no ``labels``, and the caller does not say what to read instead."""
        fields = self.fields
        named = fields.labels != fmt.LABELS or fields.labels_required
        return not named and fmt.LABELS not in self.h5.names

    def samples(self, name: str) -> Stored | None:
        """A data set of the root group that is in this file and has rows, or None."""
        item = self.h5.member(name)
        return item if item is not None and item.ndim else None

    def groups(self) -> list[str]:
        """The groups of the root group; none of a file that has many names."""
        h5 = self.h5
        inside = h5.members(h5.reach("")) if len(h5.names) <= _FEW else ()
        named = (name for name, item in inside if isinstance(item, h5py.h5g.GroupID))
        return sorted(name.decode("utf-8", "surrogateescape") for name in named)

    def named(self, layout: str, fields: Request) -> Hdf5Set:
        """The same set, recognised: ``layout`` is its name, "" for none. What the caller did not
        name and ``fields`` do is said after it."""
        before = self.fields
        if (fields.data, fields.labels) != (before.data, before.labels):
            names = fields.data
            if fields.labels is not None and (fields.labels_path or fields.labels in self.h5.names):
                names += f", labels from {fields.labels}"
            layout = f"{layout} ({names})" if layout else names
        return replace(self, layout=layout, fields=fields)

    # -- finding things --------------------------------------------------------------------

    def dataset(self, name: str, records: bool = False) -> Stored:
        """A data set by name, reached by links inside the file only and stored in it; ``records``:
        its rows may be structured."""
        found = self.h5.find(name, records)
        if found is None:
            raise self.h5.no_field(name)
        found.check_samples()
        return found

    def rows(self, name: str) -> Stored:
        """The data set of a field, or the one that it is a member of."""
        return self.dataset(self.h5.member_of(name)[0], records=True)

    def table(self, name: str) -> Array:
        """All of a small data set, or one member of its structured rows."""
        held, member = self.h5.member_of(name)
        return self.dataset(held, member is not None).values(member=member)

    def count(self, rows: int) -> int:
        """The number of samples served out of ``rows``."""
        labels = self.fields.labels
        if not self.unlabelled or labels is None or self.h5.reach(labels) is None:
            return rows
        found = self.dataset(labels)
        if found.ndim == 0 or not found.size:
            _check_labels(found, rows, labels)
        return min(rows, found.shape[0])

    def rows_in(self, data: Stored, axis: int = 0) -> int:
        """The number of rows in a data set: of episodes and of time, where both are axes."""
        return math.prod(data.shape[axis : axis + self.fields.lead])

    def labels(self, rows: int, spec: SampleSpec) -> Found:
        """The labels that are asked for, of ``rows`` rows of which ``spec`` are served, and of text
        the sorted classes; None where there are none."""
        fields, path = self.fields, self.fields.labels_path
        if fields.labels is None:
            return None, None
        if path is None:
            labels, classes = self._labels_inside(fields.labels, self.count(rows))
        else:
            labels, classes = _labels_elsewhere(path, fields.labels, rows)
        if labels is not None:
            check_labels(labels.shape, spec, fields, self.path, in_file=path is None)
        return labels, classes

    def _labels_inside(self, asked: str, count: int) -> Found:
        name, member = self.h5.member_of(asked)
        stored = self.h5.find(name, member is not None)
        if stored is None:
            if self.fields.labels_required:
                raise self.h5.no_field(asked)
            return None, None
        stored.check_samples()
        shape, along = stored.shape, min(self.fields.along, stored.ndim - 1)
        if member is None and not self.fields.lead and shape[:1] != (1,):
            return stored.values(_TEXT_LABELS)[None], None
        # MATLAB writes those of samples along the last axis as one row of as many columns
        if member is None and along > 0 and shape[along] == count != shape[0]:
            return np.moveaxis(stored.values(_TEXT_LABELS), along, 0), None
        _check_labels(stored, count, asked)
        texts = stored.texts() if member is None else None
        return (stored.values(_TEXT_LABELS, member), None) if texts is None else numbered(texts)

    # -- what was found --------------------------------------------------------------------

    def index_field(self, field: FieldIndex, rows: int, how: str) -> SetIndex:
        """The index of the ``rows`` samples of a field, with labels and all that goes with them.
        ``how`` they are stored, in words."""
        (labels, classes), count = self.labels(rows, field.spec), self.count(rows)
        how = f"{self.layout}, {how}" if self.layout else how
        facts = SetFacts.of(self.file, "HDF5", how, count, classes=classes)
        fields = {self.fields.data: replace(field, where=self.file.where)}
        if not self.layout.startswith("Fuel"):
            return SetIndex(facts, fields, labels)
        own = None if labels is None or self.fields.labels_path else self.fields.labels
        splits = fuel.read_splits(self.h5, self.fields.data, own, count)
        return SetIndex(facts, fields, labels, splits)


def _labels_elsewhere(path: str, name: str, count: int) -> Found:
    """Labels from another file (as in PCam), in memory."""
    if not os.path.isfile(path):  # opening a pipe would block
        raise SourceNotFoundError("no such labels file", path=path)
    file = OpenFile(path, "mmap")
    file.close()  # its mapping stays
    with translated(path), Hdf5(file) as h5:
        asked = Request(labels=name, labels_required=True)
        labels, classes = Hdf5Set(file, h5, asked)._labels_inside(name, count)
        return np.array(labels), classes


def _check_labels(labels: Stored, count: int, name: str) -> None:
    """FormatError unless there are ``count`` labels."""
    if labels.ndim == 0 or labels.shape[0] != count or 0 in labels.shape:
        raise FormatError(
            f"{name!r} has another number of rows than the data",
            found=f"shape {labels.shape}",
            expected=f"{count} rows",
            hint=_RAGGED if labels.ndim and 0 < labels.shape[0] < count else _WITHOUT,
        )


# -- samples ---------------------------------------------------------------------------------------


#: Bytes of the shortest image file, and rows that are looked at to see whether they are such.
_SHORTEST: Final = 64
_ROWS_LOOKED_AT: Final = 16


def index_data(found: Hdf5Set) -> SetIndex:
    """The index of the data set that a set's ``fields`` name."""
    name, member = found.h5.member_of(found.fields.data)
    data = found.dataset(name, records=True)
    meaning = meaning_of(found.h5, data, name, found.fields)
    base = None if data.compound else h5py.check_vlen_dtype(data.dtype)
    if base is not None:
        found.fields.check_rows("variable length")
        return _vlen(found, data, np.dtype(base), meaning)
    offsets = offsets_of(found, name, data.shape)
    if offsets is None:
        index = index_rows(found, data, member)
        return index if meaning is None else as_physical(index, meaning, found.fields)
    found.fields.check_rows("samples of different length")
    asked = replace(found.fields, labels=None, places=(found.fields.data,))
    values = index_rows(replace(found, fields=asked, layout=""), data, member, values=True)
    if meaning is not None:
        values = as_physical(values, meaning, asked)
    table, starts = offsets
    facts = values.facts
    return index_ragged(found, values.first, facts.count, starts, facts.layout, table)


# -- pixels ----------------------------------------------------------------------------------------


def check_samples_of(found: Hdf5Set, data: Stored, values: bool = False) -> None:
    """NoSamplesError unless a data set has some; ``values``: rows are values of samples, which may
    all be empty."""
    if data.ndim == 0 or 0 in data.shape[values:]:
        raise NoSamplesError(
            f"dataset {found.fields.data!r} has no samples", found=f"shape {data.shape}"
        )


def index_rows(
    found: Hdf5Set, data: Stored, member: str | None = None, values: bool = False
) -> SetIndex:
    """The index of rows of numbers. ``member``: of structured rows, the one that is the field;
    ``values``: see :func:`check_samples_of`."""
    dtype = data.values_dtype()
    check_samples_of(found, data, values)
    if found.fields.cut is not None:
        return index_volumes(found, data, dtype)
    axis, stored = _samples(found, data, dtype, member)
    if not data.shape[0]:
        empty = FieldIndex(stored, Rows(np.empty(data.shape, stored.dtype)))
        return found.index_field(empty, 0, "contiguous")
    field, how = stored_rows(found, data, axis, stored)
    field = replace(field, spec=_image_rows(found, data, stored) or stored)
    return found.index_field(field, found.rows_in(data, axis), how)


def stored_rows(
    found: Hdf5Set, data: Stored, axis: int, stored: SampleSpec, compare: bool = True
) -> tuple[FieldIndex, str]:
    """Where the samples along an axis lie, and how, in words. ``compare``: as of Stored.grid."""
    if data.chunks is None:
        size = data.size // found.rows_in(data, axis) * stored.dtype.itemsize
        storage = _rows(found, data, axis, size, stored.dtype)
        return FieldIndex(stored, storage, block=default_block(size)), "contiguous"
    return _chunked(found, data, axis, stored, compare)


def _samples(
    found: Hdf5Set, data: Stored, dtype: np.dtype[Any], member: str | None
) -> tuple[int, SampleSpec]:
    """(axis of the sample number, what a sample is)."""
    lead = found.fields.lead
    if lead > data.ndim:
        raise FormatError(
            f"dataset {found.fields.data!r} has no axis of time after that of episodes",
            found=f"shape {data.shape}",
            expected="(episode, time, ...)",
        )
    shape = (math.prod(data.shape[:lead]), *data.shape[lead:])
    known = None if found.fields.along else found.axes(shape)
    asked = replace(found.fields, dims=found.fields.dims or known)
    axis, stored = stored_samples(shape, dtype, asked, found.path)
    if axis and lead != 1:
        raise ParamsError("the axes of episodes and of time are the first")
    return axis, replace(stored, members=member)


def _image_rows(found: Hdf5Set, data: Stored, raw: SampleSpec) -> SampleSpec | None:
    """What a sample is where rows of uint8 are image files with zeros after them, as ACT and Minari
    write them: some rows are looked at, and all of them begin as such a file; None where not."""
    axes = found.fields.lead + 1
    plain = data.ndim == axes > 1 and not found.fields.along and raw.dtype == np.uint8
    codes = {step.code for step in data.filters}
    if not plain or data.shape[-1] < _SHORTEST or not codes <= LIBRARY - BUILT_IN_ONLY.keys():
        return None
    count = math.prod(data.shape[:-1])
    rows = []
    for number in np.unique(np.linspace(0, count - 1, _ROWS_LOOKED_AT).astype(np.int64)).tolist():
        row = data.data[tuple(int(n) for n in np.unravel_index(number, data.shape[:-1]))]
        if image_kind(row[:12].tobytes()) is None:
            return None
        rows.append(row)
    sizes = np.array([row.size for row in rows], np.int64)
    return stored_images(np.concatenate(rows), np.cumsum(sizes) - sizes, sizes)


def _rows(found: Hdf5Set, data: Stored, axis: int, size: int, dtype: np.dtype[Any]) -> Storage:
    """The samples of a contiguous data set, of ``size`` bytes each."""
    held = _held(found, data, dtype)
    if isinstance(held, int):
        return FileRows(held, data.shape, dtype, axis) if axis else Extents((held, size), size)
    if found.fields.lead != 1:
        held = held.reshape(-1, *held.shape[found.fields.lead :])
    return Rows(np.moveaxis(held, axis, 0))


def _held(found: Hdf5Set, data: Stored, dtype: np.dtype[Any]) -> Array | int:
    """The numbers of a data set inside its header, or where in the file those of another begin."""
    if data.plist.get_layout() == h5py.h5d.COMPACT:
        odd = [one.name for one in members_of(dtype) if not is_number(one.dtype)]
        if odd:  # it would be followed to where it leads
            raise FormatError(
                f"dataset {found.fields.data!r} is stored inside its header",
                found=f"member {odd[0]!r}, which is no number",
                hint="write it again: h5repack -l CONTI",
            )
        # at most 64 KiB, inside the object header; as the file's own type: nothing is converted
        held = np.empty(data.shape, dtype)
        data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, held, data.id.get_type())
        return held
    offset = data.offset
    if offset is None:
        raise FormatError(
            f"dataset {found.fields.data!r} declares samples but stores none",
            found=f"shape {data.shape} without storage",
            hint="it was created and never written: convert it again",
        )
    check_inside(found.file, offset, data.size * dtype.itemsize)
    return offset


def _chunked(
    found: Hdf5Set, data: Stored, axis: int, stored: SampleSpec, compare: bool
) -> tuple[FieldIndex, str]:
    dtype = None if stored.dtype.names is None else stored.dtype
    grid, lead = data.grid(dtype, compare), found.fields.lead
    if not lead:  # all of it is one sample
        grid, lead = replace(grid, shape=(1, *grid.shape), chunk=(1, *grid.chunk)), 1
    names = in_words(grid.filters)
    storage: Storage
    whole = grid.chunk[1:] == grid.shape[1:] and grid.fill is None
    if not names and axis == 0 and lead == 1 and whole:
        size = row_size(grid.shape[1:], stored.dtype)
        records = np.arange(grid.shape[0], dtype=np.int64)
        starts = grid.offsets[records // grid.chunk[0]] + records % grid.chunk[0] * size
        storage = Extents(starts, size)
    else:
        storage = _chunks(found, grid, axis, lead)
    chunk = math.prod(grid.chunk[axis : axis + lead])
    how = f"chunks of {'x'.join(str(n) for n in grid.chunk)}" + (f", {names}" if names else "")
    return FieldIndex(stored, storage, block=chunk, chunk=chunk, compression=names or None), how


def _chunks(found: Hdf5Set, grid: ChunkGrid, axis: int, lead: int = 1) -> Chunks:
    """The chunks of the data set that is asked for."""
    name = found.fields.data
    if check_filters(grid.filters, name):
        return Chunks(grid, axis, lead=lead)
    warnings.warn(
        f"{found.path}: {in_words(grid.filters)} can only be decoded by the HDF5 library, one call "
        f"at a time: this will be slow; {remedy(grid.filters)}",
        stacklevel=2,
    )
    name, _ = found.h5.member_of(name)
    return Chunks(grid, axis, ThroughLibrary(name), lead)


# -- volumes ---------------------------------------------------------------------------------------


def index_volumes(found: Hdf5Set, data: Stored, dtype: np.dtype[Any]) -> SetIndex:
    """The index of volumes, of which patches are samples."""
    shape = tuple(data.shape)
    stored, spec = cut_volumes(shape, dtype, found.fields, found.path, found.axes)
    found = _without_volumes(found, stored)
    filters = ""
    storage: Storage
    if data.chunks is None:
        how, chunk = "contiguous", None
        held = _held(found, data, dtype)
        storage = FlatVolumes(held, stored) if isinstance(held, int) else ArrayVolumes(held, stored)
    else:
        grid, number = data.grid(compare=True), stored.volumes.sample_axis
        stored = stored.with_chunks(grid.chunk)
        filters = in_words(grid.filters)
        how = f"chunks of {times(grid.chunk)}" + (f" + {filters}" if filters else "")
        chunk = 1 if number is None else grid.chunk[number]
        storage = ChunkVolumes(grid, stored, _chunks(found, grid, 0).library)
    field = FieldIndex(spec, storage, block=chunk or 1, chunk=chunk, compression=filters or None)
    how = f"volumes of {times(shape)}, {how}"
    return of_volumes(found.index_field(field, stored.volumes.count, how), stored)


def _without_volumes(found: Hdf5Set, stored: StoredVolumes) -> Hdf5Set:
    """Without labels that are volumes of the same extent, where the caller did not name them: as a
    field they are cut with the data. ParamsError where the caller did."""
    fields = found.fields
    if fields.labels is None or fields.labels_path is not None:
        return found
    name, member = found.h5.member_of(fields.labels)
    data = None if member is not None else found.h5.find(name)
    extent = tuple(stored.volumes.extents[0].tolist())
    # of several volumes also the axis that numbers them
    axes = len(extent) + (stored.volumes.sample_axis is not None)
    if data is None or data.ndim < axes or tuple(data.shape)[-len(extent) :] != extent:
        return found
    if not fields.labels_required:
        layout = found.layout.replace(f", labels from {fields.labels}", "")
        return replace(found, layout=layout, fields=replace(fields, labels=None))
    raise ParamsError(
        f"labels {name!r} are volumes, which come whole as labels",
        found=f"shape {tuple(data.shape)}",
        hint="name them as a field, which is cut at the same place: "
        f"data_field=[{fields.data!r}, {name!r}], labels_field=None",
    )


def number_storage(found: Hdf5Set, name: str) -> tuple[Storage, np.dtype[Any]]:
    """Where the numbers of a data set of one axis lie, each a sample, and their dtype."""
    found = replace(found, fields=replace(found.fields, data=name, lead=1))
    data = found.dataset(name)
    dtype = data.values_dtype()
    if data.ndim != 1 or dtype.names is not None:
        raise FormatError(
            f"dataset {name!r} is not numbers of one axis",
            found=f"shape {data.shape}, {data.dtype}",
        )
    if not data.size:
        return Rows(np.empty(0, dtype)), dtype
    if data.chunks is None:
        return _rows(found, data, 0, dtype.itemsize, dtype), dtype
    return _chunks(found, data.grid(compare=True), 0), dtype


# -- variable length -------------------------------------------------------------------------------


def _vlen(found: Hdf5Set, data: Stored, base: np.dtype[Any], meaning: Meaning | None) -> SetIndex:
    """Image files of variable length, or pixels if Fuel's ``shapes`` give their shapes."""
    name = found.fields.data
    if data.ndim != 1 or data.shape[0] == 0 or base.kind not in "buif" or base.itemsize > 8:
        raise FormatError(
            f"dataset {name!r} of variable length is not a list of samples",
            found=f"shape {data.shape} of {base}",
            expected="shape (N,) of numbers",
        )
    count = found.count(data.shape[0])
    file, starts, sizes = data.extents(base.itemsize)
    starts, sizes = starts[:count], sizes[:count]
    shapes = fuel.shapes(found.h5, name, data.shape[0])
    block = default_block(int(sizes.mean()))
    if shapes is not None and (shapes[1] is not None or not found.fields.limited):
        images = ImageExtents(starts, sizes, shapes[0][:count])
        stored = _pixels(found, base, sizes, shapes[0][:count], shapes[1])
        field = FieldIndex(stored, images, block=block)
        return found.index_field(field, data.shape[0], "pixels of variable length")
    first = int(np.argmax(sizes > 0))
    start = int(starts[first])
    if base.itemsize != 1 or image_kind(file[start : start + 12].tobytes()) is None:
        if base != np.uint8 or found.fields.limited:
            return _numbers(found, data, base, starts, sizes, block, meaning)
        raise FormatError(
            f"dataset {name!r} of variable length holds neither image files nor shapes",
            index=first,
            found=f"{base} beginning with {file[start : start + 8].tobytes().hex(' ')}",
            expected="JPEG, PNG or WebP files; or Fuel's dimension scale 'shapes'",
            hint="max_length=N serves the bytes as numbers",
        )
    stored = stored_images(file, starts, sizes)
    field = FieldIndex(stored, Extents(starts, sizes), block=block)
    return found.index_field(field, data.shape[0], "encoded images of variable length")


def _numbers(
    found: Hdf5Set,
    data: Stored,
    base: np.dtype[Any],
    starts: Int64,
    sizes: npt.NDArray[np.uint32],
    block: int,
    meaning: Meaning | None,
) -> SetIndex:
    """Numbers of variable length: those of each sample lie in one piece."""
    data.check_bits(data.id.get_type().get_super(), base)
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes // base.itemsize, out=offsets[1:])
    runs = Extents(RunStarts(starts + sizes, offsets[1:], base.itemsize), base.itemsize)
    mean = max(1, int(offsets[-1]) // sizes.size)
    values = FieldIndex(SampleSpec((), base, None), runs, found.file.where, block=block * mean)
    if meaning is not None:
        values = physical_field(values, meaning, found.fields)
    return index_ragged(found, values, int(offsets[-1]), offsets, "numbers of variable length")


def _pixels(
    found: Hdf5Set,
    base: np.dtype[Any],
    sizes: npt.NDArray[np.uint32],
    shapes: Int64,
    letters: str | None,
) -> SampleSpec:
    """Fuel's flattened pixels, whose axes are ``letters``."""
    values, small = sizes // base.itemsize, (shapes > 0) & (shapes < 1 << 20)
    good = small.all(axis=1) & (np.where(small, shapes, 1).prod(axis=1) == values)
    if letters is None or not good.all():
        bad = int(np.argmin(good))
        raise FormatError(
            "a sample's size does not match its shape"
            if letters is not None
            else "samples of variable shape are not images",
            index=bad,
            found=f"{int(values[bad])} values of shape {tuple(shapes[bad].tolist())}",
            hint=None if letters is not None else "max_length=N serves their numbers in one row",
        )
    channel = letters.index("C")
    channels = int(shapes[0, channel])
    if (shapes[:, channel] != channels).any():
        bad = int(np.argmax(shapes[:, channel] != channels))
        raise FormatError(
            "a sample's number of channels differs from the first one's",
            index=bad,
            found=int(shapes[bad, channel]),
            expected=channels,
        )
    same = bool((shapes == shapes[0]).all())
    shape = tuple(shapes[0].tolist()) if same else None
    return SampleSpec(shape, base, letters, channels=channels)


# -- samples of different length -------------------------------------------------------------------


#: Bytes of an offset in memory.
_OFFSET_BYTES: Final = 8


def offsets_of(found: Hdf5Set, name: str, shape: tuple[int, ...]) -> tuple[str, Array] | None:
    """The name of the table that says where the samples of the data set ``name`` begin among its
    rows, and what it says, (N + 1,); None where each row is a sample. FormatError where the table
    that should say it does not."""
    fields = found.fields
    episodes = fields.windowed or fields.episodes is not None
    if not shape or fields.lead > 1 or (fields.own_offsets is None and episodes):
        return None

    def table_of(table: str, named: bool) -> Array | None:
        if not named and not _may_be_table(found, table):
            return None
        data = found.dataset(table)
        if not is_table(tuple(data.shape), data.dtype):
            raise FormatError(
                f"{table!r} does not say where samples begin",
                found=f"shape {data.shape}, {data.dtype}",
                expected="whole numbers (N + 1,), or (N,) lengths",
            )
        # lengths of small numbers take more memory as offsets
        check_bomb(data.shape[0] * _OFFSET_BYTES, found.file.size, table)
        return copied_if_small(data.values())

    group, _, own = name.rpartition("/")
    usual = {
        f"{group}/{one}".strip("/"): lengths
        for one, lengths in candidates(own).items()
        if group or one in found.h5.names
    }
    return find_offsets(name, shape[0], fields.own_offsets, usual, table_of)


def _may_be_table(found: Hdf5Set, table: str) -> bool:
    """Whether a data set that was not asked for is whole numbers."""
    try:
        data = found.h5.reach(table)
    except FormatError:  # a link out of the file
        return False
    if not isinstance(data, h5py.h5d.DatasetID) or data.get_type().get_class() != h5py.h5t.INTEGER:
        return False
    return len(data.shape) == 1 and data.shape[0] > 0


def index_ragged(
    found: Hdf5Set,
    values: FieldIndex,
    count: int,
    offsets: Array,
    how: str,
    table: str | None = None,
) -> SetIndex:
    """The index of the samples whose ``count`` values are those of ``values``; ``table``: see
    :func:`ragged_field`."""
    field = ragged_field(values, count, offsets, table)
    return found.index_field(field, offsets.size - 1, f"{how}, rows of different length")
