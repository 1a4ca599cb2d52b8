"""Mean, deviation and ends of a field: numbers of values that come in parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .system.array_types import Array, Float64


@dataclass(frozen=True)
class FieldStatistics:
    """Numbers of a field, of each channel: float64 (C,) of pictures, (D,) of vectors of D numbers,
    () of anything else. ``count``: values of a channel; ``std``: of all of them (population)."""

    count: int
    mean: Float64
    std: Float64
    min: Float64
    max: Float64


class Moments:
    """Count, mean, variance and ends of values that come in parts (Chan, Golub and LeVeque,
    "Algorithms for Computing the Sample Variance", 1983)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = np.zeros(())
        self._low = self._high = np.zeros(())

    def add(self, values: Array) -> None:
        """More of them: (n, ...) of each channel."""
        count = len(values)
        if not count:
            return
        if values.dtype == np.uint8:
            mean, squares = _of_bytes(values)
        else:
            wide = values.astype(np.float64)
            mean = wide.mean(axis=0)
            squares = ((wide - mean) ** 2).sum(axis=0)
        low, high = values.min(axis=0).astype(float), values.max(axis=0).astype(float)
        if not self._count:
            self._mean, self._squares, self._low, self._high = mean, squares, low, high
        else:
            total, apart = self._count + count, mean - self._mean
            self._squares = self._squares + squares + apart**2 * (self._count * count / total)
            self._mean = self._mean + apart * (count / total)
            self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)
        self._count += count

    def made(self) -> FieldStatistics:
        """The numbers of all that was added."""
        std = np.sqrt(self._squares / max(1, self._count))
        return FieldStatistics(self._count, self._mean, std, self._low, self._high)


def _of_bytes(values: Array) -> tuple[Float64, Float64]:
    """Mean, and squares of the distances to it, of bytes: exact, from how often each comes."""
    levels, count = np.arange(256.0), len(values)
    columns = values.reshape(count, -1).T
    times = np.array([np.bincount(column, minlength=256) for column in columns], np.float64)
    mean = times @ levels / count
    squares = (times * (levels - mean[:, None]) ** 2).sum(axis=1)
    return mean.reshape(values.shape[1:]), squares.reshape(values.shape[1:])
