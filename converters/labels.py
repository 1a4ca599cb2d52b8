"""Reads a labels CSV: which pictures there are, and the row of labels of each.

Two passes over the file, so that no row is kept in memory: the first finds out what the labels
are, the second spools the rows and sorts their paths.
"""

from __future__ import annotations

import csv
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from asyncreader.errors import FormatError, ParamsError, SourceError, SourceNotFoundError

from .spool import Numbers, sorted_records
from .walk import sort_key

_INTEGER: Final = re.compile(r"[+-]?\d+")
_REAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE: Final = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_INT64: Final = range(-(1 << 63), 1 << 63)

#: After a path's sort key: two NULs (a component is never empty, so none inside), row, line.
_PLACE: Final = struct.Struct(">QQ")


class Pictures(Protocol):
    """What is asked of the pictures that a CSV names; see :class:`origins.Origin`."""

    def relative(self, name: bytes) -> bytes:
        """A path below their folder, of a name that may be absolute."""

    def exists(self, path: bytes) -> bool:
        """Whether there is a file of this name: asked of the first row only, to know a header."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the CSV: its path below the folder, its place in ``labels``, its line."""

    path: bytes
    number: int
    line: int


@dataclass
class Labels:
    """A labels CSV, read. ``kind``: "class" or "values"; ``rows`` comes sorted by path."""

    rows: Iterator[Row]
    labels: Numbers
    kind: str
    classes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    path: bytes
    cells: list[str]


def read_labels(
    path: str,
    pictures: Pictures,
    classes: tuple[str, ...] | None,
    file: str | None = None,
) -> Labels:
    """Read ``path``, which names ``pictures``; ``classes`` fixes names and numbers.

    ``file``: where it is on this machine, if not at ``path``.
    Raises SourceError for an unreadable file and FormatError, naming the line, for a wrong one.
    """
    file = path if file is None else file
    check_regular(file, "the labels CSV")
    table = _Table(path, file, pictures)
    kinds = _Kinds(path)
    for line in table.lines():
        kinds.add(line)
    names = _names(table, kinds, classes)
    cells = _Cells(path, kinds, names)
    labels = Numbers(cells.kind, kinds.width)
    # Lazy: the first row comes when all of them are spooled and sorted.
    rows = _unique(path, sorted_records(_spooled(table, cells, labels)))
    return Labels(rows, labels, "values" if names is None else "class", names)


def check_regular(path: str, what: str) -> None:
    """SourceNotFoundError or SourceError unless ``path`` is a file (links may be followed)."""
    try:
        mode = os.stat(path).st_mode
    except OSError as exc:
        missing = isinstance(exc, (FileNotFoundError, NotADirectoryError))
        kind = SourceNotFoundError if missing else SourceError
        raise kind(f"{what} cannot be opened", path=path, found=exc.strerror) from exc
    if not stat.S_ISREG(mode):
        raise SourceError(f"{what} is not a regular file", path=path)


class _Table:
    """The data lines of the CSV, without its header if it has one."""

    def __init__(self, path: str, file: str, pictures: Pictures) -> None:
        self.path = path
        self._file = file
        self._relative = pictures.relative
        self._exists = pictures.exists

    def lines(self) -> Iterator[_Line]:
        first = True
        try:
            with open(
                self._file, encoding="utf-8-sig", errors="surrogateescape", newline=""
            ) as file:
                reader = csv.reader(file, strict=True)
                for cells in reader:
                    if not cells:
                        continue
                    if first and self._is_header(cells):
                        first = False
                        continue
                    first = False
                    yield self._line(reader.line_num, cells)
        except csv.Error as exc:
            raise FormatError("not a CSV file", path=self.path, found=str(exc)) from exc
        except OSError as exc:
            if isinstance(exc, SourceError):
                raise
            raise SourceError(
                "the labels CSV cannot be read", path=self.path, found=exc.strerror
            ) from exc

    def _is_header(self, cells: list[str]) -> bool:
        """A first row whose path cannot be meant as a file and whose labels are no numbers.

        "cat/1.pgn", say, is a picture's name misspelt: the row must not go missing silently.
        """
        name = cells[0].encode("utf-8", "surrogateescape")
        if b"/" in name or b"." in name or self._exists(self._relative(name)):
            return False
        return len(cells) < 2 or not any(_REAL.fullmatch(cell.strip()) for cell in cells[1:])

    def _line(self, number: int, cells: list[str]) -> _Line:
        raw = cells[0].encode("utf-8", "surrogateescape")
        if not raw or b"\0" in raw:
            _wrong(self.path, number, "a row without a path", repr(cells[0]))
        if len(cells) < 2:
            _wrong(self.path, number, "a row without a label", repr(cells[0]), "path,label")
        path = self._relative(raw)
        if path.startswith((b"/", b"../")) or path in (b"..", b"."):
            _wrong(self.path, number, "a path out of the folder", repr(cells[0]))
        return _Line(number, path, [cell.strip() for cell in cells[1:]])


class _Kinds:
    """What the cells of all rows have in common."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.width = 0
        self.integers = True
        self.numbers = True

    def add(self, line: _Line) -> None:
        self.width = self.width or len(line.cells)
        if len(line.cells) != self.width:
            _wrong(
                self._path,
                line.number,
                "a row with another number of labels",
                str(len(line.cells)),
                f"{self.width}, as in the first row",
            )
        for cell in line.cells:
            if not cell:
                _wrong(self._path, line.number, "an empty label", repr(os.fsdecode(line.path)))
            if not _INTEGER.fullmatch(cell):
                self.integers = False
                self.numbers = self.numbers and bool(
                    _REAL.fullmatch(cell) or _NOT_FINITE.fullmatch(cell)
                )


def _names(table: _Table, kinds: _Kinds, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The class names; None where the labels are plain values."""
    if not kinds.width:
        raise FormatError("the labels CSV has no rows", path=table.path)
    if kinds.integers:
        return classes
    if kinds.numbers:
        if classes is not None:
            raise ParamsError(
                "classes are given, and the labels in the CSV are fractions", path=table.path
            )
        return None
    if classes is not None:
        return classes
    # A set of a million regression targets would be of no use, so names are gathered only now.
    found = {cell for line in table.lines() for cell in line.cells}
    return tuple(sorted(found, key=lambda name: name.encode("utf-8", "surrogateescape")))


class _Cells:
    """From a cell to the number that is stored."""

    def __init__(self, path: str, kinds: _Kinds, names: tuple[str, ...] | None) -> None:
        self._path = path
        self.kind = "q" if kinds.integers or not kinds.numbers else "d"
        self._count = None if names is None else len(names)
        self._numbers: dict[str, int] | None = None
        if names is not None and not kinds.integers:
            self._numbers = {name: number for number, name in enumerate(names)}

    def number(self, line: int, cell: str) -> float:
        """The stored number; FormatError, naming the line, for one that is not to be had."""
        if self.kind == "d":
            return float(cell)
        if self._numbers is not None:
            if cell not in self._numbers:
                _wrong(
                    self._path,
                    line,
                    "an unknown class",
                    repr(cell),
                    f"one of the {len(self._numbers)} given by classes",
                )
            return self._numbers[cell]
        # longer than any of 64 bits, and int() refuses thousands of digits in its own words
        if len(cell) > 1000 or (number := int(cell)) not in _INT64:
            _wrong(self._path, line, "a label beyond 64 bits", cell[:40])
        if self._count is not None and not 0 <= number < self._count:
            _wrong(self._path, line, "a class number out of range", cell, f"0 to {self._count - 1}")
        return number


def _spooled(table: _Table, cells: _Cells, labels: Numbers) -> Iterator[bytes]:
    """Fill ``labels`` row by row; the records to be sorted."""
    for number, line in enumerate(table.lines()):
        for cell in line.cells:
            labels.append(cells.number(line.number, cell))
        yield sort_key(line.path) + b"\0\0" + _PLACE.pack(number, line.number)


def _unique(path: str, records: Iterator[bytes]) -> Iterator[Row]:
    last: Row | None = None
    for record in records:
        number, line = _PLACE.unpack(record[-_PLACE.size :])
        row = Row(record[: -_PLACE.size - 2].replace(b"\0", b"/"), number, line)
        if last is not None and last.path == row.path:
            _wrong(
                path,
                row.line,
                "a picture that is listed already",
                repr(os.fsdecode(row.path)),
                f"line {last.line} to be its only one",
            )
        last = row
        yield row


def _wrong(path: str, line: int, what: str, found: str, expected: str | None = None) -> NoReturn:
    raise FormatError(
        f"line {line} of the labels CSV: {what}", path=path, found=found, expected=expected
    )
