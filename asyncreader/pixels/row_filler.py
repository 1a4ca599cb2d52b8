"""Fills many rows from memory in one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..system.array_types import Array, Bools, Float32, Int64, UInt64
from ..system.memory import address_of
from . import kernels
from .fill_tables import FILE, ROWS, Erasure, Jobs, numbers

_NO_FILES: Final = numbers(np.zeros(0, FILE))


@dataclass(frozen=True, eq=False)
class RowFiller:
    """Fills many rows in one compiled call. ``kernel``: the name of the function that does;
    ``terms``: see ROWS, one record for each field; ``scale``, ``shift``: float32 (C,), for those
    that cast; ``paint``: the pixel that rectangles are painted over with, None for none."""

    kernel: str
    terms: Array
    scale: Float32
    shift: Float32
    paint: Array | None = None

    @classmethod
    def of(cls, kernel: str, scale: Float32, shift: Float32, **terms: float) -> RowFiller:
        """A filler of rows with these ``terms``."""
        getattr(kernels, kernel)  # loaded now, and not by a worker during the first batch
        return cls(kernel, np.zeros(1, ROWS), scale, shift).having(**terms)

    @classmethod
    def copying(cls, size: int) -> RowFiller:
        """A filler of rows of ``size`` bytes, which stay as they are."""
        none = np.zeros(1, np.float32)
        return cls.of("copy_batches", none, none, row_bytes=size, out_bytes=size)

    def having(self, **terms: float) -> RowFiller:
        """The same filler with other terms."""
        other = self.terms.copy()
        for name, value in terms.items():
            other[name] = value
        return replace(self, terms=other)

    def erasing(self, erasure: Erasure, paint: Array) -> RowFiller:
        """The same filler, which then paints a rectangle over with ``paint``, a pixel (C,)."""
        other = self.having(**erasure._asdict(), paint=address_of(paint))
        return replace(other, paint=paint)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return int(self.terms["row_bytes"][0])

    @cached_property
    def draws(self) -> bool:
        """Whether anything follows from the rows' keys."""
        return any(self.terms[name].any() for name in ("mirrored", "padding", "chance"))

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """What kernels take besides jobs and files."""
        return numbers(self.terms), self.scale, self.shift

    @property
    def copies(self) -> bool:
        """Whether each row is written as it is stored."""
        return self.kernel == "copy_batches" and not self.draws

    def run(self, jobs: Jobs, files: Int64 = _NO_FILES) -> None:
        """Fill one batch. The GIL is released."""
        control, queue = np.array((0, 1, 0)), np.zeros(1, np.int64)
        fill = getattr(kernels, self.kernel)
        fill(control, queue, jobs.table, files, *self.arguments, 1, 0)

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
        hashes = None if wanted is None else np.zeros(rows.size, np.uint64)
        jobs, given = Jobs(1), (addresses, rows, keys, wanted, hashes)
        jobs.places(0, rows.size, *map(address_of, given))
        jobs.memory(0, address_of(out), 0)
        self.run(jobs)
        return hashes


@dataclass(frozen=True, eq=False)
class RowTables:
    """How compiled code fills batches of a set: see fill_tables.py.

    ``filler``: what is done with a row; its ``terms`` are those of each field; ``files``: where all
    rows lie; ``records``: the records of each field in the samples of some records, None where
    these are the records of the one field; ``alive``: owns the memory that the tables name.
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
        terms = [one.having(first=end - len(own), last=end).terms for one, own, end in each]
        filler = replace(fillers[0], terms=np.concatenate(terms))
        return cls(filler, np.concatenate(files), records, (alive, fillers))

    def fill(
        self, records: Int64, outs: Sequence[Array], labels: Array | None, key: int, position: int
    ) -> bool:
        """Fill the rows of ``outs``, of each field, with samples, and their labels.

        Returns whether all checksums are the recorded ones; what was written is not defined else.
        """
        own = (records,) if self.records is None else self.records(records)
        mark, jobs, place = np.zeros(1, np.int64), Jobs(len(own)), address_of(labels)
        for job, (out, one) in enumerate(zip((*outs, labels), own, strict=False)):
            jobs.records(job, one, key, position)
            jobs.memory(job, address_of(out), place)
        jobs.mark(0, address_of(mark), 1, 2)
        self.filler.run(jobs, self.files)
        return bool(mark[0] == 1)
