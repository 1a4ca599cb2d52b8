"""Sparse rows in HDF5: groups of data, indices and indptr (CSR), also those of 10x Genomics.

The numbers of a row are ``indptr[i]`` to ``indptr[i + 1]`` of ``indices`` and ``data``. Each of
these two is read by a source of its own, which knows its chunks; their runs are copied into memory
of the thread, where they are checked and added to a dense row by compiled code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...errors import DecodeError, FormatError, ParamsError, SampleError
from ...formats import packed as fmt
from ...pixels import kernels
from ...pixels.rows import RowJob, RowStore, Writer
from ...pixels.specs import SampleSpec, checked, holds_all
from ...stats import Meter
from ...system.array_types import Array, Bools, Int64, UInt8
from ...system.late import h5py
from ...system.memory import SCRATCH, address_of
from ...system.text import some
from ..arrays import Rows
from ..base import (
    KEPT_BYTES,
    BaseSource,
    FieldIndex,
    OpenField,
    Source,
    Storage,
    copied_if_small,
    default_block,
)
from ..fields import SetIndex
from ..hdf5.checks import attribute, check_bomb
from ..hdf5.chunks import Chunks
from ..request import check_columns
from .hdf5_data import Hdf5Set, index_data, number_storage

#: What a group of sparse rows calls where each begins, their columns, and the values; MATLAB's are
#: the columns of its matrix, as dense ones are stored with their axes reversed.
_CSR: Final = ("indptr", "indices", "data")
_MATLAB: Final = ("jc", "ir", "data")
#: What is in the group of 10x Genomics' files, whose rows are the barcodes (cells).
_BARCODES: Final = "barcodes"
_TENX: Final = "matrix"
#: What rewrites a file of an older AnnData.
REWRITE: Final = 'rewrite it: anndata.read_h5ad("old.h5ad").write_h5ad("new.h5ad")'
_TURN: Final = (
    "use rows: adata.X = adata.X.tocsr(); adata.write_h5ad(...) (a layer: adata.layers[name])"
)


def is_group(found: Hdf5Set, name: str) -> bool:
    """Whether ``name`` is a group of the file."""
    return isinstance(found.h5.reach(name), h5py.h5g.GroupID)


def is_sparse(found: Hdf5Set, name: str | None = None) -> bool:
    """Whether ``name``, or else what is asked for, is a group of sparse rows."""
    return bool(_parts(found, found.fields.data if name is None else name))


def _parts(found: Hdf5Set, name: str) -> list[str]:
    """The data sets of a group of sparse rows: see :data:`_CSR`; [] where it is none."""
    if is_group(found, name):
        for parts in (_CSR, _MATLAB):
            named = [f"{name}/{part}" for part in parts]
            if all(found.h5.reach(part) is not None for part in named):
                return named
    return []


# -- sparse rows -----------------------------------------------------------------------------------


def index_sparse(found: Hdf5Set, names: Sequence[str] = ()) -> SetIndex:
    """The index of the sparse rows in the group that is asked for. ``names``: data sets with names
    of its columns, of which the first that has all that are asked for says which they are."""
    name = found.fields.data
    found.fields.check_rows("sparse rows")
    starts, *stored = _parts(found, name)
    rows, width = _shape(found, name, starts)
    pair = tuple(_numbers(found, part) for part in stored)
    sizes = [found.dataset(one.name).shape[0] for one in pair]
    if sizes[0] != sizes[1] or pair[0].dtype.kind not in "iu":
        indices, values = (part.rpartition("/")[2] for part in stored)
        raise FormatError(
            f"{name!r} does not have a whole number in {indices!r} for each value in {values!r}",
            found=f"{sizes[0]} of {pair[0].dtype}, and {sizes[1]} values",
        )
    count = int(sizes[0])
    indptr = _indptr(found, starts, rows, count)
    asked = None if found.fields.own_dtype is None else np.dtype(found.fields.own_dtype)
    made = sum_dtype(pair[1].dtype, asked)
    check_bomb(width * made.itemsize, found.file.size, name)
    chosen, digest = chosen_columns(found, width, names)
    lookup = None
    if chosen is not None:
        lookup = np.full(width, -1, np.int64)
        lookup[chosen] = np.arange(chosen.size)
    served = width if chosen is None else chosen.size
    mean, items = count / rows, sum(one.dtype.itemsize for one in pair)
    chunked = [one.chunk for one in pair if one.chunk < count]
    block = default_block(int(mean * items))
    if chunked:
        block = max(1, int(pair[0].chunk / max(mean, 1)))
    how = f"sparse rows, {count / (rows * width):.2%} full"
    field = FieldIndex(
        SampleSpec((served,), made, None),
        SparseRows(indptr, pair, count, width, lookup),
        block=min(block, rows),
        chunk=block if chunked else None,
        stored_as=f"sparse {width} {pair[1].dtype.str[1:]}",
        columns=digest,
        # a block also touches the chunks in which the blocks beside it begin and end
        memory=max(1, int(mean * items * 2) if chunked else 0),
    )
    return found.index_field(field, rows, how + (f", chunks of {chunked[0]}" if chunked else ""))


def _shape(found: Hdf5Set, name: str, starts: str) -> tuple[int, int]:
    """Rows and columns of sparse rows, which begin at ``starts``. FormatError where they are
    columns."""
    h5 = found.h5
    kind = h5.text(name, "encoding-type")
    old = h5.text(name, "h5sparse_format")
    if kind is None and old is not None:
        raise FormatError(f"{name!r} are sparse rows of an older AnnData", found=old, hint=REWRITE)
    if kind == "csc_matrix":
        raise FormatError(
            f"{name!r} is stored by columns, which are not read as rows",
            found=kind,
            expected="csr_matrix",
            hint=_TURN,
        )
    if kind not in (None, "csr_matrix"):
        raise FormatError(f"{name!r} are no sparse rows", found=kind)
    group = h5py.Group(h5.reach(name))
    if starts.endswith(_MATLAB[0]):
        high = attribute(group, "MATLAB_sparse")
        columns = found.dataset(starts).size - 1
        shape = np.array([columns, int(high)]) if isinstance(high, np.integer) else None
    elif h5.reach(f"{name}/shape") is not None:
        shape = found.table(f"{name}/shape")
    else:
        shape = attribute(group, "shape")
    if not isinstance(shape, np.ndarray) or shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise FormatError(
            f"the sparse rows {name!r} do not say how many columns they have",
            found="no shape" if shape is None else f"shape {shape!r}"[:80],
            expected="an attribute or a dataset 'shape' of two whole numbers",
        )
    rows, width = (int(n) for n in shape)
    if h5.reach(f"{name}/{_BARCODES}") is not None:
        rows, width = width, rows  # (genes, cells)
    if rows <= 0 or width <= 0:
        raise FormatError(f"{name!r} has no samples", found=f"shape ({rows}, {width})")
    return rows, width


def _indptr(found: Hdf5Set, which: str, rows: int, count: int) -> Array:
    """Where each row begins: mapped where it is contiguous, and then checked when it is read."""
    data = found.dataset(which)
    if data.shape != (rows + 1,) or data.dtype.kind not in "iu":
        raise FormatError(
            f"{which!r} does not have one number more than there are rows",
            found=f"shape {data.shape}, {data.dtype}",
            expected=f"({rows + 1},), whole numbers",
        )
    indptr = copied_if_small(data.values())
    if data.chunks is None and indptr.nbytes > KEPT_BYTES:
        return indptr
    falls = indptr[1:] < indptr[:-1]
    if falls.any() or int(indptr[0]) < 0 or int(indptr[-1]) > count:
        wrong = int(np.argmax(falls)) if falls.any() else 0 if int(indptr[0]) < 0 else rows - 1
        raise FormatError(
            f"{which!r} does not lie among the stored numbers in order",
            index=wrong,
            found=f"{int(indptr[wrong])} to {int(indptr[wrong + 1])}",
            expected=f"numbers that do not decrease, within 0 to {count}",
        )
    return indptr


def _numbers(found: Hdf5Set, name: str) -> Numbers:
    """A data set of one axis."""
    storage, dtype = number_storage(found, name)
    size = int(found.dataset(name).shape[0])
    chunk = storage.grid.chunk[0] if isinstance(storage, Chunks) else max(1, size)
    return Numbers(name, dtype, storage, chunk)


def chosen_columns(
    found: Hdf5Set, width: int, names: Sequence[str]
) -> tuple[Int64 | None, str | None]:
    """The columns that are asked for, None for all; and a digest of the names of those served."""
    asked = found.fields.own_columns
    named = asked is not None and not all(isinstance(one, int) for one in asked)
    tables = [
        table for table in (column_names(found, name, width, named) for name in names) if table
    ]
    first = tables[0] if tables else None
    if asked is None:
        return None, None if first is None else fmt.names_digest(first)
    chosen: list[int] = []
    if named:
        chosen = _by_name([str(one).encode() for one in asked], tables)
    else:
        chosen = [int(one) for one in asked]
        check_columns(chosen, width)
    twice = len(set(chosen)) < len(chosen)
    if twice:
        raise ParamsError("columns names a column twice")
    digest = None if first is None else fmt.names_digest(first[one] for one in chosen)
    return np.array(chosen, np.int64), digest


def _by_name(asked: list[bytes], tables: list[list[bytes]]) -> list[int]:
    """The numbers of columns by their names."""
    if not tables:
        raise ParamsError("the columns of this dataset have no names", hint="give their numbers")
    for table in tables:
        numbers = {name: i for i, name in enumerate(table)}
        if all(name in numbers for name in asked):
            counts = Counter(table)
            twice = [name for name in asked if counts[name] > 1]
            if twice:
                raise ParamsError(
                    "several columns have the name that columns asks for",
                    found=_shown(twice[:1]),
                    hint="give their numbers",
                )
            return [numbers[name] for name in asked]
    lacking = [name for name in asked if name not in tables[0]]
    raise ParamsError(
        f"{some(len(lacking), 'unknown column')}",
        found=_shown(lacking),
        expected=f"names such as {_shown(tables[0])}",
    )


def _shown(names: Sequence[bytes]) -> str:
    """Some names, as errors show them."""
    few = ", ".join(name.decode("utf-8", "backslashreplace") for name in names[:5])
    return few + (", ..." if len(names) > 5 else "")


def column_names(found: Hdf5Set, name: str, width: int, needed: bool) -> list[bytes] | None:
    """The names of columns in a data set; None if there is none, and where it holds no text, unless
    they are ``needed``."""
    if found.h5.reach(name) is None:
        return None
    table = None if is_group(found, name) else found.dataset(name).texts()
    if table is None and not needed:
        return None
    if table is None or len(table) != width:
        raise FormatError(
            f"{name!r} does not have one name for each column",
            found="no text" if table is None else f"{len(table)} names",
            expected=f"{width} names",
        )
    return table


def index_named_columns(found: Hdf5Set, names: Sequence[str]) -> SetIndex:
    """The index of dense rows of numbers. ``names``: as of :func:`index_sparse`."""
    fields = found.fields
    data: Any = found.h5.reach(fields.data)
    shape: tuple[int, ...] = getattr(data, "shape", ())
    if not names or len(shape) != 2:
        return index_data(found)
    chosen, digest = chosen_columns(found, shape[1 - fields.along], names)
    if chosen is not None:
        found = replace(found, fields=replace(fields, columns=tuple(chosen.tolist())))
    index = index_data(found)
    ((name, field),) = index.fields.items()
    return replace(index, fields={name: replace(field, columns=digest)})


def _tenx(found: Hdf5Set) -> str:
    """The matrix of 10x Genomics': what is asked for, or the only one; "" where there is none."""
    names = [found.fields.data]
    if found.unnamed:  # the second version of the format has a group for each genome
        names = [_TENX] if _TENX in found.h5.names else found.groups()
    elif not is_group(found, names[0]):
        return ""
    has = [n for n in names if _parts(found, n) and found.h5.reach(f"{n}/{_BARCODES}")]
    return has[0] if len(has) == 1 else ""


def index_tenx(found: Hdf5Set) -> SetIndex:
    """10x Genomics' matrix: rows are the barcodes, columns the features."""
    name = _tenx(found)
    named = found.named("10x Genomics", replace(found.fields, data=name))
    places = ("features/id", "features/name", "genes", "gene_names")
    return index_sparse(named, [f"{name}/{place}" for place in places])


def is_tenx(found: Hdf5Set) -> bool:
    """Whether what is asked for is a matrix of 10x Genomics'."""
    return bool(_tenx(found))


# -- the source ------------------------------------------------------------------------------------


#: Numbers that are read and added together: their memory stays in a core's cache.
TOGETHER: Final = 1 << 16
#: The longest run that is read in one piece: it bounds what a hostile row takes.
LONGEST: Final = 1 << 21
#: Dense rows that are made together.
DENSE_BYTES: Final = 1 << 20

#: Dense rows are made in one of these types; what ``dtype`` asks for is made of it.
KERNELS: Final = {"f4": "add_rows_f4", "f8": "add_rows_f8", "i8": "add_rows_i8"}


def sum_dtype(stored: np.dtype[Any], asked: np.dtype[Any] | None) -> np.dtype[Any]:
    """The dtype in which the sums of a row are made, so that ``asked`` loses nothing more than its
    own precision: float32 where it is None or a float of at most 32 bits; int64 of whole numbers
    where whole numbers are asked for; else float64."""
    if asked is None or (asked.kind == "f" and asked.itemsize <= 4):
        return np.dtype(np.float32)
    whole = asked.kind in "iub" and stored.kind in "iub"
    return np.dtype(np.int64 if whole else np.float64)


@dataclass(frozen=True, eq=False)
class Numbers:
    """A data set of one axis: what its numbers are, and where they lie. ``chunk``: numbers in a
    chunk, of a contiguous data set all."""

    name: str
    dtype: np.dtype[Any]
    storage: Storage
    chunk: int

    def open(self, field: OpenField, count: int) -> Source:
        """The source of the ``count`` numbers."""
        spec, path = SampleSpec((), self.dtype, None), field.index.path
        own = FieldIndex(spec, self.storage, path=path, chunk=self.chunk)
        file = None if isinstance(self.storage, Rows) else field.file
        return self.storage.serve(OpenField(replace(field.facts, count=count), own, file))


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows whose columns and values lie in two data sets of ``count`` numbers (``numbers``).

    ``indptr``: whole numbers (N + 1,), where each row begins; ``width``: columns as stored;
    ``lookup``: int64 (width,), where each stands in a row that is served, -1 for one that is not;
    None: all, as they are.
    """

    indptr: Array
    numbers: tuple[Numbers, ...]
    count: int
    width: int
    lookup: Int64 | None = None

    def serve(self, field: OpenField) -> Source:
        """A source that reads them."""
        return SparseSource(field, self)


class _Runs(Writer):
    """A :class:`Writer` that copies runs of numbers to memory: run ``i`` of the job goes to
    ``targets[i]`` (addresses) with ``sizes[i]`` bytes. ``failed``: runs that cannot be decoded."""

    def __init__(self, begin: Int64, sizes: Int64, targets: Int64, meter: Meter) -> None:
        self.job = RowJob(begin, begin, begin.view(np.uint64))
        self.meter = meter
        self._sizes = sizes
        self._targets = targets
        self.failed: list[tuple[Int64, DecodeError]] = []

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        sizes, targets = self._sizes, self._targets
        if which is not None:
            sizes, targets = sizes[which], targets[which]
        where = store.address(int(sizes.sum()))
        if where is not None:
            kernels.copy_runs(offsets + where, sizes, targets)
            return
        for at, size, target in zip(
            offsets.tolist(), sizes.tolist(), targets.tolist(), strict=True
        ):
            view = store.view(at, size)
            kernels.copy_runs(*(np.array([n]) for n in (address_of(view), size, target)))

    def fail(self, i: int, error: SampleError) -> None:
        raise error  # a source of numbers has no other errors than those of its chunks

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        self.failed.append((which, error))


@dataclass
class _Group:
    """Rows that are read together: their places in the job, and where their runs begin and end.

    Of a row that is longer than LONGEST, one piece; ``first``, ``last``: whether it is the first
    and the last of the row's.
    """

    which: Int64
    begin: Int64
    end: Int64
    first: bool = True
    last: bool = True


class SparseSource(BaseSource):
    """Reads sparse rows: see :class:`SparseRows`."""

    def __init__(self, field: OpenField, rows: SparseRows) -> None:
        super().__init__(field)
        self._rows = rows
        self.parts = tuple(one.open(field, rows.count) for one in rows.numbers)
        self._lookup = np.empty(0, np.int64) if rows.lookup is None else rows.lookup
        assert self.spec.shape is not None
        self._width = self.spec.shape[0]
        # loaded by the thread that opens the set, not by a worker during the first batch
        self._add = getattr(kernels, KERNELS[self.spec.dtype.str[1:]])
        kernels.copy_runs  # noqa: B018

    def read_into(self, writer: Writer) -> None:
        records, count = writer.job.records, self._rows.count
        begin, end = (self._rows.indptr[records + k].astype(np.int64) for k in (0, 1))
        good = (begin >= 0) & (begin <= end) & (end <= count)
        for i in np.flatnonzero(~good).tolist():
            what = "a sparse row does not lie among the stored numbers"
            found = f"indptr {int(begin[i])} to {int(end[i])}"
            writer.fail(i, SampleError(what, found=found, expected=f"within 0 to {count}"))
        # in the order of storage: rows that share a chunk come together
        order = np.flatnonzero(good)
        order = order[np.argsort(begin[order], kind="stable")]
        failed = False
        scratch = writer.in_place is None
        most = max(1, DENSE_BYTES // self.spec.row_bytes) if scratch else order.size
        for group in _groups(order, begin[order], end[order], most):
            if writer.stopped:
                return
            if group.first:
                failed = False
            if not failed:
                failed = not self._read(group, writer)

    def _read(self, group: _Group, writer: Writer) -> bool:
        """Read rows. Whether all are good, or wanted no more."""
        raw, bad = [], np.zeros(group.which.size, np.bool_)
        for numbers, part in zip(self._rows.numbers, self.parts, strict=True):
            stored, failed = _read_runs(numbers, part, group, writer.meter)
            raw.append(stored)
            for which, error in failed:
                new = which[~bad[which]]
                bad[which] = True
                writer.fail_all(group.which[new], error)
        if writer.stopped:
            return True
        if bad.any():  # the others once more, from decoded chunks
            rest = replace(
                group, which=group.which[~bad], begin=group.begin[~bad], end=group.end[~bad]
            )
            if rest.which.size:
                self._read(rest, writer)
            return False
        return self._add_rows(group, raw[0], raw[1], writer)

    def _add_rows(self, group: _Group, indices: UInt8, stored: UInt8, writer: Writer) -> bool:
        """Make dense rows of the numbers that were read. Whether all are good."""
        records = writer.job.records[group.which]
        ends = np.cumsum(group.end - group.begin)
        columns = _as("sparse columns", indices, self._rows.numbers[0].dtype, np.dtype(np.int64))
        values = self._converted(stored, ends, records)
        straight = writer.in_place
        if straight is not None:
            out, rows = straight.out, writer.job.rows[group.which]
        else:
            rows = np.arange(group.which.size)
            out = SCRATCH.array("sparse rows", (rows.size, self._width), self.spec.dtype)
        wrong = np.empty(rows.size, np.int64)
        first = np.full(rows.size, group.first, np.uint8)
        width, bound = self._width, self._rows.width
        self._add(
            *(columns, values, ends, first, self._lookup, rows, width, bound),
            *(out.reshape(-1), wrong),
        )
        for k in np.flatnonzero(wrong < 0).tolist():
            raise self.located(_too_large(self.spec.dtype), int(records[k]))
        for k in np.flatnonzero(wrong).tolist():
            what, column = "a sparse row names a column that does not exist", columns[wrong[k] - 1]
            error = SampleError(what, found=int(column), expected=f"0 to {bound - 1}")
            writer.fail(int(group.which[k]), error)
        if straight is None and group.last:
            cuts = zip((indices, stored), self._rows.numbers, strict=True)
            parts = [np.split(one, ends[:-1] * of.dtype.itemsize) for one, of in cuts]
            for k in np.flatnonzero(wrong == 0).tolist():
                as_stored = np.concatenate([one[k] for one in parts]) if group.first else None
                writer.raw(int(group.which[k]), out[k], as_stored)
        return not wrong.any()

    def _converted(self, stored: UInt8, ends: Int64, records: Int64) -> Array:
        """The values in the dtype of the sums. ParamsError where that cannot hold one."""
        kind, made, path = self._rows.numbers[1].dtype, self.spec.dtype, self.facts.path
        if kind == np.bool_:
            stored, kind = (stored != 0).view(np.uint8), np.dtype(np.uint8)
        if holds_all(kind, made):
            return _as("sparse values", stored, kind, made)
        try:
            with checked(stored.view(kind), kind, made, path):
                return _as("sparse values", stored, kind, made)
        except ParamsError:
            for values, record in zip(np.split(stored.view(kind), ends), records, strict=False):
                try:
                    with checked(values, kind, made, path):
                        values.astype(made)
                except ParamsError as exc:
                    raise self.located(exc, int(record)) from None
            raise


def _groups(which: Int64, begin: Int64, end: Int64, most: int) -> Iterator[_Group]:
    """Rows in groups of about TOGETHER numbers and ``most`` rows; a long one in pieces."""
    total, at = np.cumsum(end - begin), 0
    while at < which.size:
        before = int(total[at - 1]) if at else 0
        stop = int(np.searchsorted(total, before + TOGETHER, side="right"))
        stop = min(max(stop, at + 1), at + most)
        some, last = slice(at, stop), int(end[at])
        if stop > at + 1 or last - int(begin[at]) <= LONGEST:
            yield _Group(which[some], begin[some], end[some])
        else:
            for lo in range(int(begin[at]), last, LONGEST):
                hi = min(lo + LONGEST, last)
                piece = np.array([lo]), np.array([hi])
                yield _Group(which[some], *piece, first=lo == begin[at], last=hi == last)
        at = stop


def _read_runs(
    numbers: Numbers, part: Source, group: _Group, meter: Meter
) -> tuple[UInt8, list[tuple[Int64, DecodeError]]]:
    """The bytes of all runs of a group, one after the other; and of runs that cannot be decoded
    the places of their rows in the group, with the error of each."""
    item, chunk = numbers.dtype.itemsize, numbers.chunk
    sizes = group.end - group.begin
    at = np.cumsum(sizes) - sizes
    memory = SCRATCH.take(f"sparse {numbers.name}", int(sizes.sum()) * item)
    if not memory.size:
        return memory, []
    low = group.begin // chunk
    counts = np.where(sizes > 0, (group.end - 1) // chunk - low + 1, 0)
    piece = np.repeat(np.arange(sizes.size), counts)
    number = np.arange(piece.size) - np.repeat(np.cumsum(counts) - counts, counts) + low[piece]
    begin = np.maximum(group.begin[piece], number * chunk)
    end = np.minimum(group.end[piece], (number + 1) * chunk)
    targets = (at[piece] + begin - group.begin[piece]) * item + address_of(memory)
    runs = _Runs(begin, (end - begin) * item, targets, meter)
    part.read_into(runs)
    return memory, [(np.unique(piece[which]), error) for which, error in runs.failed]


def _as(name: str, stored: UInt8, kind: np.dtype[Any], dtype: np.dtype[Any]) -> Array:
    """Stored numbers in another dtype, in memory of the thread where it is one."""
    values = stored.view(kind)
    if kind == dtype:
        return values
    made = SCRATCH.array(name, values.shape, dtype)
    np.copyto(made, values, casting="unsafe")
    return made


def _too_large(dtype: np.dtype[Any]) -> ParamsError:
    return ParamsError(
        f"the sum of the values of a column is too large for {dtype}",
        expected=f"at most {np.finfo(dtype).max:g}",
        hint='dtype="float64" has room for more',
    )
