"""LMDB sets of msgpack: ml-pyxis and its api-improvements branch, tensorpack and folder2lmdb.

All keep arrays as maps of type, shape and bytes. They are found when the set is opened, and from
then on a sample is a byte range inside its value: no msgpack is unpacked while reading.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...array_types import Array, Bools, Int64
from ...errors import FormatError
from ...pixels.specs import SampleSpec
from ..base import row_size
from ..extents import Extents, ImageExtents
from ..fields import Layout, SetIndex
from ..images import image_kind
from ..lmdb import columns
from ..lmdb.columns import ARRAY, BIN, MAP, STR, Span, gather
from ..lmdb.entries import Entries
from ..request import check_labels, grey_rows, no_field, stored_samples
from .base import ForeignSet, encoded_images, in_order, unknown
from .image_files import check_count, stated_count, text_labels
from .msgpack_values import ARRAYS, BINARY, REAL, TEXT, WHOLE, WORDS, Values, read_values

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


# -- the layouts -----------------------------------------------------------------------------------


def index_pyxis(found: ForeignSet) -> SetIndex:
    """ml-pyxis: samples under ten digits in data_db, their number in meta_db."""
    data = found.named[_DATA_DB]
    value = found.tree.find(found.named[_META_DB], b"nb_samples")
    if value is None:
        raise FormatError(
            "its number of samples is missing",
            path=found.path,
            key="nb_samples",
            hint="its Writer was never closed: write it again",
        )
    stated = stated_count(value.tobytes(), "nb_samples", found.path)
    check_count(stated, data.entries, found.path, "nb_samples")
    found.tree.check_numbered(data)
    return _index_maps(found, Entries.of(found.tree, data), "ml-pyxis")


def index_pyxis_branch(found: ForeignSet) -> SetIndex:
    """ml-pyxis' api-improvements branch: any numbers as keys, in their order."""
    entries = Entries.of(found.tree, found.named[_BRANCH_MAIN])
    meta = found.named.get(_BRANCH_META)
    indices = None if meta is None else found.tree.find(meta, _BRANCH_INDICES)
    if indices is not None and indices.size:
        blame = {"path": found.path, "key": "__indices"}
        start = np.array([indices.ctypes.data - found.tree.data.ctypes.data])
        span = Span(
            found.tree.data, start, start + indices.size, np.zeros(1, np.int64), lambda _: blame
        )
        listed = columns.head(span)
        span.need(listed.kind == ARRAY, "its list of indices is no list")
        check_count(int(listed.number[0]), len(entries), found.path, "__indices")
    return _index_maps(found, entries, "ml-pyxis, api-improvements branch")


def _index_maps(found: ForeignSet, entries: Entries, layout: str) -> SetIndex:
    """Records that are maps from names to msgpack inside bytes."""
    if not len(entries):
        raise FormatError("the dataset has no samples", path=found.path)
    raw_names = columns.names(entries.span(0, 1))
    data, labels = _choose(found, [_text(name) for name in raw_names])
    wanted = [data] if labels is None else [data, labels]
    keys = [name.encode() for name in wanted]
    fields = [Values.empty(len(entries)) for _ in wanted]
    _read_maps(entries.span(0, 1), keys, fields)
    alike = _Alike(entries, raw_names, keys, fields)
    for lo, hi in entries.blocks():
        span = entries.span(lo, hi)
        _read_maps(span.pick(alike.copy(lo, hi)), keys, fields)
    return _index(found, entries, layout, dict(zip(wanted, fields, strict=True)))


def _read_maps(span: Span, keys: list[bytes], fields: list[Values]) -> None:
    """Note the values of ``keys`` in the maps at the cursors."""
    starts, after = columns.find(span, keys)
    span.need(after == span.ends, "bytes behind its msgpack")
    for key, at, values in zip(keys, starts, fields, strict=True):
        name = _text(key)
        span.need(at >= 0, f"a sample without {name!r}")
        outer = columns.head(span.moved(at))
        span.need((outer.kind == BIN) | (outer.kind == STR), f"{name!r} is no msgpack in bytes")
        inner = Span(span.data, outer.start, outer.stop, span.records, span.blame)
        inner.need(columns.skip(inner) == inner.ends, f"bytes behind the msgpack of {name!r}")
        read_values(inner, span.records, values)


#: Bytes of a record's structure that are compared with those of the first one.
_STRUCTURE: Final = 512


class _Alike:
    """Copies the headers of records whose structure equals the first one's: many times faster.

    In a set with samples of one shape that is all records.
    """

    def __init__(
        self, entries: Entries, names: list[bytes], keys: list[bytes], fields: list[Values]
    ) -> None:
        self._entries = entries
        self._fields = fields
        span = entries.span(0, 1)
        self._begin, self._size = int(span.at[0]), int(entries.sizes[0])
        free = np.zeros(self._size, np.bool_)
        starts, _ = columns.find(span, names)
        for name, at in zip(names, starts, strict=True):
            if name not in keys:  # its content is not read
                value = columns.head(span.moved(at))
                self._mark(free, int(value.start[0]), int(value.stop[0]))
        for values in fields:
            start = int(values.start[0])
            self._mark(free, start, start + int(values.size[0]))
        self._fixed = np.flatnonzero(~free)
        self._bytes = span.data[self._begin + self._fixed]

    def _mark(self, free: Bools, start: int, stop: int) -> None:
        free[start - self._begin : stop - self._begin] = True

    def copy(self, lo: int, hi: int) -> Bools:
        """Fill in the records ``lo`` to ``hi`` that are alike; returns a mask of the others."""
        entries = self._entries
        rest = np.ones(hi - lo, np.bool_)
        if self._fixed.size > _STRUCTURE:
            return rest
        which = np.flatnonzero(entries.sizes[lo:hi] == self._size)
        found = entries.tree.data[entries.starts[lo + which, None] + self._fixed]
        which = which[(found == self._bytes).all(axis=1)]
        rest[which] = False
        rows = lo + which
        for values in self._fields:
            for table in (values.form, values.dtype, values.rank, values.shape, values.size):
                table[rows] = table[0]
            # numbers are part of the structure: they are those of the first record
            values.number[rows], values.real[rows] = values.number[0], values.real[0]
            values.start[rows] = entries.starts[rows] + (values.start[0] - self._begin)
        return rest


def is_datapoint(head: bytes) -> bool:
    """Whether a value begins as tensorpack's msgpack does: a list or map of fields."""
    return head[:1] != b"" and (0x80 < head[0] <= 0x9F or head[0] in (0xDC, 0xDD, 0xDE, 0xDF))


def index_tensorpack(found: ForeignSet) -> SetIndex:
    """tensorpack's and folder2lmdb's msgpack: lists such as [image, label], in key order."""
    entries = in_order(found.records)
    first = columns.head(entries.span(0, 1))
    if first.kind[0] not in (ARRAY, MAP):
        raise unknown(found.path, "values that are neither list nor map", entries)
    listed = first.kind[0] == ARRAY
    if listed:
        count = int(columns.entries(entries.span(0, 1))[0])
        names = [str(number) for number in range(count)]
        fields = found.fields
        data = "0" if fields.data == "data" else fields.data
        labels = "1" if fields.labels == "labels" and count > 1 else fields.labels
        data, labels = _choose(found, names, data, None if labels == "labels" else labels)
    else:
        names = [_text(name) for name in columns.names(entries.span(0, 1))]
        data, labels = _choose(found, names)
    wanted = [data] if labels is None else [data, labels]
    values = [Values.empty(len(entries)) for _ in wanted]
    for lo, hi in entries.blocks():
        span = entries.span(lo, hi)
        found_kind = columns.head(span).kind
        span.need(found_kind == first.kind[0], "a sample of another kind than the first")
        span.need(columns.skip(span) == span.ends, "bytes behind its msgpack")
        if listed:
            starts = _items(span, [int(name) for name in wanted])
        else:
            starts, _ = columns.find(span, [name.encode() for name in wanted])
        for name, at, field in zip(wanted, starts, values, strict=True):
            span.need(at >= 0, f"a sample without {name!r}")
            read_values(span.moved(at), span.records, field)
    words = "tensorpack, msgpack"
    return _index(found, entries, words, dict(zip(wanted, values, strict=True)))


def _items(span: Span, wanted: list[int]) -> list[Int64]:
    """Where items ``wanted`` of the lists at the cursors are; -1 where a list is shorter."""
    count = columns.entries(span)
    at = columns.head(span).stop.copy()
    starts = [np.full(at.size, -1, np.int64) for _ in wanted]
    for number in range(max(wanted) + 1):
        todo = np.flatnonzero(count > number)
        for item, start in zip(wanted, starts, strict=True):
            if item == number:
                start[todo] = at[todo]
        at[todo] = columns.skip(span.pick(todo).moved(at[todo]))
    return starts


_MISSING: Final = object()


def _choose(
    found: ForeignSet, names: list[str], data: str | None = None, labels: Any = _MISSING
) -> tuple[str, str | None]:
    """The fields that are served: those named, else a pair that usually goes together."""
    found.check_labels_path()
    data = found.fields.data if data is None else data
    labels = found.fields.labels if labels is _MISSING else labels
    if data not in names and data == "data":
        data = next((image for image, _ in _PAIRS if image in names), data)
    if labels == "labels" and labels not in names and not found.fields.labels_required:
        labels = next((label for image, label in _PAIRS if image == data and label in names), None)
    for name in (data, labels):
        if name is not None and name not in names:
            raise no_field(name, names, found.path)
    return data, labels


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


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
        WORDS[data.form],
    )
    if first not in (ARRAYS, BINARY):
        raise FormatError(
            f"{name!r} is {WORDS[first]}, not an image or an array",
            **entries.blame(0),
            hint="name the field of the images with data_field",
        )
    if first == BINARY:
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
        stored = grey_rows(whole, dtype)  # masks of pictures that differ in size as they do
    if axis != 0:
        found.check_dims()
    if not same:
        stored = _of_many_sizes(name, data, entries, stored)
    extents = Extents(data.start, int(data.size[0]))
    if not same:
        shapes = data.shape[:, :rank]
        if stored.flat:
            shapes = np.pad(shapes, ((0, 0), (0, 1)), constant_values=1)
        extents = ImageExtents(data.start, data.size, shapes)
    return found.index(layout, stored, extents, labels, entries, classes=classes)


def _of_many_sizes(name: str, data: Values, entries: Entries, stored: SampleSpec) -> SampleSpec:
    """What a sample is where they differ in shape: FormatError unless they are pictures with the
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
    _alike(entries, values.form == form, what, WORDS[values.form])
    tree = entries.tree
    if form in (TEXT, BINARY):
        return text_labels(tree.data, values.start, values.size, entries.blame)
    if form == WHOLE:
        return values.number.copy(), None
    if form == REAL:
        return values.real.copy(), None
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
        raise FormatError(f"labels {name!r} are larger than the file", path=tree.path)
    return gather(tree.data, values.start, shape, dtype), None


def _alike(entries: Entries, good: Any, what: str, found: Any = None) -> None:
    if good.all():
        return
    bad = int(np.argmin(good))
    raise FormatError(
        what,
        **entries.blame(bad),
        found=None if found is None else found[bad],
        expected=None if found is None else found[0],
        hint="labels_field=None serves a dataset without its labels" if "labels" in what else None,
    )


PYXIS: Final = Layout[ForeignSet](
    "ml-pyxis",
    lambda found: _DATA_DB in found.named and _META_DB in found.named,
    index_pyxis,
    "LMDB databases `data_db`, `meta_db`, or those of its api-improvements branch | fields "
    "data/labels, input/target, image/label, X/y ...; text as classes | other names: `data_field`, "
    "`labels_field`; CHW arrays: `cha_dim=2` ...",
)
PYXIS_BRANCH: Final = Layout[ForeignSet](
    "", lambda found: _BRANCH_MAIN in found.named, index_pyxis_branch
)
TENSORPACK: Final = Layout[ForeignSet](
    "tensorpack, msgpack",
    lambda found: found.keyed and is_datapoint(found.first),
    index_tensorpack,
    "key `__keys__`, also by folder2lmdb | part 0 of each datapoint, labels part 1 | others: "
    '`data_field="1"`, or a name in dicts',
)
