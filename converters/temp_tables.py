"""Tables of names and numbers for any number of samples: in memory while they are small, then on
disk, in unlinked files that are mapped for reading.

They need no Python object per sample. One thread fills a table and freezes it; after that any
thread may read it. Nobody closes a table: its file goes with it.
"""

from __future__ import annotations

import heapq
import itertools
import mmap
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, TypeAlias

import numpy as np

from asyncreader.system.array_types import Array, Int64
from asyncreader.system.memory import aligned_empty

#: The path of a sample, as bytes, by its number; :class:`Strings` give it.
PathOf: TypeAlias = Callable[[int], bytes]

#: Records sorted in memory at a time (about 20 MB of short names).
RUN: Final = 200_000

#: Rows of a table that are handled at a time.
ROWS: Final = 1 << 16

#: Bytes of a table that stay in memory, or are written to its file together: a million numbers.
HELD: Final = 8 << 20


def _temporary() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0, prefix="asyncreader-")


class _Bytes:
    """The bytes of a table: in memory, or in a file when there are more than ``HELD``.

    The memory is asked for at once, which takes none before it is written to: what grows is copied
    again and again. The file has no buffer of Python: a forked child that ends would write what is
    in its copy to the same file.
    """

    _file: IO[bytes] | None = None

    def __init__(self) -> None:
        self._room: memoryview | None = None
        self._used = 0
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Add some at the end."""
        if self._room is None:
            self._room = aligned_empty((HELD,), np.uint8).data
        self.size += len(data)
        if self._used + len(data) > HELD:
            self._file = self._file or _temporary()
            self._write_file(self._file, self._room[: self._used])
            self._used = 0
            if len(data) > HELD:
                self._write_file(self._file, memoryview(data))
                return
        start, self._used = self._used, self._used + len(data)
        self._room[start : self._used] = data

    @staticmethod
    def _write_file(file: IO[bytes], data: memoryview) -> None:
        while data:
            data = data[file.write(data) :]

    def mapped(self) -> mmap.mmap | memoryview:
        """All of them, which stay as they are: a mapping keeps the unlinked file."""
        rest = memoryview(b"") if self._room is None else self._room[: self._used]
        if self._file is None:
            return rest.toreadonly()
        with self._file as file:
            self._write_file(file, rest)
            self._room = None
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


class Numbers:
    """A table of 64-bit numbers, ``width`` to a row.

    ``kind``: "q" (int64), "Q" (uint64) or "d" (float64), as in :mod:`array`.
    """

    def __init__(self, kind: str, width: int = 1) -> None:
        self.dtype: np.dtype[Any] = np.dtype({"q": "<i8", "Q": "<u8", "d": "<f8"}[kind])
        self.width = width
        self._tail = array(kind)
        self._bytes = _Bytes()
        self._rows: Array | None = None

    def append(self, number: float) -> None:
        """Add one number (a row is ``width`` of them)."""
        self._tail.append(number)  # type: ignore[arg-type]
        if len(self._tail) >= 1 << 16:
            self._spill()

    def extend(self, rows: Array) -> None:
        """Add whole rows."""
        self._spill()
        self._write(rows)

    def _spill(self) -> None:
        # array uses the machine's byte order, the file the format's
        if self._tail:
            self._write(np.asarray(self._tail))
            self._tail = array(self._tail.typecode)

    def _write(self, rows: Array) -> None:
        assert self._rows is None, "frozen"
        self._bytes.write(np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data)

    def rows(self) -> Array:
        """Freeze; all rows, (n,) or (n, width), read-only and not in private memory."""
        if self._rows is None:
            self._spill()
            flat = np.frombuffer(self._bytes.mapped(), self.dtype)
            self._rows = flat if self.width == 1 else flat.reshape(-1, self.width)
        return self._rows


class Strings:
    """A list of byte strings: a blob and where each one ends."""

    def __init__(self) -> None:
        self._ends = Numbers("q")
        self._bytes = _Bytes()
        self._blob: mmap.mmap | memoryview | None = None
        self.count = 0

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> Strings:
        """A frozen list of ``texts``."""
        made = cls()
        for text in texts:
            made.append(text)
        return made.freeze()

    def some(self, numbers: Iterable[int]) -> Strings:
        """A frozen list of the strings with these numbers."""
        return Strings.of(map(self.__getitem__, numbers))

    def __reduce__(self) -> tuple[object, ...]:
        return Strings.of, (list(self),)

    def append(self, text: bytes) -> None:
        """Add one string."""
        assert self._blob is None, "frozen"
        self._bytes.write(text)
        self._ends.append(self._bytes.size)
        self.count += 1

    def freeze(self) -> Strings:
        """No string is added any more; any thread may read it."""
        if self._blob is None:
            self._blob = self._bytes.mapped()
            self._ends.rows()
        return self

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> bytes:
        if not 0 <= number < self.count:
            raise IndexError(number)
        ends = self._ends.rows()
        start = int(ends[number - 1]) if number else 0
        return self._text(start, int(ends[number]))

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in map(int, self._ends.rows()):
            yield self._text(start, end)
            start = end

    def _text(self, start: int, end: int) -> bytes:
        assert self._blob is not None, "not frozen"
        return bytes(self._blob[start:end])


def blocks(count: int) -> Iterator[slice]:
    """All rows of a table of so many, some at a time; of an empty one, none once."""
    return (slice(start, min(start + ROWS, count)) for start in range(0, max(count, 1), ROWS))


def spooled(parts: Iterable[Array]) -> Array:
    """A table (n, L) of rows that come in parts, int64 or float64; large ones are on disk."""
    table: Numbers | None = None
    for rows in parts:
        table = table or Numbers("d" if rows.dtype.kind == "f" else "q", rows.shape[1])
        table.extend(rows)
    assert table is not None
    return table.rows().reshape(-1, table.width)


def gathered(table: Array, numbers: Int64) -> Array:
    """The rows of a table (n, L) that have these numbers; large ones are on disk."""
    return spooled(table[numbers[part]] for part in blocks(numbers.size))


def renumbered(names: Iterable[str], wanted: Iterable[str], absent: int = -1) -> Int64:
    """From the number of each of ``names`` to the one that it has in ``wanted``, ``absent`` where
    it is not there; and at the end, where -1 finds it, -1."""
    place = {name: number for number, name in enumerate(wanted)}
    return np.array([*(place.get(name, absent) for name in names), -1], np.int64)


class Numbered:
    """Names as they come, and the number of each. ``fixed``: the only names, in their order, or
    with ``more`` the first ones."""

    def __init__(self, fixed: Sequence[str] | None = None, more: bool = False) -> None:
        self.names = {name: number for number, name in enumerate(fixed or ())}
        self._fixed, self._more = fixed is not None, fixed is None or more
        self._rows = Numbers("q")

    def add(self, name: str) -> bool:
        """Note the next one, "" for none; False for a name that is not among the fixed ones."""
        if name and not self._more and name not in self.names:
            return False
        self._rows.append(self.names.setdefault(name, len(self.names)) if name else -1)
        return True

    def note(self, names: Iterable[str]) -> None:
        """Number these names, too, though nothing has them."""
        for name in names:
            self.names.setdefault(name, len(self.names))

    def sorted(self) -> tuple[tuple[str, ...], Array]:
        """The names, sorted unless they are fixed; and the number of each that was added, (n, 1),
        -1 for none."""
        rows = self._rows.rows()
        if self._fixed:
            return tuple(self.names), rows.reshape(-1, 1)
        every = sorted(self.names, key=lambda name: name.encode("utf-8", "surrogateescape"))
        numbers = renumbered(self.names, every)
        return tuple(every), gathered(numbers.reshape(-1, 1), rows)


def sorted_records(records: Iterable[bytes], run: int = RUN) -> Iterator[bytes]:
    """``records`` in byte order, with at most about ``run`` of them in memory at a time."""
    records = iter(records)
    runs: list[Strings] = []
    while len(held := sorted(itertools.islice(records, run))) == run:
        runs.append(Strings.of(held))
        held.clear()  # before the next ones are read
    yield from heapq.merge(*runs, held)
