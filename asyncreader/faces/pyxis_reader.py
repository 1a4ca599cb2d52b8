"""ml-pyxis' Reader: samples of named arrays by number."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypedDict, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..errors import Closing, FormatError, ReaderClosedError, SampleError, SourceNotFoundError
from ..sources import absolute
from ..sources.lmdb.file import lmdb_data_file
from ..system.array_types import Int64
from ..system.checks import FILE
from .jobs import whole
from .pyxis_file import Snapshot, unpack_array, unpack_names

Array: TypeAlias = npt.NDArray[np.generic]
#: What a sample holds under a name.
Value: TypeAlias = Array | str
T = TypeVar("T")


class Specification(TypedDict):
    """An array of a sample without its values."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


class Reader(Closing):
    """Reads samples by number: ``reader[i]`` is a dict of arrays, ``reader[a:b:c]`` a list of them.

    ``lock`` is accepted; nothing is locked either way. A reader shows the set as it was when it was
    opened, or later where a writer has gone on; ``len()`` stays. Raises SourceNotFoundError or
    FormatError; a sample that is bad or missing is a SampleError that names it.
    """

    def __init__(self, dirpath: str | os.PathLike[str], lock: bool = True) -> None:
        self.dirpath = absolute(FILE("dirpath", dirpath))
        self.lock = lock
        if lmdb_data_file(self.dirpath) is None:
            raise SourceNotFoundError(
                "no LMDB data file there", path=self.dirpath, hint="expected data.mdb"
            )
        self._snapshot: Snapshot | None = Snapshot.of(self.dirpath)
        self.nb_samples = self._snapshot.nb_samples

    def _look(self, look: Callable[[Snapshot], T]) -> T:
        """What ``look`` finds in a snapshot that no writer overwrote meanwhile."""
        while True:
            snapshot = self._snapshot
            if snapshot is None:
                raise ReaderClosedError("this Reader is closed", hint="open a new one")
            try:
                found = look(snapshot)
            except FormatError:
                if not snapshot.tree.overtaken():
                    raise
            else:
                if not snapshot.tree.overtaken():
                    return found
            self._snapshot = Snapshot.of(self.dirpath)

    # -- samples ---------------------------------------------------------------------------

    @property
    def indices(self) -> Int64:
        """Numbers of the samples that are there (int64, ascending): 0 .. len-1 but for gaps."""
        numbers = self._look(lambda snapshot: snapshot.numbers)
        return numbers[numbers < self.nb_samples]

    def has(self, i: int) -> bool:
        """Whether there is a sample of this number."""
        number = operator.index(i)
        return 0 <= number < self.nb_samples and bool(
            self._look(lambda snapshot: snapshot.row(number) is not None)
        )

    def packed(self, i: int) -> dict[str, bytes]:
        """The arrays of a sample by name, still packed."""
        if not 0 <= i < self.nb_samples:
            raise IndexError(f"sample number out of range: {i} of {self.nb_samples}")
        data = self._look(lambda snapshot: snapshot.value(i))
        if data is None:
            raise SampleError(
                "there is no sample of this number",
                path=self.dirpath,
                index=i,
                hint="Reader.indices has those that are there",
            )
        return unpack_names(data, i, self.dirpath)

    def get_sample(self, i: int) -> dict[str, Value]:
        """Sample ``i`` (0 .. len-1): new arrays by name."""
        return {
            name: unpack_array(value, i, name, self.dirpath, copy=True)
            for name, value in self.packed(operator.index(i)).items()
        }

    def get_samples(self, i: int, size: int) -> dict[str, Array]:
        """Samples ``i`` to ``i + size - 1`` stacked, by name; they must be alike."""
        first, count = operator.index(i), whole("size", size)
        if not 0 <= first <= self.nb_samples - count:
            raise IndexError(
                f"samples {first} to {first + count - 1} are out of range: {self.nb_samples}"
            )
        names = self.get_data_keys(first)
        return dict(zip(names, self.stacked(range(first, first + count), names), strict=True))

    def stacked(self, indices: Sequence[int], names: Sequence[str]) -> list[Array]:
        """New arrays (len(indices), ...), one a name. SampleError where samples are not alike."""
        out: list[Array] = []
        for row, index in enumerate(indices):
            values = self.packed(index)
            for column, name in enumerate(names):
                if name not in values:
                    raise SampleError(
                        f"this sample has no {name!r}",
                        path=self.dirpath,
                        index=index,
                        found=sorted(values),
                    )
                value = np.asarray(unpack_array(values[name], index, name, self.dirpath))
                if row == 0:
                    out.append(np.empty((len(indices), *value.shape), value.dtype))
                elif value.shape != out[column].shape[1:] or value.dtype != out[column].dtype:
                    raise SampleError(
                        f"{name!r} of this sample is not like that of the others in its batch",
                        path=self.dirpath,
                        index=index,
                        found=f"{value.shape} {value.dtype}",
                        expected=f"{out[column].shape[1:]} {out[column].dtype}",
                        hint="read such samples one by one",
                    )
                out[column][row] = value
        return out

    @overload
    def __getitem__(self, key: int | np.integer) -> dict[str, Value]: ...
    @overload
    def __getitem__(self, key: slice) -> list[dict[str, Value]]: ...
    def __getitem__(
        self, key: int | np.integer | slice
    ) -> dict[str, Value] | list[dict[str, Value]]:
        if isinstance(key, slice):
            return [self.get_sample(i) for i in range(*key.indices(len(self)))]
        if not isinstance(key, int | np.integer):
            raise TypeError(f"samples are chosen by a number or a slice, not {type(key).__name__}")
        return self.get_sample(int(key) + len(self) if key < 0 else int(key))

    def __len__(self) -> int:
        return self.nb_samples

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return (self.get_sample(i) for i in self.indices.tolist())

    # -- what is in there ------------------------------------------------------------------

    def get_data_keys(self, i: int = 0) -> list[str]:
        """Names of the arrays of sample ``i``."""
        return list(self.packed(operator.index(i)))

    def get_data_value(self, i: int, key: str) -> Value:
        """One array of sample ``i``; the others are not unpacked. KeyError if it has none such."""
        values = self.packed(operator.index(i))
        if key not in values:
            raise KeyError(f"Key does not exist: {key}")
        return unpack_array(values[key], i, key, self.dirpath, copy=True)

    def get_data_specification(self, i: int) -> dict[str, Specification]:
        """``{name: {"dtype": ..., "shape": ...}}`` of sample ``i``."""
        sample = self.get_sample(i).items()
        arrays = ((name, np.asarray(value)) for name, value in sample)
        return {name: {"dtype": one.dtype, "shape": one.shape} for name, one in arrays}

    def get_meta_str(self, key: str | bytes) -> str:
        """A string kept with the set; "None" where there is none (as in ml-pyxis)."""
        name = key if isinstance(key, bytes) else str(key).encode()
        value = self._look(lambda snapshot: snapshot.meta_value(name))
        return "None" if value is None else value.decode("utf-8", "replace")

    # -- the rest --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the file; idempotent."""
        self._snapshot = None

    def __reduce__(self) -> tuple[object, ...]:
        return Reader, (self.dirpath, self.lock)

    def __repr__(self) -> str:
        lines = [
            "pyxis.Reader",
            f"Location:\t\t{self.dirpath!r}",
            f"Number of samples:\t{len(self)}",
        ]
        if self._snapshot is None:
            return "\n".join([*lines, "closed"])
        indices = self.indices
        if indices.size:
            first = int(indices[0])
            lines.append(f"Data keys ({first}th sample):")
            for name, spec in self.get_data_specification(first).items():
                lines.append(f"\t{name!r} <- dtype: {spec['dtype']}, shape: {spec['shape']}")
        return "\n".join(lines)
