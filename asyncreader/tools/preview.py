"""A contact sheet of a set: which samples are on it, and what it says of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..array_types import Array, Int64
from ..batch import Batch
from ..errors import ParamsError, SampleError
from ..params import ReaderParams, given_params, parse_params
from ..reader import AsyncReader
from ..sources import OpenSet, open_reader_source
from ..sources.subset import resolve_subset
from ..text import sides, some
from .contact_sheet import Tile, draw_sheet, undrawn
from .label_stats import class_of, in_words, records_of, row_of
from .thumbnails import (
    Looker,
    Scale,
    as_mask,
    fit,
    not_pictures,
    scale_for,
    scale_of,
    stored_mask,
    tinted,
    to_rgb,
)

if TYPE_CHECKING:
    from PIL import Image


#: Most samples on a sheet that a person still looks at.
MOST: Final = 1000

#: Sides of the squares that pictures are fitted into, in pixels.
SIDE: Final = 160


@dataclass(frozen=True)
class Preview:
    """A sheet, and what is on it."""

    sheet: Image.Image
    records: tuple[int, ...]
    """Record numbers in the order of the sheet; -1 for a padded row."""
    labels: tuple[str | None, ...]
    """Each one's label in words, with the name of its class."""
    bad: tuple[tuple[int, str], ...]
    """Record numbers of samples that cannot be shown, and why."""
    notes: tuple[str, ...]
    """What the foot of the sheet says."""


def preview(
    params: Mapping[str, Any],
    *,
    count: int = 24,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    classes: Sequence[str] = (),
    columns: int | None = None,
) -> Preview:
    """A sheet of stored samples: those of ``indices``, or ``count`` drawn at random by ``seed``.

    ``params``: as for AsyncReader, of which path, fields, axes and ``subset`` count. ``classes``:
    names or label numbers to draw from. Samples drawn come in the order of the set. A bad sample
    becomes a square that says so. Raises ParamsError, SourceNotFoundError or FormatError.
    """
    p = parse_params(params, {})
    with contextlib.closing(open_reader_source(p)) as source:
        looker = Looker(source.first)
        records = _choose(source, p, count, seed, indices, classes)
        scale = scale_for(looker, records, SIDE)
        tiles, bad, masks = [], [], set()
        shapes: list[tuple[int, ...]] = []
        for record in records:  # one after the other: of large pictures only the small one stays
            words, note = _captions(source, record)
            try:
                look = looker.look(record, 2 * SIDE)
                mask = _mask_of(source, record)
            except SampleError as exc:
                bad.append((record, str(exc)))
                tiles.append(Tile(None, words, note, exc.what))
                continue
            shapes.append((look.height, look.width, look.pixels.shape[2]))
            if source.spec.shape is None:
                note = f"{note}   {look.height} x {look.width}".strip()
            masks |= _values(mask)
            tiles.append(Tile(_picture(look.pixels, scale, mask), words, note))
        how = "chosen" if indices is not None else f"drawn at random (seed {seed})"
        if indices is None and len(records) == source.facts.count:
            how = "all of them"
        subtitle = f"{_facts(source)}; {len(records):,} shown, {how}"
        notes = _notes(scale, shapes[0][2] if shapes else 3, masks)
        if shapes and source.spec.shape is not None:
            height, width, _ = shapes[0]
            notes.insert(0, f"all {sides(height, width)}")
        elif shapes:
            notes.insert(0, "sizes are height x width")
        named = source.labels is not None
        return _done(tiles, records, named, bad, columns, _title(source), subtitle, notes)


def preview_batch(
    params: Mapping[str, Any], *, count: int = 24, columns: int | None = None
) -> Preview:
    """A sheet of the first batch that a reader with these parameters hands out.

    Cropped, flipped and postprocessed as in training; what ``scale``, ``mean`` and ``std`` did is
    undone. ``batch_size`` is ``count`` unless given, at most as many as the set has. Raises what
    AsyncReader raises, and FormatError where a batch is not pictures.
    """
    p = parse_params(params, {})
    if p.batch_size > MOST:
        raise ParamsError("too many for a sheet", found=f"batch_size {p.batch_size}")
    with contextlib.closing(open_reader_source(p)) as source:
        stored = source.spec
        chosen = resolve_subset(p.subset, source)
        total = source.facts.count if chosen is None else len(np.arange(source.facts.count)[chosen])
        title, facts = _title(source), _facts(source)
        names = source.facts.classes
    if stored.axes is None and len(stored.shape or ()) == 3 and p.postprocess is None:
        raise not_pictures(title, stored.shape or ())
    rows = min(count, total)
    if p.mixup is not None or p.cutmix is not None:
        rows -= rows % 2
    first = {"batch_size": rows, "world_size": 1, **given_params(params, {})}
    with AsyncReader(first) as reader:
        reader.fetchData()
        batch = reader.getNextBatch()
        fields = batch.data if isinstance(batch.data, tuple) else (batch.data,)
        pixels = _hwc(np.asarray(fields[0]), reader.params.layout, title)
        masks = _batch_masks(fields[1:], reader.params.layout, len(batch))
        pixels = undone(pixels, reader.params)
        scale = Scale()
        if p.postprocess is not None or stored.dtype != np.uint8:
            scale = scale_of(pixels)
        tiles = [
            _batch_tile(batch, row, _picture(pixels[row], scale, masks[row]), names)
            for row in range(len(batch))
        ]
        bad = reader.stats().bad_list
        notes = _notes(scale, pixels.shape[3], set().union(*map(_values, masks)))
        what = " and ".join(f"{'x'.join(map(str, part.shape))} {part.dtype}" for part in fields)
    settings = _settings(reader.params)
    subtitle = f"{facts}; the first batch that training gets: {what}"
    notes.insert(0, settings)
    records = batch.indices.tolist()
    named = batch.labels is not None
    return _done(tiles, records, named, bad, columns, title, subtitle, notes)


def undone(pixels: Array, p: ReaderParams) -> Array:
    """Batch pixels (B, H, W, C) with ``(x * scale - mean) / std`` taken back, as float64.

    As they are where there is none, or where a postprocess left other channels.
    """
    channels = pixels.shape[3]
    wanted = p.wanted.of((p.field_names or (str(p.data_field),))[0])
    fits = all(len(values) in (1, channels) for values in (wanted.mean, wanted.std))
    if not wanted.affine or not fits or wanted.scale == 0 or pixels.dtype.kind != "f":
        return pixels
    back = pixels.astype(np.float64) * np.asarray(wanted.std) + np.asarray(wanted.mean)
    # float32 arithmetic leaves 1e-7 beyond the ends, which is no value of its own
    result: Array = np.round(back / wanted.scale, 3)
    return result


# -- which samples -------------------------------------------------------------------------------


def _choose(
    source: OpenSet,
    p: ReaderParams,
    count: int,
    seed: int,
    indices: Sequence[int] | None,
    classes: Sequence[str],
) -> list[int]:
    total = source.facts.count
    if indices is not None:
        wrong = [index for index in indices if not 0 <= index < total]
        if wrong or not 0 < len(indices) <= MOST:
            raise ParamsError(
                "no such samples" if wrong else "not a number of samples for a sheet",
                path=source.facts.path,
                found=wrong[0] if wrong else len(indices),
                expected=f"0 to {total - 1}" if wrong else f"1 to {MOST}",
            )
        return list(indices)
    chosen = resolve_subset(p.subset, source)
    pool: Int64 | range = range(total)
    if isinstance(chosen, slice):
        pool = pool[chosen]
    elif chosen is not None:
        pool = chosen
    if classes:
        labels = None if source.labels is None else np.asarray(source.labels)
        of_class = records_of(classes, labels, source.facts.classes)
        pool = of_class if chosen is None else np.intersect1d(of_class, np.asarray(pool))
        if not pool.size:
            raise ParamsError(
                "no sample to show", path=source.facts.path, found=f"class {', '.join(classes)}"
            )
    drawn = np.random.default_rng(seed).choice(len(pool), min(count, len(pool)), replace=False)
    return sorted(int(pool[index]) for index in drawn.tolist())


# -- pictures and their masks ----------------------------------------------------------------------


def _picture(pixels: Array, scale: Scale, mask: Array | None) -> Array:
    picture = fit(to_rgb(pixels, scale), SIDE)
    return picture if mask is None else tinted(picture, mask)


def _mask_of(source: OpenSet, record: int) -> Array | None:
    """A sample's first field that is a mask, where several fields were named."""
    found = (stored_mask(part, record) for part in source.parts[1:])
    return next((mask for mask in found if mask is not None), None)


def _values(mask: Array | None) -> set[int]:
    return set() if mask is None else set(map(int, np.unique(mask).tolist()))


def _batch_masks(fields: Sequence[Array], layout: str, rows: int) -> list[Array | None]:
    """Each row of the first field that is a mask."""
    for field in fields:
        array = np.asarray(field)
        if array.ndim == 4 and layout == "NCHW":
            array = array.transpose(0, 2, 3, 1)
        if array.ndim in (3, 4) and as_mask(array[0]) is not None:
            return [as_mask(row) for row in array]
    return [None] * rows


# -- words ---------------------------------------------------------------------------------------


def _label_words(row: Array | None, names: Sequence[str] | None) -> tuple[str, str]:
    """A label as the two lines under a picture begin: its class or number, and its number."""
    if row is None:
        return "", ""
    name = class_of(row, names)
    if name is None:
        return f"label {in_words(row)}", ""
    return name, f"label {in_words(row)}, "


def _captions(source: OpenSet, record: int) -> tuple[str, str]:
    words, note = _label_words(row_of(source.labels, record), source.facts.classes)
    return (words, f"{note}#{record}") if words else (f"#{record}", "")


def _batch_tile(batch: Batch, row: int, picture: Array, names: Sequence[str] | None) -> Tile:
    labels = None if batch.labels is None else np.asarray(batch.labels[row])
    words, note = _label_words(labels, names)
    record = int(batch.indices[row])
    number = "padded" if record < 0 else f"#{record}" + ("" if batch.mask[row] else ", zeroed")
    return Tile(picture, words or number, f"{note}{number}" if words else "")


def _hwc(data: Array, layout: str, path: str) -> Array:
    """A batch as (B, H, W, C); FormatError where it is no pictures, after a postprocess, say."""
    if data.ndim == 3:
        return data[:, :, :, None]
    if data.ndim != 4:
        raise not_pictures(path, data.shape[1:])
    # a postprocess may have turned the axes: pictures have few channels
    first = layout == "NCHW"
    if data.shape[1 if first else 3] > 4 >= data.shape[3 if first else 1]:
        first = not first
    return data.transpose(0, 2, 3, 1) if first else data


def _title(source: OpenSet) -> str:
    return os.path.basename(source.facts.path.rstrip("/")) or source.facts.path


def _facts(source: OpenSet) -> str:
    facts, spec = source.facts, source.spec
    words = f"{some(facts.count, 'sample')}, {spec.encoding}"
    if facts.classes:
        return f"{words}, {some(len(facts.classes), 'class')}"
    return f"{words}, no labels" if source.labels is None else words


def _notes(scale: Scale, channels: int, masks: set[int]) -> list[str]:
    notes = list(scale.notes)
    values = sorted(masks - {0})
    if values:
        listed = ", ".join(map(str, values[:12])) + (", ..." if len(values) > 12 else "")
        notes.append(f"the mask's values are coloured: {listed}")
    if channels == 2 or channels > 3:
        seen = "the first" if channels == 2 else "the first three"
        notes.append(f"{seen} of {channels} channels shown")
    return notes


def _settings(p: ReaderParams) -> str:
    """The parameters that make a batch look as it does, in the words of the parameters."""
    matter = {
        "seed": bool(p.shuffle) or p.weights is not None or p.flip or "random" in p.crop,
        "shuffle": p.weights is None,
        "weights": p.weights is not None,
        "size": p.size is not None,
        "crop": p.size is not None,
        "flip": p.flip,
        **{name: getattr(p, name) is not None for name in ("dtype", "scale", "mean", "std")},
        "subset": p.subset is not None,
    }
    matter |= {name: getattr(p, name) is not None for name in ("mixup", "cutmix")}
    words = [f"{name}={_value(getattr(p, name))}" for name, matters in matter.items() if matters]
    if p.augment:
        words.append(f"augment={', '.join(step.name for step in p.augment)}")
    for name, function in (("transform", p.transform), ("postprocess", p.postprocess)):
        if function is not None:
            words.append(f"{name}={getattr(function, '__qualname__', type(function).__name__)}")
    return ", ".join(words)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(f'{part:g}' for part in value)})"
    return f"{value:.6g}" if isinstance(value, float) else re.sub(r"\s+", " ", str(value))


def _done(
    tiles: Sequence[Tile],
    records: Sequence[int],
    named: bool,
    bad: Sequence[tuple[int, str]],
    columns: int | None,
    title: str,
    subtitle: str,
    notes: Sequence[str],
) -> Preview:
    columns = columns or _fitting(len(tiles))
    lacking = undrawn([title, *(tile.name for tile in tiles)])
    notes = [*notes, lacking] if lacking else notes
    sheet = draw_sheet(
        tiles, side=SIDE, columns=columns, title=title, subtitle=subtitle, notes=notes
    )
    words = tuple(tile.name if named else None for tile in tiles)
    return Preview(sheet, tuple(records), words, tuple(bad), tuple(notes))


def _fitting(tiles: int) -> int:
    """Columns that make a sheet of about 3 : 2 and leave the fewest squares of it empty."""
    ideal = (tiles * 1.8) ** 0.5
    near = range(max(1, round(ideal * 0.75)), max(1, round(ideal * 1.25)) + 1)
    return min(near, key=lambda columns: (-tiles % columns, abs(columns - ideal)))
