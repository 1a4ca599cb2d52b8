"""Sparse rows in HDF5: groups of data, indices and indptr (CSR), also those of 10x Genomics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...errors import ParamsError
from ...formats import packed as fmt
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Int64
from ...system.late import h5py
from ...system.text import some
from ..arrays import Rows
from ..base import KEPT_BYTES, FieldIndex, copied_if_small, default_block
from ..fields import SetIndex
from ..hdf5.checks import attribute, check_bomb
from ..hdf5.chunks import Chunks
from ..hdf5.sparse import Numbers, SparseRows, sum_dtype
from ..request import check_columns
from .hdf5_data import index_data, number_storage
from .hdf5_set import Hdf5Set

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
    name, path = found.fields.data, found.path
    found.fields.check_rows("sparse rows", path)
    starts, *stored = _parts(found, name)
    rows, width = _shape(found, name, starts)
    pair = tuple(_numbers(found, part) for part in stored)
    sizes = [found.dataset(one.name).shape[0] for one in pair]
    if sizes[0] != sizes[1] or pair[0].dtype.kind not in "iu":
        indices, values = (part.rpartition("/")[2] for part in stored)
        raise found.refuse(
            f"{name!r} does not have a whole number in {indices!r} for each value in {values!r}",
            found=f"{sizes[0]} of {pair[0].dtype}, and {sizes[1]} values",
        )
    count = int(sizes[0])
    indptr = _indptr(found, starts, rows, count)
    asked = None if found.fields.own_dtype is None else np.dtype(found.fields.own_dtype)
    made = sum_dtype(pair[1].dtype, asked)
    check_bomb(width * made.itemsize, found.file.size, name, path)
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
        raise found.refuse(f"{name!r} are sparse rows of an older AnnData", found=old, hint=REWRITE)
    if kind == "csc_matrix":
        raise found.refuse(
            f"{name!r} is stored by columns, which are not read as rows",
            found=kind,
            expected="csr_matrix",
            hint=_TURN,
        )
    if kind not in (None, "csr_matrix"):
        raise found.refuse(f"{name!r} are no sparse rows", found=kind)
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
        raise found.refuse(
            f"the sparse rows {name!r} do not say how many columns they have",
            found="no shape" if shape is None else f"shape {shape!r}"[:80],
            expected="an attribute or a dataset 'shape' of two whole numbers",
        )
    rows, width = (int(n) for n in shape)
    if h5.reach(f"{name}/{_BARCODES}") is not None:
        rows, width = width, rows  # (genes, cells)
    if rows <= 0 or width <= 0:
        raise found.refuse(f"{name!r} has no samples", found=f"shape ({rows}, {width})")
    return rows, width


def _indptr(found: Hdf5Set, which: str, rows: int, count: int) -> Array:
    """Where each row begins: mapped where it is contiguous, and then checked when it is read."""
    data = found.dataset(which)
    if data.shape != (rows + 1,) or data.dtype.kind not in "iu":
        raise found.refuse(
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
        raise found.refuse(
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
    return Numbers(name, dtype, storage, chunk, in_file=not isinstance(storage, Rows))


def chosen_columns(
    found: Hdf5Set, width: int, names: Sequence[str]
) -> tuple[Int64 | None, str | None]:
    """The columns that are asked for, None for all; and a digest of the names of those served."""
    asked, path = found.fields.own_columns, found.path
    named = asked is not None and not all(isinstance(one, int) for one in asked)
    tables = [
        table for table in (column_names(found, name, width, named) for name in names) if table
    ]
    first = tables[0] if tables else None
    if asked is None:
        return None, None if first is None else fmt.names_digest(first)
    chosen: list[int] = []
    if named:
        chosen = _by_name([str(one).encode() for one in asked], tables, path)
    else:
        chosen = [int(one) for one in asked]
        check_columns(chosen, width, path)
    twice = len(set(chosen)) < len(chosen)
    if twice:
        raise ParamsError("columns names a column twice", path=path)
    digest = None if first is None else fmt.names_digest(first[one] for one in chosen)
    return np.array(chosen, np.int64), digest


def _by_name(asked: list[bytes], tables: list[list[bytes]], path: str) -> list[int]:
    """The numbers of columns by their names."""
    if not tables:
        raise ParamsError(
            "the columns of this dataset have no names", path=path, hint="give their numbers"
        )
    for table in tables:
        numbers = {name: i for i, name in enumerate(table)}
        if all(name in numbers for name in asked):
            counts = Counter(table)
            twice = [name for name in asked if counts[name] > 1]
            if twice:
                raise ParamsError(
                    "several columns have the name that columns asks for",
                    path=path,
                    found=_shown(twice[:1]),
                    hint="give their numbers",
                )
            return [numbers[name] for name in asked]
    lacking = [name for name in asked if name not in tables[0]]
    raise ParamsError(
        f"{some(len(lacking), 'unknown column')}",
        path=path,
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
        raise found.refuse(
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
