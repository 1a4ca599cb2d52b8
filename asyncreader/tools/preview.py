"""A contact sheet of a set: which samples are on it, and what it says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dataset import Dataset, look_into
from ..errors import ParamsError, SampleError
from ..params import parse_params
from ..sampling.episodes import Windows
from ..sampling.patches import Patches
from ..sources import OpenSet
from ..sources.request import NAME_AXES
from ..system.array_types import Int64
from ..system.text import sides, times
from .contact_sheet import Tile
from .label_stats import records_of, row_of
from .look import ArrayLooker, ImageLooker, Looker, drawn_as_arrays
from .sheet import (
    SIDE,
    Choice,
    Preview,
    facts_of,
    label_words,
    notes_of,
    put_together,
    title_of,
    values_of,
)


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
    choice = Choice(count, seed, indices, classes)
    with look_into(params) as ds:
        source = ds.source
        arrays = drawn_as_arrays(source)
        looker: Looker = (ArrayLooker if arrays else ImageLooker)(source, ds.params)
        numbers = _chosen(ds, looker, choice)
        rows = looker.rows(numbers)
        looker.settle(numbers)
        tiles, bad, masks = list[Tile](), list[tuple[int, str]](), set[int]()
        shape: tuple[int, ...] = ()
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
            words, note = _captions(source, row)
            try:  # one after the other: of large images only the small one stays
                seen = looker.look(number, 2 * SIDE)
            except SampleError as exc:
                bad.append((int(source.rule.shown(np.array([row]))[0]), str(exc)))
                tiles.append(Tile(None, words, note, exc.what))
                continue
            shape = shape or (seen.height, seen.width)
            masks |= values_of(seen.mask)
            picture = seen.picture if arrays else seen.fitted(SIDE)
            beside = (", " if arrays else "   ").join(filter(None, (note, seen.words)))
            tiles.append(Tile(picture, words, beside))
        notes = _notes_of_images(looker, shape, masks)
        if arrays:
            notes = _notes_of_arrays(source, looker)
        if ds.params.data_field != p.data_field and not isinstance(source.rule, Windows):
            notes.append("no layout says which fields are samples: asyncreader info lists all")
        every = not arrays and indices is None and len(numbers) == looker.total
        how = "all of them" if every else choice.how
        return put_together(
            tiles,
            source.rule.shown(rows).tolist(),
            source.labels is not None,
            bad,
            columns,
            title_of(source),
            f"{facts_of(source, looker.total)}; {len(tiles):,} shown, {how}",
            notes,
            drawn=arrays,
        )


def _notes_of_images(looker: Looker, shape: tuple[int, ...], masks: set[int]) -> list[str]:
    """What the foot of the sheet says. ``shape``: (height, width) of an image that is shown."""
    spec = looker.source.spec
    first = []
    if shape:
        first.append("sizes are height x width" if spec.shape is None else f"all {sides(*shape)}")
    channels = 1 if spec.axes is None else spec.image_shape()[2]
    return first + notes_of(looker.notes, channels, masks)


def _notes_of_arrays(source: OpenSet, looker: Looker) -> list[str]:
    """What the foot of the sheet says, with what each field is in the file."""
    notes = list(looker.notes)
    for name, part in zip(source.names, source.parts, strict=True):
        shape = "of many shapes" if part.spec.shape is None else times(part.spec.shape)
        kind = "structured" if part.spec.dtype.names else part.spec.dtype
        notes.append(f"{name}: {shape}, {kind}, in the file")
    spec = source.spec
    if not source.rule.apart and len(spec.shape or ()) == 3 and not spec.ragged:
        notes.append(f"if these are images, {NAME_AXES}")
    return notes


def _chosen(ds: Dataset[Any], looker: Looker, choice: Choice) -> Int64:
    """The numbers of the samples on the sheet, in order where they are drawn at random."""
    source, path = ds.source, ds.source.facts.path
    given = choice.given(looker.total, path)
    if given is not None:
        return np.array(given, np.int64)
    pool: Int64 | range = range(looker.total)
    if not looker.drawn and ds.params.subset is not None:  # numbers of rows, not of samples
        pool = np.unique(ds.records(np.arange(len(ds), dtype=np.int64)))
    if choice.classes:
        labels = None if source.table is None else np.asarray(source.table)
        of_class = records_of(choice.classes, labels, source.facts.classes)
        every = np.asarray(pool, np.int64)
        pool = every[np.isin(source.rule.shown(looker.rows(every)), of_class)]
    return np.array(choice.drawn(pool, path), np.int64)


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
    words, note = label_words(row_of(source.labels, row), source.facts.classes)
    return (words, f"{note}{number}") if words else (number, "")
