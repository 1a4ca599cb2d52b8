"""Caffe's LMDB sets: a Datum under each key, raw planar pixels, floats, or an encoded picture.

Datum (BVLC/caffe, src/caffe/proto/caffe.proto): channels 1, height 2, width 3, data 4 (uint8,
channel planes), label 5, float_data 6 (packed or not), encoded 7. All headers are parsed when the
set is opened; after that a sample is a byte range inside its value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ...array_types import Array, Bools, Int64, UInt8
from ...errors import FormatError, ParamsError
from ...pixels.specs import SampleSpec
from ..base import row_size
from ..extents import ImageExtents
from ..fields import Layout, SetIndex
from ..images import image_kind
from ..lmdb.columns import BLOCK, Span, gather, varint
from ..lmdb.entries import Entries
from ..request import check_labels
from .base import ForeignSet, encoded_images

#: Fields of a message that are looked at; a Datum has seven.
_FIELDS: Final = 64
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
#: Wire types: varint, 64 bits, a length and bytes, 32 bits.
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
#: The tag of one float of an unpacked float_data.
_FLOAT_TAG: Final = _FLOATS << 3 | _FOUR


@dataclass
class Headers:
    """Header fields of all Datums, int64 (N,) each; -1 where a field is absent."""

    channels: Int64
    height: Int64
    width: Int64
    label: Int64
    has_label: Int64
    encoded: Int64
    data: Int64
    """Where ``data`` starts in the file."""
    data_size: Int64
    floats: Int64
    """Where the first float's bytes start."""
    float_count: Int64
    float_step: Int64
    """Bytes from one float to the next: 4 packed, 5 with a tag before each."""

    @classmethod
    def empty(cls, count: int) -> Headers:
        """Headers of which all fields are absent."""
        return cls(*(np.full(count, -1, np.int64) for _ in fields(cls)))


def parse(entries: Entries) -> Headers:
    """The headers of all Datums. FormatError names the first value that is not one."""
    out = Headers.empty(len(entries))
    for lo, hi in entries.blocks():
        _parse_block(entries.span(lo, hi), out)
    return out


def _parse_block(span: Span, out: Headers) -> None:
    at = span.at.copy()
    todo = np.arange(at.size)
    for _ in range(_FIELDS):
        todo = todo[at[todo] < span.ends[todo]]
        if todo.size == 0:
            return
        part = span.pick(todo).moved(at[todo])
        tag, after = varint(part)
        field, wire = (tag >> np.uint64(3)).astype(np.int64), (tag & np.uint64(7)).astype(np.int64)
        part.need(field > 0, "its protobuf has a field without a number")
        known = np.isin(field, (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED))
        part.need(~known | (wire == _VARINT), "a number of a Datum is of another wire type")
        part.need((field != _DATA) | (wire == _BYTES), "data of a Datum is of another wire type")
        part.need(
            (field != _FLOATS) | (wire == _BYTES) | (wire == _FOUR),
            "float_data of a Datum is of another wire type",
        )
        moved = after.copy()
        for kind, step in ((_VARINT, _numbers), (_BYTES, _bytes), (_FOUR, _fours), (_EIGHT, None)):
            which = np.flatnonzero(wire == kind)
            if which.size == 0:
                continue
            some = part.pick(which).moved(after[which])
            if step is None:
                moved[which] = some.at + 8
            else:
                moved[which] = step(some, field[which], out)
        part.need(np.isin(wire, (_VARINT, _EIGHT, _BYTES, _FOUR)), "its protobuf is damaged")
        part.need(moved <= part.ends, "its protobuf is cut short or damaged")
        at[todo] = moved
    span.pick(todo).need(at[todo] >= span.ends[todo], "its protobuf has too many fields")


def _numbers(span: Span, field: Int64, out: Headers) -> Int64:
    """Note varints: the sides, the label, the flag."""
    value, after = varint(span)
    # int32 fields: negative ones are written as 64 bits, and readers keep the low 32
    number = value.astype(np.uint32).view(np.int32).astype(np.int64)
    for which, target in (
        (_CHANNELS, out.channels),
        (_HEIGHT, out.height),
        (_WIDTH, out.width),
        (_LABEL, out.label),
    ):
        mine = field == which
        target[span.records[mine]] = number[mine]
    out.has_label[span.records[field == _LABEL]] = 1
    mine = field == _ENCODED
    out.encoded[span.records[mine]] = value[mine] != 0
    return after


def _bytes(span: Span, field: Int64, out: Headers) -> Int64:
    """Note a length and bytes: data, or packed floats."""
    length, start = varint(span)
    space = (span.ends - start).astype(np.uint64)
    span.need(length <= space, "its protobuf states more bytes than there are", length)
    size = length.astype(np.int64)
    mine = field == _DATA
    out.data[span.records[mine]] = start[mine]
    out.data_size[span.records[mine]] = size[mine]
    mine = field == _FLOATS
    if mine.any():
        part = span.pick(mine)
        part.need(size[mine] % 4 == 0, "float_data of a Datum is not whole floats", size[mine])
        _note_floats(part, start[mine], size[mine] // 4, 4, out)
    return start + size


def _fours(span: Span, field: Int64, out: Headers) -> Int64:
    """Note 32 bits: the first of a run of floats, each after its own tag."""
    after = span.at + 4
    mine = np.flatnonzero(field == _FLOATS)
    if mine.size:
        part = span.pick(mine)
        part.need(after[mine] <= part.ends, "its protobuf is cut short or damaged")
        counts = np.empty(mine.size, np.int64)
        # a run may be long, so that it is measured record by record
        for i, (at, end) in enumerate(zip(part.at.tolist(), part.ends.tolist(), strict=True)):
            rest = span.data[at + 4 : end]
            tags = rest[: rest.size // 5 * 5].reshape(-1, 5)[:, 0] == _FLOAT_TAG
            counts[i] = 1 + (tags.size if tags.all() else int(np.argmin(tags)))
        _note_floats(part, part.at, counts, 5, out)
        after[mine] = part.at + counts * 5 - 1
    return after


def _note_floats(span: Span, start: Int64, count: Int64, step: int, out: Headers) -> None:
    held = out.float_count[span.records]
    span.need(held <= 0, "float_data of a Datum is split into several pieces")
    out.floats[span.records] = start
    out.float_count[span.records] = count
    out.float_step[span.records] = step


def refusal(entries: Entries) -> FormatError | None:
    """Why the first value is not a Datum; None if it is one."""
    try:
        header = parse(Entries.pick(entries, np.zeros(1, np.int64)))
        _, _, encoded = _kinds(header, entries)
        if not encoded.any():
            _check_sizes(header, entries)
    except FormatError as exc:
        return exc
    return None


def _kinds(header: Headers, entries: Entries) -> tuple[Bools, Bools, Bools]:
    """(uint8, float, encoded) of each record, which must all be of the first one's kind."""
    floats = header.float_count > 0
    # encoded Datums of convert_imageset state no sides; python writers forget the flag as well
    unstated = (header.channels <= 0) & (header.height <= 0) & (header.width <= 0)
    image = header.data_size > 0
    first = entries.tree.data[int(header.data[0]) :][:12].tobytes() if image[0] else b""
    encoded = header.encoded == 1
    if image_kind(first) is not None:
        encoded |= unstated & image
    for bad, what in (
        (~floats & ~image, "a Datum that holds no pixels"),
        (floats & image, "a Datum that holds both data and float_data"),
        (encoded & floats, "a Datum of floats that calls itself encoded"),
        (encoded != encoded[0], "encoded and raw Datums in one dataset"),
        (floats != floats[0], "Datums of bytes and of floats in one dataset"),
    ):
        _need(~bad, what, entries)
    return image & ~encoded, floats, encoded


def _check_sizes(header: Headers, entries: Entries) -> None:
    """FormatError unless each record's values are as many as its sides say."""
    held = np.where(header.float_count > 0, header.float_count, header.data_size)
    c, h, w = (np.maximum(side, 1) for side in (header.channels, header.height, header.width))
    stated = (header.channels > 0) & (header.height > 0) & (header.width > 0)
    # divided, not multiplied: three sides of 31 bits would overflow
    good = stated & (held % c == 0) & (held // c % h == 0) & (held // c // h == w)
    _need(
        good,
        "a Datum's size does not match its shape",
        entries,
        lambda i: (
            f"{int(held[i])} values, shape {int(header.channels[i])} x "
            f"{int(header.height[i])} x {int(header.width[i])}"
        ),
    )


def _need(good: Bools, what: str, entries: Entries, found: Any = None) -> None:
    if good.all():
        return
    bad = int(np.argmin(good))
    raise FormatError(
        what,
        **entries.blame(bad),
        found=None if found is None else found(bad),
        hint="the dataset is damaged or mixed: write it again",
    )


# -- opening -------------------------------------------------------------------------------------


def index_datum(found: ForeignSet) -> SetIndex:
    """The index of Datums, in key order."""
    index = _index_datum(found)
    (high, wide, _), labels = index.first.spec.image_shape(), index.labels
    if labels is not None and labels.ndim == 2 and high is not None and wide is not None:
        count, values = labels.shape  # a Datum's values in a row
        maps = (count, values // (high * wide), high, wide)
        if values % (high * wide) == 0:
            check_labels(maps, index.first.spec, found.fields, found.path, in_file=False)
    return index


def _index_datum(found: ForeignSet) -> SetIndex:
    entries = found.records
    order = found.fields.channel_order
    labels_path = found.fields.labels_path
    if labels_path is None:
        found.check_fields(("data",), ("labels", "label"))
    else:
        found.check_dims()
    header = parse(entries)
    raw, floats, encoded = _kinds(header, entries)
    labels: Array | None = None
    if labels_path is not None:
        labels = label_rows(labels_path, len(entries))
    elif found.fields.labels is not None and (header.has_label > 0).any():
        labels = np.where(header.has_label > 0, header.label, 0)  # 0 is the field's default
    if encoded[0]:
        return encoded_images(
            found,
            entries,
            header.data,
            header.data_size,
            "Caffe Datum, encoded images",
            labels=labels,
            origin=_path_in_key,
        )
    _check_sizes(header, entries)
    shapes = np.stack([header.channels, header.height, header.width], axis=1)
    same = bool((shapes == shapes[0]).all())
    channels = int(shapes[0, 0])
    _need(header.channels == channels, "Datums of different channels in one dataset", entries)
    shape = (channels, int(shapes[0, 1]), int(shapes[0, 2])) if same else None
    bgr, said = False, ""
    if raw[0] and channels == 3:
        if _is_cifar(shape, entries):
            said = ", RGB (Caffe's CIFAR)"
        elif order == "RGB":
            bgr, said = True, " BGR, served as RGB (channel_order='stored' keeps it)"
        else:
            said = ", channels as stored"
    kind = "float32" if floats[0] else "uint8"
    words = f"Caffe Datum, {'float_data' if floats[0] else 'raw planes'}{said}"
    stored = SampleSpec(shape, np.dtype(kind), "CHW", channels=channels)
    starts, sizes = header.data, header.data_size
    tagged = False
    if floats[0]:
        _need(
            header.float_step == header.float_step[0],
            "packed and unpacked float_data in one dataset",
            entries,
        )
        starts = header.floats
        step = int(header.float_step[0])
        # the last float has no tag after it
        sizes = header.float_count * step - (step - 4)
        tagged = step == 5
    same_size: Array | int = sizes if shape is None else int(sizes[0])
    extents = ImageExtents(starts, same_size, None if same else shapes, bgr, tagged)
    return found.index(words, stored, extents, labels, entries, origin=_path_in_key)


def _is_cifar(shape: tuple[int, ...] | None, entries: Entries) -> bool:
    """Whether Caffe's own CIFAR example wrote it: 3 x 32 x 32 in RGB under five-digit keys."""
    if shape != (3, 32, 32) or (entries.key_sizes != 5).any():
        return False
    return bool((entries.numbers(b"", 5) >= 0).all())


_IMAGESET_KEY: Final = re.compile(rb"\d{8}_(.*\.\w+)", re.DOTALL)


def _path_in_key(key: bytes) -> bytes | None:
    """The picture's path, which convert_imageset puts into the key."""
    match = _IMAGESET_KEY.fullmatch(key)
    return None if match is None else match[1]


def label_rows(path: str, count: int) -> Array:
    """Labels from an LMDB of their own: each Datum's values in a row, or its label."""
    from ..lmdb.file import open_tree

    file, tree = open_tree(path)
    try:
        if tree.named():
            raise ParamsError("labels_path is not an LMDB of Caffe Datums", path=path)
        entries = Entries.of(tree, tree.main)
        if len(entries) != count:
            raise FormatError(
                "there are not as many labels as samples",
                path=path,
                found=f"{len(entries)} rows",
                expected=f"{count} rows",
            )
        header = parse(entries)
        holding = (header.data_size > 0) | (header.float_count > 0)
        if not holding.any():
            _need(header.has_label > 0, "a Datum without a label", entries)
            return header.label
        _, floats, encoded = _kinds(header, entries)
        _need(~encoded, "a Datum of labels that calls itself encoded", entries)
        held = np.where(floats, header.float_count, header.data_size)
        _need(held == held[0], "labels of different lengths", entries)
        step = int(header.float_step[0]) if floats[0] else 1
        dtype = np.dtype("<f4" if floats[0] else "u1")
        return _rows(tree.data, header, (int(held[0]),), dtype, step, entries)
    finally:
        file.close()


def _rows(
    data: UInt8,
    header: Headers,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    step: int,
    entries: Entries,
) -> Array:
    if len(entries) * row_size(shape, dtype) > data.size:
        raise FormatError("the labels are larger than the file", path=entries.tree.path)
    if step != 5:
        return gather(data, header.floats if step == 4 else header.data, shape, dtype)
    out = np.empty((len(entries), *shape), np.float32)
    steps = np.arange(shape[0]) * 5
    rows = max(1, BLOCK // max(1, shape[0]))
    for lo in range(0, len(entries), rows):
        at = header.floats[lo : lo + rows, None] + steps
        out[lo : lo + rows] = gather(data, at.reshape(-1), (), dtype).reshape(at.shape)
    return out


DATUM: Final = Layout[ForeignSet](
    "Caffe Datum",
    lambda found: refusal(found.records) is None,
    index_datum,
    "values are Datums | planes, turned from BGR to RGB; `float_data`; encoded images; labels | "
    '`channel_order="stored"` keeps BGR; `labels_path`: a second LMDB of labels',
)
