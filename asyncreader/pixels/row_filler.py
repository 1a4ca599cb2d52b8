"""Fills many rows from memory in one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from ..system.array_types import Array, Bools, Float32, Int64, UInt64
from ..system.memory import address_of
from . import fill_tables as tables
from . import kernels
from .fill_tables import Erasure

_NO_FILES: Final = np.zeros((0, tables.FILE_ITEMS), np.int64)


@dataclass(frozen=True, eq=False)
class RowFiller:
    """Fills many rows in one compiled call. ``kernel``: the name of the function that does;
    ``sizes``: see ROW_BYTES; ``scale``, ``shift``: float32 (C,), for those that cast; ``paint``:
    the pixel that rectangles are painted over with, None for none."""

    kernel: str
    sizes: Int64
    scale: Float32
    shift: Float32
    paint: Array | None = None

    @classmethod
    def of(cls, kernel: str, scale: Float32, shift: Float32, **sizes: int) -> RowFiller:
        """A filler of rows with ``sizes``, by their names in lower case."""
        numbers = np.zeros(tables.SIZE_ITEMS, np.int64)
        for name, size in sizes.items():
            numbers[getattr(tables, name.upper())] = size
        getattr(kernels, kernel)  # loaded now, and not by a worker during the first batch
        return cls(kernel, numbers, scale, shift)

    def having(self, **sizes: int) -> RowFiller:
        """The same filler with other sizes."""
        other = self.sizes.copy()
        for name, size in sizes.items():
            other[getattr(tables, name.upper())] = size
        return replace(self, sizes=other)

    def erasing(self, erasure: Erasure, paint: Array) -> RowFiller:
        """The same filler, which then paints a rectangle over with ``paint``, a pixel (C,)."""
        other = self.having(paint=address_of(paint))
        other.sizes[tables.CHANCE : tables.PAINT].view(np.float64)[:] = erasure
        return replace(other, paint=paint)

    @cached_property
    def draws(self) -> bool:
        """Whether anything follows from the rows' keys."""
        return bool(self.sizes[..., [tables.MIRRORED, tables.PADDING, tables.CHANCE]].any())

    @cached_property
    def _each(self) -> Int64:
        """The sizes of each field: (fields, SIZE_ITEMS)."""
        return self.sizes.reshape(-1, tables.SIZE_ITEMS)

    @property
    def copies(self) -> bool:
        """Whether each row is written as it is stored."""
        return self.kernel == "copy_batches" and not self.draws

    def run(self, arrays: tuple[Int64, ...], most: int = 1, looks: int = 0) -> None:
        """Fill at most ``most`` batches of ``arrays`` (control, queue, jobs, files); return when
        it was looked ``looks`` times in vain for one. The GIL is released."""
        getattr(kernels, self.kernel)(*arrays, self._each, self.scale, self.shift, most, looks)

    def fill(
        self,
        addresses: Int64,
        rows: Int64,
        out: Array,
        keys: UInt64 | None = None,
        wanted: Bools | None = None,
    ) -> UInt64 | None:
        """Fill ``rows`` of ``out`` from ``addresses``; what is drawn follows from ``keys``.

        Returns the XXH3-64 of the stored rows where ``wanted`` says so; the bytes served are those
        that were hashed. None without ``wanted``.
        """
        assert keys is not None or not self.draws
        job = np.zeros((1, tables.JOB_ITEMS), np.int64)
        one = job[0].data
        one[tables.COUNT], one[tables.OFFSETS] = rows.size, address_of(addresses)
        one[tables.TARGETS], one[tables.OUT] = address_of(rows), address_of(out)
        if keys is not None:
            one[tables.KEYS] = address_of(keys)
        found = None
        if wanted is not None:
            found = np.zeros(rows.size, np.uint64)
            one[tables.WANTED], one[tables.FOUND] = address_of(wanted), address_of(found)
        self.run((np.array((0, 1, 0)), np.zeros(1, np.int64), job, _NO_FILES))
        return found


@dataclass(frozen=True, eq=False)
class RowTables:
    """How compiled code fills batches of a set: see fill_tables.py.

    ``filler``: what is done with a row; its ``sizes`` (fields, SIZE_ITEMS) are those of each field;
    ``files``: where all rows lie; ``records``: the records of each field in the samples of some
    records, None where these are the records of the one field; ``alive``: owns the memory that the
    tables name.
    """

    filler: RowFiller
    files: Int64
    records: Callable[[Int64], Sequence[Int64]] | None
    alive: object

    @classmethod
    def of(
        cls,
        fillers: Sequence[RowFiller],
        files: Sequence[Int64],
        records: Callable[[Int64], Sequence[Int64]] | None = None,
        alive: object = None,
    ) -> RowTables:
        """The tables of fields: their ``fillers``, of one kernel, and the ``files`` of each."""
        ends = np.cumsum([len(one) for one in files]).tolist()
        each = zip(fillers, files, ends, strict=True)
        sizes = [one.having(first=end - len(own), last=end).sizes for one, own, end in each]
        filler = replace(fillers[0], sizes=np.array(sizes))
        return cls(filler, np.concatenate(files), records, (alive, fillers))

    def fill(
        self, records: Int64, outs: Sequence[Array], labels: Array | None, key: int, position: int
    ) -> bool:
        """Fill the rows of ``outs``, of each field, with samples, and their labels.

        Returns whether all checksums are the recorded ones; what was written is not defined else.
        """
        own = (records,) if self.records is None else self.records(records)
        mark, jobs = np.zeros(1, np.int64), np.zeros((len(own), tables.JOB_ITEMS), np.int64)
        items, places = jobs.data, (address_of(labels), address_of(mark))
        for job, (out, one) in enumerate(zip((*outs, labels), own, strict=False)):
            items[job, tables.COUNT], items[job, tables.RECORDS] = one.size, address_of(one)
            items[job, tables.OUT], items[job, tables.LABELS] = address_of(out), places[0]
            items[job, tables.KEY], items[job, tables.POSITION] = key, position
            items[job, tables.MARK] = places[1]
            items[job, tables.WHOLE], items[job, tables.REFUSED] = 1, 2
        self.filler.run((np.array((0, 1, 0)), np.zeros(1, np.int64), jobs, self.files))
        return bool(mark[0] == 1)
