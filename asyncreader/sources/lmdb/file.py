"""The data file of an LMDB environment: found, and opened as a tree of bytes."""

from __future__ import annotations

import os
from typing import Final

from ...errors import SourceNotFoundError
from ...system.array_types import UInt8
from ..bytestore import OpenFile, check_descriptors

_MAGIC: Final = b"\xde\xc0\xef\xbe"


def data_file_in(folder: str) -> str | None:
    """The data file of the LMDB environment that is a folder, or None."""
    inside = os.path.join(folder, "data.mdb")
    return inside if os.path.isfile(inside) else None


def bears_magic(data: UInt8) -> bool:
    """Whether a file of these bytes is LMDB's data file."""
    return data[16:20].tobytes() == _MAGIC


def lmdb_data_file(path: str) -> str | None:
    """The data file of the LMDB environment at ``path`` (a directory or a file), or None."""
    if os.path.isdir(path):
        return data_file_in(path)
    if not os.path.isfile(path):  # a pipe would be waited for
        return None
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError as exc:
        check_descriptors(exc, path)
        return None
    return path if head[16:20] == _MAGIC else None


def open_data_file(path: str, io: str) -> OpenFile:
    """The data file of an environment."""
    data_file = lmdb_data_file(path)
    if data_file is None:
        raise SourceNotFoundError("no LMDB data file there", path=path, hint="expected data.mdb")
    return OpenFile(data_file, io)
