"""AnnData's files as its write_h5ad() writes them, made with h5py after the specification."""

from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

TEXT = h5py.string_dtype()


def mark(node: Any, kind: str, **attributes: Any) -> Any:
    """The node with the attributes that tell anndata what it is."""
    version = "0.1.0" if kind in ("anndata", "csr_matrix") else "0.2.0"
    node.attrs.update({"encoding-type": kind, "encoding-version": version, **attributes})
    return node


def put(group: h5py.Group, parts: Sequence[Any], shape: tuple[int, ...], **how: Any) -> None:
    """A csr_matrix of these data, indices and indptr."""
    for name, part in zip(("data", "indices", "indptr"), parts, strict=True):
        group.create_dataset(name, data=part, **how)
    mark(group, "csr_matrix", shape=shape)


def text(group: h5py.Group, name: str, values: Sequence[str]) -> None:
    mark(group.create_dataset(name, data=values, dtype=TEXT), "string-array")


def frame(file: h5py.Group, name: str, index: Sequence[str], columns: Sequence[str] = ()) -> None:
    """A table with its index, ``names``; its columns are added behind."""
    table = mark(file.require_group(name), "dataframe", _index="names")
    table.attrs["column-order"] = np.array(columns, TEXT)
    text(table, "names", index)


def categorical(obs: h5py.Group, name: str, codes: Any, categories: Sequence[Any]) -> None:
    group = mark(obs.create_group(name), "categorical", ordered=False)
    group["codes"] = np.asarray(codes, np.int8)
    kind = TEXT if isinstance(categories[0], str) else None
    group.create_dataset("categories", data=categories, dtype=kind)
