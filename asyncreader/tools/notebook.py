"""How notebooks show a set, a reader or a batch: a table, and some images of it, as HTML."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..batch import Batch
from ..dataset import Dataset
from ..errors import AsyncReaderError, ParamsError, SampleError
from ..sources import MixedSet
from ..stats import html_table
from ..system.array_types import Array, Int64, UInt8
from ..system.text import in_notebook, show
from .describe import row_of
from .look import FieldDrawing, Thumb, draw_samples, looker_of_rows, scale_of, thumb_of, to_rgb
from .sheet import label_words

#: Pictures that are shown, and their longest side in pixels.
MOST: Final = 8
SIDE: Final = 96

#: Bytes of stored samples that are read for them.
_MOST_READ: Final = 32 << 20


def set_html(caption: str, facts: Mapping[str, str], ds: Dataset[Any]) -> str:
    """A table of ``facts``, and below it stored pictures of some samples, spread over the set, or
    drawings of those that are none.

    Nothing of a mix, of a set in a store, and of single numbers. A bad sample is left out.
    """
    table, source = html_table(caption, list(facts.items())), ds.source
    if isinstance(source, MixedSet) or source.facts.remote:
        return table
    spread = np.unique(np.linspace(0, len(ds) - 1, MOST).astype(np.int64))
    with contextlib.suppress(AsyncReaderError):  # single numbers
        return table + _figures(list(_stored(ds, spread)))
    return table


def _stored(ds: Dataset[Any], numbers: Int64) -> Iterator[tuple[Thumb, str]]:
    """Small images of samples and their words, as many as are not too large."""
    looker, read = looker_of_rows(ds), 0
    numbers = numbers if looker.drawn else ds.records(numbers)
    looker.settle(numbers, _MOST_READ)
    labels, classes = ds.source.labels, ds.classes
    for number, row in zip(numbers.tolist(), looker.rows(numbers).tolist(), strict=True):
        if read > _MOST_READ:
            return
        with contextlib.suppress(SampleError):
            seen = looker.look(number, 2 * SIDE)
            read += seen.size
            side = max(seen.picture.shape[:2]) if looker.drawn else SIDE
            words = _words(row, row_of(labels, row), classes)
            yield thumb_of(seen.picture, side), words


def show_batch(batch: Batch[Any, Any], count: int) -> None:
    """Show a batch in a notebook's cell, with its first ``count`` pictures; print its table where
    there is no notebook."""
    if not isinstance(count, int) or count < 0:
        raise ParamsError("count", found=repr(count), expected="a whole number, 0 or more")
    caption, rows = _batch_facts(batch)
    wide = max(len(name) for name, _ in rows)
    text = "\n".join([caption, *(f"  {name:<{wide}}  {words}" for name, words in rows)])
    if in_notebook():
        show({"text/html": batch_html(batch, count), "text/plain": text})
    else:
        print(text)


def _batch_facts(batch: Batch[Any, Any]) -> tuple[str, list[tuple[str, str]]]:
    """A caption, and the arrays of a batch by name with their shapes and dtypes."""
    arrays = {"data": batch.data, "labels": batch.labels}
    rows = []
    for name, given in arrays.items():
        several = isinstance(given, tuple)
        for number, one in enumerate(given if several else [given] * (given is not None)):
            words = f"{tuple(one.shape)} {one.dtype}"
            rows.append((f"{name}[{number}]" if several else name, words))
    missing = int(len(batch) - batch.mask.sum())
    rows.append(("samples", f"{len(batch):,}" + (f", {missing} padded or zeroed" * bool(missing))))
    return f"Batch: epoch {batch.epoch} step {batch.step}", rows


def batch_html(batch: Batch[Any, Any], count: int = MOST) -> str:
    """A table of a batch's arrays, and below it its first ``count`` pictures as they are handed
    out, those of a window side by side: values that are no bytes are stretched from the least to
    the greatest. Other rows are drawn as lines and slices, those of different length as long as
    they are."""
    table = html_table(*_batch_facts(batch))
    fields = batch.data if isinstance(batch.data, tuple) else (batch.data,)
    rows = [_on_host(one[:count]) for one in fields]
    given = batch.lengths if isinstance(batch.lengths, tuple) else (batch.lengths,)
    # those of each field, where a postprocess made no others
    lengths = [None if one is None or one.ndim > 1 else one for one in given]
    lengths = lengths if len(given) == len(rows) else [None] * len(rows)
    even = (one for one, own in zip(rows, lengths, strict=True) if own is None)
    found = (_pictures_in(one) for one in even)
    pictures = next((one for one in found if one is not None and one.size), None)
    if pictures is None:
        drawn, notes = _lines_of(rows, lengths)
    else:
        scale = scale_of(pictures)
        drawn, notes = [to_rgb(one, scale) for one in pictures], scale.notes
    labels = batch.labels[0] if isinstance(batch.labels, tuple) else batch.labels
    labels = [None] * count if labels is None else _on_host(labels[:count])
    shown = []
    for record, image, label in zip(batch.indices.tolist(), drawn, labels, strict=False):
        side = max(image.shape[:2]) if pictures is None else SIDE
        shown.append((thumb_of(image, side), _words(record, label, None)))
    notes = [f"<div>{html.escape(note)}</div>" for note in notes]
    return table + _figures(shown) + "".join(notes)


def _lines_of(
    fields: Sequence[Array], lengths: Sequence[Int64 | None]
) -> tuple[list[UInt8], list[str]]:
    """Drawings of the rows of a batch that are no pictures, each as long as it is, and notes."""
    several, drawings = len(fields) > 1, []
    for number, (rows, own) in enumerate(zip(fields, lengths, strict=True)):
        if rows.dtype.kind in "buif" and rows.ndim > 1:
            name = f"data[{number}]" if several else "data"
            drawings.append(FieldDrawing(name, False, False, own is not None))
            for row, value in enumerate(rows):
                drawings[-1].add(value if own is None else value[: int(own[row])])
    return draw_samples(drawings)


def _on_host(array: Any) -> Array:
    """A numpy array of one, or of a tensor on a device."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _pictures_in(rows: Array) -> Array | None:
    """Rows of a batch as pictures (B, H, W, C); None where they are none. Of (B, a, b, c) the axis
    with few values is that of the channels, the first of two. Of (B, W, a, b, c) the pictures of
    the window are put side by side."""
    if rows.ndim == 5 and min(rows.shape[2], rows.shape[4]) <= 4:
        count, several = rows.shape[:2]
        each = _pictures_in(rows.reshape(count * several, *rows.shape[2:]))
        if each is None:
            return None
        apart = each.reshape(count, several, *each.shape[1:]).swapaxes(1, 2)
        return apart.reshape(count, each.shape[1], -1, each.shape[3])
    if rows.ndim == 3 and min(rows.shape[1:]) > 1:
        return rows[..., None]
    if rows.ndim != 4 or rows.dtype.kind not in "buif":
        return None
    if rows.shape[1] <= 4:
        return rows.transpose(0, 2, 3, 1)
    return rows if rows.shape[3] <= 4 else None


def _words(record: int, label: Array | None, names: Sequence[str] | None) -> str:
    words, _ = label_words(None if label is None else np.asarray(label), names)
    return f"{words} " * bool(words) + ("padded" if record < 0 else f"#{record}")


def _figures(pictures: Sequence[tuple[Thumb, str]]) -> str:
    """Pictures with words below, as many in a row as fit."""
    if not pictures:
        return ""
    cells = []
    for thumb, words in pictures:
        grown = SIDE // max(thumb.width, thumb.height) or 1
        cells.append(
            f'<figure style="margin:0;max-width:{max(SIDE, thumb.width)}px">'
            f'<img src="{thumb.uri}" width="{thumb.width * grown}" height="{thumb.height * grown}" '
            f'alt="{html.escape(words)}" style="image-rendering:pixelated">'
            f'<figcaption style="font-size:smaller">{html.escape(words)}</figcaption></figure>'
        )
    return f'<div style="display:flex;flex-wrap:wrap;gap:6px">{"".join(cells)}</div>'
