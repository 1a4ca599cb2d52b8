"""endless(): a plain Python generator of batches, for training loops of the ``fit`` style."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, Unpack

from ..batch import Array
from ..params import Given, ReaderKeywords
from ..reader import AsyncReader

#: ``(data, labels)``; data of several fields is a tuple.
Step: TypeAlias = tuple[Array | tuple[Array, ...], Array | None]


def endless(
    params: Given | None = None,
    /,
    *,
    zero_copy: bool = False,
    **overrides: Unpack[ReaderKeywords],
) -> Iterator[Step]:
    """``(data, labels)`` numpy arrays, epoch after epoch (with ``epochs=N``: N of them).

    The reader is opened at once, and raises what AsyncReader raises; it is closed when the
    generator is. Arrays are private copies, since such loops look ahead; with ``zero_copy=True``
    they are the reader's own memory, valid until the next step.
    """
    if not zero_copy:
        overrides["copy"] = True
    return _endless(AsyncReader(params, **overrides))


def _endless(reader: AsyncReader[Array | tuple[Array, ...], Array | None]) -> Iterator[Step]:
    with reader:
        more = True
        while more:
            more = False
            for batch in reader:
                more = True
                yield batch.data, batch.labels
