"""Which part of which chunk goes where: boxes of a data set in chunks, and the chunks' shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...system.array_types import Int64


class Shares(NamedTuple):
    """What boxes have of chunks, ordered by chunk.

    ``chunks``: those that are touched; ``ends``: where the shares of each begin, and the last one's
    end; ``box``: which one each share is of; ``extents`` (n, rank): its size; ``sources``,
    ``targets``: where it begins in the chunk and in the box, in bytes.
    """

    chunks: Int64
    ends: Int64
    box: Int64
    extents: Int64
    sources: Int64
    targets: Int64

    def of(self, some: Int64) -> tuple[Int64, Int64]:
        """The shares of ``some`` of the chunks, and the number of each one's shares."""
        first, counts = self.ends[some], np.diff(self.ends)[some]
        before = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(first - before, counts), counts


class Boxes(NamedTuple):
    """Boxes of ``extent`` elements of a data set, which lies in a ``grid`` of chunks of ``chunk``
    elements each. A box is copied to one piece of memory, in which its axes have this ``order``.

    ``near``, ``far``: bytes from one element to the next along each axis, in that order, of a chunk
    and of a box; ``nbytes``: of a box.
    """

    grid: tuple[int, ...]
    chunk: tuple[int, ...]
    extent: tuple[int, ...]
    order: tuple[int, ...]
    near: Int64
    far: Int64
    nbytes: int

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        extent: tuple[int, ...],
        item: int,
        first: Sequence[int] = (),
    ) -> Boxes:
        """Those of a data set of ``item`` bytes an element. ``first``: axes that come before the
        others in a box."""
        grid = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
        order = (*first, *(axis for axis in range(len(shape)) if axis not in first))
        near, far = _steps(chunk, item), _steps([extent[axis] for axis in order], item)
        nbytes = math.prod(extent) * item
        return cls(grid, chunk, extent, order, near[list(order)], far, nbytes)

    def shares(self, starts: Int64) -> Shares:
        """What the boxes that begin at ``starts`` (n, rank) have of chunks."""
        chunk, extent, order = np.array(self.chunk), np.array(self.extent), list(self.order)
        begin, last = starts // chunk, (starts + extent - 1) // chunk
        most = (last - begin).max(axis=0, initial=0) + 1
        steps = np.indices(tuple(most)).reshape(most.size, -1).T
        at = begin[:, None, :] + steps
        box, number = np.nonzero((at <= last[:, None, :]).all(axis=2))
        touched = at[box, number]
        numbers = np.ravel_multi_index(tuple(touched.T), self.grid)
        by_chunk = np.argsort(numbers, kind="stable")
        box, corner = box[by_chunk], touched[by_chunk] * chunk
        chunks, first = np.unique(numbers[by_chunk], return_index=True)
        start = starts[box]
        low, high = np.maximum(start, corner), np.minimum(start + extent, corner + chunk)
        extents = np.take(high - low, order, axis=1)
        sources = np.take(low - corner, order, axis=1) @ self.near
        targets = np.take(low - start, order, axis=1) @ self.far
        return Shares(chunks, np.append(first, box.size), box, extents, sources, targets)


def _steps(sizes: Sequence[int], item: int) -> Int64:
    """Bytes from one element to the next along each axis of an array of such sizes."""
    return np.array([math.prod(sizes[axis + 1 :]) * item for axis in range(len(sizes))])


@lru_cache(maxsize=16)  # the data sets of a set's groups are alike
def first_piece(
    shape: tuple[int, ...], chunk: tuple[int, ...], item: int, axis: int, lead: int
) -> tuple[Boxes, Shares]:
    """The first samples of a data set, as many as chunks have along the ``lead`` axes from ``axis``
    on that number samples: their box, one sample after the other, and its shares."""
    along = range(axis, axis + lead)
    extent = tuple(chunk[i] if i in along else n for i, n in enumerate(shape))
    boxes = Boxes.of(shape, chunk, extent, item, along)
    return boxes, boxes.shares(np.zeros((1, len(shape)), np.int64))
