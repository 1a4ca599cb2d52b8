"""Samples of different length: values in one array, and where those of each sample begin in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from ..errors import FormatError, ParamsError, SampleError, located
from ..params.reader import ReaderParams
from ..pixels.rows import E, Writer
from ..system.array_types import Array, Int64, UInt64
from .base import BaseSource, FieldIndex, OpenField, Source
from .extents import Extents, ExtentSource, RunStarts
from .fields import OpenSet
from .request import no_field

#: Offsets that are looked at together, and in all to find the longest sample.
_AT_ONCE: Final = 1 << 20
_LOOKED_AT: Final = 1 << 27

#: What serves the values as plain rows.
AS_ROWS: Final = "offsets_field=False serves the values as they are stored, a row each"


@dataclass(frozen=True, eq=False)
class Ragged:
    """Samples whose values are the ``count`` samples of ``values``; ``FieldIndex.offsets`` says
    where those of each begin."""

    values: FieldIndex
    count: int

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        own = replace(self.values, path=field.index.path)
        facts = replace(field.facts, count=self.count)
        return RaggedSource(field, own.storage.serve(OpenField(facts, own, field.file)))


class RaggedSource(BaseSource):
    """Reads samples of different length: see :class:`Ragged`. ``values``: the source of values."""

    def __init__(self, field: OpenField, values: Source) -> None:
        super().__init__(field)
        assert self.index.offsets is not None
        self.offsets = self.index.offsets
        self.parts = (values,)
        self._named = _ByValue(self)

    def read_into(self, writer: Writer) -> None:
        (values,) = self.parts
        records, count = writer.job.records, values.facts.count
        starts, ends = (self.offsets[records + k].astype(np.int64) for k in (0, 1))
        good = (starts >= 0) & (starts <= ends) & (ends <= count)
        if not good.all():  # a large table is mapped: the file may have changed
            for i in np.flatnonzero(~good).tolist():
                what = "a sample does not lie among the stored values"
                found = f"offsets {int(starts[i])} to {int(ends[i])}"
                writer.fail(i, SampleError(what, found=found, expected=f"within 0 to {count}"))
            writer = writer.of_file(self, 0, np.flatnonzero(good), records[good])
            starts, ends = starts[good], ends[good]
        runs = values.runs if isinstance(values, ExtentSource) else None
        for part in writer.values(self._named, starts, ends - starts, runs):
            if writer.stopped:
                return
            values.read_into(part)


class _ByValue:
    """The source of samples as that of their values: an error names the sample of a value."""

    checksums: UInt64 | None = None

    def __init__(self, source: RaggedSource) -> None:
        self._source = source
        self.spec = replace(source.spec, ragged=False)

    def located(self, error: E, record: int) -> E:
        sample = int(np.searchsorted(self._source.offsets, record, side="right")) - 1
        return self._source.located(error, sample)


# -- offsets ---------------------------------------------------------------------------------------


def ragged_field(
    field: FieldIndex, count: int, offsets: Array, table: str | None = None
) -> FieldIndex:
    """The field whose samples are runs of the ``count`` values of ``field``; ``table``: the name of
    what says where they begin, where that is a table beside them."""
    samples = offsets.size - 1
    mean, spec = count / samples, field.spec
    chunk = None if field.chunk is None else max(1, int(field.chunk / max(mean, 1)))
    return replace(
        field,
        spec=replace(spec, ragged=True),
        storage=Ragged(field, count),
        block=min(samples, max(1, int(field.block / max(mean, 1)))),
        chunk=chunk,
        # a block also touches the chunks in which the blocks beside it begin and end
        memory=max(1, int(mean * spec.row_bytes * (1 if chunk is None else 2))),
        offsets=offsets,
        table=table,
    )


def offsets_in(table: Array, name: str, rows: int, lengths: bool | None = None) -> Array | None:
    """Where samples begin among ``rows`` values, (N + 1,), as a table says: starts, or with
    ``lengths`` those of the samples; None: whichever fits. None where it is of other values.

    FormatError where starts decrease.
    """
    starts = lengths is not True and table.size > 1 and int(table[0]) == 0
    starts = starts and int(table[-1]) == rows
    made = _from_lengths(table, rows) if lengths is not False else None
    if lengths is None and starts and made is not None:
        raise FormatError(
            f"{name!r} may be starts or lengths of samples",
            found=f"{table.size} numbers, {rows} in all",
            hint="a name that ends in _offsets or _lengths says which",
        )
    if not starts:
        return made
    for low in range(0, table.size - 1, _AT_ONCE):
        some = table[low : low + _AT_ONCE + 1]
        falls = some[1:] < some[:-1]
        if falls.any():
            wrong = low + int(np.argmax(falls))
            raise FormatError(
                f"the offsets {name!r} decrease",
                index=wrong,
                found=f"{int(table[wrong])} to {int(table[wrong + 1])}",
                expected=f"numbers that do not decrease, from 0 to {rows}",
            )
    return table


def _from_lengths(table: Array, rows: int) -> Int64 | None:
    """Offsets from lengths; None where these are not ``rows`` together."""
    if not table.size or int(table.min()) < 0 or int(table.max()) > rows:
        return None
    if float(table.sum(dtype=np.float64)) > 2.0 * rows + 1:
        return None  # it may overflow
    offsets = np.zeros(table.size + 1, np.int64)
    np.cumsum(table, dtype=np.int64, out=offsets[1:])
    return offsets if int(offsets[-1]) == rows else None


def is_table(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether a data set may hold offsets or lengths."""
    return len(shape) == 1 and dtype.kind in "iu" and shape[0] > 0


def candidates(name: str) -> dict[str, bool]:
    """The names by which the offsets of a field are found, and whether they are lengths."""
    return {f"{name}_offsets": False, f"{name}_lengths": True, "offsets": False, "indptr": False}


def does_not_fit(name: str, field: str, rows: int, table: Array) -> FormatError:
    """The error of offsets that are not those of a field's values."""
    total = float(table.sum(dtype=np.float64))
    return FormatError(
        f"{name!r} does not say where the samples of {field!r} begin",
        found=f"{table.size} numbers, {int(table[0])} to {int(table[-1])}, together {total:.15g}",
        expected=f"(N + 1,) starts from 0 to {rows}, or (N,) lengths that are {rows} together",
        hint=AS_ROWS,
    )


def find_offsets(
    field: str,
    rows: int,
    asked: str | Literal[False] | None,
    usual: Mapping[str, bool],
    table_of: Callable[[str, bool], Array | None],
) -> tuple[str, Array] | None:
    """The name of the table that says where the samples of a field begin among its ``rows``, and
    what it says, (N + 1,); None where each row is a sample.

    ``asked``: the table that the caller names; else the ``usual`` names are tried. ``table_of``:
    gives a table by its name and whether that is asked for; None where it is none.
    """
    if asked is False:
        return None
    for name, lengths in usual.items() if asked is None else ((asked, None),):
        table = None if name == field else table_of(name, asked is not None)
        if table is not None:
            found = fitting(name, field, rows, table, lengths, asked is not None)
            if found is not None:
                return name, found
    return None


@located(path="data")
def array_offsets(
    field: str, rows: int, given: Mapping[str, Any], asked: str | Literal[False] | None
) -> tuple[str, Array] | None:
    """:func:`find_offsets` among the arrays that are given."""

    def table_of(name: str, named: bool) -> Array | None:
        table = given.get(name)
        if isinstance(table, np.ndarray) and is_table(table.shape, table.dtype):
            return table
        if named and name not in given:
            raise no_field(name, list(given))
        if named:
            raise ParamsError(f"{name!r} is no array of whole numbers (N,)")
        return None

    return find_offsets(field, rows, asked, candidates(field), table_of)


def fitting(
    name: str,
    field: str,
    rows: int,
    table: Array,
    lengths: bool | None,
    asked: bool,
) -> Array | None:
    """Offsets as a table that may be a field's says; None where it is not. ``asked``: the caller
    named it. FormatError where its name says that it is, and its numbers do not."""
    if lengths is None and name.endswith(("_lengths", "_offsets")):
        lengths = name.endswith("_lengths")
    of_rows = not asked and table.size == rows  # something of each row, unless it is starts
    if of_rows and (lengths or int(table[0]) or int(table[-1]) != rows):
        return None
    found = offsets_in(table, name, rows, lengths)
    each = {table.size} if lengths else {table.size - 1} if lengths is False else set()
    if asked and found is None and rows in (each or {table.size, table.size - 1}):
        return None  # a field with one row for each sample
    if found is None and (asked or name.rpartition("/")[2] not in ("offsets", "indptr")):
        raise does_not_fit(name, field, rows, table)
    return found


# -- what the parameters ask for -------------------------------------------------------------------


def longest_of(source: OpenSet) -> dict[str, int] | None:
    """The length of the longest sample of each field whose samples differ; None where none do."""
    found = {
        name: max(1, _longest(source, name)[0])
        for name, one in zip(source.names, source.parts, strict=True)
        if one.spec.ragged or source.rule.is_whole(name)
    }
    return found or None


def rule_of_lengths(p: ReaderParams, source: OpenSet) -> str | None:
    """How samples of different length are cut, as a state has it; None where there are none.

    ParamsError where max_length lacks, or where there is nothing that it cuts.
    """
    wanted, path = p.wanted, source.facts.path
    ragged = [n for n, one in zip(source.names, source.parts, strict=True) if one.spec.ragged]
    whole = list(filter(source.rule.is_whole, source.names))
    both = [name for name in ragged if name in whole]
    if both:
        raise ParamsError(
            "rows of different length are not served in whole episodes: max_length cannot say both",
            path=path,
            found=f"field {both[0]!r}",
            hint="a window of some rows serves them",
        )
    cut = (*ragged, *whole)
    rules = {name: wanted.for_field(name) for name in cut}
    given = p.lengths.most, p.lengths.overlong, p.lengths.pad
    named = {name for one in given if isinstance(one, dict) for name in one} - set(cut)
    if named or (p.lengths.most is not None and not cut):
        raise ParamsError(
            "max_length goes with whole episodes and with rows of different length",
            path=path,
            found=f"field {min(named)!r}" if named else source.facts.layout,
            expected="variable length, values with offsets (offsets_field names them), or "
            'window="episode"',
        )
    if any(one.max_length is None for one in rules.values()):
        raise _needed(source, {name: one.max_length for name, one in rules.items()})
    if not cut:
        return None
    return str(sorted((name, one.max_length, one.overlong) for name, one in rules.items()))


def _needed(source: OpenSet, given: Mapping[str, int | None]) -> ParamsError:
    """The error of fields whose samples need max_length; ``given``: that of each, None for none."""
    longest, all_of_them = {}, True
    for name in given:
        longest[name], known = _longest(source, name)
        all_of_them = all_of_them and known
    lacking = [name for name, most in given.items() if most is None]
    values = {name: max(1, given[name] or longest[name]) for name in given}
    value = str(values) if len(values) > 1 else str(*values.values())
    listed = ", ".join(f"{longest[name]:,} of field {name!r}" for name in lacking)
    rows = source.facts.meta is None and any(
        _among_rows(source.index.fields[name]) for name in lacking
    )
    return ParamsError(
        f"the samples of field {lacking[0]!r} differ in length, and max_length is not given",
        path=source.facts.path,
        found=f"the longest{'' if all_of_them else ' of those looked at'} has {listed}",
        hint=f"max_length={value} serves them whole, a smaller one cuts those that are longer"
        + (f"; {AS_ROWS}" if rows else ""),
    )


def _among_rows(field: FieldIndex) -> bool:
    """Whether the values of a field are rows of a data set."""
    storage = field.storage
    values = storage.values.stored.storage if isinstance(storage, Ragged) else None
    in_runs = isinstance(values, Extents) and isinstance(values.starts, RunStarts)
    return values is not None and not in_runs


def _longest(source: OpenSet, name: str) -> tuple[int, bool]:
    """The length of a field's longest sample, and whether all were looked at."""
    offsets, most = source.index.fields[name].offsets, 0
    if offsets is None:
        return source.rule.longest(name), True
    for low in range(0, min(offsets.size - 1, _LOOKED_AT), _AT_ONCE):
        some = offsets[low : low + _AT_ONCE + 1].astype(np.int64)
        most = max(most, int(np.diff(some).max(initial=0)))
    return most, offsets.size - 1 <= _LOOKED_AT
