"""endless(): a plain Python generator of batches, for training loops of the ``fit`` style."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, Unpack

from ..batch import Array
from ..params.keywords import ReaderKeywords
from ..params.parse import apart_from
from ..params.reader import Given
from ..reader import AsyncReader, next_batch
from .base import can_be_invalid, marked

#: ``(data, labels)``; data of several fields is a tuple.
Step: TypeAlias = tuple[Array | tuple[Array, ...], Array | None]


def endless(
    params: Given | None = None, /, *, zero_copy: bool = False, **overrides: Unpack[ReaderKeywords]
) -> Iterator[Step]:
    """``(data, labels)`` numpy arrays, epoch after epoch (with ``epochs=N``: N of them).

    The reader is opened at once, and raises what AsyncReader raises; it is closed when the
    generator is. Arrays are private copies, since such loops look ahead; with ``zero_copy=True``
    they are the reader's own memory, valid until the next step. If rows can be padded or zeroed
    (``last_batch="pad"``, ``on_error="zero"``), integer labels of such rows are -100, and unsigned
    labels come as int64; other labels are 0 there.
    """
    given, flags = apart_from(params, overrides, zero_copy=zero_copy)
    if not flags["zero_copy"]:
        given["copy"] = True
    return _endless(AsyncReader(given))


def _endless(reader: AsyncReader[Array | tuple[Array, ...], Array | None]) -> Iterator[Step]:
    with reader:
        invalid = can_be_invalid(reader.params)
        while (batch := next_batch(reader)) is not None:
            labels = batch.labels
            if labels is not None and invalid:
                labels = marked(labels, batch.mask)
            yield batch.data, labels
