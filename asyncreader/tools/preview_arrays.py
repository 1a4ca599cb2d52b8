"""A contact sheet of samples that are no single pictures: windows, series, volumes, tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..dataset import Dataset
from ..errors import FormatError, SampleError
from ..params import PARAMETERS, ReaderParams
from ..pixels.specs import SampleSpec
from ..sampling.lengths import Lengths
from ..sources import OpenSet
from ..sources.request import NAME_AXES
from ..system.array_types import Array, Int64, UInt8
from ..system.text import some, times
from .contact_sheet import Tile
from .drawing import HIGH, LINES, FieldDrawing, draw_samples
from .label_stats import records_of, row_of
from .sheet import Choice, Preview, label_words, put_together, title_of
from .thumbnails import is_grey

#: What a sheet of stored samples leaves out: the order of training, and how values are changed.
_LEFT_OUT: Final = (
    *("shuffle", "shuffle_window", "weights", "epoch_samples", "last_batch", "rank", "world_size"),
    *("dtype", "scale", "mean", "std", "contiguous", "postprocess", "transform", "batch_size"),
)

#: A tile is at least so wide, for its words.
NARROWEST: Final = 160


def drawn_as_arrays(source: OpenSet) -> bool:
    """Whether the samples of a set are no single pictures (H, W) or (H, W, C), or parts of such."""
    spec = source.spec
    shape = spec.shape or ()
    grey = is_grey(spec) and (spec.dtype == np.uint8 or min(shape) > LINES)
    several = source.windows is not None or source.patches is not None
    return several or (spec.axes is None and not grey)


def drawings_of(source: OpenSet, lengths: Sequence[object]) -> list[FieldDrawing]:
    """What draws each field of a set's samples; ``lengths``: None of a field whose samples are all
    as long."""
    windows, found = source.windows, []
    for name, part, differ in zip(source.names, source.parts, lengths, strict=True):
        shape = part.spec.shape or ()
        images = part.spec.ragged and len(shape) == 3 and shape[2] in (1, 3)
        windowed = windows is not None and windows.width(name) is not None
        picture = part.spec.axes is not None or images
        found.append(FieldDrawing(name, picture, windowed, differ is not None))
    return found


class ArrayDrawing:
    """Draws samples of an open set by number, each with all of its fields below each other. Those
    that differ in length have their own."""

    def __init__(self, source: OpenSet, p: ReaderParams) -> None:
        default = {name: PARAMETERS[name].default for name in _LEFT_OUT}
        p = replace(p, **default, layout="NHWC")  # type: ignore[arg-type]
        self.source = source
        self.dataset: Dataset[tuple[Array, ...]] = Dataset.over(p, {}, source)
        self._lengths = source.lengths(p.wanted)
        self._fields = drawings_of(source, self._lengths)
        self.words: list[str] = []
        """Of each sample that was added its single numbers and lengths."""

    @property
    def differ(self) -> bool:
        """Whether the samples of the first field differ in length."""
        return self._lengths[0] is not None

    def values(self, number: int) -> tuple[Array, ...]:
        """The fields of a sample, without its label; SampleError if it is bad."""
        sample = self.dataset[number]
        data: object = sample[0] if self.source.labels is not None else sample
        fields = data if isinstance(data, tuple) else (np.asarray(data),)
        record = self.dataset.records(np.array([number], np.int64))
        every = zip(fields, self._lengths, self.source.parts, strict=True)
        return tuple(_own(field, lengths, record, part.spec) for field, lengths, part in every)

    def add(self, values: tuple[Array, ...]) -> None:
        """One more sample."""
        words = []
        for field, value, lengths in zip(self._fields, values, self._lengths, strict=True):
            field.add(value)
            words += [f"{field.name} {value.item():.4g}"] if value.ndim == 0 else []
            if lengths is not None:
                words.append(f"{field.name}: " * (len(values) > 1) + some(len(value), "row"))
        self.words.append(", ".join(words))

    def draw(self) -> tuple[list[UInt8], list[str]]:
        """Pictures of those that were added since the last call, and notes: see draw_samples().
        FormatError where there is nothing to draw."""
        pictures, notes = draw_samples(self._fields)
        if self.words and not pictures:
            raise FormatError(
                "there is nothing to draw: samples are single numbers",
                path=self.source.facts.path,
                found=", ".join(self.source.names),
                hint="'asyncreader info' describes any dataset; -p data_field=NAME names another "
                "field",
            )
        self.words = []
        return pictures, notes


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


def columns_for(tiles: int, high: int, wide: int) -> int:
    """Columns that make a sheet of about 3 : 2."""
    return max(1, round(math.sqrt(tiles * 1.5 * high / wide)))


def preview_arrays(
    source: OpenSet, p: ReaderParams, choice: Choice, columns: int | None
) -> Preview:
    """A sheet of samples, each with all of its fields below each other.

    ``choice``: of numbers of samples. FormatError where there is nothing to draw.
    """
    drawing = ArrayDrawing(source, p)
    dataset = drawing.dataset
    numbers = _chosen(dataset, source, choice)
    records = dataset.records(numbers)
    tiles, bad, shown = [], [], []
    for number, record in zip(numbers.tolist(), records.tolist(), strict=True):
        words, note = _words(source, record)
        try:
            drawing.add(drawing.values(number))
        except SampleError as exc:
            bad.append((int(source.shown(np.array([record]))[0]), str(exc)))
            tiles.append(Tile(None, words, note, exc.what))
            continue
        shown.append(len(tiles))
        tiles.append(Tile(None, words, ", ".join(filter(None, [note, drawing.words[-1]]))))
    pictures, notes = drawing.draw()
    notes += [
        f"{name}: {_stored(part.spec)}"
        for name, part in zip(source.names, source.parts, strict=True)
    ]
    spec = source.spec
    if (
        source.windows is None
        and p.patch.shape is None
        and len(spec.shape or ()) == 3
        and not spec.ragged
    ):
        notes.append(f"if these are images, {NAME_AXES}")
    for place, picture in zip(shown, pictures, strict=True):
        tiles[place] = replace(tiles[place], picture=picture)
    high, wide = pictures[0].shape[:2] if pictures else (HIGH, HIGH)
    wide = max(wide, NARROWEST)
    subtitle = f"{_facts(source, len(dataset))}; {len(tiles):,} shown, {choice.how}"
    return put_together(
        tiles,
        source.shown(records).tolist(),
        source.labels is not None,
        bad,
        columns or columns_for(len(tiles), high, wide),
        title_of(source),
        subtitle,
        notes,
        size=(high, wide),
    )


def _chosen(dataset: Dataset[tuple[Array, ...]], source: OpenSet, choice: Choice) -> Int64:
    """The numbers of the samples on the sheet, in order where they are drawn."""
    total, path = len(dataset), source.facts.path
    given = choice.given(total, path)
    pool: Int64 | range = range(total)
    if given is None and choice.classes:
        labels = None if source.table is None else np.asarray(source.table)
        rows = source.shown(dataset.records(np.arange(total, dtype=np.int64)))
        of_class = records_of(choice.classes, labels, source.facts.classes)
        pool = np.flatnonzero(np.isin(rows, of_class))
    return np.array(choice.drawn(pool, path) if given is None else given, np.int64)


def _words(source: OpenSet, record: int) -> tuple[str, str]:
    """The two lines under a sample."""
    number = f"#{record}"
    if source.windows is not None:
        episodes = source.windows.episodes
        (which,) = episodes.of(np.array([record], np.int64)).tolist()
        name = episodes.names[which] if episodes.names else f"episode {which}"
        number = f"{name}, row {record - int(episodes.starts[which])}"
    if source.patches is not None:
        (volume,), (corner,) = source.patches.volumes.of(np.array([record], np.int64))
        number = f"volume {volume} at {', '.join(map(str, corner.tolist()))}"
    words, note = label_words(row_of(source.labels, record), source.facts.classes)
    return (words, f"{note}{number}") if words else (number, "")


def _facts(source: OpenSet, total: int) -> str:
    if source.patches is not None:
        volumes = source.patches.volumes
        return f"{some(total, 'patch')} of {times(volumes.patch)}, of {volumes.words}"
    words = some(total, "sample")
    if source.windows is not None:
        words += f" of {source.windows.episodes.words}"
    return words


def _stored(spec: SampleSpec) -> str:
    shape = "of many shapes" if spec.shape is None else times(spec.shape)
    return f"{shape}, {'structured' if spec.dtype.names else spec.dtype}, in the file"
