"""Contact sheets of stored samples, and of the first batch that training gets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..batch import Batch
from ..dataset import Dataset, look_into
from ..errors import ParamsError, SampleError
from ..params.parse import given_params, parse_params
from ..params.reader import ReaderParams
from ..reader import AsyncReader
from ..sampling.episodes import Windows
from ..sampling.patches import Patches
from ..sources import OpenSet
from ..sources.request import NAME_AXES
from ..system.array_types import Array, Int64, UInt8
from ..system.text import sides, times
from . import look, sheet
from .describe import in_words, records_of, row_of


def preview(
    params: Mapping[str, Any],
    *,
    count: int = 24,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    classes: Sequence[str] = (),
    columns: int | None = None,
) -> sheet.Preview:
    """A sheet of stored samples: those of ``indices``, or ``count`` drawn at random by ``seed``.

    ``params``: as for AsyncReader, of which path, fields, axes and ``subset`` count. ``classes``:
    names or label numbers to draw from. Samples drawn come in the order of the set. A bad sample
    becomes a square that says so. Samples that are no single images are drawn with all of their
    fields below each other; ``indices`` are then numbers of samples. Raises ParamsError,
    SourceNotFoundError, or FormatError where there is nothing to draw.
    """
    p = parse_params(params, {})
    if p.mix.ratios is not None:
        raise ParamsError(
            "stored samples are shown of one dataset",
            found="mix",
            hint="--batch shows what training gets of a mix",
        )
    with look_into(params) as ds:
        source = ds.source
        arrays = look.drawn_as_arrays(source)
        looker: look.Looker
        looker = (
            look.ArrayLooker(source, ds.params) if arrays else look.ImageLooker(source, ds.params)
        )
        if indices is not None:
            numbers, how = _given(indices, looker.total, source.facts.path), "chosen"
        else:
            numbers = _drawn(ds, looker, count, seed, classes)
            every = not arrays and len(numbers) == looker.total
            how = "all of them" if every else f"drawn at random (seed {seed})"
        rows = looker.rows(numbers)
        looker.settle(numbers)
        tiles, bad, masks = list[sheet.Tile](), list[tuple[int, str]](), set[int]()
        shape: tuple[int, ...] = ()
        records = source.rule.shown(rows).tolist()
        for number, row, record in zip(numbers.tolist(), rows.tolist(), records, strict=True):
            words, note = _captions(source, row)
            try:  # one after the other: of large images only the small one stays
                seen = looker.look(number, 2 * sheet.SIDE)
            except SampleError as exc:
                bad.append((record, str(exc)))
                tiles.append(sheet.Tile(None, words, note, exc.what, record))
                continue
            shape = shape or (seen.height, seen.width)
            masks |= sheet.values_of(seen.mask)
            picture = seen.picture if arrays else seen.fitted(sheet.SIDE)
            second = (", " if arrays else "   ").join(filter(None, (note, seen.words)))
            tiles.append(sheet.Tile(picture, words, second, record=record))
        notes = _notes(looker, shape, masks)
        if ds.params.data_field != p.data_field and not isinstance(source.rule, Windows):
            notes.append("no layout says which fields are samples: asyncreader info lists all")
        about = f"{sheet.facts_of(source, looker.total)}; {len(tiles):,} shown, {how}"
        return sheet.put_together(
            source, tiles, about, notes, bad, columns, None if arrays else sheet.SIDE
        )


def _notes(looker: look.Looker, shape: tuple[int, ...], masks: set[int]) -> list[str]:
    """What the foot of the sheet says: of images, whose (height, width) may be ``shape``, or of
    arrays with what each field is in the file."""
    source, spec = looker.source, looker.source.spec
    if not looker.drawn:
        size = (
            [f"all {sides(*shape)}" if spec.shape else "sizes are height x width"] if shape else []
        )
        channels = 1 if spec.axes is None else spec.image_shape()[2]
        return size + sheet.notes_of(looker.notes, channels, masks)
    notes = list(looker.notes)
    for name, part in zip(source.names, source.parts, strict=True):
        wide = "of many shapes" if part.spec.shape is None else times(part.spec.shape)
        kind = "structured" if part.spec.dtype.names else part.spec.dtype
        notes.append(f"{name}: {wide}, {kind}, in the file")
    if not source.rule.apart and len(spec.shape or ()) == 3 and not spec.ragged:
        notes.append(f"if these are images, {NAME_AXES}")
    return notes


def _given(indices: Sequence[int], total: int, path: str) -> Int64:
    """The numbers that are asked for; ParamsError unless these are numbers of a set's samples, and
    not too many for a sheet."""
    wrong = [index for index in indices if not 0 <= index < total]
    if wrong or not 0 < len(indices) <= sheet.MOST:
        raise ParamsError(
            "no such samples" if wrong else "not a number of samples for a sheet",
            path=path,
            found=wrong[0] if wrong else len(indices),
            expected=f"0 to {total - 1}" if wrong else f"1 to {sheet.MOST}",
        )
    return np.array(indices, np.int64)


def _drawn(
    ds: Dataset[Any], looker: look.Looker, count: int, seed: int, classes: Sequence[str]
) -> Int64:
    """``count`` numbers of samples of ``classes`` (names or numbers; none: of all), drawn at random
    by ``seed``, in order. ParamsError where there is none."""
    source = ds.source
    pool: Int64 | range = range(looker.total)
    if not looker.drawn and ds.params.subset is not None:  # numbers of rows, not of samples
        pool = np.unique(ds.records(np.arange(len(ds), dtype=np.int64)))
    if classes:
        labels = None if source.table is None else np.asarray(source.table)
        of_class = records_of(classes, labels, source.facts.classes)
        every = np.asarray(pool, np.int64)
        pool = every[np.isin(source.rule.shown(looker.rows(every)), of_class)]
    if not len(pool):
        found = f"class {', '.join(classes)}"
        raise ParamsError("no sample to show", path=source.facts.path, found=found)
    random = np.random.default_rng(seed)
    at = random.choice(len(pool), min(count, len(pool)), replace=False)
    return np.array(sorted(int(pool[i]) for i in at.tolist()), np.int64)


def _captions(source: OpenSet, row: int) -> tuple[str, str]:
    """The two lines under a sample."""
    number = f"#{row}"
    rule = source.rule
    if isinstance(rule, Windows):
        episodes = rule.episodes
        (which,) = episodes.of(np.array([row], np.int64)).tolist()
        name = episodes.names[which] if episodes.names else f"episode {which}"
        number = f"{name}, row {row - int(episodes.starts[which])}"
    if isinstance(rule, Patches):
        (volume,), (corner,) = rule.volumes.of(np.array([row], np.int64))
        number = f"volume {volume} at {', '.join(map(str, corner.tolist()))}"
    words, note = sheet.label_words(row_of(source.labels, row), source.facts.classes)
    return (words, f"{note}{number}") if words else (number, "")


# -- a batch ---------------------------------------------------------------------------------------


def preview_batch(
    params: Mapping[str, Any], *, count: int = 24, columns: int | None = None
) -> sheet.Preview:
    """A sheet of the first batch that a reader with these parameters hands out.

    Cropped, flipped and postprocessed as in training; what ``scale``, ``mean`` and ``std`` did is
    undone. Samples that are no single pictures are drawn with all of their fields, as the numbers
    that training gets. ``batch_size`` is ``count`` unless given, at most as many as the set has.
    Raises what AsyncReader raises, and FormatError where a postprocess made no pictures.
    """
    p = parse_params(params, {})
    if p.batch_size > sheet.MOST:
        raise ParamsError("too many for a sheet", found=f"batch_size {p.batch_size}")
    with look_into(params) as ds:
        source = ds.source
        arrays = p.mix.ratios is None and p.postprocess is None and look.drawn_as_arrays(source)
        with AsyncReader({**_of_a_sheet(ds, p, count), **given_params(params, {})}) as reader:
            reader.fetchData()
            batch = reader.getNextBatch()
            data = batch.data if isinstance(batch.data, tuple) else (batch.data,)
            fields = [np.asarray(field) for field in data]
            pictures, notes, wide = (
                _as_drawings(ds, fields) if arrays else _as_images(source, fields, reader.params)
            )
            soft = not arrays and p.postprocess is None
            soft = soft and bool(p.mixup or p.cutmix or p.label_smoothing or p.num_classes)
            tiles = [
                _batch_tile(batch, row, picture, source.facts.classes, soft)
                for row, picture in enumerate(pictures)
            ]
            bad, settings = reader.stats().bad_list, _settings(reader.params)
        what = " and ".join(f"{'x'.join(map(str, part.shape))} {part.dtype}" for part in fields)
        about = f"{sheet.facts_of(source, len(ds))}; the first batch that training gets: {what}"
        return sheet.put_together(source, tiles, about, [settings, *notes], bad, columns, wide)


def _of_a_sheet(ds: Dataset, p: ReaderParams, count: int) -> dict[str, object]:
    """Parameters of the reader unless they are given: a batch of ``count`` at most."""
    first: dict[str, object] = {"last_batch": "wrap", "world_size": 1}
    rows = min(count, len(ds))
    if ds.source.rule.renumbered and p.patch.at == "random":  # as many as are asked for
        total = p.epoch_samples or count
        rows, first["epoch_samples"] = min(count, total), total
    elif p.mixup is not None or p.cutmix is not None:
        rows = max(2, rows - rows % 2)
    return {"batch_size": rows, **first}


def _as_drawings(ds: Dataset, fields: Sequence[Array]) -> tuple[list[UInt8], list[str], None]:
    """Each sample with all of its fields below each other, and notes."""
    source = ds.source
    drawings = look.drawings_of(source, source.lengths(ds.params.wanted))
    for drawn, part, field in zip(drawings, source.parts, fields, strict=True):
        images = part.spec.axes is not None and not part.spec.as_stored
        turned = images and ds.params.layout == "NCHW" and field.ndim > 3
        for row in np.moveaxis(field, -3, -1) if turned else field:
            drawn.add(row)
    pictures, notes = look.draw_samples(drawings)
    if not pictures:
        raise look.not_pictures(sheet.title_of(source), source.spec.shape or ())
    return pictures, notes, None


def _as_images(
    source: OpenSet, fields: Sequence[Array], p: ReaderParams
) -> tuple[list[UInt8], list[str], int]:
    """The images of each sample side by side, notes, and how wide a place on the sheet is."""
    own = p.postprocess is not None or source.spec.dtype != np.uint8
    if p.views is not None and p.postprocess is None:
        fields = list(_views_joined(fields, p))
    names = p.field_names or ()
    if len(names) != len(fields):  # a postprocess made others
        names = ("",) * len(fields)
    places, images, scales = dict[str, Array](), list[Array](), list[look.Scale]()
    masks: Array | None = None
    for number, (name, field) in enumerate(zip(names, fields, strict=True)):
        if name in p.places:
            what, lengths = ("boxes", (4,)) if name == p.boxes_field else ("keypoints", (2, 3))
            if field.ndim > 1 and field.shape[-1] in lengths:
                places[what] = field
            continue
        whole = _masks_in(field, p.layout) if number else None
        if whole is not None and masks is None:
            masks = whole
            continue
        if whole is not None:
            several = [whole[..., None]]
        elif field.ndim == 5:  # several images of each sample
            several = [_hwc(field[:, k], p.layout, source) for k in range(field.shape[1])]
        else:
            several = [_hwc(field, p.layout, source)] if number == 0 or field.ndim == 4 else []
        first = number == 0 or field.ndim == 5
        for pixels in several:
            images.append(undone(pixels, p) if first else pixels)
            scales.append(look.Scale() if first and not own else look.scale_of(images[-1]))
    pictures = []
    for row in range(len(fields[0])):
        shown = [
            look.fit(look.to_rgb(pixels[row], scale), sheet.SIDE)
            for pixels, scale in zip(images, scales, strict=True)
        ]
        if masks is not None:
            shown[0] = look.tinted(shown[0], masks[row])
        if places:
            here = {what: values[row] for what, values in places.items()}
            shown[0] = look.marked(shown[0], images[0].shape[1:3], here)
        pictures.append(
            shown[0] if len(shown) == 1 else look.beside(shown, sheet.SIDE, sheet.GAP, 255)
        )
    notes = sheet.notes_of(scales[0].notes, images[0].shape[3], sheet.values_of(masks))
    return pictures, notes, len(images) * (sheet.SIDE + sheet.GAP) - sheet.GAP


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


def _masks_in(field: Array, layout: str) -> Array | None:
    """A field as masks (B, H, W), None where it holds none."""
    if field.ndim == 4:
        field = field[:, 0] if layout == "NCHW" and field.shape[1] == 1 else field
        field = field[..., 0] if layout == "NHWC" and field.shape[-1] == 1 else field
    return field if field.ndim == 3 and look.as_mask(field[0]) is not None else None


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


def _batch_tile(
    batch: Batch[Any, Any], row: int, picture: Array, names: Sequence[str] | None, soft: bool
) -> sheet.Tile:
    given = batch.labels
    first = given[0] if isinstance(given, tuple) else given
    words, note = sheet.label_words(None if first is None else np.asarray(first[row]), names, soft)
    if isinstance(given, tuple):
        words += "".join(f", {in_words(np.asarray(one[row]))}" for one in given[1:])
    record = int(batch.indices[row])
    number = "padded" if record < 0 else f"#{record}" + ("" if batch.mask[row] else ", zeroed")
    if batch.place is not None and record >= 0:
        number += f" at {', '.join(map(str, batch.place[row].tolist()))}"
    if batch.source is not None and record >= 0:
        number += f", set {batch.source[row]}"
    return sheet.Tile(picture, words or number, f"{note}{number}" if words else "", record=record)


def _hwc(data: Array, layout: str, source: OpenSet) -> Array:
    """A batch as (B, H, W, C); FormatError where it is no pictures, after a postprocess, say."""
    if data.ndim == 3:
        return data[:, :, :, None]
    if data.ndim != 4:
        raise look.not_pictures(sheet.title_of(source), data.shape[1:])
    # a postprocess may have turned the axes: pictures have few channels
    first = layout == "NCHW"
    if data.shape[1 if first else 3] > 4 >= data.shape[3 if first else 1]:
        first = not first
    return data.transpose(0, 2, 3, 1) if first else data


#: Parameters that are told of a batch, where they are set.
_SETTINGS: Final = (
    *("seed", "shuffle", "weights", "size", "crop", "crop_padding", "flip", "dtype", "scale"),
    *("mean", "std", "subset", "boxes_field", "keypoints_field", "mixup", "cutmix"),
    "label_smoothing",
)


def _settings(p: ReaderParams) -> str:
    """The parameters that make a batch look as it does, in the words of the parameters."""
    drawn = (p.weights, p.augment, p.transform, p.mixup, p.cutmix)
    at_random = bool(p.shuffle) or any(n is not None for n in drawn)
    flat = p.flat()
    matter = {
        "seed": at_random or any(one.flip or one.crop.at_random for one in p.arrays),
        "shuffle": p.weights is None,
        "crop": p.size is not None,
        "crop_padding": p.crop.padding > 0,
        "flip": p.flip,
        "label_smoothing": p.label_smoothing > 0,
    }
    words = [
        f"{name}={_value(flat[name])}"
        for name in _SETTINGS
        if matter.get(name, flat[name] is not None)
    ]
    if p.views is not None:
        words.append(f"views={' + '.join(str(one.views) for one in p.wanted.arrays)}")
    if p.augment:
        words.append(f"augment={', '.join(step.name for step in p.augment)}")
    for name in ("transform", "postprocess"):
        if (function := flat[name]) is not None:
            words.append(f"{name}={getattr(function, '__qualname__', type(function).__name__)}")
    return ", ".join(words)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(f'{part:g}' for part in value)})"
    return f"{value:.6g}" if isinstance(value, float) else re.sub(r"\s+", " ", str(value))
