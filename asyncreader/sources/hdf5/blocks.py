"""Blocks of an HDF5 file that are read from its bytes: newer structures, and global heaps.

B-trees of the second version, fractal heaps and extensible arrays carry checksums, so that damage
is found; but a forged one with a good checksum kills the library (2.0 too) or makes it loop for
ever. This module checks what the library does not: sizes, counts, and that records point at
objects. HDF5 File Format Specification 3.0, III.A.2, III.G, IV.A.2 and VII.C
(https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html).

Values of variable length lie in global heaps (III.E). An element on disk is a length (u32), the
address of a heap collection (u64) and the number of an object in it (u32). A collection is "GCOL",
a version, its size (u64), and objects: number (u16), references (u16), 4 bytes, size (u64), then
the bytes, padded to 8. All of it is read once, when the set is opened, and checked; after that a
sample is an extent like any other. Limits: data sets of one axis, contiguous or chunked with
filters that are decoded here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...errors import FormatError
from ...system.array_types import Bools, Int64, UInt8, UInt64
from ..bytestore import Bytes

#: Kinds of records, by the tree's type, and their size where it is fixed: links by name and by
#: order of creation, attributes by name and by order, chunks without and with filters.
LINKS, ATTRIBUTES, CHUNKS = (5, 6), (8, 9), (10, 11)
_RECORD: Final = {5: 11, 6: 15, 8: 17, 9: 13}
#: Where a record has the identifier of its object in the heap, and how long that is.
_IDENTIFIER: Final = {5: (4, 7), 6: (8, 7), 8: (0, 8), 9: (0, 8)}
#: Levels of a tree and bytes of a node: HDF5's own are 512 and 2048.
_LEVELS, _LARGEST_NODE = 16, 1 << 20
_SHARED: Final = 0x02


class Forged(Exception):
    """A structure breaks its own rules: what, and where in the file."""


class Malformed(Exception):
    """Something is not what it should be: HDF5 will say so."""


class File:
    """The bytes of a file, ``data``, which has ``size`` of them. Of its addresses, which count from
    ``base``, and of its lengths ``width`` and ``length`` say how many bytes they take."""

    def __init__(self, data: Bytes) -> None:
        self.data, self.size = data.data, data.size
        self.base, self.width, self.length = 0, 8, 8

    def read(self, at: int, size: int) -> memoryview:
        """So many bytes. Malformed unless all are in the file."""
        if at < 0 or size < 0 or at + size > self.size:
            raise Malformed
        found: memoryview = self.data[at : at + size]
        return found

    def number(self, at: int, size: int) -> int:
        """A little-endian number of so many bytes."""
        if at < 0 or at + size > self.size:
            raise Malformed
        return int.from_bytes(self.data[at : at + size], "little")

    def address(self, at: int) -> int | None:
        """The offset that the address at ``at`` means; None if it is not in the file."""
        if at < 0 or at + self.width > self.size:
            raise Malformed
        here = int.from_bytes(self.data[at : at + self.width], "little") + self.base
        return here if here + 8 <= self.size else None


def _need(good: bool, what: str, at: int) -> None:
    if not good:
        raise Forged(what, at)


# -- fractal heaps -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heap:
    """A heap's limits, with which identifiers of its objects are compared. ``block``: its direct
    block, if it has only one."""

    offset_bytes: int
    length_bytes: int
    managed: int
    largest: int
    block: int | None


def _bits(number: int) -> int:
    return number.bit_length() - 1


def read_heap(file: File, at: int) -> Heap:
    """The heap whose header is at ``at``."""
    w, n = file.width, file.length
    _need(bytes(file.read(at, 5)) == b"FRHP\0", "a heap that is none", at)
    filters, largest = file.number(at + 7, 2), file.number(at + 10, 4)
    managed = file.number(at + 14 + 2 * n + 2 * w, n)
    table = at + 14 + 10 * n + 2 * w
    wide, first, top = (
        file.number(table, 2),
        file.number(table + 2, n),
        file.number(table + 2 + n, n),
    )
    space, root = file.number(table + 2 + 2 * n, 2), file.address(table + 6 + 2 * n)
    rows = file.number(table + 6 + 2 * n + w, 2)
    for number in (wide, first, top):
        _need(number > 0 and number & (number - 1) == 0, "a heap of impossible sizes", at)
    _need(wide <= 1 << 10 and first <= top <= 1 << 32, "a heap of impossible sizes", at)
    _need(8 < space <= 64 and rows <= 64 and largest <= top, "a heap of impossible sizes", at)
    _need(managed <= min(1 << space, 1 << 63), "a heap of impossible sizes", at)
    _need(largest > 0, "a heap of impossible sizes", at)
    length = min((_bits(top) + 7) // 8, _bits(largest) // 8 + 1)  # H5HF__hdr_finish_init
    one = root if rows == 0 and filters == 0 else None
    return Heap((space + 7) // 8, length, managed, largest, one)


def _identified(heap: Heap, rows: UInt8, at: int) -> UInt64:
    """(n, 2): offset and length of the heap's own objects that identifiers (n, 7 or 8) name."""
    kinds = rows[:, 0]
    _need(bool((kinds & 0xCF == 0).all() and (kinds >> 4 < 3).all()), "an object of no kind", at)
    own = rows[kinds == 0]
    split, end = 1 + heap.offset_bytes, 1 + heap.offset_bytes + heap.length_bytes
    _need(end <= rows.shape[1], "a heap of impossible sizes", at)
    offset, length = (
        (own[:, lo:hi].astype(np.uint64) << (8 * np.arange(hi - lo, dtype=np.uint64))).sum(
            axis=1, dtype=np.uint64
        )
        for lo, hi in ((1, split), (split, end))
    )
    good = (length > 0) & (length <= heap.largest) & (length <= heap.managed)
    _need(bool(good.all()), "an object of impossible size", at)
    _need(bool((offset <= heap.managed - length).all()), "an object outside its heap", at)
    return np.stack([offset, length], axis=1)


def _attribute(file: File, at: int, length: int) -> None:
    """An attribute message, version 3: its parts fit in it."""
    _need(length >= 9, "an attribute cut short", at)
    version = file.number(at, 1)
    name, kind, space = (file.number(at + i, 2) for i in (2, 4, 6))
    _need(version in (1, 2, 3), "an attribute of no version", at)
    head = 9 if version == 3 else 8
    _need(name > 0 and head + name + kind + space <= length, "an attribute cut short", at)
    _need(file.number(at + head + name - 1, 1) == 0, "an attribute whose name does not end", at)


def _link(file: File, at: int, length: int) -> None:
    """A link message: its name fits in it."""
    _need(length >= 4, "a link cut short", at)
    version, flags = file.number(at, 1), file.number(at + 1, 1)
    _need(version == 1, "a link of no version", at)
    width = 1 << (flags & 3)
    head = 2 + (flags >> 3 & 1) + (8 if flags & 4 else 0) + (flags >> 4 & 1)
    _need(head + width <= length, "a link cut short", at)
    name = file.number(at + head, width)
    _need(0 < name <= length - head - width, "a link cut short", at)


# -- trees ---------------------------------------------------------------------------------------


def check_tree(file: File, at: int, kinds: tuple[int, int], heap: int | None) -> None:
    """A tree of the second version whose header is at ``at``, of one of ``kinds``; its records'
    objects are in the heap whose header is at ``heap``. Raises Forged."""
    w, n = file.width, file.length
    _need(bytes(file.read(at, 5)) == b"BTHD\0", "a tree that is none", at)
    kind, node, record = file.number(at + 5, 1), file.number(at + 6, 4), file.number(at + 10, 2)
    depth, split, merge = (file.number(at + i, s) for i, s in ((12, 2), (14, 1), (15, 1)))
    used, total = file.number(at + 16 + w, 2), file.number(at + 18 + w, n)
    _need(kind in kinds, "a tree of another kind", at)
    _need(record == _RECORD.get(kind, record) and record > 0, "records of impossible size", at)
    _need(64 <= node <= _LARGEST_NODE and 10 + record <= node, "nodes of impossible size", at)
    _need(depth <= _LEVELS, "a tree of absurd depth", at)
    _need(0 < split <= 100 and 0 < merge <= 100 and 2 * merge <= split, "impossible shares", at)
    _need(total <= file.size and (used > 0) == (total > 0), "impossible counts", at)
    tree = _Tree(file, kind, node, record, None if heap is None else read_heap(file, heap))
    capacity = tree.capacities(depth, at)
    _need(used <= capacity[depth], "more records than fit a node", at)
    if kind in CHUNKS or total == 0:
        return
    root = file.address(at + 16)
    _need(root is not None, "a root outside the file", at)
    assert root is not None
    _need(tree.count(root, used, depth) == total, "another number of records than stated", at)


class _Tree:
    def __init__(self, file: File, kind: int, node: int, record: int, heap: Heap | None) -> None:
        self._file = file
        self._kind = kind
        self._node = node
        self._record = record
        self._heap = heap
        self._pointers: list[tuple[int, int]] = []
        self._capacity: list[int] = []
        self._seen: set[int] = set()

    def capacities(self, depth: int, at: int) -> list[int]:
        """Records that a node of each level holds at most (H5B2_hdr_init's arithmetic)."""
        most = (self._node - 10) // self._record
        self._capacity, self._pointers = [most], [(0, 0)]
        count_bytes, sum_bytes, below = _bits(most) // 8 + 1, 0, most
        for _ in range(depth):
            pointer = self._file.width + count_bytes + sum_bytes
            holds = (self._node - 10 - pointer) // (self._record + pointer)
            _need(holds > 0, "nodes of impossible size", at)
            self._capacity.append(holds)
            self._pointers.append((pointer, count_bytes))
            below = (holds + 1) * below + holds
            sum_bytes = _bits(below) // 8 + 1
        return self._capacity

    def count(self, at: int, used: int, level: int) -> int:
        """Records of a node and all below it, after a look at each."""
        _need(at not in self._seen, "a tree that leads back to itself", at)
        self._seen.add(at)
        _need(used <= self._capacity[level], "more records than fit a node", at)
        self._file.read(at, self._node)  # HDF5 reads all of it
        head = b"BTIN\0" if level else b"BTLF\0"
        _need(bytes(self._file.read(at, 5)) == head, "a node that is none", at)
        _need(self._file.number(at + 5, 1) == self._kind, "a node of another tree", at)
        body = np.frombuffer(self._file.read(at + 6, used * self._record), np.uint8)
        self._records(body.reshape(used, self._record), at)
        if level == 0:
            return used
        pointer, count_bytes = self._pointers[level]
        offset, total = at + 6 + used * self._record, used
        for _ in range(used + 1):
            child = self._file.address(offset)
            _need(child is not None, "a child outside the file", at)
            assert child is not None
            holds = self._file.number(offset + self._file.width, count_bytes)
            total += self.count(child, holds, level - 1)
            offset += pointer
        return total

    def _records(self, rows: UInt8, at: int) -> None:
        heap = self._heap
        if heap is None or not rows.size:
            return
        first, size = _IDENTIFIER[self._kind]
        if self._kind in ATTRIBUTES:
            _need(not (rows[:, 8] & _SHARED).any(), "an attribute kept elsewhere", at)
        found = _identified(heap, rows[:, first : first + size], at)
        if heap.block is None:
            return
        check = _attribute if self._kind in ATTRIBUTES else _link
        for offset, length in found.tolist():
            check(self._file, heap.block + offset, length)


# -- extensible arrays ---------------------------------------------------------------------------


def check_array(file: File, at: int, stated: bytes) -> None:
    """An extensible array whose header is at ``at``: its five parameters are those ``stated`` in
    the layout, and its counts are no more than the file can hold. Raises Forged."""
    w, n = file.width, file.length
    _need(bytes(file.read(at, 5)) == b"EAHD\0", "an array that is none", at)
    _need(file.number(at + 5, 1) in (0, 1), "an array of no kind", at)
    _need(0 < file.number(at + 6, 1) <= w + 12, "elements of impossible size", at)
    bits, inner, pointers, least, page = stated
    held = bytes((bits, inner, least, pointers, page))  # two are the other way round here
    _need(bytes(file.read(at + 7, 5)) == held, "an array of other parameters", at)
    _need(0 < bits <= 64 and page <= bits, "an array of impossible parameters", at)
    for i in range(6):
        _need(file.number(at + 12 + i * n, n) <= 8 * file.size, "impossible counts", at)


# -- global heaps ----------------------------------------------------------------------------------


#: An element as it is stored, with offsets of 8 bytes.
ELEMENT: Final = np.dtype([("length", "<u4"), ("address", "<u8"), ("object", "<u4")])
#: Elements looked at together: bounds the memory of opening.
BLOCK: Final = 1 << 16
_HEAD: Final = 16
#: Objects of a collection have 16-bit numbers.
_OBJECTS: Final = 1 << 16
#: So few collections are read one after the other: a step of all together takes as long as 64.
FEW: Final = 64
_OBJECT: Final = struct.Struct("<H6xQ")


def heap_extents(
    parts: Iterable[UInt8], count: int, data: UInt8, base: int, item: int, name: str
) -> tuple[Int64, npt.NDArray[np.uint32]]:
    """(starts, sizes in bytes) of all elements. FormatError names the first that is damaged.

    ``parts``: the stored elements, piece by piece; ``data``: the whole file; ``base``: what its
    addresses count from; ``item``: bytes of one value.
    """
    starts, sizes = np.zeros(count, np.int64), np.zeros(count, np.uint32)
    at = 0
    for part in parts:
        elements = part.view(ELEMENT)
        for lo in range(0, elements.size, BLOCK):
            block = elements[lo : lo + BLOCK]
            found = _Heaps(data, base, name, at).extents(block, item)
            starts[at : at + block.size], sizes[at : at + block.size] = found
            at += block.size
    assert at == count
    return starts, sizes


class _Heaps:
    """The collections that some elements lie in."""

    def __init__(self, data: UInt8, base: int, name: str, first: int) -> None:
        self.data = data
        self.base = base
        self.name = name
        self.first = first

    def _need(self, good: Bools, elements: Int64, what: str) -> None:
        if not good.all():
            raise FormatError(
                f"a sample of {self.name!r} cannot be found: {what}",
                index=self.first + int(elements[int(np.argmin(good))]),
                hint="the file is damaged: copy or write it again",
            )

    def _ints(self, at: Int64, width: int) -> Int64:
        """Little-endian numbers of ``width`` bytes; those of 8 are negative from 2^63 on."""
        raw = np.zeros((at.size, 8), np.uint8)
        raw[:, :width] = self.data[at[:, None] + np.arange(width)]
        return raw.view("<i8")[:, 0].astype(np.int64)

    def extents(self, elements: npt.NDArray[np.void], item: int) -> tuple[Int64, Int64]:
        """Start and size in bytes of each element; (0, 0) of an empty one."""
        starts = np.zeros(elements.size, np.int64)
        sizes: Int64 = elements["length"].astype(np.int64) * item
        full = np.flatnonzero(sizes)
        address = elements["address"][full]
        here = address < np.uint64(self.data.size)
        self._need(here, full, "its heap lies outside the file")
        heaps, which = np.unique(address.astype(np.int64) + self.base, return_inverse=True)
        members = np.zeros(heaps.size, np.int64)
        members[which] = full  # one element of each, for errors
        wanted = which * _OBJECTS + elements["object"][full].astype(np.int64)
        good = elements["object"][full] < _OBJECTS
        self._need(good, full, "its object has a number out of range")
        keys, offsets, lengths = self._objects(heaps, members)
        found = np.minimum(np.searchsorted(keys, wanted), max(0, keys.size - 1))
        there = (keys[found] == wanted) if keys.size else np.zeros(full.size, np.bool_)
        self._need(there, full, "it is not in its heap")
        self._need(sizes[full] <= lengths[found], full, "it is longer than its heap object")
        self._need(sizes[full] < 1 << 32, full, "it is longer than 4 GiB")
        starts[full] = offsets[found]
        return starts, sizes

    def _objects(self, heaps: Int64, members: Int64) -> tuple[Int64, Int64, Int64]:
        """All objects of the collections at ``heaps``: (collection x 65,536 + number, ascending;
        start; size)."""
        size = self.data.size
        self._need(heaps <= size - _HEAD, members, "its heap lies outside the file")
        signature = self.data[heaps[:, None] + np.arange(5)]
        right = (signature == np.frombuffer(b"GCOL\x01", np.uint8)).all(axis=1)
        self._need(right, members, "its heap is none")
        stated = self._ints(heaps + 8, 8)
        self._need((stated >= _HEAD) & (stated <= size - heaps), members, "its heap is cut short")
        ends = heaps + stated
        at = heaps + _HEAD
        todo = np.arange(heaps.size)
        keys, offsets, lengths = [], [], []
        for _ in range(_OBJECTS):
            todo = todo[at[todo] + _HEAD <= ends[todo]]
            if todo.size <= FEW:
                break
            number = self._ints(at[todo], 2)
            todo, number = todo[number > 0], number[number > 0]  # 0: the free space at the end
            if todo.size == 0:
                break
            length = self._ints(at[todo] + 8, 8)
            inside = (length >= 0) & (length <= ends[todo] - at[todo] - _HEAD)
            self._need(inside, members[todo], "its heap is damaged")
            keys.append(todo * _OBJECTS + number)
            offsets.append(at[todo] + _HEAD)
            lengths.append(length)
            at[todo] += _HEAD + (length + 7) // 8 * 8
        for heap in todo.tolist():
            some = self._scan(int(at[heap]), int(ends[heap]), members[heap : heap + 1])
            keys.append(heap * _OBJECTS + some[0])
            offsets.append(some[1])
            lengths.append(some[2])
        if not keys:
            empty = np.empty(0, np.int64)
            return empty, empty, empty
        all_keys = np.concatenate(keys)
        order = np.argsort(all_keys, kind="stable")
        return all_keys[order], np.concatenate(offsets)[order], np.concatenate(lengths)[order]

    def _scan(self, at: int, end: int, member: Int64) -> Int64:
        """(3, n): number, start and size of each object of one collection from ``at`` on."""
        found, data = array("q"), self.data.data
        while at + _HEAD <= end and len(found) < 3 * _OBJECTS:
            number, length = _OBJECT.unpack_from(data, at)
            if number == 0:  # the free space at the end
                break
            if length > end - at - _HEAD:
                self._need(np.zeros(1, np.bool_), member, "its heap is damaged")
            found.extend((number, at + _HEAD, length))
            at += _HEAD + (length + 7) // 8 * 8
        return np.array(found, np.int64).reshape(-1, 3).T
