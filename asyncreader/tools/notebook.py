"""How notebooks show a set, a reader or a batch: a table, and some pictures of it, as HTML."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..array_types import Array
from ..batch import Batch
from ..dataset import Dataset
from ..errors import AsyncReaderError, SampleError
from ..sources import MixedSet, OpenSet
from ..stats import html_table
from .label_stats import class_of, in_words, row_of
from .pictures import Thumb, thumb_of
from .thumbnails import Looker, scale_for, scale_of, to_rgb

#: Pictures that are shown, and their longest side in pixels.
MOST: Final = 8
SIDE: Final = 96

#: Bytes of stored samples that are read for them.
_MOST_READ: Final = 32 << 20


def set_html(caption: str, facts: Mapping[str, str], ds: Dataset[Any]) -> str:
    """A table of ``facts``, and below it stored pictures of some samples, spread over the set.

    No pictures of a mix, of a set in a store, and of samples that are none. A bad sample is left
    out.
    """
    table, source = html_table(caption, list(facts.items())), ds.source
    if isinstance(source, MixedSet) or source.facts.remote:
        return table
    spread = np.unique(np.linspace(0, len(ds) - 1, MOST).astype(np.int64))
    records = source.records(ds.records(spread)).tolist()
    with contextlib.suppress(AsyncReaderError):  # no pictures
        return table + _figures(list(_stored(source, records)))
    return table


def _stored(source: OpenSet, records: Sequence[int]) -> Iterator[tuple[Thumb, str]]:
    """Stored pictures and their words, as many as are not too large; FormatError of no pictures."""
    looker, read = Looker(source.first), 0
    scale = scale_for(looker, records, SIDE)
    for record in records:
        if read > _MOST_READ:
            return
        with contextlib.suppress(SampleError):
            seen = looker.look(record, 2 * SIDE)
            read += seen.size
            row = row_of(source.labels, record)
            thumb = thumb_of(record, to_rgb(seen.pixels, scale), SIDE)
            yield thumb, _words(record, row, source.facts.classes)


def batch_html(batch: Batch[Any, Any]) -> str:
    """A table of a batch's arrays, and below it its first pictures as they are handed out: values
    that are no bytes are stretched from the least to the greatest."""
    fields = batch.data if isinstance(batch.data, tuple) else (batch.data,)
    arrays = {"data" if len(fields) == 1 else f"data[{i}]": one for i, one in enumerate(fields)}
    if batch.labels is not None:
        arrays["labels"] = batch.labels
    rows = [(name, f"{tuple(one.shape)} {one.dtype}") for name, one in arrays.items()]
    missing = int(len(batch) - batch.mask.sum())
    rows.append(("samples", f"{len(batch):,}" + (f", {missing} padded or zeroed" * bool(missing))))
    table = html_table(f"Batch: epoch {batch.epoch} step {batch.step}", rows)
    pictures = _pictures_in(_on_host(fields[0][:MOST]))
    if pictures is None:
        return table
    scale = scale_of(pictures)
    labels = None if batch.labels is None else _on_host(batch.labels[:MOST])
    shown = []
    for row, picture in enumerate(pictures):
        record = int(batch.indices[row])
        label = None if labels is None else labels[row]
        thumb = thumb_of(record, to_rgb(picture, scale), SIDE)
        shown.append((thumb, _words(record, label, None)))
    notes = "".join(f"<div>{html.escape(note)}</div>" for note in scale.notes)
    return table + _figures(shown) + notes


def _on_host(array: Any) -> Array:
    """A numpy array of one, or of a tensor on a device."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _pictures_in(rows: Array) -> Array | None:
    """Rows of a batch as pictures (B, H, W, C); None where they are none. Of (B, a, b, c) the axis
    with few values is that of the channels, the first of two."""
    if rows.ndim == 3 and min(rows.shape[1:]) > 1:
        return rows[..., None]
    if rows.ndim != 4 or rows.dtype.kind not in "buif":
        return None
    if rows.shape[1] <= 4:
        return rows.transpose(0, 2, 3, 1)
    return rows if rows.shape[3] <= 4 else None


def _words(record: int, label: Array | None, names: Sequence[str] | None) -> str:
    number = "padded" if record < 0 else f"#{record}"
    if label is None:
        return number
    label = np.asarray(label)
    return f"{class_of(label, names) or f'label {in_words(label)}'} {number}"


def _figures(pictures: Sequence[tuple[Thumb, str]]) -> str:
    """Pictures with words below, as many in a row as fit."""
    if not pictures:
        return ""
    cells = []
    for thumb, words in pictures:
        grown = SIDE // max(thumb.width, thumb.height) or 1
        cells.append(
            f'<figure style="margin:0;max-width:{SIDE}px">'
            f'<img src="{thumb.uri}" width="{thumb.width * grown}" height="{thumb.height * grown}" '
            f'alt="{html.escape(words)}" style="image-rendering:pixelated">'
            f'<figcaption style="font-size:smaller">{html.escape(words)}</figcaption></figure>'
        )
    return f'<div style="display:flex;flex-wrap:wrap;gap:6px">{"".join(cells)}</div>'
