"""How long samples of different length are in a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..system.array_types import Array, Bools, Int64
from .rule import Rule


@dataclass(frozen=True, eq=False)
class Lengths:
    """The lengths of one field's samples, of which at most ``most`` values are served.

    ``offsets``: whole numbers (N + 1,), where the values of each begin; None: the ``rule`` says how
    many rows they have.
    """

    name: str
    most: int
    offsets: Array | None
    rule: Rule

    def served(self, records: Int64, mask: Bools) -> Int64:
        """Those of the samples at ``records`` (B,): int64 (B,), or (B, W) where each row of a
        window has a length; 0 for the samples that ``mask`` leaves out."""
        width = self.rule.width(self.name)
        shape = (records.size,) if self.offsets is None or width is None else (records.size, width)
        found = np.zeros(shape, np.int64)
        found[mask] = np.minimum(self._stored(records[mask]), self.most)
        return found

    def _stored(self, records: Int64) -> Int64:
        rule, name = self.rule, self.name
        if self.offsets is None:
            return rule.whole(name, records)[1]
        zeroed, rows = rule.zeroed(name, records), rule.stored(name, records)[0]
        starts, ends = (self.offsets[rows + k].astype(np.int64) for k in (0, 1))
        lengths: Int64 = ends - starts
        return lengths if zeroed is None else np.where(zeroed, 0, lengths)
