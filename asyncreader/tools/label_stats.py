"""What the labels of a set say: samples by class, a label in words, and the records of a class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import ParamsError
from ..system.array_types import Array, Int64
from ..system.text import slip

#: Widest span of whole-number labels that are counted one by one rather than as a range.
LABEL_SPAN: Final = 65_536

#: Labels that are looked at together.
_PIECE: Final = 1 << 20

#: Values of a sample's label that are written out.
_VALUES_SHOWN: Final = 6


class LabelCount(NamedTuple):
    """How many samples carry a label; ``name``: of its class, None where it has none."""

    label: int
    name: str | None
    samples: int


def single(labels: Array | None) -> Int64 | None:
    """Labels as int64 (N,) where each sample has one whole number that fits, else None."""
    if labels is None or labels.dtype.kind not in "bui" or math.prod(labels.shape[1:]) != 1:
        return None
    column = np.asarray(labels).reshape(-1)  # those of shards are read here
    if column.dtype == np.uint64 and column.size and int(column.max()) >= 1 << 63:
        return None
    return column.astype(np.int64, copy=False)


def count_labels(labels: Array | None, names: Sequence[str] | None) -> list[LabelCount] | None:
    """Samples by label, in the order of the labels, named classes without samples included.

    None where a sample has no label, several, or a real number, or where labels differ too much
    to be classes.
    """
    column = single(labels)
    if column is None:
        return None
    known = names or ()
    low, high = int(column.min()), int(column.max())
    first = min(0, low) if known else low
    if high - first >= LABEL_SPAN + len(known) or high >= 1 << 62:
        return None
    found = np.bincount(column - first, minlength=len(known) - first if known else 0)
    return [
        LabelCount(label, known[label] if 0 <= label < len(known) else None, samples)
        for label, samples in enumerate(found.tolist(), first)
        if samples or 0 <= label < len(known)
    ]


def class_of(row: Array, names: Sequence[str] | None) -> str | None:
    """The name of a sample's class; ``row``: its labels, of any shape."""
    if not names or row.size != 1 or row.dtype.kind not in "bui":
        return None
    label = int(row.reshape(-1)[0])
    return names[label] if 0 <= label < len(names) else None


def in_words(row: Array) -> str:
    """ "3", or "0.5, 1, 7" where a sample has several, the first six of them; of several labels
    each with its name."""
    if row.dtype.names is not None:
        return ", ".join(f"{name} {in_words(np.asarray(row[name]))}" for name in row.dtype.names)
    values = row.reshape(-1)[:_VALUES_SHOWN].tolist()
    words = [f"{value:.4g}" if isinstance(value, float) else str(+value) for value in values]
    return ", ".join(words) + (", ..." if row.size > _VALUES_SHOWN else "")


def row_of(labels: Any, record: int) -> Array | None:
    """The labels of one sample, of an array or of shards that are read for it; None without."""
    if labels is None:
        return None
    row: Array = labels[np.array([record], np.int64)][0]
    return np.asarray(row)


def records_of(classes: Sequence[str], labels: Array | None, names: Sequence[str] | None) -> Int64:
    """Record numbers of the samples of some classes, by name or label number, in order.

    ParamsError where the set has no such class, or no labels that are classes.
    """
    column = single(labels)
    if column is None:
        raise ParamsError(
            "no class to choose by",
            found="no labels" if labels is None else f"labels {labels.shape} {labels.dtype}",
            expected="one whole number for each sample",
        )
    wanted = [_label_of(word, column, names or ()) for word in classes]
    return np.flatnonzero(np.isin(column, wanted))


def _label_of(word: str, column: Int64, names: Sequence[str]) -> int:
    if word in names:
        return names.index(word)
    try:
        label = int(word)
    except ValueError:
        near = slip(word, names)
        listed = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise ParamsError(
            f"no class {word!r}",
            expected=listed or "a label number: the dataset has no class names",
            hint=None if near is None else f"did you mean {near!r}?",
        ) from None
    if abs(label) >= 1 << 63 or not (column == label).any():
        raise ParamsError(
            f"no sample has label {word}", expected=f"{column.min()} to {column.max()}"
        )
    return label


def ends(labels: Array) -> tuple[Any, Any]:
    """Least and greatest label; None for one that is not a number JSON knows."""
    # in pieces: those of shards are read from one after the other
    pieces = [labels[at : at + _PIECE] for at in range(0, len(labels), _PIECE)]
    low = +np.min([piece.min() for piece in pieces]).item()  # of bools, whole numbers
    high = +np.max([piece.max() for piece in pieces]).item()
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None
