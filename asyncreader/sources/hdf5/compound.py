"""Compound data sets of HDF5, among them PyTables' tables: the members of their rows.

Rows are read as their bytes, so that members that are no numbers may be there. Types are looked at
one level at a time, to a bounded depth: h5py and HDF5 follow them without limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...pixels.numbers import DEEPEST, MOST_MEMBERS, Member, is_number, record_dtype
from ...system.late import h5py
from .checks import unusual_bits


def is_compound(data: Any) -> bool:
    """Whether the rows of a data set (h5py.h5d.DatasetID) are structured."""
    return bool(data.get_type().get_class() == h5py.h5t.COMPOUND)


def record_type(kind: Any) -> np.dtype[Any]:
    """The flat dtype of a compound type (h5py.h5t.TypeCompoundID). ValueError for one that is
    damaged, or not read."""
    return record_dtype(_members(kind, "", 0, DEEPEST), kind.get_size())


def _members(kind: Any, prefix: str, start: int, depth: int) -> Iterator[Member]:
    """The members of a compound type (h5py.h5t.TypeCompoundID), and those of members inside it."""
    count = kind.get_nmembers()
    if count > MOST_MEMBERS:
        raise ValueError(f"{count} members, where 1 to {MOST_MEMBERS} are read")
    for i in range(count):
        own, offset = kind.get_member_type(i), start + kind.get_member_offset(i)
        name = kind.get_member_name(i).decode("utf-8", "surrogateescape")
        if name and own.get_class() == h5py.h5t.COMPOUND and depth:
            yield from _members(own, f"{prefix}{name}.", offset, depth - 1)
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
