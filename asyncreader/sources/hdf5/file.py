"""An HDF5 file as h5py shows it: opened, its links and description checked; and sources over it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...errors import AsyncReaderError, FormatError
from ...formats import packed as fmt
from ...system.signals import after_this
from ..arrays import ArraySource
from ..base import BaseSource, ExtentSource
from ..bytestore import OpenFile, check_descriptors
from ..raw_images import RawImages
from .checks import (
    attribute,
    check_library_filters,
    chunk_grid,
    find_dataset,
    pipeline,
    reach,
    read_table,
)
from .chunks import ChunkSource
from .structure import virtual_layouts

#: Attributes of a description that are looked at, and bytes of paths read at a time.
_ATTRIBUTES: Final = 256
_PATH_BYTES: Final = 4 << 20

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"


def is_hdf5(path: str) -> bool:
    """Whether the file bears HDF5's signature."""
    return superblock(path) is not None


def superblock(path: str) -> int | None:
    """Where HDF5's signature is: at 0, 512, 1024, ... (format specification, II.A)."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = 0
            while at + 8 <= size:
                file.seek(at)
                if file.read(8) == SIGNATURE:
                    return at
                at = max(512, at * 2)
    except OSError as exc:
        check_descriptors(exc, path)
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


class Hdf5OnDisk(OpenFile):
    """An HDF5 file of this machine."""

    def superblock(self) -> int:
        """Where HDF5's signature is; 0 without one."""
        return superblock(self.path) or 0

    def library(self) -> Any:
        """h5py's File of it, read-only, which knows what checks.py asks it."""
        h5 = open_library(self.path)
        h5.is_virtual = virtual_layouts(self.mapped.bytes, self.superblock(), self.path)
        return h5


class Hdf5Files:
    """What samples are read from, and h5py's file where HDF5 must help."""

    def __init__(self, file: Any, h5: Any) -> None:
        self.file = file
        self.h5 = h5

    def close(self) -> None:
        self.file.close()
        if self.h5 is not None:
            self.h5.close()
            self.h5 = None


class Hdf5Common(BaseSource):
    """What all HDF5 sources add: the path a sample was packed from, and closing."""

    files: Hdf5Files
    paths_name: str | None = None

    def source_path(self, index: int) -> bytes | None:
        if self.paths_name is None:
            return None
        try:
            with self.files.file.library() as h5:
                return bytes(self._paths(h5)[index])
        except Exception:  # whatever h5py makes of a damaged file
            return None  # only an error message asks for it

    def all_paths(self) -> Iterator[bytes | None]:
        with translated(self.spec.path), self.files.file.library() as h5:
            if self.paths_name is None:
                raise FormatError("its paths are missing", path=self.spec.path, hint=fmt.REPACK)
            paths = self._paths(h5)
            step = max(1, _PATH_BYTES // paths.dtype.itemsize)
            for lo in range(0, paths.shape[0], step):
                yield from (bytes(name) for name in paths[lo : lo + step])

    def _paths(self, h5: Any) -> Any:
        """The data set of the paths, as many as there are samples."""
        path, name = self.spec.path, str(self.paths_name)
        paths = find_dataset(h5, name, path)
        check_library_filters(pipeline(paths.id.get_create_plist()), path, name)
        if paths.dtype.kind != "S" or paths.shape != (self.spec.count,):
            raise FormatError(
                "its paths have the wrong shape or type",
                path=path,
                found=f"{paths.shape} {paths.dtype}",
                hint=fmt.REPACK,
            )
        if paths.chunks is not None:
            chunk_grid(h5, paths, name, path, h5.id.get_filesize())
        return paths

    def close(self) -> None:
        self.files.close()


class Hdf5Extents(Hdf5Common, ExtentSource):
    """Contiguous rows, unfiltered chunks, or a blob of encoded images with offsets."""


class Hdf5Images(Hdf5Common, RawImages):
    """Raw images of different shapes, of variable length on disk (Fuel)."""


class Hdf5Chunks(Hdf5Common, ChunkSource):
    """Compressed or oddly cut chunks."""


class Hdf5Array(Hdf5Common, ArraySource):
    """Contiguous data whose sample axis is not the first."""


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
