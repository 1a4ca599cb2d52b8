"""A data set of an open HDF5 file: what it says of its rows, checked, and its whole tables."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import DecodeError, FormatError, SourceError, located
from ...pixels.numbers import is_number, members_of
from ...system.array_types import Array, Int64, UInt8
from ...system.late import h5py
from ..base import check_extents
from ..bytestore import ByteFile
from ..request import no_field
from . import checks
from .blocks import ELEMENT, heap_extents
from .chunk_cache import ChunkGrid
from .filters import LIBRARY, Filter, check_filters, check_known, decode_chunk, readable, remedy

#: Chunks that are drawn to be compared with the library's own read, and decoded bytes of them.
_DRAWN, _COMPARED_BYTES = 4, 16 << 20
#: Chunks that a data set may have of which the file need not hold any.
_UNWRITTEN: Final = 1 << 20
#: Types inside each other that are looked at.
_DEEPEST: Final = 8


class Stored:
    """A data set whose bytes are in its file, and whose type is plain: FormatError for any other.

    ``data``: h5py.Dataset; ``name``: for messages; ``file``: that it lies in; ``records``: its
    rows may be structured, which makes it ``compound``. Members of these are looked at when
    :meth:`values_dtype` is asked for.
    """

    def __init__(self, data: Any, name: str, file: ByteFile, records: bool = False) -> None:
        self.data, self.id = data, data.id
        self.name, self.file = name, file
        #: its creation properties, which are asked first: the shape of a virtual one opens files
        self.plist: Any = data.id.get_create_plist()
        if self.plist.get_layout() == h5py.h5d.VIRTUAL:
            raise checks.virtual_dataset(name)
        if self.plist.get_external_count():
            raise FormatError(
                f"{name!r} keeps its bytes outside the file",
                found=f"external storage {self.plist.get_external(0)[0]!r}",
                hint="h5repack moves them into the file",
            )
        kind = data.id.get_type()
        self.compound = bool(kind.get_class() == h5py.h5t.COMPOUND)
        reason = None if self.compound and records else checks.unreadable_type(kind, vlen=True)
        if reason is not None:
            raise FormatError(
                f"dataset {name!r} does not hold plain numbers",
                found=reason,
                expected="integers or floats of at most 64 bits",
                hint=f'name one of its members: "{name}.MEMBER"' if self.compound else None,
            )
        self.shape: tuple[int, ...] = tuple(data.shape)
        self.ndim, self.size, self.chunks = len(self.shape), math.prod(self.shape), data.chunks

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """What h5py gives for the stored type."""
        given: np.dtype[Any] = self.data.dtype
        return given

    @cached_property
    def filters(self) -> tuple[Filter, ...]:
        """What was done to its chunks."""
        return checks.pipeline(self.plist)

    @property
    def offset(self) -> int | None:
        """Where in the file the bytes of a contiguous one begin: see :func:`checks.stored_at`."""
        return checks.stored_at(self.id)

    @property
    def user_block(self) -> int:
        """Bytes of the file that HDF5 does not count in addresses."""
        return int(self.data.file.id.get_create_plist().get_userblock())

    def check_bomb(self, declared: int, stored: int) -> None:
        """FormatError if it declares much more than it stores."""
        checks.check_bomb(declared, stored, self.name)

    def check_library_filters(self) -> None:
        """FormatError unless HDF5 itself undoes all filters: else it would look for a plugin."""
        check_known(self.filters, LIBRARY, self.name)

    # -- types -------------------------------------------------------------------------------

    def check_numeric(self, hint: str | None = None) -> None:
        """FormatError unless it holds plain numbers."""
        if self.dtype.kind not in "buif" or self.dtype.itemsize > 8:
            raise FormatError(
                f"dataset {self.name!r} does not hold plain numbers",
                found=f"dtype {self.dtype}",
                expected="integers or floats of at most 64 bits",
                hint=hint,
            )

    def check_samples(self) -> None:
        """FormatError where a convention says that it holds no samples."""
        # asked of each data set that is opened
        if not h5py.h5a.exists(self.id, checks.MATLAB_CLASS):
            return
        instead = checks.no_samples(self.data)
        if instead is not None:
            raise FormatError(
                f"dataset {self.name!r} holds no samples",
                found=instead[0],
                expected="an array of numbers",
                hint=f"{instead[1]}; labels_field=None serves data without labels",
            )

    def check_bits(self, kind: Any, dtype: np.dtype[Any]) -> None:
        """FormatError where :func:`unusual_bits` has a reason against numbers of the type ``kind``
        that it stores."""
        found = checks.unusual_bits(kind, dtype)
        if found is not None:
            raise FormatError(
                f"dataset {self.name!r} stores its numbers in an unusual bit layout",
                found=found,
                expected="whole integers, or floats of IEEE 754",
                hint="write it again with a usual dtype, for example through h5py",
            )

    def values_dtype(self) -> np.dtype[Any]:
        """The dtype of its values: that of numbers, or a flat one of structured rows. FormatError
        for any other."""
        if not self.compound:
            self.check_numeric()
            self.check_bits(self.id.get_type(), self.dtype)
            return self.dtype
        try:
            return checks.record_type(self.id.get_type())
        except ValueError as exc:
            what = f"the rows of dataset {self.name!r} are damaged, or not read"
            raise FormatError(what, found=str(exc)) from exc

    # -- chunks ------------------------------------------------------------------------------

    def grid(self, dtype: np.dtype[Any] | None = None, compare: bool = False) -> ChunkGrid:
        """Where all chunks lie in the file. FormatError unless all are inside the file and not much
        larger than what is stored of them, those that were never written have a fill value, and
        all filters are known. ``compare``: see :meth:`compare`, which chunks with checksums do
        without."""
        data, steps = self.data, self.filters
        check_filters(steps, self.name)
        assert data.chunks is not None
        shape, chunk = tuple(data.shape), tuple(data.chunks)
        counts = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
        total = math.prod(counts)
        stored = self._count_written(total)
        # plain numbers, for there may be millions of chunks
        starts, extents, marks = array("q"), array("q"), array("Q")

        def note(info: Any) -> None:
            starts.extend(info.chunk_offset)
            extents.extend((info.byte_offset, info.size))
            marks.append(info.filter_mask)

        data.id.chunk_iter(note)
        where, lengths = np.array(extents, np.int64).reshape(-1, 2).T
        if h5py.version.hdf5_version_tuple < (1, 14, 4):
            # these say where chunks are without the user block (HDFGroup/hdf5#3003)
            where = where + self.user_block
        name = f"a chunk of dataset {self.name!r}"
        check_extents(where, lengths, self.file.size, lambda _: name)
        corners = np.array(starts, np.int64).reshape(-1, len(shape))
        at = _unrotated(corners // np.array(chunk), counts, data)
        inside = bool(((at >= 0) & (at < np.array(counts))).all())
        numbers = np.ravel_multi_index(tuple(at.T), counts) if inside else None
        if numbers is None or np.unique(numbers).size != stored or numbers.size != stored:
            raise FormatError(
                f"the chunk index of dataset {self.name!r} is not one of its shape",
                found=f"{len(at)} chunks, some outside it or twice",
                expected=f"{total} chunks for shape {shape}",
                hint=checks.AGAIN,
            )
        offsets, sizes = np.full(total, -1), np.zeros(total, np.int64)
        masks = np.zeros(total, np.uint32)
        offsets[numbers], sizes[numbers], masks[numbers] = where, lengths, marks
        fill = None
        if stored != total:
            missing = np.unravel_index(int(offsets.argmin()), counts)
            fill = _fill_of(data, tuple(int(n) * c for n, c in zip(missing, chunk, strict=True)))
        grid = ChunkGrid(shape, chunk, dtype or data.dtype, steps, offsets, sizes, masks, fill)
        if not steps and (lengths != grid.chunk_bytes).any():
            raise FormatError("a chunk has the wrong size", hint=checks.AGAIN)
        self.check_bomb(grid.chunk_bytes, int(sizes.max(initial=0)))
        if compare:
            self.compare(grid, decoded=dtype is None)
        return grid

    def _count_written(self, total: int) -> int:
        """How many of the ``total`` chunks of a data set were written. FormatError unless these are
        all, or the others have a fill value."""
        data = self.data
        many = total > max(self.file.size, _UNWRITTEN)
        # asked only where the file could hold so many: some indexes are counted one by one
        stored: int = 0 if many else data.id.get_num_chunks()
        if stored == total or (not many and _is_filled(data)):
            return stored
        unwritten = f"{total - stored} of {total} chunks that were never written"
        raise FormatError(
            f"dataset {self.name!r} lacks some of the samples that it declares",
            found="a file too small for them" if many else unwritten,
            expected=f"all chunks of shape {data.shape}, or a fill value that was set for them",
            hint="the file may be unfinished: write or convert it again",
        )

    def compare(self, grid: ChunkGrid, decoded: bool = True) -> None:
        """FormatError unless some chunks are what the HDF5 library itself reads there.

        The library's list of chunks and its reads do not share all of their code, and one of them
        has been wrong. Compared are the first chunk, the last, the next one along each axis and
        some drawn; as they are stored and, with ``decoded``, the values where the library has their
        filters.
        """
        data, total = self.data, grid.offsets.size
        counts = grid.grid
        steps = [math.prod(counts[i + 1 :]) for i, count in enumerate(counts) if count > 1]
        drawn = np.random.default_rng(total).integers(total, size=_DRAWN).tolist()
        left = max(2, _COMPARED_BYTES // grid.chunk_bytes)
        codes = {step.code for step in grid.filters}
        decoded = decoded and codes <= LIBRARY & readable()
        for number in list(dict.fromkeys((0, total - 1, *steps, *drawn)))[:left]:
            at = np.unravel_index(number, counts)
            corner = tuple(int(a) * c for a, c in zip(at, grid.chunk, strict=True))
            if grid.fill is not None and grid.offsets[number] < 0:
                same = not _is_written(data, np.array(corner))
                values = np.tile(grid.fill, math.prod(grid.chunk))
            else:
                stored = self._stored_chunk(grid, number).copy()
                mask, read = data.id.read_direct_chunk(corner)
                same = mask == grid.masks[number] and read == stored.tobytes()
                size, item = grid.chunk_bytes, grid.dtype.itemsize
                try:
                    values = (
                        decode_chunk(stored, grid.filters, mask, size, item) if decoded else stored
                    )
                except DecodeError:
                    continue  # a damaged chunk: an error of its samples, when they are read
            if same and decoded:
                zipped = zip(corner, grid.chunk, grid.shape, strict=True)
                where = tuple(slice(lo, min(lo + step, end)) for lo, step, end in zipped)
                part = values.view(grid.dtype).reshape(grid.chunk)
                part = part[tuple(slice(0, w.stop - w.start) for w in where)]
                same = part.tobytes() == data[where].tobytes()
            if not same:
                raise FormatError(
                    f"a chunk of dataset {self.name!r} is not what the HDF5 library reads there",
                    found=f"other bytes for the chunk at {corner}",
                    hint="the HDF5 library may list its chunks wrongly: write it again without "
                    "unlimited axes, for example with h5repack, and report this file's layout",
                )

    # -- whole tables ------------------------------------------------------------------------

    def values(self, hint: str | None = None, member: str | None = None) -> Array:
        """All numbers: mapped if they are contiguous in the file, else read by h5py. ``member``: of
        structured rows, the only one that is read. ParamsError for one that is not there."""
        if member is not None:
            return self._member(member)
        self.check_numeric(hint)
        offset, dtype = self.offset, self.dtype
        size = self.size * dtype.itemsize
        if (
            offset is not None
            and offset % dtype.itemsize == 0
            and offset + size <= self.file.size
            and self.chunks is None
            and dtype.isnative
            and dtype != np.bool_
            and checks.unusual_bits(self.id.get_type(), dtype) is None
        ):
            table: Array = self.file.table(offset, size).view(dtype)
            return table.reshape(self.shape)
        read: Array = self.read()
        return read.astype(dtype.newbyteorder("="), copy=False)

    def read(self, members: np.dtype[Any] | None = None) -> Array:
        """All of it, in memory and in C order, after checks against its file. ``members``: of
        compound rows, those that are read."""
        data, name = self.data, self.name
        stored = data.dtype if members is None else members
        assert stored.kind != "O"  # of variable length: HDF5 may hang on a damaged one (blocks.py)
        if stored.kind in "iufV":  # h5py may have made wider numbers of them
            stored = np.dtype((np.void, data.id.get_type().get_size()))
        declared = math.prod(data.shape) * stored.itemsize
        layout = self.plist.get_layout()
        if layout == h5py.h5d.CHUNKED:
            self.check_library_filters()
            self.check_bomb(declared, int(self.grid(stored).sizes.sum()))
        elif layout == h5py.h5d.CONTIGUOUS and declared:
            offset = self.offset
            if offset is None or offset + declared > self.file.size:
                raise FormatError(
                    f"{name} lies outside the file"
                    if offset is not None
                    else f"dataset {name!r} declares values but stores none",
                    found=f"shape {data.shape}",
                    hint=checks.AGAIN,
                )
        elif layout == h5py.h5d.COMPACT and declared > checks.LARGEST:
            raise FormatError(f"{name} is larger than its header", hint=checks.AGAIN)
        if members is not None:
            table: Array = np.empty(data.shape, members)
            data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, table)
            return table
        return np.ascontiguousarray(data[()])

    def _member(self, member: str) -> Array:
        """One member of all structured rows, in memory."""
        held = {one.name: one for one in members_of(self.values_dtype())}
        found = held.get(member)
        if found is None or not is_number(found.dtype):
            numbers = [f"{self.name}.{one.name}" for one in held.values() if is_number(one.dtype)]
            raise no_field(f"{self.name}.{member}", numbers)
        wanted = np.dtype((found.dtype.newbyteorder("="), found.shape))
        parts = checks.path_to(self.id.get_type(), member)
        for part in reversed(parts):
            wanted = np.dtype([(part, wanted)])
        table = self.read(wanted)
        for part in parts:
            table = table[part]
        return np.ascontiguousarray(table)

    # -- variable length ---------------------------------------------------------------------

    def texts(self) -> list[bytes] | None:
        """All texts of one axis; None where it holds none."""
        if self.ndim != 1 or self.dtype.kind not in "SO" or not h5py.check_string_dtype(self.dtype):
            return None
        if self.dtype.kind == "S":
            return [bytes(text) for text in self.read()]
        if not self.size:
            return []
        try:
            file, starts, sizes = self.extents(1, together=True)
        except SourceError as exc:
            if exc.index is not None:  # texts may be names, which are no records
                exc.what, exc.index = f"text {exc.index} of {self.name!r}: {exc.what}", None
            raise
        ends = (starts + sizes).tolist()
        return [file[at:end].tobytes() for at, end in zip(starts.tolist(), ends, strict=True)]

    def extents(
        self, item: int, together: bool = False
    ) -> tuple[UInt8, Int64, npt.NDArray[np.uint32]]:
        """The bytes of the whole file, and where in it the values of each row of variable length
        begin, of ``item`` bytes each, and how many bytes they are: checked. ``together``: their
        heaps are walked once, with all rows in memory."""
        file = self.file.mapped.bytes
        if not isinstance(file, np.ndarray):
            raise FormatError(
                f"dataset {self.name!r} is of variable length, which is not read from a store",
                hint="download it, or convert it: asyncreader convert",
            )
        parts = self._elements()
        if together:
            parts = iter([np.concatenate(list(parts))])
        count = self.shape[0]
        starts, sizes = heap_extents(parts, count, file, self.user_block, item, self.name)
        check_extents(starts, sizes, self.file.size)
        return file, starts, sizes

    def _elements(self) -> Iterator[UInt8]:
        """The stored elements of rows of variable length, piece by piece."""
        if self.data.file.id.get_create_plist().get_sizes() != (8, 8):
            raise FormatError("only offsets of 8 bytes are supported", hint="h5repack it")
        if self.chunks is not None:
            if not check_filters(self.filters, self.name):
                raise FormatError(
                    f"dataset {self.name!r} has a filter that is not read here",
                    hint=remedy(self.filters),
                )
            grid = self.grid(ELEMENT, compare=True)
            rows = grid.chunk[0]
            for number in range(grid.offsets.size):
                mask, stored = int(grid.masks[number]), self._stored_chunk(grid, number)
                with located(index=number * rows):
                    part = decode_chunk(
                        stored, grid.filters, mask, grid.chunk_bytes, ELEMENT.itemsize
                    )
                yield part[: min(rows, grid.shape[0] - number * rows) * ELEMENT.itemsize]
            return
        start, size = self.offset, self.size * ELEMENT.itemsize
        if self.plist.get_layout() != h5py.h5d.CONTIGUOUS or start is None:
            raise FormatError(
                f"dataset {self.name!r} of variable length is not stored contiguous or chunked",
                found=f"shape {self.shape}",
                hint="it may never have been written; else h5repack it",
            )
        checks.check_inside(self.file, start, size)
        yield self.file.mapped.view(start, size)

    def _stored_chunk(self, grid: ChunkGrid, number: int) -> UInt8:
        """The bytes of a chunk, as they are stored."""
        return self.file.mapped.view(int(grid.offsets[number]), int(grid.sizes[number]))


def _is_filled(data: Any) -> bool:
    """Whether the writer of a data set of numbers or short text set a value for what is never
    written, and the file does not say that it is not to be used."""
    plist = data.id.get_create_plist()
    defined = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    used = plist.get_fill_time() != h5py.h5d.FILL_TIME_NEVER
    return defined and used and is_plain(data.id.get_type())


def is_plain(kind: Any, depth: int = _DEEPEST) -> bool:
    """Whether a stored type has nothing of variable length in it, whose values, and a fill value,
    lie in a heap that may be damaged."""
    t, code = h5py.h5t, kind.get_class()
    if code == t.COMPOUND:
        members = range(kind.get_nmembers())
        return depth > 0 and all(is_plain(kind.get_member_type(i), depth - 1) for i in members)
    if code == t.ARRAY:
        return depth > 0 and is_plain(kind.get_super(), depth - 1)
    return code in (t.INTEGER, t.FLOAT, t.BITFIELD, t.ENUM) or (
        code == t.STRING and not kind.is_variable_str()
    )


def _fill_of(data: Any, corner: tuple[int, ...]) -> UInt8:
    """The bytes of a data set's fill value, which the library reads in a chunk that was never
    written, as the file's own type: nothing is converted."""
    kind, space, one = data.id.get_type(), data.id.get_space(), (1,) * len(corner)
    found = np.empty(one, (np.void, kind.get_size()))
    space.select_hyperslab(corner, one)
    data.id.read(h5py.h5s.create_simple(one), space, found, kind)
    return found.reshape(-1).view(np.uint8)


def _unrotated(at: Int64, counts: tuple[int, ...], data: Any) -> Int64:
    """Where chunks lie in the grid, of where HDF5's iteration says that they do.

    An extensible array numbers the chunks with the growing axis moved to the front and the other
    axes at their greatest extent (H5D__earray_idx_get_addr). HDF5 1.10 to 2.0, at least, count them
    up as if that axis were where it is (H5D__earray_idx_iterate_cb, and H5Dget_chunk_info with it):
    the axes before it then stay 0. Where all chunks were written it also runs out of the shape,
    which nothing else does. Where some were not, the library is asked whether the last one is where
    the iteration says: its number there would be a greater one, which no chunk has.
    """
    chunk, most = tuple(data.chunks or ()), tuple(data.maxshape)
    growing = [axis for axis, extent in enumerate(most) if extent is None]
    if len(growing) != 1 or growing[0] == 0 or not at.size:
        return at
    axis = growing[0]
    last = at[np.lexsort(at.T[::-1])[-1]]
    if at[:, :axis].any() or (last[axis] < counts[axis] and _is_written(data, last * chunk)):
        return at
    fixed = [i for i in range(len(most)) if i != axis]
    grid = [-(-int(most[i] or 0) // chunk[i]) for i in fixed]
    after = grid[axis:]
    if (int(last[axis]) + 1) * math.prod(after) >= 1 << 62 or (at[:, axis + 1 :] >= after).any():
        return at
    index = at[:, axis]
    for extent, column in zip(after, at[:, axis + 1 :].T, strict=True):
        index = index * extent + column
    right = np.empty_like(at)
    for i, extent in zip(reversed(fixed), reversed(grid), strict=True):
        index, right[:, i] = np.divmod(index, extent)
    right[:, axis] = index
    return right


def _is_written(data: Any, corner: Int64) -> bool:
    """Whether the library has the chunk that begins at ``corner``."""
    try:
        data.id.read_direct_chunk(tuple(corner.tolist()))
    except Exception:  # an OSError says so, and others that it is no corner of a chunk
        return False
    return True
