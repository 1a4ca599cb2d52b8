"""What ``asyncreader info`` suggests: parameters that serve a dataset in another way, and what else
an HDF5 file holds that could be served."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..dataset import Dataset
from ..errors import AsyncReaderError, shown
from ..sources.base import Source
from ..sources.bytestore import OpenFile
from ..sources.hdf5.file import Hdf5, translated
from ..sources.hdf5.listing import SPARSE, Listed, list_fields
from ..sources.hdf5.sparse import SparseRows
from ..sources.ragged import offsets_in
from ..system.late import h5py
from ..system.text import times

#: Columns that are told, and numbers of a table that are read.
_COLUMNS: Final = 200
_NUMBERS: Final = 1 << 20

#: Of columns of ``obs`` that can be labels: what they are in words, by AnnData's encoding.
_NULLABLE: Final = {
    "nullable-integer": "whole numbers, -1 where missing",
    "nullable-boolean": "bool, -1 where missing",
    "nullable-string-array": "text, classes by name, -1 where missing",
}


#: Of columns that cannot be labels.
_NOT_READ: Final = "of a kind that is not read"


class Column(NamedTuple):
    """A column of ``obs``: its name in the file, what it holds in words, and whether it can be
    ``labels_field``."""

    name: str
    words: str
    label: bool


class Divided(NamedTuple):
    """A data set of ``values`` that may be samples of different length: ``table`` says where they
    begin, of which the ``longest`` has so many rows."""

    values: str
    table: str
    longest: int


@contextlib.contextmanager
def _file_of(source: Source) -> Iterator[tuple[Hdf5 | None, str]]:
    """The open HDF5 file of a set, of several the first, if it is one of this machine, and its
    layout. Its structure was checked when it was opened."""
    with source.holding(0) as (one, _):
        if not isinstance(one.file, OpenFile) or one.facts.container != "HDF5":
            yield None, one.facts.layout
            return
        with translated(one.file.path), Hdf5(one.file) as h5:
            yield h5, one.facts.layout


# -- cells -----------------------------------------------------------------------------------------


def columns_of_cells(source: Source) -> list[Column]:
    """The columns of ``obs`` in AnnData's files, but its index; [] of other layouts."""
    found: list[Column] = []
    with contextlib.suppress(AsyncReaderError), _file_of(source) as (h5, layout):
        obs: Any = h5.reach("obs") if h5 is not None and layout.startswith("AnnData") else None
        if h5 is None or not isinstance(obs, h5py.h5g.GroupID):
            return []
        index = h5.text("obs", "_index")
        for raw, item in h5.members(obs):
            name = raw.decode("utf-8", "surrogateescape")
            if name not in (index, "__categories") and len(found) < _COLUMNS:
                words, label = _NOT_READ, False
                with contextlib.suppress(AsyncReaderError):  # an attribute that is no text
                    words, label = _kind(h5, f"obs/{name}", item)
                found.append(Column(f"obs/{name}", words, label))
    return found


def _kind(h5: Hdf5, name: str, item: Any) -> tuple[str, bool]:
    """What a column holds in words, and whether it can be labels."""
    if isinstance(item, h5py.h5d.DatasetID):
        code, dtype = item.get_type().get_class(), h5py.Dataset(item).dtype
        if code == h5py.h5t.STRING:
            return "text, classes by name", True
        return (str(dtype), True) if dtype.kind in "biuf" else (_NOT_READ, False)
    encoding = None if item is None else h5.text(name, "encoding-type")
    if encoding == "categorical":
        names: Any = h5.reach(f"{name}/categories")
        names = (
            h5.reach(f"{name}/categories/values") if isinstance(names, h5py.h5g.GroupID) else names
        )
        count = names.shape[0] if isinstance(names, h5py.h5d.DatasetID) and names.shape else 0
        return f"categorical, {count:,} {'class' if count == 1 else 'classes'}", True
    words = _NULLABLE.get(encoding or "")
    return (words, True) if words else (_NOT_READ, False)


# -- samples of different length -------------------------------------------------------------------


def divided_fields(source: Source) -> list[Divided]:
    """Data sets of an HDF5 file whose rows a table beside them divides among samples, by its
    numbers: starts from 0 to the number of rows, or lengths that are so many together."""
    found: list[Divided] = []
    with contextlib.suppress(AsyncReaderError), _file_of(source) as (h5, _):
        if h5 is None:
            return []
        fields, _ = list_fields(h5.members, h5.reach("/"))
        listed = [one for one in fields if one.served and one.shape]
        for table in filter(_may_divide, listed):
            fields = [one for one in listed if _may_be_divided(one, table)]
            # of a table that cannot be read, or whose starts decrease, nothing is said
            with contextlib.suppress(AsyncReaderError):
                found += _divided(h5, table, fields)
    return found


def _divided(h5: Hdf5, table: Listed, fields: Sequence[Listed]) -> Iterator[Divided]:
    if not fields:
        return
    numbers = h5.dataset(table.name).read()
    for one in fields:
        offsets = offsets_in(numbers, table.name, one.shape[0], h5.path)
        if offsets is not None:
            yield Divided(one.name, table.name, int(np.diff(offsets.astype(np.int64)).max()))


def _may_be_divided(one: Listed, table: Listed) -> bool:
    """Whether a data set has other rows than a table in its folder."""
    rows = (table.shape[0], table.shape[0] - 1)
    values = one.dtype != SPARSE and one.shape[0] not in rows
    return values and _folder(one) == _folder(table)


def _may_divide(one: Listed) -> bool:
    whole = one.dtype.startswith(("int", "uint"))
    return len(one.shape) == 1 and 1 < one.shape[0] <= _NUMBERS and whole


def _folder(one: Listed) -> str:
    return one.name.rpartition("/")[0]


# -- in words --------------------------------------------------------------------------------------


#: Sides of what may be a volume: the shortest one, how many times as long the longest may be, and
#: the patch that is suggested.
_SHORTEST, _RATIO, _PATCH = 8, 32, 32
#: Values of the smallest volume.
_VOLUME: Final = 32**3


def hints_for(ds: Dataset, columns: list[Column]) -> list[str]:
    """What could be passed besides what was, in words; [] where nothing suggests itself.
    ``columns``: those of cells."""
    source, most = ds.source, ds.params.lengths.most
    found: list[str] = []
    labels = sorted((one for one in columns if one.label), key=lambda one: "class" not in one.words)
    if labels and source.labels is None:
        found.append(f"-p labels_field={shown(labels[0].name)} serves a column as labels")
    plain = source.facts.meta is None and not source.rule.apart
    if plain and not columns and not isinstance(source.index.first.storage, SparseRows):
        found += _of_lengths(ds) or _of_volumes(ds)
    differ = any(one.offsets is not None for one in source.index.fields.values())
    if differ and ds.given.get("max_length") is None and not source.rule.apart:
        longest = max(most.values()) if isinstance(most, dict) else most
        found.append(
            f"samples differ in length: -p max_length={longest} serves all of them whole, "
            "a smaller one cuts the longer ones"
        )
    return found


def _of_lengths(ds: Dataset) -> list[str]:
    """Of values that a table beside them divides among samples."""
    index = ds.source.index
    if index.facts.container != "HDF5" or any(
        one.offsets is not None for one in index.fields.values()
    ):
        return []
    return [
        f"{shown(one.table)} may say where samples begin in {shown(one.values)}: "
        f"-p data_field={shown(one.values)} -p offsets_field={shown(one.table)} "
        f"-p max_length={one.longest} serves them"
        for one in divided_fields(ds.source.first)
    ]


def _of_volumes(ds: Dataset) -> list[str]:
    """Of data sets that are volumes, or one volume, by their shape."""
    spec, count = ds.source.spec, ds.source.facts.count
    shape = spec.shape
    if shape is None or spec.encoded or spec.axes is not None or spec.dtype.names is not None:
        return []
    if len(shape) == 2 and _is_volume((count, *shape)):
        patch = times(min(_PATCH, side) for side in (count, *shape)).replace(" ", "")
        whole = times((count, *shape))
        return [
            f"if it is one volume of {whole}: -p patch={patch} -p sample_axis=null serves patches"
        ]
    if len(shape) in (3, 4) and _is_volume(shape[-3:]):
        patch = times(min(_PATCH, side) for side in shape[-3:]).replace(" ", "")
        whole = ""
        if len(shape) == 3:
            channels = times((count, *shape))
            whole = f"; if it is one volume of {channels}, with -p sample_axis=null"
        return [f"if samples are volumes: -p patch={patch} serves patches of them{whole}"]
    return []


def _is_volume(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape may be a volume, and is large enough to be cut."""
    size = shape[0] * shape[1] * shape[2]
    return min(shape) >= _SHORTEST and max(shape) <= _RATIO * min(shape) and size >= _VOLUME
