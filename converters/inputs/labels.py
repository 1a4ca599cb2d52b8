"""Reads a labels CSV: which images there are, and the row of labels of each; and names of classes.

Each column has its own type. Whole numbers and fractions keep their values; text becomes the number
of its name among the sorted names of all text columns. Stored is one table: int64, or float64 where
a column has fractions.

Two passes over the file, so that no row is kept in memory: the first finds out what the labels
are, the second writes the rows to disk and sorts their paths.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from xxhash import xxh3_64_intdigest

from asyncreader.errors import FormatError, ParamsError
from asyncreader.formats.manifest import manifest_path
from asyncreader.sources import open_source
from asyncreader.sources.hdf5.file import is_hdf5
from asyncreader.sources.sniff import is_url

from ..options import Options
from ..temp_tables import Numbered, Numbers, sorted_records
from .dataset_samples import check_class_names, may_be_packed
from .origins import Origin, open_text, sort_key, text_file

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


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the CSV: its number, the path in it, the cells of its labels, and all cells."""

    number: int
    path: bytes
    labels: list[str]
    cells: list[str]


class Labels:
    """The labels CSV ``options.labels``, which names ``pictures`` and lies at ``file`` on this
    machine. ``given`` fixes names and numbers of classes; where only some samples are converted,
    those of the first ones.

    ``kind``: "class" where every label is the number of one of ``classes``, else "values";
    ``notes``: what a user may not expect; ``names``: of the labels of a row, empty where the CSV
    does not say them. ``labels``, ``splits``, ``groups``: of each row its labels, its split, and
    the hash of its group; None without. They are filled when the first of rows() comes.

    Raises SourceError for an unreadable file and FormatError, naming the line, for a wrong one.
    """

    def __init__(
        self, options: Options, file: str, pictures: Origin, given: tuple[str, ...] | None
    ) -> None:
        self._path, self._file, self._pictures = options.labels or file, file, pictures
        first = next(self._rows_of_cells(), (0, [""]))[1]
        #: The cells of the first line; empty where that is no header.
        self._header = [cell.strip() for cell in first]
        # the group may also be a pattern of paths
        group = options.group_by if options.group_by in self._header[1:] else None
        #: Places of the columns that are no labels; and of the labels, where they are named.
        self._split, self._group = map(self._place, (options.split_column, group))
        self._others = [place for place in (self._split, self._group) if place]
        self._chosen = [self._place(name) for name in options.label_columns or ()]
        if not (self._others or self._chosen or self._is_header(first)):
            self._header = []
        self._kinds = self._find_kinds(given)
        self.classes, self.notes = self._find_names(given, options.selective)
        self._numbers = {name: number for number, name in enumerate(self.classes or ())}
        # with text columns, whole numbers are values: the classes are those of the text
        self._numbered = self.classes is not None and "text" not in self._kinds
        named = self.classes is not None and len({kind == "text" for kind in self._kinds}) == 1
        self.kind = "class" if named else "values"
        # one fraction makes all of the table float64
        self.labels = Numbers("d" if "real" in self._kinds else "q", len(self._kinds))
        self.splits = Numbered() if self._split else None
        self.groups = Numbers("Q") if self._group else None
        names = tuple(self._header[place] for place in self._labels(len(self._header)))
        self.names = names if len(names) == len(self._kinds) and all(names) else ()

    # -- the columns -------------------------------------------------------------------------

    def _place(self, name: str | None) -> int:
        """Where the column of this name is, 0 for None; ParamsError for one that the header does
        not have once."""
        times = 1 if name is None else self._header[1:].count(name)
        if times != 1:
            raise ParamsError(
                f"the labels CSV has {times or 'no'} column{'s' * (times > 1)} {name!r}",
                path=self._path,
                found=f"a first line of {', '.join(map(repr, self._header[:20]))}",
                expected="a header with the names of the columns",
                hint=hint_of_marks(self._header) if len(self._header) == 1 else None,
            )
        return 0 if name is None else self._header.index(name, 1)

    def _labels(self, width: int) -> Sequence[int]:
        """The places of the labels in rows of so many cells."""
        return self._chosen or [place for place in range(1, width) if place not in self._others]

    def _column(self, label: int) -> str:
        """The column of a label, for messages."""
        place = self._labels(label + len(self._others) + 2)[label]
        named = f" ({self._header[place]!r})" if self._header[place:] else ""
        return f"column {place + 1}{named}"

    def _is_header(self, cells: list[str]) -> bool:
        """Whether the first row is a header: its path cannot be a file, its labels not numbers.

        A misspelt name such as "cat/1.pgn" is not a header: its row must not be dropped silently.
        """
        name = cells[0].encode("utf-8", "surrogateescape")
        pictures = self._pictures
        if b"/" in name or b"." in name or pictures.exists(pictures.relative(name)):
            return False
        return len(cells) < 2 or not any(_REAL.fullmatch(cell.strip()) for cell in cells[1:])

    # -- the lines ---------------------------------------------------------------------------

    def _lines(self) -> Iterator[_Line]:
        """All lines but the header."""
        for line, (number, cells) in enumerate(self._rows_of_cells()):
            if line or not self._header:
                yield self._line(number, cells)

    def _rows_of_cells(self) -> Iterator[tuple[int, list[str]]]:
        with open_text(self._file, "the labels CSV", self._path) as file:
            reader = csv.reader(file, strict=True)
            for cells in filter(None, reader):
                yield reader.line_num, cells

    def _line(self, number: int, cells: list[str]) -> _Line:
        name, raw = repr(cells[0]), cells[0].encode("utf-8", "surrogateescape")
        for cell in cells:
            if "\0" in cell:
                expected = "text in UTF-8: save it so if it is UTF-16"
                self._wrong(number, "a NUL character", repr(cell[:80]), expected)
        if not raw:
            hint = "an index that pandas wrote? to_csv(..., index=False) leaves it out"
            self._wrong(number, "a row without a path", name, hint=hint)
        if len(cells) < 2:
            repair = hint_of_marks(cells[:1])
            self._wrong(number, "a row without a label", name, "path,label", repair)
        path = self._pictures.relative(raw)
        if path.startswith((b"/", b"../")) or path in (b"..", b"."):
            self._wrong(number, "a path out of the folder", name)
        kept = [cell.strip() for cell in cells]
        for place in (*self._chosen, *self._others):
            if place >= len(kept):
                self._wrong(number, f"a row without a cell for {self._header[place]!r}", name)
        labels = [kept[place] for place in self._labels(len(kept))]
        if not labels:
            self._wrong(number, "a row without a label", name, "path,label")
        return _Line(number, path, labels, kept)

    def _wrong(
        self,
        line: int,
        what: str,
        found: str,
        expected: str | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        what = f"line {line} of the labels CSV: {what}"
        raise FormatError(what, path=self._path, found=found, expected=expected, hint=hint)

    # -- what the labels are -----------------------------------------------------------------

    def _find_kinds(self, given: tuple[str, ...] | None) -> list[str]:
        """The kind of each column: "integer", "real", or "text", where most cells are text, or some
        are and class names are given that look like numbers. FormatError, naming the line, for rows
        that do not fit, for text in a column of numbers, and for text that is numbers."""
        columns: list[Counter[str]] = []
        texts: dict[int, tuple[int, str]] = {}  # of each column the first text: its line and cell
        for line in self._lines():
            columns = columns or [Counter() for _ in line.labels]
            if (width := len(line.labels)) != len(columns):
                expected = f"{len(columns)}, as in the first row"
                what = "a row with another number of labels"
                self._wrong(line.number, what, str(width), expected)
            for n, cell in enumerate(line.labels):
                if not cell:
                    self._wrong(line.number, "an empty label", repr(os.fsdecode(line.path)))
                kind = _kind_of(cell)
                columns[n][kind] += 1
                if kind == "text":
                    texts.setdefault(n, (line.number, cell))
                    columns[n]["several"] += bool(_SEVERAL.fullmatch(cell))
        if not columns:
            raise FormatError("the labels CSV has no rows", path=self._path)
        for n in sorted(texts):
            self._check_text(n, columns[n], *texts[n], given)
        return [
            "text" if n in texts else "real" if column["real"] else "integer"
            for n, column in enumerate(columns)
        ]

    def _check_text(
        self, n: int, kinds: Counter[str], line: int, cell: str, given: tuple[str, ...] | None
    ) -> None:
        """FormatError for column ``n``, whose first text is ``cell``, if it is no column of text.
        ``kinds``: how many of its cells are of each."""
        text, numbers = kinds["text"], kinds["integer"] + kinds["real"]
        found, how = f"{cell[:80]!r}, {self._column(n)}", "one a line (classes, --classes FILE)"
        if given is None and text == kinds["several"]:
            self._wrong(
                line,
                "text that may be a number with a decimal comma, or several numbers",
                found,
                "a number with a decimal point, or a name",
                "write a point, and a column each for several numbers; if these are names of "
                f"classes, list them in a file, {how}",
            )
        if text <= numbers and (given is None or not any(map(_is_number, given))):
            self._wrong(
                line,
                "text in a column of numbers",
                f"{found} (numbers: {numbers:,}, text: {text:,})",
                "a number",
                "correct the cell; if all of them are names of classes, list those in a file, "
                f"{how}",
            )

    def _find_names(
        self, given: tuple[str, ...] | None, more: bool
    ) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """The class names, None where the labels are plain values; and notes about them. ``more``:
        other names may follow those that are given.

        All text columns share them, so that each name has one number.
        """
        kinds = self._kinds
        if given is not None and "text" not in kinds and "real" in kinds:
            what = "classes are given, and the labels in the CSV are fractions"
            raise ParamsError(what, path=self._path)
        if (given is not None and not more) or "text" not in kinds:
            return given, ()
        # Only now, where they are names: a million regression targets would fill the memory.
        found: dict[int, set[str]] = {n: set() for n, kind in enumerate(kinds) if kind == "text"}
        for line in self._lines():
            for n, names in found.items():
                names.add(line.labels[n])
        union = set().union(*found.values())
        ordered = tuple(sorted(union, key=lambda name: name.encode("utf-8", "surrogateescape")))
        if given is not None:
            return (*given, *(name for name in ordered if name not in given)), ()
        if all(names == union for names in found.values()):
            return ordered, ()
        columns = " and ".join(self._column(n).removeprefix("column ") for n in found)
        note = (
            f"the text columns of the labels CSV (columns {columns}) share one list of "
            f"{len(union):,} names: a label is the number of its name in it"
        )
        return ordered, (note,)

    # -- the rows ----------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """The rows, sorted by path. The first comes when all of them are on disk and sorted."""
        last: Row | None = None
        for record in sorted_records(self._spooled()):
            number, line = _ROW_AND_LINE.unpack(record[-_ROW_AND_LINE.size :])
            row = Row(record[: -_ROW_AND_LINE.size - 2].replace(b"\0", b"/"), number, line)
            if last is not None and last.path == row.path:
                expected = f"line {last.line} to be its only one"
                name = repr(os.fsdecode(row.path))
                self._wrong(row.line, "an image that is listed already", name, expected)
            last = row
            yield row

    def _spooled(self) -> Iterator[bytes]:
        """Fill the tables row by row; the records to be sorted."""
        for number, line in enumerate(self._lines()):
            for kind, cell in zip(self._kinds, line.labels, strict=True):
                self.labels.append(self._number(kind, line.number, cell))
            if self.splits is not None:
                self.splits.add(line.cells[self._split])
            if self.groups is not None:
                group = line.cells[self._group]
                if not group:
                    self._wrong(line.number, "an empty group", repr(os.fsdecode(line.path)))
                self.groups.append(xxh3_64_intdigest(group.encode("utf-8", "surrogateescape")))
            yield sort_key(line.path) + b"\0\0" + _ROW_AND_LINE.pack(number, line.number)

    def _number(self, kind: str, line: int, cell: str) -> float:
        """The number to store; FormatError, naming the line, for one that cannot be stored."""
        if kind != "text":
            real = self.labels.dtype.kind == "f"
            return self._float(line, cell) if real else self._integer(line, cell)
        if cell not in self._numbers:
            expected = f"one of the {len(self._numbers)} given by classes"
            self._wrong(line, "an unknown class", repr(cell), expected)
        return self._numbers[cell]

    def _float(self, line: int, cell: str) -> float:
        number = float(cell)
        exact = not _INTEGER.fullmatch(cell) or (len(cell) < 400 and int(cell) == number)
        if not exact or (math.isinf(number) and not _NOT_FINITE.fullmatch(cell)):
            what = "a label that float64, which fractions make of all of them, cannot hold"
            self._wrong(line, what, cell[:40])
        return number

    def _integer(self, line: int, cell: str) -> int:
        # longer than any of 64 bits, and int() refuses thousands of digits in its own words
        if len(cell) > 1000 or (number := int(cell)) not in _INT64:
            self._wrong(line, "a label beyond 64 bits", cell[:40])
        count = len(self._numbers)
        if self._numbered and not 0 <= number < count:
            self._wrong(line, "a class number out of range", cell, f"0 to {count - 1}")
        return number


def hint_of_marks(cells: Sequence[str]) -> str | None:
    """What to do where all of these cells have a mark in them that other programs write between
    cells; None where they have none."""
    for mark in ";\t|":
        if all(mark in cell for cell in cells):
            return f"its cells look separated by {mark!r}: write commas, and decimal points"
    return None


def _is_number(text: str) -> bool:
    return bool(_REAL.fullmatch(text) or _NOT_FINITE.fullmatch(text))


def _kind_of(cell: str) -> str:
    if _INTEGER.fullmatch(cell):
        return "integer"
    return "real" if _is_number(cell) else "text"


# -- names of classes ------------------------------------------------------------------------------


def class_names(path: str) -> tuple[str, ...]:
    """Names from a packed set, or from a text file."""
    known = is_url(path) or os.path.isdir(path) or manifest_path(path) is not None
    if not may_be_packed(path) or not (known or is_hdf5(path)):
        return read_class_names(path)
    with contextlib.closing(open_source(path)) as source:
        names = source.facts.classes
    if names is None:
        raise FormatError("this dataset has no class names", path=path)
    check_class_names(names, path)
    return names


def read_class_names(path: str) -> tuple[str, ...]:
    """Class names from a text file, one a line, in order of their numbers."""
    with text_file(path) as file, open_text(file, "the file of class names", path) as text:
        names = [name for name in re.split(r"\r\n?|\n", text.read()) if name]
    if not names or any("\0" in name for name in names):
        what = "holds no names" if not names else "is not text"
        raise FormatError(f"the file of class names {what}", path=path)
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise FormatError("a class name comes twice", path=path, found=repr(name))
    return tuple(names)
