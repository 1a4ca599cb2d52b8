"""endless(): a plain Python generator of batches, for training loops of the ``fit`` style."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

from ..params import Given, ReaderKeywords
from ..reader import AsyncReader


def endless(
    params: Given | None = None,
    /,
    *,
    zero_copy: bool = False,
    **overrides: Unpack[ReaderKeywords],
) -> Iterator[tuple[Any, Any]]:
    """``(data, labels)`` numpy arrays, epoch after epoch (with ``epochs=N``: N of them).

    The reader is opened at once, and raises what AsyncReader raises; it is closed when the
    generator is. Arrays are private copies, since such loops look ahead; with ``zero_copy=True``
    they are the reader's own memory, valid until the next step.
    """
    if not zero_copy:
        overrides["copy"] = True
    return _endless(AsyncReader(params, **overrides))


def _endless(reader: AsyncReader) -> Iterator[tuple[Any, Any]]:
    with reader:
        more = True
        while more:
            more = False
            for batch in reader:
                more = True
                yield batch.data, batch.labels
