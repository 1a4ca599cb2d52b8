"""The splits of a set that asyncreader packed: one table, which has a number for each record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..system.array_types import Int64


class PackedSplits(Mapping[str, Int64]):
    """Record numbers of each split by its name. ``rows``: int64 (N,), of each record the number of
    its split among ``names``, -1 for none."""

    def __init__(self, names: tuple[str, ...], rows: Int64) -> None:
        self.names = names
        self.rows = rows

    def __getitem__(self, name: str) -> Int64:
        if name not in self.names:
            raise KeyError(name)
        return np.flatnonzero(self.rows[:] == self.names.index(name))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def split_rows(splits: Mapping[str, slice | Int64], count: int) -> Int64:
    """Of each of ``count`` records the number of its split, -1 for none; of the last one where it
    is in several."""
    if isinstance(splits, PackedSplits):
        return splits.rows[:]
    rows = np.full(count, -1, np.int64)
    for number, records in enumerate(splits.values()):
        rows[records] = number
    return rows


def split_counts(splits: Mapping[str, slice | Int64], count: int) -> dict[str, int]:
    """Samples of each split of a set of ``count``."""
    every = range(count)
    sizes = (len(every[one] if isinstance(one, slice) else one) for one in splits.values())
    return dict(zip(splits, sizes, strict=True))
