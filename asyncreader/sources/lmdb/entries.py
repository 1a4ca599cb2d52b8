"""Keys and values of an LMDB database as tables of offsets: what foreign layouts begin with."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt

from ...errors import ErrorFields, FormatError
from ...system.array_types import Array, Bools, Int64, UInt8
from .btree import LmdbFile, Tree

#: Records looked at together: bounds the memory of a pass, and the time until Ctrl-C is heard.
BLOCK: Final = 1 << 16
AGAIN: Final = "the file is damaged: copy or write it again"
#: Bytes of a node before its key (btree.py).
_NODE: Final = 8


def shown_key(key: bytes) -> str:
    """A key as it is named in errors: its text, or its bytes in hex."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def gather(data: UInt8, starts: Int64, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """(n, *shape) in native byte order: the values that lie at ``starts``, one after the other.

    The caller has checked that they lie inside ``data`` and how much memory they take.
    """
    size = math.prod(shape) * dtype.itemsize
    out = np.empty((starts.size, size), np.uint8)
    step = max(1, (4 << 20) // max(1, size))
    for lo in range(0, starts.size, step):
        out[lo : lo + step] = data[starts[lo : lo + step, None] + np.arange(size)]
    native: Array = out.reshape(-1).view(dtype).reshape(starts.size, *shape)
    return native.astype(dtype.newbyteorder("="), copy=False)


@dataclass(frozen=True)
class Entries:
    """Entries of a database. ``at``: their nodes; ``starts``/``sizes``: their values in the file.

    About 22 bytes of memory each. The walk of the tree has checked all of them against the file.
    """

    tree: LmdbFile
    at: Int64
    key_sizes: npt.NDArray[Any]
    starts: Int64
    sizes: npt.NDArray[Any]

    @classmethod
    def of(cls, tree: LmdbFile, database: Tree) -> Entries:
        """All entries of ``database``, in key order."""
        nodes = tree.table(database)
        return cls(tree, nodes.at, nodes.key_sizes, nodes.starts, nodes.sizes)

    def __len__(self) -> int:
        return self.at.size

    def key(self, index: int) -> bytes:
        """The key of an entry."""
        at = int(self.at[index]) + _NODE
        return self.tree.data[at : at + int(self.key_sizes[index])].tobytes()

    def key_starts(self) -> Int64:
        """Where the keys are in the file."""
        return self.at + _NODE

    def value(self, index: int) -> UInt8:
        """The value of an entry: a view into the file."""
        start = int(self.starts[index])
        return self.tree.data[start : start + int(self.sizes[index])]

    def pick(self, which: Int64 | Bools) -> Entries:
        """Some of the entries, or all in another order."""
        return Entries(
            self.tree,
            self.at[which],
            self.key_sizes[which],
            self.starts[which],
            self.sizes[which],
        )

    def place(self, key: bytes, first: int = 0) -> int:
        """Where ``key`` is among the entries, which are in the order of their keys; without it,
        where it would be. It is not before ``first``."""
        return bisect.bisect_left(range(len(self)), key, first, key=self.key)

    def check_numbered(self) -> None:
        """FormatError unless the keys are exactly 0, 1, 2 ... as 10 ASCII digits."""
        if (self.numbers(digits=10) != np.arange(len(self))).any():
            raise FormatError(
                "its tree is damaged: record numbers with gaps",
                path=self.tree.path,
                hint="copy or convert it again",
            )

    def numbers(self, prefix: bytes = b"", digits: int | None = None) -> Int64:
        """The number in each key that is ``prefix`` and ASCII digits (``digits`` of them); -1."""
        found = np.full(len(self), -1, np.int64)
        head, skip = np.frombuffer(prefix, np.uint8), len(prefix)
        for size in np.unique(self.key_sizes).tolist():
            width = size - skip
            if not 1 <= width <= 18 or digits not in (None, width):
                continue
            powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
            which = np.flatnonzero(self.key_sizes == size)
            for lo in range(0, which.size, BLOCK):
                part = which[lo : lo + BLOCK]
                keys = self.tree.data[(self.at[part] + _NODE)[:, None] + np.arange(size)]
                tail = keys[:, skip:].astype(np.int64) - 48
                good = (keys[:, :skip] == head).all(axis=1)
                good &= ((tail >= 0) & (tail <= 9)).all(axis=1)
                found[part[good]] = tail[good] @ powers
        return found

    def blame(self, index: int) -> ErrorFields:
        """Error fields that name an entry as sample ``index``."""
        return {"path": self.tree.path, "index": index, "key": shown_key(self.key(index))}

    def refuse(self, index: int, what: str, /, **fields: Unpack[ErrorFields]) -> FormatError:
        """The error for an entry, which it names as sample ``index``."""
        fields.update(self.blame(index))
        return FormatError(what, **fields)

    def need(
        self,
        good: Bools,
        what: str,
        found: Callable[[int], object] = lambda bad: None,
        /,
        **fields: Unpack[ErrorFields],
    ) -> None:
        """FormatError unless all entries are ``good``: it names the first that is not, and what is
        ``found`` there."""
        if not good.all():
            bad = int(np.argmin(good))
            fields["found"] = found(bad)
            raise self.refuse(bad, what, **fields)

    def read(
        self, kernel: Callable[..., None], *arguments: Any, names: Sequence[str] = ("",)
    ) -> None:
        """Call a kernel that reads records (``kernels.read_datums``) on all values, some at a time.

        ``names``: of its fields, for errors. FormatError names the first record that it refuses.
        """
        for lo in range(0, len(self), BLOCK):
            hi = min(lo + BLOCK, len(self))
            with self.located(names) as place:
                kernel(self.tree.data, self.starts, self.sizes, lo, hi, *arguments, place)

    @contextmanager
    def located(self, names: Sequence[str] = ("",)) -> Iterator[Int64]:
        """The place that a kernel notes: inside, what it refuses is a FormatError that says it."""
        place = np.full(4, -1, np.int64)
        try:
            yield place
        except ValueError as exc:
            record, field, at, size = place.tolist()
            found = None if at < 0 else at if size < 0 else self.tree.data[at : at + size].tobytes()
            what = str(exc).format(repr(names[max(0, field)]))
            raise self.refuse(record, what, found=found, hint=AGAIN) from None
