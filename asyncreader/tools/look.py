"""Looks at stored samples of a set, by number: a small image of each, whatever a sample is.

Images are shown as they are. Windows, series, volumes and tables are drawn with all of their fields
below each other: see drawing.py.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from ..dataset import Dataset
from ..errors import FormatError, SampleError, located
from ..params.reader import PARAMETERS, ReaderParams
from ..pixels import codec
from ..pixels.codec.masks import decode_values
from ..pixels.encoded import decode_sample
from ..pixels.points import check_places
from ..pixels.specs import SampleSpec
from ..sampling.rule import Lengths
from ..sources import Inspector, OpenSet, Source
from ..system.array_types import Array, Int64, UInt8
from ..system.text import some
from .drawing import (
    LINES,
    WIDE,
    FieldDrawing,
    Scale,
    as_mask,
    draw_samples,
    fit,
    marked,
    not_pictures,
    scale_of,
    tinted,
    to_rgb,
)

#: Samples that are looked at to find the range of values.
PROBE: Final = 64

#: What drawings leave out: the order of training, and how values are changed.
_LEFT_OUT: Final = (
    *("shuffle", "shuffle_window", "weights", "epoch_samples", "last_batch", "rank", "world_size"),
    *("dtype", "scale", "mean", "std", "contiguous", "postprocess", "transform", "batch_size"),
)


@dataclass(frozen=True)
class Looked:
    """One stored sample, looked at.

    ``picture``: (h, w, 3), a JPEG possibly decoded smaller than it is; ``height``, ``width``: of
    the whole image, upright; of a drawing its rows, and 1. ``size``: its bytes as it is stored;
    ``words``: what is said of it besides its label. ``mask``, ``places``: what lies over an image.
    """

    number: int
    picture: UInt8
    height: int
    width: int
    size: int
    stored: bytes | Array
    words: str = ""
    mask: Array | None = None
    places: Mapping[str, Array] = field(default_factory=dict)

    @property
    def checksum(self) -> int:
        """XXH3-64 of what is stored, equal for samples with the same bytes."""
        stored = self.stored
        return xxh3_64_intdigest(
            stored if isinstance(stored, bytes) else np.ascontiguousarray(stored).data
        )

    def fitted(self, side: int) -> UInt8:
        """An image in a square of ``side``, with its mask and places."""
        picture = fit(self.picture, side)
        picture = picture if self.mask is None else tinted(picture, self.mask)
        return marked(picture, (self.height, self.width), self.places) if self.places else picture


class Looker(ABC):
    """Looks at samples of a set by their numbers, in one scale."""

    drawn = False
    """Whether samples are drawn, being no images."""

    def __init__(self, source: OpenSet, total: int) -> None:
        self.source = source
        self.total = total
        """How many numbers there are: 0, 1, ..."""
        self.notes: list[str] = []
        """What is to be said of all samples."""

    @abstractmethod
    def rows(self, numbers: Int64) -> Int64:
        """The rows of the set that samples begin with."""

    @abstractmethod
    def settle(self, numbers: Sequence[int] | Int64, most: int | None = None) -> None:
        """Find the scale that suits these samples, by at most 64 of them, and of those no more
        than the first ``most`` bytes."""

    @abstractmethod
    def look(self, number: int, side: int) -> Looked:
        """A sample, an image at least ``side`` pixels long if it is; SampleError if it is bad."""


def _probed(numbers: Sequence[int] | Int64) -> list[int]:
    return [int(number) for number in numbers[:: max(1, len(numbers) // PROBE)]]


def is_grey(stored: SampleSpec) -> bool:
    """Whether samples are numbers (H, W) without known axes, which can be drawn as grey images."""
    plain = not stored.ragged and stored.dtype.names is None
    return plain and stored.axes is None and len(stored.shape or ()) == 2


def drawn_as_arrays(source: OpenSet) -> bool:
    """Whether the samples of a set are no single images (H, W) or (H, W, C), or parts of such."""
    spec = source.spec
    shape = spec.shape or ()
    grey = is_grey(spec) and (spec.dtype == np.uint8 or min(shape) > LINES)
    return source.rule.apart or (spec.axes is None and not grey)


def looker_of_rows(ds: Dataset[Any]) -> Looker:
    """A looker at the rows of a set where these are images, else at its samples."""
    try:
        return ImageLooker(ds.source)
    except FormatError:
        return ArrayLooker(ds.source, ds.params)


# -- images --------------------------------------------------------------------------------------


class ImageLooker(Looker):
    """Looks at the images of a set by their rows; thread-safe, as its source is. ``p``: names the
    masks, boxes and keypoints that lie over them.

    FormatError at construction where samples are no images.
    """

    def __init__(self, source: OpenSet, p: ReaderParams | None = None) -> None:
        super().__init__(source, source.facts.count)
        self._first: Source = source.first
        self._inspector = Inspector(self._first)
        stored = source.spec
        self._axes: tuple[int, ...] | None = None
        if stored.axes is not None:
            self._axes = tuple(stored.axes.index(axis) for axis in "HWC")
        elif not is_grey(stored):
            raise not_pictures(source.facts.path, stored.shape or ())
        self._scale = Scale()
        self._over: list[Source] = []
        self._places: dict[str, Source] = {}
        if p is not None:
            parts = zip(source.names[1:], source.parts[1:], strict=True)
            self._over = [part for name, part in parts if name not in p.places]
            named = {"boxes": p.boxes_field, "keypoints": p.keypoints_field}
            self._places = {what: source.part(name) for what, name in named.items() if name}

    def rows(self, numbers: Int64) -> Int64:
        return numbers

    def settle(self, numbers: Sequence[int] | Int64, most: int | None = None) -> None:
        if self.source.spec.dtype != np.uint8:
            self._scale = scale_of(self._some_pixels(numbers))
        self.notes = self._scale.notes

    def _some_pixels(self, numbers: Sequence[int] | Int64) -> Iterator[Array]:
        for number in _probed(numbers):
            with contextlib.suppress(SampleError):
                yield self._pixels(self._record(number), 160)[0]

    def look(self, number: int, side: int) -> Looked:
        record = self._record(number)
        pixels, height, width, stored = self._pixels(record, side)
        masks = (stored_mask(part, record) for part in self._over)
        places = {}
        for what, part in self._places.items():
            check_places(part.spec, what, self.source.facts.path)
            places[what] = Inspector(part).pixels(record)
        differ = self.source.spec.shape is None
        return Looked(
            number,
            to_rgb(pixels, self._scale),
            height,
            width,
            len(stored) if isinstance(stored, bytes) else stored.nbytes,
            stored,
            f"{height} x {width}" if differ else "",
            next((mask for mask in masks if mask is not None), None),
            places,
        )

    def _record(self, number: int) -> int:
        """The first field's own record, of which an episode may have one more than of others."""
        return int(self.source.records(np.array([number], np.int64))[0])

    def _pixels(self, record: int, side: int) -> tuple[Array, int, int, bytes | Array]:
        """Pixels (h, w, C) of an image, its size, and what is stored."""
        source, stored = self._first, self._first.spec
        if not stored.encoded:
            pixels = self._inspector.pixels(record)
            pixels = pixels[:, :, None] if self._axes is None else pixels.transpose(self._axes)
            return pixels, pixels.shape[0], pixels.shape[1], pixels
        data = self._inspector.bytes(record)
        with located(path=source.facts.path, index=record):
            header = codec.read_header(data)
            part = min(1.0, side / max(header.height, header.width))
            least = (math.ceil(header.height * part), math.ceil(header.width * part))
            return decode_sample(data, stored, header, least), header.height, header.width, data


def stored_mask(part: Source, record: int) -> Array | None:
    """Sample ``record`` of a field as a mask, None where it is none; SampleError if it is bad."""
    stored = part.spec
    if stored.encoded:
        return as_mask(decode_values(Inspector(part).bytes(record)))
    pixels = Inspector(part).pixels(record)
    if stored.axes is not None:
        pixels = pixels.transpose([stored.axes.index(axis) for axis in "HWC"])
    return as_mask(pixels)


# -- arrays --------------------------------------------------------------------------------------


def drawings_of(source: OpenSet, lengths: Iterable[object]) -> list[FieldDrawing]:
    """What draws each field of a set's samples; ``lengths``: None of a field whose samples are all
    as long."""
    found = []
    for name, part, differ in zip(source.names, source.parts, lengths, strict=True):
        shape = part.spec.shape or ()
        images = part.spec.ragged and len(shape) == 3 and shape[2] in (1, 3)
        windowed = source.rule.width(name) is not None
        picture = part.spec.axes is not None or images
        found.append(FieldDrawing(name, picture, windowed, differ is not None))
    return found


class ArrayLooker(Looker):
    """Draws samples of a set by their numbers, each with all of its fields; in one thread. Those
    that differ in length have their own."""

    drawn = True

    def __init__(self, source: OpenSet, p: ReaderParams) -> None:
        default = {name: PARAMETERS[name].default for name in _LEFT_OUT}
        p = replace(p, **default, layout="NHWC")  # type: ignore[arg-type]
        self.dataset: Dataset[tuple[Array, ...]] = Dataset(p, source=source, owned=False)
        super().__init__(source, len(self.dataset))
        self._lengths = source.lengths(p.wanted)
        self._fields = drawings_of(source, self._lengths)
        self._wide = WIDE
        """How wide the widest sample is drawn, of those that the scale was found by."""

    @property
    def differ(self) -> bool:
        """Whether the samples of the first field differ in length."""
        return self._lengths[0] is not None

    def rows(self, numbers: Int64) -> Int64:
        return self.dataset.records(numbers)

    def settle(self, numbers: Sequence[int] | Int64, most: int | None = None) -> None:
        """FormatError where there is nothing to draw."""
        read, good = 0, 0
        for number in _probed(numbers):
            if most is not None and read > most:
                break
            with contextlib.suppress(SampleError):
                values = self._values(number)
                read, good = read + sum(value.nbytes for value in values), good + 1
                self._add(values)
        pictures, self.notes = draw_samples(self._fields)
        self._wide = max((picture.shape[1] for picture in pictures), default=self._wide)
        if good and not pictures:
            raise FormatError(
                "there is nothing to draw: samples are single numbers",
                path=self.source.facts.path,
                found=", ".join(self.source.names),
                hint="'asyncreader info' describes any dataset; -p data_field=NAME names another "
                "field",
            )

    def look(self, number: int, side: int) -> Looked:
        values = self._values(number)
        words = self._add(values)
        (picture,), _ = draw_samples(self._fields, self._wide)
        stored = b"".join(value.tobytes() for value in values)
        rows = len(values[0]) if values[0].ndim else 1
        return Looked(number, picture, rows, 1, len(stored), stored, words)

    def _values(self, number: int) -> tuple[Array, ...]:
        """The fields of a sample, without its label; SampleError if it is bad."""
        sample = self.dataset[number]
        data: object = sample[0] if self.source.labels is not None else sample
        fields = data if isinstance(data, tuple) else (np.asarray(data),)
        record = self.dataset.records(np.array([number], np.int64))
        every = zip(fields, self._lengths, self.source.parts, strict=True)
        return tuple(_own(field, lengths, record, part.spec) for field, lengths, part in every)

    def _add(self, values: tuple[Array, ...]) -> str:
        """One more sample to draw: its single numbers and lengths in words."""
        words = []
        for drawing, value, lengths in zip(self._fields, values, self._lengths, strict=True):
            drawing.add(value)
            words += [f"{drawing.name} {value.item():.4g}"] if value.ndim == 0 else []
            if lengths is not None:
                words.append(f"{drawing.name}: " * (len(values) > 1) + some(len(value), "row"))
        return ", ".join(words)


def _own(value: Array, lengths: Lengths | None, record: Int64, spec: SampleSpec) -> Array:
    """A field of a sample as it is drawn: without what fills it up, images (..., H, W, C) or
    (..., H, W)."""
    own = None if lengths is None else lengths.served(record, np.ones(1, np.bool_))
    if own is not None and own.ndim == 1:  # of each row of a window it is another
        value = value[: int(own[0])]
    if spec.axes is None or not spec.as_stored:
        return value
    inner = value.ndim - 3
    turned = [inner + spec.axes.index(axis) for axis in "HWC"]
    return value.transpose([*range(inner), *turned])
