"""The data sets of a group as errors list them: names, shapes and dtypes; no values are read."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, Final, NamedTuple, TypeAlias

from ...late import h5py
from ...text import times
from ..request import NoFieldError, no_field

#: Names of what is in a group of h5py's, and its low-level objects; None for a virtual data set.
Inside: TypeAlias = Callable[[Any], Iterator[tuple[bytes, Any]]]

#: Data sets that are listed, groups that are looked into, and groups inside each other.
_LISTED, _GROUPS, DEEPEST = 20, 200, 3
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


def list_fields(members: Inside, group: Any, depth: int = DEEPEST) -> list[Listed]:
    """Some data sets of a group, and of the groups in it, by name."""
    found: list[Listed] = []
    groups = deque([(group, b"", 0)])
    for _ in range(_GROUPS):
        if not groups or len(found) >= _LISTED:
            break
        here, prefix, deep = groups.popleft()
        for name, inside in members(here):
            whole = prefix + name
            if isinstance(inside, h5py.h5g.GroupID):
                if deep < depth:
                    groups.append((inside, whole + b"/", deep + 1))
            elif len(found) < _LISTED:
                text = whole.decode("utf-8", "surrogateescape")
                if inside is None:
                    found.append(Listed(text, (), "virtual", False))
                else:
                    found.append(Listed(text, inside.shape, *_dtype(inside.get_type())))
    return sorted(found)


def _dtype(kind: Any) -> tuple[str, bool]:
    """A stored type in words, and whether its values are served. Members of structured rows are not
    looked at."""
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
