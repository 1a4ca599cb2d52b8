"""Reads a labels CSV: which images there are, and the row of labels of each.

Each column has its own type. Whole numbers and fractions keep their values; text becomes the number
of its name among the sorted names of all text columns. Stored is one table: int64, or float64 where
a column has fractions.

Two passes over the file, so that no row is kept in memory: the first finds out what the labels
are, the second writes the rows to disk and sorts their paths.
"""

from __future__ import annotations

import csv
import math
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from xxhash import xxh3_64_intdigest

from asyncreader.errors import FormatError, ParamsError, SourceError, SourceNotFoundError

from ..options import Options
from ..temp_tables import Numbered, Numbers, sorted_records
from .local_tree import sort_key
from .object_store import Origin

_INTEGER: Final = re.compile(r"[+-]?\d+")
_REAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: Numbers with a decimal comma, or several in a cell.
_SEVERAL: Final = re.compile(rf"{_REAL.pattern}(\s*[,;]\s*{_REAL.pattern})+")
_NOT_FINITE: Final = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_INT64: Final = range(-(1 << 63), 1 << 63)

#: After a path's sort key: two NULs (a component is never empty, so none inside), row, line.
_ROW_AND_LINE: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the CSV: its path below the folder, its row in ``labels``, its line."""

    path: bytes
    number: int
    line: int


@dataclass
class Labels:
    """A labels CSV, read. ``kind``: "class" where every label is the number of one of ``classes``,
    else "values"; ``rows`` comes sorted by path. The tables are filled when the first one comes."""

    rows: Iterator[Row]
    labels: Numbers
    kind: str
    classes: tuple[str, ...] | None
    #: What a user may not expect of the labels.
    notes: tuple[str, ...]
    #: By row: its split, and the hash of its group; None without.
    splits: Numbered | None = None
    groups: Numbers | None = None
    #: Of the labels of a row; empty where the CSV does not say them.
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    path: bytes
    cells: list[str]
    named: dict[str, str]


def read_labels(
    options: Options, file: str, pictures: Origin, classes: tuple[str, ...] | None
) -> Labels:
    """Read the CSV ``options.labels``, which names ``pictures`` and lies at ``file`` on this
    machine. ``classes`` fixes names and numbers; where only some samples are converted, those of
    the first ones.

    Raises SourceError for an unreadable file and FormatError, naming the line, for a wrong one.
    """
    check_regular(file, "the labels CSV")
    table = _Table(options, file, pictures)
    kinds = _kinds(table, classes)
    names, notes = _names(table, kinds, classes, options.selective)
    cells = _Cells(table.path, kinds, names)
    labels = Numbers(cells.kind, len(kinds))
    splits = None if table.split is None else Numbered()
    groups = None if table.group not in table.columns else Numbers("Q")
    # Lazy: the first row comes when all of them are on disk and sorted.
    rows = _unique(table.path, sorted_records(_spooled(table, cells, labels, splits, groups)))
    named = names is not None and len({kind == "text" for kind in kinds}) == 1
    kind, columns_named = "class" if named else "values", table.label_names(len(kinds))
    return Labels(rows, labels, kind, names, notes, splits, groups, columns_named)


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

    def __init__(self, options: Options, file: str, pictures: Origin) -> None:
        self.path = options.labels or file
        self._file = file
        self._relative = pictures.relative
        self._exists = pictures.exists
        #: The columns of the split and of the group, which may also be a pattern of paths.
        self.split, self.group = options.split_column, options.group_by
        first = next(self._rows(), (0, [""]))[1]
        #: The cells of the first line; empty where that is no header.
        self.header = [cell.strip() for cell in first]
        group = self.group if self.group in self.header[1:] else None
        #: Name and place of columns that are no labels; and of the labels, where they are named.
        self.columns = self._places([*filter(None, (self.split, group))])
        self._chosen = self._places(options.label_columns or ())
        self._labels = tuple(self._chosen.values())
        if not (self.columns or self._chosen or self._is_header(first)):
            self.header = []

    def _places(self, names: Sequence[str]) -> dict[str, int]:
        """Where the columns of these names are; ParamsError for one that the header does not have
        once."""
        for name in names:
            times = self.header[1:].count(name)
            if times != 1:
                raise ParamsError(
                    f"the labels CSV has {times or 'no'} column{'s' * (times > 1)} {name!r}",
                    path=self.path,
                    found=f"a first line of {', '.join(map(repr, self.header[:20]))}",
                    expected="a header with the names of the columns",
                    hint=hint_of_marks(self.header) if len(self.header) == 1 else None,
                )
        return {name: self.header.index(name, 1) for name in names}

    def labels(self, width: int) -> Sequence[int]:
        """The places of the labels in rows of so many cells."""
        others = self.columns.values()
        return self._labels or [place for place in range(1, width) if place not in others]

    def label_names(self, count: int) -> tuple[str, ...]:
        """The names of so many labels; empty where the header does not name all."""
        names = tuple(self.header[place] for place in self.labels(len(self.header)))
        return names if len(names) == count and all(names) else ()

    def column(self, label: int) -> str:
        """The column of a label, for messages."""
        place = self.labels(label + len(self.columns) + 2)[label]
        return f"column {place + 1}" + (f" ({self.header[place]!r})" if self.header[place:] else "")

    def lines(self) -> Iterator[_Line]:
        """All lines but the header."""
        for line, (number, cells) in enumerate(self._rows()):
            if line or not self.header:
                yield self._line(number, cells)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        try:
            with open(
                self._file, encoding="utf-8-sig", errors="surrogateescape", newline=""
            ) as file:
                reader = csv.reader(file, strict=True)
                for cells in filter(None, reader):
                    yield reader.line_num, cells
        except csv.Error as exc:
            raise FormatError("not a CSV file", path=self.path, found=str(exc)) from exc
        except SourceError:
            raise
        except OSError as exc:
            what = "the labels CSV cannot be read"
            raise SourceError(what, path=self.path, found=exc.strerror) from exc

    def _is_header(self, cells: list[str]) -> bool:
        """Whether the first row is a header: its path cannot be a file, its labels not numbers.

        A misspelt name such as "cat/1.pgn" is not a header: its row must not be dropped silently.
        """
        name = cells[0].encode("utf-8", "surrogateescape")
        if b"/" in name or b"." in name or self._exists(self._relative(name)):
            return False
        return len(cells) < 2 or not any(_REAL.fullmatch(cell.strip()) for cell in cells[1:])

    def _line(self, number: int, cells: list[str]) -> _Line:
        raw = cells[0].encode("utf-8", "surrogateescape")
        for cell in cells:
            if "\0" in cell:
                expected = "text in UTF-8: save it so if it is UTF-16"
                _wrong(self.path, number, "a NUL character", repr(cell[:80]), expected)
        if not raw:
            hint = "an index that pandas wrote? to_csv(..., index=False) leaves it out"
            _wrong(self.path, number, "a row without a path", repr(cells[0]), hint=hint)
        if len(cells) < 2:
            repair = hint_of_marks(cells[:1])
            _wrong(self.path, number, "a row without a label", repr(cells[0]), "path,label", repair)
        path = self._relative(raw)
        if path.startswith((b"/", b"../")) or path in (b"..", b"."):
            _wrong(self.path, number, "a path out of the folder", repr(cells[0]))
        kept = [cell.strip() for cell in cells]
        for name, place in {**self._chosen, **self.columns}.items():
            if place >= len(kept):
                _wrong(self.path, number, f"a row without a cell for {name!r}", repr(cells[0]))
        named = {name: kept[place] for name, place in self.columns.items()}
        labels = [kept[place] for place in self.labels(len(kept))]
        if not labels:
            _wrong(self.path, number, "a row without a label", repr(cells[0]), "path,label")
        return _Line(number, path, labels, named)


def hint_of_marks(cells: Sequence[str]) -> str | None:
    """What to do where all of these cells have a mark in them that other programs write between
    cells; None where they have none."""
    for mark in ";\t|":
        if all(mark in cell for cell in cells):
            return f"its cells look separated by {mark!r}: write commas, and decimal points"
    return None


def _is_number(text: str) -> bool:
    return bool(_REAL.fullmatch(text) or _NOT_FINITE.fullmatch(text))


def _kinds(table: _Table, classes: tuple[str, ...] | None) -> list[str]:
    """The kind of each column: "integer", "real", or "text", where most cells are text, or some are
    and class names are given that look like numbers. FormatError, naming the line, for rows that do
    not fit, for text in a column of numbers, and for text that is numbers."""
    columns: list[Counter[str]] = []
    texts: dict[int, tuple[int, str]] = {}  # of each column the first text: its line and cell
    for line in table.lines():
        columns = columns or [Counter() for _ in line.cells]
        if len(line.cells) != len(columns):
            _wrong(
                table.path,
                line.number,
                "a row with another number of labels",
                str(len(line.cells)),
                f"{len(columns)}, as in the first row",
            )
        for n, cell in enumerate(line.cells):
            if not cell:
                _wrong(table.path, line.number, "an empty label", repr(os.fsdecode(line.path)))
            kind = "integer" if _INTEGER.fullmatch(cell) else "real" if _is_number(cell) else "text"
            columns[n][kind] += 1
            if kind == "text":
                texts.setdefault(n, (line.number, cell))
                columns[n]["several"] += bool(_SEVERAL.fullmatch(cell))
    if not columns:
        raise FormatError("the labels CSV has no rows", path=table.path)
    text_wins = classes is not None and any(map(_is_number, classes))
    for n, (number, cell) in sorted(texts.items()):
        text, numbers = columns[n]["text"], columns[n]["integer"] + columns[n]["real"]
        if classes is None and text == columns[n]["several"]:
            _wrong(
                table.path,
                number,
                "text that may be a number with a decimal comma, or several numbers",
                f"{cell[:80]!r}, {table.column(n)}",
                "a number with a decimal point, or a name",
                "write a point, and a column each for several numbers; if these are names of "
                "classes, list them in a file, one a line (classes, --classes FILE)",
            )
        if text <= numbers and not text_wins:
            _wrong(
                table.path,
                number,
                "text in a column of numbers",
                f"{cell[:80]!r}, {table.column(n)} (numbers: {numbers:,}, text: {text:,})",
                "a number",
                "correct the cell; if all of them are names of classes, list those in a file, "
                "one a line (classes, --classes FILE)",
            )
    return [
        "text" if n in texts else "real" if column["real"] else "integer"
        for n, column in enumerate(columns)
    ]


def _names(
    table: _Table, kinds: list[str], classes: tuple[str, ...] | None, more_classes: bool
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The class names, None where the labels are plain values; and notes about them.
    ``more_classes``: other names may follow those of ``classes``.

    All text columns share them, so that each name has one number.
    """
    if classes is not None and "text" not in kinds and "real" in kinds:
        raise ParamsError(
            "classes are given, and the labels in the CSV are fractions", path=table.path
        )
    if (classes is not None and not more_classes) or "text" not in kinds:
        return classes, ()
    # Only now, where they are names: a million regression targets would fill the memory.
    found: dict[int, set[str]] = {n: set() for n, kind in enumerate(kinds) if kind == "text"}
    for line in table.lines():
        for n, names in found.items():
            names.add(line.cells[n])
    union = set().union(*found.values())
    ordered = tuple(sorted(union, key=lambda name: name.encode("utf-8", "surrogateescape")))
    if classes is not None:
        return (*classes, *(name for name in ordered if name not in classes)), ()
    if all(names == union for names in found.values()):
        return ordered, ()
    columns = " and ".join(table.column(n).removeprefix("column ") for n in found)
    note = (
        f"the text columns of the labels CSV (columns {columns}) share one list of "
        f"{len(union):,} names: a label is the number of its name in it"
    )
    return ordered, (note,)


class _Cells:
    """From the cells of a row to the numbers that are stored."""

    def __init__(self, path: str, kinds: list[str], names: tuple[str, ...] | None) -> None:
        self._path = path
        self._kinds = kinds
        #: Of the table, as in :class:`Numbers`: one fraction makes all of it float64.
        self.kind = "d" if "real" in kinds else "q"
        self._classes = {name: number for number, name in enumerate(names or ())}
        # with text columns, whole numbers are values: the classes are those of the text
        self._numbered = names is not None and "text" not in kinds

    def numbers(self, line: _Line) -> Iterator[float]:
        """The numbers to store; FormatError, naming the line, for one that cannot be stored."""
        for kind, cell in zip(self._kinds, line.cells, strict=True):
            if kind == "text":
                yield self._class(line.number, cell)
            elif self.kind == "d":
                yield self._float(line.number, cell)
            else:
                yield self._integer(line.number, cell)

    def _class(self, line: int, name: str) -> int:
        if name not in self._classes:
            expected = f"one of the {len(self._classes)} given by classes"
            _wrong(self._path, line, "an unknown class", repr(name), expected)
        return self._classes[name]

    def _float(self, line: int, cell: str) -> float:
        number = float(cell)
        exact = not _INTEGER.fullmatch(cell) or (len(cell) < 400 and int(cell) == number)
        if not exact or (math.isinf(number) and not _NOT_FINITE.fullmatch(cell)):
            what = "a label that float64, which fractions make of all of them, cannot hold"
            _wrong(self._path, line, what, cell[:40])
        return number

    def _integer(self, line: int, cell: str) -> int:
        # longer than any of 64 bits, and int() refuses thousands of digits in its own words
        if len(cell) > 1000 or (number := int(cell)) not in _INT64:
            _wrong(self._path, line, "a label beyond 64 bits", cell[:40])
        count = len(self._classes)
        if self._numbered and not 0 <= number < count:
            _wrong(self._path, line, "a class number out of range", cell, f"0 to {count - 1}")
        return number


def _spooled(
    table: _Table, cells: _Cells, labels: Numbers, splits: Numbered | None, groups: Numbers | None
) -> Iterator[bytes]:
    """Fill the tables row by row; the records to be sorted."""
    for number, line in enumerate(table.lines()):
        for value in cells.numbers(line):
            labels.append(value)
        if splits is not None:
            splits.add(line.named[table.split or ""])
        if groups is not None:
            group = line.named[table.group or ""]
            if not group:
                _wrong(table.path, line.number, "an empty group", repr(os.fsdecode(line.path)))
            groups.append(xxh3_64_intdigest(group.encode("utf-8", "surrogateescape")))
        yield sort_key(line.path) + b"\0\0" + _ROW_AND_LINE.pack(number, line.number)


def _unique(path: str, records: Iterator[bytes]) -> Iterator[Row]:
    last: Row | None = None
    for record in records:
        number, line = _ROW_AND_LINE.unpack(record[-_ROW_AND_LINE.size :])
        row = Row(record[: -_ROW_AND_LINE.size - 2].replace(b"\0", b"/"), number, line)
        if last is not None and last.path == row.path:
            _wrong(
                path,
                row.line,
                "an image that is listed already",
                repr(os.fsdecode(row.path)),
                f"line {last.line} to be its only one",
            )
        last = row
        yield row


def _wrong(
    path: str,
    line: int,
    what: str,
    found: str,
    expected: str | None = None,
    hint: str | None = None,
) -> NoReturn:
    what = f"line {line} of the labels CSV: {what}"
    raise FormatError(what, path=path, found=found, expected=expected, hint=hint)
