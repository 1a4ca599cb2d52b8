"""LMDB files: their tree, keys and values, read without the LMDB library.

The library trusts its file: on a short or damaged one it kills the process. Here the file is bytes;
every page number, node and length is checked against the file before it is used, whole levels of
the tree at a time. No lock is taken and no lock file is written.

Format (LMDB 0.9, data version 1, 64-bit little-endian; from the structures in its ``mdb.c``): a
page has a 16-byte header (number u64, pad u16, flags u16, lower u16, upper u16; an overflow page
has its page count u32 in place of the last two). Behind it stand node offsets (u16), one per node;
a node is size-low u16, size-high u16, flags u16, key size u16, key, data. On a branch page the
first three are the child's page number; on a leaf they are the data's size and flags. Data that
does not fit lies on overflow pages, contiguous, 16 bytes after the page's start.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import ErrorFields, FormatError
from ..system.array_types import Array, Bools, Int64, UInt8
from .bytestore import check_descriptors

MAGIC: Final = 0xBEEFC0DE
_BRANCH, _LEAF, _OVERFLOW, _META, _LEAF2 = 0x01, 0x02, 0x04, 0x08, 0x20
_BIG, _SUB, _DUP = 0x01, 0x02, 0x04
_HEADER, _NODE = 16, 8
_U64: Final = struct.Struct("<Q")
#: A meta page after its header: magic, version, address, map size, the trees of free pages and of
#: the data, last page, transaction. A tree: page size (that of free pages), flags, depth, numbers
#: of branch, leaf and overflow pages, entries, root.
_META_PAGE: Final = struct.Struct("<II16x48s48sQQ")
_TREE: Final = struct.Struct("<IHH24xQQ")
_EMPTY: Final = 0xFFFFFFFFFFFFFFFF
#: Bytes of leaf pages looked at together: bounds the memory of a walk.
_TOGETHER: Final = 32 << 20
#: Pages that a sound file may lack at its end: 4 GiB of them.
_UNWRITTEN: Final = 1 << 20
#: Levels of a tree: LMDB's own limit is 32.
_DEPTH: Final = 40


class Tree(NamedTuple):
    """One database of the file: root page, depth and number of entries; ``pad``: in the tree of
    free pages, the page size."""

    pad: int
    flags: int
    depth: int
    entries: int
    root: int


class _Meta(NamedTuple):
    """A good meta page: where it begins, and what it says."""

    at: int
    transaction: int
    last_page: int
    main: Tree
    free: Tree


@dataclass(frozen=True)
class Nodes:
    """Leaf nodes in key order. ``at``: node offsets; ``starts``/``sizes``: data in the file."""

    at: Int64
    key_sizes: npt.NDArray[np.integer[Any]]
    starts: Int64
    sizes: npt.NDArray[np.integer[Any]]
    flags: npt.NDArray[np.integer[Any]]


class LmdbFile:
    """The current snapshot of an LMDB data file held in ``data`` (uint8, the whole file)."""

    def __init__(self, data: UInt8, path: str) -> None:
        self.data = data
        self.path = path
        if data.size < _HEADER + 136:
            raise FormatError("too short for an LMDB file", path=path, found=f"{data.size} bytes")
        metas = [meta for meta in (self._meta(0), self._second_meta()) if meta is not None]
        if not metas:
            raise FormatError("not an LMDB file, or its meta pages are damaged", path=path)
        newest = max(metas, key=itemgetter(1))
        self.page_size, self.last_page = newest.free.pad, newest.last_page
        self.transaction, self.main, self.free = newest.transaction, newest.main, newest.free
        #: where the good meta pages have the numbers of their transactions
        self._stamps = [meta.at + _HEADER + 128 for meta in metas]
        self._pages = min(self.last_page + 1, data.size // self.page_size)
        self._u16 = self.data[: self._pages * self.page_size].view("<u2")
        if self.short() and not self._rest_is_free():
            raise self.truncated()

    def short(self) -> bool:
        """Whether the file ends before the last page it ever used."""
        return self._pages <= self.last_page

    def truncated(self) -> FormatError:
        """The error of a file that is short."""
        return FormatError(
            "the file is truncated",
            path=self.path,
            found=f"{self.data.size} bytes",
            expected=f"{(self.last_page + 1) * self.page_size} bytes, by its meta page",
            hint="copy or convert it again",
        )

    def _rest_is_free(self) -> bool:
        """Whether nothing is on the pages after the file's end: LMDB does not write a page that it
        takes and frees in one transaction. Then the file is whole all the same."""
        missing = self.last_page + 1 - self._pages
        if missing > _UNWRITTEN or self.data.size % self.page_size:
            return False
        try:
            free = self.table(self.free)
        except FormatError:
            return False
        lists = (  # values: how many pages, then their numbers
            self.data[start + 8 : start + size].view("<u8")
            for start, size in zip(free.starts.tolist(), free.sizes.tolist(), strict=True)
            if size % 8 == 0
        )
        lacking = [pages[pages >= self._pages] for pages in lists]
        return bool(lacking) and np.unique(np.concatenate(lacking)).size == missing

    # -- reading fixed structures ----------------------------------------------------------

    def _meta(self, at: int) -> _Meta | None:
        """The meta page at ``at``; None if there is no good one."""
        base = at + _HEADER
        if base + _META_PAGE.size > self.data.size:
            return None
        magic, version, free, main, last, number = _META_PAGE.unpack_from(self.data.data, base)
        if magic != MAGIC or not self.data[at + 10] & _META:
            return None
        if version != 1:
            raise FormatError(
                "another LMDB data version",
                path=self.path,
                found=version,
                expected=1,
                hint="copy it with mdb_dump and mdb_load of LMDB 0.9",
            )
        found = _Meta(at, number, last, Tree(*_TREE.unpack(main)), Tree(*_TREE.unpack(free)))
        size = found.free.pad
        return None if size < 512 or size > 65536 or size & (size - 1) else found

    def _second_meta(self) -> _Meta | None:
        """The second meta page, which is one page on: page 0 states the size, else the usual ones
        are tried."""
        magic, _, free, *_ = _META_PAGE.unpack_from(self.data.data, _HEADER)
        stated = _TREE.unpack(free)[0] if magic == MAGIC else 0
        for size in (stated,) if stated else (4096, 8192, 16384, 32768, 65536):
            found = self._meta(size)
            if found is not None and found.free.pad == size:
                return found
        return None

    def overtaken(self) -> bool:
        """Whether a writer may have written over this snapshot by now.

        Pages freed by transaction F are used again from F + 2 on (no reader is registered): those
        of snapshot S, freed by S + 1 at the earliest, while S + 3 is written.
        """
        newest = self.transaction + 1
        return any(_U64.unpack_from(self.data.data, at)[0] > newest for at in self._stamps)

    def _bad(self, what: str, page: int | None = None) -> FormatError:
        return FormatError(
            f"its tree is damaged: {what}",
            path=self.path,
            found=None if page is None else f"page {page}",
            hint="copy or convert it again",
        )

    # -- pages -----------------------------------------------------------------------------

    def _open_pages(self, pages: Int64, kind: int) -> Int64:
        """Number of nodes on each page, after checking that all are pages of this kind."""
        if pages.size and (int(pages.min()) < 2 or int(pages.max()) >= self._pages):
            raise self._bad("a page number out of range")
        half = pages * (self.page_size // 2)
        number = self._u16[half].astype(np.int64) | (self._u16[half + 1].astype(np.int64) << 16)
        number |= self._u16[half + 2].astype(np.int64) << 32
        wrong = (number != pages) | ((self._u16[half + 5] & 0x2F) != kind)
        if wrong.any():
            raise self._bad("a page is not what it should be", int(pages[np.argmax(wrong)]))
        lower = self._u16[half + 6].astype(np.int64)
        upper = self._u16[half + 7].astype(np.int64)
        wrong = (lower < _HEADER) | (lower > upper) | (upper > self.page_size)
        if wrong.any():
            raise self._bad("a page's bounds make no sense", int(pages[np.argmax(wrong)]))
        counts: Int64 = (lower - _HEADER) >> 1
        if kind == _BRANCH and (counts < 2).any():
            raise self._bad(
                "a branch page with fewer than two children", int(pages[np.argmax(counts < 2)])
            )
        # nodes lie one after another: a page cannot name one of them a thousand times
        wrong = counts * _NODE > self.page_size - upper
        if wrong.any():
            raise self._bad("more nodes than fit a page", int(pages[np.argmax(wrong)]))
        return counts

    def _nodes(self, pages: Int64, counts: Int64) -> tuple[Int64, Int64]:
        """File offset of every node, in order, and of the end of the page it is on."""
        page_of = np.repeat(pages, counts)
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        within = np.arange(page_of.size, dtype=np.int64) - firsts
        base = page_of * self.page_size
        offset = self._u16[(base + _HEADER) // 2 + within].astype(np.int64)
        if offset.size and (
            int(offset.min()) < _HEADER
            or int(offset.max()) > self.page_size - _NODE
            or (offset & 1).any()
        ):
            raise self._bad("a node lies outside its page")
        return base + offset, base + self.page_size

    def _heads(self, nodes: Int64) -> Int64:
        """The four numbers that each node begins with, int64 (4, n)."""
        heads, half = np.empty((4, nodes.size), np.int64), nodes // 2
        for number in range(4):
            heads[number] = self._u16[half + number]
        return heads

    def leaves(self, tree: Tree) -> Int64:
        """Leaf page numbers of ``tree``, in key order."""
        if tree.root == _EMPTY or tree.depth == 0:
            if tree.entries:
                raise self._bad("an empty tree that claims entries")
            return np.empty(0, np.int64)
        self._check_root(tree)
        level = np.array([tree.root], np.int64)
        for _ in range(tree.depth - 1):
            counts = self._open_pages(level, _BRANCH)
            nodes, _ends = self._nodes(level, counts)
            low, middle, high, _ = self._heads(nodes)
            level = low | middle << 16 | high << 32
            if level.size > self._pages or np.unique(level).size != level.size:
                raise self._bad("a page is reached twice")
        return level

    def _check_root(self, tree: Tree) -> None:
        if tree.depth > _DEPTH:
            raise self._bad("depth out of range")
        if tree.root >= self._pages:
            raise self._bad("the root's page number is out of range")

    def walk(self, tree: Tree) -> Iterator[Nodes]:
        """All leaf nodes of ``tree`` in key order, some thousand pages at a time."""
        leaves = self.leaves(tree)
        seen = 0
        step = max(1, _TOGETHER // self.page_size)
        for lo in range(0, leaves.size, step):
            nodes = self._leaf_nodes(leaves[lo : lo + step])
            seen += nodes.at.size
            yield nodes
        if seen != tree.entries:
            raise self._bad(f"{seen} entries where {tree.entries} are stated")

    def _leaf_nodes(self, pages: Int64) -> Nodes:
        """All nodes of leaf pages, in order."""
        nodes, ends = self._nodes(pages, self._open_pages(pages, _LEAF))
        low, high, flags, key_sizes = self._heads(nodes)
        sizes = low | high << 16
        starts = nodes + _NODE + key_sizes
        big = (flags & _BIG) != 0
        space = ends - starts
        if (space < np.where(big, 8, sizes)).any():
            raise self._bad("a node runs past its page")
        if big.any():
            starts[big] = self._overflow(starts[big], sizes[big])
        return Nodes(nodes, key_sizes, starts, sizes, flags)

    def _keys(self, nodes: Int64, sizes: Array) -> list[bytes]:
        """The keys of nodes."""
        begin = nodes + _NODE
        pairs = zip(begin.tolist(), (begin + sizes).tolist(), strict=True)
        return [self.data[start:stop].tobytes() for start, stop in pairs]

    def _overflow(self, at: Int64, sizes: Int64) -> Int64:
        """Where data on overflow pages starts, from the page numbers at ``at``."""
        raw: UInt8 = self.data[at[:, None] + np.arange(8)]
        pages: Int64 = np.ascontiguousarray(raw).view("<i8")[:, 0].astype(np.int64)
        needed = (_HEADER + sizes + self.page_size - 1) // self.page_size
        if ((pages < 2) | (pages > self._pages) | (needed > self._pages - pages)).any():
            raise self._bad("a value lies outside the file")
        return pages * self.page_size + _HEADER

    # -- databases -------------------------------------------------------------------------

    def named(self) -> dict[bytes, Tree]:
        """The named databases (at most 4,096 are looked at)."""
        found: dict[bytes, Tree] = {}
        if self.main.entries > 4096:
            return found
        for nodes in self.walk(self.main):
            keys = self._keys(nodes.at, nodes.key_sizes)
            for key, start, length, flags in zip(
                keys, nodes.starts, nodes.sizes, nodes.flags, strict=True
            ):
                if flags & _SUB and length == 48:
                    found[key] = Tree(*_TREE.unpack_from(self.data.data, start))
        return found

    def table(self, tree: Tree) -> Entries:
        """All entries of ``tree`` in key order, whose values are plain ones: without flags."""
        count, done = tree.entries, 0
        if count > self.data.size // _NODE:
            raise self._bad("more entries than the file can hold")
        at, starts = np.empty(count, np.int64), np.empty(count, np.int64)
        found = Entries(self, at, np.empty(count, np.uint16), starts, np.empty(count, np.uint32))
        for nodes in self.walk(tree):
            part = slice(done, done + nodes.at.size)
            if part.stop > count:
                raise self._bad("more entries than stated")
            if (nodes.flags & ~_BIG).any():
                raise self._bad("values of an unexpected kind")
            found.at[part], found.key_sizes[part] = nodes.at, nodes.key_sizes
            found.starts[part], found.sizes[part] = nodes.starts, nodes.sizes
            done = part.stop
        return found

    def find(self, tree: Tree, key: bytes) -> UInt8 | None:
        """The value under ``key``: one walk down the tree."""
        if tree.entries == 0 or tree.depth == 0:
            return None
        self._check_root(tree)
        page = np.array([tree.root], np.int64)
        for _ in range(tree.depth - 1):
            nodes, ends = self._nodes(page, self._open_pages(page, _BRANCH))
            low, middle, high, sizes = self._heads(nodes)
            if (sizes > ends - nodes - _NODE).any():
                raise self._bad("a node runs past its page")
            # the first branch key stands for "everything below the second"
            keys = self._keys(nodes, sizes)
            pick = max(i for i in range(len(keys)) if i == 0 or keys[i] <= key)
            page = (low | middle << 16 | high << 32)[pick : pick + 1]
        found = self._leaf_nodes(page)
        keys = self._keys(found.at, found.key_sizes)
        if key not in keys:
            return None
        which = keys.index(key)
        start = int(found.starts[which])
        return self.data[start : start + int(found.sizes[which])]


# -- entries ---------------------------------------------------------------------------------------


#: Records looked at together: bounds the memory of a pass, and the time until Ctrl-C is heard.
BLOCK: Final = 1 << 16
AGAIN: Final = "the file is damaged: copy or write it again"


def shown_key(key: bytes) -> str:
    """A key as it is named in errors: its text, or its bytes in hex."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


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


# -- the data file ---------------------------------------------------------------------------------


_MAGIC: Final = b"\xde\xc0\xef\xbe"


def data_file_in(folder: str) -> str | None:
    """The data file of the LMDB environment that is a folder, or None."""
    inside = os.path.join(folder, "data.mdb")
    return inside if os.path.isfile(inside) else None


def bears_magic(data: UInt8) -> bool:
    """Whether a file of these bytes is LMDB's data file."""
    return data[16:20].tobytes() == _MAGIC


def lmdb_data_file(path: str) -> str | None:
    """The data file of the LMDB environment at ``path`` (a directory or a file), or None."""
    if os.path.isdir(path):
        return data_file_in(path)
    if not os.path.isfile(path):  # a pipe would be waited for
        return None
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError as exc:
        check_descriptors(exc, path)
        return None
    return path if head[16:20] == _MAGIC else None
