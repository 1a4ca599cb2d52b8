"""How long samples of different length are in a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..system.array_types import Array, Bools, Int64
from .episodes import Windows


@dataclass(frozen=True, eq=False)
class Lengths:
    """The lengths of one field's samples, of which at most ``most`` values are served.

    ``offsets``: whole numbers (N + 1,), where the values of each begin; None: they are whole
    episodes of ``windows``.
    """

    name: str
    most: int
    offsets: Array | None
    windows: Windows | None

    def served(self, records: Int64, mask: Bools) -> Int64:
        """Those of the samples at ``records`` (B,): int64 (B,), or (B, W) where each row of a
        window has a length; 0 for the samples that ``mask`` leaves out."""
        width = None if self.windows is None else self.windows.width(self.name)
        if self.offsets is None or width is None:
            found = np.zeros(records.size, np.int64)
        else:
            found = np.zeros((records.size, width), np.int64)
        found[mask] = np.minimum(self._stored(records[mask]), self.most)
        return found

    def _stored(self, records: Int64) -> Int64:
        if self.offsets is None:
            assert self.windows is not None
            return self.windows.whole(self.name, records)[1]
        zeroed = None
        if self.windows is not None:
            zeroed = self.windows.zeroed(self.name, records)
            records = self.windows.stored(self.name, records)[0]
        starts, ends = (self.offsets[records + k].astype(np.int64) for k in (0, 1))
        lengths: Int64 = ends - starts
        return lengths if zeroed is None else np.where(zeroed, 0, lengths)
