"""AnnData's .h5ad: cells as rows of X, of a layer or of raw/X, and columns of obs as labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import FormatError, ParamsError
from ...system.array_types import Array
from ..fields import SetIndex
from ..labels import numbered
from .hdf5_data import Hdf5Set
from .hdf5_sparse import REWRITE, index_named_columns, index_sparse, is_group, is_sparse

#: Columns of obs that an error lists.
_LISTED = 20


def is_anndata(found: Hdf5Set) -> bool:
    """Whether this is a file of AnnData's."""
    return {"obs", "var"} <= found.h5.names


def index_anndata(found: Hdf5Set) -> SetIndex:
    """``X`` unless other data are asked for, and a column of ``obs`` as labels."""
    fields = replace(found.fields, data="X") if found.unnamed else found.fields
    labels = (fields.labels or "").strip("/")
    column = labels if labels.startswith("obs/") and fields.labels_path is None else None
    named = found.named("AnnData", fields)
    if column is not None:
        named = replace(named, fields=replace(fields, labels=None))
    data = fields.data.strip("/")
    names = []
    if data in ("X", "raw/X") or data.startswith("layers/"):
        names = _index_of(found, "raw/var" if data == "raw/X" else "var")
    index = (index_sparse if is_sparse(found, data) else index_named_columns)(named, names)
    if column is None:
        return index
    table, classes = _labels(found, column)
    if table.shape != (index.facts.count,):
        raise FormatError(
            f"{column!r} has another number of rows than the data",
            found=f"shape {table.shape}",
            expected=f"{index.facts.count} rows",
        )
    return replace(index, labels=table, facts=replace(index.facts, classes=classes))


def _index_of(found: Hdf5Set, group: str) -> list[str]:
    """The data set with the names of the rows of ``var`` or ``obs``, if there is one."""
    if found.h5.reach(group) is None:
        return []
    if not is_group(found, group):
        raise _older(found, group)
    name = found.h5.text(group, "_index")
    return [] if name is None else [f"{group}/{name}"]


def _older(found: Hdf5Set, name: str) -> FormatError:
    return FormatError(f"{name!r} is stored as an older AnnData did", hint=REWRITE)


# -- columns of obs as labels ----------------------------------------------------------------------


def _labels(found: Hdf5Set, name: str) -> tuple[Array, tuple[str, ...] | None]:
    """The labels in a column, (N,), and the names of their classes where it has categories or text.

    -1 stands for a value that is missing.
    """
    h5 = found.h5
    inside, _, column = name.partition("/")
    if h5.reach(inside) is not None and not is_group(found, inside):
        raise _older(found, inside)
    if h5.reach(f"{inside}/__categories/{column}") is not None:
        raise _older(found, name)
    if h5.reach(name) is None:
        names = sorted(h5.file[inside])[:_LISTED] if is_group(found, inside) else []
        raise ParamsError(f"no column {column!r} in obs", found=", ".join(names) or "no columns")
    kind = h5.text(name, "encoding-type") if is_group(found, name) else None
    if kind == "categorical":
        return _categorical(found, name)
    if not is_group(found, name):
        texts = found.dataset(name).texts()
        return (found.table(name), None) if texts is None else numbered(texts)
    if kind is None or not kind.startswith("nullable-"):
        raise FormatError(f"column {name!r} is of a kind that is not read", found=kind)
    missing = found.table(f"{name}/mask") != 0
    texts = found.dataset(f"{name}/values").texts()
    values = found.table(f"{name}/values") if texts is None else np.zeros(len(texts), np.int64)
    if missing.shape != values.shape:
        raise FormatError(f"column {name!r} has another number of rows than its mask")
    classes = None
    if texts is not None:
        values[~missing], classes = numbered([texts[i] for i in np.flatnonzero(~missing)])
    labels = values.astype(np.int64)
    if (labels != values)[~missing].any():
        raise FormatError(f"column {name!r} does not hold whole numbers of 64 bits")
    labels[missing] = -1
    return labels, classes


def _categorical(found: Hdf5Set, name: str) -> tuple[Array, tuple[str, ...]]:
    """Codes and categories; -1 stays what it is."""
    where = f"{name}/categories"
    texts = found.dataset(f"{where}/values" if is_group(found, where) else where).texts()
    if texts is not None:
        classes = tuple(text.decode("utf-8", "surrogateescape") for text in texts)
    else:
        classes = tuple(str(value) for value in found.table(where).tolist())
    codes = found.table(f"{name}/codes")
    if codes.dtype.kind not in "iu" or (
        codes.size and not -1 <= int(codes.min()) <= int(codes.max()) < len(classes)
    ):
        raise FormatError(
            f"the codes of {name!r} are not numbers of its categories",
            found=f"{codes.min()} to {codes.max()}" if codes.dtype.kind in "iu" else codes.dtype,
            expected=f"-1 to {len(classes) - 1}",
        )
    return codes.astype(np.int64), classes
