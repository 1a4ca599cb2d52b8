"""A contact sheet of samples that are no single pictures: windows, series, volumes, tables."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from ..array_types import Array, Int64
from ..dataset import Dataset
from ..errors import FormatError, SampleError
from ..params import PARAMETERS, ReaderParams
from ..pixels.specs import SampleSpec
from ..sources import OpenSet
from ..sources.request import NAME_AXES
from ..text import some, times
from .contact_sheet import Tile
from .drawing import HIGH, LINES, FieldDrawing, draw_samples
from .label_stats import records_of, row_of
from .sheet import Choice, Preview, label_words, put_together, title_of

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
    grey = len(shape) == 2 and (spec.dtype == np.uint8 or min(shape) > LINES)
    several = source.windows is not None or source.patches is not None
    return several or (spec.axes is None and not grey)


def drawings_of(source: OpenSet) -> list[FieldDrawing]:
    """What draws each field of a set's samples."""
    windows = source.windows
    return [
        FieldDrawing(
            name,
            part.spec.axes is not None,
            windows is not None and windows.width(name) is not None,
        )
        for name, part in zip(source.names, source.parts, strict=True)
    ]


def columns_for(tiles: int, high: int, wide: int) -> int:
    """Columns that make a sheet of about 3 : 2."""
    return max(1, round(math.sqrt(tiles * 1.5 * high / wide)))


def preview_arrays(
    source: OpenSet, p: ReaderParams, choice: Choice, columns: int | None
) -> Preview:
    """A sheet of samples, each with all of its fields below each other.

    ``choice``: of numbers of samples. FormatError where there is nothing to draw.
    """
    default = {name: PARAMETERS[name].default for name in _LEFT_OUT}
    p = replace(p, **default, layout="NHWC")  # type: ignore[arg-type]
    dataset: Dataset[tuple[Array, ...]] = Dataset.over(p, {}, source)
    numbers = _chosen(dataset, source, choice)
    records = dataset.records(numbers)
    fields = drawings_of(source)
    specs = [part.spec for part in source.parts]
    tiles, bad, shown = [], [], []
    for number, record in zip(numbers.tolist(), records.tolist(), strict=True):
        words, note = _words(source, record)
        try:
            values = _values(dataset[number], source)
        except SampleError as exc:
            bad.append((int(source.shown(np.array([record]))[0]), str(exc)))
            tiles.append(Tile(None, words, note, exc.what))
            continue
        single = []
        for field, spec, value in zip(fields, specs, values, strict=True):
            field.add(_upright(value, spec))
            single += [f"{field.name} {value.item():.4g}"] if value.ndim == 0 else []
        shown.append(len(tiles))
        tiles.append(Tile(None, words, ", ".join([note, *single])))
    pictures, notes = draw_samples(fields)
    if shown and not pictures:
        raise FormatError(
            "there is nothing to draw: samples are single numbers",
            path=source.facts.path,
            found=", ".join(source.names),
            hint="'asyncreader info' describes any dataset; -p data_field=NAME names another field",
        )
    notes += [
        f"{name}: {_stored(part.spec)}"
        for name, part in zip(source.names, source.parts, strict=True)
    ]
    if source.windows is None and p.patch is None and len(source.spec.shape or ()) == 3:
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


def _values(sample: object, source: OpenSet) -> tuple[Array, ...]:
    """The fields of a sample, without its label."""
    data = sample[0] if source.labels is not None else sample  # type: ignore[index]
    return data if isinstance(data, tuple) else (np.asarray(data),)


def _upright(value: Array, spec: SampleSpec) -> Array:
    """Pictures as (..., H, W, C), or (..., H, W)."""
    if spec.axes is None or not spec.as_stored:
        return value
    inner = value.ndim - 3
    turned = [inner + spec.axes.index(axis) for axis in "HWC"]
    return value.transpose([*range(inner), *turned])


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
