"""HDF5 data sets of variable length: where each element's bytes lie in the file's global heaps.

An element on disk is a length (u32), the address of a heap collection (u64) and the number of an
object in it (u32). A collection is "GCOL", a version, its size (u64), and objects: number (u16),
references (u16), 4 bytes, size (u64), then the bytes, padded to 8 (HDF5 File Format Specification
3.0, III.E; https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html). All of it is read
once, when the set is opened, and checked; after that a sample is an extent like any other.
Limits: data sets of one axis, contiguous or chunked with filters that are decoded here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from ...errors import FormatError
from ...system.array_types import Bools, Int64, UInt8

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
    parts: Iterable[UInt8], count: int, data: UInt8, base: int, item: int, path: str, name: str
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
            found = _Heaps(data, base, path, name, at).extents(block, item)
            starts[at : at + block.size], sizes[at : at + block.size] = found
            at += block.size
    assert at == count
    return starts, sizes


class _Heaps:
    """The collections that some elements lie in."""

    def __init__(self, data: UInt8, base: int, path: str, name: str, first: int) -> None:
        self.data = data
        self.base = base
        self.path = path
        self.name = name
        self.first = first

    def _need(self, good: Bools, elements: Int64, what: str) -> None:
        if not good.all():
            raise FormatError(
                f"a sample of {self.name!r} cannot be found: {what}",
                path=self.path,
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
