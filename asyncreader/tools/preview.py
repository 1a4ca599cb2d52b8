"""A contact sheet of a set: which samples are on it, and what it says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dataset import look_into
from ..errors import ParamsError, SampleError
from ..params import ReaderParams, parse_params
from ..pixels.points import check_places
from ..sources import Inspector, OpenSet
from ..sources.subset import resolve_subset
from ..system.array_types import Array
from ..system.text import sides
from .contact_sheet import Tile
from .label_stats import records_of, row_of
from .preview_arrays import drawn_as_arrays, preview_arrays
from .sheet import (
    SIDE,
    Choice,
    Preview,
    facts_of,
    label_words,
    notes_of,
    picture_of,
    put_together,
    title_of,
    values_of,
)
from .thumbnails import Looker, marked, scale_for, stored_mask


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
    becomes a square that says so. Samples that are no single pictures are drawn with all of their
    fields: see preview_arrays.py; ``indices`` are then numbers of samples. Raises ParamsError,
    SourceNotFoundError or FormatError.
    """
    p = parse_params(params, {})
    if p.mix.ratios is not None:
        raise ParamsError(
            "stored samples are shown of one dataset",
            found="mix",
            hint="--batch shows what training gets of a mix",
        )
    choice = Choice(count, seed, indices, classes)
    with look_into(params) as ds:
        source, p = ds.source, ds.params
        if drawn_as_arrays(source):
            return preview_arrays(source, p, choice, columns)
        looker = Looker(source.first)
        records = _choose(source, p, choice)
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
            masks |= values_of(mask)
            picture = picture_of(look.pixels, scale, mask)
            if places:
                picture = marked(picture, (look.height, look.width), places)
            tiles.append(Tile(picture, words, note))
        every = indices is None and len(records) == source.facts.count
        how = "all of them" if every else choice.how
        subtitle = f"{facts_of(source)}; {len(records):,} shown, {how}"
        notes = notes_of(scale, shapes[0][2] if shapes else 3, masks)
        if shapes:
            alike = source.spec.shape is not None
            notes.insert(0, f"all {sides(*shapes[0][:2])}" if alike else "sizes are height x width")
        named = source.labels is not None
        return put_together(tiles, records, named, bad, columns, title_of(source), subtitle, notes)


# -- which samples -------------------------------------------------------------------------------


def _choose(source: OpenSet, p: ReaderParams, choice: Choice) -> list[int]:
    total, path = source.facts.count, source.facts.path
    given = choice.given(total, path)
    if given is not None:
        return given
    chosen = resolve_subset(p.subset, source)
    pool = range(total) if chosen is None else chosen
    if choice.classes:
        labels = None if source.labels is None else np.asarray(source.labels)
        of_class = records_of(choice.classes, labels, source.facts.classes)
        pool = of_class if chosen is None else np.intersect1d(of_class, np.asarray(pool))
    return choice.drawn(pool, path)


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


def _captions(source: OpenSet, record: int) -> tuple[str, str]:
    words, note = label_words(row_of(source.labels, record), source.facts.classes)
    return (words, f"{note}#{record}") if words else (f"#{record}", "")
