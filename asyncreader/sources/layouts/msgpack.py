"""LMDB sets of msgpack: ml-pyxis and its api-improvements branch, tensorpack and folder2lmdb.

All keep arrays as maps of type, shape and bytes. They are found when the set is opened, and from
then on a sample is a byte range inside its value: no msgpack is unpacked while reading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ...errors import FormatError
from ...pixels import kernels
from ...pixels import tables as col
from ...pixels.specs import SampleSpec
from ...system.array_types import Array, Float64, Int64
from ...system.memory import address_of
from ..base import row_size
from ..bytestore import MemoryStore
from ..extents import Extents, ImageExtents, image_kind
from ..fields import Layout, SetIndex
from ..lmdb import AGAIN, Entries
from ..request import check_labels, grey_rows, no_field, stored_samples
from .image_files import check_count, stated_count, text_labels
from .plugins import ForeignSet, encoded_images, in_order

#: Named databases.
_DATA_DB, _META_DB = b"data_db", b"meta_db"
#: Those of the branch: msgpack strings.
_BRANCH_MAIN: Final = b"\xa4main"
_BRANCH_META: Final = b"\xa8metadata"
_BRANCH_INDICES: Final = b"\xa9__indices"

#: Names of images and their labels that go together, tried where the caller names none.
_PAIRS: Final = (
    ("data", "labels"),
    ("data", "label"),
    ("data", "target"),
    ("input", "target"),
    ("image", "label"),
    ("images", "labels"),
    ("X", "y"),
    ("x", "y"),
)
#: The first bytes of lists and of maps.
_LISTS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
#: What a value is, by tables.ARRAYS, col.BINARY ...
_WORDS: Final = np.array(["nothing", "an array", "bytes", "text", "a whole number", "a float"])


@dataclass
class Values:
    """One field of all records: what it is (tables.FORM ...), and where its bytes lie.
    ``dtype``: S4, numpy type strings of arrays; ``shape``: (N, AXES), 1 after the rank."""

    form: Int64
    dtype: Array
    rank: Int64
    start: Int64
    size: Int64
    number: Int64
    shape: Int64

    @classmethod
    def of(cls, table: Int64) -> Values:
        """The values of a table (N, col.VALUE_COLUMNS)."""
        columns = np.ascontiguousarray(table[:, : col.SHAPE].T)
        return cls(
            columns[col.FORM],
            columns[col.DTYPE].astype("<u4").view("S4"),
            columns[col.RANK],
            columns[col.START],
            columns[col.SIZE],
            columns[col.NUMBER],
            np.ascontiguousarray(table[:, col.SHAPE :]),
        )

    def real(self) -> Float64:
        """The values of floats, whose bits are 4 or 8 bytes."""
        narrow = self.number.astype(np.uint32).view(np.float32).astype(np.float64)
        return np.where(self.size == 8, self.number.view(np.float64), narrow)

    def first_shape(self) -> tuple[int, ...]:
        """The shape of the first record's array."""
        return tuple(self.shape[0, : int(self.rank[0])].tolist())


# -- the layouts -----------------------------------------------------------------------------------


def index_pyxis(found: ForeignSet) -> SetIndex:
    """ml-pyxis: samples under ten digits in data_db, their number in meta_db."""
    data = found.named[_DATA_DB]
    value = found.tree.find(found.named[_META_DB], b"nb_samples")
    if value is None:
        raise FormatError(
            "its number of samples is missing",
            key="nb_samples",
            hint="its Writer was never closed: write it again",
        )
    stated = stated_count(value.tobytes(), "nb_samples")
    check_count(stated, data.entries, "nb_samples")
    entries = found.tree.table(data)
    entries.check_numbered()
    return _index_maps(found, entries, "ml-pyxis")


def index_pyxis_branch(found: ForeignSet) -> SetIndex:
    """ml-pyxis' api-improvements branch: any numbers as keys, in their order."""
    entries = found.tree.table(found.named[_BRANCH_MAIN])
    meta = found.named.get(_BRANCH_META)
    indices = None if meta is None else found.tree.find(meta, _BRANCH_INDICES)
    if indices is not None and indices.size:
        check_count(_listed(indices.tobytes()), len(entries), "__indices")
    return _index_maps(found, entries, "ml-pyxis, api-improvements branch")


def _index_maps(found: ForeignSet, entries: Entries, layout: str) -> SetIndex:
    """Records that are maps from names to msgpack inside bytes."""
    if not len(entries):
        raise FormatError("the dataset has no samples")
    chosen = _choose(found, _fields(entries), found.fields.data, found.fields.labels)
    return _index(found, entries, layout, _read(entries, *chosen, col.NESTED))


def _listed(value: bytes) -> int:
    """How many items the msgpack list of a branch's indices says that it has."""
    width = {0xDC: 2, 0xDD: 4}.get(value[0], 0)
    if value[0] >> 4 != 9 and not width:
        raise FormatError("its list of indices is no list", key="__indices", hint=AGAIN)
    return int.from_bytes(value[1 : 1 + width]) if width else value[0] & 15


def is_datapoint(head: bytes) -> bool:
    """Whether a value begins as tensorpack's msgpack does: a list or map of fields."""
    return bool(head) and head[0] in _LISTS | _MAPS


def index_tensorpack(found: ForeignSet) -> SetIndex:
    """tensorpack's and folder2lmdb's msgpack: lists such as [image, label], in key order."""
    entries = in_order(found.records)
    names, fields = _fields(entries), found.fields
    data, labels, form = fields.data, fields.labels, col.NAMED
    if not _is_map(entries):
        data, form = "0" if data == "data" else data, col.LISTED
        if labels == "labels":
            labels = "1" if len(names) > 1 else None
    chosen = _choose(found, names, data, labels)
    return _index(found, entries, "tensorpack, msgpack", _read(entries, *chosen, form))


def _is_map(entries: Entries) -> bool:
    """Whether the first record is a map: an empty one, which is nothing, is refused later."""
    return bool(entries.sizes[0]) and int(entries.value(0)[0]) in _MAPS


def _fields(entries: Entries) -> list[str]:
    """The names in the map that the first record is; the numbers of the items of a list."""
    data, start, value = entries.tree.data, int(entries.starts[0]), entries.value(0)
    table = np.full((256, 2), -1, np.int64)
    with entries.located() as place:
        kernels.msgpack_fields(data, start, start + value.size, table, place)
    table = table[table[:, 0] >= 0]
    if not _is_map(entries):
        return [str(number) for number in range(len(table))]
    names = (data[start:stop].tobytes() for start, stop in table.tolist())
    return [name.decode("utf-8", "backslashreplace") for name in names]


def _read(entries: Entries, data: str, labels: str | None, form: int) -> dict[str, Values]:
    """The values of the fields that are served, of all records."""
    names = [data] if labels is None else [data, labels]
    encoded = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, encoded)])
    if form == col.LISTED:
        ends = np.array(list(map(int, names)))
    table = np.empty((len(names), len(entries), col.VALUE_COLUMNS), np.int64)
    joined = np.frombuffer(b"".join(encoded), np.uint8)
    entries.read(kernels.read_msgpack, joined, ends, form, table, names=names)
    return {name: Values.of(part) for name, part in zip(names, table, strict=True)}


def _choose(
    found: ForeignSet, names: list[str], data: str, labels: str | None
) -> tuple[str, str | None]:
    """The fields that are served: those named, else a pair that usually goes together."""
    found.fields.check_labels_path("this dataset")
    if data not in names and data == "data":
        data = next((image for image, _ in _PAIRS if image in names), data)
    if labels == "labels" and labels not in names and not found.fields.labels_required:
        labels = next((label for image, label in _PAIRS if image == data and label in names), None)
    for name in (data, labels):
        if name is not None and name not in names:
            raise no_field(name, names)
    return data, labels


# -- from values to a source -----------------------------------------------------------------------


def _index(found: ForeignSet, entries: Entries, layout: str, fields: dict[str, Values]) -> SetIndex:
    index = _index_field(found, entries, layout, fields)
    if index.labels is not None:
        name, label_name = fields
        asked = replace(found.fields, data=name, labels=label_name)
        check_labels(index.labels.shape, index.first.spec, asked, found.path)
    return index


def _index_field(
    found: ForeignSet, entries: Entries, layout: str, fields: dict[str, Values]
) -> SetIndex:
    (name, data), *rest = fields.items()
    labels: Array | None = None
    classes: tuple[str, ...] | None = None
    layout += f": {name}"
    for label_name, values in rest:
        labels, classes = _labels(label_name, values, entries)
        layout += f", labels from {label_name}"
    first = int(data.form[0])
    _alike(
        entries,
        data.form == first,
        f"{name!r} has another type than in the first sample",
        _WORDS[data.form],
    )
    if first not in (col.ARRAYS, col.BINARY):
        raise entries.refuse(
            0,
            f"{name!r} is {_WORDS[first]}, not an image or an array",
            hint="name the field of the images with data_field",
        )
    if first == col.BINARY:
        data.dtype[:], data.rank[:], data.shape[:, 0] = b"|u1", 1, data.size
    _alike(entries, data.dtype == data.dtype[0], f"{name!r} is of another dtype", data.dtype)
    _alike(entries, data.rank == data.rank[0], f"{name!r} has another number of axes", data.rank)
    dtype, rank = np.dtype(data.dtype[0].decode()), int(data.rank[0])
    begins = found.tree.data[int(data.start[0]) :][: min(12, int(data.size[0]))].tobytes()
    if rank == 1 and dtype.itemsize == 1 and image_kind(begins) is not None:
        found.check_dims()
        return encoded_images(
            found,
            entries,
            data.start,
            data.size,
            f"{layout}, encoded images",
            labels=labels,
            classes=classes,
        )
    _alike(entries, (data.shape > 0).all(axis=1), f"{name!r} is empty")
    same = bool((data.shape == data.shape[0]).all())
    whole = data.first_shape()
    count = len(entries)
    axis, stored = stored_samples((count, *whole), dtype, found.fields, found.path)
    if stored.axes is None and not same and rank == 2 and found.fields.image_size == (None, None):
        stored = grey_rows(whole, dtype)  # masks of images that differ in size as they do
    if axis != 0:
        found.check_dims()
    extents = Extents(data.start, int(data.size[0]))
    if not same:
        stored = _of_many_sizes(name, data, entries, stored)
        shapes = np.pad(data.shape[:, :rank], ((0, 0), (0, int(stored.flat))), constant_values=1)
        extents = ImageExtents(data.start, data.size, shapes)
    return found.index(layout, stored, extents, labels, entries, classes=classes)


def _of_many_sizes(name: str, data: Values, entries: Entries, stored: SampleSpec) -> SampleSpec:
    """What a sample is where they differ in shape: FormatError unless they are images with the
    same number of channels. ``stored``: the first one."""
    if stored.axes is None:
        _alike(
            entries,
            (data.shape == data.shape[0]).all(axis=1),
            f"{name!r} is of another shape, and not an image that could be resized",
            data.shape[:, : int(data.rank[0])],
        )
    channels = stored.image_shape()[2]
    if not stored.flat:
        of_each = data.shape[:, (stored.axes or "").index("C")]
        _alike(entries, of_each == channels, f"{name!r} has other channels", of_each)
    return replace(stored, shape=None, channels=channels)


def _labels(name: str, values: Values, entries: Entries) -> tuple[Array, tuple[str, ...] | None]:
    """Labels of all records as one array; text as numbers of sorted classes."""
    form = int(values.form[0])
    what = f"labels {name!r} are not what they are in the first sample"
    _alike(entries, values.form == form, what, _WORDS[values.form])
    tree = entries.tree
    if form in (col.TEXT, col.BINARY):
        return text_labels(tree.data, values.start, values.size, entries.blame)
    if form == col.WHOLE:
        return values.number.copy(), None
    if form == col.REAL:
        return values.real(), None
    _alike(entries, values.dtype == values.dtype[0], f"labels {name!r} are of another dtype")
    same = (values.rank == values.rank[0]) & (values.shape == values.shape[0]).all(axis=1)
    _alike(
        entries,
        same,
        f"labels {name!r} are of another shape",
        values.shape[:, : max(1, int(values.rank[0]))],
    )
    dtype, shape = np.dtype(values.dtype[0].decode()), values.first_shape()
    if len(entries) * row_size(shape, dtype) > tree.data.size:
        raise FormatError(f"labels {name!r} are larger than the file")
    table = np.empty((len(entries), *shape), dtype)
    where, rows = values.start + tree.data.ctypes.data, np.arange(len(entries))
    MemoryStore().gather(where, row_size(shape, dtype), address_of(table), rows)
    return table.astype(dtype.newbyteorder("="), copy=False), None


def _alike(entries: Entries, good: Any, what: str, found: Any = None) -> None:
    hint = "labels_field=None serves a dataset without its labels" if "labels" in what else None
    if found is None:
        entries.need(good, what, hint=hint)
    else:
        entries.need(good, what, found.__getitem__, expected=found[0], hint=hint)


PYXIS: Final = Layout[ForeignSet](
    "ml-pyxis", lambda found: _DATA_DB in found.named and _META_DB in found.named, index_pyxis
)
PYXIS_BRANCH: Final = Layout[ForeignSet](
    "", lambda found: _BRANCH_MAIN in found.named, index_pyxis_branch
)
TENSORPACK: Final = Layout[ForeignSet](
    "tensorpack, msgpack", lambda found: found.keyed and is_datapoint(found.first), index_tensorpack
)
