"""Looks at single samples of a source: stored bytes, pixels, size, key, path and checksum."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from itertools import repeat

import numpy as np
from xxhash import xxh3_64_intdigest

from ..errors import DecodeError, SampleError
from ..pixels import codec
from ..pixels.numbers import TOGETHER
from ..pixels.rows import (
    SKIP_HINT,
    Origin,
    RowJob,
    RowStore,
    Runs,
    Writer,
    checksum_error,
)
from ..stats import Meter
from ..system.array_types import Array, Bools, Int64, UInt8, UInt64
from ..system.memory import address_of
from .base import Source


class _Looking(Writer):
    """A :class:`Writer` to which a bad sample is an error, with the file and the record."""

    _origin: Origin

    def fail(self, i: int, error: SampleError) -> None:
        error.hint = error.hint or SKIP_HINT
        raise self._origin.located(error, int(self.job.records[i])) from error.__cause__

    def fail_all(self, which: Int64, error: DecodeError) -> None:
        self.fail(int(which[0]), error)


class _OneSample(_Looking):
    """A :class:`Writer` that keeps one sample as it is stored, instead of writing its row.

    ``check``: compare the bytes with their checksum, where there is one. When it was written,
    ``data`` are its bytes, and ``pixels`` in stored axis order, None where it is encoded.
    """

    data: bytes
    pixels: Array | None = None

    def __init__(self, origin: Origin, record: int, check: bool) -> None:
        one = np.zeros(1, np.int64)
        self.job = RowJob(np.array([record], np.int64), one, one.view(np.uint64))
        self.meter = Meter()
        self._origin, self._check = origin, check

    def of_file(self, origin: Origin, first: int, positions: Int64, local: Int64) -> _OneSample:
        # whoever opened the file adds the number of its first record to an error that passes
        self._origin, self.job = origin, self.job._replace(records=local)
        return self

    def raw(self, i: int, sample: Array, stored: UInt8 | None = None) -> None:
        self.data = self._checked(sample if stored is None else stored)
        if stored is None:  # what was checked: the file may change
            self.pixels = np.frombuffer(self.data, sample.dtype).reshape(sample.shape)
        else:
            self.pixels = np.array(sample)

    def encoded(self, store: RowStore, offsets: Int64, sizes: Int64) -> None:
        self.data = self._checked(store.view(int(offsets[0]), int(sizes[0])))

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        stored = self._origin.spec
        assert stored.shape is not None
        for offset in offsets.tolist():  # of another part of the job there is none
            row = store.view(offset, stored.row_bytes)
            self.raw(0, row.view(stored.dtype).reshape(stored.shape))

    def values(
        self, origin: Origin, starts: Int64, lengths: Int64, runs: Runs | None = None
    ) -> Iterator[_Values]:
        first, count, stored = int(starts[0]), int(lengths[0]), self._origin.spec
        memory = np.empty((count, stored.row_bytes), np.uint8)
        for at in range(0, count, TOGETHER):
            records = np.arange(first + at, first + min(at + TOGETHER, count), dtype=np.int64)
            yield _Values(origin, records, memory[at : at + TOGETHER])
        pixels = memory.reshape(-1).view(stored.dtype)
        self.raw(0, pixels.reshape(-1, *(stored.shape or ())))

    def _checked(self, sample: Array) -> bytes:
        """The bytes of a sample; ChecksumError if they are not those that were packed."""
        data = sample.tobytes()
        sums = self._origin.checksums
        if self._check and sums is not None:
            found, expected = xxh3_64_intdigest(data), int(sums[self.job.records[0]])
            if found != expected:
                self.fail(0, checksum_error(found, expected))
        return data


class _Values(_Looking):
    """A :class:`Writer` that keeps values of one sample as they are stored, in ``memory``, uint8
    (n, bytes of a value)."""

    def __init__(self, origin: Origin, records: Int64, memory: UInt8) -> None:
        rows = np.arange(records.size)
        self.job = RowJob(records, rows, np.zeros(records.size, np.uint64))
        self.meter = Meter()
        self.memory = memory
        self._origin = origin

    def raw(self, i: int, sample: Array, stored: UInt8 | None = None) -> None:
        self.memory[i] = np.frombuffer(sample.tobytes(), np.uint8)

    def bulk(self, store: RowStore, offsets: Int64, which: Int64 | Bools | None = None) -> None:
        rows = self.job.rows if which is None else self.job.rows[which]
        store.gather(offsets, self.memory.shape[1], address_of(self.memory), rows)


class Inspector:
    """Looks at single samples of ``source``, by record number. Thread-safe.

    A sample that is bad is a SampleError with the file and the record, as when it is read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def _read(self, record: int, check: bool = True) -> _OneSample:
        sample = _OneSample(self._source, record, check)
        self._source.read_into(sample)
        return sample

    def bytes(self, record: int) -> bytes:
        """The stored bytes of a sample, compared with their checksum where there is one."""
        return self._read(record).data

    def pixels(self, record: int) -> Array:
        """A raw sample in stored axis order, with the channels in the order served."""
        pixels = self._read(record).pixels
        assert pixels is not None
        return pixels

    def size(self, record: int) -> tuple[int, int]:
        """(H, W) of a picture, upright. Where all have one size, none is read; DecodeError if an
        encoded picture's header is damaged."""
        source, stored = self._source, self._source.spec
        high, wide, _ = stored.image_shape()
        if high is not None and wide is not None:
            return high, wide
        sample = self._read(record, check=False)
        pixels = sample.pixels
        if pixels is not None:
            with source.holding(record) as (part, _):
                stored = part.spec
            assert stored.axes is not None
            return pixels.shape[stored.axes.index("H")], pixels.shape[stored.axes.index("W")]
        try:
            header = codec.read_header(sample.data)
        except DecodeError as exc:
            exc.hint = exc.hint or SKIP_HINT
            raise source.located(exc, record) from exc.__cause__
        return header.height, header.width

    def key(self, record: int) -> str | None:
        """The key of a sample in its container, where that has keys."""
        with self._source.holding(record) as (part, inside):
            return part.key(inside)

    def path(self, record: int) -> builtins.bytes | None:
        """The recorded path of the file that a sample was packed from; None if not recorded."""
        with self._source.holding(record) as (part, inside):
            return part.path(inside)

    def paths(self) -> Iterator[builtins.bytes | None]:
        """The recorded path of every sample, in order."""
        start = 0
        while start < self._source.facts.count:
            with self._source.holding(start) as (part, _):
                names, count = part.index.names, part.facts.count
                if names is None or part.file is None:
                    yield from repeat(None, count)
                else:
                    yield from names.paths(part.file, count)
            start += count

    def checksums(self, start: int, stop: int) -> UInt64 | None:
        """Recorded XXH3-64 of samples ``start`` to ``stop - 1``, uint64; None unless all samples
        have one."""
        if self._source.index.checked != "all":
            return None
        rows: list[UInt64] = []
        while start < stop:
            with self._source.holding(start) as (part, inside):
                assert part.checksums is not None
                rows.append(part.checksums[inside : inside + stop - start])
            start += rows[-1].size
        return rows[0] if len(rows) == 1 else np.concatenate(rows)
