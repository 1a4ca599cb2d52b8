"""loom files: cells as samples, which are the columns of its matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..fields import SetIndex
from .hdf5_data import Hdf5Set, index_data
from .hdf5_sparse import index_named_columns

#: The matrix (genes, cells), and what is in a file beside it; layers are of the same shape.
_MATRIX: Final = "matrix"
_BESIDE: Final = {_MATRIX, "row_attrs", "col_attrs"}
#: Attributes of rows that name genes.
_NAMES: Final = ("row_attrs/Gene", "row_attrs/Accession", "row_attrs/GeneName")


def is_loom(found: Hdf5Set) -> bool:
    """Whether this is a loom file."""
    return found.h5.names >= _BESIDE and found.h5.member(_MATRIX) is not None


def index_loom(found: Hdf5Set) -> SetIndex:
    """``matrix`` unless other data are asked for; its columns are samples, as are those of layers,
    and genes their columns."""
    data = _MATRIX if found.unnamed else found.fields.data.strip("/")
    fields = replace(found.fields, data=_MATRIX) if found.unnamed else found.fields
    named = found.named("loom", fields)
    if data != _MATRIX and not data.startswith("layers/"):
        return index_data(named)
    return index_named_columns(replace(named, fields=replace(fields, along=1)), _NAMES)
