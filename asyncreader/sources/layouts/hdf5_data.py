"""How the samples of an HDF5 data set are stored: contiguous, in chunks, or of different length.

Reading samples never calls h5py or HDF5 (a global lock guards each call), with one exception that
warns: filters that only HDF5 itself can decode.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import FormatError, ParamsError
from ...pixels.numbers import is_number, members_of
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Int64
from ...system.late import h5py
from ...system.text import times
from ..arrays import FileRows, Rows
from ..base import FieldIndex, Storage, copied_if_small, default_block, row_size
from ..extents import Extents, ImageExtents, RunStarts, image_kind, stored_images
from ..fields import SetIndex
from ..hdf5.boxes import ChunkVolumes
from ..hdf5.checks import check_bomb, check_inside
from ..hdf5.chunk_cache import ChunkGrid
from ..hdf5.chunks import Chunks
from ..hdf5.file import ThroughLibrary
from ..hdf5.filters import BUILT_IN_ONLY, LIBRARY, check_filters, in_words, remedy
from ..hdf5.physical import Meaning, as_physical, meaning_of, physical_field
from ..hdf5.stored import Stored
from ..patches import ArrayVolumes, FlatVolumes, StoredVolumes, cut_volumes, of_volumes
from ..ragged import candidates, fitting, is_table, ragged_field
from ..request import NoSamplesError, stored_samples
from . import fuel
from .hdf5_set import Hdf5Set

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
        found.fields.check_rows("variable length", found.path)
        return _vlen(found, data, np.dtype(base), meaning)
    offsets = offsets_of(found, name, data.shape)
    if offsets is None:
        index = index_rows(found, data, member)
        return index if meaning is None else as_physical(index, meaning, found.fields)
    found.fields.check_rows("samples of different length", found.path)
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
            f"dataset {found.fields.data!r} has no samples",
            path=found.path,
            found=f"shape {data.shape}",
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
        raise found.refuse(
            f"dataset {found.fields.data!r} has no axis of time after that of episodes",
            found=f"shape {data.shape}",
            expected="(episode, time, ...)",
        )
    shape = (math.prod(data.shape[:lead]), *data.shape[lead:])
    known = None if found.fields.along else found.axes(shape)
    asked = replace(found.fields, dims=found.fields.dims or known)
    axis, stored = stored_samples(shape, dtype, asked, found.path)
    if axis and lead != 1:
        raise ParamsError("the axes of episodes and of time are the first", path=found.path)
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
    if data.plist.get_layout() == h5py.h5d.COMPACT:
        odd = [one.name for one in members_of(dtype) if not is_number(one.dtype)]
        if odd:  # it would be followed to where it leads
            raise found.refuse(
                f"dataset {found.fields.data!r} is stored inside its header",
                found=f"member {odd[0]!r}, which is no number",
                hint="write it again: h5repack -l CONTI",
            )
        # at most 64 KiB, inside the object header; as the file's own type: nothing is converted
        held = np.empty(data.shape, dtype)
        data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, held, data.id.get_type())
        if found.fields.lead != 1:
            held = held.reshape(-1, *held.shape[found.fields.lead :])
        return Rows(np.moveaxis(held, axis, 0))
    offset = data.offset
    if offset is None:
        raise found.refuse(
            f"dataset {found.fields.data!r} declares samples but stores none",
            found=f"shape {data.shape} without storage",
            hint="it was created and never written: convert it again",
        )
    check_inside(found.file, offset, data.size * dtype.itemsize)
    if axis == 0:
        return Extents((offset, size), size)
    return FileRows(offset, data.shape, dtype, axis)


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
    if check_filters(grid.filters, found.path, name):
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
        rows = _rows(found, data, 0, data.size // shape[0] * dtype.itemsize, dtype)
        if isinstance(rows, Rows):
            storage = ArrayVolumes(rows.array, stored)
        else:
            assert isinstance(rows, Extents)
            assert isinstance(rows.starts, tuple)
            storage = FlatVolumes(rows.starts[0], stored)
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
        path=found.path,
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
        raise found.refuse(
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
        raise found.refuse(
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
        raise found.refuse(
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
        raise found.refuse(
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
        raise found.refuse(
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
    asked = fields.own_offsets
    episodes = fields.windowed or fields.episodes is not None
    if asked is False or (asked is None and episodes):
        return None
    if not shape or fields.lead > 1:
        return None
    if asked is not None:
        offsets = _fitting(found, asked, name, shape[0], None, True)
        return None if offsets is None else (asked, offsets)
    group, _, own = name.rpartition("/")
    for last, lengths in candidates(own).items():
        table = f"{group}/{last}" if group else last
        if table == name or (not group and table not in found.h5.names):
            continue
        offsets = _fitting(found, table, name, shape[0], lengths, False)
        if offsets is not None:
            return table, offsets
    return None


def _fitting(
    found: Hdf5Set, table: str, name: str, rows: int, lengths: bool | None, asked: bool
) -> Array | None:
    """What a data set says of the ``rows`` of ``name``: see :func:`fitting`."""
    if not asked and not _may_be_table(found, table):
        return None
    data = found.dataset(table)
    if not is_table(tuple(data.shape), data.dtype):
        raise found.refuse(
            f"{table!r} does not say where samples begin",
            found=f"shape {data.shape}, {data.dtype}",
            expected="whole numbers (N + 1,), or (N,) lengths",
        )
    # lengths of small numbers take more memory as offsets
    check_bomb(data.shape[0] * _OFFSET_BYTES, found.file.size, table, found.path)
    return fitting(table, name, rows, copied_if_small(data.values()), found.path, lengths, asked)


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
