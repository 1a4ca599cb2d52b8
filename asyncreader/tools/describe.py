"""What a dataset holds: the facts that ``asyncreader info`` tells, as plain values; its labels,
counted and in words; and what could be passed to serve it in another way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import numpy as np

from ..dataset import Dataset
from ..errors import AsyncReaderError, ParamsError, shown
from ..pixels import codec
from ..pixels.numbers import listed
from ..pixels.specs import SampleSpec
from ..sampling.episodes import Windows
from ..sampling.patches import Patches
from ..sources import Inspector, MixedSet, OpenSet, SetIndex, Source
from ..sources.base import FieldIndex, Storage, row_size
from ..sources.bytestore import OpenFile
from ..sources.extents import Extents
from ..sources.hdf5.chunks import Chunks, ChunkVolumes
from ..sources.hdf5.file import Hdf5, translated
from ..sources.hdf5.listing import SPARSE, Listed, list_fields
from ..sources.labels import apart, label_names, split_counts
from ..sources.layouts.hdf5_sparse import SparseRows
from ..sources.ragged import offsets_in
from ..sources.sets.joined import Joined
from ..system.array_types import Array, Int64
from ..system.late import h5py
from ..system.text import slip, some, times

#: Widest span of whole-number labels that are counted one by one rather than as a range.
LABEL_SPAN: Final = 65_536

#: Labels that are looked at together.
_PIECE: Final = 1 << 20

#: Values of a sample's label that are written out.
_VALUES_SHOWN: Final = 6


class LabelCount(NamedTuple):
    """How many samples carry a label; ``name``: of its class, None where it has none."""

    label: int
    name: str | None
    samples: int


def single(labels: Array | None) -> Int64 | None:
    """Labels as int64 (N,) where each sample has one whole number that fits, else None."""
    if labels is None or labels.dtype.kind not in "bui" or math.prod(labels.shape[1:]) != 1:
        return None
    column = np.asarray(labels).reshape(-1)  # those of shards are read here
    if column.dtype == np.uint64 and column.size and int(column.max()) >= 1 << 63:
        return None
    return column.astype(np.int64, copy=False)


def count_labels(labels: Array | None, names: Sequence[str] | None) -> list[LabelCount] | None:
    """Samples by label, in the order of the labels, named classes without samples included.

    None where a sample has no label, several, or a real number, or where labels differ too much
    to be classes.
    """
    column = single(labels)
    if column is None:
        return None
    known = names or ()
    low, high = int(column.min()), int(column.max())
    first = min(0, low) if known else low
    if high - first >= LABEL_SPAN + len(known) or high >= 1 << 62:
        return None
    found = np.bincount(column - first, minlength=len(known) - first if known else 0)
    return [
        LabelCount(label, known[label] if 0 <= label < len(known) else None, samples)
        for label, samples in enumerate(found.tolist(), first)
        if samples or 0 <= label < len(known)
    ]


def class_of(row: Array, names: Sequence[str] | None) -> str | None:
    """The name of a sample's class; ``row``: its labels, of any shape."""
    if not names or row.size != 1 or row.dtype.kind not in "bui":
        return None
    label = int(row.reshape(-1)[0])
    return names[label] if 0 <= label < len(names) else None


def in_words(row: Array) -> str:
    """ "3", or "0.5, 1, 7" where a sample has several, the first six of them; of several labels
    each with its name."""
    if row.dtype.names is not None:
        return ", ".join(f"{name} {in_words(np.asarray(row[name]))}" for name in row.dtype.names)
    values = row.reshape(-1)[:_VALUES_SHOWN].tolist()
    words = [f"{value:.4g}" if isinstance(value, float) else str(+value) for value in values]
    return ", ".join(words) + (", ..." if row.size > _VALUES_SHOWN else "")


def row_of(labels: Any, record: int) -> Array | None:
    """The labels of one sample, of an array or of shards that are read for it; None without."""
    if labels is None:
        return None
    row: Array = labels[np.array([record], np.int64)][0]
    return np.asarray(row)


def records_of(classes: Sequence[str], labels: Array | None, names: Sequence[str] | None) -> Int64:
    """Record numbers of the samples of some classes, by name or label number, in order.

    ParamsError where the set has no such class, or no labels that are classes.
    """
    column = single(labels)
    if column is None:
        raise ParamsError(
            "no class to choose by",
            found="no labels" if labels is None else f"labels {labels.shape} {labels.dtype}",
            expected="one whole number for each sample",
        )
    wanted = [_label_of(word, column, names or ()) for word in classes]
    return np.flatnonzero(np.isin(column, wanted))


def _label_of(word: str, column: Int64, names: Sequence[str]) -> int:
    if word in names:
        return names.index(word)
    try:
        label = int(word)
    except ValueError:
        near = slip(word, names)
        listed = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise ParamsError(
            f"no class {word!r}",
            expected=listed or "a label number: the dataset has no class names",
            hint=None if near is None else f"did you mean {near!r}?",
        ) from None
    if abs(label) >= 1 << 63 or not (column == label).any():
        raise ParamsError(
            f"no sample has label {word}", expected=f"{column.min()} to {column.max()}"
        )
    return label


def ends(labels: Array) -> tuple[Any, Any]:
    """Least and greatest label; None for one that is not a number JSON knows."""
    # in pieces: those of shards are read from one after the other
    pieces = [labels[at : at + _PIECE] for at in range(0, len(labels), _PIECE)]
    low = +np.min([piece.min() for piece in pieces]).item()  # of bools, whole numbers
    high = +np.max([piece.max() for piece in pieces]).item()
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


# -- all facts -------------------------------------------------------------------------------------


#: Samples whose restart markers are looked at, and bytes after which no more are read.
_LOOKED_AT: Final = 200
_MOST_READ: Final = 64 << 20
#: Samples whose lengths are looked at.
_LENGTHS_READ: Final = 1 << 24


def describe(ds: Dataset) -> dict[str, Any]:
    """Facts of the set; with a subset its labels are shown."""
    source, whole = ds.source, ds.params.subset is None
    facts, spec = source.facts, source.spec
    columns = columns_of_cells(source.first)
    return {
        "path": facts.path,
        "container": facts.container,
        "layout": facts.layout,
        "format_version": None if facts.meta is None else facts.meta.version,
        "shards": None if facts.ends is None else len(facts.ends),
        "count": facts.count,
        "sets": [
            {"path": one.facts.path, "ratio": ratio, "count": one.facts.count}
            for one, ratio in zip(source.sets, source.index.ratios, strict=True)
        ]
        if isinstance(source, MixedSet)
        else None,
        "subset": None if whole else len(ds),
        "field": source.names[0] if source.named else None,
        "shape": None if spec.shape is None else list(spec.shape),
        "axes": spec.axes,
        "dtype": _dtype(spec),
        "stored_values": _stored_values(source.index.first),
        "encoding": spec.encoding,
        "chunk": source.first.index.chunk,
        "compression": source.first.index.compression,
        "fields": _describe_fields(source),
        "columns": [one._asdict() for one in columns],
        "labels": _describe_labels(ds),
        "label_names": list(label_names(source, ds.params.labels_field)) or None,
        "classes": None if facts.classes is None else list(facts.classes),
        "splits": split_counts(source.splits, source.facts.count),
        "episodes": _describe_episodes(source),
        "patches": _describe_patches(ds),
        "lengths": {
            name: _spread(np.diff(field.offsets[: _LENGTHS_READ + 1].astype(np.int64)))
            for name, field in source.index.fields.items()
            if field.offsets is not None
        },
        "restarts": _describe_restarts(source.first),
        "checksums": bool(source.checked),
        "fingerprint": ds.fingerprint,
        "bytes_on_disk": facts.size_on_disk,
        "bytes_a_sample": _bytes_each(source.index),
        "hints": hints_for(ds, columns),
    }


def _dtype(spec: SampleSpec) -> str:
    """The dtype of stored samples; the members of structured rows, or the one that is served."""
    return str(spec.dtype) if spec.dtype.names is None else listed(spec.dtype, spec.members)


def _describe_episodes(source: OpenSet) -> dict[str, Any] | None:
    """What says where episodes end, how many and how long they are, and episodes in each split."""
    if not isinstance(source.rule, Windows):
        return None
    episodes = source.rule.episodes
    return {
        "known_by": episodes.kind,
        "count": episodes.lengths.size,
        "empty": episodes.empty,
        "words": episodes.words,
        "rows": _spread(episodes.lengths),
        "splits": {name: numbers.size for name, numbers in episodes.splits.items()},
        "samples": source.rule.population,
    }


def _spread(lengths: Array) -> list[float]:
    """The least, the median and the greatest."""
    return [int(lengths.min()), float(np.median(lengths)), int(lengths.max())]


def _describe_patches(ds: Dataset) -> dict[str, Any] | None:
    """Of patches: how many, where, of which volumes, and how many chunks of each field one touches
    on average; None of fields that have no chunks."""
    found = ds.source.rule
    if not isinstance(found, Patches):
        return None
    return {
        "count": len(ds),
        "shape": list(found.volumes.patch),
        "at": found.at,
        "step": list(found.step) if found.at == "grid" else None,
        "volumes": found.volumes.count,
        "words": found.volumes.words,
        "chunks": {name: _touched(found, one) for name, one in ds.source.index.fields.items()},
    }


def _touched(patches: Patches, field: FieldIndex) -> float | None:
    """The mean number of chunks of a field that a patch touches."""
    storage, found = field.stored.storage, []
    parts = storage.files if isinstance(storage, Joined) else None
    files = [one.first.stored.storage for one in parts] if isinstance(parts, tuple) else [storage]
    for run, one in enumerate(files):  # the volumes of a file are of one extent
        if not isinstance(one, ChunkVolumes):
            return None
        volumes, grid = one.stored.volumes, one.grid
        cut = (*volumes.axes, volumes.sample_axis)
        across = math.prod(n for axis, n in enumerate(grid.grid) if axis not in cut)
        found.append(across * patches.touched(run, [grid.chunk[axis] for axis in volumes.axes]))
    return float(np.average(found, weights=patches.shares))


def mean_over_files(field: FieldIndex, of: Callable[[Storage], Any]) -> Any:
    """What ``of`` says of a field's storage; in several files the mean by their samples, None where
    it is not known of all of them, or only opening each file would tell."""
    storage = field.stored.storage
    if not isinstance(storage, Joined):
        return of(storage)
    files = storage.files if isinstance(storage.files, tuple) else ()
    values = [mean_over_files(index.first, of) for index in files]
    if not values or any(value is None for value in values):
        return None
    return np.average(np.array(values), axis=0, weights=[index.facts.count for index in files])


def _bytes_each(index: SetIndex) -> float | None:
    """Mean bytes of a sample of the first field as it is stored, whatever else the file holds.
    None where only opening each file would tell."""
    facts, field = index.facts, index.first.stored
    plain = None if field.spec.shape is None else row_size(field.spec.shape, field.spec.dtype)
    if field.offsets is not None:
        return int(field.offsets[-1]) * (plain or 0) / facts.count
    if isinstance(field.storage, Joined) and not isinstance(field.storage.files, tuple):
        return None if facts.fields else facts.size_on_disk / facts.count

    def of_a_file(storage: Storage) -> float | None:
        if isinstance(storage, Extents):
            return float(np.mean(storage.sizes))
        if isinstance(storage, Chunks):
            return float(storage.grid.sizes.sum() / samples_of(storage))
        if isinstance(storage, SparseRows):
            items = sum(one.dtype.itemsize for one in storage.numbers)
            return float(storage.count * items / (storage.indptr.size - 1))
        return plain

    found: float | None = mean_over_files(field, of_a_file)
    return found


def samples_of(storage: Chunks) -> int:
    """How many samples lie in the chunks of a file."""
    return math.prod(storage.grid.shape[storage.axis : storage.axis + storage.lead])


def _stored_values(field: FieldIndex) -> float | None:
    """The part of the values of sparse rows that is stored; None of others."""

    def of_a_file(storage: Storage) -> float | None:
        if not isinstance(storage, SparseRows):
            return None
        return float(storage.count / ((storage.indptr.size - 1) * storage.width))

    found: float | None = mean_over_files(field, of_a_file)
    return found


def _describe_fields(source: OpenSet) -> list[dict[str, Any]]:
    """The other fields: those that were asked for, else those that the set lists."""
    if not source.named:
        return [asdict(field) for field in source.facts.fields]
    named = zip(source.names[1:], source.parts[1:], strict=True)
    return [
        {
            "name": name,
            "encoding": part.spec.encoding,
            "shape": part.spec.shape,
            "channels": part.spec.image_shape()[2],
            "dtype": _dtype(part.spec),
            "stored_values": _stored_values(part.index),
        }
        for name, part in named
    ]


def _describe_restarts(source: Source) -> dict[str, int] | None:
    """Of some samples, spread over the set: how many were looked at, are JPEGs, and can be cut
    (codec/jpeg.py). None where there is none to look at, or where that takes requests."""
    facts, spec = source.facts, source.spec
    if not spec.encoded or spec.encoding == "png" or facts.remote:
        return None
    looked = Inspector(source)
    looked_at = jpegs = can_be_cut = size = 0
    for record in np.unique(np.linspace(0, facts.count - 1, _LOOKED_AT).astype(np.int64)).tolist():
        if size > _MOST_READ:
            break
        looked_at += 1
        with contextlib.suppress(AsyncReaderError):  # a damaged sample: verify names it
            data = looked.bytes(record)
            size += len(data)
            header = codec.read_plain_header(data) or codec.read_header(data)
            jpegs += header.kind == "jpeg"
            can_be_cut += header.facts is not None
    return {"looked_at": looked_at, "jpegs": jpegs, "can_be_cut": can_be_cut}


def _describe_labels(ds: Dataset) -> dict[str, Any] | list[dict[str, Any]] | None:
    """Of labels, or of each of several: shape, dtype and range; and samples by class or value where
    there is one whole number. With a subset its labels alone."""
    table, classes = ds.source.table, ds.source.facts.classes
    if table is None:
        return None
    names, whole = table.dtype.names, ds.params.subset is None
    if names is None:
        return _describe_one(table if whole else ds.labels, classes)
    columns: Any = apart(np.asarray(table)) if whole else ds.labels
    # the classes are those of the first
    known = (classes, *(None for _ in names[1:]))
    found = zip(names, columns, known, strict=True)
    return [{"name": name, **_describe_one(one, of)} for name, one, of in found]


def _describe_one(labels: Any, classes: Sequence[str] | None) -> dict[str, Any]:
    low, high = ends(labels)
    counts = count_labels(labels, classes)
    return {
        "shape": list(labels.shape),
        "dtype": labels.dtype.name,
        "min": low,
        "max": high,
        "counts": None
        if counts is None
        else [{"label": c.label, "class": c.name, "samples": c.samples} for c in counts],
    }


# -- what else could be passed ---------------------------------------------------------------------


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
                words = _NOT_READ
                with contextlib.suppress(AsyncReaderError):  # an attribute that is no text
                    words = _kind(h5, f"obs/{name}", item)
                found.append(Column(f"obs/{name}", words, words != _NOT_READ))
    return found


def _kind(h5: Hdf5, name: str, item: Any) -> str:
    """What a column holds in words."""
    if isinstance(item, h5py.h5d.DatasetID):
        if item.get_type().get_class() == h5py.h5t.STRING:
            return "text, classes by name"
        dtype = h5py.Dataset(item).dtype
        return str(dtype) if dtype.kind in "biuf" else _NOT_READ
    encoding = None if item is None else h5.text(name, "encoding-type")
    if encoding == "categorical":
        names: Any = h5.reach(f"{name}/categories")
        if isinstance(names, h5py.h5g.GroupID):
            names = h5.reach(f"{name}/categories/values")
        count = names.shape[0] if isinstance(names, h5py.h5d.DatasetID) and names.shape else 0
        return f"categorical, {some(count, 'class')}"
    return _NULLABLE.get(encoding or "", _NOT_READ)


# -- samples of different length -------------------------------------------------------------------


def _of_lengths(source: Source) -> list[str]:
    """Of data sets of an HDF5 file whose rows a table beside them divides among samples, by its
    numbers: starts from 0 to the number of rows, or lengths that are so many together."""
    found: list[str] = []
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


def _divided(h5: Hdf5, table: Listed, fields: Sequence[Listed]) -> Iterator[str]:
    if not fields:
        return
    numbers = h5.dataset(table.name).read()
    for one in fields:
        offsets = offsets_in(numbers, table.name, one.shape[0])
        if offsets is not None:
            longest = np.diff(offsets.astype(np.int64)).max()
            yield (
                f"{shown(table.name)} may say where samples begin in {shown(one.name)}: "
                f"-p data_field={shown(one.name)} -p offsets_field={shown(table.name)} "
                f"-p max_length={longest} serves them"
            )


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
    differ = any(one.offsets is not None for one in source.index.fields.values())
    plain = source.facts.meta is None and not source.rule.apart
    if plain and not columns and not isinstance(source.index.first.storage, SparseRows):
        found += ([] if differ else _of_lengths(source.first)) or _of_volumes(ds)
    if differ and ds.given.get("max_length") is None and not source.rule.apart:
        longest = max(most.values()) if isinstance(most, dict) else most
        found.append(
            f"samples differ in length: -p max_length={longest} serves all of them whole, "
            "a smaller one cuts the longer ones"
        )
    return found


def _of_volumes(ds: Dataset) -> list[str]:
    """Of data sets that are volumes, or one volume, by their shape."""
    spec, count = ds.source.spec, ds.source.facts.count
    shape = spec.shape
    if shape is None or spec.encoded or spec.axes is not None or spec.dtype.names is not None:
        return []
    whole = (count, *shape)
    if len(shape) not in (2, 3, 4) or not _is_volume(whole[-3:]):
        return []
    patch = "x".join(str(min(_PATCH, side)) for side in whole[-3:])
    one = f"if it is one volume of {times(whole)}"
    if len(shape) == 2:
        return [f"{one}: -p patch={patch} -p sample_axis=null serves patches"]
    more = f"; {one}, with -p sample_axis=null" if len(shape) == 3 else ""
    return [f"if samples are volumes: -p patch={patch} serves patches of them{more}"]


def _is_volume(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape may be a volume, and is large enough to be cut."""
    size = shape[0] * shape[1] * shape[2]
    return min(shape) >= _SHORTEST and max(shape) <= _RATIO * min(shape) and size >= _VOLUME
