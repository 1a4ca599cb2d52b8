"""A contact sheet of a set: which samples are on it, and what it says of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..array_types import Array, Int64, UInt8
from ..batch import Batch
from ..errors import ParamsError, SampleError
from ..params import ReaderParams, given_params, parse_params
from ..pixels.points import check_places
from ..reader import AsyncReader
from ..sources import Inspector, OpenSet, open_reader_source
from ..sources.subset import resolve_subset, split_counts
from ..text import counts_in_words, sides, some
from .contact_sheet import Tile, draw_sheet, undrawn
from .label_stats import class_of, in_words, records_of, row_of
from .thumbnails import (
    Looker,
    Scale,
    as_mask,
    beside,
    fit,
    marked,
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

#: Pixels between the pictures of one sample.
GAP: Final = 4


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
    if p.mix is not None:
        raise ParamsError(
            "stored samples are shown of one set",
            found="mix",
            hint="--batch shows what training gets of a mix",
        )
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
                mask, places = _mask_of(source, p, record), _places_of(source, p, record)
            except SampleError as exc:
                bad.append((record, str(exc)))
                tiles.append(Tile(None, words, note, exc.what))
                continue
            shapes.append((look.height, look.width, look.pixels.shape[2]))
            if source.spec.shape is None:
                note = f"{note}   {look.height} x {look.width}".strip()
            masks |= _values(mask)
            picture = _picture(look.pixels, scale, mask)
            if places:
                picture = marked(picture, (look.height, look.width), places)
            tiles.append(Tile(picture, words, note))
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
    soft = p.postprocess is None and bool(p.mixup or p.cutmix or p.label_smoothing or p.num_classes)
    if p.mixup is not None or p.cutmix is not None:
        rows = max(2, rows - rows % 2)
    first = {"batch_size": rows, "world_size": 1, **given_params(params, {})}
    with AsyncReader(first) as reader:
        reader.fetchData()
        batch = reader.getNextBatch()
        data = batch.data if isinstance(batch.data, tuple) else (batch.data,)
        fields = [np.asarray(field) for field in data]
        what = " and ".join(f"{'x'.join(map(str, part.shape))} {part.dtype}" for part in fields)
        if p.views is not None and p.postprocess is None:
            fields = list(_views_joined(fields, reader.params))
        own = p.postprocess is not None or stored.dtype != np.uint8
        shown = _shown(fields, reader.params, title, own)
        tiles = [
            _batch_tile(batch, row, shown.picture(row), names, soft) for row in range(len(batch))
        ]
        bad = reader.stats().bad_list
        masks: set[int] = set().union(*map(_values, shown.masks))
        notes = _notes(shown.scales[0], shown.pixels[0].shape[3], masks)
    settings = _settings(reader.params)
    subtitle = f"{facts}; the first batch that training gets: {what}"
    notes.insert(0, settings)
    records = batch.indices.tolist()
    named = batch.labels is not None
    return _done(tiles, records, named, bad, columns, title, subtitle, notes, len(shown.pixels))


def undone(pixels: Array, p: ReaderParams) -> Array:
    """Batch pixels (B, H, W, C) with ``(x * scale - mean) / std`` taken back, as float64.

    As they are where there is none, or where a postprocess left other channels.
    """
    channels = pixels.shape[3]
    wanted = p.wanted.for_field((p.field_names or (str(p.data_field),))[0])
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


def _picture(pixels: Array, scale: Scale, mask: Array | None) -> UInt8:
    picture = fit(to_rgb(pixels, scale), SIDE)
    return picture if mask is None else tinted(picture, mask)


def _mask_of(source: OpenSet, p: ReaderParams, record: int) -> Array | None:
    """A sample's first field that is a mask, where several fields were named."""
    parts = zip(source.names[1:], source.parts[1:], strict=True)
    found = (stored_mask(part, record) for name, part in parts if name not in p.places)
    return next((mask for mask in found if mask is not None), None)


def _places_of(source: OpenSet, p: ReaderParams, record: int) -> dict[str, Array]:
    """A sample's boxes and keypoints, by what they are."""
    found = {}
    for what, name in (("boxes", p.boxes_field), ("keypoints", p.keypoints_field)):
        if name is not None:
            part = source.part(name)
            check_places(part.spec, what, source.facts.path)
            found[what] = Inspector(part).pixels(record)
    return found


def _values(mask: Array | None) -> set[int]:
    return set() if mask is None else set(map(int, np.unique(mask).tolist()))


@dataclass(frozen=True)
class _Shown:
    """What is drawn of a batch: ``pixels`` (B, H, W, C) of each picture of a row, with their
    ``scales``; ``masks`` over the first; ``places`` in it: boxes and keypoints."""

    pixels: Sequence[Array]
    scales: Sequence[Scale]
    masks: Sequence[Array | None]
    places: Mapping[str, Array]

    def picture(self, row: int) -> UInt8:
        """The pictures of a row, side by side."""
        masks = [self.masks[row], *[None] * len(self.pixels)]
        every = zip(self.pixels, self.scales, masks, strict=False)
        found = [_picture(pixels[row], scale, mask) for pixels, scale, mask in every]
        if self.places:
            places = {what: values[row] for what, values in self.places.items()}
            found[0] = marked(found[0], self.pixels[0].shape[1:3], places)
        return found[0] if len(found) == 1 else beside(found, SIDE, GAP)


def _shown(fields: Sequence[Array], p: ReaderParams, path: str, own: bool) -> _Shown:
    """What is drawn of the fields of a batch. ``own``: the scale of the first is that of its
    values. FormatError where that is no pictures."""
    names = p.field_names or ()
    if len(names) != len(fields):  # a postprocess made others
        names = ("",) * len(fields)
    named = dict(zip(names, fields, strict=True))
    wanted = {"boxes": (p.boxes_field, (4,)), "keypoints": (p.keypoints_field, (2, 3))}
    places = {
        what: named[name]
        for what, (name, lengths) in wanted.items()
        if name in named and named[name].ndim > 1 and named[name].shape[-1] in lengths
    }
    masks: list[Array | None] = [None] * len(fields[0])
    pixels, scales = list[Array](), list[Scale]()
    for number, (name, field) in enumerate(zip(names, fields, strict=True)):
        if name in p.places or (number and field.ndim < 3):
            continue
        one_mask = _masks_in(field, p.layout) if number else None
        if one_mask is not None:
            if masks[0] is None:
                masks = list(one_mask)
                continue
            found = [one_mask[..., None]]
        elif field.ndim == 5:  # several pictures of each sample
            found = [_hwc(field[:, k], p.layout, path) for k in range(field.shape[1])]
        elif number and field.ndim != 4:
            continue
        else:
            found = [_hwc(field, p.layout, path)]
        for one in found:
            first = number == 0 or field.ndim == 5
            pixels.append(undone(one, p) if first else one)
            scales.append(Scale() if first and not own else scale_of(pixels[-1]))
    return _Shown(pixels, scales, masks, places)


def _masks_in(field: Array, layout: str) -> Array | None:
    """A field as masks (B, H, W), None where it holds none."""
    if field.ndim == 4:
        field = field[:, 0] if layout == "NCHW" and field.shape[1] == 1 else field
        field = field[..., 0] if layout == "NHWC" and field.shape[-1] == 1 else field
    return field if field.ndim == 3 and as_mask(field[0]) is not None else None


def _views_joined(fields: Sequence[Array], p: ReaderParams) -> Iterator[Array]:
    """The fields of a batch with the views of each sample, of all sizes, side by side, (B, ...)."""
    sizes, count, at = len(p.arrays), fields[0].shape[1], 0
    while at < len(fields):
        several = fields[at].ndim >= 4 and fields[at].shape[1] == count
        yield _side_by_side(fields[at : at + sizes], p.layout) if several else fields[at]
        at += sizes if several else 1


def _side_by_side(arrays: Sequence[Array], layout: str) -> Array:
    views = [view for array in arrays for view in np.moveaxis(np.asarray(array), 1, 0)]
    wide = -2 if layout == "NHWC" and views[0].ndim == 4 else -1
    high = max(view.shape[wide - 1] for view in views)
    for k, view in enumerate(views):
        below = [(0, 0)] * view.ndim
        below[wide - 1] = (0, high - view.shape[wide - 1])
        views[k] = np.pad(view, below)
    return np.concatenate(views, axis=wide)


# -- words ---------------------------------------------------------------------------------------


def _label_words(
    row: Array | None, names: Sequence[str] | None, soft: bool = False
) -> tuple[str, str]:
    """A label as the two lines under a picture begin: its class or number, and its number.

    ``soft``: a label is a row of probabilities, of which the two largest are told."""
    if row is None:
        return "", ""
    if soft and row.ndim == 1:
        likely = [n for n in np.argsort(-row, kind="stable")[:2].tolist() if row[n] > row.min()]
        words = (f"{names[n] if names else f'label {n}'} {row[n]:.2f}" for n in likely)
        return ", ".join(words) or "no class", ""
    name = class_of(row, names)
    if name is None:
        return f"label {in_words(row)}", ""
    return name, f"label {in_words(row)}, "


def _captions(source: OpenSet, record: int) -> tuple[str, str]:
    words, note = _label_words(row_of(source.labels, record), source.facts.classes)
    return (words, f"{note}#{record}") if words else (f"#{record}", "")


def _batch_tile(
    batch: Batch, row: int, picture: Array, names: Sequence[str] | None, soft: bool
) -> Tile:
    labels = None if batch.labels is None else np.asarray(batch.labels[row])
    words, note = _label_words(labels, names, soft)
    record = int(batch.indices[row])
    number = "padded" if record < 0 else f"#{record}" + ("" if batch.mask[row] else ", zeroed")
    if batch.source is not None and record >= 0:
        number += f", set {batch.source[row]}"
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
        words += f", {some(len(facts.classes), 'class')}"
    elif source.labels is None:
        words += ", no labels"
    return f"{words}; {counts_in_words(split_counts(source))}" if source.splits else words


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
    drawn = (p.weights, p.augment, p.transform, p.mixup, p.cutmix)
    at_random = bool(p.shuffle) or any(n is not None for n in drawn)
    at_random = at_random or any(one.flip or "random" in one.crop for one in p.arrays)
    matter = {
        "seed": at_random,
        "shuffle": p.weights is None,
        "weights": p.weights is not None,
        "size": p.size is not None,
        "crop": p.size is not None,
        "crop_padding": p.crop_padding > 0,
        "flip": p.flip,
        **{name: getattr(p, name) is not None for name in ("dtype", "scale", "mean", "std")},
        "subset": p.subset is not None,
        **{name: getattr(p, name) is not None for name in ("boxes_field", "keypoints_field")},
    }
    matter |= {name: getattr(p, name) is not None for name in ("mixup", "cutmix")}
    matter["label_smoothing"] = p.label_smoothing > 0
    words = [f"{name}={_value(getattr(p, name))}" for name, matters in matter.items() if matters]
    if p.views is not None:
        words.append(f"views={' + '.join(str(one.views) for one in p.wanted.arrays)}")
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
    pictures: int = 1,
) -> Preview:
    columns = columns or max(1, _fitting(len(tiles)) // pictures)
    lacking = undrawn([title, *(tile.name for tile in tiles)])
    notes = [*notes, lacking] if lacking else notes
    sheet = draw_sheet(
        tiles,
        side=SIDE,
        columns=columns,
        title=title,
        subtitle=subtitle,
        notes=notes,
        wide=pictures * (SIDE + GAP) - GAP,
    )
    words = tuple(tile.name if named else None for tile in tiles)
    return Preview(sheet, tuple(records), words, tuple(bad), tuple(notes))


def _fitting(tiles: int) -> int:
    """Columns that make a sheet of about 3 : 2 and leave the fewest squares of it empty."""
    ideal = (tiles * 1.8) ** 0.5
    near = range(max(1, round(ideal * 0.75)), max(1, round(ideal * 1.25)) + 1)
    return min(near, key=lambda columns: (-tiles % columns, abs(columns - ideal)))
