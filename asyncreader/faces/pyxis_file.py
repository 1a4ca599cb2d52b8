"""Bytes of an ml-pyxis file: its databases as tables of byte ranges, its samples as msgpack."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, ParamsError, SampleError, SourceError, SourceNotFoundError
from ..sources.bytestore import OpenFile
from ..sources.lmdb import LmdbFile, Tree, lmdb_data_file
from ..system.array_types import Array, Int64

try:
    import msgpack
except ImportError as exc:  # pragma: no cover
    raise ImportError(
        "asyncreader.faces.pyxis needs msgpack: pip install -e '.[pyxis]' in asyncreader's checkout"
    ) from exc


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
    """The samples of one moment. ``numbers``: ascending; ``starts``/``sizes``: their values."""

    tree: LmdbFile
    meta: Tree
    numbers: Int64
    starts: Int64
    sizes: npt.NDArray[np.uint32]
    nb_samples: int
    #: so many samples have no gap before them
    dense: int

    @classmethod
    def of(cls, path: str) -> Snapshot:
        """The newest snapshot. FormatError if the file is damaged or of another layout."""
        data_file = lmdb_data_file(path)
        if data_file is None:
            raise SourceNotFoundError(
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
        if (numbers < 0).any():
            where = entries.blame(int(np.argmin(numbers)))
            raise FormatError("a key that is no sample number of ten digits", **where)
        if (np.diff(numbers) <= 0).any():
            raise FormatError("its sample numbers are out of order", path=path)
        gaps = numbers != np.arange(numbers.size)
        dense = int(np.argmax(gaps)) if gaps.any() else numbers.size
        return cls(tree, meta, numbers, entries.starts, entries.sizes, int(text), dense)

    def row(self, index: int) -> int | None:
        """The sample's row in the tables; None if there is no such sample."""
        if index < self.dense:
            return index
        at = int(np.searchsorted(self.numbers, index))
        return at if at < self.numbers.size and self.numbers[at] == index else None

    def value(self, index: int) -> bytes | None:
        """A sample as it is stored."""
        at = self.row(index)
        if at is None:
            return None
        start = int(self.starts[at])
        return self.tree.data[start : start + int(self.sizes[at])].tobytes()

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
