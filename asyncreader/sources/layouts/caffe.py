"""Caffe's LMDB sets: a Datum under each key, raw planar pixels, floats, or an encoded image.

Datum (BVLC/caffe, src/caffe/proto/caffe.proto): channels 1, height 2, width 3, data 4 (uint8,
channel planes), label 5, float_data 6 (packed or not), encoded 7. All headers are parsed when the
set is opened; after that a sample is a byte range inside its value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...errors import FormatError
from ...pixels import kernels
from ...pixels.specs import SampleSpec
from ...pixels.tables import DATUM_COLUMNS
from ...system.array_types import Array, Bools, Int64
from ..extents import ImageExtents, image_kind
from ..fields import Layout, SetIndex
from ..lmdb import Entries
from .plugins import ForeignSet, encoded_images

_MIXED: Final = "the dataset is damaged or mixed: write it again"


@dataclass
class Headers:
    """Header fields of all Datums, int64 (N,) each; -1 where a field is absent. They stand in the
    order of tables.CHANNELS, HEIGHT ...

    ``data``: where it starts in the file; ``floats``: where the first float's bytes start;
    ``float_step``: bytes from one float to the next, 4 packed, 5 with a tag before each.
    """

    channels: Int64
    height: Int64
    width: Int64
    label: Int64
    has_label: Int64
    encoded: Int64
    data: Int64
    data_size: Int64
    floats: Int64
    float_count: Int64
    float_step: Int64


def parse(entries: Entries) -> Headers:
    """The headers of all Datums. FormatError names the first value that is not one."""
    table = np.empty((len(entries), DATUM_COLUMNS), np.int64)
    entries.read(kernels.read_datums, table)
    return Headers(*np.ascontiguousarray(table.T))


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
        entries.need(~bad, what, hint=_MIXED)
    return image & ~encoded, floats, encoded


def _check_sizes(header: Headers, entries: Entries) -> None:
    """FormatError unless each record's values are as many as its sides say."""
    held = np.where(header.float_count > 0, header.float_count, header.data_size)
    c, h, w = (np.maximum(side, 1) for side in (header.channels, header.height, header.width))
    stated = (header.channels > 0) & (header.height > 0) & (header.width > 0)
    # divided, not multiplied: three sides of 31 bits would overflow
    good = stated & (held % c == 0) & (held // c % h == 0) & (held // c // h == w)
    entries.need(
        good,
        "a Datum's size does not match its shape",
        lambda i: (
            f"{int(held[i])} values, shape {int(header.channels[i])} x "
            f"{int(header.height[i])} x {int(header.width[i])}"
        ),
        hint=_MIXED,
    )


# -- opening -------------------------------------------------------------------------------------


def index_datum(found: ForeignSet) -> SetIndex:
    """The index of Datums, in key order."""
    found.check_fields(("data",), ("labels", "label"))
    entries, order = found.records, found.fields.channel_order
    header = parse(entries)
    raw, floats, encoded = _kinds(header, entries)
    labels: Array | None = None
    if found.fields.labels is not None and (header.has_label > 0).any():
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
    differ = "Datums of different channels in one dataset"
    entries.need(header.channels == channels, differ, hint=_MIXED)
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
        differ = "packed and unpacked float_data in one dataset"
        entries.need(header.float_step == header.float_step[0], differ, hint=_MIXED)
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
    """The image's path, which convert_imageset puts into the key."""
    match = _IMAGESET_KEY.fullmatch(key)
    return None if match is None else match[1]


DATUM: Final = Layout[ForeignSet](
    "Caffe Datum", lambda found: refusal(found.records) is None, index_datum
)
