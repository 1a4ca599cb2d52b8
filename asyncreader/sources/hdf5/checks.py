"""Checks which storage, types and filters of an HDF5 file are safe to open.

The HDF5 library does what a file says: it opens other files (external links and storage, virtual
data sets), loads programs (filters that it does not know are looked for in HDF5_PLUGIN_PATH), and
allocates what is declared. So every object is reached link by link (file.py), and its storage, type
and filters are checked here before any library call that could do so. Types are looked at one level
at a time, to a bounded depth: h5py and HDF5 follow them without limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...errors import FormatError
from ...pixels.numbers import DEEPEST, MOST_MEMBERS, Member, is_number, record_dtype
from ...system.late import h5py
from ..bytestore import ByteFile
from .filters import Filter

#: What is stored may declare this much of itself; more must be at least 1/BOMB_RATIO of it on disk.
#: (deflate reaches 1/1032, on nothing but zeros).
BOMB_BYTES: Final = 256 << 20
BOMB_RATIO: Final = 200
#: The largest attribute that a header holds.
LARGEST: Final = 1 << 16
#: The smallest user block; others are this by a power of two.
_USER_BLOCK: Final = 512
#: Members of a compound type that are looked at.
_MEMBERS: Final = 64

AGAIN: Final = "copy or convert it again"


# -- storage -------------------------------------------------------------------------------------


def virtual_dataset(name: str) -> FormatError:
    """The error for a virtual data set."""
    return FormatError(
        f"{name!r} is a virtual dataset: its bytes lie in other files",
        hint="pass those files as a list",
    )


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


# -- types ---------------------------------------------------------------------------------------


def unreadable_type(kind: Any, vlen: bool = False, compound: bool = False) -> str | None:
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
        return unreadable_type(kind.get_super())
    if code == t.COMPOUND:
        members = kind.get_nmembers()
        if compound and members <= _MEMBERS:
            reasons = (unreadable_type(kind.get_member_type(i)) for i in range(members))
            return next((reason for reason in reasons if reason is not None), None)
        return "a compound type"
    return _CLASSES.get(code, f"type class {code}")


_CLASSES: Final = {2: "a time type", 5: "an opaque type", 9: "nested variable length", 10: "arrays"}


def unusual_bits(kind: Any, dtype: np.dtype[Any]) -> str | None:
    """Why numbers as they are stored (h5py.h5t.TypeID) are not the values that h5py gives for them,
    which are of this ``dtype``; None where they are.

    h5py makes int16 of an integer of 12 bits, wherever in its bytes they lie, and float32 of a
    bfloat16: right for what it reads itself, which HDF5 converts.
    """
    if kind.get_class() == h5py.h5t.ENUM:
        kind, dtype = kind.get_super(), np.dtype("i1") if dtype == np.bool_ else dtype
    t, size = h5py.h5t, dtype.itemsize
    bits = kind.get_class() == t.BITFIELD
    if bits or size == 1:  # one byte has no order, but types of it do
        letter = "B" if bits else dtype.kind.upper()
        orders = ("BE" if dtype.byteorder == ">" else "LE",) if size > 1 else ("BE", "LE")
        plain = [getattr(t, f"STD_{letter}{8 * size}{order}") for order in orders]
    else:
        plain = [t.py_create(np.dtype(dtype.str))]
    if any(map(kind.equal, plain)):
        return None
    some = "fewer" if bits else kind.get_precision()  # which h5py does not say of a bit field
    return f"{some} bits in {kind.get_size()} bytes, as {dtype} in other bits"


def attribute(item: Any, name: str, longest: int = LARGEST, compound: bool = False) -> Any:
    """The value of an attribute of a plain type and at most ``longest`` bytes, as h5py gives it;
    None for any other."""
    key = name.encode("utf-8", "surrogateescape")
    if not h5py.h5a.exists(item.id, key):
        return None
    stored = h5py.h5a.open(item.id, key)
    kind = stored.get_type()
    if unreadable_type(kind, compound=compound) is not None:
        return None
    space = stored.get_space()
    if space.get_simple_extent_type() == h5py.h5s.NULL:
        return None
    size = math.prod(space.get_simple_extent_dims()) * kind.get_size()
    if size > longest:
        return None
    return item.attrs[name]


def check_inside(file: ByteFile, offset: int, size: int) -> None:
    """FormatError unless these bytes are in the file."""
    if offset + size > file.size:
        raise FormatError(
            "the file is truncated",
            found=f"{file.size} bytes",
            expected=f"at least {offset + size}",
            hint=AGAIN,
        )


def check_bomb(declared: int, stored: int, name: str) -> None:
    """FormatError if a file declares much more than it stores."""
    if declared > BOMB_BYTES and declared > BOMB_RATIO * stored:
        raise FormatError(
            f"dataset {name!r} declares far more than it stores",
            found=f"{declared} bytes of {stored} stored",
            expected=f"at most {BOMB_RATIO} times as many, or {BOMB_BYTES} bytes",
            hint="if it is genuine, repack it uncompressed: h5repack -f NONE",
        )


# -- compound types --------------------------------------------------------------------------------


def is_compound(data: Any) -> bool:
    """Whether the rows of a data set (h5py.h5d.DatasetID) are structured."""
    return bool(data.get_type().get_class() == h5py.h5t.COMPOUND)


def record_type(kind: Any) -> np.dtype[Any]:
    """The flat dtype of a compound type (h5py.h5t.TypeCompoundID). ValueError for one that is
    damaged, or not read."""
    return record_dtype(_members_of(kind, "", 0, DEEPEST), kind.get_size())


def _members_of(kind: Any, prefix: str, start: int, depth: int) -> Iterator[Member]:
    """The members of a compound type (h5py.h5t.TypeCompoundID), and those of members inside it."""
    count = kind.get_nmembers()
    if count > MOST_MEMBERS:
        raise ValueError(f"{count} members, where 1 to {MOST_MEMBERS} are read")
    for i in range(count):
        own, offset = kind.get_member_type(i), start + kind.get_member_offset(i)
        name = kind.get_member_name(i).decode("utf-8", "surrogateescape")
        if name and own.get_class() == h5py.h5t.COMPOUND and depth:
            yield from _members_of(own, f"{prefix}{name}.", offset, depth - 1)
            continue
        dtype, shape = _numbers(own) or (np.dtype((np.void, own.get_size())), ())
        yield Member(prefix + name, offset, dtype, shape)


def _numbers(kind: Any) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """(dtype, shape) of a member that is a number or an array of numbers; None of any other."""
    t = h5py.h5t
    shape: tuple[int, ...] = ()
    whole = kind.get_size()
    if kind.get_class() == t.ARRAY:
        shape, kind = tuple(map(int, kind.get_array_dims())), kind.get_super()
    if kind.get_class() not in (t.INTEGER, t.FLOAT, t.BITFIELD, t.ENUM):
        return None
    try:  # h5py makes bool of an enumeration of two
        few = kind.get_class() != t.ENUM or kind.get_nmembers() == 2
        dtype = np.dtype((kind if few else kind.get_super()).dtype.str)
    except (TypeError, ValueError):  # floats that numpy does not have
        return None
    fits = math.prod(shape) * dtype.itemsize == whole
    return (dtype, shape) if fits and is_number(dtype) and not unusual_bits(kind, dtype) else None


def path_to(kind: Any, member: str) -> list[str]:
    """The names of the compounds around a member of a compound type, and its own; empty where there
    is no such member. ``member`` is these with dots between them, and a name may have dots itself.
    """
    for i in range(kind.get_nmembers()):
        own, name = (
            kind.get_member_type(i),
            kind.get_member_name(i).decode("utf-8", "surrogateescape"),
        )
        if name == member:
            return [name]
        if own.get_class() == h5py.h5t.COMPOUND and member.startswith(f"{name}."):
            inside = path_to(own, member[len(name) + 1 :])
            if inside:
                return [name, *inside]
    return []


# -- conventions -----------------------------------------------------------------------------------


#: The attribute of all that MATLAB writes.
MATLAB_CLASS: Final = b"MATLAB_class"
#: MATLAB's classes whose stored numbers are not those of an array: what they are, and what to do.
_MATLAB_CLASSES: Final = {
    b"char": (
        "text as character codes (MATLAB's char)",
        "save class numbers instead: [~, ~, labels] = unique(cellstr(text))",
    ),
    b"cell": (
        "references to other arrays (MATLAB's cell)",
        "join the cells into one array before it is saved: cat(1, cells{:})",
    ),
}


def no_samples(data: Any) -> tuple[str, str] | None:
    """What a data set (h5py.Dataset) holds instead of samples, and what to do; None where it may
    hold samples."""
    empty, kind = (attribute(data, f"MATLAB_{name}") for name in ("empty", "class"))
    if isinstance(empty, np.integer) and empty:
        return "the size of an array that is empty in MATLAB", "save the array again with values"
    return _MATLAB_CLASSES.get(kind) if isinstance(kind, bytes) else None
