"""Keras' HDF5Matrix: rows start to end of a data set as if they were an array, normalised."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from ..errors import Closing, ParamsError, ReaderClosedError, closed_on_error
from ..pixels.specs import OutputSpec
from ..pixels.transform import plan_rows
from ..sources import Request, Source, absolute, open_source, read_stored
from ..system.array_types import Int64
from ..system.checks import FILE
from .jobs import whole

Array = npt.NDArray[np.number]


class HDF5Matrix(Closing):
    """Rows ``start`` to ``end`` (None: to the last) of ``dataset`` in the HDF5 file ``datapath``.

    ``m[i]``, ``m[a:b:c]``, ``m[list or int array]`` (any order, repeats allowed) read just those
    rows, as stored, into a new array, and give ``normalizer(rows)`` where there is one. ``shape``
    and ``dtype`` are those of the view after ``normalizer``. Thread-safe; pickles as its path.
    Raises ParamsError, SourceNotFoundError or FormatError, and IndexError past its end, also for
    slices.
    """

    def __init__(
        self,
        datapath: str | os.PathLike[str],
        dataset: str,
        start: int = 0,
        end: int | None = None,
        normalizer: Callable[[Array], Array] | None = None,
    ) -> None:
        self._given = (absolute(FILE("datapath", datapath)), dataset, start, end, normalizer)
        # axes as stored: nothing here asks which of them are height and width
        fields = Request(data=dataset, labels=None, dims=(1, 2, 3, 4), offsets=False)
        source = open_source(datapath, fields, expect="HDF5")
        with closed_on_error([source]):
            facts, spec = source.facts, source.spec
            if spec.encoded or spec.shape is None or spec.ragged:
                raise ParamsError(
                    "this dataset holds encoded images, or rows of different length",
                    path=facts.path,
                    hint="AsyncReader serves them",
                )
            self.start = whole("start", start, 0)
            self.end = facts.count if end is None else whole("end", end, 0)
            if not self.start < self.end <= facts.count:
                raise ParamsError(
                    "start and end select no rows",
                    path=facts.path,
                    found=f"{self.start} to {self.end}",
                    expected=f"something within 0 to {facts.count}",
                )
            self._fill = plan_rows(spec, OutputSpec(layout=f"N{spec.axes or ''}"), facts.path)
        self._source: Source | None = source.first
        self.normalizer = normalizer
        self._sample = np.asarray(self[0:1])

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the view."""
        return (len(self), *self._sample.shape[1:])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """dtype of what is handed out."""
        return self._sample.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._sample.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @overload
    def __getitem__(self, key: int | np.integer) -> Array | np.number: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | npt.NDArray[np.integer]) -> Array: ...
    def __getitem__(
        self, key: int | np.integer | slice | Sequence[int] | npt.NDArray[np.integer]
    ) -> Array | np.number:
        if isinstance(key, slice):
            past = [end for end in (key.start, key.stop) if end is not None and end > len(self)]
            if past:  # as in Keras: a loop that goes on past the end is not served empty batches
                raise IndexError(f"row {past[-1]} is past the end: this view has {len(self)} rows")
            rows = np.arange(*key.indices(len(self)), dtype=np.int64)
        elif isinstance(key, int | np.integer):
            return self._read(np.array([key], np.int64), single=True)
        else:
            rows = np.asarray(key)
            if rows.size == 0:
                rows = rows.astype(np.int64)
            if rows.ndim != 1 or rows.dtype.kind not in "iu":
                raise ParamsError(
                    "rows are chosen by a number, a slice or a list of numbers", found=repr(key)
                )
        return self._read(rows.astype(np.int64), single=False)

    def _read(self, rows: Int64, single: bool) -> Array | np.number:
        source = self._source
        if source is None:
            raise ReaderClosedError("this HDF5Matrix is closed", hint="open a new one")
        rows = np.where(rows < 0, rows + len(self), rows)
        if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= len(self)):
            raise IndexError(f"row out of range: this view has {len(self)} rows")
        out, errors = read_stored(source, rows + self.start, self._fill)
        for bad in errors:
            raise bad.error
        if single:
            out = out[0]
        return out if self.normalizer is None else self.normalizer(out)

    def close(self) -> None:
        """Let go of the file; idempotent."""
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def __reduce__(self) -> tuple[object, ...]:
        return HDF5Matrix, self._given

    def __repr__(self) -> str:
        return f"<HDF5Matrix {self._given[1]} of {self._given[0]}: {self.shape}>"
