"""The data sets of a group as errors list them: names, shapes and dtypes; no values are read."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, TypeAlias

from ...system.late import h5py
from ...system.text import times
from ..request import NoFieldError, no_field
from .conventions import no_samples

#: Names of what is in a group of h5py's, and its low-level objects; None for a virtual data set.
Inside: TypeAlias = Callable[[Any], Iterator[tuple[bytes, Any]]]

#: Data sets that are listed, and groups that are looked into.
_LISTED, _GROUPS = 20, 200
#: What is in a group of sparse rows; their number is in its ``indptr``.
_SPARSE: Final = {b"data", b"indices", b"indptr", b"shape"}
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
    """A data set: its name below the group, its shape, and what its values are in words.
    ``served``: they are numbers, or structured rows."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    served: bool

    @property
    def words(self) -> str:
        """Such as "obs/qpos (40 x 9 float64)"."""
        name = self.name.encode("utf-8", "backslashreplace").decode()[:_LONGEST]
        return f"{name} ({times(self.shape)} {self.dtype})" if self.shape else name


def list_fields(members: Inside, group: Any) -> list[Listed]:
    """Some data sets of a group, and of the groups in it, by name; a group of sparse rows is one.

    All groups of a level come before those inside them; where too many have no data set, a group
    comes before its neighbours instead.
    """
    return sorted(_search(members, group, deque.popleft) or _search(members, group, deque.pop))


def _search(members: Inside, group: Any, take: Callable[[deque[Any]], Any]) -> list[Listed]:
    found: list[Listed] = []
    groups, seen = deque([(group, b"")]), set[int]()
    while groups and len(seen) < _GROUPS and len(found) < _LISTED:
        here, prefix = take(groups)
        address = h5py.h5o.get_info(here).addr
        if address in seen:
            continue
        seen.add(address)
        inside = dict(members(here))
        if prefix and (starts := _starts(inside)) is not None:
            text = prefix[:-1].decode("utf-8", "surrogateescape")
            found.append(Listed(text, (starts - 1,), SPARSE, True))
            inside = {name: one for name, one in inside.items() if name not in _SPARSE}
        for name, one in inside.items():
            if isinstance(one, h5py.h5g.GroupID):
                groups.append((one, prefix + name + b"/"))
            elif len(found) < _LISTED:
                text = (prefix + name).decode("utf-8", "surrogateescape")
                shape, words, served = ((), "virtual", False) if one is None else _kind(one)
                found.append(Listed(text, shape, words, served))
    return found


def _starts(inside: Mapping[bytes, Any]) -> int | None:
    """How long the ``indptr`` of a group of sparse rows is; None where it is no such group."""
    if not {b"data", b"indices"} <= inside.keys():
        return None
    shape: tuple[int, ...] = getattr(inside.get(b"indptr"), "shape", ())
    return int(shape[0]) if len(shape) == 1 and shape[0] else None


def _kind(data: Any) -> tuple[tuple[int, ...], str, bool]:
    """Shape of a data set (h5py.h5d.DatasetID), what its values are in words, and whether they are
    served. Members of structured rows are not looked at."""
    shape: tuple[int, ...] = data.shape
    instead = no_samples(h5py.Dataset(data))
    words, served = _dtype(data.get_type()) if instead is None else (instead[0], False)
    return shape, words, served


def _dtype(kind: Any) -> tuple[str, bool]:
    """A stored type in words, and whether its values are served."""
    h5t, code, size = h5py.h5t, kind.get_class(), kind.get_size()
    if code == h5t.INTEGER and size <= 8:
        sign = "u" if kind.get_sign() == h5t.SGN_NONE else ""
        return f"{sign}int{8 * size}", True
    if code == h5t.FLOAT and size <= 8:
        return f"float{8 * size}", True
    if code == h5t.ENUM and size == 1:  # as h5py writes numpy's
        return "bool", True
    if code == h5t.COMPOUND:
        return "structured", True
    words = {h5t.STRING: "text", h5t.VLEN: "of variable length", h5t.REFERENCE: "references"}
    return words.get(code, "no numbers"), False


def missing(name: str, listed: Sequence[Listed], path: str, found: str = "") -> NoFieldError:
    """The error for a field ``name`` where there are others, which it lists. ``found``: said before
    them."""
    error = no_field(name, [one.words for one in listed], path)
    error.found = f"{found}{error.found}"
    rows = [one for one in listed if one.served and one.shape and not _says_where(one.name)]
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


def _says_where(name: str) -> bool:
    """Whether a data set of this name says where samples begin, so that it holds none itself."""
    last = name.rpartition("/")[2]
    return last in ("offsets", "indptr") or last.endswith(("_offsets", "_lengths"))
