"""Checks the trees of an HDF5 file for loops before the HDF5 library follows them.

HDF5 (2.0 too) goes down a tree by calling itself, and never asks whether it was there before: a
node that is its own child kills the process. Here the group or chunk index of each object is walked
before the library opens that object, each address once: of the root when the file is opened, of the
others when they are reached. What is merely odd is left to HDF5's own errors.

Layout of superblock, object headers (messages 0x01 to 0x03, 0x07, 0x08, 0x0B, 0x10, 0x11, 0x15)
and trees: HDF5 File Format Specification 3.0, II.A, III.A, III.B, IV.A
(https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html).
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from ...errors import FormatError
from ..bytestore import Bytes
from . import blocks
from .blocks import File, Forged, Malformed

#: Objects that are known to have been looked at: of more, all are looked at again when reached.
_REMEMBERED: Final = 80_000
#: Messages of one header, and blocks that it may go on in.
_MESSAGES, _BLOCKS = 20_000, 1024
#: Levels of a tree: HDF5's hold 2^16 chunks in three.
_LEVELS: Final = 32
_GROUP, _CHUNKS = 0, 1
#: Messages that are looked at: those that lead to trees, and the layout (0x08); and how a message
#: begins in headers of the first and the second version: its type and size.
_READ: Final = frozenset((0x02, 0x08, 0x11, 0x15))
_FIRST, _SECOND = struct.Struct("<HHB"), struct.Struct("<BHB")
#: Messages that say what the rows of a data set are: space, type, external files, filters; and the
#: flag of a message that lies elsewhere.
_SPACE, _TYPE, _EXTERNAL, _LAYOUT, _FILTERS = 0x01, 0x03, 0x07, 0x08, 0x0B
_ROWS: Final = _READ | {_SPACE, _TYPE, _EXTERNAL, _FILTERS}
_ELSEWHERE: Final = 2
#: The message of an attribute, and the classes of types of text.
_ATTRIBUTE, _STRING, _VLEN = 0x0C, 3, 9


class _Message(NamedTuple):
    """A message of an object header: its type, where its body is in the file, and its flags."""

    kind: int
    body: int
    size: int
    flags: int


class DatasetHeader(NamedTuple):
    """What the header of a data set says of its rows. ``address``: where in the file those of a
    contiguous one begin, ``chunk``: of one in chunks; the other of the two is None.
    ``type``, ``filters``: as stored."""

    shape: tuple[int, ...]
    type: bytes
    filters: bytes
    chunk: tuple[int, ...] | None
    address: int | None

    def like(self, other: DatasetHeader) -> bool:
        """Whether the rows of both are the same but for their number and the extent of chunks."""
        return (
            self.shape[1:] == other.shape[1:]
            and self.type == other.type
            and self.filters == other.filters
            and (self.chunk is None) == (other.chunk is None)
        )


SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"


def signature_at(data: Bytes) -> int | None:
    """Where HDF5's signature is: at 0, 512, 1024, ... (format specification, II.A); None without.

    ``data``: the whole file.
    """
    at = 0
    while at + 8 <= data.size:
        if bytes(data[at : at + 8]) == SIGNATURE:
            return at
        at = max(512, at * 2)
    return None


class Structure(File):
    """The structure of an HDF5 file, which is walked before the HDF5 library reads the file."""

    def __init__(self, data: Bytes) -> None:
        super().__init__(data)
        self.base = signature_at(data) or 0  # the size of the user block
        self._groups: list[int] = []  # trees of groups that are still to be walked
        #: what was wrong, after which nothing more of the file is opened
        self._refused: FormatError | None = None
        self._walked: set[int] = set()
        self._virtual: set[int] = set()
        self._trees: set[int] = set()
        #: the heaps of groups, and where each has its names
        self._heaps: set[int] = set()
        self._names: set[int] = set()
        with contextlib.suppress(Malformed):
            self.virtual(self._superblock() - self.base)

    def virtual(self, address: int) -> bool:
        """Whether the object at ``address``, as HDF5 counts it, is a virtual data set. FormatError
        where its tree leads back to itself, or is absurdly deep.

        HDF5 (2.0 too) reads a virtual layout's list of sources when the object is opened and
        believes its counts: a forged one kills the process. So it must be known before.
        """
        if self._refused is not None:
            raise self._refused
        at = address + self.base
        if at not in self._walked:
            if len(self._walked) > _REMEMBERED:
                known = self._walked, self._virtual, self._trees, self._heaps, self._names
                for one in known:
                    one.clear()
            self._header(at)
        while self._groups:
            with contextlib.suppress(Malformed):  # HDF5 says what is wrong with such a group
                self._tree(self._groups.pop(), _GROUP, self.length)
        return at in self._virtual

    def text(self, address: int, name: bytes) -> bytes | None:
        """The attribute ``name`` of the object at ``address``, as HDF5 counts it, if it is one text
        in the object's header; else None.

        HDF5 may hang on a damaged text of variable length, so its bytes are found here.
        """
        with contextlib.suppress(Malformed):
            for message in self._messages(address + self.base, (_ATTRIBUTE,)):
                with contextlib.suppress(Malformed):
                    found = self._text(message.body, name)
                    if found is not None:
                        return found
        return None

    def _text(self, at: int, name: bytes) -> bytes | None:
        """The text of the attribute message at ``at`` (IV.A.2.m), if it has that name."""
        version, flags = self.read(at, 2)
        sizes = [self.number(at + 2 + 2 * i, 2) for i in range(3)]  # of name, type and space
        padded = [-(-size // 8) * 8 for size in sizes] if version == 1 else sizes
        at += 9 if version == 3 else 8
        if bytes(self.read(at, sizes[0])).rstrip(b"\0") != name:
            return None
        kind, space = at + padded[0], at + padded[0] + padded[1]
        if version not in (1, 2, 3) or (version > 1 and flags & 3) or self.number(space + 1, 1):
            return None  # of a shared type, or several
        length, value = self.number(kind + 4, 4), space + padded[2]
        if self.number(kind, 1) & 15 == _STRING:
            return bytes(self.read(value, length)).rstrip(b"\0 ")
        if self.number(kind, 1) & 15 != _VLEN or self.number(kind + 1, 1) & 15 != 1 or length != 16:
            return None
        element = np.frombuffer(self.read(value, length), np.uint8).copy()
        heap = int(element.view(blocks.ELEMENT)["address"][0]) + self.base
        data = np.frombuffer(self.read(heap, self.number(heap + 8, 8)), np.uint8)
        element.view(blocks.ELEMENT)["address"] = 0
        starts, lengths = blocks.heap_extents([element], 1, data, 0, 1, name.decode())
        return data[int(starts[0]) : int(starts[0]) + int(lengths[0])].tobytes()

    def data_set(self, address: int) -> DatasetHeader | None:
        """What the header of the data set at ``address``, as HDF5 counts it, says of its rows; None
        where the library has to be asked.

        That is so of anything but contiguous rows and chunks in headers of the first version:
        later ones have checksums, which the library compares.
        """
        with contextlib.suppress(Malformed):
            at = address + self.base
            if self.number(at, 1) == 1:
                found: dict[int, _Message] = {}
                for message in self._header(at, _ROWS):
                    found.setdefault(message.kind, message)
                return self._rows(found)
        return None

    def _rows(self, found: Mapping[int, _Message]) -> DatasetHeader | None:
        parts = [found.get(kind) for kind in (_SPACE, _TYPE, _LAYOUT)]
        filters = found.get(_FILTERS)
        if None in parts or _EXTERNAL in found:
            return None
        if any(one is not None and one.flags & _ELSEWHERE for one in (*parts, filters)):
            return None
        space, kind, layout = (one.body for one in parts if one is not None)
        version, rank, _, simple = self.read(space, 4)
        if version not in (1, 2) or not rank or (version == 2 and simple != 1):
            return None
        first, size = space + (8 if version == 1 else 4), self.number(kind + 4, 4)
        shape = tuple(self.number(first + i * self.length, self.length) for i in range(rank))
        address, chunk = None, None
        version, stored = self.read(layout, 2)
        if version != 3 or max(shape) >> 48:
            return None
        if stored == 1:
            address = self.address(layout + 2)
            held = self.number(layout + 2 + self.width, self.length)
            if address is None or held != math.prod(shape) * size:
                return None
        elif stored == 2 and self.number(layout + 2, 1) == rank + 1:
            first = layout + 3 + self.width
            *extent, element = (self.number(first + 4 * i, 4) for i in range(rank + 1))
            if element != size or not all(extent):
                return None
            chunk = tuple(extent)
        else:
            return None
        held_type = bytes(self.read(kind, found[_TYPE].size))
        stages = b"" if filters is None else bytes(self.read(filters.body, filters.size))
        return DatasetHeader(shape, held_type, stages, chunk, address)

    def _refuse(self, what: str, at: int) -> FormatError:
        self._refused = FormatError(
            f"its structure is damaged: {what}", found=f"byte {at}", hint="copy or write it again"
        )
        return self._refused

    # -- the superblock and object headers -----------------------------------------------------

    def _superblock(self) -> int:
        base = self.base
        version = self.number(base + 8, 1)
        sizes = {0: 13, 1: 13, 2: 9, 3: 9}.get(version)
        if sizes is None:
            raise Malformed
        self.width, self.length = self.number(base + sizes, 1), self.number(base + sizes + 1, 1)
        if self.width not in (2, 4, 8) or self.length not in (2, 4, 8):
            raise Malformed
        if version < 2:
            entry = base + (24 if version == 0 else 28) + 4 * self.width
            if self.number(entry + 2 * self.width, 4) == 1:  # it has the address of its tree, too
                self._group(entry + 2 * self.width + 8)
            root = self.address(entry + self.width)
        else:
            if base == 0 and self.number(12 + 2 * self.width, self.width) > self.size:
                raise Malformed  # HDF5 refuses a short file, in better words
            root = self.address(base + 12 + 3 * self.width)
        if root is None:
            raise Malformed
        return root

    def _header(self, at: int, kinds: Collection[int] = _READ) -> list[_Message]:
        """The messages of ``kinds``, of which those that lead somewhere are followed."""
        self._walked.add(at)
        messages: list[_Message] = []
        with contextlib.suppress(Malformed):  # HDF5 says what is wrong with such a header
            messages = self._messages(at, kinds)
        for kind, body, _, _ in messages:
            if kind not in _READ:
                continue
            with contextlib.suppress(Malformed):
                if kind == _LAYOUT:
                    if self._layout(body):
                        self._virtual.add(at)
                elif kind == 0x11:
                    self._group(body)
                else:
                    self._indexed(kind, body)
        return messages

    def _indexed(self, kind: int, body: int) -> None:
        """Links (0x02) or attributes (0x15) that trees and a heap hold."""
        flags = self.number(body + 1, 1)
        heap = body + 2 + ((8 if kind == 0x02 else 2) if flags & 1 else 0)
        kinds = blocks.LINKS if kind == 0x02 else blocks.ATTRIBUTES
        self._second_tree(heap + self.width, kinds, heap)
        if flags & 2:
            self._second_tree(heap + 2 * self.width, kinds, heap)

    def _layout(self, body: int) -> bool:
        """Walk the chunk index of a data layout. Whether it is a virtual one."""
        version, second, third = self.read(body, 3)
        kind = second if version >= 3 else third
        if kind != 2:
            return version >= 4 and kind == 3
        if version in (1, 2):
            self._tree(self.address(body + 8), _CHUNKS, 8 + 8 * second)
        elif version == 3:
            self._tree(self.address(body + 3), _CHUNKS, 8 + 8 * third)
        elif version >= 4:
            axes, width = self.number(body + 3, 1), self.number(body + 4, 1)
            index = body + 5 + axes * width
            if self.number(index, 1) == 5:
                self._second_tree(index + 7, blocks.CHUNKS, None)
            elif self.number(index, 1) == 4:
                self._array(index)
        return False

    def _messages(self, at: int, kinds: Collection[int]) -> list[_Message]:
        """The messages of ``kinds``, of the object header at ``at``."""
        found: list[_Message] = []
        if at + 8 > self.size:
            return found
        # all that is before the messages, or less where the file ends
        first = bytes(self.data[at : min(at + 34, self.size)])
        if first[:4] == b"OHDR":
            flags = first[5]
            skip = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
            stated = first[skip : skip + (1 << (flags & 3))]
            begin = at + skip + len(stated)
            head, edge, parse = 6 if flags & 4 else 4, 4, _SECOND
        elif first[0] == 1:
            begin, stated = at + 16, first[8:12]
            head, edge, parse = 8, 0, _FIRST
        else:
            return found
        blocks = [(begin, begin + int.from_bytes(stated, "little"))]
        seen, count = {begin}, 0
        for offset, end in blocks:  # which grow as they are read
            while offset + head <= min(end, self.size) and count < _MESSAGES:
                count += 1
                head_bytes = self.data[offset : offset + parse.size]
                kind, size, flags = parse.unpack(head_bytes)
                body = offset + head
                if kind == 0x10:
                    with contextlib.suppress(Malformed):
                        more = self.address(body)
                        length = self.number(body + self.width, self.length)
                        if more is not None and more not in seen and len(seen) < _BLOCKS:
                            seen.add(more)
                            blocks.append((more + edge, more + length - edge))
                elif kind in kinds:
                    found.append(_Message(kind, body, size, flags))
                offset = body + size
        return found

    # -- trees -----------------------------------------------------------------------------

    def _group(self, at: int) -> None:
        """The tree of a group and its heap of names, whose addresses are at ``at``."""
        both, width = self.read(at, 2 * self.width), self.width
        tree = int.from_bytes(both[:width], "little") + self.base
        heap = int.from_bytes(both[width:], "little") + self.base
        if tree not in self._trees and tree + 8 <= self.size:
            self._groups.append(tree)
        if heap in self._heaps or heap + 8 > self.size:
            return
        self._heaps.add(heap)
        end = 8 + 2 * self.length + width
        head = bytes(self.data[heap : min(heap + end, self.size)])
        if head[:4] == b"HEAP":
            names = int.from_bytes(head[end - width :], "little")
            if names in self._names:  # the library would keep what is there for one of them
                raise self._refuse("two groups have their names in one place", heap)
            self._names.add(names)

    def _tree(self, root: int | None, kind: int, key: int) -> None:
        """A tree of the first version: each node once, each a level below the one before."""
        if root is None or root in self._trees:
            return
        level = [root]
        depth: int | None = None
        while level:
            below: list[int] = []
            for at in level:
                node = bytes(self.read(at, 8))
                if node[:4] != b"TREE" or node[4] != kind:
                    continue
                depth = node[5] if depth is None else depth
                if node[5] != depth or depth > _LEVELS:
                    raise self._refuse("a tree that does not go down", at)
                if at in self._trees:
                    raise self._refuse("a tree that leads back to itself", at)
                self._trees.add(at)
                if depth or kind == _GROUP:  # below the last level are the chunks themselves
                    below += self._children(at, int.from_bytes(node[6:8], "little"), key)
            level = below
            if not depth:
                break
            depth -= 1

    def _children(self, at: int, used: int, key: int) -> list[int]:
        width, base, size = self.width, self.base, self.size
        step = key + width
        body = self.read(at + 8 + 2 * width, used * step)
        ends = range(step, used * step + 1, step)
        found = [int.from_bytes(body[end - width : end], "little") + base for end in ends]
        return [one for one in found if one + 8 <= size]

    def _second_tree(self, at: int, kinds: tuple[int, int], heap: int | None) -> None:
        """The tree of the second version whose address is at ``at``, and its heap's at ``heap``."""
        header = self.address(at)
        if header is None:
            return
        with self._header_checked(header):
            blocks.check_tree(self, header, kinds, None if heap is None else self.address(heap))

    def _array(self, index: int) -> None:
        """The extensible array that a layout's index names."""
        header = self.address(index + 6)
        if header is None:
            return
        with self._header_checked(header):
            blocks.check_array(self, header, bytes(self.read(index + 1, 5)))

    @contextlib.contextmanager
    def _header_checked(self, header: int) -> Iterator[None]:
        try:
            yield
        except Forged as exc:
            raise self._refuse(exc.args[0], exc.args[1]) from exc
        except Malformed as exc:
            raise self._refuse("it continues outside the file", header) from exc
