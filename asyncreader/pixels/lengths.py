"""Samples of different length as rows of one: which of their values are served, and to where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ..errors import SampleError
from ..system.array_types import Array, Bools, Int64, UInt64
from ..system.keyed_random import uniforms
from .specs import OutputSpec

#: The draw of ``overlong="random"``; crops have the first 40, mirroring the last of 64.
LENGTH_DRAW: Final = 62
#: Values that are read together: some numbers for each are in memory meanwhile.
TOGETHER: Final = 1 << 17
#: Rows of fewer bytes are filled with padding from their beginning: that takes less time than to go
#: from row to row.
WHOLE: Final = 4096


class Stretches(NamedTuple):
    """What is served of samples: ``served`` values from ``starts`` on, int64 (n,) each."""

    starts: Int64
    served: Int64

    @classmethod
    def of(
        cls,
        wanted: OutputSpec,
        starts: Int64,
        lengths: Int64,
        keys: UInt64,
        among: Int64 | None = None,
    ) -> Stretches:
        """Those of samples that begin at ``starts``, with ``lengths`` values each. A random one is
        drawn by ``keys``, among so many values: fields of one episode have one draw."""
        assert wanted.max_length is not None
        most = wanted.max_length
        if wanted.overlong == "random":
            room = np.maximum((lengths if among is None else among) - most, 0)
            drawn = uniforms(np.ascontiguousarray(keys), LENGTH_DRAW) * (room + 1)
            starts = starts + np.minimum(drawn.astype(np.int64), room)
        return cls(starts, np.minimum(lengths, most))

    def pick(self, which: Bools) -> Stretches:
        """Those of some of the samples."""
        return Stretches(self.starts[which], self.served[which])

    def pieces(self, rows: Int64, most: int) -> Iterator[tuple[Int64, Int64, Int64]]:
        """The values, some at a time, of samples that go to ``rows`` of ``most`` values: how many
        of each sample (n,), their numbers, and their places among the values of all rows; int64.
        """
        ends = np.cumsum(self.served)
        begins, total = ends - self.served, int(ends[-1]) if ends.size else 0
        records, places = self.starts - begins, rows * most - begins
        for low in range(0, total, TOGETHER):
            high = min(low + TOGETHER, total)
            counts = np.maximum(np.minimum(ends, high) - np.maximum(begins, low), 0)
            every = np.arange(low, high, dtype=np.int64)
            yield counts, np.repeat(records, counts) + every, np.repeat(places, counts) + every

    def pad(self, out: Array, rows: Int64, value: Array) -> None:
        """Fill up ``rows`` of ``out`` (B, max_length, ...) behind what is served; then read it."""
        most = out.shape[1]
        if rows.size and out[0].nbytes < WHOLE:
            behind = bool((np.diff(rows) == 1).all())  # as in most batches
            out[slice(rows[0], rows[0] + rows.size) if behind else rows] = value
            return
        for row, served in zip(rows.tolist(), self.served.tolist(), strict=True):
            if served < most:
                out[row, served:] = value


def too_long(wanted: OutputSpec, length: int) -> SampleError:
    """The error of a sample that is longer than ``overlong="error"`` allows."""
    return SampleError(
        "a sample is longer than max_length",
        found=f"{length:,}",
        expected=f"at most {wanted.max_length:,}",
        hint='overlong="cut" or "random" serves a part of such samples',
    )
