"""Checks which storage, types and filters of an HDF5 file are safe to open.

The HDF5 library does what a file says: it opens other files (external links and storage, virtual
data sets), loads programs (filters that it does not know are looked for in HDF5_PLUGIN_PATH), and
allocates what is declared. So every object is reached link by link (file.py), and its storage, type
and filters are checked here before any library call that could do so.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from ...errors import DecodeError, FormatError
from ...system.array_types import Array, Int64, UInt8
from ...system.late import h5py
from ..base import check_extents
from .chunks import ChunkGrid
from .filters import LIBRARY, Filter, check_known, decode_chunk, readable

#: What is stored may declare this much of itself; more must be at least 1/BOMB_RATIO of it on disk.
#: (deflate reaches 1/1032, on nothing but zeros).
BOMB_BYTES: Final = 256 << 20
BOMB_RATIO: Final = 200
#: The largest attribute that a header holds.
_ATTRIBUTE: Final = 1 << 16
#: The smallest user block; others are this by a power of two.
_USER_BLOCK: Final = 512
#: Members of a compound type that are looked at.
_MEMBERS: Final = 64
#: Chunks that are drawn to be compared with the library's own read, and decoded bytes of them.
_DRAWN, _COMPARED_BYTES = 4, 16 << 20
#: Chunks that a data set may have of which the file need not hold any.
_UNWRITTEN: Final = 1 << 20
#: Types inside each other that are looked at.
_DEEPEST: Final = 8

AGAIN: Final = "copy or convert it again"


class Dataset(Protocol):
    """What is asked of a data set as h5py shows it."""

    shape: tuple[int, ...]
    maxshape: tuple[int | None, ...]
    ndim: int
    size: int
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    #: h5py's objects, by which the HDF5 library is asked for the rest.
    id: Any
    file: Any
    attrs: Any

    def __getitem__(self, where: object, /) -> Any:
        """Values."""


# -- storage -------------------------------------------------------------------------------------


def virtual_dataset(name: str, path: str) -> FormatError:
    """The error for a virtual data set."""
    return FormatError(
        f"{name!r} is a virtual dataset: its bytes lie in other files",
        path=path,
        hint="pass those files as a list",
    )


def check_stored(dataset: Dataset, name: str, path: str, records: bool = False) -> Dataset:
    """``dataset`` itself, if it is one whose bytes are in this file and whose type is plain; with
    ``records`` also a compound one, whose members are not looked at (compound.py).

    Asks for its creation properties first: the shape of a virtual one opens other files.
    """
    plist = dataset.id.get_create_plist()
    if plist.get_layout() == h5py.h5d.VIRTUAL:
        raise virtual_dataset(name, path)
    if plist.get_external_count():
        raise FormatError(
            f"{name!r} keeps its bytes outside the file",
            path=path,
            found=f"external storage {plist.get_external(0)[0]!r}",
            hint="h5repack moves them into the file",
        )
    kind = dataset.id.get_type()
    compound = kind.get_class() == h5py.h5t.COMPOUND
    reason = None if compound and records else odd_type(kind, vlen=True)
    if reason is not None:
        raise FormatError(
            f"dataset {name!r} does not hold plain numbers",
            path=path,
            found=reason,
            expected="integers or floats of at most 64 bits",
            hint=f'name one of its members: "{name}.MEMBER"' if compound else None,
        )
    return dataset


def stored_at(data: Any) -> int | None:
    """Where in its file the bytes of a contiguous data set (h5py.h5d.DatasetID) begin; None where
    it has none.

    HDF5 (2.0 too) adds the size of the user block to the address that means "nowhere" as well:
    it then says that the last byte of the user block is the first of the data set.
    """
    offset: int | None = data.get_offset()
    if offset is None or offset & (offset + 1) or offset < _USER_BLOCK - 1:
        return offset
    block = h5py.h5i.get_file_id(data).get_create_plist().get_userblock()
    return None if offset < block else offset


def pipeline(plist: Any) -> tuple[Filter, ...]:
    """The filters of a data set, by its creation properties."""
    found = (plist.get_filter(i) for i in range(plist.get_nfilters()))
    return tuple(
        Filter(int(code), tuple(int(v) for v in values)) for code, _flags, values, _name in found
    )


def check_library_filters(steps: tuple[Filter, ...], path: str, name: str) -> None:
    """FormatError unless HDF5 itself undoes all filters: else it would look for a plugin."""
    check_known(steps, LIBRARY, path, name)


# -- types ---------------------------------------------------------------------------------------


def odd_type(kind: Any, vlen: bool = False, compound: bool = False) -> str | None:
    """Why a stored type (h5py.h5t.TypeID) is not read; None for a plain one.

    Plain: numbers, text of fixed length, references; with ``vlen`` also what is of variable length
    and one level of it; with ``compound`` a flat list of plain members. h5py and HDF5 follow nested
    types without limit (one of 7,000 levels takes them minutes or kills them), and h5py believes
    the numpy type that an opaque one names.
    """
    t = h5py.h5t
    code = kind.get_class()
    if code in (t.INTEGER, t.FLOAT, t.BITFIELD, t.ENUM, t.REFERENCE):
        return None
    if code == t.STRING:
        return None if vlen or not kind.is_variable_str() else "text of variable length"
    if code == t.VLEN and vlen:
        return odd_type(kind.get_super())
    if code == t.COMPOUND:
        members = kind.get_nmembers()
        if compound and members <= _MEMBERS:
            odd = (odd_type(kind.get_member_type(i)) for i in range(members))
            return next((reason for reason in odd if reason is not None), None)
        return "a compound type"
    return _CLASSES.get(code, f"type class {code}")


_CLASSES: Final = {2: "a time type", 5: "an opaque type", 9: "nested variable length", 10: "arrays"}


def odd_bits(dataset: Dataset) -> str | None:
    """Why the stored bytes are not the values that h5py gives for them; None where they are.

    h5py makes int16 of an integer of 12 bits, wherever in its bytes they lie, and float32 of a
    bfloat16: right for what it reads itself, which HDF5 converts.
    """
    return odd_number(dataset.id.get_type(), dataset.dtype)


def odd_number(kind: Any, dtype: np.dtype[Any]) -> str | None:
    """:func:`odd_bits` of a stored type (h5py.h5t.TypeID) for which h5py gives ``dtype``."""
    if kind.get_class() == h5py.h5t.ENUM:
        kind, dtype = kind.get_super(), np.dtype("i1") if dtype == np.bool_ else dtype
    if kind.get_class() == h5py.h5t.BITFIELD:
        letters = "BE" if dtype.byteorder == ">" else "LE"
        plain = getattr(h5py.h5t, f"STD_B{8 * dtype.itemsize}{letters}")
    else:
        plain = h5py.h5t.py_create(np.dtype(dtype.str))
    if kind.equal(plain):
        return None
    return f"{kind.get_precision()} bits in {kind.get_size()} bytes, as {dtype} in other bits"


def unusual_bits(name: str, odd: str, path: str) -> FormatError:
    """The error for numbers that :func:`odd_number` finds ``odd``."""
    return FormatError(
        f"dataset {name!r} stores its numbers in an unusual bit layout",
        path=path,
        found=odd,
        expected="whole integers, or floats of IEEE 754",
        hint="write it again with a usual dtype, for example through h5py",
    )


def check_numeric(dataset: Dataset, name: str, path: str, hint: str | None = None) -> None:
    """FormatError unless a data set holds plain numbers."""
    if dataset.dtype.kind not in "buif" or dataset.dtype.itemsize > 8:
        raise FormatError(
            f"dataset {name!r} does not hold plain numbers",
            path=path,
            found=f"dtype {dataset.dtype}",
            expected="integers or floats of at most 64 bits",
            hint=hint,
        )


def attribute(item: Any, name: str, longest: int = _ATTRIBUTE, compound: bool = False) -> Any:
    """The value of an attribute of a plain type and at most ``longest`` bytes, as h5py gives it;
    None for any other."""
    key = name.encode("utf-8", "surrogateescape")
    if not h5py.h5a.exists(item.id, key):
        return None
    stored = h5py.h5a.open(item.id, key)
    kind = stored.get_type()
    if odd_type(kind, compound=compound) is not None:
        return None
    space = stored.get_space()
    if space.get_simple_extent_type() == h5py.h5s.NULL:
        return None
    size = math.prod(space.get_simple_extent_dims()) * kind.get_size()
    if size > longest:
        return None
    return item.attrs[name]


# -- whole tables --------------------------------------------------------------------------------


def check_bomb(declared: int, stored: int, name: str, path: str) -> None:
    """FormatError if a file declares much more than it stores."""
    if declared > BOMB_BYTES and declared > BOMB_RATIO * stored:
        raise FormatError(
            f"dataset {name!r} declares far more than it stores",
            path=path,
            found=f"{declared} bytes of {stored} stored",
            expected=f"at most {BOMB_RATIO} times as many, or {BOMB_BYTES} bytes",
            hint="if it is genuine, repack it uncompressed: h5repack -f NONE",
        )


def chunk_grid(
    data: Dataset,
    name: str,
    path: str,
    size: int,
    dtype: np.dtype[Any] | None = None,
) -> ChunkGrid:
    """Where all chunks of ``data`` lie in its file of ``size`` bytes. FormatError unless all are
    inside the file and not much larger than what is stored of them, and those that were never
    written have a fill value."""
    steps = pipeline(data.id.get_create_plist())
    assert data.chunks is not None
    shape, chunk = tuple(data.shape), tuple(data.chunks)
    dtype = dtype or data.dtype
    counts = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
    total = math.prod(counts)
    stored = _count_written(data, total, name, path, size)
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
        where = where + data.file.id.get_create_plist().get_userblock()
    check_extents(where, lengths, size, path, lambda _: f"a chunk of dataset {name!r}")
    corners = np.array(starts, np.int64).reshape(-1, len(shape))
    at = _unrotated(corners // np.array(chunk), counts, data)
    inside = bool(((at >= 0) & (at < np.array(counts))).all())
    numbers = np.ravel_multi_index(tuple(at.T), counts) if inside else None
    if numbers is None or np.unique(numbers).size != stored or numbers.size != stored:
        raise FormatError(
            f"the chunk index of dataset {name!r} is not one of its shape",
            path=path,
            found=f"{len(at)} chunks, some outside it or twice",
            expected=f"{total} chunks for shape {shape}",
            hint=AGAIN,
        )
    offsets, sizes = np.full(total, -1), np.zeros(total, np.int64)
    masks = np.zeros(total, np.uint32)
    offsets[numbers], sizes[numbers], masks[numbers] = where, lengths, marks
    fill = None
    if stored != total:
        missing = np.unravel_index(int(offsets.argmin()), counts)
        fill = _fill_of(data, tuple(int(n) * c for n, c in zip(missing, chunk, strict=True)))
    grid = ChunkGrid(shape, chunk, dtype, steps, offsets, sizes, masks, fill)
    if not steps and (lengths != grid.chunk_bytes).any():
        raise FormatError("a chunk has the wrong size", path=path, hint=AGAIN)
    check_bomb(grid.chunk_bytes, int(sizes.max(initial=0)), name, path)
    return grid


def _count_written(data: Dataset, total: int, name: str, path: str, size: int) -> int:
    """How many of the ``total`` chunks of a data set were written. FormatError unless these are
    all, or the others have a fill value."""
    many = total > max(size, _UNWRITTEN)
    # asked only where the file could hold so many: some indexes are counted one by one
    stored: int = 0 if many else data.id.get_num_chunks()
    if stored == total or (not many and _is_filled(data)):
        return stored
    unwritten = f"{total - stored} of {total} chunks that were never written"
    raise FormatError(
        f"dataset {name!r} lacks some of the samples that it declares",
        path=path,
        found="a file too small for them" if many else unwritten,
        expected=f"all chunks of shape {data.shape}, or a fill value that was set for them",
        hint="the file may be unfinished: write or convert it again",
    )


def _is_filled(data: Dataset) -> bool:
    """Whether the writer of a data set of numbers or short text set a value for what is never
    written, and the file does not say that it is not to be used."""
    plist = data.id.get_create_plist()
    defined = plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    used = plist.get_fill_time() != h5py.h5d.FILL_TIME_NEVER
    return defined and used and _is_plain(data.id.get_type())


def _is_plain(kind: Any, depth: int = _DEEPEST) -> bool:
    """Whether a stored type has nothing of variable length in it, whose fill value lies in a heap
    that may be damaged."""
    t, code = h5py.h5t, kind.get_class()
    if code == t.COMPOUND:
        members = range(kind.get_nmembers())
        return depth > 0 and all(_is_plain(kind.get_member_type(i), depth - 1) for i in members)
    if code == t.ARRAY:
        return depth > 0 and _is_plain(kind.get_super(), depth - 1)
    return code in (t.INTEGER, t.FLOAT, t.BITFIELD, t.ENUM) or (
        code == t.STRING and not kind.is_variable_str()
    )


def _fill_of(data: Dataset, corner: tuple[int, ...]) -> UInt8:
    """The bytes of a data set's fill value, which the library reads in a chunk that was never
    written, as the file's own type: nothing is converted."""
    kind, space, one = data.id.get_type(), data.id.get_space(), (1,) * len(corner)
    found = np.empty(one, (np.void, kind.get_size()))
    space.select_hyperslab(corner, one)
    data.id.read(h5py.h5s.create_simple(one), space, found, kind)
    return found.reshape(-1).view(np.uint8)


def _unrotated(at: Int64, counts: tuple[int, ...], data: Dataset) -> Int64:
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
    behind = grid[axis:]
    if (int(last[axis]) + 1) * math.prod(behind) >= 1 << 62 or (at[:, axis + 1 :] >= behind).any():
        return at
    index = at[:, axis]
    for extent, column in zip(behind, at[:, axis + 1 :].T, strict=True):
        index = index * extent + column
    right = np.empty_like(at)
    for i, extent in zip(reversed(fixed), reversed(grid), strict=True):
        index, right[:, i] = np.divmod(index, extent)
    right[:, axis] = index
    return right


def _is_written(data: Dataset, corner: Int64) -> bool:
    """Whether the library has the chunk that begins at ``corner``."""
    try:
        data.id.read_direct_chunk(tuple(corner.tolist()))
    except Exception:  # an OSError says so, and others that it is no corner of a chunk
        return False
    return True


def compare_chunks(
    data: Dataset,
    grid: ChunkGrid,
    view: Callable[[int, int], UInt8],
    name: str,
    path: str,
    decoded: bool = True,
) -> None:
    """FormatError unless some chunks are what the HDF5 library itself reads there.

    The library's list of chunks and its reads do not share all of their code, and one of them has
    been wrong. Compared are the first chunk, the last, the next one along each axis and some drawn;
    as they are stored and, with ``decoded``, the values where the library has their filters.
    ``view``: bytes of the file by offset and length.
    """
    total = grid.offsets.size
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
            stored = view(int(grid.offsets[number]), int(grid.sizes[number])).copy()
            mask, read = data.id.read_direct_chunk(corner)
            same = mask == grid.masks[number] and read == stored.tobytes()
            size, item = grid.chunk_bytes, grid.dtype.itemsize
            try:
                values = decode_chunk(stored, grid.filters, mask, size, item) if decoded else stored
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
                f"a chunk of dataset {name!r} is not what the HDF5 library reads there",
                path=path,
                found=f"other bytes for the chunk at {corner}",
                hint="the HDF5 library may list its chunks wrongly: write it again without "
                "unlimited axes, for example with h5repack, and report this file's layout",
            )


def read_table(
    data: Dataset, name: str, path: str, size: int, members: np.dtype[Any] | None = None
) -> Array:
    """All of a data set, in memory and in C order, after checks against its file.

    ``size``: of the file; ``members``: of a compound one, those that are read. Only for data sets
    that passed :func:`check_stored`.
    """
    stored = data.dtype if members is None else members
    assert stored.kind != "O"  # of variable length: HDF5 may hang on a damaged one (vlen.py)
    if stored.kind in "iufV":  # h5py may have made wider numbers of them
        stored = np.dtype((np.void, data.id.get_type().get_size()))
    declared = math.prod(data.shape) * stored.itemsize
    plist = data.id.get_create_plist()
    layout = plist.get_layout()
    if layout == h5py.h5d.CHUNKED:
        steps = pipeline(plist)
        check_library_filters(steps, path, name)
        grid = chunk_grid(data, name, path, size, stored)
        check_bomb(declared, int(grid.sizes.sum()), name, path)
    elif layout == h5py.h5d.CONTIGUOUS and declared:
        offset = data.id.get_offset()
        if offset is None or offset + declared > size:
            raise FormatError(
                f"{name} lies outside the file"
                if offset is not None
                else f"dataset {name!r} declares values but stores none",
                path=path,
                found=f"shape {data.shape}",
                hint=AGAIN,
            )
    elif layout == h5py.h5d.COMPACT and declared > _ATTRIBUTE:
        raise FormatError(f"{name} is larger than its header", path=path, hint=AGAIN)
    if members is not None:
        table: Array = np.empty(data.shape, members)
        data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, table)
        return table
    return np.ascontiguousarray(data[()])
