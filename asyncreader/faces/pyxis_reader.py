"""ml-pyxis' files, read: databases as tables of byte ranges, samples as msgpack, and its Reader."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypedDict, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import errors
from ..errors import Closing, FormatError, ParamsError, SampleError, SourceError
from ..sources import absolute
from ..sources.bytestore import OpenFile
from ..sources.lmdb import Entries, LmdbFile, Tree, lmdb_data_file
from ..system.array_types import Int64
from ..system.checks import FILE, whole
from ..system.late import need

msgpack: Any = need("msgpack", "pyxis")

Array: TypeAlias = npt.NDArray[np.generic]
#: What a sample holds under a name.
Value: TypeAlias = Array | str
T = TypeVar("T")

DATA_DB: Final = b"data_db"
META_DB: Final = b"meta_db"
NB_SAMPLES: Final = b"nb_samples"

_DIGITS: Final = 10
_STR, _NDARRAY = 1, 2
#: Snapshots that are tried while a writer is at work.
_TRIES: Final = 100


def record_key(index: int) -> bytes:
    """The key of a sample: ten digits. ParamsError where it has more."""
    if index >= 10**_DIGITS:
        raise ParamsError("a sample number has at most ten digits", found=index)
    return b"%010d" % index


# -- the file ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """The samples of one moment: their ``entries``, and ``numbers``, ascending."""

    meta: Tree
    entries: Entries
    numbers: Int64
    nb_samples: int

    @property
    def tree(self) -> LmdbFile:
        """The file."""
        return self.entries.tree

    @classmethod
    def of(cls, path: str) -> Snapshot:
        """The newest snapshot. FormatError if the file is damaged or of another layout."""
        data_file = lmdb_data_file(path)
        if data_file is None:
            raise errors.SourceNotFoundError(
                "no LMDB data file there", path=path, hint="expected data.mdb"
            )
        for _ in range(_TRIES):
            before = os.stat(data_file)
            try:
                file = OpenFile(data_file, "mmap")
                file.close()  # its mapping stays
                found = cls._read(LmdbFile(file.mapped.bytes, path), path)
            except FormatError:
                after = os.stat(data_file)
                if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                    raise
                continue  # a writer was at work meanwhile
            if not found.tree.overtaken():
                return found
        raise SourceError("a writer is too busy on this file to read it", path=path)

    @classmethod
    def _read(cls, tree: LmdbFile, path: str) -> Snapshot:
        named = tree.named()
        if DATA_DB not in named or META_DB not in named:
            raise FormatError(
                "not an ml-pyxis file",
                path=path,
                found=f"named databases {sorted(n.decode('ascii', 'replace') for n in named)}",
                expected="data_db and meta_db",
            )
        data, meta = named[DATA_DB], named[META_DB]
        stated = tree.find(meta, NB_SAMPLES)
        text = b"" if stated is None else stated.tobytes()
        if not text.isdigit() or len(text) > _DIGITS + 1:
            raise FormatError(
                "its number of samples is missing",
                path=path,
                found=repr(text),
                expected="nb_samples in meta_db",
                hint="it was not closed when it was written: open it with Writer and close it",
            )
        entries = tree.table(data)
        numbers = entries.numbers(digits=_DIGITS)
        entries.need(numbers >= 0, "a key that is no sample number of ten digits")
        if (np.diff(numbers) <= 0).any():
            raise FormatError("its sample numbers are out of order", path=path)
        return cls(meta, entries, numbers, int(text))

    def row(self, index: int) -> int | None:
        """The sample's row in the tables; None if there is no such sample."""
        numbers, at = self.numbers, index
        if index >= numbers.size or numbers[index] != index:  # there are gaps before it
            at = int(np.searchsorted(numbers, index))
        return at if at < numbers.size and numbers[at] == index else None

    def value(self, index: int) -> bytes | None:
        """A sample as it is stored."""
        at = self.row(index)
        return None if at is None else self.entries.value(at).tobytes()

    def meta_value(self, key: bytes) -> bytes | None:
        """A string of meta_db."""
        value = self.tree.find(self.meta, key)
        return None if value is None else value.tobytes()


# -- samples -------------------------------------------------------------------------------------


def pack_sample(sample: dict[str, Array]) -> bytes:
    """A sample's arrays as ml-pyxis packs them, byte for byte."""
    try:
        inner = {
            name: msgpack.packb(
                {
                    b"type": _NDARRAY,
                    b"dtype": array.dtype.str,
                    b"shape": array.shape,
                    b"data": array.tobytes(),
                },
                use_bin_type=True,
            )
            for name, array in sample.items()
        }
        packed: bytes = msgpack.packb(inner, use_bin_type=True)
    except ValueError as exc:  # msgpack's limit is 4 GiB
        raise ParamsError(f"this sample cannot be stored: {exc}") from exc
    return packed


def unpack_names(data: bytes, index: int, path: str) -> dict[str, bytes]:
    """A sample's arrays by name, each still packed."""
    outer = _unpacked(data, index, None, path)
    if not isinstance(outer, dict) or {type(value) for value in outer.values()} - {bytes}:
        raise _bad("a sample is not a map of packed arrays", index, None, path)
    try:
        return {name.decode(): value for name, value in outer.items()}
    except (AttributeError, UnicodeDecodeError):
        raise _bad("a name is not UTF-8 text", index, None, path) from None


def unpack_array(data: bytes, index: int, key: str, path: str, copy: bool = False) -> Array | str:
    """One array (or the string) of a sample: a view of ``data`` unless ``copy``."""
    inner = _unpacked(data, index, key, path)
    kind = inner.get(b"type") if isinstance(inner, dict) else None
    payload = inner.get(b"data") if isinstance(inner, dict) else None
    if kind == _STR and isinstance(payload, bytes):
        return payload.decode("utf-8", "replace")
    if kind != _NDARRAY or not isinstance(payload, bytes):
        raise _bad("neither an array nor a string", index, key, path, f"type {kind!r}")
    dtype, shape = inner.get(b"dtype"), inner.get(b"shape")
    if not isinstance(dtype, bytes) or not isinstance(shape, list) or len(shape) > 32:
        raise _bad("an array without dtype or shape", index, key, path)
    plain = _plain(dtype)
    if plain is None:
        raise _bad("an array of no plain dtype", index, key, path, repr(dtype))
    with contextlib.suppress(TypeError, ValueError):
        if min(shape, default=0) >= 0 and math.prod(shape) * plain.itemsize == len(payload):
            array: Array = np.ndarray(shape, plain, payload)
            return array.copy() if copy else array
    found = f"{len(payload)} bytes, shape {shape}, dtype {plain}"
    raise _bad("an array whose bytes do not fit its shape", index, key, path, found)


@lru_cache(maxsize=64)
def _plain(text: bytes) -> np.dtype[Any] | None:
    """The dtype that numpy's type string names, None unless it is one of plain values."""
    if len(text) > 32:  # numpy would parse a list of a million fields
        return None
    try:
        found = np.dtype(text.decode("ascii"))
    except (TypeError, ValueError, SyntaxError):
        return None
    return found if found.kind in "biufcSUMm" and found.itemsize else None


def _unpacked(data: bytes, index: int, key: str | None, path: str) -> Any:
    try:
        # raw: writers on Python 2 made no difference between text and bytes
        return msgpack.unpackb(data, raw=True, use_list=True)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException) as exc:
        raise _bad("its msgpack is damaged", index, key, path, f"{exc!r}") from exc


def _bad(what: str, index: int, key: str | None, path: str, found: str | None = None) -> Exception:
    where = record_key(index).decode() + ("" if key is None else f", {key!r}")
    hint = "write this sample again"
    return SampleError(what, path=path, index=index, key=where, found=found, hint=hint)


# -- the reader ------------------------------------------------------------------------------------


class Specification(TypedDict):
    """An array of a sample without its values."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


class Reader(Closing):
    """Reads samples by number: ``reader[i]`` is a dict of arrays, ``reader[a:b:c]`` a list of them.

    ``lock`` is accepted; nothing is locked either way. A reader shows the dataset as it was when it
    was opened, or later if a writer has continued; ``len()`` stays. Raises SourceNotFoundError or
    FormatError, and SampleError, which names the sample, for one that is bad or missing.
    """

    def __init__(self, dirpath: str | os.PathLike[str], lock: bool = True) -> None:
        self.dirpath = absolute(FILE("dirpath", dirpath))
        self.lock = lock
        self._snapshot: Snapshot | None = Snapshot.of(self.dirpath)
        self.nb_samples = self._snapshot.nb_samples

    def _look(self, look: Callable[[Snapshot], T]) -> T:
        """What ``look`` finds in a snapshot that no writer overwrote meanwhile."""
        while True:
            snapshot = self._snapshot
            if snapshot is None:
                raise errors.ReaderClosedError("this Reader is closed", hint="open a new one")
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
        """Numbers of the samples that exist (int64, ascending): 0 .. len-1 if there are no gaps."""
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
        first, count = operator.index(i), whole(1)("size", size)
        if not 0 <= first <= self.nb_samples - count:
            raise IndexError(
                f"samples {first} to {first + count - 1} are out of range: {self.nb_samples}"
            )
        names = self.get_data_keys(first)
        return dict(zip(names, self.stacked(range(first, first + count), names), strict=True))

    def stacked(self, indices: Sequence[int], names: Sequence[str]) -> list[Array]:
        """New arrays (len(indices), ...), one for each name. Raises SampleError if samples are not
        alike."""
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
        """One array of sample ``i``; the others are not unpacked. Raises KeyError if it has no such
        array."""
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
        """A string kept with the dataset; "None" if there is none (as in ml-pyxis)."""
        name = key if isinstance(key, bytes) else str(key).encode()
        value = self._look(lambda snapshot: snapshot.meta_value(name))
        return "None" if value is None else value.decode("utf-8", "replace")

    # -- the rest --------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file. A second call does nothing."""
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
