"""The data sets of a group as info and errors list them: names, shapes, dtypes, but no values."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, TypeAlias

from ...system.late import h5py
from ...system.text import natural, times
from ..request import NAMED, NoFieldError, no_field
from .checks import attribute, no_samples

#: Names of what is in a group of h5py's, and its low-level objects; None for a virtual data set.
Inside: TypeAlias = Callable[[Any], Iterator[tuple[bytes, Any]]]

#: Members of a group that are looked at, and of all groups together.
MEMBERS: Final = 2_000
_OPENED: Final = 10_000
#: So many groups of the same members at least are called alike, and so many data sets of the same
#: kind of rows in one group; and names that are compared to find groups that are.
_ALIKE_GROUPS, _ALIKE_FIELDS, _COMPARED = 3, 16, 32
#: How netCDF-4 calls a dimension that has no values.
_NO_VALUES: Final = b"This is a netCDF dimension but not a netCDF variable"
#: How PyTables calls groups with the index of a table.
_INDEX: Final = b"_i_"
#: What is in a group of sparse rows; their number is in its ``indptr``.
_SPARSE: Final = {b"data", b"indices", b"indptr", b"shape", b"jc", b"ir"}
#: What the values of such a group are in words.
SPARSE: Final = "sparse vectors"
#: Letters of a name that are shown.
_LONGEST: Final = 80
#: Members of a group that HDF5 sorts to name the first ones.
_SORTED: Final = 10_000


class _Names(Set[str]):
    """The names in a group of h5py's, each looked up when it is asked for."""

    def __init__(self, group: Any) -> None:
        self._group = group

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> frozenset[str]:  # type: ignore[override]
        return frozenset(names)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name in ("", ".") or "/" in name or "\0" in name:
            return False
        return bool(self._group.links.exists(name.encode("utf-8", "surrogateescape")))

    def __iter__(self) -> Iterator[str]:
        return (name.decode("utf-8", "surrogateescape") for name in self._group)

    def __len__(self) -> int:
        return int(self._group.get_num_objs())


def all_names(group: Any) -> Set[str]:
    """The names in a group of h5py's; of a large one none is kept in memory."""
    names = _Names(group)
    return names if group.get_num_objs() > _SORTED else frozenset(names)


def some_names(group: Any, most: int) -> list[bytes]:
    """Names in a group of h5py's: the first ones, but of a large group those that HDF5 comes to
    first, which would sort all of them otherwise."""
    if group.get_num_objs() <= _SORTED:
        return list(itertools.islice(group, most))
    found: list[bytes] = []

    def add(name: bytes) -> bool | None:
        found.append(name)
        return True if len(found) >= most else None

    group.links.iterate(add, order=h5py.h5.ITER_NATIVE)
    return found


class Listed(NamedTuple):
    """A data set, or the first of many that are alike.

    ``name``: below the group that was searched; ``dtype``: what its values are, in words;
    ``served``: these are numbers, or structured rows; ``size``: the bytes that it declares, of all
    that are alike; ``alike``: a pattern of the names of the groups in which data sets like it are,
    or of these themselves, "" where there is one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    served: bool
    size: int
    alike: str = ""

    @property
    def words(self) -> str:
        """Such as "obs/qpos (40 x 9 float64)"."""
        name = _printable(self.name)[:_LONGEST]
        if not self.shape:
            return name
        many = f", and others in {_printable(self.alike)}" if self.alike else ""
        return f"{name} ({times(self.shape)} {self.dtype}{many})"


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


class _Group(NamedTuple):
    """A group to be looked into: its ``prefix`` and the pattern of groups like it, "" for none, as
    names begin; ``many``: so many are like it."""

    group: Any
    prefix: bytes
    pattern: bytes
    many: int


def list_fields(members: Inside, group: Any) -> tuple[list[Listed], int]:
    """The data sets of a group and of the groups in it, the largest first, and how many members of
    groups were not looked at.

    A group of sparse rows is one data set, and of groups with the same members the first stands for
    all of them, as does the first of many data sets with the same kind of rows.
    """
    found: list[Listed] = []
    groups, seen, opened, unseen = deque([_Group(group, b"", b"", 1)]), set[int](), 0, 0
    while groups:
        here = groups.popleft()
        address, total = h5py.h5o.get_info(here.group).addr, here.group.get_num_objs()
        if address in seen:
            continue
        seen.add(address)
        if opened > _OPENED:
            unseen += total
            continue
        inside = dict(members(here.group))
        opened, unseen = opened + len(inside), unseen + max(0, total - MEMBERS)
        if here.prefix and (starts := _starts(inside)) is not None:
            text, size = _text(here.prefix[:-1]), _size(inside[b"data"]) * here.many
            found.append(Listed(text, (starts - 1,), SPARSE, True, size, _text(here.pattern[:-1])))
            inside = {name: one for name, one in inside.items() if name not in _SPARSE}
        below = {n: one for n, one in inside.items() if isinstance(one, h5py.h5g.GroupID)}
        groups.extend(_groups_in(here, below))
        found.extend(_fields_in(here, {n: one for n, one in inside.items() if n not in below}))
    return sorted(found, key=lambda one: (-one.size, natural(one.name))), unseen


def _groups_in(here: _Group, below: Mapping[bytes, Any]) -> Iterator[_Group]:
    """The groups in a group, of those with the same members the first alone."""
    kinds: dict[tuple[bytes, ...], list[bytes]] = {}
    for name, one in below.items():
        if not name.startswith(_INDEX):
            kinds.setdefault(tuple(sorted(some_names(one, _COMPARED))), []).append(name)
    for inside, names in kinds.items():
        alike = len(names) >= _ALIKE_GROUPS and inside
        first = min(names, key=lambda name: natural(_text(name)))
        for name in [first] if alike else names:
            pattern = _pattern(names) if alike else here.pattern and name
            many = here.many * (len(names) if alike else 1)
            path = (here.pattern or here.prefix) + pattern + b"/" if pattern else b""
            yield _Group(below[name], here.prefix + name + b"/", path, many)


def _fields_in(here: _Group, data: Mapping[bytes, Any]) -> Iterator[Listed]:
    """The data sets in a group; of many with the same kind of rows the first alone."""
    kinds: dict[tuple[Any, ...], list[tuple[bytes, Any]]] = {}
    for name, one in data.items():
        words, served = ("virtual", False) if one is None else _kind(one)
        if words:
            kinds.setdefault((words, served, *_row(one)), []).append((name, one))
    for (words, served, *row), all_of_kind in kinds.items():
        alike = len(all_of_kind) >= _ALIKE_FIELDS and served and row
        for name, one in all_of_kind[: 1 if alike else None]:
            pattern = (here.pattern or here.prefix) + b"*" if alike else here.pattern[:-1]
            size = sum(_size(data) for _, data in all_of_kind) if alike else _size(one)
            text = _text(here.prefix + name)
            yield Listed(text, _shape(one), words, served, size * here.many, _text(pattern))


def _row(data: Any) -> tuple[object, ...]:
    """How many axes a data set has, and the shape of its rows; () of one without rows."""
    shape = _shape(data)
    return (len(shape), *shape[1:]) if shape else ()


def _shape(data: Any) -> tuple[int, ...]:
    """The shape of a data set (h5py.h5d.DatasetID); () of a virtual one, and of one of nothing."""
    return () if data is None else data.shape or ()


def _pattern(names: Sequence[bytes]) -> bytes:
    """A pattern of names: how all of them begin, up to where numbers or ids do."""
    ends = zip(min(names), max(names), strict=False)
    same = bytes(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
    return re.sub(rb"[0-9]+$|(?<=[^0-9a-f])[0-9a-f]+$", b"", same) + b"*"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _size(data: Any) -> int:
    """The bytes that a data set (h5py.h5d.DatasetID, None for a virtual one) declares."""
    if data is None or data.shape is None:
        return 0
    return int(math.prod(data.shape) * data.get_type().get_size())


def _starts(inside: Mapping[bytes, Any]) -> int | None:
    """How long the data set is that says where sparse rows begin; None where a group has none."""
    for parts in (b"indptr", b"indices", b"data"), (b"jc", b"ir", b"data"):  # MATLAB's are the last
        shape: tuple[int, ...] = getattr(inside.get(parts[0]), "shape", ())
        if inside.keys() >= {*parts} and len(shape) == 1 and shape[0]:
            return int(shape[0])
    return None


def _kind(data: Any) -> tuple[str, bool]:
    """What the values of a data set (h5py.h5d.DatasetID) are in words, "" where it is the name of
    an axis alone, and whether they are served. Members of structured rows are not looked at."""
    whole = h5py.Dataset(data)
    name = attribute(whole, "NAME")
    if isinstance(name, bytes) and name.startswith(_NO_VALUES):
        return "", False
    instead = no_samples(whole)
    return _dtype(data.get_type()) if instead is None else (instead[0], False)


def _dtype(kind: Any) -> tuple[str, bool]:
    """A stored type in words, and whether its values are served."""
    h5t, code, size = h5py.h5t, kind.get_class(), kind.get_size()
    if code == h5t.INTEGER and size <= 8:
        sign = "u" if kind.get_sign() == h5t.SGN_NONE else ""
        return f"{sign}int{8 * size}", True
    if code == h5t.FLOAT and size <= 8:
        return f"float{8 * size}", True
    if code == h5t.ENUM:  # numpy's bool is one of two values of a byte, as h5py writes it
        return ("bool", True) if (size, kind.get_nmembers()) == (1, 2) else _dtype(kind.get_super())
    if code == h5t.BITFIELD and size <= 8:
        return f"uint{8 * size}", True
    if code == h5t.COMPOUND:
        return "structured", True
    words = {h5t.STRING: "text", h5t.VLEN: "of variable length", h5t.REFERENCE: "references"}
    return words.get(code, "no numbers"), False


def missing(name: str, listed: Sequence[Listed], found: str = "") -> NoFieldError:
    """The error for a field ``name`` where there are others, of which it lists the largest by name.
    ``found``: said before them."""
    served = [one.name for one in listed if one.served]
    largest = sorted(listed[:NAMED])
    words = [one.words for one in (*largest, *listed[NAMED:])]
    error = no_field(name, words, served)
    error.found = f"{found}{error.found}"
    rows = [one for one in largest if one.served and one.shape and not says_where(one.name)]
    long = {one.name: one.shape[0] for one in listed if one.served and one.shape}
    for one in rows:  # values of samples of different length are as many samples as these say
        starts, lengths = long.get(f"{one.name}_offsets"), long.get(f"{one.name}_lengths")
        long[one.name] = starts - 1 if starts else lengths or long[one.name]
    if rows:  # beside each other lie fields of as many samples; else the data are the largest field
        often = Counter(long[one.name] for one in rows)
        first = max(rows, key=lambda one: (often[long[one.name]], math.prod(one.shape)))
        count = long[first.name]
        error.there = tuple(one.name for one in rows if long[one.name] in (count, count + 1))
    return error


def says_where(name: str) -> bool:
    """Whether a data set of this name says where samples begin, so that it holds none itself."""
    last = name.rpartition("/")[2]
    return last in ("offsets", "indptr") or last.endswith(("_offsets", "_lengths"))
