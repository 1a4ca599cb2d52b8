"""An HDF5 file as h5py shows it: opened, its links and description checked."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...errors import AsyncReaderError, FormatError, SourceError
from ...formats import packed as fmt
from ...system.signals import after_this
from ..bytestore import ByteFile, OpenFile, check_descriptors
from .checks import (
    attribute,
    check_library_filters,
    chunk_grid,
    find_dataset,
    pipeline,
    reach,
    read_table,
)
from .chunks import ChunkGrid, LibraryChunks
from .structure import virtual_layouts

#: Attributes of a description that are looked at, and bytes of paths read at a time.
_ATTRIBUTES: Final = 256
_PATH_BYTES: Final = 4 << 20

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"


def is_hdf5(path: str) -> bool:
    """Whether the file bears HDF5's signature."""
    try:
        file = OpenFile(path, "mmap")
    except SourceError:
        return False
    file.close()
    return signature_at(file.mapped.bytes) is not None


def signature_at(data: Any) -> int | None:
    """Where HDF5's signature is: at 0, 512, 1024, ... (format specification, II.A); None without.

    ``data``: the whole file, or what gives slices of it.
    """
    at, size = 0, int(data.size)
    while at + 8 <= size:
        if bytes(data[at : at + 8]) == SIGNATURE:
            return at
        at = max(512, at * 2)
    return None


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn h5py's errors into asyncreader's."""
    try:
        yield
    except (AsyncReaderError, KeyboardInterrupt, ImportError, MemoryError):
        raise  # what cannot be loaded, and memory that runs out, say nothing of the file
    except Exception as exc:
        if isinstance(exc.__cause__ or exc.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None  # h5py's lock makes a SystemError of Ctrl-C
        check_descriptors(exc, path)
        raise FormatError(
            f"HDF5 cannot read it: {exc}", path=path, hint="copy or convert it again"
        ) from exc


def open_library(path: str) -> Any:
    """h5py's File of ``path``, read-only.

    We need no lock, but HDF5 refuses a file that this process has open with other locking flags.
    """
    import h5py

    refused: OSError | None = None
    for locking in (False, None, True, "best-effort"):
        try:
            with after_this():  # interrupted inside, HDF5 would keep the file open
                return h5py.File(path, "r", locking=locking)
        except OSError as exc:
            if "already open for write" in str(exc):
                raise FormatError(
                    "a program has it open for writing, or was killed while it had",
                    path=path,
                    hint="close that program; after a crash, h5clear -s clears the mark it left",
                ) from exc
            if "flag values don't match" not in str(exc):
                raise
            refused = exc
    assert refused is not None
    raise refused


def library(file: ByteFile) -> Any:
    """h5py's File of it, read-only, which knows what checks.py asks it."""
    import h5py

    named = file.handle
    h5 = open_library(named) if isinstance(named, str) else h5py.File(named, "r")
    data = file.mapped.bytes
    h5.is_virtual = virtual_layouts(data, signature_at(data) or 0, file.path)
    return h5


@dataclass(frozen=True)
class TablePaths:
    """Source paths in the data set ``name``, one for each of ``count`` samples; None: missing."""

    name: str | None
    count: int

    def key(self, file: ByteFile, index: int) -> str | None:
        """None: HDF5 numbers its samples."""
        return None

    def path(self, file: ByteFile, index: int) -> bytes | None:
        """The path of one sample; None also where the file is damaged."""
        if self.name is None:
            return None
        try:
            with library(file) as h5:
                return bytes(self._table(h5, file.path)[index])
        except Exception:  # whatever h5py makes of a damaged file
            return None  # only an error message asks for it

    def paths(self, file: ByteFile, count: int) -> Iterator[bytes | None]:
        """All paths, read piece by piece."""
        with translated(file.path), library(file) as h5:
            paths = self._table(h5, file.path)
            step = max(1, _PATH_BYTES // paths.dtype.itemsize)
            for lo in range(0, paths.shape[0], step):
                yield from (bytes(name) for name in paths[lo : lo + step])

    def _table(self, h5: Any, path: str) -> Any:
        if self.name is None:
            raise FormatError("its paths are missing", path=path, hint=fmt.REPACK)
        paths = find_dataset(h5, self.name, path)
        check_library_filters(pipeline(paths.id.get_create_plist()), path, self.name)
        if paths.dtype.kind != "S" or paths.shape != (self.count,):
            raise FormatError(
                "its paths have the wrong shape or type",
                path=path,
                found=f"{paths.shape} {paths.dtype}",
                hint=fmt.REPACK,
            )
        if paths.chunks is not None:
            chunk_grid(h5, paths, self.name, path, h5.id.get_filesize())
        return paths


@dataclass(frozen=True)
class ThroughLibrary:
    """Decoded chunks of the data set ``name`` through HDF5 itself, one caller at a time."""

    name: str

    def __call__(self, file: ByteFile, grid: ChunkGrid) -> LibraryChunks:
        """Open the library."""
        with translated(file.path):
            h5 = library(file)
            file.check_same()
            return _LibraryReader(h5, find_dataset(h5, self.name, file.path), grid)


class _LibraryReader:
    def __init__(self, h5: Any, data: Any, grid: ChunkGrid) -> None:
        self._h5 = h5
        self._data = data
        self._grid = grid
        self._lock = threading.Lock()

    def read(self, number: int) -> npt.NDArray[np.uint8]:
        grid = self._grid
        at = np.unravel_index(number, grid.grid)
        where = tuple(
            slice(int(a) * c, min((int(a) + 1) * c, n))
            for a, c, n in zip(at, grid.chunk, grid.shape, strict=True)
        )
        with self._lock, translated(self._data.file.filename):
            part = self._data[where]
        full = np.zeros(grid.chunk, grid.dtype)
        full[tuple(slice(0, n) for n in part.shape)] = part
        return full.reshape(-1).view(np.uint8)

    def close(self) -> None:
        self._h5.close()


def _class_names(h5: Any, path: str) -> list[str]:
    table = find_dataset(h5, fmt.CLASSES, path)
    if table.dtype.kind != "S" or table.ndim != 1:
        raise FormatError(
            "its class names are no list of text",
            path=path,
            found=f"{table.shape} {table.dtype}",
            hint=fmt.REPACK,
        )
    raw = read_table(h5, table, fmt.CLASSES, path, h5.id.get_filesize())
    # a folder's name may be no UTF-8; it comes as os.fsdecode would give it
    return [bytes(name).decode("utf-8", "surrogateescape") for name in raw]


def _has_checksums(h5: Any, path: str) -> bool:
    """Whether the file has a table that only asyncreader writes."""
    import h5py

    table = reach(h5, fmt.CHECKSUMS, path)
    if not isinstance(table, h5py.h5d.DatasetID):
        return False
    return bool(table.rank == 1 and table.get_type().equal(h5py.h5t.STD_U64LE))


def read_meta(h5: Any, path: str) -> fmt.Meta | None:
    """asyncreader's description in the root attributes; None if another program wrote the file."""
    # asyncreader writes no text of variable length, and HDF5 2.0 may hang on a damaged one
    name = attribute(h5, "format")
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    if not isinstance(name, str) or name != fmt.FORMAT_NAME:
        if f"digest_{fmt.CHECKSUMS}" in h5.attrs or _has_checksums(h5, path):
            raise FormatError("its description is damaged or missing", path=path, hint=fmt.REPACK)
        return None
    fields: dict[str, Any] = {"format": name, "digests": {}, "shape": None, "classes": None}
    for key in itertools.islice(h5.attrs, _ATTRIBUTES):
        value = attribute(h5, key)
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, bytes):
            plain = plain.decode()
        if key.startswith("digest_"):
            fields["digests"][key[7:]] = plain
        elif key == "fields":
            fields[key] = _json(plain)
        else:
            fields[key] = plain.tolist() if isinstance(plain, np.ndarray) else plain
    if reach(h5, fmt.CLASSES, path) is not None:
        fields["classes"] = _class_names(h5, path)
    try:
        text = json.dumps(fields)
    except TypeError as exc:
        raise FormatError("its description is damaged", path=path, hint=fmt.REPACK) from exc
    return fmt.Meta.from_json(text, path)


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return [None]  # which is told as a garbled field
