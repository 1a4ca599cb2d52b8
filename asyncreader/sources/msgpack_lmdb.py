"""LMDB sets of msgpack: ml-pyxis and its api-improvements branch, tensorpack and folder2lmdb.

All keep arrays as maps of type, shape and bytes. They are found when the set is opened, and from
then on a sample is a byte range inside its value: no msgpack is unpacked while reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import FormatError, SourceNotFoundError
from ..fill import Stored
from . import lockstep
from .bare_lmdb import check_count, stated_count, text_labels
from .base import Array, row_size
from .fields import image_axes
from .foreign_lmdb import (
    ForeignImages,
    ForeignSet,
    ForeignSource,
    encoded_images,
    finish,
    in_order,
    unknown,
)
from .images import image_kind
from .lmdb_entries import Entries
from .lmdb_tree import Tree
from .lockstep import ARRAY, BIN, BOOL, FLOAT, INT, MAP, STR, Int64, Span, gather

#: Named databases of the branch: msgpack strings.
BRANCH_MAIN: Final = b"\xa4main"
_BRANCH_META: Final = b"\xa8metadata"
_BRANCH_INDICES: Final = b"\xa9__indices"

#: What a value is: an array, bytes or text of any length, a whole number, a float.
_ARRAYS, _BINARY, _TEXT, _WHOLE, _REAL = range(1, 6)
_WORDS: Final = np.array(["nothing", "an array", "bytes", "text", "a whole number", "a float"])
#: Axes that an array may have here.
_AXES: Final = 6
#: numpy type strings that are read: plain numbers of at most 64 bits.
_PLAIN: Final = frozenset(
    f"{order}{kind}".encode()
    for order in "<>|="
    for kind in ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
)

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


@dataclass
class Values:
    """One field of all records: what it is, and where its bytes lie."""

    form: Int64
    dtype: Array
    """S4: numpy type strings of arrays."""
    rank: Int64
    shape: Int64
    """(N, _AXES), 1 behind the rank."""
    start: Int64
    size: Int64
    number: Int64
    real: Array

    @classmethod
    def empty(cls, count: int) -> Values:
        """To be filled block by block."""
        whole = [np.zeros(count, np.int64) for _ in range(5)]
        shape = np.ones((count, _AXES), np.int64)
        return cls(
            whole[0],
            np.zeros(count, "S4"),
            whole[1],
            shape,
            whole[2],
            whole[3],
            whole[4],
            np.zeros(count, np.float64),
        )

    def first_shape(self) -> tuple[int, ...]:
        """The shape of the first record's array."""
        return tuple(self.shape[0, : int(self.rank[0])].tolist())


def read_values(span: Span, lo: int, out: Values) -> None:
    """Note what stands at the cursors as records ``lo`` and on of ``out``."""
    found = lockstep.head(span)
    # DataLoader makes a list of one of everything that folder2lmdb writes
    alone = (found.kind == ARRAY) & (found.number == 1)
    if alone.any():
        span = span.moved(np.where(alone, found.stop, span.at))
        found = lockstep.head(span)
    part = slice(lo, lo + span.at.size)
    for kind, form in ((BIN, _BINARY), (STR, _TEXT), (INT, _WHOLE), (BOOL, _WHOLE), (FLOAT, _REAL)):
        out.form[part][found.kind == kind] = form
    out.start[part], out.size[part] = found.start, np.maximum(found.stop - found.start, 0)
    out.number[part] = found.number
    out.real[part] = found.real()
    maps = np.flatnonzero(found.kind == MAP)
    if maps.size:
        _read_arrays(span.pick(maps), lo + maps, out)
    span.need(out.form[part] > 0, "a value that is neither array, bytes, text nor number")


def _read_arrays(span: Span, rows: Int64, out: Values) -> None:
    """Maps that ml-pyxis ({type, dtype, shape, data}) or msgpack_numpy ({nd, type, ...}) wrote."""
    names = (b"type", b"dtype", b"shape", b"data", b"nd", b"kind")
    (kind, dtype, shape, data, nd, odd), _ = lockstep.find(span, names)
    span.need((kind >= 0) & (data >= 0), "a map that is no array: it lacks type or data")
    pyxis = lockstep.head(span.moved(kind)).kind == INT
    place = np.where(pyxis, dtype, kind)
    payload = lockstep.head(span.moved(data))
    span.need((payload.kind == BIN) | (payload.kind == STR), "an array whose data are no bytes")
    # ml-pyxis keeps text as {type: 1, data: text}
    text = np.zeros(rows.size, np.bool_)
    text[pyxis] = lockstep.head(span.pick(pyxis).moved(kind[pyxis])).number == 1
    span.need(text | (place >= 0), "an array without a dtype")
    out.start[rows], out.size[rows] = payload.start, payload.stop - payload.start
    out.form[rows] = np.where(text, _TEXT, _ARRAYS)
    some = np.flatnonzero(~text)
    part, rows = span.pick(some), rows[some]
    if odd[some].max(initial=-1) >= 0:
        _refuse_odd(part, odd[some])
    out.dtype[rows] = _type_strings(part.moved(place[some]))
    scalar = ~pyxis[some] & _is_false(part, nd[some])
    part.need(scalar | (shape[some] >= 0), "an array without a shape")
    shaped = np.flatnonzero(~scalar)
    _read_shapes(part.pick(shaped).moved(shape[some][shaped]), rows[shaped], out)
    _check_sizes(part, rows, out)


def _refuse_odd(span: Span, odd: Int64) -> None:
    """msgpack_numpy's kind: b"" for plain arrays, b"V" structured, b"O" a pickle of objects."""
    there = np.flatnonzero(odd >= 0)
    part = span.pick(there).moved(odd[there])
    found = lockstep.head(part)
    plain = ((found.kind == BIN) | (found.kind == STR)) & (found.number == 0)
    part.need(plain, "an array of structures or of Python objects, which is not read")


def _type_strings(span: Span) -> Array:
    found = lockstep.head(span)
    span.need((found.kind == BIN) | (found.kind == STR), "an array whose dtype is no text")
    at = span.moved(found.start)
    chars = at.window(4)
    chars[np.arange(4) >= found.number[:, None]] = 0
    strings = np.ascontiguousarray(chars).view("S4")[:, 0]
    known = np.isin(strings, list(_PLAIN)) & (found.number == 3)
    span.need(known, "an array that does not hold plain numbers", strings)
    return strings


def _is_false(span: Span, nd: Int64) -> Any:
    """Where msgpack_numpy says that a value is a number, not an array."""
    there = np.flatnonzero(nd >= 0)
    out = np.zeros(nd.size, np.bool_)
    found = lockstep.head(span.pick(there).moved(nd[there]))
    out[there] = (found.kind == BOOL) & (found.number == 0)
    return out


def _read_shapes(span: Span, rows: Int64, out: Values) -> None:
    found = lockstep.head(span)
    good = (found.kind == ARRAY) & (found.number <= _AXES)
    span.need(good, f"an array whose shape is no list of at most {_AXES} numbers")
    out.rank[rows] = found.number
    at = found.stop.copy()
    for axis in range(int(found.number.max(initial=0))):
        todo = np.flatnonzero(found.number > axis)
        part = span.pick(todo).moved(at[todo])
        side = lockstep.head(part)
        part.need((side.kind == INT) & (side.number >= 0), "an array with a side that is no number")
        out.shape[rows[todo], axis] = side.number
        at[todo] = side.stop


def _check_sizes(span: Span, rows: Int64, out: Values) -> None:
    """Each array's bytes are as many as its shape and dtype need."""
    size, shape = out.size[rows], out.shape[rows]
    items = out.dtype[rows].view("S1").reshape(-1, 4)[:, 2].astype(np.int64)
    left, rest = np.divmod(size, items)
    exact = rest == 0
    for axis in range(_AXES):
        # divided, not multiplied: a hostile shape would overflow
        left, rest = np.divmod(left, np.maximum(shape[:, axis], 1))
        exact &= rest == 0
    good = np.where((shape == 0).any(axis=1), size == 0, exact & (left == 1))
    span.need(good, "an array has not the size that its shape needs", size)


# -- the layouts -----------------------------------------------------------------------------------


def open_pyxis(found: ForeignSet, data: Tree, meta: Tree) -> Any:
    """ml-pyxis: samples under ten digits in data_db, their number in meta_db."""
    value = found.tree.find(meta, b"nb_samples")
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
    return _open_maps(found, Entries.of(found.tree, data), "ml-pyxis")


def open_pyxis_branch(found: ForeignSet, named: dict[bytes, Tree]) -> Any:
    """ml-pyxis' api-improvements branch: any numbers as keys, in their order."""
    entries = Entries.of(found.tree, named[BRANCH_MAIN])
    meta = named.get(_BRANCH_META)
    indices = None if meta is None else found.tree.find(meta, _BRANCH_INDICES)
    if indices is not None and indices.size:
        blame = {"path": found.path, "key": "__indices"}
        start = np.array([indices.ctypes.data - found.tree.data.ctypes.data])
        span = Span(
            found.tree.data, start, start + indices.size, np.zeros(1, np.int64), lambda _: blame
        )
        listed = lockstep.head(span)
        span.need(listed.kind == ARRAY, "its list of indices is no list")
        check_count(int(listed.number[0]), len(entries), found.path, "__indices")
    return _open_maps(found, entries, "ml-pyxis, api-improvements branch")


def _open_maps(found: ForeignSet, entries: Entries, layout: str) -> Any:
    """Records that are maps from names to msgpack inside bytes."""
    if not len(entries):
        raise FormatError("a set without a sample", path=found.path)
    names = [_text(name) for name in lockstep.names(entries.span(0, 1))]
    data, labels = _choose(found, names)
    wanted = [data] if labels is None else [data, labels]
    keys = [name.encode() for name in wanted]
    fields = [Values.empty(len(entries)) for _ in wanted]
    for lo, hi in entries.blocks():
        span = entries.span(lo, hi)
        places, after = lockstep.find(span, keys)
        span.need(after == span.ends, "bytes behind its msgpack")
        for name, at, values in zip(wanted, places, fields, strict=True):
            span.need(at >= 0, f"a sample without {name!r}")
            outer = lockstep.head(span.moved(at))
            span.need((outer.kind == BIN) | (outer.kind == STR), f"{name!r} is no msgpack in bytes")
            inner = Span(span.data, outer.start, outer.stop, span.records, span.blame)
            inner.need(lockstep.skip(inner) == inner.ends, f"bytes behind the msgpack of {name!r}")
            read_values(inner, lo, values)
    return _source(found, entries, layout, dict(zip(wanted, fields, strict=True)))


def is_datapoint(head: bytes) -> bool:
    """Whether a value begins as tensorpack's msgpack does: a list or map of fields."""
    return head[:1] != b"" and (0x80 < head[0] <= 0x9F or head[0] in (0xDC, 0xDD, 0xDE, 0xDF))


def open_tensorpack(found: ForeignSet, entries: Entries) -> Any:
    """tensorpack's and folder2lmdb's msgpack: lists such as [image, label], in key order."""
    entries = in_order(entries)
    first = lockstep.head(entries.span(0, 1))
    if first.kind[0] not in (ARRAY, MAP):
        raise unknown(found.path, "values that are neither list nor map", entries)
    listed = first.kind[0] == ARRAY
    if listed:
        count = int(lockstep.entries(entries.span(0, 1))[0])
        names = [str(number) for number in range(count)]
        fields = found.fields
        data = "0" if fields.data == "data" else fields.data
        labels = "1" if fields.labels == "labels" and count > 1 else fields.labels
        data, labels = _choose(found, names, data, None if labels == "labels" else labels)
    else:
        names = [_text(name) for name in lockstep.names(entries.span(0, 1))]
        data, labels = _choose(found, names)
    wanted = [data] if labels is None else [data, labels]
    values = [Values.empty(len(entries)) for _ in wanted]
    for lo, hi in entries.blocks():
        span = entries.span(lo, hi)
        found_kind = lockstep.head(span).kind
        span.need(found_kind == first.kind[0], "a sample of another kind than the first")
        span.need(lockstep.skip(span) == span.ends, "bytes behind its msgpack")
        if listed:
            places = _items(span, [int(name) for name in wanted])
        else:
            places, _ = lockstep.find(span, [name.encode() for name in wanted])
        for name, at, field in zip(wanted, places, values, strict=True):
            span.need(at >= 0, f"a sample without {name!r}")
            read_values(span.moved(at), lo, field)
    words = "tensorpack, msgpack"
    return _source(found, entries, words, dict(zip(wanted, values, strict=True)))


def _items(span: Span, wanted: list[int]) -> list[Int64]:
    """Where items ``wanted`` of the lists at the cursors are; -1 where a list is shorter."""
    count = lockstep.entries(span)
    at = lockstep.head(span).stop.copy()
    places = [np.full(at.size, -1, np.int64) for _ in wanted]
    for number in range(max(wanted) + 1):
        todo = np.flatnonzero(count > number)
        for item, place in zip(wanted, places, strict=True):
            if item == number:
                place[todo] = at[todo]
        at[todo] = lockstep.skip(span.pick(todo).moved(at[todo]))
    return places


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
            raise SourceNotFoundError(
                f"no field {name!r} in this set",
                path=found.path,
                found=", ".join(names[:20]),
                hint="name it with data_field / labels_field",
            )
    return data, labels


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


# -- from values to a source -----------------------------------------------------------------------


def _source(found: ForeignSet, entries: Entries, layout: str, fields: dict[str, Values]) -> Any:
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
        f"{name!r} is not what it is in the first sample",
        _WORDS[data.form],
    )
    if first not in (_ARRAYS, _BINARY):
        raise FormatError(
            f"{name!r} is {_WORDS[first]}, not an image or an array",
            **entries.blame(0),
            hint="name the field of the images with data_field",
        )
    if first == _BINARY:
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
    axis, axes = image_axes((count, *whole), found.fields.dims, None, found.path)
    if axis != 0:
        found.check_dims()
    channels = whole[axes.index("C")] if axes is not None else 3
    if not same:
        if axes is None:
            _alike(
                entries,
                (data.shape == data.shape[0]).all(axis=1),
                f"{name!r} is of another shape, and not an image that could be resized",
                data.shape[:, :rank],
            )
        else:
            of_each = data.shape[:, axes.index("C")]
            _alike(entries, of_each == channels, f"{name!r} has other channels", of_each)
    stored = Stored(whole if same else None, dtype, axes, False, channels)
    spec = found.spec(layout, count, stored, float(np.mean(data.size)), classes)
    kind: Callable[..., Any] = ForeignSource if same else ForeignImages
    sizes: Array | int = int(data.size[0]) if same else data.size
    source = kind(spec, found.file.store, data.start, sizes, labels, None)
    if not same:
        source.shapes = data.shape[:, :rank]
    return finish(source, found, entries)


def _labels(name: str, values: Values, entries: Entries) -> tuple[Array, tuple[str, ...] | None]:
    """Labels of all records as one array; text as numbers of sorted classes."""
    form = int(values.form[0])
    what = f"labels {name!r} are not what they are in the first sample"
    _alike(entries, values.form == form, what, _WORDS[values.form])
    tree = entries.tree
    if form in (_TEXT, _BINARY):
        return text_labels(tree.data, values.start, values.size, entries.blame)
    if form == _WHOLE:
        return values.number.copy(), None
    if form == _REAL:
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
        raise FormatError(f"labels {name!r} that are more than the file", path=tree.path)
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
        hint="labels_field=None serves a set without its labels" if "labels" in what else None,
    )
