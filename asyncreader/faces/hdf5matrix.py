"""Keras' HDF5Matrix: rows start to end of a data set as if they were an array, normalised."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..dataset import Dataset
from ..dataset import open as open_dataset
from ..errors import Closing, ParamsError, closed_on_error
from ..pipeline.opened import is_number, number_of, numbers_of
from ..sources import absolute
from ..system.checks import FILE, whole

Array = npt.NDArray[np.number]


class HDF5Matrix(Closing):
    """Rows ``start`` to ``end`` (None: to the last) of ``dataset`` in the HDF5 file ``datapath``.

    ``m[i]``, ``m[a:b:c]``, ``m[list or int array]`` (any order, repeats allowed) read just those
    rows, as stored, into a new array, and return ``normalizer(rows)`` if there is one. ``shape``
    and ``dtype`` are those of the view after ``normalizer``. Thread-safe; pickles as its path.
    Raises ParamsError, SourceNotFoundError or FormatError, and IndexError past its end, even for
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
        # as stored: nothing here asks which of the axes are height and width
        stored = {"offsets_field": False, "axes": "NHWC", "layout": "NHWC"}
        self._set: Dataset[Array] = open_dataset(
            stored, hdf5_path=datapath, data_field=dataset, labels_field=None
        )
        with closed_on_error([self]):
            count, spec, path = len(self._set), self._set.source.spec, self._given[0]
            if spec.encoded or spec.shape is None or spec.ragged:
                raise ParamsError(
                    "this dataset holds encoded images, or rows of different length",
                    path=path,
                    hint="AsyncReader serves them",
                )
            self.start = whole(0)("start", start)
            self.end = count if end is None else whole(0)("end", end)
            if not self.start < self.end <= count:
                raise ParamsError(
                    "start and end select no rows",
                    path=path,
                    found=f"{self.start} to {self.end}",
                    expected=f"something within 0 to {count}",
                )
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
        """The dtype of what it returns."""
        return self._sample.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._sample.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    def __getitem__(
        self, key: int | np.integer | slice | Sequence[int] | npt.NDArray[np.integer]
    ) -> Array:
        """New rows; of one number its row."""
        if isinstance(key, slice):
            past = [end for end in (key.start, key.stop) if end is not None and end > len(self)]
            if past:  # as in Keras: a loop that goes on past the end is not served empty batches
                raise IndexError(f"row {past[-1]} is past the end: this view has {len(self)} rows")
        single = is_number(key)
        try:
            rows = number_of(key, len(self)) if is_number(key) else numbers_of(key, len(self))
        except TypeError:
            raise ParamsError(
                "rows are chosen by a number, a slice or a list of numbers", found=repr(key)
            ) from None
        served = self._set[rows + self.start]
        found = served[0] if single else served
        return found if self.normalizer is None else self.normalizer(found)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._set.close()

    def __reduce__(self) -> tuple[object, ...]:
        return HDF5Matrix, self._given

    def __repr__(self) -> str:
        return f"<HDF5Matrix {self._given[1]} of {self._given[0]}: {self.shape}>"
