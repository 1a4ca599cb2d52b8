"""Caffe's HDF5Data: a text file that lists HDF5 files, a path a line, read as one set."""

from __future__ import annotations

import os
from typing import Final

from ...errors import FormatError, SourceNotFoundError
from ...system.array_types import UInt8
from ...system.memory import read_at_most
from ..urls import absolute

_SUFFIXES: Final = (".h5", ".hdf5", ".hdf", ".he5")
#: The longest list that is read, and the part of a file that tells whether it is one.
_MOST: Final = 16 << 20
_HEAD: Final = 8192


def is_list(path: str, data: UInt8) -> bool:
    """Whether a file is text whose first line names an HDF5 file. ``data``: its bytes.

    A list may name any file, so it is one only where it does not go by an HDF5 file's name.
    """
    if path.lower().endswith((*_SUFFIXES, ".mdb")):
        return False
    head = data[:_HEAD].tobytes()
    lines = [line.strip() for line in head.split(b"\n") if line.strip()]
    return b"\0" not in head and bool(lines) and lines[0].lower().endswith(_encoded(_SUFFIXES))


def _encoded(suffixes: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(suffix.encode() for suffix in suffixes)


def listed_files(path: str) -> list[str]:
    """The files that a list names, in its order: relative to the list, else to the current
    folder."""
    text = read_at_most(path, _MOST)
    if len(text) > _MOST or b"\0" in text:
        raise FormatError(
            "not a list of HDF5 files: too long, or not text",
            path=path,
            expected="one path per line",
        )
    files = []
    for number, line in enumerate(text.split(b"\n")):
        name = os.fsdecode(line.strip())
        if not name:
            continue
        in_folder = os.path.join(os.path.dirname(path), name)
        found = in_folder if os.path.exists(in_folder) else name
        if not os.path.exists(found):
            raise SourceNotFoundError(
                f"line {number + 1} of the list names a file that does not exist",
                path=path,
                found=ascii(name[:200]),
                hint="paths are relative to the list's folder, or to the current folder",
            )
        files.append(absolute(found))
    return files
